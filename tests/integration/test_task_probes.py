"""Probes on prompts of benchmark tasks, and models without some heads: of runs, of folders, and with mistakes."""

import json

import pytest
from tokenizers import Tokenizer

from hybridlab.plan.heads import parse_heads
from tests.integration.test_cli import hybridlab, json_of
from tests.lm_eval import saved_model

pytestmark = pytest.mark.usefixtures("no_data_root")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data root with a few questions."""
    folder = tmp_path_factory.mktemp("root")
    choices = {"text": ["cat", "mat", "rain", "hills"], "label": ["A", "B", "C", "D"]}
    asked = [{"question": f"What sat on {'a mat ' * n}?", "choices": choices, "answerKey": "B"} for n in range(12)]
    piqa = [{"goal": f"sit {n}", "sol1": "on a mat", "sol2": "on rain", "label": 0} for n in range(7)]
    for path, rows in {"arc_easy/test.jsonl": asked, "piqa/validation.jsonl": piqa}.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def analyzed(run, probe, root, *options):
    found = hybridlab("analyze", run, "--probe", probe, "--data-root", root, *options, "--json", cwd=root)
    return json_of(found)


def test_entropies_on_prompts_of_tasks(run, root):
    found = analyzed(run, "entropy", root, "--tasks", "arc_easy,piqa,sciq", "--rows", "5", "--longest", "30")
    assert list(found["tasks"]) == ["arc_easy", "piqa"] and "sciq" in found["missing"]
    arc = found["tasks"]["arc_easy"]
    tokenizer = Tokenizer.from_file(str(run / "final" / "tokenizer.json"))
    texts = [f"Question: What sat on {'a mat ' * n}?\nAnswer:" for n in (0, 3, 6, 8, 11)]
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    assert arc["mean_length"] == pytest.approx(sum(lengths) / 5, abs=0.01) and arc["longest"] == max(lengths)
    assert arc["cut"] == sum(length > 30 for length in lengths) > 0
    tables = [task["heads"] for task in found["tasks"].values()]
    assert found["heads"][1][0] == pytest.approx((tables[0][1][0] + tables[1][1][0]) / 2, abs=1e-5)
    assert found["lowest"][1][0] == pytest.approx(min(table[1][0] for table in tables), abs=1e-5)


def test_a_folder_needs_no_text_for_prompts_of_tasks(tmp_path, root):
    folder = saved_model("llama", tmp_path / "llama")
    options = ["--tasks", "piqa", "--rows", "4"]
    found = analyzed(folder, "last-token", root, *options, "--heads-of", "1")
    [one] = found["tasks"].values()
    assert [sum(layer) for layer in one["layers"]] == pytest.approx([1, 1], abs=1e-4)
    assert [len(layer) for layer in one["heads"]] == [2] and found["task_spread"] is None
    shares = analyzed(folder, "last-token", root, *options, "--heads-of", "1/2,0")
    assert shares["heads_of"] == [1, 0], "the model has two layers"
    maps = analyzed(folder, "attention-maps", root, *options, "--heads", "L1-H2,L2-H1", "--shown", "6")
    assert list(maps["heads"]) == ["L1-H2", "L2-H1"]
    assert [len(row) for row in maps["maps"]["piqa"]["weights"]["L1-H2"]] == [6] * 6


def test_the_loss_on_prompts_is_that_of_transformers(tmp_path, root):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = saved_model("llama", tmp_path / "llama")
    found = analyzed(folder, "loss", root, "--tasks", "arc_easy,piqa", "--rows", "4", "--units", "true")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    losses = []
    for n in (0, 4, 7, 11):
        ids = tokenizer(f"Question: What sat on {'a mat ' * n}?\nAnswer:", return_tensors="pt").input_ids
        losses.append(float(model(ids, labels=ids).loss))
    assert [unit["tasks"]["arc_easy"]["loss"] for unit in found["units"]] == pytest.approx(losses, abs=1e-4)
    assert found["tasks"]["arc_easy"]["loss"] == pytest.approx(sum(losses) / 4, abs=1e-4)
    means = [sum(task["loss"] for task in unit["tasks"].values()) / 2 for unit in found["units"]]
    assert [unit["loss"] for unit in found["units"]] == pytest.approx(means, abs=1e-4)
    assert found["loss"] == pytest.approx(sum(means) / 4, abs=1e-4)


def test_heads_of_extreme_entropy_are_chosen_over_all_tasks(run, root):
    options = ["--tasks", "arc_easy,piqa", "--rows", "5"]
    table = analyzed(run, "entropy", root, *options)
    maps = analyzed(run, "attention-maps", root, *options)
    low, high = maps["heads"]
    places = [parse_heads(name, 99, 99)[0] for name in (low, high)]
    flat = [value for row in table["highest"] for value in row]
    assert table["highest"][places[0][0]][places[0][1]] == min(flat)
    assert table["lowest"][places[1][0]][places[1][1]] == max(value for row in table["lowest"] for value in row)


def test_a_model_without_heads_is_measured_and_not_recorded(run, root):
    before = (run / "record.json").read_bytes()
    options = ["--tasks", "arc_easy", "--max-length", "200", "--data-root", root]
    whole = json_of(hybridlab("eval", run, *options, "--limit", "6", "--json", cwd=run.parent))
    recorded = (run / "record.json").read_bytes()
    asked = hybridlab("eval", run, *options, "--limit", "6", "--drop-heads", "L1-H1,L2-H2", "--json", cwd=run.parent)
    assert whole["recorded"] and not json_of(asked)["recorded"] and (run / "record.json").read_bytes() == recorded
    (run / "record.json").write_bytes(before)
    text = json_of(hybridlab("eval", run, "--drop-heads", "L1-H1,L2-H2", "--json", cwd=run.parent))
    intact = json_of(hybridlab("eval", run, "--json", cwd=run.parent))
    assert text["validation"]["loss"]["value"] != intact["validation"]["loss"]["value"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["eval", "--drop-heads", "L1-H99"], "--drop-heads L1-H99: L1-H99: the model has the layers L1 to"),
        (["analyze", "--probe", "entropy", "--longest", "5"], "--longest has no effect without --tasks"),
        (["analyze", "--probe", "entropy", "--tasks", "arc_esy"], "arc_esy"),
        (["analyze", "--probe", "entropy", "--tasks", "piqa", "--data", "embedded"], "--data has no effect"),
        (["analyze", "--probe", "last-token", "--heads-of", "99"], "--heads-of 99: this model has the layers 0 to"),
        (["analyze", "--probe", "last-token", "--heads-of", "1/0"], "heads_of"),
        (["analyze", "--probe", "entropy", "--units", "true"], "units are prompts, one of every task; give --tasks"),
        (["analyze", "--probe", "attention-maps", "--heads", "first"], "'first' is no name of a head"),
    ],
)
def test_mistakes_end_in_one_sentence(run, command, says):
    found = hybridlab(command[0], run, *command[1:], cwd=run.parent)
    assert found.returncode == 2 and says in found.stderr and "Traceback" not in found.stderr
