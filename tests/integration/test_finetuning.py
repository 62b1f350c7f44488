"""Fine-tuning: every kind of task trains from a run's weights, is measured, saved, opened, resumed and killed."""

import json
import os
import random
from pathlib import Path

import pytest
import torch

import hybridlab
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.data.preparing import corpus_of
from hybridlab.errors import UserError
from hybridlab.models.export import load_checkpoint
from hybridlab.runs.compose import Request, compose, task_layer
from hybridlab.runs.evaluate import evaluate_run
from hybridlab.training.objective import Batch, make_objective
from hybridlab.training.store.folders import Runs
from hybridlab.training.world import World
from tests.conftest import ROOT, SMALL_SHAPE, SMALL_TRAINING
from tests.training import assert_resumes_exactly, assert_survives_kills, train, weights

ENCODER = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 2, "head_width": 16, "ffn_width": 64, "max_positions": 64}
SHARED = Path(os.environ.get("HYBRIDLAB_TASK_FILES", ROOT.parent / "shared" / "data"))


def parent(tmp_path_factory, text_file, arch, size, **parts):
    """A run of two steps; its folder."""
    runs = tmp_path_factory.mktemp("tuned")
    base = {"training": {**SMALL_TRAINING, "steps": 2}, "evaluation": {"validation_windows": 2}}
    base |= {"data": {"source": f"text:{text_file}"}, "runtime": {"threads": 1}}
    train(resolve(arch, size, layers=[Layer(base), Layer(parts)]), runs / "parent", runs)
    return runs / "parent"


@pytest.fixture(scope="session")
def encoder(tmp_path_factory, text_file):
    """A trained encoder whose first layer has windows in one head."""
    layers = [[{"kind": "window", "width": 4}, {"kind": "full"}], [{"kind": "full"}, {"kind": "full"}]]
    parts = {"shape": ENCODER, "data": {"tokenizer": "byte+mask"}, "map": {"kind": "heads", "layers": layers}}
    return parent(tmp_path_factory, text_file, "bert", "bert-tiny", **parts)


@pytest.fixture(scope="session")
def decoder(tmp_path_factory, text_file):
    """A trained decoder with a loop over one head."""
    plan = [{"op": "loop_heads", "layer": 1, "heads": [0]}]
    parts = {"shape": SMALL_SHAPE, "data": {"tokenizer": "byte"}, "plan": plan}
    return parent(tmp_path_factory, text_file, "vanilla", "tiny", **parts)


def composed(start, task, *settings, **options):
    """The configuration of `hybridlab finetune` on short rows."""
    usual = ["training.seq_len=32", "finetune.batch=4", "training.precision=fp32", "runtime.threads=1"]
    usual += ["runtime.log_every=1", "runtime.checkpoint_every=2"]
    command = Request(
        start=str(start), options=task_layer(task, **options), settings=[*usual, *settings], keep_map=True, task=task
    )
    return compose(command, Runs(Path(start).parent))


def written(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def sentences(path, count=40):
    return written(path, [{"sentence": f"word {i} {'up' if i % 2 else 'down'}", "label": i % 2} for i in range(count)])


def task_file(folder, task):
    """A small file of any task."""
    rng = random.Random(task)
    entries = []
    for i in range(20):
        a, b = f"cat {rng.randint(0, 9)}", f"dog {rng.randint(0, 9)}"
        entries.append(
            {
                "sst2": {"sentence": a, "label": i % 2},
                "mnli": {"premise": a, "hypothesis": b, "label": i % 3},
                "stsb": {"sentence1": a, "sentence2": b, "score": i / 4},
                "race": {"article": f"{a} {i}", "question": "Is _ ?", "options": list("wxyz"), "answer": "ABCD"[i % 4]},
                "squad": {
                    "question": a,
                    "context": f"Here are {i} and {b} and many other words for two windows.",
                    "answers": {"text": [str(i)], "answer_start": [9]},
                },
            }[task]
        )
    return written(folder / f"{task}.jsonl", entries)


KINDS = ["sst2", "mnli", "stsb", "race", "squad"]
MAIN = {"sst2": "accuracy", "mnli": "accuracy", "stsb": "pearson", "race": "accuracy", "squad": "f1"}


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("start", ["encoder", "decoder"])
def test_a_run_learns_a_task_and_is_opened_again(start, task, tmp_path, request):
    base = request.getfixturevalue(start)
    config = composed(base, task, data=task_file(tmp_path, task), epochs=1.0)
    examples = len(corpus_of(config, tmp_path).encoded["train"])
    assert config.training.steps == -(-examples // 4)
    rows = 16 if task == "race" else 4
    assert config.training.tokens_per_step == rows * 32 and config.training.rows == rows
    record = train(config, tmp_path / "run", base.parent)
    found = record.results.finetune
    assert found.task == task and list(found.metrics)[0] == MAIN[task] == list(found.baseline)[0]
    assert sum(found.examples.values()) == found.metrics[MAIN[task]].n == 2
    assert record.results.validation.loss.value > 0 and record.results.validation.perplexity.value is None
    assert record.results.causality["probe"].startswith("not applicable")
    assert record.tokens == config.training.steps * rows * 32
    again = evaluate_run(str(tmp_path / "run"), Runs(base.parent), None, [])
    assert again == record.results
    model = hybridlab.load_checkpoint(tmp_path / "run")
    there = load_checkpoint(base)
    assert model.plan == there.plan and model.attention_map == there.attention_map
    logits = model(torch.ones(3, 8, dtype=torch.long)).logits
    wanted = {"sst2": (3, 2), "mnli": (3, 3), "stsb": (3, 1), "race": (3, 1), "squad": (3, 8, 2)}
    assert tuple(logits.shape) == wanted[task]


def test_the_weights_are_those_of_the_run_but_for_a_head_from_the_seed(encoder, tmp_path):
    path, before = sentences(tmp_path / "a.jsonl"), weights(encoder)
    heads = []
    for seed in (1, 2):
        config = composed(encoder, "sst2", data=path, steps=1, seed=seed, lr=1e-30)
        train(config, tmp_path / str(seed), encoder.parent)
        after = weights(tmp_path / str(seed))
        same = {name for name in after if name in before and torch.equal(after[name], before[name])}
        assert {name for name in after if not name.startswith("head.")} == same
        heads.append(after["head.linear.weight"])
    assert not torch.equal(*heads)


@pytest.mark.parametrize("task, step", [("race", 3), ("squad", 5), ("stsb", 2)])
def test_a_stopped_run_goes_on_to_the_same_bits(encoder, tmp_path, monkeypatch, task, step):
    config = composed(encoder, task, "evaluation.at_steps=[2]", data=task_file(tmp_path, task), steps=6)
    record = train(config, tmp_path / "whole", encoder.parent)
    assert record.results.at["2"].finetune.task == task and record.results.at["2"].validation.loss.n > 0
    assert_resumes_exactly(config, tmp_path, encoder.parent, monkeypatch, step)


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_bits(encoder, tmp_path):
    config = composed(encoder, "sst2", data=sentences(tmp_path / "a.jsonl"), steps=300)
    assert_survives_kills(config, tmp_path, encoder.parent, steps=[20, 90])


@pytest.mark.parametrize("task", KINDS)
def test_micro_batches_do_not_change_the_loss(encoder, tmp_path, task):
    losses = []
    for rows in (None, 5, 1):
        setting = f"runtime.micro_batch_rows={'null' if rows is None else rows}"
        config = composed(encoder, task, setting, data=task_file(tmp_path, task), steps=3, lr=1e-3)
        record = train(config, tmp_path / str(rows), encoder.parent)
        losses.append(record.history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0] == pytest.approx(losses[2], rel=1e-4)


def test_the_options_of_a_question_stay_in_one_part():
    rows = torch.arange(24).view(12, 2)
    batch = Batch({"input_ids": rows}, torch.zeros(3, 1), torch.ones(3, 1), rows=4)
    assert len(batch) == 3
    for most, sizes in ((None, [3]), (12, [3]), (11, [2, 1]), (4, [1, 1, 1]), (1, [1, 1, 1])):
        parts = list(batch.parts(most))
        assert [len(part) for part in parts] == sizes
        assert all(len(part.inputs["input_ids"]) == 4 * len(part) for part in parts)
        assert torch.equal(torch.cat([part.inputs["input_ids"] for part in parts]), rows)


def test_every_epoch_reads_every_example_once(encoder, tmp_path):
    config = composed(encoder, "sst2", data=sentences(tmp_path / "a.jsonl", 20), epochs=2.0)
    corpus = corpus_of(config, tmp_path)
    source = make_objective(config, corpus).source(config, corpus)
    count = len(corpus.encoded["train"])
    drawn = [number for step in range(9) for number in source.rows(step)[1]]
    assert count == 18 and config.training.steps == 9
    assert sorted(drawn[:count]) == sorted(drawn[count:]) == list(range(count)) and drawn[:count] != drawn[count:]
    assert source.rows(3)[1] == drawn[12:16]
    for size in (2, 3):
        parts = [source.rows(3, World(rank, size).part)[1] for rank in range(size)]
        assert [parts[place % size][place // size] for place in range(4)] == drawn[12:16]
    other = composed(encoder, "sst2", data=tmp_path / "a.jsonl", epochs=2.0, seed=1)
    assert make_objective(other, corpus).source(other, corpus).rows(0)[1] != drawn[:4]


def exclusive(path, count, seed):
    """One of a and b, and one of c and d, among other letters: the label is 1 for a with c, and for b with d."""
    rng, entries = random.Random(seed), []
    for _ in range(count):
        first, second = rng.choice("ab"), rng.choice("cd")
        letters = [rng.choice("uvwxyz") for _ in range(5)] + [first, second]
        rng.shuffle(letters)
        entries.append({"sentence": "".join(letters), "label": int((first == "a") == (second == "c"))})
    return written(path, entries)


@pytest.mark.long
@pytest.mark.parametrize("start", ["encoder", "decoder"])
def test_a_tiny_model_learns_a_label_of_two_letters(start, tmp_path, request):
    base = request.getfixturevalue(start)
    config = composed(
        base,
        "sst2",
        "training.seq_len=12",
        "finetune.batch=64",
        "runtime.log_every=50",
        "runtime.checkpoint_every=1000",
        data=exclusive(tmp_path / "a.jsonl", 3000, 1),
        validation=exclusive(tmp_path / "b.jsonl", 400, 2),
        steps=400,
        lr=3e-3,
    )
    record = train(config, tmp_path / "run", base.parent)
    found = record.results.finetune
    assert found.metrics["accuracy"].value > 0.9 and found.baseline["accuracy"].value < 0.6
    assert found.metrics["accuracy"].n == 400 and found.metrics["accuracy"].stderr < 0.02


# ---- settings ----


def test_a_fine_tuned_run_takes_nothing_of_text_from_its_parent(encoder, tmp_path):
    config = composed(encoder, "sst2", data=sentences(tmp_path / "a.jsonl"), steps=2)
    assert config.data.source is None and config.data.tokenizer == f"file:{encoder / 'final' / 'tokenizer.json'}"
    assert config.arch == "bert" and config.shape.output.labels == 2 and config.training.skip_steps is None
    assert config.finetune.epochs is None and config.evaluation.validation_windows == 320
    stored = resolve("vanilla", "bert-tiny", layers=[Layer(config.model_dump(mode="json", exclude={"arch", "size"}))])
    assert run_hash(stored) == run_hash(config)
    first = composed(encoder, "sst2", data=tmp_path / "a.jsonl", epochs=1.0)
    assert first.training.steps == 9 and run_hash(first) != run_hash(
        composed(encoder, "sst2", data=tmp_path / "a.jsonl")
    )


def test_the_length_of_a_preset_is_cut_to_the_positions_of_the_model(encoder, tmp_path):
    options = task_layer("sst2", sentences(tmp_path / "a.jsonl"))
    config = compose(Request(start=str(encoder), options=options, task="sst2"), Runs(encoder.parent))
    assert config.training.seq_len == 64 == config.shape.max_positions and config.finetune.batch == 32
    with pytest.raises(UserError, match="sequences of 128 tokens are longer than shape.max_positions 64"):
        composed(encoder, "sst2", "training.seq_len=128", data=tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "options, settings, message",
    [
        ({"task": "sst"}, [], "'sst' is unknown; did you mean 'sst2'"),
        ({"data": "none.tsv"}, [], "--data none.tsv: there is no such file"),
        ({"epochs": 1.0, "steps": 2}, [], "--epochs and --steps"),
        ({"epochs": 1.0}, ["training.steps=3"], "finetune.epochs chooses the steps"),
        ({}, ["data.source=text:a.txt"], "data.source=text:a.txt: data.source has no effect on fine-tuning"),
        ({}, ["training.tokens_per_step=4096"], "set that instead"),
        ({}, ["evaluation.length_factors=[2]"], "evaluation.length_factors has no effect"),
        ({}, ["shape.output={kind: spans}"], "leave shape.output out"),
        ({}, ["finetune.epochs=null"], "give --epochs or --steps"),
        ({}, ["finetune.stride=3"], "stride has no effect"),
        ({}, ["finetune.batches=3"], "finetune.batches is not a known setting"),
        ({}, ["evaluation.at_steps=[99999]"], "there is no step 99999"),
        ({"lr": -1.0}, [], "lr"),
    ],
)
def test_what_does_not_fit_is_one_sentence(encoder, tmp_path, options, settings, message):
    options = {"task": "sst2", "data": sentences(tmp_path / "a.jsonl")} | options
    with pytest.raises(UserError) as error:
        composed(encoder, options.pop("task"), *settings, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_pretrain_with_a_task_is_the_same_run(encoder, tmp_path):
    path = sentences(tmp_path / "a.jsonl")
    made = composed(encoder, "sst2", data=path, steps=2)
    settings = ["training.seq_len=32", "finetune.batch=4", "training.precision=fp32", "finetune.task=sst2"]
    options = Layer({"training": {"steps": 2}}, {("training", "steps"): "--steps"})

    def pretrain(start=encoder, arch="vanilla"):
        asked = Request(arch, start=str(start), options=options, settings=[*settings, f"finetune.data={path}"])
        return compose(asked, Runs(encoder.parent))

    assert run_hash(pretrain()) == run_hash(made)
    with pytest.raises(UserError, match="--arch has no effect on fine-tuning"):
        pretrain(arch="sgt")
    with pytest.raises(UserError, match="leave @2 out"):
        pretrain(f"{encoder}@2")


@pytest.mark.long
@pytest.mark.parametrize("task", ["sst2", "sft"])
def test_the_guess_is_that_of_the_training_part_whatever_is_measured(decoder, tmp_path, task):
    def answers(path, commonest, count):
        chats = [[("user", f"q {i}"), ("assistant", commonest * 9)] for i in range(count)]
        rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in chats]
        labelled = [{"sentence": f"word {i}", "label": int(commonest == "b") ^ (i % 10 == 0)} for i in range(count)]
        return written(path, labelled if task == "sst2" else rows)

    data = answers(tmp_path / "a.jsonl", "a", 40)
    train(composed(decoder, task, data=data, steps=1), tmp_path / "run", decoder.parent)
    other, runs = str(answers(tmp_path / "b.jsonl", "b", 20)), Runs(decoder.parent)
    guessed = evaluate_run(str(tmp_path / "run"), runs, other, []).finetune.baseline["accuracy"].value
    assert guessed == pytest.approx(0.1 if task == "sst2" else 0)
    data.rename(tmp_path / "gone.jsonl")
    assert evaluate_run(str(tmp_path / "run"), runs, other, []).finetune.baseline == {}


@pytest.mark.long
def test_another_file_of_the_task_is_measured_whole(encoder, tmp_path):
    config = composed(encoder, "sst2", data=sentences(tmp_path / "a.jsonl"), steps=2)
    train(config, tmp_path / "run", encoder.parent)
    other = sentences(tmp_path / "other.jsonl", 31)
    runs = Runs(encoder.parent)
    found = evaluate_run(str(tmp_path / "run"), runs, str(other), []).finetune
    assert found.metrics["accuracy"].n == 31 == found.examples["validation"]
    for asked in ("evaluation.choices.tasks=[copying-random]", "data.mix={text: 0.5, retrieval: 0.5}"):
        with pytest.raises(UserError, match="has no effect on fine-tuning"):
            evaluate_run(str(tmp_path / "run"), runs, None, [asked])
    with pytest.raises(UserError, match="fine-tuned on sst2"):
        evaluate_run(str(tmp_path / "run"), runs, "text:a.txt", [])
    with pytest.raises(UserError, match="missing.tsv: there is no such file or folder; this model is fine-tuned on"):
        evaluate_run(str(tmp_path / "run"), runs, "missing.tsv", [])
    model = hybridlab.load_checkpoint(tmp_path / "run")
    with pytest.raises(UserError, match="shape.output"):
        hybridlab.evaluate(model, "embedded", tokenizer="byte", seq_len=16, quiet=True)


def test_changed_files_are_noticed_on_resume(encoder, tmp_path, monkeypatch):
    from tests.training import train_until

    config = composed(encoder, "sst2", data=sentences(tmp_path / "a.jsonl"), steps=4)
    train_until(config, tmp_path / "run", encoder.parent, monkeypatch, 3)
    sentences(tmp_path / "a.jsonl", 39)
    with pytest.raises(UserError, match="data"):
        train(config, tmp_path / "run", encoder.parent)


def test_a_fine_tuned_run_is_fine_tuned_again_and_not_trained_on_text(encoder, tmp_path):
    runs = encoder.parent
    first = composed(encoder, "sst2", data=sentences(tmp_path / "a.jsonl"), steps=2)
    folder = runs / run_hash(first)
    train(first, folder, runs)
    second = composed(folder, "mnli", data=task_file(tmp_path, "mnli"), steps=2)
    assert second.shape.output.labels == 3 and second.init.run == run_hash(first)
    record = train(second, tmp_path / "second", runs)
    assert record.results.finetune.task == "mnli"
    with pytest.raises(UserError, match="head of its model gives classes instead of tokens.* `hybridlab finetune "):
        compose(Request(start=str(folder), data="embedded"), Runs(runs))


def test_the_best_weights_are_those_of_the_lowest_loss_on_the_task(encoder, tmp_path):
    settings = ("evaluation.every=1", "evaluation.keep_best=true", "runtime.keep_steps=[2]")
    config = composed(encoder, "sst2", *settings, data=sentences(tmp_path / "a.jsonl"), steps=4, lr=1e-2)
    record = train(config, tmp_path / "run", encoder.parent)
    log = record.hooks["validation-log"]
    assert len(log["loss"]) == 4 and log["best_loss"] == min(log["loss"])
    assert record.results.validation.loss.value == pytest.approx(log["loss"][-1])
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir()) if "2" in path.name]


def test_probes_measure_attention_on_the_task_and_skip_predictions_of_tokens(decoder, tmp_path):
    settings = ("evaluation.probes=[entropy,interventions]", "finetune.max_examples=200")
    config = composed(decoder, "sst2", *settings, data=sentences(tmp_path / "a.jsonl", 200), steps=1)
    probes = train(config, tmp_path / "run", decoder.parent).results.probes
    assert "heads" in probes["entropy"] and "gives none" in probes["interventions"]["skipped"]


def test_examples_for_probes_are_batches_of_inputs(encoder, decoder, tmp_path):
    config = composed(encoder, "race", data=task_file(tmp_path, "race"), steps=1)
    corpus = corpus_of(config, tmp_path)
    batches = list(make_objective(config, corpus).examples(config, corpus, 5))
    assert sum(map(len, batches)) == 2 and set(batches[0].inputs) == {"input_ids", "attention_mask", "token_type_ids"}
    assert tuple(batches[0].inputs["input_ids"].shape) == (8, 32)
    first = corpus.measured["validation"].rows[0]
    assert batches[0].inputs["input_ids"][0, : len(first)].tolist() == first.tolist()
    types, mask = batches[0].inputs["token_type_ids"][0], batches[0].inputs["attention_mask"][0]
    assert mask.sum() == len(first) and 0 < types.sum() < mask.sum() and not (types & ~mask).any()


def test_examples_of_text_are_windows(small, tmp_path, runs_dir):
    config = small()
    corpus = corpus_of(config, runs_dir / "data")
    batches = list(make_objective(config, corpus).examples(config, corpus, 40))
    assert sum(map(len, batches)) == 40 and set(batches[0].inputs) == {"input_ids"}
    assert batches[0].inputs["input_ids"].shape[1] == config.training.seq_len


def test_python_and_the_command_line_give_the_same_run(encoder, tmp_path, capsys):
    from hybridlab.lab.cli.main import app

    path, runs = sentences(tmp_path / "a.jsonl"), str(encoder.parent)
    settings = ["training.seq_len=32", "runtime.threads=1"]
    made = hybridlab.finetune(
        encoder,
        "sst2",
        data=path,
        steps=2,
        lr=1e-3,
        settings=dict(s.split("=") for s in settings) | {"training.seq_len": 32, "runtime.threads": 1},
        runs_dir=runs,
        quiet=True,
    )
    options = ["--task", "sst2", "--data", str(path), "--steps", "2", "--lr", "1e-3", "--runs-dir", runs, "--json"]
    app(["finetune", str(encoder), *options, *[part for s in settings for part in ("--set", s)]], standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    assert shown["hash"] == made.hash and made.path.name == made.hash
    assert shown["results"]["finetune"]["metrics"]["accuracy"]["n"] == 4


# ---- files that were released ----

RELEASED = {
    "sst2": "glue/sst2/validation.jsonl",
    "cola": "glue/cola/in_domain_dev.tsv",
    "mrpc": "glue/mrpc/validation.jsonl",
    "rte": "glue/rte/validation.jsonl",
    "qnli": "glue/qnli/dev.tsv",
    "qqp": "glue/qqp/train_sample.tsv",
    "mnli": "glue/mnli/train_sample.tsv",
    "stsb": "glue/stsb/dev.tsv",
    "wnli": "glue/wnli/train_part1.tsv",
    "squad": "squad/xquad.en.json",
    "race": "race/test_high.jsonl",
    "race-middle": "race/test_middle.jsonl",
    "hellaswag": "hellaswag/hellaswag_val_1000.jsonl",
    "boolq": "boolq/validation.jsonl",
}


@pytest.mark.parametrize("task", RELEASED)
def test_released_files_train(encoder, tmp_path, task):
    path = SHARED / RELEASED[task]
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    config = composed(encoder, task, "finetune.max_examples=24", "finetune.batch=2", data=path, steps=20)
    record = train(config, tmp_path / "run", encoder.parent)
    assert record.steps == 20 and record.results.finetune.task == task
    assert record.history["loss"][-1] > 0
