"""Formulas and measures of experiment files, on numbers chosen by hand."""

import numpy as np
import pytest

from hybridlab.config.loading import check, load_file
from hybridlab.errors import UserError
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.formula import (
    FUNCTIONS,
    Measure,
    NotMeasured,
    NoValue,
    computed,
    names_in,
    number_of,
    parsed,
    reads_results,
    values_of,
)
from hybridlab.lab.papers.loading import load_experiment
from tests.records import make_loss, make_record, make_results

Y = np.array([1.0, 4.0, 2.0, 8.0, 6.0, 7.0])
M = np.array([[0.0, 1.0, 2.0], [np.nan, 0.0, 3.0], [np.nan, np.nan, 0.0]])
GIVEN = {"y": Y, "x": np.arange(6.0), "m": M, "b": np.array(2.0), "gap": np.array([1.0, np.nan, 3.0])}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 + 3 * 4 - 1 / 2", 13.5),
        ("-b ** 2", -4.0),
        ("7 // b + 7 % b", 4.0),
        ("mean(y)", 28 / 6),
        ("mean(gap)", 2.0),
        ("sum(y) - max(y) + min(y)", 21.0),
        ("sd(part(y, 0, 1/3))", 1.5),
        ("y[0] + y[-1]", 8.0),
        ("y[b]", 2.0),
        ("mean(y[1:-1])", 5.0),
        ("mean(y[::b])", 3.0),
        ("mean(part(y, 1/2, 1))", 7.0),
        ("mean(part(y, 0, 1/2))", 7 / 3),
        ("len(part(y, 2/3, 1))", 2.0),
        ("len(part(y, 0.3, 0.7))", 3.0),
        ("mean(y[x >= 3])", 7.0),
        ("mean(y[x >= 1 and x < 3])", 3.0),
        ("mean(y[x == 0 or x == 5])", 4.0),
        ("mean(y[not x > 1])", 2.5),
        ("mean(y[index(y) % b != 0]) - mean(y[index(y) % b == 0])", 19 / 3 - 3.0),
        ("mean(y > 3)", 4 / 6),
        ("first(y >= 0.95 * y[-1]) / len(y)", 0.5),
        ("argmax(y) + 10 * argmin(y)", 3.0),
        ("argmax(gap)", 2.0),
        ("abs(y[0] - y[1])", 3.0),
        ("log(y[0])", 0.0),
        ("log(exp(b))", 2.0),
        ("rank_correlation(x, y)", 27 / 35),
        ("rank_correlation(gap, 0 - gap)", -1.0),
        ("slope(3 - b * x, x)", -2.0),
        ("slope([1, 2, 4], log2([2, 4, 8]))", 1.5),
        ("explained(y, index(y) // b)", 1 - (4.5 + 18 + 0.5) / (170 - 28**2 / 6)),
        ("mean(fold(y, b)[1:, -1])", (8 + 7) / 2),
        ("row_means(m)[1] + row_means(m)[2]", 1.5),
        ("column_means(m)[1] + 10 * column_means(m)[2]", 0.5 + 50 / 3),
        ("sum(highest(fold(y, b)))", 4.0 + 8 + 7),
        ("sum(lowest(fold(y, b)))", 1.0 + 2 + 6),
        ("explained(y, 0 * x)", 0.0),
        ("m[0, -1]", 2.0),
        ("mean(m[:, 2])", 5 / 3),
        ("mean(m[1:, 1:])", 1.0),
        ("mean(m[row(m) == 0 and column(m) > row(m)])", 1.5),
        ("mean(part(m, 0, 1/3))", 1.0),
        ("y[0] < y[1]", 1.0),
        ("y[0] > y[1]", 0.0),
        ("y[0] <= 1 and y[0] >= 1", 1.0),
        ("0 < y[0] < 3", 1.0),
        ("0 < y[0] < 1", 0.0),
        ("sum(row_variances(fold(y, b)))", 2.25 + 9 + 0.25),
        ("sum(row_variances(m))", 2 / 3 + 2.25),
        ("sum(column_max(m))", 0.0 + 1 + 3),
        ("same_order(y, y * 2)", 1.0),
        ("same_order(y, 0 * y)", 1.0),
        ("same_order(y, 0 - y)", 0.0),
        ("mean(same_order(fold(y, b), fold(index(y), b)))", 0.5),
        ("round(7 / 2) + round(5 / 2)", 6.0),
        ("count(rises(y)) + 10 * count(falls(y)) + steps(y)[0]", 3 + 20 + 3.0),
        ("rounds_to(2.345, 2.35, 2) + 10 * rounds_to(2.344, 2.35, 2)", 1.0),
    ],
)
def test_values(formula, value):
    found = computed(parsed(formula), GIVEN)
    assert found.shape == () and float(found) == pytest.approx(value)


def test_comparisons_can_leave_out_the_noise_of_binary_fractions():
    tree = parsed("0.1 + 0.2 > 0.3")
    assert computed(tree, {}) == 1 and computed(tree, {}, decimals=9) == 0
    assert computed(parsed("0.1 + 0.2 > 0.3 - 1e-8"), {}, decimals=9) == 1


def test_a_formula_may_give_a_list():
    assert computed(parsed("y[x < 2] - b"), GIVEN).tolist() == [-1.0, 2.0]
    assert computed(parsed("index(y) + 1"), GIVEN).tolist() == [1, 2, 3, 4, 5, 6]
    assert computed(parsed("smooth(y, 3)"), GIVEN).tolist() == pytest.approx([2.5, 7 / 3, 14 / 3, 16 / 3, 7, 6.5])
    assert computed(parsed("smooth(fold(y, 3), 3)[1]"), GIVEN).tolist() == [7, 7, 6.5], "each row alone"
    assert computed(parsed("row_variances(fold(y, 2))"), GIVEN).tolist() == [2.25, 9.0, 0.25]
    assert computed(parsed("row_variances(m)[1:]"), GIVEN).tolist() == [2.25, 0.0], "of known entries"
    assert computed(parsed("turned(fold(y, 2))"), GIVEN).tolist() == [[1, 2, 6], [4, 8, 7]]
    cube = {"c": np.arange(24.0).reshape(4, 3, 2)}
    assert computed(parsed("turned(c)"), cube).shape == (3, 2, 4), "the first axis becomes the last"
    assert computed(parsed("row_means(c)"), cube).shape == (4, 3)
    assert computed(parsed("spaced(8, 4)"), {}).tolist() == [0, 2, 5, 7]
    assert computed(parsed("spaced(2, 4)"), {}).tolist() == [0, 1]
    assert computed(parsed("closest(x, spaced(3, 3) * 1.9)"), GIVEN).tolist() == [0, 2, 4]
    assert computed(parsed("closest(gap, 2.1)"), GIVEN).tolist() == [2]
    assert computed(parsed("firsts(c > 2)"), cube).tolist()[1:] == [[0, 0, 0]] * 3, "of each row of more axes"
    assert np.array_equal(computed(parsed("firsts(c > 2)"), cube)[0], [np.nan, 1, 0], equal_nan=True)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("mean(y[x > 9])", "nothing is selected"),
        ("first(y > 99)", "no entry is as required"),
        ("y[6]", "index 6 is out of bounds"),
        ("y + gap", "could not be broadcast"),
        ("0 / 0", "0 / 0: float division by zero"),
        ("1 / (y[0] - 1)", "is no number here"),
        ("rank_correlation(x, 0 * x)", "all entries of a list are the same"),
        ("explained(0 * y, x)", "all entries of a list are the same"),
        ("rank_correlation(gap[1:2], x[1:2])", "nothing is selected"),
        ("slope(y, 0 * x)", "a slope needs two places that differ"),
        ("slope(y, x[1:])", "a slope needs as many entries of both"),
        ("explained(y, x)", "every group has a single entry"),
        ("fold(y, 4)", "cannot reshape"),
        ("mean(highest(m[2:, :1]))", "nothing is selected"),
        ("y[1/2]", "0.5 is no whole number"),
        ("len(b)", "unsized"),
        ("9.0 ** 9 ** 9", "is too large for a number"),
    ],
)
def test_what_has_no_value(formula, message):
    with pytest.raises(NoValue, match=message):
        computed(parsed(formula), GIVEN)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("mean(y", "was never closed, at character"),
        ("men(y)", "there is no function 'men'; did you mean 'mean'"),
        ("y.mean()", "there is no function 'y.mean'"),
        ("mean(y, x)", "mean takes 1 argument"),
        ("part(y, 0)", "part takes 3 arguments"),
        ("mean(y=x)", "mean takes 1 argument"),
        ("y['a']", "'a' is no number"),
        ("y[True]", "True is no number"),
        ("y.real", "Attribute is not for formulas"),
        ("y if x else b", "IfExp is not for formulas"),
        ("[i for i in y]", "not for formulas"),
        ("lambda: y", "Lambda is not for formulas"),
        ("x in y", "In is not for formulas"),
        ("x & y", "BitAnd is not for formulas"),
        ("~x", "Invert is not for formulas"),
        ("(y := x)", "NamedExpr is not for formulas"),
        ("", "at character"),
    ],
)
def test_what_is_no_formula(formula, message):
    with pytest.raises(ValueError, match=message):
        parsed(formula)


def test_names_and_functions():
    assert sorted(names_in(parsed("mean(y[x > 2]) - mean(y) + b"))) == ["b", "x", "y"]
    assert all(count >= 1 and what for count, _, what in FUNCTIONS.values())


# ---- measures ----

RECORD = make_record(
    flops=4.0,
    results=make_results(
        validation=make_loss(3.0),
        extrapolation={"2": make_loss(1.0), "4": make_loss(5.0)},
        probes={
            "lens": {"block": 2, "y": [1.0, None, 3.0], "by": {"2": {"z": [5.0]}}},
            "none": {"skipped": "too deep"},
        },
    ),
)


def value(formula, of, **others):
    measures = {"it": Measure(title="t", formula=formula, of=of)}
    measures |= {name: Measure(title="t", formula=other, of=paths) for name, (other, paths) in others.items()}
    return number_of(RECORD, "it", measures)


LENS = "results.probes.lens"


def test_measures_read_records():
    assert value("mean(y) / n", {"y": f"{LENS}.y", "n": "flops"}) == 0.5
    assert value("loss", {"loss": "results.validation.loss"}) == 3.0, "of a mean with its error, the mean"
    assert value("z[0] + b", {"b": f"{LENS}.block", "z": f"{LENS}.by.{{b}}.z"}) == 7.0
    assert value("z[0]", {"z": [f"{LENS}.nothing", f"{LENS}.by.2.z"]}) == 5.0, "the first that was measured"
    assert value("m + 1", {"m": "other"}, other=("mean(y)", {"y": f"{LENS}.y"})) == 3.0
    assert values_of(RECORD, f"{LENS}.y", {}).tolist()[::2] == [1.0, 3.0], "a path, without any measure"
    assert value("mean(x)", {"x": "results.extrapolation.*.loss"}) == 3.0, "all of a table"


def test_all_entries_of_a_list_or_of_a_table_by_name():
    record = make_record(
        hooks={"grown": {"looped": [{"since": 15}, {"since": 30}], "by": {"a": {"n": 1}, "b": {"n": 2}}}}
    )
    assert values_of(record, "hooks.grown.looped.*.since", {}).tolist() == [15, 30]
    assert values_of(record, "hooks.grown.by.*.n", {}).tolist() == [1, 2]
    with pytest.raises(NotMeasured):
        values_of(make_record(hooks={"grown": {"looped": []}}), "hooks.grown.looped.*.since", {})


def test_whether_results_are_read():
    measures = {
        "late": Measure(title="t", formula="x - y", of={"x": "flops", "y": "results.validation.loss"}),
        "of late": Measure(title="t", formula="x", of={"x": "late"}),
        "logged": Measure(title="t", formula="x", of={"x": ["flops", "tokens"]}),
    }
    found = [reads_results(name, measures) for name in (*measures, "results.validation.loss", "flops")]
    assert found == [True, True, False, True, False]


def test_what_a_record_does_not_have():
    with pytest.raises(NotMeasured, match="not measured: results.probes.lens.nothing"):
        value("y", {"y": f"{LENS}.nothing"})
    with pytest.raises(NotMeasured, match=r"not measured: results.extrapolation.\*.nothing"):
        value("mean(y)", {"y": "results.extrapolation.*.nothing"})
    with pytest.raises(NotMeasured, match="not measured: results.probes.lens.by.2.x"):
        value("x", {"x": [f"{LENS}.x", f"{LENS}.by.2.x"]})
    with pytest.raises(NoValue, match="too deep"):
        value("y", {"y": "results.probes.none.y"})
    with pytest.raises(UserError, match="it is a list of 3, not a number; reduce it"):
        value("y", {"y": f"{LENS}.y"})
    with pytest.raises(UserError, match="results.probes.lens.by is neither a number nor a list"):
        value("y", {"y": f"{LENS}.by"})


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("{title: t, of: {y: flops}, formula: mean(x)}", r"x.yaml:7: .*uses 'x', which `of` does not have; "),
        ("{title: t, of: {y: flops, x: flops}, formula: mean(y)}", "x is not in the formula"),
        ("{title: t, of: {b: flops, x: flops, y: 'at.{b}.y'}, formula: mean(y)}", "x is not in the formula"),
        ("{title: t, of: {}, formula: mean(y)}", "uses 'y', which `of` does not have; it has none"),
        ("{title: t, of: {y: 'results.{b}.y', b: flops}, formula: mean(y)}", "with a name that stands above it"),
        ("{title: t, of: {y: flops}, formula: 'mean(y]'}", "x.yaml:7: .*does not match"),
        ("{title: t, of: {y: flopps}, formula: mean(y)}", r"x.yaml:7: mine has no measure 'flopps', and a record no"),
        ("{title: t, of: {y: results.validaton.loss}, formula: y}", r"x.yaml:7: .*did you mean 'validation'"),
        ("{title: t, of: {y: late}, formula: mean(y)}", r"x.yaml:7: the measures late → late need each other"),
    ],
)
def test_mistakes_in_measures_are_named_with_their_line(tmp_path, measure, message):
    file = tmp_path / "x.yaml"
    file.write_text(f"id: mine\ntitle: t\npaper: mine\nsource: s\ncells: {{}}\nmeasures:\n  late: {measure}\n")
    with pytest.raises(UserError, match=message):
        load_experiment(str(file))


def test_a_measure_is_not_named_like_a_path(tmp_path):
    file = tmp_path / "x.yaml"
    for name in ("flops", "a.b"):
        file.write_text(
            "id: mine\ntitle: t\npaper: mine\nsource: s\nmeasures:\n"
            f"  {name}: {{title: t, of: {{y: tokens}}, formula: y}}\n"
        )
        with pytest.raises(UserError, match=f"x.yaml:6: measures: '{name}' is, or looks like, a path"):
            load_experiment(str(file))


def test_a_claim_names_a_measure_or_the_nearest(tmp_path):
    file = tmp_path / "x.yaml"
    text = (
        "id: mine\ntitle: t\npaper: mine\nsource: s\n"
        "cells: {a: {arch: vanilla, phase: p}, b: {arch: vanilla, phase: p}}\n"
        "measures:\n  late: {title: t, of: {y: flops}, formula: y}\n"
        "claims:\n  - {text: t, source: s, test: 'NAME[a] < [b]'}\n"
    )
    for name in ("late", "flops", "results.validation.loss"):
        file.write_text(text.replace("NAME", name))
        assert load_experiment(str(file)).measures["late"].formula == "y"
    file.write_text(text.replace("NAME", "lat"))
    with pytest.raises(UserError, match="mine has no measure 'lat', and a record no such metric; did you mean 'late'?"):
        load_experiment(str(file))


def test_a_plot_has_the_measures_of_its_experiment(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        "id: mine\ntitle: t\npaper: mine\nsource: s\nplot: {kind: lines, metric: late, panels: []}\n"
        "measures:\n  late: {title: t, of: {y: flops}, formula: y}\n"
    )
    plot = check(Experiment, load_file(file)).plot
    assert list(plot._measures) == ["late"] and list(plot.model_copy(update={"metric": "late"})._measures) == ["late"]
