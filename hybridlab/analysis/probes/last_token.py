"""Attention of the last token over the tokens before it, by layer and by KV head (ConSA, section 5.6, appendix D.4).

hybridlab analyze RUN --probe last-token
hybridlab analyze RUN --probe last-token --tasks gsm8k,mmlu --rows 8 --heads-of 2,7 --data-root DIR
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hybridlab.analysis.last_token import PARTS, LastRow, last_rows, spread, statistics
from hybridlab.analysis.probe import Probe, Rows, Table
from hybridlab.analysis.prompts import Count, Numbers, Shots, Words
from hybridlab.analysis.task_prompts import PromptSettings, each_sequence
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plan.visit import layer_name
from hybridlab.registry import PROBES

SEQUENCES = 16


def measure(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = SEQUENCES,
    tasks: Words = (),
    heads_of: Numbers = (),
    shots: Shots | None = None,
    longest: Count | None = None,
    data_root: str | None = None,
) -> dict[str, Any]:
    """tasks: for each task (or `text`, windows of the validation text) the statistics of analysis/last_token.py,
    each [layer], over `rows` prompts; and of the first prompt its tokens, layers [layer][token] and heads [i][KV
    head][token], of the layers heads_of, counted from 0. head_entropy, head_range, head_local: [layer][KV head], over
    all prompts of all tasks. task_spread: [layer], how much the attention moves between tasks; null for only one.
    """
    if unknown := [layer for layer in heads_of if layer >= model.shape.layers]:
        raise UserError(f"--heads-of {unknown[0]}: this model has the layers 0 to {model.shape.layers - 1}")
    asked = PromptSettings(tasks, rows, shots, longest, data_root)
    sequences, about, missing = asked.sequences(model, corpus, seq_len)
    measured = {name: list(last_rows(model, each_sequence(model, name, ones))) for name, ones in sequences.items()}
    by_task = {name: statistics([row.layers for row in measured[name]]) for name in measured}
    heads = statistics([row.heads for ones in measured.values() for row in ones])
    parts = [found["parts"] for found in by_task.values() if "parts" in found]
    each = {
        name: {
            **about[name],
            **{key: _rounded(value) for key, value in by_task[name].items()},
            **_example(ones[0], sequences[name][0], corpus, heads_of),
        }
        for name, ones in measured.items()
    }
    return {
        "tasks": each,
        "heads_of": list(heads_of),
        **{f"head_{key}": _rounded(heads[key]) for key in ("entropy", "range", "local")},
        "task_spread": _rounded(spread(parts)) if len(parts) == len(each) > 1 else None,
        "missing": missing,
    }


def _example(row: LastRow, tokens: Tensor, corpus: Corpus, heads_of: tuple[int, ...]) -> dict[str, Any]:
    """One sequence as it is drawn."""
    return {
        "tokens": [corpus.tokenizer.decode([int(token)]) for token in tokens],
        "layers": _rounded(row.layers),
        "heads": [_rounded(row.heads[layer]) for layer in heads_of],
    }


def _rounded(values: Tensor) -> Any:
    """Nested lists, null for NaN."""
    if values.ndim > 1:
        return [_rounded(one) for one in values]
    return [None if v != v else round(v, 6) for v in values.tolist()]


def report(measured: dict[str, Any]) -> Iterator[str | Table]:
    """For each task a row for each layer."""
    columns = ["layer from 0", "entropy", "last tenth", "range of spikes", "first token"]
    for task, found in measured["tasks"].items():
        values = zip(*(found[key] for key in ("entropy", "local", "range", "first")), strict=True)
        rows: list[list[str | int | float | None]] = [
            [layer_name(layer).removeprefix("layer "), *one] for layer, one in enumerate(values)
        ]
        yield Table(f"{task}: {found['sequences']} sequences, {found['mean_length']:.0f} tokens", columns, rows)
    if measured["task_spread"] is not None:
        moved = ", ".join("–" if value is None else f"{value:.3f}" for value in measured["task_spread"])
        yield f"attention that moves between tasks, of 1, by layer over {PARTS} parts of a sequence: {moved}"
    for name, reason in measured["missing"].items():
        yield f"not measured: {name}: {reason}"


PROBES.add("last-token", Probe(measure, report, needs_decoder="the attention of the last token"))
