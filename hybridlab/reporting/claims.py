"""The claims of a table or figure: on its page, in LaTeX, on the terminal, and their comparisons as a picture.

hybridlab report sgt-selection    # results/sgt-selection/desk/claims.png, claims.pdf, claims.csv

The picture has a line for each difference of two arms that has an interval over seeds, claims one below the other; a
panel for each quantity, so that small and large differences each have an axis of their own.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from hybridlab.files import write_text
from hybridlab.papers.ids import VERDICTS
from hybridlab.papers.verdicts import CHANGED, is_method
from hybridlab.reporting.latex import Panel
from hybridlab.reporting.style import COLOURS, PAPER, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_STYLES = {"holds": "green", "fails": "red", "cannot tell here": "magenta"}
_HEADS = ("claim", "place", "verdict", "n", "p")


def counted(claims: list[dict[str, Any]]) -> str:
    """How many claims have each verdict: holds 3 · open 2; "" if there are none."""
    counts = Counter(claim["verdict"] for claim in claims)
    return " · ".join(f"{word} {counts[word]}" for word in VERDICTS if counts[word])


def shown(claim: dict[str, Any]) -> str:
    """The verdict on a claim with its note: open (direction only)."""
    return f"{claim['verdict']} ({claim['note']})" if claim["note"] else str(claim["verdict"])


def claims_table(claims: list[dict[str, Any]]) -> list[str]:
    """The claims as lines of Markdown, under a heading; an empty list if there are none."""
    if not claims:
        return []
    heads = [*_HEADS, "to decide it", "evidence"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for claim in claims:
        evidence = "; ".join(filter(None, (claim["evidence"], claim["scale"], *claim["flags"], *_controls(claim))))
        texts = [*_row(claim), _takes(claim), evidence]
        lines.append("| " + " | ".join(text.replace("|", "/") for text in texts) + " |")
    return ["## Claims", "", f"{counted(claims)}.", "", *lines]


def changed_plans(entries: list[dict[str, Any]]) -> list[str]:
    """A line for each claim of several entries that was decided after a change of plan, under a heading."""
    lines = [
        f"  {entry['id']}: {claim['text']}: {flag}"
        for entry in entries
        for claim in entry.get("claims", ())
        for flag in claim["flags"]
        if claim["verdict"] in ("holds", "fails") and flag.startswith(CHANGED)
    ]
    return [f"Claims that are decided after a change of plan ({len(lines)}):", *lines] if lines else []


def differ_lines(data: dict[str, Any]) -> list[str]:
    """The settings in which arms differ that a claim of the page compares, as lines of Markdown; those of the method by
    name alone."""
    own = {name: values for name, values in data["differ"].items() if not is_method(name)}
    method = dict.fromkeys(name.split(".")[0] for name in data["differ"] if is_method(name))
    lines = [f"- {name}: {', '.join(f'{arm} {_value(value)}' for arm, value in own[name].items())}" for name in own]
    lines += [f"- their method: {', '.join(method)}"] if method else []
    return ["Arms that a claim compares differ in:", "", *lines, ""] if lines else []


def _value(value: Any) -> str:
    return "–" if value is None else str(value)


def claims_panel(claims: list[dict[str, Any]]) -> Panel:
    """The claims as a part of a table in LaTeX, without their evidence."""
    heads = [*_HEADS, "to decide it"]
    rows = [[*_row(claim), _takes(claim)] for claim in claims]
    return Panel("", heads, rows, [False, False, False, True, True, False])


def print_claims(claims: list[dict[str, Any]], console: Console) -> None:
    """Each claim with its verdict, then below it the evidence, the figures and the controls; what a control measured is
    said once."""
    if claims:
        console.print(f"Claims: {counted(claims)}", highlight=False)
    said: set[str] = set()
    for claim in claims:
        style = _STYLES.get(claim["verdict"], "yellow")
        console.print(Text.assemble((f"{shown(claim):>5}  ", style), f"{claim['text']} [{claim['source']}]"))
        # The sentence on the scale has n.
        n = "" if not claim["n"] or claim["scale"] else f"n = {claim['n']}"
        figures = ", ".join(filter(None, (n, _p(claim) and f"p {_equals(_p(claim))}", claim["scale"])))
        controls = [f"{line.partition(' (')[0]} (as above)" if line in said else line for line in _controls(claim)]
        said.update(_controls(claim))
        for line in (claim["evidence"], figures, *claim["flags"], *controls):
            if line:
                # Indented as a whole, also where it wraps.
                for part in textwrap.wrap(line, max(20, console.width - 7)):
                    console.print(Text(f"       {part}"), style="dim", highlight=False)


def _row(claim: dict[str, Any]) -> list[str]:
    n = "" if claim["n"] is None else str(claim["n"])
    return [claim["text"], claim["source"], shown(claim), n, _p(claim)]


def _p(claim: dict[str, Any]) -> str:
    """A probability with two digits, "" if there is none."""
    p = claim["p"]
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.2g}"


def _equals(p: str) -> str:
    return p.replace("<", "< ") if p.startswith("<") else f"= {p}"


def _takes(claim: dict[str, Any]) -> str:
    """What an open claim would take: seeds for 80 % power, and minutes for those that are missing."""
    if claim["n_needed"] is None:
        return ""
    minutes = claim["minutes_needed"]
    more = f", {minutes:.0f} min more" if minutes else ""
    return f"{claim['n_needed']} seeds{more}"


def _controls(claim: dict[str, Any]) -> Iterator[str]:
    for control in claim["controls"]:
        # The evidence says which arms and numbers the test is about.
        yield f"control {control['test'].split()[0]}: {shown(control)} ({control['evidence']})"


# ---- the picture of a table ----


FILES = ("claims.csv", "claims.png", "claims.pdf")
_WIDTH, _ROW, _LEFT, _RIGHT = 7.2, 0.17, 2.5, 0.7
"""Inches: of the picture, of a line, and of the names and numbers beside the axes."""
_LOOKS: dict[str, dict[str, Any]] = {
    "holds": {"color": COLOURS[2], "marker": "o"},
    "fails": {"color": COLOURS[1], "marker": "X"},
    "open": {"color": COLOURS[0], "marker": "D", "markerfacecolor": "white"},
    "cannot tell here": {"color": COLOURS[3], "marker": "s", "markerfacecolor": "white"},
}
"""Colour and marker of each verdict, which differ in both."""

Line = dict[str, Any]
"""A difference with its claim: claim, source, verdict, and the parts of `Comparison.as_json`."""


def lines_of(table: dict[str, Any]) -> list[Line]:
    """The differences of two arms that have an interval over seeds, in the order of the claims."""
    return [
        {"claim": claim["text"], "source": claim["source"], "verdict": claim["verdict"], "shown": shown(claim), **one}
        for claim in table["claims"]
        for one in claim["comparisons"]
        if one["paired"] and one["of"] == "seed" and one["interval"] is not None
    ]


def write_claims_figure(table: dict[str, Any], folder: Path) -> bool:
    """claims.png, claims.pdf and claims.csv beside a table; False, and none of them, where nothing is to be drawn."""
    lines = lines_of(table)
    write_picture(folder / "claims", (lambda: draw(table, lines)) if lines else None)
    if not lines:
        (folder / "claims.csv").unlink(missing_ok=True)
        return False
    write_text(folder / "claims.csv", pd.DataFrame(map(_flat, lines)).to_csv(index=False))
    return True


def _flat(line: Line) -> dict[str, Any]:
    """A line of claims.csv."""
    low, high = line["interval"]
    asked_low, asked_high = line["asked"] or (None, None)
    own = {key: line[key] for key in ("claim", "source", "verdict", "label", "metric", "unit", "n", "value", "stderr")}
    return {**own, "low": low, "high": high, "p_holm": line["p"], "asked_low": asked_low, "asked_high": asked_high}


def draw(table: dict[str, Any], lines: list[Line]) -> Figure:
    """A matplotlib figure: panels below each other, each as high as its lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        panels.setdefault((line["metric"], line["unit"]), []).append(line)
    rows = [_rows(panel) for panel in panels.values()]
    heights = [_ROW * len(panel) for panel in rows]
    about = textwrap.wrap(_about(table), 135)
    top, gap, bottom = 0.14 * len(about) + 0.12, 0.55, 0.85
    height = top + sum(heights) + gap * (len(rows) - 1) + bottom
    figure = Figure(figsize=(_WIDTH, height))
    figure.text(0.5, 1 - 0.06 / height, "\n".join(about), ha="center", va="top", fontsize=6.5, color="0.35")
    above = top
    for (metric, unit), panel, own in zip(panels, rows, heights, strict=True):
        place = (_LEFT / _WIDTH, 1 - (above + own) / height, 1 - (_LEFT + _RIGHT) / _WIDTH, own / height)
        _draw_panel(figure.add_axes(place), panel)
        figure.axes[-1].set_xlabel(_axis_label(metric, unit), fontsize=7.5)
        above += own + gap
    _name_looks(figure, lines)
    return figure


def _about(table: dict[str, Any]) -> str:
    sizes = {row["model"]["size"] for row in table["rows"] if row["model"]}
    models = f" ({', '.join(sorted(sizes))})" if sizes else ""
    return (
        f"{table['id']}: {table['title']}. Trained here at scale {table['scale']}{models}: differences paired by seed, "
        "with 95 % t-intervals over seeds; the verdicts add Holm's correction"
    )


def _axis_label(metric: str, unit: str) -> str:
    """What the numbers of a panel are: difference of retrieval loss far, after 20 steps (nats)."""
    parts = [part for part in metric.removeprefix("results.").split(".") if part not in ("tasks", "value")]
    steps = ""
    if len(parts) > 2 and parts[0] == "at":
        steps, parts = f", after {parts[1]} steps", parts[2:]
    what = f" of {' '.join(parts)}{steps}" if metric else ""
    return f"difference{what}" + (f" ({unit})" if unit else "")


def _rows(lines: list[Line]) -> list[str | Line]:
    """The lines of a panel, below each claim's sentence."""
    rows: list[str | Line] = []
    before = None
    for line in lines:
        if line["claim"] != before:
            before = line["claim"]
            rows += textwrap.wrap(f"{before} [{line['source']}]: {line['shown']}", 122)
        rows.append(line)
    return rows


def _draw_panel(ax: Axes, rows: list[str | Line]) -> None:
    """An interval with its mean on each line; in grey the range that the claim asks for, where that is not a side of
    0."""
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.axvline(0, color="0.5", linewidth=0.8, zorder=0)
    edge = -_LEFT / (_WIDTH - _LEFT - _RIGHT)
    for at, row in enumerate(rows):
        if isinstance(row, str):
            ax.axhspan(at - 0.5, at + 0.5, color="white", zorder=1)
            ax.text(edge + 0.02, at, row, transform=ax.get_yaxis_transform(), fontsize=6.2, va="center")
            continue
        low, high = row["interval"]
        look = _LOOKS[row["verdict"]]
        ax.errorbar(
            row["value"], at, xerr=[[row["value"] - low], [high - row["value"]]], capsize=2, markersize=4.5, **look
        )
        for bound in {bound for bound in row["asked"] or () if bound}:
            ax.plot([bound, bound], [at - 0.4, at + 0.4], color=PAPER, linewidth=1.6)
        name = textwrap.shorten(
            row["label"].partition(", ")[0] if row["metric"] else row["label"], 46, placeholder=" …"
        )
        ax.text(
            -0.015, at, name, transform=ax.get_yaxis_transform(), fontsize=6.2, ha="right", va="center", color="0.3"
        )
        ax.text(1.015, at, f"n = {row['n']}", transform=ax.get_yaxis_transform(), fontsize=6.2, va="center")
    ax.set_yticks([])
    ax.tick_params(labelsize=6.5)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def _name_looks(figure: Figure, lines: list[Line]) -> None:
    """The legend: verdicts, and the mark of a bound."""
    from matplotlib.lines import Line2D

    found = {line["verdict"] for line in lines}
    handles = [
        Line2D([], [], linestyle="-", markersize=4.5, label=word, **_LOOKS[word]) for word in _LOOKS if word in found
    ]
    if any(bound for line in lines for bound in line["asked"] or ()):
        handles.append(Line2D([], [], linestyle="none", marker="|", color=PAPER, label="bound that the claim names"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=7, frameon=False)
