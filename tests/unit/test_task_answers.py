"""Rows of local files against what tasks of lm-eval read: columns, label names, numbers as texts, wrong answers."""

import csv
import io
import json
import os
from pathlib import Path

import pytest

from hybridlab.data.benchmarks.root import DataRoot
from hybridlab.errors import UserError
from hybridlab.evaluation.lm_eval_tasks import Library, NotHere
from tests.conftest import ROOT

NAMES = ["entailment", "contradiction", "neutral"]
CB = [{"premise": f"It rains {n}.", "hypothesis": "So", "idx": n} for n in range(6)]
COPA = [{"premise": "It rained.", "choice1": "A b.", "choice2": "C d.", "question": "cause"} for _ in range(4)]
SWAG = [{"startphrase": f"He {n}", **{f"ending{n}": str(n) for n in range(4)}} for n in range(4)]
WIC = {"word": "cat", "sentence1": "a cat", "sentence2": "the cat", "start1": 2, "end1": 5, "start2": 4, "end2": 7}


def written(root, path, rows):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    if path.endswith(".jsonl"):
        text.writelines(json.dumps(row) + "\n" for row in rows)
    else:
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    target.write_text(text.getvalue(), newline="")
    return root


def labelled(rows, labels):
    return [{**row, "label": labels[n % len(labels)]} for n, row in enumerate(rows)]


def task_of(root, name, **settings):
    return Library(DataRoot(root, **settings)).load(name).tasks[name]


def targets(task):
    return [task.doc_to_target(doc) for doc in task.eval_docs]


def refused(root, name):
    with pytest.raises(UserError) as error:
        Library(DataRoot(root)).load(name)
    return str(error.value)


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize("labels", [NAMES, [0, 1, 2], ["0", "1", "2"], [0.0, 1.0, 2.0], ["Entailment ", *NAMES[1:]]])
def test_names_numbers_and_their_texts_are_the_same_labels(tmp_path, ending, labels):
    written(tmp_path, f"cb/validation.{ending}", labelled(CB, labels))
    assert targets(task_of(tmp_path, "cb")) == [0, 1, 2] * 2


RELEASED = {
    "sglue_rte": ("super_glue/rte", {"premise": "p", "hypothesis": "h"}, ["not_entailment", "entailment"], [1, 0]),
    "boolq": ("boolq", {"passage": "p", "question": "q"}, [True, False], [1, 0]),
    "multirc": ("multirc", {"paragraph": "p", "question": "q", "answer": "a"}, [1, 0], [1, 0]),
    "wic": ("wic", WIC, [True, False], [1, 0]),
    "rte": ("glue/rte", {"sentence1": "p", "sentence2": "h"}, ["not_entailment", "entailment"], [1, 0]),
    "wnli": ("glue/wnli", {"sentence1": "p", "sentence2": "h"}, ["not_entailment", "entailment"], [0, 1]),
    "mnli": ("glue/mnli", {"premise": "p", "hypothesis": "h"}, ["contradiction", "neutral"], [2, 1]),
    "sst2": ("glue/sst2", {"sentence": "s"}, ["positive", "negative"], [1, 0]),
    "swag": ("swag", {"startphrase": "He", **{f"ending{n}": "word" + "s" * n for n in range(4)}}, [3, 1], [3, 1]),
}


@pytest.mark.parametrize("name", RELEASED)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_labels_as_they_were_released_are_the_numbers_of_the_hub(tmp_path, name, ending):
    folder, row, labels, expected = RELEASED[name]
    split = "validation_matched" if name == "mnli" else "validation"
    written(tmp_path, f"{folder}/{split}.{ending}", labelled([row, row], labels))
    assert targets(task_of(tmp_path, name)) == expected


@pytest.mark.parametrize("path", ["copa/validation.csv", "copa/validation.jsonl"])
def test_code_that_compares_numbers_gets_numbers(tmp_path, path):
    written(tmp_path, path, labelled(COPA, ["0", "1"]))
    assert targets(task_of(tmp_path, "copa")) == [" a b.", " c d."] * 2


def test_numbers_in_texts_are_numbers_to_code_that_tells_no_answers_apart_otherwise(tmp_path):
    """A task that is in no list, whose code asks for `doc["label"] == 0`."""
    row = {"premise": "p", "question": "원인", "alternative_1": "1", "alternative_2": "2"}
    written(tmp_path, "kobest_copa/test.csv", labelled([row] * 4, [0, 1]))
    assert targets(task_of(tmp_path, "kobest_copa")) == ["1", "2"] * 2


def test_texts_of_numbers_stay_texts_where_the_task_tells_answers_apart(tmp_path):
    written(tmp_path, "medqa_4options/test.csv", labelled([{"sent1": "q", **SWAG[0]}] * 4, [0, 1, 2, 3]))
    task = task_of(tmp_path, "medqa_4options")
    assert targets(task) == [0, 1, 2, 3]


WRONG = {
    "an unknown name": ("cb", "cb", labelled(CB, [*NAMES, "maybe"]), ":4: the label is 'maybe', and must be 0 (entai"),
    "another type": ("cb", "cb", labelled(CB, [0, True]), ":2: the label is True, and must be 0 (entailment), 1"),
    "a list": ("cb", "cb", labelled(CB, [0, [1]]), ":2: the label is [1], and must be"),
    "too large": ("cb", "cb", labelled(CB, [0, 3]), ":2: the label is 3, and must be"),
    "not published": (
        "cb",
        "cb",
        labelled(CB, [-1]),
        ":1: the label is -1, and must be 0 (entailment), 1 (contradicti",
    ),
    "no label": ("cb", "cb", CB, ":1: there is no 'label'"),
    "no premise": (
        "cb",
        "cb",
        labelled([CB[0], {"hypothesis": "h"}], [0]),
        ":2: there is no 'premise', which the task",
    ),
    "two kinds": (
        "cb",
        "cb",
        labelled([CB[0], CB[1], {**CB[0], "premise": 5}], [0]),
        ":3: its values are of other kin",
    ),
    "of a task in no list": ("swag", "swag", labelled(SWAG, [0, "x"]), ":2: its values are of other kinds"),
    "a word": (
        "swag",
        "swag",
        labelled(SWAG, ["x"]),
        ":1: the column label is 'x', and the task wants a number from 0",
    ),
    "out of range": (
        "swag",
        "swag",
        labelled(SWAG, [0, 1, 4]),
        ":3: the column label is 4, and the task wants a number",
    ),
    "hidden": (
        "swag",
        "swag",
        labelled(SWAG, [0, -1]),
        ":2: the column label is -1, and the task wants a number from 0",
    ),
    "null": ("swag", "swag", labelled(SWAG, [0, None]), ":2: it has no answer"),
    "letters for code": (
        "anli_r1",
        "anli",
        labelled([{"premise": "p", "hypothesis": "h"}] * 2, ["e"]),
        ":1: lm-eval's task cannot read it (UndefinedError: 'list object' has no attribute 'e'); it reads the columns",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_refused_with_its_line(tmp_path, case):
    name, folder, rows, message = WRONG[case]
    split = "test_r1" if name == "anli_r1" else "validation"
    written(tmp_path, f"{folder}/{split}.jsonl", rows)
    assert f"{folder}/{split}.jsonl{message}" in refused(tmp_path, name)


def test_lines_with_unknown_labels_can_be_left_out(tmp_path):
    written(tmp_path, "cb/validation.jsonl", labelled(CB, [*NAMES, "maybe"]))
    assert targets(task_of(tmp_path, "cb", skip_bad_lines=True)) == [0, 1, 2, 0, 1]


def test_solved_examples_are_checked_where_they_are_shown(tmp_path):
    from hybridlab.evaluation.lm_eval_run import _set_shots

    written(tmp_path, "swag/validation.jsonl", labelled(SWAG, [0, 1]))
    written(tmp_path, "swag/train.jsonl", labelled(SWAG, [0, 1, 7]))
    loaded = Library(DataRoot(tmp_path)).load("swag")
    assert _set_shots(loaded, None) == 0
    with pytest.raises(UserError, match=r"swag/train.jsonl:3: the column label is 7"):
        _set_shots(loaded, 1)


def test_a_task_in_no_list_says_which_columns_it_reads(tmp_path):
    written(tmp_path, "swag/validation.jsonl", [{"ctx": "He", "label": 0}])
    with pytest.raises(NotHere) as error:
        Library(DataRoot(tmp_path)).load("swag")
    said = str(error.value)
    assert "swag/validation.jsonl: there is no column startphrase" in said
    assert "the task reads startphrase" in said and said.endswith("and this file has ctx, label")


def test_a_column_that_a_task_names_is_not_taken_for_a_text(tmp_path):
    """`doc_to_target: label`: lm-eval looks for the word "label" among the options where the column is missing."""
    written(tmp_path, "swag/validation.jsonl", SWAG)
    assert "there is no column label; the task reads startphrase, label, ending0" in refused(tmp_path, "swag")


SHARED = Path(os.environ.get("HYBRIDLAB_TASK_FILES", ROOT.parent / "shared" / "data"))
ASKED = [
    "lambada_openai",
    "hellaswag",
    "piqa",
    "winogrande",
    "arc_easy",
    "sciq",
    "openbookqa",
    "social_iqa",
    "commonsense_qa",
    "mmlu_anatomy",
    "logiqa",
    "race",
    "boolq",
    "cola",
    "wnli",
    "qnli",
    "sst2",
    "mrpc",
    "rte",
    "mnli",
    "qqp",
    "gsm8k",
    "asdiv",
    "triviaqa",
    "webqs",
    "nq_open",
    "drop",
    "arithmetic_5ds",
    "wikitext",
    "hendrycks_math_algebra",
]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the released files are not here")
@pytest.mark.parametrize("name", ASKED)
def test_released_files_have_answers_that_their_tasks_read(name):
    task = task_of(SHARED, name)
    task.check_examples()
    assert len(task.eval_docs)
