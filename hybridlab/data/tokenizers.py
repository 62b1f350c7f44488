"""Tokenizers, all as objects of the `tokenizers` library.

byte          256 byte tokens and an end-of-document token: fits any text, no training
bpe:SIZE      byte-level BPE trained here on the source, SIZE tokens in all
file:PATH     a tokenizer.json, or a folder that holds one
hub:NAME      a tokenizer of the Hugging Face hub
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hybridlab.errors import UserError

END = "<|end|>"
_END_NAMES = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
_TRAINING_CHARACTERS = 32_000_000
"""BPE merges settle long before this much text."""


def make_tokenizer(spec: str, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer that a specification names; `documents` are read only where one is trained."""
    kind, _, argument = spec.partition(":")
    if kind == "byte" and not argument:
        return _byte_level(_byte_vocabulary())
    if kind == "bpe" and argument.isdecimal() and len(argument) < 9:
        return _trained(int(argument), documents)
    if kind == "file" and argument:
        return load_tokenizer(Path(argument).expanduser())
    if kind == "hub" and argument:
        return _from_hub(argument)
    raise UserError(f"tokenizer {spec!r}: it is byte, bpe:SIZE, file:PATH or hub:NAME")


def load_tokenizer(path: Path) -> Tokenizer:
    """From a tokenizer.json, or from a folder that holds one."""
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"tokenizer {path}: there is no such file; a folder must hold a tokenizer.json")
    try:
        return _whole(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"tokenizer {path}: this is not a tokenizer.json ({error})") from None


def _whole(tokenizer: Tokenizer) -> Tokenizer:
    """Without truncation and padding, which a file may have switched on and which would cut documents."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_token(tokenizer: Tokenizer) -> int:
    """The id that stands between documents."""
    for name in _END_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise UserError(f"tokenizer: it has no end-of-document token; one of {', '.join(_END_NAMES)} is needed")


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id, so that every id fits (a vocabulary may have holes)."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise UserError("tokenizer: its vocabulary is empty")
    return max(vocabulary.values()) + 1


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """What identifies a tokenizer: a digest of its whole definition."""
    content = json.dumps(json.loads(tokenizer.to_str()), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _byte_vocabulary() -> dict[str, int]:
    return {END: 0} | {letter: i + 1 for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _byte_level(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    _make_byte_level(tokenizer)
    tokenizer.add_special_tokens([END])
    return tokenizer


def _make_byte_level(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()


def _trained(size: int, documents: Iterable[str]) -> Tokenizer:
    smallest = len(_byte_vocabulary())
    if size < smallest:
        raise UserError(
            f"tokenizer bpe:{size}: {smallest} tokens are the bytes and the end; use bpe:{smallest} or more"
        )
    tokenizer = Tokenizer(models.BPE())
    _make_byte_level(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first_characters(documents, _TRAINING_CHARACTERS), trainer)
    return tokenizer


def _first_characters(documents: Iterable[str], limit: int) -> Iterable[str]:
    for document in documents:
        if limit <= 0:
            return
        yield document[:limit]
        limit -= len(document)


def _from_hub(name: str) -> Tokenizer:
    try:
        return _whole(Tokenizer.from_pretrained(name))
    except Exception as error:  # the library raises bare Exceptions
        reason = str(error).splitlines()[0][:160]
        raise UserError(f"tokenizer hub:{name}: it cannot be fetched ({reason}); use file:PATH offline") from None
