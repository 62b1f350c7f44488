"""Several runs side by side: settings that differ, costs, and validation losses paired by window. No torch.

hybridlab runs compare base stage2
"""

from __future__ import annotations

from typing import Any

from hybridlab.config.differences import differing
from hybridlab.errors import UserError
from hybridlab.runs.catalogue import Row, row_of
from hybridlab.runs.details import record_of
from hybridlab.runs.record import Record
from hybridlab.statistics import paired_difference, resolved
from hybridlab.training.folders import RunFolder

NOTE = (
    "± is the standard error over validation windows, of one run each: it tells whether two models differ on this "
    "text, and nothing about other seeds; for these use `hybridlab ablate --seeds`"
)
COSTS = ("tokens", "flops", "seconds", "tokens_per_second")


def compare(folders: list[RunFolder]) -> dict[str, Any]:
    """Two or more runs as JSON. settings: dotted name → a value for each run. losses: of each run; from
    the second one on with `_against`."""
    if len(folders) < 2 or len({folder.path.resolve() for folder in folders}) < len(folders):
        raise UserError("runs compare: give two or more different runs")
    rows, records = [row_of(folder) for folder in folders], [record_of(folder) for folder in folders]
    return {
        "runs": [{"hash": row.hash, "name": row.name, "path": str(row.path), "state": row.state} for row in rows],
        "settings": differing(*(folder.started()["config"] for folder in folders)),
        "costs": [_costs(row, record) for row, record in zip(rows, records, strict=True)],
        "losses": [_loss(records[0]), *(_loss(record) | _against(records[0], record) for record in records[1:])],
        "note": NOTE,
    }


def _costs(row: Row, record: Record | None) -> dict[str, Any]:
    """The steps so far; the other costs are known once the run has ended."""
    known = {name: None if record is None else getattr(record, name) for name in COSTS}
    return {"parameters": None if record is None else record.parameters["total"], "steps": row.step, **known}


def _loss(record: Record | None) -> dict[str, Any]:
    """The validation loss at the end of a run; None if it has no results."""
    return {"loss": record.results.validation.loss.model_dump() if record and record.results else None}


def _against(first: Record | None, record: Record | None) -> dict[str, Any]:
    """difference: this run − the first one, over the same windows. resolved: whether it is further from 0 than twice
    its standard error. not_compared: the reason if there is no difference."""
    measured = [one.results.validation.windows if one and one.results else [] for one in (record, first)]
    if not first or not record or not all(measured):
        return _not_compared("one of the two has no validation loss")
    if record.data.fingerprint != first.data.fingerprint:
        return _not_compared("their data differ")
    lengths = [one.config["training"]["seq_len"] for one in (record, first)]
    if lengths[0] != lengths[1]:
        return _not_compared(f"their windows have {lengths[0]:,} and {lengths[1]:,} tokens")
    if len(measured[0]) != len(measured[1]):
        return _not_compared(f"they were measured on {len(measured[0]):,} and {len(measured[1]):,} windows")
    difference = paired_difference(*measured)
    return {"difference": difference.model_dump(), "resolved": resolved(difference), "not_compared": None}


def _not_compared(reason: str) -> dict[str, Any]:
    return {"difference": None, "resolved": None, "not_compared": reason}
