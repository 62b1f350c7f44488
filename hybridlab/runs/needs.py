"""What runs take on GPUs that are not here: how a batch is divided, memory by part, communication and hours.

hybridlab plan consa-table1 --scale paper --gpus 64 --gpu h100
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError, nearest
from hybridlab.models.executor import Recompute
from hybridlab.models.ledger.flops import Convention, convention_of
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.models.ledger.summary import training_flops
from hybridlab.plan.structure import Structure
from hybridlab.runs.budget import with_examples
from hybridlab.runs.hooks import hooks_in_passes
from hybridlab.training.machine import GPUS, Gpu
from hybridlab.training.memory import StepMemory, step_memory

PER_NODE = 8
"""GPUs of a node."""
USABLE = 0.9
"""Share of a GPU's memory that a step may fill: the rest is for an allocator's gaps and the libraries."""
_FP32 = 4
_GPU = torch.device("cuda")


def gpu_named(name: str) -> Gpu:
    """The GPU of this name, written `h100` or `rtx-4090`; UserError if it is not in the table."""
    by_name = {title.lower().replace(" ", "-"): gpu for title, gpu in GPUS.items()}
    if (key := name.lower().replace(" ", "-")) not in by_name:
        raise UserError(f"--gpu {name}: its data are not known; {nearest(key, list(by_name))}")
    return by_name[key]


@dataclass(frozen=True)
class Way:
    """How a step is divided. gpus: those that have a row of it; more would idle. rows, passes: rows that each computes
    at once, and how often in a step. sharding: as in `runtime`. recompute: `runtime.activation_checkpointing`."""

    gpus: int
    rows: int
    passes: int
    sharding: str
    recompute: Recompute


@dataclass(frozen=True)
class Needs:
    """What a run takes.

    memory: of one GPU; fits: whether it has that. at_most: the run takes its map from another run, and stands here with
    full attention. sent: bytes that each GPU sends in a step; seconds_sent: how long that takes; seconds_computed:
    the rest of the step's work. hours: of the whole run, by the longer of the two in each step, as blocks are sent
    while others are computed."""

    tokens: int
    flops: float
    at_most: bool
    way: Way
    memory: StepMemory
    fits: bool
    sent: float
    seconds_sent: float
    seconds_computed: float
    hours: float

    def to_json(self) -> dict[str, Any]:
        memory = {**vars(self.memory), "total": self.memory.total}
        return {**vars(self), "way": vars(self.way), "memory": memory, "gpu_hours": self.hours * self.way.gpus}


class Planner:
    """Plans runs on `number` equal GPUs. utilization: FLOPs of the ledger in a second, as a share of what the GPU can
    do at most; it is assumed, not measured."""

    def __init__(self, number: int, gpu: Gpu, utilization: float) -> None:
        self.number, self.gpu, self.utilization = number, gpu, utilization
        self._counted: dict[tuple[Any, ...], StepMemory] = {}

    def needs(self, config: RunConfig) -> Needs:
        """What a run takes, in bf16 unless its settings say otherwise.

        Of the ways to train it, the first is taken that fits into memory: a copy of the model on every GPU, the same
        with activations that are computed again, a model that all share (fsdp2), and both; with as many rows at once as
        fit. Settings of `runtime` that are not the default are kept.
        """
        filled = with_examples(config)
        structure, training = replace(final_structure(filled), lineage=None), filled.training
        for way in self._ways(filled):
            way, memory = self._divided(filled, structure, way)
            if fits := memory.total <= self._limit:
                break
        flops = training_flops(filled, of_a_gpu(filled))
        sent = _sent(structure, filled, way)
        seconds_sent = sent / (self.gpu.link if way.gpus <= PER_NODE else self.gpu.network)
        seconds_computed = flops / training.steps / (way.gpus * self.gpu.flops * self.utilization)
        return Needs(
            tokens=training.steps * training.tokens_per_step,
            flops=flops,
            at_most=filled.map != config.map,
            way=way,
            memory=memory,
            fits=fits,
            sent=sent,
            seconds_sent=seconds_sent,
            seconds_computed=seconds_computed,
            hours=max(seconds_sent, seconds_computed) * training.steps / 3600,
        )

    @property
    def _limit(self) -> float:
        return USABLE * self.gpu.gb * 1e9

    def _ways(self, config: RunConfig) -> Iterator[Way]:
        """The ways of dividing a step, fastest first, with the rows of a step still in one pass."""
        runtime, gpus = config.runtime, min(self.number, config.training.rows)
        for sharding in dict.fromkeys((runtime.sharding, "fsdp2") if gpus > 1 else ("ddp",)):
            for recompute in dict.fromkeys((runtime.activation_checkpointing or False, True)):
                yield Way(gpus, -(-config.training.rows // gpus), 1, sharding, recompute)

    def _divided(self, config: RunConfig, structure: Structure, way: Way) -> tuple[Way, StepMemory]:
        """A way with its passes: of as many rows as fit, a power of two or all; of one row if even that does not."""

        def at(rows: int) -> tuple[Way, StepMemory]:
            divided = replace(way, rows=rows, passes=-(-way.rows // rows))
            return divided, _shared(self._measured(config, structure, divided), structure, config, divided)

        if (micro_rows := config.runtime.micro_batch_rows) is not None:
            return at(min(micro_rows, way.rows))
        single = at(1)[1]
        per_row = single.activations + single.logits
        room = self._limit - single.total + per_row
        rows = way.rows if per_row * way.rows <= room else 1 << max(0, int(room // per_row).bit_length() - 1)
        while rows > 1 and at(rows)[1].total > self._limit:
            rows = 1 << ((rows - 1).bit_length() - 1)
        return at(rows)

    def _measured(self, config: RunConfig, structure: Structure, way: Way) -> StepMemory:
        """The memory of a step on one GPU that shares nothing; counted once for runs that differ in nothing of it."""
        training, hooks, passes = config.training, hooks_in_passes(config), min(way.passes, 2)
        precision = "bf16" if training.precision == "auto" else training.precision
        acting = (str(config.controller), str(config.hooks)) if hooks else ()
        computed = (config.objective, training.optimizer.kind, config.runtime.kernel, training.seq_len, precision)
        key = (structure, acting, computed, way.rows, passes, way.recompute)
        if key not in self._counted:
            memory = step_memory(config, structure, way.rows, passes, precision, way.recompute, hooks, gpu=True)
            self._counted[key] = memory
        return self._counted[key]


def _shared(memory: StepMemory, structure: Structure, config: RunConfig, way: Way) -> StepMemory:
    """The memory of a GPU that shares a model with others, from that of one that has a whole copy.

    What stands whole, see training/world.py: the weights outside of the blocks, the block that runs with the one after
    it, every block that runs again in the same pass, and gradients until the last pass of a step. In bf16 the backward
    pass gathers blocks again, instead of casts that the forward pass has kept.
    """
    if way.sharding == "ddp":
        return memory
    count, layers = count_parameters(structure.shape, structure.plan), structure.shape.layers
    each = _gathered(config) * count.block_matrices
    visits = Counter(visit.layer for _, visit in structure.plan.places())
    stay = sum(number > 1 for number in visits.values()) if config.runtime.reshard else layers
    unsharded = _FP32 * (count.total - count.block_matrices) + each / layers * min(layers, stay + 2)
    casts = 0 if way.recompute or each == _FP32 * count.block_matrices else each
    return replace(
        memory,
        weights=round(memory.weights / way.gpus + unsharded),
        gradients=memory.gradients if way.passes > 1 else round(memory.gradients / way.gpus),
        optimizer=round(memory.optimizer / way.gpus),
        activations=max(0, memory.activations - casts),
    )


def _gathered(config: RunConfig) -> int:
    """Bytes of an element of a block's matrices, as fsdp2 gathers it."""
    return 2 if config.training.precision in ("auto", "bf16") else _FP32


def _sent(structure: Structure, config: RunConfig, way: Way) -> float:
    """Bytes that each GPU sends in a step, by ring algorithms: the sum of all gradients (ddp); or each part of the sum,
    the weights for every forward pass, and the blocks for every backward pass if they are given back (fsdp2)."""
    count, part = count_parameters(structure.shape, structure.plan), (way.gpus - 1) / way.gpus
    sums = part * _FP32 * count.total
    if way.sharding == "ddp":
        return 2 * sums
    blocks = _gathered(config) * count.block_matrices * (2 if config.runtime.reshard else 1)
    return sums + part * way.passes * (_FP32 * (count.total - count.block_matrices) + blocks)


def of_a_gpu(config: RunConfig) -> Convention:
    """The convention of the ledger that counts what the kernels of a GPU compute."""
    return convention_of(config.runtime.kernel, _GPU, low_precision=True)
