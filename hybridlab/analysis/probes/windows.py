"""What windows cost (ConSA): the rise of the loss when one KV head, or one whole layer, alone becomes a window, and the
share of the attention that lies inside of a window.

hybridlab analyze RUN --probe knockout
hybridlab analyze RUN --probe kept-mass

`knockout` is the oracle of an allocation: the map of this kind gives full attention to the units where the loss rises
most. `kept-mass` is measured with the model's weights and full attention in every head, so that it says what a map
gives up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.analysis.performance import Suite, performance, prompt_losses, require_losses, suite
from hybridlab.analysis.probe import LONGEST, Probe, Rows, Table, layer_table, measured_heads, rounded
from hybridlab.analysis.prompts import NO_TASKS, TaskPrompts, sequences_of
from hybridlab.attention.kernels import Visible
from hybridlab.attention.kinds import Full, Window
from hybridlab.config.maps import TEXT
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import task_window
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.registry import PROBES
from hybridlab.statistics import mean_and_error
from hybridlab.training.progress import followed

NO_WINDOW = "this run names no window; set --window N, or evaluation.task_window in the run"


# ---- knockout ----


Losses = dict[str, dict[str, np.ndarray]]
"""Of `text` and of every task: the losses of windows or answers, `all` and `far`."""


def measure_knockout(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig | None,
    rows: Rows = 12,
    window: PositiveInt | None = None,
    prompts: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """base: the loss of the model as it is. heads [layer][KV head] and layers [layer]: the rise when this one alone
    becomes a window of `window` tokens (by default the run's own), with the standard error over windows of text or
    answers; 0 where it is such a window already. Each for `text` and for every task of the run: `all`, in nats per
    token or per answer, and `far`, of the answers whose fact is `window` or more tokens before its query.
    With `tasks` the text is `rows` prompts of each, and of a run's own tasks nothing is measured."""
    width = window or (None if config is None else task_window(model.attention_map, config))
    if width is None:
        return {"skipped": NO_WINDOW}
    losses_of, sequences = _measuring(model, corpus, config, seq_len, rows, prompts, width)
    base = losses_of(model)
    shape = model.shape

    def each(value: Callable[[str, str], Any]) -> dict[str, dict[str, Any]]:
        """A value for every loss, of its name and part."""
        return {name: {part: value(name, part) for part in losses} for name, losses in base.items()}

    def rise(layer: int, heads: Iterable[int]) -> Losses:
        """The rise of every loss when these KV heads of a layer become windows."""
        changed = with_windows(model.attention_map, layer, heads, width)
        same = changed == model.attention_map
        losses = base if same else losses_of(model.with_plan(attention_map=changed))
        return each(lambda name, part: losses[name][part] - base[name][part])

    layers = [rise(layer, range(shape.kv_heads)) for layer in followed(range(shape.layers), "layers")]
    heads = [
        [rise(layer, [head]) for head in range(shape.kv_heads)]
        for layer in followed(range(shape.layers), "heads of layers")
    ]
    return {
        "window": width,
        "sequences": sequences,
        "base": each(lambda name, part: mean_and_error(base[name][part]).model_dump()),
        "heads": each(lambda name, part: _gathered(heads, name, part)),
        "layers": each(lambda name, part: _gathered(layers, name, part)),
    }


def _measuring(
    model: Transformer,
    corpus: Corpus,
    config: RunConfig | None,
    seq_len: int,
    rows: int,
    prompts: TaskPrompts,
    width: int,
) -> tuple[Callable[[Transformer], Losses], int]:
    """What measures a model on the text and the tasks of its run, or on prompts of tasks, and how many sequences of
    text these are."""
    if config is not None and not prompts.tasks:
        measured = suite(model, corpus, config, seq_len, rows)
        return partial(_losses, measured=measured, width=width), len(measured.text)
    read = sequences_of(model, corpus, seq_len, rows, prompts)
    require_losses(read)
    texts = [tokens[None].to(model.device) for ones in read.sequences.values() for tokens in ones]
    return lambda changed: {TEXT: {"all": prompt_losses(changed, texts)}}, len(texts)


def _losses(model: Transformer, measured: Suite, width: int) -> Losses:
    result = performance(measured, model)
    losses = {TEXT: {"all": result.text}}
    for task, (_, nats) in result.tasks.items():
        far = np.concatenate([row.distances[row.open] for row in measured.tasks[task]]) >= width
        losses[task] = {"all": nats, "far": nats[far]}
    return losses


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
        return rounded(getattr(mean_and_error(value[name][part]), statistic), 6)

    return {"rise": each(rises, "value"), "stderr": each(rises, "stderr")}


def report_knockout(measured: dict[str, Any]) -> Iterator[str | Table]:
    """For each loss a table with a row for every layer."""
    for name, parts in measured["heads"].items():
        for part, heads in parts.items():
            layers = measured["layers"][name][part]["rise"]
            loss = measured["base"][name][part]["value"]
            text = "none measured" if loss is None else f"{loss:.3f} nats"
            which = f"{name}, {'fact outside the window' if part == 'far' else 'all'}"
            title = f"rise of the loss ({which}: {text}) with a window of {measured['window']} in one layer or KV head"
            columns = ["whole", *(f"head {head}" for head in range(len(heads["rise"][0])))]
            yield layer_table(title, columns, [[layer, *row] for layer, row in zip(layers, heads["rise"], strict=True)])


PROBES.add("knockout", Probe(measure_knockout, report_knockout, needs_config=True, needs_text=True))


# ---- kept mass ----


_AT_ONCE = 2**26
"""Attention weights that are in memory at once, in all layers together: a quarter of a gibibyte."""


def measure_kept_mass(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig,
    rows: Rows = 16,
    window: PositiveInt | None = None,
) -> dict[str, Any]:
    """On `text` and on every task of the run: heads [layer][KV head], the share of the attention inside a window of
    `window` tokens (by default the run's own), a mean over query heads, positions and sequences, null for a head that
    does not run; kept, the mean over the heads of what the run's own map keeps: 1 for full attention, for a window the
    mass inside it, and for a head whose mask is being learned both, weighed by its gate.

    The first tokens of a sequence count too, although a window holds all that they may see."""
    width = window or task_window(model.attention_map, config)
    if width is None:
        return {"skipped": NO_WINDOW}
    used = suite(model, corpus, config, min(seq_len, LONGEST), rows)
    shape, attention_map = model.shape, model.attention_map
    full = model.with_plan(attention_map=AttentionMap.uniform(shape.layers, shape.kv_heads, Full()))
    widths = sorted({width} | {kind.window for kind in attention_map.each_kind() if kind.window is not None})
    texts = {TEXT: used.text}
    for task, of_task in used.tasks.items():
        tokens = np.stack([row.tokens for row in of_task]) + used.offsets[task]
        texts[task] = torch.from_numpy(tokens).to(used.text.device)
    heads, means = {}, {}
    for name, text in texts.items():
        mass = inside_mass(full, text, widths)
        heads[name] = rounded(mass[width], 5)
        means[name] = round(kept_by(attention_map, mass, model.gates), 5)
    result = {"window": width, "sequences": len(used.text), "length": used.text.shape[1]}
    return {**result, "heads": heads, "kept": means}


def inside_mass(model: Transformer, tokens: Tensor, widths: list[int]) -> dict[int, Tensor]:
    """Width w → (L, K): the share of the attention on the keys in a window of w, the token's own included, a mean over
    the visits of a layer, the query heads of a KV head, positions and sequences (B, S); NaN for a KV head that does not
    run."""
    shape, length = model.shape, tokens.shape[1]
    query, key = (torch.arange(length, device=tokens.device).view(size) for size in ((-1, 1), (1, -1)))
    causal = model.structure.causal
    near = torch.stack([Visible(width, causal=causal).allows(query, key) for width in widths]).float()
    sums = torch.zeros(len(widths), shape.layers, shape.kv_heads, device=tokens.device)
    counts = torch.zeros_like(sums)
    visits = sum(visit.part != "mlp" for _, visit in model.plan.places())
    at_once = max(1, _AT_ONCE // (visits * shape.heads * length * length))
    for part in tokens.split(at_once):
        with torch.no_grad():
            attention = model(part, need="full").attention
        inside = {}
        for place, weights in attention.items():
            size = weights.shape[-1]
            inside[place] = torch.einsum("bhqk,wqk->wh", weights, near[:, :size, :size]) / size
        for place, layer, head, row in measured_heads(model.plan, shape.heads, inside):
            sums[:, layer, head // shape.group] += inside[place][:, row]
            counts[:, layer, head // shape.group] += len(part)
    return dict(zip(widths, (sums / counts).cpu(), strict=True))


def kept_by(attention_map: AttentionMap, mass: dict[int, Tensor], gates: Mapping[int, Tensor] | None = None) -> float:
    """The mean over the KV heads that run of what a map keeps: 1 for a head that sees all tokens, else the mass inside
    its window; for a head whose mask is being learned, both, weighed by its gate. mass: see `inside_mass`. gates: of
    mixed heads, see `Transformer`."""
    shares = []
    for layer, row in enumerate(attention_map.layers):
        for head, kind in enumerate(row):
            inside = float((next(iter(mass.values())) if kind.window is None else mass[kind.window])[layer, head])
            if not math.isnan(inside):
                gate = float((gates or {})[layer][head]) if kind.mask is None else kind.mask
                shares.append(gate + (1 - gate) * inside)
    return sum(shares) / len(shares)


def report_kept_mass(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A table for text and for each task, with a row for every layer."""
    for name, layers in measured["heads"].items():
        title = (
            f"share of the attention inside a window of {measured['window']} ({name}, {measured['sequences']} "
            f"sequences of {measured['length']} tokens); this run's map keeps {measured['kept'][name]:.3f}"
        )
        yield layer_table(title, [f"head {head}" for head in range(len(layers[0]))], layers)


PROBES.add("kept-mass", Probe(measure_kept_mass, report_kept_mass, needs_config=True, needs_text=True))
