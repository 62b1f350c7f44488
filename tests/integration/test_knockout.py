"""The knock-out oracle, the map that it chooses, and the share of attention that a map keeps."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from hybridlab.analysis.performance import suite, text_losses
from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.probes.windows import inside_mass, kept_by, with_windows
from hybridlab.attention.kinds import Full, Mixed, Window
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import UserError
from hybridlab.evaluation.text import answers
from hybridlab.lab.papers import loading
from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.models.build import build_model
from hybridlab.models.decoder import draw_weights
from hybridlab.plan.attention_map import AttentionMap
from tests.conftest import SMALL_SHAPE
from tests.training import train

MIX = {"data": {"mix": {"text": 0.5, "retrieval": 0.5}}}
PROBED = {**MIX, "evaluation": {"probes": ["knockout", "kept-mass"]}}


@pytest.fixture
def made(small, tmp_path):
    """A configuration with a task, its corpus, and a model with fresh weights."""
    config = small(**MIX)
    model = build_model("vanilla", shape={**SMALL_SHAPE, "init": {"std": 0.3}})
    draw_weights(model, 0)
    corpus = corpus_for(config.data, tmp_path / "data")
    return SimpleNamespace(config=config, model=model.eval(), corpus=corpus)


def probed(made, name, model=None, **settings):
    return run_probe(name, model or made.model, made.corpus, 32, made.config, **settings)


def test_a_knock_out_is_the_difference_of_two_losses(made):
    found = probed(made, "knockout", rows=6)
    assert found["window"] == 4 and set(found["heads"]) == {"text", "retrieval"}
    assert set(found["heads"]["text"]) == {"all"} and set(found["heads"]["retrieval"]) == {"all", "far"}
    used = suite(made.model, made.corpus, made.config, 32, 6)
    rows = used.tasks["retrieval"]
    far = torch.cat([torch.from_numpy(row.distances) >= 4 for row in rows]).numpy()

    def losses(model):
        return text_losses(used, model), answers(model, rows, used.offsets["retrieval"])[1]

    masks = [[1, 1], [1, 0], [1, 1]]
    text, nats = losses(made.model)
    changed_text, changed = losses(made.model.with_plan(attention_map=AttentionMap.from_masks(masks, 4)))
    assert found["base"]["text"]["all"]["value"] == pytest.approx(text.mean(), abs=1e-6)
    assert found["heads"]["text"]["all"]["rise"][1][1] == pytest.approx((changed_text - text).mean(), abs=2e-6)
    assert found["heads"]["retrieval"]["far"]["rise"][1][1] == pytest.approx((changed - nats)[far].mean(), abs=2e-6)
    assert found["base"]["retrieval"]["far"]["n"] == far.sum() < len(far)
    layer = AttentionMap.from_masks([[1, 1], [0, 0], [1, 1]], 4)
    whole, _ = losses(made.model.with_plan(attention_map=layer))
    assert found["layers"]["text"]["all"]["rise"][1] == pytest.approx((whole - text).mean(), abs=2e-6)


def test_only_the_head_that_matters_costs_anything(made):
    """Of all heads one has values that are not zero: without its far keys the loss changes, and with no other."""
    width = SMALL_SHAPE["head_width"]
    with torch.no_grad():
        for layer, block in enumerate(made.model.blocks):
            rows = block.attention.v.weight.view(2, width, -1)
            rows[0].zero_()
            if layer != 2:
                rows[1].zero_()
    found = probed(made, "knockout", rows=4)
    for part in (found["heads"]["text"]["all"], found["heads"]["retrieval"]["far"]):
        changed = [[abs(value) > 1e-5 for value in row] for row in part["rise"]]
        assert changed == [[False, False], [False, False], [False, True]]


def test_heads_that_are_windows_already_cost_nothing(made):
    model = made.model.with_plan(attention_map=AttentionMap.from_masks([[0, 0], [0, 1], [1, 1]], 3))
    found = probed(made, "knockout", model, rows=3)
    heads = found["heads"]["text"]["all"]["rise"]
    assert heads[0] == [0, 0] and heads[1][0] == 0 != heads[1][1] and found["layers"]["text"]["all"]["rise"][0] == 0
    assert found["layers"]["text"]["all"]["rise"][1] == heads[1][1]
    assert with_windows(AttentionMap(((Window(9), Full()),)), 0, [0, 1], 4).layers == ((Window(4), Window(4)),)


def test_heads_that_learn_their_masks_count_by_their_gates(made):
    """Heads that mix windows with full attention: with gates of 1 they are full heads, with 0 they are windows."""
    mixed = AttentionMap.uniform(3, 2, Mixed(4))
    assert with_windows(mixed, 0, [1], 4).layers[0] == (Mixed(4), Window(4))
    full = probed(made, "knockout", rows=3)
    gates = {layer: torch.ones(2) for layer in range(3)}
    found = probed(made, "knockout", made.model.with_plan(attention_map=mixed, gates=gates), rows=3)
    for name, part in (("text", "all"), ("retrieval", "far")):
        rise = found["heads"][name][part]["rise"]
        for one, other in zip(rise, full["heads"][name][part]["rise"], strict=True):
            assert one == pytest.approx(other, abs=1e-5) and all(one)
    kept = {}
    for gate in (1.0, 0.5, 0.0):
        gates = {layer: torch.full((2,), gate) for layer in range(3)}
        kept[gate] = probed(made, "kept-mass", made.model.with_plan(attention_map=mixed, gates=gates))["kept"]["text"]
    windows = made.model.with_plan(attention_map=AttentionMap.uniform(3, 2, Window(4)))
    assert kept[1.0] == 1 and kept[0.0] == probed(made, "kept-mass", windows)["kept"]["text"] < 0.9
    assert kept[0.5] == pytest.approx((1 + kept[0.0]) / 2, abs=1e-5)


def test_both_probes_ask_for_a_window_where_there_is_none(made):
    evaluation = made.config.evaluation.model_copy(update={"task_window": None})
    made.config = made.config.model_copy(update={"evaluation": evaluation})
    for name in ("knockout", "kept-mass"):
        assert "set --window N, or evaluation.task_window" in probed(made, name)["skipped"]
        assert probed(made, name, window=7, rows=2)["window"] == 7
        with pytest.raises(UserError, match=f"probe {name}: it needs the run's configuration"):
            run_probe(name, made.model, made.corpus, 32)
        with pytest.raises(UserError, match="window = 0"):
            probed(made, name, window=0)


def test_uniform_attention_keeps_what_counting_says(made):
    """With equal scores, query i (from 0) has min(w, i + 1) / (i + 1) of its attention inside a window of w."""
    with torch.no_grad():
        for block in made.model.blocks:
            block.attention.q.weight.zero_()
    inside = sum(min(4, i + 1) / (i + 1) for i in range(32)) / 32
    found = probed(made, "kept-mass", rows=5)
    for name in ("text", "retrieval"):
        assert all(value == pytest.approx(inside, abs=1e-5) for row in found["heads"][name] for value in row)
        assert found["kept"][name] == 1.0, "a map of full heads keeps all of it"
    mixed = made.model.with_plan(attention_map=AttentionMap.from_masks([[0, 1], [0, 1], [0, 0]], 4))
    found = probed(made, "kept-mass", mixed, rows=5)
    assert found["kept"]["text"] == pytest.approx((2 + 4 * inside) / 6, abs=1e-5)
    assert found["heads"]["text"][0] == [pytest.approx(inside, abs=1e-5)] * 2, "measured with full attention"


def test_kept_mass_takes_each_window_at_its_width_and_rows_in_blocks(made, monkeypatch):
    tokens = torch.randint(256, (5, 20), generator=torch.Generator().manual_seed(0))
    whole = inside_mass(made.model, tokens, [2, 30])
    monkeypatch.setattr("hybridlab.analysis.probes.windows._AT_ONCE", 2 * 3 * 4 * 20 * 20)
    blocked = inside_mass(made.model, tokens, [2, 30])
    assert torch.allclose(whole[2], blocked[2], atol=1e-6) and torch.allclose(whole[30], torch.ones(3, 2))
    output = made.model(tokens, need="full").attention[1,][:, :2].detach()
    diagonals = output.diagonal(dim1=-2, dim2=-1).sum() + output.diagonal(-1, dim1=-2, dim2=-1).sum()
    assert float(whole[2][1, 0]) == pytest.approx(float(diagonals) / (5 * 2 * 20), abs=1e-6)
    assert kept_by(AttentionMap.uniform(1, 2, Window(2)), {2: torch.tensor([[0.25, float("nan")]])}) == 0.25


def test_the_map_of_a_knock_out_keeps_the_costliest_units(small, runs):
    base = small(**PROBED)
    record = train(base, runs / "base", runs)
    found = record.results.probes["knockout"]
    assert 0 < record.results.probes["kept-mass"]["kept"]["text"] <= 1
    json.dumps(record.model_dump(mode="json"), allow_nan=False)

    def masks(**entries):
        asked = {"kind": "knockout", "run": run_hash(base), "granularity": "head-all", "rho": 0.5, "of": "retrieval"}
        config = small(**MIX, map={**asked, **entries}, training={"steps": 2})
        made = train(config, runs / run_hash(config), runs)
        assert made.parents == [run_hash(base)] and config.map.run == run_hash(base)
        return AttentionMap.from_json(made.structure["map"]).masks()

    rises = found["heads"]["retrieval"]["far"]["rise"]
    kept = sorted(((rise, layer, head) for layer, row in enumerate(rises) for head, rise in enumerate(row)))[3:]
    wanted = [[int(any((layer, head) == unit[1:] for unit in kept)) for head in range(2)] for layer in range(3)]
    assert masks() == wanted
    assert masks(granularity="head-single", of="text") == [
        [int(row[0] > row[1]), int(row[1] >= row[0])] for row in found["heads"]["text"]["all"]["rise"]
    ]
    layers = found["layers"]["retrieval"]["all"]["rise"]
    best = max(range(3), key=layers.__getitem__)
    by_layer = masks(granularity="layer", measure="all", rho=2 / 3)
    assert by_layer == [[int(layer == best)] * 2 for layer in range(3)]

    unprobed = small(**MIX)
    train(unprobed, runs / "unprobed", runs)
    for changes, message in (
        ({"run": run_hash(unprobed)}, r"no knock-out: it is not among its probes.*evaluation.probes=\[knockout\]"),
        ({"window": 5}, "measured with windows of 4, and this map has windows of 5; use the same"),
        ({"of": "assignment"}, "it was not measured on assignment; known: text, retrieval"),
    ):
        with pytest.raises(UserError, match=message):
            masks(**changes)
    asked = {"kind": "knockout", "run": run_hash(base), "granularity": "head-all", "rho": 0.5, "of": "text"}
    with pytest.raises(UserError, match="that run has 3 layers of 2 KV heads, this one 2 of 2"):
        train(small(shape={"layers": 2}, map=asked), runs / "x", runs)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"of": "text", "measure": "far"}, "text has no distances; write measure: all"),
        ({"of": "retrievl"}, "map.of: 'retrievl' is neither text nor a task; did you mean 'retrieval'"),
        ({"rho": 0.3}, "rho 0.3: 0.3 × 32 KV heads = 9.6 is not a whole number"),
        ({"granularity": "head"}, "did you mean 'head-all'"),
        ({"run": None}, "map.run"),
    ],
)
def test_maps_of_a_knock_out_that_cannot_be_are_refused_before_training(entries, message):
    asked = {"kind": "knockout", "run": "abc", "granularity": "head-all", "rho": 0.875, "of": "retrieval"}
    with pytest.raises(UserError, match=message):
        resolve("vanilla", "tiny", layers=[Layer({"map": {**asked, **entries}})])


def test_the_default_measure_does_not_change_the_hash():
    def hash_of(**entries):
        asked = {"kind": "knockout", "run": "abc", "granularity": "head-all", "rho": 0.875, **entries}
        return run_hash(resolve("vanilla", "tiny", layers=[Layer({"map": asked})]))

    assert hash_of(of="retrieval") == hash_of(of="retrieval", measure="far") != hash_of(of="retrieval", measure="all")
    assert hash_of(of="text") == hash_of(of="text", measure="all")


EXPERIMENT = """\
id: toy-table1
title: A toy
paper: toy
source: nowhere
columns: [{name: loss, title: loss, kind: trained, metric: results.validation.loss}]
rows: [{name: Oracle, short: Oracle, cell: oracle}, {name: Random, short: Random, cell: random}]
cells:
  base: {arch: vanilla, phase: train, config: {evaluation: {probes: [knockout]}}}
  oracle:
    arch: vanilla
    phase: train
    start: base
    config: {map: {kind: knockout, run: "cell:base", granularity: head-all, rho: 0.875, of: retrieval}}
  random: {arch: vanilla, phase: train, start: base, config: {map: {kind: random, granularity: head-all, rho: 0.875}}}
scales:
  smoke: {machine: here, size: tiny, data: recall, seeds: [0], phases: {train: {training: {steps: 30}}}}
"""


def test_cells_name_the_run_of_a_knock_out_and_draw_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "experiments_folder", lambda: tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "table1.yaml").write_text(EXPERIMENT)
    experiment = load_experiment("toy-table1")
    zero, one = ({run.cell: run for run in cell_runs(experiment, "smoke", seed)} for seed in (0, 1))
    assert list(zero)[0] == "base" and zero["oracle"].config.map.run == zero["base"].hash
    assert (zero["random"].config.map.seed, one["random"].config.map.seed) == (0, 1)


def test_the_command_shows_both_probes(small, tmp_path, runs_dir, monkeypatch, capsys):
    from hybridlab.lab.cli.main import run

    train(small(**MIX), tmp_path / "a", runs_dir)
    monkeypatch.chdir(tmp_path)
    for probe, words in (("knockout", "rise of the loss"), ("kept-mass", "share of the attention")):
        arguments = ["analyze", "./a", "--probe", probe, "--rows", "2", "--window", "6", "--runs-dir", str(runs_dir)]
        monkeypatch.setattr(sys, "argv", ["hybridlab", *arguments])
        with pytest.raises(SystemExit) as ended:
            run()
        out = " ".join(capsys.readouterr().out.split())
        assert ended.value.code == 0 and words in out and "window of 6" in out and "head 1" in out
