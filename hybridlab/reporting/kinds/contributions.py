"""The contribution of each token to the last one in a looped head, by pass: a panel for each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybridlab.errors import UserError
from hybridlab.papers.plot import Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import WIDTH, FigureKind, Numbers, Picture, fixed_size, one_run, whole
from hybridlab.reporting.readings import probe_of
from hybridlab.reporting.style import COLOURS, label_axes
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbers_of(plot: Plot, record: Record) -> Numbers | None:
    """tokens: of one example of the probe `contributions`. loops: [pass][token]. layer, head: counted from 0. None for
    a model without head loops."""
    measured = probe_of(record, "contributions")
    if measured is None or "examples" not in measured:
        return None
    examples = measured["examples"]
    if plot.example >= len(examples):
        raise UserError(
            f"plot.example is {plot.example}, but run {record.hash} has {len(examples)} examples; "
            f"write a number from 0 to {len(examples) - 1}"
        )
    return {key: examples[plot.example][key] for key in ("tokens", "loops", "layer", "head")}


def csv_lines(numbers: Numbers) -> Iterator[dict[str, Any]]:
    for loop, values in enumerate(numbers["loops"]):
        for index, (token, value) in enumerate(zip(numbers["tokens"], values, strict=True)):
            yield {"loop": loop, "place": index, "token": token, "y": value}


def draw(ax: Axes, picture: Picture) -> None:
    """A row for each pass, the first at the top; every row has its own scale, its largest gain and loss are framed."""
    numbers = picture.numbers
    rows = [[value / max(row) for value in row] for row in numbers["loops"]]
    image = ax.imshow(rows, cmap="Greys", aspect="auto", vmin=0, vmax=1)
    for loop in range(1, len(rows)):
        _frame_changes(ax, loop, numbers["loops"][loop - 1], numbers["loops"][loop], rows[loop])
    for name, colour in (("gain", COLOURS[1]), ("loss", COLOURS[0])):
        style: dict[str, Any] = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.4}
        ax.fill_between([], [], label=f"largest {name} against the row above", **style)
    ax.set_xticks(range(len(rows[0])), [_short(token) for token in numbers["tokens"]], rotation=90)
    ax.set_yticks(range(len(rows)), [f"loop {i}" for i in range(len(rows))])
    label_axes(ax, picture.x_label, f"layer {numbers['layer'] + 1}, head {numbers['head'] + 1}")
    bar = ax.figure.colorbar(image, ax=ax, pad=0.01)
    bar.set_label("share of the row's\nlargest contribution C", fontsize=6)
    bar.ax.tick_params(labelsize=5)


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


def _short(token: str) -> str:
    """A token as a label: spaces and line ends are visible, at most eight characters."""
    shown = repr(token)[1:-1].replace(" ", "_")
    return shown if len(shown) <= 8 else shown[:7] + "…"


FIGURE_KINDS.add(
    "contributions",
    FigureKind(one_run(numbers_of), draw, csv_lines, parts=whole, size=fixed_size(2 * WIDTH, 2.2)),
)
