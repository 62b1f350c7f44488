"""What one training step does beside its arithmetic: copies, questions to the device, and calls in Python.

On a GPU each question waits for all that was asked before it, and Python has to be ahead of the device. Graph breaks
are errors where blocks are compiled (tests/integration/test_compiled_runs.py).
"""

import sys
from collections import Counter

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.runs.run import train_run
from hybridlab.training.engine import Run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import ROOT

COPIES, QUESTIONS = ("aten._to_copy", "aten.copy_", "aten.clone"), ("aten._local_scalar_dense", "aten.nonzero")
MORE = {
    "sgt": {"controller": {"start_step": 2, "interval": 2, "fade_steps": 2, "max_layers": 2}},
    "spiral-b": {"shape": {"layers": 6}},
}
PACKAGE = str(ROOT / "hybridlab")


class Counting(TorchDispatchMode):
    """Counts the operations of torch by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def counted(config, folder, monkeypatch, at=5):
    """(copies, questions, calls in the package) of one step of a run."""
    plain, found = Run.take_step, []

    def take_step(run):
        if run.step + 1 != at:
            return plain(run)
        calls = Counter()

        def watch(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                calls[frame.f_code.co_qualname] += 1

        with Counting() as counting:
            sys.setprofile(watch)
            try:
                return plain(run)
            finally:
                sys.setprofile(None)
                totals = [sum(counting.counts[name] for name in names) for names in (COPIES, QUESTIONS)]
                found.append((*totals, calls.total()))

    monkeypatch.setattr(Run, "take_step", take_step)
    train_run(config, RunFolder(folder / "run"), Runs(folder / "runs"))
    return found[0]


@pytest.mark.parametrize(
    ("arch", "budget"),
    [
        ("vanilla", (12, 1, 600)),
        ("rule-swa", (21, 1, 730)),
        ("consa", (15, 7, 720)),
        ("sgt", (20, 1, 1100)),
        ("spiral-b", (39, 1, 1700)),
    ],
)
def test_a_step_keeps_its_budget(arch, budget, small, tmp_path, monkeypatch):
    """Copies and questions as they are; calls in Python may grow by a fifteenth."""
    parts = MORE.get(arch, {})
    found = counted(small(arch, **parts), tmp_path, monkeypatch)
    assert all(one <= most for one, most in zip(found, budget, strict=True)), found
