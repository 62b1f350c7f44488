"""`reproduce ./mine.yaml` and `report ./mine.yaml`: experiments in files of one's own."""

import json
import shutil

import pytest

from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of

RUNS = """
paper: mine
cells:
  full: {arch: vanilla, phase: train}
  window: {arch: all-window, phase: train}
scales:
  smoke: {machine: a laptop, size: tiny, data: "text:words.txt", seeds: [0], phases: {train: {}}, config: CONFIG}
"""
TABLE = """
extends: runs.yaml
id: mine-table1
title: Full attention against a window
source: my notes
columns: [{name: loss, title: loss, kind: trained, metric: results.validation.loss, digits: 2}]
rows:
  - {name: Full, short: Full, cell: full}
  - {name: Window, short: Window, cell: window}
claims:
  - {text: Full is better, source: my notes, test: "loss[full] < [window]"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, and an experiment in another folder."""
    folder = tmp_path_factory.mktemp("mine")
    write_text(folder / "words.txt")
    config = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 3}, "data": {"tokenizer": "byte"}}
    (folder / "lab").mkdir()
    (folder / "lab" / "runs.yaml").write_text(RUNS.replace("CONFIG", json.dumps(config)))
    (folder / "lab" / "mine.yaml").write_text(TABLE)
    return folder


def test_a_file_is_reproduced_and_reported(folder):
    data = json_of(hybridlab("reproduce", "lab/mine.yaml", "--json", cwd=folder))
    assert data["id"] == "mine-table1" and [row["short"] for row in data["rows"]] == ["Full", "Window"]
    assert all(row["cells"]["loss"]["measured"] for row in data["rows"]) and data["claims"][0]["evidence"]
    table = folder / "results" / "mine-table1" / "smoke" / "table.md"
    first = table.read_text()
    table.unlink()
    done = hybridlab("report", "lab/mine.yaml", cwd=folder)
    assert done.returncode == 0 and "Full is better" in done.stdout and table.read_text() == first
    listed = json_of(hybridlab("list", "--json", cwd=folder))["entries"]
    assert "mine-table1" not in {entry["id"] for entry in listed}


def test_reproduce_trains_what_is_published_too_and_compares_with_it(folder):
    """Report reads what is published; reproduce makes all of it anew, of runs of one's own alone."""
    hybridlab("reproduce", "lab/mine.yaml", cwd=folder)
    published = hybridlab("report", "lab/mine.yaml", "--publish", cwd=folder)
    assert "published in results/published (5 new files" in published.stderr
    before = {path: path.read_bytes() for path in (folder / "results" / "published").rglob("*") if path.is_file()}
    for part in ("records", "plans", "mine-table1"):
        shutil.rmtree(folder / "results" / part)
    (folder / "runs").rename(folder / "away")
    assert "records: 2 published; same as published" in hybridlab("report", "lab/mine.yaml", cwd=folder).stderr
    done = hybridlab("reproduce", "lab/mine.yaml", cwd=folder)
    assert "2 of 2 runs to do" in done.stderr
    assert "without training: `hybridlab report mine-table1 --scale smoke` (published)" in done.stderr
    assert "records: 2 your own; same as published (2 cells, 1 verdict)" in done.stderr
    assert len(list((folder / "runs").glob("*/record.json"))) == 2
    assert {path: path.read_bytes() for path in before} == before
    again = hybridlab("reproduce", "lab/mine.yaml", cwd=folder)
    assert "finished before" in again.stderr and "runs to do" not in again.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mine_table1": "consa-table1"}, "other.yaml:3: id 'consa-table1' belongs to an experiment of hybridlab"),
        ({"mine_table1": "../x"}, "id '../x' cannot name a folder of results"),
        ({"mine_table1": "records"}, "id 'records' cannot name a folder of results"),
        ({"mine_table1": "Published"}, "id 'Published' cannot name a folder of results"),
        ({"id: mine_table1": ""}, "id is missing"),
        ({"cell: window": "cell: windw"}, "other.yaml:9: mine-table1 has no cell 'windw'; did you mean 'window'"),
        ({"[window]": "[windw]"}, "did you mean 'window'"),
        ({"extends: runs.yaml": "extends: none.yaml"}, "other.yaml:2: extends none.yaml: there is no file"),
    ],
)
def test_a_wrong_file_is_one_sentence(folder, changes, message):
    for name in ("reproduce", "report"):
        text = TABLE
        for old, new in changes.items():
            text = text.replace(old.replace("mine_", "mine-"), new)
        (folder / "lab" / "other.yaml").write_text(text)
        done = hybridlab(name, "lab/other.yaml", cwd=folder)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_file_that_is_not_there(folder):
    assert "nowhere.yaml: there is no such file" in hybridlab("reproduce", "./nowhere.yaml", cwd=folder).stderr
    assert "a file is given by its path" in hybridlab("report", "nowhere", cwd=folder).stderr


def test_a_file_with_several_entries_is_asked_for_one(folder):
    first, second = (
        TABLE.replace("extends: runs.yaml\n", "").replace("mine-table1", name) for name in ("mine-a", "mine-b")
    )
    indented = ["  - " + text.strip().replace("\n", "\n    ") for text in (first, second)]
    (folder / "lab" / "family.yaml").write_text("\n".join(["extends: runs.yaml", "entries:", *indented, ""]))
    asked = hybridlab("reproduce", "lab/family.yaml", cwd=folder)
    assert asked.returncode == 2 and "as in lab/family.yaml:mine-a; known: mine-a, mine-b" in asked.stderr
    assert json_of(hybridlab("plan", "lab/family.yaml:mine-b", "--scale", "smoke", "--json", cwd=folder))
