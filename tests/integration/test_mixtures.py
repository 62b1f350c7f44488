"""Runs on several sources, and the commands that prepare and name them."""

import gzip
import json
import os
import time

import pytest
import yaml

from hybridlab.evaluation.results import LossResult
from hybridlab.statistics import mean_and_error
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.training import assert_resumes_exactly, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with two texts and settings that mix them."""
    folder = tmp_path_factory.mktemp("mixed")
    write_text(folder / "words.txt", 60_000)
    lines = [json.dumps({"body": f"{i} and {i * i}, " * 20}) for i in range(120)]
    (folder / "sums.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    sources = [{"source": "text:words.txt", "weight": 0.75}]
    sources.append({"source": "jsonl:sums.jsonl.gz", "weight": 0.25, "field": "body"})
    settings = {"shape": SMALL_SHAPE, "training": SMALL_TRAINING, "evaluation": {"validation_windows": 16}}
    settings |= {"data": {"tokenizer": "byte", "sources": sources}}
    (folder / "mixed.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture(scope="module")
def record(folder):
    return json_of(hybridlab("pretrain", "--config", "mixed.yaml", "--run-dir", "run", "--json", cwd=folder))


def test_the_record_has_every_source_with_its_share_and_its_loss(record):
    words, sums = record["data"]["sources"]
    assert (words["name"], words["weight"], sums["name"]) == ("words", 0.75, "sums")
    assert words["read"] + sums["read"] == record["tokens"] and abs(words["read"] / record["tokens"] - 0.75) < 0.02
    assert record["data"]["train_tokens"] == words["train_tokens"] + sums["train_tokens"]
    whole = LossResult.model_validate(record["results"]["validation"])
    parts = whole.sources
    assert [len(parts[name].windows) for name in ("words", "sums")] == [12, 4]
    wanted = 0.75 * parts["words"].loss.value + 0.25 * parts["sums"].loss.value
    assert whole.loss.value == pytest.approx(wanted) and whole.loss.n == 16
    assert whole.loss.value == pytest.approx(mean_and_error(whole.windows).value, abs=1e-4)
    errors = [share * parts[name].loss.stderr for share, name in ((0.75, "words"), (0.25, "sums"))]
    assert whole.loss.stderr == pytest.approx(sum(e**2 for e in errors) ** 0.5)
    low, high = sorted(part.bits_per_byte.value for part in parts.values())
    assert low < whole.bits_per_byte.value < high and parts["words"].loss.value != parts["sums"].loss.value


def test_windows_of_sources_with_other_weights_are_not_compared(folder, record):
    settings = yaml.safe_load((folder / "mixed.yaml").read_text())
    for source, weight in zip(settings["data"]["sources"], (0.5, 0.5), strict=True):
        source["weight"] = weight
    (folder / "halves.yaml").write_text(yaml.safe_dump(settings))
    train = ["pretrain", "--config", "halves.yaml", "--steps", "2", "--set", "training.schedule.warmup_steps=1"]
    other = json_of(hybridlab(*train, "--run-dir", "halves", "--json", cwd=folder))
    assert other["data"]["fingerprint"] == record["data"]["fingerprint"]
    second = json_of(hybridlab("runs", "compare", "run", "halves", "--json", cwd=folder))["losses"][1]
    assert second["difference"] is None and second["not_compared"] == "the weights of their sources differ"


def test_eval_measures_the_mixture_again_and_another_one(folder, record):
    assert json_of(hybridlab("eval", "run", "--json", cwd=folder))["validation"] == record["results"]["validation"]
    write_text(folder / "more.txt", 60_000, seed=3)
    other = ["--data", "text:words.txt@0.5", "--data", "text:more.txt@0.5"]
    shown = json_of(hybridlab("eval", "run", *other, "--json", cwd=folder))
    assert list(shown["validation"]["sources"]) == ["words", "more"]
    alone = json_of(hybridlab("eval", "run", "--data", "text:more.txt", "--json", cwd=folder))
    assert alone["validation"]["sources"] == {} and alone["validation"]["loss"]["n"] == 16
    shown = hybridlab("eval", "run", cwd=folder).stdout
    assert "on words" in shown and "on sums" in shown


def test_a_run_on_a_mixture_resumes_to_the_same_bits(small, tmp_path, runs_dir, text_file, monkeypatch):
    write_text(tmp_path / "short.txt", 30_000, seed=4)
    sources = [{"source": f"text:{text_file}", "weight": 0.4}, {"source": f"text:{tmp_path / 'short.txt'}"}]
    sources[1]["weight"] = 0.6
    config = small(data={"sources": sources}, evaluation={"validation_windows": 4})
    config = config.model_copy(update={"training": config.training.model_copy(update={"tokens_per_step": 4096})})
    train(config, tmp_path / "whole", runs_dir)
    record = assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 7)
    assert record.data.sources[1].epochs > 1 > record.data.sources[0].epochs


def test_a_child_of_a_mixture_inherits_it_or_takes_another_text(folder, record):
    child = ["pretrain", "--from", "run", "--steps", "3", "--json", "--run-dir"]
    same = json_of(hybridlab(*child, "same", cwd=folder))
    assert [source["name"] for source in same["data"]["sources"]] == ["words", "sums"]
    other = json_of(hybridlab(*child, "other", "--data", "text:words.txt", cwd=folder))
    assert other["data"]["sources"] is None and other["config"]["data"]["tokenizer"].endswith(
        "run/final/tokenizer.json"
    )
    mixed = ["--data", "text:words.txt@0.5", "--data", "embedded@0.5", "--set", "data.max_documents=20"]
    mixed = json_of(hybridlab(*child, "mixed", *mixed, cwd=folder))
    assert [source["name"] for source in mixed["data"]["sources"]] == ["words", "embedded"]


def test_clean_keeps_the_data_of_a_mixture(folder, record):
    data = folder / "runs" / "data"
    hybridlab("pretrain", "--config", "mixed.yaml", "--steps", "2", cwd=folder)
    for path in data.iterdir():
        os.utime(path, (time.time() - 7200,) * 2)
    before = {path.name for path in data.glob("*/")}
    words, sums = (source["fingerprint"] for source in record["data"]["sources"])
    done = hybridlab("runs", "clean", "--data", "--yes", cwd=folder)
    assert done.returncode == 0, done.stderr
    kept = {json.loads(path.read_text())["fingerprint"] for path in data.glob("*/meta.json")}
    assert kept == {words, sums} and before


def test_prepared_sources_are_named_for_training(folder):
    sources = ["text:words.txt@0.6", "jsonl:sums.jsonl.gz@0.4"]
    failed = hybridlab("data", "prepare", *sources, "--out", "both", cwd=folder)
    assert failed.returncode == 2 and "it has: body); name it with --field NAME" in failed.stderr
    assert not (folder / "both").exists() and not list(folder.glob(".both*"))
    texts = ["text:words.txt@0.6", "embedded@0.4", "--max-documents", "8", "--workers", "2"]
    done = hybridlab("data", "prepare", *texts, "--out", "both", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "trained on 2 sources" in done.stderr and "tokens/s" in done.stderr
    assert "--data shards:both/words@0.6 --data shards:both/embedded@0.4" in done.stdout
    shown = json_of(hybridlab("data", "inspect", "both", "--json", cwd=folder))
    assert set(shown["sources"]) == {"words", "embedded"} and shown["sources"]["words"]["vocabulary"] <= 896


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "text:words.txt", "--data", "embedded"], "each needs its weight; write text:words.txt@0.5"),
        (["--data", "text:words.txt@0.5", "--data", "embedded@0.4"], "add up to 0.9; they must add up to 1"),
        (["--data", "text:words.txt@0", "--data", "embedded@1"], "greater than 0"),
        (["--data", "text:words.txt@0.5", "--data", "text:words.txt@0.5"], "is there twice"),
        (["--data", "text:no.txt@0.5", "--data", "text:words.txt@0.5"], "no.txt: there is no such file"),
        (["--data", "jsonl:sums.jsonl.gz@0.5", "--data", "text:words.txt@0.5"], "`field: NAME` beside this one"),
        (["--data", "jsonl:sums.jsonl.gz"], "name it with --set data.field=NAME"),
    ],
)
def test_mistakes_in_mixtures_are_one_sentence(folder, arguments, message):
    done = hybridlab("pretrain", *arguments, cwd=folder)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_analyze_says_how_to_name_the_field(folder, record):
    done = hybridlab("analyze", "run", "--probe", "entropy", "--data", "jsonl:sums.jsonl.gz", cwd=folder)
    assert done.returncode == 2 and "data prepare SOURCE --field NAME" in done.stderr
