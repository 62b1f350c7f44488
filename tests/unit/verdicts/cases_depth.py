"""Depth growth: claims on what is copied, when, and what runs log."""

from tests.unit.verdicts.building import case, measured, record

same = {"sizes": [2, 3, 4], "coincide": True}
case("copies_coincide", True, same | {"blocks": [1, 3, 5]}, evidence="^operator: the same layers in 9 of 9 cases$")
case("copies_coincide", False, same | {"blocks": [1, 2], "sizes": [4]}, evidence="in 1 of 2 cases (not: 2 blocks of 4)")
other = {"blocks": [2, 4], "sizes": [2, 4]}
case("copies_coincide", True, other | {"coincide": False}, evidence="^operator: other layers in 4 of 4 cases$")
# With blocks of a single layer the two do not differ.
case(
    "copies_coincide", False, {**other, "sizes": [1], "coincide": False}, evidence="(not: 2 blocks of 1; 4 blocks of 1)"
)

four = {"blocks": 4, "size": 4}
lidas = {"method": "lidas", "layers": [6, 7, 8, 9]}
case(
    "copies_layers",
    True,
    four | lidas,
    evidence=("^operator: 6, 7, 8, 9 are copied; ", "7 8 9 6 7 8 9 10 11 12 13 14 15$"),
)
case("copies_layers", True, four | {"method": "midas", "layers": [4, 5, 6, 7]})
case("copies_layers", False, four | {"method": "midas", "layers": [6, 7, 8, 9]})
case("copies_layers", False, four | {**lidas, "layers": [5, 6, 7, 8, 9]})

copies = {"method": "lidas", "blocks": 2, "size": 2}
told = "^operator: 2 layers are copied: 2 copies with equal values, 0 with shared storage$"
case("copies_have", True, copies | {"what": "equal values"}, evidence=told)
case("copies_have", True, copies | {"what": "storage of their own"}, evidence=told)
case("copies_have", False, copies | {"what": "the same storage"}, evidence=told)

evenly = {"size": "tiny", "arch": "midas", "by": 2, "stages": 4}
case("grows_evenly", True, evenly, evidence="^forecast: 2, 4, 6, 8 layers of 8$")
case("grows_evenly", False, evenly | {"by": 4})
case("grows_evenly", False, evenly | {"stages": 3})
case("grows_evenly", False, evenly | {"arch": "vanilla"}, evidence="^forecast: 8 layers of 8$")

# 85 % of 200,000 steps among six stages: 21 parts of 8,095.2 steps.
stages = {"size": "smollm-1.7b", "arch": "lidas", "alpha": 1, "total": 170_000}
case("stages_follow", True, stages, evidence="8095, 16190, 24285, 32380, 40476, 48574 of 170,000 steps, 6 of 6 stages")
case("stages_follow", False, stages | {"alpha": 2})
case("stages_follow", False, stages | {"total": 180_000}, evidence="0 of 6 stages follow")


def logs(*rates):
    """A cell with one run that has logged these learning rates."""
    return [record(history={"step": [1, 2], "lr": list(rates)} if rates else {})]


rates = {"cells": ["a", "b"], "column": "lr"}
case(
    "same_log",
    True,
    rates,
    measured(a=logs(1.0, 0.5), b=logs(1.0, 0.5)),
    "^lr at 2 logged steps of 2 runs: the same in 2$",
)
case("same_log", False, rates, measured(a=logs(1.0, 0.5), b=logs(1.0, 0.4)), "the same in 1 (not: b, seed 0)")
case("same_log", "not run", rates, measured(a=logs(1.0, 0.5), b=logs()), "its run has logged no lr: b, seed 0")
case("same_log", "not run", rates, measured(a=logs(1.0, 0.5)), "not run: b")
