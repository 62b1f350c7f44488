"""`generate` with one prompt, and with many from a file or standard input, in batches."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
import torch

from hybridlab.analysis.prompts import read_prompts as prompts_to_analyze
from hybridlab.errors import UserError
from hybridlab.models.build import build_model
from hybridlab.runs.generate import Prompt, continue_prompts, read_prompts, read_prompts_file
from hybridlab.training.store.folders import Runs
from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab, json_of
from tests.training import growing, train

PROMPTS = [
    "the cat",
    "a",
    "nobody came home before the rain fell over the far hills",
    "x y",
    "the cat sat",
    "mat",
    "on",
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    write_text(folder / "words.txt", 40_000)
    settings = {"shape": SMALL_SHAPE, "training": {**SMALL_TRAINING, "steps": 30}, "data": {"tokenizer": "byte"}}
    settings |= {"evaluation": {"validation_windows": 4}}
    (folder / "small.yaml").write_text(json.dumps(settings))
    done = hybridlab("pretrain", "--data", "text:words.txt", "--config", "small.yaml", "--run-dir", "base", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    return folder


def with_input(monkeypatch, text, *arguments, cwd):
    """A command whose standard input is this text, or these bytes, in a locale that is strict."""
    content = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="strict"))
    return hybridlab(*arguments, cwd=cwd)


@pytest.mark.long
@pytest.mark.parametrize("arch", ["vanilla", "rule-swa", "sgt", "spiral"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_k": 40, "seed": 3}])
def test_batches_give_what_the_prompts_give_one_by_one(small, runs, arch, sampling):
    if arch == "sgt":
        config = growing(small, 12)
    elif arch == "spiral":
        config = small("looped", recurrence={"pre": 1, "loop": 1, "post": 1, "chunks": [4, 1]})
    else:
        config = small(arch)
    train(config, runs / "a", runs)
    prompts = [Prompt(text, "here") for text in PROMPTS]

    def made(size):
        parts = (str(runs / "a"), Runs(runs), prompts, 12, size)
        return list(continue_prompts(*parts, **sampling))

    together = made(7)
    assert together == made(1) == made(3)
    assert [one.prompt for one in together] == PROMPTS
    assert all(one.text == one.prompt + one.continuation and one.new_tokens == 12 for one in together)
    if sampling:
        alone = {**sampling, "seed": sampling["seed"] + 2}
        parts = (str(runs / "a"), Runs(runs), prompts[2:3], 12, 1)
        assert list(continue_prompts(*parts, **alone)) == together[2:3]


@pytest.mark.long
def test_compiled_texts_are_the_same(workdir):
    """Compiled for this processor: prompts of several lengths at once, which one graph continues."""
    common = ["generate", "base", "--prompts", "prompts.txt", "--max-new-tokens", "9", "--json"]
    done = hybridlab(*common, "--compile", cwd=workdir)
    if "needs a C++ compiler" in done.stderr:
        pytest.skip("there is no C++ compiler here")
    assert json_of(done) == json_of(hybridlab(*common, cwd=workdir))
    done = hybridlab(*common, "--compile", "--no-cache", cwd=workdir)
    assert done.returncode == 2 and "compiled steps need the cache" in done.stderr


@pytest.mark.long
def test_prompts_come_from_a_file_or_standard_input_and_go_to_a_file(workdir, monkeypatch):
    common = ["--max-new-tokens", "5"]
    alone = [json_of(hybridlab("generate", "base", text, *common, "--json", cwd=workdir)) for text in PROMPTS]
    file = json_of(hybridlab("generate", "base", "--prompts", "prompts.txt", *common, "--json", cwd=workdir))
    assert file == alone
    given = with_input(monkeypatch, "\n".join(PROMPTS), "generate", "base", *common, "--json", cwd=workdir)
    assert json_of(given) == alone
    rows = [json.dumps({"prompt": PROMPTS[0]}), json.dumps({"text": PROMPTS[1]}), json.dumps({"prompt": PROMPTS[2]})]
    (workdir / "rows.jsonl").write_text("\n".join(rows))
    done = hybridlab("generate", "base", "--prompts", "rows.jsonl", *common, "--out", "made.jsonl", cwd=workdir)
    assert done.returncode == 0 and not done.stdout and "written to made.jsonl" in done.stderr
    assert [json.loads(line) for line in (workdir / "made.jsonl").read_text().splitlines()] == alone[:3]
    plain = with_input(monkeypatch, "a\nx y\n", "generate", "base", *common, cwd=workdir).stdout
    assert plain == f"=== 1 of 2 ===\n{alone[1]['text']}\n\n=== 2 of 2 ===\n{alone[3]['text']}\n\n"
    one = hybridlab("generate", "base", "a", *common, cwd=workdir).stdout
    assert one == alone[1]["text"] + "\n"


def test_mistakes_in_prompts_name_the_line(workdir, tmp_path, monkeypatch):
    cases = [
        ('{"prompt": "a"}\n{"prompt": " "}\n', "p.jsonl", None, "p.jsonl:2: this prompt is empty"),
        ("", "p.txt", None, "p.txt: there are no prompts"),
        ("\n \n", "p.txt", None, "p.txt: there are no prompts"),
        ("\n", "p.jsonl", None, "p.jsonl: there are no prompts"),
        (
            '{"prompt": "a"}\n{"question": "b"}\n',
            "p.jsonl",
            None,
            "p.jsonl:2: there is no text in the field prompt or text",
        ),
        (
            '{"question": "b"}\n{"question": 3}',
            "p.jsonl",
            "question",
            "p.jsonl:2: there is no text in the field question",
        ),
        ("a\n", "p.jsonl", None, "p.jsonl:1: this line is not JSON"),
        ('"a"\n', "p.jsonl", None, "p.jsonl:1: there is no text in the field prompt or text"),
        ('[{"prompt": "a"}]\n', "p.jsonl", None, "p.jsonl:1: this line is a JSON array; .* or call the file .json"),
        ("a\n", "p.txt", "question", "--field question has no effect on .*p.txt"),
    ]
    for text, name, field, message in cases:
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            read_prompts_file(tmp_path / name, field)
    with pytest.raises(UserError, match="none.txt: there is no such file"):
        read_prompts_file(tmp_path / "none.txt", None)
    (tmp_path / "utf16.txt").write_text("a", encoding="utf-16")
    with pytest.raises(UserError, match="utf16.txt:1: this is not UTF-8 text; convert it: iconv -f utf-16 -t utf-8"):
        read_prompts_file(tmp_path / "utf16.txt", None)
    assert [prompt.text for prompt in read_prompts("a\r\n b \n", "here")] == ["a", " b "]
    commands = [
        (["generate", "base", "a", "--prompts", "prompts.txt"], "give TEXT or --prompts FILE, not both"),
        (["generate", "base", "a", "--field", "x"], "--field x has no effect without --prompts FILE.jsonl"),
        (["generate", "base", ""], "the text is empty"),
    ]
    for arguments, message in commands:
        done = hybridlab(*arguments, cwd=workdir)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    done = with_input(monkeypatch, "", "generate", "base", cwd=workdir)
    assert done.returncode == 2 and "standard input: there are no prompts" in done.stderr
    done = with_input(monkeypatch, b"the\ncaf\xe9\n", "generate", "base", cwd=workdir)
    assert done.returncode == 2 and "standard input, line 2: this is not UTF-8 text; convert it first" in done.stderr
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    done = hybridlab("generate", "base", cwd=workdir)
    assert done.returncode == 2 and "give TEXT, --prompts FILE, or prompts on standard input" in done.stderr


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_and_empty_lines_are_no_part_of_prompts(tmp_path, mark, end):
    """In the files of `analyze --prompts` too."""
    wanted, rows = ["one\u2028 ", "two"], ['{"prompt": "one\u2028 "}', '{"prompt": "two"}']
    for name, lines in (("p.txt", wanted), ("p.jsonl", rows), ("p.json", [f"[{rows[0]},", f"{rows[1]}]"])):
        path = tmp_path / name
        path.write_bytes((mark + end.join(["", lines[0], " ", lines[1], "", ""])).encode())
        assert [prompt.text for prompt in read_prompts_file(path, None)] == wanted
        assert [prompt.text for prompt in prompts_to_analyze(path)] == wanted
        if name == "p.txt":
            assert [prompt.text for prompt in read_prompts(path.read_bytes().decode(), "here")] == wanted
            assert read_prompts_file(path, None)[1].origin.endswith("p.txt:4")


def test_prompts_come_from_a_pipe(tmp_path):
    """As in `--prompts <(command)`: what has been read of a pipe is gone."""
    text = "".join(f"{prompt}\n" for prompt in PROMPTS)
    for read in (lambda path: read_prompts_file(path, None), prompts_to_analyze):
        reader, writer = os.pipe()
        os.write(writer, text.encode())
        os.close(writer)
        assert [prompt.text for prompt in read(Path(f"/dev/fd/{reader}"))] == PROMPTS
        os.close(reader)


def test_the_ending_of_a_file_of_prompts_says_what_it_is(tmp_path):
    rows = "".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS)
    for name in ("p.ndjson", "p.JSONL", "p.Jsonl"):
        (tmp_path / name).write_text(rows)
        assert [prompt.text for prompt in read_prompts_file(tmp_path / name, "prompt")] == PROMPTS
        assert [prompt.text for prompt in prompts_to_analyze(tmp_path / name)] == PROMPTS
    for name in ("p.csv", "p.TSV", "p.csv.gz", "p.parquet"):
        (tmp_path / name).write_text("prompt\na\n")
        for read in (lambda path: read_prompts_file(path, None), prompts_to_analyze):
            with pytest.raises(UserError, match=f"{name}: prompts cannot be read from .*; write a .jsonl file, or"):
                read(tmp_path / name)


def test_a_prompt_longer_than_the_learned_positions_is_refused_with_its_line(small, runs):
    shape = {"family": "gpt2", "max_positions": 32, "kv_heads": 4}
    train(small(shape=shape), runs / "a", runs)
    prompts = read_prompts("the cat\n" + "the cat sat " * 3, "p.txt")
    with pytest.raises(UserError, match="p.txt, line 2: a prompt of 36 tokens and 4 new ones are more than the 32"):
        list(continue_prompts(str(runs / "a"), Runs(runs), prompts, 4, 2))
    # The last new token is not read.
    (one,) = continue_prompts(str(runs / "a"), Runs(runs), read_prompts("the cat sat on the mat with t", "p.txt"), 4, 2)
    assert 1 <= one.new_tokens <= 4


@pytest.mark.parametrize("use_cache", [True, False])
def test_only_the_last_position_of_each_row_has_logits(use_cache):
    model, sizes = build_model("vanilla", shape=SMALL_SHAPE), []
    head = model.head.forward
    model.head.forward = lambda x, *others: sizes.append(x.shape[:2]) or head(x, *others)
    found = model.generate(torch.arange(12).view(2, 6), 3, lengths=[6, 4], use_cache=use_cache)
    assert sizes == [(2, 1)] * 3 and found.lengths == [9, 7]
