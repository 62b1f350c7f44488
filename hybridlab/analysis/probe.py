"""Probes: measurements on a trained model, shown by `hybridlab analyze` and stored in a run's record.

A module registers its probe under a name:

    PROBES.add("entropy", Probe(measure, report))

The built-in probes are in the modules of hybridlab/analysis/probes/, by subject. They read evenly spaced windows of the
validation text, the same for every model on the same data, and compute in fp32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import count
from typing import Any, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor

from hybridlab.config.schema import RunConfig
from hybridlab.config.types import PositiveInt
from hybridlab.data.batches import Windows, spaced
from hybridlab.data.finetune.corpus import TaskCorpus
from hybridlab.data.shards import Corpus
from hybridlab.errors import RunFailed, UserError
from hybridlab.messages import say
from hybridlab.models.decoder import Transformer
from hybridlab.models.taps import Taps
from hybridlab.plan.plan import Plan
from hybridlab.plan.visit import Place, layer_name
from hybridlab.plugins import as_json, calling, entries, is_own, refuse
from hybridlab.registry import PROBES

LONGEST = 256
"""Largest sequence length of probes that need whole attention matrices."""
SHOWN = 32
"""Length of a sequence that is shown token by token."""
Rows = PositiveInt
"""Type of a probe's setting for the number of sequences that it reads."""


Line = Sequence[str | int | float | None]
"""A line of a table. A cell without a value is None."""


@dataclass(frozen=True)
class Table:
    """A part of a report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Line]


def layer_table(
    title: str, columns: Sequence[str], lines: Iterable[Line], layers: Iterable[int] | None = None
) -> Table:
    """A table with a line for each layer of a model. layers: those of the lines, counted from 0; by default 0, 1, …."""
    numbered = zip(count() if layers is None else layers, lines, strict=False)
    rows = [[layer_name(layer).removeprefix("layer "), *line] for layer, line in numbered]
    return Table(title, ["layer from 0", *columns], rows)


_RESULT = "a dict of texts, finite numbers, lists and dicts (tensors as .tolist()), or {'skipped': 'why'}"
_REPORT = "texts and hybridlab.analysis.probe.Table, such as by `yield`"
Column = tuple[str, Sequence[str | int | float | None]]
"""Name and cells of a column."""


def split_table(
    title: str,
    labels: Column,
    columns: Sequence[Column],
    at_once: int,
    first: Sequence[Column] = (),
    last: Sequence[Column] = (),
) -> Iterator[Table]:
    """Tables that fit into 80 characters: so many of the columns in each, all with the labels of the lines, and the
    title above the first one. first, last: further columns, at the beginning of the first and the end of the last."""
    for start in range(0, max(1, len(columns)), at_once):
        end = start + at_once
        before, after = () if start else first, last if end >= len(columns) else ()
        names, cells = zip(labels, *before, *columns[start:end], *after, strict=True)
        yield Table("" if start else title, names, [list(line) for line in zip(*cells, strict=True)])


@dataclass(frozen=True)
class Probe:
    """A measurement, and the display of its result.

    measure: (model, corpus, seq_len, own settings with defaults) → a mapping that can be written as JSON, or
    {"skipped": reason} for a model that the probe does not apply to. report: that mapping → texts and tables in their
    order. needs_attention: whether models without attention are skipped. needs_decoder: what it measures of the tokens
    that follow others, in words; a model whose tokens see both sides is skipped for this reason. needs_text: whether it
    measures predictions of text: a model that gives no tokens is skipped, and one of chats on its examples.
    needs_config: whether `measure` takes the run's configuration as well, after seq_len; None for a model that is no
    run, and of which prompts of tasks are measured.

    A parameter of `measure` that is a dataclass, such as `TaskPrompts`, stands for several settings: its fields.
    """

    measure: Callable[..., dict[str, Any]]
    report: Callable[[dict[str, Any]], Iterator[str | Table]]
    needs_attention: bool = True
    needs_config: bool = False
    needs_decoder: str | None = None
    needs_text: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Name → default of the probe's own settings: the parameters of `measure` after those that every call gives."""
        return {name: default for name, (_, default) in self._fields().items()}

    def checked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, converted (also from text) to the types that `measure` declares; UserError if one cannot be"""
        fields: dict[str, Any] = self._fields()
        schema: type[BaseModel] = create_model("Settings", __config__=ConfigDict(extra="forbid"), **fields)
        try:
            return schema(**settings).model_dump(exclude_unset=True)
        except ValidationError as error:
            problem = error.errors()[0]
            name, message = ".".join(map(str, problem["loc"])), problem["msg"]
            if problem["type"] == "extra_forbidden":
                raise UserError(f"{name} is not a setting of this probe; known: {', '.join(self.settings)}") from None
            raise UserError(f"{name} = {problem['input']!r}: {message[0].lower()}{message[1:]}") from None

    def run(
        self, model: Transformer, corpus: Any, seq_len: int, config: RunConfig | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Its result on the validation part of a corpus, or {"skipped": reason} if it does not apply. corpus: a
        `Corpus`, or a `TokenizerAlone` for a probe that reads prompts of tasks. config: the run's configuration, for
        probes that need it. UserError for settings that it does not have."""
        settings = self.checked(settings)
        if self.needs_attention and all(visit.part == "mlp" for _, visit in model.plan.places()):
            return {"skipped": "the plan has no attention"}
        if self.needs_decoder is not None and not model.structure.causal:
            return {"skipped": f"it measures {self.needs_decoder}, and the tokens of an encoder see both sides"}
        if self.needs_text and not model.shape.gives_tokens:
            return {"skipped": "it measures predictions of tokens, and the output head of this model gives none"}
        # Prompts of a file, or of tasks, take the place of the corpus.
        own_prompts = settings.get("prompts") or settings.get("tasks")
        if self.needs_text and isinstance(corpus, TaskCorpus) and not own_prompts:
            return {"skipped": "it measures predictions of text, and this run reads examples; add --data text:PATH"}
        extra = (config,) if self.needs_config else ()
        with calling(self.measure):
            result = self.measure(model.eval(), corpus, seq_len, *extra, **self._arguments(settings))
        if is_own(self.measure):
            if not isinstance(result, dict):
                refuse(self.measure, "", result, _RESULT)
            as_json(self.measure, "", result, _RESULT)
        return result

    def parts(self, result: dict[str, Any]) -> Iterator[str | Table]:
        """The report of a result."""
        with calling(self.report):
            parts = [*entries(self.report, "", self.report(result), _REPORT)]
        for part in parts:
            if not isinstance(part, str | Table):
                refuse(self.report, "", part, _REPORT)
            yield part

    def for_record(
        self, model: Transformer, corpus: Corpus, config: RunConfig, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Its result with these settings of its own, for a record. After a UserError, and where the code of a plug-in
        raises, it is {"skipped": reason}, so that the run keeps its other results."""
        try:
            return self.run(model, corpus, config.training.seq_len, config, **settings)
        except (UserError, RunFailed) as reason:
            if is_own(self.measure):
                say(f"warning: a probe has no result: {reason}")
            elif isinstance(reason, RunFailed):
                raise
            return {"skipped": str(reason)}

    def _fields(self) -> dict[str, tuple[Any, Any]]:
        """Name → (type, default); if `measure` declares no type, it is that of the default."""
        declared: dict[str, tuple[Any, Any]] = {}
        for parameter in self._parameters():
            annotation, default = parameter.annotation, parameter.default
            if default is parameter.empty:
                raise TypeError(f"the setting {parameter.name!r} of a probe needs a default")
            if is_dataclass(annotation):
                types = get_type_hints(annotation, include_extras=True)
                declared |= {field.name: (types[field.name], field.default) for field in fields(annotation)}
            else:
                declared[parameter.name] = (type(default) if annotation is parameter.empty else annotation, default)
        return declared

    def _parameters(self) -> list[inspect.Parameter]:
        """Those of `measure` after the ones that every call gives."""
        return [*inspect.signature(self.measure, eval_str=True).parameters.values()][4 if self.needs_config else 3 :]

    def _arguments(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as the arguments of `measure`, in which a group of them is one."""
        left = dict(settings)
        for parameter in self._parameters():
            if is_dataclass(parameter.annotation):
                group: Any = parameter.annotation
                left[parameter.name] = group(**{f.name: left.pop(f.name) for f in fields(group) if f.name in left})
        return left


def run_probe(
    name: str, model: Transformer, corpus: Any, seq_len: int, config: RunConfig | None = None, **settings: Any
) -> dict[str, Any]:
    """The result of the probe of this name; see `Probe.run`."""
    probe = PROBES.get(name)
    if probe.needs_config and config is None and not settings.get("tasks"):
        raise UserError(f"probe {name}: it needs the run's configuration; call run_probe with config=, or with tasks=")
    return probe.run(model, corpus, seq_len, config, **settings)


def check_probe_settings(config: RunConfig) -> None:
    """UserError for a setting in evaluation.probe_settings that its probe does not have, or that cannot be."""
    for name, settings in (config.evaluation.probe_settings or {}).items():
        try:
            PROBES.get(name).checked(settings)
        except UserError as wrong:
            raise UserError(f"evaluation.probe_settings.{name}: {wrong}") from None


def spaced_windows(model: Transformer, corpus: Corpus, length: int, count: int) -> Tensor:
    """(count, length): windows of tokens, evenly spaced over the validation part, on the model's device. Fewer windows
    if the corpus has fewer; UserError if it has none."""
    windows = Windows(corpus.validation, length)
    if not len(windows):
        advice = "give more text"
        if isinstance(corpus, TaskCorpus) and corpus.task is not None:
            chats = corpus.task.kind == "chat"
            advice = "add --data embedded or text:PATH" if chats else "add --data PATH, a longer file of the task"
        raise UserError(f"the validation part of {corpus.folder} has no {length} tokens in a row; {advice}")
    return torch.from_numpy(windows.rows(spaced(len(windows), count)).tokens).to(model.device)


def rounded(values: Any, digits: int) -> Any:
    """A tensor, nested lists or a number, rounded, as JSON has it: None for what is None or NaN."""
    values = values.tolist() if isinstance(values, Tensor) else values
    if isinstance(values, list):
        return [rounded(value, digits) for value in values]
    return None if values is None or values != values else round(values, digits)


def measured_heads(plan: Plan, num_heads: int, places: Container[Place]) -> Iterator[tuple[Place, int, int, int]]:
    """(place, layer, head, row) of every query head whose attention was measured, in the order of execution. places:
    those with attention weights (B, H, Q, S), in which `row` is the head."""
    for place, visit in plan.places():
        if place in places:
            for row, head in enumerate(visit.heads or range(num_heads)):
                yield place, visit.layer, head, row


class Visits(Taps):
    """Stores the input (B, S, W) of every visit, and what it added to it."""

    def __init__(self) -> None:
        self.inputs: dict[Place, Tensor] = {}
        self.added: dict[Place, Tensor] = {}

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        self.inputs[place], self.added[place] = x, delta
