"""The peak memory of a training step, counted without computing it: the step runs on tensors that have sizes and no
numbers, and every storage is counted from its first use to its last.

A model of any size is counted in seconds on a laptop. Counted is what the step's tensors occupy, as a CPU would choose
the kernels, but for RMSNorm, which a GPU computes in one kernel; an allocator's gaps and what a GPU's libraries hold
come on top: runs in bf16 on an H200 took 1.01 to 1.05 times as much (a test compares them). Compiled steps need less.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hybridlab.attention.kernels import at_least_fp32
from hybridlab.config.schema import RunConfig
from hybridlab.models.decoder import Output, Transformer, make_model
from hybridlab.models.executor import Recompute
from hybridlab.models.loss import ALIGNED, LARGE_VOCABULARY, LOGITS_AT_ONCE, Targets
from hybridlab.plan.structure import Structure
from hybridlab.training.checked import checked, inputs_of
from hybridlab.training.engine import Hook
from hybridlab.training.machine import autocast, dtype_of
from hybridlab.training.objective import PREDICTED
from hybridlab.training.optimizer import Optimizers, model_groups

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one device at the moment when a step needs most. activations: what the forward pass keeps, and what the
    backward pass makes of it. logits: those of the output head with their loss and gradients."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())


def step_memory(
    config: RunConfig,
    structure: Structure,
    rows: int,
    passes: int = 1,
    precision: str = "fp32",
    recompute: Recompute = False,
    hooks: Sequence[Hook] = (),
    gpu: bool = False,
) -> StepMemory:
    """The memory of a step of one process, of `passes` passes over `rows` rows each. hooks: those whose part in the
    passes is counted. structure: of the model in this step; precision, recompute: as in the settings of a run. gpu:
    with norms as a GPU computes them."""
    with _without_numbers(dtype_of(precision)), ExitStack() as stack:
        if gpu:
            # RMSNorm keeps what one kernel keeps (a CPU also the normed input in fp32), the loss has a GPU's chunks.
            stack.enter_context(patch.object(torch, "rms_norm", _OneKernel.apply))
            for by_device in (LOGITS_AT_ONCE, ALIGNED):
                stack.enter_context(patch.dict(by_device, cpu=by_device["cuda"]))
        model = make_model(structure, config.runtime.kernel)
        model.recompute = recompute
        meter = _Meter(model)
        run = SimpleNamespace(config=config, model=model, initial=structure, device=_CPU, precision=precision)
        groups = model_groups(model, config.training.optimizer)
        hooks = [checked(hook) for hook in hooks]
        for hook in hooks:
            hook.begin(cast(Any, run))
            groups += hook.parameter_groups()
        optimizer = Optimizers(groups)
        stack.enter_context(meter)
        meter.part = "gradients"
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        meter.part = "optimizer"
        optimizer.step()  # a step before this one, for the optimizer's state
        if passes == 1:  # in later passes the gradients of the first are there
            optimizer.zero_grad(set_to_none=True)
        meter.at_peak = Counter()
        _pass(config, model, meter, rows, precision, hooks)
        meter.part = "activations"
        nn.utils.clip_grad_norm_(model.parameters(), config.training.clip)
        optimizer.step()
    return StepMemory(**{name: meter.at_peak[name] for name in StepMemory.__dataclass_fields__})


def _pass(
    config: RunConfig, model: Transformer, meter: _Meter, rows: int, precision: str, hooks: Sequence[Hook]
) -> None:
    """A forward and a backward pass."""
    meter.part, step = "activations", config.training.steps // 2
    tokens = torch.zeros((rows, config.training.seq_len), dtype=torch.long)
    inputs = inputs_of(hooks, step, {})
    if model.shape.output is None and model.shape.vocab >= LARGE_VOCABULARY:
        inputs["targets"] = Targets(tokens, torch.ones(tokens.shape))
    with autocast(_CPU, precision):
        output = model(tokens, **inputs)
    loss = _loss(output, tokens, PREDICTED[config.objective])
    meter.part = "activations"
    for hook in hooks:
        for term in (hook.after_forward(step, output, 1.0), hook.penalty(step)):
            loss = loss if term is None else loss + term
    del output, inputs
    meter.part = "logits"
    loss.backward()


def _loss(output: Output, tokens: Tensor, share: float) -> Tensor:
    """The loss of this share of the predictions."""
    if output.loss is not None:
        return output.loss
    numbers = output.logits.flatten(0, -2)
    count = round(share * len(numbers))
    # A copy, as the choice of predictions makes one.
    predictions = at_least_fp32(numbers[:count].clone())
    return F.cross_entropy(predictions, tokens.flatten()[:count], reduction="none").sum()


@contextmanager
def _without_numbers(dtype: torch.dtype) -> Iterator[None]:
    """A context in which new tensors have no numbers, and this type if they name none."""
    # Imported here, because it takes a second.
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        torch.set_default_dtype(before)


class _OneKernel(torch.autograd.Function):
    """The sizes of RMSNorm as one kernel, without numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
        scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, scale, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, _, weight = ctx.saved_tensors
        return torch.empty_like(x), None, None if weight is None else torch.empty_like(weight), None


class _Meter(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, by the part that is computed then, while they live.

    Parts change by themselves: what follows the final norm is `logits`, in the backward pass until the gradient reaches
    that norm, and a finished gradient of a parameter is moved to `gradients`.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.part = "weights"
        self.now: Counter[str] = Counter()
        self.at_peak: Counter[str] = Counter()
        self._parts: dict[int, str] = {}
        for parameter in model.parameters():
            self._count(parameter)
            parameter.register_post_accumulate_grad_hook(self._finished)
        model.final_norm.register_forward_hook(self._at_the_head)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if operation is torch.ops.prim.device.default:  # most of all calls; it makes no tensor
            return args[0].fake_device
        if operation is torch.ops.aten._local_scalar_dense.default:
            return False if args[0].dtype is torch.bool else 0  # there are no numbers
        out = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._parts:
            return
        self._parts[key] = self.part
        self.now[self.part] += size
        weakref.finalize(storage, self._freed, key, size)
        if self.now.total() > self.at_peak.total():
            self.at_peak = self.now.copy()

    def _freed(self, key: int, size: int) -> None:
        self.now[self._parts.pop(key)] -= size

    def _finished(self, parameter: Tensor) -> None:
        storage = cast(Tensor, parameter.grad).untyped_storage()
        if (before := self._parts.get(storage._cdata, "gradients")) != "gradients":
            self._parts[storage._cdata] = "gradients"
            self.now[before] -= storage.nbytes()
            self.now["gradients"] += storage.nbytes()

    def _at_the_head(self, module: nn.Module, inputs: Any, out: Tensor) -> None:
        self.part = "logits"
        out.register_hook(cast(Callable[[Tensor], None], self._behind_the_head))

    def _behind_the_head(self, gradient: Tensor) -> None:
        self.part = "activations"
