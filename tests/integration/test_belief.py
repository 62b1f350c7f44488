"""Attention refined by belief propagation in runs, and together with loops, growth, windows and interventions."""

from dataclasses import dataclass

import pytest
import torch

from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.probes.windows import with_windows
from hybridlab.attention.belief import Belief
from hybridlab.attention.kernels import require_kernel
from hybridlab.attention.kinds import Full, Window
from hybridlab.attention.registry import ATTENTION_KINDS, register_kind
from hybridlab.config.loading import load_settings
from hybridlab.config.resolve import resolve
from hybridlab.errors import RunFailed, UserError
from hybridlab.evaluation.causality import causality, require_causal
from hybridlab.methods.depth import grown
from hybridlab.models.build import build_model
from hybridlab.models.export import load_checkpoint
from hybridlab.models.ledger.drawing import as_svg, as_text, rows
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure
from tests.conftest import SMALL_SHAPE
from tests.models import random_ids
from tests.training import train

HIGH, LEAKING = Belief("high", 1.0), Belief("high", 1.0, "leaking")


def of_kind(kind):
    return {"kind": "uniform", "attention": kind.to_json()}


def model_of(kind, arch="vanilla", **shape):
    return build_model(arch, map=of_kind(kind), shape={**SMALL_SHAPE, "layers": 4, **shape})


@pytest.mark.parametrize("factor", ["high", "low", "elemmul"])
def test_a_run_trains_with_it_and_its_saved_model_decodes(small, tmp_path, runs_dir, factor):
    record = train(small(f"saobp-{factor}", training={"steps": 20}), tmp_path / "a", runs_dir)
    assert record.history["loss"][-1] < record.history["loss"][0]
    assert record.results.causality["largest_change"] < 1e-4 and "leak" not in record.results.causality
    assert record.model.map == "bb bb bb" and record.kernels == {"belief": "eager"}
    visits = record.results.probes["belief"]["visits"]
    assert len(visits) == 3 and all(mass > 1 for visit in visits for mass in visit["column_mass"])
    model = load_checkpoint(tmp_path / "a")
    assert set(model.attention_map.each_kind()) == {Belief(factor)}
    assert Structure.from_json(record.structure) == model.structure
    assert model.generate(random_ids(5), 6).rows() == model.generate(random_ids(5), 6, use_cache=False).rows()


def test_a_leak_that_the_map_asks_for_is_recorded(small, tmp_path, runs_dir):
    record = train(small(map=of_kind(LEAKING), training={"steps": 3}), tmp_path / "a", runs_dir)
    found = record.results.causality
    assert found["largest_change"] > 1e-3 and "tokens see later ones, as the attention map asks" in found["leak"]


def test_a_leak_that_it_does_not_ask_for_is_refused_beside_it(small):
    @dataclass(frozen=True)
    class Peeks(Full):
        """Full attention that adds the mean of all values."""

        name, letter = "peeks", "p"

        def attend(self, heads):
            attended = heads.softmax(None)
            return type(attended)(attended.out + heads.v.mean((1, 2), keepdim=True))

    register_kind(Peeks)
    try:
        model = model_of(LEAKING)
        both = AttentionMap(((LEAKING, Peeks()), *model.attention_map.layers[1:]))
        with pytest.raises(RunFailed, match="sees the future"):
            causality(model.with_plan(attention_map=both), 24, ("eager",))
    finally:
        ATTENTION_KINDS.remove("peeks")


@pytest.mark.parametrize("kernel", ["eager", "blocks"])
@pytest.mark.parametrize("kind", [HIGH, Belief("elemmul")], ids=str)
@pytest.mark.parametrize("arch", ["vanilla", "looped", "spiral-l"])
def test_it_runs_in_loops_of_blocks_heads_and_chunks(arch, kind, kernel):
    model = model_of(kind, arch, layers=6)
    model.kernel = kernel
    model = model.with_plan(model.plan.loop_heads(0, (0, 3), 2))
    assert require_causal(model, 40, (kernel,)) < 1e-5
    tokens = random_ids(24)
    with torch.no_grad():
        assert model.generate(tokens[:, :9], 9).rows() == model.generate(tokens[:, :9], 9, use_cache=False).rows()
        mixed = AttentionMap(((kind, Window(5)), (Full(), kind), *model.attention_map.layers[2:]))
        other = model.with_plan(attention_map=mixed)
        assert require_causal(other, 40, (kernel,)) < 1e-5 and not torch.equal(
            other(tokens).logits, model(tokens).logits
        )


def test_growth_copies_it_and_a_window_takes_its_place():
    structure = model_of(HIGH).structure
    rows_of_kinds = ((HIGH, Full()), (Full(), HIGH), (HIGH, HIGH), (Full(), Full()))
    mixed = Structure(structure.shape, structure.plan, AttentionMap(rows_of_kinds))
    for method in ("midas", "lidas"):
        layers = grown(mixed, method, 2).map.layers
        assert len(layers) == 6 and set(layers) <= set(rows_of_kinds)
    assert with_windows(mixed.map, 2, [0], 4).layers[2] == (Window(4), HIGH)
    assert mixed.map.masks() == [[1, 1]] * 4


def test_it_is_drawn_and_named_in_the_legend():
    drawn = rows(model_of(HIGH).structure)
    assert "bb  MLP" in as_text(drawn) and "b belief" in as_text(drawn)
    assert HIGH.colour in as_svg(drawn, "refined")


def test_the_probe_measures_refined_heads_only(small, tmp_path, runs_dir):
    layers = [[HIGH.to_json(), {"kind": "full"}]] + [[{"kind": "full"}] * 2] * 2
    record = train(
        small(map={"kind": "heads", "layers": layers}, evaluation={"probes": ["belief"]}, training={"steps": 3}),
        tmp_path / "a",
        runs_dir,
    )
    found = record.results.probes["belief"]
    (visit,) = found["visits"]
    assert visit["layer"] == 0 and visit["moved"][2:] == [None, None] and 0 < min(visit["moved"][:2]) < 1
    assert found["layers"][1:] == [None, None] and found["layers"][0] == max(visit["column_mass"][:2])
    plain = build_model("vanilla", shape=SMALL_SHAPE)
    assert "no head of this model refines" in run_probe("belief", plain, None, 32)["skipped"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{factor: high, send: all}",
            "run.yaml:3: belief: send: all lets the tokens of a decoder depend on later ones",
        ),
        ("{factor: high, strength: 11}", "run.yaml:3: .*strength 11 must be a number from 0 to 10"),
        ("{factor: elemmul, strength: 0.2}", "run.yaml:3: .*strength has no effect on factor elemmul"),
        ("{factor: high, stength: 0.2}", "run.yaml:3: .*did you mean 'strength'"),
    ],
)
def test_mistakes_name_their_place(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(f"map:\n  kind: uniform\n  attention: {text[:1]}kind: belief, {text[1:]}\n")
    with pytest.raises(UserError, match=message):
        resolve("vanilla", "tiny", layers=[load_settings(path)])


def test_what_a_family_cannot_have_is_refused_in_every_map():
    shape = resolve("vanilla", "tiny").shape
    with pytest.raises(UserError, match="write send: visible, or send: leaking"):
        Structure(shape, Plan.plain(8), AttentionMap.uniform(8, 4, Belief("high", send="all")))
    encoder = build_model("bert", size="bert-tiny").structure
    assert encoder.changed(map=AttentionMap.uniform(encoder.shape.layers, encoder.shape.kv_heads, HIGH))
    with pytest.raises(UserError, match="a control for decoders; in an encoder write send: all"):
        encoder.changed(map=AttentionMap.uniform(encoder.shape.layers, encoder.shape.kv_heads, LEAKING))


def test_a_kernel_without_weights_is_refused_before_a_run_starts():
    kinds = model_of(HIGH).attention_map.each_kind()
    with pytest.raises(UserError, match="kernel flex cannot refine its weights.*use auto, blocks or eager"):
        require_kernel("flex", torch.device("cpu"), training=False, kinds=kinds)
