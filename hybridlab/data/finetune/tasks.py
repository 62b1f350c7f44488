"""The tasks of `hybridlab finetune`, as data: what a row of a file means, the classes, the measures, the hub's name.

    hybridlab finetune RUN --task sst2 --data reviews.tsv --validation dev.tsv

Each task is a `FineTask` in the registry FINETUNE_TASKS; a plug-in adds one in the same way. Sources: GLUE (Wang et
al., 2018), SQuAD 1.1 (Rajpurkar et al., 2016), RACE (Lai et al., 2017), HellaSwag (Zellers et al., 2019), BoolQ (Clark
et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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


def _glue(
    name: str,
    title: str,
    layouts: tuple[Columns, ...],
    classes: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
    splits: dict[str, str] | None = None,
    headerless: tuple[str, ...] = (),
) -> None:
    """Register a classification task of GLUE."""
    hub = Hub("nyu-mll/glue", name, splits or {"validation": "validation"})
    preset = "pair" if len(layouts[0].texts) == 2 else "sentence"
    FINETUNE_TASKS.add(name, FineTask(name, title, "classes", layouts, metrics, hub, preset, classes, headerless))


_PAIR = Columns(("sentence1", "sentence2"))
_ENTAILED = ("entailment", "not_entailment")
_LETTERS = ("A", "B", "C", "D")

_glue("sst2", "sentiment of a sentence", (Columns(("sentence",)),), ("negative", "positive"))
_glue(
    "cola",
    "whether a sentence is acceptable English",
    (Columns(("sentence",)),),
    ("unacceptable", "acceptable"),
    ("matthews", "accuracy"),
    headerless=("source", "label", "mark", "sentence"),
)
_glue(
    "mrpc",
    "whether two sentences mean the same",
    (_PAIR, Columns(("#1 String", "#2 String"), "Quality")),
    ("not_equivalent", "equivalent"),
    ("accuracy", "f1"),
)
_glue("rte", "whether one sentence entails another", (_PAIR,), _ENTAILED)
_glue("qnli", "whether a sentence answers a question", (Columns(("question", "sentence")),), _ENTAILED)
_glue(
    "qqp",
    "whether two questions ask the same",
    (Columns(("question1", "question2")), Columns(("question1", "question2"), "is_duplicate")),
    ("not_duplicate", "duplicate"),
    ("accuracy", "f1"),
)
_glue(
    "mnli",
    "entailment, neutral or contradiction",
    (Columns(("premise", "hypothesis")), Columns(("sentence1", "sentence2"), "gold_label")),
    ("entailment", "neutral", "contradiction"),
    splits={"validation": "validation_matched", "mismatched": "validation_mismatched"},
)
_glue("wnli", "whether a sentence follows, with a pronoun resolved", (_PAIR,), ("not_entailment", "entailment"))
FINETUNE_TASKS.add(
    "stsb",
    FineTask(
        "stsb",
        "similarity of two sentences, from 0 to 5",
        "number",
        (Columns(("sentence1", "sentence2"), "score"), _PAIR),
        ("pearson", "spearman"),
        Hub("nyu-mll/glue", "stsb"),
        "pair",
        limits=(0.0, 5.0),
    ),
)
FINETUNE_TASKS.add(
    "squad",
    FineTask(
        "squad",
        "the part of a paragraph that answers a question",
        "span",
        (Columns(("question", "context"), "answers"),),
        ("f1", "exact_match"),
        Hub("rajpurkar/squad"),
        "span",
    ),
)
for _name, _config in (("race", "all"), ("race-middle", "middle")):
    FINETUNE_TASKS.add(
        _name,
        FineTask(
            _name,
            "questions on a passage" + (", of the middle-school part" if _name != "race" else ""),
            "choice",
            (
                Columns(("article", "question"), "answer", options="options"),
                Columns(("article", "questions"), "answers", options="options", lists=True),
            ),
            ("accuracy",),
            Hub("ehovy/race", _config),
            "passage",
            _LETTERS,
            fill=True,
        ),
    )
FINETUNE_TASKS.add(
    "hellaswag",
    FineTask(
        "hellaswag",
        "which ending goes on with a text",
        "choice",
        (Columns(("ctx",), options="endings"),),
        ("accuracy",),
        Hub("Rowan/hellaswag"),
        "endings",
        _LETTERS,
    ),
)
FINETUNE_TASKS.add(
    "boolq",
    FineTask(
        "boolq",
        "a yes-no question on a passage",
        "classes",
        (Columns(("question", "passage"), "answer"), Columns(("question", "passage"))),
        ("accuracy",),
        Hub("google/boolq"),
        "passage",
        ("false", "true"),
    ),
)
