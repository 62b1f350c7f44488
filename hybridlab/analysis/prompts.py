"""Sequences that probes read: windows of the validation text, prompts from a file, or prompts of benchmark tasks.

For the effects of layers on future tokens each sequence has boundaries t: tokens before t are intervened on, and those
from t on are measured.

    hybridlab analyze RUN --probe entropy --tasks arc_easy,gsm8k --data-root DIR

The prompt of an example of a task is the context of its first request in lm-eval, with solved examples before it if any
are asked for. Of a group of tasks, examples are taken evenly from all its tasks, and of a task evenly from its
examples, so that every model is measured on the same ones. A prompt that is too long loses its beginning: the last
token is what counts.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.analysis.probe import LONGEST, spaced_windows
from hybridlab.config.finetune import ROOT
from hybridlab.config.maps import TEXT
from hybridlab.config.types import NonNegativeInt, PositiveInt, Seed
from hybridlab.data.batches import spaced
from hybridlab.data.files import NO_ROOT, DataRoot, TaskDataset, data_root, has_fields, prompts_of
from hybridlab.data.hub_access import without_hub
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError, nearest
from hybridlab.files import user_path
from hybridlab.models.decoder import Transformer
from hybridlab.training.progress import followed

SPACING = 8
"""Boundaries in a text without an answer are multiples of it; the reference code's, as is `LEFT`."""
LEFT = 5
"""So many tokens at least lie after such a boundary."""
FIRST = 2
"""The first boundary with something before it to intervene on: the first token is never intervened on."""
_FROM_ROOT = ("math", "mquake", "gsm8k")
"""Benchmarks whose files give prompts with answers; see presets/benchmarks/files.yaml."""


def _split(value: Any) -> Any:
    """Texts such as `8,16` or `[8, 16]` as a list."""
    return [part.strip() for part in value.strip("[]").split(",") if part.strip()] if isinstance(value, str) else value


Numbers = Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_split)]
"""Type of a setting that is a list of numbers from 0 on, on the command line `8,16`."""
Layers = Annotated[
    tuple[NonNegativeInt | Annotated[str, Field(pattern=r"^\d+/[1-9]\d*$")], ...], BeforeValidator(_split)
]
"""Type of a setting that names layers, from 0 on or as shares: 9/28 is layer 9 of 28 and 4 of 14."""
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1), BeforeValidator(_split)]
"""Type of a setting that is a list of numbers from 1 on."""
Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Type of a setting that is a list of words, on the command line `current,future`."""


@dataclass(frozen=True)
class Example:
    """tokens (S,). boundaries: where its future begins, each with tokens before and after it. group: its level."""

    tokens: Tensor
    boundaries: tuple[int, ...]
    group: str | None = None


@dataclass(frozen=True)
class Future:
    """The settings of a probe of future tokens: what it reads in place of prompts of tasks, and boundaries.

    boundaries: so many (by default 4) at random, by `seed` (0), among multiples of SPACING, or for a prompt with an
    answer among answer start + stride · k (4); with a stride of 0 the answer start alone. at: these boundaries instead.
    prompts: see `prompts_named`; by default windows of validation text. by: the field of a file that names the level.
    """

    boundaries: PositiveInt | None = None
    at: Numbers | None = None
    stride: NonNegativeInt | None = None
    prompts: str | None = None
    by: str | None = None
    seed: Seed | None = None

    def check(self, measured: bool) -> None:
        """UserError for a setting that has no effect: on windows of text, beside `at`, or where nothing of the future
        is measured."""
        unused: dict[str, str] = {}
        if self.prompts is None:
            unused["stride"] = (
                "windows of text have no answers, from which it counts, nor have prompts of tasks; add --prompts FILE"
            )
            if self.at is not None or not measured:
                unused["seed"] = "nothing is chosen at random; leave it out"
        if self.at is not None:
            unused |= dict.fromkeys(("boundaries", "stride"), "--at names the boundaries; leave one of the two out")
        if not measured:
            why = "only the mode future has boundaries; leave it out"
            unused |= dict.fromkeys(("boundaries", "stride", "at"), why)
        for name, why in unused.items():
            if getattr(self, name) is not None:
                raise UserError(f"--{name} has no effect here: {why}")
        if self.prompts is None and self.by is not None:
            raise UserError("--by names a field of a file of prompts; give --prompts FILE too, or leave it out")

    def chosen(self, length: int, answer: int | None, number: int) -> tuple[int, ...]:
        """The boundaries of sequence `number`; empty if none has a future. answer: position of the answer's first
        token."""
        if self.at is not None:
            return tuple(t for t in self.at if FIRST <= t < length)
        stride = 4 if self.stride is None else self.stride
        if answer is None:
            places = list(range(SPACING, length - LEFT + 1, SPACING))
        else:
            places = list(range(answer, length, stride)) if stride else [answer][: answer < length]
        rng = np.random.default_rng((self.seed or 0, number))
        return tuple(sorted(rng.permutation([t for t in places if t >= FIRST])[: self.boundaries or 4].tolist()))


@dataclass(frozen=True)
class Examples:
    """examples: one after the other, those of a task together. read: the prompts of tasks that they are, if any."""

    examples: list[Example]
    read: Sequences | None = None

    def said(self) -> dict[str, Any]:
        """What a result says of prompts of tasks."""
        return {} if self.read is None else {"prompts": self.read.about, "missing": self.read.missing}

    def by_unit(self, measured: Callable[[list[int]], dict[str, Any]]) -> dict[str, Any]:
        """units [i]: what is measured of the examples of unit i, whose numbers in the list it gets."""
        if self.read is None:
            return {}
        rows = len(self.examples) // len(self.read.sequences)
        return self.read.by_unit(lambda i: measured([*range(i, len(self.examples), rows)]))


def examples(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: int,
    future: Future,
    of_tasks: TaskPrompts,
    measured: bool = True,
) -> Examples:
    """`rows` windows of validation text, or of a file of prompts `rows` of every level, or prompts of every task, which
    is their level. measured: whether they need boundaries. UserError if they do and no sequence has one with tokens
    after it, or none has one that is asked for, or a unit has none; for settings without effect, and for a file that
    cannot be read."""
    future.check(measured)
    if future.prompts is not None and of_tasks.tasks:
        raise UserError("--prompts and --tasks both name the prompts; leave one of the two out")
    read, sequences = None, list[tuple[Tensor, int | None, str | None]]()
    if of_tasks.tasks:
        read = sequences_of(model, corpus, seq_len, rows, of_tasks)
        sequences = [(prompt, None, name) for name, ones in read.sequences.items() for prompt in ones]
    else:
        of_tasks.require_tasks()
        if future.prompts is None:
            windows = spaced_windows(model, corpus, min(seq_len, LONGEST), rows)
            sequences = [(window, None, None) for window in windows]
        else:
            prompts = prompts_named(future.prompts, future.by)
            sequences = list(_prompted(corpus.tokenizer, prompts, rows, future.seed or 0))
    examples = [
        Example(tokens.to(model.device), future.chosen(len(tokens), answer, i) if measured else (), group)
        for i, (tokens, answer, group) in enumerate(sequences)
    ]
    if measured:
        _require_boundaries(examples, future.at or (), of_tasks.units)
    return Examples(examples, read)


def _require_boundaries(examples: Sequence[Example], at: Sequence[int], units: bool) -> None:
    """UserError if no example has a boundary, or none has one of `at`; with units, if one has none."""
    if units and (short := [example for example in examples if not example.boundaries]):
        raise UserError(
            f"units: a prompt of {short[0].group} has {len(short[0].tokens)} tokens, which leave no future to measure; "
            "name another task"
        )
    boundaries = {t for example in examples for t in example.boundaries}
    lost = [t for t in at if t not in boundaries]
    if lost or not boundaries:
        longest = max(len(example.tokens) for example in examples)
        where = f"the boundaries {', '.join(map(str, lost))} in " if lost else ""
        raise UserError(
            f"{where}sequences of at most {longest} tokens leave no future tokens to measure; give a boundary from "
            f"{FIRST} on with tokens after it"
        )


# ---- files of prompts ----


@dataclass(frozen=True)
class Prompt:
    """A prompt, its answer if it has one, and its level. The model reads prompt + answer."""

    text: str
    answer: str | None = None
    group: str | None = None


def prompts_named(name: str, by: str | None = None) -> list[Prompt]:
    """The prompts of a file, or, as root:math, root:mquake and root:gsm8k, those of a benchmark below the data root.
    UserError if they cannot be read."""
    if not name.startswith(ROOT):
        return read_prompts(user_path(name), by)
    root, benchmark = data_root(), name.removeprefix(ROOT)
    if root is None:
        raise UserError(f"--prompts {name}: {NO_ROOT}")
    if benchmark not in _FROM_ROOT:
        raise UserError(f"--prompts {name}: there are no such prompts; {nearest(benchmark, list(_FROM_ROOT))}")
    files = DataRoot(root)
    dataset = TaskDataset(benchmark, "hybridlab", f"{benchmark}_prompts")
    served = files.split(dataset, "test")
    if served is None:
        raise UserError(f"--prompts {name}: {files.missing(dataset, ('test',))}")
    return [_of_row(row, by, f"{root}/{served.files[0]}") for row in served.rows]


def read_prompts(path: Path, by: str | None = None) -> list[Prompt]:
    """The prompts of a file: of a .jsonl or .json file the fields `prompt`, `answer` (optional) and `level` or `hops`
    (optional; by: another field), else each line that is not empty. UserError with the line for what is no prompt."""
    lines = prompts_of(path)
    if not lines:
        raise UserError(f"{path}: the file has no prompts; give a prompt in each line")
    fields = has_fields(path)
    return [_of_row(line.values, by, line.origin) if fields else Prompt(line.values) for line in lines]


def _of_row(fields: Any, by: str | None, origin: str) -> Prompt:
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str) or not fields["prompt"]:
        raise UserError(f'{origin}: no text in field "prompt"; write {{"prompt": …, "answer": …, "level": …}}')
    answer = fields.get("answer")
    if answer is not None and not (isinstance(answer, str) and answer):
        raise UserError(f'{origin}: the field "answer" is no text; leave it out where there is no answer')
    if by is not None and by not in fields:
        raise UserError(f"{origin}: no field {by!r}; it has: {', '.join(fields)}")
    group = fields[by] if by is not None else fields.get("level", fields.get("hops"))
    return Prompt(fields["prompt"], answer, None if group is None else str(group))


def _prompted(
    tokenizer: Tokenizer, prompts: list[Prompt], rows: int, seed: int
) -> Iterator[tuple[Tensor, int | None, str | None]]:
    """(tokens, position of the answer's first one, level) of `rows` prompts of each level, at random by the seed."""
    levels: dict[str | None, list[Prompt]] = {}
    for prompt in prompts:
        levels.setdefault(prompt.group, []).append(prompt)
    for group in sorted(levels, key=lambda name: (name is not None, name or "")):
        order = np.random.default_rng(seed).permutation(len(levels[group]))
        for i in order[:rows]:
            ids, answer = encoded(tokenizer, levels[group][int(i)])
            yield torch.tensor(ids), answer, group


def encoded(tokenizer: Tokenizer, prompt: Prompt) -> tuple[list[int], int | None]:
    """Token ids of prompt + answer, and the position of the first token with a character of the answer."""
    text = prompt.text + (prompt.answer or "")
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if prompt.answer is None:
        return encoding.ids, None
    start = len(prompt.text)
    first = next((i for i, (_, end) in enumerate(encoding.offsets) if end > start), None)
    if first is None:
        raise UserError(f"the answer {prompt.answer!r} of a prompt has no token of this tokenizer; write another one")
    return encoding.ids, first


# ---- prompts of benchmark tasks ----


@dataclass(frozen=True)
class TokenizerAlone:
    """In the place of a corpus, for a model without text of its own: probes then read prompts of tasks."""

    tokenizer: Tokenizer


@dataclass(frozen=True)
class TaskPrompts:
    """The settings of a probe that reads prompts of tasks; without tasks it reads windows of the validation text.

    shots: solved examples in each prompt; none by default. longest: tokens of a prompt at most, by default the length
    of the model's training. data_root: of the tasks' files, by default the data root that is set, else the hub. units:
    whether also each prompt is measured by itself: unit i of a result is the i-th prompt of every task.
    """

    tasks: Words = ()
    shots: NonNegativeInt | None = None
    longest: PositiveInt | None = None
    data_root: str | None = None
    units: bool = False

    def require_tasks(self) -> None:
        """UserError for settings that have no effect on windows of text."""
        if self.tasks:
            return
        for name, value in {"shots": self.shots, "longest": self.longest, "data-root": self.data_root}.items():
            if value is not None:
                raise UserError(f"--{name} has no effect without --tasks; leave it out")
        if self.units:
            raise UserError("units are prompts, one of every task; give --tasks too")


NO_TASKS, BY_DEFAULT = TaskPrompts(), Future()


@dataclass(frozen=True)
class Sequences:
    """sequences: those of each task, each (S,). about: what a record says of them. missing: why a task has none."""

    sequences: dict[str, list[Tensor]]
    about: dict[str, dict[str, Any]]
    missing: dict[str, str]
    units: bool

    def by_unit(self, measured: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """units [i]: what is measured of unit i; nothing where no units are asked for."""
        return {"units": [measured(i) for i in unit_rows(self.about)]} if self.units else {}


def sequences_of(model: Transformer, corpus: Any, seq_len: int, rows: int, prompts: TaskPrompts) -> Sequences:
    """`rows` prompts of each task. Without tasks, windows of the validation text, under the name `text`.

    UserError for prompts that are longer than the model can be, for a task that does not exist, if no task has prompts,
    for units of unequal tasks, and for a setting that has no effect on text.
    """
    prompts.require_tasks()
    if not prompts.tasks:
        windows = list(spaced_windows(model, corpus, seq_len, rows))
        return Sequences({TEXT: windows}, {TEXT: {"sequences": len(windows), "mean_length": float(seq_len)}}, {}, False)
    longest, positions = prompts.longest or seq_len, model.shape.max_positions
    if positions is not None and longest > positions:
        raise UserError(f"--longest {longest}: this model has learned positions for {positions} tokens only")
    loaded, missing = loaded_tasks(prompts)
    sequences: dict[str, list[Tensor]] = {}
    about: dict[str, dict[str, Any]] = {}
    for name, parts in loaded.items():
        sequences[name], about[name] = _of_task(name, parts, corpus.tokenizer, rows, prompts.shots or 0, longest)
    if prompts.units:
        # Before anything is measured.
        unit_rows(about)
    return Sequences(sequences, about, missing, prompts.units)


def loaded_tasks(prompts: TaskPrompts) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Name → lm-eval's tasks of it, one or those of a group; and why others are not here. UserError for a task that
    does not exist, and if none is here."""
    root = data_root(None if prompts.data_root is None else user_path(prompts.data_root))
    # lm-eval is imported in here: it reads at import whether the hub may be asked.
    with without_hub(wanted=root is not None):
        from hybridlab.evaluation.lm_eval_names import matching
        from hybridlab.evaluation.lm_eval_tasks import NotHere, load_tasks

        loaded, missing = load_tasks(matching(prompts.tasks), None if root is None else DataRoot(root))
    if not loaded:
        raise NotHere(*next(iter(missing.items())))
    return {name: list(task.tasks.values()) for name, task in loaded.items()}, missing


def _of_task(
    name: str, parts: list[Any], tokenizer: Tokenizer, rows: int, shots: int, longest: int
) -> tuple[list[Tensor], dict[str, Any]]:
    """The prompts of a task, or of the tasks of a group, and what a record says of them: lengths before anything was
    cut off."""
    texts = [requests[0].args[0] for requests in requests_of(parts, rows, shots)]
    prompts = [ids for text in texts if (ids := tokenizer.encode(text).ids)]
    if not prompts:
        raise UserError(f"--tasks {name}: its prompts are empty, so that there is no last token; leave it out")
    lengths = [len(ids) for ids in prompts]
    return [torch.tensor(ids[-longest:]) for ids in prompts], {
        "sequences": len(prompts),
        "examples": sum(len(part.eval_docs) for part in parts),
        "shots": shots,
        "mean_length": round(sum(lengths) / len(lengths), 2),
        "shortest": min(lengths),
        "longest": max(lengths),
        "cut": sum(length > longest for length in lengths),
    }


def requests_of(parts: Sequence[Any], rows: int, shots: int) -> list[list[Any]]:
    """lm-eval's requests of each of `rows` examples, from all parts of a task alike and evenly spaced over each."""
    from hybridlab.evaluation.lm_eval_options import give_shots
    from hybridlab.evaluation.lm_eval_tasks import compiled_templates

    shares = [len(numbers) for numbers in np.array_split(np.arange(rows), len(parts))]
    by_example: dict[tuple[int, int], list[Any]] = {}
    for number, (task, share) in enumerate(zip(parts, shares, strict=True)):
        if not share:
            continue
        give_shots(task, shots)
        # lm-eval shows a bar for each task, which takes no time.
        with compiled_templates(), contextlib.redirect_stderr(io.StringIO()):
            task.build_all_requests(samples=spaced(len(task.eval_docs), share).tolist())
        for request in task.instances:
            by_example.setdefault((number, request.doc_id), []).append(request)
    return list(by_example.values())


def unit_rows(about: Mapping[str, Mapping[str, Any]]) -> range:
    """The numbers of the units in which prompts are measured by themselves: unit i is the i-th prompt of every task, so
    that each unit has all tasks. about: what a record says of each task. UserError if a task has fewer prompts than
    another, which its units would lack."""
    counts = {name: int(facts["sequences"]) for name, facts in about.items()}
    if len({*counts.values()}) > 1:
        few = min(counts, key=counts.__getitem__)
        raise UserError(
            f"units: {few} has {counts[few]} prompts, and other tasks more; give --rows {counts[few]}, or leave it out"
        )
    return range(min(counts.values()))


def not_measured(measured: Mapping[str, Any]) -> Iterator[str]:
    """A line for each task without prompts."""
    for name, reason in measured.get("missing", {}).items():
        yield f"not measured: {name}: {reason}"


def each_sequence(model: Transformer, name: str, sequences: Sequence[Tensor]) -> Iterator[Tensor]:
    """(1, S): sequences (S,) one after the other, on the model's device, with progress. name: of their task."""
    for sequence in followed(sequences, name):
        yield sequence[None].to(model.device)
