"""A decoder as a model of lm-eval (EleutherAI's evaluation harness, 0.4).

    from hybridlab.evaluation.lm_eval_model import HarnessModel
    lm_eval.simple_evaluate(model=HarnessModel(model, tokenizer), tasks=[...])

Everything that decides a score is as in lm-eval's own class for transformers, `HFLM`, so that both give the same
scores for the same weights: how a text becomes tokens, what is cut off on the left, which token stands before a text
without a context, the order of the batches (longest first), requests that share a forward pass, and where a generated
text ends. Numbers are computed in the precision of the weights. Ranks share the batches, and each has all scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import TemplateError
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import Collator, handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.data.finetune.chats import stop_tokens
from hybridlab.data.tokenizers import end_token, written_names
from hybridlab.errors import UserError
from hybridlab.evaluation.lm_eval_options import SAMPLING
from hybridlab.files import read_object
from hybridlab.messages import say
from hybridlab.models.cache import require_caches
from hybridlab.models.decoder import Transformer
from hybridlab.models.generate import padded
from hybridlab.training.world import World, world

NEW_TOKENS = 256
"""A generated text has at most this many tokens where a task does not say; lm-eval's number."""
MOST_ROWS = 64
"""The largest batch that `auto` tries; lm-eval's number."""
_IGNORED = ("do_sample", "use_cache")
_LOOK_BACK = 2
"""Tokens before those of a stop text that are decoded with them to find it, as in lm-eval."""

LmEvalRequest = tuple[tuple[str, str] | None, list[int], list[int]]
"""(context and continuation as texts, tokens of the context, tokens of the continuation)."""


class HarnessModel(TemplateLM):
    """See the module.

    model: a decoder, which is put into evaluation mode. special: what begins and ends a text. max_length: the most
    tokens of a row; longer ones lose their beginning. batch_size: rows at once, which changes only speed, memory and
    the last bits; `auto` for the most that fit into memory, up to 64. chat: transformers' tokenizer, if prompts are
    written with its chat template. batch_sizes: what `auto` has found, by tokens and scored tokens of a row.

    UserError for a model that does not predict next tokens.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        special: SpecialTokens,
        max_length: int,
        batch_size: int | Literal["auto"] = 8,
        chat: Any = None,
    ) -> None:
        super().__init__()
        require_caches(model.structure, "lm-eval")
        self.model, self.tokens, self.special = model.eval(), tokenizer, special
        self.max_length, self.batch_size, self.tokenizer = max_length, batch_size, chat
        self.batch_sizes: dict[tuple[int, int], int] = {}
        self._device = model.device
        self._said_beyond = False
        self._encoded = lru_cache(4096)(lambda text, add: tuple(tokenizer.encode(text, add_special_tokens=add).ids))
        self._prefix = tokenizer.decode([special.prefix], skip_special_tokens=False)

    @property
    def eot_token_id(self) -> int:
        return self.special.end

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        return self.special.prefix

    @property
    def tokenizer_name(self) -> str:
        return "hybridlab"

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval's result files say of a model."""
        dtype = next(self.model.parameters()).dtype
        return {
            "model_num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "model_dtype": str(dtype),
        }

    def _fitting(self, size: tuple[int, int], most: int, run: Callable[[int], object]) -> int:
        """How many rows are computed at once. size: their tokens, and how many of these are scored. most: rows that
        there are. run: computes a number of rows."""
        if self.batch_size != "auto":
            return self.batch_size
        rows = self.batch_sizes.get(size) or min(most, MOST_ROWS)
        while size not in self.batch_sizes:
            try:
                run(rows)
            except RuntimeError as error:  # torch's class for a GPU is one of these, and a CPU has none
                if "memory" not in str(error) or rows == 1:
                    raise
                torch.cuda.empty_cache()
                rows //= 2
            else:
                self.batch_sizes[size] = rows = -world().agree(-rows)
        return rows

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The tokens of a text. A text that begins with the prefix token as text does not get it twice."""
        add = add_special_tokens
        if add is None:
            add = not string.startswith(self._prefix)
        return list(self._encoded(string, add))

    # ---- log-likelihoods ----

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each request the log-likelihood of its continuation, in nats, and whether each of its tokens is the
        likeliest one."""
        # lm-eval's own bar shows only how many texts have become tokens.
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: Sequence[LmEvalRequest], **kwargs: Any) -> list[tuple[float, bool]]:
        return self._log_likelihoods(requests, self._rows_at_once(requests), world(), "log-likelihoods")

    def _log_likelihoods(
        self, requests: Sequence[LmEvalRequest], size: int, among: World, what: str
    ) -> list[tuple[float, bool]]:
        """See `loglikelihood`. Requests that differ only in the last token share a row. size: rows at once. among: the
        processes that share the batches. what: for the lines of progress."""
        for _, _, continuation in requests:
            self._check_continuation(continuation)
        order = Collator(
            requests,
            sort_fn=lambda request: (-len(request[1] + request[2]), tuple(request[1] + request[2])),
            group_by="contexts",
            group_fn=lambda request: request[1] + request[2][:-1],
        )
        sharing: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            sharing.setdefault(tuple(context + continuation[:-1]), []).append(number)

        def scored(batch: list[LmEvalRequest]) -> list[tuple[int, tuple[float, bool]]]:
            found = []
            for logits, (_, context, continuation) in zip(self._scored(batch), batch, strict=True):
                likeliest = logits.argmax(-1)
                for number in sharing[tuple(context + continuation[:-1])]:
                    found.append((number, _answer(logits, likeliest, requests[number][2])))
            return found

        answers = dict(chain(*among.map(scored, list(self._batches(order, size)), what)))
        for number, (text, _, _) in enumerate(requests):
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, answers[number])
        return [answers[number] for number in range(len(requests))]

    def _batches(self, order: Collator, size: int) -> Iterator[list[LmEvalRequest]]:
        """Batches of a size in the collator's order. With the paper's literal chunks, in which an output depends on the
        length of its row, all rows of a batch have one length."""
        for batch in order.get_batched(n=size):
            if not self.model.plan.literal:
                yield batch
                continue
            lengths = [len(context) + len(continuation) for _, context, continuation in batch]
            for length in dict.fromkeys(lengths):
                yield [request for request, own in zip(batch, lengths, strict=True) if own == length]

    def _scored(self, batch: Sequence[LmEvalRequest]) -> Iterator[Tensor]:
        """For each request the log-probabilities (tokens of its continuation, V), from one forward pass."""
        rows = [
            (context + continuation)[-(max(self.max_length, len(continuation)) + 1) :][:-1]
            for _, context, continuation in batch
        ]
        # The output head is computed at the scored positions alone, which are mostly few.
        most = max(len(continuation) for _, _, continuation in batch)
        ends = torch.tensor([len(row) for row in rows], device=self._device)
        at = (ends[:, None] + torch.arange(-most, 0, device=self._device)).clamp(min=0)
        with torch.no_grad():
            logits = self.model(padded(rows, self._device), at=at).logits
            for row, (_, _, continuation) in zip(logits, batch, strict=True):
                yield row[-len(continuation) :].log_softmax(-1)

    def _rows_at_once(self, requests: Sequence[LmEvalRequest]) -> int:
        """How many of these requests are computed at once."""
        if not requests:
            return 1
        longest = max(len(context) + len(continuation) for _, context, continuation in requests)
        scored = max(len(continuation) for _, _, continuation in requests)
        length = min(longest, max(self.max_length, scored) + 1)
        row: LmEvalRequest = (None, [0] * (length - scored), [0] * scored)
        return self._fitting((length, scored), len(requests), lambda rows: list(self._scored([row] * rows)))

    def _check_continuation(self, continuation: list[int]) -> None:
        if not continuation:
            raise UserError(
                "this tokenizer makes no token of its own of a text that is to be scored; use a model "
                "with another tokenizer"
            )
        if len(continuation) > self.max_length:
            self._beyond(f"a text to be scored has {len(continuation)} tokens")

    def _beyond(self, what: str) -> None:
        """A row must be longer than `max_length`, where lm-eval's own class would stop: UserError if the model has no
        such positions; else it is said, once."""
        if self.model.shape.max_positions is not None:
            raise UserError(f"{what}, and the model has {self.max_length} positions; choose another task")
        if not self._said_beyond:
            say(f"{what}, more than the {self.max_length} that the model is made for: they are taken all the same")
        self._said_beyond = True

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each whole text, in nats: in windows of `max_length` tokens that do not overlap, each
        after one token of context."""
        windows: list[tuple[int, LmEvalRequest]] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for pair in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((number, (None, *make_disjoint_window(pair))))
        size = self._rows_at_once([window for _, window in windows])
        batches = [windows[start : start + size] for start in range(0, len(windows), size)]
        what = "windows of texts"

        def scored(batch: list[tuple[int, LmEvalRequest]]) -> list[float]:
            found = self._log_likelihoods([window for _, window in batch], size, World(), what)
            return [value for value, _ in found]

        values = list(chain(*world().map(scored, batches, what)))
        sums: list[float] = [0] * len(requests)
        for (number, _), value in zip(windows, values, strict=True):
            sums[number] += value
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (request.args[0],), value)
        return sums

    # ---- generated texts ----

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """For each request its context's continuation up to one of its stop texts, without it."""
        order = Collator(
            [(*request.args, number) for number, request in enumerate(requests)],
            sort_fn=lambda asked: (-len(self.tok_encode(asked[0])), asked[0]),
            group_by="gen_kwargs",
            group_fn=lambda asked: asked[1],
        )

        def continued(batch: list[tuple[str, dict[str, Any], int]]) -> list[str]:
            contexts, settings, numbers = zip(*batch, strict=True)
            return self._continued(contexts, settings[0], numbers)

        longest = max((len(self.tok_encode(request.args[0])) for request in requests), default=1)
        row = torch.zeros(1, min(longest, self.max_length), dtype=torch.long, device=self._device)
        size = self._fitting(
            (row.shape[1], 0), len(requests), lambda rows: self.model.generate(row.expand(rows, -1), 1)
        )
        batches = list(order.get_batched(n=size))
        texts = order.get_original(list(chain(*world().map(continued, batches, "generated texts"))))
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _continued(self, contexts: Sequence[str], settings: dict[str, Any], seeds: Sequence[int]) -> list[str]:
        """One batch of texts, continued with the settings of a task. seeds: of the samples of each."""
        asked: dict[str, Any] = dict(normalize_gen_kwargs(settings, NEW_TOKENS))
        end = self.tokens.decode([self.special.end], skip_special_tokens=False)
        stops = handle_stop_sequences(asked.pop("until", None), eos=end)
        new = asked.pop("max_gen_toks")
        room = self.max_length - new
        if room <= 0:
            self._beyond(f"the task asks for {new} new tokens")
            room = self.max_length
        add = not contexts[0].startswith(self._prefix)
        rows = [self.tok_encode(context, add)[-room:] for context in contexts]
        stop = _Stops(self.tokens, stops, self.special.ends)
        generated = self.model.generate(
            padded(rows, self._device),
            new,
            lengths=[len(row) for row in rows],
            until=stop.all_done,
            seed=seeds,
            **_sampling(asked),
        )
        made = [row[len(prompt) :] for row, prompt in zip(generated.rows(), rows, strict=True)]
        return [postprocess_generated_text(stop.text(row), stops, None) for row in made]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Turns of a conversation as a prompt. A template that has no system turn gets the others alone, as in
        lm-eval."""
        if self.tokenizer is None:
            raise UserError("models are measured without a chat template; choose a task that needs none")
        settings = {"tokenize": False, "add_generation_prompt": add_generation_prompt}
        settings["continue_final_message"] = not add_generation_prompt
        try:
            return str(self.tokenizer.apply_chat_template(chat_history, **settings))
        except TemplateError:
            others = [turn for turn in chat_history if turn["role"] != "system"]
            return str(self.tokenizer.apply_chat_template(others, **settings))


class _Stops:
    """When a batch of generated rows can end, and their texts.

    A row ends at a token that ends texts. Stop texts do not end a row: as in lm-eval, a batch goes on until each of its
    rows has ended or has shown a stop text among its last tokens, and texts are cut afterwards.
    """

    def __init__(self, tokenizer: Tokenizer, stops: list[str], ends: frozenset[int]) -> None:
        self.tokenizer, self.ends = tokenizer, ends
        lengths = [len(tokenizer.encode(stop, add_special_tokens=False).ids) + _LOOK_BACK for stop in stops]
        self.stops = list(zip(stops, lengths, strict=True))
        self.done: list[bool] | None = None

    def all_done(self, rows: list[list[int]]) -> bool:
        """rows: the new tokens of each row so far. To be called after every token."""
        self.done = self.done or [False] * len(rows)
        for number, row in enumerate(rows):
            self.done[number] = self.done[number] or self._ended(row)
        return all(self.done)

    def _ended(self, row: list[int]) -> bool:
        if row[-1] in self.ends:
            return True
        return any(
            stop in self.tokenizer.decode(row[-length:], skip_special_tokens=False) for stop, length in self.stops
        )

    def text(self, row: list[int]) -> str:
        """The text of a row up to its end, without special tokens."""
        first = next((place for place, token in enumerate(row) if token in self.ends), len(row))
        # Ids above the tokenizer's own, which a model may have in reserve, have no text.
        return self.tokenizer.decode(row[:first], skip_special_tokens=True)


def _sampling(asked: dict[str, Any]) -> dict[str, Any]:
    """The settings of a task as arguments of `generate`; UserError for one that does not exist here."""
    unknown = [name for name in asked if name not in (*SAMPLING, *_IGNORED)]
    if unknown:
        raise UserError(
            f"the task generates with {unknown[0]}={asked[unknown[0]]!r}, which models here do not have; "
            "choose another task"
        )
    chosen = {name: asked[name] for name in SAMPLING if asked.get(name) is not None}
    return chosen if asked.get("do_sample") else {}


def _answer(logits: Tensor, likeliest: Tensor, continuation: list[int]) -> tuple[float, bool]:
    """The sum of the log-probabilities (S, V) of a continuation's tokens, the last ones of the S, and whether each is
    the likeliest (S)."""
    tokens = torch.tensor(continuation, device=logits.device)
    logits = logits[-len(tokens) :]
    greedy = bool((likeliest[-len(tokens) :] == tokens).all())
    return float(logits.gather(1, tokens[:, None])[:, 0].sum()), greedy


# ---- what begins and ends a text for a model, and how long its rows may be ----
# A folder in the Hugging Face layout says it in config.json, generation_config.json and tokenizer_config.json, which
# lm-eval reads through transformers; a run of hybridlab has its tokenizer, and what stands beside it.

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")
"""Where a configuration says how many positions a model has, in lm-eval's order."""


@dataclass(frozen=True)
class SpecialTokens:
    """end: the token whose text ends a generated one. prefix: stands before a text without a context. ends: every
    token that ends a generated row."""

    end: int
    prefix: int
    ends: frozenset[int]


def special_tokens_of(folder: Path | None, tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a model's folder, if it has one. UserError if its tokenizer has no token that ends a
    text."""
    file = None if folder is None else folder / "tokenizer.json"
    end, begin = end_token(tokenizer, file), tokenizer.token_to_id(written_names(file).get("bos_token", ""))
    return SpecialTokens(end, end if begin is None else begin, frozenset([end, *stop_tokens(file, tokenizer)]))


def longest_row(folder: Path) -> int | None:
    """How many tokens the configuration of a folder in the Hugging Face layout allows; None if it does not say."""
    try:
        stored = read_object(folder / "config.json", "configuration")
    except FileNotFoundError:
        return None
    return next((stored[name] for name in _LENGTHS if isinstance(stored.get(name), int)), None)
