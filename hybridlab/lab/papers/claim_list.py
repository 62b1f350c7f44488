"""The list of the papers' sentences that are tested here, each with its verdict at the best scale at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.experiment import Claim, Experiment
from hybridlab.lab.papers.ids import ABOUT, VERDICTS, matches
from hybridlab.lab.papers.listing import Filter
from hybridlab.lab.papers.loading import all_experiments
from hybridlab.lab.papers.obstacles import DESK, Obstacle, in_the_way
from hybridlab.lab.papers.pages import Entry, pages_in, same_place
from hybridlab.lab.papers.votes import repeated


@dataclass(frozen=True)
class Listed:
    """A claim in the list. id: of its experiment. source: its place in the paper. about: see ABOUT. scale: that of the
    runs it was judged on; None for a claim about the print, and where nothing has been run. read: whose page has the
    verdict, your own or the published one. number: on its page. same_as: the id and number of an earlier claim that
    asks the same of the same runs. observed: what a pretrained model shows, beside the verdict on training: see
    `Verdict`; None where it was not measured. in_the_way: None for a decided claim. The others: see `Verdict`, with the
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
        observed = "" if self.observed is None else f"in a pretrained model: {self.observed}"
        return [mark for mark in (hangs, same, observed) if mark]


def claims(results_dir: Path, criteria: Filter, verdict: str | None = None) -> list[Listed]:
    """The claims of all experiments in their order, those that pass the filter; see `claims_of`."""
    return claims_of(all_experiments(criteria.paper), results_dir, criteria, verdict)


def claims_of(
    experiments: Iterable[Experiment],
    results_dir: Path,
    criteria: Filter,
    verdict: str | None = None,
    scale: str = DESK,
) -> list[Listed]:
    """The claims of experiments, those that pass the filter, with the verdicts of their pages. scale: that of whose
    plans `in_the_way` speaks.

    criteria: kind and paper are those of the experiment; each word stands in its id, its paper, the claim or its place.
    verdict: only claims with this one.
    """
    chosen = [experiment for experiment in experiments if criteria.kind in (None, experiment.kind)]
    pages = {entry.id: entry for entry in pages_in(results_dir, {experiment.id for experiment in chosen})}
    listed = (
        _listed(experiment, number, claim, pages.get(experiment.id), scale)
        for experiment in chosen
        for number, claim in enumerate(experiment.claims, 1)
        if matches(criteria.words, _places(experiment, claim))
    )
    return [claim for claim in listed if verdict in (None, claim.verdict)]


def with_vote(listed: Iterable[Listed]) -> list[Listed]:
    """The claims without those that ask the same of the same runs as another one in the list."""
    listed = [*listed]
    again = repeated({(claim.id, claim.number): ((claim.verdict, claim.scale), claim.same_as) for claim in listed})
    return [claim for claim in listed if (claim.id, claim.number) not in again]


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
    summaries: dict[str, dict[str, Any]] = {}
    for paper, verdict, flags in claims:
        summary = summaries.setdefault(paper, {"claims": 0, "verdicts": Counter(), "hang_on_one_seed": 0})
        summary["claims"] += 1
        summary["verdicts"][verdict] += 1
        summary["hang_on_one_seed"] += any(flag["code"] == "seed" for flag in flags)
    for summary in summaries.values():
        summary["verdicts"] = {word: summary["verdicts"][word] for word in VERDICTS if summary["verdicts"][word]}
    return summaries


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


def _listed(experiment: Experiment, number: int, claim: Claim, entry: Entry | None, of_plans: str) -> Listed:
    """A claim with the verdict of its page; where no page has it, with what can be said without runs."""
    judged = entry.judged(claim.text, claim.source) if entry else None
    page, data = judged or (None, judge(claim, experiment, {}).as_json())
    with nullcontext() if page is None else page.said():
        about = about_of(claim, experiment) if page is None else data["about"]
        ran = page if about in ("trained", "timed") and data["verdict"] != "not run" else None
        scale, read = (None, None) if ran is None else (ran.scale, ran.whose)
        controls = {} if page is None else {name: control["text"] for name, control in page.data["controls"].items()}
        return Listed(
            *_places(experiment, claim),
            about,
            data["verdict"],
            data["direction"],
            scale,
            data["evidence"],
            data["note"],
            data["n"],
            data["n_needed"],
            data["minutes_needed"],
            tuple(data["flags"]),
            read=read,
            number=number,
            same_as=None if page is None else same_place(experiment.id, data),
            observed=entry.observed(claim.text, claim.source) if entry and page and about == "trained" else None,
            in_the_way=in_the_way(experiment, claim, data, about, scale, of_plans, controls),
        )


def about_of(claim: Claim, experiment: Experiment) -> str:
    """One of ABOUT. A claim about runs has no verdict without a record."""
    if claim.test.kind == "not_here":
        return "not here"
    if claim.test.reads_print:
        return "transcribed" if _in_words_alone(claim, experiment) else "printed"
    if judge(claim, experiment, {}).holds is not None:
        return "exact"
    return "timed" if experiment.benchmark is not None else "trained"


def _in_words_alone(claim: Claim, experiment: Experiment) -> bool:
    """Whether every column that the test reads holds the paper's words."""
    mentions = [reference for reference in claim.test.references if reference.to == "column"]
    columns = [experiment.other(reference.elsewhere or experiment.id).column(reference.name) for reference in mentions]
    return bool(columns) and all(column.kind == "transcribed" for column in columns)
