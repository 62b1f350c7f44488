"""Kinds of figures of models that change while they train.

growth   the layers that loop at each step, with passes and number of heads: a panel for each run, from its events
lineage  growth in depth: the model after each growth step as a row of layers, and where each layer comes from. A panel
         for each run, from the lineage in its record
stages   the tokens of each stage of training as bars, one after another; for a single run with learned masks, the keys
         that the masks of one layer leave seen. The bars and the pattern are computed from settings and totals of runs,
         of which a record has no list
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.lab.papers.plots import Labels, PlotSettings
from hybridlab.lab.reporting.figure_kind import (
    HEIGHT,
    WIDTH,
    FigureKind,
    Numbers,
    Picture,
    fixed_size,
    grown_block,
    one_run,
    whole,
)
from hybridlab.plan.lineage import growth_steps, lineage_from_json
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.record import Record
from hybridlab.runs.style import COLOURS, PAPER, label_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# ---- growth ----


def growth_of(plot: Any, record: Record) -> Numbers | None:
    """segments: layer, first and last step, passes, heads that run and heads that are kept; None for a run without
    growth."""
    fade = (record.config.get("controller") or {}).get("fade_steps")
    if fade is None:
        return None
    shape, end = record.config["shape"], record.steps
    layers: dict[int, list[dict[str, Any]]] = {}
    for event in record.events:
        if event["kind"] in ("loop-added", "loop-deepened", "heads-chosen"):
            layers.setdefault(event["layer"], []).append(event)
    segments = [
        {"layer": layer + 1, **segment}
        for layer, events in layers.items()
        for segment in _segments(events, shape["heads"], fade, end)
    ]
    return {"segments": segments, "steps": end, "layers": shape["layers"], "heads": shape["heads"]}


def _segments(events: list[dict[str, Any]], num_heads: int, fade: int, end: int) -> Iterator[dict[str, Any]]:
    """A layer's steps, split where its passes or running heads change; heads are removed when the last fade ends."""
    choices = [event for event in events if "heads" in event]
    cuts = sorted({step for event in events for step in (event["step"], event["step"] + fade)} | {end})
    running = num_heads
    for since, until in zip(cuts, cuts[1:], strict=False):
        past = [event for event in choices if event["step"] <= since]
        if since >= end or not past:
            continue
        heads = len(past[-1]["heads"])
        if past[-1]["step"] + fade <= since:
            running = heads
        passes = [event["passes"] for event in events if event["step"] <= since][-1]
        yield {"since": since, "until": min(until, end), "passes": passes, "running": running, "kept": heads}


def draw_growth(ax: Axes, picture: Picture) -> None:
    """A bar for each segment, labelled with its passes; its height is the share of the layer's heads that run."""
    numbers = picture.numbers
    for layer in range(1, numbers["layers"] + 1):
        ax.axhline(layer - 0.4, color="0.9", linewidth=0.6, zorder=0)
    for segment in numbers["segments"]:
        _draw_segment(ax, segment, numbers)
    ax.set_xlim(0, numbers["steps"])
    ax.set_ylim(0.4, numbers["layers"] + 0.8)
    ax.set_yticks(range(1, numbers["layers"] + 1))
    _name_colours(ax, numbers["segments"])


def _draw_segment(ax: Axes, segment: dict[str, Any], numbers: Numbers) -> None:
    length = segment["until"] - segment["since"]
    fading = segment["running"] > segment["kept"]
    height = 0.8 * segment["running"] / numbers["heads"]
    colour = COLOURS[5] if fading else COLOURS[(segment["passes"] - 1) % len(COLOURS)]
    style: dict[str, Any] = {"color": colour, "hatch": "///" if fading else None, "edgecolor": "white", "linewidth": 0}
    ax.barh(segment["layer"] - 0.4, length, left=segment["since"], height=height, align="edge", **style)
    if length > 0.06 * numbers["steps"]:
        text = f"{segment['passes']} ×"
        ax.text(segment["since"] + length / 2, segment["layer"] - 0.35 + height, text, fontsize=6, ha="center")


def _name_colours(ax: Axes, segments: list[dict[str, Any]]) -> None:
    """Names for the legend, on areas without a size."""
    style: dict[str, Any] = {"hatch": "///", "edgecolor": "white", "facecolor": COLOURS[5]}
    ax.fill_between([], [], label="all heads, those not kept fading", **style)
    for passes in sorted({s["passes"] for s in segments if s["running"] == s["kept"]}):
        name = f"kept heads, {passes} extra pass{'es' * (passes > 1)}"
        ax.fill_between([], [], facecolor=COLOURS[(passes - 1) % len(COLOURS)], label=name)


FIGURE_KINDS.add(
    "growth",
    FigureKind(
        one_run(growth_of),
        draw_growth,
        csv_lines=lambda numbers: numbers["segments"],
        parts=whole,
        size=fixed_size(1.6 * WIDTH, HEIGHT),
        settings=Labels,
    ),
)


# ---- lineage ----


_LARGE = 16
"""With more layers than this, boxes are small, and so are their numbers."""


def lineage_of(plot: Any, record: Record) -> Numbers | None:
    """steps: the model at the start, then after each growth step: layer → source, the layer of the model before that it
    continues or was copied from, from 0; at the start, itself. copied: whether it was copied. block: layers of a block.
    None for a run without growth in depth."""
    stored, block = record.structure.get("lineage"), grown_block(record)
    if not stored or not block:
        return None
    lineage = lineage_from_json(stored)
    first = sum(origin.stage == 0 for origin in lineage)
    steps = [{"sources": list(range(first)), "copied": [False] * first}]
    for stage, sources in enumerate(growth_steps(lineage), start=1):
        now = [origin for origin in lineage if origin.stage <= stage]
        steps.append({"sources": list(sources), "copied": [origin.stage == stage for origin in now]})
    return {"steps": steps, "block": block}


def lineage_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Layers are counted from 1, as in the picture."""
    for number, step in enumerate(numbers["steps"]):
        for layer, (source, copied) in enumerate(zip(step["sources"], step["copied"], strict=True)):
            yield {"growth step": number, "layer": layer + 1, "source": source + 1, "copied": copied}


def lineage_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """The width of a page, or half of it for models of few layers; as high as the growth steps need."""
    steps = [picture.numbers["steps"] for picture in pictures]
    layers = max(len(each[-1]["sources"]) for each in steps)
    return (3.4 if layers <= _LARGE and len(pictures) > 1 else 7.0), 0.7 + 0.5 * max(map(len, steps))


def draw_lineage(ax: Axes, picture: Picture) -> None:
    """A row of boxes for each model, the first at the top, with a line to each layer from its source. Colours are the
    blocks of the model before, the number in a box is the source."""
    steps, block = picture.numbers["steps"], picture.numbers["block"]
    widest = len(steps[-1]["sources"])
    for row, step in enumerate(steps):
        _draw_model(ax, row, step, len(steps[max(0, row - 1)]["sources"]), block, widest)
    ax.set_xlim(0, widest)
    ax.set_ylim(len(steps) - 0.5, -0.15)
    ax.set_xticks([])
    names = [f"{f'step {i}' if i else 'start'}: {len(step['sources'])}" for i, step in enumerate(steps)]
    ax.set_yticks([row + 0.18 for row in range(len(steps))], names)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    ax.fill_between([], [], facecolor="none", edgecolor="black", linewidth=1.5, label="copied in this step")


def _draw_model(ax: Axes, row: int, step: dict[str, Any], before: int, block: int, widest: int) -> None:
    """before: the layers of the model above. Rows of fewer layers stand in the middle."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    small = 4.0 if widest > _LARGE else 6.0
    for layer, (source, copied) in enumerate(zip(step["sources"], step["copied"], strict=True)):
        left = layer + (widest - len(step["sources"])) / 2
        colour = COLOURS[source // block % (len(COLOURS) - 1)]
        # Mixed with white, so that the number can be read.
        light = [0.5 + 0.5 * part for part in to_rgb(colour)]
        edge: dict[str, Any] = {"edgecolor": "black" if copied else colour, "linewidth": 1.4 if copied else 0.5}
        ax.add_patch(Rectangle((left + 0.06, row), 0.88, 0.36, facecolor=light, **edge))
        ax.text(left + 0.5, row + 0.19, str(source + 1), color="black", fontsize=small, ha="center", va="center")
        if row:
            ends = (source + (widest - before) / 2 + 0.5, left + 0.5)
            line: dict[str, Any] = {"color": "black" if copied else "0.82", "linewidth": 0.8 if copied else 0.5}
            ax.plot(ends, (row - 0.64, row), zorder=1, **line)


FIGURE_KINDS.add(
    "lineage",
    FigureKind(one_run(lineage_of), draw_lineage, lineage_csv, parts=whole, size=lineage_size, settings=Labels),
)


# ---- stages ----


FULL, WINDOW = COLOURS[1], COLOURS[5]


def stages_of(plot: Any, record: Record) -> Numbers:
    """tokens, steps: trained. map: the final one as text. With learned masks also scores, masks, window and seq_len."""
    numbers: Numbers = {"tokens": record.tokens, "steps": record.steps, "map": record.model.map}
    learned = record.controller
    if "masks" in learned:
        numbers |= {"scores": learned["scores"], "masks": learned["masks"], "window": record.config["map"]["window"]}
        numbers["seq_len"] = record.config["training"]["seq_len"]
    return numbers


def stages_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each KV head of learned masks, and one with tokens and steps."""
    if "masks" in numbers:
        for layer, row in enumerate(numbers["masks"]):
            for head, value in enumerate(row):
                yield {"layer": layer + 1, "kv_head": head + 1, "full": value}
    yield {"tokens": numbers["tokens"], "steps": numbers["steps"]}


def draw_stages(ax: Axes, picture: Picture) -> None:
    """A single run with learned masks: the masks of one of its layers. Otherwise the stages one after another."""
    if len(picture.series) == 1 and "scores" in picture.numbers:
        _draw_masks_of_one_layer(ax, picture.numbers)
        return
    start = 0.0
    for i, (label, numbers) in enumerate(picture.series):
        tokens = numbers["tokens"] / 1e6
        ax.barh(0, tokens, left=start, height=0.5, color=COLOURS[i % len(COLOURS)], edgecolor="white")
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6, "color": "white"}
        ax.text(start + tokens / 2, 0, f"{label}\n{tokens:.2f}M", **style)
        for mark in (mark for mark in picture.paper if mark["label"] == label):
            note = f"paper:\n{mark['x'][0] / 1e9:g}B"
            ax.text(start + tokens / 2, -0.32, note, ha="center", va="top", fontsize=6, color=PAPER)
        start += tokens
    ax.set_yticks([])
    ax.set_ylim(-0.6, 0.6)
    label_axes(ax, "training tokens (millions)", "")


def _draw_masks_of_one_layer(ax: Axes, numbers: Numbers) -> None:
    """The visible keys of the KV heads of the first layer with both kinds, side by side, with each head's α."""
    from matplotlib.colors import ListedColormap

    mixed = next((i for i, row in enumerate(numbers["masks"]) if len(set(row)) > 1), 0)
    length = min(4 * numbers["window"], numbers["seq_len"])
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    tiles = []
    for full in numbers["masks"][mixed]:
        visible = (key <= query) & (full | (key > query - numbers["window"]))
        tiles += [np.where(visible, 1 if full else 0, np.nan), np.full((length, 3), np.nan)]
    ax.imshow(
        np.concatenate(tiles[:-1], axis=1), cmap=ListedColormap([WINDOW, FULL]), vmin=0, vmax=1, interpolation="nearest"
    )
    for name, colour in (("full attention", FULL), ("window", WINDOW)):
        ax.fill_between([], [], color=colour, label=name)
    scores = numbers["scores"][mixed]
    centres = [i * (length + 3) + length / 2 for i in range(len(numbers["masks"][mixed]))]
    # A single score for the whole layer is shown under each of its heads.
    scores = scores if len(scores) == len(centres) else scores * len(centres)
    heads = enumerate(zip(scores, numbers["masks"][mixed], strict=True), 1)
    ax.set_xticks(centres, [f"head {i}\n{_score_text(score, full)}" for i, (score, full) in heads], fontsize=6)
    ax.set_yticks([])
    label_axes(ax, f"layer {mixed + 1}: key positions", "query positions")


def _score_text(score: float, full: int) -> str:
    """α of a head, and where its rank among all decided otherwise than the threshold α > 0 would have."""
    text = f"α = {score:.1f}".replace("-", "−")
    if full == (score > 0):
        return text
    return f"{text}\n{'full' if full else 'window'} by rank\n(by α > 0: {'window' if full else 'full'})"


FIGURE_KINDS.add(
    "stages", FigureKind(one_run(stages_of), draw_stages, stages_csv, own_paper=True, settings=PlotSettings)
)
