"""The probe of token dependency on text and on the examples of a task."""

import json

import pytest
import torch

from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.probes import dependency
from hybridlab.attention.kinds import Full
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.data.preparing import corpus_of
from hybridlab.models.build import build_model
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.registry import PROBES
from hybridlab.training.objective import make_objective


def on(text_file):
    """Settings of the text of words, in bytes."""
    return {"data": {"source": f"text:{text_file}", "tokenizer": "byte"}}


@pytest.fixture(scope="module")
def measured(runs_dir, text_file):
    """A model without training, its corpus and configuration, and what the probe finds."""
    shape = {"shape": {"layers": 3}}
    config, model = (
        resolve("vanilla", "tiny", layers=[Layer(shape | on(text_file))]),
        build_model("vanilla", "tiny", **shape),
    )
    corpus = corpus_of(config, runs_dir)
    found = run_probe("dependency", model, corpus, 128, config, rows=5, graphs=2, shown=6)
    return config, model, corpus, found


@pytest.mark.long
def test_it_is_the_mean_over_all_sequences(measured):
    config, model, corpus, found = measured
    [batch] = make_objective(config, corpus).examples(config, corpus, 5)
    with torch.no_grad():
        attention = model(batch.inputs["input_ids"], need="full").attention
    for layer, weights in enumerate(attention.values()):
        gtd = dependency.token_dependency(weights.double()).mean(0)
        assert found["gtd"][layer] == pytest.approx(gtd.tolist(), abs=1e-5)
        entropy = dependency.row_entropies(weights.double()).mean((0, 2))
        assert found["entropy"][layer] == pytest.approx(entropy.tolist(), abs=1e-5)
    assert (found["sequences"], found["length"], len(found["cross_gtd"])) == (5, 128, model.shape.layers - 1)
    assert found["mean"]["gtd"] == pytest.approx(sum(found["layers"]["gtd"]) / 3, abs=2e-5)


def test_hops_across_visits_are_means_by_layer(runs_dir, text_file):
    parts = {"shape": {"layers": 4}, "recurrence": {"pre": 1, "loop": 2, "post": 1, "chunks": [1, 1]}}
    config = resolve("looped", "tiny", layers=[Layer(parts | on(text_file))])
    model, corpus = build_model("looped", "tiny", **parts), corpus_of(config, runs_dir)
    found = run_probe("dependency", model, corpus, 128, config, rows=3)
    [batch] = make_objective(config, corpus).examples(config, corpus, 3)
    with torch.no_grad():
        attention = model(batch.inputs["input_ids"], need="full").attention
    shares = dependency.cross_layer_dependency([weights.double() for weights in attention.values()])
    visited = [visit.layer for _, visit in model.plan.places()]
    assert visited == [0, 1, 2, 1, 2, 3]
    for layer in range(3):
        own = [float(share.mean()) for share, at in zip(shares, visited, strict=False) if at == layer]
        assert found["cross_gtd"][layer] == pytest.approx(sum(own) / len(own), abs=1e-5)
    (table,) = PROBES.get("dependency").report(found)
    assert [row[-1] for row in table.rows] == [*found["cross_gtd"], None, None]


def test_graphs_and_maps_are_those_of_the_first_sequences(measured):
    _, model, _, found = measured
    heads = model.shape.layers * model.shape.heads
    assert len(found["graphs"]["gtd"]) == 2 * heads == found["graphs"]["mean"]["clustering"]["n"]
    assert len(found["maps"]) == model.shape.layers
    assert [len(found["maps"][0]), len(found["maps"][0][0])] == [6, 6]
    first = found["maps"][0][0]
    assert first == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "the first token of a decoder sees itself"
    json.dumps(found, allow_nan=False)


def test_the_report_has_a_row_for_each_layer(measured):
    _, model, _, found = measured
    layers, graphs = PROBES.get("dependency").report(found)
    assert len(layers.rows) == model.shape.layers + 1 and [row[0] for row in graphs.rows] == [
        "clustering",
        "betweenness",
    ]
    assert len(list(PROBES.get("dependency").report({**found, "graphs": None}))) == 1


@pytest.mark.parametrize("size", ["bert-tiny", "tiny"])
def test_attention_before_the_refinement_is_measured_too(size, runs_dir, text_file):
    """With the same weights, what stands before the refinement in the first layer is plain attention."""
    arch = "saobp-high"
    text = on(text_file) | ({"data": on(text_file)["data"] | {"tokenizer": "byte+mask"}} if size == "bert-tiny" else {})
    config = resolve(arch, size, layers=[Layer({"shape": {"layers": 2}} | text)])
    model, corpus = build_model(arch, size, shape={"layers": 2}), corpus_of(config, runs_dir)
    plain = model.with_plan(attention_map=AttentionMap.uniform(2, model.shape.kv_heads, Full()))
    found, of_plain = (run_probe("dependency", one, corpus, 64, config, rows=3) for one in (model, plain))
    assert "prior" not in of_plain
    for name in dependency.MEASURES:
        assert found["prior"]["layers"][name][0] == pytest.approx(of_plain["layers"][name][0], abs=1e-4)
    assert found["prior"]["mean"]["entropy"] != found["mean"]["entropy"]
    (table,) = PROBES.get("dependency").report(found)
    assert [row[0] for row in table.rows[-2:]] == ["all", "all, before the refinement"]
