"""`hybridlab export`: a trained model as a folder that other tools load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hybridlab.cli import options as o


def export(
    run: o.ModelReference,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; new, or empty.")],
    format: Annotated[
        Literal["hf"], typer.Option(help="hf: for transformers, as its own class or with the source of the model.")
    ] = "hf",
    license: Annotated[
        str | None, typer.Option(metavar="ID", help="Licence in the model card, such as apache-2.0.")
    ] = None,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option(help="Of the weights; default: fp32, or fp64 after such a training."),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Several files of weights, such as 2GB each.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="hub:OWNER/NAME", help="Also upload the folder to the hub.")
    ] = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Write a trained model for transformers: weights, config, tokenizer and model card.

    Plain models become transformers' own classes; all others need trust_remote_code=True, but not hybridlab.
    """
    from hybridlab.runs.export import export_hf

    exported = export_hf(
        run, folder, license=license, dtype=dtype, max_shard_size=max_shard_size, push=push, runs_dir=runs_dir
    )
    if as_json:
        o.print_json(exported.to_json())
        return
    out = o.console()
    kind = "transformers' own class" if exported.native else f"modeling_hybridlab.py, because {exported.reason}"
    trust = "" if exported.native else ", trust_remote_code=True"
    out.print(f"{exported.architecture}: {kind}", soft_wrap=True)
    out.print(f'{exported.auto}.from_pretrained("{folder}"{trust})', soft_wrap=True)
