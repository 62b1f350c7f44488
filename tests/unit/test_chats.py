"""Chats as text and tokens: what is learned, rows that chats share without seeing each other, files with mistakes."""

import json
import random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from hybridlab.attention.kinds import AttentionKind, Full, Mixed, Window
from hybridlab.config.finetune import Finetune
from hybridlab.config.resolve import resolve_parts
from hybridlab.config.structures import keeps_documents_apart
from hybridlab.data.finetune.chats import PLAIN, chat_template, shared_rows
from hybridlab.data.finetune.corpus import TRAIN, task_corpus
from hybridlab.data.tokenizers import make_tokenizer
from hybridlab.errors import UserError
from hybridlab.models.build import build_model
from tests.conftest import SMALL_SHAPE
from tests.contract.test_architectures import DECODERS, build, own_shape
from tests.models import random_ids

CHAT = [("system", "Be short."), ("user", "Hi <b>"), ("assistant", "Yes."), ("user", "Why?"), ("assistant", "So.")]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = (
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.role == 'assistant' and loop.last %} (thought){% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def chatml(folder, template=CHATML, **config):
    """A folder of transformers with a byte tokenizer that knows ChatML, and its template; its tokenizer.json."""
    tokenizer = make_tokenizer("byte", ())
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder / "tokenizer.json"


def learned(tokenizer, document):
    """The text of a document, and that of its learned tokens with | between answers."""
    edges = np.flatnonzero(np.diff(document.learned.astype(int)) == 1) + 1
    parts = np.split(np.arange(len(document.tokens)), edges)
    said = [
        tokenizer.decode(document.tokens[p[document.learned[p]]].tolist(), skip_special_tokens=False) for p in parts
    ]
    return tokenizer.decode(document.tokens.tolist(), skip_special_tokens=False), "|".join(filter(None, said))


def test_the_plain_template_learns_what_the_assistant_says_and_its_end():
    tokenizer = make_tokenizer("byte", ())
    template = chat_template(None, tokenizer)
    (document,) = template.documents(CHAT, "here")
    text, said = learned(tokenizer, document)
    assert text == ("System: Be short.\nUser: Hi <b>\nAssistant: Yes.<|end|>User: Why?\nAssistant: So.<|end|>")
    assert said == " Yes.<|end|>| So.<|end|>" and not template.own
    assert template.stop == tokenizer.token_to_id("<|end|>") and template.beside == {"chat_template.jinja": PLAIN}
    assert template.prompt("Hi", "here") == "User: Hi\nAssistant:"


def test_the_template_of_a_tokenizer_gives_the_tokens_of_transformers(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.from_file(str(chatml(tmp_path)))
    template = chat_template(tmp_path / "tokenizer.json", tokenizer)
    (document,) = template.documents(CHAT, "here")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": role, "content": content} for role, content in CHAT]
    assert document.tokens.tolist() == theirs.apply_chat_template(messages, return_dict=False)
    assert learned(tokenizer, document)[1] == "Yes.<|im_end|>\n|So.<|im_end|>\n"
    assert template.own and template.stop == tokenizer.token_to_id("<|im_end|>")


def test_a_file_of_its_own_and_the_default_of_several_are_templates_too(tmp_path):
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": CHATML}]
    path = chatml(tmp_path, several)
    assert chat_template(path, Tokenizer.from_file(str(path))).text == CHATML
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    assert chat_template(path, Tokenizer.from_file(str(path))).text == PLAIN


def test_a_template_that_rewrites_what_was_said_gives_a_document_for_each_answer(tmp_path):
    tokenizer = Tokenizer.from_file(str(chatml(tmp_path, FORGETS)))
    first, second = chat_template(tmp_path / "tokenizer.json", tokenizer).documents(CHAT, "here")
    assert learned(tokenizer, first)[1] == " (thought)Yes.<|im_end|>"
    text, said = learned(tokenizer, second)
    assert said == " (thought)So.<|im_end|>" and "assistant:Yes.<|im_end|>user:Why?" in text


def test_an_end_that_is_not_marked_as_special_ends_an_answer(tmp_path):
    words = {"</s>": 0, "a": 1, "b": 2, "[UNK]": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    assert chat_template(tmp_path / "tokenizer.json", tokenizer).stop == 0


def test_an_answer_without_an_end_gets_one(tmp_path):
    tokenizer = Tokenizer.from_file(str(chatml(tmp_path, "{% for m in messages %}[{{ m.content }}]{% endfor %}")))
    template = chat_template(tmp_path / "tokenizer.json", tokenizer)
    (document,) = template.documents([("user", "a"), ("assistant", "b")], "here")
    assert learned(tokenizer, document) == ("[a][b]<|im_end|>", "[b]<|im_end|>"), "as tokenizer_config.json says"
    assert template.stop == tokenizer.token_to_id("<|im_end|>")


@pytest.mark.parametrize(
    "template, message",
    [
        ("{{ raise_exception('only users') }}", "the chat template does not take this chat (only users)"),
        ("{% for m in messages %}{{ m.nothing.at.all }}{% endfor %}", "does not take this chat"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}", "'a<a>'"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_sentence(tmp_path, template, message):
    tokenizer = Tokenizer.from_file(str(chatml(tmp_path, template)))
    with pytest.raises(UserError) as error:
        chat_template(tmp_path / "tokenizer.json", tokenizer).documents([("user", "a"), ("assistant", "b")], "f:3")
    assert str(error.value).startswith("f:3: ") and message in str(error.value) and "\n" not in str(error.value)


# ---- rows ----


def test_shared_rows_hold_every_document_once_and_are_full():
    rng = random.Random(0)
    lengths = [rng.randint(1, 30) for _ in range(500)]
    rows = shared_rows(lengths, 30)
    assert sorted(number for row in rows for number in row) == list(range(500))
    filled = [sum(lengths[number] for number in row) for row in rows]
    assert max(filled) <= 30 and sum(filled) / (30 * len(rows)) > 0.95


def chats(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def corpus(path, length=64, shared=True, **settings):
    return task_corpus(Finetune(task="sft", data=str(path), **settings), "byte", length, True, shared)


def test_rows_say_where_documents_begin_and_what_is_learned(tmp_path):
    path = chats(tmp_path / "a.jsonl", [{"prompt": f"q{i}", "answer": "x" * (i % 7 + 1)} for i in range(40)])
    for shared in (True, False):
        encoded = corpus(path, shared=shared).encoded[TRAIN]
        assert (len(encoded) == 36) == (not shared) and len(encoded.examples) == 36
        count = 0
        for row, targets, starts in zip(encoded.rows, encoded.targets, encoded.starts, strict=True):
            assert len(row) <= 64 == len(targets) and starts[0] == 0
            for first, end in zip(starts, [*starts[1:], len(row)], strict=True):
                said = targets[first:end]
                answer = said[said >= 0]
                assert (said[: -len(answer)] < 0).all() and answer.tolist() == row[end - len(answer) : end].tolist()
                count += 1
        assert count == 36


def test_long_chats_are_cut_or_left_out_and_counted(tmp_path):
    long = {"prompt": "p" * 80, "answer": "never read"}
    path = chats(tmp_path / "a.jsonl", [{"prompt": "q", "answer": "y" * 60}, long, {"prompt": "q", "answer": "n"}])
    encoded = corpus(path, validation=str(path)).encoded[TRAIN]
    assert (len(encoded.examples), encoded.cut, encoded.left_out) == (2, 1, 1)
    with pytest.raises(UserError, match="no answer of the train examples begins within so many tokens; raise it"):
        corpus(chats(tmp_path / "b.jsonl", [long] * 9))


def test_usual_columns_are_prompts_and_answers(tmp_path):
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "response": "b"},
        {"instruction": "a", "input": "", "output": "b"},
        {"instruction": "a", "output": "b"},
        {"instruction": "a", "response": "b"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ]
    found = corpus(chats(tmp_path / "a.jsonl", rows), validation=str(tmp_path / "a.jsonl"))
    assert {example.rows for example in found.encoded[TRAIN].examples} == {(("user", "a"), ("assistant", "b"))}
    for answer in ("output", "response"):
        path = chats(tmp_path / f"{answer}.jsonl", [{"instruction": "a", "input": "c", answer: "b"}] * 3)
        assert corpus(path).encoded[TRAIN].examples[0].rows == (("user", "a\n\nc"), ("assistant", "b"))


GOOD = '{"prompt": "a", "answer": "b"}'


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"text": "a"}', "the task sft needs the columns messages or prompt, answer or"),
        ('{"messages": []}', "messages must be a list of {role, content} with texts, and has []"),
        ('{"messages": [{"role": "user"}]}', "messages must be a list"),
        ('{"messages": [{"role": "bot", "content": "a"}]}', "the role 'bot' is none of system, user, assistant"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no message of the assistant"),
        ('{"messages": [{"role": "assistant", "content": " "}]}', "the answer is empty"),
        ('{"prompt": "a", "answer": ""}', "the answer is empty"),
        ('{"prompt": "a", "answer": 3}', "answer is 3, and must be a text"),
        ('{"prompt": "a"', "this line is not JSON"),
        ("[1]", "this is no JSON object"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_with_its_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(UserError) as error:
        corpus(path)
    assert str(error.value).startswith(f"{path}:2: ") and message in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_that_cannot_write_an_answer_is_named(tmp_path):
    small = Tokenizer(models.BPE(vocab={"<|end|>": 0, "a": 1, ":": 2}, merges=[]))
    small.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    small.add_special_tokens(["<|end|>"])
    small.save(str(tmp_path / "tokenizer.json"))
    path = chats(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "a"}] * 2 + [{"prompt": "a", "answer": "bcd"}])
    with pytest.raises(UserError, match="a.jsonl:3: the tokenizer has no token for the answer ' bcd"):
        task_corpus(Finetune(task="sft", data=str(path)), f"file:{tmp_path}", 32, True)


def test_a_template_that_changes_in_between_is_read_again(tmp_path):
    path = chats(tmp_path / "a.jsonl", [{"prompt": "Why?", "answer": "So."}] * 20)

    def made(template):
        return task_corpus(Finetune(task="sft", data=str(path)), f"file:{chatml(tmp_path, template)}", 64, True)

    texts = [CHATML, CHATML.replace("content }}", "content }}!")]
    assert [made(text).template.text for text in texts] == texts


# ---- documents that share a row ----


def in_one_row(model, documents, **left_out):
    """The logits of documents that share a row."""
    inputs = {
        "segment_ids": torch.cat([torch.full((d.shape[1],), n) for n, d in enumerate(documents)])[None],
        "position_ids": torch.cat([torch.arange(d.shape[1]) for d in documents])[None],
    }
    inputs = {name: tensor for name, tensor in inputs.items() if name not in left_out}
    with torch.no_grad():
        return model(torch.cat(documents, 1), **inputs).logits


@pytest.mark.parametrize("arch", DECODERS)
def test_documents_in_one_row_are_computed_as_each_alone(arch):
    model = build(arch, "auto")
    window = {"window": 5} if {Window, Mixed} & {type(kind) for kind in model.attention_map.each_kind()} else {}
    shape = {"layers": model.shape.layers, **own_shape({"shape": {"family": model.shape.family}})}
    apart = keeps_documents_apart(resolve_parts(arch, "tiny", {"shape": shape, **window}, "test"))
    documents = [random_ids(length, rows=1, seed=length) for length in (23, 1, 40)]
    if not apart:
        assert arch in ("spiral-b", "spiral-l")
        with pytest.raises(UserError, match="pack no documents into a row"):
            in_one_row(model, documents)
        return
    with torch.no_grad():
        alone = torch.cat([model(document).logits for document in documents], 1)
    torch.testing.assert_close(in_one_row(model, documents), alone, atol=1e-5, rtol=1e-4)
    # The control: a row without borders.
    assert (in_one_row(model, documents, segment_ids=None) - alone).abs().max() > 1e-3


def test_a_loop_with_a_shift_refuses_documents_in_one_row():
    """At full resolution too, a shift gives a token the state of the one before it, which is the document before."""
    plan = [{"op": "recur", "first": 1, "size": 1, "chunks": [1, 1], "topology": "anchor", "shift": 1}]
    model = build_model("vanilla", shape=SMALL_SHAPE, plan=plan)
    with pytest.raises(UserError, match="or with a shift, which carry states from one document into the next"):
        in_one_row(model, [random_ids(8, rows=1, seed=seed) for seed in (1, 2)])


@pytest.mark.parametrize("family", ["llama", "neox", "gpt2"])
def test_positions_of_documents_in_one_row_are_those_of_each_alone(family):
    learned = {"max_positions": 128} if family == "gpt2" else {}
    model = build_model("vanilla", shape={**SMALL_SHAPE, "family": family, "kv_heads": 4, **learned})
    documents = [random_ids(length, rows=1, seed=length) for length in (23, 40)]
    with torch.no_grad():
        alone = torch.cat([model(document).logits for document in documents], 1)
    torch.testing.assert_close(in_one_row(model, documents), alone, atol=1e-5, rtol=1e-4)
    if learned:
        assert (in_one_row(model, documents, position_ids=None) - alone).abs().max() > 1e-3


@pytest.mark.parametrize("belief", [{"factor": "high", "length_ref": 16}, {"factor": "low"}, {"factor": "elemmul"}])
@pytest.mark.parametrize("kernel", ["eager", "blocks"])
def test_beliefs_of_documents_in_one_row_are_those_of_each_alone(belief, kernel):
    strength = {} if belief["factor"] == "elemmul" else {"strength": 0.5}
    attention = {"kind": "uniform", "attention": {"kind": "belief", **belief, **strength}}
    parts = {"shape": SMALL_SHAPE, "map": attention}
    assert keeps_documents_apart(resolve_parts("vanilla", "tiny", parts, "test"))
    model = build_model("vanilla", kernel=kernel, **parts)
    documents = [random_ids(length, rows=1, seed=length) for length in (23, 1, 40)]
    with torch.no_grad():
        alone = torch.cat([model(document).logits for document in documents], 1)
    torch.testing.assert_close(in_one_row(model, documents), alone, atol=1e-5, rtol=1e-4)
    assert (in_one_row(model, documents, segment_ids=None) - alone).abs().max() > 1e-3


def test_a_loop_with_a_shift_shares_no_row():
    recurrence = {"pre": 1, "loop": 2, "post": 1, "chunks": [1, 1]}
    for shift, apart in ((0, True), (1, False)):
        parts = {"shape": {**SMALL_SHAPE, "layers": 4}, "recurrence": {**recurrence, "shift": shift}}
        assert keeps_documents_apart(resolve_parts("looped", "tiny", parts, "test")) == apart


class Rule(AttentionKind):
    """A kind of a plug-in, which computes what it wants."""

    name, letter, colour = "test-rule", "?", "#000000"

    def attend(self, heads):
        return heads.softmax(None, lambda query, key: (key == query) | (key < 2))


def test_a_kind_that_computes_by_itself_shares_no_row_unless_it_says_so():
    assert Full().apart and Window(3).apart and Mixed(3).apart and not Rule().apart
