"""Parameter counts from a shape alone; tests hold them equal to the modules' own."""

from __future__ import annotations

from dataclasses import dataclass

from hybridlab.config.schema import Shape


@dataclass(frozen=True)
class ParameterCount:
    """All counts are numbers of scalars. `block_matrices` is P of CONVENTIONS: blocks without norms and biases."""

    embedding: int
    head: int
    block_matrices: int
    norms_and_biases: int

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.block_matrices + self.norms_and_biases


def attention_matrices(shape: Shape) -> int:
    """q, k, v and o of one layer, without biases."""
    return 2 * shape.width * shape.head_width * (shape.heads + shape.kv_heads)


def mlp_matrices(shape: Shape) -> int:
    """gate (where there is one), up and down of one layer, without biases."""
    return (3 if shape.traits.gated else 2) * shape.width * shape.ffn_width


def count_parameters(shape: Shape) -> ParameterCount:
    traits = shape.traits
    table = shape.vocab * shape.width
    norm = shape.width * (2 if traits.norm == "layernorm" else 1)
    qk_norms = 2 * shape.head_width if traits.qk_norm else 0
    attention_biases = shape.head_width * (shape.heads + 2 * shape.kv_heads) + shape.width
    mlp_biases = shape.ffn_width * (2 if traits.gated else 1) + shape.width
    biases = attention_biases + mlp_biases if traits.bias else 0
    return ParameterCount(
        embedding=table + (shape.max_positions or 0) * shape.width,
        head=0 if shape.tied_embeddings else table,
        block_matrices=shape.layers * (attention_matrices(shape) + mlp_matrices(shape)),
        norms_and_biases=shape.layers * (2 * norm + qk_norms + biases) + norm,
    )
