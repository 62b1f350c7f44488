"""Attention kinds: how one head mixes tokens. A kind is one object that defines its name, letter, colour, window, cost,
cache slot and kernel; other code does not depend on which kind it has.

This file does not import torch: a kind computes with the heads that are passed to it (heads.py), and makes its slot in
the cache (slots.py). A new kind is one file (`register_kind` stands in registry.py):

    @register_kind
    @dataclass(frozen=True)
    class Sinks(AttentionKind):
        \"\"\"The first tokens and the last `width`.\"\"\"
        name, letter, colour = "sinks", "s", "#009E73"
        width: int
        ...

A configuration uses it with `map: {kind: uniform, attention: {kind: sinks, width: 8}}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

from hybridlab.arguments import plain
from hybridlab.errors import UserError


class Counting(Protocol):
    """The part of a FLOPs convention (models/ledger/flops.py) that a kind uses."""

    def keys(self, length: int, window: int | None) -> float:
        """Keys counted per query, in a softmax over the last `window` keys (None: all) of `length`."""
        ...

    def explicit_keys(self, length: int) -> float:
        """Keys counted per query, in an attention whose weights are computed as a matrix."""
        ...


class KindHeads(Protocol):
    """The heads of one kind in one visit (`HeadGroup` in heads.py); tensors are Any here, without torch."""

    @property
    def gate(self) -> Any:
        """(K,), what a controller passes to the heads of kinds that are being learned; None without one."""
        ...

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        ...

    def softmax(self, window: int | None, rule: Any = None, beside: bool = False) -> Any:
        """Softmax attention over the last `window` keys (None: all) by the chosen kernel, as `Attended`. beside: a
        window of heads that compute full attention too, with the kernel that adds least to its cost."""
        ...


class Standard(Protocol):
    """Makes the standard cache slot of a kind (`StandardSlot` in slots.py), and has what a slot of its own may need."""

    @property
    def capacity(self) -> int | None:
        """The most entries of a row; None if unknown."""
        ...

    @property
    def serving(self) -> Sequence[int]:
        """The KV head that each query head reads, among those of the kind in this visit."""
        ...

    def __call__(self, window: int | None, rule: Any = None) -> Any:
        """A slot with keys and values of the last `window` positions (None: all), in which a query does not see the
        keys that the rule excludes."""
        ...


@dataclass(frozen=True)
class AttentionKind:
    """How a head mixes tokens. By default one softmax over the last `window` keys (None: all of them).

    name: in JSON and on the command line. letter and colour: in drawings. products_are: the component of the cost that
    its `products` are.
    """

    name: ClassVar[str]
    letter: ClassVar[str]
    colour: ClassVar[str]
    products_are: ClassVar[str] = "products"

    @property
    def window(self) -> int | None:
        """Number of keys that a query sees, its own included; None for all."""
        return None

    @property
    def apart(self) -> bool:
        """Whether documents that share a row are computed as each of them alone: here, where the softmax of its window
        is all that it computes. A kind with an `attend` of its own says it itself."""
        return type(self).attend is AttentionKind.attend

    @property
    def mask(self) -> int | None:
        """ConSA's mask: 1 for a head that sees all tokens, 0 for a window, None while it is being learned."""
        return 1 if self.window is None else 0

    @property
    def softmaxes(self) -> tuple[int | None, ...]:
        """The window of every softmax that it computes. Each is counted in the cost and run by a kernel."""
        return (self.window,)

    @property
    def beside(self) -> tuple[int | None, ...]:
        """The windows among `softmaxes` for which `attend` asks with `beside`."""
        return ()

    def keys(self, length: int, counting: Counting) -> float:
        """Keys counted per query in a sequence of `length` tokens; times 4 · head width (q·k and weights·v) = FLOPs."""
        return sum(counting.keys(length, window) for window in self.softmaxes)

    def products(self, length: int, counting: Counting) -> float:
        """Multiply-accumulates per query, beside q·k and weights·v, in a sequence of `length` tokens. They stand in the
        cost under the name `products_are`."""
        return 0.0

    def cached(self, positions: int) -> int:
        """Number of positions whose keys and values the cache slot keeps after `positions` tokens."""
        return positions if self.window is None else min(self.window, positions)

    def sums(self, positions: int, head_width: int) -> int:
        """Numbers, in fp32, that the slot keeps for each query head beside keys and values after `positions` tokens."""
        return 0

    def kernel_for(self, kernel: str, device: str, head_width: int) -> str:
        """The kernel that `own_kernel` gets: this one, or what `auto` stands for on a type of device, such as cuda."""
        return kernel

    def own_kernel(self, kernel: str, length: int, causal: bool) -> str | None:
        """The kernel that computes sequences of `length` tokens where `kernel` is asked for, if the kind brings kernels
        of its own; None if its softmaxes run by those of kernels.py. UserError for one that cannot compute it. A model
        whose scores are capped (`shape.score_cap`) takes no such kind."""
        return None

    @property
    def sealed(self) -> AttentionKind:
        """The kind itself; for one that lets a decoder's tokens see later ones on purpose, the same without this."""
        return self

    def check(self, causal: bool) -> None:
        """UserError if heads of this kind cannot be in a decoder (causal) or an encoder."""

    def attend(self, heads: KindHeads) -> Any:
        """The attention of the heads of this kind; `heads.softmax(window, rule)` runs the chosen kernel."""
        return heads.softmax(self.window)

    def slot(self, standard: Standard) -> Any:
        """The cache slot for decoding: what `standard(window, rule)` makes, or one of its own."""
        return standard(self.window)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.name, **asdict(self)}

    def __str__(self) -> str:
        return self.name if self.window is None else f"{self.name}({self.window})"


def check_width(width: int) -> None:
    """Raise UserError for a window that is not a whole number of 1 or more."""
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width < 2**31:
        raise UserError(
            f"window {width!r}: a window counts the query itself, so it must be a whole number of 1 or more"
        )


BANDED = ("banded", "blocks")
"""The kernels that compute a window in blocks; the others compute all pairs."""
MIN_BLOCK = 16
"""Smallest block of these kernels; smaller ones take more time in calls than they save in keys."""


def band_block(width: int) -> int:
    """Number of queries in a block of these kernels; their FLOPs count needs it too.

    The keys of a block are the block itself and the one before it, so a block needs at least w − 1 queries.
    """
    return max(width, MIN_BLOCK)


@dataclass(frozen=True)
class Full(AttentionKind):
    """Every earlier token and the token itself; in an encoder every token."""

    name, letter, colour = "full", "F", "#D55E00"


@dataclass(frozen=True)
class Window(AttentionKind):
    """The last `width` tokens, the token itself included: keys i − width + 1 … i; in an encoder to i + width − 1."""

    name, letter, colour = "window", "w", "#56B4E9"
    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", plain(self.width))
        check_width(self.width)

    @property
    def window(self) -> int:
        return self.width


@dataclass(frozen=True)
class Mixed(Window):
    """z · full + (1 − z) · window, where z is a tensor from a controller; both are computed (ConSA, Eq. 3)."""

    name, letter, colour = "mixed", "m", "#CC79A7"

    @property
    def apart(self) -> bool:
        return True

    @property
    def mask(self) -> None:
        return None

    @property
    def softmaxes(self) -> tuple[int | None, ...]:
        return (None, self.width)

    @property
    def beside(self) -> tuple[int | None, ...]:
        return (self.width,)

    def cached(self, positions: int) -> int:
        return positions

    def attend(self, heads: KindHeads) -> Any:
        if heads.gate is None:
            raise ValueError("mixed heads need their gate z, which a controller passes to the forward pass")
        full, window = heads.softmax(None), heads.softmax(self.width, beside=True)
        z = heads.gate.repeat_interleave(heads.group).view(1, -1, 1, 1)
        weights = None if full.weights is None else z * full.weights + (1 - z) * window.weights
        z = z.to(full.out.dtype)
        return replace(full, out=z * full.out + (1 - z) * window.out, weights=weights)

    def slot(self, standard: Standard) -> Any:
        raise UserError("cache: mixed heads are still being learned; generate text after learn-masks is done")
