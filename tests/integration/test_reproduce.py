"""From an experiment file to a table, with tiny cells: order, sharing, failures, resumption, verdicts."""

import json
import math

import pytest
import yaml

from hybridlab.errors import UserError
from hybridlab.reporting import table as table_module
from hybridlab.reporting.table import build_table, print_table, write_table
from hybridlab.reproduction import experiment as experiment_module
from hybridlab.reproduction import reproduce as reproduce_module
from hybridlab.reproduction.experiment import cell_configs, experiment_ids, load_experiment
from hybridlab.reproduction.records import gather_records
from hybridlab.reproduction.reproduce import run_cells
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING


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
            {"name": "sparsity", "title": "sparsity", "kind": "exact", "metric": "structure.sparsity"},
            {"name": "absent", "title": "absent", "kind": "trained", "metric": "results.no.such"},
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
                "test": {"kind": "measured_better", "rows": ["dense"], "over": ["learned"]},
            },
            {"text": "met", "source": "x", "test": {"kind": "target_met", "cells": ["learned/1"]}},
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


def go(experiment, tmp_path):
    said = []
    outcome = run_cells(experiment, "smoke", tmp_path / "runs", tmp_path / "results", said.append, quiet=True)
    return outcome, said


def test_from_yaml_to_table(toy, tmp_path):
    experiment = toy()
    outcome, said = go(experiment, tmp_path)
    assert not outcome.failed and len(list((tmp_path / "runs").glob("*/record.json"))) == 4, "equal cells are one run"
    table, folder = write_table(experiment, "smoke", tmp_path / "results")
    dense, learned = (row["cells"] for row in table["rows"])
    assert dense["sparsity"]["verdict"] == learned["sparsity"]["verdict"] == "agrees"
    assert learned["sparsity"]["measured"] == 0.5
    assert dense["absent"] == {
        "measured": None,
        "paper": 3.0,
        "stderr": None,
        "n": 0,
        "class": "trained",
        "verdict": "not run",
    }
    assert dense["loss"]["n"] == 8 and dense["loss"]["stderr"] > 0 and dense["ppl"]["verdict"] is None
    assert dense["ppl"]["measured"] == pytest.approx(math.exp(dense["loss"]["measured"]))
    assert table["claims"][1]["holds"] is True and "8 windows, 1 seed" in table["claims"][0]["evidence"]
    assert "– | 3.00" in (folder / "table.csv").read_text() or "–" in (folder / "table.md").read_text()
    assert "0.00 |" not in (folder / "table.md").read_text().split("absent")[1].splitlines()[2]
    assert json.loads((folder / "table.json").read_text()) == table


def test_again_trains_nothing_and_gives_the_same_table(toy, tmp_path, monkeypatch):
    experiment = toy()
    go(experiment, tmp_path)
    first, _ = write_table(experiment, "smoke", tmp_path / "results")
    monkeypatch.setattr("hybridlab.training.engine.Run.train", lambda *a: pytest.fail("trained again"))
    outcome, said = go(experiment, tmp_path)
    assert len(outcome.finished) == 4 and all("finished before" in line for line in said if "[" in line)
    assert write_table(experiment, "smoke", tmp_path / "results")[0] == first


def test_deleted_results_come_back_from_the_runs(toy, tmp_path):
    experiment = toy()
    go(experiment, tmp_path)
    first, _ = write_table(experiment, "smoke", tmp_path / "results")
    gather_records(experiment, "smoke", tmp_path / "runs", tmp_path / "again")
    assert write_table(experiment, "smoke", tmp_path / "again")[0] == first


def test_a_failed_cell_is_named_and_the_others_go_on(toy, tmp_path):
    def break_learning(content):
        content["cells"]["learned/1"]["config"] = {
            "training": {"clip": 1e30, "optimizer": {"lr": 1e30}, "schedule": {"warmup_steps": 0}}
        }

    experiment = toy(break_learning)
    outcome, _ = go(experiment, tmp_path)
    assert set(outcome.failed) == {"learned/1", "learned/2"} and " is " in outcome.failed["learned/1"]
    assert "learned/1" in outcome.failed["learned/2"]
    assert set(outcome.finished) >= {"dense"}
    table = build_table(experiment, "smoke", tmp_path / "results")
    assert table["rows"][1]["cells"]["ppl"]["measured"] is None and table["claims"][0]["holds"] is None


def test_seeds_give_a_mean_with_its_error(toy, tmp_path):
    experiment = toy(seeds=(0, 1, 2))
    go(experiment, tmp_path)
    table = build_table(experiment, "smoke", tmp_path / "results")
    cell = table["rows"][0]["cells"]["loss"]
    records = [json.loads(p.read_text()) for p in (tmp_path / "results" / "records").iterdir()]
    hashes = table["runs"]["dense"].values()
    losses = [r["results"]["validation"]["loss"] for r in records if r["hash"] in hashes]
    assert cell["n"] == 3 == len(losses) and cell["measured"] == pytest.approx(sum(losses) / 3)
    assert "3 seeds" in table["claims"][0]["evidence"]


def test_before_anything_is_run_everything_is_a_dash(toy, tmp_path, capsys):
    from rich.console import Console

    experiment = toy()
    table = build_table(experiment, "smoke", tmp_path / "nothing")
    assert all(cell["measured"] is None for row in table["rows"] for cell in row["cells"].values())
    assert [claim["holds"] for claim in table["claims"]] == [None, None]
    print_table(table, experiment, Console(width=80))
    assert "–" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(colums=[]), "did you mean 'columns'"),
        (lambda c: c["rows"][0].update(cell="nosuch"), "not among the cells"),
        (lambda c: c["rows"][0]["paper"].update(nosuch=1.0), "unknown columns"),
        (lambda c: c["cells"]["dense"].update(start="nosuch"), "not among the cells"),
        (lambda c: c.update(id="toy-table2"), "it must be toy-table1"),
        (lambda c: c["columns"][0].update(kind="guess"), "columns.0.kind"),
    ],
)
def test_mistakes_in_the_file(toy, change, message):
    with pytest.raises(UserError, match=message):
        toy(change)


def test_cells_that_start_from_each_other(toy):
    def circle(content):
        content["cells"]["base"]["start"] = "learned/1"

    with pytest.raises(UserError, match="start from each other"):
        cell_configs(toy(circle), "smoke", 0)


def test_verdicts():
    from hybridlab.reproduction.experiment import Column

    def verdict(kind, measured, paper, stderr=None, base=None, printed_base=None):
        column = Column(name="c", title="c", kind=kind, digits=2)
        return table_module._verdict(column, measured, stderr, paper, (base, printed_base))

    assert verdict("exact", 17.4163, 17.42) == "agrees" and verdict("exact", 17.41, 17.42) == "differs"
    assert verdict("last digit", 17.41, 17.42) == "agrees" and verdict("last digit", 17.40, 17.42) == "differs"
    assert verdict("trained", None, 1.0) == "not run" and verdict("trained", 1.0, None) is None
    assert verdict("trained", 1.1, 1.0, stderr=0.06) == "agrees"
    assert verdict("trained", 5.0, 2.0, base=4.0, printed_base=1.0) == "same direction"
    assert verdict("trained", 3.0, 2.0, base=4.0, printed_base=1.0) == "differs"


def test_reproduction_order_puts_parents_first(toy):
    experiment = toy()
    names = [name for name, _ in reproduce_module._in_order(experiment, "smoke").values()]
    assert names.index("base") < names.index("learned/1") < names.index("learned/2") and len(names) == 4


# ---- the experiment files that are shipped ----


@pytest.mark.parametrize("identifier", experiment_ids())
def test_shipped_experiments_are_whole(identifier):
    experiment = load_experiment(identifier)
    for scale in experiment.scales:
        for seed in experiment.scales[scale].seeds:
            configs = cell_configs(experiment, scale, seed)
            assert set(configs) == set(experiment.needed_cells(scale))
    assert experiment.claims or experiment.notes
    known = {column.panel for column in experiment.columns}
    assert known <= set(experiment.panels)
