"""consa-pretrained on a small random checkpoint: masks are learned from a file, and every map is measured on its
weights."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hybridlab.runs.record import read_record, record_name
from hybridlab.training.store.artifacts import find_model
from hybridlab.training.store.folders import Runs
from tests.conftest import ROOT, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.lm_eval import saved_model

pytestmark = pytest.mark.usefixtures("no_data_root")
MODEL, DIGEST = "models/SmolLM2-135M-Instruct.Q4_1.gguf", "hf-b179c9523d0e6a0f"


def smaller(text, digest):
    """The experiment's file on the checkpoint `llama`, with a few steps, and with tasks of a few words."""
    changes = {
        "consa-pretrained": "own-maps",
        "consa-answers": "own-answers",
        "consa-masks": "own-masks",
        MODEL: "llama",
        DIGEST: digest,
        "extends: _masks.yaml": f"extends: {ROOT / 'experiments' / 'consa' / '_masks.yaml'}",
        "size: smollm2-135m": "size: ./size.yaml",
        "data: embedded": "data: text:words.txt",
        "steps: 240, tokens_per_step: 1024": "steps: 3, tokens_per_step: 64",
        "steps: 30, tokens_per_step: 1024": "steps: 2, tokens_per_step: 64",
        "validation_windows: 16": "validation_windows: 2",
        "window: 128": "window: 4",
        "documents_code_seen": "arc_easy",
        "documents_code": "arc_easy",
        "documents_prose": "piqa",
        "needle_options_near": "sciq",
        "needle_options_far": "arc_easy",
        "pairs_options_far": "piqa",
        "needle_options_reach": "arc_easy",
        "rows: 100": "rows: 3",
        "rows: 500": "rows: 3",
        "rows: 8": "rows: 2",
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    saved_model("llama", folder / "llama")
    # Three KV heads, as the real one has, so that the rule has as many phases.
    heads = {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig.from_pretrained(folder / "llama", **heads)).save_pretrained(folder / "llama")
    write_text(folder / "words.txt", 40_000)
    model = find_model(str(folder / "llama"), Runs(folder / "runs"))
    size = {"window": 4, "shape": model.shape.to_json(), "training": {"seq_len": 32}}
    size["data"] = {"tokenizer": f"file:{model.tokenizer}"}
    (folder / "size.yaml").write_text(json.dumps(size))
    choices = {"text": ["cat", "mat", "rain", "hills"], "label": ["A", "B", "C", "D"]}
    arc = [{"question": f"What sat on {'a mat ' * n}?", "choices": choices, "answerKey": "B"} for n in range(2, 9)]
    piqa = [{"goal": f"sit on {'rain ' * n}", "sol1": "on a mat", "sol2": "on rain", "label": 0} for n in range(2, 9)]
    sciq = [
        {"question": f"What fell {n}?", "correct_answer": "rain", "support": "Rain fell."}
        | {f"distractor{i}": word for i, word in enumerate(("cat", "mat", "hills"), 1)}
        for n in range(7)
    ]
    for path, rows in {"arc_easy/test": arc, "piqa/validation": piqa, "sciq/validation": sciq}.items():
        (folder / "root" / path).parent.mkdir(parents=True)
        (folder / "root" / f"{path}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (ROOT / "experiments" / "consa" / "pretrained.yaml").read_text()
    (folder / "mine").mkdir()
    text = smaller(text, model.digest).replace("shared: {own-maps:", 'shared: {"./mine/own.yaml:own-maps":')
    (folder / "mine" / "own.yaml").write_text(text)
    return folder


def reproduced(folder, entry):
    asked = ("--scale", "pretrained", "--data-root", "root", "--jobs", "1", "--json")
    return json_of(hybridlab("reproduce", f"./mine/own.yaml:{entry}", *asked, cwd=folder))


def record_of(folder, data, cell):
    return read_record(folder / "results" / record_name(data["runs"][cell]["0"]))


def full_heads(record):
    """By layer, how many KV heads have full attention."""
    return [sum(kind["kind"] == "full" for kind in row) for row in record.structure["map"]]


def test_every_map_is_put_on_the_weights_of_a_checkpoint_and_measured_by_document(folder):
    data = reproduced(folder, "own-maps")
    assert data["unit"] == "document" and data["complete_seeds"] == [0, 1, 2]
    rows = {row["short"]: row["cells"] for row in data["rows"]}
    assert all(rows[name]["code"]["n"] == 3 for name in ("Dense", "ConSA 0", "Random 3", "Rule L1 30", "Windows"))
    assert rows["Masks 0"]["code"]["measured"] is None and rows["Masks 0"]["mixed"]["n"] == 1
    assert {rows[name]["sparsity"]["measured"] for name in ("Oracle", "ConSA 2", "Rule 2", "Random 0")} == {0.5}
    # One draw of masks decides nothing, and few documents observe nothing.
    assert {one["verdict"] for one in data["claims"]} <= {"open", "cannot tell here", "not run"}
    learned, matched, after = (record_of(folder, data, cell) for cell in ("learned-0", "matched-1", "learned-0/30"))
    assert learned.parents == [data["runs"]["learn-0"]["0"]] and learned.steps == 0
    assert full_heads(learned) == full_heads(matched) == full_heads(after)
    assert learned.structure["map"] == after.structure["map"] and after.steps == 2
    of_masks = [one for one in data["claims"] if {test["of"] for test in one["comparisons"]} == {"run"}]
    assert len(of_masks) == 7 and all(len(test["values"]) < 2 for one in of_masks for test in one["comparisons"])
    assert all(("in llama (" in one["scale"]) != (one in of_masks) for one in data["claims"] if one["n"])
    masks = [record_of(folder, data, f"learn-{seed}") for seed in (0, 1, 2)]
    assert [one.seed for one in masks] == [0, 1, 2] and len({one.hash for one in masks}) == 3
    # Documents are measured of one run, which needs no seeds beside its name.
    flags = [flag["text"] for one in data["claims"] for flag in one["flags"]]
    assert any("masks that have not settled" in flag for flag in flags)
    assert not any("seeds" in flag for flag in flags)


def test_questions_on_a_text_are_asked_with_the_masks_of_the_other_entry(folder):
    data = reproduced(folder, "own-answers")
    rows = {row["short"]: row["cells"] for row in data["rows"]}
    assert all(0 <= rows["ConSA 0"][name]["measured"] <= 1 for name in ("near", "far", "pairs"))
    assert rows["Dense PIQA"]["piqa"]["n"] == 3 and rows["Dense PIQA"]["near"]["measured"] is None
    assert record_of(folder, data, "learned-0").parents == [data["runs"]["learn-0"]["0"]]


def test_another_file_than_the_one_that_is_named_is_refused(folder):
    text = (folder / "mine" / "own.yaml").read_text()
    (folder / "mine" / "other.yaml").write_text(text.replace("@hf-", "@hf-0").replace("own-", "other-"))
    done = hybridlab("reproduce", "./mine/other.yaml:other-maps", "--scale", "pretrained", "--dry-run", cwd=folder)
    assert done.returncode == 2 and "it has changed since the run was started from it" in done.stderr
    (folder / "mine" / "other.yaml").write_text(text.replace("@hf-", "#hf-").replace("own-", "other-"))
    done = hybridlab("reproduce", "./mine/other.yaml:other-maps", "--scale", "pretrained", "--dry-run", cwd=folder)
    assert done.returncode == 2 and "write file:PATH@DIGEST" in done.stderr
