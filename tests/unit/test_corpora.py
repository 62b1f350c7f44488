"""Data sets in the hub's layout, validation by content, and broken lines that are left out."""

import gzip
import json
from collections import Counter
from types import SimpleNamespace

import huggingface_hub
import pyarrow as pa
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from pyarrow import parquet

from hybridlab.config.loading import preset_names
from hybridlab.config.resolve import data_layer, resolve, run_hash
from hybridlab.data import sources
from hybridlab.data.preparing import _cache_key, corpus_for, prepare
from hybridlab.data.shards import describe, open_corpus
from hybridlab.data.sources import Documents, read_documents, source_labels
from hybridlab.data.split import Split
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import UserError
from tests.unit.test_data import data_of

README = """---
configs:
- config_name: english
  data_files:
  - split: train
    path: en/*.parquet
  - split: validation
    path: held/*.parquet
- config_name: deutsch
  data_files:
  - split: train
    path: de/part-*.parquet
---
A card.
"""


@pytest.fixture
def layout(tmp_path):
    """A folder as the hub has it: two configurations, splits, several files of three kinds."""
    folder = tmp_path / "set"
    for name in ("en", "de", "held"):
        (folder / name).mkdir(parents=True)
    (folder / "README.md").write_text(README)
    for number in range(3):
        table = pa.table({"text": [f"english {number} {i}" for i in range(40)], "score": list(range(40))})
        parquet.write_table(table, folder / "en" / f"{number}.parquet", row_group_size=16)
        table = pa.table({"inhalt": [f"deutsch {number} {i}" for i in range(30)]})
        parquet.write_table(table, folder / "de" / f"part-{number}.parquet")
    parquet.write_table(pa.table({"text": [f"held {i}" for i in range(5)]}), folder / "held" / "a.parquet")
    return folder


def texts(source, field="text", skip=False):
    return list(read_documents(source, field, skip_bad_lines=skip))


# ---- a folder in the hub's layout ----


def test_configs_splits_and_fields_of_a_folder_are_streamed(layout):
    english = [f"english {number} {i}" for number in range(3) for i in range(40)]
    assert texts(f"hub:{layout}:english") == texts(f"hub:{layout}:english:train") == english
    assert texts(f"hub:{layout}:english:validation") == [f"held {i}" for i in range(5)]
    assert texts(f"hub:{layout}:deutsch", "inhalt")[-1] == "deutsch 2 29"
    for source, field, message in (
        (f"hub:{layout}", "text", r"english.*deutsch.*name config and split as hub:NAME"),
        (f"hub:{layout}:french", "text", r"french.*name config and split"),
        (f"hub:{layout}:deutsch:test", "text", r"split.*test.*name config and split"),
        (f"hub:{layout}:deutsch", "text", r"record 0: no text in field 'text' \(it has: inhalt\)"),
        (f"hub:{layout}:a:b:c", "text", "too many parts"),
        (f"hub:./no/{layout.name}", "text", "there is no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            texts(source, field)


def test_a_stream_goes_on_at_any_place(layout, tmp_path):
    (tmp_path / "lines").mkdir()
    for number in range(3):
        lines = "".join(json.dumps({"text": f"line {number} {i}"}) + "\n" for i in range(40)).encode()
        packed = number == 1
        path = tmp_path / "lines" / f"train-{number}.jsonl{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(lines) if packed else lines)
    for source in (f"hub:{layout}:english", f"hub:{tmp_path / 'lines'}"):
        whole = texts(source)
        assert len(set(whole)) == 120
        for number in (1, 16, 40, 77, 120):
            documents = read_documents(source)
            for _ in range(number):
                next(documents)
            again = read_documents(source)
            again.go_to(json.loads(json.dumps(documents.place)))
            assert list(again) == whole[number:]


def test_documents_of_a_plug_in_are_read_again_up_to_the_place():
    documents = Documents(iter("abcdef"), 5)
    assert [next(documents) for _ in range(3)] == ["a", "b", "c"]
    again = Documents(iter("abcdef"), 5)
    again.go_to(documents.place)
    assert list(again) == ["d", "e"] and again.share == 1


def test_a_folder_is_mixed_by_weight_and_prepared_again_when_a_file_changes(layout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = [{"source": "hub:./set:english", "weight": 0.6}]
    sources.append({"source": "hub:set:deutsch", "weight": 0.4, "field": "inhalt"})
    data = data_of(sources=sources, tokenizer="byte", validation_by="content", validation_fraction=0.2)
    assert data.all_sources == [f"hub:{layout}:english", f"hub:{layout}:deutsch"]
    corpus = corpus_for(data, tmp_path / "cache")
    assert [(part.name, part.weight) for part in corpus.mixed] == [("set-english", 0.6), ("set-deutsch", 0.4)]
    assert [part.corpus.meta["documents"] for part in corpus.mixed] == [120, 90]
    assert corpus_for(data, tmp_path / "cache").fingerprint == corpus.fingerprint
    parquet.write_table(pa.table({"inhalt": ["neu"]}), layout / "de" / "part-3.parquet")
    assert corpus_for(data, tmp_path / "cache").parts[1].corpus.meta["documents"] == 91


def test_names_of_the_hub():
    name = sources.HubName.read("bookcorpus/bookcorpus@refs/convert/parquet::validation")
    assert (name.name, name.revision, name.config, name.split) == (
        "bookcorpus/bookcorpus",
        "refs/convert/parquet",
        None,
        "validation",
    )
    labels = source_labels(["hub:bookcorpus/bookcorpus@refs/convert/parquet", "hub:allenai/c4:en"])
    assert labels == ["bookcorpus", "c4-en"]


def refused(kind):
    return kind("no", response=SimpleNamespace(headers={}, request=None))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (refused(RepositoryNotFoundError), "the hub has no such data set, or it is private; correct the name"),
        (refused(GatedRepoError), r"terms .* accept them at https://huggingface.co/datasets/some/name, then log in"),
        (ConnectionError("[Errno -2] Name or service not known"), r"cannot be reached \(.*not known\); check the n"),
        (TimeoutError("timed out"), r"cannot be reached \(timed out\)"),
        (None, r"switched off by HF_HUB_OFFLINE=1; remove that"),
    ],
)
def test_a_hub_that_gives_nothing_is_explained_at_once(monkeypatch, error, message):
    def failing(*_, **options):
        assert options.get("timeout", 10) == 10 and options.get("repo_type", "dataset") == "dataset"
        raise error

    if error is not None:
        monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", failing)
        gated = isinstance(error, GatedRepoError)
        answer = (lambda *_, **__: SimpleNamespace(gated="auto")) if gated else failing
        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", answer)
    with pytest.raises(UserError, match="hub:some/name: .*" + message):
        texts("hub:some/name")


def test_a_data_set_with_a_program_names_its_copy(monkeypatch):
    documents = sources.HubDocuments("a/b", "text")
    error = documents._explained(RuntimeError("Dataset scripts are no longer supported, but found b.py"))
    assert "hub:a/b@refs/convert/parquet" in str(error)


# ---- validation by content ----


def write_copies(path):
    """401 texts of which every one stands there three times, written differently."""
    lines = [f"The text number {i} of a file." for i in range(401)]
    lines += [line.upper() for line in lines] + [line.replace(" ", " \n ") for line in lines]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return f"jsonl:{path}"


def contents(corpus, split):
    end = corpus.meta["tokenizer"]["end"]
    whole = [int(token) for shard in getattr(corpus, split) for token in shard]
    found, begin = [], 0
    for place in (place for place, token in enumerate(whole) if token == end):
        found.append(" ".join(corpus.tokenizer.decode(whole[begin:place]).casefold().split()))
        begin = place + 1
    return Counter(found)


def test_equal_documents_are_on_one_side_by_content_only(tmp_path):
    data = {"source": write_copies(tmp_path / "a.jsonl"), "tokenizer": "byte", "validation_fraction": 0.1}
    prepare(data_of(**data), tmp_path / "number")
    prepare(data_of(**data, validation_by="content"), tmp_path / "content")
    train, held_out = (contents(open_corpus(tmp_path / "number"), split) for split in ("train", "validation"))
    assert len(train.keys() & held_out.keys()) > 30, "the default has copies on both sides"
    train, held_out = (contents(open_corpus(tmp_path / "content"), split) for split in ("train", "validation"))
    assert not train.keys() & held_out.keys() and set((train + held_out).values()) == {3}
    assert 25 < len(held_out) < 60 and len(train) + len(held_out) == 401
    assert describe(tmp_path / "number")["validation_split"] == "by number: one of 10 documents"
    assert describe(tmp_path / "content")["validation_split"] == "by content: 0.1 of all texts"


def test_inspect_counts_validation_documents_that_stand_in_training(tmp_path):
    lines = [f"document {i}" for i in range(60)] + ["document 0", "document 20", "document 20", "document 1"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    prepare(data_of(source=f"jsonl:{tmp_path / 'a.jsonl'}", tokenizer="byte"), tmp_path / "p")
    shown = describe(tmp_path / "p")
    # Validation has the documents 0, 20, 40 and 60, which is the copy of document 0.
    assert (shown["validation_documents"], shown["validation_documents_in_training"]) == (4, 1)


def test_the_side_of_a_text_does_not_depend_on_case_white_space_or_place():
    split = Split(0.3, by_content=True)
    same = {split.held_out(i, text) for i, text in enumerate(["Ein  Text\n", "ein text", " EIN\tTEXT ", "ein text"])}
    assert len(same) == 1
    share = sum(split.held_out(0, str(i)) for i in range(5000)) / 5000
    assert 0.27 < share < 0.33


def test_new_settings_change_no_hash_while_they_are_off():
    plain, off = resolve("vanilla", "tiny"), resolve("vanilla", "tiny", settings=["data.skip_bad_lines=false"])
    on = resolve("vanilla", "tiny", settings=["data.validation_by=content"])
    assert run_hash(plain) == run_hash(off) != run_hash(on)
    keys = {_cache_key(data_of(source="primitives:1", **more)) for more in ({}, {"skip_bad_lines": False})}
    assert len(keys) == 1 and _cache_key(data_of(source="primitives:1", validation_by="content")) not in keys


def test_a_split_without_documents_is_explained(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "one"}\n')
    with pytest.raises(UserError, match=r"by content, none of its 2 documents is for (train|validation); give more"):
        prepare(
            data_of(source=f"jsonl:{tmp_path / 'a.jsonl'}", tokenizer="byte", validation_by="content"), tmp_path / "p"
        )


# ---- broken lines ----

GOOD = [json.dumps({"text": f"good {i}"}) for i in range(4)]
BROKEN = [
    ("jsonl", "a.jsonl", "\n".join([GOOD[0], "{broken", GOOD[1], '{"id": 1}', "", '{"text": null}', *GOOD[2:]]), 3, 2),
    ("jsonl", "a.jsonl", "\n".join([GOOD[0], '{"text": "caf\udce9"}', *GOOD[1:]]), 1, 2),
    ("csv", "a.csv", 'text,n\ngood 0,1\nbad,2,3\ngood 1,2\n"bad" x,1\ngood 2,3\ncaf\udce9,4\ngood 3,4\n', 3, 3),
]


@pytest.mark.parametrize(("kind", "name", "content", "bad", "line"), BROKEN)
def test_broken_lines_are_named_or_left_out_and_counted(tmp_path, kind, name, content, bad, line):
    path = tmp_path / name
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=rf"{name}:{line}: .*(data.skip_bad_lines=true \(data prepare: --skip)"):
        texts(f"{kind}:{path}")
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for source in (f"{kind}:{path}", f"{kind}:{packed}"):
        documents = read_documents(source, skip_bad_lines=True)
        assert list(documents) == [f"good {i}" for i in range(4)] and documents.bad == bad
        for number in range(1, 5):
            first = read_documents(source, skip_bad_lines=True)
            assert [next(first) for _ in range(number)]
            again = read_documents(source, skip_bad_lines=True)
            again.go_to(first.place)
            assert list(again) == [f"good {i}" for i in range(number, 4)] and again.bad == bad


def test_rows_without_text_are_left_out_too(tmp_path):
    parquet.write_table(pa.table({"text": ["one", None, "two", None]}), tmp_path / "a.parquet", row_group_size=2)
    for source in (f"parquet:{tmp_path / 'a.parquet'}", f"hub:{tmp_path}"):
        with pytest.raises(UserError, match=r"1 \(counted from 0\):? (has no|the field).*skip_bad_lines"):
            texts(source)
        documents = read_documents(source, skip_bad_lines=True)
        assert list(documents) == ["one", "two"] and documents.bad == 2


def test_what_is_wrong_with_every_line_is_no_broken_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    with pytest.raises(UserError, match=r"a.jsonl:1: no text in field 'text' \(it has: body\)"):
        texts(f"jsonl:{tmp_path / 'a.jsonl'}", skip=True)
    (tmp_path / "a.csv").write_text('text\none\n"open\ntwo\nthree\n')
    with pytest.raises(UserError, match=r"a.csv:3: .*never closed\); correct it$"):
        texts(f"csv:{tmp_path / 'a.csv'}", skip=True)
    with pytest.raises(UserError, match="skip_bad_lines has no effect on embedded"):
        prepare(data_of(skip_bad_lines=True), tmp_path / "out")


def test_the_number_of_broken_lines_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(["{broken", *GOOD, "too"]))
    prepare(data_of(source=f"jsonl:{path}", tokenizer="byte", skip_bad_lines=True), tmp_path / "p")
    assert describe(tmp_path / "p")["bad_lines"] == 2 and describe(tmp_path / "p")["documents"] == 4


# ---- presets ----


@pytest.mark.parametrize("name", ["c4", "pile", "slimpajama-zh", "wikibooks", "smollm"])
def test_corpora_of_the_papers_are_data_presets(name):
    assert name in preset_names("data")
    data = resolve("vanilla", "tiny", layers=[data_layer(name)]).data
    for source in data.all_sources:
        assert source.startswith("hub:") and "/" in sources.HubName.read(source.removeprefix("hub:")).name
    assert (data.validation_by == "content") == (name in ("c4", "pile", "slimpajama-zh"))


def test_another_content_of_the_tokenizers_file_prepares_the_data_again(tmp_path, layout):
    """Its path is the same, and the corpus of the first content stays for when it comes back."""
    file, cache = tmp_path / "tokenizer.json", tmp_path / "cache"
    data = data_of(source=f"hub:{layout}:deutsch", field="inhalt", tokenizer=f"file:{file}")
    found = []
    for spec in ("byte", "bpe:270", "byte"):
        file.write_text(make_tokenizer(spec, ["deutsch 0 1"] * 50).to_str())
        found.append(corpus_for(data, cache))
    assert found[0].vocab == found[2].vocab == 257 < found[1].vocab
    assert found[0].folder == found[2].folder != found[1].folder
    file.unlink()
    assert corpus_for(data, cache).folder == found[0].folder
