"""YAML text to plain values, with the line number of each value."""

from __future__ import annotations

import re
from typing import Any

import yaml

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value: ("training", "optimizer", "lr")."""


def value_at(values: Any, path: KeyPath) -> Any:
    """The value at a path of mappings and lists; None if there is none."""
    for part in path:
        if isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            values = values.get(part) if isinstance(values, dict) else None
    return values


def with_value(values: Any, path: KeyPath, value: Any) -> Any:
    """A copy of mappings and lists with another value at a path; mappings on the way are made."""
    if not path:
        return value
    copied: Any = list(values) if isinstance(values, list) else dict(values or {})
    copied[path[0]] = with_value(value_at(copied, path[:1]), path[1:], value)
    return copied


_Fastest: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fastest):
    """Safe YAML (plain values only), where 1e-3 is a number, 12:30 and 010 are none (as in YAML 1.2, unlike 1.1), and
    dates are text."""


_Loader.yaml_implicit_resolvers = {
    key: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in ("float", "int", "timestamp")]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+|0b[01]+)$"), list("-+0123456789")
)


_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}
"""The types of values that a configuration is made of."""
_INTEGER, _LONGEST = "tag:yaml.org,2002:int", 250
"""Characters of a whole number: in any base it is still one that a float can hold."""


class NotYaml(Exception):
    """Text that cannot be read, with the problem and its line (from 1; None if unknown)."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def parse_yaml(text: str) -> tuple[Any, dict[KeyPath, int]]:
    """The value of one document, and the line of each value in it, counted from 1.

    Raises NotYaml for text that is not YAML or not a plain configuration: a key that is not text or is there twice in
    one mapping, or a value of another type than YAML's plain ones.
    """
    loader = _Loader(text)
    lines: dict[KeyPath, int] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _check(node)
        value = loader.construct_document(node)
        # construct_document has replaced `<<` by the merged values, so that their lines are collected too.
        lines[()] = node.start_mark.line + 1
        if isinstance(node, yaml.CollectionNode):
            _collect_lines(node, (), lines)
        return value, lines
    except RecursionError:
        raise NotYaml("it is nested too deep, or an alias in it contains itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
        raise NotYaml(f"this is not YAML ({problem}){_advice(text, error)}", mark.line + 1 if mark else None) from None
    finally:
        loader.dispose()


_ADVICE = {
    "mapping values are not allowed": "write `name: value`, on the line before too, and a text with a colon in quotes",
    "cannot start any token": "write a text that begins with a sign such as @, % or ` in quotes",
    "did not find expected ',' or": "close the [ or { that opens before",
    "end of stream": "close the quote that opens before",
}
"""Part of a problem in libyaml's words → what to write instead."""


def _advice(text: str, error: yaml.YAMLError) -> str:
    """What to write instead of what is not YAML, where that is known."""
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", None))
    line = text.splitlines()[mark.line : mark.line + 1] if mark else []
    if line and "\t" in line[0][: len(line[0]) - len(line[0].lstrip())]:
        return "; it is indented with a tab, so write spaces instead"
    advice = next((advice for part, advice in _ADVICE.items() if part in problem), None)
    return f"; {advice}" if advice else ""


def _check(node: yaml.Node) -> None:
    """Raise NotYaml for what `parse_yaml` refuses."""
    if node.tag not in _PLAIN:
        kind = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise _refused(f"a value of the type {kind} cannot be used; write text, a number, true or false", node)
    if node.tag == _INTEGER and len(node.value) > _LONGEST:
        raise _refused(f"a whole number of {len(node.value):,} characters cannot be used; write a shorter one", node)
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
    for inside in node.value if isinstance(node, yaml.CollectionNode) else ():
        value = inside[1] if isinstance(node, yaml.MappingNode) else inside
        # Most are short plain values, of which there is nothing to refuse.
        if isinstance(value, yaml.CollectionNode) or value.tag not in _PLAIN or len(value.value) > _LONGEST:
            _check(value)


def _check_keys(node: yaml.MappingNode) -> None:
    """Raise NotYaml for a key that is not text, and for one that is there twice."""
    names = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _refused("a list or mapping is used as a key; write `key: value`", key)
        kind = key.tag.rpartition(":")[2]
        if kind not in ("str", "merge"):
            read = {"bool": "true or false", "null": "nothing"}.get(kind, "a number")
            raise _refused(f"the key {key.value} is read as {read}; write it in quotes, '{key.value}'", key)
        if key.value in names:
            raise _refused(f"{key.value!r} is written twice in one mapping", key)
        names.add(key.value)


def _refused(problem: str, node: yaml.Node) -> NotYaml:
    return NotYaml(problem, node.start_mark.line + 1)


def _collect_lines(node: yaml.CollectionNode, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Add the line of each value in a mapping, which is that of its key, or in a list, and of what is in these."""
    marked = node.value if isinstance(node, yaml.MappingNode) else zip(node.value, node.value, strict=True)
    for index, (mark, value) in enumerate(marked):
        full_path = (*path, mark.value if isinstance(node, yaml.MappingNode) else index)
        lines[full_path] = mark.start_mark.line + 1
        if isinstance(value, yaml.CollectionNode):
            _collect_lines(value, full_path, lines)
