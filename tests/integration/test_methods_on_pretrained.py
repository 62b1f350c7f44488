"""Every method starts from models of transformers: masks, growth, loops, belief and probes, a few steps each."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hybridlab import export_hf, load_checkpoint, load_hf
from hybridlab.attention.kinds import Full, Window
from hybridlab.data.tokenizers import make_tokenizer
from tests.conftest import write_text
from tests.contract.test_parity import LLAMA3, theirs
from tests.integration.test_cli import hybridlab, json_of

COMMON = {"vocab_size": 300, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 48}
COMMON |= {"num_attention_heads": 4, "max_position_embeddings": 64}
SHAPES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2, "rope_parameters": LLAMA3}, True),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"num_key_value_heads": 2, "head_dim": 16}, True),
    "pythia": (GPTNeoXConfig, GPTNeoXForCausalLM, {"rotary_pct": 0.25}, False),
}
FAST = ["--set", "training.tokens_per_step=128", "--set", "training.seq_len=32"]
FAST += ["--set", "evaluation.validation_windows=2", "--set", "runtime.threads=1", "--data", "text:words.txt"]
GROWTH = {"start_step": 1, "interval": 1, "fade_steps": 1, "max_layers": 1, "heads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with a text and models shaped like Llama 3.2, Qwen3 and Pythia, in shards."""
    place = tmp_path_factory.mktemp("methods")
    write_text(place / "words.txt", 40_000)
    for name, (config, model, shape, tied) in SHAPES.items():
        theirs((name, config, model, COMMON | shape), tied).save_pretrained(place / name, max_shard_size="20KB")
        assert len(list((place / name).glob("model-*-of-*.safetensors"))) > 1
        make_tokenizer("byte", []).save(str(place / name / "tokenizer.json"))
    return place


def trained(folder, *arguments):
    steps = () if "--steps" in arguments else ("--steps", "2")
    return json_of(hybridlab(arguments[0], *steps, *FAST, *arguments[1:], "--json", cwd=folder))


METHODS = {
    "belief": ["--arch", "saobp-high"],
    "windows": ["--arch", "rule-swa", "--set", "window=8"],
    "block loop": ["--arch", "block-loop"],
    "head loops that grow": [
        *("--arch", "sgt", "--steps", "8"),
        *(f"--set=controller.{name}={value}" for name, value in GROWTH.items()),
    ],
    "loop over chunks": [
        *("--arch", "spiral-b"),
        *("--set", "recurrence={pre: 1, loop: 2, post: 1, chunks: [4, 2, 1]}"),
    ],
    "looped": ["--arch", "looped", "--set", "recurrence={pre: 1, loop: 2, post: 1, topology: anchor}"],
}


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_method_starts_from_the_weights(folder, name, method):
    run = f"{name}-{method.replace(' ', '-')}"
    record = trained(folder, "pretrain", "--from", name, *METHODS[method], "--run-dir", run)
    assert record["parents"][0].startswith("hf-") and record["config"]["data"]["tokenizer"].startswith("file:")
    before, after = load_hf(folder / name), load_checkpoint(folder / run)
    # At a learning rate of 2e-5 the weights have hardly moved: they are those of the folder.
    for tensor, moved in zip(before.parameters(), after.parameters(), strict=False):
        assert (tensor - moved).abs().max() < 1e-3
    if method == "loop over chunks":
        assert any(parameter.numel() for parameter in after.recurrences.parameters())
    if method == "head loops that grow":
        assert "heads" in record["model"]["plan"]
    exported = export_hf(folder / run, folder / f"{run}-out", quiet=True)
    assert not exported.native


@pytest.mark.parametrize("name", SHAPES)
def test_masks_are_learned_on_the_weights_and_trained_with(folder, name):
    learned = ["learn-masks", "--from", name, "--rho", "0.5", "--granularity", "layer", "--set", "window=4"]
    trained(folder, *learned, "--run-dir", f"{name}-masks")
    masks = folder / f"{name}-masks" / "masks.json"
    assert sum(row[0] for row in json.loads(masks.read_text())["masks"]) == 2
    for start in (name, f"{name}-masks"):
        second = ["pretrain", "--arch", "consa", "--from", start, "--masks", masks, "--run-dir", f"{start}-stage2"]
        assert trained(folder, *second)["model"]["sparsity"] == 0.5


def test_windows_of_the_weights_stay_until_an_arch_is_named(folder):
    settings = COMMON | {"sliding_window": 8, "num_key_value_heads": 2}
    theirs(("mistral", MistralConfig, MistralForCausalLM, settings), True).save_pretrained(folder / "mistral")
    make_tokenizer("byte", []).save(str(folder / "mistral" / "tokenizer.json"))
    trained(folder, "pretrain", "--from", "mistral", "--run-dir", "as-it-is")
    trained(folder, "pretrain", "--from", "mistral", "--arch", "vanilla", "--run-dir", "full")
    kinds = [set(load_checkpoint(folder / run).attention_map.each_kind()) for run in ("as-it-is", "full")]
    assert kinds == [{Window(8)}, {Full()}]
    assert export_hf(folder / "as-it-is", folder / "as-it-is-out", quiet=True).architecture == "MistralForCausalLM"
    # What is left out is said, also where masks are learned.
    words = "--from mistral: 4 of its 4 layers have windows; arch {} replaces them by its own map"
    masks = ["learn-masks", "--rho", "0.5", "--set", "window=4"]
    for command, arch in ((masks, "consa"), (["pretrain", "--arch", "vanilla"], "vanilla")):
        done = hybridlab(*command, "--from", "mistral", "--steps", "1", *FAST, "--run-dir", f"{arch}-one", cwd=folder)
        assert done.returncode == 0 and words.format(arch) in done.stderr, done.stderr


def test_an_export_keeps_the_length_of_the_model_that_a_run_began_with(folder, tmp_path):
    def length(run, out):
        export_hf(folder / run, tmp_path / out, quiet=True)
        return json.loads((tmp_path / out / "config.json").read_text())["max_position_embeddings"]

    trained(folder, "pretrain", "--from", "llama", "--run-dir", "first")
    trained(folder, "pretrain", "--from", "first", "--run-dir", "second")
    assert length("first", "a") == length("second", "b") == 64
    (folder / "llama").rename(folder / "elsewhere")
    try:
        assert length("second", "c") == 32, "the length of its training, where nothing else is known"
    finally:
        (folder / "elsewhere").rename(folder / "llama")


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_transformers_grows(folder, name):
    grow = ["grow", "--method", "lidas", "--block", "2", "--from", name, "--layers", "6", "--steps", "5"]
    record = trained(folder, *grow, "--run-dir", f"{name}-grown")
    assert [event["kind"] for event in record["events"]] and record["config"]["shape"]["layers"] == 6
    export_hf(folder / f"{name}-grown", folder / f"{name}-grown-out", quiet=True)
    again = load_hf(folder / f"{name}-grown-out")
    assert again.shape.layers == 6 and again.shape.rope_scaling == load_hf(folder / name).shape.rope_scaling


@pytest.mark.parametrize("probe", ["entropy", "depth-score", "interventions", "contributions"])
def test_probes_measure_the_weights(folder, probe):
    for name in SHAPES:
        done = hybridlab("analyze", name, "--probe", probe, "--data", "text:words.txt", "--json", cwd=folder)
        assert json_of(done)


def test_an_exported_model_is_a_start_with_its_plan(folder):
    """Written with the modelling file, it is a model folder of hybridlab too."""
    looped = ["pretrain", "--from", "llama", "--set", "plan=[{op: loop_heads, layer: 1, heads: [0, 3]}]"]
    record = trained(folder, *looped, "--run-dir", "looped-heads")
    export_hf(folder / "looped-heads", folder / "looped-out", quiet=True)
    child = trained(folder, "pretrain", "--from", "looped-out", "--run-dir", "child")
    assert child["model"]["plan"] == record["model"]["plan"] and "heads 1,4" in child["model"]["plan"]
    assert child["parents"][0].startswith("hf-")
    tensors = [load_file(folder / run / "final" / "model.safetensors") for run in ("looped-heads", "child")]
    assert all((tensors[0][key] - tensors[1][key]).abs().max() < 1e-3 for key in tensors[0])
    with torch.no_grad():
        tokens = torch.arange(20)[None]
        one, two = load_hf(folder / "looped-out"), load_checkpoint(folder / "looped-heads")
        assert torch.equal(one(tokens).logits, two(tokens).logits)


def test_an_arch_that_divides_the_layers_into_fewer_says_how_to_keep_them(folder):
    done = hybridlab("pretrain", "--from", "llama", "--arch", "looped", *FAST, cwd=folder)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    advice = done.stderr.strip().partition("such as with --set ")[2].strip('"')
    assert advice == "recurrence={pre: 1, loop: 2, post: 1}"
    arguments = ["--arch", "looped", "--set", advice, "--run-dir", "divided"]
    assert "L2, L3" in trained(folder, "pretrain", "--from", "llama", *arguments)["model"]["plan"]
