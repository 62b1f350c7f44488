"""Faults at random moments: power lost while files are written, and processes that are killed.

    pytest tests/integration/test_faults.py --faults 50 --fault-seed 7

Each fault has the number of its seed in its name; more of them, and other seeds, by the two options.
"""

import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from hybridlab.errors import RunFailed, UserError
from hybridlab.training.engine import Run
from hybridlab.training.ranks import joined
from hybridlab.training.store.folders import RunFolder
from tests.integration.test_several_processes import METHODS
from tests.processes import Forked
from tests.training import assert_same_results, assert_same_run, logged, train


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first, count = (metafunc.config.getoption(name) for name in ("--fault-seed", "--faults"))
        metafunc.parametrize("seed", range(first, first + count))


class PowerLost(BaseException):
    pass


class Disk:
    """What of a folder survives if the power goes at the n-th operation that matters.

    The content of a file is safe up to the size that it had when it was flushed, and a new name once its folder was
    flushed. Everything else may be lost: of a file any part of the rest, of a name that it is the new one. Removals are
    never lost, so that a removal may come before a name that was given earlier.
    """

    def __init__(self, folder, patch, at=None):
        self.folder, self.at, self.count = folder, at, 0
        self.flushed, self.names = {}, []
        self.copies = folder.parent / "older"
        self.fsync, self.replace, self.rmtree = os.fsync, os.replace, shutil.rmtree
        patch.setattr(os, "fsync", self.on_fsync)
        patch.setattr(os, "replace", self.on_rename)
        patch.setattr(os, "rename", self.on_rename)
        patch.setattr(shutil, "rmtree", self.on_removal)

    def inside(self, path):
        return self.folder in Path(path).absolute().parents or Path(path).absolute() == self.folder

    def step(self):
        self.count += 1
        if self.count == self.at:
            self.left = self.folder.parent / "left"
            self.folder.mkdir(exist_ok=True)
            shutil.copytree(self.folder, self.left)
            raise PowerLost

    def on_fsync(self, handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if self.inside(path):
            self.step()
            if path.is_dir():
                self.names = [one for one in self.names if one[0].parent != path]
            else:
                self.flushed[path.stat().st_ino] = path.stat().st_size
        self.fsync(handle)

    def on_rename(self, source, target):
        source, target = Path(source).absolute(), Path(target).absolute()
        if not self.inside(target):
            return self.replace(source, target)
        self.step()
        before = self.copies / str(self.count) if target.exists() else None
        if before is not None:
            (shutil.copytree if target.is_dir() else shutil.copy2)(target, self._made(before))
        self.names.append((target, before))
        return self.replace(source, target)

    def on_removal(self, path, *more, **options):
        if self.inside(path) and Path(path).is_dir():
            self.step()
            for name in sorted(os.listdir(path))[::2]:  # it may end in the middle
                if (Path(path) / name).is_file():
                    (Path(path) / name).unlink()
            self.step()
        return self.rmtree(path, *more, **options)

    def _made(self, path):
        path.parent.mkdir(exist_ok=True)
        return path

    def after(self, rng):
        """Put in the folder's place what is left of it."""
        for path in self.folder.rglob("*"):
            copy = self.left / path.relative_to(self.folder)
            if path.is_file() and copy.is_file():
                safe = min(self.flushed.get(path.stat().st_ino, 0), copy.stat().st_size)
                os.truncate(copy, rng.randint(safe, copy.stat().st_size))
        for target, before in reversed(self.names):
            copy = self.left / target.relative_to(self.folder)
            if rng.random() < 0.5 and copy.exists():
                self.rmtree(copy) if copy.is_dir() else copy.unlink()
                if before is not None:
                    (shutil.copytree if before.is_dir() else shutil.copy2)(before, copy)
        self.rmtree(self.folder, ignore_errors=True)
        self.left.rename(self.folder)


@pytest.fixture
def chosen(small):
    """A function: random numbers → a configuration of one of the methods."""

    def choose(rng, **training):
        arch = rng.choice(sorted(METHODS))
        runtime = {"checkpoint_every": rng.randint(2, 6), "keep_checkpoints": rng.choice([1, 2])}
        parts = {"shape": {"layers": 4}, **METHODS[arch], "training": training}
        settings = {"mix": {"text": 0.5, "retrieval": 0.5}}
        evaluation = {"every": 4, "validation_windows": 4, "task_rows": 4}
        evaluation["keep_best"] = arch not in ("consa", "l1-gates")  # masks that are being learned are no model yet
        return small(arch, **{**parts, "data": settings, "runtime": runtime, "evaluation": evaluation})

    return choose


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc for the names of open files")
def test_power_loss(seed, chosen, tmp_path, runs_dir):
    """At a random moment; then the same command ends with the bits of a run that nothing happened to."""
    rng = random.Random(seed)
    config, folder = chosen(rng, steps=12), tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(tmp_path / "whole", patch)
        train(config, tmp_path / "whole", runs_dir)
    assert disk.count > 20
    for at in sorted(rng.sample(range(1, disk.count + 1), 4)):
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(folder, patch, at)
            with pytest.raises(PowerLost):
                train(config, folder, runs_dir)
        disk.after(rng)
        train(config, folder, runs_dir)
        assert_same_run(tmp_path / "whole", folder)


def test_a_run_that_cannot_fit_is_refused_before_it_starts(small, tmp_path, runs_dir):
    with pytest.raises(UserError, match="needs .* GB at least, .* set a smaller shape"):
        train(small(shape={"width": 1_000_000, "head_width": 250_000}), tmp_path / "run", runs_dir)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out_fails_the_run_in_a_sentence(small, tmp_path, runs_dir, monkeypatch, error):
    def full(*_):
        raise error

    monkeypatch.setattr(Run, "take_step", full)
    with pytest.raises(RunFailed, match="out of memory .* runtime.micro_batch_rows"):
        train(small(), tmp_path / "run", runs_dir)


def joined_and_trained(config, folder, runs_dir):
    """What a process does: alone, or as one of the ranks that its environment names."""
    with joined(60):
        train(config, folder, runs_dir)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_random_kills(seed, ranks, chosen, tmp_path, runs_dir):
    """SIGKILL at random times, to one process or to one of two ranks; then the bits of a run that was left alone."""
    rng = random.Random(10 * seed + ranks)
    config = chosen(rng, steps=30)

    def started(name):
        world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        places = [{**world, "RANK": str(i), "LOCAL_RANK": str(i)} if ranks > 1 else {} for i in range(ranks)]
        return [Forked(joined_and_trained, config, tmp_path / name, runs_dir, environment=place) for place in places]

    began = time.monotonic()
    assert_all_succeed(started("whole"))
    takes = time.monotonic() - began
    for _ in range(2):
        processes = started("killed")
        time.sleep(takes * rng.uniform(0.4, 1))
        victim = rng.choice(processes)
        if victim.poll() is None:
            victim.send_signal(signal.SIGKILL)
            for other in processes:  # as the agent of torchrun does
                other.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()
    assert_all_succeed(started("killed"))
    assert RunFolder(tmp_path / "killed").finished()
    assert logged(tmp_path / "whole") == logged(tmp_path / "killed")
    assert_same_results(tmp_path / "whole", tmp_path / "killed")


def free_port():
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        return bound.getsockname()[1]


def assert_all_succeed(processes):
    for process in processes:
        _, err = process.communicate()
        assert process.returncode == 0, err
