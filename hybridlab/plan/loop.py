"""A recurrence over resolutions: the same layers run repeatedly on chunks of the sequence (SpiralFormer, section 2).

Iteration t aggregates chunks of g_t tokens, runs its body on one latent per chunk, distributes the result over the
tokens and shifts it to the right, so that no token depends on a later one. With chunk sizes of 1 this is the ordinary
full-resolution loop (LoopedFormer); with one body per iteration it is a recurrence without sharing (MeSH's baseline).

    python -c "from hybridlab import Loop, Visit; print(Loop(bodies=((Visit(1),),), chunks=(4, 2, 1)))"
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from hybridlab.arguments import plain
from hybridlab.errors import UserError
from hybridlab.plan.visit import Visit, is_whole

Topology = Literal["direct", "anchor", "mesh"]
Downscale = Literal["aggregate", "mean"]
Upscale = Literal["allocate", "uniform"]
Positions = Literal["chunk", "token"]
RouterInit = Literal["uniform", "newest", "anchor"]
SCRATCH_SLOTS = 2
"""MeSH has T + 3 slots for T + 1 states."""
PerIteration = int | str | tuple[int | str, ...]
"""One value for all iterations, or a tuple with one per iteration."""
_WORDS = {"offset": ("half", "zero"), "shift": ("overlap", "parallel")}
"""The values of these settings that are not numbers."""


@dataclass(frozen=True)
class Loop:
    """T = len(chunks) iterations over one shared body, or with one body per iteration.

    chunks: g_t, the number of tokens in a chunk; 1 is full resolution.
    topology: how an iteration's update ũ becomes the next state h: `direct` h ← ũ; `anchor` h ← ũ + h(0) (Eq. 5);
        `mesh` a learned weighted sum of all earlier updates (appendix B). With `direct` and chunks, the first tokens
        get no update, so their state is 0; the norm of 0 has a very large gradient, and deep models diverge.
    offset: ω_t, the shift of the chunk borders: `half` ⌊g/2⌋, `zero`, or a number below every chunk size; or a tuple
        with one of these per iteration.
    shift: s_t, the shift of updates to the right: `overlap` g − 1, `parallel` g, or a number of at least g − 1; or a
        tuple.
    downscale: `aggregate` learned weights in each chunk (Eq. 17, 18), or `mean` (Eq. 16).
    upscale: `allocate` learned shares for the tokens of a chunk (Eq. 21), or `uniform` (Eq. 20); both with gain √g.
    positions: rotary positions of latents, `chunk` 0, 1, 2 … or `token` 0, g, 2g …
    router_init: how the routers of `mesh` begin, a choice that the paper does not state: `uniform` (None means the
        same) all slots alike, `newest` each read takes the last update, `anchor` the last update and the state before
        the loop in equal parts. See `router_biases` in models/recurrence.py.
    literal: the paper's ⌊L / g⌋ chunks (Eq. 13) and division by g (Eq. 16), instead of only complete chunks and
        division by the number of tokens in each. Outputs can then depend on the total length, so that decoding
        with a cache is not possible.

    Chunks are counted from the start of a row, so in training text they cross document borders, as in the paper.
    UserError for settings that do not fit each other.

        hybridlab.Loop(bodies=((hybridlab.Visit(2), hybridlab.Visit(3)),), chunks=(4, 2, 1), topology="mesh")
    """

    bodies: tuple[tuple[Visit, ...], ...]
    chunks: tuple[int, ...]
    topology: Topology = "direct"
    offset: PerIteration = "half"
    shift: PerIteration = "overlap"
    downscale: Downscale = "aggregate"
    upscale: Upscale = "allocate"
    positions: Positions = "chunk"
    literal: bool = False
    router_init: RouterInit | None = None

    def __post_init__(self) -> None:
        nested = isinstance(self.bodies, list | tuple) and all(isinstance(body, list | tuple) for body in self.bodies)
        bodies = tuple(tuple(body) for body in self.bodies) if nested else ()
        if not nested or not all(isinstance(visit, Visit) for body in bodies for visit in body):
            raise UserError("loop: a body is a sequence of visits; a loop cannot contain another loop")
        object.__setattr__(self, "bodies", bodies)
        for name in ("chunks", "offset", "shift"):
            value = plain(getattr(self, name))
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        if (
            not isinstance(self.chunks, tuple)
            or not self.chunks
            or not all(is_whole(g) and g >= 1 for g in self.chunks)
        ):
            raise UserError(f"loop: chunks {self.chunks} must be whole numbers of 1 or more; a resolution 1/8 is 8")
        if len(bodies) not in (1, len(self.chunks)):
            raise UserError(
                f"loop: {len(bodies)} bodies for {len(self.chunks)} iterations; give one body, or one per iteration"
            )
        choices = {"topology": Topology, "downscale": Downscale, "upscale": Upscale, "positions": Positions}
        for name, choice in (choices | ({} if self.router_init is None else {"router_init": RouterInit})).items():
            known = get_args(choice)
            if getattr(self, name) not in known:
                raise UserError(f"loop: {name} {getattr(self, name)!r} is unknown; use one of {', '.join(known)}")
        if self.router_init is not None and self.topology != "mesh":
            raise UserError(
                f"loop: router_init {self.router_init} has no effect with topology {self.topology}, which has no "
                "routers; remove it, or set topology: mesh"
            )
        if not isinstance(self.literal, bool):
            raise UserError(f"loop: literal {self.literal!r} must be true or false")
        for t, g in enumerate(self.chunks):
            if not 0 <= self.offset_of(t) < g:
                offset = self._at("offset", t)
                raise UserError(f"loop: offset {offset} is not below the chunk size {g} of iteration {t + 1}")
            if self.shift_of(t) < g - 1:
                shift = self._at("shift", t)
                raise UserError(
                    f"loop: shift {shift} lets chunks of {g} tokens (iteration {t + 1}) see their own future; "
                    f"use overlap, parallel or {g - 1} and more"
                )

    def _at(self, name: str, t: int) -> int | str:
        """The value of a setting in iteration t."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            if len(value) != len(self.chunks):
                raise UserError(f"loop: {len(value)} values of {name} for {len(self.chunks)} iterations")
            value = value[t]
        words = _WORDS[name]
        if value not in words and not (is_whole(value) and value >= 0):
            raise UserError(f"loop: {name} {value!r} must be {words[0]}, {words[1]} or a whole number")
        return value

    @property
    def iterations(self) -> int:
        return len(self.chunks)

    def body(self, t: int) -> tuple[Visit, ...]:
        return self.bodies[t if len(self.bodies) > 1 else 0]

    def offset_of(self, t: int) -> int:
        """ω_t; 0 at full resolution, which has no chunk borders."""
        g, offset = self.chunks[t], self._at("offset", t)
        if g == 1 or offset == "zero":
            return 0
        return g // 2 if isinstance(offset, str) else offset

    def shift_of(self, t: int) -> int:
        """s_t. At full resolution, `overlap` and `parallel` mean 0 (appendix E); a number is used as it is."""
        g, shift = self.chunks[t], self._at("shift", t)
        if isinstance(shift, str):
            return 0 if g == 1 else g - 1 if shift == "overlap" else g
        return shift

    @property
    def crosses_documents(self) -> bool:
        """Whether it carries states from one document of a row into the next: over chunks, or with a shift."""
        return any(g > 1 or self.shift_of(t) for t, g in enumerate(self.chunks))

    def num_chunks(self, t: int, length: int) -> int:
        """Number of latents of iteration t for `length` tokens: complete chunks, or the paper's ⌊L / g⌋."""
        g = self.chunks[t]
        return length // g if self.literal else (length + self.offset_of(t)) // g

    def triggers(self, t: int, position: int) -> bool:
        """Whether the token at this position completes a chunk, so that the body runs in decoding (Eq. 31)."""
        g = self.chunks[t]
        return (position + self.offset_of(t)) % g == g - 1

    @property
    def router_sizes(self) -> list[int]:
        """Outputs of each router of MeSH: one to write and one to read, before the loop and in each iteration."""
        slots, pairs = self.iterations + 1 + SCRATCH_SLOTS, self.iterations + 1
        return [slots] * (2 * pairs) if self.topology == "mesh" else []

    def to_json(self) -> dict[str, Any]:
        """All settings; router_init only where it was set, so that plans without it are written as before."""
        data = asdict(self)
        return data if self.router_init else {name: data[name] for name in data if name != "router_init"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Loop:
        bodies = tuple(tuple(visit_from_json(v) for v in body) for body in data["bodies"])
        return cls(**{**data, "bodies": bodies, "chunks": tuple(data["chunks"])})

    def __str__(self) -> str:
        bodies = [", ".join(str(visit) for visit in body) for body in self.bodies]
        what = f"[{bodies[0]}]" if len(bodies) == 1 else " then ".join(f"[{body}]" for body in bodies)
        resolutions = ", ".join("1" if g == 1 else f"1/{g}" for g in self.chunks)
        return f"{what} × {{{resolutions}}} {self.topology}"


def visit_from_json(data: dict[str, Any]) -> Visit:
    return Visit(data["layer"], data["part"], None if data["heads"] is None else tuple(data["heads"]))
