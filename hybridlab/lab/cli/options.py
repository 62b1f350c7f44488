"""Options that several commands of the lab share, and how they print groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridlab.cli.options import RUNS, AsJson, Launching, Restarts, RunsDir, Sharing, console
from hybridlab.errors import UserError
from hybridlab.lab.cli import completion

if TYPE_CHECKING:
    from hybridlab.lab.papers.experiment import Experiment
    from hybridlab.runs.cluster import Cluster
    from hybridlab.training.ranks import Ranks as OnRanks

ResultsDir = Annotated[
    Path,
    typer.Option(
        "--results-dir", help="Folder of tables, figures and records; what is published is in `published` below it."
    ),
]
Seeds = Annotated[
    str,
    typer.Option(
        "--seeds",
        help="Seeds of each row: how many (3: 0, 1, 2), 5-7, or 5,8,9. Every seed below 100 that is complete counts.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="What is judged: loss (the default; of ablate with inside and outside, where the data ask retrieval), "
        "perplexity, inside, far, outside, or a path into a record such as tasks.chain.loss.all; NAME:lower or "
        "NAME:higher where it is not known which is better; repeatable.",
    ),
]
Long = Annotated[
    bool, typer.Option("--long", help="Print every comparison of the claims, with the number of each seed.")
]
AllColumns = Annotated[
    bool, typer.Option("--all-columns", help="Show columns that nothing here can measure, with the paper's values.")
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale",
        help="smoke (minutes on a CPU), desk (an evening on one), small (one GPU) or paper; pretrained: nothing is "
        "trained, a model that is there already is measured.",
        autocompletion=completion.scales,
    ),
]
StudiedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="At scale pretrained, the model that is measured instead of SmolLM2-135M-Instruct, on a page of its "
        "own: a GGUF file, a folder in the Hugging Face layout, or hub:OWNER/NAME.",
    ),
]

RESULTS = Path("results")


@dataclass(frozen=True)
class Queue:
    """The options that every command has that trains several runs, in the order in which its help shows them."""

    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at once, each in a process of its own; default: the cores, divided by the threads of a run (one "
            "for small models). A run keeps the threads of its first start, and with them its bits.",
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the runs, with steps, FLOPs, minutes and disk; train nothing.")
    ] = False
    sharing: Sharing = Sharing()
    max_restarts: Restarts = 0
    launching: Launching = Launching()
    runs_dir: RunsDir = RUNS
    results_dir: ResultsDir = RESULTS
    as_json: AsJson = False

    def where(self) -> int | OnRanks | Cluster | None:
        """Where the runs are trained, see `run_all`; UserError for options of several ways."""
        from hybridlab.training import ranks

        if ranks.started():
            raise UserError("torchrun is for a single run; here --ranks N shares each run between N processes")
        cluster, several = self.launching.cluster(), self.sharing.on_ranks(self.max_restarts)
        if cluster is not None and (self.jobs is not None or several is not None):
            of_ranks = "--ranks is for this machine; --nodes and --gpus-per-node say how many ranks a job has"
            of_jobs = "--jobs is for --launcher local; on a cluster, --array-parallelism says how many run at once"
            raise UserError(of_ranks if self.jobs is None else of_jobs)
        if several is not None and self.jobs not in (None, 1):
            raise UserError(
                f"--jobs {self.jobs} --ranks {several.number}: ranks share one run after the other; leave out --jobs"
            )
        return cluster or several or self.jobs


def experiments_of(identifiers: Sequence[str], results_dir: Path, model: str | None = None) -> list[Experiment]:
    """The experiments of these ids or files, each once. model: the one that is measured, see `on_model`."""
    from hybridlab.lab.papers.definition import kept
    from hybridlab.lab.papers.loading import load_experiment, on_model

    experiments = [load_experiment(str(kept(name, results_dir) or name)) for name in dict.fromkeys(identifiers)]
    return experiments if model is None else [on_model(experiment, model) for experiment in experiments]


def pick_scale(scale: str, experiment: Experiment) -> str:
    """The scale, if the experiment has it; otherwise UserError."""
    available = experiment.available_scales()
    if scale not in available:
        raise UserError(f"--scale {scale}: {experiment.id} has the scales {', '.join(available)}")
    return scale


def print_groups(rows: Sequence[tuple[str, ...]], gap: bool = False) -> None:
    """Print rows below the names of their groups, which are their first texts. The last text is wrapped to the
    terminal; the others are as wide as the longest of all. gap: an empty line after each group."""
    from rich.table import Table

    out = console()
    widths = [max(map(len, column)) for column in zip(*(row[1:-1] for row in rows), strict=True)]
    for name, group in groupby(rows, key=lambda row: row[0]):
        grid = Table.grid(padding=(0, 2, 0, 0))
        for width in widths:
            grid.add_column(width=width)
        grid.add_column()
        for _, *texts in group:
            grid.add_row(*texts)
        out.print(name, style="bold")
        out.print(grid)
        if gap:
            out.print()
