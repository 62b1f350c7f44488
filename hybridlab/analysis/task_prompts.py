"""Prompts of benchmark tasks as sequences for probes: what lm-eval asks of a model, up to the answer.

    hybridlab analyze RUN --probe entropy --tasks arc_easy,gsm8k --data-root DIR

The prompt of an example is the context of its first request, with solved examples before it if any are asked for. Of a
group of tasks, examples are taken evenly from all its tasks, and of a task evenly from its examples, so that every
model is measured on the same ones. A prompt that is too long loses its beginning: the last token is what counts.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.analysis.probe import spaced_windows
from hybridlab.data.files import DataRoot, data_root
from hybridlab.data.hub_access import without_hub
from hybridlab.errors import UserError
from hybridlab.evaluation.lm_eval_model import Scoring
from hybridlab.models.decoder import Transformer

TEXT = "text"
"""The name of windows of text, among those of tasks."""
_FEWSHOT_SEED = 1234
"""lm-eval's seed of the choice of solved examples."""


@dataclass(frozen=True)
class TokenizerAlone:
    """In the place of a corpus, for a model without text of its own: probes then read prompts of tasks."""

    tokenizer: Tokenizer


@dataclass(frozen=True)
class TaskPrompts:
    """Prompts of one task. sequences: each (S,), at most as long as was asked for. lengths: tokens of each prompt
    before anything was cut off. examples: how many the task has. shots: solved examples in each prompt."""

    task: str
    sequences: list[Tensor]
    lengths: list[int]
    examples: int
    shots: int

    @property
    def summary(self) -> dict[str, Any]:
        """For a record: how many prompts there are, and how long they are."""
        longest = max(len(sequence) for sequence in self.sequences)
        return {
            "sequences": len(self.sequences),
            "examples": self.examples,
            "shots": self.shots,
            "mean_length": round(sum(self.lengths) / len(self.lengths), 2),
            "shortest": min(self.lengths),
            "longest": max(self.lengths),
            "cut": sum(length > longest for length in self.lengths),
        }


Prompts = dict[str, TaskPrompts]
"""By the name of the task."""


@dataclass(frozen=True)
class PromptSettings:
    """Settings of a probe that say which prompts it reads; see `task_prompts`. shots, longest: None for 0 and for the
    length of the model's training."""

    tasks: tuple[str, ...]
    rows: int
    shots: int | None = None
    longest: int | None = None
    data_root: str | None = None

    def prompts(self, model: Transformer, tokenizer: Tokenizer, seq_len: int) -> tuple[Prompts, dict[str, str]]:
        """The prompts of each task, and why a task has none. UserError if they are longer than the model can be."""
        longest, positions = self.longest or seq_len, model.shape.max_positions
        if positions is not None and longest > positions:
            raise UserError(f"--longest {longest}: this model has learned positions for {positions} tokens only")
        return task_prompts(tokenizer, self.tasks, self.rows, longest, self.shots or 0, self.data_root)

    def sequences(
        self, model: Transformer, corpus: Any, seq_len: int
    ) -> tuple[dict[str, list[Tensor]], dict[str, dict[str, Any]], dict[str, str]]:
        """The sequences (S,) of each task, what a record says of them, and why a task has none. Without tasks, windows
        of the validation text, under the name `text`."""
        if not self.tasks:
            self.refuse_without_tasks()
            windows = list(spaced_windows(model, corpus, seq_len, self.rows))
            return {TEXT: windows}, {TEXT: {"sequences": len(windows), "mean_length": float(seq_len)}}, {}
        found, missing = self.prompts(model, corpus.tokenizer, seq_len)
        about = {name: one.summary for name, one in found.items()}
        return {name: one.sequences for name, one in found.items()}, about, missing

    def refuse_without_tasks(self) -> None:
        """UserError for a setting that has no effect on text."""
        for name in ("shots", "longest", "data_root"):
            if getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} has no effect without --tasks; leave it out")


def task_prompts(
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    rows: int,
    longest: int,
    shots: int = 0,
    folder: str | None = None,
) -> tuple[Prompts, dict[str, str]]:
    """`rows` prompts of each task by its name, with at most `longest` tokens; and why a task has none.

    folder: that of the tasks' files; None for the data root that is set, else the hub. UserError for a name that does
    not exist, and if no task has prompts.
    """
    root = data_root(None if folder is None else Path(folder))
    # lm-eval is imported in here: it reads at import whether the hub may be asked.
    with without_hub(wanted=root is not None):
        return _of_tasks(tokenizer, tasks, rows, longest, shots, root)


def _of_tasks(
    tokenizer: Tokenizer, tasks: Sequence[str], rows: int, longest: int, shots: int, root: Path | None
) -> tuple[Prompts, dict[str, str]]:
    """See `task_prompts`. root: the data root."""
    from hybridlab.evaluation.lm_eval_tasks import NotHere, load_task

    files = None if root is None else DataRoot(root)
    found: dict[str, TaskPrompts] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(tasks):
        try:
            loaded = load_task(name, files)
        except NotHere as error:
            missing[name] = error.reason
            continue
        found[name] = _prompts(name, list(loaded.tasks.values()), tokenizer, rows, longest, shots)
    if not found:
        name, reason = next(iter(missing.items()))
        raise UserError(f"--tasks {name}: {reason}")
    return found, missing


def _prompts(name: str, parts: list[Any], tokenizer: Tokenizer, rows: int, longest: int, shots: int) -> TaskPrompts:
    """Prompts of a task, or of the tasks of a group."""
    texts: list[str] = []
    shares = [len(numbers) for numbers in np.array_split(np.arange(rows), len(parts))]
    for part, share in zip(parts, shares, strict=True):
        texts += _texts(part, share, shots) if share else []
    encoded = [tokenizer.encode(text).ids for text in texts]
    kept = [torch.tensor(ids[-longest:]) for ids in encoded if ids]
    if not kept:
        raise UserError(f"--tasks {name}: its prompts are empty, so that there is no last token; leave it out")
    lengths = [len(ids) for ids in encoded if ids]
    return TaskPrompts(name, kept, lengths, sum(len(part.eval_docs) for part in parts), shots)


def _texts(task: Any, count: int, shots: int) -> list[str]:
    """The contexts of the first requests of `count` examples, evenly spaced over all of a task."""
    from hybridlab.evaluation.lm_eval_tasks import compiled_templates

    total = len(task.eval_docs)
    chosen = np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    # lm-eval shows a bar for each task, which takes no time.
    with compiled_templates(), contextlib.redirect_stderr(io.StringIO()):
        task.build_all_requests(samples=[int(number) for number in chosen])
    first: dict[int, str] = {}
    for request in task.instances:
        first.setdefault(request.doc_id, request.args[0])
    return list(first.values())


def each_sequence(model: Transformer, name: str, sequences: Sequence[Tensor]) -> Iterator[Tensor]:
    """(1, S): sequences (S,) one after the other, on the model's device, with a bar. name: of their task."""
    device = next(model.parameters()).device
    with Scoring(name, len(sequences)) as progress:
        for number, sequence in enumerate(sequences):
            yield sequence[None].to(device)
            if progress.bar:
                progress.update(number + 1)
