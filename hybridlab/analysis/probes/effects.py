"""What the later layers, and the output, lose when one layer or one of its sublayers adds nothing at some positions
(Csordás et al., 2025; depth-grown models, appendix B, "Intervention protocols").

    hybridlab analyze RUN --probe effects --parts attention --modes current
    hybridlab analyze RUN --probe depth-score --prompts math.jsonl
    hybridlab analyze MODEL --probe depth-score --tasks gsm8k --boundaries 1 --data-root DIR
    HYBRIDLAB_DATA_ROOT=DIR hybridlab analyze RUN --probe depth-score --prompts root:math    # or root:mquake --stride 0

Everything is in the precision of the weights, fp32 for an opened model. The unit is the layer: its contribution is what
a visit adds to its input, and where a plan visits a layer more than once (head loops, recurrences), all its visits are
skipped together, and the largest change over its visits counts. In a loop over chunks a latent counts as erased, or as
measured, if all tokens of its chunk are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.analysis.probe import Probe, Rows, Table, layer_table, split_table
from hybridlab.analysis.prompts import (
    BY_DEFAULT,
    NO_TASKS,
    Example,
    Future,
    Numbers,
    TaskPrompts,
    Words,
    examples,
    not_measured,
)
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError, nearest
from hybridlab.models.decoder import Transformer
from hybridlab.models.recurrence import chunked
from hybridlab.models.taps import Taps
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Place, Visit, layer_name
from hybridlab.registry import PROBES
from hybridlab.statistics import Measurement
from hybridlab.training.progress import followed

PARTS = ("layer", "attention", "mlp")
"""What a skip leaves out: a layer replaced by its input, or one sublayer that adds nothing. Without its attention, the
MLP of a serial block reads the stream without it."""
SMALLEST = 1e-6
"""Lower limit of a norm that is divided by."""
NOTHING = float("-inf")
"""A change that no position has measured."""


@dataclass(frozen=True)
class Positions:
    """erased, measured: (B, S) bool, where a contribution is left out, and where changes are read."""

    erased: Tensor
    measured: Tensor

    @classmethod
    def current(cls, length: int, device: torch.device) -> Positions:
        """All tokens but the first erased, and all measured: one row (1, S)."""
        number = torch.arange(length, device=device)[None]
        return cls(number > 0, number >= 0)

    @classmethod
    def future(cls, boundaries: Iterable[int], length: int, device: torch.device) -> Positions:
        """A row for each boundary t: the tokens 1 … t − 1 erased, those from t on measured."""
        number = torch.arange(length, device=device)[None]
        first = torch.tensor(list(boundaries), device=device)[:, None]
        return cls((number > 0) & (number < first), number >= first)

    def at(self, plan: Plan, place: Place) -> Positions:
        """The same for the positions of a visit, which are chunks of tokens in a loop over chunks."""
        item = plan.visits[place[0]]
        if not isinstance(item, Loop) or item.chunks[place[1]] == 1:
            return self
        return Positions(_per_chunk(self.erased, item, place[1]), _per_chunk(self.measured, item, place[1]))


def _per_chunk(mask: Tensor, loop: Loop, t: int) -> Tensor:
    """(B, S) → (B, n): True for the chunks of iteration t of which all tokens are True."""
    count = loop.num_chunks(t, mask.shape[1])
    grid, filled = chunked(mask[..., None], count, loop.chunks[t], loop.offset_of(t))
    return (grid[..., 0] | ~filled).all(2)


@dataclass(frozen=True)
class Effect:
    """changes (B, L): of each row the largest ‖Δ′ − Δ‖ / ‖Δ‖ of each layer's contribution over the measured positions;
    `NOTHING` for a layer that does not run. output (B,): the largest L2 distance of the two output distributions."""

    changes: Tensor
    output: Tensor


class Clean(Taps):
    """Stores what each visit adds, and the output distribution, in a pass without an intervention."""

    output: Tensor

    def __init__(self) -> None:
        self.deltas: dict[Place, Tensor] = {}

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        self.deltas[place] = delta


def clean_pass(model: Transformer, tokens: Tensor) -> Clean:
    """A pass without an intervention. tokens (B, S): with as many rows as the passes to compare it with, since the
    last bits of a product of matrices may depend on their size."""
    clean = Clean()
    with torch.no_grad():
        clean.output = model(tokens, taps=clean).logits.float().softmax(-1)
    return clean


class _Skip(Taps):
    """Leaves out what a layer, or one of its sublayers, adds, and compares every visit with a clean pass."""

    def __init__(self, model: Transformer, layer: int, part: str, where: Positions, clean: Clean) -> None:
        self.plan, self.layer, self.part, self.where, self.clean = model.plan, layer, part, where, clean
        self.changes = _no_changes(model, len(where.erased))

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        if self.plan[place].layer != self.layer or self.part not in ("layer", part):
            return delta
        return delta.masked_fill(self.where.at(self.plan, place).erased[..., None], 0.0)

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        change = relative_change(delta, self.clean.deltas[place], self.where.at(self.plan, place).measured)
        row = self.changes[:, self.plan[place].layer]
        row.copy_(torch.maximum(row, change))


def _no_changes(model: Transformer, rows: int) -> Tensor:
    return torch.full((rows, model.shape.layers), NOTHING, device=model.device)


def relative_change(changed: Tensor, delta: Tensor, measured: Tensor) -> Tensor:
    """(B, S, W) twice → (B,): the largest ‖changed − delta‖ / ‖delta‖ over the measured positions (B, S)."""
    if not delta.shape[1]:
        return torch.full((len(delta),), NOTHING, device=delta.device)
    change = (changed - delta).float().norm(dim=-1) / delta.float().norm(dim=-1).clamp(min=SMALLEST)
    return change.masked_fill(~measured, NOTHING).amax(1)


def propagated(
    model: Transformer, tokens: Tensor, where: Positions, layer: int, part: str = "layer", clean: Clean | None = None
) -> Effect:
    """The effect of skipping a layer, or a part of it, on everything after it. tokens (S,): run once for each row of
    `where`. clean: `clean_pass` on as many rows, if it is there already."""
    rows = tokens.expand(len(where.erased), -1)
    clean = clean or clean_pass(model, rows)
    skip = _Skip(model, layer, part, where, clean)
    with torch.no_grad():
        output = model(rows, taps=skip).logits.float().softmax(-1)
    distance = (output - clean.output).norm(dim=-1).masked_fill(~where.measured, NOTHING)
    return Effect(skip.changes, distance.amax(1))


class _Local(Taps):
    """Runs each visit again on its input minus what one earlier layer has added, and goes on with the clean stream."""

    def __init__(self, model: Transformer, part: str, where: Positions) -> None:
        self.plan, self.part, self.where = model.plan, part, where
        self.added: dict[int, Tensor] = {}
        """Layer → what its visits so far have added to the stream (B, S, W), as far as it is erased."""
        self.listening = False
        count = model.shape.layers
        self.changes = torch.stack([_no_changes(model, len(where.erased)) for _ in range(count)])

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        if self.listening and self.part in ("layer", part):
            layer, erased = self.plan[place].layer, delta.masked_fill(~self.where.erased[..., None], 0.0)
            self.added[layer] = self.added[layer] + erased if layer in self.added else erased
        return delta

    def run_visit(self, place: Place, x: Tensor, visit: Visit, run: Callable[[Tensor], Tensor]) -> Tensor:
        sources = {source: added for source, added in self.added.items() if source != visit.layer}
        self.listening = True
        out = run(x)
        self.listening = False
        for source, added in sources.items():
            without = x - added
            change = relative_change(run(without) - without, out - x, self.where.measured)
            row = self.changes[source, :, visit.layer]
            row.copy_(torch.maximum(row, change))
        return out


def local(model: Transformer, tokens: Tensor, where: Positions, part: str = "layer") -> Tensor:
    """(L, B, L): [source][row][target], the change of each later layer when it alone reads the stream without what the
    source has added. Every other layer reads the clean stream. The plan must have no loop over iterations."""
    taps = _Local(model, part, where)
    with torch.no_grad():
        model(tokens.expand(len(where.erased), -1), taps=taps)
    return taps.changes


# ---- the probe of effects (section 4.3, figures 5, 7b, 12, 13, 19–21, 25 and 26) ----
#
# Modes: `current` erases all tokens but the first and measures all; `future` erases the tokens 1 … t − 1 and measures
# those from a boundary t on, for several t. Axes: `propagated` lets the change run through all later layers; `local`
# gives it to one later layer at a time. The maximum is taken over positions, boundaries and sequences.


MODES = ("current", "future")
AXES = ("propagated", "local")


def measure_effects(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = 10,
    modes: Words = MODES,
    axes: Words | None = None,
    parts: Words = PARTS[:2],
    layers: Numbers | None = None,
    future: Future = BY_DEFAULT,
    of_tasks: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """Keys: sequences, layers (the sources, from 0), and for every mode, axis and part

    MODE.AXIS.PART.changes: a row for each source, with for every layer of the model the largest relative change of its
    contribution, null for those that do not run after the source. MODE.propagated.PART.output and .output_max: for each
    source the largest L2 distance of the output distributions, as a mean over sequences and as the maximum.

    In `future`, also boundaries: how many there were in all. axes: by default both, but `propagated` alone for a plan
    with a loop over iterations. parts: `layer`, `attention`, `mlp`. layers: the sources, by default all. The rest: see
    analysis/prompts.py. With units also units [i]: MODE.propagated.PART.output of the i-th prompt of every task, a mean
    over tasks.
    """
    modes, parts = _known("modes", modes, MODES), _known("parts", parts, PARTS)
    if axes is None:
        axes = AXES[:1] if model.plan.loops else AXES
    elif model.plan.loops and "local" in axes:
        raise UserError(
            "local effects take a layer's contribution out of the stream, and in a loop over iterations the stream is "
            "no sum of contributions; use --axes propagated"
        )
    axes = _known("axes", axes, AXES)
    sources = _sources(model, layers)
    read = examples(model, corpus, seq_len, rows, future, of_tasks, "future" in modes)
    drawn = read.examples
    result: dict[str, Any] = {"sequences": len(drawn), "layers": list(sources)}
    outputs: dict[str, dict[str, Tensor]] = {}
    for mode in modes:
        result[mode] = {} if mode == "current" else {"boundaries": sum(len(example.boundaries) for example in drawn)}
        placed = [(example.tokens, where) for example in drawn if (where := positions(example, mode))]
        if "propagated" in axes:
            effects = {
                part: [skipped(model, *pair, part, sources) for pair in followed(placed, f"{part} skipped")]
                for part in parts
            }
            outputs[mode] = {part: torch.stack([effect.output for effect in ones]) for part, ones in effects.items()}
            result[mode]["propagated"] = {
                part: {
                    "changes": _largest(model, [effect.changes for effect in ones], sources),
                    "output": _numbers(outputs[mode][part].mean(0)),
                    "output_max": _numbers(outputs[mode][part].amax(0)),
                }
                for part, ones in effects.items()
            }
        if "local" in axes:
            changes = {
                part: [local(model, *pair, part).amax(1)[list(sources)] for pair in followed(placed, f"{part}, local")]
                for part in parts
            }
            result[mode]["local"] = {part: {"changes": _largest(model, c, sources)} for part, c in changes.items()}

    def of_unit(numbers: list[int]) -> dict[str, Any]:
        return {
            mode: {"propagated": {part: {"output": _numbers(each[numbers].mean(0))} for part, each in by_part.items()}}
            for mode, by_part in outputs.items()
        }

    return {**result, **read.said(), **read.by_unit(of_unit)}


def _known(setting: str, names: Sequence[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            raise UserError(f"{setting} = {name!r} is unknown; {nearest(name, list(allowed))}")
    return tuple(names) or allowed


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


def skipped(model: Transformer, tokens: Tensor, where: Positions, part: str, sources: Sequence[int]) -> Effect:
    """The largest propagated effects of skipping each source on tokens (S,), over the rows of `where`: changes
    (sources, L), output (sources,)."""
    clean = clean_pass(model, tokens.expand(len(where.erased), -1))
    effects = [propagated(model, tokens, where, source, part, clean) for source in sources]
    return Effect(torch.stack([e.changes.amax(0) for e in effects]), torch.stack([e.output.amax() for e in effects]))


def _numbers(values: Tensor) -> list[float | None]:
    return [None if value == NOTHING else float(f"{value:.5g}") for value in values.tolist()]


def _largest(model: Transformer, changes: Sequence[Tensor], sources: Sequence[int]) -> list[list[float | None]]:
    """The largest of all sequences' changes (sources, L), without what no skip can change: the source itself, and
    layers that run before it only."""
    order = [visit.layer for _, visit in model.plan.places()]
    rows = []
    for source, row in zip(sources, torch.stack([*changes]).amax(0), strict=True):
        after = set(order[order.index(source) :]) - {source}
        rows.append([value if layer in after else None for layer, value in enumerate(_numbers(row))])
    return rows


def report_effects(measured: dict[str, Any]) -> Iterator[str | Table]:
    """For each mode, axis and part a table with a row for every source."""
    yield f"{measured['sequences']} sequences; a row for each layer that is skipped; largest change of what each"
    yield "later layer adds, relative to it; output: change of the distribution (L2, mean)"
    for mode in (mode for mode in MODES if mode in measured):
        for axis, parts in ((axis, measured[mode][axis]) for axis in AXES if axis in measured[mode]):
            for part, values in parts.items():
                yield from _tables(f"{mode}, {axis}, without {_WITHOUT[part]}", measured["layers"], values)
    yield from not_measured(measured)


_WITHOUT = {"layer": "the layer", "attention": "its attention", "mlp": "its MLP"}


def _tables(title: str, sources: list[int], values: dict[str, Any]) -> Iterator[Table]:
    layers = zip(*values["changes"], strict=True)
    columns = [(f"L{layer + 1}", [*map(_short, cells)]) for layer, cells in enumerate(layers)]
    output = [("output", [*map(_short, values["output"])])] if "output" in values else []
    yield from split_table(title, ("skip", [f"L{source + 1}" for source in sources]), columns, 8, last=output)


def _short(value: float | None) -> str | None:
    """Three digits, so that nine columns fit."""
    return None if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0e}"


PROBES.add(
    "effects", Probe(measure_effects, report_effects, needs_decoder="the effect on later tokens", needs_text=True)
)


# ---- the depth score: the layer, on average, whose work the predictions of later tokens need ----
#
# Section 4.1, figures 1A, 14A, 27 and 28. m_l is the mean over sequences of the largest L2 distance of the output
# distributions at tokens from t on, when layer l adds nothing to the tokens 1 … t − 1; the score is Σ l · m_l / Σ m_l
# with l from 0. Of prompts with levels there is a score for each level, and their mean.


def measure_depth_score(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = 20,
    future: Future = BY_DEFAULT,
    of_tasks: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """Keys: score {value, stderr, n}, its value a mean over the levels if there are any; effects [layer], m_l of all
    sequences; levels {level: {score {value, stderr, n}, effects [layer]}}, only for prompts with levels.

    stderr is that of a ratio of means over n sequences, of the mean over levels that of independent ones. The score
    counts all layers of the model; one that the plan does not run has no effect. rows: sequences, of prompts with
    levels for each. The tasks of prompts are their levels. The rest: see analysis/prompts.py. With units also units
    [i]: the same of the i-th prompt of every task.
    """
    read = examples(model, corpus, seq_len, rows, future, of_tasks)
    running = list(_sources(model, None))
    effects: list[tuple[str | None, np.ndarray]] = []
    for example in followed(read.examples, "depth score"):
        if (where := positions(example, "future")) is not None:
            row = np.zeros(model.shape.layers)
            row[running] = skipped(model, example.tokens, where, "layer", running).output.cpu().numpy()
            effects.append((example.group, row))
    return {
        **_scores(effects),
        **read.said(),
        **read.by_unit(lambda numbers: _scores([effects[number] for number in numbers])),
    }


def _scores(effects: Sequence[tuple[str | None, np.ndarray]]) -> dict[str, Any]:
    """score, effects and levels of `measure_depth_score`. effects: level and m_l (L,) of each sequence."""
    by_level: dict[str | None, list[np.ndarray]] = {}
    for group, row in effects:
        by_level.setdefault(group, []).append(row)
    levels = {group: np.stack(rows) for group, rows in by_level.items()}
    stacked = np.concatenate(list(levels.values()))
    if list(levels) == [None]:
        return {"score": scored(stacked), "effects": _numbers(torch.from_numpy(stacked.mean(0)))}
    summaries: dict[str, dict[str, Any]] = {
        str(group): {"score": scored(m), "effects": _numbers(torch.from_numpy(m.mean(0)))}
        for group, m in levels.items()
    }
    scores = [part["score"] for part in summaries.values()]
    values, errors = ([score[key] for score in scores] for key in ("value", "stderr"))
    mean, error = None, None
    if None not in values:
        mean = round(sum(values) / len(values), 6)
        error = None if None in errors else round(float(np.sqrt(np.square(errors).sum())) / len(errors), 6)
    return {
        "score": Measurement(value=mean, stderr=error, n=sum(score["n"] for score in scores)).model_dump(),
        "effects": _numbers(torch.from_numpy(stacked.mean(0))),
        "levels": summaries,
    }


def depth_score(effects: Iterable[float]) -> float | None:
    """The expected layer Σ l · m_l / Σ m_l, counted from 0, of the effects m_l of the layers on the output (appendix B,
    "Depth score"); None if no layer has an effect."""
    values = list(effects)
    total = sum(values)
    return sum(layer * value for layer, value in enumerate(values)) / total if total else None


def scored(effects: np.ndarray) -> dict[str, Any]:
    """The depth score of effects (N, L) of N sequences, as a `Measurement`."""
    n, layers = effects.shape
    score = depth_score(effects.mean(0).tolist())
    error = None
    if score is not None and n > 1:
        # The delta method for the ratio of the means of Σ l · m_l and Σ m_l.
        deviations = effects @ (np.arange(layers) - score)
        error = round(float(deviations.std(ddof=1) / (n**0.5 * effects.sum(1).mean())), 6)
    return Measurement(value=None if score is None else round(score, 6), stderr=error, n=n).model_dump()


def report_depth_score(measured: dict[str, Any]) -> Iterator[str | Table]:
    """The scores, and a row for every layer with its effect on the output at future tokens."""
    scores = {"all": measured["score"]} | {name: part["score"] for name, part in measured.get("levels", {}).items()}
    for name, score in scores.items():
        of = "" if name == "all" else f", {name}"
        if score["value"] is None:
            yield f"depth score{of}: none, since no layer has an effect on future tokens"
            continue
        error = "" if score["stderr"] is None else f" ± {score['stderr']:.3f}"
        yield f"depth score{of}: {score['value']:.3f}{error} (layers from 0; {score['n']} sequences)"
    effects = zip(measured["effects"], strict=True)
    yield layer_table("change of the output at future tokens", ["L2, largest of a sequence"], effects)
    yield from not_measured(measured)


PROBES.add(
    "depth-score",
    Probe(measure_depth_score, report_depth_score, needs_decoder="the effect on later tokens", needs_text=True),
)
