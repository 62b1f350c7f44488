"""The parts that tables and figures share, as data and on their pages: provenance, models, claims, caption, files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlab.config.study import FILE, HUB, short_name
from hybridlab.errors import UserError
from hybridlab.files import rounded_floats, write_bytes
from hybridlab.lab.papers.cell_spec import CELL
from hybridlab.lab.papers.cells import Records, complete_seeds, runs_of
from hybridlab.lab.papers.claim_list import about_of
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.experiment import BENCHMARK, Claim, Experiment
from hybridlab.lab.papers.ids import SAYS, WRITTEN
from hybridlab.lab.papers.plans import Planned
from hybridlab.lab.papers.verdicts import arms_differ, verdicts, weights_of
from hybridlab.messages import say
from hybridlab.runs.record import BenchmarkRecord
from hybridlab.runs.style import saved, small_png
from hybridlab.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIGITS = 8
"""Significant digits of a page's floats: runs compute in single precision, and processors add in different orders.
Files and pictures are made of the rounded numbers."""


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
    that it has had. machine: the one for the runs, None if nothing is run. unit: of what there is a number each, where
    that is not the seed. runs: cell → seed → hash of the run. differ:
    setting → arm → its value, of the settings in which the arms that a claim compares differ. weights: what their final
    weights have seen. controls: by number, each test once. All numbers are rounded, see `rounded`."""
    judged = verdicts(experiment, scale, records, benchmark, plans)
    controls = {control.in_words: control for verdict in judged for control in verdict.controls}
    numbers = {text: f"C{i}" for i, text in enumerate(controls, 1)}
    claims = [
        _claim_data(experiment, scale, claim, verdict, numbers, records)
        for claim, verdict in zip(experiment.claims, judged, strict=True)
    ]
    machine = experiment.machine(scale)
    planned, unit = experiment.scales[scale].seeds if scale in experiment.scales else [], experiment.unit(scale)
    if benchmark is not None:
        machine = f"{machine}; measured on {benchmark.machine['name']} ({benchmark.machine['device']})"
    data = {
        "id": experiment.id,
        "title": experiment.title,
        "paper": experiment.paper,
        "source": experiment.source,
        "scale": scale,
        "machine": machine,
        "planned_seeds": sorted(planned),
        **({"unit": unit} if unit != "seed" else {}),
        "seeds": sorted(
            {*(planned if unit == "seed" else ()), *(seed for by_seed in records.values() for seed in by_seed)}
        ),
        "complete_seeds": complete_seeds(experiment, scale, records),
        **content,
        "differ": arms_differ(experiment, scale, judged, records),
        "weights": weights_of(experiment, scale, judged, records),
        "claims": claims,
        "controls": {numbers[text]: {"text": text, **control.verdict.as_json()} for text, control in controls.items()},
        "notes": [*experiment.notes, *notes],
        "runs": runs_of(records, benchmark),
    }
    return {name: rounded_floats(value, DIGITS) for name, value in data.items()}


def _claim_data(
    experiment: Experiment, scale: str, claim: Claim, verdict: Verdict, numbers: dict[str, str], records: Records
) -> dict[str, Any]:
    """A claim with its verdict. about: what it is tested on, one of `claim_list.ABOUT`. margin: the numbers that its
    test names, with the reason for them. controls: the verdict of each; the rest stands once on the page. sizes: of the
    paper, in whose place its runs are."""
    margins = {name: value for name, value in claim.test.items() if type(value) in (int, float)}
    models = [model_of(experiment, scale, cell, records) for test in verdict.comparisons for cell in test["cells"]]
    return {
        "text": claim.text,
        "source": claim.source,
        "about": about_of(claim, experiment),
        **verdict.as_json(),
        "margin": {"values": margins, "reason": claim.test["reason"]} if "reason" in claim.test else None,
        "controls": [
            {"number": numbers[control.in_words], "verdict": control.verdict.word, "n": control.verdict.n}
            for control in verdict.controls
        ],
        "sizes": list(dict.fromkeys(model["in_place_of"] for model in models if model and model["in_place_of"])),
        "same_as": verdict.same_as,
        "same_on": None if verdict.same_on is None else dict(zip(("id", "claim"), verdict.same_on, strict=True)),
    }


def is_table(data: dict[str, Any]) -> bool:
    """Whether an entry as data is a table; else it is a figure."""
    return "rows" in data


def is_written(data: dict[str, Any]) -> bool:
    """Whether a command has written the experiment, about its user's own models."""
    return data["id"].startswith(WRITTEN)


def file_name(data: dict[str, Any]) -> str:
    """The name of the file that an entry as data is written to, in the folder of its scale."""
    return "table.json" if is_table(data) else "figure.json"


def caption(data: dict[str, Any]) -> str:
    """The source of the numbers, and what their scale can show."""
    if data["machine"] is None:
        classes = {cell["class"] for row in data.get("rows", []) for cell in row["cells"].values()}
        origin = "The paper's own words" if classes == {"transcribed"} else "Computed from shapes alone"
        return f"{data['source']}. {origin}; the same at every scale."
    num_seeds, complete = len(data["seeds"]), len(data.get("complete_seeds", data["seeds"]))
    seeds = f"; {num_seeds} {data.get('unit', 'seed')}{'s' * (num_seeds != 1)}" if num_seeds else ""
    if complete < num_seeds:
        seeds += f", of which {complete or 'none'} {'is' if complete == 1 else 'are'} complete"
    # A benchmark is no training run, so that what a scale decides is not its matter.
    # With --seeds, scale smoke can have enough of them for verdicts; then the sentence about one seed is not true.
    several = data["scale"] == "smoke" and min(num_seeds, complete) >= FEWEST_SEEDS
    # What a scale of hybridlab's own experiments shows is not said of what a command writes about its user's models.
    shows = SAYS.get(data["scale"], "") if num_seeds and not several and not is_written(data) else ""
    return f"{data['source']}. Scale {data['scale']}: {data['machine']}{seeds}. {shows}".strip()


# ---- the model that stands in a row or a series at a scale: a small one in the place of the paper's ----


Model = dict[str, Any]
"""size: the preset. in_place_of: the paper's model, None where it is that model itself. parameters: of the runs."""


def model_of(experiment: Experiment, scale: str, cell: str | None, records: Records) -> Model | None:
    """The model behind a cell at a scale; None for a benchmark, without a cell, and where it is not trained."""
    if cell is None or cell == BENCHMARK or scale not in experiment.scales:
        return None
    paper, size = experiment.scales.get("paper"), _size(experiment, scale, cell)
    if size is None:
        return None
    cells = experiment.cells_at(scale)
    spec, trained = cells.get(cell), cells.get(_trained(experiment, scale, cell))
    printed = (spec.group if spec else None) or (paper.size_of(trained) if paper and trained else None)
    runs = records.get(cell, {}).values()
    parameters = max((run.parameters.get("total", 0) for run in runs), default=None)
    return {"size": size, "in_place_of": None if scale == "paper" else printed, "parameters": parameters}


def _trained(experiment: Experiment, scale: str, cell: str) -> str:
    """The cell whose model a study measures; the cell itself if it is trained."""
    spec = None if cell in experiment.scales[scale].places else experiment.cells_at(scale).get(cell)
    if spec is None or not (spec.model or "").startswith(CELL):
        return cell
    return _trained(experiment, scale, str(spec.model).removeprefix(CELL))


def _size(experiment: Experiment, scale: str, cell: str) -> str | None:
    """The size of a cell at a scale, there or in the experiment whose run it is; None where it is not trained."""
    spec, cell = experiment.scales[scale], _trained(experiment, scale, cell)
    if cell in spec.places:
        identifier, other_cell = spec.places[cell]
        return _size(experiment.other(identifier), scale, other_cell)
    cell_spec = experiment.cells_at(scale).get(cell)
    size = spec.size_of(cell_spec) if cell_spec else None
    return short_name(size) if size is not None and size.startswith(FILE) else size and size.removeprefix(HUB)


def model_text(model: Model) -> str:
    """The model in words: "tiny, proxy for 573M"."""
    return model["size"] + (f", proxy for {model['in_place_of']}" if model["in_place_of"] else "")


def models_text(models: Iterable[Model | None]) -> str:
    """All models of a panel or figure in words, each with the range of its parameters; "" if there are none."""
    counts: dict[tuple[str, str | None], list[int]] = {}
    for model in models:
        if model is not None:
            totals = counts.setdefault((model["size"], model["in_place_of"]), [])
            totals += [model["parameters"]] if model["parameters"] else []
    texts = []
    for (size, printed), totals in counts.items():
        millions = dict.fromkeys(f"{count / 1e6:,.1f}" for count in (min(totals), max(totals))) if totals else {}
        parameters = f" ({' to '.join(millions)}M parameters)" if totals else ""
        texts.append(model_text({"size": f"{size}{parameters}", "in_place_of": printed}))
    return "; ".join(texts)


# ---- files ----


Also = Collection[str]
"""The endings of further files that are wanted of an entry: .csv, .pdf, .svg, .tex."""


def asked(file: Path, also: Also) -> bool:
    """Whether a further file is to be written: it is wanted, or was before, and would not fit the page any more."""
    return file.suffix in also or file.exists()


def write_picture(path: Path, draw: Callable[[], Figure] | None, also: Also = ()) -> None:
    """A figure as PATH.png and, if they are wanted, PATH.pdf and PATH.svg; None: none of them stays.

    The same numbers give the same bytes: no date is in the files, and each has its own drawing, because saving one
    changes its layout.
    """
    further = {path.with_suffix(".pdf"): "CreationDate", path.with_suffix(".svg"): "Date"}
    if draw is None:
        for file in (path.with_suffix(".png"), *further):
            file.unlink(missing_ok=True)
        if any(file.suffix in also for file in further):
            say(f"{path.name}: there is nothing to draw, so no picture is written")
        return
    import matplotlib

    write_bytes(path.with_suffix(".png"), small_png(draw()))
    for file, date in further.items():
        if asked(file, also):
            with matplotlib.rc_context({"svg.hashsalt": path.name}):
                write_bytes(file, saved(draw(), format=file.suffix[1:], metadata={date: None}))
