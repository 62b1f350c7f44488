"""A cell of a table as text."""

from __future__ import annotations

from typing import Any

from hybridlab.papers.experiment import Column

DASH = "–"
"""Shown for a value that was not measured."""


def cell_text(cell: dict[str, Any], column: Column) -> str:
    """measured ± error | paper, with – for a value that was not measured; the paper's value only if it prints one."""
    if column.kind == "transcribed":
        # Words of the paper, or names from this code: nothing is measured.
        return _number(cell["measured"] if cell["paper"] is None else cell["paper"], column.digits)
    text = _number(cell["measured"], column.digits)
    if cell["stderr"] is not None:
        text += f" ± {_number(cell['stderr'], column.digits)}"
    return text if cell["paper"] is None else f"{text} | {_number(cell['paper'], column.digits)}"


def _number(value: float | str | None, digits: int) -> str:
    if isinstance(value, str):
        return value
    return DASH if value is None else f"{value:,.{digits}f}"
