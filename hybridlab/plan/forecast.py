"""What structures a plug-in's controller will have, where it was registered as a function or a `Hook`. No torch.

A controller whose settings are a `Method` (config/method.py) says it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hybridlab.plan.structure import Structure

Stages = Iterator[tuple[Structure, int]]
"""(structure, number of steps) of a run, in order."""
FORECASTS: dict[str, Callable[[Any, Structure, int], Stages]] = {}
"""Kind of a controller → forecast(settings, first structure, steps)."""
