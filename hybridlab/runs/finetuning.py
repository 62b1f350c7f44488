"""Fine-tuning runs: the settings of a command line, and the steps of epochs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hybridlab.config.loading import Layer
from hybridlab.config.schema import RunConfig
from hybridlab.config.yaml_text import KeyPath
from hybridlab.data.finetune.corpus import TRAIN, TaskCorpus
from hybridlab.data.preparing import corpus_of
from hybridlab.errors import UserError
from hybridlab.registry import FINETUNE_TASKS
from hybridlab.training.folders import Runs


def task_layer(
    task: str,
    data: str | Path | None = None,
    validation: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
) -> Layer:
    """The options of `hybridlab finetune` as a layer of settings. UserError for an unknown task, a path that is not
    there, and options that exclude each other."""
    FINETUNE_TASKS.get(task)
    if epochs is not None and steps is not None:
        raise UserError("--epochs and --steps both say how long to train; leave one of the two out")
    paths = {name: Path(path).expanduser() for name, path in (("data", data), ("validation", validation)) if path}
    for name, path in paths.items():
        if not path.exists():
            raise UserError(f"--{name} {path}: there is no such file; give a file of the task {task}")
    section: dict[str, Any] = {"task": task, **{name: str(path) for name, path in paths.items()}}
    section |= {"epochs": float(epochs)} if epochs is not None else {}
    training: dict[str, Any] = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    training |= {"optimizer": {"lr": lr}} if lr is not None else {}
    origins: dict[KeyPath, str] = {("finetune", name): f"--{name}" for name in section}
    origins |= {("training", name): f"--{name}" for name in training if name != "optimizer"}
    origins |= {("training", "optimizer", "lr"): "--lr"} if lr is not None else {}
    return Layer({"finetune": section} | ({"training": training} if training else {}), origins, asked=True)


def steps_of_epochs(config: RunConfig, runs: Runs) -> int:
    """The number of optimizer steps of `finetune.epochs`, rounded up, after reading the task's examples. Of spans, an
    epoch reads all windows."""
    assert config.finetune is not None and config.finetune.epochs is not None
    corpus = corpus_of(config, runs.directory / "data")
    assert isinstance(corpus, TaskCorpus)
    return max(1, math.ceil(config.finetune.epochs * len(corpus.encoded[TRAIN]) / config.finetune.batch))
