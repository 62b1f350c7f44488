"""Runs from folders in the Hugging Face layout, and text that must be read with the tokenizer of the weights."""

import json
import shlex

import pytest

from hybridlab.config.loading import Layer
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.runs.compose import Request, compose
from hybridlab.training.store.folders import Runs
from tests.conftest import write_text
from tests.integration.test_cli import hybridlab, json_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with two texts and a random Llama of 100 positions, without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("pretrained")
    write_text(place / "words.txt")
    write_text(place / "other.txt", seed=3)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=100, **shape))
    model.save_pretrained(place / "llama", safe_serialization=True)
    make_tokenizer("byte", []).save(str(place / "byte.json"))
    return place


FAST = "--steps 2 --set training.tokens_per_step=256 --set evaluation.validation_windows=4"


def pretrain(folder, options):
    return hybridlab(*shlex.split(f"pretrain --data text:words.txt {FAST} {options}"), cwd=folder)


def test_a_folder_without_its_tokenizer_is_refused_until_one_is_named(folder):
    done = pretrain(folder, "--from llama --run-dir refused")
    assert done.returncode == 2 and not (folder / "refused").exists()
    assert "llama: this folder has no tokenizer.json" in done.stderr
    for number, tokenizer in enumerate(("file:byte.json", "byte")):
        done = pretrain(folder, f"--from llama --set data.tokenizer={tokenizer} --run-dir taken{number} --json")
        assert json_of(done)["config"]["data"]["tokenizer"].startswith(tokenizer[:4])


def test_pretrained_weights_take_the_settings_made_for_them_and_these_are_shown(folder):
    options = "--from llama --set data.tokenizer=byte --set training.tokens_per_step=16384 --run-dir shown --json"
    done = pretrain(folder, options)
    config = json_of(done)["config"]
    assert config["training"]["optimizer"]["lr"] == 2e-5 and config["size"] == "llama"
    assert config["training"]["seq_len"] == 64, "its 100 positions hold a power of two"
    line = next(line for line in done.stderr.splitlines() if "presets/training/finetune.yaml" in line)
    for part in ("lr 2e-05", "2 steps of 16,384 tokens", "sequences of 64", "validation on 256 tokens", "no window"):
        assert part in line
    child = pretrain(folder, "--from shown --set training.tokens_per_step=256 --run-dir child --json")
    assert json_of(child)["config"]["training"]["optimizer"]["lr"] == 2e-5 and "finetune" not in child.stderr


def test_the_validation_of_pretrained_weights_is_a_number_of_tokens(folder):
    def windows(*settings):
        options = Layer({"data": {"source": f"text:{folder}/words.txt", "tokenizer": "byte"}}, asked=True)
        request = Request(start=str(folder / "llama"), options=options, settings=settings)
        return compose(request, Runs(folder / "runs")).evaluation.validation_windows

    assert windows() == 65536 // 64 and windows("training.seq_len=16") == 65536 // 16
    assert windows("evaluation.validation_windows=7") == 7
    assert windows("evaluation.validation_tokens=200") == 200 // 64


def test_pretrained_weights_have_no_window_until_one_is_given(folder):
    done = pretrain(folder, "--from llama --set data.tokenizer=byte --arch all-window")
    assert done.returncode == 2 and "a map of kind window needs a window" in done.stderr
    assert "--set window=N" in done.stderr
    done = pretrain(folder, "--from llama --set data.tokenizer=byte --arch all-window --set window=8 --json")
    assert json_of(done)["config"]["map"]["window"] == 8 and ", window 8;" in done.stderr


def advice(done):
    assert done.returncode == 2 and "was trained with another tokenizer" in done.stderr, done.stderr
    return done.stderr.strip().rpartition("; ")[2]


def test_the_advice_about_another_tokenizer_works_where_it_is_given(folder):
    pretrain(folder, "--from llama --set data.tokenizer=byte --run-dir base")

    def command(text):
        return hybridlab(*shlex.split(text), cwd=folder)

    # pretrain: the setting that it names.
    wrong = advice(pretrain(folder, "--from base --set data.tokenizer=bpe:280 --run-dir a"))
    assert wrong.startswith("add --set data.tokenizer=file:")
    assert pretrain(folder, f"--from base --set data.tokenizer=bpe:280 --run-dir a {wrong[4:]}").returncode == 0
    # Shards cannot be read with another tokenizer: they are made again, with the command that it names.
    command("data prepare text:words.txt --tokenizer bpe:280 --out shards")
    for text in (
        "pretrain --data shards:shards --from base --run-dir b",
        "eval base --data shards:shards",
        "analyze base --probe entropy --data shards:shards",
    ):
        wrong = advice(command(text))
        assert wrong.startswith("make them again: hybridlab data prepare TEXT --tokenizer file:")
    again = wrong.split("hybridlab ")[1].replace("TEXT", "text:words.txt").replace("FOLDER", "again")
    assert command(again).returncode == 0 and command("eval base --data shards:again").returncode == 0
    # eval: other text is read with the run's own tokenizer, so that none can be named.
    assert advice(command("eval base --set data.tokenizer=bpe:280")) == "leave out --set data.tokenizer=bpe:280"
    assert command("eval base --set data.source=text:other.txt").returncode == 0
    refused = command("eval base --data shards:again --set data.tokenizer=byte")
    assert refused.returncode == 2 and "data.tokenizer has no effect on shards:" in refused.stderr


@pytest.mark.long
def test_a_change_of_the_text_since_the_run_is_named_with_advice_that_works(folder):
    write_text(folder / "changing.txt", seed=5)
    options = f"{FAST} --config small.yaml --run-dir changed"
    settings = {"shape": {"layers": 2, "width": 16, "heads": 2, "kv_heads": 2, "head_width": 8, "ffn_width": 24}}
    settings |= {"training": {"seq_len": 32}, "data": {"tokenizer": "bpe:280"}}
    (folder / "small.yaml").write_text(json.dumps(settings))
    done = hybridlab(*shlex.split(f"pretrain --data text:changing.txt {options}"), cwd=folder)
    assert done.returncode == 0, done.stderr
    write_text(folder / "changing.txt", characters=150_000, seed=6)
    for text in ("eval changed", "analyze changed --probe entropy"):
        wrong = advice(hybridlab(*shlex.split(text), cwd=folder))
        option = wrong.removeprefix("add ").partition(",")[0]
        assert hybridlab(*shlex.split(f"{text} {option}"), cwd=folder).returncode == 0


def test_a_grid_starts_from_a_folder_or_a_run_outside_of_the_folder_of_runs(folder):
    pretrain(folder, "--from llama --set data.tokenizer=byte --run-dir elsewhere/base")
    for start, runs, jobs in (("llama", "of_a_folder", "2"), ("elsewhere/base", "of_a_run", "1")):
        grid = f"ablate --from {start} --vary training.clip=1,2 --seeds 1 --data text:words.txt {FAST} --json"
        grid = shlex.split(f"{grid} --set data.tokenizer=byte --runs-dir {runs}")
        preview = json_of(hybridlab(*grid, "--dry-run", cwd=folder))
        assert [run["state"] for run in preview["runs"]] == ["new", "new"]
        assert not list((folder / runs).glob("*/run.json"))
        table = json_of(hybridlab(*grid, "--jobs", jobs, cwd=folder))
        assert len(table["rows"]) == 2 and table["rows"][1]["cells"]["loss"]["measured"] > 0
        if start == "llama":
            done = hybridlab("reproduce", table["id"], "--runs-dir", "new", "--dry-run", cwd=folder)
            assert done.returncode == 2 and "a run starts from a Hugging Face folder or a GGUF file" in done.stderr
