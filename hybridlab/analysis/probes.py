"""The probes by name: what `hybridlab analyze` runs on a model, and what a run keeps in its record.

All take validation text, the same windows for every model on the same data, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.analysis.contributions import contributions
from hybridlab.analysis.convergence import convergence
from hybridlab.analysis.entropy import measured_entropies
from hybridlab.analysis.loops import described_fresh, loop_statistics, reach
from hybridlab.config.schema import Probe
from hybridlab.data.batches import Windows
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder

_LONGEST = 256
"""Rows of whole attention matrices are looked at up to this length."""
_SHOWN = 32
"""Tokens of a picture."""


def run_probe(probe: Probe, model: Decoder, corpus: Corpus, seq_len: int, **settings: Any) -> dict[str, Any]:
    """One probe on a corpus' validation part; {"skipped": why} where the plan has nothing for it to look at."""
    if all(visit.part == "mlp" for _, visit in model.plan.places()):
        return {"skipped": "the plan has no attention"}
    return _PROBES[probe](model.eval(), corpus, seq_len, **settings)


def probe_results(probe: Probe, model: Decoder, corpus: Corpus, seq_len: int) -> dict[str, Any]:
    """One probe for a record: a model that it does not fit costs the run nothing but this result."""
    try:
        return run_probe(probe, model, corpus, seq_len)
    except UserError as reason:
        return {"skipped": str(reason)}


def _windows(model: Decoder, corpus: Corpus, length: int, count: int) -> Tensor:
    """(count, length), evenly spaced over the validation part."""
    windows = Windows(corpus.validation, length)
    if not len(windows):
        raise UserError(f"the validation part of {corpus.folder} has no {length} tokens in a row; give more text")
    chosen = np.unique(np.linspace(0, len(windows) - 1, min(count, len(windows))).round().astype(int))
    tokens = np.stack([windows[int(i)] for i in chosen])
    return torch.from_numpy(tokens).to(next(model.parameters()).device)


def _entropy(model: Decoder, corpus: Corpus, seq_len: int, rows: int = 64) -> dict[str, Any]:
    tokens = _windows(model, corpus, seq_len, rows)
    table = measured_entropies(model, tokens.split(8))
    known = [[None if v != v else round(v, 5) for v in row] for row in table.tolist()]
    layers = [sum(row) / len(row) if None not in row else None for row in known]
    spread = table.var(dim=1, unbiased=False).tolist()
    return {
        "sequences": len(tokens),
        "length": seq_len,
        "heads": known,
        "layer_means": [None if v is None else round(v, 5) for v in layers],
        "layer_variances": [None if v != v else round(v, 7) for v in spread],
    }


def _convergence(
    model: Decoder, corpus: Corpus, seq_len: int, rows: int = 8, heads: int = 2, passes: int = 8
) -> dict[str, Any]:
    return convergence(model, _windows(model, corpus, min(seq_len, _LONGEST), rows), heads, passes)


def _contributions(model: Decoder, corpus: Corpus, seq_len: int, rows: int = 2) -> dict[str, Any]:
    examples = []
    for tokens in _windows(model, corpus, min(seq_len, _SHOWN), rows + 1)[1:]:
        texts = [corpus.tokenizer.decode([token]) for token in tokens.tolist()]
        examples.append(contributions(model, tokens, texts))
    return {"skipped": "the plan has no head loops"} if None in examples else {"examples": examples}


def _loops(model: Decoder, corpus: Corpus, seq_len: int, rows: int = 64) -> dict[str, Any]:
    tokens = _windows(model, corpus, min(seq_len, 4 * _LONGEST), rows)
    found = loop_statistics(model, tokens.split(4))
    if found is None:
        return {"skipped": "the plan has no loop over iterations"}
    return found | {"fresh": described_fresh(model, tokens.split(4))}


def _reach(model: Decoder, corpus: Corpus, seq_len: int) -> dict[str, Any]:
    return reach(model, _SHOWN) or {"skipped": "the plan does not have exactly one loop over iterations"}


_PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "entropy": _entropy,
    "convergence": _convergence,
    "contributions": _contributions,
    "loops": _loops,
    "reach": _reach,
}
