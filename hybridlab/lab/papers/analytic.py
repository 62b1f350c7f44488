"""Columns that need no training: numbers computed from shapes, plans and maps."""

from __future__ import annotations

import itertools
import math
import pkgutil
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import numpy as np
from pydantic import Field

from hybridlab.config.loading import Layer, preset_names
from hybridlab.config.resolve import resolve
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import forecast, full_structure
from hybridlab.config.types import PositiveInt, Strict, fields_of, is_settings
from hybridlab.errors import UserError, nearest
from hybridlab.lab.papers.calls import Function, called, one_of
from hybridlab.models.ledger.flops import CONVENTIONS, flops
from hybridlab.models.ledger.parameters import count_parameters, kv_bytes, recurrence_parameters
from hybridlab.models.ledger.summary import training_flops
from hybridlab.plan.shape import Shape
from hybridlab.registry import Registry

SizeName = Annotated[str, one_of("size", lambda: preset_names("size"))]
ArchName = Annotated[str, one_of("architecture", lambda: preset_names("arch"))]
ConventionName = Annotated[str, one_of("convention", lambda: CONVENTIONS)]
FieldName = Annotated[str, one_of("field of a shape", lambda: fields_of(Shape))]

Changes = dict[str, Any] | None
"""Changes of a configuration."""

Analytic = TypeVar("Analytic", bound=Callable[..., float | str])
ANALYTIC: Registry[Function] = Registry("analytic function", loads="hybridlab.lab.papers.derived")


def analytic(function: Analytic) -> Analytic:
    """Register a function under its own name, for `compute: {function: NAME, …}` in a column."""
    ANALYTIC.add(function.__name__, Function.of(function))
    return function


def _run(size: str, arch: str, config: Changes) -> RunConfig:
    return resolve(arch, size, layers=[Layer(config or {})])


class Variant(Strict):
    """An architecture with changes of its configuration."""

    arch: ArchName
    config: Changes = None


@analytic
def training_flops_per_step(
    size: SizeName, arch: ArchName, convention: ConventionName, seq_len: int, batch: int, config: Changes = None
) -> float:
    """FLOPs of one optimizer step of `batch` sequences."""
    return flops(arch, seq_len, convention, size=size, **(config or {})).training * batch


@analytic
def reduction_percent(
    before: Variant, after: Variant, size: SizeName, convention: ConventionName, seq_len: int, batch: int
) -> float:
    """The reduction of the training FLOPs from `before` to `after`, in percent."""
    first, second = (
        training_flops_per_step(size, variant.arch, convention, seq_len, batch, variant.config)
        for variant in (before, after)
    )
    return 100 * (1 - second / first)


@analytic
def training_flops_of_run(size: SizeName, arch: ArchName, convention: ConventionName, config: Changes = None) -> float:
    """FLOPs of a whole run with the size's own settings, summed over the stages of a plan that grows."""
    return training_flops(_run(size, arch, config), convention)


@analytic
def overhead_percent(size: SizeName, arch: ArchName, convention: ConventionName, config: Changes = None) -> float:
    """The additional FLOPs of a whole run over those of the vanilla run of its size, in percent."""
    extra = training_flops_of_run(size, arch, convention, config) / training_flops_of_run(size, "vanilla", convention)
    return 100 * (extra - 1)


@analytic
def steps_before_full_depth(size: SizeName, arch: ArchName, config: Changes = None) -> float:
    """Optimizer steps of a run before its model has all of its layers."""
    run = _run(size, arch, config)
    return sum(steps for structure, steps in forecast(run) if structure.shape.layers < run.shape.layers)


@analytic
def run_flops_ratio(
    size: SizeName, arch: ArchName, over: Variant, convention: ConventionName, config: Changes = None
) -> float:
    """FLOPs of a whole run over those of another run of its size."""
    base = training_flops_of_run(size, over.arch, convention, over.config)
    return training_flops_of_run(size, arch, convention, config) / base


@analytic
def printed_parameters(size: SizeName, arch: ArchName, config: Changes = None, embedding: bool = True) -> float:
    """Parameters as SpiralFormer's table 1 counts them (CONVENTIONS.md): blocks with norms and biases, scorers and
    allocators at full resolution too; with embedding, both embedding tables and two d × d matrices that the text does
    not mention."""
    resolved = _run(size, arch, config)
    shape, plan = resolved.shape, full_structure(resolved).plan
    count = count_parameters(shape)
    loops = sum(recurrence_parameters(loop, shape.width, printed=True) for loop in plan.loops.values())
    inner = count.block_matrices + count.norms_and_biases + loops
    return inner + (count.embedding + count.head + 2 * shape.width**2 if embedding else 0)


@analytic
def model_parameters(size: SizeName, arch: ArchName, config: Changes = None) -> float:
    """Parameters of the model in this package."""
    resolved = _run(size, arch, config)
    return count_parameters(resolved.shape, full_structure(resolved).plan).total


@analytic
def prefill_flops(
    size: SizeName, arch: ArchName, convention: ConventionName, seq_len: int, config: Changes = None
) -> float:
    """Forward FLOPs of one sequence."""
    return flops(arch, seq_len, convention, size=size, **(config or {})).forward


@analytic
def prefill_ratio(
    size: SizeName, arch: ArchName, convention: ConventionName, seq_len: int, config: Changes = None
) -> float:
    """Forward FLOPs of an architecture relative to the vanilla stack of its size and changed shape."""
    shape = {"shape": config["shape"]} if config and "shape" in config else None
    base = prefill_flops(size, "vanilla", convention, seq_len, shape)
    return prefill_flops(size, arch, convention, seq_len, config) / base


@analytic
def block_parameters(size: SizeName) -> float:
    """Parameters as SGT's table 8 counts them: projections and MLP matrices, input embedding and head, without norms
    and biases."""
    count = count_parameters(resolve("vanilla", size).shape)
    return count.block_matrices + count.embedding + count.head


@analytic
def total_parameters(size: SizeName, arch: ArchName = "vanilla") -> float:
    """All parameters of a shape, without those of loops."""
    return count_parameters(resolve(arch, size).shape).total


@analytic
def encoder_parameters(size: SizeName, arch: ArchName) -> float:
    """Parameters of an encoder as SAOBP's table 4 counts them: without the head of masked tokens."""
    count = count_parameters(resolve(arch, size).shape)
    return count.total - count.head


@analytic
def shape_field(size: SizeName, field: FieldName, arch: ArchName = "vanilla") -> float:
    """A number of a size preset's shape."""
    return getattr(resolve(arch, size).shape, field)


@analytic
def setting(size: SizeName, path: str, arch: ArchName = "vanilla") -> float | str:
    """A setting of the run of a size by its dotted name, such as training.optimizer.lr; Yes or No for one that is on or
    off."""
    value: Any = resolve(arch, size)
    for name in path.split("."):
        kind: Any = type(value)
        names = list(fields_of(kind)) if is_settings(kind) else []
        if name not in names:
            raise UserError(
                f"setting {path}: there is no {name!r}; {nearest(name, names, None if names else 'it has no parts')}"
            )
        value = getattr(value, name)
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if not isinstance(value, int | float | str):
        raise UserError(f"setting {path}: this is no number or text; name one of its parts")
    return value


@analytic
def attention_flops(
    size: SizeName, arch: ArchName, convention: ConventionName, seq_len: int, config: Changes = None
) -> float:
    """Forward FLOPs of the attention of one sequence (scores and weighted values), without projections and MLPs."""
    return flops(arch, seq_len, convention, size=size, **(config or {})).breakdown["attention"]


@analytic
def other_flops(
    size: SizeName, arch: ArchName, convention: ConventionName, seq_len: int, config: Changes = None
) -> float:
    """Forward FLOPs of one sequence without those of the attention."""
    cost = flops(arch, seq_len, convention, size=size, **(config or {}))
    return cost.forward - cost.breakdown["attention"]


@analytic
def kv_cache(size: SizeName, arch: ArchName, seq_len: int, config: Changes = None) -> float:
    """Bytes of keys and values of one sequence, in bf16."""
    return kv_bytes(full_structure(_run(size, arch, config)), seq_len)


@analytic
def probability_open(alpha: float, beta: float = 2 / 3, low: float = -0.1, high: float = 1.1) -> float:
    """P(z > 0) of a hard concrete mask with parameter α (ConSA, the right side of Eq. 9)."""
    return 1 / (1 + math.exp(-(alpha - beta * math.log(-low / high))))


@analytic
def mean_mask(alpha: float, beta: float = 2 / 3, low: float = -0.1, high: float = 1.1, points: int = 20_000) -> float:
    """E[z] of a hard concrete mask with parameter α, integrated over the noise u of Eq. 7."""
    total = 0.0
    for i in range(points):
        u = (i + 0.5) / points
        s = 1 / (1 + math.exp(-(math.log(u / (1 - u)) + alpha) / beta))
        total += min(1.0, max(0.0, s * (high - low) + low))
    return total / points


@analytic
def share_in_loop(size: SizeName, arch: ArchName, config: Changes = None) -> float:
    """Layers of the loop's body over all layers of the model (SpiralFormer's recurrence ratio)."""
    resolved = _run(size, arch, config)
    bodies = [edit.size for edit in resolved.plan if edit.op == "recur"]
    if not bodies:
        raise UserError(f"share_in_loop: {arch} has no loop")
    return bodies[0] / resolved.shape.layers


@analytic
def effect_on_other_rows(product: Literal["senders", "labels"], causal: bool = False, strength: float = 0.2) -> float:
    """The largest change of another row's belief when one row of an attention matrix of six tokens changes (SAOBP).

    product: over the rows that send, as in Eq. 11, or over the labels of each row, as in Algorithm 1. causal: a row
    sees no later label, but all rows send, and the change is that of earlier rows when the last one changes.
    """
    before, after = (_beliefs(last, product, causal, strength) for last in (0.3, -1.2))
    return float(np.abs(after - before)[:-1].max())


@analytic
def dependency_of(attention: Literal["uniform", "one token"], tokens: PositiveInt = 8) -> float:
    """GTD (SAOBP, Eq. 12 and 13, with β and K of section 6) of an attention matrix of so many tokens. uniform: every
    token attends to all alike. one token: every token attends to the first alone, an entropy of 0."""
    first = np.eye(tokens)[np.zeros(tokens, dtype=int)]
    weights = np.full((tokens, tokens), 1 / tokens) if attention == "uniform" else first
    further = sum(0.9 ** (t - 1) * np.linalg.matrix_power(weights, t) for t in range(2, 5))
    near, far = np.square(weights).sum(), np.square(further).sum()
    return float(far / (near + far))


@analytic
def p_of_correlation(r: float, pairs: Annotated[int, Field(ge=3)]) -> float:
    """The two-sided p-value of Pearson's r over so many independent pairs: Student's t of r √((n − 2) / (1 − r²))."""
    from scipy import stats  # here, so that commands that compute no p-value start fast

    return float(2 * stats.t.sf(abs(r) * math.sqrt((pairs - 2) / (1 - r * r)), pairs - 2))


def _beliefs(last: float, product: str, causal: bool, strength: float) -> np.ndarray:
    """Beliefs (6, 6) of attention with these scores; last: the factor on those of the last row."""
    row, label = np.mgrid[:6, :6]
    scores = np.sin(1.0 + 2.3 * row + 1.7 * label) * np.where(row == 5, last, 1.0)
    attention = np.where(causal & (label > row), 0.0, np.exp(scores))
    attention /= attention.sum(1, keepdims=True)
    messages = math.exp(strength) + (1 - math.exp(strength)) * attention
    if product == "senders":
        products = messages.prod(0, keepdims=True) / messages
    else:
        # Algorithm 1, lines 6 and 7: P_i is the product over the labels of row i, then divided by its own message.
        products = messages.prod(1, keepdims=True) / messages
    beliefs = attention * products
    normalized: np.ndarray = beliefs / beliefs.sum(1, keepdims=True)
    return normalized


@analytic
def code_path(path: str) -> str:
    """A dotted name of code in this package, without `hybridlab.`; UserError if it does not exist."""
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        why = f"{path} does not exist; write the dotted name of a module, class or function"
        raise UserError(f"code_path: {why}") from None
    return path.removeprefix("hybridlab.")


def several(call: dict[str, Any]) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """The calls that a call stands for: a list instead of a single value gives one for each of its entries, two
    lists one for each pair. Gives these lists, at most two, by argument, and the calls, those of the second list in a
    row."""
    hints = ANALYTIC.get(call["function"]).hints
    lists = {name: item for name, item in call.items() if isinstance(item, list) and not _takes_list(hints.get(name))}
    if len(lists) > 2 or [] in lists.values():
        raise UserError(f"{call['function']}: lists stand in {', '.join(lists)}; write one or two, with values in them")
    calls = [{**call, **dict(zip(lists, values, strict=True))} for values in itertools.product(*lists.values())]
    return lists, calls


def _takes_list(hint: Any) -> bool:
    """Whether an argument of this type can be a list."""
    return get_origin(hint) is list or any(_takes_list(part) for part in get_args(hint) if get_origin(hint) is not dict)


def compute(call: dict[str, Any], row_arguments: dict[str, Any]) -> float | str:
    """The result of `{function: NAME, argument: value, …}`; arguments that the row gives replace those of the call."""
    function, arguments = called(ANALYTIC, "function", Layer({**call, **row_arguments}))
    return function.run(**arguments)
