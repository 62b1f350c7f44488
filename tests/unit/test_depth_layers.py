"""Depth growth's figures on the roles of layers: their files, and the measures that their claims read, on models whose
layers have roles that are known."""

import pytest

from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.formula import NoValue, number_of
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.reporting.figures import build_figure
from hybridlab.plan.lineage import first_lineage, grown_lineage, lineage_to_json
from tests.records import make_record, make_results

LARGE, SMALL = (4, 5, 7, 12, 13, 24, 25), (2, 19, 20, 21, 22, 23, 26)
FIGURES = [f"depth-fig{number}" for number in sorted(LARGE + SMALL)]
# Handmade runs are the same in every seed, of which scipy warns.
pytestmark = pytest.mark.filterwarnings("ignore:Precision loss")
LAYERS, BLOCK = 16, 4
MEASURES = load_experiment("depth-fig5").measures


def effects(change):
    """A matrix of effects: change(skipped layer, later layer)."""
    return [[change(i, j) if j > i else None for j in range(LAYERS)] for i in range(LAYERS)]


def probes(relative, cosine, propagated, local, attention, similarity):
    mean = sum(value for i, row in enumerate(similarity) for j, value in enumerate(row) if i != j) / 12
    sublayers = {"attention": {"relative": relative, "cosine": cosine}, "mlp": {"relative": relative, "cosine": cosine}}
    mirrored = [row[::-1] for row in similarity[::-1]]
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4) if i + j != 3]
    gaps = [abs(similarity[i][j] - mirrored[i][j]) for i, j in pairs]
    return {
        "blocks": {"block": BLOCK, "cosine": similarity, "similarity": mean, "asymmetry": sum(gaps) / len(gaps)},
        "contributions": {"sublayers": sublayers},
        "effects": {
            "future": {
                "propagated": {"layer": {"changes": effects(propagated)}},
                "local": {"layer": {"changes": effects(local)}},
            },
            "current": {"propagated": {"attention": {"changes": effects(attention)}}},
        },
    }


LIKE_MIDAS = [[1.0, 0.5, 0.4, 0.1], [0.5, 1.0, 0.9, 0.2], [0.4, 0.9, 1.0, 0.3], [0.1, 0.2, 0.3, 1.0]]
PAPER = {
    "relative": [(0.2 + 0.1 * (i % 4)) * (2.0 if i == 11 else 1.0) for i in range(LAYERS)],
    "cosine": [0.05 * (i % 4) for i in range(LAYERS)],
    "propagated": lambda i, j: (5.0 if i == 0 else 1.0 if i % 4 == 1 else 0.2) * (2.0 if j == i + 1 else 1.0),
    "local": lambda i, j: (3.0 - 0.1 * j if j % 4 == 2 else 0.2) + (0.4 if i // 4 == 2 and j in (12, 13, 15) else 0.0),
    "attention": lambda i, j: 0.1 if i % 4 == 0 else 0.4,
    "similarity": LIKE_MIDAS,
}
"""What the paper says of a grown model with four blocks of four layers (figures 4, 5 and 7)."""
FLAT = {
    "relative": [0.2 + 0.01 * i for i in range(LAYERS)],
    "cosine": [0.3 - 0.01 * i for i in range(LAYERS)],
    "propagated": lambda i, j: 1.0 - 0.05 * i - 0.01 * j,
    "local": lambda i, j: 0.5 + 0.01 * j,
    "attention": lambda i, j: 0.4 - 0.01 * i,
    "similarity": [[1.0 if i == j else 0.01 for j in range(4)] for i in range(4)],
}
"""A model without blocks."""


def record(roles, **changes):
    lineage = first_lineage(BLOCK)
    for count in range(BLOCK, LAYERS, BLOCK):
        lineage = grown_lineage(lineage, range(count - BLOCK, count))
    config = {"shape": {"layers": LAYERS}, "controller": {"kind": "stacking", "block": BLOCK}}
    structure = {"lineage": lineage_to_json(lineage)}
    return make_record(config=config, structure=structure, results=make_results(probes=probes(**roles)), **changes)


def varied(roles, seed):
    """The same roles with effects that differ a little from seed to seed."""
    changed = {name: lambda i, j, of=of: of(i, j) * (1 + seed / 1000) for name, of in roles.items() if callable(of)}
    return roles | changed


GROWN, PLAIN = record(PAPER), record(FLAT)


@pytest.mark.parametrize(
    ("name", "grown", "plain"),
    [
        ("relative-always-rises", 1.0, 1.0),
        ("cosine-always-rises", 1.0, 0.0),
        ("relative-peaks-last", 1.0, 1.0),
        ("cosine-peaks-last", 1.0, 0.0),
        ("cosine-cycle", 1.0, 5 / 21),
        ("peak-of-last-middle-block", 1.0, 0.0),
        ("cosine-first", 0.0, (0.26 + 0.22) / 2),
        ("cosine-last", 0.15, (0.23 + 0.19) / 2),
        ("cosine-lowest", 0.0, 0.19),
        ("cosine-mean", 0.075, 0.225),
        ("second-changes-third", 1.0, 1.0),
        ("third-on-almost-all", 1.0, 0.625),
        ("third-fades", -1.0, 1.0),
        ("last-on-second-to-last", 0.3, 0.0),
        ("first-attention", 0.1, (0.36 * 11 + 0.32 * 7) / 18),
        ("centre-earlier", (0.5 + 0.4) / 2 - (0.2 + 0.3) / 2, 0.0),
        ("largest-similarity", 0.9, 0.01),
        ("asymmetry-share", ((0.5 - 0.3) * 2 + (0.4 - 0.2) * 2) / 4 / 0.4, 0.0),
    ],
)
def test_measures_of_models_with_known_roles(name, grown, plain):
    assert number_of(GROWN, name, MEASURES) == pytest.approx(grown, abs=1e-9)
    assert number_of(PLAIN, name, MEASURES) == pytest.approx(plain, abs=1e-9)


TREND_FREE = ("second-layer", "third-depends", "third-depends-share", "first-attention-less")


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("relative-rises", 1),
        ("cosine-rises", 1),
        ("relative-true-cycle", 1),
        ("second-layer", 1),
        ("third-depends", 1),
        ("third-depends-share", 1),
        ("first-attention-less", -1),
    ],
)
def test_a_role_has_its_sign_and_no_role_none(name, sign):
    assert sign * number_of(GROWN, name, MEASURES) > 0.05
    if name in TREND_FREE:
        assert number_of(PLAIN, name, MEASURES) == pytest.approx(0, abs=0.01), "a trend over depth is no role"
    turned = {**PAPER, "relative": PAPER["relative"][::-1], "cosine": PAPER["cosine"][::-1]}
    turned |= {"propagated": lambda i, j: 0.2 if i % 4 == 1 else 1.0, "local": lambda i, j: 0.1 if j % 4 == 2 else 1.0}
    turned |= {"attention": lambda i, j: 0.9 if i % 4 == 0 else 0.4}
    if name != "relative-true-cycle":
        assert sign * number_of(record(turned), name, MEASURES) < 0


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("late-propagated", lambda change: mean_of(change, lambda i: i >= 8)),
        ("late-share", lambda change: mean_of(change, lambda i: i >= 8) / mean_of(change, lambda i: i < 8)),
    ],
)
def test_effects_of_later_layers(name, formula):
    for model, roles in ((GROWN, PAPER), (PLAIN, FLAT)):
        assert number_of(model, name, MEASURES) == pytest.approx(formula(roles["propagated"]))


def mean_of(change, chosen):
    cells = [change(i, j) for i in range(LAYERS) for j in range(i + 1, LAYERS) if chosen(i)]
    return sum(cells) / len(cells)


def test_blocks_of_two_have_no_third_layer():
    results = make_results(probes={**probes(**PAPER), "blocks": {"block": 2}})
    small = GROWN.model_copy(update={"results": results})
    for name in ("third-depends", "third-fades", "third-changes"):
        with pytest.raises(NoValue, match="nothing is selected"):
            number_of(small, name, MEASURES)


def test_every_measure_is_used():
    named = {path for measure in MEASURES.values() for _, path in measure.paths()}
    for identifier in FIGURES:
        for claim in load_experiment(identifier).claims:
            named |= {metric for test in claim.tests for metric in test.metrics}
    assert not [name for name in MEASURES if name not in named]
    assert len({measure.title for measure in MEASURES.values()}) == len(MEASURES)


@pytest.mark.parametrize("identifier", FIGURES)
def test_every_figure_is_drawn_and_its_claims_can_be_judged(identifier, tmp_path):
    experiment = load_experiment(identifier)
    assert experiment.notes and experiment.claims and {"smoke", "small", "paper"} <= set(experiment.scales)
    other = {"360M": "1.7B", "1.7B": "360M"}[experiment.title[-5:-1].strip("(")] if identifier != "depth-fig2" else ""
    records = {
        cell: {seed: record(FLAT if "baseline" in cell else PAPER) for seed in range(3)}
        for cell in experiment.needed_cells("paper")
    }
    for claim in experiment.claims:
        verdict = judge(claim, experiment, records, scale="small")
        if claim.test["kind"] == "not_here":
            assert verdict.evidence.startswith("needs ")
        elif verdict.word == "not run":
            assert other and other in verdict.evidence, verdict.evidence
        else:
            assert claim.test.is_exact or verdict.n == 3, verdict.evidence
    data = build_figure(experiment, "smoke", tmp_path)
    assert not any(series["data"] for panel in data["panels"] for series in panel["series"])


def cells_of(claim):
    """The cells that a claim's expression names; none for another kind."""
    return {*claim.test.cells} if claim.test.expression is not None else set()


def test_claims_hold_for_a_model_as_the_paper_describes_it_and_fail_for_one_without_blocks():
    experiment = load_experiment("depth-fig5")
    claims = [claim for claim in experiment.claims if cells_of(claim) == {"1.7B/midas"}]
    for roles, words in ((PAPER, {"holds", "open"}), (FLAT, {"fails", "open", "holds"})):
        records = {"1.7B/midas": {seed: record(varied(roles, seed)) for seed in range(6)}}
        found = {claim.test.first_metric: judge(claim, experiment, records, scale="small").word for claim in claims}
        assert set(found.values()) <= words
        assert (found["second-layer"] == "holds") == (roles is PAPER)
        assert found["third-fades"] == ("holds" if roles is PAPER else "fails")


def test_below_scale_paper_figures_share_the_runs_of_the_tables():
    table = {run.cell: run.hash for run in cell_runs(load_experiment("depth-table1"), "smoke", 0)}
    for number in (4, 5, 7, 12, 13, 19, 20, 21, 22, 25, 26):
        for run in cell_runs(load_experiment(f"depth-fig{number}"), "smoke", 0):
            assert run.hash == table[run.cell.replace("1.7B", "360M")]
    drawn, blocks = ({run.cell[-5:]: run.hash for run in cell_runs(load_experiment(one), "smoke", 0)} for one in FIG)
    assert drawn == {cell: digest for cell, digest in blocks.items() if cell in drawn}, (
        "figure 2 draws runs of figure 23"
    )
    paper = {run.cell[-5:]: run.hash for run in cell_runs(load_experiment("depth-fig2"), "paper", 0)}
    table = {run.cell: run.hash for run in cell_runs(load_experiment("depth-table1"), "paper", 0)}
    assert paper == {method: table[f"360M/{method}"] for method in ("midas", "lidas")}


FIG = ("depth-fig2", "depth-fig23")


OTHER_BLOCKS = {
    "depth-fig23": {"smoke": 4, "small": 4, "paper": 8},
    "depth-fig24": {"smoke": 3, "small": 3, "paper": 3},
}


@pytest.mark.parametrize("identifier", OTHER_BLOCKS)
def test_other_block_sizes_divide_the_depth_at_every_scale(identifier):
    for scale, block in OTHER_BLOCKS[identifier].items():
        for run in cell_runs(load_experiment(identifier), scale, 0):
            assert run.config.shape.layers % block == 0 and run.config.shape.layers // block >= 3
            assert run.config.evaluation.probe_settings == {"blocks": {"block": block}}
            assert getattr(run.config.controller, "block", block) == block
