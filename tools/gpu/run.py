"""What is to be measured on an NVIDIA GPU, step by step: `python tools/gpu/run.py`, or `make gpu`.

Each step takes less than eight minutes on an H100, writes as it goes, and is done once its mark stands in --out: the
same command goes on where it stopped, so that several half hours add up. Nothing is installed or downloaded, but for
the last steps, which train at scale `small` on text of the hub.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LONG = "--size olmo-573m --batch 8 --seq-len 4096 --repeats 3 --rounds 3 --compile"
ARCHS = ("vanilla", "rule-swa", "ln-scaling", "consa", "sgt")


@dataclass(frozen=True)
class Step:
    """One command. minutes: at most, on an H100. results: the file that it writes, below --out."""

    name: str
    what: str
    minutes: int
    command: str
    results: str | None = None


def program(file: str) -> str:
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / file))}"


def steps(out: Path) -> list[Step]:
    """In the order in which they are worth most."""
    texts = "--generate --compile --against sdpa --repeats 64"
    hybridlab, tests = f"{shlex.quote(sys.executable)} -m hybridlab", f"{shlex.quote(sys.executable)} -m pytest"

    def bench(name: str, what: str, minutes: int, options: str, with_: str = hybridlab) -> Step:
        return Step(name, what, minutes, f"{with_} bench {options} --out {{out}}", f"{name}.json")

    found = [
        Step(
            "attention",
            "which backend runs, NaN, decoding, windows",
            4,
            program("attention.py") + " {out}",
            "attention.json",
        ),
        Step("tests", "the tests for a GPU", 8, f"{tests} tests/gpu -m '' -n 4 -q"),
    ]
    found += [
        bench(f"step-573m-{arch}", f"a training step of 573M, {arch}", 5, f"{LONG} --arch {arch}") for arch in ARCHS
    ]
    found += [
        bench(
            "step-573m-cudnn-last",
            "the same for vanilla, cuDNN last",
            5,
            f"{LONG} --arch vanilla",
            program("cudnn_last.py"),
        ),
        bench(
            "generate-573m-1",
            "texts of 573M, one row",
            6,
            f"--size olmo-573m --batch 1 --over seq-len=1024,4096,16384 {texts}",
        ),
        bench(
            "generate-573m-8",
            "texts of 573M, eight rows",
            6,
            f"--size olmo-573m --batch 8 --over seq-len=1024,4096 {texts}",
        ),
        bench(
            "belief-mini",
            "belief attention beside full attention",
            5,
            "--size mini --arch vanilla --arch saobp-high --batch 8 --over seq-len=128,1024,4096 --repeats 3",
        ),
    ]
    small = (
        f"--scale small --runs-dir {shlex.quote(str(out / 'runs'))} --results-dir {shlex.quote(str(out / 'results'))}"
    )
    found += [
        Step(name, f"{name} at scale small (text of the hub; goes on)", 8, f"{hybridlab} reproduce {name} {small}")
        for name in ("consa-table1", "sgt-table1")
    ]
    return found


def run(step: Step, out: Path, limit: float | None) -> int:
    """The exit code of a step; 124 if it was stopped after `limit` seconds. What it has started ends with it, also
    where this process is told to end."""
    command = step.command.replace("{out}", shlex.quote(str(out / (step.results or ""))))
    with (out / f"{step.name}.log").open("ab") as log:
        process = subprocess.Popen(
            f"exec {command}", shell=True, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a step: they have a minute to write what they have."""
    for sent, seconds in ((signal.SIGTERM, 60), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu", help="where results, logs and marks go")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone")
    parser.add_argument("--minutes", type=float, help="begin no step that may take longer than what is left of these")
    parser.add_argument("--list", action="store_true", help="show what is done and what is left")
    asked = parser.parse_args()
    out: Path = asked.out.resolve()
    every = steps(out)
    if unknown := {*(asked.only or ())} - {step.name for step in every}:
        parser.error(f"no step {min(unknown)!r}; known: {', '.join(step.name for step in every)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    started, failed = time.monotonic(), 0
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    for step in every:
        mark, text = out / f"{step.name}.done", f"{step.name:22} {step.what}"
        if mark.exists():
            print(f"done     {text}")
        elif asked.list or (asked.only and step.name not in asked.only):
            print(f"left     {text}")
        elif asked.minutes is not None and (time.monotonic() - started) / 60 + step.minutes > asked.minutes:
            print(f"no time  {text} (up to {step.minutes} minutes)")
        else:
            began = time.monotonic()
            print(f"running  {text}", flush=True)
            code = run(step, out, None if asked.minutes is None else 60 * asked.minutes - (began - started))
            took = f"{time.monotonic() - began:.0f} s"
            if code == 0:
                mark.write_text(took + "\n")
                print(f"done     {step.name:22} {took}")
            elif code == 124:
                print(f"stopped  {step.name:22} after {took}; the same command goes on")
            else:
                failed += 1
                print(f"FAILED   {step.name:22} exit code {code} after {took}; see {out / step.name}.log")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
