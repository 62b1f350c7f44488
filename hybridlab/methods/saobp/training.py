"""Penalties on attention that any model can be trained with: Entropy-Reg and Eigen-Reg, which SAOBP compares with.

    hybridlab pretrain --arch entropy-reg --size bert-tiny
    hybridlab pretrain --arch vanilla --set "hooks=[{kind: eigen-reg, weight: 0.01}]"

They change the gradients alone: no structure, and no loss that is logged or measured. The log has their values.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from hybridlab.methods.saobp import EigenRegConfig, EntropyRegConfig
from hybridlab.models.blocks import Block
from hybridlab.models.decoder import Output, Transformer
from hybridlab.training.engine import Hook, Run
from hybridlab.training.world import world

_SMALLEST = torch.finfo(torch.float32).tiny


class EntropyReg(Hook):
    """Penalises heads of low entropy (Jha and Reagen, 2025, "Entropy-guided attention for private LLMs").

    weight · mean of max(0, threshold − H)² over visits, heads and sequences, where H is the mean over the queries of a
    sequence of the entropy divided by the logarithm of the visible keys. Queries that see one key have none and do not
    count, nor does padding. Needs the attention of the forward pass, S × S numbers per head.
    """

    name, logged = "entropy-reg", "entropy_penalty"

    def __init__(self, config: EntropyRegConfig) -> None:
        self.config = config
        self.value: Tensor | float = 0.0

    def forward_inputs(self, step: int) -> dict[str, Any]:
        return {"need": "full"}

    def after_forward(self, step: int, output: Output, share: float) -> Tensor | None:
        heads = [mean_entropies(weights, output.keys[place]) for place, weights in output.attention.items()]
        if not heads:
            return None
        below = (self.config.threshold - torch.cat(heads, dim=1)).clamp_min(0)
        penalty = share * self.config.weight * below.square().mean()
        self.value = self.value + penalty.detach().double()
        return penalty

    def after_step(self, run: Run, step: int) -> dict[str, Tensor]:
        value, self.value = torch.as_tensor(self.value, dtype=torch.float64), 0.0
        return {"entropy_penalty": world().sum(value)}


def mean_entropies(weights: Tensor, keys: Tensor) -> Tensor:
    """Attention weights (B, H, S, S) and visible keys (B, H, S) → (B, H): the mean entropy of the queries that see more
    than one key, as a share of the largest. Its gradient is finite where weights are 0."""
    entropy = -(weights * weights.clamp_min(_SMALLEST).log()).sum(-1) / keys.clamp_min(2).float().log()
    counted = keys > 1
    return torch.where(counted, entropy, 0.0).sum(-1) / counted.sum(-1).clamp_min(1)


class EigenReg(Hook):
    """Keeps the eigenvalues of the query-key matrices together, at a given trace (Bao et al., 2024, "Self-attention
    networks localize when QK-eigenspectrum concentrates").

    weight · mean over layers and heads of (tr M − trace)² + Σ (λ − mean λ)², where λ are the eigenvalues of the
    symmetric part of M = W_Qᵀ W_K / √d, on which xᵀ M x depends: real numbers, as many as the residual stream has
    channels. Biases, positions and norms of queries and keys do not count.
    """

    name, logged = "eigen-reg", "eigen_penalty"

    def __init__(self, config: EigenRegConfig) -> None:
        self.config = config
        self.value: Tensor | float = 0.0

    def begin(self, run: Run) -> None:
        self.run = run

    def penalty(self, step: int) -> Tensor:
        trace, spread = spectra(self.run.model)
        penalty = self.config.weight * ((trace - self.config.trace).square() + spread).mean()
        self.value = penalty.detach()
        return penalty

    def after_step(self, run: Run, step: int) -> dict[str, Tensor | float]:
        return {"eigen_penalty": self.value}


def spectra(model: Transformer) -> tuple[Tensor, Tensor]:
    """(L, H) each: the trace of every head's M, and the sum of the squared distances of the eigenvalues of its
    symmetric part from their mean. From matrices of the size of a head: with A = W_Q and B = W_K / √d, tr M = tr A Bᵀ,
    and the squared eigenvalues sum up to (tr (A Bᵀ)² + tr A Aᵀ B Bᵀ) / 2."""
    shape = model.shape
    traces, spreads = [], []
    for block in model.blocks:
        attention = cast(Block, block).attention
        a = attention.q.weight.view(shape.heads, shape.head_width, shape.width)
        b = attention.k.weight.view(shape.kv_heads, shape.head_width, shape.width) / shape.head_width**0.5
        b = b.repeat_interleave(shape.group, 0)
        product = a @ b.transpose(1, 2)
        trace = product.diagonal(dim1=1, dim2=2).sum(-1)
        twice = (product * product.transpose(1, 2)).sum((1, 2))
        norm = ((a @ a.transpose(1, 2)) * (b @ b.transpose(1, 2))).sum((1, 2))
        traces.append(trace)
        spreads.append((twice + norm) / 2 - trace.square() / shape.width)
    return torch.stack(traces), torch.stack(spreads)
