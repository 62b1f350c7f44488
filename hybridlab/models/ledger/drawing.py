"""A drawing of an architecture from its plan and map, as text or SVG.

Each row is one visit, in the order of execution: one cell per KV head with its kind of attention (or empty if the head
does not run), then the MLP if it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.plan.structure import Structure

ABSENT = "absent"
_ABSENT_LETTER, _ABSENT_COLOUR = "·", "#F0F0F0"
_MLP_COLOUR = "#BBBBBB"


@dataclass(frozen=True)
class DrawnVisit:
    """label: layer and part. heads: kind of each KV head, `absent` if it does not run. mlp: whether the MLP runs."""

    label: str
    heads: tuple[str, ...]
    mlp: bool


def rows(structure: Structure) -> list[DrawnVisit]:
    """The rows of the drawing, from the input on."""
    drawn = []
    for place, visit in structure.plan.places():
        running = {}
        if visit.part != "mlp":
            running = dict(zip(structure.heads(visit).kv, structure.kinds(visit), strict=True))
        heads = tuple(running[i].name if i in running else ABSENT for i in range(structure.shape.kv_heads))
        g = structure.plan.chunk_at(place)
        loop = f"loop {place[1] + 1} at {'1' if g == 1 else f'1/{g}'}: " if len(place) > 1 else ""
        drawn.append(DrawnVisit(f"{loop}{visit}", heads, visit.part != "attention"))
    return drawn


def letter(kind: str) -> str:
    """The letter of a kind in drawings."""
    return _ABSENT_LETTER if kind == ABSENT else ATTENTION_KINDS.get(kind).letter


def colour(kind: str) -> str:
    """The colour of a kind in drawings."""
    return _ABSENT_COLOUR if kind == ABSENT else ATTENTION_KINDS.get(kind).colour


def _used(drawn: list[DrawnVisit]) -> list[str]:
    """The kinds that occur, in the order of the registry; `absent` last."""
    order = [*ATTENTION_KINDS.names(installed=False), ABSENT]
    return sorted({kind for row in drawn for kind in row.heads}, key=order.index)


def as_text(drawn: list[DrawnVisit]) -> str:
    """One line per visit, the input at the top."""
    width = max((len(row.label) for row in drawn), default=0)
    lines = [
        f"{row.label:<{width}}  {''.join(letter(h) for h in row.heads)}{'  MLP' if row.mlp else ''}" for row in drawn
    ]
    used = _used(drawn)
    return "\n".join([*lines, "(" + ", ".join(f"{letter(kind)} {kind}" for kind in used) + "; one letter per KV head)"])


def as_svg(drawn: list[DrawnVisit], title: str) -> str:
    """The same rows as an SVG, the input at the bottom, with a legend."""
    cell, left, top = 16, 10 + 7 * max((len(row.label) for row in drawn), default=0), 34
    heads = max((len(row.heads) for row in drawn), default=0)
    mlp_left = left + heads * cell + 6
    width, height = mlp_left + 60, top + len(drawn) * (cell + 4) + 34
    used = _used(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 90 * len(used) + 20)}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="18" font-size="13">{escape(title)}</text>',
    ]
    for i, row in enumerate(reversed(drawn)):
        y = top + i * (cell + 4)
        parts.append(f'<text x="8" y="{y + 12}">{escape(row.label)}</text>')
        for j, kind in enumerate(row.heads):
            box = f'x="{left + j * cell}" y="{y}" width="{cell - 2}" height="{cell}"'
            parts.append(f'<rect {box} fill="{colour(kind)}"><title>KV head {j + 1}: {kind}</title></rect>')
        if row.mlp:
            parts.append(f'<rect x="{mlp_left}" y="{y}" width="40" height="{cell}" fill="{_MLP_COLOUR}"/>')
            parts.append(f'<text x="{mlp_left + 8}" y="{y + 12}">MLP</text>')
    for i, kind in enumerate(used):
        x, y = 8 + 90 * i, height - 20
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour(kind)}"/>')
        parts.append(f'<text x="{x + 17}" y="{y + 10}">{kind}</text>')
    return "\n".join([*parts, "</svg>", ""])
