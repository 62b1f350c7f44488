"""Needles in a text (as in RULER, Hsieh et al., 2024), made from a seed on text that every machine has.

Several keys, each with a number, of which one is asked for (multi-key), or one key with several numbers, all asked for
(multi-value). The text around them is documentation of Python's standard library.
"""

from __future__ import annotations

import inspect
import random
import re
from functools import cache
from importlib import import_module
from typing import Any

import datasets

_FIRST = ("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "difflib", "email", "fractions", "heapq")
_MORE = ("inspect", "json", "logging", "pathlib", "random", "shutil", "statistics", "string", "textwrap", "typing")
_KEYS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "island", "jungle", "karst", "lagoon")
_SEED = 0


def multikey(words: int = 2000, count: int = 100, needles: int = 4, **_: Any) -> dict[str, datasets.Dataset]:
    """Questions on one of several keys. words: of a text, about 1.5 tokens each. count: questions."""
    return _made("multi-key", words, count, keys=needles, values=1)


def multivalue(words: int = 2000, count: int = 100, needles: int = 4, **_: Any) -> dict[str, datasets.Dataset]:
    """Questions on all numbers of one key."""
    return _made("multi-value", words, count, keys=1, values=needles)


def _made(kind: str, words: int, count: int, keys: int, values: int) -> dict[str, datasets.Dataset]:
    rows = [_row(random.Random(f"{_SEED} {kind} {words} {number}"), words, keys, values) for number in range(count)]
    return {"test": datasets.Dataset.from_list(rows)}


def _row(rng: random.Random, words: int, keys: int, values: int) -> dict[str, Any]:
    text, chosen = _sentences(), rng.sample(_KEYS, keys)
    start, length = rng.randrange(len(text)), 0
    taken: list[str] = []
    while length < words:
        sentence = text[(start + len(taken)) % len(text)]
        taken.append(sentence)
        length += len(sentence.split())
    numbers = {key: [str(n) for n in rng.sample(range(10_000, 100_000), values)] for key in chosen}
    for key, hidden in numbers.items():
        for number in hidden:
            taken.insert(rng.randrange(len(taken) + 1), f"One of the numbers for {key} is {number}.")
    asked = rng.choice(chosen)
    return {"context": " ".join(taken), "key": asked, "needles": numbers[asked]}


@cache
def _sentences() -> tuple[str, ...]:
    """The sentences of the documentation of some modules, in order."""
    found: list[str] = []
    for name in (*_FIRST, *_MORE):
        module = import_module(name)
        for _, member in sorted(inspect.getmembers(module), key=lambda item: item[0]):
            text = inspect.getdoc(member) if getattr(member, "__module__", None) == name else None
            found += re.findall(r"[A-Z][^.!?]{20,200}[.!?](?=\s|$)", " ".join((text or "").split()))
    return tuple(dict.fromkeys(found))
