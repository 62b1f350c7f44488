"""`hybridlab pretrain`: train a model, or resume a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o


def pretrain(
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start from the weights of this run (name, folder or hash).", autocompletion=completion.runs
        ),
    ] = None,
    masks: Annotated[
        Path | None, typer.Option("--masks", help="masks.json to train with (--arch consa, stage 2).")
    ] = None,
    entropy_of: Annotated[
        str | None,
        typer.Option(
            "--entropy-of",
            help="Loop the layers with the highest entropy in this run (block-loop, attention-loop).",
            autocompletion=completion.runs,
        ),
    ] = None,
    nearest: Annotated[bool, typer.Option("--nearest", help="Use the nearest possible sparsity.")] = False,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    name: o.Name = None,
    tags: o.Tags = None,
    keep_optimizer: o.KeepOptimizer = False,
    run_dir: o.RunDir = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Train a model. The same command resumes an unfinished run, and does nothing for a finished one."""
    from hybridlab.cli.training import settings_layer, train_and_print
    from hybridlab.runs.compose import chosen_arch, compose
    from hybridlab.training.folders import Runs
    from hybridlab.training.labels import Label

    arch = chosen_arch(arch, config)
    layer = settings_layer(steps=steps, seed=seed, masks=masks, nearest=nearest, arch=arch)
    runs = Runs(runs_dir)
    resolved = compose(arch, size, data, start, runs, config, layer, sets or [], entropy_of, o.say)
    train_and_print(resolved, run_dir, runs, "pretrain", as_json, Label(name, tuple(tags or [])), keep_optimizer)
