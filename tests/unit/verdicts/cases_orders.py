"""Cases of claims about orders that last."""

from hybridlab.evaluation.results import AtStep
from tests.unit.verdicts.building import loss, measured, record, says


def ordered(*late):
    """A run whose first table has rows that rise, and whose second has these; a layer above them is turned round."""
    early = [[0.1, 0.2, 0.3, 0.4 + 0.1 * row] for row in range(len(late) + 1)]
    made = record(probes={"entropy": {"heads": [list(TURNED), *map(list, late)]}})
    at = {"400": AtStep(validation=loss([3.0]), probes={"entropy": {"heads": early}})}
    return made.model_copy(update={"results": made.results.model_copy(update={"at": at})})


SAME, NEAR, TURNED, FLAT = (1, 2, 3, 4), (2, 1, 3, 4), (4, 3, 2, 1), (1, 1, 1, 1)
KEEPS = "head-order-since-400[a] > 0.5"
keeps = [ordered(SAME, NEAR), ordered(NEAR, NEAR), ordered(SAME, SAME)]
says(
    True,
    KEEPS,
    measured(a=keeps),
    "^a: rank correlation of the heads' entropies in layers 2 on, at step 400 and at the end = +0.9000",
)
says(False, KEEPS, measured(a=[ordered(SAME, TURNED)] * 2 + [ordered(NEAR, TURNED)]))
says(None, KEEPS, measured(a=[*keeps[:2], ordered(TURNED, TURNED)]))
# Rows whose numbers are all the same do not count.
says(True, KEEPS, measured(a=[ordered(row, FLAT) for row in (SAME, NEAR, SAME)]))
says(None, KEEPS, measured(a=[ordered(FLAT)] * 3), "nothing is selected")
says("not run", KEEPS, measured(a=[record()] * 3), "not measured: results.at.400.probes.entropy.heads")
