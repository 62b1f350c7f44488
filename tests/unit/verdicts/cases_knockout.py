"""Claims on masks and a knock-out: four layers of two heads, which cost 0.8 in all, or as many as a case says."""

from tests.unit.verdicts.building import measured, record, says
from tests.unit.verdicts.cases_consa import learned

HEADS = [[0.4, 0.2], [0.0, 0.1], [0.0, 0.0], [0.1, 0.0]]
LAYERS = [0.7, 0.1, 0.0, 0.2]
ROW = {"F": [1, 1], "w": [0, 0], "l": [1, 0], "r": [0, 1]}


def base(*scales, heads=HEADS, layers=LAYERS):
    """Seeds whose knock-out costs, of the answers of a task that lie far, are these times a scale. Those of all answers
    and of text are turned round, so that one cannot stand for the other."""
    return [
        record(
            probes={
                "knockout": {
                    "heads": _losses([[x * scale for x in row] for row in heads]),
                    "layers": _losses([x * scale for x in layers]),
                }
            }
        )
        for scale in scales
    ]


def _losses(rises):
    return {
        "retrieval": {"far": {"rise": rises}, "all": {"rise": rises[::-1]}},
        "chain": {"far": {"rise": rises}, "all": {"rise": rises[::-1]}},
        "text": {"all": {"rise": rises[::-1]}},
    }


def kept(*patterns, granularity="head-all"):
    """Seeds with these masks: F a full layer, w windows, l the left head alone, r the right one."""
    return [learned(masks=[ROW[kind] for kind in pattern], granularity=granularity) for pattern in patterns]


START = base(1.0, 1.02, 0.97, 1.01)

# ---- windows that cost little ----

DEAREST = "max(retrieval-costs[o][masks[a] == 0])"
CHEAPER = "mean(retrieval-costs[o][masks[a] == 0]) < mean(retrieval-costs[o][masks[a] == 1])"
little = f"{DEAREST} <= 0.15 and {CHEAPER}"
says(
    True,
    little,
    measured(a=kept(*["Fwww"] * 4), o=START),
    (
        "^max(knock-out costs of heads in retrieval of o[masks of a == 0]) = +0.1000 ± ",
        "knock-out costs of heads in retrieval of o[masks of a == 1]) = -0.2667 ± ",
    ),
)
says(True, f"{DEAREST} <= 0.11", measured(a=kept(*["Fwww"] * 4), o=START), "at most +0.11")
says(False, little, measured(a=kept(*["lwFw"] * 4), o=START), "masks of a == 0]) = +0.2000 ± ")
says(False, CHEAPER, measured(a=kept(*["wwFF"] * 4), o=START))
says(None, little, measured(a=kept("Fwww", "Fwww", "lwww", "Fwww"), o=START))
says(None, little, measured(a=kept(*["FFFF"] * 4), o=START), "nothing is selected")
says(None, CHEAPER, measured(a=kept(*["wwww"] * 4), o=START), "nothing is selected")
by_layer = "max(chain-layer-costs[o][layer-masks[a] == 0]) <= 0.15"
layerwise = kept(*["FwwF"] * 4, granularity="layer")
says(True, by_layer, measured(a=layerwise, o=START), "masks of layers of a == 0]) = +0.1000 ± ")
turned = kept(*["wFFw"] * 4, granularity="layer")
says(False, by_layer, measured(a=turned, o=START), "= +0.7000")
says("not run", little, measured(a=layerwise), "not run: o")
says("not run", little, measured(a=layerwise, o=[3.0] * 4), "not measured: results.probes.knock")
says("not run", little, measured(a=[3.0] * 4, o=START), "not measured: controller.masks")

# ---- choices that follow the knock-out ----

# Two of eight heads: 0.2 by chance, 0.6 at most; 0.5 is three quarters of the way.
CHOICE = "choice(flat(chain-costs[o]), flat(masks[a]))"
follows = f"{CHOICE} > 0.5"
says(
    True,
    follows,
    measured(a=kept("lrww", "Fwww", "Fwww", "lrww"), o=START),
    "^choice(flat(knock-out costs of heads in chains of o), flat(masks of a)) = +0.8750 ± ",
)
says(False, follows, measured(a=kept("wrrw", "wwFw", "wrrw", "wwFw"), o=START))
says(None, follows, measured(a=kept("lwwr", "wwFw", "Fwww", "wwFw"), o=START))
says(True, f"{CHOICE} < 0.5", measured(a=kept(*["wwFw"] * 6), o=base(*[1.0] * 6)), "= -0.5000")
says(None, f"{CHOICE} > 0 and {CHOICE} < 0.5", measured(a=kept(*["wwFw"] * 3), o=START))
says(None, follows, measured(a=kept(*["wwww"] * 4), o=START), "every choice has the same sum")
says("not run", follows, {})
# Layer-wise 0.7 of 0.7, where 0.25 is chance; within each layer 0.4, 0.1, 0 and 0.1 are the most, 0.4 is chance.
one_layer = kept("Fwww", "Fwww", "wwwF", "Fwww", granularity="layer")
says(None, "choice(chain-layer-costs[o], layer-masks[a]) > 0.5", measured(a=one_layer, o=START), "= +0.7222 ± ")
in_layers = "choice(chain-costs[o], masks[a]) > 0.5"
within = kept(*["lrll"] * 6, granularity="head-single")
says(None, in_layers, measured(a=within, o=base(*[1.0] * 6)), "of o, masks of a) = +1.0000")
within = kept("lrll", "lrll", "lrlr", "llll", granularity="head-single")
says(None, in_layers, measured(a=within, o=START), "of o, masks of a) = +0.7500 ± ")

more = f"{CHOICE} > choice(flat(chain-costs[o]), flat(masks[b]))"
good, bad = kept("lrww", "Fwww", "Fwww", "lrww"), kept("wwFw", "lwwr", "wwFw", "wrrw")
says(True, more, measured(a=good, b=bad, o=START))
says(False, more, measured(a=bad, b=good, o=START), "= -1.")
says(None, more, measured(a=good, b=good, o=START), "both gave the same numbers")
says(None, more, measured(a=good, b=kept("lrww", "wwFw", "Fwww", "Fwww"), o=START))
says("not run", more, measured(a=good, b=bad), "not run: o")

# ---- the same of text, whose costs are turned round ----

LAYER_CHOICE = "choice(text-layer-costs[o], layer-masks[a]) > 0"
HEAD_CHOICE = "choice(flat(text-costs[o]), flat(masks[a])) > 0"
MATTERS = "max(text-layer-costs[o]) - min(text-layer-costs[o]) > 0.02"
deep, middle = kept("wwwF", "wwrl", "wwwF", "wwrl"), kept("wFww", "wwFw", "wFww", "wwFw")
says(
    True,
    HEAD_CHOICE,
    measured(a=deep, o=START),
    "^choice(flat(knock-out costs of heads on text of o), flat(masks of a)) = +0.8750 ± ",
)
says(False, HEAD_CHOICE, measured(a=middle, o=START), "= -0.3750 ± ")
says(None, HEAD_CHOICE, measured(a=kept("wwwF", "wFww", "wwwF", "wFww"), o=START))
outer = kept("FwwF", "wwFF", "FwwF", "wwFF", granularity="layer")
says(True, LAYER_CHOICE, measured(a=outer, o=START), "costs of layers on text of o, masks of layers of a) = +0.8750 ± ")
inner = kept("wFww", "wwFw", "wFww", "wwFw", granularity="layer")
says(False, LAYER_CHOICE, measured(a=inner, o=START), "= -0.4444 ± ")
says(True, MATTERS, measured(o=START), "= +0.7000 ± ")
says(False, MATTERS, measured(o=base(0.01, 0.012, 0.011, 0.013)))
