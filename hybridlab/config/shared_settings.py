"""Settings at the top of a configuration that several parts use: `window`, `growth` and `recurrence`.

A size sets a window w (512 in ConSA's models, 8 in tiny) and the times of a growth; an arch with a loop sets its
recurrence. These are defaults: the map, the controller and the plan name those that they take (`shared`), and are bound
to them once, when all layers are merged. A setting that is written for one run (in a file or with `--set`) and has no
effect is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hybridlab.config.loading import Layer, check, load_preset, preset_names
from hybridlab.config.maps import MAPS, Windowed, map_of_settings
from hybridlab.config.method import Method, controller_of
from hybridlab.config.recurrence import Recurrence
from hybridlab.config.schema import Data, Evaluation
from hybridlab.config.training import Training
from hybridlab.config.types import NonNegativeInt, PositiveInt, Strict, Width, Window
from hybridlab.config.yaml_text import KeyPath, value_at, with_value
from hybridlab.errors import UserError, located
from hybridlab.registry import FINETUNE_TASKS


class GrowthTimes(Strict):
    """Times of a growth, in optimizer steps, and how much it adds; which each controller that grows explains."""

    start_step: PositiveInt | None = None
    """Step after which the first layer begins to loop."""
    interval: PositiveInt | None = None
    """Steps between two growth actions."""
    fade_steps: NonNegativeInt | None = None
    """Steps in which heads that are not kept fade out."""
    block: Width | None = None
    """Layers that a growth in depth adds at once."""


class Shared(Strict):
    """The settings at the top that several parts use."""

    window: Window | None = None
    """Tokens that a head with a window sees, its own included; maps take it where they set none. Where no head has
    one, tasks are measured with it."""
    growth: GrowthTimes | None = None
    """Times of a growth, for a controller that grows."""
    recurrence: Recurrence | None = None
    """A loop over some of the layers; it becomes the first edit of the plan."""


PREPARATION = ("tokenizer", "field", "validation_fraction", "validation_by", "skip_bad_lines", "max_documents")
"""The settings of data that say how text is prepared."""
OF_SHARDS = "shards"
"""The `data.tokenizer` of a run on shards, which bring their own."""
AT_THE_TOP = ("extends", *Shared.model_fields)
"""Names that are allowed at the top level of a configuration in addition to those of RunConfig."""


def asked_for(stack: Sequence[Layer], *path: str) -> str | None:
    """The origin of the last layer that asks for a setting; None if it is a default or not set."""
    for layer in reversed(stack):
        if layer.asked and path[-1] in _at(layer, *path[:-1]):
            return layer.origin(path) or ".".join(path)
    return None


def bind_shared(layer: Layer, stack: Sequence[Layer]) -> Layer:
    """The settings without `window` and `growth`, whose values are now in the settings that take them as defaults, as
    `training.seed` is in the seeds of what is drawn at random. A setting that is written keeps its own value, unless a
    later layer asks for a window.

    stack: the layers that `layer` was merged from. UserError for a shared setting that is asked for and has no effect.
    """
    layer, taken = _bind_asked_window(layer, stack), set[str]()
    growth = check(Shared, layer.only("window", "growth")).growth or GrowthTimes()
    for path, takes in _takers(layer.values):
        for name, source in takes.items():
            value, section = value_at(layer.values, tuple(source.split("."))), value_at(layer.values, path) or {}
            seeded = source == "training.seed" and section.get(name) is None  # null is what an older run has stored
            if seeded and value is None:
                value = Training.model_fields["seed"].default
            if value is not None and (seeded or name not in section):
                taken.add(source)
                values = with_value(layer.values, (*path, name), value)
                layer = Layer(values, layer.moved(tuple(source.split(".")), (*path, name)))
    _require_window(layer)
    for name in growth.model_fields_set:
        if f"growth.{name}" not in taken and (origin := asked_for(stack, "growth", name)) is not None:
            raise UserError(f"{origin}: growth.{name} has no effect here: {_why_unused(name, layer.values)}")
    return layer.without("window", "growth")


def _takers(values: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, str]]]:
    """(path, its settings that take a shared one as default, with the name of that one), of settings as written."""
    settings, controller, edits = map_of_settings(values), controller_of(values), values.get("plan")
    if settings is not None:
        yield ("map",), settings.shared
        if not issubclass(settings, Windowed) and _has_tasks(values):
            yield ("evaluation",), {"task_window": "window"}
    if controller is not None:
        yield ("controller",), controller.shared(values["controller"])
    for index, edit in enumerate(edits if isinstance(edits, list) else ()):
        choice = edit.get("layers") if isinstance(edit, dict) else None
        if isinstance(choice, dict) and "top_entropy_of" in choice:
            yield ("plan", index, "layers"), {"step": "growth.start_step"}


def _bind_asked_window(layer: Layer, stack: Sequence[Layer]) -> Layer:
    """With a window that is asked for in `map.window`, also instead of one in the layers before it."""
    origin, mapping = asked_for(stack, "window"), layer.values.get("map", {"kind": "full"})
    kind = mapping.get("kind") if isinstance(mapping, dict) else None
    if origin is None or not isinstance(kind, str) or kind not in MAPS:
        return layer  # the schema reports a mistake in the map
    window_at = max(i for i, item in enumerate(stack) if item.asked and "window" in item.values)
    window, layer = stack[window_at].values["window"], layer.without("window")
    if "window" in MAPS[kind].model_fields:
        map_at = max((i for i, item in enumerate(stack) if "window" in _at(item, "map")), default=-1)
        if map_at == window_at and mapping.get("window", window) != window:
            raise UserError(f"{origin}: window and map.window have different values; remove one of the two")
        if "window" not in mapping or map_at < window_at:
            values = {**layer.values, "map": {**mapping, "window": window}}
            return Layer(values, {**layer.origins, ("map", "window"): origin})
    elif window is not None:
        raise UserError(
            f"{origin}: window has no effect on a map of kind {kind}; set map.kind=window for this window in every "
            "head or use --arch rule-swa, or set evaluation.task_window to measure tasks with it"
        )
    return layer


def _require_window(layer: Layer) -> None:
    """UserError for a map whose heads have windows, where nothing says how wide these are."""
    settings = map_of_settings(layer.values)
    if settings is not None and issubclass(settings, Windowed) and "window" not in layer.values["map"]:
        message = (
            f"a map of kind {layer.values['map']['kind']} needs a window, and nothing sets one; add --set window=N, "
            "where N is the number of tokens that a head sees, its own included"
        )
        raise UserError(located(layer.origin(("map", "kind")), message))


def _why_unused(name: str, values: dict[str, Any]) -> str:
    """Why nothing takes a time of a growth, and what to do."""
    controller = controller_of(values)
    takes = [] if controller is None else controller.shared({}).values()
    if f"growth.{name}" in takes:
        return f"controller.{name} is set; remove one of them"
    why = f"controller {values['controller']['kind']} has no {name}" if takes else "no controller grows"
    *more, last = archs_with(lambda controller: f"growth.{name}" in controller.shared({}).values())
    return f"{why}; use --arch {', '.join(more)} or {last}" if more else f"{why}; use --arch {last}"


def archs_with(fits: Callable[[type[Method]], bool]) -> list[str]:
    """The archs whose controllers, as settings, fit."""
    kinds = {arch: controller_of(load_preset("arch", arch).values) for arch in preset_names("arch")}
    return [arch for arch, controller in kinds.items() if controller is not None and fits(controller)]


def keep_to_shards(layer: Layer, stack: Sequence[Layer]) -> Layer:
    """Without the settings that prepare text, if the source is shards, which are prepared: they have no effect, and
    would only give equal runs different hashes. UserError for one that is asked for."""
    data = _at(layer, "data")
    several = data.get("sources")
    entries = several if isinstance(several, list) else [data]
    sources = [entry.get("source") for entry in entries if isinstance(entry, dict)]
    if not sources or not all(isinstance(source, str) and source.startswith("shards:") for source in sources):
        return layer
    for name in PREPARATION:
        origin = asked_for(stack, "data", name)
        if origin is not None:
            raise UserError(
                f"{origin}: data.{name} has no effect on {sources[0]}, whose text is tokenized already; remove it, "
                "or make other shards with `hybridlab data prepare`"
            )
    rest = {name: value for name, value in data.items() if name not in PREPARATION}
    return replace(layer, values={**layer.values, "data": {**rest, "tokenizer": OF_SHARDS}})


def in_counts(layer: Layer) -> Layer:
    """The settings with counts of steps and sequences instead of the shares and tokens that stand for them.

    UserError if one layer has both of such a pair. A value that is wrong stays, and the schema reports it.
    """
    training = _at(layer, "training")
    steps, length = training.get("steps"), training.get("seq_len")

    def warmup(fraction: Any) -> int | None:
        fits = type(fraction) in (int, float) and 0 <= fraction <= 1 and type(steps) is int
        return round(fraction * steps) if fits else None

    def windows(tokens: Any) -> int | None:
        fits = type(tokens) is int and tokens >= 1 and type(length) is int and length >= 1
        return max(1, tokens // length) if fits else None

    for part in ("training", "controller"):
        layer = _counted(layer, (part, "schedule", "warmup_fraction"), "warmup_steps", warmup, "the warm-up")
    path = ("evaluation", "validation_tokens")
    return _counted(layer, path, "validation_windows", windows, "the size of the validation")


def _counted(layer: Layer, path: tuple[str, ...], name: str, count: Callable[[Any], int | None], what: str) -> Layer:
    """With a count under `name` instead of the value at a path. count: of a value; None for a wrong one. what: both
    set."""
    section = dict(_at(layer, *path[:-1]))
    value = section.pop(path[-1], None)
    if value is None:
        return layer
    if name in section:
        raise UserError(f"{layer.origin(path)}: {'.'.join(path)} and {name} both set {what}; remove one of the two")
    section[name] = count(value)
    if section[name] is None:
        return layer
    return Layer(with_value(layer.values, path[:-1], section), layer.moved(path, (*path[:-1], name)))


def _at(layer: Layer, *path: str) -> dict[str, Any]:
    """The mapping at a path; empty if there is none."""
    value = value_at(layer.values, path)
    return value if isinstance(value, dict) else {}


def _has_tasks(values: dict[str, Any]) -> bool:
    """Whether some rows of the data are synthetic tasks, whose measurement uses a window."""
    mix, readable = value_at(values, ("data", "mix")), isinstance(values.get("evaluation", {}), dict)
    return readable and isinstance(mix, dict) and mix.get("text", 1) != 1


# ---- what follows from a fine-tuning task: the output head, the tokens of a step, and no text ----
# A task reads its own files, so the settings of text have no effect: those of a preset or of the run to start from are
# left out, and one that is written for the run is an error. Where the tokenizer is trained on the text, as in the cells
# of an experiment, those that say which text it is stay.

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
    if not isinstance(layer.values.get("data", {}), dict):
        return layer
    task = FINETUNE_TASKS.get(name)
    values = {part: dict(content) if isinstance(content, dict) else content for part, content in layer.values.items()}
    trained = str(values.get("data", {}).get("tokenizer", "")).startswith("bpe")
    for part, names in _OF_TEXT.items():
        names = tuple(setting for setting in names if not (trained and part == "data" and setting in _OF_THE_TOKENIZER))
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
    steps = asked_for(stack, "training", "steps")
    if steps is None or section.get("epochs") is None:
        return section
    if asked_for(stack, "finetune", "epochs") is None:
        return {**section, "epochs": None}
    # The complete configuration of a run has both in one layer.
    if not any(asked_for([item], "training", "steps") and asked_for([item], "finetune", "epochs") for item in stack):
        raise UserError(f"{steps}: finetune.epochs chooses the steps; leave one of the two out")
    return section


def _output(shape: dict[str, Any], stack: Sequence[Layer], task: Any) -> dict[str, Any] | None:
    """The output head of a task (`FineTask`), None for tokens; UserError if another one is asked for."""
    heads = {"span": {"kind": "spans"}, "chat": None}
    head = heads.get(task.kind, {"kind": "classes", "labels": task.labels})
    origin = asked_for(stack, "shape", "output")
    if origin is not None and shape.get("output") != head:
        described = "of tokens" if head is None else head
        raise UserError(f"{origin}: the task {task.name} has the output head {described}; leave shape.output out")
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
