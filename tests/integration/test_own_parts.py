"""What docs/plugins.md shows works: its files are written into an empty folder, and its commands run there."""

import json
import re
import shlex
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.processes import forked_python

TEXT = (ROOT / "docs" / "plugins.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
RUN = """
import json, sys

from hybridlab.lab.cli.main import app

for words in json.loads(sys.argv[1]):
    print("$", *words)
    app(words, standalone_mode=False)
"""
"""The commands in one process, so that plug-ins are loaded once."""


def files():
    """path → text of every block whose first line is a comment with a path and nothing else."""
    texts = {}
    for _, text in BLOCKS:
        first, _, rest = text.partition("\n")
        if re.fullmatch(r"# [\w./-]+\.(py|yaml)", first):
            texts[first.removeprefix("# ")] = rest
    return texts


def commands(section):
    """The `hybridlab` commands of the section with this heading, as words."""
    part = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    return [shlex.split(line)[1:] for line in lines if line.startswith("hybridlab ")]


def run(folder, words):
    """Run commands in a folder; returns what each has printed."""
    shown = forked_python(RUN, json.dumps(words), cwd=folder)
    return re.split(r"^\$ .*\n", shown, flags=re.MULTILINE)[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Outside of the package: the page's own files and text."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for path, text in files().items():
        if not path.startswith("hybridlab/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    (line,) = re.findall(r"^python (.*)$", TEXT, re.MULTILINE)
    subprocess.run(f"{shlex.quote(sys.executable)} {line}", shell=True, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def printed(folder):
    """What each command of these sections prints, by the first word after `hybridlab` and its plug-ins."""
    sections = ("An architecture", "A probe", "A paper")
    words = [command for section in sections for command in commands(section)]
    return list(zip(words, run(folder, words), strict=True))


def output_of(printed, *words):
    """What the first command with all of these words has printed."""
    return next(text for command, text in printed if {*words} <= {*command})


def test_the_architecture_is_drawn_and_billed(folder, printed):
    plan = output_of(printed, "plan")
    assert re.search(r"^L1  ss  MLP$", plan, re.MULTILINE) and "s sinks" in plan and "FLOPs forward" in plan
    svg = (folder / "sinks.svg").read_text()
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
    assert texts.count("sinks") == 1 and "#009E73" in svg


def test_the_architecture_trains_and_decodes(folder, printed):
    record = json.loads((folder / "runs" / "sinks" / "record.json").read_text())
    kinds = {kind["kind"] for row in record["structure"]["map"] for kind in row}
    assert record["status"] == "finished" and kinds == {"sinks"} and record["model"]["sparsity"] == 1
    assert output_of(printed, "generate").startswith("the cat")


def test_a_preset_may_extend_another(folder, printed):
    records = [json.loads(path.read_text()) for path in folder.glob("runs/*/record.json")]
    (looped,) = [record for record in records if record["config"]["arch"] == "sinks-looped"]
    assert looped["model"]["plan"].count("L4 attention") == 2


def test_the_attention_kind_sees_is_billed_and_caches_what_it_should(folder):
    """A query sees the first two and the last eight tokens, the bill counts just these, the cache gives the same."""
    code = """
import torch, hybridlab
from hybridlab.models.cache import KVCache
hybridlab.load_plugin("sinks.py")
kind = {"kind": "sinks", "sinks": 2, "width": 8}
shape = {"layers": 1, "width": 24, "heads": 4, "kv_heads": 2, "head_width": 8, "ffn_width": 40, "vocab": 50}
model = hybridlab.build_model("vanilla", shape=shape, map={"kind": "uniform", "attention": kind}).double().eval()
tokens = torch.randint(50, (1, 20), generator=torch.Generator().manual_seed(0))
weights = model(tokens, need="full").attention[(0,)]
seen = [(i, j) for i in range(20) for j in range(i + 1) if j < 2 or j > i - 8]
assert {tuple(p) for p in (weights[0] > 0).any(0).nonzero().tolist()} == set(seen)
pairs = hybridlab.flops(model, 20, "pairs").breakdown["attention"]
assert abs(pairs - 4 * 8 * 4 * len(seen)) < 1e-6, (pairs, len(seen))
cache = KVCache(model.structure, 1)
with torch.no_grad():
    cached = torch.cat([model(part, cache=cache).logits for part in tokens.split([5, 1, 7, 1, 6], dim=1)], dim=1)
    torch.testing.assert_close(cached, model(tokens).logits, atol=1e-10, rtol=1e-8)
"""
    forked_python(code, cwd=folder)


def test_the_hook_the_task_and_the_source_act_on_their_runs(folder):
    """Each plug-in in a process of its own, since one that is loaded counts for every run."""
    for section in ("A hook", "A task and a data source"):
        run(folder, commands(section))
    records = {name: json.loads((folder / "runs" / name / "record.json").read_text()) for name in ("small", "copying")}
    size = records["small"]["history"]["squared_weights"]
    assert size[-1] < size[0] and [*records["small"]["config"]["plugins"]] == ["small_weights"]
    task = records["copying"]["results"]["tasks"]["copying"]
    assert task["chance"] == 1 / 8 and task["all"]["n"] > 100
    assert records["copying"]["config"]["data"]["source"] == "counted:sheep"


def test_the_probe_shows_its_table(printed):
    shown = output_of(printed, "analyze")
    assert "probability of" in shown and re.search(r"\b2\s+0\.\d{3}", shown)


def test_the_paper_has_a_table_a_figure_and_judged_claims(folder, printed):
    table = output_of(printed, "reproduce", "./experiments/windows/losses.yaml:windows-table1")
    assert "Full attention against a window" in table
    data = json.loads((folder / "results/windows-table1/smoke/table.json").read_text())
    gap = data["claims"][1]
    assert gap["verdict"] == "open" and gap["note"] == "direction only" and gap["n"] == 1
    assert "full − window = " in gap["evidence"] and "required -0.5 to +0.5" in gap["evidence"]
    figure = folder / "results/windows-fig1/smoke"
    assert (figure / "figure.png").stat().st_size > 1000 and "loss" in (figure / "figure.md").read_text()


def test_the_controller_changes_the_plan_and_its_cost_is_known(folder):
    """One file from outside the package, and nothing else."""
    common, plugin = ["--arch", "./leave-out.yaml", "--config", "small.yaml"], ["--plugin", "leave_out.py"]
    trained = ["pretrain", *common, "--data", "text:words.txt", "--run-dir", "runs/left"]
    plan, _ = run(folder, [[*plugin, "plan", *common, "--json"], [*plugin, *trained]])
    record = json.loads((folder / "runs" / "left" / "record.json").read_text())
    (event,) = record["events"]
    assert event["kind"] == "left-out" and event["step"] == 6
    assert record["model"]["plan"] == "L1 → L2 → L4" and record["hooks"] == {"leave-out": {"layer": 2}}
    assert json.loads(plan)["run"]["training_flops"] == pytest.approx(record["flops"])


def test_every_path_that_the_page_names_exists():
    named = set(re.findall(r"`((?:hybridlab|tests|experiments)/[\w./]+)`", TEXT))
    own = {*files(), "hybridlab/config/presets/arch/NAME.yaml"}
    own.add("hybridlab/lab/papers/claims/PAPER.py")
    missing = [path for path in sorted(named - own) if not (ROOT / path).exists()]
    assert not missing and len(named) > 10
