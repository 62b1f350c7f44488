"""Reasoning primitives in runs: mixed into training, asked at the end and in between, shown, and refused."""

import json

import numpy as np
import pytest
import torch

from hybridlab.config.resolve import run_hash
from hybridlab.data.primitives import items, items_digest, solved_examples
from hybridlab.errors import UserError
from hybridlab.evaluation.results import Results
from hybridlab.lab.reporting.seeds import measured
from hybridlab.models.export import load_checkpoint
from hybridlab.runs.record import number_at, read_record
from hybridlab.training.store.metrics import read_metrics
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.training import assert_resumes_exactly, train

ASKED = {"tasks": ["assignment-basic", "copying-real"], "items": 12, "shots": 1}


@pytest.fixture
def mixed(small, text_file):
    """A function: settings of the evaluation → a run on text and primitives."""

    def make(**evaluation):
        sources = [{"source": f"text:{text_file}", "weight": 0.5}, {"source": "primitives:7:200", "weight": 0.5}]
        data = {"source": None, "sources": sources, "tokenizer": "bpe:400"}
        return small(data=data, evaluation={"choices": ASKED, **evaluation})

    return make


def test_a_run_on_text_and_primitives_has_their_accuracy_in_its_record(mixed, small, tmp_path, runs_dir):
    record = train(mixed(), tmp_path / "a", runs_dir)
    assert [source.name for source in record.data.sources] == ["words", "primitives"]
    assert list(record.results.validation.sources) == ["words", "primitives"]
    assert list(record.results.choices) == ["assignment-basic", "copying-real"]
    result = record.results.choices["copying-real"]
    assert result.accuracy.n == result.loss.n == 12 and (result.chance, result.shots) == (0.1, 1)
    assert result.training_tokens == 32 < result.prompt_tokens
    assert result.digest == items_digest([*solved_examples("copying-real", 1, 0), *items("copying-real", 12, 0)])
    assert number_at(record, "results.choices.assignment-basic.accuracy") == (
        record.results.choices["assignment-basic"].accuracy
    )
    cell = measured({0: record}, "results.choices.copying-real.accuracy")
    assert (cell.value, cell.over) == (result.accuracy.value, "answers")
    both = [record.results.choices[name].accuracy.value for name in ASKED["tasks"]]
    assert number_at(record, "results.choices_mean").value == pytest.approx(np.mean(both))
    final = read_record(tmp_path / "a" / "record.json")
    assert final.results == record.results
    assert run_hash(mixed()) != run_hash(mixed(choices=None))


def test_accuracy_and_loss_are_those_of_an_outside_computation(mixed, tmp_path, runs_dir):
    """Each option by itself: no cache, no batch, the tokenizers library, and torch's cross-entropy."""
    from tokenizers import Tokenizer

    record = train(mixed(), tmp_path / "a", runs_dir)
    model = load_checkpoint(tmp_path / "a")
    tokenizer = Tokenizer.from_file(str(tmp_path / "a" / "final" / "tokenizer.json"))
    for name in ASKED["tasks"]:
        (example,) = solved_examples(name, 1, 0)
        right, losses = [], []
        for item in items(name, 12, 0):
            prompt = f"{example.prompt} {example.options[example.answer]}\n\n{item.prompt}"
            start, scores = len(tokenizer.encode(prompt).ids), []
            for option in item.options:
                tokens = torch.tensor([tokenizer.encode(f"{prompt} {option}").ids])
                with torch.no_grad():
                    logits = model(tokens).logits[:, start - 1 : -1]
                scores.append(-float(torch.nn.functional.cross_entropy(logits[0], tokens[0, start:], reduction="sum")))
            right.append(int(np.argmax(scores)) == item.answer)
            losses.append(-float(torch.tensor(scores).log_softmax(0)[item.answer]))
        result = record.results.choices[name]
        assert result.accuracy.value == pytest.approx(np.mean(right))
        assert result.loss.value == pytest.approx(np.mean(losses), abs=1e-4)


def test_questions_at_steps_do_not_change_training_and_come_back_after_a_stop(mixed, tmp_path, runs_dir, monkeypatch):
    plain = train(mixed(choices=None), tmp_path / "plain", runs_dir)
    config = mixed(at_steps=[0, 12])
    record = train(config, tmp_path / "whole", runs_dir)
    assert record.results.validation == plain.results.validation and plain.results.choices == {}
    assert record.results.at["12"].choices == record.results.choices != record.results.at["0"].choices
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 7)


def test_trackers_get_the_accuracies(mixed, tmp_path, runs_dir):
    from hybridlab.runs.run import _final_numbers

    record = train(mixed(), tmp_path / "a", runs_dir)
    numbers = _final_numbers(record)
    assert numbers["final/copying-real_accuracy"] == record.results.choices["copying-real"].accuracy.value
    assert read_metrics(tmp_path / "a" / "metrics.jsonl")


def test_learned_positions_are_refused_before_training(small, tmp_path, runs_dir):
    shape = {**SMALL_SHAPE, "family": "gpt2", "max_positions": 64, "kv_heads": 4, "tied_embeddings": True}
    config = small(shape=shape, evaluation={"choices": ASKED}, map={"kind": "full"})
    with pytest.raises(
        UserError, match=r"assignment-basic: a prompt with its shots has \d+ tokens, and this model has"
    ):
        train(config, tmp_path / "a", runs_dir)
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


def test_a_record_from_before_there_were_questions_can_be_read(mixed, tmp_path, runs_dir):
    old = json.loads(train(mixed(choices=None), tmp_path / "a", runs_dir).results.model_dump_json())
    del old["choices"]
    results = Results.model_validate(old)
    assert results.choices == {} and results.choices_mean.value is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with one trained run, on text alone."""
    folder = tmp_path_factory.mktemp("choices")
    write_text(folder / "words.txt", 60_000)
    settings = {"shape": SMALL_SHAPE, "training": SMALL_TRAINING, "data": {"tokenizer": "byte"}}
    (folder / "small.yaml").write_text(json.dumps({**settings, "evaluation": {"validation_windows": 8}}))
    done = hybridlab("pretrain", "--data", "text:words.txt", "--config", "small.yaml", "--run-dir", "base", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


FEW = ["--set", "evaluation.choices.items=6", "--set", "evaluation.choices.shots=1"]


def test_eval_asks_a_finished_run(folder):
    names = "copying-real,assignment-math"
    shown = hybridlab("eval", "base", "--choices", names, *FEW, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert "copying-real, 1 shots (chance 0.1)" in shown.stdout and "assignment-math, loss" in shown.stdout
    assert "trained on 32" in shown.stdout, "prompts that are longer than in training are named"
    same = json_of(hybridlab("eval", "base", "--choices", names, *FEW, "--json", cwd=folder))
    assert (
        list(same["choices"]) == ["copying-real", "assignment-math"] and same["choices"]["copying-real"]["shots"] == 1
    )
    every = json_of(hybridlab("eval", "base", "--choices", "all", *FEW, "--json", cwd=folder))
    assert len(every["choices"]) == 5 and every["choices"]["copying-real"] == same["choices"]["copying-real"]
    assert json_of(hybridlab("eval", "base", "--json", cwd=folder))["choices"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choices", "copying-rael"], "'copying-rael' is no primitive; did you mean 'copying-real'?"),
        (["--choices", ""], "is no primitive"),
        (["--set", "evaluation.choices.tasks=[copying-rael]"], "did you mean 'copying-real'?"),
        (["--set", "evaluation.choices.tasks=[]"], "evaluation.choices.tasks"),
        (["--set", "evaluation.choices.tasks=[copying-real,copying-real]"], "twice"),
        (["--choices", "all", "--set", "evaluation.choices.items=0"], "evaluation.choices.items"),
        (["--set", "evaluation.choices.items=5"], "evaluation.choices.tasks"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(folder, arguments, message):
    done = hybridlab("eval", "base", *arguments, cwd=folder)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
