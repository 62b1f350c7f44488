"""`hybridlab list --archs` and `--sizes`, and the sentences that they show."""

import json
import shutil
from collections import Counter
from functools import cache

import pytest
from typer.testing import CliRunner

import hybridlab
from hybridlab.config.loading import first_sentence, preset_names, summaries
from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers import claim_list
from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.experiment import BENCHMARK, benchmark_hash
from hybridlab.lab.papers.ids import EVERY_SCALE, SAYS, SCALES
from hybridlab.lab.papers.listing import entries, read_heads
from hybridlab.lab.papers.pages import as_read
from tests.conftest import PUBLISHED, ROOT, run_python
from tests.experiments import all_experiments, experiment_ids, load_experiment

HEAVY = {"torch", "numpy", "pandas", "scipy", "matplotlib", "datasets", "transformers"}


def listed(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_list, "all_experiments", all_experiments)
        return CliRunner().invoke(app, ["list", *arguments], catch_exceptions=True)


@cache
def without_records(*arguments):
    return listed("--claims", "--results-dir", "nowhere", *arguments)


@pytest.mark.parametrize("what", ["arch", "size"])
def test_every_preset_has_a_line_of_its_own(what):
    done = listed(f"--{what}s")
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line.strip()][2:]
    assert [line.split()[0] for line in lines] == preset_names(what)
    for line, summary in zip(lines, summaries(what).values(), strict=True):
        assert summary.endswith(".") and summary in line and len(line) <= 80


def test_the_parameters_are_those_of_the_model():
    rows = json.loads(listed("--sizes", "--json").stdout)["sizes"]
    (tiny,) = (row for row in rows if row["name"] == "tiny")
    assert tiny["parameters"] == sum(p.numel() for p in hybridlab.build_model("vanilla", "tiny").parameters())
    assert f"{tiny['parameters']:,}" in listed("--sizes").stdout


def test_json_holds_the_same_lines():
    rows = json.loads(listed("--archs", "--json").stdout)["archs"]
    assert {row["name"]: row["summary"] for row in rows} == summaries("arch")


def test_the_scales_are_those_of_the_experiments_with_two_sentences_each():
    rows = json.loads(listed("--scales", "--json").stdout)["scales"]
    assert tuple(row["name"] for row in rows) == EVERY_SCALE
    assert all(row["summary"] == SAYS[row["name"]] and row["summary"].count(". ") == 1 for row in rows)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--archs", "--sizes"],
        ["--archs", "--scales"],
        ["--archs", "--results-dir", "elsewhere"],
        ["--sizes", "--finetune-tasks"],
    ],
)
def test_options_without_effect_are_refused(arguments):
    done = listed(*arguments)
    assert isinstance(done.exception, UserError)


@pytest.mark.parametrize("what", ["--archs", "--sizes", "--scales", "--finetune-tasks"])
def test_a_list_needs_few_calls_and_no_heavy_library(what):
    """Calls of Python functions after the import of the program; a million takes about a second."""
    code = f"""
import sys
from hybridlab.lab.cli.main import app
calls = 0
def count(frame, event, value):
    global calls
    calls += event == "call"
sys.setprofile(count)
app(["list", "{what}"], standalone_mode=False)
sys.setprofile(None)
print()
print({HEAVY} & set(sys.modules) or "none", calls)
"""
    loaded, calls = run_python(code).split()[-2:]
    assert loaded == "none" and int(calls) < 700_000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# A 0.6B model (table 2). More.\nkey: 1\n", "A 0.6B model (table 2)."),
        ("# One that goes\n# on. And more.\n", "One that goes on."),
        ("# No end\nkey: 1 # Not this.\n", "No end"),
        ("key: 1\n# Later.\n", ""),
    ],
)
def test_the_first_sentence_of_a_file(text, sentence):
    assert first_sentence(text) == sentence


def test_the_list_of_experiments_has_short_rows_with_marks_where_a_scale_is_done(tmp_path):
    """Of tables without training a scale is done when its table is there."""
    (tmp_path / "consa-table4" / "smoke").mkdir(parents=True)
    (tmp_path / "consa-table4" / "smoke" / "table.json").write_text("{}")
    lines = listed("--results-dir", str(tmp_path)).stdout.splitlines()
    (row,) = (line for line in lines if line.split()[:1] == ["consa-table4"])
    assert row.rstrip().endswith("smoke ✓ desk small paper") and max(len(line.rstrip()) for line in lines) <= 80
    assert len([line for line in lines if line.strip()]) < 2.6 * len(experiment_ids())


def test_the_list_reads_the_heads_of_the_files_once_and_what_was_made_of_them():
    """It loads no schema of runs, no claim kind and no torch, and reads no record."""
    code = (
        "import sys, collections\nopened = collections.Counter()\n"
        "def note(event, arguments):\n"
        "    if event == 'open' and isinstance(arguments[0], str): opened[arguments[0]] += 1\n"
        "sys.addaudithook(note)\n"
        "from hybridlab.lab.cli.main import app\nfrom hybridlab.lab.papers.ids import experiments_folder\n"
        "app(['list', '--json'], standalone_mode=False)\n"
        "mine = [(name, n) for name, n in opened.items() if name.endswith(('.yaml', '.json', '.zst'))]\n"
        "twice = [name for name, n in mine if n > 1 and name.endswith('.yaml')]\n"
        "others = [name for name, n in mine if not name.startswith(('results/', str(experiments_folder())))]\n"
        "records = [name for name, n in mine if 'records/' in name]\n"
        "heavy = [name for name in ('torch', 'numpy', 'hybridlab.config.schema', 'hybridlab.config.resolve',\n"
        "    'hybridlab.runs', 'hybridlab.lab.papers.experiment', 'hybridlab.lab.papers.claims')\n"
        "    if name in sys.modules]\n"
        "print()\nprint([len(mine) > 200, twice, others, records, heavy])"
    )
    assert run_python(code, cwd=ROOT).splitlines()[-1] == "[True, [], [], [], []]"


def test_the_list_says_of_every_experiment_what_its_whole_file_says():
    """Id, kind, title and scales are read from the heads alone; the rest is checked when it is used."""
    heads = read_heads()
    assert [head.id for head in heads] == experiment_ids()
    for head in heads:
        whole = load_experiment(head.id)
        for name in ("id", "kind", "title", "paper", "needs"):
            assert getattr(head, name) == getattr(whole, name)
        assert head.available_scales() == whole.available_scales(), head.id


@pytest.mark.long
def test_what_is_done_was_made_of_the_runs_that_the_files_ask_for_now():
    """The list takes the hashes from the published tables and figures; those of the files must be the same."""
    for entry in entries(PUBLISHED):
        experiment = load_experiment(entry["id"])
        for scale in entry["done"]:
            made = json.loads((PUBLISHED / entry["id"] / scale / f"{entry['kind']}.json").read_text())
            if experiment.benchmark is not None:
                assert made["runs"][BENCHMARK] == {"0": benchmark_hash(experiment, scale)}
            elif experiment.needed_cells(scale):
                for seed in experiment.scales[scale].seeds:
                    hashes = {run.hash for run in cell_runs(experiment, scale, seed)}
                    assert hashes == {of[str(seed)] for of in made["runs"].values()}, (entry["id"], scale)


def test_a_figure_is_done_when_it_was_made_of_all_runs_whose_records_are_there(tmp_path):
    def done():
        return next(entry["done"] for entry in entries(tmp_path) if entry["id"] == "consa-fig1")

    figure = tmp_path / "consa-fig1" / "smoke" / "figure.json"
    figure.parent.mkdir(parents=True)
    (tmp_path / "records").mkdir()
    made = {"runs": {"base": {"0": "ab"}, "stage1": {"0": "cd"}}, "complete_seeds": [0]}
    for changed in (made | {"complete_seeds": []}, made):
        figure.write_text(json.dumps(changed))
        for name in ("ab", "cd"):
            assert done() == []
            (tmp_path / "records" / f"{name}.json").write_text("{}")
        assert done() == (["smoke"] if changed is made else [])
        for path in (tmp_path / "records").iterdir():
            path.unlink()
    figure.write_text("{")
    assert done() == []


def test_a_mistake_in_the_head_of_a_file_has_its_line(tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "table1.yaml").write_text("id: toy-table1\npaper: Toy\ntitle: [one, two]\n")
    monkeypatch.setattr("hybridlab.lab.papers.listing.experiments_folder", lambda: tmp_path)
    done = listed()
    assert isinstance(done.exception, UserError)
    assert str(done.exception).startswith("table1.yaml:3: title = ['one', 'two']: must be text")


# ---- the papers' claims ----


def test_claims_are_listed_by_paper_with_verdict_scale_and_place():
    done = listed("--claims", "--paper", "consa", "gains", "3.7", "--results-dir", "nowhere")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "consa-table1"
    assert "holds  printed  Head-wise (single-layer) gains 3.7 % over Rule (head-wise)" in done.stdout
    assert "(section 5.2)" in done.stdout and done.stdout.endswith("\n1 claim: 1 printed arithmetic; 1 holds\n")


def test_a_list_of_claims_fits_80_columns():
    lines = without_records().stdout.splitlines()
    assert len(lines) > 400 and max(map(len, lines)) <= 80


def test_claims_as_json_have_their_evidence_and_are_counted(tmp_path):
    found = json.loads(listed("--claims", "--paper", "sgt", "--results-dir", str(tmp_path), "--json").stdout)
    assert {claim["paper"] for claim in found["claims"]} == {"sgt"}
    assert all(claim["text"] and claim["source"] and claim["evidence"] for claim in found["claims"])
    assert {claim["scale"] for claim in found["claims"]} == {None}, "nothing has been run"
    assert sum(found["counts"]["all"].values()) == len(found["claims"])
    of_runs = [claim for claim in found["claims"] if claim["about"] == "trained"]
    assert found["counts"]["trained"] == {"not run": len(of_runs)}


def test_the_claims_end_with_a_line_of_all_by_kind_and_by_verdict():
    everything = json.loads(without_records("--json").stdout)
    total, claims = everything["total"], everything["claims"]
    written = sum(len(load_experiment(identifier).claims) for identifier in experiment_ids())
    assert total["claims"] == len(claims) == written
    assert total["about"] == Counter(claim["about"] for claim in claims)
    assert list(total["about"]) == ["printed", "exact", "transcribed", "trained", "timed", "not here"]
    assert total["verdicts"] == Counter(claim["verdict"] for claim in claims)
    lines = " ".join(without_records().stdout.split("\n\n")[-1].split())
    numbers = [f"{n:,} {word}" for part in ("about", "verdicts") for word, n in total[part].items()]
    assert lines == f"{written:,} claims: {', '.join(numbers[:6])}; {', '.join(numbers[6:])}".replace(
        " printed,", " printed arithmetic,"
    )


def test_the_claims_are_counted_by_paper():
    everything = json.loads(without_records("--json").stdout)
    papers = everything["papers"]
    assert sum(paper["claims"] for paper in papers.values()) == everything["total"]["claims"]
    for name, paper in papers.items():
        own = Counter(claim["verdict"] for claim in everything["claims"] if claim["paper"] == name)
        assert paper["verdicts"] == own and paper["hang_on_one_seed"] == 0
    lines = " ".join(without_records().stdout.split("\n\n")[-2].split())
    assert lines.startswith("consa: ") and all(
        f" {name}: {papers[name]['claims']} claims: " in lines for name in ["sgt"]
    )


def test_claims_that_hang_on_one_seed_are_counted_by_paper():
    flag = {"code": "seed", "text": "hangs"}
    given = [("sgt", "holds", [flag]), ("sgt", "fails", []), ("sgt", "open", [{**flag, "code": "page"}])]
    counted = claim_list.verdicts_by_paper(given)
    assert counted == {"sgt": {"claims": 3, "verdicts": {"holds": 1, "fails": 1, "open": 1}, "hang_on_one_seed": 1}}
    words = claim_list.paper_in_words("sgt", counted["sgt"])
    assert words == "sgt: 3 claims: 1 holds, 1 fails, 1 open; 1 hangs on one seed"


def test_undecided_claims_say_what_stands_in_their_way():
    found = json.loads(
        listed("--claims", "--undecided", "--paper", "spiral", "--results-dir", "nowhere", "--json").stdout
    )
    assert {claim["verdict"] for claim in found["claims"]} <= {"open", "cannot tell here", "not run"}
    ways = [claim["in_the_way"] for claim in found["claims"]]
    assert all(way["text"] for way in ways) and {"runs", "speed", "GPU", "not here"} == {way["what"] for way in ways}
    places = [place for step in found["planned"] for place in step["claims"]]
    assert len(set(places)) == len(places) and {ways[place]["what"] for place in places} == {"runs"}
    assert {step["minutes"] for step in found["planned"]} == {None}, "nothing was trained here"
    each = [step["flops"] / len(step["claims"]) for step in found["planned"] if not step["searches"]]
    assert each and found["new_plan"] == [] and all(step["runs"] for step in found["planned"])
    searched = {name for step in found["planned"] for name in step["searches"]}
    assert searched == {"spiral-ladder"} | ({"spiral-slopes"} & searched)


def test_a_list_of_undecided_claims_fits_80_columns():
    done = listed("--claims", "--undecided", "sgt-table1", "--results-dir", "nowhere")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and max(map(len, lines)) <= 80
    assert any(line.startswith("1. ") and "FLOPs), for " in line for line in lines)


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["consa-table1", "gains 3.7"], "printed"),
        (["consa-table4", "scales quadratically"], "exact"),
        (["sgt-table6", "hidden sizes differ"], "transcribed"),
        (["consa-table1", "beats rule, head-wise"], "trained"),
        (["sgt-table10", "faster than Block Loop", "*measured*"], "timed"),
    ],
)
def test_a_claim_is_of_the_kind_of_what_its_test_reads(words, about):
    found = json.loads(listed("--claims", *words, "--results-dir", "nowhere", "--json").stdout)["claims"]
    assert {claim["about"] for claim in found} == {about}


def test_a_claim_has_the_verdict_of_its_page_at_the_largest_scale_that_has_one():
    found = json.loads(listed("--claims", "--paper", "depth", "--results-dir", str(PUBLISHED), "--json").stdout)
    scales = {claim["scale"] for claim in found["claims"]}
    assert scales - {None} and scales <= {None, *SCALES}


def test_verdicts_are_read_and_not_computed(monkeypatch):
    """They are computed once, where pages are made."""
    monkeypatch.setattr("hybridlab.lab.papers.cells.load_record", None)
    monkeypatch.setattr("hybridlab.lab.papers.cells.resolve", None)
    found = json.loads(listed("--claims", "--paper", "spiral", "--results-dir", "results", "--json").stdout)["claims"]
    assert {claim["read"] for claim in found} == {None, "published"}
    page = as_read(json.loads((PUBLISHED / "spiral-loops" / "desk" / "table.json").read_text()))
    of_page = {claim["text"]: (claim["verdict"], claim["n"], claim["evidence"]) for claim in page["claims"]}
    own = [claim for claim in found if claim["id"] == "spiral-loops" and claim["scale"] == "desk"]
    assert own and all(of_page[one["text"]] == (one["verdict"], one["n"], one["evidence"]) for one in own)


def test_a_page_of_ones_own_comes_before_the_published_one_and_a_damaged_one_is_named(tmp_path):
    shutil.copytree(PUBLISHED / "spiral-loops", tmp_path / "published" / "spiral-loops")
    own = tmp_path / "spiral-loops" / "desk"
    shutil.copytree(PUBLISHED / "spiral-loops" / "desk", own)
    page = json.loads((own / "table.json").read_text())
    (own / "table.json").write_text(json.dumps({**page, "claims": [{**page["claims"][0], "verdict": "fails"}]}))
    ask = ("--claims", "spiral-loops", "--results-dir", str(tmp_path), "--json")
    claims = json.loads(listed(*ask).stdout)["claims"]
    assert [(one["verdict"], one["read"]) for one in claims[:1]] == [("fails", "your own")]
    assert {one["read"] for one in claims[1:]} <= {"published", None}
    whole = page["claims"][0]
    for odd in ({"text": "a"}, {**whole, "verdict": "maybe"}, {**whole, "about": "x"}, {**whole, "flags": 3}):
        (own / "table.json").write_text(json.dumps({**page, "claims": [odd]}))
        error = str(listed(*ask).exception)
        assert str(own) in error and "hybridlab report spiral-loops --scale desk" in error, odd


def test_a_damaged_page_of_a_pretrained_model_is_named_itself(tmp_path):
    shutil.copytree(PUBLISHED / "sgt-fig7", tmp_path / "published" / "sgt-fig7")
    file = tmp_path / "published" / "sgt-fig7" / "pretrained" / "figure.json"
    page = json.loads(file.read_text())
    claims = [{key: value for key, value in one.items() if key != "about"} for one in page["claims"]]
    file.write_text(json.dumps({**page, "claims": claims}))
    error = str(listed("--claims", "sgt-fig7", "--results-dir", str(tmp_path)).exception)
    assert "sgt-fig7/pretrained: this page is damaged" in error and "--scale pretrained" in error


def test_claims_by_verdict():
    found = json.loads(listed("--claims", "--verdict", "fails", "--results-dir", "nowhere", "--json").stdout)
    assert found["claims"] and {claim["verdict"] for claim in found["claims"]} == {"fails"}
    assert "no claim matches" in listed("--claims", "no such sentence").output


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--claims", "--sizes"], "--claims and --sizes are two lists"),
        (["--claims", "--done"], "--done has no effect on --claims"),
        (["--verdict", "fails"], "add --claims"),
        (["--undecided"], "--undecided chooses among claims; add --claims"),
        (["--sizes", "--undecided"], "--undecided has no effect on --sizes"),
        (["--claims", "--undecided", "--verdict", "holds"], "--verdict holds is decided"),
        (["--claims", "--verdict", "fals"], "did you mean 'fails'?"),
        (["--claims", "--paper", "consas"], "did you mean 'consa'?"),
    ],
)
def test_mistakes_in_a_list_of_claims_are_one_sentence(arguments, part):
    assert part in str(listed(*arguments).exception)


def test_every_claim_has_a_sentence_and_a_place_and_stands_once_in_its_file():
    for identifier in experiment_ids():
        texts = [(claim.text, claim.source) for claim in load_experiment(identifier).claims]
        assert all(text.strip() and source.strip() for text, source in texts), identifier
        assert len({text for text, _ in texts}) == len(texts), identifier


def test_no_sentence_stands_twice_in_the_list_of_a_paper():
    """Claims that ask the same of other runs say which. (A file that extends another one must replace its claims.)"""
    places = {}
    for identifier in experiment_ids():
        experiment = load_experiment(identifier)
        for claim in experiment.claims:
            places.setdefault((experiment.paper, claim.text), []).append(identifier)
    assert {claim: ids for claim, ids in places.items() if len(ids) > 1} == {}
