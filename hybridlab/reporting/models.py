"""The model that stands in a row or a series at a scale: a small one in the place of the paper's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridlab.config.study import HUB
from hybridlab.papers.experiment import CELL, Experiment
from hybridlab.papers.records import Records
from hybridlab.papers.rows import BENCHMARK

Model = dict[str, Any]
"""size: the preset. in_place_of: the paper's model, None where it is that model itself. parameters: of the runs."""


def model_of(experiment: Experiment, scale: str, cell: str | None, records: Records) -> Model | None:
    """The model behind a cell at a scale; None for a benchmark, without a cell, and where it is not trained."""
    if cell is None or cell == BENCHMARK or scale not in experiment.scales:
        return None
    paper, size = experiment.scales.get("paper"), _size(experiment, scale, cell)
    found = experiment.cells_at(scale).get(cell)
    if found is None or size is None:
        return None
    printed = found.group or (paper.size_of(found) if paper else None)
    runs = records.get(cell, {}).values()
    parameters = max((run.parameters.get("total", 0) for run in runs), default=None)
    return {"size": size, "in_place_of": None if scale == "paper" else printed, "parameters": parameters}


def _size(experiment: Experiment, scale: str, cell: str) -> str | None:
    """The size of a cell at a scale, there or in the experiment whose run it is; None where it is not trained."""
    spec = experiment.scales[scale]
    if cell in spec.places:
        identifier, there = spec.places[cell]
        return _size(experiment.other(identifier), scale, there)
    found = experiment.cells_at(scale).get(cell)
    if found is not None and found.model is not None and found.model.startswith(CELL):
        return _size(experiment, scale, found.model.removeprefix(CELL))
    size = spec.size_of(found) if found else None
    return None if size is None else size.removeprefix(HUB)


def model_text(model: Model) -> str:
    """The model in words: "tiny, in the place of 573M"."""
    return model["size"] + _place(model["in_place_of"])


def models_text(models: Iterable[Model | None]) -> str:
    """All models of a panel or figure in words, each with the range of its parameters; "" if there are none."""
    counts: dict[tuple[str, str | None], list[int]] = {}
    for model in models:
        if model is not None:
            known = counts.setdefault((model["size"], model["in_place_of"]), [])
            known += [model["parameters"]] if model["parameters"] else []
    return "; ".join(f"{size}{_range(known)}{_place(printed)}" for (size, printed), known in counts.items())


def _range(counts: list[int]) -> str:
    if not counts:
        return ""
    low, high = (f"{count / 1e6:,.1f}" for count in (min(counts), max(counts)))
    return f" ({low if low == high else f'{low} to {high}'}M parameters)"


def _place(printed: str | None) -> str:
    return f", in the place of {printed}" if printed else ""
