"""`hybridlab list`: experiments and what has been run of them; architectures, sizes, scales, fine-tuning tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError, nearest
from hybridlab.lab.cli import completion
from hybridlab.lab.cli import options as lab
from hybridlab.messages import say
from hybridlab.registry import FINETUNE_TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from hybridlab.lab.papers.claim_list import Listed
    from hybridlab.lab.papers.listing import Filter


def list_entries(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="Only what has each WORD in its id, paper or title (--claims: in its id, sentence or place); * and ? "
            "match anything.",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Only tables, or only figures.", autocompletion=completion.kinds)
    ] = None,
    paper: Annotated[
        str | None, typer.Option(help="Only experiments of this paper.", autocompletion=completion.papers)
    ] = None,
    done: Annotated[
        bool | None, typer.Option("--done/--not-done", help="Only what is done at some scale, or at none.")
    ] = None,
    claims: Annotated[
        bool, typer.Option("--claims", help="List the papers' sentences that are tested here, with their verdicts.")
    ] = False,
    verdict: Annotated[
        str | None, typer.Option(help="Only claims with this verdict.", autocompletion=completion.verdicts)
    ] = None,
    undecided: Annotated[
        bool,
        typer.Option(
            "--undecided",
            help="Only claims that are not decided, with what stands in the way, ordered by what deciding them costs.",
        ),
    ] = False,
    archs: Annotated[bool, typer.Option("--archs", help="List the architectures, for --arch.")] = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="List the sizes, for --size, with their parameters.")] = False,
    scales: Annotated[bool, typer.Option("--scales", help="List the scales, with what each can show.")] = False,
    finetune_tasks: Annotated[
        bool,
        typer.Option(
            "--finetune-tasks", help="List the tasks of `finetune --task`, with their measures, main one first."
        ),
    ] = False,
    results_dir: lab.ResultsDir = lab.RESULTS,
    as_json: o.AsJson = False,
) -> None:
    """List experiments, with their scales; or claims, architectures, sizes, scales or fine-tuning tasks.

    At a scale with a ✓ a table or figure of your own in RESULTS-DIR was made of every run of the experiment, at one
    with a ○ the published one. A claim has the verdict of its page at the largest scale at which there is one.
    """
    from hybridlab.lab.papers.ids import matches

    plain = {"archs": archs, "sizes": sizes, "scales": scales, "finetune_tasks": finetune_tasks}
    chosen = [what for what, is_set in plain.items() if is_set]
    _check(context, [*(["claims"] if claims else []), *chosen])
    for what in chosen:
        _show(what, [row for row in _rows(what) if matches(words or (), (row["name"], row["summary"]))], as_json)
        return
    from hybridlab.lab.papers.listing import Filter, entries

    filters = Filter(tuple(words or ()), kind, paper, done)
    if claims:
        _list_claims(results_dir, filters, verdict, undecided, as_json)
        return
    listed = entries(results_dir, filters)
    marked = [{**entry, "scales": _marked(entry)} for entry in listed]
    _show("entries", listed if as_json else marked, as_json, ("id", "title", "scales"))
    if listed and not as_json:
        say(f"✓: your own in {results_dir}, ○: published")


def _marked(entry: dict[str, Any]) -> str:
    """The scales of an experiment, with a mark at those that are done."""
    marks = {**dict.fromkeys(entry["done"], " ✓"), **dict.fromkeys(entry["published"], " ○")}
    return " ".join(scale + marks.get(scale, "") for scale in entry["scales"])


_OF_EXPERIMENTS = ("kind", "paper", "done", "results_dir", "verdict", "undecided")
WITHOUT_EFFECT = {"claims": ("done",), **dict.fromkeys(("archs", "sizes", "scales", "finetune_tasks"), _OF_EXPERIMENTS)}
"""The options that change nothing about a list."""


def _check(context: typer.Context, names: list[str]) -> None:
    """UserError for two lists at once, and for an option without an effect on the list."""
    written = o.written(context)
    lists = [written[name] for name in names]
    if len(lists) > 1:
        raise UserError(f"{lists[0]} and {lists[1]} are two lists; ask for one of them at a time")
    for name in ("verdict", "undecided"):
        if not lists and name in written:
            raise UserError(f"{written[name]} chooses among claims; add --claims")
    for name in WITHOUT_EFFECT[names[0]] if names else ():
        if name in written:
            raise UserError(f"{written[name]} has no effect on {lists[0]}; leave it out")


def _list_claims(results_dir: Path, filters: Filter, verdict: str | None, undecided: bool, as_json: bool) -> None:
    """The claims below the ids of their experiments, then how many there are of each kind and verdict."""
    from hybridlab.lab.papers import claim_list
    from hybridlab.lab.papers.ids import VERDICTS

    if verdict not in (None, *VERDICTS):
        raise UserError(f"--verdict {verdict}: there is no such verdict; {nearest(verdict, list(VERDICTS))}")
    if undecided:
        from hybridlab.lab.cli.evidence import list_undecided
        from hybridlab.lab.papers.obstacles import UNDECIDED

        if verdict not in (None, *UNDECIDED):
            words = ", ".join(UNDECIDED)
            raise UserError(f"--verdict {verdict} is decided, so that --undecided leaves nothing; take one of {words}")
        list_undecided(results_dir, filters, verdict, as_json)
        return
    listed = claim_list.claims(results_dir, filters, verdict)
    counted = claim_list.counts(listed)
    again = len(listed) - len(claim_list.with_vote(listed))
    if as_json:
        total = {**claim_list.totals(counted), "repeated": again}
        papers = claim_list.by_paper(listed)
        claims = [asdict(claim) for claim in listed]
        o.print_json({"claims": claims, "counts": counted, "papers": papers, "total": total})
    elif not listed:
        say("list: no claim matches; `hybridlab list --claims` without words and filters shows all")
    else:
        more = f"; {again} more ask the same of the same runs" if again else ""
        _show_claims(listed, claim_list.in_words(claim_list.totals(counted)) + more)
        for read, number in Counter(claim.read for claim in listed if claim.read).items():
            say(f"verdicts of {number:,} of these claims are of pages that are {read}")


def _show_claims(claims: list[Listed], last: str) -> None:
    """Verdict, scale (or what the claim is about, if no run was judged) and sentence, wrapped to the terminal; behind
    a sentence that fails, how the numbers differ from it; then its marks.

    last: the line at the end, after one for each paper where there are several."""
    from hybridlab.lab.papers import claim_list

    rows = []
    for claim in claims:
        direction = (
            f": {claim.direction}" if claim.verdict in ("fails", "opposite observed") and claim.direction else ""
        )
        marks = f" [{'; '.join(claim.marks)}]" if claim.marks else ""
        text = f"{claim.text} ({claim.source}){direction}{marks}"
        rows.append((claim.id, claim.verdict, claim.scale or claim.about, text))
    lab.print_groups(rows)
    out = o.console()
    out.print()
    papers = claim_list.by_paper(claims)
    if len(papers) > 1:
        for paper, total in papers.items():
            out.print(claim_list.paper_in_words(paper, total))
        out.print()
    out.print(last)


def _rows(what: str) -> list[dict[str, Any]]:
    """What is listed by name. Of sizes, parameters is the exact number of scalars of the plain stack."""
    if what == "finetune_tasks":
        tasks = [FINETUNE_TASKS.get(name) for name in FINETUNE_TASKS.names()]
        return [{"name": task.name, "summary": task.title, "metrics": list(task.metrics)} for task in tasks]
    from hybridlab.config.loading import summaries
    from hybridlab.config.resolve import resolve
    from hybridlab.lab.papers.ids import SAYS
    from hybridlab.models.ledger.parameters import count_parameters

    rows = []
    for name, summary in (SAYS if what == "scales" else summaries(what.removesuffix("s"))).items():
        exact = {"parameters": count_parameters(resolve("vanilla", name).shape).total} if what == "sizes" else {}
        rows.append({"name": name, **exact, "summary": summary})
    return rows


def _show(what: str, rows: list[dict[str, Any]], as_json: bool, columns: tuple[str, ...] | None = None) -> None:
    """A table of some columns, by default all of the rows' keys; or all of it as JSON."""
    if as_json:
        o.print_json({what: rows})
        return
    if not rows:
        say("list: nothing matches; `hybridlab list` without words and filters shows all")
        return
    columns, table = columns or tuple(rows[0]), o.table()
    for name in columns:
        table.add_column(
            name,
            no_wrap=name in ("id", "name"),
            justify="right" if name == "parameters" else "left",
            max_width=28 if name == "scales" else None,
        )
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    o.console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
