"""Runs that go on from another run with its optimizer: from its end, or, as a branch, from a middle step.

    hybridlab pretrain --from runs/first --extend 200
    hybridlab pretrain --arch sgt --from runs/first@400 --steps 800

An extended run is what a longer run would have been: the same data in the same order, the optimizer's moments, the
state of controllers, the totals of tokens and FLOPs, and the log so far. Only the learning rate differs before the
extension, because a schedule follows from the number of steps; and with `evaluation.every` there is one validation loss
more where the shorter run ended between two of them. Validation losses on other windows are not joined: the log of them
begins anew. `init: {run: HASH, load: all}` is how its settings say it.

A branch (`init: {run: HASH, load: all, step: 400}`) goes on in the same way after a step whose checkpoint that run has
kept (`runtime.keep_steps`). With unchanged settings it ends with the same bits. Its plan, map, controller, hooks and
data may be others: the structure is then that of its own settings, and a controller of other settings begins anew. The
batch of a step is a function of data, seed and step, so that other data is read from the place where a run on it would
be at that step; with the same sources in other shares, text that was read is not read again from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hybridlab.config.loading import Layer, check, merge, parse_setting
from hybridlab.config.resolve import identity
from hybridlab.config.schema import InitFrom, RunConfig
from hybridlab.config.shared_settings import in_counts
from hybridlab.config.shown import differing
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.runs.hooks import fresh_hooks
from hybridlab.training.engine import Beginning, Hook
from hybridlab.training.optimizer import learning_rate_factor
from hybridlab.training.store import checkpoints
from hybridlab.training.store.artifacts import pretrained_path, require_tokenizer
from hybridlab.training.store.folders import RunFolder, Runs, part_of_run

_FREE = ("evaluation", "runtime", "training.schedule", "training.optimizer", "training.clip")
"""What may change when a run is extended. Anything else would make it another run."""
_FREE_IN_A_BRANCH = ("plan", "map", "controller", "hooks", "observe", "data", "plugins")
"""What may also change where a run goes on from a middle step of another."""
_DERIVED = ("init", "budget", "training.steps")


def extension(start: str, steps: int, runs: Runs, options: Layer, settings: list[str]) -> RunConfig:
    """The settings of a finished run with so many more steps, and `--set` texts."""
    if pretrained_path(start, runs) is not None or part_of_run(start)[1] == "best":
        raise UserError(f"--extend: {start} has no optimizer; name the folder or the hash of a finished run")
    folder = runs.finished(start)
    before, info = folder.config(), folder.started()
    runs.places.update({**info.get("places", {}), folder.digest: str(folder.path.resolve())})
    longer: dict[str, Any] = {"init": {"run": folder.digest, "load": "all"}, "budget": None}
    longer["training"] = {"steps": before.training.steps + steps}
    longer["runtime"] = {"keep_steps": []}  # those of the shorter run are its own
    extended = merge(Layer(before.model_dump(mode="json")), Layer(longer, {(): "--extend"}))
    changes = [parse_setting(text) for text in settings]
    for text, setting in zip(settings, changes, strict=True):
        name = text.partition("=")[0].strip()
        if not _is_part(name, _FREE) and merge(extended, setting).values != extended.values:
            raise UserError(
                f"--set {text}: a run that is extended can only change {', '.join(_FREE)}; "
                "leave --extend out to start another run from its weights"
            )
    return check(RunConfig, in_counts(merge(extended, options, *changes)))


def beginning(config: RunConfig, run_folder: RunFolder, folder: RunFolder, corpus: Corpus) -> Beginning:
    """Where a run with `init.load: all` begins. UserError if the settings, the data or the missing checkpoint of the
    other run do not allow it. run_folder: that of the run. folder: that of the other run. corpus: its data."""
    assert config.init is not None and config.init.whole
    before, branch = folder.config(), config.init.step is not None
    step = config.init.step or before.training.steps
    free = _FREE + _DERIVED + (_FREE_IN_A_BRANCH if branch else ())
    changed = [n for n in differing(identity(before), identity(config)) if not _is_part(n, free)]
    if changed:
        raise UserError(f"init.load = all: {changed[0]} differs from {folder.path}, so this would be another run")
    if step > before.training.steps:
        raise UserError(f"init.step = {step}: {folder.path} has only {before.training.steps} steps; name one of these")
    if config.training.steps <= step:
        raise UserError(f"training.steps = {config.training.steps}: {folder.path} has done {step}; give more")
    if over := [number for number in config.runtime.keep_steps if number <= step]:
        raise UserError(f"runtime.keep_steps {over[0]}: this run begins after step {step}; name later steps")
    kinds = [c.training.optimizer.kind or "adamw" for c in (before, config)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"training.optimizer.kind = {kinds[1]}: {folder.path} was trained with {kinds[0]}, whose state {kinds[1]} "
            "cannot go on with; keep the kind, or start from the weights alone: --from RUN without --extend and @STEP"
        )
    if config.data != before.data:
        require_tokenizer(folder.path, folder.final / "tokenizer.json", corpus, config.data)
    elif folder.started()["data_fingerprint"] != corpus.fingerprint:
        raise UserError(f"{folder.path}: the data has changed since this run was trained; restore it")
    begins = Beginning(folder, step, None, branch=branch and step < before.training.steps)
    if run_folder.checkpoint_steps:
        return begins
    require_checkpoint(run_folder, folder, config.init)
    return replace(begins, checkpoint=checkpoints.load_step(folder.checkpoints, step))


def require_checkpoint(run_folder: RunFolder, folder: RunFolder, init: InitFrom) -> None:
    """UserError if a finished run has not kept the checkpoint from which another one, without any in its own folder, is
    to go on."""
    step = init.step or folder.config().training.steps
    if run_folder.checkpoint_steps or step in folder.checkpoint_steps:
        return
    if init.step is None:
        raise UserError(
            f"{folder.path}: its optimizer is gone (no checkpoint of step {step}); start another run from its weights "
            f"with --from alone, or remove {folder.path} and train it again with --keep-optimizer"
        )
    earlier, info = (folder.record() or {}).get("extended"), folder.started()
    if earlier is not None and step <= earlier["step"]:
        where = info.get("places", {}).get(earlier["run"], earlier["run"])
        raise UserError(
            f"{folder.path}: it begins after step {earlier['step']} of another run; take step {step} from that one, "
            f"with --from {where}@{step}"
        )
    raise UserError(
        f"{folder.path}: it has not kept the checkpoint of step {step}; remove this folder and train the run again, "
        f"with --set runtime.keep_steps=[{step}]"
    )


def with_own_parts(begins: Beginning, config: RunConfig, hooks: Sequence[Hook], model: Transformer) -> Beginning:
    """A beginning with what does not go on there: hooks of other settings, and in a middle step the structure where
    plan, map, controller or hooks differ. model: the run's, with its own structure. UserError if a tensor that the
    model needs is not in the checkpoint."""
    before = begins.folder.config()
    begins = replace(begins, fresh=fresh_hooks(before, config, hooks))
    if config.init is None or config.init.step is None:
        return begins
    same = all(getattr(before, name) == getattr(config, name) for name in ("plan", "map", "controller"))
    if config.controller is None:
        # Without a controller that goes on with its structure, a hook that is gone may have made it.
        same = same and all(hook in (config.hooks or []) for hook in before.hooks or [])
    if begins.checkpoint is not None and not same:
        tensors = begins.checkpoint.model
        layers = begins.checkpoint.state["structure"]["shape"]["layers"]
        if layers != model.shape.layers:
            raise UserError(
                f"init.step: step {begins.step} of {begins.folder.path} has {layers} layers, and this run would begin "
                f"with {model.shape.layers}, as its plan, map or controller is another; keep these, or name a step "
                "with as many layers"
            )
        for name, parameter in model.named_parameters():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise UserError(
                    f"init.step: the plan needs {name} with {tuple(parameter.shape)} numbers, which step {begins.step} "
                    f"of {begins.folder.path} does not have; use a plan of its tensors, or leave init.load out"
                )
    return replace(begins, own_structure=not same)


def data_since(begins: Beginning | None, config: RunConfig) -> int:
    """The step after which a run reads its data; before, another run read other data. 0 for all other runs."""
    return begins.step if begins is not None and begins.folder.config().data != config.data else 0


def in_words(begins: Beginning, config: RunConfig) -> str:
    """Where the run begins, and what its learning rate does there."""
    before, now = begins.folder.config().training, config.training
    last = learning_rate_factor(before.schedule, begins.step - 1, before.steps) * before.optimizer.lr
    new = learning_rate_factor(now.schedule, begins.step, now.steps) * now.optimizer.lr
    note = "; the data is another, read from the place of that step on" if data_since(begins, config) else ""
    return (
        f"going on after step {begins.step} of {begins.folder.path}; the learning rate is now that of a run of "
        f"{now.steps} steps ({now.schedule.name}): {last:.3g} at the last step there, {new:.3g} from here{note}"
    )


def _is_part(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
