"""Validation loss and perplexity, and the synthetic tasks, each with its n and standard error.

Validation takes evenly spaced windows, the same ones for every model on the same data. Tasks are split by the distance
from a query to the fact that decides it: inside the window w (distance < w); relayed, outside one window but within
what windows can hand on from visit to visit; outside the reach of all of them (distance > visits · (w − 1)), where a
model of windows alone can only guess.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from hybridlab.analysis.probes import probe_results
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Windows, check_vocabulary, task_generator
from hybridlab.data.shards import Corpus
from hybridlab.data.tasks import CHANCE, TASKS, TaskRow, make_row
from hybridlab.evaluation.causality import require_causal
from hybridlab.evaluation.rows import chunks
from hybridlab.models.decoder import Decoder
from hybridlab.plan.attention_map import Full
from hybridlab.training.engine import autocast, token_losses


def measure(model: Decoder, config: RunConfig, corpus: Corpus, precision: str, whole: bool = False) -> dict[str, Any]:
    """All results of a model under a run's settings, after the causality probe (in fp32).

    whole: take the whole corpus for validation, because the model was trained on another one.
    """
    device = next(model.parameters()).device
    model.eval()
    check_vocabulary(corpus, config.data, model.shape.vocab)
    kernels = model.kernels_used(config.training.seq_len, device, precision != "fp32").values()
    results: dict[str, Any] = {
        "causality": {"largest_change": require_causal(model, config.training.seq_len, sorted(set(kernels)))}
    }
    context = autocast(device, precision)
    splits = ("train", "validation") if whole else ("validation",)
    shards = [shard for split in splits for shard in getattr(corpus, split)]
    results["validation"] = validation(model, config, shards, corpus.bytes_per_token(*splits), context)
    if config.evaluation.length_factors:
        results["extrapolation"] = {
            str(factor): validation(model, config, shards, corpus.bytes_per_token(*splits), context, factor)
            for factor in config.evaluation.length_factors
        }
    window = task_window(model, config)
    for number, task in enumerate(TASKS):
        if getattr(config.data.mix, task) > 0:
            results[task] = task_accuracy(model, config, corpus, context, task, number, window)
    for probe in config.evaluation.probes or []:
        results.setdefault("probes", {})[probe] = probe_results(probe, model, corpus, config.training.seq_len)
    return results


def validation(
    model: Decoder,
    config: RunConfig,
    shards: list[np.ndarray],
    bytes_per_token: float,
    context: AbstractContextManager,
    factor: int = 1,
) -> dict[str, Any]:
    """Mean loss in nats per token over evenly spaced windows; the standard error is over windows.

    factor: windows of so many times the training length, and fewer of them, so that they hold as many tokens.
    """
    length = factor * config.training.seq_len
    windows = Windows(shards, length)
    if not len(windows):
        return {
            "loss": None,
            "stderr": None,
            "n": 0,
            "perplexity": None,
            "perplexity_stderr": None,
            "bits_per_byte": None,
            "windows": [],
        }
    count = min(max(1, config.evaluation.validation_windows // factor), len(windows))
    chosen = np.linspace(0, len(windows) - 1, count).round().astype(int)
    losses: list[float] = []
    for rows in chunks(chosen, model, length):
        tokens = torch.from_numpy(np.stack([windows[int(i)] for i in rows])).to(_device(model))
        with torch.no_grad(), context:
            losses += token_losses(model(tokens).logits, tokens).double().mean(1).tolist()
    loss, stderr = mean_and_error(losses)
    return {
        "loss": loss,
        "stderr": stderr,
        "n": count,
        "perplexity": _exp(loss),
        # The delta method: the derivative of exp is exp.
        "perplexity_stderr": _exp(loss) * stderr if stderr is not None and _exp(loss) else None,
        "bits_per_byte": loss / math.log(2) / bytes_per_token,
        "windows": [round(value, 5) for value in losses],
    }


def task_accuracy(
    model: Decoder,
    config: RunConfig,
    corpus: Corpus,
    context: AbstractContextManager,
    task: str,
    number: int,
    window: int | None,
) -> dict[str, Any]:
    """Accuracy among the possible answers, split by distance where a window is known."""
    length = config.training.seq_len
    rows = [make_row(task, length, task_generator(number, i)) for i in range(config.evaluation.task_rows)]
    right = np.concatenate([_right_answers(model, part, corpus.vocab, context) for part in chunks(rows, model, length)])
    measured = np.concatenate([row.open for row in rows])
    right, distances = right[measured], np.concatenate([row.distances for row in rows])[measured]
    results = {"chance": CHANCE[task], "window": window, "all": proportion(right)}
    if window is not None:
        reach = window_reach(model, window)
        inside, outside = distances < window, distances > reach
        results["reach"] = reach
        results["inside"] = proportion(right[inside])
        results["relayed"] = proportion(right[~inside & ~outside])
        results["outside"] = proportion(right[outside & ~inside])
    return results


def _right_answers(model: Decoder, rows: list[TaskRow], offset: int, context: AbstractContextManager) -> np.ndarray:
    tokens = torch.from_numpy(np.stack([row.tokens for row in rows]) + offset).to(_device(model))
    with torch.no_grad(), context:
        logits = model(tokens).logits.float()
    right = []
    for scores, row in zip(logits, rows, strict=True):
        options = torch.from_numpy(row.options + offset).to(scores.device)
        chosen = scores[row.answers - 1].gather(1, options).argmax(1, keepdim=True)
        right.append((options.gather(1, chosen)[:, 0].cpu().numpy() - offset) == row.tokens[row.answers])
    return np.concatenate(right)


def task_window(model: Decoder, config: RunConfig) -> int | None:
    """The w that divides inside from outside: the setting, or the one window of the map."""
    if config.evaluation.task_window is not None:
        return config.evaluation.task_window
    widths = {kind.width for row in model.attention_map.layers for kind in row if not isinstance(kind, Full)}
    return widths.pop() if len(widths) == 1 else None


def window_reach(model: Decoder, window: int) -> int:
    """How far back windows of all attention visits together hand something on, loops over chunks included: a latent's
    window covers g tokens an entry, its chunk begins g − 1 tokens before its end, and its update moves on by the shift."""
    plan, reach = model.plan, 0
    for place, visit in plan.places():
        g = 1 if len(place) == 1 else plan.visits[place[0]].chunks[place[1]]
        reach += g * (window - 1) * (visit.part != "mlp")
    for loop in plan.loops.values():
        reach += sum(g - 1 + loop.shift_of(t) for t, g in enumerate(loop.chunks))
    return reach


def _exp(loss: float) -> float | None:
    """None where the perplexity is beyond all numbers."""
    return math.exp(loss) if loss < 700 else None


def proportion(right: np.ndarray) -> dict[str, Any]:
    """Share of right answers with its binomial standard error; null where there was none to answer."""
    n = len(right)
    if n == 0:
        return {"accuracy": None, "stderr": None, "n": 0}
    p = float(right.mean())
    return {"accuracy": p, "stderr": math.sqrt(p * (1 - p) / n), "n": n}


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """Mean and its standard error; None for the error of a single value."""
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return float(array.mean()), error


def _device(model: Decoder) -> torch.device:
    return next(model.parameters()).device
