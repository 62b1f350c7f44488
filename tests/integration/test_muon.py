"""Muon for the matrices of the blocks, AdamW for all else: a step, resuming, growth, branches, several ranks."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from hybridlab.config.resolve import run_hash
from hybridlab.config.training import Optimizer
from hybridlab.errors import UserError
from hybridlab.methods.depth.training import Stacking
from hybridlab.models.build import build_model
from hybridlab.models.decoder import divided_as
from hybridlab.runs.record import read_record
from hybridlab.training.optimizer import Optimizers, model_groups
from hybridlab.training.world import world
from tests.combinations import some
from tests.conftest import SMALL_SHAPE
from tests.processes import in_ranks
from tests.training import FIVE_LAYERS, GROWTH_TIMES, assert_resumes_exactly, train, weights

MUON = {"optimizer": {"kind": "muon"}}


@pytest.mark.parametrize("arch", ["vanilla", "mesh"])
def test_muon_trains_the_matrices_of_the_blocks_and_nothing_else(arch):
    model = build_model(arch, shape={**SMALL_SHAPE, "layers": 6, "tied_embeddings": False})
    settings = Optimizer(kind="muon", lr=0.01, muon_lr_factor=3.0, muon_momentum=0.9, weight_decay=0.3)
    groups = {group.name: group for group in model_groups(model, settings)}
    names = [name for group in groups.values() for name in group.tensors]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    blocks = groups["blocks"]
    assert set(blocks.tensors) == {n for n, p in model.named_parameters() if n.startswith("blocks.") and p.dim() == 2}
    assert (blocks.lr, blocks.momentum, blocks.weight_decay) == (0.03, 0.9, 0.3)
    assert set(groups["matrices"].tensors) == {"head.weight"} and groups["matrices"].weight_decay == 0.3
    assert {groups[name].lr for name in ("matrices", "rest")} == {0.01} and groups["rest"].momentum is None


def test_a_step_is_that_of_torchs_own_optimizers():
    model, other = (build_model("vanilla", shape=SMALL_SHAPE) for _ in range(2))
    settings = Optimizer(kind="muon", lr=0.01, muon_lr_factor=2.0, weight_decay=0.3)
    ours = Optimizers(model_groups(model, settings))
    named = dict(other.named_parameters())
    matrices = [p for name, p in named.items() if name.startswith("blocks.") and p.dim() == 2]
    theirs = [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")]
    rest = [p for p in named.values() if not any(p is matrix for matrix in matrices)]
    theirs.append(torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.95), weight_decay=0.0, fused=True))
    tokens = torch.arange(20)[None]
    for _ in range(3):
        for one in (model, other):
            one(tokens).logits.square().mean().backward()
        ours.step()
        ours.zero_grad()
        for optimizer in theirs:
            optimizer.step()
            optimizer.zero_grad()
    start = dict(build_model("vanilla", shape=SMALL_SHAPE).named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, named[name]) and not torch.equal(parameter, start[name]), name


def test_its_state_is_momentum_alone_and_as_large_a_step_as_adamws():
    """match_rms_adamw: the root mean square of a step is about 0.2 of the rate."""
    model = build_model("vanilla", shape=SMALL_SHAPE)
    groups = model_groups(model, Optimizer(kind="muon", lr=0.01, weight_decay=0.0))
    optimizer, before = Optimizers(groups), model.blocks[0].mlp.up.weight.detach().clone()
    model(torch.arange(20)[None]).logits.square().mean().backward()
    optimizer.step()
    state = optimizer.tensors()
    assert {name.rpartition("/")[2] for name in state if "mlp.up" in name} == {"momentum_buffer"}
    assert {name.rpartition("/")[2] for name in state if "norm" in name} == {"step", "exp_avg", "exp_avg_sq"}
    step = (model.blocks[0].mlp.up.weight.detach() - before).square().mean().sqrt()
    assert 0.1 < float(step) / (0.2 * 0.01) < 1.3


def test_it_is_another_run_and_adamw_by_name_is_the_same_one(small):
    plain, named, muon = small(), small(training={"optimizer": {"kind": "adamw"}}), small(training=MUON)
    assert run_hash(plain) == run_hash(named) != run_hash(muon)
    assert run_hash(muon) != run_hash(small(training={"optimizer": {"kind": "muon", "muon_lr_factor": 2.0}}))


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        ({"muon_momentum": 0.9}, "muon_momentum has no effect on AdamW; set kind: muon, or leave it out"),
        ({"kind": "adamw", "muon_lr_factor": 2.0}, "muon_lr_factor has no effect on AdamW"),
        ({"kind": "moun"}, "kind"),
        ({"kind": "muon", "muon_lr_factor": 0}, "muon_lr_factor"),
    ],
)
def test_wrong_settings_are_refused(small, optimizer, says):
    with pytest.raises(UserError, match=says):
        small(training={"optimizer": optimizer})


def test_a_run_learns_with_it_and_resumes_exactly(small, tmp_path, runs_dir, monkeypatch):
    config = small(training={"steps": 20, "optimizer": {"kind": "muon", "lr": 0.01}})
    record = train(config, tmp_path / "whole", runs_dir)
    assert record.history["loss"][-1] < record.history["loss"][0] - 0.5
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 10)


@pytest.mark.parametrize("method", some(["lidas", "sgt"], "lidas"))
def test_what_grows_keeps_its_momentum_and_resumes_exactly(small, tmp_path, runs_dir, monkeypatch, method):
    parts = {"lidas": {"shape": {"layers": 6}, "controller": {"block": 2}}}
    parts["sgt"] = {**FIVE_LAYERS, "controller": {**GROWTH_TIMES, "max_passes": 2, "max_layers": 2}}
    config, seen = small(method, training=MUON, **parts[method]), []
    grow = Stacking._grow

    def state(run):
        return {name: tensor.clone() for name, tensor in run.optimizer.tensors().items()}

    def watched(hook, run):
        before = state(run)
        grow(hook, run)
        seen.append((before, state(run), run.events[-1]))

    monkeypatch.setattr(Stacking, "_grow", watched)
    train(config, tmp_path / "whole", runs_dir)
    grown = seen[:]
    for before, after, event in grown:
        layers, copied, inserted = event["layers_before"], event["copied"], event["inserted_at"]
        order = [*range(inserted), *copied, *range(inserted, layers)]
        for place, source in enumerate(order):
            name = "attention.q.weight/momentum_buffer"
            assert torch.equal(after[f"blocks.{place}.{name}"], before[f"blocks.{source}.{name}"])
            assert before[f"blocks.{source}.{name}"].any()
    assert len(grown) == (2 if method == "lidas" else 0)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 10)


def test_a_branch_with_another_optimizer_is_refused(small, tmp_path, runs_dir):
    # With a seed of its own, so that no other test has trained this run without its checkpoint.
    config = small(runtime={"keep_steps": [6]}, training={"seed": 7})
    parent = train(config, runs_dir / run_hash(config), runs_dir)
    init = {"run": parent.hash, "load": "all", "step": 6}
    with pytest.raises(UserError, match="trained with adamw, whose state muon cannot go on with; .* without --extend"):
        train(small(training={**MUON, "seed": 7}, init=init), tmp_path / "branch", runs_dir)
    assert not (tmp_path / "branch").exists()


def steps_of(model, optimizer, gradients):
    """The weights and the optimizer's state, whole, after a step with each of these gradients."""
    for step in gradients:
        for name, parameter in model.named_parameters():
            parameter.grad = divided_as(parameter, step[name])
        optimizer.step()
    return world().gather(dict(model.named_parameters()) | optimizer.tensors())


def with_the_same_gradients(rank, folder):
    """Each of three ranks: three steps, and one after the state was saved and loaded. There are shapes of two matrices,
    and rows that three does not divide."""
    torch.set_num_threads(1)
    shape = {**SMALL_SHAPE, "layers": 2}
    model, settings = build_model("vanilla", shape=shape), Optimizer(kind="muon", lr=0.01, weight_decay=0.3)
    trained = {name for group in model_groups(model, settings) if group.momentum for name in group.tensors}
    drawn, start = torch.Generator().manual_seed(1), {n: t.detach().clone() for n, t in model.named_parameters()}
    gradients = [{n: torch.randn(t.shape, generator=drawn) for n, t in start.items()} for _ in range(4)]
    alone = steps_of(model, Optimizers(model_groups(model, settings)), gradients)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=3)
    try:
        for sharding in ("ddp", "fsdp2"):
            divided = build_model("vanilla", shape=shape)
            world().shard(divided, torch.device("cpu"), SimpleNamespace(sharding=sharding, reshard=True), "fp32")
            divided.put(start)
            optimizer = Optimizers(model_groups(divided, settings))
            saved = steps_of(divided, optimizer, gradients[:3])
            again = Optimizers(model_groups(divided, settings))
            again.load({name: tensor for name, tensor in saved.items() if "/" in name})
            found = steps_of(divided, again, gradients[3:])
            assert found.keys() == alone.keys()
            for name, tensor in alone.items():
                if name.removesuffix("/momentum_buffer") in trained:
                    assert torch.equal(found[name], tensor), (sharding, name)
    finally:
        dist.destroy_process_group()


def test_ranks_compute_the_bits_of_muon_in_one_process(tmp_path):
    in_ranks(with_the_same_gradients, tmp_path, ranks=3)


def together(rank, config, runs_dir, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        for sharding in ("ddp", "fsdp2"):
            runtime = config.runtime.model_copy(update={"sharding": sharding})
            train(config.model_copy(update={"runtime": runtime}), folder / sharding, runs_dir)
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_two_ranks_train_the_run_of_one_process(small, tmp_path, runs_dir):
    """With whole copies of the weights, and with parts of the blocks."""
    config = small(shape={"layers": 2}, training={"steps": 6, "precision": "fp64", **MUON})
    alone = train(config, tmp_path / "alone", runs_dir)
    in_ranks(together, config, runs_dir, tmp_path)
    for sharding in ("ddp", "fsdp2"):
        record = read_record(tmp_path / sharding / "record.json")
        assert record.history["loss"] == pytest.approx(alone.history["loss"], abs=1e-9)
        for name, tensor in weights(tmp_path / sharding).items():
            torch.testing.assert_close(tensor, weights(tmp_path / "alone")[name], rtol=0, atol=1e-9, msg=name)
