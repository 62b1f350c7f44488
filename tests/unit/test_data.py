import json
from collections import Counter
from itertools import product

import numpy as np
import pytest
from tokenizers import Tokenizer

from hybridlab.config.loading import Layer, check
from hybridlab.config.resolve import resolve
from hybridlab.config.schema import Data
from hybridlab.config.training import Training
from hybridlab.data.batches import Batches, Windows, row_counts, task_generator
from hybridlab.data.preparing import corpus_for, prepare
from hybridlab.data.shards import describe, open_corpus
from hybridlab.data.sources import read_documents
from hybridlab.data.split import divided
from hybridlab.data.tasks import NUM_VALUES, RESERVED, make_row, task_offsets
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import UserError
from hybridlab.messages import heard_by
from tests.conftest import write_text


def data_of(**values):
    return check(Data, Layer(values))


def training_of(rows=4, length=16, seed=0):
    return Training(steps=5, tokens_per_step=rows * length, seq_len=length, seed=seed)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    return corpus_for(data_of(source=f"text:{write_text(folder / 'a.txt')}", tokenizer="byte"), folder)


# ---- sources ----


def test_embedded_is_real_text_in_a_fixed_order():
    first = [text[:50] for text in read_documents("embedded", max_documents=5)]
    assert first == [text[:50] for text in read_documents("embedded", max_documents=5)] and len(set(first)) > 1


def test_long_text_is_cut_without_loss(tmp_path):
    path = write_text(tmp_path / "long.txt", 200_000)
    parts = list(read_documents(f"text:{path}"))
    assert len(parts) > 3 and "".join(parts) == path.read_text()
    (tmp_path / "oneline.txt").write_text("x" * 100_000)
    assert "".join(read_documents(f"text:{tmp_path / 'oneline.txt'}")) == "x" * 100_000


def test_jsonl_and_its_field(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "body": "eins"}\n\n{"text": "two", "body": "zwei"}\n')
    assert list(read_documents(f"jsonl:{path}")) == ["one", "two"]
    assert list(read_documents(f"jsonl:{path}", "body")) == ["eins", "zwei"]
    with pytest.raises(UserError, match=r"a.jsonl:1: no text in field 'txt' \(it has: text, body\)"):
        list(read_documents(f"jsonl:{path}", "txt"))


def test_hub_streams_a_local_dataset(tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(5)))
    assert list(read_documents(f"hub:{tmp_path}", max_documents=3)) == ["document 0", "document 1", "document 2"]
    with pytest.raises(UserError, match="no text in field"):
        list(read_documents(f"hub:{tmp_path}", "body"))


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "no text"), (b"  \n", "no text"), (b"abc\0def", "binary"), (b"caf\xe9", "not UTF-8")]
)
def test_bad_text_files(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_documents(f"text:{path}"))


@pytest.mark.parametrize("source", ["text:", "nonsense", "web:x", "text:/no/such/file", "jsonl:/no/such"])
def test_bad_sources(source):
    with pytest.raises(UserError, match="data source"):
        list(read_documents(source))


def test_bad_jsonl(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{broken\n')
    with pytest.raises(UserError, match="a.jsonl:2: this line is not JSON"):
        list(read_documents(f"jsonl:{tmp_path / 'a.jsonl'}"))


# ---- tokenizers and shards ----


@pytest.mark.parametrize("spec", ["byte", "bpe:300"])
def test_tokenizers_are_lossless(spec):
    text = "Grüße, 世界!\n\tdef f(x): return x\0"
    tokenizer = make_tokenizer(spec, ["def f(x): return x\n" * 50])
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_local_tokenizer_is_used_as_it_is(tmp_path, corpus):
    path = tmp_path / "tokenizer.json"
    corpus.tokenizer.save(str(path))
    assert make_tokenizer(f"file:{path}", []).to_str() == corpus.tokenizer.to_str()
    assert make_tokenizer(f"file:{tmp_path}", []).to_str() == corpus.tokenizer.to_str()


@pytest.mark.parametrize("spec", ["bpe", "bpe:3", "bytes", "file:/no/such", "word"])
def test_bad_tokenizers(spec):
    with pytest.raises(UserError, match="tokenizer"):
        make_tokenizer(spec, ["text"])


def test_shards_hold_the_text_and_split_by_document(tmp_path):
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(40)))
    folder = tmp_path / "prepared"
    prepare(data_of(source=f"jsonl:{tmp_path / 'docs.jsonl'}", tokenizer="byte", validation_fraction=0.1), folder)
    corpus = open_corpus(folder, verify=True)
    end = corpus.meta["tokenizer"]["end"]
    held_out = "".join("|" if t == end else corpus.tokenizer.decode([int(t)]) for t in corpus.validation[0])
    assert held_out == "document 0|document 10|document 20|document 30|"
    assert corpus.tokens("train") + corpus.tokens("validation") == sum(len(f"document {i}") + 1 for i in range(40))
    assert describe(folder)["documents"] == 40


WORDY = " ".join(f"word{number}" for number in range(30_000))
LINED = "".join(f"line {number} of a text\n" for number in range(20_000))


def prepared_share(tmp_path, content, fraction, **settings):
    """The share of the text that validation has, what was said of it, and the corpus."""
    name = "a.jsonl" if isinstance(content, list) else "a.txt"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in content) if isinstance(content, list) else content
    (tmp_path / name).write_text(lines)
    kind, told = "jsonl" if isinstance(content, list) else "text", []
    settings = {"source": f"{kind}:{tmp_path / name}", "tokenizer": "byte", "validation_fraction": fraction, **settings}
    with heard_by(told.append):
        corpus = corpus_for(data_of(**settings), tmp_path / "cache")
    sizes = {split: corpus.meta["splits"][split]["bytes"] for split in ("train", "validation")}
    return sizes["validation"] / sum(sizes.values()), [line for line in told if " is set" in line], corpus


@pytest.mark.parametrize("text", [WORDY, LINED, "x" * 400_000, "世界" * 200_000], ids=["words", "lines", "x", "cjk"])
def test_validation_has_its_share_of_a_small_text(tmp_path, text):
    path = tmp_path / "a.txt"
    for characters, fraction in product((1_500, 5_000, 40_000, 100_000, 300_000), (0.02, 0.05, 0.1, 0.3, 0.5)):
        path.write_text(text[:characters])
        documents, split = divided(data_of(source=f"text:{path}", validation_fraction=fraction))
        parts = list(documents)
        assert "".join(parts) == text[:characters]
        held = [part for number, part in enumerate(parts) if split.held_out(number, part)]
        share = sum(map(len, held)) / characters
        # A block has 64 characters or more; as many documents as are set for one of validation are not cut.
        most = max(fraction / 3, 48 / characters) if split.inside else fraction
        assert abs(share - fraction) <= most, (characters, fraction)


def test_what_training_has_of_a_small_text_stays_together(tmp_path):
    share, told, corpus = prepared_share(tmp_path, LINED[:40_000], 0.05)
    assert 0.04 < share < 0.06 and not told and corpus.meta["documents"] <= 12
    assert corpus.meta["validation"] == "inside documents, of which there are few: 0.05 of the text"


def test_documents_of_unequal_lengths_are_divided_inside(tmp_path):
    share, told, corpus = prepared_share(tmp_path, [LINED[:60_000], *["a short one"] * 14], 0.1)
    assert 0.08 < share < 0.12 and not told and "inside documents" in corpus.meta["validation"]
    share, _, corpus = prepared_share(tmp_path, ["a short one", *[LINED[:5_000]] * 14], 0.05)
    assert 0.04 < share < 0.06


@pytest.mark.parametrize(
    ("content", "settings"),
    [
        (LINED, {}),  # 16 to 30 pieces
        ([LINED[:200]] * 10, {}),
        ([LINED[:200]] * 19, {}),
        ([f"{number} " * 50 for number in range(300)], {}),
        ([LINED[:200]] * 9, {"validation_fraction": 0.1}),
    ],
)
def test_larger_sources_are_divided_by_the_number_of_a_document(tmp_path, content, settings):
    _, _, corpus = prepared_share(tmp_path, content, **{"fraction": 0.05, **settings})
    period = round(1 / settings.get("validation_fraction", 0.05))
    assert corpus.meta["validation"] == f"by number: one of {period} documents"
    documents = list(read_documents(corpus.meta["source"]))
    held_out = sum(len(text.encode()) for text in documents[::period])
    assert corpus.meta["splits"]["validation"]["bytes"] == held_out and corpus.meta["documents"] == len(documents)


def test_a_share_far_from_what_is_set_is_said(tmp_path):
    texts = [LINED[:200], *[LINED[:200]] * 100]
    texts[0] = LINED[:40_000]
    share, told, _ = prepared_share(tmp_path, texts, 0.05)
    assert share > 0.6 and told == [
        f"data: jsonl:{tmp_path / 'a.jsonl'}: {share:.2%} of the text is for validation, where 5.00% is set: its "
        "documents are too few, or too unequal"
    ]


def test_a_small_text_trains_its_tokenizer_without_what_is_for_validation(tmp_path):
    _, _, corpus = prepared_share(tmp_path, LINED[:40_000], 0.05, tokenizer="bpe:300")
    end = corpus.meta["tokenizer"]["end"]
    train = [
        corpus.tokenizer.decode(part) for part in np.split(corpus.train[0], np.flatnonzero(corpus.train[0] == end))
    ]
    assert make_tokenizer("bpe:300", train).to_str() == corpus.tokenizer.to_str()


def test_a_tokenizer_file_with_another_content_prepares_other_data(tmp_path):
    path, file = write_text(tmp_path / "a.txt"), tmp_path / "tokenizer.json"
    for size in (300, 310):
        file.write_text(make_tokenizer(f"bpe:{size}", [path.read_text()]).to_str())
        data, out = data_of(source=f"text:{path}", tokenizer=f"file:{file}"), tmp_path / "one"
        if size == 300:
            prepare(data, out)
            continue
        with pytest.raises(UserError, match="not empty"):
            prepare(data, out)
        prepare(data, tmp_path / "two")
        sizes = [open_corpus(folder).tokenizer.get_vocab_size() for folder in (out, tmp_path / "two")]
        assert sizes[0] < sizes[1]


def test_preparing_twice_gives_the_same_fingerprint_and_does_nothing_where_it_is_finished(tmp_path):
    path = write_text(tmp_path / "a.txt")
    data = data_of(source=f"text:{path}", tokenizer="bpe:300")
    prepare(data, tmp_path / "one")
    prepare(data, tmp_path / "two")
    assert open_corpus(tmp_path / "one").fingerprint == open_corpus(tmp_path / "two").fingerprint
    before, told = {file: file.stat().st_mtime_ns for file in (tmp_path / "one").rglob("*")}, []
    with heard_by(told.append):
        prepare(data, tmp_path / "one")
    assert told == [f"data: {tmp_path / 'one'}: finished before, nothing to do"]
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "one").rglob("*")} == before
    with pytest.raises(UserError, match="not empty"):
        prepare(data_of(source=f"text:{path}", tokenizer="bpe:301"), tmp_path / "one")
    path.write_text(path.read_text() + "more")
    with pytest.raises(UserError, match="not empty"):
        prepare(data, tmp_path / "one")


def test_a_changed_file_is_prepared_again(tmp_path):
    path = write_text(tmp_path / "a.txt")
    data = data_of(source=f"text:{path}", tokenizer="byte")
    first = corpus_for(data, tmp_path / "cache")
    assert corpus_for(data, tmp_path / "cache").folder == first.folder
    write_text(path, seed=1)
    assert corpus_for(data, tmp_path / "cache").fingerprint != first.fingerprint


def test_damaged_folders_are_refused(tmp_path):
    prepare(data_of(source=f"text:{write_text(tmp_path / 'a.txt')}", tokenizer="byte"), tmp_path / "p")
    shard = tmp_path / "p" / "train-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    with pytest.raises(UserError, match="has .* bytes, but meta.json says"):
        open_corpus(tmp_path / "p")
    shard.write_bytes(b"\1\1" + whole[2:])
    open_corpus(tmp_path / "p")
    with pytest.raises(UserError, match="digest"):
        open_corpus(tmp_path / "p", verify=True)
    shard.unlink()
    with pytest.raises(UserError, match="is missing"):
        open_corpus(tmp_path / "p")
    shard.write_bytes(whole)
    make_tokenizer("bpe:300", ["other text"]).save(str(tmp_path / "p" / "tokenizer.json"))
    with pytest.raises(UserError, match="not the tokenizer"):
        open_corpus(tmp_path / "p")
    with pytest.raises(UserError, match="not prepared data"):
        open_corpus(tmp_path)


def test_a_failed_preparation_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\0")
    with pytest.raises(UserError):
        prepare(data_of(source=f"text:{tmp_path / 'a.txt'}", tokenizer="byte"), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


# ---- batches ----


def test_an_epoch_sees_every_window_once(corpus):
    data, training = data_of(), training_of()
    batches = Batches(corpus, data, training, 400)
    steps = len(batches.sources[0].windows) // 4
    rows = np.concatenate([batches.rows(step).tokens for step in range(steps)])
    wanted = np.stack([batches.sources[0].windows[i] for i in range(len(batches.sources[0].windows))])
    seen, there = (Counter(row.tobytes() for row in windows) for windows in (rows, wanted))
    assert len(rows) == steps * 4 and not seen - there


def test_a_batch_is_a_function_of_seed_and_step(corpus):
    data = data_of(mix={"text": 0.5, "retrieval": 0.25, "assignment": 0.25})
    one, two, other = (Batches(corpus, data, training_of(8, 32, seed), 400) for seed in (0, 0, 1))
    assert np.array_equal(one.rows(7).tokens, two.rows(7).tokens)
    assert not np.array_equal(one.rows(7).tokens, one.rows(8).tokens)
    assert not np.array_equal(one.rows(7).tokens, other.rows(7).tokens)


def test_weights_are_one_on_text_and_two_on_answers(corpus):
    data = data_of(mix={"text": 0.5, "retrieval": 0.5, "assignment": 0.0})
    batch = Batches(corpus, data, training_of(4, 32), 400).rows(0)
    assert (batch.weights[:, 0] == 0).all() and (batch.weights[:2, 1:] == 1).all()
    assert set(np.unique(batch.weights[2:])) == {0.0, 2.0}


def test_windows_do_not_cross_shards():
    windows = Windows([np.arange(10), np.arange(100, 107)], 3)
    assert [windows[i].tolist() for i in range(len(windows))] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [100, 101, 102],
        [103, 104, 105],
    ]


def test_shares_of_the_mix_become_rows():
    assert row_counts(data_of(mix={"text": 0.5, "retrieval": 0.3, "assignment": 0.2}), 16) == {
        "text": 8,
        "retrieval": 5,
        "assignment": 3,
    }
    with pytest.raises(UserError, match="rounds to zero rows"):
        row_counts(data_of(mix={"text": 0.96, "retrieval": 0.04, "assignment": 0.0}), 4)


def test_data_that_does_not_fit_the_model_is_refused(corpus, tmp_path):
    with pytest.raises(UserError, match="--set shape.vocab=385"):
        Batches(corpus, data_of(mix={"text": 0.5, "retrieval": 0.5, "assignment": 0.0}), training_of(), 300)
    with pytest.raises(UserError, match="less than one sequence"):
        Batches(corpus, data_of(), training_of(1, 1_000_000), 400)
    with pytest.raises(UserError, match="no question of the task assignment fits"):
        Batches(corpus, data_of(mix={"text": 0.5, "retrieval": 0.0, "assignment": 0.5}), training_of(4, 12), 400)


# ---- tasks ----


@pytest.mark.parametrize("task", ["retrieval", "assignment"])
@pytest.mark.parametrize("length", [16, 128, 257])
def test_every_answer_follows_from_the_row(task, length):
    """Read the row as a reader would: the last fact about the key that the token before the answer asks for."""
    for number in range(20):
        row = make_row(task, length, task_generator(0, number))
        assert len(row.tokens) == length and row.tokens.max() < RESERVED and len(row.answers) > 0
        for answer, distance, options in zip(row.answers, row.distances, row.options, strict=True):
            key = row.tokens[answer - 1] - 64
            facts = [i for i in range(answer) if row.tokens[i] < 64 and row.tokens[i] // NUM_VALUES == key]
            assert facts[-1] == answer - 1 - distance
            value = row.tokens[facts[-1]] % NUM_VALUES
            assert row.tokens[answer] == 72 + value and row.tokens[answer] in options
            asked = [i for i in range(facts[-1], answer - 1) if row.tokens[i] == 64 + key]
            assert not asked, "an earlier answer gives this one away"


def episodes_of_chains(length, rows):
    """(tokens before the query, query, answer, distance, options, open) of every answer of the task chain, with the
    tokens of its own episode: those after the answers of the one before."""
    for number in range(rows):
        row = make_row("chain", length, task_generator(2, number))
        starts = [0] * 3 + [int(end) + 1 for end in row.answers[2::3] for _ in range(3)]
        assert len(row.answers) and len(row.tokens) == length and 0 <= row.tokens.min() <= row.tokens.max() < RESERVED
        for i, answer in enumerate(row.answers):
            episode = row.tokens[starts[i] : answer - 1].tolist()
            yield episode, row.tokens[answer - 1], row.tokens[answer], row.distances[i], row.options[i], row.open[i]


def alias_of(token):
    """(name, key) of an alias."""
    return divmod(token - 96, 8) if 96 <= token < 120 else None


@pytest.mark.parametrize("length", [14, 128, 257])
def test_two_hops_answer_every_query_of_a_chain_and_the_distance_is_to_the_farther_fact(length):
    for episode, query, answer, distance, options, _ in episodes_of_chains(length, 20):
        aliases = {alias_of(token)[0]: (alias_of(token)[1], i) for i, token in enumerate(episode) if alias_of(token)}
        key, named_at = aliases[query - 120]
        ((fact_at, value),) = [(i, t % 8) for i, t in enumerate(episode) if t < 64 and t // 8 == key]
        assert answer == 72 + value and sorted(options) == sorted(72 + t % 8 for t in episode if t < 64)
        assert distance == len(episode) - min(named_at, fact_at)


def test_one_hop_of_a_chain_says_nothing_about_the_answer():
    """Guesses from the facts alone, from the alias alone, and from their order."""
    solvers = {
        "newest fact": lambda facts, episode, query: facts[-1] % 8,
        "oldest fact": lambda facts, episode, query: facts[0] % 8,
        "most common value": lambda facts, episode, query: np.bincount([t % 8 for t in facts]).argmax(),
        "fact beside the alias": lambda facts, episode, query: beside(episode, query),
        "key as a value": lambda facts, episode, query: alias_of(episode[place(episode, query)])[1],
        "name as a value": lambda facts, episode, query: query - 120,
    }

    def place(episode, query):
        return next(i for i, token in enumerate(episode) if alias_of(token) and alias_of(token)[0] == query - 120)

    def beside(episode, query):
        at = place(episode, query)
        return episode[min((i for i, token in enumerate(episode) if token < 64), key=lambda i: abs(i - at))] % 8

    right = {name: [] for name in solvers}
    for episode, query, answer, _, _, is_open in episodes_of_chains(128, 400):
        facts = [token for token in episode if token < 64]
        if is_open:
            assert len(facts) == 5 == len({token // 8 for token in facts}) == len({token % 8 for token in facts})
            for name, solve in solvers.items():
                right[name].append(solve(facts, episode, query) == answer - 72)
    for name, hits in right.items():
        assert len(hits) > 1000 and np.mean(hits) < 1 / 5 + 4 * (4 / 25 / len(hits)) ** 0.5, name
        assert np.mean(hits) > 0.15 or "as a value" in name


def test_distances_of_chains_fall_inside_and_outside_of_windows_and_the_first_query_is_open():
    answers = list(episodes_of_chains(128, 200))
    distances = np.array([distance for _, _, _, distance, _, is_open in answers if is_open])
    assert (distances < 8).sum() > 5 and (distances > 24).mean() > 0.3 and distances.max() <= 40
    assert [is_open for *_, is_open in answers[:6]] == [True, False, False, True, False, False]
    one, again, other = (make_row("chain", 128, task_generator(2, i)).tokens for i in (0, 0, 1))
    assert (one == again).all() and (one != other).any()


def test_a_share_of_chains_moves_no_ids_and_changes_no_hash_unless_it_is_there():
    mix = {"text": 0.5, "retrieval": 0.25, "assignment": 0.25}
    plain, unset = data_of(mix=mix), data_of(mix={**mix, "chain": 0.0})
    assert plain.mix == unset.mix and plain.mix.chain is None
    both = data_of(mix={"text": 0.25, "retrieval": 0.25, "assignment": 0.25, "chain": 0.25})
    assert task_offsets(both.mix.tasks) == ({"retrieval": 0, "assignment": 0, "chain": 0}, RESERVED)


def test_distances_fall_on_both_sides_of_a_window():
    rows = [make_row("retrieval", 128, task_generator(0, i)) for i in range(100)]
    distances = np.concatenate([row.distances for row in rows])
    assert 0.25 < (distances < 8).mean() < 0.5 and (distances > 56).sum() > 50
    assert len({tuple(row.options[0]) for row in rows}) == 1
    assert all(row.open.all() for row in rows)
    episodes = make_row("assignment", 128, task_generator(1, 0))
    assert episodes.open.sum() * 5 == len(episodes.open) and episodes.open[0]
    assert {len(make_row("assignment", 64, task_generator(1, i)).options[0]) for i in range(5)} == {5}


def test_a_tokenizers_own_truncation_and_padding_are_switched_off(tmp_path):
    tokenizer = make_tokenizer("byte", [])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = make_tokenizer(f"file:{tmp_path}", [])
    assert len(loaded.encode("a" * 100).ids) == 100 and isinstance(loaded, Tokenizer)


def test_the_end_token_as_text_inside_a_document_does_not_end_it(tmp_path):
    lines = [json.dumps({"text": "before <|end|> after"})] * 4
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    data = resolve(
        "vanilla", "tiny", settings=[f"data.source=jsonl:{tmp_path / 'a.jsonl'}", "data.tokenizer=byte"]
    ).data
    prepare(data, tmp_path / "out")
    corpus = open_corpus(tmp_path / "out")
    assert sum(int((shard == corpus.meta["tokenizer"]["end"]).sum()) for shard in corpus.train + corpus.validation) == 4


@pytest.mark.parametrize("line", ['{"text": "\\ud800"}', '{"text": ' + "9" * 5000 + "}", "[" * 100_000])
def test_strange_jsonl_lines_are_explained(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(UserError, match="a.jsonl:1"):
        list(read_documents(f"jsonl:{tmp_path / 'a.jsonl'}"))


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"text": "one"}\n')
    assert list(read_documents(f"jsonl:{tmp_path / 'a.jsonl'}")) == ["one"]


@pytest.mark.parametrize("length", [8, 32, 33, 130])
def test_symbols_are_found_at_the_distance_of_each_answer(length):
    """repeat: the answers are the last half. scattered: the first three parts hold one symbol and two fillers for each
    answer."""
    for number in range(20):
        repeat, scattered = (make_row(name, length, task_generator(3, number)) for name in ("repeat", "scattered"))
        for row in (repeat, scattered):
            assert row.tokens.shape == (length,) and row.open.all()
            assert (row.tokens[row.answers] == row.tokens[row.answers - row.distances]).all()
            assert (row.options == np.arange(64)).all() and row.options.shape == (len(row.answers), 64)
        assert (repeat.answers == np.arange(length - length // 2, length)).all()
        assert (repeat.distances == length // 2).all()
        columns = length // 4
        parts = scattered.tokens[length - 4 * columns :].reshape(4, columns)
        assert (scattered.answers == np.arange(length - columns, length)).all()
        assert ((parts[:3] < 64).sum(0) == 1).all() and (parts[3] < 64).all() and parts.max() < RESERVED


@pytest.mark.parametrize("length", [8, 12, 33, 128])
def test_induction_repeats_sequences_of_changing_length(length):
    """Each answer stands `distance` tokens after the same symbol, behind a symbol that occurs once more before it, and
    no symbol says by its position where to look."""
    seen = set()
    for number in range(50):
        row = make_row("induction", length, task_generator(5, number))
        assert row.tokens.shape == (length,) and row.open.all() and row.options.shape == (len(row.answers), 32)
        assert (row.tokens[row.answers] == row.tokens[row.answers - row.distances]).all()
        assert (row.tokens[row.answers - 1] == row.tokens[row.answers - 1 - row.distances]).all()
        seen |= set(row.distances.tolist())
    assert seen == set(range(6, min(20, length // 2) + 1))


def test_fillers_say_nothing_about_the_symbol_and_every_part_holds_it_a_third_of_the_time():
    rows = [make_row("scattered", 128, task_generator(4, number)) for number in range(200)]
    distances = np.concatenate([row.distances for row in rows])
    for part in (32, 64, 96):
        assert abs((distances == part).mean() - 1 / 3) < 0.02
    fillers = np.concatenate([row.tokens[row.tokens >= 64] for row in rows])
    assert set(fillers) == set(range(64, 80)) and np.bincount(fillers - 64).std() < 60
