"""The runs of every experiment at every scale, as a digest of their hashes with the first seed. A change of these means
that other runs are trained than those whose records are published.

    HYBRIDLAB_WRITE_GOLDEN=1 pytest tests/golden
"""

import hashlib
import json
import os
from pathlib import Path

from hybridlab.lab.papers.cells import cell_runs
from tests.experiments import experiment_ids, load_experiment

GOLDEN = Path(__file__).with_name("runs.json")


def _digests() -> dict[str, str]:
    found = {}
    for identifier in experiment_ids():
        experiment = load_experiment(identifier)
        for scale in experiment.scales:
            if experiment.benchmark is None and experiment.needed_cells(scale):
                runs = cell_runs(experiment, scale, experiment.at(scale).seeds[0])
                text = "\n".join(f"{run.cell} {run.hash}" for run in runs)
                found[f"{identifier}.{scale}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def test_every_experiment_asks_for_the_same_runs():
    found = _digests()
    if os.environ.get("HYBRIDLAB_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=0) + "\n")
    golden = json.loads(GOLDEN.read_text())
    changed = [name for name in sorted({*golden, *found}) if golden.get(name) != found.get(name)]
    assert not changed, f"other runs than before, see this file's docstring: {changed}"
