"""The settings that follow from a fine-tuning task: the output head, the tokens of a step, and no text.

A task reads its own files, so the settings of text have no effect: those of a preset or of the run to start from are
left out, and one that is written for the run is an error. Where the tokenizer is trained on the text, as in the cells
of an experiment, those that say which text it is stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hybridlab.config.loading import Layer
from hybridlab.config.schema import Data, Evaluation
from hybridlab.config.shared import asked_for
from hybridlab.errors import UserError
from hybridlab.registry import FINETUNE_TASKS

_OF_TEXT = {
    "data": ("source", "sources", "mix", "field", "validation_fraction", "max_documents", "task_loss_weight"),
    "evaluation": ("length_factors", "choices", "task_window", "task_rows"),
    "training": ("skip_steps",),
}
_OF_THE_TOKENIZER = ("source", "sources", "field", "validation_fraction", "max_documents")
_DEFAULTS = {
    "data": Data().model_dump(mode="json") | {"source": None},
    "evaluation": Evaluation().model_dump(mode="json"),
}
_FALLBACK_LENGTH = 128


def keep_to_task(layer: Layer, stack: Sequence[Layer]) -> Layer:
    """The settings of a run with `finetune` and what follows from its task. stack: the layers that `layer` was merged
    from. UserError for a setting without effect that is asked for."""
    section = layer.values.get("finetune")
    name = section.get("task") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(name, str) or name not in FINETUNE_TASKS:
        return layer  # the schema reports the mistake
    task = FINETUNE_TASKS.get(name)
    values = {part: dict(content) if isinstance(content, dict) else content for part, content in layer.values.items()}
    trained = str(dict(values.get("data") or {}).get("tokenizer", "")).startswith("bpe")
    for part, names in _OF_TEXT.items():
        names = tuple(one for one in names if not (trained and part == "data" and one in _OF_THE_TOKENIZER))
        for setting in names if isinstance(values.get(part), dict) else ():
            written = values[part].pop(setting, None)
            origin = asked_for(stack, part, setting)
            if origin is not None and written not in (None, _DEFAULTS.get(part, {}).get(setting)):
                raise UserError(
                    f"{origin}: {part}.{setting} has no effect on fine-tuning, which reads the files of its task "
                    "(finetune.data); leave it out"
                )
    if not trained:
        values["data"] = {**values.get("data", {}), "source": None}
    values["finetune"] = _section(section, stack)
    if isinstance(values.get("shape"), dict):
        values["shape"] = {**values["shape"], "output": _output(values["shape"], stack, task)}
    if isinstance(values.get("training"), dict):
        values["training"] = _training(values, stack, task)
    return replace(layer, values=values)


def _section(section: dict[str, Any], stack: Sequence[Layer]) -> dict[str, Any]:
    """Without the epochs of a preset where the number of steps is asked for."""
    steps, epochs = asked_for(stack, "training", "steps"), asked_for(stack, "finetune", "epochs")
    if steps is None or section.get("epochs") is None:
        return section
    if epochs is not None:
        if not _same_layer(stack):
            raise UserError(f"{steps}: finetune.epochs chooses the steps; leave one of the two out")
        return section
    return {**section, "epochs": None}


def _same_layer(stack: Sequence[Layer]) -> bool:
    """Whether one layer asks for both epochs and steps, as the complete configuration of a run does."""
    return any(asked_for([layer], "training", "steps") and asked_for([layer], "finetune", "epochs") for layer in stack)


def _output(shape: dict[str, Any], stack: Sequence[Layer], task: Any) -> dict[str, Any]:
    """The output head of a task (`FineTask`); UserError if another one is asked for."""
    head = {"kind": "spans"} if task.kind == "span" else {"kind": "classes", "labels": task.labels}
    origin = asked_for(stack, "shape", "output")
    if origin is not None and shape.get("output") != head:
        raise UserError(f"{origin}: the task {task.name} has the output head {head}; leave shape.output out")
    return head


def _training(values: dict[str, Any], stack: Sequence[Layer], task: Any) -> dict[str, Any]:
    """With the tokens of a step, and rows that are no longer than the model's positions unless that is asked for."""
    training, section = dict(values["training"]), values["finetune"]
    positions = values["shape"].get("max_positions") if isinstance(values.get("shape"), dict) else None
    length = training.setdefault("seq_len", _FALLBACK_LENGTH)
    if type(positions) is int and type(length) is int and asked_for(stack, "training", "seq_len") is None:
        training["seq_len"] = length = min(length, positions)
    batch = section.get("batch", 32)
    if type(length) is not int or type(batch) is not int:
        return training  # the schema reports the mistake
    tokens = batch * task.options * length
    origin = asked_for(stack, "training", "tokens_per_step")
    if origin is not None and training.get("tokens_per_step") != tokens:
        raise UserError(
            f"{origin}: training.tokens_per_step has no effect on fine-tuning, where a step has finetune.batch = "
            f"{batch} examples; set that instead"
        )
    training["tokens_per_step"] = tokens
    return training
