"""The parts that tables and figures share, as data and on their pages: provenance, claims, caption."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hybridlab.errors import UserError
from hybridlab.papers.experiment import Experiment
from hybridlab.papers.plans import Planned
from hybridlab.papers.records import Records, complete_seeds
from hybridlab.papers.rows import BENCHMARK
from hybridlab.papers.scales import SAYS
from hybridlab.papers.verdicts import arms_differ, verdicts
from hybridlab.runs.record import BenchmarkRecord
from hybridlab.statistics import FEWEST_SEEDS


@contextmanager
def named_in_errors(experiment: Experiment) -> Iterator[None]:
    """For mistakes in a file that only show when records are read: the error begins with the experiment's id."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{experiment.id}: {error}") from None


def entry_data(
    experiment: Experiment,
    scale: str,
    records: Records,
    benchmark: BenchmarkRecord | None,
    content: dict[str, Any],
    notes: Iterable[str] = (),
    plans: tuple[Planned, ...] = (),
) -> dict[str, Any]:
    """A table or figure as data. content: its rows, or its panels. notes: further ones than the file's. plans: those
    that it has had. machine: the one for the runs, None if nothing is run. runs: cell → seed → hash of the run. differ:
    setting → arm → its value, of the settings in which the arms that a claim compares differ."""
    found = verdicts(experiment, scale, records, benchmark, plans)
    claims = [
        {"text": claim.text, "source": claim.source, **verdict.as_json()}
        for claim, verdict in zip(experiment.claims, found, strict=True)
    ]
    machine = experiment.machine(scale)
    asked = experiment.scales[scale].seeds if scale in experiment.scales else []
    runs = {cell: {str(seed): record.hash for seed, record in by_seed.items()} for cell, by_seed in records.items()}
    if benchmark is not None:
        machine = f"{machine}; measured on {benchmark.machine['name']} ({benchmark.machine['device']})"
        runs[BENCHMARK] = {"0": benchmark.hash}
    return {
        "id": experiment.id,
        "title": experiment.title,
        "source": experiment.source,
        "scale": scale,
        "machine": machine,
        "seeds": sorted({*asked, *(seed for by_seed in records.values() for seed in by_seed)}),
        "complete_seeds": complete_seeds(experiment, scale, records),
        **content,
        "differ": arms_differ(experiment, found, records),
        "claims": claims,
        "notes": [*experiment.notes, *notes],
        "runs": runs,
    }


def caption(data: dict[str, Any]) -> str:
    """The source of the numbers, and what their scale can show."""
    if data["machine"] is None:
        classes = {cell["class"] for row in data.get("rows", []) for cell in row["cells"].values()}
        origin = "The paper's own words" if classes == {"transcribed"} else "Computed from shapes alone"
        return f"{data['source']}. {origin}; the same at every scale."
    num_seeds, complete = len(data["seeds"]), len(data.get("complete_seeds", data["seeds"]))
    seeds = f"; {num_seeds} seed{'s' * (num_seeds != 1)}" if num_seeds else ""
    if complete < num_seeds:
        seeds += f", of which {complete or 'none'} {'is' if complete == 1 else 'are'} complete"
    # A benchmark is no training run, so that what a scale decides is not its matter.
    # With --seeds, scale smoke can have enough of them for verdicts; then the sentence about one seed is not true.
    several = data["scale"] == "smoke" and min(num_seeds, complete) >= FEWEST_SEEDS
    shows = SAYS.get(data["scale"], "") if num_seeds and not several else ""
    return f"{data['source']}. Scale {data['scale']}: {data['machine']}{seeds}. {shows}".strip()
