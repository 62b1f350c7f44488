"""Taps: how an analysis observes and changes a forward pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hybridlab.plan.visit import Place, Visit


class Taps:
    """Base class; override what you need. Inside a loop over chunks, x holds latents (B, n, W)."""

    def on_embeddings(self, x: Tensor) -> Tensor:
        """Returns the embeddings (B, S, W) from which the plan starts: x itself, or others."""
        return x

    def run_visit(self, place: Place, x: Tensor, visit: Visit, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the output (B, S, W) of a visit on x (B, S, W). `run(x)` runs the visit, as often as wanted."""
        return run(x)

    def on_branch(self, place: Place, part: str, x: Tensor, delta: Tensor) -> Tensor:
        """Returns what a branch of a visit adds to the residual stream: delta (B, S, W) itself, or something else.

        part: `attention` or `mlp`. x (B, S, W): what the branch has read, before its norm.
        """
        return delta

    def on_visit(self, place: Place, x: Tensor, delta: Tensor) -> None:
        """Called after a visit. delta (B, S, W): what it added to its input x (B, S, W)."""

    def on_item(self, index: int, x: Tensor) -> None:
        """Called after an item of the plan, a visit or a whole loop. x: the residual stream (B, S, W) then."""

    def on_iteration(self, place: Place, h: Tensor) -> None:
        """Called after an iteration of a loop. place: (index of the loop, iteration). h: the new state (B, S, W)."""
