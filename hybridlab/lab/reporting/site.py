"""All results as pages of HTML in one folder, which opens from the disk: no server, no network, scripts only to sort
and to search.

    hybridlab report --site    # results/site/index.html

The pages are made of table.json, figure.json and the records behind them, one's own before the published ones.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from io import BytesIO
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from markdown_it import MarkdownIt
from markupsafe import Markup
from rich.progress import MofNCompleteColumn

from hybridlab.bars import WithBar
from hybridlab.errors import UserError
from hybridlab.files import new_folder, write_bytes, write_text
from hybridlab.lab.papers import audit
from hybridlab.lab.papers.claim_list import verdicts_by_paper
from hybridlab.lab.papers.experiment import BENCHMARK
from hybridlab.lab.papers.ids import ABOUT, EVERY_SCALE, SAYS, VERDICTS, shipped
from hybridlab.lab.papers.loading import all_experiments
from hybridlab.lab.papers.pages import Entry, Page, pages_in, same_place
from hybridlab.lab.papers.votes import repeated
from hybridlab.lab.reporting.claims import DASH, HEADS, differ_lines, lines_of, short_form, shown_claims
from hybridlab.lab.reporting.claims import draw as draw_claims
from hybridlab.lab.reporting.entry_data import caption, is_table
from hybridlab.lab.reporting.figures import draw as draw_figure
from hybridlab.lab.reporting.figures import has_numbers, marks_in_words
from hybridlab.lab.reporting.svg import dark_colours, svg_of
from hybridlab.lab.reporting.table import below, cell_text, folded, parts, tally_text
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.record import BenchmarkRecord, read_benchmark, read_record, record_name
from hybridlab.training.store.results import find, listed

if TYPE_CHECKING:
    from hybridlab.lab.papers.experiment import Column

TEMPLATES = Path(__file__).parent / "templates"
STYLE = "site.css"
"""A folder with this file is a site, which a new one may replace."""
SCRIPTS = ("sortable.min.js", "search.js")
PICTURE = "figure.png"
THUMB = 320
"""Pixels of a small picture's width on the first page."""
KINDS_OF_CLAIMS = {
    "Sentences about what is printed, or can be counted": ("printed", "exact", "transcribed"),
    "Sentences about trained models, on the small models that were trained here": ("trained", "timed"),
    "Sentences that nothing at hand can test": ("not here",),
}
"""How the first page counts claims by what they are tested on."""
OF_A_PAPER = re.compile(r"-(table|fig)\d+$")
"""The end of the id of what a paper has; the others are this project's, or one's own."""
NO_SCALE = "none"
"""In the list of claims, where no run is behind a verdict."""
FIRST = 3
"""Rows and columns of a table on the first page."""


# ---- what there is ----

_FLAGS = HEADS.index("flags")


@dataclass(frozen=True)
class Run:
    """What a page says of a record."""

    hash: str
    machine: str
    code: str
    started: str = ""
    minutes: float | None = None
    steps: int | None = None
    tokens: int | None = None
    flops: float | None = None
    parameters: int | None = None
    command: str = ""


def _run(name: str, results_dir: Path) -> Run | None:
    """The record of this name; None where there is none any more."""
    path = find(results_dir, record_name(name))
    record = read_benchmark(path) if name.startswith("benchmark-") else read_record(path)
    if record is None:
        return None
    threads = record.machine.get("threads")
    of = f", {threads} thread{'s' * (threads != 1)}" if threads else ""
    machine = f"{record.machine.get('name', '')} ({record.machine.get('device', '')}{of})"
    run = Run(record.hash, machine, (record.git or "")[:9])
    if isinstance(record, BenchmarkRecord):
        return run
    return replace(
        run,
        started=(record.started or "")[:10],
        minutes=record.seconds / 60,
        steps=record.steps,
        tokens=record.tokens,
        flops=record.flops,
        parameters=record.parameters.get("total"),
        command=record.command or "",
    )


def _drawn(page: Page, name: str) -> tuple[str, set[str]] | None:
    """A page's figure, or the differences behind its claims, as SVG with its colours, see `svg_of`; None without
    numbers to draw, and of a kind of figure that a plug-in has which is not here."""
    with page.said():
        data, title = page.data, page.data["title"]
        if is_table(data):
            about = f"{title}: differences behind the claims, with intervals"
            return svg_of(lambda: draw_claims(data, lines), name, about) if (lines := lines_of(data)) else None
        if data["kind"] not in FIGURE_KINDS or not has_numbers(data):
            return None
        # The page says what the picture is.
        alone = {**{key: value for key, value in data.items() if key != "id"}, "shown": ""}
        return svg_of(lambda: draw_figure(alone), name, title)


# ---- the site ----


def write_site(out: Path, results_dir: Path) -> dict[str, Any]:
    """Write the site into a folder; its number of pages, of entries, and its bytes. UserError where there are no
    results, and for a folder with other files."""
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / STYLE).exists()):
        raise UserError(f"--out {out}: there are other files; give a folder that is new, empty, or an older site")
    entries = pages_in(results_dir)
    if not entries:
        raise UserError(
            f"report --site: there are no pages in {results_dir}; `hybridlab reproduce ID` makes one, and "
            "--results-dir names another folder"
        )
    taken = {f"{path.stem}.html" for path in TEMPLATES.glob("*.html")} | {f"audit-{one.paper}.html" for one in entries}
    for entry in entries:
        for page in entry.pages:
            if (file := entry.file(page)) in taken:
                raise UserError(f"{page.folder}: the site has another page {file}; give the entry another id")
            taken.add(file)
    with new_folder(out, digests=False) as folder:
        site = _Site(folder, entries, results_dir)
        site.write()
        sizes = [path.stat().st_size for path in folder.iterdir()]
    return {"folder": str(out), "entries": len(entries), "pages": site.pages, "bytes": sum(sizes)}


_AT_ONCE = 4
"""How many pages a process draws in turn."""


class _Site:
    """One writing of the site. folder: the new files'."""

    def __init__(self, folder: Path, entries: list[Entry], results_dir: Path) -> None:
        self.folder, self.entries, self.results_dir = folder, entries, results_dir
        self.pages = 0
        self.colours: set[str] = set()
        self.run = cache(partial(_run, results_dir=results_dir))
        self.methods = {path.stem: path.read_text(encoding="utf-8") for path in shipped("docs/methods").glob("*.md")}
        """Paper → its page in docs/methods."""
        self.markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self.templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        self.templates.filters["inline"] = lambda text: _flat(self.markdown.renderInline(text))
        self.templates.filters["order"] = _order
        self.templates.globals.update(verdict_sign=_SIGNS.__getitem__, scales_say=SAYS)

    def write(self) -> None:
        """All files; the style sheet last, since it has the colours of all figures."""
        work = [(entry, page) for entry in self.entries for page in entry.pages]
        with WithBar(True, 30, MofNCompleteColumn()) as display, ExitStack() as stack:
            task = display.bar.add_task("pages", total=len(work), note="") if display.bar else None
            drawn: Iterator[tuple[str, set[str]] | None]
            every = [page for _, page in work], [entry.id for entry, _ in work]
            if len(work) <= _AT_ONCE:  # as one process would, but for its start
                drawn = map(_drawn, *every)
            else:
                # Most of the time goes into drawing. The processes start afresh, whatever this one has loaded.
                pool = stack.enter_context(ProcessPoolExecutor(mp_context=get_context("spawn")))
                drawn = pool.map(_drawn, *every, chunksize=_AT_ONCE)
            for entry, page in work:
                with page.said():
                    self._write_entry(entry, page, next(drawn))
                if display.bar and task is not None:
                    display.bar.update(task, advance=1, note=entry.id)
        checks = audit.audit(all_experiments())
        claims = [*self._claims()]
        votes = _votes(claims)
        self._page("index", "hybridlab", papers=self._papers(votes), totals=self._totals(votes, checks))
        self._page("claims", "Claims", claims=claims, choices=self._choices())
        self._write_audit(checks)
        self._page("methods", "Methods", methods=self._methods())
        rule = (shipped("docs") / "evidence.md").read_text(encoding="utf-8").partition("\n\n")
        self._page("verdicts", rule[0].removeprefix("# "), text=Markup(_flat(self.markdown.render(rule[2]), lower=0)))
        self._page("runs", "What has been run", tables=self._run_tables())
        for name in SCRIPTS:
            shutil.copy(TEMPLATES / name, self.folder / name)
        style = (TEMPLATES / STYLE).read_text(encoding="utf-8")
        write_text(self.folder / STYLE, style.replace("/* colours of figures */", dark_colours(self.colours)))

    def _page(self, template: str, title: str, *, file: str | None = None, **content: Any) -> None:
        try:
            text = self.templates.get_template(f"{template}.html").render(title=title, here=template, **content)
        except UndefinedError as error:  # a name that the data lack
            raise LookupError(str(error)) from None
        write_text(self.folder / (file or f"{template}.html"), text)
        self.pages += 1

    # ---- an entry ----

    def _write_entry(self, entry: Entry, page: Page, drawn: tuple[str, set[str]] | None) -> None:
        """drawn: its figure and the figure's colours; see `_drawn`."""
        data, table = page.data, is_table(page.data)
        picture, copied = None, ""
        if drawn is not None:
            self.colours |= drawn[1]
            picture = Markup(drawn[0])
        elif (page.folder / PICTURE).exists():
            copied = f"{Path(entry.file(page)).stem}.{PICTURE}"
            shutil.copy(page.folder / PICTURE, self.folder / copied)
        self._page(
            "entry",
            f"{data['id']}: {data['title']}",
            file=entry.file(page),
            entry=entry,
            data=data,
            page=page,
            about=caption(data),
            tally=tally_text(data) if table else "",
            parts=parts(data) if table else [],
            printed=_printed(data) if table else None,
            below=[*below(data, see_printed="")] if table else [],
            missing=_missing(data),
            unit=data.get("unit", "seed"),
            elsewhere=[(claim_page, number) for claim_page, number, _ in entry.claims if claim_page is not page]
            if page is entry.best
            else [],
            shown="" if table else data["shown"],
            marks=[] if table else marks_in_words(data),
            picture=picture,
            copied=copied,
            heads=HEADS,
            claims=shown_claims(data),
            differ=Markup(self.markdown.render("\n".join(differ_lines(data)))),
            runs=[*self._runs_of(data)],
        )

    def _runs_of(self, data: dict[str, Any]) -> Iterator[tuple[str, str, Run]]:
        """Cell, seed and record of each run behind a page."""
        for cell, by_seed in data["runs"].items():
            for seed, digest in by_seed.items():
                run = self.run(f"benchmark-{digest}" if cell == BENCHMARK else digest)
                if run is not None:
                    yield cell, seed, run

    # ---- the first page ----

    def _papers(self, votes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The sections of the first page. votes: see `_votes`."""
        parts = ((vote["entry"].paper, vote["claim"]["verdict"], vote["claim"]["flags"]) for vote in votes)
        counted, sections = verdicts_by_paper(parts), []
        for paper, entries in groupby(self.entries, key=lambda entry: entry.paper):
            title, _, rest = self.methods.get(paper, "").partition("\n\n")
            heading = title.removeprefix("# ").strip() or paper
            about = _flat(self.markdown.render(rest.partition("\n\n")[0]))
            section = {"id": paper, "title": heading, "about": about, "claims": counted.get(paper)}
            sections.append({**section, "cards": [*map(self._card, entries)]})
        return sections

    def _card(self, entry: Entry) -> dict[str, Any]:
        """An entry on the first page: its small picture, or the first lines of its table."""
        data, picture = entry.best.data, entry.best.folder / PICTURE
        card = {"entry": entry, "data": data, "picture": None, "lines": None}
        if picture.exists() and (small := _thumb(picture)) is not None:
            name = f"{entry.id}.png"
            write_bytes(self.folder / name, small)
            return {**card, "picture": name}
        if is_table(data) and (panels := parts(data)):
            part = panels[0]
            columns = part.columns[: FIRST - 1]
            rows = [
                [row["short"], *(_text(row["cells"][column.name], column) for column in columns)]
                for row in part.rows[:FIRST]
            ]
            return {**card, "lines": {"heads": ["", *(column.title for column in columns)], "rows": rows}}
        return card

    def _totals(self, votes: list[dict[str, Any]], checks: list[audit.Check]) -> dict[str, Any]:
        """votes: see `_votes`."""
        verdicts = Counter((vote["kind"], vote["claim"]["verdict"]) for vote in votes)
        checked = Counter(check.verdict for check in checks)
        return {
            "entries": len(self.entries),
            "own": sum(not OF_A_PAPER.search(entry.id) for entry in self.entries),
            "claims": len(votes),
            "verdicts": {
                kind: {word: verdicts[kind, word] for word in VERDICTS if verdicts[kind, word]}
                for kind in KINDS_OF_CLAIMS
            },
            "checks": len(checks),
            "audit": {word: checked[word] for word in audit.VERDICTS if checked[word]},
        }

    # ---- claims, audit, methods, runs ----

    def _claims(self) -> Iterator[dict[str, Any]]:
        """Every claim of every paper, one line each; kind: one of KINDS_OF_CLAIMS."""
        kinds = {about: kind for kind, several in KINDS_OF_CLAIMS.items() for about in several}
        for entry in self.entries:
            for page, number, claim in entry.claims:
                with page.said():
                    ran = claim["about"] in ("trained", "timed") and claim["verdict"] != "not run"
                    short = short_form(number, {**claim, "same_as": None}, {**page.data, "claims": []})
                    observed = entry.observed(claim["text"], claim["source"])
                    pretrained = "" if observed is None else f"in a pretrained model: {observed}"
                    flags = (short[_FLAGS].removeprefix(DASH), pretrained)
                    short[_FLAGS] = "; ".join(filter(None, flags)) or DASH
                    kind = kinds[claim["about"]]
                    same = same_place(entry.id, claim)
                about = {"entry": entry, "claim": claim, "short": short, "place": (entry.id, number), "same": same}
                yield {**about, "file": entry.file(page), "scale": page.scale if ran else NO_SCALE, "kind": kind}

    def _choices(self) -> dict[str, list[str]]:
        """By what the list of claims can be narrowed, and to which values."""
        scales = {page.scale for entry in self.entries for page in entry.pages}
        return {
            "paper": list(dict.fromkeys(entry.paper for entry in self.entries)),
            "verdict": list(VERDICTS),
            "scale": [*(scale for scale in EVERY_SCALE if scale in scales), NO_SCALE],
            "kind": list(ABOUT),
        }

    def _write_audit(self, checks: list[audit.Check]) -> None:
        """The checks that do not agree, and a page for each paper with all of its checks."""
        entries = {entry.id for entry in self.entries}
        counts = audit.counts(checks)
        papers = [name for name in counts if name != "all"]
        choices = {"verdict": audit.VERDICTS, "about": audit.ABOUT}
        shared: dict[str, Any] = {"counts": counts, "papers": papers, "there": entries, "verdicts": audit.VERDICTS}
        striking = [check for check in checks if check.verdict not in ("agrees", "cannot be checked")]
        self._page("audit", "Audit", checks=striking, paper=None, choices={"paper": papers, **choices}, **shared)
        for paper in papers:
            of_paper, file = [check for check in checks if check.paper == paper], f"audit-{paper}.html"
            self._page("audit", f"Audit: {paper}", file=file, checks=of_paper, paper=paper, choices=choices, **shared)

    def _methods(self) -> list[dict[str, Any]]:
        """The pages of docs/methods as HTML, in which links lead nowhere outside of the site."""
        papers = [paper for paper in dict.fromkeys(entry.paper for entry in self.entries) if paper in self.methods]
        return [{"id": paper, "html": _flat(self.markdown.render(self.methods[paper]))} for paper in papers]

    def _run_tables(self) -> dict[str, Any]:
        """What was run, by paper and scale, by machine, and the records that no page reads."""
        of_pages: dict[tuple[str, str], dict[str, Run]] = {}
        seeds: dict[tuple[str, str], set[str]] = {}
        for entry in self.entries:
            for page in entry.pages:
                for _, seed, run in self._runs_of(page.data):
                    key = (entry.paper, page.scale)
                    of_pages.setdefault(key, {})[run.hash] = run
                    seeds.setdefault(key, set()).add(seed)
        names = {path.name.partition(".")[0] for path in listed(self.results_dir, "records/*")}
        everything = [row for name in sorted(names) if (row := self.run(name)) is not None]
        read = {digest for runs in of_pages.values() for digest in runs}
        by_machine: dict[str, list[Run]] = {}
        for run in everything:
            by_machine.setdefault(run.machine, []).append(run)
        return {
            "by_paper": [
                (paper, scale, len(seeds[paper, scale]), _sums(of_pages[paper, scale].values()))
                for paper, scale in of_pages
            ],
            "by_machine": [(machine, _sums(runs)) for machine, runs in sorted(by_machine.items())],
            "other": _sums(run for run in everything if run.hash not in read),
            "all": _sums(everything),
        }


def _votes(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims, of those that ask the same of the same runs the first. claims: see `_Site._claims`."""
    again = repeated({claim["place"]: ((claim["claim"]["verdict"], claim["scale"]), claim["same"]) for claim in claims})
    return [claim for claim in claims if claim["place"] not in again]


def _sums(runs: Iterable[Run]) -> dict[str, Any]:
    """How many runs, and what they took in all."""
    all_runs = list(runs)
    dates = sorted(run.started for run in all_runs if run.started)
    return {
        "runs": len(all_runs),
        "hours": sum(run.minutes or 0 for run in all_runs) / 60,
        "tokens": sum(run.tokens or 0 for run in all_runs),
        "flops": sum(run.flops or 0 for run in all_runs),
        "machines": sorted({run.machine for run in all_runs}),
        "from": dates[0] if dates else "",
        "to": dates[-1] if dates else "",
    }


# ---- parts of a page ----


_SIGNS = dict(zip(VERDICTS, "✓✗◆◇○?–", strict=True))
"""Beside the colour of a verdict, for those who do not see it."""


def _text(cell: dict[str, Any], column: Column) -> str:
    """What a small table shows: what was measured, or printed."""
    text = cell_text(cell, column)
    return text.paper or text.measured if cell["measured"] is None else text.measured


def _printed(data: dict[str, Any]) -> dict[str, Any] | None:
    """What the paper prints in columns that nothing here can measure."""
    columns = folded(data)
    rows = [
        (row["name"], [cell_text(row["cells"][column.name], column).paper for column in columns])
        for row in data["rows"]
    ]
    rows = [row for row in rows if any(row[1])]
    return {"heads": [column.title for column in columns], "rows": rows} if rows else None


def _missing(data: dict[str, Any]) -> str:
    """Why a figure is not there."""
    if not is_table(data) and data["kind"] not in FIGURE_KINDS:
        return f"Figures of the kind {data['kind']} are drawn by a plug-in that is not here."
    return "Nothing of it has been run."


def _thumb(picture: Path) -> bytes | None:
    """A small picture of a figure, in few colours; None of a file that is damaged."""
    from PIL import Image

    try:
        with Image.open(picture) as opened:
            small = opened.convert("RGB")
    except OSError:
        return None
    small.thumbnail((THUMB, 3 * THUMB))
    buffer = BytesIO()
    small.quantize(32, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _order(text: str) -> Markup:
    """The attribute that sorts a cell by the number with which its text begins; a dash comes last."""
    match = re.match(r"[-+−]?[\d,]*\.?\d+", text)
    if match is None:
        return Markup("" if text not in ("", DASH) else ' data-sort=""')
    return Markup(f' data-sort="{float(match[0].replace(",", "").replace("−", "-"))}"')


def _flat(html: str, lower: int = 1) -> Markup:
    """HTML without links and pictures, whose addresses are no part of the site, and with lower headings."""
    html = re.sub(r'<a href="https://arxiv.org/abs/[^"]*">', "arXiv ", html)
    html = re.sub(r"</?a\b[^>]*>|<img\b[^>]*>", "", html)
    return Markup(re.sub(r"(</?h)([1-5])>", lambda match: f"{match[1]}{int(match[2]) + lower}>", html))
