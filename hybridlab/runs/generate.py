"""Text from a trained model: one prompt, or many in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hybridlab.data.finetune.chats import chat_template
from hybridlab.data.tokenizers import end_token, vocabulary_size
from hybridlab.errors import UserError
from hybridlab.models.cache import require_caches
from hybridlab.store.artifacts import open_model
from hybridlab.store.folders import Runs
from hybridlab.training.machine import pick_device

_FIELDS = ("prompt", "text")


@dataclass(frozen=True)
class Prompt:
    """A text to continue. origin: where it was written, for messages."""

    text: str
    origin: str


@dataclass(frozen=True)
class Continued:
    """text: what the model has read, the prompt or a chat with it, with the continuation. new_tokens: how many tokens
    were generated, with the one that ends the document."""

    prompt: str
    continuation: str
    text: str
    new_tokens: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_prompts(text: str, origin: str, field: str | None = None, jsonl: bool = False) -> list[Prompt]:
    """One prompt from each line of a text: the line itself, or a field of a JSON object, by default `prompt` or `text`.

    UserError for a prompt that is empty or missing, with its line.
    """
    prompts = []
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, 1):
        where = f"{origin}, line {number}"
        prompt = _field(line, field, where) if jsonl else line.removesuffix("\r")
        if not prompt.strip():
            raise UserError(f"{where}: this prompt is empty; write at least one word, or remove the line")
        prompts.append(Prompt(prompt, where))
    if not prompts:
        raise UserError(f"{origin}: there are no prompts; write one on each line")
    return prompts


def read_prompts_file(path: Path, field: str | None) -> list[Prompt]:
    """The prompts of a text file, or of a .jsonl file; `field` belongs to .jsonl."""
    jsonl = path.suffix == ".jsonl"
    if field is not None and not jsonl:
        raise UserError(f"--field {field} has no effect on {path}; it names a field of a .jsonl file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"--prompts {path}: this file cannot be read ({reason})") from None
    return read_prompts(text, str(path), field, jsonl)


def _field(line: str, field: str | None, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError:
        raise UserError(f"{where}: this line is not JSON; write one object on each line") from None
    names = _FIELDS if field is None else (field,)
    name = next((name for name in names if isinstance(row, dict) and isinstance(row.get(name), str)), None)
    if name is None:
        raise UserError(f"{where}: there is no text in the field {' or '.join(names)}; name the field with --field")
    return row[name]


def continue_prompts(
    reference: str,
    runs: Runs,
    prompts: list[Prompt],
    max_new_tokens: int,
    batch_size: int,
    seed: int = 0,
    chat: bool = False,
    **settings: Any,
) -> Iterator[Continued]:
    """Each prompt with its continuation, in order, `batch_size` of them at once, which changes only speed and memory:
    prompt i draws its samples from seed + i.

    chat: a prompt is what a user says, and its continuation the answer (data/finetune/chats.py). settings: further
    arguments of `Transformer.generate`.
    """
    opened = open_model(reference, runs)
    require_caches(opened.model.structure, "generate")
    tokenizer = opened.own_tokenizer()
    model = opened.model.to(pick_device("auto")).eval()
    template = chat_template(opened.tokenizer, tokenizer) if chat else None
    for prompt in prompts:
        if not prompt.text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in prompt.text):
            raise UserError(f"{prompt.origin}: this is not UTF-8 text; convert it first")
    texts = [p.text if template is None else template.prompt(p.text, p.origin) for p in prompts]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for prompt, tokens in zip(prompts, ids, strict=True):
        _check_length(prompt, len(tokens), max_new_tokens, model.shape.max_positions)
    known = vocabulary_size(tokenizer)
    device, stop = model.device, end_token(tokenizer) if template is None else template.stop
    for start in range(0, len(ids), batch_size):
        rows = ids[start : start + batch_size]
        lengths = [len(row) for row in rows]
        batch = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows], device=device)
        made = model.generate(batch, max_new_tokens, lengths=lengths, stop_token=stop, seed=seed + start, **settings)
        for prompt, text, row, length in zip(prompts[start:], texts[start:], made.rows(), lengths, strict=False):
            # Reserved ids above the tokenizer's own have no text.
            written = [token for token in row[length:] if token < known]
            continuation = tokenizer.decode(written)
            yield Continued(prompt.text, continuation, text + continuation, len(row) - length)


def _check_length(prompt: Prompt, tokens: int, new: int, positions: int | None) -> None:
    if not tokens:
        raise UserError(f"{prompt.origin}: the text is empty; give at least one character to continue")
    # The last new token is not read.
    if positions is not None and tokens + new - 1 > positions:
        raise UserError(
            f"{prompt.origin}: a prompt of {tokens} tokens and {new} new ones are more than the {positions} positions "
            "of this model; shorten it, or lower --max-new-tokens"
        )
