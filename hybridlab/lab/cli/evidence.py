"""What `list --claims --undecided` and `reproduce --until` print: what undecided claims wait for, and its cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.lab.cli import options as lab
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.lab.papers.claim_list import Listed
    from hybridlab.lab.papers.evidence import Evidence
    from hybridlab.lab.papers.experiment import Experiment
    from hybridlab.lab.papers.listing import Filter
    from hybridlab.lab.papers.undecided import Step
    from hybridlab.runs.queue import Outcome


# ---- `list --claims --undecided` ----


def list_undecided(results_dir: Path, filters: Filter, verdict: str | None, as_json: bool) -> None:
    """The undecided claims below the runs that would decide them, the cheapest first."""
    from hybridlab.lab.papers.claim_list import counts, in_words, totals
    from hybridlab.lab.papers.evidence import evidence
    from hybridlab.lab.papers.loading import all_experiments

    missing = evidence(all_experiments(filters.paper), results_dir, o.RUNS, filters, verdict=verdict)
    if as_json:
        o.print_json(as_data(missing))
        return
    if not missing.claims:
        say("list: no undecided claim matches; `hybridlab list --claims` without words and filters shows all")
        return
    out = o.console()
    planned = f"Runs that plans ask for; `hybridlab reproduce --until 8h` trains them at scale {missing.scale}:"
    _print_steps(planned, missing, missing.steps)
    _print_steps("Seeds beyond the plan: these need a new plan, with new seeds:", missing, missing.new)
    if left := missing.elsewhere():
        out.print("Nothing that can be started here decides these:", style="bold")
        out.print()
        lab.print_groups([(claim.id, *_claim(claim)) for claim in left])
        out.print()
    out.print(in_words(totals(counts(missing.claims))))
    _say_of_costs(missing)


def _print_steps(title: str, missing: Evidence, steps: Sequence[Step]) -> None:
    """Steps under a title, each with its claims; nothing without any."""
    rows = [
        (f"{number}. {step_in_words(step, missing)}", *_claim(missing.claims[place]))
        for number, step in enumerate(steps, 1)
        for place in step.places
    ]
    if rows:
        o.console().print(title, style="bold")
        o.console().print()
        lab.print_groups(rows, gap=True)


def _claim(claim: Listed) -> tuple[str, str, str]:
    """A claim as a row: its experiment, its verdict, and its sentence with what stands in the way."""
    way = "" if claim.in_the_way is None else f" [{claim.in_the_way.text}]"
    return claim.id, claim.verdict, f"{claim.text} ({claim.source}){way}"


def step_in_words(step: Step, missing: Evidence) -> str:
    """How many runs it takes and how long, for how many claims: 24 runs, 310 min, for 5 claims (62 min each)."""
    claims, minutes = len(step.places), step.minutes
    several = f"{claims} claim{'s' * (claims != 1)}"
    search = f"; first the search of {', '.join(searched)}" if (searched := missing.searches(step)) else ""
    runs = f"{step.runs:,} run{'s' * (step.runs != 1)}"
    if minutes is None:
        flops = "" if step.flops is None else f" ({step.flops:.2g} FLOPs)"
        return f"{runs}, – min{flops}, for {several}{search}"
    each = f" ({minutes / claims:,.0f} min each)" if claims > 1 else ""
    return f"{runs}, {minutes:,.0f} min, for {several}{each}{search}"


def _say_of_costs(missing: Evidence) -> None:
    """What the minutes are, and which experiments are left out."""
    if missing.steps or missing.new:
        say(
            "min: training alone, with as many runs at once as this machine takes, by what it has trained of the same "
            "shape; –: it has trained nothing of one of the shapes, and records of other machines do not count, so "
            "that the order is that of FLOPs"
        )
    for identifier, reason in missing.left_out.items():
        say(f"{identifier}: left out: {reason}")
    for identifier in missing.unread:
        say(f"{identifier}: its page lacks records or claims: `hybridlab report {identifier} --scale {missing.scale}`")
    for identifier in missing.unmeasured:
        again = f"`hybridlab reproduce {identifier} --scale {missing.scale} --until 1h`"
        say(f"{identifier}: not all of its trained models are measured: {again} measures those that are in RUNS-DIR")


def as_data(missing: Evidence) -> dict[str, Any]:
    """What undecided claims wait for, as JSON: claims, and steps that name them by their places in that list."""
    from hybridlab.lab.papers.claim_list import counts, totals

    claims = [asdict(claim) for claim in missing.claims]
    steps = {"planned": missing.steps, "new_plan": missing.new}
    return {
        "scale": missing.scale,
        "claims": claims,
        **{name: [_step_data(step, missing) for step in group] for name, group in steps.items()},
        "total": totals(counts(missing.claims)),
        "left_out": dict(missing.left_out),
    }


def _step_data(step: Step, missing: Evidence) -> dict[str, Any]:
    about = {"claims": list(step.places), "runs": step.runs, "minutes": step.minutes, "flops": step.flops}
    return {**about, "searches": missing.searches(step)}


# ---- `reproduce --until` ----


def reproduce_until(
    until: str, experiments: Sequence[Experiment], scale: str, options: lab.Queue, compile: bool | None
) -> None:
    """Train what undecided claims wait for until the time is over, write the pages, and print what was decided."""
    from hybridlab.lab.papers.evidence import decided, evidence, of_desk, run_evidence
    from hybridlab.lab.papers.listing import Filter
    from hybridlab.lab.papers.undecided import seconds_of
    from hybridlab.runs.preview import preview
    from hybridlab.runs.queue import Deadline

    began, seconds = time.monotonic(), seconds_of(until)
    if not isinstance(options.where(), int | None):
        what = "--launcher slurm" if options.launching.launcher != "local" else "--ranks"
        raise UserError(f"--until has no effect with {what}, whose runs it cannot stop in time; leave one of them out")
    chosen = of_desk(experiments, scale)
    missing = evidence(chosen, options.results_dir, options.runs_dir, Filter(), scale)
    if options.dry_run:
        _print_order(missing, seconds, until, options.as_json)
        return
    queue = missing.queue(compile)
    rows = preview(queue, options.runs_dir, options.results_dir, options.jobs)["runs"] if queue else []
    estimates = {row["hash"]: 60 * row["minutes"] for row in rows if row["minutes"] is not None}
    left = sum(row["state"] != "done" for row in rows)
    say(f"{left} runs for {sum(len(step.places) for step in missing.steps)} undecided claims, until {until} are over")
    _say_of_costs(missing)
    deadline = Deadline(began + seconds, estimates)
    outcome = run_evidence(missing, queue, options.runs_dir, options.results_dir, options.jobs, deadline)
    _write_pages(missing, queue, outcome, options.results_dir)
    now = decided(missing, options.results_dir) if outcome.finished or missing.unread else []
    if options.as_json:
        o.print_json({"decided": [asdict(claim) for claim in now], "finished": outcome.finished, "late": outcome.late})
    else:
        _print_decided(now, outcome)
    outcome.raise_failures("the undecided claims")


def _print_order(missing: Evidence, seconds: float, until: str, as_json: bool) -> None:
    """The steps in their order, and how many runs of each would finish in the time."""
    from hybridlab.lab.papers.evidence import fitting

    fits = fitting(missing, seconds / 60)
    if as_json:
        data = as_data(missing)
        data["planned"] = [
            {**step, "startable": len(missing.start(planned)), "fit": number}
            for step, planned, number in zip(data["planned"], missing.steps, fits, strict=True)
        ]
        o.print_json(data)
        return
    if not missing.steps:
        o.console().print("no undecided claim waits for runs that a plan asks for: nothing is trained")
        _say_of_costs(missing)
        return
    table = o.table(text=("step", "of"), numbers=("runs", "min", "claims", f"in {until}"), pad_edge=False)
    for number, (step, fit) in enumerate(zip(missing.steps, fits, strict=True), 1):
        ids = ", ".join(dict.fromkeys(missing.claims[place].id for place in step.places))
        minutes = "–" if step.minutes is None else f"{step.minutes:,.0f}"
        start = len(missing.start(step))
        table.add_row(str(number), ids, f"{step.runs:,}", minutes, str(len(step.places)), f"{fit:,} of {start:,}")
    o.console().print(table)
    o.console().print(f"in {until}: runs that by their estimates finish; one without an estimate is started.")
    _say_of_costs(missing)


def _touched(missing: Evidence, queue: dict[str, Any], outcome: Outcome) -> set[str]:
    """The experiments that have new runs of planned seeds or new studies, and those whose pages lack records."""
    finished = {digest for digest, (name, _) in queue.items() if name in outcome.finished}
    touched = {*missing.unread}
    for target in missing.reproduced():
        places = (
            place for step in missing.steps for place in step.places if missing.claims[place].id == target.experiment.id
        )
        started = {digest for place in places for digest in missing.needs[place].start}
        studied = {study.name for study in target.studies().values()}
        if finished & started or studied & {*outcome.finished}:
            touched.add(target.experiment.id)
    return touched


def _write_pages(missing: Evidence, queue: dict[str, Any], outcome: Outcome, results_dir: Path) -> None:
    """The pages of the experiments that have new records, and what their searches found."""
    from hybridlab.lab.papers.ids import natural
    from hybridlab.lab.papers.sweep import advice, swept_cells
    from hybridlab.lab.reporting.entry import write_entry
    from hybridlab.lab.reporting.published import about

    for identifier in sorted(_touched(missing, queue, outcome), key=natural):
        data, folder = write_entry(missing.experiments[identifier], missing.scale, results_dir)
        say(about(data, results_dir))
        say(f"written to {folder}")
    # A search may be that of an experiment whose runs are shared, and which is not among those that were chosen.
    for identifier in (name for name in missing.searches() if name in missing.experiments):
        experiment = missing.experiments[identifier]
        assert experiment.sweep is not None, "what was searched has a search"
        if (sentence := advice(swept_cells(experiment, experiment.sweep, results_dir))) is not None:
            say(f"{identifier}: {sentence}, then run the command again")


def _print_decided(now: Sequence[Listed], outcome: Outcome) -> None:
    """What was decided, and what the time did not suffice for."""
    out = o.console()
    if now:
        lab.print_groups([(row.id, row.verdict, row.scale or row.about, f"{row.text} ({row.source})") for row in now])
        out.print()
    late = f"; not in this time: {len(outcome.late)}, with which the same command goes on" if outcome.late else ""
    finished = f"{len(outcome.finished)} run{'s' * (len(outcome.finished) != 1)} finished"
    out.print(f"{finished}; decided: {len(now)} claim{'s' * (len(now) != 1)}{late}")
