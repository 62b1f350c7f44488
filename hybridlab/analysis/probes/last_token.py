"""Attention of the last token, head by head, on windows of text or on prompts of tasks: its entropy (SGT, section 2,
Eq. 4 and 5), how it is spread over the tokens (ConSA, section 5.6, appendix D.4), and whole maps (SGT, appendix C.3).

hybridlab analyze RUN --probe entropy --tasks arc_easy,gsm8k --rows 100 --data-root DIR
hybridlab analyze RUN --probe last-token --tasks gsm8k,mmlu --rows 8 --heads-of 2,7 --data-root DIR
hybridlab analyze RUN --probe attention-maps --heads L1-H1,L25-H2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.entropy import agreement, measured_entropies, row_entropy
from hybridlab.analysis.probe import Line, Probe, Rows, Table, layer_table, measured_heads, rounded
from hybridlab.analysis.prompts import NO_TASKS, Layers, TaskPrompts, Words, each_sequence, not_measured, sequences_of
from hybridlab.config.types import PositiveInt
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.plan.heads import Head, head_name, parse_heads
from hybridlab.registry import PROBES
from hybridlab.training.progress import followed

# ---- entropy ----


SEQUENCES = 256
"""So many by default, since the last row of one sequence says little of a head: in models of 1M parameters the head
entropies of a batch of 4 sequences correlate only .6 with those of 256."""


def measure_entropy(
    model: Transformer, corpus: Corpus, seq_len: int, rows: Rows = SEQUENCES, prompts: TaskPrompts = NO_TASKS
) -> dict[str, Any]:
    """heads: [layer][head], mean entropy over `rows` sequences, null for a head that does not run. layer_means and
    layer_variances: over the heads of a layer, null where one of them does not run.

    tasks: instead of text, `rows` prompts of each of these, with `shots` solved examples, of at most `longest` tokens
    (default: the sequence length). heads is then the mean over tasks, each task counting alike; tasks has the same for
    each task, with the lengths of its prompts; agreement: the mean rank correlation of the layers' means between two
    tasks; lowest, highest: [layer][head], the least and the most of a head on any task. With `units` also units [i]:
    the same of the i-th prompt of every task by itself, and of each task layer_means alone.
    """
    read = sequences_of(model, corpus, seq_len, rows, prompts)
    sequences, about = read.sequences, read.about
    if not prompts.tasks:
        (windows,) = (torch.stack(ones) for ones in sequences.values())
        return {
            "sequences": len(windows),
            "length": seq_len,
            **_levels(measured_entropies(model, followed(windows.split(8), "entropies"))),
        }
    by_prompt = {
        name: [measured_entropies(model, [tokens]) for tokens in each_sequence(model, name, ones)]
        for name, ones in sequences.items()
    }
    tables = {name: torch.stack(ones).mean(0) for name, ones in by_prompt.items()}
    by_task = {name: {**about[name], **_levels(table)} for name, table in tables.items()}
    stacked = torch.stack([*tables.values()])
    return {
        "sequences": sum(map(len, sequences.values())),
        "length": prompts.longest or seq_len,
        **_levels(stacked.mean(0)),
        "lowest": rounded(stacked.amin(0), 5),
        "highest": rounded(stacked.amax(0), 5),
        "agreement": agreement([task["layer_means"] for task in by_task.values()]),
        "tasks": by_task,
        "missing": read.missing,
        **read.by_unit(lambda i: _unit_levels(by_prompt, about, i)),
    }


def _unit_levels(by_prompt: dict[str, list[Tensor]], about: dict[str, dict[str, Any]], i: int) -> dict[str, Any]:
    """The entropies of the i-th prompt of every task, with what is said of the task."""
    tasks = {}
    for name, tables in by_prompt.items():
        said = {key: about[name][key] for key in ("mean_length", "sequences")}
        tasks[name] = {**said, "layer_means": rounded(tables[i].mean(1), 4)}
    mean = torch.stack([tables[i] for tables in by_prompt.values()]).mean(0)
    return {
        "heads": rounded(mean, 4),
        "layer_means": rounded(mean.mean(1), 4),
        "agreement": agreement([task["layer_means"] for task in tasks.values()]),
        "tasks": tasks,
    }


def _levels(table: Tensor) -> dict[str, Any]:
    """The entropies of all heads (L, H), and their means and variances in each layer."""
    heads = rounded(table, 5)
    return {
        "heads": heads,
        "layer_means": [None if None in row else round(sum(row) / len(row), 5) for row in heads],
        "layer_variances": rounded(table.var(dim=1, unbiased=False), 7),
    }


def report_entropy(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each layer, with its heads of lowest and highest entropy; before it, a row for each task."""
    tasks = measured.get("tasks", {})
    sequences = f"{measured['sequences']} sequences of {measured['length']} tokens"
    if tasks:
        columns = ["task", "prompts", "of", "mean tokens", "longest", "cut", "mean entropy"]
        rows: list[Line] = []
        for name, task in tasks.items():
            means = [mean for mean in task["layer_means"] if mean is not None]
            about = [task[key] for key in ("sequences", "examples", "mean_length", "longest", "cut")]
            rows.append([name, *about, sum(means) / len(means) if means else None])
        yield Table("prompts of tasks", columns, rows)
        sequences = f"mean over {len(tasks)} tasks, {measured['sequences']} prompts"
    lines: list[Line] = []
    for layer, values in enumerate(measured["heads"]):
        ordered = sorted((value, head) for head, value in enumerate(values) if value is not None)
        low, high = (f"{v:.3f} (head {head})" for v, head in (ordered[0], ordered[-1])) if ordered else (None, None)
        variance = measured["layer_variances"][layer]
        lines.append([measured["layer_means"][layer], None if variance is None else variance**0.5, low, high])
    yield layer_table(
        f"entropy of the last token, {sequences}", ["mean", "s.d. over heads", "lowest", "highest"], lines
    )
    if measured.get("agreement") is not None:
        yield f"rank correlation of the layers between two tasks, mean over all pairs: {measured['agreement']:.3f}"
    yield from not_measured(measured)


PROBES.add("entropy", Probe(measure_entropy, report_entropy))


# ---- how the last token spreads its attention, by layer and by KV head ----


PARTS = 16
"""Equal parts of a sequence, over which attention is compared between sequences of several lengths."""
SPIKE = 3.0
"""A token is a spike where it gets so many times the attention that it would get if all tokens got the same."""
TAIL = 0.1
"""The share of a sequence that counts as its end."""


def last_rows(model: Transformer, sequences: Iterator[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each sequence (1, S) of tokens: (L, S), the attention of the last token in each layer, summing to 1, the mean
    over its heads; and (L, K, S), the same of each KV head, the mean over the query heads that share it. Layers that do
    not run on tokens, but on latents or not at all, have NaN; one that runs several times counts at its first visit."""
    shape = model.shape
    for tokens in sequences:
        length = tokens.shape[1]
        with torch.no_grad():
            attention = model(tokens, need="last_row").attention
        rows = {place: w[0, :, -1].float().cpu() for place, w in attention.items() if w.shape[-1] == length}
        heads = torch.full((shape.layers, shape.heads, length), float("nan"))
        for place, layer, head, row in measured_heads(model.plan, shape.heads, rows):
            if heads[layer, head, 0].isnan():
                heads[layer, head] = rows[place][row]
        yield heads.nanmean(1), heads.view(shape.layers, -1, shape.group, length).nanmean(2)


Statistics = dict[str, Tensor]
"""Name → (…); see `statistics`."""


def statistics(row: Tensor) -> Statistics:
    """Of attention rows (…, S) of one sequence:

    entropy: of the row, as a share of the largest possible; 1 is uniform. local: attention on the last tenth of the
    sequence. range: in how many of 16 equal parts of the sequence, without the first token, a token gets three times
    the attention that a uniform row would give it, as a share. first: attention on the first token. parts (…, 16):
    attention on each of these parts, which sum to 1 with the first token; of a sequence of 17 tokens or more.
    """
    length = row.shape[-1]
    later = [part for part in row[..., 1:].tensor_split(PARTS, dim=-1) if part.shape[-1]]
    values = {
        "entropy": row_entropy(row, torch.full(row.shape[:-1], length)),
        "local": row[..., length - max(1, round(TAIL * length)) :].sum(-1),
        "range": torch.stack([(part > SPIKE / length).any(-1) for part in later] or [row[..., 0] < 0]).float().mean(0),
        "first": row[..., 0],
    }
    if len(later) == PARTS:
        values["parts"] = torch.stack([part.sum(-1) for part in later], dim=-1)
    return values


def spread(parts: Sequence[Tensor]) -> Tensor:
    """(L,): how much attention moves between sequences of several tasks: half the sum of the absolute differences of
    their parts (L, 16), the mean over all pairs of tasks; 0 for the same distribution, 1 for disjoint ones."""
    pairs = [(a - b).abs().sum(-1) / 2 for i, a in enumerate(parts) for b in parts[i + 1 :]]
    return torch.stack(pairs).mean(0)


def measure_spread(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = 16,
    heads_of: Layers = (),
    prompts: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """tasks: for each task (or `text`, windows of the validation text) `statistics`, each [layer], over `rows` prompts;
    and of the first prompt its tokens, layers [layer][token] and heads [i][KV head][token], of the layers heads_of,
    counted from 0 or as shares, as 9/28. head_entropy, head_range, head_local: [layer][KV head], over all prompts of
    all tasks. task_spread: [layer], how much the attention moves between tasks; null for only one. With `units` also
    units [i]: the same of the i-th prompt of every task by itself without parts, the attention on single tokens of the
    first alone.
    """
    layers = []
    for entry in heads_of:
        part, _, denominator = str(entry).partition("/")
        layers.append(int(part) if not denominator else model.shape.layers * int(part) // int(denominator))
    if unknown := [layer for layer in layers if layer >= model.shape.layers]:
        raise UserError(f"--heads-of {unknown[0]}: this model has the layers 0 to {model.shape.layers - 1}")
    read = sequences_of(model, corpus, seq_len, rows, prompts)
    first_prompts: dict[str, dict[str, Any]] = {}
    measured: dict[str, list[tuple[Statistics, Statistics]]] = {}
    for name, ones in read.sequences.items():
        for in_layers, in_heads in last_rows(model, each_sequence(model, name, ones)):
            measured.setdefault(name, []).append((statistics(in_layers), statistics(in_heads)))
            first_prompts.setdefault(
                name,
                {
                    "tokens": [corpus.tokenizer.decode([int(token)]) for token in ones[0]],
                    "layers": rounded(in_layers, 6),
                    "heads": [rounded(in_heads[layer], 6) for layer in layers],
                },
            )
    result = _spread_over(measured, 6)
    for name in measured:
        result["tasks"][name] = {**read.about[name], **result["tasks"][name], **first_prompts[name]}

    def of_unit(i: int) -> dict[str, Any]:
        unit = _spread_over({name: [ones[i]] for name, ones in measured.items()}, 4)
        for name, task in unit["tasks"].items():
            task.pop("parts", None)
            task |= {} if i else first_prompts[name]
        return unit

    return {**result, **read.by_unit(of_unit), "heads_of": layers, "missing": read.missing}


def _spread_over(measured: Mapping[str, Sequence[tuple[Statistics, Statistics]]], digits: int) -> dict[str, Any]:
    """tasks, head_entropy, head_range, head_local and task_spread of `measure_spread`. measured: of each task the
    statistics of layers and of heads, for each of its prompts."""
    by_task = {name: _means([layers for layers, _ in ones]) for name, ones in measured.items()}
    heads = _means([heads for ones in measured.values() for _, heads in ones])
    parts = [values["parts"] for values in by_task.values() if "parts" in values]
    return {
        "tasks": {name: {key: rounded(value, digits) for key, value in task.items()} for name, task in by_task.items()},
        **{f"head_{key}": rounded(heads[key], digits) for key in ("entropy", "range", "local")},
        "task_spread": rounded(spread(parts), digits) if len(parts) == len(measured) > 1 else None,
    }


def _means(ones: Sequence[Statistics]) -> Statistics:
    """The mean of each statistic over prompts, of those that have it."""
    names = dict.fromkeys(name for prompt in ones for name in prompt)
    return {name: torch.stack([prompt[name] for prompt in ones if name in prompt]).mean(0) for name in names}


def report_spread(measured: dict[str, Any]) -> Iterator[str | Table]:
    """For each task a row for each layer."""
    for task, values in measured["tasks"].items():
        layers = zip(*(values[key] for key in ("entropy", "local", "range", "first")), strict=True)
        title = f"{task}: {values['sequences']} sequences, {values['mean_length']:.0f} tokens"
        yield layer_table(title, ["entropy", "last tenth", "range of spikes", "first token"], layers)
    if measured["task_spread"] is not None:
        moved = ", ".join("–" if value is None else f"{value:.3f}" for value in measured["task_spread"])
        yield f"attention that moves between tasks, of 1, by layer over {PARTS} parts of a sequence: {moved}"
    yield from not_measured(measured)


PROBES.add("last-token", Probe(measure_spread, report_spread, needs_decoder="the attention of the last token"))


# ---- whole attention maps of heads with low and high entropy, on one prompt of each task ----


HALF = 0.5
"""The tokens that are marked get this share of the last token's attention together."""
NEAR = 8
"""Tokens up to so far before the last one are its neighbourhood."""


def measure_maps(
    model: Transformer,
    corpus: Corpus,
    seq_len: int,
    rows: Rows = 32,
    heads: Words = (),
    count: PositiveInt = 1,
    shown: PositiveInt = 48,
    prompts: TaskPrompts = NO_TASKS,
) -> dict[str, Any]:
    """heads: those that are shown, by name (L1-H3: layer 1, head 3, counted from 1), each with its kind (low, high or
    chosen), its least and largest entropy on any task, and what it does over all prompts: `near`, the attention of the
    last token on itself and the 8 tokens before it; `first`, on the first token; `half`, the share of the tokens that
    together get half of it. By default the `count` heads whose largest entropy is lowest, and those whose least is
    highest, on `rows` prompts of each task (or windows of text).

    maps: for each task the last `shown` tokens of its shortest prompt, marked: by head, the places of the tokens that
    together get half of the last token's attention; weights: by head, [query][key]. With `units` also units [i]: near,
    first and half of each head on the i-th prompt of every task by itself, and of the first all else that is here.
    """
    read = sequences_of(model, corpus, seq_len, rows, prompts)
    sequences = read.sequences
    tables = torch.stack(
        [measured_entropies(model, each_sequence(model, name, ones)) for name, ones in sequences.items()]
    )
    low, high = tables.amin(0), tables.amax(0)
    if heads:
        chosen = {head: "chosen" for head in parse_heads(",".join(heads), model.shape.layers, model.shape.heads)}
    else:
        if count > low.numel():
            raise UserError(f"count = {count}: this model has {low.numel()} heads; give at most as many")
        least = high.nan_to_num(nan=float("inf")).flatten().argsort(stable=True)[:count].tolist()
        most = low.nan_to_num(nan=-float("inf")).flatten().argsort(descending=True, stable=True)[:count].tolist()
        kinds = dict.fromkeys(most, "high") | dict.fromkeys(least, "low")
        chosen = {divmod(place, low.shape[1]): kinds[place] for place in dict.fromkeys([*least, *most])}
    doing = {name: _behaviour(model, ones, [*chosen]) for name, ones in sequences.items()}
    said = {
        head_name(head): {"kind": kind, "lowest": rounded(low[head], 5), "highest": rounded(high[head], 5)}
        for head, kind in chosen.items()
    }
    maps = {name: _map(model, corpus, min(ones, key=len), [*chosen], shown) for name, ones in sequences.items()}
    count = sum(map(len, sequences.values()))
    result: dict[str, Any] = {"sequences": count, "heads": _mean_behaviour(said, doing), "maps": maps}

    def of_unit(i: int) -> dict[str, Any]:
        unit = {"heads": _mean_behaviour(said, {name: [ones[i]] for name, ones in doing.items()})}
        return unit if i else {**unit, "maps": maps}

    return {**result, **read.by_unit(of_unit), "missing": read.missing}


def _weights(model: Transformer, tokens: Tensor, heads: list[Head], need: str) -> dict[Head, Tensor]:
    """(Q, S): the attention of each head at the first visit of its layer, for one sequence (1, S)."""
    with torch.no_grad():
        output = model(tokens, need=need)
    weights: dict[Head, Tensor] = {}
    for place, visit in model.plan.places():
        running = list(visit.heads or range(model.shape.heads))
        for head in heads:
            if place in output.attention and head[0] == visit.layer and head[1] in running and head not in weights:
                weights[head] = output.attention[place][0, running.index(head[1])].float().cpu()
    if missing := [head for head in heads if head not in weights]:
        raise UserError(f"{head_name(missing[0])} does not run in this model; choose another head")
    return weights


def _behaviour(model: Transformer, sequences: list[Tensor], heads: list[Head]) -> list[dict[str, dict[str, float]]]:
    """Of each sequence: head → near, first and half."""
    behaviours = []
    for tokens in each_sequence(model, "heads", sequences):
        length = tokens.shape[1]
        rows = {head_name(head): w[-1] for head, w in _weights(model, tokens, heads, "last_row").items()}
        behaviours.append(
            {
                name: {
                    "near": float(row[max(0, length - 1 - NEAR) :].sum()),
                    "first": float(row[0]),
                    "half": len(marked(row)) / length,
                }
                for name, row in rows.items()
            }
        )
    return behaviours


def _mean_behaviour(
    kinds: Mapping[str, dict[str, Any]], doing: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]
) -> dict[str, dict[str, Any]]:
    """What is said of each head, with the means over all sequences of what it does. doing: of each task."""
    every = [seq for ones in doing.values() for seq in ones]
    return {
        name: {**said, **{key: round(sum(seq[name][key] for seq in every) / len(every), 5) for key in every[0][name]}}
        for name, said in kinds.items()
    }


def marked(row: Tensor) -> list[int]:
    """The places of the fewest tokens that together get half of the attention (S,), in their order."""
    order = row.argsort(descending=True, stable=True)
    count = int((row[order].cumsum(0) < HALF * float(row.sum()) - 1e-6).sum()) + 1
    return sorted(order[:count].tolist())


def _map(model: Transformer, corpus: Corpus, tokens: Tensor, heads: list[Head], shown: int) -> dict[str, Any]:
    first = max(0, len(tokens) - shown)
    weights = _weights(model, tokens[None].to(model.device), heads, "full")
    return {
        "length": len(tokens),
        "tokens": [corpus.tokenizer.decode([int(token)]) for token in tokens[first:]],
        "marked": {head_name(h): [p - first for p in marked(w[-1]) if p >= first] for h, w in weights.items()},
        "weights": {head_name(head): rounded(matrix[first:, first:], 4) for head, matrix in weights.items()},
    }


def report_maps(measured: dict[str, Any]) -> Iterator[str | Table]:
    """A row for each head, and for each task the tokens that its heads attend to."""
    keys = ("kind", "lowest", "highest", "near", "first", "half")
    columns = ["head", "kind", "lowest entropy", "highest", "near", "first token", "half on"]
    lines = [[name, *(head[key] for key in keys)] for name, head in measured["heads"].items()]
    yield Table(f"the last token of {measured['sequences']} sequences", columns, lines)
    for task, task_map in measured["maps"].items():
        for name, places in task_map["marked"].items():
            yield f"{task}, {name}: half of the attention on {' '.join(repr(task_map['tokens'][p]) for p in places)}"
    yield from not_measured(measured)


PROBES.add("attention-maps", Probe(measure_maps, report_maps, needs_decoder="the attention of the last token"))
