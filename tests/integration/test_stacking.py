"""Runs that grow in depth: their weights, optimizer, record, resumes, branches and starts from other models."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from hybridlab.cli import main
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import run_hash
from hybridlab.config.structures import forecast, structure_of
from hybridlab.errors import UserError
from hybridlab.methods.depth import copied_layers, grown, order_after
from hybridlab.methods.depth.options import growth_layer
from hybridlab.methods.depth.training import grown_tensors
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.models.export import load_checkpoint, read_model_config, save
from hybridlab.models.ledger.flops import ledger
from hybridlab.models.ledger.summary import training_flops, whole_run
from hybridlab.plan.lineage import grown_lineage, growth_steps
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure
from hybridlab.runs.budget import within_budget
from hybridlab.runs.compose import Request, compose, task_layer
from hybridlab.runs.evaluate import analyze_run
from hybridlab.runs.extension import extension
from hybridlab.runs.run import train_run
from hybridlab.training.optimizer import learning_rate_factor
from hybridlab.training.store import checkpoints
from hybridlab.training.store.folders import RunFolder, Runs
from tests.contract.test_parity import FIRST, folder_of, theirs
from tests.models import random_ids
from tests.training import assert_resumes_exactly, assert_same_run, assert_survives_kills, train, train_until, weights

SIX = {"layers": 6}
METHODS = ["midas", "lidas", "top", "random"]
SECOND = {"midas": ([0, 1], 2), "lidas": ([1, 2], 3), "top": ([2, 3], 4), "random": ([2, 3], 4)}
"""What the second growth step of six layers copies, and where; of the seed 0 random draws the last block."""
ENDS = [1, 4]
"""Twelve steps, ten of them shared among three stages: 1, 3 and 5, and what is left over and the cooldown."""


@pytest.fixture
def growing(small):
    """A function: method and changes → a run of six layers that grows by two."""

    def make(method="lidas", shape=SIX, **parts):
        return small(method, shape=shape, **parts)

    return make


# ---- functions of tensors ----

PLANS = {
    "plain": lambda plan: plan,
    "head loops": lambda plan: plan.loop_heads(1, (0, 3), 2).loop_heads(2, (1,), 1),
    "blocks twice": lambda plan: plan.loop_blocks([1, 3]),
    "a recurrence around the middle": lambda plan: plan.recur(0, 4, (4, 1), topology="mesh"),
    "a recurrence at the end": lambda plan: plan.recur(3, 1, (2, 1), topology="anchor"),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("method", ["midas", "lidas"])
def test_a_grown_model_is_the_old_one_that_runs_copied_layers_twice(growing, method, plan):
    """The copies are equal to their parents, so the old model with the new plan over its own layers gives the same."""
    first = structure_of(
        growing(method, {"layers": 8}, window=4, map={"kind": "rule", "granularity": "head", "rho": 0.5})
    )
    before = grown(first, method, 2)
    before = before.changed(PLANS[plan](before.plan))
    old = Decoder(before)
    draw_weights(old, 3)
    order, after = order_after(method, 4, 2), grown(before, method, 2)
    new = Decoder.from_tensors(after, grown_tensors(dict(old.named_parameters()), order))
    renamed = json.loads(json.dumps(after.plan.to_json()), object_hook=lambda d: _over_old_layers(d, order))
    same = old.with_plan(Plan.from_json({**renamed, "num_layers": 4}))
    with torch.no_grad():
        torch.testing.assert_close(new(random_ids(40)).logits, same(random_ids(40)).logits, atol=1e-6, rtol=1e-5)
        assert not torch.allclose(new(random_ids(40)).logits, old(random_ids(40)).logits, atol=1e-3)


def _over_old_layers(data, order):
    return {**data, "layer": order[data["layer"]]} if "layer" in data else data


def test_copies_have_storage_of_their_own():
    tensors = {f"blocks.{i}.x/exp_avg": torch.full((3,), float(i)) for i in range(4)} | {
        "embedding.weight": torch.ones(2)
    }
    made = grown_tensors(tensors, (0, 1, 2, 1, 2, 3))
    assert [float(made[f"blocks.{i}.x/exp_avg"][0]) for i in range(6)] == [0, 1, 2, 1, 2, 3]
    assert len({tensor.data_ptr() for tensor in made.values()}) == len(made) == 7
    assert made["embedding.weight"].data_ptr() == tensors["embedding.weight"].data_ptr()


# ---- a run ----


@pytest.mark.parametrize("method", METHODS)
def test_the_record_of_a_grown_run(growing, tmp_path, runs_dir, method):
    config = growing(method, observe={"each_step": ["lr", "layers"]})
    record = train(config, tmp_path / "a", runs_dir)
    structures = [structure_of(config)]
    for _ in ENDS:
        structures.append(grown(structures[-1], method, 2, config.controller.drawn))
    orders = [order_after(method, depth, 2, config.controller.drawn) for depth in (2, 4)]
    assert [structure for structure, _ in forecast(config)] == structures
    assert record.structure == json.loads(json.dumps(structures[-1].to_json()))
    assert list(growth_steps(Structure.from_json(record.structure).lineage)) == orders
    assert read_model_config(tmp_path / "a" / "final").structure == structures[-1]
    # What it cost, stage by stage, and what was said before.
    training, steps = config.training, [1, 3, 8]
    cost = [ledger(s, training.seq_len, "executed").training * training.rows for s in structures]
    assert record.flops == pytest.approx(sum(n * c for n, c in zip(steps, cost, strict=True)), rel=1e-12)
    assert training_flops(config, "executed") == pytest.approx(record.flops, rel=1e-12)
    assert [stage["steps"] for stage in whole_run(config)["stages"]] == steps
    assert record.controller["boundaries"] == ENDS
    assert record.controller["stages"] == [
        {"layers": layers, "first_step": first, "steps": count}
        for layers, first, count in zip((2, 4, 6), (1, 2, 5), steps, strict=True)
    ]
    events = [event for event in record.events if event["kind"] == "stacked"]
    assert [event["step"] for event in events] == ENDS and [event["stage"] for event in events] == [1, 2]
    first, second = events
    assert first.items() >= {"method": method, "block": 2, "layers_before": 2, "layers_after": 4}.items()
    assert (first["copied"], first["inserted_at"]) == ([0, 1], 2)
    assert (second["copied"], second["inserted_at"]) == SECOND[method]
    # One schedule for all stages.
    logged = record.hooks["each-step"]
    assert logged["layers"] == [2.0] + 3 * [4.0] + 8 * [6.0]
    wanted = [learning_rate_factor(training.schedule, step, 12) * training.optimizer.lr for step in range(12)]
    assert logged["lr"] == pytest.approx(wanted, rel=1e-4)
    assert load_checkpoint(tmp_path / "a").structure.lineage == structures[-1].lineage


def test_weights_and_moments_of_copies_equal_their_parents(growing, tmp_path, runs_dir, monkeypatch):
    """The checkpoint of the step of a growth, against that of the step before continued without growing."""
    config = growing(runtime={"checkpoint_every": 1, "keep_checkpoints": 20})
    train_until(config, tmp_path / "a", runs_dir, monkeypatch, 5)
    folder = tmp_path / "a" / "checkpoints"
    saved = checkpoints.load_step(folder, 4)
    order = order_after("lidas", 4, 2)
    copies = [(place, order.index(source)) for place, source in enumerate(order) if order.index(source) != place]
    assert len(copies) == 2
    parts = [name.removeprefix("blocks.0.") for name in saved.model if name.startswith("blocks.0.")]
    for copy, parent in copies:
        for part in parts:
            assert torch.equal(saved.model[f"blocks.{copy}.{part}"], saved.model[f"blocks.{parent}.{part}"])
            for key in ("exp_avg", "exp_avg_sq", "step"):
                one, two = (saved.optimizer[f"blocks.{layer}.{part}/{key}"] for layer in (copy, parent))
                assert torch.equal(one, two) and (key != "step" or float(one) in (3.0, 4.0))
    assert any(saved.optimizer[f"blocks.{copies[0][0]}.{part}/exp_avg"].abs().sum() > 0 for part in parts)
    assert float(saved.optimizer["embedding.weight/step"]) == 4.0
    # One step later the copies go their own ways.
    later = checkpoints.load_step(folder, 5)
    copy, parent = copies[0]
    assert not torch.equal(later.model[f"blocks.{copy}.mlp.up.weight"], later.model[f"blocks.{parent}.mlp.up.weight"])
    assert saved.state["structure"]["lineage"][copy]["stage"] == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "method, shape",
    [("midas", SIX), ("lidas", SIX | {"norm_scaling": "inverse-sqrt-depth"}), ("top", SIX), ("random", SIX)],
)
def test_a_stop_before_at_and_after_a_growth_step_changes_no_bit(
    growing, tmp_path, runs_dir, monkeypatch, method, shape
):
    every = {"checkpoint_every": 1}
    train(growing(method, shape, runtime=every), tmp_path / "whole", runs_dir)
    for cut in (1, 3, 4, 5):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "whole").symlink_to(tmp_path / "whole")
        assert_resumes_exactly(growing(method, shape, runtime=every), folder, runs_dir, monkeypatch, cut)
    # Also from an older checkpoint, so that the growth is done again.
    older = tmp_path / "older"
    older.mkdir()
    (older / "whole").symlink_to(tmp_path / "whole")
    assert_resumes_exactly(growing(method, shape, runtime={"checkpoint_every": 3}), older, runs_dir, monkeypatch, 5)


@pytest.mark.long
def test_a_grown_run_survives_real_kills(growing, tmp_path, runs_dir):
    config = growing("midas", training={"steps": 80}, runtime={"checkpoint_every": 2})
    assert_survives_kills(config, tmp_path, runs_dir, [12, 34])


def test_hooks_that_measure_see_every_depth(growing, tmp_path, runs_dir):
    config = growing(
        observe={"entropy_every": 1},
        evaluation={"every": 3, "keep_best": True, "at_steps": [0, 1, 4, 12], "probes": ["entropy"]},
    )
    record = train(config, tmp_path / "a", runs_dir)
    tables = record.hooks["entropy-log"]["entropies"]
    assert [sum(row[0] is not None for row in table) for table in tables] == [2] + 3 * [4] + 8 * [6]
    assert {len(table) for table in tables} == {6}
    assert record.hooks["validation-log"]["steps"] == [3, 6, 9, 12]
    # At the step of a growth: with the structure that the step was trained with.
    depths = {step: len(found.probes["entropy"]["heads"]) for step, found in record.results.at.items()}
    assert depths == {"0": 2, "1": 2, "4": 4, "12": 6}
    assert read_model_config(tmp_path / "a" / "best").structure.shape.layers in (4, 6)


def test_ln_scaling_follows_the_place_and_the_event_says_so(growing, tmp_path, runs_dir):
    config = growing("midas", SIX | {"norm_scaling": "inverse-sqrt-depth"})
    record = train(config, tmp_path / "a", runs_dir)
    assert record.events[0]["norm_scaling"] == "norms from layer 2 (L3) on have the factors of their new places"
    model = load_checkpoint(tmp_path / "a")
    for layer, block in enumerate(model.blocks):
        assert block.attention_norm.factor == block.mlp_norm.factor == 1 / math.sqrt(layer + 1)
    plain = train(growing("midas"), tmp_path / "b", runs_dir)
    assert "norm_scaling" not in plain.events[0]


# ---- settings ----


def test_a_budget_buys_steps_at_the_mean_cost_of_the_stages(growing):
    config = growing(training={"steps": 100})
    spent = training_flops(config, "executed")
    for share in (0.5, 3.0):
        bought = within_budget(growing(training={"steps": 100}, budget={"flops": spent * share}))
        assert training_flops(bought, "executed") == pytest.approx(spent * share, rel=0.03)
    with pytest.raises(UserError, match="steps of growth are too few for 3 stages"):
        within_budget(growing(training={"steps": 100}, budget={"flops": spent * 0.04}))


@pytest.mark.parametrize(
    "settings, message",
    [
        (["controller.block=4"], "the model ends with 6 layers, which is no multiple of the block of 4"),
        (["controller.start=3"], "start 3 is no multiple of block 2; use a block of 1 or 3"),
        (["controller.start=6"], "starts with 6 layers and ends with 6, so that nothing would grow"),
        (["controller.start=8"], "starts with 8 layers and ends with 6"),
        (["training.steps=5"], "4 steps of growth are too few for 3 stages"),
        (["controller.stage_steps=[2,10]"], "has 2 numbers, but from 2 to 6 layers by 2 there are 3 stages"),
        (["controller.stage_steps=[2,3,4]"], "stage_steps add up to 9, but the run has 12 steps"),
        (["controller.stage_steps=[2,4,6]", "controller.alpha=2"], "alpha has no effect with stage_steps"),
        (["controller.stage_steps=[2,4,6]", "budget.flops=1e12"], "a budget of FLOPs chooses the number of steps"),
        (["controller.alpha=1200.5"], "controller.alpha = 1200.5: must be less than or equal to 32"),
        (["controller.alpha=1e300"], "must be less than or equal to 32"),
        (["controller.alpha=.nan"], "controller.alpha = nan: must be a finite number"),
        (["controller.growth_fraction=.nan"], "controller.growth_fraction = nan: must be a finite number"),
        (["controller.method=adas"], "must be 'midas', 'lidas', 'top' or 'random'"),
        (["growth.interval=3"], "growth.interval has no effect here: controller stacking has no interval"),
        (["recurrence.chunks=[1,1]", "recurrence.allocation=base"], "recurrence divides all layers of the size"),
        (["plan=[{op: skip, layers: [0, 1]}]"], r"but the plan does not run layer 0 \(L1\); leave"),
        (["plan=[{op: skip, layers: [1]}]"], r"the plan does not run layer 1 \(L2\); leave out the edit that skips it"),
        (["plan=[{op: skip, layers: [0]}]", "controller.method=top"], r"the plan does not run layer 0 \(L1\)"),
        (["plan=[{op: recur, first: 1, size: 1, chunks: [1, 1]}]"], "some of them in one place and some in another"),
        (["plan=[{op: skip, layers: [4]}]"], "layer 4 does not exist; there are layers 0 to 1"),
    ],
)
def test_settings_that_cannot_grow_are_refused_before_anything_runs(growing, settings, message):
    with pytest.raises(UserError, match=message):
        growing(settings=settings)


# ---- other runs ----


def test_a_branch_after_a_growth_step_goes_on_with_the_grown_structure(growing, tmp_path, runs_dir):
    keep = {"checkpoint_every": 1, "keep_steps": [3, 6]}
    train(growing(runtime=keep), tmp_path / "a", runs_dir)
    runs = Runs(runs_dir)

    def branch(step, arch="lidas", **parts):
        return compose(Request(arch, start=f"{tmp_path / 'a'}@{step}", options=Layer(parts, {(): "test"})), runs)

    def go(config, name):
        return train_run(config, RunFolder(tmp_path / name), runs)

    same = go(branch(6), "same")
    assert all(torch.equal(weights(tmp_path / "same")[k], v) for k, v in weights(tmp_path / "a").items())
    assert same.structure["lineage"] and same.controller["boundaries"] == ENDS
    # Other data in the cooldown, before a last growth step: the depth goes on, and grows when it is due.
    other = go(branch(3, data={"mix": {"text": 0.5, "retrieval": 0.5}}), "other")
    assert other.controller["boundaries"] == ENDS and other.structure == same.structure
    assert [event["step"] for event in other.events] == ENDS
    # Without the controller the run goes on at the depth of its shape, and remembers where its layers come from.
    plain = go(branch(6, "vanilla"), "plain")
    assert plain.structure == same.structure and "stacking" not in plain.hooks
    for wrong, message in (
        (
            branch(6, "midas"),
            "has 6 layers, and this run would begin with 2, as its plan, map or controller is another",
        ),
        (branch(3, "vanilla"), "has 4 layers, and this run would begin with 6"),
        (branch(3, training={"steps": 60}), "the model has 4 layers after step 3, where the stages of this run have 2"),
    ):
        with pytest.raises(UserError, match=message):
            go(wrong, "wrong")


def test_a_grown_run_that_is_extended_stays_at_full_depth(growing, tmp_path, runs_dir):
    runs = Runs(runs_dir)
    train(growing(runtime={"keep_optimizer": True}), tmp_path / "a", runs_dir)
    longer = extension(str(tmp_path / "a"), 30, runs, Layer(), [])
    record = train_run(longer, RunFolder(tmp_path / "b"), runs)
    assert [event["step"] for event in record.events] == ENDS and record.steps == 42
    assert record.controller["stages"][-1] == {"layers": 6, "first_step": 5, "steps": 38}
    train(growing(controller={"stage_steps": [2, 4, 6]}, runtime={"keep_optimizer": True}), tmp_path / "c", runs_dir)
    with pytest.raises(UserError, match="stage_steps add up to 12, but the run has 15 steps"):
        extension(str(tmp_path / "c"), 3, runs, Layer(), [])


def test_a_finished_model_grows_with_its_plan_and_map(small, tmp_path, runs_dir):
    edits = [{"op": "loop_heads", "layer": 1, "heads": [0, 3]}, {"op": "loop_heads", "layer": 2, "heads": [1]}]
    parent = small(
        "rule-swa", shape={"layers": 4}, plan=edits, map={"rho": 0.75, "granularity": "head", "nearest": True}
    )
    train(parent, tmp_path / "a", runs_dir)
    first = read_model_config(tmp_path / "a" / "final").structure
    runs = Runs(runs_dir)
    layer = growth_layer("lidas", 2, "prop-0.5", None, 8, str(tmp_path / "a"), runs)
    config = compose(Request("lidas", start=str(tmp_path / "a"), options=layer, keep_map=True), runs)
    assert structure_of(config) == first and config.controller.alpha == 0.5
    record = train_run(config, RunFolder(tmp_path / "b"), runs)
    wanted = grown(grown(first, "lidas", 2), "lidas", 2)
    assert Structure.from_json(record.structure) == wanted
    assert wanted.plan.num_layers == 8 and record.parents == [
        json.loads((tmp_path / "a" / "run.json").read_text())["hash"]
    ]
    # The grown run is a start for others too, with all of its layers.
    child = compose(Request("vanilla", start=str(tmp_path / "b")), runs)
    assert child.shape.layers == 8 and structure_of(child).plan == wanted.plan


def origins_in(path):
    """Where the layers come from, by the record of a run and by its final model, which agree."""
    structure = read_model_config(path / "final").structure
    assert Structure.from_json(json.loads((path / "record.json").read_text())["structure"]) == structure
    return structure.lineage


@pytest.mark.long
def test_lineage_goes_on_with_the_weights_of_layers(growing, tmp_path, runs_dir):
    """From a grown run, its best weights and a saved model, over two runs, into a task and into a further growth."""
    runs = Runs(runs_dir)
    train(growing("midas", evaluation={"every": 6, "keep_best": True}), tmp_path / "a", runs_dir)
    whole = read_model_config(tmp_path / "a" / "final").structure.lineage
    assert [origin.stage for origin in whole] == [0, 0, 2, 2, 1, 1]

    def go_on(name, start, *settings, **asked):
        settings = ["training.steps=10", "runtime.checkpoint_every=4", *settings]
        config = compose(Request(start=str(tmp_path / start), settings=settings, **asked), runs)
        return config, train_run(config, RunFolder(tmp_path / name), runs)

    go_on("b", "a")
    go_on("best", "a/best", "map.granularity=head", "map.rho=0.5", "window=4", arch="rule-swa")
    go_on("c", "b")
    save(load_checkpoint(tmp_path / "c"), tmp_path / "saved", tmp_path / "c" / "final" / "tokenizer.json")
    text = runs_dir / "sentences.jsonl"
    text.write_text("".join(json.dumps({"sentence": f"word {i}", "label": i % 2}) + "\n" for i in range(40)))
    task = task_layer("sst2", data=text)
    go_on("task", "saved", "training.seq_len=32", "finetune.batch=4", options=task, keep_map=True, task="sst2")
    for name in ("b", "best", "c", "task"):
        assert origins_in(tmp_path / name) == whole, name
    assert analyze_run(str(tmp_path / "c"), runs, "blocks", None, {})["block"] == 2
    # A growth goes on with the stages, and tells copies from layers of the start.
    layer = growth_layer("lidas", 1, None, None, 8, str(tmp_path / "c"), runs)
    _, record = go_on("d", "c", arch="lidas", options=layer)
    lineage = whole
    for layers in (6, 7):
        lineage = grown_lineage(lineage, copied_layers("lidas", layers, 1))
    assert origins_in(tmp_path / "d") == lineage
    assert [event["stage"] for event in record.events] == [3, 4]


@pytest.mark.long
def test_lineage_of_a_start_is_there_after_a_stop(growing, tmp_path, runs_dir, monkeypatch):
    train(growing("midas"), runs_dir / "a", runs_dir)
    asked = Request(start=str(runs_dir / "a"), settings=["training.steps=6", "runtime.checkpoint_every=2"])
    config = compose(asked, Runs(runs_dir))
    train(config, tmp_path / "whole", runs_dir)
    for cut in (1, 3):  # before and after the first checkpoint
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "whole").symlink_to(tmp_path / "whole")
        assert_resumes_exactly(config, folder, runs_dir, monkeypatch, cut)


@pytest.mark.parametrize("family", ["neox", "gpt2"])
def test_an_imported_model_grows(family, tmp_path, runs_dir, text_file):
    name, *classes, shape = FIRST[family]
    folder = folder_of(theirs((name, *classes, {**shape, "vocab_size": 300}), tied=True), tmp_path / "model")
    runs = Runs(runs_dir)
    layer = growth_layer("midas", 1, None, None, 5, str(folder), runs)
    settings = ["training.steps=12", "training.seq_len=32", "training.tokens_per_step=64", "data.tokenizer=byte"]
    settings += [f"data.source=text:{text_file}", "evaluation.validation_windows=4", "training.precision=fp32"]
    asked = Request("midas", size=None, start=str(folder), options=layer, settings=settings, keep_map=True)
    config = compose(asked, runs)
    assert (structure_of(config).shape.layers, config.shape.layers) == (3, 5)
    record = train_run(config, RunFolder(tmp_path / "run"), runs)
    assert [event["layers_after"] for event in record.events] == [4, 5]
    assert record.structure["plan"]["parallel"] == (family == "neox")
    with pytest.raises(UserError, match=r"has 3 layers, and a growth begins with 2 here; `hybridlab grow --from"):
        shorter = ["controller.block=2", "shape.layers=4"]
        compose(Request("midas", start=str(folder), settings=[*settings, *shorter]), runs)


def test_structures_of_one_depth_are_told_apart_by_their_lineage(growing):
    first = structure_of(growing("midas"))
    one, two = (grown(grown(first, method, 2), method, 2) for method in ("midas", "lidas"))
    assert one != two and replace(one, lineage=None) == replace(two, lineage=None)


def test_runs_of_one_configuration_are_equal(growing, tmp_path, runs_dir):
    for name in ("a", "b"):
        train(growing(), tmp_path / name, runs_dir)
    assert_same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--method", "adas"], "--method adas: it must be midas, lidas, top or random"),
        (["--method", "midas", "--block", "3"], "the model ends with 8 layers, which is no multiple of the block"),
        (["--method", "midas", "--schedule", "prop"], "--schedule prop: write it as prop-ALPHA"),
        (
            ["--method", "midas", "--schedule", "prop-30000000"],
            "--schedule: controller.alpha = 30000000.0: must be less",
        ),
        (["--method", "midas", "--schedule", "prop-32"], "510 steps of growth are too few for 4 stages"),
        (["--method", "midas", "--steps", "8"], "7 steps of growth are too few for 4 stages"),
        (["--method", "midas", "--arch", "lidas"], "--arch lidas grows by lidas, not by --method midas"),
        (["--method", "midas", "--arch", "sgt"], "--arch sgt has a controller of its own (entropy-growth)"),
        (["--method", "midas", "--layers", "2"], "the model starts with 2 layers and ends with 2"),
    ],
)
def test_a_mistake_in_a_command_is_one_sentence_and_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hybridlab", "grow", *arguments, "--runs-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main.run()
    problem = capsys.readouterr().err
    assert ended.value.code == 2 and message in problem and problem.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_grow_is_pretrain_with_the_controller(tmp_path):
    """The same hash, whichever of the two commands asks."""
    runs = Runs(tmp_path)
    for method in METHODS:
        layer = growth_layer(method, 2, "prop-1", "floor", None, None, runs)
        asked = compose(Request(method, options=layer, keep_map=True), runs)
        assert run_hash(asked) == run_hash(compose(Request(method), runs))
