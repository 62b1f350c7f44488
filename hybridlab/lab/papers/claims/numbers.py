"""What expressions read; and of those on printed, stated and computed numbers, functions of these and their sizes.

Cells are a matrix with the names of its rows and columns; a single number has one row and one column. What has one row
goes with every row, and what has one column with every column.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hybridlab.lab.papers.analytic import several
from hybridlab.lab.papers.claims.expression import ALL, Bracket, Expression, number_of
from hybridlab.lab.papers.claims.kinds import Given
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.formula import BY_COLUMN, BY_ENTRY, BY_ROW, BY_STEP, FUNCTIONS, OF_ALL, NoValue, computed

Size = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class Cells:
    """numbers: (rows, columns). digits: so many digits the evidence has of each. name: of what computes them. decimals:
    digits behind the point that are printed of each, NaN of what is not rounded."""

    numbers: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    digits: int = 6
    name: str = ""
    decimals: np.ndarray | float = np.nan


def cells_of(on: Given, expression: Expression) -> dict[str, Cells]:
    """What an expression reads, by its name in the tree."""
    read = {name: _read(on, bracket) for name, bracket in expression.brackets.items()}
    return read | {name: _called(call) for name, call in expression.calls.items()}


def _read(on: Given, bracket: Bracket) -> Cells:
    """The cells of a bracket."""
    source = Given(on.experiment.other(bracket.elsewhere or on.experiment.id), {})
    rows, columns = rows_of(bracket, source.experiment), bracket.parts[1]
    if bracket.of[0] == "printed":
        numbers, digits = source.printed(*itertools.product(rows, columns)), 10
        decimals = [source.experiment.column(name).decimals_of(source.row(row)) for row in rows for name in columns]
    else:
        factors = {name: source.experiment.column(name).factor for name in columns}
        numbers = [source.computed(row, name) * factors[name] for row, name in itertools.product(rows, columns)]
        digits, decimals = 6, [math.nan] * len(numbers)
    shaped, exact = (np.reshape(values, (len(rows), len(columns))) for values in (numbers, decimals))
    return Cells(shaped, rows, columns, digits, decimals=exact)


def rows_of(bracket: Bracket, experiment: Experiment) -> tuple[str, ...]:
    """The rows that a bracket reads of an experiment's table."""
    rows = bracket.parts[0]
    return tuple(row.short for row in experiment.rows) if rows == (ALL,) else rows


def _called(call: dict[str, Any]) -> Cells:
    """What an analytic function computes; a list in an argument gives rows, a second one columns."""
    lists, calls = several(call)
    labels = [tuple(f"{argument} {value}" for value in values) for argument, values in lists.items()]
    rows, columns = (*labels, ("",), ("",))[:2]
    numbers = np.reshape([number_of(single_call) for single_call in calls], (len(rows), len(columns)))
    return Cells(numbers, rows, columns, name=call["function"].replace("_", " "))


# ---- functions on cells ----


def on_cells(name: str, *values: Any) -> np.ndarray:
    """A function of formulas, of matrices and in the form of one."""
    function, matrices = FUNCTIONS[name][1], [np.atleast_2d(value) for value in values]
    if name in BY_ENTRY:
        return np.atleast_2d(function(*matrices))
    if name in BY_ROW:
        return function(*matrices)[:, None]
    if name in BY_COLUMN:
        return function(*matrices)[None, :]
    if name in BY_STEP:
        return function(*matrices) if matrices[0].shape[1] > 1 else function(matrices[0].T).T
    return np.reshape(function(*map(np.ravel, matrices)), (1, 1))


_FUNCTIONS = {name: partial(on_cells, name) for name in FUNCTIONS}


def value_of(tree: ast.expr, cells: Mapping[str, Cells]) -> np.ndarray:
    """The value of a part of an expression, (rows, columns); NoValue where there is none."""
    numbers = {name: matrix.numbers for name, matrix in cells.items()}
    value = np.atleast_2d(computed(tree, numbers, _FUNCTIONS, decimals=9))
    if not np.isfinite(value).all():
        raise NoValue("not computed: it divides by 0, or is too large")
    return value


def entry_at(values: np.ndarray, place: tuple[int, int]) -> float:
    """The entry of a matrix that goes with a place: one row goes with every row, one column with every column."""
    row, column = (min(at, size - 1) for at, size in zip(place, values.shape, strict=True))
    return float(values[row, column])


# ---- sizes ----


def size_of(tree: ast.AST, sizes: Mapping[str, Size]) -> Size:
    """The size of what a part of an expression gives; ValueError, a part of a sentence, where sizes do not fit.
    sizes: the size of what it reads."""
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.Subscript):
        raise ValueError("a bracket stands behind what is computed; name the cells where they are read")
    call = ast.unparse(tree.func) if isinstance(tree, ast.Call) else ""
    parts = tree.args if isinstance(tree, ast.Call) else ast.iter_child_nodes(tree)
    rows, columns = _together([(1, 1), *(size_of(part, sizes) for part in parts)])
    if call == "same_order" and rows == 1 or call in BY_STEP and rows == columns == 1:
        raise ValueError(f"{call} needs several {'rows' if call == 'same_order' else 'numbers'}")
    if not call or call in BY_ENTRY:
        return rows, columns
    if call in BY_STEP:
        return (rows, columns - 1) if columns > 1 else (rows - 1, 1)
    if call in BY_ROW | BY_COLUMN | OF_ALL:
        return (rows if call in BY_ROW else 1, columns if call in BY_COLUMN else 1)
    raise ValueError(f"{call} is for the formulas of measures, not for cells")


def _together(sizes: list[Size]) -> Size:
    """The size of what is made, entry by entry, of things of these sizes."""
    lengths = [sorted({size[axis] for size in sizes} - {1}) for axis in (0, 1)]
    for counts, what in zip(lengths, ("rows", "columns"), strict=True):
        if len(counts) > 1:
            raise ValueError(f"{counts[0]} {what} do not go with {counts[1]}; name as many, or one")
    rows, columns = ([*counts, 1][0] for counts in lengths)
    if (rows, columns) not in sizes:
        raise ValueError(f"{rows} rows do not go with {columns} columns of another bracket; name as many, or one")
    return rows, columns


def check_cells(expression: Expression, experiment: Experiment) -> None:
    """ValueError for an expression on numbers whose sizes do not fit, or that reads what no column computes."""
    if expression.of_runs:
        return
    sizes: dict[str, tuple[int, int]] = {}
    for name, bracket in expression.brackets.items():
        source = experiment.other(bracket.elsewhere or experiment.id)
        if bracket.of == ("computed",):
            for column in (heading for heading in bracket.parts[1] if source.column(heading).compute is None):
                raise ValueError(f"column {column} of {source.id} computes nothing; read it as printed[…]")
        sizes[name] = len(rows_of(bracket, source)), len(bracket.parts[1])
    for name, call in expression.calls.items():
        lengths = (*map(len, several(call)[0].values()), 1, 1)
        sizes[name] = lengths[0], lengths[1]
    for part in expression.parts:
        size_of(part, sizes)
