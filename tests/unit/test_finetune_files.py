"""Files of fine-tuning tasks: every layout is read, and every mistake is one sentence with its place."""

import gzip
import json

import pytest

from hybridlab.config.finetune import Finetune
from hybridlab.data.finetune.corpus import examples_of, read_rows, task_corpus
from hybridlab.errors import UserError
from hybridlab.registry import FINETUNE_TASKS

SQUAD = {
    "data": [
        {
            "title": "Bees",
            "paragraphs": [
                {
                    "context": "Bees make honey in the hive. Wasps do not.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "What do bees make?",
                            "answers": [{"text": "honey", "answer_start": 10}],
                        }
                    ],
                }
            ],
        }
    ]
}
RACE = {
    "article": "Ann has a cat. It is black.",
    "questions": ["The cat is _ .", "Who has a cat?"],
    "options": [["red", "black", "old", "ill"], ["Bob", "Cid", "Ann", "Dan"]],
    "answers": ["B", "C"],
    "id": "middle1.txt",
}


def lines(*entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def read(path, name):
    task = FINETUNE_TASKS.get(name)
    return examples_of(task, read_rows(path, task))


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


CLASSES = [
    ("sst2", "a.jsonl", lines({"sentence": "fine", "label": 1, "idx": 0}), ("fine",), 1),
    ("sst2", "a.tsv", "sentence\tlabel\nfine\t0\n", ("fine",), 0),
    ("sst2", "a.csv", 'sentence,label\n"fine, so",negative\n', ("fine, so",), 0),
    ("sst2", "a.tsv", "sentence\tlabel\nfine\t1.0\n", ("fine",), 1),
    ("sst2", "a.json", json.dumps([{"sentence": "fine", "label": "positive"}]), ("fine",), 1),
    ("sst2", "a.json", lines({"sentence": "fine", "label": 1.0}, {"sentence": "no", "label": 0}), ("fine",), 1),
    ("cola", "a.tsv", 'gj04\t0\t*\tHe go "there.\n', ('He go "there.',), 0),
    ("cola", "a.tsv", "sentence\tlabel\nHe goes.\t1\n", ("He goes.",), 1),
    ("mrpc", "a.txt", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA b\tB a\n", ("A b", "B a"), 1),
    ("mrpc", "a.jsonl", lines({"sentence1": "A", "sentence2": "B", "label": 0}), ("A", "B"), 0),
    ("rte", "a.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n", ("A", "B"), 1),
    ("qnli", "a.tsv", "index\tquestion\tsentence\tlabel\r\n0\tA\tB\tentailment\r\n", ("A", "B"), 0),
    ("qqp", "a.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tA\tB\t1\n", ("A", "B"), 1),
    ("mnli", "a.jsonl", lines({"premise": "A", "hypothesis": "B", "label": 2}), ("A", "B"), 2),
    ("mnli", "a.tsv", "sentence1\tsentence2\tgold_label\nA\tB\tneutral\n", ("A", "B"), 1),
    ("wnli", "a.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n", ("A", "B"), 1),
    ("boolq", "a.jsonl", lines({"question": "q", "passage": "p", "title": "t", "answer": True}), ("q", "p"), 1),
    ("boolq", "a.jsonl", lines({"question": "q", "passage": "p", "label": 0}), ("q", "p"), 0),
    ("stsb", "a.tsv", "index\tsentence1\tsentence2\tscore\n0\tA\tB\t3.25\n", ("A", "B"), 3.25),
    ("stsb", "a.jsonl", lines({"sentence1": "A", "sentence2": "B", "label": 5}), ("A", "B"), 5),
]


@pytest.mark.parametrize("task, name, text, texts, label", CLASSES)
def test_texts_and_labels_are_read_from_every_layout(tmp_path, task, name, text, texts, label):
    example = read(written(tmp_path, name, text), task)[0]
    assert example.rows == (texts,) and example.label == label


def test_questions_with_options_have_a_row_for_each(tmp_path):
    raw = read(written(tmp_path, "a.jsonl", lines(RACE)), "race")
    flat = {"article": RACE["article"], "question": RACE["questions"][0], "options": RACE["options"][0], "answer": "B"}
    assert raw[:1] == read(written(tmp_path, "b.jsonl", lines(flat)), "race-middle")
    assert raw[0].rows[1] == (RACE["article"], "The cat is black .") and raw[0].label == 1
    assert raw[1].rows[2] == (RACE["article"], "Who has a cat? Ann") and raw[1].label == 2
    endings = {"ctx": "He sat", "endings": ["down.", "up.", "on it.", "there."], "label": "3", "ind": 4}
    assert read(written(tmp_path, "c.jsonl", lines(endings)), "hellaswag")[0].rows[3] == ("He sat", "there.")


def test_spans_are_read_from_squads_own_layout_and_from_the_hubs(tmp_path):
    own = read(written(tmp_path, "a.json", json.dumps(SQUAD)), "squad")[0]
    paragraph = SQUAD["data"][0]["paragraphs"][0]
    hub = {"id": "1", "question": paragraph["qas"][0]["question"], "context": paragraph["context"]}
    hub["answers"] = {"text": ["honey"], "answer_start": [10]}
    assert own == read(written(tmp_path, "b.jsonl", lines(hub)), "squad")[0]
    assert own.answers == (("honey", 10),)


def test_compressed_files_and_parquet_are_read(tmp_path):
    import pyarrow
    from pyarrow import parquet

    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(lines({"sentence": "fine", "label": 1}))
    parquet.write_table(pyarrow.table({"sentence": ["fine"], "label": [1]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.jsonl.gz", "sst2")[0].rows == read(tmp_path / "a.parquet", "sst2")[0].rows == (("fine",),)


MISTAKES = [
    ("sst2", "a.jsonl", lines({"text": "fine", "label": 1}), ["a.jsonl:1", "sentence, label", "among text, label"]),
    ("sst2", "a.tsv", "text\tlabel\nfine\t1\n", ["a.tsv:1", "needs the columns sentence, label"]),
    ("sst2", "a.jsonl", lines({"sentence": "a", "label": 1}, {"sentence": "b", "label": 2}), ["a.jsonl:2", "label 2"]),
    ("sst2", "a.jsonl", lines({"sentence": "a", "label": -1}), ["a.jsonl:1", "0 (negative), 1 (positive)"]),
    ("mnli", "a.tsv", "sentence1\tsentence2\tgold_label\nA\tB\t-\n", ["a.tsv:2", "label '-'"]),
    ("sst2", "a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence": \n', ["a.jsonl:2", "not JSON"]),
    ("sst2", "a.jsonl", "[1]\n", ["a.jsonl:1", "no JSON object"]),
    ("sst2", "a.tsv", "sentence\tlabel\nfine\t1\t9\n", ["a.tsv:2", "3 columns"]),
    ("sst2", "a.csv", 'sentence,label\n"fine,1\n', ["a.csv:2", "not CSV"]),
    ("sst2", "a.tsv", "sentence\tlabel\n", ["a.tsv", "no examples"]),
    ("sst2", "a.tsv", "sentence\tlabel\nfine\t1.5\n", ["a.tsv:2", "label '1.5'"]),
    ("mnli", "a.jsonl", lines({"premise": "A", "hypothesis": "B", "label": True}), ["a.jsonl:1", "label True"]),
    ("sst2", "a.tsv", "sentence,label\nfine,1\n", ["a.tsv:1", "commas separate this line, so call the file .csv"]),
    ("sst2", "a.csv", "sentence\tlabel\nfine\t1\n", ["a.csv:1", "tabs separate this line, so call the file .tsv"]),
    ("sst2", "a.csv", "sentence;label\nfine;1\n", ["a.csv:1", "semicolons separate this line"]),
    ("sst2", "a.jsonl", '[{"sentence": "fine", "label": 1}]\n', ["a.jsonl:1", "JSON array", "call the file .json"]),
    ("sst2", "a.tsv", " \n", ["a.tsv", "empty"]),
    ("sst2", "a.yaml", "a: 1\n", ["a.yaml", ".yaml is no format", ".jsonl"]),
    ("sst2", "a.json", '{"data": [1', ["a.json", "not JSON"]),
    ("sst2", "a.jsonl", lines({"sentence": 3, "label": 1}), ["a.jsonl:1", "must be a text"]),
    ("stsb", "a.jsonl", lines({"sentence1": "A", "sentence2": "B", "score": 6}), ["a.jsonl:1", "from 0 to 5"]),
    ("stsb", "a.jsonl", lines({"sentence1": "A", "sentence2": "B", "score": "nan"}), ["a.jsonl:1", "from 0 to 5"]),
    ("race", "a.jsonl", lines({**RACE, "answers": ["B"]}), ["a.jsonl:1", "lists of equal length"]),
    ("race", "a.jsonl", lines({**RACE, "answers": ["B", "E"]}), ["a.jsonl:1, question 2", "label 'E'"]),
    ("race", "a.jsonl", lines({**RACE, "options": [["x"], ["y"]]}), ["a.jsonl:1, question 1", "4 texts"]),
    (
        "squad",
        "a.json",
        json.dumps({"data": [{"paragraphs": [{"qas": []}, {"qas": [{}]}]}]}),
        ["paragraphs[1]", "context"],
    ),
    ("squad", "a.json", json.dumps({"data": [{}]}), ["a.json", "SQuAD's layout", "'paragraphs'"]),
]


@pytest.mark.parametrize("task, name, text, parts", MISTAKES)
def test_a_mistake_names_its_place_and_what_is_needed(tmp_path, task, name, text, parts):
    with pytest.raises(UserError) as error:
        read(written(tmp_path, name, text), task)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value) and ("; " in str(error.value))


@pytest.mark.parametrize(
    "question, message",
    [
        ({"answers": [{"text": "honey", "answer_start": 3}]}, "not at character 3"),
        ({"answers": []}, "no answers"),
        ({"answers": [{"text": "honey"}]}, "must be a list of"),
        ({"answers": [], "is_impossible": True}, "SQuAD 2.0"),
    ],
)
def test_a_wrong_answer_of_a_span_names_its_question(tmp_path, question, message):
    paragraph = {"context": "Bees make honey.", "qas": [{"id": "q7", "question": "?", **question}]}
    path = written(tmp_path, "a.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    with pytest.raises(UserError, match="question q7") as error:
        read(path, "squad")
    assert message in str(error.value)


def test_other_encodings_and_missing_files_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_bytes("sentence\tlabel\nüb\t1\n".encode("latin1"))
    with pytest.raises(UserError, match="UTF-8"):
        read(tmp_path / "a.tsv", "sst2")
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "b.tsv", "sst2")


# ---- parts ----


def corpus(task, path, length=32, causal=True, **settings):
    return task_corpus(Finetune(task=task, data=str(path), **settings), "byte", length, causal)


def rows_of(part):
    return [example.rows for example in part.examples]


def sentences(tmp_path, name, count, word="s"):
    return written(tmp_path, name, lines(*[{"sentence": f"{word}{i}", "label": i % 2} for i in range(count)]))


def test_without_a_file_to_measure_with_a_share_is_held_out_once(tmp_path):
    path = sentences(tmp_path, "a.jsonl", 50)
    made = corpus("sst2", path)
    train, held = rows_of(made.encoded["train"]), rows_of(made.encoded["validation"])
    assert len(held) == 5 and len(train) == 45 and not set(train) & set(held)
    assert rows_of(corpus("sst2", path).encoded["validation"]) == held
    assert len(corpus("sst2", path, validation_fraction=0.5).encoded["validation"]) == 25
    assert len(corpus("sst2", path, validation=str(sentences(tmp_path, "b.jsonl", 7, "v"))).encoded["train"]) == 50


def test_all_questions_on_a_passage_stay_together(tmp_path):
    articles = [{**RACE, "article": f"Text {i}. {RACE['article']}"} for i in range(10)]
    made = corpus("race", written(tmp_path, "a.jsonl", lines(*articles)), length=96)
    train, held = ({example.group for example in made.encoded[name].examples} for name in ("train", "validation"))
    assert not train & held and len(held) == 1 and len(made.encoded["validation"]) == 2


def test_a_folder_has_parts_by_name(tmp_path):
    sentences(tmp_path, "train.jsonl", 6)
    sentences(tmp_path, "dev.jsonl", 3, "d")
    made = corpus("sst2", tmp_path)
    assert [len(part) for part in made.encoded.values()] == [6, 3]
    with pytest.raises(UserError, match="validation_fraction has no effect"):
        corpus("sst2", tmp_path, validation_fraction=0.2)
    (tmp_path / "train.jsonl").rename(tmp_path / "other.jsonl")
    with pytest.raises(UserError, match="no train.tsv"):
        corpus("sst2", tmp_path)


def test_mnli_is_measured_on_both_of_its_parts(tmp_path):
    header = "sentence1\tsentence2\tgold_label\n"
    for name in ("train", "dev_matched", "dev_mismatched"):
        written(tmp_path, f"{name}.tsv", header + f"{name}\tB\tneutral\n" * (2 + len(name)))
    made = corpus("mnli", tmp_path)
    assert {name: len(part) for name, part in made.encoded.items()} == {"train": 7, "validation": 13, "mismatched": 16}


def test_the_fingerprint_follows_the_content(tmp_path):
    path = sentences(tmp_path, "a.jsonl", 20)
    first = corpus("sst2", path).fingerprint
    path.write_text(path.read_text().replace("s3", "s4", 1))
    assert corpus("sst2", path).fingerprint != first


def test_a_limit_takes_evenly_spaced_examples(tmp_path):
    made = corpus("sst2", sentences(tmp_path, "a.jsonl", 100), max_examples=5)
    assert [len(part) for part in made.encoded.values()] == [5, 5]


def test_what_cannot_be_read_or_divided_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such file or folder"):
        corpus("sst2", tmp_path / "none.tsv")
    with pytest.raises(UserError, match="cannot be split"):
        corpus("sst2", sentences(tmp_path, "one.jsonl", 1))
    with pytest.raises(UserError, match="seq_len = 2"):
        corpus("squad", written(tmp_path, "s.json", json.dumps(SQUAD)), length=2)
    with pytest.raises(UserError, match=r"no token \[CLS\]"):
        corpus("sst2", sentences(tmp_path, "a.jsonl", 10), causal=False)


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch):
    import datasets

    def unreachable(*arguments, **settings):
        raise ConnectionError("no route to the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match=r"hub:nyu-mll/glue:sst2: .* \(no route to the hub\); .*--data PATH"):
        task_corpus(Finetune(task="sst2"), "byte", 32, True)


def test_the_hubs_rows_are_read(monkeypatch):
    import datasets

    def load(name, config, split):
        assert (name, config) == ("nyu-mll/glue", "mnli")
        return datasets.Dataset.from_list([{"premise": split, "hypothesis": "B", "label": 1, "idx": 0}] * 3)

    monkeypatch.setattr(datasets, "load_dataset", load)
    made = task_corpus(Finetune(task="mnli"), "byte", 32, True)
    assert list(made.encoded) == ["train", "validation", "mismatched"]
    assert made.encoded["mismatched"].examples[0].rows == (("validation_mismatched", "B"),)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"task": "sst"}, "did you mean 'sst2'"),
        ({"task": "sst2", "stride": 4}, "stride has no effect"),
        ({"task": "sst2", "validation": "a", "validation_fraction": 0.1}, "leave out one"),
        ({"task": "sst2", "batch": 0}, "batch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Finetune(**settings)
