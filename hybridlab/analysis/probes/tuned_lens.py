"""Tuned lens: how early a model's prediction can be read (depth-grown models, section 4.1, figures 1B, 1C, 8, 14, 15,
27 and 28; appendix B, "Tuned Lens training and evaluation"; Belrose et al., 2023).

    hybridlab analyze RUN --probe tuned-lens --steps 500 --save lens.safetensors

The lens is an affine map for each point of the residual stream, from which the final norm and head can read a
prediction. A translator is residual, h + W h + b, and starts from zero, as the logit lens. It is trained to bring the
early prediction to the model's own, KL(final ‖ early) at the same position, with frozen copies of final norm and head,
so that tied embeddings cannot change; the norm computes its statistics of the translated state. It is trained here, on
the run's own training rows, and measured on validation text, on the run's synthetic tasks and on the multiple choice
tasks of its evaluation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridlab.analysis.performance import Suite, performance, suite, table
from hybridlab.analysis.probe import Probe, Rows, Table, rounded, split_table
from hybridlab.attention.kernels import capped
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Seed
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.files import is_stdout, output_file, write_bytes
from hybridlab.models.decoder import Decoder, Transformer
from hybridlab.models.taps import Taps
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Visit
from hybridlab.registry import PROBES
from hybridlab.training.objective import make_objective
from hybridlab.training.progress import followed

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
    points, loops = [Exit("embedding", 0)], 0
    for index, item in enumerate(plan.visits):
        following = plan.visits[index + 1] if index + 1 < len(plan.visits) else None
        if not isinstance(item, Visit):
            loops += 1
            points.append(Exit(f"loop {loops}", index + 1))
        elif not (isinstance(following, Visit) and following.layer == item.layer):
            points.append(Exit(f"L{item.layer + 1}", index + 1))
    return points


class Stream(Taps):
    """Stores the residual stream at exits, each (B, S, W), in their order."""

    def __init__(self, at: list[Exit]) -> None:
        self.ends = {exit.items - 1 for exit in at}
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
        translators = [nn.utils.skip_init(nn.Linear, width, width) for _ in self.exits[:-1]]
        self.translators = nn.ModuleList(translators)
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


def overlap(final: Tensor, early: Tensor) -> Tensor:
    """The share of the five likeliest tokens that two logits (…, V) have in common, (…)."""
    count = min(TOP, final.shape[-1])
    first, second = final.topk(count, dim=-1).indices, early.topk(count, dim=-1).indices
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


def train_lens(
    model: Transformer, batches: Iterator[np.ndarray], steps: int, lr: float, positions: int, seed: int
) -> tuple[Lens, list[float]]:
    """A lens for a model, and the mean loss over the exits of every step: Adam, with a learning rate that falls to 0
    linearly, on so many positions of each batch, at random by the seed. The same arguments give the same lens; the
    model is not changed. UserError if the loss is no number any more."""
    lens, device = Lens(model), model.device
    stream, losses = Stream(lens.exits), []
    optimizers = [torch.optim.Adam(translator.parameters(), lr=lr) for translator in lens.translators]
    rng = np.random.default_rng((seed, 1))
    for step in range(steps):
        tokens = torch.from_numpy(next(batches)).to(device)
        with torch.no_grad():
            model(tokens, taps=stream)
        states = [state.flatten(0, 1) for state in stream.states]
        chosen = torch.from_numpy(rng.permutation(len(states[0]))[:positions]).to(device)
        states = [state[chosen] for state in states]
        losses.append(_step(lens, states, optimizers, lr * (1 - step / steps)))
        if not np.isfinite(losses[-1]):
            raise UserError(f"the lens diverged at step {step + 1}; lower --lr, which is {lr:g}")
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


# ---- the probe ----


_AT_ONCE = 4


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig,
    rows: Rows = 16,
    steps: NonNegativeInt = 100,
    lr: PositiveFloat = 5e-3,
    batch: PositiveInt = 8,
    positions: PositiveInt = 256,
    items: PositiveInt = 20,
    seed: Seed = 0,
    save: str | None = None,
) -> dict[str, Any]:
    """Every list has an entry for each exit: 0 is the embedding, the input of the first layer; i the output of the
    i-th layer of the plan, which is the input of the next (the tuned lens' own index), so that the paper's layer l_i is
    entry i + 1; the last is the model itself, without a translator.

    Keys: exits [name]; kl, KL(final ‖ early) in nats, and overlap, of the five likeliest tokens, means over all
    positions of `rows` windows of validation text; logit_lens.kl and .overlap, the same before training; loss, the nats
    per next token of that text; accuracy.text, of the likeliest next token there; accuracy.tasks.NAME and
    accuracy.choices.NAME; relative, like accuracy, divided by that of the last exit, null where that is 0; chance
    {tasks {name}, choices {name}}; training {steps, lr, positions, first, last}: the loss over the exits, a mean of the
    first and of the last tenth of the steps.

    steps, lr: of training. batch: sequences that the model reads in a step. positions: of these so many are trained
    on. items: questions of each multiple choice task. save: a safetensors file for the lens.
    """
    if not model.plan.visits:
        raise UserError("the plan runs no layer, so that there is nothing to exit from early")
    file = None if save is None else output_file(save, "--save")
    if file is not None and is_stdout(file):
        raise UserError(f"--save {save}: standard output gets the numbers; name a file")
    if file is not None and not file.parent.is_dir():
        raise UserError(f"--save {save}: there is no folder {file.parent}; make it first")
    measured = suite(model, corpus, config, seq_len, rows, items)
    before = read_early(Lens(model), model, measured.text)
    batches = training_rows(config, corpus, batch, seed)
    lens, losses = train_lens(model, batches, steps, lr, positions, seed)
    if file is not None:
        write_bytes(file, safetensors.torch.save(lens.translators.state_dict()))
    after = read_early(lens, model, measured.text)
    accuracy, loss = accuracies(lens, model, measured, after.pop("right"))
    tenth = max(1, steps // 10)
    trained = {"steps": steps, "lr": lr, "positions": steps * min(positions, batch * seq_len)}
    if losses:
        trained |= {"first": _mean(losses[:tenth]), "last": _mean(losses[-tenth:])}
    return {
        "exits": [exit.name for exit in lens.exits],
        **after,
        "logit_lens": {name: before[name] for name in ("kl", "overlap")},
        "loss": loss,
        "accuracy": accuracy,
        "relative": {
            "text": relative(accuracy["text"]),
            **{part: {name: relative(each) for name, each in accuracy[part].items()} for part in ("tasks", "choices")},
        },
        "chance": measured.chance,
        "training": trained,
    }


def read_early(lens: Lens, model: Transformer, tokens: Tensor) -> dict[str, list[float]]:
    """kl, overlap, right: for each exit, means over the positions of tokens (N, S). right: of the likeliest token being
    the next one."""
    sums, count = torch.zeros(3, len(lens.exits), dtype=torch.float64), 0
    for part in tokens.split(_AT_ONCE):
        stream = Stream(lens.exits)
        with torch.no_grad():
            final = model(part, taps=stream).logits
            for exit, state in enumerate(stream.states):
                early = lens.logits(exit, state)
                right = (early[:, :-1].argmax(-1) == part[:, 1:]).double().mean(1)
                each = (divergence(final, early).double().mean(1), overlap(final, early).double().mean(1), right)
                sums[:, exit] += torch.stack([values.sum() for values in each]).cpu()
        count += len(part)
    kl, shared, right = rounded(sums / count, 6)
    return {"kl": kl, "overlap": shared, "right": right}


def accuracies(lens: Lens, model: Transformer, measured: Suite, text: list[float]) -> tuple[dict[str, Any], list[Any]]:
    """(accuracy {text, tasks {name}, choices {name}}, loss), each a list over the exits."""
    by_exit = table(
        [performance(measured, lens.model(exit, model)) for exit in followed(range(len(lens.exits)), "exits")]
    )
    by_part = {part: {name: task["accuracy"] for name, task in by_exit[part].items()} for part in ("tasks", "choices")}
    return {"text": text, **by_part}, by_exit["loss"]


def relative(accuracy: list[float | None]) -> list[float | None]:
    """Each divided by the last, the model's own; null where that is 0 or was not measured."""
    last = accuracy[-1]
    return [round(value / last, 5) if last and value is not None else None for value in accuracy]


def _mean(values: list[float]) -> float:
    return round(sum(values) / len(values), 6)


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each exit: KL, overlap, and accuracy in text; then the accuracy in each task, with the relative one."""
    trained = measured["training"]
    if "first" in trained:
        yield (
            f"trained on {trained['positions']:,} positions in {trained['steps']} steps: loss {trained['first']:.3f} "
            f"at first, {trained['last']:.3f} at last"
        )
    lists = (measured["kl"], measured["logit_lens"]["kl"], measured["overlap"], measured["loss"])
    columns = ["exit after", "KL", "KL untrained", "top-5 overlap", "loss on text"]
    yield Table("early prediction and final one", columns, [*zip(measured["exits"], *lists, strict=True)])
    accuracy, shares = measured["accuracy"], measured["relative"]
    both = {"next token of text": (accuracy["text"], shares["text"])}
    for part in ("tasks", "choices"):
        both |= {name: (accuracy[part][name], shares[part][name]) for name in accuracy[part]}
    pairs = [column for name, (absolute, share) in both.items() for column in ((name, absolute), ("relative", share))]
    yield from split_table("accuracy of early exits", ("exit after", measured["exits"]), pairs, 4)


PROBES.add(
    "tuned-lens",
    Probe(
        measure,
        report,
        needs_attention=False,
        needs_config=True,
        needs_decoder="predictions of the next token",
        needs_text=True,
    ),
)
