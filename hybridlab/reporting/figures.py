"""Figures from records: PNG and PDF with the plotted numbers beside them, readable in print and by the colour-blind.

hybridlab report consa-fig10
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hybridlab.files import write_json, write_text
from hybridlab.reporting import entropy_figures, loop_figures
from hybridlab.reporting.plots import panel_data
from hybridlab.reporting.style import COLOURS, STYLES, label_axes
from hybridlab.reproduction.claims import judge
from hybridlab.reproduction.experiment import Experiment, Plot
from hybridlab.reproduction.records import records_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FULL, WINDOW = "#D55E00", "#56B4E9"
_WIDTH, _HEIGHT = 3.4, 2.6
"""Inches of one panel: a column of a printed page."""
_MOST_COLUMNS = 4


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
        "machine": experiment.machine(scale),
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
            if "x" in numbers and "y" in numbers:
                for i, x in enumerate(numbers["x"]):
                    rows.append({**place, **{k: v[i] for k, v in numbers.items() if isinstance(v, list)}, "x": x})
            for layer, row in enumerate(numbers.get("masks", [])):
                rows += [{**place, "layer": layer + 1, "kv_head": head + 1, "full": v} for head, v in enumerate(row)]
            if "steps" in numbers and "tokens" in numbers:
                rows.append({**place, "tokens": numbers["tokens"], "steps": numbers["steps"]})
            rows += [{**place, **line} for line in _many_lines(numbers)]
    return pd.DataFrame(rows)


def _many_lines(numbers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One line per number of the kinds that show several lines, or bars, in one picture."""
    pictures = [(None, numbers["lines"])] if "lines" in numbers else []
    if isinstance(numbers.get("layers"), list):
        pictures += [(part["title"], part["lines"]) for part in numbers["layers"] if "lines" in part]
    for title, lines in pictures:
        for name, values in lines.items():
            for x, y in zip(numbers["x"], values, strict=True):
                yield {"picture": title, "line": name, "x": x, "y": y}
    yield from numbers.get("segments", [])
    yield from numbers.get("points", [])
    for loop, values in enumerate(numbers.get("loops", [])):
        for place, (token, value) in enumerate(zip(numbers["tokens"], values, strict=True)):
            yield {"loop": loop, "place": place, "token": token, "y": value}


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
    if plot.kind in _ONE_EACH:
        panels = [single for panel in panels for single in _apart(panel)]
    columns = min(len(panels), _MOST_COLUMNS)
    lines = -(-len(panels) // columns)
    width, height = _size(plot, panels)
    figure = Figure(figsize=(width * columns + 0.4, height * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    shared_legend = plot.kind == "head entropies" and len(panels) > columns
    for ax, panel in zip(axes, panels, strict=False):
        _DRAWN[plot.kind](ax, {**panel, "shared_legend": shared_legend}, plot)
        ax.set_title(panel["title"], fontsize=9)
        ax.tick_params(labelsize=7)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if shared_legend:
        figure.legend(
            *axes[0].get_legend_handles_labels(), fontsize=7, frameon=False, ncols=8, loc="outside lower center"
        )
    if plot.kind in ("layer masks", "head masks", "stages"):
        _name_kinds(figure)
    return figure


def _apart(panel: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A panel for each of its series, and for each layer of a series that has several."""
    for series in panel["series"]:
        if not series["data"]:
            continue
        parts = series["data"].get("layers")
        for part in parts if isinstance(parts, list) else [None]:
            data = series["data"] if part is None else {**series["data"], **part}
            title = series["label"] if part is None else ", ".join(filter(None, (series["label"], part["title"])))
            title = ", ".join(filter(None, (panel["title"], title)))
            yield {**panel, "title": title, "series": [{**series, "data": data}]}


def _size(plot: Plot, panels: list[dict[str, Any]]) -> tuple[float, float]:
    """Inches of one panel."""
    if plot.kind == "layer masks":
        return _WIDTH, 1.3 + 0.3 * max(len(panel["series"]) for panel in panels)
    if plot.kind == "contributions":
        return 2 * _WIDTH, 2.2
    if plot.kind == "growth":
        return 1.6 * _WIDTH, _HEIGHT
    return (2.2, 1.9) if len(panels) > _MOST_COLUMNS else (_WIDTH, _HEIGHT)


def _lines(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    shown = [series for series in panel["series"] if series["data"]]
    for i, series in enumerate(shown):
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "linewidth": 1.3}
        style["marker"] = "o" if plot.kind == "scores" else None
        ax.plot(series["data"]["x"], series["data"]["y"], label=series["label"], **style)
    for target in panel["targets"]:
        ax.axhline(target, color="0.5", linewidth=0.8, linestyle=(0, (1, 2)))
    label_axes(ax, plot.x_label, plot.y_label)
    ax.legend(fontsize=7, frameon=False)


def _shares(ax: Axes, panel: dict[str, Any], plot: Plot) -> None:
    for i, series in enumerate(s for s in panel["series"] if s["data"]):
        colour, numbers = COLOURS[i % len(COLOURS)], series["data"]
        ax.plot(numbers["x"], numbers["y"], color=colour, alpha=0.3, linewidth=1, marker=".", markersize=3)
        style = STYLES[i % len(STYLES)]
        ax.plot(numbers["x"], numbers["smooth"], color=colour, linewidth=1.8, linestyle=style, label=series["label"])
    ax.set_ylim(-0.03, 1.03)
    label_axes(ax, plot.x_label, plot.y_label)
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
    label_axes(ax, plot.x_label, plot.y_label)


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
    label_axes(ax, plot.x_label, plot.y_label)


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
    label_axes(ax, "training tokens (millions)", "")


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
    label_axes(ax, f"layer {mixed + 1}: key positions", "query positions")


_ONE_EACH = (
    "head masks", "head entropies", "entropy variance", "layer entropy", "growth", "contributions", "distributions",
    "head ranges", "reach",
)  # fmt: skip
_DRAWN = {
    "history": _lines,
    "scores": _lines,
    "window share": _shares,
    "layer masks": _layer_masks,
    "head masks": _head_masks,
    "stages": _stages,
    **entropy_figures.DRAWN,
    **loop_figures.DRAWN,
}
