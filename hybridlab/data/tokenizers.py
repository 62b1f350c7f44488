"""Tokenizers, all as objects of the `tokenizers` library.

byte          256 byte tokens and an end-of-document token: for any text, without training
bpe:SIZE      byte-level BPE, trained on the source; SIZE tokens with bytes and end of document
byte+mask, bpe+mask:SIZE
              the same with [PAD], [CLS], [SEP] and [MASK] for encoders; [SEP] ends a document
file:PATH     a tokenizer.json, or a folder that holds one
hub:NAME      a tokenizer of the Hugging Face hub
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hybridlab.data.hub_access import without_hub
from hybridlab.errors import UserError

END = "<|end|>"
_END_NAMES = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
_SPECIAL = {"": [END], "+mask": [PAD, CLS, SEP, MASK]}
"""What follows the kind of a tokenizer that is made here → its special tokens, which have the first ids."""
_MASK_NAMES = (MASK, "<mask>")
TRAINING_CHARACTERS = 32_000_000
"""BPE is trained on at most this much text; more would hardly change its merges."""


def make_tokenizer(spec: str, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer of a specification. documents: the training text of bpe, not read for other kinds."""
    kind, _, argument = spec.partition(":")
    base, plus, what = kind.partition("+")
    special = _SPECIAL.get(plus + what)
    if special and base == "byte" and not argument:
        return _byte_level(_byte_vocabulary(special), special)
    if special and base == "bpe" and argument.isdecimal() and len(argument) < 9:
        return _trained(int(argument), documents, special)
    file = tokenizer_file(spec)
    if file is not None:
        return load_tokenizer(file)
    if kind == "hub" and argument:
        return _from_hub(argument)
    raise UserError(
        f"tokenizer {spec!r}: it must be byte, bpe:SIZE, file:PATH or hub:NAME; byte+mask and bpe+mask:SIZE have the "
        "special tokens of encoders"
    )


def is_made_here(spec: str) -> bool:
    """Whether a specification is of a tokenizer that needs no file: byte or bpe."""
    return spec.partition(":")[0].partition("+")[0] in ("byte", "bpe")


def is_trained(spec: str) -> bool:
    """Whether a specification is of a tokenizer that is trained on the source."""
    return spec.partition(":")[0].partition("+")[0] == "bpe"


def tokenizer_file(spec: str) -> Path | None:
    """The tokenizer.json of a specification file:PATH, which may not be there; None for other kinds."""
    kind, _, argument = spec.partition(":")
    return _json_of(Path(argument).expanduser()) if kind == "file" and argument else None


def _json_of(path: Path) -> Path:
    return path / "tokenizer.json" if path.is_dir() else path


def load_tokenizer(path: Path) -> Tokenizer:
    """From a tokenizer.json, or from a folder that holds one."""
    path = _json_of(path)
    if not path.is_file():
        raise UserError(f"tokenizer {path}: there is no such file; a folder must hold a tokenizer.json")
    try:
        return _without_cuts(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"tokenizer {path}: this is not a tokenizer.json ({error})") from None


def _without_cuts(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off truncation and padding, which would change documents."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_token(tokenizer: Tokenizer) -> int:
    """The id of the token that ends a document."""
    for name in _END_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise UserError(f"tokenizer: it has no end-of-document token; it must have one of {', '.join(_END_NAMES)}")


def mask_token(tokenizer: Tokenizer) -> int:
    """The id of the token that stands for a masked one. UserError if there is none."""
    for name in _MASK_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise UserError(
        f"tokenizer: an encoder is trained on masked tokens, and this one has no {MASK}; use one that has it, such as "
        "--set data.tokenizer=bpe+mask:896"
    )


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """The ids of the special tokens, ascending: those that are no part of a text."""
    return sorted(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The largest id plus one; some ids may be unused."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise UserError("tokenizer: its vocabulary is empty; use another tokenizer")
    return max(vocabulary.values()) + 1


def require_fitting(tokenizer: Tokenizer, vocab: int, name: str) -> None:
    """UserError if the tokenizer of a model has ids that its vocabulary of `vocab` tokens lacks. name: of its file."""
    size = vocabulary_size(tokenizer)
    if size > vocab:
        raise UserError(
            f"{name}: this tokenizer has ids up to {size - 1}, and the model has {vocab} tokens, from 0 to "
            f"{vocab - 1}; use the tokenizer that the model was trained with"
        )


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A digest of the whole definition of a tokenizer."""
    content = json.dumps(json.loads(tokenizer.to_str()), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _byte_vocabulary(special: list[str]) -> dict[str, int]:
    """The special tokens and the 256 bytes, with their ids."""
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return {token: number for number, token in enumerate(tokens)}


def _byte_level(vocabulary: dict[str, int], special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    _make_byte_level(tokenizer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def _make_byte_level(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()


def _trained(size: int, documents: Iterable[str], special: list[str]) -> Tokenizer:
    smallest = len(_byte_vocabulary(special))
    if size < smallest:
        raise UserError(
            f"tokenizer bpe of {size} tokens: bytes and special tokens need {smallest}; use {smallest} or more"
        )
    tokenizer = Tokenizer(models.BPE())
    _make_byte_level(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(first_characters(documents, TRAINING_CHARACTERS), trainer)
    return tokenizer


def first_characters(documents: Iterable[str], limit: int) -> Iterable[str]:
    """The documents up to `limit` characters in all."""
    for document in documents:
        if limit <= 0:
            return
        yield document[:limit]
        limit -= len(document)


def in_proportion(sources: list[Callable[[], Iterable[str]]], weights: list[float], most: int) -> Iterator[str]:
    """Texts of all sources, at most `most` characters in all, in which each source has its weight's share.

    A source that is too short for its share is repeated, as it is in training.
    """
    lengths = [sum(map(len, first_characters(source(), most))) for source in sources]
    total = min(most, max(length / weight for length, weight in zip(lengths, weights, strict=True)))
    for source, weight, length in zip(sources, weights, lengths, strict=True):
        if length:
            yield from first_characters(_repeated(source), round(total * weight))


def _repeated(source: Callable[[], Iterable[str]]) -> Iterator[str]:
    while True:
        yield from source()


def _from_hub(name: str) -> Tokenizer:
    """From the hub, or from its cache."""
    from huggingface_hub import errors

    try:
        with without_hub(wanted=False):
            return _without_cuts(Tokenizer.from_pretrained(name))
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise UserError(
            f"tokenizer hub:{name}: the hub cannot be reached, and this tokenizer is not in its cache; connect, or use "
            "file:PATH"
        ) from None
    except Exception as error:  # the library raises bare Exceptions
        reason = str(error).splitlines()[0][:160]
        raise UserError(f"tokenizer hub:{name}: it cannot be fetched ({reason}); use file:PATH offline") from None
