"""The tasks of `hybridlab finetune`, as data: what a row of a file means, the classes, the measures, the hub's name.

    hybridlab finetune RUN --task sst2 --data reviews.tsv --validation dev.tsv

Each task is a `FineTask` in the registry FINETUNE_TASKS; the built-in ones are those of tasks.yaml, and a plug-in adds
one with `FINETUNE_TASKS.add(name, FineTask(…))`. Sources: GLUE (Wang et
al., 2018), SQuAD 1.1 (Rajpurkar et al., 2016), RACE (Lai et al., 2017), HellaSwag (Zellers et al., 2019), BoolQ (Clark
et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from hybridlab.registry import FINETUNE_TASKS

Kind = Literal["classes", "number", "choice", "span"]


@dataclass(frozen=True)
class Columns:
    """The columns of one accepted layout.

    texts: of the one or two texts; in multiple choice, the passage and, if there is one, the question; of spans, the
    question and the context. label: of the class, number, right option or answers. options: of the list of options.
    lists: a row has several questions, with lists in all columns but the first.
    """

    texts: tuple[str, ...]
    label: str = "label"
    options: str | None = None
    lists: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that a row needs."""
        return (*self.texts, *([self.options] if self.options else []), self.label)


@dataclass(frozen=True)
class Hub:
    """A dataset of the Hugging Face hub. splits: name of the part that is measured → split; the first is the one that
    local files give."""

    name: str
    config: str | None = None
    splits: dict[str, str] = field(default_factory=lambda: {"validation": "validation"})


@dataclass(frozen=True)
class FineTask:
    """A task.

    kind: classes (of one text or a pair), number (regression), choice (a row for each option, and a softmax over them)
    or span (the answer is a part of the context). metrics: the measures, the main one first; see
    evaluation/finetuned.py. classes: their names, in the order of their numbers; of multiple choice, the letters of
    the options. preset: the name of its settings in presets/finetune/. headerless: the columns of a table without a
    header. limits: the smallest and largest number that may be asked for. fill: the option replaces `_` in a question.
    """

    name: str
    title: str
    kind: Kind
    layouts: tuple[Columns, ...]
    metrics: tuple[str, ...]
    hub: Hub
    preset: str
    classes: tuple[str, ...] = ()
    headerless: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    fill: bool = False

    @property
    def options(self) -> int:
        """Rows of the model's input for one example."""
        return len(self.classes) if self.kind == "choice" else 1

    @property
    def wanted(self) -> str:
        """The columns of a row, in words."""
        return " or ".join(", ".join(columns.names) for columns in self.layouts)

    @property
    def labels(self) -> int:
        """Numbers that the model gives for a row of input."""
        return len(self.classes) if self.kind == "classes" else 1


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _add(name: str, layouts: list[Any], hub: dict[str, Any] | None = None, preset: str = "", **more: Any) -> None:
    """Register a task as tasks.yaml writes it."""
    written = [{"texts": layout} if isinstance(layout, list) else layout for layout in layouts]
    columns = tuple(Columns(**{key: _tuples(value) for key, value in layout.items()}) for layout in written)
    fields = {"kind": "classes", "metrics": ["accuracy"], **more}
    fields |= {"preset": preset or ("pair" if len(columns[0].texts) == 2 else "sentence")}
    fields |= {"hub": Hub(**(hub or {"name": "nyu-mll/glue", "config": name}))}
    task = FineTask(name=name, layouts=columns, **{key: _tuples(value) for key, value in fields.items()})
    FINETUNE_TASKS.add(name, task)


for _name, _fields in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items():
    _add(_name, **_fields)
