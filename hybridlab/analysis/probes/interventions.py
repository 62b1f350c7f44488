"""What a trained model loses when layers are skipped, swapped, reversed or cut off (depth-grown models, sections 4.2
and 4.3, figures 3, 6, 9–11 and 16–18; appendix B, "Benchmarked interventions"), and without its mechanism: its loops,
the copies of its depth growth, its refined weights.

    hybridlab analyze RUN --probe interventions --kinds swap --sizes 1,2,4
    hybridlab analyze MODEL --probe interventions --tasks gsm8k --kinds skip-1,swap-4 --starts 0,4,8 --data-root DIR
    hybridlab analyze RUN --probe without
    hybridlab analyze RUN --probe loss --tasks gsm8k,mmlu --data-root DIR

Each intervention is an edit of the plan, so that the weights, the cache and the original model stay as they are. It
names layers, and changes all visits of a layer that a plan visits more than once. A model that loses nothing without
its loops does not use them, so that its loss says nothing about loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from hybridlab.analysis.performance import Performance, mean_of, performance, prompt_losses, prompt_suite, suite, table
from hybridlab.analysis.probe import Probe, Rows, Table, rounded, split_table
from hybridlab.analysis.prompts import (
    NO_TASKS,
    Numbers,
    Sizes,
    TaskPrompts,
    Words,
    each_sequence,
    not_measured,
    sequences_of,
)
from hybridlab.attention.belief import Belief
from hybridlab.attention.kinds import Full
from hybridlab.config.evaluation import Choices
from hybridlab.config.schema import RunConfig
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError, nearest
from hybridlab.models.decoder import Transformer
from hybridlab.models.recurrence import Body, Recurrence
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.loop import Loop, Topology
from hybridlab.plan.plan import Plan
from hybridlab.registry import PROBES
from hybridlab.statistics import paired_difference
from hybridlab.training.progress import followed

# ---- edits of the plan ----


KINDS = ("skip", "swap", "reverse", "truncate")
SIZES = (1, 2, 4, 8)
REVERSED = (2, 4)
"""Layers of an intervention where none are asked for, those of a reversal apart."""


def measure_interventions(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    config: RunConfig | None,
    rows: Rows = 12,
    kinds: Words = KINDS,
    sizes: Sizes | None = None,
    reverse: Sizes | None = None,
    items: PositiveInt = 8,
    starts: Numbers | None = None,
    questions: Words = (),
    prompts: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """Keys: sequences, items, chance {tasks {name}, choices {name}}; base, the model as it is; KIND.SIZE, with starts
    [i], the first layer of each intervention from 0, and truncate.layers.starts, the numbers of layers that are kept.

    base and every KIND.SIZE have loss [i] in nats per token of validation text, tasks.NAME.accuracy [i] and .loss [i]
    of the run's synthetic tasks, choices.NAME.accuracy [i] and .loss [i] of the multiple choice tasks of its
    evaluation; KIND.SIZE also stderr [i], that of the rise of `loss` over base, paired by window. i: `base` has one
    entry.

    skip leaves out [i, i + s), swap exchanges [i, i + s) with [i + s, i + 2s), for the `sizes`; reverse turns
    [i, i + s) around, for the sizes in `reverse`. By default s are those of SIZES and REVERSED that fit. truncate
    keeps the first layers. A kind may name its size: swap-4. starts: these first layers alone, by default all. rows:
    windows of text, and rows of each task. items: questions of each multiple choice task, the first ones of the
    evaluation; so few by default that the some 50 models of eight layers take 20 seconds, and too few for a difference
    between models. questions: these multiple choice tasks instead of those of the run's evaluation.

    With prompts of tasks, loss is that of `rows` prompts of each, and tasks.NAME.loss that of one task; a model that is
    no run has no other tasks. With units also units [i]: base and every KIND.SIZE of the i-th prompt of every task and
    the i-th question of every kind, without stderr.
    """
    edits = _asked_edits(model, kinds, sizes, reverse, starts)
    choices = config.evaluation.choices if config is not None else None
    if questions:
        choices = _choices(questions)
    read = None
    if prompts.tasks:
        read = sequences_of(model, corpus, seq_len, rows, prompts)
        measured = prompt_suite(read, choices, items, corpus.tokenizer)
    else:
        prompts.require_tasks()
        assert config is not None, "a probe without tasks has the configuration of its run"
        chosen = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"choices": choices})})
        measured = suite(model, corpus, chosen, seq_len, rows, items)
    base = performance(measured, model)
    changed = {
        name: {
            start: performance(measured, model.with_plan(plan))
            for start, plan in zip(plans, followed(plans.values(), name[0]), strict=True)
        }
        for name, plans in edits.items()
    }

    def of_unit(i: int) -> dict[str, Any]:
        results = {name: {start: result.unit(i) for start, result in each.items()} for name, each in changed.items()}
        return {"chance": measured.chance, **_tables(base.unit(i), results, None)}

    return {
        "sequences": len(base.text),
        "items": max((len(questions) for questions, _ in measured.questions.values()), default=0),
        "chance": measured.chance,
        **_tables(base, changed, base),
        **({} if read is None else {"prompts": read.about, "missing": read.missing, **read.by_unit(of_unit)}),
    }


Changed = dict[tuple[str, str], dict[int, Performance]]
"""(kind, size) → start → the performance of the changed model."""


def _tables(base: Performance, changed: Changed, paired: Performance | None) -> dict[str, Any]:
    """base and KIND.SIZE of `measure_interventions`. paired: what errors of the loss are paired with, if any."""
    tables: dict[str, Any] = {"base": table([base])}
    for (kind, size), by_start in changed.items():
        tables.setdefault(kind, {})[size] = {"starts": list(by_start), **table([*by_start.values()], paired)}
    return tables


def _choices(questions: Sequence[str]) -> Choices:
    """The settings of these multiple choice tasks."""
    try:
        return Choices(tasks=list(questions))
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"questions = {problem['input']!r}: {problem['msg']}") from None


def _asked_edits(
    model: Transformer,
    kinds: Sequence[str],
    sizes: Sequence[int] | None,
    reverse: Sequence[int] | None,
    starts: Sequence[int] | None,
) -> dict[tuple[str, str], dict[int, Plan]]:
    """The interventions that the settings ask for; UserError for what has no effect or does not fit."""
    edits: dict[tuple[str, str], dict[int, Plan]] = {}
    bare = [kind for kind in kinds if "-" not in kind]
    for kind in kinds:
        name, dash, size = kind.partition("-")
        if name not in KINDS or (dash and (name == "truncate" or not size.isdecimal() or int(size) < 1)):
            raise UserError(f"kinds = {kind!r} is unknown; {nearest(kind, list(KINDS))}, or with a size, as swap-4")
        if not dash:
            edits |= plan_edits(model.plan, [name], sizes or SIZES, reverse or REVERSED)
            continue
        fitting = plan_edits(model.plan, [name], [int(size)], [int(size)])
        if not fitting:
            raise UserError(f"kinds = {kind!r} does not fit into the {model.plan.num_layers} layers of this model")
        edits |= fitting
    _require("sizes", sizes or (), [kind for kind in bare if kind in ("skip", "swap")], edits, model)
    _require("reverse", reverse or (), [kind for kind in bare if kind == "reverse"], edits, model)
    if not edits:
        raise UserError(f"no intervention of these kinds and sizes fits into {model.plan.num_layers} layers")
    if starts is None:
        return edits
    if lost := [start for start in starts if not any(start in plans for plans in edits.values())]:
        raise UserError(f"starts = {lost[0]}: no intervention of these kinds and sizes begins there; leave it out")
    chosen = {name: {start: plan for start, plan in plans.items() if start in starts} for name, plans in edits.items()}
    if empty := [f"{kind}-{size}" for (kind, size), plans in chosen.items() if not plans]:
        raise UserError(f"starts: {empty[0]} begins at none of them; name one, or leave it out of kinds and sizes")
    return chosen


def _require(
    setting: str, sizes: Sequence[int], kinds: Sequence[str], edits: Collection[tuple[str, str]], model: Transformer
) -> None:
    """UserError for a size that is asked for and that none of the kinds that take it has."""
    for size in sizes:
        if not kinds:
            raise UserError(f"{setting} has no effect on these kinds of interventions; leave it out")
        if not any((kind, str(size)) in edits for kind in kinds):
            raise UserError(
                f"{setting} = {size}: {' or '.join(kinds)} of so many layers does not fit into the "
                f"{model.plan.num_layers} layers of this model; give fewer"
            )


def plan_edits(
    plan: Plan, kinds: Sequence[str] = KINDS, sizes: Sequence[int] = SIZES, reverse: Sequence[int] = REVERSED
) -> dict[tuple[str, str], dict[int, Plan]]:
    """(kind, size) → start → the edited plan, for every start; only those that fit the plan's layers. truncate: the
    number of layers that are kept is the start, and its size is `layers`."""
    count = plan.num_layers
    edits: dict[str, tuple[int, Sequence[int], Callable[[int, int], Plan]]] = {
        "skip": (1, sizes, lambda i, s: plan.skip(*range(i, i + s))),
        "swap": (2, sizes, lambda i, s: plan.swap(i, i + s, s)),
        "reverse": (1, reverse, lambda i, s: plan.reverse(i, s)),
    }
    variants: dict[tuple[str, str], dict[int, Plan]] = {}
    for kind in kinds:
        if kind == "truncate":
            variants[kind, "layers"] = {layers: plan.truncate(layers) for layers in range(1, count)}
            continue
        blocks, lengths, edited = edits[kind]
        for size in (size for size in lengths if blocks * size <= count):
            variants[kind, str(size)] = {i: edited(i, size) for i in range(count - blocks * size + 1)}
    return {name: plans for name, plans in variants.items() if plans}


def report_interventions(measured: dict[str, Any]) -> Iterator[str | Table]:
    """The model as it is, and for each kind and size a table with a row for every start."""
    base = measured["base"]
    tasks = {**base["tasks"], **base["choices"]}
    accuracies = [f"{name} {task['accuracy'][0]:.3f}" for name, task in tasks.items() if task["accuracy"] != [None]]
    yield ", ".join([f"as it is: loss {base['loss'][0]:.3f}", *accuracies])
    for kind in (kind for kind in KINDS if kind in measured):
        for size, values in measured[kind].items():
            starts = ("keep" if kind == "truncate" else "from layer", values["starts"])
            columns = [(name, _column(part)) for name, part in {**values["tasks"], **values["choices"]}.items()]
            yield from split_table(_title(kind, size), starts, columns, 3, first=[("loss", values["loss"])])
    yield from not_measured(measured)


def _column(part: dict[str, list[float | None]]) -> list[float | None]:
    """The accuracies; of prompts, which have none, the losses."""
    return part["loss"] if set(part["accuracy"]) == {None} else part["accuracy"]


def _title(kind: str, size: str) -> str:
    if kind == "truncate":
        return "only the first layers"
    if kind == "swap":
        return f"swapped: {size} and the next {size}"
    return f"{'skipped' if kind == 'skip' else 'reversed'}: {size} in a row"


PROBES.add("interventions", Probe(measure_interventions, report_interventions, needs_config=True, needs_text=True))


# ---- the loss alone, of what a study has changed ----


def measure_loss(
    model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = 64, prompts: TaskPrompts = NO_TASKS
) -> dict[str, Any]:
    """loss: nats per token, the mean over sequences, each counting alike. tasks.NAME: for each task (or `text`, windows
    of the validation text) its loss, over `rows` prompts of at most `longest` tokens; missing: why a task has none.
    With `units` also units [i]: the loss of the i-th prompt of every task, by itself and as their mean."""
    read = sequences_of(model, corpus, seq_len, rows, prompts)
    by_task = {
        name: prompt_losses(model, each_sequence(model, name, ones)).tolist() for name, ones in read.sequences.items()
    }
    tasks = {name: {**read.about[name], "loss": _mean_loss(losses)} for name, losses in by_task.items()}
    mean = _mean_loss([loss for losses in by_task.values() for loss in losses])

    def of_unit(i: int) -> dict[str, Any]:
        unit = {name: losses[i] for name, losses in by_task.items()}
        tasks = {name: {"loss": rounded(loss, 5)} for name, loss in unit.items()}
        return {"loss": _mean_loss([*unit.values()]), "tasks": tasks}

    return {"loss": mean, "tasks": tasks, "missing": read.missing, **read.by_unit(of_unit)}


def _mean_loss(losses: Sequence[float]) -> float | None:
    """The mean, rounded, of those that are known; None if none is."""
    finite = [loss for loss in losses if loss == loss]
    return rounded(float(np.mean(finite)), 5) if finite else None


def report_loss(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each task, and one for all of them."""
    columns = ["task", "prompts", "mean tokens", "loss"]
    keys = ("sequences", "mean_length", "loss")
    rows = [[name, *(task[key] for key in keys)] for name, task in measured["tasks"].items()]
    yield Table("loss in nats per token", columns, [*rows, ["all", None, None, measured["loss"]]])
    yield from not_measured(measured)


PROBES.add(
    "loss",
    Probe(measure_loss, report_loss, needs_attention=False, needs_decoder="the loss of next tokens", needs_text=True),
)


# ---- without a mechanism ----


MECHANISMS = {
    "loops": "its loops",
    "copies": "the layers that growth copied",
    "refinement": "the refinement of attention",
}
NO_MECHANISM = "the model has no loop, no layer that growth copied and no attention that is refined"


def measure_without(
    model: Transformer, corpus: Corpus, seq_len: int, config: RunConfig, rows: Rows = 64
) -> dict[str, Any]:
    """Keys: sequences; loss, in nats per token of validation text; tasks.NAME, of the run's synthetic tasks, accuracy
    and loss. And for each mechanism that the model has, the same without it, with lost, the rise of the loss, and its
    stderr, paired by window: loops, copies, refinement; see `without_each`. rows: windows of text, and rows of tasks.
    """
    models = without_each(model)
    if not models:
        return {"skipped": NO_MECHANISM}
    measured = suite(model, corpus, config, seq_len, rows)
    unchanged = performance(measured, model)
    result: dict[str, Any] = {"sequences": len(unchanged.text), **_described(unchanged)}
    return result | {name: _described(performance(measured, changed), unchanged) for name, changed in models.items()}


def without_each(model: Transformer) -> dict[str, Transformer]:
    """The model without each mechanism that it has, by name; the weights are shared.

    loops: no visit runs again what has run, and loops over iterations have no update (`without_updates`). copies:
    without the layers that were copied in growth steps; the residual stream passes them by. refinement: plain softmax
    attention, as with λ = 0, in the heads that refine their weights.
    """
    plan, structure = model.plan, model.structure
    once = plan.without_repeats(model.shape.heads)
    copies = [layer for layer, origin in enumerate(structure.lineage or ()) if origin.stage > 0]
    skipped = plan.skip(*copies)
    rows = ((Full() if isinstance(kind, Belief) else kind for kind in row) for row in model.attention_map.layers)
    plain = AttentionMap(tuple(map(tuple, rows)))
    models = {}
    if once != plan or plan.loops:
        models["loops"] = without_updates(model.with_plan(once))
    if skipped != plan:
        models["copies"] = model.with_plan(skipped)
    if plain != model.attention_map:
        models["refinement"] = model.with_plan(attention_map=plain)
    return models


def without_updates(model: Transformer, topology: Topology | None = None) -> Transformer:
    """The model with all updates of its loops over iterations at 0, in all loops or in those of one topology; the
    weights are shared. In topology direct, where the update is the next state, the state stays as it is instead: at 0
    nothing would be left of the text, however little the loop does."""
    model_copy = model.with_plan()
    for loop, recurrence in zip(model_copy.plan.loops.values(), model_copy.recurrences, strict=True):
        if topology in (None, loop.topology):
            cast(Recurrence, recurrence).__dict__["iterate"] = _no_update
    return model_copy


def _no_update(loop: Loop, t: int, h: Tensor, body: Body) -> Tensor:
    """In the place of `Recurrence.iterate`."""
    return h if loop.topology == "direct" else torch.zeros_like(h)


def _described(result: Performance, base: Performance | None = None) -> dict[str, Any]:
    """Losses and accuracies; with `base`, the model as it is, also what is lost."""
    described: dict[str, Any] = {"loss": mean_of(result.text, 6)}
    if base is not None:
        rise = paired_difference(result.text, base.text)
        described |= {"lost": rounded(rise.value, 6), "stderr": rounded(rise.stderr, 6)}
    described["tasks"] = {}
    for name, (right, losses) in result.tasks.items():
        described["tasks"][name] = {"accuracy": mean_of(right, 6), "loss": mean_of(losses, 6)}
        if base is not None:
            described["tasks"][name]["lost"] = mean_of(losses - base.tasks[name][1], 6)
    return described


def report_without(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A table for the text and for each task, with a row for the model as it is and for each mechanism."""
    models = {"as it is": measured}
    models |= {f"without {words}": measured[name] for name, words in MECHANISMS.items() if name in measured}
    yield _table(f"loss in nats per token, {measured['sequences']} sequences", models, "stderr")
    for task in measured["tasks"]:
        answers = {label: values["tasks"][task] for label, values in models.items()}
        yield _table(f"{task}, loss in nats per answer", answers, "accuracy")


def _table(title: str, models: dict[str, Any], last: str) -> Table:
    columns = ["loss", "lost", last]
    return Table(title, ["model", *columns], [[label, *map(values.get, columns)] for label, values in models.items()])


PROBES.add("without", Probe(measure_without, report_without, needs_attention=False, needs_config=True, needs_text=True))
