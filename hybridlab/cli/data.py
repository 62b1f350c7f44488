"""`hybridlab data`: prepare text as token shards, and inspect prepared data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError

app = o.App(help="Prepare text as token shards, and inspect them.", no_args_is_help=True)


@app.command()
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="text:PATH, jsonl:PATH, csv:PATH, parquet:PATH, hub:NAME or embedded; several as SOURCE@WEIGHT each.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new folder for the shards.")],
    tokenizer: Annotated[
        str, typer.Option(help="byte, bpe:SIZE, file:PATH or hub:NAME; byte+mask and bpe+mask:SIZE for encoders.")
    ] = "bpe:896",
    field: Annotated[
        str, typer.Option(help="The field or column that contains the text (jsonl, csv, parquet, hub).")
    ] = "text",
    validation_fraction: Annotated[float, typer.Option(help="Share of the text for validation.")] = 0.05,
    validation_by: Annotated[
        str,
        typer.Option(
            metavar="number|content",
            help="What decides: a document's number, or its text, so that equal documents are on one side.",
        ),
    ] = "number",
    skip_bad_lines: Annotated[
        bool,
        typer.Option("--skip-bad-lines", help="Leave out and count broken lines and rows (jsonl, csv, parquet, hub)."),
    ] = False,
    max_documents: Annotated[
        int | None, typer.Option(min=1, help="Read only this many documents of each source.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Tokenise in so many threads; default: all cores.")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Tokenise a source into a new folder; use it with --data shards:FOLDER.

    Several sources share one tokenizer, and each gets a folder of its own in the new folder. After a stop, the same
    command goes on where it was.
    """
    from hybridlab.config.loading import Layer, check
    from hybridlab.config.resolve import source_settings
    from hybridlab.config.schema import Data
    from hybridlab.data.preparing import prepare as prepare_corpus
    from hybridlab.data.sources import NoSuchField

    values: dict[str, Any] = {"tokenizer": tokenizer, "field": field, "validation_fraction": validation_fraction}
    values |= {"max_documents": max_documents, "skip_bad_lines": skip_bad_lines, **source_settings(sources)}
    if validation_by != "number":
        values["validation_by"] = validation_by
    data = check(Data, Layer(values, {(): "command line"}))
    try:
        prepare_corpus(data, out, workers)
    except NoSuchField as error:
        raise UserError(f"{error.problem}; name it with --field NAME") from None
    _show(out, as_json)
    if data.sources is not None and not as_json:
        from hybridlab.data.sources import source_labels

        names = source_labels(data.all_sources)
        used = [f"--data shards:{out / n}@{s.weight:g}" for n, s in zip(names, data.sources, strict=True)]
        o.console().print(f"train on it with: {' '.join(used)}", soft_wrap=True)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A folder that `data prepare` made.")], as_json: o.AsJson = False
) -> None:
    """Check every shard against its digest, and show a summary of the folder and the beginning of its text."""
    _show(folder, as_json)


def _show(folder: Path, as_json: bool) -> None:
    from hybridlab.data.shards import describe

    summary = describe(folder)
    if as_json:
        o.print_json(summary)
        return
    from hybridlab.cli.training import print_mapping

    for name, part in summary.pop("sources", {}).items():
        print_mapping(str(folder / name), _readable(part))
    print_mapping(str(folder), _readable(summary))


def _readable(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:,}" if isinstance(value, int) else value for name, value in summary.items()}
