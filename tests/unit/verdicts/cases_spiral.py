"""Claims about loops: two layers of four heads, chunks of 4, 2 and 1."""

import numpy as np

from tests.unit.verdicts.building import case, measured, record

LOW, HIGH, OTHER = [2.9, 3.0, 3.1, 3.0], [3.1, 3.21, 3.29, 3.2], [3.3, 2.6, 3.5, 2.6]
STEADY = np.array([[0.01, -0.01, 0.02, -0.02], [0.0, 0.01, -0.01, 0.0]])
"""How heads differ, by layer."""
NOISE = np.array([[0.4, -0.4, 0.4, -0.4], [0.5, -0.5, 0.4, -0.4]])


def loops(by_chunk, heads=STEADY, chunks=(4, 2, 1), fresh=0.5, dynamic=None, local_dynamic=None):
    """by_chunk: the mean of each iteration after training. Heads add a part of their own to each iteration's mean."""
    values = [np.full((2, 4), 0.5) + mean + (t + 1) * heads for t, mean in enumerate(by_chunk)]
    before = np.full((len(chunks), 2, 4), fresh)
    flags = np.ones((2, 4), bool) if dynamic is None else np.array(dynamic, bool)
    local = flags if local_dynamic is None else np.array(local_dynamic, bool)
    probe = {
        "chunks": list(chunks),
        "entropy": {"values": np.array(values).tolist(), "dynamic": flags.tolist()},
        "local_mass": {"values": np.array(values).tolist(), "dynamic": local.tolist()},
        "fresh": {"entropy": before.tolist(), "local_mass": before.tolist()},
    }
    return record(probes={"loops": probe})


a = {"cell": "a"}
falls = a | {"metric": "entropy", "direction": "falls"}
rises = a | {"metric": "local_mass", "direction": "rises"}
down, up = [0.3, 0.2, 0.0], [0.0, 0.2, 0.3]
case(
    "trend_with_resolution",
    True,
    falls,
    measured(a=loops(down)),
    "a, dynamic heads, entropy from coarse to fine: 0.800, 0.700, 0.500; with fresh weights: 0.500, 0.500, 0.500 "
    "(n = 8 heads, 1 seed)",
)
case("trend_with_resolution", True, falls, measured(a=loops(up, chunks=(1, 2, 4))), "fine: 0.800, 0.700, 0.500")
case("trend_with_resolution", False, falls, measured(a=loops(up)))
case("trend_with_resolution", False, falls, measured(a=loops([0.3, 0.1, 0.2])))
case("trend_with_resolution", None, falls, measured(a=loops(down, NOISE)), "(n = 8 heads, 1 seed), not resolved")
case("trend_with_resolution", True, rises, measured(a=loops(up)), "local mass")
case("trend_with_resolution", False, rises, measured(a=loops(down)))
case("trend_with_resolution", None, rises, {}, "not run: a")
case("trend_with_resolution", None, falls, measured(a=[3.0, 3.1]), "not measured: loops")
# Only the first layer's heads are dynamic, and only there it falls.
first_layer = np.array([[0.0, 0.01, 0.0, 0.01], [0.9, 0.8, 0.7, 0.9]])
one_falls = loops(down, first_layer, dynamic=[[1, 1, 1, 1], [0, 0, 0, 0]])
case("trend_with_resolution", True, falls, measured(a=one_falls), "n = 4 heads")
case("trend_with_resolution", False, falls | {"heads": "all"}, measured(a=one_falls), "a, all heads")
case("trend_with_resolution", None, falls, measured(a=loops([0.0, 0.0, 0.0], 0 * STEADY)))

shift = {"cell": "a", "over_cell": "b", "metric": "entropy"}
small, large = loops([0.2, 0.5, 0.3]), loops([0.1, 0.0, 0.5])
case(
    "weaker_shift",
    True,
    shift,
    measured(a=small, b=large),
    "entropy from the first to the last loop, less that of fresh weights: a 0.100, b 0.400, difference -0.300 ± ",
)
case("weaker_shift", False, shift, measured(a=large, b=small))
case("weaker_shift", None, shift, measured(a=loops([0.0, 0.0, 0.1], NOISE), b=loops([0.0, 0.0, 0.2], NOISE)))
case("weaker_shift", None, shift, measured(a=small), "not run: b")


def moving(few, fresh_few=False):
    """Whether few heads hold most of the range after training, and with fresh weights."""
    run = loops([0.0, 0.0, 0.0], 0 * STEADY)
    probe = run.results.probes["loops"]
    concentrated = [0.01, 0.01, 0.01, 0.9, 0.01, 0.9, 0.01, 0.9]
    for values, uneven in ((probe["entropy"]["values"], few), (probe["fresh"]["entropy"], fresh_few)):
        ranges = concentrated if uneven else [0.3] * 8
        for t in range(3):
            values[t] = np.reshape([t * r / 2 for r in ranges], (2, 4)).tolist()
    return measured(a=run)


held = a | {"metric": "entropy"}
case(
    "concentrates",
    True,
    held,
    moving(True),
    "a: the 40 % of the heads that move most hold 98 % of the range of entropy; with fresh weights 38 %",
)
case("concentrates", False, held, moving(False), "38 % of the range of entropy; with fresh weights 38 %")
case("concentrates", False, held, moving(True, True))
case("concentrates", False, held, moving(False, True))
case("concentrates", False, held, measured(a=loops([0.0, 0.0, 0.0], 0 * STEADY)), "hold 40 % of the range")
case("concentrates", None, held, {}, "not run: a")

left, right = [[1, 1, 0, 0], [0, 0, 0, 1]], [[0, 0, 1, 1], [0, 0, 0, 1]]
case(
    "other_heads",
    True,
    a,
    measured(a=loops(down, dynamic=left, local_dynamic=right)),
    "a: 1 of 3 in common, 1.1 by chance",
)
case("other_heads", False, a, measured(a=loops(down, dynamic=left, local_dynamic=left)), "3 of 3 in common")
case("other_heads", None, a, {}, "not run: a")


# ---- losses by ratio ----


def shifted(by, noise=(0.0, 0.01, -0.01, 0.0)):
    return [w + by + n for w, n in zip(LOW, noise, strict=True)]


three = {"cells": ["a", "b", "c"]}
case(
    "u_shaped",
    True,
    three,
    measured(a=shifted(0.2), b=LOW, c=shifted(0.3)),
    "a: 3.2000, b: 3.0000, c: 3.3000; b − a = -0.2000 ± 0.0041 nats (4 windows, 1 seed); b − c = -0.3000",
)
case("u_shaped", False, three, measured(a=LOW, b=shifted(0.2), c=shifted(0.3)), "lowest at an end, a; a − c = -0.3000")
case("u_shaped", False, three, measured(a=shifted(0.3), b=shifted(0.2), c=LOW), "lowest at an end, c; c − a = -0.3000")
case(
    "u_shaped", None, three, measured(a=LOW, b=shifted(0.2), c=[w + 0.01 for w in OTHER]), "lowest at an end, a; a − c"
)
case("u_shaped", None, three, measured(a=[w + 0.01 for w in OTHER], b=LOW, c=shifted(0.3)), "not resolved")
case("u_shaped", None, three, measured(a=LOW, b=LOW), "not run: c")

budgets = {"cells": ["a", "b"], "other_cells": ["c", "d"]}
case(
    "same_minimum",
    True,
    budgets,
    measured(a=LOW, b=HIGH, c=LOW, d=HIGH),
    "lowest at a (a − b = -0.2000 ± 0.0041 nats (4 windows, 1 seed)); lowest at c (c − d",
)
case("same_minimum", False, budgets, measured(a=LOW, b=HIGH, c=HIGH, d=LOW), "lowest at d (d − c")
case("same_minimum", None, budgets, measured(a=LOW, b=HIGH, c=LOW, d=[w + 0.01 for w in OTHER]), "not resolved")
case("same_minimum", None, budgets, measured(a=LOW, b=HIGH, c=LOW), "not run: d")


def cheap(windows, flops):
    return record(windows, flops=flops)


sizes = {"cells": ["a"], "over_cells": ["b"]}
case(
    "better_frontier",
    True,
    sizes,
    measured(a=cheap(LOW, 90.0), b=cheap(HIGH, 100.0)),
    "(4 windows, 1 seed) at 0.900 of the FLOPs",
)
case("better_frontier", False, sizes, measured(a=cheap(LOW, 110.0), b=cheap(HIGH, 100.0)))
case("better_frontier", False, sizes, measured(a=cheap(HIGH, 90.0), b=cheap(LOW, 100.0)))
case("better_frontier", None, sizes, measured(a=cheap(LOW, 90.0), b=cheap(OTHER, 100.0)), "not resolved")
case("better_frontier", None, sizes, measured(a=LOW), "not run: b")
