"""Expressions of claims: what is none, and what does not fit the experiment, is told in one sentence on loading."""

import re
from contextlib import contextmanager

import numpy as np
import pytest

from hybridlab.errors import UserError
from hybridlab.lab.papers import loading as experiments
from hybridlab.lab.papers.claims.expression import expression
from hybridlab.lab.papers.claims.in_words import Part, asked_in
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.claims.numbers import Cells, check_cells
from hybridlab.lab.papers.loading import load_experiment
from tests.unit.verdicts.building import table

TABLE = """\
id: toy-table1
title: A toy
paper: toy
source: nowhere
columns:
- {name: layers, title: L, kind: exact, compute: {function: shape_field, field: layers}}
- {name: loss, title: loss, kind: trained, metric: results.validation.loss}
- {name: "a, b", title: ab, kind: trained}
rows:
- {name: Row one, short: One, cell: one, given: {size: tiny}, paper: {layers: 8, loss: 3.0, "a, b": 4}}
- {name: Row two, short: Two, cell: two, given: {size: tiny}, paper: {layers: 8, loss: 2.0, "a, b": 5}}
- {name: Row three, short: Three, cell: two, given: {size: tiny}, paper: {layers: 8, loss: 1.0, "a, b": 6}}
cells:
  one: {arch: vanilla, phase: p}
  two: {arch: vanilla, phase: p}
lists: {rest: [Two, Three], both: [loss, "a, b"]}
claims:
- text: first
  source: here
  test: EXPRESSION
"""
OTHER = """\
id: toy-table2
title: Another
paper: toy
source: nowhere
columns: [{name: x, title: X, kind: trained}]
rows: [{name: One, short: One, paper: {x: 3.0}}, {name: Two, short: Two, paper: {x: 4.0}}]
"""


@contextmanager
def toy(folder, holds):
    """The toy experiment with an expression as the test of its claim, beside the other one."""
    (folder / "toy").mkdir()
    (folder / "toy" / "table2.yaml").write_text(OTHER)
    written = "'{}'".format(holds.replace("'", "''"))
    (folder / "toy" / "table1.yaml").write_text(TABLE.replace("EXPRESSION", written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "experiments_folder", lambda: folder)
        yield load_experiment("toy-table1")


@pytest.mark.parametrize(
    ("holds", "evidence"),
    [
        ("printed[One; loss] > [Two]", "printed: 3 > 2"),
        ("printed[One; loss] > [@rest]", "printed: +1 to +2: above in 2 of 2"),
        ("printed[@rest; @both] > 0", "printed: 1 to 6: above 0 in 4 of 4"),
        ('printed[One; loss] < [Two; "a, b"]', "printed: 3 < 5"),
        ("printed[*; loss] >= 1", "printed: 1 to 3: at least 1 in 3 of 3"),
        ("computed[*; layers] == 8", "exact: 8: exactly 8 in 3 of 3"),
        ("computed[*; layers] == printed[*; layers]", "exact: equal in 3 of 3"),
        ("printed[One; loss] == [One; x; toy-table2]", "printed: 3 = 3"),
        # A bracket without a name reads the other experiment too, one with a name its own.
        ("printed[One; x; toy-table2] < [Two]", "printed: 3 < 4"),
        ("printed[One; x; toy-table2] > printed[Two; loss]", "printed: 3 > 2"),
        ('total_parameters(size="tiny") > 5 * (2 + 3)', "exact: total parameters 984,928 > 5 × (2 + 3) = 25"),
        ('shape_field(size=["tiny", "mini"], field="layers") >= 8', "exact: 8 to 12: at least 8 in 2 of 2"),
    ],
)
def test_what_is_read(tmp_path, holds, evidence):
    with toy(tmp_path, holds) as experiment:
        verdict = judge(experiment.claims[0], experiment, {})
    assert (verdict.word, verdict.evidence) == ("holds", evidence)


FIT = "name as many, or one"
THREE = table({name: {"x": 1.0, "y": 2.0, "z": 3.0} for name in "ABC"}, {"D": 1.0})
THREE._others = lambda _: THREE


def test_cells_that_do_not_go_together_are_refused():
    for holds, message in (
        ("printed[A, B, C; x] > [A, B]", f"2 rows do not go with 3; {FIT}"),
        ("printed[A, B; x, y] > [A, B; x, y, z]", f"2 columns do not go with 3; {FIT}"),
        ("printed[A, B; x] > [A; x, y]", f"2 rows do not go with 2 columns of another bracket; {FIT}"),
        ("mean(printed[A, B; x] - [A, B, C]) > 1", f"2 rows do not go with 3; {FIT}"),
        ("correlation(printed[A, B; x], [*]) > 1", f"2 rows do not go with 4; {FIT}"),
        ("row_means(printed[A, B; x, y]) > [A, B, C; x]", f"2 rows do not go with 3; {FIT}"),
        ("row_means(printed[A, B; x, y]) > [A; x, y]", f"2 rows do not go with 2 columns of another bracket; {FIT}"),
        ("column_max(printed[A, B; x, y]) > [A; x, y, z]", f"2 columns do not go with 3; {FIT}"),
        ("column_max(printed[A, B; x, y]) > [A, B; x]", f"2 rows do not go with 2 columns of another bracket; {FIT}"),
        ("abs(printed[A, B; x]) > [A, B, C]", f"2 rows do not go with 3; {FIT}"),
        ("-printed[A, B; x] > [A, B, C]", f"2 rows do not go with 3; {FIT}"),
        ("count(rises(printed[A, B, C; x]) and [A, B, C; x] > 1) > 1", f"2 rows do not go with 3; {FIT}"),
        ("count(rises(printed[A; x, y, z]) and [A; x, y, z] > 1) > 1", f"2 columns do not go with 3; {FIT}"),
        ("rises(printed[A; x])", "rises needs several numbers"),
        ("same_order(printed[A; x, y], [B])", "same_order needs several rows"),
        ("(printed[A, B; x])[0] > 1", "a bracket stands behind what is computed"),
        ("sum(index(printed[A, B; x])) > 1", "index is for the formulas of measures, not for cells"),
        ("given_number(number=[1, 2]) > printed[A, B, C; x]", f"2 rows do not go with 3; {FIT}"),
        ("computed[A; x] > 1", "column x of toy-table1 computes nothing; read it as printed"),
    ):
        with pytest.raises(ValueError, match=message):
            check_cells(expression(holds), THREE)


def test_cells_that_go_together_are_not_refused():
    for holds in (
        "printed[A, B, C; x, y] > [A; x, y]",
        "printed[A, B, C; x, y] > [A, B, C; z]",
        "printed[A, B; x, y] > [C; z] - 1 / [A, B; x]",
        "row_means(printed[A, B; x, y, z]) > [A, B; x]",
        "column_max(printed[A, B; x, y, z]) > [A; x, y, z]",
        "same_order(printed[A, B; x, y, z], [B, C]) and abs([A; x]) < 1",
        "count(rises(printed[A, B, C; x]) and [A, B; x] > 1) > 1",
        "count(rises(printed[A; x, y, z]) and [A; x, y] > 1) > 1",
        "count(rises(printed[A, B; x, y, z]) and [A, B; x, y] > 1) > 1",
        "rises(printed[A, B; x])",
        "mean(printed[A, B, C; x, y]) > [A; z]",
        "computed[D; exact] > printed[A; x; toy-table2]",
        "given_number(number=[1, 2]) > printed[A, B; x]",
    ):
        check_cells(expression(holds), THREE)


def test_what_is_no_expression():
    for holds, message in (
        # Names, and brackets.
        ("mena(printed[A; x]) > 1", "there is no function 'mena'; did you mean 'mean'?"),
        ('kv_cach(size="tiny") > 1', "there is no function 'kv_cach'; did you mean 'kv_cache'?"),
        ("printed[A; x] > x", "'x' is no number; write what is read as x[CELLS]"),
        ("printed[A] > 1", "printed[A]: write printed[ROWS; COLUMNS] or printed[ROWS; COLUMNS; EXPERIMENT]"),
        ("printed[A; x; B; y] > 1", "write printed[ROWS; COLUMNS] or printed[ROWS; COLUMNS; EXPERIMENT]"),
        ("printed[A; x; toy-table2, toy-table1] > 1", "write printed[ROWS; COLUMNS] or printed[ROWS; COLUMNS; EXPER"),
        ("printed[A; x] > printed[B]", "printed[B]: write printed[ROWS; COLUMNS]"),
        ("[A; x] > 1", "[A; x]: say what is read, as in loss[A; x] or printed[A; x]"),
        ('printed[A; "x] > 1', 'printed[A; "x]: a quotation mark is not closed'),
        ("printed[A, ; x] > 1", "printed[A, ; x]: write names between the brackets"),
        ("printed[A; x > 1", "a bracket [ is not closed"),
        ("loss[a; b] > 1", "loss[a; b]: a semicolon stands between rows and columns"),
        # What is said.
        ("printed[A; x] + 1", "it says nothing; write a comparison, such as `… < 0.9`"),
        ("3 < 4 and 5", "it says nothing"),
        ("3 < 4 or mean(printed[*; x])", "it says nothing"),
        ("printed[A; x] >", "invalid syntax"),
        ("", "invalid syntax"),
        ("1 if 2 else 3", "IfExp is not for formulas"),
        ("printed[A; x] > 'a'", "'a' is no number"),
        ("printed[A; x] > loss[a]", "cells of a table and runs are compared apart"),
        # Analytic functions.
        ('kv_cache("tiny") > 1', 'name the arguments of kv_cache, as in kv_cache(size="tiny")'),
        ("kv_cache(**{}) > 1", "name the arguments of kv_cache"),
        ('kv_cache(size="tiny", **{"arch": "sgt"}) > 1', "name the arguments of kv_cache"),
        ('kv_cache(size="tinny", arch="vanilla", seq_len=8) > 1', "size: 'tinny' is not a size; did you mean 'tiny'?"),
        ('kv_cache(size=["mini", "tinny"], arch="vanilla", seq_len=8) > 1', "'tinny' is not a size; did you mean"),
        ('kv_cache(size="tiny", arch="vanilla") > 1', "analytic function kv_cache needs the argument 'seq_len'"),
        ('kv_cache(size="tiny", seq_lne=8) > 1', "takes no argument 'seq_lne'; did you mean 'seq_len'?"),
        ("kv_cache(size=printed[A; x]) > 1", 'kv_cache takes plain values, as in kv_cache(size="tiny")'),
        ("kv_cache(size=mean(3)) > 1", "kv_cache takes plain values"),
        ('kv_cache(size="tiny" > 1', "the bracket of kv_cache( is not closed"),
        ("probability_open(alpha=[]) > 1", "probability_open: lists stand in alpha; write one or two, with values in"),
        ("mean_mask(alpha=[1], beta=[1], low=[1]) > 1", "lists stand in alpha, beta, low; write one or two, with v"),
        ("loss[a] < probability_open(alpha=[1, 2])", "probability_open has a list instead of a value"),
        ('setting(size="tiny", path="data.tokenizer") > 1', "setting computes a text, 'bpe:896'; an expression has"),
        ('code_path(path="x") > 1', "code_path: x does not exist"),
        ("largest_eigenvalue(mixed=0.5, matrix=[[1.0], [2.0]]) > 1", "attention has as many rows as columns"),
        ("largest_eigenvalue(mixed=0.5, matrix=[[1.0, 2.0]]) > 1", "attention has as many rows as columns"),
        ("largest_eigenvalue(mixed=0.5, matrix=[[1.0, 2.0], [1.0]]) > 1", "attention has as many rows as columns"),
        ("largest_eigenvalue(mixed=0.5, matrix=[]) > 1", "attention has as many rows as columns"),
        # What is too large, or too deep.
        ("10 ** 10 ** 10 > 1", "10 ** 10 ** 10 is too large for a number"),
        ("1 / 0 > 1", "1 / 0: float division by zero"),
        ("printed[A; x] ** 1e999 > 1", "is no number here"),
        ("9" * 5000 + " > 1", "Exceeds the limit"),
        ("(" * 300 + "1" + ")" * 300 + " > 1", "too many nested parentheses"),
        ("1" + " + 1" * 80 + " > 1", "it is nested too deeply; write it as several things with `and` between them"),
        ("-" * 5000 + "1 > 1", "it is nested too deeply"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            expression(holds)
        assert str(caught.value).startswith("expression '") or '"' in holds or "'" in holds
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_an_expression_may_be_as_deep_as_formulas_are():
    assert expression("1" + " + 1" * 50 + " > 1").of_print
    assert len(expression(" and ".join(["1 < 2"] * 500)).tree.values) == 500


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ("printed[Oen; loss] > 1", "toy-table1 has no row 'Oen'; did you mean 'One'?"),
        ("printed[One; los] > 1", "toy-table1 has no column 'los'; did you mean 'loss'?"),
        ("printed[One; *] > 1", "toy-table1 has no column '*'; known: layers, loss, a, b"),
        ("printed[One, *; loss] > 1", "toy-table1 has no row '*'; known: One, Two, Three"),
        ("printed[One; y; toy-table2] > 1", "toy-table2 has no column 'y'; known: x"),
        ("printed[Three; x; toy-table2] > 1", "toy-table2 has no row 'Three'; known: One, Two"),
        ("printed[One; x; toy-table3] > 1", "toy-table3: there is no such experiment; did you mean 'toy-table2'?"),
        ("printed[@rset; loss] > 1", "there is no list '@rset'; did you mean 'rest'?"),
        ("loss[oen] < 3", "toy-table1 has no cell 'oen'; did you mean 'one'?"),
        ("printed[One, Two, Three; loss] > [One, Two]", f"2 rows do not go with 3; {FIT}"),
        ("printed[*; loss] > [*; x; toy-table2]", f"2 rows do not go with 3; {FIT}"),
        ("computed[One; loss] > 1", "column loss of toy-table1 computes nothing; read it as printed[…]"),
        ("printed[One; loss] >", "expression 'printed[One; loss] >': invalid syntax"),
        ("always(printed[One; loss] > 1)", "always(…) is a whole part of an expression about runs"),
        ('kv_cache(size="tiny", arch="sgt", seq_len=8, config={"shpe": {}}) > 1', "shpe is not a known setting; did"),
        (
            'reduction_percent(before={"arch": "sgt"}, after={"arch": "sgt", "config": {"plam": 1}}, size="tiny",'
            ' convention="sgt", seq_len=8, batch=1) > 1',
            "plam is not a known setting; did you mean 'plan'?",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence_with_its_line(tmp_path, holds, message):
    with pytest.raises(UserError) as caught, toy(tmp_path, holds):
        pass
    assert str(caught.value).startswith("table1.yaml:20: ") and message in str(caught.value)


@pytest.mark.parametrize(
    ("holds", "evidence"),
    [
        ("p_of_correlation(r=1.0, pairs=20) < 1", "not computed: p_of_correlation: float division by zero"),
        ("mean_mask(alpha=-1e9) < 1", "not computed: mean_mask: math range error"),
        ("printed[One; loss] / ([Two] - 2) > 1", "not computed: it divides by 0, or is too large"),
        ("printed[@rest; loss] ** 10 ** 9 > 1", "not computed: it divides by 0, or is too large"),
    ],
)
def test_what_has_no_number_stays_open(tmp_path, holds, evidence):
    with toy(tmp_path, holds) as experiment:
        verdict = judge(experiment.claims[0], experiment, {})
    assert (verdict.word, verdict.evidence) == ("open", evidence)


def test_a_formula_has_the_numbers_of_its_row_and_column():
    table = {name: {"x": x, "y": y} for name, x, y in (("A", 1.5, 2.5), ("B", 3.5, 4.5), ("C", 5.5, 6.5))}
    found = expression("printed[A, B, C; x, y] - mean([A, C; x]) < [A; x, y]")
    cells = {name: cells_of_table(table, bracket) for name, bracket in found.brackets.items()}
    part = Part(found.tree, cells)
    shown = [part.text_at(found.tree, place) for place in ((0, 0), (1, 1), (2, 1))]
    assert shown == ["1.5 − mean 3.5 < 1.5", "4.5 − mean 3.5 < 2.5", "6.5 − mean 3.5 < 2.5"]
    assert asked_in(found.tree) == "" and asked_in(expression("printed[A; x] <= 3").tree) == "at most 3"
    assert [part.names((3, 2), *place) for place in ((0, 1), (2, 0))] == ["A, y", "C, x"]


def cells_of_table(table, bracket):
    rows, columns = bracket.parts
    return Cells(np.array([[table[row][column] for column in columns] for row in rows]), rows, columns)


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ("row_sum(row=3, mixed=0.5) == 1", "row_sum: there is no row 3 in a matrix of 3 rows, counted from 0"),
        ("last_weight_bound(row=[0.5, 0.6]) > 0", "the weights of a row of attention add up to 1, not to 1.1"),
    ],
)
def test_what_only_judging_finds_is_told_too(tmp_path, holds, message):
    with toy(tmp_path, holds) as experiment, pytest.raises(UserError, match=message):
        judge(experiment.claims[0], experiment, {})
