"""Speed of several architectures, side by side: generation with the cache, forward passes, training steps; interleaved,
as ratios with spread.

Weights are drawn, not trained: speed does not depend on them. Every round runs every architecture once, in an order that
turns from round to round, so that a machine which slows down slows all of them; ratios are taken round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.files import write_json
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.plan.from_config import map_of
from hybridlab.plan.loop import Loop
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
    """model → batch → what was measured: speed and ratio to the first model."""
    models = {name: _model(choice, size, device) for name, choice in spec.models.items()}
    names, measure = list(models), _MEASURES[spec.kind]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for batch in spec.batches:
        seconds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for model in models.values():
            measure(model, batch, spec.prompt, min(4, spec.new_tokens))
        for number in range(spec.rounds):
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned:
                seconds[name].append(measure(models[name], batch, spec.prompt, spec.new_tokens))
            say(f"batch {batch}, round {number + 1} of {spec.rounds}")
        tokens = {"prefill": spec.prompt, "passes": spec.prompt, "decode": spec.new_tokens}
        for name in names:
            first = seconds[names[0]]
            found[name][str(batch)] = {
                # What the first model does not have is compared with the same model's whole token.
                part: speed(
                    [s[part] for s in seconds[name]],
                    [s[part] for s in first] if part in first[0] else [s["token"] for s in seconds[name]],
                    batch * tokens.get(part, 1),
                )
                for part in seconds[name][0]
            }
    return found


def _model(choice: dict[str, Any], size: str, device: torch.device) -> Decoder:
    config = resolve(choice["arch"], size, layers=[Layer(choice.get("config", {}))])
    model = Decoder(config.shape, final_plan(config), map_of(config.map, config.shape), "auto")
    draw_weights(model, 0)
    return model.to(device, torch.bfloat16).eval()


def _decoding(model: Decoder, batch: int, prompt: int, new_tokens: int) -> dict[str, float]:
    """Seconds for the prompt, and for the greedy tokens after it."""
    device = next(model.parameters()).device
    cache = KVCache(model, batch, prompt + new_tokens)
    with torch.inference_mode():
        started = _now(device)
        picked = model(_tokens(model, batch, prompt), cache=cache).logits[:, -1:].argmax(-1)
        filled = _now(device)
        for _ in range(new_tokens):
            picked = model(picked, cache=cache).logits[:, -1:].argmax(-1)
        return {"prefill": filled - started, "decode": _now(device) - filled}


def _recursion(model: Decoder, batch: int, length: int, new_tokens: int) -> dict[str, float]:
    """Seconds for a forward pass, for a forward and a backward pass, and for a token: all of it, and without the bodies
    of iterations over chunks. With updates that come a chunk later (`shift: parallel`) such a body is needed by the next
    token at the earliest and may run in the background, so that the second is what a token has to wait for (SpiralFormer,
    appendix E)."""
    device, tokens = next(model.parameters()).device, _tokens(model, batch, length)
    with torch.inference_mode():
        started = _now(device)
        model(tokens)
        prefill = _now(device) - started
    started = _now(device)
    logits = model(tokens).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    passes = _now(device) - started
    model.zero_grad(set_to_none=True)
    cache, bodies = KVCache(model, batch, length + new_tokens), [0.0]
    with torch.inference_mode():
        picked = model(tokens, cache=cache).logits[:, -1:].argmax(-1)
        with _timed_bodies(model, device, bodies):
            started = _now(device)
            for _ in range(new_tokens):
                picked = model(picked, cache=cache).logits[:, -1:].argmax(-1)
            token = (_now(device) - started) / new_tokens
    found = {"prefill": prefill, "passes": passes, "token": token}
    chunked = any(g > 1 for loop in model.plan.loops.values() for g in loop.chunks)
    return found | ({"critical": token - bodies[0] / new_tokens} if chunked else {})


@contextmanager
def _timed_bodies(model: Decoder, device: torch.device, spent: list[float]) -> Iterator[None]:
    """Adds up what the bodies of iterations over chunks take."""
    body = model._body

    def timed(index: int, loop: Loop, t: int, *arguments: Any, **shared: Any) -> torch.Tensor:
        if loop.chunks[t] == 1:
            return body(index, loop, t, *arguments, **shared)
        started = _now(device)
        out = body(index, loop, t, *arguments, **shared)
        spent[0] += _now(device) - started
        return out

    model._body = timed
    try:
        yield
    finally:
        del model._body


_MEASURES = {"decoding": _decoding, "recursion": _recursion}


def _tokens(model: Decoder, batch: int, length: int) -> torch.Tensor:
    """The same ones for every model of a size."""
    tokens = torch.randint(model.shape.vocab, (batch, length), generator=torch.Generator().manual_seed(0))
    return tokens.to(next(model.parameters()).device)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def speed(seconds: list[float], first: list[float], tokens: int) -> dict[str, Any]:
    """Median tokens per second; the ratio of speeds to the first model, and that of times, with standard errors."""
    (ratio, error), (time_ratio, time_error) = paired_ratio(first, seconds), paired_ratio(seconds, first)
    return {
        "tokens_per_second": round(tokens / statistics.median(seconds), 2),
        "ratio": round(ratio, 4),
        "ratio_stderr": round(error, 4),
        "time_ratio": round(time_ratio, 4),
        "time_ratio_stderr": round(time_error, 4),
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
