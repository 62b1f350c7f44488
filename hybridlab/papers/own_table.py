"""A table of one's own as a CSV file, for `hybridlab audit`: the printed numbers, and what they should follow from.

    model,     ARC-E, PIQA,  Average,             Gain
    checks,    of 2376, of 1838, mean of ARC-E; PIQA, difference of Average; Average in Baseline
    Baseline,  40.28, 62.46, 51.37,
    Ours,      41.29, 63.06, 52.18,               0.81

The line `checks` says of a column: `of N`, a score of a benchmark with N questions; `mean of`, `sum of`, `difference
of`, `ratio of` or `change of` (in percent) other columns, with `; ` between them, each of the same row or `in` another.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridlab.config.loading import Layer, check
from hybridlab.data.files import other_separator
from hybridlab.errors import UserError, nearest
from hybridlab.files import read_text, to_utf8
from hybridlab.papers.experiment import Experiment

CHECKS = "checks"
_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
"""Digits, also with commas between groups of three."""
_NUMBER = re.compile(rf"[-+−]?{_WHOLE}(?:\.\d+)?")
_FORMULAS = {"mean": "({sum}) / {count}", "sum": "{sum}", "difference": "{a} - {b}", "ratio": "{a} / {b}"}
_FORMULAS["change"] = "100 * ({a} / {b} - 1)"
_SAID = re.compile(rf"(?P<word>{'|'.join(_FORMULAS)}) of (?P<items>.+)")


def read_table(path: Path) -> Experiment:
    """The table of a CSV file, with a claim for each column that follows from others; UserError with file and line."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    lines = [(n, cells) for n, cells in _lines(path) if any(cells)]
    if lines and len(lines[0][1]) == 1 and (advice := other_separator(lines[0][1], ".csv")):
        raise UserError(f"{path}:{lines[0][0]}: {advice}")
    if len(lines) < 3:
        raise UserError(f"{path}: write a line of names, a line that begins with {CHECKS}, and a line for each row")
    (first, names), (second, asked), *rows = lines
    at = {n: f"{path}:{n}" for n, _ in lines}
    if asked[0] != CHECKS:
        raise UserError(f"{at[second]}: the second line says what columns are; begin it with {CHECKS}")
    for n, cells in lines:
        if len(cells) != len(names):
            raise UserError(
                f"{at[n]}: it has {len(cells)} cells, and the first line {len(names)}; write an empty one as ,,"
            )
    for one in names[1:]:
        if not one or names.count(one) > 1 or re.search(r'["\[\]]', one):
            raise UserError(f"{at[first]}: {one!r} cannot name a column; use names that differ, without quotes and [ ]")
    printed = {cells[0]: _row(names, cells, at[n]) for n, cells in rows}
    if len(printed) < len(rows) or any(re.search(r'["\[\]]', name) for name in printed):
        raise UserError(f"{path}: give rows names that differ, without quotes and [ ]")
    written = {row: _digits(names[1:], cells) for row, *cells in (cells for _, cells in rows)}
    columns, claims, places = list[dict[str, Any]](), list[dict[str, Any]](), {cells[0]: at[n] for n, cells in rows}
    for name, said in zip(names[1:], asked[1:], strict=True):
        digits = max(one.get(name, 0) for one in written.values())
        column: dict[str, Any] = {"name": name, "title": name, "kind": "trained", "digits": digits}
        if found := re.fullmatch(rf"of ({_WHOLE})", said):
            for row in printed:
                _number(name, row, said, printed, places[row])
            column["questions"] = int(found[1].replace(",", ""))
        elif said:
            own = {row: one.get(name, digits) for row, one in written.items()}
            claims += _claims(name, said, own, printed, names[1:], at[second], places)
        columns.append(column)
    values = {
        "id": path.stem,
        "title": path.name,
        "paper": path.stem,
        "source": path.name,
        "columns": columns,
        "rows": [{"name": row, "short": row, "paper": cells, "digits": written[row]} for row, cells in printed.items()],
        "claims": claims,
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
    found: dict[str, float | str] = {}
    for name, cell in zip(names[1:], cells[1:], strict=True):
        if cell:
            number = _NUMBER.fullmatch(cell)
            if number is None and "," in cell and re.fullmatch(r"[-+−]?[\d.,]*\d[\d.,]*", cell):
                raise UserError(
                    f"{at}: row {cells[0]}, column {name}: a comma in {cell!r} has no three digits behind it, or none "
                    "before; write a decimal point, as in 40.28, and commas between thousands alone, as in 1,024"
                )
            found[name] = float(cell.replace(",", "").replace("−", "-")) if number else cell
    if not cells[0]:
        raise UserError(f"{at}: the first cell names the row; write a name")
    if large := [name for name, value in found.items() if isinstance(value, float) and math.isinf(value)]:
        raise UserError(f"{at}: the number in column {large[0]} is too large")
    return found


def _digits(names: Sequence[str], cells: Sequence[str]) -> dict[str, int]:
    """The digits behind the point of the numbers with one, by name."""
    numbers = ((name, cell) for name, cell in zip(names, cells, strict=True) if _NUMBER.fullmatch(cell))
    return {name: len(digits) for name, cell in numbers if (digits := cell.partition(".")[2])}


def _number(column: str, row: str, said: str, printed: dict[str, dict[str, float | str]], at: str) -> bool:
    """Whether a cell that is checked is a number; UserError for one with a number in other text."""
    cell = printed[row].get(column)
    if isinstance(cell, str) and re.search(r"\d", cell):
        raise UserError(
            f"{at}: row {row}, column {column}: {said!r} reads {cell!r}; write the number alone, or leave it empty"
        )
    return isinstance(cell, float)


def _claims(
    column: str,
    said: str,
    digits: dict[str, int],
    printed: dict[str, dict[str, float | str]],
    known: list[str],
    at: str,
    lines: dict[str, str],
) -> list[dict[str, Any]]:
    """The claims that a column follows from others, one for every row that has all that it needs.

    digits: row → how many the column's number has. at, lines: file and line of what is said, and of each row.
    """
    found = _SAID.fullmatch(said)
    if found is None:
        words = ", ".join(f"{word} of" for word in _FORMULAS)
        raise UserError(f"{at}: {said!r} says nothing of column {column}; write `of N`, or {words} other columns")
    items = [_item(one.strip(), printed, known, at) for one in found["items"].split(";")]
    word = found["word"]
    if word not in ("mean", "sum") and len(items) != 2:
        raise UserError(f"{at}: {said!r}: a {word} is of two numbers; write {word} of A; B")
    claims = []
    for row, line in lines.items():
        needed = [(column, None), *items]
        if all([_number(name, there or row, said, printed, lines[there or row]) for name, there in needed]):
            texts = [f"printed[{_list([there or row])}; {_list([name])}]" for name, there in items]
            a, b = (*texts, "", "")[:2]
            formula = _FORMULAS[word].format(sum=" + ".join(texts), count=len(texts), a=a, b=b)
            test = f"rounds_to({formula}, printed[{_list([row])}; {_list([column])}], {digits[row]})"
            claims.append({"text": f"{column} of {row} is the {said}", "source": line, "test": test})
    if not claims:
        raise UserError(f"{at}: {said!r}: no row has numbers in all of these columns")
    return claims


def _item(text: str, printed: dict[str, dict[str, float | str]], known: list[str], at: str) -> tuple[str, str | None]:
    """A column, and the row of another one."""
    name, row = text, None
    if text not in known and " in " in text:
        name, _, row = text.partition(" in ")
    if name not in known:
        raise UserError(f"{at}: there is no column {name!r}; {nearest(name, known)}")
    if row is not None and row not in printed:
        raise UserError(f"{at}: there is no row {row!r}; {nearest(row, list(printed))}")
    return name, row


def _list(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
