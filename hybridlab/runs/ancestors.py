"""The starting point of a run: another run, or a folder in the Hugging Face layout, each identified by a hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hybridlab.config.loading import is_preset
from hybridlab.config.schema import Data, Training
from hybridlab.config.shape import Shape
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import load_tokenizer, tokenizer_digest
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.models.export import read_model_config, read_weights
from hybridlab.models.huggingface import load_hf
from hybridlab.plan.forecast import FORECASTS
from hybridlab.training.folders import RunFolder, Runs

_HF = "hf-"
_LONGEST = 1024


@dataclass(frozen=True)
class Ancestor:
    """digest: a run's hash, or `hf-` and a digest of the folder's files. settings: those that a child inherits.
    training: its training settings, if known. fading: it ended while heads were fading."""

    digest: str
    path: Path
    settings: dict[str, Any]
    shape: Shape
    size: str | None = None
    training: Training | None = None
    fading: bool = False

    @property
    def pretrained(self) -> bool:
        """Whether it is a folder in the Hugging Face layout."""
        return self.digest.startswith(_HF)

    @property
    def skip_steps(self) -> int | None:
        """The number of steps whose data it skipped at its start; None if unknown."""
        return self.training.skip_steps if self.training else None

    def check_shape(self, shape: Shape) -> None:
        """UserError if the shapes differ, in more than the initialization of weights."""
        for name in Shape.model_fields:
            there, here = getattr(self.shape, name), getattr(shape, name)
            if name != "init" and there != here:
                raise UserError(
                    f"{self.path}: weights of another architecture: shape.{name} is {there} there and {here} here"
                )

    @property
    def tokenizer(self) -> Path:
        """The path of its tokenizer.json; the file need not exist."""
        return self.path / "tokenizer.json" if self.pretrained else self.path / "final" / "tokenizer.json"

    def weights(self) -> dict[str, Tensor]:
        """Its parameters by name."""
        if self.pretrained:
            return dict(load_hf(self.path).named_parameters())
        return read_weights(self.path / "final")

    def check_tokenizer(self, corpus: Corpus, data: Data, advice: str | None = None) -> None:
        """UserError if it was trained with another tokenizer than the corpus; not checked if its folder has none.

        data: the settings that the corpus was made or opened with. advice: what to do about text that is not in shards;
        by default, the setting that names the ancestor's tokenizer.
        """
        if not self.tokenizer.is_file():
            return
        if tokenizer_digest(load_tokenizer(self.tokenizer)) == corpus.meta["tokenizer"]["sha256"]:
            return
        name = f"file:{self.tokenizer}"
        if data.prepared:
            advice = f"make them again: hybridlab data prepare TEXT --tokenizer {name} --out FOLDER"
        raise UserError(
            f"{self.path}: it was trained with another tokenizer than the data of {corpus.folder} has; "
            f"{advice or f'add --set data.tokenizer={name}'}"
        )


def find_ancestor(reference: str, runs: Runs) -> Ancestor:
    """A finished run (by name, folder or start of its hash), or a Hugging Face folder. Its path is added to `runs`."""
    path = Path(runs.places.get(reference, reference)).expanduser()
    if (path / "config.json").is_file() and not (path.parent / "run.json").is_file():
        runs.check_unambiguous(reference, path)
        ancestor = _from_hf(path)
        if reference.startswith(_HF) and reference != ancestor.digest:
            raise UserError(f"{path}: this folder has changed since the run was started from it; restore its files")
    else:
        ancestor = _from_run(runs.finished(reference))
    runs.places[ancestor.digest] = str(ancestor.path.resolve())
    return ancestor


def _from_run(folder: RunFolder) -> Ancestor:
    config = folder.config()
    settings = config.model_dump(mode="json", include={"shape", "plan", "data", "training", "evaluation"})
    window = getattr(config.map, "window", None)
    if window is not None:
        settings["window"] = window
    shape, fading = config.shape, False
    if config.controller is not None and config.controller.kind in FORECASTS:
        # Its weights were trained for the structure that it ended with.
        final = read_model_config(folder.final)
        shape, fading = final.structure.shape, bool(final.factors)
        settings["shape"] = shape.model_dump(mode="json")
        settings["plan"] = [{"op": "visits", "visits": final.structure.plan.to_json()["visits"]}]
    return Ancestor(folder.digest, folder.path, settings, shape, config.size, config.training, fading)


def _from_hf(path: Path) -> Ancestor:
    shape = load_hf(path).shape
    digest = hashlib.sha256()
    for file in sorted([path / "config.json", *path.glob("*.safetensors")]):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    training = {"seq_len": _seq_len(path, shape)}
    settings: dict[str, Any] = {"shape": shape.model_dump(mode="json"), "training": training}
    if (path / "tokenizer.json").is_file():
        settings["data"] = {"tokenizer": f"file:{path.resolve() / 'tokenizer.json'}"}
    name = path.resolve().name
    size = f"{name}-hf" if is_preset("size", name) else name
    return Ancestor(_HF + digest.hexdigest()[:16], path, settings, shape, size)


def _seq_len(path: Path, shape: Shape) -> int:
    """A length of training sequences that pretrained positions reach: at most 1,024 tokens, a power of two."""
    positions = shape.max_positions or read_object(path / "config.json", "model configuration", (), "restore it").get(
        "max_position_embeddings"
    )
    longest = min(_LONGEST, positions) if isinstance(positions, int) and positions > 1 else _LONGEST
    return 1 << (longest.bit_length() - 1)
