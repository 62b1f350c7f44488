"""Tokenizers, all as objects of the `tokenizers` library.

byte          256 byte tokens and an end-of-document token: for any text, without training
bpe:SIZE      byte-level BPE, trained on the source; SIZE tokens with bytes and end of document
byte+mask, bpe+mask:SIZE
              the same with [PAD], [CLS], [SEP] and [MASK] for encoders; [SEP] ends a document
file:PATH     a tokenizer.json, or a folder that holds one
hub:NAME      a tokenizer of the Hugging Face hub
gguf:SHA-256  that of a GGUF file which was opened here, by the start of the file's digest, so that a run has the same
              settings wherever the file lies

A document ends with the `eos_token` that stands beside tokenizer.json: as transformers reads it, in
tokenizer_config.json and special_tokens_map.json; else as `eos_token_id` in generation_config.json or config.json.
Where nothing states it, it is the first of the usual names that the tokenizer has.

`tokenizer_files` writes one for transformers: tokenizer.json and tokenizer_config.json with the special tokens. Text is
encoded as in training: without special tokens where a model continues or fills in text, and for a fine-tuned model in
the frame of its task (data/finetune/corpus.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from hybridlab.data.gguf_tokenizers import converted_tokenizer
from hybridlab.data.hub_access import without_hub
from hybridlab.errors import UserError, first_line
from hybridlab.files import in_place_of, read_object, read_text, user_path

END = "<|end|>"
_END_NAMES = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]", "<｜end▁of▁sentence｜>")
PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
_SPECIAL = {"": [END], "+mask": [PAD, CLS, SEP, MASK]}
"""What follows the kind of a tokenizer that is made here → its special tokens, which have the first ids."""
_KNOWN = {
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>"),
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Role of a special token → its usual names."""
_OF_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_OTHER_FORMS = ("vocab.json", "merges.txt", "vocab.txt", *_OF_SENTENCEPIECE)
"""Files of tokenizers that transformers reads too."""
_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_BESIDE = (_CONFIG, _MAP, "chat_template.jinja")
"""Files of the tokenizer that a folder of transformers may have beside its tokenizer.json."""
_GENERATION = "generation_config.json"
_OF_MODEL = (_GENERATION, "config.json")
"""Files of the model there that may say where generation stops, the first choice first."""
READ_BESIDE = (*_BESIDE, *_OF_MODEL)
TRAINING_CHARACTERS = 32_000_000
"""BPE is trained on at most this much text; more would hardly change its merges."""


def make_tokenizer(spec: str, documents: Iterable[str]) -> Tokenizer:
    """The tokenizer of a specification. documents: the training text of bpe, not read for other kinds."""
    kind, _, argument = spec.partition(":")
    base, plus, what = kind.partition("+")
    special = _SPECIAL.get(plus + what)
    if special and base == "byte" and not argument:
        return _made_here(special, None, documents)
    if special and base == "bpe" and argument.isdecimal() and len(argument) < 9:
        return _made_here(special, int(argument), documents)
    file = tokenizer_file(spec)
    if file is not None:
        return load_tokenizer(file)
    if kind == "hub" and argument:
        return _from_hub(argument)
    if kind == "gguf" and argument:
        raise UserError(
            f"tokenizer {spec}: no GGUF file with this SHA-256 was opened here; open it once, such as with `hybridlab "
            "generate FILE`, or use file:PATH"
        )
    raise UserError(
        f"tokenizer {spec!r}: it must be byte, bpe:SIZE, file:PATH, hub:NAME or gguf:SHA-256; byte+mask and "
        "bpe+mask:SIZE have the special tokens of encoders"
    )


def is_made_here(spec: str) -> bool:
    """Whether a specification is of a tokenizer that needs no file: byte or bpe."""
    return spec.partition(":")[0].partition("+")[0] in ("byte", "bpe")


def is_trained(spec: str) -> bool:
    """Whether a specification is of a tokenizer that is trained on the source."""
    return spec.partition(":")[0].partition("+")[0] == "bpe"


def tokenizer_file(spec: str) -> Path | None:
    """The tokenizer.json of a specification file:PATH, which may not be there, or that of hub:NAME or gguf:SHA-256 in
    the hub's caches; None for other kinds, and for one that is not there yet."""
    kind, _, argument = spec.partition(":")
    if kind == "gguf" and argument:
        return converted_tokenizer(argument)
    if kind == "hub" and argument:
        return _cached(argument)
    path = user_path(argument)
    return None if kind != "file" or not argument else path / "tokenizer.json" if path.is_dir() else path


def load_tokenizer(path: Path) -> Tokenizer:
    """From a tokenizer.json, or from a folder that holds one."""
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        advice = instead_of_tokenizer(path.parent) or "a folder must hold a tokenizer.json"
        raise UserError(f"tokenizer {path}: there is no such file; {advice}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        problem = in_place_of(path) or f"this is not a tokenizer.json ({error}); give the path of one"
        raise UserError(f"tokenizer {path}: {problem}") from None
    # Truncation and padding would change documents.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def instead_of_tokenizer(folder: Path) -> str | None:
    """How to get a tokenizer.json from the files of a tokenizer in another form that a folder holds; None where it
    holds none."""
    forms = {name for name in _OTHER_FORMS if (folder / name).is_file()}
    if "vocab.json" in forms and "merges.txt" not in forms and len(forms) == 1:
        return "vocab.json alone does not say how text is split; get merges.txt or tokenizer.json of the same model too"
    if not forms:
        return None
    code = f"from transformers import AutoTokenizer as A; A.from_pretrained('{folder}').save_pretrained('{folder}')"
    also = " (after `pip install sentencepiece protobuf`)" if forms & set(_OF_SENTENCEPIECE) else ""
    return f'make it of {" and ".join(sorted(forms))} with `python -c "{code}"`{also}'


def _first_known(tokenizer: Tokenizer, names: Iterable[str]) -> int | None:
    """The id of the first of these tokens that the tokenizer has."""
    return next((token for name in names if (token := tokenizer.token_to_id(name)) is not None), None)


def end_token(tokenizer: Tokenizer, file: Path | None = None) -> int:
    """The id of the token that ends a document; see the module. file: the tokenizer.json, which need not be there."""
    token = _end(tokenizer, file)
    if token is None:
        raise UserError(
            f"tokenizer: it has no end-of-document token; state it as eos_token in a {_CONFIG} beside tokenizer.json, "
            f"or use one that has one of {', '.join(_END_NAMES)}"
        )
    return token


def _end(tokenizer: Tokenizer, file: Path | None) -> int | None:
    name = written_names(file).get("eos_token")
    if name is not None:
        token = tokenizer.token_to_id(name)
        if token is None:
            raise UserError(
                f"{file}: it has no token {name!r}, which the files beside it name as eos_token; correct {_CONFIG}"
            )
        return token
    # An id that is an ordinary token is the default of a model's configuration, which knows no tokenizer.
    special = set(special_tokens(tokenizer))
    stated = next((token for token in stated_stops(file) if token in special), None)
    return _first_known(tokenizer, _END_NAMES) if stated is None else stated


def stated_stops(file: Path | None) -> list[int]:
    """The tokens at which generation stops, as transformers reads them: eos_token_id, a number or a list, in
    generation_config.json beside the tokenizer.json `file`, else in config.json; none if neither says it."""
    for path in () if file is None else (file.parent / name for name in _OF_MODEL):
        if not path.is_file():
            continue
        stated = read_object(path, "configuration").get("eos_token_id")
        ids = stated if isinstance(stated, list) else [stated]
        if stops := [token for token in ids if type(token) is int and token >= 0]:
            return list(dict.fromkeys(stops))
    return []


def mask_token(tokenizer: Tokenizer) -> int:
    """The id of the token that stands for a masked one. UserError if there is none."""
    token = _first_known(tokenizer, _KNOWN["mask_token"])
    if token is None:
        raise UserError(
            f"tokenizer: an encoder is trained on masked tokens, and this one has no {MASK}; use one that has it, such "
            "as --set data.tokenizer=bpe+mask:896"
        )
    return token


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
            f"{vocab - 1}; use the tokenizer that the model was trained with, or give the model the missing rows in "
            f"transformers: model.resize_token_embeddings({size}), then model.save_pretrained"
        )


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A digest of the whole definition of a tokenizer."""
    content = json.dumps(json.loads(tokenizer.to_str()), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def tokenizer_key(file: Path) -> str:
    """A digest of the tokenizer.json `file`, with the end of a document where what stands beside it names another one
    than the usual names give."""
    tokenizer = load_tokenizer(file)
    digest, end = tokenizer_digest(tokenizer), end_token(tokenizer, file)
    return digest if end == _first_known(tokenizer, _END_NAMES) else f"{digest}-{end}"


def _made_here(special: list[str], size: int | None, documents: Iterable[str]) -> Tokenizer:
    """A byte-level tokenizer. special: its special tokens, with the first ids; the 256 bytes follow. size: train it on
    the documents up to so many tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    smallest = len(vocabulary)
    if size is not None and size < smallest:
        raise UserError(
            f"tokenizer bpe of {size} tokens: bytes and special tokens need {smallest}; use {smallest} or more"
        )
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]) if size is None else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if size is None:
        tokenizer.add_special_tokens(special)
        return tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=letters, show_progress=False
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
            again = chain.from_iterable(source() for _ in repeat(None))
            yield from first_characters(again, round(total * weight))


def _cached(name: str) -> Path | None:
    """The tokenizer.json of a repository in the hub's cache."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        path = try_to_load_from_cache(name, "tokenizer.json")
    except errors.HFValidationError:
        return None
    return Path(path) if isinstance(path, str) else None


def _from_hub(name: str) -> Tokenizer:
    """From the hub, or from its cache, where also what stands beside it is put."""
    from huggingface_hub import errors, snapshot_download

    try:
        with without_hub(wanted=False):
            folder = snapshot_download(name, allow_patterns=["tokenizer.json", *READ_BESIDE])
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise UserError(
            f"tokenizer hub:{name}: the hub cannot be reached, and this tokenizer is not in its cache; connect, or use "
            "file:PATH"
        ) from None
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(
            f"tokenizer hub:{name}: it cannot be fetched ({first_line(error)}); use file:PATH offline"
        ) from None
    return load_tokenizer(Path(folder))


# ---- as files that transformers reads ----


@dataclass(frozen=True)
class TokenizerFiles:
    """texts: file → content. ids: role of a special token, such as eos_token → its id."""

    texts: dict[str, str]
    ids: dict[str, int]

    @property
    def pads_with_end(self) -> bool:
        """Whether padding is the token that ends a document, or there is none."""
        return self.ids.get("pad_token") in (None, self.ids.get("eos_token"))


def tokenizer_files(path: Path, causal: bool, framed: bool, max_length: int) -> TokenizerFiles:
    """The files for transformers of the tokenizer.json at `path`. Those that stand beside it are kept as they are.

    causal: of a decoder. framed: texts get the special tokens of fine-tuning, unless the tokenizer has its own way to
    add some. max_length: tokens in a sequence. UserError if the file cannot be used.
    """
    tokenizer = load_tokenizer(path)
    texts, names = files_beside(path, tokenizer), special_names(path, tokenizer, causal)
    if _CONFIG not in texts:
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": ["input_ids", *([] if causal else ["token_type_ids"]), "attention_mask"],
            # `generate` continues the end of every row.
            "padding_side": "left" if causal and not framed else "right",
            "clean_up_tokenization_spaces": False,
            **names,
        }
        texts[_CONFIG] = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
    if framed and tokenizer.post_processor is None:
        _frame(tokenizer, names, causal)
    texts["tokenizer.json"] = tokenizer.to_str(pretty=True) + "\n"
    ids = {role: tokenizer.token_to_id(name) for role, name in names.items()}
    return TokenizerFiles(texts, {role: number for role, number in ids.items() if number is not None})


def files_beside(path: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """What belongs beside a copy of the tokenizer.json at `path` for a model of chats, file → content: the files of
    transformers that stand beside it, and where generation stops."""
    texts = {name: read_text(path.parent / name) for name in _BESIDE if (path.parent / name).is_file()}
    return texts | _kept_stops(path, tokenizer)


def stated_beside(path: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """What belongs beside a copy of the tokenizer.json at `path` for a model of text, file → content: the special
    tokens that are stated there, and where generation stops, without a chat template and other settings."""
    names = {role: name for role, name in written_names(path).items() if tokenizer.token_to_id(name) is not None}
    texts = {_MAP: json.dumps(names, ensure_ascii=False) + "\n"} if names else {}
    return texts | _kept_stops(path, tokenizer)


def _kept_stops(path: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """The stated tokens at which generation stops, after the one that ends a document, if they are special ones."""
    special = set(special_tokens(tokenizer))
    stops = [token for token in stated_stops(path) if token in special]
    if not stops:
        return {}
    stops = list(dict.fromkeys([end_token(tokenizer, path), *stops]))
    return {_GENERATION: json.dumps({"eos_token_id": stops}) + "\n"}


def special_names(path: Path | None, tokenizer: Tokenizer, causal: bool) -> dict[str, str]:
    """Role → special token: as the tokenizer_config.json beside the tokenizer.json at `path` says or, without one, as
    the other files there say, and by the usual names, of those that the tokenizer has. UserError if a file cannot be
    used.

    By the usual names, a decoder without padding pads with the end of a document, which its causal mask hides.
    """
    written = written_names(path)
    if path is not None and (path.parent / _CONFIG).is_file():
        return written
    ids = {role: _first_known(tokenizer, names) for role, names in _KNOWN.items()}
    ids |= {"eos_token": _end(tokenizer, path)} if causal else {}
    special = {role: str(tokenizer.id_to_token(token)) for role, token in ids.items() if token is not None} | written
    return {**({"eos_token": end, "pad_token": end} if (end := special.get("eos_token")) else {}), **special}


def written_names(path: Path | None) -> dict[str, str]:
    """Role → special token, as transformers reads it beside the tokenizer.json at `path`: a special_tokens_map.json
    goes before a tokenizer_config.json that lists no added tokens, and after one that does. A token may stand in an
    object with its settings. Empty without these files; UserError if one cannot be used."""
    config, older = (
        {} if path is None or not (path.parent / name).is_file() else read_object(path.parent / name, what)
        for name, what in ((_CONFIG, "configuration of a tokenizer"), (_MAP, "list of special tokens"))
    )
    together = older | config if "added_tokens_decoder" in config else config | older
    written = {role: token for role in (*_KNOWN, "eos_token") if (token := together.get(role))}
    return {
        role: str(token.get("content", token) if isinstance(token, dict) else token) for role, token in written.items()
    }


def _frame(tokenizer: Tokenizer, names: dict[str, str], causal: bool) -> None:
    """Let the tokenizer add what stands around the texts of a fine-tuning task: a END b END in a decoder, [CLS] a [SEP]
    b [SEP] in an encoder, where the second text has token type 1."""
    start, after = ("", names.get("eos_token")) if causal else (names.get("cls_token"), names.get("sep_token"))
    if start is None or after is None:
        return
    first, kind = f"{start} $A {after}".strip(), 0 if causal else 1
    used = {token for token in (start, after) if token}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=first,
        pair=f"{first} $B:{kind} {after}:{kind}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in sorted(used)],
    )
