"""Fine-tuning with adapters: what is trained, kept, resumed and measured, and what is left in the finished model."""

import json

import pytest
import torch
from safetensors.torch import load_file

import hybridlab
from hybridlab.config.resolve import run_hash
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from hybridlab.models.ledger.summary import training_flops
from hybridlab.training.store.artifacts import open_model
from hybridlab.training.store.folders import Runs
from tests.integration.test_chats import chats, learning
from tests.integration.test_finetuning import composed, decoder, encoder, sentences  # noqa: F401
from tests.training import assert_resumes_exactly, assert_survives_kills, train, train_until, weights

PARENTS = ["encoder", "decoder"]


def lora(start, path, *settings, task="sst2", steps=4, **options):
    own = ["finetune.lora={rank: 2}", "runtime.keep_steps=[2]", *settings]
    return composed(start, task, *own, data=path, steps=steps, lr=1e-2, **options)


@pytest.mark.parametrize("start", PARENTS)
def test_a_finished_model_differs_by_matrices_of_the_rank_and_by_its_head(start, tmp_path, request):
    base = request.getfixturevalue(start)
    config = lora(base, sentences(tmp_path / "a.jsonl"))
    lines = []
    with heard_by(lines.append):
        record = train(config, tmp_path / "run", base.parent)
    before, after = weights(base), weights(tmp_path / "run")
    changed = {name for name in after if name not in before or not torch.equal(after[name], before[name])}
    names = {name for name in after if name.startswith("blocks.") and after[name].dim() == 2}
    heads = {name for name in after if name.startswith("head.")}
    assert changed == names | heads
    for name in names:
        assert torch.linalg.matrix_rank(after[name] - before[name], atol=1e-5) <= 2
    kept = load_file(tmp_path / "run" / "checkpoints" / "step-00000002" / "optimizer.safetensors")
    trained = {name.rpartition("/")[0] for name in kept}
    assert trained == {f"{name.removesuffix('.weight')}.{part}" for name in names for part in ("down", "up")} | heads
    numbers = record.parameters
    assert numbers["trained"] == sum(kept[f"{name}/exp_avg"].numel() for name in trained) < numbers["total"]
    said = f"{numbers['trained']:,} parameters are trained, beside {numbers['total']:,} of the model"
    assert any("and the new output head" in line and said in line for line in lines)
    assert hybridlab.evaluate(tmp_path / "run", runs_dir=base.parent, quiet=True) == record.results
    assert training_flops(config, "executed") == pytest.approx(record.flops) and record.flops < composed_flops(
        base, tmp_path
    )


def composed_flops(base, tmp_path):
    """FLOPs of the same run without adapters."""
    config = composed(base, "sst2", data=tmp_path / "a.jsonl", steps=4)
    return train(config, tmp_path / "full", base.parent).flops


@pytest.mark.parametrize("start", PARENTS)
def test_a_stopped_run_with_adapters_goes_on_to_the_same_bits(start, tmp_path, monkeypatch, request):
    base = request.getfixturevalue(start)
    settings = ("evaluation.at_steps=[2]", "evaluation.every=1", "evaluation.keep_best=true")
    config = lora(base, sentences(tmp_path / "a.jsonl"), *settings, steps=5)
    record = train(config, tmp_path / "whole", base.parent)
    assert_resumes_exactly(config, tmp_path, base.parent, monkeypatch, 3)
    best = record.hooks["validation-log"]
    names = weights(tmp_path / "whole").keys()
    found = load_file(tmp_path / "whole" / "best" / "model.safetensors")
    assert found.keys() == names
    if best["best_step"] == 5:
        assert all(torch.equal(found[name], weights(tmp_path / "whole")[name]) for name in names)


@pytest.mark.long
def test_a_killed_run_on_chats_with_adapters_ends_with_the_same_bits(decoder, tmp_path):  # noqa: F811
    config = lora(decoder, chats(tmp_path / "a.jsonl"), "training.seq_len=64", task="sft", steps=300)
    assert_survives_kills(config, tmp_path, decoder.parent, steps=[20, 90])


def test_a_run_that_has_not_finished_is_opened_with_its_adapters(decoder, tmp_path, monkeypatch):  # noqa: F811
    config = lora(decoder, chats(tmp_path / "a.jsonl"), "training.seq_len=64", task="sft")
    train_until(config, tmp_path / "run", decoder.parent, monkeypatch, 3)
    runs, tokens = Runs(decoder.parent), torch.arange(20)[None]
    half = open_model(str(tmp_path / "run"), runs).model
    train(config, tmp_path / "run", decoder.parent)
    kept = load_file(tmp_path / "run" / "checkpoints" / "step-00000002" / "model.safetensors")
    name = "blocks.1.attention.q"
    wanted = kept[f"{name}.weight"] + 2.0 * kept[f"{name}.up"] @ kept[f"{name}.down"]
    torch.testing.assert_close(dict(half.named_parameters())[f"{name}.weight"], wanted)
    with torch.no_grad():
        base, done = (hybridlab.load_checkpoint(path)(tokens).logits for path in (decoder, tmp_path / "run"))
        assert min((half(tokens).logits - other).abs().max() for other in (base, done)) > 1e-3


@pytest.mark.long
def test_adapters_learn_the_answers(decoder, tmp_path):  # noqa: F811
    path = chats(tmp_path / "a.jsonl")
    config = learning(decoder, path, "finetune.lora={rank: 8}", "evaluation.at_steps=[0]", steps=150)
    record = train(config, tmp_path / "run", decoder.parent)
    base, tuned = record.results.at["0"].validation.loss.value, record.results.validation.loss.value
    assert base > 4 and tuned < 0.7 * base


def test_python_and_the_command_line_ask_for_the_same_adapters(decoder, tmp_path, capsys):  # noqa: F811
    from hybridlab.lab.cli.main import app

    path, runs = chats(tmp_path / "a.jsonl"), str(decoder.parent)
    options = ["--task", "sft", "--data", str(path), "--steps", "1", "--runs-dir", runs, "--set", "training.seq_len=64"]
    app(["finetune", str(decoder), *options, "--lora-rank", "3", "--json"], standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    settings = {"training.seq_len": 64}
    made = hybridlab.finetune(
        decoder, "sft", data=path, steps=1, lora_rank=3, settings=settings, runs_dir=runs, quiet=True
    )
    assert shown["hash"] == made.hash and shown["config"]["finetune"]["lora"]["rank"] == 3
    hashes = {run_hash(lora(decoder, path, f"finetune.lora={{rank: {rank}}}", task="sft")) for rank in (1, 2)}
    assert len(hashes | {run_hash(composed(decoder, "sft", data=path, steps=4, lr=1e-2))}) == 3


@pytest.mark.parametrize(
    "start, settings, message",
    [
        ("encoder", "{rank: 2, projections: [gate]}", "the MLP of the family bert has no gate; leave it out"),
        ("decoder", "{rank: 0}", "finetune.lora.rank"),
        ("decoder", "{rank: 2, projections: []}", "finetune.lora.projections"),
        ("decoder", "{rank: 2, projections: [w]}", "finetune.lora.projections"),
        ("decoder", "{rank: 2, dropout: 0.1}", "finetune.lora.dropout is not a known setting"),
    ],
)
def test_adapters_that_cannot_be_are_one_sentence(start, settings, message, tmp_path, request):
    with pytest.raises(UserError) as error:
        lora(request.getfixturevalue(start), sentences(tmp_path / "a.jsonl"), f"finetune.lora={settings}")
    assert message in str(error.value) and "\n" not in str(error.value)
