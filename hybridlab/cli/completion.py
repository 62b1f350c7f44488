"""Values that a shell completes after `hybridlab --install-completion`; without heavy imports, so that it is fast."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import typer

from hybridlab.registry import CHOICES, FINETUNE_TASKS, PROBES, SOURCES

Completed = Iterator[str | tuple[str, str]]
"""Values, some with a line about them that a shell may show."""


def archs(incomplete: str) -> Completed:
    """Names of architectures, or YAML files."""
    return _presets("arch", incomplete)


def checked(incomplete: str) -> Completed:
    """Attention kinds, architectures, and files of either."""
    from hybridlab.attention.registry import ATTENTION_KINDS

    yield from beginning_with(incomplete, ATTENTION_KINDS.names(installed=False))
    yield from archs(incomplete)


def mask_learners(incomplete: str) -> Completed:
    """The architectures whose masks are learned."""
    from hybridlab.config.shared_settings import archs_with

    return beginning_with(incomplete, archs_with(lambda controller: controller.learns_masks))


def methods(incomplete: str) -> Completed:
    """The methods of growth in depth."""
    from hybridlab.methods.depth import Copied

    return beginning_with(incomplete, list(get_args(Copied)))


def sizes(incomplete: str) -> Completed:
    """Names of sizes, or YAML files."""
    return _presets("size", incomplete)


def data(incomplete: str) -> Completed:
    """Data presets, and the beginnings of data sources."""
    from hybridlab.config.loading import preset_names

    syntaxes = (SOURCES.get(kind).syntax for kind in SOURCES.names(installed=False))
    sources = (kind + colon for kind, colon, _ in (syntax.partition(":") for syntax in syntaxes))
    return beginning_with(incomplete, [*preset_names("data"), *sources])


def finetune_tasks(incomplete: str) -> Completed:
    """The tasks of `hybridlab finetune`."""
    names = FINETUNE_TASKS.names(installed=False)
    yield from ((name, FINETUNE_TASKS.get(name).title) for name in names if name.startswith(incomplete))


def suites(incomplete: str) -> Completed:
    """The suites of benchmarks of `hybridlab eval`."""
    from hybridlab.config.loading import preset_names

    return beginning_with(incomplete, preset_names("suites"))


def probes(incomplete: str) -> Completed:
    """Names of probes."""
    return beginning_with(incomplete, PROBES.names(installed=False))


def choices(incomplete: str) -> Completed:
    """Names of reasoning primitives."""
    return beginning_with(incomplete, [*CHOICES.names(installed=False), "all"])


def runs(context: typer.Context, incomplete: str) -> Completed:
    """Names and folders of runs in RUNS-DIR, and, for the beginning of a hash, the runs that have it."""
    from hybridlab.files import user_path

    folder = user_path(context.params.get("runs_dir") or "runs")
    names: list[Any] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            info = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        facts = info if isinstance(info, dict) else {}
        names += [facts.get("name"), str(path.parent), facts.get("hash") if incomplete else None]
    # A copied run folder has the hash of the first one.
    return beginning_with(incomplete, dict.fromkeys(text for text in names if isinstance(text, str)))


def masks(context: typer.Context, incomplete: str) -> Completed:
    """Runs, and JSON files."""
    yield from runs(context, incomplete)
    yield from files(incomplete, (".json",))


def _presets(kind: str, incomplete: str) -> Completed:
    from hybridlab.config.loading import summaries

    for name, summary in summaries(kind).items():
        if name.startswith(incomplete):
            yield name, summary
    yield from files(incomplete)


def files(incomplete: str, endings: tuple[str, ...] = (".yaml", ".yml")) -> Iterator[str]:
    """Files with these endings, and folders, that begin with a path; nothing for a text without a separator, which is a
    name."""
    if "/" not in incomplete:
        return
    start, _, name = incomplete.rpartition("/")
    from hybridlab.files import user_path

    for path in sorted(user_path(start or "/").glob(f"{name}*")):
        if path.is_dir() or path.suffix in endings:
            yield f"{start}/{path.name}{'/' if path.is_dir() else ''}"


def beginning_with(incomplete: str, values: Iterable[str]) -> Iterator[str]:
    """The values that begin so."""
    return (value for value in values if value.startswith(incomplete))
