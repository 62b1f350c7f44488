"""What stands in the way of a claim that is not decided, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from hybridlab.lab.papers.claims.verdict import MOST_SEEDS_HERE
from hybridlab.lab.papers.experiment import Claim, Experiment
from hybridlab.lab.papers.ids import PRETRAINED, SCALES
from hybridlab.lab.papers.plans import arms_read
from hybridlab.statistics import LEVEL

DESK = "desk"
"""The scale at which claims about trained models are decided on one machine."""
UNDECIDED = ("open", "cannot tell here", "not run")
REFUTED = ("fails", "opposite observed")
What = Literal["runs", "seeds", "effect", "mechanism", "rate", "design", "speed", "GPU", "not here"]


@dataclass(frozen=True)
class Obstacle:
    """Why a claim is not decided. what: runs: its plan asks for runs that are not here; seeds: more than planned;
    effect: too small for any number of seeds here; mechanism: it does not work here, or a control says so; rate: the
    search for a setting; design: of the arms; speed: a benchmark of speed; GPU: nothing is planned below scale small;
    not here: what the test needs. text: a sentence."""

    what: What
    text: str


_OF_RATES = ("rates differ", "own rate", "edge", "missed")
"""Codes of flags after which a verdict waits for another search."""


def in_the_way(
    experiment: Experiment,
    claim: Claim,
    data: Mapping[str, Any],
    about: str,
    scale: str | None,
    of_plans: str = DESK,
    controls: Mapping[str, str] = MappingProxyType({}),
) -> Obstacle | None:
    """What stands in the way of a claim; None if it is decided. data: the claim as its page has it. about: see ABOUT
    of claim_list.py. scale: at which it was judged, None if no run was. of_plans: the scale whose plans count.
    controls: what each of its page asks, by number."""
    if data["verdict"] not in UNDECIDED:
        return None
    evidence = data["details"] or data["evidence"]
    if about == "timed":
        return Obstacle("speed", f"a benchmark of speed: {evidence or 'it decides nothing here'}")
    if about != "trained":
        return Obstacle("not here", evidence or "what its test needs is not here")
    if not arms_at(experiment, claim, of_plans):
        larger = next((name for name in SCALES if name in experiment.scales and name not in ("smoke", of_plans)), None)
        machine = "" if larger is None else f", at scale {larger}: {experiment.scales[larger].machine}"
        return Obstacle("GPU", f"another machine: no runs are planned for it at scale {of_plans}{machine}")
    if scale != of_plans or data["verdict"] == "not run" or data["n"] is None:
        return Obstacle("runs", f"runs that its plan asks for at scale {of_plans}")
    if waiting := [controls[control["number"]] for control in data["controls"] if control["verdict"] == "not run"]:
        return Obstacle("runs", f"runs that its plan asks for at scale {of_plans}, of its control: {waiting[0]}")
    of_design = _of_design(experiment, data, of_plans, controls) if data["verdict"] == "cannot tell here" else None
    return of_design or _of_numbers(data, evidence, len(experiment.scales[of_plans].seeds))


def arms_at(experiment: Experiment, claim: Claim, scale: str) -> set[str]:
    """The arms that a claim reads at a scale, with those that these start from; empty where one is not trained there,
    or nothing is trained."""
    if scale not in experiment.scales or scale == PRETRAINED:
        return set()
    arms = {*arms_read(experiment, scale, claim)}
    return arms if arms <= {*experiment.needed_cells(scale)} else set()


def _of_design(
    experiment: Experiment, data: Mapping[str, Any], scale: str, controls: Mapping[str, str]
) -> Obstacle | None:
    """What seeds do not change of a claim that its page cannot tell: searches, controls that fail, unequal arms."""
    flags = {flag["code"]: flag["text"] for flag in reversed(data["flags"])}
    if of_rates := [flag["text"] for flag in data["flags"] if flag["code"] in _OF_RATES]:
        return Obstacle("rate", f"another search for a setting: {of_rates[0]}")
    if failed := [controls[control["number"]] for control in data["controls"] if control["verdict"] in REFUTED]:
        sweep = experiment.sweep if experiment.sweep and experiment.sweep.scale == scale else None
        searched = f", after the search for {sweep.setting} in the file" if sweep else ""
        return Obstacle("mechanism", f"a mechanism that does not work here{searched}: it fails that {failed[0]}")
    if "settled" in flags:
        return Obstacle("mechanism", f"a mechanism that does not work here: {flags['settled']}")
    return Obstacle("design", f"the design: {flags['training']}") if "training" in flags else None


def _of_numbers(data: Mapping[str, Any], evidence: str, planned: int) -> Obstacle:
    """What seeds can change, and where they cannot."""
    p = data["comparisons"][data["deciding"]]["p"] if data["deciding"] is not None else None
    n, needed = data["n"] or 0, data["n_needed"]
    if needed is not None and needed > MOST_SEEDS_HERE:
        return Obstacle("effect", f"the size of the effect: not at this size ({needed:,} seeds)")
    if needed is None:
        if n < planned:
            return Obstacle("runs", f"runs that are planned: {n} of {planned} seeds are here")
        if p is None or p >= LEVEL:
            return Obstacle("effect", f"the size of the effect: not at this size ({evidence or 'no number'})")
        return Obstacle("effect", data["details"] or "its comparisons are not resolved together")
    if n < planned and needed <= planned:
        return Obstacle("runs", f"runs that are planned: {n} of {planned} seeds are here, {needed} may do")
    return Obstacle("seeds", f"{needed} seeds for 80 % power, and {planned} are planned: a new plan with new seeds")
