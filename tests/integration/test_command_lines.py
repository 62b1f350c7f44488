"""The words of every command: options given twice, home folders, results that go to standard output, closed streams."""

import os
import stat
import sys
from functools import partial
from pathlib import Path

import pytest
import typer

from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from tests.processes import forked_command

LISTS = {
    *("--data", "--config", "--set", "--tag", "--track", "--slurm", "--vary", "--metric", "--add", "--remove"),
    "--plugin",
}
RESULTS = {("compare", "save"), ("generate", "out"), ("bench", "out"), ("bench", "figure"), ("plan", "svg")}
RESULTS |= {("runs curves", "out")}


def commands(command, name=()):
    """(name, command) of every command and group."""
    yield " ".join(name), command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*name, word))


COMMANDS = dict(commands(typer.main.get_command(app)))


def options(name):
    """The options of a command that are not about itself, as --help is."""
    return [param for param in COMMANDS[name].params if param.param_type_name == "option" and not param.is_eager]


def given(param, value):
    """An option with a value, or a flag."""
    return [param.opts[0]] if param.is_flag else [param.opts[0], value]


def required(name, but=None):
    """Words that a command cannot be without."""
    words = [given(param, "1") for param in options(name) if param.required and param is not but]
    others = [param for param in COMMANDS[name].params if param.param_type_name != "option" and param is not but]
    return [*(word for part in words for word in part), *(["1"] * sum(param.required for param in others))]


def read(name, words):
    """The values of a command line."""
    with COMMANDS[name].make_context("hybridlab", list(words)) as context:
        return dict(context.params)


PATHS = [
    (name, param.name)
    for name, command in COMMANDS.items()
    for param in command.params
    if "Path" in str(param.type_descriptor.annotation)
]


def test_every_option_means_one_thing_or_is_a_list():
    lists = {param.opts[0] for name in COMMANDS for param in options(name) if param.multiple}
    assert lists == {*LISTS, "--arch"}  # `bench` compares several
    assert [name for name in COMMANDS for param in options(name) if param.multiple and "--arch" in param.opts] == [
        "bench"
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_means_one_thing_is_given_once(name):
    for param in options(name):
        words = [*given(param, "1"), *given(param, "2")]
        if not param.multiple:
            with pytest.raises(UserError, match=f"^{param.opts[0]} .*is given 2 times, and only one value can count"):
                read(name, words)
        if param.secondary_opts:
            with pytest.raises(UserError, match=f"{param.opts[0]} and {param.secondary_opts[0]} is given 2 times"):
                read(name, [param.opts[0], param.secondary_opts[0]])


@pytest.mark.parametrize(
    "name, words",
    [
        ("ablate", ["--vary", "x.y=3", "--vary", "x.y =4"]),
        ("pretrain", ["--slurm", "mem=1G", "--slurm", "mem=2G"]),
        ("reproduce", ["1", "--slurm", "mem=1G", "--slurm", "mem=2G"]),
    ],
)
def test_a_name_of_a_list_is_given_one_value(name, words):
    with pytest.raises(UserError, match="is given twice, and only one value can count"):
        read(name, words)


def test_a_setting_of_a_probe_is_given_once(typed):
    code, out, err = typed("analyze", "run", "--probe", "entropy", "--rows", "3", "--rows=4")
    assert (code, out) == (2, "") and "--rows is given twice" in err


@pytest.mark.parametrize("name, parameter", PATHS)
def test_a_home_folder_in_every_path(name, parameter, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (param,) = [param for param in COMMANDS[name].params if param.name == parameter]
    file = {"figure": "x.png", "out": "x.png", "save": "x.yaml"}.get(parameter, "x.svg")
    words = given(param, f"~/{file}") if param.param_type_name == "option" else [f"~/{file}"]
    if param.param_type_name == "option" and not param.multiple:
        words = [f"{words[0]}={words[1]}"]
    value = read(name, [*required(name, param), *words])[parameter]
    assert value == ([tmp_path / file] if param.multiple else tmp_path / file)


@pytest.mark.parametrize("name, parameter", PATHS)
def test_a_dash_is_standard_output_for_a_result_and_no_path(name, parameter):
    (param,) = [param for param in COMMANDS[name].params if param.name == parameter]
    words = [*required(name, param), *(given(param, "-") if param.param_type_name == "option" else ["-"])]
    if (name, parameter) in RESULTS:
        assert read(name, words)[parameter] == Path("/dev/stdout")
        for other in ("-", "/dev/stdout", "/dev/fd/1"):
            with pytest.raises(UserError, match="both print to standard output"):
                read(name, [*required(name, param), *given(param, other), "--json"])
    else:
        with pytest.raises(UserError, match=f"^(--)?{param.opts[0].strip('-') if param.opts else parameter} -: "):
            read(name, words)


# ---- files of settings ----


def test_later_files_of_settings_count_over_earlier_ones(tmp_path, typed):
    (tmp_path / "a.yaml").write_text("arch: sgt\nsize: tiny\ntraining:\n  steps: 300\n  clip: 0.5\n")
    (tmp_path / "b.yaml").write_text("training:\n  steps: 500\n")
    code, out, err = typed("config", "show", "--config", "a.yaml", "--config", "b.yaml")
    lines = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert code == 0, err
    assert "500" in lines["steps"] and "b.yaml:2" in lines["steps"]
    assert "0.5" in lines["clip"] and "a.yaml:5" in lines["clip"] and "a.yaml:1" in lines["arch"]
    (tmp_path / "b.yaml").write_text("training:\n  steps: many\n")
    code, _, err = typed("config", "show", "--config", "a.yaml", "--config", "b.yaml")
    assert code == 2 and "b.yaml:2: training.steps = 'many'" in err


# ---- results in files of every kind ----


def test_a_result_on_standard_output_is_alone_there(tmp_path):
    done = forked_command("plan", "--svg", "-", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("<svg") and done.stdout.rstrip().endswith("</svg>")
    assert "vanilla tiny" in done.stderr


@pytest.mark.parametrize("kind", ["link", "null device", "standard output"])
def test_a_drawing_goes_into_what_is_named_and_does_not_replace_it(kind, tmp_path):
    place, target = tmp_path / "drawing.svg", tmp_path / "real.svg"
    if kind == "link":
        target.write_text("old")
        place.symlink_to(target)
    elif kind == "null device":
        try:
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("devices are made by root")
    else:
        place.symlink_to("/dev/stdout")
    before = place.lstat()
    done = forked_command("plan", "--svg", str(place), cwd=tmp_path)
    after = place.lstat()
    assert done.returncode == 0 and (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    if kind == "link":
        assert target.read_text().startswith("<svg")
    if kind == "standard output":
        assert done.stdout.startswith("<svg")


# ---- closed streams ----


def close(*numbers):
    """Close streams, as a shell does for `2>&-`."""
    for number in numbers:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)


def closed_command(numbers, *words, cwd):
    """As `forked_command`, with these streams closed."""
    from tests.processes import Forked

    process = Forked(partial(_command, numbers), words, cwd=cwd)
    return process.wait(), *process.communicate()


def _command(numbers, words):
    from tests.processes import command

    close(*numbers)
    command(words)


@pytest.mark.parametrize("numbers", [(2,), (1,), (1, 2), (0, 1, 2)])
def test_a_command_with_closed_streams_does_its_work(numbers, tmp_path):
    small = "--arch vanilla --size tiny --steps 2 --set training.seq_len=32 --set training.tokens_per_step=64"
    small += " --set evaluation.validation_windows=2 --set data.tokenizer=byte --data text:words.txt --json"
    (tmp_path / "words.txt").write_text("the cat sat on a mat while rain fell. " * 3000)
    code, out, err = closed_command(numbers, "pretrain", "--run-dir", "run", *small.split(), cwd=tmp_path)
    assert code == 0 and (tmp_path / "run" / "record.json").is_file()
    assert (out[:1] == "{") == (1 not in numbers) and ("step 2/2" in err) == (2 not in numbers)


@pytest.mark.parametrize("words, code", [(("plan", "--arch", "nothing"), 2), (("--help",), 0), (("runs",), 2)])
def test_exit_codes_with_closed_streams(words, code, tmp_path):
    assert closed_command((2,), *words, cwd=tmp_path)[0] == code
    assert closed_command((1, 2), *words, cwd=tmp_path)[0] == code
    if code:
        assert closed_command((2,), *words, cwd=tmp_path)[1] == ""


def test_prompts_from_a_closed_standard_input_are_none(tmp_path):
    code, _, err = closed_command((0,), "generate", "run", cwd=tmp_path)
    assert code == 2 and "standard input: there are no prompts" in err
