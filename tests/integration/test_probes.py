"""Probes: one that a test registers, and the built-in ones in records, on the command line and on unusual plans."""

import json
import sys
from typing import Annotated

import pytest
import torch
from pydantic import Field

from hybridlab.analysis.entropy import row_entropy
from hybridlab.analysis.probe import Probe, Table, run_probe
from hybridlab.analysis.probes.convergence import _lemma, convergence
from hybridlab.errors import UserError
from hybridlab.messages import heard_by, print_line
from hybridlab.models.build import build_model
from hybridlab.registry import PROBES
from hybridlab.runs.evaluate import open_run
from hybridlab.statistics import rank_correlation
from hybridlab.training.store.folders import Runs
from tests.conftest import SMALL_SHAPE
from tests.training import growing, train


def count_tokens(model, corpus, seq_len, rows: Annotated[int, Field(ge=1)] = 5, min_count=2):
    if rows > 100:
        raise UserError("there are not so many rows")
    return {"layers": model.shape.layers, "tokens": rows * seq_len, "min_count": min_count}


def show_count(result):
    yield f"{result['tokens']} tokens"
    yield Table("by layer", ["layers", "share", "missing"], [[result["layers"], 0.25, None]])


@pytest.fixture
def counting():
    """A probe of this test, under the name `token counts`."""
    PROBES.add("token counts", Probe(count_tokens, show_count))
    yield
    PROBES.remove("token counts")


def test_a_probe_of_a_plug_in_runs_everywhere(counting, small, tmp_path, runs_dir, monkeypatch, capsys):
    from hybridlab.lab.cli.main import run

    config = small(evaluation={"probes": ["token counts"], "validation_windows": 4}, training={"steps": 2})
    record = train(config, tmp_path / "a", runs_dir)
    by_default = {"layers": 3, "tokens": 5 * 32, "min_count": 2}
    assert record.results.probes == {"token counts": by_default}
    asked = {"probes": ["token counts"], "probe_settings": {"token counts": {"rows": 2}}, "validation_windows": 4}
    record = train(small(evaluation=asked, training={"steps": 2}), tmp_path / "b", runs_dir)
    assert record.results.probes == {"token counts": {**by_default, "tokens": 64}}
    asked = {"final_probes": ["token counts"], "at_steps": [1], "validation_windows": 4}
    record = train(small(evaluation=asked, training={"steps": 2}), tmp_path / "c", runs_dir)
    assert record.results.probes == {"token counts": by_default} and record.results.at["1"].probes == {}

    opened = open_run(str(tmp_path / "a"), Runs(runs_dir), None, [])
    assert run_probe("token counts", opened.model, opened.corpus, 32) == by_default
    assert run_probe("token counts", opened.model, opened.corpus, 32, rows=2)["tokens"] == 64

    def shown(*arguments):
        monkeypatch.setattr(sys, "argv", ["hybridlab", "analyze", *arguments, "--probe", "token counts"])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return ended.value.code, out if ended.value.code == 0 else err

    code, out = shown("./a", "--runs-dir", str(runs_dir))
    assert code == 0 and "160 tokens" in out and "by layer" in out
    assert out.splitlines()[-2].split() == ["3", "0.250", "–"]
    code, out = shown("--rows", "3", "./a", "--min-count=7", "--json", "--runs-dir", str(runs_dir))
    assert json.loads(out) == {"layers": 3, "tokens": 96, "min_count": 7}
    code, err = shown("./a", "--passes", "3", "--runs-dir", str(runs_dir))
    assert code == 2 and "--passes has no effect on --probe token counts; it takes --rows, --min-count" in err


def test_a_probe_that_does_not_fit_a_model_is_skipped_and_says_why(counting, small, tmp_path, runs_dir):
    PROBES.add("failing", Probe(lambda model, corpus, seq_len: count_tokens(model, corpus, seq_len, 101), show_count))
    edits = {"plan": [{"op": "truncate", "layers": 0}], "training": {"steps": 2}}
    try:
        both = train(small(evaluation={"probes": ["token counts", "failing"]}, **edits), tmp_path / "a", runs_dir)
        skipped = both.results.probes
        PROBES.items["failing"] = Probe(PROBES.get("failing").measure, show_count, needs_attention=False)
        alone = train(small(evaluation={"probes": ["failing"]}, **edits), tmp_path / "b", runs_dir)
        without_attention = alone.results.probes
    finally:
        PROBES.remove("failing")
    assert skipped["token counts"] == {"skipped": "the plan has no attention"} == skipped["failing"]
    assert without_attention["failing"] == {"skipped": "there are not so many rows"}


def test_settings_of_a_probe_are_checked(counting):
    probe = PROBES.get("token counts")
    assert probe.settings == {"rows": 5, "min_count": 2} and probe.checked({"rows": "8"}) == {"rows": 8}
    with pytest.raises(UserError, match="rows = 0: input should be greater than or equal to 1"):
        probe.checked({"rows": 0})
    with pytest.raises(UserError, match="passes is not a setting of this probe; known: rows, min_count"):
        probe.checked({"passes": 3})
    with pytest.raises(TypeError, match="setting 'rows' of a probe needs a default"):
        Probe(lambda model, corpus, seq_len, rows: {}, show_count).checked({})
    with pytest.raises(UserError, match="registered already"):
        PROBES.add("token counts", Probe(count_tokens, show_count))


def test_every_built_in_probe_is_registered_by_its_module():
    built_in = {"contributions", "convergence", "entropy", "kept-mass", "knockout", "loops", "reach"}
    built_in |= {"blocks", "depth-score", "effects", "interventions", "tuned-lens"}
    assert built_in <= set(PROBES.names())
    for name in PROBES.names():
        assert isinstance(PROBES.get(name), Probe)
    with pytest.raises(UserError, match="probe 'entropi' is unknown; did you mean 'entropy'"):
        PROBES.get("entropi")


def test_an_unknown_probe_in_the_settings_is_refused_with_the_nearest_name(small):
    with pytest.raises(UserError, match="probe 'convergense' is unknown; did you mean 'convergence'"):
        small(evaluation={"probes": ["convergense"]})


def test_the_probe_of_convergence_writes_measurements():
    model = build_model("vanilla", kernel="eager", shape={**SMALL_SHAPE, "init": {"std": 0.3}})
    tokens = torch.randint(400, (5, 12), generator=torch.Generator().manual_seed(0))
    result = convergence(model, tokens, heads=1, passes=3)
    assert [row["set"] for row in result["rows"]] == ["high", "low"] * 3
    for high, low in zip(result["rows"][::2], result["rows"][1::2], strict=True):
        assert high["faster_by"].keys() == high["factor"].keys() == {"value", "stderr", "n"} and "faster_by" not in low
        assert high["faster_by"]["value"] == pytest.approx(low["factor"]["value"] - high["factor"]["value"])
        assert high["faster_by"]["n"] == low["factor"]["n"] == 5 and high["faster_by"]["stderr"] > 0
    rank = result["entropy_trace_rank_correlation"]
    assert rank["n"] == 12 and rank["stderr"] == pytest.approx((1 - rank["value"] ** 2) / 11**0.5)


def test_probes_and_longer_windows_are_in_the_record(small, tmp_path, runs_dir):
    config = growing(small)
    probes = ["entropy", "convergence", "contributions"]
    evaluation = config.evaluation.model_copy(update={"length_factors": [1, 2], "probes": probes})
    record = train(config.model_copy(update={"evaluation": evaluation}), tmp_path / "a", runs_dir)
    results = record.results
    assert results.extrapolation["1"] == results.validation
    assert results.extrapolation["2"].loss.n == 4
    probed = results.probes
    assert len(probed["entropy"]["heads"]) == 5 and len(probed["contributions"]["examples"][0]["loops"]) == 3
    assert len(probed["contributions"]["sublayers"]["mlp"]["cosine"]) == 5
    rows = probed["contributions"]["entropies"]
    assert len(rows) > 2 and all(len(row) == 3 and all(0 < value <= 1 for value in row) for row in rows)
    rows = probed["convergence"]["rows"]
    assert len(rows) == 10 and all(row["distance"][0] == 1 and row["distance"][-1] == 0 for row in rows)
    json.dumps(record.model_dump(mode="json"), allow_nan=False)


def test_probes_skip_plans_without_attention_or_with_too_few_heads(small, tmp_path, runs_dir):
    probes = {"probes": ["entropy", "convergence", "contributions"]}

    def probed(name, **parts):
        evaluation = {**probes, "validation_windows": 4}
        return train(small(**parts, evaluation=evaluation), tmp_path / name, runs_dir).results.probes

    nothing = probed("nothing", plan=[{"op": "truncate", "layers": 0}], observe={"entropy_every": 4})
    assert all("no attention" in result["skipped"] for result in nothing.values())
    edits = [{"op": "drop_heads", "layer": 1, "heads": [0]}, {"op": "loop_heads", "layer": 1, "heads": [1, 3]}]
    assert probed("odd", plan=edits)["contributions"]["examples"][0]["head"] in (1, 3)
    single = probed("single", shape={"heads": 1, "kv_heads": 1})
    assert "a layer of this model has 1" in single["convergence"]["skipped"]


def test_the_lemma_fails_on_a_second_row_with_a_diagonal_of_0_9():
    """A second row with a diagonal of 0.9 has an entropy of 0.325 nats: the bound is 0.85, and the lemma fails."""
    weights, keys = torch.tensor([[1.0, 0.0], [0.1, 0.9]]), torch.tensor([1, 2])
    nats = row_entropy(weights, keys) * torch.tensor([1.0, 2.0]).log()
    bound = (-nats / keys).exp()[None, None]
    assert float(bound[0, 0, 1]) == pytest.approx(0.85, abs=5e-4)
    lemma = _lemma({0: {"diagonal": weights.diagonal()[None, None], "bound": bound, "keys": keys.float()[None, None]}})
    assert lemma["violations"] == 1 and lemma["violations_by_row"] == {"2": 1} and lemma["worst"]["row"] == 2
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None and rank_correlation([1, 2, 3, 4], [9, 7, 7, 1]) < -0.9


def test_settings_of_a_probe_that_is_not_measured(small):
    with pytest.raises(UserError, match="not in `probes`"):
        small(evaluation={"probes": ["contributions"], "probe_settings": {"interventions": {"items": 3}}})


@pytest.mark.parametrize(
    ("settings", "said"), [({"sequence": 3}, "sequence is not a setting"), ({"sequences": 0}, "greater than or equal")]
)
def test_settings_that_a_probe_does_not_have(small, tmp_path, runs_dir, settings, said):
    asked = {"probes": ["contributions"], "probe_settings": {"contributions": settings}}
    with pytest.raises(UserError, match=rf"evaluation.probe_settings.contributions: .*{said}"):
        train(small(evaluation=asked, training={"steps": 2}), tmp_path / "a", runs_dir)


# On a large model these take minutes.
WITH_PROGRESS = {
    "contributions": {"sequences": 9},
    "convergence": {},
    "dependency": {},
    "depth-score": {"rows": 3},
    "effects": {"rows": 3},
    "entropy": {"rows": 9},
    "interventions": {"rows": 3},
    "knockout": {"rows": 3, "window": 8},
    "tuned-lens": {"rows": 3},
}


@pytest.mark.parametrize("probe", WITH_PROGRESS)
def test_a_probe_says_how_long_it_still_takes(probe, small, tmp_path, runs_dir, monkeypatch, capsys):
    train(small(training={"steps": 2}), tmp_path / "run", runs_dir)
    opened = open_run(str(tmp_path / "run"), Runs(runs_dir), None, [])
    monkeypatch.setattr("hybridlab.training.progress._SECONDS_BETWEEN_LINES", 0.0)
    with heard_by(print_line):
        run_probe(probe, opened.model, opened.corpus, 32, config=opened.config, **WITH_PROGRESS[probe])
    assert "ETA 0:0" in capsys.readouterr().err
