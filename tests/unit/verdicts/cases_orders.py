"""Cases of claims about orders that last."""

from tests.unit.verdicts.building import case, measured, record

TABLES = {"cell": "a", "before": "results.probes.early.heads", "after": "results.probes.late.heads"}


def ordered(*late):
    """A run whose first table has rows that rise, and whose second has these."""
    early = [[0.1, 0.2, 0.3, 0.4 + 0.1 * row] for row in range(len(late))]
    return record(probes={"early": {"heads": early}, "late": {"heads": [list(row) for row in late]}})


SAME, NEAR, TURNED, FLAT = (1, 2, 3, 4), (2, 1, 3, 4), (4, 3, 2, 1), (1, 1, 1, 1)
keeps = [ordered(SAME, NEAR), ordered(NEAR, NEAR), ordered(SAME, SAME)]
case(
    "order_in_rows_keeps",
    True,
    TABLES,
    measured(a=keeps),
    "^a: rank correlation within rows of probes.early.heads and probes.late.heads, mean = +0.9000",
)
case("order_in_rows_keeps", False, TABLES, measured(a=[ordered(SAME, TURNED)] * 2 + [ordered(NEAR, TURNED)]))
case("order_in_rows_keeps", None, TABLES, measured(a=[*keeps[:2], ordered(TURNED, TURNED)]))
# Rows that are not named do not count, and neither do those whose numbers are all the same.
case(
    "order_in_rows_keeps",
    True,
    TABLES | {"rows": [0]},
    measured(a=[ordered(row, TURNED) for row in (SAME, NEAR, SAME)]),
)
case("order_in_rows_keeps", True, TABLES, measured(a=[ordered(row, FLAT) for row in (SAME, NEAR, SAME)]))
case("order_in_rows_keeps", None, TABLES, measured(a=[ordered(FLAT)] * 3), "the numbers of every row are all the same")
case("order_in_rows_keeps", "not run", TABLES, measured(a=[record()] * 3), "not measured: results.probes.early.heads")
