"""The oracle of an allocation: how much the loss rises when one KV head, or one whole layer, alone becomes a window.

hybridlab analyze RUN --probe knockout

The map of kind `knockout` gives full attention to the units where it rises most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hybridlab.analysis.material import NO_WINDOW, Material, material, text_losses, window_of
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.attention.kinds import Window
from hybridlab.config.maps import TEXT
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.evaluation.text import answers
from hybridlab.models.decoder import Transformer
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES
from hybridlab.statistics import mean_and_error

Losses = dict[str, dict[str, np.ndarray]]
"""Of `text` and of every task: the losses of windows or answers, `all` and `far`."""


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig,
    rows: Rows = 12,
    window: PositiveInt | None = None,
) -> dict[str, Any]:
    """base: the loss of the model as it is. heads [layer][KV head] and layers [layer]: the rise when this one alone
    becomes a window of `window` tokens, with the standard error over windows of text or answers; 0 where it is such a
    window already. Each for `text` and for every task of the run: `all`, in nats per token or per answer, and `far`,
    of the answers whose fact is `window` or more tokens before its query."""
    width = window_of(model, config, window)
    if width is None:
        return {"skipped": NO_WINDOW}
    used = material(model, corpus, config, seq_len, rows)
    base = _losses(model, config, used, width)
    shape = model.shape

    def rises(units: Iterable[tuple[int, Iterable[int]]]) -> list[dict[str, Any]]:
        return [_rise(model, config, used, width, base, layer, heads) for layer, heads in units]

    layers = rises((layer, range(shape.kv_heads)) for layer in range(shape.layers))
    heads = [rises((layer, [head]) for head in range(shape.kv_heads)) for layer in range(shape.layers)]
    parts = {name: list(losses) for name, losses in base.items()}
    return {
        "window": width,
        "sequences": len(used.text),
        "base": {
            name: {part: mean_and_error(values).model_dump() for part, values in losses.items()}
            for name, losses in base.items()
        },
        "heads": {name: {p: _gathered(heads, name, p) for p in chosen} for name, chosen in parts.items()},
        "layers": {name: {p: _gathered(layers, name, p) for p in chosen} for name, chosen in parts.items()},
    }


def _losses(model: Transformer, config: RunConfig, used: Material, width: int) -> Losses:
    losses = {TEXT: {"all": text_losses(model, used)}}
    for task, rows in used.tasks.items():
        measured = np.concatenate([row.open for row in rows])
        nats = answers(model, rows, used.offsets[task], objective=used.objective)[1][measured]
        far = np.concatenate([row.distances for row in rows])[measured] >= width
        losses[task] = {"all": nats, "far": nats[far]}
    return losses


def _rise(
    model: Transformer,
    config: RunConfig,
    used: Material,
    width: int,
    base: Losses,
    layer: int,
    heads: Iterable[int],
) -> Losses:
    """The rise of every loss when these KV heads of a layer become windows."""
    changed = with_windows(model.attention_map, layer, heads, width)
    if changed == model.attention_map:
        return {name: {part: 0 * values for part, values in losses.items()} for name, losses in base.items()}
    losses = _losses(model.with_plan(attention_map=changed), config, used, width)
    return {name: {part: losses[name][part] - base[name][part] for part in base[name]} for name in base}


def with_windows(attention_map: AttentionMap, layer: int, heads: Iterable[int], width: int) -> AttentionMap:
    """The map in which these KV heads of a layer have a window. A head that sees no more than such a window keeps what
    it has; one that mixes a window with full attention, while its mask is being learned, sees all tokens."""
    row = list(attention_map.layers[layer])
    for head in heads:
        if any(window is None or window > width for window in row[head].softmaxes):
            row[head] = Window(width)
    rows = attention_map.layers
    return AttentionMap((*rows[:layer], tuple(row), *rows[layer + 1 :]))


def _gathered(rises: list[Any], name: str, part: str) -> dict[str, Any]:
    """rise, stderr: nested as the rises are."""

    def each(value: Any, statistic: str) -> Any:
        if isinstance(value, list):
            return [each(inner, statistic) for inner in value]
        number = getattr(mean_and_error(value[name][part]), statistic)
        return None if number is None else round(number, 6)

    return {"rise": each(rises, "value"), "stderr": each(rises, "stderr")}


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """For each loss a table with a row for every layer."""
    for name, parts in measured["heads"].items():
        for part, found in parts.items():
            layers = measured["layers"][name][part]["rise"]
            rows: list[list[str | int | float | None]] = [
                [layer_name(layer).removeprefix("layer "), layers[layer], *heads]
                for layer, heads in enumerate(found["rise"])
            ]
            loss = measured["base"][name][part]["value"]
            text = "none measured" if loss is None else f"{loss:.3f} nats"
            which = f"{name}, {'fact outside the window' if part == 'far' else 'all'}"
            title = f"rise of the loss ({which}: {text}) with a window of {measured['window']} in one layer or KV head"
            yield Table(title, ["layer from 0", "whole", *(f"head {h}" for h in range(len(found["rise"][0])))], rows)


PROBES.add("knockout", Probe(measure, report, needs_config=True, needs_text=True))
