"""The setting `init`: the run that another one starts from, and what of it."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from hybridlab.config.types import Misfit, PositiveInt, RunName, Strict


class InitFrom(Strict):
    """Start from the final weights of another run, given by its hash, with a new optimizer state."""

    run: RunName
    """Hash of the run, or hf-… for a folder in the Hugging Face layout; `--from` sets it."""
    load: Literal["best", "all"] | None = None
    """best: the weights of its lowest validation loss instead (evaluation.keep_best). all: go on where it ended, with
    its optimizer, steps and log; all settings but the steps are the same (`pretrain --extend`)."""
    step: PositiveInt | None = None
    """With load: all, go on after this step of it instead (`--from RUN@STEP`), from a checkpoint that it has kept
    (runtime.keep_steps). Then plan, map, controller, hooks, data and what is measured may differ; steps are counted
    from its first one."""

    @model_validator(mode="after")
    def _step_with_all(self) -> InitFrom:
        if self.step is not None and self.load != "all":
            raise Misfit(
                f"step {self.step} needs `load: all`, the optimizer's state too; add it, or leave the step out",
                "step",
                "load",
            )
        return self

    @property
    def whole(self) -> bool:
        """Whether the optimizer, the steps and the log of the other run go on too."""
        return self.load == "all"
