"""Settings in an experiment file are checked on loading, also those of cells and scales that nothing in it needs."""

import pytest

from hybridlab.errors import UserError
from hybridlab.papers import loading
from hybridlab.papers.cells import cell_configs
from hybridlab.papers.experiment import benchmark_hash
from hybridlab.papers.loading import load_experiment

FILE = """\
id: toy-table1
title: A toy
paper: toy
source: nowhere
columns: [{name: flops, title: F, kind: exact, compute: {function: training_flops_of_run, convention: sgt}}]
rows:
- name: One
  short: One
  cell: one
  given: {size: tiny, arch: block-loop, config: {plan: [{op: loop_blocks, layers: [1]}]}}
cells:
  one: {arch: vanilla, group: small, phase: train}
  other: {arch: sgt, group: small, phase: watch, config: {controller: {max_passes: 2}, growth: {start_step: 9}}}
  loop: {arch: spiral-b, group: large, phase: train, config: {recurrence: {downscale: mean}}}
scales:
  smoke:
    machine: here
    size: {small: tiny}
    data: embedded
    seeds: [0]
    config: {growth: {interval: 5}}
    phases:
      train: {training: {steps: 30}}
      watch: {observe: {entropy_every: 5}}
    overrides:
      other: {controller: {shortlist: 3}}
benchmark:
  models: {A: {arch: vanilla}, B: {arch: sgt, config: {shape: {layers: 4}}}}
  sizes: {smoke: {tiny: tiny}}
  batches: [1]
  prompt: 4
  new_tokens: 4
  rounds: 2
  machines: {smoke: here}
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that loads the file with one text replaced by another."""
    monkeypatch.setattr(loading, "experiments_folder", lambda: tmp_path)
    (tmp_path / "toy").mkdir()

    def loaded(old="", new=""):
        assert old in FILE
        (tmp_path / "toy" / "table1.yaml").write_text(FILE.replace(old, new, 1))
        return load_experiment("toy-table1")

    return loaded


def test_a_file_without_mistakes_is_loaded(load):
    assert load().cells["loop"].group == "large"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("layers: [1]", "alyers: [1]", 10, "plan.0.alyers is not a known setting; did you mean 'layers'?"),
        ("max_passes", "max_pases", 13, "controller.max_pases is not a known setting; did you mean 'max_passes'?"),
        ("start_step", "strat_step", 13, "growth.strat_step is not a known setting; did you mean 'start_step'?"),
        ("recurrence", "recurence", 14, "recurence is not a known setting; did you mean 'recurrence'?"),
        ("downscale", "downscal", 14, "recurrence.downscal is not a known setting; did you mean 'downscale'?"),
        ("interval", "intervall", 21, "growth.intervall is not a known setting; did you mean 'interval'?"),
        ("steps: 30", "setps: 30", 23, "training.setps is not a known setting; did you mean 'steps'?"),
        ("observe", "obsrve", 24, "obsrve is not a known setting; did you mean 'observe'?"),
        ("shortlist", "shortlits", 26, "controller.shortlits is not a known setting; did you mean 'shortlist'?"),
        ("      other:", "      othr:", 26, "toy-table1 has no cell 'othr'; did you mean 'other'?"),
        ("{small: tiny}", "{smal: tiny}", 18, "toy-table1 has no group of cells 'smal'; did you mean 'small'?"),
        ("layers: 4", "layer: 4", 28, "shape.layer is not a known setting; did you mean 'layers'?"),
        ("A: {arch:", "A: {rach:", 28, "benchmark.models.A.rach is not a known setting; did you mean 'arch'?"),
    ],
)
def test_an_unknown_setting_is_refused_with_file_and_line(load, old, new, line, message):
    with pytest.raises(UserError) as error:
        load(old, new)
    assert str(error.value) == f"table1.yaml:{line}: {message}"


def test_a_phase_that_a_scale_lacks_is_named_with_its_line(load):
    experiment = load("phase: train}\n  other", "phase: trian}\n  other")
    with pytest.raises(UserError, match=r"table1.yaml:12: .*no settings for the phase 'trian'; did you mean 'train'"):
        cell_configs(experiment, "smoke", 0)


def test_a_benchmark_is_identified_by_what_its_models_write(load):
    short = benchmark_hash(load(), "smoke")
    assert benchmark_hash(load("A: {arch: vanilla}", "A: {arch: vanilla, config: {}}"), "smoke") != short
    assert benchmark_hash(load("machine: here", "machine: there"), "smoke") == short
