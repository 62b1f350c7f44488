"""Evaluation and analysis of a trained model, on its own data or on other text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.prompts import TokenizerAlone
from hybridlab.attention.kernels import require_kernel
from hybridlab.config.loading import Layer, check, given_of, is_preset, load_preset, merge, options_layer, parse_setting
from hybridlab.config.resolve import data_layer, resolve
from hybridlab.config.schema import RunConfig, Runtime
from hybridlab.config.shared_settings import asked_for, in_counts, keep_to_shards, keep_to_task
from hybridlab.data.finetune.corpus import TRAIN, Encoded, TaskCorpus
from hybridlab.data.preparing import corpus_for, corpus_of
from hybridlab.data.shards import Corpus
from hybridlab.data.sources import NoSuchField
from hybridlab.errors import UserError
from hybridlab.evaluation.measure import measure
from hybridlab.evaluation.results import Results
from hybridlab.files import user_path
from hybridlab.messages import say
from hybridlab.models.decoder import Transformer
from hybridlab.registry import FINETUNE_TASKS, PROBES, SOURCES
from hybridlab.runs.compose import FINETUNE
from hybridlab.training.machine import pick_device, pick_precision
from hybridlab.training.store.artifacts import Artifact, dropping, open_model, require_tokenizer
from hybridlab.training.store.folders import Runs

_CHANGEABLE = ("evaluation", "data", "runtime")
_UNREAD = {
    "evaluation": ("every", "every_windows", "keep_best", "at_steps", "benchmarks"),
    "data": ("task_loss_weight",),
    "runtime": tuple(name for name in Runtime.model_fields if name not in ("device", "kernel")),
}
"""Settings of these parts that only a run reads which trains."""
_LENGTH = "training.seq_len"


@dataclass(frozen=True)
class ModelOnText:
    """A trained model and the text to measure it on. elsewhere: the model was trained on other text."""

    model: Transformer
    config: RunConfig
    corpus: Corpus
    precision: str
    elsewhere: bool


def open_run(reference: str, runs: Runs, data: str | list[str] | None, settings: list[str]) -> ModelOnText:
    """Load a model (see `open_model`); other text is tokenized with the model's own tokenizer."""
    opened = open_model(reference, runs)
    trained = _trained_with(opened, runs, data)
    layers = _given(opened, trained, data, settings)
    config = _settings(opened, trained, layers)
    corpus = corpus_of(config, runs.directory / "data")
    if isinstance(corpus, TaskCorpus) and data is not None:
        assert trained is not None, "a model of a task is that of a run"
        corpus = replace(corpus, encoded={**_own_training(trained, runs), **corpus.measured})
    written = asked_for(layers, "data", "tokenizer")
    again = " ".join(f"--data {text}" for text in config.data.written)
    advice = f"leave out {written}" if written else f"add {again}, which is then read with its own"
    require_tokenizer(opened.path, opened.tokenizer, corpus, config.data, advice)
    device = pick_device(config.runtime.device)
    kinds, cap = opened.model.attention_map.each_kind(), opened.model.shape.score_cap
    require_kernel(config.runtime.kernel, device, training=False, kinds=kinds, cap=cap)
    opened.model.kernel = config.runtime.kernel
    precision = opened.precision
    if precision is None:
        precision = pick_precision("auto", device)
        say(f"{opened.path}: measured on sequences of {config.training.seq_len} tokens in {precision}")
    elsewhere = trained is None or config.data.written != trained.data.written
    return ModelOnText(opened.model.to(device), config, corpus, precision, elsewhere)


def _trained_with(opened: Artifact, runs: Runs, data: str | list[str] | None) -> RunConfig | None:
    """The settings of the model's run. A model of chats that is measured on text has those of the run that it was
    fine-tuned from, if that is there, so that both are measured on the same windows."""
    config, run = opened.config, opened.run
    if config is None or config.finetune is None or data is None or not _is_text(data, config.finetune.task):
        return config
    while config.finetune is not None and config.init is not None:
        assert run is not None, "a folder that is no run has no settings"
        try:
            run = Runs(runs.directory, {**run.started().get("places", {}), **runs.places}).find(config.init.run)
        except UserError:
            # The folder has been removed, or is in the Hugging Face layout.
            say(f"{opened.path}: fine-tuned from {config.init.run}, which is no run here: measured on all of the text")
            break
        config = run.config()
    return config.model_copy(update={"finetune": None})


def _own_training(trained: RunConfig, runs: Runs) -> dict[str, Encoded]:
    """The part that a run of a task was trained on, which a constant guess is made of; none if its files are gone."""
    try:
        corpus = corpus_of(trained, runs.directory / "data")
    except UserError as error:
        say(f"no constant guess, since the training part of the run cannot be read: {error}")
        return {}
    assert isinstance(corpus, TaskCorpus)
    return {TRAIN: corpus.encoded[TRAIN]}


def _given(
    opened: Artifact, trained: RunConfig | None, data: str | list[str] | None, settings: list[str]
) -> list[Layer]:
    """`--data` and the `--set` texts as layers; UserError for settings that an evaluation cannot change."""
    if trained is None and data is None:
        raise UserError(f"{opened.path}: name the text to measure this model on, with --data text:PATH or embedded")
    if data is None:
        layers = []
    elif trained is not None and trained.finetune is not None:
        layers = [_task_file(data, trained.finetune.task)]
    else:
        layers = [data_layer(data)]
    also = (_LENGTH,) if trained is None else ()
    return layers + [parse_setting(text) for text in _checked(settings, also)]


def _is_text(data: str | list[str], task: str) -> bool:
    """Whether `--data` of a fine-tuned model names text, which one of chats is measured on too. task: its own."""
    text = data if isinstance(data, str) else data[0]
    names_text = ":" in text or text in SOURCES or is_preset("data", text)
    return FINETUNE_TASKS.get(task).kind == "chat" and names_text and not user_path(text).exists()


def _task_file(data: str | list[str], task: str) -> Layer:
    """`--data` of a fine-tuned model: another file of its task, of which all examples are measured."""
    texts = [data] if isinstance(data, str) else data
    if len(texts) == 1 and ":" not in texts[0] and not user_path(texts[0]).exists():
        raise UserError(
            f"--data {texts[0]}: there is no such file or folder; this model is fine-tuned on {task}, so give a file "
            "of that task, or leave it out"
        )
    if len(texts) != 1 or not user_path(texts[0]).exists():
        raise UserError(
            f"--data {' '.join(texts)}: this model is fine-tuned on {task}; give one file of that task, or leave it out"
        )
    path = str(user_path(texts[0]))
    section = {"data": path, "validation": None if Path(path).is_dir() else path, "validation_fraction": None}
    return Layer({"finetune": section}, {(): f"--data {path}"})


def _settings(opened: Artifact, trained: RunConfig | None, layers: list[Layer]) -> RunConfig:
    """The settings of the model's run, or usual ones for a model without a run, with those that are given."""
    below = [Layer(trained.model_dump(mode="json"))] if trained else _without_a_run(opened)
    requested = [replace(layer, asked=True) for layer in layers]
    other_text = any(asked_for(requested, "data", name) is not None for name in ("source", "sources"))
    if opened.tokenizer.is_file() and other_text:
        below.append(Layer({"data": {"tokenizer": f"file:{opened.tokenizer.resolve()}"}}))
    merged = keep_to_task(keep_to_shards(merge(*below, *layers), layers), requested)
    if trained is None:
        merged.values["training"]["tokens_per_step"] = merged.values["training"]["seq_len"]
        if "tokenizer" not in merged.values["data"]:
            opened.own_tokenizer()
    return check(RunConfig, in_counts(merged))


def _without_a_run(opened: Artifact) -> list[Layer]:
    """Settings to measure a model that is no run of hybridlab: on as much text as a run that starts from it."""
    shape = opened.model.shape.to_json()
    training = {"steps": 1, "tokens_per_step": opened.seq_len, "seq_len": opened.seq_len}
    values = {"arch": "imported", "size": opened.path.name, "shape": shape, "data": {}, "training": training}
    return [load_preset("training", FINETUNE).only("evaluation"), Layer(values)]


def _checked(settings: list[str], also: tuple[str, ...] = ()) -> list[str]:
    """The settings; UserError for one that an evaluation cannot change. also: further ones that it can."""
    for text in settings:
        name = text.partition("=")[0].strip()
        if name.partition(".")[0] not in _CHANGEABLE and name not in also:
            raise UserError(f"--set {text}: an evaluation can only change {', '.join(_CHANGEABLE)}; train another run")
        if unread := given_of(parse_setting(text), _UNREAD):
            benchmarks = unread == "evaluation.benchmarks"
            instead = "ask for them with --tasks or --suite" if benchmarks else "leave it out"
            raise UserError(f"--set {text}: {unread} has no effect on an evaluation; {instead}")
    return settings


def evaluate_run(
    reference: str, runs: Runs, data: str | list[str] | None, settings: list[str], drop_heads: str | None = None
) -> Results:
    """The results of a model, as in a record; all of another text is used, not only its validation part. drop_heads:
    names of query heads that are left out of the model, as L1-H3,L2-H5."""
    opened = open_run(reference, runs, data, settings)
    model = opened.model if drop_heads is None else dropping(opened.model, drop_heads)
    return measure(model, opened.config, opened.corpus, opened.precision, opened.elsewhere)


def evaluate_model(
    model: Transformer, runs: Runs, data: str, tokenizer: str | None, seq_len: int, settings: list[str]
) -> Results:
    """The results of a model that belongs to no run, on a whole text, in fp32 on the device where it is.

    tokenizer: as in `data.tokenizer`; None for prepared shards, which have theirs.
    """
    values: dict[str, Any] = {"shape": model.shape.to_json()}
    values["training"] = {"seq_len": seq_len, "tokens_per_step": seq_len}
    tokenizer_layer = options_layer({"data.tokenizer": ("tokenizer", tokenizer)})
    layers = [Layer(values, {(): "evaluate"}), data_layer(data), tokenizer_layer]
    config = resolve("vanilla", "tiny", layers=layers, settings=_checked(settings))
    corpus = corpus_for(config.data, runs.directory / "data")
    return measure(model, config, corpus, "fp32", whole=True)


def analyze_run(
    reference: str, runs: Runs, probe: str, data: str | list[str] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The result of a probe on a model: on the validation part of its own or other text, or on prompts of tasks, which
    need no text."""
    options = PROBES.get(probe).checked(options)
    if options.get("tasks"):
        if data is not None:
            raise UserError("--data has no effect on the prompts of --tasks; leave one of the two out")
        trained = open_model(reference, runs)
        prompts, settings = TokenizerAlone(trained.own_tokenizer()), trained.config
        model = trained.model.to(pick_device(settings.runtime.device if settings else "auto"))
        return run_probe(probe, model, prompts, trained.seq_len, settings, **options)
    try:
        opened = open_run(reference, runs, data, [])
    except NoSuchField as error:
        tokenizer = open_model(reference, runs).tokenizer
        raise UserError(
            f"{error.problem}; prepare the text with `hybridlab data prepare SOURCE --field NAME --tokenizer "
            f"file:{tokenizer} --out FOLDER`, then use --data shards:FOLDER"
        ) from None
    config = opened.config
    return run_probe(probe, opened.model, opened.corpus, config.training.seq_len, config, **options)
