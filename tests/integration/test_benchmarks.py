"""`hybridlab eval --tasks` and `--suite`: from files without network, into the record, and with every mistake."""

import errno
import json
import os
import re

import pytest
from lm_eval.tasks import TaskManager

import hybridlab as public
from hybridlab import UserError
from hybridlab.config.loading import preset_names
from hybridlab.data.files import DataRoot
from hybridlab.errors import NoRoom
from hybridlab.evaluation.lm_eval_names import OWN, folders, matching
from hybridlab.evaluation.lm_eval_options import give_shots
from hybridlab.evaluation.lm_eval_tasks import load_task
from hybridlab.evaluation.results import load_suite
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.runs.record import number_at, read_record
from hybridlab.training.store.folders import Busy, RunFolder
from tests.conftest import ROOT
from tests.experiments import experiment_ids, load_experiment
from tests.integration.test_cli import hybridlab, json_of
from tests.lm_eval import saved_model

pytestmark = pytest.mark.usefixtures("no_data_root")

LENGTH = ["--max-length", "200"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data root with a few questions for some tasks."""
    folder = tmp_path_factory.mktemp("root")
    choices = {"text": ["cat", "mat", "rain", "the far hills"], "label": ["A", "B", "C", "D"]}
    asked = [{"question": f"What sat on {n}?", "choices": choices, "answerKey": "ABCD"[n % 4]} for n in range(12)]
    piqa = [{"goal": f"sit {n}", "sol1": "on a mat", "sol2": "on rain", "label": n % 2} for n in range(7)]
    for path, rows in {
        "arc_easy/test.jsonl": asked,
        "arc_easy/train.jsonl": asked[:5],
        "piqa/validation.jsonl": piqa,
        "lambada/test.jsonl": [{"text": f"the cat sat on {n} mats"} for n in range(6)],
        "mawps/AddSub.json": [{"sQuestion": f"What is {n} + 1?", "lSolutions": [n + 1.0]} for n in range(8)],
        "boolq/validation.jsonl": [{"question": "did it rain", "passage": "rain fell", "answer": True}] * 3,
        "race/test_middle.jsonl": [
            {"article": "The cat sat.", "questions": ["Who sat?"], "options": [["a", "b", "c", "d"]], "answers": ["A"]}
        ],
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(rows) if path.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
        (folder / path).write_text(text)
    for subject in (path.stem.removesuffix("_dev") for path in [ROOT / "anatomy_dev"]):
        for part in ("dev", "test"):
            (folder / "mmlu" / part).mkdir(parents=True, exist_ok=True)
            (folder / "mmlu" / part / f"{subject}_{part}.csv").write_text("a bone,b,c,d,e,A\nx,b,c,d,e,B\n" * 3)
    return folder


def evaluated(run, root, *options):
    return hybridlab("eval", run, "--data-root", root, *LENGTH, *options, cwd=run.parent)


def test_tasks_from_files_enter_the_record_and_stay_there(run, root):
    before = read_record(run / "record.json")
    found = json_of(evaluated(run, root, "--tasks", "arc_easy,piqa", "--num-fewshot", "2", "--json"))
    assert found["recorded"] and found["not_measured"] == {} and list(found["lm_eval"]) == ["arc_easy@2", "piqa@2"]
    arc = found["lm_eval"]["arc_easy@2"]
    assert (arc["metrics"]["acc"]["n"], arc["shots"], arc["limit"]) == (12, 2, None)
    assert arc["data"] == {"test": ["arc_easy/test.jsonl"], "train": ["arc_easy/train.jsonl"]}
    assert arc["examples_from"] is None and found["lm_eval"]["piqa@2"]["examples_from"] == "validation"
    assert arc["metrics"]["acc"]["stderr"] > 0 and arc["harness"].startswith("lm-eval 0.4.")
    later = json_of(evaluated(run, root, "--tasks", "lambada_openai", "--limit", "4", "--json"))
    record = read_record(run / "record.json")
    assert list(record.results.lm_eval) == ["arc_easy@2", "piqa@2", "lambada_openai"]
    measured = number_at(record, "results.lm_eval.arc_easy@2.metrics.acc_norm")
    assert measured.model_dump() == arc["metrics"]["acc_norm"]
    assert later["lm_eval"]["lambada_openai"]["metrics"]["perplexity"]["stderr"] > 0
    assert record.results.lm_eval["lambada_openai"].limit == 4
    unchanged = record.model_copy(update={"results": record.results.model_copy(update={"lm_eval": {}})})
    assert unchanged == before


def test_patterns_name_all_tasks_that_they_fit(run, root):
    """As in lm-eval's own command; of those without data the reason is told."""
    found = json_of(evaluated(run, root, "--tasks", "arc_?asy,pi[q]a*,arc_easy", "--limit", "2", "--json"))
    assert list(found["lm_eval"]) == ["arc_easy", "piqa"]
    assert found["not_measured"] and all(name.startswith("piqa_") for name in found["not_measured"])
    done = evaluated(run, root, "--tasks", "arc_easy,nothing-fits-*")
    assert done.returncode == 2 and "--tasks nothing-fits-*: no task of lm-eval fits this pattern" in done.stderr
    done = evaluated(run, root, "--tasks", "openbook*,arc_easy*_nothing")
    assert done.returncode == 2 and "arc_easy*_nothing: no task of lm-eval fits" in done.stderr
    done = evaluated(run, root, "--tasks", "openbookq?")
    assert done.returncode == 2 and "--tasks openbookq?: none can be measured; openbookqa: no file" in done.stderr


def test_patterns_fit_what_they_fit_in_lm_eval(tmp_path):
    """Also names that stand only in parts that files include, and tasks of one's own."""
    assert matching(["afriqa_prompt_?", "piqa", "acp_bench_har[d]"]) == [
        *(f"afriqa_prompt_{number}" for number in range(1, 6)),
        "piqa",
        "acp_bench_hard",
    ]
    assert "darijammlu_arabic_language_(general)" in matching(["darijammlu_*"]) and "null" not in matching(["n*"])
    (tmp_path / "mine.yaml").write_text("task: boolq_of_mine\n")
    assert "boolq_of_mine" in matching(["boolq*"], tmp_path) and "boolq" in matching(["boolq*"], tmp_path)
    assert "boolq_of_mine" not in matching(["boolq*"])


@pytest.mark.long
def test_all_names_of_lm_eval_are_known():
    listed = set(TaskManager(include_path=str(OWN)).all_tasks)
    assert listed <= set(folders()) and len(set(folders()) - listed) < 5


def test_the_table_names_what_one_should_know(run, root):
    done = evaluated(run, root, "--tasks", "piqa", "--num-fewshot", "1", "--limit", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:8])) <= 80
    assert any("piqa@1" in line and "acc_norm" in line and line.rstrip().endswith("3") for line in lines)
    assert "only the first 3 questions of each task" in done.stdout
    assert "solved examples from the split validation" in done.stdout


def test_all_examples_of_another_split_can_be_taken(run, root):
    """MMLU has five examples for five shots; of the questions themselves one more is needed."""
    options = ["--tasks", "mmlu_anatomy_continuation", "--num-fewshot"]
    found = json_of(evaluated(run, root, *options, "6", "--json"))
    assert found["lm_eval"]["mmlu_anatomy_continuation@6"]["metrics"]["acc"]["n"] == 6
    done = evaluated(run, root, *options, "7")
    assert done.returncode == 2 and "has 6 examples to choose from" in done.stderr
    done = evaluated(run, root, "--tasks", "piqa", "--num-fewshot", "7")
    assert done.returncode == 2 and "piqa has 7 examples to choose from" in done.stderr


def test_a_group_without_the_files_of_its_tasks(run, root):
    done = evaluated(run, root, "--tasks", "mmlu_stem")
    assert done.returncode == 2 and "no file of mmlu_" in done.stderr


def test_generated_answers_are_compared(run, root):
    found = json_of(evaluated(run, root, "--tasks", "mawps_addsub,needle_multikey_short", "--limit", "2", "--json"))
    assert found["lm_eval"]["mawps_addsub"]["metrics"]["exact_match"]["n"] == 2
    needles = found["lm_eval"]["needle_multikey_short"]
    assert set(needles["metrics"]) == {"found", "exact_match"} and needles["data"] == {}


def test_examples_that_a_task_writes_out_stay_its_own(tmp_path):
    """gsm8k_cot has eight, and here there is nothing but the questions."""
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}. #### {n + 1}"} for n in range(3)]
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_task("gsm8k_cot", DataRoot(tmp_path))
    task = loaded.tasks["gsm8k_cot"]
    give_shots(task, 8)
    task.build_all_requests(limit=1)
    prompt = task.instances[0].args[0]
    assert prompt.startswith("Q: There are 15 trees in the grove.") and prompt.count("The answer is") == 8
    assert loaded.rows["gsm8k_cot"].examples_from is None


def test_a_suite_measures_what_is_at_hand_and_names_the_rest(run, root):
    found = json_of(evaluated(run, root, "--suite", "saobp", "--json"))
    columns = found["suite"]["columns"]
    assert columns["BoolQ"]["n"] == 3 and 0 <= columns["BoolQ"]["value"] <= 100
    assert columns["Race-middle"]["n"] == 1 and columns["PPL (WikiText)"]["value"] is None
    assert "wikitext" in found["not_measured"] and "no file of wikitext" in found["not_measured"]["wikitext"]
    recorded = read_record(run / "record.json").results.suites["saobp"]
    assert recorded["BoolQ"].value == columns["BoolQ"]["value"] and set(recorded) == {"BoolQ", "Race-middle"}
    done = evaluated(run, root, "--suite", "consa", "--limit", "2")
    assert done.returncode == 0 and "not measured: LogiQA-CN: the Chinese half" in done.stdout


def test_a_result_of_fewer_questions_stays_out_of_the_record(run, root):
    def recorded(*options):
        done = evaluated(run, root, "--tasks", "piqa", *options, "--json")
        return json_of(done), read_record(run / "record.json").results.lm_eval["piqa"], done.stderr

    found, whole, _ = recorded()
    assert (whole.metrics["acc"].n, whole.limit, found["kept"]) == (7, None, {})
    found, kept, said = recorded("--limit", "3")
    assert kept == whole and found["kept"] == {"piqa": 7} and not found["recorded"]
    assert found["lm_eval"]["piqa"]["metrics"]["acc"]["n"] == 3
    assert "keeps its piqa with 7 questions, and not this one with 3; --replace puts this one in its place" in said
    found, smaller, said = recorded("--limit", "3", "--replace")
    assert smaller.metrics["acc"].n == 3 and found["kept"] == {} and found["recorded"] and "keeps" not in said
    found, larger, said = recorded("--limit", "5")
    assert larger.metrics["acc"].n == 5 and found["recorded"] and "keeps" not in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (NoRoom("record.json: it cannot be written", "No space left on device"), "it cannot be written"),
        (Busy("run: another process is training in this folder"), "another process is training"),
    ],
)
def test_results_that_cannot_be_recorded_are_printed(run, root, monkeypatch, error, says):
    def refused(*_):
        raise error

    before = (run / "record.json").read_bytes()
    monkeypatch.setattr(RunFolder, "write", refused)
    done = evaluated(run, root, "--tasks", "piqa", "--limit", "2", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["lm_eval"]["piqa"]["metrics"]["acc"]["n"] == 2 and not found["recorded"]
    assert f"nothing is recorded ({error}); the same command measures it again" in done.stderr and says in done.stderr
    assert (run / "record.json").read_bytes() == before


def test_a_folder_that_may_not_be_written_is_said_before_anything_is_measured(run, root, monkeypatch):
    def stopped(*_, **__):
        raise UserError("stopped before the first task")

    monkeypatch.setattr("os.access", lambda path, mode, **_: str(path) != str(run) or mode != os.W_OK)
    monkeypatch.setattr("hybridlab.runs.benchmarks.benchmark_model", stopped)
    done = evaluated(run, root, "--tasks", "piqa", "--limit", "2")
    assert "may not be written, so that nothing will be recorded" in done.stderr and "stopped before" in done.stderr


def test_results_are_recorded_if_the_files_of_lm_eval_cannot_be_written(run, root, monkeypatch, tmp_path):
    def refused(*_):
        raise UserError("--output-path: results.json could not be written")

    monkeypatch.setattr("hybridlab.evaluation.lm_eval_options.Report.write", refused)
    options = ["--tasks", "piqa", "--num-fewshot", "3", "--limit", "2", "--output-path", tmp_path / "out"]
    done = evaluated(run, root, *options, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["recorded"] and found["files"] == [] and found["lm_eval"]["piqa@3"]["metrics"]["acc"]["n"] == 2
    assert "lm-eval's files are not written (--output-path: results.json could not be written)" in done.stderr


def test_the_columns_of_a_suite_follow_the_results_that_stay(run, root):
    whole = json_of(evaluated(run, root, "--suite", "saobp", "--json"))["suite"]["columns"]["BoolQ"]
    evaluated(run, root, "--suite", "saobp", "--limit", "1")
    assert read_record(run / "record.json").results.suites["saobp"]["BoolQ"].model_dump() == whole


def test_replace_is_refused_where_it_has_no_effect(run, root, tmp_path):
    for options, message in [
        (["--tasks", "piqa", "--drop-heads", "L1-H1"], "--replace has no effect with --drop-heads"),
        (["--tasks", "sciq"], "--replace has no effect: the record of"),
    ]:
        done = evaluated(run, root, *options, "--replace")
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    done = hybridlab("eval", run, "--replace", cwd=run.parent)
    assert done.returncode == 2 and "--replace has no effect without --tasks or --suite" in done.stderr
    done = evaluated(saved_model("llama", tmp_path / "llama"), root, "--tasks", "piqa", "--replace")
    assert done.returncode == 2 and "is no finished run" in done.stderr, done.stderr
    with pytest.raises(UserError, match="replace= has no effect without tasks"):
        public.evaluate(run, replace=True)


def test_the_same_task_with_and_without_examples(run, root, monkeypatch):
    """SpiralFormer's suite asks each of its tasks twice."""
    from hybridlab.evaluation import results as suites

    column = {"tasks": ["arc_easy"], "metric": "acc"}
    columns = [{"name": str(shots), "shots": shots, **column} for shots in (0, 2)]
    monkeypatch.setattr(
        "hybridlab.runs.benchmarks.load_suite",
        lambda name: suites.Suite(name=name, title="T", source="S", columns=columns),
    )
    found = public.evaluate(run / "final", suite="two", data_root=root, seq_len=2000, quiet=True)
    assert [result.shots for result in found.results.values()] == [0, 2]
    assert list(found.results) == ["arc_easy", "arc_easy@2"] and found.columns["2"].n == 12
    alone = public.evaluate(run / "final", tasks=["arc_easy"], num_fewshot=2, data_root=root, seq_len=2000, quiet=True)
    assert alone.results["arc_easy@2"].metrics == found.results["arc_easy@2"].metrics


@pytest.mark.parametrize("name", ["sgt", "spiral", "consa", "depth", "saobp"])
def test_columns_of_suites_can_be_computed(name):
    suite = load_suite(name)
    assert suite.asked() and all(column.metric for column in suite.columns if column.tasks)
    known = [column.name for column in suite.columns]
    assert len(set(known)) == len(known) and not any("." in column for column in known)
    for place, column in enumerate(suite.columns):
        assert sum(map(bool, (column.tasks, column.columns, column.missing))) == 1
        assert set(column.columns) <= set(known[:place])


def test_columns_of_tables_are_columns_of_their_papers_suite():
    asked = set()
    for name in experiment_ids():
        experiment = load_experiment(name)
        for column in experiment.columns if isinstance(experiment, Experiment) else []:
            if (column.metric or "").startswith("results.suites."):
                _, _, suite, _ = parts = (column.metric or "").split(".")
                assert suite == experiment.paper
                known = [one.name for one in load_suite(suite).columns]
                assert {column.metric_of(row).split(".")[-1] for row in experiment.rows} <= set(known), parts
                asked.add(suite)
    assert asked == set(preset_names("suites"))


def test_broken_lines_are_named_or_counted(run, root, tmp_path):
    (tmp_path / "piqa").mkdir()
    good = (root / "piqa" / "validation.jsonl").read_text()
    (tmp_path / "piqa" / "validation.jsonl").write_text(good + '{"goal": "cut o\n')
    done = evaluated(run, tmp_path, "--tasks", "piqa")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "piqa/validation.jsonl:8: this line is not JSON" in done.stderr and "--skip-bad-lines" in done.stderr
    done = evaluated(run, tmp_path, "--tasks", "piqa", "--skip-bad-lines")
    assert done.returncode == 0 and "piqa: 1 broken lines left out" in done.stdout


MISTAKES = {
    "a task that does not exist": (["--tasks", "arc_eazy"], "did you mean 'arc_easy'?"),
    "a tag that does not exist": (["--tasks", "lambda"], "did you mean 'lambada'?"),
    "a suite that does not exist": (["--suite", "spirl"], "did you mean 'spiral'?"),
    "no task": (["--tasks", ","], "give either --tasks"),
    "both": (["--tasks", "piqa", "--suite", "sgt"], "give either --tasks"),
    "shots of a suite": (["--suite", "sgt", "--num-fewshot", "5"], "--num-fewshot has no effect on --suite sgt"),
    "text": (["--tasks", "piqa", "--data", "embedded"], "--data has no effect on benchmarks"),
    "no file": (["--tasks", "sciq"], "no file of sciq below"),
    "more examples than there are": (["--tasks", "piqa", "--num-fewshot", "9"], "piqa has 7 examples to choose from"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_in_one_sentence(run, root, case):
    options, message = MISTAKES[case]
    done = evaluated(run, root, *options)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_options_of_benchmarks_need_one(run):
    done = hybridlab("eval", run, "--limit", "4", cwd=run.parent)
    assert done.returncode == 2 and "--limit has no effect without --tasks or --suite" in done.stderr
    done = hybridlab("eval", run, "--tasks", "piqa", "--data-root", "nowhere", cwd=run.parent)
    assert done.returncode == 2 and "--data-root nowhere: there is no such folder" in done.stderr


def test_without_files_and_without_network_it_ends_at_once(run, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = hybridlab("eval", run, "--tasks", "piqa", cwd=run.parent)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "cannot be fetched from the Hugging Face hub; give the folder of its files with --data-root" in done.stderr


def test_an_encoder_is_refused(tmp_path, root):
    public.save(public.build_model("bert", size="bert-tiny"), tmp_path / "encoder")
    done = hybridlab("eval", "encoder", "--tasks", "piqa", "--data-root", root, cwd=tmp_path)
    assert done.returncode == 2 and "an encoder sees the tokens on both sides" in done.stderr, done.stderr


SETTINGS = {"tasks": ["piqa", "sciq"], "limit": 4, "shots": 1, "max_length": 90}


def test_a_run_can_ask_benchmarks_at_its_end(small, tmp_path, runs_dir, root, monkeypatch):
    from hybridlab.config.resolve import run_hash
    from tests.training import train

    monkeypatch.setenv("HYBRIDLAB_DATA_ROOT", str(root))
    config = small(training={"steps": 2}, evaluation={"benchmarks": SETTINGS})
    assert run_hash(config) != run_hash(small(training={"steps": 2}))
    record = train(config, tmp_path / "run", runs_dir)
    assert record.results.lm_eval["piqa@1"].metrics["acc"].n == 4
    assert record.results.lm_eval["piqa@1"].max_length == 90
    assert "no file of sciq below" in record.results.lm_eval_missing["sciq"]
    assert number_at(record, "results.lm_eval.sciq@1.metrics.acc").value is None
    again = json_of(
        hybridlab(
            "eval",
            tmp_path / "run",
            "--tasks",
            "piqa",
            "--num-fewshot",
            "1",
            "--limit",
            "4",
            *["--max-length", "90"],
            "--json",
            cwd=tmp_path,
        )
    )
    assert again["lm_eval"]["piqa@1"]["metrics"] == json.loads(
        json.dumps({name: m.model_dump() for name, m in record.results.lm_eval["piqa@1"].metrics.items()})
    )
    after = read_record(tmp_path / "run" / "record.json")
    assert after.results.lm_eval_missing == record.results.lm_eval_missing


def test_settings_of_benchmarks_are_checked_before_training(small, tmp_path, runs_dir):
    from tests.training import train

    with pytest.raises(UserError, match="did you mean 'piqa'"):
        train(small(evaluation={"benchmarks": {"tasks": ["piqaa"]}}), tmp_path / "run", runs_dir)
    assert not (tmp_path / "run" / "run.json").exists()
    for wrong, message in [
        ({"suite": "spirl"}, "did you mean 'spiral'"),
        ({}, "either tasks or suite"),
        ({"suite": "sgt", "shots": 3}, "shots has no effect on a suite"),
    ]:
        with pytest.raises(UserError, match=message):
            small(evaluation={"benchmarks": wrong})


def test_from_python(run, root, tmp_path):
    found = public.evaluate(run, tasks=["arc_easy"], data_root=root, seq_len=200, limit=5, quiet=True)
    result = found.results["arc_easy"]
    assert isinstance(found, public.Benchmarks) and (result.metrics["acc"].n, result.max_length) == (5, 200)
    folder = saved_model("llama", tmp_path / "llama")
    model = public.load_hf(folder)
    alone = public.evaluate(
        model, tasks=["arc_easy"], tokenizer=f"file:{folder}", seq_len=96, data_root=root, quiet=True
    )
    same = public.evaluate(folder, tasks=["arc_easy"], data_root=root, quiet=True)
    assert alone.results["arc_easy"].metrics == same.results["arc_easy"].metrics
    assert not same.recorded and os.environ["HYBRIDLAB_DATA_ROOT"] == ""
    with pytest.raises(UserError, match="limit= has no effect without tasks"):
        public.evaluate(run, limit=3)
    with pytest.raises(UserError, match="a model needs tokenizer="):
        public.evaluate(model, tasks=["arc_easy"], data_root=root)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_scores_on_files_are_those_of_lm_evals_class_for_transformers(tmp_path, root, family):
    """lm-eval's own tasks with prompts that are too long for the model, and generated answers."""
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    from hybridlab.data.files import DataRoot
    from hybridlab.evaluation.lm_eval_tasks import measure_tasks

    folder = saved_model(family, tmp_path / family)
    asked = [("arc_easy", 2), ("piqa", 3), ("lambada_openai", None), ("boolq", None), ("mawps_addsub", 2)]
    theirs = HFLM(pretrained=str(folder), device="cpu", batch_size=7, dtype="float32")
    expected, _ = measure_tasks(theirs, DataRoot(root), asked)
    names = ["arc_easy@2", "piqa@3", "lambada_openai", "boolq", "mawps_addsub@2"]
    assert list(expected) == names
    for task, shots in asked:
        found = public.evaluate(folder, tasks=[task], num_fewshot=shots, batch_size=7, data_root=root, quiet=True)
        (name,) = found.results
        for metric, measured in found.results[name].metrics.items():
            value = expected[name].metrics[metric].value
            assert measured.value == (pytest.approx(value, rel=1e-5) if metric == "perplexity" else value), (
                name,
                metric,
            )


def test_a_run_scores_as_lm_eval_scores_its_exported_folder(run, tmp_path, root):
    """A plan with a loop over one head, which transformers runs from the modelling file beside the weights."""
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    from hybridlab.data.files import DataRoot
    from hybridlab.evaluation.lm_eval_tasks import measure_tasks

    folder = tmp_path / "exported"
    public.export_hf(run, folder)
    theirs = HFLM(pretrained=str(folder), device="cpu", batch_size=4, dtype="float32", trust_remote_code=True)
    asked = [("arc_easy", 1), ("piqa", None), ("lambada_openai", None), ("mawps_addsub", 1)]
    expected, _ = measure_tasks(theirs, DataRoot(root), asked)
    for task, shots in asked:
        found = public.evaluate(
            run / "final", tasks=[task], num_fewshot=shots, batch_size=4, data_root=root, quiet=True
        )
        ((name, result),) = found.results.items()
        assert result.max_length == theirs.max_length
        for metric, measured in result.metrics.items():
            value = expected[name].metrics[metric].value
            assert measured.value == (pytest.approx(value, rel=1e-5) if metric == "perplexity" else value), (
                name,
                metric,
            )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ImportError('Please install … with `pip install lm_eval["longbench"] or …`'),
            "pip install 'lm-eval[longbench]'",
        ),
        (ImportError("use `pip install lm-eval[math]`"), "pip install 'lm-eval[math]'"),
        (ModuleNotFoundError("No module named 'nagisa'", name="nagisa"), "needs nagisa, which is not installed"),
    ],
)
def test_a_task_without_its_packages_says_what_to_install(error, says, root, monkeypatch):
    from lm_eval.tasks import TaskManager

    from hybridlab.data.files import DataRoot
    from hybridlab.evaluation.lm_eval_tasks import load_task

    def missing(*_, **__):
        raise error

    monkeypatch.setattr(TaskManager, "load", missing)
    with pytest.raises(UserError, match=re.escape(says)):
        load_task("piqa", DataRoot(root))


def test_the_error_of_constant_answers_cannot_be_told(run, root):
    """An untrained model, to which one of two words is always the likelier, in CoLA."""
    folder = root / "glue" / "cola"
    folder.mkdir(parents=True)
    rows = "".join(f"x\t{n % 2}\t\tThe cat sat on {n} mats.\n" for n in range(12))
    (folder / "in_domain_dev.tsv").write_text(rows)
    (folder / "out_of_domain_dev.tsv").write_text(rows)
    done = evaluated(run, root, "--tasks", "cola")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "mcc" in line]
    assert "0.0000" in line and "–" in line
