"""`hybridlab pretrain`: train a model, or resume a run that was interrupted."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o

_WITH_EXTEND = ["start", "extend", *(name for name in o.names_of(o.OneRun) if name != "config")]


@o.on_ranks
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
    *,
    asked: o.OneRun,
) -> None:
    """Train a model. The same command resumes an unfinished run, and does nothing for a finished one."""
    from hybridlab.cli.training import require_extendable, runtime_layer, settings_layer, train_and_print
    from hybridlab.runs.compose import Request, chosen_arch, compose
    from hybridlab.runs.extension import extension
    from hybridlab.store.folders import Runs

    runs, runtime, settings = Runs(asked.runs_dir), runtime_layer(asked.track, asked.compile), asked.sets or []
    if extend is not None:
        require_extendable(context, start, _WITH_EXTEND)
        train_and_print(extension(start or "", extend, runs, runtime, settings), runs, "pretrain", asked)
        return
    layer = settings_layer(chosen_arch(arch, asked.config), steps, seed, nearest, masks=masks, runtime=runtime)
    request = Request(arch, size, data, start, asked.config, layer, settings, entropy_of)
    train_and_print(compose(request, runs), runs, "pretrain", asked)
