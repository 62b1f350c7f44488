"""The training loop. There is one; methods act on it through hooks.

    hybridlab pretrain --arch vanilla --size tiny --data embedded --steps 100 --run-dir runs/first

The global batch is the truth and the micro-batch a memory setting: the loss is normalised over the weights of the
whole batch before it is split. Data and all random draws are functions of (seed, step), so a run that was killed goes
on from its newest checkpoint to the same bits (CPU, the same number of threads).
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridlab.accounting.flops import convention_of, ledger
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Batch, Batches
from hybridlab.data.shards import Corpus
from hybridlab.errors import Interrupted, RunFailed
from hybridlab.models.decoder import Decoder
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Place, Plan
from hybridlab.training import checkpoints
from hybridlab.training.checkpoints import Checkpoint
from hybridlab.training.folders import RunFolder
from hybridlab.training.hooks import Hook
from hybridlab.training.metrics import MetricsLog
from hybridlab.training.optimizer import (
    load_optimizer_tensors,
    make_optimizer,
    model_groups,
    optimizer_tensors,
    set_learning_rates,
)
from hybridlab.training.progress import Progress
from hybridlab.training.stopping import StopRequest


@dataclass
class Spent:
    """What a run has used, without the steps that a kill made it do again."""

    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0


@dataclass
class Run:
    """A run in progress: what hooks see and change. step: how many optimizer steps are done. last: numbers
    of the last one."""

    config: RunConfig
    folder: RunFolder
    model: Decoder
    corpus: Corpus
    hooks: list[Hook]
    device: torch.device
    precision: str
    step: int = 0
    spent: Spent = field(default_factory=Spent)
    events: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batches = Batches(self.corpus, self.config.data, self.config.training, self.config.shape.vocab)
        for hook in self.hooks:
            hook.begin(self)
        self.groups = model_groups(self.model, self.config.training.optimizer)
        self.groups += [group for hook in self.hooks for group in hook.parameter_groups()]
        self.optimizer = make_optimizer(self.groups)
        self.metrics = MetricsLog(self.folder.path / "metrics.jsonl")

    # ---- structure ----

    def change_structure(
        self,
        kind: str,
        plan: Plan | None = None,
        attention_map: AttentionMap | None = None,
        factors: dict[Place, Tensor] | None = None,
        **details: Any,
    ) -> None:
        """Run another plan or map from here on, on the same weights; the change is an event of the record.

        details: what else the event says, as JSON. A run whose loss is not finite changes nothing any more.
        """
        if self.last:
            self._require_finite(self.last)
        model = self.model.with_plan(plan, attention_map, factors)
        changed = {"plan": (self.model.plan, model.plan), "map": (self.model.attention_map, model.attention_map)}
        event = {"step": self.step, "kind": kind, **details}
        event |= {f"{what}_before": str(a) for what, (a, b) in changed.items() if a != b}
        event |= {f"{what}_after": str(b) for what, (a, b) in changed.items() if a != b}
        self.events.append(event)
        self.metrics.write({"event": event})
        self.model = model

    # ---- the loop ----

    def train(self, progress: Progress) -> dict[str, Any]:
        """All steps that are left; returns the hooks' results.

        A loss that is not finite ends the run; Ctrl-C and SIGTERM end it after the step, with a checkpoint.
        """
        self.resume()
        settings, every = self.config.training, self.config.runtime.checkpoint_every
        started = time.monotonic()
        with StopRequest() as stop:
            while self.step < settings.steps:
                numbers = self.take_step()
                self.spent.seconds += time.monotonic() - started
                started = time.monotonic()
                last = self.step == settings.steps
                if last or self.step % self.config.runtime.log_every == 0:
                    self._log(numbers, progress)
                if last or stop.asked or self.step % every == 0:
                    self._require_finite(numbers)
                    self.save()
                if stop.asked:
                    raise Interrupted(f"{self.folder.path}: stopped after step {self.step}")
        return {hook.name: hook.finish(self) for hook in self.hooks}

    def take_step(self) -> dict[str, Any]:
        """One optimizer step: gradients of the whole batch, penalties once, clipping, update."""
        settings, step = self.config.training, self.step
        set_learning_rates(self.optimizer, self.groups, settings.schedule, step, settings.steps)
        loss = self._gradients(self.batches.batch(step), step)
        for hook in self.hooks:
            penalty = hook.penalty(step)
            if penalty is not None:
                penalty.backward()
        clipped = [t for group in self.groups if group.clipped for t in group.tensors.values()]
        norm = torch.nn.utils.clip_grad_norm_(clipped, settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # Before the hooks: what they change counts from the next step on.
        self.spent.tokens += settings.tokens_per_step
        self.spent.flops += self._step_flops()
        self.step += 1
        numbers = {"loss": loss, "gradient_norm": norm, "lr": self.optimizer.param_groups[0]["lr"]}
        self.last = numbers
        for hook in self.hooks:
            numbers |= hook.after_step(self, step)
        return numbers

    def _gradients(self, batch: Batch, step: int) -> Tensor:
        """Accumulate the gradients of the batch's mean loss; returns that loss."""
        total = float(batch.weights.sum())
        rows = self.config.runtime.micro_batch_rows or len(batch.tokens)
        loss = torch.zeros((), device=self.device)
        for start in range(0, len(batch.tokens), rows):
            tokens = torch.from_numpy(batch.tokens[start : start + rows]).to(self.device)
            weights = torch.from_numpy(batch.weights[start : start + rows]).to(self.device)
            inputs: dict[str, Any] = {}
            for hook in self.hooks:
                inputs |= hook.forward_inputs(step)
            with self.autocast():
                output = self.model(tokens, **inputs)
            for hook in self.hooks:
                hook.after_forward(step, output, len(tokens) / len(batch.tokens))
            part = weighted_loss(output.logits, tokens, weights) / total
            part.backward()
            loss += part.detach()
        return loss

    def autocast(self) -> AbstractContextManager:
        return autocast(self.device, self.precision)

    def _step_flops(self) -> float:
        settings = self.config.training
        model, convention = self.model, convention_of(self.kernels_used().values())
        return (
            ledger(model.shape, model.plan, model.attention_map, settings.seq_len, convention).training * settings.rows
        )

    def kernels_used(self) -> dict[str, str]:
        length, low_precision = self.config.training.seq_len, self.precision != "fp32"
        return self.model.kernels_used(length, self.device, low_precision)

    # ---- log and state ----

    def _log(self, numbers: dict[str, Any], progress: Progress) -> None:
        self._require_finite(numbers)
        line = {name: float(value) for name, value in numbers.items()}
        self.metrics.write({"step": self.step, "tokens": self.spent.tokens, "flops": self.spent.flops, **line})
        progress.update(self.step, line["loss"])

    def _require_finite(self, numbers: dict[str, Any]) -> None:
        for name in ("loss", "gradient_norm"):
            if not math.isfinite(numbers[name]):
                what = f"the {name.replace('_', ' ')} is {float(numbers[name])} at step {self.step}"
                raise RunFailed(f"{self.folder.path}: {what}; lower the learning rate")

    def save(self) -> None:
        """Write a checkpoint of this step."""
        self.metrics.flush()
        tensors = {name: t for group in self.groups for name, t in group.tensors.items()}
        state = {
            "step": self.step,
            "spent": vars(self.spent),
            "events": self.events,
            "hooks": {hook.name: hook.state() for hook in self.hooks},
            "plan": self.model.plan.to_json(),
            "map": self.model.attention_map.to_json(),
        }
        checkpoint = Checkpoint(tensors, optimizer_tensors(self.optimizer, self.groups), state)
        checkpoints.save_checkpoint(
            self.folder.checkpoints, self.step, checkpoint, self.config.runtime.keep_checkpoints
        )

    def resume(self) -> None:
        """Load the newest checkpoint, if there is one, and cut the log back to it."""
        found = checkpoints.load_newest(self.folder.checkpoints)
        if found is None:
            self.metrics.cut(0, [])
            return
        state = found.state
        self.step, self.events = state["step"], state["events"]
        self.spent = Spent(**state["spent"])
        self.model = self.model.with_plan(Plan.from_json(state["plan"]), AttentionMap.from_json(state["map"]))
        with torch.no_grad():
            for group in self.groups:
                for name, tensor in group.tensors.items():
                    tensor.copy_(found.model[name])
        load_optimizer_tensors(self.optimizer, self.groups, found.optimizer)
        for hook in self.hooks:
            hook.load_state(state["hooks"][hook.name], self)
        self.metrics.cut(self.step, self.events)


def weighted_loss(logits: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    """Σ weight · −log p(token | before it), in fp32. logits (B, S, V), tokens and weights (B, S)."""
    losses = token_losses(logits, tokens)
    return (losses * weights[:, 1:]).sum()


def token_losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """−log p of each token but the first, (B, S − 1), in fp32."""
    predictions = logits[:, :-1].float().flatten(0, 1)
    losses = F.cross_entropy(predictions, tokens[:, 1:].flatten(), reduction="none")
    return losses.view(len(tokens), -1)


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
