"""Evaluation and analysis of a finished run's model, on its own data or on other text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hybridlab.analysis.probe import run_probe
from hybridlab.config.loading import Layer, check, merge, parse_setting
from hybridlab.config.resolve import data_layer, resolve
from hybridlab.config.schema import RunConfig
from hybridlab.config.shared import asked_for, keep_to_shards
from hybridlab.data.preparing import Job, corpus_for
from hybridlab.data.readers import NoSuchField
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.evaluation.measure import measure
from hybridlab.evaluation.results import Results
from hybridlab.models.decoder import Decoder
from hybridlab.models.export import load_checkpoint
from hybridlab.models.kernels import require_kernel
from hybridlab.registry import PROBES
from hybridlab.runs.ancestors import find_ancestor
from hybridlab.training.folders import Runs
from hybridlab.training.machine import pick_device

_CHANGEABLE = ("evaluation", "data", "runtime")


@dataclass(frozen=True)
class Opened:
    """A finished run's model and the text to measure it on. elsewhere: the model was trained on other text."""

    model: Decoder
    config: RunConfig
    corpus: Corpus
    precision: str
    elsewhere: bool


def open_run(
    reference: str, runs: Runs, data: str | list[str] | None, settings: list[str], say: Callable[[str], None]
) -> Opened:
    """Load a run's final model; other text is tokenized with the run's own tokenizer."""
    folder = runs.finished(reference)
    folder.require_plugins()
    trained = folder.config()
    given = [] if data is None else [data_layer(data)]
    given += [parse_setting(text) for text in _checked(settings)]
    below = [Layer(trained.model_dump(mode="json"))]
    asked = [replace(layer, asked=True) for layer in given]
    if any(asked_for(asked, "data", name) is not None for name in ("source", "sources")):
        below.append(Layer({"data": {"tokenizer": f"file:{(folder.final / 'tokenizer.json').resolve()}"}}))
    config = check(RunConfig, keep_to_shards(merge(*below, *given), given))
    corpus = corpus_for(config.data, runs.directory / "data", Job(lambda line: say(f"data: {line}")))
    written = asked_for(given, "data", "tokenizer")
    again = " ".join(f"--data {text}" for text in config.data.written)
    advice = f"leave out {written}" if written else f"add {again}, which is then read with its own"
    find_ancestor(str(folder.path.resolve()), runs).check_tokenizer(corpus, config.data, advice)
    device = pick_device(config.runtime.device)
    require_kernel(config.runtime.kernel, device, training=False)
    model = load_checkpoint(folder.path, config.runtime.kernel).to(device)
    elsewhere = (config.data.source, config.data.sources) != (trained.data.source, trained.data.sources)
    return Opened(model, config, corpus, folder.started()["precision"], elsewhere)


def _checked(settings: list[str]) -> list[str]:
    """The settings; UserError for one that an evaluation cannot change."""
    for text in settings:
        if text.partition("=")[0].strip().partition(".")[0] not in _CHANGEABLE:
            raise UserError(f"--set {text}: an evaluation can only change {', '.join(_CHANGEABLE)}; train another run")
    return settings


def evaluate_run(
    reference: str, runs: Runs, data: str | list[str] | None, settings: list[str], say: Callable[[str], None]
) -> Results:
    """The results of a run's final model, as in a record; all of another text is used, not only its validation part."""
    opened = open_run(reference, runs, data, settings, say)
    return measure(opened.model, opened.config, opened.corpus, opened.precision, whole=opened.elsewhere)


def evaluate_model(
    model: Decoder,
    runs: Runs,
    data: str,
    tokenizer: str | None,
    seq_len: int,
    settings: list[str],
    say: Callable[[str], None],
) -> Results:
    """The results of a model that belongs to no run, on a whole text, in fp32 on the device where it is.

    tokenizer: as in `data.tokenizer`; None for prepared shards, which have theirs.
    """
    values: dict[str, Any] = {"shape": model.shape.model_dump(mode="json")}
    values["training"] = {"seq_len": seq_len, "tokens_per_step": seq_len}
    layers = [Layer(values, {(): "evaluate"}), data_layer(data)]
    if tokenizer is not None:
        layers.append(Layer({"data": {"tokenizer": tokenizer}}, {(): "tokenizer"}))
    config = resolve("vanilla", "tiny", layers=layers, settings=_checked(settings))
    corpus = corpus_for(config.data, runs.directory / "data", Job(lambda line: say(f"data: {line}")))
    return measure(model, config, corpus, "fp32", whole=True)


def analyze_run(
    reference: str,
    runs: Runs,
    probe: str,
    data: str | list[str] | None,
    options: dict[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The result of a probe on a run's final model, on the validation part of its own or other text."""
    options = PROBES.get(probe).checked(options)
    try:
        opened = open_run(reference, runs, data, [], say)
    except NoSuchField as error:
        tokenizer = runs.finished(reference).final / "tokenizer.json"
        raise UserError(
            f"{error.problem}; prepare the text with `hybridlab data prepare SOURCE --field NAME --tokenizer "
            f"file:{tokenizer} --out FOLDER`, then use --data shards:FOLDER"
        ) from None
    return run_probe(probe, opened.model, opened.corpus, opened.config.training.seq_len, **options)
