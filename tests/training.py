"""Training runs in tests: whole, stopped in the middle of a step, killed, and compared bit for bit."""

import ctypes
import hashlib
import json
import re
import signal
import threading
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile, record_function

from hybridlab.runs.run import train_run
from hybridlab.training.engine import Run
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import OF_THE_MACHINE, read_metrics
from tests.processes import Forked

GROWTH_TIMES = {"start_step": 3, "interval": 3, "fade_steps": 3}
FIVE_LAYERS = {"shape": {"layers": 5}, "evaluation": {"task_window": None}}


def growing(small, steps=20, arch="sgt", **controller):
    """A configuration of five layers, of which two grow head loops of two passes."""
    controller = {**GROWTH_TIMES, "max_passes": 2, "max_layers": 2, **controller}
    return small(arch, **FIVE_LAYERS, controller=controller, training={"steps": steps})


def train(config, path, runs_dir):
    """Train a configuration in the folder `path`, or go on with the run there; returns its record."""
    return train_run(config, RunFolder(Path(path)), Runs(Path(runs_dir)))


def weights(path):
    """The final tensors of a run, by name."""
    return load_file(Path(path) / "final" / "model.safetensors")


def assert_same_run(one, two):
    """Two run folders hold the same weights, metrics and results, bit for bit."""
    assert logged(one) == logged(two)
    assert_same_results(one, two)


def assert_same_results(one, two):
    """Two run folders hold the same weights and results, bit for bit."""
    a, b = weights(one), weights(two)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    records = [json.loads((Path(p) / "record.json").read_text()) for p in (one, two)]
    for key in ("results", "hooks", "events", "flops", "tokens", "steps", "structure", "model", "kernels"):
        assert records[0][key] == records[1][key], key


def logged(path):
    """The lines of a run's log without what differs from one machine, or one start, to another."""
    lines = [line for line in read_metrics(Path(path) / "metrics.jsonl") if "redone" not in line]
    return [{name: value for name, value in line.items() if name not in OF_THE_MACHINE} for line in lines]


class Stop(Exception):
    """Ends a run in the middle of a step, as a kill would."""


def train_until(config, path, runs_dir, monkeypatch, step):
    """Train up to the middle of a step, and stop there without saving."""
    take_step = Run.take_step

    def stopping(run):
        if run.step == step:
            raise Stop
        return take_step(run)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "take_step", stopping)
        with pytest.raises(Stop):
            train(config, path, runs_dir)


def trained_once(config, runs_dir):
    """The folder of an uninterrupted run of a configuration, which is trained once in a process of tests. It must stay
    as it is."""
    key = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]
    path = runs_dir.parent / "trained-once" / key
    if not (path / "record.json").exists():
        train(config, path, runs_dir)
    return path


def assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step, whole=None):
    """A run in `cut` that stops in the middle of a step and is resumed equals the uninterrupted one in `whole`, by
    default tmp_path/whole.

    Returns the record of the resumed run.
    """
    train_until(config, tmp_path / "cut", runs_dir, monkeypatch, step)
    record = train(config, tmp_path / "cut", runs_dir)
    assert_same_run(whole or tmp_path / "whole", tmp_path / "cut")
    return record


def assert_survives_kills(config, tmp_path, runs_dir, steps):
    """A run whose process a real SIGKILL ends after each of these steps equals the uninterrupted one."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(config, whole, runs_dir)
    kills = 0
    for step in steps:
        process = Forked(train, config, killed, runs_dir)
        while process.poll() is None and _logged_step(killed) < step:
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == len(steps)
    assert not (killed / "record.json").exists()
    train(config, killed, runs_dir)
    assert_same_run(whole, killed)


def _logged_step(folder):
    return max((line["step"] for line in read_metrics(folder / "metrics.jsonl") if "step" in line), default=0)


# ---- memory ----


@contextmanager
def marking(monkeypatch, owner, *names):
    """A context in which calls of these methods or functions are marked for `counting` and `watching`."""
    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, _marked(name, getattr(owner, name)))
        yield


CALLS = []
"""(name, start, end) of the calls that `marking` marks, in seconds."""


def _marked(name, function):
    @wraps(function)
    def call(*arguments, **options):
        start = time.monotonic()
        try:
            with record_function(f"marked {name}"):
                return function(*arguments, **options)
        finally:
            CALLS.append((name, start, time.monotonic()))

    return call


@contextmanager
def counting(trace):
    """A context that gives a function, for after its end: name of a marked method → for each of its calls the most
    bytes that all tensors had. Of a process without others: what threads of torch.distributed free is not seen. trace:
    a file for torch's profiler."""
    found = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        yield lambda: found
    profiled.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted(
        (e["ts"], e["args"]["Total Allocated"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"
    )
    # The profiler goes on counting what was made in an earlier session and freed after its end.
    before = changes[0][1] - changes[0][2]
    sizes = [(time, total - before) for time, total, _ in changes]
    for event in sorted((e for e in events if e.get("cat") == "user_annotation"), key=lambda e: e["ts"]):
        kind, _, name = event["name"].partition(" ")
        if kind == "marked":
            start, end = event["ts"], event["ts"] + event["dur"]
            found.setdefault(name, []).append(max((size for time, size in sizes if start <= time <= end), default=0))


@contextmanager
def watching():
    """A context that gives a function: name of a marked method → the most bytes that this process had in it beyond
    those at the start of the first call, without files that are mapped. Freed memory is given back to the system
    meanwhile."""
    libc = ctypes.CDLL(None)
    assert libc.mallopt(-3, 2**18) and libc.mallopt(-1, 0)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    samples, done = [], threading.Event()

    def watch():
        while not done.wait(0.0005):
            libc.malloc_trim(0)  # of all threads, whose heaps the threshold is not for
            samples.append((time.monotonic(), _own_memory()))

    def peaks():
        found, first = {}, min(start for _, start, _ in CALLS)
        before = max(size for when, size in samples if when <= first)
        for name, start, end in CALLS:
            highest = max((size for when, size in samples if start <= when <= end), default=before)
            found[name] = max(found.get(name, 0), highest - before)
        return found

    CALLS.clear()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def _own_memory():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])
