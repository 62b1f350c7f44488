"""What came of an experiment that a command writes, such as a comparison: its table, verdicts and picture, from the
command line or from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hybridlab.arguments import checked
from hybridlab.errors import RunFailed, UserError
from hybridlab.files import ENDINGS, output_file, user_path
from hybridlab.lab.papers.compare import CompareRequest, defined, tuned
from hybridlab.lab.papers.definition import SCALE, Definition, parse_seeds
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale, run_cells
from hybridlab.lab.papers.sweep import run_sweep
from hybridlab.lab.reporting.claims import draw, lines_of, shown
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.lab.reporting.table import frame_of
from hybridlab.messages import aloud, say
from hybridlab.runs.cluster import Cluster
from hybridlab.runs.queue import Outcome
from hybridlab.runs.train import as_texts, nested
from hybridlab.training.ranks import Ranks
from hybridlab.training.store.results import own_alone

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Compared:
    """What `hybridlab.compare` returns. path: the folder with table.json, table.md and claims.png. data: the content of
    table.json. experiment: what was made, as an experiment.

        comparison = hybridlab.compare(["vanilla", "sgt"], steps=300)
        comparison.table[["row", "column", "measured", "difference", "low", "high"]]
        comparison.verdicts["sgt is better than vanilla (loss)"], comparison.figure()
    """

    path: Path
    data: dict[str, Any]
    experiment: Experiment

    @property
    def table(self) -> pd.DataFrame:
        """A line for each arm and column, with its difference to the baseline, the interval, and n."""
        return frame_of(self.data)

    @property
    def verdicts(self) -> dict[str, str]:
        """What is claimed of each arm and metric → its verdict. `data["claims"]` has the numbers."""
        return {claim["text"]: shown(claim) for claim in self.data["claims"]}

    def figure(self) -> Figure:
        """The differences with their intervals; UserError with fewer than three seeds, which have none."""
        lines = lines_of(self.data)
        if not lines:
            raise UserError("figure: a difference has an interval from three seeds on; compare with more seeds")
        return draw(self.data, lines)


def compare_arms(
    request: CompareRequest,
    runs_dir: Path,
    results_dir: Path,
    jobs: int | Ranks | Cluster | None = None,
    save: Path | None = None,
) -> tuple[Compared | None, Outcome]:
    """Search, train what is missing, and write the table; None for what a cluster still trains, or where a run of the
    search failed. jobs: see `run_all`. save: a file for the experiment."""
    with own_alone():
        definition = defined(request, results_dir)
        search = partial(run_sweep, scale=SCALE, runs_dir=runs_dir, results_dir=results_dir, jobs=jobs)
        definition, outcome = tuned(definition, runs_dir, results_dir, search)
        if outcome.left or outcome.failed:
            definition.keep(results_dir)
            return None, outcome
        if save is not None:
            definition.write(save)
        return train_defined(definition, runs_dir, results_dir, jobs)


def train_defined(
    definition: Definition,
    runs_dir: Path,
    results_dir: Path,
    jobs: int | Ranks | Cluster | None,
    places: Mapping[str, str] = {},
) -> tuple[Compared | None, Outcome]:
    """Keep an experiment, train what is missing of it, and write its table; None for what a cluster still trains.
    places: see `QueuedRun`."""
    with own_alone():
        definition.keep(results_dir)
        targets = [ExperimentAtScale(definition.experiment, SCALE)]
        outcome = run_cells(targets, runs_dir, results_dir, jobs, places=places)
        if outcome.left:
            return None, outcome
        data, folder = write_entry(definition.experiment, SCALE, results_dir)
        say(f"written to {folder}")
        return Compared(folder, data, definition.experiment), outcome


@aloud
@checked
def compare(
    arms: Sequence[str],
    *,
    size: str | None = None,
    data: str | list[str] | None = None,
    steps: int | None = None,
    equal: str = "flops",
    sweep: str = "lr",
    seeds: int | Sequence[int] = 5,
    tuning_seeds: int = 1,
    metrics: Sequence[str] = ("loss",),
    settings: Mapping[str, Any] | None = None,
    save: str | Path | None = None,
    jobs: int | None = 1,
    runs_dir: str | Path = "runs",
    results_dir: str | Path = "results",
    quiet: bool = False,
) -> Compared:
    """Train arms at equal cost over seeds, each at its best rate, and say which of them is better than the first one,
    as `hybridlab compare` does with the same options. What has been trained before is not trained again.

    arms: names of architectures, files of settings, `NAME=ARCH`, or `ARCH+ARCH`. size, data: presets or files, as for
    `train`. steps: of the first arm. equal: flops, tokens or time. sweep: lr, none, or a setting with its values, as
    `training.clip=0.5,1`. seeds: how many, or which; tuning_seeds: how many for the search. metrics: as `loss`, or
    `tasks.retrieval.far`. settings: further ones of all arms, or of one as `{"sgt:controller.heads": 3}`. save: a
    file for the experiment, which `hybridlab reproduce` repeats. jobs: runs at once, None for as many as there are
    cores. runs_dir, results_dir: where runs and results are. quiet: print nothing. UserError for a mistake in the
    arguments; RunFailed if a run fails.

        comparison = hybridlab.compare(["vanilla", "sgt"], size="tiny", steps=300)
        print(comparison.table, comparison.verdicts)
        comparison.figure().savefig("claims.png")
    """
    several = [data] if isinstance(data, str) else data
    which = str(seeds) if isinstance(seeds, int) else ",".join(map(str, seeds))
    if not isinstance(seeds, int) and len(seeds) == 1:
        which = f"{which}-{which}"  # in a list it is a seed, not a number of seeds
    request = CompareRequest(
        arms=arms,
        size=size,
        data=several,
        steps=steps,
        equal=equal,
        sweep=sweep,
        seeds=parse_seeds(which),
        tuning_seeds=tuning_seeds,
        metrics=metrics,
        settings=as_texts(nested(settings or {})),
    )
    place = None if save is None else output_file(save, "save=", ENDINGS["yaml"])
    comparison, outcome = compare_arms(request, user_path(runs_dir), user_path(results_dir), jobs, place)
    outcome.raise_failures(f"compare {' '.join(arms)}")
    if comparison is None:
        raise RunFailed("compare: nothing was trained")
    return comparison
