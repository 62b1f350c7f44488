"""The pictures of SGT's figures: entropies over training, the growth, and where a looped head looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridlab.reporting.style import COLOURS, STYLES, label_axes
from hybridlab.reproduction.experiment import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMED = 8
"""Lines that a legend can hold; more are drawn without names."""


def _many_lines(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    (series,) = panel["series"]
    numbers = series["data"]
    lines = list(numbers["lines"].items())
    for i, (name, values) in enumerate(lines):
        ax.plot(numbers["x"], values, **_style(i, len(lines), plot, name), label=name)
    for step in numbers.get("marks", []):
        ax.axvline(step, color="0.6", linewidth=0.7, linestyle=(0, (1, 2)))
    variance = panel["title"].startswith("variance")
    label_axes(ax, plot.x_label, "variance of entropy" if variance else plot.y_label)
    if len(lines) <= _MOST_NAMED and not (panel["shared_legend"] and not variance):
        ax.legend(fontsize=5.5 if len(lines) > 4 else 6.5, frameon=False, ncols=2 if len(lines) > 4 else 1)


def _style(index: int, count: int, plot: Plot, name: str) -> dict[str, Any]:
    """Ordered lines (layers, readings) run from dark to light; heads have no order and take the palette."""
    if name.startswith("head"):
        return {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": STYLES[index // len(COLOURS) % 4],
            "linewidth": 0.9,
        }
    import matplotlib

    marker = "o" if plot.kind == "layer entropy" else None
    colour = matplotlib.colormaps["viridis"](0.9 * index / max(1, count - 1))
    return {"color": colour, "linestyle": STYLES[index % 4], "linewidth": 1.2, "marker": marker, "markersize": 3}


def _growth(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    """A bar for each time that a layer loops: as high as the share of its heads that run, with its passes."""
    (series,) = panel["series"]
    numbers = series["data"]
    for layer in range(1, numbers["layers"] + 1):
        ax.axhline(layer - 0.4, color="0.9", linewidth=0.6, zorder=0)
    for segment in numbers["segments"]:
        length = segment["until"] - segment["since"]
        whole = segment["running"] > segment["kept"]
        height = 0.8 * segment["running"] / numbers["heads"]
        colour = COLOURS[5] if whole else COLOURS[segment["passes"] - 1]
        style = {"color": colour, "hatch": "///" if whole else None, "edgecolor": "white", "linewidth": 0}
        ax.barh(segment["layer"] - 0.4, length, left=segment["since"], height=height, align="edge", **style)
        if length > 0.06 * numbers["steps"]:
            text = f"{segment['passes']} ×"
            ax.text(segment["since"] + length / 2, segment["layer"] - 0.35 + height, text, fontsize=6, ha="center")
    ax.set_xlim(0, numbers["steps"])
    ax.set_ylim(0.4, numbers["layers"] + 0.8)
    ax.set_yticks(range(1, numbers["layers"] + 1))
    label_axes(ax, plot.x_label, plot.y_label)
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=COLOURS[5], hatch="///", edgecolor="white", label="all heads, those not kept fading")]
    for passes in sorted({s["passes"] for s in numbers["segments"] if s["running"] == s["kept"]}):
        name = f"kept heads, {passes} extra pass{'es' * (passes > 1)}"
        handles.append(Patch(facecolor=COLOURS[passes - 1], label=name))
    ax.legend(handles=handles, fontsize=6, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


def _contributions(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    """A row for each pass, the first at the top; every row on its own scale, its largest gain and loss framed."""
    from matplotlib.patches import Rectangle

    (series,) = panel["series"]
    numbers = series["data"]
    rows = [[value / max(row) for value in row] for row in numbers["loops"]]
    image = ax.imshow(rows, cmap="Greys", aspect="auto", vmin=0, vmax=1)
    for loop in range(1, len(rows)):
        change = [b - a for a, b in zip(numbers["loops"][loop - 1], numbers["loops"][loop], strict=True)]
        gain, loss = (pick(range(len(change)), key=change.__getitem__) for pick in (max, min))
        framed = [(gain, COLOURS[1])] * (change[gain] > 0) + [(loss, COLOURS[0])] * (change[loss] < 0)
        for place, colour in framed:
            frame = {"fill": False, "edgecolor": colour, "linewidth": 1.4}
            ax.add_patch(Rectangle((place - 0.46, loop - 0.46), 0.92, 0.92, **frame))
            before, after = numbers["loops"][loop - 1][place], numbers["loops"][loop][place]
            if before:
                shown = "white" if rows[loop][place] > 0.6 else colour
                text = f"{100 * (after / before - 1):+.0f}%"
                ax.text(place, loop, text, fontsize=5, ha="center", va="center", rotation=90, color=shown)
    ax.set_xticks(range(len(rows[0])), [_short(token) for token in numbers["tokens"]], rotation=90)
    ax.set_yticks(range(len(rows)), [f"loop {i}" for i in range(len(rows))])
    label_axes(ax, plot.x_label, f"layer {numbers['layer'] + 1}, head {numbers['head'] + 1}")
    bar = ax.figure.colorbar(image, ax=ax, pad=0.01)
    bar.set_label("share of the\nrow's largest C", fontsize=6)
    bar.ax.tick_params(labelsize=5)


def _short(token: str) -> str:
    """A token as it can stand under an axis: spaces and line ends visible, eight letters at most."""
    shown = repr(token)[1:-1].replace(" ", "_")
    return shown if len(shown) <= 8 else shown[:7] + "…"


DRAWN = {
    "head entropies": _many_lines,
    "entropy variance": _many_lines,
    "layer entropy": _many_lines,
    "growth": _growth,
    "contributions": _contributions,
}
