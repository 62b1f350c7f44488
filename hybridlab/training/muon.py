"""Muon for ranks that share a model: torch's own step, of which each rank computes a part of the matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from hybridlab.training.world import doing


class SharedMuon(torch.optim.Muon):
    """torch's Muon with Nesterov momentum, for matrices that ranks share as copies or by their rows.

    torch's class would sum parts of every matrix product over the ranks. Here the ranks exchange rows, twice for all
    matrices of one shape: each rank orthogonalises some whole matrices, with the bits of one process.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike[parameter.shape, isinstance(parameter, DTensor)].append(parameter)
            for parameters in alike.values():
                self._step(parameters, group)

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """A step of all parameters of one shape."""
        updates = []
        for parameter in parameters:
            state, shared = self.state[parameter], cast(Tensor, parameter.grad)
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(shared)
            gradient, moment = _local(shared), _local(state["momentum_buffer"])
            moment.lerp_(gradient, 1 - group["momentum"])
            # Orthogonalisation computes in this type.
            updates.append(gradient.lerp(moment, group["momentum"]).bfloat16())
        first, settings = parameters[0], (group["ns_coefficients"], group["ns_steps"], group["eps"])
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], first.shape)
        ranks = first.device_mesh.get_group("parts") if isinstance(first, DTensor) else None
        if ranks is None or ranks.size() == 1:
            updates = [_zeropower_via_newtonschulz(update, *settings) for update in updates]
        else:
            updates = _in_shares(torch.stack(updates), len(first), ranks, settings)
        for parameter, update in zip(parameters, updates, strict=True):
            own = _local(parameter)
            own.mul_(1 - group["lr"] * group["weight_decay"])
            own.add_(update, alpha=-rate)


def _local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _in_shares(own: Tensor, height: int, group: dist.ProcessGroup, settings: tuple[Any, ...]) -> list[Tensor]:
    """The rows of orthogonalised matrices that belong to this rank. own (n, r, C): its rows of n matrices, which have
    `height` rows in all. Zeros fill up the shares of the last ranks, so that all ranks send tensors of one size."""
    doing("orthogonalising matrices together")
    (count, rows, width), ranks = own.shape, group.size()
    share, most = -(-count // ranks), -(-height // ranks)
    sent = F.pad(own, (0, 0, 0, most - rows, 0, ranks * share - count)).view(ranks, share, most, width)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    whole = received.transpose(0, 1).reshape(share, ranks * most, width)[:, :height]
    done = torch.stack([_zeropower_via_newtonschulz(matrix, *settings) for matrix in whole])
    sent = F.pad(done, (0, 0, 0, ranks * most - height)).view(share, ranks, most, width).transpose(0, 1).contiguous()
    dist.all_to_all_single(received, sent, group=group)
    return list(received.flatten(0, 1)[:count, :rows])
