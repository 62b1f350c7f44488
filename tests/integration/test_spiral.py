"""Loops over resolutions in a run: presets, budgets, starting from runs, probes, and the paper's printed numbers."""

import dataclasses
import json

import pytest
import torch

from hybridlab.analysis.probes.loops import key_marginal_entropy, local_attention_mass, loop_statistics, reach
from hybridlab.attention.kinds import Full
from hybridlab.config.loading import Layer
from hybridlab.config.recurrence import allocate
from hybridlab.config.resolve import resolve
from hybridlab.config.structures import structure_of
from hybridlab.errors import UserError
from hybridlab.lab.papers.analytic import model_parameters, prefill_flops, prefill_ratio, printed_parameters
from hybridlab.models.build import build_model
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.models.export import load_checkpoint
from hybridlab.models.ledger.flops import CONVENTIONS, ledger
from hybridlab.models.ledger.summary import training_flops
from hybridlab.plan.structure import Structure
from hybridlab.runs.budget import within_budget
from hybridlab.runs.compose import Request, compose
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from tests.training import assert_resumes_exactly, train


@pytest.mark.parametrize(
    ("layers", "base", "large"),
    [(12, (2, 4, 2), (4, 4, 4)), (24, (4, 8, 4), (8, 8, 8)), (16, (3, 5, 3), (5, 6, 5)), (6, (1, 2, 1), (2, 2, 2))],
)
def test_allocations_equal_the_papers(layers, base, large):
    assert allocate("base", layers) == base and allocate("large", layers) == large


PRINTED = {  # table 1: non-embedding and total parameters (M), prefill FLOPs (10^12)
    ("pythia-160m", "vanilla", ""): (85.1, 163.5, 1.65),
    ("pythia-160m", "looped", "anchor"): (56.7, 135.2, 1.65),
    ("pythia-160m", "spiral-b", ""): (56.8, 135.2, 1.48),
    ("pythia-160m", "spiral-l", ""): (85.1, 163.6, 1.49),
    ("pythia-410m", "spiral-b", ""): (201.6, 306.8, 4.11),
    ("pythia-410m", "spiral-l", ""): (302.4, 407.5, 4.16),
    ("pythia-1b", "looped", "anchor"): (553.9, 768.4, 9.67),
    ("pythia-1b", "looped", ""): (554.0, 768.4, 9.67),
    ("pythia-1b", "spiral-l", ""): (805.9, 1020.4, 8.96),
    ("pythia-1.4b", "mesh", ""): (1208.7, 1423.1, 14.08),
    ("pythia-1.4b", "spiral-b", ""): (805.9, 1020.4, 12.92),
    ("pythia-1.4b", "spiral-l", ""): (1208.8, 1423.2, 13.13),
}


@pytest.mark.parametrize(("size", "arch", "topology"), PRINTED)
def test_table_1_to_the_printed_digit(size, arch, topology):
    config = {"recurrence": {"topology": topology}} if topology else {}
    inner, total, flops = PRINTED[size, arch, topology]
    assert round(printed_parameters(size, arch, config, embedding=False) / 1e6, 1) == inner
    assert round(printed_parameters(size, arch, config) / 1e6, 1) == total
    assert round(prefill_flops(size, arch, "spiral-print", 4096, config) / 1e12, 2) == flops
    assert model_parameters(size, arch, config) < printed_parameters(size, arch, config)


@pytest.mark.parametrize(
    ("size", "arch", "printed"),
    [
        ("pythia-160m", "spiral-b", 0.897),
        ("pythia-160m", "spiral-l", 0.903),
        ("pythia-410m", "spiral-b", 0.895),
        ("pythia-410m", "spiral-l", 0.906),
        ("pythia-1b", "spiral-b", 0.926),
        ("pythia-1.4b", "spiral-b", 0.918),
    ],
)
def test_ratios_agree_with_the_print_within_its_rounding(size, arch, printed):
    assert prefill_ratio(size, arch, "spiral", 4096) == pytest.approx(printed, abs=0.004)


def spiral(small, arch="spiral-b", **parts):
    return small(arch, shape={"layers": 6}, recurrence={"chunks": [4, 2, 1]}, **parts)


def test_a_run_learns_resumes_and_decodes(small, tmp_path, runs_dir, monkeypatch):
    config = spiral(small, evaluation={"probes": ["loops", "reach"], "validation_windows": 8})
    record = train(config, tmp_path / "whole", runs_dir)
    assert record.history["loss"][-1] < record.history["loss"][0]
    assert record.results.causality["largest_change"] < 1e-5
    assert record.parameters["total"] == sum(p.numel() for p in load_checkpoint(tmp_path / "whole").parameters())
    assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, 5)
    model = load_checkpoint(tmp_path / "whole")
    prompt = torch.randint(200, (2, 9))
    assert model.generate(prompt, 11).rows() == model.generate(prompt, 11, use_cache=False).rows()
    loops = record.results.probes["loops"]
    assert loops["chunks"] == [4, 2, 1] and len(loops["entropy"]["means"]) == 3
    json.dumps(record.model_dump(mode="json"), allow_nan=False)


def test_a_head_loop_grows_inside_a_resolution_loop(small, tmp_path, runs_dir):
    """A combination of two methods that no paper trains."""
    times = {"start_step": 3, "interval": 3, "fade_steps": 3}
    controller = {"kind": "entropy-growth", "layers": [2, 1], "heads": 1, **times}
    record = train(spiral(small, controller=controller), tmp_path / "a", runs_dir)
    assert len(record.hooks["entropy-growth"]["looped"]) == 2
    assert "heads" in record.model.plan and "1/4" in record.model.plan
    model = load_checkpoint(tmp_path / "a")
    prompt = torch.randint(200, (2, 9))
    assert model.generate(prompt, 11).rows() == model.generate(prompt, 11, use_cache=False).rows()


def test_a_run_that_starts_from_another_keeps_its_loop(small, runs):
    parent = train(small("looped", shape={"layers": 8}), runs / "parent", runs)

    def made(arch):
        return compose(Request(arch=arch, start=str(runs / "parent"), settings=["training.steps=2"]), Runs(runs))

    child = train_run(made("vanilla"), RunFolder(runs / "child"), Runs(runs))
    assert child.model.plan == parent.model.plan
    assert made("looped").plan == made("vanilla").plan
    with pytest.raises(UserError, match="brings another"):
        made("spiral-b")


def test_a_budget_buys_steps_and_is_spent(small, tmp_path, runs_dir):
    budget = {"flops": 1.0e9}
    spent = []
    for arch in ("vanilla", "spiral-b"):
        parts = {"shape": {"layers": 6}, "budget": budget, "training": {"schedule": {"warmup_steps": 1}}}
        config = within_budget(small(arch, **parts))
        record = train(config, tmp_path / arch, runs_dir)
        spent.append(record.flops)
        assert record.steps == config.training.steps
    assert spent == pytest.approx([1e9, 1e9], rel=0.05)
    with pytest.raises(UserError, match="buys 0 steps"):
        within_budget(small("vanilla", budget={"flops": 10.0}))


def test_a_budget_is_known_before_the_masks_of_another_run_are():
    """All pairs of tokens count, so that full attention stands for the masks."""
    settings = ["budget.flops=1.0e12", "training.steps=60"]
    plain, masked = (
        within_budget(resolve("sgt", "tiny", settings=[*settings, *more]))
        for more in ([], ["map={kind: learned, run: 0123456789abcdef}"])
    )
    assert masked.training.steps == plain.training.steps and masked.map.run == "0123456789abcdef"


def test_masks_are_learned_in_a_looped_model_and_hold_at_every_visit(small, tmp_path, runs_dir):
    learning = {"kind": "mask-learning", "rho": 0.5, "granularity": "head-all", "mask_lr": 0.5}
    layers = {"layers": 6}
    config = small("spiral-b", map={"kind": "mixed"}, controller=learning, shape=layers)
    train(config, tmp_path / "learn", runs_dir)
    masks = json.loads((tmp_path / "learn" / "masks.json").read_text())["masks"]
    assert len(masks) == config.shape.layers and structure_of(config).plan.loops
    explicit = {"kind": "explicit", "masks": masks, "window": config.map.window}
    train(small("spiral-b", map=explicit, shape=layers), tmp_path / "use", runs_dir)
    model = load_checkpoint(tmp_path / "use" / "final")
    for visit in model.plan.each_visit():
        assert [int(isinstance(kind, Full)) for kind in model.structure.kinds(visit)] == masks[visit.layer]


@pytest.mark.parametrize("arch", ["vanilla", "sgt", "midas", "spiral-b"])
@pytest.mark.parametrize("steps", [60, 120, 300])
def test_a_budget_pays_for_what_grows_too(arch, steps):
    flops = training_flops(resolve("vanilla", "tiny", settings=[f"training.steps={steps}"]), "executed")
    settings = [f"training.steps={steps}", f"budget.flops={flops}"]
    config = within_budget(resolve(arch, "tiny", settings=settings))
    assert training_flops(config, "executed") == pytest.approx(flops, rel=0.6 / config.training.steps + 1e-9)
    assert arch == "midas" or (config.training.steps == steps) == (arch == "vanilla")


@pytest.mark.parametrize(
    ("recurrence", "message"),
    [
        ({"allocation": "huge"}, "recurrence.allocation = 'huge'"),
        ({"allocation": "base", "chunks": "8,4"}, "chunks = '8,4': must be a list"),
        ({"pre": 1}, "all of pre, loop and post"),
        ({"pre": 1, "loop": 0, "post": 1}, "recurrence.loop = 0"),
        ({"colour": "red"}, "colour is not a known setting"),
        ({"chunks": [4, 0]}, "whole numbers of 1 or more"),
        ({"chunks": [4], "shift": 2}, "see their own future"),
        ({"literal": "no"}, "must be true or false"),
        ({"shared": "no"}, "must be true or false"),
        ({"allocation": "huge", "pre": 1, "loop": 1, "post": 1}, "recurrence.allocation = 'huge'"),
        ({"allocation": "unshared", "chunks": [1, 1, 1, 1]}, "for two iterations, not 4"),
    ],
)
def test_mistakes_in_a_recurrence_are_explained(recurrence, message):
    with pytest.raises(UserError, match=message):
        structure_of(resolve("spiral-b", "tiny", layers=[Layer({"recurrence": recurrence})]))


def test_layers_and_chunks_of_a_recurrence_can_be_chosen_freely():
    settings = ["recurrence={pre: 2, loop: 3, post: 1, chunks: [5, 3, 1], offset: [4, zero, half], shift: parallel}"]
    config = resolve("looped", "tiny", settings=settings)
    plan = str(structure_of(config).plan)
    assert config.shape.layers == 6 and plan.startswith("L1 → L2 → [L3, L4, L5] × {1/5, 1/3, 1} mesh")
    with pytest.raises(UserError, match="--set recurrence.allocation=odd"):
        resolve("looped", "tiny", settings=["recurrence.allocation=odd"])


# ---- statistics ----


def test_loop_statistics_at_their_extremes():
    n = 40
    first = torch.zeros(1, 1, n, n)
    first[..., 0] = 1
    assert float(key_marginal_entropy(first)) == pytest.approx(0, abs=1e-6)
    even = torch.full((1, 1, n, n), 1 / n)
    assert float(key_marginal_entropy(even)) == pytest.approx(1, abs=1e-6)
    own = torch.eye(n)[None, None]
    before = torch.zeros(1, 1, n, n)
    before[..., torch.arange(1, n), torch.arange(n - 1)] = 1
    assert float(local_attention_mass(own, 1)) == 0, "the query's own key is left out"
    assert float(local_attention_mass(before, 8)) == pytest.approx((n - 1) / n)
    far = torch.zeros(1, 1, n, n)
    far[..., 20, 15] = 1
    assert float(local_attention_mass(far, 8)) == 0 and float(local_attention_mass(far, 4)) > 0  # windows of 4 and 8
    assert float(key_marginal_entropy(torch.ones(1, 1, 1, 1))) == 0


def test_dynamic_heads_are_two_fifths_and_a_plain_model_has_no_loops():
    model = build_model("spiral-b", size="tiny")
    statistics = loop_statistics(model, [torch.randint(900, (2, 64))])
    for name in ("entropy", "local_mass"):
        dynamic = [flag for row in statistics[name]["dynamic"] for flag in row]
        assert sum(dynamic) == round(0.4 * len(dynamic)) and len(dynamic) == 24
    assert loop_statistics(build_model("vanilla"), []) is None and reach(build_model("vanilla"), 8) is None


def test_reach_follows_from_chunks_and_shifts():
    """One chunk size, mean and broadcast, no other layer: output i depends on chunks that ended by i and on itself."""
    settings = ["recurrence={pre: 1, loop: 1, post: 1, chunks: [4], topology: anchor, offset: zero}"]
    (reached,) = reach(build_small(settings), 12)["maps"]
    for i, row in enumerate(reached):
        ended = 4 * ((i + 1) // 4)
        assert row == [int(p < ended or p == i) for p in range(12)]


# ---- settings that are used or refused, padding, costs ----


def test_settings_of_a_recurrence_are_used_or_refused(small, runs):
    train(small("looped", shape={"layers": 8}), runs / "parent", runs)
    for arch in ("looped", "vanilla"):
        with pytest.raises(UserError, match="has a loop already"):
            settings = ["recurrence.shift=parallel"]
            compose(Request(arch=arch, start=str(runs / "parent"), settings=settings), Runs(runs))
    edit = "plan=[{op: recur, first: 0, size: 2, chunks: [2, 1]}]"
    with pytest.raises(UserError, match="`plan` has a loop already"):
        resolve("spiral-b", "tiny", settings=[edit])
    with pytest.raises(UserError, match="must be a mapping"):
        resolve("spiral-b", "tiny", settings=["recurrence=null"])
    assert len(structure_of(resolve("vanilla", "tiny", settings=[edit])).plan.loops) == 1
    with pytest.raises(UserError, match="visits.0 = 5: must be a mapping"):
        structure_of(resolve("looped", "tiny", settings=["plan=[{op: visits, visits: [5]}]"]))


def test_a_budget_and_steps_exclude_each_other_and_the_warmup_keeps_its_share(small, tmp_path):
    options = Layer({"training": {"steps": 3}}, {("training", "steps"): "--steps"})
    with pytest.raises(UserError, match="a budget of FLOPs chooses the steps"):
        compose(Request(arch="vanilla", size="tiny", options=options, settings=["budget.flops=1e10"]), Runs(tmp_path))
    config = resolve("vanilla", "tiny", settings=["budget.flops=1e12"])
    made = within_budget(config).training
    share = config.training.schedule.warmup_steps / config.training.steps
    assert made.schedule.warmup_steps == round(share * made.steps) and made.steps != config.training.steps


def test_probes_of_loops_skip_plans_that_they_do_not_fit(small, tmp_path, runs_dir):
    def probed(name, **parts):
        config = small("looped", evaluation={"probes": ["loops", "contributions"], "validation_windows": 4}, **parts)
        return train(config, tmp_path / name, runs_dir).results.probes

    short = probed("short", shape={"layers": 6}, recurrence={"chunks": [64, 1], "offset": "zero"})
    assert "fill no chunk of 64" in short["loops"]["skipped"]
    edits = {"plan": [{"op": "drop_heads", "layer": 1, "heads": [0]}, {"op": "drop_heads", "layer": 2, "heads": [0]}]}
    assert "all of their heads" in probed("dropped", shape={"layers": 6}, **edits)["loops"]["skipped"]
    inside = probed("inside", shape={"layers": 6}, plan=[{"op": "loop_heads", "layer": 1, "heads": [0]}])
    # A head loop inside a loop over iterations sees other states in every pass.
    assert "sublayers" in inside["contributions"] and "examples" not in inside["contributions"]


def test_attention_rows_under_padding_equal_those_without_it():
    settings = ["recurrence={pre: 1, loop: 1, post: 1, chunks: [8, 1], topology: anchor}"]
    model = build_small(settings)
    tokens = torch.randint(900, (1, 64))
    mask = torch.arange(64)[None] < 21
    with torch.no_grad():
        padded = model(tokens, attention_mask=mask, need="last_row")
        alone = model(tokens[:, :21], need="last_row")
    for place, weights in alone.attention.items():
        torch.testing.assert_close(padded.attention[place][..., : weights.shape[-1]], weights, atol=1e-6, rtol=1e-5)
        assert torch.equal(padded.keys[place], alone.keys[place])
    literal = build_small([settings[0].replace("anchor", "anchor, literal: true")])
    with pytest.raises(UserError, match="count padding too"):
        literal(tokens, attention_mask=mask)
    literal(tokens, attention_mask=torch.ones_like(tokens))


def test_a_sequence_shorter_than_a_chunk_costs_nothing_inside_the_loop():
    settings = [
        "recurrence={pre: 1, loop: 1, post: 1, chunks: [16], topology: anchor}",
        "map={kind: window, window: 8}",
    ]
    config = resolve("looped", "tiny", settings=settings)
    structure = structure_of(config)
    plan, attention_map = structure.plan, structure.map
    outside = plan.visits[:1] + plan.visits[2:]
    for name in CONVENTIONS:
        cost = ledger(Structure(config.shape, plan, attention_map), 3, name).breakdown
        plain = ledger(
            Structure(config.shape, dataclasses.replace(plan, visits=outside), attention_map), 3, name
        ).breakdown
        assert cost["mlp"] == plain["mlp"] and cost["attention"] == plain["attention"]


def build_small(settings):
    config = resolve("looped", "tiny", settings=settings)
    model = Decoder(structure_of(config), "eager")
    draw_weights(model, 0)
    return model
