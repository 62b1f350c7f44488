"""Items of the reasoning primitives: their form, that they are the same everywhere, and how they are scored."""

import math
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from hybridlab.config.evaluation import Choices
from hybridlab.data.primitives import (
    PRIMITIVES,
    REAL_WORDS,
    Primitive,
    documents,
    items,
    items_digest,
    prompt_with,
    solved_examples,
)
from hybridlab.data.sources import read_documents, source_labels
from hybridlab.errors import UserError
from hybridlab.evaluation.choices import choice_result
from hybridlab.registry import CHOICES

COPYING = ["copying-random", "copying-real"]
ASSIGNMENT = ["assignment-basic", "assignment-math", "assignment-code"]


def test_there_are_the_five_of_the_paper():
    assert list(PRIMITIVES) == [*COPYING, *ASSIGNMENT] == CHOICES.names()
    assert [PRIMITIVES[name].chance for name in PRIMITIVES] == [0.1, 0.1, 0.2, 0.2, 0.2]


@pytest.mark.parametrize("name", COPYING)
def test_copying_repeats_five_of_ten_different_words_and_asks_for_the_next(name):
    starts = set()
    for item in items(name, 300, 0):
        first, line = item.prompt.split("\n")
        assert first == "Fill in the blank:" and line.endswith(" ____ . ->")
        words = line.removesuffix(" ____ . ->").split(" ")
        sequence, repeated = words[:10], words[10:]
        assert len(set(sequence)) == 10 and all(re.fullmatch("[a-z]{3}", word) for word in sequence)
        assert sorted(item.options) == sorted(sequence) and len(repeated) == 5
        start = sequence.index(repeated[0])
        assert sequence[start : start + 5] == repeated and sequence[start + 5] == item.options[item.answer]
        starts.add(start)
    assert starts == {0, 1, 2, 3, 4}, "there is always a next word, and every place occurs"


def test_the_printed_copying_prompt_has_this_form():
    printed = "Fill in the blank:\njic dgy sof uzg ewr oxw osp tkj rvw mnu jic dgy sof uzg ewr ____ . ->"
    form = re.sub("[a-z]{3}(?= )", "w", printed.split("\n")[1])
    made = items("copying-random", 1, 0)[0].prompt
    assert re.sub("[a-z]{3}(?= )", "w", made.split("\n")[1]) == form and made.split("\n")[0] == printed.split("\n")[0]


@pytest.mark.parametrize("name", ASSIGNMENT)
def test_assignments_have_different_names_and_values_and_ask_for_one(name):
    answers = []
    for item in items(name, 300, 0):
        stated = dict(re.findall(r"^([a-z]) ?= ?(\d+)$", item.prompt, re.MULTILINE))
        asked = re.search(r"([a-z])=____ \. ->$|value of ([a-z])\?\nAnswer:$", item.prompt)
        assert len(stated) == 5 and len(set(stated.values())) == 5
        assert tuple(stated.values()) == item.options and stated[asked[1] or asked[2]] == item.options[item.answer]
        assert all(1 <= int(value) <= 25 for value in item.options)
        assert not any(a != b and b.startswith(a) for a in item.options for b in item.options), "else a wins over b"
        answers.append(item.answer)
    assert max(np.bincount(answers, minlength=5)) < 0.3 * len(answers)


def test_the_printed_assignment_prompt_has_this_form():
    printed = "Fill in blank:\no=23\nk=3\nt=13\na=1\ne=9\no=____ . ->"
    form = re.sub(r"=\d+", "=n", re.sub("^[a-z]=", "v=", printed, flags=re.MULTILINE))
    made = items("assignment-basic", 1, 0)[0].prompt
    assert re.sub(r"=\d+", "=n", re.sub("^[a-z]=", "v=", made, flags=re.MULTILINE)) == form


@pytest.mark.parametrize("name", PRIMITIVES)
def test_items_are_the_same_for_a_seed_different_for_another_and_never_twice(name):
    made = items(name, 200, 5)
    assert made == items(name, 200, 5) and made[:20] == items(name, 20, 5)
    assert len({item.prompt for item in made}) == 200
    assert not {item.prompt for item in made} & {item.prompt for item in items(name, 200, 6)}
    assert not {item.prompt for item in made} & {item.prompt for item in solved_examples(name, 50, 5)}


def test_items_are_the_same_on_every_machine():
    digests = {name: items_digest(items(name, 100, 0)) for name in PRIMITIVES}
    assert digests == DIGESTS


def test_real_words_stand_in_the_standard_library():
    assert len(set(REAL_WORDS)) == len(REAL_WORDS) >= 100
    root = Path(sysconfig.get_paths()["stdlib"])
    text = "".join(path.read_text(errors="replace") for path in [*root.glob("*.py"), *root.glob("[a-z]*/*.py")])
    assert not set(REAL_WORDS) - set(re.findall(r"(?<![A-Za-z_])[a-z]{3}(?![A-Za-z_])", text))


@pytest.mark.parametrize("name", PRIMITIVES)
def test_an_oracle_is_right_and_guesses_are_at_chance(name):
    asked, chance = items(name, 1000, 0), PRIMITIVES[name].chance
    oracle = np.array([[float(i == item.answer) for i in range(len(item.options))] for item in asked])
    right = choice_result(1000 * oracle, asked, chance, 5)
    assert right.accuracy.value == 1.0 and right.accuracy.n == 1000 and right.loss.value == pytest.approx(0)
    random = choice_result(np.random.default_rng(0).normal(size=oracle.shape), asked, chance, 5)
    assert abs(random.accuracy.value - chance) < 4 * random.accuracy.stderr
    constant = choice_result(np.zeros(oracle.shape), asked, chance, 0)
    assert constant.loss.value == pytest.approx(math.log(1 / chance)), "a guess costs ln(options)"
    assert abs(constant.accuracy.value - chance) < 4 * math.sqrt(chance * (1 - chance) / 1000)
    wrong = choice_result(-oracle, asked, chance, 5)
    assert wrong.accuracy.value == 0


def test_other_guesses_at_copying_are_better_than_chance():
    """What an experiment must know: the answer is none of the repeated words, nor of the first five."""
    asked = items("copying-random", 1000, 0)
    left = []
    for item in asked:
        words = item.prompt.split("\n")[1].split(" ")[:-3]
        left.append([5 * (words[5:10].count(word) > words[10:].count(word)) for word in item.options])
    result = choice_result(np.array(left), asked, 0.1, 0)
    assert 0.3 < result.accuracy.value < 0.6


def test_training_never_sees_an_item_of_an_evaluation():
    trained = {part.rpartition(" ")[0] for text in documents("0:300") for part in split(text)}
    assert len(trained) > 1700
    for name in PRIMITIVES:
        for seed in (0, 1):
            asked = {item.prompt for item in [*items(name, 300, seed), *solved_examples(name, 30, seed)]}
            assert not asked & trained


def test_the_digest_of_a_prompt_says_what_it_is_for():
    """So that they can never coincide, whatever the seeds: copies of the same generator state are kept apart."""
    from hybridlab.data.primitives import _ITEMS, _SHOTS, _TRAINING, ChoiceItem, _use

    made = [ChoiceItem(f"{number}", ("1",), 0) for number in range(4000)]
    uses = [_use(item) for item in made]
    shares = np.bincount(uses) / 4000
    assert np.allclose(shares[[_ITEMS, _SHOTS, _TRAINING]], [1 / 8, 1 / 8, 6 / 8], atol=0.03)


def split(text):
    """The items of a document; those of `math` and `code` have empty lines of their own."""
    starts = "Fill in|The following"
    return [part.strip("\n") for part in re.split(rf"\n\n(?={starts})", text)]


def test_documents_are_solved_items_in_the_format_of_a_prompt():
    texts = list(read_documents("primitives:3", max_documents=40))
    assert texts == list(documents("3:40")) and len(set(texts)) == 40
    assert texts != list(documents("4:40"))
    for text in texts:
        parts = split(text)
        assert len(parts) == 6
        assert "\n\n".join(parts) == text and all(re.search(r"(->|Answer:) \w+$", part) for part in parts)
    item, before = items("copying-real", 1, 0)[0], solved_examples("copying-real", 5, 0)
    assert len(split(prompt_with(before, item))) == 6, "as a prompt with five examples"


def test_a_kind_of_question_of_ones_own():
    """Registered by its name, it is asked and trained on as the others, and the two never share an item."""
    make = PRIMITIVES["copying-real"].make
    CHOICES.add("my-copying", Primitive(make, 0.1))
    try:
        asked = items("my-copying", 20, 0)
        assert asked != items("copying-real", 20, 0), "each has a stream of its own"
        trained = {part.rpartition(" ")[0] for text in documents("0:my-copying:50") for part in split(text)}
        assert len(trained) == 300 and not trained & {item.prompt for item in asked}
        assert Choices(tasks=["my-copying"]).items == 1000
    finally:
        CHOICES.remove("my-copying")
    with pytest.raises(ValueError, match="primitive 'my-copying' is unknown"):
        Choices(tasks=["my-copying"])


def test_a_source_names_primitives_and_its_number_of_documents():
    some = list(documents("3:copying-real,assignment-code:60"))
    assert len(some) == 60 and {text[:12] for text in some} == {"Fill in the ", "The followin"}
    sources = ["embedded", "primitives:3", "primitives:4:copying-real", "primitives:4:assignment-code:10"]
    assert source_labels(sources) == ["embedded", "primitives", "copying-real", "assignment-code"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x", "write it as primitives:SEED"),
        ("-1", "write it as primitives:SEED"),
        ("1:copying-rea", "'copying-rea' is no primitive; did you mean 'copying-real'"),
        ("1:copying-real:0", "one document or more"),
        ("1:copying-real,copying-real", "each primitive once"),
        ("1:copying-real:5:6", "write it as primitives:SEED"),
    ],
)
def test_a_wrong_source_is_refused_in_one_sentence(argument, message):
    with pytest.raises(UserError, match=re.escape(message)):
        next(read_documents(f"primitives:{argument}"))


DIGESTS = {
    "copying-random": "472a9e4a4954c116",
    "copying-real": "ae9d44eb858b2995",
    "assignment-basic": "bc33eb2fb381b696",
    "assignment-math": "526c4fc75958791e",
    "assignment-code": "9a5a5b6600c2247c",
}
