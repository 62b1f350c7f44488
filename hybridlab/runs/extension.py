"""Runs that go on from the end of another run with its optimizer: `pretrain --from RUN --extend STEPS`.

    hybridlab pretrain --from runs/first --extend 200

Such a run is what a longer run would have been: the same data in the same order, the optimizer's moments, the state of
controllers, the totals of tokens and FLOPs, and the log so far. Only the learning rate differs before the extension,
because a schedule follows from the number of steps. `init: {run: HASH, load: all}` is how its settings say it.
"""

from __future__ import annotations

from typing import Any

from hybridlab.config.differences import differing
from hybridlab.config.loading import Layer, check, merge, parse_setting
from hybridlab.config.resolve import identity
from hybridlab.config.schema import RunConfig
from hybridlab.config.shared import move_warmup
from hybridlab.errors import UserError
from hybridlab.runs.ancestors import model_folder
from hybridlab.training import checkpoints
from hybridlab.training.engine import Beginning
from hybridlab.training.folders import RunFolder, Runs, part_of_run
from hybridlab.training.schedules import learning_rate_factor

_FREE = ("evaluation", "runtime", "training.schedule", "training.optimizer", "training.clip")
"""What may change when a run is extended. Anything else would make it another run."""
_DERIVED = ("init", "budget", "training.steps")


def extension(start: str, steps: int, runs: Runs, options: Layer, settings: list[str]) -> RunConfig:
    """The settings of a finished run with so many more steps, and `--set` texts."""
    if model_folder(start, runs) is not None or part_of_run(start)[1] == "best":
        raise UserError(f"--extend: {start} has no optimizer; name the folder or the hash of a finished run")
    folder = runs.finished(start)
    before, info = folder.config(), folder.started()
    runs.places.update({**info.get("places", {}), folder.digest: str(folder.path.resolve())})
    for text in settings:
        name = text.partition("=")[0].strip()
        if not _is_part(name, _FREE):
            raise UserError(
                f"--set {text}: a run that is extended can only change {', '.join(_FREE)}; "
                "leave --extend out to start another run from its weights"
            )
    longer: dict[str, Any] = {"init": {"run": folder.digest, "load": "all"}, "budget": None}
    longer["training"] = {"steps": before.training.steps + steps}
    layers = [Layer(before.model_dump(mode="json")), Layer(longer, {(): "--extend"}), options]
    return check(RunConfig, move_warmup(merge(*layers, *map(parse_setting, settings))))


def beginning(config: RunConfig, own: RunFolder, runs: Runs, fingerprint: str) -> Beginning | None:
    """Where a run with `init.load: all` begins; None for others. UserError if the settings, the data or the missing
    optimizer of the other run do not allow it. own: the run's folder. fingerprint: of its data."""
    if config.init is None or config.init.load != "all":
        return None
    folder = runs.finished(config.init.run)
    before, step = folder.config(), folder.config().training.steps
    changed = [n for n in differing(identity(before), identity(config)) if not _is_part(n, _FREE + _DERIVED)]
    if changed:
        raise UserError(f"init.load = all: {changed[0]} differs from {folder.path}, so this would be another run")
    if config.training.steps <= step:
        raise UserError(f"training.steps = {config.training.steps}: {folder.path} has done {step}; give more")
    if folder.started()["data_fingerprint"] != fingerprint:
        raise UserError(f"{folder.path}: the data has changed since this run was trained; restore it")
    if checkpoints.newest_step(own.checkpoints) is not None:
        return Beginning(folder, step, None)
    checkpoint = checkpoints.load_step(folder.checkpoints, step)
    if checkpoint is None:
        raise UserError(
            f"{folder.path}: its optimizer is gone (no checkpoint of step {step}); start another run from its weights "
            "with --from alone, or train it again with --keep-optimizer"
        )
    return Beginning(folder, step, checkpoint)


def in_words(begins: Beginning, config: RunConfig) -> str:
    """Where the run begins, and what its learning rate does there."""
    before, now = begins.folder.config().training, config.training
    there = learning_rate_factor(before.schedule, begins.step - 1, before.steps) * before.optimizer.lr
    here = learning_rate_factor(now.schedule, begins.step, now.steps) * now.optimizer.lr
    return (
        f"going on after step {begins.step} of {begins.folder.path}; the learning rate is now that of a run of "
        f"{now.steps} steps ({now.schedule.name}): {there:.3g} at the end there, {here:.3g} from here"
    )


def _is_part(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
