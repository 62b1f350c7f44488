"""The loss of a large vocabulary in chunks of tokens, so that the logits of a batch never exist at once.

The logits of 4,096 tokens over a vocabulary of 151,936 are 2.5 GB in fp32, and a loss of whole logits needs about three
times that. Here a chunk of tokens is taken through the product with the table, the softmax and the gradients of both
before the next one begins. That is possible in the forward pass because the loss is a sum with known weights, and needs
no product twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.attention.kernels import at_least_fp32, capped, has_autocast
from hybridlab.models.blocks import MaybeTensor

LARGE_VOCABULARY = 32_768
"""Vocabularies from this one on are trained with their loss in chunks."""
LOGITS_AT_ONCE = {"cpu": 2**26, "cuda": 2**28}
"""Elements by type of device: about 0.27 GB in fp32, and on a GPU, where few large products are faster, 1.1 GB."""
ALIGNED = {"cuda": 64}
"""On a GPU products are slow where the vocabulary is no multiple of this: the table gets rows of zeros, up to the
next."""
_SOFTMAX_AT_ONCE = 2**23
"""Elements of the logits whose softmax is computed at once, beside the logits."""


@dataclass(frozen=True)
class Targets:
    """tokens (B, S): the one that each position of the input is to give. weights (B, S): of its loss."""

    tokens: Tensor
    weights: Tensor


def loss_in_chunks(
    x: Tensor, table: Tensor, bias: Tensor | None, targets: Targets, compiled: bool = False, cap: float | None = None
) -> Tensor:
    """Σ weight · −log p(token), p = softmax(x tableᵀ + bias), as a scalar in fp32 at least, or in fp64.

    x (B, S, W), table (V, W), bias (V,). cap: of the logits, see `capped`. It has first derivatives only."""
    tokens, weights = targets.tokens.flatten(), targets.weights.flatten()
    return cast(Tensor, _InChunks.apply(x.flatten(0, 1), table, bias, tokens, weights, compiled, cap))


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        weights: Tensor,
        compiled: bool,
        cap: float | None,
    ) -> Tensor:
        chunk: Callable[..., tuple[Tensor, ...]] = _chunk
        if compiled:
            # Imported here, because it imports the compiler.
            from hybridlab.models.executor import compiled as compiled_form

            chunk = compiled_form(_chunk)
        loss = torch.zeros((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        head, shift = _in_the_type_of_products(table), _in_the_type_of_products(bias)
        vocab, count = len(table), rows_at_once(len(head), x.device.type)
        # A table that is not trained (adapters alone are) gets no gradient: it would be as large as the table.
        of_table = torch.zeros_like(head, dtype=table.dtype) if ctx.needs_input_grad[1] else None
        of_x = torch.empty_like(x)
        of_bias = None
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = torch.zeros_like(head[:, 0], dtype=bias.dtype)
        for start in range(0, len(x), count):
            part = slice(start, start + count)
            own, of_x[part], errors = chunk(x[part], head, shift, tokens[part], weights[part], cap, vocab)
            loss += own
            if of_table is not None and errors.dtype == x.dtype == of_table.dtype:
                of_table.addmm_(errors.T, x[part])
            elif of_table is not None:  # autocast, which does not know products in place
                of_table += errors.T @ x[part]
            if of_bias is not None:
                of_bias += errors.sum(0)
            del errors  # before the next chunk makes its own
        ctx.save_for_backward(of_x, *(None if found is None else found[:vocab] for found in (of_table, of_bias)))
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_table, of_bias = ctx.saved_tensors
        scaled = [None if found is None else found.mul_(gradient) for found in (of_x, of_table, of_bias)]
        return *scaled, None, None, None, None


def logits_at_once(device: str) -> int:
    """How many logits a chunk has at most on a type of device."""
    return LOGITS_AT_ONCE.get(device, LOGITS_AT_ONCE["cpu"])


def rows_at_once(vocab: int, device: str) -> int:
    """How many tokens a chunk has; of many, a multiple of 256, so that products are aligned."""
    rows = max(1, logits_at_once(device) // vocab)
    return rows - rows % 256 if device in ALIGNED and rows > 256 else rows


def _in_the_type_of_products(t: MaybeTensor) -> MaybeTensor:
    """The table, or the bias, as the products of all chunks read it: cast once where autocast would cast it for each,
    and with rows of zeros that align them."""
    if t is None:
        return t
    device = t.device.type
    if t.dtype != torch.float64 and has_autocast(device) and torch.is_autocast_enabled(device):
        t = t.to(torch.get_autocast_dtype(device))
    missing = -len(t) % ALIGNED.get(device, 1)
    return F.pad(t, (0, 0) * (t.dim() - 1) + (0, missing)) if missing else t


def _chunk(
    x: Tensor, table: Tensor, bias: Tensor | None, tokens: Tensor, weights: Tensor, cap: float | None, vocab: int
) -> tuple[Tensor, ...]:
    """The loss of some tokens, its derivative by x, and that by the product (N, V), as the product rounds them. vocab:
    the rows of the table that stand for tokens; those behind them have no probability."""
    logits = capped(F.linear(x, table, bias), cap)
    slope = None if cap is None else 1 - (at_least_fp32(logits) / cap) ** 2
    dtype, aligned = logits.dtype, len(table) > vocab
    if aligned:
        logits = logits.masked_fill(torch.arange(len(table), device=x.device) >= vocab, float("-inf"))
    logs = _log_softmax_(at_least_fp32(logits))
    loss = -(logs.gather(1, tokens[:, None])[:, 0] * weights).sum()
    if torch.compiler.is_compiling():  # one kernel, which writes no probabilities in fp32
        errors = logs.exp() - (torch.arange(len(table), device=x.device) == tokens[:, None]).to(logs.dtype)
        errors = errors * weights[:, None]
    else:
        errors = logs.exp_().scatter_add_(1, tokens[:, None], logs.new_full((len(tokens), 1), -1.0))
        errors = errors.mul_(weights[:, None])
    errors = (errors if slope is None else errors * slope).to(dtype)
    return loss, (errors @ table).to(x.dtype), errors


def _log_softmax_(logits: Tensor) -> Tensor:
    """The logarithms of softmax(logits) over the last dimension, written over the logits, some rows at a time."""
    if torch.compiler.is_compiling():  # the compiler fuses it with what follows
        return F.log_softmax(logits, dim=-1)
    for rows in logits.split(max(1, _SOFTMAX_AT_ONCE // logits.shape[-1])):
        rows.copy_(F.log_softmax(rows, dim=-1))
    return logits
