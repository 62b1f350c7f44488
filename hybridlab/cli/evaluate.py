"""`hybridlab eval`: measure a trained model, on its own data, on other text, or on benchmarks."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from hybridlab.runs.benchmarks import BenchmarkRequest, Benchmarks
    from hybridlab.statistics import Measurement


_Choices = Annotated[
    str | None,
    typer.Option(
        "--choices",
        metavar="NAME,NAME",
        help="Also ask reasoning primitives (copying-random, assignment-math, …), or `all`; evaluation.choices.",
        autocompletion=completion.choices,
    ),
]
_Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        metavar="NAME,NAME",
        help="Benchmarks in place of text: tasks of lm-eval (arc_easy, piqa, mmlu, …) by name.",
    ),
]
_Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        help="The benchmarks of a paper with its measures and shots: sgt, spiral, consa, depth or saobp.",
        autocompletion=completion.suites,
    ),
]
_DropHeads = Annotated[
    str | None,
    typer.Option(
        "--drop-heads",
        metavar="L1-H3,L2-H5",
        help="Measure the model without these query heads (layer and head counted from 1); never recorded.",
    ),
]


@dataclass(frozen=True)
class OfBenchmarks:
    """Options that belong to --tasks and --suite."""

    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Solved examples before each question; default: the task's own number.")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first N questions of each task.")] = None
    batch_size: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Rows at once, or as many as fit, up to 64; default: 8.")
    ] = None
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of a row at most, with what is generated; longer ones lose their beginning. Default: that of "
            "the model's configuration, or of its training.",
        ),
    ] = None
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the benchmarks' files, which are then read without network; default: HYBRIDLAB_DATA_ROOT, "
            "else the Hugging Face hub.",
        ),
    ] = None
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Leave out and count broken lines of benchmark files.")
    ] = False
    include_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of further tasks, as YAML files of lm-eval's form.")
    ] = None
    gen_kwargs: Annotated[
        str | None,
        typer.Option(metavar="A=B,C=D", help="Settings of generated texts, as temperature=0.8,do_sample=true."),
    ] = None
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Write prompts with the chat template of the tokenizer.")
    ] = False
    system_instruction: Annotated[str | None, typer.Option(metavar="TEXT", help="A text before every prompt.")] = None
    output_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write lm-eval's files, results_*.json, into this folder.")
    ] = None
    log_samples: Annotated[
        bool, typer.Option("--log-samples", help="There, too: samples_*.jsonl, with every question and answer.")
    ] = False
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Also replace results in the record that have more questions; else they stay."),
    ] = False

    def request(self, tasks: str | None, suite: str | None, drop_heads: str | None) -> BenchmarkRequest:
        """What is asked for. UserError for an option that does not mean anything."""
        from hybridlab.evaluation.lm_eval_options import Options, parse_gen_kwargs
        from hybridlab.runs.benchmarks import BenchmarkRequest

        names = tuple(name.strip() for name in (tasks or "").split(",") if name.strip())
        prompts = (self.include_path, parse_gen_kwargs(self.gen_kwargs), self.apply_chat_template)
        options = Options(*prompts, self.system_instruction, self.output_path, self.log_samples)
        rows = (self.num_fewshot, self.limit, _rows(self.batch_size), self.max_length)
        files = (self.data_root, self.skip_bad_lines)
        return BenchmarkRequest(names, suite, *rows, *files, drop_heads, self.replace, options)


@o.on_ranks
def evaluate(
    run: o.ModelReference,
    data: o.OtherText = None,
    choices: _Choices = None,
    tasks: _Tasks = None,
    suite: _Suite = None,
    *,
    of_tasks: OfBenchmarks,
    drop_heads: _DropHeads = None,
    sets: o.Sets = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
    sharing: o.Sharing,
) -> None:
    """Measure loss, perplexity and tasks of a trained model, after a test of causality; or, of a fine-tuned model, its
    task, with --data PATH on another file of it. The record does not change.

    With --tasks or --suite, measure benchmarks instead. The record of a finished run then gets their results.
    """
    # Bars of other libraries, which do not know what is measured here; read when torch loads tqdm.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from hybridlab.training.world import world

    text: dict[str, object] = {"--data": data, "--choices": choices, "--set": sets}
    of_benchmarks = {f"--{field.name.replace('_', '-')}": getattr(of_tasks, field.name) for field in fields(of_tasks)}
    benchmarks = tasks is not None or suite is not None
    for option, value in (text if benchmarks else of_benchmarks).items():
        # Not `in (None, False)`, which 0 is too.
        if value is not None and value is not False:
            raise UserError(f"{option} has no effect {'on benchmarks' if benchmarks else 'without --tasks or --suite'}")
    if benchmarks:
        from hybridlab.runs.benchmarks import benchmark_run
        from hybridlab.training.store.folders import Runs

        measured = benchmark_run(run, Runs(runs_dir), of_tasks.request(tasks, suite, drop_heads))
        if not world().writer:
            return
        if as_json:
            o.print_json({"run": run, **measured.to_json()})
        else:
            _print_benchmarks(measured, run)
        if measured.unwritten is not None:
            raise typer.Exit(1)
        return
    from hybridlab.cli.training import print_results
    from hybridlab.runs.evaluate import evaluate_run
    from hybridlab.training.store.folders import Runs

    settings = [*o.choices_settings(choices), *(sets or [])]
    results = evaluate_run(run, Runs(runs_dir), data, settings, drop_heads)
    if not world().writer:
        return
    if as_json:
        o.print_json(results.model_dump(mode="json"))
        return
    print_results(results, f"{run} on {' + '.join(data) if data else 'its own validation data'}")


def _rows(batch_size: str | None) -> int | Literal["auto"]:
    """The number of rows that is asked for. UserError for what is neither a number nor `auto`."""
    from hybridlab.runs.benchmarks import BATCH

    if batch_size is None:
        return BATCH
    if batch_size == "auto":
        return "auto"
    if not batch_size.isdecimal() or int(batch_size) < 1:
        raise UserError(f"--batch-size {batch_size}: it must be a whole number of 1 or more, or auto")
    return int(batch_size)


def _print_benchmarks(benchmarks: Benchmarks, run: str) -> None:
    """Print measures with standard errors and n, a suite's columns, and what was not measured."""
    out = o.console()
    lines = [
        (name, metric, measured)
        for name, result in benchmarks.results.items()
        for metric, measured in result.metrics.items()
    ]
    out.print(_table(f"{run} on benchmarks", ("task", "measure"), lines))
    if benchmarks.suite is not None:
        columns = [(name, "", measured) for name, measured in benchmarks.columns.items()]
        out.print(_table(f"{benchmarks.suite.title}, {benchmarks.suite.source}", ("column", ""), columns))
    if limit := next((result.limit for result in benchmarks.results.values()), None):
        out.print(f"only the first {limit} questions of each task")
    for name, result in benchmarks.results.items():
        if (split := result.examples_from) is not None:
            why = "since the task's own is not at hand"
            out.print(f"{name}: solved examples from the split {split}, {why}", soft_wrap=True)
        if result.skipped:
            out.print(f"{name}: {result.skipped} broken lines left out", soft_wrap=True)
    for path in benchmarks.files:
        out.print(f"written to {path}", soft_wrap=True)
    for task, reason in benchmarks.not_measured.items():
        out.print(f"not measured: {task}: {reason}", soft_wrap=True)


def _table(title: str, names: tuple[str, str], lines: list[tuple[str, str, Measurement]]) -> Table:
    rows = [
        (*name, _number(measured.value), _number(measured.stderr), "–" if measured.value is None else f"{measured.n:,}")
        for *name, measured in lines
    ]
    return o.table(title, names, ("value", "± s.e.", "n"), rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) < 1e5 else f"{value:.3e}"
