"""Reading and writing files. A write that is killed leaves the old content or the new one, never a part.

A link is followed. What is no regular file (a device, a pipe, an open file such as /dev/stdout) is written into and
stays what it is.

Folders of models and checkpoints hold digests.json, written last, with the SHA-256 of every other file.

JSON in a file that ends with .zst is compact and compressed with zstandard and a dictionary of what records have in
common, 44 % smaller than without: `zstd -dc -D hybridlab/records.zdict FILE` prints it. Nothing can be read
without the dictionary that it was written with, so none ever changes: that of records from before December 2026,
records-1.zdict, stays beside the one that is written with. Files without one are read too.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import os
import shutil
import stat
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlab.errors import NoRoom, UserError

if TYPE_CHECKING:
    import zstandard

DIGESTS = "digests.json"
LEVEL = 19
"""Of compression: records are written once and kept."""
DICTIONARIES = [Path(__file__).with_name(name) for name in ("records.zdict", "records-1.zdict")]
"""The newest first: new files are written with it."""
ENDINGS = {"picture": (".png", ".pdf", ".svg"), "yaml": (".yaml", ".yml")}
"""Of the names of files, by what is in them; a picture for a device or a pipe with another name is a PNG."""
STDOUT = Path("/dev/stdout")
_LINKS = 40
"""How many links may follow each other, as on Linux."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_POINTER = b"version https://git-lfs.github.com/spec/"


def in_place_of(path: Path) -> str | None:
    """What stands instead of a file that could not be read, in words: a pointer of git-lfs. None for any other, and for
    a pipe, of which nothing is read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            pointer = file.read(len(_POINTER)) == _POINTER
    except OSError:
        return None
    if not pointer:
        return None
    return f"this is a pointer of git-lfs and not the file itself; get it with `git -C {path.parent} lfs pull`"


def read_object(path: Path, what: str, required: tuple[str, ...] = (), remedy: str = "restore it") -> dict[str, Any]:
    """The JSON object in a file, compressed if its name ends with .zst. FileNotFoundError without a file, UserError if
    it is damaged or lacks a required key.

    what: what the file is, and remedy: what to do if it is damaged, both for the error.
    """
    try:
        data = json.loads(read_text(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        problem = in_place_of(path) or f"this {what} is damaged ({reason}); {remedy}"
        raise UserError(f"{path}: {problem}") from None
    missing = [key for key in required if not isinstance(data, dict) or key not in data]
    if missing or not isinstance(data, dict):
        reason = f"{missing[0]!r} is missing" if missing else "it is not a JSON object"
        raise UserError(f"{path}: this {what} is damaged ({reason}); {remedy}")
    return data


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark, compressed if its name ends with .zst. OSError or ValueError if it
    is damaged."""
    content = path.read_bytes()
    if path.suffix == ".zst":
        import zstandard

        try:
            number = zstandard.get_frame_parameters(content).dict_id
            dictionary = next((known for known in _dictionaries() if known.dict_id() == number), None)
            content = zstandard.ZstdDecompressor(dictionary).decompress(content, allow_extra_data=False)
        except (zstandard.ZstdError, MemoryError):
            raise OSError(errno.EIO, "it cannot be decompressed") from None
    return content.decode("utf-8-sig")


def to_utf8(start: bytes) -> str:
    """How to convert text that is not UTF-8. start: its first bytes."""
    encoding = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin1"
    return f"convert it: iconv -f {encoding} -t utf-8"


@cache
def _dictionaries() -> list[zstandard.ZstdCompressionDict]:
    import zstandard

    return [zstandard.ZstdCompressionDict(path.read_bytes()) for path in DICTIONARIES]


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """A context for writing a file or folder, which every error of the operating system then names.

    NoRoom if the disk is full, with the free bytes and those that are needed, if known. Of two such contexts, one
    inside the other, the outer one is named: by then the part that was written is removed.
    """
    try:
        yield
    except (OSError, NoRoom) as error:
        if isinstance(error, OSError) and error.errno not in _FULL:
            if error.errno is not None:
                error.filename = error.filename or str(path)
            raise
        # Their local variables may hold open files, whose space counts as used until they are closed.
        traceback.clear_frames(error.__traceback__)
        reason = error.reason if isinstance(error, NoRoom) else os.strerror(error.errno or 0)
        there = next(folder for folder in path.absolute().parents if folder.exists())
        free = f"{shutil.disk_usage(there).free:,} bytes are free"
        numbers = f"{needed:,} bytes are needed, {free}" if needed else free
        text = f"{path}: it cannot be written ({reason}; {numbers}); make room, then give the same command again"
        raise NoRoom(text, reason) from None


def user_path(text: str | Path) -> Path:
    """A path that a user wrote, with the home folder instead of `~` or `~NAME`; these stay where nobody is called so.

    Paths enter here: from options, arguments of the Python API, settings and the environment.
    """
    return Path(os.path.expanduser(text))


def output_file(text: str | Path, option: str, endings: tuple[str, ...] = ()) -> Path:
    """The file that a user wants a result in; `-` is standard output. option: that names it, for errors.

    endings: of the names of such a file, such as .png; what is no regular file may have any name. UserError, before
    the work for the result is done, if it cannot be written there.
    """
    path = STDOUT if str(text) == "-" else user_path(text)
    if path.is_dir():
        raise UserError(f"{option} {path}: this is a folder; name a file in it")
    if is_stream(path):
        return path
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{option} {path}: the name must end in {' or '.join(', '.join(endings).rsplit(', ', 1))}")
    place = followed(path).absolute()
    folder = next(folder for folder in place.parents if folder.exists())
    if not folder.is_dir():
        raise UserError(f"{option} {path}: {folder} is a file and no folder; name another place")
    if not all(os.access(part, os.W_OK) for part in (folder, place) if part.exists()):
        raise UserError(f"{option} {path}: it may not be written (permission denied); name another place")
    return path


def is_stream(path: Path) -> bool:
    """Whether a path is that of something that is written once, from its beginning to its end, as a pipe or a terminal:
    no regular file, no folder, and not a file that is still to be made."""
    if _open_number(path) is not None:
        return True
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    return False


def is_stdout(path: Path) -> bool:
    """Whether a path is that of standard output."""
    return _open_number(path) == 1


def _open_number(path: Path) -> int | None:
    """The number of the open file of this process that a path stands for, as /dev/stdout and /dev/fd/3 do; None for
    other paths. Such a file must not be opened anew or replaced, even if it is a regular one: others write there."""
    folder = os.path.realpath("/dev/fd")
    for _ in range(_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) == folder:
            return int(path.name)
        if not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    return None


def followed(path: Path) -> Path:
    """What a link stands for, also one to what is not there yet; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def make_folder(path: Path) -> None:
    """Make a folder, and those around it, unless it is there; see `followed`."""
    followed(path).mkdir(parents=True, exist_ok=True)


def mode_of_new_files(folder: Path) -> int:
    """The permissions that a new file in a folder gets, after the user's umask."""
    file = folder / f".{uuid.uuid4().hex[:8]}"
    file.touch()
    try:
        return stat.S_IMODE(file.stat().st_mode)
    finally:
        file.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a file with a text."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file: a temporary one, flushed to disk and renamed, with the owner and permissions of an older one.

    A link is followed. What is no regular file is written into; a reader that has gone is no error, as it is none for
    what is printed. UserError for a folder.
    """
    with writing(path, len(content)):
        if is_stream(path):
            number = _open_number(path)
            if number is not None:
                print(end="", flush=True)  # what was printed before comes before
            with suppress(BrokenPipeError), open(path if number is None else os.dup(number), "wb") as into:
                into.write(content)
            return
        place = followed(path)
        if place.is_dir():
            raise UserError(f"{path}: this is a folder; name a file in it")
        make_folder(place.parent)
        temporary = place.parent / f".{place.name}.{uuid.uuid4().hex[:8]}"
        try:
            with temporary.open("wb") as file:
                _take_permissions(file.fileno(), place)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, place)
            sync(place.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _take_permissions(handle: int, older: Path) -> None:
    """Give an open file the owner, group and permissions of an older one, if there is one."""
    with suppress(FileNotFoundError):
        of = older.stat()
        with suppress(PermissionError):  # the owner is another user
            os.fchown(handle, of.st_uid, of.st_gid)
        os.fchmod(handle, stat.S_IMODE(of.st_mode))


def write_json(path: Path, data: Any) -> None:
    """Write JSON and keep the key order; compact and compressed if the name ends with .zst, to the same bytes for the
    same data. ValueError for NaN and infinity."""
    if path.suffix == ".zst":
        import zstandard

        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, dict_data=_dictionaries()[0])
        write_bytes(path, compressor.compress(compact_json(data).encode()))
    else:
        write_text(path, json_text(data) + "\n")


def rounded_floats(data: Any, digits: int) -> Any:
    """JSON with its floats, but for whole numbers, rounded to `digits` significant digits."""
    if isinstance(data, float):
        return data if data.is_integer() else float(f"{data:.{digits}g}")
    if isinstance(data, dict):
        return {key: inner if isinstance(inner, str) else rounded_floats(inner, digits) for key, inner in data.items()}
    return [rounded_floats(inner, digits) for inner in data] if isinstance(data, list | tuple) else data


def compact_json(data: Any) -> str:
    """JSON on one line, without spaces, for files that only programs read."""
    return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def json_text(data: Any) -> str:
    """JSON that a person can read and that does not grow with its numbers: every entry of an object has its line, and
    every list of numbers or texts, and every row of a list of lists or of objects, has one line."""
    return "".join(_json_parts(data, "\n"))


def _json_parts(data: Any, line: str) -> Iterator[str]:
    """line: what begins a line at this depth."""
    nested = isinstance(data, dict | list | tuple) and any(
        isinstance(value, dict | list | tuple) for value in (data.values() if isinstance(data, dict) else data)
    )
    if not data or not (nested or isinstance(data, dict)):
        yield json.dumps(data, allow_nan=False)
        return
    inner, comma = line + " ", ""
    yield "{" if isinstance(data, dict) else "["
    if isinstance(data, dict):
        for key, value in data.items():
            yield f"{comma}{inner}{json.dumps(key)}: "
            yield from _json_parts(value, inner)
            comma = ","
    else:
        for value in data:
            yield comma + inner
            yield from _in_a_row(value, inner)
            comma = ","
    yield line + ("}" if isinstance(data, dict) else "]")


def _in_a_row(value: Any, line: str) -> Iterator[str]:
    """An entry of a list: on one line, unless it holds lists of lists or objects."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    deep = any(
        isinstance(inner, dict | list | tuple)
        for part in parts
        for inner in (part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ())
    )
    return _json_parts(value, line) if deep else iter((json.dumps(value, allow_nan=False),))


@contextmanager
def new_folder(target: Path, needed: int | None = None, digests: bool = True) -> Iterator[Path]:
    """An empty folder to fill. At the end its files are flushed to disk; it gets digests.json and the name `target`, in
    place of a folder of that name; until then nothing is there under that name. If that is a link, the folder that it
    names is replaced. needed: bytes, for the message about a full disk. digests: False for a folder that others may
    change."""
    place = followed(target)
    partial = place.parent / f".{place.name}.partial"
    with writing(target, needed):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            for path in partial.iterdir():
                sync(path)
            if digests:
                write_json(partial / DIGESTS, {path.name: _digest(path) for path in sorted(partial.iterdir())})
            sync(partial)
            if place.exists():
                shutil.copymode(place, partial)
                shutil.rmtree(place)
            partial.rename(place)
            sync(place.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """What is wrong with a folder of `new_folder`: the first file that is missing or differs from its digest, in words.

    None if every file is as it was written.
    """
    try:
        digests = read_object(folder / DIGESTS, "list of digests")
    except FileNotFoundError:
        return f"{DIGESTS} is missing"
    except UserError:
        digests = {}
    if not digests:
        return f"{DIGESTS} is damaged"
    for name, digest in digests.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} is damaged (its digest differs)"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file to disk, or a folder's entries, so that a rename in it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
