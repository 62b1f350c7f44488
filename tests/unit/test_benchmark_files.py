"""Files of benchmarks as rows: every layout of a release gives the rows that lm-eval's tasks read."""

import bz2
import gzip
import json
import os
import re
from pathlib import Path

import pytest

from hybridlab.analysis.prompts import Prompt, prompts_named
from hybridlab.data.files import DataRoot, TaskDataset
from hybridlab.errors import UserError
from tests.conftest import ROOT

PIQA = TaskDataset("piqa", "baber/piqa")
ARC = TaskDataset("arc_easy", "allenai/ai2_arc", "ARC-Easy")
PIQA_ROWS = [{"goal": f"goal {n}", "sol1": "do this", "sol2": "do that"} for n in range(3)]


def written(root, path, content):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content) if isinstance(content, bytes) else target.write_text(content)
    return root


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows(root, wanted, split, **settings):
    return DataRoot(root, **settings).split(wanted, split).rows


def test_labels_of_a_file_of_their_own_belong_to_lines(tmp_path):
    written(tmp_path, "piqa/valid.jsonl", lines(PIQA_ROWS))
    written(tmp_path, "piqa/valid-labels.lst", "1\n0\n1\n")
    found = rows(tmp_path, PIQA, "validation")
    assert [row["label"] for row in found] == [1, 0, 1] and found[0]["goal"] == "goal 0"


@pytest.mark.parametrize("pack, ending", [(bytes, ""), (gzip.compress, ".gz"), (bz2.compress, ".bz2")])
def test_files_of_the_hubs_columns_are_found_by_the_names_of_their_splits(tmp_path, pack, ending):
    labelled = lines([{**row, "label": 1} for row in PIQA_ROWS]).encode()
    written(tmp_path, f"piqa/dev.jsonl{ending}", pack(labelled))
    assert [row["label"] for row in rows(tmp_path, PIQA, "validation")] == [1, 1, 1]
    assert DataRoot(tmp_path).split(PIQA, "train") is None


RELEASED = {
    "hub": {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
    "ai2": {
        "question": {"stem": "Why?", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]},
        "answerKey": "B",
    },
    "mosaicml": {"query": "Question: Why?", "choices": ["a", "b"], "gold": 1},
}


@pytest.mark.parametrize("layout", RELEASED)
def test_layouts_of_a_multiple_choice_give_the_same_row(tmp_path, layout):
    written(tmp_path, "arc_easy/test.jsonl", lines([RELEASED[layout]]))
    assert rows(tmp_path, ARC, "test") == [RELEASED["hub"]]


def test_a_table_of_openbookqa(tmp_path):
    header = "ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key\n"
    row = '1\tHe said "no" to\t(A) one thing (B) two things\tHe …\tB\n'
    written(tmp_path, "openbookqa/main_test.tsv", header + row)
    assert rows(tmp_path, TaskDataset("openbookqa", "allenai/openbookqa", "main"), "test") == [
        {
            "question_stem": 'He said "no" to',
            "choices": {"text": ["one thing", "two things"], "label": ["A", "B"]},
            "answerKey": "B",
        }
    ]


def test_a_table_without_header_names_its_columns(tmp_path):
    written(tmp_path, "mmlu/test/anatomy_test.csv", '"What, then?",one,two,three,four,C\n')
    found = rows(tmp_path, TaskDataset("mmlu_anatomy", "cais/mmlu", "anatomy"), "test")
    assert found == [{"question": "What, then?", "choices": ["one", "two", "three", "four"], "answer": 2}]


def test_records_of_several_lines(tmp_path):
    logiqa = "\nb\nIt rains.So it is.\nWhich?\nA.one\nB.two.\nC.three\nD.four\n"
    written(tmp_path, "logiqa/Test.txt", logiqa)
    (row,) = rows(tmp_path, TaskDataset("logiqa", "EleutherAI/logiqa", "logiqa"), "test")
    assert row["context"] == "It rains. So it is." and row["label"] == "b" and row["options"][1] == "two."
    six = "Topic: A man sits. he\n2\nw\nx\ny\nz\n"
    written(tmp_path, "hellaswag/hellaswag_val_full.txt.bz2", bz2.compress(six.encode()))
    (row,) = rows(tmp_path, TaskDataset("hellaswag", "Rowan/hellaswag"), "validation")
    assert (row["activity_label"], row["ctx_a"], row["ctx_b"], row["label"]) == ("Topic", "A man sits.", "he", "2")


def test_word_problems_keep_what_has_one_number(tmp_path):
    problems = "".join(
        f"<Problem ID='{n}'><Body>B{n}.</Body><Question>Q?</Question><Answer>{answer}</Answer></Problem>"
        for n, answer in enumerate(["9 (apples)", "3 and 4", "1,200"])
    )
    written(tmp_path, "asdiv/ASDiv.xml", f"<Set>{problems}</Set>")
    found = rows(tmp_path, TaskDataset("asdiv_generated", "hybridlab", "asdiv"), "test")
    assert [(row["question"], row["answer"]) for row in found] == [("B0. Q?", "9"), ("B2. Q?", "1200")]
    mixed = [{"input": "Q", "target": 43.0, "type": kind} for kind in ("addsub", "singleop")]
    written(tmp_path, "mawps/test.jsonl", lines(mixed))
    assert len(rows(tmp_path, TaskDataset("mawps_singleop", "hybridlab", "mawps_singleop"), "test")) == 1


def test_requests_of_olmes_give_conversations_up_to_their_question(tmp_path):
    turns = [{"question": f"q{n}", "answer": f"a{n}"} for n in range(3)]
    doc = {"id": "x_turn1", "story": "S", "question": "q1", "answers": ["a1", "other"], "previous_qa": turns}
    written(tmp_path, "coqa/coqa_bpb_0shot_requests.jsonl.gz", gzip.compress(json.dumps({"doc": doc}).encode()))
    (row,) = rows(tmp_path, TaskDataset("coqa", "EleutherAI/coqa"), "validation")
    assert row["questions"] == {"input_text": ["q0", "q1"]} and row["answers"] == {"input_text": ["a0", "a1"]}
    assert row["additional_answers"]["0"] == {"input_text": ["a0", "other"]}


def test_pages_begin_at_their_titles(tmp_path):
    written(
        tmp_path, "wikitext2/wiki.test.raw", " \r\n = One = \r\n text \r\n = = Part = = \r\n \r\n = Two = \r\n end \r\n"
    )
    found = rows(tmp_path, TaskDataset("wikitext", "EleutherAI/wikitext_document_level"), "test")
    assert [row["page"].split("\n")[0] for row in found] == [" = One = ", " = Two = "]


def test_a_task_that_is_in_no_list_is_found_in_a_folder_of_its_name(tmp_path):
    written(tmp_path, "my_task/test.jsonl", lines([{"any": "thing"}]))
    assert rows(tmp_path, TaskDataset("my_task", "someone/else"), "test") == [{"any": "thing"}]
    written(tmp_path, "else/fr/validation.json", json.dumps([{"any": 1}, {"any": 2}]))
    assert len(rows(tmp_path, TaskDataset("other_task", "someone/else", "fr"), "validation")) == 2


BROKEN = {
    "no JSON": ("piqa/valid.jsonl", '{"goal": "g"\n', PIQA, "validation", "valid.jsonl:2: this line is not JSON"),
    "a column is missing": ("piqa/dev.jsonl", '{"goal": "g"}\n', PIQA, "validation", "dev.jsonl:2: there is no 'sol1'"),
    "a row is too short": (
        "mmlu/dev/anatomy_dev.csv",
        "a,b\n",
        TaskDataset("m", "cais/mmlu", "anatomy"),
        "dev",
        "2 columns",
    ),
    "a wrong answer": (
        "arc_easy/test.jsonl",
        json.dumps(RELEASED["hub"] | {"answerKey": "Z"}),
        ARC,
        "test",
        "'Z' is none",
    ),
}
GOOD = {
    "piqa/valid.jsonl": json.dumps({**PIQA_ROWS[0], "label": 0}) + "\n",
    "piqa/dev.jsonl": json.dumps({**PIQA_ROWS[0], "label": 0}) + "\n",
    "mmlu/dev/anatomy_dev.csv": "q,a,b,c,d,A\n",
    "arc_easy/test.jsonl": json.dumps(RELEASED["hub"]) + "\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_line_is_named_or_left_out_and_counted(tmp_path, case):
    path, line, wanted, split, message = BROKEN[case]
    written(tmp_path, path, GOOD[path] + line)
    with pytest.raises(UserError) as error:
        rows(tmp_path, wanted, split)
    assert message in str(error.value) and f"{path}:2" in str(error.value) and "--skip-bad-lines" in str(error.value)
    served = DataRoot(tmp_path, skip_bad_lines=True).split(wanted, split)
    assert (len(served.rows), served.skipped) == (1, 1)


def test_other_mistakes_in_files(tmp_path):
    written(tmp_path, "piqa/dev.jsonl", b"\xff\xfe{}\n")
    with pytest.raises(UserError, match=r"dev.jsonl:1: this is not UTF-8"):
        rows(tmp_path, PIQA, "validation")
    written(tmp_path, "piqa/dev.jsonl", "\n")
    with pytest.raises(UserError, match="no example that can be read"):
        rows(tmp_path, PIQA, "validation")
    written(tmp_path, "asdiv/ASDiv.xml", "<Set><Problem></Set>")
    with pytest.raises(UserError, match=r"ASDiv.xml:1: this is not XML"):
        rows(tmp_path, TaskDataset("asdiv", "EleutherAI/asdiv"), "validation")
    assert "piqa/valid.jsonl or piqa/validation.jsonl" in DataRoot(tmp_path).missing(PIQA, ("validation",))


def test_prompts_with_answers_for_the_depth_score(tmp_path, monkeypatch):
    monkeypatch.setenv("HYBRIDLAB_DATA_ROOT", str(tmp_path))
    problem = {"problem": "1 + 1", "level": "Level 3", "type": "Intermediate Algebra", "solution": "It is 2."}
    written(tmp_path, "math/test_intermediate_algebra.jsonl", lines([problem]))
    assert prompts_named("root:math") == [Prompt("Problem: 1 + 1\nAnswer:", " It is 2.", "3")]
    case = {"questions": ["Who?", "Whose?"], "answer": "She", "orig": {"triples": [[1, 2, 3], [3, 4, 5]]}}
    written(tmp_path, "mquake/MQuAKE-hard.json", json.dumps([case]))
    assert prompts_named("root:mquake") == [Prompt("Who?", " She", "2")]
    with pytest.raises(UserError, match="did you mean 'math'"):
        prompts_named("root:maths")
    with pytest.raises(UserError, match="it would be gsm8k/test.jsonl"):
        prompts_named("root:gsm8k")
    monkeypatch.setenv("HYBRIDLAB_DATA_ROOT", "")
    with pytest.raises(UserError, match="no data root is set"):
        prompts_named("root:math")


# ---- the files as they were released ----

SHARED = Path(os.environ.get("HYBRIDLAB_TASK_FILES", ROOT.parent / "shared" / "data"))
released = pytest.mark.skipif(not SHARED.is_dir(), reason="the released files are not here")
COUNTS = {
    ("lambada_openai", "EleutherAI/lambada_openai", None): {"test": 5153},
    ("hellaswag", "Rowan/hellaswag", None): {"validation": 10042},
    ("piqa", "baber/piqa", None): {"validation": 1838},
    ("winogrande", "allenai/winogrande", "winogrande_xl"): {"validation": 1267},
    ("arc_easy", "allenai/ai2_arc", "ARC-Easy"): {"validation": 570, "test": 2376},
    ("arc_challenge", "allenai/ai2_arc", "ARC-Challenge"): {"validation": 299, "test": 1172},
    ("sciq", "allenai/sciq", None): {"validation": 1000},
    ("openbookqa", "allenai/openbookqa", "main"): {"validation": 500, "test": 500},
    ("social_iqa", "lighteval/siqa", None): {"validation": 1954},
    ("commonsense_qa", "tau/commonsense_qa", None): {"validation": 1221},
    ("mmlu_anatomy", "cais/mmlu", "anatomy"): {"dev": 5, "validation": 14, "test": 135},
    ("logiqa", "EleutherAI/logiqa", "logiqa"): {"validation": 651, "test": 651},
    ("race", "EleutherAI/race", "high"): {"test": 1045},
    ("race_middle", "hybridlab", "race_middle"): {"test": 362},
    ("boolq", "aps/super_glue", "boolq"): {"validation": 3270},
    ("cola", "nyu-mll/glue", "cola"): {"train": 8551, "validation": 1043},
    ("wnli", "nyu-mll/glue", "wnli"): {"train": 635, "validation": 71},
    ("qnli", "nyu-mll/glue", "qnli"): {"validation": 5463},
    ("gsm8k", "openai/gsm8k", "main"): {"train": 2000, "test": 1319},
    ("asdiv", "EleutherAI/asdiv", None): {"validation": 2305},
    ("svamp", "hybridlab", "svamp"): {"test": 1000},
    ("mawps", "hybridlab", "mawps"): {"test": 2065},
    ("mawps_singleop", "hybridlab", "mawps_singleop"): {"test": 562},
    ("hendrycks_math_algebra", "EleutherAI/hendrycks_math", "algebra"): {"test": 200},
    ("triviaqa", "mandarjoshi/trivia_qa", "rc.nocontext"): {"validation": 3000},
    ("webqs", "stanfordnlp/web_questions", None): {"train": 944, "test": 2032},
    ("nq_open", "google-research-datasets/nq_open", None): {"validation": 3610},
    ("coqa_f1", "EleutherAI/coqa", None): {"validation": 7983},
    ("drop", "EleutherAI/drop", None): {"validation": 1000},
    ("squad_f1", "hybridlab", "squad"): {"test": 1190},
    ("quac_f1", "hybridlab", "quac"): {"test": 41},
    ("tydiqa_f1", "hybridlab", "tydiqa"): {"test": 1},
    ("basic_arithmetic", "hybridlab", "basic_arithmetic"): {"test": 3000},
    ("arithmetic_5ds", "json", None): {"validation": 2000},
    ("longbench_multi_news", "Xnhyacinth/LongBench", "multi_news"): {"test": 200},
    ("wikitext", "EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"): {"test": 62},
    ("webqa_cn", "hybridlab", "webqa"): {"test": 200},
    ("math", "hybridlab", "math_prompts"): {"test": 200},
    ("mquake", "hybridlab", "mquake_prompts"): {"test": 429},
    ("gsm8k", "hybridlab", "gsm8k_prompts"): {"test": 1319},
}


@released
@pytest.mark.parametrize("names", COUNTS, ids=lambda names: names[0])
def test_every_released_file_gives_all_its_rows(names):
    root = DataRoot(SHARED)
    assert {split: len(root.split(TaskDataset(*names), split).rows) for split in COUNTS[names]} == COUNTS[names]


@released
def test_six_lines_of_hellaswag_give_the_prompts_of_its_objects():
    """lm-eval capitalizes the second part of a context, which six lines do not set apart."""

    def prompt(row):
        return f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}".strip()

    def plain(text):
        return re.sub(r"\[.*?\]", "", text.replace(" [title]", ". ")).replace("  ", " ").strip()

    from_lines = {plain(prompt(row)) for row in rows(SHARED, TaskDataset("hellaswag", "Rowan/hellaswag"), "validation")}
    objects = [json.loads(line) for line in (SHARED / "hellaswag" / "hellaswag_val_1000.jsonl").open()]
    assert sum(plain(prompt(row)) in from_lines for row in objects) >= 999
