"""How claims are shown: the short form, the long one below it, controls by number, claims of the same runs as one."""

import copy
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hybridlab.lab.cli.main import app
from hybridlab.lab.papers.cells import records_of
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.verdict import SHORT, Flag, Verdict
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.plans import history
from hybridlab.lab.reporting.claims import claims_panel, claims_section, counted, print_claims, sentence, short_form
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.lab.reporting.entry_data import entry_data
from hybridlab.lab.reporting.latex import tex_table
from hybridlab.statistics import Below, Between
from tests.unit.test_verdicts_of_a_page import A, B, Toy

LOW = {0: -2.0, 1: -2.1, 2: -1.9}

# ---- claims ----


def claim(verdict, text="A is better", **more):
    data = {"text": text, "source": "section 1", **verdict.as_json()}
    return {**data, "margin": None, "controls": [], "sizes": [], "same_as": None, **more}


def page(*claims, seeds=(0, 1, 2), controls=None):
    return {"claims": list(claims), "planned_seeds": list(seeds), "controls": controls or {}, "id": "toy"}


MET = (Comparison("a − b", LOW, Below()),)


def judged(word, comparisons=MET, **more):
    holds = {"holds": True, "fails": False}.get(word)
    numbers = tuple(one.as_json(one.found.p) for one in comparisons)
    return Verdict(holds, "", word=word, comparisons=numbers, deciding=0, **{"n": 3, **more})


SAME = (Comparison("a − b", dict.fromkeys(range(3), 0.0), Below(), paired=True),)
WEAK = (Comparison("a − b", {0: 0.1, 1: -0.2, 2: 0.3}, Below()),)


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (judged("fails", direction="worse than claimed"), {2: "fails: worse than claimed", 4: "3 of 3", 7: "–"}),
        (judged("holds", note="3 of 5 seeds so far"), {2: "holds (3 of 5 seeds so far)"}),
        (judged("holds", n=4), {4: "4, 3 planned"}),
        (judged("open", WEAK, n_needed=12, minutes_needed=40.2), {7: "12 seeds, 40 min more"}),
        (judged("open", WEAK, n_needed=12, minutes_needed=0.0), {7: "12 seeds"}),
        (judged("open", WEAK, n_needed=100, minutes_needed=900.0), {7: "100 seeds, 15 h more"}),
        (judged("open", WEAK, n_needed=101, minutes_needed=40.0), {7: "not at this size"}),
        (judged("open", WEAK), {7: "not at this size"}),
        (judged("open", SAME), {7: "not at this size"}),
        # It is resolved, but not among all claims of its page, or a control fails: more seeds are no answer.
        (judged("open", note="after the page's correction"), {7: "–"}),
        (judged("cannot tell here"), {7: "–"}),
        (Verdict(True, "printed: 3 of 3"), {3: "printed: 3 of 3", 4: "–", 5: "–", 6: "–", 7: "–"}),
        (Verdict(None, "needs a model", word="not run"), {2: "not run", 3: "needs a model"}),
    ],
)
def test_the_short_form(verdict, shown):
    row = short_form(1, claim(verdict), page())
    assert {i: row[i] for i in shown} == shown and row[:2] == ["1", "A is better [section 1]"]


def test_rounds_of_a_benchmark_are_not_seeds():
    assert (
        short_form(1, claim(judged("holds", [Comparison("times", LOW, Below(), of="round")])), page())[4] == "3 rounds"
    )


def test_a_claim_without_numbers_has_a_dash_and_says_below_why():
    missing = (Comparison("a − b", {}, Below(), missing="a − b: not run: a"),)
    none = claim(Verdict(None, "a − b: not run: a", word="not run", n=0, comparisons=(missing[0].as_json(None),)))
    assert short_form(1, none, page())[3:5] == ["–", "0 of 3"]
    assert "- a − b: not run: a" in claims_section(page(none))


def test_controls_are_named_by_number_behind_their_verdict():
    words = ["holds", "holds", "fails", "holds", "holds", "holds", "open", "not run"]
    controls = [{"number": f"C{i}", "verdict": word, "n": 5} for i, word in enumerate(words, 1)]
    row = short_form(1, claim(judged("cannot tell here"), controls=controls), page())
    assert row[5] == "C1–C2, C4–C6 ✓ C3 ✗ C7–C8 ?"


def test_flags_are_short_marks_and_are_said_once():
    flags = (
        Flag("plan", "decided after a change of plan on 2026-01-01: its test (by)"),
        Flag("rates differ", "lr was chosen by loss: a 1, b 2"),
        Flag("rates differ", "lr was chosen by loss: a 1, c 2"),
        Flag("same", "the same numbers as claim 3"),
    )
    shown = claim(judged("holds", note="3 of 5 seeds so far, after a change of plan", flags=flags))
    row = short_form(1, shown, page())
    assert row[6] == "after a change of plan; arms at different rates; the same numbers as claim 3"
    assert row[2] == "holds (3 of 5 seeds so far)", "what a flag says needs no second word"
    text = "\n".join(claims_section(page(shown)))
    assert all(f"- {flag}" in text for flag in flags)


def test_no_cell_of_the_short_form_is_long():
    label = "1.7B/midas: mean local future effect on the last block of layers of the second-to-last block " * 3
    many = [Comparison(label, {0: 1.0, 1: 2.0, 2: 3.0}, Between(-0.0014, 0.0014), unit=" nats")] * 2
    for verdict in (judged("open", many, n_needed=12), Verdict(True, "12 of 12 averages follow, " * 80)):
        data = page(claim(verdict))
        assert max(len(cell) for cell in short_form(1, data["claims"][0], data)[2:]) <= SHORT
        long = "\n".join(claims_section(data))
        assert (label in long) if verdict.comparisons else long.count("12 of 12 averages follow") > 80


def test_a_page_has_the_short_form_as_a_table_and_the_long_one_folded():
    margin = {"values": {"margin": 0.1}, "reason": "a tenth of the gain"}
    controls = {"C1": {"text": "a: loss below 3", **judged("holds").as_json()}}
    beside = [{"number": "C1", "verdict": "holds", "n": 3}]
    verdict = judged("open", WEAK, n_needed=7, scale="at desk scale (n = 3)")
    data = page(claim(verdict, "LoopedFormer* is |better|", margin=margin, controls=beside), controls=controls)
    data["claims"].append(claim(Verdict(True, "printed")))
    lines = claims_section(data)
    assert lines[:3] == ["## Claims", "", "holds 1 · open 1."]
    assert lines[6].startswith(r"| 1 | LoopedFormer\* is /better/ [section 1] | open | a − b = +0.0667 [")
    at = lines.index("<details>")
    assert lines[at + 3] == "Planned seeds: 0 to 2." and lines[-2] == "</details>"
    assert [line for line in lines[:at] if line.startswith("- C1")] == ["- C1 ✓ a: loss below 3"]
    long = lines[at:]
    assert "- margin: margin 0.1, a tenth of the gain" in long and "- at desk scale (n = 3)" in long
    assert any("by seed: 0 +0.1000, 1 -0.2000, 2 +0.3000" in line for line in long)
    assert any(line.startswith("- C1 holds: a − b = -2.0000 ± ") and "by seed: 0 -2.0000" in line for line in long)
    assert not any("2. A is better" in line for line in long), "the table has all of it"
    assert claims_section(page()) == []


def test_in_latex_the_short_form_and_the_controls():
    controls = {"C1": {"text": "a: loss below 3", **judged("fails").as_json()}}
    beside = [{"number": "C1", "verdict": "fails", "n": 3}]
    data = page(claim(judged("cannot tell here"), controls=beside), controls=controls)
    assert claims_panel(data).rows == [short_form(1, data["claims"][0], data)]
    text = tex_table("toy", "claims", [claims_panel(data)])
    assert r"C1 $\times$" in text and "U+" not in text


@pytest.mark.parametrize("long", [False, True])
def test_on_a_terminal_of_80_columns(long, capsys):
    controls = {"C1": {"text": "a: loss below 3", **judged("fails").as_json()}}
    beside = [{"number": "C1", "verdict": "fails", "n": 3}]
    several = claim(judged("open", WEAK, n_needed=7, minutes_needed=3.0), "many words " * 20, controls=beside)
    data = page(several, several, claim(Verdict(True, "printed")), controls=controls)
    print_claims(data, Console(width=80), long)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and lines[:2] == ["Claims: holds 1 · open 2", "  1  open"]
    text = " ".join(line.strip() for line in lines)
    assert text.count("C1 fails: " if long else "C1 ✗ a: loss below 3") == 1
    assert text.count("seeds 3 of 3 · C1 ✗ · to decide it: 7 seeds, 3 min more") == 2
    assert ("by seed: 0 +0.1000" in text) == long


# ---- pages of an experiment ----


def data_of(toy):
    experiment = toy.load()
    plans = history(experiment.id, "desk", toy.results)
    return entry_data(experiment, "desk", records_of(experiment, "desk", toy.results), None, {}, plans=plans)


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def sized(toy, *more):
    """Two sizes of the paper that have the same runs here, and one claim for each."""
    cells = {"arch": "vanilla", "phase": "one"}, {"arch": "all-window", "phase": "one"}
    for size in ("160M", "410M"):
        toy.content["cells"] |= {
            f"{size}/{name}": {**cell, "group": size} for name, cell in zip("ab", cells, strict=True)
        }
        toy.content["rows"] += [{"name": f"{n} {size}", "short": f"{size} {n}", "cell": f"{size}/{n}"} for n in "ab"]
    tests = [f"loss[{size}/a] < [{size}/b]" for size in ("160M", "410M")]
    texts = ["a is below b at 160M", "a is below b at 410M"]
    both = zip([*texts, *more], [*tests, tests[1]], strict=False)
    toy.content["claims"] = [{"text": text, "source": "here", "test": test} for text, test in both]
    toy.train(a=A, b=B)
    return data_of(toy)


def test_sizes_of_the_paper_with_the_same_runs_are_one_claim(toy):
    data = sized(toy)
    assert [one["same_as"] for one in data["claims"]] == [None, 1] and counted(data) == "holds 1"
    assert [one["verdict"] for one in data["claims"]] == ["holds", "holds"], "each claim stays in table.json"
    rows = [line for line in claims_section(data) if line.startswith(("| 1", "| 2"))]
    assert len(rows) == 1
    assert rows[0].startswith("| 1 | a is below b at 160M [here]; sizes 160M, 410M: the same runs here | holds |")


def test_another_sentence_on_the_same_runs_stays_on_the_page(toy):
    data = sized(toy, "410M is better with a")
    assert [one["same_as"] for one in data["claims"]] == [None, 1, 1]
    text = sentence(1, data["claims"][0], data)
    assert text.startswith(
        "a is below b at 160M [here]; of the same runs: 410M is better with a [here]; sizes 160M, 410M"
    )


def test_the_same_question_turned_round_is_the_same_claim(toy):
    toy.content["claims"].append({**toy.content["claims"][0], "text": "another", "test": "loss[b] > [a]"})
    toy.train(a=A, b=B)
    assert [one["same_as"] for one in data_of(toy)["claims"]] == [None, 1]


@pytest.mark.parametrize(
    "change", [{"test": "loss[a] - [b] < -0.001"}, {"test": "loss[a] < [c]"}, {"controls": ["loss[a] < 2"]}]
)
def test_other_questions_other_runs_and_other_verdicts_are_other_claims(toy, change):
    toy.content["cells"]["c"] = {"arch": "all-window", "phase": "one", "config": {"window": 2}}
    toy.content["claims"].append({**copy.deepcopy(toy.content["claims"][0]), "text": "another", **change})
    toy.train(a=A, b=B, c=B)
    assert [one["same_as"] for one in data_of(toy)["claims"]] == [None, None]


def test_a_control_of_several_claims_stands_once_on_the_page(toy):
    solved = "loss[a, b] < 4"
    blind = "loss[a] > 5"
    first = toy.content["claims"][0]
    toy.content["claims"] = [
        {**first, "text": "one", "controls": [solved]},
        {**first, "text": "two", "controls": [blind, solved]},
    ]
    toy.train(a=A, b=B)
    data = data_of(toy)
    assert {number: one["text"] for number, one in data["controls"].items()} == {
        "C1": "a below 4; b below 4",
        "C2": "a above 5",
    }
    assert [short_form(i, one, data)[5] for i, one in enumerate(data["claims"], 1)] == ["C1 ✓", "C1 ✓ C2 ✗"]
    assert len(data["controls"]["C1"]["comparisons"]) == 2


def test_the_file_has_all_that_the_page_shows(toy):
    toy.content["claims"][0]["test"] = {"holds": "abs(loss[a] - [b]) < 0.01", "reason": "small"}
    toy.train(a=A, b=B)
    toy.content["claims"][0]["test"]["holds"] = "abs(loss[a] - [b]) < 0.02"
    _, folder = write_entry(toy.load(), "desk", toy.results)
    data = as_read(json.loads((folder / "table.json").read_text()))
    [found] = data["claims"]
    assert found["margin"] == {"values": {}, "reason": "small"} and found["deciding"] == 0
    assert (found["verdict"], found["direction"]) == ("fails", "lower than claimed")
    assert [flag["code"] for flag in found["flags"]] == ["plan"] and data["planned_seeds"] == [0, 1, 2, 3]
    assert found["evidence"].startswith("a − b = -0.2050 [") and found["evidence"].endswith(
        "nats, required -0.02 to +0.02"
    )
    assert "\n".join(claims_section(data)) in (folder / "table.md").read_text()


def report(toy, *options):
    folders = ["--results-dir", str(toy.results), "--runs-dir", str(toy.results)]
    return CliRunner().invoke(app, ["report", str(toy.path), *folders, *options])


def test_the_command_prints_the_long_form_if_asked(toy):
    toy.train(a=A, b=B)
    short, long = report(toy).stdout, report(toy, "--long").stdout
    assert "seeds 4 of 4" in short and "by seed" not in short and "by seed: 0 -0.2000" in long
    assert max(map(len, long.splitlines())) <= 80


def test_the_long_form_has_no_effect_on_json(toy):
    toy.train(a=A, b=B)
    assert "--long prints the claims with all numbers; leave it out with --json" in str(
        report(toy, "--long", "--json").exception
    )
