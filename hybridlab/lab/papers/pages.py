"""The pages that commands have made, as data: one's own before the published ones, and which has a claim's verdict.

A verdict is computed once, where its page is made. Lists and the site read it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.lab.papers.ids import ABOUT, EVERY_SCALE, PRETRAINED, SCALES, VERDICTS, natural
from hybridlab.lab.papers.listing import read_heads
from hybridlab.training.store.results import PUBLISHED, folders

NEEDED = {
    "table.json": ("id", "title", "paper", "scale", "panels", "columns", "rows", "claims", "runs"),
    "figure.json": ("id", "title", "paper", "scale", "kind", "panels", "claims", "runs"),
}
_OF_VERDICTS: dict[str, Any] = {
    **dict.fromkeys(("note", "direction", "details"), ""),
    **dict.fromkeys(("n", "p", "n_needed", "minutes_needed", "scale", "deciding")),
    **{"flags": [], "comparisons": []},
}
_EMPTY: dict[str, dict[str, Any]] = {
    "claim": {**_OF_VERDICTS, **{"margin": None, "same_as": None, "same_on": None, "controls": [], "sizes": []}},
    "control": _OF_VERDICTS,
    "comparison": {
        **dict.fromkeys(("metric", "unit", "note"), ""),
        **dict.fromkeys(("value", "stderr", "interval", "p", "asked")),
        **{"cells": [], "values": {}},
    },
    "row": dict.fromkeys(("reference", "group", "model")),
    "cell": dict.fromkeys(("measured", "paper", "stderr", "over", "verdict")),
}
"""Part of a page → what it has where there is nothing to say."""
Claims = list[tuple["Page", dict[str, Any]]]
"""A claim on each page that has it, as that page has it."""


def as_written(data: dict[str, Any]) -> dict[str, Any]:
    """A page as its file has it: without what says nothing (`_EMPTY`), a seventh of the bytes, and with the values of
    seeds or prompts 0, 1, 2 … as a list."""

    def filled(part: dict[str, Any], empty: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in part.items() if key not in empty or value != empty[key]}
        values = kept.get("values")
        if isinstance(values, dict) and [*values] == [str(number) for number in range(len(values))]:
            kept["values"] = [*values.values()]
        return kept

    return _each_part(data, filled)


def as_read(page: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `as_written`."""

    def whole(part: dict[str, Any], empty: dict[str, Any]) -> dict[str, Any]:
        values = part.get("values")
        named = {"values": {str(i): value for i, value in enumerate(values)}} if isinstance(values, list) else {}
        return {**deepcopy(empty), **part, **named}

    return _each_part(page, whole)


def _each_part(
    data: dict[str, Any], change: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """A page with its claims, controls, comparisons, rows and cells changed. change: of a part and its `_EMPTY`."""

    def judged(part: dict[str, Any], name: str) -> dict[str, Any]:
        part = change(part, _EMPTY[name])
        inner = {"comparisons": [change(test, _EMPTY["comparison"]) for test in part.get("comparisons", [])]}
        return {**part, **inner} if "comparisons" in part else part

    changed = {**data, "claims": [judged(claim, "claim") for claim in data["claims"]]}
    if "controls" in data:
        changed["controls"] = {number: judged(control, "control") for number, control in data["controls"].items()}
    if "rows" in data:
        rows = [change(row, _EMPTY["row"]) for row in data["rows"]]
        cells = [{name: change(cell, _EMPTY["cell"]) for name, cell in row["cells"].items()} for row in rows]
        changed["rows"] = [{**row, "cells": row_cells} for row, row_cells in zip(rows, cells, strict=True)]
    return changed


@dataclass(frozen=True)
class Page:
    """A table or figure at a scale. data: of table.json or figure.json. folder: where that lies, with its picture."""

    data: dict[str, Any]
    folder: Path

    @property
    def scale(self) -> str:
        return str(self.data["scale"])

    @property
    def whose(self) -> str:
        """ "your own" or "published"."""
        return "published" if self.folder.parent.parent.name == PUBLISHED else "your own"

    @contextmanager
    def said(self) -> Iterator[None]:
        """A context in which what goes wrong is the fault of the page's data: the error names the page."""
        try:
            yield
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            identifier, scale = self.folder.parts[-2:]
            raise UserError(
                f"{self.folder}: this page is damaged or of another version ({error}); make it again: "
                f"hybridlab report {identifier} --scale {scale}"
            ) from None


@dataclass(frozen=True)
class Entry:
    """A table or figure. pages: from the largest scale to the smallest, then scale pretrained."""

    id: str
    paper: str
    pages: list[Page]

    @property
    def best(self) -> Page:
        return self.pages[0]

    def file(self, page: Page) -> str:
        """The name of a page's file; that of the largest scale has the entry's own."""
        return f"{self.id}.html" if page is self.best else f"{self.id}.{page.scale}.html"

    def judged(self, text: str, source: str) -> tuple[Page, dict[str, Any]] | None:
        """A claim and its page: the largest scale at which it has a verdict; None if no page has the claim. What a
        pretrained model shows does not stand for it; see `observed`."""
        pairs = self._pages_with(text, source)
        trained = [pair for pair in pairs if pair[0].scale != PRETRAINED] or pairs
        run = (pair for pair in trained if pair[1]["verdict"] != "not run")
        return next(run, trained[0] if trained else None)

    def observed(self, text: str, source: str) -> str | None:
        """What a pretrained model shows of a claim about trained ones; None where that was not measured."""
        claims = [claim for page, claim in self._pages_with(text, source) if page.scale == PRETRAINED]
        words = [claim["verdict"] for claim in claims if claim["about"] == "trained" and claim["verdict"] != "not run"]
        return words[0] if words else None

    def _pages_with(self, text: str, source: str) -> Claims:
        return self._by_sentence.get((text, source), [])

    @cached_property
    def _by_sentence(self) -> dict[tuple[str, str], Claims]:
        """Sentence and place → the claim on each of its pages."""
        by_sentence: dict[tuple[str, str], Claims] = {}
        for page in self.pages:
            with page.said():
                for claim in page.data["claims"]:
                    if claim["verdict"] not in VERDICTS or claim["about"] not in ABOUT:
                        raise ValueError(f"claim {claim['text']!r}: {claim['verdict']}, about {claim['about']}")
                    by_sentence.setdefault((claim["text"], claim["source"]), []).append((page, claim))
        return by_sentence

    @cached_property
    def claims(self) -> list[tuple[Page, int, dict[str, Any]]]:
        """Each claim of the largest scale's page with its number, and the page that has its verdict; see `judged`."""
        claims = []
        for number, claim in enumerate(self.best.data["claims"], 1):
            page, judged = self.judged(claim["text"], claim["source"]) or (self.best, claim)
            claims.append((page, number, judged))
        return claims

    @property
    def verdicts(self) -> dict[str, int]:
        """Verdict → how many claims have it."""
        counts = Counter(claim["verdict"] for _, _, claim in self.claims if claim["same_as"] is None)
        return {word: counts[word] for word in VERDICTS if counts[word]}


def same_place(identifier: str, claim: dict[str, Any]) -> tuple[str, int] | None:
    """The id of the page and the number of the earlier claim that asks the same of the same runs, if there is one.
    identifier: of the page of this claim."""
    if claim["same_as"]:
        return identifier, claim["same_as"]
    return (elsewhere["id"], elsewhere["claim"]) if (elsewhere := claim.get("same_on")) else None


def pages_in(results_dir: Path, ids: Container[str] | None = None) -> list[Entry]:
    """The entries that have pages, ordered by paper and id; UserError for a page that is damaged or too old. ids: only
    these."""
    pages: dict[str, dict[str, Page]] = {}
    for folder in folders(results_dir):
        for path in (path for name in NEEDED for path in folder.glob(f"*/*/{name}")):
            identifier, scale = path.parts[-3:-1]
            if scale in EVERY_SCALE and scale not in pages.get(identifier, {}) and (ids is None or identifier in ids):
                remedy = f"make it again: hybridlab report {identifier} --scale {scale}"
                page = Page(read_object(path, "page", NEEDED[path.name], remedy), path.parent)
                with page.said():
                    page = replace(page, data=as_read(page.data))
                pages.setdefault(identifier, {})[scale] = page
    papers = list(dict.fromkeys(head.paper for head in read_heads()))
    entries = []
    for identifier, by_scale in pages.items():
        ordered = [by_scale[scale] for scale in (*reversed(SCALES), PRETRAINED) if scale in by_scale]
        entries.append(Entry(identifier, str(ordered[0].data["paper"]), ordered))

    def place(entry: Entry) -> tuple[Any, ...]:
        is_listed = entry.paper in papers
        return not is_listed, papers.index(entry.paper) if is_listed else entry.paper, natural(entry.id)

    return sorted(entries, key=place)
