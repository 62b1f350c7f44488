"""Measurements at several steps of one run (`evaluation.at_steps`), in the record as `results.at`.

    hybridlab pretrain --data recall --set evaluation.at_steps=[0,20,60]

Validation loss, tasks, `evaluation.choices` and the probes of `evaluation.probes`, before the first update (0) and
after optimizer steps, with the structure that the step was trained with. Nothing random is drawn, so training gives the
same bits with and without it. What was measured is in the checkpoints, so that a resumed run has it too.
"""

from __future__ import annotations

from typing import Any

from hybridlab.analysis.probe import probe_results
from hybridlab.errors import UserError
from hybridlab.evaluation.choices import choice_results
from hybridlab.evaluation.finetuned import finetune_result
from hybridlab.evaluation.measure import task_results, validation
from hybridlab.evaluation.results import AtStep
from hybridlab.evaluation.while_training import as_measured
from hybridlab.training.hooks import Hook, TrainingRun


class AtSteps(Hook):
    """Results: step, as text → `AtStep`."""

    name = "at-steps"

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps
        self.measured: dict[str, AtStep] = {}

    def before_first_step(self, run: TrainingRun) -> None:
        over = [step for step in self.steps if step < run.step and str(step) not in self.measured]
        if over:
            left = ",".join(str(step) for step in self.steps if step >= run.step)
            raise UserError(
                f"evaluation.at_steps: step {over[0]} is over in a run that goes on after step {run.step}; write "
                f"evaluation.at_steps={f'[{left}]' if left else 'null'}"
            )
        if run.step in self.steps and str(run.step) not in self.measured:
            self._measure(run, run.step)

    def after_step(self, run: TrainingRun, step: int) -> dict[str, float]:
        if run.step in self.steps:
            self._measure(run, step)
        return {}

    def _measure(self, run: TrainingRun, step: int) -> None:
        """Measure the model after `run.step` steps, as optimizer step `step` runs it."""
        with as_measured(run, step) as text:
            config, seen = run.config, run.model.with_plan(**{n: text.inputs.get(n) for n in ("gates", "factors")})
            result = AtStep(
                validation=validation(run.model, config, text),
                tasks=task_results(run.model, config, run.corpus, text),
                choices=choice_results(run.model, config, run.corpus, text.context, text.inputs, run.say),
                probes={
                    probe: probe_results(probe, seen, run.corpus, config) for probe in config.evaluation.probes or []
                },
                finetune=finetune_result(run.model, text),
            )
        self.measured[str(run.step)] = result
        loss = result.validation.loss.value
        run.say(f"step {run.step}: measured, validation loss {'–' if loss is None else format(loss, '.4f')}")

    def state(self) -> dict[str, Any]:
        return {step: result.model_dump(mode="json") for step, result in self.measured.items()}

    def load_state(self, state: dict[str, Any], run: TrainingRun) -> None:
        self.measured = {step: AtStep(**result) for step, result in state.items() if int(step) in self.steps}

    def finish(self, run: TrainingRun) -> dict[str, Any]:
        return dict(self.measured)
