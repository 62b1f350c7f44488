"""The tokenizer of a GGUF file as files that transformers and hybridlab read, with the token ids of the original.

A GGUF file holds tokens, merges or scores, and the name of the split of text before them (`tokenizer.ggml.pre`), not
the split itself: those of llama.cpp whose original is known stand in `SPLITS`. Another one is refused, as a wrong split
gives other ids without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from hybridlab.errors import UserError

Metadata = Mapping[str, Any]
"""The keys of a GGUF file → their values."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""Types of tokens in `tokenizer.ggml.token_type`."""
TOKEN_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Role of a special token → the key of its id, after `tokenizer.ggml.`."""
_PHI3_KEEPS = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi-3 that leave the white space after them; GGUF files do not say which do."""
_SPACE = "▁"
"""How SentencePiece writes a space."""


_ASSETS = "gguf-2"
"""The folder of converted files; the number grows when the conversion changes."""


def converted_folder(digest: str) -> Path:
    """The folder in the hub's cache of assets (HF_ASSETS_CACHE) with what a GGUF file was converted to. digest: the
    SHA-256 of the file."""
    from huggingface_hub import cached_assets_path

    return Path(cached_assets_path("hybridlab", _ASSETS, digest))


def converted_tokenizer(digest: str) -> Path | None:
    """The tokenizer.json of a GGUF file that has been converted here; None without one. digest: the start of the
    SHA-256 of the file."""
    from huggingface_hub.constants import HF_ASSETS_CACHE

    paths = sorted(Path(HF_ASSETS_CACHE, "hybridlab", _ASSETS).glob(f"{digest}*/*/tokenizer.json"))
    return paths[0] if paths else None


@dataclass(frozen=True)
class Split:
    """How a byte-level tokenizer splits text. pattern: of the parts, by default GPT-2's. digits: every digit is a part.
    composed: the text is normalized to NFC first. whole: a part that is a token is never merged from smaller ones.
    bos: it begins a text where the file does not say it."""

    pattern: str | None = None
    digits: bool = False
    composed: bool = False
    whole: bool = False
    bos: bool = False


def _words(letters: str, digits: str, after: str = r"[\r\n]*") -> str:
    """The pattern of OpenAI's cl100k and its relatives. letters: of a word; digits: of a number; after: what a run of
    other characters may end with."""
    return rf"{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{after}|\s*[\r\n]+|\s+(?!\S)|\s+"


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_GPT4O = f"{_CASED}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_CASED}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
_TEKKEN = f"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*"
_THREE = r"\p{N}{1,3}"
SPLITS = {
    **dict.fromkeys(("default", "gpt-2"), Split()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), Split(digits=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Split(_words(_LETTERS, _THREE), whole=True, bos=True)),
    "qwen2": Split(_words(_LETTERS, r"\p{N}"), composed=True),
    "dbrx": Split(_words(_LETTERS, _THREE)),
    "gpt-4o": Split(_words(_GPT4O, _THREE, r"[\r\n/]*")),
    "tekken": Split(_words(_TEKKEN, r"\p{N}", r"[\r\n/]*"), whole=True, bos=True),
}
"""`tokenizer.ggml.pre` → the split."""


def gguf_tokenizer_files(metadata: Metadata, origin: str) -> dict[str, str]:
    """tokenizer.json and tokenizer_config.json of a GGUF file, name → content.

    The chat template, the special tokens and whether bos and eos stand around a text are kept. origin: the file, for
    errors. UserError for a tokenizer or a split that is not known.
    """
    tokenizer, bos = _model(metadata, origin)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", [])
    ids = {role: metadata.get(f"tokenizer.ggml.{key}") for role, key in TOKEN_IDS.items()}
    names = {role: tokens[number] for role, number in ids.items() if number is not None}
    special = [token for token, kind in zip(tokens, types, strict=False) if kind in (_UNKNOWN, _CONTROL)]
    special = list(dict.fromkeys([*special, *names.values()]))
    tokenizer.add_special_tokens(_added(special, metadata, special=True))
    # Runs of spaces are merged from smaller ones, as in the original, where they are written in another way.
    defined = [token for token, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED and " " not in token]
    tokenizer.add_tokens(_added(defined, metadata, special=False))
    added = {
        f"add_{role}": bool(metadata.get(f"tokenizer.ggml.add_{role}", usual)) and role in names
        for role, usual in (("bos_token", bos), ("eos_token", False))
    }
    around = [names[role] if added[f"add_{role}"] else None for role in ("bos_token", "eos_token")]
    if any(around):
        tokenizer.post_processor = _frame(tokenizer, *around)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **names, **added}
    config["clean_up_tokenization_spaces"] = False
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False) + "\n",
    }


def _added(tokens: list[str], metadata: Metadata, special: bool) -> list[AddedToken]:
    """Tokens that text is split at, as their original has them: those of Phi-3 swallow the white space after them."""
    phi3 = metadata["general.architecture"] == "phi3" and metadata["tokenizer.ggml.model"] == "llama"
    return [
        AddedToken(token, special=special, normalized=False, rstrip=phi3 and token not in _PHI3_KEEPS)
        for token in tokens
    ]


def _model(metadata: Metadata, origin: str) -> tuple[Tokenizer, bool]:
    """The tokenizer without special tokens, and whether bos begins a text where the file does not say it."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "llama":
        return _sentencepiece(metadata), True
    if kind != "gpt2" or "tokenizer.ggml.tokens" not in metadata:
        raise UserError(
            f"{origin}: its tokenizer (tokenizer.ggml.model) is {kind!r}; only 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece) are read: use the model's safetensors and tokenizer.json"
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in SPLITS:
        raise UserError(
            f"{origin}: how its tokenizer splits text (tokenizer.ggml.pre) is {pre!r}, which is not known, and a guess "
            f"would give wrong token ids; use the model's safetensors and tokenizer.json, or a file with one of "
            f"{', '.join(SPLITS)}"
        )
    return _byte_level(metadata, SPLITS[pre]), SPLITS[pre].bos


def _byte_level(metadata: Metadata, split: Split) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(metadata), merges=merges, ignore_merges=split.whole))
    if split.composed:
        tokenizer.normalizer = normalizers.NFC()
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    if split.pattern is not None:
        parts.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Metadata) -> Tokenizer:
    """Llama's and Gemma's: text is not split, and characters without a token become bytes."""
    from transformers.tokenization_utils_base import generate_merges

    vocabulary = {token.replace(" ", _SPACE): number for token, number in _vocabulary(metadata).items()}
    scores = metadata["tokenizer.ggml.scores"]
    # Gemma's scores do not follow the order of its merges; the order of its tokens does.
    by_order = metadata["general.architecture"].startswith("gemma")
    ranked = {token: float(-number if by_order else scores[number]) for token, number in vocabulary.items()}
    unknown = metadata["tokenizer.ggml.tokens"][metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = generate_merges(vocabulary, ranked)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", left=1)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _vocabulary(metadata: Metadata) -> dict[str, int]:
    """Token → id, without those that only fill the rows of the embedding."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or [None] * len(tokens)
    pairs = zip(tokens, types, strict=True)
    return {token: number for number, (token, kind) in enumerate(pairs) if kind != _UNUSED}


def _frame(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> Any:
    """What stands around a text, and around each of a pair."""
    single, second = (" ".join(filter(None, (bos, f"${name}", eos))) for name in ("A", "B"))
    special = [(token, tokenizer.token_to_id(token)) for token in {bos, eos} if token]
    # The second of a pair has token type 1, as in Llama's own.
    pair = f"{single} {' '.join(f'{part}:1' for part in second.split())}"
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
