"""The rows and columns of a table, as an experiment file has them."""

from __future__ import annotations

from typing import Any, Literal

from hybridlab.config.types import Strict
from hybridlab.errors import UserError, nearest

BENCHMARK = "benchmark"
"""The `cell` of rows whose numbers come from the benchmark."""
CellClass = Literal["exact", "fitted", "last digit", "named discrepancy", "transcribed", "trained", "timed"]
"""exact: follows from what the paper prints. fitted: needs a constant that it does not print. last digit: may be off by
one there. named discrepancy: the notes name where it is off. trained, timed: measured here."""


class Column(Strict):
    """A column of a table. With neither `metric` nor `compute` it only shows what the paper prints."""

    name: str
    title: str
    kind: CellClass
    digits: int = 2
    metric: str | None = None
    """Dotted path into a record, to a number or to {value, stderr, n}, or a measure of the file. `{name}` in it stands
    for the value of this name under the row's `given`, `{short}` for the row's short name."""
    compute: dict[str, Any] | None = None
    """An analytic function with its arguments; see papers/analytic.py."""
    run: str | None = None
    """Another run of the row, whose record `metric` reads: `sst2` is that of the cell CELL/sst2, where CELL is the
    row's own."""
    mean_of: list[str] = []
    """Columns whose mean this one shows, in place of a metric; where one of them was not measured, nothing."""
    factor: float = 1.0
    panel: str = "measured"
    fitted_rows: list[str] = []
    """Rows whose value needs a constant that the paper does not print; the class of their cells is `fitted`."""
    neutral: float | None = None
    """For a column that is a comparison itself: its value without a difference, such as 1 for a ratio."""

    def class_of(self, row: Row) -> CellClass:
        """The class of this column's cell in a row."""
        return "fitted" if row.short in self.fitted_rows else self.kind

    @property
    def measurable(self) -> bool:
        """Whether the cells are measured or computed here, or are the paper's words; the others it only prints."""
        return self.metric is not None or self.compute is not None or bool(self.mean_of) or self.kind == "transcribed"

    @property
    def of_benchmarks(self) -> bool:
        """Whether the cells are benchmarks, which a run may be without (`evaluation.benchmarks`)."""
        return (self.metric or "").startswith(("results.suites.", "results.lm_eval."))

    def cell_of(self, row: Row) -> str | None:
        """The cell whose run this column reads in a row."""
        return row.cell if self.run is None or row.cell in (None, BENCHMARK) else f"{row.cell}/{self.run}"

    def metric_of(self, row: Row) -> str:
        """The metric's path for a row, with the row's value for each `{name}` in it."""
        given = {"short": row.short, **row.given}
        try:
            return (self.metric or "").format_map(given)
        except KeyError as error:
            name = str(error.args[0])
            raise UserError(
                f"column {self.name!r} asks for {{{name}}}, which row {row.short!r} does not give; "
                f"{nearest(name, list(given))}"
            ) from None


class Row(Strict):
    name: str
    short: str
    cell: str | None = None
    paper: dict[str, float | str] = {}
    given: dict[str, Any] = {}
    """Arguments that this row adds to the columns' analytic functions."""
