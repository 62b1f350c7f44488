"""Where nothing differs, at most 5 % of claims are resolved: 2,000 draws for each number of seeds.

A draw makes the validation losses of several arms: what a seed does to all arms (their order of batches), what it does
to one arm, and what windows have in common with their neighbours, all normal. The arms have equal means. Over 2,000
draws a share of 0.05 has the standard error 0.0049, so that 0.05 + 3 · 0.0049 = 0.065 bounds what is seen.
"""

import numpy as np
import pytest

from hybridlab.evaluation.results import LossResult, Results
from hybridlab.lab.papers.claims.expression import expression
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.claims.kinds import CLAIM_KINDS, Given
from hybridlab.lab.papers.experiment import Claim
from hybridlab.statistics import (
    Above,
    Always,
    Below,
    Between,
    Measurement,
    decide,
    mean_and_error,
    resolved,
)
from tests.combinations import some
from tests.unit.verdicts.building import record, said, table

DRAWS, BOUND = 2000, 0.065
FEWER, FEWER_BOUND = 400, 0.083
"""Through records and the judge, which takes longer: 0.05 + 3 · 0.0109."""
WINDOWS, NEIGHBOURS = 40, 0.9


def losses(seeds, arms, effect=0.0, draws=DRAWS):
    """(draws, arms, seeds, windows): the losses of validation windows; the first arm's lie lower by `effect` standard
    deviations of what a seed does to the difference of two arms."""
    chance = np.random.default_rng([7, seeds, arms, round(100 * effect)])
    shared = chance.normal(0, 0.05, (draws, 1, seeds, 1))
    own = chance.normal(0, 0.01 / np.sqrt(2), (draws, arms, seeds, 1))
    windows = np.empty((draws, arms, seeds, WINDOWS))
    steps = chance.normal(0, 0.01, windows.shape)
    windows[..., 0] = steps[..., 0]
    for i in range(1, WINDOWS):
        windows[..., i] = NEIGHBOURS * windows[..., i - 1] + np.sqrt(1 - NEIGHBOURS**2) * steps[..., i]
    found = 3.0 + shared + own + windows
    found[:, 0] -= effect * 0.01
    return found


def outcomes(draws, pairs):
    """The outcome of a claim that compares these pairs of arms, in each draw."""
    by_seed = draws.mean(axis=3)
    return [decide([Below().tested(arms[a] - arms[b]) for a, b in pairs]).outcome for arms in by_seed]


def share(found):
    return np.mean([outcome is not None for outcome in found])


@pytest.mark.parametrize("seeds", some([3, 5, 8], 5))
def test_one_comparison_without_an_effect(seeds):
    draws = losses(seeds, 2)
    assert 0.035 < share(outcomes(draws, [(0, 1)])) < BOUND


@pytest.mark.parametrize("seeds", some([3, 5, 8], 5))
@pytest.mark.parametrize(
    "pairs", [[(0, 1), (0, 2), (0, 3)], [(0, 1), (2, 3)]], ids=["one arm against three", "two pairs"]
)
def test_several_comparisons_without_an_effect_under_holm(seeds, pairs):
    assert share(outcomes(losses(seeds, 4), pairs)) < BOUND


def test_errors_over_windows_would_resolve_most_of_them():
    """Positive control: the rule that counted windows of one seed is wrong in the same draws."""
    pairs = losses(3, 2)[:, :, 0]
    clear = [resolved(mean_and_error(one - other)) for one, other in pairs]
    assert np.mean(clear) > 0.5


def test_without_holm_three_comparisons_resolve_too_many():
    """Positive control: with independent comparisons, one of three is below 0.05 in about 14 % of the draws."""
    by_seed = losses(5, 6).mean(axis=3)
    p = [[Below().tested(arms[i] - arms[i + 1]).p < 0.05 for i in (0, 2, 4)] for arms in by_seed[:1000]]
    assert 0.10 < np.mean(np.any(p, axis=1)) < 0.19


@pytest.mark.parametrize(("seeds", "effect"), [(3, 8), (5, 3), (8, 2)])
def test_a_strong_effect_is_resolved(seeds, effect):
    """Positive control: effects of so many standard deviations of the difference hold in nine of ten draws."""
    found = outcomes(losses(seeds, 2, effect, draws=300), [(0, 1)])
    assert np.mean([outcome is True for outcome in found]) > 0.9 and False not in found


@pytest.mark.parametrize("seeds", some([3, 5, 8], 5))
def test_signs_without_an_effect(seeds):
    chance = np.random.default_rng([8, seeds])
    # Only how many yes there are matters: each number is tested once.
    yes = chance.binomial(seeds, 0.5, DRAWS)
    by_count = [decide([Always().tested([1] * k + [0] * (seeds - k))]).outcome for k in range(seeds + 1)]
    assert share([by_count[k] for k in yes]) < BOUND


@pytest.mark.parametrize("seeds", some([3, 5, 8], 5))
def test_an_effect_as_large_as_the_margin_is_not_called_equal(seeds):
    """Two one-sided tests: with the mean on the margin, 5 % at most are called equal."""
    draws = np.random.default_rng([9, seeds]).normal(0.01, 0.004, (DRAWS, seeds))
    equal = [decide([Between(-0.01, 0.01).tested(draw)]).outcome is True for draw in draws]
    assert np.mean(equal) < BOUND
    not_worse = [decide([Between(None, 0.01).tested(draw)]).outcome is True for draw in draws]
    assert np.mean(not_worse) < BOUND


# ---- through records and the judge ----

BLANK, TOY = record(), table()
FOLLOWS = "choice(flat(retrieval-costs[o]), flat(masks[a])) > choice(flat(retrieval-costs[o]), flat(masks[b]))"
IN_PROPORTION = "log2(1.5) < log2(constraint-peak[a] / [b]) < log2(2.5)"


def run_of(windows):
    """A record with these windows, made without the checks of its types, which so many draws need not repeat."""
    mean = mean_and_error(windows)
    validation = LossResult.model_construct(
        loss=mean, perplexity=Measurement(value=1.0), bits_per_byte=mean, windows=list(windows), sources={}
    )
    results = Results.model_construct(causality={}, validation=validation, extrapolation={}, tasks={}, probes={})
    return BLANK.model_copy(update={"results": results})


def judged(draws, test):
    """The verdict of each draw; its arms are the cells a, b, c …"""
    experiment, claim = TOY, Claim(text="t", source="s", test=test)
    for arms in draws:
        cells = zip("abcdefgh", arms, strict=False)
        records = {cell: {seed: run_of(windows) for seed, windows in enumerate(seeds)} for cell, seeds in cells}
        yield judge(claim, experiment, records)


@pytest.mark.parametrize("seeds", some([3, 5, 8], 5))
def test_claims_on_records_without_an_effect(seeds):
    words = [verdict.word for verdict in judged(losses(seeds, 3, draws=FEWER), "loss[a] < [b, c]")]
    assert np.mean([word != "open" for word in words]) < FEWER_BOUND and set(words) <= {"open", "holds", "fails"}


@pytest.mark.long
def test_a_flat_curve_has_no_shape():
    """Which cell is the lowest is chosen from the same losses, and still few flat curves are resolved."""
    test = {"kind": "u_shaped", "cells": list("abcde")}
    words = [verdict.word for verdict in judged(losses(5, 5, draws=FEWER), test)]
    assert np.mean([word != "open" for word in words]) < FEWER_BOUND


def test_a_strong_effect_on_records_holds():
    found = list(judged(losses(5, 2, 6, draws=50), "loss[a] < [b]"))
    assert all(verdict.word == "holds" and verdict.n == 5 and verdict.p < 0.05 for verdict in found)


SEVERAL = [3, 4, 6, 10]
"""Numbers of seeds that a designed experiment may have; from six on, equal yes and no are resolved."""


def found(kind, records, **arguments):
    """The outcome of a claim of this kind, without what an open one would take, which takes long for many draws."""
    if "holds" in arguments:
        arguments["holds"] = expression(arguments["holds"])
    comparisons = CLAIM_KINDS.get(kind).run(Given(TOY, records), **arguments)
    return decide([one.found for one in comparisons], [one.needed for one in comparisons]).outcome


def masked(masks, target=0.5):
    """A record with these learned masks [layer][head]."""
    left = {"masks": masks.tolist(), "target": target, "granularity": "head-all"}
    return BLANK.model_copy(update={"config": {"controller": {"kind": "k"}}, "hooks": {"k": left}})


def kept(scores, share):
    """The masks of the units with the highest scores; of one unit for each layer where they have one column."""
    order = np.argsort(np.argsort(scores, axis=None)).reshape(scores.shape)
    full = order >= scores.size * (1 - share)
    return np.repeat(full, 4, axis=1).astype(int) if scores.shape[1] == 1 else full.astype(int)


@pytest.mark.parametrize("seeds", some(SEVERAL, 4, 6))
@pytest.mark.parametrize("heads", [1, 4], ids=["layers", "heads"])
def test_masks_that_differ_by_chance_alone(seeds, heads):
    """Two arms that keep what the place, the seed and chance make best, half of a unit's score each for the first two:
    their masks differ in nearly every seed."""
    chance = np.random.default_rng([11, seeds, heads])
    place = chance.normal(0, 1, (8, heads))
    outcomes, same = [], []
    for _ in range(FEWER):
        cells = {"a": {}, "b": {}}
        for seed in range(seeds):
            common = place + chance.normal(0, 1, (8, heads))
            for by_seed in cells.values():
                by_seed[seed] = masked(kept(common + chance.normal(0, 1, (8, heads)), 0.5))
        outcomes.append(found("masks_differ", cells, pairs=[("a", "b")]))
        same += [cells["a"][seed].controller == cells["b"][seed].controller for seed in range(seeds)]
    assert share(outcomes) < FEWER_BOUND and np.mean(same) < 0.3


@pytest.mark.parametrize("seeds", some(SEVERAL, 4, 6))
@pytest.mark.parametrize("heads", [1, 4], ids=["layers", "heads"])
def test_full_attention_that_stays_by_chance_alone(seeds, heads):
    """At each of three targets the units that keep full attention are drawn anew."""
    chance = np.random.default_rng([12, seeds, heads])
    outcomes = []
    for _ in range(FEWER):
        cells = {
            f"at {target}": {seed: masked(kept(chance.random((8, heads)), 1 - target), target) for seed in range(seeds)}
            for target in (0.25, 0.5, 0.75)
        }
        outcomes.append(found("full_retreats", cells, cells=list(cells)))
    assert share(outcomes) < FEWER_BOUND


@pytest.mark.parametrize("seeds", some(SEVERAL, 4, 6))
@pytest.mark.parametrize("heads", [2, 4])
def test_choices_that_follow_a_knock_out_by_chance_alone(seeds, heads):
    """Two arms whose full heads are drawn, in models where a few heads of the first layer cost nearly all."""
    chance = np.random.default_rng([16, seeds, heads])
    scale = np.array([1.0, 0.01, 0.05, 0.01])[:, None]
    outcomes = []
    for _ in range(FEWER):
        rises = [chance.exponential(scale, (4, heads)).tolist() for _ in range(seeds)]
        found_there = [{"knockout": {"heads": {"retrieval": {"far": {"rise": rise}}}}} for rise in rises]
        cells = {cell: {seed: masked(kept(chance.random((4, heads)), 0.5)) for seed in range(seeds)} for cell in "ab"}
        cells["o"] = {seed: probed(probes) for seed, probes in enumerate(found_there)}
        outcomes.append(found("says", cells, holds=FOLLOWS))
    assert share(outcomes) < FEWER_BOUND


def probed(probes):
    """A record with these results of probes."""
    return BLANK.model_copy(update={"results": Results.model_construct(probes=probes)})


@pytest.mark.parametrize("seeds", some(SEVERAL, 4, 6))
@pytest.mark.parametrize("ratio", [1.5, 2.5])
def test_peaks_whose_ratio_is_a_bound_are_not_called_in_proportion(seeds, ratio):
    chance = np.random.default_rng([13, seeds, round(10 * ratio)])
    outcomes = []
    for _ in range(FEWER):
        peaks = np.array([[ratio], [1.0]]) * np.exp(chance.normal(0, 0.1, (2, seeds)))
        cells = {cell: dict(enumerate(map(swinging, levels))) for cell, levels in zip("ab", peaks, strict=True)}
        outcomes.append(found("says", cells, holds=IN_PROPORTION))
    assert np.mean([outcome is True for outcome in outcomes]) < FEWER_BOUND


def swinging(peak):
    """A record whose constraint loss has this peak."""
    left = {"masks": [[1]], "granularity": "head-all"}
    changes = {"config": {"controller": {"kind": "k"}}, "hooks": {"k": left}, "history": {"lagrangian": [0.0, peak]}}
    return BLANK.model_copy(update=changes)


SAME_MINIMUM = "abs(argmin(loss[a, b, c, d, e]) - argmin([f, g, h, i, j])) < 1"


@pytest.mark.long
@pytest.mark.parametrize("seeds", some(SEVERAL, 4, 6))
def test_flat_curves_have_no_minimum_in_common(seeds):
    """With the controls that the claim has in spiral-fig3; the curves of both budgets are flat."""
    arms = losses(seeds, 10, draws=FEWER).mean(axis=3)
    flat = [
        {cell: dict(enumerate(map(short_run, levels))) for cell, levels in zip(CELLS, draw, strict=True)}
        for draw in arms
    ]
    assert share([found("says", cells, holds=SAME_MINIMUM) for cells in flat]) < FEWER_BOUND
    three = [{"cells": list("abc")}, {"cells": list("fgh")}]
    read = []
    for cells in flat:
        # Of three places that are drawn at random the mean difference is small: the controls keep this from being read.
        outcome = found("says", cells, holds="abs(argmin(loss[a, b, c]) - argmin([f, g, h])) < 1")
        read.append(outcome if all(found("u_shaped", cells, **curve) for curve in three) else None)
    assert share(read) < FEWER_BOUND


@pytest.mark.long
@pytest.mark.parametrize("seeds", some(SEVERAL, 4, 6))
def test_minima_one_step_apart_are_not_called_the_same(seeds):
    """Bowls with their lowest points at the third and the fourth of five ratios; noise moves the lowest cell."""
    chance = np.random.default_rng([14, seeds])
    places = np.arange(5)
    outcomes = []
    for _ in range(FEWER):
        bowls = np.concatenate([0.01 * (places - 2) ** 2, 0.01 * (places - 3) ** 2])[:, None]
        levels = 3 + bowls + chance.normal(0, 0.01, (10, seeds))
        cells = {cell: dict(enumerate(map(short_run, by_seed))) for cell, by_seed in zip(CELLS, levels, strict=True)}
        outcomes.append(found("says", cells, holds=SAME_MINIMUM))
    assert np.mean([outcome is True for outcome in outcomes]) < FEWER_BOUND


CELLS = "abcdefghij"


def short_run(level):
    """The record of one validation loss."""
    return run_of([float(level)])


@pytest.mark.parametrize("seeds", [1, 3, 6, 10, 20])
def test_one_arm_under_two_names_stays_open_in_kinds_on_masks_and_minima(seeds):
    """From six seeds on, equal yes and no of all of them would be resolved."""
    chance = np.random.default_rng([15, seeds])
    same = {seed: masked(kept(chance.random((8, 4)), 0.5)) for seed in range(seeds)}
    peaks = {seed: swinging(chance.uniform(1, 2)) for seed in range(seeds)}
    curves = {
        cell: {seed: short_run(3 + 0.1 * abs(i % 5 - 2)) for seed in range(seeds)} for i, cell in enumerate(CELLS)
    }
    for records, test in (
        ({"a": same, "b": same}, {"kind": "masks_differ", "pairs": [["a", "b"]]}),
        ({"a": same, "b": same}, {"kind": "full_retreats", "cells": ["a", "b"]}),
        ({"a": peaks, "b": peaks}, IN_PROPORTION),
        (curves, SAME_MINIMUM),
    ):
        verdict = judge(Claim(text="t", source="s", test=test), TOY, records)
        assert verdict.word == "open", (test, verdict)


def test_one_arm_under_two_names_stays_open():
    """A null experiment whose arms are the same runs: for every shared kind, any number of seeds."""
    for seeds in (1, 3, 5, 8, 20):
        arms = losses(seeds, 1, draws=1)[:, [0, 0]]
        for asked in ("loss[a] < [b]", "loss[a] > [b]", "abs(loss[a] - [b]) < 0.01", "loss[a] - [b] <= 0.01"):
            [verdict] = judged(arms, asked)
            assert verdict.word == "open" and "both gave the same numbers" in said(verdict)
    assert Above().tested([0.0] * 9).p is None


def test_an_open_claim_shows_no_p_where_a_comparison_has_none():
    """One pair is clearly resolved, the other is one arm under two names: a small p would speak for the claim."""
    arms = losses(5, 2, 6, draws=1)[:, [0, 0, 1]]
    [verdict] = judged(arms, "loss[a] < [b, c]")
    assert verdict.word == "open" and verdict.p is None and "(n = 5 seeds, p = 0.0002)" in said(verdict)
