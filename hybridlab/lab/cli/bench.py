"""`hybridlab bench`: how fast models are, beside each other and beside transformers."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridlab.cli import completion
from hybridlab.cli import options as o
from hybridlab.errors import UserError, nearest

if TYPE_CHECKING:
    from hybridlab.config.loading import Layer
    from hybridlab.lab.papers.experiment import Benchmark, BenchmarkModel
    from hybridlab.runs.record import Speed

_PEERS = ("eager", "sdpa", "compiled")
_INSTEAD = {
    "training.seq_len": "--seq-len N or --over seq-len=N,N",
    "training.tokens_per_step": "--batch N or --over batch=N,N",
    "runtime.threads": "--threads N",
    "runtime.compile": "--compile",
}
"""Settings of a run that are options of a benchmark."""


_Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        metavar="NAME [SETTING=VALUE …]",
        help="Architecture, with settings of its own in the same word: 'sgt controller.max_passes=3'; repeatable; "
        "default: vanilla.",
        autocompletion=completion.archs,
    ),
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="FORM,FORM",
        help="The first architecture in transformers too: eager, sdpa, compiled (sdpa by torch.compile).",
    ),
]
_Compile = Annotated[bool, typer.Option("--compile", help="Each architecture compiled too.")]
_Generate = Annotated[
    bool, typer.Option("--generate", help="Time generated tokens in place of training steps and forward passes.")
]
_WholeRun = Annotated[
    bool, typer.Option("--whole-run", help="Time steps at all structures that a run has, such as growing depths.")
]
_Over = Annotated[
    str | None,
    typer.Option(
        "--over",
        metavar="NAME=V,V,…",
        help="Measure at each of these values of batch, seq-len or a setting: seq-len=1024,2048,4096.",
    ),
]
_Repeats = Annotated[
    int, typer.Option("--repeats", min=1, help="Steps that are timed in a round, or tokens that are generated.")
]
_Rounds = Annotated[int, typer.Option("--rounds", min=2, help="Rounds, in which the models take turns.")]
_Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of each model on a CPU.")]
_Out = Annotated[Path | None, o.output(help="Also write the times and the machine to this JSON file.")]
_Figure = Annotated[
    Path | None, o.output("picture", help="Also draw time and memory of a step over the values of --over.")
]

_From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Instead of --size: the shape of a run, a Hugging Face folder or a GGUF file, with random weights, on "
        "which no time depends.",
        autocompletion=completion.runs,
    ),
]


def bench(
    arch: _Archs = None,
    size: Annotated[str | None, typer.Option(help="Size; default: tiny.", autocompletion=completion.sizes)] = None,
    start: _From = None,
    against: _Against = None,
    compile: _Compile = False,
    generate: _Generate = False,
    whole_run: _WholeRun = False,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 8,
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens of a sequence, or of a prompt.")] = 128,
    over: _Over = None,
    repeats: _Repeats = 4,
    rounds: _Rounds = 5,
    threads: _Threads = 1,
    sets: o.Sets = None,
    runs_dir: o.RunsDir = o.RUNS,
    out: _Out = None,
    figure: _Figure = None,
    as_json: o.AsJson = False,
) -> None:
    """Time training steps, forward passes or generation of models that take turns, with ratios and their errors.

    Ratios are of speeds: those above 1 are faster than the first model. FLOPs: as counted, relative to the first model.
    products: the share of a model's time in matrix products and attention kernels. GB: what a training step needs at
    its peak, counted from its tensors. MFU, on a GPU whose peak is known: the counted FLOPs as a share of it.
    """
    # Else torch's profiler, which reads it at import, prints when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from hybridlab.files import is_stream, write_json
    from hybridlab.lab.papers.experiment import Benchmark
    from hybridlab.training.machine import describe_machine, library_versions, pick_device

    if whole_run and generate:
        raise UserError("--whole-run is for training steps; leave it out with --generate")
    if figure is not None and (over is None or generate or whole_run):
        raise UserError("--figure draws steps over the values of --over; leave out --generate and --whole-run")
    kind: Any = "generation" if generate else "training" if whole_run else "passes"
    title, size, shape = _sized(size, start, runs_dir)
    archs = _named(list(dict.fromkeys(arch or ["vanilla"])))
    name = None if over is None else over.partition("=")[0]
    about = {"machine": describe_machine(pick_device("auto")) | {"threads": threads}, "libraries": library_versions()}
    points: list[dict[str, Any]] = []
    values = _points(over, batch, seq_len)
    for value, (at_batch, at_length, more) in values.items():
        models = _models(archs, size, against, compile, [*shape, *map(_setting, sets or []), *more])
        spec = Benchmark(
            kind=kind,
            models=models,
            sizes={"smoke": {size: size}},
            batches=[at_batch],
            prompt=at_length,
            new_tokens=repeats,
            rounds=rounds,
            machines={},
        )
        points.append(({} if over is None else {"value": value}) | _measured(spec, size, threads))
        content = about | (points[0] if name is None else {"over": name, "points": points})
        # After each point, so that an interrupted benchmark keeps what it has measured.
        if out is not None and (len(points) == len(values) or not is_stream(out)):
            write_json(out, content)
    if figure is not None:
        from hybridlab.runs.pictures import draw_costs

        draw_costs(content, figure)
    if as_json:
        o.print_json(content)
    else:
        _print(f"{title}, {threads} thread{'s' * (threads != 1)}", archs, points, name)


def _sized(size: str | None, start: str | None, runs_dir: Path) -> tuple[str, str, list[Layer]]:
    """The name of what is measured, its size, and its shape where another model gives that. UserError if both a size
    and a model are given."""
    if start is None:
        return size or "tiny", size or "tiny", []
    if size is not None:
        raise UserError(f"--size {size} and --from {start} both give a shape; leave one of the two out")
    from hybridlab.attention.kinds import Full
    from hybridlab.config.loading import Layer
    from hybridlab.messages import say
    from hybridlab.training.store.artifacts import find_model
    from hybridlab.training.store.folders import Runs

    model = find_model(start, Runs(runs_dir))
    layers = model.structure.map.layers if model.pretrained else ()
    if windowed := sum(set(row) != {Full()} for row in layers):
        say(f"--from {start}: its shape alone is timed, without the windows of {windowed} of its {len(layers)} layers")
    return model.size, "tiny", [Layer({"shape": model.shape.to_json()}, {(): f"--from {start}"})]


def _points(over: str | None, batch: int, seq_len: int) -> dict[float | str, tuple[int, int, list[Layer]]]:
    """Value of --over → batch, sequence length, settings; one point without --over. UserError if it is malformed."""
    from hybridlab.config.resolve import Written

    if over is None:
        return {"": (batch, seq_len, [])}
    name, _, values = over.partition("=")
    points: dict[float | str, tuple[int, int, list[Layer]]] = {}
    names = ["batch", "seq-len", *Written.model_fields]
    if name.partition(".")[0] not in names:
        hint = nearest(name, names, "write NAME=128,256,512")
        raise UserError(f"--over {over}: {name!r} is neither batch, seq-len nor a setting; {hint}")
    for text in filter(None, (part.strip() for part in values.split(","))):
        try:
            number = int(text)
        except ValueError:
            raise UserError(f"--over {over}: {text!r} is no whole number; write NAME=128,256,512") from None
        if number < (2 if name == "seq-len" else 1):
            raise UserError(f"--over {over}: {text} is too small")
        sizes: dict[str, tuple[int, int, list[Layer]]]
        sizes = {"batch": (number, seq_len, []), "seq-len": (batch, number, [])}
        points[number] = sizes.get(name) or (batch, seq_len, [_setting(f"{name}={text}", f"--over {over}")])
    if not points:
        raise UserError(f"--over {over}: write NAME=128,256,512, with batch, seq-len or a setting as NAME")
    return points


def _measured(spec: Benchmark, size: str, threads: int) -> dict[str, Any]:
    """What is printed as JSON of one batch and length."""
    from hybridlab.lab.papers.speed import alone, counted, make_models, measure_speeds, same_tokens, share_in_products
    from hybridlab.training.machine import peak_of, pick_device, using_threads

    (batch,), device, same = spec.batches, pick_device("auto"), None
    with using_threads(threads):
        models = make_models(spec, size, device)
        all_speeds = measure_speeds(spec, size, device, models)
        shares = {
            key: share_in_products(spec.kind, alone(models, key), batch, spec.prompt, spec.new_tokens) for key in models
        }
        if spec.kind == "generation":
            same = same_tokens((models[name] for name in _same(spec.models)), spec.prompt, 16)
    speeds = {name: parts[str(batch)] for name, parts in all_speeds.items()}
    counts = {name: counted(spec, model, size, device) for name, model in spec.models.items()}
    return {
        "benchmark": spec.model_dump(mode="json", exclude={"machines"}),
        "speeds": {name: {part: speed.model_dump() for part, speed in parts.items()} for name, parts in speeds.items()},
        "share_in_products": {name: round(share, 3) for name, share in shares.items()},
        "gigabytes": {name: count["gigabytes"] for name, count in counts.items()},
        "flops": {name: count["flops"] for name, count in counts.items()},
        "mfu": {name: _utilisation(counts[name]["flops"], parts, peak_of(device)) for name, parts in speeds.items()},
        "same_tokens": same,
        "to_fastest_peer": _to_fastest_peer(spec, speeds),
    }


def _utilisation(
    flops: dict[str, float] | None, speeds: dict[str, Speed], peak: float | None
) -> dict[str, float] | None:
    """Part → its counted FLOPs in a second, as a share of the device's peak; None where either is not known."""
    from statistics import median

    if flops is None or peak is None:
        return None
    return {part: float(f"{flops[part] / median(speeds[part].seconds) / peak:.4g}") for part in speeds}


def _named(texts: list[str]) -> dict[str, list[str]]:
    """Name of a model in the table → its architecture and settings: a second one of an architecture gets a number.
    UserError for a text that names none."""
    names: dict[str, list[str]] = {}
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"--arch {text}: {error}") from None
        if not words:
            raise UserError("--arch is empty; write a name, such as sgt, or 'sgt controller.max_passes=3'")
        number = sum(other[0] == words[0] for other in names.values())
        names[words[0] if not number else f"{words[0]} {number + 1}"] = words
    return names


def _models(
    archs: dict[str, list[str]], size: str, against: str | None, compile: bool, sets: list[Layer]
) -> dict[str, BenchmarkModel]:
    """The models by the name that the table shows; UserError for names that do not exist and settings that do not
    fit."""
    from hybridlab.config.loading import merge
    from hybridlab.config.resolve import resolve
    from hybridlab.lab.papers.experiment import BenchmarkModel

    models: dict[str, BenchmarkModel] = {}
    for name, (arch, *texts) in archs.items():
        settings = merge(*sets, *(_setting(text, f"--arch '{shlex.join([arch, *texts])}'") for text in texts))
        resolve(arch, size, layers=[replace(settings, asked=False)])  # here, where an error can name the option
        models[name] = BenchmarkModel(arch=arch, config=settings.values)
    first = next(iter(models.values()))
    if compile:
        models |= {f"{name}, compiled": models[name].model_copy(update={"compiled": True}) for name in archs}
    for name in (part.strip() for part in against.split(",")) if against is not None else ():
        if name not in _PEERS:
            raise UserError(f"--against {against}: {name!r} is no form; {nearest(name, list(_PEERS))}")
        form: dict[str, Any] = {"form": "sdpa", "compiled": True} if name == "compiled" else {"form": name}
        models[f"transformers, {name}"] = first.model_copy(update=form)
    return models


def _setting(text: str, option: str | None = None) -> Layer:
    """A setting as a layer, with the option it stands in, by default --set; UserError for one that only a run reads."""
    from hybridlab.config.loading import given_of, parse_setting
    from hybridlab.config.schema import Evaluation, Runtime

    runtime = [name for name in Runtime.model_fields if name not in ("kernel", "activation_checkpointing")]
    unread = {"training": ("seq_len", "tokens_per_step"), "evaluation": Evaluation.model_fields, "runtime": runtime}
    layer = parse_setting(text, option)
    if unused := given_of(layer, unread):
        instead = f"use {_INSTEAD[unused]}" if unused in _INSTEAD else "leave it out"
        raise UserError(f"{layer.origin(())}: {unused} has no effect on a benchmark; {instead}")
    return layer


def _same(models: dict[str, BenchmarkModel]) -> list[str]:
    """The names of the forms of the first model."""
    first = next(iter(models.values()))
    return [name for name, model in models.items() if (model.arch, model.config) == (first.arch, first.config)]


def _to_fastest_peer(spec: Benchmark, speeds: dict[str, dict[str, Speed]]) -> dict[str, Any]:
    """Part → how many times as fast the fastest form of the first model here is as its fastest form elsewhere."""
    from statistics import median

    from hybridlab.statistics import paired_ratio

    comparisons: dict[str, Any] = {}
    ours = [name for name in _same(spec.models) if spec.models[name].form == "hybridlab"]
    peers = [name for name in _same(spec.models) if spec.models[name].form != "hybridlab"]
    for part in next(iter(speeds.values())) if peers else ():
        model, peer = (min(names, key=lambda name: median(speeds[name][part].seconds)) for names in (ours, peers))
        ratio = paired_ratio(speeds[peer][part].seconds, speeds[model][part].seconds)
        comparisons[part] = {"model": model, "peer": peer, "ratio": ratio.model_dump()}
    return comparisons


def _print(title: str, archs: dict[str, list[str]], points: list[dict[str, Any]], over: str | None) -> None:
    from statistics import median

    spec = points[0]["benchmark"]
    held = {"batch": f"batch {spec['batches'][0]}", "seq-len": f"{spec['prompt']:,} tokens"}
    title = ", ".join((title, *(text for name, text in held.items() if name != over)))
    table = o.table(title, padding=(0, 1, 0, 0))
    left = ("model", "part")
    used = ["MFU"] if any(mfu is not None for point in points for mfu in point["mfu"].values()) else []
    columns = (*left, "ms", "× first", "± s.e.", "FLOPs", "products", "GB", *used)
    for name in (*([] if over is None else [over]), *columns):
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for point in points:
        for name, parts in point["speeds"].items():
            share, memory = f"{point['share_in_products'][name]:.0%}", point["gigabytes"][name]
            for part, speed in parts.items():
                ratio = [o.number(speed["ratio"][of], 3) for of in ("value", "stderr")]
                flops = [point["flops"][of] for of in (name, next(iter(point["speeds"])))]
                work = f"{flops[0][part] / flops[1][part]:.3f}" if None not in flops else "–"
                first = [] if over is None else [f"{point['value']:,}"]
                peak = f"{memory:.3f}" if memory is not None and part != "forward" else "–"
                milliseconds = f"{1e3 * median(speed['seconds']):,.1f}"
                mfu = [f"{point['mfu'][name][part]:.1%}" if point["mfu"][name] else "–"] if used else []
                table.add_row(*first, name, part, milliseconds, *ratio, work, share, peak, *mfu)
    out = o.console()
    out.print(table)
    for name, texts in archs.items():
        if texts != [name]:
            out.print(f"{name}: {' '.join(texts)}", soft_wrap=True)
    for point in points:
        at = "" if over is None else f"{over} {point['value']:,}: "
        for part, against in point["to_fastest_peer"].items():
            value, stderr = (against["ratio"][key] for key in ("value", "stderr"))
            words = f"{at}{part}: {against['model']} is {value:.3f} ± {stderr:.3f} × as fast as {against['peer']}"
            out.print(words, soft_wrap=True)
        if point["same_tokens"] is not None and len(point["speeds"]) > 1:
            same = "the same tokens" if point["same_tokens"] else "other tokens, by rounding"
            out.print(f"{at}forms of the first model generate {same}")
