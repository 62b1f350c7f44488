"""The configuration of a single run from what a user asks for, with the command line or from Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridlab.attention.kinds import Full
from hybridlab.config.edits import Recur
from hybridlab.config.loading import (
    Layer,
    check,
    is_preset,
    load_preset,
    load_settings,
    merge,
    named_preset,
    options_layer,
    parse_setting,
)
from hybridlab.config.maps import HeadsMap
from hybridlab.config.other_runs import with_run_names
from hybridlab.config.recurrence import FROM_PARENT
from hybridlab.config.resolve import data_layers, resolve, resolve_with_origins
from hybridlab.config.schema import Data, InitFrom, RunConfig
from hybridlab.config.shared_settings import asked_for
from hybridlab.config.yaml_text import KeyPath
from hybridlab.data.finetune.corpus import TRAIN, TaskCorpus
from hybridlab.data.preparing import corpus_of
from hybridlab.data.tokenizers import instead_of_tokenizer, is_made_here, load_tokenizer, require_fitting
from hybridlab.errors import UserError
from hybridlab.files import user_path
from hybridlab.messages import heard_by, say, silent
from hybridlab.registry import FINETUNE_TASKS
from hybridlab.runs.budget import continued, within_budget
from hybridlab.training.store.artifacts import Artifact, branch_of, find_start
from hybridlab.training.store.folders import Runs

FINETUNE = "finetune"
"""The preset of settings for weights in the Hugging Face layout."""
_MANY = 10**9
"""Steps of a fine-tuning run until its epochs are counted, so that no step that a setting names is too late."""


def chosen_arch(option: str | None, config: Path | Sequence[Path] | None, default: str = "vanilla") -> str:
    """The arch that the option names or, where that is not given, the last file of settings that names one."""
    return named_preset("arch", option, load_settings(config)) or default


@dataclass(frozen=True)
class Request:
    """What a user asks for. arch, size, data: if None, those that the files `config` name. start: the run or Hugging
    Face folder to start from. options, settings: further options, and the texts of --set. entropy_of: a run whose
    entropies choose the layers that the arch loops. keep_map: with the attention map of the model to start from. task:
    a fine-tuning task, whose preset takes the place of the size's settings."""

    arch: str | None = None
    size: str | None = None
    data: str | list[str] | None = None
    start: str | None = None
    config: Path | Sequence[Path] | None = None
    options: Layer = Layer()
    settings: Sequence[str] = ()
    entropy_of: str | None = None
    keep_map: bool = False
    task: str | None = None


def compose(request: Request, runs: Runs) -> RunConfig:
    """The configuration of a request; see `compose_with_origins`."""
    return compose_with_origins(request, runs)[0]


def _set(request: Request) -> Iterator[Layer]:
    """What the `--set` texts say; UserError for a setting that an option gives too."""
    for text in request.settings:
        layer = parse_setting(text)
        for path, option in request.options.origins.items():
            if path and option.startswith("--") and any(key[: len(path)] == path for key in layer.origins):
                name = ".".join(map(str, path))
                raise UserError(f"--set {text}: {option} gives {name} too; leave one of the two out")
        yield layer


def compose_with_origins(request: Request, runs: Runs) -> tuple[RunConfig, Layer]:
    """The configuration from presets, then the settings of the parent (if no size is given), the file, the options
    and --set, in this order, and the layer that has every value's origin.

    It says which settings nothing asked for, where these come from a preset for pretrained weights.
    """
    file = load_settings(request.config)
    chosen, size = named_preset("arch", request.arch, file), named_preset("size", request.size, file)
    arch = chosen or "vanilla"
    before, following = data_layers(request.data, file)
    options, start = request.options, request.start
    if request.entropy_of is not None:
        options = merge(_looping_top_entropy(arch, request.entropy_of), options)
    requested = [*before, file.settings, *following, options]
    start, branch = branch_of(start)
    parent = None if start is None else find_start(start, runs)
    written = [*requested, *_set(request)]
    task = _task_of(request, written, file, branch) if parent is not None else None
    tokens = task is None or (task in FINETUNE_TASKS and FINETUNE_TASKS.get(task).kind == "chat")
    if parent is not None and tokens:
        _require_tokens(parent, start)
    if parent is not None and task is None and branch is None:
        _check_text_named(parent, start, request, file, written)
    finetuned = parent is not None and parent.pretrained and size is None and task is None
    base = load_preset("training", FINETUNE) if finetuned else _base(task, size, parent)
    heritage = [] if parent is None or start is None else _heritage(parent, start, arch, size, branch, task)
    if task is not None:
        # The steps of an option are asked for, so that they replace the epochs of the preset.
        requested[-1] = replace(options, asked=True)
    # Weights of transformers keep their windows, unless an arch is asked for.
    theirs = parent is not None and parent.pretrained and parent.saved is None
    keeps = request.keep_map or task is not None or (theirs and chosen is None)
    if parent is not None and keeps and branch is None:
        heritage.append(_its_map(parent))
    if parent is not None:
        heritage.append(_its_tokenizer(parent, merge(base, *heritage, *written)))
    names = _names({"arch": request.arch, "size": request.size}, file, parent)
    size = size or (parent.size if parent else None) or "tiny"
    layers = [*heritage, *requested]
    resolved, layer = _with_epochs(
        lambda more: resolve_with_origins(arch, size, layers=[*layers, *more], settings=request.settings, base=base),
        runs,
    )
    layer = replace(layer, origins={**layer.origins, **names})
    resolved = _with_hashes(resolved, runs)
    if resolved.budget is not None and "steps" in options.values.get("training", {}):
        raise UserError("--steps: a budget of FLOPs chooses the steps; leave one of the two out")
    resolved = within_budget(resolved)
    if parent is None:
        return resolved, layer
    if task is not None and parent.config is not None:
        # What the presets of the arch say came with the weights, so that only its name is left.
        resolved = resolved.model_copy(update={"arch": parent.config.arch})
    # A branch takes the depth that the other run has at its step; see runs/extension.py.
    first = resolved.first_shape if branch is None else resolved.shape
    if first.layers not in (parent.shape.layers, resolved.shape.layers):
        raise UserError(
            f"--from {start}: its model has {parent.shape.layers} layers, and a growth begins with {first.layers} here;"
            f" `hybridlab grow --from {start}` grows it further (or set controller.start={parent.shape.layers})"
        )
    parent.check_shape(first, head=first.output is None, advice=_about_layers(resolved, parent))
    if parent.pretrained:
        _check_tokenizer_known(parent, resolved, written)
    if theirs and not keeps and branch is None:
        _say_replaced_windows(parent, start, arch)
    if finetuned:
        say(_in_words(resolved))
    skipped = None if parent.training is None else parent.training.skip_steps
    untouched = resolved.training.skip_steps in (None, skipped) and resolved.finetune is None
    return (continued(parent.read, resolved) if parent.read and untouched else resolved), layer


def _require_tokens(parent: Artifact, start: str | None) -> None:
    """UserError for a model whose output head gives no tokens, which text and chats need."""
    if parent.shape.output is not None:
        raise UserError(
            f"--from {start}: the output head of its model gives {parent.shape.output.kind} instead of tokens, and "
            f"neither text nor chats train that; go on with `hybridlab finetune {start} --task TASK` on a task with "
            "labels, such as sst2, or name the model that it was fine-tuned from"
        )


def _about_layers(resolved: RunConfig, parent: Artifact) -> str:
    """What to write where an arch with a loop divides the layers of a size into fewer."""
    if not any(isinstance(edit, Recur) for edit in resolved.plan):
        return ""
    layers = parent.shape.layers
    outer = layers // 4
    division = f"{{pre: {outer}, loop: {layers - 2 * outer}, post: {outer}}}"
    return f'; divide all {layers} of them, such as with --set "recurrence={division}"'


def _with_epochs(
    resolved_with: Callable[[list[Layer]], tuple[RunConfig, Layer]], runs: Runs
) -> tuple[RunConfig, Layer]:
    """The configuration and its layer; where a task has epochs, with the steps that they are, after reading its
    examples. resolved_with: further layers → configuration and layer."""
    resolved, layer = resolved_with([])
    if resolved.finetune is None:
        return resolved, layer
    if resolved.finetune.epochs is None:
        if resolved.training.steps == _MANY:
            raise UserError("finetune: nothing says how long to train; give --epochs or --steps")
        return resolved, layer
    if resolved.budget is not None:
        raise UserError("budget.flops and finetune.epochs both choose the steps; leave one of them out")
    steps = steps_of_epochs(resolved, runs)
    return resolved_with([Layer({"training": {"steps": steps}}, {("training", "steps"): "finetune.epochs"})])


def _task_of(request: Request, written: list[Layer], file: Layer, branch: int | None) -> str | None:
    """The fine-tuning task that the options or settings name for a model that is there already; None if there is none.
    UserError for what a fine-tuned model takes from that model."""
    section = merge(*written).values.get("finetune")
    task = request.task or (section.get("task") if isinstance(section, dict) else None)
    if not isinstance(task, str):
        return None
    for kind, option in (("arch", request.arch), ("size", request.size)):
        if named_preset(kind, option if option != "vanilla" else None, file) is not None:
            raise UserError(f"--{kind} has no effect on fine-tuning, which keeps the {kind} of the model; leave it out")
    if branch is not None:
        raise UserError(
            f"--from {request.start}: fine-tuning starts from the weights of a finished run, without its optimizer; "
            f"leave @{branch} out"
        )
    return task


def _base(task: str | None, size: str | None, parent: Artifact | None) -> Layer:
    """The lowest layer: the preset of a fine-tuning task, or that of a size, by default the parent's; empty if that one
    was a preset file, of which only the name is known: the parent's settings contain all of the size's."""
    if task is not None and task in FINETUNE_TASKS:
        preset = load_preset("finetune", FINETUNE_TASKS.get(task).preset)
        return merge(Layer({"training": {"steps": _MANY}, "finetune": {"task": task}}), preset)
    if size is None and parent is not None:
        return load_preset("size", parent.size) if is_preset("size", parent.size) else Layer()
    return load_preset("size", size or "tiny")


def _check_text_named(parent: Artifact, start: str | None, request: Request, file: Layer, written: list[Layer]) -> None:
    """UserError where nothing names the text of a run, and the model that it starts from has read examples."""
    if parent.config is None or parent.config.data.all_sources or request.data is not None or "data" in file.named:
        return
    if {"source", "sources"}.isdisjoint(merge(*written).values.get("data") or {}):
        assert parent.config.finetune is not None, "a run without text has examples"
        raise UserError(
            f"--from {start}: it was fine-tuned on {parent.config.finetune.task} and has no text to go on with; name "
            f"one with --data, such as --data embedded, or fine-tune it further with `hybridlab finetune {start} "
            "--task TASK`"
        )


def _names(options: dict[str, str | None], file: Layer, parent: Artifact | None) -> dict[KeyPath, str]:
    """Where the presets were named. options: kind → what the option names."""
    origins: dict[KeyPath, str] = {}
    for kind, option in options.items():
        if option is not None:
            origins[kind,] = f"--{kind} {option}"
        elif kind in file.named:
            origins[kind,] = file.named[kind].origin
        elif kind == "size" and parent is not None:
            origins[kind,] = FROM_PARENT
    return origins


def _heritage(
    parent: Artifact, start: str, arch: str, size: str | None, branch: int | None, task: str | None
) -> list[Layer]:
    """The settings of the parent, and its name; if a size is given, of its settings the plan alone, and for a task
    those of its model. branch: see `branch_of`."""
    inherited = _inherited(parent, branch)
    if branch is None:
        _check_plans(arch, start, inherited.get("plan", []), parent)
    else:
        inherited = {**inherited, **_plan_of_a_branch(parent, start, arch)}
    if size is not None or task is not None:
        names = ("plan",) if task is None else ("shape", "plan", "window")
        inherited = {name: inherited[name] for name in names if name in inherited}
    init: dict[str, Any] = {**parent.init} if branch is None else {"run": parent.digest, "load": "all", "step": branch}
    return [
        Layer(inherited, {(): FROM_PARENT, ("plan",): FROM_PARENT}),
        Layer({"init": init}, {(): f"--from {start}" if branch is None else f"--from {start}@{branch}"}),
    ]


def _plan_of_a_branch(parent: Artifact, start: str, arch: str) -> dict[str, Any]:
    """The edits of the plan with which a run was trained, unless the arch brings its own."""
    if parent.config is None or parent.best is not None:
        raise UserError(f"--from {start}@STEP: it has no optimizer; name a run, its folder or the start of its hash")
    preset = load_preset("arch", arch).values
    return {"plan": preset.get("plan", []) if _brings_plan(preset) else parent.config.model_dump(mode="json")["plan"]}


def _brings_plan(arch: dict[str, Any]) -> bool:
    """Whether the settings of an arch have a plan."""
    return "plan" in arch or "recurrence" in arch


def _say_replaced_windows(parent: Artifact, start: str | None, arch: str) -> None:
    """Say how many layers of the model to start from have windows, which an arch does not keep."""
    layers = parent.structure.map.layers
    if windowed := sum(set(row) != {Full()} for row in layers):
        has = f"{windowed} of its {len(layers)} layers have windows"
        say(f"--from {start}: {has}; arch {arch} replaces them by its own map")


def _its_map(parent: Artifact) -> Layer:
    """The attention map of the parent's model; empty if all of its heads have full attention."""
    attention_map = parent.structure.map
    if set(attention_map.each_kind()) == {Full()}:
        return Layer()
    return Layer({"map": {"kind": "heads", "layers": attention_map.to_json()}}, {("map",): FROM_PARENT})


def _its_tokenizer(parent: Artifact, settings: Layer) -> Layer:
    """The parent's tokenizer, if the text is another than its own and is not tokenized yet."""
    data, task = settings.values.get("data", {}), isinstance(settings.values.get("finetune"), dict)
    if not parent.tokenizer.is_file() or not (task or isinstance(data, dict)):
        return Layer()
    if not task:
        names = ("source", "sources")
        requested = check(Data, settings.part(("data",), {name: data[name] for name in names if name in data}))
        current = {name: parent.settings.get("data", {}).get(name) for name in names}
        if requested.prepared or requested.model_dump(mode="json", include=set(names)) == current:
            return Layer()
    return Layer({"data": {"tokenizer": f"file:{parent.tokenizer.resolve()}"}}, {(): FROM_PARENT})


def _check_tokenizer_known(parent: Artifact, resolved: RunConfig, layers: list[Layer]) -> None:
    """UserError if a tokenizer would be made for weights whose own tokenizer is unknown, and nothing asks for that; and
    if their own has tokens that they lack."""
    if parent.tokenizer.is_file():
        require_fitting(load_tokenizer(parent.tokenizer), parent.shape.vocab, str(parent.tokenizer))
    made_here = is_made_here(resolved.data.tokenizer)
    if made_here and not parent.tokenizer.is_file() and asked_for(layers, "data", "tokenizer") is None:
        raise UserError(
            f"{parent.path}: this folder has no tokenizer.json, and a new tokenizer would not fit its weights; "
            f"{instead_of_tokenizer(parent.path) or 'put the file there'}, or add --set data.tokenizer=file:PATH or "
            "--set data.tokenizer=hub:NAME"
        )


def _in_words(config: RunConfig) -> str:
    """One line about the training of pretrained weights."""
    training, window = config.training, getattr(config.map, "window", None)
    measured = config.evaluation.validation_windows * training.seq_len
    attention = "attention as in its map" if isinstance(config.map, HeadsMap) else "no window"
    return (
        f"settings for pretrained weights (presets/training/{FINETUNE}.yaml): lr {training.optimizer.lr:g}, "
        f"{training.steps:,} steps of {training.tokens_per_step:,} tokens, sequences of {training.seq_len:,}, "
        f"warm-up {training.schedule.warmup_steps:,} steps, validation on {measured:,} tokens, "
        f"{f'window {window:,}' if window else attention}; change them with --set"
    )


def _inherited(parent: Artifact, branch: int | None) -> dict[str, Any]:
    """The settings that the parent passes on. Its warm-up becomes a share, for a run of another number of steps; that
    of a branch is over at the same step."""
    settings = {name: value for name, value in parent.settings.items() if name != "plan" or value}
    if branch is None and parent.training is not None and "training" in settings:
        warmup = {"warmup_fraction": parent.training.schedule.warmup_steps / parent.training.steps}
        written = settings["training"]["schedule"]
        schedule = {name: value for name, value in written.items() if name != "warmup_steps"} | warmup
        settings["training"] = {**settings["training"], "schedule": schedule}
    return settings


def _check_plans(arch: str, start: str, inherited: list[dict[str, Any]], parent: Artifact) -> None:
    """UserError if the arch has another plan than that of the weights, or the parent ended during a fade."""
    if inherited and _brings_plan(load_preset("arch", arch).values):
        usual = resolve(arch, parent.size).model_dump(mode="json")["plan"] if is_preset("size", parent.size) else None
        if usual != inherited:
            raise UserError(
                f"--from {start}: its weights were trained for a plan of their own, and --arch {arch} brings another; "
                "use --arch vanilla to keep the plan of the weights"
            )
    if parent.fading:
        raise UserError(
            f"{parent.path}: this run ended during a fade, before its looped heads were fixed; "
            "start from a run that trains past the end of the fade"
        )


def _looping_top_entropy(arch: str, reference: str) -> Layer:
    """The arch's plan with its loops of the last n layers moved to the n layers of highest entropy in another run, at
    the step where growth would start."""
    edits = []
    for edit in load_preset("arch", arch).values.get("plan", []):
        choice = edit.get("layers") if isinstance(edit, dict) else None
        if isinstance(choice, dict) and "last" in choice:
            edit = {**edit, "layers": {"top_entropy_of": reference, "n": choice["last"]}}
        edits.append(edit)
    if not edits:
        raise UserError(f"--entropy-of has no effect on --arch {arch}; use it with block-loop or attention-loop")
    return Layer({"plan": edits}, {(): f"--entropy-of {reference}"})


def _with_hashes(config: RunConfig, runs: Runs) -> RunConfig:
    """The configuration with the names, folders and prefixes of other runs replaced by their full hashes; the folders
    of these are added to `runs`."""

    def hash_of(reference: str) -> str:
        folder = runs.find(reference)
        runs.places[folder.digest] = str(folder.path.resolve())
        return folder.digest

    parts = ("map", "plan", "controller")
    changed: dict[str, Any] = {part: with_run_names(getattr(config, part), hash_of) for part in parts}
    if config.init is not None and config.init.run not in runs.places:
        start = InitFrom.model_validate(find_start(config.init.run, runs).init)
        changed["init"] = start.model_copy(update={"load": config.init.load or start.load, "step": config.init.step})
    return config.model_copy(update=changed)


# ---- fine-tuning ----


def task_layer(
    task: str,
    data: str | Path | None = None,
    validation: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    lora_rank: int | None = None,
) -> Layer:
    """The options of `hybridlab finetune` as a layer of settings. UserError for an unknown task, a path that is not
    there, and options that exclude each other."""
    FINETUNE_TASKS.get(task)
    if epochs is not None and steps is not None:
        raise UserError("--epochs and --steps both say how long to train; leave one of the two out")
    paths = {name: user_path(path) for name, path in (("data", data), ("validation", validation)) if path}
    for name, path in paths.items():
        if not path.exists():
            raise UserError(f"--{name} {path}: there is no such file; give a file of the task {task}")
    options: dict[str, tuple[str, Any]] = {"finetune.task": ("--task", task)}
    options |= {f"finetune.{name}": (f"--{name}", str(path)) for name, path in paths.items()}
    options["finetune.epochs"] = ("--epochs", None if epochs is None else float(epochs))
    options |= {"finetune.lora.rank": ("--lora-rank", lora_rank), "training.steps": ("--steps", steps)}
    options |= {"training.seed": ("--seed", seed), "training.optimizer.lr": ("--lr", lr)}
    return options_layer(options, asked=True)


def steps_of_epochs(config: RunConfig, runs: Runs) -> int:
    """The number of optimizer steps of `finetune.epochs`, rounded up, after reading the task's examples. Of spans, an
    epoch reads all windows."""
    assert config.finetune is not None and config.finetune.epochs is not None
    with heard_by(silent):  # it is said when the run starts
        corpus = corpus_of(config, runs.directory / "data")
    assert isinstance(corpus, TaskCorpus)
    return max(1, math.ceil(config.finetune.epochs * len(corpus.encoded[TRAIN]) / config.finetune.batch))
