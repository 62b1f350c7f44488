"""What a review found, kept from coming back: each test failed before its mend."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.data.shards import corpus_for, open_corpus, prepare
from hybridlab.data.sources import read_documents
from hybridlab.data.tasks import make_row
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import RunFailed, UserError
from hybridlab.evaluation.causality import require_causal
from hybridlab.evaluation.measure import measure, window_reach
from hybridlab.models import kernels
from hybridlab.models.build import build_model
from hybridlab.models.decoder import Decoder
from hybridlab.models.export import load_checkpoint
from hybridlab.plan.from_config import map_of, plan_of
from hybridlab.reproduction.compose import compose
from hybridlab.reproduction.evaluate import evaluate_run
from hybridlab.reproduction.experiment import cell_configs, load_experiment
from hybridlab.reproduction.records import load_record
from hybridlab.reproduction.reproduce import run_all
from hybridlab.reproduction.run import execute
from hybridlab.training.folders import RunFolder, Runs
from tests.conftest import write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text_file):
    """A run, its configuration and the folder of runs that it lies in."""
    from tests.conftest import SMALL_SHAPE, SMALL_TRAINING

    runs = tmp_path_factory.mktemp("trained")
    base = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3}}
    base |= {"data": {"source": f"text:{text_file}", "tokenizer": "byte"}, "runtime": {"threads": 1}}
    base |= {"evaluation": {"validation_windows": 4}, "plan": [{"op": "loop_heads", "layer": 1, "heads": [0]}]}
    config = resolve("vanilla", "tiny", layers=[Layer(base)])
    execute(config, RunFolder(runs / "parent"), Runs(runs), quiet=True)
    return config, runs


# ---- finding runs, and starting from them ----


def test_a_hash_is_never_taken_for_the_folder_one_stands_in(trained, monkeypatch):
    config, runs = trained
    monkeypatch.chdir(runs / "parent")
    with pytest.raises(UserError, match="neither a run folder"):
        Runs(runs / "nowhere").find("deadbeef")
    with pytest.raises(UserError, match="neither a run folder"):
        Runs(runs / "nowhere").find(str(runs / "parent" / "nonsense"))
    assert Runs(runs).find(run_hash(config)[:5]).path.name == "parent"


def test_a_damaged_run_is_nobody_elses_trouble(trained):
    config, runs = trained
    for name, content in (("bad", "garbage"), ("worse", "{}")):
        (runs / name).mkdir(exist_ok=True)
        (runs / name / "run.json").write_text(content)
    assert Runs(runs).find(run_hash(config)).path.name == "parent"


def test_a_child_inherits_the_plan_and_reads_on_where_its_parent_stopped(trained):
    config, runs = trained
    child = compose("vanilla", None, None, str(runs / "parent"), Runs(runs), None, Layer(), [])
    assert child.plan == config.plan and child.training.skip_steps == 3
    grandchild = compose(
        "vanilla", None, None, str(runs / "parent"), Runs(runs), None, Layer(), ["training.skip_steps=7"]
    )
    assert grandchild.training.skip_steps == 7


@pytest.mark.parametrize("setting", ["shape.rope_base=77", "shape.embedding_scale=3.0", "shape.norm_eps=0.1"])
def test_a_shape_that_only_acts_otherwise_is_another_architecture(trained, setting):
    _, runs = trained
    with pytest.raises(UserError, match="weights of another architecture: shape"):
        compose("vanilla", None, None, str(runs / "parent"), Runs(runs), None, Layer(), [setting])


def test_stages_of_an_experiment_do_not_repeat_batches():
    configs = cell_configs(load_experiment("consa-table1"), "smoke", 0)
    assert configs["base"].training.skip_steps is None
    assert configs["dense/1"].training.skip_steps == configs["base"].training.steps
    stage1 = configs["dense/1"].training
    assert configs["dense/2"].training.skip_steps == stage1.skip_steps + stage1.steps
    assert configs["layer-50/2"].training == configs["dense/2"].training


# ---- folders ----


def test_what_lies_in_a_folder_stays(small, tmp_path, runs_dir):
    (tmp_path / ".lock").write_text("precious")
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        execute(small(), RunFolder(tmp_path), Runs(runs_dir), quiet=True)
    assert (tmp_path / ".lock").read_text() == "precious" and (tmp_path / "notes").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError):
        execute(small(settings=["data.source=text:/no/such"]), RunFolder(empty), Runs(runs_dir), quiet=True)
    assert empty.is_dir() and not any(empty.iterdir())


def test_what_a_kill_leaves_of_a_first_start_is_no_content(small, tmp_path, runs_dir):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".run.json.0123abcd").write_text("{")
    assert execute(small(), RunFolder(folder), Runs(runs_dir), quiet=True)["status"] == "finished"


def test_a_kill_before_the_record_does_not_double_events(small, tmp_path, runs_dir):
    controller = {"kind": "mask-learning", "rho": 0.5}
    folder = RunFolder(tmp_path / "run")
    config = small("consa", shape={"layers": 4}, controller=controller)
    first = execute(config, folder, Runs(runs_dir), quiet=True)
    (folder.path / "record.json").unlink()
    again = execute(config, folder, Runs(runs_dir), quiet=True)
    assert again["events"] == first["events"] and len(again["events"]) == 1
    assert (folder.path / "metrics.jsonl").read_text().count("masks-fixed") == 1


def test_whatever_one_run_dies_of_the_others_go_on(small, tmp_path, runs_dir, monkeypatch):
    from hybridlab.reproduction import reproduce

    def die(config, *arguments):
        if config.training.seed == 0:
            raise MemoryError("out of memory")
        return execute(config, *arguments)

    monkeypatch.setattr(reproduce, "execute", die)
    configs = [small(settings=[f"training.seed={seed}"]) for seed in (0, 1)]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "data").symlink_to(runs_dir / "data")
    pending = {run_hash(c): (f"seed {c.training.seed}", c) for c in configs}
    outcome = run_all(pending, tmp_path / "runs", tmp_path / "results", lambda text: None, quiet=True)
    assert outcome.finished == ["seed 1"] and outcome.failed == {"seed 0": "MemoryError: out of memory"}


def test_control_c_ends_with_exit_code_one(tmp_path):
    write_text(tmp_path / "words.txt")
    code = "import torch; torch.set_num_threads(1)\nfrom hybridlab.cli.main import run; run()"
    arguments = ["pretrain", "--data", "text:words.txt", "--set", "data.tokenizer=byte", "--run-dir", "run"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted" in err and "Traceback" not in err


# ---- measuring ----


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_there_are_answers_outside_at_every_scale_that_measures_them(scale):
    config = cell_configs(load_experiment("consa-table1"), scale, 0)["all-window/2"]
    shape = config.shape
    visits = sum(visit.part != "mlp" for _, visit in plan_of(config).places())
    reach = visits * (map_of(config.map, shape).layers[0][0].width - 1)
    rows = [make_row("retrieval", config.training.seq_len, np.random.default_rng(i)) for i in range(60)]
    assert sum((row.distances > reach).sum() for row in rows) > 60


def test_the_probe_tests_the_kernel_that_is_measured(monkeypatch):
    model = build_model("vanilla")

    def leaky(q, k, v, visible):
        return kernels.sdpa(q, k, v, visible) + v.mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1)

    monkeypatch.setitem(kernels.KERNELS, "eager", leaky)
    assert require_causal(model, 64, ["sdpa"]) < 1e-5
    with pytest.raises(RunFailed, match="kernel eager"):
        require_causal(model, 64, ["eager", "sdpa"])
    assert model.kernel == "auto" and window_reach(model, 9) == 64


def test_a_runs_own_text_is_not_measured_whole(trained, tmp_path):
    config, runs = trained
    own = evaluate_run(str(runs / "parent"), Runs(runs), None, [], lambda text: None)
    again = evaluate_run(str(runs / "parent"), Runs(runs), config.data.source, [], lambda text: None)
    assert again["validation"] == own["validation"]
    other = f"text:{write_text(tmp_path / 'other.txt', 50_000, seed=3)}"
    setting = ["evaluation={validation_windows: 100000}"]
    whole = evaluate_run(str(runs / "parent"), Runs(runs), other, setting, lambda text: None)
    assert whole["validation"]["n"] > 0.9 * 50_000 / config.training.seq_len


def test_evaluation_checks_the_vocabulary_too(trained):
    _, runs = trained
    settings = ["data.mix={text: 0.5, retrieval: 0.5, assignment: 0.0}", "data.tokenizer=byte"]
    model = build_model("vanilla", shape={"vocab": 260})
    config = resolve("vanilla", "tiny", settings=[*settings, "shape.vocab=260"])
    corpus = corpus_for(
        resolve("vanilla", "tiny", settings=["data.tokenizer=byte", "data.max_documents=40"]).data, runs
    )
    with pytest.raises(UserError, match="shape.vocab = 260"):
        measure(model, config, corpus, "fp32")


# ---- data ----


def test_a_tokenizers_own_truncation_and_padding_are_switched_off(tmp_path):
    tokenizer = make_tokenizer("byte", [])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = make_tokenizer(f"file:{tmp_path}", [])
    assert len(loaded.encode("a" * 100).ids) == 100 and isinstance(loaded, Tokenizer)


def test_a_document_that_spells_out_the_end_does_not_end(tmp_path):
    lines = [json.dumps({"text": "before <|end|> after"})] * 4
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    data = resolve(
        "vanilla", "tiny", settings=[f"data.source=jsonl:{tmp_path / 'a.jsonl'}", "data.tokenizer=byte"]
    ).data
    prepare(data, tmp_path / "out")
    corpus = open_corpus(tmp_path / "out")
    assert sum(int((shard == corpus.meta["tokenizer"]["end"]).sum()) for shard in corpus.train + corpus.validation) == 4


def test_shards_changed_at_equal_size_are_noticed_by_a_run(small, tmp_path, text_file):
    data = small().data
    prepare(data, tmp_path / "p")
    shard = tmp_path / "p" / "train-00000.bin"
    raw = bytearray(shard.read_bytes())
    raw[100:110] = b"\x01" * 10
    shard.write_bytes(raw)
    config = small(settings=[f"data.source=shards:{tmp_path / 'p'}"])
    with pytest.raises(UserError, match="digest"):
        execute(config, RunFolder(tmp_path / "run"), Runs(tmp_path), quiet=True)


@pytest.mark.parametrize("line", ['{"text": "\\ud800"}', '{"text": ' + "9" * 5000 + "}", "[" * 100_000])
def test_strange_jsonl_lines_are_explained(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(UserError, match="a.jsonl:1"):
        list(read_documents(f"jsonl:{tmp_path / 'a.jsonl'}"))


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"text": "one"}\n')
    assert list(read_documents(f"jsonl:{tmp_path / 'a.jsonl'}")) == ["one"]


# ---- damaged files ----


@pytest.mark.parametrize("content", ["", "{}", "[]", "garbage", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00"])
def test_damaged_files_of_every_kind_end_in_a_sentence(tmp_path, content, trained):
    import shutil

    from hybridlab.models.huggingface import load_hf
    from hybridlab.plan.attention_map import read_masks

    config, runs = trained
    copy = tmp_path / "copy"
    shutil.copytree(runs / "parent", copy)
    for name, read in (
        ("run.json", lambda: RunFolder(copy).config()),
        ("record.json", lambda: RunFolder(copy).finished()),
        ("final/config.json", lambda: load_checkpoint(copy)),
        ("masks.json", lambda: read_masks(copy / "masks.json")),
        ("meta.json", lambda: open_corpus(copy)),
    ):
        (copy / name).write_text(content)
        with pytest.raises(UserError):
            read()
    (copy / "config.json").write_text(content)
    with pytest.raises(UserError):
        load_hf(copy)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "abc.json").write_text(content)
    with pytest.raises(UserError):
        load_record("abc", tmp_path)


# ---- settings ----


@pytest.mark.parametrize(
    "setting",
    [
        "window=5",
        "size=consa-0.6b",
        "training.seed=99999999999999999999999",
        "data.max_documents=99999999999999999999",
        "shape.width=100000000",
        "runtime.threads=99999999999",
        "training.optimizer.betas=[1.0, 0.9]",
        "data.validation_fraction=0.9",
        "data.source=embedded:anything",
        "shape.init.embedding_std=3000",
    ],
)
def test_settings_that_cannot_be_are_refused(setting, tmp_path):
    with pytest.raises(UserError):
        config = resolve("vanilla", "tiny", settings=[setting])
        corpus_for(config.data, tmp_path)


def test_the_advice_of_an_error_can_be_followed():
    from hybridlab.plan.attention_map import exact_count

    with pytest.raises(UserError) as caught:
        exact_count(0.3, 28, "layers")
    for word in str(caught.value).split():
        if word.startswith("0.2857") or word.startswith("0.3214"):
            assert exact_count(float(word), 28, "layers") in (8, 9)


def test_a_short_run_shortens_the_presets_warmup():
    options = Layer({"training": {"steps": 10}})
    config = compose("vanilla", None, None, None, Runs(Path("none")), None, options, [])
    assert config.training.schedule.warmup_steps == 1
    assert (
        compose("vanilla", None, None, None, Runs(Path("none")), None, Layer(), []).training.schedule.warmup_steps == 50
    )


def test_markup_in_a_text_is_shown_as_it_is(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "[/quote] [bold red]x"}) for _ in range(4)))
    code = "from hybridlab.cli.main import run; run()"
    command = [sys.executable, "-c", code, "data", "prepare", "jsonl:a.jsonl", "--tokenizer", "byte", "--out", "o[/b]"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "[/quote]" in done.stdout and "[bold red]" in done.stdout


def test_a_half_of_the_window_is_never_more_than_half_of_the_sequence():
    from hybridlab.accounting.flops import flops

    dense, rule = (flops(arch, 64, "consa", size="consa-0.6b").forward for arch in ("vanilla", "rule-swa"))
    assert rule <= dense


def test_the_meta_device_builds_a_model_of_every_family():
    for family, extra in (("llama", {}), ("qwen3", {}), ("neox", {}), ("gpt2", {"max_positions": 64})):
        shape = resolve(
            "vanilla", "tiny", layers=[Layer({"shape": {"family": family, **extra}, "training": {"seq_len": 64}})]
        )
        with torch.device("meta"):
            model = Decoder(shape.shape, plan_of(shape), map_of(shape.map, shape.shape))
        from hybridlab.accounting.parameters import count_parameters

        assert count_parameters(shape.shape).total == sum(p.numel() for p in model.parameters())
