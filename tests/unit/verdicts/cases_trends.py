"""Claims on differences that last, grow or shrink, on what every run shows, and on entropies over training."""

import numpy as np

from tests.unit.verdicts.building import NOISE, around, case, measured, record
from tests.unit.verdicts.cases_sgt import jumping, logged
from tests.unit.verdicts.cases_spiral import loops

TEN = [10.0 * (i + 1) for i in range(10)]


def curves(gaps, noise=NOISE):
    """Seeds whose loss falls, this far above a common curve in each of ten readings."""
    losses = [[4 - 0.1 * i + gap + by for i, gap in enumerate(gaps)] for by in noise[:3]]
    return [record(history={"step": TEN, "loss": loss}) for loss in losses]


FLAT = (0.0,) * 3
pair = {"pairs": [["a", "b"]]}
level, above, below = curves([0.0] * 10, FLAT), curves([0.1] * 10), curves([-0.1] * 10)
case("lower_throughout", True, pair, measured(a=below, b=level), "^a − b, steps 20 to 40 % = -0.0993 ± ")
case("lower_throughout", False, pair, measured(a=above, b=level))
crossing = curves([-0.1] * 8 + [0.1, 0.1])
case("lower_throughout", False, pair, measured(a=crossing, b=level), "a − b, steps 80 to 100 % = +0.1007")
case("lower_throughout", True, pair | {"spans": [[0.0, 0.8]]}, measured(a=crossing, b=level), "steps 0 to 80 %")
# The first fifth, of the warm-up, does not count.
case("lower_throughout", True, pair, measured(a=curves([0.1] * 2 + [-0.1] * 8), b=level))
case("lower_throughout", None, pair, measured(a=curves([0.0] * 10, (0.1, -0.1, 0.05)), b=level))
case("lower_throughout", None, pair | {"spans": [[0.95, 0.99]]}, measured(a=below, b=level), "nothing was logged")
case("lower_throughout", "not run", pair, measured(a=below), "not run: b")
case("lower_throughout", "not run", pair, measured(a=below, b=[3.0]), "has logged no loss")

close = pair | {"margin": 0.02, "reason": "small"}
case("close_throughout", True, close, measured(a=curves([0.0] * 10), b=level), ", asked -0.02 to +0.02 (n = 3 seeds")
case("close_throughout", False, close, measured(a=above, b=level))
case("close_throughout", False, close, measured(a=crossing, b=level))
case("close_throughout", None, close, measured(a=curves([0.0] * 10, (0.1, -0.1, 0.05)), b=level))
case("close_throughout", "not run", close, {})

gaps = {"pairs": [["a", "b"], ["c", "d"]]}
wide = {"a": around(3.0), "b": around(3.0, FLAT), "c": around(3.3), "d": around(3.1)}
case("gap_grows", True, gaps, measured(**wide), "^(c − d) − (a − b) = +0.1993")
swapped = {"a": wide["c"], "b": wide["d"], "c": wide["a"], "d": wide["b"]}
case("gap_grows", False, gaps, measured(**swapped))
case("gap_grows", None, gaps, measured(**wide | {"c": [3.1, 3.4, 2.9]}))
spent = {"a": (5, 5, 5), "b": (5, 5, 5), "c": (9, 10, 11), "d": (5, 5, 5)}
by_flops = {name: [record(flops=flops) for flops in seeds] for name, seeds in spent.items()}
case("gap_grows", True, gaps | {"metric": "flops"}, measured(**by_flops), "= +5.0000")
case("gap_grows", "not run", gaps, measured(a=wide["a"], b=wide["b"], c=wide["c"]), "not run: d")


# ---- what every run must show ----


def leaking(*changes):
    runs = [record() for _ in changes]
    return [
        run.model_copy(update={"results": run.results.model_copy(update={"causality": {"largest_change": change}})})
        for run, change in zip(runs, changes, strict=True)
    ]


cells = {"cells": ["a", "b"]}
fine, leaks = leaking(1e-7, 3e-7), leaking(1e-7, 0.2)
case("sees_no_later_token", True, cells, measured(a=fine, b=fine), "^largest change of a logit: a 3.0e-07, b 3.0e-07;")
case("sees_no_later_token", False, cells, measured(a=fine, b=leaks), "b 2.0e-01")
case("sees_no_later_token", True, cells | {"within": 0.2}, measured(a=fine, b=leaks))
case("sees_no_later_token", "not run", cells, measured(a=fine), "not run: b")
both = leaking(0.3, 0.2)
case("sees_later_tokens", True, cells, measured(a=both, b=both), "^smallest change of a logit: a 2.0e-01, b 2.0e-01;")
case("sees_later_tokens", False, cells, measured(a=both, b=leaks), "b 1.0e-07; asked above 0.0001")
case("sees_later_tokens", False, cells | {"beyond": 0.2}, measured(a=both, b=both))
case("sees_later_tokens", "not run", cells, measured(a=both), "not run: b")


def grown(*layers, direction="deep-to-shallow"):
    events = [{"kind": "loop-added", "layer": layer} for layer in layers]
    settings = {"controller": {"direction": direction} if direction else None}
    return record(events=[{"kind": "loop-deepened", "layer": 7}, *events], config=settings)


def reverse(*layers):
    return grown(*layers, direction="shallow-to-deep")


up, deeper = {"cells": ["a"], "to": "shallower"}, {"cells": ["a"], "to": "deeper"}
case(
    "growth_goes",
    True,
    up,
    measured(a=[grown(7, 4, 2), grown(5, 3)]),
    ("^fixed by the settings (deep-to-shallow), whatever the entropies;", "a, seed 0: 8, 5, 3; a, seed 1: 6, 4$"),
)
case("growth_goes", True, up, measured(a=[grown(7, 4, 2), grown(6)]))
case("growth_goes", False, up, measured(a=[grown(7, 4, 2), reverse(3, 5)]), "(deep-to-shallow, shallow-to-deep)")
case("growth_goes", False, up, measured(a=[grown(7, 4, 4)]))
case("growth_goes", False, up, measured(a=[reverse(4, 7, 5)]))
case("growth_goes", True, deeper, measured(a=[reverse(3, 5, 4)]))
case("growth_goes", False, deeper, measured(a=[reverse(3, 5, 2)]))
case("growth_goes", None, up, measured(a=[grown(7)]), "no run has a second layer")
case("growth_goes", None, deeper, measured(a=[grown()]), "no run has a second layer")
case("growth_goes", None, up, measured(a=[grown(7, 4), grown(7, 4, direction=None)]), "do not fix the direction")
case("growth_goes", "not run", up, {})

tokens = {"cells": ["a", "b"], "metric": "tokens"}
case("same_in_every_run", True, tokens, measured(a=[3.0, 3.1], b=[3.2]), "^tokens: a 1,000; b 1,000")
case("same_in_every_run", False, tokens, measured(a=[3.0], b=[record(tokens=2000)]), "b 2,000")
case("same_in_every_run", False, tokens | {"cells": ["a"]}, measured(a=[record(tokens=2000), record()]), "1,000, 2,000")
case("same_in_every_run", "not run", tokens, measured(a=[3.0]), "not run: b")

inside = {"cell": "a", "low": 0.0, "high": 1.0}
readings = [logged(np.full((2, 1, 2), value)) for value in (0.0, 1.0)]
case("entropies_within", True, inside, measured(a=readings), "^a: 8 entropies, 0.0000 to 1.0000, asked 0 to 1")
case("entropies_within", False, inside | {"low": 0.1}, measured(a=readings))
case("entropies_within", False, inside | {"high": 0.9}, measured(a=readings))
case("entropies_within", "not run", inside, measured(a=[3.0]), "not measured: entropy-log")


# ---- entropies over training ----

a = {"cell": "a"}


def mean_entropy(*levels, noise=NOISE):
    """Seeds with these mean entropies, one for each tenth of the readings (two readings)."""
    heads = np.array([[0.0, 0.1], [0.05, -0.1]])
    return measured(
        a=[
            logged(
                np.repeat(levels, 2)[:, None, None] + by * np.repeat(np.arange(len(levels)), 2)[:, None, None] + heads
            )
            for by in noise[:3]
        ]
    )


case("entropy_falls", True, a, mean_entropy(0.9, *[0.8] * 7, 0.5, 0.5), "last fifth − first tenth = -0.3943")
case("entropy_falls", False, a, mean_entropy(0.5, *[0.8] * 7, 0.9, 0.9))
case("entropy_falls", None, a, mean_entropy(0.9, *[0.2] * 7, 0.9, 0.9))
case("entropy_falls", "not run", a, {}, "not run: a")


def apart(deep, shallow, noise=NOISE):
    """Seeds: by tenths of the readings, how far the two heads of the last and of the first three of nine layers lie
    apart; the first layer and the middle ones do the opposite of both."""
    runs = []
    for by in noise[:3]:
        half = np.full((10, 9), 0.3)
        half[:, 0], half[:, 4] = np.linspace(0.5, 0.0, 10), np.linspace(0.0, 0.5, 10)
        half[:, 6:], half[:, 1:4] = np.array(deep)[:, None] + by, np.array(shallow)[:, None] + by
        half *= 1 + by * np.arange(10)[:, None]
        runs.append(logged(np.stack([0.5 - half, 0.5 + half], axis=2)))
    return measured(a=runs)


surge, steady, flat = [0.0, 0.3, 0.4, 0.3, *[0.25] * 4, 0.1, 0.1], np.linspace(0.0, 0.4, 10), [0.2] * 10
deep, shallow = a | {"layers": "deep"}, a | {"layers": "shallow"}
case(
    "variance_surges",
    True,
    deep,
    apart(surge, flat),
    "^a, deep layers: variance of entropies, early − at the start = +0.1",
)
case("variance_surges", False, deep, apart(steady, surge), "at the end − early = +0.1")
case("variance_surges", False, deep, apart([0.3, 0.2, 0.1, *[0.0] * 7], surge))
case("variance_surges", True, shallow, apart(flat, steady), "^a, shallow layers: variance of entropies")
case("variance_surges", True, shallow, apart(flat, steady * 0.5), "at the end − early = +0.0")
case("variance_surges", False, shallow, apart(steady, surge))
case("variance_surges", None, deep, apart(surge, flat, noise=(0.3, -0.3, 0.1)))
case("variance_surges", "not run", deep, {})
case(
    "variance_surges",
    None,
    deep | {"early": [0.8, 1.0]},
    apart(surge, flat, noise=(0.0, 0.01, 0.02)),
    "at the end − early = +0.0000",
)


def ordered(*ends):
    """Seeds: the entropies of six heads at the first reading of ten, then these."""
    first = np.linspace(0.1, 0.6, 6).reshape(1, 3, 2)
    return measured(
        a=[logged(np.concatenate([first[:, ::-1], first, *[np.reshape(end, (1, 3, 2))] * 8])) for end in ends]
    )


rising = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
kept = [rising, [0.2, 0.1, *rising[2:]], [0.1, 0.3, 0.2, *rising[3:]]]
late = a | {"share": 0.1}
case("order_of_heads_keeps", True, late, ordered(*kept), "at 10 % of training and at its end = +0.9619")
case("order_of_heads_keeps", False, late, ordered(*(end[::-1] for end in kept)))
case("order_of_heads_keeps", False, a, ordered(*kept), "at 5 % of training")
case("order_of_heads_keeps", None, late, ordered(rising, [0.3, 0.5, 0.1, 0.6, 0.2, 0.4], rising))
case("order_of_heads_keeps", None, late, ordered([0.3] * 6), "all heads have the same entropy")
case("order_of_heads_keeps", "not run", late, {})

calm, wild = (
    [jumping(15), jumping(), jumping(12)],
    [jumping(*range(11, 18)), jumping(*range(13, 20)), jumping(*range(12, 18))],
)
tenth = a | {"most": 0.3}
case("smooth_selection", True, tenth, measured(a=calm), "^a: share of changes above 0.05 during selection = +0.0667")
case("smooth_selection", False, tenth, measured(a=wild))
case("smooth_selection", True, tenth | {"jump": 0.3}, measured(a=wild * 2), "= +0.0000")
case("smooth_selection", None, tenth, measured(a=[*calm[:2], wild[0]]))
case("smooth_selection", "not run", tenth, {})

six = [jumping(15)] * 6
case("spikes_in_many_heads", True, a, measured(a=six), "^a: 2 heads of a layer change together: yes in 6 of 6")
case("spikes_in_many_heads", False, a | {"heads": 3}, measured(a=six), "yes in 0 of 6")
case("spikes_in_many_heads", False, a | {"jump": 0.3}, measured(a=six))
downwards = logged(1 - 0.2 * np.broadcast_to(np.arange(3)[:, None, None], (3, 2, 2)))
case("spikes_in_many_heads", True, a, measured(a=[downwards] * 6))
case("spikes_in_many_heads", None, a, measured(a=six[:4]))
case("spikes_in_many_heads", "not run", a, {})


# ---- attention by loop ----


def shifting(*shifts, dynamic=None):
    """Seeds of 2 x 4 heads in two loops: each head moves by its own number, from coarse to fine."""
    return [
        loops([0.0, 0.0], heads=np.array(heads, float).reshape(2, 4), chunks=(2, 1), dynamic=dynamic)
        for heads in shifts
    ]


SAME = ([-0.1] * 8, [-0.2] * 7 + [-0.1], [-0.1] * 7 + [0.01])
MIXED = ([0.1, -0.1] * 4, [0.1, -0.1] * 3 + [0.1, 0.1], [0.1, -0.2] * 4)
both = {"cell": "a", "over_cell": "b", "metric": "entropy"}
mixed, same = shifting(*MIXED), shifting(*SAME)
case(
    "less_systematic",
    True,
    both,
    measured(a=mixed, b=same),
    "^agreement of heads on the change of entropy, a − b = -0.7962",
)
case("less_systematic", False, both, measured(a=same, b=mixed))
case("less_systematic", None, both, measured(a=mixed, b=shifting(MIXED[1], MIXED[2], MIXED[0])))
case("less_systematic", None, both, measured(a=mixed, b=shifting([0.0] * 8)), "no head changes")
case("less_systematic", "not run", both, measured(a=mixed), "not run: b")

FEW = [[1, 1, 0, 0], [0, 0, 0, 0]]
shift = {"cell": "a", "metric": "local_mass"}
strong = ([0.5, 0.4] + [0.1] * 6, [0.6, 0.4] + [0.1] * 6, [0.5, 0.5] + [0.0] * 6)
case(
    "diluted_over_all",
    True,
    shift,
    measured(a=shifting(*strong, dynamic=FEW)),
    "local mass over all heads − over dynamic ones = -0.3",
)
fallen = [[-value for value in heads] for heads in strong]
case("diluted_over_all", True, shift, measured(a=shifting(*fallen, dynamic=FEW)), "= -0.3")
weak = ([0.0, 0.1] + [0.4] * 6, [0.1, 0.1] + [0.4] * 6, [0.0, 0.0] + [0.5] * 6)
case("diluted_over_all", False, shift, measured(a=shifting(*weak, dynamic=FEW)))
case("diluted_over_all", None, shift, measured(a=shifting(strong[0], weak[0], strong[1], dynamic=FEW)))
case("diluted_over_all", "not run", shift, {})
# With three loops the last one counts.
there_and_back = [
    loops([0.0, 0.5, 0.0], heads=0 * np.ones((2, 4)) + by, chunks=(4, 2, 1), dynamic=FEW) for by in NOISE[:3]
]
case("diluted_over_all", None, shift, measured(a=there_and_back), "= +0.0000")
uneven = [
    loops([0.0, by, 0.0], heads=np.array(heads).reshape(2, 4), chunks=(4, 2, 1))
    for heads, by in zip(MIXED, (0.5, 0.6, 0.7), strict=True)
]
case("less_systematic", True, both, measured(a=uneven, b=same), "a − b = -0.7962")
