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
from typing import Literal

import yaml
from pydantic import TypeAdapter

from hybridlab.registry import FINETUNE_TASKS

Kind = Literal["classes", "number", "choice", "span", "chat"]


@dataclass(frozen=True)
class Columns:
    """The columns of one accepted layout.

    texts: of the one or two texts; in multiple choice, the passage and, if there is one, the question; of spans, the
    question and the context; of chats, all that the user says, or none where there are whole chats. label: of the
    class, number, right option, answers, or chat. options: of the list of options. lists: a row has several questions,
    with lists in all columns but the first.
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

    kind: classes (of one text or a pair), number (regression), choice (a row for each option, and a softmax over them),
    span (the answer is a part of the context) or chat (the tokens of the answers). metrics: the measures, the main one
    first; see evaluation/finetuned.py. classes: their names, in the order of their numbers; of multiple choice, the
    letters of the options. hub: None for a task that has no dataset of its own. preset: the name of its settings in
    presets/finetune/. headerless: the columns of a table without a header. limits: the smallest and largest number that
    may be asked for. fill: the option replaces `_` in a question.
    """

    name: str
    title: str
    kind: Kind
    layouts: tuple[Columns, ...]
    metrics: tuple[str, ...]
    hub: Hub | None
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
    def measured(self) -> str:
        """The name of the part that is measured, where files do not name it."""
        return next(iter(self.hub.splits)) if self.hub else "validation"

    @property
    def wanted(self) -> str:
        """The columns of a row, in words."""
        return " or ".join(", ".join(columns.names) for columns in self.layouts)

    @property
    def labels(self) -> int:
        """Numbers that the model gives for a row of input."""
        return len(self.classes) if self.kind == "classes" else 1


_TASK = TypeAdapter(FineTask)
for _name, _written in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items():
    _layouts = [{"texts": layout} if isinstance(layout, list) else layout for layout in _written["layouts"]]
    _task = {
        "kind": "classes",
        "metrics": ["accuracy"],
        "hub": {"name": "nyu-mll/glue", "config": _name},
        "preset": "pair" if len(_layouts[0]["texts"]) == 2 else "sentence",
        **_written,
    }
    FINETUNE_TASKS.add(_name, _TASK.validate_python({**_task, "name": _name, "layouts": _layouts}))
