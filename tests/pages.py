"""Pages of docs/ that are made from the code and from the committed tables: `python -m tests.pages` writes them."""

import json
from collections import Counter
from itertools import groupby

from hybridlab.config.documented import documented
from hybridlab.lab.papers.cells import records_of
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.plans import history
from hybridlab.lab.reporting.claims import escaped_cell, own_claims, short_form
from hybridlab.lab.reporting.entry_data import entry_data
from tests.conftest import PUBLISHED, ROOT
from tests.experiments import experiment_ids, load_experiment

HEADS = ["claim", "in", "verdict", "effect [95 % interval], and what is required", "seeds", "controls", "flags"]
HEADS += ["to decide it"]
OBSERVED = (
    "| claim | in | small models | SmolLM2-135M | effect [95 % interval], and what is required |\n|" + 5 * " --- |"
)
FRONT = f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}"
DESIGNED = {
    "consa": ("consa-allocation", "consa-depth"),
    "sgt": ("sgt-selection", "sgt-selection-18"),
    "spiral": ("spiral-loops", "spiral-anchor"),
    "depth": ("depth-growth", "depth-primitives", "depth-copying"),
    "saobp": ("saobp-refinement", "saobp-strong", "saobp-leak"),
}
"""The experiments that were designed to decide claims at scale desk."""
LADDERS = ("depth-ladder", "consa-ladder")
"""The ladders of sizes that are trained."""
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


def claims_page():
    """What holds, what fails and what is open: claims about models trained at scale desk, and prints that do not add
    up."""
    parts = [
        "# Claims: what holds, what fails, what is open",
        "",
        "[What we found](results.md) tells what these tables come to.",
        "",
        "Each row is a claim of a paper about trained models, of the experiments that were designed to decide it on",
        "models of 0.25M to 1M parameters (scale desk), in the [short form](evidence.md#how-a-claim-is-shown) of its",
        "page. Every comparison that a claim makes counts; the one that is least as claimed is shown. Claims that the",
        "tables and figures of the papers test as well are on their pages: `hybridlab list --claims` has all.",
    ]
    for paper in METHODS:
        rows = [row for identifier in DESIGNED[paper] for row in desk_rows(identifier)]
        parts += ["", f"## {METHODS[paper]}", "", FRONT, *rows]
    parts += ["", "## Mixtures of the methods", ""]
    parts += ["Comparisons that no paper makes: methods and pairs of them at equal training FLOPs.", "", FRONT]
    parts += desk_rows("hybrid-table1")
    parts += ["", "## Along a ladder of sizes", ""]
    parts += ["Whether what a method gains grows with the size of the model, from 0.25M to 1M parameters.", "", FRONT]
    parts += [row for identifier in LADDERS for row in desk_rows(identifier)]
    parts += ["", "## In a pretrained model", ""]
    parts += ["What the papers say of trained models, [observed](evidence.md#what-is-observed-in-a-pretrained-model)"]
    parts += [
        "in SmolLM2-135M-Instruct over 100 prompts or documents of each kind, beside the verdicts on the same sentence"
    ]
    parts += ["in the small models that were trained here.", "", OBSERVED, *observed_rows()]
    parts += ["", "## Printed numbers that do not add up", ""]
    parts += ["Sentences and tables of the papers that their own numbers contradict; the page says by which."]
    counts = Counter()
    for paper in METHODS:
        rows = list(dict.fromkeys(printed_failures(paper, counts)))
        parts += ["", f"### {METHODS[paper]}", "", f"{counts[paper]} checks hold, {len(rows)} fail:", ""]
        parts += rows
    return "\n".join(parts) + "\n"


def desk_rows(identifier):
    """The claims of a page about trained models, in their short form."""
    experiment = load_experiment(identifier)
    records, plans = records_of(experiment, "desk", PUBLISHED), history(identifier, "desk", PUBLISHED)
    data = entry_data(experiment, "desk", records, None, {}, plans=plans)
    place = f"[{identifier}](../results/published/{identifier}/desk/table.md)"
    for number, claim in own_claims(data):
        if claim["comparisons"]:
            _, text, *others = map(escaped_cell, short_form(number, claim, data))
            yield f"| {' | '.join((text, place, *others))} |"


def observed_rows():
    """The claims that a pretrained model was measured for, with the verdicts on trained models: that of the same claim
    at the largest scale, or those of the same sentence, before its parenthesis, on the paper's pages at scale desk."""
    for identifier in experiment_ids():
        seen, desk, smoke = (_page(identifier, scale) for scale in ("pretrained", "desk", "smoke"))
        trained = {claim["text"]: claim["verdict"] for page in (smoke, desk) for claim in page.get("claims", ())}
        for claim in seen.get("claims", ()):
            if claim["about"] == "trained" and claim["verdict"] != "not run":
                name = "table" if "rows" in seen else "figure"
                place = f"[{identifier}](../results/published/{identifier}/pretrained/{name}.md)"
                text = f"{claim['text']} [{claim['source']}]"
                small = trained.get(claim["text"]) or ", ".join(_verdicts_of(claim["text"], identifier)) or "–"
                cells = (escaped_cell(text), place, small, claim["verdict"])
                yield f"| {' | '.join((*cells, escaped_cell(claim['evidence'])))} |"


def _verdicts_of(sentence, identifier):
    """The different verdicts that the paper's pages at scale desk have of a sentence, whatever is in parentheses."""
    paper = identifier.partition("-")[0]
    pages = (_page(other, "desk") for other in experiment_ids() if other.startswith(f"{paper}-"))
    claims = [claim for page in pages for claim in page.get("claims", ())]
    stem = sentence.partition(" (")[0]
    return sorted({claim["verdict"] for claim in claims if claim["text"].partition(" (")[0] == stem})


def _page(identifier, scale):
    """A committed page as data; empty if there is none."""
    found = sorted((PUBLISHED / identifier / scale).glob("*.json"))
    return as_read(json.loads(found[0].read_text())) if found else {}


def printed_failures(paper, counts):
    for identifier in experiment_ids():
        if not identifier.startswith(f"{paper}-"):
            continue
        pages = [
            path for scale in ("desk", "smoke") for path in sorted((PUBLISHED / identifier / scale).glob("*.json"))
        ]
        for claim in as_read(json.loads(pages[0].read_text()))["claims"] if pages else ():
            if claim["comparisons"]:
                continue
            counts[paper] += claim["verdict"] == "holds"
            if claim["verdict"] == "fails":
                place = f"[{identifier}](../{pages[0].with_suffix('.md').relative_to(ROOT)})"
                yield f"- {claim['text']} ({claim['source']}; {place})"


PAGES = {"settings.md": settings_page, "claims.md": claims_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / name).write_text(page())
