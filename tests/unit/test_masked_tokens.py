"""Masked tokens: which are chosen, what they become, and that the draws depend on seed, step and row alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hybridlab.config.resolve import resolve
from hybridlab.data.batches import Rows
from hybridlab.data.tokenizers import (
    CLS,
    MASK,
    PAD,
    SEP,
    end_token,
    make_tokenizer,
    mask_token,
    special_tokens,
    tokenizer_digest,
    vocabulary_size,
)
from hybridlab.errors import UserError
from hybridlab.models.decoder import Output
from hybridlab.training.objective import MaskedTokens

TOKENIZER = make_tokenizer("byte+mask", [])
SIZE = vocabulary_size(TOKENIZER)


def text(rows=200, length=128, seed=0, special=0):
    """Rows of text, with special tokens at their start."""
    tokens = np.random.default_rng(seed).integers(4, SIZE, size=(rows, length))
    tokens[:, :special] = np.arange(special) % 4
    return Rows(tokens, np.ones(tokens.shape, dtype=np.float32))


def drawn(rows, seed=0, step=0):
    """What the model reads (R, S), and where tokens are chosen."""
    batch = MaskedTokens(TOKENIZER).batch(rows, seed, step)
    assert np.array_equal(batch.targets.numpy(), rows.tokens)
    return batch.inputs["input_ids"].numpy(), batch.weights.numpy() > 0


@pytest.mark.parametrize("length", [128, 16, 57])
def test_the_shares_are_those_of_bert(length):
    rows = text(4000, length)
    shown, chosen = drawn(rows)
    assert chosen.mean() == pytest.approx(0.15, abs=0.003)
    assert np.array_equal(shown[~chosen], rows.tokens[~chosen])
    before, after = rows.tokens[chosen], shown[chosen]
    assert (after == mask_token(TOKENIZER)).mean() == pytest.approx(0.8, abs=0.015)
    # A random token is the token itself once in 256.
    assert (after == before).mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.015)
    others = after[(after != before) & (after != mask_token(TOKENIZER))]
    assert set(others) == set(range(4, SIZE)) if length == 128 else others.min() >= 4


def test_the_number_of_chosen_tokens_hardly_varies():
    counts = drawn(text(500, 128))[1].sum(1)
    assert set(counts) == {19, 20} and counts.mean() == pytest.approx(0.15 * 128, abs=0.1)


def test_special_tokens_and_padding_are_never_chosen():
    assert special_tokens(TOKENIZER) == [0, 1, 2, 3]
    rows = text(500, 40, special=9)
    rows.tokens[:, 30:] = TOKENIZER.token_to_id(PAD)
    chosen = drawn(rows)[1]
    assert not chosen[:, :9].any() and not chosen[:, 30:].any()
    assert chosen[:, 9:30].sum(1).min() >= 3


def test_every_other_place_is_chosen_alike():
    share = drawn(text(4000, 40))[1].mean(0)
    assert np.abs(share - 0.15).max() < 0.03


def test_rows_of_few_tokens():
    one = text(50, 8, special=7)
    assert (drawn(one)[1].sum(1) == 1).all()
    none = text(3, 8, special=8)
    shown, chosen = drawn(none)
    assert not chosen.any() and np.array_equal(shown, none.tokens)


def test_draws_are_functions_of_seed_step_and_row():
    rows = text(8)
    first = drawn(rows, 3, 7)
    assert all(np.array_equal(a, b) for a, b in zip(first, drawn(rows, 3, 7), strict=True))
    for other in (drawn(rows, 4, 7), drawn(rows, 3, 8)):
        assert not np.array_equal(first[1], other[1])
    assert not np.array_equal(first[1][0], first[1][1])
    # The rows of a larger batch begin with the same draws.
    more = Rows(np.concatenate([rows.tokens, rows.tokens]), np.ones((16, 128), dtype=np.float32))
    assert np.array_equal(drawn(more, 3, 7)[0][:8], first[0])


def test_measured_rows_have_draws_of_their_own_numbers():
    objective, rows = MaskedTokens(TOKENIZER), text(8)
    whole = objective.measured(rows, range(8)).inputs["input_ids"]
    part = objective.measured(Rows(rows.tokens[5:], rows.weights[5:]), range(5, 8)).inputs["input_ids"]
    assert torch.equal(whole[5:], part)
    assert not torch.equal(whole, torch.from_numpy(drawn(rows)[0]))


def test_of_a_task_exactly_the_answers_are_masked():
    rows = text(6, 32)
    weights = np.zeros(rows.weights.shape, dtype=np.float32)
    weights[3:, [4, 9, 31]] = 2.0
    shown, chosen = drawn(Rows(rows.tokens, weights, np.arange(6) >= 3))
    asked = np.zeros((3, 32), dtype=bool)
    asked[:, [4, 9, 31]] = True
    assert np.array_equal(chosen[3:], asked) and (shown[3:][asked] == mask_token(TOKENIZER)).all()
    assert np.array_equal(shown[3:][~asked], rows.tokens[3:][~asked])
    assert 3 <= chosen[0].sum() <= 6
    batch = MaskedTokens(TOKENIZER).batch(Rows(rows.tokens, weights, np.arange(6) >= 3), 0, 0)
    assert set(batch.weights[:3].unique().tolist()) == {0.0, 1.0} and batch.weights[3:].sum() == 3 * 3 * 2


def test_the_loss_is_over_the_chosen_tokens():
    objective, rows = MaskedTokens(TOKENIZER), text(5, 20)
    batch = objective.batch(rows, 0, 0)
    logits = torch.randn(5, 20, SIZE, generator=torch.Generator().manual_seed(0), requires_grad=True)
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none").view(5, 20)
    chosen = batch.weights > 0
    assert objective.loss(Output(logits), batch).item() == pytest.approx(float(losses[chosen].sum()), rel=1e-6)
    wanted = [float(row[mask].mean()) for row, mask in zip(losses, chosen, strict=True)]
    assert objective.metrics(Output(logits), batch)["loss"].tolist() == pytest.approx(wanted, rel=1e-6)
    objective.loss(Output(logits), batch).backward()
    assert (logits.grad.abs().sum(-1) > 0).equal(chosen)
    parts = [objective.loss(Output(logits[i : i + 2]), part) for i, part in zip((0, 2, 4), batch.parts(2), strict=True)]
    assert float(sum(parts)) == pytest.approx(float(losses[chosen].sum()), rel=1e-6)


def test_a_part_without_a_chosen_token_has_no_gradient():
    objective = MaskedTokens(TOKENIZER)
    batch = objective.batch(text(2, 4, special=4), 0, 0)
    logits = torch.zeros(2, 4, SIZE, requires_grad=True)
    objective.loss(Output(logits), batch).backward()
    assert not logits.grad.any() and objective.metrics(Output(logits), batch)["loss"].tolist() == [0.0, 0.0]


# ---- tokenizers ----


def test_tokenizers_of_encoders_have_special_tokens_and_others_stay_as_they_are():
    documents = ["the cat sat on the mat. " * 20]
    trained = make_tokenizer("bpe+mask:300", documents)
    assert [trained.token_to_id(name) for name in (PAD, CLS, SEP, MASK)] == [0, 1, 2, 3] == special_tokens(trained)
    assert end_token(trained) == 2 and mask_token(trained) == 3 and vocabulary_size(trained) > 260
    assert trained.decode(trained.encode("the cat [MASK]", add_special_tokens=False).ids) == "the cat "
    assert vocabulary_size(TOKENIZER) == 260 and vocabulary_size(make_tokenizer("byte", [])) == 257
    # The digests of the time before there were encoders.
    assert tokenizer_digest(make_tokenizer("byte", [])) == BYTE_DIGEST
    assert tokenizer_digest(make_tokenizer("bpe:300", documents)) == BPE_DIGEST


BYTE_DIGEST = "1cee67c91420cc8d410975ce5f2ce059082c7367ec88197e421d11abc397e500"
BPE_DIGEST = "1807ddaa66a04a67e2130136f124d9d84daf0d6f11c2d0a5bfbe38d7810888ad"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bpe+mask:100", "bytes and special tokens need 260"),
        ("bpe:100", "bytes and special tokens need 257"),
        ("bpe+msk:300", "it must be byte, bpe:SIZE"),
        ("byte+mask:3", "it must be byte, bpe:SIZE"),
        ("hub+mask:gpt2", "it must be byte, bpe:SIZE"),
    ],
)
def test_wrong_tokenizers_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        make_tokenizer(spec, ["some text"])


def test_a_tokenizer_without_a_mask_is_refused():
    with pytest.raises(UserError, match=r"has no \[MASK\]; use one that has it, such as --set data.tokenizer=bpe"):
        MaskedTokens(make_tokenizer("byte", []))


# ---- settings ----


def test_the_objective_is_that_of_the_family():
    assert resolve("vanilla", "tiny").objective == "next-token"
    assert resolve("bert", "bert-tiny").objective == "masked-tokens"
    assert resolve("bert", "bert-tiny", settings=["training.objective=masked-tokens"]).objective == "masked-tokens"


@pytest.mark.parametrize(
    ("arch", "size", "objective", "message"),
    [
        ("bert", "bert-tiny", "next-token", "the family bert is an encoder, which sees the next token; use masked-to"),
        ("vanilla", "tiny", "masked-tokens", "the family qwen3 is a decoder, which sees no later token; use next-tok"),
    ],
)
def test_objectives_that_do_not_fit_are_refused(arch, size, objective, message):
    with pytest.raises(UserError, match=f"--set training.objective={objective}: .*{message}"):
        resolve(arch, size, settings=[f"training.objective={objective}"])
