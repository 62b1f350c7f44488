"""Settings of an attention map: how each head mixes tokens. `attention_map` of each model makes the map."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from hybridlab.attention import kinds
from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.mistakes import checking
from hybridlab.attention.registry import ATTENTION_KINDS, kind_from_json
from hybridlab.config.other_runs import Configuration, Finished, FinishedRun, probes_of
from hybridlab.config.types import Fraction, Granularity, NonNegativeInt, OrNone, RunName, Seed, Strict, Window, members
from hybridlab.errors import SettingsConflict, UserError, nearest
from hybridlab.messages import say
from hybridlab.plan.allocation import Allocation, read_masks, shuffled_within_layers
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import Shape
from hybridlab.plugins import place_of, summary
from hybridlab.registry import TASKS

TEXT = "text"
"""The text of the corpus, among the names of tasks."""


def _kind(value: Any) -> AttentionKind:
    """A registered attention kind from its settings, `{kind: window, width: 8}`."""
    if isinstance(value, AttentionKind):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        if isinstance(value, str) and value not in ATTENTION_KINDS:
            raise ValueError(f"{value!r} is not an attention kind; {nearest(value, ATTENTION_KINDS.names())}")
        raise ValueError(f"{value!r} is not an attention kind; write it as {_example(value)}")
    try:
        names = [field.name for field in dataclasses.fields(ATTENTION_KINDS.get(value["kind"]))]
        if unknown := [name for name in value if name not in (*names, "kind")]:
            advice = nearest(unknown[0], names, f"it takes {', '.join(names) or 'no settings'}")
            raise ValueError(f"{unknown[0]} is not a setting of attention kind {value['kind']}; {advice}")
        kind = kind_from_json(value)
        _check_properties(kind)
    except UserError as error:
        raise ValueError(str(error)) from None
    if kind.mask is None:
        raise ValueError(f"a controller learns heads of kind {kind.name}; write map: {{kind: {kind.name}, …}} instead")
    return kind


def _example(value: Any) -> str:
    """How the attention kind of this name is written, with the settings that it needs; otherwise a window."""
    name = value if isinstance(value, str) else "window"
    none = dataclasses.MISSING
    fields = dataclasses.fields(ATTENTION_KINDS.get(name))
    required = [field.name for field in fields if field.default is none and field.default_factory is none]
    settings = [f"{setting}: {_EXAMPLES.get(setting, 'VALUE')}" for setting in required]
    return f"{{{', '.join([f'kind: {name}', *settings])}}}"


_EXAMPLES = {"width": "8", "factor": "high"}


def _check_properties(kind: AttentionKind) -> None:
    """UserError for a property that raises, so that the code which reads it later need not expect that."""
    for name, member in vars(AttentionKind).items():
        if isinstance(member, property):
            try:
                getattr(kind, name)
            except Exception as error:  # the code of a kind can raise anything
                raise UserError(
                    f"attention kind {kind.name}: its property {name} raised {summary(error)}; see "
                    f"{place_of(kind, name)}; `{checking(kind)}` says what is wrong with the kind"
                ) from error


Kind = Annotated[AttentionKind, PlainValidator(_kind), PlainSerializer(lambda kind: kind.to_json())]


class Map(Strict):
    """Base class of maps. sized: the setting whose line is given in the error if the map does not fit the shape."""

    sized: ClassVar[str] = "kind"
    learned: ClassVar[bool] = False
    """Whether a controller has to learn which heads keep full attention."""
    shared: ClassVar[dict[str, str]] = {}
    """Its settings whose defaults stand elsewhere in the configuration, with their dotted name."""

    @abstractmethod
    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        """The map of a model of this shape; UserError if it does not fit."""

    def check_shape(self, num_layers: int, num_kv_heads: int) -> None:
        """UserError if the map does not fit a model of this shape, as far as that is known before training."""
        self.attention_map(num_layers, num_kv_heads)

    def check_kinds(self, causal: bool) -> None:
        """UserError for attention kinds, written in this map, that cannot be in a decoder (causal) or an encoder."""

    def linked(self, config: Configuration, finished: Finished) -> Map:
        """The map with its masks, where these come from another run."""
        return self


class FullMap(Map):
    """Full attention in every head."""

    kind: Literal["full"]

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        return AttentionMap.uniform(num_layers, num_kv_heads, kinds.Full())


class Windowed(Map):
    """Base class of maps that use the window of the size unless they set their own."""

    window: Window
    """Tokens that a head sees, its own included. Default: `window`."""
    shared: ClassVar[dict[str, str]] = {"window": "window"}


class WindowMap(Windowed):
    """A window in every head: the control that cannot see tokens outside the window."""

    kind: Literal["window"]

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        return AttentionMap.uniform(num_layers, num_kv_heads, kinds.Window(self.window))


class RuleMap(Windowed):
    """ConSA's rule-based baselines (section 5.1)."""

    kind: Literal["rule"]
    granularity: Literal["layer", "head"]
    """Which units get windows: whole layers, or KV heads in every layer."""
    rho: Fraction
    """Share of the units that get a window."""
    nearest: bool = False
    """Use the nearest share that the number of units allows; otherwise another one is an error."""
    phase: Annotated[NonNegativeInt | None, OrNone] = None
    """Move the pattern on by so many layers, or by so many KV heads within every layer: other layers or heads of the
    same pattern get the windows. Default: 0."""
    sized: ClassVar[str] = "rho"

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        phase = self.phase or 0
        return AttentionMap.rule(num_layers, num_kv_heads, self.granularity, self.rho, self.window, self.nearest, phase)


class Allocated(Windowed):
    """Base class of maps that give a window to exactly a share of the units."""

    granularity: Granularity
    """Units, and where the share holds: layers; all KV heads of the model; the KV heads within every layer."""
    rho: Fraction
    """Share of the units that get a window."""
    nearest: bool = False
    """Use the nearest share that the number of units allows; otherwise another one is an error."""
    sized: ClassVar[str] = "rho"

    def allocation(self, num_layers: int, num_kv_heads: int) -> Allocation:
        return Allocation(num_layers, num_kv_heads, self.granularity, self.rho, self.nearest)


class RandomMap(Allocated):
    """Windows at random units: the control for any choice of units at the same share."""

    kind: Literal["random"]
    draw: NonNegativeInt = 0
    """Number of the draw: each gives other units."""
    seed: Seed
    """Seed of the draw. Default: `training.seed`, so that every seed of an experiment draws anew."""
    shared: ClassVar[dict[str, str]] = {"window": "window", "seed": "training.seed"}

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        masks = self.allocation(num_layers, num_kv_heads).random(self.seed, self.draw)
        return AttentionMap.from_masks(masks, self.window)


class MixedMap(Windowed):
    """Every head mixes full attention and a window, while a controller learns which of the two to keep."""

    learned: ClassVar[bool] = True

    kind: Literal["mixed"]

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        return AttentionMap.uniform(num_layers, num_kv_heads, kinds.Mixed(self.window))


class UniformMap(Map):
    """Every head of one registered kind: `attention: {kind: window, width: 8}`."""

    kind: Literal["uniform"]
    attention: Kind
    """The attention kind of every head, as in {kind: window, width: 8}."""
    sized: ClassVar[str] = "attention"

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        return AttentionMap.uniform(num_layers, num_kv_heads, self.attention)

    def check_kinds(self, causal: bool) -> None:
        self.attention.check(causal)


class HeadsMap(Map):
    """A kind per KV head, one row per layer: `layers: [[{kind: full}, {kind: window, width: 8}], …]`."""

    kind: Literal["heads"]
    layers: list[list[Kind]]
    """One list for each layer, with an attention kind for each of its KV heads."""
    sized: ClassVar[str] = "layers"

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        if len(self.layers) != num_layers:
            raise UserError(f"map.layers has {len(self.layers)} rows, but the model has {num_layers} layers")
        for layer, row in enumerate(self.layers):
            if len(row) != num_kv_heads:
                raise UserError(f"map.layers.{layer} has {len(row)} kinds, but a layer has {num_kv_heads} KV heads")
        return AttentionMap(tuple(tuple(row) for row in self.layers))

    def check_kinds(self, causal: bool) -> None:
        for layer, row in enumerate(self.layers):
            for head, kind in enumerate(row):
                try:
                    kind.check(causal)
                except UserError as error:
                    raise UserError(f"map.layers.{layer}.{head}: {error}") from None


class ExplicitMap(Map):
    """Masks written out, as in masks.json: rows of 1 (full) and 0 (window), with the window of the learned heads."""

    kind: Literal["explicit"]
    masks: list[list[Literal[0, 1]]]
    """One list for each layer, with a number for each KV head: 1 full attention, 0 a window."""
    window: Window
    """Tokens that a head with a window sees, its own included."""
    sized: ClassVar[str] = "masks"

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        mask_map = AttentionMap.from_masks(self.masks, self.window)
        mask_map.check_shape(num_layers, num_kv_heads)
        return mask_map


class FromRun(Map):
    """Base class of maps that are known when another run has finished; `linked` puts the masks in their place."""

    run: RunName
    """Hash of the run that they come from."""

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        raise UserError(f"map: the masks from run {self.run} are known only when that run has finished")

    def check_shape(self, num_layers: int, num_kv_heads: int) -> None:
        """Nothing is known yet."""


class LearnedMap(FromRun):
    """The masks that another run learns, given by its hash, which is known before that run is trained."""

    kind: Literal["learned"]
    run: RunName
    """Hash of the run that learns the masks."""

    def linked(self, config: Configuration, finished: Finished) -> ExplicitMap:
        path = finished(self.run).path / "masks.json"
        learned = read_masks(path)
        for warning in learned["warnings"]:
            say(f"{path}: warning: {warning}")
        return ExplicitMap(kind="explicit", masks=learned["masks"], window=learned["window"])


class MatchedMap(LearnedMap):
    """Windows at random KV heads, in each layer as many as the masks have there that another run learns: the control
    for which heads of a layer these are."""

    kind: Literal["matched"]  # type: ignore[assignment]
    draw: NonNegativeInt = 0
    """Number of the draw: each gives other heads."""
    seed: Seed
    """Seed of the draw. Default: `training.seed`."""
    shared: ClassVar[dict[str, str]] = {"seed": "training.seed"}

    def linked(self, config: Configuration, finished: Finished) -> ExplicitMap:
        learned = super().linked(config, finished)
        masks = shuffled_within_layers(learned.masks, self.seed, self.draw)
        return ExplicitMap.model_validate({"kind": "explicit", "masks": masks, "window": learned.window})


class KnockoutMap(FromRun, Allocated):
    """Full attention where a window would cost most: an oracle, from the probe `knockout` of another run.

    The probe measures for every layer and every KV head how much the loss rises when it alone becomes a window.
    """

    kind: Literal["knockout"]
    run: RunName
    """Hash of the run whose record has the probe `knockout`; `cell:NAME` in an experiment file."""
    of: str
    """The loss that rises: `text`, or the name of a task in the run's data."""
    measure: Literal["far", "all"]
    """far: answers whose fact is outside the window. all: all answers. Default: far, and all for text, which has no
    distances."""

    @model_validator(mode="before")
    @classmethod
    def _default_measure(cls, values: Any) -> Any:
        """So that a run has the same hash with and without the default."""
        if isinstance(values, dict) and values.get("measure") is None:
            return {**values, "measure": "all" if values.get("of") == TEXT else "far"}
        return values

    @field_validator("of")
    @classmethod
    def _measured(cls, of: str) -> str:
        names = [TEXT, *TASKS.names()]
        if of not in names:
            raise ValueError(f"{of!r} is neither {TEXT} nor a task; {nearest(of, names)}")
        return of

    @model_validator(mode="after")
    def _text_has_no_distances(self) -> KnockoutMap:
        if self.of == TEXT and self.measure == "far":
            raise SettingsConflict("text has no distances; write measure: all, or name a task in `of`", "measure", "of")
        return self

    def check_shape(self, num_layers: int, num_kv_heads: int) -> None:
        """UserError for a share that the number of units does not allow."""
        _ = self.allocation(num_layers, num_kv_heads).windows_per_row

    def chosen(self, costs: Sequence[Sequence[float]], num_kv_heads: int) -> ExplicitMap:
        """The map for these costs, a row for each layer: of one number for layers, of one per KV head for heads."""
        masks = self.allocation(len(costs), num_kv_heads).ranked(costs)
        return ExplicitMap.model_validate({"kind": "explicit", "masks": masks, "window": self.window})

    def linked(self, config: Configuration, finished: Finished) -> ExplicitMap:
        return self.chosen(knockout_costs(finished(self.run), self, config.first_shape), config.shape.kv_heads)


def knockout_costs(run: FinishedRun, chosen: KnockoutMap, shape: Shape) -> list[list[float]]:
    """The rise of the loss for every unit, by layer: (L, 1) for layers, (L, K) for KV heads.

    UserError if the run's record does not have it for this window and this loss, or is of another shape.
    """
    setting = f"map of kind knockout, run {run.digest} ({run.path})"
    theirs = run.config().shape
    if (theirs.layers, theirs.kv_heads) != (shape.layers, shape.kv_heads):
        raise UserError(
            f"{setting}: that run has {theirs.layers} layers of {theirs.kv_heads} KV heads, this one {shape.layers} of "
            f"{shape.kv_heads}; name a run of the same shape"
        )
    probe = probes_of(run).get("knockout", {"skipped": "it is not among its probes"})
    if "skipped" in probe:
        raise UserError(
            f"{setting}: its record has no knock-out: {probe['skipped']}; train it with "
            f"--set evaluation.probes=[knockout] --set evaluation.task_window={chosen.window}"
        )
    if probe["window"] != chosen.window:
        raise UserError(
            f"{setting}: it was measured with windows of {probe['window']}, and this map has windows of "
            f"{chosen.window}; use the same, or train that run with --set evaluation.task_window={chosen.window}"
        )
    if chosen.of not in probe["heads"]:
        raise UserError(f"{setting}: it was not measured on {chosen.of}; {nearest(chosen.of, list(probe['heads']))}")
    rises = probe["layers" if chosen.granularity == "layer" else "heads"][chosen.of][chosen.measure]["rise"]
    rows = [row if isinstance(row, list) else [row] for row in rises]
    if any(value is None for row in rows for value in row):
        raise UserError(
            f"{setting}: it has no answer of {chosen.of} to measure ({chosen.measure}); train that run with longer "
            "sequences, or choose another measure"
        )
    return rows


MapConfig = Annotated[
    FullMap
    | WindowMap
    | RuleMap
    | RandomMap
    | MixedMap
    | UniformMap
    | HeadsMap
    | ExplicitMap
    | LearnedMap
    | MatchedMap
    | KnockoutMap,
    Field(discriminator="kind"),
]
MAPS: dict[str, type[Map]] = members(MapConfig)
"""Kind → its settings."""


def map_of_settings(values: dict[str, Any]) -> type[Map] | None:
    """The settings of the map in a configuration as written; None if it has none, or an unknown one."""
    written = values.get("map")
    return MAPS.get(str(written.get("kind"))) if isinstance(written, dict) else None
