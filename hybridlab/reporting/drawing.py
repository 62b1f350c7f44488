"""A figure drawn from its data: panels, the paper's values in grey, legends outside the curves, the same axes where
panels are compared."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import PAGE, FigureKind, Picture
from hybridlab.reporting.style import PAPER, at_least

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX*"


def draw(data: dict[str, Any], plot: Plot) -> Figure:
    """A matplotlib figure of the data; panels without any numbers are left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    pictures = [picture for panel in data["panels"] for picture in _pictures(panel, plot, kind)]
    labels = list(dict.fromkeys(label for picture in pictures for label, _ in picture.series))
    pictures = [replace(picture, labels=labels) for picture in pictures]
    width, height = kind.size(pictures)
    columns = min(len(pictures), max(1, int(PAGE // width)))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(width * columns + 0.4, height * rows), layout="constrained")
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for ax, picture in zip(axes, pictures, strict=False):
        kind.draw(ax, picture)
        if not kind.own_paper:
            draw_paper(ax, picture.paper)
        ax.set_title(picture.title, fontsize=9)
        ax.tick_params(labelsize=7)
    for ax in axes[len(pictures) :]:
        ax.set_axis_off()
    shown = axes[: len(pictures)]
    if kind.shared:
        share_axes(shown)
        for ax, picture in zip(shown, pictures, strict=True):
            ax.set_ylim(at_least(ax.get_ylim(), picture.value_range))
    for ax in shown:
        ax.set_ylabel("\n".join(textwrap.wrap(ax.get_ylabel(), max(12, int(13 * height) - 5))))
        name_power(ax)
    if kind.legend is not None:
        kind.legend(figure, shown, rows)
    else:
        place_legend(figure, shown)
    # A picture that is shown without its page says what it is, and whose models these are.
    about = [f"{data['id']}: {data['title']}", data.get("shown", "")] if "id" in data else [data.get("shown", "")]
    lines = [line for text in about for line in textwrap.wrap(text, int(20 * figure.get_figwidth()))]
    if lines:
        figure.set_figheight(figure.get_figheight() + 0.14 * len(lines))
        figure.suptitle("\n".join(lines), fontsize=6.5, color="0.35")
    return figure


def _pictures(panel: dict[str, Any], plot: Plot, kind: FigureKind) -> Iterator[Picture]:
    """The panel as one picture or, if the kind has parts, a picture for each part of each series."""
    series = [(entry["label"], entry["data"]) for entry in panel["series"] if entry["data"]]
    named = {key: panel[key] for key in ("x_label", "y_label", "value_range", "paper")}
    whole = Picture(panel["title"], series, panel["targets"], **named)
    if kind.parts is None:
        yield from [whole] if series or (panel["paper"] and not panel["series"]) else []
        return
    for label, numbers in series:
        for part in kind.parts(plot, numbers):
            title = ", ".join(filter(None, (panel["title"], label, part.get("title"))))
            yield replace(whole, title=title, series=[(label, {**numbers, **part})])


# ---- the paper's values ----


def draw_paper(ax: Axes, marks: Sequence[dict[str, Any]]) -> None:
    """The values that the paper prints, in grey, with its name in the legend."""
    for i, mark in enumerate(marks):
        label, x, y = f"paper: {mark['label']}", _scaled(ax, mark), mark["y"]
        if x and y:
            style: dict[str, Any] = {"marker": _MARKERS[i % len(_MARKERS)], "markersize": 5, "markerfacecolor": "none"}
            style |= {"linestyle": ":" if mark["of"] is None else "none", "linewidth": 0.8, "zorder": 4}
            ax.plot(x, y, color=PAPER, label=label, **style)
        elif mark["band"]:
            low, high = x or y
            (ax.axvspan if x else ax.axhspan)(low, high, color=PAPER, alpha=0.18, linewidth=0, label=label, zorder=0)
        else:
            for j, at in enumerate(x or y):
                line: dict[str, Any] = {"color": PAPER, "linewidth": 0.9, "linestyle": (0, (4, 2)), "zorder": 1}
                (ax.axvline if x else ax.axhline)(at, label=label if j == 0 else None, **line)


def _scaled(ax: Axes, mark: dict[str, Any]) -> list[float]:
    """The x of a mark, at the same share of the run's axis if it says how long the paper's own is."""
    if mark["of"] is None:
        return list(mark["x"])
    if ax.images:
        # Layers, counted from 1: the middle of each.
        first, last = ax.get_xlim()
        return [first + (x - 0.5) / mark["of"] * (last - first) for x in mark["x"]]
    import numpy as np

    drawn = [np.asarray(line.get_xdata(), dtype=float) for line in ax.lines]
    last = max((float(xs.max()) for xs in drawn if len(xs) > 2), default=ax.get_xlim()[1])
    return [x / mark["of"] * last for x in mark["x"]]


# ---- axes and legends ----


def share_axes(axes: Sequence[Axes]) -> None:
    """The same limits for all panels with the same label, along x and along y."""
    for label_of, limits_of, limit in (
        ("get_xlabel", "get_xlim", "set_xlim"),
        ("get_ylabel", "get_ylim", "set_ylim"),
    ):
        groups: dict[str, list[Axes]] = {}
        for ax in axes:
            groups.setdefault(getattr(ax, label_of)(), []).append(ax)
        for group in groups.values():
            lows, highs = zip(*(getattr(ax, limits_of)() for ax in group), strict=True)
            # A little more room, since what is at the edge of one panel was not at the edge of all; values that are
            # written above and below points need more.
            share = 0.1 if limit == "set_ylim" and any(ax.texts for ax in group) else 0.03
            for ax in group:
                getattr(ax, limit)(*_widened(ax, limit, min(lows), max(highs), share if len(group) > 1 else 0.0))


def _widened(ax: Axes, limit: str, low: float, high: float, share: float) -> tuple[float, float]:
    """Limits with more room at both ends, a share of the axis as it is drawn."""
    scale = (ax.yaxis if limit == "set_ylim" else ax.xaxis).get_transform()
    first, last = (float(at) for at in scale.transform([low, high]))
    room = share * (last - first)
    low, high = (float(at) for at in scale.inverted().transform([first - room, last + room]))
    return low, high


def name_power(ax: Axes) -> None:
    """Large numbers along x in millions and the like, with the power of ten in the axis label."""
    from matplotlib.ticker import FuncFormatter

    power = 3 * (math.floor(math.log10(max(map(abs, ax.get_xlim())))) // 3)
    if power >= 6 and ax.get_xscale() == "linear":
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 10**power:g}"))
        ax.set_xlabel(f"{ax.get_xlabel()}, {power_text(power)}")


def power_text(exponent: int) -> str:
    """A power of ten: 10¹²."""
    return f"10{str(exponent).translate(str.maketrans('0123456789-', '⁰¹²³⁴⁵⁶⁷⁸⁹⁻'))}"


MOST_NAMED = 40
"""The most names that a legend has room for; with more there is no legend."""


def place_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, with every name once, since it looks the same in all; the figure becomes higher."""
    named = {
        name: handle
        for ax in axes
        if ax.get_legend() is None
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if named and len(named) <= MOST_NAMED:
        room = int(17 * figure.get_figwidth())
        columns = max(1, min(len(named), room // (max(map(len, named)) + 7)))
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
        figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(named) // columns))
        figure.legend(named.values(), named.keys(), fontsize=7, frameon=False, **place)
