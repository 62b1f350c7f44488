"""The commands as a user types them, with and without mistakes."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hybridlab.lab.papers.loading import experiment_ids
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.plugins import fresh_plugins
from tests.processes import Forked, command, forked_command

COMMAND = [sys.executable, "-m", "hybridlab"]


def words(text):
    """A command line as a list of words."""
    return shlex.split(text)


def hybridlab(*arguments, cwd):
    """A command in this process, which saves the start of another: exit code, standard output and standard error."""
    from hybridlab.lab.cli.main import run

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    plugins = fresh_plugins() if "--plugin" in arguments else nullcontext()
    with plugins, pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["hybridlab", *map(str, arguments)])
        try:
            run()
        except SystemExit as ended:
            code = ended.code or 0
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(arguments, code, *texts)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A working folder with a text, a settings file and one trained run."""
    folder = tmp_path_factory.mktemp("work")
    write_text(folder / "words.txt")
    settings = {"shape": {**SMALL_SHAPE, "layers": 4}, "training": SMALL_TRAINING}
    settings |= {"data": {"tokenizer": "byte"}, "evaluation": {"validation_windows": 8}}
    (folder / "small.yaml").write_text(json.dumps(settings))
    done = hybridlab("pretrain", "--data", "text:words.txt", "--config", "small.yaml", "--run-dir", "base", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "validation perplexity" in done.stdout and "step 12/12" in done.stderr
    return folder


def json_of(done):
    """Standard output as one JSON document."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_same_command_again_does_nothing(workdir):
    before = (workdir / "base" / "record.json").stat().st_mtime_ns
    done = hybridlab("pretrain", "--data", "text:words.txt", "--config", "small.yaml", "--run-dir", "base", cwd=workdir)
    assert done.returncode == 0 and "finished before" in done.stderr and "changed" not in done.stderr
    assert (workdir / "base" / "record.json").stat().st_mtime_ns == before


def test_a_finished_run_says_that_its_text_has_changed_since(workdir, tmp_path):
    text, places = tmp_path / "text.txt", ("--runs-dir", str(tmp_path / "runs"), "--config", "small.yaml")
    text.write_text((workdir / "words.txt").read_text())
    other = tmp_path / "other.txt"
    other.write_text(text.read_text())
    for data in ([f"text:{text}"], [f"text:{text}@0.5", f"text:{other}@0.5"]):
        command = ["pretrain", *(word for one in data for word in ("--data", one)), *places]
        for _ in range(2):
            done = hybridlab(*command, cwd=workdir)
            assert done.returncode == 0 and "written again" not in done.stderr
        text.write_text(text.read_text() + "another line\n")
        assert "the files of its data were written again since" in hybridlab(*command, cwd=workdir).stderr


STAGE_1 = words(
    "--rho 0.25 --granularity head-all --steps 20 --set controller.mask_lr=0.5 --set controller.multiplier_lr=0.5 "
    "--window 4 --set training.schedule.warmup_steps=1"
)


def test_both_stages_of_consa(workdir):
    learned = json_of(hybridlab("learn-masks", *STAGE_1, *words("--from base --run-dir masks --json"), cwd=workdir))
    assert learned["hooks"]["mask-learning"]["realised_sparsity"] == 0.25
    masks = json.loads((workdir / "masks" / "masks.json").read_text())
    assert sum(v == 0 for row in masks["masks"] for v in row) == 2 and masks["window"] == 4
    assert masks["source_run"] == learned["hash"] and learned["parents"]
    # Two of eight KV heads keep the last four tokens.
    assert list(learned["kv_bytes"]) == ["4096", "32768", "131072"]
    sizes = learned["kv_bytes"]["4096"]
    assert sizes["masks"] / sizes["full"] == pytest.approx((6 * 4096 + 2 * 4) / (8 * 4096))
    shown = hybridlab("learn-masks", *words("--from base --run-dir masks"), *STAGE_1, cwd=workdir).stdout
    assert "L4  " in shown and "one letter per KV head" in shown and "131,072" in shown and "25.0%" in shown
    stage2 = json_of(
        hybridlab(
            "pretrain",
            *words("--arch consa --masks masks/masks.json --from masks --steps 4"),
            *words("--set training.schedule.warmup_steps=1 --run-dir stage2 --json"),
            cwd=workdir,
        )
    )
    assert stage2["model"]["sparsity"] == 0.25 and stage2["parents"] == [learned["hash"]]
    assert "mixed" not in json.dumps(stage2["kernels"])


@pytest.mark.parametrize(
    ("arguments", "rho", "granularity"),
    [
        ("", 0.5, "head-all"),
        ("--arch l1-gates", 0.5, "layer"),
        ("--arch ./gates.yaml", 0.5, "layer"),
        ("--config learn.yaml", 0.25, "layer"),
        ("--config learn.yaml --rho 0.75", 0.75, "layer"),
    ],
)
def test_options_of_masks_that_are_not_typed_leave_what_file_and_arch_say(workdir, arguments, rho, granularity):
    (workdir / "gates.yaml").write_text("map: {kind: mixed}\ncontroller: {kind: l1-gates}\n")
    (workdir / "learn.yaml").write_text("arch: consa\ncontroller: {rho: 0.25, granularity: layer}\n")
    learn = words(f"learn-masks --from base --steps 2 --window 4 --set training.schedule.warmup_steps=1 {arguments}")
    controller = json_of(hybridlab(*learn, "--json", cwd=workdir))["config"]["controller"]
    assert (controller["rho"], controller["granularity"]) == (rho, granularity)


@pytest.mark.parametrize("arch", ["consa", "l1-gates"])
def test_masks_that_have_not_settled_warn_where_they_are_made_and_used(workdir, arch):
    run, settings = f"unsettled-{arch}", words("--set training.schedule.warmup_steps=1 --json")
    learn = words(f"learn-masks --arch {arch} --from base --granularity layer --steps 5 --window 4 --run-dir {run}")
    learned = hybridlab(*learn, *settings, cwd=workdir)
    (results,) = json_of(learned)["hooks"].values()
    (warning,) = results["warnings"]
    assert results["settled"] is False and warning.startswith("the masks have not settled: ")
    assert "in each of the last 10 steps, and there were 5 in all; learn them with more steps" in warning
    assert f"learn-masks: warning: {warning}" in learned.stderr.splitlines()
    masks = json.loads((workdir / run / "masks.json").read_text())
    assert masks["settled"] is False and masks["warnings"] == [warning]
    assert f"learn-masks: warning: {warning}" in hybridlab(*learn, *settings, cwd=workdir).stderr.splitlines()
    use = words(f"pretrain --arch {arch} --masks {run}/masks.json --from {run} --steps 2 --run-dir {run}-2")
    used = hybridlab(*use, *settings, cwd=workdir)
    assert used.returncode == 0 and f"{run}/masks.json: warning: {warning}" in used.stderr.splitlines()


def test_masks_of_older_versions_are_used_without_a_warning(workdir):
    masks = {"masks": [[0, 1]] * 4, "window": 4}
    (workdir / "old-masks.json").write_text(json.dumps(masks))
    use = words("pretrain --arch consa --masks old-masks.json --from base --steps 2 --run-dir old-masks --json")
    done = hybridlab(*use, "--set", "training.schedule.warmup_steps=1", cwd=workdir)
    assert done.returncode == 0 and "warning" not in done.stderr
    (workdir / "old-masks.json").write_text(json.dumps(masks | {"warnings": 3}))
    assert "is a list of sentences" in hybridlab(*use, cwd=workdir).stderr


def test_eval_on_own_and_on_other_text(workdir):
    own = json_of(hybridlab("eval", "base", "--json", cwd=workdir))
    record = json.loads((workdir / "base" / "record.json").read_text())
    assert own["validation"] == record["results"]["validation"]
    write_text(workdir / "other.txt", seed=9)
    other = json_of(hybridlab("eval", "base", "--data", "text:other.txt", "--json", cwd=workdir))
    assert other["validation"]["loss"] != own["validation"]["loss"] and other["validation"]["loss"]["n"] == 8


def test_a_child_on_other_text_keeps_the_tokenizer_and_takes_the_text(workdir):
    write_text(workdir / "third.txt", seed=5)
    arguments = ["--from", "base", "--data", "text:third.txt", "--steps", "3", "--run-dir", "third", "--json"]
    record = json_of(hybridlab("pretrain", *arguments, cwd=workdir))
    assert record["data"]["source"].endswith("third.txt")
    assert record["config"]["data"]["tokenizer"].endswith("base/final/tokenizer.json")


def test_masks_are_learned_on_an_imported_model(workdir):
    """A random Llama in the Hugging Face layout, through both stages."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    torch.manual_seed(0)
    imported = LlamaForCausalLM(LlamaConfig(vocab_size=300, intermediate_size=48, tie_word_embeddings=False, **shape))
    imported.save_pretrained(workdir / "imported", safe_serialization=True)
    (workdir / "imported" / "tokenizer.json").write_text((workdir / "base" / "final" / "tokenizer.json").read_text())
    common = words("--data text:words.txt --json --set training.tokens_per_step=256 --set training.seq_len=32")
    common += words("--set training.schedule.warmup_steps=1 --set evaluation.validation_windows=4")
    learned = json_of(
        hybridlab(
            "learn-masks",
            *words("--from imported --rho 0.5 --granularity head-single --window 4 --steps 6"),
            *words("--run-dir hf-masks"),
            *common,
            cwd=workdir,
        )
    )
    assert learned["parents"][0].startswith("hf-") and learned["model"]["sparsity"] == 0.5
    assert learned["config"]["shape"]["family"] == "llama" and learned["config"]["shape"]["vocab"] == 300
    second = json_of(
        hybridlab(
            "pretrain",
            *words("--arch consa --from hf-masks --masks hf-masks/masks.json --steps 3 --run-dir hf-two"),
            "--json",
            cwd=workdir,
        )
    )
    assert second["model"]["sparsity"] == 0.5
    gates = json_of(
        hybridlab(
            "learn-masks",
            *words("--arch l1-gates --from imported --granularity layer --window 4 --steps 3"),
            *words("--run-dir hf-gates"),
            *common,
            cwd=workdir,
        )
    )
    assert gates["hooks"]["l1-gates"]["realised_sparsity"] == 0.5


def test_ablate(workdir):
    arguments = ["ablate", "--vary", "map.rho=0,0.5", "--vary", "arch=rule-swa", "--seeds", "2"]
    arguments += ["--data", "text:words.txt", "--config", "small.yaml", "--steps", "3", "--results-dir", "res"]
    table = json_of(hybridlab(*arguments, "--json", cwd=workdir))
    assert [row["name"] for row in table["rows"]] == ["map.rho=0, arch=rule-swa", "map.rho=0.5, arch=rule-swa"]
    assert all(set(table["runs"][row["name"]]) == {"0", "1"} for row in table["rows"])
    first, second = (row["cells"] for row in table["rows"])
    assert first["sparsity"]["measured"] == 0 and second["sparsity"]["measured"] == 0.5 and second["loss"]["n"] == 2
    assert "difference" not in first["loss"] and "inside" not in first
    difference = second["loss"]["difference"]
    assert difference["value"] == pytest.approx(second["loss"]["measured"] - first["loss"]["measured"], abs=1e-6)
    (claim,) = table["claims"]
    assert claim["comparisons"][0]["stderr"] is not None and claim["verdict"] == "open"
    page = (workdir / "res" / table["id"] / "desk" / "table.md").read_text()
    assert "\n– was not measured. Δ: difference to" in page and "paper" not in page
    assert "paired" in hybridlab(*arguments, cwd=workdir).stdout
    longer = hybridlab(*arguments, "--long", "--metric", "perplexity", cwd=workdir).stdout
    assert "rho=0.5, arch=rule-swa is better than" in longer and "by seed: 0 " in longer
    for reference in (f"res/{table['id']}/ablate.yaml", table["id"]):
        other = hybridlab("reproduce", reference, *arguments[-2:], "--json", cwd=workdir)
        assert json_of(other)["rows"] == table["rows"]


GROW = ["--set", "controller.start_step=3", "--set", "controller.interval=3", "--set", "controller.fade_steps=3"]


def test_sgt_its_baselines_and_its_probes(workdir):
    shared = ["--data", "text:words.txt", "--config", "small.yaml"]
    grown = json_of(hybridlab("pretrain", "--arch", "sgt", *shared, *GROW, "--run-dir", "sgt", "--json", cwd=workdir))
    assert "heads" in grown["model"]["plan"] and grown["events"][0]["step"] == 3
    watched = hybridlab("pretrain", *shared, "--set", "observe.entropy_every=4", "--run-dir", "watched", cwd=workdir)
    assert watched.returncode == 0, watched.stderr
    wrong = hybridlab(
        "pretrain", "--arch", "block-loop", *shared, "--entropy-of", "watched", "--run-dir", "b", cwd=workdir
    )
    assert wrong.returncode == 2 and "no entropies of step 40 (it has 1, 4, 8, 12)" in wrong.stderr
    assert not (workdir / "b").exists()
    layers = "plan=[{op: loop_blocks, layers: {top_entropy_of: watched, step: 4, n: 3}}]"
    block = json_of(hybridlab("pretrain", "--arch", "block-loop", *shared, "--set", layers, "--json", cwd=workdir))
    assert block["model"]["plan"] == "L1 → L2 → L2 → L3 → L3 → L4 → L4"
    assert block["parents"] == [json.loads((workdir / "watched" / "record.json").read_text())["hash"]]
    attention = json_of(hybridlab("pretrain", "--arch", "attention-loop", *shared, "--json", cwd=workdir))
    assert "L4 attention heads 1,2,3,4" in attention["model"]["plan"]
    text = hybridlab("pretrain", "--arch", "sgt", *shared, *GROW, "--run-dir", "sgt", cwd=workdir)
    assert "plan at the end: L1" in text.stdout

    entropy = json_of(hybridlab("analyze", "sgt", "--probe", "entropy", "--rows", "5", "--json", cwd=workdir))
    assert entropy["sequences"] == 5 and len(entropy["heads"]) == 4
    convergence = hybridlab("analyze", "base", "--probe", "convergence", "--passes", "3", cwd=workdir)
    assert convergence.returncode == 0 and "Lemma 1 fails on" in convergence.stdout
    assert all(len(line) <= 80 for line in convergence.stdout.splitlines())
    shown = hybridlab("analyze", "sgt", "--probe", "contributions", cwd=workdir)
    assert shown.returncode == 0 and shown.stdout.count("loop 1") == 2
    assert hybridlab("generate", "sgt", "the cat", "--max-new-tokens", "8", cwd=workdir).returncode == 0
    planned = json_of(hybridlab("plan", "--arch", "sgt", "--size", "olmo-573m", "--json", cwd=workdir))
    assert "heads" in planned["run"]["grows_to"] and 0 < planned["run"]["overhead_percent"] < 1


def test_loops_over_resolutions(workdir):
    shared = ["--data", "text:words.txt", "--config", "small.yaml"]
    made = json_of(hybridlab("pretrain", "--arch", "spiral-b", *shared, "--run-dir", "spiral", "--json", cwd=workdir))
    assert "× {1/8, 1/4, 1/2, 1} mesh" in made["model"]["plan"]
    loops = json_of(hybridlab("analyze", "spiral", "--probe", "loops", "--rows", "4", "--json", cwd=workdir))
    assert loops["chunks"] == [8, 4, 2, 1] and loops["sequences"] == 4
    for probe in ("loops", "reach"):
        shown = hybridlab("analyze", "spiral", "--probe", probe, cwd=workdir)
        assert shown.returncode == 0 and all(len(line) <= 80 for line in shown.stdout.splitlines()), shown.stderr
    planned = hybridlab("plan", "--arch", "spiral-l", "--size", "pythia-410m", cwd=workdir)
    assert "iterations that run at each position" in planned.stdout.replace("\n", " ")
    assert hybridlab("eval", "spiral", cwd=workdir).returncode == 0
    assert hybridlab("generate", "spiral", "the cat", "--max-new-tokens", "9", cwd=workdir).returncode == 0
    budget = json_of(hybridlab("pretrain", *shared, "--set", "budget.flops=3e8", "--json", cwd=workdir))
    assert budget["flops"] == pytest.approx(3e8, rel=0.2)


def test_generate(workdir):
    done = json_of(hybridlab("generate", "base", "the cat", "--max-new-tokens", "9", "--json", cwd=workdir))
    assert done["text"].startswith("the cat") and done["new_tokens"] == 9
    plain = json_of(
        hybridlab("generate", "base", "the cat", "--max-new-tokens", "9", "--no-cache", "--json", cwd=workdir)
    )
    assert plain["text"] == done["text"]
    drawn = hybridlab("generate", "base", "the cat", "--temperature", "1", "--top-p", "0.9", "--seed", "3", cwd=workdir)
    assert drawn.returncode == 0 and drawn.stdout.startswith("the cat")


def test_plans_say_how_settings_count_layers_and_heads(workdir):
    shown = hybridlab("plan", "--set", "plan=[{op: loop_heads, layer: 5, heads: [3]}]", cwd=workdir).stdout
    assert "L6 attention heads 4" in shown and "which count from 0, L6 is layer 5 and head 4 is head 3" in shown
    settings = "--set controller.heads=1 --set growth.start_step=2 --set growth.interval=2 --set growth.fade_steps=0"
    grown = hybridlab(
        *words(f"pretrain --arch sgt --data text:words.txt --config small.yaml --run-dir grown {settings}"), cwd=workdir
    )
    assert "plan at the end" in grown.stdout and "which count from 0, L6 is layer 5" in grown.stdout
    probed = hybridlab(*words("analyze grown --probe entropy --rows 2"), cwd=workdir).stdout
    assert "layer from 0" in probed and "0 (L1)" in probed


def test_plan_list_and_data(workdir):
    plan = json_of(
        hybridlab("plan", "--arch", "rule-swa", "--size", "consa-0.6b", "--seq-len", "32768", "--json", cwd=workdir)
    )
    assert plan["kv_bytes"] / (28 * 8 * 2 * 64 * 2 * 32768) <= 0.52
    shown = hybridlab("plan", "--seq-len", "64", "--svg", "plan.svg", cwd=workdir)
    assert "KV cache" in shown.stdout and "L8  FFFF  MLP" in shown.stdout
    assert len(ElementTree.parse(workdir / "plan.svg").findall(".//{*}rect")) == 8 * 4 + 8 + 1
    ids = [e["id"] for e in json_of(hybridlab("list", "--json", cwd=workdir))["entries"]]
    assert "consa-table1" in ids and "consa-table4" in ids
    done = json_of(
        hybridlab("data", "prepare", "text:words.txt", "--out", "shards", "--tokenizer", "byte", "--json", cwd=workdir)
    )
    assert json_of(hybridlab("data", "inspect", "shards", "--json", cwd=workdir)) == done
    options = words("pretrain --data shards:shards --steps 3 --run-dir s")
    refused = hybridlab(*options, "--config", "small.yaml", cwd=workdir)
    assert refused.returncode == 2
    assert "small.yaml:1: data.tokenizer has no effect on shards:shards" in refused.stderr
    settings = json.loads((workdir / "small.yaml").read_text())
    (workdir / "on-shards.yaml").write_text(json.dumps({**settings, "data": {}}))
    trained = hybridlab(*options, "--config", "on-shards.yaml", cwd=workdir)
    assert trained.returncode == 0, trained.stderr


def test_reproduce_and_report_table_4(workdir):
    table = json_of(hybridlab("reproduce", "consa-table4", "--results-dir", "res", "--json", cwd=workdir))
    cells = {row["name"]: row["cells"] for row in table["rows"]}
    for size, dense, half in (("0.6B", 17.42, 14.65), ("1.7B", 52.57, 47.02)):
        assert round(cells[size]["dense"]["measured"], 2) == dense and cells[size]["dense"]["verdict"] == "agrees"
        assert round(cells[size]["consa"]["measured"], 2) == half and cells[size]["consa"]["verdict"] == "agrees"
    assert round(cells["0.6B"]["reduction"]["measured"], 2) == 15.91
    assert round(cells["1.7B"]["reduction"]["measured"], 2) == 10.54
    assert cells["1.7B"]["reduction"]["verdict"] == "differs"
    folder = workdir / "res" / "consa-table4" / "smoke"
    assert sorted(p.name for p in folder.iterdir()) == ["table.json", "table.md"]
    written = {p.name: p.read_text() for p in folder.iterdir()}
    assert json_of(hybridlab("report", "consa-table4", "--results-dir", "res", "--json", cwd=workdir)) == table
    assert {p.name: p.read_text() for p in folder.iterdir()} == written


@pytest.mark.parametrize("every", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.full)])
def test_tables_fit_eighty_columns(workdir, every):
    for identifier in experiment_ids()[::every]:
        out = hybridlab("report", identifier, "--results-dir", "empty", cwd=workdir).stdout
        assert max(map(len, out.splitlines())) <= 80


def test_columns_of_the_paper_alone_are_shown_when_asked_for(workdir):
    few = hybridlab("report", "consa-table1", "--results-dir", "empty", cwd=workdir).stdout
    assert "not measured here: MMLU" in few and "45.51" not in few
    every = hybridlab("report", "consa-table1", "--results-dir", "empty", "--all-columns", cwd=workdir).stdout
    assert "not measured here" not in every and "– | 45.51" in every


MISTAKES = [
    (
        ["analyze", "base", "--probe", "x"],
        "known: answers, attention-maps, belief, blocks, contributions, convergence, dependency, ",
    ),
    (["analyze", "base", "--probe", "entropi"], "did you mean 'entropy'"),
    (
        ["analyze", "base", "--probe", "entropy", "--rows", "0"],
        "rows = '0': input should be greater than or equal to 1",
    ),
    (["analyze", "base", "--probe", "entropy", "--rows"], "rows = '': input should be a valid integer"),
    (["analyze", "base", "--probe", "entropy", "--rowz", "3"], "did you mean '--rows'"),
    (
        ["analyze", "base", "--probe", "reach", "--rows", "3"],
        "--rows has no effect on --probe reach; it takes no settings",
    ),
    (["analyze", "--probe", "entropy", "--rows", "3"], "give one run to analyse, not 0"),
    (["pretrain", "--set", "evaluation.probes=[entropi]"], "did you mean 'entropy'"),
    (["analyze", "base", "--probe", "loops"], "the plan has no loop over iterations"),
    (["pretrain", "--arch", "spiral-b", "--set", "recurrence.shift=2"], "see their own future"),
    (["pretrain", "--arch", "spiral-b", "--set", "recurrence.chunkz=[2]"], "did you mean 'chunks'"),
    (["pretrain", "--arch", "spiral-b", "--set", "recurrence.allocation=odd"], "allocation = 'odd'"),
    (["pretrain", "--set", "recurrence=5"], "recurrence"),
    (["pretrain", "--set", "budget.flops=1"], "buys 0 steps"),
    (["pretrain", "--set", "budget.flopz=1"], "did you mean 'flops'"),
    (["analyze", "base", "--probe", "entropy", "--passes", "3"], "--passes has no effect on --probe entropy"),
    (["analyze", "base", "--probe", "blocks"], "this run was not grown by blocks"),
    (["analyze", "base", "--probe", "effects", "--at", "0,1"], "leave no future tokens"),
    (["analyze", "base", "--probe", "convergence", "--heads", "9"], "two sets of 9 heads: a layer of this model has 4"),
    (["pretrain", "--entropy-of", "base", "--steps", "2"], "--entropy-of has no effect on --arch vanilla"),
    (["pretrain", "--arch", "block-loop", "--entropy-of", "zzz"], "neither a run folder nor the start"),
    (["pretrain", "--arch", "sgt", "--steps", "20"], "nothing would grow in 20 steps"),
    (["pretrain", "--arch", "sgt", "--set", "controller.layers=[0]"], "layer 0 (L1) is both fixed and excluded"),
    (["pretrain", "--arch", "sgt", "--set", "controller.headz=3"], "did you mean 'heads'"),
    (["pretrain", "--arch", "sgt", "--set", "controller.heads=9"], "a layer has 8 heads"),
    (["pretrain", "--arch", "sgt", "--set", "controller.exclude=[99]"], "exclude names layer 99"),
    (["pretrain", "--arch", "sgt", "--set", "growth=5"], "must be a mapping"),
    (["pretrain", "--set", "growth.strat_step=9"], "did you mean 'start_step'"),
    (["pretrain", "--set", "growth.start_step=9"], "no controller grows"),
    (["pretrain", "--arch", "sgt", "--set", "controller.max_passes=2000000000"], "max_passes"),
    (["plan", "--set", "plan=[{op: loop_blocks, layers: {top_entropy_of: base, step: 4, n: 3}}]"], "not here"),
    (["pretrain", "--arch", "vanila"], "did you mean 'vanilla'"),
    (["pretrain", "--size", "tny"], "did you mean 'tiny'"),
    (["pretrain", "--data", "nosuch"], "neither a data preset"),
    (["pretrain", "--data", "text:nosuch.txt"], "no such file"),
    (["pretrain", "--set", "training.stepz=3"], "did you mean 'steps'"),
    (["pretrain", "--set", "runtime.device=cuda:9"], "CUDA devices"),
    (["pretrain", "--set", "runtime.device=tpu"], "runtime.device"),
    (["pretrain", "--set", "runtime.kernel=flex"], "no backward pass on a CPU"),
    (["pretrain", "--set", "runtime.kernel=xformers"], "CUDA GPU only"),
    (["pretrain", "--set", "runtime.kernel=triton"], "CUDA GPU only"),
    (["ablate", "--vary", "map.rho"], "name.of.setting=value"),
    (["ablate", "--vary", "training.seed=1,1"], "a value is written twice"),
    (["ablate", "--vary", "training.seed=1,2"], "write --seeds 1,2"),
    (["ablate", "--vary", "training.clip=1.0,2.0", "--set", "training.seed=5"], "write --seeds 5-5"),
    (["ablate", "--vary", "training.clip=1.0,2.0", "--seeds", "none"], "write how many (3)"),
    (["ablate", "--vary", "runtime.kernel=eager,sdpa"], "do not change which run it is"),
    (["ablate", "--vary", "data.mix.text=1.0,1"], "data.mix.text=1.0 (seed 0) and data.mix.text=1 (seed 0)"),
    (["ablate", "--vary", "data.source=embedded,text:nosuch.txt", "--dry-run"], "nosuch.txt (seed 0): data source"),
    (["report", "ablate-00000000"], "`hybridlab ablate` has not written it; known: none"),
    (["ablate", "--vary", "training.clip=1.0,2.0", "--metric", "outside"], "--metric outside: the data have no rows"),
    (
        ["ablate", "--vary", "training.clip=1.0,2.0", "--metric", "los"],
        "there is no metric 'los'; did you mean 'loss'?",
    ),
    (["ablate", "--vary", "training.clip=1.0", "--set", "training={seed: 5}"], "given by --seeds"),
    (["ablate", "--vary", "training.clip=1.0,2.0", "--dry-run", "--long"], "leave it out with --json and --dry-run"),
    (["ablate", "--vary", "training.stepz=1,2"], "--vary training.stepz=1: training.stepz is not a known setting; did"),
    (["ablate", "--arch", "rule-swa", "--vary", "map.rho=0.25,5", "--dry-run"], "--vary map.rho=5: map.rho = 5"),
    (["report"], "give ids, or --tables or --figures"),
    (["report", "--tables", "--scale", "tinny"], "--scale tinny: no table has it; known scales: desk"),
    (["learn-masks", "--arch", "vanilla", "--from", "base"], "masks are learned by others; add --arch consa"),
    (["learn-masks", "--arch", "l1-gates", "--from", "base", "--binarize", "topk"], "binarize is not a known setting"),
    (["generate", "base", ""], "empty"),
    (["generate", "base", "text", "--top-k", "3"], "no effect on greedy"),
    (["generate", "nosuch", "text"], "neither a run folder"),
    (["pretrain", "--config", "nosuch.yaml"], "no such file"),
    (["pretrain", "--arch", "consa"], "learn-masks"),
    (["pretrain", "--arch", "consa", "--masks", "nosuch.json"], "no such masks file"),
    (["pretrain", "--masks", "nosuch.json"], "--masks belongs to --arch consa or l1-gates"),
    (["pretrain", "--nearest"], "--nearest has no effect"),
    (["pretrain", "--arch", "rule-swa", "--set", "map.rho=0.3"], "0.28125 (9 KV heads) or 0.3125 (10 KV heads)"),
    (["pretrain", "--arch", "rule-swa", "--set", "map.rho=1.3"], "map.rho = 1.3"),
    (["pretrain", "--arch", "all-window", "--set", "window=0"], "map.window = 0"),
    (["pretrain", "--from", "nosuch"], "neither a run folder"),
    (["learn-masks", "--from", "nosuch"], "neither a run folder"),
    (["learn-masks", "--from", "base", "--rho", "2"], "controller.rho = 2"),
    (["learn-masks", "--from", "base", "--rho", "0.3"], "or add --nearest"),
    (["learn-masks", "--from", "base", "--set", "controller=5"], "controller = 5: must be a mapping"),
    (
        ["learn-masks", "--from", "base", "--rho", "0.5", "--set", "controller.rho=0.25"],
        "--rho gives controller.rho too",
    ),
    (["pretrain", "--steps", "3", "--set", "training.steps=4"], "--steps gives training.steps too; leave one of the"),
    (["learn-masks", "--from", "base", "--granularity", "heads"], "controller.granularity = 'heads'"),
    (["learn-masks", "--from", "base", "--window", "0"], "map.window = 0"),
    (["eval", "nosuch"], "neither a run folder"),
    (["eval", "base", "--set", "shape.width=3"], "train another run"),
    (["eval", "base", "--set", "evaluation.benchmarks.tasks=[piqa]"], "ask for them with --tasks or --suite"),
    (["eval", "base", "--set", "evaluation={at_steps: [1]}"], "evaluation.at_steps has no effect on an evaluation"),
    (["eval", "base", "--set", "runtime.compile=true"], "runtime.compile has no effect on an evaluation"),
    (["reproduce", "consa-table9"], "did you mean 'consa-table"),
    (["reproduce", "consa-table1", "--scale", "huge"], "scales"),
    (["plan", "--set", "shape.kv_heads=3"], "not a multiple of kv_heads 3"),
    (["data", "inspect", "."], "not prepared data"),
    (["data", "prepare", "text:words.txt", "--out", "base"], "not empty"),
    (["data", "prepare", "text:binary.txt", "--out", "o"], "binary"),
    (["data", "prepare", "text:empty.txt", "--out", "o"], "no text"),
]


def short_name(value):
    """A test's id: the start of its command."""
    return " ".join(value)[:60] if isinstance(value, list) else ""


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=short_name)
def test_mistakes_end_in_one_sentence_and_exit_code_2(workdir, arguments, message):
    (workdir / "binary.txt").write_bytes(b"a\0b")
    (workdir / "empty.txt").write_text("")
    files = {p for p in Path(workdir).rglob("*") if "runs" not in p.parts}
    done = hybridlab(*arguments, cwd=workdir)
    assert done.returncode == 2 and message in done.stderr
    *progress, last = done.stderr.strip().splitlines()
    assert last.startswith("error: ") and "Traceback" not in done.stderr
    assert all(line.startswith("data: ") for line in progress)
    assert {p for p in Path(workdir).rglob("*") if "runs" not in p.parts} <= files | {workdir / "o"}


def test_mistakes_on_the_command_line_itself(workdir):
    for arguments in (["pretrain", "--steps", "0"], ["nonsense"], ["pretrain", "--stepz", "3"]):
        done = hybridlab(*arguments, cwd=workdir)
        assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(tmp_path, number, code):
    write_text(tmp_path / "my words.txt")
    settings = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3000}, "data": {"tokenizer": "byte"}}
    (tmp_path / "small.yaml").write_text(json.dumps(settings | {"runtime": {"log_every": 1}}))
    arguments = ["pretrain", "--data", "text:my words.txt", "--config", "small.yaml", "--run-dir", "run"]
    process = Forked(command, arguments, cwd=tmp_path)
    while not (tmp_path / "run" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in err
    (said, again) = err.splitlines()[-2:]
    assert said.startswith("interrupted: run: stopped after step ") and said.endswith("; go on with")
    assert shlex.split(again) == ["hybridlab", *arguments]
    step = int(said.split()[5].rstrip(";"))
    assert (tmp_path / "run" / "checkpoints" / f"step-{step:08d}").is_dir()


def test_control_c_in_a_command_without_checkpoints(workdir, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridlab.runs.evaluate.measure", stopped)
    done = hybridlab("eval", "base", cwd=workdir)
    assert done.returncode == 130 and done.stderr == "interrupted\n" and done.stdout == ""


@pytest.mark.long
@pytest.mark.parametrize("arguments", ["plan", "list --json"])
def test_a_reader_that_stops_reading_is_no_error(workdir, arguments):
    """As in `hybridlab plan | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words(arguments)], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=workdir, timeout=300
    )
    os.close(writer)
    assert done.returncode == 0 and done.stderr == ""


def test_progress_without_a_reader_does_not_end_a_run(workdir):
    arguments = words("pretrain --data text:words.txt --config small.yaml --seed 5 --run-dir unheard --json")
    done = forked_command(*arguments, cwd=workdir, first=nobody_reads_progress)
    assert json_of(done)["status"] == "finished" and not done.stderr


def nobody_reads_progress():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, sys.stderr.fileno())


def test_a_full_disk_behind_standard_output_is_one_sentence(workdir):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "list", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr == "failed: input or output: No space left on device\n"


def test_square_brackets_in_a_text_are_printed_literally(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": "[/quote] [bold red]x"}) for _ in range(4)))
    done = hybridlab("data", "prepare", "jsonl:a.jsonl", "--tokenizer", "byte", "--out", "o[/b]", cwd=tmp_path)
    assert done.returncode == 0 and "[/quote]" in done.stdout and "[bold red]" in done.stdout
