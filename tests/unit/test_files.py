"""Files that a user names: links, devices, pipes and open files are written into; home folders in paths."""

import os
import stat
import threading
from pathlib import Path

import pytest

from hybridlab.errors import UserError
from hybridlab.files import is_stdout, is_stream, make_folder, new_folder, output_file, user_path, write_text


@pytest.mark.parametrize("links", [1, 3])
def test_a_link_stays_and_its_target_is_written(tmp_path, links):
    target = tmp_path / "far" / "target.txt"
    target.parent.mkdir()
    target.write_text("old")
    place = target
    for number in range(links):
        link = tmp_path / f"link{number}"
        link.symlink_to(os.path.relpath(place, tmp_path))
        place = link
    write_text(place, "new")
    assert place.is_symlink() and not target.is_symlink() and target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["target.txt"]  # nothing temporary stays


def test_a_link_to_what_is_not_there_makes_it(tmp_path):
    link, folder = tmp_path / "link", tmp_path / "folder"
    link.symlink_to("not/yet.txt")
    folder.symlink_to("later")
    assert output_file(link, "--out") == link
    write_text(link, "new")
    make_folder(folder)
    assert link.is_symlink() and (tmp_path / "not" / "yet.txt").read_text() == "new"
    assert folder.is_symlink() and (tmp_path / "later").is_dir()


def test_permissions_of_an_older_file_stay(tmp_path):
    path = tmp_path / "private.txt"
    path.write_text("old")
    path.chmod(0o640)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and path.read_text() == "new"


def test_a_pipe_is_written_into(tmp_path):
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_text(output_file(path, "--out", (".png",)), "new")
    reader.join(timeout=60)
    assert read == ["new"] and stat.S_ISFIFO(path.stat().st_mode)


def test_a_reader_that_has_gone_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    write_text(Path(f"/dev/fd/{writer}"), "new" * 50_000)
    os.close(writer)


def test_a_device_is_written_into():
    own, other = os.openpty()
    path = Path(os.ttyname(other))
    write_text(path, "new")
    assert os.read(own, 10) == b"new" and stat.S_ISCHR(path.stat().st_mode)
    os.close(own)
    os.close(other)


def test_an_open_file_is_written_on_even_if_it_is_a_regular_one(tmp_path):
    path, link = tmp_path / "log.txt", tmp_path / "link"
    with path.open("w") as file:
        file.write("before, ")
        file.flush()
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        before = path.stat().st_ino
        for place in (Path(f"/dev/fd/{file.fileno()}"), Path(f"/proc/self/fd/{file.fileno()}"), link):
            assert is_stream(place) and not is_stdout(place)
            write_text(place, "new, ")
        file.write("after")
    assert path.read_text() == "before, new, new, new, after" and path.stat().st_ino == before


def test_the_folder_that_a_link_names_is_replaced(tmp_path):
    real, link, later = tmp_path / "real", tmp_path / "link", tmp_path / "later"
    real.mkdir(mode=0o750)
    (real / "old").touch()
    link.symlink_to("real")
    later.symlink_to("not-yet")
    for place in (link, later):
        with new_folder(place, digests=False) as folder:
            (folder / "new").touch()
        assert place.is_symlink() and [path.name for path in place.iterdir()] == ["new"]
    assert stat.S_IMODE(real.stat().st_mode) == 0o750


def test_places_where_no_file_can_be_are_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for text, words in ((tmp_path, "this is a folder"), (tmp_path / "file" / "x.png", "is a file and no folder")):
        with pytest.raises(UserError, match=f"--out {text}: .*{words}"):
            output_file(text, "--out")
    with pytest.raises(UserError, match="must end in .png, .pdf or .svg"):
        output_file(tmp_path / "x.txt", "--out", (".png", ".pdf", ".svg"))
    with pytest.raises(UserError, match="this is a folder"):
        write_text(tmp_path, "new")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "loop", "new")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused(tmp_path):
    path = tmp_path / "x.txt"
    path.touch(mode=0o444)
    with pytest.raises(UserError, match="permission denied"):
        output_file(path, "--out")


def test_home_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x") == tmp_path / "x" and user_path(Path("~")) == tmp_path
    assert user_path("~nobody-is-called-so/x") == Path("~nobody-is-called-so/x")
    assert user_path("a/~") == Path("a/~") and is_stdout(output_file("-", "--out"))
