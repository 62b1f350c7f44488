"""`hybridlab list --archs` and `--sizes`, and the sentences that they show."""

import json

import pytest
from typer.testing import CliRunner

import hybridlab
from hybridlab.cli.main import app
from hybridlab.config.loading import preset_names
from hybridlab.config.presets import first_sentence, summaries
from hybridlab.errors import UserError
from hybridlab.papers.ids import SCALES
from hybridlab.papers.scales import SAYS
from tests.conftest import run_python


def listed(*arguments):
    return CliRunner().invoke(app, ["list", *arguments], catch_exceptions=True)


@pytest.mark.parametrize("what", ["arch", "size"])
def test_every_preset_has_a_line_of_its_own(what):
    done = listed(f"--{what}s")
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line.strip()][2:]
    assert [line.split()[0] for line in lines] == preset_names(what)
    for line, summary in zip(lines, summaries(what).values(), strict=True):
        assert summary.endswith(".") and summary in line and len(line) <= 80


def test_the_parameters_are_those_of_the_model():
    rows = json.loads(listed("--sizes", "--json").stdout)["sizes"]
    (tiny,) = (row for row in rows if row["name"] == "tiny")
    assert tiny["parameters"] == sum(p.numel() for p in hybridlab.build_model("vanilla", "tiny").parameters())
    assert f"{tiny['parameters']:,}" in listed("--sizes").stdout


def test_json_holds_the_same_lines():
    rows = json.loads(listed("--archs", "--json").stdout)["archs"]
    assert {row["name"]: row["summary"] for row in rows} == summaries("arch")


def test_the_scales_are_those_of_the_experiments_with_two_sentences_each():
    rows = json.loads(listed("--scales", "--json").stdout)["scales"]
    assert tuple(row["name"] for row in rows) == SCALES
    assert all(row["summary"] == SAYS[row["name"]] and row["summary"].count(". ") == 1 for row in rows)


@pytest.mark.parametrize(
    "arguments", [["--archs", "--sizes"], ["--archs", "--scales"], ["--archs", "--results-dir", "elsewhere"]]
)
def test_options_without_effect_are_refused(arguments):
    done = listed(*arguments)
    assert isinstance(done.exception, UserError)


@pytest.mark.parametrize("what", ["--archs", "--sizes", "--scales"])
def test_a_list_takes_less_than_a_second_and_no_torch(what):
    """Processor time, which other processes on the machine hardly change."""
    code = f"import sys; from hybridlab.cli.main import app; app(['list', '{what}'], standalone_mode=False)"
    code += "; print(); print('torch' in sys.modules, sum(os.times()[:2]))"
    ends = [run_python("import os; " + code).split()[-2:] for _ in range(3)]
    assert {loaded for loaded, _ in ends} == {"False"}
    assert min(float(seconds) for _, seconds in ends) < 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# A 0.6B model (table 2). More.\nkey: 1\n", "A 0.6B model (table 2)."),
        ("# One that goes\n# on. And more.\n", "One that goes on."),
        ("# No end\nkey: 1 # Not this.\n", "No end"),
        ("key: 1\n# Later.\n", ""),
    ],
)
def test_the_first_sentence_of_a_file(text, sentence):
    assert first_sentence(text) == sentence
