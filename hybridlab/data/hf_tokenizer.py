"""A tokenizer as files that transformers reads: tokenizer.json and tokenizer_config.json with the special tokens.

Text is encoded as in training: without special tokens where a model continues or fills in text, and for a fine-tuned
model in the frame of its task (data/finetune/corpus.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from hybridlab.data.tokenizers import end_token, load_tokenizer
from hybridlab.errors import UserError
from hybridlab.files import read_object

_KNOWN = {
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>"),
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Role of a special token → its usual names."""
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""Files that a folder of transformers may have beside its tokenizer.json."""


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
    texts = {name: (path.parent / name).read_text() for name in _BESIDE if (path.parent / name).is_file()}
    if "tokenizer_config.json" in texts:
        own = read_object(path.parent / "tokenizer_config.json", "configuration of a tokenizer")
        names = {role: _content(own[role]) for role in (*_KNOWN, "eos_token") if own.get(role)}
    else:
        names = _special_names(tokenizer, causal)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": ["input_ids", *([] if causal else ["token_type_ids"]), "attention_mask"],
            # `generate` continues the end of every row.
            "padding_side": "left" if causal and not framed else "right",
            "clean_up_tokenization_spaces": False,
            **names,
        }
        texts["tokenizer_config.json"] = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
    if framed and tokenizer.post_processor is None:
        _frame(tokenizer, names, causal)
    texts["tokenizer.json"] = tokenizer.to_str(pretty=True) + "\n"
    ids = {role: tokenizer.token_to_id(name) for role, name in names.items()}
    return TokenizerFiles(texts, {role: number for role, number in ids.items() if number is not None})


def _content(token: Any) -> str:
    """The text of a special token, which may stand in an object with its settings."""
    return token["content"] if isinstance(token, dict) and isinstance(token.get("content"), str) else str(token)


def _special_names(tokenizer: Tokenizer, causal: bool) -> dict[str, str]:
    """Role → special token, of those that the tokenizer has. A decoder without padding pads with the end of a document,
    which its causal mask hides."""
    found: dict[str, str] = {}
    for role, known in _KNOWN.items():
        name = next((name for name in known if tokenizer.token_to_id(name) is not None), None)
        found |= {role: name} if name is not None else {}
    if causal:
        try:
            end = str(tokenizer.id_to_token(end_token(tokenizer)))
        except UserError:
            return found
        return {"eos_token": end, "pad_token": end, **found}
    return found


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
