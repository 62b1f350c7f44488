"""Claims about learned allocations: 4 layers of 2 heads."""

from tests.unit.verdicts.building import case, measured, record

NOT_RUN = {"records": {}}


def learned(sparsities=(0.0, 0.5), target=0.5, **left):
    """A run with these expected sparsities, one every ten steps, and what its controller left."""
    history = {"step": [10.0 * (i + 1) for i in range(len(sparsities))], "expected_sparsity": list(sparsities)}
    return record(history=history, controller=({"kind": "mask-learning"}, {"target": target, **left}))


early, late = learned([0.9, 0.5, 0.51, 0.49]), learned([0.0, 0.9, 0.1, 0.5])
never = learned([0.5, 0.5, 0.5, 0.5])
first = {"cell": "a", "cells": ["b"]}
case(
    "converges_first",
    True,
    first,
    measured(a=early, b=late),
    "a: within 0.02 after step 10; b: within 0.02 after step 30",
)
case("converges_first", True, first, measured(a=never, b=early), "a: within 0.02 after step 0")
case("converges_first", False, first, measured(a=late, b=early))
case("converges_first", None, first, measured(a=early), "not run: b")
case("converges_first", None, first, measured(a=early, b=[3.0]), "b: its run has learned no target")

order = {"cells": ["low", "mid", "high"]}
case(
    "higher_settles_first",
    True,
    order,
    measured(low=late, mid=early, high=never),
    "low: step 30; mid: step 10; high: step 0",
)
case("higher_settles_first", False, order, measured(low=late, mid=never, high=early))
case("higher_settles_first", None, order, measured(low=late, mid=early), "not run: high")


def peaks(*values):
    return measured(**{name: learned(highest_expected_sparsity=v) for name, v in zip("abc", values, strict=False)})


trio = {"cells": ["a", "b", "c"]}
case("same_overshoot", True, trio, peaks(0.9, 0.95, 0.92), "peaks: a: 0.900; b: 0.950; c: 0.920; asked within 0.1")
case("same_overshoot", False, trio, peaks(0.7, 0.9, 0.8))
case("same_overshoot", None, trio, peaks(0.7, 0.9), "not run: c")


def ended(highest, last):
    return measured(a=learned(highest_expected_sparsity=highest, expected_sparsity=last, undecided_share=0.25))


settles = {"cells": ["a"], "within": 0.05}
case(
    "overshoots_and_settles",
    True,
    settles,
    ended(0.9, 0.48),
    "a: rose to 0.900, ended at 0.480 for 0.5, 25 % of the units",
)
case("overshoots_and_settles", False, settles, ended(0.52, 0.48))
case("overshoots_and_settles", False, settles, ended(0.9, 0.6))
case("overshoots_and_settles", None, settles, NOT_RUN, "not run")


def met(realised):
    return measured(a=learned(realised_sparsity=realised, threshold_sparsity=0.75))


case("target_met", True, {"cells": ["a"]}, met(0.5), "a: 0.5 (threshold α > 0: 0.75)")
case("target_met", False, {"cells": ["a"]}, met(0.625))
case("target_met", None, {"cells": ["a"]}, NOT_RUN, "not run")


def masks(**cells):
    return measured(**{cell: learned(masks=rows) for cell, rows in cells.items()})


one = {"cells": ["a"]}
head_wise = [[0, 1], [1, 1], [1, 1], [0, 1]]
case("windows_first", True, one, masks(a=head_wise), "a: layer 1 0.50, all layers 0.25")
case("windows_first", True, one, masks(a=[[0, 0]] * 4), "a: layer 1 1.00, all layers 1.00")
case("windows_first", False, one, masks(a=[[0, 1], [0, 0], [0, 0], [1, 1]]), "a: layer 1 0.50, all layers 0.62")
case("windows_first", None, one, NOT_RUN, "not run: a")

case("full_in_the_middle", True, one, masks(a=[[0, 1], [1, 1], [0, 1], [0, 0]]), "a: middle 0.75, outer 0.25")
case("full_in_the_middle", False, one, masks(a=[[1, 1], [0, 1], [0, 0], [0, 1]]), "a: middle 0.25, outer 0.75")
case("full_in_the_middle", None, one, NOT_RUN, "not run: a")

two = {"cells": ["a", "b"]}
case(
    "full_retreats",
    True,
    two,
    masks(a=head_wise, b=[[0, 1], [0, 0], [1, 0], [0, 0]]),
    "full heads [6, 2]; of them not full at the lower target: [0]",
)
case("full_retreats", False, two, masks(a=head_wise, b=[[1, 1], [0, 0], [1, 0], [0, 0]]), "at the lower target: [1]")
case("full_retreats", None, two, masks(a=head_wise), "not run: b")


def gates(*rows):
    return measured(a=learned(scores=rows))


case("gates_stay_together", True, one, gates([0.5, 0.52], [0.49, 0.51]), "a: 0.490 to 0.520; asked a range of 0.05")
case("gates_stay_together", False, one, gates([0.5, 0.58], [0.49, 0.51]))
case("gates_stay_together", None, one, NOT_RUN, "not run: a")


# ---- several runs: a single exception makes the claim fail ----

case("converges_first", False, {"cell": "a", "cells": ["b", "c"]}, measured(a=early, b=late, c=never))


def with_second(kind, test, **left):
    """The case of `kind` that holds on run a, with a second run b that left this."""
    first_run = {"highest_expected_sparsity": 0.9, "expected_sparsity": 0.48, "undecided_share": 0.25}
    first_run |= {"realised_sparsity": 0.5, "threshold_sparsity": 0.75, "scores": [[0.5, 0.5]] * 4}
    first_run |= {"masks": [[0, 1], [1, 1], [1, 1], [0, 1]]}
    case(kind, False, {"cells": ["a", "b"], **test}, measured(a=learned(**first_run), b=learned(**first_run | left)))


with_second("overshoots_and_settles", {"within": 0.05}, expected_sparsity=0.6)
with_second("target_met", {}, realised_sparsity=0.625)
with_second("windows_first", {}, masks=[[1, 1], [0, 1], [0, 1], [0, 1]])
with_second("full_in_the_middle", {}, masks=[[1, 1], [0, 1], [0, 1], [0, 1]])
with_second("gates_stay_together", {}, scores=[[0.5, 0.6]] * 4)
strays = masks(a=head_wise, b=head_wise, c=[[1, 1], [0, 0], [1, 0], [0, 0]])
case("full_retreats", False, trio, strays, "at the lower target: [0, 1]")
