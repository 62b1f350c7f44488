"""Parameter counts from a shape alone; tests hold them equal to the modules' own."""

from __future__ import annotations

from dataclasses import dataclass

from hybridlab.config.schema import Shape


@dataclass(frozen=True)
class ParameterCount:
    """All counts are numbers of scalars. `block_matrices` is P of CONVENTIONS: blocks without norms."""

    embedding: int
    head: int
    block_matrices: int
    norms: int

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.block_matrices + self.norms


def attention_matrices(shape: Shape) -> int:
    """q, k, v and o of one layer."""
    return 2 * shape.width * shape.head_width * (shape.heads + shape.kv_heads)


def mlp_matrices(shape: Shape) -> int:
    """gate, up and down of one layer."""
    return 3 * shape.width * shape.ffn_width


def count_parameters(shape: Shape) -> ParameterCount:
    table = shape.vocab * shape.width
    qk_norms = 2 * shape.head_width if shape.family == "qwen3" else 0
    return ParameterCount(
        embedding=table,
        head=0 if shape.tied_embeddings else table,
        block_matrices=shape.layers * (attention_matrices(shape) + mlp_matrices(shape)),
        norms=shape.layers * (2 * shape.width + qk_norms) + shape.width,
    )
