"""Cases of claims about models that are there already: tables of heads that are alike."""

from tests.unit.verdicts.building import case, measured, record

ALIKE = {"cell": "a", "other": "b", "table": "results.probes.entropy.heads", "above": 0.5}
WITHIN = ALIKE | {"within_rows": True}


def heads(*rows):
    return record(probes={"entropy": {"heads": [list(row) for row in rows]}})


UP, NEAR, DOWN, FLAT = (1, 2, 3, 4), (2, 1, 3, 4), (4, 3, 2, 1), (1, 1, 1, 1)
HIGHER = (11, 12, 13, 14)
three = [heads(UP, HIGHER)] * 3
near = [heads(NEAR, HIGHER), heads(UP, HIGHER), heads(NEAR, HIGHER)]
case(
    "tables_alike",
    True,
    ALIKE,
    measured(a=three, b=near),
    "^rank correlation of probes.entropy.heads, a and b = +0.9841",
)
case("tables_alike", False, ALIKE, measured(a=three, b=[heads(HIGHER, UP), heads(HIGHER, NEAR), heads(HIGHER, UP)]))
case("tables_alike", None, ALIKE, measured(a=three, b=[heads(UP, HIGHER), heads(HIGHER, UP), heads(UP, HIGHER)]))
case("tables_alike", "not run", ALIKE, measured(a=three), "not run: b")
case("tables_alike", None, ALIKE, measured(a=three, b=[heads(UP)] * 3), "a has a table of")
# Alike as a whole, since the second row is the higher one in both, and not within rows.
turned = [heads(DOWN, (14, 13, 12, 11)), heads(DOWN, (14, 13, 11, 12)), heads(DOWN, (14, 13, 12, 11))]
case("tables_alike", True, ALIKE | {"above": 0.2}, measured(a=three, b=turned))
case("tables_alike", False, WITHIN, measured(a=three, b=turned), "mean over rows = -0.96")
case("tables_alike", True, WITHIN, measured(a=three, b=near))
flat = [heads(FLAT, row) for row in (HIGHER, (12, 11, 13, 14), HIGHER)]
# A row whose numbers are all the same counts for nothing, and a head that does not run neither.
case(
    "tables_alike", True, WITHIN, measured(a=three, b=[heads(FLAT, row) for row in (HIGHER, (12, 11, 13, 14), HIGHER)])
)
missing = [heads((*row[:3], None), HIGHER) for row in (UP, NEAR, UP)]
case("tables_alike", True, WITHIN, measured(a=three, b=missing))
case("tables_alike", None, WITHIN, measured(a=three, b=[heads(FLAT, FLAT)] * 3), "all entries of a table are the same")
