"""Runs with names: given, found everywhere, listed, shown, compared, drawn, and cleaned up."""

import json
import os
import platform
import shutil

import pytest

from hybridlab.errors import UserError
from hybridlab.files import read_text, write_json
from hybridlab.runs.record import read_record, save_record
from hybridlab.training.engine import Run
from hybridlab.training.store import checkpoints, folders
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import PUBLISHED, SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.training import Stop, assert_same_run, train, train_until

ON_TEXT = ["--data", "text:words.txt", "--config", "small.yaml"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A working folder in which three runs have finished: base, its child masks, and window."""
    folder = tmp_path_factory.mktemp("runs-by-name")
    write_text(folder / "words.txt")
    settings = {"shape": {**SMALL_SHAPE, "layers": 4}, "training": SMALL_TRAINING}
    settings |= {"data": {"tokenizer": "byte"}, "evaluation": {"validation_windows": 8}}
    settings |= {"runtime": {"log_every": 1}, "observe": {"entropy_every": 4}}
    (folder / "small.yaml").write_text(json.dumps(settings))
    for words in (
        ["pretrain", *ON_TEXT, "--name", "base", "--tag", "first", "--tag", "dense"],
        ["learn-masks", "--from", "base", "--window", "4", "--steps", "6", "--name", "masks", "--tag", "first"],
        ["pretrain", *ON_TEXT, "--arch", "all-window", "--set", "window=4", "--name", "window", "--keep-optimizer"],
    ):
        done = hybridlab(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def listed(work, *options):
    """The rows of the list by name."""
    return {row["name"]: row for row in json_of(hybridlab("runs", *options, "--json", cwd=work))["runs"]}


def folder_of(work, name):
    return RunFolder(work / listed(work)[name]["path"])


# ---- names ----


def test_name_tags_and_start_are_in_folder_and_record(work):
    folder = folder_of(work, "base")
    for facts in (folder.info(), folder.record()):
        assert facts["name"] == "base" and facts["tags"] == ["first", "dense"] and facts["host"] == platform.node()
        assert facts["command"].startswith("hybridlab pretrain --data text:words.txt") and "T" in facts["started"]
        assert facts["started"].endswith("+00:00")


def committed_records():
    return [path for path in sorted((PUBLISHED / "records").iterdir()) if not path.name.startswith("benchmark-")]


def test_committed_records_without_these_facts_can_be_read():
    path = next(path for path in committed_records() if "command" not in json.loads(read_text(path)))
    record = read_record(path)
    assert record.name is None and record.command is None and record.tags == []


def test_committed_records_name_no_folder_of_a_machine():
    texts = [read_text(path) for path in (PUBLISHED / "records").iterdir()]
    assert not [text[:200] for text in texts if "--runs-dir" in text]


def test_a_stored_record_keeps_the_command_without_the_folders_of_this_machine(tmp_path):
    path = committed_records()[0]
    command = "hybridlab reproduce a --runs-dir '/home/me/my runs' --jobs 2 --results-dir=/x --data-root /y"
    record = read_record(path).model_copy(update={"command": command})
    save_record(record, tmp_path)
    assert read_record(tmp_path / "records" / path.name).command == "hybridlab reproduce a --jobs 2"


def test_name_and_tags_change_no_hash_and_a_second_start_renames(work, tmp_path):
    runs = tmp_path / "copy"
    shutil.copytree(work / "runs", runs)
    done = hybridlab("pretrain", *ON_TEXT, "--name", "other", "--tag", "late", "--runs-dir", runs, cwd=work)
    assert done.returncode == 0 and "finished before" in done.stderr
    rows = listed(work, "--runs-dir", runs)
    assert "base" not in rows and rows["other"]["hash"] == folder_of(work, "base").digest
    assert rows["other"]["tags"] == ["first", "dense", "late"]
    record = read_record(runs / rows["other"]["hash"] / "record.json")
    assert record.name == "other" and record.tags == ["first", "dense", "late"]


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "base", "--json"],
        ["generate", "base", "the cat", "--max-new-tokens", "2"],
        ["analyze", "base", "--probe", "entropy", "--rows", "2", "--json"],
        ["runs", "show", "base"],
        ["pretrain", "--from", "base", "--steps", "2"],
        ["pretrain", *ON_TEXT, "--set", "init.run=base", "--steps", "2"],
        ["pretrain", "--from", "masks", "--set", "map={kind: learned, run: masks}", "--steps", "2"],
        ["pretrain", *ON_TEXT, "--arch", "block-loop", "--steps", "2"]
        + ["--set", "plan=[{op: loop_blocks, layers: {top_entropy_of: base, step: 4, n: 2}}]"],
        ["ablate", "--from", "base", "--vary", "training.clip=1", "--seeds", "1", "--steps", "2"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_name_is_found_wherever_a_run_is_asked_for(work, words):
    done = hybridlab(*words, cwd=work)
    assert done.returncode == 0, done.stderr


def test_names_in_settings_become_hashes(work):
    """So that a run has the same hash whichever way its parent was written."""
    base, hashes = folder_of(work, "base"), []
    for reference in ("base", base.digest, base.digest[:6], str(base.path)):
        words = ["pretrain", *ON_TEXT, "--set", f"init.run='{reference}'", "--steps", "2", "--json"]
        made = json_of(hybridlab(*words, cwd=work))
        hashes.append(made["hash"])
        assert made["parents"] == [base.digest] and made["config"]["init"]["run"] == base.digest
    assert len(set(hashes)) == 1
    words = ["pretrain", "--from", "masks", "--set", "map={kind: learned, run: masks}", "--steps", "2", "--json"]
    assert json_of(hybridlab(*words, cwd=work))["config"]["map"]["run"] == folder_of(work, "masks").digest


def test_a_folder_in_the_folder_of_runs_is_found_by_its_own_name(trained):
    _, runs = trained
    assert Runs(runs).find("parent").path == runs / "parent"


def test_what_is_called_twice_is_named(work, tmp_path, monkeypatch):
    base = folder_of(work, "base")
    shutil.copytree(base.path, tmp_path / "runs" / "one")
    other = folder_of(work, "window")
    shutil.copytree(other.path, tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    for reference in ("./base", "runs/one"):
        assert hybridlab("runs", "show", reference, cwd=tmp_path).returncode == 0
    done = hybridlab("eval", "base", cwd=tmp_path)
    assert done.returncode == 2 and "./base and the run in runs/one are both called so" in done.stderr
    assert hybridlab("eval", "./base", cwd=tmp_path).returncode == 0
    shutil.copytree(base.path, tmp_path / "runs" / "two")
    with pytest.raises(UserError, match=r"2 runs match \(.*one, .*two\)"):
        Runs(tmp_path / "runs").find(base.digest[:8])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrain", *ON_TEXT, "--seed", "3", "--name", "base"], "another run has this name (runs/"),
        (["pretrain", *ON_TEXT, "--seed", "3", "--name", "cafe"], "could be the start of a run's hash"),
        (["pretrain", *ON_TEXT, "--seed", "3", "--name", "a/b"], "letters, digits and the signs"),
        (["pretrain", *ON_TEXT, "--seed", "3", "--tag", ""], "--tag '': use"),
        (["runs", "rename", "masks", "base"], "another run has this name"),
        (["runs", "tag", "masks", "--remove", "second"], "has no such tag; it has first"),
        (["runs", "show", "bsae"], "did you mean 'base'"),
        (["runs", "show", "zzz"], "`hybridlab runs` lists them"),
        (["runs", "show", ""], "neither a run folder"),
        (["runs", "--state", "finnished"], "did you mean 'finished'"),
        (["runs", "--sort", "lss"], "did you mean 'loss'"),
        (["runs", "--since", "yesterday"], "write a time such as 90m"),
        (["runs", "--since", "9" * 20 + "d"], "write a time such as 90m"),
        (["runs", "--runs-dir", "nowhere"], "nowhere: there is no such folder of runs"),
        (["runs", "--sort", "loss", "show", "base"], "--sort before `show` has no effect"),
        (["runs", "compare", "base"], "two or more different runs"),
        (["runs", "compare", "base", "base"], "two or more different runs"),
        (["runs", "curves", "base", "--x", "epochs"], "there is no such axis"),
        (["runs", "curves", "base", "--metric", "los"], "did you mean 'loss'"),
        (["runs", "curves", "base", "--out", "a.gif"], "must end in .png, .pdf or .svg"),
        (["runs", "clean", "--runs-dir", "nowhere"], "no such folder of runs"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_mistakes(work, words, message):
    done = hybridlab(*words, cwd=work)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_rename_and_tags(work, tmp_path):
    shutil.copytree(work / "runs", tmp_path / "runs")
    assert hybridlab("runs", "rename", "masks", "first-masks", cwd=tmp_path).returncode == 0
    words = ["runs", "tag", "first-masks", "--add", "good", "--remove", "first"]
    assert hybridlab(*words, cwd=tmp_path).returncode == 0
    assert listed(tmp_path)["first-masks"]["tags"] == ["good"]
    assert folder_of(tmp_path, "first-masks").record()["tags"] == ["good"]


def test_searching_reads_the_file_of_each_run_once_until_it_changes(work, tmp_path, monkeypatch):
    shutil.copytree(work / "runs", tmp_path / "runs")
    digest = folder_of(work, "base").digest
    read, seen = folders.read_object, []
    monkeypatch.setattr(folders, "read_object", lambda path, *rest: seen.append(path) or read(path, *rest))
    runs = Runs(tmp_path / "runs")
    base = runs.find("base")
    assert len(seen) == len(set(seen)) == len(list(runs.directory.glob("*/run.json")))
    assert runs.find(digest[:7]) == base and Runs(runs.directory).find("base") == base
    assert len(seen) == len(set(seen))
    base.relabel({"name": "esab"})
    assert runs.find("esab") == base


# ---- list, show, compare, curves ----


def test_the_list_its_filters_and_its_order(work):
    rows = listed(work)
    base = rows["base"]
    assert (base["state"], base["arch"], base["size"], base["step"], base["steps"]) == (
        *("finished", "vanilla", "tiny"),
        *(12, 12),
    )
    record = folder_of(work, "base").record()
    assert base["validation"] == record["results"]["validation"]["loss"]["value"]
    assert base["loss"] == pytest.approx(record["history"]["loss"][-1], rel=1e-5) and base["age"] >= 0
    assert base["disk"] == sum(p.stat().st_size for p in (work / base["path"]).rglob("*") if p.is_file())
    assert rows["masks"]["parents"] == [base["hash"]]
    named = {"base", "masks", "window"}
    assert named & set(listed(work, "--tag", "first")) == {"base", "masks"}
    assert named & set(listed(work, "--tag", "first", "--tag", "dense")) == {"base"}
    assert named & set(listed(work, "--arch", "all-*")) == {"window"}
    assert named & set(listed(work, "--name", "?as*")) == {"base", "masks"}
    assert named <= set(listed(work, "--since", "1h")) and not listed(work, "--since", "0s")
    assert not listed(work, "--state", "failed")
    by_size = json_of(hybridlab("runs", "--sort", "disk", "--json", cwd=work))["runs"]
    assert [row["disk"] for row in by_size] == sorted((row["disk"] for row in by_size), reverse=True)
    # Both have kept an optimizer, that of masks because it has not settled.
    assert all(rows[name]["disk"] > 2 * base["disk"] for name in ("masks", "window"))
    losses = [row["loss"] for row in json_of(hybridlab("runs", "--sort", "loss", "--json", cwd=work))["runs"]]
    assert losses == sorted(losses)


def test_the_list_fits_eighty_columns_and_a_wide_terminal_shows_more(work, monkeypatch):
    narrow = hybridlab("runs", cwd=work).stdout
    assert all(len(line) <= 80 for line in narrow.splitlines()) and "base" in narrow
    monkeypatch.setenv("COLUMNS", "160")
    wide = hybridlab("runs", cwd=work).stdout
    assert "first, dense" in wide and "started (UTC)" in wide and "first, dense" not in narrow


def test_long_names_and_numbers_are_cut_to_fit(work, tmp_path):
    base = folder_of(work, "base")
    shutil.copytree(base.path, tmp_path / "runs" / "a")
    info = base.info() | {"name": "n" * 64}
    info["config"] = info["config"] | {"arch": "attention-loop", "size": "pythia-1.4b"}
    info["config"]["training"] = info["config"]["training"] | {"steps": 1000000}
    write_json(tmp_path / "runs" / "a" / "run.json", info)
    lines = hybridlab("runs", cwd=tmp_path).stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for part in (info["hash"][:8], "nnn…", "finished", "attention", "12/1000000"):
        assert part in lines[2]


def test_show(work):
    shown = json_of(hybridlab("runs", "show", "base", "--json", cwd=work))
    assert "masks" in [child["name"] for child in shown["children"]] and shown["parents"] == []
    assert sum(shown["disk_parts"].values()) == shown["disk"] and shown["own_settings"]["shape.layers"] == 4
    assert shown["results"]["validation"]["loss"]["stderr"] and shown["command"] and shown["machine"]
    text = hybridlab("runs", "show", "masks", cwd=work).stdout
    for part in ("parent: base", "event at step 6: masks-fixed", "validation loss (nats/token)", "init.run"):
        assert part in text
    assert "hybridlab learn-masks --from base" in text


def test_compare_pairs_the_windows(work):
    compared = json_of(hybridlab("runs", "compare", "base", "window", "masks", "--json", cwd=work))
    assert compared["settings"]["map.kind"] == ["full", "window", "mixed"]
    assert "shape.layers" not in compared["settings"] and compared["settings"]["map.window"] == [None, 4, 4]
    one, two = (folder_of(work, name).record()["results"]["validation"] for name in ("base", "window"))
    differences = [b - a for a, b in zip(one["windows"], two["windows"], strict=True)]
    first, second, _ = compared["losses"]
    assert first == {"loss": one["loss"]}
    assert second["difference"]["value"] == pytest.approx(sum(differences) / 8) and second["difference"]["n"] == 8
    assert second["not_compared"] is None and "seeds" in compared["note"]
    text = hybridlab("runs", "compare", "base", "window", cwd=work).stdout
    assert "map.kind" in text and "− base" in text and "other seeds" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"evaluation.validation_windows": 4}, "4 and 8 windows"),
        ({"training.seq_len": 16}, "16 and 32 tokens"),
        ({"data.validation_fraction": 0.2}, "data differ"),
    ],
)
def test_losses_on_other_windows_are_not_compared(work, change, reason):
    sets = [word for name, value in change.items() for word in ("--set", f"{name}={value}")]
    made = json_of(hybridlab("pretrain", *ON_TEXT, "--steps", "2", *sets, "--json", cwd=work))
    compared = json_of(hybridlab("runs", "compare", "base", made["hash"], "--json", cwd=work))
    assert reason in compared["losses"][1]["not_compared"] and compared["losses"][1]["difference"] is None


def test_curves_in_the_terminal_as_pictures_and_as_numbers(work):
    drawn = hybridlab("runs", "curves", "base", "window", "--out", "pictures/c.png", cwd=work)
    assert drawn.returncode == 0, drawn.stderr
    assert (work / "pictures" / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "a base" in drawn.stdout and "b window" in drawn.stdout and "optimizer steps" in drawn.stdout
    assert "\x1b" not in drawn.stdout and all(len(line) <= 80 for line in drawn.stdout.splitlines())
    for name, start in (("c.pdf", b"%PDF"), ("c.svg", b"<?xml")):
        assert hybridlab("runs", "curves", "base", "--x", "tokens", "--out", name, cwd=work).returncode == 0
        assert (work / name).read_bytes().startswith(start)
    numbers = json_of(hybridlab("runs", "curves", "base", "--x", "flops", "--json", cwd=work))
    (curve,) = numbers["curves"]
    lines = [json.loads(line) for line in (folder_of(work, "base").path / "metrics.jsonl").open()]
    assert curve["x"] == [line["flops"] for line in lines] and curve["y"] == [line["loss"] for line in lines]
    assert hybridlab("runs", "curves", "base", "--metric", "lr", cwd=work).returncode == 0


# ---- states, disk, cleaning ----


def unfinished(small, runs, monkeypatch, name="half", **parts):
    train_until(small(**parts), runs / name, runs, monkeypatch, 10)
    return RunFolder(runs / name)


def test_states(small, runs, trained, monkeypatch):
    half = unfinished(small, runs, monkeypatch)
    shutil.copytree(trained[1] / "parent", runs / "done")
    for name, text in (
        ("bad", "garbage"),
        ("older", '{"hash": "1", "config": {}, "data_fingerprint": "", "precision": ""}'),
    ):
        (runs / name).mkdir()
        (runs / name / "run.json").write_text(text)
    failed = RunFolder(runs / "failed")
    shutil.copytree(half.path, failed.path)
    write_json(failed.path / "record.json", {"status": "failed", "hash": "x", "reason": "the loss is nan"})
    rows = listed(runs, "--runs-dir", ".")
    assert {name: row["state"] for name, row in rows.items() if name} == {
        "half": "unfinished",
        "done": "finished",
        "failed": "failed",
    }
    damaged = [
        row for row in json_of(hybridlab("runs", "--runs-dir", ".", "--json", cwd=runs))["runs"] if not row["name"]
    ]
    assert {row["state"] for row in damaged} == {"damaged"} and len(damaged) == 2
    assert any("not JSON" in row["reason"] for row in damaged)
    assert rows["half"]["step"] == 10 and rows["half"]["validation"] is None
    text = hybridlab("runs", "--runs-dir", ".", cwd=runs)
    assert text.returncode == 0 and "damaged: bad/run.json" in text.stdout
    assert hybridlab("runs", "show", "half", "--runs-dir", ".", cwd=runs).returncode == 0
    said = hybridlab("runs", "show", "bad", "--runs-dir", ".", cwd=runs).stderr
    assert "run.json: this file of a run is damaged (not JSON)" in said, "a run that cannot be read is there"
    shown = hybridlab("runs", "curves", "half", "done", "--runs-dir", ".", cwd=runs)
    assert shown.returncode == 0, shown.stderr
    compared = hybridlab("runs", "compare", "half", "done", "--runs-dir", ".", cwd=runs)
    assert compared.returncode == 0 and "no validation loss" in compared.stdout
    with half.locked():
        assert listed(runs, "--runs-dir", ".")["half"]["state"] == "training"


def test_a_finished_run_keeps_its_optimizer_only_if_asked(work):
    assert not folder_of(work, "base").checkpoints.exists()
    kept = folder_of(work, "window").checkpoints
    assert [path.name for path in kept.iterdir()] == ["step-00000012"]
    assert checkpoints.load_newest(kept).state["step"] == 12
    done = hybridlab("pretrain", *ON_TEXT, "--keep-optimizer", cwd=work)
    assert done.returncode == 0 and "the state of its optimizer was not kept" in done.stderr


def test_a_kill_between_record_and_removal_does_no_harm(small, runs, monkeypatch):
    def killed(folder, keep, steps):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "keep_newest", killed)
        with pytest.raises(Stop):
            train(small(), runs / "a", runs)
    monkeypatch.setattr(Run, "train", lambda *a: pytest.fail("trained again"))
    assert train(small(), runs / "a", runs).status == "finished"
    cleaned = json_of(hybridlab("runs", "clean", "--runs-dir", ".", "--yes", "--json", cwd=runs))
    assert cleaned["removed"] == ["a/checkpoints"] and not (runs / "a" / "checkpoints").exists()


def test_clean_shows_asks_and_leaves_what_is_needed(small, runs, monkeypatch):
    train(small(runtime={"keep_optimizer": True}), runs / "kept", runs)
    train(small(settings=["training.seed=1"]), runs / "done", runs)
    half = unfinished(small, runs, monkeypatch, settings=["training.seed=2"])
    (half.checkpoints / ".step-00000009.partial").mkdir()
    (half.checkpoints / ".step-00000009.partial" / "model.safetensors").write_bytes(b"x" * 5000)
    (runs / "done" / ".metrics.jsonl.0123abcd").write_text("{")
    (runs / "never").mkdir()
    (runs / "never" / ".lock").touch()
    (runs / "mine").mkdir()
    (runs / "mine" / "notes.txt").write_text("precious")
    before = {path for path in runs.rglob("*")}

    def cleaned(*options, answer=""):
        monkeypatch.setattr("sys.stdin", _Answer(answer))
        return hybridlab("runs", "clean", "--runs-dir", ".", *options, cwd=runs)

    rubbish = {"half/checkpoints/.step-00000009.partial", "done/.metrics.jsonl.0123abcd", "never"}
    shown = json_of(cleaned("--dry-run", "--json"))
    assert {item["path"] for item in shown["items"]} == rubbish and shown["removed"] == []
    assert {item["path"]: item["bytes"] for item in shown["items"]}["half/checkpoints/.step-00000009.partial"] == 5000
    assert "kept/checkpoints" in cleaned("--dry-run", "--kept").stdout
    assert "Remove these 3?" in cleaned(answer="n\n").stderr
    unanswered = cleaned()
    assert unanswered.returncode == 2 and "add --yes" in unanswered.stderr
    with half.locked():
        assert "half" not in cleaned("--dry-run").stdout
    assert {path for path in runs.rglob("*")} == before
    assert cleaned(answer="y\n").returncode == 0
    gone = {str(path.relative_to(runs)) for path in before - set(runs.rglob("*"))}
    assert gone == rubbish | {"half/checkpoints/.step-00000009.partial/model.safetensors", "never/.lock"}
    assert json_of(cleaned("--kept", "--yes", "--json"))["removed"] == ["kept/checkpoints"]
    assert cleaned().stdout.strip() == "nothing to remove"
    train(small(settings=["training.seed=2"]), half.path, runs)
    train(small(settings=["training.seed=2"]), runs / "whole", runs)
    assert_same_run(half.path, runs / "whole")


class _Answer:
    """Standard input with these lines."""

    def __init__(self, text):
        self.lines = text.splitlines(keepends=True)

    def readline(self, *_):
        return self.lines.pop(0) if self.lines else ""

    def isatty(self):
        return False


def test_prepared_data_that_no_run_uses(small, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    train(small(training={"steps": 2}), runs / "a", runs)
    (used,) = (runs / "data").iterdir()
    unused = runs / "data" / "unused"
    shutil.copytree(used, unused)
    meta = json.loads((unused / "meta.json").read_text())
    (unused / "meta.json").write_text(json.dumps(meta | {"fingerprint": "other"}))
    shutil.copytree(unused, runs / "data" / "just-made")
    for name in (".old.01234567.partial", ".new.01234567.partial"):
        (runs / "data" / name).mkdir()
    for path in (unused, used, runs / "data" / ".old.01234567.partial"):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200))
    assert json_of(hybridlab("runs", "clean", "--json", "--yes", cwd=tmp_path))["items"] == []
    cleaned = json_of(hybridlab("runs", "clean", "--data", "--json", "--yes", cwd=tmp_path))
    assert cleaned["removed"] == ["runs/data/.old.01234567.partial", "runs/data/unused"]
    left = sorted(path.name for path in (runs / "data").iterdir())
    assert left == sorted([used.name, "just-made", ".new.01234567.partial"])
