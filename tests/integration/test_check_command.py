"""`hybridlab check` as a command, and what a training says of a kind that fails in its first forward pass."""

import json

import pytest

KIND = '''from dataclasses import dataclass

from hybridlab.attention.heads import Attended
from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.registry import register_kind


@register_kind
@dataclass(frozen=True)
class Near(AttentionKind):
    """The last few tokens."""

    name, letter, colour = "near", "n", "#009E73"
    width: int

    @property
    def window(self):
        return self.width

    def attend(self, heads):
        {attend}
'''
RIGHT = "return heads.softmax(self.width)"
OTHER_SHAPES = "return Attended(heads.q @ heads.k.transpose(2, 3) @ heads.v)"
WITH_KEYS = f"{RIGHT}\n\n    def keys(self, length, counting):\n        return counting.all(length)"
BARE = "return heads.softmax(self.width).out"


def test_a_file_that_is_right_passes_and_one_that_is_wrong_ends_with_one(typed, tmp_path):
    (tmp_path / "near.py").write_text(KIND.format(attend=RIGHT))
    code, shown, said = typed("check", "near.py")
    assert (code, said) == (0, "") and "attention kind near (width 3)" in shown and "failed" not in shown
    assert max(map(len, shown.splitlines())) <= 80 and len(shown.splitlines()) == 13
    (tmp_path / "near.py").write_text(KIND.format(attend="return heads.softmax(self.width + 1)"))
    code, shown, said = typed("check", "near.py", "--set", "width=5", "--json")
    (checked,) = json.loads(shown)
    failed = {one["check"]: one["text"] for one in checked["checks"] if one["verdict"] == "failed"}
    assert code == 1 and checked["settings"] == {"width": 5} and not checked["passed"]
    assert "window declares 5 keys, but the query at 5 sees the key at 0" in failed["mask"]
    assert "see Near.attend (near.py:20) and Near.window (near.py:16)" in failed["mask"]
    assert said == f"failed: check near.py: {len(failed)} of 10 checks\n"


def test_an_exception_in_a_kind_is_one_sentence_with_its_line_and_shapes(typed, tmp_path):
    (tmp_path / "near.py").write_text(KIND.format(attend=OTHER_SHAPES))
    code, shown, said = typed("check", "near.py")
    text = " ".join(shown.split())
    assert code == 1 and "Traceback" not in shown + said
    assert "Near.attend (near.py:21) raised RuntimeError: " in text
    assert "with heads.q (2, 4, 1, 8), heads.k (2, 2, 1, 8), heads.v (2, 2, 1, 8)" in text
    assert text.count("see outputs") == 9, "what rests on the outputs is not checked"


def test_a_preset_of_ones_own_is_checked_with_the_plug_in_that_it_needs(typed, tmp_path):
    (tmp_path / "near.py").write_text(KIND.format(attend=RIGHT))
    (tmp_path / "near.yaml").write_text("# Near.\nmap: {kind: uniform, attention: {kind: near, width: 4}}\n")
    code, shown, _ = typed("--plugin", "near.py", "check", "./near.yaml", "--size", "tiny-narrow")
    assert code == 0 and "arch near (size tiny-narrow)" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["snks"], "no attention kind or arch of this name"),
        (["vanila"], "did you mean 'vanilla'?"),
        (["./none.yaml"], "there is no such file"),
        (["none.py"], "there is no such file"),
        (["empty.py"], "registers no attention kind; write @register_kind"),
        (["window", "--size", "tiny"], "--size tiny has no effect on an attention kind"),
        (["window", "--set", "widht=4"], "the attention kind window has no such setting; did you mean 'width'?"),
        (["window", "--set", "width=0"], "must be a whole number of 1 or more"),
        (["belief"], "factor has no default; add --set factor=VALUE"),
        (["vanilla", "--set", "shape.layrs=3"], "shape.layrs is not a known setting; did you mean 'layers'?"),
    ],
)
def test_a_wrong_request_is_one_sentence(typed, tmp_path, words, says):
    (tmp_path / "empty.py").write_text("x = 1\n")
    code, shown, said = typed("check", *words)
    assert (code, shown) == (2, "") and says in said and said.startswith("error: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("attend", "says"),
    [
        (OTHER_SHAPES, r"Near.attend (near.py:21) raised RuntimeError: "),
        (
            RIGHT + "\n\n    def keys(self, length, counting):\n        return counting.all(length)",
            "Near.keys (near.py:24)",
        ),
        (BARE, "the attention of near raised AttributeError: 'Tensor' object has no attribute 'out'"),
    ],
)
def test_a_training_that_fails_in_a_kind_recommends_the_check(typed, tmp_path, text_file, attend, says):
    (tmp_path / "near.py").write_text(KIND.format(attend=attend))
    settings = ["data.tokenizer=byte", "map={kind: uniform, attention: {kind: near, width: 4}}", "shape.layers=2"]
    sets = [word for setting in settings for word in ("--set", setting)]
    code, _, said = typed("--plugin", "near.py", "pretrain", "--data", f"text:{text_file}", "--steps", "2", *sets)
    assert code == 2 and "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"error: {says}")
    assert last.endswith("`hybridlab check near.py --set width=4` says what is wrong with the kind")


@pytest.mark.parametrize("name", ["window", "mask", "apart", "softmaxes", "beside", "sealed"])
def test_a_property_that_raises_while_settings_are_read_is_one_sentence(typed, tmp_path, name):
    wrong = f"{RIGHT}\n\n    @property\n    def {name}(self):\n        return 1 // (self.width - 4)"
    (tmp_path / "near.py").write_text(KIND.format(attend=wrong))
    (tmp_path / "near.yaml").write_text("# Near.\nmap: {kind: uniform, attention: {kind: near, width: 4}}\n")
    for words in (["pretrain"], ["config", "show"], ["plan"]):
        code, shown, said = typed("--plugin", "near.py", *words, "--arch", "./near.yaml")
        assert (code, shown) == (2, "") and said.count("\n") == 1
        assert said.startswith(f"error: near.yaml:2: map.attention: attention kind near: its property {name} raised ")
        assert f"ZeroDivisionError: integer division or modulo by zero; see Near.{name} (near.py:" in said
        assert "`hybridlab check near.py --set width=4` says what is wrong with the kind" in said


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("def __post_init__(self):\n        1 / 0", "Near.__post_init__"),
        ("def check(self, causal):\n        1 / 0", "Near.check"),
        ("def own_kernel(self, kernel, length, causal):\n        1 / 0", "Near.own_kernel"),
        ("def keys(self, length, counting):\n        return 1 / 0", "Near.keys"),
    ],
)
def test_a_plug_in_that_raises_before_training_is_one_sentence(typed, tmp_path, method, names):
    (tmp_path / "near.py").write_text(KIND.format(attend=f"{RIGHT}\n\n    {method}"))
    kind = "map={kind: uniform, attention: {kind: near, width: 4}}"
    code, shown, said = typed("--plugin", "near.py", "plan", "--set", kind)
    assert (code, shown) == (2, "") and said.count("\n") == 1
    assert said.startswith(f"error: {names} (near.py:") and "raised ZeroDivisionError: division by zero" in said


def test_a_defect_of_hybridlab_is_not_called_the_mistake_of_a_plug_in(typed, tmp_path, monkeypatch):
    (tmp_path / "near.py").write_text(KIND.format(attend=RIGHT))
    monkeypatch.setattr("hybridlab.plan.attention_map.AttentionMap.uniform", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        typed("--plugin", "near.py", "plan", "--set", "map={kind: uniform, attention: {kind: near, width: 4}}")
