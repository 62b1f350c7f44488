"""Runs that start from other runs: what they inherit, what they refuse, and which batches they read."""

import json

import pytest

from hybridlab.config.resolve import run_hash
from hybridlab.errors import RunFailed, UserError
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.runs.compose import Request, compose
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.experiments import cell_configs
from tests.training import FIVE_LAYERS, GROWTH_TIMES, growing, train


def test_a_child_inherits_the_plan_and_reads_on_where_its_parent_stopped(trained):
    config, runs = trained
    child = compose(Request(arch="vanilla", start=str(runs / "parent")), Runs(runs))
    assert child.plan == config.plan and child.training.skip_steps == 3
    grandchild = compose(
        Request(arch="vanilla", start=str(runs / "parent"), settings=["training.skip_steps=7"]), Runs(runs)
    )
    assert grandchild.training.skip_steps == 7


@pytest.mark.parametrize(
    ("mix", "skipped"), [({}, 3), ({"text": 0.25, "retrieval": 0.75}, 12), ({"retrieval": 1.0}, 3)]
)
def test_a_child_with_another_share_of_text_reads_no_text_again(trained, mix, skipped):
    """Its rows of text are numbered on their own, and every step counts for its tasks."""
    _, runs = trained
    settings = [f"data.mix={json.dumps({'text': 0.0, **mix})}"] if mix else []
    child = compose(Request(start=str(runs / "parent"), settings=settings), Runs(runs))
    assert child.training.skip_steps == skipped


@pytest.mark.parametrize("setting", ["shape.rope_base=77", "shape.embedding_scale=3.0", "shape.norm_eps=0.1"])
def test_a_shape_that_differs_only_in_a_constant_is_another_architecture(trained, setting):
    _, runs = trained
    with pytest.raises(UserError, match="weights of another architecture: shape"):
        compose(Request(arch="vanilla", start=str(runs / "parent"), settings=[setting]), Runs(runs))


def test_stages_of_an_experiment_do_not_repeat_batches():
    configs = cell_configs(load_experiment("consa-table1"), "smoke", 0)
    base, stage1 = configs["base"].training, configs["dense/1"].training
    assert base.skip_steps is None
    # The stages have half of the rows in a step, and count what was seen in steps of their own.
    assert base.tokens_per_step == 2 * stage1.tokens_per_step and stage1.skip_steps == 2 * base.steps
    assert configs["dense/2"].training.skip_steps == stage1.skip_steps + stage1.steps
    assert configs["layer-50/2"].training == configs["dense/2"].training


@pytest.mark.long
def test_a_child_of_a_grown_run_goes_on_with_its_loops(small, runs):
    parent = train(growing(small), runs / "parent", runs)
    child = compose(Request(arch="vanilla", start=str(runs / "parent"), settings=["training.steps=2"]), Runs(runs))
    record = train_run(child, RunFolder(runs / "child"), Runs(runs))
    assert record.model.plan == parent.model.plan and record.parents == [parent.hash]


def test_an_arch_with_a_plan_of_its_own_keeps_it_when_it_starts_from_a_run(small, runs):
    train(small("vanilla", **FIVE_LAYERS), runs / "plain", runs)
    train(growing(small), runs / "grown", runs)

    def made(arch, start, settings=(), **more):
        return compose(Request(arch=arch, start=str(runs / start), settings=list(settings), **more), Runs(runs))

    assert made("block-loop", "plain").plan[0].layers.last == 3
    assert made("attention-loop", "plain").plan and not made("vanilla", "plain").plan
    assert made("sgt", "plain", ["growth.start_step=4"]).controller.start_step == 4
    chosen = made("block-loop", "plain", entropy_of=str(runs / "plain"))
    assert chosen.plan[0].layers.n == 3 and chosen.plan[0].layers.step == 40
    with pytest.raises(UserError, match="brings another; use --arch vanilla"):
        made("block-loop", "grown")
    assert made("vanilla", "grown").plan[0].op == "visits"
    asked = Request("block-loop", "tiny", settings=["growth.start_step=3"], entropy_of=str(runs / "plain"))
    assert compose(asked, Runs(runs)).plan[0].layers.step == 3
    choice = {"top_entropy_of": run_hash(small("vanilla", **FIVE_LAYERS)), "step": 1, "n": 2}
    other = small("block-loop", shape={"layers": 4}, plan=[{"op": "loop_blocks", "layers": choice}])
    with pytest.raises(UserError, match="has 5 layers of 4 heads, this one 4 of 4"):
        train(other, runs / "other", runs)


def test_a_failed_run_is_refused_as_a_start(small, tmp_path, runs_dir):
    config = small(
        "sgt", **FIVE_LAYERS, controller=GROWTH_TIMES, settings=["training.optimizer.lr=1e30", "training.clip=1e30"]
    )
    with pytest.raises(RunFailed):
        train(config, tmp_path / "a", runs_dir)
    with pytest.raises(UserError, match=r"this run failed \(the gradient norm is nan .*\); train it again with other"):
        compose(Request(arch="vanilla", start=str(tmp_path / "a")), Runs(runs_dir))
