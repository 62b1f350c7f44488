"""The claims of a table or figure on its page, in LaTeX and on the terminal: verdict, figures, what is missing."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from hybridlab.papers.ids import VERDICTS
from hybridlab.papers.plans import CHANGED
from hybridlab.papers.verdicts import is_method
from hybridlab.reporting.latex import Panel

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
    return [f"{len(lines)} claims are decided after a change of plan:", *lines] if lines else []


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
