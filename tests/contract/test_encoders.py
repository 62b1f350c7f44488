"""Encoders: tokens see both sides, post-norm branches keep the meaning of plans, and nothing continues text."""

import pytest
import torch
import torch.nn.functional as F

from hybridlab import Decoder, Encoder, build_model, load_checkpoint, save
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.errors import UserError
from hybridlab.evaluation.causality import NOT_APPLICABLE, causality, worst_leak
from hybridlab.models.cache import KVCache
from hybridlab.models.taps import Taps
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from tests.models import padding_mask, random_ids, with_output

VOCAB = 61
SHAPE = {
    "family": "bert",
    "layers": 3,
    "width": 24,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 8,
    "ffn_width": 40,
    "vocab": VOCAB,
    "max_positions": 128,
    "init": {"scheme": "constant", "std": 0.2, "embedding_std": 0.02, "positions": None},
}
SINES = {"positions": "sinusoidal", "embedding_std": 0.1}
CLASSES = {"kind": "classes", "labels": 3}
KERNELS = ["eager", "sdpa", "banded", "blocks"]
PLANS = {
    "plain": lambda p: p,
    "head loop": lambda p: p.loop_heads(1, (0, 3), 2),
    "block loop": lambda p: p.loop_blocks([1], 2),
    "skipped and swapped": lambda p: p.skip(2).swap(0, 1),
    "dropped heads": lambda p: p.drop_heads(0, (1,), 4).drop_heads(2, (0, 1, 2, 3), 4),
    "loop over chunks": lambda p: p.recur(1, 1, (2, 1), topology="anchor", downscale="mean", upscale="uniform"),
}


def build(arch="bert", kernel="eager", **shape):
    """A small encoder in fp64; all of its parameters are random, biases and norms too."""
    model = build_model(arch, size="bert-tiny", kernel=kernel, shape={**SHAPE, **shape}).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def ids(length, rows=2):
    return random_ids(length, rows, VOCAB)


# ---- both sides ----


def test_a_token_sees_both_sides():
    model = build()
    assert isinstance(model, Encoder) and not model.structure.causal and not model.structure.caches
    assert worst_leak(model.float(), (20,)).change > 1e-3
    assert causality(model, 20, ["eager"]) == {"probe": NOT_APPLICABLE}


@pytest.mark.parametrize("kernel", KERNELS)
def test_permuting_tokens_with_their_positions_permutes_the_output(kernel):
    model, tokens, types = build(kernel=kernel), ids(20), ids(20) % 2
    order = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = model(tokens, token_type_ids=types).logits[:, order]
        found = model(tokens[:, order], position_ids=order, token_type_ids=types[:, order]).logits
        unmoved = model(tokens[:, order], token_type_ids=types[:, order]).logits
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)
    assert (unmoved - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_changes_nothing_under_any_plan(plan, kernel):
    model = build(kernel=kernel)
    model = model.with_plan(PLANS[plan](model.plan), AttentionMap.from_masks([[0, 1], [1, 1], [0, 0]], 5))
    tokens, mask = ids(30, 3), padding_mask([30, 19, 2])
    with torch.no_grad():
        padded = model(tokens, attention_mask=mask).logits
        for row, length in enumerate((30, 19, 2)):
            alone = model(tokens[row : row + 1, :length]).logits[0]
            torch.testing.assert_close(padded[row, :length], alone, atol=1e-10, rtol=1e-8)


def test_packed_documents_do_not_see_each_other():
    model, tokens = build(), ids(24, 1)
    segments = torch.tensor([[0] * 10 + [1] * 14])
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    with torch.no_grad():
        packed = model(tokens, segment_ids=segments, position_ids=positions).logits
        torch.testing.assert_close(packed[:, :10], model(tokens[:, :10]).logits, atol=1e-10, rtol=1e-8)
        torch.testing.assert_close(packed[:, 10:], model(tokens[:, 10:]).logits, atol=1e-10, rtol=1e-8)


# ---- post-norm branches ----


def by_hand(model, tokens, loops=0):
    """The formula of a post-norm encoder, with more passes of the attention of layer 1, from its weights alone."""
    shape = model.shape

    def norm(x, it):
        return F.layer_norm(x, (shape.width,), it.weight, it.bias, shape.norm_eps)

    def attention(x, it):
        q, k, v = (
            F.linear(x, part.weight, part.bias).unflatten(-1, (-1, shape.head_width)).transpose(1, 2)
            for part in (it.q, it.k, it.v)
        )
        k, v = (part.repeat_interleave(shape.group, 1) for part in (k, v))
        weights = (q @ k.transpose(-1, -2) / shape.head_width**0.5).softmax(-1)
        return F.linear((weights @ v).transpose(1, 2).flatten(2), it.o.weight, it.o.bias)

    x = model.embedding(tokens) + model.position_embedding.weight[: tokens.shape[1]]
    x = norm(x + model.token_type_embedding.weight[0], model.embedding_norm)
    for layer, block in enumerate(model.blocks):
        for _ in range(1 + loops * (layer == 1)):
            x = norm(x + attention(x, block.attention), block.attention_norm)
        inner = F.gelu(F.linear(x, block.mlp.up.weight, block.mlp.up.bias))
        x = norm(x + F.linear(inner, block.mlp.down.weight, block.mlp.down.bias), block.mlp_norm)
    x = norm(F.gelu(F.linear(x, model.head.dense.weight, model.head.dense.bias)), model.head.norm)
    return x @ model.embedding.weight.T + model.head.bias


@pytest.mark.parametrize("loops", [0, 1, 3])
def test_a_loop_of_all_heads_repeats_the_attention_with_its_norm(loops):
    model, tokens = build(), ids(13)
    looped = model.with_plan(model.plan.loop_heads(1, range(4), loops))
    with torch.no_grad():
        torch.testing.assert_close(looped(tokens).logits, by_hand(model, tokens, loops), atol=1e-10, rtol=1e-8)


class Erased(Taps):
    """A branch that adds nothing."""

    def __init__(self, layer, part):
        self.layer, self.part = layer, part

    def on_branch(self, place, part, x, delta):
        return 0 * delta if (place[0], part) == (self.layer, self.part) else delta


def test_a_branch_that_adds_nothing_is_a_branch_that_is_left_out():
    model, tokens = build(), ids(13)
    with torch.no_grad():
        for part, other in (("attention", "mlp"), ("mlp", "attention")):
            visits = list(model.plan.visits)
            visits[1] = type(visits[1])(1, other)
            without = model.with_plan(Plan(tuple(visits), 3))
            erased = model(tokens, taps=Erased(1, part)).logits
            torch.testing.assert_close(erased, without(tokens).logits, atol=1e-10, rtol=1e-8)
        assert (model(tokens).logits - erased).abs().max() > 1e-3


def test_what_visits_add_leads_from_the_embeddings_to_the_output():
    class Sum(Taps):
        total = 0

        def on_embeddings(self, x):
            self.total = x
            return x

        def on_branch(self, place, part, x, delta):
            self.total = self.total + delta
            return delta

    model, taps, tokens = build(), Sum(), ids(9)
    model = model.with_plan(model.plan.loop_heads(0, (1,), 1))
    with torch.no_grad():
        logits = model(tokens, taps=taps).logits
        assert torch.equal(logits, model(tokens).logits)
        torch.testing.assert_close(model.logits(taps.total), logits, atol=1e-10, rtol=1e-8)


def test_recomputed_activations_give_the_same_gradients():
    gradients = []
    for recompute in (False, True):
        model = build()
        model.recompute = recompute
        model(ids(20)).logits.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_the_residual_stream_keeps_its_precision_under_autocast():
    class Types(Taps):
        def __init__(self):
            self.seen = set()

        def on_visit(self, place, x, delta):
            self.seen |= {x.dtype, delta.dtype}

    taps = Types()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        build().float()(ids(9), taps=taps)
    assert taps.seen == {torch.float32}


# ---- heads ----


@pytest.mark.parametrize(
    ("output", "size"), [({"kind": "classes", "labels": 3}, (2, 3)), ({"kind": "spans"}, (2, 9, 2))], ids=str
)
def test_models_with_other_heads_are_saved_and_loaded(output, size, tmp_path):
    model = build(output=output).float()
    save(model, tmp_path / "model")
    again = load_checkpoint(tmp_path / "model", kernel="eager")
    assert isinstance(again, Encoder) and again.structure == model.structure
    with torch.no_grad():
        found = again(ids(9)).logits
        assert found.shape == size and torch.equal(found, model(ids(9)).logits)


def test_a_head_of_classes_changes_no_other_parameter():
    tokens, classes = (build_model("bert", size="bert-tiny", shape={**SHAPE, "output": o}) for o in (None, CLASSES))
    theirs = dict(classes.named_parameters())
    same = [name for name, value in tokens.named_parameters() if name in theirs and torch.equal(value, theirs[name])]
    assert len(same) == sum(not name.startswith("head") for name in theirs)


@pytest.mark.parametrize("output", [CLASSES, {"kind": "spans"}, None], ids=str)
def test_another_head_shares_all_other_weights(output):
    model = build()
    other = with_output(model, output, seed=3)
    theirs = dict(model.named_parameters())
    shared = [name for name, weight in other.named_parameters() if weight is theirs.get(name)]
    assert shared == [name for name in theirs if not name.startswith("head.")]
    assert other.shape.output == Shape(**{**SHAPE, "output": output}).output
    again = with_output(model, output, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(other.head.parameters(), again.head.parameters(), strict=True))


# ---- what does not fit ----


def test_an_encoder_continues_no_text():
    model = build().float()
    for use_cache in (True, False):
        with pytest.raises(UserError, match="generate: an encoder sees the tokens on both sides"):
            model.generate(ids(5), max_new_tokens=2, use_cache=use_cache)
    with pytest.raises(UserError, match="cache: an encoder sees the tokens on both sides"):
        KVCache(model.structure, 2)
    with pytest.raises(UserError, match="generate: the output head of this model gives classes"):
        build_model("vanilla", shape={"output": CLASSES}).generate(ids(5), max_new_tokens=2)


def test_inputs_that_the_model_does_not_have_are_refused():
    model = build()
    with pytest.raises(UserError, match="position 128: this model has learned positions 0 to 127 only"):
        model(ids(129))
    for types in (2 * torch.ones(2, 5, dtype=torch.long), -torch.ones(2, 5, dtype=torch.long)):
        with pytest.raises(UserError, match="token_type_ids: this model has the token types 0 to 1 only"):
            model(ids(5), token_type_ids=types)
    with pytest.raises(UserError, match="token_type_ids: the family qwen3 has no token types"):
        build_model("vanilla")(ids(5), token_type_ids=torch.zeros(2, 5, dtype=torch.long))


def test_a_structure_makes_the_model_that_it_is_of():
    with pytest.raises(UserError, match="Decoder: the family bert is that of an encoder"):
        Decoder(build().structure)
    with pytest.raises(UserError, match="Encoder: the family qwen3 is that of a decoder"):
        Encoder(build_model("vanilla").structure)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_scaling": "inverse-sqrt-depth"}, "norm_scaling scales what the branches of a block read"),
        ({"parallel_residual": True}, "the MLP reads what the norm of the attention gives"),
        ({"max_positions": None}, "the family bert has learned positions"),
        ({"family": "gpt2", "token_types": 2}, "token_types has no effect on the family gpt2"),
        (
            {"family": "neox", "max_positions": None, "init": {"positions": "sinusoidal"}},
            "init.positions has no effect",
        ),
        ({"output": {"kind": "classes", "labels": 0}}, "labels"),
        ({"output": {"kind": "words"}}, "words"),
    ],
    ids=str,
)
def test_shapes_that_cannot_be_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Shape(**{**SHAPE, **change})


def test_the_place_of_a_wrong_shape_is_named():
    with pytest.raises(UserError, match=r"--set shape.token_types=2: shape: token_types has no effect on the family"):
        resolve("vanilla", "tiny", settings=["shape.token_types=2"])
    with pytest.raises(UserError, match=r"evaluation.choices: questions are answered by the likelihood"):
        resolve("bert", "bert-tiny", layers=[Layer({"evaluation": {"choices": {"tasks": ["copying-real"]}}})])


def test_positions_may_begin_as_sines():
    drawn, sines = (build_model("bert", size="bert-tiny", shape={**SHAPE, "init": i}) for i in (SHAPE["init"], SINES))
    table = sines.position_embedding.weight
    assert table.square().mean().sqrt().item() == pytest.approx(0.1, rel=0.02)
    place = torch.arange(128.0)
    torch.testing.assert_close(table[:, 0], 0.1 * 2**0.5 * place.sin())
    torch.testing.assert_close(table[:, 7], 0.1 * 2**0.5 * (place / 10000 ** (6 / 24)).cos(), atol=1e-6, rtol=1e-5)
    assert not torch.equal(drawn.position_embedding.weight, table)
