"""`hybridlab generate`: continue a text with a trained model."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import options as o


def generate(
    run: Annotated[str, typer.Argument(help="Run folder, or the start of its hash.")],
    text: Annotated[str, typer.Argument(help="The text to continue.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token each time.")] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the fewest tokens that hold this much.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Recompute everything for each token, as a check.")
    ] = False,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Continue a text. Greedy by default; a document's end ends it."""
    from hybridlab.reproduction.generate import continue_text
    from hybridlab.training.folders import Runs

    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    found = continue_text(run, Runs(runs_dir), text, max_new_tokens, use_cache=not no_cache, **sampling)
    if as_json:
        o.print_json(found)
    else:
        print(found["text"])
