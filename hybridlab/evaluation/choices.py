"""Multiple choice by log-likelihood: the option whose tokens are likeliest after the prompt is the answer.

    hybridlab eval RUN --choices copying-real,assignment-math

Tokens as in lm-eval: the space before an option belongs to the option; its tokens are those of prompt and option
together, without as many as the prompt alone has. Log-likelihoods are sums over these tokens, not divided by length.

What all prompts have in common, the solved examples, runs once; its keys and values are copied for a batch of items,
and those of each item for its options. Models without a cache, or with one that cannot be copied, run every row whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from os.path import commonprefix
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.attention.slots import NotCopied
from hybridlab.config.evaluation import Choices
from hybridlab.config.schema import RunConfig
from hybridlab.data.primitives import ChoiceItem, items, items_digest, prompt_with, solved_examples
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.evaluation.results import ChoiceResult
from hybridlab.evaluation.text import Text
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Transformer
from hybridlab.models.generate import padded
from hybridlab.plan.structure import Structure
from hybridlab.registry import CHOICES
from hybridlab.statistics import mean_and_error, proportion
from hybridlab.training.world import world

_MOST_BYTES = 2**29
"""Of the logits of a batch, and of the copies of its cache."""


@dataclass(frozen=True)
class Question:
    """The tokens of a prompt, with its solved examples, and of each option."""

    prompt: list[int]
    options: list[list[int]]

    def rows(self) -> list[list[int]]:
        """For each option, the tokens after which its own are predicted."""
        return [self.prompt + option[:-1] for option in self.options]


def tokenized(tokenizer: Tokenizer, items: Sequence[ChoiceItem], before: Sequence[ChoiceItem] = ()) -> list[Question]:
    """Items, with equally many options, as tokens. before: the solved examples that stand before each of them.

    UserError for a tokenizer that joins an option to the prompt.
    """
    if len({len(item.options) for item in items}) > 1:
        raise UserError("evaluation.choices: the items of one kind must have equally many options")
    prompts = [prompt_with(before, item) for item in items]
    texts = [f"{prompt} {option}" for prompt, item in zip(prompts, items, strict=True) for option in item.options]
    alone = [encoding.ids for encoding in tokenizer.encode_batch(prompts, add_special_tokens=False)]
    encodings = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    questions = []
    for prompt, item in zip(alone, items, strict=True):
        options = [next(encodings).ids[len(prompt) :] for _ in item.options]
        if not all(options):
            raise UserError(
                "evaluation.choices: this tokenizer makes one token of the end of a prompt and an option, so that "
                "options have no likelihood of their own; use another tokenizer"
            )
        questions.append(Question(prompt, options))
    return questions


def score_choices(
    model: Transformer,
    questions: list[Question],
    context: AbstractContextManager | None = None,
    inputs: Mapping[str, Any] | None = None,
    what: str = "multiple choice",
) -> np.ndarray:
    """(N, O): the log-likelihood, in nats, of every option of N questions with O options each, see `tokenized`.

    context: the precision of the computations; by default that of the weights. inputs: further arguments of the model's
    forward pass. what: for the lines of progress. UserError for prompts that are longer than the learned positions of
    the model.
    """
    require_positions(model.shape.max_positions, questions)
    if not questions:
        return np.zeros((0, 0))
    with torch.no_grad(), context or nullcontext():
        if has_cache(model.structure):
            with suppress(NotCopied):
                return _cached(model, questions, inputs or {}, what)
        return _uncached(model, questions, inputs or {}, what)


def choice_result(
    scores: np.ndarray, items: Sequence[ChoiceItem], chance: float, shots: int, **facts: Any
) -> ChoiceResult:
    """Accuracy, and loss among the options in nats, of scores (N, O). facts: further fields of the result."""
    answers = np.array([item.answer for item in items])
    among = torch.from_numpy(np.asarray(scores, dtype=np.float64)).log_softmax(1).numpy()
    right = among.argmax(1) == answers
    loss = mean_and_error(-among[np.arange(len(answers)), answers])
    return ChoiceResult(accuracy=proportion(right), loss=loss, chance=chance, shots=shots, **facts)


def choice_results(model: Transformer, config: RunConfig, text: Text) -> dict[str, ChoiceResult]:
    """The result of every kind of question in `evaluation.choices`, by its name."""
    settings, results = config.evaluation.choices, dict[str, ChoiceResult]()
    if settings is None:
        return results
    for name in settings.tasks:
        items, before = asked_items(settings, name)
        questions = tokenized(text.corpus.tokenizer, items, before)
        scores = score_choices(model, questions, text.context, inputs=text.inputs, what=name)
        results[name] = choice_result(
            scores,
            items,
            CHOICES.get(name).chance,
            len(before),
            prompt_tokens=max(len(question.prompt) for question in questions),
            training_tokens=config.training.seq_len,
            digest=items_digest([*before, *items]),
        )
    return results


def require_choices(positions: int | None, config: RunConfig, corpus: Corpus) -> None:
    """UserError, before anything is trained, for questions that a model with learned positions could not be asked.
    positions: their number; None for a model without, which has no limit."""
    settings = config.evaluation.choices
    if settings is None or positions is None:
        return
    for name in settings.tasks:
        require_positions(positions, tokenized(corpus.tokenizer, *asked_items(settings, name)), name)


def require_positions(positions: int | None, questions: Sequence[Question], name: str | None = None) -> None:
    """UserError for questions that are longer than a model's learned positions; rotary ones have no limit."""
    longest = max((len(row) for question in questions for row in question.rows()), default=0)
    if positions is not None and longest > positions:
        raise UserError(
            f"evaluation.choices: {name + ': ' if name else ''}a prompt with its shots has {longest} tokens, and this "
            f"model has learned positions for {positions}; ask with fewer evaluation.choices.shots, or leave it out"
        )


def has_cache(structure: Structure) -> bool:
    """Whether a model of this structure can decode with a cache: not with the paper's literal chunks, nor with masks
    that are being learned."""
    if structure.plan.literal:
        return False
    try:
        KVCache(structure, 1)
    except UserError:
        return False
    return True


def asked_items(settings: Choices, name: str, most: int | None = None) -> tuple[list[ChoiceItem], list[ChoiceItem]]:
    """The items of an evaluation, at most the first `most`, and the solved examples before each of them."""
    chosen = items(name, settings.items, settings.seed)
    return chosen[:most], solved_examples(name, settings.shots, settings.seed)


# ---- with a cache ----


def _cached(model: Transformer, questions: list[Question], inputs: Mapping[str, Any], what: str) -> np.ndarray:
    """Scores (N, O). What all prompts share runs once, each prompt once, and each option up to its last token."""
    shared = len(commonprefix([question.prompt[:-1] for question in questions]))
    start = KVCache(model.structure, 1)
    if shared:
        _continue(model, [questions[0].prompt[:shared]], start, inputs)
    width = len(questions[0].options)

    def scored(numbers: list[int]) -> np.ndarray:
        batch = [questions[number] for number in numbers]
        cache, rows = start.repeated(len(batch)), [question.prompt[shared:] for question in batch]
        logits = _continue(model, rows, cache, inputs)
        entries = [(row, len(rows[row]) - 1, option[:1]) for row, q in enumerate(batch) for option in q.options]
        likelihoods = _log_likelihoods(logits, entries)
        options = [option for question in batch for option in question.options]
        if any(len(option) > 1 for option in options):
            logits = _continue(model, [option[:-1] for option in options], cache.repeated(width), inputs)
            likelihoods += _log_likelihoods(logits, [(row, 0, option[1:]) for row, option in enumerate(options)])
        return likelihoods.reshape(len(batch), width)

    batches = list(_batches(model, questions, shared, start.bytes))
    scores = np.zeros((len(questions), width))
    scores[list(chain(*batches))] = np.concatenate(world().map(scored, batches, what))
    return scores


def _continue(model: Transformer, rows: list[list[int]], cache: KVCache, inputs: Mapping[str, Any]) -> Tensor:
    """Logits (B, longest, V) of rows of tokens that continue those of a cache, which takes them in."""
    device = model.device
    lengths = [len(row) for row in rows]
    mask = None if len(set(lengths)) == 1 else _mask(lengths, device)
    return model(padded(rows, device), attention_mask=mask, cache=cache, **inputs).logits


def _log_likelihoods(logits: Tensor, entries: list[tuple[int, int, list[int]]]) -> np.ndarray:
    """For each (row, position, tokens) the log-likelihood of the tokens, of which the first is predicted there, from
    logits (B, S, V)."""
    device, longest = logits.device, max(len(tokens) for _, _, tokens in entries)
    rows = torch.tensor([row for row, _, _ in entries], device=device)[:, None]
    first = torch.tensor([position for _, position, _ in entries], device=device)[:, None]
    positions = (first + torch.arange(longest, device=device)).clamp(max=logits.shape[1] - 1)
    targets = padded([tokens for _, _, tokens in entries], device)
    likelihoods = logits[rows, positions].float().log_softmax(-1).gather(2, targets[..., None])[..., 0]
    real = _mask([len(tokens) for _, _, tokens in entries], device)
    return torch.where(real, likelihoods, 0.0).double().sum(1).cpu().numpy()


def _batches(model: Transformer, questions: list[Question], shared: int, cached: int) -> Iterator[list[int]]:
    """Numbers of questions of similar length whose logits and copies of the cache need half a gibibyte. cached: bytes
    of the cache of the `shared` tokens."""
    order = sorted(range(len(questions)), key=lambda number: len(questions[number].prompt))
    longest, width = max(len(row) for question in questions for row in question.rows()), len(questions[0].options)
    logits = 4 * (longest - shared + width) * model.shape.vocab
    copies = (width + 1) * cached * longest // max(1, shared)
    size = max(1, _MOST_BYTES // (logits + copies))
    return (order[start : start + size] for start in range(0, len(order), size))


# ---- without ----


def _uncached(model: Transformer, questions: list[Question], inputs: Mapping[str, Any], what: str) -> np.ndarray:
    """Scores (N, O), from whole rows; options that are predicted from the same row share it."""
    device = model.device
    asking: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for number, question in enumerate(questions):
        for index, row in enumerate(question.rows()):
            asking.setdefault(tuple(row), []).append((number, index))
    scores = np.zeros((len(questions), len(questions[0].options)))

    def scored(rows: list[tuple[int, ...]]) -> tuple[list[tuple[int, int]], np.ndarray]:
        mask = _mask([len(row) for row in rows], device)
        logits = model(padded(rows, device), attention_mask=mask, **inputs).logits
        predicted = [
            (r, place, questions[place[0]].options[place[1]]) for r, row in enumerate(rows) for place in asking[row]
        ]
        entries = [(r, len(rows[r]) - len(option), option) for r, _, option in predicted]
        return [place for _, place, _ in predicted], _log_likelihoods(logits, entries)

    for places, likelihoods in world().map(scored, list(_alike(model, sorted(asking, key=len))), what):
        numbers, indices = zip(*places, strict=True)
        scores[list(numbers), list(indices)] = likelihoods
    return scores


def _alike(model: Transformer, rows: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Batches of rows, which are in the order of their lengths, with at most half a gibibyte of logits; with the
    paper's literal chunks, in which an output depends on the length of its row, all rows of a batch have one length."""
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and 4 * (end + 1 - start) * len(rows[end]) * model.shape.vocab <= _MOST_BYTES:
            if model.plan.literal and len(rows[end]) != len(rows[start]):
                break
            end += 1
        yield rows[start:end]
        start = end


def _mask(lengths: list[int], device: torch.device) -> Tensor:
    """(B, longest): True on the tokens of rows that are padded on the right."""
    return torch.arange(max(lengths), device=device)[None] < torch.tensor(lengths, device=device)[:, None]
