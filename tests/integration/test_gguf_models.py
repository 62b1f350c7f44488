"""Commands that begin with a GGUF file: a path, a folder with one, and one of the hub's cache."""

import json

import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer

from hybridlab import load_hf
from hybridlab.errors import UserError
from hybridlab.models.decoder import Transformer
from hybridlab.models.generate import Generated
from hybridlab.models.gguf import converted
from hybridlab.runs.generate import Prompt, continue_prompts
from hybridlab.training.store.folders import Runs
from tests.conftest import write_text
from tests.contract.test_gguf import model_of
from tests.gguf_files import Q8_0, assets, sentencepiece_keys, write_gguf  # noqa: F401
from tests.integration.test_cli import hybridlab, json_of

FAST = ["--steps", "2", "--set", "training.tokens_per_step=128", "--set", "training.seq_len=32"]
FAST += ["--set", "evaluation.validation_windows=2", "--data", "text:words.txt"]


@pytest.fixture
def place(tmp_path, assets, monkeypatch):  # noqa: F811
    """A working folder with a text and bit.gguf, which the hub's cache has too, in maker/bit."""
    write_text(tmp_path / "words.txt", 40_000)
    file = write_gguf(tmp_path / "bit.gguf", model_of("llama"), sentencepiece_keys()[0], Q8_0)
    root, revision = tmp_path / "cache" / "models--maker--bit", "0" * 40
    (root / "snapshots" / revision).mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "blobs" / "abc").write_bytes(file.read_bytes())
    (root / "snapshots" / revision / "bit.gguf").symlink_to("../../blobs/abc")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_run_starts_from_a_file_and_is_measured_generated_from_and_exported(place):
    done = hybridlab("pretrain", "--from", "bit.gguf", *FAST, "--run-dir", "run", "--json", cwd=place)
    record = json_of(done)
    assert done.stderr.count("converting it to float32, once") == 1
    assert record["config"]["size"] == "bit" and record["config"]["data"]["tokenizer"].endswith("/tokenizer.json")
    start = record["config"]["init"]["run"]
    assert start.startswith("hf-") and record["parents"] == [start]
    assert json.loads((place / "run" / "run.json").read_text())["places"][start] == str(place / "bit.gguf")
    for name in ("bit.gguf", ".", "hub:maker/bit/bit.gguf", "run"):
        assert json_of(hybridlab("generate", name, "the", "--max-new-tokens", "3", "--json", cwd=place))
    for name in ("bit.gguf", "run"):
        assert json_of(hybridlab("eval", name, "--data", "text:words.txt", "--json", cwd=place))
        assert json_of(hybridlab("export", name, f"{name}-hf", "--json", cwd=place))["native"]
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        ours, exported = (load_hf(place / name)(tokens).logits for name in ("bit.gguf", "bit.gguf-hf"))
    torch.testing.assert_close(ours, exported, atol=1e-5, rtol=1e-5)


def test_a_continuation_keeps_the_space_that_it_begins_with(place, monkeypatch):
    """SentencePiece's decoder takes the first space of a text away."""
    tokenizer = Tokenizer.from_file(str(converted(place / "bit.gguf") / "tokenizer.json"))
    words = [i for word in ("the", "cat") for i in tokenizer.encode(word, add_special_tokens=False).ids]
    tokens = torch.tensor([[tokenizer.token_to_id("<s>"), *words]])
    monkeypatch.setattr(Transformer, "generate", lambda *_, **__: Generated(tokens, [tokens.shape[1]]))
    (one,) = continue_prompts(str(place / "bit.gguf"), Runs(place / "runs"), [Prompt("the", "p")], 2, 1)
    assert one.continuation == " cat" and one.text == "the cat"


def test_a_prompt_stands_behind_bos_where_the_tokenizer_of_a_model_from_elsewhere_adds_it(place, monkeypatch):
    """As in transformers; not in a chat, whose template has its own, nor for a run, which was trained without."""
    hybridlab("pretrain", "--from", "bit.gguf", *FAST, "--run-dir", "run", cwd=place)
    tokenizer, read = Tokenizer.from_file(str(converted(place / "bit.gguf") / "tokenizer.json")), []

    def generate(_, batch, *__, lengths, **___):
        read.extend(row[:length].tolist() for row, length in zip(batch, lengths, strict=True))
        return Generated(batch, lengths)

    monkeypatch.setattr(Transformer, "generate", generate)
    plain = tokenizer.encode("<s>the", add_special_tokens=False).ids
    for name, chat in (("bit.gguf", False), ("bit.gguf", True), ("run", False)):
        prompt = "the" if chat else "<s>the"
        list(continue_prompts(str(place / name), Runs(place / "runs"), [Prompt(prompt, "p")], 2, 1, chat=chat))
    assert read == [[1, *plain], read[1], plain] and read[1][:2] != [1, 1]
    with pytest.raises(UserError, match="the text is empty"):
        list(continue_prompts(str(place / "bit.gguf"), Runs(place / "runs"), [Prompt("", "p")], 2, 1))


def test_a_run_goes_on_from_the_same_file_elsewhere_and_from_no_other(place):
    starts = [
        json_of(hybridlab("pretrain", "--from", name, *FAST, "--run-dir", "run", "--json", cwd=place))["hash"]
        for name in ("bit.gguf", "hub:maker/bit/bit.gguf")
    ]
    assert starts[0] == starts[1], "the content names it"
    write_gguf(place / "bit.gguf", model_of("llama"), sentencepiece_keys()[0])
    done = hybridlab("pretrain", "--from", "run", *FAST, "--run-dir", "second", cwd=place)
    assert done.returncode == 0, done.stderr
    again = hybridlab("pretrain", "--from", "bit.gguf", *FAST, "--run-dir", "run", cwd=place)
    assert again.returncode == 2, "the run folder is of other weights"


def test_mistakes_end_in_one_sentence(place):
    (place / "other.gguf").write_bytes(b"GGUF\3")
    cases = [
        (["generate", "none.gguf", "a"], "none.gguf: it cannot be read (No such file or directory); give the path"),
        (["generate", "other.gguf", "a"], "other.gguf: this GGUF file cannot be read (it ends too early"),
        (["pretrain", "--from", "."], "it holds 2 GGUF files; name one of them, such as"),
        (["eval", "hub:maker/bit/none.gguf"], "hub:maker/bit/none.gguf: the model has no such file"),
        (["pretrain", "--from", "bit.gguf", "--extend", "5"], "bit.gguf has no optimizer"),
    ]
    for arguments, message in cases:
        done = hybridlab(*arguments, cwd=place)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
