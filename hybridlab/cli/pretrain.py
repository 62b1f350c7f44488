"""`hybridlab pretrain`: train a model, or resume a run that was interrupted."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o

_WITH_EXTEND = [
    "start",
    "extend",
    "track",
    "compile",
    "sets",
    "name",
    "tags",
    "keep_optimizer",
    "run_dir",
    "runs_dir",
    "as_json",
]


def pretrain(
    context: typer.Context,
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from the weights of a run (name, folder or hash), RUN/best, or a Hugging Face folder.",
            autocompletion=completion.runs,
        ),
    ] = None,
    extend: Annotated[
        int | None,
        typer.Option("--extend", min=1, help="Train the run of --from so many steps longer, with its optimizer."),
    ] = None,
    masks: o.Masks = None,
    entropy_of: o.EntropyOf = None,
    nearest: o.Nearest = False,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    name: o.Name = None,
    tags: o.Tags = None,
    keep_optimizer: o.KeepOptimizer = False,
    track: o.Track = None,
    compile: o.Compile = None,
    run_dir: o.RunDir = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Train a model. The same command resumes an unfinished run, and does nothing for a finished one."""
    from hybridlab.cli.training import require_extendable, runtime_layer, settings_layer, train_and_print
    from hybridlab.runs.compose import CommandLine, chosen_arch, compose
    from hybridlab.runs.extension import extension
    from hybridlab.store.folders import Label, Runs

    runs, label = Runs(runs_dir), Label(name, tuple(tags or []))
    if extend is not None:
        require_extendable(context, start, _WITH_EXTEND)
        longer = extension(start or "", extend, runs, runtime_layer(track, compile), sets or [])
        train_and_print(longer, run_dir, runs, "pretrain", as_json, label, keep_optimizer)
        return
    arch = chosen_arch(arch, config)
    runtime = runtime_layer(track, compile)
    layer = settings_layer(steps=steps, seed=seed, masks=masks, nearest=nearest, arch=arch, runtime=runtime)
    asked = CommandLine(arch, size, data, start, config, layer, sets or [], entropy_of)
    resolved = compose(asked, runs, o.say)
    train_and_print(resolved, run_dir, runs, "pretrain", as_json, label, keep_optimizer)
