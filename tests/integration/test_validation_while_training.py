"""The validation loss during training, the best weights, and what every line of the log says about the machine."""

import json
import shutil
import time

import pytest
import torch

from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.evaluation import while_training
from hybridlab.models.export import load_checkpoint, read_model_config
from hybridlab.training.store.metrics import read_metrics
from tests.conftest import write_text
from tests.integration.test_engine import LEARN
from tests.training import GROWTH_TIMES, Stop, assert_resumes_exactly, assert_same_run, growing, train, weights

EVERY = {"every": 5, "every_windows": 6}
BEST = {**EVERY, "keep_best": True}


def curve(path):
    """step → validation loss, from a run's log."""
    lines = read_metrics(path / "metrics.jsonl")
    return {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}


@pytest.mark.parametrize("arch", ["vanilla", "consa", "sgt"])
def test_measuring_during_training_changes_no_bit_of_it(small, tmp_path, runs_dir, arch):
    def made(evaluation):
        if arch == "sgt":
            return growing(small, 12).model_copy(update={"evaluation": small(evaluation=evaluation).evaluation})
        return small(arch, evaluation=evaluation, **(LEARN if arch == "consa" else {}))

    for name, evaluation in (("plain", {}), ("measured", EVERY)):
        train(made(evaluation), tmp_path / name, runs_dir)
    one, two = weights(tmp_path / "plain"), weights(tmp_path / "measured")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not curve(tmp_path / "plain") and list(curve(tmp_path / "measured")) == [5, 10, 12]


def test_the_last_measurement_is_the_final_result_and_the_log_is_in_the_record(small, tmp_path, runs_dir):
    config = small(evaluation={"every": 5}, runtime={"log_every": 4})
    record = train(config, tmp_path / "a", runs_dir)
    logged = record.hooks["validation-log"]
    assert logged["steps"] == [5, 10, 12] and logged["loss"] == list(curve(tmp_path / "a").values())
    final = record.results.validation.loss
    assert logged["loss"][-1] == pytest.approx(final.value) and logged["stderr"][-1] == pytest.approx(final.stderr)
    assert logged["best_loss"] == min(logged["loss"])
    lines = read_metrics(tmp_path / "a" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [4, 5, 8, 10, 12]
    assert all("loss" in line and "lr" in line for line in lines)


def test_settings_without_an_effect_are_refused_and_defaults_keep_the_hash(small):
    for settings in (["evaluation.keep_best=true"], ["evaluation.every_windows=3"]):
        with pytest.raises(UserError, match="has no effect without `every`"):
            small(settings=settings)
    with pytest.raises(UserError, match="masks are being learned"):
        small("consa", evaluation=BEST, **LEARN)
    unset = ["evaluation.every=null", "evaluation.keep_best=false", "runtime.peak_flops=1e12"]
    assert run_hash(small(settings=unset)) == run_hash(small())
    assert run_hash(small(settings=["evaluation.every=5"])) != run_hash(small())


def test_the_best_weights_are_kept_as_a_model_of_their_own(small, tmp_path, runs_dir, monkeypatch):
    """The losses are made to have their minimum at step 10 of 12."""
    falling = iter([3.0, 2.0, 2.5])
    measured = while_training.validation

    def made_up(*arguments, **more):
        result = measured(*arguments, **more)
        return result.model_copy(update={"loss": result.loss.model_copy(update={"value": next(falling)})})

    monkeypatch.setattr(while_training, "validation", made_up)
    constant = {"schedule": {"name": "wsd", "decay_fraction": 0.0}}
    record = train(small(evaluation=BEST, training=constant), tmp_path / "a", runs_dir)
    saved = read_model_config(tmp_path / "a" / "best")
    assert saved.lineage["step"] == 10 == record.hooks["validation-log"]["best_step"]
    assert saved.lineage["validation_loss"] == 2.0 and saved.lineage["hash"] == record.hash
    assert (tmp_path / "a" / "best" / "tokenizer.json").is_file()
    assert not list((tmp_path / "a").glob(".best*"))
    train(small(training={"steps": 10, **constant}), tmp_path / "ten", runs_dir)
    best, ten = load_checkpoint(tmp_path / "a" / "best").state_dict(), weights(tmp_path / "ten")
    assert all(torch.equal(best[name], ten[name]) for name in ten)


@pytest.mark.long
@pytest.mark.parametrize("arch", ["vanilla", "sgt"])
@pytest.mark.parametrize("step", [5, 7, 11])
def test_a_resumed_run_has_the_same_curve_and_the_same_best(small, tmp_path, runs_dir, monkeypatch, arch, step):
    """The run is cut after best/ was written and before the next checkpoint."""
    evaluation = small(evaluation={**BEST, "every": 1}).evaluation
    config = (growing(small, 12) if arch == "sgt" else small()).model_copy(update={"evaluation": evaluation})
    train(config, tmp_path / "whole", runs_dir)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "whole" / "best" / name).read_bytes() == (tmp_path / "cut" / "best" / name).read_bytes()


def test_a_fading_model_is_kept_with_its_factors(small, tmp_path, runs_dir):
    evaluation = small(evaluation={**BEST, "every": 1, "every_windows": 8}).evaluation
    config = growing(small, 5, **{**GROWTH_TIMES, "fade_steps": 4})
    config = config.model_copy(update={"evaluation": evaluation})
    record = train(config, tmp_path / "a", runs_dir)
    best = load_checkpoint(tmp_path / "a" / "best")
    assert record.hooks["validation-log"]["best_step"] == 5
    (factors,) = best.factors.values()
    assert factors.tolist().count(1.0) == 2 and factors.tolist().count(0.75) == 2


@pytest.mark.parametrize("moment", ["before", "after the old one is gone"])
def test_a_kill_while_best_is_replaced_loses_nothing(small, tmp_path, runs_dir, monkeypatch, moment):
    config = small(evaluation={**BEST, "every": 1})
    train(config, tmp_path / "whole", runs_dir)
    calls = []

    def cut(folder, *arguments, **lineage):
        calls.append(folder)
        if len(calls) < 7:
            return save(folder, *arguments, **lineage)
        (folder.parent / ".best.partial").mkdir()
        if moment != "before":
            shutil.rmtree(folder)
        raise Stop

    save = while_training.save_trained
    with monkeypatch.context() as patch:
        patch.setattr(while_training, "save_trained", cut)
        with pytest.raises(Stop):
            train(config, tmp_path / "cut", runs_dir)
    train(config, tmp_path / "cut", runs_dir)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert read_model_config(tmp_path / "cut" / "best") == read_model_config(tmp_path / "whole" / "best")
    assert not list((tmp_path / "cut").glob(".best*"))


def test_every_line_has_speed_and_memory_and_the_record_leaves_them_out(small, tmp_path, runs_dir):
    record = train(small(), tmp_path / "a", runs_dir)
    for line in read_metrics(tmp_path / "a" / "metrics.jsonl"):
        assert line["tokens_per_second"] > 0 and line["memory_mb"] > 50 and line["mfu"] is None
    assert not {"tokens_per_second", "memory_mb", "mfu"} & set(record.history)
    train(small(runtime={"peak_flops": 1e12}), tmp_path / "b", runs_dir)
    for line in read_metrics(tmp_path / "b" / "metrics.jsonl"):
        per_second = line["tokens_per_second"] * line["flops"] / line["tokens"]
        assert line["mfu"] == pytest.approx(per_second / 1e12, rel=1e-3)


@pytest.mark.long
def test_time_for_measurements_is_no_time_of_training(small, tmp_path, runs_dir, monkeypatch):
    measured = while_training.validation

    def slow(*arguments, **more):
        time.sleep(1)
        return measured(*arguments, **more)

    monkeypatch.setattr(while_training, "validation", slow)
    started = time.perf_counter()
    record = train(small(evaluation=EVERY, runtime={"peak_flops": 1e12}), tmp_path / "a", runs_dir)
    besides = time.perf_counter() - started - record.seconds
    rates = [line["tokens_per_second"] for line in read_metrics(tmp_path / "a" / "metrics.jsonl")]
    assert besides > 3 and min(rates) > 256, "three measurements, of a second each"


def test_a_text_without_a_validation_window_is_refused_before_training(small, tmp_path, runs_dir):
    """Tasks alone need no text to train on."""
    text = tmp_path / "texts.jsonl"
    text.write_text("".join(json.dumps({"text": "word " * size}) + "\n" for size in (1, 3, 3)))
    mix = {"mix": {"text": 0.0, "retrieval": 1.0, "assignment": 0.0}}
    config = small(data={"source": f"jsonl:{text}", **mix}, evaluation=EVERY)
    with pytest.raises(UserError, match="evaluation.every: the validation part of .* has no 32 tokens in a row"):
        train(config, tmp_path / "a", runs_dir)
    assert not (tmp_path / "a").exists()


def test_each_source_of_a_mixture_is_measured_and_needs_a_window(small, tmp_path, runs_dir, text_file):
    write_text(tmp_path / "other.txt", 40_000, seed=3)
    sources = [
        {"source": f"text:{text_file}", "weight": 0.75},
        {"source": f"text:{tmp_path}/other.txt", "weight": 0.25},
    ]
    data = {"tokenizer": "byte", "sources": sources}
    record = train(small(data=data, evaluation=EVERY), tmp_path / "a", runs_dir)
    line = read_metrics(tmp_path / "a" / "metrics.jsonl")[-1]
    assert list(record.results.validation.sources) == ["words", "other"]
    parts = [line[f"validation_loss/{name}"] for name in ("words", "other")]
    assert line["validation_loss"] == pytest.approx(0.75 * parts[0] + 0.25 * parts[1])
    (tmp_path / "short.jsonl").write_text("".join(json.dumps({"text": "word " * size}) + "\n" for size in (1, 3, 3)))
    data["sources"] = [sources[0], {"source": f"jsonl:{tmp_path}/short.jsonl", "weight": 0.25}]
    config = small(data={**data, "mix": {"text": 0.0, "retrieval": 1.0, "assignment": 0.0}}, evaluation=EVERY)
    with pytest.raises(UserError, match="the validation part of jsonl:.*short.jsonl has no 32 tokens in a row"):
        train(config, tmp_path / "b", runs_dir)
