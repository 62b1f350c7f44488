"""`hybridlab bench`: times of models that take turns, here and in transformers."""

import json

import pytest

from hybridlab.papers.speed import share_in_products
from tests.integration.test_cli import hybridlab

SMALL = ["--rounds", "2", "--repeats", "2", "--batch", "1", "--seq-len", "8", "--set", "shape.layers=2"]


def test_steps_and_passes_beside_transformers(tmp_path):
    done = hybridlab("bench", *SMALL, "--against", "eager,sdpa", "--json", "--out", "times.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads((tmp_path / "times.json").read_text()) == found
    assert list(found["speeds"]) == ["vanilla", "transformers, eager", "transformers, sdpa"]
    for name, parts in found["speeds"].items():
        assert list(parts) == ["step", "forward"] and all(len(part["seconds"]) == 2 for part in parts.values())
        assert 0 < found["share_in_products"][name] < 1
    assert found["to_fastest_peer"]["step"]["model"] == "vanilla"
    assert found["to_fastest_peer"]["step"]["ratio"]["n"] == 2
    assert found["same_tokens"] is None and found["machine"]["threads"] == 1


def test_the_same_model_generates_the_same_in_both(tmp_path):
    done = hybridlab("bench", *SMALL, "--generate", "--against", "sdpa", "--arch", "vanilla", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "forms of the first model generate the same tokens" in done.stdout
    assert "generate: vanilla is" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80


def test_architectures_beside_each_other(tmp_path):
    settings = ["--set", "shape.layers=4"]
    done = hybridlab("bench", *SMALL, *settings, "--arch", "vanilla", "--arch", "sgt", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["speeds"]) == ["vanilla", "sgt"] and found["to_fastest_peer"] == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--against", "eagr"], "did you mean 'eager'"),
        (["--arch", "vanila"], "did you mean 'vanilla'"),
        (["--compile", "--generate"], "leave it out with --generate"),
        (["--generate", "--against", "compiled"], "compiled models are measured in training steps"),
        (["--arch", "spiral-b", "--against", "eager"], "transformers has no class for this model"),
        (["--size", "tny"], "did you mean 'tiny'"),
    ],
)
def test_mistakes(tmp_path, options, said):
    done = hybridlab("bench", *options, "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr


def test_products_are_what_is_left_of_a_model_of_products(monkeypatch):
    """Positive control: of a chain of products of matrices they are nearly everything, of a chain of sums nothing."""
    import torch

    from hybridlab.papers import speed

    class Model:
        device = torch.device("cpu")

    x = torch.randn(256, 256)
    for measured, low, high in ((lambda *_: [x @ x for _ in range(50)], 0.9, 1), (lambda *_: x + x, 0, 0.01)):
        monkeypatch.setitem(speed._MEASURES, "passes", (None, measured))
        assert low <= share_in_products("passes", Model(), 1, 1, 1) <= high
