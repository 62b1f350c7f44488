"""Code that the commands that train share: options as a layer of settings, training, and printed results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlab.attention.kinds import Full
from hybridlab.cli import options as o
from hybridlab.config.loading import Layer, load_preset, merge, options_layer
from hybridlab.config.maps import map_of_settings
from hybridlab.config.method import controller_of
from hybridlab.config.resolve import run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.config.shared_settings import archs_with
from hybridlab.config.structures import final_structure
from hybridlab.errors import RunFailed, UserError
from hybridlab.files import user_path
from hybridlab.messages import say
from hybridlab.models.ledger.drawing import as_text, rows
from hybridlab.models.ledger.parameters import kv_bytes
from hybridlab.plan.allocation import read_masks
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import COUNTING
from hybridlab.registry import FINETUNE_TASKS
from hybridlab.training.store.folders import Label, RunFolder, Runs

if TYPE_CHECKING:
    import typer

    from hybridlab.evaluation.results import Results
    from hybridlab.runs.cluster import Cluster
    from hybridlab.runs.record import Record
    from hybridlab.statistics import Measurement


def settings_layer(
    arch: str,
    steps: int | None,
    seed: int | None,
    nearest: bool,
    masks: Path | None = None,
    mask: dict[str, Any] | None = None,
    window: int | None = None,
) -> Layer:
    """The options as a layer of settings; UserError for an option without effect."""
    options: dict[str, tuple[str, Any]] = {"training.steps": ("--steps", steps), "training.seed": ("--seed", seed)}
    options |= {f"controller.{name}": (f"--{name}", value) for name, value in (mask or {}).items()}
    options["map.window"] = ("--window", window)
    preset, learned = load_preset("arch", arch).values, Layer()
    method, kind = controller_of(preset), map_of_settings(preset)
    learns = method is not None and method.learns_masks
    if masks is not None:
        if not learns:
            raise UserError(f"--masks belongs to --arch {' or '.join(mask_learners())}, not to --arch {arch}")
        content = read_masks(masks)
        for warning in content["warnings"]:
            say(f"{masks}: warning: {warning}")
        explicit = {"kind": "explicit", "masks": content["masks"], "window": content["window"]}
        learned = Layer({"map": explicit, "controller": None}, {("map",): "--masks"})
    elif learns and mask is None:
        raise UserError(
            f"--arch {arch} needs masks that were learned before: run "
            f"`hybridlab learn-masks --arch {arch} --from RUN --rho 0.5 --name NAME`, then add --masks NAME"
        )
    if nearest:
        if mask is None and (kind is None or "nearest" not in kind.model_fields):
            raise UserError(f"--nearest has no effect on --arch {arch}: it has no sparsity target")
        options["map.nearest" if mask is None else "controller.nearest"] = ("--nearest", True)
    return merge(options_layer(options), learned)


def masks_file(reference: str | None, runs: Runs) -> Path | None:
    """The file that `--masks` names, or that of the run that it names, if any. UserError if a run has none."""
    if reference is None:
        return None
    path = user_path(reference)
    if path.is_file() or path.suffix == ".json":
        return path
    file = runs.find(reference).path / "masks.json"
    if not file.exists():
        raise UserError(
            f"--masks {reference}: {file.parent} has learned no masks; name a run of `hybridlab learn-masks`"
        )
    return file


def mask_learners() -> list[str]:
    """Archs with two stages: `learn-masks` learns masks, then `pretrain --masks` trains with them."""
    return archs_with(lambda controller: controller.learns_masks)


def runtime_layer(track: list[str] | None, compile: bool | None) -> Layer:
    """The options of how a run is computed, which change no hash."""
    return options_layer({"runtime.track": ("--track", track or None), "runtime.compile": ("--compile", compile)})


def composed(common: o.OneRun, runs: Runs, options: Layer, **request: Any) -> RunConfig:
    """The configuration of a run with these options and those that all commands have; request: see `Request`."""
    from hybridlab.runs.compose import Request, compose

    layer = merge(runtime_layer(common.track, common.compile), options)
    return compose(Request(config=common.config, options=layer, settings=common.sets or [], **request), runs)


def require_extendable(context: typer.Context, start: str | None, allowed: list[str]) -> None:
    """UserError for `--extend` without --from, and for an option that would be ignored."""
    if start is None:
        raise UserError("--extend: name the run to train longer with --from RUN")
    for name, option in o.written(context).items():
        if name not in allowed:
            raise UserError(f"{option} has no effect with --extend, which keeps the settings of {start}")


def train_and_print(config: RunConfig, runs: Runs, title: str, common: o.OneRun) -> None:
    """Train, resume or skip a run, and print its record. runs: those with which its parents were found."""
    from hybridlab.runs.run import train_run
    from hybridlab.runs.settling import learned
    from hybridlab.training.world import world

    config, label = _keeping_optimizer(config, common), _label(common)
    if (cluster := common.launching.cluster()) is not None:
        submit_run(config, common.run_dir, runs, title, label, cluster)
        return
    folder = None if common.run_dir is None else RunFolder(common.run_dir)
    record = train_run(config, folder, runs, title, label=label)
    if not world().writer:
        return
    folder = folder or RunFolder(runs.directory / record.hash)
    if label.name is not None and folder.path.resolve().parent != runs.directory.resolve():
        place = folder.path.parent
        say(f"--name {label.name}: the run lies outside RUNS-DIR; it is found by name with --runs-dir {place}")
    print_run(config, folder, record, common.as_json)
    if learned(record).get("settled") is False and record.steps in folder.checkpoint_steps:
        further = f"hybridlab pretrain --from {folder.path} --extend {learned(record).get('more_steps') or 'STEPS'}"
        say(f"{title}: go on with `{further}`; `learn-masks --until-settled` goes on by itself")


def settle_and_print(config: RunConfig, runs: Runs, title: str, common: o.OneRun) -> None:
    """Learn masks until they have settled, and print the record of the last run; RunFailed if they have not settled.
    UserError for options that only a single run can have."""
    from hybridlab.runs.settling import LIMIT, learned, train_until_settled
    from hybridlab.training.world import world

    if common.run_dir is not None:
        raise UserError("--run-dir: --until-settled can make several runs, in RUNS-DIR; name the last one with --name")
    if common.launching.cluster() is not None:
        raise UserError("--launcher slurm: --until-settled waits for every run; leave one of the two out")
    last, record = train_until_settled(_keeping_optimizer(config, common), runs, title, _label(common))
    if not world().writer:
        return
    print_run(last.config, last.folder, record, common.as_json)
    if learned(record).get("settled") is False:
        raise RunFailed(
            f"{last.folder.path}: the masks have not settled after {record.steps} steps, and --until-settled ends at "
            f"{LIMIT} times the first {config.training.steps}; go on with `hybridlab pretrain --from "
            f"{last.folder.path} --extend {config.training.steps}`"
        )


def _keeping_optimizer(config: RunConfig, common: o.OneRun) -> RunConfig:
    """The configuration with `--keep-optimizer`, if that is given."""
    if not common.keep_optimizer:
        return config
    runtime = config.runtime.model_copy(update={"keep_optimizer": True})
    return config.model_copy(update={"runtime": runtime})


def _label(common: o.OneRun) -> Label:
    return Label(common.name, tuple(common.tags or []))


def print_run(config: RunConfig, folder: RunFolder, record: Record, as_json: bool) -> None:
    """Print the record of a finished run."""
    masks = folder.path / "masks.json"
    chosen: Structure | None = None
    if masks.exists():
        content = read_masks(masks)
        learned = AttentionMap.from_masks(content["masks"], content["window"])
        chosen = final_structure(config).changed(map=learned)
    if as_json:
        caches = _kv_bytes(chosen) if chosen is not None else {}
        sizes = {"kv_bytes": caches} if caches else {}
        o.print_json({"run_dir": str(folder.path), **record.model_dump(mode="json"), **sizes})
        return
    if record.results is not None:
        print_results(record.results, f"{config.arch} {config.size}, {record.steps} steps ({record.hash})")
    for name, numbers in record.hooks.items():
        print_mapping(name, {k: v for k, v in numbers.items() if not isinstance(v, list)})
    out = o.console()
    if record.events:
        out.print(f"plan at the end: {record.model.plan}")
        out.print(f"({COUNTING})")
    out.print(f"run folder: {folder.path}", soft_wrap=True)
    if chosen is not None:
        out.print(as_text(rows(chosen)), markup=False)
        if caches := _kv_bytes(chosen):
            lines = [
                [f"{context:,}", f"{full:,}", f"{small:,}", f"{1 - small / full:.1%}"]
                for context, (full, small) in ((context, sizes.values()) for context, sizes in caches.items())
            ]
            columns = ("context (tokens)", "full attention", "with the masks", "saved")
            out.print(o.table("KV cache of one sequence, bf16 (bytes)", (), columns, lines))
        out.print(f"masks: {masks}", soft_wrap=True)


_CONTEXTS = (4_096, 32_768, 131_072)
"""Tokens for which the cache is shown."""


def _kv_bytes(structure: Structure) -> dict[int, dict[str, int]]:
    """Context → bytes of the cache of one sequence with full attention and with the masks; empty for an encoder."""
    if not structure.caches:
        return {}
    shape = structure.shape
    full = structure.changed(map=AttentionMap.uniform(shape.layers, shape.kv_heads, Full()))
    return {context: {"full": kv_bytes(full, context), "masks": kv_bytes(structure, context)} for context in _CONTEXTS}


def submit_run(config: RunConfig, path: Path | None, runs: Runs, title: str, label: Label, cluster: Cluster) -> None:
    """Submit a single run to a cluster, unless it has finished. UserError for options that only a run here can have."""
    from hybridlab.runs.queue import run_all
    from hybridlab.training.store.folders import UNLABELLED

    digest = run_hash(config)
    if label != UNLABELLED or path not in (None, runs.directory / digest):
        raise UserError("--launcher slurm: --name, --tag and --run-dir are for runs of this machine; leave them out")
    pending, records = {digest: (title, config)}, runs.directory / "records"
    run_all(pending, runs.directory, records, cluster, places=runs.places)


def print_results(results: Results, title: str) -> None:
    """Print measured values with standard error and n."""
    table = o.table(title, ("metric",), ("value", "± s.e.", "n"))

    def add(name: str, measured: Measurement | None, digits: int) -> None:
        if measured is not None:
            table.add_row(name, o.number(measured.value, digits), o.number(measured.stderr, digits), str(measured.n))

    text = results.validation
    if results.finetune is not None:
        task, guesses = results.finetune.task, results.finetune.baseline
        for name, measured in results.finetune.metrics.items():
            guess = o.number(guesses[name].value if name in guesses else None, 3)
            add(f"{task}, {name.replace('_', ' ')} (constant guess {guess})", measured, 4)
        chats = FINETUNE_TASKS.get(task).kind == "chat"
        add("loss of a token of the answers (nats)" if chats else "loss of an example", text.loss, 4)
    else:
        add("validation loss (nats/token)", text.loss, 4)
        for name, source in text.sources.items():
            add(f"  on {name}", source.loss, 4)
        if text.pseudo_perplexity is None:
            add("validation perplexity", text.perplexity, 2)
            add("bits per byte", text.bits_per_byte, 3)
        else:
            add("validation pseudo-perplexity", text.pseudo_perplexity, 2)
    for factor, longer in results.extrapolation.items():
        pseudo = longer.pseudo_perplexity
        kind = "perplexity" if pseudo is None else "pseudo-perplexity"
        add(f"{kind} at {factor} × the length", pseudo or longer.perplexity, 2)
    for task, answers in results.tasks.items():
        for part in ("all", "inside", "relayed", "outside"):
            add(f"{task}, {part} (chance {answers.chance:g})", getattr(answers, part), 3)
        for part in ("all", "far") if answers.loss is not None else ():
            add(f"{task}, loss {part} (chance {-math.log(answers.chance):.3f})", getattr(answers.loss, part, None), 3)
    for name, choices in results.choices.items():
        add(f"{name}, {choices.shots} shots (chance {choices.chance:g})", choices.accuracy, 3)
        add(f"{name}, loss (chance {-math.log(choices.chance):.3f})", choices.loss, 3)
    if len(results.choices) > 1:
        add("mean accuracy of these", results.choices_mean, 3)
    out = o.console()
    out.print(table)
    if "leak" in results.causality:
        out.print(f"this model leaks: {results.causality['leak']}", soft_wrap=True)
    for name, choices in results.choices.items():
        if choices.prompt_tokens and choices.training_tokens and choices.prompt_tokens > choices.training_tokens:
            trained = f"trained on {choices.training_tokens}"
            out.print(f"{name}: prompts of up to {choices.prompt_tokens} tokens, {trained}", soft_wrap=True)
    if "probe" in results.causality:
        out.print(f"causality probe: {results.causality['probe']}", soft_wrap=True)
    for probe, numbers in results.probes.items():
        state = f"skipped: {numbers['skipped']}" if "skipped" in numbers else "measured; `hybridlab analyze` shows it"
        out.print(f"probe {probe}: {state}", soft_wrap=True)


def print_mapping(title: str, numbers: dict[str, Any]) -> None:
    """Print names and values in two columns."""
    rows = [(name.replace("_", " "), o.number(value, 4)) for name, value in numbers.items()]
    o.console().print(o.table(title, rows=rows, show_header=False))
