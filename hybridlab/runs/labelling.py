"""Other names and tags for runs that exist."""

from __future__ import annotations

from collections.abc import Iterable

from hybridlab.errors import UserError
from hybridlab.training.folders import Runs
from hybridlab.training.labels import Label


def relabel(reference: str, label: Label, runs: Runs, without: Iterable[str] = ()) -> list[str]:
    """Give a run a name and tags, and take the tags `without` away; returns its tags. UserError for a tag it lacks."""
    folder = runs.find(reference)
    if label.name is not None:
        runs.check_name(label.name, folder)
    facts = label.applied(folder.started())
    for tag in without:
        if tag not in facts["tags"]:
            raise UserError(
                f"--remove {tag}: {folder.path} has no such tag; it has {', '.join(facts['tags']) or 'none'}"
            )
        facts["tags"].remove(tag)
    folder.relabel(facts)
    return facts["tags"]
