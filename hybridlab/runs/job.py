"""The process of a job: `python -m hybridlab.runs.job RUNS-DIR/jobs/HASH.json` trains that run, see runs/cluster.py
and `in_ranks` of runs/queue.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hybridlab import plugins
from hybridlab.errors import Interrupted
from hybridlab.messages import heard_by, print_line
from hybridlab.runs.queued_run import QueuedRun
from hybridlab.runs.record import save_record
from hybridlab.runs.run import finished_record
from hybridlab.training.ranks import joined
from hybridlab.training.store.jobs import JobFiles
from hybridlab.training.world import world


def main(file: Path) -> int:
    """Train or resume the run; returns the exit code."""
    settings = json.loads(file.read_text(encoding="utf-8"))
    for reference in settings["plugins"]:
        plugins.load_plugin(reference)
    files = JobFiles(file.parent.parent)
    run = QueuedRun.from_json(settings["run"])
    with heard_by(print_line), joined(settings["wait"]):
        try:
            result = run.attempt()
        except Interrupted as stop:
            print_line(f"interrupted: {stop}")
            return 128 + stop.signal
        world().once(files.write, run.digest, {"result": [result.status, result.reason]})
        if result.status == "failed":
            print_line(f"failed: {result.reason}")
            return 1
        if result.status == "finished" and world().writer:
            save_record(finished_record(run.folder), Path(settings["results_dir"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
