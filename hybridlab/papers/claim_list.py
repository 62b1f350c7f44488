"""The list of the papers' sentences that are tested here, each with its verdict at the best scale at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from pathlib import Path
from typing import Any

from hybridlab.papers.calls import CLAIM_KINDS
from hybridlab.papers.cells import Recorded, benchmark_record, record_files, recorded_seeds, records_of, runs_of
from hybridlab.papers.claims.expression import reads_print
from hybridlab.papers.claims.judge import judge
from hybridlab.papers.claims.verdict import Verdict
from hybridlab.papers.experiment import Claim, Experiment
from hybridlab.papers.ids import PRETRAINED, SCALES, VERDICTS, matches
from hybridlab.papers.listing import Filter
from hybridlab.papers.loading import all_experiments
from hybridlab.papers.obstacles import DESK, Obstacle, in_the_way
from hybridlab.papers.plans import history
from hybridlab.papers.verdicts import verdicts
from hybridlab.papers.votes import repeated
from hybridlab.store.results import origin

ABOUT = ("printed", "exact", "transcribed", "trained", "timed", "not here")
"""What a claim is tested on. printed: arithmetic on numbers that the paper prints. exact: what follows from shapes and
definitions. transcribed: the paper's own words in a table. trained, timed: runs and benchmarks made here. not here:
nothing at hand."""


@dataclass(frozen=True)
class Listed:
    """A claim in the list. id: of its experiment. source: its place in the paper. about: see ABOUT. scale: that of the
    runs it was judged on; None for a claim about the print, and where nothing has been run. read: whose records those
    are, your own or the published ones. number: on its page. same_as: the id and number of an earlier claim that asks
    the same of the same runs. observed: what a pretrained model shows, beside the verdict on training: see `Verdict`;
    None where it was not measured. in_the_way: None for a claim that is decided. The others: see `Verdict`, with the
    evidence in its short form."""

    id: str
    paper: str
    text: str
    source: str
    about: str
    verdict: str
    direction: str
    scale: str | None
    evidence: str
    note: str
    n: int | None
    n_needed: int | None
    minutes_needed: float | None
    flags: tuple[dict[str, str], ...] = ()
    read: str | None = None
    number: int = 0
    same_as: tuple[str, int] | None = None
    observed: str | None = None
    in_the_way: Obstacle | None = None

    @property
    def marks(self) -> list[str]:
        """What stands behind its sentence: that the verdict hangs on one seed, that another claim has the vote, and
        what a pretrained model shows."""
        same = "" if self.same_as is None else "as claim {1} of {0}".format(*self.same_as)
        hangs = next((flag["text"].partition(":")[0] for flag in self.flags if flag["code"] == "seed"), "")
        seen = "" if self.observed is None else f"in a pretrained model: {self.observed}"
        return [mark for mark in (hangs, same, seen) if mark]


def claims(results_dir: Path, wanted: Filter, verdict: str | None = None) -> list[Listed]:
    """The claims of all experiments in their order, those that pass the filter; see `claims_of`."""
    return claims_of(all_experiments(wanted.paper), results_dir, wanted, verdict)


def claims_of(
    experiments: Iterable[Experiment],
    results_dir: Path,
    wanted: Filter,
    verdict: str | None = None,
    scale: str = DESK,
) -> list[Listed]:
    """The claims of experiments, those that pass the filter. scale: that of whose plans `in_the_way` speaks.

    wanted: kind and paper are those of the experiment; each word stands in its id, its paper, the claim or its place.
    verdict: only claims with this one.
    """
    listed, recorded = list[Listed](), recorded_seeds(results_dir)
    for experiment in experiments:
        if wanted.kind in (None, experiment.kind):
            chosen = [claim for claim in experiment.claims if matches(wanted.words, _places(experiment, claim))]
            listed += _judged(experiment, chosen, results_dir, recorded, scale) if chosen else []
    return [claim for claim in listed if verdict in (None, claim.verdict)]


def with_vote(listed: Iterable[Listed]) -> list[Listed]:
    """The claims without those that ask the same of the same runs as another one in the list."""
    listed = [*listed]
    again = repeated({(one.id, one.number): ((one.verdict, one.scale), one.same_as) for one in listed})
    return [one for one in listed if (one.id, one.number) not in again]


def counts(listed: Iterable[Listed]) -> dict[str, dict[str, int]]:
    """about → verdict → how many claims, with a row "all"; verdicts in the order of VERDICTS. One run has one vote."""
    table: dict[str, Counter[str]] = {about: Counter() for about in (*ABOUT, "all")}
    for claim in with_vote(listed):
        for row in (claim.about, "all"):
            table[row][claim.verdict] += 1
    return {about: {word: row[word] for word in VERDICTS if row[word]} for about, row in table.items() if row}


def totals(counted: dict[str, dict[str, int]]) -> dict[str, Any]:
    """claims: how many there are; about and verdicts: how many of each. counted: see `counts`."""
    about = {name: sum(row.values()) for name, row in counted.items() if name != "all"}
    return {"claims": sum(about.values()), "about": about, "verdicts": counted.get("all", {})}


def by_paper(listed: Iterable[Listed]) -> dict[str, dict[str, Any]]:
    """See `verdicts_by_paper`. One run has one vote."""
    return verdicts_by_paper((claim.paper, claim.verdict, claim.flags) for claim in with_vote(listed))


def verdicts_by_paper(claims: Iterable[tuple[str, str, Sequence[Mapping[str, str]]]]) -> dict[str, dict[str, Any]]:
    """Paper → how many claims it has, how many of each verdict, and how many hang on one seed. claims: of each its
    paper, verdict and flags."""
    found: dict[str, dict[str, Any]] = {}
    for paper, verdict, flags in claims:
        own = found.setdefault(paper, {"claims": 0, "verdicts": Counter(), "hang_on_one_seed": 0})
        own["claims"] += 1
        own["verdicts"][verdict] += 1
        own["hang_on_one_seed"] += any(flag["code"] == "seed" for flag in flags)
    for own in found.values():
        own["verdicts"] = {word: own["verdicts"][word] for word in VERDICTS if own["verdicts"][word]}
    return found


def paper_in_words(paper: str, total: dict[str, Any]) -> str:
    """What `by_paper` says of a paper, on one line."""
    words = ", ".join(f"{n:,} {word}" for word, n in total["verdicts"].items())
    hang = total["hang_on_one_seed"]
    hangs = f"; {hang:,} hang{'s' * (hang == 1)} on one seed" if hang else ""
    return f"{paper}: {total['claims']:,} claim{'s' * (total['claims'] != 1)}: {words}{hangs}"


def in_words(total: dict[str, Any]) -> str:
    """Totals on one line."""
    about = {"printed arithmetic" if name == "printed" else name: n for name, n in total["about"].items()}
    parts = (", ".join(f"{n:,} {word}" for word, n in part.items()) for part in (about, total["verdicts"]))
    return f"{total['claims']:,} claim{'s' * (total['claims'] != 1)}: {'; '.join(parts)}"


def _places(experiment: Experiment, claim: Claim) -> tuple[str, str, str, str]:
    return experiment.id, experiment.paper, claim.text, claim.source


def _judged(
    experiment: Experiment, chosen: list[Claim], results_dir: Path, recorded: Recorded, of_plans: str
) -> Iterator[Listed]:
    """The claims with their verdicts. Records are read only if some claim cannot be decided without any."""
    by_scale = _by_scale(experiment, results_dir, reversed(SCALES), recorded)
    of_pretrained = [there for _, _, there in _by_scale(experiment, results_dir, [PRETRAINED], recorded)]
    for claim in chosen:
        found, scale, read, number = judge(claim, experiment, {}), None, None, experiment.claims.index(claim)
        about = about_of(claim, experiment, found)
        if about in ("trained", "timed"):
            by_scale, tried = tee(by_scale)  # a smaller scale is read only where a larger one has no verdict
            run = ((there[number], name, whose) for name, whose, there in tried)
            found, scale, read = next((one for one in run if one[0].word != "not run"), (found, None, None))
        flags = tuple({"code": flag.code, "text": str(flag)} for flag in found.flags)
        needed = (found.n, found.n_needed, found.minutes_needed)
        places = _places(experiment, claim)
        listed = Listed(
            *places, about, found.word, found.direction, scale, found.short, found.note, *needed, flags, read
        )
        words = [there[number].word for there in of_pretrained if there[number].word != "not run"]
        seen = words[0] if words and about == "trained" else None
        same, waits = found.same_place(experiment.id), in_the_way(experiment, claim, found, about, scale, of_plans)
        yield replace(listed, number=number + 1, same_as=same, observed=seen, in_the_way=waits)


def about_of(claim: Claim, experiment: Experiment, without: Verdict | None = None) -> str:
    """One of ABOUT. without: the verdict without any record, which a claim about runs cannot have, if it is known."""
    name = claim.test["kind"]
    if name == "not_here":
        return "not here"
    if reads_print(claim.test):
        return "transcribed" if _in_words_alone(claim, experiment) else "printed"
    if (without or judge(claim, experiment, {})).holds is not None:
        return "exact"
    return "timed" if experiment.benchmark is not None else "trained"


def _in_words_alone(claim: Claim, experiment: Experiment) -> bool:
    """Whether every column that the test reads holds the paper's words."""
    references = CLAIM_KINDS.get(claim.test["kind"]).references(claim.test)
    columns = [
        experiment.other(one.elsewhere or experiment.id).column(one.name) for one in references if one.to == "column"
    ]
    return bool(columns) and all(column.kind == "transcribed" for column in columns)


def _by_scale(
    experiment: Experiment, results_dir: Path, scales: Iterable[str], recorded: Recorded
) -> Iterator[tuple[str, str, list[Verdict]]]:
    """(scale, whose records were read, the verdicts on all claims there) of each of these scales that has records."""
    for scale in scales:
        records = records_of(experiment, scale, results_dir, recorded=recorded)
        benchmark = benchmark_record(experiment, scale, results_dir)
        if records or benchmark:
            plans = history(experiment.id, scale, results_dir)
            read = " and ".join(sorted(origin(results_dir, record_files(runs_of(records, benchmark))), reverse=True))
            yield scale, read, verdicts(experiment, scale, records, benchmark, plans)
