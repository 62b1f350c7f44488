"""`hybridlab analyze`: look into a trained model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hybridlab.cli import options as o

_TAKES = {
    "entropy": ("rows",),
    "convergence": ("rows", "heads", "passes"),
    "contributions": ("rows",),
    "loops": ("rows",),
    "reach": (),
}


def analyze(
    run: Annotated[str, typer.Argument(help="Run folder, or the start of its hash.")],
    probe: Annotated[str, typer.Option("--probe", help="entropy, convergence, contributions, loops or reach.")],
    data: Annotated[
        str | None, typer.Option("--data", help="Other text: embedded, text:PATH, jsonl:PATH, hub:NAME.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=1, help="How many sequences.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="Heads in a set (convergence).")] = None,
    passes: Annotated[int | None, typer.Option("--passes", min=2, help="Loops (convergence).")] = None,
    runs_dir: o.RunsDir = o.RUNS,
    as_json: o.AsJson = False,
) -> None:
    """Attention entropy by head; convergence of head loops and SGT's Lemma 1; where a looped head looks; how attention
    changes over the iterations of a loop; which tokens reach which outputs."""
    from hybridlab.errors import UserError
    from hybridlab.reproduction.evaluate import analyze_run
    from hybridlab.training.folders import Runs

    if probe not in _TAKES:
        raise UserError(f"--probe {probe}: there is no such probe; known: {', '.join(_TAKES)}")
    options = {name: value for name, value in (("rows", rows), ("heads", heads), ("passes", passes)) if value}
    if useless := [name for name in options if name not in _TAKES[probe]]:
        raise UserError(f"--{useless[0]} has no effect on --probe {probe}")
    found = analyze_run(run, Runs(runs_dir), probe, data, options, o.say)
    if "skipped" in found:
        raise UserError(f"{run}: {found['skipped']}, so that there is nothing to show")
    if as_json:
        o.print_json(found)
        return
    _PRINTED[probe](found)


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
    half = found["passes"] // 2
    for row in found["rows"]:
        heads = ",".join(str(head + 1) for head in row["heads"])
        factor = f"{row['factor']:.3f}" + ("" if row["factor_stderr"] is None else f" ± {row['factor_stderr']:.3f}")
        numbers = [row["entropy"], row["trace_share"], row["distance"][half], factor]
        lines.append([row["layer"] + 1, row["set"], heads, *numbers])
    title = f"loops of {found['passes']} passes, {found['sequences']} sequences of {found['length']} tokens"
    _table(title, ["layer", "set", "heads", "entropy", "trace/N", f"‖H({half})−H(K)‖", "factor"], lines)
    drift = (found["passes"] - half) / found["passes"]
    correlation = found["entropy_trace_rank_correlation"]
    texts = [
        f"‖H({half})−H(K)‖ is relative to ‖H(0)−H(K)‖ ({drift:.3f}: equal steps, no convergence); factor: how much of "
        "its change a pass leaves to the next one (1: none is lost)",
        f"high-entropy heads settle faster in {found['layers_where_high_is_faster']} of {found['layers']} layers, "
        f"low-entropy heads in {found['layers_where_low_is_faster']} (more than two standard errors)",
        f"rank correlation of entropy and trace over {correlation['n']} heads: {_text(correlation['value'])}",
        *_lemma_texts(found["lemma"]),
    ]
    for text in texts:
        o.console().print(text, highlight=False)


def _lemma_texts(lemma: dict[str, Any]) -> list[str]:
    share = f"{lemma['violations']:,} of {lemma['rows']:,} rows ({100 * lemma['share']:.2g} %)"
    texts = [f"Lemma 1 fails on {share}; mean A_ii {lemma['mean_diagonal']:.3f}, mean bound {lemma['mean_bound']:.3f}"]
    if worst := lemma["worst"]:
        rows = ", ".join(f"row {row}: {count:,}" for row, count in list(lemma["violations_by_row"].items())[:6])
        place = f"layer {worst['layer'] + 1}, head {worst['head'] + 1}, row {worst['row']}"
        texts.append(f"  where: {rows}; worst: {place}: A_ii = {worst['diagonal']:.3f}, bound {worst['bound']:.3f}")
    return texts


def _print_contributions(found: dict[str, Any]) -> None:
    for example in found["examples"]:
        columns = ["token", *(f"loop {i}" for i in range(len(example["loops"])))]
        lines = [[repr(text), *values] for text, *values in zip(example["tokens"], *example["loops"], strict=True)]
        o.console().print(f"A·‖V‖ from the last token: layer {example['layer'] + 1}, head {example['head'] + 1}")
        _table("", columns, lines)


def _print_loops(found: dict[str, Any]) -> None:
    lines = []
    for t, g in enumerate(found["chunks"]):
        means = [found[name][part][t] for name in ("entropy", "local_mass") for part in ("means", "dynamic_means")]
        lines.append([t + 1, "1" if g == 1 else f"1/{g}", *means])
    columns = ["loop", "resolution", "entropy", "dynamic heads", "local mass", "dynamic heads"]
    _table(f"attention by iteration, {found['sequences']} sequences of {found['length']} tokens", columns, lines)


def _print_reach(found: dict[str, Any]) -> None:
    for t, (g, rows) in enumerate(zip(found["chunks"], found["maps"], strict=True)):
        o.console().print(f"after loop {t + 1} (chunks of {g}): rows are outputs, columns inputs that reach them")
        for row in rows:
            o.console().print("".join("█" if value else "·" for value in row), highlight=False)


_PRINTED = {
    "entropy": _print_entropy,
    "convergence": _print_convergence,
    "contributions": _print_contributions,
    "loops": _print_loops,
    "reach": _print_reach,
}
