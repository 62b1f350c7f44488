"""Folders whose content is being prepared: kept where a preparation stops, found again by the next one."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridlab.data.progress import Say
from hybridlab.errors import UserError
from hybridlab.files import sync_folder, writing

STATE = "state.json"
"""How far the preparation of a source is, in its folder (data/writing.py)."""


@contextmanager
def unfinished(folder: Path, key: str, say: Say) -> Iterator[Path]:
    """The hidden folder beside `folder` that takes its place at the end. key: the digest of what is prepared.

    It is that of an earlier preparation of the same that was stopped or killed, if there is one. After an error it
    stays only if a state is recorded in it, or one of several sources is complete. Another process that prepares the
    same is waited for.
    """
    partial = folder.parent / f".{folder.name}.{key}.partial"
    with writing(folder), _alone(partial, say):
        try:
            yield partial
            _move_into_place(partial, folder)
        except BaseException:
            if any(partial.rglob(STATE)) or any(partial.glob("*/meta.json")):
                say(f"{folder}: what is done so far is kept; the same command goes on from there")
            else:
                shutil.rmtree(partial, ignore_errors=True)
            raise


def others(folder: Path, key: str) -> list[Path]:
    """What preparations of something else have left beside a folder, for the same place."""
    mine = f".{folder.name}.{key}.partial"
    return sorted(path for path in folder.parent.glob(f".{glob.escape(folder.name)}.*.partial") if path.name != mine)


@contextmanager
def _alone(partial: Path, say: Say) -> Iterator[None]:
    """Make a folder if it is not there, and hold its lock, which ends with the process."""
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            _lock(handle, partial, say)
            # While this process waited, the folder may have been moved into its place, or removed.
            if partial.is_dir() and partial.stat().st_ino == os.fstat(handle).st_ino:
                yield
                return
        finally:
            os.close(handle)


def _lock(handle: int, partial: Path, say: Say) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another process prepares the same data; waiting for it")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _move_into_place(partial: Path, folder: Path) -> None:
    """Rename the folder; not if another process has prepared the same in the meantime."""
    if (folder / "meta.json").is_file():
        shutil.rmtree(partial)
        return
    if folder.exists():
        try:
            folder.rmdir()
        except OSError:
            raise UserError(f"{folder}: the folder is not empty; choose another one with --out") from None
    partial.rename(folder)
    sync_folder(folder.parent)
