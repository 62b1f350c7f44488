"""Cells that are studies of models which are there already: measured, recorded, shown, and with every mistake."""

import json

import pytest

from hybridlab import UserError
from hybridlab.config.loading import Layer, check
from hybridlab.config.study import HeadsByEntropy, Study, study_hash
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.reporting.entry_data import model_of
from hybridlab.runs import study as studies
from hybridlab.runs.record import read_record, save_record
from hybridlab.runs.study import dropped_heads
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.records import make_record, make_results

pytestmark = pytest.mark.usefixtures("no_data_root")

MINE = """
id: mine-table1
paper: mine
title: Heads left out
source: my notes
reference: Whole
columns:
  - {name: loss, title: loss, kind: trained, metric: results.validation.loss, digits: 2}
  - {name: arc, title: ARC, kind: trained, metric: results.lm_eval.arc_easy.metrics.acc, digits: 2}
rows:
  - {name: Whole, short: Whole, cell: whole}
  - {name: Without heads, short: High, cell: high}
  - {name: Entropies, short: Entropies, cell: entropies}
  - {name: In bf16, short: bf16, cell: low-precision}
cells:
  trunk: {arch: vanilla, phase: train}
  whole: {model: "cell:trunk", phase: masked}
  entropies: {model: "cell:trunk", phase: entropies}
  low-precision: {model: "cell:trunk", phase: masked, config: {precision: bf16}}
  high: {model: "cell:trunk", phase: masked, config: {drop_heads: {select: high, of: "cell:entropies", n: 2}}}
scales:
  smoke:
    machine: a laptop
    size: tiny
    data: "text:words.txt"
    seeds: [0]
    phases:
      train: {}
      masked: {text: true, evaluation: {benchmarks: {tasks: [arc_easy], limit: 4, max_length: 200}}}
      entropies: {evaluation: {probes: [entropy], probe_settings: {entropy: {tasks: [arc_easy, piqa], rows: 4}}}}
    config: CONFIG
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    write_text(folder / "words.txt")
    config = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3}, "data": {"tokenizer": "byte"}}
    (folder / "mine.yaml").write_text(MINE.replace("CONFIG", json.dumps(config)))
    choices = {"text": ["cat", "mat"], "label": ["A", "B"]}
    rows = [{"question": f"What sat on {n}?", "choices": choices, "answerKey": "A"} for n in range(6)]
    (folder / "root" / "arc_easy").mkdir(parents=True)
    (folder / "root" / "arc_easy" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run_is_trained_and_then_measured_with_and_without_heads(folder):
    done = hybridlab("reproduce", "./mine.yaml", "--data-root", "root", "--json", cwd=folder)
    data = json_of(done)
    whole, high, entropies, low = (row["cells"] for row in data["rows"])
    assert whole["loss"]["measured"] != low["loss"]["measured"] == pytest.approx(whole["loss"]["measured"], abs=0.02)
    assert whole["loss"]["measured"] != high["loss"]["measured"] and whole["arc"]["measured"] is not None
    assert "not measured: piqa" in done.stderr
    records = folder / "results" / "records"
    assert read_record(records / f"{data['runs']['low-precision']['0']}.json.zst").precision == "bf16"
    record = read_record(records / f"{data['runs']['high']['0']}.json.zst")
    measured = read_record(records / f"{data['runs']['entropies']['0']}.json.zst").results.probes["entropy"]
    table = measured["lowest"]
    values = sorted(((v, i, j) for i, row in enumerate(table) for j, v in enumerate(row)), key=lambda one: -one[0])
    assert set(record.config["dropped"]) == {f"L{i + 1}-H{j + 1}" for _, i, j in values[:2]}
    assert record.parents == [data["runs"]["trunk"]["0"]] and record.steps == 3
    again = hybridlab("reproduce", "./mine.yaml", "--data-root", "root", "--json", cwd=folder)
    assert json_of(again)["rows"] == data["rows"]
    # A task whose files come later is measured then.
    (folder / "root" / "piqa").mkdir()
    text = json.dumps({"goal": "sit", "sol1": "on a mat", "sol2": "on rain", "label": 0}) + "\n"
    (folder / "root" / "piqa" / "validation.jsonl").write_text(text)
    json_of(hybridlab("reproduce", "./mine.yaml", "--data-root", "root", "--json", cwd=folder))
    later = read_record(records / f"{data['runs']['entropies']['0']}.json.zst").results.probes["entropy"]
    assert list(later["tasks"]) == ["arc_easy", "piqa"] and later["missing"] == {}


def test_a_study_of_a_suite_has_the_columns_of_the_paper(folder):
    (folder / "root" / "boolq").mkdir(parents=True)
    asked = {"question": "did it rain", "passage": "rain fell", "answer": True}
    (folder / "root" / "boolq" / "validation.jsonl").write_text((json.dumps(asked) + "\n") * 3)
    written = (folder / "mine.yaml").read_text().replace("mine-table1", "mine-table2")
    (folder / "suite.yaml").write_text(written.replace("{tasks: [arc_easy], limit", "{suite: saobp, limit"))
    data = json_of(hybridlab("reproduce", "./suite.yaml", "--data-root", "root", "--json", cwd=folder))
    record = read_record(folder / "results" / "records" / f"{data['runs']['whole']['0']}.json.zst")
    assert list(record.results.suites["saobp"]) == ["BoolQ"]
    assert record.results.suites["saobp"]["BoolQ"].n == 3 and "race_middle" in record.results.lm_eval_missing


def test_a_column_that_no_task_fills_is_not_found_later(tmp_path, monkeypatch):
    """A second reproduce looks whether files of missing tasks have come; some columns of a suite are no tasks."""
    monkeypatch.setattr(studies, "data_root", lambda: tmp_path)
    missing = make_results(lm_eval_missing={"LogiQA-CN": "no task", "arc_easy": "no file"})
    assert studies._found_now(make_record(results=missing)) is False


def test_the_model_of_a_study_stands_in_the_place_of_the_paper_s(folder):
    measured = "{text: true, evaluation: {probes: [entropy]}}"
    phases = f"{{train: {{}}, masked: {measured}, entropies: {measured}}}"
    paper = f"  paper: {{machine: a node, size: consa-0.6b, data: c4, seeds: [0], phases: {phases}}}\n"
    (folder / "paper.yaml").write_text((folder / "mine.yaml").read_text() + paper)
    experiment = load_experiment(str(folder / "paper.yaml"))
    for cell in ("trunk", "whole", "high"):
        found = model_of(experiment, "smoke", cell, {})
        assert found == {"size": "tiny", "in_place_of": "consa-0.6b", "parameters": None}
        assert model_of(experiment, "paper", cell, {})["in_place_of"] is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('{model: "cell:trunk", phase: masked}', '{model: "cell:trnk", phase: masked}', "no cell 'trnk'"),
        ('{model: "cell:trunk", phase: masked}', "{model: trunk, phase: masked}", "'trunk' names no model"),
        ('{model: "cell:trunk", phase: masked}', '{model: "cell:high", phase: masked}', "start from each other"),
        ("{arch: vanilla, phase: train}", "{phase: train}", "either arch or settings, for a run, or model"),
        ("{text: true, evaluation", "{txt: true, evaluation", "txt"),
        ("entropy: {tasks: [arc_easy, piqa], rows: 4}", "entropy: {rows: 4}", "probe entropy reads text"),
        ("n: 2}", "n: 2, draw: 1}", "draw has no effect on select: high"),
    ],
)
def test_mistakes_in_a_file_are_one_sentence(folder, old, new, says):
    text = (folder / "mine.yaml").read_text()
    if "high" in new:
        text = text.replace('of: "cell:entropies"', 'of: "cell:whole"')
    (folder / "wrong.yaml").write_text(text.replace(old, new, 1))
    done = hybridlab("reproduce", "./wrong.yaml", "--dry-run", cwd=folder)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_matched_heads_lie_in_the_layers_of_the_highest_ones(tmp_path):
    table = [[0.9, 0.8, 0.1, 0.2], [0.3, 0.4, 0.7, 0.6]]
    record = make_record(hash="ab", results=make_results(probes={"entropy": {"heads": table}}))
    save_record(record, tmp_path)
    draws = []
    for draw in range(8):
        choice = HeadsByEntropy(select="matched", of="ab", n=3, draw=draw)
        draws.append(tuple(dropped_heads(choice, tmp_path)))
        first, second, third = draws[-1]
        assert {first, second} == {"L1-H3", "L1-H4"} and third in ("L2-H1", "L2-H2", "L2-H4")
    again = dropped_heads(HeadsByEntropy(select="matched", of="ab", n=3), tmp_path)
    assert len({*draws}) > 1 and draws[0] == tuple(again)
    with pytest.raises(UserError, match="4 of the heads of layer 2 are chosen and 0 are not"):
        dropped_heads(HeadsByEntropy(select="matched", of="ab", n=6), tmp_path)


def study(**changes):
    probes = {"probes": ["entropy"], "probe_settings": {"entropy": {"tasks": ["piqa"]}}}
    return check(Study, Layer({"model": "hub:a/b", "evaluation": probes, **changes}))


def test_the_hash_covers_the_model_and_what_is_asked():
    hashes = {study_hash(study()), study_hash(study(model="hub:a/b@main")), study_hash(study(drop_heads=["L1-H1"]))}
    assert len(hashes) == 3 and study_hash(study()) in hashes
    with pytest.raises(UserError, match="text has no effect on a pretrained model"):
        study(text=True)


def test_heads_are_chosen_by_the_entropies_of_a_record(tmp_path):
    heads = [[0.9, 0.1, 0.5], [0.4, 0.8, 0.2]]
    record = make_record(hash="ab", results=make_results(probes={"entropy": {"heads": heads}}))
    save_record(record, tmp_path)

    def chosen(**settings):
        choice = {"of": "ab", "n": 2, **settings}
        return dropped_heads(study(drop_heads=choice).drop_heads, tmp_path)

    assert chosen(select="high") == ["L1-H1", "L2-H2"] and chosen(select="low") == ["L1-H2", "L2-H3"]
    assert chosen(select="random") == ["L1-H3", "L2-H1"], "all that are neither"
    assert chosen(select="random", n=1, draw=1)[0] in ("L1-H3", "L2-H1", "L1-H1", "L2-H3", "L2-H2", "L1-H2")
    with pytest.raises(UserError, match="fewer than n = 3"):
        chosen(select="random", n=3)
    with pytest.raises(UserError, match="cd has no entropies to choose heads by"):
        chosen(select="high", of="cd")
    # Over several tasks the least entropy decides what is high, and the largest what is low.
    tasks = {"heads": heads, "lowest": [[0.0, 0.1, 0.5], [0.4, 0.8, 0.2]], "highest": heads}
    record = make_record(hash="ab", results=make_results(probes={"entropy": tasks}))
    save_record(record, tmp_path)
    assert chosen(select="high") == ["L2-H2", "L1-H3"]
