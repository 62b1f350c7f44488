"""Several sources mixed by weight, and tokenising with several workers."""

import json

import numpy as np
import pytest

from hybridlab.config.loading import Layer, check, merge
from hybridlab.config.resolve import data_layer, resolve, run_hash
from hybridlab.config.schema import Data
from hybridlab.data.batches import Batches, SourceOrder, sources_read
from hybridlab.data.preparing import corpus_for, prepare
from hybridlab.data.shards import describe, open_corpus
from hybridlab.data.sources import source_labels
from hybridlab.data.tokenizers import in_proportion
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from tests.conftest import write_text
from tests.unit.test_data import data_of, training_of


def two(folder, weights=(0.7, 0.3), **more):
    """Settings of a mixture of two texts that differ in every token."""
    (folder / "letters.txt").write_text("abc " * 12_000 + "\n")
    (folder / "digits.jsonl").write_text("".join(json.dumps({"body": "123 " * 40}) + "\n" for _ in range(120)))
    sources = [
        {"source": f"text:{folder / 'letters.txt'}", "weight": weights[0]},
        {"source": f"jsonl:{folder / 'digits.jsonl'}", "weight": weights[1], "field": "body"},
    ]
    return data_of(**{"sources": sources, "tokenizer": "byte", **more})


@pytest.mark.parametrize("weights", [[1.0], [0.7, 0.3], [0.18, 0.001, 0.319, 0.5], [1 / 3, 1 / 3, 1 / 3]])
def test_every_source_has_its_share_at_every_step_and_its_rows_are_counted(weights):
    order = SourceOrder(weights, seed=3)
    seen = [0] * len(weights)
    for row in range(5000):
        assert order.counts(row) == seen
        source, before = order.place(row)
        assert before == seen[source]
        seen[source] += 1
        assert all(abs(n - w * (row + 1)) < len(weights) for n, w in zip(seen, weights, strict=True))
    far = 10**15
    assert np.allclose(np.array(order.counts(far)) / far, weights, atol=1e-12)
    assert order.counts(far + 1)[order.place(far)[0]] == order.counts(far)[order.place(far)[0]] + 1


def test_a_mixture_reads_each_source_by_weight_in_epochs_of_its_own(tmp_path):
    data, training = two(tmp_path), training_of(rows=10, length=16)
    corpus = corpus_for(data, tmp_path / "cache")
    batches = Batches(corpus, data, training, 400)
    letters = corpus.tokenizer.encode("a").ids[0]
    windows = [len(source.windows) for source in batches.sources]
    steps = 2 * windows[1] // 3
    rows = np.concatenate([batches.rows(step).tokens for step in range(steps)])
    of_letters = (rows == letters).any(axis=1)
    assert abs(of_letters.mean() - 0.7) < 2 / len(rows)
    assert sources_read(corpus, data, training, steps) == [of_letters.sum() * 16, (~of_letters).sum() * 16]
    for number, chosen in ((0, of_letters), (1, ~of_letters)):
        first = rows[chosen][: windows[number]]
        there = np.stack([batches.sources[number].windows[i] for i in range(windows[number])])
        assert len(first) == windows[number] or number == 0
        wanted = sorted(row.tobytes() for row in there)
        assert len(first) < windows[number] or sorted(row.tobytes() for row in first) == wanted
    again = Batches(corpus, data, training, 400)
    assert np.array_equal(again.rows(steps - 1).tokens, batches.rows(steps - 1).tokens)
    other = Batches(corpus, data, training_of(10, 16, seed=1), 400)
    assert not np.array_equal(other.rows(0).tokens, batches.rows(0).tokens)


def test_sources_share_the_text_beside_tasks(tmp_path):
    data = two(tmp_path, (0.5, 0.5), mix={"text": 0.5, "retrieval": 0.5})
    corpus = corpus_for(data, tmp_path / "cache")
    batches = Batches(corpus, data, training_of(8, 32), 400)
    text = np.concatenate([batches.rows(step).tokens[:4] for step in range(20)])
    letters = (text == corpus.tokenizer.encode("a").ids[0]).any(axis=1)
    assert letters.sum() == 40 and (batches.rows(3).tokens[4:] >= corpus.vocab).all()


def test_one_tokenizer_is_trained_on_all_sources_in_proportion(tmp_path):
    data = two(tmp_path, tokenizer="bpe:280")
    corpus = corpus_for(data, tmp_path / "cache")
    assert len(corpus.mixed) == 2 and 257 < corpus.vocab <= 280
    assert len({part.corpus.meta["tokenizer"]["sha256"] for part in corpus.mixed}) == 1
    assert len(corpus.tokenizer.encode("abc 123 abc 123").ids) < 10, "both sources gave merges"
    assert corpus_for(data, tmp_path / "cache").fingerprint == corpus.fingerprint
    swapped = corpus_for(two(tmp_path, (0.3, 0.7), tokenizer="bpe:280"), tmp_path / "cache")
    assert swapped.parts[0].weight == 0.3
    one, other = ["x" * 100] * 7, ["y" * 30] * 2
    texts = "".join(in_proportion([lambda: one, lambda: other], [0.7, 0.3], 10_000))
    assert texts.count("x") == 700 and texts.count("y") == 300, "the short source is repeated"
    texts = "".join(in_proportion([lambda: one, lambda: other], [0.7, 0.3], 100))
    assert texts.count("x") == 70 and texts.count("y") == 30


def test_the_fingerprint_covers_every_source(tmp_path):
    before = corpus_for(two(tmp_path), tmp_path / "cache").fingerprint
    data = two(tmp_path)
    (tmp_path / "digits.jsonl").write_text(json.dumps({"body": "321 " * 40}) + "\n" + json.dumps({"body": "4"}) + "\n")
    assert corpus_for(data, tmp_path / "cache").fingerprint != before


def test_a_source_in_a_mixture_is_prepared_as_it_is_alone(tmp_path):
    data = two(tmp_path)
    corpus_for(data, tmp_path / "cache")
    folders = set((tmp_path / "cache").iterdir())
    alone = data_of(source=data.sources[0].source, tokenizer="byte")
    assert corpus_for(alone, tmp_path / "cache").folder in folders


def test_prepared_sources_are_mixed_if_their_tokenizers_agree(tmp_path):
    data = two(tmp_path, tokenizer="bpe:280")
    prepare(data, tmp_path / "both", workers=2)
    shown = describe(tmp_path / "both")
    assert list(shown["sources"]) == ["digits", "letters"] and shown["documents"] > 120
    assert "abc" in shown["sources"]["letters"]["begins_with"]
    assert shown["train_tokens"] == sum(source["train_tokens"] for source in shown["sources"].values())
    with pytest.raises(UserError, match=r"not prepared data, but its folders are \(digits, letters\)"):
        corpus_for(data_of(source=f"shards:{tmp_path / 'both'}"), tmp_path)
    both = [f"shards:{tmp_path / 'both' / name}@0.5" for name in ("letters", "digits")]
    mixed = corpus_for(check(Data, Layer(data_layer(both).values["data"])), tmp_path)
    assert [part.name for part in mixed.mixed] == ["letters", "digits"]
    prepare(data_of(source=f"text:{tmp_path / 'letters.txt'}", tokenizer="byte"), tmp_path / "byte")
    differ = {"sources": [{"source": f"shards:{tmp_path / name}", "weight": 0.5} for name in ("byte", "both/digits")]}
    with pytest.raises(UserError, match="their tokenizers differ"):
        corpus_for(data_of(**differ), tmp_path)
    some = {"sources": [{"source": f"shards:{tmp_path / 'byte'}", "weight": 0.5}, data.sources[0].model_dump()]}
    some["sources"][1]["weight"] = 0.5
    with pytest.raises(UserError, match=r"data.tokenizer=file:.*byte"):
        corpus_for(data_of(**some), tmp_path)
    corpus_for(data_of(**some, tokenizer=f"file:{tmp_path / 'byte'}"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([("text:a", 0.7), ("text:b", 0.2)], "weights of the sources add up to 0.9"),
        ([("text:a", 0.5), ("text:a", 0.5)], "is there twice"),
        ([("text:a", 0.0), ("text:b", 1.0)], "greater than 0"),
        ([("text:a", -0.5), ("text:b", 1.5)], "greater than 0"),
    ],
)
def test_bad_weights_are_refused(sources, message):
    with pytest.raises(UserError, match=message):
        data_of(sources=[{"source": source, "weight": weight} for source, weight in sources])


def test_bad_sources_are_refused(tmp_path):
    with pytest.raises(UserError, match="both `source` and `sources`"):
        data_of(source="embedded", sources=[{"source": "text:a", "weight": 1.0}])
    with pytest.raises(UserError, match="each needs its weight; write jsonl:b@0.5"):
        data_layer(["text:a@0.5", "jsonl:b"])
    with pytest.raises(UserError, match="data.source=null: there is no source"):
        resolve("vanilla", "tiny", settings=["data.source=null"])
    data = two(tmp_path, (0.999, 0.001))
    with pytest.raises(UserError, match="gives it no row in 5 steps"):
        Batches(corpus_for(data, tmp_path / "cache"), data, training_of(), 400)
    (tmp_path / "two.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    few = two(tmp_path).model_dump(mode="json")
    few["sources"][1] = {"source": f"jsonl:{tmp_path / 'two.jsonl'}", "weight": 0.3}
    data = data_of(**few)
    with pytest.raises(UserError, match=r"two.jsonl: the training part has 4 tokens, less than one sequence"):
        Batches(corpus_for(data, tmp_path / "cache"), data, training_of(), 400)


def test_a_later_layer_replaces_one_source_by_several_and_back(tmp_path):
    several, one = data_layer(["text:a@b@0.25", "jsonl:c@0.75"]), data_layer("text:d")
    assert [s["source"] for s in several.values["data"]["sources"]] == ["text:a@b", "jsonl:c"]
    assert check(Data, Layer(merge(one, several).values["data"])).source is None
    assert check(Data, Layer(merge(several, one).values["data"])).sources is None
    config = resolve("vanilla", "tiny", data=["text:a@0.5", "text:b@0.5"])
    stored = json.loads(config.model_dump_json())
    assert type(config).model_validate_json(json.dumps(stored)) == config
    assert run_hash(config) != run_hash(resolve("vanilla", "tiny", data=["text:a@0.6", "text:b@0.4"]))
    assert (
        resolve(
            "vanilla", "tiny", layers=[Layer({"data": stored["data"]})], settings=["data.source=text:x"]
        ).data.sources
        is None
    )


def test_a_mixture_of_shards_has_no_settings_of_preparation(tmp_path):
    shards = ["shards:a@0.5", "shards:b@0.5"]
    assert resolve("vanilla", "tiny", data=shards).data.tokenizer == "shards"
    with pytest.raises(UserError, match="data.tokenizer has no effect on shards:a"):
        resolve("vanilla", "tiny", data=shards, settings=["data.tokenizer=byte"])
    assert resolve("vanilla", "tiny", data=["shards:a@0.5", "text:b@0.5"]).data.tokenizer == "bpe:896"


def test_names_of_sources_are_short_and_differ():
    sources = ["text:/a/old.txt", "jsonl:b/old.jsonl.gz", "embedded", "hub:org/set:en", "shards:/p/wiki/", "text:v1.5"]
    assert source_labels(sources) == ["old", "old-2", "embedded", "set-en", "wiki", "v1-5"]


def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    for number in range(3):
        write_text(tmp_path / f"{number}.txt", 150_000, seed=number)
    data = data_of(source=f"text:{tmp_path}", tokenizer="bpe:300")
    folders = [tmp_path / f"out-{workers}" for workers in (1, 2, 5)]
    for folder, workers in zip(folders, (1, 2, 5), strict=True):
        prepare(data, folder, workers)
    first, *others = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert all(first == other for other in others) and len(first) == 5


def test_progress_says_how_much_is_read_and_how_fast(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridlab.data.preparing._SECONDS_BETWEEN_LINES", 0.0)
    path = write_text(tmp_path / "a.txt", 1_500_000)
    lines = []
    with heard_by(lines.append):
        prepare(data_of(source=f"text:{path}", tokenizer="byte"), tmp_path / "out", workers=1)
    tokens = sum(open_corpus(tmp_path / "out").tokens(split) for split in ("train", "validation"))
    assert lines[0] == "data: tokenizer byte" and f"{tokens:,} tokens" in lines[-1] and "tokens/s" in lines[-1]
    assert all(word in lines[2] for word in ("documents", "% read", "tokens/s", "s left"))
