"""The training loop, the same for all methods: they act on it through hooks (`Hook`).

    hybridlab pretrain --arch vanilla --size tiny --data embedded --steps 100 --run-dir runs/first

The size of the micro-batches affects only memory, and so does the number of processes that share a batch
(training/world.py): the loss is divided by the sum of weights of the whole batch. Data and all random draws are
functions of (seed, step), so a run that was killed continues from its newest checkpoint and ends with the same bits (on
a CPU, with the same number of threads).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hybridlab.attention.mistakes import explained
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.errors import Diverged, Interrupted, RunFailed, UserError
from hybridlab.messages import say
from hybridlab.models.adapters import adapt
from hybridlab.models.decoder import Factors, Output, Transformer
from hybridlab.models.export import factors_to_json, size_of
from hybridlab.models.ledger.flops import convention_of
from hybridlab.models.ledger.summary import sequence_flops
from hybridlab.models.loss import LARGE_VOCABULARY
from hybridlab.plan.structure import Structure
from hybridlab.training.checked import Checked, checked, inputs_of
from hybridlab.training.machine import Speed, autocast, dtype_of, give_back_freed_memory, pick_recompute
from hybridlab.training.objective import Batch, Objective, RowSource
from hybridlab.training.optimizer import Group, Optimizers, model_groups
from hybridlab.training.progress import Progress, event_line
from hybridlab.training.stopping import StopRequest
from hybridlab.training.store import checkpoints
from hybridlab.training.store.checkpoints import Checkpoint
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.metrics import EVENT, OF_A_STEP, SO_FAR, MetricsLog
from hybridlab.training.world import world

STATE_FORMAT = 2
"""Format of a checkpoint's state.json. 2: the structure is one object."""


@dataclass
class Spent:
    """What a run has used so far. Steps that were repeated after a kill count once."""

    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0


class Hook:
    """Base class of hooks, by which a method acts on a run while it trains; does nothing. A subclass overrides the
    methods that it needs, which the engine calls in the order below. Where one returns nothing (None), that is what the
    base class returns; anything else is checked (training/checked.py).

    A controller changes the model's structure through `Run.change_structure`, which records the event and rebuilds the
    model. All random draws of a hook are functions of (seed, step), so that a resumed run draws the same numbers.
    Several processes may train a run together (training/world.py). Each calls every hook, with its part of the batch: a
    hook that decides by a statistic of the outputs decides by `world().sum` of it, and writes files by `world().once`.

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

    def begin(self, run: Run) -> None:
        """Called once before the first step of this process: create tensors, read the configuration."""

    def before_first_step(self, run: Run) -> None:
        """Called once in every process before the first step that it does, after `begin` and `load_state`; `run.step`
        is the number of steps done."""

    def parameter_groups(self) -> list[Group]:
        """Optimizer groups of the hook. Their tensors are saved in checkpoints, but are no part of the model, and have
        other names than those of the model."""
        return []

    def forward_inputs(self, step: int) -> dict[str, Any]:
        """Further arguments of the model's forward pass, which neither the rows nor another hook gives; called for each
        micro-batch of the step."""
        return {}

    def after_forward(self, step: int, output: Output, share: float) -> Tensor | None:
        """Called after the forward pass of a micro-batch. share: its share of all rows of the step. With a vocabulary
        of 32,768 or more the output has the loss and no logits, see models/loss.py.

        Returns a term that depends on this output and is added to its loss, a tensor of one number with a gradient, or
        None. A mean over rows must be
        multiplied by `share`, so that the size of micro-batches does not matter.
        """
        return None

    def penalty(self, step: int) -> Tensor | None:
        """A term that is added to the loss once per optimizer step: a tensor of one number with a gradient, or None."""
        return None

    def after_step(self, run: Run, step: int) -> Mapping[str, float | Tensor]:
        """Called after optimizer step `step` (0-based; `run.step` is step + 1). Returns numbers for the log, by names
        that neither the run (`TAKEN` in training/store/metrics.py) nor another hook logs; each is finite. A tensor
        waits on its device until the log is written, so that no step has to."""
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

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        """Restore what `state` returned; the run's model already has the structure of that step."""

    def extend(self, run: Run, shorter: RunFolder) -> None:
        """Called after `load_state` when the run goes on from the end of a shorter one, whose folder this is: do what
        that run left out because the step was its last."""

    def branch(self, run: Run, other: RunFolder) -> None:
        """Called after `load_state` when the run goes on from a middle step of another one, whose folder this is: what
        is in that folder may be of later steps. A hook with other settings begins anew instead, without its state."""

    def finish(self, run: Run) -> dict[str, Any]:
        """Called after the last step, for final changes of structure. Returns results for the record.

        Sentences in a list `warnings` among the results are also said on the terminal, now and at every repeat of the
        command.
        """
        return {}


@dataclass(frozen=True)
class Beginning:
    """The place in another run from which a run goes on with all its state. step: steps done there. checkpoint: of that
    step; None if the run has checkpoints of its own. branch: it is a middle step, after which that run went on itself.
    fresh: the hooks, by name, that begin anew. own_structure: go on with the structure of the own settings."""

    folder: RunFolder
    step: int
    checkpoint: Checkpoint | None
    branch: bool = False
    fresh: frozenset[str] = frozenset()
    own_structure: bool = False


@dataclass(frozen=True)
class Job:
    """A run that can start, with everything that it needs, found, opened and checked; runs/link.py makes it from
    settings. config: its settings, as they are hashed. digest: their hash. model: of the first step, without weights;
    fill: gives such a model its weights. begins: the place in another run from which it goes on. facts: what run.json
    keeps from the first start on."""

    config: RunConfig
    digest: str
    folder: RunFolder
    model: Transformer
    fill: Callable[[Transformer], None]
    corpus: Corpus
    objective: Objective
    source: RowSource
    hooks: list[Hook]
    device: torch.device
    begins: Beginning | None
    facts: dict[str, Any]


class Run:
    """A run in progress; hooks read and change it.

    model: at first with the initial weights; `initial` is the structure before the first step. step: number of
    optimizer steps done. precision: fp32, bf16 or fp64. last: the numbers of the last step by name; those of hooks are
    added one hook after another. kernels: those of each softmax in the steps done. source: the rows of the training
    steps.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.config, self.folder, self.corpus = job, job.config, job.folder, job.corpus
        self.hooks: list[Hook] = [checked(hook) for hook in job.hooks]
        self.objective, self.device = job.objective, job.device
        self.precision: str = job.facts["precision"]
        self.initial = job.model.structure
        self._place(self._new_model(self.initial, job.model.kernel))
        job.fill(self.model)
        self.source = job.source
        self.step, self.spent = 0, Spent()
        self.events: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        self.kernels: dict[str, list[str]] = {}
        for hook in self.hooks:
            hook.begin(self)
        self._optimize({}, {})
        self.metrics = MetricsLog(self.folder.path / "metrics.jsonl")
        self._pauses = 0.0
        self._unchecked: list[tuple[int, dict[str, Tensor]]] = []
        self._terms: dict[str, Tensor] = {}
        self._whose: dict[str, tuple[str, str]] = {}
        """Name of a number of a hook of the user's → where the method stands that returns it, and as what."""
        self._noted: Transformer | None = None

    # ---- structure ----

    def _new_model(self, structure: Structure, kernel: str, factors: Factors | None = None) -> Transformer:
        """A model without weights, with the adapters that the settings ask for."""
        model = Transformer.without_weights(structure, kernel, factors)
        if self.config.lora is not None:
            adapt(model, self.config.lora, head=not structure.shape.gives_tokens)
        return model

    def _place(self, model: Transformer) -> None:
        """Take a model without weights as that of the run, and make room for the weights, which are arbitrary then. The
        ranks share it before, so that none of them needs room for all of it."""
        settings, compiled, training = self.config.runtime, self.job.facts["compile"], self.config.training
        tokens = min(settings.micro_batch_rows or training.rows, training.rows // world().size) * training.seq_len
        model.recompute = pick_recompute(settings, self.device, compiled, tokens, model.shape.width)
        model.compiled = compiled
        self.model = model.to(dtype_of(self.precision))
        world().shard(self.model, self.device, settings, self.precision)
        self.model.make_room(self.device)

    def _optimize(self, tensors: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Make the optimizer of the model and the hooks; see `rebuild`."""
        self.groups = model_groups(self.model, self.config.training.optimizer)
        for group in _groups_of(self.hooks):
            self.groups.append(group)
            with torch.no_grad():
                for name, tensor in group.tensors.items():
                    tensor.copy_(tensors.get(name, tensor))
        self.optimizer = Optimizers(self.groups)
        self.optimizer.load(optimizer)

    def rebuild(
        self,
        structure: Structure,
        tensors: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        factors: Factors | None = None,
    ) -> None:
        """Make model and optimizer for a structure: on resume and at every change of structure.

        tensors: the model's parameters and the hooks' tensors by name; tensors of hooks that are missing keep their
        values. optimizer: the optimizer's state, as `Optimizers.tensors` gives it; tensors without an entry start
        without moments. factors: see `Transformer`.
        """
        tensors, optimizer = world().gather(tensors), world().gather(optimizer)
        # What is not given on is freed before the new model takes its room.
        self.optimizer.clear()
        model = self._new_model(structure, self.model.kernel, factors)
        model.require(tensors)
        self._place(model)
        self.model.put((name, tensors[name]) for name, _ in self.model.named_parameters())
        self._optimize(tensors, optimizer)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name: those of the model, of which adapters train none but their own, and those of hooks."""
        trained = {name: tensor for group in self.groups for name, tensor in group.tensors.items()}
        return {**dict(self.model.named_parameters()), **trained}

    def change_structure(
        self,
        kind: str,
        structure: Structure,
        tensors: Mapping[str, Tensor] | None = None,
        optimizer: Mapping[str, Tensor] | None = None,
        factors: Factors | None = None,
        **details: Any,
    ) -> None:
        """Continue with another structure from the next step on, and write an event of this kind to log and record.

        tensors, optimizer: see `rebuild`; by default the current ones. details: further fields of the event, as JSON.
        Diverged if the last loss is not finite; RunFailed if the processes of the run ask for different structures.
        """
        self._require_finite()
        if world().agree(world().once(lambda: structure) != structure):
            raise RunFailed(f"{self.folder.path}: {kind} after step {self.step} is not the same in all processes")
        before = self.model.structure
        changed = {"plan": (before.plan, structure.plan), "map": (before.map, structure.map)}
        event = {"step": self.step, "kind": kind, **details}
        event |= {f"{part}_before": str(old) for part, (old, new) in changed.items() if old != new}
        event |= {f"{part}_after": str(new) for part, (old, new) in changed.items() if old != new}
        self.events.append(event)
        world().once(self.metrics.write, {EVENT: event})
        say(event_line(event))
        optimizer = self.optimizer.tensors() if optimizer is None else optimizer
        tensors = self.tensors() if tensors is None else tensors
        if world().divides(tensors.values()):
            needed = (size_of(tensors) + size_of(optimizer)) / 1e9
            say(f"for this change each rank takes all weights and moments: {needed:,.3g} GB")
        self.rebuild(structure, tensors, optimizer, factors)

    # ---- the loop ----

    def train(self, progress: Progress) -> dict[str, Any]:
        """Do all remaining steps, after `resume`; returns the hooks' results by name.

        Diverged if the loss, or a number of the log, is not finite. Interrupted after Ctrl-C or SIGTERM, once a
        checkpoint is written.
        """
        settings, runtime = self.config.training, self.config.runtime
        pace = checkpoints.Pace(runtime.checkpoint_seconds)
        speed = Speed(self.device, runtime.peak_flops, self.spent.tokens, self.spent.flops)
        started = time.monotonic()
        for hook in self.hooks:
            hook.before_first_step(self)
        with StopRequest() as stop:
            while self.step < settings.steps:
                numbers = self.take_step()
                self.spent.seconds += time.monotonic() - started - self._pauses
                speed.pause(self._pauses)
                started, self._pauses = time.monotonic(), 0.0
                last = self.step == settings.steps
                logged = last or self.step % runtime.log_every == 0
                if logged or any(hook.logs(self.step - 1) for hook in self.hooks):
                    self._log(numbers, progress, speed)
                stopped = world().agree(stop.requested or 0)
                kept = last or self.step % runtime.checkpoint_every == 0 or self.step in runtime.keep_steps
                if kept or stopped or world().agree(pace.due()):
                    self._require_finite()
                    with pace.saving():
                        self.save()
                    stopped = world().agree(stop.requested or 0)
                if stopped:
                    raise Interrupted(f"{self.folder.path}: stopped after step {self.step}", stopped)
        return {hook.name: hook.finish(self) for hook in self.hooks}

    def take_step(self) -> dict[str, Any]:
        """One optimizer step: gradients of the whole batch, penalties once, clipping, update."""
        settings, step = self.config.training, self.step
        self.optimizer.set_learning_rates(settings.schedule, step, settings.steps)
        batch = self.objective.batch(self.source.rows(step, world().part), settings.seed, step)
        loss = self._gradients(batch, step)
        for hook in self.hooks:
            penalty = hook.penalty(step)
            if penalty is not None:
                self._note_term(hook, "penalty", penalty)
                penalty.backward()
        clipped = [t for group in self.groups if group.clipped for t in group.tensors.values()]
        norm = world().clip(clipped, settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        # Counted before the hooks run, because a structure that they change is used from the next step on.
        self.spent.tokens += settings.tokens_per_step
        with explained(self.model.attention_map.each_kind()):
            convention = convention_of(self.model.kernel, self.device, self.precision == "bf16")
            self.spent.flops += sequence_flops(self.config, self.model.structure, convention) * settings.rows
        self.step += 1
        # A term of a hook that is not finite makes the gradients so, and is named before them.
        self._unchecked.append((self.step, {"loss": loss, **self._terms, "gradient_norm": norm}))
        self._terms = {}
        rate = self.optimizer.param_groups[0]["lr"]
        numbers: dict[str, Any] = dict(zip(OF_A_STEP, (loss, norm, rate), strict=True))
        self.last = numbers
        for hook in self.hooks:
            own = hook.after_step(self, step)
            if isinstance(hook, Checked):
                self._whose |= {name: (hook.place("after_step"), f" as {name!r}") for name in own}
            numbers |= own
        return numbers

    def _note_term(self, hook: Hook, method: str, term: Tensor) -> None:
        """Keep what a hook of the user's adds to the loss, to name it if it is not finite."""
        if isinstance(hook, Checked):
            name, value = f"{hook.name}.{method}", term.detach()
            value = value.to_local() if hasattr(value, "to_local") else value
            self._terms[name] = self._terms.get(name, 0) + value
            self._whose[name] = (hook.place(method), "")

    def _gradients(self, batch: Batch, step: int) -> Tensor:
        """Accumulate the gradients of the mean loss of the whole batch, of which this is the part of one process;
        returns that loss. UserError if a process would have no row."""
        self._note_kernels()
        own = torch.tensor([float(batch.weights.sum()), len(batch)], dtype=torch.float64)
        total, examples = world().sum(own).tolist()
        if examples < world().size:
            raise UserError(f"{world().size} processes share a batch of {int(examples)} rows; use fewer processes")
        loss = torch.zeros((), device=self.device)
        parts = batch.parts(self.config.runtime.micro_batch_rows)
        most = world().agree(len(parts))
        # Every rank does as many passes, because a pass may need all of them.
        parts = batch.parts(self.config.runtime.micro_batch_rows, most) if most > len(parts) else parts
        if world().agree(most > len(parts)):
            raise UserError(
                f"runtime.micro_batch_rows: {examples:g} rows cannot be divided into as many parts on each of "
                f"{world().size} ranks; use 2 or more, or ranks that divide the rows of a step"
            )
        for number, part in enumerate(parts, 1):
            world().sum_gradients_in(self.model, last=number == len(parts))
            self.model.check_inputs(part.inputs)  # here, where no device has to be asked
            part = part.to(self.device)
            inputs = inputs_of(self.hooks, step, part.inputs) | {"checked": part.inputs.keys()}
            if self.model.shape.vocab >= LARGE_VOCABULARY:
                inputs["targets"] = self.objective.targets(part)
            with autocast(self.device, self.precision), explained(self.model.attention_map.each_kind()):
                output = self.model(**inputs)
            terms = [hook.after_forward(step, output, len(part) / examples) for hook in self.hooks]
            share = self.objective.loss(output, part) / total
            del output  # with its logits, of which the backward pass needs none
            penalized = share
            for hook, term in zip(self.hooks, terms, strict=True):
                if term is not None:
                    self._note_term(hook, "after_forward", term)
                    penalized = penalized + term
            penalized.backward()
            loss += share.detach()
        for group in _groups_of(self.hooks):
            for tensor in group.tensors.values():
                if tensor.grad is not None:
                    tensor.grad = world().sum(tensor.grad)
        return world().sum(loss)

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        """The arguments of the forward pass, from all hooks, to measure the model as optimizer step `step` runs it."""
        return inputs_of(self.hooks, step, {}, "evaluation_inputs")

    def say(self, text: str) -> None:
        """Show a line on the terminal."""
        say(text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context for a measurement, whose time does not count as time of training."""
        if self.device.type == "cuda":
            # Steps that the GPU has not finished yet are time of training.
            torch.cuda.synchronize(self.device)
        started = time.monotonic()
        give_back_freed_memory()
        try:
            yield
        finally:
            self._pauses += time.monotonic() - started

    def _note_kernels(self) -> None:
        """Note which kernels compute the steps, once for each structure; see `Transformer.kernels_used`."""
        if self._noted is not self.model:
            self._noted = self.model
            setting = (self.config.training.seq_len, self.device, self.precision == "bf16")
            with explained(self.model.attention_map.each_kind()):
                used = self.model.kernels_used(*setting)
            for softmax, names in used.items():
                self.kernels[softmax] = sorted({*self.kernels.get(softmax, ()), *names})

    # ---- log and state ----

    def _log(self, numbers: dict[str, Any], progress: Progress, speed: Speed) -> None:
        """Write a line of metrics.jsonl and update the progress bar. Diverged if a number of it is not finite."""
        self._require_finite()
        line = {name: float(value) for name, value in numbers.items()}
        for name, value in line.items():
            self.require_finite(name, value, self.step)
        spent = dict(zip(SO_FAR, (self.step, self.spent.tokens, self.spent.flops), strict=True))
        measured = speed.measure(self.spent.tokens, self.spent.flops)
        world().once(self.metrics.write, {**spent, **line, **measured})
        progress.update(self.step, line["loss"], measured["mfu"])

    def _require_finite(self) -> None:
        """Diverged if the loss or the gradient norm of a step since the last call is not a finite number."""
        rows = self.config.training.rows
        for step, numbers in self._unchecked:
            for name, value in numbers.items():
                where = f"{step}, which read the rows {(step - 1) * rows:,} to {step * rows - 1:,} of the run"
                self.require_finite(name, float(value), where)
        self._unchecked.clear()

    def require_finite(self, name: str, value: float | None, step: object) -> None:
        """Diverged if a number of a step is not finite; RunFailed for one that a hook of the user's returned."""
        if value is None or math.isfinite(value):
            return
        if name in self._whose:
            place, as_what = self._whose[name]
            problem = f"{place} returned {value}{as_what} at step {step}"
            raise RunFailed(f"{self.folder.path}: {problem}; it must be finite, or left out of what the hook returns")
        problem = f"the {name.replace('_', ' ')} is {value} at step {step}"
        raise Diverged(f"{self.folder.path}: {problem}; lower the learning rate")

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        state = {
            "format": STATE_FORMAT,
            "step": self.step,
            "spent": vars(self.spent),
            "events": self.events,
            "kernels": self.kernels,
            "hooks": {hook.name: hook.state() for hook in self.hooks},
            "structure": self.model.structure.to_json(),
            "factors": factors_to_json(self.evaluation_inputs(self.step).get("factors", {})),
        }
        world().once(self.metrics.flush)
        settings, entries = self.config.runtime, self.optimizer.tensors()
        with (
            world().collected(self.tensors(), self.folder.part_of("weights")) as tensors,
            world().collected(entries, self.folder.part_of("optimizer")) as moments,
        ):
            world().once(
                checkpoints.save_checkpoint,
                self.folder.checkpoints,
                self.step,
                tensors,
                moments,
                state,
                settings.keep_checkpoints,
                settings.keep_steps,
            )

    def resume(self) -> None:
        """Load the newest checkpoint and remove later lines from the log. Without a checkpoint, go to the beginning."""
        checkpoint = checkpoints.load_newest(self.folder.checkpoints)
        begins = self.job.begins if checkpoint is None else None
        if begins is not None:
            checkpoint = begins.checkpoint
            others = tuple(hook.logged for hook in self.hooks if hook.logged and hook.name in begins.fresh)
            log = begins.folder.path / "metrics.jsonl"
            world().once(self.metrics.begin_with, log, begins.step, without=others)
        if checkpoint is None:
            world().once(self.metrics.cut, 0, [])
            return
        state = checkpoint.state
        if state.get("format") != STATE_FORMAT:
            raise UserError(
                f"{self.folder.path}: its checkpoints were written by another version of hybridlab; "
                "finish the run with that version, or remove the folder and train again"
            )
        self.step, self.events = state["step"], state["events"]
        self.spent, self.kernels = Spent(**state["spent"]), state.get("kernels", {})
        # Where a run goes on from another, it may measure more than that one did, and a branch may do something else.
        new = [hook for hook in self.hooks if begins and (hook.name in begins.fresh or hook.name not in state["hooks"])]
        known = [hook for hook in self.hooks if hook not in new]
        own = {name for group in _groups_of(new) for name in group.tensors}
        tensors = {name: tensor for name, tensor in checkpoint.model.items() if name not in own}
        moments = {name: tensor for name, tensor in checkpoint.optimizer.items() if name.rpartition("/")[0] not in own}
        self.rebuild(Structure.from_json(state["structure"]), tensors, moments)
        for hook in known:
            hook.load_state(state["hooks"][hook.name], self)
        world().once(self.metrics.cut, self.step, self.events)
        if begins is None:
            return
        if begins.own_structure:
            # The layers are the same ones, and so is where they come from.
            structure = replace(self.initial, lineage=self.model.structure.lineage)
            if structure != self.model.structure:
                self.change_structure("branched", structure, {**tensors, **self.tensors()})
        for hook in known:
            if begins.branch:
                hook.branch(self, begins.folder)
            else:
                hook.extend(self, begins.folder)


def _groups_of(hooks: Iterable[Hook]) -> list[Group]:
    return [group for hook in hooks for group in hook.parameter_groups()]


_DIGITS = 5
"""Significant digits: a loss of 3.8437, within the noise of a batch, in nine bytes of the record."""


class EachStep(Hook):
    """Logged numbers of every step in the record (`observe.each_step`), for curves that are compared step by step: a
    record's history has at most 200 steps, and how often a line is logged may change when a run is resumed.

    Results: first, the first step; and name → the number of every step from there on.
    """

    name = "each-step"

    def __init__(self, names: list[str]) -> None:
        self.first = 1
        self.columns: dict[str, list[float]] = {name: [] for name in names}
        self.pending: tuple[Run, int, dict[str, Any]] | None = None
        """The last step, whose numbers later hooks complete."""

    def before_first_step(self, run: Run) -> None:
        if not any(self.columns.values()):
            self.first = run.step + 1

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        self.state()
        self.pending = (run, step + 1, run.last)
        return {}

    def state(self) -> dict[str, Any]:
        if self.pending is not None:
            (run, step, numbers), self.pending = self.pending, None
            if missing := [name for name in self.columns if name not in numbers]:
                known = ", ".join(numbers)
                raise UserError(f"observe.each_step: not every step has a number {missing[0]!r}; use some of {known}")
            for name, column in self.columns.items():
                value = float(numbers[name])
                run.require_finite(name, value, step)
                column.append(float(f"{value:.{_DIGITS}g}"))
        return {"first": self.first, **self.columns}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.first, self.columns = state["first"], {name: list(state[name]) for name in self.columns}

    def finish(self, run: Run) -> dict[str, Any]:
        return self.state()
