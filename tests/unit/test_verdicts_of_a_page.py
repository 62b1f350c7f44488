"""What a reader must know of how a verdict came about: plans, values that another metric chose, settings in which arms
differ, and the other claims of the page. Each on an experiment of two arms with records made by hand."""

import copy
import json

import pytest
import yaml

from hybridlab.errors import UserError
from hybridlab.files import read_object, write_json
from hybridlab.lab.papers.cells import cell_runs, records_of
from hybridlab.lab.papers.claims.judge import either_way
from hybridlab.lab.papers.ids import experiment_ids
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.pages import as_read
from hybridlab.lab.papers.plans import Planned, digest_of, history, history_name, plan_of, register, write_history
from hybridlab.lab.papers.reproduce import ExperimentAtScale, stamps
from hybridlab.lab.papers.verdicts import arms_differ, check_plan, differences, settings_of, verdicts
from hybridlab.lab.papers.votes import repeated
from hybridlab.lab.reporting.claims import escaped_cell
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.runs.record import Stamp, record_name, save_record
from tests import experiments
from tests.conftest import PUBLISHED, SMALL_SHAPE
from tests.unit.verdicts.building import record

LOSS = "results.validation.loss"
ENTROPY = "results.probes.entropy.mean"
FILE = {
    "id": "toy-table1",
    "title": "Toy",
    "paper": "toy",
    "source": "nowhere",
    "columns": [{"name": "loss", "title": "loss", "kind": "trained", "metric": LOSS}],
    "rows": [{"name": "A", "short": "A", "cell": "a"}, {"name": "B", "short": "B", "cell": "b"}],
    "cells": {"a": {"arch": "vanilla", "phase": "one"}, "b": {"arch": "all-window", "phase": "one"}},
    "scales": {
        "desk": {
            "machine": "a test",
            "size": "tiny",
            "seeds": [0, 1, 2, 3],
            "config": {"shape": SMALL_SHAPE, "window": 4, "data": {"tokenizer": "byte"}},
            "phases": {"one": {"training": {"steps": 30}}},
        }
    },
    "claims": [{"text": "a is below b", "source": "here", "test": "loss[a] < [b]"}],
}
A, B = [3.0, 3.01, 2.99, 3.0], [3.2, 3.22, 3.19, 3.21]
SWEEP = {
    "setting": "training.optimizer.lr",
    "grid": [0.001, 0.002, 0.004, 0.008],
    "seed": 100,
    "scale": "desk",
    "cells": ["a", "b"],
    "metrics": [LOSS, ENTROPY],
    "chosen": {LOSS: {"a": 0.002, "b": 0.004}, ENTROPY: {"a": 0.004, "b": 0.004}},
}


class Toy:
    """The experiment, its records, and what is said of its claims."""

    def __init__(self, folder):
        self.path, self.results = folder / "toy.yaml", folder / "results"
        self.content = copy.deepcopy(FILE)

    def load(self):
        self.path.write_text(yaml.safe_dump(self.content, sort_keys=False))
        return load_experiment(str(self.path))

    def train(self, entropies=None, stamped=True, probes=None, **losses):
        """Write the records of arms with these losses by seed, started under the plan of today."""
        experiment = self.load()
        stamp = [register(experiment, "desk", self.results)] if stamped else []
        for i in range(len(next(iter(losses.values())))):
            seed = [*self.content["scales"]["desk"]["seeds"], *range(10, 90)][i]
            for run in cell_runs(experiment, "desk", seed):
                if run.cell in losses:
                    own = {"entropy": {"mean": entropies[run.cell][i]}} if entropies else probes or {}
                    made = record([losses[run.cell][i]], probes=own, hash=run.hash, seed=seed, plans=stamp)
                    own = {"config": run.config.model_dump(mode="json"), "steps": run.config.training.steps}
                    save_record(made.model_copy(update=own), self.results)

    def verdicts(self):
        experiment = self.load()
        known = history(experiment.id, "desk", self.results)
        return verdicts(experiment, "desk", records_of(experiment, "desk", self.results), plans=known)

    def verdict(self):
        return self.verdicts()[0]


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def test_a_control_with_an_arm_that_is_not_run_leaves_a_claim_open(toy):
    """Only one that is measured, and fails, says that nothing can be told."""
    toy.content["cells"]["c"] = {"arch": "vanilla", "phase": "one", "config": {"training": {"clip": 0.5}}}
    toy.content["claims"][0] |= {"controls": ["loss[a, c] < 4"], "differ_in": ["training.clip"]}
    toy.train(a=A, b=B)
    assert toy.verdict().word == "open"
    toy.train(c=A)
    assert toy.verdict().word == "holds"
    toy.train(c=[5.0, 5.1, 5.0, 5.1])
    assert toy.verdict().word == "cannot tell here"


def test_tokens_are_those_that_the_weights_have_seen(toy):
    """Also in the run that they start from, of which a branch with all of its state counts the steps."""
    toy.content["cells"]["c"] = {"arch": "vanilla", "phase": "one", "start": "a"}
    toy.content["claims"][0]["test"] = "loss[c] < 4"
    toy.train(a=A, c=B)
    tokens = next(iter(records_of(toy.load(), "desk", toy.results)["c"].values())).tokens
    assert f"{2 * tokens:,} tokens" in toy.verdict().scale
    toy.content["cells"]["c"]["config"] = {"init": {"load": "all", "step": 15}}
    toy.train(a=A, c=B)
    assert f" {tokens:,} tokens" in toy.verdict().scale


def test_a_claim_behind_one_that_its_controls_silence_is_corrected_too(toy):
    same = {"text": "again", "source": "here", "test": "loss[a] < [b]"}
    unlike = [
        {"text": f"{i}", "source": "here", "test": f"loss[b] > {bound}"} for i, bound in enumerate((3.0, 3.01, 3.02))
    ]
    toy.train(a=A, b=[3.02, 3.02, 3.02, 3.01])
    toy.content["claims"] += [same, *unlike]
    before = toy.verdicts()
    toy.content["claims"][0]["controls"] = ["loss[a] > 9"]
    after = toy.verdicts()
    assert after[0].word == "cannot tell here"
    assert [one.word for one in before[1:]] == [one.word for one in after[1:]]


def test_a_log_that_a_search_chose_by_is_held_to_its_rate(toy):
    """As a result is: at the edge of the grid it says so."""
    toy.content["measures"] = {"first": {"title": "first loss", "of": {"y": "history.loss"}, "formula": "y[0]"}}
    toy.content["sweep"] = {**SWEEP, "metrics": ["first"], "chosen": {"first": {"a": 0.002, "b": 0.008}}}
    toy.content["claims"][0]["test"] = "first[a] < [b]"
    toy.train(a=A, b=B)
    assert any(flag.code == "edge" for flag in toy.verdict().flags)


def test_holm_can_go_over_all_claims_of_a_page(toy):
    b = [3.0, 3.04, 3.02, 3.03]
    toy.content["claims"].append({"text": "b is below 3.3", "source": "here", "test": "loss[b] < 3.3"})
    toy.train(a=A, b=b)
    first, second = toy.verdicts()
    toy.content["correction"] = "page"
    both, clear = toy.verdicts()
    assert (first.word, both.word, second.word, clear.word) == ("open", "open", "holds", "holds")
    # Holm doubles the smaller p of the two and leaves the larger one as it is.
    assert clear.p == pytest.approx(2 * second.p) and both.p == pytest.approx(first.p)
    assert both.n_needed > first.n_needed and not both.flags
    toy.train(a=A, b=[3.02, 3.02, 3.02, 3.01])
    for tests, word in ((["[a] < [b]", "[a] < 3.015", "[a] < 3.0148"], "open"), (["[a] < [b]"] * 3, "holds")):
        toy.content["claims"] = [
            {"text": f"{i}", "source": "here", "test": f"loss{test}"} for i, test in enumerate(tests)
        ]
        toy.content["correction"] = "claim"
        assert {one.word for one in toy.verdicts()} == {"holds"}
        toy.content["correction"] = "page"
        # The same numbers under several names have one vote.
        assert {one.word for one in toy.verdicts()} == {word}


# ---- plans ----


def test_a_claim_that_is_as_it_was_planned_has_no_flag(toy):
    toy.train(a=A, b=B)
    verdict = toy.verdict()
    assert (verdict.word, verdict.note, verdict.flags, verdict.n) == ("holds", "", (), 4)


def changed(toy, part):
    claim = toy.content["claims"][0]
    if part == "test":
        claim["test"] = "loss[a] - [b] < -0.01"
    elif part == "control":
        claim["controls"] = ["loss[a] < 4"]
    elif part == "effect":
        claim["effect"] = 0.2
    elif part == "added":
        toy.content["claims"] = [{**claim, "text": "another sentence", "test": "loss[a] - [b] < -0.001"}]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("test", "its test, which was loss[a] < [b]"),
        ("control", "controls added (loss[a] < 4)"),
        ("effect", "the effect to be found"),
        ("added", "the claim was added"),
    ],
)
def test_a_change_with_the_runs_at_hand_is_shown_with_its_date(toy, part, says):
    toy.train(a=A, b=B)
    changed(toy, part)
    verdict = toy.verdict()
    assert (verdict.word, verdict.note) == ("holds", "after a change of plan")
    assert verdict.flags == (f"decided after a change of plan: {says}",)
    # A report adds today's plan to the history, which gives the change a date.
    write_entry(toy.load(), "desk", toy.results)
    date = history("toy-table1", "desk", toy.results)[-1].date
    assert toy.verdict().flags == (f"decided after a change of plan on {date}: {says}",)
    assert escaped_cell(says) in (toy.results / "toy-table1" / "desk" / "table.md").read_text()


def test_a_search_with_another_grid_is_a_change(toy):
    toy.content["sweep"] = {**SWEEP, "metrics": [LOSS], "chosen": {LOSS: {"a": 0.002, "b": 0.004}}}
    toy.train(a=A, b=B)
    assert not toy.verdict().flags
    toy.content["sweep"]["grid"] = [*SWEEP["grid"], 0.016]
    verdict = toy.verdict()
    assert (verdict.word, verdict.note) == ("holds", "after a change of plan")
    assert verdict.flags == ("decided after a change of plan: the search for the swept setting",)


def test_other_words_for_the_same_claim_are_no_change(toy):
    toy.train(a=A, b=B)
    toy.content["claims"][0]["text"] = "a lies below b"
    assert not toy.verdict().flags


def test_a_change_of_another_claim_is_no_change_of_this_one(toy):
    toy.train(a=A, b=B)
    toy.content["claims"].append({"text": "new", "source": "here", "test": "loss[a] > [b]"})
    first, second = toy.verdicts()
    assert not first.flags and "the claim was added" in second.flags[0]


def test_seeds_that_were_added_are_named(toy):
    toy.train(a=[*A, 3.01], b=[*B, 3.2])
    verdict = toy.verdict()
    assert verdict.n == 5 and verdict.flags[0].endswith("change of plan: seeds 10 were added to 0 to 3")


def test_new_seeds_under_a_new_plan_are_judged_by_it_alone(toy):
    toy.train(a=A, b=B)
    changed(toy, "test")
    toy.content["scales"]["desk"] |= {"seeds": [5, 6, 7], "earlier_seeds": [0, 1, 2, 3]}
    toy.train(a=A[:3], b=B[:3])
    verdict = toy.verdict()
    assert (verdict.n, [flag.code for flag in verdict.flags]) == (3, ["seed"])
    assert len(history("toy-table1", "desk", toy.results)) == 2
    # Under the old plan, with its own seeds, the claim had another test.
    toy.content["scales"]["desk"] |= {"seeds": [5, 6, 7, 0], "earlier_seeds": [1, 2, 3]}
    assert toy.verdict().n == 4 and "its test, which was loss[a] < [b]" in toy.verdict().flags[0]


def test_runs_without_a_stamp_count_as_unplanned_once_there_is_a_plan(toy):
    toy.train(a=A, b=B, stamped=False)
    assert not toy.verdict().flags
    register(toy.load(), "desk", toy.results)
    assert "not planned when 8 of the 8 runs" in toy.verdict().flags[0]


def test_older_runs_have_the_plan_that_lists_them(toy):
    toy.train(a=A, b=B, stamped=False)
    content = plan_of(toy.load(), "desk")
    hashes = frozenset(path.name.partition(".")[0] for path in (toy.results / "records").iterdir())
    write_history("toy-table1", "desk", [Planned(digest_of(content), "2026-01-01", content, hashes)], toy.results)
    assert not toy.verdict().flags
    changed(toy, "effect")
    assert "the effect" in toy.verdict().flags[0]


def test_a_history_that_was_edited_is_refused(toy):
    toy.train(a=A, b=B)
    path = toy.results / history_name("toy-table1", "desk")
    content = read_object(path, "history")
    content["plans"][0]["plan"]["seeds"] = [0, 1]
    write_json(path, content)
    with pytest.raises(UserError, match="was changed after it was written; restore the file"):
        toy.verdict()


def test_every_run_of_a_queue_is_stamped_before_it_starts(toy):
    experiment = toy.load()
    found = stamps([ExperimentAtScale(experiment, "desk")], toy.results)
    [planned] = history("toy-table1", "desk", toy.results)
    assert len(found) == 8
    assert set(map(tuple, found.values())) == {(Stamp(id="toy-table1", scale="desk", digest=planned.digest),)}


def test_seeds_that_were_left_out_are_named(toy):
    toy.train(a=[*A[:3], 9.0], b=B)
    toy.content["scales"]["desk"] |= {"seeds": [0, 1, 2], "earlier_seeds": [3]}
    assert toy.verdict().flags[0].endswith("change of plan: seeds 3 of 0 to 3 were left out")


def test_a_search_that_was_removed_is_a_change_though_its_values_stay(toy):
    with_sweep(toy)
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.004, "b": 0.004}}}
    toy.train(a=A, b=B)
    del toy.content["sweep"]
    for cell in toy.content["cells"].values():
        cell["config"] = {"training": {"optimizer": {"lr": 0.004}}}
    assert toy.verdict().flags[0].endswith("the search for the swept setting")


def test_two_claims_with_one_text_are_refused(toy):
    toy.content["claims"] *= 2
    with pytest.raises(UserError, match="two claims have the text 'a is below b'"):
        toy.load()


def test_a_plan_that_returned_to_an_earlier_one_is_dated_by_the_return(toy):
    toy.train(a=A, b=B)
    changed(toy, "test")
    toy.train(a=A[:2], b=B[:2])
    toy.content["claims"][0]["test"] = "loss[a] < [b]"
    assert toy.verdict().flags == ("decided after a change of plan: its test, which was loss[a] - [b] < -0.01",)


def test_a_verdict_on_what_is_counted_has_a_plan_too(toy):
    toy.content["claims"][0]["test"] = "every(flops[b] < [a])"
    toy.train(a=A, b=B)
    toy.content["claims"][0]["test"] = "every(flops[a] < [b])"
    assert (toy.verdict().word, toy.verdict().note) == ("fails", "after a change of plan")


# ---- values that another metric chose ----


def with_sweep(toy, metric=LOSS):
    toy.content["sweep"] = copy.deepcopy(SWEEP)
    toy.content["claims"][0]["test"] = f"{metric}[a] < [b]"


def test_each_metric_reads_the_runs_at_its_own_value(toy):
    with_sweep(toy, ENTROPY)
    experiment = toy.load()
    runs = {run.cell: run.config.training.optimizer.lr for run in cell_runs(experiment, "desk", 0)}
    assert runs == {"a": 0.002, "b": 0.004, f"a@{ENTROPY}": 0.004}
    arms = {"a": A, "b": B, f"a@{ENTROPY}": A}
    toy.train(entropies={"a": [9.0] * 4, "b": B, f"a@{ENTROPY}": A}, **arms)
    verdict = toy.verdict()
    # 9.0 is the number of the arm that the loss chose: read by mistake, it would be above b's.
    assert (verdict.word, verdict.flags) == ("holds", ())


def test_arms_at_values_that_another_metric_chose_decide_nothing_if_these_differ(toy):
    with_sweep(toy, ENTROPY)
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.002, "b": 0.004}}}
    toy.train(entropies={"a": A, "b": B}, a=A, b=B)
    verdict = toy.verdict()
    assert verdict.word == "cannot tell here" and verdict.holds is None
    assert verdict.flags == (f"training.optimizer.lr was chosen by {LOSS}: a 0.002, b 0.004",)
    assert "another metric chose" in verdict.evidence


def test_arms_at_one_value_that_another_metric_chose_are_flagged(toy):
    with_sweep(toy, ENTROPY)
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.004, "b": 0.004}}}
    toy.train(entropies={"a": A, "b": B}, a=A, b=B)
    assert toy.verdict().word == "holds" and "was chosen by" in toy.verdict().flags[0]


@pytest.mark.parametrize("metric, word", [(LOSS, "holds"), (ENTROPY, "cannot tell here")])
def test_arms_have_the_values_that_were_searched_for_what_they_start_from(toy, metric, word):
    with_sweep(toy, metric)
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.002, "b": 0.004}}}
    toy.content["cells"] |= {
        "from-a": {"arch": "vanilla", "phase": "one", "start": "a"},
        "from-b": {"arch": "vanilla", "phase": "one", "start": "b"},
    }
    toy.content["claims"][0]["test"] = f"{metric}[from-a] < [from-b]"
    arms = {"a": A, "b": B, "from-a": A, "from-b": B}
    toy.train(entropies=arms, **arms)
    verdict = toy.verdict()
    flags = (f"training.optimizer.lr was chosen by {LOSS}: a 0.002, b 0.004",)
    assert (verdict.word, verdict.flags) == (word, () if metric == LOSS else flags)


def test_a_value_at_the_edge_of_the_grid_decides_nothing(toy):
    with_sweep(toy)
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.008, "b": 0.004}}}
    toy.train(a=A)
    assert toy.verdict().word == "not run"
    toy.train(b=B)
    verdict = toy.verdict()
    assert verdict.flags == ("training.optimizer.lr of a lies at the edge of the grid (0.008)",)
    assert verdict.word == "cannot tell here" and "beyond the edge of the grid an arm may be better" in verdict.evidence
    toy.content["sweep"]["chosen"][LOSS]["a"] = 0.004
    toy.train(a=A, b=B)
    assert toy.verdict().word == "holds"


def test_a_claim_on_one_arm_at_a_value_that_another_metric_chose_is_flagged(toy):
    with_sweep(toy)
    toy.content["claims"][0]["test"] = "probes.entropy.mean[a] < 4"
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.004, "b": 0.002}}}
    toy.train(entropies={"a": A, "b": B}, a=A, b=B)
    assert (toy.verdict().word, len(toy.verdict().flags)) == ("holds", 1)


def test_a_control_of_arms_at_values_that_another_metric_chose_lets_nothing_be_told(toy):
    with_sweep(toy)
    toy.content["claims"][0]["controls"] = ["probes.entropy.mean[a] < [b]"]
    toy.content["sweep"] |= {"metrics": [LOSS], "chosen": {LOSS: {"a": 0.004, "b": 0.002}}}
    toy.train(entropies={"a": A, "b": B}, a=A, b=B)
    assert toy.verdict().word == "cannot tell here" and "was chosen by" in toy.verdict().flags[0]


@pytest.mark.parametrize("sweep", [{"cells": ["a"], "chosen": {LOSS: {"a": 0.004}}}, {"scale": "small", "chosen": {}}])
def test_a_value_beside_the_search_is_a_difference_like_any_other(toy, sweep):
    toy.content["scales"]["small"] = copy.deepcopy(toy.content["scales"]["desk"])
    with_sweep(toy)
    toy.content["sweep"] |= {"metrics": [LOSS], **sweep}
    toy.content["cells"]["b"]["config"] = {"training": {"optimizer": {"lr": 0.5}}}
    toy.train(a=A, b=B)
    with pytest.raises(UserError, match="differ in training.optimizer.lr"):
        toy.verdict()


# ---- what arms differ in ----


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"training": {"tokens_per_step": 4096}}, "training.tokens_per_step"),
        ({"training": {"optimizer": {"lr": 0.5}}}, "training.optimizer.lr"),
        ({"evaluation": {"validation_windows": 7}}, "evaluation.validation_windows"),
    ],
)
def test_a_difference_that_the_claim_does_not_name_is_an_error_of_the_experiment(toy, config, name):
    toy.content["cells"]["b"]["config"] = config
    toy.train(a=A, b=B)
    with pytest.raises(UserError, match=rf"toy\.yaml:\d+: toy-table1: the arms .* differ in {name} .*differ_in: "):
        toy.verdict()
    toy.content["claims"][0]["differ_in"] = [name.partition(".")[0]]
    assert toy.verdict().word == "holds"
    del toy.content["claims"][0]["differ_in"]
    toy.content["differ_in"] = [name]
    assert toy.verdict().word == "holds"


@pytest.mark.parametrize("name", ["tokens_per_step", "seed"])
def test_a_difference_in_the_record_of_a_later_seed_is_found(toy, name):
    toy.train(a=A, b=B)
    [digest] = [run.hash for run in cell_runs(toy.load(), "desk", 2) if run.cell == "b"]
    path = toy.results / record_name(digest)
    content = read_object(path, "record")
    content["config"]["training"][name] = 77
    write_json(path, content)
    with pytest.raises(UserError, match=f"differ in training.{name} .*b: 77"):
        toy.verdict()


def test_the_method_may_differ_and_is_shown(toy):
    toy.train(a=A, b=B)
    experiment = toy.load()
    records = records_of(experiment, "desk", toy.results)
    shown = arms_differ(experiment, "desk", toy.verdicts(), records)
    assert shown["arch"] == {"a": "vanilla", "b": "all-window"} and not any(name.startswith("train") for name in shown)
    assert differences(["a", "a"], settings_of(records)[0]) == {}


@pytest.mark.parametrize("name", experiment_ids())
def test_no_arms_of_an_entry_differ_unsaid_at_any_scale(name):
    experiment = experiments.load_experiment(name)
    for scale in experiment.scales:
        if experiment.needed_cells(scale) and experiment.benchmark is None:
            check_plan(experiment, scale)


def test_it_is_found_before_anything_is_trained(toy):
    toy.content["cells"]["b"]["config"] = {"training": {"tokens_per_step": 4096}}
    with pytest.raises(UserError, match="differ in training.tokens_per_step"):
        ExperimentAtScale(toy.load(), "desk").runs()
    assert not history("toy-table1", "desk", toy.results)


# ---- one page ----


def test_what_does_not_survive_the_correction_over_the_page_is_open(toy):
    """p = 0.03 alone; with nine claims beside it that show nothing, 0.3."""
    near = [3.0, 3.11, 2.93, 3.08]
    toy.content["claims"][0]["test"] = "loss[a] < [b]"
    toy.train(a=near, b=[3.08, 3.2, 2.94, 3.17])
    alone = toy.verdict()
    assert alone.word == "holds" and 0.01 < alone.p < 0.05
    toy.content["claims"] += [
        {"text": f"nothing {i}", "source": "here", "test": f"loss[a] > {3.03 + i / 1000}"} for i in range(9)
    ]
    first = toy.verdict()
    assert first.word == "open" and "after the page's correction" in first.note
    assert any("correction over the 10 claims of this page" in flag for flag in first.flags)


def test_claims_that_read_the_same_numbers_are_one(toy):
    toy.content["claims"] = [{**toy.content["claims"][0], "text": f"size {i}"} for i in range(3)]
    toy.train(a=A, b=B)
    assert [verdict.flags for verdict in toy.verdicts()] == [(), *[("the same numbers as claim 1",)] * 2]


def test_numbers_that_are_0_in_every_seed_are_not_the_same_numbers(toy):
    """Of two quantities; of one they are."""
    zero = {"formula": "0 * y", "of": {"y": LOSS}}
    toy.content["measures"] = {"harm": {"title": "harm", **zero}, "gain": {"title": "gain", **zero}}
    tests = ["harm[a] > 0.1", "gain[a] > 0.1", "harm[b] > 0.1", "harm[a] > 0.1"]
    toy.content["claims"] = [{"text": f"{i}", "source": "here", "test": test} for i, test in enumerate(tests)]
    toy.train(a=A, b=B)
    assert [one.flags for one in toy.verdicts()] == [(), (), (), ("the same numbers as claim 1",)]


def test_a_claim_turned_round_or_in_another_order_is_the_same(toy):
    toy.content["cells"]["c"] = {"arch": "all-window", "phase": "one", "config": {"window": 2}}
    tests = ["loss[a] < [b, c]", "loss[a] < [c, b]", "loss[b, c] > [a]"]
    toy.content["claims"] = [{"text": f"{i}", "source": "here", "test": test} for i, test in enumerate(tests)]
    toy.train(a=A, b=B, c=[3.2, 3.23, 3.21, 3.24])
    assert [verdict.flags for verdict in toy.verdicts()] == [(), *[("the same numbers as claim 1",)] * 2]


@pytest.mark.parametrize("first", ["<", "<="])
def test_at_most_and_below_are_two_questions(toy, first):
    tests = {sign: f"loss[a] {sign} [b] + 0.01" for sign in sorted(("<", "<="), key=lambda sign: sign != first)}
    toy.content["claims"] = [{"text": sign, "source": "here", "test": test} for sign, test in tests.items()]
    toy.train(a=A, b=B)
    assert [verdict.flags for verdict in toy.verdicts()] == [(), ()]


def test_one_difference_asked_with_two_margins_is_two_claims(toy):
    tests = {by: f"abs(loss[a] - [b]) > {by}" for by in (0.001, 0.17)}
    toy.content["claims"] = [{"text": f"{by}", "source": "here", "test": test} for by, test in tests.items()]
    toy.train(a=A, b=B)
    assert [verdict.flags for verdict in toy.verdicts()] == [(), ()]


# ---- runs whose rate a further metric chose ----


@pytest.fixture
def two_rates(toy):
    """Two arms whose rates differ by metric; at those that the loss chose, a is below b, at the others above it."""
    chosen = {ENTROPY: {"a": 0.002, "b": 0.004}, LOSS: {"a": 0.001, "b": 0.002}}
    toy.content["sweep"] = {**SWEEP, "metrics": [ENTROPY, LOSS], "chosen": chosen, "grid": [0.0005, *SWEEP["grid"]]}
    other = {f"{cell}@{LOSS}": losses for cell, losses in (("a", A), ("b", B))}
    equal = dict.fromkeys((*other, "a", "b"), A)
    toy.train(**{"a": [loss + 0.3 for loss in B], "b": [loss + 0.1 for loss in B], **other}, entropies=equal)
    return toy


def test_nothing_is_told_of_an_arm_that_is_better_at_a_rate_of_another_metric(two_rates):
    assert two_rates.verdict().word == "holds"
    two_rates.train(a=[loss - 0.1 for loss in A])
    verdict = two_rates.verdict()
    assert verdict.word == "cannot tell here"
    (flag,) = [str(flag) for flag in verdict.flags if flag.code == "missed"]
    assert "a does better at 0.002 than at its 0.001: 2.9 and 3 in" in flag and "in 4 of 4 seeds" in flag
    # Better in the mean alone, by what the seeds differ in, is no better rate.
    two_rates.train(a=[A[0] - 0.2, *(loss + 0.01 for loss in A[1:])])
    assert two_rates.verdict().word == "holds"


# ---- what an arm has been trained with, and whether what it learned has settled ----


def in_parts(toy, last="second", budget=15):
    """a in one run of 30 steps; b in two parts, whose last one goes on from the part `last`."""
    toy.content["equal"] = "steps"
    toy.content["cells"] |= {
        "first": {"arch": "all-window", "phase": "part"},
        "second": {"arch": "all-window", "phase": "part", "start": "first"},
        "b": {"arch": "all-window", "phase": "last", "start": last},
    }
    phases = {"part": {"training": {"steps": 10}}, "last": {"training": {"steps": 10}}}
    toy.content["scales"]["desk"]["phases"] |= phases
    toy.content["differ_in"] = ["training"]


def test_steps_of_a_part_whose_weights_are_thrown_away_do_not_count(toy):
    in_parts(toy)
    toy.train(a=A, b=B, first=B, second=B)
    verdict = toy.verdict()
    assert verdict.word == "holds" and not verdict.flags
    check_plan(toy.load(), "desk")
    in_parts(toy, last="first")
    toy.train(a=A, b=B, first=B, second=B)
    verdict = toy.verdict()
    assert verdict.word == "cannot tell here"
    (flag,) = [flag for flag in verdict.flags if flag.code == "training"]
    assert "steps: a 30, b 20" in flag
    with pytest.raises(UserError, match=r"toy.yaml:\d+: .*equal steps up to their final weights, and have a 30, b 20"):
        check_plan(toy.load(), "desk")
    # Where the file says nothing of it, arms that are equal in nothing are named.
    del toy.content["equal"]
    assert not toy.verdict().flags, "it says that they differ in their training"
    toy.content["differ_in"] = ["training.skip_steps"]
    toy.content["scales"]["desk"]["phases"]["last"]["training"]["steps"] = 30
    toy.train(a=A, b=B, first=B)
    verdict = toy.verdict()
    assert verdict.word == "holds" and [flag.code for flag in verdict.flags] == ["training"]
    assert "steps: a 30, b 40" in verdict.flags[0]


def test_the_page_says_what_final_weights_have_been_trained_with(toy):
    in_parts(toy)
    toy.train(a=A, b=B, first=B, second=B)
    write_entry(toy.load(), "desk", toy.results)
    data = json.loads((toy.results / "toy-table1" / "desk" / "table.json").read_text())
    assert {arm: one["steps"] for arm, one in data["weights"].items()} == {"a": 30, "b": 30}
    text = (toy.results / "toy-table1" / "desk" / "table.md").read_text()
    assert all(f"- {arm}: 30 steps, " in text for arm in ("a", "b"))


def test_nothing_is_told_of_masks_that_have_not_settled(toy):
    """Of those of an arm's parent too; but of how they were learned."""
    toy.content["cells"]["masks"] = {
        "arch": "consa",
        "phase": "one",
        "config": {"controller": {"rho": 0.5, "granularity": "layer"}},
    }
    toy.content["cells"]["b"] = {"arch": "vanilla", "phase": "one", "masks": "masks"}
    toy.content["measures"] = {
        "kept": {"title": "kept", "of": {"m": "controller.masks"}, "formula": "mean(m)"},
        "layers": {"title": "layers", "of": {"m": "controller.masks"}, "formula": "len(m)"},
    }
    tests = ["loss[a] < [b]", "kept[masks] > 0.1", "layers[masks] > 1", "controller.expected_sparsity[masks] < 0.6"]
    toy.content["claims"] = [{"text": test, "source": "here", "test": test} for test in tests]
    toy.train(a=A, b=B, masks=B)

    def learned(settled, but=()):
        for run in records_of(toy.load(), "desk", toy.results)["masks"].values():
            found = {
                "settled": settled != (run.seed in but),
                "masks": [[1], [0], [1]],
                "expected_sparsity": 0.5 + run.seed / 1000,
            }
            save_record(run.model_copy(update={"hooks": {"mask-learning": found}}), toy.results)
        for run in records_of(toy.load(), "desk", toy.results)["b"].values():
            save_record(run.model_copy(update={"parents": [run.config["map"]["run"]]}), toy.results)

    learned(True)
    before = [one.word for one in toy.verdicts()]
    assert before[0] == before[3] == "holds"
    learned(False)
    after = toy.verdicts()
    assert [one.word for one in after] == ["cannot tell here", "cannot tell here", before[2], "holds"]
    assert "masks that have not settled (b, seeds 0, 1, 2, 3)" in after[0].flags
    # Of one seed among several it is said, and counts where the others alone say something else.
    learned(True, but=[1])
    assert [one.word for one in toy.verdicts()] == before
    assert "masks that have not settled (b, seeds 1)" in toy.verdict().flags
    toy.train(b=[2.9, 9.0, 2.88, 2.91])
    learned(True, but=[1])
    assert toy.verdict().word == "cannot tell here"


def test_what_arms_differ_in_is_that_of_the_runs_that_a_claim_reads(two_rates):
    experiment = two_rates.load()
    records = records_of(experiment, "desk", two_rates.results)
    shown = arms_differ(experiment, "desk", two_rates.verdicts(), records)
    assert shown["training.optimizer.lr"] == {f"a@{LOSS}": 0.001, f"b@{LOSS}": 0.002}
    two_rates.content["claims"][0]["test"] = f"{ENTROPY.removeprefix('results.')}[a] < [b]"
    experiment = two_rates.load()
    shown = arms_differ(experiment, "desk", two_rates.verdicts(), records)
    assert shown["training.optimizer.lr"] == {"a": 0.002, "b": 0.004}


def test_a_kind_that_reads_the_loss_reads_the_runs_whose_rate_the_loss_chose(two_rates):
    test = {"kind": "u_shaped", "cells": ["b", "a", "b"]}
    two_rates.content["claims"][0] = {"text": "t", "source": "here", "test": test}
    verdict = two_rates.verdict()
    assert verdict.word == "holds", "at the other rates a lies above b"
    assert not any("chosen by" in flag for flag in verdict.flags)
    two_rates.content["claims"][0]["test"] = {**test, "metric": ENTROPY}
    assert two_rates.verdict().word != "holds"


def test_claims_of_one_metric_are_corrected_together_in_whatever_order_they_name_metrics(toy):
    toy.content["correction"] = "metric"
    entropy = ENTROPY.removeprefix("results.")
    toy.train(a=A, b=B, entropies={"a": A, "b": B})
    first, alone = {"text": "one", "source": "here", "test": f"loss|{entropy}[a] < [b]"}, []
    for second in (f"loss|{entropy}[a] < 3.05", f"{entropy}|loss[a] < 3.05"):
        toy.content["claims"] = [first, {"text": "two", "source": "here", "test": second}]
        alone.append(toy.verdicts()[0].p)
    toy.content["claims"] = [first]
    assert alone[0] == alone[1] > toy.verdicts()[0].p


# ---- single seeds, and claims on the same runs ----


def hangs(verdict):
    return [flag for flag in verdict.flags if flag.code == "seed"]


def test_a_verdict_that_one_seed_decides_says_so(toy):
    """Without seed 3 the differences are -0.02, -0.03 and -0.01, p = 0.074; with it -0.02 too, p = 0.016."""
    toy.train(a=[3.0] * 4, b=[3.02, 3.03, 3.01, 3.02])
    [flag] = hangs(toy.verdict())
    assert toy.verdict().word == "holds" and flag.startswith("hangs on one seed: not resolved without seed 0 or 3")
    toy.train(a=A, b=B)
    assert toy.verdict().word == "holds" and not hangs(toy.verdict())
    toy.train(a=[3.02, 3.03, 3.01, 3.02], b=[3.0] * 4)
    assert toy.verdict().word == "fails" and hangs(toy.verdict())


def test_three_seeds_hang_on_each_of_them(toy):
    """Two decide nothing."""
    toy.train(a=A[:3], b=B[:3])
    toy.content["scales"]["desk"]["seeds"] = [0, 1, 2]
    assert hangs(toy.verdict()) == ["hangs on one seed: not resolved without seed 0 or 1 or 2"]


def test_a_verdict_hangs_on_a_seed_by_its_control_and_by_the_other_claims_of_the_page(toy):
    toy.content["claims"][0]["controls"] = ["loss[b] < 3.04"]
    toy.train(a=[2.0, 2.01, 2.0, 2.02], b=[3.02, 3.03, 3.01, 3.02])
    assert toy.verdict().word == "holds" and hangs(toy.verdict())
    del toy.content["claims"][0]["controls"]
    assert not hangs(toy.verdict())
    # Alone without a seed p is 0.021 at most; nine claims beside it that show nothing make it 0.21.
    toy.train(a=[3.0, 3.0, 3.0, 3.0], b=[3.1, 3.12, 3.1, 3.09])
    assert not hangs(toy.verdict())
    nothing = [{"text": f"{i}", "source": "here", "test": f"loss[b] > {3.1025 + i / 10_000}"} for i in range(9)]
    toy.content["claims"] += nothing
    assert toy.verdict().word == "holds" and hangs(toy.verdict())


def test_a_claim_that_no_run_decides_hangs_on_none(toy):
    toy.content["claims"][0]["test"] = "every(flops[b] < [a])"
    toy.train(a=A, b=B)
    assert toy.verdict().word == "fails" and not hangs(toy.verdict())


def test_a_control_that_every_seed_meets_alike_holds(toy):
    """An accuracy of 1 in every seed, over a guess of one in five: 5 times, where more than 1.5 is asked."""
    toy.content["measures"] = {
        "able": {
            "title": "accuracy / guess",
            "of": {"y": "results.probes.lens.accuracy", "g": "results.probes.lens.chance"},
            "formula": "y / g",
        }
    }
    toy.content["claims"][0]["controls"] = ["able[a] > 1.5"]
    toy.train(a=A, b=B, probes={"lens": {"accuracy": 1.0, "chance": 0.2}})
    verdict = toy.verdict()
    assert verdict.word == "holds" and verdict.controls[0].verdict.p == pytest.approx(2 * 0.3**4)
    assert (
        "the same in every seed, of a number that is at least 0" in verdict.controls[0].verdict.comparisons[0]["note"]
    )
    toy.content["claims"][0]["controls"] = ["probes.lens.accuracy[a] > 0.9"]
    assert toy.verdict().word == "cannot tell here"


def test_arms_at_one_value_are_not_at_that_which_the_metric_chose(toy):
    """The first metric of a test chooses its runs; the second one was searched too, and chose another rate."""
    with_sweep(toy)
    toy.content["sweep"] |= {"chosen": {LOSS: {"a": 0.004, "b": 0.004}, ENTROPY: {"a": 0.002, "b": 0.004}}}
    toy.content["claims"][0]["test"] = "loss[a] < [b] and probes.entropy.mean[a] < [b]"
    equal = {"a": A, "b": B, f"a@{ENTROPY}": A}
    toy.train(entropies=equal, **equal)
    verdict = toy.verdict()
    assert verdict.word == "cannot tell here" and "own rate" in [flag.code for flag in verdict.flags]
    assert any("chose another training.optimizer.lr: a 0.002 instead of 0.004" in flag for flag in verdict.flags)
    assert "the metric chose another value of a setting than the arms have" in verdict.evidence
    toy.content["sweep"]["chosen"][ENTROPY]["a"] = 0.004
    toy.train(entropies=equal, a=A, b=B)
    assert toy.verdict().word == "holds"


def test_claims_of_several_pages_on_the_same_numbers_of_the_same_runs_say_which_has_the_vote():
    """Over all published pages at scale desk: what stands on an earlier page of the paper too."""
    first = {}
    for identifier in experiment_ids():
        for path in (PUBLISHED / identifier / "desk").glob("*.json"):
            data = as_read(read_object(path, "page"))
            for number, claim in enumerate(data.get("claims", []), 1):
                numbers = frozenset(
                    (
                        either_way(one),
                        one["metric"],
                        *sorted({run for cell in one["cells"] for run in data["runs"].get(cell, {}).values()}),
                    )
                    for one in claim["comparisons"]
                    if one["n"] >= 3
                )
                if numbers and all(one["metric"] for one in claim["comparisons"]):
                    place = first.setdefault((data["paper"], numbers), (identifier, number))
                    assert place[0] == identifier or tuple((claim.get("same_on") or {}).values()) == place, (
                        identifier,
                        number,
                    )


def test_a_claim_has_no_vote_where_the_same_one_has():
    places = {("a", 1): ("holds", None), ("b", 1): ("holds", ("a", 1)), ("b", 2): ("open", ("a", 1))}
    assert repeated(places) == {("b", 1)}, "another verdict counts"
    assert not repeated({("b", 1): ("holds", ("a", 1))}), "the other one is not in the list"
