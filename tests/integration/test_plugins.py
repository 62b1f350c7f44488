"""Plug-ins that change runs: hooks, controllers, tasks, data sources, and numerics; and their place in the identity."""

import json
import sys

import pytest

import hybridlab
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import identity, resolve, run_hash
from hybridlab.config.structures import final_structure
from hybridlab.data.batches import Batches
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import UserError
from hybridlab.plugins import LOADED, load_plugin
from hybridlab.registry import HOOKS, TASKS
from hybridlab.runs.evaluate import evaluate_run
from hybridlab.runs.generate import Prompt, continue_prompts
from hybridlab.runs.hooks import make_hooks
from hybridlab.runs.queue import run_all
from hybridlab.runs.run import train_run
from hybridlab.training.engine import Run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.conftest import run_python
from tests.integration.test_cli import hybridlab as command
from tests.plugins import COPYING, LEAVE_OUT, POEMS, SCALED, SHRINK, fresh_plugins


@pytest.fixture(autouse=True)
def fresh():
    with fresh_plugins():
        yield


@pytest.fixture
def load(tmp_path):
    """A function: name and text of a plug-in → its path, after it is written and loaded."""

    def write_and_load(name, text):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        load_plugin(path)
        return path

    return write_and_load


def train(config, runs, name):
    """The record of a run in runs/NAME."""
    return train_run(config, RunFolder(runs / name), Runs(runs))


def loss_again(folder, runs):
    return evaluate_run(str(folder), runs, None, []).validation.loss.value


def loss(record):
    return record.results.validation.loss.value


# ---- what plug-ins can add ----


def test_a_hook_by_plug_in_acts_and_is_part_of_the_run(small, runs, load):
    plain = train(small(), runs, "plain")
    load("shrink", SHRINK)
    hooked = small(settings=["hooks=[{kind: shrink, factor: 0.8}]"])
    record = train(hooked, runs, "hooked")
    assert loss(record) != loss(plain) and record.hooks["shrink"] == {"steps": 12}
    assert record.config["hooks"] == [{"kind": "shrink", "factor": 0.8, "every": 1}]
    assert len({record.hash, plain.hash, run_hash(small(settings=["hooks=[{kind: shrink, factor: 0.7}]"]))}) == 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_hook_that_raises_fails_its_run_in_a_queue_with_the_line_of_its_file(small, runs, tmp_path, load, jobs):
    load("shrink", SHRINK.replace("self.steps += 1", "self.steps += {}[step]"))
    config = small(settings=["hooks=[{kind: shrink}]"])
    outcome = run_all({run_hash(config): ("hooked", config)}, runs, tmp_path / "results", jobs)
    assert outcome.failed["hooked"].startswith("Shrink.after_step (")
    assert "shrink.py:14) raised KeyError: 0" in outcome.failed["hooked"]


def test_a_run_with_a_hook_is_resumed_with_its_state(small, runs, load, monkeypatch):
    load("shrink", SHRINK)
    config = small(settings=["hooks=[{kind: shrink}]"])
    whole = train(config, runs, "whole")
    take_step = Run.take_step

    def killed(run):
        if run.step == 6:
            raise RuntimeError("killed")
        return take_step(run)

    monkeypatch.setattr(Run, "take_step", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train(config, runs, "cut")
    monkeypatch.setattr(Run, "take_step", take_step)
    resumed = train(config, runs, "cut")
    assert resumed.redone_steps and loss(resumed) == loss(whole) and resumed.hooks["shrink"] == {"steps": 12}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[{kind: shrink, facter: 0.5}]", r"--set hooks=.*: hooks.0.facter is not a known setting; did you mean 'f"),
        ("[{kind: shrink, factor: much}]", "hooks.0.factor = 'much': must be a number"),
        ("[{kind: shrnk}]", "hooks.0.kind 'shrnk' is unknown; did you mean 'shrink'"),
        ("[{factor: 0.5}]", "hooks.0 needs `kind`"),
        ("[shrink]", "hooks.0 = 'shrink': must be a mapping"),
        ("shrink", "hooks = 'shrink': must be a list"),
    ],
)
def test_a_wrong_hook_is_one_sentence(small, load, written, message):
    load("shrink", SHRINK)
    with pytest.raises(UserError, match=message):
        small(settings=[f"hooks={written}"])


def test_a_hook_without_its_plug_in(small):
    with pytest.raises(UserError, match="hook 'shrink' is not loaded; load its plug-in with --plugin FILE.py"):
        small(settings=["hooks=[{kind: shrink}]"])


def test_two_hooks_of_one_name_are_refused(small, runs, load):
    load("shrink", SHRINK)
    with pytest.raises(UserError, match="two hooks are called 'shrink'"):
        train(small(settings=["hooks=[{kind: shrink}, {kind: shrink}]"]), runs, "twice")


def test_settings_can_be_a_model_with_checks(small, load):
    load(
        "bounded",
        "from pydantic import BaseModel, Field\nfrom hybridlab import Hook, register_hook\n"
        "class Bounded(BaseModel):\n    share: float = Field(0.5, gt=0, le=1)\n"
        "@register_hook('bounded', Bounded)\ndef make(settings):\n"
        "    hook = Hook()\n    hook.share = settings.share\n    return hook\n",
    )
    assert small(settings=["hooks=[{kind: bounded, share: 0.25}]"]).hooks[0].share == 0.25
    with pytest.raises(UserError, match="hooks.0.share = 2: must be less than or equal to 1"):
        small(settings=["hooks=[{kind: bounded, share: 2}]"])
    with pytest.raises(UserError, match="hooks.0.shar is not a known setting; did you mean 'share'"):
        small(settings=["hooks=[{kind: bounded, shar: 0.2}]"])


def test_a_controller_by_plug_in_changes_the_structure(small, runs, load):
    load("leave_out", LEAVE_OUT)
    config = small(controller={"kind": "leave-out", "layer": 1, "after_step": 6})
    assert str(final_structure(config).plan) == "L1 → L3"
    record = train(config, runs, "left")
    assert record.model.plan == "L1 → L3" and [event["kind"] for event in record.events] == ["left-out"]
    with pytest.raises(UserError, match="controller.layr is not a known setting; did you mean 'layer'"):
        small(controller={"kind": "leave-out", "layr": 1, "after_step": 6})
    with pytest.raises(UserError, match="controller.kind 'leave-aut' is unknown; did you mean 'leave-out'"):
        small(controller={"kind": "leave-aut"})


def test_a_task_by_plug_in_is_mixed_in_and_measured(small, runs, load):
    load("copying", COPYING)
    config = small(settings=["data.mix={text: 0.5, copying: 0.5}", "shape.vocab=265"])
    record = train(config, runs, "copying")
    measured = record.results.tasks["copying"]
    assert measured.chance == 1 / 8 and measured.all.n == 8 * 16 and list(record.results.tasks) == ["copying"]
    assert record.config["data"]["mix"] == {
        "text": 0.5,
        "retrieval": 0.0,
        "assignment": 0.0,
        "chain": None,
        "copying": 0.5,
    }
    with pytest.raises(UserError, match="data.mix.copyin is not a known setting; did you mean 'copying'"):
        small(settings=["data.mix={text: 0.5, copyin: 0.5}"])
    with pytest.raises(UserError, match="add up to 1.2"):
        small(settings=["data.mix={text: 0.5, copying: 0.7}"])
    with pytest.raises(UserError, match="data.mix.copying = 'half': must be a number"):
        small(settings=["data.mix={text: 0.5, copying: half}"])


def test_ids_of_tasks_do_not_overlap(small, runs, load):
    load("copying", COPYING)
    config = small(settings=["data.mix={text: 0.25, retrieval: 0.25, assignment: 0.25, copying: 0.25}"])
    corpus = corpus_for(config.data, runs / "data")
    tokens = Batches(corpus, config.data, config.training, 400).rows(0).tokens
    per_task, vocab = tokens.reshape(4, -1), corpus.vocab
    assert per_task[0].max() < vocab <= per_task[1].min() and per_task[2].max() < vocab + 128 <= per_task[3].min()


def test_a_bad_row_of_a_task_is_refused(small, runs, load):
    load("copying", COPYING.replace("ids=8", "ids=4"))
    with pytest.raises(UserError, match="task 'copying': its row must have 32 tokens from 0 to 3"):
        train(small(settings=["data.mix={text: 0.5, copying: 0.5}"]), runs, "bad")


def test_a_source_by_plug_in(tmp_path, small, runs, load):
    path = load("poems", POEMS)
    config = small(data={"source": "poems:Ann", "tokenizer": "byte"})
    assert config.data.source == "poems:Ann"
    corpus = corpus_for(config.data, runs / "data")
    assert corpus.meta["documents"] == 400 and "Ann number 1 " in corpus.tokenizer.decode(corpus.train[0][:40].tolist())
    with pytest.raises(UserError, match="nobody has no poems"):
        corpus_for(small(data={"source": "poems:nobody"}).data, tmp_path)
    with pytest.raises(UserError, match="write it as poems:SUBJECT"):
        corpus_for(small(data={"source": "poems"}).data, tmp_path)
    done = command("--plugin", path, "pretrain", "--data", "poem:Ann", cwd=tmp_path)
    assert done.returncode == 2 and "did you mean 'poems'" in done.stderr


def test_another_version_of_a_source_is_prepared_again(small, runs, load, tmp_path):
    load("poems", POEMS)
    first = corpus_for(small(data={"source": "poems:Ann"}).data, runs / "data")
    with fresh_plugins():
        load("poems", POEMS.replace("hills", "fields"))
        second = corpus_for(small(data={"source": "poems:Ann"}).data, runs / "data")
    assert first.fingerprint != second.fingerprint


# ---- identity ----


@pytest.mark.long
def test_a_changed_plug_in_is_another_run(small, runs, tmp_path):
    """It registers nothing, and changes every step: --plugin of two versions gives two runs."""
    plain = small()
    losses, hashes = {loss(train(plain, runs, "plain"))}, {run_hash(plain)}
    path = tmp_path / "scaled.py"
    for factor in ("0.9", "0.8"):
        path.write_text(SCALED.replace("0.9", factor))
        with fresh_plugins():
            load_plugin(path)
            config = small()
            assert list(identity(config)["plugins"]) == ["scaled"]
            losses.add(loss(train(config, runs, run_hash(config))))
            hashes.add(run_hash(config))
    assert len(losses) == len(hashes) == 3


def test_a_run_needs_its_plug_in_in_the_same_version(small, runs, tmp_path, load):
    path = load("shrink", SHRINK)
    config = small(settings=["hooks=[{kind: shrink}]"])
    record = train(config, runs, "hooked")
    store = Runs(runs)
    assert loss_again(runs / "hooked", store) == loss(record)
    asked = [
        lambda: loss_again(runs / "hooked", store),
        lambda: list(continue_prompts(str(runs / "hooked"), store, [Prompt("the", "test")], 3, 1)),
        lambda: hybridlab.load_checkpoint(runs / "hooked"),
        lambda: train(small(), runs, "hooked"),
        lambda: store.finished(record.hash).config(),
    ]
    with fresh_plugins():
        for ask in asked:
            with pytest.raises(
                UserError, match=f"trained with the plug-in shrink .version .*hybridlab --plugin {path}"
            ):
                ask()
    with fresh_plugins():
        load("shrink", SHRINK + "# another version\n")
        for ask in asked[:4]:
            with pytest.raises(UserError, match="trained with version .* of the plug-in shrink, but .* is of version"):
                ask()
        assert store.finished(record.hash).config().hooks[0].kind == "shrink"  # a child may start from it


def test_plug_ins_that_cannot_change_a_run_do_not_count(small, load):
    kind = "from hybridlab.lab.reporting.figure_kind import FigureKind\nfrom hybridlab.registry import FIGURE_KINDS\n"
    load("figures", f"{kind}FIGURE_KINDS.add('mine', FigureKind(print, print, print))\n")
    probe = "from hybridlab.analysis.probe import Probe\nfrom hybridlab.registry import PROBES\n"
    load("probes", f"{probe}PROBES.add('mine', Probe(print, print))\n")
    assert small().plugins is None and run_hash(small()) == run_hash(small(settings=["plugins=null"]))
    assert list(small(settings=["evaluation.probes=[mine]"]).plugins) == ["probes"]


@pytest.mark.long
def test_what_a_plug_in_imports_from_hybridlab_is_built_in(tmp_path):
    """The first import of modules of hybridlab registers kinds, which are not the plug-in's."""
    (tmp_path / "first.py").write_text("import hybridlab.runs.hooks, hybridlab.analysis.probes.last_token\n")
    code = "import hybridlab; hybridlab.load_plugin('first.py'); print(hybridlab.plugins.LOADED['first'].items)"
    assert run_python(code, cwd=tmp_path).strip() == "{}"


def entry_point(folder, module, version):
    """An installed distribution in a folder on sys.path that declares a plug-in."""
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[hybridlab.plugins]\nmine = {module}\n")
    (info / "RECORD").write_text(f"{module}.py,,\n")
    return info


def test_an_installed_plug_in_counts_where_it_is_used(small, runs, tmp_path, monkeypatch):
    (tmp_path / "own_shrink.py").write_text(SHRINK)
    info = entry_point(tmp_path, "own_shrink", "1.5")
    monkeypatch.syspath_prepend(tmp_path)
    settings = ["hooks=[{kind: shrink}]"]
    assert small().plugins is None
    used = small(settings=settings)
    assert used.plugins == {"own_shrink": "1.5"} and small().plugins is None
    record = train(used, runs, "used")
    with fresh_plugins():
        assert loss_again(runs / "used", Runs(runs)) == loss(record)
    with fresh_plugins():
        load_plugin("own_shrink")  # as --plugin: it may act on every run
        assert small().plugins == {"own_shrink": "1.5"}
    info.rename(tmp_path / "own_shrink-1.6.dist-info")
    (tmp_path / "own_shrink-1.6.dist-info" / "METADATA").write_text("Name: own_shrink\nVersion: 1.6\n")
    with fresh_plugins():
        assert small(settings=settings).plugins == {"own_shrink": "1.6"}
        assert run_hash(small(settings=settings)) != run_hash(used)
        with pytest.raises(UserError, match="version 1.5 of the plug-in own_shrink, but own_shrink is of version 1.6"):
            loss_again(runs / "used", Runs(runs))


def test_a_module_without_a_distribution_has_a_digest(tmp_path, monkeypatch):
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text("from own_package import helper\n")
    (package / "helper.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    versions = []
    for text in ("x = 1\n", "x = 2\n"):
        (package / "helper.py").write_text(text)
        with fresh_plugins():
            load_plugin("own_package.mine")
            versions.append(LOADED["own_package.mine"].version)
    assert len(versions[0]) == 12 and versions[0] != versions[1]


def test_settings_that_name_plug_ins_ask_for_them(small, load):
    load("shrink", SHRINK)
    config = small(settings=["hooks=[{kind: shrink}]"])
    written = json.dumps(config.plugins)
    assert small(settings=["hooks=[{kind: shrink}]", f"plugins={written}"]) == config
    with pytest.raises(
        UserError, match="plugins: these settings are of a run with shrink 1.0, and loaded here: shrink"
    ):
        small(settings=["plugins={shrink: '1.0'}"])


def test_loading_twice(tmp_path, load):
    path = load("shrink", SHRINK)
    load_plugin(path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "shrink.py").write_text(SHRINK)
    with pytest.raises(UserError, match="is loaded under the same name, shrink; rename one of them"):
        load_plugin(other / "shrink.py")
    path.write_text(SHRINK + "\n")
    with pytest.raises(UserError, match="has changed since it was loaded; start a new Python process"):
        load_plugin(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_this\n", "cannot be imported .ModuleNotFoundError"),
        (
            "from hybridlab import register_controller\n@register_controller('x')\ndef make(check: int): ...\n",
            "controller 'x': a setting cannot be called check, as Method.check is; rename it",
        ),
        (
            "from hybridlab import Method, register_controller\n@register_controller('x')\n"
            "class X(Method):\n    kind: str\n",
            "controller 'x': its settings X need the field kind: Literal",
        ),
        (
            "from hybridlab import register_hook\n@register_hook('x')\ndef make(strength): ...\n",
            "give its setting stre",
        ),
        ("from hybridlab import register_hook\n@register_hook('x')\ndef make(*all): ...\n", "write out its settings"),
    ],
)
def test_a_broken_plug_in_is_one_sentence(load, text, message):
    with pytest.raises(UserError, match=message):
        load("broken", text)
    assert "broken" not in LOADED


def test_a_corrected_plug_in_is_loaded_in_the_same_process(load):
    """As in a notebook: what a failed import has registered is gone, and does not stand in the way."""
    with pytest.raises(UserError, match="cannot be imported .ZeroDivisionError"):
        load("shrink", f"{SHRINK}\n1 / 0\n")
    assert "shrink" not in HOOKS and not HOOKS.plugins and "shrink" not in LOADED
    load("shrink", SHRINK)
    assert HOOKS.plugins["shrink"] is LOADED["shrink"] and resolve("vanilla", "tiny").plugins.keys() == {"shrink"}


def test_a_corrected_plug_in_registers_what_its_other_modules_do(tmp_path, monkeypatch, load):
    """They are imported again, though their own import did not fail."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hooks.py").write_text(SHRINK)
    (package / "all.py").write_text("from own_package import hooks\n")
    (package / "mine.py").write_text("from own_package import all\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with pytest.raises(UserError, match="own_package.mine: it cannot be imported .ZeroDivisionError"):
        load_plugin("own_package.mine")
    (package / "mine.py").write_text("from own_package import all\n")
    load_plugin("own_package.mine")
    assert HOOKS.plugins["shrink"] is LOADED["own_package.mine"]


def test_what_was_there_before_a_plug_in_stays_if_it_fails(load):
    load("copying", COPYING)
    again = "from hybridlab.data.tasks import TASKS\nTASKS.add('copying', TASKS.get('copying'))\n1 / 0\n"
    with pytest.raises(UserError, match="cannot be imported .ZeroDivisionError"):
        load("again", again)
    assert "copying" in TASKS


def test_a_plug_in_that_ends_the_program_is_an_error(tmp_path):
    (tmp_path / "ends.py").write_text("import sys\nsys.exit()\n")
    done = command("--plugin", "ends.py", "list", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "error: --plugin ends.py: it cannot be imported (SystemExit: )\n"


def test_a_file_that_a_plug_in_lacks_is_not_the_plug_in(tmp_path, load):
    with pytest.raises(UserError, match=r"cannot be imported \(FileNotFoundError: .*notes.txt"):
        load("reads", "open('nowhere/notes.txt')\n")
    with pytest.raises(UserError, match="nothing.py: there is no such file"):
        load_plugin(tmp_path / "nothing.py")


def test_tasks_have_one_order_however_they_are_written(load):
    load("copying", COPYING)
    written = resolve("vanilla", "tiny", settings=["data.mix={copying: 0.3, assignment: 0.3, retrieval: 0.4, text: 0}"])
    assert list(written.data.mix.tasks) == ["retrieval", "assignment", "copying"]


def test_a_broken_installed_plug_in_stops_only_what_may_need_it(tmp_path, monkeypatch):
    """Installed plug-ins are imported when a name is not built in; lists and help need none of them."""
    (tmp_path / "own_bad.py").write_text("import nothing_like_this\n")
    entry_point(tmp_path, "own_bad", "1.0")
    monkeypatch.syspath_prepend(tmp_path)
    for words in (
        ["list", "consa-fig1"],
        ["plan", "--arch", "rule-swa"],
        ["analyze", "--help"],
        ["report", "consa-table4"],
    ):
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = command("analyze", "run", "--probe", "confidence", cwd=tmp_path)
    assert done.returncode == 2 and "plug-in mine (own_bad): it cannot be imported" in done.stderr


def test_a_method_without_a_hook_says_so(load):
    load(
        "nothing",
        "from typing import Literal\nfrom hybridlab import Method, register_controller\n"
        "@register_controller('nothing')\nclass Nothing(Method):\n    kind: Literal['nothing']\n",
    )
    config = resolve("vanilla", "tiny", layers=[Layer({"controller": {"kind": "nothing"}})])
    with pytest.raises(UserError, match=r"nothing: Nothing makes no hook; define hook\(config\)"):
        make_hooks(config)
