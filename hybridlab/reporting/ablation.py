"""The table and the figure of a grid of settings: means, standard errors, and differences paired by seed.

`hybridlab ablate` and `hybridlab report ID` write them. An experiment's table has another form: it stands beside what
a paper prints, with a column for each quantity. Here each quantity is a table of its own, with the interval and p of
every difference, corrected over its rows; and a grid is made again from the hashes of its runs alone.

results/<id>/  grid.json  table.json  table.md  figure.png, and if they are wanted table.csv  table.tex  figure.pdf
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hybridlab.errors import UserError
from hybridlab.files import compact_json, read_object, write_json, write_text
from hybridlab.papers.compare import NAMES
from hybridlab.reporting.latex import Panel, tex_table
from hybridlab.reporting.style import COLOURS, Also, asked, label_axes, write_picture
from hybridlab.reporting.table import DASH
from hybridlab.runs.ablate import PREFIX
from hybridlab.runs.record import Record, load_record, number_at
from hybridlab.statistics import (
    FEWEST_SEEDS,
    LEVEL,
    NOT_MEASURED,
    PairedTest,
    holm,
    mean_and_error,
    mean_interval,
    paired_t,
)
from hybridlab.store.results import find, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWER, HIGHER, OPEN, TOO_FEW, SAME = "lower", "higher", "open", "open (direction only)", "the same"
"""Verdicts on a difference to the first combination."""
HEADS = ("mean ± s.e.", "n", "− first (pairs)", "95 % interval", "p", "verdict")
"""Columns of a metric's table, after the settings."""
SHORT_HEADS = ("mean ± s.e.", "n", "− first", "95 % interval", "p", "verdict")
HOW_TO_READ = (
    "mean ± s.e.: over runs with different seeds, n of them. − first: the difference to the first row, paired by seed, "
    "with its standard error and the number of pairs. 95 % interval: Student's t over these pairs. p: two-sided, with "
    "Holm's correction over the rows of the metric. verdict: lower or higher where p < 0.05, else open; with fewer "
    "than three pairs only the direction is known. – was not measured, or has no test."
)


@dataclass(frozen=True)
class Metric:
    """A quantity of the table. path: into a record. exact: it follows from the structure, not from training, so that a
    difference needs no test."""

    path: str
    title: str
    unit: str
    digits: int
    exact: bool = False


METRICS = {
    "loss": Metric(NAMES["loss"], "validation loss", "nats per token", 4),
    "perplexity": Metric(NAMES["perplexity"], "validation perplexity", "", 2),
    "pseudo-perplexity": Metric(NAMES["pseudo-perplexity"], "validation pseudo-perplexity", "", 2),
    "inside": Metric(NAMES["inside"], "retrieval inside the window", "accuracy", 3),
    "outside": Metric(NAMES["outside"], "retrieval outside the windows", "accuracy", 3),
    "sparsity": Metric("model.sparsity", "sparsity", "share of window heads", 3, exact=True),
    "flops": Metric("flops", "training cost", "FLOPs", 0, exact=True),
}


def write_grid(
    definition: dict[str, Any], results_dir: Path, runs_dir: Path | None = None, also: Also = ()
) -> tuple[dict[str, Any], Path]:
    """Write the files of a grid from the records that are there; returns the content of table.json, and the folder.

    runs_dir: see `load_record`.
    """
    records: dict[str, Record] = {}
    for digest in (digest for row in definition["rows"] for digest in row["runs"].values()):
        if (record := load_record(digest, results_dir, runs_dir)) is not None:
            records[digest] = record
    table = grid_table(definition, records)
    folder = results_dir / definition["id"]
    write_json(folder / "grid.json", definition)
    write_text(folder / "table.json", compact_json(table) + "\n")
    write_text(folder / "table.md", _page(table))
    if asked(numbers := folder / "table.csv", also):
        write_text(numbers, pd.DataFrame(map(_flat, table["rows"])).to_csv(index=False))
    if asked(latex := folder / "table.tex", also):
        write_text(latex, _latex(table))
    write_picture(folder / "figure", (lambda: draw(table)) if measured(table) else None, also)
    return table, folder


def is_grid(identifier: str) -> bool:
    return identifier.startswith(PREFIX)


def read_grid(identifier: str, results_dir: Path) -> dict[str, Any]:
    """The definition of a grid that `hybridlab ablate` has made; UserError if there is none."""
    path = find(results_dir, f"{identifier}/grid.json")
    try:
        return read_object(path, "grid", ("id", "command", "seeds", "settings", "rows"), "run `hybridlab ablate` again")
    except FileNotFoundError:
        known = sorted({found.parent.name for found in listed(results_dir, f"{PREFIX}*/grid.json")})
        raise UserError(f"{path}: there is no such grid; known: {', '.join(known) or 'none'}") from None


def measured(table: dict[str, Any]) -> list[str]:
    """The metrics that at least one run has."""
    return [name for name in METRICS if any(row["metrics"][name]["n"] for row in table["rows"])]


def worth_printing(table: dict[str, Any]) -> list[str]:
    """The metrics that were measured, without what follows from the structure and is the same for all rows."""
    return [metric for metric in measured(table) if not METRICS[metric].exact or _varies(table, metric)]


def lines_of(table: dict[str, Any], metric: str) -> list[list[str]]:
    """The table of a metric as text: a line for each row, the settings first, then HEADS."""
    return [[row["name"], *_texts(row["metrics"][metric], METRICS[metric])] for row in table["rows"]]


def short_lines_of(table: dict[str, Any], metric: str) -> list[list[str]]:
    """As `lines_of`, for 80 characters: SHORT_HEADS, and settings without the parts of their names that need not be
    there. The interval has the place of the difference's standard error."""
    lines = lines_of(table, metric)
    short = _short_keys(list(table["rows"][0]["settings"]))
    for line, row in zip(lines, table["rows"], strict=True):
        line[0] = ", ".join(f"{short[key]}={value}" for key, value in row["settings"].items()) or row["name"]
        value = row["metrics"][metric]["difference"]
        line[3] = DASH if value is None else _number(value, METRICS[metric], "+")
    return lines


def _short_keys(keys: list[str]) -> dict[str, str]:
    """Dotted name → its last part, or the whole name if another setting ends with the same part."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: part if last.count(part) == 1 else key for key, part in zip(keys, last, strict=True)}


def heading(metric: str) -> str:
    """The metric with its unit."""
    unit = METRICS[metric].unit
    return METRICS[metric].title + (f" ({unit})" if unit else "")


def _texts(cell: dict[str, Any], metric: Metric) -> list[str]:
    """The entries of HEADS."""
    mean = _with_error(cell["mean"], cell["stderr"], metric)
    difference = DASH
    if cell["difference"] is not None:
        difference = f"{_with_error(cell['difference'], cell['difference_stderr'], metric, '+')} ({cell['pairs']})"
    interval = DASH
    if cell["interval"]:
        interval = " … ".join(_number(bound, metric, "+") for bound in cell["interval"])
    p = DASH if cell["p_holm"] is None else "< 0.001" if cell["p_holm"] < 0.001 else f"{cell['p_holm']:.3f}"
    return [mean, str(cell["n"]), difference, interval, p, cell["verdict"] or DASH]


def _with_error(value: float | None, error: float | None, metric: Metric, sign: str = "") -> str:
    if value is None:
        return DASH
    if metric.exact and not error:
        return _number(value, metric, sign)
    return f"{_number(value, metric, sign)} ± {DASH if error is None else _number(error, metric)}"


def _number(value: float, metric: Metric, sign: str = "") -> str:
    text = f"{value:{sign}.4g}" if metric.unit == "FLOPs" else f"{value:{sign}.{metric.digits}f}"
    return text.replace("-", "−")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of table.csv, with a column for each number."""
    flat = dict(row["settings"])
    for metric, cell in row["metrics"].items():
        for part, value in cell.items():
            if part == "values":
                flat |= {f"{metric}_seed{seed}": number for seed, number in value.items()}
            elif part == "interval":
                flat |= dict(zip((f"{metric}_low", f"{metric}_high"), value or (None, None), strict=True))
            else:
                flat[f"{metric}_{part}"] = value
    return flat


# ---- numbers ----


def grid_table(definition: dict[str, Any], records: Mapping[str, Record]) -> dict[str, Any]:
    """The content of table.json: the definition, with the metrics of each row.

    records: hash → record of the finished runs.
    """
    rows = definition["rows"]
    table = {**definition, "baseline": rows[0]["name"], "rows": [{**row, "metrics": {}} for row in rows]}
    for name, metric in METRICS.items():
        values = [_values(row["runs"], metric, records) for row in rows]
        tests = [_against_first(own, values[0]) if i else None for i, own in enumerate(values)]
        corrected = holm([None if test is None or metric.exact else test.p for test in tests])
        for row, own, test, p in zip(table["rows"], values, tests, corrected, strict=True):
            row["metrics"][name] = _cell(own, test, p, metric)
    return table


def _values(runs: dict[str, str], metric: Metric, records: Mapping[str, Record]) -> dict[str, float]:
    """Seed → value of the runs that have one."""
    found = {seed: number_at(records[digest], metric.path).value for seed, digest in runs.items() if digest in records}
    return {seed: value for seed, value in found.items() if value is not None}


def _against_first(own: dict[str, float], first: dict[str, float]) -> PairedTest:
    pairs = [(own[seed], first[seed]) for seed in own if seed in first]
    return paired_t(*zip(*pairs, strict=True)) if pairs else PairedTest(difference=NOT_MEASURED)


def _cell(own: dict[str, float], test: PairedTest | None, p_holm: float | None, metric: Metric) -> dict[str, Any]:
    """One metric of a row. difference: to the first row, over `pairs` pairs of runs with the same seed."""
    mean = mean_and_error(list(own.values()))
    difference = NOT_MEASURED if test is None else test.difference
    tested = test is not None and not metric.exact
    return {
        "mean": mean.value,
        "stderr": mean.stderr,
        "n": mean.n,
        "values": own,
        "difference": difference.value,
        "difference_stderr": difference.stderr,
        "pairs": difference.n,
        "interval": list(test.interval) if test is not None and tested and test.interval else None,
        "p": test.p if test is not None and tested else None,
        "p_holm": p_holm,
        "verdict": None if difference.value is None else _verdict(difference.value, difference.n, p_holm, metric.exact),
    }


def _verdict(difference: float, pairs: int, p_holm: float | None, exact: bool) -> str:
    """Whether the metric is lower or higher than in the first row, or open."""
    direction = LOWER if difference < 0 else HIGHER
    if exact:
        return direction if difference else SAME
    if pairs < FEWEST_SEEDS:
        return TOO_FEW
    return direction if p_holm is not None and p_holm < LEVEL else OPEN


# ---- pages ----


def _page(table: dict[str, Any]) -> str:
    """table.md: what was run, a table for each metric, the figure, and the runs behind them."""
    settings, names = table["settings"], measured(table)
    training = settings["training"]
    facts = {
        "command": f"`{table['command']}`",
        "architecture and size of the first row": f"{settings['arch']} {settings['size']}",
        "data": f"{settings['data']['source']}, tokenizer {settings['data']['tokenizer']}",
        "training": f"{training['steps']:,} steps of {training['tokens_per_step']:,} tokens, "
        f"sequences of {training['seq_len']:,}, learning rate {training['optimizer']['lr']:g}",
        "seeds": ", ".join(map(str, table["seeds"])),
    }
    lines = [f"# {table['id']}", "", *_markdown(["", ""], [list(fact) for fact in facts.items()]), ""]
    for metric in names:
        lines += [f"## {heading(metric)}", ""]
        lines += [*_markdown(["setting", *HEADS], lines_of(table, metric)), ""]
    lines += [HOW_TO_READ, ""] if names else ["No run has finished yet.", ""]
    lines += ["![every seed as a point, with mean and 95 % interval](figure.png)", ""] if names else []
    runs = [[row["name"], *(f"`{digest}`" for digest in row["runs"].values())] for row in table["rows"]]
    lines += ["## Runs", "", *_markdown(["setting", *(f"seed {seed}" for seed in table["seeds"])], runs), ""]
    return "\n".join(lines)


def _markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    written = (" | ".join(text.replace("|", "\\|") for text in row) for row in (heads, *rows))
    head, *body = (f"| {line} |" for line in written)
    return [head, "|" + " --- |" * len(heads), *body]


def _latex(table: dict[str, Any]) -> str:
    heads = ["setting", *HEADS]
    numeric = [False, True, True, True, True, True, False]
    panels = [Panel(heading(metric), heads, lines_of(table, metric), numeric) for metric in measured(table)]
    return tex_table(table["id"], f"{len(table['rows'])} settings. {HOW_TO_READ}", panels)


# ---- figure ----


def draw(table: dict[str, Any]) -> Figure:
    """A panel for each metric that varies: every seed as a point, lines between equal seeds, mean and 95 % interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    shown = [metric for metric in measured(table) if _varies(table, metric)] or measured(table)[:1]
    names = [row["name"] for row in table["rows"]]
    label_width = min(3.0, 0.075 * max(map(len, names)))
    size = (label_width + 2.6 * len(shown) + 0.2, 0.9 + 0.34 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    axes = [*figure.subplots(1, len(shown), squeeze=False, sharey=True).flat]
    for ax, metric in zip(axes, shown, strict=True):
        _draw_metric(ax, table, metric)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].tick_params(labelsize=7)
    seeds = [axes[0].plot([], [], "o", color=_seed_colour(i), markersize=4)[0] for i in range(len(table["seeds"]))]
    labels = [f"seed {seed}" for seed in table["seeds"]]
    mean = axes[0].errorbar([], [], xerr=[], fmt="D", color="black", markersize=4, capsize=2.5)
    figure.legend(
        [*seeds[:6], mean], [*labels[:6], "mean, 95 % interval"], loc="outside lower center", ncols=4, fontsize=6.5
    )
    return figure


def _varies(table: dict[str, Any], metric: str) -> bool:
    return len({value for row in table["rows"] for value in row["metrics"][metric]["values"].values()}) > 1


def _seed_colour(index: int) -> str:
    return COLOURS[index % (len(COLOURS) - 1)]


def _draw_metric(ax: Axes, table: dict[str, Any], metric: str) -> None:
    rows = [row["metrics"][metric]["values"] for row in table["rows"]]
    count = len(table["seeds"])
    for i, seed in enumerate(map(str, table["seeds"])):
        spread = 0.3 * (i / max(1, count - 1) - 0.5)
        points = [(values[seed], y + spread) for y, values in enumerate(rows) if seed in values]
        if points:
            ax.plot(*zip(*points, strict=True), "-o", color=_seed_colour(i), markersize=3.5, linewidth=0.5, alpha=0.8)
    for y, values in enumerate(rows):
        numbers = list(values.values())
        if not numbers:
            continue
        mean, interval = sum(numbers) / len(numbers), mean_interval(numbers)
        error = [[mean - interval[0]], [interval[1] - mean]] if interval else None
        ax.errorbar([mean], [y], xerr=error, fmt="D", color="black", markersize=4, capsize=2.5, linewidth=1)
    ax.grid(axis="x", linewidth=0.3)
    ax.tick_params(labelsize=7)
    label_axes(ax, heading(metric), "")
