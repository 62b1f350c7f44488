"""What `hybridlab runs` prints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hybridlab.cli.options import console, number, table
from hybridlab.cli.training import print_mapping, print_results

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hybridlab.runs.catalogue import RunRow
    from hybridlab.runs.curves import Curve
    from hybridlab.runs.record import Record
    from hybridlab.training.store.cleaning import Item

_WIDE = 120
"""Width from which on a terminal shows all columns of the list."""
_COLUMNS = [
    *("run", "name", "state", "arch, size", "step", "loss", "valid.", "age", "disk", "started (UTC)", "tags", "from")
]
_ONLY_WIDE = ("valid.", "started (UTC)", "tags", "from")
_NUMBERS = ("step", "loss", "valid.", "age", "disk", "bytes")
_CUT = ("name", "arch, size", "tags", "from", "path")
_DETAILS = (
    *("hash", "name", "tags", "path", "state", "reason", "arch", "size", "started", "command", "host", "machine"),
    *("precision", "compile", "git", "seed", "steps", "tokens", "flops", "seconds", "tokens_per_second"),
    *("redone_steps", "parameters", "loss", "validation"),
)
_LEAST = 6
"""Letters that are left of what is cut."""
_table = partial(table, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


def print_rows(rows: list[RunRow]) -> None:
    """A table of runs, as wide as the terminal, and their sum."""
    out = console()
    names = _COLUMNS if out.width >= _WIDE else [name for name in _COLUMNS if name not in _ONLY_WIDE]
    print_lines(out, names, [[_cell(row, name) for name in names] for row in rows])
    for row in rows:
        if row.state == "damaged":
            out.print(f"damaged: {row.reason}", soft_wrap=True)
    out.print(f"{_counted(len(rows), 'run')}, {size(sum(row.disk for row in rows))}")


def _cell(row: RunRow, column: str) -> str:
    texts = {
        "run": (row.hash or row.path.name)[:8],
        "name": row.name,
        "state": row.state,
        "arch, size": row.arch and f"{row.arch} {row.size}",
        "step": None if row.step is None else f"{row.step}/{row.steps}",
        "loss": number(row.loss, 3),
        "valid.": number(row.validation, 3),
        "age": age(row.age),
        "disk": size(row.disk),
        "started (UTC)": (row.started or "")[:16].replace("T", " "),
        "tags": ", ".join(row.tags),
        "from": ", ".join(parent[:8] for parent in row.parents),
    }
    return texts[column] or "–"


def print_lines(out: Console, names: list[str], rows: list[list[str]]) -> None:
    """A table with each row on one line. Columns that may be cut are, until it fits the terminal."""
    widths = {name: max(len(name), *(len(row[i]) for row in rows)) for i, name in enumerate(names)}
    cut = [name for name in names if name in _CUT]
    gaps = 2 * len(names)
    while sum(widths.values()) + gaps > out.width and any(widths[name] > _LEAST for name in cut):
        widths[max(cut, key=lambda name: widths[name])] -= 1
    out.width = max(out.width, sum(widths.values()) + gaps)
    lines = _table()
    for name in names:
        justify: Any = "right" if name in _NUMBERS else "left"
        lines.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=widths[name])
    for row in rows:
        lines.add_row(*row)
    out.print(lines)


def print_details(facts: dict[str, Any], record: Record | None) -> None:
    """One run."""
    texts = {name: _text(name, facts) for name in _DETAILS}
    if texts["reason"] == "–":
        del texts["reason"]
    out = console()
    print_mapping(f"run {facts['name'] or facts['hash']}", texts)
    if record is not None:
        print_mapping("model", {"plan": record.model.plan, "map": record.model.map})
    if record is not None and record.results is not None:
        print_results(record.results, "results")
    for event in facts["events"] or []:
        out.print(_event(event))
    for kind, word in (("parents", "parent"), ("children", "child")):
        for relative in facts[kind]:
            text = f"{word}: {relative['name'] or '–'} {relative['hash']} {relative['path']}"
            out.print(text, soft_wrap=True)
    if facts["checkpoints"]:
        steps = ", ".join(map(str, facts["checkpoints"]))
        out.print(f"checkpoints of steps {steps}; --from {facts['hash']}@STEP goes on there")
    print_mapping("disk", {name: size(part) for name, part in facts["disk_parts"].items()})
    if facts["own_settings"]:
        title = f"settings that differ from {facts['arch']} {facts['size']}"
        rows = [(name, _setting(value)) for name, value in facts["own_settings"].items()]
        out.print(_table(title, ("", ""), rows=rows, show_header=False))
    elif facts["own_settings"] is None:
        out.print(f"the presets {facts['arch']} and {facts['size']} are not known here")


def _event(event: dict[str, Any]) -> str:
    """An event without the plans and maps before and after it, which `--json` has."""
    fields = {k: v for k, v in event.items() if k not in ("step", "kind") and not k.endswith(("_before", "_after"))}
    short = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in fields.items() if len(str(value)) < 30)
    return f"event at step {event['step']}: {event['kind']}" + (f" ({short})" if short else "")


def _text(name: str, facts: dict[str, Any]) -> str:
    value = facts[name]
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "steps":
        return f"{facts['step']:,} of {value:,}"
    if name == "started":
        return f"{value} ({age(facts['age'])} ago)"
    if name == "flops":
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {part:,}" if isinstance(part, int) else f"{key} {part}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if name in ("loss", "validation"):
        return number(value, 4)
    return f"{value:,}" if isinstance(value, int | float) and name != "seed" else str(value)


def print_comparison(compared: dict[str, Any]) -> None:
    """Runs side by side: a column for each run."""
    out = console()
    names = [run["name"] or run["hash"][:8] for run in compared["runs"]]

    def print_columns(title: str, rows: dict[str, list[str]]) -> None:
        out.print(_table(title, ("",), names, rows=[(label, *cells) for label, cells in rows.items()]))
        out.print()

    settings = {name: [_setting(value) for value in values] for name, values in compared["settings"].items()}
    if settings:
        print_columns("settings that differ", settings)
    else:
        out.print("no settings differ")
    costs = {key: [_cost(key, run[key]) for run in compared["costs"]] for key in compared["costs"][0]}
    print_columns("costs", {name.replace("_", " "): cells for name, cells in costs.items()})
    losses = compared["losses"]
    rows = {"loss ± s.e.": [measured(entry["loss"]) for entry in losses]}
    rows[f"− {names[0]}"] = ["", *(measured(entry["difference"], "+") for entry in losses[1:])]
    print_columns("validation loss (nats/token)", rows)
    for name, entry in zip(names[1:], losses[1:], strict=True):
        if entry["not_compared"]:
            out.print(f"{name} is not compared: {entry['not_compared']}")
        elif not entry["resolved"]:
            out.print(f"{name} − {names[0]}: not resolved, within two standard errors of 0")
    out.print(compared["note"])
    for name, lines in zip(names[1:], compared.get("samples", ()), strict=False):
        out.print()
        out.print(_answers(names[0], name, lines))
        if left_out := max(line["left_out"] for line in lines):
            out.print(f"answers that only one of both has, left out: {left_out:,}")
    if "samples" in compared:
        out.print(compared["note_on_samples"])


def _answers(first: str, other: str, lines: list[dict[str, Any]]) -> Table:
    """The answers of two runs to the same questions: a line for each task and measure."""
    numbers = ("n", first, other, f"− {first}", f"only {first}", f"only {other}", "p")
    answers = _table(f"answers of {other} and {first}", ("task", "measure"), numbers)
    for line in lines:
        values = [number(value, 4) for value in (*line["values"], line["p"])]
        alone = [number(line[name], 0) for name in ("only_first", "only_this")]
        difference = line["difference"]
        row = (f"{difference['n']:,}", *values[:2], measured(difference, "+"), *alone, values[2])
        answers.add_row(line["task"], line["metric"], *row)
    return answers


def _setting(value: Any) -> str:
    return "–" if value is None else str(value)


def _cost(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if name == "flops" else f"{value:,}"


def measured(value: dict[str, Any] | None, sign: str = "") -> str:
    """A measurement as value ± standard error."""
    if value is None or value["value"] is None:
        return "–"
    return f"{value['value']:{sign}.4f} ± {number(value['stderr'], 4)}"


def print_curves(curves: list[Curve], x: str, metric: str, smooth: int | None) -> None:
    """Curves as wide as the terminal, and what is drawn with which colour or letter."""
    from rich.text import Text

    from hybridlab.runs.pictures import key, rgb, terminal_picture

    out = console()
    colour = out.is_terminal and out.color_system is not None
    height = max(12, min(26, out.width // 4))
    print(terminal_picture(curves, x, metric, smooth, out.width, height, colour))
    for i, curve in enumerate(curves):
        sign = Text("━━", style=f"rgb({','.join(map(str, rgb(i)))})") if colour else Text(key(i))
        line = f" {curve.label}: {metric} {curve.y[-1]:.5g}"
        if curve.validation:
            line += f", validation {curve.validation[-1]:.5g} ({'●' if colour else key(i).upper()})"
        out.print(sign + Text(line), soft_wrap=True)


def print_items(items: list[Item]) -> None:
    """What can go, by kind, with bytes."""
    out = console()
    if not items:
        out.print("nothing to remove")
        return
    rows = [[item.kind, str(item.path), f"{item.bytes:,}"] for item in items]
    print_lines(out, ["kind", "path", "bytes"], rows)
    out.print(f"{_counted(len(items), 'item')}, {size(sum(item.bytes for item in items))}")


# ---- numbers as text ----


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def age(seconds: float | None) -> str:
    """A duration in its largest unit: 40s, 12m, 5h, 3d."""
    if seconds is None:
        return "–"
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def size(count: int) -> str:
    """A number of bytes in kB, MB, …, of 1000 each."""
    from rich.filesize import decimal

    return decimal(count)
