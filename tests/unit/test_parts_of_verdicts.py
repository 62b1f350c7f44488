"""Parts of verdicts on numbers chosen by hand: what stands without a seed, limits of constant numbers, what is read."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hybridlab.errors import UserError
from hybridlab.lab.papers.calls import CLAIM_KINDS
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.judge import _check_comparisons, stands_without, verdict_of
from hybridlab.lab.papers.claims.kinds import Given
from hybridlab.lab.papers.claims.of_runs import claim_kind
from hybridlab.lab.papers.claims.printed import _told_apart, _values
from hybridlab.lab.papers.claims.says import _is_difference
from hybridlab.lab.papers.claims.verdict import Control, Verdict
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.formula import Measure, entries_read, parsed
from hybridlab.lab.papers.pages import same_place
from hybridlab.statistics import (
    FEWEST_OBSERVED,
    LEVEL,
    Above,
    Always,
    Apart,
    Below,
    Between,
    Mostly,
    seeds_for_constant,
)
from tests.plugins import fresh_plugins
from tests.unit.verdicts.building import Case, measured

SHARE = (0.0, 1.0)
HIGH = {0: 2.0, 1: 2.1, 2: 1.9, 3: 2.0}


def test_seeds_of_constant_numbers_take_the_harder_limit():
    needed = [seeds_for_constant(0.4, bound, SHARE, LEVEL) for bound in (0.1, 0.7)]
    assert needed[0] != needed[1] and Between(0.1, 0.7).seeds([0.4] * 4, limits=SHARE) == max(needed)
    wanted = Above(0.1).seeds([0.05] * 4, limits=(-3.0, 1.0))
    assert wanted and Apart(0.1).seeds([-0.05] * 4, limits=(-1.0, 3.0)) == wanted
    # Below 0 the lower limit counts, and above it the upper one.
    assert Apart(0.1).seeds([0.05] * 4, limits=(-3.0, 1.0)) == wanted


def test_entries_whose_number_alone_counts_are_not_read():
    measures = {
        "count": Measure(title="t", formula="len(x)", of={"x": "controller.masks"}),
        "share": Measure(title="t", formula="sum(x) / len(x)", of={"x": "controller.masks"}),
        "both": Measure(title="t", formula="x + len(y)", of={"x": "count", "y": "controller.scores"}),
        "of sums": Measure(title="t", formula="sum(x) + len(y)", of={"x": "share", "y": "events"}),
    }
    assert entries_read("flops", measures) == {"flops"}
    assert [entries_read(name, measures) for name in ("count", "both")] == [set(), set()]
    assert entries_read("share", measures) == entries_read("of sums", measures) == {"controller.masks"}


def test_a_comparison_without_a_seed():
    whole = Comparison("a − b", HIGH, Above())
    assert whole.without(9) is whole and list(whole.without(1).values) == [0, 2, 3]


def test_a_number_that_is_the_same_in_every_seed_is_said_with_its_limits():
    def note(level, paired, limits=(0.0, math.inf)):
        return Comparison("a", dict.fromkeys(range(3), level), Above(0.1), paired=paired, limits=limits).as_json(0.5)[
            "note"
        ]

    assert note(0.5, True) == "the same in every seed, of a number that is at least 0" == note(0.5, False)
    assert note(0.0, True) == "", "two arms with the same numbers"
    assert note(0.0, False) and note(0.5, True, SHARE).endswith("is 0 to 1")


@pytest.mark.parametrize(
    ("formula", "difference"),
    [
        ("a - b", True),
        ("a + b", False),
        ("log(a / b)", True),
        ("log2(a / b)", True),
        ("log(a - b)", False),
        ("log(a)", False),
        ("mean(a / b)", False),
    ],
)
def test_which_numbers_of_two_arms_are_0_where_these_are_the_same(formula, difference):
    assert _is_difference(parsed(formula)) is difference


# ---- claim kinds of plug-ins ----


def own_kind(on):
    return []


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("text", "own_kind .* returned 'text'"),
        ([3.0], "returned 3.0 .*among its comparisons"),
        ([Comparison("a", HIGH, Above()), 3.0], "among its comparisons"),
        ([Comparison("a", {0: math.nan, 1: 1.0}, Above())], "finite numbers"),
        ([], r"returned \[\]"),
    ],
)
def test_what_a_claim_kind_must_not_return(result, message):
    with pytest.raises(UserError, match=message):
        _check_comparisons(own_kind, result)


def test_what_a_claim_kind_may_return():
    _check_comparisons(own_kind, [Comparison("a", HIGH, Above()), Comparison("b", {}, Above())])


def test_the_result_of_a_plug_ins_kind_is_checked():
    with fresh_plugins():
        claim_kind(own_kind)
        assert "own_kind" in CLAIM_KINDS
        with pytest.raises(UserError, match="own_kind .* a list of comparisons"):
            Case("own_kind", "open", {}, measured(a=[3.0]), {}).verdict()


# ---- a seed is left out ----


def controlled(verdict, *controls):
    return replace(verdict, controls=tuple(Control("test", control) for control in controls))


def test_a_verdict_stands_without_a_seed():
    clear = verdict_of([Comparison("a − b", HIGH, Above())])
    assert clear.holds and 0 < stands_without(0, clear) < LEVEL
    hangs = verdict_of([Comparison("a − b", {0: 3.0, 1: 3.0, 2: 3.1, 3: 3.05, 4: -0.1, 5: 3.0}, Above())])
    assert hangs.holds and stands_without(4, hangs) is not None
    needs = verdict_of([Comparison("a − b", {0: 1.0, 1: 1.2, 2: 1.1}, Above())])
    assert needs.holds and stands_without(0, needs) is None, "two seeds decide nothing"


def test_it_stands_only_with_all_of_its_controls():
    clear = verdict_of([Comparison("a − b", HIGH, Above())])
    wrong = verdict_of([Comparison("c", HIGH, Below())])
    assert wrong.holds is False
    assert stands_without(0, controlled(clear, clear, clear)) is not None
    assert stands_without(0, controlled(clear, clear, wrong)) is None
    # A control that makes no comparisons is what it is.
    assert stands_without(0, controlled(clear, Verdict(True, ""))) is not None
    assert stands_without(0, controlled(clear, Verdict(False, ""))) is None


# ---- index bounds ----


def test_the_ends_of_a_range():
    assert list(_values("s", "0 to g - 1", {"g": 3.0})) == [0.0, 1.0, 2.0] and _values("s", [4.0], {}) == [4.0]
    with pytest.raises(UserError, match="'0 to h': there is no 'h' above it"):
        _values("s", "0 to h", {})
    with pytest.raises(UserError, match="'3': write it as 0 to g - 1, or as a list"):
        _values("s", "3", {})


@pytest.mark.parametrize(
    ("true", "words"),
    [
        ({1: [True], 2: [False], 3: [False]}, "never with s ≥ 2, always with the others"),
        ({0: [False], 1: [False], 2: [False], 3: [True]}, "never with s ≤ 2, always with the others"),
        ({1: [True], 2: [False], 3: [True]}, "never with s 2, always with the others"),
        ({1: [False], 2: [True], 3: [False]}, "never with s 1, 3, always with the others"),
        ({1: [True, False], 2: [False], 3: [True]}, ""),
        ({1: [True, False], 2: [False, True]}, ""),
        ({1: [False], 2: [False]}, ""),
        ({1: [True], 2: [True]}, ""),
    ],
)
def test_values_that_tell_cases_apart(true, words):
    assert _told_apart("s", [({"s": value}, one) for value, found in true.items() for one in found]) == words


def test_the_place_of_a_claim_that_asks_the_same():
    elsewhere = {"id": "depth-fig7", "claim": 1}
    assert same_place("depth-fig1", {"same_as": 2}) == ("depth-fig1", 2)
    assert same_place("depth-fig1", {"same_as": None, "same_on": elsewhere}) == ("depth-fig7", 1)
    assert same_place("depth-fig1", {"same_as": 1, "same_on": elsewhere}) == ("depth-fig1", 1)
    assert same_place("depth-fig1", {"same_as": None, "same_on": None}) is None


# ---- what is observed ----


def test_fewer_prompts_than_enough_observe_nothing():
    values = {number: 1.0 + number / 1000 for number in range(FEWEST_OBSERVED)}
    enough = Comparison("a", values, Above(), of="prompt", cells=("one",))
    assert verdict_of([enough]).word == "observed"
    fewer = Comparison("a", dict([*values.items()][1:]), Above(), of="prompt", cells=("one",))
    assert verdict_of([fewer]).word == "open" and verdict_of([fewer]).note == "direction only"
    assert enough.fewest == FEWEST_OBSERVED and enough.without(5).fewest == FEWEST_OBSERVED - 1
    assert enough.without(5).found.p is not None, "a prompt that is left out of enough makes them no fewer"
    assert verdict_of([Comparison("a", values, Above(), cells=("one",))]).word == "holds", "seeds are others"


def test_most_prompts_are_more_than_half_of_them():
    yes = {number: float(number % 4 > 0) for number in range(FEWEST_OBSERVED)}
    assert verdict_of([Comparison("a", yes, Mostly(), of="prompt")]).word == "observed"
    assert verdict_of([Comparison("a", yes, Always(), of="prompt")]).word == "open"
    no = {number: 1 - value for number, value in yes.items()}
    found = verdict_of([Comparison("a", no, Mostly(), of="prompt")])
    assert found.word == "opposite observed" and found.direction == "in fewer prompts than claimed"
    even = {number: float(number % 2) for number in range(FEWEST_OBSERVED)}
    assert verdict_of([Comparison("a", even, Mostly(), of="prompt")]).word == "open"


@pytest.mark.parametrize(
    ("scale", "of", "measured", "always"),
    [("pretrained", "prompt", "prompt", Mostly), ("pretrained", "run", None, Mostly), ("desk", "seed", None, Always)],
)
def test_prompts_stand_in_for_seeds_at_scale_pretrained_alone(scale, of, measured, always):
    scales = {
        "desk": {"machine": "m", "seeds": [0], "phases": {}},
        "pretrained": {"machine": "m", "seeds": [0], "unit": "prompt", "phases": {}},
    }
    experiment = Experiment(id="mine", title="t", paper="mine", source="s", scales=scales)
    # What was not measured by prompt, such as a learned mask, is one number for a run.
    records = {number: SimpleNamespace(unit=measured and number) for number in (0, 1)}
    on = Given(experiment, {"one": records}, scale=scale)
    for asked, kind in ((Always(), always), (Above(), Above)):
        found = on.compared("x", ["one"], lambda _: 1.0, asked)
        assert found.of == of and type(found.asked) is kind and list(found.values) == [0, 1]
        missing = on.compared("x", ["other"], lambda _: 1.0, asked)
        assert missing.of == of.replace("run", "prompt") and not missing.run
