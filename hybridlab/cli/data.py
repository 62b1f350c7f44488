"""`hybridlab data`: prepare text as token shards, and inspect prepared data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridlab.cli import options as o

app = typer.Typer(help="Prepare text as token shards, and inspect them.", no_args_is_help=True)


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="embedded, text:PATH, jsonl:PATH or hub:NAME.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder for the shards.")],
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="byte, bpe:SIZE, file:PATH or hub:NAME.")] = "bpe:896",
    field: Annotated[str, typer.Option("--field", help="The field that contains the text (jsonl, hub).")] = "text",
    validation_fraction: Annotated[
        float, typer.Option("--validation-fraction", help="Share of documents for validation.")
    ] = 0.05,
    max_documents: Annotated[
        int | None, typer.Option("--max-documents", min=1, help="Read only this many documents.")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Tokenise a source into a new folder; use it with --data shards:FOLDER."""
    from hybridlab.config.loading import Layer, check
    from hybridlab.config.schema import Data
    from hybridlab.data.shards import prepare as prepare_corpus

    values = {"source": source, "tokenizer": tokenizer, "field": field, "validation_fraction": validation_fraction}
    data = check(Data, Layer({**values, "max_documents": max_documents}, {(): "command line"}))
    prepare_corpus(data, out, lambda text: o.say(f"data: {text}"))
    _show(out, as_json)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A folder that `data prepare` made.")],
    as_json: o.AsJson = False,
) -> None:
    """Check every shard against its digest, and show a summary of the folder."""
    _show(folder, as_json)


def _show(folder: Path, as_json: bool) -> None:
    from hybridlab.data.shards import describe

    summary = describe(folder)
    if as_json:
        o.print_json(summary)
        return
    from hybridlab.cli.training import print_mapping

    print_mapping(str(folder), {k: f"{v:,}" if isinstance(v, int) else v for k, v in summary.items()})
