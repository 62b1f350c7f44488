"""A drawing of an architecture from its plan and map: the same rows for the terminal and for SVG.

Every row is one visit, in the order in which they run; every cell of it is a KV head with its kind of attention (blank
where the visit leaves it out), then the MLP where it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

from hybridlab.config.schema import Shape
from hybridlab.plan.attention_map import AttentionKind, AttentionMap, Full, Window
from hybridlab.plan.plan import Place, Plan

LETTERS = {"full": "F", "window": "w", "mixed": "m", "absent": "·"}
COLOURS = {"full": "#D55E00", "window": "#56B4E9", "mixed": "#CC79A7", "absent": "#F0F0F0"}
_MLP_COLOUR = "#BBBBBB"


@dataclass(frozen=True)
class DrawnVisit:
    """label: which layer and part. heads: kind of each KV head, `absent` where it does not run. mlp: whether it runs."""

    label: str
    heads: tuple[str, ...]
    mlp: bool


def rows(shape: Shape, plan: Plan, attention_map: AttentionMap) -> list[DrawnVisit]:
    drawn = []
    for place, visit in plan.places():
        running = set() if visit.part == "mlp" else {h // shape.group for h in visit.heads or range(shape.heads)}
        kinds = attention_map.layers[visit.layer]
        heads = tuple(_name(kind) if i in running else "absent" for i, kind in enumerate(kinds))
        drawn.append(DrawnVisit(_where(plan, place) + str(visit), heads, visit.part != "attention"))
    return drawn


def _where(plan: Plan, place: Place) -> str:
    """Which iteration of a loop, and at which resolution."""
    if len(place) == 1:
        return ""
    g = plan.visits[place[0]].chunks[place[1]]
    return f"loop {place[1] + 1} at {'1' if g == 1 else f'1/{g}'}: "


def _name(kind: AttentionKind) -> str:
    return "full" if isinstance(kind, Full) else "window" if isinstance(kind, Window) else "mixed"


def as_text(drawn: list[DrawnVisit]) -> str:
    """One line per visit, from the input down."""
    width = max((len(row.label) for row in drawn), default=0)
    lines = [
        f"{row.label:<{width}}  {''.join(LETTERS[h] for h in row.heads)}{'  MLP' if row.mlp else ''}" for row in drawn
    ]
    used = sorted({kind for row in drawn for kind in row.heads}, key=list(LETTERS).index)
    return "\n".join(
        [*lines, "(" + ", ".join(f"{LETTERS[kind]} {kind}" for kind in used) + "; one letter per KV head)"]
    )


def as_svg(drawn: list[DrawnVisit], title: str) -> str:
    """The same rows as an SVG, the input at the bottom, with a legend."""
    cell, left, top = 16, 10 + 7 * max((len(row.label) for row in drawn), default=0), 34
    heads = max((len(row.heads) for row in drawn), default=0)
    mlp_left = left + heads * cell + 6
    width, height = mlp_left + 60, top + len(drawn) * (cell + 4) + 34
    used = sorted({kind for row in drawn for kind in row.heads}, key=list(COLOURS).index)
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
            parts.append(f'<rect {box} fill="{COLOURS[kind]}"><title>KV head {j + 1}: {kind}</title></rect>')
        if row.mlp:
            parts.append(f'<rect x="{mlp_left}" y="{y}" width="40" height="{cell}" fill="{_MLP_COLOUR}"/>')
            parts.append(f'<text x="{mlp_left + 8}" y="{y + 12}">MLP</text>')
    for i, kind in enumerate(used):
        x, y = 8 + 90 * i, height - 20
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 17}" y="{y + 10}">{kind}</text>')
    return "\n".join([*parts, "</svg>", ""])
