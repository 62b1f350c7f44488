"""Results: the pages, records and plans below RESULTS-DIR, and where each is read from.

    results/             ID/SCALE/  records/HASH.json.zst  plans/ID.SCALE.json.zst    one's own, which git ignores
    results/published/   the same, committed

What commands make is one's own. A file is looked for there first, then among the published ones; `report --publish`
(reporting/published.py) is the only writer there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PUBLISHED = "published"
_published_too = True
"""Whether `find` looks among the published files, in this process."""


def folders(results_dir: Path) -> tuple[Path, Path]:
    """Where results are, in the order in which they are looked for: one's own, the published ones."""
    return results_dir, results_dir / PUBLISHED


def find(results_dir: Path, name: str) -> Path:
    """The path of a file of one's own, else of the published one; that of one's own where there is neither."""
    own, published = (folder / name for folder in folders(results_dir))
    return published if _published_too and not own.exists() and published.exists() else own


@contextmanager
def own_alone() -> Iterator[None]:
    """A context in which `find` leaves out what is published, for what is to be made from nothing."""
    global _published_too
    before, _published_too = _published_too, False
    try:
        yield
    finally:
        _published_too = before


def listed(results_dir: Path, pattern: str) -> list[Path]:
    """All files of a pattern, one's own before the published ones."""
    return [path for folder in folders(results_dir) for path in sorted(folder.glob(pattern))]


def origin(results_dir: Path, names: Iterable[str]) -> Counter[str]:
    """How many of these files are "your own", and how many are "published"."""
    own = (find(results_dir, name) == results_dir / name for name in names)
    return Counter("your own" if one else "published" for one in own)
