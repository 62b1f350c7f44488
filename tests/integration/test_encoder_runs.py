"""Runs of encoders: masked tokens, resuming, tasks, other architectures, and what does not apply to them."""

import json

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM
from typer.testing import CliRunner

from hybridlab.analysis.probe import run_probe
from hybridlab.cli.training import _kv_bytes
from hybridlab.config.structures import final_structure
from hybridlab.data.batches import task_generator
from hybridlab.data.preparing import corpus_for
from hybridlab.data.tasks import make_row
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import UserError
from hybridlab.evaluation.causality import NOT_APPLICABLE
from hybridlab.evaluation.measure import measure
from hybridlab.evaluation.text import answers
from hybridlab.lab.cli.main import app
from hybridlab.models import loss
from hybridlab.models.export import load_checkpoint
from hybridlab.registry import PROBES
from hybridlab.training import engine
from hybridlab.training.objective import MaskedTokens, make_objective
from hybridlab.training.store.metrics import read_metrics
from tests.conftest import SMALL_SHAPE
from tests.training import assert_resumes_exactly, assert_survives_kills, logged, train, weights

SHAPE = {**SMALL_SHAPE, "family": "bert", "max_positions": 64}
RECALL = {"text": 0.5, "retrieval": 0.25, "assignment": 0.25}


@pytest.fixture
def encoder(small):
    """A function: arch and changes → a configuration of a small encoder."""

    def make(arch="bert", **parts):
        data = {"tokenizer": "byte+mask", **parts.pop("data", {})}
        return small(arch, shape={**SHAPE, **parts.pop("shape", {})}, data=data, **parts)

    return make


def test_an_encoder_trains_and_its_record_says_what_it_is(encoder, tmp_path, runs_dir):
    config = encoder(training={"steps": 60, "optimizer": {"lr": 3e-3}})
    record = train(config, tmp_path / "run", runs_dir)
    assert record.history["loss"][-1] < record.history["loss"][0] - 1
    text = record.results.validation
    assert record.results.causality == {"probe": NOT_APPLICABLE}
    assert text.perplexity.value is None and text.bits_per_byte.value is None
    assert text.pseudo_perplexity.value == pytest.approx(torch.tensor(text.loss.value).exp().item(), rel=1e-5)
    assert record.model.kv_bytes is None and record.kernels == {"full": "sdpa"}
    shown = CliRunner().invoke(app, ["eval", str(tmp_path / "run"), "--runs-dir", str(runs_dir)])
    assert shown.exit_code == 0 and "pseudo-perplexity" in shown.stdout and NOT_APPLICABLE in shown.stdout
    assert "bits per byte" not in shown.stdout


@pytest.mark.parametrize(("arch", "step"), [("bert", 3), ("bert", 7), ("saobp-high", 5), ("eigen-reg", 5)])
def test_a_stopped_run_goes_on_with_the_same_bits(encoder, tmp_path, runs_dir, monkeypatch, arch, step):
    config = encoder(arch, data={"mix": RECALL})
    train(config, tmp_path / "whole", runs_dir)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step)


def test_a_killed_run_goes_on_with_the_same_bits(encoder, tmp_path, runs_dir):
    assert_survives_kills(encoder(training={"steps": 16}), tmp_path, runs_dir, [5])


def test_micro_batches_give_the_same_gradient(encoder, tmp_path, runs_dir):
    for rows in (8, 3):
        train(encoder(runtime={"micro_batch_rows": rows}), tmp_path / str(rows), runs_dir)
    one, two = (
        [line["loss"] for line in read_metrics(tmp_path / name / "metrics.jsonl") if "loss" in line]
        for name in ("8", "3")
    )
    assert one == pytest.approx(two, rel=1e-4)
    a, b = weights(tmp_path / "8"), weights(tmp_path / "3")
    # A bias of keys moves all scores of a query alike: its gradient is rounding, which Adam makes as large as others.
    differ = [name for name in a if not torch.allclose(a[name], b[name], atol=1e-4)]
    assert all(name.endswith("attention.k.bias") for name in differ), differ


def test_validation_masks_the_same_tokens_for_every_run(encoder, tmp_path, runs_dir):
    """Seeds differ, and so does the number of windows measured at once, but a model has one loss."""
    records = [train(encoder(training={"seed": seed, "steps": 2}), tmp_path / str(seed), runs_dir) for seed in (0, 1)]
    assert records[0].results.validation.loss.value != records[1].results.validation.loss.value
    config = encoder(training={"seed": 5, "steps": 2})
    corpus = corpus_for(config.data, runs_dir / "data")
    model = load_checkpoint(tmp_path / "0")
    assert measure(model, config, corpus, "fp32").validation == records[0].results.validation


def test_answers_of_tasks_are_read_where_they_are_masked(encoder, tmp_path, runs_dir):
    record = train(encoder(data={"mix": RECALL}), tmp_path / "run", runs_dir)
    assert record.results.tasks["retrieval"].all.n > 0 and record.results.tasks["assignment"].chance == 0.2
    config = encoder(data={"mix": RECALL})
    corpus = corpus_for(config.data, runs_dir / "data")
    model, objective = load_checkpoint(tmp_path / "run"), make_objective(config, corpus)
    rows = [make_row("assignment", 32, task_generator(1, i)) for i in range(4)]
    right, losses = answers(model, rows, corpus.vocab, objective=objective)
    first = rows[0]
    tokens = torch.from_numpy(first.tokens + corpus.vocab)
    masked = tokens.clone()
    masked[first.answers] = objective.mask
    with torch.no_grad():
        scores = model(masked[None]).logits[0]
    for number, (place, options) in enumerate(zip(first.answers, first.options, strict=True)):
        among = scores[place][torch.from_numpy(options + corpus.vocab)].log_softmax(-1)
        true = (options + corpus.vocab).tolist().index(tokens[place].item())
        assert losses[number] == pytest.approx(-among[true].item(), abs=1e-5)
        assert bool(right[number]) == (among.argmax().item() == true)


@pytest.mark.parametrize("arch", ["rule-swa", "consa", "sgt", "midas", "looped", "entropy-reg", "eigen-reg"])
def test_other_architectures_train_on_encoders(arch, encoder, tmp_path, runs_dir):
    own = {
        "rule-swa": {"shape": {"layers": 4}},
        "consa": {"shape": {"layers": 4}},
        "sgt": {"controller": {"start_step": 2, "interval": 2, "fade_steps": 2, "max_layers": 1}},
        "midas": {"shape": {"layers": 4}, "controller": {"block": 2}},
        "looped": {"shape": {"layers": 6}},
    }.get(arch, {})
    record = train(encoder(arch, **own), tmp_path / "run", runs_dir)
    assert record.results.validation.pseudo_perplexity.value > 1
    model = load_checkpoint(tmp_path / "run")
    with torch.no_grad():
        assert model(torch.zeros(1, 9, dtype=torch.long)).logits.isfinite().all()


def test_probes_measure_an_encoder_or_say_why_not(encoder, tmp_path, runs_dir):
    config = encoder(data={"mix": RECALL}, evaluation={"task_window": 4})
    train(config, tmp_path / "run", runs_dir)
    model, corpus = load_checkpoint(tmp_path / "run"), corpus_for(config.data, runs_dir / "data")
    for probe in ("knockout", "kept-mass", "entropy", "interventions", "blocks"):
        rows = {"block": 1} if probe == "blocks" else {"rows": 2}
        assert "skipped" not in run_probe(probe, model, corpus, 32, config, **rows), probe
    refused = {probe for probe in PROBES.names(installed=False) if PROBES.get(probe).needs_decoder}
    assert refused == {
        "answers",
        "attention-maps",
        "last-token",
        "depth-score",
        "effects",
        "loops",
        "loss",
        "reach",
        "routers",
        "tuned-lens",
    }
    for probe in refused:
        assert "tokens of an encoder see both sides" in run_probe(probe, model, corpus, 32, config)["skipped"]
    shown = CliRunner().invoke(
        app, ["analyze", str(tmp_path / "run"), "--probe", "tuned-lens", "--runs-dir", str(runs_dir)]
    )
    assert isinstance(shown.exception, UserError) and "the tokens of an encoder see both sides" in str(shown.exception)


def test_an_encoder_starts_from_another(encoder, tmp_path, runs_dir):
    train(encoder(), runs_dir / "parent", runs_dir)
    command = ["pretrain", "--from", str(runs_dir / "parent"), "--steps", "4", "--run-dir", str(tmp_path / "child")]
    done = CliRunner().invoke(app, [*command, "--runs-dir", str(runs_dir)])
    assert done.exit_code == 0, done.output
    assert not load_checkpoint(tmp_path / "child").structure.causal


def test_what_an_encoder_cannot_do_is_refused(encoder, small, tmp_path, runs_dir):
    train(encoder(), runs_dir / "refusing", runs_dir)
    with pytest.raises(UserError, match="generate: an encoder sees the tokens on both sides"):
        app(["generate", str(runs_dir / "refusing"), "the cat", "--runs-dir", str(runs_dir)], standalone_mode=False)
    with pytest.raises(UserError, match=r"has no \[MASK\]; use one that has it"):
        train(encoder(data={"tokenizer": "byte"}), tmp_path / "no-mask", runs_dir)
    with pytest.raises(UserError, match="sequences of 128 tokens are longer than shape.max_positions 64"):
        encoder(training={"seq_len": 128})
    with pytest.raises(UserError, match="shape.output: a head that gives classes is not trained on text"):
        train(encoder(shape={"output": {"kind": "classes", "labels": 2}}), tmp_path / "classes", runs_dir)


def test_the_objective_of_a_run_is_that_of_its_family(encoder, small, runs_dir):
    for config, name in ((encoder(), "masked-tokens"), (small(), "next-token")):
        assert make_objective(config, corpus_for(config.data, runs_dir / "data")).name == name
    assert isinstance(make_objective(encoder(), corpus_for(encoder().data, runs_dir / "data")), MaskedTokens)


def test_a_run_starts_from_a_pretrained_encoder(tmp_path, runs_dir, text_file):
    torch.manual_seed(0)
    size = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40}
    folder = tmp_path / "pretrained"
    BertForMaskedLM(BertConfig(vocab_size=300, max_position_embeddings=64, **size)).save_pretrained(folder)
    make_tokenizer("byte+mask", []).save(str(folder / "tokenizer.json"))
    start = ["pretrain", "--from", str(folder), "--data", f"text:{text_file}", "--steps", "2"]
    fast = ["--set", "training.tokens_per_step=256", "--set", "evaluation.validation_windows=4"]
    done = CliRunner().invoke(app, [*start, *fast, "--run-dir", str(tmp_path / "run"), "--runs-dir", str(runs_dir)])
    assert done.exit_code == 0, done.output
    assert "pseudo-perplexity" in done.stdout and load_checkpoint(tmp_path / "run").shape.family == "bert"
    measured = ["eval", str(folder), "--data", f"text:{text_file}", "--set", "evaluation.validation_windows=4"]
    done = CliRunner().invoke(app, [*measured, "--runs-dir", str(runs_dir), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["causality"] == {"probe": NOT_APPLICABLE}


@pytest.mark.parametrize("arch", ["vanilla", "bert"])
def test_a_large_vocabulary_trains_as_a_small_one_does(arch, small, encoder, tmp_path, runs_dir, monkeypatch):
    """Its loss is computed in chunks, in a batch that is divided as well."""
    parts = {"training": {"precision": "fp64"}, "runtime": {"micro_batch_rows": 3}}
    config = encoder(**parts) if arch == "bert" else small(arch, **parts)
    train(config, tmp_path / "whole", runs_dir)
    monkeypatch.setattr(engine, "LARGE_VOCABULARY", 1)
    monkeypatch.setitem(loss.LOGITS_AT_ONCE, "cpu", config.shape.vocab * 21)
    train(config, tmp_path / "chunks", runs_dir)
    one, other = (logged(tmp_path / name) for name in ("whole", "chunks"))
    for name in ("loss", "gradient_norm"):
        assert [line[name] for line in one] == pytest.approx([line[name] for line in other], rel=1e-9)


def test_an_encoder_has_no_cache_that_masks_could_save(encoder):
    assert _kv_bytes(final_structure(encoder())) == {}
