"""Decoding speed of several architectures, side by side: real cached generation, interleaved, as ratios with spread.

Weights are drawn, not trained: speed does not depend on them. Every round runs every architecture once, in an order that
turns from round to round, so that a machine which slows down slows all of them; ratios are taken round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.files import write_json
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.plan.from_config import map_of
from hybridlab.reproduction.experiment import Benchmark, Experiment, benchmark_hash
from hybridlab.reproduction.schedule_cost import final_plan
from hybridlab.training.machine import describe_machine, git_revision, library_versions, pick_device


def record_path(experiment: Experiment, scale: str, results_dir: Path) -> Path:
    return results_dir / "records" / f"benchmark-{benchmark_hash(experiment, scale)}.json"


def run_benchmark(
    experiment: Experiment, scale: str, results_dir: Path, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Measure, and write the record; None where the record is there already."""
    path = record_path(experiment, scale, results_dir)
    if path.is_file():
        say(f"{experiment.id}: measured before, nothing to do ({path})")
        return None
    spec, device = experiment.benchmark, pick_device("auto")
    results = {
        group: _measure_size(spec, size, device, lambda text, group=group: say(f"{experiment.id}, {group}: {text}"))
        for group, size in spec.sizes[scale].items()
    }
    record = {
        "status": "finished",
        "hash": benchmark_hash(experiment, scale),
        "benchmark": spec.model_dump(mode="json"),
        "git": git_revision(),
        "libraries": library_versions(),
        "machine": describe_machine(device),
        "dtype": "bf16",
        "results": results,
        # What every record of a run has too, so that tables treat both alike.
        "config": {},
        "controllers": {},
        "structure": {},
        "history": {},
    }
    write_json(path, record)
    return record


def _measure_size(
    spec: Benchmark, size: str, device: torch.device, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """model → batch → prefill and decode speed."""
    models = {name: _model(choice, size, device) for name, choice in spec.models.items()}
    names = list(models)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for batch in spec.batches:
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for model in models.values():
            _generate(model, batch, spec.prompt, min(4, spec.new_tokens))
        for number in range(spec.rounds):
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned:
                seconds[name].append(_generate(models[name], batch, spec.prompt, spec.new_tokens))
            say(f"batch {batch}, round {number + 1} of {spec.rounds}")
        for name in names:
            found[name][str(batch)] = {
                part: speed([s[i] for s in seconds[name]], [s[i] for s in seconds[names[0]]], batch * tokens)
                for i, (part, tokens) in enumerate((("prefill", spec.prompt), ("decode", spec.new_tokens)))
            }
    return found


def _model(choice: dict[str, Any], size: str, device: torch.device) -> Decoder:
    config = resolve(choice["arch"], size, layers=[Layer(choice.get("config", {}))])
    model = Decoder(config.shape, final_plan(config), map_of(config.map, config.shape), "auto")
    draw_weights(model, 0)
    return model.to(device, torch.bfloat16).eval()


def _generate(model: Decoder, batch: int, prompt: int, new_tokens: int) -> tuple[float, float]:
    """Seconds for the prompt, and for the greedy tokens after it."""
    device = next(model.parameters()).device
    tokens = torch.randint(model.shape.vocab, (batch, prompt), generator=torch.Generator().manual_seed(0)).to(device)
    cache = KVCache(model, batch, prompt + new_tokens)
    with torch.inference_mode():
        started = _now(device)
        picked = model(tokens, cache=cache).logits[:, -1:].argmax(-1)
        filled = _now(device)
        for _ in range(new_tokens):
            picked = model(picked, cache=cache).logits[:, -1:].argmax(-1)
        return filled - started, _now(device) - filled


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def speed(seconds: list[float], first: list[float], tokens: int) -> dict[str, Any]:
    """Median tokens per second, and the ratio to the first model with its standard error."""
    ratio, error = paired_ratio(first, seconds)
    return {
        "tokens_per_second": round(tokens / statistics.median(seconds), 2),
        "ratio": round(ratio, 4),
        "ratio_stderr": round(error, 4),
        "n": len(seconds),
        "seconds": [round(value, 5) for value in seconds],
    }


def paired_ratio(numerator: list[float], denominator: list[float]) -> tuple[float, float]:
    """The median of ratios taken round by round, and its standard error from their median deviation, so that one
    stalled round moves neither."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    middle = statistics.median(ratios)
    deviation = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    return middle, 1.2533 * deviation / len(ratios) ** 0.5
