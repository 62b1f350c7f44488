"""Figures from records: PNG, PDF, and files with the plotted numbers.

hybridlab report consa-fig10
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hybridlab.files import write_json, write_text, writing
from hybridlab.papers.experiment import Experiment, Panel, Plot
from hybridlab.papers.records import benchmark_record, records_of
from hybridlab.papers.sweep import sweep_notes
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.entry_data import claims_table, entry_data, named_in_errors
from hybridlab.reporting.figure_kind import MOST_COLUMNS, FigureKind, Picture
from hybridlab.runs.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def build_figure(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> dict[str, Any]:
    """The content of figure.json: panels with their series (of the first seed), claims, notes and runs."""
    plot = _plot_of(experiment)
    records = records_of(experiment, scale, results_dir, runs_dir)
    first = {cell: by_seed[min(by_seed)] for cell, by_seed in records.items()}
    with named_in_errors(experiment):
        panels = [_panel_data(plot, panel, first) for panel in plot.panels]
    benchmark = benchmark_record(experiment, scale, results_dir)
    notes = sweep_notes(experiment, scale, results_dir)
    return entry_data(experiment, scale, records, benchmark, {"panels": panels}, notes)


def _plot_of(experiment: Experiment) -> Plot:
    if experiment.plot is None:
        raise ValueError(f"{experiment.id} is a table")
    return experiment.plot


def _panel_data(plot: Plot, panel: Panel, records: dict[str, Record]) -> dict[str, Any]:
    """One panel: its series with their numbers; a series whose runs are missing has none."""
    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    own = {name: getattr(panel, name) for name in ("metric", "x", "x_label") if getattr(panel, name) is not None}
    plot = plot.model_copy(update=own)
    all_series = []
    for series in panel.series:
        shown = [records.get(name) for name in series.named]
        hashes = [record and record.hash for record in shown]
        numbers = kind.show(plot, series, shown)
        all_series.append({"label": series.label, "cell": series.named, "run": hashes, "data": numbers})
    return {"title": panel.title, "targets": panel.targets, "x_label": plot.x_label, "series": all_series}


def write_figure(
    experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None
) -> tuple[dict[str, Any], Path]:
    """figure.json, figure.csv and figure.md always; figure.png and figure.pdf if there is something to draw."""
    plot = _plot_of(experiment)
    data = build_figure(experiment, scale, results_dir, runs_dir)
    folder = results_dir / experiment.id / scale
    write_json(folder / "figure.json", data)
    write_text(folder / "figure.csv", pd.DataFrame(_csv_lines(data, plot)).to_csv(index=False))
    write_text(folder / "figure.md", _page(data))
    drawn = any(series["data"] for panel in data["panels"] for series in panel["series"])
    for ending in ("png", "pdf"):
        path = folder / f"figure.{ending}"
        path.unlink(missing_ok=True)
        if drawn:
            # Without a date in the file, the same records give the same bytes. Each file has its own drawing, because
            # saving one changes its layout.
            metadata: dict[str, Any] = {"CreationDate": None} if ending == "pdf" else {"Software": None}
            with writing(path):
                draw(data, plot).savefig(path, dpi=200, metadata=metadata)
    return data, folder


def _csv_lines(data: dict[str, Any], plot: Plot) -> list[dict[str, Any]]:
    """One line for each plotted number."""
    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    return [
        {"panel": panel["title"], "series": series["label"], **line}
        for panel in data["panels"]
        for series in panel["series"]
        for line in (kind.csv_lines(series["data"]) if series["data"] else ())
    ]


def _page(data: dict[str, Any]) -> str:
    where = f"{data['source']}. Scale {data['scale']}: {data['machine']}."
    lines = [f"# {data['id']}: {data['title']}", "", where, "", "![figure](figure.png)", ""]
    lines += [*claims_table(data["claims"]), "", *(f"- {note}" for note in data["notes"]), ""]
    return "\n".join(lines)


# ---- drawing ----


def draw(data: dict[str, Any], plot: Plot) -> Figure:
    """A matplotlib figure of the data; panels without any numbers are left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    pictures = [picture for panel in data["panels"] for picture in _pictures(panel, plot, kind)]
    columns = min(len(pictures), MOST_COLUMNS)
    rows = -(-len(pictures) // columns)
    width, height = kind.size(pictures)
    figure = Figure(figsize=(width * columns + 0.4, height * rows), layout="constrained")
    axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for ax, picture in zip(axes, pictures, strict=False):
        kind.draw(ax, replace(picture, rows=rows))
        ax.set_title(picture.title, fontsize=9)
        ax.tick_params(labelsize=7)
    for ax in axes[len(pictures) :]:
        ax.set_axis_off()
    if kind.legend is not None:
        kind.legend(figure, axes[: len(pictures)], rows)
    return figure


def _pictures(panel: dict[str, Any], plot: Plot, kind: FigureKind) -> Iterator[Picture]:
    """The panel as one picture or, if the kind has parts, a picture for each part of each series."""
    series = [(entry["label"], entry["data"]) for entry in panel["series"] if entry["data"]]
    whole = Picture(panel["title"], series, panel["targets"], panel["x_label"], plot.y_label)
    if kind.parts is None:
        yield from [whole] if series else []
        return
    for label, numbers in series:
        for part in kind.parts(plot, numbers):
            title = ", ".join(filter(None, (panel["title"], label, part.get("title"))))
            yield replace(whole, title=title, series=[(label, {**numbers, **part})])
