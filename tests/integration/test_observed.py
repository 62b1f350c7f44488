"""Scale pretrained: what one model shows, over a hundred prompts, each measured by itself."""

import json
import re

import pytest

from hybridlab.lab.reporting.site import write_site
from hybridlab.runs.record import read_record
from tests.conftest import PUBLISHED, ROOT
from tests.integration.test_cli import hybridlab, json_of
from tests.integration.test_site import results_of
from tests.lm_eval import saved_model

pytestmark = pytest.mark.usefixtures("no_data_root")

MINE = """
id: mine-figure1
paper: mine
title: Entropies
source: my notes
plot:
  kind: lines
  metric: results.probes.entropy.layer_means
  panels: [{series: [{cell: one, label: one}, {cell: other, label: other}]}]
measures:
  first: {title: entropy of the first layer, of: {y: results.probes.entropy.layer_means}, formula: "y[0]"}
  positive: {title: an entropy above 0, of: {y: results.probes.entropy.layer_means}, formula: "y[0] > 0"}
  task: {title: entropy on one task, of: {y: results.probes.entropy.tasks.arc_easy.layer_means}, formula: "y[0]"}
  pooled: {title: the least of a head, of: {y: results.probes.entropy.lowest}, formula: "min(y)"}
claims:
  - {text: It is above 0, source: p. 1, test: "first[one, other] > 0"}
  - {text: It is above 1, source: p. 2, test: "first[one] > 1"}
  - {text: It is so on most prompts, source: p. 3, test: "always(positive[one])"}
  - {text: The two are alike, source: p. 4, test: "first[one] < [other]"}
  - {text: On one task it is above 0, source: p. 5, test: "task[one] > 0"}
  - {text: No head is at 0, source: p. 6, test: "pooled[one] > 0"}
cells: {one: {model: "file:llama", phase: entropies}, other: {model: "file:llama", phase: entropies}}
scales:
  pretrained:
    machine: a laptop
    seeds: [0]
    unit: prompt
    phases:
      entropies: {evaluation: {probes: [entropy], probe_settings: {entropy:
        {tasks: [arc_easy, piqa], rows: 100, longest: 24, units: true}}}}
      absent: null
    cells: {other: {model: "file:llama", phase: absent}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("observed")
    saved_model("llama", folder / "llama")
    choices = {"text": ["cat", "mat"], "label": ["A", "B"]}
    rows = [{"question": f"What sat on {n} mats?", "choices": choices, "answerKey": "A"} for n in range(120)]
    others = [{"goal": f"sit on {n}", "sol1": "on a mat", "sol2": "on rain", "label": 0} for n in range(120)]
    for name, file, lines in (("arc_easy", "test", rows), ("piqa", "validation", others)):
        (folder / "root" / name).mkdir(parents=True)
        (folder / "root" / name / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (folder / "mine.yaml").write_text(MINE)
    return folder


def reproduce(folder, file="mine.yaml"):
    return hybridlab("reproduce", f"./{file}", "--scale", "pretrained", "--data-root", "root", "--json", cwd=folder)


def test_what_a_model_shows_is_observed_over_its_prompts(folder):
    data = json_of(reproduce(folder))
    claims = data["claims"]
    assert [one["verdict"] for one in claims] == [
        "observed",
        "opposite observed",
        "observed",
        "not run",
        "observed",
        "not run",
    ], "what was measured on all prompts together is no number of one"
    assert claims[0]["scale"].startswith("in llama (") and claims[0]["scale"].endswith(", over 100 prompts")
    assert claims[0]["comparisons"][0]["of"] == "prompt" and claims[0]["n"] == 100
    assert data["unit"] == "prompt" and "100 prompts" in data["shown"] and data["runs"]["one"].keys() == {"0"}
    # Each number is that of one prompt of every task, as the probe would measure it alone.
    record = read_record(folder / "results" / "records" / f"{data['runs']['one']['0']}.json.zst")
    whole, units = record.results.probes["entropy"], record.units
    values = claims[0]["comparisons"][0]["values"]
    assert [*map(float, values.values())] == [
        unit.results.probes["entropy"]["layer_means"][0] for unit in units.values()
    ]
    mean = sum(map(float, values.values())) / 100
    assert mean == pytest.approx(whole["layer_means"][0], abs=1e-4)
    page = (folder / "results" / "mine-figure1" / "pretrained" / "figure.md").read_text()
    assert "over 100 prompts" in page and "each seed" not in page and "Planned seeds" not in page


def test_a_prompt_is_measured_as_it_is_alone(folder):
    alone = (folder / "mine.yaml").read_text().replace("rows: 100", "rows: 1").replace("mine-figure1", "mine-figure2")
    (folder / "alone.yaml").write_text(alone)
    data = [json_of(reproduce(folder, file)) for file in ("mine.yaml", "alone.yaml")]
    first, only = (
        read_record(folder / "results" / "records" / f"{one['runs']['one']['0']}.json.zst").units for one in data
    )
    mine, theirs = (units[0].results.probes["entropy"] for units in (first, only))
    assert len(only) == 1 and all(mine[key] == theirs[key] for key in ("heads", "layer_means", "agreement"))
    assert {one["verdict"] for one in data[1]["claims"]} == {"open", "not run"}, "one prompt decides nothing"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("unit: prompt", "unit: seed", "scale pretrained has the unit seed"),
        ("unit: prompt", "", "scale pretrained has the unit seed"),
        ('"file:llama", phase: entropies', '"file:", phase: entropies', "'file:' names no model"),
        ("arc_easy, piqa], rows: 100", "], rows: 100", "probe entropy reads text"),
    ],
)
def test_mistakes_in_a_file_are_one_sentence(folder, old, new, says):
    (folder / "wrong.yaml").write_text((folder / "mine.yaml").read_text().replace(old, new))
    done = reproduce(folder, "wrong.yaml")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"file:llama", phase: entropies', '"file:lama", phase: entropies', "lama"),
        ("rows: 100", "rows: 121", "has 120 prompts"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(folder, old, new, says):
    text = (folder / "mine.yaml").read_text().replace(old, new).replace("mine-figure1", "mine-figure3")
    if "121" in new:
        (folder / "root" / "piqa" / "validation.jsonl").open("a").write(
            json.dumps({"goal": "go", "sol1": "on a mat", "sol2": "on rain", "label": 0}) + "\n"
        )
    (folder / "wrong.yaml").write_text(text)
    done = reproduce(folder, "wrong.yaml")
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


def test_another_model_has_a_page_of_its_own(folder):
    saved_model("llama", folder / "theirs", seed=1)
    asked = ("reproduce", "./mine.yaml", "--data-root", "root", "--json", "--model", "theirs")
    data = json_of(hybridlab(*asked, cwd=folder))
    assert data["id"] == "mine-figure1-of-theirs" and data["claims"][0]["scale"].startswith("in theirs (")
    assert (folder / "results" / "mine-figure1-of-theirs" / "pretrained" / "figure.md").exists()
    again = json_of(hybridlab("report", *asked[1:2], "--json", "--model", "theirs", cwd=folder))
    assert again["claims"] == data["claims"]
    done = hybridlab(*asked[:-1], "nobody", cwd=folder)
    assert done.returncode == 2 and "--model nobody: no such file or folder" in done.stderr
    done = hybridlab("report", "--figures", "--model", "theirs", cwd=folder)
    assert done.returncode == 2 and "report --model: give the ids" in done.stderr
    done = hybridlab("reproduce", "sgt-table1", "--model", "theirs", cwd=folder)
    assert done.returncode == 2 and "sgt-table1 measures no pretrained model" in done.stderr
    assert "sgt-fig7" in done.stderr
    done = hybridlab(*asked, "--scale", "desk", cwd=folder)
    assert done.returncode == 2 and "has the scales pretrained" in done.stderr


def test_lists_and_the_site_show_what_is_observed_beside_the_verdict_on_training(tmp_path):
    """The committed pages: what is observed stands for no verdict on a trained model, and is counted as none."""
    listed = json_of(hybridlab("list", "--claims", "consa-fig1*", "--json", cwd=ROOT))
    claims = {(one["id"], one["number"]): one for one in listed["claims"]}
    for name in ("consa-fig12", "consa-fig13"):
        page = json.loads((PUBLISHED / name / "pretrained" / "figure.json").read_text())["claims"][0]
        one = claims[name, 1]
        assert one["observed"] == page["verdict"] != "not run"
        assert one["verdict"] in ("holds", "fails", "open", "cannot tell here") and one["scale"] != "pretrained"
    assert not {"observed", "opposite observed"} & {*listed["total"]["verdicts"]}
    folder = results_of(tmp_path, ["consa-fig13"])
    write_site(tmp_path / "site", folder)
    row = re.search(
        r"<tr[^>]*>.*?</tr>", (tmp_path / "site" / "claims.html").read_text().split("<tbody>")[1], re.DOTALL
    )
    assert row is not None and "in a pretrained model: opposite observed" in row[0] and 'data-verdict="holds"' in row[0]
    own = (tmp_path / "site" / "consa-fig13.pretrained.html").read_text()
    assert "opposite observed" in own and "100 prompts" in own and "Planned seeds" not in own
