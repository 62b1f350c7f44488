"""Measuring a finished run again, on its own data or on other text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridlab.config.loading import Layer, check, merge, parse_setting
from hybridlab.config.resolve import data_layer
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import corpus_for
from hybridlab.errors import UserError
from hybridlab.evaluation.measure import measure
from hybridlab.models.export import load_checkpoint
from hybridlab.models.kernels import require_kernel
from hybridlab.reproduction.ancestors import find_ancestor
from hybridlab.training.folders import Runs
from hybridlab.training.machine import pick_device

_CHANGEABLE = ("evaluation", "data", "runtime")


def evaluate_run(
    reference: str, runs: Runs, data: str | None, settings: list[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """The results of a run's final model; other text is tokenised with the run's own tokenizer and used whole."""
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
    return measure(model, config, corpus, folder.info()["precision"], whole=config.data.source != own)
