"""Attention entropy of the last token, head by head (SGT, section 2, Eq. 4 and 5), on text or on prompts of tasks.

hybridlab analyze RUN --probe entropy
hybridlab analyze RUN --probe entropy --tasks arc_easy,gsm8k --rows 100 --data-root DIR
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import agreement, measured_entropies
from hybridlab.analysis.probe import Probe, Rows, Table, spaced_windows
from hybridlab.analysis.prompts import Count, Shots, Words
from hybridlab.analysis.task_prompts import PromptSettings, each_sequence
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES

SEQUENCES = 256
"""So many by default, since the last row of one sequence says little of a head: in models of 1M parameters the head
entropies of a batch of 4 sequences correlate only .6 with those of 256."""


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = SEQUENCES,
    tasks: Words = (),
    shots: Shots | None = None,
    longest: Count | None = None,
    data_root: str | None = None,
) -> dict[str, Any]:
    """heads: [layer][head], mean entropy over `rows` sequences, null for a head that does not run. layer_means and
    layer_variances: over the heads of a layer, null where one of them does not run.

    tasks: instead of text, `rows` prompts of each of these, with `shots` solved examples, of at most `longest` tokens
    (default: the sequence length). heads is then the mean over tasks, each task counting alike; tasks has the same for
    each task, with the lengths of its prompts; agreement: the mean rank correlation of the layers' means between two
    tasks; lowest, highest: [layer][head], the least and the most of a head on any task.
    """
    asked = PromptSettings(tasks, rows, shots, longest, data_root)
    if not tasks:
        asked.refuse_without_tasks()
        tokens = spaced_windows(model, corpus, seq_len, rows)
        return {"sequences": len(tokens), "length": seq_len, **_levels(measured_entropies(model, tokens.split(8)))}
    found, missing = asked.prompts(model, corpus.tokenizer, seq_len)
    tables = {name: measured_entropies(model, each_sequence(model, name, one.sequences)) for name, one in found.items()}
    each = {name: {**one.summary, **_levels(tables[name])} for name, one in found.items()}
    stacked = torch.stack(list(tables.values()))
    return {
        "sequences": sum(len(one.sequences) for one in found.values()),
        "length": longest or seq_len,
        **_levels(stacked.mean(0)),
        "lowest": _rounded(stacked.amin(0)),
        "highest": _rounded(stacked.amax(0)),
        "agreement": agreement([one["layer_means"] for one in each.values()]),
        "tasks": each,
        "missing": missing,
    }


def _levels(table: Tensor) -> dict[str, Any]:
    """The entropies of all heads (L, H), and their means and variances in each layer."""
    heads = _rounded(table)
    layers = [_layer_mean(row) for row in heads]
    spread = table.var(dim=1, unbiased=False).tolist()
    return {
        "heads": heads,
        "layer_means": [None if v is None else round(v, 5) for v in layers],
        "layer_variances": [None if v != v else round(v, 7) for v in spread],
    }


def _rounded(table: Tensor) -> list[list[float | None]]:
    return [[None if v != v else round(v, 5) for v in row] for row in table.tolist()]


def _layer_mean(heads: list[float | None]) -> float | None:
    """The mean over the heads of a layer; None if one of them does not run."""
    running = [value for value in heads if value is not None]
    return sum(running) / len(running) if len(running) == len(heads) else None


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each layer, with its heads of lowest and highest entropy; before it, a row for each task."""
    tasks = measured.get("tasks", {})
    if tasks:
        columns = ["task", "prompts", "of", "mean tokens", "longest", "cut", "mean entropy"]
        yield Table("prompts of tasks", columns, [_task_row(name, found) for name, found in tasks.items()])
    rows = []
    for layer, values in enumerate(measured["heads"]):
        ordered = sorted((value, head) for head, value in enumerate(values) if value is not None)
        low, high = (f"{v:.3f} (head {head})" for v, head in (ordered[0], ordered[-1])) if ordered else (None, None)
        variance = measured["layer_variances"][layer]
        deviation = None if variance is None else variance**0.5
        rows.append([layer_name(layer).removeprefix("layer "), measured["layer_means"][layer], deviation, low, high])
    sequences = f"{measured['sequences']} sequences of {measured['length']} tokens"
    if tasks:
        sequences = f"mean over {len(tasks)} tasks, {measured['sequences']} prompts"
    title = f"entropy of the last token, {sequences}"
    yield Table(title, ["layer from 0", "mean", "s.d. over heads", "lowest", "highest"], rows)
    if measured.get("agreement") is not None:
        yield f"rank correlation of the layers between two tasks, mean over all pairs: {measured['agreement']:.3f}"
    for name, reason in measured.get("missing", {}).items():
        yield f"not measured: {name}: {reason}"


def _task_row(name: str, found: dict[str, Any]) -> list[str | int | float | None]:
    layers = [mean for mean in found["layer_means"] if mean is not None]
    mean = sum(layers) / len(layers) if layers else None
    return [name, found["sequences"], found["examples"], found["mean_length"], found["longest"], found["cut"], mean]


PROBES.add("entropy", Probe(measure, report))
