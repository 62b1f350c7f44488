"""Ten steps of every kind of run on seeded synthetic tokens. A change of these numbers is a change of numerics: bump
NUMERICS_VERSION in config/resolve.py in the same commit and say why.

    HYBRIDLAB_WRITE_GOLDEN=1 pytest tests/golden
"""

import json
import os
from pathlib import Path

import pytest

from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import read_metrics

GOLDEN = Path(__file__).with_name("losses.json")
CASES = {
    "vanilla": {},
    "vanilla-llama": {"shape": {"family": "llama", "tied_embeddings": False}},
    "rule-swa": {},
    "all-window": {},
    "sgt": {"controller": {"start_step": 2, "interval": 2, "fade_steps": 2, "max_layers": 2}},
    "block-loop": {"plan": [{"op": "loop_blocks", "layers": [1, 2]}]},
    "attention-loop": {},
    "looped": {"shape": {"layers": 6}},
    "spiral-b": {"shape": {"layers": 6}},
    "mesh": {"shape": {"layers": 6}},
    "consa": {"controller": {"mask_lr": 0.5, "multiplier_lr": 0.5}},
}


@pytest.mark.parametrize("case", CASES)
def test_ten_steps(case, small, tmp_path, runs_dir):
    mix = {"text": 0.0, "retrieval": 0.75, "assignment": 0.25}
    arch = case.removesuffix("-llama")
    config = small(arch, data={"mix": mix}, training={"steps": 10}, **CASES[case])
    train_run(config, RunFolder(tmp_path / "run"), Runs(runs_dir))
    losses = [line["loss"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("HYBRIDLAB_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**golden, case: losses}, indent=1) + "\n")
        return
    # fp32 sums in another order on another processor; 1e-4 is far below any change of the method.
    assert losses == pytest.approx(golden[case], rel=1e-4)
