"""RUNS-DIR/jobs: what the jobs of a cluster need to train their runs, and their numbers; see runs/cluster.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlab.files import make_folder, read_object, write_json


@dataclass(frozen=True)
class JobFiles:
    """The jobs of a folder of runs: a file HASH.json for each run that was submitted, and their output."""

    runs_dir: Path

    @property
    def folder(self) -> Path:
        return self.runs_dir.resolve() / "jobs"

    def of(self, digest: str) -> Path:
        """The file of a run's job; it need not exist."""
        return self.folder / f"{digest}.json"

    def write(self, digest: str, content: dict[str, Any]) -> Path:
        """Write the file of a run's job, or add to it; returns its path."""
        make_folder(self.folder)
        file = self.of(digest)
        write_json(file, {**self.read(digest), **content})
        return file

    def read(self, digest: str) -> dict[str, Any]:
        """What is known of a run's job; nothing where it was never submitted. UserError for a damaged file."""
        return read_object(self.of(digest), "job") if self.of(digest).is_file() else {}

    def all(self) -> dict[str, dict[str, Any]]:
        """Hash → what is known of the job."""
        return {file.stem: self.read(file.stem) for file in sorted(self.folder.glob("*.json"))}
