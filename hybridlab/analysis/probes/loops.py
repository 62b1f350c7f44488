"""What loops over iterations do (SpiralFormer): how attention changes from one to the next, which tokens reach which
output, and what routers read and write.

    hybridlab analyze RUN --probe loops
    hybridlab analyze RUN --probe reach
    hybridlab analyze RUN --probe routers
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.analysis.probe import LONGEST, SHOWN, Line, Probe, Rows, Table, rounded, spaced_windows
from hybridlab.analysis.probes.interventions import without_updates
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer, draw_weights
from hybridlab.models.recurrence import Recurrence
from hybridlab.models.taps import Taps
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Place
from hybridlab.registry import PROBES
from hybridlab.statistics import Measurement, paired_difference

# ---- attention by iteration (section 4, appendix I) ----


LOCAL_TOKENS = 32
"""γ: the local window in tokens."""
DYNAMIC_SHARE = 0.4


def measure_loops(model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 64) -> dict[str, Any]:
    """`loop_statistics` on `rows` sequences; fresh: the same values for the model with fresh weights, which are the
    effect of causal attention at each resolution without any training."""
    batches = spaced_windows(model, corpus, min(seq_len, 4 * LONGEST), rows).split(4)
    trained = loop_statistics(model, batches)
    if trained is None:
        return {"skipped": "the plan has no loop over iterations"}
    fresh = loop_statistics(_fresh(model), batches) or {}
    return trained | {"fresh": {name: fresh[name]["values"] for name in ("entropy", "local_mass")}}


def _fresh(model: Transformer) -> Transformer:
    """The model with fresh random weights."""
    fresh = copy.deepcopy(model)
    draw_weights(fresh, 0)
    return fresh


def key_marginal_entropy(weights: Tensor) -> Tensor:
    """Attention (B, H, n, n) → (B, H), in [0, 1]; 0 if there is only one key."""
    n = weights.shape[-1]
    received = weights.float().mean(2)
    return -torch.xlogy(received, received).sum(-1) / math.log(n) if n > 1 else received.new_zeros(received.shape[:2])


def local_attention_mass(weights: Tensor, chunk: int) -> Tensor:
    """Attention (B, H, n, n) at chunk size g → (B, H): mass on the ⌈32 / g⌉ keys before each query."""
    n, reach = weights.shape[-1], math.ceil(LOCAL_TOKENS / chunk)
    query = torch.arange(n, device=weights.device)[:, None]
    key = torch.arange(n, device=weights.device)[None, :]
    near = (key < query) & (key >= query - reach)
    return (weights.float() * near).sum(-1).mean(-1)


def loop_statistics(model: Transformer, batches: Iterable[Tensor]) -> dict[str, Any] | None:
    """Both metrics, for every head in the body of the plan's first loop and every iteration, averaged over all
    sequences of `batches`, each (B, S). None if the plan has no loop."""
    if not model.plan.loops:
        return None
    index, loop = next(iter(model.plan.loops.items()))
    bodies = [
        [(i, v) for i, v in enumerate(loop.body(t)) if v.part != "mlp" and v.heads is None]
        for t in range(loop.iterations)
    ]
    if not bodies[0] or any(len(body) != len(bodies[0]) for body in bodies):
        raise UserError("the loop's iterations do not all have the same layers with all of their heads")
    sums = torch.zeros(len(bodies), len(bodies[0]), 2, model.shape.heads)
    count = 0
    with torch.no_grad():
        for tokens in batches:
            attention = model(tokens, need="full").attention
            for t, body in enumerate(bodies):
                for row, (inner, _) in enumerate(body):
                    weights = attention.get((index, t, inner))
                    if weights is None:
                        raise UserError(f"sequences of {tokens.shape[1]} tokens fill no chunk of {loop.chunks[t]}")
                    metrics = (key_marginal_entropy(weights), local_attention_mass(weights, loop.chunks[t]))
                    sums[t, row] += torch.stack(metrics).sum(1).cpu()
            count += len(tokens)
    entropy, local_mass = (sums / count).unbind(2)
    return {
        "sequences": count,
        "length": tokens.shape[1],
        "chunks": list(loop.chunks),
        "layers": [visit.layer for _, visit in bodies[0]],
        "entropy": _described(entropy),
        "local_mass": _described(local_mass),
    }


def _described(values: Tensor) -> dict[str, Any]:
    """Of values (T, layers, H): the numbers, ranges over the iterations, dynamic heads, and means by iteration."""
    spread = values.amax(0) - values.amin(0)
    count = max(1, round(DYNAMIC_SHARE * spread.numel()))
    dynamic = torch.zeros(spread.numel(), dtype=torch.bool)
    dynamic[spread.flatten().argsort(descending=True, stable=True)[:count]] = True
    dynamic = dynamic.view(spread.shape)
    return {
        "values": rounded(values, 5),
        "range": rounded(spread, 5),
        "dynamic": dynamic.tolist(),
        "means": [float(table.mean()) for table in values],
        "dynamic_means": [float(table[dynamic].mean()) for table in values],
    }


def report_loops(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each iteration: both metrics, over all heads and over the dynamic heads."""
    rows = []
    for t, g in enumerate(measured["chunks"]):
        means = [measured[name][part][t] for name in ("entropy", "local_mass") for part in ("means", "dynamic_means")]
        rows.append([t + 1, "1" if g == 1 else f"1/{g}", *means])
    columns = ["loop", "resolution", "entropy", "dynamic heads", "local mass", "dynamic heads"]
    yield Table(
        f"attention by iteration, {measured['sequences']} sequences of {measured['length']} tokens", columns, rows
    )


PROBES.add("loops", Probe(measure_loops, report_loops, needs_decoder="the attention to the tokens before a query"))


# ---- the tokens that reach each output through a loop over resolutions (figure 1), from gradients ----


def measure_reach(model: Transformer, corpus: Corpus, seq_len: int) -> dict[str, Any]:
    """`reach` on a short sequence of random tokens, since the connected positions do not depend on the text."""
    return reach(model, SHOWN) or {"skipped": "the plan does not have exactly one loop over iterations"}


def reach(model: Transformer, length: int) -> dict[str, Any] | None:
    """The input positions that affect the state of each position after every iteration: those with a gradient that is
    not exactly 0, on one random sequence of `length` tokens. None if the plan does not have exactly one loop."""
    if len(model.plan.loops) != 1:
        return None
    (loop,) = model.plan.loops.values()
    # The loop alone, directly after the embeddings, so that other layers mix no tokens.
    alone = model.with_plan(Plan((loop,), model.plan.num_layers, model.plan.parallel))
    tokens = torch.randint(model.shape.vocab, (1, length), generator=torch.Generator().manual_seed(0))
    states = _States()
    with torch.enable_grad():
        alone(tokens.to(model.device), taps=states)
        maps = [_dependence(state, states.embedded) for state in states.states]
    return {"length": length, "chunks": list(loop.chunks), "maps": maps}


class _States(Taps):
    """Stores the embeddings, as a leaf of the autograd graph, and the state after every iteration."""

    embedded: Tensor

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def on_embeddings(self, x: Tensor) -> Tensor:
        self.embedded = x.detach().requires_grad_()
        return self.embedded

    def on_iteration(self, place: Place, h: Tensor) -> None:
        self.states.append(h)


def _dependence(state: Tensor, embedded: Tensor) -> list[list[int]]:
    """[output][input]: 1 where the output's state depends on the input's embedding."""
    rows = []
    for i in range(state.shape[1]):
        probe = state[0, i] @ torch.linspace(0.5, 1.5, state.shape[2], device=state.device, dtype=state.dtype)
        (gradient,) = torch.autograd.grad(probe, embedded, retain_graph=True, allow_unused=True)
        dependence = torch.zeros(state.shape[1]) if gradient is None else gradient[0].abs().sum(-1)
        rows.append((dependence > 0).int().tolist())
    return rows


def report_reach(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A text picture for each iteration."""
    for t, (g, rows) in enumerate(zip(measured["chunks"], measured["maps"], strict=True)):
        yield f"after loop {t + 1} (chunks of {g}): rows are outputs, columns inputs that reach them"
        for row in rows:
            yield "".join("█" if value else "·" for value in row)


PROBES.add("reach", Probe(measure_reach, report_reach, needs_decoder="which earlier tokens reach a position"))


# ---- what the routers of topology mesh read and write (appendix B) ----
#
# Every read is a sum of the embeddings, the state before the loop and the updates so far; a state that was written with
# shares w and is read with shares r has the weight r · w (Eq. 26–30). Weights say little alone, since updates may be
# longer vectors than the state before the loop, so the probe also measures the loss of the same model when all updates
# of its loops are 0: a loop without which nothing is lost is bypassed.


def measure_routers(model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 64) -> dict[str, Any]:
    """`router_statistics` on `rows` sequences.

    last: the weights of the last loop's last read on the state before the loop and on the newest update. fresh: the
    reads with fresh weights. moved: the mean, over all reads, of the summed absolute differences to those.
    lost_without: by how many nats per token the loss on these sequences rises when the updates of these loops are 0.
    """
    tokens = spaced_windows(model, corpus, min(seq_len, 4 * LONGEST), rows)
    loops = router_statistics(model, tokens.split(4))
    if not loops:
        return {"skipped": "the plan has no loop of topology mesh, so that there are no routers"}
    at_start = [loop["reads"] for loop in router_statistics(_fresh(model), tokens.split(4))]
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
    reads: dict[int, Tensor] = field(default_factory=dict)
    spreads: dict[str, dict[int, Tensor]] = field(default_factory=lambda: {"write": {}, "read": {}})
    writes: list[Tensor] = field(default_factory=list)
    """The shares that were written for the current tokens, by router pair."""

    def add(self, kind: str, pair: int, router: nn.Module, inputs: Any, logits: Tensor) -> None:
        """The logits (B, L, slots) of a router, in the order in which they are computed: a forward hook."""
        logits, spreads = logits.float(), self.spreads[kind]
        spreads[pair] = spreads.get(pair, 0) + logits.std(-1, unbiased=False).sum()
        shares = logits.softmax(-1)
        if kind == "write":
            self.writes = [*(self.writes if pair else []), shares]
            self.tokens += logits[..., 0].numel() if pair == 0 else 0
            return
        weights = [shares[..., 0], *((shares * write).sum(-1) for write in self.writes)]
        self.reads[pair] = self.reads.get(pair, 0) + torch.stack([weight.sum() for weight in weights])

    def described(self) -> dict[str, Any]:
        reads = [[round(float(weight) / self.tokens, 5) for weight in read] for read in self.reads.values()]
        spreads = {
            f"{kind}_spread": [round(float(s) / self.tokens, 5) for s in of.values()]
            for kind, of in self.spreads.items()
        }
        return {"chunks": list(self.loop.chunks), "reads": reads, **spreads}


def router_statistics(model: Transformer, batches: Iterable[Tensor]) -> list[dict[str, Any]]:
    """For every loop with routers, means over all tokens of `batches`, each (B, S); an empty list if there is none.

    reads: for the read before the loop and after each iteration, the weights of the embeddings, of the state before
    the loop and of the updates 1, 2 … so far. read_spread, write_spread: the standard deviation of a token's logits
    over the slots, for each of these reads and writes.
    """
    sums: list[_Sums] = []
    handles = []
    for loop, recurrence in zip(model.plan.loops.values(), model.recurrences, strict=True):
        routed = cast(Recurrence, recurrence)
        if not len(routed.readers):
            continue
        sums.append(_Sums(loop))
        for kind, routers in (("write", routed.writers), ("read", routed.readers)):
            handles += [
                router.register_forward_hook(partial(sums[-1].add, kind, s)) for s, router in enumerate(routers)
            ]
    try:
        with torch.no_grad():
            for tokens in batches if sums else ():
                model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return [each.described() for each in sums]


def report_routers(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each read of each loop, then the last read in words."""
    for loop in measured["loops"]:
        states = ["embeddings", "before loop", *(f"update {t + 1}" for t in range(len(loop["chunks"])))]
        lines: list[Line] = []
        for pair, read in enumerate(loop["reads"]):
            name = f"after loop {pair}" if pair else "before loop 1"
            missing = [None] * (len(states) - len(read))
            lines.append([name, *read, *missing, loop["read_spread"][pair], loop["write_spread"][pair]])
        title = f"weights of reads, {measured['sequences']} sequences of {measured['length']} tokens"
        yield Table(title, ["read", *states, "SD of read logits", "SD of write logits"], lines)
    last = measured["last"]
    yield (
        f"the last read: {last['entering']:.2f} on the state before the loop, {last['newest']:.2f} on the newest "
        f"update; reads moved by {measured['moved']:.2f} from their start; without updates the loss rises by "
        f"{measured['lost_without']['value']:.3f} nats"
    )


PROBES.add(
    "routers",
    Probe(
        measure_routers,
        report_routers,
        needs_attention=False,
        needs_decoder="the loss of the next token",
        needs_text=True,
    ),
)
