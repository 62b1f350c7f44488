"""`hybridlab config`: every setting with its meaning, and what a command line resolves to."""

import json
import shlex

import pytest
import yaml

from hybridlab.config.documented import documented
from hybridlab.config.maps import MapConfig
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.config.types import members
from hybridlab.errors import UserError
from hybridlab.registry import CONTROLLERS, HOOKS
from tests.conftest import run_python
from tests.integration.test_cli import hybridlab, json_of


def test_every_setting_has_a_meaning():
    missing = [setting.name for setting in documented() if not setting.meaning or not setting.values]
    assert not missing, "write a docstring below the field"


def test_the_schema_lists_settings_of_every_part_and_kind():
    names = {setting.name for setting in documented()}
    assert {"extends", "arch", "window", "growth.interval", "recurrence.chunks", "training.optimizer.lr"} <= names
    assert {"plan.N.layers.top_entropy_of", "plan.N.visits.N.part", "controller.schedule.name"} <= names
    for path, known in (("map", members(MapConfig)), ("controller", CONTROLLERS.names()), ("hooks", HOOKS.names())):
        assert {f"kind {kind}" for kind in known} <= {setting.of for setting in documented(path)}
    assert {"op skip", "op visits", "op recur"} <= {setting.of for setting in documented("plan")}


def test_values_and_defaults_are_those_of_the_schema():
    found = {setting.name: setting for setting in documented("training")}
    assert found["training.steps"].values == "whole number ≥ 1" and found["training.steps"].default is None
    assert found["training.schedule.name"].values == "cosine | wsd | trapezoidal"
    assert found["training.optimizer.betas"].default == "[0.9, 0.95]"
    masks = {setting.name: setting for setting in documented("controller.schedule")}
    assert masks["controller.schedule.final_ratio"].default == "0.02", "that of the controller, not of a schedule"
    assert documented("plan.3.layer") == documented("plan.N.layer")
    with pytest.raises(UserError, match="trainin.stepz is not a known setting; did you mean 'training.steps'"):
        documented("trainin.stepz")


def test_the_schema_is_printed_without_torch(tmp_path):
    shown = json_of(hybridlab("config", "schema", "runtime", "--json", cwd=tmp_path))["settings"]
    assert shown[0]["name"] == "runtime" and {"name", "of", "values", "default", "meaning"} == shown[0].keys()
    text = hybridlab("config", "schema", "training.clip", cwd=tmp_path).stdout
    assert text.splitlines()[0] == "training.clip  number > 0  default 1.0" and "Largest norm" in text
    code = "import sys; from hybridlab.lab.cli.main import app; app(['config', 'schema', 'map'], standalone_mode=False)"
    assert run_python(code + "; print('torch' in sys.modules)").splitlines()[-1] == "False"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.yaml").write_text("arch: sgt\ntraining:\n  seed: 3\n")
    return tmp_path


def show(folder, options):
    return hybridlab(*shlex.split(f"config show {options}"), cwd=folder)


def test_a_command_line_is_shown_with_the_origin_of_every_value(folder):
    options = "--config run.yaml --data recall --steps 90 --set training.clip=2.0"
    shown = json_of(show(folder, f"{options} --json"))
    expected = resolve("sgt", "tiny", "recall", settings=["training.seed=3", "training.steps=90", "training.clip=2.0"])
    assert shown["hash"] == run_hash(expected) and shown["parents"] == []
    for name, value, origin in (
        ("arch", "sgt", "run.yaml:1"),
        ("size", "tiny", "default"),
        ("training.seed", 3, "run.yaml:3"),
        ("training.steps", 90, "--steps"),
        ("training.clip", 2.0, "--set training.clip=2.0"),
        ("training.optimizer.eps", 1e-8, "default"),
        ("data.mix.text", 0.5, "recall.yaml:4"),
        ("controller.start_step", 40, "tiny.yaml:7"),
        ("training.schedule.warmup_steps", 7, "tiny.yaml:27"),
    ):
        assert shown["settings"][name] == {"value": value, "origin": origin}, name
    text = show(folder, options).stdout
    assert text.startswith(f"# run {shown['hash']}\n")
    assert any(line.split() == ["seed:", "3", "#", "run.yaml:3"] for line in text.splitlines())
    assert yaml.safe_load(text) == json.loads(expected.model_dump_json()), "it is YAML"


def test_what_follows_from_other_settings_is_computed(folder):
    shown = json_of(show(folder, "--set budget.flops=1e13 --json"))["settings"]
    assert shown["training.steps"]["origin"] == "computed"
    assert shown["budget.flops"]["origin"] == "--set budget.flops=1e13"


def test_a_mistake_is_the_same_as_in_training(folder):
    done = show(folder, "--set training.stepz=3")
    assert done.returncode == 2 and "training.stepz is not a known setting; did you mean 'steps'?" in done.stderr
    assert show(folder, "--arch consa").returncode == 2


def test_a_child_shows_what_it_inherits(trained):
    _, runs = trained
    child = json_of(show(runs, "--from parent --runs-dir . --set training.steps=2 --json"))
    assert child["parents"] and child["settings"]["init.run"]["origin"] == "--from parent"
    assert child["settings"]["training.skip_steps"] == {"value": 3, "origin": "computed"}
    assert child["settings"]["shape.width"]["origin"] == "what --from names"
