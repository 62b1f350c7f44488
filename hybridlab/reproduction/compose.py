"""The configuration of a single run asked for on the command line."""

from __future__ import annotations

from pathlib import Path

from hybridlab.config.loading import Layer, load_file
from hybridlab.config.resolve import resolve
from hybridlab.config.schema import FullMap, LearnedMap, RunConfig
from hybridlab.training.folders import Runs

_OF_THE_PARENT = ("shape", "data", "training", "evaluation")


def compose(
    arch: str,
    size: str | None,
    data: str | None,
    start: str | None,
    runs: Runs,
    config: Path | None,
    options: Layer,
    settings: list[str],
) -> RunConfig:
    """Presets, then the parent run's settings (where no size is given), the file, the options, --set."""
    layers: list[Layer] = []
    if start is not None:
        parent = runs.finished(start)
        known = parent.config()
        runs.places[parent.info()["hash"]] = str(parent.path)
        if size is None:
            size = known.size
            layers.append(_inherited(known))
        layers.append(Layer({"init": {"run": parent.info()["hash"]}}, {(): f"--from {start}"}))
    if config is not None:
        layers.append(load_file(config))
    return resolve(arch, size or "tiny", data, [*layers, options], settings)


def _inherited(parent: RunConfig) -> Layer:
    values = parent.model_dump(mode="json", include=set(_OF_THE_PARENT))
    if not isinstance(parent.map, FullMap | LearnedMap):
        values["window"] = parent.map.window
    return Layer(values, {(): "the run that --from names"})
