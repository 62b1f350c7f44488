"""Figures and claims from handmade records: every kind, with all runs and with runs missing."""

import json
import re

import pytest
from rich.console import Console

from hybridlab.config.resolve import run_hash
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.lab.papers.cells import benchmark_record, records_of
from hybridlab.lab.papers.claims.comparison import in_words
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.experiment import benchmark_hash
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.reporting.entry import print_entry, write_entry
from hybridlab.lab.reporting.figures import build_figure
from hybridlab.plan.lineage import lineage_to_json
from hybridlab.runs.record import record_name, save_record
from tests.combinations import some
from tests.depth_probes import depth_probes, sublayers
from tests.experiments import cell_configs, experiment_ids, load_experiment, needed_cells
from tests.records import make_benchmark, make_loss, make_record, make_results, measured
from tests.unit.verdicts.building import said

STUDIES = [name for name in experiment_ids() if any(cell.model for cell in load_experiment(name).cells.values())]
"""They are drawn from attention on prompts of benchmarks: test_attention_figures.py."""
FIGURES = [name for name in experiment_ids() if load_experiment(name).kind == "figure" and name not in STUDIES]
KINDS = {load_experiment(name).plot.kind: name for name in reversed(FIGURES)}
"""Kind of figure → the first of its figures."""
MEASURED = [name for name in experiment_ids() if load_experiment(name).benchmark]
TRAINED = [name for name in experiment_ids() if needed_cells(load_experiment(name))]


MASKS = [[0] * 4] * 3 + [[0, 1, 0, 1]] * 2 + [[1] * 4] * 3


def learned(controller):
    """What a controller that learns masks leaves: 8 layers of 4 heads, windows first."""
    rho = controller.rho
    scores = [[0.1 * layer + 0.01 * head for head in range(4)] for layer in range(8)]
    return {
        "rho": rho,
        "target": rho,
        "realised_sparsity": rho,
        "expected_sparsity": rho,
        "undecided_share": 0.5,
        "highest_expected_sparsity": 0.9,
        "threshold_sparsity": 0.7,
        "masks": MASKS,
        "scores": scores,
        "granularity": controller.granularity,
    }


def grown(controller):
    """The events of a growth of two layers, and what its controller leaves."""
    event = {"heads": [1, 5], "passes": 1, "entropies": [0.9] * 8, "layer_entropies": [0.9] * 8}
    events = [
        {"step": 20, "kind": "loop-added", "layer": 6, **event},
        {"step": 40, "kind": "loop-deepened", "layer": 6, "passes": 2},
        {"step": 40, "kind": "fade-ended", "layer": 6, "heads": [1, 5]},
        {"step": 60, "kind": "loop-added", "layer": 2, **event},
        {"step": 60, "kind": "growth-frozen", "reason": "the target is reached"},
    ]
    return events, {
        "looped": [{"layer": 6, "heads": [1, 5], "passes": 2, "since": 20}],
        "frozen": "the target is reached",
    }


def entropy_log(number):
    steps = list(range(5, 101, 5))
    tables = [
        [
            [0.95 - 0.002 * s * (layer + 1) / 8 - 0.01 * h * (number + 1) * s / 100 for h in range(8)]
            for layer in range(8)
        ]
        for s in steps
    ]
    return {"steps": steps, "entropies": tables}


def probes():
    example = {
        "layer": 6,
        "head": 5,
        "entropy": 0.8,
        "tokens": ["a", " b", "\n"],
        "loops": [[0.3, 0.2, 0.1], [0.4, 0.2, 0.0], [0.5, 0.1, 0.0]],
    }
    numbers = {"entropy": 0.8, "trace_share": 0.05, "factor": 0.9}
    worst = {"excess": 0.1, "layer": 1, "head": 2, "row": 2, "keys": 2, "bound": 0.8, "diagonal": 0.9}
    lemma = {"rows": 100, "violations": 3, "share": 0.03, "worst": worst, "mean_diagonal": 0.05, "mean_bound": 0.9}

    def table(rise):
        return [[[0.5 + rise * t + 0.01 * row + 0.001 * h * h for h in range(8)] for row in range(3)] for t in range(4)]

    def statistic(values):
        dynamic = [[h >= 4 + row % 2 for h in range(8)] for row in range(3)]
        spread = [[0.1 + 0.01 * h * h for h in range(8)] for _ in range(3)]
        return {"values": values, "range": spread, "dynamic": dynamic, "means": [0.5] * 4, "dynamic_means": [0.5] * 4}

    loops = {"chunks": [8, 4, 2, 1], "layers": [1, 2, 3], "sequences": 4, "length": 64}
    loops |= {"entropy": statistic(table(-0.05)), "local_mass": statistic(table(0.05))}
    loops |= {"fresh": {"entropy": table(0.0), "local_mass": table(0.01)}}
    reach = {"length": 8, "chunks": [2, 1], "maps": [[[int(p <= i) for p in range(8)] for i in range(8)]] * 2}
    return {
        "loops": loops,
        "reach": reach,
        "contributions": {"examples": [example, example], "sublayers": sublayers(8)},
        "convergence": {
            "sets": {"high": numbers, "low": {**numbers, "factor": 0.8}},
            "layers": 8,
            "lemma": lemma,
            "sequences": 8,
            "layers_where_high_is_faster": 3,
            "layers_where_low_is_faster": 4,
            "entropy_trace_rank_correlation": measured(-0.3, 0.1, 64),
        },
        "dependency": dependency(),
        **depth_probes(layers=8, block=2),
    }


def dependency(rise=0.0, layers=4, heads=4):
    """What the probe of token dependency of an encoder could have found."""
    table = [[0.7 + 0.01 * layer + 0.001 * head + rise for head in range(heads)] for layer in range(layers)]
    names = ("gtd", "indirect_entropy", "entropy", "sparsity")
    graph = {name: [0.1 * (i % 7) + 0.01 * i for i in range(64)] for name in ("gtd", "clustering", "betweenness")}
    graph["betweenness"] = [1 - value for value in graph["betweenness"]]
    related = {name: {"r": 0.5, "p": 0.01} for name in ("clustering", "betweenness")}
    return {
        **dict.fromkeys(names, table),
        "layers": dict.fromkeys(names, [row[0] for row in table]),
        "mean": dict.fromkeys(names, 0.7 + rise),
        "cross_gtd": [0.6 + rise] * (layers - 1),
        "graphs": {**graph, "mean": {name: measured(0.5, 0.01, 64) for name in graph}, "correlation": related},
        "maps": [[[1 / 16] * 16 for _ in range(16)]] * layers,
    }


def tuned(accuracy):
    """The results of a fine-tuning task, with every measure."""
    names = ("accuracy", "matthews", "pearson", "spearman", "f1", "exact_match")
    metrics = {name: measured(accuracy, 0.02, 100) for name in names}
    return {"task": "sst2", "metrics": metrics, "baseline": metrics, "examples": {"train": 900, "validation": 100}}


def while_trained(number):
    """Measurements at some steps: a lower loss, a higher accuracy and GTD."""
    half, nats = measured(0.5, 0.01, 100), measured(1.0 + 0.01 * number, 0.01, 100)
    answers = {"chance": 0.125, "window": 8, "all": half, "outside": half, "loss": {"all": nats, "outside": nats}}
    return {
        str(10 * step): {
            "validation": {**make_loss(3.0 - 0.1 * step), "pseudo_perplexity": measured(20.0 - step, 0.1, 50)},
            "tasks": {"retrieval": answers},
            "probes": {"dependency": dependency(0.01 * step + 0.001 * (step % 2))},
            "finetune": tuned(0.5 + 0.02 * step + 0.001 * number),
        }
        for step in range(1, 8)
    }


def record_for(config, digest, number):
    """A record of a run with this configuration."""
    hooks, events, structure = {}, [], {}
    if config.controller is not None and config.controller.kind == "entropy-growth":
        events, hooks[config.controller.kind] = grown(config.controller)
    elif config.controller is not None and config.controller.adds_layers:
        hooks[config.controller.kind] = {"method": config.controller.method, "layers": config.shape.layers}
        structure = {"lineage": lineage_to_json(final_structure(config).lineage)}
    elif config.controller is not None:
        hooks[config.controller.kind] = learned(config.controller)
    if config.observe is not None:
        hooks["entropy-log"] = entropy_log(number)
    steps = list(range(5, 101, 5))
    history = {"step": steps, "loss": [4 - 0.01 * s + 0.1 * number + 0.001 * (s % 3) for s in steps]}
    history |= {"flops": [1e9 * s for s in steps], "lr": [1e-3] * len(steps)}
    history |= {"expected_sparsity": [0.1, 0.5, 0.9, 0.8, 0.6] + [0.5] * 15, "lagrangian": [-0.1 * s for s in steps]}
    half = measured(0.5, 0.01, 100)
    loss = 3.0 + 0.01 * number
    validation = make_loss(loss, [loss + 0.1 * (i % 7) + 0.001 * (i % 3) * number for i in range(50)])
    tasks = {"retrieval": {"chance": 0.125, "window": 8, "all": half, "inside": half, "outside": half}}
    extrapolation = {str(factor): validation for factor in (1, 2, 3, 4)}
    more = {"finetune": tuned(0.6 + 0.01 * number), "at": while_trained(number)}
    validation["pseudo_perplexity"] = measured(20.0 + number, 0.1, 50)
    results = make_results(validation=validation, tasks=tasks, extrapolation=extrapolation, probes=probes(), **more)
    config = config.model_dump(mode="json")
    parameters = {"total": 1000000 + number}
    changes = {"config": config, "parameters": parameters, "history": history, "hooks": hooks, "events": events}
    return make_record(hash=digest, results=results, structure=structure, **changes)


def benchmark_results(spec, scale):
    def batches(number):
        speed = {"tokens_per_second": measured(100.0, n=3), "ratio": measured(0.9, 0.01, 3)}
        speed |= {"time_ratio": measured(1.1, 0.01, 3), "seconds": [1.0 + number, 1.01 + number, 1.02 + number]}
        parts = ("prefill", "decode", "passes", "token", "critical", "step", "forward")
        return {str(batch): dict.fromkeys(parts, speed) for batch in spec.batches}

    return {g: {name: batches(i) for i, name in enumerate(spec.models)} for g in spec.sizes[scale]}


def lacking(evidence, records):
    """The runs of this scale that evidence misses. A claim about two sizes also misses those of the other one, and a
    control may read what only a scale of several seeds measures."""
    evidence = evidence.partition("its control:")[0]
    missing = re.findall(r"not run: ([^;]+)", evidence)
    return [cell for part in missing for cell in part.split(", ") if cell in records] or (
        "not run" in evidence and not missing
    )


def cheapest(experiment):
    """smoke, but for experiments that are designed for another scale."""
    return experiment.available_scales()[0]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in TRAINED:
        experiment = load_experiment(name)
        for number, config in enumerate(cell_configs(experiment, cheapest(experiment), 0).values()):
            digest = run_hash(config)
            save_record(record_for(config, digest, number), folder)
    for experiment in (load_experiment(name) for name in MEASURED):
        digest = benchmark_hash(experiment, "smoke")
        save_record(make_benchmark(benchmark_results(experiment.benchmark, "smoke"), hash=digest), folder)
    return folder


@pytest.mark.parametrize("name", some(FIGURES, *KINDS.values()))
def test_every_figure_is_drawn_with_its_numbers(name, results):
    experiment = load_experiment(name)
    data, folder = write_entry(experiment, cheapest(experiment), results, also=[".csv", ".pdf"])
    written = {p.name for p in folder.iterdir()}
    assert as_read(json.loads((folder / "figure.json").read_text())) == data
    if experiment.unsearched(cheapest(experiment)):  # what has a preset's rate is not drawn
        assert written == {"figure.csv", "figure.json", "figure.md"}
        return
    assert written == {"figure.csv", "figure.json", "figure.md", "figure.pdf", "figure.png"}
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG" and (folder / "figure.pdf").read_bytes()[
        :4
    ] == b"%PDF"
    assert (folder / "figure.csv").read_text().count("\n") > 2
    trained = records_of(experiment, cheapest(experiment), results)
    shown = [" ".join(map(in_words, claim["comparisons"])) or claim["evidence"] for claim in data["claims"]]
    assert not [text for text in shown if lacking(text, trained)]


def test_the_same_records_give_the_same_bytes(results):
    experiment = load_experiment("consa-fig10")
    first = {p.name: p.read_bytes() for p in write_entry(experiment, "smoke", results)[1].iterdir()}
    assert {p.name: p.read_bytes() for p in write_entry(experiment, "smoke", results)[1].iterdir()} == first


@pytest.mark.parametrize("name", some(FIGURES, *KINDS.values()))
def test_without_runs_nothing_is_drawn(name, tmp_path, capsys):
    experiment = load_experiment(name)
    data, folder = write_entry(experiment, "smoke", tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == ["figure.json", "figure.md"]
    assert all(claim["verdict"] in ("not run", "holds", "fails") for claim in data["claims"])
    assert all(claim["n"] in (None, 0) for claim in data["claims"])
    print_entry(data, Console(width=80))
    assert "– (not run)" in capsys.readouterr().out


def test_a_figure_with_some_runs_missing_draws_the_others(results, tmp_path):
    experiment = load_experiment("consa-fig10")
    configs = cell_configs(experiment, "smoke", 0)
    kept = run_hash(configs["layer-50/1"])
    (tmp_path / "records").mkdir()
    (tmp_path / record_name(kept)).write_bytes((results / record_name(kept)).read_bytes())
    data, folder = write_entry(experiment, "smoke", tmp_path)
    drawn = [s["label"] for panel in data["panels"] for s in panel["series"] if s["data"]]
    assert drawn == ["ρ = 0.50"] and (folder / "figure.png").is_file()


def test_a_metric_that_no_run_has_is_an_error_with_the_figures_id(results):
    experiment = load_experiment("consa-fig10")
    plot = experiment.plot.model_copy(update={"metric": "history.expected_sparsit"})
    with pytest.raises(UserError, match="consa-fig10: history.expected_sparsit: .*mean 'expected_sparsity'"):
        build_figure(experiment.model_copy(update={"plot": plot}), "smoke", results)


UNDECIDED = ("open", "cannot tell here", "not run")
"""What one seed leaves a claim."""


@pytest.mark.parametrize("name", [n for n in experiment_ids() if load_experiment(n).claims])
def test_every_claim_can_be_judged(name, results):
    experiment = load_experiment(name)
    records = records_of(experiment, "smoke", results)
    benchmark = benchmark_record(experiment, "smoke", results)
    for claim in experiment.claims:
        verdict = judge(claim, experiment, records, benchmark, "smoke")
        assert said(verdict) and (verdict.n is None or verdict.word in UNDECIDED or benchmark)
        # Rows of sizes that this scale does not train stay open.
        if benchmark or all(row.cell is None or row.cell in records for row in experiment.rows):
            assert not lacking(said(verdict), records)


def test_cells_of_a_table_come_from_its_records(results):
    data, _ = write_entry(load_experiment("consa-table1"), "smoke", results)
    cells = data["rows"][0]["cells"]
    assert (
        cells["outside"]["measured"] == 0.5
        and cells["perplexity"]["over"] == "windows"
        and cells["kv_8k"]["measured"] == 4
    )
