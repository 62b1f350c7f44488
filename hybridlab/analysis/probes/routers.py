"""What the routers of a loop of topology mesh read and write (SpiralFormer, appendix B).

    hybridlab analyze RUN --probe routers

Every read is a sum of the embeddings, the state before the loop and the updates so far; a state that was written with
shares w and is read with shares r has the weight r · w (Eq. 26–30). Weights say little alone, since updates may be
longer vectors than the state before the loop, so the probe also measures the loss of the same model when all updates of
its loops are 0: a loop without which nothing is lost is bypassed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.analysis.probe import LONGEST, Probe, Rows, Table, spaced_windows
from hybridlab.analysis.probes.without import without_updates
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer, draw_weights
from hybridlab.models.recurrence import Recurrence
from hybridlab.plan.loop import Loop
from hybridlab.registry import PROBES
from hybridlab.statistics import Measurement, paired_difference


def measure(model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 64) -> dict[str, Any]:
    """`router_statistics` on `rows` sequences.

    last: the weights of the last loop's last read on the state before the loop and on the newest update. fresh: the
    reads with fresh weights. moved: the mean, over all reads, of the summed absolute differences to those.
    lost_without: by how many nats per token the loss on these sequences rises when the updates of these loops are 0.
    """
    tokens = spaced_windows(model, corpus, min(seq_len, 4 * LONGEST), rows)
    loops = router_statistics(model, tokens.split(4))
    if not loops:
        return {"skipped": "the plan has no loop of topology mesh, so that there are no routers"}
    fresh = copy.deepcopy(model)
    draw_weights(fresh, 0)
    at_start = [loop["reads"] for loop in router_statistics(fresh, tokens.split(4))]
    pairs = [
        pair for loop, start in zip(loops, at_start, strict=True) for pair in zip(loop["reads"], start, strict=True)
    ]
    moved = [sum(abs(now - then) for now, then in zip(*pair, strict=True)) for pair in pairs]
    last = loops[-1]["reads"][-1]
    return {
        "sequences": len(tokens),
        "length": tokens.shape[1],
        "loops": loops,
        "last": {"entering": last[1], "newest": last[-1]},
        "fresh": at_start,
        "moved": sum(moved) / len(moved),
        "lost_without": lost_without_updates(model, tokens.split(4)).model_dump(),
    }


def lost_without_updates(model: Transformer, batches: Sequence[Tensor]) -> Measurement:
    """The rise of the loss, in nats per token, when all updates of the loops with routers are 0; one observation for
    each sequence of `batches`, each (B, S)."""
    return paired_difference(_losses(without_updates(model, "mesh"), batches), _losses(model, batches))


def _losses(model: Transformer, batches: Sequence[Tensor]) -> list[float]:
    """The mean loss of each sequence."""
    losses: list[float] = []
    with torch.no_grad():
        for tokens in batches:
            logits = model(tokens).logits[:, :-1].float().transpose(1, 2)
            losses += F.cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1).tolist()
    return losses


@dataclass
class _Sums:
    """Sums over tokens, for one loop. reads: for each router pair, of the weights of all states. spreads: of the
    standard deviations of a token's logits, over the slots, for writes and reads."""

    loop: Loop
    tokens: int = 0
    reads: list[Tensor] = field(default_factory=list)
    spreads: dict[str, list[Tensor]] = field(default_factory=lambda: {"write": [], "read": []})
    writes: list[Tensor] = field(default_factory=list)
    """The shares that were written for the current tokens, by router pair."""

    def add(self, kind: str, pair: int, logits: Tensor) -> None:
        """The logits (B, L, slots) of a router, in the order in which they are computed."""
        logits = logits.float()
        spreads = self.spreads[kind]
        _add(spreads, pair, logits.std(-1, unbiased=False).sum())
        shares = logits.softmax(-1)
        if kind == "write":
            self.writes = [*(self.writes if pair else []), shares]
            self.tokens += logits[..., 0].numel() if pair == 0 else 0
            return
        weights = [shares[..., 0], *((shares * write).sum(-1) for write in self.writes)]
        _add(self.reads, pair, torch.stack([weight.sum() for weight in weights]))

    def described(self) -> dict[str, Any]:
        reads = [[round(float(weight) / self.tokens, 5) for weight in read] for read in self.reads]
        spreads = {
            f"{kind}_spread": [round(float(s) / self.tokens, 5) for s in of] for kind, of in self.spreads.items()
        }
        return {"chunks": list(self.loop.chunks), "reads": reads, **spreads}


def _add(sums: list[Tensor], index: int, value: Tensor) -> None:
    if index == len(sums):
        sums.append(torch.zeros_like(value))
    sums[index] += value


def router_statistics(model: Transformer, batches: Iterable[Tensor]) -> list[dict[str, Any]]:
    """For every loop with routers, means over all tokens of `batches`, each (B, S); an empty list if there is none.

    reads: for the read before the loop and after each iteration, the weights of the embeddings, of the state before
    the loop and of the updates 1, 2 … so far. read_spread, write_spread: the standard deviation of a token's logits
    over the slots, for each of these reads and writes.
    """
    with torch.no_grad(), _listening(model) as sums:
        for tokens in batches if sums else ():
            model(tokens)
        return [each.described() for each in sums]


@contextmanager
def _listening(model: Transformer) -> Iterator[list[_Sums]]:
    """A context in which every forward pass adds the logits of all routers to the sums of their loop."""
    sums, handles = [], []
    for loop, recurrence in zip(model.plan.loops.values(), model.recurrences, strict=True):
        own = cast(Recurrence, recurrence)
        if not len(own.readers):
            continue
        sums.append(_Sums(loop))
        for kind, routers in (("write", own.writers), ("read", own.readers)):
            handles += [router.register_forward_hook(_hook(sums[-1], kind, s)) for s, router in enumerate(routers)]
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()


def _hook(sums: _Sums, kind: str, pair: int) -> Any:
    def add(router: nn.Module, inputs: Any, logits: Tensor) -> None:
        sums.add(kind, pair, logits)

    return add


# ---- the report ----


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each read of each loop, then the last read in words."""
    for loop in measured["loops"]:
        states = ["embeddings", "before loop", *(f"update {t + 1}" for t in range(len(loop["chunks"])))]
        rows: list[list[str | int | float | None]] = []
        for pair, read in enumerate(loop["reads"]):
            name = f"after loop {pair}" if pair else "before loop 1"
            missing = [None] * (len(states) - len(read))
            rows.append([name, *read, *missing, loop["read_spread"][pair], loop["write_spread"][pair]])
        title = f"weights of reads, {measured['sequences']} sequences of {measured['length']} tokens"
        yield Table(title, ["read", *states, "SD of read logits", "SD of write logits"], rows)
    last = measured["last"]
    yield (
        f"the last read: {last['entering']:.2f} on the state before the loop, {last['newest']:.2f} on the newest "
        f"update; reads moved by {measured['moved']:.2f} from their start; without updates the loss rises by "
        f"{measured['lost_without']['value']:.3f} nats"
    )


PROBES.add(
    "routers",
    Probe(measure, report, needs_attention=False, needs_decoder="the loss of the next token", needs_text=True),
)
