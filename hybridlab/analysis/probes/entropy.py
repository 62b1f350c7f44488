"""Attention entropy of the last token, head by head (SGT, section 2, Eq. 4 and 5).

hybridlab analyze RUN --probe entropy
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridlab.analysis.entropy import measured_entropies
from hybridlab.analysis.probe import Probe, Rows, Table, spaced_windows
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES

SEQUENCES = 256
"""So many by default, since the last row of one sequence says little of a head: in models of 1M parameters the head
entropies of a batch of 4 sequences correlate only .6 with those of 256."""


def measure(model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = SEQUENCES) -> dict[str, Any]:
    """heads: [layer][head], mean entropy over `rows` sequences, null for a head that does not run. layer_means and
    layer_variances: over the heads of a layer, null where one of them does not run."""
    tokens = spaced_windows(model, corpus, seq_len, rows)
    table = measured_entropies(model, tokens.split(8))
    heads = [[None if v != v else round(v, 5) for v in row] for row in table.tolist()]
    layers = [_layer_mean(row) for row in heads]
    spread = table.var(dim=1, unbiased=False).tolist()
    return {
        "sequences": len(tokens),
        "length": seq_len,
        "heads": heads,
        "layer_means": [None if v is None else round(v, 5) for v in layers],
        "layer_variances": [None if v != v else round(v, 7) for v in spread],
    }


def _layer_mean(heads: list[float | None]) -> float | None:
    """The mean over the heads of a layer; None if one of them does not run."""
    running = [value for value in heads if value is not None]
    return sum(running) / len(running) if len(running) == len(heads) else None


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each layer, with its heads of lowest and highest entropy."""
    rows = []
    for layer, values in enumerate(measured["heads"]):
        ordered = sorted((value, head) for head, value in enumerate(values) if value is not None)
        low, high = (f"{v:.3f} (head {head})" for v, head in (ordered[0], ordered[-1])) if ordered else (None, None)
        variance = measured["layer_variances"][layer]
        deviation = None if variance is None else variance**0.5
        rows.append([layer_name(layer).removeprefix("layer "), measured["layer_means"][layer], deviation, low, high])
    title = f"entropy of the last token, {measured['sequences']} sequences of {measured['length']} tokens"
    yield Table(title, ["layer from 0", "mean", "s.d. over heads", "lowest", "highest"], rows)


PROBES.add("entropy", Probe(measure, report))
