"""The configuration of a single run asked for on the command line."""

from __future__ import annotations

from pathlib import Path

from hybridlab.config.loading import Layer, load_file, load_preset, merge
from hybridlab.config.resolve import data_layer, resolve
from hybridlab.config.schema import Data, RunConfig
from hybridlab.reproduction.ancestors import Ancestor, find_ancestor
from hybridlab.reproduction.experiment import after
from hybridlab.training.folders import Runs


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
    """Presets, then the settings of what it starts from (where no size is given), the file, the options, --set."""
    layers: list[Layer] = []
    parent = None
    if start is not None:
        parent = find_ancestor(start, runs)
        if size is None:
            size = parent.size
            layers.append(Layer(parent.settings, {(): "what --from names"}))
        layers.append(Layer({"init": {"run": parent.digest}}, {(): f"--from {start}"}))
    if data is not None:
        given = data_layer(data)
        if parent is not None and _another_source(given, parent):
            layers.append(Layer({"data": {"tokenizer": f"file:{parent.tokenizer.resolve()}"}}))
        layers.append(given)
    steps = options.values.get("training", {}).get("steps")
    if steps is not None:
        layers.append(_shorter_warmup(size or "tiny", layers, steps))
    if config is not None:
        layers.append(load_file(config))
    resolved = resolve(arch, size or "tiny", layers=[*layers, options], settings=settings)
    if parent is None:
        return resolved
    parent.check_shape(resolved.shape)
    untouched = resolved.training.skip_steps in (None, parent.skip_steps)
    return after(parent.training, resolved) if parent.training and untouched else resolved


def _shorter_warmup(size: str, layers: list[Layer], steps: int) -> Layer:
    """A preset's or parent's warm-up that is longer than half of --steps becomes a tenth of them."""
    known = merge(load_preset("size", size), *layers).values["training"].get("schedule", {}).get("warmup_steps", 0)
    return Layer({"training": {"schedule": {"warmup_steps": steps // 10}}}) if 2 * known > steps else Layer()


def _another_source(given: Layer, parent: Ancestor) -> bool:
    """Whether the text is not the parent's: then the parent's tokenizer is kept, and none is trained anew."""
    source = given.values["data"].get("source", "")
    known = parent.settings.get("data", {}).get("source")
    return parent.tokenizer.is_file() and not source.startswith("shards:") and Data(source=source).source != known
