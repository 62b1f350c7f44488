"""Figures from records: PNG, PDF, and files with the plotted numbers.

hybridlab report consa-fig10
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from hybridlab.errors import UserError
from hybridlab.files import write_json, write_text, writing
from hybridlab.papers.experiment import CELL, Experiment
from hybridlab.papers.plans import history
from hybridlab.papers.plot import Panel, Plot, Series
from hybridlab.papers.records import Records, benchmark_record, records_of
from hybridlab.papers.sweep import sweep_notes
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.claims import claims_table, differ_lines
from hybridlab.reporting.drawing import draw, power_text
from hybridlab.reporting.entry_data import caption, entry_data, named_in_errors
from hybridlab.reporting.figure_kind import FigureKind, Numbers
from hybridlab.reporting.models import model_of, models_text


def build_figure(experiment: Experiment, scale: str, results_dir: Path, runs_dir: Path | None = None) -> dict[str, Any]:
    """The content of figure.json: panels with their series over the seeds, claims, notes and runs.

    shown: in a sentence, the models, the scale and what the errors are over.
    """
    plot = _plot_of(experiment)
    records = records_of(experiment, scale, results_dir, runs_dir)
    with named_in_errors(experiment):
        panels = [_panel_data(plot, panel, records) for panel in plot.panels]
    benchmark = benchmark_record(experiment, scale, results_dir)
    notes = sweep_notes(experiment, scale, results_dir)
    cells = dict.fromkeys(name for panel in plot.panels for series in panel.series for name in series.named)
    models = models_text(model_of(experiment, scale, name, records) for name in cells if name in records)
    made = "measured" if all(_is_open(experiment, scale, name) for name in cells) else "trained"
    shown = "; ".join(filter(None, (f"{made} here at scale {scale}: {models}" if models else "", _errors_text(panels))))
    return entry_data(
        experiment,
        scale,
        records,
        benchmark,
        {"panels": panels, "shown": shown},
        notes,
        history(experiment.id, scale, results_dir),
    )


def _is_open(experiment: Experiment, scale: str, cell: str) -> bool:
    """Whether a cell is a model of the hub, which was not trained here."""
    spec = experiment.cells_at(scale).get(cell)
    return spec is not None and spec.model is not None and not spec.model.startswith(CELL)


def _plot_of(experiment: Experiment) -> Plot:
    if experiment.plot is None:
        raise ValueError(f"{experiment.id} is a table")
    return experiment.plot


_OWN = ("metric", "x", "x_label", "y_label", "value_range", "skip", "level", "y_scale", "bar_label", "colours")
"""What a panel can have of its own, in the place of the figure's."""


def _panel_data(plot: Plot, panel: Panel, records: Records) -> dict[str, Any]:
    """One panel: its series with their numbers; a series whose runs are missing has none."""
    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    plot = plot.model_copy(update={name: own for name in _OWN if (own := getattr(panel, name)) is not None})
    all_series = [_series_data(kind, plot, panel, series, records) for series in panel.series]
    if kind.align is not None:
        drawn = [one for one in all_series if one["data"]]
        for one, numbers in zip(drawn, kind.align(plot, [one["data"] for one in drawn]), strict=True):
            one["data"] = numbers
    spent = [run.flops for series in panel.series for name in series.named for run in records.get(name, {}).values()]
    title = panel.title.replace("{flops}", _power(sorted(spent)[len(spent) // 2]) if spent else "–")
    shown = plot.model_dump(mode="json")
    settings = {name: shown[name] for name in ("x_label", "y_label", "value_range")}
    paper = [mark.model_dump(mode="json") for mark in panel.paper]
    return {"title": title, "targets": panel.targets, **settings, "paper": paper, "series": all_series}


def _series_data(kind: FigureKind, plot: Plot, panel: Panel, series: Series, records: Records) -> dict[str, Any]:
    """A series with its numbers over all seeds, or those of the first seed if the kind cannot merge them. run: the
    hashes of the first seed's runs."""
    seeds = sorted({seed for name in series.named for seed in records.get(name, {})})
    by_seed: dict[int, Numbers] = {}
    for seed in seeds if kind.merge is not None else seeds[:1]:
        numbers = kind.show(plot, series, [records.get(name, {}).get(seed) for name in series.named])
        if numbers and panel.relative_to is not None:
            numbers = _less(kind, plot, panel.relative_to, numbers, records, seed)
        if numbers:
            by_seed[seed] = numbers
    # A series that a kind cannot show says so even where nothing was run.
    data = kind.show(plot, series, [None for _ in series.named]) if not seeds else None
    if by_seed:
        data = by_seed[min(by_seed)] if kind.merge is None else kind.merge(by_seed)
    firsts = [records.get(name, {}).get(seeds[0]) if seeds else None for name in series.named]
    hashes = [record and record.hash for record in firsts]
    return {"label": series.label, "cell": series.named, "run": hashes, "seeds": sorted(by_seed), "data": data}


def _less(kind: FigureKind, plot: Plot, cell: str, numbers: Numbers, records: Records, seed: int) -> Numbers | None:
    """The numbers of a series less those of another cell's run with the same seed; None if that was not run."""
    if kind.relative is None:
        raise UserError(f"plot.panels: a panel of the kind {plot.kind!r} cannot be relative_to a cell; leave it out")
    base = kind.show(plot, Series(cell=cell, label=""), [records.get(cell, {}).get(seed)])
    return None if base is None else kind.relative(plot, numbers, base)


def _power(value: float) -> str:
    """A number in powers of ten: 3.5·10¹²."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·{power_text(int(exponent))}"


def _errors_text(panels: list[dict[str, Any]]) -> str:
    """What bands and bars are over, or which seed is shown."""
    series = [series for panel in panels for series in panel["series"] if series["data"]]
    counts = sorted({len(one["seeds"]) for one in series})
    over = {point.get("over") for one in series for point in one["data"].get("points", [])}
    texts = []
    if counts and counts[-1] > 1:
        texts.append(f"bands and bars: ± one standard error over {' or '.join(map(str, counts))} seeds")
    elif counts:
        texts.append(f"seed {series[0]['seeds'][0]} alone")
    if "windows" in over:
        texts.append(
            "bars: ± one standard error over validation windows in blocks of ten, less what the runs of a panel have "
            "in common; it decides nothing"
        )
    if counts and counts[-1] == 1 and any(one["data"].get("over") == "samples" for one in series):
        texts.append("bars: ± one standard error over the sequences of a single run; it decides nothing")
    return "; ".join(texts)


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
    """One line for each plotted number, then one for each that the paper prints."""
    kind: FigureKind = FIGURE_KINDS.get(plot.kind)
    lines = [
        {"panel": panel["title"], "series": series["label"], **line}
        for panel in data["panels"]
        for series in panel["series"]
        for line in (kind.csv_lines(series["data"]) if series["data"] else ())
    ]
    for panel in data["panels"]:
        for mark in panel["paper"]:
            about = {"panel": panel["title"], "series": f"paper: {mark['label']}", "source": mark["source"]}
            for x, y in zip_longest(mark["x"], mark["y"]):
                lines.append({**about, "x": x, "y": y})
    return lines


def _page(data: dict[str, Any]) -> str:
    lines = [f"# {data['id']}: {data['title']}", "", caption(data), "", "![figure](figure.png)", ""]
    lines += [f"{data['shown'][0].upper()}{data['shown'][1:]}.", ""] if data["shown"] else []
    printed = dict.fromkeys((mark["label"], mark["source"]) for panel in data["panels"] for mark in panel["paper"])
    if printed:
        lines += [f"In grey, what the paper prints: {'; '.join(f'{what} ({where})' for what, where in printed)}.", ""]
    lines += [*claims_table(data["claims"]), "", *differ_lines(data), *(f"- {note}" for note in data["notes"]), ""]
    return "\n".join(lines)
