"""Folders in the Hugging Face layout whose config.json and tensors do not fit: one sentence, never a traceback."""

import copy
import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hybridlab import load_hf
from hybridlab.data.files import SourceFile
from hybridlab.data.tokenizers import load_tokenizer, make_tokenizer
from hybridlab.errors import UserError
from hybridlab.runs.compose import Request, compose
from hybridlab.training.store.artifacts import find_model
from hybridlab.training.store.folders import Runs
from tests.contract.test_parity import FIRST, folder_of, theirs


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Family → a folder with a model whose output head is its own."""
    root = tmp_path_factory.mktemp("hf")
    return {name: folder_of(theirs(case, tied=False), root / name) for name, case in FIRST.items()}


@pytest.fixture
def llama(folders, tmp_path):
    """A copy of the Llama that a test may damage."""
    return shutil.copytree(folders["llama"], tmp_path / "model")


READ = {"model_type", "tie_word_embeddings", "hidden_act", "activation_function", "attention_bias", "rope_parameters"}
"""Settings that are read in addition to those of the shapes in test_parity.py."""


def changes(config, read, path=()):
    """Every number and choice of a configuration that is read, changed in turn: (path, new value)."""
    for key, value in config.items():
        if not path and key not in read:
            continue
        here = (*path, key)
        if isinstance(value, dict):
            yield from changes(value, read, here)
        if isinstance(value, bool):
            others = [not value, "x"]
        elif isinstance(value, int | float):
            others = [value + 1, -value, 0, 10**6, 1e300, float("nan"), "x"]
        else:
            others = [1, "x", {}]
        yield from ((here, other) for other in [*others, None])


@pytest.mark.filterwarnings("ignore:.*ties the output head")
@pytest.mark.parametrize("family", FIRST)
def test_no_change_of_the_configuration_ends_in_a_traceback(folders, tmp_path, family):
    folder = shutil.copytree(folders[family], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    refused = set()
    for path, value in changes(config, READ | set(FIRST[family][3])):
        changed = copy.deepcopy(config)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (folder / "config.json").write_text(json.dumps(changed))
        try:
            load_hf(folder)
        except UserError as error:
            assert "\n" not in str(error) and str(folder) in str(error), (path, value)
            refused.add(path[-1])
    sizes = {"vocab_size", "n_layer", "n_embd", "n_positions"} if family == "gpt2" else set(FIRST[family][3])
    assert sizes - {"max_position_embeddings", "rotary_pct", "rms_norm_eps"} <= refused


@pytest.mark.parametrize(
    "key, value, message",
    [
        (
            "vocab_size",
            98,
            r"00001-of-00001.safetensors: model.embed_tokens.weight has shape \(97, 42\), but \(98, 42\)",
        ),
        ("intermediate_size", 53, r"mlp.gate_proj.weight has shape \(52, 42\), but \(53, 42\)"),
        ("head_dim", 12, r"self_attn.q_proj.weight has shape \(60, 42\), but \(72, 42\) by config.json"),
        ("num_hidden_layers", 10**6, "config.json: num_hidden_layers is 1000000, but the tensors are of 3 layers"),
    ],
)
def test_numbers_that_do_not_fit_name_the_tensor_and_both_shapes(llama, key, value, message):
    config = json.loads((llama / "config.json").read_text()) | {key: value}
    (llama / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load_hf(llama)


def rewrite(folder, change):
    """Write the folder's tensors again after `change`, a function that changes the mapping of names to tensors."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop(NORM), f"no file has the tensor {NORM}, which config.json asks for"),
        (lambda t: t.update({"model.extra.weight": torch.zeros(2)}), "has no tensor model.extra.weight"),
        (lambda t: t.update({"model.layers.1.self_attn.q_proj.bias": torch.zeros(60)}), "no tensor .*q_proj.bias"),
        (lambda t: t.update({"model.layers.x.mlp.gate_proj.weight": torch.zeros(2)}), "no tensor model.layers.x"),
        (lambda t: t.update({"model.layers.01.mlp.gate_proj.weight": torch.zeros(2)}), "no tensor model.layers.01"),
        (lambda t: t.update({"stray": torch.zeros(2)}), "no tensor model.stray"),
        (lambda t: t.update({NORM: torch.tensor(1.0)}), rf"{NORM} has shape \(\), but \(42,\)"),
        (lambda t: t.update({NORM: torch.ones(42, dtype=torch.int8)}), f"{NORM} is stored as int8; save"),
        (lambda t: t.update({NORM: torch.full((42,), float("nan"))}), f"{NORM} contains NaN or infinity"),
    ],
)
def test_tensors_that_do_not_fit_are_named(llama, change, message):
    rewrite(llama, change)
    with pytest.raises(UserError, match=message):
        load_hf(llama)


def test_other_floating_point_types_are_read(llama):
    rewrite(llama, lambda t: t.update({NORM: torch.ones(42, dtype=torch.bfloat16)}))
    assert load_hf(llama).final_norm.weight.dtype == torch.float32


def sharded(folder):
    """Two shards and their index, as save_pretrained writes them."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    file.unlink()
    names = sorted(tensors)
    index = {}
    for i in range(2):
        shard = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names[i::2]}, folder / shard)
        index |= dict.fromkeys(names[i::2], shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def test_shards_of_an_index_are_read_and_files_beside_them_are_not(llama):
    before = load_hf(llama)
    save_file({"adapter": torch.zeros(3)}, sharded(llama) / "adapter.safetensors")
    after = load_hf(llama)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_a_missing_or_damaged_shard_is_named(llama):
    shard = sharded(llama) / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    for damaged in (content[:-5], content[:100], b"", b"\xff" * 64):
        shard.write_bytes(damaged)
        with pytest.raises(UserError, match="model-00002-of-00002.safetensors: the file is damaged"):
            load_hf(llama)
    shard.unlink()
    with pytest.raises(UserError, match="model-00002-of-00002.safetensors: this shard is missing, and .*index.json"):
        load_hf(llama)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index_is_named(llama, content):
    (llama / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match="model.safetensors.index.json"):
        load_hf(llama)


def test_an_index_cannot_name_files_of_other_folders(llama):
    (llama / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {NORM: "../model/other.safetensors"}})
    )
    with pytest.raises(UserError, match="a file of this folder"):
        load_hf(llama)


@pytest.mark.parametrize(
    "setting, value, wanted",
    [
        ("attention_bias", None, "true or false; write false"),
        ("mlp_bias", "no", "true or false; write false"),
        ("tie_word_embeddings", None, "true or false; write false"),
        ("hidden_size", None, "a number above 0"),
        ("num_attention_heads", 0, "a number above 0"),
        ("rms_norm_eps", None, "a number above 0; write one, or leave it out"),
    ],
)
def test_a_setting_of_a_wrong_type_is_named_as_it_is_written(llama, setting, value, wanted):
    file = llama / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {setting: value}))
    with pytest.raises(UserError, match=f"config.json: {setting} = {json.dumps(value)}: it must be {wanted}"):
        load_hf(llama)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: f"_fsdp_wrapped_module.{name}".replace("layers.1.", "layers.1._fsdp_wrapped_module._orig_mod."),
        lambda name: name.replace("layers.1.", "layers.1._checkpoint_wrapped_module."),
    ],
)
def test_names_that_wrappers_of_torch_have_changed_are_read(llama, wrapped):
    before = load_hf(llama).state_dict()

    def rename(tensors):
        for name in list(tensors):
            tensors[wrapped(name)] = tensors.pop(name)

    rewrite(llama, rename)
    after = load_hf(llama).state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4665a5ea423c2713d436b5ee50593a9640e0\nsize 29\n"


@pytest.mark.parametrize("name", ["config.json", "*.safetensors"])
def test_a_pointer_of_git_lfs_names_the_command_that_fetches_the_file(llama, name):
    (file,) = llama.glob(name)
    file.write_text(POINTER)
    with pytest.raises(UserError, match=rf"{file.name}: this is a pointer of git-lfs .* `git -C .*model lfs pull`"):
        load_hf(llama)


def test_pointers_of_git_lfs_in_the_place_of_a_tokenizer_or_a_text_are_named(tmp_path):
    for name in ("tokenizer.json", "text.txt"):
        (tmp_path / name).write_text(POINTER)
    with pytest.raises(UserError, match="tokenizer.json: this is a pointer of git-lfs"):
        load_tokenizer(tmp_path)
    with (
        pytest.raises(UserError, match="text.txt: this is a pointer of git-lfs"),
        SourceFile(tmp_path / "text.txt").open(),
    ):
        pass


def python_of(advice):
    """The program in the command that an error names."""
    return re.search(r"`python -c \"(.*?)\"`", advice)[1]


def test_an_adapter_alone_names_its_model_and_a_command_that_merges_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs(FIRST["llama"], tied=False).save_pretrained("base")
    base = AutoModelForCausalLM.from_pretrained("base")
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(base, lora).eval()
    adapted.save_pretrained("adapter")
    with pytest.raises(UserError):
        find_model("./adapter", Runs(tmp_path / "runs"))
    with pytest.raises(UserError, match="this is a PEFT adapter of the model base, without .* weights") as error:
        load_hf("adapter")
    exec(python_of(str(error.value)))
    tokens = torch.arange(12).reshape(1, -1)
    assert torch.allclose(load_hf("merged")(tokens).logits, adapted(tokens).logits, atol=1e-4)


def test_the_advice_about_the_parts_of_a_tokenizer_works(tmp_path):
    made = make_tokenizer("bpe:300", ["some words and some more words"] * 3)
    parts = json.loads(made.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(parts["vocab"]))
    with pytest.raises(UserError, match="vocab.json alone does not say how text is split; get merges.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, parts["merges"])) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="make it of merges.txt and vocab.json") as error:
        load_tokenizer(tmp_path)
    exec(python_of(str(error.value)))
    assert load_tokenizer(tmp_path).encode("some words").ids == made.encode("some words").ids
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UserError, match="make it of tokenizer.model with .* `pip install sentencepiece"):
        load_tokenizer(tmp_path / "alone")


def test_the_advice_about_a_tokenizer_with_more_tokens_than_the_model_works(tmp_path):
    theirs(FIRST["llama"], tied=False).save_pretrained(tmp_path / "model")
    make_tokenizer("byte", ()).save(str(tmp_path / "model" / "tokenizer.json"))
    request = Request(start=str(tmp_path / "model"), data="embedded")
    with pytest.raises(UserError, match=r"ids up to 256, and the model has 97 .*resize_token_embeddings\(257\)"):
        compose(request, Runs(tmp_path / "runs"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    model.resize_token_embeddings(257)
    model.save_pretrained(tmp_path / "model")
    assert compose(request, Runs(tmp_path / "runs")).shape.vocab == 257
