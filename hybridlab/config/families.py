"""How the model families differ, as data. Blocks use these traits, never the name of a family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["rmsnorm", "layernorm"]
FamilyName = Literal["llama", "qwen3", "neox", "gpt2"]


@dataclass(frozen=True)
class Traits:
    """Traits of a family.

    norm: `layernorm` has a bias. bias: whether the linear layers of the blocks have one. gated: SwiGLU, otherwise GELU.
    gelu_tanh: use the tanh approximation of GELU, as GPT-2. parallel: attention and MLP of a block read the same input.
    causal: a token sees no later one; an encoder's tokens see all.
    """

    norm: Norm
    bias: bool
    gated: bool
    qk_norm: bool
    learned_positions: bool
    parallel: bool
    rotary_fraction: float
    gelu_tanh: bool = False
    causal: bool = True


FAMILIES: dict[str, Traits] = {
    "llama": Traits("rmsnorm", False, True, False, False, False, 1.0),
    "qwen3": Traits("rmsnorm", False, True, True, False, False, 1.0),
    "neox": Traits("layernorm", True, False, False, False, True, 0.25),
    "gpt2": Traits("layernorm", True, False, False, True, False, 0.0, gelu_tanh=True),
}
