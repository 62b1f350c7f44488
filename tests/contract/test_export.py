"""Exported models: transformers loads them with the same logits, and decodes them with its own `generate`."""

import ast
import json
import math
import re
import sys
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.dynamic_module_utils import get_imports

from hybridlab import build_model, export_hf, load_checkpoint, load_hf
from hybridlab.attention.belief import Belief
from hybridlab.attention.kinds import Full, Mixed, Window
from hybridlab.data.tokenizers import load_tokenizer, make_tokenizer
from hybridlab.errors import UserError
from hybridlab.models.hf_export import native_class, why_not_native
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.visit import Visit
from tests.contract.test_architectures import ARCHS, PLANS, build
from tests.contract.test_layout import MODULES
from tests.models import padding_mask, random_ids, with_output

AUTO = {
    "AutoModelForCausalLM": AutoModelForCausalLM,
    "AutoModelForMaskedLM": AutoModelForMaskedLM,
    "AutoModelForSequenceClassification": AutoModelForSequenceClassification,
    "AutoModelForQuestionAnswering": AutoModelForQuestionAnswering,
}
VOCAB = 400
BASE = {"layers": 3, "width": 24, "heads": 4, "kv_heads": 4, "head_width": 6, "ffn_width": 40, "vocab": VOCAB}
BASE |= {"rope_base": 10000.0}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_positions": 16}
NATIVE = {
    "llama": {"family": "llama", "kv_heads": 2, "head_width": 8, "rope_base": 500.0, "tied_embeddings": False},
    "llama, scaled embedding": {"family": "llama", "embedding_scale": 5.0},
    "qwen3": {"family": "qwen3", "kv_heads": 1, "head_width": 10, "norm_eps": 1e-3},
    "llama, biases": {
        "family": "llama",
        "biases": ["qkv", "output", "mlp"],
        "rope_scaling": {"kind": "linear", "factor": 4.0},
    },
    "qwen2": {"family": "llama", "biases": ["qkv"], "kv_heads": 2},
    "llama3": {"family": "llama", "rope_scaling": LLAMA3, "head_width": 8},
    "qwen3, biases": {"family": "qwen3", "biases": ["qkv", "output"]},
    "yarn": {"family": "llama", "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_positions": 16}},
    "phi3": {"family": "llama", "rotary_fraction": 0.5, "head_width": 8, "kv_heads": 1},
    "olmo2": {"family": "olmo2", "kv_heads": 2, "biases": ["qkv", "output"]},
    "gemma2": {"family": "gemma2", "head_width": 8, "score_cap": 2.0, "logit_cap": 9.0, "embedding_scale": 24**0.5},
    "gemma2, no caps": {"family": "gemma2", "score_width": 3},
    "gemma3": {"family": "gemma3", "kv_heads": 2, "embedding_scale": 3.0},
    "olmo": {"family": "llama", "norm": "nonparametric-layernorm", "norm_eps": 1e-5, "kv_heads": 2},
    "neox, no attention biases": {"family": "neox", "rotary_fraction": 0.34, "biases": ["mlp"], "rope_scaling": LLAMA3},
    "neox": {"family": "neox", "rotary_fraction": 0.34, "tied_embeddings": False},
    "neox, serial": {"family": "neox", "rotary_fraction": 1.0, "parallel_residual": False},
    "gpt2": {"family": "gpt2", "max_positions": 128},
    "gpt2, scaled embedding": {"family": "gpt2", "max_positions": 128, "embedding_scale": 3.0},
    "bert": {"family": "bert", "max_positions": 128, "token_types": 3},
    "bert, untied": {"family": "bert", "max_positions": 128, "tied_embeddings": False},
}
CLASSES, SPANS = {"kind": "classes", "labels": 3}, {"kind": "spans"}


def shaken(model, seed=1):
    """All parameters random, norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def native(name, **shape):
    return shaken(build_model("vanilla", size="tiny", shape={**BASE, "embedding_scale": 1.0, **NATIVE[name], **shape}))


def in_layers(model, windows, heads=lambda kind: (kind,)):
    """The model with a window, or full attention (None), in each layer. heads: kind of a layer → kinds of its heads,
    in turn."""
    rows = [heads(Full() if window is None else Window(window)) for window in windows]
    kv_heads = model.shape.kv_heads
    return model.with_plan(attention_map=AttentionMap(tuple((row * kv_heads)[:kv_heads] for row in rows)))


@pytest.fixture(scope="module")
def byte(tmp_path_factory):
    """Tokenizers with and without the special tokens of encoders: is it one → path."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for encoder in (False, True):
        make_tokenizer("byte+mask" if encoder else "byte", []).save(str(folder / f"{encoder}.json"))
    return {encoder: folder / f"{encoder}.json" for encoder in (False, True)}


def exported(model, folder, byte):
    """(what was exported, the model that transformers loads from there)."""
    done = export_hf(model, folder, tokenizer=byte[not model.structure.causal], quiet=True)
    # transformers before 5.21 leaves the cap out of other kernels.
    kernel = "eager" if done.native and model.shape.score_cap is not None else None
    theirs = AUTO[done.auto].from_pretrained(folder, trust_remote_code=not done.native, attn_implementation=kernel)
    assert type(theirs).__name__ == done.architecture and done.parameters > 0
    assert ("transformers_modules" in type(theirs).__module__) == (not done.native)
    return done, theirs.eval()


def logits_of(output):
    return output.logits if "logits" in output else torch.stack((output.start_logits, output.end_logits), -1)


def assert_same_logits(ours, theirs):
    """On whole rows, and on rows with padding to the right."""
    tokens, mask = random_ids(37, vocab=VOCAB), padding_mask([37, 22])
    with torch.no_grad():
        torch.testing.assert_close(logits_of(theirs(tokens)), ours(tokens).logits, atol=1e-5, rtol=1e-5)
        padded = logits_of(theirs(tokens.masked_fill(~mask, 0), attention_mask=mask.long()))
        wanted = ours(tokens, attention_mask=mask).logits
        each = slice(None) if wanted.dim() == 2 else mask
        torch.testing.assert_close(padded[each], wanted[each], atol=1e-5, rtol=1e-5)


def assert_generates(ours, theirs):
    """Greedy decoding with and without the cache, of rows with padding to the left, gives the tokens of ours."""
    tokens, lengths = random_ids(31, rows=3, vocab=VOCAB), [31, 12, 1]
    wanted = ours.generate(tokens, 7, lengths=lengths).rows()
    left = torch.stack([row.roll(31 - n) for row, n in zip(tokens, lengths, strict=True)])
    mask = padding_mask(lengths).flip(1).long()
    for use_cache in (True, False):
        found = theirs.generate(
            left, attention_mask=mask, max_new_tokens=7, do_sample=False, use_cache=use_cache, eos_token_id=-1
        )
        for row, length, tokens_of_row in zip(found.tolist(), lengths, wanted, strict=True):
            assert row[31 - length :] == tokens_of_row, use_cache


def same_weights(one, two):
    mine, others = dict(one.named_parameters()), dict(two.named_parameters())
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


# ---- transformers' own classes ----


@pytest.mark.parametrize("name", NATIVE)
def test_plain_models_are_written_as_transformers_own_class_and_read_back(name, tmp_path, byte):
    model = native(name)
    done, theirs = exported(model, tmp_path / "out", byte)
    assert done.native and done.reason is None and not (tmp_path / "out" / "modeling_hybridlab.py").exists()
    assert_same_logits(model, theirs)
    if model.structure.causal:
        assert_generates(model, theirs)
    again = load_hf(tmp_path / "out")
    gemma = model.shape.family.startswith("gemma")
    usual = math.sqrt(model.shape.width) if gemma else 1.0
    if model.shape.embedding_scale == usual:
        # The weights of Gemma's norms are stored minus 1, which rounds.
        one, other = (dict(each.named_parameters()) for each in (model, again))
        same = all(torch.allclose(one[n], other[n], atol=1e-6) for n in one) if gemma else same_weights(model, again)
        assert again.structure == replace(model.structure, shape=again.shape) and same
        own = {field: getattr(model.shape, field) for field in vars(model.shape) if field != "init"}
        for field, value in own.items():
            found = getattr(again.shape, field)
            assert found == value or (value is None and found == getattr(model.shape.traits, field, found)), field
    else:
        # The factor stands in the embedding, and the head has the table without it.
        assert again.shape.embedding_scale == usual and not again.shape.tied_embeddings
    with torch.no_grad():
        tokens = random_ids(20, vocab=VOCAB)
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-5)


IN_LAYERS = {
    "llama": "Ministral",
    "llama, scaled embedding": "Ministral",
    "llama3": "Ministral",
    "yarn": "Ministral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3, biases": "Qwen3",
    "olmo2": "Olmo3",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
}
"""Name of a model → what the name of transformers' class begins with that has windows in some of its layers."""


@pytest.mark.parametrize("name", IN_LAYERS)
def test_windows_in_some_layers_are_written_as_transformers_own_class(name, tmp_path, byte):
    model = in_layers(native(name), [None, 5, 5])
    done, theirs = exported(model, tmp_path / "out", byte)
    assert done.native and done.architecture == f"{IN_LAYERS[name]}ForCausalLM"
    assert not list((tmp_path / "out").glob("*.py"))
    assert_same_logits(model, theirs)
    assert_generates(model, theirs)
    tokens = random_ids(20, vocab=VOCAB)
    with torch.no_grad():
        logits = model(tokens).logits
        assert (logits - native(name)(tokens).logits).abs().max() > 1e-3, "the windows are seen"
        cache = theirs(tokens, use_cache=True).to_tuple()[1]
        # The window's last token is the next one.
        assert [layer.keys.shape[2] for layer in cache.layers] == [20, 4, 4]
        again = load_hf(tmp_path / "out")
        torch.testing.assert_close(again(tokens).logits, logits, atol=1e-5, rtol=1e-5)
    assert again.attention_map == model.attention_map and again.plan == model.plan
    assert (again.shape.family, again.shape.traits) == (model.shape.family, model.shape.traits)
    once_more = export_hf(again, tmp_path / "again", quiet=True)
    assert once_more.architecture == done.architecture


@pytest.mark.parametrize(("name", "theirs"), [("llama", "Mistral"), ("olmo2", "Olmo3"), ("qwen3", "Qwen3")])
def test_windows_in_all_layers_are_written_as_transformers_own_class(name, theirs, tmp_path, byte):
    model = in_layers(native(name), [5, 5, 5])
    done, found = exported(model, tmp_path / "out", byte)
    assert done.architecture == f"{theirs}ForCausalLM"
    assert_same_logits(model, found)
    assert_generates(model, found)
    assert load_hf(tmp_path / "out").attention_map == model.attention_map


def test_a_tokenizer_beside_windows_in_some_layers_is_the_folders_own(tmp_path, byte, caplog):
    """Also one that is as large as those in which transformers looks for an error of Mistral's."""
    written = json.loads(byte[False].read_text())
    vocab, used = written["model"]["vocab"], load_tokenizer(byte[False]).get_vocab_size()
    vocab |= {f"zz{number}": used + number for number in range(100_001)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.get_vocab_size() == used + 100_001
    shape = {"layers": 2, "width": 8, "heads": 1, "kv_heads": 1, "head_width": 8, "ffn_width": 8}
    model = in_layers(native("llama", **shape, vocab=tokenizer.get_vocab_size()), [None, 4])
    export_hf(model, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json", quiet=True)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("def main(argv):\n    return 1234", "naïve – 日本"):
        assert theirs(text)["input_ids"] == tokenizer.encode(text).ids
    assert not caplog.records


@pytest.mark.parametrize("output", [CLASSES, SPANS], ids=["classes", "spans"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_heads_of_classes_and_spans_are_written_with_windows_in_some_layers(name, output, tmp_path, padding):
    model = in_layers(shaken(with_output(native(name), output)), [None, 5, 5])
    done = export_hf(model, tmp_path / "out", tokenizer=padding, quiet=True)
    assert done.native and done.architecture.startswith(IN_LAYERS[name])
    theirs = AUTO[done.auto].from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        tokens = random_ids(20, rows=1, vocab=VOCAB)
        for found in (logits_of(theirs(tokens)), load_hf(tmp_path / "out")(tokens).logits):
            torch.testing.assert_close(found, model(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("output", [CLASSES, SPANS], ids=["classes", "spans"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "neox", "gpt2", "bert", "llama, scaled embedding"])
def test_heads_of_classes_and_spans_are_written(name, output, tmp_path, byte):
    model = shaken(with_output(native(name), output))
    done, theirs = exported(model, tmp_path / "out", byte)
    # The byte tokenizer of decoders pads with the end of a document, in which a native classifier finds no end.
    assert done.native == (name == "bert" or output == SPANS)
    assert_same_logits(model, theirs)
    again = load_hf(tmp_path / "out") if done.native else load_checkpoint(tmp_path / "out")
    with torch.no_grad():
        tokens = random_ids(20, vocab=VOCAB)
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.fixture
def padding(tmp_path, byte):
    """A tokenizer of a decoder that has a token for padding."""
    tokenizer = load_tokenizer(byte[False])
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_classifier_with_padding_of_its_own_is_native(tmp_path, padding):
    model = shaken(with_output(native("llama"), CLASSES))
    done = export_hf(model, tmp_path / "out", tokenizer=padding, quiet=True)
    assert done.architecture == "LlamaForSequenceClassification"
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    pad = json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"]
    mask = padding_mask([20, 9])
    tokens = random_ids(20, vocab=200).masked_fill(~mask, pad)
    with torch.no_grad():
        found, wanted = theirs(tokens, attention_mask=mask.long()).logits, model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


REASONS = {
    "plan": lambda: (lambda m: m.with_plan(m.plan.skip(1)))(native("llama")),
    "heads of one layer": lambda: in_layers(native("llama"), [4, None, None], lambda kind: (Full(), kind)),
    "than by full attention and windows": lambda: in_layers(native("llama"), [4] * 3, lambda kind: (Belief("high"),)),
    "several widths": lambda: in_layers(native("llama"), [4, None, 5]),
    "those of qwen3 one width": lambda: in_layers(native("qwen3"), [4, None, 5]),
    "olmo has no windows": lambda: in_layers(native("olmo"), [4, None, 4]),
    "gpt_neox has no windows": lambda: in_layers(native("neox"), [4, 4, 4]),
    "phi3 has windows in all layers or in none": lambda: in_layers(native("phi3"), [4, None, 4]),
    "window of one token": lambda: in_layers(native("llama"), [1, None, 1]),
    "ministral has biases": lambda: in_layers(native("llama, biases"), [4, None, 4]),
    "scaled": lambda: native("neox", norm_scaling="inverse-sqrt-depth"),
    "another norm": lambda: native("llama", norm="layernorm", rope_scaling=LLAMA3),
    "order": lambda: native("gpt2", parallel_residual=True),
    "biases": lambda: native("gpt2", biases=["mlp"]),
    "another norm,": lambda: native("olmo", norm_eps=1e-3),
    "rotates": lambda: native("qwen3", rotary_fraction=0.5, head_width=8),
    "KV head": lambda: native("gpt2", kv_heads=2),
    "wide": lambda: native("neox", head_width=8),
    "multiple of its heads": lambda: native("llama", width=22),
    "neither caps": lambda: native("llama", score_cap=2.0),
    "nor rescales": lambda: native("qwen3", score_width=3, logit_cap=1.5),
    "other bases": lambda: native("qwen3", local_rope={"base": 50.0, "layers": [1]}),
    "scalings": lambda: native("llama", rotary_fraction=0.5, head_width=8, rope_scaling=LLAMA3),
}


@pytest.mark.parametrize("word", REASONS)
def test_what_a_native_class_cannot_express_gets_the_modelling_file(word, tmp_path, byte):
    model = REASONS[word]()
    word = word.strip(",")
    assert word in why_not_native(model.structure)
    done, theirs = exported(model, tmp_path / "out", byte)
    assert not done.native and word in done.reason
    assert_same_logits(model, theirs)
    assert_generates(model, theirs)
    again = load_checkpoint(tmp_path / "out")
    assert again.structure == model.structure and same_weights(model, again)


# ---- the modelling file ----


ONE_OF_EVERYTHING = ("spiral-b", "saobp-high", "rule-swa", "saobp-elemmul", "sgt", "bert")


@pytest.mark.parametrize(
    ("arch", "plan"),
    [
        *((arch, "plain") for arch in ARCHS),
        *((arch, "dropped heads") for arch in ONE_OF_EVERYTHING),
        *(
            pytest.param(arch, "dropped heads", marks=pytest.mark.long)
            for arch in ARCHS
            if arch not in ONE_OF_EVERYTHING
        ),
    ],
)
def test_every_arch_and_plan_gives_the_same_logits_and_tokens(arch, plan, tmp_path, byte):
    model = shaken(build(arch))
    model = model.with_plan(PLANS[plan](model.plan))
    done, theirs = exported(model, tmp_path / "out", byte)
    assert done.native == (why_not_native(model.structure) is None)
    assert_same_logits(model, theirs)
    if model.structure.causal:
        assert_generates(model, theirs)


LOOPS = {
    "direct": {"topology": "direct", "chunks": (2, 1), "downscale": "mean", "upscale": "uniform"},
    "anchor, parallel": {"topology": "anchor", "chunks": (3, 5, 1), "shift": "parallel", "offset": "zero"},
    "mesh, numbers": {"topology": "mesh", "chunks": (4, 2, 1), "shift": (5, 1, 2), "offset": (1, 0, 0)},
    "positions of tokens": {"topology": "anchor", "chunks": (8, 2), "positions": "token", "upscale": "uniform"},
}


@pytest.mark.parametrize("family", ["qwen3", "neox", "gpt2"])
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_of_every_kind_give_the_same_logits_and_tokens(loop, family, tmp_path, byte):
    shape = {**BASE, "layers": 4, **NATIVE[family], "embedding_scale": 1.0}
    model = build_model("vanilla", size="tiny", shape=shape)
    model = model.with_plan(
        model.plan.loop_heads(1, (0, 3), 1), AttentionMap.from_masks([[0] * model.shape.kv_heads] * 4, 5)
    )
    plan = build_model("vanilla", size="tiny", shape=shape).plan.recur(1, 2, **LOOPS[loop])
    from hybridlab.models.decoder import draw_weights, make_model

    looped = make_model(replace(model.structure, plan=plan))
    draw_weights(looped, 0)
    shaken(looped)
    _, theirs = exported(looped, tmp_path / "out", byte)
    assert_same_logits(looped, theirs)
    assert_generates(looped, theirs)


BELIEFS = {
    "scaled by length": Belief("high", 0.5, length_ref=8),
    "low, detached": Belief("low", 0.5, detach_messages=True),
    "high, own message": Belief("high", 0.5, own_message=True),
    "elemmul": Belief("elemmul"),
}


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("kind", BELIEFS)
def test_refined_heads_beside_others_give_the_same_logits_and_tokens(kind, family, tmp_path, byte):
    row = (BELIEFS[kind], Full(), Window(4), BELIEFS[kind])
    model = native(family, kv_heads=4)
    model = model.with_plan(model.plan.loop_heads(1, (1, 2, 3), 1), AttentionMap((row, row[::-1], (row[0],) * 4)))
    _, theirs = exported(model, tmp_path / "out", byte)
    assert_same_logits(model, theirs)
    if model.structure.causal:
        assert_generates(model, theirs)


def test_factors_of_heads_that_were_fading_are_exported(tmp_path, byte):
    model = native("llama")
    plan = model.plan.loop_heads(1, (0, 3), 1)
    (place,) = [place for place, visit in plan.places() if visit == Visit(1, "attention", (0, 3))]
    model = model.with_plan(plan, factors={place: torch.tensor([0.25, 0.75])})
    _, theirs = exported(model, tmp_path / "out", byte)
    assert_same_logits(model, theirs)
    without = model.with_plan(plan, factors={})
    with torch.no_grad():
        tokens = random_ids(20, vocab=VOCAB)
        assert (theirs(tokens).logits - without(tokens).logits).abs().max() > 1e-4


def test_beams_and_several_samples_reorder_the_cache(tmp_path, byte):
    _, theirs = exported(shaken(build("spiral-b")), tmp_path / "out", byte)
    tokens = random_ids(19, vocab=VOCAB)
    settings = {"max_new_tokens": 8, "num_beams": 3, "eos_token_id": -1, "pad_token_id": 0}
    found = [theirs.generate(tokens, use_cache=use_cache, do_sample=False, **settings) for use_cache in (True, False)]
    assert torch.equal(*found)
    assert theirs.generate(tokens, do_sample=True, num_return_sequences=2, max_new_tokens=3).shape == (4, 22)


def test_the_cache_has_a_slot_for_each_place_and_can_be_continued(tmp_path, byte):
    model = native("llama")
    model = model.with_plan(model.plan.loop_heads(1, (0, 3), 1), AttentionMap.from_masks([[1, 0]] * 3, 4))
    _, theirs = exported(model, tmp_path / "out", byte)
    tokens = random_ids(20, vocab=VOCAB)
    with torch.no_grad():
        first = theirs(tokens[:, :11], use_cache=True)
        _, cache = first.to_tuple()
        # Four places with two kinds each: the loop's heads 0 and 3 have one each.
        slots = [slot for visit in cache.own.visits.values() for _, slot in visit.slots]
        assert cache.get_seq_length() == 11 and len(slots) == 4 * 2
        assert sorted({slot.keys.shape[2] for slot in slots}) == [4, 11]
        # Its name in transformers before 5.24, and since.
        second = theirs(tokens[:, 11:15], past_key_values=cache)
        third = theirs(tokens[:, 15:], cache=cache)
        found = torch.cat((first.logits, second.logits, third.logits), 1)
        torch.testing.assert_close(found, model(tokens).logits, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="cannot go back"):
            cache.crop(1)
    # What was said goes on with the cache of its answer, and is read in parts.
    greedy = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    answer = theirs.generate(tokens[:, :8], return_dict_in_generate=True, **greedy)
    more = torch.cat((answer.sequences, tokens[:, 11:14]), 1)
    whole, empty = theirs.generate(more, **greedy), type(cache)()
    name = "cache" if "cache" in answer else "past_key_values"
    assert torch.equal(theirs.generate(more, **{name: answer[name]}, **greedy), whole)
    assert torch.equal(theirs.generate(more, **{name: empty}, prefill_chunk_size=3, **greedy), whole)


@pytest.mark.parametrize("leak", ["literal", "high", "elemmul"])
def test_a_model_that_depends_on_later_tokens_decodes_without_a_cache(leak, tmp_path, byte):
    if leak == "literal":
        model = shaken(build("spiral-b"))
        (loop,) = model.plan.loops.values()
        visits = tuple(replace(item, literal=True) if item == loop else item for item in model.plan.visits)
        model = model.with_plan(replace(model.plan, visits=visits))
    else:
        leaking = AttentionMap.uniform(3, 2, Belief(leak, 0.5 if leak == "high" else None, send="leaking"))
        model = native("llama").with_plan(attention_map=leaking)
    _, theirs = exported(model, tmp_path / "out", byte)
    tokens = random_ids(23, vocab=VOCAB)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="use_cache=False"):
            theirs(tokens, use_cache=True)
    made = theirs.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0)
    assert made[0].tolist() == model.generate(tokens, 4, use_cache=False).rows()[0]


def test_an_exported_model_trains(tmp_path, byte):
    _, theirs = exported(shaken(build("spiral-b")), tmp_path / "out", byte)
    tokens = random_ids(24, vocab=VOCAB)
    theirs.train()(tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in theirs.parameters())


@pytest.mark.parametrize("arch", ["spiral-b", "saobp-high", "saobp-elemmul", "rule-swa"])
def test_an_exported_model_runs_in_bf16(arch, tmp_path, byte):
    _, theirs = exported(shaken(build(arch)), tmp_path / "out", byte)
    tokens = random_ids(21, vocab=VOCAB)
    with torch.no_grad():
        wanted, found = theirs(tokens).logits, theirs.bfloat16()(tokens).logits
    assert found.dtype == torch.bfloat16 and (found.float() - wanted).abs().max() < 0.1 * wanted.abs().max()
    theirs.generate(tokens, max_new_tokens=3, do_sample=False)


TABLE = "hybridlab_attention_registry.py"


NEEDED = {}


def needed_by(path, text):
    """(the modules of a file that are beside it, what transformers demands of the machine for it); many files are the
    same in several folders."""
    if text not in NEEDED:
        nodes = list(ast.walk(ast.parse(text)))
        beside = {f"{node.module}.py" for node in nodes if isinstance(node, ast.ImportFrom) and node.level}
        NEEDED[text] = beside, set(get_imports(path)) - sys.stdlib_module_names
    return NEEDED[text]


def flat(match):
    """An import from the package, as one from a file beside it."""
    return f"{match[1]}from .hybridlab_{match[2].replace('.', '_')} import"


@pytest.mark.parametrize("arch", ONE_OF_EVERYTHING)
def test_the_files_beside_the_weights_are_the_modules_that_train(arch, tmp_path, byte):
    """But for their imports of each other, and for the table of kinds, which in the package knows plug-ins."""
    model = build(arch)
    model = model.with_plan(PLANS["dropped heads"](model.plan))
    done, _ = exported(model, tmp_path / "out", byte)
    own = {f"{name.replace('.', '_')}.py": path.read_text() for name, path in MODULES.items()}
    own["modeling_hybridlab.py"] = own["hybridlab_models_modeling_hybridlab.py"]
    written = {name: (tmp_path / "out" / name).read_text() for name in done.files if name.endswith(".py")}
    for name, text in written.items():
        if name != TABLE:
            assert text == re.sub(r"(?m)^( *)from hybridlab\.([\w.]+) import", flat, own[name]), name
        beside, needed = needed_by(tmp_path / "out" / name, text)
        assert beside <= set(written)
        assert needed <= {"torch", "transformers"} and ("transformers" in needed) == (name == "modeling_hybridlab.py")
    assert {name.split("_")[1].removesuffix(".py") for name in written if name != "modeling_hybridlab.py"} == {
        *("arguments", "attention", "errors", "models", "plan")
    }
    kinds = {kind.name for kind in model.attention_map.each_kind()}
    assert ("hybridlab_attention_belief.py" in written) == ("belief" in kinds)
    (table,) = re.findall(r"KINDS = {(.*)}", written[TABLE])
    assert set(re.findall(r"\"(\w+)\": [A-Z]", table)) == kinds


def test_saving_it_again_keeps_the_model(tmp_path, byte):
    model = shaken(build("looped"))
    _, theirs = exported(model, tmp_path / "out", byte)
    theirs.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    assert_same_logits(model, again)


# ---- tokenizer, and what is refused ----


@pytest.mark.parametrize("name", ["llama", "qwen3", "neox", "gpt2", "bert"])
def test_the_tokenizer_comes_along_with_its_special_tokens(name, tmp_path, byte):
    model = native(name)
    exported(model, tmp_path / "out", byte)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "out"), load_tokenizer(byte[name == "bert"])
    for text in ("def main(argv):\n    pass", "naïve – 日本", ""):
        assert theirs(text)["input_ids"] == ours.encode(text, add_special_tokens=False).ids
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if name == "bert":
        assert (theirs.mask_token, theirs.pad_token, theirs.sep_token) == ("[MASK]", "[PAD]", "[SEP]")
        assert config["pad_token_id"] == theirs.pad_token_id
    else:
        assert theirs.eos_token == theirs.pad_token == "<|end|>" and theirs.padding_side == "left"
        assert config["eos_token_id"] == theirs.eos_token_id == config["pad_token_id"]
    if name != "gpt2":
        assert theirs.model_max_length == (128 if name == "bert" else 2048)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_tokenizer_of_a_fine_tuned_model_frames_texts_as_in_training(name, tmp_path, byte):
    exported(shaken(with_output(native(name), CLASSES)), tmp_path / "out", byte)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    one, two = (theirs(text, add_special_tokens=False)["input_ids"] for text in ("ab", "c"))
    found = theirs("ab", "c")
    if name == "bert":
        cls, sep = theirs.cls_token_id, theirs.sep_token_id
        assert found["input_ids"] == [cls, *one, sep, *two, sep]
        assert found["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    else:
        end = theirs.eos_token_id
        assert found["input_ids"] == [*one, end, *two, end]
        assert theirs("ab")["input_ids"] == [*one, end]


def test_what_cannot_be_exported_is_refused_in_a_sentence(tmp_path, byte):
    model = native("llama")
    learning = model.with_plan(attention_map=AttentionMap.uniform(3, 2, Mixed(4)))
    with pytest.raises(UserError, match="masks of this model are still being learned"):
        export_hf(learning, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, message in (("full", "a folder with files"), ("file", "it is a file")):
        with pytest.raises(UserError, match=message):
            export_hf(model, tmp_path / name)
    with pytest.raises(UserError, match="identifier of the hub"):
        export_hf(model, tmp_path / "out", license="")
    with pytest.raises(UserError, match="not a tokenizer.json|no such file"):
        export_hf(model, tmp_path / "out", tokenizer=tmp_path / "missing.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
    (tmp_path / "empty").mkdir()
    assert export_hf(model, tmp_path / "empty", quiet=True).files == [
        *("README.md", "config.json", "generation_config.json", "model.safetensors")
    ]


def test_every_family_has_a_class_for_every_head():
    for name in ("llama", "qwen3", "neox", "gpt2", "bert"):
        for output in (None, CLASSES, SPANS):
            structure = native(name).structure
            assert native_class(replace(structure, shape=replace(structure.shape, output=output)))
