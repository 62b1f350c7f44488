"""The evidence of an expression on printed, stated and computed numbers: a number instead of what it reads, and of
many how many are as asked and which are not.

    53.43 − 50.19 = 3.24, asked exactly 3.24
    -1.88 to 7.61: above in 7 of 8 (not: 360M MIDAS, Primitives: 28.18 < 30.06)
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridlab.lab.papers.claims.kinds import listed
from hybridlab.lab.papers.claims.numbers import Cells, entry_at, value_of
from hybridlab.lab.papers.formula import BY_ENTRY, arguments_of, computed, names_in

MOST = 5
"""So many exceptions are named; of more, how many there are."""
_SIGNS = {
    ast.Lt: ("below", "below"),
    ast.LtE: ("at or below", "at most"),
    ast.Gt: ("above", "above"),
    ast.GtE: ("at or above", "at least"),
    ast.Eq: ("equal", "exactly"),
    ast.NotEq: ("different", "other than"),
}
"""A sign between two numbers, and before the one that is required."""
_CALLED = {"min": "lowest", "max": "highest", "len": "number of entries"}


@dataclass(frozen=True)
class _Said:
    """true: where it is so, (rows, columns). one: the evidence if this is one place. Of several it is `lead: word in 7
    of 8`. entry: the numbers at a place, by row and column; None where the lead has them."""

    true: np.ndarray
    one: str
    word: str
    lead: str = ""
    entry: Callable[[int, int], str] | None = None


@dataclass(frozen=True)
class Part:
    """One thing that an expression says. cells: what is read, by its name in the tree."""

    tree: ast.expr
    cells: Mapping[str, Cells]

    def said(self) -> tuple[bool, str]:
        """Whether it is so, and the evidence."""
        tree = self.tree
        if isinstance(tree, ast.Compare) and _has_bounds(tree) and (counted := arguments_of(tree.left, "count")):
            return bool(self._true(tree).all()), self._of_many(self._said(counted[0]), f", required {_asked(tree)}")
        said = self._said(tree)
        return bool(said.true.all()), said.one if said.true.size == 1 else self._of_many(said)

    def _of_many(self, said: _Said, required: str = "") -> str:
        off = []
        if said.entry is not None:
            places = np.argwhere(~said.true).tolist()
            off = [f"{self.names(said.true.shape, *place)}: {said.entry(*place)}" for place in places[:MOST]]
            off += [f"{len(places) - MOST} more"] if len(places) > MOST else []
        lead = f"{said.lead}: " if said.lead else ""
        return f"{lead}{said.word} in {said.true.sum()} of {said.true.size}{required}{listed(off)}"

    def names(self, shape: tuple[int, ...], row: int, column: int) -> str:
        """The names of the row and the column of an entry of a result; empty where there is one."""
        read = [self.cells[name] for name in names_in(self.tree)]
        names = [
            _name(shape[0], row, [cells.rows for cells in read]),
            _name(shape[1], column, [cells.columns for cells in read]),
        ]
        return ", ".join(name for name in names if name)

    # ---- forms ----

    def _said(self, tree: ast.expr) -> _Said:
        if isinstance(tree, ast.Compare):
            return self._bounded(tree) if _has_bounds(tree) else self._compared(tree)
        if isinstance(tree, ast.BoolOp):
            said, word = [self._said(part) for part in tree.values], " and " if isinstance(tree.op, ast.And) else " or "
            return _Said(self._true(tree), word.join(part.one for part in said), word.join(part.word for part in said))
        if arguments := arguments_of(tree, "rounds_to"):
            return self._rounded(tree, *arguments)
        if arguments := arguments_of(tree, "same_order"):
            return self._ordered(tree, *arguments)
        true, word = self._true(tree), ast.unparse(tree).partition("(")[0]
        numbers = self._list(arguments_of(tree, "rises", "falls")[0])
        return _Said(true, f"{numbers}: {word} in {true.sum()} of 1", word, numbers)

    def _bounded(self, tree: ast.Compare) -> _Said:
        """Numbers against bounds."""
        looked_at = tree.comparators[0] if len(tree.ops) > 1 else tree.left
        values, bounds = self._value(looked_at), _asked(tree)
        return _Said(
            self._true(tree),
            f"{self._formula(looked_at)}, required {bounds}",
            f"within {bounds}" if len(tree.ops) > 1 else bounds,
            span(values),
            lambda *place: _number(values[place]),
        )

    def _compared(self, tree: ast.Compare) -> _Said:
        """Numbers against each other."""
        sides, true = [tree.left, *tree.comparators], self._true(tree)
        values = [np.broadcast_to(self._value(side), true.shape) for side in sides]

        def chain(texts: Sequence[str], *place: int) -> str:
            signs = [_sign(*pair) for pair in itertools.pairwise(value[place] for value in values)]
            return " ".join(itertools.chain.from_iterable(itertools.zip_longest(texts, signs, fillvalue=""))).strip()

        return _Said(
            true,
            chain([self._formula(side) for side in sides], 0, 0),
            " and ".join(_SIGNS[type(op)][0] for op in tree.ops),
            "" if isinstance(tree.ops[0], ast.Eq | ast.NotEq) else span(values[0] - values[1], "+"),
            lambda *place: chain([_number(value[place]) for value in values], *place),
        )

    def _rounded(self, tree: ast.expr, number: ast.expr, stated: ast.expr, digits: ast.expr) -> _Said:
        """Numbers that are to be others, rounded."""
        true, places = self._true(tree), int(self._value(digits)[0, 0])
        values, other = (np.broadcast_to(self._value(side), true.shape) for side in (number, stated))

        def shown(sign: str, *place: int) -> str:
            return f"{values[place]:,.{places + 1}f}{sign}{_number(other[place])}"

        formula = f"{self.text_at(number)} = " if _is_formula(number) else ""
        word = f"the same to {places} digit{'s' * (places != 1)}"
        return _Said(true, formula + shown(", stated ", 0, 0), word, entry=lambda *place: shown(" for ", *place))

    def _ordered(self, tree: ast.expr, *lists: ast.expr) -> _Said:
        """Lists that are to have one order."""

        def shown(_: int, column: int) -> str:
            return " against ".join(self._list(part, column) for part in lists)

        true, word = self._true(tree), "the same order"
        return _Said(true, f"{shown(0, 0)}: {word if true.all() else 'another order'}", word, entry=shown)

    # ---- numbers ----

    def _value(self, tree: ast.expr) -> np.ndarray:
        return value_of(tree, self.cells)

    def _true(self, tree: ast.expr) -> np.ndarray:
        return self._value(tree).astype(bool)

    def _list(self, tree: ast.expr, column: int | None = None) -> str:
        """The numbers of a list, or of one column of a matrix."""
        numbers = self._value(tree)
        return ", ".join(map(_number, np.ravel(numbers if column is None else numbers[:, column])))

    def _formula(self, tree: ast.expr) -> str:
        """A part of an expression with a single number for each thing that it reads, and what it comes to."""
        if _is_formula(tree):
            return f"{self.text_at(tree)} = {_number(self._value(tree)[0, 0])}"
        name = self.cells[tree.id].name if isinstance(tree, ast.Name) else ""
        return f"{name} {self.text_at(tree)}".strip()

    def text_at(self, tree: ast.expr, place: tuple[int, int] = (0, 0)) -> str:
        """A part of an expression with the numbers that it has in one row and column of its result."""
        text = ast.unparse(_InNumbers(self, place).visit(copy.deepcopy(tree)))
        return text.replace(" - ", " − ").replace(" * ", " × ")


class _InNumbers(ast.NodeTransformer):
    """Replaces constants, what is read, and functions that return one number of many, by numbers."""

    def __init__(self, part: Part, place: tuple[int, int]) -> None:
        self.part, self.place = part, place

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Name(_number(float(computed(node, {})), 10))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        cells = self.part.cells[node.id]
        return ast.Name(_number(entry_at(cells.numbers, self.place), cells.digits))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        if name in BY_ENTRY:
            return ast.Call(ast.Name(name), [self.visit(argument) for argument in node.args], [])
        word = _CALLED.get(name, name.replace("_", " "))
        return ast.Name(f"{word} {_number(entry_at(value_of(node, self.part.cells), self.place))}")


def _is_formula(tree: ast.expr) -> bool:
    """Whether a number is computed of others that can be shown."""
    return isinstance(tree, ast.BinOp) or bool(arguments_of(tree, *BY_ENTRY))


def _has_bounds(tree: ast.Compare) -> bool:
    """Whether what is read, or computed, is compared with plain numbers: with one behind it, or between two."""
    plain = [not names_in(side) and not _is_formula(side) for side in (tree.left, *tree.comparators)]
    return plain in ([False, True], [True, False, True])


def asked_in(tree: ast.Compare) -> str:
    """What a comparison with plain numbers asks for; empty for one of numbers that are read."""
    return _asked(tree) if _has_bounds(tree) else ""


def _asked(tree: ast.Compare) -> str:
    """What a comparison with plain numbers asks for."""
    bounds = (tree.left, tree.comparators[1]) if len(tree.ops) > 1 else tree.comparators
    numbers = " to ".join(map(_number, sorted(float(computed(bound, {})) for bound in bounds)))
    return numbers if len(tree.ops) > 1 else f"{_SIGNS[type(tree.ops[0])][1]} {numbers}"


def _number(value: float, digits: int = 6) -> str:
    return f"{value:,.{digits}g}"


def span(values: np.ndarray, sign: str = "") -> str:
    """From the lowest to the highest."""
    ends = [f"{value:{sign},.6g}" for value in (values.min(), values.max())]
    return " to ".join(dict.fromkeys(ends))


def _sign(left: float, right: float) -> str:
    """How two numbers compare."""
    return "=" if np.isclose(left, right, rtol=0, atol=1e-9) else "<" if left < right else ">"


def _name(count: int, place: int, lists: Sequence[tuple[str, ...]]) -> str:
    """The name of one of so many entries of a result. lists: of names of what it is made of; the first with as many
    names counts, and where this has a name twice, also the second."""
    if count == 1:
        return ""
    fitting = [names for names in lists if len(names) == count]
    if not fitting:
        return f"step {place + 1}"
    twice = len(set(fitting[0])) < count
    return " against ".join(dict.fromkeys(names[place] for names in fitting[: 1 + twice]))
