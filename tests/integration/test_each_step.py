"""Numbers of every step in the record, however often the log has a line."""

import pytest

from hybridlab.errors import Diverged, UserError
from tests.training import assert_resumes_exactly, growing, logged, train, weights

SEVERAL = {"observe": {"each_step": ["loss", "extra_passes"]}}


def test_the_record_has_the_loss_of_every_step(small, tmp_path, runs_dir):
    runtime = {"threads": 1, "log_every": 10, "checkpoint_every": 100}
    record = train(small(observe={"each_step": ["loss"]}, runtime=runtime), tmp_path / "a", runs_dir)
    train(small(), tmp_path / "plain", runs_dir)
    losses = [line["loss"] for line in logged(tmp_path / "plain") if "step" in line]
    assert record.hooks["each-step"] == {"first": 1, "loss": [float(f"{loss:.5g}") for loss in losses]}
    assert len(record.history["step"]) == 2
    one, two = weights(tmp_path / "a"), weights(tmp_path / "plain")
    assert all((one[name] == two[name]).all() for name in one)


def test_numbers_of_a_controller_and_a_kill(small, tmp_path, runs_dir, monkeypatch):
    config = growing(small, 14).model_copy(update={"observe": small(**SEVERAL).observe})
    train(config, tmp_path / "whole", runs_dir)
    record = assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 10)
    passes = [line["extra_passes"] for line in logged(tmp_path / "whole") if "step" in line]
    assert record.hooks["each-step"]["extra_passes"] == passes


def test_numbers_that_do_not_exist(small, tmp_path, runs_dir):
    with pytest.raises(UserError, match="not every step has a number 'los'; use some of loss, gradient_norm, lr"):
        train(small(observe={"each_step": ["los"]}), tmp_path / "a", runs_dir)
    with pytest.raises(UserError, match="each_step names a number twice"):
        small(observe={"each_step": ["loss", "loss"]})
    assert small(observe={"each_step": []}).observe is None


@pytest.mark.parametrize("checkpoint_every", [1, 100])
def test_a_number_that_is_not_finite_ends_the_run_between_two_lines_of_the_log(
    small, tmp_path, runs_dir, checkpoint_every
):
    runtime = {"log_every": 50, "checkpoint_every": checkpoint_every}
    settings = ["map.window=4", "controller.multiplier_lr=1e39", "training.steps=4"]
    with pytest.raises(Diverged, match="the lagrangian is inf at step 1; lower"):
        train(
            small("consa", observe={"each_step": ["lagrangian"]}, runtime=runtime, settings=settings),
            tmp_path / "a",
            runs_dir,
        )
