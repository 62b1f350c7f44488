"""The verdicts on the claims of one table or figure, with what a reader must know of how each came about.

A claim is judged by itself (claims/judge.py). Here it is set beside its plan, the settings of the arms that it
compares, and the other claims of its page:

- a claim that is defined otherwise today than when its runs were started is decided after a change of plan;
- arms at values of a swept setting that another metric chose decide nothing if these values differ, or if the metric
  that is judged was searched and chose other ones;
- arms differ only in their method, or as the file says (`differ_in`), else the experiment is wrong;
- the other claims of its page, and of other pages, are looked at in votes.py: Benjamini and Hochberg's correction
  over a page, claims that hang on one seed, and claims that read the same numbers, which are one claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.lab.papers.calls import ClaimTest
from hybridlab.lab.papers.cells import Records, cell_runs
from hybridlab.lab.papers.claims.judge import families, judge
from hybridlab.lab.papers.claims.verdict import Flag, Verdict
from hybridlab.lab.papers.experiment import Amount, Claim, Experiment, Scalar, cell_of_arm, with_all
from hybridlab.lab.papers.formula import NoValue, entries_read, number_of, reads_results
from hybridlab.lab.papers.plans import Planned, Plans, cells_named, flat
from hybridlab.lab.papers.sweep import edges, metric_in_words
from hybridlab.lab.papers.votes import corrected_over_page, hanging, one_vote
from hybridlab.runs.budget import executed_flops
from hybridlab.runs.record import BenchmarkRecord, Part, Record, Seen, seen
from hybridlab.statistics import FEWEST_SEEDS, LEVEL, paired_t

METHOD = (
    *("arch", "map", "plan", "controller", "recurrence", "hooks", "init", "window", "dropped"),
    *("shape.norm_scaling", "study.model", "study.drop_heads", "study.map"),
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
    checked, settings, planned = [], settings_of(records), Plans(experiment, scale, plans)
    all_unsettled = _unsettled_seeds(records)
    judged = alone = [judge(claim, experiment, records, benchmark, scale) for claim in experiment.claims]
    beside = [*families(alone, experiment)]
    if together := experiment.correction != "claim":
        pairs = zip(experiment.claims, ([test.found.p for test in tests] for tests in beside), strict=True)
        judged = [judge(claim, experiment, records, benchmark, scale, p_values) for claim, p_values in pairs]
    for i, (claim, verdict) in enumerate(zip(experiment.claims, judged, strict=True)):
        check_arms(experiment, scale, i, verdict, settings)
        verdict = _at_own_rates(claim, experiment, scale, verdict)
        verdict = _at_best_rates(claim, experiment, scale, verdict, records)
        verdict = _at_equal_training(claim, experiment, scale, verdict, records)
        verdict = _with_settled_choices(claim, experiment, scale, verdict, records, all_unsettled)
        # A verdict on what is counted has no n.
        measured = verdict.n != 0 and verdict.word != "not run"
        change = planned.change(claim, records) if measured else None
        if change is not None:
            verdict = replace(verdict, flags=(*verdict.flags, change))
            verdict = verdict if verdict.holds is None else verdict.noted("after a change of plan")
        checked.append(verdict)
    checked = checked if together else corrected_over_page(checked)
    checked = hanging(checked, beside, together)
    return [*one_vote(experiment, scale, records, checked)]


# ---- what arms differ in ----


Settings = Mapping[str, Mapping[str, Any]]
"""Cell → setting by dotted name → its value."""


def settings_of(records: Records) -> dict[int, Settings]:
    """Seed → the settings of all cells that have a record of it. One seed of an arm can differ by itself."""
    settings: dict[int, dict[str, Mapping[str, Any]]] = {}
    for cell, by_seed in records.items():
        for seed, run in by_seed.items():
            settings.setdefault(seed, {})[cell] = flat(run.config)
    return dict(sorted(settings.items()))


def differences(cells: Sequence[str], settings: Settings) -> dict[str, dict[str, Any]]:
    """Setting → cell → its value, of the settings in which some cells differ. Only what can change a run is compared; a
    setting that a run does not have is None."""
    by_cell = {cell: settings[cell] for cell in cells if cell in settings}
    names = sorted({*itertools.chain(*by_cell.values())})
    pairs = zip(names, zip(*(map(config.get, names) for config in by_cell.values()), strict=True), strict=True)
    differ = {name: values for name, values in pairs if len({*map(repr, values)}) > 1} if by_cell else {}
    return {
        name: dict(zip(by_cell, values, strict=True))
        for name, values in differ.items()
        if not _begins(name, NOT_COMPARED)
    }


def check_plan(experiment: Experiment, scale: str) -> None:
    """UserError, before anything is trained, where arms that a claim compares differ in a setting that the file does
    not name."""
    seed = min(experiment.at(scale).seeds)
    runs = cell_runs(experiment, scale, seed)
    trained = {run.cell: run.trained for run in runs if isinstance(run.config, RunConfig)}
    settings = {cell: flat(config.model_dump(mode="json")) for cell, config in trained.items()}
    amounts = _planned_amounts(trained) if any(map(experiment.equal_in, experiment.claims)) else {}
    for i, claim in enumerate(experiment.claims):
        verdict = judge(claim, experiment, {}, None, scale)
        check_arms(experiment, scale, i, verdict, {seed: settings})
        for cells in _arms_of_test(experiment, scale, claim, verdict):
            if (amount := experiment.equal_in(claim)) and (unequal := _unequal(cells, amounts, amount)):
                raise experiment.mistake(
                    ("claims", i, "text"),
                    f"{experiment.id}: the arms of the claim {claim.text!r} are to have equal {amount} up to their "
                    f"final weights, and have {unequal}; start each part of an arm's training from the part before it, "
                    "and give all arms the same budget",
                )


# ---- what the final weights of arms have seen ----


EQUAL = 0.02
"""Amounts of training that differ by less than this share are equal: a budget buys whole steps."""


def _planned_amounts(trained: Mapping[str, RunConfig]) -> dict[str, Seen | None]:
    """Cell → what its final weights will have seen. trained: the settings of all cells and of those on the way."""
    parts = {}
    for config in trained.values():
        training, init = config.training, config.init
        # What a branch costs depends on the structures of the run that it goes on with.
        flops = None if init is not None and init.whole else executed_flops(config)
        amount = Seen(steps=training.steps, tokens=training.steps * training.tokens_per_step, flops=flops)
        began = init.model_dump(mode="json") if init else {}
        parts[run_hash(config)] = Part(amount, began, even=config.controller is None)
    return {cell: seen(run_hash(config), parts) for cell, config in trained.items()}


def _unequal(cells: Sequence[str], amounts: Mapping[str, Seen | None], amount: str) -> str:
    """The amounts of arms in words where they are not equal; "" where they are, or one is not known."""
    by_cell = {cell: weights for cell in cells if (weights := amounts.get(cell)) is not None}
    numbers = {cell: value for cell, weights in by_cell.items() if (value := getattr(weights, amount)) is not None}
    if len(numbers) < len(cells) or max(numbers.values()) - min(numbers.values()) <= EQUAL * max(numbers.values()):
        return ""
    return ", ".join(
        f"{cell} {value:.3g}" if amount == "flops" else f"{cell} {value:,}" for cell, value in numbers.items()
    )


def _at_equal_training(claim: Claim, experiment: Experiment, scale: str, verdict: Verdict, records: Records) -> Verdict:
    """The verdict, flagged where the final weights of arms that are compared have not been trained equally, in the mean
    over seeds; where the file says in what they must be, nothing can be told. Nothing is flagged where it says that
    arms differ in their steps or their depth, as those of several sizes do."""
    required, flags = experiment.equal_in(claim), dict[Flag, None]()
    declared = (*experiment.differ_in, *claim.differ_in)
    if required is None and any(_begins(name, declared) for name in ("training.steps", "shape.layers")):
        return verdict
    for cells in _arms_of_test(experiment, scale, claim, verdict):
        amounts = {cell: _mean_amounts(records.get(cell, {})) for cell in cells}
        unequal = {name: words for name in get_args(Amount) if (words := _unequal(cells, amounts, name))}
        if required in unequal or (required is None and len(unequal) == len(get_args(Amount))):
            text = "; ".join(f"{name}: {words}" for name, words in unequal.items())
            flags[Flag("training", f"unequal training up to the final weights ({text})")] = None
    flagged = replace(verdict, flags=(*verdict.flags, *flags))
    return _silenced(flagged, f"the arms were not trained with equal {required}") if required and flags else flagged


def _mean_amounts(runs: Mapping[int, Record]) -> Seen | None:
    """What the final weights of an arm have seen, in the mean over seeds; None where one is not known."""
    trained = [run.weights for run in runs.values() if run.weights is not None]
    if not trained or len(trained) < len(runs):
        return None
    steps, tokens = (round(np.mean([getattr(weights, name) for weights in trained])) for name in ("steps", "tokens"))
    flops = [weights.flops for weights in trained if weights.flops is not None]
    return Seen(steps=steps, tokens=tokens, flops=float(np.mean(flops)) if len(flops) == len(trained) else None)


def _silenced(verdict: Verdict, reason: str) -> Verdict:
    """The verdict on a claim of which nothing can be told, and why."""
    if verdict.word == "not run":
        return verdict
    evidence = "; ".join(filter(None, (verdict.evidence, reason)))
    return replace(verdict, holds=None, word="cannot tell here", note="", direction="", evidence=evidence)


# ---- choices that a controller has learned ----


def _with_settled_choices(
    claim: Claim,
    experiment: Experiment,
    scale: str,
    verdict: Verdict,
    records: Records,
    all_unsettled: Mapping[str, set[int]],
) -> Verdict:
    """The verdict, where it is the same without the seeds in which masks had not settled when their learning ended, be
    these read themselves or used by a run whose results are; else nothing can be told. all_unsettled: see
    `_unsettled_seeds`."""
    if not all_unsettled:
        return verdict
    measures, claim_cells = experiment.measures, {*cells_named(experiment, claim)}
    unsettled: dict[str, set[int]] = {}
    for metric in claim.test.metrics:
        if reads_results(metric, measures) or "controller.masks" in entries_read(metric, measures):
            for cell in claim.test.cells_read(metric) or claim_cells:
                arm = experiment.arm(scale, cell, claim.test.first_metric)
                if seeds := all_unsettled.get(arm):
                    unsettled[cell] = seeds
    if not unsettled:
        return verdict
    # Documents and prompts have one run.
    trained = experiment.unit(scale) == "seed"
    where = (
        f"{cell}, seeds {', '.join(map(str, sorted(seeds)))}" if trained else cell
        for cell, seeds in sorted(unsettled.items())
    )
    flag = Flag("settled", f"masks that have not settled ({'; '.join(where)})")
    flagged = replace(verdict, flags=(*verdict.flags, flag))
    left_out = set[int]().union(*unsettled.values())
    settled = {
        cell: {seed: run for seed, run in runs.items() if seed not in left_out} for cell, runs in records.items()
    }
    rest = judge(claim, experiment, settled, None, scale)
    if (rest.n or 0) >= FEWEST_SEEDS and rest.holds is verdict.holds:
        return flagged
    return _silenced(flagged, "an arm's masks have not settled")


def _unsettled_seeds(records: Records) -> dict[str, set[int]]:
    """Arm → the seeds in which its run, or one on whose masks or weights it rests, has learned masks that have not
    settled; without the arms that have none."""
    by_hash = {run.hash: run for by_seed in records.values() for run in by_seed.values()}
    learned_badly = {digest for digest, run in by_hash.items() if run.controller.get("settled") is False}
    unsettled: dict[str, set[int]] = {}
    for arm, by_seed in records.items() if learned_badly else ():
        for seed, run in by_seed.items():
            line = with_all([run.hash], lambda digest: by_hash[digest].parents if digest in by_hash else ())
            if not learned_badly.isdisjoint(line):
                unsettled.setdefault(arm, set()).add(seed)
    return unsettled


def weights_of(experiment: Experiment, scale: str, judged: Sequence[Verdict], records: Records) -> dict[str, Any]:
    """Arm → what its final weights have seen (steps, tokens, FLOPs; of the lowest seed), of the arms that a claim
    compares."""
    claims = zip(experiment.claims, judged, strict=True)
    arms = {
        cell
        for claim, verdict in claims
        for cells in compared_arms(experiment, scale, claim, verdict)
        for cell in cells
    }
    runs = {cell: by_seed[min(by_seed)] for cell, by_seed in records.items() if cell in arms}
    return {cell: run.weights.model_dump() for cell, run in runs.items() if run.weights is not None}


def is_method(name: str) -> bool:
    """Whether a setting belongs to an arm's method, in which arms may differ without a word."""
    return _begins(name, METHOD)


def _begins(name: str, prefixes: Sequence[str]) -> bool:
    return f"{name}.".startswith(tuple(map("{}.".format, prefixes)))


def check_arms(
    experiment: Experiment, scale: str, number: int, verdict: Verdict, settings: Mapping[int, Settings]
) -> None:
    """UserError if arms that a claim compares differ in a setting that neither is part of the method nor stands under
    `differ_in`, of the claim or of the file. number: of the claim in the file. settings: by seed."""
    claim = experiment.claims[number]
    declared = [*experiment.differ_in, *claim.differ_in]
    for cells, of_seed in itertools.product(compared_arms(experiment, scale, claim, verdict), settings.values()):
        for name, values in unsaid_differences(cells, of_seed, declared):
            if not _searched(experiment, scale, name, values):
                arm_values = ", ".join(f"{cell}: {'–' if value is None else value}" for cell, value in values.items())
                raise experiment.mistake(
                    ("claims", number, "text"),
                    f"{experiment.id}: the arms of the claim {claim.text!r} differ in {name} ({arm_values}), which its "
                    f"sentence does not say; make them equal, or write `differ_in: [{name}]` under the claim if this "
                    "is what it compares",
                )


def unsaid_differences(
    cells: Sequence[str], settings: Settings, declared: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(setting, cell → its value) of the `differences` that neither belong to a method nor are declared."""
    for name, values in differences(cells, settings).items():
        if not is_method(name) and not _begins(name, declared):
            yield name, values


def _searched(experiment: Experiment, scale: str, name: str, cells: Iterable[str]) -> bool:
    """Whether a setting was searched for each of these cells at this scale: such values are looked at by themselves. An
    arm whose value somebody wrote beside the search had another chance than the others."""
    to_search = experiment.unsearched(scale) if experiment.sweep and experiment.sweep.setting == name else []
    arms = [_swept_arm(experiment, scale, cell, "", "") for cell in cells if cell not in to_search]
    return all(arm is not None and arm.setting == name for arm in arms)


def arms_differ(
    experiment: Experiment, scale: str, judged: Sequence[Verdict], records: Records
) -> dict[str, dict[str, Any]]:
    """Setting → arm → its value, of all settings in which arms differ that some claim compares, from their records.
    judged: the verdicts on all claims."""
    differ: dict[str, dict[str, Any]] = {}
    settings, claims = settings_of(records), zip(experiment.claims, judged, strict=True)
    compared = (arms for claim, verdict in claims for arms in compared_arms(experiment, scale, claim, verdict))
    for cells, of_seed in itertools.product(compared, settings.values()):
        for name, values in differences(cells, of_seed).items():
            # The first seed in which they differ is shown.
            by_cell = differ.setdefault(name, {})
            for cell, value in values.items():
                by_cell.setdefault(cell, value)
    return dict(sorted(differ.items()))


def _arms_of_test(experiment: Experiment, scale: str, claim: Claim, verdict: Verdict) -> Iterator[list[str]]:
    """The arms of which a claim's test compares the same result, without those of its controls."""
    for cells, metric, first in _cells_read(experiment, [(claim.test, verdict)]):
        if len(cells) > 1 and reads_results(metric, experiment.measures):
            yield [experiment.arm(scale, cell, first) for cell in cells]


def compared_arms(experiment: Experiment, scale: str, claim: Claim, verdict: Verdict) -> Iterator[list[str]]:
    """The arms that stand side by side in one comparison of a claim or of its controls: of each cell the one that the
    test reads."""
    for test, test_verdict in _tests_of(claim, verdict):
        first = test.first_metric
        for comparison in test_verdict.comparisons:
            if len(comparison["cells"]) > 1:
                yield [experiment.arm(scale, cell, first) for cell in comparison["cells"]]


def _tests_of(claim: Claim, verdict: Verdict) -> list[tuple[ClaimTest, Verdict]]:
    """A claim's test and those of its controls, with their verdicts; a claim that was not run has no controls."""
    controls = zip(claim.controls, verdict.controls, strict=False)
    return [(claim.test, verdict), *((test, control.verdict) for test, control in controls)]


# ---- values that another metric chose ----


def _at_own_rates(claim: Claim, experiment: Experiment, scale: str, verdict: Verdict) -> Verdict:
    """The verdict, flagged where arms have values of a swept setting that another metric chose, or that lie at the edge
    of the grid. Nothing can be told at the edge, where values that another metric chose differ between arms that are
    compared, and where the metric was searched and chose another value than the arm has. A metric that was not
    searched has no value of its own: arms that all have one value are compared at it, with a flag."""
    flags: list[Flag] = []
    reasons: list[str] = []
    for cells, metric, first in _cells_read(experiment, _tests_of(claim, verdict)):
        swept = (_swept_arm(experiment, scale, cell, metric, first) for cell in cells)
        arms = list({(arm.owner.id, arm.cell): arm for arm in swept if arm is not None}.values())
        for_other = [arm for arm in arms if arm.chosen_by != metric]
        if for_other:
            values = ", ".join(f"{arm.cell} {arm.value}" for arm in arms)
            titles = dict.fromkeys(metric_in_words(arm.owner, str(arm.chosen_by)) for arm in for_other)
            differ = len({repr(arm.value) for arm in arms}) > 1
            by, title = " and ".join(titles), metric_in_words(arms[0].owner, metric)
            outvoted = [arm for arm in for_other if arm.own is not None]
            if differ:
                flags.append(Flag("rates differ", f"{arms[0].setting} was chosen by {by}: {values}"))
                reasons.append("the arms have values of a setting that another metric chose, and these differ")
            elif not outvoted:
                flags.append(Flag("rates", f"{arms[0].setting} was chosen by {by}: {values}; not searched for {title}"))
            if outvoted:
                values = ", ".join(f"{arm.cell} {arm.own} instead of {arm.value}" for arm in outvoted)
                flags.append(Flag("own rate", f"{title} chose another {arms[0].setting}: {values}"))
                reasons.append("the metric chose another value of a setting than the arms have")
        edge = [arm for arm in arms if arm.edge]
        at_edge = "{0.setting} of {0.cell} lies at the edge of the grid ({0.value})"
        flags += [Flag("edge", at_edge.format(arm)) for arm in edge]
        if edge:
            reasons.append("beyond the edge of the grid an arm may be better")
    if not flags:
        return verdict
    flagged = replace(verdict, flags=tuple(dict.fromkeys((*verdict.flags, *flags))))
    return _silenced(flagged, "; ".join(dict.fromkeys(reasons))) if reasons else flagged


def _at_best_rates(claim: Claim, experiment: Experiment, scale: str, verdict: Verdict, records: Records) -> Verdict:
    """The verdict; nothing can be told from an arm whose reported runs do better, in the metric that chose its value of
    a swept setting, at a value that another metric chose: the search has missed the best value."""
    sweep, values, flags = experiment.sweep, experiment.chosen(scale), dict[Flag, None]()
    if sweep is None or sweep.scale != scale:
        return verdict
    for cells, metric, _ in _cells_read(experiment, [(claim.test, verdict)]):
        for cell in cells if metric in sweep.metrics else ():
            chosen = experiment.arm(scale, cell, metric)
            for other in (arm for arm in values if cell_of_arm(arm) == cell_of_arm(cell)):
                if other != chosen and (figures := _better_at(experiment, metric, chosen, other, records)):
                    text = f"{cell} does better at {values[other]} than at its {values[chosen]}: {figures}"
                    flags[Flag("missed", f"the search for {sweep.setting} has missed the best value ({text})")] = None
    flagged = replace(verdict, flags=(*verdict.flags, *flags))
    return _silenced(flagged, "an arm does better at another of its values of a swept setting") if flags else verdict


def _better_at(experiment: Experiment, metric: str, chosen: str, other: str, records: Records) -> str:
    """The two means, where the runs of another arm are better in a metric in every seed, or on the whole (Student's t,
    paired by seed); "" where they are not, or for fewer than FEWEST_SEEDS seeds."""
    assert experiment.sweep is not None
    values: list[list[float]] = []
    for seed in sorted({*records.get(chosen, {})} & {*records.get(other, {})}):
        with suppress(NoValue):
            values.append([number_of(records[arm][seed], metric, experiment.measures) for arm in (chosen, other)])
    if len(values) < FEWEST_SEEDS:
        return ""
    sign = 1 if experiment.sweep.better_of(metric) == "lower" else -1
    ours, theirs = np.array(values).T
    test, better = paired_t(ours, theirs), sign * (ours - theirs)
    clear = test.p is not None and test.p < LEVEL and better.mean() > 0
    won = int((better > 0).sum())
    if not clear and won < len(values):
        return ""
    means = f"{theirs.mean():.3g} and {ours.mean():.3g}"
    return f"{means} in {metric_in_words(experiment, metric)}, better in {won} of {len(values)} seeds"


def _cells_read(
    experiment: Experiment, tests: Iterable[tuple[ClaimTest, Verdict]]
) -> dict[tuple[tuple[str, ...], str, str], None]:
    """(cells that stand side by side, metric, the first metric of the test, whose runs are read) of a claim's test and
    of its controls, each once. A control of one cell asks what the arm does at the rate that it has, so that no other
    metric is in its place; and so does a metric of what training left behind, such as masks, which is no result that a
    rate could be chosen by, unless one was."""
    combinations: dict[tuple[tuple[str, ...], str, str], None] = {}
    searched = experiment.sweep.metrics if experiment.sweep is not None else []
    for i, (test, verdict) in enumerate(tests):
        first = test.first_metric
        for metric in (name for name in test.metrics if name in searched or reads_results(name, experiment.measures)):
            read = test.cells_read(metric)
            for comparison in verdict.comparisons:
                cells = tuple(cell for cell in comparison["cells"] if read is None or cell in read)
                if len(cells) > 1 or (cells and i == 0):
                    combinations[cells, metric, first] = None
    return combinations


@dataclass(frozen=True)
class _SweptArm:
    """An arm with a value that was searched, for itself or for a run that it starts from. owner: the experiment that
    searched it. cell: for which one. chosen_by: the metric that chose the value. own: the value that the judged metric
    chose, None if it was not searched. edge: whether the value lies at the edge of the grid."""

    owner: Experiment
    setting: str
    cell: str
    value: Scalar
    chosen_by: str
    own: Scalar | None
    edge: bool


def _swept_arm(experiment: Experiment, scale: str, cell: str, metric: str, first: str) -> _SweptArm | None:
    """The arm whose run is read from a cell for a metric; None if nothing was searched for it. first: the first metric
    of the test, which decides whose run. A run of another experiment has the value that the first metric chose there.
    """
    owner, name = experiment, cell
    if cell in (places := experiment.at(scale).places if scale in experiment.scales else {}):
        owner, name = experiment.other(places[cell][0]), places[cell][1]
    if owner.sweep is None:
        return None
    arm = owner.arm(scale, name, first) if owner is experiment else name
    swept, value = next(((origin, owner.chosen(scale)[origin]) for origin in _line(owner, scale, arm)), (None, None))
    if swept is None or value is None:
        return None
    sweep = owner.sweep
    by_metric = sweep.values_of(metric).get(cell_of_arm(swept))
    chosen_by = metric if by_metric == value else sweep.metrics[0]
    name = cell if swept == arm else cell_of_arm(swept)
    return _SweptArm(owner, sweep.setting, name, value, chosen_by, by_metric, value in edges(sweep.grid))


def _line(experiment: Experiment, scale: str, arm: str) -> Iterator[str]:
    """The arms with a searched value among an arm and those that its run starts from, the nearest first."""
    cells, left = experiment.cells_at(scale), [arm]
    while left:
        name = left.pop(0)
        if name in experiment.chosen(scale):
            yield name
        left += cells[name].parents if name in cells else []
