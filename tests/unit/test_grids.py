"""A grid of settings: its axes, its runs (never one of them twice), and the table of their differences."""

import math

import pytest

from hybridlab.config.resolve import resolve, run_hash
from hybridlab.errors import UserError
from hybridlab.reporting.ablation import grid_table
from hybridlab.runs.ablate import Vary, grid, make_grid, parse_seeds
from tests.records import make_loss, make_record, make_results


def axes(*texts):
    return [Vary.parse(text) for text in texts]


def build(combination, seed):
    settings = [f"{key}={value}" for key, value in combination.items() if key != "arch"]
    return resolve(combination.get("arch", "vanilla"), "tiny", settings=[*settings, f"training.seed={seed}"])


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


@pytest.mark.parametrize(
    "vary",
    [
        "training.optimizer.lr=1e-3,0.001",
        "training.precision=auto,'auto'",
        "evaluation.validation_windows=8,16",
        "observe.entropy_every=5,6",
    ],
)
def test_two_combinations_that_train_the_same_are_an_error_that_names_both(vary):
    first, second = (f"{vary.split('=')[0]}={value}" for value in vary.split("=")[1].split(","))
    with pytest.raises(UserError) as caught:
        make_grid(build, grid(axes(vary)), (0, 1))
    assert f"{first} (seed 0) and {second} (seed 0) are the same training" in str(caught.value)


def test_a_setting_that_replaces_every_seed_is_an_error():
    with pytest.raises(UserError, match=r"\(seed 0\) and .* \(seed 1\) are the same training"):
        make_grid(lambda combination, seed: build(combination, 7), grid(axes("arch=vanilla")), (0, 1))


def test_a_grid_is_named_by_its_runs_and_knows_them():
    made = make_grid(build, grid(axes("training.optimizer.lr=1e-3,2e-3")), (0, 1))
    assert len(made.pending()) == 4 and made.id.startswith("ablate-")
    definition = made.definition("hybridlab ablate …")
    assert definition["rows"][1]["runs"]["1"] == run_hash(build({"training.optimizer.lr": "2e-3"}, 1))
    assert make_grid(build, grid(axes("training.optimizer.lr=1e-3,2e-3")), (0,)).id != made.id


# ---- the table ----


def table_of(*losses, sparsity=None):
    """The table of rows, each with a loss for each seed (None: that run has no record)."""
    rows, records = [], {}
    for i, of_row in enumerate(losses):
        runs = {str(seed): f"{i}-{seed}" for seed in range(len(of_row))}
        rows.append({"name": f"row {i}", "settings": {"a": str(i)}, "runs": runs})
        for seed, loss in enumerate(of_row):
            if loss is not None:
                records[f"{i}-{seed}"] = make_record(results=make_results(validation=make_loss(loss)))
    return grid_table({"id": "ablate-0", "command": "", "seeds": [0], "settings": {}, "rows": rows}, records)


def cells(table, metric="loss"):
    return [row["metrics"][metric] for row in table["rows"]]


def test_differences_are_paired_by_seed_with_interval_and_p():
    _, cell = cells(table_of([3.0, 3.1, 3.3], [2.9, 2.98, 3.21]))
    assert cell["n"] == cell["pairs"] == 3 and cell["difference"] == pytest.approx(-0.31 / 3)
    spread = math.sqrt(sum((d + 0.31 / 3) ** 2 for d in (-0.1, -0.12, -0.09)) / 2 / 3)
    assert cell["difference_stderr"] == pytest.approx(spread)
    assert cell["interval"] == pytest.approx([-0.31 / 3 - 4.302653 * spread, -0.31 / 3 + 4.302653 * spread], rel=1e-5)
    assert cell["p"] == cell["p_holm"] and 0.001 < cell["p"] < 0.05 and cell["verdict"] == "lower"


def test_with_fewer_than_three_pairs_only_the_direction_is_known():
    first, cell = cells(table_of([3.0, 3.1], [2.0, 2.1001]))
    assert (cell["p"], cell["interval"], cell["verdict"]) == (None, None, "open (direction only)")
    assert first["verdict"] is None and first["difference"] is None and first["stderr"] is not None


def test_a_seed_without_its_partner_is_no_pair():
    _, cell = cells(table_of([3.0, None, 3.2, 3.3], [2.0, 2.1, 2.2, None]))
    assert cell["n"] == 3 and cell["pairs"] == 2 and cell["verdict"] == "open (direction only)"


def test_p_values_are_corrected_over_the_rows_of_a_metric():
    base = [3.0, 3.1, 3.2, 3.3]
    near = [x - d for x, d in zip(base, (0.1, 0.12, 0.03, 0.06), strict=True)]
    table = table_of(base, near, [x + d for x, d in zip(base, (0.1, -0.1, 0.2, 0.0), strict=True)])
    _, better, unclear = cells(table)
    assert better["p"] < 0.05 and better["p_holm"] == pytest.approx(2 * better["p"])
    assert unclear["p_holm"] == unclear["p"] and unclear["verdict"] == "open"
    alone = cells(table_of(base, near))[1]
    assert alone["p_holm"] == alone["p"] == pytest.approx(better["p"])


def test_equal_differences_have_no_test_and_stay_open():
    _, cell = cells(table_of([3.0, 3.0, 3.0], [2.5, 2.5, 2.5]))
    assert (cell["p"], cell["verdict"]) == (None, "open")


def test_what_follows_from_the_structure_needs_no_test():
    _, cell = cells(table_of([3.0, 3.1, 3.2], [2.9, 3.0, 3.1]), "sparsity")
    assert (cell["mean"], cell["p"], cell["verdict"]) == (0.5, None, "the same")


def test_what_was_not_measured_is_none():
    first, cell = cells(table_of([None, None], [None, None]))
    assert first["n"] == 0 and first["mean"] is None and cell["difference"] is None and cell["verdict"] is None
