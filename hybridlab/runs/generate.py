"""Text from a trained model: one prompt, or many in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from hybridlab.data.files import Record, has_fields, lines_of, prompts_of
from hybridlab.data.finetune.chats import chat_template, stop_tokens
from hybridlab.data.tokenizers import vocabulary_size
from hybridlab.errors import UserError
from hybridlab.models.cache import require_caches
from hybridlab.training.machine import pick_device
from hybridlab.training.store.artifacts import open_model
from hybridlab.training.store.folders import Runs

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


def read_prompts(text: str, origin: str) -> list[Prompt]:
    """One prompt from each line of a text that is not empty. UserError if there is none."""
    return _some([Prompt(line.values, line.origin) for line in lines_of(text, f"{origin}, line ")], origin)


def read_prompts_file(path: Path, field: str | None) -> list[Prompt]:
    """The prompts of a text file, or those in a field of the objects of a .jsonl or .json file, by default `prompt` or
    `text`. UserError for a prompt that is empty or missing, with its line."""
    fields = has_fields(path)
    if field is not None and not fields:
        raise UserError(f"--field {field} has no effect on {path}; it names a field of a .jsonl file")
    lines = prompts_of(path)
    texts = [_field(line, field) if fields else line.values for line in lines]
    for text, line in zip(texts, lines, strict=True):
        if not text.strip():
            raise UserError(f"{line.origin}: this prompt is empty; write at least one word, or remove it")
    return _some([Prompt(text, line.origin) for text, line in zip(texts, lines, strict=True)], str(path))


def _some(prompts: list[Prompt], origin: str) -> list[Prompt]:
    if not prompts:
        raise UserError(f"{origin}: there are no prompts; write one on each line")
    return prompts


def _field(line: Record, field: str | None) -> str:
    names = _FIELDS if field is None else (field,)
    row: Any = line.values if isinstance(line.values, dict) else {}
    name = next((name for name in names if isinstance(row.get(name), str)), None)
    if name is None:
        where = f"{line.origin}: there is no text in the field {' or '.join(names)}"
        raise UserError(f"{where}; name the field with --field")
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
    prompt i draws its samples from seed + i. A model from elsewhere reads a prompt behind what its tokenizer puts
    before a text, as in transformers.

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
    begun = opened.pretrained and not chat
    ids = [_tokens(tokenizer, text, begun) for text in texts]
    for prompt, tokens in zip(prompts, ids, strict=True):
        _check_length(prompt, len(tokens), max_new_tokens, model.shape.max_positions)
    vocab = vocabulary_size(tokenizer)
    device, stops = model.device, stop_tokens(opened.tokenizer, tokenizer)
    stops += [] if template is None else [template.stop]
    for start in range(0, len(ids), batch_size):
        rows = ids[start : start + batch_size]
        lengths = [len(row) for row in rows]
        batch = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows], device=device)
        output = model.generate(batch, max_new_tokens, lengths=lengths, stop_token=stops, seed=seed + start, **settings)
        for prompt, text, row, length in zip(prompts[start:], texts[start:], output.rows(), lengths, strict=False):
            # Reserved ids above the tokenizer's own have no text.
            read, written = ([token for token in part if token < vocab] for part in (row[:length], row[length:]))
            # Alone, new tokens lose their first space with some tokenizers (SentencePiece).
            continuation = tokenizer.decode([*read, *written])[len(tokenizer.decode(read)) :]
            yield Continued(prompt.text, continuation, text + continuation, len(row) - length)


def _tokens(tokenizer: Tokenizer, text: str, begun: bool) -> list[int]:
    """The tokens of a text. begun: behind those that the tokenizer puts before a text, such as bos; what it puts after
    one would end it."""
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if not begun or not tokens:
        return tokens
    framed = tokenizer.encode(text)
    return [*framed.ids[: framed.special_tokens_mask.index(0)], *tokens]


def _check_length(prompt: Prompt, tokens: int, new: int, positions: int | None) -> None:
    if not tokens:
        raise UserError(f"{prompt.origin}: the text is empty; give at least one character to continue")
    # The last new token is not read.
    if positions is not None and tokens + new - 1 > positions:
        raise UserError(
            f"{prompt.origin}: a prompt of {tokens} tokens and {new} new ones are more than the {positions} positions "
            "of this model; shorten it, or lower --max-new-tokens"
        )
