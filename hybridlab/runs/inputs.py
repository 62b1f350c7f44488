"""Parts of a configuration that come from other finished runs: learned masks, heads whose knock-out costs most, layers
of high entropy, entropies of heads.

The configuration that is stored and hashed names the other run by its hash, so that its own hash is known before
anything is trained. The masks and layers themselves are in the record's structure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridlab.config.controllers import EntropyGrowthConfig
from hybridlab.config.edits import TopEntropy
from hybridlab.config.maps import ExplicitMap, FromRun, KnockoutMap
from hybridlab.config.resolve import symbolic_layers
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError, nearest
from hybridlab.plan.masks import read_masks
from hybridlab.plan.shape import Shape
from hybridlab.runs.record import read_record
from hybridlab.training.folders import RunFolder, Runs


def with_inputs(config: RunConfig, runs: Runs, say: Callable[[str], None]) -> RunConfig:
    """The configuration with the names of other runs replaced by their masks, layers and entropies. say: gets the
    warnings that are written in the masks."""
    return _with_masks(_with_layers(_with_entropies(config, runs), runs), runs, say)


def _with_masks(config: RunConfig, runs: Runs, say: Callable[[str], None]) -> RunConfig:
    if not isinstance(config.map, FromRun):
        return config
    folder = runs.finished(config.map.run)
    if isinstance(config.map, KnockoutMap):
        chosen = config.map.chosen(knockout_costs(folder, config.map, config.first_shape), config.shape.kv_heads)
        return config.model_copy(update={"map": chosen})
    path = folder.path / "masks.json"
    learned = read_masks(path)
    for warning in learned["warnings"]:
        say(f"{path}: warning: {warning}")
    explicit = ExplicitMap(kind="explicit", masks=learned["masks"], window=learned["window"])
    return config.model_copy(update={"map": explicit})


def knockout_costs(folder: RunFolder, asked: KnockoutMap, shape: Shape) -> list[list[float]]:
    """The rise of the loss for every unit, by layer: (L, 1) for layers, (L, K) for KV heads.

    UserError if the run's record does not have it for this window and this loss, or is of another shape.
    """
    setting = f"map of kind knockout, run {folder.digest} ({folder.path})"
    theirs = folder.config().shape
    if (theirs.layers, theirs.kv_heads) != (shape.layers, shape.kv_heads):
        raise UserError(
            f"{setting}: that run has {theirs.layers} layers of {theirs.kv_heads} KV heads, this one {shape.layers} of "
            f"{shape.kv_heads}; name a run of the same shape"
        )
    record = read_record(folder.path / "record.json")
    probes = record.results.probes if record and record.results else {}
    probe = probes.get("knockout", {"skipped": "it is not among its probes"})
    if "skipped" in probe:
        raise UserError(
            f"{setting}: its record has no knock-out: {probe['skipped']}; train it with "
            f"--set evaluation.probes=[knockout] --set evaluation.task_window={asked.window}"
        )
    if probe["window"] != asked.window:
        raise UserError(
            f"{setting}: it was measured with windows of {probe['window']}, and this map has windows of "
            f"{asked.window}; use the same, or train that run with --set evaluation.task_window={asked.window}"
        )
    if asked.of not in probe["heads"]:
        raise UserError(f"{setting}: it was not measured on {asked.of}; {nearest(asked.of, list(probe['heads']))}")
    rises = probe["layers" if asked.granularity == "layer" else "heads"][asked.of][asked.measure]["rise"]
    return _numbers(rises, f"{setting}: it has no answer of {asked.of} to measure ({asked.measure})")


def _numbers(rises: list[Any], problem: str) -> list[list[float]]:
    """The rises as rows; UserError with this problem where one was not measured."""
    rows = [row if isinstance(row, list) else [row] for row in rises]
    if any(value is None for row in rows for value in row):
        raise UserError(f"{problem}; train that run with longer sequences, or choose another measure")
    return rows


def _with_layers(config: RunConfig, runs: Runs) -> RunConfig:
    edits = []
    for edit in config.plan:
        for choice in symbolic_layers([edit]):
            layers = top_entropy(runs.finished(choice.top_entropy_of), choice, config.first_shape)
            edit = edit.model_copy(update={"layers": layers})
        edits.append(edit)
    return config.model_copy(update={"plan": edits})


def _with_entropies(config: RunConfig, runs: Runs) -> RunConfig:
    controller = config.controller
    if not isinstance(controller, EntropyGrowthConfig) or controller.entropies_of is None:
        return config
    asked = controller.entropies_of
    heads = head_entropies(runs.finished(asked.run), asked.step, config.first_shape)
    given = controller.model_copy(update={"entropies": heads, "entropies_of": None})
    return config.model_copy(update={"controller": given})


def head_entropies(folder: RunFolder, step: int | None, shape: Shape) -> list[list[float]]:
    """[layer][head]: what the probe `entropy` measured on a run after a step, or at its end.

    UserError if that run has other numbers of layers and heads than `shape`, or no such measurement.
    """
    setting = f"controller.entropies_of: {folder.path}"
    _require_heads(setting, folder, shape)
    record = read_record(folder.path / "record.json")
    results = None if record is None else record.results
    when = "its end" if step is None else f"step {step}"
    found = results if step is None or results is None else results.at.get(str(step))
    measured = found.probes.get("entropy") if found is not None else None
    if measured is None:
        asked = "" if step is None else f" and evaluation.at_steps=[{step}]"
        raise UserError(
            f"{setting}: this run has no entropies of {when}; train it with --set evaluation.probes=[entropy]{asked}"
        )
    heads = measured.get("heads", [])
    if not heads or any(value is None for row in heads for value in row):
        reason = measured.get("skipped", "some of its heads did not run")
        raise UserError(f"{setting}: no entropies of all heads at {when} ({reason}); name another run")
    return heads


def _require_heads(setting: str, folder: RunFolder, shape: Shape) -> None:
    """UserError if a run has other numbers of layers and heads than `shape`."""
    theirs = folder.config().shape
    if (theirs.layers, theirs.heads) != (shape.layers, shape.heads):
        raise UserError(
            f"{setting}: that run ({folder.path}) has {theirs.layers} layers of {theirs.heads} heads, "
            f"this one {shape.layers} of {shape.heads}; name a run of the same shape"
        )


def top_entropy(folder: RunFolder, asked: TopEntropy, shape: Shape) -> list[int]:
    """The layers with the highest mean head entropy in a run at a step, ascending (SGT, section 5.1, "Baseline").

    From the probe `entropy`, if the run has measured it at this step, else from the entropy log, over the batch of the
    step. UserError if that run has other numbers of layers and heads than `shape`, or no entropies of the step.
    """
    setting = f"layers: top_entropy_of {asked.top_entropy_of}"
    _require_heads(setting, folder, shape)
    rows = _measured_at(folder, asked.step) or _logged_at(folder, asked.step, setting)
    means = {i: sum(row) / len(row) for i, row in enumerate(rows) if i not in asked.exclude and None not in row}
    if asked.n > len(means):
        raise UserError(f"{setting}: n = {asked.n}, but there are {len(means)} layers to choose from; give a smaller n")
    return sorted(sorted(means, key=lambda layer: (-means[layer], layer))[: asked.n])


def _measured_at(folder: RunFolder, step: int) -> list[list[float]] | None:
    """[layer][head] of the probe at a step of a run; None if it was not measured there, or not for all heads."""
    record = read_record(folder.path / "record.json")
    found = record.results.at.get(str(step)) if record is not None and record.results is not None else None
    heads = found.probes.get("entropy", {}).get("heads", []) if found is not None else []
    return heads if heads and all(value is not None for row in heads for value in row) else None


def _logged_at(folder: RunFolder, step: int, setting: str) -> list[list[float]]:
    """[layer][head] of the entropy log at a step of a run; UserError if it has no such step."""
    record = read_record(folder.path / "record.json")
    logged = (record.hooks if record else {}).get("entropy-log", {"steps": [], "entropies": []})
    if step not in logged["steps"]:
        known = ", ".join(map(str, logged["steps"][:8])) or "none"
        raise UserError(
            f"{setting}: that run has no entropies of step {step} (it has {known}); "
            f"train it with --set observe.entropy_every={step}"
        )
    return logged["entropies"][logged["steps"].index(step)]
