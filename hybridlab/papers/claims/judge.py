"""The verdict on a claim of an experiment."""

from __future__ import annotations

from hybridlab.config.loading import Layer
from hybridlab.papers.calls import CLAIM_KINDS, called
from hybridlab.papers.claims.kinds import Given
from hybridlab.papers.claims.verdict import Open, Verdict
from hybridlab.papers.experiment import Claim, Experiment
from hybridlab.papers.records import Records
from hybridlab.runs.record import BenchmarkRecord


def judge(claim: Claim, experiment: Experiment, records: Records, benchmark: BenchmarkRecord | None = None) -> Verdict:
    """Whether a claim holds, with the evidence; open if records that its test needs are missing."""
    layer = Layer(claim.test, {(): f"{experiment.id}, claim {claim.text!r}"})
    kind, arguments = called(CLAIM_KINDS, "kind", layer)
    try:
        return kind.run(Given(experiment, records, benchmark), **arguments)
    except Open as reason:
        return Verdict(None, str(reason))
