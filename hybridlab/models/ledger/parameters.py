"""Parameter counts and KV-cache bytes from a shape and a plan, without building the model."""

from __future__ import annotations

from dataclasses import dataclass

from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import ClassesOutput, Norm, Shape
from hybridlab.plan.structure import Structure


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of scalars. embedding: the tables of tokens, positions and token types. head: all of the output head.
    block_matrices: blocks without norms and biases. norms_and_biases: those of the blocks, with the norm of the
    embeddings and the final norm. recurrence: scorers, allocators and routers of loops."""

    embedding: int
    head: int
    block_matrices: int
    norms_and_biases: int
    recurrence: int = 0

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.block_matrices + self.norms_and_biases + self.recurrence


def attention_matrices(shape: Shape) -> int:
    """q, k, v and o of one layer, without biases."""
    return 2 * shape.width * shape.head_width * (shape.heads + shape.kv_heads)


def mlp_matrices(shape: Shape) -> int:
    """gate (if the family has one), up and down of one layer, without biases."""
    return (3 if shape.traits.gated else 2) * shape.width * shape.ffn_width


_NORM_TENSORS: dict[Norm, int] = {"rmsnorm": 1, "layernorm": 2, "nonparametric-layernorm": 0}


def recurrence_parameters(loop: Loop, width: int, printed: bool = False) -> int:
    """Scorers (1 output), allocators (g outputs, with bias) and routers (with bias).

    printed: count as SpiralFormer's table 1 does for loops with chunks: a bias in the scorers, which softmax cancels,
    and scorers and allocators also at full resolution, where they have no effect. Models here have neither.
    """
    outputs = sum(loop.router_sizes) * (width + 1)
    printed = printed and any(g > 1 for g in loop.chunks)
    for g in loop.chunks:
        if g > 1 or printed:
            outputs += (width + printed) * (loop.downscale == "aggregate")
            outputs += g * (width + 1) * (loop.upscale == "allocate")
    return outputs


def head_matrices(shape: Shape) -> dict[str, int]:
    """The matrices of the output head, without biases, by where they run: `tokens` on each token, `sequence` once."""
    transform = shape.width**2 if shape.traits.transform else 0
    match shape.output:
        case None:
            return {"tokens": transform + shape.vocab * shape.width}
        case ClassesOutput(labels=labels):
            pooler = 0 if shape.traits.causal else shape.width**2
            return {"sequence": pooler + labels * shape.width}
    return {"tokens": 2 * shape.width}


def head_parameters(shape: Shape, norm: int) -> int:
    """All scalars of the output head; a tied one shares its table with the embedding. norm: those of a norm."""
    matrices = sum(head_matrices(shape).values())
    match shape.output:
        case None:
            shared = shape.vocab * shape.width if shape.tied_embeddings else 0
            return matrices - shared + (shape.width + norm + shape.vocab if shape.traits.transform else 0)
        case ClassesOutput(labels=labels):
            return matrices + (0 if shape.traits.causal else shape.width + labels)
    return matrices + 2


def count_parameters(shape: Shape, plan: Plan | None = None) -> ParameterCount:
    """Parameters of a shape, and of the loops of a plan if one is given."""
    traits = shape.traits
    table = shape.vocab * shape.width
    norm = shape.width * _NORM_TENSORS[traits.norm]
    norms = 4 if traits.norms == "both" else 2
    normed = {None: 0, "head": 2, "all": shape.heads + shape.kv_heads}[traits.qk_norm]
    sizes = {
        "qkv": shape.head_width * (shape.heads + 2 * shape.kv_heads),
        "output": shape.width,
        "mlp": shape.ffn_width * (2 if traits.gated else 1) + shape.width,
    }
    biases = sum(sizes[name] for name in traits.biases)
    outer_norms = traits.embedding_norm + (not traits.post_norm)
    return ParameterCount(
        embedding=table + ((shape.max_positions or 0) + traits.token_types) * shape.width,
        head=head_parameters(shape, norm),
        block_matrices=shape.layers * (attention_matrices(shape) + mlp_matrices(shape)),
        norms_and_biases=shape.layers * (norms * norm + normed * shape.head_width + biases) + outer_norms * norm,
        recurrence=sum(recurrence_parameters(loop, shape.width) for loop in (plan.loops.values() if plan else ())),
    )


BYTES_PER_VALUE = {"bf16": 2, "fp16": 2, "fp32": 4}


def kv_bytes(structure: Structure, context: int, dtype: str = "bf16") -> int:
    """Bytes of keys and values of one sequence after `context` tokens, and of the sums that some kinds keep in fp32.

    A full head stores every position, a window head the last w (ConSA, section 3).
    Every attention visit has its own cache; in a loop over chunks it has one entry per chunk.
    """
    positions, sums, width = 0, 0, structure.shape.head_width
    for place, visit in structure.attention_places():
        entries, kinds = structure.plan.tokens_at(place, context), structure.kinds(visit)
        positions += sum(kind.cached(entries) for kind in kinds)
        sums += sum(kinds[kv].sums(entries, width) for kv in structure.heads(visit).serving)
    return 2 * positions * width * BYTES_PER_VALUE[dtype] + sums * BYTES_PER_VALUE["fp32"]
