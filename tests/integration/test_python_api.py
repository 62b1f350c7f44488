"""hybridlab in Python: every public name is documented, and training, evaluating and saving work as in a notebook."""

import inspect
import threading

import pytest
import torch

import hybridlab
from hybridlab.cli.options import RUNS
from tests.conftest import ROOT, SMALL_SHAPE, run_python
from tests.integration.test_cli import hybridlab as command
from tests.plugins import fresh_plugins

SETTINGS = {
    "shape": SMALL_SHAPE,
    "training": {"tokens_per_step": 256, "seq_len": 32, "schedule.warmup_steps": 2},
    "data.tokenizer": "byte",
    "evaluation.validation_windows": 8,
}
EXAMPLE = """
import torch, hybridlab


class Shrink(hybridlab.Hook):
    name, version = "shrink", "1"

    def after_step(self, run, step):
        with torch.no_grad():
            for tensor in run.tensors().values():
                tensor.mul_(0.999)
        return {}


settings = {"shape.layers": 2, "training.tokens_per_step": 512, "training.seq_len": 64, "data.max_documents": 40}
settings |= {"evaluation.validation_windows": 4, "data.tokenizer": "byte"}
run = hybridlab.train("all-window", steps=2, settings=settings, hooks=[Shrink()], quiet=True)
hybridlab.save(run.model().with_plan(run.model().plan.skip(1)), "shorter")
shorter = hybridlab.load_checkpoint("shorter")
print(run.results.validation.loss.n, shorter.plan, run.record.config["hooks"][0]["name"])
print(hybridlab.evaluate(run, quiet=True) == run.results, hybridlab.flops(shorter, 8).forward > 0)
"""
"""What a user does first."""


def example(name):
    """The lines of a public name's docstring that are indented: its example."""
    text = inspect.getdoc(getattr(hybridlab, name)) or ""
    return [line.strip() for line in text.splitlines() if line.startswith("    ") and "hybridlab." in line]


@pytest.mark.parametrize("name", hybridlab.__all__)
def test_every_public_name_is_documented(name):
    item = getattr(hybridlab, name)
    text = item.__doc__ or ""
    assert text and len(text) > 80 and text != type(item).__doc__
    for parameter in inspect.signature(item).parameters if inspect.isfunction(item) else ():
        assert parameter in text or parameter.rstrip("s") in text, f"{name}: {parameter} is not explained"
    assert example(name) or name in ("Interrupted", "RunFailed") and "hybridlab." in text, f"{name} has no example"


@pytest.mark.parametrize("name", ["AttentionMap", "Loop", "Plan", "Visit", "build_model", "flops"])
def test_examples_without_training_run(name):
    for line in example(name):
        exec(line, {"hybridlab": hybridlab, "torch": torch})


def test_the_first_example_runs_in_a_new_process(tmp_path):
    printed = run_python(EXAMPLE, cwd=tmp_path).splitlines()
    assert printed == ["4 L1 shrink", "True True"]
    assert not list(tmp_path.glob("*.json")) and {path.name for path in tmp_path.iterdir()} == {"runs", "shorter"}


@pytest.fixture
def train(tmp_path, text_file, runs):
    """`hybridlab.train` on a small model."""

    def small(arch="vanilla", steps=4, settings=None, **arguments):
        arguments = {"data": f"text:{text_file}", "runs_dir": runs, "quiet": True, **arguments}
        return hybridlab.train(arch, steps=steps, settings={**SETTINGS, **(settings or {})}, **arguments)

    return small


class Count(hybridlab.Hook):
    """Counts its steps."""

    name, version = "count", "1"

    def __init__(self):
        self.steps = 0

    def after_step(self, run, step):
        self.steps += 1
        return {}

    def finish(self, run):
        return {"steps": self.steps}


def test_a_run_is_that_of_the_command(tmp_path, train, runs, text_file, capsys):
    run = train()
    assert capsys.readouterr() == ("", "")
    words = ["pretrain", "--data", f"text:{text_file}", "--steps", 4, "--runs-dir", runs]
    for key, value in {**SETTINGS, "training": {"tokens_per_step": 256, "seq_len": 32}}.items():
        words += ["--set", f"{key}={str(value).replace(chr(39), '')}"]
    done = command(*words, "--set", "training.schedule.warmup_steps=2", cwd=tmp_path)
    assert done.returncode == 0 and "finished before, nothing to do" in done.stderr and run.hash in done.stdout
    assert run.path == runs / run.hash and run.config.training.steps == 4


def test_hooks_of_a_program_act_and_enter_the_hash(train):
    plain, counted = train(), train(hooks=[Count()])
    assert counted.record.hooks == {"count": {"steps": 4}} and counted.hash != plain.hash
    later = Count()
    later.version = "2"
    assert train(hooks=[later]).hash != counted.hash
    again = Count()
    assert train(hooks=[again]).hash == counted.hash and again.steps == 0, "a finished run is not trained again"


def test_a_run_with_a_hook_is_measured_without_it_and_resumed_with_it(train, runs):
    run = train(hooks=[Count()])
    assert hybridlab.evaluate(run, quiet=True).validation == run.results.validation
    with pytest.raises(hybridlab.UserError, match="'count' is a hook of a Python program; pass it again"):
        train(settings={"hooks": [{"kind": "python", "name": "count", "version": "3"}]})


def test_a_child_starts_from_a_run(train):
    run = train(name="first", tags=["small"])
    child = train(start="first", steps=2)
    assert train(start=run, steps=2).hash == child.hash
    assert child.record.parents == [run.hash] and child.hash != run.hash


def test_training_outside_the_main_thread(train):
    """As in a notebook or a server: no signal handlers, no exit."""
    found = []
    thread = threading.Thread(target=lambda: found.append(train()))
    thread.start()
    thread.join()
    assert found[0].results.validation.loss.n == 8


def test_a_model_without_a_run_is_measured(train, tmp_path, text_file, runs):
    run = train()
    folder = hybridlab.save(run.model(), tmp_path / "saved", run.path / "final" / "tokenizer.json")
    model = hybridlab.load_checkpoint(folder)
    assert all(torch.equal(a, b) for a, b in zip(run.model().parameters(), model.parameters(), strict=True))
    arguments = {"seq_len": 32, "runs_dir": runs, "quiet": True, "settings": {"evaluation.validation_windows": 8}}
    found = hybridlab.evaluate(model, f"text:{text_file}", tokenizer=f"file:{folder}/tokenizer.json", **arguments)
    assert found.validation.loss.n == 8 and abs(found.validation.loss.value - run.results.validation.loss.value) < 0.5
    hybridlab.save(model, folder)
    assert not (folder / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hybridlab.build_model("vanilla", window=3), "build_model: window has no effect on a map of kind full"),
        (lambda: hybridlab.flops("vanilla", 8, window=3), "flops: window has no effect on a map of kind full"),
        (lambda: hybridlab.flops(hybridlab.build_model("vanilla"), 8, window=3), "window has no effect on a model"),
        (lambda: hybridlab.train("vanila"), "did you mean 'vanilla'"),
        (lambda: hybridlab.train(settings={"training.stepz": 3}), "settings: training.stepz .* did you mean 'steps'"),
        (lambda: hybridlab.train(settings={"training": 3, "training.steps": 3}), "settings: training is given twice"),
        (
            lambda: hybridlab.train(settings={"training.steps": 3, "training": {"steps": 3}}),
            "settings: training.steps is given twice; leave one of the two out",
        ),
        (lambda: hybridlab.train(steps=3, settings={"training": {"steps": 4}}), "steps= gives training.steps too"),
        (lambda: hybridlab.train(steps=3, settings={"training": 4}), "steps= gives training.steps too"),
        (lambda: hybridlab.train(seed=3, settings={"training.seed": 3}), "seed= gives training.seed too"),
        (lambda: hybridlab.train(data="embedded", settings={"data.sources": []}), "data= gives data.sources too"),
        (lambda: hybridlab.train(data="embedded", settings={"data": 3}), "settings: data = 3: must be a mapping"),
        (lambda: hybridlab.train(start="x", settings={"init": {"run": "y"}}), "start= gives init.run too"),
        (
            lambda: hybridlab.finetune("x", "sst2", lr=1e-4, settings={"training.optimizer": {"lr": 1e-3}}),
            "settings: lr= gives training.optimizer.lr too; leave one of the two out",
        ),
        (lambda: hybridlab.finetune("x", "sst2", lora_rank=2, settings={"finetune.lora.rank": 2}), "lora_rank= gives"),
        (
            lambda: hybridlab.finetune("x", "sst2", data=".", settings={"finetune.data": "a.tsv"}),
            "data= gives f",
        ),
        # Other settings of the same sections are fine, so that the next mistake is told.
        (
            lambda: hybridlab.finetune("nowhere", "sst2", lr=1e-4, settings={"finetune.batch": 4, "training.seed": 2}),
            "neither a run folder",
        ),
        (lambda: hybridlab.train(settings={"window": 3}), "settings: window has no effect"),
        (lambda: hybridlab.train(steps=0), "steps=: training.steps = 0"),
        (lambda: hybridlab.train("consa"), "learns the masks of a trained model; give that run as start="),
        (lambda: hybridlab.train(hooks=[hybridlab.Hook()]), "Hook has no name"),
        (lambda: hybridlab.train(hooks=[type("Mine", (hybridlab.Hook,), {"name": "m"})()]), "Mine has no version"),
        (lambda: hybridlab.train(hooks=["shrink"]), "'shrink' is not a Hook"),
        (lambda: hybridlab.evaluate("nowhere"), "neither a run folder"),
        (lambda: hybridlab.evaluate(hybridlab.build_model("vanilla")), "a model needs data= and seq_len="),
        (lambda: hybridlab.evaluate(hybridlab.build_model("vanilla"), "embedded", seq_len=8), "give the tokenizer"),
        (lambda: hybridlab.evaluate("runs/x", seq_len=8), "seq_len= has no effect on a run"),
    ],
)
def test_a_mistake_is_one_sentence(call, message):
    with pytest.raises(hybridlab.UserError, match=message):
        call()
    assert not RUNS.exists() or RUNS.is_dir()


def test_a_model_is_not_saved_over_something_else(train, tmp_path):
    run = train()
    with pytest.raises(hybridlab.UserError, match="cannot be read as a tokenizer.json"):
        hybridlab.save(run.model(), tmp_path / "new", run.path)
    assert not (tmp_path / "new").exists()
    (tmp_path / "notes.txt").write_text("mine")
    for folder, message in ((run.path / "final", "folder of a run"), (tmp_path, "something else")):
        with pytest.raises(hybridlab.UserError, match=message):
            hybridlab.save(run.model(), folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", '{"model_type": "llama"}'), ("config.json", "[1"), ("tokenizer.json", "{}")],
)
def test_a_model_of_others_or_a_tokenizer_is_not_replaced(tmp_path, name, content):
    """Though their files are called as those of a saved model. An empty folder, and an earlier save, are fine."""
    model, folder = hybridlab.build_model("vanilla", shape=SMALL_SHAPE), tmp_path / "model"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(hybridlab.UserError, match="holds something else than a saved model; choose another folder"):
        hybridlab.save(model, folder)
    assert (folder / name).read_text() == content
    (folder / name).unlink()
    for _ in range(2):
        hybridlab.save(model, folder)
    assert hybridlab.load_checkpoint(folder).plan == model.plan


def test_items_without_a_plug_in_are_not_trained_with(train):
    """A kind that a program registers has no version, so that a run's hash could not tell a changed one."""
    from dataclasses import dataclass

    from hybridlab.attention.kinds import AttentionKind
    from hybridlab.attention.registry import register_kind

    with fresh_plugins():

        @register_kind
        @dataclass(frozen=True)
        class Mine(AttentionKind):
            name, letter, colour = "mine", "i", "#000000"

        assert hybridlab.build_model("vanilla", map={"kind": "uniform", "attention": {"kind": "mine"}})
        with pytest.raises(hybridlab.UserError, match="attention kind 'mine' was registered outside a plug-in"):
            train(settings={"map": {"kind": "uniform", "attention": {"kind": "mine"}}})


def test_types_are_shipped():
    assert (ROOT / "hybridlab" / "py.typed").is_file()
    done = run_python("import hybridlab; print(sorted(set(hybridlab.__all__) - set(dir(hybridlab))))")
    assert done.strip() == "[]"
