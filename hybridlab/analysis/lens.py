"""Tuned lens: an affine map for each point of the residual stream, from which the final norm and head can read a
prediction early (Belrose et al., 2023; depth-grown models, section 4.1 and appendix B).

A translator is residual, h + W h + b, and starts from zero, as the logit lens. It is trained to bring the early
prediction to the model's own, KL(final ‖ early) at the same position, with frozen copies of final norm and head, so
that tied embeddings cannot change; the norm computes its statistics of the translated state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.attention.kernels import capped
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder, Transformer
from hybridlab.models.taps import Taps
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Visit
from hybridlab.training.objective import make_objective

CLIP = 1.0
"""Largest norm of a translator's gradient."""
TOP = 5


@dataclass(frozen=True)
class Exit:
    """A point of the residual stream: after the first `items` items of a plan. name: `embedding`, the layer that comes
    before it, `L1`, or `loop 1`, a whole loop."""

    name: str
    items: int


def exits(plan: Plan) -> list[Exit]:
    """All points of a plan from the embedding to the end. Visits of one layer in a row, such as head loops, are one
    step, and so is a loop over iterations."""
    found, loops = [Exit("embedding", 0)], 0
    for index, item in enumerate(plan.visits):
        following = plan.visits[index + 1] if index + 1 < len(plan.visits) else None
        if not isinstance(item, Visit):
            loops += 1
            found.append(Exit(f"loop {loops}", index + 1))
        elif not (isinstance(following, Visit) and following.layer == item.layer):
            found.append(Exit(f"L{item.layer + 1}", index + 1))
    return found


class Stream(Taps):
    """Stores the residual stream at exits, each (B, S, W), in their order."""

    def __init__(self, at: list[Exit]) -> None:
        self.ends = {one.items - 1 for one in at}
        self.states: list[Tensor] = []

    def on_embeddings(self, x: Tensor) -> Tensor:
        self.states = [x]
        return x

    def on_item(self, index: int, x: Tensor) -> None:
        if index in self.ends:
            self.states.append(x)


class Lens(nn.Module):
    """A translator for every exit of a model but the last, whose prediction is the model's own.

    translators: [exit], zero at first. Norm and head are frozen copies.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.exits = exits(model.plan)
        width = model.shape.width
        # Without the usual random start, which would draw from the generator of a run that is still training.
        made = [nn.utils.skip_init(nn.Linear, width, width) for _ in self.exits[:-1]]
        self.translators = nn.ModuleList(made)
        for parameter in self.translators.parameters():
            nn.init.zeros_(parameter)
        head = model.output_table
        self.norm, self.cap = copy.deepcopy(model.final_norm).requires_grad_(False), model.shape.logit_cap
        self.head = nn.Parameter(head.detach().clone(), requires_grad=False)
        self.to(head.device)

    def logits(self, exit: int, h: Tensor) -> Tensor:
        """The early prediction (…, V) from the state h (…, W) at an exit."""
        if exit < len(self.translators):
            h = h + self.translators[exit](h)
        return capped(F.linear(self.norm(h), self.head), self.cap)

    def model(self, exit: int, model: Transformer) -> Transformer:
        """The model that ends at an exit: the first items of the plan, then the translator, norm and head. It shares
        the model's weights, and whatever measures a decoder measures it."""
        if exit == len(self.translators):
            return model
        plan = Plan(model.plan.visits[: self.exits[exit].items], model.plan.num_layers, model.plan.parallel)
        factors = {place: factor for place, factor in model.factors.items() if place[0] < len(plan.visits)}
        structure = model.structure.changed(plan)
        early = _Early.from_tensors(structure, dict(model.named_parameters()), model.kernel, factors)
        assert isinstance(early, _Early)
        early.gates, early.read = model.gates, lambda x: self.logits(exit, x)
        return early.eval()


class _Early(Decoder):
    """A decoder with another way from the residual stream to the logits."""

    read: Callable[[Tensor], Tensor]

    def logits(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return self.read(x)


def divergence(final: Tensor, early: Tensor) -> Tensor:
    """KL(final ‖ early) of logits (…, V) → (…), in nats, in fp32."""
    p, q = final.float().log_softmax(-1), early.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """The share of the five likeliest tokens that two logits (…, V) have in common, (…)."""
    count = min(TOP, one.shape[-1])
    first, second = one.topk(count, dim=-1).indices, other.topk(count, dim=-1).indices
    return (first[..., :, None] == second[..., None, :]).any(-1).float().mean(-1)


def training_rows(config: RunConfig, corpus: Corpus, rows: int, seed: int) -> Iterator[np.ndarray]:
    """Batches of tokens (rows, S) from the run's own stream of training rows, its synthetic tasks among them, without
    end: each step's rows in random order by the seed."""
    source = make_objective(config, corpus).source(config, corpus)
    rng, step = np.random.default_rng((seed, 0)), 0
    pool: list[np.ndarray] = []
    while True:
        while len(pool) < rows:
            tokens = source.rows(step).tokens
            pool += list(tokens[rng.permutation(len(tokens))[:rows]])
            step += 1
        yield np.stack(pool[:rows])
        pool = pool[rows:]


@dataclass(frozen=True)
class Recipe:
    """How a lens is trained: Adam, with a learning rate that falls to 0 linearly. rows: sequences that the model reads
    in a step. positions: of these so many, at random, are trained on."""

    steps: int
    lr: float
    rows: int
    positions: int
    seed: int


def train_lens(model: Transformer, batches: Iterator[np.ndarray], recipe: Recipe) -> tuple[Lens, list[float]]:
    """A lens for a model, and the mean loss over the exits of every step. The same recipe gives the same lens; the
    model is not changed. UserError if the loss is no number any more."""
    lens, device = Lens(model), next(model.parameters()).device
    stream, losses = Stream(lens.exits), []
    optimizers = [torch.optim.Adam(one.parameters(), lr=recipe.lr) for one in lens.translators]
    rng = np.random.default_rng((recipe.seed, 1))
    for step in range(recipe.steps):
        tokens = torch.from_numpy(next(batches)).to(device)
        with torch.no_grad():
            model(tokens, taps=stream)
        states = [state.flatten(0, 1) for state in stream.states]
        chosen = torch.from_numpy(rng.permutation(len(states[0]))[: recipe.positions]).to(device)
        states = [state[chosen] for state in states]
        losses.append(_step(lens, states, optimizers, recipe.lr * (1 - step / recipe.steps)))
        if not np.isfinite(losses[-1]):
            raise UserError(f"the lens diverged at step {step + 1}; lower --lr, which is {recipe.lr:g}")
    return lens.requires_grad_(False), losses


def _step(lens: Lens, states: list[Tensor], optimizers: list[torch.optim.Adam], lr: float) -> float:
    """One update of every translator, one after the other; returns the mean of their losses before it."""
    final = lens.logits(len(states) - 1, states[-1])
    total = 0.0
    for exit, optimizer in enumerate(optimizers):
        optimizer.param_groups[0]["lr"] = lr
        with torch.enable_grad():
            loss = divergence(final, lens.logits(exit, states[exit])).mean()
            optimizer.zero_grad()
            loss.backward()
        nn.utils.clip_grad_norm_(lens.translators[exit].parameters(), CLIP)
        optimizer.step()
        total += float(loss.detach())
    return total / max(1, len(optimizers))
