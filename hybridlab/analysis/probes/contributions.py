"""Contributions: of attention and MLP to the residual stream, and of tokens to a looped head.

    hybridlab analyze RUN --probe contributions

Sublayers of every decoder: relative size and cosine to the stream (depth-grown models, section 4.3, figures 4, 23 and
24). Looped heads, where a plan has them: C_j = A_Nj · ‖V_j‖ for the last token N, by pass (SGT, section 5.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.analysis.entropy import visit_entropies
from hybridlab.analysis.probe import LONGEST, SHOWN, Probe, Rows, Table, Visits, layer_table, rounded, spaced_windows
from hybridlab.analysis.probes.effects import PARTS, SMALLEST
from hybridlab.data.shards import Corpus
from hybridlab.models.blocks import Block
from hybridlab.models.decoder import Transformer
from hybridlab.models.taps import Taps
from hybridlab.plan.plan import Place, Plan
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES
from hybridlab.statistics import evenness
from hybridlab.training.progress import followed

MEASURED = 16
"""Sequences over which the entropies of contributions are measured."""
_AT_ONCE = 8


def measure(
    model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 2, sequences: Rows = 20, first_token: bool = True
) -> dict[str, Any]:
    """Keys: sequences, length, first_token; sublayers.attention and sublayers.mlp, each with relative [layer] and
    cosine [layer], see `sublayer_contributions`, over `sequences` windows of validation text.

    With head loops also: examples, the result of `contributions` for each of `rows` sequences; entropies, the
    normalised entropy of C by pass, a row for each looped head with most passes in each of MEASURED sequences.
    """
    windows = spaced_windows(model, corpus, min(seq_len, LONGEST), sequences)
    return {
        "sequences": len(windows),
        "length": windows.shape[1],
        "first_token": first_token,
        "sublayers": sublayer_contributions(model, windows.split(_AT_ONCE), first_token),
        **(_of_looped_heads(model, corpus, seq_len, rows) if head_loops(model.plan) else {}),
    }


def _of_looped_heads(model: Transformer, corpus: Corpus, seq_len: int, rows: int) -> dict[str, Any]:
    """examples and entropies, see `measure`."""
    length, examples, entropies = min(seq_len, SHOWN), [], []
    for tokens in spaced_windows(model, corpus, length, rows + 1)[1:]:
        texts = [corpus.tokenizer.decode([token]) for token in tokens.tolist()]
        examples.append(contributions(model, tokens, texts))
    if None in examples:
        return {}
    for tokens in spaced_windows(model, corpus, length, MEASURED):
        looped = list(looped_heads(model, tokens))
        most = max(len(head.passes) for head in looped)
        entropies += [[round(evenness(row), 6) for row in head.passes] for head in looped if len(head.passes) == most]
    return {"examples": examples, "entropies": entropies}


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each layer; and for each sequence a table with a row for each token, a column for each pass."""
    if "sublayers" in measured:
        title = (
            f"what each sublayer adds: size relative to the stream that it reads, and cosine\n"
            f"({measured['sequences']} sequences of {measured['length']} tokens"
            f"{'' if measured['first_token'] else ', without the first token'})"
        )
        lists = [part[kind] for part in measured["sublayers"].values() for kind in ("relative", "cosine")]
        yield layer_table(title, ["attention", "cosine", "MLP", "cosine"], zip(*lists, strict=True))
    for example in measured.get("examples", []):
        columns = ["token", *(f"loop {i}" for i in range(len(example["loops"])))]
        rows = [[repr(text), *values] for text, *values in zip(example["tokens"], *example["loops"], strict=True)]
        yield f"A·‖V‖ from the last token: {layer_name(example['layer'])}, head {example['head']}, counted from 0"
        yield Table("", columns, rows)


class _Sums(Taps):
    """Sums |a| / |h| and a · h / (|a| |h|) over positions, sequences and the visits of a layer."""

    def __init__(self, model: Transformer, first_token: bool) -> None:
        self.plan, self.start = model.plan, 0 if first_token else 1
        device = model.device
        self.sums = {part: torch.zeros(3, model.shape.layers, dtype=torch.float64, device=device) for part in PARTS[1:]}

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        a, h = (values[:, self.start :].float() for values in (delta, x))
        relative = a.norm(dim=-1) / h.norm(dim=-1).clamp(min=SMALLEST)
        cosine = F.cosine_similarity(a, h, dim=-1)
        totals = torch.stack([relative.sum(), cosine.sum(), torch.ones_like(relative).sum()])
        self.sums[part][:, self.plan[place].layer] += totals
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
        for tokens in followed(batches, "contributions"):
            model(tokens, taps=sums)
    means = {part: rounded(totals[:2] / totals[2], 6) for part, totals in sums.sums.items()}
    return {part: {"relative": relative, "cosine": cosine} for part, (relative, cosine) in means.items()}


def head_loops(plan: Plan) -> dict[int, list[Place]]:
    """Layers with head loops → the places of their attention, in the order of passes. Loops over iterations are left
    out, since their passes see different states."""
    places: dict[int, list[Place]] = {}
    for place, visit in plan.places():
        if visit.part != "mlp" and len(place) == 1:
            places.setdefault(visit.layer, []).append(place)
    return {layer: passes for layer, passes in places.items() if any(plan[place].heads for place in passes[1:])}


@dataclass(frozen=True)
class LoopedHead:
    """A looped head on one sequence (S,). entropy: of its first pass. passes: C of every pass, each (S,)."""

    layer: int
    head: int
    entropy: float
    passes: list[list[float]]


def looped_heads(model: Transformer, tokens: Tensor) -> Iterator[LoopedHead]:
    """Every head that runs again in a loop, on one sequence of tokens (S,)."""
    taps, loops, shape = Visits(), head_loops(model.plan), model.shape
    if not loops:
        return
    with torch.no_grad():
        output = model(tokens[None], need="last_row", taps=taps)
    for layer, places in loops.items():
        block = cast(Block, model.blocks[layer])
        running = {place: model.plan[place].heads or tuple(range(model.shape.heads)) for place in places}
        first = dict(zip(running[places[0]], visit_entropies(output)[places[0]][0].tolist(), strict=True))
        # A head that runs in the loop only has no first pass to compare with.
        for head in (head for head in model.plan[places[-1]].heads or running[places[0]] if head in first):
            rows = []
            for place in (place for place in places if head in running[place]):
                weights = output.attention[place][0, running[place].index(head), 0]
                with torch.no_grad():
                    values = block.attention.v(block.attention_input(taps.inputs[place][0])).float()
                values = values.view(len(tokens), -1, shape.head_width)[:, head // shape.group]
                rows.append((weights * values.norm(dim=-1)).tolist())
            yield LoopedHead(layer, head, first[head], rows)


def contributions(model: Transformer, tokens: Tensor, texts: list[str]) -> dict[str, Any] | None:
    """C on one sequence (S,) with its tokens as text, in the layer with most passes, for its looped head of highest
    entropy.

    loops: C of every pass, each (S,). None if the plan has no head loops.
    """
    looped = list(looped_heads(model, tokens))
    if not looped:
        return None
    chosen = max(looped, key=lambda head: (len(head.passes), head.layer, head.entropy))
    return {
        "layer": chosen.layer,
        "head": chosen.head,
        "entropy": chosen.entropy,
        "tokens": texts,
        "loops": rounded(chosen.passes, 6),
    }


PROBES.add("contributions", Probe(measure, report))
