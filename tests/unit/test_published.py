"""One's own results before the published ones: which is read, what differs, how it is published, its size."""

import copy
import hashlib
import json
import re
import subprocess
from collections import Counter

import numpy as np
import pytest
import zstandard
from matplotlib.figure import Figure
from PIL import Image

from hybridlab import files
from hybridlab.errors import UserError
from hybridlab.files import DICTIONARIES, compact_json, read_object, read_text, write_json
from hybridlab.lab.papers.cells import best_scale, cell_runs, records_of
from hybridlab.lab.papers.experiment import with_all
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.plans import Planned, history, history_name, write_history
from hybridlab.lab.papers.sweep import sweep_runs
from hybridlab.lab.reporting import published as published_module
from hybridlab.lab.reporting.entry_data import write_picture
from hybridlab.lab.reporting.published import compared
from hybridlab.lab.reporting.seeds import difference, measured
from hybridlab.runs.record import compact, load_record, record_name, save_record
from hybridlab.runs.style import DOTS
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.results import find, folders, origin, own_alone
from tests.conftest import PUBLISHED, ROOT, run_python
from tests.integration.test_cli import hybridlab
from tests.records import make_loss, make_record, make_results
from tests.unit.test_verdicts_of_a_page import A, B, Toy


@pytest.fixture
def toy(tmp_path):
    """The experiment of two arms; `report ./toy.yaml` runs beside it."""
    made = Toy(tmp_path)
    made.load()
    return made


def report(toy, *options):
    """`report`: what it said."""
    done = hybridlab("report", "./toy.yaml", "--scale", "desk", *options, cwd=toy.path.parent)
    assert done.returncode == 0, done.stderr
    return done.stderr


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hash_of(toy, cell, seed):
    [run] = [run for run in cell_runs(toy.load(), "desk", seed) if run.cell == cell]
    return run.hash


def move_to_published(toy):
    """What is one's own becomes what is published; nothing of one's own is left."""
    own = toy.results.rename(toy.results.with_name("was own"))
    toy.results.mkdir()
    own.rename(toy.results / "published")


# ---- where a file is read ----


def test_a_file_of_ones_own_is_found_before_the_published_one(tmp_path):
    for folder in folders(tmp_path):
        (folder / "records").mkdir(parents=True)
    assert find(tmp_path, "records/a") == tmp_path / "records/a", "where it would be written"
    (tmp_path / "published/records/a").touch()
    assert find(tmp_path, "records/a") == tmp_path / "published/records/a"
    with own_alone():
        assert find(tmp_path, "records/a") == tmp_path / "records/a"
    (tmp_path / "records/a").touch()
    (tmp_path / "published/records/b").touch()
    assert find(tmp_path, "records/a") == tmp_path / "records/a"
    assert origin(tmp_path, ["records/a", "records/b"]) == {"your own": 1, "published": 1}


def test_records_of_ones_own_stand_in_a_page_before_published_ones(toy):
    toy.train(a=A, b=B)
    report(toy)
    move_to_published(toy)
    assert "records: 8 published; same as published (2 cells, 1 verdict)" in report(toy)
    assert best_scale(toy.load(), toy.results) == "desk"
    assert {*records_of(toy.load(), "desk", toy.results)["a"]} == {0, 1, 2, 3}
    record = load_record(hash_of(toy, "a", 0), toy.results)
    save_record(
        record.model_copy(update={"results": record.results.model_validate(make_results(validation=make_loss(3.3)))}),
        toy.results,
    )
    said = report(toy)
    assert "records: 1 your own, 7 published; 1 of 2 cells differ" in said
    with own_alone():
        found = records_of(toy.load(), "desk", toy.results)
        assert {cell: list(by_seed) for cell, by_seed in found.items()} == {"a": [0]}


def test_a_run_of_ones_own_is_read_before_the_published_record(toy):
    toy.train(a=A, b=B)
    move_to_published(toy)
    digest = hash_of(toy, "a", 0)
    run = RunFolder(toy.path.parent / "runs" / digest)
    run.path.mkdir(parents=True)
    trained = make_record(hash=digest, results=make_results(validation=make_loss(7.0)))
    run.write("record.json", trained.model_dump(mode="json"))
    run.write("run.json", {"hash": digest, "config": {}, "data_fingerprint": "", "precision": "fp32"})
    assert load_record(digest, toy.results).results.validation.loss.value == 3.0
    assert load_record(digest, toy.results, run.path.parent).results.validation.loss.value == 7.0
    assert (toy.results / record_name(digest)).is_file(), "it is kept, so that the page can be made without the run"
    assert load_record(digest, toy.results).results.validation.loss.value == 7.0


def test_the_list_marks_what_is_published_and_what_is_ones_own(tmp_path):
    page = tmp_path / "published" / "consa-table4" / "smoke"
    page.mkdir(parents=True)
    (page / "table.json").write_text("{}")

    def listed():
        done = hybridlab("list", "consa-table4", "--results-dir", tmp_path, cwd=tmp_path)
        found = hybridlab("list", "consa-table4", "--results-dir", tmp_path, "--json", cwd=tmp_path)
        [entry] = json.loads(found.stdout)["entries"]
        return " ".join(done.stdout.split()), entry["done"], entry["published"], done.stderr

    text, done, published, said = listed()
    assert "smoke ○ desk small paper" in text and done == published == ["smoke"] and "○: published" in said
    (tmp_path / "consa-table4" / "smoke").mkdir(parents=True)
    (tmp_path / "consa-table4" / "smoke" / "table.json").write_text("{")
    assert listed()[2] == ["smoke"], "a page of one's own that was not made of everything hides nothing"
    (tmp_path / "consa-table4" / "smoke" / "table.json").write_text("{}")
    text, done, published, _ = listed()
    assert "smoke ✓ desk small paper" in text and done == ["smoke"] and published == []


@pytest.mark.long
def test_the_list_of_claims_says_whose_records_were_read():
    arguments = ("list", "--claims", "consa-fig10", "--results-dir", PUBLISHED.parent)
    found = json.loads(hybridlab(*arguments, "--json", cwd=ROOT).stdout)["claims"]
    assert {claim["read"] for claim in found if claim["scale"]} <= {"published", "your own", "your own and published"}
    assert {claim["read"] for claim in found if not claim["scale"]} <= {None}
    assert any(claim["read"] for claim in found)
    read = Counter(claim["read"] for claim in found if claim["read"])
    said = [f"verdicts of {number} of these claims are of pages that are {what}" for what, number in read.items()]
    assert hybridlab(*arguments, cwd=ROOT).stderr.splitlines() == said


# ---- what differs ----


def page(name, kind):
    return as_read(json.loads((PUBLISHED / name / "smoke" / f"{kind}.json").read_text()))


def test_equal_pages_are_the_same_whatever_their_sentences():
    table = page("consa-table1", "table")
    other = copy.deepcopy(table) | {"notes": [], "title": "other"}
    other["claims"][0]["evidence"] = "other words"
    other["rows"][0]["cells"]["perplexity"]["measured"] *= 1 + 1e-14  # as another processor rounds it
    assert compared(other, table).startswith("same as published (")


def test_cells_that_differ_are_counted_and_measured_against_their_error():
    table = page("consa-table1", "table")
    other = copy.deepcopy(table)
    first, second = (row["cells"]["perplexity"] for row in other["rows"][:2])
    first["measured"] += 0.5 * first["stderr"]
    second["measured"] += 2 * second["stderr"]
    said = compared(other, table)
    assert "2 of " in said and "cells differ" in said and "at most by 2 of its error" in said
    assert f"({other['rows'][1]['short']}, perplexity: {second['measured']:.6g}, published " in said


def test_a_cell_without_an_error_differs_by_percent_and_words_are_shown():
    table = page("consa-table4", "table")
    other = copy.deepcopy(table)
    other["rows"][0]["cells"]["dense"]["measured"] *= 1.1
    assert "at most by 10 % (no error is known)" in compared(other, table)
    other["rows"][0]["cells"]["dense"]["measured"] = "a word"
    assert "such as 0.6B, dense: a word, published 17.4" in compared(other, table)


def test_verdicts_that_differ_and_claims_of_one_page_are_named():
    table = page("consa-table4", "table")
    other = copy.deepcopy(table)
    claim = other["claims"][0]
    claim["verdict"] = "open"
    before = table["claims"][0]["verdict"]
    said = compared(other, table)
    assert f"1 of {len(table['claims'])} verdicts differ ({claim['text']}: open, published {before})" in said
    claim["text"] = "another sentence"
    assert "2 claims are on one of the two pages alone" in compared(other, table)


def test_plotted_numbers_are_compared():
    figure = page("consa-fig10", "figure")
    assert "plotted numbers" in compared(copy.deepcopy(figure), figure)
    other = copy.deepcopy(figure)
    other["panels"][0]["series"][0]["data"]["y"][3] += 1.0
    assert compared(other, figure).startswith("1 of ")
    other["panels"][0]["series"][0]["data"] = None
    assert "on one of the two pages alone" in compared(other, figure)


@pytest.mark.parametrize("content", ["{", "{}", '{"claims": [], "rows": [1]}', '{"claims": [], "rows": {}}', "[1]"])
def test_a_damaged_published_page_is_said_and_stops_nothing(toy, content):
    toy.train(a=A, b=B)
    report(toy, "--publish")
    (toy.results / "published" / "toy-table1" / "desk" / "table.json").write_text(content)
    said = report(toy)
    lost = "2 cells are on one of the two pages alone" in said
    assert lost or "table.json is damaged or of another version; restore it" in said


def test_nothing_published_is_said(toy):
    toy.train(a=A, b=B)
    assert "toy-table1 at scale desk: records: 8 your own; nothing is published at scale desk" in report(toy)
    assert report(toy, "./toy.yaml").count("written to") == 1, "an entry that is named twice is written once"


# ---- publishing ----


def test_a_page_is_published_with_its_records_and_plans(toy):
    toy.train(a=A, b=B)
    said = report(toy, "--publish")
    published = toy.results / "published"
    assert "toy-table1 at scale desk: published in results/published (12 new files, 0 changed ones)" in said
    pages = ["toy-table1/desk/claims.png", "toy-table1/desk/table.json", "toy-table1/desk/table.md"]
    runs = [record_name(hash_of(toy, cell, seed)) for cell in "ab" for seed in range(4)]
    assert sorted(contents(published)) == sorted([*pages, *runs, history_name("toy-table1", "desk")])
    own = {name: content for name, content in contents(toy.results).items() if not name.startswith("published/")}
    assert own == contents(published), "one's own stay"
    before = contents(published)
    assert "published as it is already" in report(toy, "--publish") and contents(published) == before
    move_to_published(toy)
    (toy.results / "published" / "published").rename(toy.results / "only")
    (toy.results / "published").rename(toy.results / "away")
    (toy.results / "only").rename(toy.results / "published")
    assert "records: 8 published; same as published" in report(toy), "it can be made again of what is published alone"


def test_further_files_and_those_of_an_older_page_are_not_published(toy):
    toy.train(a=A, b=B)
    report(toy, "--publish", "--pdf", "--latex", "--csv")
    folder = toy.results / "published" / "toy-table1" / "desk"
    assert sorted(path.name for path in folder.iterdir()) == ["claims.png", "table.json", "table.md"]
    toy.content["claims"] = []
    toy.load()
    assert "4 changed ones" in report(toy, "--publish")
    assert sorted(path.name for path in folder.iterdir()) == ["table.json", "table.md"]
    assert "claims: there is nothing to draw, so no picture is written" in report(toy, "--pdf")


def test_a_record_that_another_published_page_reads_is_named(toy):
    toy.train(a=A, b=B)
    report(toy, "--publish")
    other = toy.results / "published" / "toy-table2" / "desk"
    other.mkdir(parents=True)
    (other / "table.json").write_text((other.parents[1] / "toy-table1" / "desk" / "table.json").read_text())
    toy.train(a=[3.3, *A[1:]], b=B)
    said = report(toy, "--publish")
    assert "older than these now: toy-table2 at scale desk; publish them too" in said


def test_a_publication_that_is_cut_short_is_completed_by_the_same_command(toy, monkeypatch):
    toy.train(a=A, b=B)
    report(toy, "--publish")
    toy.train(a=[3.3, *A[1:]], b=[3.4, *B[1:]])
    before, written = contents(toy.results / "published"), []

    def interrupted(path, content):
        written.append(path.name)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(published_module, "write_bytes", interrupted)
        done = hybridlab("report", "./toy.yaml", "--scale", "desk", "--publish", cwd=toy.path.parent)
    assert done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr
    now = contents(toy.results / "published")
    assert {name for name in now if now[name] != before.get(name)} == {f"records/{written[0]}"}, "pages come last"
    assert not list(toy.results.glob(".publish-*"))
    assert "changed ones" in report(toy, "--publish")
    assert "same as published" in report(toy)


def test_the_published_histories_of_plans_are_joined_and_lose_nothing(toy):
    toy.train(a=A, b=B)
    report(toy, "--publish")
    [first] = history("toy-table1", "desk", toy.results)
    theirs = Planned("theirs", "2000-01-01", first.content)
    write_history("toy-table1", "desk", [theirs, first], toy.results / "published")
    write_history("toy-table1", "desk", [first, first], toy.results)
    with pytest.raises(Exception, match="plan theirs was changed"):
        history("toy-table1", "desk", toy.results)
    other = Planned(first.digest, "2000-01-01", first.content)
    write_history("toy-table1", "desk", [other, first], toy.results / "published")
    joined = history("toy-table1", "desk", toy.results)
    assert [(one.digest, one.date) for one in joined] == [
        (first.digest, date) for date in ("2000-01-01", first.date, first.date)
    ]
    toy.content["claims"][0]["effect"] = 0.05
    toy.load()
    report(toy, "--publish")
    both = [
        read_object(folder / history_name("toy-table1", "desk"), "history")["plans"] for folder in folders(toy.results)
    ]
    assert both[0] == both[1] and [plan["date"] for plan in both[1]][:3] == ["2000-01-01", first.date, first.date]
    assert len(both[1]) == 4


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--publish", "--all-columns"], "--publish makes pages without --all-columns"),
        (["--publish", "--results-dir", "elsewhere"], "none of the runs of toy-table1 at scale desk has a record"),
        (["--publish", "--results-dir", "results/published"], "results/published is what is published"),
    ],
)
def test_what_cannot_be_published_is_refused(toy, options, part):
    toy.train(a=A, b=B)
    report(toy, "--publish")
    before = contents(toy.results / "published")
    done = hybridlab("report", "./toy.yaml", "--scale", "desk", *options, cwd=toy.path.parent)
    assert done.returncode == 2 and part in done.stderr and "Traceback" not in done.stderr
    assert contents(toy.results / "published") == before


def test_latex_of_a_figure_is_refused():
    done = hybridlab("report", "consa-fig10", "--latex", cwd=ROOT)
    assert done.returncode == 2 and "LaTeX is made of tables" in done.stderr


def test_a_further_file_that_is_there_stays_up_to_date(toy):
    toy.train(a=A, b=B)
    report(toy, "--csv", "--latex", "--pdf")
    folder = toy.results / "toy-table1" / "desk"
    names = ["claims.csv", "claims.pdf", "claims.png", "table.csv", "table.json", "table.md", "table.tex"]
    assert sorted(path.name for path in folder.iterdir()) == names
    before = {name: (folder / name).read_bytes() for name in names}
    toy.train(a=[3.1, *A[1:]], b=B)
    report(toy)
    assert all((folder / name).read_bytes() != before[name] for name in names)


# ---- records ----


def at_step(dependency=True):
    probes = {"dependency": {"mean": 0.5, "maps": [[0.1, 0.9]]}} if dependency else {}
    sources = {"text": make_loss(2.0, [1.9, 2.1])}
    return {"validation": {**make_loss(2.5, [2.4, 2.6]), "sources": sources}, "probes": probes}


def test_a_record_of_results_has_no_lists_behind_means(tmp_path):
    windows = [2.9, 3.1] * 5 + [3.0] * 10 + [9.0] * 5
    mixed = {**make_loss(3.0, windows), "sources": {"text": make_loss(2.0, windows[:10])}}
    longer = {"2": make_loss(3.0, windows[:20])}
    results = make_results(validation=mixed, extrapolation=longer, at={"10": at_step(), "20": at_step(False)})
    record = make_record(hash="ab", results=results, command="hybridlab pretrain --runs-dir /home/me")
    save_record(record, tmp_path)
    kept = load_record("ab", tmp_path)
    at_end, at_length = kept.results.validation, kept.results.extrapolation["2"]
    assert at_end.windows == at_end.sources["text"].windows == at_length.windows == []
    assert at_end.blocks == at_length.blocks == [3.0, 3.0] and at_end.sources["text"].blocks == [3.0]
    for step in kept.results.at.values():
        assert step.validation.windows == step.validation.sources["text"].windows == step.validation.blocks == []
        assert step.validation.loss.value == 2.5 and "maps" not in step.probes.get("dependency", {})
    assert kept.results.at["10"].probes == {"dependency": {"mean": 0.5}} and kept.command == "hybridlab pretrain"
    assert record.results.at["10"].validation.windows == [2.4, 2.6], "the one at hand is whole"


def test_errors_of_a_record_of_results_are_those_of_its_run(tmp_path):
    """From the loss of every window, and from the blocks that are kept of them; of one run, and of a difference."""
    noise = np.random.default_rng(0)
    runs = {}
    for name in ("aa", "bb"):
        windows = noise.normal(3.0, 0.2, 47).round(5).tolist()
        runs[name] = make_record(hash=name, results=make_results(validation=make_loss(np.mean(windows), windows)))
        save_record(runs[name], tmp_path)
    kept = {name: load_record(name, tmp_path) for name in runs}
    for path in ("results.validation.loss", "results.validation.perplexity"):
        ours, theirs = [measured({0: one["aa"]}, path) for one in (runs, kept)]
        assert ours.over == theirs.over == "windows" and ours.stderr == pytest.approx(theirs.stderr, rel=1e-12)
        apart = [difference({0: one["aa"]}, {0: one["bb"]}, path).stderr for one in (runs, kept)]
        assert apart[0] == pytest.approx(apart[1], rel=1e-12) and apart[0] > 0


def test_a_record_is_compressed_to_the_same_bytes_and_can_be_read_by_zstd(tmp_path):
    save_record(make_record(hash="ab"), tmp_path / "one")
    save_record(load_record("ab", tmp_path / "one"), tmp_path / "two")
    one, two = (folder / record_name("ab") for folder in (tmp_path / "one", tmp_path / "two"))
    assert one.read_bytes() == two.read_bytes() and one.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    assert json.loads(read_text(one)) == make_record(hash="ab").model_dump(mode="json")


def test_the_dictionaries_of_records_stay_and_records_from_before_them_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LEVEL", 19)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in DICTIONARIES]
    assert digests == ["63e6b519835ee920", "87b8dc575baebfac"], "nothing could be read any more"
    content = read_object(next((PUBLISHED / "records").iterdir()), "record")
    now, sizes = tmp_path / "now.json.zst", []
    for dictionary in (None, *reversed([zstandard.ZstdCompressionDict(path.read_bytes()) for path in DICTIONARIES])):
        before = tmp_path / "before.json.zst"
        compressor = zstandard.ZstdCompressor(level=19, dict_data=dictionary)
        before.write_bytes(compressor.compress(compact_json(content).encode()))
        assert read_object(before, "record") == content
        sizes.append(before.stat().st_size)
    write_json(now, content)
    assert read_object(now, "record") == content
    assert now.stat().st_size - 4 == sizes[2] < sizes[1] < 0.8 * sizes[0]  # 4 bytes are the checksum
    of_another = zstandard.ZstdCompressionDict(
        bytes(DICTIONARIES[0].read_bytes()[:4]) + b"1234" + DICTIONARIES[0].read_bytes()[8:]
    )
    before.write_bytes(zstandard.ZstdCompressor(dict_data=of_another).compress(b"{}"))
    with pytest.raises(UserError, match="it cannot be decompressed"):
        read_object(before, "record")


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b + b"x", lambda b: b[:40] + b"\x00" + b[41:], bytes])
def test_a_damaged_record_is_one_sentence_with_what_to_do(toy, damage):
    toy.train(a=A, b=B)
    name = record_name(hash_of(toy, "a", 0))
    content = damage((toy.results / name).read_bytes()) if damage is not bytes else b""
    (toy.results / name).write_bytes(content)
    done = hybridlab("report", "./toy.yaml", cwd=toy.path.parent)
    assert done.returncode == 2 and f"results/{name}: this record is damaged" in done.stderr
    assert done.stderr.endswith("; remove it and reproduce again\n") and done.stderr.count("\n") == 1
    move_to_published(toy)
    done = hybridlab("report", "./toy.yaml", cwd=toy.path.parent)
    assert done.returncode == 2 and done.stderr.endswith("; restore it from version control\n")


# ---- the committed set ----


def test_what_is_published_is_small_and_nothing_else_of_results_is_committed():
    files = [path for path in PUBLISHED.rglob("*") if path.is_file()]
    assert len(files) > 1000 and sum(path.stat().st_size for path in files) <= 16_000_000
    kinds = {path.suffix for path in files}
    assert kinds == {".json", ".md", ".png", ".zst"}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/results/*", "!/results/published/", "/runs/"} <= set(ignored)
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True).stdout
        assert all(name.startswith("results/published/") for name in listed.split())


def test_every_published_page_and_record_is_compact():
    for path in PUBLISHED.glob("*/*/*.json"):
        assert path.read_text().count("\n") == 1, path
    for path in sorted((PUBLISHED / "records").iterdir())[::20]:
        content = read_object(path, "record")
        assert compact(copy.deepcopy(content)) == content


def test_a_record_has_ten_digits_of_what_was_measured_and_all_of_its_settings():
    number, rounded = 1.23456789012345, 1.23456789
    measured = {"validation": None, "probes": {"loss": [number, 3.0, 12345678901234.0, None]}}
    content = compact({"results": measured, "history": {"loss": [number]}, "config": {"lr": number}})
    assert content["results"]["probes"] == {"loss": [rounded, 3.0, 12345678901234.0, None]}
    assert content["history"] == {"loss": [rounded]} and content["config"] == {"lr": number}


def test_a_picture_in_few_bytes_has_the_colours_of_the_drawing(tmp_path):
    """Rare colours and light greys too, of which heat maps are made."""

    def draw():
        figure, matrix = Figure(figsize=(7.2, 3), layout="constrained"), np.full((10, 20), 0.5)
        matrix[1:] += np.linspace(-0.1, 0.1, 20)
        matrix[0] = np.linspace(0, 0.2, 20)
        for axes, colours in zip(figure.subplots(1, 2), ("viridis", "Greys"), strict=True):
            image = axes.imshow(
                [[0.4 + 0.01 * i for i in range(20)]] * 9 + [[0.01 * i for i in range(20)]], cmap=colours
            )
            image.set_clim(0, 1)
            axes.set_title("a title")
            figure.colorbar(image)
        return figure

    write_picture(tmp_path / "small", draw)
    figure = draw()
    figure.set_dpi(DOTS)
    figure.draw_without_rendering()
    figure.savefig(tmp_path / "full.png", dpi=DOTS)
    full, small = (np.asarray(Image.open(tmp_path / name).convert("RGB"), int) for name in ("full.png", "small.png"))
    assert np.abs(full - small).max() < 25 and np.abs(full - small).mean() < 1.5
    assert (tmp_path / "small.png").stat().st_size < (tmp_path / "full.png").stat().st_size / 1.5
    first = (tmp_path / "small.png").read_bytes()
    write_picture(tmp_path / "small", draw)
    assert (tmp_path / "small.png").read_bytes() == first


def test_pictures_are_as_wide_as_they_are_shown():
    for path in PUBLISHED.glob("*/*/*.png"):
        with Image.open(path) as picture:
            assert picture.mode == "P" and 250 < picture.width <= 1000, path


def test_a_published_page_names_runs_that_have_records_and_there_are_no_other_records():
    """Also the runs that its runs start from, and those of its sweep."""
    records = {path.name.split(".")[0]: path for path in (PUBLISHED / "records").iterdir() if len(path.name) == 25}
    missing, read = {}, set()
    for page in sorted(PUBLISHED.glob("*/*/*.json")):
        data = json.loads(page.read_text())
        # Benchmarks have files of their own.
        data.get("runs", {}).pop("benchmark", None)
        named = set(re.findall(r'"([0-9a-f]{16})"', json.dumps(data)))
        if lost := named - records.keys():
            missing[str(page.relative_to(PUBLISHED))] = lost
        read |= named
        experiment = load_experiment(page.parent.parent.name)
        if experiment.sweep is not None and experiment.sweep.scale == page.parent.name:
            read |= set(sweep_runs(experiment, experiment.sweep))
    assert not missing
    parents = {digest: read_object(path, "record").get("parents") or () for digest, path in records.items()}
    read |= {*with_all(sorted(read), lambda digest: parents.get(digest, ()))}
    assert not records.keys() - read, "what no page reads goes into the history, and its numbers into tried/"


def test_a_report_needs_few_calls_and_no_torch(tmp_path):
    """Calls of hybridlab's functions for a page of 112 runs, 47 claims and nine controls."""
    (tmp_path / "published").symlink_to(PUBLISHED)
    code = f"""
import sys
from hybridlab.lab.cli.main import app
calls = 0
def count(frame, event, value):
    global calls
    calls += event == "call" and "/hybridlab/" in frame.f_code.co_filename
sys.setprofile(count)
app(["report", "consa-table1", "--results-dir", {str(tmp_path)!r}], standalone_mode=False)
sys.setprofile(None)
print()
print({{"torch", "pandas"}} & set(sys.modules) or "none", calls)
"""
    loaded, calls = run_python(code).split()[-2:]
    assert loaded == "none" and int(calls) < 204_000
    made, there = (folder / "consa-table1" / "desk" for folder in (tmp_path, PUBLISHED))
    # Another version of matplotlib draws the same picture in other bytes.
    own, published = ({**contents(folder), "claims.png": None} for folder in (made, there))
    assert own == published and (made / "claims.png").is_file()
