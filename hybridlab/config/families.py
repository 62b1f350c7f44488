"""How the model families differ, as data. Blocks use these traits, never the name of a family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["rmsnorm", "layernorm", "nonparametric-layernorm"]
FamilyName = Literal["llama", "qwen3", "neox", "gpt2", "bert"]

Biased = Literal["qkv", "output", "mlp"]
EVERY_BIAS: tuple[Biased, ...] = ("qkv", "output", "mlp")
"""The linear layers of a block: the projections to queries, keys and values, that of the heads' outputs, the MLP's."""
ObjectiveName = Literal["next-token", "masked-tokens"]


@dataclass(frozen=True)
class Traits:
    """Traits of a family.

    norm: `layernorm` has a weight and a bias, `nonparametric-layernorm` has neither (OLMo). biases: which linear layers
    of the blocks have one. gated: SwiGLU, otherwise GELU.
    gelu_tanh: use the tanh approximation of GELU, as GPT-2. parallel: attention and MLP of a block read the same input.
    causal: a token sees no later one; an encoder's tokens see all. post_norm: each branch of a block ends with its
    norm, on the sum with its input, instead of beginning with it; there is no final norm. embedding_norm: a norm after
    the sum of the embeddings. token_types: rows of the table of token types; 0 for none. transform: the output head has
    a dense layer, GELU and a norm before the product with its table, and a bias after it.
    """

    norm: Norm
    biases: tuple[Biased, ...]
    gated: bool
    qk_norm: bool
    learned_positions: bool
    parallel: bool
    rotary_fraction: float
    gelu_tanh: bool = False
    causal: bool = True
    post_norm: bool = False
    embedding_norm: bool = False
    token_types: int = 0
    transform: bool = False

    @property
    def objective(self) -> ObjectiveName:
        """What a model of the family is trained on: tokens that a later one may see are no task."""
        return "next-token" if self.causal else "masked-tokens"


FAMILIES: dict[str, Traits] = {
    "llama": Traits("rmsnorm", (), True, False, False, False, 1.0),
    "qwen3": Traits("rmsnorm", (), True, True, False, False, 1.0),
    "neox": Traits("layernorm", EVERY_BIAS, False, False, False, True, 0.25),
    "gpt2": Traits("layernorm", EVERY_BIAS, False, False, True, False, 0.0, gelu_tanh=True),
    "bert": Traits(
        *("layernorm", EVERY_BIAS, False, False, True, False, 0.0),
        causal=False,
        post_norm=True,
        embedding_norm=True,
        token_types=2,
        transform=True,
    ),
}
