"""What the later layers, and the output, lose when one layer or one of its sublayers adds nothing at some positions.

Csordás et al. (2025) and depth-grown models, appendix B ("Intervention protocols"). Everything is in the precision of
the weights, fp32 for an opened model. The unit is the layer: its contribution is what a visit adds to its input, and
where a plan visits a layer more than once (head loops, recurrences), all its visits are skipped together, and the
largest change over its visits counts.

Last, what each sublayer adds beside the stream (section 4.3, figures 4, 23 and 24).

In a loop over chunks a latent counts as erased, or as measured, if all tokens of its chunk are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.models.decoder import Transformer
from hybridlab.models.recurrence import chunked
from hybridlab.models.taps import Taps
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Place, Visit

PARTS = ("layer", "attention", "mlp")
"""What a skip leaves out: a layer replaced by its input, or one sublayer that adds nothing. Without its attention, the
MLP of a serial block reads the stream without it."""
SMALLEST = 1e-6
"""Lower limit of a norm that is divided by."""
NOTHING = float("-inf")
"""A change that no position has measured."""


@dataclass(frozen=True)
class Positions:
    """erased, measured: (B, S) bool, where a contribution is left out, and where changes are read."""

    erased: Tensor
    measured: Tensor

    @classmethod
    def current(cls, length: int, device: torch.device) -> Positions:
        """All tokens but the first erased, and all measured: one row (1, S)."""
        number = torch.arange(length, device=device)[None]
        return cls(number > 0, number >= 0)

    @classmethod
    def future(cls, boundaries: Iterable[int], length: int, device: torch.device) -> Positions:
        """A row for each boundary t: the tokens 1 … t − 1 erased, those from t on measured."""
        number = torch.arange(length, device=device)[None]
        first = torch.tensor(list(boundaries), device=device)[:, None]
        return cls((number > 0) & (number < first), number >= first)

    def at(self, plan: Plan, place: Place) -> Positions:
        """The same for the positions of a visit, which are chunks of tokens in a loop over chunks."""
        item = plan.visits[place[0]]
        if not isinstance(item, Loop) or item.chunks[place[1]] == 1:
            return self
        return Positions(_per_chunk(self.erased, item, place[1]), _per_chunk(self.measured, item, place[1]))


def _per_chunk(mask: Tensor, loop: Loop, t: int) -> Tensor:
    """(B, S) → (B, n): True for the chunks of iteration t of which all tokens are True."""
    count = loop.num_chunks(t, mask.shape[1])
    grid, filled = chunked(mask[..., None], count, loop.chunks[t], loop.offset_of(t))
    return (grid[..., 0] | ~filled).all(2)


@dataclass(frozen=True)
class Effect:
    """changes (B, L): of each row the largest ‖Δ′ − Δ‖ / ‖Δ‖ of each layer's contribution over the measured positions;
    `NOTHING` for a layer that does not run. output (B,): the largest L2 distance of the two output distributions."""

    changes: Tensor
    output: Tensor


@dataclass
class Clean(Taps):
    """Stores what each visit adds, and the output distribution, in a pass without an intervention."""

    deltas: dict[Place, Tensor] = field(default_factory=dict)
    output: Tensor = field(default_factory=lambda: torch.empty(0))

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        self.deltas[place] = delta


def clean_pass(model: Transformer, tokens: Tensor) -> Clean:
    """A pass without an intervention. tokens (B, S): with as many rows as the passes to compare it with, since the
    last bits of a product of matrices may depend on their size."""
    clean = Clean()
    with torch.no_grad():
        clean.output = model(tokens, taps=clean).logits.float().softmax(-1)
    return clean


class _Skip(Taps):
    """Leaves out what a layer, or one of its sublayers, adds, and compares every visit with a clean pass."""

    def __init__(self, model: Transformer, layer: int, part: str, where: Positions, clean: Clean) -> None:
        self.plan, self.layer, self.part, self.where, self.clean = model.plan, layer, part, where, clean
        self.changes = _no_changes(model, len(where.erased))

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        if self.plan[place].layer != self.layer or self.part not in ("layer", part):
            return delta
        return delta.masked_fill(self.where.at(self.plan, place).erased[..., None], 0.0)

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        change = relative_change(delta, self.clean.deltas[place], self.where.at(self.plan, place).measured)
        row = self.changes[:, self.plan[place].layer]
        row.copy_(torch.maximum(row, change))


def _no_changes(model: Transformer, rows: int) -> Tensor:
    return torch.full((rows, model.shape.layers), NOTHING, device=next(model.parameters()).device)


def relative_change(changed: Tensor, delta: Tensor, measured: Tensor) -> Tensor:
    """(B, S, W) twice → (B,): the largest ‖changed − delta‖ / ‖delta‖ over the measured positions (B, S)."""
    if not delta.shape[1]:
        return torch.full((len(delta),), NOTHING, device=delta.device)
    change = (changed - delta).float().norm(dim=-1) / delta.float().norm(dim=-1).clamp(min=SMALLEST)
    return change.masked_fill(~measured, NOTHING).amax(1)


def propagated(
    model: Transformer, tokens: Tensor, where: Positions, layer: int, part: str = "layer", clean: Clean | None = None
) -> Effect:
    """The effect of skipping a layer, or a part of it, on everything after it. tokens (S,): run once for each row of
    `where`. clean: `clean_pass` on as many rows, if it is there already."""
    rows = tokens.expand(len(where.erased), -1)
    clean = clean or clean_pass(model, rows)
    skip = _Skip(model, layer, part, where, clean)
    with torch.no_grad():
        output = model(rows, taps=skip).logits.float().softmax(-1)
    distance = (output - clean.output).norm(dim=-1).masked_fill(~where.measured, NOTHING)
    return Effect(skip.changes, distance.amax(1))


class _Local(Taps):
    """Runs each visit again on its input minus what one earlier layer has added, and goes on with the clean stream."""

    def __init__(self, model: Transformer, part: str, where: Positions) -> None:
        self.plan, self.part, self.where = model.plan, part, where
        self.added: dict[int, Tensor] = {}
        """Layer → what its visits so far have added to the stream (B, S, W), as far as it is erased."""
        self.listening = False
        count = model.shape.layers
        self.changes = torch.stack([_no_changes(model, len(where.erased)) for _ in range(count)])

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        if self.listening and self.part in ("layer", part):
            layer, erased = self.plan[place].layer, delta.masked_fill(~self.where.erased[..., None], 0.0)
            self.added[layer] = self.added[layer] + erased if layer in self.added else erased
        return delta

    def run_visit(self, place: Place, x: Tensor, visit: Visit, run: Callable[[Tensor], Tensor]) -> Tensor:
        sources = {source: added for source, added in self.added.items() if source != visit.layer}
        self.listening = True
        out = run(x)
        self.listening = False
        for source, added in sources.items():
            without = x - added
            change = relative_change(run(without) - without, out - x, self.where.measured)
            row = self.changes[source, :, visit.layer]
            row.copy_(torch.maximum(row, change))
        return out


def local(model: Transformer, tokens: Tensor, where: Positions, part: str = "layer") -> Tensor:
    """(L, B, L): [source][row][target], the change of each later layer when it alone reads the stream without what the
    source has added. Every other layer reads the clean stream. The plan must have no loop over iterations."""
    taps = _Local(model, part, where)
    with torch.no_grad():
        model(tokens.expand(len(where.erased), -1), taps=taps)
    return taps.changes


def depth_score(effects: Iterable[float]) -> float | None:
    """The expected layer Σ l · m_l / Σ m_l, counted from 0, of the effects m_l of the layers on the output (appendix B,
    "Depth score"); None if no layer has an effect."""
    values = list(effects)
    total = sum(values)
    return sum(layer * value for layer, value in enumerate(values)) / total if total else None


class _Sums(Taps):
    """Sums |a| / |h| and a · h / (|a| |h|) over positions, sequences and the visits of a layer."""

    def __init__(self, model: Transformer, first_token: bool) -> None:
        self.plan, self.start = model.plan, 0 if first_token else 1
        device = next(model.parameters()).device
        self.sums = {part: torch.zeros(3, model.shape.layers, dtype=torch.float64, device=device) for part in PARTS[1:]}

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        a, h = (values[:, self.start :].float() for values in (delta, x))
        relative = a.norm(dim=-1) / h.norm(dim=-1).clamp(min=SMALLEST)
        cosine = F.cosine_similarity(a, h, dim=-1)
        found = torch.stack([relative.sum(), cosine.sum(), torch.ones_like(relative).sum()])
        self.sums[part][:, self.plan[place].layer] += found
        return delta


def sublayer_contributions(model: Transformer, batches: Iterable[Tensor], first_token: bool = True) -> dict[str, Any]:
    """{attention, mlp: {relative, cosine: [layer]}} of batches of tokens (B, S): the means of |a| / |h| and of
    a · h / (|a| |h|), null for a sublayer that does not run.

    a is what the sublayer adds, h what it reads before its norm: the layer's input for attention, and for the MLP of a
    serial block that input plus what attention has added. A layer that is visited more than once has the mean over its
    visits. first_token: whether the first position counts.
    """
    sums = _Sums(model, first_token)
    with torch.no_grad():
        for tokens in batches:
            model(tokens, taps=sums)
    return {part: dict(zip(("relative", "cosine"), _means(found), strict=True)) for part, found in sums.sums.items()}


def _means(sums: Tensor) -> list[list[float | None]]:
    means = (sums[:2] / sums[2]).tolist()
    return [[None if value != value else round(value, 6) for value in row] for row in means]
