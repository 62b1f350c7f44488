"""Parts of a configuration that come from other finished runs: learned masks, layers of high entropy.

The configuration that is stored and hashed names the other run by its hash, so that its own hash is known before
anything is trained. The masks and layers themselves are in the record's structure.
"""

from __future__ import annotations

from collections.abc import Callable

from hybridlab.config.edits import TopEntropy
from hybridlab.config.maps import ExplicitMap, LearnedMap
from hybridlab.config.resolve import symbolic_layers
from hybridlab.config.schema import RunConfig
from hybridlab.config.shape import Shape
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import read_masks
from hybridlab.runs.record import read_record
from hybridlab.training.folders import RunFolder, Runs


def with_inputs(config: RunConfig, runs: Runs, say: Callable[[str], None]) -> RunConfig:
    """The configuration with the names of other runs replaced by their masks and layers. say: gets the warnings that
    are written in the masks."""
    return _with_masks(_with_layers(config, runs), runs, say)


def _with_masks(config: RunConfig, runs: Runs, say: Callable[[str], None]) -> RunConfig:
    if not isinstance(config.map, LearnedMap):
        return config
    path = runs.finished(config.map.run).path / "masks.json"
    learned = read_masks(path)
    for warning in learned["warnings"]:
        say(f"{path}: warning: {warning}")
    explicit = ExplicitMap(kind="explicit", masks=learned["masks"], window=learned["window"])
    return config.model_copy(update={"map": explicit})


def _with_layers(config: RunConfig, runs: Runs) -> RunConfig:
    edits = []
    for edit in config.plan:
        for choice in symbolic_layers([edit]):
            layers = top_entropy(runs.finished(choice.top_entropy_of), choice, config.shape)
            edit = edit.model_copy(update={"layers": layers})
        edits.append(edit)
    return config.model_copy(update={"plan": edits})


def top_entropy(folder: RunFolder, asked: TopEntropy, shape: Shape) -> list[int]:
    """The layers with the highest mean head entropy in a run at a step, ascending (SGT, section 5.1, "Baseline").

    UserError if that run has other numbers of layers and heads than `shape`, or no entropies of the step.
    """
    setting = f"layers: top_entropy_of {asked.top_entropy_of}"
    theirs = folder.config().shape
    if (theirs.layers, theirs.heads) != (shape.layers, shape.heads):
        raise UserError(
            f"{setting}: that run ({folder.path}) has {theirs.layers} layers of {theirs.heads} heads, "
            f"this one {shape.layers} of {shape.heads}; name a run of the same shape"
        )
    record = read_record(folder.path / "record.json")
    logged = (record.hooks if record else {}).get("entropy-log", {"steps": [], "entropies": []})
    if asked.step not in logged["steps"]:
        known = ", ".join(map(str, logged["steps"][:8])) or "none"
        raise UserError(
            f"{setting}: that run has no entropies of step {asked.step} (it has {known}); "
            f"train it with --set observe.entropy_every={asked.step}"
        )
    rows = logged["entropies"][logged["steps"].index(asked.step)]
    means = {i: sum(row) / len(row) for i, row in enumerate(rows) if i not in asked.exclude and None not in row}
    if asked.n > len(means):
        raise UserError(f"{setting}: n = {asked.n}, but there are {len(means)} layers to choose from; give a smaller n")
    return sorted(sorted(means, key=lambda layer: (-means[layer], layer))[: asked.n])
