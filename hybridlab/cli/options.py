"""Options that several commands share, and functions to print."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from hybridlab.cli import completion

if TYPE_CHECKING:
    from rich.console import Console

    from hybridlab.papers.experiment import Experiment

ModelReference = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its name, its folder, or the start of its hash; RUN/best; or a folder of Hugging Face layout.",
        autocompletion=completion.runs,
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        help="Architecture: a preset (see `list --archs`) or ./mine.yaml; default: that of --config, or vanilla.",
        autocompletion=completion.archs,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        help="Size: a preset (see `list --sizes`) or ./mine.yaml; default: that of --config, or tiny.",
        autocompletion=completion.sizes,
    ),
]
DataSource = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Data preset, or embedded, text:PATH, jsonl:PATH, csv:PATH, parquet:PATH, hub:NAME, shards:DIR, "
        "primitives:SEED; "
        "repeat it as SOURCE@WEIGHT to mix several.",
        autocompletion=completion.data,
    ),
]
OtherText = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Other text: embedded, text:PATH, jsonl:PATH, csv:PATH, parquet:PATH, hub:NAME, shards:DIR; "
        "repeat it as SOURCE@WEIGHT for several.",
        autocompletion=completion.data,
    ),
]
Choices = Annotated[
    str | None,
    typer.Option(
        "--choices",
        metavar="NAME,NAME",
        help="Also ask reasoning primitives (copying-random, assignment-math, …), or `all`; evaluation.choices.",
        autocompletion=completion.choices,
    ),
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Optimizer steps.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of weights, data order and all random numbers.")]
Masks = Annotated[Path | None, typer.Option("--masks", help="masks.json to train with (--arch consa, stage 2).")]
EntropyOf = Annotated[
    str | None,
    typer.Option(
        "--entropy-of",
        help="Loop the layers with the highest entropy in this run (block-loop, attention-loop).",
        autocompletion=completion.runs,
    ),
]
Nearest = Annotated[bool, typer.Option("--nearest", help="Use the nearest possible sparsity.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Change one setting; repeatable. Layers and heads count from 0 in settings."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file of settings; it may extend others, and name arch, size and data."),
]
RunDir = Annotated[Path | None, typer.Option("--run-dir", help="Folder of the run; default: RUNS-DIR/HASH.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of runs and prepared data.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="Folder of the task files that experiments name as root:PATH; default: HYBRIDLAB_DATA_ROOT. What is not "
        "there is not trained.",
    ),
]
BenchmarkRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="Folder of the benchmarks' files, which are then read without network; default: HYBRIDLAB_DATA_ROOT, else "
        "the Hugging Face hub.",
    ),
]
ResultsDir = Annotated[Path, typer.Option("--results-dir", help="Folder of tables and records.")]
Name = Annotated[
    str | None,
    typer.Option("--name", help="A name for the run, by which it is found like by its hash; changes no result."),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag, to filter `hybridlab runs`; repeatable.")
]
KeepOptimizer = Annotated[
    bool,
    typer.Option(
        "--keep-optimizer", help="Keep the optimizer state of the finished run too (three times the disk space)."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Runs at once, each in a process of its own; default: the cores, divided by the threads of a run (one for "
        "small models). A run keeps the threads of its first start, and with them its bits.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show the runs, with steps, FLOPs, minutes and disk; train nothing.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", metavar="TRACKER", help="Also log to tensorboard, trackio or wandb (extra `track`); repeatable."
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the blocks, which pays for long runs only (`runtime.compile`); a run keeps what it started with.",
    ),
]
AllColumns = Annotated[
    bool, typer.Option("--all-columns", help="Show columns that nothing here can measure, with the paper's values.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output.")]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its name, its folder, or the start of its hash.",
        autocompletion=completion.runs,
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale",
        help="smoke (minutes on a CPU), desk (an evening on one), small (one GPU) or paper.",
        autocompletion=completion.scales,
    ),
]

RUNS = Path("runs")
_NARROWEST = 20
RESULTS = Path("results")


@dataclass(frozen=True)
class OneRun:
    """The options that every command has that trains one run, in the order in which its help shows them."""

    config: ConfigFile = None
    sets: Sets = None
    name: Name = None
    tags: Tags = None
    keep_optimizer: KeepOptimizer = False
    track: Track = None
    compile: Compile = None
    run_dir: RunDir = None
    runs_dir: RunsDir = RUNS
    as_json: AsJson = False


def trains_one_run(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose last parameter is `asked: OneRun`, as typer reads it: with these options in its place."""
    hints = get_type_hints(command, include_extras=True)
    *own, _ = inspect.signature(command).parameters.values()
    shared = get_type_hints(OneRun, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(f.name, keyword, default=f.default, annotation=shared[f.name]) for f in fields(OneRun)]

    @functools.wraps(command)
    def called(**values: Any) -> None:
        command(**{one.name: values.pop(one.name) for one in own}, asked=OneRun(**values))

    parameters = [one.replace(kind=keyword, annotation=hints[one.name]) for one in own]
    called.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
    return called


class Group(TyperGroup):
    """Commands whose help is plain text, with the first sentence of each command whole: without the frames and colours
    of rich, whose import would take longer than everything else, help comes at once."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands; without this, sentences end where a line does."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=1000)) for name, one in commands if one])


def choices_settings(names: str | None) -> list[str]:
    """`--choices` as texts of --set; UserError for a name that is no primitive."""
    from hybridlab.errors import UserError, nearest
    from hybridlab.registry import CHOICES

    known = CHOICES.names() if names is not None else []
    asked = known if names == "all" else [name.strip() for name in names.split(",")] if names is not None else []
    for name in asked:
        if name not in known:
            raise UserError(f"--choices {names}: {name!r} is no primitive; {nearest(name, known)}")
    return [f"evaluation.choices.tasks=[{','.join(asked)}]"] if asked else []


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, allow_nan=False))


def console() -> Console:
    """Standard output, as wide as the terminal, or as COLUMNS says; 80 columns where there is neither."""
    from rich.console import Console

    screen = Console(markup=False)
    if screen.is_terminal or "COLUMNS" in os.environ:
        return Console(width=max(screen.width, _NARROWEST), markup=False)
    return Console(width=80, markup=False)


def pick_scale(scale: str, experiment: Experiment) -> str:
    """The scale, if the experiment has it; otherwise UserError."""
    from hybridlab.errors import UserError

    available = experiment.available_scales()
    if scale not in available:
        raise UserError(f"--scale {scale}: {experiment.id} has the scales {', '.join(available)}")
    return scale
