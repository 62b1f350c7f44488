"""The claims of a table or figure: on its page, in LaTeX, on the terminal, and their comparisons as a picture.

hybridlab report sgt-selection --pdf --csv    # results/sgt-selection/desk/claims.png, claims.pdf, claims.csv

The picture has a line for each difference of two arms that has an interval over seeds, claims one below the other; a
panel for each quantity, so that small and large differences each have an axis of their own.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from hybridlab.files import write_text
from hybridlab.lab.papers.claims.comparison import in_full
from hybridlab.lab.papers.claims.verdict import MOST_SEEDS_HERE
from hybridlab.lab.papers.ids import VERDICTS
from hybridlab.lab.papers.plans import seeds_in_words
from hybridlab.lab.papers.verdicts import is_method
from hybridlab.lab.reporting.entry_data import Also, asked, write_picture
from hybridlab.lab.reporting.latex import Panel
from hybridlab.runs.style import COLOURS, PAPER
from hybridlab.statistics import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_STYLES = {
    "holds": "green",
    "fails": "red",
    "observed": "green",
    "opposite observed": "red",
    "cannot tell here": "magenta",
}
DASH = "–"
"""Shown for what was not measured, and where there is nothing to say."""
HEADS = ["", "claim [place]", "verdict", "effect [95 % interval], and what is required", "seeds", "controls", "flags"]
HEADS += ["to decide it"]
_SIGNS = {"holds": "✓", "fails": "✗", "observed": "✓", "opposite observed": "✗"}
"""Of the verdict on a control; ? for any other."""
_MARKS = {
    "plan": "after a change of plan",
    "page": "after the page's correction",
    "rates differ": "arms at different rates",
    "rates": "rate chosen by another metric",
    "own rate": "at another rate than its metric chose",
    "edge": "rate at the edge of the grid",
    "missed": "better at another rate",
    "training": "unequal training",
    "settled": "masks not settled",
    "seed": "hangs on one seed",
}
"""Code of a flag → its mark in the short form; without one its sentence is as short. A rate is any setting that was
searched."""


def own_claims(data: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The claims with their numbers, without those that ask the same of the same runs as an earlier one."""
    return [(i, claim) for i, claim in enumerate(data["claims"], 1) if claim["same_as"] is None]


def counted(data: dict[str, Any]) -> str:
    """How many claims have each verdict: holds 3 · open 2; "" if there are none."""
    counts = Counter(claim["verdict"] for _, claim in own_claims(data))
    return " · ".join(f"{word} {counts[word]}" for word in VERDICTS if counts[word])


def shown(claim: dict[str, Any]) -> str:
    """The verdict on a claim with its direction and note: fails: worse than claimed (after a change of plan)."""
    word = f"{claim['verdict']}: {claim['direction']}" if claim["direction"] else str(claim["verdict"])
    return f"{word} ({claim['note']})" if claim["note"] else word


# ---- the short form ----


def short_form(number: int, claim: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """A claim as the texts below HEADS."""
    marks = dict.fromkeys(_MARKS.get(flag["code"], flag["text"]) for flag in claim["flags"])
    notes = ", ".join(note for note in claim["note"].split(", ") if note not in marks)
    evidence = claim["evidence"] if claim["verdict"] != "not run" or not claim["comparisons"] else ""
    texts = [sentence(number, claim, data), shown({**claim, "note": notes}), evidence, _seeds(claim, data)]
    return [str(number), *(text or DASH for text in (*texts, _controls(claim), "; ".join(marks), _takes(claim)))]


def sentence(number: int, claim: dict[str, Any], data: dict[str, Any]) -> str:
    """The sentence of a claim with its place; those that ask the same of the same runs are one. Of sentences that only
    name other sizes of the paper the first stands there, with the sizes."""
    same = [claim, *(other for other in data["claims"] if other["same_as"] == number)]
    sizes = list(dict.fromkeys(size for stated in same for size in stated["sizes"]))
    texts: dict[str, str] = {}
    for stated in same:
        name = "|".join(map(re.escape, stated["sizes"])) or "$^"
        texts.setdefault(re.sub(name, "·", stated["text"]), f"{stated['text']} [{stated['source']}]")
    shared = f"; sizes {', '.join(sizes)}: the same runs here" if len(same) > 1 and len(sizes) > 1 else ""
    return "; of the same runs: ".join(texts.values()) + shared


def _seeds(claim: dict[str, Any], data: dict[str, Any]) -> str:
    """Seeds of those that were planned, as 5 of 5; the rounds of a benchmark."""
    n, planned, units = claim["n"], len(data["planned_seeds"]), {test["of"] for test in claim["comparisons"]}
    if n is None or not units:
        return ""
    if units != {"seed"}:
        return f"{n} {units.pop()}{'s' * (n != 1)}"
    return f"{n} of {planned}" if n <= planned else f"{n}, {planned} planned"


def _controls(claim: dict[str, Any]) -> str:
    """The numbers of the controls behind each sign: C1–C4, C6 ✓ C5 ✗."""
    signs: dict[str, list[int]] = {}
    for control in claim["controls"]:
        signs.setdefault(_SIGNS.get(control["verdict"], "?"), []).append(int(control["number"][1:]))
    return " ".join(f"{_ranges(sorted(signs[sign]))} {sign}" for sign in "✓✗?" if sign in signs)


def _ranges(numbers: list[int]) -> str:
    runs = [[i for _, i in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"C{run[0]}" + (f"–C{run[-1]}" if len(run) > 1 else "") for run in runs)


def _takes(claim: dict[str, Any]) -> str:
    """What an undecided claim would take: seeds for 80 % power, and the time for those that are missing."""
    needed, minutes = claim["n_needed"], claim["minutes_needed"] or 0
    if claim["verdict"] not in ("open", "cannot tell here") or claim["deciding"] is None:
        return ""
    p = claim["comparisons"][claim["deciding"]]["p"]
    # What is resolved by itself waits for something else than seeds.
    if needed is None and p is not None and p < LEVEL:
        return ""
    if needed is None or needed > MOST_SEEDS_HERE:
        return "not at this size"
    more = f", {minutes / 60:.0f} h more" if minutes >= 300 else f", {minutes:.0f} min more" if minutes else ""
    return f"{needed} {claim['comparisons'][claim['deciding']]['of']}s{more}"


# ---- the long form ----


def long_form(claim: dict[str, Any]) -> list[str]:
    """What the short form leaves out: each comparison with its interval, Holm's p and the number of each seed, the
    margin with its reason, what the verdict speaks of, its flags, and what would decide it."""
    lines = [*map(in_full, claim["comparisons"])]
    if claim["margin"] is not None:
        margins = "".join(f" {name} {value:g}," for name, value in claim["margin"]["values"].items())
        lines.append(f"margin:{margins} {claim['margin']['reason']}")
    # Without a number each comparison has said why.
    details = "" if lines and claim["deciding"] is None else claim["details"]
    return [line for line in (*lines, claim["scale"], *(flag["text"] for flag in claim["flags"]), details) if line]


def controls_in_words(data: dict[str, Any], long: bool = False) -> list[str]:
    """The controls, each once, under a line that says what they are; nothing without any. long: with their figures."""
    lines = ["Controls, which must hold for a claim to be read (✓ holds, ✗ fails, ? is not resolved):"]
    for number, control in data["controls"].items():
        figures = "; ".join(map(in_full, control["comparisons"])) or control["evidence"]
        sign = _SIGNS.get(control["verdict"], "?")
        lines.append(f"{number} {shown(control)}: {figures}" if long else f"{number} {sign} {control['text']}")
    return lines if data["controls"] else []


# ---- on a page, in LaTeX, on the terminal ----


@dataclass(frozen=True)
class ShownClaims:
    """The claims of a page as all of its formats show them.

    lines: the short form, the claim and the long form of each. hint: how the short form chooses among comparisons;
    planned: the seeds of the plan; "" for none. controls, controls_in_full: see `controls_in_words`.
    """

    counted: str
    hint: str
    planned: str
    lines: list[tuple[list[str], dict[str, Any], list[str]]]
    controls: list[str]
    controls_in_full: list[str]


def shown_claims(data: dict[str, Any]) -> ShownClaims:
    """What is shown of the claims of a table or figure."""
    claims = own_claims(data)
    several = any(len(claim["comparisons"]) > 1 for claim in data["claims"])
    planned = data["planned_seeds"] if "unit" not in data else []
    return ShownClaims(
        counted(data),
        " Of several comparisons the one is shown that is least as claimed." if several else "",
        f"Planned seeds: {seeds_in_words(planned)}." if planned else "",
        [(short_form(number, claim, data), claim, long_form(claim)) for number, claim in claims],
        controls_in_words(data),
        controls_in_words(data, long=True),
    )


def claims_section(data: dict[str, Any]) -> list[str]:
    """The claims as lines of Markdown, under a heading: the short form as a table, and folded below it the long one; an
    empty list if there are none."""
    if not data["claims"]:
        return []
    claims = shown_claims(data)
    table = markdown_table(HEADS, [short for short, _, _ in claims.lines], escaped_cell)
    lines = ["## Claims", "", f"{claims.counted}.{claims.hint}", "", *table, "", *_listed(claims.controls)]
    long = {f"**{short[0]}. {escaped_cell(short[1])}**: {shown(claim)}": full for short, claim, full in claims.lines}
    if any(long.values()):
        each = "" if "unit" in data else ", with the number of each seed"
        lines += ["<details>", f"<summary>Every comparison{each}</summary>", "", claims.planned, ""]
        lines += [line for head, full in long.items() if full for line in _listed([head, *full])]
        lines += [*_listed(claims.controls_in_full), "</details>", ""]
    return lines


def _listed(lines: list[str]) -> list[str]:
    """A line, and a list of the others, in Markdown."""
    return [lines[0], "", *(f"- {escaped_cell(line)}" for line in lines[1:]), ""] if lines else []


def markdown_table(heads: list[str], rows: list[list[str]], safe: Callable[[str], str]) -> list[str]:
    """The lines of a table of Markdown. safe: a text as it may stand in a cell."""
    return ["| " + " | ".join(map(safe, row)) + " |" for row in (heads, ["---"] * len(heads), *rows)]


def escaped_cell(text: str) -> str:
    """A text in which Markdown changes nothing, for a cell of a table too."""
    return re.sub(r"([*~<])", r"\\\1", text.replace("|", "/"))


def claims_panel(data: dict[str, Any]) -> Panel:
    """The claims in their short form as a part of a table in LaTeX."""
    return Panel("", HEADS, [short for short, _, _ in shown_claims(data).lines], [False] * len(HEADS))


def print_claims(data: dict[str, Any], console: Console, long: bool = False) -> None:
    """Each claim in its short form, or with the long one instead of its effect, then the controls."""
    if data["claims"]:
        console.print(f"Claims: {counted(data)}", highlight=False)
    claims = shown_claims(data)
    for (number, text, verdict, effect, seeds, controls, flags, takes), claim, full in claims.lines:
        console.print(Text.assemble(f"{number:>3}  ", (verdict, _STYLES.get(claim["verdict"], "yellow"))))
        parts = {"seeds ": seeds, "": controls, " ": flags, "to decide it: ": takes}
        rest = " · ".join(f"{name}{part}".strip() for name, part in parts.items() if part != DASH)
        _print_indented([text], console)
        _print_indented([*(full if long else [effect]), rest], console, style="dim")
    if lines := claims.controls_in_full if long else claims.controls:
        console.print(lines[0], highlight=False)
        _print_indented(lines[1:], console, style="dim")


def _print_indented(lines: list[str], console: Console, style: str = "") -> None:
    """Each line as a whole, also where it wraps."""
    for line in lines:
        for part in textwrap.wrap(line.removeprefix(DASH), max(20, console.width - 5)):
            console.print(Text(f"     {part}", style=style), highlight=False)


# ---- what is said of several pages, and beside the claims ----


def changed_plans(entries: list[dict[str, Any]]) -> list[str]:
    """A line for each claim of several entries that was decided after a change of plan, under a heading."""
    lines = [
        f"  {entry['id']}: {claim['text']}: {flag['text']}"
        for entry in entries
        for claim in entry.get("claims", ())
        for flag in claim["flags"]
        if claim["verdict"] not in ("open", "cannot tell here", "not run") and flag["code"] == "plan"
    ]
    return [f"Claims that are decided after a change of plan ({len(lines)}):", *lines] if lines else []


def differ_lines(data: dict[str, Any]) -> list[str]:
    """The settings in which arms differ that a claim of the page compares, those of the method by name alone, and what
    their final weights have seen, as lines of Markdown."""
    method = dict.fromkeys(name.split(".")[0] for name in data["differ"] if is_method(name))
    lines = [
        f"- {name}: {', '.join(f'{arm} {DASH if value is None else value}' for arm, value in values.items())}"
        for name, values in data["differ"].items()
        if not is_method(name)
    ]
    lines += [f"- their method: {', '.join(method)}"] if method else []
    lines = ["Arms that a claim compares differ in:", "", *lines, ""] if lines else []
    same: dict[str, list[str]] = {}
    for arm, trained in data["weights"].items():
        flops = DASH if trained["flops"] is None else f"{trained['flops']:.3g}"
        same.setdefault(f"{trained['steps']:,} steps, {trained['tokens']:,} tokens, {flops} FLOPs", []).append(arm)
    weights = [f"- {', '.join(arms)}: {amounts}" for amounts, arms in same.items()]
    return lines + (["What their final weights have been trained with:", "", *weights, ""] if weights else [])


# ---- the picture of a table ----


_WIDTH, _ROW, _LEFT, _RIGHT = 7.2, 0.17, 2.5, 0.7
"""Inches: of the picture, of a line, and of the names and numbers beside the axes."""
_LOOKS: dict[str, dict[str, Any]] = {
    "holds": {"color": COLOURS[2], "marker": "o"},
    "fails": {"color": COLOURS[1], "marker": "X"},
    "observed": {"color": COLOURS[2], "marker": "^"},
    "opposite observed": {"color": COLOURS[1], "marker": "v"},
    "open": {"color": COLOURS[0], "marker": "D", "markerfacecolor": "white"},
    "cannot tell here": {"color": COLOURS[3], "marker": "s", "markerfacecolor": "white"},
}
"""Colour and marker of each verdict, which differ in both."""

Line = dict[str, Any]
"""A difference with its claim: claim, source, verdict, and the parts of `Comparison.as_json`."""


def lines_of(table: dict[str, Any]) -> list[Line]:
    """The differences of two arms that have an interval over seeds, in the order of the claims."""
    return [
        {"claim": claim["text"], "source": claim["source"], "verdict": claim["verdict"], "shown": shown(claim), **test}
        for _, claim in own_claims(table)
        for test in claim["comparisons"]
        if test["paired"] and test["of"] != "round" and test["interval"] is not None
    ]


def write_claims_figure(table: dict[str, Any], folder: Path, also: Also = ()) -> bool:
    """claims.png beside a table, and claims.pdf and claims.csv if they are wanted; False, and none of them, where
    nothing is to be drawn."""
    lines, numbers = lines_of(table), folder / "claims.csv"
    write_picture(folder / "claims", (lambda: draw(table, lines)) if lines else None, also)
    if not lines:
        numbers.unlink(missing_ok=True)
    elif asked(numbers, also):
        import pandas as pd

        write_text(numbers, pd.DataFrame(map(_flat, lines)).to_csv(index=False))
    return bool(lines)


def _flat(line: Line) -> dict[str, Any]:
    """A line of claims.csv."""
    low, high = line["interval"]
    asked_low, asked_high = line["asked"] or (None, None)
    row = {key: line[key] for key in ("claim", "source", "verdict", "label", "metric", "unit", "n", "value", "stderr")}
    return {**row, "low": low, "high": high, "p_holm": line["p"], "asked_low": asked_low, "asked_high": asked_high}


def draw(table: dict[str, Any], lines: list[Line]) -> Figure:
    """A matplotlib figure: panels below each other, each as high as its lines."""
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
    for (metric, unit), panel, inches in zip(panels, rows, heights, strict=True):
        place = (_LEFT / _WIDTH, 1 - (above + inches) / height, 1 - (_LEFT + _RIGHT) / _WIDTH, inches / height)
        _draw_panel(figure.add_axes(place), panel)
        figure.axes[-1].set_xlabel(_axis_label(metric, unit), fontsize=7.5)
        above += inches + gap
    _name_looks(figure, lines)
    return figure


def _about(table: dict[str, Any]) -> str:
    sizes = {row["model"]["size"] for row in table["rows"] if row["model"]}
    models = f" ({', '.join(sorted(sizes))})" if sizes else ""
    unit = table.get("unit", "seed")
    return (
        f"{table['id']}: {table['title']}. {'Trained' if unit == 'seed' else 'Measured'} here at scale "
        f"{table['scale']}{models}: differences paired by {unit}, with 95 % t-intervals over {unit}s; the verdicts add "
        "Holm's correction"
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
    beside: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "fontsize": 6.2, "va": "center"}
    for at, row in enumerate(rows):
        if isinstance(row, str):
            ax.axhspan(at - 0.5, at + 0.5, color=ax.figure.get_facecolor(), zorder=1)
            ax.text(edge + 0.02, at, row, **beside)
            continue
        low, high = row["interval"]
        spread = [[row["value"] - low], [high - row["value"]]]
        ax.errorbar(row["value"], at, xerr=spread, capsize=2, markersize=4.5, **_LOOKS[row["verdict"]])
        for bound in {bound for bound in row["asked"] or () if bound}:
            ax.plot([bound, bound], [at - 0.4, at + 0.4], color=PAPER, linewidth=1.6)
        name = row["label"].partition(", ")[0] if row["metric"] else row["label"]
        ax.text(-0.015, at, textwrap.shorten(name, 46, placeholder=" …"), ha="right", color="0.3", **beside)
        ax.text(1.015, at, f"n = {row['n']}", **beside)
    ax.set_yticks([])
    ax.tick_params(labelsize=6.5)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def _name_looks(figure: Figure, lines: list[Line]) -> None:
    """The legend: verdicts, and the mark of a bound."""
    from matplotlib.lines import Line2D

    verdicts = {line["verdict"] for line in lines}
    handles = [
        Line2D([], [], linestyle="-", markersize=4.5, label=word, **_LOOKS[word]) for word in _LOOKS if word in verdicts
    ]
    if any(bound for line in lines for bound in line["asked"] or ()):
        handles.append(Line2D([], [], linestyle="none", marker="|", color=PAPER, label="bound that the claim names"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=7, frameon=False)
