"""What begins and ends a text for a model, and how long its rows may be: from the files beside its tokenizer.json.

A folder in the Hugging Face layout says it in config.json, generation_config.json and tokenizer_config.json, which
lm-eval reads through transformers; a run of hybridlab has only its tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hybridlab.data.tokenizers import end_token
from hybridlab.files import read_object

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")
"""Where a configuration says how many positions a model has, in lm-eval's order."""


@dataclass(frozen=True)
class SpecialTokens:
    """end: the token whose text ends a generated one. prefix: stands before a text without a context. ends: every
    token that ends a generated row."""

    end: int
    prefix: int
    ends: frozenset[int]


def special_tokens_of(folder: Path, tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a model's folder. UserError if its tokenizer has no token that ends a text."""
    written = _read(folder / "tokenizer_config.json")
    end = _token(tokenizer, written.get("eos_token"))
    if end is None:
        end = end_token(tokenizer)
    begin = _token(tokenizer, written.get("bos_token"))
    # transformers generates up to the end tokens of the generation's configuration, else of the model's.
    stored = _read(folder / "generation_config.json") or _read(folder / "config.json")
    ends = stored.get("eos_token_id")
    ids = [ends] if isinstance(ends, int) else ends if isinstance(ends, list) else []
    return SpecialTokens(end, end if begin is None else begin, frozenset([end, *ids]))


def longest_row(folder: Path) -> int | None:
    """How many tokens the configuration of a folder in the Hugging Face layout allows; None if it does not say."""
    stored = _read(folder / "config.json")
    return next((stored[name] for name in _LENGTHS if isinstance(stored.get(name), int)), None)


def _token(tokenizer: Tokenizer, written: Any) -> int | None:
    """The id of a token as tokenizer_config.json writes it: its text, or an object with it."""
    text = written.get("content") if isinstance(written, dict) else written
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, "configuration")
    except FileNotFoundError:
        return {}
