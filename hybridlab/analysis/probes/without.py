"""What a trained model loses without its mechanism: its loops, the copies of its depth growth, its refined weights.

    hybridlab analyze RUN --probe without

A model that loses nothing without its loops does not use them, so that its loss says nothing about loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hybridlab.analysis.material import material
from hybridlab.analysis.performance import Performance, Suite, performance
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.attention.belief import Belief
from hybridlab.attention.kinds import Full
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.models.recurrence import Body, Recurrence
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.loop import Loop, Topology
from hybridlab.registry import PROBES
from hybridlab.statistics import paired_difference

MECHANISMS = {
    "loops": "its loops",
    "copies": "the layers that growth copied",
    "refinement": "the refinement of attention",
}
NO_MECHANISM = "the model has no loop, no layer that growth copied and no attention that is refined"


def measure(model: Transformer, corpus: Corpus, seq_len: int, config: RunConfig, rows: Rows = 64) -> dict[str, Any]:
    """Keys: sequences; loss, in nats per token of validation text; tasks.NAME, of the run's synthetic tasks, accuracy
    and loss. And for each mechanism that the model has, the same without it, with lost, the rise of the loss, and its
    stderr, paired by window: loops, copies, refinement; see `without_each`. rows: windows of text, and rows of tasks.
    """
    others = without_each(model)
    if not others:
        return {"skipped": NO_MECHANISM}
    measured = Suite(config, corpus.tokenizer, material(model, corpus, config, seq_len, rows), {})
    whole = performance(measured, model)
    found: dict[str, Any] = {"sequences": len(whole.text), **_described(whole)}
    return found | {name: _described(performance(measured, other), whole) for name, other in others.items()}


def without_each(model: Transformer) -> dict[str, Transformer]:
    """The model without each mechanism that it has, by name; the weights are shared.

    loops: no visit runs again what has run, and loops over iterations have no update (`without_updates`). copies:
    without the layers that were copied in growth steps; the residual stream passes them by. refinement: plain softmax
    attention, as with λ = 0, in the heads that refine their weights.
    """
    plan, structure = model.plan, model.structure
    once = plan.without_repeats(model.shape.heads)
    copies = [layer for layer, origin in enumerate(structure.lineage or ()) if origin.stage > 0]
    skipped, plain = plan.skip(*copies), _unrefined(model.attention_map)
    others = {}
    if once != plan or plan.loops:
        others["loops"] = without_updates(model.with_plan(once))
    if skipped != plan:
        others["copies"] = model.with_plan(skipped)
    if plain != model.attention_map:
        others["refinement"] = model.with_plan(attention_map=plain)
    return others


def without_updates(model: Transformer, topology: Topology | None = None) -> Transformer:
    """The model with all updates of its loops over iterations at 0, in all loops or in those of one topology; the
    weights are shared. In topology direct, where the update is the next state, the state stays as it is instead: at 0
    nothing would be left of the text, however little the loop does."""
    other = model.with_plan()
    for loop, recurrence in zip(other.plan.loops.values(), other.recurrences, strict=True):
        if topology in (None, loop.topology):
            cast(Recurrence, recurrence).__dict__["iterate"] = _no_update
    return other


def _no_update(loop: Loop, t: int, h: Tensor, body: Body) -> Tensor:
    """In the place of `Recurrence.iterate`."""
    return h if loop.topology == "direct" else torch.zeros_like(h)


def _unrefined(attention_map: AttentionMap) -> AttentionMap:
    rows = ((Full() if isinstance(kind, Belief) else kind for kind in row) for row in attention_map.layers)
    return AttentionMap(tuple(map(tuple, rows)))


def _described(found: Performance, whole: Performance | None = None) -> dict[str, Any]:
    """Losses and accuracies; with `whole`, the model as it is, also what is lost."""
    described: dict[str, Any] = {"loss": _mean(found.text)}
    if whole is not None:
        rise = paired_difference(found.text, whole.text)
        described |= {"lost": _rounded(rise.value), "stderr": _rounded(rise.stderr)}
    described["tasks"] = {}
    for name, (right, losses) in found.tasks.items():
        described["tasks"][name] = {"accuracy": _mean(right), "loss": _mean(losses)}
        if whole is not None:
            described["tasks"][name]["lost"] = _mean(losses - whole.tasks[name][1])
    return described


def _mean(values: np.ndarray) -> float | None:
    return _rounded(float(values.mean())) if len(values) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


# ---- the report ----


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A table for the text and for each task, with a row for the model as it is and for each mechanism."""
    models = {"as it is": measured}
    models |= {f"without {words}": measured[name] for name, words in MECHANISMS.items() if name in measured}
    yield _table(f"loss in nats per token, {measured['sequences']} sequences", models, "stderr")
    for task in measured["tasks"]:
        answers = {label: found["tasks"][task] for label, found in models.items()}
        yield _table(f"{task}, loss in nats per answer", answers, "accuracy")


def _table(title: str, models: dict[str, Any], last: str) -> Table:
    columns = ["loss", "lost", last]
    return Table(title, ["model", *columns], [[label, *map(found.get, columns)] for label, found in models.items()])


PROBES.add("without", Probe(measure, report, needs_attention=False, needs_config=True, needs_text=True))
