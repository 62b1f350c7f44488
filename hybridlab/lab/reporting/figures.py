"""Figures from records: as data, the plotted numbers as lines, and drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlab.errors import UserError
from hybridlab.files import rounded_floats
from hybridlab.lab.papers.cell_spec import CELL
from hybridlab.lab.papers.cells import Records, benchmark_record, records_of
from hybridlab.lab.papers.definition import power_text
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.plans import history
from hybridlab.lab.papers.plots import Panel, Plot, Series, plot_of, settings_of
from hybridlab.lab.papers.sweep import sweep_notes
from hybridlab.lab.reporting.entry_data import DIGITS, entry_data, model_of, models_text, named_in_errors
from hybridlab.lab.reporting.figure_kind import PAGE, FigureKind, Numbers, Picture
from hybridlab.plugins import entries, refuse
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.style import MARKERS, PAPER, at_least, label_axes, place_legend, tick_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def build_figure(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> dict[str, Any]:
    """The content of figure.json: panels with their series over the seeds, claims, notes and runs.

    kind: of figure. shown: in a sentence, the models, the scale and what the errors are over.
    """
    plot = experiment.plot
    if plot is None:
        raise ValueError(f"{experiment.id} is a table")
    records = records_of(experiment, scale, results_dir, runs_dir)
    with named_in_errors(experiment):
        panels = [_panel_data(plot, panel, records, partial(experiment.arm, scale)) for panel in plot.panels]
    benchmark = benchmark_record(experiment, scale, results_dir)
    notes = sweep_notes(experiment, scale, results_dir, records)
    cells = dict.fromkeys(name for panel in plot.panels for series in panel.series for name in series.named)
    shown_cells = [name for name in cells if name in records]
    models = models_text(model_of(experiment, scale, name, records) for name in shown_cells)
    how = "measured" if all(_is_open(experiment, scale, name) for name in shown_cells) else "trained"
    of_models = f"{how} here at scale {scale}: {models}" if models else ""
    # Of what was not measured by prompt or document, such as learned masks, there is one run.
    whole = all(run.unit is None for by_seed in records.values() for run in by_seed.values())
    unit = "run" if whole and experiment.unit(scale) != "seed" else experiment.unit(scale)
    sentence = "; ".join(filter(None, (of_models, _errors_text(panels, FIGURE_KINDS.get(plot.kind), unit))))
    return entry_data(
        experiment,
        scale,
        records,
        benchmark,
        {"kind": plot.kind, "panels": panels, "shown": sentence},
        notes,
        history(experiment.id, scale, results_dir),
    )


def _is_open(experiment: Experiment, scale: str, cell: str) -> bool:
    """Whether a cell is a model of the hub, which was not trained here."""
    spec = experiment.cells_at(scale).get(cell)
    return spec is not None and spec.model is not None and not spec.model.startswith(CELL)


Arm = Callable[[str, str], str]
"""Cell, metric → the arm whose run the metric is read from; see `Experiment.arm`."""


def _panel_data(plot: Plot, panel: Panel, records: Records, arm: Arm) -> dict[str, Any]:
    """One panel: its series with their numbers; a series whose runs are missing has none. settings: of its kind, beside
    those of every panel. names: titles of the measures among them."""
    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    plot = plot.of_panel(panel)
    all_series = [_series_data(kind, plot, series, records, arm) for series in panel.series]
    if kind.align is not None:
        drawn = [series for series in all_series if series["data"]]
        for series, numbers in zip(drawn, kind.align(plot, [series["data"] for series in drawn]), strict=True):
            series["data"] = kind.numbers(kind.align, numbers)
    runs = [by_seed for entry in panel.series for by_seed in _runs_of(plot, entry, entry.named, records, arm).values()]
    spent = [run.flops for by_seed in runs for run in by_seed.values()]
    title = panel.title.replace("{flops}", _power(sorted(spent)[len(spent) // 2]) if spent else "–")
    about: dict[str, Any] = {"title": title, "targets": [], "x_label": "", "y_label": "", "value_range": None}
    about |= {name: value for name, value in plot.model_dump(mode="json").items() if name in about}
    changed = plot.model_dump(mode="json", exclude_defaults=True, include=set(settings_of(plot.kind).model_fields))
    settings = {name: value for name, value in changed.items() if name not in about}
    measures = [value for value in settings.values() if isinstance(value, str) and value in plot._measures]
    paper = [mark.model_dump(mode="json") for mark in panel.paper]
    names = {name: plot._measures[name].title for name in measures}
    return {**about, "settings": settings, "names": names, "paper": paper, "series": all_series}


def _series_data(kind: FigureKind, plot: Any, series: Series, records: Records, arm: Arm) -> dict[str, Any]:
    """A series with its numbers over all seeds, or those of the first seed if the kind cannot merge them. run: the
    hashes of the first seed's runs."""
    base = getattr(plot, "relative_to", None)
    cells: dict[str, Any] = {"cell": base} if isinstance(base, str) else {"cells": base, "x": series.x}
    other = None if base is None else Series(label="", **cells)
    runs = _runs_of(plot, series, [*series.named, *(other.named if other else ())], records, arm)
    plot = plot if series.metric is None else plot.model_copy(update={"metric": series.metric})
    seeds = sorted({seed for name in series.named for seed in runs[name]})
    by_seed: dict[int, Numbers] = {}
    for seed in seeds[:1] if kind.merge is None or plot.first_seed else seeds:
        numbers = kind.numbers(kind.show, kind.show(plot, series, [runs[name].get(seed) for name in series.named]))
        if numbers and other is not None:
            numbers = _less(kind, plot, other, numbers, runs, seed)
        if numbers:
            by_seed[seed] = numbers
    # A series that a kind cannot show says so even where nothing was run.
    data = kind.show(plot, series, [None for _ in series.named]) if not seeds else None
    if by_seed:
        first = by_seed[min(by_seed)]
        data = first if kind.merge is None or len(by_seed) == 1 else kind.numbers(kind.merge, kind.merge(by_seed))
    firsts = [runs[name].get(seeds[0]) if seeds else None for name in series.named]
    hashes = [record and record.hash for record in firsts]
    return {"label": series.label, "cell": series.named, "run": hashes, "seeds": sorted(by_seed), "data": data}


def _runs_of(plot: Any, series: Series, cells: list[str], records: Records, arm: Arm) -> Records:
    """Cell → its runs, for the metric of a series."""
    metric = series.metric or getattr(plot, "metric", None) or ""
    return {cell: records.get(arm(cell, metric), {}) for cell in cells}


def _less(kind: FigureKind, plot: Plot, base: Series, numbers: Numbers, runs: Records, seed: int) -> Numbers | None:
    """The numbers of a series less those of another one with the same seed; None if that was not run."""
    if kind.relative is None:
        raise UserError(f"plot.panels: a panel of the kind {plot.kind!r} cannot be relative_to a cell; leave it out")
    base_numbers = kind.show(plot, base, [runs[cell].get(seed) for cell in base.named])
    return None if base_numbers is None else kind.numbers(kind.relative, kind.relative(plot, numbers, base_numbers))


def _power(value: float) -> str:
    """A number in powers of ten: 3.5·10¹²."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·{power_text(int(exponent))}"


def _errors_text(panels: list[dict[str, Any]], kind: FigureKind, unit: str) -> str:
    """What bands and bars are over, or which seeds are shown. unit: what stands in their place, `run` where
    there is one, or `seed`."""
    series = [series for panel in panels for series in panel["series"] if series["data"]]
    counts = sorted({len(entry["seeds"]) for entry in series})
    over = {point.get("over") for entry in series for point in entry["data"].get("points", [])}
    texts = []
    if counts and counts[-1] > 1:
        seeds = f"{' or '.join(map(str, counts))} {unit}s"
        texts.append(f"bands and bars: ± one standard error over {seeds}" if kind.errors else f"{seeds} together")
    elif counts:
        texts.append("one run each" if unit == "run" else f"{unit} {series[0]['seeds'][0]} alone")
    if "windows" in over:
        texts.append(
            "bars: ± one standard error over validation windows in blocks of ten, less what the runs of a panel have "
            "in common; it decides nothing"
        )
    if counts and counts[-1] == 1 and any(entry["data"].get("over") == "samples" for entry in series):
        texts.append("bars: ± one standard error over the sequences of a single run; it decides nothing")
    return "; ".join(texts)


def has_numbers(data: dict[str, Any]) -> bool:
    """Whether a figure has something to draw."""
    return any(series["data"] for panel in data["panels"] for series in panel["series"])


def marks_in_words(data: dict[str, Any]) -> list[str]:
    """What the paper prints in a figure, with where it does so."""
    marks = dict.fromkeys((mark["label"], mark["source"]) for panel in data["panels"] for mark in panel["paper"])
    return [f"{label} ({source})" for label, source in marks]


def csv_lines(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One line for each plotted number, then one for each that the paper prints."""
    lines = plotted(data)
    for panel in data["panels"]:
        for mark in panel["paper"]:
            about = {"panel": panel["title"], "series": f"paper: {mark['label']}", "source": mark["source"]}
            for x, y in zip_longest(mark["x"], mark["y"]):
                lines.append({**about, "x": x, "y": y})
    return lines


def plotted(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One line for each plotted number."""
    kind: FigureKind = FIGURE_KINDS.get(data["kind"])
    return [
        {"panel": panel["title"], "series": series["label"], **rounded_floats(line, DIGITS)}
        for panel in data["panels"]
        for series in panel["series"]
        for line in (_csv_lines(kind, series["data"]) if series["data"] else ())
    ]


def _csv_lines(kind: FigureKind, numbers: Numbers) -> Iterator[dict[str, Any]]:
    form = "dicts, each a line of figure.csv: column → value"
    for line in entries(kind.csv_lines, "", kind.csv_lines(numbers), form):
        yield line if isinstance(line, dict) else refuse(kind.csv_lines, "", line, form)


# ---- drawing ----


def draw(data: dict[str, Any]) -> Figure:
    """A matplotlib figure of the data; panels without any numbers are left out."""
    from matplotlib.figure import Figure

    kind: FigureKind = FIGURE_KINDS.get(data["kind"])
    plots = [plot_of(data["kind"], panel["settings"]) for panel in data["panels"]]
    panels = zip(data["panels"], plots, strict=True)
    pictures = [picture for panel, plot in panels for picture in _pictures(panel, plot, kind)]
    labels = list(dict.fromkeys(label for picture in pictures for label, _ in picture.series))
    pictures = [replace(picture, labels=labels) for picture in pictures]
    width, height = kind.size(pictures)
    columns = min(len(pictures), max(1, int(PAGE // width)))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(width * columns + 0.4, height * rows), layout="constrained")
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for ax, picture in zip(axes, pictures, strict=False):
        label_axes(ax, picture.x_label, picture.y_label)
        kind.draw(ax, picture)
        if not kind.own_paper:
            draw_paper(ax, picture.paper)
        ax.set_title(picture.title, fontsize=9)
        ax.tick_params(labelsize=7)
    for ax in axes[len(pictures) :]:
        ax.set_axis_off()
    drawn = axes[: len(pictures)]
    if kind.shared:
        share_axes(drawn)
        for ax, picture in zip(drawn, pictures, strict=True):
            ax.set_ylim(at_least(ax.get_ylim(), picture.value_range))
    for ax in drawn:
        ax.set_ylabel("\n".join(textwrap.wrap(ax.get_ylabel(), max(12, int(13 * height) - 5))))
        name_power(ax)
    if kind.legend is not None:
        kind.legend(figure, drawn, rows)
    else:
        place_legend(figure, drawn)
    # A picture that is shown without its page says what it is, and whose models these are.
    about = [*([f"{data['id']}: {data['title']}"] if "id" in data else []), data.get("shown", "")]
    lines = [line for text in about for line in textwrap.wrap(text, int(20 * figure.get_figwidth()))]
    if lines:
        figure.set_figheight(figure.get_figheight() + 0.14 * len(lines))
        figure.suptitle("\n".join(lines), fontsize=6.5, color="0.35")
    return figure


def _pictures(panel: dict[str, Any], plot: Plot, kind: FigureKind) -> Iterator[Picture]:
    """The panel as one picture or, if the kind has parts, a picture for each part of each series."""
    series = [(entry["label"], entry["data"]) for entry in panel["series"] if entry["data"]]
    attributes = {key: panel[key] for key in ("x_label", "y_label", "value_range", "paper", "names")}
    picture = Picture(panel["title"], series, panel["targets"], **attributes, plot=plot)
    parts = [None if kind.parts is None else kind.parts(plot, numbers) for _, numbers in series]
    # What the paper prints can stand alone beside panels with the same axes.
    alone = panel["paper"] and not panel["series"] and (kind.parts is None or kind.shared)
    if None in parts or alone:
        yield picture
        return
    for (label, numbers), series_parts in zip(series, parts, strict=True):
        for part in series_parts or ():
            title = ", ".join(filter(None, (panel["title"], label, part.get("title"))))
            yield replace(picture, title=title, series=[(label, {**numbers, **part})])


# ---- the paper's values ----


def draw_paper(ax: Axes, marks: Sequence[dict[str, Any]]) -> None:
    """The values that the paper prints, in grey, with its name in the legend."""
    for i, mark in enumerate(marks):
        label, x, y = f"paper: {mark['label']}", _scaled(ax, mark), mark["y"]
        if x and y:
            style: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "markersize": 5, "markerfacecolor": "none"}
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
    for along in "xy":
        groups: dict[str, list[Axes]] = {}
        for ax in axes:
            groups.setdefault(getattr(ax, f"get_{along}label")(), []).append(ax)
        for group in groups.values():
            lows, highs = zip(*(getattr(ax, f"get_{along}lim")() for ax in group), strict=True)
            # A little more room, since what is at the edge of one panel was not at the edge of all; values that are
            # written above and below points need more.
            share = 0.1 if along == "y" and any(ax.texts for ax in group) else 0.03
            for ax in group:
                axis = ax.xaxis if along == "x" else ax.yaxis
                limits = _widened(axis, min(lows), max(highs), share if len(group) > 1 else 0.0)
                getattr(ax, f"set_{along}lim")(*limits)


def _widened(axis: Axis, low: float, high: float, share: float) -> tuple[float, float]:
    """Limits with more room at both ends, a share of the axis as it is drawn."""
    scale = axis.get_transform()
    first, last = (float(at) for at in scale.transform([low, high]))
    room = share * (last - first)
    low, high = (float(at) for at in scale.inverted().transform([first - room, last + room]))
    return low, high


def name_power(ax: Axes) -> None:
    """Large numbers along x in millions and the like, with the power of ten in the axis label."""
    from matplotlib.ticker import FuncFormatter

    power = 3 * (math.floor(math.log10(max(map(abs, ax.get_xlim())))) // 3)
    if power >= 6 and ax.get_xscale() == "linear":
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _in_power(value, ax, power)))
        ax.set_xlabel(f"{ax.get_xlabel()}, {power_text(power)}")


def _in_power(value: float, ax: Axes, power: int) -> str:
    """The number at a tick of the x axis, divided by a power of ten."""
    return tick_texts([place / 10**power for place in ax.get_xticks()], values=[value / 10**power])[0]
