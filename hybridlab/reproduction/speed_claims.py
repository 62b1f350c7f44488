"""Tests of claims about decoding speed: on the ratios measured here, and on the paper's own printed ones."""

from __future__ import annotations

import itertools

from hybridlab.config.resolve import resolve
from hybridlab.reproduction.benchmark import paired_ratio
from hybridlab.reproduction.experiment import BENCHMARK, Experiment
from hybridlab.reproduction.schedule_cost import final_plan
from hybridlab.reproduction.verdict import Records, Verdict, all_of

PARTS = ("prefill", "decode")


def faster_decoding(experiment: Experiment, records: Records, rows: list[str], over: list[str]) -> Verdict:
    """Every one of these models is faster than every one of the others, at every size and batch, in both phases, by
    more than twice the standard error of their ratios, which are taken round by round."""
    if BENCHMARK not in records:
        return Verdict(None, "not run")
    results = records[BENCHMARK][0]["results"]
    faster, slower, open_, smallest = 0, [], [], float("inf")
    for group, models in results.items():
        for batch, part, left, right in itertools.product(models[rows[0]], PARTS, rows, over):
            ours, theirs = (models[name][batch][part]["seconds"] for name in (left, right))
            gain, error = paired_ratio(theirs, ours)
            text = f"{left} / {right}, {group}, batch {batch}, {part}: {gain:.3f} ± {error:.3f}"
            smallest = min(smallest, gain)
            if abs(gain - 1) <= 2 * error:
                open_.append(text)
            elif gain < 1:
                slower.append(text)
            else:
                faster += 1
    count = faster + len(slower) + len(open_)
    evidence = f"faster in {faster} of {count} comparisons, smallest ratio {smallest:.3f}"
    evidence += f"; slower: {'; '.join(slower)}" if slower else ""
    evidence += f"; not resolved: {'; '.join(open_)}" if open_ else ""
    return Verdict(False if slower else None if open_ else True, evidence)


def faster(experiment: Experiment, records: Records, rows: list[str], over: list[str], part: str) -> Verdict:
    """Less time for one part, at every size and batch, by more than twice the standard error of paired ratios."""
    if BENCHMARK not in records:
        return Verdict(None, "not run")
    parts = []
    for models in records[BENCHMARK][0]["results"].values():
        for batch, left, right in itertools.product(models[rows[0]], rows, over):
            ours, theirs = (models[name][batch][part]["seconds"] for name in (left, right))
            parts.append(_shorter(f"{left} / {right}, {part}", ours, theirs))
    return all_of(parts)


def shorter_path(experiment: Experiment, records: Records, model: str) -> Verdict:
    """The bodies over chunks take a resolved part of a token's time; without them is the path that it must wait for."""
    if BENCHMARK not in records:
        return Verdict(None, "not run")
    parts = []
    for models in records[BENCHMARK][0]["results"].values():
        for measured in models[model].values():
            if "critical" not in measured:
                return Verdict(None, f"{model} has no iterations over chunks")
            path, token = (measured[part]["seconds"] for part in ("critical", "token"))
            parts.append(_shorter(f"{model}: a token without its bodies over chunks", path, token))
    return all_of(parts)


def _shorter(label: str, ours: list[float], theirs: list[float]) -> Verdict:
    ratio, error = paired_ratio(ours, theirs)
    holds = None if abs(ratio - 1) <= 2 * error else ratio < 1
    unresolved = "" if holds is not None else ", not resolved"
    return Verdict(holds, f"{label}: {ratio:.3f} ± {error:.3f} of the time (n = {len(ours)} rounds{unresolved})")


def printed_ratios_follow(experiment: Experiment, records: Records, rounding: float = 0.05) -> Verdict:
    """The printed speeds stand to vanilla's exactly as the work does, in layers: L / (L + 3·h/H), L / (L + 3), within
    the rounding of the cells. Measured speeds would scatter around that: such figures look computed.
    """
    off, count, largest = [], 0, 0.0
    vanilla = {(r.given["group"], r.given["batch"]): r for r in experiment.rows if r.given["model"] == "Vanilla"}
    for row in experiment.rows:
        if row.given["model"] == "Vanilla":
            continue
        base, wanted = vanilla[row.given["group"], row.given["batch"]], _work_ratio(experiment, row.given)
        for part in PARTS:
            ours, theirs = row.paper[part], base.paper[part]
            low, high = (ours - rounding) / (theirs + rounding), (ours + rounding) / (theirs - rounding)
            count += 1
            largest = max(largest, abs(ours / theirs - wanted))
            if not low <= wanted <= high:
                off.append(f"{row.short} {part}: {ours / theirs:.4f} for {wanted:.4f}")
    evidence = f"{count - len(off)} of {count} printed ratios are the ratio of work within the cells' rounding"
    return Verdict(
        not off, f"{evidence}; largest difference {largest:.4f}" + (f" (not: {'; '.join(off)})" if off else "")
    )


def _work_ratio(experiment: Experiment, given: dict) -> float:
    """Layers of the plain stack over layers that run, a head loop counted as its share of heads."""
    spec = experiment.benchmark
    size = spec.sizes["paper"][given["group"]]
    config = resolve(spec.models[given["model"]]["arch"], size)
    extra = 0.0
    for visit in final_plan(config).visits:
        if visit.part == "attention" and visit.heads is not None:
            extra += len(visit.heads) / config.shape.heads
        elif visit.part == "block":
            extra += 1
        elif visit.part == "attention":
            extra += 1  # its MLP follows as a visit of its own, which is not counted again
    return config.shape.layers / extra


TESTS = {f.__name__: f for f in (faster_decoding, faster, shorter_path, printed_ratios_follow)}
