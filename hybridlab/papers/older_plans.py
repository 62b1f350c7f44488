"""The plans of runs that are older than stamps: those of the commits that added their records.

    python -m hybridlab.papers.older_plans results desk

writes, in a checkout with its history, RESULTS-DIR/plans/ID.SCALE.json for every experiment that has none: the plans
that its file had when records that it reads were added, each with the hashes of these runs. A commit whose file cannot
be read today, or had no such scale, gives no plan, so that the claims on its runs count as not planned.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hybridlab.errors import UserError
from hybridlab.papers import ids, loading, plans
from hybridlab.papers.calls import CLAIM_KINDS
from hybridlab.papers.cells import cell_runs
from hybridlab.papers.loading import experiment_ids, load_experiment
from hybridlab.papers.plans import Planned, digest_of, history, plan_of, write_history
from hybridlab.runs.record import record_path


def main(results_dir: Path, scale: str) -> None:
    """Write the histories of all experiments that have none and read runs at a scale."""
    added = _added(results_dir)
    commits: dict[str, dict[str, set[str]]] = {}
    for identifier in experiment_ids():
        experiment = load_experiment(identifier)
        if (
            scale not in experiment.scales
            or not experiment.needed_cells(scale)
            or history(identifier, scale, results_dir)
        ):
            continue
        spec = experiment.scales[scale]
        for seed in (*spec.seeds, *spec.earlier_seeds):
            for run in cell_runs(experiment, scale, seed):
                if run.hash in added and record_path(run.hash, results_dir).is_file():
                    commits.setdefault(added[run.hash], {}).setdefault(identifier, set()).add(run.hash)
    found: dict[str, list[Planned]] = {}
    for commit in _git("log", "--reverse", "--format=%H").split():
        if commit in commits:
            date = _git("show", "-s", "--format=%cs", commit).strip()
            with _files_of(commit):
                for identifier, runs in commits[commit].items():
                    _note(identifier, scale, date, runs, found.setdefault(identifier, []))
    for identifier, planned in found.items():
        if planned:
            write_history(identifier, scale, planned, results_dir)
        print(f"{identifier}: {len(planned)} plans of {sum(identifier in by_id for by_id in commits.values())} commits")


def _note(identifier: str, scale: str, date: str, runs: set[str], known: list[Planned]) -> None:
    """Add the plan of the files that are in place, or these runs to it if it is the newest."""
    try:
        experiment = load_experiment(identifier)
        content = plan_of(experiment, scale)
    except (UserError, AttributeError) as error:
        print(f"{identifier}, {date}: {str(error)[:160]}")
        return
    digest = digest_of(content)
    if known and known[-1].digest == digest:
        known[-1] = Planned(digest, known[-1].date, content, known[-1].runs | runs)
    else:
        known.append(Planned(digest, date, content, frozenset(runs)))


def _added(results_dir: Path) -> dict[str, str]:
    """Hash of a run → the commit that first added its record, which may be a merge."""
    found, commit = {}, ""
    asked = ("log", "--diff-filter=A", "--diff-merges=first-parent", "--format=commit %H", "--name-only")
    lines = _git(*asked, "--", f"{results_dir}/records")
    for line in lines.splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line:
            found[Path(line).stem] = commit  # the log begins with the newest
    return found


@contextmanager
def _files_of(commit: str) -> Iterator[None]:
    """The experiment files of a commit stand in the place of today's inside the `with` block."""
    archive = subprocess.run(["git", "archive", commit, "experiments"], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        for path in Path(folder).glob("experiments/*/*.yaml"):
            _in_todays_form(path)
        before = ids.experiments_folder
        for module in (ids, loading, plans):
            module.experiments_folder = lambda: Path(folder) / "experiments"  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in (ids, loading, plans):
                module.experiments_folder = before  # type: ignore[attr-defined]


def _in_todays_form(path: Path) -> None:
    """A sweep had one metric. A claim of a kind that no longer exists is left out, and so is not as it was planned."""
    content: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
    kinds = CLAIM_KINDS.names()
    known = [one for one in content.get("claims", ()) if one["test"].get("kind") in kinds]
    if len(known) < len(content.get("claims", ())):
        content["claims"] = known
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    sweep = content.get("sweep")
    if sweep and "metrics" not in sweep:
        metric = sweep.pop("metric", "results.validation.loss")
        sweep |= {"metrics": [metric], "chosen": {metric: sweep.get("chosen", {})}}
        path.write_text(yaml.safe_dump(content, sort_keys=False))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, check=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
