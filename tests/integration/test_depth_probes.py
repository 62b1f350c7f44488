"""The depth probes in records, on the command line, and on what they cannot answer."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from hybridlab.analysis.probe import run_probe, spaced_windows
from hybridlab.analysis.probes.blocks import asymmetry, block_cosines, grown_block
from hybridlab.analysis.probes.effects import Positions, local, propagated
from hybridlab.config.resolve import run_hash
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import UserError
from hybridlab.models.blocks import AttentionCall, head_index, rotary_of
from hybridlab.registry import PROBES
from tests.training import train
from tests.unit.test_effects import LAYERS, model_of

NAMES = ["depth-score", "effects", "contributions", "tuned-lens", "blocks", "interventions"]


@pytest.fixture
def made(small, tmp_path):
    config = small(shape={"layers": LAYERS}, data={"mix": {"text": 0.5, "retrieval": 0.5}})
    return SimpleNamespace(config=config, corpus=corpus_for(config.data, tmp_path / "data"), model=model_of())


def probed(made, name, model=None, **settings):
    return run_probe(name, model or made.model, made.corpus, 32, made.config, **settings)


def test_all_of_them_in_a_record(small, tmp_path, runs_dir):
    evaluation = {"probes": NAMES, "validation_windows": 4}
    config = small(shape={"layers": 4}, evaluation=evaluation, training={"steps": 2})
    record = train(config, tmp_path / "run", runs_dir)
    probes = record.results.probes
    assert list(probes) == NAMES
    assert "give the number of layers in a block" in probes["blocks"]["skipped"]
    assert not [name for name in NAMES if name != "blocks" and "skipped" in probes[name]]
    text = json.dumps(record.model_dump(mode="json")["results"]["probes"], allow_nan=False)
    assert len(text) < 20_000
    for name in NAMES:
        assert name == "blocks" or list(PROBES.get(name).report(json.loads(text)[name]))
    assert run_hash(small()) == run_hash(small(evaluation={"probes": None}))


@pytest.mark.long
def test_probes_in_the_middle_of_training_do_not_change_the_run(small, tmp_path, runs_dir):
    from tests.training import weights

    probes = [name for name in NAMES if name != "blocks"]
    watched = {"at_steps": [0, 3], "probes": probes, "validation_windows": 4}
    one = train(small(evaluation=watched, training={"steps": 6}), tmp_path / "watched", runs_dir)
    train(small(evaluation={"validation_windows": 4}, training={"steps": 6}), tmp_path / "plain", runs_dir)
    a, b = weights(tmp_path / "watched"), weights(tmp_path / "plain")
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert one.results.at["0"].probes["depth-score"] != one.results.at["3"].probes["depth-score"]


def test_effects_are_the_largest_over_windows_and_boundaries(made):
    found = probed(made, "effects", rows=3, parts="layer,mlp", at="5,9")
    assert found["sequences"] == 3 and found["layers"] == [0, 1, 2, 3, 4] and found["future"]["boundaries"] == 6
    assert set(found["current"]) == {"propagated", "local"} and set(found["current"]["local"]) == {"layer", "mlp"}
    windows = spaced_windows(made.model, made.corpus, 32, 3)
    places = {"future": Positions.future([5, 9], 32, windows.device), "current": Positions.current(32, windows.device)}
    for mode, where in places.items():
        each = [propagated(made.model, row, where, 1, "mlp") for row in windows]
        wanted = torch.stack([one.changes.amax(0) for one in each]).amax(0)
        part = found[mode]["propagated"]["mlp"]
        assert part["changes"][1] == [None, None, *(pytest.approx(float(value), rel=1e-4) for value in wanted[2:])]
        outputs = torch.stack([one.output.amax() for one in each])
        assert part["output"][1] == pytest.approx(float(outputs.mean()), rel=1e-4)
        assert part["output_max"][1] == pytest.approx(float(outputs.max()), rel=1e-4)
        direct = torch.stack([local(made.model, row, where) for row in windows])[:, 0].amax((0, 1))
        row = found[mode]["local"]["layer"]["changes"][0]
        assert row == [None, *(pytest.approx(float(value), rel=1e-4) for value in direct[1:])]
    only = probed(made, "effects", rows=2, modes="future", axes="local", parts="attention", layers="3,1")
    assert (
        only["layers"] == [3, 1]
        and [row[:4] for row in only["future"]["local"]["attention"]["changes"]][0] == [None] * 4
    )
    assert set(only) == {"sequences", "layers", "future"} and set(only["future"]) == {"boundaries", "local"}


def test_effects_on_the_current_tokens_need_no_future_ones(made, tmp_path):
    (tmp_path / "short.jsonl").write_text(json.dumps({"prompt": "a"}))
    asked = {"modes": "current", "prompts": str(tmp_path / "short.jsonl"), "layers": "1"}
    assert probed(made, "effects", **asked)["sequences"] == 1
    with pytest.raises(UserError, match="leave no future tokens"):
        probed(made, "effects", **asked | {"modes": "current,future"})


def test_a_depth_score_for_each_level_of_prompts(made, tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "the cat sat on", "answer": f" a mat {n} and nobody came", "level": n % 2} for n in range(6)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = probed(made, "depth-score", prompts=str(path), rows=2, boundaries=2)
    assert list(found["levels"]) == ["0", "1"] and found["score"]["n"] == 4
    values = [level["score"]["value"] for level in found["levels"].values()]
    assert found["score"]["value"] == pytest.approx(sum(values) / 2, abs=1e-6) and len(found["effects"]) == LAYERS
    for level in found["levels"].values():
        weights = level["effects"]
        assert level["score"]["value"] == pytest.approx(
            sum(i * m for i, m in enumerate(weights)) / sum(weights), rel=1e-3
        )
    plain = probed(made, "depth-score", rows=3)
    assert set(plain) == {"score", "effects"} and 0 < plain["score"]["value"] < LAYERS - 1
    assert plain["score"]["n"] == 3 and plain["score"]["stderr"] > 0


def test_sublayer_contributions(made):
    found = probed(made, "contributions", sequences=3)
    assert "examples" not in found and found["sequences"] == 3 and found["length"] == 32 and found["first_token"]
    windows = spaced_windows(made.model, made.corpus, 32, 3)
    x = made.model.embedding(windows)
    positions = torch.arange(32)
    for layer, block in enumerate(made.model.blocks):
        visit, structure = made.model.plan[layer,], made.model.structure
        heads = head_index(structure, visit, positions.device)
        call = AttentionCall(heads, rotary_of(structure.shape, positions), "eager")
        with torch.no_grad():
            a = block.attention(block.attention_input(x), call).out
            for part, delta, read in (("attention", a, x), ("mlp", block.mlp(block.mlp_norm(x + a)), x + a)):
                size = (delta.norm(dim=-1) / read.norm(dim=-1)).mean()
                cosine = ((delta * read).sum(-1) / delta.norm(dim=-1) / read.norm(dim=-1)).mean()
                assert found["sublayers"][part]["relative"][layer] == pytest.approx(float(size), rel=1e-4)
                assert found["sublayers"][part]["cosine"][layer] == pytest.approx(float(cosine), abs=1e-5)
                x = x + delta
    later = probed(made, "contributions", sequences=3, first_token="false")
    assert later["sublayers"]["mlp"]["relative"] != found["sublayers"]["mlp"]["relative"]


def test_contributions_of_parallel_blocks_and_of_layers_that_do_not_run(made):
    model = model_of(family="neox")
    found = probed(made, "contributions", model, sequences=2)["sublayers"]
    windows = spaced_windows(model, made.corpus, 32, 2)
    with torch.no_grad():
        x = model.embedding(windows)
        added = model.blocks[0].mlp(model.blocks[0].mlp_norm(x))
    # Both read the layer's input there.
    assert found["mlp"]["relative"][0] == pytest.approx(float((added.norm(dim=-1) / x.norm(dim=-1)).mean()), rel=1e-4)
    skipped = made.model.with_plan(made.model.plan.skip(2))
    assert probed(made, "contributions", skipped, sequences=2)["sublayers"]["attention"]["cosine"][2] is None


def test_similarity_of_blocks(made):
    model = model_of(4)
    for name in ("gate", "up", "down"):
        getattr(model.blocks[2].mlp, name).weight.data = 2.0 * getattr(model.blocks[0].mlp, name).weight.data
    whole = [
        torch.cat([w.weight.detach().flatten() for w in (b.mlp.gate, b.mlp.up, b.mlp.down)]).double()
        for b in model.blocks
    ]
    cosines = block_cosines(model, 1)
    wanted = torch.nn.functional.cosine_similarity(whole[0], whole[1], dim=0)
    assert float(cosines[0, 1]) == pytest.approx(float(wanted), abs=1e-9) and float(cosines[0, 2]) == pytest.approx(1)
    pairs = block_cosines(model, 2)
    wanted = torch.nn.functional.cosine_similarity(torch.cat(whole[:2]), torch.cat(whole[2:]), dim=0)
    assert float(pairs[0, 1]) == pytest.approx(float(wanted), abs=1e-9)
    found = probed(made, "blocks", model, block="1")
    assert found["block"] == 1 and found["cosine"][0][2] == pytest.approx(1, abs=1e-6)
    # S_02 = 1 lies opposite S_13, and every other pair is near 0.
    assert found["asymmetry"] == pytest.approx(
        float(abs(cosines[0, 1] - cosines[2, 3]) + abs(cosines[0, 2] - cosines[1, 3])) / 2, abs=1e-5
    )
    assert probed(made, "blocks", model, block=4)["similarity"] is None


def test_asymmetry_in_closed_form():
    symmetric = torch.tensor([[1, 0.5, 0.2, 0.1], [0.5, 1, 0.9, 0.2], [0.2, 0.9, 1, 0.5], [0.1, 0.2, 0.5, 1]])
    assert asymmetry(symmetric) == 0
    tilted = symmetric.clone()
    tilted[0, 1] = tilted[1, 0] = 0.8
    # Four pairs can differ from their mirror image: 01 and 23, 02 and 13.
    assert asymmetry(tilted) == pytest.approx(0.3 * 2 / 4)
    assert asymmetry(torch.eye(2)) is None and asymmetry(torch.eye(1)) is None
    assert asymmetry(torch.tensor([[1, 0.4, 0], [0.4, 1, 0.1], [0, 0.1, 1]])) == pytest.approx(0.3)


def test_the_block_of_a_grown_run():
    def run(block=None, stages=None):
        origins = None if stages is None else tuple(SimpleNamespace(stage=stage) for stage in stages)
        model = SimpleNamespace(structure=SimpleNamespace(lineage=origins))
        return grown_block(model, SimpleNamespace(controller=None if block is None else SimpleNamespace(block=block)))

    assert run() is None and run(block=4) == 4 and run(stages=[0, 0, 1, 1, 1, 0]) == 3 and run(stages=[0, 0]) is None


MISTAKES = [
    ("blocks", {}, "this run was not grown by blocks; give the number of layers in a block"),
    ("blocks", {"block": 2}, "blocks of 2 layers do not divide the 5 layers of this model"),
    ("effects", {"at": "32,99"}, "the boundaries 32, 99 in sequences of at most 32 tokens leave no future tokens"),
    ("effects", {"at": "0,1"}, "the boundaries 0, 1 in sequences of at most 32 tokens leave no future tokens"),
    ("depth-score", {"at": "8,32"}, "the boundaries 32 in sequences"),
    ("effects", {"modes": "current", "at": "8"}, "--at has no effect here: only the mode future has boundaries"),
    ("effects", {"at": "8", "boundaries": 1}, "--boundaries has no effect here: --at names the boundaries"),
    ("effects", {"modes": "current", "seed": 1}, "--seed has no effect here: nothing is chosen at random"),
    ("depth-score", {"stride": 9}, "--stride has no effect here: windows of text have no answers"),
    ("effects", {"layers": "7"}, "the plan does not run layer 7"),
    ("effects", {"parts": "layers"}, "parts = 'layers' is unknown; did you mean 'layer'"),
    ("effects", {"modes": "now"}, "modes = 'now' is unknown; known: current, future"),
    ("effects", {"at": "a"}, "input should be a valid integer"),
    ("depth-score", {"by": "level"}, "--by names a field of a file of prompts"),
    ("depth-score", {"prompts": "none.txt"}, "none.txt: there is no such file"),
    ("depth-score", {"rows": 0}, "greater than or equal to 1"),
    ("depth-score", {"stride": -1}, "stride = -1: input should be greater than or equal to 0"),
    ("depth-score", {"seed": -1}, "seed = -1: input should be greater than or equal to 0"),
    ("effects", {"stride": -1}, "stride = -1: input should be greater than or equal to 0"),
    ("effects", {"seed": 2**32}, "seed = 4294967296: input should be less than 4294967296"),
    ("tuned-lens", {"seed": -1}, "seed = -1: input should be greater than or equal to 0"),
    ("tuned-lens", {"lr": 0}, "greater than 0"),
    ("tuned-lens", {"lr": "inf"}, "finite"),
    ("attention-maps", {"count": 99}, "count = 99: this model has 20 heads; give at most as many"),
    ("convergence", {"passes": 10**6}, "passes = 1000000: input should be less than or equal to 1000"),
    ("kept-mass", {"window": 10**20}, "less than or equal to 1000000000000"),
]


@pytest.mark.parametrize(("name", "settings", "problem"), MISTAKES)
def test_mistakes_are_one_sentence(made, name, settings, problem):
    with pytest.raises(UserError, match=problem):
        probed(made, name, **settings)


def test_plans_that_a_probe_cannot_answer(made, small, tmp_path):
    empty = made.model.with_plan(made.model.plan.truncate(0))
    for name in ("effects", "depth-score", "contributions"):
        assert probed(made, name, empty) == {"skipped": "the plan has no attention"}
    with pytest.raises(UserError, match="nothing to exit from early"):
        probed(made, "tuned-lens", empty)
    short = tmp_path / "short.txt"
    short.write_text("cat\n")
    with pytest.raises(UserError, match="sequences of at most 3 tokens leave no future tokens"):
        probed(made, "depth-score", prompts=str(short))
    looped = model_of(4, "looped", recurrence={"pre": 1, "loop": 2, "post": 1, "chunks": [2, 1]})
    with pytest.raises(UserError, match="in a loop over iterations the stream is no sum of contributions"):
        probed(made, "effects", looped, axes="local")
    found = probed(made, "effects", looped, rows=2, parts="layer")
    assert set(found["current"]) == {"propagated"}
    # The first shared layer runs again after the second, which therefore changes it.
    changes = found["current"]["propagated"]["layer"]["changes"]
    assert changes[2][1] > 0 and changes[2][2] is None and changes[3] == [None] * 4


def test_on_the_command_line(small, tmp_path, runs_dir, monkeypatch, capsys):
    from hybridlab.lab.cli.main import run

    train(small(shape={"layers": 4}, training={"steps": 2}), tmp_path / "run", runs_dir)
    monkeypatch.chdir(tmp_path)

    def analyze(*arguments):
        words = ["hybridlab", "analyze", "./run", "--runs-dir", str(runs_dir), "--probe", *arguments]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    for arguments in (
        ["depth-score", "--rows", "2"],
        ["effects", "--rows", "2", "--boundaries", "2"],
        ["contributions", "--first-token", "false"],
        ["blocks", "--block", "2"],
        ["interventions", "--rows", "2"],
        ["tuned-lens", "--rows", "2", "--steps", "2", "--save", "lens.safetensors"],
    ):
        code, out, err = analyze(*arguments)
        assert code == 0, err
        assert out and all(len(line) <= 80 for line in out.splitlines()), out
    assert {value.shape for value in load_file("lens.safetensors").values()} == {(24, 24), (24,)}
    code, out, _ = analyze("effects", "--rows", "1", "--json")
    assert code == 0 and json.loads(out)["future"]["boundaries"] == 3
    for arguments, problem in (
        (["blocks", "--block", "3"], "do not divide the 4 layers"),
        (["effects", "--at", "31,32", "--layers", "4"], "the plan does not run layer 4 (L5)"),
        (["depth-score", "--at", "40"], "leave no future tokens"),
        (["tuned-lens", "--save", "nowhere/lens.safetensors"], "there is no folder nowhere; make it first"),
        (["tuned-lens", "--save", "."], "is a folder; name a file in it"),
    ):
        code, _, err = analyze(*arguments)
        assert code == 2 and problem in err and len(err.strip().splitlines()) <= 4, err
