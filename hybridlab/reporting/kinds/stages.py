"""A drawing of the training of learned masks, from the runs themselves.

stages  the tokens of each stage of training as bars, one after another; for a single run with learned masks, the keys
        that the masks of one layer leave seen. The bars and the pattern are computed from settings and totals of runs,
        of which a record has no list
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.papers.plots import PlotSettings
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run
from hybridlab.reporting.style import COLOURS, PAPER, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    from matplotlib.colors import ListedColormap

    mixed = next((i for i, row in enumerate(numbers["masks"]) if len(set(row)) > 1), 0)
    length = min(4 * numbers["window"], numbers["seq_len"])
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    tiles = []
    for full in numbers["masks"][mixed]:
        seen = (key <= query) & (full | (key > query - numbers["window"]))
        tiles += [np.where(seen, 1 if full else 0, np.nan), np.full((length, 3), np.nan)]
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
