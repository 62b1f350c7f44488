"""AdamW over named groups: decayed matrices, undecayed rest, and whatever groups the hooks bring."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hybridlab.config.controllers import Schedule
from hybridlab.config.schema import Optimizer
from hybridlab.training.schedules import learning_rate_factor


@dataclass
class Group:
    """Named tensors with settings of their own. lr: the peak rate. schedule: its own, or None for the run's.
    clipped: together with the other groups."""

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
    """The model's parameters: matrices of the blocks and the head decay; norms, embeddings and the routers of loops
    only with `decay_all`."""
    decayed, rest = {}, {}
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() > 1 and "embedding" not in name and not name.startswith("recurrences")
        (decayed if matrix or settings.decay_all else rest)[name] = parameter
    shared = {"lr": settings.lr, "betas": tuple(settings.betas), "eps": settings.eps}
    groups = [Group("matrices", decayed, weight_decay=settings.weight_decay, **shared), Group("rest", rest, **shared)]
    return [group for group in groups if group.tensors]


def make_optimizer(groups: list[Group]) -> torch.optim.AdamW:
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
    """The rates of optimizer step `step` (0-based) of `steps`."""
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


def load_optimizer_tensors(optimizer: torch.optim.AdamW, groups: list[Group], saved: dict[str, Tensor]) -> None:
    """The opposite of `optimizer_tensors`."""
    for group in groups:
        for name, tensor in group.tensors.items():
            prefix = f"{name}/"
            entries = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
            optimizer.state[tensor] = {k: v.clone().to(tensor.device) for k, v in entries.items()}
