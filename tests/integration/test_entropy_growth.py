"""Growth by entropy in a run: when it acts, what it costs, how it resumes, where it is refused, and its final model."""

import numpy as np
import pytest
import torch

from hybridlab.config.resolve import resolve, run_hash
from hybridlab.config.schema import InitFrom
from hybridlab.config.structures import final_structure, forecast
from hybridlab.errors import RunFailed, UserError
from hybridlab.lab.reporting.kinds.growing import growth_of
from hybridlab.models.export import load_checkpoint
from hybridlab.models.generate import generate
from hybridlab.models.ledger.flops import ledger
from hybridlab.runs.compose import Request, compose
from hybridlab.runs.evaluate import analyze_run, evaluate_run
from hybridlab.training.engine import Run
from hybridlab.training.store.folders import Runs
from hybridlab.training.store.metrics import read_metrics
from tests.combinations import combinations
from tests.training import (
    FIVE_LAYERS,
    GROWTH_TIMES,
    assert_resumes_exactly,
    assert_same_results,
    assert_same_run,
    assert_survives_kills,
    growing,
    train,
    trained_once,
)


def events(record):
    return [(e["step"], e["kind"], e.get("layer")) for e in record.events]


def test_it_grows_fades_and_freezes_on_time(small, tmp_path, runs_dir):
    record = train(growing(small, layers=[1, 3], max_layers=None), tmp_path / "a", runs_dir)
    happened = events(record)
    assert [(step, kind) for step, kind, _ in happened] == [
        (3, "loop-added"),
        (6, "loop-deepened"),
        (6, "fade-ended"),
        (9, "loop-added"),
        (12, "loop-deepened"),
        (12, "growth-frozen"),
        (12, "fade-ended"),
    ]
    assert [layer for _, kind, layer in happened if kind == "loop-added"] == [3, 1]
    lines = [line for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "step" in line]
    assert [line["fade"] for line in lines[:8]] == pytest.approx([0, 0, 1, 2 / 3, 1 / 3, 0, 0, 0])
    assert [line["extra_passes"] for line in lines] == [0] * 2 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 9
    logged = [line["event"] for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if "event" in line]
    assert logged == record.events
    controller = record.hooks["entropy-growth"]
    assert controller["frozen"] == "the target is reached"
    assert [(f["passes"], len(f["heads"])) for f in controller["looped"]] == [(2, 2), (2, 2)]


def test_the_flops_spent_are_those_of_the_plans_that_ran(small, tmp_path, runs_dir):
    controller = {**GROWTH_TIMES, "layers": [1, 3], "max_passes": 2}
    # Every query head has its own KV head here, so that all choices of heads cost the same.
    config = small("sgt", shape={"layers": 5, "kv_heads": 4}, controller=controller, training={"steps": 20})
    record = train(config, tmp_path / "a", runs_dir)
    rows, length = config.training.rows, config.training.seq_len
    spent = sum(n * rows * ledger(structure, length, "executed").training for structure, n in forecast(config))
    assert record.flops == pytest.approx(spent, rel=1e-12)
    assert sum(n for _, n in forecast(config)) == config.training.steps
    loops = [[len(v.heads) for v in structure.plan.visits if v.heads] for structure, _ in forecast(config)]
    assert loops == [[], [4], [2, 2], [4, 2, 2], [2, 2, 2, 2]]


def test_decisions_are_made_on_the_entropies_of_the_model(small, tmp_path, runs_dir, monkeypatch):
    """Measured again from outside: the weights that step 1 trains with, on the batch of step 1, decay 0."""
    seen = {}
    gradients = Run._gradients

    def watched(self, batch, step):
        if step == 2:
            with torch.no_grad():
                weights = self.model(**batch.inputs, need="full").attention
            rows = [weights[(layer,)][:, :, -1].double() for layer in range(5)]
            length = batch.inputs["input_ids"].shape[1]
            entropy = [-torch.xlogy(w, w).sum(-1).mean(0) / torch.tensor(length).double().log() for w in rows]
            seen["table"] = torch.stack(entropy)
        return gradients(self, batch, step)

    monkeypatch.setattr(Run, "_gradients", watched)
    record = train(growing(small, ema_decay=0.0), tmp_path / "a", runs_dir)
    event = record.events[0]
    torch.testing.assert_close(
        torch.tensor(event["layer_entropies"]).double(), seen["table"].mean(1), atol=2e-6, rtol=0
    )
    ranked = seen["table"][event["layer"]].argsort(descending=True).tolist()
    assert event["heads"] == sorted(ranked[:2])
    pool = seen["table"].mean(1)[1:].argsort(descending=True)[:2] + 1
    assert event["layer"] == int(pool.max())


@pytest.mark.long
@pytest.mark.parametrize("micro", [3, 1])
def test_accumulation_measures_the_same_entropies(small, tmp_path, runs_dir, micro):
    whole = train(growing(small), tmp_path / "whole", runs_dir)
    config = growing(small)
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"micro_batch_rows": micro})})
    parts = train(config, tmp_path / "parts", runs_dir)
    one, two = (r.events[0]["entropies"] for r in (whole, parts))
    assert one == pytest.approx(two, abs=1e-5)
    assert events(whole) == events(parts)


@pytest.mark.long
def test_activation_checkpointing_changes_nothing(small, tmp_path, runs_dir):
    config = growing(small)
    other = config.model_copy(update={"runtime": config.runtime.model_copy(update={"activation_checkpointing": True})})
    assert run_hash(config) == run_hash(other)
    train(config, tmp_path / "plain", runs_dir)
    train(other, tmp_path / "again", runs_dir)
    assert_same_run(tmp_path / "plain", tmp_path / "again")


@pytest.mark.parametrize("step", [1, 4, 5, 7, 10, 13])
def test_resume_is_exact_inside_a_window(small, tmp_path, runs_dir, monkeypatch, step):
    config = small(
        "sgt",
        **FIVE_LAYERS,
        controller={**GROWTH_TIMES, "max_layers": 2, "shortlist": 3},
        observe={"entropy_every": 2},
        training={"steps": 16},
        runtime={"checkpoint_every": 2},
    )
    whole = trained_once(config, runs_dir)
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step, whole)


@pytest.mark.long
def test_three_kills_inside_fade_windows_change_no_bit(small, tmp_path, runs_dir):
    """A real process and a real SIGKILL, three times, at steps between the actions of the growth."""
    times = {"start_step": 15, "interval": 15, "fade_steps": 15}
    config = small(
        "sgt",
        **FIVE_LAYERS,
        controller={**times, "max_passes": 2, "max_layers": 2},
        training={"steps": 90},
        observe={"entropy_every": 10},
    )
    assert_survives_kills(config, tmp_path, runs_dir, (20, 38, 52))


def test_a_run_that_ends_inside_a_fade_keeps_its_factors(small, tmp_path, runs_dir):
    config = growing(small, steps=8, fade_steps=10, layers=[2], max_layers=None)
    record = train(config, tmp_path / "a", runs_dir)
    assert events(record)[-1] == (8, "ended-in-a-fade", None)
    model = load_checkpoint(tmp_path / "a")
    layer = record.events[0]["layer"]
    assert set(model.factors) == {(layer + 1,), (layer + 2,)}
    kept = record.events[0]["heads"]
    values = model.factors[(layer + 1,)].tolist()
    assert values == pytest.approx([1.0 if h in kept else 0.5 for h in range(4)])
    prompt = torch.randint(200, (2, 7))
    assert generate(model, prompt, 12).rows() == generate(model, prompt, 12, use_cache=False).rows()
    runs = Runs(tmp_path)
    with pytest.raises(UserError, match="ended during a fade"):
        compose(Request(arch="vanilla", start=str(tmp_path / "a")), runs)
    again = evaluate_run(str(tmp_path / "a"), Runs(runs_dir), None, [])
    assert again.validation == record.results.validation
    convergence = analyze_run(str(tmp_path / "a"), Runs(runs_dir), "convergence", None, {})
    assert convergence["layers"] == 5
    moved = load_checkpoint(tmp_path / "a").to("meta")
    assert all(factor.device.type == "meta" for factor in moved.factors.values())


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        ({"heads": 5}, "a layer has 4 heads"),
        ({"entropies": []}, "5 layers of 4 heads need a number for each head"),
        ({"entropies": [[0.5] * 4] * 4}, "5 layers of 4 heads need a number for each head"),
        ({"layers": [7]}, "names layer 7, but the last one is 4"),
        ({"max_layers": 5}, "only 4 of 5 layers may loop"),
        ({"start_step": 12}, "nothing would grow in 12 steps"),
    ],
)
def test_growth_settings_that_do_not_fit_the_shape_or_the_steps_are_refused(small, controller, message):
    with pytest.raises(UserError, match=message):
        small("sgt", **FIVE_LAYERS, controller={**GROWTH_TIMES, **controller})


def test_growth_on_a_plan_that_leaves_no_room_is_refused(small, tmp_path, runs_dir):
    config = small(
        "sgt", **FIVE_LAYERS, controller={**GROWTH_TIMES, "max_layers": 3}, plan=[{"op": "skip", "layers": [1, 2]}]
    )
    with pytest.raises(UserError, match="leaves only 2 layers to grow"):
        train(config, tmp_path / "a", runs_dir)
    config = small(
        "sgt", **FIVE_LAYERS, controller={**GROWTH_TIMES, "layers": [2]}, plan=[{"op": "loop_blocks", "layers": [2]}]
    )
    with pytest.raises(UserError, match=r"does not run layer 2 \(L3\) as one whole block"):
        train(config, tmp_path / "b", runs_dir)


def test_growth_works_on_windows_groups_and_parallel_blocks(small, tmp_path, runs_dir):
    for name, parts in {
        "windows": {"map": {"kind": "rule", "granularity": "head", "rho": 0.5, "window": 4}},
        "parallel": {"shape": {"layers": 5, "family": "neox", "rotary_fraction": 0.5}},
    }.items():
        config = small("sgt", **{**FIVE_LAYERS, **parts}, controller={**GROWTH_TIMES, "max_layers": 2})
        record = train(config, tmp_path / name, runs_dir)
        assert len(record.hooks["entropy-growth"]["looped"]) == 2
        model = load_checkpoint(tmp_path / name).double()
        prompt = torch.randint(200, (2, 9))
        assert generate(model, prompt, 10).rows() == generate(model, prompt, 10, use_cache=False).rows()


def test_final_plans_of_the_paper_sizes_have_three_looped_layers(small):
    plan = final_structure(resolve("sgt", "olmo-573m")).plan
    assert [len(v.heads) for v in plan.visits if v.heads] == [2, 2, 2]


@pytest.mark.parametrize("edit", [{"op": "skip", "layers": [4]}, {"op": "drop_heads", "layer": 2, "heads": [1]}])
def test_entropies_of_heads_and_layers_that_do_not_run_are_null(small, tmp_path, runs_dir, monkeypatch, edit):
    config = small("sgt", **FIVE_LAYERS, controller={**GROWTH_TIMES, "max_layers": 2}, plan=[edit])
    whole = train(config, tmp_path / "whole", runs_dir)
    assert None in whole.events[0]["layer_entropies"]
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 5)


def test_nothing_grows_after_the_last_step(small, tmp_path, runs_dir):
    times = {"start_step": 6, "interval": 6, "fade_steps": 3}
    config = small("sgt", **FIVE_LAYERS, controller={**times, "max_layers": 2})
    record = train(config, tmp_path / "a", runs_dir)
    assert [kind for _, kind, _ in events(record)] == ["loop-added", "fade-ended"]
    assert [len(v.heads) for v in final_structure(config).plan.visits if v.heads] == [2]


def test_heads_that_have_faded_out_do_not_loop_again(small, tmp_path, runs_dir):
    controller = {"start_step": 2, "interval": 6, "fade_steps": 3, "layers": [2], "shortlist": 3, "heads": 1}
    config = small("sgt", **FIVE_LAYERS, controller=controller, training={"steps": 16})
    record = train(config, tmp_path / "a", runs_dir)
    ran = [(n, [len(v.heads) for v in s.plan.visits if v.heads]) for s, n in forecast(config)]
    assert ran == [(2, []), (3, [4]), (6, [3]), (5, [1])]
    segments = growth_of(None, record)["segments"]
    assert [(s["since"], s["until"], s["running"], s["kept"]) for s in segments] == [
        (2, 5, 4, 3),
        (5, 8, 3, 3),
        (8, 11, 3, 1),
        (11, 16, 1, 1),
    ]


def test_a_diverged_run_fails_before_it_grows(small, tmp_path, runs_dir):
    settings = ["training.optimizer.lr=1e30", "training.clip=1e30", "training.schedule.warmup_steps=0"]
    config = small(
        "sgt",
        **FIVE_LAYERS,
        controller=GROWTH_TIMES,
        settings=settings,
        runtime={"log_every": 50, "checkpoint_every": 50},
    )
    with pytest.raises(RunFailed, match="lower the learning rate"):
        train(config, tmp_path / "a", runs_dir)


def measured_parent(small, runs, at_steps=(6,)):
    """(record, configuration) of a plain run with the entropies of its heads after these steps and at the end."""
    measured = {"task_window": None, "probes": ["entropy"], "at_steps": list(at_steps)}
    config = small(shape={"layers": 5}, evaluation=measured, training={"steps": 12})
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"keep_steps": [6]})})
    return train(config, runs / "parent", runs), config


def chosen_by(small, parent, step, **controller):
    """A run that grows by the entropies of another one."""
    source = {"run": parent.hash} | ({} if step is None else {"step": step})
    fixed = {"layers": [2, 4], "max_layers": None, "max_passes": 1, "fade_steps": 0, "entropies_of": source}
    return growing(small, 14, **{**fixed, **controller})


@pytest.mark.long
@combinations("select, step", ["high", "low"], [0, 6, None], together=1)
def test_heads_are_chosen_by_the_entropies_of_another_run(small, runs, step, select):
    parent, _ = measured_parent(small, runs, at_steps=(0, 6))
    record = train(chosen_by(small, parent, step, select=select), runs / "child", runs)
    heads = (parent.results if step is None else parent.results.at[str(step)]).probes["entropy"]["heads"]
    grown = {event["layer"]: event["heads"] for event in record.events if event["kind"] == "loop-added"}
    order = -1 if select == "high" else 1
    assert grown == {layer: sorted(np.argsort(order * np.array(heads[layer]))[:2].tolist()) for layer in (4, 2)}
    assert record.events[0]["entropies"] == heads[4] and record.parents == [parent.hash]
    assert record.config["controller"]["entropies"] is None
    # The numbers themselves give the same run under another hash.
    given = chosen_by(small, parent, step, select=select, entropies_of=None, entropies=heads)
    again = train(given, runs / "given", runs)
    assert again.hash != record.hash
    assert_same_results(runs / "child", runs / "given")


def test_layers_are_chosen_by_the_entropies_of_another_run(small, runs):
    parent, _ = measured_parent(small, runs)
    settings = {"layers": None, "max_layers": 2, "exclude": [0]}
    record = train(chosen_by(small, parent, 6, **settings), runs / "child", runs)
    means = parent.results.at["6"].probes["entropy"]["layer_means"]
    best = sorted(sorted(range(1, 5), key=lambda layer: -means[layer])[:2], reverse=True)
    assert [event["layer"] for event in record.events if event["kind"] == "loop-added"] == best


def test_layers_of_block_loops_are_chosen_by_the_probe_where_a_run_has_it(small, runs):
    parent, config = measured_parent(small, runs)
    choice = {"top_entropy_of": parent.hash, "step": 6, "n": 2}
    edits = small("block-loop", plan=[{"op": "loop_blocks", "layers": choice}], shape={"layers": 5}).plan
    settings = {"plan": edits, "init": InitFrom(run=parent.hash, load="all", step=6)}
    settings["runtime"] = config.runtime.model_copy(update={"keep_steps": []})
    record = train(config.model_copy(update=settings), runs / "child", runs)
    means = parent.results.at["6"].probes["entropy"]["layer_means"]
    best = sorted(range(1, 5), key=lambda layer: -means[layer])[:2]
    visits = [visit["layer"] for visit in record.structure["plan"]["visits"]]
    assert sorted(layer for layer in range(5) if visits.count(layer) == 2) == sorted(best)


def test_a_branch_grows_by_the_entropies_of_its_trunk_and_resumes(small, runs, monkeypatch):
    parent, config = measured_parent(small, runs)
    controller = chosen_by(small, parent, 6, start_step=7, interval=2).controller
    changed = {"controller": controller, "init": InitFrom(run=parent.hash, load="all", step=6)}
    changed["runtime"] = config.runtime.model_copy(update={"keep_steps": []})
    config = config.model_copy(update=changed)
    train(config, runs / "whole", runs)
    record = assert_resumes_exactly(config, runs, runs, monkeypatch, 10)
    assert events(record)[:3] == [(7, "loop-added", 4), (9, "loop-added", 2), (9, "growth-frozen", None)]
    assert record.results.at == parent.results.at


def test_entropies_that_another_run_does_not_have(small, runs):
    parent, _ = measured_parent(small, runs)
    with pytest.raises(UserError, match=r"parent: this run has no entropies of step 7; .*evaluation.at_steps=\[7\]"):
        train(chosen_by(small, parent, 7), runs / "child", runs)
    plain = train(small(shape={"layers": 5}, evaluation={"task_window": None}), runs / "plain", runs)
    with pytest.raises(UserError, match=r"no entropies of its end; train it with --set evaluation.probes=\[entropy\]$"):
        train(chosen_by(small, plain, None), runs / "child", runs)
    other = train(small(evaluation={"probes": ["entropy"]}), runs / "other", runs)
    with pytest.raises(UserError, match="has 3 layers of 4 heads, this one 5 of 4; name a run of the same shape"):
        train(chosen_by(small, other, None), runs / "child", runs)
    with pytest.raises(UserError, match="5 layers of 4 heads need a number for each head"):
        chosen_by(small, parent, None, entropies_of=None, entropies=[[0.5] * 4] * 4)
    named = compose(Request(arch="sgt", settings=["controller.entropies_of={run: parent, step: 6}"]), Runs(runs))
    assert named.controller.entropies_of.run == parent.hash and not (runs / "child").exists()


def test_random_heads_in_a_run_need_no_entropies_and_follow_the_seed(small, runs):
    fixed = {"layers": [2, 4], "max_layers": None, "max_passes": 1, "fade_steps": 0, "select": "random"}
    one = train(growing(small, 12, **fixed), runs / "one", runs)
    again = train(growing(small, 12, **{**fixed, "ema_decay": 0.1}), runs / "again", runs)
    assert [e.get("heads") for e in one.events] == [e.get("heads") for e in again.events]
