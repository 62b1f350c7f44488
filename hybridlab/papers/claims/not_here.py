"""Sentences that nothing at hand can test."""

from __future__ import annotations

from hybridlab.papers.claims.kinds import Given, claim_kind
from hybridlab.papers.claims.verdict import NotRun, Verdict

KIND = "not_here"


@claim_kind
def not_here(on: Given, needs: str) -> Verdict:
    """A sentence about a model, a benchmark or a measurement that is not at hand: it stays in the list, not run.

    needs: what a test would take, such as "MMLU at 1.7B".
    """
    raise NotRun(f"needs {needs}")
