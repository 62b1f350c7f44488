"""What `pretrain` and `learn-masks` share: options as a layer of settings, training, and the printed result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.cli.options import console, print_json, say
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import read_masks
from hybridlab.training.folders import RunFolder, Runs

LEARNED = ("consa", "l1-gates")
"""The archs whose map is learned first: `learn-masks` trains their controller, `pretrain --masks` what it found."""


def settings_layer(
    arch: str,
    steps: int | None,
    seed: int | None,
    nearest: bool,
    masks: Path | None = None,
    mask: dict[str, Any] | None = None,
    window: int | None = None,
) -> Layer:
    """The options as settings; one that cannot take effect is an error."""
    training = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    values: dict[str, Any] = {"training": training} if training else {}
    origins = {("training", name): f"--{name}" for name in training} | {("map",): "--masks"}
    origins |= {("controller", name): f"--{name}" for name in mask or {}} | {("map", "window"): "--window"}
    if masks is not None:
        if arch not in LEARNED:
            raise UserError(f"--masks belongs to --arch {' or '.join(LEARNED)}, not to --arch {arch}")
        found = read_masks(masks)
        values["map"] = {"kind": "explicit", "masks": found["masks"], "window": found["window"]}
        values["controller"] = None
    elif arch in LEARNED and mask is None:
        raise UserError(
            f"--arch {arch} trains with masks that were learned before: run "
            f"`hybridlab learn-masks --arch {arch} --from RUN --rho 0.5`, then add --masks RUN/masks.json"
        )
    if mask is not None:
        values["controller"] = mask
    if window is not None:
        values["map"] = {"window": window}
    if nearest:
        if mask is not None:
            values["controller"]["nearest"] = True
        elif arch == "rule-swa":
            values["map"] = {"nearest": True}
        else:
            raise UserError(f"--nearest has no effect on --arch {arch}: it has no sparsity target")
    return Layer(values, origins)


def train_and_print(config: RunConfig, run_dir: Path | None, runs: Runs, title: str, as_json: bool) -> None:
    from hybridlab.reproduction.run import execute

    folder = RunFolder(run_dir or runs.directory / run_hash(config))
    record = execute(config, folder, runs, title, say)
    if as_json:
        print_json({"run_dir": str(folder.path), **record})
        return
    print_results(record["results"], f"{config.arch} {config.size}, {record['steps']} steps ({record['hash']})")
    for name, numbers in record["controllers"].items():
        print_mapping(name, {k: v for k, v in numbers.items() if not isinstance(v, list)})
    out = console()
    if record["events"]:
        out.print(f"plan at the end: {record['structure']['plan']}", highlight=False)
    out.print(f"run folder: {folder.path}", highlight=False, soft_wrap=True)
    if (folder.path / "masks.json").exists():
        out.print(f"masks: {folder.path / 'masks.json'}", highlight=False, soft_wrap=True)


def print_results(results: dict[str, Any], title: str) -> None:
    """Measured values with standard error and n."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("metric", "value", "± s.e.", "n"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    loss = results["validation"]
    table.add_row("validation loss (nats/token)", _text(loss["loss"], 4), _text(loss["stderr"], 4), str(loss["n"]))
    table.add_row(
        "validation perplexity", _text(loss["perplexity"], 2), _text(loss["perplexity_stderr"], 2), str(loss["n"])
    )
    table.add_row("bits per byte", _text(loss["bits_per_byte"], 3), "–", str(loss["n"]))
    for factor, found in results.get("extrapolation", {}).items():
        name = f"perplexity at {factor} × the length"
        table.add_row(name, _text(found["perplexity"], 2), _text(found["perplexity_stderr"], 2), str(found["n"]))
    for task in ("retrieval", "assignment"):
        for part in ("all", "inside", "relayed", "outside"):
            found = results.get(task, {}).get(part)
            if found:
                name = f"{task}, {part} (chance {results[task]['chance']:g})"
                table.add_row(name, _text(found["accuracy"], 3), _text(found["stderr"], 3), str(found["n"]))
    console().print(table)
    for probe, found in results.get("probes", {}).items():
        state = f"skipped: {found['skipped']}" if "skipped" in found else "measured; `hybridlab analyze` shows it"
        console().print(f"probe {probe}: {state}", highlight=False, soft_wrap=True)


def print_mapping(title: str, numbers: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=False, title_justify="left")
    for name, value in numbers.items():
        table.add_row(name.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
    console().print(table)


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
