"""How much the later layers and the output change when one layer, or its attention or MLP, adds nothing (depth-grown
models, section 4.3, figures 5, 7b, 12, 13, 19–21, 25 and 26; appendix B).

    hybridlab analyze RUN --probe effects --parts attention --modes current

Modes: `current` erases all tokens but the first and measures all; `future` erases the tokens 1 … t − 1 and measures
those from a boundary t on, for several t. Axes: `propagated` lets the change run through all later layers; `local`
gives it to one later layer at a time. The maximum is taken over positions, boundaries and sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.effects import NOTHING, PARTS, Effect, Positions, clean_pass, local, propagated
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.analysis.prompts import Choice, Count, Example, Numbers, Words, examples
from hybridlab.config.types import NonNegativeInt, Seed
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError, nearest
from hybridlab.models.decoder import Transformer
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES

MODES = ("current", "future")
AXES = ("propagated", "local")


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = 10,
    modes: Words = MODES,
    axes: Words | None = None,
    parts: Words = PARTS[:2],
    layers: Numbers | None = None,
    boundaries: Count = 4,
    at: Numbers | None = None,
    stride: NonNegativeInt = 4,
    prompts: str | None = None,
    by: str | None = None,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Keys: sequences, layers (the sources, from 0), and for every mode, axis and part

    MODE.AXIS.PART.changes: a row for each source, with for every layer of the model the largest relative change of its
    contribution, null for those that do not run after the source. MODE.propagated.PART.output and .output_max: for each
    source the largest L2 distance of the output distributions, as a mean over sequences and as the maximum.

    In `future`, also boundaries: how many there were in all. axes: by default both, but `propagated` alone for a plan
    with a loop over iterations. parts: `layer`, `attention`, `mlp`. layers: the sources, by default all. The rest: see
    analysis/prompts.py.
    """
    modes, parts = _known("modes", modes, MODES), _known("parts", parts, PARTS)
    axes = _axes(model, axes)
    sources = _sources(model, layers)
    made = examples(model, corpus, seq_len, rows, Choice(boundaries, stride, at, seed), prompts, by)
    found: dict[str, Any] = {"sequences": len(made), "layers": list(sources)}
    for mode in modes:
        found[mode] = {} if mode == "current" else {"boundaries": sum(len(one.boundaries) for one in made)}
        for axis in axes:
            measured = _propagated if axis == "propagated" else _local
            found[mode][axis] = {part: measured(model, made, mode, part, sources) for part in parts}
    return found


def _known(setting: str, given: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if name not in known:
            raise UserError(f"{setting} = {name!r} is unknown; {nearest(name, list(known))}")
    return tuple(given) or known


def _axes(model: Transformer, axes: Sequence[str] | None) -> tuple[str, ...]:
    if axes is None:
        return AXES[:1] if model.plan.loops else AXES
    if model.plan.loops and "local" in axes:
        raise UserError(
            "local effects take a layer's contribution out of the stream, and in a loop over iterations the stream is "
            "no sum of contributions; use --axes propagated"
        )
    return _known("axes", axes, AXES)


def _sources(model: Transformer, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers to skip, of those that the plan runs."""
    running = sorted({visit.layer for _, visit in model.plan.places()})
    if not running:
        raise UserError("the plan runs no layer; there is nothing to skip")
    for layer in layers or ():
        if layer not in running:
            raise UserError(
                f"layers: the plan does not run {layer_name(layer)}; it runs {', '.join(map(str, running))}"
            )
    return tuple(layers or running)


def positions(example: Example, mode: str) -> Positions | None:
    """Where an example is erased and measured, a row for each boundary; None if it has no future."""
    length, device = len(example.tokens), example.tokens.device
    if mode == "current":
        return Positions.current(length, device)
    return Positions.future(example.boundaries, length, device) if example.boundaries else None


def skipped(model: Transformer, example: Example, where: Positions, part: str, sources: Sequence[int]) -> Effect:
    """The largest propagated effects of skipping each source, over the rows of `where`: changes (sources, L), output
    (sources,)."""
    clean = clean_pass(model, example.tokens.expand(len(where.erased), -1))
    each = [propagated(model, example.tokens, where, source, part, clean) for source in sources]
    return Effect(torch.stack([one.changes.amax(0) for one in each]), torch.stack([one.output.amax() for one in each]))


def _propagated(
    model: Transformer, made: Sequence[Example], mode: str, part: str, sources: Sequence[int]
) -> dict[str, Any]:
    each = [skipped(model, one, where, part, sources) for one in made if (where := positions(one, mode))]
    output = torch.stack([one.output for one in each])
    return {
        "changes": _rounded(model, torch.stack([one.changes for one in each]).amax(0), sources),
        "output": _numbers(output.mean(0)),
        "output_max": _numbers(output.amax(0)),
    }


def _local(model: Transformer, made: Sequence[Example], mode: str, part: str, sources: Sequence[int]) -> dict[str, Any]:
    each = [local(model, one.tokens, where, part).amax(1) for one in made if (where := positions(one, mode))]
    return {"changes": _rounded(model, torch.stack(each).amax(0)[list(sources)], sources)}


def _numbers(values: Tensor) -> list[float | None]:
    return [None if value == NOTHING else float(f"{value:.5g}") for value in values.tolist()]


def _rounded(model: Transformer, changes: Tensor, sources: Sequence[int]) -> list[list[float | None]]:
    """The rows without what no skip can change: the source itself, and layers that run before it only."""
    order = [visit.layer for _, visit in model.plan.places()]
    rows = []
    for source, row in zip(sources, changes, strict=True):
        after = set(order[order.index(source) :]) - {source}
        rows.append([value if layer in after else None for layer, value in enumerate(_numbers(row))])
    return rows


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """For each mode, axis and part a table with a row for every source."""
    yield f"{measured['sequences']} sequences; a row for each layer that is skipped; largest change of what each"
    yield "later layer adds, relative to it; output: change of the distribution (L2, mean)"
    for mode in (mode for mode in MODES if mode in measured):
        for axis, parts in ((axis, measured[mode][axis]) for axis in AXES if axis in measured[mode]):
            for part, found in parts.items():
                yield from _tables(f"{mode}, {axis}, without {_WITHOUT[part]}", measured["layers"], found)


_WITHOUT = {"layer": "the layer", "attention": "its attention", "mlp": "its MLP"}
_COLUMNS = 8
"""Layers in one table, so that it fits into 80 columns."""


def _tables(title: str, sources: list[int], found: dict[str, Any]) -> Iterator[Table]:
    count = len(found["changes"][0])
    for start in range(0, count, _COLUMNS):
        part = slice(start, min(start + _COLUMNS, count))
        names = [f"L{layer + 1}" for layer in range(part.start, part.stop)]
        last = part.stop == count and "output" in found
        rows: list[list[str | int | float | None]] = [
            [f"L{source + 1}", *map(_short, row[part]), *([_short(found["output"][i])] if last else [])]
            for i, (source, row) in enumerate(zip(sources, found["changes"], strict=True))
        ]
        yield Table(title if not start else "", ["skip", *names, *(["output"] if last else [])], rows)


def _short(value: float | None) -> str | None:
    """Three digits, so that nine columns fit."""
    return None if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0e}"


PROBES.add("effects", Probe(measure, report, needs_decoder="the effect on later tokens", needs_text=True))
