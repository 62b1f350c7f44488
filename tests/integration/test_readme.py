"""README and docs/: examples run, commands and ids exist, links lead somewhere, tables are the published ones."""

import importlib
import operator
import os
import re
import subprocess
import sys

import pytest
import typer

from hybridlab.config.loading import parse_setting
from hybridlab.config.resolve import resolve
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers.ids import SAYS
from tests.conftest import PUBLISHED, ROOT
from tests.experiments import experiment_ids
from tests.pages import FRONT, OBSERVED, PAGES

FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = FILES[0].read_text()
METHODS = {file.stem: file.read_text() for file in sorted((ROOT / "docs" / "methods").glob("*.md"))}
PAGES_TEXT = {file.relative_to(ROOT).as_posix(): file.read_text() for file in FILES}


@pytest.mark.parametrize("page", ["README.md", "docs/export.md"])
def test_the_python_example_runs(page, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGES_TEXT[page], re.DOTALL)
    exec(compile(code, page, "exec"), {})
    assert "w" in capsys.readouterr().out


def test_python_examples_name_what_they_use():
    for page, text in PAGES_TEXT.items():
        code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
        check = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", "-"]
        done = subprocess.run(check, input=code, capture_output=True, text=True)
        assert done.returncode == 0, page + "\n" + done.stdout


def test_settings_that_a_shell_would_expand_are_quoted():
    """zsh takes brackets for a pattern of file names."""
    for page, text in PAGES_TEXT.items():
        assert not re.findall(r"--set [^'\"\s`]*\[[^`\s]*", text), page


def test_what_is_listed_is_counted():
    of_papers = [name for name in experiment_ids() if re.fullmatch(r"(?!hybrid)\w+-(fig|table)\d+", name)]
    assert f"# {len(of_papers)} tables and figures, and {len(experiment_ids()) - len(of_papers)} of our own" in README


def test_the_readme_is_a_page():
    assert len(README.splitlines()) <= 150


def test_the_commands_exist_with_their_options():
    group = typer.main.get_command(app)
    # The commands of these pages are run: test_own_parts.py, test_own_attention_page.py.
    texts = [text for name, text in PAGES_TEXT.items() if name not in ("docs/plugins.md", "docs/your-own-attention.md")]
    text = "\n".join(texts).replace("\\\n", " ")
    shown = re.findall(r"^hybridlab ((?:.|\\\n)*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(shown) >= 60
    for line in shown:
        words = line.split()
        command = group.commands[words[0]]
        if hasattr(command, "commands") and not (words[1:] or ["--"])[0].startswith("-"):
            command = command.commands[words[1]]
        options = {name for parameter in command.params for name in parameter.opts}
        used = {word for word in words if word.startswith("--")}
        assert used <= options, line
        for setting in re.findall(r"--set (?:\w+:)?(\S+)", line):
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


def test_the_commands_of_the_makefile_write_into_what_git_ignores():
    """README quotes results/published/, and `make test` compares the two; so own numbers go beside it."""
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/results/*", "!/results/published/", "/runs/", "/build/"} <= set(ignored)
    commands = commands_of("reproduce", "evidence", "all-tables", "all-figures")
    assert [words[0] for words in commands] == ["reproduce", "reproduce", "report", "report"]
    assert [words[1] for words in commands[2:]] == ["--tables", "--figures"]
    given = {word for words in commands for word in words if word.startswith("--")}
    assert given == {"--scale", "--until", "--tables", "--figures"}, "folders are the default ones"


def test_every_id_is_in_the_page_of_its_method():
    own = "growth|primitives|copying|ladder|slopes|speed|refinement|strong|leak"
    papers = rf"(?:consa|hybrid|sgt|spiral)-[a-z]+(?:-?\d+)?|(?:depth|saobp)-(?:table\d+|fig\d+|{own})"
    named = {
        paper: set(re.findall(f"`({papers})`", text.split("## What is reproduced")[1]))
        for paper, text in METHODS.items()
    }
    assert set.union(*named.values()) == set(experiment_ids())
    assert all(name.startswith(f"{paper}-") for paper, names in named.items() for name in names)


def test_every_function_that_an_equation_points_to_is_there():
    for page in METHODS.values():
        found = re.findall(r"`([\w/]+)\.py:([\w.]+)`", page)
        assert len(found) > 5
        for file, name in found:
            assert (ROOT / "hybridlab" / f"{file}.py").exists(), "it has moved"
            module = "hybridlab." + file.removesuffix("/__init__").replace("/", ".")
            assert operator.attrgetter(name)(importlib.import_module(module))


@pytest.mark.parametrize("page", PAGES_TEXT)
def test_every_file_picture_and_link_that_it_names_is_there(page):
    text, folder = PAGES_TEXT[page], (ROOT / page).parent
    # plugins.md names files that a reader makes.
    paths = r"`((?:hybridlab|experiments|results)/[\w./-]*)`" if page != "docs/plugins.md" else r"(?!)"
    named = [ROOT / path for path in re.findall(paths, text)]
    named += [folder / link.partition("#")[0] for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert not [str(path) for path in named if not path.exists()]


def test_the_readme_has_a_picture_and_leads_to_every_page():
    assert re.search(r"!\[.+\]\(results/.*\.png\)", README)
    pages = [name for name in PAGES_TEXT if name.startswith("docs/") and name != "docs/index.md"]
    assert not [name for name in pages if f"]({name})" not in README]
    listed = PAGES_TEXT["docs/index.md"].split("```{toctree}")[1].split("\n\n")[1].split("\n```")[0].splitlines()
    assert sorted(f"docs/{name}.md" for name in listed) == sorted(pages)


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name):
    """`python -m tests.pages` writes them."""
    assert (ROOT / "docs" / name).read_text() == PAGES[name]()


def rows_of(text):
    """First cell → cells, of all tables of a Markdown text."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {cells[0]: cells for cells in rows}


def test_the_table_is_the_published_one_to_the_digit():
    source = (PUBLISHED / "consa-table1" / "smoke" / "table.md").read_text()
    whole, shown = rows_of(source.split("## Claims")[0]), rows_of(README.split("## What comes out")[1].split("PPL:")[0])
    columns = [whole[""].index(name) for name in shown[""]]
    for name in set(shown) - {"---"}:
        assert shown[name] == [whole[name][column] for column in columns]
    assert set(shown) == set(whole)


@pytest.mark.parametrize("head", [FRONT, OBSERVED])
def test_the_claims_of_the_front_page_are_those_of_the_tables(head):
    """They show what differs: three verdicts, or three pairs of small models' verdict and the pretrained one's."""
    rows = README.split(head)[1].split("\n\n")[0].splitlines()[1:]
    claims = PAGES_TEXT["docs/claims.md"].replace("](../", "](").splitlines()
    assert len(rows) == 3 and all(row in claims for row in rows)
    assert len({tuple(row.split(" | ")[2 : 3 if head == FRONT else 4]) for row in rows}) == 3


def test_what_the_scales_can_show_stands_there_as_in_the_code():
    for scale, says in SAYS.items():
        assert f"| `{scale}` | {says} |" in PAGES_TEXT["docs/evidence.md"]


def test_make_evidence_trains_what_undecided_claims_wait_for():
    assert commands_of("evidence") == [["reproduce", "--until", "8h"]]
    assert commands_of("evidence", "HOURS=2") == [["reproduce", "--until", "2h"]]
    assert "make evidence" in PAGES_TEXT["docs/evidence.md"]


@pytest.mark.parametrize("number", ["2606.18056", "2603.23998", "2602.11698", "2509.07324", "2512.08819"])
def test_the_papers_are_linked(number):
    assert f"[{number}](https://arxiv.org/abs/{number})" in README


def test_lists_of_architectures_and_sizes_are_named():
    assert {"hybridlab list --archs", "hybridlab list --sizes"} <= set(
        re.findall(r"hybridlab list --\w+", PAGES_TEXT["docs/quickstart.md"])
    )
