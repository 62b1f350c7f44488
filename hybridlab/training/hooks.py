"""What may act on a run while it trains. The engine knows no method by name: it calls these, in this order.

A controller that changes the model's structure does so through `Run.change_structure`, which records the event.
Everything random in a hook is a function of (seed, step), so that a resumed run draws the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from hybridlab.training.optimizer import Group

if TYPE_CHECKING:
    from hybridlab.models.decoder import Output
    from hybridlab.training.engine import Run


class Hook:
    """The base: does nothing. `name` keys its state in the checkpoint."""

    name = "hook"

    def begin(self, run: Run) -> None:
        """Before the first step of this process: create own tensors, read the configuration."""

    def parameter_groups(self) -> list[Group]:
        """Own optimizer groups. Their tensors are saved with the checkpoint and kept out of the model."""
        return []

    def forward_inputs(self, step: int) -> dict[str, Any]:
        """Further arguments of the model's forward pass in this step, made anew for each micro-batch."""
        return {}

    def after_forward(self, step: int, output: Output, share: float) -> None:
        """After the forward pass of a micro-batch that holds `share` of the step's rows."""

    def penalty(self, step: int) -> Tensor | None:
        """A term of the loss that is added once per optimizer step."""
        return None

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        """After optimizer step `step` (0-based; `run.step` counts it already): numbers for the log."""
        return {}

    def state(self) -> dict[str, Any]:
        """What beside the tensors of the groups has to survive, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        """The opposite of `state`; the run's model has its plan and map of that step again."""

    def finish(self, run: Run) -> dict[str, Any]:
        """After the last step: final changes of structure; returns results for the record."""
        return {}
