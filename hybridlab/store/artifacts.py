"""The starting point of a run: another run, or a folder in the Hugging Face layout, each identified by a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hybridlab.config.loading import is_preset
from hybridlab.config.schema import Data, RunConfig
from hybridlab.config.training import Training
from hybridlab.data.preparing import Job, corpus_of
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import load_tokenizer, require_fitting, tokenizer_digest
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import SavedModel, factors_from_json, load_checkpoint, read_model_config, read_weights
from hybridlab.models.hf_hub import hub_folder, is_hub_name
from hybridlab.models.huggingface import load_hf
from hybridlab.plan.heads import parse_heads, without_heads
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import is_whole
from hybridlab.store import checkpoints
from hybridlab.store.folders import RunFolder, Runs, part_of_run

_HF = "hf-"
_LONGEST = 1024


@dataclass(frozen=True)
class Ancestor:
    """digest: a run's hash, or `hf-` and a digest of the folder's files. settings: those that a child inherits.
    training: its training settings, if known. fading: its weights are from a time in which heads were fading. best: the
    step of its lowest validation loss, for the weights of that step instead of the final ones. arch: of a run."""

    digest: str
    path: Path
    settings: dict[str, Any]
    shape: Shape
    size: str | None = None
    training: Training | None = None
    fading: bool = False
    best: int | None = None
    arch: str | None = None

    @property
    def pretrained(self) -> bool:
        """Whether it is a folder in the Hugging Face layout."""
        return self.digest.startswith(_HF)

    @property
    def init(self) -> dict[str, str]:
        """The setting `init` of a run that starts from it."""
        return {"run": self.digest} | ({"load": "best"} if self.best is not None else {})

    @property
    def skip_steps(self) -> int | None:
        """The number of steps whose data it skipped at its start; None if unknown."""
        return self.training.skip_steps if self.training else None

    @property
    def read(self) -> Training | None:
        """Its training settings, if known, with the steps whose batches its weights have read."""
        if self.training is None or self.best is None:
            return self.training
        return self.training.model_copy(update={"steps": self.best})

    def check_shape(self, shape: Shape, head: bool = True, advice: str = "") -> None:
        """UserError if the shapes differ, in more than the initialization of weights. head: also in the output head.
        advice: about another number of layers."""
        free = ("init",) if head else ("init", "output")
        for name in vars(shape):
            there, here = getattr(self.shape, name), getattr(shape, name)
            if name not in free and there != here:
                raise UserError(
                    f"{self.path}: weights of another architecture: shape.{name} is {there} there and {here} here"
                    f"{advice if name == 'layers' else ''}"
                )

    @property
    def tokenizer(self) -> Path:
        """The path of its tokenizer.json; the file need not exist."""
        return self.path / "tokenizer.json" if self.pretrained else self.path / "final" / "tokenizer.json"

    def weights(self) -> dict[str, Tensor]:
        """Its parameters by name."""
        if self.pretrained:
            return dict(load_hf(self.path).named_parameters())
        return read_weights(self.path / ("final" if self.best is None else "best"))

    def structure(self) -> Structure | None:
        """The structure of its model; None for one of transformers' own classes, which is a plain stack."""
        if self.pretrained:
            own = _own_config(self.path)
            return None if own is None else own.structure
        return read_model_config(self.path / ("final" if self.best is None else "best")).structure

    def check_tokenizer(self, corpus: Corpus, data: Data) -> None:
        """UserError if it was trained with another tokenizer than the corpus; see `require_tokenizer`."""
        require_tokenizer(self.path, self.tokenizer, corpus, data)


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


def model_folder(reference: str, runs: Runs) -> Path | None:
    """The folder of a model that is no part of a run, such as one in the Hugging Face layout; None for a run. A model
    of the hub is fetched into the hub's cache."""
    if reference not in runs.places and is_hub_name(reference):
        return hub_folder(reference)
    path = Path(runs.places.get(reference, reference)).expanduser()
    if not (path / "config.json").is_file() or (path.parent / "run.json").is_file():
        return None
    runs.check_unambiguous(reference, path)
    return path


def find_ancestor(reference: str, runs: Runs) -> Ancestor:
    """A finished run (by name, folder or start of its hash), with /best for its best weights; or a Hugging Face folder.
    Its path is added to `runs`."""
    path = model_folder(reference, runs)
    if path is not None:
        ancestor = _from_hf(path)
        if reference.startswith(_HF) and reference != ancestor.digest:
            raise UserError(f"{path}: this folder has changed since the run was started from it; restore its files")
    else:
        ancestor = _from_run(runs.finished(reference), best=part_of_run(reference)[1] == "best")
    runs.places[ancestor.digest] = str(ancestor.path.resolve())
    return ancestor


def _from_run(folder: RunFolder, best: bool) -> Ancestor:
    config, step = folder.config(), kept_best(folder).lineage["step"] if best else None
    settings = config.model_dump(mode="json", include={"shape", "plan", "data", "training", "evaluation"})
    # Which weights a folder keeps, and which of its steps are measured, is for each run to choose.
    for name in ("keep_best", "at_steps"):
        settings["evaluation"].pop(name)
    window = getattr(config.map, "window", None)
    if window is not None:
        settings["window"] = window
    shape, fading = config.shape, False
    if config.controller is not None and config.controller.changes_plan:
        # Its weights were trained for the structure that it ended with.
        final = read_model_config(folder.best if best else folder.final)
        shape, fading = final.structure.shape, bool(final.factors)
        settings["shape"] = shape.to_json()
        settings["plan"] = [{"op": "visits", "visits": final.structure.plan.to_json()["visits"]}]
    return Ancestor(
        folder.digest, folder.path, settings, shape, config.size, config.training, fading, step, config.arch
    )


def kept_best(folder: RunFolder) -> SavedModel:
    """What config.json of a run's best weights says, their step in its lineage; UserError if the run keeps none."""
    try:
        saved = read_model_config(folder.best)
    except FileNotFoundError:
        raise UserError(
            f"{folder.path}: this run has no best weights; they are kept with --set evaluation.keep_best=true and "
            "evaluation.every=STEPS"
        ) from None
    if not is_whole(saved.lineage.get("step")):
        raise UserError(f"{folder.best / 'config.json'}: lineage names no step of the weights; restore the file")
    return saved


def _own_config(path: Path) -> SavedModel | None:
    """What config.json says of a model folder of hybridlab; None for a model of transformers."""
    kind = read_object(path / "config.json", "configuration", ("model_type",))["model_type"]
    return read_model_config(path) if kind == "hybridlab" else None


def _from_hf(path: Path) -> Ancestor:
    shape, own = load_hf(path).shape, _own_config(path)
    digest = hashlib.sha256()
    for file in sorted([path / "config.json", *path.glob("*.safetensors")]):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    training = {"seq_len": usual_length(path, shape)}
    settings: dict[str, Any] = {"shape": shape.to_json(), "training": training}
    plain = Plan.plain(shape.layers, shape.traits.parallel)
    if own is not None and own.structure.plan != plain:
        # Its weights were trained for this plan.
        settings["plan"] = [{"op": "visits", "visits": own.structure.plan.to_json()["visits"]}]
    if (path / "tokenizer.json").is_file():
        settings["data"] = {"tokenizer": f"file:{path.resolve() / 'tokenizer.json'}"}
    name = _name_of(path)
    size = f"{name}-hf" if is_preset("size", name) else name
    fading = own is not None and bool(own.factors)
    return Ancestor(_HF + digest.hexdigest()[:16], path, settings, shape, size, fading=fading)


def _name_of(path: Path) -> str:
    """The name of a model's folder; in the hub's cache (models--OWNER--NAME/snapshots/REVISION) that of the model."""
    path = path.absolute()
    return path.parent.parent.name.split("--")[-1] if path.parent.name == "snapshots" else path.resolve().name


def usual_length(path: Path, shape: Shape) -> int:
    """A length of sequences that pretrained positions reach: at most 1,024 tokens, a power of two."""
    positions = shape.max_positions or read_object(path / "config.json", "model configuration", (), "restore it").get(
        "max_position_embeddings"
    )
    longest = min(_LONGEST, positions) if isinstance(positions, int) and positions > 1 else _LONGEST
    return 1 << (longest.bit_length() - 1)


# ---- opening: a run, its best weights, a run that is still training, or a Hugging Face folder ----
# open_model("runs/first", runs, say)     # also the start of a hash, runs/first/best, path/to/llama


@dataclass(frozen=True)
class OpenedModel:
    """model: in fp32 on the CPU. path: its run folder, or its own. tokenizer: its tokenizer.json, which a folder that
    is no run may lack. config, precision: of the run; None for a folder that is no run. seq_len: the length of its
    training, or one to measure it with. UserError for a tokenizer that has more ids than the
    model."""

    model: Transformer
    path: Path
    tokenizer: Path
    seq_len: int
    config: RunConfig | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.tokenizer.is_file():
            require_fitting(load_tokenizer(self.tokenizer), self.model.shape.vocab, str(self.tokenizer))


def open_model(reference: str, runs: Runs, say: Callable[[str], None]) -> OpenedModel:
    """Open the model of a reference; says if it is not the final model of a run. UserError if it cannot be used."""
    path = model_folder(reference, runs)
    if path is not None:
        return _outside_a_run(path)
    folder = runs.find(reference)
    folder.require_plugins()
    config, precision = folder.config(), folder.started()["precision"]
    if part_of_run(reference)[1] == "best":
        step = kept_best(folder).lineage["step"]
        say(f"{folder.path}: the weights of its lowest validation loss, step {step} of {config.training.steps}")
        model, tokenizer = load_checkpoint(folder.best), folder.best / "tokenizer.json"
    elif folder.finished():
        model, tokenizer = load_checkpoint(folder.final), folder.final / "tokenizer.json"
    else:
        model = _in_training(folder, config, say)
        job = Job(lambda line: say(f"data: {line}"))
        corpus = corpus_of(config, runs.directory / "data", job)
        if corpus.fingerprint != folder.started()["data_fingerprint"]:
            raise UserError(f"{folder.path}: the data has changed since this run was started; restore it")
        tokenizer = corpus.folder / "tokenizer.json"
    return OpenedModel(model, folder.path, tokenizer, config.training.seq_len, config, precision)


def dropping(model: Transformer, names: str) -> Transformer:
    """The model, with shared weights, without the query heads of these names, as L1-H3,L2-H5. UserError if it has no
    such heads."""
    try:
        heads = parse_heads(names, model.shape.layers, model.shape.heads)
        return model.with_plan(without_heads(model.plan, heads, model.shape.heads))
    except UserError as error:
        raise UserError(f"--drop-heads {names}: {error}") from None


def _in_training(folder: RunFolder, config: RunConfig, say: Callable[[str], None]) -> Transformer:
    """The model of the newest checkpoint of a run that has not finished."""
    checkpoint = checkpoints.load_newest(folder.checkpoints, optimizer=False)
    if checkpoint is None:
        raise UserError(f"{folder.path}: this run has not finished and has no checkpoint yet; try again later")
    state, steps = checkpoint.state, config.training.steps
    where = f"{folder.path}: this run has not finished: step {state['step']} of {steps}"
    try:
        structure = Structure.from_json(state["structure"])
        factors = factors_from_json(state["factors"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}, and its checkpoint is of another version of hybridlab; finish the run") from None
    if structure.map.learning:
        raise UserError(f"{where}, and it is still learning its masks; finish it first")
    say(where)
    # A checkpoint holds tensors of hooks too, which the model does not take.
    return Transformer.from_tensors(structure, checkpoint.model, factors=factors)


def _outside_a_run(path: Path) -> OpenedModel:
    """A model folder in the Hugging Face layout, or a copy of a run's `final`."""
    own = read_object(path / "config.json", "configuration", ("model_type",))
    model = load_checkpoint(path) if own["model_type"] == "hybridlab" else load_hf(path)
    return OpenedModel(model, path, path / "tokenizer.json", usual_length(path, model.shape))
