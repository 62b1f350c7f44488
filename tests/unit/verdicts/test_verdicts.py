"""Every kind of claim on figures chosen by hand: a case that holds, one that fails, one that stays open."""

import pytest

from hybridlab.papers.claims.kinds import CLAIM_KINDS
from tests.unit.verdicts import (  # noqa: F401  (each module adds its cases)
    cases_changes,
    cases_consa,
    cases_exact,
    cases_measured,
    cases_printed,
    cases_sgt,
    cases_speed,
    cases_spiral,
)
from tests.unit.verdicts.building import CASES


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i].kind}-{CASES[i].holds}")
def test_verdict_and_evidence(number):
    assert CASES[number].problem() is None


NEVER_OPEN = {"printed_differ_in", "printed_count"}
"""Kinds that can always be decided, beside those on computed numbers and on cases that the claim writes out."""
NEVER_DECIDED = {"not_here"}


def _possible(name):
    if name in NEVER_DECIDED:
        return {None}
    exact = CLAIM_KINDS.get(name).run.__module__.endswith((".arithmetic", ".theory"))
    return {True, False} if exact or name in NEVER_OPEN else {True, False, None}


def test_every_kind_holds_fails_and_stays_open_in_some_case():
    outcomes = {name: {case.holds for case in CASES if case.kind == name} for name in CLAIM_KINDS.names()}
    assert {name: seen for name, seen in outcomes.items() if seen != _possible(name)} == {}
