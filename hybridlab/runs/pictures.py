"""Curves of runs over training, as a picture and in the terminal."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hybridlab.files import ENDINGS, write_bytes
from hybridlab.runs.curves import AXES, LABELS, Curve
from hybridlab.runs.style import COLOURS, cycled, label_axes, plain_ticks, saved, small_png, tick_texts
from hybridlab.statistics import moving_average

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IN_UNITS = ("tokens", "flops")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_POINTS_PER_WIDTH = 40


def smoothing(curve: Curve, points: int | None) -> int:
    """The number of logged points in a mean: as asked, or a fortieth of the curve's."""
    return points or max(1, len(curve.y) // _POINTS_PER_WIDTH)


def draw_picture(curves: list[Curve], x: str, metric: str, smooth: int | None, path: Path) -> None:
    """Write a picture: smoothed lines over the logged points in light colour; validation losses as dots."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    ax = figure.subplots()
    for i, curve in enumerate(curves):
        style: dict[str, Any] = cycled(i)
        width = smoothing(curve, smooth)
        if width > 1:
            ax.plot(curve.x, curve.y, color=style["color"], linewidth=0.7, alpha=0.3)
        name = f"{curve.label}, training" if curve.validation else curve.label
        ax.plot(curve.x, moving_average(curve.y, width), label=name, linewidth=1.4, **style)
        if curve.validation:
            dots: dict[str, Any] = {"color": style["color"], "marker": "o", "markersize": 4, "linestyle": "none"}
            ax.plot(curve.validation_x, curve.validation, label=f"{curve.label}, validation", **dots)
    label_axes(ax, AXES[x], _value_label(curves, metric))
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=x != "seconds"))
    places = FuncFormatter(lambda value, _: tick_texts(ax.get_xticks().tolist(), x in _IN_UNITS, [value])[0])
    ax.xaxis.set_major_formatter(places)
    _save(figure, path)


def draw_costs(measured: dict[str, Any], path: Path) -> None:
    """Write a picture of `hybridlab bench --over`: time and memory of a training step of each model, over the values.

    measured: as the command prints it as JSON.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    time, memory = figure.subplots(1, 2)
    points = measured["points"]
    values = [point["value"] for point in points]
    for i, name in enumerate(points[0]["speeds"]):
        style: dict[str, Any] = cycled(i) | {"marker": "o", "markersize": 4, "linewidth": 1.3, "label": name}
        seconds = [point["speeds"][name]["step"]["seconds"] for point in points]
        time.plot(values, [median(times) for times in seconds], **style)
        least, most = ([choose(times) for times in seconds] for choose in (min, max))
        time.fill_between(values, least, most, color=style["color"], alpha=0.2)
        if points[0]["gigabytes"][name] is not None:
            memory.plot(values, [point["gigabytes"][name] for point in points], **style)
    label = {"batch": "sequences in a step", "seq-len": "tokens in a sequence"}.get(measured["over"], measured["over"])
    for ax, title in ((time, "time of a step (s)"), (memory, "peak memory of a step (GB)")):
        label_axes(ax, label, title)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(values, [f"{value:,}" for value in values])
        ax.minorticks_off()
        plain_ticks(ax.yaxis)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Write a figure, with a grid on its axes and a legend on the first of them."""
    for ax in figure.axes:
        ax.tick_params(labelsize=8)
        ax.grid(color="0.9", linewidth=0.6)
    figure.axes[0].legend(fontsize=8, frameon=False)
    ending = path.suffix.lower()
    write_bytes(path, saved(figure, format=ending[1:]) if ending in ENDINGS["picture"][1:] else small_png(figure))


def terminal_picture(
    curves: list[Curve], x: str, metric: str, smooth: int | None, width: int, height: int, colour: bool
) -> str:
    """The curves as lines of text of this width and height.

    colour: lines of dots in the colours of the pictures; otherwise each curve is drawn with the letter of `key`, its
    validation losses with the capital letter.
    """
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    for i, curve in enumerate(curves):
        lines, dots = _markers(i, colour)
        figure.draw(figure.signal(curve.x, moving_average(curve.y, smoothing(curve, smooth)), marker=lines).lines(True))
        if curve.validation:
            figure.draw(figure.signal(curve.validation_x, curve.validation, marker=dots))
    places = [at for curve in curves for at in (curve.x[0], curve.x[-1])]
    values = [value for curve in curves for value in (*curve.y, *curve.validation)]
    for axis, side, numbers, units in (("x", "lower", places, x in _IN_UNITS), ("y", "left", values, False)):
        ticks = _ticks(min(numbers), max(numbers), integer=axis == "x" and x != "seconds")
        figure.ruler(axis, side).ticks(ticks, tick_texts(ticks, units))
        if min(numbers) < max(numbers):  # else a curve of one point is left out
            figure.ruler(axis, side).lim(min(numbers), max(numbers))
    figure.title(_value_label(curves, metric))
    figure.label(AXES[x], "x")
    drawn = figure.build().string()
    figure.clear()
    return drawn if colour else plotext.uncolorize(drawn)


def _ticks(first: float, last: float, integer: bool) -> list[float]:
    """Round numbers, or whole ones, from `first` to `last`; `first` alone if there are none."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(5, integer=integer).tick_values(first, last)
    return [float(at) for at in places if first <= at <= last] or [first]


def _value_label(curves: list[Curve], metric: str) -> str:
    return "loss (nats/token)" if any(curve.validation for curve in curves) else LABELS.get(metric, metric)


def _markers(index: int, colour: bool) -> tuple[Any, Any]:
    """What draws a curve, and what its validation losses."""
    import plotext

    if not colour:
        return key(index), key(index).upper()
    shade = rgb(index)
    return plotext.marker("braille", shade), plotext.marker("●", shade)


def key(index: int) -> str:
    """The letter of a curve."""
    return _LETTERS[index % len(_LETTERS)]


def rgb(index: int) -> tuple[int, int, int]:
    """The colour of a curve, from 0 to 255. Black, which a dark terminal hides, is grey."""
    code = COLOURS[index % len(COLOURS)].lstrip("#")
    red, green, blue = (int(code[i : i + 2], 16) for i in (0, 2, 4))
    return (red, green, blue) if code != "000000" else (128, 128, 128)
