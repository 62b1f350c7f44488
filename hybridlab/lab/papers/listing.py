"""The list of experiments, with the scales at which each is done.

Only the heads of the experiment files are read here, since a list of all needs no more. Their cells, rows and claims
are checked when an experiment is used (loading.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from hybridlab.config.loading import check, states_of
from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest
from hybridlab.files import read_object
from hybridlab.lab.papers.entries import entries_in
from hybridlab.lab.papers.ids import (
    EVERY_SCALE,
    KINDS,
    SCALES,
    entry_files,
    experiments_folder,
    matches,
    natural,
    twice,
)
from hybridlab.training.store.results import folders, listed


class _Part(Strict):
    """A mapping of an experiment file of which only some names are read."""

    model_config = ConfigDict(extra="ignore")


class _Scale(_Part):
    seeds: list[int]
    shared: dict[str, Any] = {}


class _Benchmark(_Part):
    sizes: dict[str, Any]


class Sharing(_Part):
    """Whose runs an experiment shares; see `Experiment` for the meanings."""

    id: str
    scales: dict[str, _Scale] = {}

    def shared(self, scale: str) -> Iterable[str]:
        """The experiments whose runs are some of its cells at a scale."""
        return self.scales[scale].shared if scale in self.scales else ()


class Head(Sharing):
    """What the list needs of an experiment file; see `Experiment` for the meanings."""

    title: str
    paper: str
    needs: list[str] = []
    plot: dict[str, Any] | None = None
    benchmark: _Benchmark | None = None

    @property
    def kind(self) -> str:
        return "table" if self.plot is None else "figure"

    def available_scales(self) -> list[str]:
        """The scales that the file has settings for; all of them for a table without runs."""
        if self.benchmark is not None:
            return list(self.benchmark.sizes)
        return [scale for scale in EVERY_SCALE if scale in self.scales] or list(SCALES)

    def done(self, scale: str, folder: Path, recorded: set[str]) -> bool:
        """Whether its table or figure at a scale was made of all that the file asks for, and the records of that are
        still there. folder: of one's own results, or of the published ones. recorded: the names of all records."""
        try:
            page = read_object(folder / self.id / scale / f"{self.kind}.json", self.kind)
        except (FileNotFoundError, UserError):
            return False
        seeds = self.scales[scale].seeds if scale in self.scales else []
        names = [name for by_seed in page.get("runs", {}).values() for name in by_seed.values()]
        if self.benchmark is not None:
            names = [f"benchmark-{name}" for name in names]
        needed = bool(seeds) or self.benchmark is not None
        return {*seeds} <= {*page.get("complete_seeds", [])} and {*names} <= recorded and (bool(names) or not needed)


def read_heads(folder: Path | None = None) -> list[Head]:
    """The heads of hybridlab's experiments, ordered by id; UserError, with file and line, for a mistake. Files of
    hybridlab's that have not changed are read once per process."""
    states = states_of(sorted(experiments_folder().glob("*/*.yaml"))) if folder is None else None
    read = _read_heads.__wrapped__ if states is None else _read_heads
    return [*read(folder or experiments_folder(), states)]


@lru_cache(maxsize=32)
def _read_heads(folder: Path, _states: object) -> list[Head]:
    """The states of the files are part of the cache key."""
    names, heads, files = {*Head.model_fields, "extends"}, dict[str, Head](), dict[str, Path]()
    for path in entry_files(folder):
        for entry in entries_in(path):
            head = check(Head, entry.layer(names))
            if head.id in files:
                raise UserError(twice(head.id, files[head.id], path))
            heads[head.id], files[head.id] = head, path
    return [heads[identifier] for identifier in sorted(heads, key=natural)]


def read_sharing(paper: str) -> list[Sharing]:
    """Of each experiment of a paper, whose runs it shares."""
    files = [path for path in entry_files(experiments_folder()) if path.parent.name == paper]
    names = {*Sharing.model_fields, "extends"}
    return [check(Sharing, entry.layer(names)) for path in files for entry in entries_in(path)]


@dataclass(frozen=True)
class Filter:
    """Which experiments to list. words: each stands in the id, the paper or the title; one with * or ? must match one
    of them as a whole. Upper and lower case are the same. kind: table or figure. done: whether some scale is done.

    UserError for a kind or a paper that does not exist.
    """

    words: tuple[str, ...] = ()
    kind: str | None = None
    paper: str | None = None
    done: bool | None = None

    def __post_init__(self) -> None:
        papers = list(dict.fromkeys(path.parent.name for path in entry_files(experiments_folder())))
        for option, value, choices in (("kind", self.kind, KINDS), ("paper", self.paper, papers)):
            if value is not None and value not in choices:
                raise UserError(f"--{option} {value}: there is no such {option}; {nearest(value, list(choices))}")

    def passes(self, head: Head) -> bool:
        """Whether an experiment passes all but `done`."""
        fits = self.kind in (None, head.kind) and self.paper in (None, head.paper)
        return fits and matches(self.words, (head.id, head.paper, head.title))


def entries(results_dir: Path, filters: Filter | None = None) -> list[dict[str, Any]]:
    """id, kind, title, needs, scales, done (scales at which its table or figure was made of every run of every seed)
    and published (those of them where only the published one was) of each experiment that passes the filter."""
    rows = []
    filters = filters or Filter()
    recorded = {path.name.partition(".")[0] for path in listed(results_dir, "records/*")}
    mine, published = folders(results_dir)
    for head in read_heads():
        if not filters.passes(head):
            continue
        scales = head.available_scales()
        done = {scale for scale in scales if head.done(scale, mine, recorded)}
        others = [scale for scale in scales if scale not in done and head.done(scale, published, recorded)]
        entry = {
            "id": head.id,
            "kind": head.kind,
            "paper": head.paper,
            "title": head.title,
            "needs": head.needs,
            "scales": scales,
            "done": [scale for scale in scales if scale in done or scale in others],
            "published": others,
        }
        if filters.done in (None, bool(entry["done"])):
            rows.append(entry)
    return rows
