"""Where the files of a task are: a path, or a path below the data root.

An experiment names files as `root:glue/sst2/validation.jsonl`, so that its runs are the same on every machine. The data
root is a folder that `--data-root DIR` or the environment variable HYBRIDLAB_DATA_ROOT names.
"""

from __future__ import annotations

import os
from pathlib import Path

from hybridlab.config.finetune import ROOT, Finetune
from hybridlab.errors import UserError

DATA_ROOT = "HYBRIDLAB_DATA_ROOT"
NO_ROOT = (
    "no data root is set; name the folder of the task files with HYBRIDLAB_DATA_ROOT=DIR or `reproduce --data-root DIR`"
)


def use_data_root(folder: Path | None) -> None:
    """Take a folder as the data root of this process and those that it starts; None keeps the one that is set.
    UserError if there is no such folder."""
    if folder is None:
        return
    _require_folder(folder)
    os.environ[DATA_ROOT] = str(folder.expanduser().absolute())


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--data-root {folder}: there is no such folder; give the folder that holds the task files")


def data_root(folder: Path | None = None) -> Path | None:
    """The data root: this folder, or the one that is set; None without. UserError if there is no such folder."""
    if folder is not None:
        _require_folder(folder)
        return folder.expanduser().absolute()
    root = os.environ.get(DATA_ROOT)
    if root and not Path(root).is_dir():
        raise UserError(f"{DATA_ROOT}={root}: there is no such folder; name the folder that holds the task files")
    return Path(root) if root else None


def located(text: str) -> Path:
    """The path of a setting; UserError for one below a data root that is not set."""
    if not text.startswith(ROOT):
        return Path(text)
    root = os.environ.get(DATA_ROOT)
    if not root:
        raise UserError(f"{text}: {NO_ROOT}")
    return Path(root) / text.removeprefix(ROOT)


def missing_files(settings: Finetune) -> str | None:
    """Why a task's files below the data root cannot be read, in words; None if they are there or need no root."""
    for text in (settings.data, settings.validation):
        if text is None or not text.startswith(ROOT):
            continue
        if not os.environ.get(DATA_ROOT):
            return NO_ROOT
        if not located(text).exists():
            return f"{located(text)} is not there"
    return None
