"""Values that files and commands may hold but seldom do: each ends in a number or in one sentence."""

import bz2
import gzip
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import hybridlab
from hybridlab.analysis.probes.last_token import statistics
from hybridlab.analysis.prompts import Prompt as AnalysisPrompt
from hybridlab.analysis.prompts import encoded
from hybridlab.config.loading import Layer, load_file
from hybridlab.config.resolve import resolve
from hybridlab.config.study import short_name
from hybridlab.data.files import DataRoot, SourceFile, TaskDataset
from hybridlab.data.primitives import _parsed
from hybridlab.data.sources import read_documents
from hybridlab.data.tasks import Task, TaskRow, make_row
from hybridlab.errors import UserError, first_line
from hybridlab.evaluation.lm_eval_tasks import _means
from hybridlab.lab.cli.plan import _commands
from hybridlab.lab.papers.claims import printed
from hybridlab.lab.papers.claims.expression import expression
from hybridlab.lab.papers.entries import _rows_of
from hybridlab.lab.papers.experiment import Column, Row
from hybridlab.lab.papers.formula import parsed
from hybridlab.lab.papers.limits import limits_in
from hybridlab.lab.papers.questions import informative
from hybridlab.lab.reporting.figure_kind import short_number
from hybridlab.lab.reporting.kinds import distributions
from hybridlab.lab.reporting.kinds.distributions import distributions_of
from hybridlab.registry import TASKS
from hybridlab.statistics import NO_LIMITS, Measurement


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


IDS = torch.zeros(2, 4, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: model.generate(IDS, 2, temperature=1.0, seed=[1]), "1 seeds for 2 prompts"),
        (lambda model: model.generate(IDS[:0], 2), "at least one prompt and one token"),
        (lambda model: model.generate(IDS + 4096, 2), "input_ids must be from 0 to 1023"),
        (lambda model: model.generate(IDS - 1, 2), "input_ids must be from 0 to 1023"),
        (lambda model: hybridlab.flops(model, 0), "seq_len 0 must be 1 or more"),
        (lambda model: hybridlab.AttentionMap.from_masks([], window=4), "at least one layer"),
        (lambda model: hybridlab.AttentionMap.from_masks([[], []], window=4), "at least one KV head"),
        (lambda model: hybridlab.AttentionMap.rule(0, 2, "layer", 0.5, 4), "0 layers of 2 KV heads"),
        (lambda model: hybridlab.Plan.plain(-1), "num_layers -1 must be a whole number, not below 0"),
    ],
)
def test_sizes_and_tokens_that_cannot_be_end_in_a_sentence(call, said):
    with pytest.raises(UserError, match=re.escape(said)):
        call(hybridlab.build_model("vanilla"))


def test_a_window_that_a_new_kind_of_map_has_replaced_is_that_of_the_layer(tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text("window: 8\nmap: {kind: window, window: 8}\n")
    settings = ["map.kind=rule", "map.granularity=layer", "map.rho=0.5"]
    assert resolve("vanilla", "tiny", layers=[load_file(file)], settings=settings).map.window == 8


@pytest.mark.parametrize("data", ["", " [embedded]", " 5"])
def test_data_that_are_no_mapping_are_a_mistake_of_fine_tuning_too(tmp_path, data):
    file = tmp_path / "f.yaml"
    file.write_text(f"finetune: {{task: sst2, data: [a.tsv]}}\ndata:{data}\n")
    with pytest.raises(UserError, match="data"):
        resolve("vanilla", "tiny", layers=[load_file(file)])


def test_places_after_a_byte_order_mark_are_those_of_the_file(tmp_path):
    table, text = tmp_path / "a.json", tmp_path / "a.txt"
    table.write_bytes(b"\xef\xbb\xbf[\n\xff]")
    text.write_bytes(b"\xef\xbb\xbfab\xff")
    with pytest.raises(UserError, match=r"a\.json:2: this is not UTF-8"):
        SourceFile(table).text()
    with pytest.raises(UserError, match=r"byte 5 is not UTF-8"):
        list(read_documents(f"text:{text}"))


def test_a_text_that_is_there_in_two_compressions_is_not_read_twice(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress(b"one"))
    with pytest.raises(UserError, match=r"a\.txt\.bz2 and a\.txt\.gz, which would be read twice"):
        list(read_documents(f"text:{tmp_path}"))


def test_a_row_of_a_task_without_tokens_is_refused():
    none = np.zeros(0, dtype=np.int64)
    row = TaskRow(none, none, none, none.reshape(0, 2), none.astype(bool))
    TASKS.add("none", Task(lambda length, rng: row, chance=0.5))
    try:
        with pytest.raises(UserError, match=r"must have 8 tokens from 0 to \d+; it has none"):
            make_row("none", 8, np.random.default_rng(0))
    finally:
        TASKS.remove("none")


def test_short_names_keep_an_at_of_a_folder():
    assert short_name("file:/home/me@corp/models/tiny.gguf") == "tiny"
    assert short_name("hub:owner/name@main") == "name"


def test_the_attention_of_a_sequence_of_one_token_has_statistics():
    found = statistics(torch.ones(3, 1))
    assert {name: value.tolist() for name, value in found.items()} == {
        "entropy": [0, 0, 0],
        "local": [1, 1, 1],
        "range": [0, 0, 0],
        "first": [1, 1, 1],
    }


def test_an_answer_without_a_token_is_refused():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert encoded(tokenizer, AnalysisPrompt("a", " a")) == ([0, 0], 1)
    with pytest.raises(UserError, match="the answer ' ' of a prompt has no token"):
        encoded(tokenizer, AnalysisPrompt("a", " "))


def test_a_divisor_that_is_zero_has_no_limits():
    assert limits_in(parsed("a / 0"), {"a": (0.0, 1.0)}) == NO_LIMITS


def test_an_expression_without_a_value_is_refused_with_its_text():
    with pytest.raises(ValueError, match=r"^expression 'loss\[a\] < p_of_correlation\(r=1.0, pairs=5\)': "):
        expression("loss[a] < p_of_correlation(r=1.0, pairs=5)")


def test_a_range_of_billions_is_refused_before_it_fills_the_memory():
    with pytest.raises(UserError, match="more than 20,000 cases"):
        printed._cases({"n": "1 to 2000000000"})


@pytest.mark.parametrize(
    ("gpus", "asked"), [(1, "--gpus-per-node 1"), (8, "--gpus-per-node 8"), (12, "--nodes 2 --gpus-per-node 6")]
)
def test_a_command_of_slurm_has_the_gpus_that_were_asked_for(gpus, asked):
    assert _commands(["sgt-table1"], "paper", gpus)["slurm"].endswith(f"--launcher slurm {asked}")


def test_a_number_with_an_exponent_was_not_rounded_to_its_letters():
    table = "name  short  FLOPs  loss\nA  A  1.5e3  2.16"
    (row,) = _rows_of(Layer({"rows": table}, {("rows",): "own.yaml:3"}), "rows").values["rows"]
    assert row["paper"] == {"FLOPs": 1500.0, "loss": 2.16} and row["digits"] == {"loss": 2}
