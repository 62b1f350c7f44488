"""Mutation tests: every comparison, sign, and, or, all, any, min, max and condition in the code of claims is reversed,
one at a time, and some case must fail. So it is with the formulas of measures that experiments share.

A mutated function gets its new code in place (`__code__`), so that nothing has to be imported again.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import CodeType

import pytest

from hybridlab import statistics
from hybridlab.lab.papers import claims, derived, formula
from hybridlab.lab.papers.calls import SAYS
from hybridlab.lab.papers.claims.expression import expression
from hybridlab.lab.papers.formula import parsed
from tests.unit import (
    test_comparisons,
    test_expressions,
    test_expressions_on_numbers,
    test_formulas,
    test_parts_of_verdicts,
    test_statistics,
)
from tests.unit.verdicts.building import SHARED
from tests.unit.verdicts.test_verdicts import CASES
from tests.unit.verdicts.test_verdicts import test_the_metrics_of_a_test_are_those_that_it_reads as test_metrics


def checks_in(module):
    """Every test of a module as a check without arguments, those of a list of arguments one by one. Tests that need
    another fixture than `tmp_path` are left out."""
    for name, test in vars(module).items():
        if not name.startswith("test_"):
            continue
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        names, rows = marks[0].args[:2] if marks else ((), [()])
        names = re.split(", *", names) if isinstance(names, str) else list(names)
        if {"tmp_path", *names} >= set(inspect.signature(test).parameters):
            yield from (partial(_run, test, names, row if len(names) != 1 else (row,)) for row in rows)


def _run(test, names, values):
    given = dict(zip(names, values, strict=True))
    if "tmp_path" not in inspect.signature(test).parameters:
        return test(**given)
    with tempfile.TemporaryDirectory() as folder:
        return test(**given, tmp_path=Path(folder))


MODULES_OF_TESTS = (
    test_statistics,
    test_comparisons,
    test_expressions,
    test_expressions_on_numbers,
    test_formulas,
    test_parts_of_verdicts,
)
DIRECT = [test_metrics, *(check for module in MODULES_OF_TESTS for check in checks_in(module))]
"""Tests beside the cases."""
CHECKS = [case.problem for case in CASES] + DIRECT

MODULES = [
    statistics.__name__,
    formula.__name__,
    derived.__name__,
    *(f"{claims.__name__}.{module.name}" for module in pkgutil.iter_modules(claims.__path__)),
]

REVERSED = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
REVERSED_NAMES = {"all": "any", "any": "all", "min": "max", "max": "min"}
REVERSED_FUNCTIONS = REVERSED_NAMES | {"highest": "lowest", "lowest": "highest", "argmax": "argmin", "rises": "falls"}
"""Of formulas."""

EQUIVALENT = {
    # The line through the points near a budget is read where x is 0, whichever way x runs.
    ("loss_at", "flops[near] / budget - 1"),
    # Only squares and sizes of these differences are used.
    ("clustered_mean", "array - mean"),
    ("_row_variances", "m - means[..., None]"),
    ("_explained", "entries - np.mean(entries)"),
    ("_explained", "entries[labels == name] - entries[labels == name].mean()"),
    # The signs of two differences are multiplied, and both are reversed.
    ("_same_order", "np.asarray(entries)[:, None] - np.asarray(entries)[None]"),
    ("_OfBound.seeds", "float(np.mean(values)) - self.bound"),
    # So many yes and as many no have the same two-sided p, and need the same number of seeds.
    ("_OfBound.seeds", "value > self.bound"),
    ("_OfYes._p", "value > 0"),
    ("_OfBound._p", "value > self.bound"),
    # Of numbers without a spread all are 0, or none is.
    ("Comparison._constant", "any"),
    # Either of the two ways stands for both.
    ("either_way", "min"),
}
"""(function, expression) that may be reversed without any effect on a verdict or its evidence."""


def mutations(tree):
    """(function or Class.method, node, index of its operator) of everything that can be reversed in functions."""
    for outer in tree.body:
        members = outer.body if isinstance(outer, ast.ClassDef) else [outer]
        for function in (member for member in members if isinstance(member, ast.FunctionDef)):
            name = function.name if function is outer else f"{outer.name}.{function.name}"
            symmetric = {id(node.args[0]) for node in ast.walk(function) if _is_abs(node)}
            for node in (inner for line in function.body for inner in ast.walk(line)):
                if isinstance(node, ast.Compare):
                    yield from ((name, node, index) for index in range(len(node.ops)))
                elif _is_reversible(node) and id(node) not in symmetric:
                    yield name, node, 0


def _is_reversible(node):
    """and, or; a difference; a minus; all, any, min and max; a condition that is not a comparison."""
    if isinstance(node, ast.If | ast.IfExp):
        return not isinstance(node.test, ast.Compare | ast.BoolOp)
    sign = isinstance(node, ast.BinOp | ast.UnaryOp) and isinstance(node.op, ast.Sub | ast.USub)
    return sign or isinstance(node, ast.BoolOp) or (isinstance(node, ast.Name) and node.id in REVERSED_NAMES)


def _is_abs(node):
    """|a − b| is |b − a|."""
    called = node.func if isinstance(node, ast.Call) else None
    return (getattr(called, "id", None) or getattr(called, "attr", None)) == "abs"


@contextmanager
def mutated(node, index) -> Iterator[None]:
    """The node is reversed inside the `with` block."""
    if isinstance(node, ast.Compare):
        before = node.ops[index]
        node.ops[index] = REVERSED[type(before)]()
        yield
        node.ops[index] = before
    elif isinstance(node, ast.BinOp):
        node.left, node.right = node.right, node.left
        yield
        node.left, node.right = node.right, node.left
    elif isinstance(node, ast.If | ast.IfExp):
        before, node.test = node.test, ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        yield
        node.test = before
    elif isinstance(node, ast.Name):
        before, node.id = node.id, REVERSED_FUNCTIONS[node.id]
        yield
        node.id = before
    else:
        before = node.op
        node.op = REVERSED[type(before)]() if isinstance(node, ast.BoolOp) else ast.UAdd()
        yield
        node.op = before


def code_of(module_code, name):
    """The code object of a function or method, out of a module's."""
    for part in name.split("."):
        module_code = next(c for c in module_code.co_consts if isinstance(c, CodeType) and c.co_name == part)
    return module_code


def function_of(module, name):
    """The function or method of a module by its dotted name, without its static or class method wrapper."""
    member = module
    for part in name.split("."):
        member = vars(member)[part]
    return inspect.unwrap(member.fget if isinstance(member, property) else getattr(member, "__func__", member))


@contextmanager
def running(function, code) -> Iterator[None]:
    """The function has this code inside the `with` block; expressions that were read before are read again."""
    before, function.__code__ = function.__code__, code
    expression.cache_clear()
    try:
        yield
    finally:
        function.__code__ = before
        expression.cache_clear()


def noticed(checks):
    """The first check that fails, if any: it returns what is wrong, or raises."""
    for check in checks:
        try:
            if check():
                return check
        except (Exception, pytest.fail.Exception):
            return check
    return None


@cache
def runs():
    """Check → the lines of these modules that it runs, as (file, line). A change of others cannot fail it."""
    files = {importlib.import_module(name).__file__ for name in MODULES}
    found = {}
    for check in CHECKS:
        found[check] = lines = set()

        def watch(frame, event, argument, lines=lines):
            if (file := frame.f_code.co_filename) not in files:
                return None
            lines.add((file, frame.f_lineno))
            return watch

        before = sys.gettrace()
        sys.settrace(watch)
        try:
            check()
        finally:
            sys.settrace(before)
    return found


def checks_of(file, node):
    """The checks that a change of a node can have an effect on."""
    part = node.test if isinstance(node, ast.If | ast.IfExp) else node
    lines = {(file, line) for line in range(part.lineno, part.end_lineno + 1)}
    return [check for check, run in runs().items() if run & lines]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("module_name", MODULES)
def test_what_is_code_is_noticed(module_name):
    module = importlib.import_module(module_name)
    tree = ast.parse(Path(module.__file__).read_text())
    missed, before = [], []
    for name, node, index in mutations(tree):
        text = ast.unparse(node)
        if (name, text) in EQUIVALENT:
            continue
        with mutated(node, index):
            code = code_of(compile(tree, module.__file__, "exec"), name)
        checks = checks_of(module.__file__, node)
        checks.sort(key=lambda check: check not in before[-20:])  # what noticed the last ones often notices the next
        with running(function_of(module, name), code):
            if check := noticed(checks):
                before.append(check)
            else:
                missed.append(f"{name}, line {node.lineno}: {text}" + (f" (operator {index})" if index else ""))
    assert not missed, "\n".join(missed)


def test_unmutated_code_passes_every_case():
    """Positive control: replacing the code does not fail a case by itself; only a mutation does."""
    with ExitStack() as stack:
        for module_name in MODULES:
            module = importlib.import_module(module_name)
            text = Path(module.__file__).read_text()
            code = compile(text, module.__file__, "exec")
            for name in dict.fromkeys(name for name, _, _ in mutations(ast.parse(text))):
                stack.enter_context(running(function_of(module, name), code_of(code, name)))
        assert not noticed(CHECKS)


# ---- formulas of measures ----


EQUIVALENT_FORMULAS = {
    # Only the squares, and the sizes, of these differences are used.
    ("gates-together", "1 - a"),
    ("entropy-change", "v[order(-c)][-1] - v[order(-c)][0]"),
    ("local-mass-change", "v[order(-c)][-1] - v[order(-c)][0]"),
}
"""(measure, expression) that may be reversed without any effect on a verdict."""


def mutated_formulas(name):
    """(what is reversed, the formula with it) of a measure's formula."""
    tree = parsed(SHARED[name].formula)
    symmetric = {id(node.args[0]) for node in ast.walk(tree) if _is_abs(node)}
    for node in ast.walk(tree):
        places = range(len(node.ops)) if isinstance(node, ast.Compare) else [0]
        called = isinstance(node, ast.Name) and node.id in REVERSED_FUNCTIONS
        if not isinstance(node, ast.Compare) and not called and (not _is_reversible(node) or id(node) in symmetric):
            continue
        text = ast.unparse(node)
        for index in places:
            with mutated(node, index):
                yield text, ast.unparse(tree)


def measures_read(name):
    """A measure with those that it is made of."""
    if name not in SHARED:
        return set()
    return {name}.union(*(measures_read(path) for _, path in SHARED[name].paths()))


def cases_of_measures():
    """Measure → the cases whose expressions read it, directly or through others."""
    found = {name: [] for name in SHARED}
    for case in (case for case in CASES if case.kind == SAYS):
        metrics = {one for bracket in expression(case.test["holds"]).brackets.values() for one in bracket.of}
        for name in set().union(*map(measures_read, metrics)):
            found[name].append(case)
    return found


def test_every_shared_measure_is_read_by_cases():
    assert [name for name, cases in cases_of_measures().items() if not cases] == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_formula_says_is_noticed():
    cases, missed = cases_of_measures(), []
    for name, measure in list(SHARED.items()):
        for text, reversed_one in list(mutated_formulas(name)):
            SHARED[name] = measure.model_copy(update={"formula": reversed_one})
            if (name, text) not in EQUIVALENT_FORMULAS and not any(_fails(case) for case in cases[name]):
                missed.append(f"{name}: {text} in {measure.formula}")
        SHARED[name] = measure
    assert not missed, "\n".join(missed)


def _fails(case):
    try:
        return case.problem() is not None
    except Exception:
        return True
