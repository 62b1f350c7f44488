"""A grid of settings: its axes, its runs (never one of them twice), and the table and claims of their differences."""

import math

import pytest

from hybridlab.config.resolve import resolve, run_hash
from hybridlab.errors import UserError
from hybridlab.lab.papers.ablate import Vary, defined, grid
from hybridlab.lab.papers.definition import SCALE, parse_seeds
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale
from hybridlab.lab.reporting.table import build_table
from hybridlab.runs.record import save_record
from tests.records import make_loss, make_record, make_results


def axes(*texts):
    return [Vary.parse(text) for text in texts]


def build(combination, seed):
    settings = [f"{key}={value}" for key, value in combination.items() if key != "arch"]
    return resolve(combination.get("arch", "vanilla"), "tiny", settings=[*settings, f"training.seed={seed}"])


def made_of(*texts, seeds=(0, 1), metrics=()):
    return defined(build, grid(axes(*texts)), seeds, metrics)


@pytest.mark.parametrize(("text", "seeds"), [("3", (0, 1, 2)), ("5-7", (5, 6, 7)), ("9-9", (9,)), ("4,2,8", (4, 2, 8))])
def test_seeds_as_a_number_a_range_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "", "x", "3-1", "1,1", "1,", "-1", "1.5"])
def test_other_seeds_are_refused(text):
    with pytest.raises(UserError, match="--seeds .*: write how many"):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["4294967296", "0-99999999999999"])
def test_more_seeds_than_memory_are_refused(text):
    with pytest.raises(UserError, match=f"--seeds {text}: these are more than 10,000 seeds; ask for fewer"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("vary", "sets", "steps", "message"),
    [
        (["training.seed=1,2"], [], None, "write --seeds 1,2"),
        (["map.rho=0,1"], ["training.seed=5"], None, "write --seeds 5-5"),
        (["runtime.kernel=eager,sdpa"], [], None, "do not change which run it is"),
        (["map.rho=0,1"], ["map.rho=0.5"], None, "--vary gives map.rho its values"),
        (["training.steps=3,4"], [], 5, "--steps: --vary gives training.steps its values"),
        (["map.rho=0", "map.rho=1"], [], None, "varied twice"),
    ],
)
def test_axes_that_make_no_grid_are_refused(vary, sets, steps, message):
    with pytest.raises(UserError, match=message):
        grid(axes(*vary), sets, steps)
    for key in ("arch", "size"):
        with pytest.raises(UserError, match=f"--{key}: --vary gives {key} its values"):
            grid(axes(f"{key}=mini,tiny"), **{key: "tiny"})


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("results.suites.blimp.accuracy:higher", "no run measures it; set evaluation.benchmarks"),
        ("pseudo-perplexity", "the family qwen3 has none; judge perplexity"),
        ("config.arch:lower", "there is no metric 'config.arch'"),
        ("machine.threads:lower", "there is no metric 'machine.threads'"),
    ],
)
def test_what_no_run_measures_is_no_metric(metric, said):
    with pytest.raises(UserError, match=said):
        made_of("training.clip=0.5,1", metrics=[metric])


def test_all_settings_answer_the_same_questions():
    """Answers are split by the window of the first setting, so that what no window reaches is the same for all."""
    made = defined(on_recall, grid(axes("window=8,64")), (0, 1))
    runs = {name: config for name, config in ExperimentAtScale(made.experiment, SCALE).runs().values()}
    assert {config.evaluation.task_window or config.map.window for config in runs.values()} == {8}
    assert [claim.text.partition("(")[2] for claim in made.experiment.claims] == ["loss)", "inside)", "outside)"]
    deeper = defined(on_recall, grid(axes("shape.layers=2,3")), (0, 1))
    assert [claim.text.partition("(")[2] for claim in deeper.experiment.claims] == ["loss)", "inside)", "far)"]


def on_recall(combination, seed):
    settings = [f"{key}={value}" for key, value in combination.items()]
    return resolve("all-window", "tiny", "recall", settings=[*settings, f"training.seed={seed}"])


def test_a_draw_that_follows_the_seed_does_so_in_a_grid_of_one_seed():
    made = defined(build_random, grid(axes("training.clip=0.5,1")), (0,))
    runs = ExperimentAtScale(made.experiment, SCALE, seeds=(0, 1, 2)).runs()
    combinations = grid(axes("training.clip=0.5,1"))
    assert set(runs) == {run_hash(build_random(one, seed)) for one in combinations for seed in (0, 1, 2)}


def build_random(combination, seed):
    settings = [f"{key}={value}" for key, value in combination.items()]
    return resolve("random", "tiny", settings=[*settings, f"training.seed={seed}"])


@pytest.mark.parametrize(
    "vary",
    [
        "training.optimizer.lr=1e-3,0.001",
        "training.precision=auto,'auto'",
        """training.precision="auto",'auto'""",
        "evaluation.validation_windows=8,16",
        "observe.entropy_every=5,6",
    ],
)
def test_two_combinations_that_train_the_same_are_an_error_that_names_both(vary):
    first, second = (f"{vary.split('=')[0]}={value}" for value in vary.split("=")[1].split(","))
    with pytest.raises(UserError) as caught:
        made_of(vary)
    both = f"{first} (seed 0) and {second} (seed 0) are the same training"
    assert both.replace('"', "'") in str(caught.value)


def test_a_setting_that_gives_another_seed_is_an_error():
    with pytest.raises(UserError, match="arch=vanilla: training.seed is 7; the seeds of a grid are given by --seeds"):
        defined(lambda combination, seed: build(combination, 7), grid(axes("arch=vanilla")), (7, 8))


DRAWN = "map={kind: random, granularity: layer, rho: 0.5, window: 8},{kind: rule, granularity: layer, rho: 0.5}"


@pytest.mark.parametrize("vary", ["training.optimizer.lr=1e-3,2e-3", "arch=vanilla,sgt,spiral-b", DRAWN])
def test_a_grid_trains_what_its_settings_say_also_from_its_file(vary, tmp_path):
    """Every run has the hash of the same command for a single run; a seed that a map draws by follows that of the
    run."""
    made, combinations = made_of(vary, seeds=(3, 5)), grid(axes(vary))
    hashes = {run_hash(build(one, seed)) for one in combinations for seed in (3, 5)}
    assert set(ExperimentAtScale(made.experiment, SCALE).runs()) == hashes and len(hashes) == 2 * len(combinations)
    made.write(tmp_path / "grid.yaml")
    assert set(ExperimentAtScale(load_experiment(str(tmp_path / "grid.yaml")), SCALE).runs()) == hashes
    more = ExperimentAtScale(made.experiment, SCALE, seeds=(9,)).runs()
    assert set(more) == {run_hash(build(one, 9)) for one in combinations}


def test_a_grid_is_named_by_its_runs_and_metrics():
    vary = "training.optimizer.lr=1e-3,2e-3"
    made = made_of(vary)
    assert made.experiment.id.startswith("ablate-") and made_of(vary).experiment.id == made.experiment.id
    others = [made_of(vary, seeds=(0,)), made_of(vary, metrics=["perplexity"])]
    assert len({one.experiment.id for one in (made, *others)}) == 3
    assert [row.short for row in made.experiment.rows] == ["lr=1e-3", "lr=2e-3"]
    short = made_of("shape.layers=4,6", "training.steps=30").experiment.rows[1].short
    assert short == "layers=6, steps=30"


def test_values_with_brackets_and_quotes_can_be_compared():
    plans = 'plan=[],[{op: loop_blocks, layers: [1]}],[{op: loop_blocks, layers: ["1-2"]}]'
    made = defined(lambda one, seed: build({"training.clip": str(1 + len(one["plan"]))}, seed), grid(axes(plans)), (0,))
    assert [claim.test["holds"] for claim in made.experiment.claims] == [
        'results.validation.loss["plan=({op: loop_blocks, layers: (1)})"] < [plan=()]',
        "results.validation.loss[\"plan=({op: loop_blocks, layers: ('1-2')})\"] < [plan=()]",
    ]


def test_values_that_would_have_one_name_are_refused():
    files = {"data.source=text:[a].txt": "1.0", "data.source=text:(a).txt": "2.0"}

    def clipped(one, seed):
        return build({"training.clip": files[f"data.source={one['data.source']}"]}, seed)

    with pytest.raises(UserError, match="two values differ in brackets, quotation marks or @ alone"):
        defined(clipped, grid(axes("data.source=text:[a].txt,text:(a).txt")), (0,))


def test_what_is_judged():
    def judged(made):
        return [claim["source"] for claim in made.content["claims"]]

    vary = "training.clip=1.0,2.0"
    assert judged(made_of(vary)) == ["--metric loss"]
    assert judged(made_of(vary, metrics=["perplexity", "flops:lower"])) == [
        "--metric perplexity",
        "--metric flops:lower",
    ]
    with pytest.raises(UserError, match="--metric inside: the data have no rows of the task retrieval"):
        made_of(vary, metrics=["inside"])
    mixed = (vary, "data.mix={text: 0.5, retrieval: 0.5}")
    assert judged(made_of(*mixed)) == ["--metric loss", "--metric inside", "--metric outside"]
    unsplit = (*mixed, "evaluation.task_window=null")
    assert judged(made_of(*unsplit)) == ["--metric loss"]
    with pytest.raises(UserError, match="--metric outside: no window splits the answers"):
        made_of(*unsplit, metrics=["outside"])


# ---- the table ----


def page_of(tmp_path, *losses, perplexity=None):
    """The table of rows, each with a loss for each seed (None: that run has no record)."""
    seeds = range(max(map(len, losses)))
    values = ",".join(str(1.0 + i) for i in range(len(losses)))
    made = made_of(f"training.clip={values}", seeds=tuple(seeds), metrics=("loss", "perplexity") if perplexity else ())
    for digest, (_, config) in ExperimentAtScale(made.experiment, SCALE).runs().items():
        row, seed = round(config.training.clip) - 1, config.training.seed
        if losses[row][seed] is not None:
            measured = make_loss(losses[row][seed])
            if perplexity:
                measured["perplexity"]["value"] = perplexity(losses[row][seed])
            own = {"hash": digest, "config": config.model_dump(mode="json"), "seed": seed}
            save_record(make_record(results=make_results(validation=measured), **own), tmp_path)
    return build_table(made.experiment, SCALE, tmp_path)


def cells(table, column="loss"):
    return [row["cells"][column] for row in table["rows"]]


def test_differences_are_paired_by_seed_with_interval_and_p(tmp_path):
    table = page_of(tmp_path, [3.0, 3.1, 3.3], [2.9, 2.98, 3.21])
    _, cell = cells(table)
    found = cell["difference"]
    assert cell["n"] == found["n"] == 3 and found["value"] == pytest.approx(-0.31 / 3)
    spread = math.sqrt(sum((d + 0.31 / 3) ** 2 for d in (-0.1, -0.12, -0.09)) / 2 / 3)
    assert found["stderr"] == pytest.approx(spread)
    assert found["interval"] == pytest.approx([-0.31 / 3 - 4.302653 * spread, -0.31 / 3 + 4.302653 * spread], rel=1e-5)
    (claim,) = table["claims"]
    assert claim["text"] == "training.clip=2.0 is better than training.clip=1.0 (loss)"
    assert claim["p"] == found["p"] and 0.001 < found["p"] < 0.05 and claim["verdict"] == "holds"
    assert page_of(tmp_path / "other", [2.9, 2.98, 3.21], [3.0, 3.1, 3.3])["claims"][0]["verdict"] == "fails"


def test_with_fewer_than_three_pairs_only_the_direction_is_known(tmp_path):
    table = page_of(tmp_path, [3.0, 3.1], [2.0, 2.1001])
    (first, cell), (claim,) = cells(table), table["claims"]
    assert (cell["difference"]["p"], cell["difference"]["interval"]) == (None, None)
    assert "difference" not in first and (claim["verdict"], claim["direction"]) == ("open", "as claimed")


def test_a_seed_without_its_partner_is_no_pair(tmp_path):
    table = page_of(tmp_path, [3.0, None, 3.2, 3.3], [2.0, 2.1, 2.2, None])
    _, cell = cells(table)
    assert cell["n"] == 3 and cell["difference"]["n"] == table["claims"][0]["n"] == 2
    assert table["claims"][0]["verdict"] == "open"


def test_p_values_are_corrected_over_the_rows_of_a_metric(tmp_path):
    base = [3.0, 3.1, 3.2, 3.3]
    near = [x - d for x, d in zip(base, (0.1, 0.12, 0.03, 0.06), strict=True)]
    far = [x + d for x, d in zip(base, (0.1, -0.1, 0.2, 0.0), strict=True)]
    table = page_of(tmp_path, base, near, far)
    (better, unclear), (_, one, _) = table["claims"], cells(table)
    assert one["difference"]["p"] < 0.05 and better["p"] == pytest.approx(2 * one["difference"]["p"])
    assert unclear["verdict"] == "open" and unclear["p"] == pytest.approx(cells(table)[2]["difference"]["p"])
    # Another metric has a correction of its own.
    both = page_of(tmp_path / "both", base, near, far, perplexity=lambda loss: 10 * loss)
    assert [claim["p"] for claim in both["claims"]] == pytest.approx([better["p"]] * 2 + [unclear["p"]] * 2)
    alone = page_of(tmp_path / "alone", base, near)
    assert alone["claims"][0]["p"] == pytest.approx(one["difference"]["p"])


def test_what_was_not_measured_is_none(tmp_path):
    table = page_of(tmp_path, [None, None], [None, None])
    first, cell = cells(table)
    assert first["n"] == 0 and first["measured"] is None and "difference" not in cell
    assert table["claims"][0]["verdict"] == "not run"
