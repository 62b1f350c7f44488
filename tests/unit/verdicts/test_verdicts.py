"""Every kind of claim on figures chosen by hand: a case that holds, one that fails, one that stays open."""

import pytest

from hybridlab.papers.claims.kinds import CLAIM_KINDS
from tests.unit.verdicts import (  # noqa: F401  (each module adds its cases)
    cases_consa,
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


def test_every_kind_holds_fails_and_stays_open_in_some_case():
    outcomes = {name: {case.holds for case in CASES if case.kind == name} for name in CLAIM_KINDS.names()}
    assert {name: seen for name, seen in outcomes.items() if seen != {True, False, None}} == {}
