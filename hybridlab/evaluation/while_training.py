"""Measuring the model of a run between two of its steps, without an effect on its training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybridlab.config.schema import Evaluation
from hybridlab.data.batches import Windows
from hybridlab.errors import UserError
from hybridlab.evaluation.measure import at_any_step, validation
from hybridlab.evaluation.results import AtStep
from hybridlab.evaluation.text import Text
from hybridlab.models.adapters import has_adapters
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import read_model_config
from hybridlab.training.engine import Hook, Run
from hybridlab.training.machine import autocast
from hybridlab.training.store.checkpoints import copy_model, save_trained
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.world import world


@contextmanager
def as_measured(run: Run, step: int) -> Iterator[Text]:
    """A context in which `run.model` is to be measured as optimizer step `step` runs it; its time is no time of
    training. Yields the validation text, with the arguments of the forward pass."""
    with run.paused():
        context = autocast(run.device, run.precision)
        training = run.model.training
        run.model.eval()
        try:
            yield Text(run.objective, run.corpus, ("validation",), context, run.evaluation_inputs(step))
        finally:
            run.model.train(training)


# ---- measurements at several steps (`evaluation.at_steps`) ----
#     hybridlab pretrain --data recall --set evaluation.at_steps=[0,20,60]
#
# Validation loss, tasks, `evaluation.choices` and the probes of `evaluation.probes`, before the first update (0) and
# after optimizer steps, with the structure that the step was trained with. Nothing random is drawn, so training gives
# the same bits with and without it. What was measured is in the checkpoints, so that a resumed run has it too.


class AtSteps(Hook):
    """Results: step, as text → `AtStep`."""

    name = "at-steps"

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps
        self.measured: dict[str, AtStep] = {}

    def before_first_step(self, run: Run) -> None:
        over = [step for step in self.steps if step < run.step and str(step) not in self.measured]
        if over:
            left = ",".join(str(step) for step in self.steps if step >= run.step)
            raise UserError(
                f"evaluation.at_steps: step {over[0]} is over in a run that goes on after step {run.step}; write "
                f"evaluation.at_steps={f'[{left}]' if left else 'null'}"
            )
        if run.step in self.steps and str(run.step) not in self.measured:
            self._measure(run, run.step)

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        if run.step in self.steps:
            self._measure(run, step)
        return {}

    def _measure(self, run: Run, step: int) -> None:
        """Measure the model after `run.step` steps, as optimizer step `step` runs it."""
        with as_measured(run, step) as text:
            config, names = run.config, run.config.evaluation.probes or []
            inputs = {name: text.inputs.get(name) for name in ("gates", "factors")}
            probed = world().whole(run.model).with_plan(**inputs) if names else run.model
            result = AtStep(**at_any_step(run.model, config, text, names, probed))
        run.require_finite("validation loss", result.validation.loss.value, run.step)
        self.measured[str(run.step)] = result
        loss = result.validation.loss.value
        run.say(f"step {run.step}: measured, validation loss {'–' if loss is None else format(loss, '.4f')}")

    def state(self) -> dict[str, Any]:
        return {step: result.model_dump(mode="json") for step, result in self.measured.items()}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.measured = {step: AtStep(**result) for step, result in state.items() if int(step) in self.steps}

    def finish(self, run: Run) -> dict[str, Any]:
        return dict(self.measured)


# ---- the validation loss while a run trains (`evaluation.every`, `keep_best`) ----
#     hybridlab pretrain --set evaluation.every=50 --set evaluation.keep_best=true
#
# Measured on evenly spaced windows after every `every`-th step and after the last one, with the structure that the
# step was trained with. Nothing random is drawn, so training gives the same bits with and without it. A run that goes
# on from another one has the losses of that one too, if they are on the same windows of the same text.


class ValidationLog(Hook):
    """Results: steps, losses and standard errors as columns, and the lowest loss with its step."""

    name, logged = "validation-log", "validation_loss"

    def __init__(self, settings: Evaluation, steps: int) -> None:
        assert settings.every is not None
        self.every, self.windows, self.last = settings.every, settings.every_windows, steps
        self.keeps = bool(settings.keep_best)
        self.columns: dict[str, list[Any]] = {"steps": [], "loss": [], "stderr": []}
        self.kept: float | None = None
        """The loss of the weights in best/."""

    def begin(self, run: Run) -> None:
        length = run.config.training.seq_len
        for part in run.corpus.parts if run.objective.reads_text else ():
            if not len(Windows(part.corpus.validation, length)):
                raise UserError(
                    f"evaluation.every: the validation part of {part.corpus.meta['source']} has no {length} tokens in "
                    "a row; give more text, or leave evaluation.every out"
                )

    def logs(self, step: int) -> bool:
        return (step + 1) % self.every == 0 or step + 1 == self.last

    def after_step(self, run: Run, step: int) -> dict[str, float]:
        if not self.logs(step):
            return {}
        with as_measured(run, step) as text:
            result = validation(run.model, run.config, text, most_windows=self.windows)
            loss = result.loss
            assert loss.value is not None, "there is a window, see `begin`"
            run.require_finite("validation loss", loss.value, step + 1)
            before = self.columns["loss"]
            lowest = not before or loss.value < min(before)
            for column, value in zip(self.columns.values(), (step + 1, loss.value, loss.stderr), strict=True):
                column.append(value)
            if self.keeps and (self.kept is None or loss.value < self.kept):
                self.kept = loss.value
                factors = text.inputs.get("factors", run.model.factors)
                model = Transformer.without_weights(run.model.structure, factors=factors)
                facts = {"step": step + 1, "validation_loss": loss.value}
                gathered = world().whole(run.model) if has_adapters(run.model) else run.model
                with world().collected(dict(gathered.named_parameters()), run.folder.part_of("weights")) as weights:
                    world().once(save_trained, run.folder.best, model, weights, run.config, run.corpus, **facts)
        error = "–" if loss.stderr is None else f"{loss.stderr:.4f}"
        run.say(f"step {step + 1}: validation loss {loss.value:.4f} ± {error}{' (lowest so far)' if lowest else ''}")
        numbers = {"validation_loss": loss.value, "validation_loss_stderr": loss.stderr}
        numbers |= {f"validation_loss/{name}": source.loss.value for name, source in result.sources.items()}
        return {name: value for name, value in numbers.items() if value is not None}

    def state(self) -> dict[str, Any]:
        return {**self.columns, "kept": self.kept}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        self.columns = {name: list(state[name]) for name in self.columns}
        self.kept = state["kept"]

    def extend(self, run: Run, shorter: RunFolder) -> None:
        if self.keeps and shorter.best.is_dir():
            world().once(copy_model, run.folder.best, shorter.best)
        else:
            self.kept = None

    def branch(self, run: Run, other: RunFolder) -> None:
        exists = other.best.is_dir() and read_model_config(other.best).lineage.get("step", math.inf) <= run.step
        if self.keeps and self.kept is not None and exists:
            world().once(copy_model, run.folder.best, other.best)
        else:
            self.kept = None

    def finish(self, run: Run) -> dict[str, Any]:
        steps, losses = self.columns["steps"], self.columns["loss"]
        return self.columns | {"best_step": steps[losses.index(min(losses))], "best_loss": min(losses)}
