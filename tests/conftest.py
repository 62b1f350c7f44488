"""Shared fixtures: small shapes, small texts, one thread, no network."""

import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from hybridlab import files
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve

torch.set_num_threads(1)
# What a loss of power leaves is not seen by tests, which wait for the disk thousands of times; those of the order of
# writes set their own.
os.fsync = lambda handle: None
files.LEVEL = 1

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "results" / "published"
SMALL_SHAPE = {
    "family": "qwen3",
    "layers": 3,
    "width": 24,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 8,
    "ffn_width": 40,
    "vocab": 400,
    "embedding_scale": 1.0,
}
SMALL_TRAINING = {
    "steps": 12,
    "tokens_per_step": 256,
    "seq_len": 32,
    "precision": "fp32",
    "schedule": {"name": "cosine", "warmup_steps": 2, "final_ratio": 0.1},
}
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "rain",
    "fell",
    "over",
    "far",
    "hills",
    "and",
    "nobody",
    "came",
    "home",
    "before",
    "night",
]


def pytest_addoption(parser):
    parser.addoption(
        "--faults", type=int, default=1, help="how many faults of each kind tests/integration/test_faults.py has"
    )
    parser.addoption("--fault-seed", type=int, default=0, help="the first seed of these faults")
    parser.addoption("--minutes", type=float, help="skip the tests that would begin later than this")


def pytest_collection_modifyitems(items):
    """Hashes and published pages first: they run however little time there is."""
    items.sort(key=lambda item: "golden" not in item.path.parts)


def pytest_collection_finish():
    """What was imported stays: it is not searched for garbage again and again."""
    gc.collect()
    gc.freeze()


STARTED = time.monotonic()


def pytest_runtest_setup(item):
    if (minutes := item.config.getoption("--minutes")) is not None and time.monotonic() - STARTED > 60 * minutes:
        pytest.skip(f"{minutes:g} minutes are over")


def run_python(code, cwd=None):
    """What a program prints in an interpreter of its own, which has imported nothing; it must end with success."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_text(path: Path, characters: int = 120_000, seed: int = 0) -> Path:
    """Write a text of random words with at least this many characters; returns its path."""
    rng = random.Random(seed)
    lines, written = [], 0
    while written < characters:
        lines.append(" ".join(rng.choices(WORDS, k=12)) + ".\n")
        written += len(lines[-1])
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "words.txt")


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory):
    """Shared, so that the text is prepared once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def small(text_file):
    """A function: arch and changes → a checked configuration that trains in a second or two."""

    def make(arch="vanilla", settings=(), window=4, **parts):
        base = {
            "shape": SMALL_SHAPE,
            "training": SMALL_TRAINING,
            "window": window,
            "data": {"source": f"text:{text_file}", "tokenizer": "byte"},
            "evaluation": {"validation_windows": 8, "task_rows": 8},
            "runtime": {"threads": 1, "log_every": 1, "checkpoint_every": 4},
        }
        return resolve(arch, "tiny", layers=[Layer(base), Layer(parts)], settings=settings)

    return make
