import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from hybridlab.attention.kinds import AttentionKind, Window
from hybridlab.attention.registry import ATTENTION_KINDS, register_kind
from hybridlab.config import edits, loading, maps, recurrence, schema, shared_settings, training
from hybridlab.config.loading import (
    Layer,
    check,
    load_file,
    load_preset,
    merge,
    parse_setting,
    preset_folder,
    preset_names,
    read_yaml,
)
from hybridlab.config.resolve import identity, resolve, run_hash
from hybridlab.config.structures import structure_of
from hybridlab.config.yaml_text import parse_yaml
from hybridlab.errors import UserError
from hybridlab.lab.papers import loading as experiment
from hybridlab.methods import consa, depth, saobp, sgt
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.runs import compose
from hybridlab.training.store.artifacts import Artifact
from hybridlab.training.store.folders import RunFolder, Runs


def _family(kind, name):
    return load_preset(kind, name).values.get("shape", {}).get("family")


def test_every_arch_and_size_resolves():
    for size in preset_names("size"):
        for arch in preset_names("arch"):
            if _family("arch", arch) in (None, _family("size", size)) and (arch, _family("size", size)) not in REFUSED:
                config = resolve(arch, size)
                assert config.arch == arch and config.size == size


REFUSED = {("ln-scaling", "bert")}


def test_archs_and_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="bert.yaml:5: shape: the family bert has learned positions"):
        resolve("bert", "tiny")
    with pytest.raises(UserError, match="norm_scaling scales what the branches of a block read; in the family bert"):
        resolve("ln-scaling", "bert-tiny")
    with pytest.raises(UserError, match="in the family olmo2 norms give what the branches add, so remove it"):
        resolve("ln-scaling", "tiny", settings=["shape.family=olmo2"])
    with pytest.raises(UserError, match="local_rope has no effect on the family bert"):
        resolve("bert", "bert-tiny", settings=["shape.local_rope={base: 10, layers: [0]}"])
    with pytest.raises(UserError, match="local_rope names layers by their number, .* a model that grows in depth"):
        resolve("midas", "tiny", settings=["shape.local_rope={base: 10, layers: [0]}"])


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  steps: 3\n  warmup: 2\nshape:\n  with: 3\n")
    with pytest.raises(UserError, match=r"run.yaml:5: shape.with is not a known setting; did you mean 'width'"):
        resolve("vanilla", "tiny", layers=[load_file(path)])


def test_unknown_key_inside_a_kind_names_its_own_fields():
    with pytest.raises(UserError, match=r"--set map.windw=3: map.windw is not a known setting; did you mean 'window'"):
        resolve("all-window", "tiny", settings=["map.windw=3"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.steps=0", "training.steps = 0"),
        ("training.steps=many", "training.steps = 'many'"),
        ("training.steps=1.5", "training.steps = 1.5"),
        ("training.steps=true", "training.steps = True"),
        ("shape.tied_embeddings=3", "shape.tied_embeddings = 3"),
        ("shape.kv_heads=3", "heads 8 is not a multiple of kv_heads 3"),
        ("shape.head_width=15", "an even number of channels in a head, not 15"),
        ("shape.score_cap=0", "shape.score_cap = 0"),
        (
            "shape.rope_scaling={kind: yarn, factor: 4, original_positions: 64, beta_slow: 40}",
            "beta_fast 32 must not be",
        ),
        ("shape.rope_scaling={kind: yarn, factor: 4}", "shape.rope_scaling.original_positions"),
        ("shape.local_rope={base: 10, layers: [0, 8]}", "local_rope.layers names layer 8, but the layers are 0 to 7"),
        ("shape.local_rope={base: 10, layers: []}", "layers: name one at least, and each of them once"),
        ("training.tokens_per_step=1000", "use 896 or 1024"),
        ("training.optimizer.lr=.nan", "training.optimizer.lr"),
        ("data.mix.text=0.4", "add up to 0.4"),
        ("map.kind=windw", "map"),
        ("training.schedule.warmup_steps=700", "longer than the run"),
        ("training=3", "training = 3"),
        ("nonsense", "write it as name.of.field=value"),
        ("a..b=3", "write it as name.of.field=value"),
    ],
)
def test_wrong_values_are_explained(setting, message):
    with pytest.raises(UserError) as caught:
        resolve("vanilla", "tiny", settings=[setting])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_yaml_reads_exponents_and_refuses_repeated_keys_and_python_objects(tmp_path):
    (tmp_path / "a.yaml").write_text("x: 1e-3\ny: 5E4\nz: [1, 2]\n")
    assert read_yaml(tmp_path / "a.yaml").values == {"x": 1e-3, "y": 5e4, "z": [1, 2]}
    (tmp_path / "n.yaml").write_text("x: [0, -7, +3, 1_000, 0x1F, 12:30, 010, 1:2.5]\n")
    assert read_yaml(tmp_path / "n.yaml").values == {"x": [0, -7, 3, 1000, 31, "12:30", "010", "1:2.5"]}
    (tmp_path / "b.yaml").write_text("x: 1\nx: 2\n")
    with pytest.raises(UserError, match="b.yaml:2: 'x' is written twice"):
        read_yaml(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("x: [1\n")
    with pytest.raises(UserError, match="not YAML"):
        read_yaml(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("x: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(UserError, match="d.yaml:1: a value of the type !!python/object/apply:os.system cannot be used"):
        read_yaml(tmp_path / "d.yaml")


NO_SETTINGS = [
    ("x: " + "9" * 6_000, "1: a whole number of 6,000 characters cannot be used; write a shorter one"),
    ("x: 0x" + "f" * 600, "1: a whole number of 602 characters cannot be used; write a shorter one"),
    ("x: 1\ny: &y {z: *y}\n", ": it is nested too deep, or an alias in it contains itself"),
    ("x: 1\nyes: 4\n", "2: the key yes is read as true or false; write it in quotes, 'yes'"),
    ("x: {4: 4}\n", "1: the key 4 is read as a number"),
    ("null: 4\n", "1: the key null is read as nothing"),
    ("? [a, b]\n: 4\n", "1: a list or mapping is used as a key"),
    ("x: !!set {a, b}\n", "1: a value of the type !!set cannot be used; write text, a number, true or false"),
    ("x: [1, !!binary aGVsbG8=]\n", "1: a value of the type !!binary cannot be used"),
    ("x: !mine {}\n", "1: a value of the type !mine cannot be used"),
    ("x: !!timestamp 2025-01-01\n", "1: a value of the type !!timestamp cannot be used"),
]


@pytest.mark.parametrize(("text", "message"), NO_SETTINGS, ids=[message[:40] for _, message in NO_SETTINGS])
def test_yaml_that_is_no_plain_configuration_is_refused_at_its_line(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        read_yaml(tmp_path / "a.yaml")
    assert str(refused.value).startswith(str(tmp_path / "a.yaml")) and "\n" not in str(refused.value)


def test_a_wrong_budget_names_its_line():
    """It has a schema of its own, beside the settings of training."""
    for text, message in (("abc", "must be a number"), (-3, "must be greater than 0")):
        layer = Layer({"budget": {"flops": text}}, {("budget", "flops"): "a.yaml:2"}, asked=True)
        with pytest.raises(UserError, match=f"a.yaml:2: budget.flops = .*{message}"):
            resolve("vanilla", "tiny", layers=[layer])


def test_extends_merges_files_and_refuses_circles(tmp_path):
    (tmp_path / "base.yaml").write_text("training: {steps: 5, seed: 1}\n")
    (tmp_path / "child.yaml").write_text("extends: base.yaml\ntraining: {steps: 7}\n")
    assert load_file(tmp_path / "child.yaml").values == {"training": {"steps": 7, "seed": 1}}
    (tmp_path / "base.yaml").write_text("extends: child.yaml\n")
    with pytest.raises(UserError, match="extends itself"):
        load_file(tmp_path / "child.yaml")


def test_a_new_kind_replaces_the_fields_of_the_old_one():
    merged = merge(Layer({"map": {"kind": "rule", "rho": 0.5}}), Layer({"map": {"kind": "full"}}))
    assert merged.values == {"map": {"kind": "full"}}


def test_set_overrides_a_file_and_a_file_overrides_presets(tmp_path):
    (tmp_path / "a.yaml").write_text("training: {steps: 500, seed: 4}\n")
    config = resolve("vanilla", "tiny", layers=[load_file(tmp_path / "a.yaml")], settings=["training.steps=90"])
    assert (config.training.steps, config.training.seed) == (90, 4)


def test_window_of_the_size_reaches_the_map_and_can_be_overridden():
    assert resolve("all-window", "tiny").map.window == 8
    assert resolve("rule-swa", "consa-0.6b").map.window == 512
    assert resolve("consa", "tiny", settings=["window=5"]).map.window == 5
    assert resolve("rule-swa", "tiny", settings=["map.window=7"]).map.window == 7


def test_a_dense_model_has_the_sizes_window_as_task_window_where_there_are_tasks():
    assert resolve("vanilla", "tiny", "recall").evaluation.task_window == 8
    assert resolve("vanilla", "tiny", "recall", settings=["evaluation.task_window=5"]).evaluation.task_window == 5
    assert resolve("vanilla", "tiny").evaluation.task_window is None
    assert resolve("vanilla", "tiny", "recall", settings=["evaluation.task_window=null"]).evaluation.task_window is None
    assert resolve("all-window", "tiny", "recall", settings=["window=4"]).evaluation.task_window is None


def test_the_hash_covers_the_training_and_not_the_runtime():
    base = resolve("vanilla", "tiny")
    assert run_hash(base) == run_hash(resolve("vanilla", "tiny", settings=["runtime.micro_batch_rows=2"]))
    assert run_hash(base) == run_hash(resolve("vanilla", "tiny", settings=["runtime.kernel=eager"]))
    for setting in ("training.seed=1", "training.optimizer.lr=1e-3", "shape.width=32", "data.mix.text=1.0"):
        changed = run_hash(resolve("vanilla", "tiny", settings=[setting]))
        assert (changed == run_hash(base)) == (setting == "data.mix.text=1.0")


def test_a_configuration_survives_json():
    config = resolve("consa", "tiny")
    again = check(schema.RunConfig, Layer(json.loads(config.model_dump_json())))
    assert again == config and run_hash(again) == run_hash(config)


def test_a_setting_remembers_where_it_was_written():
    layer = parse_setting("a.b=[1, 2]")
    assert layer.values == {"a": {"b": [1, 2]}} and layer.origin(("a", "b", 0)) == "--set a.b=[1, 2]"


# ---- settings that several parts share ----


@pytest.mark.parametrize(
    ("arch", "values", "message"),
    [
        ("vanilla", {"growth": {"start_step": 9}}, "growth.start_step has no effect here: no controller grows; use"),
        ("block-loop", {"growth": {"interval": 9}}, "growth.interval has no effect here: no controller grows"),
        (
            "sgt",
            {"controller": {"interval": 20}, "growth": {"interval": 9}},
            "growth.interval has no effect here: controller.interval is set",
        ),
        ("vanilla", {"window": 16}, "window has no effect on a map of kind full; set map.kind=window for"),
        ("sgt", {"window": 16}, "window has no effect on a map of kind full"),
        ("rule-swa", {"window": 16, "map": {"window": 8}}, "window and map.window have different values"),
        (
            "looped",
            {"shape": {"layers": 8}, "recurrence": {"pre": 1, "loop": 2, "post": 1}},
            "shape.layers 8 has no effect, since recurrence.pre, loop and post make 4 layers",
        ),
        ("looped", {"plan": [{"op": "recur", "first": 1, "size": 1, "chunks": [1]}]}, "`plan` has a loop already"),
    ],
)
def test_settings_of_a_file_without_any_effect_are_refused(tmp_path, arch, values, message):
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    with pytest.raises(UserError) as caught:
        resolve(arch, "tiny", layers=[load_file(tmp_path / "run.yaml")])
    assert str(caught.value).startswith("run.yaml:1: ") and message in str(caught.value)


def test_defaults_are_used_where_they_fit_and_dropped_elsewhere():
    shared = Layer({"window": 16, "growth": {"start_step": 9}})
    assert resolve("vanilla", "tiny", layers=[shared]) == resolve("vanilla", "tiny")
    assert resolve("rule-swa", "tiny", layers=[shared]).map.window == 16
    assert resolve("sgt", "tiny", layers=[shared]).controller.start_step == 9


def test_a_requested_window_overrides_the_layers_below(tmp_path):
    (tmp_path / "run.yaml").write_text("window: 16\n")
    asked, below = load_file(tmp_path / "run.yaml"), Layer({"map": {"window": 8}})
    assert resolve("rule-swa", "tiny", layers=[below, asked]).map.window == 16
    assert resolve("rule-swa", "tiny", layers=[asked, below]).map.window == 8
    assert resolve("rule-swa", "tiny", layers=[asked], settings=["map.window=5"]).map.window == 5
    other = Layer({"map": {"kind": "mixed"}, "controller": {"kind": "l1-gates", "rho": 0.5}})
    assert resolve("rule-swa", "tiny", layers=[asked, other]).map.window == 16, "a new kind of map keeps it"
    masks = Layer({"map": {"kind": "explicit", "masks": [[0, 1, 1, 0]] * 8, "window": 8}})
    assert resolve("vanilla", "tiny", layers=[masks], settings=["window=5"]).map.window == 5
    assert resolve("all-window", "tiny", layers=[asked], settings=["map.window=7"]).map.window == 7


@pytest.mark.parametrize("data", ["embedded", "recall"])
def test_a_requested_window_is_refused_where_the_map_has_no_windows(tmp_path, data):
    (tmp_path / "run.yaml").write_text("window: 16\n")
    cell = Layer({"window": 16}, {("window",): "table1.yaml:3"}, asked=True)
    advice = "window has no effect on a map of kind full; set map.kind=window for this window in every head or use "
    advice += "--arch rule-swa, or set evaluation.task_window to measure tasks with it"
    for layers, settings, origin in (
        ([load_file(tmp_path / "run.yaml")], [], "run.yaml:1"),
        ([cell], [], "table1.yaml:3"),
        ([], ["window=16"], "--set window=16"),
        ([Layer({"evaluation": {"task_window": 4}})], ["window=16"], "--set window=16"),
    ):
        with pytest.raises(UserError) as caught:
            resolve("vanilla", "tiny", data, layers=layers, settings=settings)
        assert str(caught.value) == f"{origin}: {advice}"


def test_a_default_window_becomes_the_task_window_where_the_map_has_no_windows():
    shared = Layer({"window": 16})
    assert resolve("vanilla", "tiny", "recall", layers=[shared]).evaluation.task_window == 16
    assert resolve("vanilla", "tiny", layers=[shared]).evaluation.task_window is None
    assert resolve("all-window", "tiny", "recall", layers=[shared]).evaluation.task_window is None


def test_growth_start_is_the_step_of_layers_chosen_by_entropy():
    choice = {"top_entropy_of": "ab", "n": 3}
    plan = Layer({"plan": [{"op": "loop_blocks", "layers": choice}]})
    assert resolve("vanilla", "tiny", layers=[plan]).plan[0].layers.step == 40
    assert resolve("vanilla", "tiny", layers=[plan], settings=["growth.start_step=7"]).plan[0].layers.step == 7


# ---- maps ----


def test_a_map_of_any_kind_by_heads_or_everywhere():
    window = {"kind": "window", "width": 5}
    uniform = resolve("vanilla", "tiny", layers=[Layer({"map": {"kind": "uniform", "attention": window}})])
    assert structure_of(uniform).map == AttentionMap.uniform(8, 4, Window(5))
    assert identity(uniform)["map"] == {"kind": "uniform", "attention": window}
    rows = [[window, {"kind": "full"}, {"kind": "full"}, window]] * 8
    heads = resolve("vanilla", "tiny", layers=[Layer({"map": {"kind": "heads", "layers": rows}})])
    assert structure_of(heads).map.to_json() == rows == identity(heads)["map"]["layers"]
    assert check(schema.RunConfig, Layer(json.loads(heads.model_dump_json()))) == heads


def test_a_registered_attention_kind_can_be_written_in_a_map():
    @dataclass(frozen=True)
    class Sinks(AttentionKind):
        name, letter, colour = "sinks", "s", "#000000"
        width: int
        first: int = 1

    register_kind(Sinks)
    try:
        setting = "map={kind: uniform, attention: {kind: sinks, width: 3}}"
        config = resolve("vanilla", "tiny", settings=[setting])
        assert config.map.attention == Sinks(3, 1)
        with pytest.raises(UserError, match="frist is not a setting of attention kind sinks; did you mean 'first'"):
            resolve("vanilla", "tiny", settings=["map={kind: uniform, attention: {kind: sinks, frist: 3}}"])
    finally:
        ATTENTION_KINDS.remove("sinks")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{kind: uniform, attention: {kind: windw}}", "attention kind 'windw' is unknown; did"),
        ("{kind: uniform, attention: {kind: window, wdth: 3}}", "wdth is not a setting of attention kind window"),
        ("{kind: uniform, attention: {kind: window}}", "it takes width, not none"),
        ("{kind: uniform, attention: {kind: window, width: 0}}", "a whole number of 1 or more"),
        ("{kind: uniform, attention: {kind: mixed, width: 4}}", "a controller learns heads of kind mixed"),
        ("{kind: uniform, attention: window}", "'window' is not an attention kind"),
        ("{kind: heads, layers: [[{kind: full}]]}", "run.yaml:2: map.layers has 1 rows, but the model has 8 layers"),
        ("{kind: heads, layers: [[{kind: ful}]]}", "map.layers.0.0: attention kind 'ful' is unknown"),
        (f"{{kind: heads, layers: {json.dumps([[{'kind': 'full'}]] * 8)}}}", "layers.0 has 1 kinds, but"),
        ("{kind: explicit, window: 4, masks: [[0, 1]]}", "it has 1 layers of [2] KV heads, but the model has 8"),
    ],
)
def test_mistakes_in_a_map_name_its_line(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(f"training: {{seed: 3}}\nmap: {text}\n")
    with pytest.raises(UserError) as caught:
        resolve("vanilla", "tiny", layers=[load_file(tmp_path / "run.yaml")])
    assert str(caught.value).startswith("run.yaml:2: ") and message in str(caught.value)


# ---- presets of the user ----


def test_user_presets_are_found_by_path(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("recurrence: {allocation: base, chunks: [4, 1]}\n")
    (tmp_path / "wide.yaml").write_text("window: 6\nshape: {width: 128}\n")
    extended = f"extends: {preset_folder('size') / 'tiny.yaml'}\n" + (tmp_path / "wide.yaml").read_text()
    (tmp_path / "wide.yaml").write_text(extended)
    monkeypatch.chdir(tmp_path)
    for arch in ("mine.yaml", "./mine.yaml", str(tmp_path / "mine.yaml")):
        config = resolve(arch, "./wide.yaml")
        assert (config.arch, config.size, config.shape.width) == ("mine", "wide", 128)
        assert len(config.plan) == 1 and config.plan[0].chunks == [4, 1]
    assert resolve("all-window", "wide.yaml").map.window == 6
    assert run_hash(resolve("vanilla", "wide.yaml")) == run_hash(
        resolve("vanilla", "tiny", settings=["shape.width=128"])
    )
    with pytest.raises(UserError, match=r"other.yaml: there is no such file"):
        resolve("./other.yaml", "tiny")
    (tmp_path / "mine.yaml").write_text("map: {kind: windw}\n")
    with pytest.raises(UserError, match=r"mine.yaml:1: map.kind 'windw' is unknown; did you mean 'window'"):
        resolve("./mine.yaml", "tiny")


def test_a_user_preset_may_loop_layers_chosen_by_entropy(tmp_path):
    (tmp_path / "mine.yaml").write_text("plan: [{op: loop_blocks, layers: {last: 2}}]\n")
    layer = compose._looping_top_entropy(str(tmp_path / "mine.yaml"), "ab")
    assert layer.values == {"plan": [{"op": "loop_blocks", "layers": {"top_entropy_of": "ab", "n": 2}}]}


def test_a_run_starts_from_one_whose_size_was_a_file(tmp_path, monkeypatch):
    """Only the name of that size is known; the run to start from brings all of its settings by itself."""
    (tmp_path / "wide.yaml").write_text(f"extends: {preset_folder('size') / 'tiny.yaml'}\nshape: {{width: 128}}\n")
    config = resolve("all-window", str(tmp_path / "wide.yaml"))
    settings = config.model_dump(mode="json", include={"shape", "plan", "data", "training", "evaluation"})
    parent = Artifact(tmp_path, Runs(tmp_path), RunFolder(tmp_path))
    vars(parent).update(
        tokenizer=tmp_path / "tokenizer.json", digest="ab", config=config, settings={**settings, "window": 8}
    )
    monkeypatch.setattr(compose, "find_start", lambda *_: parent)

    def started(arch, **options):
        asked = compose.Request(arch=arch, start="RUN", options=Layer(options))
        return compose.compose(asked, Runs(tmp_path))

    child = started("rule-swa")
    assert (child.size, child.shape, child.map.window, child.init.run) == ("wide", config.shape, 8, "ab")
    assert started("vanilla", training={"steps": 60}).training.schedule.warmup_steps == 5


# ---- files ----


def test_a_file_is_parsed_once_and_what_is_read_may_be_changed(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    path.write_text("x: {y: [1, 2]}\n")
    os.utime(path, ns=(10**18, 10**18))
    parsed = []
    monkeypatch.setattr(loading, "parse_yaml", lambda text: parsed.append(text) or parse_yaml(text))
    first = read_yaml(path)
    first.values["x"]["y"].append(3)
    assert read_yaml(path).values == {"x": {"y": [1, 2]}} and len(parsed) == 1
    path.write_text("x: {y: [5, 6]}\n")
    assert read_yaml(path).values == {"x": {"y": [5, 6]}}, "a file that has just been written is read again"
    path.write_text("x: {y: [7, 8]}\n")
    assert read_yaml(path).values == {"x": {"y": [7, 8]}}


def test_aliases_and_merge_keys_work_as_in_yaml(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, 2025-01-01, 1e3]\n")
    both = {"x": 1, "y": 2}
    assert read_yaml(tmp_path / "a.yaml").values == {"a": both, "b": {"x": 1, "y": 3}, "c": [both, "2025-01-01", 1e3]}


def test_every_field_is_read_somewhere():
    """A setting that nothing reads would have no effect."""
    package = Path(schema.__file__).resolve().parent.parent
    parts = (schema, training, edits, maps, recurrence, shared_settings)
    schemas = [Path(part.__file__).resolve() for part in parts]
    code = "\n".join(p.read_text() for p in package.rglob("*.py") if p.resolve() not in schemas)
    own = "\n".join(path.read_text() for path in schemas)
    every = (*parts, experiment, consa, depth, saobp, sgt)
    for name, model in [item for part in every for item in vars(part).items()]:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or name == "BaseModel":
            continue
        for field in model.model_fields:
            if field in ("kind", "op"):
                continue
            read = f".{field}" in code or f"self.{field}" in own or f'"{field}"' in code
            assert read, f"{name}.{field} is read by nothing"


# ---- warm-up ----


def warmup_of(*settings, layers=(), size="tiny"):
    return resolve("vanilla", size, layers=layers, settings=settings).training.schedule.warmup_steps


def test_the_warmup_of_a_preset_is_a_share_of_the_steps_however_these_are_given(tmp_path):
    (tmp_path / "run.yaml").write_text("training: {steps: 30}\n")
    assert warmup_of() == 50 and warmup_of(size="mini") == 100 and warmup_of(size="consa-0.6b") == 2000
    assert warmup_of(layers=[load_file(tmp_path / "run.yaml")]) == warmup_of("training.steps=30") == 2
    for steps in (60, 99, 100):
        options = Layer({"training": {"steps": steps}})
        composed = compose.compose(compose.Request(options=options), Runs(tmp_path))
        assert composed.training.schedule.warmup_steps == warmup_of(f"training.steps={steps}") == round(steps / 12)


def test_a_later_warmup_replaces_an_earlier_one_in_steps_or_as_a_share(tmp_path):
    share, count = "training.schedule.warmup_fraction=0.5", "training.schedule.warmup_steps=7"
    assert warmup_of(count) == warmup_of(share, count) == 7
    assert warmup_of(share) == warmup_of(count, share) == 300
    assert warmup_of(count, "training.schedule.warmup_fraction=null") == 0
    (tmp_path / "base.yaml").write_text("training: {steps: 40, schedule: {warmup_steps: 3}}\n")
    (tmp_path / "run.yaml").write_text("extends: base.yaml\ntraining: {schedule: {warmup_fraction: 0.5}}\n")
    assert warmup_of(layers=[load_file(tmp_path / "run.yaml")]) == 20
    masks = resolve("consa", "tiny", settings=["controller.schedule.warmup_fraction=0.1"]).controller
    assert masks.schedule.warmup_steps == 60


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("{warmup_fraction: 0.5, warmup_steps: 3}", "warmup_fraction and warmup_steps both set the warm-up"),
        ("{warmup_fraction: 1.5}", "training.schedule.warmup_fraction = 1.5: must be less than or equal to 1"),
        ("{warmup_fraction: half}", "training.schedule.warmup_fraction = 'half': must be a number"),
        ("{warmup_steps: 31}", "schedule.warmup_steps 31 is longer than the run (30)"),
    ],
)
def test_a_wrong_warmup_names_its_line(tmp_path, schedule, message):
    (tmp_path / "run.yaml").write_text(f"training:\n  steps: 30\n  schedule: {schedule}\n")
    with pytest.raises(UserError) as caught:
        resolve("vanilla", "tiny", layers=[load_file(tmp_path / "run.yaml")])
    assert message in str(caught.value)


# ---- size of the validation ----


def windows_of(*settings, layers=()):
    return resolve("vanilla", "tiny", layers=layers, settings=settings).evaluation.validation_windows


def test_a_validation_in_tokens_becomes_whole_sequences_of_any_length():
    tokens, windows = "evaluation.validation_tokens=1000", "evaluation.validation_windows=7"
    assert windows_of() == windows_of("evaluation.validation_tokens=null") == 320
    assert windows_of(tokens) == 1000 // 128 and windows_of(tokens, "training.seq_len=64") == 1000 // 64
    assert windows_of("evaluation.validation_tokens=5") == 1
    assert windows_of(tokens, windows) == 7 and windows_of(windows, tokens) == 1000 // 128
    config = resolve("vanilla", "tiny", settings=["evaluation.validation_tokens=40960"])
    assert "validation_tokens" not in config.model_dump_json()
    assert run_hash(config) == run_hash(resolve("vanilla", "tiny"))


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ("{validation_tokens: 640, validation_windows: 3}", "both set the size of the validation; remove one"),
        ("{validation_tokens: 0}", "evaluation.validation_tokens = 0: must be greater than or equal to 1"),
        ("{validation_tokens: many}", "evaluation.validation_tokens = 'many': must be a whole number"),
    ],
)
def test_a_wrong_size_of_the_validation_names_its_line(tmp_path, evaluation, message):
    (tmp_path / "run.yaml").write_text(f"evaluation: {evaluation}\n")
    with pytest.raises(UserError) as caught:
        windows_of(layers=[load_file(tmp_path / "run.yaml")])
    assert message in str(caught.value) and "run.yaml:1" in str(caught.value)


def test_a_share_is_stored_as_steps_only():
    config = resolve("vanilla", "tiny", settings=["training.schedule.warmup_fraction=0.083"])
    assert "warmup_fraction" not in config.model_dump_json()
    assert run_hash(config) == run_hash(resolve("vanilla", "tiny"))
