"""The attention kind `belief`: attention weights refined by one step of belief propagation (SAOBP, sections 4 and 6).

Each row of the attention matrix A is a variable over the keys. Row i sends row j the message e^λ + (1 − e^λ) A_ik about
key k (Eq. 9), and the belief of row j is A_jk times the product of all messages (Eq. 11). The paper's Algorithm 1
multiplies over the keys within a row instead, so that no row reaches another; Eq. 11 is computed here, without the
message of row j to itself (section 4.1; `own_message` keeps it).

    map: {kind: uniform, attention: {kind: belief, factor: high, strength: 0.2}}

No torch: what computes stands in the other files of this folder, which are imported when they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hybridlab.attention.kinds import AttentionKind, Counting, Standard
from hybridlab.errors import UserError, nearest

FACTORS = ("high", "low", "elemmul")
SENDERS = ("visible", "all", "leaking")
STRENGTH = 0.2
"""λ of the paper's smallest model; 0.08 and 0.05 in the larger ones (section 6)."""
MAX_STRENGTH = 10.0
"""The largest λ: e^λ stays far from the limits of fp32."""
NOT_REFINED = ("flex", "xformers")
"""Kernels that cannot compute attention whose weights are refined."""
EXPLICIT_LENGTH = {"decoder": 64, "encoder": 256}
"""Up to these lengths `auto` computes refined weights as whole matrices."""
WIDEST = 128
"""The widest heads of the kernel `triton`: wider tiles would not fit into the shared memory of every GPU."""


@dataclass(frozen=True)
class Belief(AttentionKind):
    """All tokens, with weights refined by messages between the rows of the attention matrix.

    factor: `high` favours keys that the other rows do not attend to (Eq. 7), `low` those that they do (Eq. 16);
    `elemmul` has no messages: its weights are the products A Aᵀ of the rows, normalised (Eq. 15). strength: λ, from 0
    (plain softmax attention) to 10; None for elemmul, which has none. send: which rows send messages. `visible`: in an
    encoder all rows, in a decoder the earlier ones. `all`: all rows, in an encoder only. `leaking`: all rows, in a
    decoder only, whose tokens then depend on later ones; a control for tests of causality. length_ref: None, or the
    number of keys at which λ holds: a row that sees n keys sends with λ · length_ref / n (at most 10), in a decoder
    with λ at most. detach_messages: no gradient flows through the messages. own_message: a row's own message counts
    too, as Eq. 11 is printed; section 4.1 and Algorithm 1 leave it out.
    """

    name, letter, colour = "belief", "b", "#009E73"
    products_are = "refinement"
    factor: str
    strength: float | None = None
    send: str = "visible"
    length_ref: int | None = None
    detach_messages: bool = False
    own_message: bool = False

    @property
    def apart(self) -> bool:
        return True

    def __post_init__(self) -> None:
        for name, allowed in (("factor", FACTORS), ("send", SENDERS)):
            if (value := getattr(self, name)) not in allowed:
                raise UserError(f"belief: {name} {value!r} is unknown; {nearest(str(value), list(allowed))}")
        if self.factor == "elemmul":
            for name, unset in (
                ("strength", None),
                ("length_ref", None),
                ("detach_messages", False),
                ("own_message", False),
            ):
                if (value := getattr(self, name)) != unset or type(value) is not type(unset):
                    raise UserError(
                        f"belief: {name} has no effect on factor elemmul, which sends no messages; leave it out"
                    )
        else:
            strength = STRENGTH if self.strength is None else self.strength
            if not (_is_number(strength, int, float) and 0 <= strength <= MAX_STRENGTH):
                raise UserError(f"belief: strength {strength!r} must be a number from 0 to {MAX_STRENGTH:g}")
            object.__setattr__(self, "strength", float(strength) + 0.0)  # 0 for −0
        reference = self.length_ref
        if reference is not None and not (_is_number(reference, int) and 1 <= reference < 2**31):
            raise UserError(f"belief: length_ref {reference!r} must be a whole number of 1 or more, or left out")
        for name in ("detach_messages", "own_message"):
            if not isinstance(value := getattr(self, name), bool):
                raise UserError(f"belief: {name} {value!r} must be true or false")

    @property
    def exponent(self) -> float:
        """λ for high, −λ for low; 0 for elemmul."""
        return (self.strength or 0.0) * (-1 if self.factor == "low" else 1)

    @property
    def sends_messages(self) -> bool:
        """Whether the weights are refined by messages between rows."""
        return self.factor != "elemmul"

    @property
    def in_triton(self) -> bool:
        """Whether the kernel `triton` computes it: messages between different rows alone."""
        return self.sends_messages and not self.own_message

    @property
    def sealed(self) -> Belief:
        return replace(self, send="visible") if self.send == "leaking" else self

    def to_json(self) -> dict[str, Any]:
        """own_message stands there only if it is true, so that the hashes of runs from before it stay."""
        return {name: value for name, value in super().to_json().items() if name != "own_message" or value}

    def check(self, causal: bool) -> None:
        if causal and self.send == "all":
            raise UserError(
                "belief: send: all lets the tokens of a decoder depend on later ones; write send: visible, "
                "or send: leaking for a model that leaks on purpose"
            )
        if not causal and self.send == "leaking":
            raise UserError("belief: send: leaking is a control for decoders; in an encoder write send: all")

    def keys(self, length: int, counting: Counting) -> float:
        return counting.explicit_keys(length)

    def products(self, length: int, counting: Counting) -> float:
        """A Aᵀ: for each pair of a query and a key, a product over the keys."""
        return counting.explicit_keys(length) * length if self.factor == "elemmul" else 0.0

    def sums(self, positions: int, head_width: int) -> int:
        return positions * (head_width + 1 if self.factor == "elemmul" else 1)

    def kernel_for(self, kernel: str, device: str, head_width: int) -> str:
        """`auto` is `triton` on a GPU, where `blocks` would launch some 580,000 kernels a layer (8 × 4,096 tokens, 16
        heads)."""
        if kernel != "auto" or device != "cuda" or not self.in_triton or head_width > WIDEST:
            return kernel
        from hybridlab.attention.belief.triton import can_be_built

        return "triton" if can_be_built() else kernel

    def own_kernel(self, kernel: str, length: int, causal: bool) -> str:
        """`eager` holds whole matrices, `blocks` some of their rows at a time, and `triton` tiles of them on a GPU. The
        other kernels have no weights to refine: `sdpa` and `banded` stand for `blocks`.

        Forward and backward pass of 2,048 tokens with 8 query heads of 16 took, on one CPU thread in fp32 (medians of 5
        interleaved, in ms, `eager` and `blocks`): for the factor high in a decoder 23 and 12 at 64 positions, 29 and 17
        at 128, 385 and 45 at 512; in an encoder 17 and 30 at 128, 39 and 54 at 256, 219 and 99 at 512; for elemmul in a
        decoder 13 and 25 at 64, 34 and 32 at 128, 462 and 80 at 512; in an encoder 35 and 29 at 128, 111 and 53 at 256.
        """
        if kernel in NOT_REFINED:
            raise UserError(
                f"kernel {kernel} cannot refine its weights, which heads of kind belief need; use auto, blocks or eager"
            )
        if kernel == "triton" and not self.in_triton:
            raise UserError(
                f"kernel triton computes weights that messages of other rows refine, not those of {self}; use auto, "
                "blocks or eager"
            )
        if kernel == "auto":
            return "eager" if length <= EXPLICIT_LENGTH["decoder" if causal else "encoder"] else "blocks"
        return kernel if kernel in ("eager", "triton") else "blocks"

    def attend(self, heads: Any) -> Any:
        from hybridlab.attention.belief.heads import attend

        return attend(self, heads)

    def slot(self, standard: Standard) -> Any:
        if self.send == "leaking":
            raise UserError(
                "cache: with send: leaking a token depends on later ones, so its state is never complete; "
                "write send: visible, or decode without a cache"
            )
        from hybridlab.attention.belief.heads import RefinedKeyValues

        return RefinedKeyValues(self, standard.serving, capacity=standard.capacity)

    def __str__(self) -> str:
        parts = [self.factor, *([] if self.strength is None else [f"{self.strength:g}"])]
        parts += [self.send] if self.send != "visible" else []
        parts += [f"length_ref {self.length_ref}"] if self.length_ref else []
        parts += ["detached"] * self.detach_messages + ["own message"] * self.own_message
        return f"belief({', '.join(parts)})"


def _is_number(value: Any, *types: type) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)
