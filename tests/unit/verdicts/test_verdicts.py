"""Every kind of claim on figures chosen by hand: a case that holds, one that fails, one that stays open."""

from dataclasses import replace

import pytest

from hybridlab.lab.papers.calls import SAYS, ClaimTest
from hybridlab.lab.papers.claims.kinds import CLAIM_KINDS
from tests.unit.verdicts import (  # noqa: F401  (each module adds its cases)
    cases_cells,
    cases_columns,
    cases_consa,
    cases_derived,
    cases_gaps,
    cases_knockout,
    cases_masks,
    cases_measured,
    cases_orders,
    cases_print,
    cases_rule,
    cases_sgt,
    cases_speed,
    cases_spiral,
    cases_studies,
    cases_trends,
)
from tests.unit.verdicts.building import CASES


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].kind}-{CASES[i].word}")
def test_verdict_and_evidence(number):
    assert CASES[number].problem() is None


WITHOUT_RUNS = ".printed"
"""The end of the module whose kinds read no run."""


def module_of(name):
    return CLAIM_KINDS.get(name).run.__module__


def test_every_kind_holds_fails_and_stays_open_in_some_case():
    outcomes = {name: {case.word for case in CASES if case.kind == name} for name in CLAIM_KINDS.names()}
    assert outcomes.pop("not_here") == {"not run"}
    assert {name: seen for name, seen in outcomes.items() if not seen >= {"holds", "fails"}} == {}
    assert {name: seen for name, seen in outcomes.items() if not seen & {"open", "not run"}} == {}


EXACT = {name for name in CLAIM_KINDS.names() if CLAIM_KINDS.get(name).run.__annotations__["return"] == "Verdict"}
"""Kinds about printed or counted numbers."""
COUNTED = {"growth_goes"}


def is_counted(case):
    """Whether a case is about what one run decides."""
    return case.kind in COUNTED or (case.kind == SAYS and case.test["holds"].startswith("every("))


def reads_no_run(case):
    """Whether a case is about printed or computed numbers."""
    return ClaimTest(kind=SAYS, **case.test).is_exact if case.kind == SAYS else case.kind in EXACT - COUNTED


def test_a_kind_is_exact_or_makes_comparisons():
    made = {name: CLAIM_KINDS.get(name).run.__annotations__["return"] for name in CLAIM_KINDS.names()}
    assert made.pop(SAYS) == "Verdict | list[Comparison]"
    assert set(made.values()) == {"Verdict", "list[Comparison]"}
    assert {name for name in EXACT if not module_of(name).endswith(WITHOUT_RUNS)} == COUNTED


def test_an_exact_kind_reads_no_trained_model():
    """Without records its verdicts are the same."""
    for case in CASES:
        if reads_no_run(case) and not case.claim:
            bare = {name: value for name, value in case.given.items() if name != "records"}
            assert replace(case, given=bare).verdict() == case.verdict()


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_fewer_than_three_seeds_every_trained_claim_is_open(seeds):
    """Every case of every kind that reads trained models, with all but the first seeds taken away."""
    seen = set()
    for case in CASES:
        if reads_no_run(case) or is_counted(case) or "records" not in case.given:
            continue
        records = {
            cell: {seed: by_seed[seed] for seed in sorted(by_seed)[:seeds]}
            for cell, by_seed in case.given["records"].items()
        }
        verdict = replace(case, given={**case.given, "records": records}).verdict()
        assert verdict.word in ("open", "not run"), (case.kind, verdict)
        if verdict.word == "open" and verdict.n:
            assert verdict.note == "direction only" and verdict.p is None, case.kind
            assert verdict.word == "open" and verdict.n <= seeds
            seen.add(case.kind)
    elsewhere = {"faster"}
    # It compares a seed with another one.
    elsewhere |= {"masks_differ"} if seeds == 1 else set()
    assert seen == set(CLAIM_KINDS.names()) - EXACT - elsewhere


def test_seeds_are_counted_whatever_their_numbers_are():
    """The same three pairs under other seeds, in another order, and beside seeds that only one arm has."""
    for case in [case for case in CASES if case.test.get("holds") == "loss[a] < [b]" and case.word == "holds"]:
        expected = case.verdict()
        records = {
            cell: {100 - 7 * seed: run for seed, run in reversed(by_seed.items())}
            for cell, by_seed in case.given["records"].items()
        }
        name, by_seed = next(iter(records.items()))
        records[name] = {**by_seed, 3: next(iter(by_seed.values()))}
        found = replace(case, given={**case.given, "records": records}).verdict()
        assert (found.word, found.n, found.evidence) == (expected.word, expected.n, expected.evidence)


def test_the_metrics_of_a_test_are_those_that_it_reads():
    loss, other = "results.validation.loss", "results.tasks.chain.loss.all"
    assert ClaimTest(kind=SAYS, holds="loss[a] < [b]").metrics == [loss]
    assert ClaimTest(kind=SAYS, holds="tasks.chain.loss.all[a] < [b]").metrics == [other]
    assert ClaimTest(kind=SAYS, holds=f"{other}|loss[a] < [b] and {other}[c] < 1").metrics == [other, loss]
    assert ClaimTest(kind="full_retreats", cells=["a"]).metrics == []
