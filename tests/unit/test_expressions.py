"""What is no expression, what expressions ask of runs, and what verdicts of several comparisons say."""

import ast
from dataclasses import replace

import numpy as np

from hybridlab.lab.papers.calls import ClaimTest
from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.papers.claims.expression import expression
from hybridlab.lab.papers.claims.judge import _under, families, judge, test_in_words, verdict_of
from hybridlab.lab.papers.claims.says import _same_on_both_sides
from hybridlab.lab.papers.claims.verdict import Control, Verdict
from hybridlab.lab.papers.experiment import Claim
from hybridlab.statistics import Below, moving_average
from tests.unit.verdicts.building import NOTHING, judged_on, measured, record, said

in_words = test_in_words
del test_in_words  # or it would be collected

WRONG = [
    ("((((", "'(' was never closed"),
    ("-" * 20_000 + "1", "it is nested too deeply"),
    ("loss[a] > tiny", "'tiny' is no number; write what is read as tiny[CELLS]"),
    ("foo(1) > 2", "there is no function 'foo'"),
    ("loss[a; b] < 3", "a semicolon stands between rows and columns"),
    ("loss[a,] < 3", "write names between the brackets"),
    ('loss["a] < 3', "a quotation mark is not closed"),
    ("[a] < 3", "say what is read, as in loss"),
    ("printed[a] < 3", "write printed"),
    ("loss[a]", "of runs write a comparison"),
    ("loss[a] == [b]", "runs are compared with"),
    ("3 <= loss[a]", "runs are compared with"),
    ("loss[a] < 3 < [b]", "between two bounds is written"),
    ("loss[a] < [b] < 3", "between two bounds is written"),
    ("0.1 < loss[a] <= 3", "between two bounds is written"),
    ("0.1 > loss[a] > 0", "between two bounds is written"),
    ("0.1 < 0.2 < loss[a]", "between two bounds is written"),
    ("loss[a] - printed[A; x] < 3", "cells of a table and runs are compared apart"),
    ("always(printed[A; x] > 1)", "is a whole part of an expression about runs"),
    ("always(loss[a]) and 1 + always(loss[b]) < 3", "is a whole part of an expression about runs"),
    ("1 + always(loss[a]) < 3", "is a whole part of an expression about runs"),
    ("every(loss[a] < 3) and loss[a] < 3", "write a claim of its own for every"),
    ("mean_mask(5) > 1", "name the arguments of mean_mask"),
]


def refusal(text):
    """Why a text is no expression; None if it is one."""
    try:
        expression(text)
    except ValueError as error:
        return str(error)
    return None


def test_what_is_no_expression():
    for text, message in WRONG:
        assert message in (refusal(text) or ""), text


def test_what_a_test_reads():
    texts = ("loss[a] < probes.x.y[b]", "printed[A; x] > 1", "printed[A; x] > computed[A; exact]")
    runs, numbers, shapes = (ClaimTest(kind="says", holds=text) for text in texts)
    stated, computes, u_shaped = (ClaimTest(kind=kind) for kind in ("stated_sum", "computes", "u_shaped"))
    assert numbers.is_exact and stated.is_exact and not any(one.is_exact for one in (runs, computes, u_shaped))
    assert numbers.reads_print and not any(one.reads_print for one in (runs, shapes, computes))
    assert runs.cells_read("results.validation.loss") == {"a"} and computes.cells_read("x") is None


def test_the_names_in_brackets():
    named = list(expression("printed[*; x, y; other-table1] > [A; x; toy-table1]").references())
    assert [(one.to, one.name, one.elsewhere) for one in named] == [
        ("experiment", "other-table1", None),
        ("column", "x", "other-table1"),
        ("column", "y", "other-table1"),
        ("experiment", "toy-table1", None),
        ("row", "A", "toy-table1"),
        ("column", "x", "toy-table1"),
    ]


def test_both_sides_are_the_same_where_all_that_they_read_is():
    tree = ast.parse("(r0 + r1) - (r2 + r3)", mode="eval").body
    values = {
        name: np.array([float(number)]) for name, number in zip(("r0", "r1", "r2", "r3"), (1, 2, 1, 3), strict=True)
    }
    assert not _same_on_both_sides(tree, values) and _same_on_both_sides(tree, values | {"r3": values["r1"]})


def test_windows_are_not_those_of_a_mean_over_cells():
    runs = {
        name: record([level + 0.01 * (i % 7) for i in range(30)])
        for name, level in (("a", 3.0), ("b", 3.1), ("c", 3.2))
    }
    arms = measured(**{name: [run] for name, run in runs.items()})
    assert "over windows" in said(judged_on("loss[a] < [b]", arms))
    assert "over windows" not in said(judged_on("loss[a] < mean([b, c])", arms))


def test_a_slope_over_cells_has_one_number_for_each_seed():
    """The difference of two arms falls by 0.1 and 0.2 nats from one size to the next, on two seeds."""
    sizes = {"small/a": [3.0, 3.0], "small/b": [3.0, 3.1], "large/a": [2.4, 2.3], "large/b": [2.5, 2.6]}
    found = judged_on(
        "slope(loss[small/a, large/a] - [small/b, large/b], log2([small/x, large/x])) < 0",
        measured(**sizes, **{"small/x": [1.0, 1.0], "large/x": [2.0, 2.0]}),
    )
    assert [round(value, 9) for value in found.comparisons[0]["values"].values()] == [-0.1, -0.2]


def test_holms_correction_goes_over_the_claims_of_a_metric_or_of_the_page():
    given = measured(a=[3.0, 3.1, 3.2, 3.3], b=[3.1, 3.22, 3.23, 3.36], c=[3.3, 3.9, 3.2, 3.6])
    texts = ("loss[a] < [b]", "loss[a] < [c]", "validation.perplexity[a] < [b]")
    alone = [judged_on(text, given) for text in texts]
    claims = [Claim(text=text, source="here", test=text) for text in texts]

    def corrected(correction):
        experiment = NOTHING["experiment"].model_copy(update={"claims": claims, "correction": correction})
        p_values = ([test.found.p for test in beside] for beside in families(alone, experiment))
        found = [
            judge(claim, experiment, given["records"], beside=p) for claim, p in zip(claims, p_values, strict=True)
        ]
        return [round(one.p / before.p, 6) for one, before in zip(found, alone, strict=True)]

    first, second, _ = (one.tests[0].found.p for one in alone)
    assert first < second, "so that the first one is the smaller p of its metric"
    assert corrected("metric") == [2, 1, 1]
    assert corrected("page") == [3, 1, 3]
    # The same numbers asked the other way round have one vote.
    for one, other in (("loss[a] < [b]", "loss[b] > [a]"), ("loss[a] - [b] < 0.05", "loss[b] - [a] > -0.05")):
        texts = (one, other, "loss[a] < [c]")
        alone = [judged_on(text, given) for text in texts]
        claims = [Claim(text=text, source="here", test=text) for text in texts]
        assert corrected("metric") == [2, 2, 1]


def test_what_is_asked_of_every_run():
    arms = measured(a=[3.0, 3.2])
    for text, word in (
        ("every(loss[a] < 3.5) and every(loss[a] > 2)", "holds"),
        ("every(loss[a] < 3.5) and every(loss[a] < 3.1)", "fails"),
        ("every(loss[a] > 2 and loss[a] < 3.5)", "holds"),
        ("every(loss[a] > 3.1 and loss[a] < 3.5)", "fails"),
    ):
        assert judged_on(text, arms).word == word, text


def test_bounds_may_stand_on_either_side():
    losses = [3.0, 3.1, 3.2, 3.3, 3.4, 3.5]
    arms = measured(a=losses, b=losses)
    for text, word in (("2 < loss[a]", "holds"), ("2 > loss[a]", "fails"), ("2.5 < loss[a] < 4", "holds")):
        assert judged_on(text, arms).word == word, text
    # Two names of the same runs decide no difference, and no ratio on its logarithm.
    for text in ("loss[a] < [b]", "log2(loss[a] / [b]) > 0", "log(loss[a] / [b]) < 0"):
        assert "both gave the same numbers" in said(judged_on(text, arms)), text
    assert judged_on("log2(loss[a] * [b]) > 1", arms).word == "holds"
    # What is the same in every seed is tested by what it can be: here by at least 1, and by anything.
    assert judged_on("exp(loss[a] / [b]) > 1.2", arms).word == "holds"
    assert judged_on("log2(loss[a] * [b]) > -1", measured(a=[1.0] * 6, b=[1.0] * 6)).word == "open"


def test_verdicts_of_several_comparisons():
    low, same = {0: -2.0, 1: -2.1, 2: -1.9}, {0: 0.0, 1: 0.0, 2: 0.0}
    clear, alike = Comparison("x", low, Below()), Comparison("y", same, Below(), paired=True)
    assert verdict_of([clear]).p is not None and verdict_of([clear, alike]).p is None
    few = [Comparison("x", {0: -1.0}, Below()), Comparison("y", {0: -1.0, 1: -1.2}, Below())]
    assert "since the spread over seeds is not known" in verdict_of(few).evidence
    assert in_words({"kind": "k", "a": 1, "reason": "r"}) == "k, a 1" and in_words({"holds": "x"}) == "x"


def test_a_verdict_under_controls():
    open_one = Verdict(None, "takes 5", n=3, n_needed=5, direction="as claimed")
    failed, early = (Control("t", made) for made in (Verdict(False, "", n=3), Verdict(None, "more", n=1, n_needed=3)))
    assert _under(replace(open_one, controls=(failed,))).evidence == "takes 5"
    assert _under(replace(open_one, controls=(early,))).direction == "as claimed"
    held = Verdict(True, "", n=3, direction="as claimed")
    assert _under(replace(held, controls=(failed,))).evidence == ""
    assert _under(replace(held, controls=(early,))).direction == ""
    assert _under(replace(held, controls=(early,))).evidence == "its control: more"
    assert _under(replace(held, controls=(early, failed))).word == "cannot tell here"
    # Seeds that decide the claim alone decide nothing while its control needs more of them.
    open_one, dear = replace(open_one, minutes_needed=9.0), Verdict(None, "many", n=3, n_needed=220, minutes_needed=4.0)
    found = _under(replace(open_one, controls=(Control("t", dear),)))
    assert (found.n_needed, found.minutes_needed, found.evidence) == (220, 9.0, "takes 5; its control: many")


def test_a_moving_average_is_over_fewer_values_at_both_ends():
    assert moving_average([0, 3, 6, 9], 3) == [1.5, 3, 6, 7.5] and moving_average([1, 2], 1) == [1, 2]


def test_a_bracket_of_two_parts_is_of_the_own_table():
    own = list(expression("printed[A; x] > 1").references())
    assert [(one.to, one.elsewhere) for one in own] == [("row", None), ("column", None)]
