"""Output heads: from the last residual stream to logits over the vocabulary, to classes of a sequence, or to spans.

`shape.output` chooses the head: tokens by default, {kind: classes, labels: N}, or {kind: spans}.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.models.blocks import make_norm
from hybridlab.plan.shape import ClassesOutput, Shape


class TokenHead(nn.Module):
    """x (B, S, W) → logits (B, S, V): a product with the table of the embeddings, or with a table of its own. Families
    with the trait `transform` have norm(gelu(dense(x))) before it, and a bias after it (BERT)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        transform = shape.traits.transform
        self.dense = nn.Linear(shape.width, shape.width) if transform else None
        self.norm = make_norm(shape) if transform else None
        self.weight = None if shape.tied_embeddings else nn.Parameter(torch.zeros(shape.vocab, shape.width))
        self.bias = nn.Parameter(torch.zeros(shape.vocab)) if transform else None

    def forward(self, x: Tensor, valid: Tensor | None, embedding: Tensor) -> Tensor:
        if self.dense is not None and self.norm is not None:
            x = self.norm(F.gelu(self.dense(x)))
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


class ClassHead(nn.Module):
    """x (B, S, W) → (B, labels), from one token of each sequence: in an encoder the first one, through the pooler
    tanh(dense(x)) as in BERT; in a decoder the last one that is valid, without pooler and bias as in transformers'
    GPT2ForSequenceClassification."""

    def __init__(self, shape: Shape, labels: int) -> None:
        super().__init__()
        causal = shape.traits.causal
        self.pooler = None if causal else nn.Linear(shape.width, shape.width)
        self.linear = nn.Linear(shape.width, labels, bias=not causal)

    def forward(self, x: Tensor, valid: Tensor | None, embedding: Tensor) -> Tensor:
        if self.pooler is not None:
            return self.linear(torch.tanh(self.pooler(x[:, 0])))
        last = torch.full((len(x),), x.shape[1] - 1, device=x.device) if valid is None else valid.sum(1) - 1
        return self.linear(x[torch.arange(len(x), device=x.device), last])


class SpanHead(nn.Module):
    """x (B, S, W) → (B, S, 2): of each token, a number for the first and one for the last of a span."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.width, 2)

    def forward(self, x: Tensor, valid: Tensor | None, embedding: Tensor) -> Tensor:
        return self.linear(x)


Head = TokenHead | ClassHead | SpanHead
"""A head reads x (B, S, W) after the final norm, valid (B, S), False on padding, and the table of the embeddings
(V, W)."""


def make_head(shape: Shape) -> Head:
    """The output head of a shape."""
    if shape.output is None:
        return TokenHead(shape)
    return ClassHead(shape, shape.output.labels) if isinstance(shape.output, ClassesOutput) else SpanHead(shape)
