"""`hybridlab export`: runs become folders that a process without hybridlab loads; card, tokenizer, mistakes."""

import json
import os
import re
import subprocess
import sys

import huggingface_hub
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from hybridlab import build_model, export_hf, load_checkpoint, load_hf
from hybridlab.errors import RunFailed, UserError
from hybridlab.evaluation.results import BenchmarkResult
from hybridlab.files import write_json
from hybridlab.runs.record import read_record
from hybridlab.statistics import NOT_MEASURED, Measurement
from tests.combinations import some
from tests.conftest import SMALL_SHAPE
from tests.integration.test_cli import hybridlab, json_of
from tests.models import random_ids
from tests.training import train, train_until

PROMPTS = ["the cat", "rain fell over the far hills"]
WITHOUT_HYBRIDLAB = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hybridlab", "pydantic", "triton", "xformers"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked())
import json, torch, transformers
torch.set_num_threads(1)
folder, trust = sys.argv[1], sys.argv[2] == "True"
model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=trust).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
tokens = torch.tensor([json.loads(sys.argv[3])])
with torch.no_grad():
    logits = model(tokens).logits[0].tolist()
pipe = transformers.pipeline("text-generation", model=folder, trust_remote_code=trust)
made = pipe(json.loads(sys.argv[4]), max_new_tokens=8, do_sample=False, batch_size=2)
texts = [found[0]["generated_text"] for found in made]
print(json.dumps({"logits": logits, "texts": texts, "class": type(model).__name__}))
"""


def elsewhere(folder, trust, tokens, cwd):
    """What a process prints that can import neither hybridlab nor what only hybridlab needs."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        sys.executable,
        "-c",
        WITHOUT_HYBRIDLAB,
        str(folder),
        str(trust),
        json.dumps(tokens),
        json.dumps(PROMPTS),
    ]
    home = {"HF_HOME": str(cwd / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment | home, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("arch", some(["vanilla", "spiral-b", "saobp-high"], "spiral-b"))
def test_an_exported_run_works_where_hybridlab_is_not_installed(arch, small, runs, tmp_path):
    shape = {"shape": {"layers": 6}} if arch == "spiral-b" else {}
    train(small(arch, training={"steps": 3}, **shape), runs / "run", runs)
    done = hybridlab("export", runs / "run", tmp_path / "out", "--license", "mit", "--json", cwd=tmp_path)
    told = json_of(done)
    assert told["native"] == (arch == "vanilla") and told["folder"] == str(tmp_path / "out")
    assert told["architecture"] == ("Qwen3ForCausalLM" if told["native"] else "HybridlabForCausalLM")
    model, tokens = load_checkpoint(runs / "run"), list(range(5, 33))
    found = elsewhere(tmp_path / "out", not told["native"], tokens, tmp_path)
    assert found["class"] == told["architecture"]
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.tensor(found["logits"]), wanted, atol=1e-5, rtol=1e-5)
    for prompt, text in zip(PROMPTS, found["texts"], strict=True):
        ours = json_of(hybridlab("generate", runs / "run", prompt, "--max-new-tokens", "8", "--json", cwd=tmp_path))
        assert text == ours["text"]


@pytest.mark.parametrize(("granularity", "architecture"), [("layer", "Ministral"), ("head", "Hybridlab")])
def test_a_run_with_windows_in_some_layers_needs_no_code_beside_its_weights(
    granularity, architecture, small, runs, tmp_path
):
    rule = {"kind": "rule", "granularity": granularity, "rho": 0.5}
    train(
        small("rule-swa", shape={"family": "llama", "layers": 4}, map=rule, training={"steps": 3}), runs / "run", runs
    )
    told = json_of(hybridlab("export", runs / "run", "out", "--json", cwd=tmp_path))
    assert told["native"] == (granularity == "layer") and told["architecture"] == f"{architecture}ForCausalLM"
    card = (tmp_path / "out" / "README.md").read_text()
    if told["native"]:
        assert not list((tmp_path / "out").glob("*.py")) and "trust_remote_code" not in card
        assert "transformers' own `MinistralForCausalLM`" in card and "| family | llama |" in card
    else:
        assert told["reason"] == "the heads of one layer mix tokens in different ways" and told["reason"] in card
    tokens = list(range(5, 33))
    found = elsewhere(tmp_path / "out", not told["native"], tokens, tmp_path)
    with torch.no_grad():
        wanted = load_checkpoint(runs / "run")(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.tensor(found["logits"]), wanted, atol=1e-5, rtol=1e-5)
    for prompt, text in zip(PROMPTS, found["texts"], strict=True):
        for model in (runs / "run", "out"):
            made = hybridlab("generate", model, prompt, "--max-new-tokens", "8", "--json", cwd=tmp_path)
            assert json_of(made)["text"] == text


def test_the_model_card_says_what_was_recorded(trained, tmp_path):
    config, runs = trained
    record = json.loads((runs / "parent" / "record.json").read_text())
    exported = export_hf("parent", tmp_path / "out", license="apache-2.0", runs_dir=runs, quiet=True)
    assert not exported.native and "plan" in exported.reason
    card = (tmp_path / "out" / "README.md").read_text()
    header = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)[1]
    assert 'license: "apache-2.0"' in header and "pipeline_tag: text-generation" in header
    loss = record["results"]["validation"]["loss"]
    for part in (
        record["model"]["plan"],
        record["hash"],
        f"{record['tokens']:,}",
        f"{record['flops']:.3g}",
        f"{loss['value']:.5g} | {loss['stderr']:.4g} | {loss['n']}",
        f"{record['parameters']['total']:,}" if "total" in record["parameters"] else "parameters",
        "text:words.txt",
        'AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)',
    ):
        assert part in card, part
    assert str(runs) not in card and str(tmp_path) not in card
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["lineage"] == {"run": record["hash"]} and config["max_position_embeddings"] == 32


def test_the_model_card_has_the_scores_of_benchmarks(run, tmp_path):
    record = read_record(run / "record.json")
    scores = {"acc": Measurement(value=0.3251, stderr=0.0123, n=40), "acc_norm": NOT_MEASURED}
    found = BenchmarkResult(
        task="arc_easy", metrics=scores, shots=5, limit=40, harness="lm-eval 0.4.13", max_length=32, batch_size=8
    )
    results = record.results.model_copy(update={"lm_eval": {"arc_easy@5": found}})
    write_json(run / "record.json", record.model_copy(update={"results": results}).model_dump(mode="json"))
    export_hf(run, tmp_path / "out", quiet=True)
    row = "| arc_easy, acc (lm-eval 0.4.13, 5 shots, the first 40 questions of each task) | 0.3251 | 0.0123 | 40 |"
    card = (tmp_path / "out" / "README.md").read_text()
    assert row in card.splitlines() and "acc_norm" not in card


def test_weights_can_be_read_by_whom_the_umask_allows(trained, tmp_path):
    before = os.umask(0o027)
    try:
        export_hf(trained[1] / "parent", tmp_path / "out", quiet=True)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}


def test_an_exported_folder_is_evaluated_and_exported_like_a_run(trained, tmp_path):
    _, runs = trained
    export_hf(runs / "parent", tmp_path / "own", quiet=True)
    done = hybridlab("generate", "own", "the cat", "--max-new-tokens", "4", "--json", cwd=tmp_path)
    ours = hybridlab("generate", runs / "parent", "the cat", "--max-new-tokens", "4", "--json", cwd=tmp_path)
    assert json_of(done) == json_of(ours)
    again = export_hf(tmp_path / "own", tmp_path / "again", quiet=True)
    one, two = (load_checkpoint(tmp_path / name) for name in ("own", "again"))
    assert one.structure == two.structure and not again.native
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    card = tmp_path / "own" / "README.md"
    card.write_text(card.read_text() + "More about it.\n")
    assert load_checkpoint(tmp_path / "own").structure == one.structure, "a model card may be changed"


def test_a_grown_model_and_the_best_weights_are_exported(small, runs, tmp_path):
    shape = {"layers": 4}
    controller = {"kind": "stacking", "method": "midas", "block": 2, "start": 2}
    settings = {"evaluation": {"every": 6, "keep_best": True}}
    train(small("midas", shape=shape, controller=controller, **settings), runs / "grown", runs)
    exported = export_hf(runs / "grown", tmp_path / "out", quiet=True)
    assert exported.native and load_hf(tmp_path / "out").shape.layers == 4
    assert "from 2 layers" in (tmp_path / "out" / "README.md").read_text()
    export_hf(f"{runs / 'grown'}/best", tmp_path / "best", quiet=True)
    card = (tmp_path / "best" / "README.md").read_text()
    assert "lowest validation loss" in card and "## Results" not in card


def test_an_unfinished_run_is_exported_and_says_so(small, runs, tmp_path, monkeypatch, capsys):
    train_until(small(), runs / "half", runs, monkeypatch, 6)
    export_hf(runs / "half", tmp_path / "out", runs_dir=runs)
    assert "this run has not finished: step 4 of 12" in capsys.readouterr().err
    assert "has not finished" in (tmp_path / "out" / "README.md").read_text()


def test_a_folder_of_transformers_keeps_its_own_tokenizer_settings(trained, tmp_path):
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    _, runs = trained
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=100, **shape))
    model.save_pretrained(tmp_path / "llama")
    export_hf(runs / "parent", tmp_path / "donor", quiet=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "donor")
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(tmp_path / "llama")
    export_hf(tmp_path / "llama", tmp_path / "out", quiet=True)
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.pad_token == "<pad>" and again("the cat <pad>")["input_ids"] == tokenizer("the cat <pad>")["input_ids"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["pad_token_id"] == tokenizer.pad_token_id and config["max_position_embeddings"] == 100


def test_special_tokens_of_a_model_without_a_tokenizer_are_kept(tmp_path):
    """And where there is none, transformers gets no default of the family."""
    settings = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(**settings, bos_token_id=3, eos_token_id=50)).save_pretrained(tmp_path / "theirs")
    export_hf(tmp_path / "theirs", tmp_path / "kept", quiet=True)
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "kept")
    assert (kept.config.bos_token_id, kept.config.eos_token_id, kept.generation_config.eos_token_id) == (3, 50, 50)
    bare = build_model("vanilla", size="tiny", shape={"family": "llama", "layers": 1, "vocab": 12})
    export_hf(bare, tmp_path / "bare", quiet=True)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "bare").config.eos_token_id is None


def test_the_names_of_the_classes_of_a_model_from_elsewhere_are_kept(tmp_path):
    settings = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(**settings, id2label={0: "bad", 1: "good", 2: "fair"}, pad_token_id=0)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    export_hf(tmp_path / "theirs", tmp_path / "kept", quiet=True)
    kept = AutoConfig.from_pretrained(tmp_path / "kept", trust_remote_code=True)
    assert kept.id2label == {0: "bad", 1: "good", 2: "fair"} and kept.label2id["fair"] == 2
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": {"0": "bad", "1": "good"}}))
    export_hf(tmp_path / "theirs", tmp_path / "numbered", quiet=True)
    written = json.loads((tmp_path / "numbered" / "config.json").read_text())
    assert written["id2label"] == {str(i): f"LABEL_{i}" for i in range(3)}, "two names do not fit three classes"


def test_mistakes_end_in_one_sentence(trained, tmp_path):
    _, runs = trained
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    cases = [
        (["export", runs / "parent", "full"], "full: it is a folder with files, which an export does not overwrite"),
        (["export", "nobody", "out", "--runs-dir", runs], "neither a run folder nor the start of the hash"),
        (["export", runs / "parent", "out", "--license", " "], "give an identifier of the hub"),
        (["export", runs / "parent" / "best", "out"], "this run has no best weights"),
        (["export", runs / "parent", "out", "--max-shard-size", "2"], "give a size such as 2GB"),
        (["export", runs / "parent", "out", "--max-shard-size", "0.0GB"], "give a size such as 2GB"),
        (["export", runs / "parent", "out", "--push", "me/small"], "write hub:OWNER/NAME"),
        (["export", runs / "parent", "out", "--push", "hub:small"], "write hub:OWNER/NAME"),
    ]
    for arguments, message in cases:
        done = hybridlab(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    for option, value in (("--format", "gguf"), ("--dtype", "int8")):
        done = hybridlab("export", runs / "parent", "out", option, value, cwd=tmp_path)
        assert done.returncode == 2 and value in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    with pytest.raises(UserError, match="tokenizer= has no effect on a run"):
        export_hf(runs / "parent", tmp_path / "out", tokenizer="x.json")


@pytest.mark.parametrize("arch", ["vanilla", "rule-swa"])
@pytest.mark.parametrize(("dtype", "kept", "within"), [("bf16", torch.bfloat16, 0.1), ("fp16", torch.float16, 0.01)])
def test_weights_are_written_in_the_dtype_and_in_shards(arch, dtype, kept, within, tmp_path):
    import transformers

    model = build_model(arch, shape=SMALL_SHAPE).eval()
    done = export_hf(model, tmp_path / "out", dtype=dtype, max_shard_size="8KB", quiet=True)
    shards = [name for name in done.files if re.fullmatch(r"model-\d{5}-of-\d{5}.safetensors", name)]
    assert len(shards) > 2 and "model.safetensors.index.json" in done.files and "model.safetensors" not in done.files
    assert done.native == (arch == "vanilla")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    assert {parameter.dtype for parameter in theirs.parameters()} == {kept}
    tokens = random_ids(20)
    with torch.no_grad():
        wanted = model(tokens).logits
        for found in (theirs, load_hf(tmp_path / "out")):
            assert (found(tokens).logits.float() - wanted).abs().max() < within * wanted.abs().max()
    (tmp_path / "out" / shards[1]).unlink()
    with pytest.raises(UserError, match=shards[1]):
        load_hf(tmp_path / "out")
    (tmp_path / "out" / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(UserError, match="weight_map must give a file"):
        load_hf(tmp_path / "out")


def test_weights_beyond_the_range_of_fp16_are_refused_by_name(tmp_path):
    model = build_model("rule-swa", shape=SMALL_SHAPE)
    with torch.no_grad():
        model.blocks[1].mlp.up.weight[0, 0] = 1e5
    with pytest.raises(UserError, match=r"dtype fp16: numbers of blocks\.1\.mlp\.up\.weight are beyond its range"):
        export_hf(model, tmp_path / "out", dtype="fp16")
    assert not (tmp_path / "out").exists()
    export_hf(model, tmp_path / "out", dtype="bf16", quiet=True)


class Hub:
    """In the place of the hub's client."""

    def __init__(self, error=None):
        self.error, self.calls = error, []

    def create_repo(self, repository, exist_ok):
        assert exist_ok
        if self.error:
            raise self.error
        return f"https://huggingface.co/{repository}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        self.calls.append((repo_id, sorted(path.name for path in folder_path.iterdir()), commit_message))


def test_a_folder_is_pushed_to_the_hub(trained, tmp_path, monkeypatch):
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_none")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    done = export_hf(trained[1] / "parent", tmp_path / "out", push="hub:me/small", quiet=True)
    assert done.pushed == "https://huggingface.co/me/small" == done.to_json()["pushed"]
    assert hub.calls == [("me/small", done.files, "Export of hybridlab")]
    hub.error = ValueError("403 Forbidden: no rights\nand more")
    with pytest.raises(RunFailed, match=r"out2 is written, .* \(403 Forbidden: no rights\); .*`hf upload me/small "):
        export_hf(trained[1] / "parent", tmp_path / "out2", push="hub:me/small", quiet=True)
    assert (tmp_path / "out2" / "config.json").is_file()
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match="push hub:me/small: there is no token of the hub here"):
        export_hf(trained[1] / "parent", tmp_path / "out3", push="hub:me/small")
    assert not (tmp_path / "out3").exists()
    assert export_hf(trained[1] / "parent", tmp_path / "out3", quiet=True).pushed is None


def test_text_output_names_the_class_and_how_to_load_it(trained, tmp_path):
    _, runs = trained
    done = hybridlab("export", runs / "parent", "out", cwd=tmp_path)
    assert done.returncode == 0 and "HybridlabForCausalLM: modeling_hybridlab.py, because its plan" in done.stdout
    assert 'AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)' in done.stdout
