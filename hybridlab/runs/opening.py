"""One way to open a trained model: a run, its best weights, a run that is still training, or a Hugging Face folder.

open_model("runs/first", runs, say)     # also the start of a hash, runs/first/best, path/to/llama
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hybridlab.config.schema import RunConfig
from hybridlab.data.preparing import Job, corpus_of
from hybridlab.data.tokenizers import load_tokenizer, require_fitting
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import factors_from_json, load_checkpoint
from hybridlab.models.huggingface import load_hf
from hybridlab.plan.heads import parse_heads, without_heads
from hybridlab.plan.structure import Structure
from hybridlab.runs.ancestors import kept_best, model_folder, usual_length
from hybridlab.training import checkpoints
from hybridlab.training.folders import RunFolder, Runs, part_of_run


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
