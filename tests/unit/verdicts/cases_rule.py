"""What every verdict says besides its word: controls, seeds and minutes needed, and the scale."""

from hybridlab.papers.experiment import CellSpec, ScaleSpec
from tests.unit.verdicts.building import around, case, measured, record, table

LOW, HIGH, NEAR = around(3.0), around(3.1, (0.0,) * 3), around(3.0, (0.01, -0.02, 0.015))
ab = {"pairs": [["a", "b"]]}
solved = {"kind": "measured_bounds", "cell": "c", "metric": "results.validation.loss", "below": 3.5}
blind = {"kind": "higher", "pairs": [["c", "a"]]}
good, bad = around(3.1), around(3.9)

# ---- controls ----

case("lower", True, ab, measured(a=LOW, b=HIGH, c=good), claim={"controls": [solved]}, note="", n_needed=None)
case(
    "lower",
    "cannot tell here",
    ab,
    measured(a=LOW, b=HIGH, c=bad),
    "^a − b = -0.0993",
    {"controls": [solved]},
    n=3,
    controlled={"c: validation.loss below 3.5": "fails"},
    direction="",
)
case("lower", "cannot tell here", ab, measured(a=HIGH, b=LOW, c=bad), claim={"controls": [blind, solved]})
case("lower", "cannot tell here", ab, measured(a=LOW, b=NEAR, c=bad), claim={"controls": [solved]}, note="")
case(
    "lower",
    None,
    ab,
    measured(a=LOW, b=HIGH, c=good[:1]),
    "its control: at least 3 seeds, since the spread over seeds is not known",
    {"controls": [solved]},
    n_needed=3,
    controlled={"c: validation.loss below 3.5": "open"},
)
case("lower", None, ab, measured(a=LOW, b=HIGH), "its control: c: validation.loss: not run: c", {"controls": [solved]})
case(
    "lower",
    "cannot tell here",
    ab,
    measured(a=LOW, b=HIGH, c=good),
    "its control: not at this size: 220 seeds for 80 % power at the observed effect (about 4 minutes more)",
    {"controls": [solved, {"kind": "higher", "pairs": [["c", "b"]]}]},
    controlled={"c: validation.loss below 3.5": "holds", "c − b above 0": "open"},
)
case(
    "lower",
    None,
    ab,
    measured(a=LOW[:1], b=HIGH[:1], c=bad[:1]),
    claim={"controls": [solved]},
    note="direction only",
    n_needed=3,
)
case("lower", "not run", ab, measured(a=LOW, c=bad), claim={"controls": [solved]}, controls=())
printed = {"experiment": table({"A": {"x": 2.0}, "B": {"x": 1.0}})}
higher_cell = {"kind": "printed_above", "rows": ["A"], "over": ["B"], "column": "x"}
case(
    "printed_above",
    True,
    {k: v for k, v in higher_cell.items() if k != "kind"},
    printed,
    claim={"controls": [higher_cell]},
    n=None,
)

# ---- seeds and minutes ----


def timed(levels, seconds, **changes):
    return [record([level], seconds=seconds, **changes) for level in levels]


def of_experiment(parents=None, **cells):
    """Cells with their parents in the experiment."""
    specs = {name: CellSpec(arch="vanilla", phase="p", start=(parents or {}).get(name)) for name in [*cells, "z"]}
    experiment = table({"A": {}}).model_copy(update={"cells": specs})
    return {"experiment": experiment, **measured(**cells)}


# Differences 4, -3, 1 thousandths less 10, -20, 15: with two jobs, (30 + 60) / 2 seconds for each of the missing seeds.
case(
    "lower",
    None,
    ab,
    measured(a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 60.0)),
    "at least 3 seeds, since the spread over seeds is not known (about 2 minutes more)$",
    n_needed=3,
    minutes_needed=1.5,
)
case(
    "lower",
    None,
    ab,
    measured(a=timed(LOW[:1], 30.0, evaluation_seconds=60.0), b=timed(HIGH[:1], 30.0)),
    minutes_needed=2.0,
)
# What a cell starts from is trained for each seed too; a run that was continued is counted in its continuation.
family = of_experiment({"a": "c", "b": "c"}, a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 30.0), c=timed([3.5], 60.0))
case("lower", None, ab, family, minutes_needed=2.0)
unknown = of_experiment({"a": "z"}, a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 30.0))
case("lower", None, ab, unknown, "spread over seeds is not known$", minutes_needed=None)
continued = of_experiment(
    {"a": "c"},
    a=timed(LOW[:1], 90.0, extended={"run": "f" * 16, "step": 10}),
    b=timed(HIGH[:1], 30.0),
    c=timed([3.5], 60.0, hash="f" * 16),
)
case("lower", None, ab, continued, minutes_needed=2.0)
# A scale can have cells of its own, with other parents.
own = {"a": CellSpec(arch="vanilla", phase="p", start="c")}
desk = ScaleSpec(machine="m", size="tiny", data="embedded", seeds=[0], phases={"p": {}}, cells=own)
designed = of_experiment(a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 30.0), c=timed([3.5], 60.0))
designed["experiment"] = designed["experiment"].model_copy(update={"scales": {"desk": desk}})
case("lower", None, ab, designed, minutes_needed=1.0)
case("lower", None, ab, designed | {"scale": "desk"}, minutes_needed=2.0)
# Fewer seeds than the file plans: the verdict says so.
early = of_experiment(a=LOW, b=HIGH)
planned = desk.model_copy(update={"seeds": [0, 1, 2, 3, 4], "cells": {}})
early["experiment"] = early["experiment"].model_copy(update={"scales": {"desk": planned}})
case("lower", True, ab, early | {"scale": "desk"}, note="3 of 5 seeds so far")
early["experiment"] = early["experiment"].model_copy(update={"scales": {"desk": desk}})
case("lower", True, ab, early | {"scale": "desk"}, note="")
quick = measured(a=timed(LOW[:1], 3.0), b=timed(HIGH[:1], 6.0))
case("lower", None, ab, quick, "is not known (less than a minute more)$", minutes_needed=0.15)
# The paper's effect in the place of the observed one; enough seeds for it may be there already.
far = measured(a=around(3.0, (0.1, -0.1, 0.02)), b=[3.0] * 3)
case("lower", None, ab, far, "seeds for 80 % power at the observed effect (about ", n=3)
long = measured(a=[record([level], seconds=36_000.0) for level in around(3.0, (0.1, -0.1, 0.02))], b=[3.0] * 3)
case(
    "lower",
    None,
    ab,
    long,
    "not at this size: 1,792 seeds for 80 % power at the observed effect (about 8,945 hours more)",
)
case("lower", None, ab, far, "8 seeds for 80 % power at an effect of 0.12", {"effect": -0.12}, n_needed=8)
case(
    "lower",
    None,
    ab,
    far,
    "3 seeds for 80 % power at an effect of 5 (there are as many)",
    {"effect": 5},
    n_needed=3,
    minutes_needed=0.0,
)

# ---- which p, and how many seeds, where there are several comparisons ----

three = {"pairs": [["a", "b"], ["c", "b"], ["d", "b"]]}
weak, flat = around(3.08, (0.004, -0.006, 0.002)), around(3.1, (0.01, -0.02, 0.012))
held = measured(a=LOW, b=HIGH, c=weak, d=LOW)
case("lower", True, three, held, "c − b = -0.0200 ± 0.0031 nats (n = 3 seeds, p = 0.0225)", p_digits=0.0225)
mixed = measured(a=LOW, b=HIGH, c=around(3.3), d=around(3.12, (0.004, -0.006, 0.002)))
case("lower", False, three, mixed, ("c − b = +0.2007 ± 0.0020 nats (n = 3 seeds, p = 0.0003)",), p_digits=0.0003)
against = measured(a=around(3.0, (0.0, 0.0, 0.0001)), b=HIGH, c=around(3.12, (0.004, -0.006, 0.002)), d=LOW)
case("lower", False, three, against, ("a − b", "p < 0.0001"), p_digits=0.0225)
unsure = measured(a=LOW, b=HIGH, c=weak, d=flat)
case("lower", None, three, unsure, "d − b = +0.0007 ± 0.0103 nats (n = 3 seeds, p = 0.9545)", p_digits=0.9545)
# Each comparison at a third of the level: the one that takes most seeds counts, and what is resolved takes none.
one_of_two = {"pairs": [["a", "b"], ["c", "b"]]}
half = {"a": LOW, "b": HIGH, "c": around(3.07, (0.03, -0.03, 0.0))}
case("lower", None, one_of_two, measured(**half), "13 seeds for 80 % power", n_needed=13)
case("lower", None, three, measured(**half, d=around(3.07, (0.04, -0.04, 0.0))), n_needed=22)
# A step that must only not go the other way needs no seeds.
valley = measured(
    a=around(3.3),
    b=around(3.001, (0.001, -0.002, 0.001)),
    c=around(3.0, (0.004, 0.001, 0.002)),
    d=around(3.05, (0.03, -0.03, 0.01)),
)
case("u_shaped", None, {"cells": ["a", "b", "c", "d"]}, valley, n_needed=7)

# Of two comparisons without figures one was not run, and the other has no seed in common.
apart = {"records": {"a": {0: record([3.0])}, "b": {1: record([3.0])}}}
case("lower", "not run", one_of_two, apart, ("no seed in common", "not run: c"))
# Of two controls that are open, the one that takes more seeds counts.
wide, wider = around(3.4, (0.2, -0.2, 0.05)), around(3.4, (0.4, -0.4, 0.05))
under = {"kind": "measured_bounds", "metric": "results.validation.loss", "below": 3.6}
both = {"controls": [under | {"cell": "c"}, under | {"cell": "d"}]}
case("lower", "cannot tell here", ab, measured(a=LOW, b=HIGH, c=wide, d=wider), claim=both, n_needed=40)

# ---- the scale ----

sized = {"parameters": {"total": 984_928}, "tokens": 2_048_000}
arms = measured(
    a=[record([level], **sized) for level in LOW], b=[record([level], **sized | {"tokens": 573_440}) for level in HIGH]
)
case("lower", True, ab, arms | {"scale": "desk"}, scale="at desk scale (1M parameters, 0.6M to 2M tokens, n = 3)")
case("lower", True, ab, arms, scale=None)
narrow = measured(
    a=[record([level], parameters={"total": 358_240}, tokens=1000) for level in LOW],
    b=[record([level], parameters={"total": 534_000}, tokens=1000) for level in HIGH],
)
wider = measured(a=[record([level], tokens=1000) for level in LOW], b=[record([level], **sized) for level in HIGH])
case("lower", True, ab, wider | {"scale": "desk"}, scale="at desk scale (1M parameters, 1,000 to 2M tokens, n = 3)")
sizes = "0.4M to 0.5M parameters"
case("lower", True, ab, narrow | {"scale": "desk"}, scale=f"at desk scale ({sizes}, 1,000 tokens, n = 3)")
large = measured(
    a=[record([level], parameters={"total": 1_720_000_000}, tokens=1000) for level in LOW],
    b=[record([level], parameters={"total": 46_000_000}, tokens=1000) for level in HIGH],
)
case(
    "lower", True, ab, large | {"scale": "small"}, scale="at small scale (46M to 1.7B parameters, 1,000 tokens, n = 3)"
)
several = {"pairs": [["a", "b"], ["c", "b"]]}
case(
    "lower",
    None,
    several,
    measured(a=LOW, b=HIGH, c=LOW[:2]) | {"scale": "desk"},
    scale="at desk scale (1M parameters, 1,000 tokens, n = 2 to 3)",
)
case("lower", "not run", ab, {"scale": "desk"}, scale=None)
