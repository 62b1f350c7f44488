"""The six commands of docs/real-model.md, read from the page, work on a tiny checkpoint, a small text and sizes."""

import re
import shlex

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.conftest import ROOT, write_text
from tests.contract.test_gguf import SMALL
from tests.gguf_files import Q8_0, assets, sentencepiece_keys, write_gguf  # noqa: F401
from tests.integration.test_cli import hybridlab

TEXT = (ROOT / "docs" / "real-model.md").read_text()
(BLOCK,) = re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [shlex.split(line, comments=True) for line in BLOCK.replace("\\\n", " ").splitlines()]
SMALLER = {
    "models/SmolLM2-135M-Instruct.Q4_1.gguf": "tiny.gguf",
    "embedded": "text:words.txt",
    "text:held-out.txt": "text:other.txt",
    "1024": "32",
    "240": "80",
    "128": "4",
    "64": "4",
    "60": "4",
}
"""What is written instead of the checkpoint, the data and the sizes."""


def smaller(word):
    """A word of the page for the tiny model."""
    setting, equals, value = word.rpartition("=")
    return setting + equals + SMALLER.get(value, value)


def test_the_page_has_six_commands():
    assert [words[:2] for words in COMMANDS] == [
        ["hybridlab", name] for name in ("eval", "learn-masks", "pretrain", "eval", "generate", "export")
    ]
    numbers = re.findall(r"# (\d)\. ", BLOCK)
    assert numbers == list("123456") == re.findall(r"^(\d)\. \*\*", TEXT, re.MULTILINE)
    used = {word.rpartition("=")[2] for words in COMMANDS for word in words}
    assert set(SMALLER) <= used, "every size is replaced"


@pytest.fixture
def place(tmp_path, assets):  # noqa: F811
    """A working folder with a text to train on and another one to measure."""
    write_text(tmp_path / "words.txt", 40_000)
    write_text(tmp_path / "other.txt", 10_000, seed=1)
    return tmp_path


def checkpoint(folder, layers):
    """Write a tiny checkpoint of two KV heads in each layer."""
    keys, vocabulary = sentencepiece_keys()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL | {"num_hidden_layers": layers}, vocab_size=vocabulary))
    write_gguf(folder / "tiny.gguf", model, keys, Q8_0)


def test_they_lead_from_a_checkpoint_to_a_hybrid_that_transformers_opens(place):
    checkpoint(place, layers=3)  # half of six heads, which are no whole layers
    shown = []
    for words in COMMANDS:
        shown.append(hybridlab(*map(smaller, words[1:]), cwd=place))
        assert shown[-1].returncode == 0, (words, shown[-1].stderr)
    before, masks, _, after, text, exported = (done.stdout for done in shown)
    losses = [re.findall(r"validation loss \(nats/token\) +([\d.]+) +[\d.]+ +(\d+)", one) for one in (before, after)]
    assert all(n == "4" for ((_, n),) in losses) and losses[0] != losses[1]
    assert "the masks have not settled: " in shown[1].stderr and "in all (at most 320)" in shown[1].stderr
    assert re.search(r"settled +True", masks) and "131,072" in masks
    assert text.startswith("def read_lines(path):") and "trust_remote_code=True" in exported
    model = AutoModelForCausalLM.from_pretrained(place / "hybrid-hf", trust_remote_code=True)
    assert model.own.structure.map.sparsity() == 0.5


def test_masks_by_layer_leave_as_a_class_of_transformers(place):
    checkpoint(place, layers=2)
    for words in (COMMANDS[1], COMMANDS[2], COMMANDS[5]):
        by_layer = ["--granularity", "layer"] if words[1] == "learn-masks" else []
        done = hybridlab(*map(smaller, words[1:]), *by_layer, cwd=place)
        assert done.returncode == 0, (words, done.stderr)
    assert "MinistralForCausalLM: transformers' own class" in done.stdout
