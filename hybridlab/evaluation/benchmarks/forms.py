"""What the tasks of this folder compute: prompts with several parts, and scores of written answers.

F1 and exact match of words as in SQuAD (Rajpurkar et al., 2016): lower case, without punctuation and articles, the best
over all accepted answers. Texts in Chinese are compared by characters.

Needles in a text (as in RULER, Hsieh et al., 2024) are made from a seed on text that every machine has: several keys,
each with a number, of which one is asked for (multi-key), or one key with several numbers, all asked for (multi-value).
The text around them is documentation of Python's standard library. Needles and pairs with options are questions on one
of several numbers in a text, which stands near its end or far from it.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections import Counter
from functools import cache
from importlib import import_module
from typing import Any

import datasets

from hybridlab.config.schema import Data
from hybridlab.data.split import divided
from hybridlab.evaluation import finetuned

_FIRST = ("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "difflib", "email", "fractions", "heapq")
_MORE = ("inspect", "json", "logging", "pathlib", "random", "shutil", "statistics", "string", "textwrap", "typing")
_KEYS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "jungle", "karst", "lagoon")
_SEED = 0
UNANSWERABLE = "unanswerable"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def words(text: str) -> list[str]:
    """The words of an answer, as SQuAD compares them; of Chinese its characters."""
    if _CHINESE.search(text):
        return [mark for mark in text.lower() if mark.isalnum()]
    return finetuned.words(text)


def f1(answer: str, accepted: str) -> float:
    """The harmonic mean of precision and recall of an answer's words; 1 if both have none."""
    mine, theirs = words(answer), words(accepted)
    if not mine or not theirs:
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * shared / (len(mine) + len(theirs))


# ---- reading comprehension, and questions without a text ----


def accepted(doc: dict[str, Any]) -> list[str]:
    """The accepted answers of a row of any of these tasks; of a conversation those to its last question."""
    if "story" in doc:
        lists = [doc["answers"], *(doc.get("additional_answers") or {}).values()]
        return list(dict.fromkeys(turns["input_text"][-1] for turns in lists))
    answers = doc["answer"] if "answer" in doc else doc["answers"]
    if isinstance(answers, dict):
        answers = dict.fromkeys([answers["value"], *answers["aliases"]])
    return list(answers) or [UNANSWERABLE]


def first_answer(doc: dict[str, Any]) -> str:
    return accepted(doc)[0]


def answer_scores(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    generated, right = results[0].strip().split("\n")[0], accepted(doc)
    exact = max(float(words(generated) == words(answer)) for answer in right)
    return {"f1": max(f1(generated, answer) for answer in right), "exact_match": exact}


def coqa_text(doc: dict[str, Any]) -> str:
    """The story, and the conversation up to its last question."""
    questions, answers = doc["questions"]["input_text"], doc["answers"]["input_text"]
    before = "".join(f"Q: {q}\nA: {a}\n" for q, a in zip(questions[:-1], answers[:-1], strict=True))
    return f"{doc['story']}\n\n{before}Q: {questions[-1]}\nA:"


# ---- word problems ----


def same_number(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Whether the first number of the generated text is the answer."""
    match = _NUMBER.search(results[0])
    number = None if match is None else float(match[0].replace(",", ""))
    return {"exact_match": float(number is not None and abs(number - float(doc["answer"])) < 1e-4)}


# ---- needles ----


def needles(words: int, keys: int, values: int, count: int = 100, **_: Any) -> dict[str, datasets.Dataset]:
    """Questions on one of several keys, or on all values of one. words: of a text, about 1.5 tokens each. count:
    questions."""
    kind = "multi-key" if keys > 1 else "multi-value"
    rows = [_needle(random.Random(f"{_SEED} {kind} {words} {number}"), words, keys, values) for number in range(count)]
    return {"test": datasets.Dataset.from_list(rows)}


def _needle(rng: random.Random, words: int, keys: int, values: int) -> dict[str, Any]:
    chosen = rng.sample(_KEYS, keys)
    taken = _text(rng, words)
    numbers = {key: [str(n) for n in rng.sample(range(10_000, 100_000), values)] for key in chosen}
    for key, hidden in numbers.items():
        for number in hidden:
            taken.insert(rng.randrange(len(taken) + 1), f"One of the numbers for {key} is {number}.")
    queried = rng.choice(chosen)
    return {"context": " ".join(taken), "key": queried, "needles": numbers[queried]}


def _text(rng: random.Random, words: int) -> list[str]:
    """Sentences that follow each other, with so many words or a few more."""
    text = _sentences()
    start, length = rng.randrange(len(text)), 0
    taken: list[str] = []
    while length < words:
        sentence = text[(start + len(taken)) % len(text)]
        taken.append(sentence)
        length += len(sentence.split())
    return taken


def needles_with_options(words: int, place: str, count: int = 100, **_: Any) -> dict[str, datasets.Dataset]:
    """Four keys with a number each in a text, one of which is asked for, with all four numbers as options. place: of
    the sentence that is asked for: `near`, before the last one, or `far`, among the first 200 words and in the first
    quarter."""
    rows = []
    for number in range(count):
        rng = random.Random(f"{_SEED} options {words} {place} {number}")
        taken, chosen = _text(rng, words), rng.sample(_KEYS, 4)
        numbers = rng.sample(range(10_000, 100_000), 4)
        sentences = [f"One of the numbers for {key} is {n}." for key, n in zip(chosen, numbers, strict=True)]
        early = [i for i in range(len(taken) // 4) if len(" ".join(taken[:i]).split()) <= 200]
        for sentence in sentences[1:]:
            taken.insert(rng.randrange(len(taken)), sentence)
        taken.insert(len(taken) - 1 if place == "near" else rng.choice(early), sentences[0])
        rows.append({"context": " ".join(taken), "key": chosen[0], **_options(rng, numbers)})
    return {"test": datasets.Dataset.from_list(rows)}


def pairs_with_options(keys: int, count: int = 100, **_: Any) -> dict[str, datasets.Dataset]:
    """A list of keys with a number each, one of the first quarter of which is asked for, with four numbers of the list
    as options."""
    rows, names = [], [f"{first}-{second}" for first, second in itertools.permutations(_KEYS, 2)]
    for number in range(count):
        rng = random.Random(f"{_SEED} pairs {keys} {number}")
        chosen, numbers = rng.sample(names, keys), rng.sample(range(1_000, 10_000), keys)
        queried = rng.randrange(keys // 4)
        distractors = rng.sample([n for i, n in enumerate(numbers) if i != queried], 3)
        listed = "\n".join(f"The value of {key} is {n}." for key, n in zip(chosen, numbers, strict=True))
        rows.append({"context": listed, "key": chosen[queried], **_options(rng, [numbers[queried], *distractors])})
    return {"test": datasets.Dataset.from_list(rows)}


def _options(rng: random.Random, numbers: list[int]) -> dict[str, Any]:
    """Numbers, of which the first is the answer, in an order at random."""
    order = rng.sample(numbers, len(numbers))
    return {"options": [str(n) for n in order], "answer": order.index(numbers[0])}


def long_sources(held_out: bool, count: int = 100, characters: int = 12_000, **_: Any) -> dict[str, datasets.Dataset]:
    """The first long documents of `embedded` that a run with data.validation_fraction 0.5 keeps for validation
    (held_out), or that it trains on."""
    documents, split = divided(Data(source="embedded", validation_fraction=0.5))
    long = (text for i, text in enumerate(documents) if split.held_out(i, text) == held_out and len(text) >= characters)
    return {"test": datasets.Dataset.from_list([{"text": text} for text in itertools.islice(long, count)])}


@cache
def _sentences() -> tuple[str, ...]:
    """The sentences of the documentation of some modules, in order."""
    sentences: list[str] = []
    for name in (*_FIRST, *_MORE):
        module = import_module(name)
        for _, member in sorted(inspect.getmembers(module), key=lambda item: item[0]):
            text = inspect.getdoc(member) if getattr(member, "__module__", None) == name else None
            sentences += re.findall(r"[A-Z][^.!?]{20,200}[.!?](?=\s|$)", " ".join((text or "").split()))
    return tuple(dict.fromkeys(sentences))


def share_found(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The share of the needles that the generated text contains, and whether it has all."""
    contained = [needle in results[0] for needle in doc["needles"]]
    return {"found": sum(contained) / len(contained), "exact_match": float(all(contained))}
