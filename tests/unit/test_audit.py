"""`hybridlab audit`: checks of printed numbers, of the five papers and of tables that this project has never seen."""

import ast
import csv
import json
import re
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers import audit
from hybridlab.lab.papers.claims.kinds import Given
from hybridlab.lab.papers.claims.numbers import cells_of, value_of
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.formula import names_in
from hybridlab.lab.papers.own_table import read_table
from hybridlab.lab.papers.questions import questions_of
from tests.conftest import ROOT
from tests.experiments import load_experiment
from tests.unit.test_intervals import moved_within

CSV = """\
model,ARC-E,PIQA,Average,Gain,Change,Ratio,Total
checks,of 2376,of 1838,mean of ARC-E; PIQA,difference of Average; Average in Base,change of PIQA; PIQA in Base,\
ratio of ARC-E; PIQA,sum of ARC-E; PIQA
Base,40.28,62.46,51.37,,,0.645,102.74
Ours,41.29,63.06,52.18,0.81,1.0,0.655,104.35
"""


@cache
def checks():
    return audit.audit(audit.asked([]))


def command(*arguments):
    return CliRunner().invoke(app, ["audit", *arguments], catch_exceptions=True)


# ---- the five papers ----


def test_every_paper_is_audited_and_every_check_has_its_numbers():
    found = checks()
    assert len(found) >= 900 and set(audit.counts(found)) == {"consa", "depth", "saobp", "sgt", "spiral", "all"}
    assert set(Counter(check.about for check in found)) == {"sentence", "cell", "score", "row", "scaling"}
    for check in found:
        assert check.verdict in audit.VERDICTS and check.place and (check.why or check.formula)
        assert bool(check.why) == (check.verdict == "cannot be checked")
        assert check.quote or check.about != "sentence"


def test_no_numbers_that_are_printed_so_make_a_sentence_true_that_disagrees():
    """By draws of numbers that round to the printed ones, and not by intervals."""
    chance, tested = np.random.default_rng(5), 0
    entries = sorted({check.entry for check in checks() if check.about == "sentence" and check.verdict == "disagrees"})
    for experiment in map(load_experiment, entries):
        found = iter([check for check in audit.audit([experiment]) if check.about == "sentence"])
        for claim in (one for one in (*experiment.claims, *experiment.checks) if one.test.is_exact):
            if claim.test.expression is None:
                next(found)
                continue
            read = claim.test.expression
            try:
                cells = cells_of(Given(experiment, {}), read)
            except Exception:
                next(found)
                continue
            counted = {} if "round(" in claim.test["holds"] else counted_in(experiment, read, cells)
            for tree in read.parts:
                drawn = [value_of(tree, moved(tree, cells, counted, chance)) for _ in range(40)]
                possible = np.any(drawn, axis=0)
                for place in np.ndindex(possible.shape):
                    check = next(found)
                    if check.verdict in ("disagrees", "truncated", "rounded twice"):
                        assert not possible[place], check
                        tested += 1
        assert next(found, None) is None
    assert tested > 150


def moved(tree, cells, counted, chance):
    """Cells with other numbers that are printed as they are; not the number that others are to round to."""
    rounding = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "rounds_to")
    stays = {name for node in rounding for name in names_in(node.args[1])}
    found = {}
    for name, one in cells.items():
        found[name] = one if name in stays else moved_within(one, chance)
        for place, values in counted.get(name, {}).items() if name not in stays else ():
            found[name].numbers[place] = chance.choice(values)
    return found


def counted_in(experiment, read, cells):
    """Name → place → the shares of a benchmark's questions that are printed as the score there."""
    found = {}
    for name, bracket in read.brackets.items():
        if bracket.of != ("printed",):
            continue
        there = experiment.other(bracket.elsewhere or experiment.id)
        questions = questions_of(there)
        for i, row in enumerate(cells[name].rows):
            for j, column in enumerate(cells[name].columns):
                digits = there.column(column).digits_of(there.row(row))
                if (count := questions.get((row, column))) and (
                    values := shares_of(float(cells[name].numbers[i, j]), digits, count)
                ):
                    found.setdefault(name, {})[i, j] = values
    return found


@cache
def shares_of(value, digits, questions):
    near = 100 * np.arange(questions + 1) / questions
    return near[np.abs(near - value) <= 0.5 * 10.0**-digits + 1e-9].tolist()


def test_a_cell_is_what_the_function_gives_rounded():
    found = [check for check in checks() if check.about == "cell"]
    for check in found:
        printed, value = (float(text.replace(",", "")) for text in (check.printed, check.recomputed))
        digits = len(check.printed.partition(".")[2])
        near = abs(round(value, digits) - printed) < 10**-digits / 2
        assert near == (check.verdict == "agrees") or abs(abs(value - printed) - 0.5 * 10**-digits) < 1e-4 * value, (
            check
        )


@pytest.mark.parametrize(
    ("printed", "digits", "value", "verdict"),
    [
        (1.24, 2, 1.2351, "agrees"),
        (1.23, 2, 1.2351, "truncated"),
        (3.72, 2, 3.7148, "rounded twice"),
        (1.25, 2, 1.2351, "disagrees"),
        (-1.23, 2, -1.2351, "truncated"),
        (1.2, 1, 1.25, "agrees"),
        (1.3, 1, 1.25, "agrees"),
        (8, 0, 8.4, "agrees"),
        (8, 0, 8.9, "truncated"),
        (8, 0, 9.0, "disagrees"),
        (0.0, 2, 0.008, "truncated"),
        (0.0, 2, -0.008, "disagrees"),
    ],
)
def test_how_a_number_is_printed(printed, digits, value, verdict):
    assert audit._of_number(printed, digits, value) == verdict


def verdicts_of(entry, about, part=""):
    """Place → verdict of the checks of an entry whose sentence, or place, has a part."""
    return {
        check.place.rpartition(": ")[2]: check.verdict
        for check in checks()
        if check.entry == entry and check.about == about and part in f"{check.quote} {check.place}"
    }


def test_a_count_of_1024_questions_gives_none_of_these_accuracies():
    found = {
        check.place.rpartition(": ")[2]: (check.verdict, check.recomputed)
        for check in checks()
        if check.quote.startswith("All values are the average over 1,024 samples")
    }
    assert found["Medium ElemMul"] == ("disagrees", "33.1055 or 33.2031")
    assert found["Small Low"] == ("disagrees", "28.7109 or 28.8086")
    assert Counter(verdict for verdict, _ in found.values()) == {"disagrees": 8, "truncated": 3, "agrees": 1}


def test_correlations_that_hang_on_one_row():
    found = {check.formula.partition(";")[0]: check for check in checks() if check.about == "row"}
    assert {name: check.verdict for name, check in found.items()} == {
        "Pearson's r of GTD with Acc": audit.ONE_ROW,
        "Pearson's r of IE with Acc": audit.ONE_ROW,
        "Pearson's r of BC with Acc": audit.ONE_ROW,
        "Pearson's r of GTD with CC": audit.ONE_ROW,
        "Pearson's r of GTD with BC": audit.ONE_ROW,
    }
    clustering = found["Pearson's r of GTD with CC"]
    assert clustering.printed == "+0.68 (p 0.014) over 12 rows"
    assert clustering.formula.endswith("; without Medium Low -0.16 (p 0.64): another sign, p is no longer below 0.05")
    assert "without Medium Low +0.08 (p 0.8): another sign" in found["Pearson's r of GTD with Acc"].formula


def test_throughputs_that_do_not_go_with_the_batch():
    found = verdicts_of("sgt-table10", "scaling")
    assert found["4 Vanilla 275M against 2 Vanilla 275M, decode"] == "disagrees"
    assert found["2 Vanilla 275M against 1 Vanilla 275M, decode"] == "agrees"
    off = {place for place, verdict in found.items() if verdict == "disagrees"}
    twice = {"4 {} 275M against 2 {} 275M, decode", "4 {} 275M against 2 {} 275M, prefill"}
    twice |= {"2 {} 573M against 1 {} 573M, prefill", "4 {} 573M against 2 {} 573M, prefill"}
    assert off == {text.format(model, model) for text in twice for model in ("Vanilla", "SGT", "Block Loop")}


def test_what_else_the_tables_contradict():
    assert set(verdicts_of("saobp-table9", "sentence", "latency of inference").values()) == {"disagrees"}
    assert len(verdicts_of("saobp-table9", "sentence", "(at most 10 %, BP-High)")) == 3
    assert set(verdicts_of("saobp-table9", "sentence", "128 over the throughput").values()) == {"agrees"}
    assert set(verdicts_of("saobp-table1", "sentence", "stable entropy levels").values()) == {"disagrees"}
    [step] = [one for one in checks() if "the second token of a chunk, i = jg + 1" in one.quote]
    assert step.verdict == "disagrees" and step.formula.endswith("never with s ≥ 2, always with the others")
    proofs = Counter(one.verdict for one in checks() if one.entry == "spiral-table2" and "cases of" in one.formula)
    assert proofs == {"agrees": 10, "disagrees": 4}


def test_a_claim_is_checked_and_named():
    sentences = [check for check in checks() if check.about == "sentence"]
    assert not [check for check in sentences if check.verdict == "cannot be checked"]
    for check in sentences:
        assert not check.claim or re.fullmatch(rf"claim \d+ of {check.entry}: (holds|fails)", check.claim)
        assert check.verdict == "agrees" or check.claim.endswith(": fails") or not check.claim
    claimed = [check for check in checks() if check.about == "score" and check.claim]
    assert len(claimed) > 150
    [average] = [one for one in claimed if one.place.endswith("410M Looped 5-shot, Avg")]
    assert (average.verdict, average.printed) == ("disagrees", "45.56")
    assert average.claim == "Every printed average is the mean of its row (claim 1 of spiral-table3: fails)"
    shown = command("spiral-table3").stdout
    assert "claim 1 of spiral-table3: fails" in " ".join(shown.split()) and shown.count("45.56") == 2


# ---- invented tables ----


def experiment_of(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(f"id: mine\ntitle: t\npaper: mine\nsource: s\n{text}")
    return audit.asked([str(tmp_path / "mine.yaml")])


def outcomes(tmp_path, text, about="sentence"):
    return [check for check in audit.audit(experiment_of(tmp_path, text)) if check.about == about]


def test_rounded_twice_is_decided_for_counts(tmp_path):
    """1,265 of 1,838 are 68.8248 %: 68.825, then 68.83. No number in between is a count, so that 68.84 is none."""
    columns = "columns: [{name: a, title: A, kind: trained, digits: 2}]\n"
    test = "rounds_to(100 * round(printed[*; a] / 100 * 1838) / 1838, printed[*; a], 2)"
    rows = "rows: |\n  name   a\n  once   68.82\n  twice  68.83\n  never  68.84\n"
    found = outcomes(tmp_path, f"{columns}{rows}claims: [{{text: counted, source: s, test: '{test}'}}]\n")
    assert [check.verdict for check in found] == ["agrees", "rounded twice", "disagrees"]


def test_an_average_of_counts_is_decided_for_the_counts(tmp_path):
    """16.67 of 6 and 33.33 of 3 are 1/6 and 1/3: their mean is 25, which as a continuum could be 25.01 less a bit."""
    text = "model,A,B,Mean\nchecks,of 6,of 3,mean of A; B\nx,16.67,33.33,25.000\ny,16.67,33.33,25.004\n"
    found = {check.place: check for check in audit.audit([table(tmp_path, text)]) if check.about == "sentence"}
    assert [check.verdict for check in found.values()] == ["agrees", "disagrees"]
    loose = text.replace("of 6,of 3", ",")
    assert verdicts(table(tmp_path, loose)) == ["agrees", "rounding"]


CORRELATED = """\
model,A,B,C
checks,rises with B,,falls with B
one,1.0,2.0,5.1
two,2.1,2.9,4.2
three,2.9,4.2,2.8
four,4.2,5.1,2.1
five,5.0,5.8,1.2
"""


def test_a_correlation_that_hangs_on_no_row_and_one_that_does(tmp_path):
    found = audit.audit([table(tmp_path, CORRELATED)])
    assert [check.verdict for check in found if check.about == "row"] == ["agrees", "agrees"]
    assert verdicts(table(tmp_path, CORRELATED)) == ["agrees", "agrees"]
    text = "model,A,B\nchecks,rises with B,\n"
    text += "".join(f"r{i},{1 + 0.1 * (i % 3):.1f},{2 - 0.1 * (i % 3):.1f}\n" for i in range(9)) + "far,9.0,9.0\n"
    [check] = [check for check in audit.audit([table(tmp_path, text)]) if check.about == "row"]
    assert check.verdict == audit.ONE_ROW and "without far -1.00" in check.formula
    assert "another sign" in check.formula and check.formula.count("without") == 1


def test_a_printed_correlation_is_recomputed(tmp_path):
    right = CORRELATED.replace("rises with B,", "correlates at 0.99 with B,")
    assert verdicts(table(tmp_path, right)) == ["agrees", "agrees"]
    assert verdicts(table(tmp_path, right.replace("0.99", "0.79"))) == ["disagrees", "agrees"]


SPEEDS = """\
run,Model,Batch,Tokens,Time
checks,,,scales with Batch for each Model,product of Batch; Tokens
a1,A,1,100.0,100
a2,A,2,190.0,380
a4,A,4,350.0,1400
b1,B,1,50.0,50
b2,B,2,90.0,180
"""


def test_a_throughput_goes_with_the_batch(tmp_path):
    def found(text):
        return [check for check in audit.audit([table(tmp_path, text)]) if check.about == "scaling"]

    assert [check.verdict for check in found(SPEEDS)] == ["agrees"] * 3
    [_, above, _] = found(SPEEDS.replace("350.0", "385.0"))
    assert (above.verdict, above.printed, above.recomputed) == ("disagrees", "385.0", "190 to 380")
    assert above.place.endswith("a4 against a2, Tokens") and above.formula.endswith("for Batch 4 / 2 = 2")
    assert [check.verdict for check in found(SPEEDS.replace("350.0", "380.1"))][1] == "rounding"
    assert [check.verdict for check in found(SPEEDS.replace("350.0", "180.0"))][1] == "disagrees", "it falls"
    assert verdicts(table(tmp_path, SPEEDS)) == ["agrees"] * 5


def test_a_time_falls_with_no_size_and_a_rate_with_it(tmp_path):
    columns = (
        "columns:\n  - {name: flops, title: f, kind: trained}\n"
        "  - {name: ms, title: t, kind: trained, digits: 1, scaling: {by: flops}}\n"
        "  - {name: rate, title: r, kind: trained, digits: 1, scaling: {by: flops, at_least: -1, at_most: 0}}\n"
    )
    rows = "rows: |\n  name   flops  ms    rate\n  small  1.00   10.0  100.0\n  large  4.00   9.0   111.1\n"
    assert [check.verdict for check in outcomes(tmp_path, columns + rows, "scaling")] == ["disagrees"] * 2
    fine = rows.replace("9.0 ", "20.0").replace("111.1", "50.0")
    assert [check.verdict for check in outcomes(tmp_path, columns + fine, "scaling")] == ["agrees"] * 2


def test_a_correlation_of_steps_names_its_entries_by_number(tmp_path):
    columns = "columns: [{for: {name: [a, b]}, name: $name, title: $name, kind: trained, digits: 1}]\n"
    rows = "rows: |\n  name  a    b\n" + "".join(f"  r{i}  {i * i % 7}.0  {i * 3 % 5}.0\n" for i in range(1, 7))
    claims = "claims: [{text: t, source: s, test: 'correlation(steps(printed[*; a]), steps(printed[*; b])) < 2'}]\n"
    [check] = outcomes(tmp_path, columns + rows + claims, "row")
    assert check.verdict == audit.ONE_ROW and "without entry 1 " in check.formula


def test_a_rounding_to_digits_that_are_a_number_of_the_table_is_computed(tmp_path):
    columns = "columns: [{for: {name: [a, b]}, name: $name, title: $name, kind: trained, digits: 2}]\n"
    rows = "rows: |\n  name  a     b\n  one   0.57  2.00\n"
    claims = "claims: [{text: t, source: s, test: 'rounds_to(printed[one; a], 0.57, printed[one; b])'}]\n"
    assert [check.verdict for check in outcomes(tmp_path, columns + rows + claims)] == ["agrees"]


def test_what_has_no_interval_is_decided_by_draws(tmp_path):
    columns = "columns: [{for: {name: [a, b]}, name: $name, title: $name, kind: trained, digits: 1}]\n"
    claims = "claims: [{text: together, source: s, test: 'rank_correlation(printed[*; a], [*; b]) > 0.99'}]\n"
    tie = "rows: |\n  name   a    b\n  one    2.0  1.0\n  two    2.0  2.0\n  three  3.0  3.0\n  four   4.0  4.0\n"
    [check] = outcomes(tmp_path, columns + tie + claims)
    assert check.verdict == "rounding", "the first two can differ"
    [check] = outcomes(tmp_path, columns + tie.replace("4.0  4.0", "1.5  4.0") + claims)
    assert check.verdict == "disagrees" and "by 1,000 draws" in check.formula
    assert "rank_correlation has no interval" in check.formula and check.claim == "claim 1 of mine: fails"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "checks: [{text: a, source: s, test: 'loss[x] < 1'}]\ncells: {x: {arch: sgt, phase: p}}\n",
            "mine.yaml:5: mine: a check reads no run",
        ),
        ("columns: [{name: a, title: A, kind: trained, scaling: {by: batch}}]\n", "give no 'batch'"),
        ("columns: [{name: a, title: A, kind: trained, scaling: {by: a, each: [model]}}]\n", "give no 'model'"),
        ("columns: [{name: a, title: A, kind: trained, scaling: {by: a, at_least: 2}}]\n", "turn them round"),
        (
            "checks: [{text: a, source: s, test: {kind: stated_for_all, over: {g: [1]}, formula: g + h > 0}}]\n",
            "mine.yaml:5: 'g + h > 0': `over` has no 'h'",
        ),
        (
            "checks: [{text: a, source: s, test: {kind: stated_for_all, over: {g: 0 to h}, formula: g > 0}}]\n",
            "mine.yaml:5: over: g: '0 to h': there is no 'h' above it",
        ),
        (
            "checks: [{text: a, source: s, test: {kind: stated_for_all, over: {g: 0 to 99999}, formula: g >= 0}}]\n",
            "more than 20,000 cases",
        ),
        ("checks: [{text: a, source: s, test: {kind: stated_for_all, over: {g: 5}, formula: g > 0}}]\n", "mine.yaml:5"),
        (
            "checks: [{text: a, source: s, test: {kind: stated_for_all, over: {g: few}, formula: g > 0}}]\n",
            "there is no 'few' above it",
        ),
        (
            "checks: [{text: a, source: s, test: {kind: stated_for_all, over: {g: [1]}, formula: g >}}]\n",
            "formula 'g >'",
        ),
    ],
)
def test_mistakes_in_what_an_audit_is_to_check(tmp_path, text, message):
    with pytest.raises(UserError) as caught:
        audit.audit(experiment_of(tmp_path, text))
    assert message in str(caught.value) and "\n" not in str(caught.value)


# ---- tables of one's own ----


def table(tmp_path, text, name="mine.csv"):
    (tmp_path / name).write_text(text)
    return read_table(tmp_path / name)


def verdicts(experiment):
    return [check.verdict for check in audit.audit([experiment]) if check.about == "sentence"]


def test_a_table_that_is_asked_for_twice_is_checked_once():
    assert len(audit.asked(["depth", "depth-table3"])) == len(audit.asked(["depth"]))


def test_thousands_a_byte_order_mark_and_line_ends_in_cells_are_read(tmp_path):
    text = '"model",A,B,Sum\r\nchecks,"of 2,376",,sum of A; B\r\n"a\nb","40.28","1,024",1064.28\r\n'
    read = table(tmp_path, "\ufeff" + text)
    assert verdicts(read) == ["agrees"] and read.columns[0].questions == 2376
    assert read.rows[0].paper["B"] == 1024 and read.checks[0].source.endswith("mine.csv:4")


def test_a_file_that_is_not_utf8_is_one_sentence(tmp_path):
    (tmp_path / "mine.csv").write_text("model,A,B\nchecks,,\n", encoding="utf-16")
    with pytest.raises(UserError, match=r"mine\.csv: it cannot be read .*; convert it: iconv -f utf-16 -t utf-8"):
        read_table(tmp_path / "mine.csv")
    (tmp_path / "mine.csv").write_bytes("model,A,B\nchecks,,\nGröße,1,2\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"mine\.csv: it cannot be read as a CSV file in UTF-8"):
        read_table(tmp_path / "mine.csv")


def test_a_table_that_holds(tmp_path):
    experiment = table(tmp_path, CSV)
    assert verdicts(experiment) == ["agrees"] * 8
    assert [column.digits for column in experiment.columns] == [2, 2, 2, 2, 1, 3, 2]
    assert [column.questions for column in experiment.columns] == [2376, 1838] + [None] * 5


def test_a_number_was_rounded_to_the_digits_that_it_is_written_with(tmp_path):
    text = "model,A,B,Mean\nchecks,,,mean of A; B\nBase,1.23,2.43,1.83\nOurs,1.23,2.43,1.8\nTheirs,1.23,2.43,1.9\n"
    assert verdicts(table(tmp_path, text)) == ["agrees", "agrees", "disagrees"]
    text = "model,A\nchecks,of 40\nBase,52.50\nOurs,52.5\nTheirs,52.4\n"
    scores = {check.printed: check.verdict for check in audit.audit([table(tmp_path, text)])}
    assert scores == {"52.50": "agrees", "52.5": "agrees", "52.4": "disagrees"}
    nine = load_experiment("depth-table9")
    [check] = [one for one in audit.audit([nine]) if one.formula == "25.54 == 25.5"]
    assert (check.verdict, check.recomputed) == ("rounding", "25.45 to 25.55"), "table 3 prints one digit"


@pytest.mark.parametrize(
    ("old", "new", "quote"),
    [
        ("52.18", "52.28", "Average of Ours is the mean of ARC-E; PIQA"),
        ("0.81", "0.91", "Gain of Ours is the difference of Average; Average in Base"),
        ("1.0,", "1.6,", "Change of Ours is the change of PIQA; PIQA in Base"),
        ("0.655", "0.665", "Ratio of Ours is the ratio of ARC-E; PIQA"),
        ("104.35", "104.53", "Total of Ours is the sum of ARC-E; PIQA"),
    ],
)
def test_a_wrong_number_is_found(tmp_path, old, new, quote):
    assert CSV.count(old) == 1
    found = audit.audit([table(tmp_path, CSV.replace(old, new))])
    assert quote in {check.quote for check in found if check.verdict == "disagrees"}


def test_a_score_that_no_number_of_right_answers_gives_is_found(tmp_path):
    found = audit.audit([table(tmp_path, CSV.replace("62.46,", "62.47,"))])
    [check] = [check for check in found if check.about == "score" and check.verdict == "disagrees"]
    assert (check.printed, check.recomputed) == ("62.47", "62.4592 or 62.5136") and check.place.endswith("Base, PIQA")
    assert check.formula == "100 · 1148 / 1838 or 100 · 1149 / 1838"


def simulated(chance, rows):
    """A table with numbers that are rounded right, as text, and its lines."""
    lines = [CSV.splitlines()[0], CSV.splitlines()[1]]
    base = None
    for i in range(rows):
        a, b = chance.uniform(5, 95, 2)
        base = base or ((a + b) / 2, b)
        cells = (a, b, (a + b) / 2, (a + b) / 2 - base[0], 100 * (b / base[1] - 1), a / b, a + b)
        texts = [f"{cell:.{digits}f}" for cell, digits in zip(cells, (2, 2, 2, 2, 1, 3, 2), strict=True)]
        if not i:
            texts[3] = texts[4] = ""
        lines.append(",".join(["Base" if not i else f"row {i}", *texts]))
    return lines


def test_correctly_rounded_numbers_are_never_said_to_disagree(tmp_path):
    """1,000 rows in 100 tables; the numbers behind the print are not rounded, so that some follow only up to that."""
    chance, found = np.random.default_rng(11), Counter()
    for _ in range(100):
        text = "\n".join(line for line in simulated(chance, 10)) + "\n"
        found += Counter(verdicts(table(tmp_path, text)))
    assert set(found) == {"agrees", "rounding"} and found["rounding"] > 0.1 * found["agrees"], found


def test_most_digits_that_are_changed_are_found(tmp_path):
    """One digit of a table is changed; it is found unless it is the last one of a number from which little follows."""
    chance, found = np.random.default_rng(12), Counter()
    for n in range(200):
        lines = simulated(chance, 3)
        column = n % 7 + 1
        cells = lines[3].split(",")
        at = int(chance.choice([i for i, c in enumerate(cells[column]) if c.isdigit()]))
        digit = str((int(cells[column][at]) + chance.integers(1, 10)) % 10)
        cells[column] = cells[column][:at] + digit + cells[column][at + 1 :]
        lines[3] = ",".join(cells)
        found[column, "disagrees" in verdicts(table(tmp_path, "\n".join(lines) + "\n"))] += 1
    shares = {column: found[column, True] / (found[column, True] + found[column, False]) for column in range(1, 8)}
    # ARC-E and PIQA stand in sums too; the last digit of a ratio or a change has little room.
    assert min(shares.values()) > 0.7 and shares[7] > 0.85, shares


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (CSV, "a,b\n", "mine.csv: write a line of names"),
        ("checks,", "check,", "mine.csv:2: the second line says what columns are; begin it with checks"),
        ("Base,40.28", "Base,40.28,1", "mine.csv:3: it has 9 cells, and the first line 8"),
        ("model,ARC-E,PIQA", "model,ARC-E,ARC-E", "mine.csv:1: 'ARC-E' cannot name a column"),
        ("Ours,", "Base,", "mine.csv: give rows names that differ"),
        ("Ours,", ",", "mine.csv:4: the first cell names the row"),
        ("mean of ARC-E", "mean of ARCE", "mine.csv:2: there is no column 'ARCE'; did you mean 'ARC-E'?"),
        (
            "mean of ARC-E",
            "middle of ARC-E",
            "'middle of ARC-E; PIQA' says nothing of column Average; write `of N`, or",
        ),
        ("Average in Base", "Average in Bas", "mine.csv:2: there is no row 'Bas'; did you mean 'Base'?"),
        ("ratio of ARC-E; PIQA", "ratio of ARC-E", "mine.csv:2: 'ratio of ARC-E': a ratio is of two numbers"),
        ("of 2376", "of 0", "questions = 0"),
        ("0.655,104.35", "0.655,n/a", None),
        ("0.655,104.35", "0.655,104.35%", "row Ours, column Total: 'sum of ARC-E; PIQA' reads '104.35%'"),
        ("41.29", "41.29 ± 0.2", "column ARC-E: 'of 2376' reads '41.29 ± 0.2'; write the number alone"),
        ("41.29", "4e1", "column ARC-E: 'of 2376' reads '4e1'"),
        ("Base,40.28", 'Base,"40,28"', "mine.csv:3: row Base, column ARC-E: a comma in '40,28' has no three digits"),
        ("Base,40.28", 'Base,"1.040,28"', "row Base, column ARC-E: a comma in '1.040,28'"),
        ("Base,40.28", 'Base,"0,283"', "row Base, column ARC-E: a comma in '0,283'"),
        ("Base,40.28", 'Base,"10,40,283"', "row Base, column ARC-E: a comma in '10,40,283'"),
        ("of 2376", '"of 23,76"', "'of 23,76' says nothing of column ARC-E"),
        (CSV, CSV.replace(",", ";"), "mine.csv:1: semicolons separate this line; write commas in their place"),
        (CSV, CSV.replace(",", "\t"), "mine.csv:1: tabs separate this line"),
        ("of 2376", "rises with PIQ", "mine.csv:2: there is no column 'PIQ'; did you mean 'PIQA'?"),
        ("of 2376", "falls with PIQA", "mine.csv:2: 'falls with PIQA': 2 rows have numbers in both columns"),
        ("of 2376", "correlates with PIQA", "'correlates with PIQA' says nothing of column ARC-E"),
        ("of 2376", "scales with PIQ", "mine.csv:2: there is no column 'PIQ'; did you mean 'PIQA'?"),
        ("of 2376", "scales with PIQA for each Size", "mine.csv:2: there is no column 'Size'"),
        ("of 2376", "scales with Gain", "no two rows that belong together have different numbers in Gain"),
    ],
)
def test_mistakes_in_a_table_of_ones_own(tmp_path, old, new, message):
    assert old in CSV
    text = CSV.replace(old, new, 1)
    if message is None:
        assert len(verdicts(table(tmp_path, text))) == 7, "rows without all numbers are left out"
        return
    with pytest.raises(UserError) as caught:
        table(tmp_path, text)
    assert message in str(caught.value)


def test_a_score_beyond_all_questions_disagrees(tmp_path):
    text = "model,A\nchecks,of 10000\nBase,101.2\nOurs,-4.5\nTheirs,50.5\n"
    found = [check.verdict for check in audit.audit([table(tmp_path, text)])]
    assert sorted(found) == ["cannot be checked", "disagrees", "disagrees"]


# ---- the command ----


def test_the_command_lists_what_does_not_agree_and_counts_all(tmp_path):
    (tmp_path / "mine.csv").write_text(CSV.replace("52.18", "52.28"))
    done = command(str(tmp_path / "mine.csv"))
    assert done.exit_code == 0 and max(map(len, done.stdout.splitlines())) <= 80
    assert "disagrees  Average of Ours is the mean of ARC-E; PIQA" in done.stdout and "Ratio" not in done.stdout
    assert "Ratio of Ours is the ratio of" in command(str(tmp_path / "mine.csv"), "--all").stdout
    found = json.loads(command(str(tmp_path / "mine.csv"), "--json", "--only", "disagrees").stdout)
    assert {check["verdict"] for check in found["checks"]} == {"disagrees"}
    assert {"place", "printed", "recomputed", "verdict", "formula"} <= found["checks"][0].keys()
    assert found["counts"]["all"] == found["counts"]["mine"] and found["counts"]["all"]["agrees"] > 3


def test_an_entry_and_a_file_with_nothing_to_check_say_so(tmp_path):
    done = command("sgt-fig1")
    assert done.exit_code == 0 and "nothing that is printed there follows from other numbers" in done.stderr
    (tmp_path / "mine.yaml").touch()
    assert "mine.yaml: it says nothing; write an experiment" in str(command(str(tmp_path / "mine.yaml")).exception)


def test_a_paper_an_entry_and_a_file_of_ones_own(tmp_path):
    of_paper = json.loads(command("spiral", "--json").stdout)["checks"]
    one = json.loads(command("spiral-table1", "--json").stdout)["checks"]
    assert one == [check for check in of_paper if check["entry"] == "spiral-table1"] and len(one) > 100
    (tmp_path / "mine.yaml").write_text(
        "id: mine\ntitle: t\npaper: mine\nsource: s\ncolumns: [{name: a, title: A, kind: trained}]\n"
        "rows: |\n  name  a\n  one   1.50\n  two   2.50\n"
        "claims: [{text: they add up, source: s, test: 'rounds_to(sum(printed[*; a]), 4.1, 1)'}]\n"
    )
    found = json.loads(command(str(tmp_path / "mine.yaml"), "--json").stdout)["checks"]
    assert [(check["printed"], check["recomputed"], check["verdict"]) for check in found] == [
        ("4.1", "3.99 to 4.01", "disagrees")
    ]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["consas"], "consas: there is no such paper or entry; did you mean 'consa'?"),
        (
            ["nothing"],
            "the papers are consa, depth, hybrid, saobp, sgt, spiral, `hybridlab list` shows the entries. A file",
        ),
        (["--only", "agres"], "did you mean 'agrees'?"),
        (["--only", "agrees", "--all"], "leave one of them out"),
        (["nowhere.csv"], "nowhere.csv"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_mistakes_on_the_command_line(arguments, part):
    done = command(*arguments)
    assert isinstance(done.exception, UserError) and part in str(done.exception)


def test_a_column_of_scores_has_at_least_one_question():
    with pytest.raises(Exception, match="questions"):
        Experiment.model_validate(
            {"id": "x", "title": "t", "paper": "p", "source": "s"}
            | {"columns": [{"name": "a", "title": "a", "kind": "trained", "questions": 0}]}
        )


def test_the_example_of_the_page_gives_what_the_page_shows(tmp_path, monkeypatch):
    example, shown = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.DOTALL)
    (tmp_path / "mine.csv").write_text(example)
    monkeypatch.chdir(tmp_path)
    lines = [line.rstrip() for line in command("mine.csv", "--only", "disagrees").stdout.splitlines()]
    assert "\n".join(lines).startswith(shown.rstrip())


NUMBERS = st.sampled_from(["0", "0.0", "1.5", "-2", "1,000", "99.99", "", "–", "nan", "1e9", "9" * 400]) | st.text(
    max_size=3
)
NAMES = st.sampled_from(["a", "b", "A in b", "@x", "x;y", "x, y", "%", "mean of a"]) | st.text(max_size=4)
SAID = st.sampled_from(["", "of 7", "of 0", "mean of a; b", "change of b; a in x", "ratio of a; b", "sum of a", "of a"])


@st.composite
def tables(draw):
    """Lines of cells, of which some are no table."""
    names = ["model", "a", "b", *draw(st.lists(NAMES, max_size=2))]
    said = ["checks", *(draw(SAID) for _ in names[1:])]
    rows = [[name, *(draw(NUMBERS) for _ in names[1:])] for name in ["x", *draw(st.lists(NAMES, max_size=2))]]
    return draw(st.sampled_from([[names, said, *rows]] * 9 + [[names, *rows], [names, said[1:], *rows]]))


@settings(max_examples=60, deadline=None)
@given(tables())
def test_any_table_is_audited_or_its_mistake_is_one_sentence(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.csv"
        with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            csv.writer(file).writerows(rows)
        try:
            found = audit.audit([read_table(path)])
        except UserError as mistake:
            assert "\n" not in str(mistake) and "mine.csv" in str(mistake)
        else:
            assert {check.verdict for check in found} <= set(audit.VERDICTS)
