"""The configuration of a single run asked for on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.config.loading import Layer, load_file, load_preset, merge
from hybridlab.config.recurrence import FROM_PARENT
from hybridlab.config.resolve import data_layer, resolve, symbolic_layers
from hybridlab.config.schema import Data, RunConfig
from hybridlab.errors import UserError
from hybridlab.reproduction.ancestors import Ancestor, find_ancestor
from hybridlab.reproduction.budget import within_budget
from hybridlab.reproduction.experiment import after
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
    """Presets, then the settings of what it starts from (where no size is given), the file, the options, --set.

    entropy_of: a run whose entropies choose the layers that the arch loops.
    """
    layers: list[Layer] = []
    parent = None
    if start is not None:
        parent = find_ancestor(start, runs)
        inherited = {name: value for name, value in parent.settings.items() if name != "plan" or value}
        _check_plans(arch, start, inherited.get("plan", []), parent)
        if size is None:
            size = parent.size
        else:
            inherited = {name: value for name, value in inherited.items() if name == "plan"}
        layers.append(Layer(inherited, {(): FROM_PARENT, ("plan",): FROM_PARENT}))
        layers.append(Layer({"init": {"run": parent.digest}}, {(): f"--from {start}"}))
    if data is not None:
        given = data_layer(data)
        if parent is not None and _another_source(given, parent):
            layers.append(Layer({"data": {"tokenizer": f"file:{parent.tokenizer.resolve()}"}}))
        layers.append(given)
    steps = options.values.get("training", {}).get("steps")
    if steps is not None:
        layers.append(_shorter_warmup(size or "tiny", layers, steps))
    if config is not None:
        layers.append(load_file(config))
    if entropy_of is not None:
        options = merge(_looping_top_entropy(arch, entropy_of), options)
    resolved = _with_hashes(resolve(arch, size or "tiny", layers=[*layers, options], settings=settings), runs)
    if resolved.budget is not None and steps is not None:
        raise UserError("--steps: a budget of FLOPs chooses the steps; leave one of the two out")
    resolved = within_budget(resolved)
    if parent is None:
        return resolved
    parent.check_shape(resolved.shape)
    untouched = resolved.training.skip_steps in (None, parent.skip_steps)
    return after(parent.training, resolved) if parent.training and untouched else resolved


def _check_plans(arch: str, start: str, inherited: list[dict[str, Any]], parent: Ancestor) -> None:
    """Weights go on with the plan that they were trained for; an arch with another one of its own is refused."""
    own = load_preset("arch", arch).values
    brings = "plan" in own or "recurrence" in own
    if inherited and brings and (parent.size is None or resolve(arch, parent.size).plan != inherited):
        raise UserError(
            f"--from {start}: its weights were trained for a plan of their own, and --arch {arch} brings another; "
            "use --arch vanilla to go on with it"
        )
    if parent.fading:
        raise UserError(
            f"{parent.path}: this run ended inside a fade, with no heads fixed yet; "
            "start from one whose steps reach past the fade"
        )


def _looping_top_entropy(arch: str, reference: str) -> Layer:
    """The arch's loops of its last layers, on as many layers that another run's entropies choose. The step is the one
    at which growth would start."""
    edits = []
    for edit in load_preset("arch", arch).values.get("plan", []):
        choice = edit.get("layers")
        if isinstance(choice, dict) and "last" in choice:
            edit = {**edit, "layers": {"top_entropy_of": reference, "n": choice["last"]}}
        edits.append(edit)
    if not edits:
        raise UserError(f"--entropy-of has no effect on --arch {arch}: it belongs to block-loop and attention-loop")
    return Layer({"plan": edits}, {(): f"--entropy-of {reference}"})


def _with_hashes(config: RunConfig, runs: Runs) -> RunConfig:
    """The config with the runs that its plan names by folder or prefix named by their hashes."""
    edits = []
    for edit in config.plan:
        for choice in symbolic_layers([edit]):
            folder = runs.find(str(choice["top_entropy_of"]))
            digest = folder.info()["hash"]
            runs.places[digest] = str(folder.path.resolve())
            edit = {**edit, "layers": {**choice, "top_entropy_of": digest}}
        edits.append(edit)
    return config.model_copy(update={"plan": edits})


def _shorter_warmup(size: str, layers: list[Layer], steps: int) -> Layer:
    """A preset's or parent's warm-up that is longer than half of --steps becomes a tenth of them."""
    known = merge(load_preset("size", size), *layers).values["training"].get("schedule", {}).get("warmup_steps", 0)
    return Layer({"training": {"schedule": {"warmup_steps": steps // 10}}}) if 2 * known > steps else Layer()


def _another_source(given: Layer, parent: Ancestor) -> bool:
    """Whether the text is not the parent's: then the parent's tokenizer is kept, and none is trained anew."""
    source = given.values["data"].get("source", "")
    known = parent.settings.get("data", {}).get("source")
    return parent.tokenizer.is_file() and not source.startswith("shards:") and Data(source=source).source != known
