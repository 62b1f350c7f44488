"""`sweep:` in an experiment file: what is trained, what the records say, and what the reported runs then use."""

import json
import shutil

import pytest
import yaml

from hybridlab.errors import UserError
from hybridlab.lab.papers import loading
from hybridlab.lab.papers.cells import cell_runs, records_of
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale
from hybridlab.lab.papers.sweep import advice, run_sweep, sweep_data, sweep_notes, sweep_runs, swept_cells
from hybridlab.lab.reporting.table import build_table
from hybridlab.messages import heard_by
from hybridlab.runs.record import save_record
from hybridlab.training.engine import Run
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING
from tests.experiments import cell_configs
from tests.integration.test_cli import hybridlab, json_of
from tests.unit.verdicts.building import record

SETTING = "training.optimizer.lr"
SWEEP = {
    "setting": SETTING,
    "grid": [0.001, 0.01, 0.1],
    "seed": 100,
    "scale": "smoke",
    "cells": ["full", "window"],
    "chosen": {"results.validation.loss": {"full": 0.01}},
}
LOSS = "results.validation.loss"


def experiment_file(text_file):
    return {
        "id": "toy-table1",
        "title": "Toy",
        "paper": "toy",
        "source": "nowhere",
        "columns": [{"name": "loss", "title": "loss", "kind": "trained", "metric": "results.validation.loss"}],
        "rows": [
            {"name": "Full", "short": "full", "cell": "full"},
            {"name": "Window", "short": "window", "cell": "window"},
        ],
        "cells": {
            "full": {"arch": "vanilla", "phase": "one"},
            "window": {"arch": "all-window", "phase": "one", "start": "base"},
            "base": {"arch": "vanilla", "phase": "one"},
        },
        "scales": {
            "smoke": {
                "machine": "a test",
                "size": "tiny",
                "data": f"text:{text_file}",
                "seeds": [0, 1],
                "config": {
                    "shape": SMALL_SHAPE,
                    "window": 4,
                    "data": {"tokenizer": "byte"},
                    "evaluation": {"validation_windows": 4},
                    "runtime": {"threads": 1},
                },
                "phases": {"one": {"training": {**SMALL_TRAINING, "steps": 3}}},
            }
        },
        "notes": ["a note"],
        "sweep": dict(SWEEP),
    }


@pytest.fixture
def toy(tmp_path, text_file, monkeypatch):
    """A function: measures of the file, and changes of its sweep → the experiment."""
    folder = tmp_path / "experiments" / "toy"
    folder.mkdir(parents=True)
    monkeypatch.setattr(loading, "experiments_folder", lambda: tmp_path / "experiments")

    def load(measures=None, **changes):
        content = experiment_file(text_file) | {"measures": measures or {}}
        content["sweep"] |= changes
        (folder / "table1.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return load_experiment("toy-table1")

    return load


def rate(config):
    return config.training.optimizer.lr


def rates(configs):
    return {cell: config.training.optimizer.lr for cell, config in configs.items()}


def test_the_chosen_value_is_used_by_its_cell_alone(toy):
    experiment = toy()
    default = toy(chosen={})
    assert rates(cell_configs(experiment, "smoke", 0))["full"] == 0.01
    own, before = (rates(cell_configs(one, "smoke", 0)) for one in (experiment, default))
    assert {cell for cell in own if own[cell] != before[cell]} == {"full"}
    # `full` and `base` are the same run unless a rate was chosen for one of them.
    assert (len(ExperimentAtScale(default, "smoke").runs()), len(ExperimentAtScale(experiment, "smoke").runs())) == (
        4,
        6,
    )


def test_every_cell_gets_the_whole_grid_on_the_tuning_seed(toy):
    experiment = toy()
    configs = [config for _, config in sweep_runs(experiment, experiment.sweep).values()]
    assert {config.training.seed for config in configs} == {100}
    # Three rates of each cell, and the base that `window` starts from, with its own rate.
    assert len(configs) == 7
    started = [config for config in configs if config.init]
    assert sorted(config.training.optimizer.lr for config in started) == SWEEP["grid"]


def test_a_sweep_is_compiled_or_not_as_asked(toy):
    """The same runs, so that a machine without a compiler can go on with a sweep of a file that compiles."""
    experiment = toy()
    plain, compiled, not_compiled = (sweep_runs(experiment, experiment.sweep, how) for how in (None, True, False))
    assert [*plain] == [*compiled] == [*not_compiled]
    assert {config.runtime.compile for _, config in compiled.values()} == {True}
    assert {config.runtime.compile for _, config in not_compiled.values()} == {False}


def with_losses(experiment, results_dir, losses):
    """Records of the sweep with these losses by cell and place in the grid; None: diverged."""
    runs = {
        digest: config for digest, (name, config) in sweep_runs(experiment, experiment.sweep).items() if "," in name
    }
    for (digest, config), loss in zip(runs.items(), losses, strict=True):
        made = record(windows=[loss or 1.0], hash=digest, config=config.model_dump(mode="json"))
        if loss is None:
            made = made.model_copy(update={"status": "diverged", "reason": "the loss is nan", "results": None})
        save_record(made, results_dir)


def test_the_best_of_the_records_is_named_and_a_diverged_run_is_the_worst(toy, tmp_path):
    experiment = toy()
    with_losses(experiment, tmp_path, [3.0, 2.5, None, 3.0, 2.9, 2.8])
    full, window = swept_cells(experiment, experiment.sweep, tmp_path)
    assert (full.best, full.at_edge, full.chosen, full.outdated) == (0.01, False, 0.01, False)
    assert [one.in_words for one in full.values] == ["3.0000", "2.5000", "diverged"]
    assert (window.best, window.at_edge, window.chosen, window.outdated) == (0.1, True, None, True)
    assert (
        advice([full, window]) == "write under `sweep.chosen`: {results.validation.loss: {window: 0.1}}"
        and advice([full]) is None
    )
    notes = list(sweep_notes(experiment, "smoke", tmp_path))
    assert "on seed 100, which is not reported, by the lowest results.validation.loss" in notes[0]
    assert notes[1] == "Sweep of full: 0.001: 3.0000, 0.01: 2.5000, 0.1: diverged; chosen 0.01."
    assert "chosen nothing. Warning: the best of the records is 0.1, at the edge of the grid" in notes[2]
    table = build_table(experiment, "smoke", tmp_path)
    assert table["notes"] == ["a note", *notes]
    assert list(sweep_notes(experiment, "paper", tmp_path)) == []
    data = sweep_data(experiment, experiment.sweep, tmp_path)
    assert [cell["best"] for cell in data["cells"]] == [0.01, 0.1] and json.dumps(data, allow_nan=False)


def test_a_choice_that_the_records_do_not_favour_is_warned_of(toy, tmp_path):
    experiment = toy(chosen={LOSS: {"full": 0.001, "window": 0.1}})
    with_losses(experiment, tmp_path, [3.0, 2.5, 2.7, 3.0, 2.9, 2.8])
    notes = list(sweep_notes(experiment, "smoke", tmp_path))
    assert "chosen 0.001. Warning: the best of the records is 0.01." in notes[1]
    assert notes[2].endswith("chosen 0.1 (at the edge of the grid).")


def test_a_higher_figure_can_be_the_better_one_and_words_have_no_edge(toy, tmp_path):
    experiment = toy(better="higher", chosen={})
    with_losses(experiment, tmp_path, [3.0, 2.5, None, 3.0, 2.9, 2.8])
    assert [swept.best for swept in swept_cells(experiment, experiment.sweep, tmp_path)] == [0.001, 0.001]
    worded = toy(setting="training.schedule.name", grid=["cosine", "wsd"], chosen={})
    with_losses(worded, tmp_path, [2.0, 2.5, 3.0, 2.5])
    swept = swept_cells(worded, worded.sweep, tmp_path)
    assert [(one.best, one.at_edge) for one in swept] == [("cosine", False), ("wsd", False)]


def test_each_metric_has_its_own_better_and_several_seeds_count_by_their_mean(toy, tmp_path):
    perplexity = "results.validation.perplexity"
    better = {LOSS: "lower", perplexity: "higher"}
    changes = {"cells": ["full"], "chosen": {}, "metrics": [LOSS, perplexity], "better": better}
    experiment = toy(**changes, further_seeds=[101])
    # Value by value, seed 100 then 101.
    with_losses(experiment, tmp_path, [3.0, 2.0, 2.6, 2.6, 1.0, None])
    by_loss, by_perplexity = swept_cells(experiment, experiment.sweep, tmp_path)
    assert [one.measured for one in by_loss.values] == [2.5, 2.6, None] and by_loss.values[2].diverged
    assert (by_loss.best, by_perplexity.best) == (0.001, 0.01)
    assert all(len(one.runs) == 2 for one in by_loss.values)
    assert "on seeds 100, 101, which are not reported" in next(sweep_notes(experiment, "smoke", tmp_path))
    spec = experiment.scales["smoke"].model_copy(update={"seeds": [0, 101]})
    with pytest.raises(UserError, match="on seed 101, so that this seed cannot be reported"):
        ExperimentAtScale(experiment.model_copy(update={"scales": {"smoke": spec}}), "smoke").runs()
    with pytest.raises(UserError, match="sweep.further_seeds names a value twice"):
        toy(**changes, further_seeds=[100])
    with pytest.raises(UserError, match="sweep.better says of each of sweep.metrics which is better"):
        toy(**{**changes, "better": {LOSS: "lower"}})


def test_values_at_the_ends_can_be_tried_on_the_first_seed_alone(toy, tmp_path):
    changes = {"cells": ["full"], "chosen": {}, "grid": [0.001, 0.01, 0.1]}
    experiment = toy(**changes, further_seeds=[101, 102], further_values=[0.01])
    assert experiment.sweep.tries == [(0.001, 100), (0.01, 100), (0.01, 101), (0.01, 102), (0.1, 100)]
    cases = [  # what the five tries measured; which value is best, and whether there may be a better one beyond it
        ([2.5, 2.0, 3.0, 4.0, 2.5], 0.01, False),
        ([1.9, 2.0, 1.0, 1.0, 1.8], 0.1, True),
        ([2.0, 2.0, 2.0, 2.0, 2.0], 0.01, False),
        ([None, 2.0, 2.0, 2.0, 3.0], 0.01, False),
        ([3.0, 2.0, None, 2.0, 4.0], 0.001, True),
        ([None, None, None, None, None], None, False),
    ]
    for case, (losses, best, at_edge) in enumerate(cases):
        results = tmp_path / str(case)
        with_losses(experiment, results, losses)
        [swept] = swept_cells(experiment, experiment.sweep, results)
        assert (swept.best, swept.at_edge) == (best, at_edge), losses
    assert "0.001, 0.01, 0.1 (0.001, 0.1 on seed 100 only)." in next(sweep_notes(experiment, "smoke", tmp_path / "0"))
    for wrong in ({"further_seeds": [101], "further_values": [0.5]}, {"further_values": [0.01]}):
        with pytest.raises(UserError, match="is no value of sweep.grid that sweep.further_seeds could try"):
            toy(**changes, **wrong)


def test_one_value_holds_for_all_parts_of_an_arms_training(toy):
    perplexity = "results.validation.perplexity"
    changes = {"cells": ["full", "window"], "metrics": [LOSS, perplexity], "follow": {"window": ["base"]}}
    chosen = {LOSS: {"full": 0.01, "window": 0.01}, perplexity: {"full": 0.01, "window": 0.001}}
    experiment = toy(**changes, chosen=chosen)
    grid = [config for _, config in sweep_runs(experiment, experiment.sweep).values()]
    assert sorted(map(rate, grid)) == 2 * [0.001] + 2 * [0.01] + 2 * [0.1], "window at each rate, and full, its base"
    runs = {run.cell: run for run in cell_runs(experiment, "smoke", 0)}
    assert {cell: rate(run.config) for cell, run in runs.items()} == {
        **dict.fromkeys(("full", "window", "base"), 0.01),
        **dict.fromkeys((f"window@{perplexity}", f"base@{perplexity}"), 0.001),
    }
    for metric in ("", f"@{perplexity}"):
        assert runs[f"window{metric}"].config.init.run == runs[f"base{metric}"].hash
    # Where both metrics chose one value there is one arm, which its name with the metric means too.
    equal = toy(**changes, chosen={metric: {"full": 0.01, "window": 0.01} for metric in (LOSS, perplexity)})
    assert {run.cell for run in cell_runs(equal, "smoke", 0)} == {"full", "window", "base"}
    assert equal.arm("smoke", f"base@{perplexity}", "") == "base"
    assert experiment.arm("smoke", f"base@{perplexity}", "") == f"base@{perplexity}"


def test_nothing_is_read_of_an_arm_whose_value_is_not_chosen_yet(toy, tmp_path):
    experiment = toy(follow={"window": ["base"]})
    assert experiment.unsearched("smoke") == ["window", "base"]
    for run in cell_runs(experiment, "smoke", 0):
        made = record([2.0], hash=run.hash, seed=0)
        save_record(made.model_copy(update={"config": run.config.model_dump(mode="json")}), tmp_path)
    assert [*records_of(experiment, "smoke", tmp_path)] == ["full"]


def test_a_search_on_one_seed_says_where_seeds_differ_by_more_than_its_values(toy, tmp_path):
    experiment = toy(cells=["full"], chosen={LOSS: {"full": 0.01}})
    with_losses(experiment, tmp_path, [3.0, 2.0, 2.4])

    def note(reported):
        records = {"full": {seed: record([loss], seed=seed) for seed, loss in enumerate(reported)}}
        return list(sweep_notes(experiment, "smoke", tmp_path, records))[1]

    assert "one tuning seed" not in note([2.0, 2.1, 2.2])
    assert "Warning: on one tuning seed its best two values differ by 0.4, its reported seeds by more (SD 0.5" in note(
        [2.0, 2.5, 3.0]
    )


def test_a_measure_of_the_file_can_decide(toy, tmp_path):
    measures = {"squared": {"title": "loss, squared", "of": {"y": "results.validation.loss"}, "formula": "y * y"}}
    experiment = toy(measures, metrics=["squared"], chosen={"squared": {"full": 0.01}}, cells=["full"])
    with_losses(experiment, tmp_path, [3.0, 2.0, 4.0])
    [swept] = swept_cells(experiment, experiment.sweep, tmp_path)
    assert [one.measured for one in swept.values] == [9.0, 4.0, 16.0] and swept.best == 0.01
    assert any("lowest loss, squared;" in note for note in sweep_notes(experiment, "smoke", tmp_path))


def test_without_all_of_its_records_a_sweep_has_no_best(toy, tmp_path):
    experiment = toy()
    assert all(swept.best is None for swept in swept_cells(experiment, experiment.sweep, tmp_path))
    assert "Warning: the sweep is not complete" in list(sweep_notes(experiment, "smoke", tmp_path))[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "the sweep chose its values on seed 1, so that this seed cannot be reported"),
        ({"setting": "training.optimizer.rate"}, "training.optimizer.rate is not a known setting"),
        ({"cells": ["ful"]}, r"table1.yaml:\d+: toy-table1 has no cell 'ful'; did you mean 'full'"),
        ({"metrics": ["results.validaton.loss"]}, "a record has no 'validaton' there; did you mean 'validation'"),
        ({"chosen": {LOSS: {"base": 0.1}}}, "sweep.chosen has no cell 'base' to choose for"),
        ({"chosen": {LOSS: {"full": 0.5}}}, "0.5 was not tried for full; choose one of 0.001, 0.01, 0.1"),
        ({"grid": [0.1, 0.1]}, "sweep.grid names a value twice"),
        ({"grid": [0.1]}, "sweep.grid"),
        ({"follow": {"base": ["full"]}}, "sweep.cells has no 'base' that others could follow"),
        ({"follow": {"window": ["full"]}}, "'full' has its value from its own search; give 'window' a cell of its own"),
        ({"follow": {"window": ["base"], "full": ["base"]}}, "'base' has its value from window; give 'full' a cell of"),
        ({"follow": {"window": ["bas"]}}, "toy-table1 has no cell 'bas'; did you mean 'base'"),
        ({"scale": "paper"}, "it has no scale 'paper' to sweep at; known: smoke"),
        ({"best": 1}, "best"),
    ],
)
def test_mistakes_in_a_sweep_are_one_sentence(toy, changes, message):
    with pytest.raises(UserError, match=message) as told:
        toy(**changes)
    assert "\n" not in str(told.value)


def test_the_tuning_seed_is_never_reported(toy):
    experiment = toy()
    spec = experiment.scales["smoke"].model_copy(update={"seeds": [0, 100]})
    reseeded = experiment.model_copy(update={"scales": {"smoke": spec}})
    with pytest.raises(UserError, match="this seed cannot be reported"):
        ExperimentAtScale(reseeded, "smoke").runs()


def test_a_sweep_is_trained_once_and_a_run_that_diverges_stays_a_result(toy, tmp_path):
    experiment = toy(grid=[0.01, 1e30], cells=["full"], chosen={LOSS: {"full": 0.01}})
    said = []
    places = (tmp_path / "runs", tmp_path / "results")
    outcome = run_sweep(experiment, "smoke", *places)
    assert not outcome.failed and len(outcome.finished) == 1
    (full,) = swept_cells(experiment, experiment.sweep, tmp_path / "results")
    assert [one.diverged for one in full.values] == [False, True] and full.best == 0.01
    # A record is all that a sweep needs, also where the runs themselves are gone.
    shutil.rmtree(tmp_path / "runs")
    with heard_by(said.append):
        run_sweep(experiment, "smoke", *places)
    assert not said


def test_a_run_of_a_sweep_that_fails_otherwise_is_tried_again(toy, tmp_path, monkeypatch):
    """A lack of memory says nothing of the value that was tried."""
    experiment = toy(grid=[0.001, 0.01], cells=["full"], chosen={})
    places = (tmp_path / "runs", tmp_path / "results")
    step = Run._gradients

    def short_of_memory(run, *args):
        if run.config.training.optimizer.lr == 0.001:
            raise MemoryError
        return step(run, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_gradients", short_of_memory)
        outcome = run_sweep(experiment, "smoke", *places)
    assert [*outcome.failed.values()] and "out of memory" in next(iter(outcome.failed.values()))
    (full,) = swept_cells(experiment, experiment.sweep, places[1])
    assert full.best is None and [one.in_words for one in full.values][0] == "–"
    assert not run_sweep(experiment, "smoke", *places).failed
    (full,) = swept_cells(experiment, experiment.sweep, places[1])
    assert full.best is not None


def test_the_command_trains_the_grid_and_prints_what_to_choose(tmp_path, text_file):
    content = experiment_file(text_file) | {"id": "mine-rates", "paper": "mine"}
    content["sweep"] |= {"cells": ["full"], "grid": [0.0001, 0.01], "chosen": {}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    command = ("reproduce", "./mine.yaml", "--sweep")
    shown = hybridlab(*command, "--dry-run", cwd=tmp_path)
    assert "full, training.optimizer.lr" in shown.stdout and not list((tmp_path).glob("runs/*/metrics.jsonl"))
    done = hybridlab(*command, cwd=tmp_path)
    assert (
        done.returncode == 0
        and "mine-rates: write under `sweep.chosen`: {results.validation.loss: {full: 0.01}}" in done.stderr
    )
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith(" full "))
    assert not row[1].endswith((">", "*")) and row[2].endswith(">"), "0.01 is the best, with no value beyond it"
    assert len(list((tmp_path / "results/records").iterdir())) == 2
    data = json_of(hybridlab(*command, "--json", cwd=tmp_path))
    assert data["cells"][0]["best"] == 0.01 and data["cells"][0]["chosen"] is None and data["seed"] == 100
    content.pop("sweep")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    refused = hybridlab(*command, cwd=tmp_path)
    assert refused.returncode == 2 and "mine-rates sweeps nothing; leave --sweep out" in refused.stderr
