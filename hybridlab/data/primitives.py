"""Reasoning primitives: small questions with options, for five-shot evaluation and for training text.

They are those of the depth-growth paper (section 3.2, appendix C, table 6), which takes them from Saunshi et al. 2024,
"On the inductive bias of stacking towards improving reasoning" (appendix):

copying-random, copying-real   ten words, then five of them in a row once more; which word follows? (chance 1/10)
assignment-basic, -math, -code   five variables with different values; what is the value of one? (chance 1/5)

Printed in the growth paper, and used to the letter: the prompts of the two examples (`Fill in the blank:` for copying,
`Fill in blank:` for assignment, `____ . ->`), ten words of three letters, five of them repeated, five shots, multiple
choice. Decided here, because no text at hand prints it:

- The printed assignment is `basic`. `math` and `code` ask in the sentences of Saunshi et al., as others quote them
  ("a set of simple mathematical equations", "a very short Python program"); where their lines break is ours.
- Values are whole numbers from 1 to 25, and none begins with another: after a tokenizer that splits numbers into
  digits, ` 2` is never less likely than ` 23`, so that with both among the options no model could answer `23`. (The
  printed example has 1 and 13.)
- Real words are English words of three letters that stand in the text of Python's standard library, the text that is on
  every machine. They are listed here, so that another Python version gives the same items; a test looks them up there.
- Options stand in random order, so that an unchanging choice is right as often as chance. Other guesses are better: the
  answer is never one of the five words that are repeated, nor among the first five.
- Shots and items are separated by an empty line, and the answer from the prompt by a space, as in lm-eval.

Evaluation and training never share an item: a digest of the prompt says which of the two it may be for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat

import numpy as np

from hybridlab.errors import UserError, nearest
from hybridlab.plan.visit import is_whole
from hybridlab.plugins import refuse
from hybridlab.registry import CHOICES

_WORDS = """
act add age all and any are arm ask bad bar big bin bit box bug but can cat cut day did die dot dry due egg end far
fee few fit fix fly for gap get got had has hit how its job key law let log lot low man map may mid mix net new nor
not now odd off old one our out own pad pay per pop put ran raw red rid row run say see set sin six sub sum sun tab
tag tar the too top try two use van via was way web who why win won yes yet you
"""
REAL_WORDS = _WORDS.split()
"""English words of three letters, each in four files or more of the standard library of Python 3.11."""

NUM_WORDS = 10
COPIED = 5
NUM_VARIABLES = 5
LARGEST_VALUE = 25
BETWEEN = "\n\n"
"""Between the items of a prompt with shots, and of a document."""
ITEMS_PER_DOCUMENT = 6
"""As in a prompt with five shots."""
DOCUMENTS = 20_000
"""Documents of a source that says no number."""

_PRIMITIVES = 5
"""First word of the seed sequences; see data/batches.py."""
_ITEMS, _SHOTS, _TRAINING = range(3)
_PARTS = 8
"""An eighth of all items is for evaluation, another for its shots, the others for training."""


@dataclass(frozen=True)
class ChoiceItem:
    """A question: prompt, options, and the index of the right one. `prompt + " " + option` is the text of an answer."""

    prompt: str
    options: tuple[str, ...]
    answer: int

    @property
    def solved(self) -> str:
        """The text of the item with its right answer."""
        return f"{self.prompt} {self.options[self.answer]}"


@dataclass(frozen=True)
class Primitive:
    """A kind of question with a fixed number of options. make: generator → an item; equal states give equal items.
    chance: accuracy of guessing."""

    make: Callable[[np.random.Generator], ChoiceItem]
    chance: float


def items(name: str, count: int, seed: int) -> list[ChoiceItem]:
    """`count` different items of a primitive for evaluation; the same ones for a seed on every machine, of which the
    first are the same for every count. UserError for an unknown name."""
    return list(islice(_different(name, seed, _ITEMS), count))


def solved_examples(name: str, count: int, seed: int) -> list[ChoiceItem]:
    """`count` items whose solutions stand before those of an evaluation; none of them is an item of any seed."""
    return list(islice(_different(name, seed, _SHOTS), count))


def prompt_with(before: Sequence[ChoiceItem], item: ChoiceItem) -> str:
    """The text up to the answer of an item: solved examples, and its prompt."""
    return "".join(shot.solved + BETWEEN for shot in before) + item.prompt


def items_digest(items: Sequence[ChoiceItem]) -> str:
    """Sixteen hexadecimal digits that identify items."""
    return hashlib.sha256(repr([(i.prompt, i.options, i.answer) for i in items]).encode()).hexdigest()[:16]


def documents(argument: str, field: str = "text") -> Iterator[str]:
    """The training documents of `primitives:SEED[:NAME,NAME][:DOCUMENTS]`, each of six solved items of one primitive.

    Document i depends only on the seed, the names and i. UserError for another form of the argument.
    """
    seed, names, count = _parsed(argument)

    def document(number: int) -> str:
        rng = np.random.default_rng((_PRIMITIVES, _TRAINING, seed, number))
        name = names[int(rng.integers(len(names)))]
        drawn = (item for item in (_made(name, rng) for _ in repeat(None)) if _use(item) == _TRAINING)
        return BETWEEN.join(item.solved for item in islice(drawn, ITEMS_PER_DOCUMENT))

    return map(document, range(count))


def label(argument: str) -> str:
    """A short name of a source: the primitives that it names, or `primitives`."""
    names = [part for part in argument.split(":")[1:] if not part.isdecimal()]
    return names[0].replace(",", "-") if names else "primitives"


def _parsed(argument: str) -> tuple[int, list[str], int]:
    """Seed, names of primitives, and number of documents of a source."""
    seed, *rest = argument.split(":")
    written = f"data source primitives:{argument}"
    if not (seed.isdecimal() and seed.isascii() and len(seed) < 10) or len(rest) > 2:
        raise UserError(
            f"{written}: write it as primitives:SEED, primitives:SEED:NAME,NAME or primitives:SEED:DOCUMENTS, with a "
            "whole number as the seed"
        )
    count = int(rest.pop()) if rest and rest[-1].isdecimal() else DOCUMENTS
    if len(rest) > 1:
        raise UserError(f"{written}: {rest[1]!r} is no whole number of documents; leave it out for {DOCUMENTS:,}")
    names = rest[0].split(",") if rest else list(PRIMITIVES)
    for name in names:
        if name not in CHOICES:
            raise UserError(f"{written}: {name!r} is no primitive; {nearest(name, CHOICES.names())}")
    if count < 1 or len(set(names)) < len(names):
        raise UserError(f"{written}: it needs one document or more, and each primitive once")
    return int(seed), names, count


def _different(name: str, seed: int, use: int) -> Iterator[ChoiceItem]:
    """Items for one use, without repetition."""
    number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    rng = np.random.default_rng((_PRIMITIVES, use, seed, number))
    prompts: set[str] = set()
    while True:
        item = _made(name, rng)
        if _use(item) == use and item.prompt not in prompts:
            prompts.add(item.prompt)
            yield item


def _made(name: str, rng: np.random.Generator) -> ChoiceItem:
    """An item of a primitive; UserError for one without a prompt, options and the number of the right one."""
    make = CHOICES.get(name).make
    item = make(rng)
    expected = "a ChoiceItem with a prompt, two or more texts as options, and the number of the right one, from 0 on"
    if not isinstance(item, ChoiceItem):
        refuse(make, "", item, expected)
    well_typed = isinstance(item.options, tuple) and all(isinstance(text, str) for text in (item.prompt, *item.options))
    if not well_typed or len(item.options) < 2 or not is_whole(item.answer) or not 0 <= item.answer < len(item.options):
        refuse(make, "", item, expected)
    return item


def _use(item: ChoiceItem) -> int:
    """What an item may be used for."""
    return min(hashlib.sha256(item.prompt.encode()).digest()[0] % _PARTS, _TRAINING)


# ---- copying ----


def _copying(words: Callable[[np.random.Generator], list[str]], rng: np.random.Generator) -> ChoiceItem:
    """Ten words, then five of them in a row again, so that there is a word that follows."""
    sequence = words(rng)
    start = int(rng.integers(NUM_WORDS - COPIED))
    question = " ".join(sequence + sequence[start : start + COPIED])
    order = rng.permutation(NUM_WORDS).tolist()
    options = tuple(sequence[index] for index in order)
    return ChoiceItem(f"Fill in the blank:\n{question} ____ . ->", options, order.index(start + COPIED))


def _random_words(rng: np.random.Generator) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < NUM_WORDS:
        words["".join(chr(ord("a") + letter) for letter in rng.integers(26, size=3).tolist())] = None
    return list(words)


def _real_words(rng: np.random.Generator) -> list[str]:
    return [REAL_WORDS[index] for index in rng.permutation(len(REAL_WORDS))[:NUM_WORDS].tolist()]


# ---- variable assignment ----


def _assignment(template: str, equals: str, rng: np.random.Generator) -> ChoiceItem:
    """Five variables of one letter with different values, and a question about one of them.

    template: with `{statements}` and `{name}`. equals: what stands between a name and its value.
    """
    names = [chr(ord("a") + letter) for letter in rng.permutation(26)[:NUM_VARIABLES].tolist()]
    values: list[str] = []
    for number in rng.permutation(LARGEST_VALUE).tolist():
        value = str(number + 1)
        if len(values) < NUM_VARIABLES and not any(v.startswith(value) or value.startswith(v) for v in values):
            values.append(value)
    index = int(rng.integers(NUM_VARIABLES))
    statements = "\n".join(f"{name}{equals}{value}" for name, value in zip(names, values, strict=True))
    return ChoiceItem(template.format(statements=statements, name=names[index]), tuple(values), index)


_BASIC = "Fill in blank:\n{statements}\n{name}=____ . ->"
_MATH = (
    "The following is a set of simple mathematical equations.\n\n{statements}\n\n"
    "What is the numerical value of {name}?\nAnswer:"
)
_CODE = (
    "The following is a very short Python program. Use the program to resolve the value of the variable in the "
    "question.\n\nProgram:\n{statements}\n\nQuestion:\nWhat is the value of {name}?\nAnswer:"
)

PRIMITIVES: dict[str, Primitive] = {
    "copying-random": Primitive(partial(_copying, _random_words), 1 / NUM_WORDS),
    "copying-real": Primitive(partial(_copying, _real_words), 1 / NUM_WORDS),
    "assignment-basic": Primitive(partial(_assignment, _BASIC, "="), 1 / NUM_VARIABLES),
    "assignment-math": Primitive(partial(_assignment, _MATH, "="), 1 / NUM_VARIABLES),
    "assignment-code": Primitive(partial(_assignment, _CODE, " = "), 1 / NUM_VARIABLES),
}
"""The five of the paper, in the order of table 6 but for `math` and `code`."""
for _name, _primitive in PRIMITIVES.items():
    CHOICES.add(_name, _primitive)
