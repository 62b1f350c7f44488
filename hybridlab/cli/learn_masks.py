"""`hybridlab learn-masks`: ConSA stage 1, which KV heads need full attention."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o


@o.on_ranks
def learn_masks(
    start: Annotated[
        str,
        typer.Option("--from", help="The run to start from (name, folder or hash).", autocompletion=completion.runs),
    ],
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            help="consa, or l1-gates (its ablation without the Lagrangian); default: that of --config, or consa.",
            autocompletion=completion.mask_learners,
        ),
    ] = None,
    rho: Annotated[float, typer.Option("--rho", help="Target sparsity: the share of units that get a window.")] = 0.5,
    granularity: Annotated[str, typer.Option("--granularity", help="layer, head-all or head-single.")] = "head-all",
    window: Annotated[
        int | None, typer.Option("--window", help="Window w, the query included; default: that of the size.")
    ] = None,
    binarize: Annotated[
        str | None,
        typer.Option("--binarize", help="consa: topk (default, meets rho exactly) or threshold (as in the paper)."),
    ] = None,
    nearest: o.Nearest = False,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    *,
    asked: o.OneRun,
) -> None:
    """Learn masks from a trained model, and write masks.json in the run folder, for `pretrain --arch consa --masks`."""
    from hybridlab.cli.training import mask_learners, runtime_layer, settings_layer, train_and_print
    from hybridlab.config.loading import load_preset
    from hybridlab.config.method import controller_of
    from hybridlab.errors import UserError
    from hybridlab.runs.compose import Request, chosen_arch, compose
    from hybridlab.store.folders import Runs

    arch = chosen_arch(arch, asked.config, default="consa")
    method = controller_of(load_preset("arch", arch).values)
    if method is None or not method.learns_masks:
        raise UserError(f"arch {arch}: masks are learned by others; add --arch {' or --arch '.join(mask_learners())}")
    mask = {"rho": rho, "granularity": granularity} | ({"binarize": binarize} if binarize else {})
    runs = Runs(asked.runs_dir)
    runtime, settings = runtime_layer(asked.track, asked.compile), asked.sets or []
    layer = settings_layer(arch, steps, seed, nearest, mask=mask, window=window, runtime=runtime)
    request = Request(arch=arch, data=data, start=start, config=asked.config, options=layer, settings=settings)
    train_and_print(compose(request, runs), runs, "learn-masks", asked)
