"""What an experiment was planned to decide before its runs were started, and what of a claim was changed since.

A plan is everything that decides a verdict: the arms with their settings, the seeds, the claims with metrics, margins
and controls, and the search for swept settings. `reproduce` writes it into RESULTS-DIR/plans/ before the first run, and
its digest into the record of every run that it starts (`plans`).

    plans/consa-depth.desk.json.zst   every plan that this experiment has had, oldest first
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json
from hybridlab.lab.papers.calls import test_in_words
from hybridlab.lab.papers.cell_spec import texts_in
from hybridlab.lab.papers.cells import Records
from hybridlab.lab.papers.claims.verdict import Flag
from hybridlab.lab.papers.experiment import BENCHMARK, RATE_FOR, Claim, Experiment, cell_of_arm, with_all
from hybridlab.lab.papers.ids import experiments_folder
from hybridlab.lab.papers.listing import read_heads
from hybridlab.runs.record import Record, Stamp
from hybridlab.training.store.results import PUBLISHED, listed

Content = dict[str, Any]
"""A plan as JSON; see `plan_of`."""


@dataclass(frozen=True)
class Planned:
    """A plan of a history. date: when it was first seen (UTC). runs: the hashes of older runs that were made under it
    and whose records have no stamp of their own."""

    digest: str
    date: str
    content: Content
    runs: frozenset[str] = frozenset()

    @cached_property
    def in_todays_words(self) -> Content:
        """Its content with tests written as today, where only their form was changed since: experiments/reworded.json
        has every such test as it was and as it is, and the measures that this needed, by experiment."""
        forms, measures = _reworded()

        def today(test: dict[str, Any]) -> dict[str, Any]:
            return forms.get(json.dumps(test, sort_keys=True), test)

        claims = {
            text: {**claim, "test": today(claim["test"]), "controls": [today(control) for control in claim["controls"]]}
            for text, claim in self.content["claims"].items()
        }
        added = measures.get(self.content["id"], {})
        return {**self.content, "claims": claims, "measures": {**added, **self.content["measures"]}}


# ---- what a plan is ----


def plan_of(experiment: Experiment, scale: str) -> Content:
    """The plan of an experiment at a scale, from its file as it is today.

    arms: cell → its settings by dotted name. claims: text → test, controls and effect, of the claims that name cells.
    rows: short name → cell. sweep: the search, without what it chose, which stands in the arms.
    """
    spec, sweep = experiment.at(scale), experiment.sweep
    claimed = [claim for claim in experiment.claims if any(cells_named(experiment, claim))]
    claims = {claim.text: {"test": claim.test, "controls": claim.controls, "effect": claim.effect} for claim in claimed}
    computed = {"of", "formula"}
    measures = {
        name: measure.model_dump(mode="json", include=computed) for name, measure in experiment.measures.items()
    }
    used = _measures_used(set().union(*map(_names_in, claimed)), measures)
    # What was added later is in the plans of those that use it.
    later = ("further_seeds", "further_values", "follow")
    unused = {"chosen", "scale"} | {name for name in later if sweep and not getattr(sweep, name)}
    return {
        "id": experiment.id,
        "scale": scale,
        "seeds": sorted(spec.seeds),
        "arms": {name: arm_of(experiment, scale, name) for name in experiment.needed_cells(scale)},
        "rows": {row.short: row.cell for row in experiment.rows if row.cell not in (None, BENCHMARK)},
        "claims": claims,
        "measures": {name: measures[name] for name in used},
        "sweep": None if sweep is None or sweep.scale != scale else sweep.model_dump(mode="json", exclude=unused),
        **({"correction": experiment.correction} if experiment.correction != "claim" else {}),
    }


def digest_of(content: Content) -> str:
    """Twelve hexadecimal digits that identify a plan."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def arm_of(experiment: Experiment, scale: str, name: str) -> dict[str, Any]:
    """The settings of an arm by dotted name, as the file writes them, with its architecture, size, data and parents; of
    an arm that is a run of another experiment, those that it has there."""
    spec = experiment.at(scale)
    if name in spec.places:
        other, arm = spec.places[name]
        return arm_of(experiment.other(other), scale, arm)
    cell, settings = experiment.cells_at(scale)[name], dict[str, Any]()
    for part in experiment.settings_of(scale, name, cell):
        settings |= flat(part)
    if experiment.sweep is not None and name in (chosen := experiment.chosen(scale)):
        settings[experiment.sweep.setting] = chosen[name]
    about = {"arch": cell.arch, "model": cell.model, "start": cell.start, "masks": cell.masks}
    about |= {"size": spec.size_of(cell), "data": spec.data} if cell.arch else {}
    return {key: value for key, value in {**about, **settings}.items() if value is not None}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings by dotted name, in their order."""
    flattened, waiting = dict[str, Any](), list(values.items())[::-1]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict) and value:
            for key, inner in reversed(value.items()):
                waiting.append((f"{name}.{key}", inner))
        else:
            flattened[name] = value
    return flattened


def cells_named(experiment: Experiment, claim: Claim) -> Iterator[str]:
    """The cells that a claim's test and controls name, directly or as rows. What the paper prints needs no run."""
    tests = [test for test in claim.tests if not test.is_exact]
    rows = {row.short: row.cell for row in experiment.rows} if tests else {}
    for test in tests:
        for ref in test.references:
            cell = ref.name if ref.to == "cell" else rows.get(ref.name) if ref.to == "row" else None
            if cell not in (None, BENCHMARK):
                yield str(cell)


# ---- the plans that an experiment has had ----


def history_name(experiment: str, scale: str) -> str:
    """The file below RESULTS-DIR with all plans of an experiment at a scale."""
    return f"plans/{experiment}.{scale}.json.zst"


def history(experiment: str, scale: str, results_dir: Path) -> tuple[Planned, ...]:
    """The plans that an experiment has had at a scale, oldest first; none where nothing was started under one. The
    published ones are among them, whatever has been planned here since."""
    planned: tuple[Planned, ...] = ()
    for path in listed(results_dir, history_name(experiment, scale)):
        stat = path.stat()
        planned = _joined(_read_history(path, stat.st_mtime_ns, stat.st_size), planned)
    return planned


def _joined(plans: tuple[Planned, ...], others: tuple[Planned, ...]) -> tuple[Planned, ...]:
    """Two histories of an experiment as one, in the order of their dates."""
    # A plan may return to what it was before, so that entries are counted.
    counts = Counter((plan.digest, plan.date) for plan in plans)
    left = []
    for plan in others:
        counts[plan.digest, plan.date] -= 1
        left += [plan] if counts[plan.digest, plan.date] < 0 else []
    return tuple(sorted([*plans, *left], key=lambda plan: plan.date))


@lru_cache(maxsize=256)
def _read_history(path: Path, _modified: int, _size: int) -> tuple[Planned, ...]:
    remedy = "restore the file" + (" from version control" if path.parent.parent.name == PUBLISHED else "")
    entries = read_object(path, "history of plans", ("plans",), remedy)["plans"]
    try:
        plans = tuple(
            Planned(data["digest"], data["date"], data["plan"], frozenset(data.get("runs", ()))) for data in entries
        )
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: this history of plans is damaged ({error}); {remedy}") from None
    if changed := [plan.digest for plan in plans if digest_of(plan.content) != plan.digest]:
        raise UserError(
            f"{path}: plan {changed[0]} was changed after it was written; {remedy}, and change a plan in the "
            "experiment's file, which adds a plan here"
        )
    return plans


def register(experiment: Experiment, scale: str, results_dir: Path) -> Stamp:
    """The stamp of the plan that an experiment has today, which is added to its history unless it is the newest."""
    content = plan_of(experiment, scale)
    digest, plans = digest_of(content), history(experiment.id, scale, results_dir)
    if not plans or plans[-1].digest != digest:
        planned = [*plans, Planned(digest, datetime.now(UTC).date().isoformat(), content)]
        write_history(experiment.id, scale, planned, results_dir)
    return Stamp(id=experiment.id, scale=scale, digest=digest)


def write_history(experiment: str, scale: str, plans: Iterable[Planned], results_dir: Path) -> None:
    """Write all plans of an experiment at a scale, oldest first."""
    entries = [
        {"digest": plan.digest, "date": plan.date, "plan": plan.content}
        | ({"runs": sorted(plan.runs)} if plan.runs else {})
        for plan in plans
    ]
    write_json(results_dir / history_name(experiment, scale), {"plans": entries})


def readers(experiment: Experiment, scale: str) -> Iterator[Experiment]:
    """The experiments of hybridlab that read runs of this one at a scale (`shared`), so that their claims are planned
    when these runs start."""
    for head in read_heads():
        if head.id != experiment.id and experiment.id in head.shared(scale):
            yield experiment.other(head.id)


@lru_cache(maxsize=1)
def _reworded() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    content = read_object(experiments_folder() / "reworded.json", "list of reworded tests", ("tests", "measures"))
    return {json.dumps(was, sort_keys=True): now for was, now in content["tests"]}, content["measures"]


# ---- what has been changed since ----


def _changed(date: str | None, what: str) -> Flag:
    """Why a claim is decided after a change of plan. date: of the change, None if it is in no plan yet."""
    return Flag("plan", f"decided after a change of plan{f' on {date}' if date else ''}: {what}")


def arms_read(experiment: Experiment, scale: str, claim: Claim) -> list[str]:
    """The arms whose runs a claim reads: its cells at the rates of all metrics, and the cells that these start from."""
    cells = experiment.cells_at(scale)
    arms: dict[str, list[str]] = {}
    for arm in cells:
        if RATE_FOR in arm:
            arms.setdefault(cell_of_arm(arm), []).append(arm)

    def needs(name: str) -> list[str]:
        return [*(cells[name].parents if name in cells else []), *arms.get(name, ())]

    return with_all(cells_named(experiment, claim), needs)


@dataclass(frozen=True)
class Plans:
    """The plan of an experiment at a scale as its file has it today, beside those that it has had, oldest first."""

    experiment: Experiment
    scale: str
    history: tuple[Planned, ...]

    @cached_property
    def today(self) -> Content:
        """See `plan_of`."""
        return plan_of(self.experiment, self.scale)

    @cached_property
    def _known(self) -> set[str]:
        """The digests of all. Today's plan is known from the file, where its history has been deleted too."""
        return {digest_of(self.today), *(plan.digest for plan in self.history)}

    def change(self, claim: Claim, records: Records) -> Flag | None:
        """The change since the oldest plan under which one of the runs was started that a claim reads; None if it is as
        it was planned, and where neither a plan nor a stamp is known."""
        arms = arms_read(self.experiment, self.scale, claim)
        read = {run.hash: run for cell in arms for run in records.get(cell, {}).values()}
        stamped = {digest: self._stamp(run) for digest, run in read.items()}
        if not read or not (self.history or any(stamped.values())):
            return None
        if unplanned := [digest for digest, plan in stamped.items() if plan is None]:
            what = f"the claim was not planned when {len(unplanned)} of the {len(read)} runs that it reads were started"
            return _changed(self._since(claim), what)
        if lost := sorted({plan for plan in stamped.values() if plan is not None} - self._known):
            return _changed(None, f"the plan {lost[0]} of its runs is not in {self.experiment.id}.{self.scale}.json")
        # Documents and prompts are planned by the settings of their study.
        seeds = {run.seed for run in read.values() if self.experiment.unit(self.scale) == "seed"}
        for plan in self.history:
            if plan.digest in stamped.values() and (words := self._changes(plan, claim, seeds)):
                return _changed(self._since(claim, seeds), "; ".join(words))
        return None

    def _stamp(self, run: Record) -> str | None:
        """The digest of the plan of this experiment under which a run was started; None if there was none."""
        for stamp in run.plans:
            if stamp.id == self.experiment.id and stamp.scale == self.scale:
                return stamp.digest
        return self._older.get(run.hash)

    @cached_property
    def _older(self) -> dict[str, str]:
        """Hash → the first plan under which a run was started whose record has no stamp."""
        return {digest: plan.digest for plan in reversed(self.history) for digest in plan.runs}

    def _since(self, claim: Claim, seeds: Iterable[int] = ()) -> str | None:
        """The date since which the plans define a claim as today; None if the newest does not. A plan may return to
        what it was before."""
        date = None
        for plan in reversed(self.history):
            if self._changes(plan, claim, {*seeds}):
                break
            date = plan.date
        return date

    def _changes(self, plan: Planned, claim: Claim, seeds: set[int]) -> list[str]:
        """What of a claim is not as it was, in words; empty if nothing. seeds: those that it reads."""
        then, now = plan.in_todays_words, self.today
        new = now["claims"][claim.text]
        old = then["claims"].get(claim.text) or next((past for past in then["claims"].values() if past == new), None)
        if old is None:
            return ["the claim was added"]
        words = []
        if old["test"] != new["test"]:
            words.append(f"its test, which was {test_in_words(old['test'])}")
        for name, source, other in (("left out", old, new), ("added", new, old)):
            if controls := [test_in_words(test) for test in source["controls"] if test not in other["controls"]]:
                words.append(f"controls {name} ({', '.join(controls)})")
        if old["effect"] != new["effect"]:
            words.append("the effect to be found")
        names = _names_in(claim)
        used = _measures_used(names, now["measures"])
        if other_measures := [name for name in used if then["measures"].get(name) != now["measures"][name]]:
            words.append(f"the measure {', '.join(other_measures)}")
        read_arms = _arms_named(names, now)
        arms = [arm for arm in now["arms"] if arm in read_arms and then["arms"].get(arm) != now["arms"][arm]]
        words += [_arm_in_words(arm, then["arms"].get(arm), now["arms"][arm]) for arm in arms[:3]]
        words += [f"and {len(arms) - 3} more"] if len(arms) > 3 else []
        swept = {cell for plan in (then, now) if plan["sweep"] for cell in plan["sweep"]["cells"]}
        if then["sweep"] != now["sweep"] and any(cell_of_arm(arm) in swept for arm in read_arms):
            words.append("the search for the swept setting")
        if added := sorted(seeds - {*then["seeds"]}):
            words.append(f"seeds {', '.join(map(str, added))} were added to {seeds_in_words(then['seeds'])}")
        if seeds and (left_out := sorted({*then["seeds"]} - {*now["seeds"]} - seeds)):
            words.append(f"seeds {', '.join(map(str, left_out))} of {seeds_in_words(then['seeds'])} were left out")
        return words


def _arm_in_words(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    if old is None:
        return f"the arm {name} was added"
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changes = [f"{key} {old.get(key, '–')} → {new.get(key, '–')}" for key in keys[:2]]
    return f"arm {name}: {', '.join(changes)}{' …' if len(keys) > 2 else ''}"


def _names_in(claim: Claim) -> set[str]:
    """All names that a claim's test and controls read."""
    return {reference.name for test in claim.tests for reference in test.references}


def _arms_named(names: set[str], plan: Content) -> set[str]:
    """The arms of a plan among these names, as cells or rows, with the arms that these start from."""
    cells = {plan["rows"].get(name, name) for name in names}
    arms = [arm for arm in plan["arms"] if cell_of_arm(arm) in cells]
    return {*with_all(arms, lambda arm: filter(None, map(plan["arms"].get(arm, {}).get, ("start", "masks"))))}


def _measures_used(names: set[str], measures: Mapping[str, Any]) -> list[str]:
    """The measures among these names, and those that they are made of."""

    def needs(name: str) -> list[str]:
        written = {*measures[name]["of"], *texts_in(measures[name])}
        return [measure for measure in measures if measure in written]

    return with_all((name for name in measures if name in names), needs)


def seeds_in_words(seeds: list[int]) -> str:
    """0 to 4, or 0, 2, 5."""
    consecutive = seeds == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if consecutive else ", ".join(map(str, seeds))
