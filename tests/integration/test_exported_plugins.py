"""An attention kind of a plug-in is exported beside the weights, and runs where neither plug-in nor hybridlab is."""

import re

import pytest
import torch

from hybridlab import build_model, export_hf, load_checkpoint
from hybridlab.attention.kinds import Full
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.data.tokenizers import load_tokenizer, make_tokenizer
from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plugins import load_plugin
from tests.integration.test_export_command import PROMPTS, elsewhere
from tests.plugins import fresh_plugins

LICENCE = "# SPDX-License-Identifier: BSD-3-Clause\n"
SINKS = (
    LICENCE
    + '''"""Sinks: the first tokens and the last few."""
from dataclasses import dataclass
from typing import Any

from hybridlab.attention.kinds import AttentionKind, check_width
from hybridlab.attention.registry import register_kind
from RULES import visible


@register_kind
@dataclass(frozen=True)
class Sinks(AttentionKind):
    name, letter, colour = "sinks", "s", "#009E73"
    sinks: int
    width: int

    def __post_init__(self) -> None:
        check_width(self.width)

    def attend(self, heads: Any) -> Any:
        return heads.softmax(None, self.sees)

    def slot(self, standard: Any) -> Any:
        return standard(None, self.sees)

    def sees(self, query: Any, key: Any) -> Any:
        return visible(query, key, self.sinks, self.width)
'''
)
RULES = LICENCE + "def visible(query, key, sinks, width):\n    return (key < sinks) | (key > query - width)\n"
MEAN = '''"""The mean of all values so far: no softmax, and a cache of its own."""
from dataclasses import dataclass

import torch

from hybridlab.attention.heads import Attended
from hybridlab.attention.kinds import AttentionKind
from hybridlab.attention.registry import register_kind


class RunningSum:
    def __init__(self):
        self.total = None

    def attend(self, q, k, v, serving, counts, positions):
        before = torch.zeros_like(v[:, :, :1]) if self.total is None else self.total
        seen = torch.as_tensor(counts)[:, None] + torch.arange(1, v.shape[2] + 1)
        return ((before + v.cumsum(2)) / seen[:, None, :, None])[:, list(serving)]

    def append(self, q, k, v, counts, lengths):
        real = torch.arange(v.shape[2])[None] < torch.as_tensor(lengths)[:, None]
        new = (v * real[:, None, :, None]).sum(2, keepdim=True)
        self.total = new if self.total is None else self.total + new

    def tensors(self):
        return [] if self.total is None else [self.total]


@register_kind
@dataclass(frozen=True)
class Mean(AttentionKind):
    name, letter, colour = "mean", "u", "#009E73"

    def attend(self, heads):
        v = heads.v.repeat_interleave(heads.group, 1)
        return Attended(v.cumsum(2) / torch.arange(1, v.shape[2] + 1)[:, None])

    def slot(self, standard):
        return RunningSum()
'''


@pytest.fixture(autouse=True)
def fresh():
    with fresh_plugins():
        yield


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def as_file(folder):
    """A file, and another one beside it."""
    (folder / "own_sinks.py").write_text(SINKS.replace("RULES", "own_rules"))
    (folder / "own_rules.py").write_text(RULES)
    load_plugin(folder / "own_sinks.py")
    return ["plugin_own_rules.py", "plugin_own_sinks.py"], {"sinks": 2, "width": 5}


def as_package(folder):
    """A module of a package, with another one of it."""
    (folder / "own_package" / "parts").mkdir(parents=True)
    for name in ("__init__.py", "parts/__init__.py"):
        (folder / "own_package" / name).write_text("")
    (folder / "own_package" / "kinds.py").write_text(SINKS.replace("RULES", ".parts.rules"))
    (folder / "own_package" / "parts" / "rules.py").write_text(RULES)
    load_plugin("own_package.kinds")
    return ["plugin_own_package_kinds.py", "plugin_own_package_parts_rules.py"], {"sinks": 2, "width": 5}


def as_kernel(folder):
    """A kind that is no softmax."""
    (folder / "own_mean.py").write_text(LICENCE + MEAN)
    load_plugin(folder / "own_mean.py")
    return ["plugin_own_mean.py"], {}


def model_with(name, settings):
    """Heads of a plug-in's kind beside full ones, of which some run twice."""
    shape = {"layers": 3, "width": 24, "heads": 4, "kv_heads": 2, "head_width": 6, "ffn_width": 40, "vocab": 400}
    model = build_model("vanilla", shape=shape)
    row = (ATTENTION_KINDS.get(name)(**settings), Full())
    return model.with_plan(model.plan.loop_heads(1, (0, 3), 1), AttentionMap((row, row[::-1], row))).eval()


@pytest.mark.long
@pytest.mark.parametrize("written", [as_file, as_package, as_kernel])
def test_a_kind_of_a_plug_in_runs_where_neither_it_nor_hybridlab_is_installed(written, plugins, tmp_path):
    files, settings = written(plugins)
    model = model_with("mean" if written is as_kernel else "sinks", settings)
    make_tokenizer("byte", []).save(str(tmp_path / "tokenizer.json"))
    done = export_hf(model, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json", quiet=True)
    assert [name for name in done.files if name.startswith("plugin_")] == files
    for name in files:
        text = (tmp_path / "out" / name).read_text()
        assert text.startswith(LICENCE) and "from hybridlab" not in text
    tokens = list(range(5, 33))
    found = elsewhere(tmp_path / "out", True, tokens, tmp_path)
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.tensor(found["logits"]), wanted, atol=1e-5, rtol=1e-5)
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    for prompt, text in zip(PROMPTS, found["texts"], strict=True):
        start = tokenizer.encode(prompt, add_special_tokens=False).ids
        (row,) = model.generate(torch.tensor([start]), 8).rows()
        assert text == tokenizer.decode(row)


def test_hybridlab_opens_such_a_folder_with_the_plug_in_and_names_it_without(plugins, tmp_path):
    _, settings = as_file(plugins)
    model = model_with("sinks", settings)
    export_hf(model, tmp_path / "out", quiet=True)
    again = load_checkpoint(tmp_path / "out")
    assert again.structure == model.structure
    assert str(tmp_path) not in (tmp_path / "out" / "config.json").read_text()
    with fresh_plugins(), pytest.raises(UserError, match="trained with the plug-in own_sinks .* load it before"):
        load_checkpoint(tmp_path / "out")


MISTAKES = {
    "import hybridlab.attention.heads": "write this import as `from MODULE import NAME`",
    "from hybridlab import UserError": "write this import as `from MODULE import NAME`",
    "from hybridlab.attention import heads": "write this import as `from MODULE import NAME`",
    "import own_rules": "write this import as `from MODULE import NAME`",
    "from hybridlab.registry import PROBES": r"hybridlab\.registry is no part of an exported model",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_an_import_that_cannot_come_along_is_named_with_its_line(line, plugins, tmp_path):
    _, settings = as_file(plugins)
    with fresh_plugins():
        path = plugins / "own_sinks.py"
        path.write_text(path.read_text().replace("from typing import Any", f"from typing import Any\n{line}"))
        load_plugin(path)
        wrong = path.read_text().splitlines().index(line) + 1
        with pytest.raises(UserError, match=f"{re.escape(str(path))}:{wrong}: .*{MISTAKES[line]}"):
            export_hf(model_with("sinks", settings), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_kind_without_a_file_is_refused_by_name(plugins, tmp_path):
    _, settings = as_file(plugins)
    model = model_with("sinks", settings)
    kind = type(model.attention_map.layers[0][0])
    kind.__module__ = "__main__"
    with pytest.raises(UserError, match="kind sinks has no Python file that could stand beside the weights"):
        export_hf(model, tmp_path / "out", quiet=True)
