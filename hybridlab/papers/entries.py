"""The entries (tables and figures) that an experiment file defines, as settings that are not yet checked.

A file is one entry, or has a list of them under `entries:`; what stands beside the list is shared by all, beneath what
each writes. An entry whose `for:` has several combinations stands for several. `rows:` can be a table of text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from hybridlab.config.loading import Layer, load_file, read_yaml
from hybridlab.config.templates import (
    EACH,
    FOR,
    Combination,
    Scope,
    below,
    combinations,
    expand,
    listed,
    merged,
    table,
)
from hybridlab.config.yaml_text import KeyPath, value_at
from hybridlab.errors import UserError
from hybridlab.papers.ids import twice

ENTRIES = "entries"
_ROW = ("name", "short", "cell", "given")
"""What a row of a table has beside what the paper prints."""


@dataclass(frozen=True)
class Entry:
    """One entry of a file. index: its place in the list of entries, None for a file that is one. given: the values of
    its `for:`."""

    path: Path
    id: str
    index: int | None
    given: Combination

    def layer(self, names: Collection[str] | None = None) -> Layer:
        """What it and the files that it extends say. names: of the settings at the top to read, by default all."""
        return load_file(self.path, lambda layer, path: self._prepared(layer, path, names))

    def _prepared(self, layer: Layer, path: Path, names: Collection[str] | None) -> Layer:
        own = path == self.path
        if not own and ENTRIES in layer.values:
            origin = layer.origin((ENTRIES,))
            raise UserError(
                f"{origin}: a file with entries cannot be extended; what others share belongs in _NAME.yaml"
            )
        if own and self.index is not None:
            layer = merged(layer, ENTRIES, self.index)
        if names is not None:
            layer = layer.without(*({*layer.values} - {*names}))
        return expand(_with_rows(layer), self.given if own else {}, partly=names is not None)


def entries_in(path: Path) -> list[Entry]:
    """The entries of a file, in its order."""
    layer = read_yaml(path)
    several = ENTRIES in layer.values
    found: list[Entry] = []
    for index, item in enumerate(listed(layer, ENTRIES) if several else [layer.values]):
        own: KeyPath = (ENTRIES, index) if several else ()
        written, name = {**layer.values, **item}.get(FOR), item.get("id", "")
        if several and not isinstance(name, str | None) or (several and not name):
            raise UserError(f"{layer.origin((*own, 'id'))}: an entry needs an id of its own, as in `id: mine-table1`")
        given = [{}] if written is None else combinations(written, layer.origin((*own, FOR)))
        for values in given:
            identifier = str(Scope(values, set()).text(str(name), layer.origin((*own, "id"))))
            if identifier in (entry.id for entry in found):
                raise UserError(twice(identifier, path, path))
            found.append(Entry(path, identifier, index if several else None, values))
    return found


def _with_rows(layer: Layer) -> Layer:
    """The layer with rows that are a table of text as a list; also under `each:` of an item of the list."""
    rows, places = layer.values.get("rows"), list[KeyPath]()
    if isinstance(rows, str):
        places = [("rows",)]
    elif isinstance(rows, list):
        items = [(index, item) for index, item in enumerate(rows) if isinstance(item, dict)]
        places = [("rows", index, EACH) for index, item in items if isinstance(item.get(EACH), str)]
    for place in places:
        origin = layer.origin(place)
        made = table(value_at(layer.values, place), origin, _ROW, "paper", ("name", "short", "cell"))
        for row in made.values["rows"]:
            row.setdefault("short", row.get("name"))
        if place == ("rows",):
            values = {**layer.values, "rows": made.values["rows"]}
        else:
            around = value_at(layer.values, place[:-1])
            around[EACH] = made.values["rows"]
            values = layer.values
        new = {(*place, *path): at for path, at in below(made.origins, ("rows",)).items()}
        layer = replace(layer, values=values, origins=layer.origins | new)
    return layer
