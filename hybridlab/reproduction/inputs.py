"""What a configuration leaves to other runs, filled in once those have ended: learned masks, layers of high entropy.

The configuration that names a run keeps the symbol (another run's hash), so that its own hash is known before anything
is trained; what the symbol came to stands in the record's structure.
"""

from __future__ import annotations

from typing import Any

from hybridlab.config.resolve import symbolic_layers
from hybridlab.config.schema import ExplicitMap, LearnedMap, RunConfig, Shape, TopEntropy
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import read_masks
from hybridlab.training.folders import RunFolder, Runs


def with_inputs(config: RunConfig, runs: Runs) -> RunConfig:
    """The configuration with every symbol replaced by what it stands for."""
    return _with_masks(_with_layers(config, runs), runs)


def _with_masks(config: RunConfig, runs: Runs) -> RunConfig:
    if not isinstance(config.map, LearnedMap):
        return config
    found = read_masks(runs.finished(config.map.run).path / "masks.json")
    explicit = ExplicitMap(kind="explicit", masks=found["masks"], window=found["window"])
    return config.model_copy(update={"map": explicit})


def _with_layers(config: RunConfig, runs: Runs) -> RunConfig:
    edits = []
    for edit in config.plan:
        for choice in symbolic_layers([edit]):
            asked = TopEntropy.model_validate(choice)
            edit = {**edit, "layers": top_entropy(runs.finished(asked.top_entropy_of), asked, config.shape)}
        edits.append(edit)
    return config.model_copy(update={"plan": edits})


def top_entropy(folder: RunFolder, asked: TopEntropy, shape: Shape) -> list[int]:
    """The layers with the highest mean head entropy that a run saw at a step, ascending (SGT, section 5.1,
    "Baseline"). The run must be of the shape that is to loop them."""
    place = f"layers: top_entropy_of {asked.top_entropy_of}"
    theirs = folder.config().shape
    if (theirs.layers, theirs.heads) != (shape.layers, shape.heads):
        raise UserError(
            f"{place}: that run ({folder.path}) has {theirs.layers} layers of {theirs.heads} heads, "
            f"this one {shape.layers} of {shape.heads}; name a run of the same shape"
        )
    logged: dict[str, Any] = folder.record()["controllers"].get("entropy-log", {"steps": [], "entropies": []})
    if asked.step not in logged["steps"]:
        known = ", ".join(map(str, logged["steps"][:8])) or "none"
        raise UserError(
            f"{place}: that run has no entropies of step {asked.step} (it has {known}); "
            f"train it with --set observe.entropy_every={asked.step}"
        )
    rows = logged["entropies"][logged["steps"].index(asked.step)]
    means = {i: sum(row) / len(row) for i, row in enumerate(rows) if i not in asked.exclude and None not in row}
    if asked.n > len(means):
        raise UserError(f"{place}: n = {asked.n}, but there are {len(means)} layers to choose from")
    return sorted(sorted(means, key=lambda layer: (-means[layer], layer))[: asked.n])
