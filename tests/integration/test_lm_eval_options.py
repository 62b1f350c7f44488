"""lm-eval's own options: numbers, samples and files are those of lm-eval itself with its class for transformers on the
exported folder; and every mistake ends in one sentence."""

import json
import shutil

import datasets
import pytest
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_results_filenames, get_sample_results_filenames, make_table

import hybridlab as public
from hybridlab.evaluation.lm_eval_options import parse_gen_kwargs
from hybridlab.runs.record import read_record
from tests.integration.test_cli import hybridlab, json_of
from tests.lm_eval import choice_rows

pytestmark = pytest.mark.usefixtures("no_data_root")

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ '\\n' if not loop.last or add_generation_prompt }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + TEMPLATE
CHOICE = """
task: my_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}, train: {rows}}}}}
test_split: test
training_split: train
num_fewshot: 1
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: label
doc_to_choice: options
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
GENERATED = """
task: my_text
tag: my_tag
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: !function form.asked
doc_to_target: "{{{{options[0]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
FORM = "def asked(doc):\n    return 'Question: ' + doc['question'] + ' Answer:'\n"


@pytest.fixture(autouse=True)
def no_list_of_packages(monkeypatch):
    """lm-eval writes a list of all installed packages into its results, which takes seconds."""
    monkeypatch.setattr("torch.utils.collect_env.get_pretty_env_info", str)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with two tasks, one with a function beside it, on rows in a file."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in choice_rows(9)))
    (folder / "choice.yaml").write_text(CHOICE.format(rows=rows))
    (folder / "text.yaml").write_text(GENERATED.format(rows=rows))
    (folder / "form.py").write_text(FORM)
    return folder


@pytest.fixture
def folder(run, tmp_path):
    """The exported folder of a run whose plan loops one head."""
    public.export_hf(run, tmp_path / "exported", quiet=True)
    return tmp_path / "exported"


def measured(reference, *options):
    words = [*options, *(["--limit", "6"] if "--limit" not in options else [])]
    words += ["--batch-size", "4"] if "--batch-size" not in options else []
    return hybridlab("eval", reference, *words, cwd=reference.parent)


def theirs(folder, tasks, names, out, template=None, system=None, gen_kwargs=None):
    """The same with lm-eval alone, and its files."""
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(folder), device="cpu", batch_size=4, dtype="float32", trust_remote_code=True)
    tracker = EvaluationTracker(output_path=str(out))
    found = simple_evaluate(
        model=model,
        tasks=names,
        limit=6,
        bootstrap_iters=0,
        evaluation_tracker=tracker,
        system_instruction=system,
        apply_chat_template=template is not None,
        fewshot_as_multiturn=template is not None,
        gen_kwargs=gen_kwargs,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )
    samples = found.pop("samples")
    tracker.save_results_aggregated(found, samples)
    for name, rows in samples.items():
        tracker.save_results_samples(name, rows)


def written(out):
    """The results that lm-eval's own names of files find below a folder, and the samples of each task."""
    files = [str(path) for path in out.rglob("*")]
    (results,), samples = get_results_filenames(files), get_sample_results_filenames(files)
    with open(results, encoding="utf-8") as file:
        found = json.load(file)
    rows = {}
    for path in samples:
        with open(path, encoding="utf-8") as file:
            (name,) = [name for name in found["configs"] if f"samples_{name}_20" in path]
            rows[name] = [json.loads(line) for line in file]
    return found, rows, samples


CASES = {
    "a system instruction": {"system": "Answer in one word."},
    "a chat template": {"template": TEMPLATE},
    "a chat template, which has no system turn": {"template": NO_SYSTEM, "system": "Answer in one word."},
    "other settings of generated texts": {"gen_kwargs": 'max_gen_toks=5,until=["e"]'},
}


def likelihoods(row):
    return [float(value) for value, _ in row.pop("filtered_resps")]


@pytest.mark.parametrize("case", ["plain", *(pytest.param(case, marks=pytest.mark.long) for case in CASES)])
def test_results_and_samples_are_those_of_lm_eval_itself(folder, tasks, tmp_path, case):
    template, system, gen_kwargs = (CASES.get(case, {}).get(name) for name in ("template", "system", "gen_kwargs"))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    names, ours, other = ["my_choice", "my_text"], tmp_path / "ours", tmp_path / "theirs"
    options = ["--tasks", ",".join(names), "--include-path", tasks, "--output-path", ours, "--log-samples"]
    options += ["--apply-chat-template"] * (template is not None)
    options += ["--system-instruction", system] if system else []
    options += ["--gen-kwargs", gen_kwargs] if gen_kwargs else []
    done = measured(folder, *options)
    assert done.returncode == 0, done.stderr
    theirs(folder, tasks, names, other, template, system, parse_gen_kwargs(gen_kwargs))
    (found, samples, paths), (expected, their_samples, _) = written(ours), written(other)
    for name in names:
        metrics = {key: value for key, value in expected["results"][name].items() if "stderr" not in key}
        assert metrics == {key: found["results"][name][key] for key in metrics} and len(metrics) > 3
    for section in ("n-shot", "n-samples", "versions", "task_hashes", "chat_template_sha", "system_instruction_sha"):
        assert found[section] == expected[section], section
    of_tokenizer = {"tokenizer_pad_token", "tokenizer_eos_token", "tokenizer_bos_token", "eot_token_id", "max_length"}
    assert expected.keys() - found.keys() <= (of_tokenizer if template is None else set())
    assert samples.keys() == their_samples.keys() == set(names)
    for name, rows in samples.items():
        assert len(rows) == 6
        for row, same in zip(rows, their_samples[name], strict=True):
            if name == "my_choice":
                row.pop("resps"), same.pop("resps")
                assert likelihoods(row) == pytest.approx(likelihoods(same), abs=1e-3)
            assert row == same
    if template is not None:
        prompt = samples["my_choice"][0]["arguments"]["gen_args_0"]["arg_0"]
        assert prompt.count("<user>") == 2 and "<system>" not in prompt
    assert "my_choice" in make_table(found)
    assert len(datasets.load_dataset("json", data_files=paths[0], split="train", cache_dir=str(tmp_path))) == 6


def test_what_changes_a_result_stands_in_its_name_and_in_the_record(run, tasks, tmp_path):
    (tasks / "piqa.yaml").write_text((tasks / "choice.yaml").read_text().replace("my_choice", "piqa"))
    options = ["--tasks", "piqa,my_tag", "--include-path", tasks, "--max-length", "200"]
    options += ["--system-instruction", "Answer.", "--gen-kwargs", "max_gen_toks=3"]
    try:
        found = json_of(measured(run, *options, "--output-path", tmp_path / "out.json", "--log-samples", "--json"))
    finally:
        (tasks / "piqa.yaml").unlink()
    assert list(found["lm_eval"]) == ["piqa@1+own+system", "my_tag+gen+system"] and found["recorded"]
    recorded = read_record(run / "record.json").results.lm_eval
    assert {"piqa@1+own+system", "my_tag+gen+system"} <= recorded.keys() and "piqa@1" not in recorded
    result = recorded["my_tag+gen+system"]
    assert result.options == {
        "include_path": str(tasks),
        "gen_kwargs": {"max_gen_toks": 3},
        "system_instruction": "Answer.",
    }
    (file,) = found["files"]
    assert result.samples.keys() == {"my_text"} and file.startswith(str(tmp_path / "out_"))
    with open(result.samples["my_text"], encoding="utf-8") as lines:
        assert [json.loads(line)["doc_id"] for line in lines] == list(range(6))


def test_own_tasks_are_read_anew_and_beside_a_data_root(run, tasks, tmp_path):
    root, own = tmp_path / "root", tmp_path / "own"
    root.mkdir()
    shutil.copytree(tasks, own)
    options = ["--tasks", "my_choice", "--include-path", own, "--data-root", root, "--max-length", "200", "--json"]
    assert "my_choice@1" in json_of(measured(run, *options))["lm_eval"]
    changed = (own / "choice.yaml").read_text().replace("num_fewshot: 1", "num_fewshot: 2")
    (own / "choice.yaml").write_text(changed)
    assert "my_choice@2" in json_of(measured(run, *options))["lm_eval"]


def test_a_batch_of_all_that_fit_gives_the_same_results(run, tasks, monkeypatch):
    from hybridlab.models.decoder import Transformer

    options = ["--tasks", "my_choice,my_text", "--include-path", tasks, "--max-length", "200", "--limit", "5", "--json"]
    expected = json_of(measured(run, *options))["lm_eval"]
    forward, sizes = Transformer.forward, []

    def small(self, input_ids, *given, **named):
        sizes.append(len(input_ids))
        if len(input_ids) > 6:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(self, input_ids, *given, **named)

    monkeypatch.setattr(Transformer, "forward", small)
    found = json_of(measured(run, *options, "--batch-size", "auto"))["lm_eval"]
    # 5 questions with 4 options; and 5 texts.
    assert sizes[:3] == [20, 10, 5] and found["my_choice@1"]["batch_size"] == 5
    assert found["my_text"]["metrics"] == expected["my_text"]["metrics"]
    assert found["my_choice@1"]["metrics"] == expected["my_choice@1"]["metrics"]


MISTAKES = {
    "samples without a place": (["--log-samples"], "--log-samples needs a place for the samples; add --output-path"),
    "no such folder of tasks": (["--include-path", "nowhere"], "--include-path nowhere: there is no such folder"),
    "a folder without tasks": (["--include-path", "empty"], "--include-path empty: there is no task in it"),
    "a task that is not there": (["--tasks", "my_chioce"], "did you mean 'my_choice'?"),
    "an unknown setting": (["--gen-kwargs", "num_beams=3"], "--gen-kwargs num_beams: there is no such setting here"),
    "another name of a setting": (["--gen-kwargs", "max_new_tokens=3"], "did you mean 'max_gen_toks'?"),
    "a setting of another kind": (["--gen-kwargs", "top_k=many"], "--gen-kwargs top_k=many: it must be a whole number"),
    "a stop that is no text": (["--gen-kwargs", '{"until": ["a", 3]}'], "it must be a text or a list of texts"),
    "no new tokens": (["--gen-kwargs", "max_gen_toks=0"], "it must be a whole number of 1 or more"),
    "no value": (["--gen-kwargs", "temperature"], "--gen-kwargs temperature: write it as temperature=0.8,"),
    "no JSON": (["--gen-kwargs", "{'a': 1}"], "or as a JSON object"),
    "settings without effect": (
        ["--gen-kwargs", "temperature=0.8"],
        "has no effect: no text is generated in my_choice",
    ),
    "a temperature that is not used": (
        ["--tasks", "my_text", "--gen-kwargs", "temperature=0.8"],
        "--gen-kwargs temperature=0.8 has no effect on my_text",
    ),
    "samples without a temperature": (
        ["--tasks", "my_text", "--gen-kwargs", "do_sample=true"],
        "add a temperature above 0",
    ),
    "a negative temperature": (
        ["--tasks", "my_text", "--gen-kwargs", "do_sample=true,temperature=-1"],
        "temperature -1.0: it must be 0 (greedy) or more",
    ),
    "no chat template": (["--apply-chat-template"], "the tokenizer of this model has no chat template; write one to"),
    "an empty instruction": (["--system-instruction", " "], "--system-instruction: the text is empty"),
    "a batch of no number": (["--batch-size", "many"], "--batch-size many: it must be a whole number of 1 or more, or"),
    "a batch of none": (["--batch-size", "0"], "--batch-size 0: it must be a whole number of 1 or more, or auto"),
    "a place that is a file": (["--output-path", "file/inside"], "--output-path file/inside: it cannot be made"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_in_one_sentence(run, tasks, case):
    (run.parent / "empty").mkdir(exist_ok=True)
    (run.parent / "file").touch()
    options, message = MISTAKES[case]
    given = [*(["--tasks", "my_choice"] if "--tasks" not in options else []), *options]
    given += ["--include-path", tasks] if "--include-path" not in options else []
    done = measured(run, *given)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_options_that_a_suite_or_a_text_does_not_have(run, tasks):
    for options, message in [
        (["--suite", "sgt", "--system-instruction", "x"], "--system-instruction has no effect on --suite sgt"),
        (["--suite", "sgt", "--include-path", tasks], "--include-path has no effect on --suite sgt"),
    ]:
        done = measured(run, *options)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    for option, value in (("--output-path", "out"), ("--num-fewshot", "0")):
        done = hybridlab("eval", run, option, value, cwd=run.parent)
        assert done.returncode == 2 and f"{option} has no effect without --tasks or --suite" in done.stderr


def test_python_has_the_same_options(run, tasks, tmp_path):
    names = {"tasks": ["my_text"], "include_path": tasks, "limit": 3, "batch_size": "auto", "quiet": True}
    settings = {"system_instruction": "Answer.", "gen_kwargs": {"max_gen_toks": 3}, "seq_len": 200}
    found = public.evaluate(run, **names, **settings, output_path=str(tmp_path / "out"), log_samples=True)
    assert found.results["my_text+gen+system"].options["gen_kwargs"] == {"max_gen_toks": 3}
    assert found.files and [*(tmp_path / "out").rglob("samples_my_text_*.jsonl")]
    for wrong, message in [
        ({"tasks": ["my_text"], "apply_chat_template": True, "include_path": tasks}, "has no chat template; write one"),
        ({"log_samples": True}, "log_samples= has no effect without tasks="),
        ({"include_path": tasks}, "include_path= has no effect without tasks="),
        ({"batch_size": 3}, "batch_size= has no effect without tasks="),
    ]:
        with pytest.raises(public.UserError, match=message):
            public.evaluate(run, **wrong)
    with pytest.raises(public.UserError, match="apply_chat_template= has no effect on a model"):
        public.evaluate(public.load_checkpoint(run / "final"), tasks=["my_text"], apply_chat_template=True)


def test_a_broken_task_file_is_named_with_its_line(run, tasks, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: mine\ndoc_to_text: [\n")
    done = measured(run, "--tasks", "mine", "--include-path", tmp_path)
    assert done.returncode == 2 and "mine.yaml:3: this is not YAML" in done.stderr, done.stderr
    (tmp_path / "mine.yaml").write_text("task: mine\ninclude: nothing.yaml\n")
    done = measured(run, "--tasks", "mine", "--include-path", tmp_path)
    assert done.returncode == 2 and "a file that it includes is not there" in done.stderr, done.stderr


def test_answers_of_two_runs_are_paired_by_question(run, tasks, tmp_path):
    from hybridlab.statistics import sign_p

    other = run.parent / "other"
    shutil.copytree(run, other)
    for reference in (run, other):
        options = ["--tasks", "my_choice,my_text", "--include-path", tasks, "--max-length", "200", "--limit", "9"]
        done = measured(reference, *options, "--output-path", tmp_path / "out", "--log-samples")
        assert done.returncode == 0, done.stderr
    files = read_record(other / "record.json").results.lm_eval["my_choice@1"].samples
    # The other run gets all answers right; those of the first question are of another question.
    with open(files["my_choice"], encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    own = [row["acc"] for row in rows]
    rows = [{**row, "acc": 1.0, "doc_hash": row["doc_hash"] if row["doc_id"] else "other"} for row in rows]
    with open(files["my_choice"], "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    done = json_of(hybridlab("runs", "compare", run, other, "--samples", "--json", cwd=run.parent))
    line, *more = [one for one in done["samples"][0] if one["task"] in ("my_choice@1", "my_text")]
    wrong = own[1:].count(0.0)
    assert (line["task"], line["metric"], line["left_out"]) == ("my_choice@1", "acc", 1) and wrong > 0
    assert (line["only_first"], line["only_this"], line["p"]) == (0, wrong, sign_p([False] * wrong))
    assert line["values"] == [pytest.approx(1 - wrong / 8), 1.0] and line["difference"]["n"] == 8
    assert {(one["task"], one["p"]) for one in more} == {("my_choice@1", 1.0), ("my_text", 1.0)}
    shown = hybridlab("runs", "compare", run, other, "--samples", cwd=run.parent).stdout
    assert "answers of other and run" in shown and "answers that only one of both has, left out: 1" in shown
    shutil.rmtree(tmp_path / "out")
    done = hybridlab("runs", "compare", run, other, "--samples", cwd=run.parent)
    assert done.returncode == 2 and "is gone; measure the run again with --log-samples" in done.stderr


def test_runs_without_samples_of_the_same_task_are_not_paired(run, trained):
    done = hybridlab("runs", "compare", run, trained[1] / "parent", "--samples", cwd=run.parent)
    assert done.returncode == 2 and "have no samples of the same task; measure both with" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


def own_task(folder, name, rows, **settings):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "options",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}],
    }
    (folder / f"{name}.yaml").write_text("\n".join(f"{key}: {json.dumps(v)}" for key, v in (task | settings).items()))


def test_mistakes_in_own_tasks_are_named(run, tmp_path):
    good = {"q": "one", "options": ["a", "b"], "label": 0}
    own_task(tmp_path, "my_good", [good])
    own_task(tmp_path, "my_empty", [good, good | {"options": ["", "b"]}])
    own_task(tmp_path, "my_none", [good, good | {"options": []}])
    own_task(tmp_path, "my_split", [good], test_split="validation")
    own_task(tmp_path, "my_shots", [good], fewshot_split="train")
    (tmp_path / "groups.yaml").write_text("group: my_group\ntask: [my_good, {task: my_god}]\n")
    for task, message in {
        "my_empty": "my_empty: example 2 of test: option 1 of 2 is empty; correct or remove this example",
        "my_none": "my_none: example 2 of test: it has no options; correct or remove this example",
        "my_split": "its test_split is 'validation', and its data has only test; write one of these",
        "my_shots": "its fewshot_split is 'train', and its data has only test; write one of these",
        "my_group": "'my_god' is a member of it, and there is no such task; did you mean 'my_good'?",
    }.items():
        with pytest.raises(public.UserError) as wrong:
            public.evaluate(run, tasks=[task], include_path=tmp_path, quiet=True)
        assert message in str(wrong.value), task
    found = public.evaluate(run, tasks=["my_empty"], include_path=tmp_path, limit=1, quiet=True)
    assert found.results["my_empty"].metrics["acc"].n == 1
