"""A model that exists: the final, best or newest weights of a run, a folder in the Hugging Face layout, or a GGUF file.

found = open_model("runs/first", runs)     # also the start of a hash, a name, runs/first/best, path/to/llama, FILE.gguf
found.model(tokens).logits
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.config.loading import is_preset
from hybridlab.config.schema import Data, RunConfig
from hybridlab.config.training import Training
from hybridlab.config.types import fields_of
from hybridlab.data.preparing import corpus_of
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import instead_of_tokenizer, load_tokenizer, require_fitting, tokenizer_digest
from hybridlab.errors import UserError
from hybridlab.files import read_object, user_path
from hybridlab.messages import say
from hybridlab.models.adapters import adapt, merged
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import ModelConfig, factors_from_json, load_checkpoint, read_model_config, read_weights
from hybridlab.models.gguf import converted, gguf_in
from hybridlab.models.huggingface import hub_path, is_hub_name, load_hf, require_no_adapter
from hybridlab.plan.heads import parse_heads, without_heads
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import is_whole
from hybridlab.training.store import checkpoints
from hybridlab.training.store.checkpoints import Checkpoint
from hybridlab.training.store.folders import RunFolder, Runs, part_of_run

_HF = "hf-"
_OF_A_FOLDER = re.compile(rf"{_HF}[0-9a-f]{{16}}")
_LONGEST = 1024


@dataclass(frozen=True)
class Artifact:
    """A model that exists, and what it can say of itself; each is read when it is asked for, and once.

    path: the folder of its run, or its own. runs: where it was found. run: None for a folder that is no run. part:
    which weights of a run, `final` or `best`, those of its lowest validation loss; a run that has not finished has its
    newest checkpoint instead of the final ones. gguf: the file that `path` was converted from.
    """

    path: Path
    runs: Runs
    run: RunFolder | None = None
    part: str = "final"
    gguf: Path | None = None

    @property
    def place(self) -> str:
        """The folder or GGUF file where it is found again."""
        # A file of the hub's cache is a link to one without its name.
        return str(self.path.resolve() if self.gguf is None else self.gguf.absolute())

    @property
    def pretrained(self) -> bool:
        """Whether it is a folder in the Hugging Face layout."""
        return self.run is None

    @property
    def folder(self) -> Path:
        """Where its weights are, if its run is not still training."""
        return self.path if self.run is None else self.path / self.part

    @cached_property
    def digest(self) -> str:
        """The run's hash, or `hf-` and a digest of the folder's files, or of the GGUF file."""
        if self.run is not None:
            return self.run.digest
        if self.gguf is not None:
            return _HF + self.path.parent.name[:16]
        digest = hashlib.sha256()
        for file in sorted([self.path / "config.json", *self.path.glob("*.safetensors")]):
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        return _HF + digest.hexdigest()[:16]

    # ---- what it was trained with ----

    @cached_property
    def config(self) -> RunConfig | None:
        """The settings of its run."""
        return None if self.run is None else self.run.config()

    @property
    def training(self) -> Training | None:
        """How it was trained, if that is known."""
        return None if self.config is None else self.config.training

    @cached_property
    def size(self) -> str:
        """The name of its size; a folder that is called as a size of ours is another one."""
        if self.config is not None:
            return self.config.size
        path = self.path.absolute()
        # In the hub's cache, models--OWNER--NAME/snapshots/REVISION, it is called as the model.
        in_cache = path.parent.name == "snapshots"
        name = path.parent.parent.name.split("--")[-1] if in_cache else path.resolve().name
        return f"{name}-hf" if is_preset("size", name) else name

    @property
    def precision(self) -> str | None:
        """The precision of its run."""
        return None if self.run is None else self.run.started()["precision"]

    @cached_property
    def seq_len(self) -> int:
        """The length in tokens that it was trained with, or one to measure it with that pretrained positions reach: at
        most 1,024, a power of two."""
        if self.config is not None:
            return self.config.training.seq_len
        positions = self.shape.max_positions
        if positions is None:
            config = read_object(self.path / "config.json", "model configuration", (), "restore it")
            positions = config.get("max_position_embeddings")
        longest = min(_LONGEST, positions) if isinstance(positions, int) and positions > 1 else _LONGEST
        return 1 << (longest.bit_length() - 1)

    @cached_property
    def best(self) -> int | None:
        """The step of its lowest validation loss, if its weights are those of that step. UserError if its run does not
        keep such weights."""
        if self.run is None or self.part != "best":
            return None
        try:
            step = read_model_config(self.folder).lineage.get("step")
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: this run has no best weights; they are kept with --set evaluation.keep_best=true and "
                "evaluation.every=STEPS"
            ) from None
        if not is_whole(step):
            raise UserError(f"{self.folder / 'config.json'}: lineage names no step of the weights; restore the file")
        return step

    @property
    def read(self) -> RunConfig | None:
        """The settings of its run, if known, with the steps whose batches of text its weights have read."""
        if self.config is None or self.config.finetune is not None:
            return None
        if self.best is None:
            return self.config
        training = self.config.training.model_copy(update={"steps": self.best})
        return self.config.model_copy(update={"training": training})

    # ---- its model ----

    @cached_property
    def saved(self) -> ModelConfig | None:
        """What config.json beside its weights says; None for a model of transformers."""
        if self.run is None:
            kind = read_object(self.path / "config.json", "configuration", ("model_type",))["model_type"]
            return read_model_config(self.path) if kind == "hybridlab" else None
        return read_model_config(self.folder)

    @property
    def structure(self) -> Structure:
        """The structure of its model."""
        return self.model.structure if self.saved is None else self.saved.structure

    @cached_property
    def model(self) -> Transformer:
        """It, in fp32 on the CPU, the same one in every call. UserError if it cannot be used."""
        if self.run is None:
            return load_hf(self.path)
        return load_checkpoint(self.folder) if self.checkpoint is None else _in_training(self.checkpoint, self)

    def weights(self) -> dict[str, Tensor]:
        """Its parameters by name, for a run that has finished."""
        return dict(self.model.named_parameters()) if self.run is None else read_weights(self.folder)

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint of a run that has not finished; None if its weights are in `folder`."""
        if self.run is None or self.part == "best" or self.run.finished():
            return None
        checkpoint = checkpoints.load_newest(self.run.checkpoints, optimizer=False)
        if checkpoint is None:
            if self.run.record() is not None:
                raise UserError(
                    f"{self.run.unfinished_in_words()}, and it has no checkpoint; train it again with other settings"
                )
            raise UserError(f"{self.path}: this run has not finished and has no checkpoint yet; try again later")
        return checkpoint

    @cached_property
    def tokenizer(self) -> Path:
        """The path of its tokenizer.json; the file need not exist for a folder that is no run."""
        if self.run is None or self.run.finished():
            return (self.path if self.run is None else self.run.final) / "tokenizer.json"
        if self.checkpoint is None:
            return self.folder / "tokenizer.json"
        assert self.run is not None and self.config is not None, "only a run has checkpoints"
        corpus = corpus_of(self.config, self.runs.directory / "data")
        if corpus.fingerprint != self.run.started()["data_fingerprint"]:
            raise UserError(f"{self.path}: the data has changed since this run was started; restore it")
        return corpus.folder / "tokenizer.json"

    def own_tokenizer(self) -> Tokenizer:
        """Its tokenizer. UserError if there is none."""
        if not self.tokenizer.is_file():
            advice = instead_of_tokenizer(self.path) or "copy the model's own into this folder"
            raise UserError(f"{self.path}: it has no tokenizer.json; {advice}")
        return load_tokenizer(self.tokenizer)

    # ---- a run that starts from it ----

    @property
    def init(self) -> dict[str, str]:
        """The setting `init` of a run that starts from it."""
        return {"run": self.digest} | ({"load": "best"} if self.best is not None else {})

    @property
    def _changed(self) -> ModelConfig | None:
        """What it ended with, if its run changed its structure while it trained."""
        changes = self.config is not None and self.config.controller is not None and self.config.controller.changes_plan
        return self.saved if changes else None

    @cached_property
    def shape(self) -> Shape:
        """The shape of its model."""
        if self._changed is not None:
            return self._changed.structure.shape
        return self.model.shape if self.config is None else self.config.shape

    @property
    def fading(self) -> bool:
        """Whether its weights are from a time in which heads were fading."""
        own = self.saved if self.run is None else self._changed
        return own is not None and bool(own.factors)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that a child inherits."""
        if self.config is None:
            return self._settings_of_a_folder()
        settings = self.config.model_dump(mode="json", include={"shape", "plan", "data", "training", "evaluation"})
        # Which weights a folder keeps, and which of its steps are measured, is for each run to choose.
        for name in ("keep_best", "at_steps"):
            settings["evaluation"].pop(name)
        if not self.config.data.all_sources:
            settings["data"].pop("source")  # of a run that has read examples
        window = getattr(self.config.map, "window", None)
        if window is not None:
            settings["window"] = window
        if self._changed is not None:
            # Its weights were trained for the structure that it ended with.
            settings["shape"] = self.shape.to_json()
            settings["plan"] = _as_edit(self._changed.structure.plan)
        return settings

    def _settings_of_a_folder(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"shape": self.shape.to_json(), "training": {"seq_len": self.seq_len}}
        plain = Plan.plain(self.shape.layers, self.shape.traits.parallel)
        if self.structure.plan != plain:
            settings["plan"] = _as_edit(self.structure.plan)
        if self.tokenizer.is_file():
            settings["data"] = {"tokenizer": f"file:{self.path.resolve() / 'tokenizer.json'}"}
        return settings

    def check_shape(self, shape: Shape, head: bool = True, advice: str = "") -> None:
        """UserError if the shapes differ, in more than the initialization of weights. head: also in the output head.
        advice: about another number of layers."""
        free = ("init",) if head else ("init", "output")
        for name in fields_of(Shape):
            there, here = getattr(self.shape, name), getattr(shape, name)
            if name not in free and there != here:
                raise UserError(
                    f"{self.path}: weights of another architecture: shape.{name} is {there} there and {here} here"
                    f"{advice if name == 'layers' else ''}"
                )


def _as_edit(plan: Plan) -> list[dict[str, Any]]:
    """A whole plan as the setting `plan`."""
    return [{"op": "visits", "visits": plan.to_json()["visits"]}]


def _in_training(checkpoint: Checkpoint, found: Artifact) -> Transformer:
    """The model of a checkpoint of a run that has not finished."""
    try:
        structure = Structure.from_json(checkpoint.state["structure"])
        factors = factors_from_json(checkpoint.state["factors"])
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{_unfinished(found)}, and its checkpoint is of another version of hybridlab; finish the run"
        ) from None
    if structure.map.learning:
        raise UserError(f"{_unfinished(found)}, and it is still learning its masks; finish it first")
    tensors, lora = checkpoint.model, None if found.config is None else found.config.lora
    if lora is not None:
        model = Transformer.without_weights(structure)
        adapt(model, lora, head=False)
        tensors = merged(model, tensors)
    # A checkpoint holds tensors of hooks too, which the model does not take.
    return Transformer.from_tensors(structure, tensors, factors=factors)


def _unfinished(found: Artifact) -> str:
    assert found.checkpoint is not None and found.training is not None, "its run has not finished"
    assert found.run is not None, "only a run has checkpoints"
    step = f"step {found.checkpoint.state['step']} of {found.training.steps}"
    return f"{found.run.unfinished_in_words()}: {step}"


# ---- finding ----


def pretrained_path(reference: str, runs: Runs) -> Path | None:
    """The folder of a model that is no part of a run, such as one in the Hugging Face layout, or a GGUF file; None for
    a run. A model of the hub is fetched into the hub's cache."""
    hub = reference not in runs.places and is_hub_name(reference)
    path = hub_path(reference) if hub else user_path(runs.places.get(reference, reference))
    file = gguf_in(path)
    if hub or file is not None:
        return file or path
    require_no_adapter(path)
    if not (path / "config.json").is_file() or (path.parent / "run.json").is_file():
        return None
    runs.check_unambiguous(reference, path)
    return path


def branch_of(start: str | None) -> tuple[str | None, int | None]:
    """The run and, for RUN@STEP, the step after which to go on with its optimizer."""
    run, _, step = (start or "").rpartition("@")
    if start is None or not run or not step.isdecimal() or user_path(start).exists():
        return start, None
    return run, int(step)


def find_model(reference: str, runs: Runs, finished: bool = False) -> Artifact:
    """The model of a reference: a run (by name, folder or start of its hash), RUN/best, a Hugging Face folder, or a
    GGUF file. finished: UserError for a run that has not finished."""
    path = pretrained_path(reference, runs)
    if path is not None:
        file = gguf_in(path)
        return Artifact(path, runs) if file is None else Artifact(converted(file), runs, gguf=file)
    run = runs.finished(reference) if finished else runs.find(reference)
    return Artifact(run.path, runs, run, "best" if part_of_run(reference)[1] == "best" else "final")


def find_start(reference: str, runs: Runs) -> Artifact:
    """A model that a run can start from: see `find_model`, of a run that has finished. Its path is added to `runs`."""
    if _OF_A_FOLDER.fullmatch(reference) and reference not in runs.places:
        raise UserError(
            f"{reference}: a run starts from a Hugging Face folder or a GGUF file, and where that is, is not known "
            "here; give the command again that names it with --from"
        )
    found = find_model(reference, runs, finished=True)
    if found.pretrained and reference.startswith(_HF) and reference != found.digest:
        raise UserError(f"{found.place}: it has changed since the run was started from it; restore its files")
    # Read now, so that one that cannot be used is refused before anything else is looked at.
    _ = found.settings
    runs.places[found.digest] = found.place
    return found


def open_model(reference: str, runs: Runs) -> Artifact:
    """A model to use, opened: see `find_model`; says if it is not the final one of a run. UserError if it cannot be
    used, or if its tokenizer has more ids than it."""
    found = find_model(reference, runs)
    if found.run is not None:
        found.run.require_plugins()
    if found.best is not None and found.training is not None:
        say(f"{found.path}: the weights of its lowest validation loss, step {found.best} of {found.training.steps}")
    vocab = found.model.shape.vocab
    if found.checkpoint is not None:
        say(_unfinished(found))
    if found.tokenizer.is_file():
        require_fitting(load_tokenizer(found.tokenizer), vocab, str(found.tokenizer))
    return found


def require_tokenizer(path: Path, tokenizer: Path, corpus: Corpus, data: Data, advice: str | None = None) -> None:
    """UserError if the tokenizer of the model in `path` is not the corpus's; not checked if the file does not exist.

    data: the settings that the corpus was made or opened with. advice: what to do about text that is not in shards; by
    default, the setting that names the model's tokenizer.
    """
    if not tokenizer.is_file():
        return
    if tokenizer_digest(load_tokenizer(tokenizer)) == corpus.meta["tokenizer"]["sha256"]:
        return
    name = f"file:{tokenizer}"
    if data.prepared:
        advice = f"make them again: hybridlab data prepare TEXT --tokenizer {name} --out FOLDER"
    raise UserError(
        f"{path}: it was trained with another tokenizer than the data of {corpus.folder} has; "
        f"{advice or f'add --set data.tokenizer={name}'}"
    )


def dropping(model: Transformer, names: str) -> Transformer:
    """The model, with shared weights, without the query heads of these names, as L1-H3,L2-H5. UserError if it has no
    such heads."""
    try:
        heads = parse_heads(names, model.shape.layers, model.shape.heads)
        return model.with_plan(without_heads(model.plan, heads, model.shape.heads))
    except UserError as error:
        raise UserError(f"--drop-heads {names}: {error}") from None
