"""Tuned lens: how early a model's prediction can be read (depth-grown models, section 4.1, figures 1B, 1C, 8, 14, 15,
27 and 28; appendix B, "Tuned Lens training and evaluation").

    hybridlab analyze RUN --probe tuned-lens --steps 500 --save lens.safetensors

The lens is trained here, on the run's own training rows, and measured on validation text, on the run's synthetic tasks
and on the multiple choice tasks of its evaluation. See analysis/lens.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.lens import Lens, Recipe, Stream, divergence, overlap, train_lens, training_rows
from hybridlab.analysis.performance import Suite, performance, suite, table
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.analysis.prompts import Count
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import NonNegativeInt, PositiveFloat, Seed
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import save_tensors
from hybridlab.registry import PROBES

_AT_ONCE = 4


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig,
    rows: Rows = 16,
    steps: NonNegativeInt = 100,
    lr: PositiveFloat = 5e-3,
    batch: Count = 8,
    positions: Count = 256,
    items: Count = 20,
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
    _require_place(save)
    measured = suite(model, corpus, config, seq_len, rows, items)
    before = read_early(Lens(model), model, measured.used.text)
    recipe = Recipe(steps, lr, batch, positions, seed)
    lens, losses = train_lens(model, training_rows(config, corpus, batch, seed), recipe)
    if save is not None:
        save_tensors(lens.translators.state_dict(), Path(save))
    after = read_early(lens, model, measured.used.text)
    accuracy, loss = accuracies(lens, model, measured, after.pop("right"))
    tenth = max(1, steps // 10)
    trained = {"steps": steps, "lr": lr, "positions": steps * min(positions, batch * seq_len)}
    if losses:
        trained |= {"first": _mean(losses[:tenth]), "last": _mean(losses[-tenth:])}
    return {
        "exits": [one.name for one in lens.exits],
        **after,
        "logit_lens": {name: before[name] for name in ("kl", "overlap")},
        "loss": loss,
        "accuracy": accuracy,
        "relative": _each(accuracy, relative),
        "chance": measured.chance,
        "training": trained,
    }


def _require_place(save: str | None) -> None:
    """UserError, before the lens is trained, if no file can be written there."""
    if save is not None and Path(save).is_dir():
        raise UserError(f"--save {save} is a folder; name a file in it, such as {Path(save) / 'lens.safetensors'}")
    if save is not None and not Path(save).parent.is_dir():
        raise UserError(f"--save {save}: there is no folder {Path(save).parent}; make it first")


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
    kl, shared, right = ([round(value, 6) for value in row] for row in (sums / count).tolist())
    return {"kl": kl, "overlap": shared, "right": right}


def accuracies(lens: Lens, model: Transformer, measured: Suite, text: list[float]) -> tuple[dict[str, Any], list[Any]]:
    """(accuracy {text, tasks {name}, choices {name}}, loss), each a list over the exits."""
    found = table([performance(measured, lens.model(exit, model)) for exit in range(len(lens.exits))])
    named = {part: {name: one["accuracy"] for name, one in found[part].items()} for part in ("tasks", "choices")}
    return {"text": text, **named}, found["loss"]


def relative(accuracy: list[float | None]) -> list[float | None]:
    """Each divided by the last, the model's own; null where that is 0 or was not measured."""
    last = accuracy[-1]
    return [round(value / last, 5) if last and value is not None else None for value in accuracy]


def _each(accuracy: dict[str, Any], change: Any) -> dict[str, Any]:
    return {name: _each(part, change) if isinstance(part, dict) else change(part) for name, part in accuracy.items()}


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
    rows: list[list[str | int | float | None]] = [
        [name, measured["kl"][i], measured["logit_lens"]["kl"][i], measured["overlap"][i], measured["loss"][i]]
        for i, name in enumerate(measured["exits"])
    ]
    yield Table(
        "early prediction and final one", ["exit after", "KL", "KL untrained", "top-5 overlap", "loss on text"], rows
    )
    accuracy, shares = measured["accuracy"], measured["relative"]
    both = {"next token of text": (accuracy["text"], shares["text"])}
    for part in ("tasks", "choices"):
        both |= {name: (accuracy[part][name], shares[part][name]) for name in accuracy[part]}
    names = list(both)
    for first in range(0, len(names), 2):
        chosen = names[first : first + 2]
        columns = [column for name in chosen for column in both[name]]
        lines: list[list[str | int | float | None]] = [
            [name, *(column[i] for column in columns)] for i, name in enumerate(measured["exits"])
        ]
        heads = [head for name in chosen for head in (name, "relative")]
        yield Table("accuracy of early exits" if not first else "", ["exit after", *heads], lines)


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
