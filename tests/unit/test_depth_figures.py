"""The figures of the depth paper: their files, and the measures that their claims and panels read."""

import json
import math
import re
from pathlib import Path

import pytest

from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.formula import NoValue, names_in, number_of, parsed, values_of
from hybridlab.lab.reporting.figures import build_figure
from tests.depth_probes import depth_probes
from tests.experiments import experiment_ids, load_experiment
from tests.records import make_loss, make_record, make_results

LARGE, SMALL = (1, 3, 6, 8, 9, 10, 11, 27), (14, 15, 16, 17, 18, 28)
FIGURES = [f"depth-fig{number}" for number in sorted(LARGE + SMALL)]
LAYERS, BLOCK = 12, 2


def record(**changes):
    config = {"shape": {"layers": LAYERS, "vocab": 1024}}
    return make_record(config=config, results=make_results(probes=depth_probes(LAYERS, BLOCK)), **changes)


MEASURES = load_experiment("depth-fig1").measures


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("late-work", 5 / 29),
        ("late-over-early", 1 / 4),
        ("late-overlap", (7 + 8 + 9 + 10 + 11) / 60),
        ("early-overlap", (1 + 2 + 3 + 4 + 5 + 6) / 72),
        ("late-kl", 0.3),
        ("lens-gain", -0.8),
        ("able", 5.0),
        ("reach-text", 1.0),
        ("last-step-assignment", 1 / 14),
        ("peak-assignment", 1.0),
        ("before-last-text", 13 / 14),
        ("embedding-text", 0.2 / 1.4),
        ("area-assignment", (0.2 + sum(0.1 * i for i in range(3, 14))) / 12 / 1.4),
        ("half-block", 1.0),
        ("two-blocks", 4.0),
        # Starts 8 to 11 of skips, 2 to 10 of swaps, each 0.01 nats more than the one before.
        ("late-skip-text", 0.25 + 0.095),
        ("late-skip-assignment", 0.025),
        # Of prompts and of questions one by one; late reversals begin at 6 to 8, those of the middle at 2 to 5.
        ("asked", 4.0),
        ("asked-inner-swap", 0.01),
        ("asked-input-swap", 0.0),
        ("asked-four-over-one", 0.03),
        ("asked-late-skip", 0.025),
        ("lambada-late-skip", 0.25 + 0.095),
        ("asked-late-reverse", 0.0),
        ("inner-swap-text", 0.1 + 0.06),
        ("input-swap-text", -0.06),
        ("four-over-one-text", 0.3 + 0.02 - 0.05),
        ("middle-swap-half-text", 0.1 + 0.05),
        ("middle-swap-block-text", 0.2 + 0.04),
        ("middle-swap-two-text", 0.4 + 0.02),
        ("middle-swap-block-assignment", 0.02),
        ("unaligned-text", 0.0),
        ("middle-skip-text", 0.5 + 0.05),
        ("skip-over-swap-text", 0.31),
        ("reverse-inside-text", 0.1),
        ("reverse-inside-assignment", 0.05),
        ("straddling-text", 0.3),
        ("straddling-assignment", 0.05),
        ("straddling-over-skip-text", 0.4 - 0.55),
        ("skip-inside-text", 0.55),
        ("skip-over-reverse-text", 0.45),
        ("straddling-over-swap-text", 0.4 - 0.15),
        ("reach-overlap", 0.5),
        ("middle-reverse-text", 0.64),
        ("reverse-over-swap-2-text", 0.64 - 2 * 0.24),
        ("reverse-over-swap-4-text", 0.64 - 2 * 0.42),
        ("late-reverse-text", 0.6 + 0.07),
        ("lost-text", (0.15 + 0.24) / 2 / (math.log(1024) - 2)),
        ("lost-assignment", (0.01 + 0.02) / 2 / 0.6),
        ("after-middle-swap", 0.8 - 0.04 - 0.2),
    ],
)
def test_measures_of_a_model_with_known_numbers(name, value):
    assert number_of(record(), name, MEASURES) == pytest.approx(value)


def test_a_reversal_across_blocks_of_two_layers_is_a_swap_of_single_ones():
    with pytest.raises(NoValue, match="a condition of the measure is not met"):
        number_of(record(), "least-straddling-text", MEASURES)
    config, results = {"shape": {"layers": 16, "vocab": 1024}}, make_results(probes=depth_probes(16, 4))
    other = make_record(config=config, results=results)
    harms = values_of(other, "reverse-block-text", MEASURES)
    starts = values_of(other, "results.probes.interventions.reverse.4.starts", MEASURES)
    (across,) = harms[starts == 6]
    assert number_of(other, "least-straddling-text", MEASURES) == pytest.approx(across)


def test_lists_for_panels():
    assert values_of(record(), "exits", MEASURES).tolist() == list(range(LAYERS + 1))
    assert values_of(record(), "from-swap-4", MEASURES).tolist() == [1, 2, 3, 4, 5]
    assert values_of(record(), "rise-skip-8", MEASURES).tolist() == pytest.approx([2.0 + 0.01 * i for i in range(5)])
    assert values_of(record(), "right-reverse-2", MEASURES).tolist()[:2] == [0.75, 0.7]
    assert sum(values_of(record(), "work", MEASURES).tolist()) == pytest.approx(1)


def test_without_the_task_the_multiple_choice_counts():
    def moved(part):
        if not isinstance(part, dict):
            return part
        if "tasks" in part:
            part = {**part, "choices": {"assignment-math": part["tasks"]["assignment"]}, "tasks": {}}
        return {name: moved(inner) for name, inner in part.items()}

    other = record().model_copy(update={"results": make_results(probes=moved(depth_probes(LAYERS, BLOCK)))})
    for name in ("able", "late-skip-assignment", "straddling-assignment", "after-middle-swap", "lost-gap"):
        assert number_of(other, name, MEASURES) == pytest.approx(number_of(record(), name, MEASURES))


def test_every_measure_is_used_and_has_a_title():
    used = set()
    for identifier in FIGURES:
        experiment = load_experiment(identifier)
        used |= set(json.dumps(experiment.model_dump(mode="json", exclude={"measures"})).replace('"', " ").split())
        used |= {metric for claim in experiment.claims for test in claim.tests for metric in test.metrics}
    used = {word.strip(",[]{}") for word in used}
    inner = {path for measure in MEASURES.values() for _, path in measure.paths()}
    assert not [name for name in MEASURES if name not in used | inner]
    assert len({measure.title for measure in MEASURES.values()}) > 80 and all(m.title for m in MEASURES.values())
    assert all(names_in(parsed(measure.formula)) for measure in MEASURES.values())


@pytest.mark.parametrize("identifier", FIGURES)
def test_every_figure_has_panels_notes_and_claims_that_can_be_judged(identifier):
    assert identifier in experiment_ids()
    experiment = load_experiment(identifier)
    assert experiment.plot.kind == "lines" and len(experiment.plot.panels) >= 4
    # The paper says nothing of figure 17 alone.
    assert bool(experiment.claims) == (identifier != "depth-fig17")
    assert experiment.notes and {"smoke", "small", "paper"} <= set(experiment.scales)
    cells = experiment.needed_cells("smoke")
    records = {cell: {seed: record() for seed in range(3)} for cell in cells}
    for claim in experiment.claims:
        verdict = judge(claim, experiment, records, scale="small")
        if claim.test["kind"] == "not_here":
            assert verdict.evidence.startswith("needs ")
        elif verdict.word == "not run":
            # Records of these tests have no answers to multiple choice, and are of no prompts of tasks.
            assert re.search(r"choices|levels\.\w+\.effects|\.tasks\.\w+\.", verdict.evidence), verdict.evidence
        else:
            # Lists without an order, and blocks of two layers.
            without = ("all entries of a list are the same", "a condition of the measure is not met")
            assert verdict.n == 3 or any(why in verdict.evidence for why in without), verdict.evidence


def test_both_sizes_have_the_figures_that_the_paper_has_of_both():
    """The 1.7B model's figures name its cells, those of the 360M model its own; below scale paper they are the same
    runs as those of the tables."""
    table = {run.cell: run.hash for run in cell_runs(load_experiment("depth-table9"), "smoke", 0)}
    table |= {run.cell: run.hash for run in cell_runs(load_experiment("depth-table1"), "smoke", 0)}
    for number in LARGE + SMALL:
        experiment = load_experiment(f"depth-fig{number}")
        group = "1.7B" if number in LARGE else "360M"
        for run in cell_runs(experiment, "smoke", 0):
            assert run.cell.startswith(f"{group}/") and run.hash == table[run.cell.replace("1.7B", "360M")]
        assert experiment.needed_cells("paper") and group in experiment.title


def test_a_figure_without_runs_says_so(tmp_path):
    data = build_figure(load_experiment("depth-fig1"), "smoke", tmp_path)
    assert not any(series["data"] for panel in data["panels"] for series in panel["series"])
    assert {claim["verdict"] for claim in data["claims"]} == {"not run"}


def test_a_panel_reads_the_runs_whose_rate_its_own_metric_chose(monkeypatch):
    """At 0.5M the baseline copies best at one rate, and has the best loss of text at another."""
    experiment = load_experiment("depth-slopes")
    sizes = {"midas/0.5M": (2.4, [3.0] * 4), "baseline/0.5M": (3.0, [3.0, 3.0, 1.0, 1.0])}
    records = {name: {0: _trained(*losses)} for name, losses in sizes.items()}
    records["baseline/0.5M@results.validation.loss"] = {0: _trained(2.5, [1.0] * 4)}
    monkeypatch.setattr("hybridlab.lab.reporting.figures.records_of", lambda *_: records)
    panels = {panel["title"]: panel["series"][0] for panel in build_figure(experiment, "desk", Path())["panels"]}
    first = {title: series["data"]["points"][0]["y"] for title, series in panels.items()}
    assert first["steps before copying is learned"] == 1.0, "all of the steps, and half of them: one doubling"
    assert first["text"] == pytest.approx(2.4 - 2.5), "not less 3.0, the loss at the rate that copies best"


def _trained(loss, history):
    flops = [10.0 * (i + 1) for i in range(len(history))]
    return make_record(results=make_results(validation=make_loss(loss)), history={"loss": history, "flops": flops})
