"""`hybridlab bench`: times of models that take turns, here and in transformers."""

import json
import re
import statistics
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import MistralConfig, MistralForCausalLM
from typer.testing import CliRunner

from hybridlab import build_model, save
from hybridlab.config.loading import Layer, merge, parse_setting
from hybridlab.config.resolve import resolve
from hybridlab.lab.cli.bench import _models, _points, _sized
from hybridlab.lab.cli.main import app
from hybridlab.lab.papers import speed
from hybridlab.lab.papers.experiment import BenchmarkModel
from hybridlab.lab.papers.speed import _tokens, _trainer, share_in_products
from hybridlab.messages import heard_by
from hybridlab.models.loss import LARGE_VOCABULARY
from tests.conftest import SMALL_SHAPE
from tests.contract.test_parity import SHARED, theirs
from tests.integration.test_cli import hybridlab

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published"
SMALL = ["--rounds", "2", "--repeats", "2", "--batch", "1", "--seq-len", "8", "--set", "shape.layers=2"]


@pytest.mark.long
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


@pytest.mark.long
def test_compiled_texts_are_the_same_in_both_too(tmp_path):
    """Static caches and one graph for all tokens, here and in transformers. Which form here is the fastest is a matter
    of this machine and this minute: the sentence names the one that the times name."""
    out = tmp_path / "times.json"
    asked = [*SMALL, "--generate", "--compile", "--against", "compiled", "--out", str(out)]
    done = CliRunner().invoke(app, ["bench", *asked])
    assert done.exit_code == 0, done.output
    assert "forms of the first model generate the same tokens" in done.stdout
    found = json.loads(out.read_text())
    assert list(found["speeds"]) == ["vanilla", "vanilla, compiled", "transformers, compiled"] and found["same_tokens"]
    assert [model["compiled"] for model in found["benchmark"]["models"].values()] == [False, True, True]
    seconds = {name: statistics.median(parts["generate"]["seconds"]) for name, parts in found["speeds"].items()}
    fastest = min(("vanilla", "vanilla, compiled"), key=seconds.__getitem__)
    assert found["to_fastest_peer"]["generate"]["model"] == fastest
    assert f"\ngenerate: {fastest} is " in done.stdout


def test_the_share_of_a_known_peak(monkeypatch):
    """As on a GPU: a device of 1 TFLOP/s. Nothing is measured of transformers' texts and of devices without a peak."""
    monkeypatch.setattr("hybridlab.training.machine.peak_of", lambda device: 1e12)
    done = CliRunner().invoke(app, ["bench", *SMALL])
    assert done.exit_code == 0, done.output
    assert "MFU" in done.stdout and "%" in done.stdout.partition("step")[2].splitlines()[0].rstrip()[-1]
    found = json.loads(CliRunner().invoke(app, ["bench", *SMALL, "--json"]).stdout)
    spent, seconds = found["flops"]["vanilla"], found["speeds"]["vanilla"]
    for part, share in found["mfu"]["vanilla"].items():
        assert share == pytest.approx(spent[part] / statistics.median(seconds[part]["seconds"]) / 1e12, rel=1e-3)
    monkeypatch.undo()
    assert json.loads(CliRunner().invoke(app, ["bench", *SMALL, "--json"]).stdout)["mfu"] == {"vanilla": None}


def test_a_length_of_which_the_tokens_of_a_step_are_no_multiple():
    """`tiny` trains with 2,048 tokens a step; here it is measured with sequences of 24."""
    longer = ["24" if before == "--seq-len" else word for before, word in zip(["", *SMALL], SMALL, strict=False)]
    found = json.loads(CliRunner().invoke(app, ["bench", *longer, "--json"]).stdout)
    assert found["gigabytes"]["vanilla"] > 0 and found["flops"]["vanilla"]["step"] > 0


@pytest.mark.long
def test_architectures_beside_each_other(tmp_path):
    settings = ["--set", "shape.layers=4"]
    done = hybridlab("bench", *SMALL, *settings, "--arch", "vanilla", "--arch", "sgt", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["speeds"]) == ["vanilla", "sgt"] and found["to_fastest_peer"] == {}


@pytest.mark.long
def test_settings_of_one_architecture_and_values_of_one_setting(tmp_path):
    """Time and memory at each value, and a picture of both; memory grows with the length, and a loop needs more."""
    archs = ["--arch", "vanilla", "--arch", "sgt controller.max_passes=2", "--arch", "sgt controller.heads=1"]
    asked = ["--set", "shape.layers=4", "--over", "seq-len=64,256", "--figure", "costs.png", "--out", "costs.json"]
    done = hybridlab("bench", *SMALL, *archs, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 and "\nsgt 2: sgt controller.heads=1\n" in done.stdout
    found = json.loads((tmp_path / "costs.json").read_text())
    short, long = found["points"]
    assert found["over"] == "seq-len" and [short["value"], long["value"]] == [64, 256]
    assert list(long["speeds"]) == ["vanilla", "sgt", "sgt 2"] and long["benchmark"]["prompt"] == 256
    assert long["benchmark"]["models"]["sgt"]["config"]["controller"] == {"max_passes": 2}
    assert all(short["gigabytes"][name] < long["gigabytes"][name] for name in short["gigabytes"])
    assert long["gigabytes"]["vanilla"] < long["gigabytes"]["sgt 2"] < long["gigabytes"]["sgt"]
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_methods_that_act_in_every_step(tmp_path):
    """Gates, penalties and entropies of the controller are part of a step, and FLOPs are counted as executed."""
    archs = [word for arch in ("vanilla", "consa", "entropy-reg", "saobp-low") for word in ("--arch", arch)]
    done = hybridlab("bench", *SMALL, *archs, "--set", "window=4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    flops = {name: parts["step"] for name, parts in found["flops"].items()}
    assert flops["consa"] > flops["vanilla"] == flops["entropy-reg"]


@pytest.mark.long
def test_steps_of_a_whole_run(tmp_path):
    """A run that grows counts its shorter steps; one that does not is its last step."""
    asked = ["--set", "shape.layers=6", "--arch", "vanilla", "--arch", "midas", "--whole-run", "--json"]
    done = hybridlab("bench", *SMALL, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["speeds"]
    assert found["vanilla"]["run"]["seconds"] == found["vanilla"]["last_step"]["seconds"]
    assert found["midas"]["run"]["seconds"] != found["midas"]["last_step"]["seconds"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arch", " "], "--arch is empty; write a name"),
        (["--arch", "sgt 'x"], "No closing quotation"),
        (["--arch", "vanilla 'shape={layer: 2}'"], "did you mean 'layers'"),
        (
            ["--arch", "sgt controler.heads=2"],
            "--arch 'sgt controler.heads=2': controler is not a known setting; did you mean 'controller'",
        ),
        (["--over", "batch=0"], "--over batch=0: 0 is too small"),
        (["--over", "batch=two"], "'two' is no whole number; write NAME=128,256,512"),
        (["--over", "batch"], "write NAME=128,256,512, with batch, seq-len or a setting as NAME"),
        (
            ["--over", "batches=2"],
            "--over batches=2: 'batches' is neither batch, seq-len nor a setting; did you mean 'b",
        ),
        (["--over", "foo=2"], "'foo' is neither batch, seq-len nor a setting; write NAME=128,256,512"),
        (
            ["--over", "shape.layer=2"],
            "--over shape.layer=2: shape.layer is not a known setting; did you mean 'layers'",
        ),
        (["--over", "shape.kv_heads=3"], "--over shape.kv_heads=3: shape: heads 8 is not a multiple"),
        (["--set", "foo=1"], "--set foo=1: foo is not a known setting"),
        (["--arch", "sgt controler"], "--arch 'sgt controler': write it as name.of.field=value"),
        (["--over", "training.seq_len=64,128"], "use --seq-len N or --over seq-len=N,N"),
        (
            ["--set", "training.tokens_per_step=64"],
            "training.tokens_per_step has no effect on a benchmark; use --batch",
        ),
        (["--arch", "vanilla evaluation.task_rows=9"], "evaluation.task_rows has no effect on a benchmark; leave it"),
        (["--figure", "costs.png"], "--figure draws steps over the values of --over"),
        (["--figure", "costs.txt", "--over", "batch=1"], "--figure costs.txt: the name must end in"),
        (["--whole-run", "--generate"], "leave it out with --generate"),
        (["--against", "eagr"], "did you mean 'eager'"),
        (["--arch", "vanila"], "did you mean 'vanilla'"),
        (["--arch", "spiral-b", "--against", "eager"], "transformers has no class for this model"),
        (["--size", "tny"], "did you mean 'tiny'"),
        (["--size", "tiny", "--from", "run"], "--size tiny and --from run both give a shape; leave one of the two out"),
    ],
)
def test_mistakes(tmp_path, options, said):
    done = hybridlab("bench", *options, "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr


def test_the_shape_of_another_model(tmp_path):
    model = build_model("vanilla", shape=SMALL_SHAPE)
    save(model, tmp_path / "small")
    name, size, (layer,) = _sized(None, str(tmp_path / "small"), tmp_path)
    models = _models({"vanilla": ["vanilla"]}, size, None, False, [layer])
    (config,) = (resolve(one.arch, size, layers=[Layer(one.config)]) for one in models.values())
    assert config.shape == model.shape and name == "small"


def test_windows_of_another_model_are_left_out_with_a_word(tmp_path):
    settings = SHARED | {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}
    theirs(("mistral", MistralConfig, MistralForCausalLM, settings), True).save_pretrained(tmp_path / "mistral")
    said = []
    with heard_by(said.append):
        _sized(None, str(tmp_path / "mistral"), tmp_path)
    words = "its shape alone is timed, without the windows of 3 of its 3 layers"
    assert said == [f"--from {tmp_path / 'mistral'}: {words}"]


@pytest.mark.parametrize(("name", "batch", "length"), [("batch", 16, 128), ("seq-len", 8, 16), ("window", 8, 128)])
def test_points_of_over(name, batch, length):
    """A batch, a length, or a setting, also one that stands at the top."""
    points = _points(f"{name}=16,32", 8, 128)
    assert list(points) == [16, 32] and points[16][:2] == (batch, length)
    assert [layer.values for layer in points[16][2]] == ([{"window": 16}] if name == "window" else [])


def test_what_is_measured_is_kept_where_a_later_point_fails(tmp_path):
    done = hybridlab("bench", *SMALL, "--over", "shape.kv_heads=4,3", "--out", "heads.json", cwd=tmp_path)
    assert done.returncode == 2 and "kv_heads" in done.stderr
    assert [point["value"] for point in json.loads((tmp_path / "heads.json").read_text())["points"]] == [4]


def test_the_tables_of_the_documentation_are_those_of_the_files():
    text = (ROOT / "docs" / "speed.md").read_text()
    costs = re.findall(r"\[`([\w-]+)`\]\(\S+\) \| `([\w-]+)` \| (.+) × (.+) \| (.+) \| (.+) \| (.+) \|", text)
    assert len(costs) == 11
    for file, name, batch, length, *cells in costs:
        found = json.loads((PUBLISHED / "bench" / f"{file}.json").read_text())
        part, first = ("run" if file == "grown-mini" else "step"), next(iter(found["speeds"]))
        ratio = found["speeds"][name][part]["time_ratio"]
        flops, memory = (found["flops"][of][part] for of in (name, first)), found["gigabytes"]
        assert [int(batch)] == found["benchmark"]["batches"]
        assert int(length.replace(",", "")) == found["benchmark"]["prompt"]
        assert cells[0] == f"{next(flops) / next(flops):.3f}"
        assert cells[1:] == [f"{ratio['value']:.3f} ± {ratio['stderr']:.3f}", f"{memory[name] / memory[first]:.2f}"]
    peers = re.findall(r"\[`([\w-]+)`\]\(\S+\) \| (step|forward|generate) \| (.+); (.+) \| (.+) \|", text)
    assert len(peers) == 7
    for file, part, one, other, cell in peers:
        against = json.loads((PUBLISHED / "bench" / f"{file}.json").read_text())["to_fastest_peer"][part]
        assert (one, other) == (against["model"], against["peer"])
        assert cell == "{value:.3f} ± {stderr:.3f}".format(**against["ratio"])


def test_products_are_what_is_left_of_a_model_of_products(monkeypatch):
    """Positive control: of a chain of products of matrices they are nearly everything, of a chain of sums nothing."""
    import torch

    from hybridlab.lab.papers import speed

    class Model:
        device = torch.device("cpu")

    x = torch.randn(256, 256)
    for measured, low, high in ((lambda *_: [x @ x for _ in range(50)], 0.9, 1), (lambda *_: x + x, 0, 0.01)):
        monkeypatch.setitem(speed._MEASURES, "passes", (None, measured))
        assert low <= share_in_products("passes", Model(), 1, 1, 1) <= high


def test_a_large_vocabulary_is_timed_with_the_loss_of_a_run(monkeypatch):
    """Whole logits of the 573M model need 73 GB."""
    size = {"shape.vocab": LARGE_VOCABULARY, "shape.layers": 1, "shape.width": 8, "shape.ffn_width": 8}
    choice = BenchmarkModel(arch="vanilla", config=merge(*(parse_setting(f"{k}={v}") for k, v in size.items())).values)
    trainer = _trainer(choice, "tiny", torch.device("cpu"))
    tokens, seen = _tokens(LARGE_VOCABULARY, torch.device("cpu"), 2, 9), []
    with torch.no_grad():
        wanted = cross_entropy(trainer.model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    mean = speed._mean_loss

    def noted(output, tokens):
        seen.append((output, mean(output, tokens)))
        return seen[-1][1]

    monkeypatch.setattr(speed, "_mean_loss", noted)
    trainer.seconds(2, 9, 1)
    [(output, loss)] = seen
    assert output.logits.numel() == 0
    torch.testing.assert_close(loss.detach(), wanted, atol=1e-2, rtol=1e-3)  # bf16 on some processors


def test_models_that_wait_leave_the_device(monkeypatch):
    models = {name: _trainer(BenchmarkModel(arch="vanilla"), "tiny", torch.device("cpu")) for name in "ab"}
    models["a"].seconds(1, 4, 1)
    parameters = sum(1 for _ in models["a"].model.parameters())
    assert sum(1 for _ in speed._tensors(models["a"])) == 3 * parameters, "weights and two moments"

    class Placed:
        """A tensor of which only the place is known."""

        def to(self, device):
            self.place = device.type
            return self

        data = property(lambda self: self, lambda self, value: None)

    placed = {name: Placed() for name in models}
    monkeypatch.setattr(speed, "_tensors", lambda model: [placed[name] for name in models if models[name] is model])
    for trainer in models.values():
        trainer.device = torch.device("cuda")
    assert speed.alone(models, "b") is models["b"]
    assert {name: one.place for name, one in placed.items()} == {"a": "cpu", "b": "cuda"}
