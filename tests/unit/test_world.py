"""Processes that train together: what they add up, agree on and gather, and that each reads its part of the rows."""

import json
import subprocess
import sys
from dataclasses import fields, make_dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.launcher import api
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.multiprocessing import spawn

from hybridlab.data.batches import Batches
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import NoRoom, RankLost
from hybridlab.models.build import build_model
from hybridlab.training import ranks
from hybridlab.training import world as world_module
from hybridlab.training.machine import autocast
from hybridlab.training.objective import MaskedTokens, NextToken
from hybridlab.training.world import World, all_answer, world
from tests.conftest import ROOT, SMALL_SHAPE, write_text
from tests.unit.test_data import data_of, training_of
from tests.unit.test_masked_tokens import TOKENIZER
from tests.unit.test_mixture import two


def joined(rank, folder):
    """Both processes check all that they have in common; see the functions below."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        for check in (common, turns, shared, in_bf16):
            check(world())
    finally:
        dist.destroy_process_group()


# ---- what the processes have in common ----


def test_one_process_is_its_own_world():
    one, tensor = world(), torch.arange(3.0)
    assert one == World(0, 1) and one.writer and range(5)[one.part] == range(5)
    assert one.sum(tensor) is tensor and one.gather({"a": tensor})["a"] is tensor
    assert one.agree(True) is True and one.agree(0) == 0
    assert one.once(divmod, 7, 2) == (3, 1) and one.map(str, iter([1, 2])) == ["1", "2"]
    model = build_model("vanilla", shape=SMALL_SHAPE)
    assert one.whole(model) is model


def common(own):
    assert (own.size, own.writer) == (2, own.rank == 0)
    assert range(5)[own.part] == (range(0, 5, 2), range(1, 5, 2))[own.rank]
    tensor = torch.tensor([1.0, 10.0]) * (own.rank + 1)
    assert own.sum(tensor).tolist() == [3.0, 30.0] and tensor.tolist() == [own.rank + 1, 10 * (own.rank + 1)]
    assert own.agree(own.rank == 1) and own.agree(own.rank == 0) and not own.agree(False)
    assert own.agree(15 * own.rank) == 15
    called = []
    assert own.once(lambda: called.append(own.rank) or "done") == "done"
    assert called == ([0] if own.writer else [])
    with pytest.raises(NoRoom, match="no room") as full:
        own.once(fails)
    assert full.value.reason == "full"


def fails():
    assert world().writer
    raise NoRoom("no room", "full")


def turns(own):
    for count in range(6):
        called = []
        assert own.map(lambda item: called.append(item) or 2 * item, iter(range(count))) == [*range(0, 2 * count, 2)]  # noqa: B023
        # As many calls in each process, for forward passes that need both.
        assert len(called) == (count + 1) // 2


def shared(own):
    whole = torch.arange(12.0).view(4, 3)
    mesh = init_device_mesh("cpu", (2,))
    parts = {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "copied": distribute_tensor(whole, mesh, [Replicate()]),
    }
    assert parts["sharded"].to_local().shape == (2, 3)
    found = own.gather({**parts, "plain": whole})
    assert list(found) == ["sharded", "copied", "plain"] and found["plain"] is whole
    assert all(torch.equal(t, whole) and not isinstance(t, DTensor) for t in found.values())
    model = build_model("vanilla", shape=SMALL_SHAPE)
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    for module in model.modules():
        for name, tensor in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(distribute_tensor(tensor.detach(), mesh, [Shard(0)])))
    again = dict(own.whole(model).named_parameters())
    assert all(torch.equal(again[name], weights[name]) for name in weights) and again.keys() == weights.keys()


def in_bf16(own):
    """The logits and gradients of parts in bf16 are those of one process; so are passes in fp32 after it."""
    tokens, cpu = torch.arange(64).view(2, 32), torch.device("cpu")
    settings = SimpleNamespace(sharding="fsdp2", reshard=True)
    for arch in ("vanilla", "attention-loop"):
        model = build_model(arch, shape={**SMALL_SHAPE, "layers": 6})
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():  # norms begin with ones, which bf16 has
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        shared = build_model(arch, shape={**SMALL_SHAPE, "layers": 6})
        own.shard(shared, cpu, settings, "bf16")
        shared.put(dict(model.named_parameters()))
        for last in (False, True):
            own.sum_gradients_in(shared, last)
            with autocast(cpu, "bf16"):
                logits = [each(tokens).logits for each in (model, shared)]
            assert torch.equal(*logits)
            for each in logits:
                each.float().log_softmax(-1)[..., 3].mean().backward()
        for name, parameter in shared.named_parameters():
            alone = model.get_parameter(name)
            assert parameter.dtype == parameter.grad.dtype == torch.float32
            torch.testing.assert_close(parameter.grad.full_tensor(), 2 * alone.grad, rtol=1e-5, atol=1e-9, msg=name)
        with torch.no_grad():
            assert torch.equal(own.in_fp32(shared, cpu, settings)(tokens).logits, model(tokens).logits)


def test_two_processes_add_up_agree_take_turns_and_gather(tmp_path):
    spawn(joined, (tmp_path,), nprocs=2)


# ---- each process reads its part of the rows ----


def batches_of(folder, mixture, mix=None, rows=11):
    data = (
        two(folder, mix=mix or {})
        if mixture
        else data_of(source=f"text:{write_text(folder / 'a.txt')}", tokenizer="byte", mix=mix or {})
    )
    corpus = corpus_for(data, folder / "cache")
    return Batches(corpus, data, training_of(rows, 32), 400)


def put_together(parts, count):
    """Arrays of the parts of a step, in the order of the rows."""
    whole = np.empty((count, *parts[0].shape[1:]), dtype=parts[0].dtype)
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole


MIX = {"text": 0.5, "retrieval": 0.3, "assignment": 0.2}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("mix", [{}, MIX])
def test_the_parts_of_a_step_are_its_rows(tmp_path, size, mixture, mix):
    batches = batches_of(tmp_path, mixture, mix)
    for step in (0, 3):
        whole, parts = batches.rows(step), [batches.rows(step, World(rank, size).part) for rank in range(size)]
        assert {len(part.tokens) for part in parts} <= {11 // size, 11 // size + 1}
        for name in ("tokens", "weights", "tasks", "numbers"):
            assert np.array_equal(put_together([getattr(part, name) for part in parts], 11), getattr(whole, name)), name


@pytest.mark.parametrize("size", [2, 3])
def test_the_draws_of_masked_tokens_do_not_depend_on_the_number_of_processes(tmp_path, size):
    batches, objective = batches_of(tmp_path, False, MIX), MaskedTokens(TOKENIZER)

    def tensors(part):
        batch = objective.batch(batches.rows(2, part), 7, 2)
        return batch.inputs["input_ids"].numpy(), batch.targets.numpy(), batch.weights.numpy()

    parts = [tensors(World(rank, size).part) for rank in range(size)]
    for whole, divided in zip(tensors(slice(None)), zip(*parts, strict=True), strict=True):
        assert np.array_equal(put_together(divided, 11), whole)


def test_the_gradients_of_all_parts_add_up_to_those_of_the_batch(tmp_path):
    batches, objective = batches_of(tmp_path, False, MIX), NextToken()
    model = build_model("vanilla", shape=SMALL_SHAPE)

    def gradients(parts):
        model.zero_grad()
        total = objective.batch(batches.rows(1), 0, 1).weights.sum()
        for part in parts:
            batch = objective.batch(batches.rows(1, part), 0, 1)
            (objective.loss(model(**batch.inputs), batch) / total).backward()
        return {name: tensor.grad.clone() for name, tensor in model.named_parameters()}

    whole, divided = gradients([slice(None)]), gradients([World(rank, 3).part for rank in range(3)])
    for name, gradient in whole.items():
        torch.testing.assert_close(divided[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "text, why",
    [
        ("gloo: Timed out waiting 8000ms", "did not answer in time"),
        ("NCCL communicator was aborted on rank 0. Original reason for failure was: NCCL error", "has ended"),
        ("NCCL communicator was aborted: Watchdog caught collective operation timeout", "did not answer in time"),
    ],
)
def test_a_rank_that_is_lost_is_named_in_a_sentence(monkeypatch, text, why):
    monkeypatch.setattr(world_module, "world", lambda: World(0, 2))
    lost = pytest.raises(RankLost, match=f"^run, step 3: another rank .*{why}, as rank 0 found in ")
    with lost, all_answer(lambda: "run, step 3"):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="another mistake"), all_answer(lambda: "run"):
        raise RuntimeError("another mistake")


def test_ranks_start_with_a_torch_that_is_not_told_how_long_they_may_take_to_stop(tmp_path, monkeypatch):
    """torch 2.11 has no `shutdown_timeout`."""
    older = [each.name for each in fields(api.LaunchConfig) if each.init and each.name != "shutdown_timeout"]
    started = []
    monkeypatch.setattr(api, "LaunchConfig", make_dataclass("Older", [(name, Any, None) for name in older]))
    monkeypatch.setattr(api, "elastic_launch", lambda config, _: lambda *command: started.append((config, command)))
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert ranks.start(ranks.Ranks(1), tmp_path, ["hybridlab", "--help"]) == 0
    ((config, command),) = started
    assert config.nproc_per_node == 1 and command == ("-m", "hybridlab", "--help")


@pytest.mark.parametrize("gpu", [False, True])
def test_ranks_on_gpus_connect_at_the_start(gpu, monkeypatch):
    """Each with its own device, and with collectives for tensors on the CPU too."""
    called = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: called.update(set=device))
    monkeypatch.setattr(dist, "init_process_group", lambda **settings: called.update(settings))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(ranks, "started", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with ranks.joined(7):
        pass
    device = torch.device("cuda", 3)
    own = {"set": device, "device_id": device, "backend": "cpu:gloo,cuda:nccl"} if gpu else {}
    assert called == own | {"timeout": timedelta(seconds=7)}


# ---- collectives of a step, counted on a process group of eight that sends nothing ----

COLLECTIVES = """
from collections import defaultdict
from types import SimpleNamespace
import json, sys, torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from hybridlab.config.resolve import resolve
from hybridlab.config.structures import final_structure
from hybridlab.config.training import Optimizer
from hybridlab.models.decoder import make_model
from hybridlab.training.machine import autocast
from hybridlab.training.optimizer import Optimizers, model_groups
from hybridlab.training.world import world

class Sent(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.elements, self.types = defaultdict(list), defaultdict(list)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its parts are seen instead
        if "c10d" in function.name().partition("::")[0]:
            sent = max(filter(torch.is_tensor, tree_leaves(args)), key=torch.Tensor.numel)
            self.elements[function.name()].append(sent.numel())
            self.types[function.name()].append(str(sent.dtype))
        return function(*args, **(kwargs or {}))

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
cpu = torch.device("cpu")
small = [f"shape.{name}" for name in ("width=64", "ffn_width=96", "heads=4", "kv_heads=2", "head_width=16")]
found = {}
for arch in sys.argv[1:]:
    structure = final_structure(resolve(arch, "tiny", settings=small))
    parts = defaultdict(set)
    for _, visit in structure.plan.places():
        parts[visit.layer].add(visit.part)
    for sharding in ("ddp", "fsdp2"):
        model = make_model(structure)
        elements = sum(parameter.numel() for parameter in model.parameters())
        world().shard(model, cpu, SimpleNamespace(sharding=sharding, reshard=True), "bf16")
        groups = model_groups(model, Optimizer(kind="muon"))
        optimizer, gates = Optimizers(groups), dict.fromkeys(range(structure.shape.layers), torch.full((2,), 0.5))
        with Sent() as step, autocast(cpu, "bf16"):
            logits = model(torch.arange(32)[None], gates=gates).logits
        with step:
            logits.sum().backward()
        with Sent() as update:
            optimizer.step()
        of_muon = {tensor.shape for group in groups if group.momentum for tensor in group.tensors.values()}
        found[f"{arch} {sharding}"] = {
            "blocks": len(model.blocks),
            "in parts": sum(len(each) > 1 for each in parts.values()),
            "shapes": len(of_muon),
            "elements": elements,
            "step": step.elements,
            "types": step.types,
            "update": update.elements,
        }
print(json.dumps(found))
"""
METHODS = ["vanilla", "rule-swa", "consa", "sgt", "block-loop", "attention-loop", "spiral-b", "mesh", "lidas"]


def test_a_step_sends_each_gradient_once_and_no_weights_where_all_ranks_have_them():
    """In sums of a whole block, and of what is around them; where attention runs again without the MLP, the gradients
    of the two branches are summed apart. Muon sends the rows of all matrices of one shape at once."""
    done = subprocess.run([sys.executable, "-c", COLLECTIVES, *METHODS], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        summed = "c10d::allreduce_" if "ddp" in name else "c10d::_reduce_scatter_base_"
        sums, gathered = found["step"].pop(summed), found["step"].pop("c10d::_allgather_base_", [])
        assert set(found["types"].pop(summed)) == {"torch.float32"}
        assert not found["step"] and len(sums) == found["blocks"] + 1 + found["in parts"], name
        # Filled up where a tensor's rows cannot be divided by eight.
        assert found["elements"] <= sum(sums) < 1.1 * found["elements"], name
        if "ddp" in name:
            assert not gathered and not found["update"], name
        else:
            assert len(gathered) >= 2 * found["blocks"] + 1, name
            types = found["types"]["c10d::_allgather_base_"]
            assert types == ["torch.float32"] + ["torch.bfloat16"] * (len(gathered) - 1), name
            sent = found["update"].pop("c10d::alltoall_base_")
            assert not found["update"] and len(sent) == 2 * found["shapes"], name
