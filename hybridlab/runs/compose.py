"""The configuration of a single run from the options of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.config.loading import Layer, is_preset, load_file, load_preset, merge
from hybridlab.config.recurrence import FROM_PARENT
from hybridlab.config.resolve import data_layer, resolve, symbolic_layers
from hybridlab.config.schema import Data, RunConfig
from hybridlab.errors import UserError
from hybridlab.runs.ancestors import Ancestor, find_ancestor
from hybridlab.runs.budget import within_budget
from hybridlab.runs.continuation import after
from hybridlab.training.folders import Runs


def compose(
    arch: str,
    size: str | None,
    data: str | None,
    start: str | None,
    runs: Runs,
    config: Path | None,
    options: Layer,
    settings: list[str],
    entropy_of: str | None = None,
) -> RunConfig:
    """The configuration from presets, then the settings of the ancestor (if no size is given), the file, the options
    and --set, in this order.

    start: the run or Hugging Face folder to start from. entropy_of: a run whose entropies choose the layers that the
    arch loops.
    """
    layers: list[Layer] = []
    parent = None
    if start is not None:
        parent = find_ancestor(start, runs)
        inherited = _inherited(parent)
        _check_plans(arch, start, inherited.get("plan", []), parent)
        if size is None:
            size = parent.size
        else:
            inherited = {name: value for name, value in inherited.items() if name == "plan"}
        layers.append(Layer(inherited, {(): FROM_PARENT, ("plan",): FROM_PARENT}))
        layers.append(Layer({"init": {"run": parent.digest}}, {(): f"--from {start}"}))
    size = size or "tiny"
    base = _size_layer(size, parent)
    if data is not None:
        given = data_layer(data)
        if parent is not None and _another_source(given, parent):
            layers.append(Layer({"data": {"tokenizer": f"file:{parent.tokenizer.resolve()}"}}))
        layers.append(given)
    steps = options.values.get("training", {}).get("steps")
    if config is not None:
        layers.append(load_file(config))
    if entropy_of is not None:
        options = merge(_looping_top_entropy(arch, entropy_of), options)
    resolved = _with_hashes(resolve(arch, size, layers=[*layers, options], settings=settings, base=base), runs)
    if resolved.budget is not None and steps is not None:
        raise UserError("--steps: a budget of FLOPs chooses the steps; leave one of the two out")
    resolved = within_budget(resolved)
    if parent is None:
        return resolved
    parent.check_shape(resolved.shape)
    untouched = resolved.training.skip_steps in (None, parent.skip_steps)
    return after(parent.training, resolved) if parent.training and untouched else resolved


def _inherited(parent: Ancestor) -> dict[str, Any]:
    """The settings that the ancestor passes on. Its warm-up becomes a share, for a run of another number of steps."""
    settings = {name: value for name, value in parent.settings.items() if name != "plan" or value}
    if parent.training is not None and "training" in settings:
        warmup = {"warmup_fraction": parent.training.schedule.warmup_steps / parent.training.steps}
        written = settings["training"]["schedule"]
        schedule = {name: value for name, value in written.items() if name != "warmup_steps"} | warmup
        settings["training"] = {**settings["training"], "schedule": schedule}
    return settings


def _check_plans(arch: str, start: str, inherited: list[dict[str, Any]], parent: Ancestor) -> None:
    """UserError if the arch has another plan than that of the weights, or the parent ended during a fade."""
    own = load_preset("arch", arch).values
    brings = "plan" in own or "recurrence" in own
    size = parent.size or ""
    same = is_preset("size", size) and _written_plan(arch, size) == inherited
    if inherited and brings and not same:
        raise UserError(
            f"--from {start}: its weights were trained for a plan of their own, and --arch {arch} brings another; "
            "use --arch vanilla to keep the plan of the weights"
        )
    if parent.fading:
        raise UserError(
            f"{parent.path}: this run ended during a fade, before its looped heads were fixed; "
            "start from a run that trains past the end of the fade"
        )


def _written_plan(arch: str, size: str) -> list[dict[str, Any]]:
    return resolve(arch, size).model_dump(mode="json", include={"plan"})["plan"]


def _size_layer(size: str, parent: Ancestor | None) -> Layer:
    """The preset of a size; empty if the size is the ancestor's and was a preset file, of which only the name is known:
    that run's settings contain all of the size's."""
    unknown = parent is not None and size == parent.size and not is_preset("size", size)
    return Layer() if unknown else load_preset("size", size)


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
    """The configuration with folders and prefixes of runs in its plan replaced by the runs' full hashes."""
    edits = []
    for edit in config.plan:
        for choice in symbolic_layers([edit]):
            folder = runs.find(choice.top_entropy_of)
            digest = folder.digest
            runs.places[digest] = str(folder.path.resolve())
            edit = edit.model_copy(update={"layers": choice.model_copy(update={"top_entropy_of": digest})})
        edits.append(edit)
    return config.model_copy(update={"plan": edits})


def _another_source(given: Layer, parent: Ancestor) -> bool:
    """Whether the text differs from the parent's and is to be tokenized with the parent's tokenizer."""
    source = given.values["data"].get("source", "")
    known = parent.settings.get("data", {}).get("source")
    return parent.tokenizer.is_file() and not source.startswith("shards:") and Data(source=source).source != known
