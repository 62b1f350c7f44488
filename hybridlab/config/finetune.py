"""The setting `finetune`: the task that a trained model learns in place of its text."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from hybridlab.config.types import PositiveFloat, PositiveInt, Strict, name_in
from hybridlab.errors import SettingsConflict
from hybridlab.files import user_path
from hybridlab.registry import FINETUNE_TASKS

ROOT = "root:"
"""Begins a path below the data root (`--data-root`), which is stored as it is, so that a run has the same hash on every
machine."""


def _absolute(path: str) -> str:
    return path if path.startswith(ROOT) else str(user_path(path).absolute())


TaskPath = Annotated[str, AfterValidator(_absolute)]


Projection = Literal["q", "k", "v", "o", "gate", "up", "down"]
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)
"""The matrices of a block that can have an adapter."""


class Lora(Strict):
    """Low-rank adapters (LoRA) beside the matrices of the blocks, which alone are trained, with a new output head; the
    finished model has them in its weights."""

    rank: PositiveInt
    """Rank of an adapter."""
    alpha: PositiveFloat | None = None
    """What an adapter adds is multiplied by alpha / rank. Default: twice the rank."""
    projections: Annotated[list[Projection], Field(min_length=1)] | None = None
    """The matrices that get an adapter. Default: all that the family has."""

    def of(self, gated: bool) -> list[str]:
        """The matrices of a block that get an adapter. gated: whether its MLP has a gate."""
        return [name for name in self.projections or PROJECTIONS if gated or name != "gate"]

    @property
    def factor(self) -> float:
        """What an adapter adds is multiplied by this."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


class Finetune(Strict):
    """A task with labels, or chats: its examples, and how many of them are a step."""

    task: Annotated[str, name_in(FINETUNE_TASKS, "task")]
    """sst2, cola, mrpc, rte, qnli, qqp, mnli, stsb, wnli, squad, race, race-middle, hellaswag, boolq, or sft for
    answers in chats."""
    data: TaskPath | None = None
    """A file of training examples (.tsv, .csv, .jsonl, .json, .parquet), or a folder with train.* and validation.* or
    dev.*; it is stored with its absolute path. root:PATH is a path below the data root (`--data-root`). Default: the
    task's dataset of the Hugging Face hub."""
    validation: TaskPath | None = None
    """A file of examples to measure with. Default: that of the folder or of the hub; else a share of the training
    examples is held out."""
    validation_fraction: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of the training examples that is held out where there is no file to measure with: drawn once, the same for
    all seeds. squad, race, race-middle and hellaswag keep all examples on a passage together; in other tasks, such as
    boolq and qnli, held-out examples may share a passage with training. Default: 0.1."""
    max_examples: PositiveInt | None = None
    """Read only this many examples of each part, evenly spaced. Default: all."""
    batch: PositiveInt = 32
    """Examples in one optimizer step; of sft rows, which short chats share."""
    epochs: PositiveFloat | None = None
    """Passes over the training examples; they choose training.steps. Default: training.steps as they are."""
    lora: Lora | None = None
    """Train adapters in place of the weights (LoRA). Default: none."""
    stride: PositiveInt | None = None
    """Spans: tokens from the start of one window over a long context to the next. Default: half a window."""
    answer_tokens: PositiveInt | None = None
    """Spans: tokens that an answer has at most. Default: 30."""

    @model_validator(mode="after")
    def _has_effect(self) -> Finetune:
        if self.validation is not None and self.validation_fraction is not None:
            raise SettingsConflict(
                "validation_fraction has no effect beside a file to measure with; leave out one of validation and "
                "validation_fraction",
                "validation",
                "validation_fraction",
            )
        task = FINETUNE_TASKS.get(self.task)
        if task.hub is None and self.data is None:
            raise SettingsConflict(
                f"the task {self.task} has no dataset of its own; give a file with --data PATH (finetune.data)", "data"
            )
        spans = task.kind == "span"
        for name in ("stride", "answer_tokens"):
            if getattr(self, name) is not None and not spans:
                raise SettingsConflict(
                    f"{name} has no effect on the task {self.task}, which has no spans; leave it out", name
                )
        return self

    @property
    def held_out(self) -> float:
        """The share of the training examples that is held out without a file to measure with."""
        return 0.1 if self.validation_fraction is None else self.validation_fraction
