"""Whole attention maps of single heads on one prompt: the tokens that get half of the last token's attention are red.

metric: the task whose prompt is shown. A panel for each head of the probe `attention-maps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, Numbers, Picture, one_run
from hybridlab.reporting.readings import probe_of
from hybridlab.reporting.style import COLOURS, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RED = COLOURS[1]
_LONGEST = 7


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """tokens: of the prompt. heads: of each its title, weights [query][key], and marked, the places of the tokens that
    get half of the last token's attention. None without a map of the task."""
    measured = probe_of(record, "attention-maps")
    if measured is None or plot.metric not in measured["maps"]:
        return None
    shown = measured["maps"][plot.metric]
    heads = [
        {
            "title": f"{name}, {_kind(about['kind'])}, {_range(about)}",
            "weights": shown["weights"][name],
            "marked": shown["marked"][name],
        }
        for name, about in measured["heads"].items()
    ]
    return {"tokens": shown["tokens"], "length": shown["length"], "heads": heads}


def _kind(kind: str) -> str:
    return "as in the paper" if kind == "chosen" else f"{kind} entropy"


def _range(about: dict[str, Any]) -> str:
    low, high = (f"{about[name]:.2f}" for name in ("lowest", "highest"))
    return low if low == high else f"{low} to {high}"


def parts(plot: Plot, numbers: Numbers) -> list[Numbers]:
    return numbers["heads"]


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    """The rows of the last token alone, which decide what is marked."""
    for head in numbers["heads"]:
        for place, (token, value) in enumerate(zip(numbers["tokens"], head["weights"][-1], strict=True)):
            yield {"head": head["title"], "place": place, "token": token, "y": value, "marked": place in head["marked"]}


def size(pictures: Sequence[Picture]) -> tuple[float, float]:
    return 3.5, 3.6


def draw(ax: Axes, picture: Picture) -> None:
    """Queries from the top down, keys from left to right; the colour is the square root of the attention."""
    from matplotlib.colors import PowerNorm

    numbers = picture.numbers
    image = ax.imshow(numbers["weights"], cmap="Greys", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    names = [_short(token) for token in numbers["tokens"]]
    ax.set_xticks([])
    for place, name in enumerate(names):
        red = place in numbers["marked"]
        style: dict[str, Any] = {"color": _RED, "fontweight": "bold"} if red else {}
        ax.text(place, len(names), name, rotation=90, ha="center", va="top", fontsize=4.5, **style)
        if red:
            ax.axvline(place, color=_RED, linewidth=0.5, alpha=0.6)
    ax.set_yticks([0, len(names) - 1], ["first", "last"])
    label_axes(ax, picture.x_label, picture.y_label)
    ax.xaxis.labelpad = 24
    bar = ax.figure.colorbar(image, ax=ax, pad=0.01, shrink=0.7)
    bar.set_label("attention weight", fontsize=6)
    bar.ax.tick_params(labelsize=5)


def _short(token: str) -> str:
    """A token as a label: spaces and line ends are visible."""
    shown = repr(token)[1:-1].replace(" ", "_").replace("$", r"\$")
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


FIGURE_KINDS.add("attention maps", FigureKind(one_run(numbers_of), draw, csv_lines, parts=parts, size=size))
