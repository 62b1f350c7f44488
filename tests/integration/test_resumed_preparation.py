"""A preparation that is killed goes on where it was: nothing is lost, repeated, or different in the last byte."""

import gzip
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from hybridlab.data import preparing, shards
from hybridlab.data.preparing import corpus_for, prepare
from hybridlab.data.shards import open_corpus
from hybridlab.errors import UserError
from hybridlab.messages import heard_by, print_line
from tests.conftest import WORDS
from tests.integration.test_cli import hybridlab, json_of
from tests.processes import Forked
from tests.unit.test_data import data_of

NUMBER = 90
"""Documents of each source."""
AT_ONCE = 4
"""Documents that are encoded together in these tests; a record is written after each group."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 900)
    monkeypatch.setattr(preparing, "_DOCUMENTS_AT_ONCE", AT_ONCE)


def session(data, out, log, until=-1, how=prepare):
    """Prepare in a process of its own, which kills itself before it adds its document number `until`."""
    process = Forked(prepare_until, data, out, log, until, how)
    _, err = process.communicate()
    assert process.returncode == (-signal.SIGKILL if until >= 0 else 0), err
    return err


def prepare_until(data, out, log, until, how):
    """What that process does. log: gets a line for each document that was added."""
    shards.SHARD_TOKENS, preparing.SECONDS_BETWEEN_RECORDS, preparing._DOCUMENTS_AT_ONCE = 900, 0, AT_ONCE
    preparing._CORES = 2
    add, done = shards.ShardWriter.add, count()

    def watched(writer, tokens, size):
        if next(done) == until:
            os.kill(os.getpid(), signal.SIGKILL)
        add(writer, tokens, size)
        with log.open("a") as file:
            file.write(f"{writer.folder.name} {size}\n")

    shards.ShardWriter.add = watched
    with heard_by(print_line):
        how(data_of(**data), out)


def texts(seed):
    rng = random.Random(seed)
    return [f"{seed} {i} " + " ".join(rng.choices(WORDS, k=rng.randrange(2, 20))) for i in range(NUMBER)]


def make_sources(folder):
    """One source of each kind by its name, and the texts of each."""
    lines = {name: texts(name) for name in ("plain", "packed", "hub", "table", "words")}
    rows = {name: [json.dumps({"text": text}) + "\n" for text in of_it] for name, of_it in lines.items()}
    (folder / "plain.jsonl").write_text("\n".join(rows["plain"]))
    (folder / "packed").mkdir()
    for number in range(3):
        part = "".join(rows["packed"][number::3]).encode()
        (folder / "packed" / f"{number}.jsonl.gz").write_bytes(gzip.compress(part))
    (folder / "hub" / "data").mkdir(parents=True)
    for number in range(2):
        some = pa.table({"text": lines["hub"][number::2]})
        parquet.write_table(some, folder / "hub" / "data" / f"train-{number}.parquet", row_group_size=7)
    parquet.write_table(pa.table({"text": lines["table"]}), folder / "table.parquet", row_group_size=8)
    (folder / "words.txt").write_text("\n".join(lines["words"]))
    lines["packed"] = [text for number in range(3) for text in lines["packed"][number::3]]
    lines["hub"] = [text for number in range(2) for text in lines["hub"][number::2]]
    sources = {"plain": "jsonl:{}/plain.jsonl", "packed": "jsonl:{}/packed", "hub": "hub:{}/hub"}
    sources |= {"table": "parquet:{}/table.parquet"}
    return {name: source.format(folder) for name, source in sources.items()}, lines


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def documents(folder, split):
    """The documents of a split, as they stand in the shards."""
    corpus = open_corpus(folder, verify=True)
    tokens = [int(token) for shard in getattr(corpus, split) for token in shard]
    end, found, begin = corpus.meta["tokenizer"]["end"], [], 0
    for place, token in enumerate(tokens):
        if token == end:
            found.append(corpus.tokenizer.decode(tokens[begin:place]))
            begin = place + 1
    assert begin == len(tokens)
    return found


def assert_same(interrupted, whole, lines):
    """Equal to the last byte, and every document there once, in its order."""
    assert files(interrupted) == files(whole)
    for name, wanted in lines.items():
        folder = interrupted / name if (interrupted / name).is_dir() else interrupted
        assert documents(folder, "train") == [text for i, text in enumerate(wanted) if i % 20]
        assert documents(folder, "validation") == wanted[::20]


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "packed", "hub", "table"])
def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path, name):
    sources, lines = make_sources(tmp_path)
    data = {"source": sources[name], "tokenizer": "bpe:300"}
    prepare(data_of(**data), tmp_path / "whole")
    log, rng, kills = tmp_path / "log", random.Random(name), 0
    for until in (rng.randrange(20, 30), rng.randrange(10, 40)):
        session(data, tmp_path / "out", log, until)
        kills += 1
        assert not (tmp_path / "out").exists() and len(list(tmp_path.glob(".out.*.partial"))) == 1
    said = session(data, tmp_path / "out", log)
    assert "goes on after " in said and "tokenizer bpe" not in said, "the trained tokenizer is kept"
    assert_same(tmp_path / "out", tmp_path / "whole", {name: lines[name]})
    assert len(list((tmp_path / "out").glob("train-*.bin"))) > 2 and not list(tmp_path.glob(".out.*"))
    written = len(log.read_text().splitlines())
    assert NUMBER <= written <= NUMBER + kills * AT_ONCE, "only what was after the last record is done again"


@pytest.mark.long
def test_each_source_of_a_mixture_goes_on_by_itself(tmp_path):
    sources, lines = make_sources(tmp_path)
    entries = [{"source": sources[name], "weight": 0.25} for name in ("plain", "packed", "hub", "table")]
    data = {"sources": entries, "tokenizer": "bpe:300"}
    prepare(data_of(**data), tmp_path / "whole")
    log, rng, done = tmp_path / "log", random.Random(0), 0
    for least in (0, 100, 210):
        until = rng.randrange(least + 20, least + 80)
        session(data, tmp_path / "out", log, until - done)
        done = until
    session(data, tmp_path / "out", log)
    assert_same(tmp_path / "out", tmp_path / "whole", {name: lines[name] for name in sources})
    written = [line.split()[0] for line in log.read_text().splitlines()]
    assert all(NUMBER <= written.count(name) <= NUMBER + 3 * AT_ONCE for name in sources), "complete sources are kept"


def test_the_preparation_of_a_run_goes_on_too(tmp_path):
    sources, lines = make_sources(tmp_path)
    data = {"source": sources["packed"], "tokenizer": "byte", "max_documents": 70}
    session(data, tmp_path / "cache", tmp_path / "log", 37, corpus_for)
    said = []
    with heard_by(said.append):
        found = corpus_for(data_of(**data), tmp_path / "cache")
    whole = corpus_for(data_of(**data), tmp_path / "other")
    assert files(found.folder) == files(whole.folder) and found.fingerprint == whole.fingerprint
    assert any("goes on after 36 documents" in line for line in said)
    assert documents(found.folder, "validation") == lines["packed"][:70:20]


def test_other_settings_and_other_files_begin_anew(tmp_path):
    sources, _ = make_sources(tmp_path)
    data = {"source": sources["plain"], "tokenizer": "byte"}
    session(data, tmp_path / "out", tmp_path / "log", 30)
    (left,) = tmp_path.glob(".out.*.partial")
    kept, said = files(left), []
    with heard_by(said.append):
        prepare(data_of(**data | {"max_documents": 50}), tmp_path / "out")
    assert not any("goes on" in line for line in said) and any("remove it if" in line for line in said)
    assert files(left) == kept and open_corpus(tmp_path / "out").meta["documents"] == 50


def test_a_record_that_does_not_fit_the_shards_is_not_used(tmp_path):
    sources, lines = make_sources(tmp_path)
    data, said = {"source": sources["plain"], "tokenizer": "byte"}, []
    session(data, tmp_path / "out", tmp_path / "log", 50)
    (left,) = tmp_path.glob(".out.*.partial")
    (left / "train-00000.bin").write_bytes(b"short")
    with heard_by(said.append):
        prepare(data_of(**data), tmp_path / "out")
    prepare(data_of(**data), tmp_path / "whole")
    assert not any("goes on" in line for line in said)
    assert_same(tmp_path / "out", tmp_path / "whole", {"plain": lines["plain"]})


def test_what_was_done_before_an_error_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "SECONDS_BETWEEN_RECORDS", 0)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 60 + "{broken\n")
    with pytest.raises(UserError, match=r"a.jsonl:61"):
        prepare(data_of(source=f"jsonl:{tmp_path / 'a.jsonl'}", tokenizer="byte"), tmp_path / "out", workers=1)
    (left,) = Path(tmp_path).glob(".out.*.partial")
    assert json.loads((left / "state.json").read_text())["documents"] > 40


def test_what_two_prepare_at_once_is_prepared_once(tmp_path):
    sources, _ = make_sources(tmp_path)
    data, said = data_of(source=sources["plain"], tokenizer="byte"), []
    with heard_by(said.append), ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: corpus_for(data, tmp_path / "cache"), range(2)))
    assert both[0].folder == both[1].folder and said.count("data: tokenizer byte") == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [both[0].folder.name]


def test_the_command_says_what_it_left_out_and_how_it_split(tmp_path):
    lines = [json.dumps({"text": f"a text with the number {i % 200}"}) for i in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:200], "{broken", *lines[200:]]))
    command = ["data", "prepare", "jsonl:a.jsonl", "--tokenizer", "byte", "--validation-by", "content"]
    failed = hybridlab(*command, "--out", "no", cwd=tmp_path)
    assert failed.returncode == 2 and "a.jsonl:201: this line is not JSON" in failed.stderr
    assert "or leave such lines out with" in failed.stderr and [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    done = hybridlab(*command, "--skip-bad-lines", "--out", "out", "--json", cwd=tmp_path)
    shown = json_of(done)
    assert "bad lines left out: 1" in done.stderr and shown["bad_lines"] == 1
    assert shown["validation_split"] == "by content: 0.05 of all texts"
    assert shown["validation_documents"] % 2 == 0 < shown["validation_documents"]
    assert shown["validation_documents_in_training"] == 0
