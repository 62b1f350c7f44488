"""Kinds of figures of learned masks: which layers and heads keep full attention, and what decided it.

head masks    the KV heads with full attention: a grid of layers and heads for each run
layer masks   the layers with full attention: a row of layers for each run, in which all heads of a layer are the same
window share  the share of window heads in each layer, and its moving average: two lines for each run
scores        the learned score of each layer, the mean over its heads if each has one: a line for each run
stages        the tokens of each stage of training as bars; for a run with learned masks, the keys that these leave seen
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridlab.papers.experiment import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import (
    WIDTH,
    FigureKind,
    Numbers,
    Picture,
    moving_average,
    one_run,
    series_lines,
    whole,
)
from hybridlab.reporting.seeds import merge_lines
from hybridlab.reporting.style import COLOURS, PAPER, cycled, draw_band, draw_series, label_axes, numbered
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure


def masks_of(record: Record) -> list[list[int]] | None:
    """The masks that a run's controller learned, [layer][KV head], 1 = full; None if it learned none."""
    return record.controller.get("masks")


FULL, WINDOW = "#D55E00", "#56B4E9"


def two_colours() -> ListedColormap:
    """The colours of 0, a window, and 1, full attention."""
    from matplotlib.colors import ListedColormap

    return ListedColormap([WINDOW, FULL])


def draw_lettered(ax: Axes, grid: list[list[int]], fontsize: int) -> None:
    """A cell for each value with its letter: F full attention, w a window."""
    ax.imshow(grid, cmap=two_colours(), vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            ax.text(j, i, "F" if value else "w", ha="center", va="center", fontsize=fontsize)


def name_colours(figure: Figure, axes: Sequence[Axes], rows: int) -> None:
    """One legend for all panels, below them, with what else is named in them."""
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(facecolor=FULL, label="full attention"), Patch(facecolor=WINDOW, label="window")]
    named = {name: handle for ax in axes for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    handles += named.values()
    figure.legend(handles=handles, fontsize=7, frameon=False, ncols=len(handles), loc="outside lower center")


def mask_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line of figure.csv for each KV head of `masks`."""
    for layer, row in enumerate(numbers["masks"]):
        for head, value in enumerate(row):
            yield {"layer": layer + 1, "kv_head": head + 1, "full": value}


# ---- head masks ----


def head_masks_of(plot: Plot, record: Record) -> Numbers | None:
    """masks: [layer][KV head], 1 = full."""
    masks = masks_of(record)
    return None if masks is None else {"masks": masks}


def draw_head_masks(ax: Axes, picture: Picture) -> None:
    masks = picture.numbers["masks"]
    grid = [[row[head] for row in masks] for head in range(len(masks[0]))]
    draw_lettered(ax, grid, fontsize=6)
    ax.set_xticks(range(len(masks)), numbered(len(masks)))
    ax.set_yticks(range(len(grid)), numbered(len(grid)))
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "head masks", FigureKind(one_run(head_masks_of), draw_head_masks, mask_lines, parts=whole, legend=name_colours)
)


# ---- layer masks ----


def draw_layer_masks(ax: Axes, picture: Picture) -> None:
    grid = [[row[0] for row in numbers["masks"]] for _, numbers in picture.series]
    draw_lettered(ax, grid, fontsize=7)
    ax.set_yticks(range(len(grid)), [label for label, _ in picture.series])
    ax.set_xticks(range(len(grid[0])), numbered(len(grid[0])))
    label_axes(ax, picture.x_label, picture.y_label)


def layer_masks_size(pictures: Sequence[Picture]) -> tuple[float, float]:
    """Inches of a panel; the height grows with the number of rows."""
    return WIDTH, 1.3 + 0.3 * max(len(picture.series) for picture in pictures)


FIGURE_KINDS.add(
    "layer masks",
    FigureKind(one_run(head_masks_of), draw_layer_masks, mask_lines, size=layer_masks_size, legend=name_colours),
)


# ---- window share ----


SMOOTHING = 3
"""Layers in the moving average; ConSA's paper does not state its width."""


def window_share_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. y: shares. smooth: their moving average."""
    masks = masks_of(record)
    if masks is None:
        return None
    shares = [row.count(0) / len(row) for row in masks]
    layers = [layer + 1 for layer in range(len(shares))]
    return {"x": layers, "y": shares, "smooth": moving_average(shares, SMOOTHING)}


def merge_window_share(by_seed: Mapping[int, Numbers]) -> Numbers:
    """Means over seeds; the band is that of the moving average."""
    return merge_lines(by_seed, keys=("smooth", "y"))


def draw_window_share(ax: Axes, picture: Picture) -> None:
    for label, numbers in picture.series:
        i = picture.place(label)
        colour = cycled(i)["color"]
        ax.plot(numbers["x"], numbers["y"], color=colour, alpha=0.45, linewidth=1, marker=".", markersize=3)
        ax.plot(numbers["x"], numbers["smooth"], linewidth=1.8, label=label, **cycled(i))
        draw_band(ax, numbers["x"], numbers.get("low"), numbers.get("high"), colour)
    name = f"each layer (thick lines: mean of {SMOOTHING} layers)"
    ax.plot([], [], color=PAPER, linewidth=1, marker=".", markersize=3, label=name)
    ax.set_ylim(-0.03, 1.03)
    label_axes(ax, picture.x_label, picture.y_label)


FIGURE_KINDS.add(
    "window share",
    FigureKind(one_run(window_share_of), draw_window_share, series_lines, merge=merge_window_share, shared=True),
)


# ---- scores ----


def scores_of(plot: Plot, record: Record) -> Numbers | None:
    """x: layers. y: scores."""
    scores = record.controller.get("scores")
    if scores is None:
        return None
    return {"x": [layer + 1 for layer in range(len(scores))], "y": [sum(row) / len(row) for row in scores]}


FIGURE_KINDS.add(
    "scores",
    FigureKind(one_run(scores_of), partial(draw_series, marker="o"), series_lines, merge=merge_lines, shared=True),
)


# ---- stages ----


def stages_of(plot: Plot, record: Record) -> Numbers:
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
        yield from mask_lines(numbers)
    yield {"tokens": numbers["tokens"], "steps": numbers["steps"]}


def draw_stages(ax: Axes, picture: Picture) -> None:
    """A single run with learned masks: the masks of one of its layers. Otherwise the stages one after another."""
    if len(picture.series) == 1 and "scores" in picture.numbers:
        _draw_masks_of_one_layer(ax, picture.numbers)
        return
    start = 0.0
    for i, (label, numbers) in enumerate(picture.series):
        tokens = numbers["tokens"] / 1e6
        ax.barh(0, tokens, left=start, height=0.5, color=COLOURS[i], edgecolor="white")
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
    import numpy as np

    mixed = next((i for i, row in enumerate(numbers["masks"]) if len(set(row)) > 1), 0)
    length = min(4 * numbers["window"], numbers["seq_len"])
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    tiles = []
    for full in numbers["masks"][mixed]:
        seen = (key <= query) & (full | (key > query - numbers["window"]))
        tiles += [np.where(seen, 1 if full else 0, np.nan), np.full((length, 3), np.nan)]
    ax.imshow(np.concatenate(tiles[:-1], axis=1), cmap=two_colours(), vmin=0, vmax=1, interpolation="nearest")
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


FIGURE_KINDS.add("stages", FigureKind(one_run(stages_of), draw_stages, stages_csv, legend=name_colours, own_paper=True))
