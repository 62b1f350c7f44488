"""Settings in an experiment file are checked on loading, also those of cells and scales that nothing in it needs."""

import json
import re

import pytest

from hybridlab.config.resolve import resolve, run_hash
from hybridlab.errors import UserError
from hybridlab.lab.papers import cells as cells_module
from hybridlab.lab.papers import loading
from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.experiment import benchmark_hash
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale
from hybridlab.lab.reporting.entry_data import model_of
from tests.experiments import cell_configs, needed_cells
from tests.unit.verdicts.building import record

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


DESK = """\
  desk:
    machine: an evening
    size: {small: tiny, wide: tiny}
    data: embedded
    seeds: [0, 1, 2]
    phases:
      train: {training: {steps: 400}}
    cells:
      one: {arch: vanilla, group: wide, phase: train, start: trunk}
      trunk: {arch: sgt, group: wide, phase: train, config: {controller: {max_passes: 2}}}
      idle: {arch: vanilla, group: wide, phase: train}
"""
CLAIM = """\
claims:
- text: only where trunk exists
  source: here
  test: loss[trunk] > 1
"""


@pytest.fixture
def load_desk(load):
    """The same function, for the file with a scale that has cells of its own."""
    return lambda old="", new="": load("benchmark:\n", (DESK + CLAIM).replace(old, new, 1) + "benchmark:\n")


def test_a_scale_can_replace_cells_and_add_others(load_desk):
    experiment = load_desk()
    assert experiment.needed_cells("smoke") == ["one"] and set(experiment.needed_cells("desk")) == {"one", "trunk"}
    assert set(needed_cells(experiment)) == {"one", "trunk"} and "idle" in experiment.known_cells
    smoke, desk = cell_configs(experiment, "smoke", 0), cell_configs(experiment, "desk", 0)
    assert smoke["one"].init is None and smoke["one"].training.steps == 30
    assert desk["one"].init.run == run_hash(desk["trunk"]) and desk["trunk"].controller.max_passes == 2
    without = load_desk("idle: {arch: vanilla, group: wide", "idle: {arch: sgt, group: wide")
    assert cell_configs(without, "desk", 0) == desk


def test_a_claim_about_a_cell_that_a_scale_lacks_is_not_run_there(load_desk):
    experiment = load_desk()
    verdict = judge(experiment.claims[0], experiment, {"one": {0: record()}})
    assert verdict.holds is None and "not run" in verdict.evidence


@pytest.mark.parametrize("size", ["tiny", "{wide: tiny}"])
def test_the_cells_of_a_scale_need_a_size_there(load_desk, size):
    """One size is for all cells, with a group or without."""
    old = "size: {small: tiny, wide: tiny}"
    assert set(load_desk(old, f"size: {size}").needed_cells("desk")) == {"one", "trunk"}
    assert not load_desk(old, "size: {small: tiny}").needed_cells("desk")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_passes", "max_pases", "36: controller.max_pases is not a known setting; did you mean 'max_passes'?"),
        ("start: trunk", "start: trnk", "35: toy-table1 at scale desk has no cell 'trnk'; did you mean 'trunk'?"),
        ("wide: tiny", "wid: tiny", "29: toy-table1 has no group of cells 'wid'; did you mean 'wide'?"),
        ("arch: sgt", "arhc: sgt", "36: scales.desk.cells.trunk.arhc is not a known setting"),
        ("loss[trunk]", "loss[trnk]", "41: toy-table1 has no cell 'trnk'; did you mean 'trunk'?"),
    ],
)
def test_the_names_in_a_scales_cells_are_checked(load_desk, old, new, message):
    with pytest.raises(UserError) as error:
        load_desk(old, new)
    assert str(error.value).startswith(f"table1.yaml:{message}")


def test_a_cell_of_the_file_cannot_start_from_one_that_only_a_scale_has(load):
    text = "watch, config: {controller: {max"
    with pytest.raises(UserError, match="table1.yaml:13: toy-table1 has no cell 'trunk'"):
        load(text, "watch, start: trunk, config: {controller: {max")


# ---- cells that are runs of another experiment ----

OTHER = """\
id: toy-table2
title: Another
paper: toy
source: nowhere
rows:
- {name: One, short: One, cell: arm}
- {name: Two, short: Two, cell: other-arm}
cells:
  base: {arch: vanilla, phase: train}
  arm: {arch: vanilla, phase: train, start: base}
  other-arm: {arch: all-window, phase: train, start: base}
scales:
  desk: {machine: here, size: tiny, data: embedded, seeds: [0, 1], phases: {train: {training: {steps: 20}}}}
"""
SHARED = """\
  desk:
    machine: here
    size: {}
    data: embedded
    seeds: [0, 1]
    phases: {}
    shared: {toy-table2: {one: arm}}
"""


@pytest.fixture
def load_shared(load, tmp_path):
    """The same function, for the file with a scale whose cell is a run of another experiment."""
    (tmp_path / "toy" / "table2.yaml").write_text(OTHER)
    return lambda old="", new="": load("benchmark:\n", SHARED.replace(old, new, 1) + "benchmark:\n")


def test_a_cell_can_be_a_run_of_another_experiment(load_shared):
    experiment, other = load_shared(), load_experiment("toy-table2")
    assert experiment.needed_cells("desk") == ["one"] and experiment.available_scales() == ["smoke"]
    trained = experiment.model_copy(update={"benchmark": None})
    assert trained.available_scales() == ["smoke", "desk"]
    here = {run.cell: run.hash for run in cell_runs(experiment, "desk", 1)}
    there = {run.cell: run.hash for run in cell_runs(other, "desk", 1)}
    assert here == {"toy-table2: base": there["base"], "one": there["arm"]}
    assert cell_configs(experiment, "smoke", 0)["one"].training.steps == 30


@pytest.mark.parametrize(("cell", "group"), [("one", "small"), ("extra", None)])
def test_a_page_names_the_model_of_another_experiments_run(load_shared, cell, group):
    """Also of a cell that the scale alone has, which is in no group."""
    model = model_of(load_shared("one: arm", f"{cell}: arm"), "desk", cell, {})
    assert model == {"size": "tiny", "in_place_of": group, "parameters": None}


def test_a_cell_can_be_a_run_of_another_experiment_at_the_rate_of_one_metric(load_shared, tmp_path):
    chosen = "{results.validation.loss: {arm: 1.0e-3}, results.validation.perplexity: {arm: 1.0e-2}}"
    sweep = f"""
sweep:
  setting: training.optimizer.lr
  grid: [1.0e-3, 1.0e-2]
  seed: 100
  scale: desk
  metrics: [results.validation.loss, results.validation.perplexity]
  cells: [arm]
  chosen: {chosen}
"""
    (tmp_path / "toy" / "table2.yaml").write_text(OTHER + sweep)
    rates = [
        cell_configs(load_shared("one: arm", f"one: {there}"), "desk", 1)["one"].training.optimizer.lr
        for there in ("arm", '"arm@results.validation.perplexity"')
    ]
    assert rates == [1e-3, 1e-2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("one: arm", "one: amr", "33: toy-table2 has no cell 'amr'; did you mean 'arm'?"),
        ("toy-table2", "toy-table3", "33: toy-table3: there is no such experiment; did you mean"),
        ("desk:", "small:", "33: toy-table2 does not train 'arm' at scale small"),
    ],
)
def test_a_run_that_the_other_experiment_does_not_have_is_refused(load_shared, old, new, message):
    with pytest.raises(UserError) as error:
        load_shared(old, new)
    assert str(error.value).startswith(f"table1.yaml:{message}")


def test_settings_of_a_run_of_another_experiment_are_refused(load_shared):
    """That run is what it is there."""
    with pytest.raises(UserError, match=r"table1.yaml:\d+: 'one' is a run of another .* leave them out"):
        load_shared("    phases: {}\n", "    phases: {}\n    overrides: {one: {training: {steps: 7}}}\n")
    sweep = (
        "sweep: {setting: training.clip, grid: [0.5, 1.0], seed: 100, scale: desk, cells: [one], metrics: [status]}\n"
    )
    with pytest.raises(UserError, match="cell 'one' is a run of another experiment; search its values there"):
        load_shared("    shared: {toy-table2: {one: arm}}\n", "    shared: {toy-table2: {one: arm}}\n" + sweep)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows:\n", "rows:\n- {name: One again, short: One}\n", "two rows are called 'One'; give each a name"),
        (
            "columns: [",
            "columns: [{name: flops, title: again, kind: trained, metric: hash}, ",
            "two columns are called 'flops'",
        ),
        (
            "columns: [",
            "columns: [{name: loss, title: loss, kind: trained, metric: hash, at_rate_of: status}, ",
            "sweep.metrics has no 'status' that could have chosen a rate; there is no sweep",
        ),
    ],
)
def test_rows_and_columns_have_names_of_their_own_and_rates_that_were_searched(load, old, new, message):
    with pytest.raises(UserError, match=message):
        load(old, new)


@pytest.mark.parametrize(
    ("table", "designed"),
    [
        ("consa-table1", "consa-depth"),
        ("sgt-table1", "sgt-selection"),
        ("sgt-table3", "sgt-selection"),
        ("spiral-table1", "spiral-loops"),
        ("spiral-table2", "spiral-loops"),
    ],
)
def test_a_table_at_scale_desk_trains_nothing_of_its_own(table, designed):
    shown, behind = (ExperimentAtScale(load_experiment(name), "desk").runs() for name in (table, designed))
    assert shown and set(shown) <= set(behind)


# ---- a cell with all settings of a run ----


@pytest.fixture
def whole():
    """All settings of a run with a map that draws by its seed, as its record has them."""
    drawn = "map={kind: random, granularity: layer, rho: 0.5, window: 8}"
    return resolve("vanilla", "tiny", settings=[drawn, "training.steps=7"])


def with_cell(cell):
    return FILE.replace("  other: {arch: sgt", f"  whole: {json.dumps(cell)}\n  other: {{arch: sgt")


def test_a_cell_with_all_settings_of_a_run_is_that_run(load, whole):
    settings = whole.model_dump(mode="json")
    experiment = load(FILE, with_cell({"settings": settings, "phase": "train"}))
    *_, run = cell_runs(experiment, "smoke", 0, ["whole"])
    # What the scale gives its cells is used there too.
    assert run.trained.training.steps == 30 and run.trained.map == whole.map
    settings["map"]["seed"] = None
    own = {"training": {"steps": 7}}
    experiment = load(FILE, with_cell({"settings": settings, "phase": "train", "config": own}))
    for seed in (0, 4):
        *_, run = cell_runs(experiment, "smoke", seed, ["whole"])
        assert run.trained.map.seed == seed
    *_, run = cell_runs(experiment, "smoke", 0, ["whole"])
    assert run.hash == run_hash(whole) and experiment.at("smoke").size_of(experiment.cells["whole"]) == "tiny"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"arch": "vanilla"}, "a cell needs either arch or settings, for a run, or model"),
        ({"settings": {"arch": "vanilla"}}, "settings are all of a run, its arch and size among them"),
        (
            {"settings": {"arch": "vanilla", "size": "tiny", "trainin": {}}},
            "table1.yaml:13: trainin is not a known setting",
        ),
    ],
)
def test_a_cell_with_some_settings_of_a_run_is_refused(load, whole, cell, said):
    settings = cell.get("settings", whole.model_dump(mode="json"))
    with pytest.raises(UserError, match=re.escape(said)):
        load(FILE, with_cell({"phase": "train", "settings": settings, **cell}))


def test_a_seed_and_hashes_are_put_in_once_and_only_where_they_stand_by_themselves():
    text = '{"lr":0.77,"name":"x77","run":"77","seed":77,"size":770,"start":"run:aa"}'
    written = cells_module._replaced(text, {"77": "8", "aa": "77"})
    assert written == '{"lr":0.77,"name":"x77","run":"8","seed":8,"size":770,"start":"run:77"}'
