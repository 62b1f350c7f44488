"""tools/gpu: what is to be measured on a GPU, step by step."""

import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.test_command_lines import read

LIST = ROOT / "tools" / "gpu" / "run.py"


def module():
    spec = importlib.util.spec_from_file_location("gpu_list", LIST)
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def started(*arguments):
    return subprocess.run([sys.executable, str(LIST), *map(str, arguments)], capture_output=True, text=True)


def test_every_step_is_a_command_that_the_program_reads(tmp_path):
    steps = module().steps(tmp_path)
    assert len({step.name for step in steps}) == len(steps) and all(step.minutes <= 8 for step in steps)
    of_hybridlab = 0
    for step in steps:
        words = shlex.split(step.command.replace("{out}", str(tmp_path / "x.json")))
        if words[1:3] == ["-m", "hybridlab"] or "cudnn_last" in words[1]:
            name, *rest = words[3:] if words[1] == "-m" else words[2:]
            assert read(name, rest), step.name
            of_hybridlab += 1
    assert of_hybridlab == len(steps) - 2


def test_it_says_what_is_left_and_goes_on(tmp_path):
    (tmp_path / "tests.done").write_text("3 s\n")
    done = started("--list", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split()[1::-1] for line in done.stdout.splitlines())
    assert lines["tests"] == "done" and {*lines.values()} == {"done", "left"} and lines["attention"] == "left"
    done = started("--minutes", "0.001", "--out", tmp_path)
    assert done.returncode == 0 and done.stdout.count("no time") == len(lines) - 1
    assert started("--only", "nosuch", "--out", tmp_path).returncode == 2


@pytest.mark.long
def test_the_script_on_attention_runs_on_a_cpu_too(tmp_path):
    done = started("--only", "attention", "--out", tmp_path)
    assert done.returncode == 0, (tmp_path / "attention.log").read_text()
    found = json.loads((tmp_path / "attention.json").read_text())
    assert [len(found[part]) for part in ("chosen", "numbers", "decoded")] == [16, 16, 25] and found["timed"]
    of_ours = [case for case in found["decoded"] if case["backend"] == "hybridlab"]
    assert len(of_ours) == 5 and all(case["error_relative"] < 0.02 for case in of_ours)
    assert "done     attention" in started("--list", "--out", tmp_path).stdout


def test_a_step_that_fails_leaves_no_mark(tmp_path, monkeypatch, capsys):
    listed = module()
    step = listed.Step("broken", "a step that fails", 1, f"{shlex.quote(sys.executable)} -c 'raise SystemExit(3)'")
    slow = listed.Step("slow", "a step that takes too long", 1, "sleep 60")
    assert listed.run(step, tmp_path, None) == 3 and listed.run(slow, tmp_path, 0.2) == 124
    monkeypatch.setattr(listed, "steps", lambda out: [step])
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path)])
    assert listed.main() == 1 and "FAILED   broken" in capsys.readouterr().out
    assert not (tmp_path / "broken.done").exists()


def test_what_a_step_has_started_ends_with_the_list(tmp_path):
    """Told to end, as by a scheduler or a lost terminal."""
    script = tmp_path / "slow.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(LIST.parent)!r}); import run\n"
        f"run.steps = lambda out: [run.Step('slow', 'sleeps', 1, 'sleep 321.5')]\n"
        f"sys.argv = ['run.py', '--out', {str(tmp_path / 'out')!r}]; sys.exit(run.main())\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("running")

    def sleeping():
        return [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"321.5" in (read_bytes(path) or b"")]

    deadline = time.monotonic() + 20
    while not sleeping() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleeping()
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM and not sleeping()


def read_bytes(path):
    with suppress(OSError):
        return path.read_bytes()
