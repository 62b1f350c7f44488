"""The attention kinds by name: those that are built in, and those of plug-ins. No torch."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

from hybridlab.attention.belief import Belief
from hybridlab.attention.kinds import AttentionKind, Full, Mixed, Window
from hybridlab.errors import UserError
from hybridlab.registry import Registry

ATTENTION_KINDS: Registry[type[AttentionKind]] = Registry("attention kind", changes_runs=True)
Kind = TypeVar("Kind", bound=type[AttentionKind])


def register_kind(kind: Kind) -> Kind:
    """Register a kind. Use it as a decorator of a frozen dataclass; UserError if its name, letter or colour is missing,
    if name or letter is taken, and for one with settings that is no dataclass."""
    for needed in ("name", "letter", "colour"):
        if not isinstance(getattr(kind, needed, None), str):
            raise UserError(
                f"attention kind {kind.__name__}: it has no {needed}; write for example "
                'name, letter, colour = "mine", "i", "#009E73"'
            )
    settings = [name for name, of in vars(kind).get("__annotations__", {}).items() if "ClassVar" not in str(of)]
    if settings and "__dataclass_fields__" not in vars(kind):
        raise UserError(
            f"attention kind {kind.name!r}: {settings[0]} is no setting yet; write @dataclass(frozen=True) below "
            "@register_kind"
        )
    for name in ATTENTION_KINDS.names(installed=False):
        other = ATTENTION_KINDS.items[name]
        if other.letter == kind.letter and other.name != kind.name:
            raise UserError(
                f"attention kind {kind.name!r}: the letter {kind.letter!r} belongs to {other.name!r}; choose another"
            )
    ATTENTION_KINDS.add(kind.name, kind)
    return kind


def kind_from_json(data: dict[str, Any]) -> AttentionKind:
    """A kind from {"kind": NAME, and its fields}; UserError if the fields do not fit."""
    fields = {key: value for key, value in data.items() if key != "kind"}
    kind = ATTENTION_KINDS.get(str(data.get("kind")))
    try:
        return kind(**fields)
    except TypeError:
        wanted = ", ".join(field.name for field in dataclass_fields(kind)) or "no settings"
        raise UserError(f"attention kind {kind.name}: it takes {wanted}, not {', '.join(fields) or 'none'}") from None


for _kind in (Full, Window, Mixed, Belief):
    register_kind(_kind)
