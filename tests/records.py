"""Records made by hand: whole and of the right types, with what a test is about given as changes."""

from functools import cache

from hybridlab.config.resolve import resolve
from hybridlab.evaluation.results import Results
from hybridlab.runs.record import BenchmarkRecord, Record


@cache
def config_of(arch):
    """The configuration of an architecture at the size `tiny` (8 layers, 8 query and 4 KV heads) as JSON."""
    return resolve(arch, "tiny").model_dump(mode="json")


def measured(value, stderr=None, n=1):
    return {"value": value, "stderr": stderr, "n": n}


def make_loss(loss=3.0, windows=()):
    return {
        "loss": measured(loss, 0.05, 50),
        "perplexity": measured(20.0, 1.0, 50),
        "bits_per_byte": measured(1.2, None, 50),
        "windows": list(windows),
    }


def make_results(**changes):
    """A run's results as JSON: a validation loss of 3 and nothing else."""
    results = {"causality": {"largest_relative_change": 0.0}, "validation": make_loss()}
    return Results.model_validate({**results, **changes}).model_dump(mode="json")


def make_record(**changes):
    """The record of a finished run of 100 steps of the vanilla model; fields are replaced by `changes`."""
    record = {
        "status": "finished",
        "hash": "0" * 16,
        "parents": [],
        "config": config_of("vanilla"),
        "git": None,
        "libraries": {},
        "machine": {"name": "a machine", "device": "cpu"},
        "precision": "fp32",
        "kernels": {},
        "seed": 0,
        "steps": 100,
        "tokens": 1000,
        "seconds": 1.0,
        "tokens_per_second": 1000.0,
        "flops": 1e11,
        "redone_steps": 0,
        "parameters": {"total": 1000000},
        "structure": {},
        "events": [],
        "history": {},
        "model": {
            "plan": "L1 → L2",
            "map": "wwww",
            "sparsity": 0.5,
            "kv_bytes": {"context": 8192, "dtype": "bf16", "bytes": 4096},
            "forward_flops": {"context": 128, "convention": "executed", "flops": 1e9},
        },
        "data": {"source": "embedded", "fingerprint": "0", "train_tokens": 1000, "validation_tokens": 100},
        "results": make_results(),
        "hooks": {},
    }
    return Record.model_validate({**record, **changes})


def make_benchmark(results, **changes):
    """The record of a benchmark. results: group → model → batch → part → a `Speed` as JSON."""
    record = {
        "status": "finished",
        "hash": "benchmark-0",
        "benchmark": {},
        "git": None,
        "libraries": {},
        "machine": {"name": "a machine", "device": "cpu"},
        "dtype": "bfloat16",
        "results": results,
    }
    return BenchmarkRecord.model_validate({**record, **changes})
