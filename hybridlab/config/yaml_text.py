"""YAML text to plain values, with the line number of each value."""

from __future__ import annotations

import re
from typing import Any

import yaml

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value: ("training", "optimizer", "lr")."""

_Fastest: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fastest):
    """Safe YAML (plain values only), where 1e-3 is a number (as in YAML 1.2) and dates are text."""


_Loader.yaml_implicit_resolvers = {
    key: [
        (tag, pattern)
        for tag, pattern in pairs
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


class NotYaml(Exception):
    """Text that cannot be read, with the problem and its line (from 1; None if unknown)."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def parse_yaml(text: str) -> tuple[Any, dict[KeyPath, int]]:
    """The value of one document, and the line of each value in it, counted from 1.

    Raises NotYaml for text that is not YAML, has a key twice in one mapping, or has an alias that contains itself.
    """
    loader = _Loader(text)
    lines: dict[KeyPath, int] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _refuse_doubles(node, set())
        value = loader.construct_document(node)
        # construct_document has replaced `<<` by the merged values, so that their lines are collected too.
        _collect_lines(node, (), lines)
        return value, lines
    except RecursionError:
        raise NotYaml("an alias in it contains itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise NotYaml(f"this is not YAML ({problem})", mark.line + 1 if mark else None) from None
    finally:
        loader.dispose()


def _refuse_doubles(node: yaml.Node, seen: set[int]) -> None:
    """Raise NotYaml for a mapping that has a key twice. seen: ids of nodes already visited, through other aliases."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if not isinstance(node, yaml.MappingNode):
        for item in node.value:
            _refuse_doubles(item, seen)
        return
    names = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in names:
                raise NotYaml(f"{key.value!r} is written twice in one mapping", key.start_mark.line + 1)
            names.add(key.value)
        _refuse_doubles(value, seen)


def _collect_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            lines[(*path, key.value)] = key.start_mark.line + 1
            _collect_lines(value, (*path, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _collect_lines(value, (*path, index), lines)
