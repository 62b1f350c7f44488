"""Several values from one, in YAML files that repeat a shape: `for:` and `each:`.

A mapping with `for:` stands for several: in a list for several items, in a mapping for several keys or, where the key
is the same for all, for one mapping with the keys of all. `$name` or `${name}` in its texts and keys is a value of the
`for:`, and a text that is nothing else is this value with its type; `$$` is a dollar.

    swap-$size: {for: {arm: [a, b], size: [1, 2]}, …}                # all combinations, the last name changing fastest
    {for: [{arm: midas, label: MIDAS}, {arm: lns, label: LN}], …}    # given combinations

`each:` in a mapping of a list is a list of mappings, or a text that stands for one: they stand in its place, each
merged over what is beside it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hybridlab.config.loading import Layer, merge
from hybridlab.config.yaml_text import KeyPath
from hybridlab.errors import UserError, nearest

FOR, EACH = "for", "each"
_PLACE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([^}]*)\}|\$)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Combination = dict[str, Any]
"""Name → value, for one of the values that a template stands for."""
Listed = Callable[[Layer, str], Layer]
"""Of a layer with a text under a name: the layer with the list that the text stands for."""


@dataclass
class Scope:
    """The names that a place in a file can use. used: output; those that were used."""

    values: Combination
    used: set[str]

    def text(self, text: str, origin: str) -> Any:
        """A text with the values of its placeholders; of a text that is one placeholder, the value itself."""
        if match := _PLACE.fullmatch(text):
            return self._value(match, origin)
        return _PLACE.sub(lambda match: self._as_text(match, origin), text)

    def _value(self, match: re.Match[str], origin: str) -> Any:
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2]
        if name not in self.values:
            hint = nearest(name, list(self.values), None if self.values else "write $$ for a dollar")
            raise UserError(f"{origin}: {match[0]}: no `for:` around it gives a value of this name; {hint}")
        self.used.add(name)
        return self.values[name]

    def _as_text(self, match: re.Match[str], origin: str) -> str:
        value = self._value(match, origin)
        if isinstance(value, dict | list):
            raise UserError(f"{origin}: {match[0]} is a list or a mapping here, which cannot be a part of a text")
        return str(value).lower() if isinstance(value, bool) else str(value)


def combinations(written: Any, origin: str) -> list[Combination]:
    """The combinations of values that a `for:` gives; UserError if it is neither of its two forms."""
    every = written if isinstance(written, list) else [written]
    if not every or not all(isinstance(entry, dict) and entry for entry in every):
        raise UserError(f"{origin}: for: write names with lists of values, or a list of mappings of names to values")
    for entry in every:
        if wrong := [name for name in entry if not _NAME.fullmatch(name)]:
            raise UserError(f"{origin}: for: {wrong[0]!r} cannot be a name; use letters, digits and _")
        if different := {*entry} ^ {*every[0]}:
            raise UserError(f"{origin}: for: {min(different)!r} is not in every mapping; give all the same names")
    if isinstance(written, list):
        return every
    lists = [value if isinstance(value, list) else [value] for value in written.values()]
    if not all(lists):
        raise UserError(f"{origin}: for: a list of values is empty")
    return [dict(zip(written, values, strict=True)) for values in itertools.product(*lists)]


def expand(
    layer: Layer, combination: Combination | None = None, partly: bool = False, as_list: Listed = lambda layer, _: layer
) -> Layer:
    """The layer with every `for:`, `each:` and placeholder written out; each value has the line of its template.

    combination: values for the whole layer, from the `for:` at its top. partly: the layer is only a part of what is in
    the file, so that names may be without use. as_list: reads a text under `each:`.
    """
    rest, scope, origins = layer.without(FOR), Scope(combination or {}, set()), dict[KeyPath, str]()
    values = _Expansion(layer, origins, partly, as_list).mapping(rest.values, (), (), scope)
    if not partly:
        _refuse_unused(combination or {}, scope.used, layer.origin((FOR,)))
    return replace(layer, values=values, origins={(): layer.origin(()), **origins})


def _refuse_unused(names: Combination, used: set[str], origin: str) -> None:
    if unused := [name for name in names if name not in used]:
        raise UserError(f"{origin}: for: {unused[0]!r} is not used; write ${unused[0]} where it belongs, or remove it")


@dataclass
class _Expansion:
    """source: what is written out. target: output; the origins of the values that come of it, by path."""

    source: Layer
    target: dict[KeyPath, str]
    partly: bool
    as_list: Listed

    def value(self, value: Any, path: KeyPath, place: KeyPath, scope: Scope) -> Any:
        """path: of what is written out. place: of what comes of it."""
        self.target[place] = origin = self.source.origin(path)
        if isinstance(value, dict):
            return self.mapping(value, path, place, scope)
        if isinstance(value, list):
            items: list[Any] = []
            for index, item in enumerate(value):
                self.add(items, item, (*path, index), place, scope)
            return items
        return scope.text(value, origin) if isinstance(value, str) and "$" in value else value

    def mapping(self, values: dict[str, Any], path: KeyPath, place: KeyPath, scope: Scope) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in values.items():
            key_path = (*path, key)
            for inner, item in self.each_of(value, key_path, scope):
                name = str(inner.text(key, self.source.origin(key_path))) if "$" in key else key
                expanded = self.value(item, key_path, (*place, name), inner)
                if name not in written:
                    written[name] = expanded
                elif item is value or not isinstance(expanded, dict) or {*written[name]} & {*expanded}:
                    hint = "put a $name of the `for:` into the key"
                    raise UserError(f"{self.source.origin(key_path)}: {name!r} is written twice in one mapping; {hint}")
                else:
                    written[name] |= expanded
        return written

    def add(self, items: list[Any], value: Any, path: KeyPath, place: KeyPath, scope: Scope) -> None:
        """Add to a list what one item stands for. place: of the list."""
        for inner, item in self.each_of(value, path, scope):
            if not isinstance(item, dict) or EACH not in item:
                items.append(self.value(item, path, (*place, len(items)), inner))
                continue
            around = Layer(item, below(self.source.origins, path))
            around = self.as_list(around, EACH) if isinstance(item[EACH], str) else around
            for index in range(len(listed(around, EACH))):
                layer = merged(around, EACH, index)
                replace(self, source=layer).add(items, layer.values, (), place, inner)

    def each_of(self, value: Any, path: KeyPath, scope: Scope) -> Iterator[tuple[Scope, Any]]:
        """What a value stands for: itself, or what is beside its `for:` once for each combination."""
        if not isinstance(value, dict) or FOR not in value:
            yield scope, value
            return
        origin, used = self.source.origin((*path, FOR)), set[str]()
        # The lists of values may use names of a `for:` around this one.
        choices = combinations(replace(self, target={}).value(value[FOR], (*path, FOR), (), scope), origin)
        if hidden := [name for name in choices[0] if name in scope.values]:
            raise UserError(f"{origin}: for: {hidden[0]!r} is a name of a `for:` around this one; choose another")
        rest = {key: inner for key, inner in value.items() if key != FOR}
        for choice in choices:
            yield Scope({**scope.values, **choice}, used), rest
        scope.used |= used
        if not self.partly:
            _refuse_unused(choices[0], used, origin)


def below(origins: dict[KeyPath, str], path: KeyPath) -> dict[KeyPath, str]:
    """The origins of the values at a path, by their path below it."""
    return {key[len(path) :]: origin for key, origin in origins.items() if key[: len(path)] == path}


def listed(layer: Layer, name: str) -> list[dict[str, Any]]:
    """The list of mappings under a name; UserError if it is none."""
    items = layer.values[name]
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise UserError(f"{layer.origin((name,))}: {name}: must be a list of mappings")
    return items


def merged(layer: Layer, name: str, index: int) -> Layer:
    """One of the mappings under a name, over everything that is beside this name."""
    rest = {path: origin for path, origin in layer.origins.items() if path[:1] != (name,)}
    entry = Layer(listed(layer, name)[index], below(layer.origins, (name, index)), layer.asked)
    return merge(replace(layer.without(name), origins=rest), entry)
