"""Sequences for the effects of layers on future tokens: windows of the validation text, or prompts from a file.

Each sequence has boundaries t: tokens before t are intervened on, and those from t on are measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from hybridlab.config.types import NonNegativeInt, PositiveInt
from hybridlab.data.files import NO_ROOT, DataRoot, TaskDataset, data_root
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError, nearest
from hybridlab.models.decoder import Transformer

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
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1), BeforeValidator(_split)]
"""Type of a setting that is a list of numbers from 1 on."""
Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Type of a setting that is a list of words, on the command line `current,future`."""
Count = PositiveInt
Shots = NonNegativeInt
"""Type of a setting for the number of solved examples before a prompt."""


@dataclass(frozen=True)
class Example:
    """tokens (S,). boundaries: where its future begins, each with tokens before and after it. group: its level."""

    tokens: Tensor
    boundaries: tuple[int, ...]
    group: str | None = None


@dataclass(frozen=True)
class Choice:
    """How boundaries are chosen: `count` at random (by `seed`) among multiples of SPACING, or for a prompt with an
    answer among answer start + stride · k; with a stride of 0 the answer start alone. at: these boundaries instead."""

    count: int = 4
    stride: int = 4
    at: tuple[int, ...] | None = None
    seed: int = 0

    def boundaries(self, length: int, answer: int | None, number: int) -> tuple[int, ...]:
        """The boundaries of sequence `number`; empty if none has a future. answer: position of the answer's first
        token."""
        if self.at is not None:
            return tuple(t for t in self.at if FIRST <= t < length)
        if answer is None:
            found = list(range(SPACING, length - LEFT + 1, SPACING))
        else:
            found = list(range(answer, length, self.stride)) if self.stride else [answer][: answer < length]
        found = [t for t in found if t >= FIRST]
        rng = np.random.default_rng((self.seed, number))
        return tuple(sorted(rng.permutation(found)[: self.count].tolist()))


def examples(
    model: Transformer, corpus: Corpus, seq_len: int, rows: int, choice: Choice, prompts: str | None, by: str | None
) -> list[Example]:
    """`rows` windows of validation text, or of a file of prompts `rows` of every level. UserError if no sequence has a
    boundary with tokens after it, or none has one that is asked for, and for a file that cannot be read."""
    if prompts is None:
        if by is not None:
            raise UserError("--by names a field of a file of prompts; give --prompts FILE too, or leave it out")
        windows = spaced_windows(model, corpus, min(seq_len, LONGEST), rows)
        made = [Example(row, choice.boundaries(len(row), None, i)) for i, row in enumerate(windows)]
    else:
        made = list(_prompted(model, corpus.tokenizer, prompts_named(prompts, by), rows, choice))
    found = {t for example in made for t in example.boundaries}
    lost = [t for t in choice.at or () if t not in found]
    if lost or not found:
        longest = max(len(example.tokens) for example in made)
        where = f"the boundaries {', '.join(map(str, lost))} in " if lost else ""
        raise UserError(
            f"{where}sequences of at most {longest} tokens leave no future tokens to measure; give a boundary from "
            f"{FIRST} on with tokens after it"
        )
    return made


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
        return read_prompts(Path(name), by)
    root, wanted = data_root(), name.removeprefix(ROOT)
    if root is None:
        raise UserError(f"--prompts {name}: {NO_ROOT}")
    if wanted not in _FROM_ROOT:
        raise UserError(f"--prompts {name}: there are no such prompts; {nearest(wanted, list(_FROM_ROOT))}")
    files = DataRoot(root)
    asked = TaskDataset(wanted, "hybridlab", f"{wanted}_prompts")
    served = files.split(asked, "test")
    if served is None:
        raise UserError(f"--prompts {name}: {files.missing(asked, ('test',))}")
    return [_of_row(row, by, f"{root}/{served.files[0]}") for row in served.rows]


def read_prompts(path: Path, by: str | None = None) -> list[Prompt]:
    """The prompts of a file: of a .jsonl file the fields `prompt`, `answer` (optional) and `level` or `hops` (optional;
    by: another field), else each line that is not empty. UserError with the line for what is no prompt."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else (error.strerror or "unreadable").lower()
        raise UserError(f"{path}: {reason}; give a text file with a prompt in each line, or a .jsonl file") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise UserError(f"{path}: the file has no prompts; give a prompt in each line")
    if path.suffix != ".jsonl":
        return [Prompt(line) for _, line in numbered]
    return [_prompt(line, by, f"{path}:{number}") for number, line in numbered]


def _prompt(line: str, by: str | None, origin: str) -> Prompt:
    try:
        fields = json.loads(line)
    except ValueError:
        raise UserError(f"{origin}: this line is not JSON; write one object per line") from None
    return _of_row(fields, by, origin)


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
    model: Transformer, tokenizer: Tokenizer, prompts: list[Prompt], rows: int, choice: Choice
) -> Iterator[Example]:
    """`rows` prompts of each level, at random by the seed."""
    device = next(model.parameters()).device
    levels: dict[str | None, list[Prompt]] = {}
    for prompt in prompts:
        levels.setdefault(prompt.group, []).append(prompt)
    number = 0
    for group in sorted(levels, key=lambda name: (name is not None, name or "")):
        order = np.random.default_rng(choice.seed).permutation(len(levels[group]))
        for prompt in (levels[group][int(i)] for i in order[:rows]):
            ids, answer = encoded(tokenizer, prompt)
            yield Example(torch.tensor(ids, device=device), choice.boundaries(len(ids), answer, number), group)
            number += 1


def encoded(tokenizer: Tokenizer, prompt: Prompt) -> tuple[list[int], int | None]:
    """Token ids of prompt + answer, and the position of the first token with a character of the answer."""
    text = prompt.text + (prompt.answer or "")
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if prompt.answer is None:
        return encoding.ids, None
    start = len(prompt.text)
    return encoding.ids, next(i for i, (_, end) in enumerate(encoding.offsets) if end > start)
