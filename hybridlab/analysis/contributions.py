"""Where a looped head looks, pass by pass: C_j = A_Nj · ‖V_j‖ from the last token (SGT, section 5.4, figures 6 and 11).

hybridlab analyze RUN --probe contributions
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import visit_entropies
from hybridlab.models.decoder import Decoder, Taps
from hybridlab.plan.plan import Place, Plan


def head_loops(plan: Plan) -> dict[int, list[Place]]:
    """Layers with head loops → the places of their attention, the first pass first. Not inside loops over iterations,
    whose passes see other states each time."""
    places: dict[int, list[Place]] = {}
    for place, visit in plan.places():
        if visit.part != "mlp" and len(place) == 1:
            places.setdefault(visit.layer, []).append(place)
    return {layer: found for layer, found in places.items() if any(plan[place].heads for place in found[1:])}


def contributions(model: Decoder, tokens: Tensor, texts: list[str]) -> dict[str, Any] | None:
    """Of one sequence (S,) with its tokens as text: the layer that loops most, its most entropic head that loops.

    loops: C of every pass, each (S,). None where the plan has no head loops.
    """
    loops = head_loops(model.plan)
    if not loops:
        return None
    layer = max(loops, key=lambda found: (len(loops[found]), found))
    places = loops[layer]
    taps = _Inputs(set(places))
    with torch.no_grad():
        output = model(tokens[None], need="last_row", taps=taps)
    row = model.plan[places[0]].heads or tuple(range(model.shape.heads))
    first = dict(zip(row, visit_entropies(output)[places[0]][0].tolist(), strict=True))
    # A head that only runs in the loop has no first pass to compare with.
    looped = [head for head in model.plan[places[-1]].heads or row if head in first]
    if not looped:
        return None
    head = max(looped, key=first.__getitem__)
    passes = [place for place in places if model.plan[place].heads is None or head in model.plan[place].heads]
    rows = []
    for place in passes:
        running = model.plan[place].heads or tuple(range(model.shape.heads))
        weights = output.attention[place][0, running.index(head), 0]
        rows.append((weights * _value_norms(model, layer, head, taps.inputs[place][0])).tolist())
    return {
        "layer": layer,
        "head": head,
        "entropy": first[head],
        "tokens": texts,
        "loops": [[round(value, 6) for value in row] for row in rows],
    }


class _Inputs(Taps):
    """The inputs of chosen visits."""

    def __init__(self, places: set[Place]) -> None:
        self.places, self.inputs = places, {}

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        if place in self.places:
            self.inputs[place] = x


def _value_norms(model: Decoder, layer: int, head: int, x: Tensor) -> Tensor:
    """‖V_j‖ of the head at every position of x (S, W)."""
    block, width, group = model.blocks[layer], model.shape.head_width, model.shape.group
    with torch.no_grad():
        values = block.attention.v(block.attention_norm(x)).float()
    return values.view(len(x), -1, width)[:, head // group].norm(dim=-1)
