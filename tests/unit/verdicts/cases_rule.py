"""What every verdict says besides its word: controls, seeds and minutes needed, and the scale."""

from hybridlab.lab.papers.cell_spec import CellSpec
from hybridlab.lab.papers.experiment import ScaleSpec
from tests.unit.verdicts.building import around, case, measured, record, says, table

LOW, HIGH, NEAR = around(3.0), around(3.1, (0.0,) * 3), around(3.0, (0.01, -0.02, 0.015))
solved = {"kind": "says", "holds": "loss[c] < 3.5"}
blind = {"kind": "says", "holds": "loss[c] > [a]"}
good, bad = around(3.1), around(3.9)

# ---- controls ----

says(True, "loss[a] < [b]", measured(a=LOW, b=HIGH, c=good), claim={"controls": [solved]}, note="", n_needed=None)
says(
    "cannot tell here",
    "loss[a] < [b]",
    measured(a=LOW, b=HIGH, c=bad),
    "^a − b = -0.0993",
    {"controls": [solved]},
    n=3,
    controlled={"c below 3.5": "fails"},
    direction="",
)
says("cannot tell here", "loss[a] < [b]", measured(a=HIGH, b=LOW, c=bad), claim={"controls": [blind, solved]})
says("cannot tell here", "loss[a] < [b]", measured(a=LOW, b=NEAR, c=bad), claim={"controls": [solved]}, note="")
says(
    None,
    "loss[a] < [b]",
    measured(a=LOW, b=HIGH, c=good[:1]),
    "its control: at least 3 seeds, since the spread over seeds is not known",
    {"controls": [solved]},
    n_needed=3,
    controlled={"c below 3.5": "open"},
)
says(None, "loss[a] < [b]", measured(a=LOW, b=HIGH), "its control: c: not run: c", {"controls": [solved]})
says(
    "cannot tell here",
    "loss[a] < [b]",
    measured(a=LOW, b=HIGH, c=good),
    "its control: not at this size: 220 seeds for 80 % power at the observed effect (about 4 minutes more)",
    {"controls": [solved, {"kind": "says", "holds": "loss[c] > [b]"}]},
    controlled={"c below 3.5": "holds", "c − b above 0": "open"},
)
says(
    None,
    "loss[a] < [b]",
    measured(a=LOW[:1], b=HIGH[:1], c=bad[:1]),
    claim={"controls": [solved]},
    note="direction only",
    n_needed=3,
)
says("not run", "loss[a] < [b]", measured(a=LOW, c=bad), claim={"controls": [solved]}, controls=())
printed = {"experiment": table({"A": {"x": 2.0}, "B": {"x": 1.0}})}
higher_cell = "printed[A; x] > [B]"
says(True, higher_cell, printed, claim={"controls": [higher_cell]}, n=None)

# ---- seeds and minutes ----


def timed(levels, seconds, **changes):
    return [record([level], seconds=seconds, **changes) for level in levels]


def of_experiment(parents=None, **cells):
    """Cells with their parents in the experiment."""
    specs = {name: CellSpec(arch="vanilla", phase="p", start=(parents or {}).get(name)) for name in [*cells, "z"]}
    experiment = table({"A": {}}).model_copy(update={"cells": specs})
    return {"experiment": experiment, **measured(**cells)}


# Differences 4, -3, 1 thousandths less 10, -20, 15: with two jobs, (30 + 60) / 2 seconds for each of the missing seeds.
says(
    None,
    "loss[a] < [b]",
    measured(a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 60.0)),
    "at least 3 seeds, since the spread over seeds is not known (about 2 minutes more)$",
    n_needed=3,
    minutes_needed=1.5,
)
says(
    None,
    "loss[a] < [b]",
    measured(a=timed(LOW[:1], 30.0, evaluation_seconds=60.0), b=timed(HIGH[:1], 30.0)),
    minutes_needed=2.0,
)
# The arms of its controls need the seeds as well.
guarded = measured(a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 60.0), c=timed([3.0], 90.0))
says(None, "loss[a] < [b]", guarded, claim={"controls": [solved]}, minutes_needed=3.0)
# What a cell starts from is trained for each seed too; a run that was continued is counted in its continuation.
family = of_experiment({"a": "c", "b": "c"}, a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 30.0), c=timed([3.5], 60.0))
says(None, "loss[a] < [b]", family, minutes_needed=2.0)
unknown = of_experiment({"a": "z"}, a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 30.0))
says(None, "loss[a] < [b]", unknown, "spread over seeds is not known$", minutes_needed=None)
continued = of_experiment(
    {"a": "c"},
    a=timed(LOW[:1], 90.0, extended={"run": "f" * 16, "step": 10}),
    b=timed(HIGH[:1], 30.0),
    c=timed([3.5], 60.0, hash="f" * 16),
)
says(None, "loss[a] < [b]", continued, minutes_needed=2.0)
# A scale can have cells of its own, with other parents.
own = {"a": CellSpec(arch="vanilla", phase="p", start="c")}
desk = ScaleSpec(machine="m", size="tiny", data="embedded", seeds=[0], phases={"p": {}}, cells=own)
designed = of_experiment(a=timed(LOW[:1], 30.0), b=timed(HIGH[:1], 30.0), c=timed([3.5], 60.0))
designed["experiment"] = designed["experiment"].model_copy(update={"scales": {"desk": desk}})
says(None, "loss[a] < [b]", designed, minutes_needed=1.0)
says(None, "loss[a] < [b]", designed | {"scale": "desk"}, minutes_needed=2.0)
# Fewer seeds than the file plans: the verdict says so.
early = of_experiment(a=LOW, b=HIGH)
planned = desk.model_copy(update={"seeds": [0, 1, 2, 3, 4], "cells": {}})
early["experiment"] = early["experiment"].model_copy(update={"scales": {"desk": planned}})
says(True, "loss[a] < [b]", early | {"scale": "desk"}, note="3 of 5 seeds so far")
early["experiment"] = early["experiment"].model_copy(update={"scales": {"desk": desk}})
says(True, "loss[a] < [b]", early | {"scale": "desk"}, note="")
quick = measured(a=timed(LOW[:1], 3.0), b=timed(HIGH[:1], 6.0))
says(None, "loss[a] < [b]", quick, "is not known (less than a minute more)$", minutes_needed=0.15)
# The paper's effect in the place of the observed one; enough seeds for it may be there already.
far = measured(a=around(3.0, (0.1, -0.1, 0.02)), b=[3.0] * 3)
says(None, "loss[a] < [b]", far, "seeds for 80 % power at the observed effect (about ", n=3)
long = measured(a=[record([level], seconds=36_000.0) for level in around(3.0, (0.1, -0.1, 0.02))], b=[3.0] * 3)
says(
    None,
    "loss[a] < [b]",
    long,
    "not at this size: 1,792 seeds for 80 % power at the observed effect (about 8,945 hours more)",
)
says(None, "loss[a] < [b]", far, "8 seeds for 80 % power at an effect of 0.12", {"effect": -0.12}, n_needed=8)
says(
    None,
    "loss[a] < [b]",
    far,
    "3 seeds for 80 % power at an effect of 5 (there are as many)",
    {"effect": 5},
    n_needed=3,
    minutes_needed=0.0,
)

# ---- which p, and how many seeds, where there are several comparisons ----

weak, flat = around(3.08, (0.004, -0.006, 0.002)), around(3.1, (0.01, -0.02, 0.012))
held = measured(a=LOW, b=HIGH, c=weak, d=LOW)
says(True, "loss[a, c, d] < [b]", held, "c − b = -0.0200 ± 0.0031 nats (n = 3 seeds, p = 0.0225)", p_digits=0.0225)
mixed = measured(a=LOW, b=HIGH, c=around(3.3), d=around(3.12, (0.004, -0.006, 0.002)))
says(False, "loss[a, c, d] < [b]", mixed, ("c − b = +0.2007 ± 0.0020 nats (n = 3 seeds, p = 0.0003)",), p_digits=0.0003)
against = measured(a=around(3.0, (0.0, 0.0, 0.0001)), b=HIGH, c=around(3.12, (0.004, -0.006, 0.002)), d=LOW)
says(False, "loss[a, c, d] < [b]", against, ("a − b", "p < 0.0001"), p_digits=0.0225)
unsure = measured(a=LOW, b=HIGH, c=weak, d=flat)
says(None, "loss[a, c, d] < [b]", unsure, "d − b = +0.0007 ± 0.0103 nats (n = 3 seeds, p = 0.9545)", p_digits=0.9545)
# Each comparison at a third of the level: the one that takes most seeds counts, and what is resolved takes none.
half = {"a": LOW, "b": HIGH, "c": around(3.07, (0.03, -0.03, 0.0))}
says(None, "loss[a, c] < [b]", measured(**half), "13 seeds for 80 % power", n_needed=13)
says(None, "loss[a, c, d] < [b]", measured(**half, d=around(3.07, (0.04, -0.04, 0.0))), n_needed=22)
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
says("not run", "loss[a, c] < [b]", apart, ("no seed in common", "not run: c"))
# Of two controls that are open, the one that takes more seeds counts.
wide, wider = around(3.4, (0.2, -0.2, 0.05)), around(3.4, (0.4, -0.4, 0.05))
both = {"controls": [{"kind": "says", "holds": f"loss[{cell}] < 3.6"} for cell in "cd"]}
says("cannot tell here", "loss[a] < [b]", measured(a=LOW, b=HIGH, c=wide, d=wider), claim=both, n_needed=40)
# Where an arm of a control is not run, its other arms silence nothing.
level = around(3.1, (0.01, -0.02, 0.015))
partly = {"controls": [{"kind": "says", "holds": "loss[c] > [b, d]"}]}
says(
    None,
    "loss[a] < [b]",
    measured(a=LOW, b=HIGH, c=level),
    claim=partly,
    controlled={"c − b above 0; c − d above 0": "open"},
)
# What is measured says what it takes, also beside what is not run.
says(None, "loss[a] < [b, d]", measured(a=LOW, b=NEAR), "80 % power at the observed effect", n=3)

# ---- the scale ----

sized = {"parameters": {"total": 984_928}, "tokens": 2_048_000}
arms = measured(
    a=[record([level], **sized) for level in LOW], b=[record([level], **sized | {"tokens": 573_440}) for level in HIGH]
)
says(True, "loss[a] < [b]", arms | {"scale": "desk"}, scale="at desk scale (1M parameters, 0.6M to 2M tokens, n = 3)")
says(True, "loss[a] < [b]", arms, scale=None)
narrow = measured(
    a=[record([level], parameters={"total": 358_240}, tokens=1000) for level in LOW],
    b=[record([level], parameters={"total": 534_000}, tokens=1000) for level in HIGH],
)
wider = measured(a=[record([level], tokens=1000) for level in LOW], b=[record([level], **sized) for level in HIGH])
says(True, "loss[a] < [b]", wider | {"scale": "desk"}, scale="at desk scale (1M parameters, 1,000 to 2M tokens, n = 3)")
sizes = "0.4M to 0.5M parameters"
says(True, "loss[a] < [b]", narrow | {"scale": "desk"}, scale=f"at desk scale ({sizes}, 1,000 tokens, n = 3)")
large = measured(
    a=[record([level], parameters={"total": 1_720_000_000}, tokens=1000) for level in LOW],
    b=[record([level], parameters={"total": 46_000_000}, tokens=1000) for level in HIGH],
)
says(
    True,
    "loss[a] < [b]",
    large | {"scale": "small"},
    scale="at small scale (46M to 1.7B parameters, 1,000 tokens, n = 3)",
)
says(
    None,
    "loss[a, c] < [b]",
    measured(a=LOW, b=HIGH, c=LOW[:2]) | {"scale": "desk"},
    scale="at desk scale (1M parameters, 1,000 tokens, n = 2 to 3)",
)
says("not run", "loss[a] < [b]", {"scale": "desk"}, scale=None)
# The tokens of what a run starts from count, those of a part of it too; a continued run has counted them.
# They are not known of a run that has no record here, as another page has it.
for init, tokens in (
    ({"run": "c"}, ", 1,000 to 5,000 tokens"),
    ({"run": "c", "step": 25}, ", 1,000 to 2,000 tokens"),
    ({"run": "c", "load": "all"}, ", 1,000 tokens"),
    ({"run": "another"}, ""),
    ({"run": "d"}, ""),
):
    a = [record([loss], tokens=1000, config={"init": init}) for loss in LOW]
    begun = of_experiment(
        {"a": "c"},
        a=a,
        b=HIGH,
        c=[
            record([3.5], tokens=4000, steps=100, hash=name, config={"init": {"run": start} if start else None})
            for name, start in (("c", None), ("d", "another"), ("e", None))
        ],
    )
    says(True, "loss[a] < [b]", begun | {"scale": "desk"}, scale=f"at desk scale (1M parameters{tokens}, n = 3)")
