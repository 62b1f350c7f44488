"""Measuring a finished run again, and looking into its model, on its own data or on other text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridlab.analysis.probes import run_probe
from hybridlab.config.loading import Layer, check, merge, parse_setting
from hybridlab.config.resolve import data_layer
from hybridlab.config.schema import Probe, RunConfig
from hybridlab.data.shards import Corpus, corpus_for
from hybridlab.errors import UserError
from hybridlab.evaluation.measure import measure
from hybridlab.models.decoder import Decoder
from hybridlab.models.export import load_checkpoint
from hybridlab.models.kernels import require_kernel
from hybridlab.reproduction.ancestors import find_ancestor
from hybridlab.training.folders import Runs
from hybridlab.training.machine import pick_device

_CHANGEABLE = ("evaluation", "data", "runtime")


@dataclass(frozen=True)
class Opened:
    """A finished run's model with the text that it is to be looked at on. elsewhere: that text is not its own."""

    model: Decoder
    config: RunConfig
    corpus: Corpus
    precision: str
    elsewhere: bool


def open_run(reference: str, runs: Runs, data: str | None, settings: list[str], say: Callable[[str], None]) -> Opened:
    """Load a run's final model; other text is tokenised with the run's own tokenizer."""
    folder = runs.finished(reference)
    own = folder.config().data.source
    layers = [Layer(folder.config().model_dump(mode="json"))]
    if data is not None:
        layers.append(data_layer(data))
        if not data.startswith("shards:"):
            layers.append(Layer({"data": {"tokenizer": f"file:{(folder.final / 'tokenizer.json').resolve()}"}}))
    for text in settings:
        if text.partition("=")[0].partition(".")[0] not in _CHANGEABLE:
            raise UserError(f"--set {text}: an evaluation can change {', '.join(_CHANGEABLE)} only; train another run")
        layers.append(parse_setting(text))
    config = check(RunConfig, merge(*layers))
    corpus = corpus_for(config.data, runs.directory / "data", lambda line: say(f"data: {line}"))
    find_ancestor(str(folder.path), runs).check_tokenizer(corpus)
    device = pick_device(config.runtime.device)
    require_kernel(config.runtime.kernel, device, training=False)
    model = load_checkpoint(folder.path, config.runtime.kernel).to(device)
    return Opened(model, config, corpus, folder.info()["precision"], config.data.source != own)


def evaluate_run(
    reference: str, runs: Runs, data: str | None, settings: list[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """The results of a run's final model; other text is used whole."""
    found = open_run(reference, runs, data, settings, say)
    return measure(found.model, found.config, found.corpus, found.precision, whole=found.elsewhere)


def analyze_run(
    reference: str, runs: Runs, probe: Probe, data: str | None, options: dict[str, int], say: Callable[[str], None]
) -> dict[str, Any]:
    """What a probe finds in a run's final model, on the validation part of its own or other text."""
    found = open_run(reference, runs, data, [], say)
    return run_probe(probe, found.model, found.corpus, found.config.training.seq_len, **options)
