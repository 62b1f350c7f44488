"""Cases of claims about models that are there already: tables of heads that are alike."""

from tests.unit.verdicts.building import measured, record, says


def heads(*rows):
    return record(probes={"entropy": {"heads": [list(row) for row in rows]}})


UP, NEAR, DOWN, FLAT = (1, 2, 3, 4), (2, 1, 3, 4), (4, 3, 2, 1), (1, 1, 1, 1)
HIGHER = (11, 12, 13, 14)
three = [heads(UP, HIGHER)] * 3
near = [heads(NEAR, HIGHER), heads(UP, HIGHER), heads(NEAR, HIGHER)]
says(
    True,
    "rank_correlation(head-entropies[a], [b]) > 0.5",
    measured(a=three, b=near),
    "^rank_correlation(a, b), entropies of all heads = +0.9841",
)
says(
    False,
    "rank_correlation(head-entropies[a], [b]) > 0.5",
    measured(a=three, b=[heads(HIGHER, UP), heads(HIGHER, NEAR), heads(HIGHER, UP)]),
)
says(
    None,
    "rank_correlation(head-entropies[a], [b]) > 0.5",
    measured(a=three, b=[heads(UP, HIGHER), heads(HIGHER, UP), heads(UP, HIGHER)]),
)
says("not run", "rank_correlation(head-entropies[a], [b]) > 0.5", measured(a=three), "not run: b")
says(
    None,
    "rank_correlation(head-entropies[a], [b]) > 0.5",
    measured(a=three, b=[heads(UP)] * 3),
    "one table is of (2, 4), the other one of (1, 4)",
)
# Alike as a whole, since the second row is the higher one in both, and not within rows.
turned = [heads(DOWN, (14, 13, 12, 11)), heads(DOWN, (14, 13, 11, 12)), heads(DOWN, (14, 13, 12, 11))]
says(True, "rank_correlation(head-entropies[a], [b]) > 0.2", measured(a=three, b=turned))
says(
    False,
    "mean(rank_correlations(head-entropies[a], [b])) > 0.5",
    measured(a=three, b=turned),
    "^mean(rank_correlations(a, b)), entropies of all heads = -0.96",
)
says(True, "mean(rank_correlations(head-entropies[a], [b])) > 0.5", measured(a=three, b=near))
# A row whose numbers are all the same counts for nothing, and a head that does not run neither.
says(
    True,
    "mean(rank_correlations(head-entropies[a], [b])) > 0.5",
    measured(a=three, b=[heads(FLAT, row) for row in (HIGHER, (12, 11, 13, 14), HIGHER)]),
)
missing = [heads((*row[:3], None), HIGHER) for row in (UP, NEAR, UP)]
says(True, "mean(rank_correlations(head-entropies[a], [b])) > 0.5", measured(a=three, b=missing))
says(
    None,
    "mean(rank_correlations(head-entropies[a], [b])) > 0.5",
    measured(a=three, b=[heads(FLAT, FLAT)] * 3),
    "nothing is selected",
)
