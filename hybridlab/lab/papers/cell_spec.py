"""A cell of an experiment file: a run, or a study of a model that is there already."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pydantic import field_validator, model_validator

from hybridlab.config.study import FILE
from hybridlab.config.types import Strict

CELL = "cell:"
"""Before the name of a cell whose run, or study, is meant."""


def texts_in(values: Any) -> list[str]:
    """All texts in nested values in their order, without the names of their parts."""
    texts, waiting = list[str](), [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            waiting += reversed(value.values() if isinstance(value, dict) else value)
    return texts


class CellSpec(Strict):
    """A run behind a row, or with `model` a study of a model that is there already: hub:OWNER/NAME, or `cell:NAME` for
    the final model of that cell's run. `start`: the cell whose final weights it starts from, or, as
    `file:PATH@DIGEST`, a pretrained model that is there already: the digest, as in its runs' `init`, is known without
    the file, and another file is refused. `masks`: the cell whose
    masks it uses. `group`: which of a scale's sizes it has. In `config`, `cell:NAME` stands for the hash of that cell's
    run; of a study it has the settings in config/study.py. `settings`: all settings of a run, as its record has them
    under `config`, instead of the presets of arch, size and data; a seed of a draw that is null in it follows the
    seed of the run."""

    arch: str | None = None
    settings: dict[str, Any] | None = None
    model: str | None = None
    phase: str
    group: str | None = None
    start: str | None = None
    masks: str | None = None
    config: dict[str, Any] = {}

    @model_validator(mode="after")
    def _run_or_study(self) -> CellSpec:
        if [self.arch, self.settings, self.model].count(None) != 2:
            raise ValueError("a cell needs either arch or settings, for a run, or model, for a study of a model")
        if self.settings is not None and not {"arch", "size"} <= self.settings.keys():
            raise ValueError("settings are all of a run, its arch and size among them; write some of them under config")
        for name in ("start", "masks"):
            if self.model is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} has no effect on a study, which trains nothing; leave it out")
        return self

    @field_validator("start")
    @classmethod
    def _names_its_file(cls, start: str | None) -> str | None:
        if start is not None and start.startswith(FILE) and "@" not in start:
            raise ValueError(f"{start} says not which file is meant; write file:PATH@DIGEST, with the digest hf-…")
        return start

    @property
    def pretrained(self) -> tuple[str, str] | None:
        """The digest and the path of the pretrained model that it starts from; None for any other start."""
        if self.start is None or not self.start.startswith(FILE):
            return None
        path, _, digest = self.start.removeprefix(FILE).rpartition("@")
        return digest, path

    @cached_property
    def parents(self) -> list[str]:
        """The cells whose runs must finish before this one starts."""
        start = None if self.start is None or self.start.startswith(FILE) else self.start
        texts = [self.model or "", *texts_in(self.config)]
        cells = [text.removeprefix(CELL) for text in texts if text.startswith(CELL)]
        return [*filter(None, (start, self.masks, *cells))]
