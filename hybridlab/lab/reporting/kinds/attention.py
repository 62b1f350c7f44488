"""Kinds of figures of attention with what no grid of colours has: the tokens of a text, and messages between rows.

attention maps  whole maps of single heads on one prompt; below, its tokens, of which those that get half of the last
                token's attention are red. A panel for each head of the probe `attention-maps`
contributions   the contribution of each token to the last one in a looped head, by pass: a panel for each run. Each row
                has its own scale, and what changed most against the row above is framed, with the change
belief          one row of attention as the node of a factor graph, and one step of belief propagation (SAOBP, figure
                1), drawn with the attention of a trained model: one layer on the first tokens of a sequence, a mean
                over heads. Its parts: the attention A before the step; the row j with the factors f_ij through which
                the other rows send; the row before the step and after it
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from hybridlab.errors import UserError
from hybridlab.lab.papers.calls import MetricPath
from hybridlab.lab.papers.plots import Labels, PlotSettings
from hybridlab.lab.reporting.figure_kind import WIDTH, FigureKind, Numbers, Picture, fixed_size, one_run, values, whole
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.record import Record
from hybridlab.runs.style import COLOURS, label_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


def _probe_of(record: Record, name: str) -> dict[str, Any] | None:
    """The result of a probe on a run; None if the probe was not run, or was skipped."""
    measured = record.results.probes.get(name) if record.results else None
    return None if measured is None or "skipped" in measured else measured


def _short(token: str, longest: int) -> str:
    """A token as a label of so many characters: spaces and line ends are visible."""
    text = repr(token)[1:-1].replace(" ", "_").replace("$", r"\$")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _colour_bar(image: AxesImage, label: str, shrink: float = 1.0) -> None:
    bar = image.axes.figure.colorbar(image, ax=image.axes, pad=0.01, shrink=shrink)
    bar.set_label(label, fontsize=6)
    bar.ax.tick_params(labelsize=5)


# ---- attention maps ----


class AttentionMaps(Labels):
    """What `plot:` accepts."""

    task: str
    """Its prompt is shown."""


def attention_maps_of(plot: Any, record: Record) -> Numbers | None:
    """tokens: of the prompt. heads: of each its title, weights [query][key], and marked, the places of the tokens that
    get half of the last token's attention. None without a map of the task."""
    measured = _probe_of(record, "attention-maps")
    if measured is None or plot.task not in measured["maps"]:
        return None
    maps, heads = measured["maps"][plot.task], []
    for name, about in measured["heads"].items():
        kind = "as in the paper" if about["kind"] == "chosen" else f"{about['kind']} entropy"
        entropies = dict.fromkeys(f"{about[end]:.2f}" for end in ("lowest", "highest"))
        title = f"{name}, {kind}, {' to '.join(entropies)}"
        heads.append({"title": title, "weights": maps["weights"][name], "marked": maps["marked"][name]})
    return {"tokens": maps["tokens"], "length": maps["length"], "heads": heads}


def attention_maps_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The rows of the last token alone, which decide what is marked."""
    for head in numbers["heads"]:
        for place, (token, value) in enumerate(zip(numbers["tokens"], head["weights"][-1], strict=True)):
            yield {"head": head["title"], "place": place, "token": token, "y": value, "marked": place in head["marked"]}


def draw_attention_maps(ax: Axes, picture: Picture) -> None:
    """Queries from the top down, keys from left to right; the colour is the square root of the attention."""
    from matplotlib.colors import PowerNorm

    numbers = picture.numbers
    image = ax.imshow(numbers["weights"], cmap="Greys", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    names = [_short(token, 7) for token in numbers["tokens"]]
    ax.set_xticks([])
    for place, name in enumerate(names):
        red = place in numbers["marked"]
        style: dict[str, Any] = {"color": COLOURS[1], "fontweight": "bold"} if red else {}
        ax.text(place, len(names), name, rotation=90, ha="center", va="top", fontsize=4.5, **style)
        if red:
            ax.axvline(place, color=COLOURS[1], linewidth=0.5, alpha=0.6)
    ax.set_yticks([0, len(names) - 1], ["first", "last"])
    ax.xaxis.labelpad = 24
    _colour_bar(image, "attention weight", shrink=0.7)


FIGURE_KINDS.add(
    "attention maps",
    FigureKind(
        one_run(attention_maps_of),
        draw_attention_maps,
        attention_maps_csv,
        parts=lambda plot, numbers: numbers["heads"],
        size=fixed_size(3.5, 3.6),
        settings=AttentionMaps,
    ),
)


# ---- contributions ----


class Contributions(Labels):
    """What `plot:` accepts."""

    example: Annotated[int, Field(ge=0)] = 0
    """Index of the text, among those in the run's record."""


def contributions_of(plot: Any, record: Record) -> Numbers | None:
    """tokens: of one example of the probe `contributions`. loops: [pass][token]. layer, head: counted from 0. None for
    a model without head loops."""
    measured = _probe_of(record, "contributions")
    if measured is None or "examples" not in measured:
        return None
    examples = measured["examples"]
    if plot.example >= len(examples):
        raise UserError(
            f"plot.example is {plot.example}, but run {record.hash} has {len(examples)} examples; "
            f"write a number from 0 to {len(examples) - 1}"
        )
    return {key: examples[plot.example][key] for key in ("tokens", "loops", "layer", "head")}


def contributions_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    for loop, row in enumerate(numbers["loops"]):
        for index, (token, value) in enumerate(zip(numbers["tokens"], row, strict=True)):
            yield {"loop": loop, "place": index, "token": token, "y": value}


def draw_contributions(ax: Axes, picture: Picture) -> None:
    """A row for each pass, the first at the top; every row has its own scale, its largest gain and loss are framed."""
    numbers = picture.numbers
    rows = [[value / max(row) for value in row] for row in numbers["loops"]]
    image = ax.imshow(rows, cmap="Greys", aspect="auto", vmin=0, vmax=1)
    for loop in range(1, len(rows)):
        _frame_changes(ax, loop, numbers["loops"][loop - 1], numbers["loops"][loop], rows[loop])
    for name, colour in (("gain", COLOURS[1]), ("loss", COLOURS[0])):
        style: dict[str, Any] = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.4}
        ax.fill_between([], [], label=f"largest {name} against the row above", **style)
    ax.set_xticks(range(len(rows[0])), [_short(token, 8) for token in numbers["tokens"]], rotation=90)
    ax.set_yticks(range(len(rows)), [f"loop {i}" for i in range(len(rows))])
    label_axes(ax, picture.x_label, f"layer {numbers['layer'] + 1}, head {numbers['head'] + 1}")
    _colour_bar(image, "share of the row's\nlargest contribution C")


def _frame_changes(ax: Axes, loop: int, before: list[float], after: list[float], shades: list[float]) -> None:
    """Frames around the largest gain and loss of a row over the row before it, with the change in percent."""
    from matplotlib.patches import Rectangle

    change = [b - a for a, b in zip(before, after, strict=True)]
    gain, loss = (pick(range(len(change)), key=change.__getitem__) for pick in (max, min))
    framed = [(gain, COLOURS[1])] * (change[gain] > 0) + [(loss, COLOURS[0])] * (change[loss] < 0)
    for column, colour in framed:
        frame: dict[str, Any] = {"fill": False, "edgecolor": colour, "linewidth": 1.4}
        ax.add_patch(Rectangle((column - 0.46, loop - 0.46), 0.92, 0.92, **frame))
        if before[column]:
            ink = "white" if shades[column] > 0.6 else "black"
            text = f"{100 * (after[column] / before[column] - 1):+.0f} %".replace("-", "−")
            ax.text(column, loop, text, fontsize=5, ha="center", va="center", rotation=90, color=ink)


FIGURE_KINDS.add(
    "contributions",
    FigureKind(
        one_run(contributions_of),
        draw_contributions,
        contributions_csv,
        parts=whole,
        size=fixed_size(2 * WIDTH, 2.2),
        settings=Contributions,
    ),
)


# ---- belief ----


TOKENS = 6
"""Rows that are drawn."""
STRENGTH = 0.2
"""λ of the drawing, that of BERT-Mini."""


class Belief(PlotSettings):
    """What `plot:` accepts."""

    metric: MetricPath
    """A matrix: the attention of a layer."""


def belief_of(plot: Any, record: Record) -> Numbers | None:
    """prior and belief: [row][label], of the first tokens alone, whose rows are made to sum up to 1. strength: λ. None
    if the run has no attention map."""
    matrix = values(plot, record, plot.metric, "a matrix", 2)
    if matrix is None:
        return None
    weights = matrix[:TOKENS, :TOKENS]
    prior = weights / weights.sum(-1, keepdims=True)
    return {"prior": prior.tolist(), "belief": refined(prior, STRENGTH).tolist(), "strength": STRENGTH}


def refined(prior: np.ndarray, strength: float) -> np.ndarray:
    """The beliefs of all rows after one step (Eq. 11 without the row's own message): b_jk ∝ A_jk Π_{i≠j} (1 − c A_ik)
    with c = 1 − exp(−λ). prior: A (L, L)."""
    messages = np.log1p(-(1 - math.exp(-strength)) * prior)
    products = prior * np.exp(messages.sum(0) - messages)
    beliefs: np.ndarray = products / products.sum(-1, keepdims=True)
    return beliefs


def belief_csv(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A line for each row and label, both from 1."""
    for i, (before, after) in enumerate(zip(numbers["prior"], numbers["belief"], strict=True)):
        for k, (old, new) in enumerate(zip(before, after, strict=True)):
            yield {"row": i + 1, "label": k + 1, "prior": old, "belief": new}


def draw_belief(ax: Axes, picture: Picture) -> None:
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
    circle = {"boxstyle": "circle", "fc": "white"}
    for place, i in enumerate(senders):
        y = 1 - place / max(1, len(senders) - 1)
        width = 0.5 + 2.5 * float(np.abs(messages[i]).max()) / largest
        ax.plot([0, 0.5], [y, y], color="0.6", linewidth=0.8, zorder=1)
        ax.plot([0.5, 1], [y, 0.5], color=COLOURS[0], linewidth=width, zorder=1)
        ax.text(0, y, f"$A_{{{i + 1}}}$", bbox=circle | {"ec": "0.3"}, color="black", **node)
        ax.text(0.5, y, f"$f_{{{i + 1}j}}$", bbox={"boxstyle": "square", "fc": "0.92", "ec": "0.3"}, **node)
    ax.text(1, 0.5, f"$A_{{j={row + 1}}}$", bbox=circle | {"ec": COLOURS[1]}, color="black", **node)
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


FIGURE_KINDS.add(
    "belief", FigureKind(one_run(belief_of), draw_belief, belief_csv, size=fixed_size(6.8, 2.6), settings=Belief)
)
