import json

import pytest
from pydantic import BaseModel

from hybridlab.config import controllers, schema
from hybridlab.config.loading import Layer, check, load_file, merge, parse_setting, preset_names, read_yaml
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.errors import UserError
from hybridlab.reproduction import experiment


def test_every_arch_and_size_resolves():
    for size in preset_names("size"):
        for arch in preset_names("arch"):
            config = resolve(arch, size)
            assert config.arch == arch and config.size == size


def test_unknown_key_names_place_and_nearest(tmp_path):
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
        ("shape.head_width=15", "15 of a head's would turn"),
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


def test_yaml_reads_exponents_and_refuses_doubles(tmp_path):
    (tmp_path / "a.yaml").write_text("x: 1e-3\ny: 5E4\nz: [1, 2]\n")
    assert read_yaml(tmp_path / "a.yaml").values == {"x": 1e-3, "y": 5e4, "z": [1, 2]}
    (tmp_path / "b.yaml").write_text("x: 1\nx: 2\n")
    with pytest.raises(UserError, match="b.yaml:2: 'x' is written twice"):
        read_yaml(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("x: [1\n")
    with pytest.raises(UserError, match="not YAML"):
        read_yaml(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("x: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(UserError, match="not YAML"):
        read_yaml(tmp_path / "d.yaml")


def test_extends_lays_files_over_each_other_and_refuses_circles(tmp_path):
    (tmp_path / "base.yaml").write_text("training: {steps: 5, seed: 1}\n")
    (tmp_path / "child.yaml").write_text("extends: base.yaml\ntraining: {steps: 7}\n")
    assert load_file(tmp_path / "child.yaml").values == {"training": {"steps": 7, "seed": 1}}
    (tmp_path / "base.yaml").write_text("extends: child.yaml\n")
    with pytest.raises(UserError, match="extends itself"):
        load_file(tmp_path / "child.yaml")


def test_a_new_kind_replaces_the_fields_of_the_old_one():
    merged = merge(Layer({"map": {"kind": "rule", "rho": 0.5}}), Layer({"map": {"kind": "full"}}))
    assert merged.values == {"map": {"kind": "full"}}


def test_precedence_of_set_over_file_over_preset(tmp_path):
    (tmp_path / "a.yaml").write_text("training: {steps: 500, seed: 4}\n")
    config = resolve("vanilla", "tiny", layers=[load_file(tmp_path / "a.yaml")], settings=["training.steps=90"])
    assert (config.training.steps, config.training.seed) == (90, 4)


def test_window_of_the_size_reaches_the_map_and_can_be_overridden():
    assert resolve("all-window", "tiny").map.window == 8
    assert resolve("rule-swa", "consa-0.6b").map.window == 512
    assert resolve("consa", "tiny", settings=["window=5"]).map.window == 5
    assert resolve("rule-swa", "tiny", settings=["map.window=7"]).map.window == 7


def test_a_dense_model_is_measured_by_the_sizes_window_where_there_are_tasks():
    assert resolve("vanilla", "tiny", "recall").evaluation.task_window == 8
    assert resolve("vanilla", "tiny", "recall", settings=["evaluation.task_window=5"]).evaluation.task_window == 5
    assert resolve("vanilla", "tiny").evaluation.task_window is None
    assert resolve("all-window", "tiny", "recall", settings=["window=4"]).evaluation.task_window is None


def test_hash_covers_what_matters_and_nothing_else():
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


def test_settings_keep_their_place():
    layer = parse_setting("a.b=[1, 2]")
    assert layer.values == {"a": {"b": [1, 2]}} and layer.origin(("a", "b", 0)) == "--set a.b=[1, 2]"


def test_every_field_is_read_somewhere():
    """A setting that nothing reads is a promise that nothing keeps."""
    from pathlib import Path

    package = Path(schema.__file__).resolve().parent.parent
    schemas = ("schema.py", "controllers.py")
    code = "\n".join(p.read_text() for p in package.rglob("*.py") if p.name not in schemas)
    own = "\n".join((package / "config" / name).read_text() for name in schemas)
    for name, model in [*vars(schema).items(), *vars(controllers).items(), *vars(experiment).items()]:
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or name == "Strict":
            continue
        for field in model.model_fields:
            if field == "kind":
                continue
            read = f".{field}" in code or f"self.{field}" in own or f'"{field}"' in code
            assert read, f"{name}.{field} is read by nothing"
