"""A cell of a table as text."""

from __future__ import annotations

from typing import Any

from hybridlab.papers.rows import Column

DASH = "–"
"""Shown for a value that was not measured."""
AS_ABOVE = "as above"
"""Shown for a value of the same run as in an earlier row."""


def cell_text(cell: dict[str, Any], column: Column) -> str:
    """measured, with its error or its difference (Δ) to the reference, | paper; the paper's value if it prints one."""
    error = error_text(cell, column)
    gap = ", " if error.startswith("Δ") else " "
    return _beside(f"{_measured(cell, column)}{gap}{error}".rstrip(), cell, column)


def short_text(cell: dict[str, Any], column: Column) -> str:
    """measured | paper, without the error, for narrow columns."""
    return _beside(_measured(cell, column), cell, column)


def error_text(cell: dict[str, Any], column: Column) -> str:
    """The paired difference to the reference with its interval or error; without one, the value's own error."""
    if column.kind == "transcribed" or cell["measured"] is None or cell["same_as"]:
        return ""
    digits, found = column.digits + (column.kind == "trained"), cell["difference"]
    if found is None or column.neutral is not None:
        return "" if cell["stderr"] is None else f"± {_number(cell['stderr'], digits)} {_over(cell)}"
    text = f"Δ {_signed(found['value'], digits)}"
    if found["interval"] is not None:
        low, high = (_signed(end, digits) for end in found["interval"])
        return f"{text} [{low}, {high}], n = {found['n']}"
    return text if found["stderr"] is None else f"{text} ± {_number(found['stderr'], digits)} {_over(found)}"


def _over(found: dict[str, Any]) -> str:
    """What a standard error is over, and how many, unless these are windows or rows."""
    return f"over {found['n']} seeds" if found["over"] == "seeds" else f"over {found['over']}"


def _beside(text: str, cell: dict[str, Any], column: Column) -> str:
    if column.kind == "transcribed":
        # Words of the paper, or names from this code: nothing is measured.
        return _number(cell["measured"] if cell["paper"] is None else cell["paper"], column.digits)
    return text if cell["paper"] is None else f"{text} | {_number(cell['paper'], column.digits)}"


def _measured(cell: dict[str, Any], column: Column) -> str:
    return AS_ABOVE if cell["same_as"] else _number(cell["measured"], column.digits)


def _number(value: float | str | None, digits: int) -> str:
    if isinstance(value, str):
        return value
    return DASH if value is None else f"{value:,.{digits}f}"


def _signed(value: float, digits: int) -> str:
    """With its sign; what rounds to 0 has none."""
    text = f"{value:+,.{digits}f}".replace("-", "−")
    return text if any(digit in text for digit in "123456789") else text[1:]
