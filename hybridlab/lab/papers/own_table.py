"""A table of one's own as a CSV file, for `hybridlab audit`: the printed numbers, and what they should follow from.

    model,     ARC-E, PIQA,  Average,             Gain
    checks,    of 2376, of 1838, mean of ARC-E; PIQA, difference of Average; Average in Baseline
    Baseline,  40.28, 62.46, 51.37,
    Ours,      41.29, 63.06, 52.18,               0.81

The line `checks` says of a column: `of N`, a score of a benchmark with N questions; `mean of`, `sum of`, `product of`,
`difference of`, `ratio of` or `change of` (in percent) other columns, with `; ` between them, each of the same row or
`in` another. Of the column as a whole: `rises with`, `falls with` or `correlates at 0.68 with` another one; and `scales
with` a size, in rows that agree in the columns behind `for each`. A column of several checks has several such lines.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.config.loading import Layer, check
from hybridlab.data.files import other_separator
from hybridlab.errors import UserError, nearest
from hybridlab.files import read_text, to_utf8
from hybridlab.lab.papers.experiment import Experiment

CHECKS = "checks"
_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
"""Digits, also with commas between groups of three."""
_NUMBER = re.compile(rf"[-+−]?{_WHOLE}(?:\.\d+)?")
_FORMULAS = {"mean": "({sum}) / {count}", "sum": "{sum}", "difference": "{a} - {b}", "ratio": "{a} / {b}"}
_FORMULAS |= {"product": "{product}", "change": "100 * ({a} / {b} - 1)"}
_SAID = re.compile(rf"(?P<word>{'|'.join(_FORMULAS)}) of (?P<items>.+)")
_WITH = re.compile(r"(?P<word>rises|falls|correlates at (?P<r>[-+−]?[01]\.\d+)) with (?P<other>.+)")
_SCALES = re.compile(r"scales with (?P<by>.+?)(?: for each (?P<each>.+))?")


def read_table(path: Path) -> Experiment:
    """The table of a CSV file, with a claim for each column that follows from others; UserError with file and line."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    lines = [(n, cells) for n, cells in _lines(path) if any(cells)]
    if lines and len(lines[0][1]) == 1 and (advice := other_separator(lines[0][1], ".csv")):
        raise UserError(f"{path}:{lines[0][0]}: {advice}")
    if len(lines) < 3:
        raise UserError(f"{path}: write a line of names, a line that begins with {CHECKS}, and a line for each row")
    (first, names), *lines_below = lines
    at = {n: f"{path}:{n}" for n, _ in lines}
    said = list(itertools.takewhile(lambda line: line[1][0] == CHECKS, lines_below))
    rows = lines_below[len(said) :]
    if not said:
        raise UserError(f"{at[lines[1][0]]}: the second line says what columns are; begin it with {CHECKS}")
    if not rows:
        raise UserError(f"{path}: write a line for each row below the lines that begin with {CHECKS}")
    for n, cells in lines:
        if len(cells) != len(names):
            raise UserError(
                f"{at[n]}: it has {len(cells)} cells, and the first line {len(names)}; write an empty one as ,,"
            )
    for key in names[1:]:
        if not key or names.count(key) > 1 or re.search(r'["\[\]]', key):
            raise UserError(f"{at[first]}: {key!r} cannot name a column; use names that differ, without quotes and [ ]")
    printed = {cells[0]: _row(names, cells, at[n]) for n, cells in rows}
    if len(printed) < len(rows) or any(re.search(r'["\[\]]', name) for name in printed):
        raise UserError(f"{path}: give rows names that differ, without quotes and [ ]")
    written = {row: _digits(names[1:], cells) for row, *cells in (cells for _, cells in rows)}
    table = _Table(names[1:], printed, written, {cells[0]: at[n] for n, cells in rows})
    columns, claims, groups = list[dict[str, Any]](), list[dict[str, Any]](), set[str]()
    for name in names[1:]:
        digits = max(row.get(name, 0) for row in written.values())
        columns.append({"name": name, "title": name, "kind": "trained", "digits": digits})
    for n, cells in said:
        for column, text in zip(columns, cells[1:], strict=True):
            claims += table.claims(column, text, at[n], groups) if text else []
    values = {
        "id": path.stem,
        "title": path.name,
        "paper": path.stem,
        "source": path.name,
        "columns": columns,
        "rows": [
            {"name": row, "short": row, "paper": cells, "digits": written[row]}
            | {"given": {name: cells[name] for name in sorted(groups) if name in cells}}
            for row, cells in printed.items()
        ],
        "checks": claims,
    }
    return check(Experiment, Layer(values, {(): str(path)}))


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of the file, each with the line where it ends."""
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""))
        return [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: it cannot be read as a CSV file in UTF-8: {error.reason}; {to_utf8(error.object)}"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: it cannot be read as a CSV file in UTF-8: {error}") from None


def _row(names: list[str], cells: list[str], at: str) -> dict[str, float | str]:
    """The printed cells of a line by column, without empty ones."""
    row: dict[str, float | str] = {}
    for name, cell in zip(names[1:], cells[1:], strict=True):
        if cell:
            number = _NUMBER.fullmatch(cell)
            if number is None and "," in cell and re.fullmatch(r"[-+−]?[\d.,]*\d[\d.,]*", cell):
                raise UserError(
                    f"{at}: row {cells[0]}, column {name}: a comma in {cell!r} has no three digits behind it, or none "
                    "before; write a decimal point, as in 40.28, and commas between thousands alone, as in 1,024"
                )
            row[name] = float(cell.replace(",", "").replace("−", "-")) if number else cell
    if not cells[0]:
        raise UserError(f"{at}: the first cell names the row; write a name")
    if large := [name for name, value in row.items() if isinstance(value, float) and math.isinf(value)]:
        raise UserError(f"{at}: the number in column {large[0]} is too large")
    return row


def _digits(names: Sequence[str], cells: Sequence[str]) -> dict[str, int]:
    """The digits behind the point of the numbers with one, by name."""
    numbers = ((name, cell) for name, cell in zip(names, cells, strict=True) if _NUMBER.fullmatch(cell))
    return {name: len(digits) for name, cell in numbers if (digits := cell.partition(".")[2])}


@dataclass(frozen=True)
class _Table:
    """names: of the columns. printed, digits: row → column → the cell, and the digits of a number with a point. lines:
    row → its file and line."""

    names: list[str]
    printed: dict[str, dict[str, float | str]]
    digits: dict[str, dict[str, int]]
    lines: dict[str, str]

    def claims(self, column: dict[str, Any], said: str, at: str, groups: set[str]) -> list[dict[str, Any]]:
        """What a line `checks` says of a column, as claims, or as settings of the column itself. at: file and line of
        what is said. groups: grows by the columns whose cells say which rows belong together."""
        name = str(column["name"])
        if match := re.fullmatch(rf"of ({_WHOLE})", said):
            for row in self.printed:
                self.number(name, row, said)
            column["questions"] = int(match[1].replace(",", ""))
            return []
        if match := _SCALES.fullmatch(said):
            each = [part.strip() for part in (match["each"] or "").split(";") if part.strip()]
            self._scales(name, match["by"], each, said, at)
            column["scaling"] = {"by": match["by"], "each": each}
            groups |= {*each}
            return []
        if match := _WITH.fullmatch(said):
            return [self._correlates(name, match, said, at)]
        return self._follows(name, int(column["digits"]), said, at)

    def number(self, column: str, row: str, said: str) -> bool:
        """Whether a cell that is checked is a number; UserError for one with a number in other text."""
        cell = self.printed[row].get(column)
        if isinstance(cell, str) and re.search(r"\d", cell):
            raise UserError(
                f"{self.lines[row]}: row {row}, column {column}: {said!r} reads {cell!r}; write the number alone, or "
                "leave it empty"
            )
        return isinstance(cell, float)

    def _known(self, name: str, at: str) -> None:
        if name not in self.names:
            raise UserError(f"{at}: there is no column {name!r}; {nearest(name, self.names)}")

    def _scales(self, column: str, by: str, each: list[str], said: str, at: str) -> None:
        """UserError for a size that is none, and where no two rows can be compared."""
        for name in (by, *each):
            self._known(name, at)
        sizes: dict[tuple[str, ...], set[float]] = {}
        for row, cells in self.printed.items():
            if all([self.number(name, row, said) for name in (column, by)]):
                size = cells[by]
                if not isinstance(size, float) or size <= 0:
                    raise UserError(f"{self.lines[row]}: row {row}, column {by}: a size is above 0, not {size}")
                sizes.setdefault(tuple(str(cells.get(name)) for name in each), set()).add(size)
        if not any(len(distinct) > 1 for distinct in sizes.values()):
            raise UserError(f"{at}: {said!r}: no two rows that belong together have different numbers in {by}")

    def _correlates(self, column: str, match: re.Match[str], said: str, at: str) -> dict[str, Any]:
        """The claim that a column goes with another one."""
        other = match["other"]
        self._known(other, at)
        rows = [row for row in self.printed if all([self.number(name, row, said) for name in (column, other)])]
        if len(rows) < 3:
            raise UserError(f"{at}: {said!r}: {len(rows)} rows have numbers in both columns, and a correlation needs 3")
        r = f"correlation(printed[{_list(rows)}; {_list([column])}], printed[{_list(rows)}; {_list([other])}])"
        if match["r"]:
            stated = match["r"].replace("−", "-")
            test = f"rounds_to({r}, {stated}, {len(stated.partition('.')[2])})"
        else:
            test = f"{r} {'>' if match['word'] == 'rises' else '<'} 0"
        return {"text": f"{column} {said}", "source": at, "test": test}

    def _follows(self, column: str, digits: int, said: str, at: str) -> list[dict[str, Any]]:
        """The claims that a column follows from others, one for every row that has all that it needs. digits:
        of the column's numbers that are written without a point."""
        match = _SAID.fullmatch(said)
        if match is None:
            words = ", ".join(f"{word} of" for word in _FORMULAS)
            raise UserError(
                f"{at}: {said!r} says nothing of column {column}; write `of N`, or {words} other columns, or rises "
                "with, falls with, scales with another one"
            )
        items = [self._item(item.strip(), at) for item in match["items"].split(";")]
        word = match["word"]
        if word not in ("mean", "sum", "product") and len(items) != 2:
            raise UserError(f"{at}: {said!r}: a {word} is of two numbers; write {word} of A; B")
        claims = []
        for row, line in self.lines.items():
            needed = [(column, None), *items]
            if all([self.number(name, other_row or row, said) for name, other_row in needed]):
                texts = [f"printed[{_list([other_row or row])}; {_list([name])}]" for name, other_row in items]
                a, b = (*texts, "", "")[:2]
                names = {"sum": " + ".join(texts), "product": " * ".join(texts), "count": len(texts), "a": a, "b": b}
                formula, decimals = _FORMULAS[word].format(**names), self.digits[row].get(column, digits)
                test = f"rounds_to({formula}, printed[{_list([row])}; {_list([column])}], {decimals})"
                claims.append({"text": f"{column} of {row} is the {said}", "source": line, "test": test})
        if not claims:
            raise UserError(f"{at}: {said!r}: no row has numbers in all of these columns")
        return claims

    def _item(self, text: str, at: str) -> tuple[str, str | None]:
        """A column, and the row of another one."""
        name, row = text, None
        if text not in self.names and " in " in text:
            name, _, row = text.partition(" in ")
        self._known(name, at)
        if row is not None and row not in self.printed:
            raise UserError(f"{at}: there is no row {row!r}; {nearest(row, list(self.printed))}")
        return name, row


def _list(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
