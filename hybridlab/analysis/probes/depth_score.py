"""The depth score: the layer, on average, whose work the predictions of later tokens need (depth-grown models, section
4.1 and appendix B; Csordás et al., 2025; figures 1A, 14A, 27 and 28).

    hybridlab analyze RUN --probe depth-score --prompts math.jsonl
    HYBRIDLAB_DATA_ROOT=DIR hybridlab analyze RUN --probe depth-score --prompts root:math    # or root:mquake --stride 0

m_l is the mean over sequences of the largest L2 distance of the output distributions at tokens from t on, when layer l
adds nothing to the tokens 1 … t − 1; the score is Σ l · m_l / Σ m_l with l from 0. Of prompts with levels there is a
score for each level, and their mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hybridlab.analysis.effects import depth_score
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.analysis.probes.effects import positions, skipped
from hybridlab.analysis.prompts import Choice, Count, Numbers, examples
from hybridlab.config.types import NonNegativeInt, Seed
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES
from hybridlab.statistics import Measurement


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = 20,
    boundaries: Count = 4,
    at: Numbers | None = None,
    stride: NonNegativeInt = 4,
    prompts: str | None = None,
    by: str | None = None,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Keys: score {value, stderr, n}, its value a mean over the levels if there are any; effects [layer], m_l of all
    sequences; levels {level: {score {value, stderr, n}, effects [layer]}}, only for prompts with levels.

    stderr is that of a ratio of means over n sequences, of the mean over levels that of independent ones. The score
    counts all layers of the model; one that the plan does not run has no effect. rows: sequences, of prompts with
    levels for each. The rest: see analysis/prompts.py.
    """
    made = examples(model, corpus, seq_len, rows, Choice(boundaries, stride, at, seed), prompts, by)
    running = sorted({visit.layer for _, visit in model.plan.places()})
    if not running:
        raise UserError("the plan runs no layer; there is nothing to skip")
    effects: dict[str | None, list[np.ndarray]] = {}
    for example in made:
        if (where := positions(example, "future")) is not None:
            row = np.zeros(model.shape.layers)
            row[running] = skipped(model, example, where, "layer", running).output.cpu().numpy()
            effects.setdefault(example.group, []).append(row)
    levels = {group: np.stack(found) for group, found in effects.items()}
    whole = np.concatenate(list(levels.values()))
    if list(levels) == [None]:
        return {"score": scored(whole), "effects": _rounded(whole)}
    named: dict[str, dict[str, Any]] = {
        str(group): {"score": scored(m), "effects": _rounded(m)} for group, m in levels.items()
    }
    return {"score": _mean([part["score"] for part in named.values()]), "effects": _rounded(whole), "levels": named}


def scored(effects: np.ndarray) -> dict[str, Any]:
    """The depth score of effects (N, L) of N sequences, as a `Measurement`."""
    n, layers = effects.shape
    score = depth_score(effects.mean(0).tolist())
    error = None
    if score is not None and n > 1:
        # The delta method for the ratio of the means of Σ l · m_l and Σ m_l.
        deviations = effects @ (np.arange(layers) - score)
        error = round(float(deviations.std(ddof=1) / (n**0.5 * effects.sum(1).mean())), 6)
    return Measurement(value=None if score is None else round(score, 6), stderr=error, n=n).model_dump()


def _mean(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of the levels' scores."""
    values, errors = ([one[key] for one in scores] for key in ("value", "stderr"))
    n = sum(one["n"] for one in scores)
    if None in values:
        return Measurement(value=None, n=n).model_dump()
    error = None if None in errors else round(float(np.sqrt(np.square(errors).sum())) / len(errors), 6)
    return Measurement(value=round(sum(values) / len(values), 6), stderr=error, n=n).model_dump()


def _rounded(effects: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in effects.mean(0)]


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """The scores, and a row for every layer with its effect on the output at future tokens."""
    scores = {"all": measured["score"]} | {name: part["score"] for name, part in measured.get("levels", {}).items()}
    for name, score in scores.items():
        of = "" if name == "all" else f", {name}"
        if score["value"] is None:
            yield f"depth score{of}: none, since no layer has an effect on future tokens"
            continue
        error = "" if score["stderr"] is None else f" ± {score['stderr']:.3f}"
        yield f"depth score{of}: {score['value']:.3f}{error} (layers from 0; {score['n']} sequences)"
    rows: list[list[str | int | float | None]] = [
        [layer_name(layer).removeprefix("layer "), value] for layer, value in enumerate(measured["effects"])
    ]
    yield Table("change of the output at future tokens", ["layer from 0", "L2, largest of a sequence"], rows)


PROBES.add("depth-score", Probe(measure, report, needs_decoder="the effect on later tokens", needs_text=True))
