"""Hooks: how a method acts on a run while it trains. The engine calls their methods in the order below.

A controller changes the model's structure through `Run.change_structure`, which records the event and rebuilds the
model. All random draws of a hook are functions of (seed, step), so that a resumed run draws the same numbers.

Several processes may train a run together (training/world.py). Each calls every hook, with its part of the batch: a
hook that decides by a statistic of the outputs decides by `world().sum` of it, and writes files by `world().once`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Factors, Output, Transformer
from hybridlab.plan.structure import Structure
from hybridlab.store.folders import RunFolder
from hybridlab.training.objective import Objective
from hybridlab.training.optimizer import Group, Optimizers


class TrainingRun(Protocol):
    """What hooks see and change of a run; `Run` in training/engine.py is one.

    initial: the structure before the first step. step: optimizer steps done. precision: fp32 or bf16. last: the numbers
    of the last step by name; those of hooks are added one hook after another.
    """

    config: RunConfig
    folder: RunFolder
    model: Transformer
    corpus: Corpus
    objective: Objective
    initial: Structure
    device: torch.device
    precision: str
    step: int
    last: dict[str, Any]
    groups: list[Group]
    optimizer: Optimizers

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name: those of the model, of which adapters train none but their own, and those of hooks."""
        ...

    def change_structure(
        self,
        kind: str,
        structure: Structure,
        tensors: Mapping[str, Tensor] | None = None,
        optimizer: Mapping[str, Tensor] | None = None,
        factors: Factors | None = None,
        **details: Any,
    ) -> None:
        """Run another structure from the next step on, with an event in the record."""
        ...

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        """The arguments of the forward pass, from all hooks, to measure the model as optimizer step `step` runs it."""
        ...

    def say(self, text: str) -> None:
        """Show a line on the terminal."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A context whose time does not count as time of training."""
        ...


class Hook:
    """Base class of hooks; does nothing. A subclass overrides the methods that it needs.

    name: key of its state in the checkpoint and of its results in the record. logged: how the names of its numbers in
    the log begin; a run in which the hook begins anew does not take those of another run over. version: for a hook
    that a Python program passes to `hybridlab.train`, which puts name and version into the run's identity: a text that
    changes whenever the hook would act otherwise, its settings included. A hook of a plug-in needs none.

        class Shrink(hybridlab.Hook):
            name, version = "shrink", "1"

            def after_step(self, run, step):
                with torch.no_grad():
                    for tensor in run.tensors().values():
                        tensor.mul_(0.999)
                return {}
    """

    name: str = "hook"
    version: str | None = None
    logged: str | None = None

    def begin(self, run: TrainingRun) -> None:
        """Called once before the first step of this process: create tensors, read the configuration."""

    def before_first_step(self, run: TrainingRun) -> None:
        """Called once in every process before the first step that it does, after `begin` and `load_state`; `run.step`
        is the number of steps done."""

    def parameter_groups(self) -> list[Group]:
        """Optimizer groups of the hook. Their tensors are saved in checkpoints, but are no part of the model."""
        return []

    def forward_inputs(self, step: int) -> dict[str, Any]:
        """Further arguments of the model's forward pass; called for each micro-batch of the step."""
        return {}

    def after_forward(self, step: int, output: Output, share: float) -> Tensor | None:
        """Called after the forward pass of a micro-batch. share: its share of all rows of the step. With a vocabulary
        of 32,768 or more the output has the loss and no logits, see models/loss.py.

        Returns a term that depends on this output and is added to its loss, or None. A mean over rows must be
        multiplied by `share`, so that the size of micro-batches does not matter.
        """
        return None

    def penalty(self, step: int) -> Tensor | None:
        """A term that is added to the loss once per optimizer step."""
        return None

    def after_step(self, run: TrainingRun, step: int) -> dict[str, float]:
        """Called after optimizer step `step` (0-based; `run.step` is step + 1). Returns numbers for the log."""
        return {}

    def logs(self, step: int) -> bool:
        """Whether the log gets a line of optimizer step `step`, also if `runtime.log_every` gives it none."""
        return False

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        """Arguments of the forward pass to measure the model as optimizer step `step` runs it; nothing random."""
        return {}

    def state(self) -> dict[str, Any]:
        """What to save in a checkpoint besides the tensors of the groups, as JSON."""
        return {}

    def load_state(self, state: dict[str, Any], run: TrainingRun) -> None:
        """Restore what `state` returned; the run's model already has the structure of that step."""

    def extend(self, run: TrainingRun, shorter: RunFolder) -> None:
        """Called after `load_state` when the run goes on from the end of a shorter one, whose folder this is: do what
        that run left out because the step was its last."""

    def branch(self, run: TrainingRun, other: RunFolder) -> None:
        """Called after `load_state` when the run goes on from a middle step of another one, whose folder this is: what
        is in that folder may be of later steps. A hook with other settings begins anew instead, without its state."""

    def finish(self, run: TrainingRun) -> dict[str, Any]:
        """Called after the last step, for final changes of structure. Returns results for the record.

        Sentences in a list `warnings` among the results are also said on the terminal, now and at every repeat of the
        command.
        """
        return {}
