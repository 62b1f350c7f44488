"""MIDAS, LIDAS and their controls: a model that gains layers while it trains (depth growth paper, section 3.1).

    hybridlab grow --method lidas --block 2

After the last step of a stage, `block` layers are copied and the copies inserted right after them
(methods/depth): all parameters, both moments of the optimizer and its step, each with storage of its own. The
embeddings, the final norm, the head and the schedule of the learning rate stay. When a layer comes follows from the
settings and the step alone, and the depth is part of the structure in every checkpoint, so that a run that is resumed
at any step grows neither twice nor too late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hybridlab.errors import UserError
from hybridlab.methods.depth import StackingConfig, copied_layers, grown, order_after
from hybridlab.plan.visit import layer_name
from hybridlab.training.engine import Hook, Run
from hybridlab.training.store.folders import RunFolder

_BLOCKS = "blocks."


def grown_tensors(tensors: Mapping[str, Tensor], order: Sequence[int]) -> dict[str, Tensor]:
    """Named tensors of a model, or of its optimizer, for the model after a growth step.

    order: see `order_after`. A layer that continues keeps its tensors, under the name of its new place; a copy gets
    clones. Tensors of no layer stay.
    """
    by_layer: dict[int, dict[str, Tensor]] = {}
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(_BLOCKS):
            layer, _, inner = name.removeprefix(_BLOCKS).partition(".")
            by_layer.setdefault(int(layer), {})[inner] = tensor.detach()
        else:
            result[name] = tensor.detach()
    continued: set[int] = set()
    for place, source in enumerate(order):
        copy = source in continued
        continued.add(source)
        for inner, tensor in by_layer.get(source, {}).items():
            result[f"{_BLOCKS}{place}.{inner}"] = tensor.clone() if copy else tensor
    return result


class Stacking(Hook):
    """The controller `stacking`. layers: the depth at the end. steps: those of the run."""

    def __init__(self, config: StackingConfig, layers: int, steps: int) -> None:
        self.config, self.name = config, config.kind
        self.stages = config.stages(layers, steps)
        self.trained: list[dict[str, int]] = []
        """The depths so far, each with its first step and the number of its steps."""

    def depth_after(self, step: int) -> int:
        """Number of layers with which the step after `step` is done."""
        for stage in self.stages:
            step -= stage.steps
            if step < 0:
                return stage.layers
        return self.stages[-1].layers

    # ---- hook ----

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        layers = run.model.shape.layers
        if not self.trained or self.trained[-1]["layers"] != layers:
            self.trained.append({"layers": layers, "first_step": step + 1, "steps": 0})
        self.trained[-1]["steps"] += 1
        while run.model.shape.layers < self.depth_after(step + 1):
            self._grow(run)
        return {"layers": float(layers)}

    def branch(self, run: Run, other: RunFolder) -> None:
        """A branch with another number of steps would have its stages at other steps than the run that it goes on."""
        if run.model.shape.layers != self.depth_after(run.step):
            self._refuse(run)

    def before_first_step(self, run: Run) -> None:
        # Deeper than its stages is only a run that was extended, which goes on at full depth.
        if run.model.shape.layers < self.depth_after(run.step):
            self._refuse(run)

    def _refuse(self, run: Run) -> None:
        raise UserError(
            f"controller: the model has {run.model.shape.layers} layers after step {run.step}, where the stages of "
            f"this run have {self.depth_after(run.step)}; keep training.steps, begin at another step, or set "
            "controller.stage_steps"
        )

    def state(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.trained = [dict(part) for part in state["trained"]]

    def finish(self, run: Run) -> dict[str, Any]:
        return {
            "method": self.config.method,
            "block": self.config.block,
            "layers": run.model.shape.layers,
            "stages": self.trained,
            "boundaries": [part["first_step"] - 1 for part in self.trained[1:]],
        }

    # ---- the method ----

    def _grow(self, run: Run) -> None:
        """One growth step: structure, weights and the optimizer's state."""
        before, method, block, draw = run.model.structure, self.config.method, self.config.block, self.config.drawn
        after = grown(before, method, block, draw)
        copied = copied_layers(method, before.shape.layers, block, draw)
        order = order_after(method, before.shape.layers, block, draw)
        details: dict[str, Any] = {
            "method": method,
            "block": block,
            "copied": list(copied),
            "inserted_at": copied.stop,
            "layers_before": before.shape.layers,
            "layers_after": after.shape.layers,
            "stage": max(origin.stage for origin in after.lineage or ()),
        }
        if before.shape.norm_scaling is not None:
            # Factors belong to places: the copies and all layers behind them compute something else from now on.
            details["norm_scaling"] = f"norms from {layer_name(copied.stop)} on have the factors of their new places"
        run.change_structure(
            "stacked",
            after,
            grown_tensors(run.tensors(), order),
            grown_tensors(run.optimizer.tensors(), order),
            **details,
        )
