"""`hybridlab grow`: train a model that gains layers while it trains (MIDAS, LIDAS and their controls)."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.messages import say

Method = Annotated[
    str,
    typer.Option(
        "--method",
        help="midas: copy the middle block; lidas: the layers in the middle; as controls, top: the last block; random: "
        "a block drawn anew in each growth step.",
        autocompletion=completion.methods,
    ),
]
Block = Annotated[
    int | None, typer.Option("--block", min=1, help="Layers that are added at once; default: as the size, or 4.")
]
Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule", metavar="prop-ALPHA", help="Stage i gets steps in proportion to i^ALPHA; default: prop-1."
    ),
]
Rounding = Annotated[
    str | None, typer.Option("--rounding", help="Stages to whole steps: floor (default) or largest-remainder.")
]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Layers at the end; default: those of the size.")]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Grow the model of a finished run (name, folder or hash), RUN/best, or a Hugging Face folder, with its "
        "plan and map, to --layers.",
        autocompletion=completion.runs,
    ),
]
Arch = Annotated[
    str | None,
    typer.Option("--arch", help="Plan and map to grow with, such as rule-swa.", autocompletion=completion.archs),
]


@o.on_ranks
def grow(
    method: Method,
    block: Block = None,
    schedule: Schedule = None,
    rounding: Rounding = None,
    layers: Layers = None,
    start: Start = None,
    arch: Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    masks: o.Masks = None,
    entropy_of: o.EntropyOf = None,
    nearest: o.Nearest = False,
    *,
    asked: o.OneRun,
) -> None:
    """Train a model whose depth grows in stages: `pretrain --arch METHOD` with options for the growth.

    The same command resumes an unfinished run, and does nothing for a finished one.
    """
    from hybridlab.cli.training import runtime_layer, settings_layer, train_and_print
    from hybridlab.config.loading import merge
    from hybridlab.methods.depth.options import check_arch, growth_layer, stages_in_words
    from hybridlab.runs.compose import Request, chosen_arch, compose
    from hybridlab.store.folders import Runs

    runs, arch = Runs(asked.runs_dir), chosen_arch(arch, asked.config, default=method)
    check_arch(arch, method, masks=masks is not None)
    runtime, settings = runtime_layer(asked.track, asked.compile), asked.sets or []
    layer = settings_layer(arch, steps, seed, nearest, masks=masks, runtime=runtime)
    layer = merge(layer, growth_layer(method, block, schedule, rounding, layers, start, runs))
    request = Request(arch, size, data, start, asked.config, layer, settings, entropy_of, keep_map=arch == method)
    resolved = compose(request, runs)
    say(stages_in_words(resolved))
    train_and_print(resolved, runs, "grow", asked)
