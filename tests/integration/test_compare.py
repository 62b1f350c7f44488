"""`hybridlab compare`: arms beside a baseline at equal cost, their search, their verdicts, and what is refused."""

import json

import pytest
import yaml

import hybridlab as package
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import RunFailed, UserError
from hybridlab.files import read_object
from hybridlab.lab.papers import compare
from hybridlab.lab.papers.compare import SCALE, CompareRequest, defined, tuned
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale
from hybridlab.lab.papers.sweep import sweep_runs
from hybridlab.lab.papers.verdicts import verdicts
from hybridlab.lab.reporting.table import build_table
from hybridlab.models.ledger.flops import ledger
from hybridlab.models.ledger.summary import training_flops
from hybridlab.plan.structure import Structure
from hybridlab.runs.queue import Outcome
from hybridlab.runs.record import Record, save_record
from hybridlab.training.engine import Run
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.experiments import cell_configs
from tests.integration.test_cli import hybridlab, json_of
from tests.unit.verdicts.building import record

LOSS, PERPLEXITY = "results.validation.loss", "results.validation.perplexity"
COMMON = ["--size", "./small.yaml", "--data", "text:words.txt", "--jobs", "1"]
NO_SEARCH = [*COMMON, "--sweep", "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, a size, a file of settings, and the runs of one comparison."""
    folder = tmp_path_factory.mktemp("compared")
    write_text(folder / "words.txt")
    size = {
        "shape": {**SMALL_SHAPE, "layers": 4},
        "window": 4,
        "growth": {"start_step": 2, "interval": 2, "fade_steps": 2, "block": 2},
        "data": {"tokenizer": "byte"},
        "training": {**SMALL_TRAINING, "steps": 8, "optimizer": {"lr": 0.01}},
        "evaluation": {"validation_windows": 8},
        "runtime": {"threads": 1},
    }
    (folder / "small.yaml").write_text(json.dumps(size))
    (folder / "wide.yaml").write_text("map: {kind: window, window: 6}\n")
    (folder / "mine.yaml").write_text("arch: rule-swa\nmap: {rho: 0.25}\ntraining: {clip: 0.5}\n")
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def compared(*arguments, cwd, common=NO_SEARCH):
    return json_of(hybridlab("compare", *arguments, *common, "--json", cwd=cwd))


def asked(*arms, **changes):
    return CompareRequest(arms, **{"size": "./small.yaml", "data": ["text:words.txt"], "seeds": (0, 1, 2), **changes})


def configs_of(*arms, results="results", **changes):
    return cell_configs(defined(asked(*arms, **changes), results).experiment, SCALE, 0)


def decided(data):
    """What must be the same wherever it is made; minutes depend on the machine."""
    claims = [(one["text"], one["verdict"], one["flags"], one["comparisons"]) for one in data["claims"]]
    return data["id"], data["rows"], data["runs"], data["notes"], claims


def records_below(folder):
    return [Record(**read_object(path, "record")) for path in (folder / "records").iterdir()]


# ---- what is trained, and what it says ----


def test_two_names_of_one_arm_are_the_same_runs_and_decide_nothing(folder):
    data = compared("a=vanilla", "b=vanilla", "--seeds", "3", cwd=folder)
    planned = hybridlab("compare", "a=vanilla", "b=vanilla", *COMMON, "--dry-run", cwd=folder)
    assert "b has the settings of a: their runs are the same, and nothing is decided" in planned.stderr
    assert data["runs"]["a"] == data["runs"]["b"] and len(set(data["runs"]["a"].values())) == 3
    (claim,) = data["claims"]
    assert (claim["text"], claim["verdict"]) == ("b is better than a (loss)", "open")
    assert claim["comparisons"][0]["value"] == 0 and claim["comparisons"][0]["n"] == 3
    assert data["rows"][1]["cells"]["loss"]["difference"]["value"] == 0


def test_an_arm_that_is_made_worse_fails_and_the_file_repeats_it(folder):
    worse = ["vanilla", "worse=vanilla", "--set", "worse:training.optimizer.lr=1e-6", "--seeds", "3", "--steps", "9"]
    shown = hybridlab("compare", *worse, *NO_SEARCH, "--save", "saved.yaml", cwd=folder)
    assert shown.returncode == 0 and "1  fails: worse than claimed" in shown.stdout
    assert "paired by seed, with its 95 % t-interval" in " ".join(shown.stdout.split())
    assert "cannot speak of" not in shown.stdout and "paper" not in shown.stdout
    data = compared(*worse, cwd=folder)
    assert data["differ"] == {"training.optimizer.lr": {"worse": 1e-6, "vanilla": 0.01}}
    path = folder / "results" / data["id"] / SCALE
    assert {one.name for one in path.iterdir()} == {"table.json", "table.md", "claims.png"}
    page = (path / "table.md").read_text()
    again = hybridlab("reproduce", "saved.yaml", "--jobs", "1", "--json", cwd=folder)
    assert json_of(again) == data and "finished before" in again.stderr
    assert json_of(hybridlab("report", data["id"], "--json", cwd=folder)) == data
    assert (path / "table.md").read_text() == page
    # The same from nothing: the same runs in another place.
    places = ["--runs-dir", "others", "--results-dir", "others/results"]
    elsewhere = json_of(hybridlab("reproduce", "saved.yaml", "--jobs", "1", "--json", *places, cwd=folder))
    assert decided(elsewhere) == decided(data)


def test_what_is_interrupted_goes_on_with_the_same_command(folder, monkeypatch):
    arguments = ["vanilla", "all-window", "--seeds", "1", "--steps", "5"]
    whole = compared(*arguments, "--runs-dir", "whole", "--results-dir", "whole/results", cwd=folder)
    take_step, taken = Run.take_step, []

    def stopping(run):
        taken.append(run.step)
        if len(taken) == 8:
            raise KeyboardInterrupt
        return take_step(run)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "take_step", stopping)
        assert hybridlab("compare", *arguments, *NO_SEARCH, cwd=folder).returncode == 130
    again = hybridlab("compare", *arguments, *NO_SEARCH, "--json", cwd=folder)
    assert decided(json_of(again)) == decided(whole) and "vanilla: finished before" in again.stderr


def test_more_seeds_are_the_same_question_after_a_change_of_plan(folder):
    few = compared("vanilla", "all-window", "--seeds", "1", "--steps", "4", cwd=folder)
    more = compared("vanilla", "all-window", "--seeds", "3", "--steps", "4", cwd=folder)
    assert few["id"] == more["id"] and few["claims"][0]["note"] == "direction only"
    assert [flag["code"] for flag in more["claims"][0]["flags"]] == ["plan"]
    assert "seeds 1, 2 were added to 0" in more["claims"][0]["flags"][0]["text"]


def test_from_python(here):
    arms = {"arms": ["vanilla", "sgt", "./mine.yaml"], "size": "./small.yaml", "data": "text:words.txt"}
    settings = {"evaluation": {"validation_windows": 4}, "sgt:controller.max_layers": 1}
    found = package.compare(**arms, sweep="none", seeds=[0, 2, 4], settings=settings, steps=6, quiet=True)
    table = found.table.set_index(["row", "column"])
    assert (
        table.loc[("sgt", "loss"), "n"] == 3 and table.loc[("sgt", "loss"), "low"] < table.loc[("sgt", "loss"), "high"]
    )
    assert list(found.verdicts) == ["sgt is better than vanilla (loss)", "mine is better than vanilla (loss)"]
    assert found.figure().axes and found.path == here.joinpath("results", found.data["id"], SCALE).relative_to(here)
    with pytest.raises(UserError, match="there is no such arch"):
        package.compare(["vanilla", "sgtt"], quiet=True)


# ---- equal cost ----


def test_flops_are_equal_as_the_records_have_them(folder):
    places = ["--runs-dir", "costs", "--results-dir", "costs/results"]
    data = compared("vanilla", "sgt", "spiral-b", "--seeds", "1", "--set", "sgt:controller.max_layers=1", *places,
                    "--set", "spiral-b:recurrence.chunks=[2,1]", "--steps", "20", cwd=folder)  # fmt: skip
    runs = {one.config["arch"]: one for one in records_below(folder / "costs/results")}
    steps = {arch: one.steps for arch, one in runs.items()}
    assert steps["vanilla"] == 20 and steps["sgt"] < 20 and len(set(steps.values())) == 3
    for one in runs.values():
        last = ledger(Structure.from_json(one.structure), 32, "executed").training * 8
        assert one.flops == pytest.approx(runs["vanilla"].flops, abs=0.6 * last)
        assert one.config["budget"] == {"flops": runs["vanilla"].flops}
    assert {row["short"]: row["cells"]["steps taken"]["measured"] for row in data["rows"]} == steps
    assert "training FLOPs of vanilla with 20 steps" in data["notes"][1]


def test_tokens_are_equal_steps_and_time_is_measured_once(here, monkeypatch, tmp_path):
    assert {config.training.steps for config in configs_of("vanilla", "sgt", equal="tokens").values()} == {8}
    measured = []

    def seconds(experiment):
        measured.append(experiment.id)
        return {"machine": "a clock", "seconds": {"vanilla": 1.0, "sgt": 1.6}}

    monkeypatch.setattr(compare, "_measured", seconds)
    before = defined(asked("vanilla", "sgt", equal="time"), tmp_path, measuring=False)
    assert not measured and cell_configs(before.experiment, SCALE, 0)["sgt"].training.steps == 8
    for _ in range(2):
        made = defined(asked("vanilla", "sgt", equal="time"), tmp_path)
        steps = {name: one.training.steps for name, one in cell_configs(made.experiment, SCALE, 0).items()}
        assert steps == {"vanilla": 8, "sgt": 5} and len(measured) == 1
        assert "Measured in turns on a clock: vanilla 1000.0 ms × 8, sgt 1600.0 ms × 5." in made.content["notes"][-1]
    assert before.content["id"] == made.content["id"]


@pytest.mark.long
def test_the_time_of_a_step_is_measured(here):
    found = compare._measured(defined(asked("vanilla", "looped", "rule-swa+sgt", equal="tokens"), here).experiment)
    assert set(found["seconds"]) == {"vanilla", "looped", "rule-swa+sgt"} and all(found["seconds"].values())


# ---- arms ----


def test_a_file_and_a_mixture_are_arms(here):
    configs = configs_of("vanilla", "./mine.yaml", "x=rule-swa+sgt", "./mine.yaml+sgt", equal="tokens")
    (here / "fast.yaml").write_text("training: {optimizer: {lr: 0.5}, clip: 2.0}\n")
    fast = configs_of("vanilla", "./fast.yaml")["fast"]
    assert (fast.training.optimizer.lr, fast.training.clip) == (0.01, 2.0), "a search decides the rate"
    assert configs_of("vanilla", "./fast.yaml", sweep="none")["fast"].training.optimizer.lr == 0.5
    mine, mixture, both = (configs[name] for name in ("mine", "x", "mine+sgt"))
    assert (mine.map.kind, mine.map.rho, mine.training.clip, mine.training.steps) == ("rule", 0.25, 0.5, 8)
    assert (mixture.map.kind, mixture.controller.kind) == ("rule", "entropy-growth")
    assert (both.map.rho, both.controller.kind, both.training.clip) == (0.25, "entropy-growth", 0.5)


def test_steps_of_a_file_are_those_of_all_arms(here, capsys):
    (here / "long.yaml").write_text("training: {steps: 16}\n")
    (here / "longer.yaml").write_text("training: {steps: 20}\n")
    for steps in (None, 10):
        configs = configs_of("vanilla", "./long.yaml", equal="tokens", steps=steps)
        assert {one.training.steps for one in configs.values()} == {steps or 16}
    with pytest.raises(UserError, match="the arms name steps 16 and 20; give one for all, as in --steps 16"):
        configs_of("./long.yaml", "./longer.yaml")


def test_a_part_of_a_mixture_is_no_excuse_for_another_schedule(here):
    """What a file or --set says is meant; what the second architecture brings along is not."""
    for arms in (["vanilla", "midas"], ["vanilla", "vanilla+midas"], ["rule-swa", "rule-swa+midas"]):
        with pytest.raises(UserError, match=r"the arms differ in training\.schedule"):
            configs_of(*arms, size="tiny", steps=200)


def test_tokens_are_equal_where_a_step_has_others(here):
    (here / "wider.yaml").write_text("training: {tokens_per_step: 512}\n")
    made = defined(asked("vanilla", "./wider.yaml", equal="tokens"), "results")
    trained = {name: one.training for name, one in cell_configs(made.experiment, SCALE, 0).items()}
    assert {one.steps * one.tokens_per_step for one in trained.values()} == {8 * trained["vanilla"].tokens_per_step}
    assert trained["wider"].steps < 8
    with pytest.raises(UserError, match="--equal time: the arms have other rows"):
        configs_of("vanilla", "./wider.yaml", equal="time")
    for equal, searched in (
        ("time", "shape.layers=2,4"),
        ("time", "training.optimizer.kind=adamw,muon"),
        ("tokens", "training.tokens_per_step=64,128"),
    ):
        with pytest.raises(UserError, match="of a step may differ between its values; use --equal flops"):
            configs_of("vanilla", "sgt", equal=equal, sweep=searched)
    with pytest.raises(UserError, match="validation_windows is the same for all arms"):
        configs_of("vanilla", "sgt", sweep="evaluation.validation_windows=4,8")


def test_settings_of_all_arms_and_of_one(here):
    settings = ["training.clip=0.7", "sgt:controller.heads=1", "window=8"]
    configs = configs_of("vanilla", "sgt", "./mine.yaml", settings=settings)
    assert {config.training.clip for config in configs.values()} == {0.7}, "also where a file sets another"
    assert configs["sgt"].controller.heads == 1 and configs["mine"].map.window == 8


def test_answers_are_split_by_the_window_of_the_baseline(here):
    arms = ["vanilla", "sgt", "./wide.yaml"]
    windows = {name: one.evaluation.task_window for name, one in configs_of(*arms, data=["recall"]).items()}
    assert windows == {"vanilla": 4, "sgt": None, "wide": None}, "as each has it by itself"
    split = configs_of(*arms, data=["recall"], metrics=("far", "loss"))
    assert {one.evaluation.task_window for one in split.values()} == {4}


def test_what_a_file_written_by_the_command_has_is_loaded_from_anywhere(here, tmp_path, monkeypatch):
    made = defined(asked("vanilla", "./mine.yaml", data=["text:words.txt@0.5", "embedded@0.5"]), tmp_path)
    made.write(tmp_path / "saved.yaml")
    before = cell_configs(made.experiment, SCALE, 1)
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment("./saved.yaml")
    assert cell_configs(experiment, SCALE, 1) == before and len(before["mine"].data.sources) == 2


# ---- the search ----


def with_losses(made, results_dir, loss):
    """Records of the search: the loss of each run as a function of its configuration; None: it diverged."""
    for digest, (_, config) in sweep_runs(made.experiment, made.experiment.sweep).items():
        value = loss(config)
        run = record(
            [1.0 if value is None else value],
            hash=digest,
            config=config.model_dump(mode="json"),
            seed=config.training.seed,
        )
        failed = {"status": "diverged", "reason": "the loss is nan", "results": None}
        save_record(run.model_copy(update=failed if value is None else {}), results_dir)


def rate(config):
    return config.training.optimizer.lr


def searched(tmp_path, loss, **changes):
    """What the search finds, whose runs have these losses. → the definition, the grids that were trained."""
    made, grids = defined(asked("vanilla", "all-window", **{"sweep": "lr", **changes}), tmp_path), []

    def train(experiment):
        grids.append(experiment.sweep.grid)
        with_losses(
            compare.replace(made, content={**made.content, "sweep": experiment.sweep.model_dump()}), tmp_path, loss
        )
        return Outcome()

    return tuned(made, tmp_path, tmp_path, train)[0], grids


def test_a_grid_is_extended_for_all_arms_until_the_best_lies_inside(here, tmp_path):
    best = {"full": 0.01, "window": 0.0026}
    made, grids = searched(tmp_path, lambda one: abs(rate(one) - best[one.map.kind]))
    assert grids == [[0.005, 0.01, 0.02], [0.0025, 0.005, 0.01, 0.02], [0.00125, 0.0025, 0.005, 0.01, 0.02]]
    assert made.content["sweep"]["chosen"] == {LOSS: {"vanilla": 0.01, "all-window": 0.0025}}
    assert {lr.training.optimizer.lr for lr in cell_configs(made.experiment, SCALE, 0).values()} == {0.01, 0.0025}


def test_a_best_value_that_stays_at_the_edge_decides_nothing(here, tmp_path):
    made, grids = searched(tmp_path, lambda one: -rate(one) if one.map.kind == "full" else rate(one))
    assert grids[-1] == [0.000625, 0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16] and len(grids) == 4
    runs = {"vanilla": [3.0, 3.1, 3.2], "all-window": [3.2, 3.4, 3.3]}
    records = {
        arm: {seed: record([loss], seed=seed, config=config_of(made, arm, seed)) for seed, loss in enumerate(losses)}
        for arm, losses in runs.items()
    }
    (verdict,) = verdicts(made.experiment, SCALE, records)
    assert [flag.code for flag in verdict.flags] == ["edge", "edge"] and verdict.word == "cannot tell here"
    assert "training.optimizer.lr of vanilla lies at the edge of the grid (0.16)" in verdict.flags


def config_of(made, arm, seed):
    return cell_configs(made.experiment, SCALE, seed)[arm].model_dump(mode="json")


def test_each_metric_has_its_own_values(here, tmp_path):
    made, _ = searched(tmp_path, rate, metrics=("loss", "perplexity:higher"), sweep=f"{compare.LR}=1,2,4")
    sweep, columns = made.content["sweep"], made.content["columns"][-2:]
    assert sweep["grid"] == [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32] and sweep["better"][PERPLEXITY] == "higher"
    assert sweep["chosen"][LOSS]["vanilla"] == 0.125 and sweep["chosen"][PERPLEXITY]["vanilla"] == 32
    names = [column["name"] for column in made.content["columns"][2:4]]
    assert names == ["FLOPs", "steps taken"], "a rate changes neither of them"
    rates = [(column["name"], column["at_rate_of"]) for column in columns]
    assert rates == [("lr for loss", LOSS), ("lr for perplexity", PERPLEXITY)]
    assert [claim["test"][-15:] for claim in made.content["claims"]] == ["ow] < [vanilla]", "ow] > [vanilla]"]
    for digest, (_, config) in ExperimentAtScale(made.experiment, SCALE).runs().items():
        own = {"hash": digest, "config": config.model_dump(mode="json"), "seed": config.training.seed}
        save_record(record([3.0], **own), tmp_path)
    cells = build_table(made.experiment, SCALE, tmp_path)["rows"][0]["cells"]
    assert [cells[name]["measured"] for name, _ in rates] == [0.125, 32], "each is that of its metric's runs"
    assert made.experiment.correction == "page" and "over all 2 comparisons" in made.content["notes"][0]


def test_costs_that_a_search_changes_are_of_the_runs_of_each_metric(here, tmp_path):
    """The FLOPs are equal, so that larger steps are fewer."""
    asked_for = {"metrics": ("loss", "perplexity:higher"), "sweep": "training.tokens_per_step=64,128"}
    made, _ = searched(tmp_path, lambda one: one.training.tokens_per_step, **asked_for)
    for digest, (_, config) in ExperimentAtScale(made.experiment, SCALE).runs().items():
        own = {"hash": digest, "config": config.model_dump(mode="json"), "seed": config.training.seed}
        save_record(record([3.0], **own, steps=config.training.steps), tmp_path)
    table = build_table(made.experiment, SCALE, tmp_path)
    assert [column["name"] for column in table["columns"][2:6]] == [
        f"{name} for {metric}" for metric in ("loss", "perplexity") for name in ("FLOPs", "steps taken")
    ]
    cells = {name: cell["measured"] for name, cell in table["rows"][0]["cells"].items()}
    few, many = (cells[f"tokens_per_step for {name}"] for name in ("perplexity", "loss"))
    assert few > many and cells["steps taken for loss"] > cells["steps taken for perplexity"] > 0


def test_a_grid_of_whole_numbers_is_not_extended_beyond_what_the_setting_can_be(here, tmp_path):
    """A warm-up of half a step, or of more steps than the run has, cannot be."""
    made, grids = searched(
        tmp_path, lambda one: -one.training.schedule.warmup_steps, sweep="training.schedule.warmup_steps=1,2"
    )
    assert [grid[-1] for grid in grids] == [2, 4, 8] and made.content["sweep"]["grid"] == [1, 2, 4, 8]
    assert made.content["sweep"]["chosen"][LOSS] == {"vanilla": 8, "all-window": 8}


def test_a_grid_is_not_extended_to_what_the_data_do_not_allow(here, tmp_path):
    """With half as many tokens in a step, no row of it is left for a quarter of the mix."""
    mix = ("data.mix.text=0.75", "data.mix.induction=0.25")
    changes = {"settings": mix, "sweep": "training.tokens_per_step=128,256"}
    config = configs_of("vanilla", "all-window", results=tmp_path, **changes)["vanilla"]
    corpus_for(config.data, tmp_path / "data")
    made, grids = searched(tmp_path, lambda one: one.training.tokens_per_step, **changes)
    assert grids == [[128, 256]] and made.content["sweep"]["chosen"][LOSS]["vanilla"] == 128


def test_a_search_that_finds_nothing_is_a_failed_run(here, tmp_path):
    with pytest.raises(RunFailed, match="search for training.optimizer.lr of vanilla found nothing: all diverged"):
        searched(tmp_path, lambda one: None)


def test_a_search_is_trained_extended_and_flagged(folder):
    """Two steps at rates that are far too low: the highest one is the best, however often the grid is extended."""
    arguments = ["a=vanilla", "b=vanilla", "--seeds", "1", "--steps", "2", *COMMON, "--sweep", "lr=1e-5,2e-5"]
    places = ["--runs-dir", "search", "--results-dir", "search/results"]
    before = json_of(hybridlab("compare", *arguments, *places, "--dry-run", "--json", cwd=folder))
    assert [before[part]["total"]["runs"] for part in ("search", "reported")] == [2, 1]
    assert not list(folder.glob("search/*/record.json")) and not (folder / "search/results").exists()
    done = hybridlab("compare", *arguments, *places, cwd=folder)
    assert "rate at the edge of the grid" in done.stdout and "which is now 1e-05, 2e-05, 4e-05\n" in done.stderr
    assert sorted(one.config["training"]["optimizer"]["lr"] for one in records_below(folder / "search/results")) == [
        *(1e-5 * 2**i for i in range(5)),
        1.6e-4,
    ]
    written = yaml.safe_load(next(folder.glob("search/results/*/compare.yaml")).read_text())
    assert written["sweep"]["chosen"] == {LOSS: {"a": 1.6e-4, "b": 1.6e-4}}
    shown = hybridlab("compare", *arguments, *places, "--dry-run", cwd=folder).stdout
    assert "The search" not in shown and "to do: 0 of 1" in shown


def test_on_a_cluster_the_search_is_submitted_first(folder, monkeypatch):
    submitted = []
    monkeypatch.setattr("hybridlab.runs.queue.submit", lambda runs, *places: submitted.extend(run.name for run in runs))
    places = ["--runs-dir", "jobs", "--results-dir", "jobs/results", "--launcher", "slurm"]
    common = [*COMMON[:-2], "--seeds", "1", "--steps", "2", *places]
    done = hybridlab("compare", "vanilla", "all-window", *common, cwd=folder)
    assert done.returncode == 0 and not done.stdout and len(submitted) == 6 and "(seed 100)" in submitted[0]
    submitted.clear()
    assert hybridlab("compare", "vanilla", "all-window", *common, "--sweep", "none", cwd=folder).returncode == 0
    assert submitted == ["vanilla", "all-window"]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vanilla"], "give a baseline and an arm beside it"),
        (["vanilla", "vanilla"], "two arms are called vanilla; give them names, as in first=vanilla"),
        (["vanilla", "sgtt"], "arm sgtt: there is no such arch; did you mean 'sgt'?"),
        (["vanilla", "./nofile.yaml"], "nofile.yaml: there is no such file"),
        (["vanilla", "benchmark=sgt"], "'benchmark' cannot name an arm"),
        (["vanilla", "sgt+"], "'sgt+' names no architecture"),
        (["vanilla", "midas+sgt"], "midas and sgt both set controller.kind (stacking, entropy-growth)"),
        (["vanilla", "./mine.yaml+all-window"], "both set map.kind (rule, window), of which a run has one"),
        (["vanilla", "spiral-b+midas"], "spiral-b+midas: midas.yaml:4: recurrence divides all layers"),
        (["vanilla", "consa"], "consa: it learns masks of a trained model"),
        (["vanilla", "midas"], "the arms differ in training.schedule.decay_fraction"),
        (["vanilla", "sgt", "--equal", "steps"], "--equal steps: write flops, tokens or time"),
        (["vanilla", "sgt", "--sweep", "wd"], "only lr has one of its own"),
        (["vanilla", "sgt", "--sweep", "lr=1e-3"], "write two or more different values"),
        (["vanilla", "sgt", "--sweep", "lr=1,[2"], "a value cannot be read; this is not YAML"),
        (["vanilla", "sgt", "--sweep", "training.steps=1,2"], "training.steps is the same for all arms"),
        (["vanilla", "sgt", "--sweep", "training.lr=1,2"], "training.lr is not a known setting"),
        (["vanilla", "sgt", "--metric", "los"], "there is no metric 'los'; did you mean 'loss'?"),
        (["vanilla", "sgt", "--metric", "results.validaton.loss"], "did you mean 'validation'?"),
        (["vanilla", "sgt", "--metric", "steps"], "write whether lower or higher is better, as in steps:lower"),
        (["vanilla", "sgt", "--metric", "outside"], "no rows of the task retrieval; give --data recall"),
        (["vanilla", "sgt", "--data", "recall", "--metric", "outside"], "begins at other distances in each arm"),
        (["sgt", "vanilla", "--data", "recall", "--metric", "far"], "add --set evaluation.task_window=N"),
        (["vanilla", "sgt", "--metric", "loss", "--metric", "validation.loss"], "it is there twice"),
        (["vanilla", "sgt", "--set", "x:training.clip=1"], "there is no arm 'x'"),
        (["vanilla", "sgt", "--set", "sgt:training.seed=1"], "--seeds gives training.seed to all arms"),
        (["vanilla", "sgt", "--set", "training.optimizer.lr=1"], "--sweep gives training.optimizer.lr to all arms"),
        (
            ["vanilla", "sgt", "--set", "sgt:training={optimizer: {lr: 5}}"],
            "--sweep gives training.optimizer.lr to all",
        ),
        (["vanilla", "sgt", "--metric", "history.loss:lower"], "there is no metric 'history.loss'"),
        (
            ["vanilla", "sgt", "--metric", "tasks.retrieval"],
            "is several numbers; write which, as in tasks.retrieval.far",
        ),
        (
            ["vanilla", "sgt", "--metric", "results.validation:lower"],
            "several numbers; write which, as in results.validation.loss",
        ),
        (["vanilla", "sgt", "--save", "saved"], "--save saved: the name must end in .yaml or .yml"),
        (["vanilla", "sgt", "--set", "sgt:controller.headz=1"], "did you mean 'heads'?"),
        (
            ["vanilla", "sgt", "--set", "controller.heads=1"],
            "vanilla: --set controller.heads=1: controller needs `kind`",
        ),
        (["vanilla", "b=vanilla", "--set", "b:data.tokenizer=bpe:300"], "the arms differ in data.tokenizer"),
        (["vanilla", "sgt", "--seeds", "100-101"], "the sweep chose its values on seed 100"),
        (["vanilla", "sgt", "--steps", "1"], "schedule.warmup_steps 2 is longer than the run (1)"),
    ],
)
def test_a_mistake_is_one_sentence(folder, arguments, message):
    own = ["--data", "text:words.txt"] if "--data" not in arguments else []
    done = hybridlab("compare", *arguments, *COMMON[:2], *own, "--dry-run", cwd=folder)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_files_that_name_several_sizes_need_an_option(here):
    for name in ("tiny", "mini"):
        (here / f"{name}-arm.yaml").write_text(f"size: {name}\n")
    arms = ["./tiny-arm.yaml", "./mini-arm.yaml"]
    twice = {"training.steps": 4, "training": {"steps": 5}}
    with pytest.raises(UserError, match=r"settings: training\.steps is given twice"):
        package.compare(["vanilla", "sgt"], settings=twice, quiet=True)
    with pytest.raises(UserError, match="the arms name size tiny and mini; give one for all, as in --size tiny"):
        configs_of(*arms, size=None)
    assert {one.size for one in configs_of(*arms, size="tiny-narrow").values()} == {"tiny-narrow"}
    assert {one.size for one in configs_of(arms[1], "vanilla", size=None).values()} == {"mini"}


def test_what_metrics_are_called():
    found = compare.metrics_of(["loss", "perplexity", "tasks.chain.loss.all", "outside", "flops:lower"])
    assert [(one.name, one.better) for one in found] == [
        ("loss", "lower"),
        ("perplexity", "lower"),
        ("tasks.chain.loss.all", "lower"),
        ("outside", "higher"),
        ("flops", "lower"),
    ]
    assert found[3].path == "results.tasks.retrieval.outside" and found[3].task == ("retrieval", "outside")


def test_flops_are_those_of_the_baseline(here):
    configs = configs_of("sgt", "vanilla", steps=30)
    assert configs["sgt"].training.steps == 30 < configs["vanilla"].training.steps
    spent = training_flops(configs["sgt"], "executed")
    step = training_flops(configs["vanilla"], "executed") / configs["vanilla"].training.steps
    assert training_flops(configs["vanilla"], "executed") == pytest.approx(spent, abs=0.5 * step)
