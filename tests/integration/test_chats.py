"""Fine-tuning on chats: a run learns the answers, and is measured, resumed, opened, exported and asked."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

import hybridlab
from hybridlab.analysis.probe import spaced_windows
from hybridlab.data.finetune.chats import PLAIN
from hybridlab.data.preparing import corpus_of
from hybridlab.data.tokenizers import end_token
from hybridlab.errors import UserError
from hybridlab.evaluation.lm_eval_model import special_tokens_of
from hybridlab.messages import heard_by
from hybridlab.runs.compose import Request, compose
from hybridlab.runs.evaluate import analyze_run, evaluate_run
from hybridlab.runs.generate import Prompt, continue_prompts
from hybridlab.training.objective import ExampleRows
from hybridlab.training.store.folders import Runs
from tests.conftest import SMALL_SHAPE
from tests.integration.test_finetuning import composed, decoder, encoder, parent, written  # noqa: F401
from tests.training import assert_resumes_exactly, train

CAPITALS = {"France": "Paris", "Italy": "Rome", "Peru": "Lima", "Japan": "Tokyo", "Cuba": "Havana"}


def chats(path, count=40):
    """Questions that all have their answers, as messages and as prompts in turn."""
    rows = []
    for number in range(count):
        country, capital = list(CAPITALS.items())[number % len(CAPITALS)]
        asked, answer = f"Where? {country}", f"In {capital}."
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        rows.append({"messages": messages} if number % 2 else {"prompt": asked, "answer": answer})
    return written(path, rows)


def learning(start, path, *settings, steps=60):
    """The configuration of a run that can learn these chats."""
    own = ["training.seq_len=64", "runtime.log_every=20", "runtime.checkpoint_every=1000", *settings]
    return composed(start, "sft", *own, data=path, steps=steps, lr=1e-2)


def prompts_only(monkeypatch):
    """Training learns what the users say in the place of the answers."""
    rows = ExampleRows.rows

    def inverted(source, step, part=slice(None)):
        encoded, chosen = rows(source, step, part)
        targets = np.full_like(encoded.targets, -1)
        for number, row in enumerate(encoded.rows):
            asked = np.flatnonzero(encoded.targets[number, 1 : len(row)] < 0) + 1
            targets[number, asked] = row[asked]
        return replace(encoded, targets=targets), chosen

    monkeypatch.setattr(ExampleRows, "rows", inverted)


@pytest.mark.long
def test_a_run_learns_the_answers_and_not_from_the_prompts(decoder, tmp_path, monkeypatch):  # noqa: F811
    path = chats(tmp_path / "a.jsonl")
    record = train(learning(decoder, path, "evaluation.at_steps=[0]"), tmp_path / "run", decoder.parent)
    base, tuned = record.results.at["0"].validation.loss, record.results.validation.loss
    assert base.value > 4 and tuned.value < 0.5 and tuned.n == base.n > 20
    found = record.results.finetune
    assert found.metrics["accuracy"].value > 0.9 and found.baseline["accuracy"].value < 0.3
    assert record.results.causality["largest_change"] < 1e-4
    prompts_only(monkeypatch)
    control = train(learning(decoder, path, "training.seed=1"), tmp_path / "control", decoder.parent)
    assert control.results.validation.loss.value > 2


def test_a_model_of_chats_is_opened_asked_measured_and_exported(decoder, text_file, tmp_path):  # noqa: F811
    from transformers import AutoTokenizer

    path = chats(tmp_path / "a.jsonl")
    config = learning(decoder, path, steps=2)
    assert config.shape.output is None and config.training.tokens_per_step == 4 * 64
    record = train(config, tmp_path / "run", decoder.parent)
    runs = Runs(decoder.parent)
    assert evaluate_run(str(tmp_path / "run"), runs, None, []) == record.results
    other = evaluate_run(str(tmp_path / "run"), runs, str(chats(tmp_path / "b.jsonl", 10)), [])
    assert other.finetune.examples == {"validation": 10}
    text = evaluate_run(str(tmp_path / "run"), runs, f"text:{text_file}", ["evaluation.validation_windows=2"])
    assert text.finetune is None and text.validation.perplexity.value > 1
    with pytest.raises(
        UserError, match="other.jsonl: there is no such file or folder; this model is fine-tuned on sft"
    ):
        evaluate_run(str(tmp_path / "run"), runs, "other.jsonl", [])
    assert (tmp_path / "run" / "final" / "chat_template.jinja").read_text() == PLAIN
    asked = [Prompt("Where? Peru", "here")]
    (made,) = continue_prompts(str(tmp_path / "run"), runs, asked, 4, 1, chat=True)
    assert made.text.startswith("User: Where? Peru\nAssistant:") and made.prompt == "Where? Peru"
    hybridlab.export_hf(tmp_path / "run", tmp_path / "out", quiet=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "User: a\nAssistant: b<|end|>"


def test_probes_of_text_read_no_chats(decoder, text_file, tmp_path):  # noqa: F811
    config = learning(decoder, chats(tmp_path / "a.jsonl"), "evaluation.probes=[interventions]", steps=1)
    skipped = train(config, tmp_path / "run", decoder.parent).results.probes["interventions"]["skipped"]
    assert skipped.endswith("and this run reads examples; add --data text:PATH")
    runs, options = Runs(decoder.parent), {"rows": "2"}
    assert "loss" in str(analyze_run(str(tmp_path / "run"), runs, "interventions", f"text:{text_file}", options))


def test_a_model_of_chats_is_measured_on_text_as_the_run_that_it_comes_from(decoder, text_file, tmp_path):  # noqa: F811
    path, source, heard = chats(tmp_path / "a.jsonl"), f"text:{text_file}", []
    base = evaluate_run(str(decoder), Runs(decoder.parent), None, []).validation
    # With such a small rate the weights stay as they are.
    settings = {"training.seq_len": 64, "training.optimizer.lr": 1e-12, "training.precision": "fp32"}
    settings |= {"finetune.batch": 4, "runtime.threads": 1}
    options = {"data": path, "steps": 1, "settings": settings, "runs_dir": tmp_path / "runs", "quiet": True}
    first = hybridlab.finetune(decoder, "sft", **options)
    again = hybridlab.finetune(first.path, "sft", **options)
    for tuned in (first, again):
        found = evaluate_run(str(tuned.path), Runs(tmp_path / "empty"), source, []).validation
        assert found.windows == pytest.approx(base.windows, abs=1e-4)
    (first.path / "run.json").rename(first.path / "gone.json")
    with heard_by(heard.append):
        alone = evaluate_run(str(again.path), Runs(tmp_path / "empty"), source, ["evaluation.validation_windows=2"])
    assert any(line.endswith(f"{first.hash}, which is no run here: measured on all of the text") for line in heard)
    assert alone.validation.loss.n == 2 and alone.validation.windows != pytest.approx(base.windows, abs=1e-4)


def test_the_files_beside_the_tokenizer_of_a_folder_go_into_the_model_and_its_export(decoder, tmp_path):  # noqa: F811
    hybridlab.export_hf(decoder, tmp_path / "hf", quiet=True)
    beside = {name: tmp_path / "hf" / name for name in ("chat_template.jinja", "tokenizer_config.json")}
    beside["chat_template.jinja"].write_text(PLAIN + "{# another #}")
    path, settings = chats(tmp_path / "a.jsonl"), {"training.seq_len": 64, "finetune.batch": 4}
    tuned = hybridlab.finetune(
        tmp_path / "hf", "sft", data=path, steps=1, settings=settings, runs_dir=decoder.parent, quiet=True
    )
    hybridlab.export_hf(tuned, tmp_path / "out", quiet=True)
    for name, path in beside.items():
        assert (tuned.path / "final" / name).read_text() == path.read_text()
        assert (tmp_path / "out" / name).read_text() == path.read_text()


def test_generated_texts_end_where_the_template_ends_an_answer(decoder, tmp_path):  # noqa: F811
    hybridlab.export_hf(decoder, tmp_path / "hf", quiet=True)
    tokenizer = Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    end = end_token(tokenizer)
    tokenizer.add_special_tokens(["<turn>"])
    tokenizer.save(str(tmp_path / "hf" / "tokenizer.json"))
    turn = tokenizer.token_to_id("<turn>")
    for name, template, ends in (("other", PLAIN.replace("eos_token", "'<turn>'"), [end, turn]), ("same", PLAIN, end)):
        (tmp_path / "hf" / "chat_template.jinja").write_text(template)
        hybridlab.export_hf(tmp_path / "hf", tmp_path / name, quiet=True)
        written = json.loads((tmp_path / name / "generation_config.json").read_text())
        assert written["eos_token_id"] == ends
        for config in ("config.json", "generation_config.json"):  # which say it, and a run has none
            (tmp_path / name / config).unlink()
        assert special_tokens_of(tmp_path / name, tokenizer).ends == ({end, turn} if name == "other" else {end})


def test_a_run_on_chats_goes_on_from_one(decoder, tmp_path):  # noqa: F811
    path = chats(tmp_path / "a.jsonl")
    first = hybridlab.finetune(
        decoder, "sft", data=path, steps=1, settings={"training.seq_len": 64}, runs_dir=decoder.parent, quiet=True
    )
    again = composed(first.path, "sft", "training.seq_len=64", data=path, steps=1)
    record = train(again, tmp_path / "again", decoder.parent)
    assert record.parents == [first.hash]


def test_micro_batches_do_not_change_the_loss_of_chats(decoder, tmp_path):  # noqa: F811
    path, losses = chats(tmp_path / "a.jsonl"), []
    for rows in (4, 1):
        settings = ("training.seq_len=64", f"runtime.micro_batch_rows={rows}")
        record = train(composed(decoder, "sft", *settings, data=path, steps=3), tmp_path / str(rows), decoder.parent)
        losses.append(record.history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_stopped_run_on_chats_goes_on_to_the_same_bits(decoder, tmp_path, monkeypatch):  # noqa: F811
    settings = ("training.seq_len=64", "evaluation.at_steps=[2]", "evaluation.every=2")
    config = composed(decoder, "sft", *settings, data=chats(tmp_path / "a.jsonl"), steps=6)
    train(config, tmp_path / "whole", decoder.parent)
    assert_resumes_exactly(config, tmp_path, decoder.parent, monkeypatch, 3)


def test_loops_over_chunks_read_a_chat_in_each_row(tmp_path_factory, text_file, tmp_path):
    recurrence = {"pre": 1, "loop": 1, "post": 1, "chunks": [2, 1]}
    parts = {"shape": SMALL_SHAPE, "data": {"tokenizer": "byte"}, "recurrence": recurrence}
    start = parent(tmp_path_factory, text_file, "spiral-b", "tiny", **parts)
    config = composed(start, "sft", "training.seq_len=64", data=chats(tmp_path / "a.jsonl"), steps=2)
    lines = []
    with heard_by(lines.append):
        record = train(config, tmp_path / "run", start.parent)
    assert record.steps == 2 and record.results.validation.loss.n > 0
    assert any("each in a row of its own, as this model cannot keep them apart in one" in line for line in lines)


@pytest.mark.parametrize(
    "start, settings, message",
    [
        ("encoder", [], "the family bert is an encoder, which continues no text; fine-tune it on a task with labels"),
        ("decoder", None, "the task sft has no dataset of its own; give a file with --data PATH"),
        ("decoder", ["shape.output={kind: spans}"], "the task sft has the output head of tokens"),
        ("decoder", ["finetune.stride=3"], "stride has no effect on the task sft"),
    ],
)
def test_what_chats_cannot_be_trained_with_is_one_sentence(start, settings, message, tmp_path, request):
    data = None if settings is None else chats(tmp_path / "a.jsonl")
    with pytest.raises(UserError) as error:
        composed(request.getfixturevalue(start), "sft", *(settings or ()), data=data, steps=1)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_model_with_classes_is_not_trained_on_chats(decoder, tmp_path):  # noqa: F811
    path = written(tmp_path / "a.jsonl", [{"sentence": f"a {n}", "label": n % 2} for n in range(8)])
    settings = {"training.seq_len": 32}
    made = hybridlab.finetune(
        decoder, "sst2", data=path, steps=1, settings=settings, runs_dir=decoder.parent, quiet=True
    )
    with pytest.raises(UserError, match="gives classes instead of tokens"):
        composed(made.path, "sft", data=chats(tmp_path / "b.jsonl"), steps=1)


def test_python_and_the_command_line_ask_for_the_same_run(decoder, tmp_path, capsys):  # noqa: F811
    from hybridlab.lab.cli.main import app

    path, runs = chats(tmp_path / "a.jsonl"), str(decoder.parent)
    options = ["--task", "sft", "--data", str(path), "--steps", "1", "--runs-dir", runs, "--set", "training.seq_len=64"]
    app(["finetune", str(decoder), *options, "--json"], standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    made = hybridlab.finetune(
        decoder, "sft", data=path, steps=1, settings={"training.seq_len": 64}, runs_dir=runs, quiet=True
    )
    assert shown["hash"] == made.hash and shown["results"]["finetune"]["task"] == "sft"


def test_the_advice_about_text_for_a_model_of_chats_works(decoder, tmp_path, text_file):  # noqa: F811
    path = chats(tmp_path / "a.jsonl")
    tuned = hybridlab.finetune(
        decoder, "sft", data=path, steps=1, settings={"training.seq_len": 64}, runs_dir=decoder.parent, quiet=True
    )
    runs = Runs(decoder.parent)
    with pytest.raises(UserError, match="it was fine-tuned on sft and has no text to go on with; name one with --data"):
        compose(Request(start=str(tuned.path)), runs)
    config = compose(Request(start=str(tuned.path), data=f"text:{text_file}"), runs)
    assert config.finetune is None and config.init.run == tuned.hash
    with pytest.raises(UserError, match="has no 64 tokens in a row; add --data embedded or text:PATH"):
        spaced_windows(tuned.model(), replace(corpus_of(tuned.config, decoder.parent), validation=[np.zeros(3)]), 64, 1)
