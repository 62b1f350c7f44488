"""The README: its example runs, its commands and ids exist."""

import importlib
import json
import operator
import os
import re
import subprocess

import pytest
import typer

from hybridlab.cli.main import app
from hybridlab.config.loading import parse_setting, preset_names
from hybridlab.config.resolve import resolve
from hybridlab.papers.ids import SAYS
from hybridlab.papers.loading import experiment_ids, load_experiment
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
DOCS = [file.read_text() for file in sorted((ROOT / "docs").glob("*.md"))]


def test_the_python_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README", "exec"), {})
    assert "w" in capsys.readouterr().out


def test_the_commands_exist_with_their_options():
    group = typer.main.get_command(app)
    text = "\n".join([README, *DOCS]).replace("\\\n", " ")
    shown = re.findall(r"^hybridlab ((?:.|\\\n)*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(shown) >= 8
    for line in shown:
        words = line.split()
        command = group.commands[words[0]]
        if hasattr(command, "commands") and not (words[1:] or ["--"])[0].startswith("-"):
            command = command.commands[words[1]]
        options = {name for parameter in command.params for name in parameter.opts}
        used = {word for word in words if word.startswith("--")}
        assert used <= options, line
        for setting in re.findall(r"--set (\S+)", line):
            resolve("consa", "tiny", layers=[parse_setting(setting)])


def test_the_makefile_has_the_two_commands_and_ci_calls_one():
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"^make (\w+)", README, re.MULTILINE) == ["reproduce", "test"]
    assert "\nreproduce:" in makefile and "\ntest:" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def commands_of(*targets):
    """The words of every hybridlab command that `make` would run for these targets."""
    # Without the variables of the `make test` that runs this.
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, env=path, capture_output=True, text=True, check=True)
    lines = done.stdout.replace("\\\n", " ").splitlines()
    return [line.split()[1:] for line in lines if line.split()[:1] == [".venv/bin/hybridlab"]]


def test_make_reproduce_and_make_evidence_leave_the_committed_results_as_they_are():
    """README quotes results/, and `make test` compares the two; so the numbers of another machine go elsewhere."""
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    commands = commands_of("reproduce", "evidence")
    assert [words[0] for words in commands] == ["reproduce", "reproduce"]
    for words in commands:
        folder = words[words.index("--results-dir") + 1]
        assert f"/{folder.split('/')[0]}/" in ignored


def test_make_all_tables_and_all_figures_read_the_committed_records_alone():
    """A finished run in runs/ that results/ has no record of would be added to the committed tables."""
    commands = commands_of("all-tables", "all-figures")
    assert [words[:2] for words in commands] == [["report", "--tables"], ["report", "--figures"]]
    for words in commands:
        folder = ROOT / words[words.index("--runs-dir") + 1]
        assert folder.is_dir() and not [*folder.glob("*/run.json"), *folder.glob("*/record.json")]


def test_every_id_of_the_readme_is_there():
    own = "growth|primitives|copying|speed|refinement|leak"
    papers = rf"(?:consa|sgt|spiral)-[a-z]+(?:-?\d+)?|(?:depth|saobp)-(?:table\d+|fig\d+|{own})"
    named = set(re.findall(f"`({papers})`", README))
    assert named - set(preset_names("size")) == set(experiment_ids())


def functions():
    """(file under hybridlab/, name in it) of every `file.py:name`."""
    return re.findall(r"`([\w/]+)\.py:([\w.]+)`", README)


def test_every_function_that_an_equation_points_to_is_there():
    for file, name in functions():
        assert operator.attrgetter(name)(
            importlib.import_module("hybridlab." + file.removesuffix("/__init__").replace("/", "."))
        )
    parts = README.split("## From an equation to the code")[1].split("\n## ")[0].split("\n**")[1:]
    assert [len(re.findall(r"^\| .*\.py:", part, re.MULTILINE)) > 5 for part in parts] == [True] * 4


def test_every_file_and_picture_that_it_names_is_there():
    named = re.findall(r"`((?:hybridlab|experiments|tests|results)/[\w./-]*)`", README)
    named += [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert len(named) > 20 and not [path for path in named if not (ROOT / path).exists()]
    assert re.search(r"!\[.+\]\(results/.*\.png\)", README)


def rows_of(text):
    """First cell → cells, of all tables of a Markdown text."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {cells[0]: cells for cells in rows}


def test_the_table_is_the_one_in_results_to_the_digit():
    source = (ROOT / "results" / "consa-table1" / "smoke" / "table.md").read_text()
    whole, shown = rows_of(source.split("## Claims")[0]), rows_of(README.split("## What comes out")[1].split("PPL:")[0])
    columns = [whole[""].index(name) for name in shown[""]]
    for name in set(shown) - {"---"}:
        assert shown[name] == [whole[name][column] for column in columns]
    assert set(shown) == set(whole)
    claims = README.split("| claim | place |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(claims) == 4 and all(line in source.splitlines() for line in claims)


FRONT = "| claim | in | verdict | comparisons | the one that is least as claimed (± s.e.) | seeds |"


def front_row(text, identifier):
    """A row of README's table: every comparison of a claim is counted, the least favourable one is shown, and a verdict
    says what its page says of it."""
    table = json.loads((ROOT / "results" / identifier / "desk" / "table.json").read_text())
    [claim] = [claim for claim in table["claims"] if claim["text"] == text]
    verdict = f"{claim['verdict']} ({claim['note']})" if claim["note"] else claim["verdict"]
    measured = [one for one in claim["comparisons"] if one["n"]]
    planned = load_experiment(identifier).scales["desk"].seeds
    where = f"[{identifier}](results/{identifier}/desk/table.md)"
    if not measured:
        return f"| {text} | {where} | {verdict} | – | – | 0 of {len(planned)} |"
    resolved = [one for one in measured if one["p"] is not None and one["p"] < 0.05]
    met = [one for one in resolved if short_by(one) < 0]
    words = [f"{len(met)} of {len(claim['comparisons'])} as claimed"]
    words += [f"{len(resolved) - len(met)} opposite"] if len(resolved) > len(met) else []
    worst = max(measured, key=short_by)
    spread = "(one seed)" if worst["stderr"] is None else f"± {worst['stderr']:.4f}"
    shown = f"{worst['label']}: {worst['value']:+.4f} {spread}"
    seeds = f"{min(one['n'] for one in measured)} of {len(planned)}"
    return f"| {text} | {where} | {verdict} | {', '.join(words)} | {shown} | {seeds} |"


def short_by(comparison):
    """By how many standard errors a comparison misses what the claim asks; negative where it is as asked."""
    low, high = comparison["asked"]
    gaps = [low - comparison["value"]] if low is not None else []
    gaps += [comparison["value"] - high] if high is not None else []
    return max(gaps) / (comparison["stderr"] or 1e-12)


def test_the_claims_of_the_front_page_are_those_of_the_tables():
    """With HYBRIDLAB_WRITE_README=1 the rows are written anew."""
    rows = README.split(FRONT)[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) >= 8
    named = [re.match(r"\| (.*?) \| \[([a-z0-9-]+)\]", row).groups() for row in rows]
    expected = [front_row(*one) for one in named]
    if os.environ.get("HYBRIDLAB_WRITE_README"):
        (ROOT / "README.md").write_text(README.replace("\n".join(rows), "\n".join(expected)))
        return
    assert rows == expected


def test_what_the_scales_can_show_stands_there_as_in_the_code():
    for scale, says in SAYS.items():
        assert f"| `{scale}` | {says} |" in README


def test_make_evidence_names_experiments_that_have_the_scale():
    makefile = (ROOT / "Makefile").read_text()
    (names,) = re.findall(r"^EVIDENCE \?= ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    (scale,) = re.findall(r"^EVIDENCE_SCALE \?= (.*)$", makefile, re.MULTILINE)
    assert "make evidence" in README and names
    for name in names.replace("\\", " ").split():
        assert scale in load_experiment(name).available_scales()


@pytest.mark.parametrize("number", ["2606.18056", "2603.23998", "2602.11698", "2509.07324", "2512.08819"])
def test_the_papers_are_linked(number):
    assert f"[{number}](https://arxiv.org/abs/{number})" in README


def test_lists_of_architectures_and_sizes_are_named():
    assert {"hybridlab list --archs", "hybridlab list --sizes"} <= set(re.findall(r"hybridlab list --\w+", README))
