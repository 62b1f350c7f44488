"""From settings to a job: everything that a run needs is found, opened and checked once, before anything is written."""

import shutil
import sys
from collections import Counter

import pytest

from hybridlab.config.resolve import resolve, run_hash
from hybridlab.config.structures import final_structure, structure_of
from hybridlab.data.batches import Batches
from hybridlab.errors import RunFailed, UserError
from hybridlab.runs import link as link_module
from hybridlab.runs.link import link
from hybridlab.runs.queue import run_all
from hybridlab.runs.queued_run import check_runs, queued
from hybridlab.training.engine import Run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.integration.test_branches import branched, keeping
from tests.training import assert_same_run, train, train_until


def test_each_run_that_is_needed_is_opened_once(small, runs, monkeypatch):
    """Also one that is needed twice: for its weights, and for the entropies that choose the layers to loop."""
    logged = small(observe={"entropy_every": 2}, training={"steps": 4})
    digest = train(logged, runs / "parent", runs).hash
    loops = {"op": "loop_attention", "layers": {"top_entropy_of": digest, "n": 1, "step": 2}, "extra_passes": 1}
    opened, find = [], link_module.find_start
    monkeypatch.setattr(link_module, "find_start", lambda name, runs: opened.append(name) or find(name, runs))
    child = small(init={"run": digest}, plan=[loops])
    job = link(child, run_hash(child), RunFolder(runs / "child"), Runs(runs))
    assert opened == [digest]
    assert sum(visit.part == "attention" for _, visit in job.model.plan.places()) == 2  # one layer, and once more
    parent = dict(Run(link(logged, digest, RunFolder(runs / "other"), Runs(runs))).model.named_parameters())
    trained = dict(Run(job).model.named_parameters())
    assert trained.keys() == parent.keys() and any((trained[name] != parent[name]).any() for name in parent)


def test_linking_writes_nothing_into_the_folder(small, runs):
    folder = RunFolder(runs / "new")
    job = link(small(), run_hash(small()), folder, Runs(runs))
    assert job.folder == folder and not folder.path.exists()
    assert job.facts["data_fingerprint"] == job.corpus.fingerprint and job.begins is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"runtime": {"kernel": "xformers"}},
        {"evaluation": {"probes": ["entropy"], "probe_settings": {"entropy": {"windws": 3}}}},
        {"init": {"run": "0123456789abcdef"}},
        {"data": {"source": "text:no/such.txt"}},
    ],
)
def test_a_queue_refuses_what_a_single_run_refuses_in_the_same_words(small, runs, wrong):
    config = small(**wrong)
    with pytest.raises(UserError) as alone:
        link(config, run_hash(config), RunFolder(runs / "alone"), Runs(runs))
    with pytest.raises(UserError) as together:
        check_runs(queued({run_hash(config): ("arm", config)}, runs).values())
    assert str(together.value) == f"arm: {alone.value}"


def test_a_branch_with_checkpoints_of_its_own_is_not_refused_by_a_queue(small, tmp_path, runs, monkeypatch):
    """The checkpoint that it began with may be gone by then."""
    config = small(training={"steps": 18})
    parent = train(keeping(config, 6), runs / run_hash(config), runs)
    child = branched(config, parent, 6)
    whole = runs / "whole"
    train(child, whole, runs)
    train_until(child, runs / run_hash(child), runs, monkeypatch, 14)
    shutil.rmtree(runs / run_hash(config) / "checkpoints")
    pending = {run_hash(child): ("branch", child)}
    assert run_all(pending, runs, tmp_path / "results").finished == ["branch"]
    assert_same_run(whole, runs / run_hash(child))


def test_every_arch_makes_a_job_from_its_preset(runs, text_file):
    """But for those that need another run first."""
    for arch in ("vanilla", "sgt", "spiral-b", "rule-swa", "midas", "saobp-high", "ln-scaling"):
        settings = [
            f"data.source=text:{text_file}",
            f"data.tokenizer={'byte+mask' if arch == 'saobp-high' else 'byte'}",
            "runtime.threads=1",
        ]
        config = resolve(arch, "bert-tiny" if arch == "saobp-high" else "tiny", settings=settings)
        job = link(config, run_hash(config), RunFolder(runs / arch), Runs(runs))
        assert job.model.shape == config.first_shape
        assert {"precision", "compile", "threads", "plans"} <= job.facts.keys()


def test_a_start_makes_hash_structure_forecast_and_source_once(typed, text_file, monkeypatch):
    """From the command line to the first step."""
    once = {function.__code__: function.__name__ for function in (run_hash, structure_of, final_structure)}
    once[Batches.__init__.__code__] = "source"
    made = Counter()

    def count(frame, event, _):
        if event == "call" and frame.f_code in once:
            made[once[frame.f_code]] += 1

    def stop(run, progress):
        sys.setprofile(None)
        raise RunFailed("stopped before the first step")

    monkeypatch.setattr(Run, "train", stop)
    text = ["--data", f"text:{text_file}", "--set", "data.tokenizer=byte", "--set", "runtime.threads=1"]
    sys.setprofile(count)
    try:
        code, _, said = typed("pretrain", "--arch", "sgt", *text)
    finally:
        sys.setprofile(None)
    assert code == 1 and "stopped before the first step" in said
    assert made == dict.fromkeys(once.values(), 1)
