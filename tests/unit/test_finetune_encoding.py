"""Examples as rows of tokens: frames of encoders and decoders, cuts, windows over contexts."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hybridlab.data.finetune.corpus import Example, Frame, encode, frame_of
from hybridlab.data.tokenizers import make_tokenizer, tokenizer_files
from hybridlab.evaluation.finetuned import SpanAnswers
from hybridlab.registry import FINETUNE_TASKS

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


def words():
    """A token for each letter."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def encoded(task, examples, length, causal=False, stride=None):
    tokenizer = words() if not causal else make_tokenizer("byte", ())
    return encode(FINETUNE_TASKS.get(task), examples, tokenizer, frame_of(tokenizer, causal), length, stride)


def text_of(made, row):
    return " ".join(WORDS[token] for token in made.rows[row])


def test_an_encoder_reads_cls_and_seps_with_two_types():
    made = encoded("rte", [Example((("a b", "c"),), 1, "g")], 16)
    assert text_of(made, 0) == "[CLS] a b [SEP] c [SEP]" and made.second.tolist() == [4]
    assert text_of(encoded("sst2", [Example((("a b",),), 1, "g")], 16), 0) == "[CLS] a b [SEP]"


def test_a_decoder_reads_texts_that_end():
    made = encoded("rte", [Example((("ab", "c"),), 1, "g")], 16, causal=True)
    tokenizer = make_tokenizer("byte", ())
    ids = [tokenizer.token_to_id(letter) for letter in ("a", "b", "<|end|>", "c", "<|end|>")]
    assert made.rows[0].tolist() == ids


def test_the_longer_text_is_cut():
    made = encoded("rte", [Example((("a b c d e f", "x y"),), 0, "g"), Example((("a", "b"),), 0, "h")], 8)
    assert text_of(made, 0) == "[CLS] a b c [SEP] x y [SEP]" and made.cut == 1


@pytest.mark.parametrize("causal", [False, True])
def test_pairs_are_cut_as_the_exported_tokenizer_cuts_them(tmp_path, causal):
    from transformers import AutoTokenizer

    (make_tokenizer("byte", ()) if causal else words()).save(str(tmp_path / "tokenizer.json"))
    files = tokenizer_files(tmp_path / "tokenizer.json", causal, framed=True, max_length=64)
    for name, text in files.texts.items():
        (tmp_path / name).write_text(text)
    exported = AutoTokenizer.from_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    for length in range(4, 24):
        pairs = [tuple(" ".join(rng.choice(WORDS[5:], rng.integers(1, 20))) for _ in range(2)) for _ in range(60)]
        made = encoded("rte", [Example((pair,), 0, "g") for pair in pairs], length, causal)
        theirs = exported(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=length)["input_ids"]
        assert [row.tolist() for row in made.rows] == theirs


def test_options_are_rows_one_after_another():
    options = tuple(("a b c d", option) for option in "wxyz")
    made = encoded("hellaswag", [Example(options, 2, "g")] * 2, 8)
    assert made.options == 4 and len(made.rows) == 8 and len(made) == 2 and made.targets.tolist() == [[2], [2]]
    assert text_of(made, 5) == "[CLS] a b c d [SEP] x [SEP]"


CONTEXT = "a b c d e f g h i j"


@pytest.mark.parametrize("stride", [1, 2, 3, 9])
def test_windows_cover_the_context_and_place_the_answer(stride):
    example = Example((("q", CONTEXT),), 0, "g", (("e f", CONTEXT.index("e")),))
    made = encoded("squad", [example], 8, stride=stride)
    seen = set()
    for row, window, (first, last) in zip(range(len(made)), made.windows, made.targets, strict=True):
        inside = text_of(made, row).split()
        assert inside[:3] == ["[CLS]", "q", "[SEP]"] and inside[-1] == "[SEP]" and len(inside) <= 8
        seen |= {CONTEXT[start:end] for start, end in window.offsets}
        assert [CONTEXT[start:end] for start, end in window.offsets] == inside[3:-1]
        assert inside[first : last + 1] == (["e", "f"] if {"e", "f"} <= set(inside) else ["[CLS]"])
    assert seen == set(CONTEXT.split())


def test_a_context_that_fits_is_one_window():
    made = encoded("squad", [Example((("q", "a b"),), 0, "g", (("b", 2),))], 8, stride=1)
    assert len(made) == 1 and made.targets.tolist() == [[4, 4]]


def test_the_best_span_is_within_the_context_and_short_enough():
    import torch

    example = Example((("q", CONTEXT),), 0, "g", (("e f", CONTEXT.index("e")),))
    made = encoded("squad", [example], 8, stride=2)
    numbers = torch.full((len(made), 8, 2), -5.0)
    numbers[:, 0] = 50.0  # outside of the context
    numbers[1, 4, 0], numbers[1, 5, 1] = 3.0, 4.0
    numbers[2, 5, 0], numbers[2, 4, 1] = 9.0, 9.0  # ends before it begins
    best = SpanAnswers(made, 2)
    best.add(list(range(len(made))), numbers)
    start = made.windows[1].offsets
    # The window in which only a backward span is likely scores 9 − 5 with its best forward one.
    assert best.texts() == [CONTEXT[start[1][0] : start[2][1]]]
    wide = torch.full((len(made), 8, 2), 0.0)
    wide[0, 3, 0], wide[0, 6, 1] = 9.0, 9.0
    found = []
    for longest in (4, 3):
        best = SpanAnswers(made, longest)
        best.add(list(range(len(made))), wide)
        found.append(best.texts()[0])
    assert found[0] == "a b c d" and len(found[1].split()) <= 3


def test_byte_offsets_give_answers_with_other_letters_back():
    context = "Zoë lives in São Paulo now."
    example = Example((("Where?", context),), 0, "g", (("São Paulo", context.index("São")),))
    made = encoded("squad", [example], 64, causal=True)
    (first, last), window = made.targets[0], made.windows[0]
    assert context[window.offsets[first - window.first][0] : window.offsets[last - window.first][1]] == "São Paulo"


def test_a_frame_is_three_tokens_or_two():
    assert frame_of(words(), causal=False) == Frame((2,), 3, 0)
    end = make_tokenizer("byte", ()).token_to_id("<|end|>")
    assert frame_of(make_tokenizer("byte", ()), causal=True) == Frame((), end, end)
    assert np.array(frame_of(words(), causal=False).size) == 3
