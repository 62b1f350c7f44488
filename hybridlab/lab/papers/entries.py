"""The entries (tables and figures) that an experiment file defines, as settings that are not yet checked.

A file is one entry, or has a list of them under `entries:`; what stands beside the list is shared by all, beneath what
each writes. An entry whose `for:` has several combinations stands for several. `rows:` can be a table of text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridlab.config.loading import Layer, load_file, read_yaml
from hybridlab.config.templates import FOR, Combination, Scope, combinations, expand, listed, merged
from hybridlab.config.yaml_text import KeyPath, NotYaml, parse_yaml
from hybridlab.errors import UserError
from hybridlab.lab.papers.ids import twice

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
        is_own = path == self.path
        if not is_own and ENTRIES in layer.values:
            origin = layer.origin((ENTRIES,))
            raise UserError(
                f"{origin}: a file with entries cannot be extended; what others share belongs in _NAME.yaml"
            )
        if is_own and self.index is not None:
            layer = merged(layer, ENTRIES, self.index)
        if names is not None:
            layer = layer.without(*({*layer.values} - {*names}))
        if isinstance(layer.values.get("rows"), str):
            layer = _rows_of(layer, "rows")
        return expand(layer, self.given if is_own else {}, partly=names is not None, as_list=_rows_of)


def entries_in(path: Path) -> list[Entry]:
    """The entries of a file, in its order."""
    layer = read_yaml(path)
    if not layer.values:
        raise UserError(f"{path}: it says nothing; write an experiment, which begins with `id: NAME`")
    several = ENTRIES in layer.values
    entries: list[Entry] = []
    for index, item in enumerate(listed(layer, ENTRIES) if several else [layer.values]):
        place: KeyPath = (ENTRIES, index) if several else ()
        written, name = {**layer.values, **item}.get(FOR), item.get("id", "")
        if several and not isinstance(name, str | None) or (several and not name):
            raise UserError(f"{layer.origin((*place, 'id'))}: an entry needs an id of its own, as in `id: mine-table1`")
        all_values = [{}] if written is None else combinations(written, layer.origin((*place, FOR)))
        for values in all_values:
            identifier = str(Scope(values, set()).text(str(name), layer.origin((*place, "id"))))
            if identifier in (entry.id for entry in entries):
                raise UserError(twice(identifier, path, path))
            entries.append(Entry(path, identifier, index if several else None, values))
    return entries


# ---- the rows of a table as text ----


def _rows_of(layer: Layer, name: str) -> Layer:
    """The layer with the text under a name as a list of rows.

    The text is a line of names, then a line for each row, with two or more spaces between columns and `–` for what is
    not given. Empty lines and those that begin with # count nothing. Names in `_ROW`, and below it with dots, are
    settings of the row; the others are columns of the paper. Without `short` it is the name. A number with a point was
    rounded to the digits that it is written with.
    """
    origin = layer.origin((name,))
    file, _, first = origin.rpartition(":")
    lines = [(f"{file}:{int(first) + n}", line.strip()) for n, line in enumerate(layer.values[name].splitlines(), 1)]
    lines = [(at, line) for at, line in lines if line and not line.startswith("#")]
    if len(lines) < 2:
        raise UserError(f"{origin}: write a table as a block of text (|): a line of names, then a line for each row")
    (head, names), *body = ((at, re.split(r"\s{2,}", line)) for at, line in lines)
    if double := [column for index, column in enumerate(names) if column in names[:index]]:
        raise UserError(f"{head}: the table has two columns {double[0]!r}")
    paths = [column.split(".") if column.split(".")[0] in _ROW else ["paper", column] for column in names]
    rows, origins = list[dict[str, Any]](), dict(layer.origins)
    for at, cells in body:
        if len(cells) != len(names):
            hint = "put two spaces between columns, and – for what is not given"
            raise UserError(f"{at}: this row has {len(cells)} cells, and the table {len(names)} columns; {hint}")
        row: dict[str, Any] = {}
        for path, cell in zip(paths, cells, strict=True):
            inside = row
            for part in path[:-1] if cell != "–" else ():
                inside = inside.setdefault(part, {})
            if cell != "–":
                inside[path[-1]] = cell if path[0] in ("name", "short", "cell") else _read(cell, at)
            if path[0] == "paper" and isinstance(inside.get(path[-1]), float) and re.search(r"\.\d+$", cell):
                row.setdefault("digits", {})[path[-1]] = len(cell.partition(".")[2])
        row.setdefault("short", row.get("name"))
        origins[name, len(rows)] = at
        rows.append(row)
    return replace(layer, values={**layer.values, name: rows}, origins=origins)


def _read(cell: str, origin: str) -> Any:
    """A cell as YAML reads it if it is a number, true or false, or in brackets or quotes; else its text."""
    bracketed = cell[0] in "{[\"'"
    try:
        value, _ = parse_yaml(cell)
    except NotYaml as problem:
        if bracketed:
            raise UserError(f"{origin}: {cell}: it cannot be read; {problem}") from None
        return cell
    return value if bracketed or isinstance(value, bool | int | float) else cell
