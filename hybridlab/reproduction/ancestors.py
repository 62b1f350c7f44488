"""What a run can start from: another run, or a folder in the Hugging Face layout, each named by a hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.config.schema import FullMap, LearnedMap, Shape, Training
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import load_tokenizer, tokenizer_digest
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.models.decoder import Decoder
from hybridlab.models.export import copy_weights, load_weights
from hybridlab.models.huggingface import load_hf
from hybridlab.training.folders import RunFolder, Runs

_HF = "hf-"


@dataclass(frozen=True)
class Ancestor:
    """digest: a run's hash, or `hf-` and a digest of the folder's files. settings: what a child takes over.
    training: how it was trained, where that is known. fading: it ended while loops were fading."""

    digest: str
    path: Path
    settings: dict[str, Any]
    shape: Shape
    size: str | None = None
    training: Training | None = None
    fading: bool = False

    @property
    def skip_steps(self) -> int | None:
        return self.training.skip_steps if self.training else None

    def check_shape(self, shape: Shape) -> None:
        """Weights mean something in one shape only; how they were first drawn is of no matter to it."""
        for name in Shape.model_fields:
            there, here = getattr(self.shape, name), getattr(shape, name)
            if name != "init" and there != here:
                raise UserError(
                    f"{self.path}: weights of another architecture: shape.{name} is {there} there and {here} here"
                )

    @property
    def tokenizer(self) -> Path:
        """Where its tokenizer.json lies, if it has one."""
        return self.path / "tokenizer.json" if self.digest.startswith(_HF) else self.path / "final" / "tokenizer.json"

    def load_into(self, model: Decoder) -> None:
        """Copy its weights into a model of the same shape."""
        if self.digest.startswith(_HF):
            copy_weights(model, dict(load_hf(self.path).named_parameters()), str(self.path))
        else:
            load_weights(model, self.path / "final")

    def check_tokenizer(self, corpus: Corpus) -> None:
        """Weights know the ids of one tokenizer only (where the folder says which)."""
        if not self.tokenizer.is_file():
            return
        if tokenizer_digest(load_tokenizer(self.tokenizer)) != corpus.meta["tokenizer"]["sha256"]:
            raise UserError(
                f"{self.path}: it was trained with another tokenizer than the data of {corpus.folder} has; "
                f"use --set data.tokenizer=file:{self.tokenizer}"
            )


def find_ancestor(reference: str, runs: Runs) -> Ancestor:
    """A finished run (folder, hash or its start), or a Hugging Face folder; its place is remembered in `runs`."""
    path = Path(runs.places.get(reference, reference)).expanduser()
    if (path / "config.json").is_file() and not (path.parent / "run.json").is_file():
        found = _from_hf(path)
        if reference.startswith(_HF) and reference != found.digest:
            raise UserError(f"{path}: this folder has changed since the run was started from it")
    else:
        found = _from_run(runs.finished(reference))
    runs.places[found.digest] = str(found.path.resolve())
    return found


def _from_run(folder: RunFolder) -> Ancestor:
    config = folder.config()
    settings = config.model_dump(mode="json", include={"shape", "plan", "data", "training", "evaluation"})
    if not isinstance(config.map, FullMap | LearnedMap):
        settings["window"] = config.map.window
    fading = False
    if isinstance(config.controller, EntropyGrowthConfig):
        # Its weights were trained for the plan that they grew to.
        final = read_object(folder.final / "config.json", "model", ("plan",))
        settings["plan"] = [{"op": "visits", "visits": final["plan"]["visits"]}]
        fading = bool(final.get("factors"))
    return Ancestor(folder.info()["hash"], folder.path, settings, config.shape, config.size, config.training, fading)


def _from_hf(path: Path) -> Ancestor:
    shape = load_hf(path).shape
    digest = hashlib.sha256()
    for file in sorted([path / "config.json", *path.glob("*.safetensors")]):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    settings: dict[str, Any] = {"shape": shape.model_dump(mode="json")}
    if (path / "tokenizer.json").is_file():
        settings["data"] = {"tokenizer": f"file:{path.resolve() / 'tokenizer.json'}"}
    return Ancestor(_HF + digest.hexdigest()[:16], path, settings, shape)
