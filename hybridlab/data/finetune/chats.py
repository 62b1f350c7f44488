"""Chats as text and tokens: who says what, the template that makes text of it, and rows that several chats share.

    hybridlab finetune RUN --task sft --data chats.jsonl

A row of a file is {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]} or a prompt
with its answer. The text is made by the chat template beside the tokenizer (chat_template.jinja, or
tokenizer_config.json of transformers) or, without one, by `PLAIN`. Only what the assistant says is learned, with the
token that ends it.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hybridlab.data.tokenizers import end_token, files_beside, special_names, special_tokens, stated_stops
from hybridlab.errors import UserError

ROLES = ("system", "user", "assistant")
TEMPLATE = "chat_template.jinja"
PLAIN = (
    "{% for message in messages %}"
    "{{ message.role | capitalize }}: {{ message.content }}{{ eos_token if message.role == 'assistant' else '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The template where a tokenizer has none: `User: …`, a new line, `Assistant: …` and the token that ends a document."""
Message = tuple[str, ...]
"""Role and content."""


@dataclass(frozen=True)
class Document:
    """Tokens of a chat, or of a part of it. learned: which of them are learned."""

    tokens: np.ndarray
    learned: np.ndarray


@dataclass(frozen=True)
class ChatTemplate:
    """What makes text of chats. file: the tokenizer.json. text: in jinja. names: role → special token. own: whether it
    is the tokenizer's own. beside: file → content, what has to stand beside the tokenizer so that others find the
    template."""

    tokenizer: Tokenizer
    file: Path | None
    text: str
    names: Mapping[str, str]
    own: bool
    beside: Mapping[str, str]

    def rendered(self, messages: Sequence[Message], origin: str, ask: bool) -> str:
        """The text of a chat. ask: with what stands before an answer. UserError, with the chat's place, if the template
        does not take it."""
        from jinja2 import TemplateError

        chat, renders = [{"role": role, "content": content} for role, content in messages], self.of_transformers
        try:
            return str(renders.apply_chat_template(chat, tokenize=False, add_generation_prompt=ask))
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"{origin}: the chat template does not take this chat ({str(error)[:120]}); correct or remove it"
            ) from None

    @cached_property
    def of_transformers(self) -> Any:
        """The tokenizer as transformers has it, with this template."""
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError:
            raise UserError("chat templates need transformers; pip install 'hybridlab[open]'") from None
        tokenizer_class: Any = PreTrainedTokenizerFast
        return tokenizer_class(tokenizer_object=self.tokenizer, chat_template=self.text, **self.names)

    def documents(self, messages: Sequence[Message], origin: str) -> list[Document]:
        """A chat as tokens: one document or, where the template writes what was said before differently once the chat
        goes on, several, each with all that stands before its answers. Each answer is learned once."""
        written: list[tuple[str, list[tuple[int, int]]]] = []
        text, answers = "", list[tuple[int, int]]()
        for number, (role, _) in enumerate(messages):
            if role != "assistant":
                continue
            before = self.rendered(messages[:number], origin, ask=True)
            after = self.rendered(messages[: number + 1], origin, ask=False)
            if not after.startswith(before):
                raise UserError(
                    f"{origin}: the chat template ends a prompt with {before[-24:]!r}, and writes its answer without "
                    f"that; put a {TEMPLATE} that keeps it beside the tokenizer"
                )
            if text and not before.startswith(text):
                written.append((text, answers))
                answers = []
            text = after
            answers.append((len(before), len(after)))
        return [self._encoded(*part, origin) for part in [*written, (text, answers)]]

    def _encoded(self, text: str, answers: list[tuple[int, int]], origin: str) -> Document:
        """answers: the characters of each. A template that ends no answer gets the token that ends a document."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        tokens, starts = np.array(encoding.ids), np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        learned, special = np.zeros(len(tokens), dtype=bool), np.isin(tokens, self._special)
        for first, end in answers:
            inside = (starts >= first) & (starts < end)
            if not (inside & ~special).any():
                raise UserError(
                    f"{origin}: the tokenizer has no token for the answer {text[first:end][:40]!r}; remove it, or use "
                    "a model whose tokenizer can write it"
                )
            learned |= inside
        if not (inside & special).any():
            tokens, learned = np.append(tokens, end_token(self.tokenizer, self.file)), np.append(learned, True)
        # Nothing stands before the first token that it could be told from.
        learned[:1] = False
        return Document(tokens.astype(np.int32), learned)

    @cached_property
    def _special(self) -> list[int]:
        return special_tokens(self.tokenizer)

    def prompt(self, text: str, origin: str) -> str:
        """What a model continues to answer a user who says this."""
        return self.rendered([("user", text)], origin, ask=True)

    @property
    def stop(self) -> int:
        """The token that ends an answer."""
        (document,) = self.documents([("user", "a"), ("assistant", "b")], "chat template")
        ends = [int(token) for token in document.tokens[document.learned] if token in self._special]
        return ends[0] if ends else end_token(self.tokenizer, self.file)


def chat_template(path: Path | None, tokenizer: Tokenizer) -> ChatTemplate:
    """The template beside the tokenizer.json at `path`, or the plain one. UserError if what is there cannot be used, or
    if the tokenizer has no token that ends an answer."""
    beside = {} if path is None else files_beside(path, tokenizer)
    names = special_names(path, tokenizer, causal=True)
    text = beside.get(TEMPLATE) or _of_config(beside.get("tokenizer_config.json", "{}"))
    if text is None:
        names = {**names, "eos_token": str(tokenizer.id_to_token(end_token(tokenizer, path)))}
        return ChatTemplate(tokenizer, path, PLAIN, names, False, {**beside, TEMPLATE: PLAIN})
    return ChatTemplate(tokenizer, path, text, names, True, beside)


def answer_end(path: Path | None, tokenizer: Tokenizer) -> int | None:
    """The token that ends an answer in the chat template beside the tokenizer.json at `path`; None without a template
    that can be used."""
    try:
        template = chat_template(path, tokenizer)
        return template.stop if template.own else None
    except UserError:
        return None


def stop_tokens(path: Path | None, tokenizer: Tokenizer) -> list[int]:
    """The tokens at which generation stops: those that are stated beside the tokenizer.json at `path` or, without any,
    the one that ends a document, and the one that ends an answer in the chat template there."""
    if stated := stated_stops(path):
        return stated
    ends = (end_token(tokenizer, path), answer_end(path, tokenizer))
    return list(dict.fromkeys(token for token in ends if token is not None))


def _of_config(content: str) -> str | None:
    """The template in a tokenizer_config.json; of several the one named `default`."""
    template: Any = json.loads(content).get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def shared_rows(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Numbers of documents in rows of at most `room` tokens: the longest first, each in the fullest row that has room
    for it."""
    rows: list[list[int]] = []
    left: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        place = bisect_left(left, (lengths[number], 0))
        if place == len(left):
            left.append((room, len(rows)))
            rows.append([])
        tokens, row = left.pop(place)
        rows[row].append(number)
        insort(left, (tokens - lengths[number], row))
    return rows
