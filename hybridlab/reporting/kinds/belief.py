"""One row of attention as the node of a factor graph, and one step of belief propagation (SAOBP, figure 1), drawn with
the attention of a trained model: one layer on the first tokens of a sequence, a mean over heads.

The panel has three parts: the attention A before the step; the row j with the factors f_ij through which the other rows
send; the row before the step and after it. metric is a dotted path or a measure that gives the matrix A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridlab.papers.formula import NoValue
from hybridlab.papers.measures import values_of
from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, fixed_size, one_run
from hybridlab.reporting.style import COLOURS
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = 6
"""Rows that are drawn."""
STRENGTH = 0.2
"""λ of the drawing, that of BERT-Mini."""


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """prior and belief: [row][label], of the first tokens alone, whose rows are made to sum up to 1. strength: λ. None
    if the run has no attention map."""
    try:
        weights = values_of(record, plot.metric or "", plot._measures)[:TOKENS, :TOKENS]
    except NoValue:
        return None
    prior = weights / weights.sum(-1, keepdims=True)
    return {"prior": prior.tolist(), "belief": refined(prior, STRENGTH).tolist(), "strength": STRENGTH}


def refined(prior: np.ndarray, strength: float) -> np.ndarray:
    """The beliefs of all rows after one step (Eq. 11 without the row's own message): b_jk ∝ A_jk Π_{i≠j} (1 − c A_ik)
    with c = 1 − exp(−λ). prior: A (L, L)."""
    messages = np.log1p(-(1 - math.exp(-strength)) * prior)
    products = prior * np.exp(messages.sum(0) - messages)
    beliefs: np.ndarray = products / products.sum(-1, keepdims=True)
    return beliefs


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each row and label, both from 1."""
    for i, (before, after) in enumerate(zip(numbers["prior"], numbers["belief"], strict=True)):
        for k, (old, new) in enumerate(zip(before, after, strict=True)):
            yield {"row": i + 1, "label": k + 1, "prior": old, "belief": new}


# ---- drawing ----


def draw(ax: Axes, picture: Picture) -> None:
    prior, belief = (np.array(picture.numbers[name]) for name in ("prior", "belief"))
    row = len(prior) - 1
    ax.set_axis_off()
    _draw_matrix(ax.inset_axes((0.0, 0.12, 0.26, 0.76)), prior, row)
    _draw_graph(ax.inset_axes((0.30, 0.0, 0.36, 1.0)), prior, row, picture.numbers["strength"])
    _draw_row(ax.inset_axes((0.76, 0.16, 0.24, 0.7)), prior[row], belief[row], row)


def _draw_matrix(ax: Axes, prior: np.ndarray, row: int) -> None:
    """A before the step; a frame around the row that receives."""
    ax.imshow(prior, cmap="viridis", vmin=0, interpolation="nearest")
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((-0.5, row - 0.5), len(prior), 1, fill=False, edgecolor=COLOURS[1], linewidth=1.6))
    for set_ticks in (ax.set_xticks, ax.set_yticks):
        set_ticks(range(len(prior)), [str(i + 1) for i in range(len(prior))], fontsize=6)
    ax.set_xlabel("label k", fontsize=7)
    ax.set_ylabel("row i", fontsize=7)
    ax.set_title("attention A", fontsize=7.5)


def _draw_graph(ax: Axes, prior: np.ndarray, row: int, strength: float) -> None:
    """The rows that send, the factor between each of them and row j, and row j. A line is wider where the message takes
    more from a label."""
    ax.set_axis_off()
    ax.set_xlim(-0.15, 1.15)
    ax.set_ylim(-0.12, 1.12)
    senders = [i for i in range(len(prior)) if i != row]
    messages = np.log1p(-(1 - math.exp(-strength)) * prior)
    largest = float(np.abs(messages[senders]).max())
    node: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    for place, i in enumerate(senders):
        y = 1 - place / max(1, len(senders) - 1)
        width = 0.5 + 2.5 * float(np.abs(messages[i]).max()) / largest
        ax.plot([0, 0.5], [y, y], color="0.6", linewidth=0.8, zorder=1)
        ax.plot([0.5, 1], [y, 0.5], color=COLOURS[0], linewidth=width, zorder=1)
        ax.text(0, y, f"$A_{{{i + 1}}}$", bbox={"boxstyle": "circle", "fc": "white", "ec": "0.3"}, **node)
        ax.text(0.5, y, f"$f_{{{i + 1}j}}$", bbox={"boxstyle": "square", "fc": "0.92", "ec": "0.3"}, **node)
    ax.text(1, 0.5, f"$A_{{j={row + 1}}}$", bbox={"boxstyle": "circle", "fc": "white", "ec": COLOURS[1]}, **node)
    ax.set_title(f"messages to row j, λ = {strength:g}", fontsize=7.5)


def _draw_row(ax: Axes, before: np.ndarray, after: np.ndarray, row: int) -> None:
    """The row's weights before and after."""
    places = np.arange(len(before))
    ax.bar(places - 0.2, before, 0.4, color="0.6", label="before")
    ax.bar(places + 0.2, after, 0.4, color=COLOURS[1], label="after")
    ax.set_xticks(places, [str(k + 1) for k in places], fontsize=6)
    ax.tick_params(labelsize=6)
    ax.set_xlabel("label k", fontsize=7)
    ax.set_ylabel("weight", fontsize=7)
    ax.set_title(f"row {row + 1}", fontsize=7.5)
    ax.legend(fontsize=6, frameon=False)


FIGURE_KINDS.add("belief", FigureKind(one_run(numbers_of), draw, csv_lines, size=fixed_size(6.8, 2.6)))
