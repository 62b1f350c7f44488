"""`arch`, `size` and `data` in a file of settings choose presets, as the options of these names do."""

import json

import pytest

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.errors import UserError
from hybridlab.runs.compose import Request, chosen_arch, compose
from hybridlab.training.store.folders import Runs


@pytest.fixture
def written(tmp_path):
    """A function: name and text of a file → its path."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def composed(config=None, arch=None, size=None, data=None, settings=(), options=None):
    return compose(
        Request(arch=arch, size=size, data=data, config=config, options=options or Layer(), settings=list(settings)),
        Runs(config.parent),
    )


def test_a_file_chooses_presets_as_the_options_do(written):
    path = written("run.yaml", "arch: sgt\nsize: tiny-narrow\ndata: recall\n")
    made = composed(path)
    assert run_hash(made) == run_hash(resolve("sgt", "tiny-narrow", "recall")) and made.arch == "sgt"
    child = written("child.yaml", "extends: run.yaml\narch: block-loop\ndata: {task_loss_weight: 3}\n")
    made = composed(child)
    assert (made.arch, made.size, made.data.mix.retrieval, made.data.task_loss_weight) == (
        "block-loop",
        "tiny-narrow",
        0.375,
        3,
    )


def test_an_option_replaces_the_preset_that_a_file_names(written):
    path = written("run.yaml", "arch: sgt\nsize: tiny-narrow\ndata: recall\n")
    made = composed(path, "vanilla", "tiny", "embedded")
    assert made == resolve("vanilla", "tiny") and chosen_arch("vanilla", path) == "vanilla"
    assert chosen_arch(None, path) == "sgt" and chosen_arch(None, None, "consa") == "consa"


def test_settings_of_a_file_are_over_the_preset_and_a_source_is_a_setting(written):
    path = written("run.yaml", "arch: sgt\ncontroller: {heads: 3}\ndata: {source: 'jsonl:a', field: body}\n")
    assert composed(path).controller.heads == 3
    assert composed(path, data="recall").data.source.startswith("jsonl:"), "a preset is below the file"
    changed = composed(path, data="text:b").data
    assert changed.source.startswith("text:") and changed.field == "body"


def test_data_that_a_file_names_replaces_what_it_extends(written):
    written("base.yaml", "data: {source: 'text:a', field: body}\n")
    data = composed(written("run.yaml", "extends: base.yaml\ndata: recall\n")).data
    assert (data.source, data.field, data.mix.text) == ("embedded", "text", 0.5)


def test_preset_files_are_found_beside_the_file_that_names_them(written, monkeypatch, tmp_path):
    written("sub/own.yaml", "map: {kind: window}\n")
    path = written("sub/run.yaml", "arch: ./own.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert composed(path).map.kind == "window" and composed(path).arch == "own"
    child = written("run.yaml", "extends: sub/run.yaml\n")
    assert composed(child).arch == "own"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arch: sgtt\n", "run.yaml:2: arch sgtt: there is no such arch; did you mean 'sgt'?"),
        ("size: tny\n", "run.yaml:2: size tny: there is no such size; did you mean 'tiny'?"),
        ("arch: 3\n", "run.yaml:2: arch = 3: must be the name of a preset"),
        (
            "data: recal\n",
            "run.yaml:2: data recal: neither a data preset (c4, chain, pile, primitives, recall, slimpajama-zh, ",
        ),
        ("extends: [run.yml]\n", "run.yaml:2: extends run.yml: there is no file"),
    ],
)
def test_a_wrong_name_in_a_file_gives_its_line(written, text, message):
    with pytest.raises(UserError) as caught:
        composed(written("run.yaml", f"training: {{seed: 1}}\n{text}"))
    assert str(caught.value).startswith(message)


def test_a_preset_file_cannot_choose_presets_and_settings_cannot_either(written):
    path = written("mine.yaml", "controller: {heads: 3}\narch: sgt\n")
    with pytest.raises(UserError, match=r"mine.yaml:2: a preset file cannot choose another .* with --config instead"):
        resolve(str(path), "tiny")
    assert composed(path).controller.heads == 3, "the advice works"
    with pytest.raises(UserError, match="arch chooses no preset here; name it with --arch"):
        resolve("vanilla", "tiny", layers=[Layer({"arch": "sgt"})])
    with pytest.raises(UserError, match="--set data=recall: use --data recall"):
        resolve("vanilla", "tiny", settings=["data=recall"])


# ---- shards ----


def test_shards_have_one_hash_whatever_would_have_prepared_text(tmp_path):
    shards = f"shards:{tmp_path}"
    narrow = Layer({"data": {"tokenizer": "hub:some", "max_documents": 3, "field": "body"}})
    assert run_hash(resolve("vanilla", "tiny", shards)) == run_hash(resolve("vanilla", "tiny", shards, [narrow]))
    assert resolve("vanilla", "mini", shards).data.tokenizer == "shards"
    assert resolve("vanilla", "tiny", layers=[narrow]).data.max_documents == 3


@pytest.mark.parametrize(
    ("name", "value"), [("tokenizer", "byte"), ("field", "body"), ("validation_fraction", 0.1), ("max_documents", 3)]
)
def test_settings_that_prepare_text_are_refused_on_shards(written, name, value):
    message = f"data.{name} has no effect on shards:x"
    with pytest.raises(UserError) as caught:
        resolve("vanilla", "tiny", "shards:x", settings=[f"data.{name}={value}"])
    assert str(caught.value).startswith(f"--set data.{name}={value}: {message}")
    path = written("run.yaml", f"training: {{seed: 1}}\ndata: {json.dumps({'source': 'shards:x', name: value})}\n")
    with pytest.raises(UserError) as caught:
        composed(path)
    assert str(caught.value).startswith(f"run.yaml:2: {message}")
