"""Tests of claims about decoding speed: on the ratios measured here, and on the paper's own printed ones."""

from __future__ import annotations

from hybridlab.config.resolve import resolve
from hybridlab.reproduction.experiment import BENCHMARK, Experiment
from hybridlab.reproduction.schedule_cost import final_plan
from hybridlab.reproduction.verdict import Records, Verdict

PARTS = ("prefill", "decode")


def faster_decoding(experiment: Experiment, records: Records, rows: list[str], over: list[str]) -> Verdict:
    """Every one of these models is faster than every one of the others, at every size and batch, in both phases."""
    if BENCHMARK not in records:
        return Verdict(None, "not run")
    results = records[BENCHMARK][0]["results"]
    slower, closest, count = [], float("inf"), 0
    for group, models in results.items():
        for batch in models[rows[0]]:
            for part in PARTS:
                for left in rows:
                    for right in over:
                        gain = models[left][batch][part]["ratio"] / models[right][batch][part]["ratio"]
                        count += 1
                        closest = min(closest, gain)
                        if gain <= 1:
                            slower.append(f"{group}, batch {batch}, {part}: {gain:.3f}")
    evidence = f"faster in {count - len(slower)} of {count} comparisons, by {closest:.3f} × at least"
    return Verdict(not slower, evidence + (f" (not: {'; '.join(slower)})" if slower else ""))


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


TESTS = {f.__name__: f for f in (faster_decoding, printed_ratios_follow)}
