"""eval, analyze and generate on finished runs, their best weights, unfinished runs, and Hugging Face folders."""

import hashlib
import json
import shutil

import pytest
import torch

from hybridlab.data.tokenizers import load_tokenizer
from hybridlab.errors import RunFailed, UserError
from hybridlab.messages import heard_by
from hybridlab.runs.evaluate import evaluate_run
from hybridlab.training.store import checkpoints
from hybridlab.training.store.artifacts import open_model
from hybridlab.training.store.folders import Runs
from tests.conftest import write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.integration.test_engine import LEARN
from tests.training import growing, train, train_until, weights


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A folder with a random GPT-2 of 24 learned positions and one with a random Llama, as transformers saves them."""
    transformers = pytest.importorskip("transformers")
    from hybridlab.data.tokenizers import make_tokenizer

    folder = tmp_path_factory.mktemp("imported")
    torch.manual_seed(0)
    gpt2 = transformers.GPT2Config(vocab_size=300, n_positions=24, n_embd=32, n_layer=2, n_head=4)
    llama = transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    llama.max_position_embeddings = 64
    transformers.GPT2LMHeadModel(gpt2).save_pretrained(folder / "gpt2", safe_serialization=True)
    transformers.LlamaForCausalLM(llama).save_pretrained(folder / "llama", safe_serialization=True)
    for name in ("gpt2", "llama"):
        make_tokenizer("byte", []).save(str(folder / name / "tokenizer.json"))
    write_text(folder / "words.txt", 40_000)
    return folder


def opened(reference, runs):
    said = []
    with heard_by(said.append):
        return open_model(str(reference), Runs(runs)), said


def test_an_unfinished_run_opens_at_its_newest_checkpoint_and_says_so(small, runs, monkeypatch):
    config = small()
    train_until(config, runs / "half", runs, monkeypatch, 6)
    model, said = opened(runs / "half", runs)
    assert said == [f"{runs}/half: this run has not finished: step 4 of 12"]
    saved = checkpoints.load_newest(runs / "half" / "checkpoints").model
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.model.named_parameters())
    with heard_by(said.append):
        results = evaluate_run(str(runs / "half"), Runs(runs), None, [])
    assert results.validation.loss.n == 8
    train(config, runs / "half", runs)
    finished, said = opened(runs / "half", runs)
    assert not said and all(torch.equal(t, weights(runs / "half")[n]) for n, t in finished.model.named_parameters())


def test_an_unfinished_run_on_a_fade_has_the_factors_of_its_next_step(small, runs, monkeypatch):
    """Looped heads that are not kept fade over 3 steps after step 3, so before step 5 they have 2/3 left."""
    config = growing(small, 12)
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"checkpoint_every": 1})})
    train_until(config, runs / "half", runs, monkeypatch, 4)
    (factors,) = opened(runs / "half", runs)[0].model.factors.values()
    assert sorted(factors.tolist()) == pytest.approx([2 / 3, 2 / 3, 1, 1])
    state = runs / "half" / "checkpoints"
    newest = sorted(state.iterdir())[-1]
    content = json.loads((newest / "state.json").read_text())
    del content["factors"]
    (newest / "state.json").write_text(json.dumps(content))
    digests = json.loads((newest / "digests.json").read_text())
    digests["state.json"] = hashlib.sha256((newest / "state.json").read_bytes()).hexdigest()
    (newest / "digests.json").write_text(json.dumps(digests))
    with pytest.raises(UserError, match="step 4 of 12, and its checkpoint is of another version"):
        opened(runs / "half", runs)


def test_a_run_that_is_learning_masks_is_refused_by_name(small, runs, monkeypatch):
    train_until(small("consa", **LEARN), runs / "half", runs, monkeypatch, 6)
    with pytest.raises(UserError, match="half: this run has not finished: step 4 of 12, and it is still learning its"):
        opened(runs / "half", runs)


def test_a_run_without_a_checkpoint_is_refused(small, runs, monkeypatch):
    train_until(small(), runs / "new", runs, monkeypatch, 2)
    with pytest.raises(UserError, match="new: this run has not finished and has no checkpoint yet"):
        opened(runs / "new", runs)


def test_changed_data_of_an_unfinished_run_is_refused(small, runs, monkeypatch):
    train_until(small(), runs / "half", runs, monkeypatch, 6)
    info = json.loads((runs / "half" / "run.json").read_text())
    (runs / "half" / "run.json").write_text(json.dumps(info | {"data_fingerprint": "other"}))
    with pytest.raises(UserError, match="half: the data has changed"):
        opened(runs / "half", runs)


def test_the_best_weights_open_by_folder_and_by_hash(small, runs):
    record = train(small(evaluation={"every": 5, "keep_best": True}), runs / "a", runs)
    for reference in (runs / "a" / "best", f"{record.hash[:8]}/best"):
        model, said = opened(reference, runs)
        assert said == [f"{runs}/a: the weights of its lowest validation loss, step 12 of 12"] and model.config
    train(small(), runs / "b", runs)
    with pytest.raises(UserError, match=r"b: this run has no best weights; .*keep_best=true"):
        opened(runs / "b" / "best", runs)
    shutil.copytree(runs / "a" / "final", runs / "copied")
    model, _ = opened(runs / "copied", runs)
    assert model.config is None and model.tokenizer.is_file()


def test_eval_and_analyze_measure_an_imported_model_on_given_text(imported):
    for name, length in (("gpt2", 16), ("llama", 64)):
        done = hybridlab("eval", name, "--data", "text:words.txt", "--json", cwd=imported)
        results = json_of(done)
        assert results["validation"]["loss"]["value"] == pytest.approx(5.7, abs=0.3)
        assert f"measured on sequences of {length} tokens" in done.stderr
    changed = ["--set", "training.seq_len=16", "--set", "evaluation.validation_windows=5"]
    done = hybridlab("eval", "llama", "--data", "text:words.txt", *changed, "--json", cwd=imported)
    assert json_of(done)["validation"]["loss"]["n"] == 5 and "sequences of 16 tokens" in done.stderr
    done = hybridlab("analyze", "llama", "--probe", "entropy", "--data", "text:words.txt", "--json", cwd=imported)
    assert json_of(done)
    transformers = pytest.importorskip("transformers")
    with torch.no_grad():
        theirs = transformers.LlamaForCausalLM.from_pretrained(imported / "llama").eval()
        model, _ = opened(imported / "llama", imported)
        ids = torch.arange(20)[None]
        torch.testing.assert_close(model.model(ids).logits, theirs(ids).logits, atol=1e-4, rtol=1e-4)


def test_mistakes_with_imported_models_are_explained(imported, tmp_path):
    shutil.copytree(imported / "llama", tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    setting = ["--set", "training.steps=3"]
    cases = [
        (["eval", "bare"], "bare: name the text to measure this model on, with --data"),
        (["analyze", "bare", "--probe", "entropy"], "bare: name the text to measure this model on"),
        (["eval", "bare", "--data", "embedded"], "bare: it has no tokenizer.json; copy the model's own"),
        (["generate", "bare", "a"], "bare: it has no tokenizer.json; copy the model's own"),
        (["eval", "bare", "--data", "embedded", *setting], "can only change evaluation, data, runtime"),
        (["pretrain", "--from", "bare", "--extend", "3"], "--extend: bare has no optimizer"),
    ]
    for arguments, message in cases:
        done = hybridlab(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_head_beside_a_tying_configuration_is_said_once(imported, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "gpt2"
    shutil.copytree(imported / "gpt2", folder)
    tensors = load_file(folder / "model.safetensors")
    head = torch.randn(tensors["transformer.wte.weight"].shape)
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
    done = hybridlab("generate", folder, "a", "--max-new-tokens", "2", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr.count("ties the output head") == 1, done.stderr
    assert f"warning: {folder}/config.json: it ties the output head to the embedding" in done.stderr

    from transformers import AutoModelForCausalLM

    from hybridlab import load_hf

    ids = torch.arange(12)[None] + 3
    ours, tied = (load_hf(one)(ids).logits for one in (folder, imported / "gpt2"))
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    theirs.lm_head.weight = torch.nn.Parameter(head)  # whether it ties them differs between its versions
    torch.testing.assert_close(ours, theirs(ids).logits, atol=1e-5, rtol=1e-5)
    assert (ours - tied).abs().max() > 1


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(imported, tmp_path):
    from hybridlab import evaluate as measured
    from hybridlab import export_hf, load_hf

    folder = tmp_path / "llama"
    shutil.copytree(imported / "llama", folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([f"word{n}" for n in range(60)])
    tokenizer.save(str(folder / "tokenizer.json"))
    said = "this tokenizer has ids up to 316, and the model has 300 tokens, from 0 to 299"
    for command in (
        ["generate", folder, "a word2", "--max-new-tokens", "2"],
        ["eval", folder, "--data", "embedded"],
        ["eval", folder, "--tasks", "piqa"],
        ["analyze", folder, "--data", "embedded", "--probe", "kept-mass"],
        ["analyze", folder, "--probe", "entropy", "--tasks", "piqa"],
        ["export", folder, tmp_path / "out"],
    ):
        done = hybridlab(*command, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, (command, done.stderr)
    assert not (tmp_path / "out").exists()
    model = load_hf(folder)
    with pytest.raises(UserError, match=said):
        export_hf(model, tmp_path / "out", tokenizer=folder)
    with pytest.raises(UserError, match=said):
        measured(model, tasks=["piqa"], tokenizer=f"file:{folder}", seq_len=32, quiet=True)


def test_a_run_that_failed_before_its_first_checkpoint_says_why(small, runs):
    with pytest.raises(RunFailed):
        train(small(settings=["training.optimizer.lr=1e30", "training.schedule.warmup_steps=0"]), runs / "broken", runs)
    failed = "broken: this run failed \\(the .* lower the learning rate\\)"
    with pytest.raises(UserError, match=f"{failed}, and it has no checkpoint; train it again with other settings"):
        opened(runs / "broken", runs)
    with pytest.raises(UserError, match=f"{failed}; train it again with other settings before starting from it"):
        Runs(runs).finished(str(runs / "broken"))
