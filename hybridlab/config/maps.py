"""Settings of an attention map: how each head mixes tokens. `attention_map` of each model makes the map."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator

from hybridlab.config.types import Fraction, Strict, Window
from hybridlab.errors import UserError
from hybridlab.plan import kinds
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.kinds import AttentionKind, kind_from_json
from hybridlab.registry import nearest


def _kind(value: Any) -> AttentionKind:
    """A registered attention kind from its settings, `{kind: window, width: 8}`."""
    if isinstance(value, AttentionKind):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError(f"{value!r} is not an attention kind; write it as {{kind: window, width: 8}}")
    try:
        known = [field.name for field in dataclasses.fields(kinds.ATTENTION_KINDS.get(value["kind"]))]
        if unknown := [name for name in value if name not in (*known, "kind")]:
            advice = nearest(unknown[0], known, f"it takes {', '.join(known) or 'no settings'}")
            raise ValueError(f"{unknown[0]} is not a setting of attention kind {value['kind']}; {advice}")
        kind = kind_from_json(value)
    except UserError as error:
        raise ValueError(str(error)) from None
    if kind.mask is None:
        raise ValueError(f"a controller learns heads of kind {kind.name}; write map: {{kind: {kind.name}, …}} instead")
    return kind


Kind = Annotated[AttentionKind, PlainValidator(_kind), PlainSerializer(lambda kind: kind.to_json())]


class Map(Strict):
    """Base class of maps. sized: the setting whose line is given in the error if the map does not fit the shape."""

    sized: ClassVar[str] = "kind"


class FullMap(Map):
    """Full attention in every head."""

    kind: Literal["full"]

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        return AttentionMap.uniform(num_layers, num_kv_heads, kinds.Full())


class Windowed(Map):
    """Base class of maps that use the window of the size unless they set their own."""

    window: Window
    """Tokens that a head sees, its own included. Default: `window`."""


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
    sized: ClassVar[str] = "rho"

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        return AttentionMap.rule(num_layers, num_kv_heads, self.granularity, self.rho, self.window, self.nearest)


class MixedMap(Windowed):
    """Every head mixes full attention and a window, while a controller learns which of the two to keep."""

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


class LearnedMap(Map):
    """The masks that another run learns, given by its hash, which is known before that run is trained."""

    kind: Literal["learned"]
    run: str
    """Hash of the run that learns the masks."""

    def attention_map(self, num_layers: int, num_kv_heads: int) -> AttentionMap:
        raise UserError(f"map: the masks of run {self.run} are not learned yet; run `hybridlab learn-masks` first")


MapConfig = Annotated[
    FullMap | WindowMap | RuleMap | MixedMap | UniformMap | HeadsMap | ExplicitMap | LearnedMap,
    Field(discriminator="kind"),
]
