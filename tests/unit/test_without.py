"""The probe `without`: each mechanism off, against models that are made without it by hand."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from hybridlab.analysis.probe import run_probe, spaced_windows
from hybridlab.analysis.probes.interventions import without_each
from hybridlab.analysis.probes.loops import lost_without_updates
from hybridlab.attention.belief import Belief
from hybridlab.config.structures import structure_of
from hybridlab.data.batches import Rows
from hybridlab.data.preparing import corpus_for
from hybridlab.models.build import build_model
from hybridlab.models.decoder import Transformer, draw_weights, make_model
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.lineage import first_lineage, grown_lineage
from hybridlab.plan.plan import Plan, Visit
from hybridlab.training.objective import make_objective
from tests.conftest import SMALL_SHAPE
from tests.models import random_ids
from tests.training import GROWTH_TIMES, train
from tests.unit.test_effects import model_of

ROWS = 6


@pytest.fixture
def made(small, runs_dir):
    config = small(data={"mix": {"text": 0.5, "retrieval": 0.5}})
    return SimpleNamespace(config=config, corpus=corpus_for(config.data, runs_dir / "data"))


def probed(made, model, **settings):
    return run_probe("without", model, made.corpus, 32, made.config, **{"rows": ROWS, **settings})


def nats(made, model):
    """(ROWS,): the mean loss of each window, the plain way."""
    tokens = spaced_windows(model, made.corpus, 32, ROWS)
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1].transpose(1, 2)
    return F.cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1).double()


def plain_stack(model, layers):
    """A model of these layers of another one, each once, in this order."""
    stack = model_of(len(layers))
    for name in ("embedding", "final_norm", "head"):
        getattr(stack, name).load_state_dict(getattr(model, name).state_dict())
    for block, layer in zip(stack.blocks, layers, strict=True):
        block.load_state_dict(model.blocks[layer].state_dict())
    return stack


def assert_lost(made, found, model, other):
    """What a model loses against one that is made without its mechanism by hand."""
    rise = nats(made, other) - nats(made, model)
    assert abs(rise.mean()) > 1e-4
    assert found["loss"] == pytest.approx(float(nats(made, other).mean()), abs=2e-6)
    assert found["lost"] == pytest.approx(float(rise.mean()), abs=2e-6)
    assert found["stderr"] == pytest.approx(float(rise.std() / ROWS**0.5), abs=2e-6)


def recurrent(arch="looped", **recurrence):
    shape = {**SMALL_SHAPE, "layers": 6, "init": {"std": 0.3}}
    model = build_model(arch, shape=shape, recurrence=recurrence, kernel="eager")
    draw_weights(model, 0)
    return model.eval()


LOOPED = {
    "heads of one layer": lambda plan: plan.loop_heads(2, (1, 3), 2),
    "heads of two layers": lambda plan: plan.loop_heads(1, (0,)).loop_heads(3, (1, 2)),
    "all attention": lambda plan: plan.loop_heads(2, range(4)),
    "blocks": lambda plan: plan.loop_blocks((1, 3), 2),
    "blocks in turn": lambda plan: replace(plan, visits=(*plan.visits[:3], *plan.visits[1:])),
}


@pytest.mark.parametrize("name", LOOPED)
def test_without_extra_passes_a_model_is_the_plain_stack(made, name):
    model = model_of(4)
    model = model.with_plan(LOOPED[name](model.plan))
    found = probed(made, model)
    assert found["sequences"] == ROWS and found["loss"] == pytest.approx(float(nats(made, model).mean()), abs=2e-6)
    assert found.keys() == {"sequences", "loss", "tasks", "loops"}
    assert_lost(made, found["loops"], model, plain_stack(model, range(4)))


def test_the_passes_that_repeat_nothing_stay():
    looped = Plan.plain(2).loop_heads(1, (3,), 2)
    assert looped.without_repeats(4).visits == (Visit(0), Visit(1, "attention"), Visit(1, "mlp"))
    halves = Plan((Visit(0, "attention", (0, 1)), Visit(0, "attention", (2, 3)), Visit(0, "mlp"), Visit(0)), 1)
    assert halves.without_repeats(4).visits == halves.visits[:3]
    for plan in (Plan.plain(3), Plan.plain(4).recur(1, 2, (1, 1)), Plan.plain(2, parallel=True).swap(0, 1)):
        assert plan.without_repeats(4) == plan
    assert Plan.plain(2, parallel=True).loop_heads(1, (2,)).without_repeats(4) == Plan.plain(2, parallel=True)


@pytest.mark.parametrize("chunks", [[1, 1], [4, 2, 1]])
@pytest.mark.parametrize("topology", ["anchor", "direct"])
def test_without_updates_a_model_is_the_stack_around_its_loop(made, topology, chunks):
    model = recurrent(topology=topology, chunks=chunks)
    body = {visit.layer for loop in model.plan.loops.values() for visit in loop.body(0)}
    around = [visit.layer for visit in model.plan.visits if isinstance(visit, Visit)]
    assert body and around and not body & set(around)
    assert_lost(made, probed(made, model)["loops"], model, plain_stack(model, around))


def test_what_mesh_loses_is_what_the_probe_of_routers_says(made):
    model = recurrent("spiral-b", topology="mesh")
    found = probed(made, model)["loops"]
    lost = lost_without_updates(model, spaced_windows(model, made.corpus, 32, ROWS).split(4))
    assert lost.n == ROWS and abs(lost.value) > 1e-3
    assert [found["lost"], found["stderr"]] == pytest.approx([lost.value, lost.stderr], abs=1e-6)
    of_routers = run_probe("routers", model, made.corpus, 32, rows=ROWS)["lost_without"]
    assert of_routers == lost.model_dump()


def test_the_probe_of_routers_leaves_other_loops_alone():
    tokens = random_ids(17, 4)
    assert lost_without_updates(recurrent(topology="anchor"), [tokens]).value == 0


def test_without_the_copies_a_grown_model_is_its_other_layers(made):
    model = model_of(6)
    # Layers 1 and 2 were copied to 3 and 4, and layer 4 of these six then to 5.
    lineage = grown_lineage(grown_lineage(first_lineage(3), range(1, 3)), range(4, 5))
    grown = Transformer.from_tensors(replace(model.structure, lineage=lineage), dict(model.named_parameters()))
    found = probed(made, grown.eval())
    assert found.keys() == {"sequences", "loss", "tasks", "copies"}
    assert_lost(made, found["copies"], model, plain_stack(model, range(3)))
    fresh = replace(model.structure, lineage=first_lineage(6))
    assert without_each(Transformer.from_tensors(fresh, dict(model.named_parameters()))) == {}


@pytest.mark.parametrize("factor", ["high", "low", "elemmul"])
def test_without_refinement_heads_of_kind_belief_are_softmax_attention(made, factor):
    model = model_of(4)
    strength = None if factor == "elemmul" else 2.0
    refined = model.with_plan(attention_map=AttentionMap(((Belief(factor, strength),) * 2,) * 4))
    off = model.with_plan(attention_map=AttentionMap(((Belief("high", 0.0),) * 2,) * 4))
    found = probed(made, refined)
    assert found.keys() == {"sequences", "loss", "tasks", "refinement"}
    assert_lost(made, found["refinement"], refined, off)


def test_each_mechanism_of_a_model_is_left_out_alone(made):
    model = model_of(4)
    lineage = grown_lineage(first_lineage(3), range(1, 2))
    structure = replace(model.structure, lineage=lineage)
    mixed = Transformer.from_tensors(structure, dict(model.named_parameters())).eval()
    mixed = mixed.with_plan(mixed.plan.loop_heads(2, (0, 1)), AttentionMap(((Belief("high", 1.0),) * 2,) * 4))
    found, before = probed(made, mixed), mixed.plan
    plain = model.with_plan(attention_map=mixed.attention_map)
    assert_lost(made, found["loops"], mixed, plain)
    assert_lost(made, found["copies"], mixed, mixed.with_plan(mixed.plan.skip(2)))
    assert_lost(made, found["refinement"], mixed, model.with_plan(mixed.plan))
    assert mixed.plan is before


def test_tasks_are_measured_too(made):
    model = model_of(4)
    looped = model.with_plan(model.plan.loop_blocks((1, 2), 2))
    found = probed(made, looped)
    with_, without = found["tasks"]["retrieval"], found["loops"]["tasks"]["retrieval"]
    assert without["lost"] == pytest.approx(without["loss"] - with_["loss"], abs=2e-6) and without["lost"] != 0
    settings = {"rows": ROWS, "kinds": "skip", "sizes": "1"}
    base = run_probe("interventions", looped, made.corpus, 32, made.config, **settings)["base"]["tasks"]["retrieval"]
    assert [with_["loss"], with_["accuracy"]] == pytest.approx([base["loss"][0], base["accuracy"][0]], abs=1e-5)


def test_a_model_without_a_mechanism_is_skipped(made):
    assert without_each(model_of(4)) == {}
    assert "no loop" in probed(made, model_of(4))["skipped"]


def test_an_encoder_is_measured_on_masked_tokens(small, runs_dir):
    shape = {"family": "bert", "max_positions": 64, "init": {"std": 0.3}}
    config = small("saobp-high", shape=shape, data={"tokenizer": "byte+mask"})
    corpus = corpus_for(config.data, runs_dir / "data")
    model = make_model(structure_of(config)).eval()
    draw_weights(model, 0)
    found = run_probe("without", model, corpus, 32, config, rows=ROWS)
    tokens = spaced_windows(model, corpus, 32, ROWS).numpy()
    objective = make_objective(config, corpus)
    batch = objective.measured(Rows(tokens, torch.ones(tokens.shape).numpy()), range(ROWS))
    off = model.with_plan(attention_map=AttentionMap(((Belief("high", 0.0),) * 2,) * 3))
    with torch.no_grad():
        losses = [objective.metrics(one(**batch.inputs), batch)["loss"].mean() for one in (model, off)]
    assert [found["loss"], found["refinement"]["loss"]] == pytest.approx([float(one) for one in losses], abs=2e-6)
    assert losses[0] != losses[1]


def test_a_run_with_grown_loops_in_its_record_and_on_the_command_line(small, tmp_path, runs_dir, monkeypatch, capsys):
    from hybridlab.lab.cli.main import run

    settings = {"shape": {"layers": 5}, "evaluation": {"probes": ["without"], "task_window": None}}
    record = train(small("sgt", controller={**GROWTH_TIMES, "max_layers": 2}, **settings), tmp_path / "run", runs_dir)
    probe = record.results.probes["without"]
    assert probe["loops"].keys() == {"loss", "lost", "stderr", "tasks"} and probe["loops"]["lost"] != 0
    monkeypatch.chdir(tmp_path)

    def analyze(*arguments):
        words = ["hybridlab", "analyze", "./run", "--runs-dir", str(runs_dir), "--probe", "without", *arguments]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return out

    shown = analyze()
    assert all(len(line) <= 80 for line in shown.splitlines()) and "without its loops" in shown
    assert json.loads(analyze("--json")) == json.loads(json.dumps(probe))
