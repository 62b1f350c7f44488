"""Pages of docs/ that are made from the code and from the committed tables: `python -m tests.pages` writes them."""

import json
from collections import Counter
from itertools import groupby

from hybridlab.config.documented import documented
from tests.conftest import ROOT
from tests.experiments import experiment_ids, load_experiment

FRONT = (
    "| claim | in | verdict | comparisons | the one that is least as claimed (± s.e.) | seeds |\n"
    "| --- | --- | --- | --- | --- | --- |"
)
DESIGNED = {
    "consa": ("consa-allocation", "consa-depth"),
    "sgt": ("sgt-selection", "sgt-selection-18"),
    "spiral": ("spiral-loops", "spiral-anchor"),
    "depth": ("depth-growth", "depth-primitives", "depth-copying"),
    "saobp": ("saobp-refinement", "saobp-leak"),
}
"""The experiments that were designed to decide claims at scale desk."""
METHODS = {"consa": "ConSA", "sgt": "SGT", "spiral": "SpiralFormer", "depth": "MIDAS and LIDAS", "saobp": "SAOBP"}


def settings_page():
    parts = ["# Settings", ""]
    parts += ["Every setting, from the schema; `hybridlab config schema training` shows a part of it in the terminal."]
    parts += [
        "Settings of one kind of map, controller or plan edit say so in brackets. N stands for an index in a list."
    ]
    parts += ["Layers and heads count from 0."]
    for section, settings in groupby(documented(), lambda setting: setting.name.split(".")[0]):
        parts += ["", f"## {section}", ""]
        parts += [f"- `{one.name}` {escaped(one.in_words)}: {escaped(one.meaning)}" for one in settings]
    return "\n".join(parts) + "\n"


def escaped(text):
    """A text in which Markdown and HTML change nothing."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def results_page():
    """What holds, what fails and what is open: claims about models trained at scale desk, and prints that do not add
    up."""
    parts = [
        "# What holds, what fails, what is open",
        "",
        "Each row is a claim of a paper about trained models, tested here on models of 0.4M to 1.4M parameters (scale",
        "desk). Every comparison that a claim makes counts; the least favourable one is shown.",
        "[When a number decides a claim](evidence.md) has the rule.",
    ]
    for paper in METHODS:
        rows = [row for identifier in DESIGNED[paper] for row in desk_rows(identifier)]
        parts += ["", f"## {METHODS[paper]}", "", FRONT, *rows]
    parts += ["", "## Printed numbers that do not add up", ""]
    parts += ["Sentences and tables of the papers that their own numbers contradict; the page says by which."]
    counts = Counter()
    for paper in METHODS:
        rows = list(dict.fromkeys(printed_failures(paper, counts)))
        parts += ["", f"### {METHODS[paper]}", "", f"{counts[paper]} checks hold, {len(rows)} fail:", ""]
        parts += rows
    return "\n".join(parts) + "\n"


def desk_rows(identifier):
    table = json.loads((ROOT / "results" / identifier / "desk" / "table.json").read_text())
    return [front_row(claim, identifier) for claim in table["claims"] if claim["comparisons"]]


def printed_failures(paper, counts):
    for identifier in experiment_ids():
        if not identifier.startswith(f"{paper}-"):
            continue
        pages = [
            path
            for scale in ("desk", "smoke")
            for path in sorted((ROOT / "results" / identifier / scale).glob("*.json"))
        ]
        for claim in json.loads(pages[0].read_text()).get("claims", []) if pages else ():
            if claim["comparisons"]:
                continue
            counts[paper] += claim["verdict"] == "holds"
            if claim["verdict"] == "fails":
                place = f"[{identifier}](../{pages[0].with_suffix('.md').relative_to(ROOT)})"
                yield f"- {claim['text']} ({claim['source']}; {place})"


def front_row(claim, identifier):
    """A row of the table: every comparison of a claim is counted, the least favourable one is shown, and a verdict says
    what its page says of it."""
    verdict = f"{claim['verdict']} ({claim['note']})" if claim["note"] else claim["verdict"]
    measured = [one for one in claim["comparisons"] if one["n"]]
    planned = load_experiment(identifier).scales["desk"].seeds
    start = f"| {claim['text']} | [{identifier}](../results/{identifier}/desk/table.md) | {verdict}"
    if not measured:
        return f"{start} | – | – | 0 of {len(planned)} |"
    resolved = [one for one in measured if one["p"] is not None and one["p"] < 0.05]
    met = [one for one in resolved if short_by(one) < 0]
    if any(one["asked"] is None for one in measured):
        words = ["–"]  # an order or a trend over all of them
    else:
        words = [f"{len(met)} of {len(claim['comparisons'])} as claimed"]
        words += [f"{len(resolved) - len(met)} opposite"] if len(resolved) > len(met) else []
    worst = max(measured, key=short_by)
    spread = "(one seed)" if worst["stderr"] is None else f"± {worst['stderr']:.4f}"
    shown = f"{worst['label']}: {worst['value']:+.4f} {spread}"
    seeds = f"{min(one['n'] for one in measured)} of {len(planned)}"
    return f"{start} | {', '.join(words)} | {shown} | {seeds} |"


def short_by(comparison):
    """By how many standard errors a comparison misses what the claim asks; negative where it is as asked."""
    low, high = comparison["asked"] or (None, None)
    gaps = [low - comparison["value"]] if low is not None else []
    gaps += [comparison["value"] - high] if high is not None else []
    return max(gaps, default=0.0) / (comparison["stderr"] or 1e-12)


PAGES = {"settings.md": settings_page, "results.md": results_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page())
