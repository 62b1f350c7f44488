"""Rows of local files against what tasks of lm-eval read: columns, label names, numbers as texts, wrong answers."""

import csv
import io
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from hybridlab.data.files import DataRoot
from hybridlab.errors import UserError
from hybridlab.evaluation.benchmarks import forms
from hybridlab.evaluation.lm_eval_tasks import NotHere, load_task
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
    return load_task(name, DataRoot(root, **settings)).tasks[name]


def targets(task):
    return [task.doc_to_target(doc) for doc in task.eval_docs]


def refused(root, name):
    with pytest.raises(UserError) as error:
        load_task(name, DataRoot(root))
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
    """A task that is in no list, which asks for `entailment_judgment == 0`."""
    rows = [{"premise": "p", "hypothesis": "h", "entailment_judgment": n % 2} for n in range(4)]
    written(tmp_path, "assin_paraphrase/test.csv", rows)
    assert targets(task_of(tmp_path, "assin_paraphrase")) == [0, 1] * 2


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


ANLI = [{"premise": "p", "hypothesis": "h", "label": -1}]
PIQA = {"goal": "g", "sol1": "x", "sol2": "y", "label": 1}
ARC = {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"}
RACE = {"article": "a", "questions": ["q _"], "options": [["a", "b", "c", "d"]], "answers": ["A"]}
KOBEST = {"premise": "p", "question": "원인", "alternative_1": "1", "alternative_2": "2", "label": 2}
WINOGRANDE = {"sentence": "a _", "option1": "x", "option2": "y", "answer": 0}
MMLU = {"question": "q", "choices": "['a', 'b', 'c', 'd']", "answer": 1}
WRONG_VALUES = {
    "-1 as an index": ("anli_r1", "anli_r1/dev_r1.jsonl", ANLI, ":1: label is -1, which marks a label"),
    "no option": ("piqa", "piqa/validation.jsonl", [PIQA, {**PIQA, "sol1": None}], ":2: the option None is not a text"),
    "a number": ("piqa", "piqa/validation.jsonl", [{**PIQA, "sol2": 5, "sol1": 4}], ":1: the option 4 is not a text"),
    "no text": ("gsm8k", "gsm8k/test.jsonl", [{"question": "q", "answer": None}], ":1: answer has no value"),
    "no passage": (
        "boolq",
        "boolq/validation.jsonl",
        [{"question": "q", "passage": None, "label": 1}],
        ":1: 'None' is not a text",
    ),
    "another copa": ("kobest_copa", "kobest_copa/test.jsonl", [KOBEST], ":1: the label is 2, and must be 0 (alter"),
    "from 1": (
        "winogrande",
        "winogrande/validation.jsonl",
        [WINOGRANDE],
        ":1: the answer is 0, and must be a number fr",
    ),
    "a number for a letter": (
        "arc_easy",
        "arc_easy/test.jsonl",
        [{**ARC, "answerKey": 0}],
        ":1: the answer '0' is none",
    ),
    "letters of a text": (
        "arc_easy",
        "arc_easy/test.jsonl",
        [{**ARC, "choices": {"text": "ab", "label": "AB"}}],
        ":1: 'ab' is not a list of texts",
    ),
    "an object in a cell": ("arc_easy", "arc_easy/test.csv", [ARC], ":2: choices is \"{'text'"),
    "a list in a cell": ("mmlu_anatomy", "mmlu/anatomy/test.csv", [MMLU], ":2: \"['a', 'b', 'c', 'd']\" is not a list"),
    "one answer": (
        "webqs",
        "webquestions/test.jsonl",
        [{"question": "q", "answers": "Oslo"}],
        ":1: 'Oslo' is not a li",
    ),
    "null answers": (
        "nq_open",
        "nq_open/validation.jsonl",
        [{"question": "q", "answer": None}],
        ":1: 'None' is not a l",
    ),
    "two letters": (
        "race",
        "race/high/test.jsonl",
        [{**RACE, "answers": ["AB"]}],
        ":1: each question has four options",
    ),
    "an unknown letter": (
        "race",
        "race/high/test.jsonl",
        [{"article": "a", "problems": [{"question": "q", "options": ["a", "b", "c", "d"], "answer": "Z"}]}],
        ":1: each question has four options",
    ),
    "no list of questions": (
        "race",
        "race/high/test.jsonl",
        [{"article": "a", "problems": "[{"}],
        ":1: problems is no list of questions",
    ),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_value_that_a_task_would_misread_is_refused_with_its_line(tmp_path, case):
    name, path, rows, message = WRONG_VALUES[case]
    written(tmp_path, path, rows)
    assert f"{path}{message}" in refused(tmp_path, name)


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
    from hybridlab.evaluation.lm_eval_tasks import _set_shots

    written(tmp_path, "swag/validation.jsonl", labelled(SWAG, [0, 1]))
    written(tmp_path, "swag/train.jsonl", labelled(SWAG, [0, 1, 7]))
    loaded = load_task("swag", DataRoot(tmp_path))
    assert _set_shots(loaded, None) == 0
    with pytest.raises(UserError, match=r"swag/train.jsonl:3: the column label is 7"):
        _set_shots(loaded, 1)


def test_a_task_in_no_list_says_which_columns_it_reads(tmp_path):
    written(tmp_path, "swag/validation.jsonl", [{"ctx": "He", "label": 0}])
    with pytest.raises(NotHere) as error:
        load_task("swag", DataRoot(tmp_path))
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


@pytest.mark.long
@pytest.mark.skipif(not SHARED.is_dir(), reason="the released files are not here")
@pytest.mark.parametrize("name", ASKED)
def test_released_files_have_answers_that_their_tasks_read(name):
    task = task_of(SHARED, name)
    task.check_examples()
    assert len(task.eval_docs)


@pytest.mark.parametrize(
    ("rows", "least", "most"),
    [
        (partial(forms.needles_with_options, words=400, place="near"), 0, 60),
        (partial(forms.needles_with_options, words=400, place="far"), 300, 460),
        (partial(forms.needles_with_options, words=3200, place="far"), 3000, 3300),
        (partial(forms.pairs_with_options, keys=40), 180, 240),
    ],
)
def test_what_is_asked_stands_near_the_end_of_the_text_or_far_from_it(rows, least, most):
    """least, most: words from it to the end, of which each has a token or more."""
    for row in rows(count=40)["test"]:
        said = rf"{row['key']} is {row['options'][row['answer']]}\."
        (found,) = re.finditer(said, row["context"])
        assert least <= len(row["context"][found.start() :].split()) <= most
        assert len({*row["options"]}) == 4 and all(f" {number}." in row["context"] for number in row["options"])
