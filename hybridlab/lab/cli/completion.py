"""Values of the lab's options that a shell completes; see cli/completion.py."""

from __future__ import annotations

from hybridlab.cli.completion import Completed, beginning_with, files


def experiments(incomplete: str) -> Completed:
    """Ids of experiments, or YAML files."""
    from hybridlab.lab.papers.ids import experiment_ids

    yield from beginning_with(incomplete, experiment_ids())
    yield from files(incomplete)


def papers(incomplete: str) -> Completed:
    """The papers that have experiments."""
    from hybridlab.lab.papers.ids import experiment_ids

    return beginning_with(incomplete, dict.fromkeys(name.split("-")[0] for name in experiment_ids()))


def kinds(incomplete: str) -> Completed:
    """Kinds of experiments."""
    from hybridlab.lab.papers.ids import KINDS

    return beginning_with(incomplete, KINDS)


def verdicts(incomplete: str) -> Completed:
    """Verdicts on claims."""
    from hybridlab.lab.papers.ids import VERDICTS

    return beginning_with(incomplete, VERDICTS)


def scales(incomplete: str) -> Completed:
    """Scales of experiments."""
    from hybridlab.lab.papers.ids import EVERY_SCALE

    return beginning_with(incomplete, EVERY_SCALE)
