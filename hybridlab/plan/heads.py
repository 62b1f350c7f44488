"""Names of query heads as in the papers: L1-H3 is head 3 of layer 1, both counted from 1.

parse_heads("L1-H3,L2-H5", 8, 8)    # [(0, 2), (1, 4)]
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hybridlab.errors import UserError
from hybridlab.plan.plan import Plan

Head = tuple[int, int]
"""Layer and query head, both counted from 0."""
_NAME = re.compile(r"[Ll](\d+)-?[Hh](\d+)")


def head_name(head: Head) -> str:
    """L1-H3 for (0, 2)."""
    return f"L{head[0] + 1}-H{head[1] + 1}"


def parse_heads(text: str, layers: int, heads: int) -> list[Head]:
    """The heads of a list of names. UserError for what is no name, for a head that a model of so many layers and heads
    does not have, and for one that is named twice."""
    found: list[Head] = []
    for name in (part.strip() for part in text.split(",")):
        match = _NAME.fullmatch(name)
        if match is None:
            raise UserError(f"{name!r} is no name of a head; write L1-H3 for head 3 of layer 1, both counted from 1")
        layer, head = int(match[1]) - 1, int(match[2]) - 1
        if not (0 <= layer < layers and 0 <= head < heads):
            raise UserError(f"{name}: the model has the layers L1 to L{layers}, each with the heads H1 to H{heads}")
        if (layer, head) in found:
            raise UserError(f"{name} is named twice; leave one out")
        found.append((layer, head))
    return found


def without_heads(plan: Plan, dropped: Iterable[Head], num_heads: int) -> Plan:
    """The plan without these query heads, in all visits of their layers."""
    for layer, head in dropped:
        plan = plan.drop_heads(layer, [head], num_heads)
    return plan
