"""The plan from a list of edits (config/edits.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hybridlab.config.edits import PlanEdit
from hybridlab.errors import UserError
from hybridlab.plan.plan import Plan, check_heads


def edited_plan(
    num_layers: int,
    num_heads: int,
    edits: Iterable[PlanEdit],
    parallel: bool = False,
    origin: Callable[[int], str] = lambda _: "",
    recurrence: bool = False,
) -> Plan:
    """The plain plan with edits applied in order.

    origin: index of an edit → where it was written, for errors. recurrence: the first edit is that of `recurrence:`,
    and was not written as an edit. UserError if an edit does not fit the plan before it,
    for example if it names a layer or a head that does not exist.
    """
    plan = Plan.plain(num_layers, parallel)
    for index, edit in enumerate(edits):
        try:
            plan = edit.applied(plan, num_heads)
            check_heads(plan, num_heads)
        except UserError as error:
            written = origin(index)
            prefix = f"{written}: " if written else ""
            number = index + 1 - recurrence
            name = f"plan edit {number} ({edit.op})" if number else "recurrence"
            raise UserError(f"{prefix}{name}: {error}") from None
    return plan
