"""A recurrence over resolutions: the same layers again and again, on chunks of the sequence (SpiralFormer, section 2).

Iteration t gathers the sequence into chunks of g_t tokens, runs its body on one latent per chunk, spreads the result
over the tokens and shifts it to the right, so that no token hears of a later one. Chunk sizes of 1 are the ordinary
full-resolution loop (LoopedFormer); a body for each iteration is a recurrence without sharing (MeSH's baseline).

    python -c "from hybridlab import Loop, Visit; print(Loop(bodies=((Visit(1),),), chunks=(4, 2, 1)))"
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hybridlab.errors import UserError
from hybridlab.plan.visit import Visit, is_whole

TOPOLOGIES = ("direct", "anchor", "mesh")
DOWNSCALES = ("aggregate", "mean")
UPSCALES = ("allocate", "uniform")
POSITIONS = ("chunk", "token")


@dataclass(frozen=True)
class Loop:
    """T = len(chunks) iterations over one shared body, or over one body each.

    chunks: g_t, tokens in a chunk, 1 for full resolution.
    topology: how an iteration's update ũ becomes the next state h: `direct` h ← ũ; `anchor` h ← ũ + h(0) (Eq. 5);
        `mesh` a read from all earlier updates (appendix B). Under `direct` over chunks the first tokens, which no
        update has reached, are left with a state of 0, whose norm has an enormous gradient: deep models diverge.
    offset: ω_t, by which chunk borders are shifted: `half` ⌊g/2⌋, `zero`, or a number below every chunk size; or a
        tuple with one of them for each iteration.
    shift: s_t, by which updates are moved to the right: `overlap` g − 1, `parallel` g, or a number of at least g − 1;
        or a tuple.
    downscale: `aggregate` learned weights in each chunk (Eq. 17, 18), or `mean` (Eq. 16).
    upscale: `allocate` learned shares for the tokens of a chunk (Eq. 21), or `uniform` (Eq. 20); both with gain √g.
    positions: rotary positions of latents, `chunk` 0, 1, 2 … or `token` 0, g, 2g …
    Chunks count from the start of a row: in training text they run across the borders of documents, as in the paper.
    literal: the paper's ⌊L / g⌋ chunks (Eq. 13) and division by g (Eq. 16) instead of the complete chunks and the
        tokens that are there; then an output can depend on the total length, and no cache can be kept.
    """

    bodies: tuple[tuple[Visit, ...], ...]
    chunks: tuple[int, ...]
    topology: str = "direct"
    offset: str | int | tuple[str | int, ...] = "half"
    shift: str | int | tuple[str | int, ...] = "overlap"
    downscale: str = "aggregate"
    upscale: str = "allocate"
    positions: str = "chunk"
    literal: bool = False

    def __post_init__(self) -> None:
        bodies = tuple(tuple(body) for body in self.bodies)
        if not all(isinstance(visit, Visit) for body in bodies for visit in body):
            raise UserError("loop: a body is a sequence of visits; loops do not stand inside loops")
        object.__setattr__(self, "bodies", bodies)
        for name in ("chunks", "offset", "shift"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        if not self.chunks or not all(is_whole(g) and g >= 1 for g in self.chunks):
            raise UserError(f"loop: chunks {self.chunks} must be whole numbers of 1 or more; a resolution 1/8 is 8")
        if len(bodies) not in (1, len(self.chunks)):
            raise UserError(f"loop: {len(bodies)} bodies for {len(self.chunks)} iterations; give one, or one for each")
        for name, known in (
            ("topology", TOPOLOGIES),
            ("downscale", DOWNSCALES),
            ("upscale", UPSCALES),
            ("positions", POSITIONS),
        ):
            if getattr(self, name) not in known:
                raise UserError(f"loop: {name} {getattr(self, name)!r} is unknown; use one of {', '.join(known)}")
        if not isinstance(self.literal, bool):
            raise UserError(f"loop: literal {self.literal!r} must be true or false")
        for t, g in enumerate(self.chunks):
            self._check_offset(t, g)
            self._check_shift(t, g)

    def _check_offset(self, t: int, g: int) -> None:
        offset = self._at("offset", t, ("half", "zero"))
        if g > 1 and not 0 <= self.offset_of(t) < g:
            raise UserError(f"loop: offset {offset} is not below the chunk size {g} of iteration {t + 1}")

    def _check_shift(self, t: int, g: int) -> None:
        shift = self._at("shift", t, ("overlap", "parallel"))
        if self.shift_of(t) < g - 1:
            raise UserError(
                f"loop: shift {shift} lets chunks of {g} tokens (iteration {t + 1}) see their own future; "
                f"use overlap, parallel or {g - 1} and more"
            )

    def _at(self, name: str, t: int, words: tuple[str, str]) -> str | int:
        """A setting of iteration t: one for all, or one for each."""
        value = getattr(self, name)
        if isinstance(value, tuple):
            if len(value) != len(self.chunks):
                raise UserError(f"loop: {len(value)} values of {name} for {len(self.chunks)} iterations")
            value = value[t]
        if value not in words and not (is_whole(value) and value >= 0):
            raise UserError(f"loop: {name} {value!r} must be {words[0]}, {words[1]} or a whole number")
        return value

    @property
    def iterations(self) -> int:
        return len(self.chunks)

    def body(self, t: int) -> tuple[Visit, ...]:
        return self.bodies[t if len(self.bodies) > 1 else 0]

    def offset_of(self, t: int) -> int:
        """ω_t; 0 at full resolution, where there is no border to shift."""
        g, offset = self.chunks[t], self._at("offset", t, ("half", "zero"))
        if g == 1 or offset == "zero":
            return 0
        return g // 2 if offset == "half" else offset

    def shift_of(self, t: int) -> int:
        """s_t. A word leaves full resolution as it is, on the critical path of the token (appendix E); a number holds
        there too."""
        g, shift = self.chunks[t], self._at("shift", t, ("overlap", "parallel"))
        if isinstance(shift, str):
            return 0 if g == 1 else g - 1 if shift == "overlap" else g
        return shift

    def num_chunks(self, t: int, length: int) -> int:
        """Latents of iteration t for so many tokens: the complete chunks, or the paper's ⌊L / g⌋."""
        g = self.chunks[t]
        return length // g if self.literal else (length + self.offset_of(t)) // g

    def triggers(self, t: int, position: int) -> bool:
        """Whether the token at a position completes a chunk, so that the body runs there in decoding (Eq. 31)."""
        g = self.chunks[t]
        return (position + self.offset_of(t)) % g == g - 1

    def signature(self) -> tuple[Any, ...]:
        """What its own parameters depend on."""
        learned = [g if g > 1 else 1 for g in self.chunks]
        return (self.topology == "mesh", self.downscale, self.upscale, *learned)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

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
