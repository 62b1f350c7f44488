"""A published run of scale smoke, trained again from its experiment file, comes to its recorded losses."""

import pytest

from hybridlab.data.preparing import corpus_for
from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.runs.record import load_record
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import PUBLISHED


@pytest.mark.long
def test_it_comes_to_its_recorded_losses(tmp_path):
    """A short one, without compiled blocks."""
    run = next(run for run in cell_runs(load_experiment("spiral-fig3"), "smoke", 0) if run.cell == "410M/ratio-0/one")
    record = load_record(run.hash, PUBLISHED)
    if corpus_for(run.trained.data, tmp_path / "runs" / "data").fingerprint != record.data.fingerprint:
        pytest.skip("the text is the source of another Python's standard library")
    runtime = {"precision": record.precision, "compile": record.compile, "threads": record.machine["threads"]}
    config = run.trained.model_copy(update={"runtime": run.trained.runtime.model_copy(update=runtime)})
    made = train_run(config, RunFolder(tmp_path / "run"), Runs(tmp_path / "runs"))
    assert made.hash == record.hash and made.steps == record.steps
    # In bf16 processors round otherwise, which grows with the steps: the first losses agree to 1e-3, the end within the
    # error of what is measured there.
    early = slice(0, 3)
    assert made.history["loss"][early] == pytest.approx(record.history["loss"][early], rel=1e-3)
    ours, theirs = made.results.validation.loss, record.results.validation.loss
    assert ours.value == pytest.approx(theirs.value, abs=2 * theirs.stderr)
