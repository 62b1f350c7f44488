"""SGT as a run: growth while it trains, kills inside a window, what it costs, what its model is afterwards."""

import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybridlab.accounting.flops import ledger
from hybridlab.analysis.convergence import _lemma, rank_correlation
from hybridlab.analysis.entropy import row_entropy
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import run_hash
from hybridlab.errors import RunFailed, UserError
from hybridlab.models.build import build_model
from hybridlab.models.export import load_checkpoint
from hybridlab.models.generate import generate
from hybridlab.plan.from_config import map_of
from hybridlab.plan.plan import Plan
from hybridlab.reporting.plots import KINDS
from hybridlab.reproduction.compose import compose
from hybridlab.reproduction.evaluate import analyze_run, evaluate_run
from hybridlab.reproduction.run import execute
from hybridlab.reproduction.schedule_cost import final_plan, planned
from hybridlab.training.engine import Run
from hybridlab.training.folders import RunFolder, Runs
from hybridlab.training.metrics import read_metrics
from tests.conftest import SMALL_SHAPE
from tests.integration.test_engine import assert_same_run, cut_and_finished, killed_and_finished, train

TIMES = {"start_step": 3, "interval": 3, "fade_steps": 3}
FIVE = {"shape": {"layers": 5}, "evaluation": {"task_window": None}}


def grown(small, steps=20, arch="sgt", **controller):
    settings = {"controller": {**TIMES, "max_passes": 2, "max_layers": 2, **controller}, "training": {"steps": steps}}
    return small(arch, **FIVE, **settings)


def events(record):
    return [(e["step"], e["kind"], e.get("layer")) for e in record["events"]]


def test_it_grows_fades_and_freezes_on_time(small, tmp_path, runs_dir):
    record = train(grown(small, layers=[1, 3], max_layers=None), tmp_path / "a", runs_dir)
    found = events(record)
    assert [(step, kind) for step, kind, _ in found] == [
        (3, "loop-added"), (6, "loop-deepened"), (6, "fade-ended"), (9, "loop-added"), (12, "loop-deepened"),
        (12, "growth-frozen"), (12, "fade-ended"),
    ]  # fmt: skip
    assert [layer for _, kind, layer in found if kind == "loop-added"] == [3, 1]
    lines = [line for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "step" in line]
    assert [line["fade"] for line in lines[:8]] == pytest.approx([0, 0, 1, 2 / 3, 1 / 3, 0, 0, 0])
    assert [line["extra_passes"] for line in lines] == [0] * 2 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 9
    logged = [line["event"] for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "event" in line]
    assert logged == record["events"]
    controller = record["controllers"]["entropy-growth"]
    assert controller["frozen"] == "the target is reached"
    assert [(f["passes"], len(f["heads"])) for f in controller["looped"]] == [(2, 2), (2, 2)]


def test_the_flops_spent_are_those_of_the_plans_that_ran(small, tmp_path, runs_dir):
    controller = {**TIMES, "layers": [1, 3], "max_passes": 2}
    # Every query head has its own KV head here, so that all choices of heads cost the same.
    config = small("sgt", shape={"layers": 5, "kv_heads": 4}, controller=controller, training={"steps": 20})
    record = train(config, tmp_path / "a", runs_dir)
    shape, rows, length = config.shape, config.training.rows, config.training.seq_len
    attention_map = map_of(config.map, shape)
    spent = sum(
        n * rows * ledger(shape, plan, attention_map, length, "executed").training for plan, n in planned(config)
    )
    assert record["flops"] == pytest.approx(spent, rel=1e-12)
    assert sum(n for _, n in planned(config)) == config.training.steps
    loops = [[len(v.heads) for v in plan.visits if v.heads] for plan, _ in planned(config)]
    assert loops == [[], [4], [2, 2], [4, 2, 2], [2, 2, 2, 2]]


def test_the_entropies_behind_a_decision_are_those_of_the_model(small, tmp_path, runs_dir, monkeypatch):
    """Measured again from outside: the weights that step 1 trains with, on the batch of step 1, decay 0."""
    seen = {}
    gradients = Run._gradients

    def watched(self, batch, step):
        if step == 2:
            with torch.no_grad():
                weights = self.model(torch.from_numpy(batch.tokens), need="full").attention
            rows = [weights[(layer,)][:, :, -1].double() for layer in range(5)]
            length = batch.tokens.shape[1]
            entropy = [-torch.xlogy(w, w).sum(-1).mean(0) / torch.tensor(length).double().log() for w in rows]
            seen["table"] = torch.stack(entropy)
        return gradients(self, batch, step)

    monkeypatch.setattr(Run, "_gradients", watched)
    record = train(grown(small, ema_decay=0.0), tmp_path / "a", runs_dir)
    event = record["events"][0]
    torch.testing.assert_close(
        torch.tensor(event["layer_entropies"]).double(), seen["table"].mean(1), atol=2e-6, rtol=0
    )
    ranked = seen["table"][event["layer"]].argsort(descending=True).tolist()
    assert event["heads"] == sorted(ranked[:2])
    pool = seen["table"].mean(1)[1:].argsort(descending=True)[:2] + 1
    assert event["layer"] == int(pool.max())


@pytest.mark.parametrize("micro", [3, 1])
def test_accumulation_measures_the_same_entropies(small, tmp_path, runs_dir, micro):
    whole = train(grown(small), tmp_path / "whole", runs_dir)
    config = grown(small)
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"micro_batch_rows": micro})})
    parts = train(config, tmp_path / "parts", runs_dir)
    one, two = (r["events"][0]["entropies"] for r in (whole, parts))
    assert one == pytest.approx(two, abs=1e-5)
    assert events(whole) == events(parts)


def test_activation_checkpointing_changes_nothing(small, tmp_path, runs_dir):
    config = grown(small)
    other = config.model_copy(update={"runtime": config.runtime.model_copy(update={"activation_checkpointing": True})})
    assert run_hash(config) == run_hash(other)
    train(config, tmp_path / "plain", runs_dir)
    train(other, tmp_path / "again", runs_dir)
    assert_same_run(tmp_path / "plain", tmp_path / "again")


@pytest.mark.parametrize("step", [1, 4, 5, 7, 10, 13])
def test_resume_is_exact_inside_a_window(small, tmp_path, runs_dir, monkeypatch, step):
    config = small("sgt", **FIVE, controller={**TIMES, "max_layers": 2, "shortlist": 3}, observe={"entropy_every": 2},
                   training={"steps": 16}, runtime={"checkpoint_every": 2})  # fmt: skip
    train(config, tmp_path / "whole", runs_dir)
    cut_and_finished(config, tmp_path, runs_dir, monkeypatch, step)


def test_three_kills_inside_windows_and_the_same_bits(small, tmp_path, runs_dir):
    """A real process and a real SIGKILL, three times, at steps between the actions of the growth."""
    times = {"start_step": 15, "interval": 15, "fade_steps": 15}
    config = small("sgt", **FIVE, controller={**times, "max_passes": 2, "max_layers": 2}, training={"steps": 90},
                   observe={"entropy_every": 10})  # fmt: skip
    killed_and_finished(config, tmp_path, runs_dir, (20, 38, 52))


# ---- the model that it leaves ----


class Products(TorchDispatchMode):
    """The shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.shapes.append((tuple(args[0].shape), tuple(args[1].shape)))
        return function(*args, **(kwargs or {}))


def test_a_loop_multiplies_the_matrices_of_its_heads_only():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "layers": 3, "heads": 6, "kv_heads": 3})
    tokens = torch.randint(400, (1, 16))

    def products(plan):
        mode = Products()
        with torch.no_grad(), mode:
            model.with_plan(plan)(tokens)
        return mode.shapes

    plain, looped = products(model.plan), products(model.plan.loop_heads(1, (1, 4), 1))
    extra = list(looped)
    for shape in plain:
        extra.remove(shape)
    width, head = 24, 8
    wanted = [
        ((16, width), (width, 2 * head)),  # q of two heads
        ((16, width), (width, 2 * head)),  # k: they read two KV heads
        ((16, width), (width, 2 * head)),  # v
        ((2, 16, head), (2, head, 16)),  # scores
        ((2, 16, 16), (2, 16, head)),  # values
        ((16, 2 * head), (2 * head, width)),  # W_O
    ]
    assert sorted(extra) == sorted(wanted)
    shared = products(model.plan.loop_heads(1, (2, 3), 1))
    for shape in plain:
        shared.remove(shape)
    assert shared.count(((16, width), (width, head))) == 2, "two heads of one group project its K and V once"


def test_the_change_of_the_plan_at_the_end_of_a_fade_changes_no_logit():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "layers": 3, "init": {"std": 0.3}}).double()
    tokens = torch.randint(400, (2, 16))
    whole = model.plan.loop_heads(1, range(4), 2)
    kept = model.with_plan(model.plan.loop_heads(1, (0, 3), 2))
    factors = torch.tensor([1.0, 0.0, 0.0, 1.0])
    with torch.no_grad():
        ended = model.with_plan(whole)(tokens, factors={(2,): factors, (3,): factors}).logits
        torch.testing.assert_close(ended, kept(tokens).logits, atol=1e-12, rtol=1e-12)
        faded = model.with_plan(whole)(tokens, factors={(2,): 0.5 + factors / 2, (3,): 0.5 + factors / 2}).logits
        assert (faded - ended).abs().max() > 1e-3


def test_heads_that_fade_get_their_share_of_the_gradient_and_the_others_none():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "layers": 1, "kv_heads": 4})
    # Attention of the loop alone: what reaches q of a head comes through its factor.
    plan = Plan((*model.plan.loop_heads(0, range(4), 1).visits[1:2],), 1)
    looped = model.with_plan(plan)
    looped(
        torch.randint(400, (2, 16)), factors={(0,): torch.tensor([1.0, 0.5, 0.0, 0.0])}
    ).logits.square().mean().backward()
    by_head = model.blocks[0].attention.v.weight.grad.view(4, 8, -1).abs().sum((1, 2))
    assert (by_head[:2] > 0).all() and (by_head[2:] == 0).all()


def test_a_run_that_ends_inside_a_fade_keeps_its_factors(small, tmp_path, runs_dir):
    config = grown(small, steps=8, fade_steps=10, layers=[2], max_layers=None)
    record = train(config, tmp_path / "a", runs_dir)
    assert events(record)[-1] == (8, "ended-in-a-fade", None)
    model = load_checkpoint(tmp_path / "a")
    layer = record["events"][0]["layer"]
    assert set(model.factors) == {(layer + 1,), (layer + 2,)}
    kept = record["events"][0]["heads"]
    values = model.factors[(layer + 1,)].tolist()
    assert values == pytest.approx([1.0 if h in kept else 0.5 for h in range(4)])
    prompt = torch.randint(200, (2, 7))
    assert generate(model, prompt, 12).rows() == generate(model, prompt, 12, use_cache=False).rows()
    runs = Runs(tmp_path)
    with pytest.raises(UserError, match="ended inside a fade"):
        compose("vanilla", None, None, str(tmp_path / "a"), runs, None, Layer(), [])
    again = evaluate_run(str(tmp_path / "a"), Runs(runs_dir), None, [], lambda _: None)
    assert again["validation"] == record["results"]["validation"]
    found = analyze_run(str(tmp_path / "a"), Runs(runs_dir), "convergence", None, {}, lambda _: None)
    assert found["layers"] == 5
    moved = load_checkpoint(tmp_path / "a").to("meta")
    assert all(factor.device.type == "meta" for factor in moved.factors.values())


def test_a_child_of_a_grown_run_goes_on_with_its_loops(small, tmp_path, runs_dir):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "data").symlink_to(runs_dir / "data")
    parent = train(grown(small), runs / "parent", runs)
    child = compose("vanilla", None, None, str(runs / "parent"), Runs(runs), None, Layer(), ["training.steps=2"])
    record = execute(child, RunFolder(runs / "child"), Runs(runs), quiet=True)
    assert record["structure"]["plan"] == parent["structure"]["plan"] and record["parents"] == [parent["hash"]]


# ---- block loop and attention loop ----


def test_block_loop_takes_the_layers_that_a_vanilla_run_found_entropic(small, tmp_path, runs_dir):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "data").symlink_to(runs_dir / "data")
    vanilla = small("vanilla", **FIVE, observe={"entropy_every": 4})
    record = train(vanilla, runs / "vanilla", runs)
    logged = record["controllers"]["entropy-log"]
    assert logged["steps"] == [1, 4, 8, 12] and len(logged["entropies"][0]) == 5
    means = torch.tensor(logged["entropies"][1]).mean(1)
    wanted = sorted((means[1:].argsort(descending=True)[:2] + 1).tolist())
    choice = {"top_entropy_of": run_hash(vanilla), "step": 4, "n": 2}
    config = small("block-loop", **FIVE, plan=[{"op": "loop_blocks", "layers": choice}])
    looped = train(config, runs / "looped", runs)
    twice = Plan.plain(5).loop_blocks(wanted)
    assert looped["structure"]["plan"] == str(twice) and looped["parents"] == [run_hash(vanilla)]
    other = small("block-loop", **FIVE, plan=[{"op": "loop_blocks", "layers": {**choice, "step": 5}}])
    with pytest.raises(UserError, match=r"no entropies of step 5 \(it has 1, 4, 8, 12\).*observe.entropy_every=5"):
        train(other, runs / "other", runs)
    assert not (runs / "other").exists()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"last": 9}, "last 9 is not between 1 and 5"),
        ({"top_entropy_of": "abc", "n": 0}, "greater than or equal to 1"),
        ({"first": 2}, "neither a list"),
        ([7], "layer 7 does not exist"),
    ],
)
def test_layers_that_cannot_be_meant_are_refused(small, tmp_path, runs_dir, choice, message):
    with pytest.raises(UserError, match=message):
        train(small("block-loop", **FIVE, plan=[{"op": "loop_blocks", "layers": choice}]), tmp_path / "a", runs_dir)


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        ({"heads": 5}, "a layer has 4 heads"),
        ({"layers": [7]}, "names layer 7, but the last one is 4"),
        ({"max_layers": 5}, "only 4 of 5 layers may loop"),
        ({"start_step": 12}, "nothing would grow in 12 steps"),
    ],
)
def test_growth_that_does_not_fit_is_refused(small, controller, message):
    with pytest.raises(UserError, match=message):
        small("sgt", **FIVE, controller={**TIMES, **controller})


def test_growth_on_a_plan_that_leaves_no_room_is_refused(small, tmp_path, runs_dir):
    config = small("sgt", **FIVE, controller={**TIMES, "max_layers": 3}, plan=[{"op": "skip", "layers": [1, 2]}])
    with pytest.raises(UserError, match="leaves only 2 layers to grow"):
        train(config, tmp_path / "a", runs_dir)
    config = small("sgt", **FIVE, controller={**TIMES, "layers": [2]}, plan=[{"op": "loop_blocks", "layers": [2]}])
    with pytest.raises(UserError, match="does not run as one whole block"):
        train(config, tmp_path / "b", runs_dir)


def test_growth_works_on_windows_groups_and_parallel_blocks(small, tmp_path, runs_dir):
    for name, parts in {
        "windows": {"map": {"kind": "rule", "granularity": "head", "rho": 0.5, "window": 4}},
        "parallel": {"shape": {"layers": 5, "family": "neox", "rotary_fraction": 0.5}},
    }.items():
        config = small("sgt", **{**FIVE, **parts}, controller={**TIMES, "max_layers": 2})
        record = train(config, tmp_path / name, runs_dir)
        assert len(record["controllers"]["entropy-growth"]["looped"]) == 2
        model = load_checkpoint(tmp_path / name).double()
        prompt = torch.randint(200, (2, 9))
        assert generate(model, prompt, 10).rows() == generate(model, prompt, 10, use_cache=False).rows()


def test_a_probe_and_longer_windows_stand_in_the_record(small, tmp_path, runs_dir):
    config = grown(small)
    probes = ["entropy", "convergence", "contributions"]
    evaluation = config.evaluation.model_copy(update={"length_factors": [1, 2], "probes": probes})
    record = train(config.model_copy(update={"evaluation": evaluation}), tmp_path / "a", runs_dir)
    results = record["results"]
    assert results["extrapolation"]["1"] == results["validation"]
    assert results["extrapolation"]["2"]["n"] == 4
    found = results["probes"]
    assert len(found["entropy"]["heads"]) == 5 and len(found["contributions"]["examples"][0]["loops"]) == 3
    rows = found["convergence"]["rows"]
    assert len(rows) == 10 and all(row["distance"][0] == 1 and row["distance"][-1] == 0 for row in rows)
    json.dumps(record, allow_nan=False)


def test_final_plans_of_the_paper_sizes_have_three_looped_layers(small):
    from hybridlab.config.resolve import resolve

    plan = final_plan(resolve("sgt", "olmo-573m"))
    assert [len(v.heads) for v in plan.visits if v.heads] == [2, 2, 2]


# ---- what a reviewer found ----


def test_an_arch_with_a_plan_of_its_own_keeps_it_when_it_starts_from_a_run(small, tmp_path, runs_dir):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "data").symlink_to(runs_dir / "data")
    train(small("vanilla", **FIVE), runs / "plain", runs)
    train(grown(small), runs / "grown", runs)

    def made(arch, start, settings=(), **more):
        return compose(arch, None, None, str(runs / start), Runs(runs), None, Layer(), list(settings), **more)

    assert made("block-loop", "plain").plan == [{"op": "loop_blocks", "layers": {"last": 3}}]
    assert made("attention-loop", "plain").plan and not made("vanilla", "plain").plan
    assert made("sgt", "plain", ["growth.start_step=4"]).controller.start_step == 4
    chosen = made("block-loop", "plain", entropy_of=str(runs / "plain"))
    assert chosen.plan[0]["layers"]["n"] == 3 and chosen.plan[0]["layers"]["step"] == 40
    with pytest.raises(UserError, match="brings another; use --arch vanilla"):
        made("block-loop", "grown")
    assert made("vanilla", "grown").plan[0]["op"] == "visits"
    parts = ("block-loop", "tiny", None, None, Runs(runs), None, Layer(), ["growth.start_step=3"])
    assert compose(*parts, entropy_of=str(runs / "plain")).plan[0]["layers"]["step"] == 3
    choice = {"top_entropy_of": run_hash(small("vanilla", **FIVE)), "step": 1, "n": 2}
    other = small("block-loop", shape={"layers": 4}, plan=[{"op": "loop_blocks", "layers": choice}])
    with pytest.raises(UserError, match="has 5 layers of 4 heads, this one 4 of 4"):
        train(other, runs / "other", runs)


@pytest.mark.parametrize("edit", [{"op": "skip", "layers": [4]}, {"op": "drop_heads", "layer": 2, "heads": [1]}])
def test_heads_and_layers_that_do_not_run_are_no_number(small, tmp_path, runs_dir, monkeypatch, edit):
    config = small("sgt", **FIVE, controller={**TIMES, "max_layers": 2}, plan=[edit])
    whole = train(config, tmp_path / "whole", runs_dir)
    assert None in whole["events"][0]["layer_entropies"]
    cut_and_finished(config, tmp_path, runs_dir, monkeypatch, 5)


def test_nothing_grows_after_the_last_step(small, tmp_path, runs_dir):
    times = {"start_step": 6, "interval": 6, "fade_steps": 3}
    config = small("sgt", **FIVE, controller={**times, "max_layers": 2})
    record = train(config, tmp_path / "a", runs_dir)
    assert [kind for _, kind, _ in events(record)] == ["loop-added", "fade-ended"]
    assert [len(v.heads) for v in final_plan(config).visits if v.heads] == [2]


def test_heads_that_have_left_do_not_come_back(small, tmp_path, runs_dir):
    controller = {"start_step": 2, "interval": 6, "fade_steps": 3, "layers": [2], "shortlist": 3, "heads": 1}
    config = small("sgt", **FIVE, controller=controller, training={"steps": 16})
    record = train(config, tmp_path / "a", runs_dir)
    ran = [(n, [len(v.heads) for v in plan.visits if v.heads]) for plan, n in planned(config)]
    assert ran == [(2, []), (3, [4]), (6, [3]), (5, [1])]
    segments = KINDS["growth"](None, record)["segments"]
    assert [(s["since"], s["until"], s["running"], s["kept"]) for s in segments] == [
        (2, 5, 4, 3), (5, 8, 3, 3), (8, 11, 3, 1), (11, 16, 1, 1),
    ]  # fmt: skip


def test_probes_on_odd_plans_are_skipped_or_right(small, tmp_path, runs_dir):
    probes = {"probes": ["entropy", "convergence", "contributions"]}

    def found(name, **parts):
        evaluation = {**probes, "validation_windows": 4}
        return train(small(**parts, evaluation=evaluation), tmp_path / name, runs_dir)["results"]["probes"]

    nothing = found("nothing", plan=[{"op": "truncate", "layers": 0}], observe={"entropy_every": 4})
    assert all("no attention" in result["skipped"] for result in nothing.values())
    edits = [{"op": "drop_heads", "layer": 1, "heads": [0]}, {"op": "loop_heads", "layer": 1, "heads": [1, 3]}]
    assert found("odd", plan=edits)["contributions"]["examples"][0]["head"] in (1, 3)
    single = found("single", shape={"heads": 1, "kv_heads": 1})
    assert "a layer of this model has 1" in single["convergence"]["skipped"]


def test_a_diverged_run_fails_before_it_grows(small, tmp_path, runs_dir):
    settings = ["training.optimizer.lr=1e30", "training.clip=1e30", "training.schedule.warmup_steps=0"]
    config = small(
        "sgt", **FIVE, controller=TIMES, settings=settings, runtime={"log_every": 50, "checkpoint_every": 50}
    )
    with pytest.raises(RunFailed, match="lower the learning rate"):
        train(config, tmp_path / "a", runs_dir)


def test_the_lemma_is_tested_at_the_known_place():
    """A second row with a diagonal of 0.9 has an entropy of 0.325 nats: the bound is 0.85, and the lemma fails."""
    weights, keys = torch.tensor([[1.0, 0.0], [0.1, 0.9]]), torch.tensor([1, 2])
    nats = row_entropy(weights, keys) * torch.tensor([1.0, 2.0]).log()
    bound = (-nats / keys).exp()[None, None]
    assert float(bound[0, 0, 1]) == pytest.approx(0.85, abs=5e-4)
    found = _lemma({0: {"diagonal": weights.diagonal()[None, None], "bound": bound, "keys": keys.float()[None, None]}})
    assert found["violations"] == 1 and found["violations_by_row"] == {"2": 1} and found["worst"]["row"] == 2
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None and rank_correlation([1, 2, 3, 4], [9, 7, 7, 1]) < -0.9


def test_a_failed_run_is_no_parent(small, tmp_path, runs_dir):
    config = small("sgt", **FIVE, controller=TIMES, settings=["training.optimizer.lr=1e30", "training.clip=1e30"])
    with pytest.raises(RunFailed):
        train(config, tmp_path / "a", runs_dir)
