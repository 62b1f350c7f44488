"""Mistakes in settings: every error names the file and line, the setting and what to write instead."""

import json
import re

import pytest
import yaml

from hybridlab.config.loading import Layer, load_file
from hybridlab.config.resolve import resolve
from hybridlab.errors import UserError
from hybridlab.lab.papers import loading as experiments
from hybridlab.lab.papers.loading import load_experiment
from tests.experiments import cell_configs

VISIT = {"layer": 0, "part": "block", "heads": None}
LOOP = {"bodies": [[VISIT]], "chunks": [2, 1]}

# arch, the path of a mapping, what is written there beside the mistake, the mistake, the name that was meant
SECTIONS = [
    ("vanilla", (), {}, "recurence", "recurrence"),
    ("vanilla", (), {}, "windw", "window"),
    ("vanilla", (), {}, "grwth", "growth"),
    ("vanilla", (), {}, "trainng", "training"),
    ("vanilla", ("shape",), {}, "with", "width"),
    ("vanilla", ("shape", "init"), {}, "sdt", "std"),
    ("vanilla", ("data",), {}, "sorce", "source"),
    ("vanilla", ("data", "mix"), {}, "retreival", "retrieval"),
    ("vanilla", ("training",), {}, "stepz", "steps"),
    ("vanilla", ("training", "optimizer"), {}, "weigth_decay", "weight_decay"),
    ("vanilla", ("training", "schedule"), {}, "warmup_step", "warmup_steps"),
    ("vanilla", ("evaluation",), {}, "task_widow", "task_window"),
    ("vanilla", ("observe",), {}, "entropy_evry", "entropy_every"),
    ("vanilla", ("budget",), {}, "flopz", "flops"),
    ("vanilla", ("init",), {}, "rum", "run"),
    ("vanilla", ("runtime",), {}, "kernl", "kernel"),
    ("vanilla", ("map",), {"kind": "explicit", "window": 4}, "maks", "masks"),
    ("rule-swa", ("map",), {}, "granularty", "granularity"),
    ("vanilla", ("map",), {"kind": "uniform"}, "atention", "attention"),
    ("sgt", ("controller",), {}, "headz", "heads"),
    ("consa", ("controller",), {}, "mask_rl", "mask_lr"),
    ("consa", ("controller", "schedule"), {}, "nmae", "name"),
    ("sgt", ("growth",), {}, "strat_step", "start_step"),
    ("spiral-b", ("recurrence",), {}, "topolgy", "topology"),
    ("spiral-b", ("recurrence",), {}, "chunkz", "chunks"),
    ("vanilla", ("plan", 0), {"op": "loop_heads", "layer": 1}, "head", "heads"),
    ("vanilla", ("plan", 1), {"op": "skip"}, "layrs", "layers"),
    ("vanilla", ("plan", 0), {"op": "recur", "first": 1, "size": 1}, "chunk", "chunks"),
    ("vanilla", ("plan", 0), {"op": "visits", "visits": [VISIT]}, "vist", "visits"),
    ("vanilla", ("plan", 0), {"layers": [1]}, "opp", "op"),
    ("vanilla", ("plan", 0, "layers"), {}, "lst", "last"),
    ("vanilla", ("plan", 0, "layers"), {"n": 3}, "top_entropy_off", "top_entropy_of"),
    ("vanilla", ("plan", 0, "visits", 1), {"layer": 1, "heads": None}, "prt", "part"),
    ("vanilla", ("plan", 0, "visits", 1), LOOP, "topolgy", "topology"),
    ("vanilla", ("plan", 0, "visits", 0, "bodies", 0, 0), {"layer": 1, "part": "mlp"}, "hedas", "heads"),
    ("spiral-b", ("plan", 0), {"op": "reverse", "start": 1}, "sise", "size"),
]
AROUND = {"visits": {"op": "visits"}, "layers": {"op": "loop_blocks"}, "bodies": {"chunks": [1]}}


def nested(path, inner):
    """The value that has `inner` at a path; list items before it are visits or edits that are right."""
    for part in reversed(path):
        if isinstance(part, int):
            right = VISIT if "layer" in inner or "bodies" in inner else {"op": "reverse", "start": 1, "size": 2}
            inner = [right] * part + [inner]
        else:
            inner = {part: inner, **AROUND.get(part, {})}
    return inner


def line_of(text, name):
    return next(number for number, line in enumerate(text.splitlines(), 1) if f"{name}:" in line)


@pytest.mark.parametrize(("arch", "path", "beside", "wrong", "right"), SECTIONS, ids=lambda v: str(v)[:40])
def test_a_typo_in_a_file_names_its_line_and_the_nearest_name(tmp_path, arch, path, beside, wrong, right):
    text = yaml.safe_dump(nested(path, {**beside, wrong: 3}), sort_keys=False)
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        resolve(arch, "tiny", layers=[load_file(tmp_path / "run.yaml")])
    name = ".".join(map(str, (*path, wrong)))
    line = f"run.yaml:{line_of(text, wrong)}"
    assert str(caught.value) == f"{line}: {name} is not a known setting; did you mean {right!r}?"


@pytest.mark.parametrize(("arch", "path", "beside", "wrong", "right"), SECTIONS, ids=lambda v: str(v)[:40])
def test_a_typo_in_a_setting_names_the_setting_and_the_nearest_name(arch, path, beside, wrong, right):
    names = [part for part in path if isinstance(part, str)][: 1 if "plan" in path else None]
    value = nested(path[len(names) :], {**beside, wrong: 3})
    setting = f"{'.'.join(names)}={json.dumps(value)}" if names else f"{wrong}=3"
    with pytest.raises(UserError) as caught:
        resolve(arch, "tiny", settings=[setting])
    name = ".".join(map(str, (*path, wrong)))
    assert str(caught.value) == f"--set {setting}: {name} is not a known setting; did you mean {right!r}?"


WRONG_VALUES = [
    ("vanilla", "plan=[{op: skp, layers: [1]}]", "plan.0.op 'skp' is unknown; did you mean 'skip'?"),
    ("vanilla", "plan=[{layers: [1]}]", "plan.0 needs `op`; known: loop_heads, loop_attention"),
    ("vanilla", "map=full", "map = 'full': must be a mapping; write {kind: full}"),
    ("vanilla", "plan=[loop_heads]", "plan.0 = 'loop_heads': must be a mapping; write {op: loop_heads}"),
    ("vanilla", "plan=[3]", "plan.0 = 3: must be a mapping of names to values"),
    ("vanilla", "plan=3", "plan = 3: must be a list"),
    ("vanilla", "plan=[{op: skip, layers: 3}]", "plan.0.layers = 3: must be a list"),
    ("vanilla", "plan=[{op: skip, layers: [1.5]}]", "plan.0.layers.0 = 1.5: must be a whole number"),
    ("vanilla", "plan=[{op: skip, layers: {last: x}}]", "plan.0.layers.last = 'x': must be a whole number"),
    ("vanilla", "plan=[{op: loop_heads, layer: true, heads: [0]}]", "plan.0.layer = True: must be a whole number"),
    ("vanilla", "plan=[{op: swap, first: 0}]", "plan.0.second is missing"),
    ("vanilla", "plan=[{op: visits}]", "plan.0.visits is missing"),
    ("vanilla", "plan=[{op: visits, visits: 3}]", "plan.0.visits = 3: must be a list"),
    ("vanilla", "plan=[{op: visits, visits: [5]}]", "plan.0.visits.0 = 5: must be a mapping"),
    ("vanilla", "plan=[{op: visits, visits: [{layer: 0, part: blok, heads: null}]}]", "did you mean 'block'?"),
    ("vanilla", "plan=[{op: visits, visits: [{layer: 0, part: block}]}]", "plan.0.visits.0.heads is missing"),
    ("vanilla", "plan=[{op: loop_blocks, layers: {top_entropy_of: ab, step: 0, n: 1}}]", "plan.0.layers.step = 0"),
    ("vanilla", "plan=[{op: loop_blocks, layers: {top_entropy_of: ab, step: 3}}]", "plan.0.layers.n is missing"),
    ("vanilla", "plan=[{op: recur, first: 1, size: 1, chunks: [1], topology: msh}]", "did you mean 'mesh'?"),
    ("sgt", "growth=5", "growth = 5: must be a mapping"),
    ("sgt", "growth.interval=0", "growth.interval = 0: must be greater than or equal to 1"),
    ("spiral-b", "recurrence=null", "recurrence = None: must be a mapping"),
    ("spiral-b", "recurrence.chunks=8", "recurrence.chunks = 8: must be a list"),
    ("spiral-b", "recurrence.offset=1.5", "recurrence.offset = 1.5: must be a whole number or text or a list"),
    ("spiral-b", "recurrence.literal=no!", "recurrence.literal = 'no!': must be true or false"),
    ("spiral-b", "recurrence.topology=rign", "must be 'direct', 'anchor' or 'mesh'"),
    ("all-window", "window=x", "map.window = 'x': must be a whole number"),
    ("vanilla", "map.kind=windw", "map.kind 'windw' is unknown; did you mean 'window'?"),
    ("sgt", "controller.kind=entropy-grwth", "controller.kind 'entropy-grwth' is unknown"),
    ("sgt", "controller={heads: 2, kind: null}", "controller.kind 'None' is unknown"),
    ("sgt", "controller.heads=two", "controller.heads = 'two': must be a whole number"),
    ("vanilla", "data.mix.text=half", "data.mix.text = 'half': must be a number"),
    ("vanilla", "evaluation.length_factors=2", "evaluation.length_factors = 2: must be a list"),
    ("vanilla", "shape={width: 3, width: 4}", "'width' is written twice in one mapping"),
    ("vanilla", "shape=&x [*x]", "an alias in it contains itself"),
    ("vanilla", "extends=other.yaml", "only a file extends others"),
]


@pytest.mark.parametrize(("arch", "setting", "message"), WRONG_VALUES, ids=lambda v: str(v)[:60])
def test_a_wrong_value_names_the_setting_and_what_it_must_be(arch, setting, message):
    with pytest.raises(UserError) as caught:
        resolve(arch, "tiny", settings=[setting])
    assert str(caught.value).startswith(f"--set {setting}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("{op: skip, layers: [9]}", "plan edit 2 (skip): plan: layer 9 does not exist; there are layers 0 to 7"),
        ("{op: loop_heads, layer: 1, heads: [8]}", "names head 8, but there are heads 0 to 7"),
        ("{op: loop_blocks, layers: {last: 9}}", "last 9 is not between 1 and 8"),
        ("{op: loop_blocks, layers: [1, 1]}", "names a layer twice"),
        ("{op: recur, first: 2, size: 2, chunks: [4], shift: 2}", "see their own future"),
    ],
)
def test_an_edit_that_does_not_fit_the_plan_names_its_line(tmp_path, edit, message):
    (tmp_path / "run.yaml").write_text(f"plan:\n- {{op: swap, first: 0, second: 1}}\n- {edit}\n")
    with pytest.raises(UserError) as caught:
        resolve("vanilla", "tiny", layers=[load_file(tmp_path / "run.yaml")])
    assert str(caught.value).startswith("run.yaml:3: ") and message in str(caught.value)


def test_an_edit_after_a_recurrence_keeps_its_line(tmp_path):
    """The recurrence becomes the first edit of the plan, which does not change the numbers of the user's edits."""
    (tmp_path / "run.yaml").write_text("plan:\n- {op: skip, layers: [0]}\n- {op: skip, layers: [77]}\n")
    with pytest.raises(UserError, match=r"run.yaml:3: plan edit 2 \(skip\): plan: layer 77"):
        resolve("looped", "tiny", layers=[load_file(tmp_path / "run.yaml")])


def test_an_error_names_where_the_value_in_effect_was_written(tmp_path):
    (tmp_path / "run.yaml").write_text("plan:\n- {op: skip, layers: [0]}\n")
    layers = [load_file(tmp_path / "run.yaml")]
    with pytest.raises(UserError, match=r"^--set plan="):
        resolve("vanilla", "tiny", layers=layers, settings=["plan=[{op: skip, layers: [x]}]"])
    with pytest.raises(UserError, match=r"^--set map="):
        resolve("rule-swa", "tiny", settings=["map={rho: 2}"])
    with pytest.raises(UserError, match=r"^training.steps = 0"):
        resolve("vanilla", "tiny", layers=[Layer({"training": {"steps": 0}})])


MISFITS = [
    ("sgt", "training.steps=20", "nothing would grow in 20 steps"),
    ("sgt", "controller.start_step=700", "nothing would grow in 600 steps"),
    ("sgt", "controller.heads=9", "a layer has 8 heads"),
    ("sgt", "shape.layers=3", "only 2 of 3 layers may loop"),
    ("sgt", "controller.layers=[9]", "names layer 9, but the last one is 7 (L8)"),
    ("sgt", "controller.layers=[0]", "layer 0 (L1) is both fixed and excluded"),
    ("sgt", "controller.shortlist=1", "shortlist 1 must be more than heads (2)"),
    ("vanilla", "shape.kv_heads=3", "not a multiple of kv_heads 3"),
    ("vanilla", "shape.max_positions=64", "max_positions has no effect on the family qwen3"),
    ("vanilla", "training.seq_len=100", "not a whole number of sequences of 100"),
    ("vanilla", "training.schedule.warmup_steps=601", "is longer than the run (600)"),
    ("vanilla", "data.mix.text=0.4", "add up to 0.4"),
    ("vanilla", "controller={kind: l1-gates, rho: 0.5}", "needs a map of kind mixed"),
    ("consa", "controller.stretch=[0.5, 1.0]", "must reach below 0"),
    ("consa", "plan=[{op: skip, layers: [1]}]", "remove `plan`"),
    ("spiral-b", "recurrence.pre=3", "give all of pre, loop and post"),
    ("spiral-b", "recurrence.chunks=[]", "chunks is empty"),
]


BESIDE = {
    "training": "training.clip=2.0",
    "shape": "shape.norm_eps=1e-5",
    "data": "data.task_loss_weight=2.0",
    "recurrence": "recurrence.literal=true",
    "controller": "controller.nearest=true",
    "growth": "controller.fade_steps=3",
}
"""A setting that is right, in the same mapping."""


@pytest.mark.parametrize(("arch", "setting", "message"), MISFITS, ids=lambda v: str(v)[:40])
def test_settings_that_do_not_fit_each_other_name_the_place_of_the_last_one(arch, setting, message):
    """Not that of a preset, nor of another setting of the same mapping, nor of the last setting of all."""
    part, _, rest = setting.partition(".")
    other = BESIDE.get("growth" if (arch, part) == ("sgt", "controller") else part) if rest else None
    with pytest.raises(UserError) as caught:
        settings = ["runtime.threads=1", setting, other or "training.seed=3", "evaluation.task_rows=9"]
        resolve(arch, "tiny", settings=settings)
    assert str(caught.value).startswith(f"--set {setting}: ") and message in str(caught.value)


def test_what_is_missing_is_missing_where_its_kind_was_written(tmp_path):
    (tmp_path / "bare.yaml").write_text("training: {steps: 3, tokens_per_step: 64, seq_len: 32}\n")
    with pytest.raises(UserError, match=r"^bare.yaml:1: shape is missing"):
        resolve("vanilla", str(tmp_path / "bare.yaml"), settings=["runtime.threads=1"])
    (tmp_path / "run.yaml").write_text("training: {seed: 1}\nmap: {kind: rule, rho: 0.5, window: 3}\n")
    with pytest.raises(UserError, match=r"^run.yaml:2: map.granularity is missing"):
        resolve("vanilla", "tiny", layers=[load_file(tmp_path / "run.yaml")], settings=["map.nearest=true"])
    with pytest.raises(UserError, match=r"^rule-swa.yaml:3: a map of kind rule needs a window.*--set window=N"):
        resolve("rule-swa", "tiny", layers=[Layer({"window": None})])


@pytest.mark.parametrize("arch", ["vanilla", "sgt", "looped"])
def test_the_advice_about_a_window_without_effect_works(arch):
    with pytest.raises(UserError, match=r"--set window=8: .*; set map.kind=window .* or set evaluation.task_window "):
        resolve(arch, "tiny", settings=["window=8"])
    assert resolve(arch, "tiny", settings=["window=8", "map.kind=window"]).map.window == 8
    assert resolve(arch, "tiny", settings=["evaluation.task_window=8"]).evaluation.task_window == 8
    assert resolve("rule-swa", "tiny", settings=["window=8"]).map.window == 8


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("recurence", "recurrence"), ("extend", "extends"), ("windw", "window"), ("archh", "arch"), ("sizes", "size")],
)
def test_a_misspelt_name_at_the_top_is_answered_with_the_right_one(tmp_path, wrong, right):
    (tmp_path / "run.yaml").write_text(f"training: {{seed: 1}}\n{wrong}: {{chunks: [1]}}\n")
    for layers, settings, place in (
        ([load_file(tmp_path / "run.yaml")], [], "run.yaml:2"),
        ([], [f"{wrong}=3"], f"--set {wrong}=3"),
    ):
        with pytest.raises(UserError) as caught:
            resolve("vanilla", "tiny", layers=layers, settings=settings)
        assert str(caught.value) == f"{place}: {wrong} is not a known setting; did you mean {right!r}?"


def test_merged_keys_keep_their_own_lines(tmp_path):
    (tmp_path / "run.yaml").write_text("shape: &base\n  with: 3\ntraining:\n  <<: *base\n")
    with pytest.raises(UserError, match=r"run.yaml:2: shape.with"):
        resolve("vanilla", "tiny", layers=[load_file(tmp_path / "run.yaml")])
    (tmp_path / "run.yaml").write_text("training: &base\n  seed: 1\nevaluation:\n  <<: *base\n")
    with pytest.raises(UserError, match=r"run.yaml:2: evaluation.seed is not a known setting"):
        resolve("vanilla", "tiny", layers=[load_file(tmp_path / "run.yaml")])


TABLE = """\
id: toy-table1
title: A toy
paper: toy
source: nowhere
columns:
- {name: a, title: A, kind: trained}
rows:
- {name: one, short: one, cell: base}
cells:
  base:
    arch: vanilla
    phase: one
    config: {}
scales:
  smoke:
    machine: a laptop
    size: tiny
    data: embedded
    seeds: [0]
    phases:
      one: {training: {steps: 60}}
    config: {}
    overrides: {}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: A toy", "titel: A toy", "table1.yaml:2: titel is not a known setting; did you mean 'title'?"),
        ("kind: trained", "knd: trained", "table1.yaml:6: columns.0.knd is not a known setting; did you mean 'kind'?"),
        ("phase: one", "phaze: one", "table1.yaml:12: cells.base.phaze is not a known setting; did you mean 'phase'?"),
        ("seeds: [0]", "seeds: [x]", "table1.yaml:19: scales.smoke.seeds.0 = 'x': must be a whole number"),
        ("machine:", "machin:", "table1.yaml:16: scales.smoke.machin is not a known setting; did you mean 'machine'?"),
        ("    config: {}\nscales", "    config: {training: {stepz: 3}}\nscales", "table1.yaml:13: training.stepz is"),
        ("    config: {}\nscales", "    config: {growth: {interval: 3}}\nscales", "table1.yaml:13: growth.inter"),
        ("{training: {steps: 60}}", "{training: {stepz: 60}}", "table1.yaml:21: training.stepz is not"),
        ("overrides: {}", "overrides: {base: {window: 3}}", "table1.yaml:23: window has no effect"),
        ("    config: {}\n    over", "    config: {shape: {with: 3}}\n    over", "table1.yaml:22: shape.with is not"),
    ],
)
def test_a_mistake_in_an_experiment_file_names_its_line(tmp_path, monkeypatch, old, new, message):
    (tmp_path / "toy").mkdir()
    assert old in TABLE
    (tmp_path / "toy" / "table1.yaml").write_text(TABLE.replace(old, new))
    monkeypatch.setattr(experiments, "experiments_folder", lambda: tmp_path)
    with pytest.raises(UserError) as caught:
        cell_configs(load_experiment("toy-table1"), "smoke", 0)
    assert str(caught.value).startswith(message)


def test_settings_that_cells_share_are_dropped_where_they_have_no_effect(tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    shared = TABLE.replace("    config: {}\n    over", "    config: {window: 3, growth: {start_step: 3}}\n    over")
    (tmp_path / "toy" / "table1.yaml").write_text(shared)
    monkeypatch.setattr(experiments, "experiments_folder", lambda: tmp_path)
    assert cell_configs(load_experiment("toy-table1"), "smoke", 0)["base"] == cell_configs_of(TABLE, tmp_path)


def cell_configs_of(text, folder):
    (folder / "toy" / "table1.yaml").write_text(text)
    return cell_configs(load_experiment("toy-table1"), "smoke", 0)["base"]


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("training:\n\tsteps: 3\n", 2, "it is indented with a tab, so write spaces instead"),
        ("training:\n  steps: 3\n \tseed: 2\n", 3, "it is indented with a tab, so write spaces instead"),
        ("training: steps: 3\n", 1, "write `name: value`"),
        ("size: @tiny\n", 1, "in quotes"),
        ("plan: [1, 2\nsize: tiny\n", 2, "close the [ or {"),
    ],
)
def test_what_is_not_yaml_says_what_to_write_instead(tmp_path, text, line, said):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_file(tmp_path / "run.yaml")
    assert f"run.yaml:{line}: this is not YAML" in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize("name", ["full", "window", "belief"])
def test_the_advice_about_an_attention_kind_without_its_mapping_works(name):
    with pytest.raises(UserError) as caught:
        resolve("vanilla", "tiny", settings=[f"map={{kind: uniform, attention: {name}}}"])
    written = str(caught.value).partition("; write it as ")[2]
    config = resolve("vanilla", "tiny", settings=[f"map={{kind: uniform, attention: {written}}}"])
    assert config.map.attention.name == name


@pytest.mark.parametrize("arch, settings", [("bert", []), ("vanilla", ["shape.family=gpt2"])])
def test_the_advice_about_a_family_that_does_not_fit_the_size_works(arch, settings):
    with pytest.raises(UserError) as caught:
        resolve(arch, "tiny", settings=settings)
    size = re.search(r"such as --size (\S+),", str(caught.value))[1]
    assert resolve(arch, size, settings=settings).shape.family == size.removesuffix("-tiny")
