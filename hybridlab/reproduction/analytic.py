"""Columns that need no training: figures that follow from shapes, plans and maps alone."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from hybridlab.accounting.flops import flops
from hybridlab.accounting.parameters import count_parameters, recurrence_parameters
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.errors import UserError
from hybridlab.plan.from_config import plan_of
from hybridlab.reproduction.schedule_cost import training_flops


def training_flops_per_step(
    size: str, arch: str, convention: str, seq_len: int, batch: int, config: dict[str, Any] | None = None
) -> float:
    """FLOPs of one optimizer step of `batch` sequences."""
    return flops(arch, seq_len, convention, size=size, **(config or {})).training * batch


def reduction_percent(before: dict[str, Any], after: dict[str, Any], **shared: Any) -> float:
    """By how many percent the training FLOPs of `after` lie under those of `before`."""
    first, second = training_flops_per_step(**shared, **before), training_flops_per_step(**shared, **after)
    return 100 * (1 - second / first)


def training_flops_of_run(size: str, arch: str, convention: str, config: dict[str, Any] | None = None) -> float:
    """FLOPs of a whole run with the size's own settings, integrated over whatever it grows."""
    return training_flops(resolve(arch, size, layers=[Layer(config or {})]), convention)


def overhead_percent(size: str, arch: str, convention: str, config: dict[str, Any] | None = None) -> float:
    """By how many percent a whole run costs more than the vanilla run of its size."""
    extra = training_flops_of_run(size, arch, convention, config) / training_flops_of_run(size, "vanilla", convention)
    return 100 * (extra - 1)


def printed_parameters(size: str, arch: str, config: dict[str, Any] | None = None, embedding: bool = True) -> float:
    """Parameters as SpiralFormer's table 1 prints them (CONVENTIONS): blocks with norms and biases, scorers and allocators
    at full resolution too; with embedding, both tables and two d × d matrices that the text does not mention."""
    resolved = resolve(arch, size, layers=[Layer(config or {})])
    shape, plan = resolved.shape, plan_of(resolved)
    count = count_parameters(shape)
    loops = sum(recurrence_parameters(loop, shape.width, printed=True) for loop in plan.loops.values())
    inner = count.block_matrices + count.norms_and_biases + loops
    return inner + (count.embedding + count.head + 2 * shape.width**2 if embedding else 0)


def model_parameters(size: str, arch: str, config: dict[str, Any] | None = None) -> float:
    """Parameters that the model has here."""
    resolved = resolve(arch, size, layers=[Layer(config or {})])
    return count_parameters(resolved.shape, plan_of(resolved)).total


def prefill_flops(size: str, arch: str, convention: str, seq_len: int, config: dict[str, Any] | None = None) -> float:
    """Forward FLOPs of one sequence."""
    return flops(arch, seq_len, convention, size=size, **(config or {})).forward


def prefill_ratio(size: str, arch: str, convention: str, seq_len: int, config: dict[str, Any] | None = None) -> float:
    """Those of an architecture over those of the vanilla stack of its size, with the same changes of the shape."""
    shape = {"shape": config["shape"]} if config and "shape" in config else None
    base = prefill_flops(size, "vanilla", convention, seq_len, shape)
    return prefill_flops(size, arch, convention, seq_len, config) / base


def block_parameters(size: str) -> float:
    """Matrices and both embeddings, as SGT's table 8 counts: projections and MLP matrices, input table, head; no norms and biases."""
    count = count_parameters(resolve("vanilla", size).shape)
    return count.block_matrices + count.embedding + count.head


def total_parameters(size: str, arch: str = "vanilla") -> float:
    return count_parameters(resolve(arch, size).shape).total


def shape_field(size: str, field: str) -> float:
    """A number of a size preset's shape."""
    return getattr(resolve("vanilla", size).shape, field)


def code_path(path: str) -> str:
    """The dotted name of code that exists here; one that does not is an error."""
    names = path.split(".")
    for cut in range(len(names) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(names[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            functools.reduce(getattr, names[cut:], found)
            return path.removeprefix("hybridlab.")
        except AttributeError:
            break
    raise UserError(f"code_path: {path} does not exist")


FUNCTIONS: dict[str, Callable[..., float | str]] = {
    f.__name__: f
    for f in (
        training_flops_per_step,
        training_flops_of_run,
        overhead_percent,
        reduction_percent,
        total_parameters,
        block_parameters,
        printed_parameters,
        model_parameters,
        prefill_flops,
        prefill_ratio,
        shape_field,
        code_path,
    )
}


def compute(call: dict[str, Any], given: dict[str, Any]) -> float | str:
    """`{function: NAME, argument: value, …}` with the row's own arguments laid over it."""
    arguments = {**call, **given}
    name = arguments.pop("function", None)
    if name not in FUNCTIONS:
        raise UserError(f"compute: function {name!r} is unknown; known: {', '.join(FUNCTIONS)}")
    return FUNCTIONS[name](**arguments)
