"""`hybridlab generate`: continue a text with a trained model."""

from __future__ import annotations

from typing import Annotated

import typer

from hybridlab.cli import options as o


def generate(
    run: o.Run,
    text: Annotated[str, typer.Argument(help="The text to continue.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the most likely token (greedy).")] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Sample from the most likely tokens with this total probability.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Recompute all tokens at each step, as a check of the cache.")
    ] = False,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Continue a text. Greedy by default; stops at an end-of-document token."""
    from hybridlab.runs.generate import continue_text
    from hybridlab.training.folders import Runs

    continued = continue_text(
        run,
        Runs(runs_dir),
        text,
        max_new_tokens,
        use_cache=not no_cache,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    if as_json:
        o.print_json(continued)
    else:
        print(continued["text"])
