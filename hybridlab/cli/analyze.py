"""`hybridlab analyze`: look into a trained model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hybridlab.cli import options as o

_TAKES = {"entropy": ("rows",), "convergence": ("rows", "heads", "passes"), "contributions": ("rows",)}


def analyze(
    run: Annotated[str, typer.Argument(help="Run folder, or the start of its hash.")],
    probe: Annotated[str, typer.Option("--probe", help="entropy, convergence or contributions.")],
    data: Annotated[
        str | None, typer.Option("--data", help="Other text: embedded, text:PATH, jsonl:PATH, hub:NAME.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=1, help="How many sequences.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Heads in a set (convergence).")] = None,
    passes: Annotated[int | None, typer.Option("--passes", min=2, help="Loops (convergence).")] = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Attention entropy by head; convergence of head loops and SGT's Lemma 1; where a looped head looks."""
    from hybridlab.errors import UserError
    from hybridlab.reproduction.evaluate import analyze_run
    from hybridlab.training.folders import Runs

    if probe not in _TAKES:
        raise UserError(f"--probe {probe}: there is no such probe; known: {', '.join(_TAKES)}")
    options = {name: value for name, value in (("rows", rows), ("heads", heads), ("passes", passes)) if value}
    if useless := [name for name in options if name not in _TAKES[probe]]:
        raise UserError(f"--{useless[0]} has no effect on --probe {probe}")
    found = analyze_run(run, Runs(runs_dir), probe, data, options, o.say)
    if as_json:
        o.print_json(found)
        return
    if "skipped" in found:
        raise UserError(f"{run}: {found['skipped']}, so that there is nothing to show")
    {"entropy": _print_entropy, "convergence": _print_convergence, "contributions": _print_contributions}[probe](found)


def _table(title: str, columns: list[str], lines: list[list[Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*(_text(value) for value in line))
    o.console().print(table)


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _print_entropy(found: dict[str, Any]) -> None:
    lines = []
    for layer, row in enumerate(found["heads"]):
        ordered = sorted((v, h + 1) for h, v in enumerate(row) if v is not None)
        low, high = (f"{v:.3f} (H{h})" for v, h in (ordered[0], ordered[-1])) if ordered else ("–", "–")
        deviation = found["layer_variances"][layer]
        lines.append([layer + 1, found["layer_means"][layer], deviation and deviation**0.5, low, high])
    title = f"entropy of the last token, {found['sequences']} sequences of {found['length']} tokens"
    _table(title, ["layer", "mean", "s.d. over heads", "lowest", "highest"], lines)


def _print_convergence(found: dict[str, Any]) -> None:
    lines = []
    for row in found["rows"]:
        heads = ",".join(str(head + 1) for head in row["heads"])
        middle = row["distance"][found["passes"] // 2]
        lines.append(
            [
                row["layer"] + 1,
                row["set"],
                heads,
                row["entropy"],
                row["trace"],
                middle,
                row["change"][-1],
                row["contraction"],
            ]
        )
    title = f"loops of {found['passes']} passes, {found['sequences']} sequences of {found['length']} tokens"
    half = f"‖H({found['passes'] // 2})−H(K)‖"
    _table(title, ["layer", "set", "heads", "entropy", "tr/N", half, "last change", "factor"], lines)
    out, lemma, worst = o.console(), found["lemma"], found["lemma"]["worst"]
    correlation = found["entropy_trace_rank_correlation"]
    lines = [
        f"high-entropy heads settle faster in {found['layers_where_high_is_faster']} of {found['layers']} layers "
        "(factor: how much of its change a pass keeps; above 1 the loop does not converge)",
        f"rank correlation of entropy and trace over {correlation['n']} heads: {_text(correlation['value'])}",
        f"Lemma 1 fails on {lemma['violations']:,} of {lemma['rows']:,} rows ({100 * lemma['share']:.2g} %); mean A_ii "
        f"{lemma['mean_diagonal']:.3f}, mean bound {lemma['mean_bound']:.3f}",
        f"worst: layer {worst['layer'] + 1}, head {worst['head'] + 1}, row {worst['row']}: A_ii = "
        f"{worst['diagonal']:.3f}, bound {worst['bound']:.3f}",
    ]
    for line in lines:
        out.print(line, highlight=False)


def _print_contributions(found: dict[str, Any]) -> None:
    for example in found["examples"]:
        columns = ["token", *(f"loop {i}" for i in range(len(example["loops"])))]
        lines = [[repr(text), *values] for text, *values in zip(example["tokens"], *example["loops"], strict=True)]
        o.console().print(f"A·‖V‖ from the last token: layer {example['layer'] + 1}, head {example['head'] + 1}")
        _table("", columns, lines)
