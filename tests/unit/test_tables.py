"""Tables as data and as text: what a cell measures, its verdict, what tables and figures share."""

import math

import pytest
from rich.console import Console

from hybridlab.errors import UserError
from hybridlab.papers.claims.verdict import Verdict
from hybridlab.papers.experiment import BENCHMARK, Column, Experiment, Row, benchmark_hash
from hybridlab.reporting import entry_data as entry_data_module
from hybridlab.reporting.entry_data import caption, claims_table, entry_data
from hybridlab.reporting.table import build_table, measure, verdict_on
from hybridlab.reporting.table_cells import cell_text
from hybridlab.reporting.table_files import write_table
from hybridlab.reporting.terminal import print_table
from hybridlab.runs.record import record_path, write_record
from hybridlab.statistics import NOT_MEASURED, Measurement
from tests.records import make_benchmark, make_loss, make_record, make_results, measured


def column(kind="trained", **settings):
    return Column(name="c", title="c", kind=kind, **settings)


LOSS = column(metric="results.validation.loss")


def seeds(*losses):
    return {"cell": {seed: make_record(results=make_results(validation=make_loss(x))) for seed, x in enumerate(losses)}}


def cell_row(**settings):
    return Row(**{"name": "A row", "short": "row", "cell": "cell", **settings})


# ---- what a cell measures ----


def test_one_seed_has_the_runs_own_error():
    assert measure(LOSS, cell_row(), seeds(3.0), None) == Measurement(value=3.0, stderr=0.05, n=50)
    doubled = LOSS.model_copy(update={"factor": 2.0})
    assert measure(doubled, cell_row(), seeds(3.0), None) == Measurement(value=6.0, stderr=0.1, n=50)


def test_several_seeds_have_the_error_of_their_mean():
    measurement = measure(LOSS.model_copy(update={"factor": 10.0}), cell_row(), seeds(1.0, 2.0, 6.0), None)
    assert (measurement.value, measurement.n) == (30.0, 3)
    assert measurement.stderr == pytest.approx(10 * math.sqrt(14 / 2 / 3))


def test_seeds_that_did_not_measure_a_metric_do_not_count():
    records = seeds(1.0, 2.0)
    records["cell"][2] = make_record(results=None)
    assert measure(LOSS, cell_row(), records, None).n == 2
    assert measure(LOSS, cell_row(), {"cell": {0: make_record(results=None)}}, None) == NOT_MEASURED


def test_what_was_not_run_or_has_no_metric_is_not_measured():
    assert measure(LOSS, cell_row(), {}, None) == NOT_MEASURED
    assert measure(LOSS, cell_row(cell=None), seeds(1.0), None) == NOT_MEASURED
    assert measure(column(), cell_row(), seeds(1.0), None) == NOT_MEASURED


def test_computed_cells_are_numbers_times_the_factor_or_words():
    given = {"size": "tiny", "field": "layers"}
    computed = column("exact", compute={"function": "shape_field"}, factor=0.5)
    assert measure(computed, cell_row(given=given), {}, None) == Measurement(value=4.0, n=1)
    words = column("transcribed", compute={"function": "code_path", "path": "hybridlab.errors.UserError"})
    assert measure(words, cell_row(), {}, None) == "errors.UserError"


def speed(ratio):
    return {
        "tokens_per_second": measured(9.0, n=3),
        "ratio": measured(ratio, 0.01, 3),
        "time_ratio": measured(1 / ratio, 0.01, 3),
        "seconds": [1.0],
    }


BATCHES = {"275M": {"Block Loop": {"1": {"decode": speed(0.8)}, "2": {"decode": speed(0.5)}}}}


def test_a_benchmark_cell_is_found_by_what_its_row_gives():
    ratio = column("timed", metric="results.{group}.{model}.{batch}.decode.ratio")
    row = cell_row(cell=BENCHMARK, given={"group": "275M", "model": "Block Loop", "batch": 2})
    assert measure(ratio, row, {}, make_benchmark(BATCHES)) == Measurement(value=0.5, stderr=0.01, n=3)
    assert measure(ratio, row, {}, None) == NOT_MEASURED
    by_short = column("timed", metric="results.275M.{short}.1.decode.tokens_per_second")
    row = cell_row(cell=BENCHMARK, short="Block Loop")
    assert measure(by_short, row, {}, make_benchmark(BATCHES)) == Measurement(value=9.0, n=3)


def test_a_name_in_a_metric_that_the_row_does_not_give_is_an_error():
    ratio = column("timed", metric="results.{group}.{modle}.1.decode.ratio")
    row = cell_row(cell=BENCHMARK, given={"group": "275M", "model": "Block Loop"})
    with pytest.raises(UserError, match=r"'c' asks for \{modle\}, which row 'row' does not give; did you mean 'mod"):
        measure(ratio, row, {}, make_benchmark(BATCHES))


# ---- verdicts ----


def verdict(kind, value, paper, stderr=None, base=None, printed_base=None):
    return verdict_on(column(kind, digits=2), value, stderr, paper, (base, printed_base))


def test_exact_cells_agree_to_the_printed_digits():
    assert verdict("exact", 17.4163, 17.42) == "agrees" and verdict("exact", 17.41, 17.42) == "differs"
    assert verdict("named discrepancy", 17.41, 17.42) == "differs"


def test_words_agree_when_they_are_the_same():
    assert verdict("exact", "a name", "a name") == "agrees" and verdict("exact", "a name", "another") == "differs"
    assert verdict("exact", 1.0, "about one") == "differs"


def test_the_last_digit_may_be_off_by_one():
    assert verdict("last digit", 17.41, 17.42) == "agrees" == verdict("last digit", 17.43, 17.42)
    assert verdict("last digit", 17.40, 17.42) == "differs" == verdict("last digit", 17.44, 17.42)


def test_nothing_to_compare_has_no_verdict():
    assert verdict("trained", 1.0, None) is None and verdict("transcribed", "words", "other words") is None
    assert verdict("trained", None, 1.0) == "not run"


def test_trained_cells_agree_within_two_errors():
    assert verdict("trained", 1.1, 1.0, stderr=0.06) == "agrees" == verdict("trained", 0.9, 1.0, stderr=0.06)
    assert verdict("trained", 1.1, 1.0, stderr=0.04) == "differs" == verdict("trained", 1.1, 1.0)


def test_trained_cells_may_point_in_the_same_direction_from_the_reference():
    assert verdict("trained", 5.0, 2.0, base=4.0, printed_base=1.0) == "same direction"
    assert verdict("trained", 3.0, 0.5, base=4.0, printed_base=1.0) == "same direction"
    assert verdict("trained", 3.0, 2.0, base=4.0, printed_base=1.0) == "differs"
    assert verdict("trained", 5.0, 2.0, base=4.0) == "differs" == verdict("trained", 5.0, 2.0, printed_base=1.0)


def test_a_speed_is_compared_only_as_a_ratio_with_its_error():
    assert verdict("timed", 100.0, 200.0) is None
    assert verdict("timed", 0.9, 0.8, stderr=0.06) == "agrees"
    assert verdict("timed", 0.9, 0.8, stderr=0.01, base=1.0, printed_base=1.0) == "same direction"


# ---- text ----


def test_cells_as_text():
    cell = {"measured": 1234.5678, "stderr": 0.256, "paper": 1200.0, "n": 3, "verdict": None}
    assert cell_text(cell, column(digits=1)) == "1,234.6 ± 0.3 | 1,200.0"
    assert cell_text({**cell, "stderr": None, "paper": None}, column()) == "1,234.57"
    assert cell_text({**cell, "measured": None, "stderr": None}, column()) == "– | 1,200.00"
    assert cell_text({**cell, "measured": "words", "paper": None}, column("transcribed")) == "words"
    assert cell_text({**cell, "paper": "printed"}, column("transcribed")) == "printed"


def test_claims_as_a_table():
    claim = {"text": "A is better", "source": "section 1", **Verdict(None, "|a| = 1").as_json()}
    words = [{"verdict": "holds"}, {"verdict": "fails"}, {"note": "direction only"}, {"verdict": "cannot tell here"}]
    lines = claims_table([claim, *({**claim, **word} for word in words)])
    assert lines[:2] == ["## Claims", ""] and lines[4] == "| A is better | section 1 | open | /a/ = 1 |"
    shown = [line.split("|")[3].strip() for line in lines[5:]]
    assert shown == ["holds", "fails", "open (direction only)", "cannot tell here"]
    assert claims_table([]) == []


def test_the_caption_says_where_numbers_come_from():
    data = {"source": "Table 1", "scale": "smoke", "machine": "two cores", "seeds": [0, 1]}
    assert caption(data) == "Table 1. Scale smoke: two cores; 2 seeds."
    assert caption({**data, "seeds": [0]}) == "Table 1. Scale smoke: two cores; 1 seed."
    assert caption({**data, "seeds": []}) == "Table 1. Scale smoke: two cores."
    rows = [{"cells": {"a": {"class": "transcribed"}, "b": {"class": "exact"}}}]
    analytic = {**data, "machine": None, "rows": rows}
    assert caption(analytic) == "Table 1. Computed from shapes alone; the same at every scale."
    rows[0]["cells"].pop("b")
    assert caption(analytic) == "Table 1. The paper's own words; the same at every scale."


# ---- whole tables ----


GAIN = {"kind": "printed_percent", "row": "plain", "over": "loop", "column": "speed", "percent": 11.1, "digits": 1}


def experiment(**changes):
    content = {
        "id": "toy-table1",
        "title": "Toy",
        "paper": "toy",
        "source": "nowhere",
        "notes": ["a note"],
        "claims": [{"text": "met", "source": "x", "test": GAIN}],
        "columns": [
            {"name": "speed", "title": "speed", "kind": "timed", "metric": "results.70M.{model}.1.decode.ratio"}
        ],
        "rows": [
            {
                "name": "Plain",
                "short": "plain",
                "cell": "benchmark",
                "given": {"model": "plain"},
                "paper": {"speed": 1.0},
            },
            {
                "name": "Loop",
                "short": "loop",
                "cell": "benchmark",
                "given": {"model": "A loop"},
                "paper": {"speed": 0.9},
            },
        ],
        "reference": "plain",
        "benchmark": {
            "models": {"plain": {"arch": "vanilla"}},
            "sizes": {"smoke": {"70M": "tiny"}},
            "batches": [1],
            "prompt": 8,
            "new_tokens": 8,
            "rounds": 2,
            "machines": {"smoke": "two cores"},
        },
    }
    return Experiment.model_validate({**content, **changes})


@pytest.fixture
def judged(monkeypatch):
    """Claims are judged with what was measured, and all hold."""
    given = []

    def judge(claim, experiment, records, benchmark=None, scale=None):
        given.append((records, benchmark, scale))
        return Verdict(True, "as asked", n=5, p=0.01, scale="at smoke scale (n = 5)")

    monkeypatch.setattr(entry_data_module, "judge", judge)
    return given


def test_a_benchmarks_table_from_its_record(tmp_path, judged, capsys):
    digest = f"benchmark-{benchmark_hash(experiment(), 'smoke')}"
    results = {"70M": {"plain": {"1": {"decode": speed(1.0)}}, "A loop": {"1": {"decode": speed(0.8)}}}}
    write_record(make_benchmark(results, hash=digest), record_path(digest, tmp_path))
    table, folder = write_table(experiment(), "smoke", tmp_path)
    assert list(table) == ["id", "title", "source", "scale", "machine", "seeds", "rows", "claims", "notes", "runs"]
    assert table["machine"] == "two cores; measured on a machine (cpu)" and table["runs"] == {
        "benchmark": {"0": digest}
    }
    assert [row["cells"]["speed"]["verdict"] for row in table["rows"]] == ["agrees", "same direction"]
    assert judged[0][0] == {} and judged[0][1].hash == digest
    assert sorted(path.name for path in folder.iterdir()) == ["table.csv", "table.json", "table.md", "table.tex"]
    assert "| met | x | holds | as asked |" in (folder / "table.md").read_text()
    print_table(table, experiment(), Console(width=80))
    printed = capsys.readouterr().out
    assert "0.80 ± 0.01 | 0.90" in printed and "holds  met [x]" in printed


def test_a_mistake_in_a_metric_names_the_experiment(tmp_path):
    wrong = experiment(columns=[{"name": "speed", "title": "s", "kind": "timed", "metric": "results.{size}.{model}"}])
    digest = f"benchmark-{benchmark_hash(wrong, 'smoke')}"
    write_record(make_benchmark({}, hash=digest), record_path(digest, tmp_path))
    with pytest.raises(UserError, match="toy-table1: column 'speed' asks for {size}, which row 'plain'"):
        build_table(wrong, "smoke", tmp_path)


def test_an_entry_lists_the_runs_of_every_seed(judged):
    data = entry_data(experiment(), "smoke", seeds(1.0, 2.0), None, {"panels": []})
    assert data["runs"] == {"cell": {"0": "0" * 16, "1": "0" * 16}} and data["machine"] == "two cores"
    [claim] = data["claims"]
    assert claim == {"text": "met", "source": "x", **Verdict(True, "as asked", n=5, p=0.01).as_json()} | {
        "scale": "at smoke scale (n = 5)"
    }
    assert judged[0][2] == "smoke"
    assert {"verdict", "evidence", "n", "p", "n_needed", "minutes_needed", "scale", "controls"} < set(claim)
