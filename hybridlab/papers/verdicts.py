"""The verdicts on the claims of one table or figure, with what a reader must know of how each came about.

A claim is judged by itself (claims/judge.py). Here it is set beside its plan (papers/plans.py), the settings of the
arms that it compares, and the other claims of its page:

- arms at values of a swept setting that another metric chose decide nothing if these values differ;
- arms differ only in their method, or as the file says (`differ_in`), else the experiment is wrong;
- claims that read the same numbers are one claim, and over all that were tested on a page Benjamini and Hochberg's
  correction stands beside Holm's within each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.papers.cells import cell_runs
from hybridlab.papers.claims.judge import judge, metrics_of
from hybridlab.papers.claims.verdict import Verdict
from hybridlab.papers.experiment import Claim, Experiment, Scalar
from hybridlab.papers.plans import Planned, change_of_plan, flat
from hybridlab.papers.records import Records
from hybridlab.papers.sweep import edges, metric_in_words
from hybridlab.runs.record import BenchmarkRecord
from hybridlab.statistics import FEWEST_SEEDS, survive

METHOD = (
    "arch",
    "map",
    "plan",
    "controller",
    "recurrence",
    "hooks",
    "init",
    "window",
    "shape.norm_scaling",
    "study.model",
    "study.drop_heads",
    "dropped",
)
"""What arms may differ in without a word: their method, and the models and heads that are studied."""
NOT_COMPARED = (
    *(f"evaluation.{name}" for name in ("every", "at_steps", "task_rows", "task_window", "length_factors")),
    *(f"evaluation.{name}" for name in ("choices", "benchmarks", "probes", "final_probes", "probe_settings")),
    "runtime",
    "observe",
    "plugins",
    "size",
)
"""Settings that change neither what is trained nor how the loss of text is measured, and the name of a size, whose
shape is compared."""


def verdicts(
    experiment: Experiment,
    scale: str,
    records: Records,
    benchmark: BenchmarkRecord | None = None,
    plans: tuple[Planned, ...] = (),
) -> list[Verdict]:
    """The verdict on every claim of an experiment at a scale, in their order. plans: those that it has had there.

    UserError where arms that are compared differ in a setting that the file does not name.
    """
    found, settings = [], settings_of(records)
    for i, claim in enumerate(experiment.claims):
        verdict = judge(claim, experiment, records, benchmark, scale)
        check_arms(experiment, scale, i, verdict, settings)
        verdict = _at_own_rates(claim, experiment, scale, verdict)
        # A verdict on what is counted has no n.
        measured = verdict.n != 0 and verdict.word != "not run"
        change = change_of_plan(claim, experiment, scale, records, plans) if measured else None
        if change is not None:
            verdict = replace(verdict, flags=(*verdict.flags, str(change)))
            verdict = verdict if verdict.holds is None else verdict.noted("after a change of plan")
        found.append(verdict)
    return _on_one_page(found)


# ---- what arms differ in ----


Settings = Mapping[str, Mapping[str, Any]]
"""Cell → setting by dotted name → its value."""


def settings_of(records: Records) -> dict[int, Settings]:
    """Seed → the settings of all cells that have a record of it. One seed of an arm can differ by itself."""
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for cell, by_seed in records.items():
        for seed, run in by_seed.items():
            found.setdefault(seed, {})[cell] = flat(run.config)
    return dict(sorted(found.items()))


def differences(cells: Sequence[str], settings: Settings) -> dict[str, dict[str, Any]]:
    """Setting → cell → its value, of the settings in which some cells differ. Only what can change a run is compared; a
    setting that a run does not have is None."""
    known = {cell: settings[cell] for cell in cells if cell in settings}
    names = sorted({name for one in known.values() for name in one if not _begins(name, NOT_COMPARED)})
    found = {name: {cell: one.get(name) for cell, one in known.items()} for name in names}
    return {name: values for name, values in found.items() if len({repr(value) for value in values.values()}) > 1}


def check_plan(experiment: Experiment, scale: str) -> None:
    """UserError, before anything is trained, where arms that a claim compares differ in a setting that the file does
    not name."""
    seed = min(experiment.at(scale).seeds)
    runs = cell_runs(experiment, scale, seed)
    settings = {run.cell: flat(run.config.model_dump(mode="json")) for run in runs if isinstance(run.config, RunConfig)}
    for i, claim in enumerate(experiment.claims):
        check_arms(experiment, scale, i, judge(claim, experiment, {}, None, scale), {seed: settings})


def is_method(name: str) -> bool:
    """Whether a setting belongs to an arm's method, in which arms may differ without a word."""
    return _begins(name, METHOD)


def _begins(name: str, prefixes: Sequence[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def check_arms(
    experiment: Experiment, scale: str, number: int, verdict: Verdict, settings: Mapping[int, Settings]
) -> None:
    """UserError if arms that a claim compares differ in a setting that neither is part of the method nor stands under
    `differ_in`, of the claim or of the file. number: of the claim in the file. settings: by seed."""
    claim = experiment.claims[number]
    declared = [*experiment.differ_in, *claim.differ_in]
    for cells in compared_cells(experiment, verdict):
        for name, values in _differences_of_seeds(cells, settings):
            if not is_method(name) and not _begins(name, declared) and not _searched(experiment, scale, name, values):
                raise UserError(
                    f"{experiment.at_line(('claims', number, 'text'))}{experiment.id}: the arms of the claim "
                    f"{claim.text!r} differ in {name} ({_in_words(values)}), which its sentence does not say; make "
                    f"them equal, or write `differ_in: [{name}]` under the claim if this is what it compares"
                )


def _differences_of_seeds(
    cells: Sequence[str], settings: Mapping[int, Settings]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(setting, cell → its value) of all seeds; see `differences`."""
    for one in settings.values():
        yield from differences(cells, one).items()


def _searched(experiment: Experiment, scale: str, name: str, cells: Iterable[str]) -> bool:
    """Whether a setting was searched for each of these cells at this scale: such values are looked at by themselves. An
    arm whose value somebody wrote beside the search had another chance than the others."""
    found = [_swept_arm(experiment, scale, cell, "") for cell in cells]
    return all(arm is not None and arm.setting == name for arm in found)


def arms_differ(experiment: Experiment, found: Sequence[Verdict], records: Records) -> dict[str, dict[str, Any]]:
    """Setting → cell → its value, of all settings in which arms differ that some claim compares, from their records."""
    differ: dict[str, dict[str, Any]] = {}
    settings = settings_of(records)
    for verdict in found:
        for cells in compared_cells(experiment, verdict):
            for name, values in _differences_of_seeds(cells, settings):
                # The first seed in which they differ is shown.
                shown = differ.setdefault(name, {})
                for cell, value in values.items():
                    shown.setdefault(cell, value)
    return dict(sorted(differ.items()))


def compared_cells(experiment: Experiment, verdict: Verdict) -> Iterator[list[str]]:
    """The cells that stand side by side in one comparison of a claim or of its controls."""
    for one in (verdict, *(control.verdict for control in verdict.controls)):
        for comparison in one.comparisons:
            if len(comparison["cells"]) > 1:
                yield comparison["cells"]


def _in_words(values: dict[str, Any]) -> str:
    return ", ".join(f"{cell}: {'–' if value is None else value}" for cell, value in values.items())


# ---- values that another metric chose ----


def _at_own_rates(claim: Claim, experiment: Experiment, scale: str, verdict: Verdict) -> Verdict:
    """The verdict, flagged where arms have values of a swept setting that another metric chose, or that lie at the edge
    of the grid. Where such values differ between arms that are compared, nothing can be told."""
    flags: list[str] = []
    confounded = False
    controls = [(test, control.verdict) for test, control in zip(claim.controls, verdict.controls, strict=False)]
    for cells, metric in _cells_read([(claim.test, verdict), *controls]):
        arms = [arm for cell in cells if (arm := _swept_arm(experiment, scale, cell, metric))]
        for_other = [arm for arm in arms if arm.chosen_by != metric]
        if for_other:
            values = ", ".join(f"{arm.cell} {arm.value}" for arm in arms)
            titles = dict.fromkeys(metric_in_words(arm.owner, str(arm.chosen_by)) for arm in for_other)
            flags.append(f"{arms[0].setting} was chosen by {' and '.join(titles)}: {values}")
            confounded |= len({repr(arm.value) for arm in arms}) > 1
        edge = [arm for arm in arms if arm.edge]
        flags += [f"{arm.setting} of {arm.cell} lies at the edge of the grid ({arm.value})" for arm in edge]
    if not flags:
        return verdict
    flagged = replace(verdict, flags=tuple(dict.fromkeys((*verdict.flags, *flags))))
    if not confounded:
        return flagged
    evidence = f"{verdict.evidence}; the arms have values of a setting that another metric chose, and these differ"
    return replace(flagged, holds=None, word="cannot tell here", note="", evidence=evidence)


def _cells_read(tests: Iterable[tuple[dict[str, Any], Verdict]]) -> dict[tuple[tuple[str, ...], str], None]:
    """(cells that stand side by side, metric) of a claim's test and of its controls, each once. A control of one cell
    asks what the arm does at the rate that it has, so that no other metric is in its place."""
    found: dict[tuple[tuple[str, ...], str], None] = {}
    for i, (test, verdict) in enumerate(tests):
        for one in verdict.comparisons:
            if len(one["cells"]) > 1 or i == 0:
                found |= {(tuple(one["cells"]), metric): None for metric in metrics_of(test)}
    return found


@dataclass(frozen=True)
class _SweptArm:
    """An arm with a value that was searched. owner: the experiment that searched it. chosen_by: the metric that chose
    the value. edge: whether it lies at the edge of the grid."""

    owner: Experiment
    setting: str
    cell: str
    value: Scalar
    chosen_by: str
    edge: bool


def _swept_arm(experiment: Experiment, scale: str, cell: str, metric: str) -> _SweptArm | None:
    """The arm whose run is read from a cell for a metric; None if nothing was searched for it. A run of another
    experiment has the value that the first metric chose there."""
    owner, name = experiment, cell
    if cell in (places := experiment.at(scale).places if scale in experiment.scales else {}):
        owner, name = experiment.other(places[cell][0]), places[cell][1]
    arm = owner.arm(scale, name, metric) if owner is experiment else name
    if owner.sweep is None or arm not in owner.chosen(scale):
        return None
    value, sweep = owner.chosen(scale)[arm], owner.sweep
    chosen_by = metric if sweep.chosen.get(metric, {}).get(name) == value else sweep.metrics[0]
    return _SweptArm(owner, sweep.setting, cell, value, chosen_by, value in edges(sweep.grid))


# ---- one page ----


def _on_one_page(found: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts after Benjamini and Hochberg's correction over all claims that were tested; those that read the same
    numbers count once."""
    first: dict[Any, int] = {}
    same = [first.setdefault(key, i) if (key := _numbers(one)) else i for i, one in enumerate(found)]
    tested = [i for i, one in enumerate(found) if same[i] == i and one.p is not None and one.word != "cannot tell here"]
    kept = dict(zip(tested, survive([found[i].p or 0.0 for i in tested]), strict=True))
    verdicts = []
    for i, one in enumerate(found):
        if one.holds is not None and not kept.get(same[i], True):
            text = f"not resolved after Benjamini and Hochberg's correction over the {len(tested)} claims of this page"
            one = replace(one, holds=None, word="open", flags=(*one.flags, text)).noted("after the page's correction")
        if same[i] != i:
            one = replace(one, flags=(*one.flags, f"the same numbers as claim {same[i] + 1}"))
        verdicts.append(one)
    return verdicts


def _numbers(verdict: Verdict) -> frozenset[str]:
    """What the comparisons of a claim read and ask; empty for a claim without runs."""
    return frozenset(_either_way(one) for one in verdict.comparisons if one["n"] >= FEWEST_SEEDS)


def _either_way(one: Mapping[str, Any]) -> str:
    """The numbers of a comparison, its question and its answer: the same for "A is below B" as for "B is above A"."""
    asked = one["asked"]
    turned = asked and [None if bound is None else 0.0 - bound for bound in reversed(asked)]
    here = repr((one["values"], asked, one["p"]))
    there = repr(({seed: 0.0 - value for seed, value in one["values"].items()}, turned, one["p"]))
    return min(here, there)
