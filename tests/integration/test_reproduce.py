"""From an experiment file to a table, with tiny cells: order, sharing, failures, resumption, verdicts."""

import json
import math
from collections import Counter

import pytest
import yaml
from rich.console import Console

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.lab.papers import cells as cells_module
from hybridlab.lab.papers import loading as experiment_module
from hybridlab.lab.papers.cells import best_scale, cell_runs
from hybridlab.lab.papers.ids import TUNING
from hybridlab.lab.papers.loading import experiment_ids, load_experiment
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.reproduce import ExperimentAtScale, one_queue, run_cells
from hybridlab.lab.reporting.entry import print_entry, write_entry
from hybridlab.lab.reporting.entry_data import caption
from hybridlab.lab.reporting.table import build_table
from hybridlab.messages import heard_by
from hybridlab.runs import queued_run as attempt_module
from hybridlab.runs.queue import run_all
from hybridlab.runs.record import record_name
from hybridlab.runs.run import train_run
from tests import experiments
from tests.conftest import PUBLISHED, ROOT, SMALL_SHAPE, SMALL_TRAINING
from tests.experiments import cell_configs
from tests.integration.test_cli import hybridlab


def experiment_file(text_file, seeds=(0,)):
    return {
        "id": "toy-table1",
        "title": "Toy",
        "paper": "toy",
        "source": "nowhere",
        "reference": "dense",
        "columns": [
            {"name": "ppl", "title": "PPL", "kind": "trained", "metric": "results.validation.perplexity"},
            {"name": "loss", "title": "loss", "kind": "trained", "metric": "results.validation.loss", "digits": 3},
            {"name": "sparsity", "title": "sparsity", "kind": "exact", "metric": "model.sparsity"},
            {"name": "absent", "title": "absent", "kind": "trained", "metric": "results.tasks.none.all"},
        ],
        "rows": [
            {"name": "Dense", "short": "dense", "cell": "dense", "paper": {"sparsity": 0.0, "absent": 3.0}},
            {"name": "Learned", "short": "learned", "cell": "learned/2", "paper": {"sparsity": 0.5}},
        ],
        "cells": {
            "learned/2": {"arch": "consa", "phase": "two", "start": "learned/1", "masks": "learned/1"},
            "learned/1": {"arch": "consa", "phase": "one", "start": "base"},
            "base": {"arch": "vanilla", "phase": "one"},
            "same as base": {"arch": "vanilla", "phase": "one"},
            "unneeded": {"arch": "all-window", "phase": "one"},
            "dense": {"arch": "vanilla", "phase": "two", "start": "same as base"},
        },
        "scales": {
            "smoke": {
                "machine": "a test",
                "size": "tiny",
                "data": f"text:{text_file}",
                "seeds": list(seeds),
                "config": {
                    "shape": {**SMALL_SHAPE, "layers": 4},
                    "window": 4,
                    "data": {"tokenizer": "byte"},
                    "evaluation": {"validation_windows": 8},
                    "runtime": {"threads": 1},
                },
                "phases": {"one": {"training": SMALL_TRAINING}, "two": {"training": {**SMALL_TRAINING, "steps": 6}}},
            }
        },
        "claims": [
            {
                "text": "dense wins",
                "source": "x",
                "differ_in": ["training.skip_steps"],
                "test": "loss[dense] < [learned/2]",
            },
            {"text": "met", "source": "x", "test": "abs(controller.threshold_sparsity[learned/1] - 0.5) < 0.02"},
        ],
    }


@pytest.fixture
def toy(tmp_path, text_file, monkeypatch):
    """A function that writes the experiment file (with changes) and loads it."""
    monkeypatch.setattr(experiment_module, "experiments_folder", lambda: tmp_path / "experiments")

    def load(change=lambda content: None, seeds=(0,)):
        content = experiment_file(text_file, seeds)
        change(content)
        folder = tmp_path / "experiments" / "toy"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table1.yaml").write_text(yaml.safe_dump(content))
        return load_experiment("toy-table1")

    return load


def reproduce(experiment, tmp_path, seeds=None):
    """Train the cells; returns what became of them, and the messages on the way."""
    messages = []
    wanted = [ExperimentAtScale(experiment, "smoke", seeds)]
    with heard_by(messages.append):
        outcome = run_cells(wanted, tmp_path / "runs", tmp_path / "results")
    return outcome, messages


def test_an_experiment_file_becomes_a_table(toy, tmp_path):
    experiment = toy()
    outcome, messages = reproduce(experiment, tmp_path)
    assert not outcome.failed and len(list((tmp_path / "runs").glob("*/record.json"))) == 4, "equal cells are one run"
    table, folder = write_entry(experiment, "smoke", tmp_path / "results", also=[".csv"])
    dense, learned = (row["cells"] for row in table["rows"])
    assert dense["sparsity"]["verdict"] == learned["sparsity"]["verdict"] == "agrees"
    assert learned["sparsity"]["measured"] == 0.5
    assert dense["absent"] == {
        "measured": None,
        "paper": 3.0,
        "stderr": None,
        "over": None,
        "n": 0,
        "class": "trained",
        "verdict": "not run",
    }
    assert dense["loss"]["n"] == 1 and dense["loss"]["stderr"] is None, "eight windows are less than two blocks"
    assert dense["ppl"]["verdict"] is None and learned["loss"]["difference"]["n"] == 1
    assert dense["ppl"]["measured"] == pytest.approx(math.exp(dense["loss"]["measured"]))
    first, second = table["claims"]
    assert first["verdict"] == "cannot tell here" and "masks have not settled" in first["details"]
    assert second["verdict"] == "open" and second["note"] == "direction only"
    assert first["comparisons"][0]["n"] == 1 == first["n"] and first["scale"].startswith("at smoke scale (")
    assert "Dense,absent,,3.0,,,0,,,,,,,,trained,not run" in (folder / "table.csv").read_text().splitlines()
    rows = [
        line for line in (folder / "table.md").read_text().splitlines() if line.startswith(("| Dense", "| Learned"))
    ]
    assert [row.split(" | ")[-1] for row in rows] == ["– / 3.00 (not run) |", "– |"]
    assert as_read(json.loads((folder / "table.json").read_text())) == table


def test_reproducing_again_trains_nothing_and_gives_the_same_table(toy, tmp_path, monkeypatch):
    experiment = toy()
    reproduce(experiment, tmp_path)
    first, _ = write_entry(experiment, "smoke", tmp_path / "results")
    monkeypatch.setattr("hybridlab.training.engine.Run.train", lambda *a: pytest.fail("trained again"))
    outcome, messages = reproduce(experiment, tmp_path)
    assert len(outcome.finished) == 4 and sum("finished before" in line for line in messages) == 4
    assert write_entry(experiment, "smoke", tmp_path / "results")[0] == first


def test_deleted_results_come_back_from_the_runs(toy, tmp_path):
    experiment = toy()
    reproduce(experiment, tmp_path)
    first, _ = write_entry(experiment, "smoke", tmp_path / "results")
    assert write_entry(experiment, "smoke", tmp_path / "again", tmp_path / "runs")[0] == first
    assert write_entry(experiment, "smoke", tmp_path / "again")[0] == first


def test_a_table_derives_each_configuration_hash_and_record_once(tmp_path, monkeypatch):
    experiment = load_experiment("consa-table1")
    calls = Counter()

    def count(module, name):
        function = getattr(module, name)

        def counted(*arguments, **settings):
            calls[name] += 1
            return function(*arguments, **settings)

        monkeypatch.setattr(module, name, counted)

    count(cells_module, "resolve")
    count(cells_module, "load_record")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "published").symlink_to(PUBLISHED)
    write_entry(experiment, "smoke", tmp_path / "results", tmp_path / "runs")
    cells, seeds = len(experiment.needed_cells("smoke")), len(experiment.scales["smoke"].seeds)
    assert calls["resolve"] == cells > 1, "once for all seeds"
    assert calls["load_record"] == cells * seeds + TUNING - seeds, "one of each further seed"


def test_a_failed_cell_is_named_and_the_others_go_on(toy, tmp_path):
    def break_learning(content):
        content["cells"]["learned/1"]["config"] = {
            "training": {"clip": 1e30, "optimizer": {"lr": 1e30}, "schedule": {"warmup_steps": 0}}
        }

    experiment = toy(break_learning)
    outcome, _ = reproduce(experiment, tmp_path)
    assert set(outcome.failed) == {"learned/1", "learned/2"} and " is " in outcome.failed["learned/1"]
    assert "learned/1" in outcome.failed["learned/2"]
    assert set(outcome.finished) >= {"dense"}
    table = build_table(experiment, "smoke", tmp_path / "results")
    assert table["rows"][1]["cells"]["ppl"]["measured"] is None and table["claims"][0]["verdict"] == "not run"


def test_seeds_give_a_mean_with_its_error(toy, tmp_path):
    experiment = toy(seeds=(0, 1, 2))
    reproduce(experiment, tmp_path)
    table = build_table(experiment, "smoke", tmp_path / "results")
    cell = table["rows"][0]["cells"]["loss"]
    records = [read_object(path, "record") for path in (tmp_path / "results" / "records").iterdir()]
    hashes = table["runs"]["dense"].values()
    losses = [r["results"]["validation"]["loss"]["value"] for r in records if r["hash"] in hashes]
    assert cell["n"] == 3 == len(losses) and cell["measured"] == pytest.approx(sum(losses) / 3)
    assert len(table["claims"][0]["comparisons"][0]["values"]) == 3 == table["claims"][0]["n"]


def test_without_runs_every_measured_cell_is_a_dash(toy, tmp_path, capsys):
    experiment = toy()
    table = build_table(experiment, "smoke", tmp_path / "nothing")
    assert all(cell["measured"] is None for row in table["rows"] for cell in row["cells"].values())
    assert [claim["verdict"] for claim in table["claims"]] == ["not run", "not run"]
    print_entry(table, Console(width=80))
    assert "–" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(colums=[]), "did you mean 'columns'"),
        (lambda c: c["rows"][0].update(cell="nosuch"), "has no cell 'nosuch'"),
        (lambda c: c["rows"][0]["paper"].update(nosuch=1.0), "has no column 'nosuch'"),
        (lambda c: c["cells"]["dense"].update(start="nosuch"), "has no cell 'nosuch'"),
        (lambda c: c.update(id="toy-table2"), "toy-table1: there is no such experiment"),
        (lambda c: c["columns"][0].update(kind="guess"), "columns.0.kind"),
    ],
)
def test_mistakes_in_the_file_are_explained(toy, change, message):
    with pytest.raises(UserError, match=message):
        toy(change)


def test_cells_that_start_from_each_other_are_refused(toy):
    def circle(content):
        content["cells"]["base"]["start"] = "learned/1"

    with pytest.raises(UserError, match="start from each other"):
        cell_configs(toy(circle), "smoke", 0)


def test_reproduction_order_puts_parents_first(toy):
    experiment = toy()
    names = [name for name, _ in ExperimentAtScale(experiment, "smoke").runs().values()]
    assert names.index("base") < names.index("learned/1") < names.index("learned/2") and len(names) == 4


def test_the_queue_goes_seed_by_seed_and_experiment_by_experiment(toy):
    experiment = toy(seeds=(0, 1))
    seeds = [config.training.seed for _, config in ExperimentAtScale(experiment, "smoke").runs().values()]
    assert seeds == [0] * 4 + [1] * 4
    other = experiment.model_copy(update={"id": "toy-table2"})
    names = [
        name
        for name, _ in one_queue(
            [ExperimentAtScale(experiment, "smoke"), ExperimentAtScale(other, "smoke", (1, 2))]
        ).values()
    ]
    assert len(names) == 12 and names[0] == "toy-table1: base (seed 0)" and names[8] == "toy-table2: base (seed 2)"


def test_a_run_keeps_the_steps_from_which_any_experiment_of_the_queue_goes_on(toy):
    plain = toy()
    branched = toy(lambda c: c["cells"]["base"].update(config={"runtime": {"keep_steps": [2]}}))
    queue = one_queue(
        [
            ExperimentAtScale(plain, "smoke"),
            ExperimentAtScale(branched.model_copy(update={"id": "toy-table2"}), "smoke"),
        ]
    )
    assert [config.runtime.keep_steps for name, config in queue.values() if name.endswith("base")] == [[2]]


def test_a_dry_run_says_which_seeds_no_table_reads():
    done = hybridlab("reproduce", "depth-growth", "--scale", "desk", "--seeds", "1,7,300", "--dry-run", cwd=ROOT)
    assert done.returncode == 0 and "seeds: 1, 7, 300\n" in done.stderr
    assert "seeds from 100 on are for tuning: tables leave them out" in done.stderr
    assert "depth-growth: seeds of an earlier plan, which tables leave out: 1\n" in done.stderr
    plain = hybridlab("reproduce", "depth-growth", "--scale", "desk", "--dry-run", cwd=ROOT)
    assert plain.returncode == 0 and "leave" not in plain.stderr


@pytest.mark.long
def test_further_seeds_that_are_complete_count(toy, tmp_path):
    experiment = toy()
    reproduce(experiment, tmp_path)
    one = build_table(experiment, "smoke", tmp_path / "results")
    outcome, _ = reproduce(experiment, tmp_path, seeds=(1, 2, 100))
    assert not outcome.failed
    table = build_table(experiment, "smoke", tmp_path / "results")
    assert table["complete_seeds"] == table["seeds"] == [0, 1, 2] and one["seeds"] == [0], "100 is for tuning"
    assert table["rows"][0]["cells"]["loss"]["n"] == 3 == table["claims"][0]["n"]
    assert list(table["runs"]["dense"]) == ["0", "1", "2"] and "3 seeds" in caption(table)
    (tmp_path / "results" / record_name(table["runs"]["base"]["2"])).unlink()
    assert build_table(experiment, "smoke", tmp_path / "results")["seeds"] == [0, 1], "all of a further seed or nothing"
    assert build_table(experiment, "smoke", tmp_path / "results", tmp_path / "runs") == table
    (tmp_path / "results" / record_name(table["runs"]["base"]["0"])).unlink()
    part = build_table(experiment, "smoke", tmp_path / "results")
    assert part["complete_seeds"] == [1, 2] and "3 seeds, of which 2 are complete" in caption(part)


def test_a_table_is_written_as_soon_as_its_runs_are_there(toy, tmp_path):
    first, fails = toy(), []

    def change(content):
        content["rows"] = content["rows"][:1]
        content["claims"] = []

    dense = toy(change).model_copy(update={"id": "toy-table2"})
    messages, order = [], []

    def done(wanted):
        order.append((wanted.experiment.id, sum("left" in line for line in messages)))
        if len(order) == 1:
            fails.append(wanted)
            raise ValueError("a bug in a page")

    wanted = [ExperimentAtScale(dense, "smoke"), ExperimentAtScale(first, "smoke")]
    with heard_by(messages.append):
        outcome = run_cells(wanted, tmp_path / "runs", tmp_path / "results", done=done)
    assert not outcome.failed and order == [("toy-table2", 2), ("toy-table1", 4), ("toy-table2", 4)]
    assert any("toy-table2: a bug in a page; trying again" in line for line in messages)


def test_the_best_scale_is_the_dearest_that_has_a_complete_seed(toy, tmp_path):
    def with_desk(content):
        smoke = content["scales"]["smoke"]
        phases = {name: {"training": {**SMALL_TRAINING, "steps": 3}} for name in ("one", "two")}
        content["scales"]["desk"] = {**smoke, "phases": phases, "seeds": [0, 1]}

    experiment, results = toy(with_desk), tmp_path / "results"
    assert best_scale(experiment, results) == "smoke"
    run_cells([ExperimentAtScale(experiment, "smoke")], tmp_path / "runs", results)
    run_cells([ExperimentAtScale(experiment, "desk", (1,))], tmp_path / "runs", tmp_path / "elsewhere")
    assert best_scale(experiment, results) == "smoke" and best_scale(experiment, results, tmp_path / "runs") == "desk"
    assert best_scale(experiment, tmp_path / "elsewhere") == "desk"
    assert "2 seeds, of which 1 is complete" in caption(build_table(experiment, "desk", tmp_path / "elsewhere"))


# ---- the experiment files that are shipped ----


@pytest.mark.parametrize("identifier", experiment_ids())
def test_shipped_experiments_resolve_at_every_scale(identifier):
    experiment = experiments.load_experiment(identifier)
    for scale in experiment.scales:
        for seed in experiment.scales[scale].seeds:
            cells = {run.cell for run in cell_runs(experiment, scale, seed)}
            own = {cell for cell in cells if ": " not in cell}  # the others belong to the experiment before the colon
            assert own == set(experiment.needed_cells(scale))
    assert experiment.claims or experiment.notes
    known = {column.panel for column in experiment.columns}
    assert known <= set(experiment.panels)


def test_after_any_exception_in_one_run_the_others_go_on(small, tmp_path, runs, monkeypatch):
    def out_of_memory_on_seed_0(config, *arguments, **settings):
        if config.training.seed == 0:
            raise MemoryError("out of memory")
        return train_run(config, *arguments, **settings)

    monkeypatch.setattr(attempt_module, "train_run", out_of_memory_on_seed_0)
    configs = [small(settings=[f"training.seed={seed}"]) for seed in (0, 1)]
    pending = {run_hash(c): (f"seed {c.training.seed}", c) for c in configs}
    outcome = run_all(pending, runs, tmp_path / "results")
    assert outcome.finished == ["seed 1"] and outcome.failed == {"seed 0": "MemoryError: out of memory"}


def test_masks_that_several_runs_start_from_warn_once(tmp_path, text_file):
    """Each run that reads them was told of before, when the queue was checked and when it was linked."""
    content = experiment_file(text_file) | {"id": "mine-masks", "paper": "mine", "claims": []}
    content["cells"]["learned/3"] = {"arch": "consa", "phase": "one", "start": "learned/1", "masks": "learned/1"}
    content["rows"].append({"name": "Again", "short": "again", "cell": "learned/3"})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    first = hybridlab("reproduce", "./mine.yaml", "--jobs", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    warned = [line for line in first.stderr.splitlines() if "masks.json: warning: " in line]
    assert warned and len(set(warned)) == len(warned)
