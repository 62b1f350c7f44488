"""Runs with compiled blocks (`runtime.compile`).

Compiling for a processor takes 10 to 20 seconds a graph, so only one test does it. The others stop after torch has made
the graphs, and run these: what could go wrong with plans, kinds and hooks goes wrong there.
"""

from functools import cache

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import cpp_builder
from torch._inductor.exc import InvalidCxxCompiler
from typer.testing import CliRunner

from hybridlab.attention.kernels import MOST_GRAPHS
from hybridlab.attention.kinds import Full, Mixed, Window
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.config.structures import final_structure
from hybridlab.errors import UserError
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.reproduce import ExperimentAtScale
from hybridlab.messages import heard_by
from hybridlab.models import executor
from hybridlab.models.build import build_model
from hybridlab.models.decoder import draw_weights, make_model
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.runs.catalogue import details
from hybridlab.runs.extension import extension
from hybridlab.runs.run import train_run
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.store.metrics import read_metrics
from tests.combinations import some
from tests.conftest import SMALL_SHAPE
from tests.training import FIVE_LAYERS, GROWTH_TIMES, assert_resumes_exactly, train, train_until


def traced(backend):
    """In place of `compiled`: graphs that are not compiled. eager: only forward ones; aot_eager: backward ones too."""
    return cache(lambda branch: torch.compile(branch, dynamic=False, fullgraph=True, backend=backend))


@pytest.fixture
def graphs(monkeypatch):
    """A function: the number of graphs made so far in this test. They are run as torch made them, not compiled."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(executor, "compiled", traced("aot_eager"))
    with torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS):
        yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def compiling(config, compile=True):
    """The configuration with `runtime.compile`."""
    return config.model_copy(update={"runtime": config.runtime.model_copy(update={"compile": compile})})


def losses(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]


CASES = {
    "vanilla": {"training": {"steps": 5}},
    "sgt": {**FIVE_LAYERS, "controller": {**GROWTH_TIMES, "max_passes": 2, "max_layers": 2}, "training": {"steps": 9}},
    "consa": {"training": {"steps": 5}},
    "spiral-b": {"shape": {"layers": 6}, "training": {"steps": 5}},
    "saobp-high": {"training": {"steps": 5}, "runtime": {"kernel": "eager"}},
}


@pytest.mark.long
@pytest.mark.parametrize("arch", some(CASES, "sgt", "spiral-b"))
def test_losses_equal_those_of_an_uncompiled_run(arch, small, tmp_path, runs_dir, graphs):
    config = small(arch, **CASES[arch])
    plain = train(config, tmp_path / "plain", runs_dir)
    assert graphs() == 0
    compiled = train(compiling(config), tmp_path / "compiled", runs_dir)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)
    assert graphs() > 0 and plain.structure == compiled.structure
    changes = [[(event["step"], event["kind"]) for event in record.events] for record in (plain, compiled)]
    assert changes[0] == changes[1] and bool(changes[0]) == (arch in ("sgt", "consa"))
    assert (plain.compile, compiled.compile, plain.hash) == (False, True, compiled.hash)


ARCHS = ["vanilla", "sgt", "rule-swa", "block-loop", "looped", "spiral-b", "lidas", "ln-scaling", "saobp-low", "bert"]


@pytest.mark.parametrize("arch", some(ARCHS, "sgt", "looped"))
def test_a_pass_without_gradients_is_one_graph(arch):
    """As `bench --compile` measures it, after a first pass; fullgraph makes a second graph an error."""
    torch._dynamo.reset()
    config = resolve(arch, "bert-tiny" if arch == "bert" else "tiny")
    model, ids = make_model(final_structure(config)), torch.arange(48).view(2, 24)
    draw_weights(model, 0)
    with torch.inference_mode():
        wanted = model(ids).logits
        found = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)(ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.long
def test_graphs_do_not_grow_with_the_layers(graphs, monkeypatch):
    """One graph for all layers with as many heads of each kind, whichever heads these are, and for all loops of as many
    heads. Every graph gives the logits of the uncompiled model."""
    monkeypatch.setattr(executor, "compiled", traced("eager"))
    ids, full, window = torch.arange(24).view(2, 12), Full(), Window(4)
    rows = [(full, window), (window, full), (full, full), (window, window)]

    def graphs_of(layers):
        torch._dynamo.reset()
        counters.clear()
        model = build_model("vanilla", shape={**SMALL_SHAPE, "layers": layers})
        kinds = AttentionMap(tuple(rows[i % 4] for i in range(layers)))
        plan = model.plan.loop_heads(0, (0, 3)).loop_heads(layers - 1, (1, 2))
        for other in (model, model.with_plan(attention_map=kinds), model.with_plan(plan)):
            expected = other(ids).logits
            other.compiled = True
            assert torch.allclose(other(ids).logits, expected, atol=1e-5)
        return graphs()

    # Blocks of full heads, of one of each kind, and of windows; attention alone, two heads of it, and the MLP alone.
    assert graphs_of(4) == graphs_of(12) == 6


def test_norms_with_a_factor_for_each_layer_share_their_graph(graphs):
    ids = torch.arange(24).view(2, 12)
    for arch in ("vanilla", "ln-scaling"):
        torch._dynamo.reset()
        counters.clear()
        model = build_model(arch, shape={**SMALL_SHAPE, "layers": 5})
        expected = model(ids).logits
        model.compiled = True
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-6, rtol=1e-5)
        assert graphs() == 1, arch
        model.compiled = False
        assert torch.equal(model(ids).logits, expected), "the factor as a tensor gives the bits of the number"


def test_passes_without_gradients_and_gates_need_no_new_graphs(graphs):
    model = build_model("vanilla", shape=SMALL_SHAPE)
    model = model.with_plan(attention_map=AttentionMap(((Mixed(4),) * 2,) * 3))
    model.compiled = True
    ids = torch.arange(24).view(2, 12)
    for value in (0.2, 0.7):
        model(ids, gates={layer: torch.full((2,), value, requires_grad=True) for layer in range(3)})
    assert graphs() == 1
    with torch.no_grad():
        model(ids[:1], gates={layer: torch.ones(2) for layer in range(3)})
    assert graphs() == 1


@pytest.mark.long
def test_a_compiled_run_resumes_with_the_same_bits(small, tmp_path, runs_dir, monkeypatch):
    """Compiled for this processor, in a process that has forgotten the graphs before it goes on."""
    try:
        cpp_builder.get_cpp_compiler()
    except InvalidCxxCompiler:
        pytest.skip("there is no C++ compiler here")
    torch._dynamo.reset()
    counters.clear()
    config = compiling(small(training={"steps": 6}))
    record = train(config, tmp_path / "whole", runs_dir)
    # Not by other losses: on some processors the compiled blocks give the same bits.
    assert counters["aot_autograd"]["ok"] == counters["stats"]["unique_graphs"] > 0
    train(compiling(config, None), tmp_path / "plain", runs_dir)
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)
    torch._dynamo.reset()
    again = assert_resumes_exactly(config, tmp_path, runs_dir, monkeypatch, step=5)
    assert record.compile and again.compile


@pytest.mark.parametrize("first", [True, False])
def test_a_run_keeps_what_it_was_started_with(first, small, tmp_path, runs_dir, monkeypatch, graphs):
    config = small(training={"steps": 6})
    train_until(compiling(config, first), tmp_path / "run", runs_dir, monkeypatch, 5)
    folder, said = RunFolder(tmp_path / "run"), []
    made = graphs()
    assert folder.started()["compile"] is first and (made > 0) is first
    with heard_by(said.append):
        record = train_run(compiling(config, not first), folder, Runs(runs_dir))
    words = "with compiled blocks, so it stays compiled" if first else "without compiling, so it is not compiled"
    assert [line for line in said if line.startswith("runtime.compile: this run was started") and words in line]
    assert record.compile is first is details(folder, Runs(runs_dir))["compile"] and graphs() == made


def test_a_longer_run_is_compiled_like_the_one_that_it_continues(small, tmp_path, runs_dir, graphs):
    config = compiling(small(training={"steps": 4}))
    config = config.model_copy(update={"runtime": config.runtime.model_copy(update={"keep_optimizer": True})})
    parent, runs = train(config, tmp_path / "short", runs_dir), Runs(runs_dir)
    longer = compiling(extension(str(tmp_path / "short"), 1, runs, Layer(), []), None)
    record = train_run(longer, RunFolder(tmp_path / "long"), runs)
    assert parent.compile and record.compile and record.steps == 5


def test_what_cannot_be_compiled_is_refused(small, tmp_path, runs_dir, monkeypatch):
    config = compiling(small())
    flex = config.model_copy(update={"runtime": config.runtime.model_copy(update={"kernel": "xformers"})})
    with pytest.raises(UserError, match="no effect with kernel xformers"):
        monkeypatch.setattr("hybridlab.runs.link.require_kernel", lambda *_, **__: None)
        train(flex, tmp_path / "flex", runs_dir)

    def missing(*_):
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    with pytest.raises(UserError, match="needs a C.. compiler"):
        train(config, tmp_path / "run", runs_dir)
    assert not (tmp_path / "run").exists()
    train(compiling(small(training={"steps": 2, "schedule": {"warmup_steps": 0}}), None), tmp_path / "run", runs_dir)


def test_the_options_of_the_commands(graphs, text_file, tmp_path):
    """`pretrain --compile` trains compiled blocks; `reproduce` passes it to all its runs, whose hashes stay."""
    command = ["pretrain", "--steps", "1", "--data", f"text:{text_file}", "--runs-dir", str(tmp_path), "--run-dir"]
    small = ["training.tokens_per_step=128", "training.schedule.warmup_steps=0", "evaluation.validation_windows=2"]
    small = [text for setting in [*small, "shape.layers=1", "data.tokenizer=byte"] for text in ("--set", setting)]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "run"), "--compile", *small])
    assert done.exit_code == 0, done.output
    assert RunFolder(tmp_path / "run").record()["compile"] is True and graphs() == 1

    experiment = load_experiment("consa-table1")
    usual, asked = (
        ExperimentAtScale(experiment, "smoke").runs(),
        ExperimentAtScale(experiment, "smoke", compile=True).runs(),
    )
    assert list(usual) == list(asked) == [run_hash(config) for _, config in asked.values()]
    assert {config.runtime.compile for _, config in asked.values()} == {True}
    with pytest.raises(UserError, match="--compile has no effect on consa-table4"):
        ExperimentAtScale(load_experiment("consa-table4"), "smoke", compile=True).runs()


@pytest.mark.parametrize("how", ["plain", "compiled", "recomputed"])
def test_what_wraps_a_method_of_a_block_is_called(how, graphs):
    """FSDP puts a method of its own into the instance."""
    model = build_model("vanilla", shape=SMALL_SHAPE)
    tokens = torch.randint(0, model.shape.vocab, (2, 8))
    before = model(tokens).logits.detach()
    model.compiled, model.recompute = how == "compiled", how == "recomputed"
    seen = []

    def wrap(layer, visit):
        def wrapped(*arguments):
            seen.append(layer)
            return visit(*arguments)

        return wrapped

    for layer, block in enumerate(model.blocks):
        block.visit = wrap(layer, block.visit)
    found = model(tokens).logits
    found.sum().backward()
    torch.testing.assert_close(found.detach(), before, atol=1e-5, rtol=1e-5)
    assert sorted(set(seen)) == list(range(len(model.blocks)))
    assert (graphs() > 0) == (how == "compiled")
