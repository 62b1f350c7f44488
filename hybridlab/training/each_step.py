"""Logged numbers of every step in the record (`observe.each_step`), for curves that are compared step by step.

    hybridlab pretrain --set observe.each_step=[loss]

A record's history has at most 200 steps of the log, and how often a line is logged may change when a run is resumed.
"""

from __future__ import annotations

from typing import Any

from hybridlab.errors import UserError
from hybridlab.training.engine import Hook, Run

_DIGITS = 5
"""Significant digits: a loss of 3.8437, within the noise of a batch, in nine bytes of the record."""


class EachStep(Hook):
    """Results: first, the first step; and name → the number of every step from there on."""

    name = "each-step"

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.first = 1
        self.columns: dict[str, list[float]] = {name: [] for name in names}
        self.pending: tuple[Run, int, dict[str, Any]] | None = None

    def before_first_step(self, run: Run) -> None:
        if not any(self.columns.values()):
            self.first = run.step + 1

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        self._take()
        # Later hooks add their numbers to it.
        self.pending = (run, step + 1, run.last)
        return {}

    def _take(self) -> None:
        """Add the numbers of the last step, which all hooks have completed."""
        if self.pending is None:
            return
        (run, step, numbers), self.pending = self.pending, None
        if missing := [name for name in self.names if name not in numbers]:
            known = ", ".join(numbers)
            raise UserError(f"observe.each_step: not every step has a number {missing[0]!r}; use some of {known}")
        for name, column in self.columns.items():
            value = float(numbers[name])
            run.require_finite(name, value, step)
            column.append(float(f"{value:.{_DIGITS}g}"))

    def state(self) -> dict[str, Any]:
        self._take()
        return {"first": self.first, **self.columns}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.first, self.columns = state["first"], {name: list(state[name]) for name in self.names}

    def finish(self, run: Run) -> dict[str, Any]:
        return self.state()
