"""Values that files and commands may hold but seldom do: each ends in a number or in one sentence."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from hybridlab.config.loading import Layer, load_file
from hybridlab.config.resolve import resolve
from hybridlab.data.files import DataRoot, TaskDataset
from hybridlab.data.primitives import _parsed
from hybridlab.errors import UserError, first_line
from hybridlab.evaluation.lm_eval_tasks import _means
from hybridlab.lab.papers.experiment import Column, Row
from hybridlab.lab.papers.formula import parsed
from hybridlab.lab.papers.questions import informative
from hybridlab.lab.reporting.figure_kind import short_number
from hybridlab.lab.reporting.kinds import distributions
from hybridlab.lab.reporting.kinds.distributions import distributions_of
from hybridlab.statistics import Measurement


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError(" \n"), "ValueError"),
        (KeyError(), "KeyError"),
        (OSError("x" * 999), "x" * 160),
    ],
)
def test_the_first_line_of_an_error_of_a_library(error, said):
    assert first_line(error) == said


@pytest.mark.parametrize("content", ["[]", "false", "0", '""', "- a"])
def test_settings_that_are_no_mapping_are_refused(tmp_path, content):
    (tmp_path / "own.yaml").write_text(content)
    with pytest.raises(UserError, match="must be a mapping of names to values"):
        load_file(tmp_path / "own.yaml")


def test_an_empty_file_of_settings_sets_nothing(tmp_path):
    (tmp_path / "own.yaml").write_text("# nothing yet\n")
    assert load_file(tmp_path / "own.yaml").values == {}


def test_the_mean_of_a_tag_with_a_part_too_large_for_a_number_is_none():
    parts = {name: {"ppl": Measurement(value=value, stderr=None, n=4)} for name, value in (("a", None), ("b", 8.0))}
    assert _means(parts)["ppl"] == Measurement(value=None, stderr=None, n=8)


@pytest.mark.parametrize("argument", ["0:copying-real:20k", "0:copying-real:foo"])
def test_a_number_of_documents_that_is_none_is_refused(argument):
    with pytest.raises(UserError, match="is no whole number of documents"):
        _parsed(argument)


GOOD = '{"question": "How many?", "answer": "2", "type": "addsub"}'


@pytest.mark.parametrize("line", ["3", "null", GOOD.replace('"2"', "Infinity"), GOOD.replace('"2"', "9" * 400)])
def test_a_line_of_a_benchmark_that_is_no_example_names_its_place(tmp_path, line):
    (tmp_path / "mawps").mkdir()
    (tmp_path / "mawps" / "test.jsonl").write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(UserError, match=r"test\.jsonl:2"):
        DataRoot(tmp_path).split(TaskDataset("mawps_addsub", ""), "test")


@pytest.mark.parametrize("metric", ["results.validation.{", "results.{}", "results.{short.foo}", "results.{short[z]}"])
def test_a_path_that_no_row_can_fill_is_refused(metric):
    column = Column(name="a", title="a", kind="trained", metric=metric)
    with pytest.raises(UserError, match="is no path; write a value that rows give"):
        column.metric_of(Row(name="r", short="r"))


def test_percentages_with_many_digits_tell_every_number_of_questions_apart():
    assert 0 < informative(20, 1838) == informative(12, 1838) < 1e-9


def test_a_name_for_what_was_not_measured():
    assert [short_number(value) for value in (math.nan, 0.25, 5.0, 0.37)] == ["–", "1/4", "5", "0.37"]


@pytest.mark.parametrize("text", ["+".join(["a"] * 3000), "-" * 200 + "a"])
def test_a_formula_that_is_nested_too_deeply_is_refused(text):
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed(text)


EDITS = ["op: swap, first: 0, second: 9", "op: reverse, start: 0", "op: recur, first: 0, chunks: [1]"]


@pytest.mark.parametrize("edit", EDITS)
def test_a_group_of_a_billion_layers_is_refused_before_it_fills_the_memory(edit):
    with pytest.raises(UserError, match="size = 1000000000: must be less than"):
        resolve("vanilla", "tiny", settings=[f"plan=[{{{edit}, size: 1000000000}}]"])


def test_a_conflict_that_names_no_setting_has_the_place_of_the_whole():
    assert Layer({"a": 1}, {(): "own.yaml:1", ("a",): "own.yaml:2"}).latest(()) == "own.yaml:1"


def test_a_row_of_nothing_but_null_was_not_measured(monkeypatch):
    plot, rows = SimpleNamespace(metric="m", names="{}"), [[0.1, 0.2], [None, None]]
    monkeypatch.setattr(distributions, "values", lambda *_: np.array(rows, dtype=float))
    assert distributions_of(plot, SimpleNamespace(hash="h")) is None
