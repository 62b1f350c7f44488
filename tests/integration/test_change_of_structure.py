"""One path, `Run.rebuild`, for the start, for resuming, and for every change of structure: more layers too."""

import ast
import inspect
from dataclasses import replace

import pytest
import torch

from hybridlab.config.structures import structure_of
from hybridlab.errors import Interrupted, UserError
from hybridlab.models.export import read_model_config
from hybridlab.models.ledger.flops import ledger
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure
from hybridlab.runs import link as link_module
from hybridlab.runs.run import train_run
from hybridlab.training import engine
from hybridlab.training.engine import Hook, Run
from hybridlab.training.store import checkpoints
from hybridlab.training.store.folders import RunFolder, Runs
from tests.training import assert_resumes_exactly, train, train_until


def stacked(structure, copies):
    """A structure that has copies of some layers at its end, and where each layer of it comes from."""
    parents = [*range(structure.shape.layers), *copies]
    shape = replace(structure.shape, layers=len(parents))
    attention_map = AttentionMap(tuple(structure.map.layers[layer] for layer in parents))
    return Structure(shape, Plan.plain(len(parents), structure.plan.parallel), attention_map), parents


def copied(tensors, parents):
    """Named tensors of the blocks under the names of their copies, each with storage of its own."""
    old = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    blocks = {name: tensor for name, tensor in old.items() if name.startswith("blocks.")}
    grown = {name: tensor for name, tensor in old.items() if name not in blocks}
    for layer, parent in enumerate(parents):
        prefix = f"blocks.{parent}."
        for name, tensor in blocks.items():
            if name.startswith(prefix):
                grown[f"blocks.{layer}.{name.removeprefix(prefix)}"] = tensor.clone()
    return grown


class Stacks(Hook):
    """Copies the last two layers of the run once, after a step."""

    name = "stacks"

    def __init__(self, after=5):
        self.after, self.seen = after, {}

    def after_step(self, run, step):
        if step + 1 == self.after:
            before = run.model.structure
            structure, parents = stacked(before, (before.shape.layers - 2, before.shape.layers - 1))
            state = run.optimizer.tensors()
            run.change_structure(
                "stacked", structure, copied(run.tensors(), parents), copied(state, parents), parents=parents
            )
            self.seen = {"groups": run.groups, "optimizer": run.optimizer, "old": state, "parents": parents}
        return {"layers": run.model.shape.layers}


@pytest.fixture
def stacking(monkeypatch):
    """Every run gains two copied layers; the hooks of the runs so far, the latest one last."""
    made = []

    def hooks(config, given=()):
        made.append(Stacks())
        return [made[-1]]

    monkeypatch.setattr(link_module, "make_hooks", hooks)
    return made


def test_copied_layers_take_groups_moments_and_step_along(small, tmp_path, runs_dir, stacking, monkeypatch):
    config = small("rule-swa", runtime={"checkpoint_every": 5})
    train_until(config, tmp_path / "a", runs_dir, monkeypatch, 5)
    # The checkpoint of the step of the change.
    saved = checkpoints.load_newest(tmp_path / "a" / "checkpoints")
    seen = stacking[-1].seen
    new = seen["optimizer"].tensors()
    for layer, parent in enumerate(seen["parents"]):
        names = [name for name in seen["old"] if name.startswith(f"blocks.{parent}.")]
        assert names and all(f"blocks.{layer}.{name.split('.', 2)[2]}" in new for name in names)
    by_name = {name: group.name for group in seen["groups"] for name in group.tensors}
    for name in by_name:
        if name.startswith("blocks.4."):
            assert by_name[name] == by_name[name.replace("blocks.4.", "blocks.2.")]
    assert {group.name: len(group.tensors) for group in seen["groups"]}["matrices"] == 5 * 7
    # State of the copies equals that of their parents, bit for bit.
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        for name in ("attention.q.weight", "mlp.down.weight", "attention_norm.weight"):
            for copy, parent in ((3, 1), (4, 2)):
                one, two = (saved.optimizer[f"blocks.{layer}.{name}/{kind}"] for layer in (copy, parent))
                assert torch.equal(one, two) and (kind != "step" or float(one) == 5)
    storages = {tensor.data_ptr() for group in seen["groups"] for tensor in group.tensors.values()}
    assert len(storages) == sum(len(group.tensors) for group in seen["groups"])
    record = train(config, tmp_path / "a", runs_dir)
    assert record.parameters["total"] > 0 and record.steps == 12
    assert record.structure["shape"]["layers"] == 5 and len(record.structure["map"]) == 5
    assert read_model_config(tmp_path / "a" / "final").structure == Structure.from_json(record.structure)
    assert record.events[0]["kind"] == "stacked" and record.events[0]["plan_after"] == "L1 → L2 → L3 → L4 → L5"
    assert set(record.history["layers"]) == {3.0, 5.0}


@pytest.mark.parametrize("cut", [2, 4, 5, 6, 9])
def test_a_run_that_gained_layers_resumes_to_the_same_bits(small, tmp_path, runs_dir, stacking, monkeypatch, cut):
    config = small(runtime={"checkpoint_every": 1})
    train(config, tmp_path / "whole", runs_dir)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, cut)


def test_the_loss_goes_on_falling_after_the_change(small, tmp_path, runs_dir, stacking):
    record = train(small(training={"steps": 40}), tmp_path / "a", runs_dir)
    losses = record.history["loss"]
    assert losses[-1] < losses[4] < losses[0]


def test_flops_are_those_of_the_structures_that_ran(small, tmp_path, runs_dir, stacking):
    config = small()
    record = train(config, tmp_path / "a", runs_dir)
    first = structure_of(config)
    last, _ = stacked(first, (1, 2))
    training = config.training
    cost = [ledger(s, training.seq_len, "executed").training * training.rows for s in (first, last)]
    assert record.flops == pytest.approx(5 * cost[0] + 7 * cost[1], rel=1e-12)


def test_tensors_that_do_not_fit_a_structure_are_refused_by_name(small, tmp_path, runs_dir, monkeypatch):
    class Lacks(Hook):
        name = "lacks"

        def after_step(self, run, step):
            structure, _ = stacked(run.model.structure, (1,))
            run.change_structure("stacked", structure)
            return {}

    monkeypatch.setattr(link_module, "make_hooks", lambda config, given: [Lacks()])
    with pytest.raises(UserError, match=r"blocks\.3\..* is missing there"):
        train(small(), tmp_path / "a", runs_dir)


def test_a_plan_change_keeps_weights_and_moments(small, tmp_path, runs_dir, monkeypatch):
    """An edit that changes nothing in the end gives the bits of a run without it."""

    class ThereAndBack(Hook):
        name = "there-and-back"

        def after_step(self, run, step):
            if step == 3:
                here = run.model.structure
                run.change_structure("there", replace(here, plan=here.plan.loop_blocks([1])))
                run.change_structure("back", here)
            return {}

    config = small()
    train(config, tmp_path / "plain", runs_dir)
    monkeypatch.setattr(link_module, "make_hooks", lambda config, given: [ThereAndBack()])
    train(config, tmp_path / "edited", runs_dir)
    one, two = ((tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("plain", "edited"))
    assert one == two


def test_model_and_optimizer_are_made_at_the_start_and_in_rebuild_only():
    tree = ast.parse(inspect.getsource(engine))
    callers: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
                callers.setdefault(ast.unparse(call.func), set()).add(node.name)
    assert callers["Transformer.without_weights"] == {"_new_model"}
    assert callers["self._new_model"] == callers["self._place"] == callers["self._optimize"]
    assert callers["self._optimize"] == {"__init__", "rebuild"}
    assert callers["Optimizers"] == callers["model_groups"] == {"_optimize"}
    assert not callers.keys() & {"make_model", "Transformer.from_tensors", "Transformer"}


def test_checkpoints_of_another_version_are_refused(small, tmp_path, runs_dir, monkeypatch):
    config = small(runtime={"checkpoint_every": 2})
    monkeypatch.setattr(engine, "STATE_FORMAT", 1)
    monkeypatch.setattr(Run, "save", _save_once(Run.save))
    with pytest.raises(Interrupted):
        train(config, tmp_path / "a", runs_dir)
    monkeypatch.undo()
    with pytest.raises(UserError, match="another version of hybridlab"):
        train_run(config, RunFolder(tmp_path / "a"), Runs(runs_dir))


def _save_once(save):
    def saving(run):
        save(run)
        raise KeyboardInterrupt

    return saving
