"""What undecided claims wait for, and in which order they are decided: hybridlab/lab/papers/undecided.py."""

from dataclasses import replace

import pytest

from hybridlab.errors import UserError
from hybridlab.lab.papers.claims.verdict import Control, Flag, Verdict
from hybridlab.lab.papers.ids import matches
from hybridlab.lab.papers.obstacles import in_the_way
from hybridlab.lab.papers.undecided import Cost, Need, Step, in_order, seconds_of
from tests.experiments import load_experiment

MINUTES = {"a": 10.0, "b": 1.0, "c": 4.0, "d": 100.0}


def steps(needs, costs=None):
    costs = costs or {name: Cost(minutes, 1.0) for name, minutes in MINUTES.items()}
    return in_order({place: Need(amounts) for place, amounts in needs.items()}, costs.__getitem__)


def test_the_claim_that_costs_least_comes_first():
    assert [step.places for step in steps({0: {"a": 1}, 1: {"b": 1}, 2: {"c": 1}})] == [(1,), (2,), (0,)]
    assert [step.places for step in steps({0: {"b": 20}, 1: {"a": 1}})] == [(1,), (0,)], "seeds count"


def test_dear_runs_that_decide_many_claims_come_before_cheap_ones_that_decide_one():
    first, second = steps({0: {"c": 1}, 1: {"a": 1}, 2: {"a": 1}, 3: {"a": 1}})
    assert (first.places, first.minutes, first.runs) == ((1, 2, 3), 10.0, 1), "3.3 minutes each"
    assert (second.places, second.minutes) == ((0,), 4.0)


def test_what_claims_share_is_paid_for_once():
    first, second = steps({0: {"b": 1, "a": 2}, 1: {"a": 2, "c": 1}})
    assert (first.places, first.minutes, first.runs) == ((0,), 21.0, 3)
    assert (second.places, dict(second.amounts), second.minutes) == ((1,), {"c": 1}, 4.0), "the runs of a are there"
    more = steps({0: {"a": 2}, 1: {"a": 5}})
    assert [(step.places, step.minutes) for step in more] == [((0,), 20.0), ((1,), 30.0)]


def test_a_step_decides_all_claims_whose_runs_it_has():
    (only,) = steps({0: {"a": 1, "b": 1, "c": 1}, 1: {"a": 1, "b": 1, "c": 1}})
    assert only.places == (0, 1)
    first, *_ = steps({0: {"b": 1}, 1: {"b": 1, "c": 1}, 2: {"c": 1}})
    assert first.places == (0,)


def test_runs_without_minutes_come_after_those_with_and_go_by_their_flops():
    costs = {"a": Cost(None, 5e9), "b": Cost(1e6, 1.0), "c": Cost(None, 1e9), "d": Cost()}
    ordered = steps({0: {"a": 1}, 1: {"d": 1}, 2: {"c": 1}, 3: {"b": 1, "c": 0}}, costs)
    assert [step.places for step in ordered] == [(3,), (2,), (0,), (1,)]
    assert [step.minutes for step in ordered] == [1e6, None, None, None] and ordered[-1].flops is None


def test_every_claim_is_in_one_step_and_steps_of_unshared_runs_are_sorted():
    needs = {i: {name: i % 3 + 1} for i, name in enumerate("abcdabcdabcd")}
    found = steps(needs)
    assert sorted(place for step in found for place in step.places) == [*range(12)]
    single = steps({0: {"d": 1}, 1: {"a": 1}, 2: {"b": 1}, 3: {"c": 1}})
    assert [step.order for step in single] == sorted(step.order for step in single)
    assert Step((0,), {}, 0.0, 0.0).order == (0, 0.0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28800), ("90m", 5400), ("1h30m", 5400), ("0.5h", 1800), (" 2h ", 7200)]
)
def test_times(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "0h", "0m", "-1h", "30m1h", "8 h", "8hours", "1h30", "inf", "nanh"])
def test_other_times_are_one_sentence(text):
    with pytest.raises(UserError, match=r"--until .*: write a time above 0 such as 8h, 90m or 1h30m"):
        seconds_of(text)


# ---- what stands in the way ----


def obstacle(found, about="trained", scale="desk", words=("fine-to-coarse hurts",), identifier="spiral-anchor"):
    experiment = load_experiment(identifier)
    claim = next((one for one in experiment.claims if matches(words, (one.text,))), experiment.claims[0])
    controls = {control.in_words: control.in_words for control in found.controls}
    own = [{"number": control.in_words, "verdict": control.verdict.word} for control in found.controls]
    return in_the_way(experiment, claim, {**found.as_json(), "controls": own}, about, scale, controls=controls)


def test_what_is_decided_has_nothing_in_its_way():
    assert obstacle(Verdict(True, "")) is None and obstacle(Verdict(False, "")) is None


OPEN = Verdict(None, "", n=5, n_needed=12)


@pytest.mark.parametrize(
    ("found", "more", "what", "part"),
    [
        (Verdict(None, "needs MMLU", word="not run"), {"about": "not here"}, "not here", "needs MMLU"),
        (Verdict(None, "no rounds"), {"about": "timed"}, "speed", "a benchmark of speed: no rounds"),
        (Verdict(None, "", word="not run"), {}, "runs", "at scale desk"),
        (OPEN, {"scale": "smoke"}, "runs", "at scale desk"),
        (replace(OPEN, n=3, n_needed=4), {}, "runs", "3 of 5 seeds are here, 4 may do"),
        (replace(OPEN, n=1, n_needed=None), {}, "runs", "1 of 5 seeds are here"),
        (OPEN, {}, "seeds", "12 seeds for 80 % power, and 5 are planned: a new plan with new seeds"),
        (replace(OPEN, n=3), {}, "seeds", "12 seeds"),
        (replace(OPEN, n_needed=100), {}, "seeds", "100 seeds"),
        (replace(OPEN, n_needed=101), {}, "effect", "not at this size (101 seeds)"),
        (replace(OPEN, n_needed=None, evidence="no number of seeds"), {}, "effect", "not at this size (no number"),
        (replace(OPEN, word="cannot tell here", flags=(Flag("edge", "lr of x"),)), {}, "rate", "setting: lr of x"),
        (replace(OPEN, word="cannot tell here", flags=(Flag("settled", "masks"),)), {}, "mechanism", "masks"),
        (replace(OPEN, word="cannot tell here", flags=(Flag("training", "steps"),)), {}, "design", "steps"),
        (OPEN, {"identifier": "consa-fig2"}, "GPU", "no runs are planned for it at scale desk, at scale small: "),
    ],
)
def test_what_stands_in_the_way(found, more, what, part):
    way = obstacle(found, **more)
    assert way.what == what and part in way.text, way


def test_a_control_that_fails_is_a_mechanism_that_does_not_work():
    failed = replace(OPEN, word="cannot tell here", controls=(Control("gain > 0.02", Verdict(False, "")),))
    way = obstacle(failed)
    assert way.what == "mechanism" and "it fails that gain > 0.02" in way.text
    assert "after the search for training.optimizer.lr in the file" in way.text
    waits = replace(failed, controls=(Control("gain > 0.02", Verdict(None, "")),))
    assert obstacle(waits).what == "seeds", "a control that is open may hold with more seeds"


def test_a_control_that_was_not_run_waits_for_its_runs():
    unrun = replace(OPEN, controls=(Control("loops lost > 0.02", Verdict(None, "", word="not run")),))
    way = obstacle(unrun)
    assert way.what == "runs" and way.text.endswith("of its control: loops lost > 0.02")


def test_a_flag_alone_does_not_stand_in_the_way_of_an_open_claim():
    assert obstacle(replace(OPEN, flags=(Flag("rates", "chosen by another metric"),))).what == "seeds"
