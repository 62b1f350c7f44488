"""The settings `evaluation`: what is measured at the end of a run, and while it trains."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from hybridlab.config.loading import preset_names
from hybridlab.config.types import NonNegativeInt, OrNone, PositiveInt, Seed, Strict, name_in
from hybridlab.errors import nearest
from hybridlab.registry import CHOICES, PROBES

Probe = Annotated[str, name_in(PROBES, "probe")]
Primitive = Annotated[str, name_in(CHOICES, "primitive")]


class Choices(Strict):
    """Questions with options, answered by log-likelihood; see data/primitives.py."""

    tasks: Annotated[list[Primitive], Field(min_length=1)]
    """Kinds of questions: copying-random, copying-real, assignment-basic, assignment-math, assignment-code."""
    items: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Questions of each kind."""
    shots: Annotated[int, Field(ge=0, le=100)] = 5
    """Solved examples before each question, the same ones for all of a kind."""
    seed: Seed = 0
    """Seed of questions and examples; it is not the seed of training, so that all runs are asked the same."""

    @field_validator("tasks")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("tasks names a kind of question twice")
        return value


def _known_suite(name: str) -> str:
    names = preset_names("suites")
    if name not in names:
        raise ValueError(f"suite {name!r} is unknown; {nearest(name, names)}")
    return name


class Benchmarks(Strict):
    """Tasks of lm-eval, or a paper's suite; their files are looked for below the data root (`--data-root`)."""

    tasks: Annotated[list[str], Field(min_length=1)] | None = None
    """Names of lm-eval's tasks, such as arc_easy, piqa, mmlu."""
    suite: Annotated[str, AfterValidator(_known_suite)] | None = None
    """Instead, the tasks of a paper with their solved examples: sgt, spiral, consa, depth or saobp."""
    shots: NonNegativeInt | None = None
    """Solved examples before each question of `tasks`. Default: each task's own number, mostly 0."""
    limit: PositiveInt | None = None
    """Ask only so many questions of each task, the first ones. Default: all."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Tokens of a row at most; longer ones lose their beginning. Default: the length of a training sequence."""

    @model_validator(mode="after")
    def _either(self) -> Benchmarks:
        if (self.tasks is None) == (self.suite is None):
            raise ValueError("benchmarks needs either tasks or suite")
        if self.suite is not None and self.shots is not None:
            raise ValueError("shots has no effect on a suite, which has its own; leave it out")
        return self


class Evaluation(Strict):
    """Measurements at the end of a run and, with `every`, while it trains."""

    validation_windows: PositiveInt = 320
    """Number of validation sequences for the loss."""
    validation_tokens: Annotated[PositiveInt | None, Field(exclude=True)] = None
    """Instead of validation_windows: the number of tokens in these sequences, rounded down to whole sequences, of which
    there is at least one. The stored configuration contains only validation_windows."""
    every: PositiveInt | None = None
    """Interval, in steps, at which the validation loss is also measured during training; and after the last step."""
    every_windows: PositiveInt | None = None
    """Windows of text of these measurements. Default: validation_windows."""
    keep_best: Annotated[bool | None, OrNone] = None
    """Keep the weights of the lowest of these validation losses in the run folder, as `best/`."""
    at_steps: list[NonNegativeInt] | None = None
    """Steps at which validation loss, tasks and probes are also measured, as at the end; 0 is before the first
    update. They are in the record as `results.at`."""
    task_rows: PositiveInt = 384
    """Number of rows for each synthetic task."""
    task_window: PositiveInt | None = None
    """The window w that divides the answers of tasks into inside and outside. Default: the window of the map."""
    length_factors: list[Annotated[int, Field(ge=1, le=64)]] | None = None
    """Also measure the validation loss at these multiples of the training length, with unchanged positions (SGT,
    table 4)."""
    choices: Choices | None = None
    """Questions with options that are asked at the end, and at the steps of at_steps. Default: none."""
    benchmarks: Benchmarks | None = None
    """Benchmarks that are asked at the end; one whose files are not at hand is not measured, and the record says why.
    `hybridlab eval RUN --tasks` measures them on finished runs. Default: none."""
    probes: list[Probe] | None = None
    """Analyses of the final model that are stored in the record; `hybridlab analyze` runs them on finished runs."""
    final_probes: list[Probe] | None = None
    """Further analyses of the final model, which are not repeated at the steps of at_steps."""
    probe_settings: dict[str, dict[str, Any]] | None = None
    """Settings of these probes by name, those of `hybridlab analyze`: {interventions: {items: 200}}. Default: each
    probe's own."""

    @property
    def all_probes(self) -> list[str]:
        """Names of the analyses of the final model."""
        return list(dict.fromkeys([*(self.probes or []), *(self.final_probes or [])]))

    @field_validator("at_steps")
    @classmethod
    def _in_order(cls, value: list[int] | None) -> list[int] | None:
        """Each step once, so that the same steps give the same hash; None for no steps."""
        return sorted(set(value or [])) or None

    @model_validator(mode="after")
    def _during_training(self) -> Evaluation:
        for name in ("every_windows", "keep_best"):
            if getattr(self, name) is not None and self.every is None:
                raise ValueError(f"{name} has no effect without `every`, the steps between two measurements; set both")
        return self

    @model_validator(mode="after")
    def _settings_of_probes(self) -> Evaluation:
        for name in self.probe_settings or {}:
            if name not in self.all_probes:
                raise ValueError(f"probe_settings names {name!r}, which is not in `probes`; add it there")
        return self
