"""One's own results beside the published ones: whose records a page was made of, what differs, and how it is published.

hybridlab report consa-table1 --publish    # results/published/: the page, with the records and the plan behind it
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import make_folder, read_object, write_bytes
from hybridlab.lab.papers.cells import record_files
from hybridlab.lab.papers.definition import file_of
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.plans import history, write_history
from hybridlab.lab.papers.sweep import sweep_runs
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.lab.reporting.entry_data import file_name, is_table
from hybridlab.lab.reporting.figures import plotted
from hybridlab.runs.record import record_name
from hybridlab.training.store.results import PUBLISHED, find, folders, origin

# ---- what differs ----


def about(data: dict[str, Any], results_dir: Path) -> str:
    """Whose records a page was made of, and what differs from the published page."""
    read = sorted(origin(results_dir, record_files(data["runs"])).items(), reverse=True)
    parts = [f"records: {', '.join(f'{number} {whose}' for whose, number in read)}"] if read else []
    page = folders(results_dir)[1] / data["id"] / data["scale"] / file_name(data)
    try:
        parts.append(compared(data, as_read(read_object(page, "published page"))))
    except FileNotFoundError:
        parts.append(f"nothing is published at scale {data['scale']} in {folders(results_dir)[1]}")
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        # It stops nothing, since all that was made here is whole.
        parts.append(f"{page} is damaged or of another version; restore it from version control")
    return f"{data['id']} at scale {data['scale']}: {'; '.join(parts)}"


def compared(data: dict[str, Any], published: dict[str, Any]) -> str:
    """What differs between two pages of an entry, in words: their numbers and verdicts, not their sentences."""
    new, old = _numbers(data), _numbers(published)
    verdicts, before = ({claim["text"]: claim["verdict"] for claim in page["claims"]} for page in (data, published))
    what = "cells" if is_table(data) else "plotted numbers"
    changed = [name for name in new if name in old and not same(new[name][0], old[name][0])]
    other = [text for text in verdicts if text in before and verdicts[text] != before[text]]
    parts = []
    if changed:
        largest = _largest(changed, new, old)
        parts.append(f"{len(changed):,} of {len(new):,} {what} differ from the published ones, {largest}")
    if lone := len(new.keys() ^ old.keys()):
        parts.append(f"{lone:,} {what} are on one of the two pages alone")
    if other:
        words = f"{other[0]}: {verdicts[other[0]]}, published {before[other[0]]}"
        parts.append(f"{len(other)} of {len(verdicts)} verdicts differ ({words}{', …' if other[1:] else ''})")
    if lone := len(verdicts.keys() ^ before.keys()):
        parts.append(f"{lone} claims are on one of the two pages alone")
    judged = f"{len(verdicts)} verdict{'s' * (len(verdicts) != 1)}"
    return "; ".join(parts) or f"same as published ({len(new):,} {what}, {judged})"


def same(left: Any, right: Any) -> bool:
    """Whether two parts of pages are the same, but for what another processor rounds otherwise: numbers agree within a
    relative 2e-7, since a border of `rounded` may lie between them, and all else is equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        return [*left] == [*right] and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=2e-7, abs_tol=1e-12)
    return bool(left == right)


Shown = dict[tuple[Any, ...], tuple[Any, float | None]]
"""Place on the page → what is shown there, and its error if it has one."""


def _numbers(data: dict[str, Any]) -> Shown:
    if is_table(data):
        return {
            (row["short"], column): (cell["measured"], cell["stderr"])
            for row in data["rows"]
            for column, cell in row["cells"].items()
        }
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in plotted(data):
        lines.setdefault((line.pop("panel"), line.pop("series")), []).append(line)
    return {
        (*place, i + 1, name): (value, _error(line) if name in ("y", "value") else None)
        for place, group in lines.items()
        for i, line in enumerate(group)
        for name, value in line.items()
        if name not in _ERRORS
    }


_ERRORS = ("low", "high", "stderr", "over", "run")
"""What a line of plotted numbers says about its number."""


def _error(line: dict[str, Any]) -> float | None:
    low, high, error = (line.get(name) for name in ("low", "high", "stderr"))
    return error if error is not None or low is None or high is None else (high - low) / 2


def _largest(changed: list[tuple[Any, ...]], new: Shown, old: Shown) -> str:
    """The largest difference, measured against the error of its number; without any error, the largest relative one."""
    apart: dict[bool, list[tuple[float, tuple[Any, ...]]]] = {True: [], False: []}
    for name in changed:
        (new_value, error), (old_value, other_error) = new[name], old[name]
        if isinstance(new_value, int | float) and isinstance(old_value, int | float):
            unit = error or other_error
            apart[bool(unit)].append((abs(new_value - old_value) / (unit or abs(old_value) or 1.0), name))
    sizes = apart[True] or apart[False]
    if not sizes:
        return f"such as {', '.join(map(str, changed[0]))}: {new[changed[0]][0]}, published {old[changed[0]][0]}"
    size, name = max(sizes, key=lambda pair: pair[0])
    how = f"by {size:.2g} of its error" if apart[True] else f"by {100 * size:.2g} % (no error is known)"
    return f"at most {how} ({', '.join(map(str, name))}: {new[name][0]:.6g}, published {old[name][0]:.6g})"


# ---- publishing ----


@dataclass(frozen=True)
class Page:
    """A page to publish. name: for messages. records: the files of the records that it reads. write: makes the page,
    and the history of its plans, in a folder of results."""

    name: str
    records: set[str]
    write: Callable[[Path], Any]


def page_of(data: dict[str, Any], experiment: Experiment, results_dir: Path) -> Page:
    """The page of an entry. UserError where none of its runs has a record."""
    scale, sweep = data["scale"], experiment.sweep
    trains = scale in experiment.scales and experiment.needed_cells(scale)
    if (trains or experiment.benchmark is not None) and not data["runs"]:
        raise UserError(
            f"report --publish: none of the runs of {data['id']} at scale {scale} has a record; "
            f"`hybridlab reproduce {data['id']} --scale {scale}` trains them"
        )

    def write(folder: Path) -> None:
        if plans := history(experiment.id, scale, results_dir):
            write_history(experiment.id, scale, plans, folder)
        if (file := find(results_dir, file_of(experiment.id))).is_file():
            write_bytes(folder / file_of(experiment.id), file.read_bytes())
        write_entry(experiment, scale, folder)

    searched = sweep_runs(experiment, sweep) if sweep is not None and sweep.scale == scale else ()
    files = record_files(data["runs"]) | {record_name(digest) for digest in searched}
    return Page(f"{data['id']} at scale {scale}", files, write)


def publish(pages: Sequence[Page], results_dir: Path) -> Iterator[str]:
    """Put pages, with the records and plans behind them, into RESULTS-DIR/published; tells what came of it.

    A page is made anew, of the records and plans that are published with it. Everything is made aside and then moved
    file by file, what pages are made of before the pages: what a kill leaves, the same command completes.
    """
    results, published = folders(results_dir)
    if results_dir.name == PUBLISHED:
        raise UserError(f"report --publish: {results_dir} is what is published; give the folder of your own results")
    make_folder(published)
    aside = Path(mkdtemp(prefix=".publish-", dir=results_dir))
    try:
        (aside / PUBLISHED).symlink_to(published.resolve())
        (aside / "records").mkdir()
        for file in set().union(*(page.records for page in pages)):
            if (results / file).exists():
                shutil.copy(results / file, aside / file)
        for page in pages:
            page.write(aside)
        (aside / PUBLISHED).unlink()
        replaced, new = _moved(aside, published)
    finally:
        shutil.rmtree(aside)
    names = ", ".join(page.name for page in pages)
    if not replaced | new:
        yield f"{names}: published as it is already"
        return
    yield f"{names}: published in {published} ({len(new)} new files, {len(replaced)} changed ones)"
    if older := sorted(_readers(replaced, published) - {page.name for page in pages}):
        yield f"pages that read the same runs and are older than these now: {', '.join(older)}; publish them too"


def _moved(aside: Path, published: Path) -> tuple[set[str], set[str]]:
    """Write what was made aside to the published files; the names of those that changed, and of new ones."""
    paths = sorted(path.relative_to(aside) for path in aside.rglob("*") if path.is_file())
    pages = [path for path in paths if path.parts[0] not in ("records", "plans")]
    replaced: set[str] = set()
    new: set[str] = set()
    for path in [*(path for path in paths if path not in pages), *pages]:
        content, target = (aside / path).read_bytes(), published / path
        before = target.read_bytes() if target.exists() else None
        if before != content:
            write_bytes(target, content)
            (new if before is None else replaced).add(str(path))
    for folder in {path.parent for path in pages}:
        for old in (published / folder).iterdir():
            if old.is_file() and not (aside / folder / old.name).exists():
                old.unlink()
                replaced.add(str(folder / old.name))
    return replaced, new


def _readers(files: set[str], published: Path) -> set[str]:
    """The published pages that read one of these records."""
    readers = set()
    for path in published.glob("*/*/*.json") if any(file.startswith("records/") for file in files) else ():
        if files & record_files(read_object(path, "published page", ("runs",))["runs"]):
            readers.add(f"{path.parent.parent.name} at scale {path.parent.name}")
    return readers
