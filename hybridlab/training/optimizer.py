"""AdamW over named groups: matrices with weight decay, other parameters without, routers, and the groups of hooks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hybridlab.config.training import Optimizer, Schedule
from hybridlab.errors import UserError
from hybridlab.models.decoder import divided_as

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps of each tensor."""


def learning_rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """The factor of the peak learning rate in optimizer step `step` (0-based) of `steps`.

    All schedules warm up linearly from 1 / warmup_steps to 1 and end at `final_ratio`. cosine: falls along a half
    cosine. wsd: constant, then falls linearly. trapezoidal: constant, then falls as 1 − sqrt(progress).
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    start = schedule.warmup_steps
    if schedule.name != "cosine":
        start = max(start, steps - round(schedule.decay_fraction * steps))
    if step < start or steps - start <= 0:
        return 1.0
    # Over the n steps of the decay, progress is 1/n … 1, so that the last step has the final ratio.
    progress = (step - start + 1) / (steps - start)
    shape = {
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "wsd": 1 - progress,
        "trapezoidal": 1 - math.sqrt(progress),
    }[schedule.name]
    return schedule.final_ratio + (1 - schedule.final_ratio) * shape


ROUTER = re.compile(r"recurrences\.\d+\.(writers|readers)\.")
"""Names of the parameters of MeSH's routers."""


@dataclass
class Group:
    """Named tensors with their own optimizer settings.

    lr: the peak learning rate. schedule: None for the run's. clipped: whether gradient clipping includes the group.
    """

    name: str
    tensors: dict[str, Tensor]
    lr: float
    betas: tuple[float, float]
    weight_decay: float = 0.0
    maximize: bool = False
    clipped: bool = True
    schedule: Schedule | None = None
    eps: float = 1e-8


def model_groups(model: nn.Module, settings: Optimizer) -> list[Group]:
    """The groups of the model's parameters that are trained.

    Weight decay applies to matrices of the blocks and the head, and only with `decay_all` to norms, biases, embeddings
    and parameters of loops. With `router_lr_factor` the routers of topology mesh are a group of their own; UserError if
    the model has none.
    """
    own_rate = settings.router_lr_factor
    decayed: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    routers: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.dim() > 1 and "embedding" not in name and not name.startswith("recurrences")
        if own_rate is not None and ROUTER.match(name):
            routers[name] = parameter
        else:
            (decayed if matrix or settings.decay_all else rest)[name] = parameter
    if own_rate is not None and not routers:
        raise UserError(
            f"training.optimizer.router_lr_factor {own_rate:g} has no effect: the model has no routers; remove it, or "
            "set recurrence.topology to mesh"
        )
    decay = settings.weight_decay
    return [
        Group(name, tensors, lr, settings.betas, decayed_by, eps=settings.eps)
        for name, tensors, lr, decayed_by in (
            ("matrices", decayed, settings.lr, decay),
            ("rest", rest, settings.lr, 0.0),
            ("routers", routers, settings.lr * (own_rate or 0.0), decay if settings.decay_all else 0.0),
        )
        if tensors
    ]


def make_optimizer(groups: list[Group]) -> torch.optim.AdamW:
    """AdamW with one parameter group per group, in the same order."""
    return torch.optim.AdamW(
        [
            {
                "params": list(group.tensors.values()),
                "lr": group.lr,
                "betas": group.betas,
                "eps": group.eps,
                "weight_decay": group.weight_decay,
                "maximize": group.maximize,
            }
            for group in groups
        ],
        fused=True,
    )


def set_learning_rates(
    optimizer: torch.optim.AdamW, groups: list[Group], schedule: Schedule, step: int, steps: int
) -> None:
    """Set the learning rates for optimizer step `step` (0-based) of `steps`."""
    for settings, group in zip(optimizer.param_groups, groups, strict=True):
        settings["lr"] = group.lr * learning_rate_factor(group.schedule or schedule, step, steps)


def optimizer_tensors(optimizer: torch.optim.AdamW, groups: list[Group]) -> dict[str, Tensor]:
    """The optimizer's state as named tensors: `<parameter>/exp_avg`, `/exp_avg_sq` and `/step`."""
    return {
        f"{name}/{key}": value.detach()
        for group in groups
        for name, tensor in group.tensors.items()
        for key, value in optimizer.state[tensor].items()
    }


def load_optimizer_tensors(optimizer: torch.optim.AdamW, groups: list[Group], saved: Mapping[str, Tensor]) -> None:
    """Load state saved by `optimizer_tensors`. A tensor without saved state starts without moments."""
    for group in groups:
        for name, tensor in group.tensors.items():
            known = ((key, saved.get(f"{name}/{key}")) for key in _MOMENTS)
            optimizer.state[tensor] = {key: _own(value, tensor) for key, value in known if value is not None}


def _own(value: Tensor, tensor: Tensor) -> Tensor:
    """A copy of an entry of the optimizer's state for a tensor: of a moment, this process's part."""
    value = value.to(tensor.device)
    return (divided_as(tensor, value) if value.shape == tensor.shape else value).clone()
