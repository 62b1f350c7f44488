"""The optimizer over named groups: matrices with weight decay, other parameters without, routers, and the groups of
hooks. AdamW trains them all or, with `training.optimizer.kind: muon`, all but the matrices of the blocks."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hybridlab.config.training import Optimizer, Schedule
from hybridlab.errors import UserError
from hybridlab.models.decoder import divided_as

_MOMENTS = {"AdamW": ("step", "exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}
"""What an optimizer keeps of each tensor."""
_MUON_MOMENTUM = 0.95


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
    momentum: that of Muon, which then trains the group, and has no betas, eps and maximize; None for AdamW.
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
    momentum: float | None = None

    @property
    def trained_by(self) -> str:
        return "AdamW" if self.momentum is None else "Muon"


def model_groups(model: nn.Module, settings: Optimizer) -> list[Group]:
    """The groups of the model's parameters that are trained.

    Weight decay applies to matrices of the blocks and the head, and only with `decay_all` to norms, biases, embeddings
    and parameters of loops. With `router_lr_factor` the routers of topology mesh are a group of their own; UserError if
    the model has none. With Muon the matrices of the blocks are.
    """
    own_rate, decay, muon = settings.router_lr_factor, settings.weight_decay, settings.kind == "muon"
    momentum = _MUON_MOMENTUM if settings.muon_momentum is None else settings.muon_momentum
    of_routers = decay if settings.decay_all else 0.0
    groups = (decayed, rest, routers, blocks) = (
        Group("matrices", {}, settings.lr, settings.betas, decay, eps=settings.eps),
        Group("rest", {}, settings.lr, settings.betas, eps=settings.eps),
        Group("routers", {}, settings.lr * (own_rate or 0.0), settings.betas, of_routers, eps=settings.eps),
        Group("blocks", {}, settings.lr * (settings.muon_lr_factor or 1.0), settings.betas, decay, momentum=momentum),
    )
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.dim() > 1 and "embedding" not in name and not name.startswith("recurrences")
        if own_rate is not None and ROUTER.match(name):
            routers.tensors[name] = parameter
        elif muon and parameter.dim() == 2 and name.startswith("blocks."):
            blocks.tensors[name] = parameter
        else:
            (decayed if matrix or settings.decay_all else rest).tensors[name] = parameter
    if own_rate is not None and not routers.tensors:
        raise UserError(
            f"training.optimizer.router_lr_factor {own_rate:g} has no effect: the model has no routers; remove it, or "
            "set recurrence.topology to mesh"
        )
    return [group for group in groups if group.tensors]


class Optimizers:
    """AdamW, and Muon for the groups that have its momentum, as one optimizer.

    param_groups: those of both, in the order of the groups. state: what both keep, by tensor; that of another one to
    share it.
    """

    def __init__(self, groups: list[Group], state: defaultdict[Tensor, Any] | None = None) -> None:
        self.groups = groups
        made: dict[str, torch.optim.Optimizer] = {}
        for kind, make in (("AdamW", _adamw), ("Muon", _muon)):
            if own := [_settings_of(group) for group in groups if group.trained_by == kind]:
                made[kind] = make(own)
        self.parts = list(made.values())
        self.state: defaultdict[Tensor, Any] = defaultdict(dict) if state is None else state
        for part in self.parts:
            part.state = self.state
        ordered = {name: iter(part.param_groups) for name, part in made.items()}
        self.param_groups = [next(ordered[group.trained_by]) for group in groups]

    def set_learning_rates(self, schedule: Schedule, step: int, steps: int) -> None:
        """Set the learning rates for optimizer step `step` (0-based) of `steps`."""
        for settings, group in zip(self.param_groups, self.groups, strict=True):
            settings["lr"] = group.lr * learning_rate_factor(group.schedule or schedule, step, steps)

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def clear(self) -> None:
        """Let go of all tensors."""
        for held in (self.groups, self.parts, self.param_groups, self.state):
            held.clear()

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors: `<parameter>/exp_avg`, `/exp_avg_sq` and `/step`, or `/momentum_buffer` of
        Muon."""
        return {
            f"{name}/{key}": value.detach()
            for group in self.groups
            for name, tensor in group.tensors.items()
            for key, value in self.state[tensor].items()
        }

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Load what `tensors` gave. A tensor without saved state starts without moments."""
        for group in self.groups:
            for name, tensor in group.tensors.items():
                known = {key: saved[f"{name}/{key}"] for key in _MOMENTS[group.trained_by] if f"{name}/{key}" in saved}
                self.state[tensor] = {key: _own(value, tensor) for key, value in known.items()}


_adamw = partial(torch.optim.AdamW, fused=True)


def _muon(groups: list[dict[str, Any]]) -> torch.optim.Muon:
    kind = torch.optim.Muon
    if any(hasattr(tensor, "placements") for group in groups for tensor in group["params"]):
        # Imported here, because it takes long.
        from hybridlab.training.muon import SharedMuon as kind
    return kind(groups, adjust_lr_fn="match_rms_adamw")


def _settings_of(group: Group) -> dict[str, Any]:
    """A group as torch's optimizer of it takes it."""
    settings = {"params": list(group.tensors.values()), "lr": group.lr, "weight_decay": group.weight_decay}
    if group.momentum is not None:
        return {**settings, "momentum": group.momentum}
    return {**settings, "betas": group.betas, "eps": group.eps, "maximize": group.maximize}


def _own(value: Tensor, tensor: Tensor) -> Tensor:
    """A copy of an entry of the optimizer's state for a tensor: of a moment, this process's part."""
    value = value.to(tensor.device)
    return (divided_as(tensor, value) if value.shape == tensor.shape else value).clone()
