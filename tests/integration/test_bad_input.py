"""Damaged files and impossible settings end in a UserError."""

import json
import shutil

import pytest
import zstandard

from hybridlab.config.resolve import resolve
from hybridlab.data.preparing import corpus_for, prepare
from hybridlab.data.shards import open_corpus
from hybridlab.errors import UserError
from hybridlab.models.export import load_checkpoint
from hybridlab.models.huggingface import load_hf
from hybridlab.plan.allocation import read_masks
from hybridlab.runs.record import load_record, record_name
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs


@pytest.mark.parametrize("content", ["", "{}", "[]", "garbage", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00"])
def test_damaged_files_of_every_kind_are_user_errors(tmp_path, content, trained):
    config, runs = trained
    copy = tmp_path / "copy"
    shutil.copytree(runs / "parent", copy)
    for name, read in (
        ("run.json", lambda: RunFolder(copy).config()),
        ("record.json", lambda: RunFolder(copy).finished()),
        ("final/config.json", lambda: load_checkpoint(copy)),
        ("masks.json", lambda: read_masks(copy / "masks.json")),
        ("meta.json", lambda: open_corpus(copy)),
    ):
        (copy / name).write_text(content)
        with pytest.raises(UserError):
            read()
    (copy / "config.json").write_text(content)
    with pytest.raises(UserError):
        load_hf(copy)
    record = tmp_path / record_name("abc")
    record.parent.mkdir(exist_ok=True)
    for damaged in (content.encode(), zstandard.compress(content.encode())):
        record.write_bytes(damaged)
        with pytest.raises(UserError):
            load_record("abc", tmp_path)


@pytest.mark.parametrize("tokenizer", [None, [], {}])
def test_shards_that_name_no_tokenizer_are_refused(small, tmp_path, text_file, tokenizer):
    prepare(small().data, tmp_path / "p")
    meta = json.loads((tmp_path / "p" / "meta.json").read_text())
    (tmp_path / "p" / "meta.json").write_text(json.dumps({**meta, "tokenizer": tokenizer}))
    with pytest.raises(UserError, match="not the tokenizer that the shards were made with"):
        open_corpus(tmp_path / "p")


def test_a_run_refuses_shards_that_changed_at_equal_size(small, tmp_path, text_file):
    data = small().data
    prepare(data, tmp_path / "p")
    shard = tmp_path / "p" / "train-00000.bin"
    raw = bytearray(shard.read_bytes())
    raw[100:110] = b"\x01" * 10
    shard.write_bytes(raw)
    config = small(settings=[f"data.source=shards:{tmp_path / 'p'}"])
    with pytest.raises(UserError, match="digest"):
        train_run(config, RunFolder(tmp_path / "run"), Runs(tmp_path))


@pytest.mark.parametrize(
    "setting",
    [
        "window=5",
        "size=consa-0.6b",
        "training.seed=99999999999999999999999",
        "data.max_documents=99999999999999999999",
        "shape.width=100000000",
        "runtime.threads=99999999999",
        "training.optimizer.betas=[1.0, 0.9]",
        "data.validation_fraction=0.9",
        "data.source=embedded:anything",
        "shape.init.embedding_std=3000",
    ],
)
def test_impossible_settings_are_refused(setting, tmp_path):
    with pytest.raises(UserError):
        config = resolve("vanilla", "tiny", settings=[setting])
        corpus_for(config.data, tmp_path)
