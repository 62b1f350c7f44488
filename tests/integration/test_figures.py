"""Figures and claims from records made up for the purpose: every kind, whole and with runs missing."""

import json

import pytest

from hybridlab.config.resolve import run_hash
from hybridlab.files import write_json
from hybridlab.reporting.entry import print_entry, write_entry
from hybridlab.reporting.plots import moving_average
from hybridlab.reproduction.claims import judge
from hybridlab.reproduction.experiment import cell_configs, experiment_ids, load_experiment

FIGURES = [name for name in experiment_ids() if load_experiment(name).kind == "figure"]
TRAINED = [name for name in experiment_ids() if load_experiment(name).needed_cells()]


def made_up(config, digest, number):
    """A record of the right form: 8 layers of 4 heads, windows first."""
    controllers = {}
    masks = [[0] * 4] * 3 + [[0, 1, 0, 1]] * 2 + [[1] * 4] * 3
    if config.controller is not None:
        scores = [[0.1 * layer + 0.01 * head for head in range(4)] for layer in range(8)]
        controllers[config.controller.kind] = {
            "rho": config.controller.rho, "target": config.controller.rho, "realised_sparsity": config.controller.rho,
            "expected_sparsity": config.controller.rho, "undecided_share": 0.5, "highest_expected_sparsity": 0.9, "threshold_sparsity": 0.7,
            "masks": masks, "scores": scores, "granularity": config.controller.granularity,
        }  # fmt: skip
    steps = list(range(10, 101, 10))
    history = {"step": steps, "loss": [4 - 0.01 * s + 0.001 * number for s in steps]}
    history |= {
        "expected_sparsity": [0.1, 0.5, 0.9, 0.8, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5],
        "lagrangian": [-0.1 * s for s in steps],
    }
    accuracy = {"accuracy": 0.5, "stderr": 0.01, "n": 100}
    loss = 3.0 + 0.01 * number
    validation = {"loss": loss, "stderr": 0.05, "n": 50, "perplexity": 20.0, "perplexity_stderr": 1.0}
    validation["windows"] = [loss + 0.1 * (i % 7) + 0.001 * (i % 3) * number for i in range(50)]
    return {
        "status": "finished", "hash": digest, "parents": [], "config": config.model_dump(mode="json"), "steps": 100,
        "tokens": 1000, "history": history, "controllers": controllers,
        "structure": {"sparsity": 0.5, "map": "wwww", "kv_bytes": {"bytes": 4096}},
        "results": {"validation": validation, "retrieval": {"inside": accuracy, "outside": accuracy}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in TRAINED:
        for number, config in enumerate(cell_configs(load_experiment(name), "smoke", 0).values()):
            digest = run_hash(config)
            write_json(folder / "records" / f"{digest}.json", made_up(config, digest, number))
    return folder


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_with_its_numbers(name, results):
    data, folder = write_entry(load_experiment(name), "smoke", results)
    assert sorted(p.name for p in folder.iterdir()) == [
        "figure.csv",
        "figure.json",
        "figure.md",
        "figure.pdf",
        "figure.png",
    ]
    assert json.loads((folder / "figure.json").read_text()) == data
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG" and (folder / "figure.pdf").read_bytes()[
        :4
    ] == b"%PDF"
    assert (folder / "figure.csv").read_text().count("\n") > 2
    assert all(claim["holds"] is not None for claim in data["claims"])


def test_the_same_records_give_the_same_bytes(results):
    experiment = load_experiment("consa-fig10")
    first = {p.name: p.read_bytes() for p in write_entry(experiment, "smoke", results)[1].iterdir()}
    assert {p.name: p.read_bytes() for p in write_entry(experiment, "smoke", results)[1].iterdir()} == first


@pytest.mark.parametrize("name", FIGURES)
def test_without_runs_nothing_is_drawn(name, tmp_path, capsys):
    from rich.console import Console

    experiment = load_experiment(name)
    data, folder = write_entry(experiment, "smoke", tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == ["figure.csv", "figure.json", "figure.md"]
    assert all(claim["holds"] is None for claim in data["claims"])
    print_entry(data, experiment, Console(width=80))
    assert "– (not run)" in capsys.readouterr().out


def test_a_figure_with_some_runs_missing_draws_the_others(results, tmp_path):
    experiment = load_experiment("consa-fig10")
    configs = cell_configs(experiment, "smoke", 0)
    kept = run_hash(configs["layer-50/1"])
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / f"{kept}.json").write_text((results / "records" / f"{kept}.json").read_text())
    data, folder = write_entry(experiment, "smoke", tmp_path)
    drawn = [s["label"] for panel in data["panels"] for s in panel["series"] if s["data"]]
    assert drawn == ["ρ = 0.50"] and (folder / "figure.png").is_file()


@pytest.mark.parametrize("name", [n for n in experiment_ids() if load_experiment(n).claims])
def test_every_claim_can_be_judged(name, results):
    from hybridlab.reproduction.records import records_of

    experiment = load_experiment(name)
    records = records_of(experiment, "smoke", results) if experiment.needed_cells() else {}
    for claim in experiment.claims:
        verdict = judge(claim, experiment, records)
        assert verdict.evidence and verdict.holds in (True, False, None)
        assert "not run" not in verdict.evidence


def test_tables_are_whole_with_records(results):
    data, _ = write_entry(load_experiment("consa-table1"), "smoke", results)
    cells = data["rows"][0]["cells"]
    assert (
        cells["outside"]["measured"] == 0.5 and cells["perplexity"]["stderr"] == 1.0 and cells["kv_8k"]["measured"] == 4
    )


def test_moving_average():
    assert moving_average([1, 2, 3, 4], 1) == [1, 2, 3, 4]
    assert moving_average([0, 3, 6, 9], 3) == [1.5, 3, 6, 7.5]
