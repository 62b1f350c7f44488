"""Claims on the constraint's swings and on patterns of masks: 8 layers of 2 heads where it matters."""

from tests.unit.verdicts.building import around, case, measured, record, says
from tests.unit.verdicts.cases_consa import learned


def swinging(*curves, **left):
    """Seeds with these constraint losses."""
    return [learned(lagrangian=curve, **left) for curve in curves]


def peaks(*levels, **left):
    """Seeds whose constraint loss goes down to minus a level and back to 0."""
    return swinging(*((0.0, -level, 0.0) for level in levels), **left)


small, large = peaks(1.0, 1.1, 0.9), peaks(3.0, 3.2, 3.1)
says(True, "constraint-peak[a] > [b]", measured(a=large, b=small), "^a − b, peak of the constraint loss = +2.1000")
says(False, "constraint-peak[a] > [b]", measured(a=small, b=large))
says(None, "constraint-peak[a] > [b]", measured(a=small, b=peaks(0.9, 1.2, 0.9)))
says("not run", "constraint-peak[a] > [b]", measured(a=small), "not run: b")
says("not run", "constraint-peak[a] > [b]", measured(a=small, b=[3.0]), "not measured: history.lagrangian")
# head-single logs the sum over its four layers.
single = peaks(8.0, 8.4, 8.2, granularity="head-single")
says(True, "constraint-peak[a] > constraint-peak-by-layer[b]", measured(a=large, b=single), "= +1.0500")

says(
    True,
    "log2(1.5) < log2(constraint-peak[a] / [b]) < log2(2.5)",
    measured(a=peaks(2.0, 2.1, 2.0), b=peaks(1.0, 1.0, 1.02)),
    "^log2(a / b), peak of the constraint loss = +1.0139",
)
says(
    False,
    "log2(1.5) < log2(constraint-peak[a] / [b]) < log2(2.5)",
    measured(a=peaks(4.0, 4.1, 4.0), b=peaks(1.0, 1.0, 1.02)),
)
says(
    False,
    "log2(1.5) < log2(constraint-peak[a] / [b]) < log2(2.5)",
    measured(a=peaks(1.0, 1.01, 1.0), b=peaks(1.0, 1.0, 1.02)),
)
says(
    None,
    "log2(1.5) < log2(constraint-peak[a] / [b]) < log2(2.5)",
    measured(a=peaks(2.0, 4.0, 1.0), b=peaks(1.0, 1.0, 1.0)),
)
says("not run", "log2(1.5) < log2(constraint-peak[a] / [b]) < log2(2.5)", {})

says(
    True,
    "always(constraint-oscillates[a])",
    measured(a=swinging(*[(0.0, 1.0, 0.2, 0.4, 0.0)] * 6)),
    "^a: the constraint loss rises again, by more than 5 % of its peak: yes in 6 of 6",
)
says(False, "always(constraint-oscillates[a])", measured(a=swinging(*[(0.0, 1.0, 0.5, 0.2, 0.0)] * 6)), "yes in 0 of 6")
# What rises by less than the share, and what rises to the first peak, does not count.
says(False, "always(constraint-oscillates[a])", measured(a=swinging(*[(0.1, 0.0, 1.0, 0.2, 0.24)] * 6)))
says(True, "always(constraint-oscillates[a])", measured(a=swinging(*[(0.0, 1.0, 0.2, -0.4)] * 6)))
says(None, "always(constraint-oscillates[a])", measured(a=swinging(*[(1.0, 0.2, 0.4)] * 5)), "p = 0.0625")
says("not run", "always(constraint-oscillates[a])", {})

ends = [(0.0, 2.0, 0.04), (0.0, 2.0, -0.05), (0.0, -2.0, 0.06)]
says(True, "constraint-left[a] < 0.1", measured(a=swinging(*ends)), "^a: last constraint loss over its peak = +0.0250")
says(False, "constraint-left[a] < 0.1", measured(a=swinging((1.0, 0.4), (1.0, 0.5), (1.0, 0.45))))
says(None, "constraint-left[a] < 0.1", measured(a=swinging((1.0, 0.01), (1.0, 0.3), (1.0, 0.1))))
says("not run", "constraint-left[a] < 0.1", {})


def back(*ways, target=0.5):
    """Seeds whose expected sparsity goes this far above the target."""
    return [learned(target=target, highest_expected_sparsity=target + way) for way in ways]


far, middle, near = back(0.6, 0.61, 0.6, target=0.3), back(0.4, 0.41, 0.42), back(0.2, 0.19, 0.2, target=0.7)
says(True, "overshoot[a, b] > [b, c]", measured(a=far, b=middle, c=near), "^a − b, peak of E[ρ̂] − ρ = +0.1933")
says(False, "overshoot[a, b] > [b, c]", measured(a=near, b=middle, c=far))
says(False, "overshoot[a, b] > [b, c]", measured(a=far, b=near, c=middle))
says(None, "overshoot[a, b] > [b, c]", measured(a=far, b=middle, c=middle), "both gave the same numbers")
says(None, "overshoot[a, b] > [b, c]", measured(a=far, b=middle), "not run: c")


def rising(*steps):
    """Seeds whose target rises over these numbers of steps."""
    return [record(controller=({"kind": "consa", "target_warmup_steps": n}, {})) for n in steps]


says(True, "every(target-rises[a] == 0)", measured(a=rising(0, 0, 0)))
says(False, "every(target-rises[a] == 0)", measured(a=rising(200, 200, 200)))
says("not run", "overshoot[a, b] > [b, c]", {})
says(
    None,
    "overshoot[a, b] > [b, c]",
    measured(a=far, b=middle, c=[learned()]),
    "not measured: controller.highest_expected_sparsity",
)


def realised(*gaps):
    """Seeds whose expected sparsity lies this far above that of the threshold."""
    return measured(a=[learned(expected_sparsity=0.5 + gap, threshold_sparsity=0.5) for gap in gaps])


says(True, "abs(not-realised[a]) < 0.02", realised(*around(0.0)), "^a: E[ρ̂] − sparsity by α > 0 (Eq. 11) = +0.0007")
says(False, "abs(not-realised[a]) < 0.02", realised(*around(0.2)))
says(False, "abs(not-realised[a]) < 0.02", realised(*around(-0.2)))
says(None, "abs(not-realised[a]) < 0.02", realised(0.0, 0.05, -0.04))
says("not run", "abs(not-realised[a]) < 0.02", {})


# ---- patterns; F a full layer, w windows, m one of each ----

ROW = {"F": [1, 1], "w": [0, 0], "m": [1, 0]}


def masks(*patterns):
    return [learned(masks=[ROW[kind] for kind in pattern]) for pattern in patterns]


top, flat = masks("wwFFFmww", "wFFFFFww", "wwFFmFww"), masks("wFwFwFwF", "FwwFFwwF", "wFFwFwwF")
says(
    True, "windows-at-the-top[a] > 0", measured(a=top), "^a: windows in the top quarter − in the middle half = +0.9167"
)
says(False, "windows-at-the-top[a] > 0", measured(a=masks("FFwwwwFF", "FFwmwwFF", "FFwwwwFm")))
says(None, "windows-at-the-top[a] > 0", measured(a=masks("FFwwwwFF", "FFFFFFww", "FFwwwwFm")))
says("not run", "windows-at-the-top[a] > 0", {})

says(
    True,
    "windows-at-the-top[a] < [b]",
    measured(a=flat, b=top),
    "a − b, windows in the top quarter − in the middle half = -0.9167",
)
says(False, "windows-at-the-top[a] < [b]", measured(a=top, b=flat))
says(None, "windows-at-the-top[a] < [b]", measured(a=top, b=masks("wwFFFFww", "wFFFFFww", "wwFFmFww")))
says("not run", "windows-at-the-top[a] < [b]", measured(a=flat), "not run: b")

says(True, "always(last-layer-windows[a])", measured(a=masks(*["wFFw"] * 6)), "last layer is a window: yes in 6 of 6")
says(False, "always(last-layer-windows[a])", measured(a=masks(*["wwwm"] * 6)), "yes in 0 of 6")
says(None, "always(last-layer-windows[a])", measured(a=masks(*["wFFw"] * 4)))
says("not run", "always(last-layer-windows[a])", measured(a=[record()]), "not measured: controller.masks")

says(
    True,
    "always(few-full-blocks[a])",
    measured(a=masks(*["FFwwFFFw"] * 6)),
    "at most 2 blocks of full layers: yes in 6",
)
says(True, "always(few-full-blocks[a])", measured(a=masks(*["wFmwmFmw"] * 6)))
says(False, "always(few-full-blocks[a])", measured(a=masks(*["FwFwFwww"] * 6)), "yes in 0 of 6")
says(None, "always(few-full-blocks[a])", measured(a=masks(*["FFwwFFFw"] * 3)))
says(None, "always(few-full-blocks[a])", measured(a=masks(*["wwwm"] * 6)), "a condition of the measure is not met")
says("not run", "always(few-full-blocks[a])", {})

says(None, "full-blocks-less-halfway[a] < 0", measured(a=masks("wFFFFwww", "FFFFwwww", "wwFFwFFw")), "= -1.1667 ± ")
says(
    False,
    "full-blocks-less-halfway[a] < 0",
    measured(a=masks(*["wFwFwFwF"] * 6, "wFwFwFFF")),
    "halfway to even spreading = +1.3571",
)
says(None, "full-blocks-less-halfway[a] < 0", measured(a=masks("FwFwFwFw", "FFFFwwww", "FwFwFFww")))
# Six full layers leave room for three blocks only.
says(None, "full-blocks-less-halfway[a] < 0", measured(a=masks(*["FFFFFFww"] * 6)), "= -1.0000")
says(None, "full-blocks-less-halfway[a] < 0", measured(a=masks(*["FFwFFwFF"] * 6)), "= +1.0000")
says(None, "full-blocks-less-halfway[a] < 0", measured(a=masks(*["FFmwFwFF"] * 3)), "= +0.5000")
says("not run", "full-blocks-less-halfway[a] < 0", {})

# Each seed's two masks against those of b in the next seed, in eight heads: 8 − 0, 7 − 0, 7 − 1 and 8 − 1 differ.
differ = {"pairs": [["a", "b"]]}
ranked = masks("FFww", "FFww", "FFww", "FFwm")
case(
    "masks_differ",
    True,
    differ,
    measured(a=masks("wwFF", "wwFm", "wwFF", "wwFF"), b=ranked),
    "^distance from the masks of b in the next seed, a − b = +0.8750 ± ",
)
turned = ("wwFF", "FFww", "wwFF", "FFwm")
case("masks_differ", False, differ, measured(a=masks(*turned[1:], turned[0]), b=masks(*turned)), "= -0.9375")
case("masks_differ", None, differ, measured(a=masks(*["wwFF"] * 5), b=masks(*["FFww"] * 5)), "p = 0.0625")
case("masks_differ", True, differ, measured(a=masks(*["wwFF"] * 6), b=masks(*["FFww"] * 6)), "= +1.0000")
# They differ in every seed, and so do those of one arm.
drawn = ("FFww", "wFFw", "wwFF", "FwwF", "FwFw", "wFwF")
case("masks_differ", None, differ, measured(a=masks(*drawn), b=masks(*drawn[2:], *drawn[:2])))
case("masks_differ", None, differ, measured(a=masks(*drawn), b=masks(*drawn)), "both gave the same numbers")
case("masks_differ", None, differ, measured(a=masks("FFww"), b=masks("wwFF")), "there is no other seed")
case("masks_differ", "not run", differ, {})
case("masks_differ", "not run", differ, measured(a=masks("FFww", "FFww"), b=[record(), record()]), "learned no masks")

says(
    True,
    "mixed-layers[a] > 0.5",
    measured(a=masks("mmmmF", "mmmmm", "mmmmw")),
    "^a: share of layers of both kinds = +0.8667",
)
says(False, "mixed-layers[a] > 0.5", measured(a=masks("FFwF", "mFww", "FwFw")))
says(None, "mixed-layers[a] > 0.5", measured(a=masks("mmFF", "mmmm", "FFwF")))
says("not run", "mixed-layers[a] > 0.5", {})
