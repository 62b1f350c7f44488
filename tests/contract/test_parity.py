"""Logits equal those of transformers' own models with the same random weights, in fp32 to 1e-5."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hybridlab import load_hf
from hybridlab.errors import UserError
from hybridlab.models.ledger.parameters import count_parameters

SHARED = {"vocab_size": 97, "num_hidden_layers": 3, "intermediate_size": 52, "max_position_embeddings": 128}
LLAMA_SHAPES = [
    {"hidden_size": 42, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10},
    {"hidden_size": 33, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 22, "rope_theta": 500.0},
    {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-3},
]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 1000.0}
THETA = {"rope_theta": 700.0}
EVEN = {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2}
ROTARY_KIN = [
    ("llama", LlamaConfig, LlamaForCausalLM, EVEN | {"rope_parameters": LLAMA3}),
    ("llama", LlamaConfig, LlamaForCausalLM, EVEN | {"rope_parameters": LINEAR, "mlp_bias": True}),
    ("llama", LlamaConfig, LlamaForCausalLM, EVEN | {"attention_bias": True, "head_dim": 8}),
    ("qwen3", Qwen3Config, Qwen3ForCausalLM, EVEN | {"attention_bias": True, "head_dim": 10}),
    ("qwen2", Qwen2Config, Qwen2ForCausalLM, EVEN),
    ("olmo", OlmoConfig, OlmoForCausalLM, EVEN),
    ("olmo", OlmoConfig, OlmoForCausalLM, EVEN | {"attention_bias": True, "rope_parameters": LINEAR}),
]
NEOX_SHAPES = [
    {"hidden_size": 48, "num_attention_heads": 3, "rotary_pct": 0.25},
    {"hidden_size": 40, "num_attention_heads": 2, "rotary_pct": 0.5, "use_parallel_residual": False},
    {"hidden_size": 32, "num_attention_heads": 4, "rotary_pct": 1.0, "layer_norm_eps": 1e-3},
    {"hidden_size": 56, "num_attention_heads": 7, "rotary_pct": 0.5, "attention_bias": False},
]
GPT2_SHAPES = [
    {"n_embd": 36, "n_head": 3, "n_layer": 3, "n_positions": 64},
    {"n_embd": 33, "n_head": 3, "n_layer": 2, "n_positions": 50, "n_inner": 70, "layer_norm_epsilon": 1e-3},
]
BERT_SHAPES = [
    {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 70},
    {"hidden_size": 40, "num_attention_heads": 4, "num_hidden_layers": 5, "layer_norm_eps": 1e-3, "type_vocab_size": 3},
]
CASES = [
    *[("llama", LlamaConfig, LlamaForCausalLM, SHARED | shape) for shape in LLAMA_SHAPES],
    *[("qwen3", Qwen3Config, Qwen3ForCausalLM, SHARED | shape) for shape in LLAMA_SHAPES],
    *[(name, config, model, SHARED | shape) for name, config, model, shape in ROTARY_KIN],
    *[("neox", GPTNeoXConfig, GPTNeoXForCausalLM, SHARED | shape) for shape in NEOX_SHAPES],
    *[("gpt2", GPT2Config, GPT2LMHeadModel, {"vocab_size": 97} | shape) for shape in GPT2_SHAPES],
    *[("bert", BertConfig, BertForMaskedLM, SHARED | shape) for shape in BERT_SHAPES],
]
FIRST = {name: case for case in reversed(CASES) for name in [case[0]]}


def theirs(case, tied, seed=0):
    _, config_class, model_class, shape = case
    torch.manual_seed(seed)
    model = model_class(config_class(tie_word_embeddings=tied, **shape)).eval()
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            scale = parameter.dim() == 1 and name.endswith("weight")
            parameter.uniform_(0.5, 1.5) if scale else parameter.normal_(0, 0.2)
    return model


def folder_of(model, path, shards=1):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    tied = model.config.tie_word_embeddings
    copies = ("lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
    shared = copies if tied else ()
    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k not in shared}
    names = sorted(tensors)
    for i in range(shards):
        save_file({n: tensors[n] for n in names[i::shards]}, path / f"model-{i + 1:05d}-of-{shards:05d}.safetensors")
    return path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[3].get('hidden_size', c[3].get('n_embd'))}")
def test_logits_equal_transformers(case, tied, tmp_path):
    reference = theirs(case, tied)
    ours = load_hf(folder_of(reference, tmp_path / "model", shards=2))
    assert count_parameters(ours.shape, ours.plan).total == sum(tensor.numel() for tensor in ours.parameters())
    ids = torch.randint(97, (2, 41), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = reference(ids).logits
        for kernel in ("eager", "sdpa"):
            ours.kernel = kernel
            # Both round in fp32; the last bits depend on the order of the sums.
            torch.testing.assert_close(ours(ids).logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FIRST)
def test_a_head_of_its_own_is_used_where_the_configuration_ties_it(family, tmp_path):
    """transformers warns and does not tie, either."""
    folder = folder_of(theirs(FIRST[family], tied=False), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    next(folder.glob("*.safetensors")).rename(folder / "model.safetensors")
    with pytest.warns(UserWarning, match="config.json: it ties the output head to the embedding, but .* has another"):
        ours = load_hf(folder)
    assert not ours.shape.tied_embeddings
    ids = torch.randint(97, (2, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = FIRST[family][2].from_pretrained(folder)(ids).logits
        torch.testing.assert_close(ours(ids).logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FIRST)
def test_a_head_that_is_a_copy_of_the_embedding_is_tied_without_a_word(family, tmp_path, recwarn):
    model = theirs(FIRST[family], tied=True)
    folder = folder_of(model, tmp_path / "model")
    tensors = {k: v.contiguous().clone() for k, v in model.state_dict().items()}
    for kind in (torch.float32, torch.float64):
        head = {k: v.to(kind) for k, v in tensors.items() if k.endswith(("head.weight", "decoder.weight"))}
        save_file(tensors | head, next(folder.glob("*.safetensors")))
        assert load_hf(folder).shape.tied_embeddings and not recwarn.list


@pytest.mark.parametrize("family", FIRST)
def test_attention_weights_equal_transformers(family, tmp_path):
    reference = theirs(FIRST[family], True)
    reference.set_attn_implementation("eager")
    ours = load_hf(folder_of(reference, tmp_path / "model"))
    ids = torch.randint(97, (2, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = reference(ids, output_attentions=True).attentions
        weights = ours(ids, need="full").attention
    for layer, expected in enumerate(wanted):
        torch.testing.assert_close(weights[(layer,)], expected, atol=1e-5, rtol=1e-4)


RELEASED = {
    "Llama-3.2": (
        {"rope_scaling": {name: LLAMA3[name] for name in LLAMA3 if name != "rope_theta"}, "rope_theta": 500.0},
        ("llama", LlamaConfig, LlamaForCausalLM, SHARED | EVEN | {"rope_parameters": LLAMA3}),
    ),
    "older linear": (
        {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 1000.0},
        ("llama", LlamaConfig, LlamaForCausalLM, SHARED | EVEN | {"rope_parameters": LINEAR}),
    ),
    "Qwen3": ({"rope_theta": 700.0}, ("qwen3", Qwen3Config, Qwen3ForCausalLM, SHARED | LLAMA_SHAPES[1] | THETA)),
    "Pythia": (
        {"rotary_pct": 0.25, "rotary_emb_base": 700},
        ("neox", GPTNeoXConfig, GPTNeoXForCausalLM, SHARED | NEOX_SHAPES[0] | {"rotary_emb_base": 700}),
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_shards_of_transformers_with_the_config_of_the_released_models_are_read(name, tmp_path):
    """Weights as save_pretrained writes them, in shards with an index; settings of positions by their older names."""
    older, case = RELEASED[name]
    reference = theirs(case, tied=name == "Llama-3.2")
    reference.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("model-*-of-*.safetensors"))) > 2
    path = tmp_path / "model" / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "rope_parameters"}
    path.write_text(json.dumps({**config, **older}))
    ids = torch.randint(97, (2, 61), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(load_hf(tmp_path / "model")(ids).logits, reference(ids).logits, atol=1e-5, rtol=1e-5)


def test_a_head_width_that_qwen3_leaves_out_is_its_own_default(tmp_path):
    reference = theirs(("qwen3", Qwen3Config, Qwen3ForCausalLM, SHARED | EVEN | {"head_dim": 128}), True)
    folder = folder_of(reference, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["head_dim"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_hf(folder).shape.head_width == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "smollm3"}, "'smollm3' is not supported .*no rotary positions"),
        ({"clip_qkv": 8.0}, "clip_qkv = 8.0 is not supported"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
            "type 'dynamic' are not supported; .*default, lin",
        ),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 9.0}}, "high_freq_factor 4 must be above low_freq_factor 9"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"attention_bias": True}, "q_proj.bias, which config.json asks for"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(change, message, tmp_path):
    folder = folder_of(theirs(("olmo", OlmoConfig, OlmoForCausalLM, SHARED | EVEN), True), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load_hf(folder)


def test_another_rotary_base_gives_other_logits(tmp_path):
    """Positive control: the comparison notices a wrong constant."""
    reference = theirs(FIRST["llama"], True)
    folder = folder_of(reference, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 100.0
    (folder / "config.json").write_text(json.dumps(config))
    ids = torch.randint(97, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert (load_hf(folder)(ids).logits - reference(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {name: LLAMA3[name] for name in LLAMA3 if name != "rope_theta"}, "rope_theta": 50.0},
        {"rope_parameters": LLAMA3, "original_max_position_embeddings": 48},
    ],
)
def test_the_older_settings_of_positions_go_over_the_newer_ones(change, tmp_path):
    """As in transformers, which leaves `rope_parameters` out where there is a `rope_scaling`."""
    folder = tmp_path / "model"
    theirs(FIRST["llama"], True).save_pretrained(folder)
    path, ids = folder / "config.json", torch.arange(61)[None]
    with torch.no_grad():
        before = load_hf(folder)(ids).logits
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        wanted = AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits
        torch.testing.assert_close(load_hf(folder)(ids).logits, wanted, atol=1e-5, rtol=1e-5)
        assert (wanted - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
        {"num_hidden_layers": 2},
        {"num_hidden_layers": 4},
        {"vocab_size": 98},
    ],
)
def test_unsupported_llama_settings_are_refused(change, tmp_path):
    folder = folder_of(theirs(FIRST["llama"], True), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError):
        load_hf(folder)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("neox", {"hidden_act": "relu"}),
        ("neox", {"attention_bias": False}),
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"n_layer": 9}),
    ],
)
def test_unsupported_settings_of_other_families_are_refused(family, change, tmp_path):
    folder = folder_of(theirs(FIRST[family], True), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError):
        load_hf(folder)


def test_a_base_model_without_its_head_is_read(tmp_path):
    """GPT-2's own release stores tensors without the prefix `transformer.`."""
    reference = theirs(FIRST["gpt2"], True)
    folder = folder_of(reference, tmp_path / "model")
    (file,) = folder.glob("*.safetensors")
    tensors = {k.removeprefix("transformer."): v.contiguous() for k, v in reference.transformer.state_dict().items()}
    save_file(tensors, file)
    ids = torch.randint(97, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(load_hf(folder)(ids).logits, reference(ids).logits, atol=1e-5, rtol=1e-5)


def test_folders_without_config_or_tensors_are_refused(tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        load_hf(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="no .*safetensors"):
        load_hf(tmp_path)


# ---- encoders, and heads that give no tokens ----

BERT = FIRST["bert"]
HEADS = {
    "classes": ("bert", BertConfig, BertForSequenceClassification, BERT[3] | {"num_labels": 3}),
    "a number": ("bert", BertConfig, BertForSequenceClassification, BERT[3] | {"num_labels": 1}),
    "spans": ("bert", BertConfig, BertForQuestionAnswering, BERT[3]),
    "gpt2 classes": (
        *("gpt2", GPT2Config, GPT2ForSequenceClassification),
        FIRST["gpt2"][3] | {"num_labels": 4, "pad_token_id": 0},
    ),
}


def padded_rows(lengths, types=1, seed=1):
    """Token ids, mask and token types of rows that are padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 97, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    kinds = torch.randint(types, ids.shape, generator=generator)
    return ids.masked_fill(~mask, 0), mask.long(), kinds


@pytest.mark.parametrize("case", [case for case in CASES if case[0] == "bert"], ids=lambda c: str(c[3]["hidden_size"]))
def test_padded_batches_with_token_types_equal_transformers(case, tmp_path):
    reference = theirs(case, True)
    ours = load_hf(folder_of(reference, tmp_path / "model"))
    ids, mask, types = padded_rows([41, 17, 1], reference.config.type_vocab_size)
    with torch.no_grad():
        wanted = reference(ids, attention_mask=mask, token_type_ids=types).logits
        for kernel in ("eager", "sdpa"):
            ours.kernel = kernel
            found = ours(ids, attention_mask=mask, token_type_ids=types).logits
            torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=1e-5)
        without = ours(ids, attention_mask=mask).logits
    assert (without - wanted)[mask.bool()].abs().max() > 1e-2


@pytest.mark.parametrize("head", HEADS)
def test_heads_of_classes_and_spans_equal_transformers(head, tmp_path):
    reference = theirs(HEADS[head], True)
    ours = load_hf(folder_of(reference, tmp_path / "model"))
    ids, mask, types = padded_rows([30, 12, 1], 1 if head.startswith("gpt2") else 2)
    own = {} if head.startswith("gpt2") else {"token_type_ids": types}
    with torch.no_grad():
        output = reference(ids, attention_mask=mask, **own)
        found = ours(ids, attention_mask=mask, **own).logits
    if head == "spans":
        wanted = torch.stack((output.start_logits, output.end_logits), -1)
        torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(found, output.logits, atol=1e-5, rtol=1e-5)


def test_scores_of_options_equal_multiple_choice(tmp_path):
    reference = theirs(("bert", BertConfig, BertForMultipleChoice, BERT[3]), True)
    ours = load_hf(folder_of(reference, tmp_path / "model"))
    assert ours.shape.output.labels == 1
    ids, mask, types = padded_rows([9, 14, 14, 11, 3, 8], 2)
    with torch.no_grad():
        wanted = reference(*(t.view(2, 3, -1) for t in (ids, mask, types))).logits
        found = ours(ids, attention_mask=mask, token_type_ids=types).logits.view(2, 3)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_model_with_both_of_berts_objectives_is_read(tmp_path):
    """Also with the older names of the norms' tensors, as in BERT's own release."""
    reference = theirs(("bert", BertConfig, BertForPreTraining, BERT[3]), True)
    folder = folder_of(reference, tmp_path / "model")
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.clone()
        for name, value in reference.state_dict().items()
        if not name.startswith("cls.predictions.decoder")
    }
    save_file(tensors, next(folder.glob("*.safetensors")))
    ids = torch.randint(97, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = reference(ids).prediction_logits
        torch.testing.assert_close(load_hf(folder)(ids).logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"hidden_act": "gelu_new"}, "hidden_act = 'gelu_new'"),
        ({"type_vocab_size": 3}, "token_type_embeddings"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
    ],
)
def test_unsupported_settings_of_bert_are_refused_by_name(change, message, tmp_path):
    folder = folder_of(theirs(BERT, True), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load_hf(folder)


@pytest.mark.parametrize(
    ("model", "message"), [(BertForTokenClassification, "single tokens"), (BertModel, "without an output head")]
)
def test_bert_models_with_other_heads_are_refused(model, message, tmp_path):
    folder = folder_of(theirs(("bert", BertConfig, model, BERT[3]), True), tmp_path / "model")
    with pytest.raises(UserError, match=message):
        load_hf(folder)
