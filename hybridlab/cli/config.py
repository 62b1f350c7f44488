"""`hybridlab config`: every setting with its meaning, and what a command line resolves to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hybridlab.cli import options as o

app = o.App(help="Settings: their meanings, and what a command line resolves to.", no_args_is_help=True)


@app.command()
def schema(
    prefix: Annotated[
        str, typer.Argument(help="Only settings that begin so, as in training.optimizer; default: all.")
    ] = "",
    as_json: o.AsJson = False,
) -> None:
    """Show every setting with its values, default and meaning.

    Settings of one kind of map, controller or plan edit say so in brackets. N stands for an index in a list. Layers and
    heads count from 0.
    """
    from hybridlab.config.documented import documented

    settings = documented(prefix)
    if as_json:
        o.print_json({"settings": [asdict(setting) for setting in settings]})
        return
    from rich.padding import Padding
    from rich.text import Text

    out = o.console()
    for setting in settings:
        out.print(Text(setting.name, style="bold").append(f"  {setting.in_words}", style="not bold"))
        out.print(Padding(setting.meaning, (0, 0, 0, 4)))


@app.command()
def show(
    arch: o.Arch = None,
    size: o.Size = None,
    data: o.DataSource = None,
    steps: o.Steps = None,
    seed: o.Seed = None,
    start: Annotated[
        str | None, typer.Option("--from", help="As of pretrain: a run, a Hugging Face folder or a GGUF file.")
    ] = None,
    masks: o.Masks = None,
    entropy_of: Annotated[
        str | None, typer.Option(help="As of pretrain: a run whose entropies choose the layers.")
    ] = None,
    nearest: o.Nearest = False,
    config: o.ConfigFile = None,
    sets: o.Sets = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Show the configuration and the hash of the run that `pretrain` would train with these options.

    Each value has its origin: the file and line, the option, `default` for one of the schema, or `computed` for one
    that follows from others. Nothing is trained.
    """
    from hybridlab.cli.training import masks_file, settings_layer
    from hybridlab.config.resolve import parents, run_hash
    from hybridlab.config.shown import as_text, origins_of
    from hybridlab.runs.compose import Request, chosen_arch, compose_with_origins
    from hybridlab.training.store.folders import Runs

    runs = Runs(runs_dir)
    layer = settings_layer(chosen_arch(arch, config), steps, seed, nearest, masks_file(masks, runs))
    request = Request(arch, size, data, start, config, layer, sets or [], entropy_of)
    resolved, written = compose_with_origins(request, runs)
    settings = origins_of(resolved, written)
    if as_json:
        values = {".".join(map(str, path)): {"value": v, "origin": origin} for path, (v, origin) in settings.items()}
        o.print_json({"hash": run_hash(resolved), "parents": parents(resolved), "settings": values})
        return
    print(f"# run {run_hash(resolved)}")
    for digest in parents(resolved):
        print(f"# starts from or uses {digest}")
    print(as_text(settings))
