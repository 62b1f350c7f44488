"""`hybridlab generate`: continue texts with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli import options as o
from hybridlab.errors import UserError
from hybridlab.messages import say

if TYPE_CHECKING:
    from hybridlab.runs.generate import Prompt


def generate(
    run: o.ModelReference,
    text: Annotated[
        str | None, typer.Argument(help="The text to continue; without it, one prompt per line of standard input.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="File of prompts: one per line, or .jsonl with --field.")] = None,
    field: Annotated[str | None, typer.Option(help="The field of a .jsonl file; default: prompt or text.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that are decoded at once.")] = 16,
    out: Annotated[Path | None, o.output(help="Write the results here, one JSON object per line.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token (greedy).")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the first prompt's samples; the next has one more, and so on.")
    ] = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Recompute all tokens at each step, as a check of the cache.")
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="One compiled graph for every token, which pays for long texts only.")
    ] = False,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The text is what a user says: answer it, in the chat template of the tokenizer."),
    ] = False,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Continue one text, or many. Greedy by default; stops at an end-of-document token."""
    import json

    from hybridlab.files import write_text
    from hybridlab.runs.generate import continue_prompts
    from hybridlab.training.store.folders import Runs

    inputs = _prompts(text, prompts, field)
    continued = continue_prompts(
        run,
        Runs(runs_dir),
        inputs,
        max_new_tokens,
        batch_size,
        use_cache=not no_cache,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        chat=chat,
        compiled=compile,
    )
    done = []
    for number, generated in enumerate(continued, 1):
        done.append(generated.to_json())
        if text is not None and not as_json and out is None:
            print(generated.text)
        elif not as_json and out is None:
            print(f"=== {number} of {len(inputs)} ===\n{generated.text}\n", flush=True)
    if as_json:
        o.print_json(done[0] if text is not None else done)
    if out is not None:
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in done))
        say(f"written to {out}")


def _prompts(text: str | None, file: Path | None, field: str | None) -> list[Prompt]:
    """The prompts from the one place that names them."""
    from hybridlab.runs.generate import Prompt, read_prompts, read_prompts_file

    if text is not None and file is not None:
        raise UserError("generate: give TEXT or --prompts FILE, not both")
    if file is not None:
        return read_prompts_file(file, field)
    if field is not None:
        raise UserError(f"--field {field} has no effect without --prompts FILE.jsonl")
    if text is not None:
        return [Prompt(text, "generate")]
    if sys.stdin.isatty():
        raise UserError("generate: give TEXT, --prompts FILE, or prompts on standard input, one per line")
    # What is not UTF-8 is refused with its line; a locale may be strict.
    content: bytes = sys.stdin.buffer.read()
    return read_prompts(content.decode("utf-8", "surrogateescape"), "standard input")
