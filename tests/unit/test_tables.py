"""Tables as data and as text: what a cell measures, its verdict, what tables and figures share."""

import math

import pytest
from rich.console import Console

from hybridlab.errors import UserError
from hybridlab.lab.papers import verdicts as verdicts_module
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.experiment import BENCHMARK, Column, Experiment, Row, benchmark_hash
from hybridlab.lab.papers.formula import Measure
from hybridlab.lab.papers.ids import SAYS
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.reporting import table as table_module
from hybridlab.lab.reporting.entry import print_entry, write_entry
from hybridlab.lab.reporting.entry_data import caption, entry_data, model_of
from hybridlab.lab.reporting.seeds import Difference, Measured, difference, from_neutral
from hybridlab.lab.reporting.table import (
    NOT_MEASURED,
    Measurements,
    below,
    build_table,
    cell_text,
    compared,
    verdict_on,
)
from hybridlab.runs.record import save_record
from hybridlab.statistics import block_means, mean_and_error
from tests.records import make_benchmark, make_loss, make_record, make_results, measured


def column(kind="trained", **settings):
    return Column(name="c", title="c", kind=kind, **settings)


LOSS = column(metric="results.validation.loss")


def measure(column, row, records, benchmark, experiment=None):
    return table_module.measure(column, row, Measurements(experiment or Columns(), records, benchmark))


def seeds(*losses):
    return {"cell": {seed: make_record(results=make_results(validation=make_loss(x))) for seed, x in enumerate(losses)}}


def cell_row(**settings):
    return Row(**{"name": "A row", "short": "row", "cell": "cell", **settings})


# ---- what a cell measures ----


def windowed(*runs):
    """A run for each list of window losses, with the perplexity that follows from their mean."""

    def loss(windows):
        mean = sum(windows) / len(windows)
        value = {"loss": measured(mean, 0.05, len(windows)), "perplexity": measured(math.exp(mean), 1.0, len(windows))}
        return {**make_loss(), **value, "windows": list(windows)}

    return {seed: make_record(results=make_results(validation=loss(windows))) for seed, windows in enumerate(runs)}


def test_one_seed_has_an_error_over_blocks_of_ten_windows():
    windows = [1.0] * 10 + [2.0] * 10 + [3.0] * 10
    found = measure(LOSS, cell_row(), {"cell": windowed(windows)}, None)
    assert (found.value, found.over, found.n) == (2.0, "windows", 1)
    assert found.stderr == pytest.approx(1 / math.sqrt(3)), "three blocks, not thirty windows"
    doubled = measure(LOSS.model_copy(update={"factor": 2.0}), cell_row(), {"cell": windowed(windows)}, None)
    assert (doubled.value, doubled.stderr) == (4.0, pytest.approx(2 / math.sqrt(3)))
    perplexity = column(metric="results.validation.perplexity")
    by_slope = measure(perplexity, cell_row(), {"cell": windowed(windows)}, None)
    assert by_slope.stderr == pytest.approx(math.exp(2) / math.sqrt(3)), "to first order"


def test_too_few_windows_for_two_blocks_have_no_error():
    assert measure(LOSS, cell_row(), {"cell": windowed([1.0] * 19)}, None).stderr is None
    assert measure(LOSS, cell_row(), seeds(3.0), None) == Measured(value=3.0, n=1), "nor has a run that kept none"


def test_several_seeds_have_the_error_of_their_mean():
    found = measure(LOSS.model_copy(update={"factor": 10.0}), cell_row(), seeds(1.0, 2.0, 6.0), None)
    assert (found.value, found.n, found.over) == (30.0, 3, "seeds")
    assert found.stderr == pytest.approx(10 * math.sqrt(14 / 2 / 3))
    two = measure(LOSS, cell_row(), seeds(1.0, 2.0), None)
    assert (two.value, two.n, two.stderr) == (1.5, 2, None), "two seeds are no sample"


def test_an_accuracy_of_one_run_has_the_error_over_its_answers():
    half = {"chance": 0.125, "window": 8, "all": measured(0.5, 0.01, 100)}
    record = make_record(results=make_results(tasks={"retrieval": half}))
    found = measure(column(metric="results.tasks.retrieval.all"), cell_row(), {"cell": {0: record}}, None)
    assert found == Measured(value=0.5, stderr=0.01, over="answers", n=1)


def test_seeds_that_did_not_measure_a_metric_do_not_count():
    records = seeds(1.0, 2.0)
    records["cell"][2] = make_record(results=None)
    assert measure(LOSS, cell_row(), records, None).n == 2
    assert measure(LOSS, cell_row(), {"cell": {0: make_record(results=None)}}, None) == NOT_MEASURED


# ---- differences to the reference row ----


def apart(ours, theirs, path="results.validation.loss"):
    return difference(ours, theirs, path)


def test_from_three_seeds_on_a_difference_has_a_t_interval():
    ours, theirs = seeds(1.0, 2.0, 6.0)["cell"], seeds(2.0, 3.5, 7.0)["cell"]
    found = apart(ours, theirs)
    assert (found.value, found.n, found.over) == (pytest.approx(-3.5 / 3), 3, "seeds")
    half = 4.302653 * found.stderr
    assert found.interval == pytest.approx((found.value - half, found.value + half)) and found.sign == -1
    assert apart(theirs, ours).sign == 1
    noisy = apart(seeds(1.0, 5.0, 1.0)["cell"], theirs)
    assert noisy.sign == 0, "its interval holds 0"


def test_seeds_are_paired_and_the_others_left_out():
    ours, theirs = seeds(1.0, 2.0, 6.0, 9.0)["cell"], seeds(2.0, 3.5, 7.0)["cell"]
    assert apart(ours, theirs) == apart({seed: ours[seed] for seed in (0, 1, 2)}, theirs)
    assert apart(ours, {}) is None


def test_fewer_seeds_are_compared_window_by_window_in_blocks():
    base = [1.0 + 0.3 * (i % 7) for i in range(30)]
    ours = [x + 0.1 + (0.1 if i >= 20 else 0) for i, x in enumerate(base)]
    found = apart(windowed(ours), windowed(base))
    assert found.value == pytest.approx(0.4 / 3) and found.over == "windows" and found.interval is None
    assert found.stderr == pytest.approx(0.1 / 3), "the blocks' differences are 0.1, 0.1 and 0.2"
    assert found.sign == 0, "windows decide nothing"
    two = apart(windowed(ours, ours), windowed(base, base))
    assert (two.n, two.stderr) == (2, found.stderr), "blocks of the mean over seeds"


def test_blocks_of_correlated_windows_have_the_honest_error():
    import numpy as np

    noise = np.random.default_rng(0)
    ratios = []
    for _ in range(200):
        steps = noise.normal(size=40).repeat(10)
        ratios.append(mean_and_error(block_means(steps)).stderr)
    assert np.mean(ratios) == pytest.approx(1 / math.sqrt(40), rel=0.05), "as many observations as blocks"


def test_what_was_not_run_or_has_no_metric_is_not_measured():
    assert measure(LOSS, cell_row(), {}, None) == NOT_MEASURED
    assert measure(LOSS, cell_row(cell=None), seeds(1.0), None) == NOT_MEASURED
    assert measure(column(), cell_row(), seeds(1.0), None) == NOT_MEASURED


def with_scores(*pairs):
    """The runs of a row on two tasks, with an accuracy each, for seeds 0, 1, 2 …: a pair for each."""
    runs = {"cell/one": {}, "cell/two": {}}
    for seed, scores in enumerate(pairs):
        for name, score in zip(runs, scores, strict=True):
            if score is not None:
                tasks = {"recall": {"chance": 0.1, "window": None, "all": measured(score, 0.03, 100)}}
                runs[name][seed] = make_record(results=make_results(tasks=tasks))
    return runs


ACCURACY = "results.tasks.recall.all"
ONE, TWO = (Column(name=run, title=run, kind="trained", run=run, metric=ACCURACY) for run in ("one", "two"))
MEAN = Column(name="mean", title="mean", kind="trained", mean_of=["one", "two"])


class Columns:
    """As much of an experiment as a column asks for."""

    measures = {"doubled": Measure(of={"y": ACCURACY}, formula="2 * y", title="twice")}

    def column(self, name):
        return {"one": ONE, "two": TWO}[name]

    def arm(self, scale, cell, metric):
        return cell


def test_a_column_reads_another_run_of_its_row():
    records = with_scores((0.5, 0.7))
    assert measure(ONE, cell_row(), records, None).value == 0.5
    assert measure(TWO, cell_row(), records, None).value == 0.7
    assert measure(TWO, cell_row(cell="other"), records, None) == NOT_MEASURED
    assert measure(TWO, cell_row(cell=None), records, None) == NOT_MEASURED


def test_a_column_shows_the_mean_of_others():
    one = measure(MEAN, cell_row(), with_scores((0.5, 0.7)), None, Columns())
    assert (one.value, one.over, one.n) == (pytest.approx(0.6), "samples", 1)
    assert one.stderr == pytest.approx(math.hypot(0.03, 0.03) / 2)
    three = measure(MEAN, cell_row(), with_scores((0.5, 0.7), (0.6, 0.8), (0.4, 0.6)), None, Columns())
    assert (three.value, three.over, three.n) == (pytest.approx(0.6), "seeds", 3)
    assert three.stderr == pytest.approx(0.1 / math.sqrt(3))
    assert measure(MEAN, cell_row(), with_scores((0.5, None)), None, Columns()) == NOT_MEASURED
    part = measure(MEAN, cell_row(), with_scores((0.5, None), (0.2, 0.4)), None, Columns())
    assert (part.value, part.n) == (pytest.approx(0.3), 1), "of the seed that has both"


def test_a_column_shows_a_measure():
    column = ONE.model_copy(update={"metric": "doubled", "factor": 100})
    assert measure(column, cell_row(), with_scores((0.2, 0.1)), None).value == 40.0
    three = measure(column, cell_row(), with_scores((0.2, 0.1), (0.3, 0.1), (0.1, 0.1)), None)
    assert (three.value, three.over, three.n) == (pytest.approx(40.0), "seeds", 3)
    records = with_scores((0.2, 0.1)) | {"base/one": with_scores((0.15, 0.1))["cell/one"]}
    assert compared(column, cell_row(), cell_row(cell="base"), Measurements(Columns(), records, None)).value == (
        pytest.approx(10)
    )


def test_a_mean_of_columns_has_its_own_factor_and_is_compared_with_its_neutral_value():
    records = Measurements(Columns(), with_scores((0.5, 0.7), (0.6, 0.8), (0.4, 0.6)), None)
    percent = MEAN.model_copy(update={"factor": 100})
    shown = measure(percent, cell_row(), records.records, None, Columns())
    assert (shown.value, shown.stderr) == (pytest.approx(60), pytest.approx(10 / math.sqrt(3)))
    neutral = MEAN.model_copy(update={"neutral": 0.5})
    alone = compared(neutral, cell_row(), None, records)
    beside = compared(neutral, cell_row(), cell_row(cell="base"), records)
    assert alone == beside and (alone.value, alone.n) == (pytest.approx(0.1), 3), "as a column of one path"


def test_means_of_columns_are_compared_seed_by_seed():
    ours, theirs = with_scores((0.5, 0.7), (0.6, 0.8), (0.4, 0.9)), with_scores((0.4, 0.6), (0.5, 0.7), (0.4, 0.6))
    records = ours | {name.replace("cell", "base"): runs for name, runs in theirs.items()}
    base = cell_row(cell="base")
    found = compared(MEAN, cell_row(), base, Measurements(Columns(), records, None))
    assert (found.value, found.n, found.over) == (pytest.approx(0.35 / 3), 3, "seeds")
    assert found.stderr == pytest.approx(0.05 / math.sqrt(3) / math.sqrt(3)), "of 0.1, 0.1 and 0.15"
    records["cell/one"].pop(2)
    assert compared(MEAN, cell_row(), base, Measurements(Columns(), records, None)).n == 2
    assert compared(MEAN, cell_row(), None, Measurements(Columns(), records, None)) is None


def test_computed_cells_are_numbers_times_the_factor_or_words():
    given = {"size": "tiny", "field": "layers"}
    computed = column("exact", compute={"function": "shape_field"}, factor=0.5)
    assert measure(computed, cell_row(given=given), {}, None) == Measured(value=4.0, n=1)
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
    assert measure(ratio, row, {}, make_benchmark(BATCHES)) == Measured(value=0.5, stderr=0.01, over="rounds", n=3)
    assert measure(ratio, row, {}, None) == NOT_MEASURED
    by_short = column("timed", metric="results.275M.{short}.1.decode.tokens_per_second")
    row = cell_row(cell=BENCHMARK, short="Block Loop")
    assert measure(by_short, row, {}, make_benchmark(BATCHES)) == Measured(value=9.0, n=1)


def test_a_name_in_a_metric_that_the_row_does_not_give_is_an_error():
    ratio = column("timed", metric="results.{group}.{modle}.1.decode.ratio")
    row = cell_row(cell=BENCHMARK, given={"group": "275M", "model": "Block Loop"})
    with pytest.raises(UserError, match=r"'c' asks for \{modle\}, which row 'row' does not give; did you mean 'mod"):
        measure(ratio, row, {}, make_benchmark(BATCHES))


# ---- verdicts ----


def verdict(kind, value, paper, **settings):
    return verdict_on(kind, 2, value, paper, **settings)


def test_exact_cells_agree_to_the_printed_digits():
    assert verdict("exact", 17.4163, 17.42) == "agrees" and verdict("exact", 17.41, 17.42) == "differs"
    assert verdict("named discrepancy", 17.41, 17.42) == "differs" == verdict("fitted", 17.41, 17.42)


def test_words_agree_when_they_are_the_same():
    assert verdict("exact", "a name", "a name") == "agrees" and verdict("exact", "a name", "another") == "differs"
    assert verdict("exact", 1.0, "about one") == "differs"


def test_the_last_digit_may_be_off_by_one():
    assert verdict("last digit", 17.41, 17.42) == "agrees" == verdict("last digit", 17.43, 17.42)
    assert verdict("last digit", 17.40, 17.42) == "differs" == verdict("last digit", 17.44, 17.42)


def test_nothing_to_compare_has_no_verdict():
    assert verdict("trained", 1.0, None) is None and verdict("transcribed", "words", "other words") is None
    assert verdict("trained", None, 1.0) == "not run"


def by(value, low=None, high=None):
    return Difference(value=value, interval=None if low is None else (low, high), n=3)


def test_a_trained_cell_never_agrees_with_the_papers_value():
    for kind in ("trained", "timed"):
        assert verdict(kind, 1.0, 1.0) is None, "nothing to compare with"
        assert verdict(kind, 1.0, 1.0, found=by(0.1, 0.05, 0.15)) is None, "the paper prints no reference"


def test_a_direction_counts_only_where_seeds_resolve_it():
    up, down = by(0.1, 0.05, 0.15), by(-0.1, -0.15, -0.05)
    assert verdict("trained", 5.0, 2.0, found=up, gap=1.0) == "same direction"
    assert verdict("trained", 3.0, 2.0, found=down, gap=-1.0) == "same direction"
    assert verdict("trained", 3.0, 2.0, found=down, gap=1.0) == "opposite direction"
    assert verdict("trained", 5.0, 2.0, found=by(0.1, -0.05, 0.25), gap=1.0) == "open"
    assert verdict("trained", 5.0, 2.0, found=by(0.1), gap=1.0) == "open", "fewer than three seeds"
    assert verdict("trained", 5.0, 2.0, found=up, gap=0.0) == "open", "the paper's own are equal"


def test_a_ratio_is_compared_with_one():
    ratio = Measured(value=0.9, stderr=0.02, over="rounds", n=5)
    found = from_neutral(ratio, 1.0)
    assert found.value == pytest.approx(-0.1) and found.interval == pytest.approx((-0.1555, -0.0445), abs=1e-4)
    assert verdict("timed", 0.9, 0.8, found=found, gap=-0.2) == "same direction"
    assert from_neutral(ratio.model_copy(update={"n": 2}), 1.0).interval is None
    assert from_neutral(NOT_MEASURED, 1.0) is None


# ---- text ----


def test_cells_as_text():
    cell = {"measured": 1234.5678, "stderr": 0.256, "over": "seeds", "paper": 1200.0, "n": 3, "verdict": None}
    assert cell_text(cell, column(digits=1)).full == "1,234.6 ± 0.26 over 3 seeds | 1,200.0"
    assert cell_text(cell, column(digits=1)).short == "1,234.6 | 1,200.0"
    assert cell_text({**cell, "stderr": None, "paper": None}, column()).full == "1,234.57"
    assert cell_text({**cell, "measured": None, "stderr": None}, column()).full == "– | 1,200.00"
    assert cell_text({**cell, "measured": "words", "paper": None}, column("transcribed")).full == "words"
    assert cell_text({**cell, "paper": "printed"}, column("transcribed")).full == "printed"
    assert cell_text({**cell, "same_as": "another row"}, column()).full == "as above | 1,200.00"


def test_a_difference_stands_in_the_place_of_the_cells_own_error():
    found = {"value": 0.25, "stderr": 0.04, "over": "seeds", "interval": (0.1, 0.4), "p": 0.01, "n": 5}
    cell = {"measured": 3.0, "stderr": 0.5, "over": "seeds", "paper": None, "n": 5, "verdict": None}
    cell |= {"difference": found}
    assert cell_text(cell, column()).full == "3.00, Δ +0.250 [+0.100, +0.400], n = 5"
    windows = {**found, "interval": None, "over": "windows", "value": -0.25}
    assert cell_text({**cell, "difference": windows}, column()).full == "3.00, Δ −0.250 ± 0.040 over windows"
    assert cell_text({**cell, "difference": {**windows, "stderr": None}}, column()).full == "3.00, Δ −0.250"
    small = {**cell, "difference": {**windows, "value": -1e-9}}
    assert cell_text(small, column()).full == "3.00, Δ 0.000 ± 0.040 over windows"


def test_the_caption_says_where_numbers_come_from():
    data = {"id": "t1", "source": "Table 1", "scale": "smoke", "machine": "two cores", "seeds": [0, 1]}
    shows = SAYS["smoke"]
    assert caption(data) == f"Table 1. Scale smoke: two cores; 2 seeds. {shows}"
    assert caption({**data, "seeds": [0]}) == f"Table 1. Scale smoke: two cores; 1 seed. {shows}"
    assert caption({**data, "seeds": []}) == "Table 1. Scale smoke: two cores."
    assert SAYS["smoke"] not in caption({**data, "seeds": [0, 1, 2]})
    assert SAYS["smoke"] in caption({**data, "seeds": [0, 1, 2], "complete_seeds": [0]})
    rows = [{"cells": {"a": {"class": "transcribed"}, "b": {"class": "exact"}}}]
    analytic = {**data, "machine": None, "rows": rows}
    assert caption(analytic) == "Table 1. Computed from shapes alone; the same at every scale."
    rows[0]["cells"].pop("b")
    assert caption(analytic) == "Table 1. The paper's own words; the same at every scale."


# ---- whole tables ----


GAIN = "rounds_to(100 * (printed[plain; speed] / [loop] - 1), 11.1, 1)"


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
            | {"neutral": 1.0}
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

    monkeypatch.setattr(verdicts_module, "judge", judge)
    return given


def test_a_benchmarks_table_from_its_record(tmp_path, judged, capsys):
    digest = benchmark_hash(experiment(), "smoke")
    results = {"70M": {"plain": {"1": {"decode": speed(1.0)}}, "A loop": {"1": {"decode": speed(0.8)}}}}
    save_record(make_benchmark(results, hash=digest), tmp_path)
    table, folder = write_entry(experiment(), "smoke", tmp_path)
    keys = (
        "id title paper source scale machine planned_seeds seeds complete_seeds panels columns rows differ weights "
        "claims controls notes runs tally"
    )
    assert list(table) == keys.split()
    assert table["machine"] == "two cores; measured on a machine (cpu)" and table["runs"] == {
        "benchmark": {"0": digest}
    }
    assert [row["cells"]["speed"]["verdict"] for row in table["rows"]] == ["open", "same direction"]
    assert table["tally"] == {"timed": {"open": 1, "same direction": 1}}
    assert judged[0][0] == {} and judged[0][1].hash == digest
    assert sorted(path.name for path in folder.iterdir()) == ["table.json", "table.md"]
    assert "| 1 | met [x] | holds | as asked | – | – | – | – |" in (folder / "table.md").read_text()
    print_entry(table, Console(width=80))
    printed = capsys.readouterr().out
    assert (
        "0.80 | 0.90" in printed
        and "± 0.01 over rounds" in printed
        and "  1  holds\n     met [x]\n     as asked\n" in printed
    )
    assert "timed: open 1, same direction 1" in printed


def test_a_mistake_in_a_metric_names_the_experiment(tmp_path):
    wrong = experiment(columns=[{"name": "speed", "title": "s", "kind": "timed", "metric": "results.{size}.{model}"}])
    digest = benchmark_hash(wrong, "smoke")
    save_record(make_benchmark({}, hash=digest), tmp_path)
    with pytest.raises(UserError, match="toy-table1: column 'speed' asks for {size}, which row 'plain'"):
        build_table(wrong, "smoke", tmp_path)


def test_an_entry_lists_the_runs_of_every_seed(judged):
    data = entry_data(experiment(), "smoke", seeds(1.0, 2.0), None, {"panels": []})
    assert data["runs"] == {"cell": {"0": "0" * 16, "1": "0" * 16}} and data["machine"] == "two cores"
    [claim] = data["claims"]
    about = {
        "scale": "at smoke scale (n = 5)",
        "margin": None,
        "controls": [],
        "sizes": [],
        "same_as": None,
        "same_on": None,
    }
    assert claim == {
        "text": "met",
        "source": "x",
        "about": "printed",
        **Verdict(True, "as asked", n=5, p=0.01).as_json(),
        **about,
    }
    assert judged[0][2] == "smoke"
    assert {"verdict", "evidence", "n", "p", "n_needed"} < set(claim)


# ---- what is shown ----


TRAINED = {
    "id": "toy-table2",
    "title": "Toy",
    "paper": "toy",
    "source": "nowhere",
    "reference": ["small base", "large base"],
    "panels": {"here": "Measured", "paper": "The paper's"},
    "columns": [
        {"name": "loss", "title": "loss", "kind": "trained", "metric": "results.validation.loss", "panel": "here"},
        {
            "name": "layers",
            "title": "L",
            "kind": "exact",
            "metric": "config.shape.layers",
            "digits": 0,
            "panel": "here",
        },
        {"name": "far", "title": "Far", "kind": "trained", "panel": "paper"},
    ],
    "rows": [
        {"name": "Base (S)", "short": "small base", "cell": "S/base", "paper": {"loss": 3.0, "far": 44.0}},
        {"name": "Arm (S)", "short": "small arm", "cell": "S/arm", "paper": {"loss": 2.5, "layers": 9.0}},
        {"name": "Arm (S), again", "short": "again", "cell": "S/arm", "paper": {"layers": 8.0}},
        {"name": "Base (L)", "short": "large base", "cell": "L/base"},
        {"name": "Arm (L)", "short": "large arm", "cell": "L/arm"},
    ],
    "cells": {
        "S/base": {"arch": "vanilla", "phase": "train", "group": "S"},
        "S/arm": {"arch": "rule-swa", "phase": "train", "group": "S"},
        "L/base": {"arch": "vanilla", "phase": "train", "group": "L"},
        "L/arm": {"arch": "rule-swa", "phase": "train", "group": "L"},
    },
    "scales": {
        "desk": {
            "machine": "two cores",
            "size": {"S": "tiny"},
            "data": "embedded",
            "seeds": [0, 1, 2],
            "phases": {"train": {}},
        }
    },
}


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The table of hand-made records, three seeds for each arm; the arm is 0.5 better, less a little noise."""
    content = {**TRAINED, "scales": {"smoke": TRAINED["scales"]["desk"]}}
    noise = {"S/base": (0.0, 0.1, 0.2), "S/arm": (-0.5, -0.41, -0.29)}

    def seed_record(value):
        return make_record(results=make_results(validation=make_loss(3 + value)))

    records = {cell: {seed: seed_record(x) for seed, x in enumerate(values)} for cell, values in noise.items()}
    monkeypatch.setattr(table_module, "records_of", lambda *a: records)

    def write(all_columns=False, **changes):
        experiment = Experiment.model_validate({**content, **changes})
        return experiment, *write_entry(experiment, "smoke", tmp_path, all_columns=all_columns, also=(".csv", ".tex"))

    return write


def test_each_row_is_compared_with_the_reference_above_it(trained):
    _, table, _ = trained()
    assert [row["reference"] for row in table["rows"]] == [None, "small base", "small base", None, "large base"]
    base, arm, again, *_ = (row["cells"]["loss"] for row in table["rows"])
    assert base["verdict"] is None and "difference" not in base
    assert arm["difference"]["value"] == pytest.approx(-0.5) and arm["difference"]["n"] == 3
    assert arm["verdict"] == "same direction" and again["verdict"] is None, "the paper prints no loss there"
    _, single, _ = trained(reference="small base")
    assert single["rows"][4]["reference"] == "small base" and single["rows"][0]["reference"] is None


def test_claims_with_intervals_over_seeds_have_a_picture_beside_the_table(trained):
    test = "loss[S/arm] < [S/base]"
    _, table, folder = trained(claims=[{"text": "the arm is better", "source": "x", "test": test}])
    (found,) = table["claims"][0]["comparisons"]
    assert found["value"] == pytest.approx(-0.5) and found["n"] == 3 and found["asked"] == [None, 0.0]
    assert found["interval"] == pytest.approx([-0.5 - 4.3027 * 0.01 / 3**0.5, -0.5 + 4.3027 * 0.01 / 3**0.5], abs=1e-4)
    assert found["p"] == table["claims"][0]["p"] and (found["label"], found["unit"]) == ("S/arm − S/base", "nats")
    assert (folder / "claims.png").is_file() and "](claims.png)" in (folder / "table.md").read_text()
    trained()
    assert not (folder / "claims.png").is_file() and "claims.png" not in (folder / "table.md").read_text()


def test_a_number_of_the_same_run_is_shown_once(trained):
    _, table, folder = trained()
    assert [row["cells"]["loss"].get("same_as") for row in table["rows"]] == [None, None, "small arm", None, None]
    page = (folder / "table.md").read_text()
    assert page.count("2.60") == 1 and "| Arm (S), again [tiny, proxy for S] | as above |" in page


def test_a_number_of_the_same_run_is_shown_again_beside_another_reference(trained):
    """Its difference is another one."""
    base, arm, again, large, _ = TRAINED["rows"]
    large = {**large, "cell": "S/base"}
    _, table, _ = trained(rows=[base, arm, large, again])
    assert table["rows"][3]["reference"] == "large base"
    assert [row["cells"]["loss"].get("same_as") for row in table["rows"]] == [None, None, "small base", None]


def test_rows_and_panels_name_the_model_that_was_trained(trained):
    _, table, folder = trained()
    assert table["rows"][0]["model"] == {"size": "tiny", "in_place_of": "S", "parameters": 1000000}
    assert table["rows"][4]["model"] is None, "this scale has no size for L"
    page = (folder / "table.md").read_text()
    assert "**Measured. Scale smoke: tiny (1.0M parameters), proxy for S**" in page
    assert "| Base (S) [tiny, proxy for S] |" in page
    assert "| Base (L)" not in page and "not trained at this scale: the rows of L" in page


def test_a_row_that_is_not_trained_has_its_own_name_where_others_of_its_model_are(trained):
    experiment, table, _ = trained()
    table["rows"][2] |= {"model": None, "trained": False}
    for cell in table["rows"][2]["cells"].values():
        cell["paper"] = None
    assert list(below(table))[-1] == "not trained at this scale: again, the rows of L"


def test_how_to_read_a_cell_speaks_of_a_paper_unless_a_command_has_written_the_rows(trained):
    _, table, _ = trained()
    assert next(below(table)).startswith("Cells: measured | paper (verdict); – was not measured. Δ:")
    table["id"] = "ablate-12345678"
    assert next(below(table)).startswith("Cells: measured | paper"), "a column has printed values"
    for row in table["rows"]:
        for cell in row["cells"].values():
            cell["paper"] = None
    assert next(below(table)).startswith("– was not measured. Δ:")
    table["id"] = "saobp-table9"
    assert next(below(table)).startswith("Cells: measured | paper")


def test_columns_that_nothing_here_measures_are_one_line(trained, capsys):
    experiment, table, folder = trained()
    line = "not measured here: Far (the paper's values: --all-columns)"
    for name in ("table.md", "table.tex"):
        text = (folder / name).read_text().replace("-{}-", "--")
        assert line in text and "44.00" not in text
    assert "Far" not in (folder / "table.csv").read_text() and "far" in table["rows"][0]["cells"]
    print_entry(table, Console(width=80))
    assert line in capsys.readouterr().out
    assert "not measured here: Far" in [*below(table, see_printed="")]


def test_long_names_of_rows_are_folded_so_that_no_number_is_cut_off(trained, capsys):
    long = "map={kind: uniform, attention: {kind: dilated, width: 8, step: 8}}, "
    rows = [{**row, "short": long + row["short"]} for row in TRAINED["rows"]]
    _, table, _ = trained(rows=rows, reference=[long + name for name in TRAINED["reference"]])
    print_entry(table, Console(width=80))
    printed = capsys.readouterr().out.partition("Cells:")[0]
    assert "…" not in printed and "small arm" in printed and "3.10 | 3.00" in printed


def test_all_columns_shows_them_with_the_papers_values(trained, capsys):
    experiment, table, folder = trained(all_columns=True)
    for name in ("table.md", "table.tex", "table.csv"):
        text = (folder / name).read_text()
        assert "not measured here" not in text and "44.0" in text
    print_entry(table, Console(width=80), all_columns=True)
    assert "44.00" in capsys.readouterr().out


def test_fitted_cells_are_counted_apart(trained):
    columns = [{**one, **({"fitted_rows": ["again"]} if one["name"] == "layers" else {})} for one in TRAINED["columns"]]
    _, table, folder = trained(columns=columns)
    assert [row["cells"]["layers"]["class"] for row in table["rows"]][:3] == ["exact", "exact", "fitted"]
    assert table["tally"]["exact"] == {"differs": 1} and table["tally"]["fitted"] == {"agrees": 1}
    text = (folder / "table.md").read_text()
    assert "trained: same direction 1 · exact 0 of 1 · fitted 1 of 1" in text


def test_the_page_says_what_an_error_is_over(trained, monkeypatch):
    _, _, folder = trained()
    page = (folder / "table.md").read_text()
    assert "Δ: difference to small base, paired by seed, with its 95 % t-interval." in page and "windows" not in page
    one = {cell: windowed([1.0 * i for i in range(40)]) for cell in ("S/base", "S/arm")}
    monkeypatch.setattr(table_module, "records_of", lambda *a: one)
    page = (trained()[2] / "table.md").read_text()
    assert (
        "± … over windows: validation windows in blocks of ten" in page
        and "decides nothing" in page
        and "t-interval" not in page
    )


def test_rows_whose_cells_are_runs_of_another_experiment_name_its_model():
    table3 = load_experiment("sgt-table3")
    assert model_of(table3, "desk", table3.rows[0].cell, {}) == {
        "size": "tiny-narrow",
        "in_place_of": "573M",
        "parameters": None,
    }
