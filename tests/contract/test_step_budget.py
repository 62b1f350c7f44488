"""What one training step does beside its arithmetic: copies, questions to the device, and calls in Python.

On a GPU each question waits for all that was asked before it, and Python has to be ahead of the device. Graph breaks
are errors where blocks are compiled (tests/integration/test_compiled_runs.py).
"""

import sys
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.runs.run import train_run
from hybridlab.training.engine import Run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import ROOT

COPIES, QUESTIONS = ("aten._to_copy", "aten.copy_", "aten.clone"), ("aten._local_scalar_dense", "aten.nonzero")
MORE = {
    "sgt": {"controller": {"start_step": 2, "interval": 2, "fade_steps": 2, "max_layers": 2}},
    "spiral-b": {"shape": {"layers": 6}},
    "bert": {"shape": {"family": "bert", "max_positions": 64}, "data": {"tokenizer": "byte+mask"}},
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
        ("consa", (15, 1, 720)),
        ("sgt", (20, 1, 1100)),
        ("spiral-b", (39, 1, 1700)),
    ],
)
def test_a_step_keeps_its_budget(arch, budget, small, tmp_path, monkeypatch):
    """Copies and questions as they are; calls in Python may grow by a fifteenth."""
    parts = MORE.get(arch, {})
    found = counted(small(arch, **parts), tmp_path, monkeypatch)
    assert all(one <= most for one, most in zip(found, budget, strict=True)), found


class Stop(Exception):
    pass


@pytest.mark.parametrize("arch", ["vanilla", "rule-swa", "bert"])
def test_gradients_ask_the_device_for_nothing(arch, small, tmp_path, monkeypatch):
    """A tensor of the device `meta` has no numbers, so that each question is an error. The encoder, which has learned
    positions, gets what rows of labelled examples have too."""

    def take_step(run):
        run.device = torch.device("meta")
        run.model.to(run.device)
        batch = run.objective.batch(run.source.rows(run.step), 0, run.step)
        if arch == "bert":
            tokens = batch.inputs["input_ids"]
            batch.inputs.update(attention_mask=torch.ones_like(tokens), token_type_ids=torch.zeros_like(tokens))
        assert run._gradients(batch, run.step).is_meta
        assert all(tensor.grad.is_meta for tensor in run.model.parameters())
        with pytest.raises(RuntimeError, match="meta"):
            run._gradients(batch, run.step).item()  # the control
        raise Stop

    monkeypatch.setattr(Run, "take_step", take_step)
    config = small(arch, runtime={"micro_batch_rows": 2}, **MORE.get(arch, {}))
    with pytest.raises(Stop):
        train_run(config, RunFolder(tmp_path / "run"), Runs(tmp_path / "runs"))
