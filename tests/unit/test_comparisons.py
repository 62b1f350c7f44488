"""Comparisons in words: how one lies that is not as claimed, which is least as claimed, its short and its long line."""

from dataclasses import replace

from hybridlab.lab.papers.claims.comparison import (
    Comparison,
    asked_in_words,
    effect_of,
    in_full,
    in_words,
    least_as_claimed,
)
from hybridlab.lab.papers.claims.judge import either_way, verdict_of
from hybridlab.lab.papers.claims.verdict import SHORT, Control, Verdict
from hybridlab.statistics import Above, Always, Apart, Below, Between

LOW, HIGH = {0: -2.0, 1: -2.1, 2: -1.9}, {0: 2.0, 1: 2.1, 2: 1.9}
DIRECTIONS = [
    (Below(), HIGH, "results.validation.loss", "worse"),
    (Above(), LOW, "results.validation.loss", "lower"),
    (Above(3.0), HIGH, "results.extrapolation.2.perplexity", "lower"),
    (Between(-0.1, 0.1), HIGH, "results.tasks.chain.loss.all", "worse"),
    (Between(-0.1, 0.1), LOW, "results.tasks.chain.loss.all", "lower"),
    (Between(None, 0.1), HIGH, "results.tasks.chain.all", "higher"),
    (Above(), LOW, "results.choices.copying.accuracy", "worse"),
    (Above(), LOW, "results.choices_mean", "worse"),
    (Below(), HIGH, "loss of copying, mean over the training", "worse"),
    (Below(), HIGH, "accuracy / that of the last exit", "higher"),
    (Below(), HIGH, "results.probes.depth-score.score", "higher"),
    (Above(), LOW, "", "lower"),
    (Apart(3.0), HIGH, "results.validation.loss", "smaller"),
]
"""What is asked, numbers that are not so, of what, and how they lie."""


def test_a_comparison_that_is_not_as_claimed_says_how_it_lies():
    for asked, values, metric, direction in DIRECTIONS:
        found = Comparison("a − b", values, asked, metric=metric)
        assert found.direction == f"{direction} than claimed", (asked, metric)


def test_what_was_to_be_so_in_every_run_is_so_in_fewer():
    found = Comparison("the last is highest", {0: 1.0, 1: 0.0, 2: 0.0}, Always())
    assert found.direction == "in fewer seeds than claimed"
    assert effect_of(found.as_json(0.5), 1, SHORT) == "the last is highest: yes in 1 of 3"


def test_a_question_turned_round_is_the_same_and_at_most_is_another():
    turned = {seed: -value for seed, value in HIGH.items()}
    one, other, at_most = (
        either_way(Comparison("", values, asked).as_json(0.5))
        for values, asked in ((HIGH, Below(0.1)), (turned, Above(-0.1)), (HIGH, Between(None, 0.1)))
    )
    assert one == other != at_most
    assert len({either_way(Comparison("", HIGH, asked).as_json(0.5)) for asked in (Always(), Apart(1.0))}) == 2


def test_the_comparison_least_as_claimed():
    """The clearest of those on the other side, else the least clear; one that need not be resolved only where it is on
    the other side."""
    met, clearer = Comparison("met", LOW, Below()), Comparison("clearer", {0: -2.0, 1: -2.01, 2: -2.0}, Below())
    against = Comparison("against", HIGH, Below())
    weak = Comparison("weak", {0: 0.1, 1: -0.2, 2: 0.3}, Below())
    beside = Comparison("beside", {0: -0.1, 1: 0.2, 2: -0.3}, Below(), needed=False)
    none = Comparison("none", {}, Below(), missing="not run: a")

    def least(*comparisons):
        return comparisons[least_as_claimed(comparisons, [one.found.p for one in comparisons])].label

    assert least(clearer, met) == "met" and least(met, clearer, beside) == "met" and least(beside) == "beside"
    assert least(replace(against, needed=False), met) == "against" and least(beside, beside) == "beside"
    assert least(met, weak, against, clearer) == "against" and least(met, weak) == "weak"
    assert least(none, clearer) == "clearer"
    few = [Comparison(label, {0: value}, Below()) for label, value in (("as", -1.0), ("against", 1.0))]
    assert least(*few) == "against" == few[verdict_of(few).deciding].label


def test_a_comparison_in_one_short_line_and_the_number_of_each_seed():
    """Differences 1, 2, 3: t(2) = 4.3027 at 95 %."""
    one = Comparison("a − b", {0: 1.0, 1: 2.0, 5: 3.0}, Below(-0.5), unit=" nats").as_json(0.5)
    assert effect_of(one, 1, SHORT) == "a − b = +2.0000 [-0.4841, +4.4841] nats, required below -0.5"
    long = effect_of({**one, "label": "a very long label " * 9}, 3, SHORT)
    assert len(long) <= SHORT and long.endswith(
        " … = +2.0000 [-0.4841, +4.4841] nats, required below -0.5 (least of 3)"
    )
    seeds = "; 95 % interval -0.4841 to +4.4841; by seed: 0 +1.0000, 1 +2.0000, 5 +3.0000"
    assert in_full(one) == in_words(one) + seeds
    alone = Comparison("a − b", {0: 1.0}, Below(), of="round").as_json(None)
    assert in_full(alone) == "a − b = +1.0000 (n = 1 round); by round: 0 +1.0000"
    assert effect_of(alone, 2, SHORT) == "a − b = +1.0000, required below 0 (least of 2)"
    assert in_full({**alone, "values": {}, "note": "not run: a"}) == "not run: a"


def test_arms_that_differ_in_some_seeds_are_not_the_same_arm():
    found = Comparison("a − b", {0: 0.0, 1: 1.0, 2: 1.1}, Above(), paired=True)
    assert found.seeds(None, 0.05) is not None and "the same numbers" not in in_words(found.as_json(0.1))


def test_what_is_asked_of_several_cells_is_said_once():
    asked = [
        Comparison(label, {0: 1.0}, question).as_json(None)
        for label, question in (
            ("a: loss", Below(3.0)),
            ("b: loss", Below(3.0)),
            ("a: loss", Above(1.0)),
            ("c − d", Between(-0.1, 0.1)),
            ("e: it rises", Always()),
        )
    ]
    words = "a, b: loss below 3; a: loss above 1; c − d -0.1 to +0.1; e: it rises in every run"
    assert asked_in_words(asked) == words and asked_in_words([]) == ""
    assert Control("x", Verdict(True, "", comparisons=tuple(asked))).in_words == words
    assert Control("printed_above, rows A", Verdict(True, "2 above 1")).in_words == "printed above, rows A"


def test_the_short_evidence_of_a_verdict_and_what_it_leaves_out():
    numbers = tuple(Comparison("a − b", values, Below()).as_json(0.01) for values in (LOW, HIGH))
    found = Verdict(None, "7 seeds would do", comparisons=numbers, deciding=1)
    assert found.short == "a − b = +2.0000 [+1.7516, +2.2484], required below 0 (least of 2)"
    assert found.as_json()["details"] == "7 seeds would do"
    printed = Verdict(True, "12 of 12 averages follow, " * 9)
    assert len(printed.short) <= SHORT and printed.as_json()["details"] == printed.evidence
    assert Verdict(True, "6 of 6").short == "6 of 6" and Verdict(True, "6 of 6").as_json()["details"] == ""
