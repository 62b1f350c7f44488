"""Figures from records: PNG and PDF with the plotted numbers beside them, readable in print and by the colour-blind.

hybridlab report consa-fig10
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hybridlab.files import write_json, write_text
from hybridlab.reporting.plots import panel_data
from hybridlab.reproduction.claims import judge
from hybridlab.reproduction.experiment import Experiment, Plot
from hybridlab.reproduction.records import records_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct for all common kinds of colour blindness, and in grey by their order.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
FULL, WINDOW = "#D55E00", "#56B4E9"
_WIDTH, _HEIGHT = 3.4, 2.6
"""Inches of one panel: a column of a printed page."""


def build_figure(experiment: Experiment, scale: str, results_dir: Path) -> dict[str, Any]:
    """The figure as data: panels with their series, claims, notes and runs. The first seed is drawn."""
    found = records_of(experiment, scale, results_dir)
    first = {cell: by_seed[min(by_seed)] for cell, by_seed in found.items()}
    claims = []
    for claim in experiment.claims:
        verdict = judge(claim, experiment, found)
        claims.append(
            {"text": claim.text, "source": claim.source, "holds": verdict.holds, "evidence": verdict.evidence}
        )
    spec = experiment.scales.get(scale)
    return {
        "id": experiment.id,
        "title": experiment.title,
        "source": experiment.source,
        "scale": scale,
        "machine": spec.machine if spec else None,
        "seeds": spec.seeds if spec else [],
        "panels": [panel_data(experiment.plot, panel, first) for panel in experiment.plot.panels],
        "claims": claims,
        "notes": experiment.notes,
        "runs": {cell: {str(s): r["hash"] for s, r in by_seed.items()} for cell, by_seed in found.items()},
    }


def write_figure(experiment: Experiment, scale: str, results_dir: Path) -> tuple[dict[str, Any], Path]:
    """figure.json and figure.csv always; figure.png and figure.pdf where there is something to draw."""
    data = build_figure(experiment, scale, results_dir)
    folder = results_dir / experiment.id / scale
    write_json(folder / "figure.json", data)
    write_text(folder / "figure.csv", _table(data).to_csv(index=False))
    write_text(folder / "figure.md", _page(data))
    drawn = any(series["data"] for panel in data["panels"] for series in panel["series"])
    for ending in ("png", "pdf"):
        path = folder / f"figure.{ending}"
        path.unlink(missing_ok=True)
        if drawn:
            # No date in the file: the same records give the same bytes.
            metadata = {"CreationDate": None} if ending == "pdf" else {"Software": None}
            draw(data, experiment.plot).savefig(path, dpi=200, metadata=metadata)
    return data, folder


def _table(data: dict[str, Any]) -> pd.DataFrame:
    """One line per plotted number."""
    rows = []
    for panel in data["panels"]:
        for series in panel["series"]:
            place = {"panel": panel["title"], "series": series["label"]}
            numbers = series["data"] or {}
            if "x" in numbers:
                for i, x in enumerate(numbers["x"]):
                    rows.append({**place, **{k: v[i] for k, v in numbers.items() if isinstance(v, list)}, "x": x})
            for layer, row in enumerate(numbers.get("masks", [])):
                rows += [{**place, "layer": layer + 1, "kv_head": head + 1, "full": v} for head, v in enumerate(row)]
            if "tokens" in numbers:
                rows.append({**place, "tokens": numbers["tokens"], "steps": numbers["steps"]})
    return pd.DataFrame(rows)


def _page(data: dict[str, Any]) -> str:
    where = f"{data['source']}. Scale {data['scale']}: {data['machine']}."
    lines = [f"# {data['id']}: {data['title']}", "", where, "", "![figure](figure.png)", ""]
    if data["claims"]:
        lines += ["## Claims", "", "| claim | place | here | evidence |", "| --- | --- | --- | --- |"]
        names = {True: "holds", False: "fails", None: "open"}
        lines += [f"| {c['text']} | {c['source']} | {names[c['holds']]} | {c['evidence']} |" for c in data["claims"]]
    lines += ["", *(f"- {note}" for note in data["notes"]), ""]
    return "\n".join(lines)


# ---- drawing ----


def draw(data: dict[str, Any], plot: Plot) -> Figure:
    """A matplotlib figure of the data."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    panels = [panel for panel in data["panels"] if any(series["data"] for series in panel["series"])]
    if plot.kind == "head masks":
        panels = [{**panel, "series": [s]} for panel in panels for s in panel["series"] if s["data"]]
    figure = Figure(figsize=(_WIDTH * len(panels) + 0.4, _height(plot, panels)), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        _DRAWN[plot.kind](ax, panel, plot)
        ax.set_title(panel["title"], fontsize=9)
        ax.tick_params(labelsize=7)
    if plot.kind in ("layer masks", "head masks", "stages"):
        _name_kinds(figure)
    return figure


def _height(plot: Plot, panels: list[dict[str, Any]]) -> float:
    if plot.kind == "layer masks":
        return 1.3 + 0.3 * max(len(panel["series"]) for panel in panels)
    return _HEIGHT


def _labels(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)


def _lines(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    shown = [series for series in panel["series"] if series["data"]]
    for i, series in enumerate(shown):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "linewidth": 1.3}
        style["marker"] = "o" if plot.kind == "scores" else None
        ax.plot(series["data"]["x"], series["data"]["y"], label=series["label"], **style)
    for target in panel["targets"]:
        ax.axhline(target, color="0.5", linewidth=0.8, linestyle=(0, (1, 2)))
    _labels(ax, plot.x_label, plot.y_label)
    ax.legend(fontsize=7, frameon=False)


def _shares(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    for i, series in enumerate(s for s in panel["series"] if s["data"]):
        colour, numbers = COLOURS[i % len(COLOURS)], series["data"]
        ax.plot(numbers["x"], numbers["y"], color=colour, alpha=0.3, linewidth=1, marker=".", markersize=3)
        style = STYLES[i % len(STYLES)]
        ax.plot(numbers["x"], numbers["smooth"], color=colour, linewidth=1.8, linestyle=style, label=series["label"])
    ax.set_ylim(-0.03, 1.03)
    _labels(ax, plot.x_label, plot.y_label)
    ax.legend(fontsize=7, frameon=False)


def _two_colours() -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap([WINDOW, FULL])


def _name_kinds(figure: Figure) -> None:
    """One legend for all panels, below them."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=FULL, label="full attention"), Patch(facecolor=WINDOW, label="window")]
    figure.legend(handles=handles, fontsize=7, frameon=False, ncols=2, loc="outside lower center")


def _layer_masks(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    shown = [series for series in panel["series"] if series["data"]]
    grid = [[row[0] for row in series["data"]["masks"]] for series in shown]
    ax.imshow(grid, cmap=_two_colours(), vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            ax.text(j, i, "F" if value else "w", ha="center", va="center", fontsize=7)
    ax.set_yticks(range(len(shown)), [series["label"] for series in shown])
    ax.set_xticks(range(len(grid[0])), range(1, len(grid[0]) + 1))
    _labels(ax, plot.x_label, plot.y_label)


def _head_masks(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    (series,) = panel["series"]
    masks = series["data"]["masks"]
    grid = [[row[head] for row in masks] for head in range(len(masks[0]))]
    ax.imshow(grid, cmap=_two_colours(), vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(grid):
        for j, value in enumerate(row):
            ax.text(j, i, "F" if value else "w", ha="center", va="center", fontsize=6)
    ax.set_xticks(range(len(masks)), range(1, len(masks) + 1))
    ax.set_yticks(range(len(grid)), range(1, len(grid) + 1))
    panel["title"] = series["label"]
    _labels(ax, plot.x_label, plot.y_label)


def _stages(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    """Left panel: tokens by stage. A panel whose only run has learned masks: the masks of its layers and their scores."""
    shown = [series for series in panel["series"] if series["data"]]
    if len(shown) == 1 and "scores" in shown[0]["data"]:
        _mask_of_one_layer(ax, shown[0]["data"])
        return
    start = 0.0
    for i, series in enumerate(shown):
        tokens = series["data"]["tokens"] / 1e6
        ax.barh(0, tokens, left=start, height=0.5, color=COLOURS[i], edgecolor="white")
        ax.text(
            start + tokens / 2,
            0,
            f"{series['label']}\n{tokens:.2f}M",
            ha="center",
            va="center",
            fontsize=6,
            color="white",
        )
        start += tokens
    ax.set_yticks([])
    ax.set_ylim(-0.6, 0.6)
    _labels(ax, "training tokens (millions)", "")


def _mask_of_one_layer(ax: Axes, numbers: dict[str, Any]) -> None:
    """The visible keys of the first mixed layer's KV heads, side by side, with each head's α."""
    import numpy as np

    mixed = next((i for i, row in enumerate(numbers["masks"]) if len(set(row)) > 1), 0)
    length = min(4 * numbers["window"], numbers["seq_len"])
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    tiles = []
    for full in numbers["masks"][mixed]:
        seen = (key <= query) & (full | (key > query - numbers["window"]))
        tiles += [np.where(seen, 1 if full else 0, np.nan), np.full((length, 3), np.nan)]
    ax.imshow(np.concatenate(tiles[:-1], axis=1), cmap=_two_colours(), vmin=0, vmax=1, interpolation="nearest")
    scores = numbers["scores"][mixed]
    places = [i * (length + 3) + length / 2 for i in range(len(numbers["masks"][mixed]))]
    scores = scores if len(scores) == len(places) else scores * len(places)
    ax.set_xticks(places, [f"head {i + 1}\nα = {score:.1f}" for i, score in enumerate(scores)])
    ax.set_yticks([])
    _labels(ax, f"layer {mixed + 1}: key positions", "query positions")


_DRAWN = {
    "history": _lines,
    "scores": _lines,
    "window share": _shares,
    "layer masks": _layer_masks,
    "head masks": _head_masks,
    "stages": _stages,
}
