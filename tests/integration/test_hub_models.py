"""Models of the hub, from a cache in the hub's layout and without a network; and what the hub can answer instead."""

import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors

from hybridlab import load_hf
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import UserError
from hybridlab.models.huggingface import hub_path, is_hub_name
from tests.conftest import write_text
from tests.contract.test_parity import EVEN, SHARED, theirs
from tests.integration.test_cli import hybridlab, json_of

FAST = ["--steps", "2", "--set", "training.tokens_per_step=128", "--set", "training.seq_len=32"]
FAST += ["--set", "evaluation.validation_windows=2"]


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A working folder with a text; the hub's cache holds a small Llama in shards, `maker/tiny-llama`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    root, revision = tmp_path / "cache" / "models--maker--tiny-llama", "0" * 40
    model = theirs(("llama", LlamaConfig, LlamaForCausalLM, {**SHARED, **EVEN, "vocab_size": 300}), True)
    model.save_pretrained(root / "snapshots" / revision, max_shard_size="20KB")
    make_tokenizer("byte", []).save(str(root / "snapshots" / revision / "tokenizer.json"))
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    write_text(tmp_path / "words.txt", 40_000)
    return tmp_path, model


def test_a_model_of_the_hub_is_read_with_and_without_the_prefix(cached):
    _, model = cached
    tokens = torch.arange(20)[None]
    for name in ("hub:maker/tiny-llama", "maker/tiny-llama"):
        with torch.no_grad():
            torch.testing.assert_close(load_hf(name)(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-5)


def test_every_command_takes_a_model_of_the_hub_with_its_tokenizer(cached):
    folder, _ = cached
    text = ["--data", "text:words.txt"]
    done = hybridlab("pretrain", "--from", "maker/tiny-llama", *text, *FAST, "--run-dir", "run", "--json", cwd=folder)
    config = json_of(done)["config"]
    assert config["size"] == "tiny-llama" and config["data"]["tokenizer"].endswith("tokenizer.json")
    again = hybridlab("pretrain", "--from", "hub:maker/tiny-llama", *text, *FAST, "--run-dir", "run", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert json_of(hybridlab("generate", "hub:maker/tiny-llama", "the", "--max-new-tokens", "3", "--json", cwd=folder))
    assert json_of(hybridlab("analyze", "maker/tiny-llama", "--probe", "entropy", *text, "--json", cwd=folder))
    assert json_of(hybridlab("export", "maker/tiny-llama", "out", "--json", cwd=folder))["native"]


def test_folders_and_runs_come_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    found = [is_hub_name(name) for name in ("runs/first", "base/best", "base", "./a/b", "a/b/c", "/a/b", "a b/c")]
    assert not any(found)
    assert is_hub_name("Qwen/Qwen3-0.6B") and is_hub_name("hub:runs/first")


def answered(error, status):
    """An error of the hub, as its client raises it."""
    return error("said no", response=SimpleNamespace(headers={}, request=None, status_code=status))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (lambda: answered(errors.GatedRepoError, 403), "hub:a/b: this model is gated; accept its terms at https://"),
        (lambda: answered(errors.RepositoryNotFoundError, 404), "hub:a/b: the hub has no such model"),
        (lambda: answered(errors.HfHubHTTPError, 500), r"hub:a/b: it cannot be fetched \(said no"),
        (lambda: errors.OfflineModeIsEnabled("offline"), "hub:a/b: the hub cannot be reached"),
        (lambda: errors.LocalEntryNotFoundError("nothing"), "hub:a/b: the hub cannot be reached"),
        (lambda: ConnectionError("reset\nby peer"), r"hub:a/b: it cannot be fetched \(reset\)"),
        (lambda: RuntimeError(""), r"hub:a/b: it cannot be fetched \(RuntimeError\)"),
    ],
)
def test_what_the_hub_answers_instead_is_one_sentence(error, message, monkeypatch):
    def refuse(*_, **__):
        raise error()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(UserError, match=message) as told:
        hub_path("hub:a/b")
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match="there is no such folder"):
        hub_path("a/b")


def test_mistakes_on_the_command_line_end_in_one_sentence(cached):
    folder, _ = cached
    cases = [
        (["generate", "hub:maker/other", "a"], "hub:maker/other: the hub cannot be reached, and this model is not in"),
        (
            ["pretrain", "--from", "maker/other"],
            "maker/other: there is no such folder; hub:maker/other: the hub cannot",
        ),
        (["generate", "hub:other", "a"], "a model of the hub is called OWNER/NAME"),
    ]
    for arguments, message in cases:
        done = hybridlab(*arguments, cwd=folder)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_model_without_safetensors_is_refused(cached):
    folder, _ = cached
    (snapshot,) = (folder / "cache" / "models--maker--tiny-llama" / "snapshots").iterdir()
    for file in snapshot.glob("*.safetensors*"):
        file.unlink()
    with pytest.raises(UserError, match=r"no \*.safetensors file"):
        load_hf("maker/tiny-llama")
    shutil.rmtree(snapshot)
    with pytest.raises(UserError, match="cannot be reached"):
        load_hf("maker/tiny-llama")
