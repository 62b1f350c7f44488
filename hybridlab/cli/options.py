"""Options that several commands share, and functions to print.

An option of a single command is called as its parameter unless it says another name: `seq_len` is --seq-len. Flags say
theirs, since typer gives all others a --no- form.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from hybridlab.cli import completion
from hybridlab.errors import UserError, nearest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridlab.runs.cluster import Cluster
    from hybridlab.training.ranks import Ranks as OnRanks


def output(kind: str | None = None, **looks: Any) -> Any:
    """An option for a file that gets a result, with a value of type `Path | None`; see `output_file`. kind: of file, in
    `ENDINGS`."""

    def checked(context: typer.Context, param: typer.CallbackParam, value: Path | None) -> Path | None:
        if value is None or context.resilient_parsing:
            return value
        from hybridlab.files import ENDINGS, output_file

        return output_file(value, param.opts[0], ENDINGS[kind] if kind else ())

    return typer.Option(callback=checked, **looks)


def each_once(param: typer.CallbackParam, texts: list[str] | None) -> list[str] | None:
    """A callback of an option that is given as NAME=VALUE; UserError for a name that is given two values."""
    names = [text.partition("=")[0].strip() for text in texts or ()]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise UserError(f"{param.opts[0]} {twice}=… is given twice, and only one value can count; leave one out")
    return texts


ModelReference = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its name, its folder, or the start of its hash; RUN/best; a folder of Hugging Face layout; a GGUF "
        "file.",
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
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Optimizer steps.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of weights, data order and all random numbers.")]
Masks = Annotated[
    str | None,
    typer.Option(
        "--masks",
        metavar="RUN|FILE",
        help="Masks to train with (--arch consa, stage 2): the run that learned them, or its masks.json.",
        autocompletion=completion.masks,
    ),
]
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
    list[Path] | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML file of settings; it may extend others, and name arch, size and data; repeatable, later files over "
        "earlier ones.",
    ),
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of runs and prepared data.")]
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
Restarts = Annotated[
    int,
    typer.Option(
        "--max-restarts", min=0, help="With --ranks: how often all go on from the last checkpoint after one has died."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output.")]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run: its name, its folder, or the start of its hash.", autocompletion=completion.runs
    ),
]

RUNS = Path("runs")
_NARROWEST = 20


@dataclass(frozen=True)
class Launching:
    """Where runs are trained."""

    launcher: Annotated[
        str,
        typer.Option(
            help="local: on this machine; slurm: each run is a job, and the command ends once they are submitted."
        ),
    ] = "local"
    partition: Annotated[str | None, typer.Option(help="Slurm: the partition of the jobs.")] = None
    nodes: Annotated[int, typer.Option(min=1, help="Slurm: nodes of each job, with a rank for each GPU.")] = 1
    gpus_per_node: Annotated[int, typer.Option(min=0, help="Slurm: GPUs of each node.")] = 0
    time: Annotated[
        str, typer.Option(help="Slurm: the longest time of a job, after which it is queued again; HH:MM:SS.")
    ] = "24:00:00"
    array_parallelism: Annotated[int, typer.Option(min=1, help="Slurm: jobs at once.")] = 256
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", callback=each_once, help="Slurm: a further option of sbatch; repeatable."),
    ] = None

    def cluster(self) -> Cluster | None:
        """The cluster on which the runs are jobs; None for this machine. UserError for options without effect."""
        from hybridlab.runs.cluster import Cluster

        names = ["local", "slurm"]
        if self.launcher not in names:
            raise UserError(f"--launcher {self.launcher}: there is no such launcher; {nearest(self.launcher, names)}")
        if self.launcher == "local":
            for field in fields(self):
                if getattr(self, field.name) != field.default:
                    raise UserError(f"--{field.name.replace('_', '-')} has no effect without --launcher slurm")
            return None
        more = tuple(self.slurm or ())
        if wrong := [option for option in more if not all(option.partition("=")[::2])]:
            raise UserError(f"--slurm {wrong[0]}: write NAME=VALUE, as in --slurm mem=64G")
        cluster = Cluster(
            "slurm", self.partition, self.nodes, self.gpus_per_node, self.time, self.array_parallelism, more
        )
        assert cluster.minutes
        return cluster


@dataclass(frozen=True)
class Sharing:
    """How many processes compute one run together."""

    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Compute each run in so many processes on this machine, which share its rows."),
    ] = None
    rank_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds for which a rank waits for the others before the run fails.")
    ] = 600

    def on_ranks(self, restarts: int = 0) -> OnRanks | None:
        """The ranks that are asked for, None for this process alone; UserError for options without effect."""
        from hybridlab.training import ranks

        if self.ranks in (None, 1):
            if restarts or self.rank_timeout != Sharing.rank_timeout:
                raise UserError("--max-restarts and --rank-timeout have no effect on one process; add --ranks N")
            return None
        return ranks.Ranks(self.ranks, restarts, self.rank_timeout)


@dataclass(frozen=True)
class OneRun:
    """The options that every command has that trains one run, in the order in which its help shows them."""

    config: ConfigFile = None
    sets: Sets = None
    name: Annotated[
        str | None, typer.Option(help="A name for the run, by which it is found like by its hash; changes no result.")
    ] = None
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag, to filter `hybridlab runs`; repeatable.")
    ] = None
    keep_optimizer: Annotated[
        bool,
        typer.Option(
            "--keep-optimizer", help="Keep the optimizer state of the finished run too (three times the disk space)."
        ),
    ] = False
    track: Track = None
    compile: Compile = None
    sharing: Sharing = Sharing()
    max_restarts: Restarts = 0
    launching: Launching = Launching()
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run; default: RUNS-DIR/HASH.")] = None
    runs_dir: RunsDir = RUNS
    as_json: AsJson = False


def on_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `sharing: Sharing` or `common: OneRun`, in all of its ranks, see `spread`."""

    @spread
    @functools.wraps(command)
    def called(**values: Any) -> None:
        from hybridlab.training import ranks

        common: OneRun | None = values.get("common")
        sharing: Sharing = values["sharing"] if common is None else common.sharing
        runs_dir: Path = values["runs_dir"] if common is None else common.runs_dir
        if common is not None and sharing.ranks is not None and common.launching.launcher != "local":
            raise UserError("--ranks is for this machine; on a cluster, --nodes and --gpus-per-node say how many ranks")
        if not ranks.started():
            if (several := sharing.on_ranks(0 if common is None else common.max_restarts)) is None:
                command(**values)
            elif code := ranks.start(several, runs_dir / "ranks", ["hybridlab", *sys.argv[1:]]):
                raise typer.Exit(code)
            return
        if sharing.ranks not in (None, ranks.started()):
            raise UserError(f"--ranks {sharing.ranks}: torchrun has started {ranks.started()}; leave --ranks out")
        with ranks.joined(sharing.rank_timeout):
            command(**values)

    return called


def flat(name: str, kind: Any, default: Any = None) -> list[inspect.Parameter]:
    """The options of a parameter: itself, or the fields of a dataclass of options, and of those inside it."""
    if not is_dataclass(kind):
        return [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)]
    hints = get_type_hints(kind, include_extras=True)
    return [option for field in fields(kind) for option in flat(field.name, hints[field.name], field.default)]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer reads it: where a parameter is a dataclass of options, with its fields in its place."""

    def gathered(name: str, kind: Any, values: dict[str, Any]) -> Any:
        if not is_dataclass(kind):
            return values[name]
        hints = get_type_hints(kind, include_extras=True)
        group: Any = kind
        return group(**{field.name: gathered(field.name, hints[field.name], values) for field in fields(kind)})

    hints = get_type_hints(command, include_extras=True)
    declared = inspect.signature(command).parameters

    @functools.wraps(command)
    def called(**values: Any) -> None:
        command(**{name: gathered(name, hints[name], values) for name in declared})

    parameters = [option for name, of in declared.items() for option in flat(name, hints[name], of.default)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


# ---- command lines ----


class _Words:
    """What holds for the words of every command: an option that is no list is given once, `~` in a path is the home
    folder, and where a result goes to standard output, all else goes to standard error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command: Any = self
        if not ctx.resilient_parsing:
            _, _, order = command.make_parser(ctx).parse_args(list(args))
            _require_once(order)
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        if not ctx.resilient_parsing:
            _read_paths(command.params, ctx)
        return rest


def _require_once(order: list[Any]) -> None:
    """UserError for an option that is given twice and means one thing. order: the parameters as they were given."""
    single = [param for param in order if param.param_type_name == "option" and not (param.multiple or param.is_eager)]
    if (twice := next((param for param in single if single.count(param) > 1), None)) is None:
        return
    names = " and ".join([*twice.opts, *twice.secondary_opts])
    several = f"; write its values as {twice.opts[0]} {twice.metavar}" if "," in (twice.metavar or "") else ""
    times = f"{names} is given {single.count(twice)} times, and only one value can count"
    raise UserError(f"{times}{several or '; leave one out'}")


def _read_paths(params: list[Any], context: Any) -> None:
    """Put home folders into paths. UserError for `-` where no result can go to standard output, and for two that
    would."""
    options = {param.name: param.opts[0] if param.param_type_name == "option" else param.name for param in params}
    printed = ["--json"] if context.params.get("as_json") else []
    for name, value in context.params.items():
        several = value if isinstance(value, list | tuple) else [value]
        if not any(isinstance(path, Path) for path in several):
            continue
        from hybridlab.files import is_stdout, user_path  # here, so that help is fast

        if Path("-") in several:
            raise UserError(f"{options[name]} -: standard input or output cannot be read or written here; name a path")
        paths = [user_path(path) for path in several]
        context.params[name] = paths if several is value else paths[0]
        printed += [options[name] for path in paths if is_stdout(path)]
    if printed[1:]:
        raise UserError(f"{printed[0]} and {printed[1]} both print to standard output; leave one out, or name a file")
    if printed and not context.params.get("as_json"):
        context.with_resource(redirect_stdout(sys.stderr))


class Command(_Words, TyperCommand):
    """A command."""


class App(typer.Typer):
    """Commands, and groups of them."""

    def __init__(self, **looks: Any) -> None:
        super().__init__(cls=Group, **looks)

    def command(self, name: str | None = None, **looks: Any) -> Any:
        return super().command(name, cls=Command, **looks)


class Group(_Words, TyperGroup):
    """Commands whose help is plain text, with the first sentence of each command whole: without the frames and colours
    of rich, whose import would take longer than everything else, help comes at once."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands; without this, sentences end where a line does."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.get_short_help_str(limit=1000)) for name, entry in commands if entry])


def choices_settings(names: str | None) -> list[str]:
    """`--choices` as texts of --set; UserError for a name that is no primitive."""
    from hybridlab.registry import CHOICES

    primitives = CHOICES.names() if names is not None else []
    chosen = primitives if names == "all" else [name.strip() for name in names.split(",")] if names is not None else []
    for name in chosen:
        if name not in primitives:
            raise UserError(f"--choices {names}: {name!r} is no primitive; {nearest(name, primitives)}")
    return [f"evaluation.choices.tasks=[{','.join(chosen)}]"] if chosen else []


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, allow_nan=False))


def console() -> Console:
    """Standard output, as wide as the terminal, or as COLUMNS says; 80 columns where there is neither."""
    from rich.console import Console

    screen = Console()
    sized = screen.is_terminal or "COLUMNS" in os.environ
    return Console(width=max(screen.width, _NARROWEST) if sized else 80, markup=False, highlight=False)


def table(
    title: str | None = None,
    text: Iterable[str] = (),
    numbers: Iterable[str] = (),
    rows: Iterable[Iterable[str]] = (),
    **looks: Any,
) -> Table:
    """A table with columns of text, then columns of numbers. looks: further arguments of rich's table."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", **looks)
    for name in text:
        result.add_column(name, overflow="fold")
    for name in numbers:
        result.add_column(name, justify="right", overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def number(value: Any, digits: int) -> str:
    """A number with so many digits after the point; text as it is; – for None."""
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if isinstance(value, float) and math.isfinite(value) else str(value)


def written(context: typer.Context) -> dict[str, str]:
    """What the command line gives: name of a parameter → its option."""
    sources = ((param, context.get_parameter_source(param.name or "")) for param in context.command.params)
    return {param.name or "": param.opts[0] for param, source in sources if source and source.name == "COMMANDLINE"}
