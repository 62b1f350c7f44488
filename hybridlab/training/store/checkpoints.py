"""Checkpoints, written atomically: into a temporary folder that is flushed to disk and then renamed.

`checkpoints/step-00000200/` holds model.safetensors, optimizer.safetensors, state.json and, written last, digests.json
with the SHA-256 of the others. No pickle files are read.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.files import DIGESTS, damage, new_folder, write_json, writing
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import Tensors, save_model, save_tensors, size_of
from hybridlab.training.store.folders import CHECKPOINT, step_of

_FIRST_AFTER = 30.0
"""Seconds until the first checkpoint by time."""
_SHARE = 0.02
"""The share of the time that checkpoints by time may take; the first one is not counted."""


class Pace:
    """When a checkpoint is due by time. seconds: see `Runtime.checkpoint_seconds`; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.wait = math.inf if seconds is None else min(seconds, _FIRST_AFTER)
        self.since = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.since >= self.wait

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A context for writing a checkpoint, whatever the reason: the time to the next one counts from its end."""
        started = time.monotonic()
        yield
        self.since = time.monotonic()
        self.wait = max(self.seconds, (self.since - started) / _SHARE)


@dataclass(frozen=True)
class Checkpoint:
    """model and optimizer: named tensors. state: everything else, as JSON."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    model: Tensors,
    optimizer: Tensors,
    state: dict[str, Any],
    keep: int,
    steps: Collection[int] = (),
) -> None:
    """Write the checkpoint of `step` into `folder` and delete all but the newest `keep` and those of `steps`. NoRoom if
    the disk is full; then the older checkpoints are all still there."""
    target = _place(folder, step)
    if (target / DIGESTS).is_file():
        return
    with new_folder(target, size_of(model) + size_of(optimizer)) as partial:
        save_tensors(model, partial / "model.safetensors")
        save_tensors(optimizer, partial / "optimizer.safetensors")
        write_json(partial / "state.json", state)
    for old in _complete(folder)[:-keep]:
        if step_of(old) not in steps:
            shutil.rmtree(old)


@contextmanager
def written_together(tensors: Mapping[str, Tensor], folder: Path, writer: bool) -> Iterator[Path]:
    """A context with a safetensors file of whole tensors that several processes hold parts of, and of which none holds
    all: each writes its parts into `folder`, one joins them there, and the `writer` removes the folder at the end.
    Every process enters it at the same time. If one could not write, all end with an OSError, NoRoom for a full disk.
    """
    # Imported here, because they are needed by several processes only.
    from torch.distributed import checkpoint as distributed
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    file = folder / "model-00001-of-00001.safetensors"
    try:
        with writing(folder):
            try:
                whole = HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=True)
                distributed.save(dict(tensors), storage_writer=whole)
            except distributed.CheckpointException as failed:
                errors: list[BaseException] = [error for error, _ in failed.failures.values()]
                raise next((error for error in errors if isinstance(error, OSError)), errors[0]) from None
            if writer:
                _write_scalars(file, tensors)
        yield file
    finally:
        if writer:
            shutil.rmtree(folder, ignore_errors=True)


def _write_scalars(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors without dimensions, which torch 2.13 leaves at zero when it joins parts, into a file."""
    with file.open("r+b") as content:
        size = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(size))
        for name, tensor in tensors.items():
            if tensor.dim() == 0:
                content.seek(8 + size + header[name]["data_offsets"][0])
                content.write(bytes(tensor.detach().cpu().reshape(1).view(torch.uint8).tolist()))


def keep_newest(folder: Path, keep: int, steps: Collection[int] = ()) -> None:
    """Delete all checkpoints but the newest `keep` complete ones and those of `steps`, and the folder itself if it is
    empty then.

    What the file system does not let go is left: `hybridlab runs clean` removes it later.
    """
    complete = _complete(folder)
    kept = [path for path in complete if step_of(path) in steps] + (complete[-keep:] if keep else [])
    for path in (*folder.glob(f"{CHECKPOINT}*"), *folder.glob(f".{CHECKPOINT}*.partial")):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def load_newest(folder: Path, optimizer: bool = True) -> Checkpoint | None:
    """The newest checkpoint, None if there is none. UserError if it is damaged, naming the one before it.

    optimizer: whether the optimizer's tensors are read too.
    """
    folders = sorted(folder.glob(f"{CHECKPOINT}*"))
    return _load(folders[-1], optimizer) if folders else None


def load_step(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of a step, None if there is none. UserError if it is damaged."""
    path = _place(folder, step)
    return _load(path, optimizer=True) if path.is_dir() else None


def _load(path: Path, optimizer: bool) -> Checkpoint:
    problem = damage(path)
    if problem:
        others = [other for other in _complete(path.parent) if other != path]
        offer = f"go on from {others[-1].name}" if others else "start again"
        raise UserError(f"{path}: {problem}; remove this checkpoint to {offer}")
    return Checkpoint(
        load_file(path / "model.safetensors"),
        load_file(path / "optimizer.safetensors") if optimizer else {},
        json.loads((path / "state.json").read_text(encoding="utf-8")),
    )


def _place(folder: Path, step: int) -> Path:
    return folder / f"{CHECKPOINT}{step:08d}"


def _complete(folder: Path) -> list[Path]:
    """The folders of complete checkpoints, oldest first."""
    return sorted(p for p in folder.glob(f"{CHECKPOINT}*") if (p / DIGESTS).is_file())


# ---- the models that a run leaves in its folder ----


def save_trained(
    folder: Path, model: Transformer, weights: Tensors, config: RunConfig, corpus: Corpus, **lineage: Any
) -> None:
    """Write a run's model with its tokenizer, in place of an older one. weights: of the model. lineage: further facts
    for config.json."""
    facts = {"hash": run_hash(config), "parents": parents(config), "arch": config.arch, "size": config.size}
    lineage = facts | {"tokenizer": corpus.meta["tokenizer"]} | lineage
    tokenizer = corpus.tokenizer.to_str(pretty=True)
    save_model(folder, model, lineage, tokenizer, config.plugins, weights, corpus.beside)


def copy_model(folder: Path, other: Path) -> None:
    """Write a copy of another run's model, in place of an older one."""
    with new_folder(folder) as partial:
        for path in other.iterdir():
            if path.name != DIGESTS:
                shutil.copy2(path, partial / path.name)
