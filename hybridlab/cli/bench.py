"""`hybridlab bench`: how fast models are, beside each other and beside transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o

if TYPE_CHECKING:
    from hybridlab.papers.experiment import Benchmark, BenchmarkModel
    from hybridlab.runs.record import Speed

_PEERS = ("eager", "sdpa", "compiled")


def bench(
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", help="Architecture; repeatable; default: vanilla.", autocompletion=completion.archs),
    ] = None,
    size: Annotated[str, typer.Option("--size", help="Size.", autocompletion=completion.sizes)] = "tiny",
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FORM,FORM",
            help="The first architecture in transformers too: eager, sdpa, compiled (sdpa by torch.compile).",
        ),
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Each architecture with compiled blocks too.")] = False,
    generate: Annotated[
        bool, typer.Option("--generate", help="Time generated tokens in place of training steps and forward passes.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences at once.")] = 8,
    seq_len: Annotated[int, typer.Option("--seq-len", min=2, help="Tokens of a sequence, or of a prompt.")] = 128,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Steps that are timed in a round, or tokens that are generated.")
    ] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Rounds, in which the models take turns.")] = 5,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of each model on a CPU.")] = 1,
    sets: o.Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the times and the machine to this JSON file.")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Time training steps, forward passes or generation of models that take turns, with ratios and their errors.

    Ratios are of speeds: those above 1 are faster than the first model. products: the share of a model's time in matrix
    products and attention kernels.
    """
    # Else torch's profiler, which reads it at import, prints when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from hybridlab.errors import UserError
    from hybridlab.files import write_json
    from hybridlab.papers.experiment import Benchmark

    if compile and generate:
        raise UserError("--compile is for training steps; leave it out with --generate")
    spec = Benchmark(
        kind="generation" if generate else "passes",
        models=_models(list(dict.fromkeys(arch or ["vanilla"])), against, compile, sets or []),
        sizes={"smoke": {size: size}},
        batches=[batch],
        prompt=seq_len,
        new_tokens=repeats,
        rounds=rounds,
        machines={},
    )
    speeds, content = _measured(spec, size, threads)
    if out is not None:
        write_json(out, content)
    if as_json:
        o.print_json(content)
    else:
        _print(f"{size}, {batch} × {seq_len} tokens, {threads} threads", speeds, content)


def _measured(spec: Benchmark, size: str, threads: int) -> tuple[dict[str, dict[str, Speed]], dict[str, Any]]:
    """The speeds, and all that is printed as JSON."""
    from hybridlab.papers.speed import make_models, measure_speeds, same_tokens, share_in_products
    from hybridlab.training.machine import describe_machine, library_versions, pick_device, using_threads

    (batch,), device, same = spec.batches, pick_device("auto"), None
    with using_threads(threads):
        made = make_models(spec, size, device)
        found = measure_speeds(spec, size, device, made)
        shares = {
            name: share_in_products(spec.kind, model, batch, spec.prompt, spec.new_tokens)
            for name, model in made.items()
        }
        if spec.kind == "generation":
            same = same_tokens((made[name] for name in _same(spec.models)), spec.prompt, 16)
    speeds = {name: parts[str(batch)] for name, parts in found.items()}
    return speeds, {
        "benchmark": spec.model_dump(mode="json", exclude={"machines"}),
        "machine": describe_machine(device) | {"threads": threads},
        "libraries": library_versions(),
        "speeds": {name: {part: one.model_dump() for part, one in parts.items()} for name, parts in speeds.items()},
        "share_in_products": {name: round(share, 3) for name, share in shares.items()},
        "same_tokens": same,
        "to_fastest_peer": _to_fastest_peer(spec, speeds),
    }


def _models(archs: list[str], against: str | None, compile: bool, sets: list[str]) -> dict[str, BenchmarkModel]:
    """The models by the name that the table shows; UserError for names that do not exist."""
    from hybridlab.config.loading import load_preset, merge, parse_setting
    from hybridlab.errors import UserError, nearest
    from hybridlab.papers.experiment import BenchmarkModel

    config = merge(*(parse_setting(text) for text in sets)).values
    for arch in archs:
        load_preset("arch", arch)
    models = {arch: BenchmarkModel(arch=arch, config=config) for arch in archs}
    if compile:
        models |= {f"{arch}, compiled": BenchmarkModel(arch=arch, config=config, compiled=True) for arch in archs}
    for name in (part.strip() for part in against.split(",")) if against is not None else ():
        if name not in _PEERS:
            raise UserError(f"--against {against}: {name!r} is no form; {nearest(name, list(_PEERS))}")
        form = {"form": "sdpa", "compiled": True} if name == "compiled" else {"form": name}
        models[f"transformers, {name}"] = BenchmarkModel(arch=archs[0], config=config, **form)
    return models


def _same(models: dict[str, BenchmarkModel]) -> list[str]:
    """The names of the forms of the first model."""
    first = next(iter(models.values()))
    return [name for name, model in models.items() if model.arch == first.arch]


def _to_fastest_peer(spec: Benchmark, speeds: dict[str, dict[str, Speed]]) -> dict[str, Any]:
    """Part → how many times as fast the fastest form of the first model here is as its fastest form elsewhere."""
    from statistics import median

    from hybridlab.statistics import paired_ratio

    found: dict[str, Any] = {}
    ours = [name for name in _same(spec.models) if spec.models[name].form == "hybridlab"]
    peers = [name for name in _same(spec.models) if spec.models[name].form != "hybridlab"]
    for part in next(iter(speeds.values())) if peers else ():
        one, other = (min(names, key=lambda name: median(speeds[name][part].seconds)) for names in (ours, peers))
        ratio = paired_ratio(speeds[other][part].seconds, speeds[one][part].seconds)
        found[part] = {"model": one, "peer": other, "ratio": ratio.model_dump()}
    return found


def _print(title: str, speeds: dict[str, dict[str, Speed]], content: dict[str, Any]) -> None:
    from statistics import median

    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("model", "part", "ms", "tokens/s", "× first", "± s.e.", "products"):
        table.add_column(name, justify="left" if name in ("model", "part") else "right")
    for name, parts in speeds.items():
        for part, one in parts.items():
            ratio = [f"{value:.3f}" if value is not None else "–" for value in (one.ratio.value, one.ratio.stderr)]
            rate, share = one.tokens_per_second.value or 0, f"{content['share_in_products'][name]:.0%}"
            table.add_row(name, part, f"{1e3 * median(one.seconds):,.1f}", f"{rate:,.0f}", *ratio, share)
    out = o.console()
    out.print(table)
    for part, against in content["to_fastest_peer"].items():
        value, stderr = (against["ratio"][key] for key in ("value", "stderr"))
        words = f"{part}: {against['model']} is {value:.3f} ± {stderr:.3f} × as fast as {against['peer']}"
        out.print(words, highlight=False, soft_wrap=True)
    if content["same_tokens"] is not None and len(speeds) > 1:
        same = "the same tokens" if content["same_tokens"] else "other tokens, by rounding"
        out.print(f"forms of the first model generate {same}", highlight=False)
