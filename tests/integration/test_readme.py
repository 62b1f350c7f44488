"""What the README shows is true."""

import re
from pathlib import Path

from hybridlab.cli.main import app
from hybridlab.config.loading import parse_setting
from hybridlab.config.resolve import resolve
from hybridlab.reproduction.experiment import experiment_ids

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README", "exec"), {})
    assert "w" in capsys.readouterr().out


def test_the_commands_exist_with_their_options():
    import typer

    group = typer.main.get_command(app)
    shown = re.findall(r"^hybridlab ((?:.|\\\n)*?)(?:  +#.*)?$", README.replace("\\\n", " "), re.MULTILINE)
    assert len(shown) >= 8
    for line in shown:
        words = line.split()
        command = group.commands[words[0]]
        if hasattr(command, "commands"):
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


def test_every_id_of_the_readme_is_there():
    named = set(re.findall(r"`([a-z]+-(?:(?:table|fig)\d+|speed))`", README))
    assert named == set(experiment_ids())
