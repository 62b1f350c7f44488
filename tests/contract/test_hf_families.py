"""Models of other families with random shapes: equal to transformers' own, and equal again when they go out."""

import copy
import json
import random
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from hybridlab import export_hf, load_hf
from hybridlab.attention.kinds import Full, Window
from hybridlab.errors import UserError
from hybridlab.models.decoder import Decoder
from hybridlab.models.hf_export import why_not_native
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import LocalRope
from tests.combinations import some
from tests.contract.test_damaged_imports import changes
from tests.models import cached_logits, padding_mask

VOCAB = 97
LENGTHS = [31, 19, 1]
SAME = {"atol": 1e-5, "rtol": 1e-5}


def _shared(draw):
    """Settings that all families have. Windows are shorter than the rows, and 2 at least: with 1, the cache of
    transformers keeps all keys."""
    group, kv = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    heads = group * kv
    return {
        "vocab_size": VOCAB,
        "num_hidden_layers": draw.randint(2, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_size": heads * draw.choice([6, 8, 10]),
        "intermediate_size": draw.randint(20, 60),
        "max_position_embeddings": 128,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": draw.random() < 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": draw.choice([100.0, 1e4])},
        "pad_token_id": 0,
    }


def _layer_types(draw, layers):
    return draw.choices(["full_attention", "sliding_attention"], k=layers)


def mistral(draw):
    return _shared(draw) | {"sliding_window": draw.randint(2, 12), "head_dim": draw.choice([4, 8, None])}


def ministral(draw):
    config = mistral(draw) | {"head_dim": draw.choice([4, 8])}
    return config | {"layer_types": _layer_types(draw, config["num_hidden_layers"])}


def qwen2(draw):
    windows = {"use_sliding_window": True, "sliding_window": draw.randint(2, 12), "max_window_layers": 1}
    return _shared(draw) | windows


def qwen3(draw):
    config = qwen2(draw) | {"head_dim": draw.choice([4, 6, 12]), "attention_bias": draw.random() < 0.5}
    return config | {"layer_types": _layer_types(draw, config["num_hidden_layers"])}


def phi3(draw):
    config = _shared(draw) | {"sliding_window": draw.choice([None, 3, 8])}
    width = config["hidden_size"] // config["num_attention_heads"]
    config["rope_parameters"]["partial_rotary_factor"] = draw.choice([1.0, 0.5 if width % 4 == 0 else 4 / width])
    return config


def yarn(draw):
    """As in Llama and Qwen: in one of three forms."""
    factor = draw.choice([2.0, 4.0, 7.5])
    rope = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": draw.choice([8, 16, 32])}
    forms = [{}, {"beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.2}]
    rope |= draw.choice(forms) | {"truncate": draw.random() < 0.5, "rope_theta": draw.choice([50.0, 1e4])}
    return _shared(draw) | {"rope_parameters": rope}


def olmo2(draw):
    return _shared(draw) | {"attention_bias": draw.random() < 0.5}


def olmo3(draw):
    config = olmo2(draw) | {"sliding_window": draw.randint(2, 12)}
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    ropes = {"full_attention": draw.choice([{"rope_type": "default"}, scaled]) | {"rope_theta": 300.0}}
    ropes["sliding_attention"] = draw.choice([{"rope_type": "default", "rope_theta": 300.0}, ropes["full_attention"]])
    return config | {"rope_parameters": ropes, "layer_types": _layer_types(draw, config["num_hidden_layers"])}


def gemma2(draw):
    config = _shared(draw)
    return config | {
        "head_dim": draw.choice([4, 8, 10]),
        "sliding_window": draw.randint(2, 12),
        "layer_types": draw.choice([None, _layer_types(draw, config["num_hidden_layers"])]),
        "query_pre_attn_scalar": draw.choice([8, 3, 20]),
        "attn_logit_softcapping": draw.choice([None, 0.7, 3.0]),
        "final_logit_softcapping": draw.choice([None, 1.3, 30.0]),
        "attention_bias": draw.random() < 0.5,
    }


def gemma3(draw):
    config = gemma2(draw) | {"attn_logit_softcapping": None}
    scaled = draw.choice([{"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}])
    ropes = {"full_attention": scaled | {"rope_theta": draw.choice([300.0, 1e6])}}
    ropes["sliding_attention"] = draw.choice(
        [{"rope_type": "default", "rope_theta": 50.0}, dict(ropes["full_attention"])]
    )
    return config | {"num_hidden_layers": 7, "rope_parameters": ropes, "layer_types": _layer_types(draw, 7)}


FAMILIES = {
    "mistral": ("Mistral", mistral),
    "ministral": ("Ministral", ministral),
    "qwen2": ("Qwen2", qwen2),
    "qwen3": ("Qwen3", qwen3),
    "phi3": ("Phi3", phi3),
    "olmo2": ("Olmo2", olmo2),
    "olmo3": ("Olmo3", olmo3),
    "gemma2": ("Gemma2", gemma2),
    "gemma3": ("Gemma3", gemma3),
    "yarn": ("Llama", yarn),
    "qwen3, yarn": ("Qwen3", lambda draw: yarn(draw) | {"head_dim": 8}),
}
SEEDS = range(3)


def theirs(family, seed, head="ForCausalLM", **settings):
    """A random model of transformers, with norms and biases that are random too."""
    name, config = FAMILIES[family]
    config = config(random.Random(f"{family} {seed}")) | settings
    torch.manual_seed(seed)
    config = getattr(transformers, _config_of(name))(**config)
    model = getattr(transformers, "Gemma3Text" + head if name + head == OTHER_NAME else name + head)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
            else:
                parameter.copy_(torch.randn(parameter.shape) * 0.6 / parameter.shape[-1] ** 0.5)
    return model


OTHER_NAME = "Gemma3ForSequenceClassification"
"""A class that reads images too."""


def _config_of(name):
    return "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"


def tokens_of(length):
    return torch.randint(1, VOCAB, (len(LENGTHS), length), generator=torch.Generator().manual_seed(1))


def to_the_left(tokens, lengths):
    """Rows with padding to the right as rows with padding to the left, and their mask."""
    longest = tokens.shape[1]
    left = torch.stack([row.roll(longest - n) for row, n in zip(tokens, lengths, strict=True)])
    mask = padding_mask(lengths).flip(1)
    return left.masked_fill(~mask, 0), mask.long()


def assert_equal(ours, reference):
    """Whole rows with two kernels, rows with padding on either side, and greedy decoding with a cache."""
    tokens, mask = tokens_of(max(LENGTHS)), padding_mask(LENGTHS)
    left, left_mask = to_the_left(tokens, LENGTHS)
    with torch.no_grad():
        wanted = reference(tokens).logits
        for kernel in ("eager", "auto"):
            ours.kernel = kernel
            torch.testing.assert_close(ours(tokens).logits, wanted, **SAME)
        every = torch.ones_like(mask)
        torch.testing.assert_close(cached_logits(ours, tokens, every, [1, 2, 9, 20])[0], wanted, **SAME)
        positions = (left_mask.cumsum(1) - 1).clamp(min=0)
        of_rows = reference(left, attention_mask=left_mask, position_ids=positions).logits
        found = ours(tokens.masked_fill(~mask, 0), attention_mask=mask).logits
        torch.testing.assert_close(found[mask], of_rows[left_mask.bool()], **SAME)
    made = reference.generate(left, attention_mask=left_mask, max_new_tokens=6, do_sample=False, eos_token_id=-1)
    wanted = [row[max(LENGTHS) - n :] for row, n in zip(made.tolist(), LENGTHS, strict=True)]
    assert ours.generate(tokens, 6, lengths=LENGTHS).rows() == wanted


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_model_equals_transformers_and_goes_out_as_its_own_class(family, seed, tmp_path):
    reference = theirs(family, seed)
    reference.save_pretrained(tmp_path / "model")
    ours = load_hf(tmp_path / "model")
    # Older transformers caps no scores with sdpa, and takes it all the same.
    kernel = reference.config._attn_implementation if ours.shape.score_cap is None else "eager"
    reference.set_attn_implementation(kernel)
    assert_equal(ours, reference)
    counted = count_parameters(ours.shape, ours.plan).total
    assert counted == sum(tensor.numel() for tensor in ours.parameters()) == reference.num_parameters()
    done = export_hf(ours, tmp_path / "out", quiet=True)
    assert done.native, done.reason
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation=kernel).eval()
    with torch.no_grad():
        tokens = tokens_of(40)
        torch.testing.assert_close(again(tokens).logits, reference(tokens).logits, **SAME)
    assert load_hf(tmp_path / "out").structure == ours.structure


@pytest.mark.parametrize("family", FAMILIES)
def test_with_another_plan_it_goes_out_with_the_modelling_file(family, tmp_path):
    theirs(family, 0).save_pretrained(tmp_path / "model")
    ours = load_hf(tmp_path / "model")
    ours = ours.with_plan(ours.plan.loop_heads(1, (0,), 1))
    assert not export_hf(ours, tmp_path / "out", quiet=True).native
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokens, (left, mask) = tokens_of(31), to_the_left(tokens_of(31), LENGTHS)
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, ours(tokens).logits, **SAME)
        every = torch.ones_like(tokens, dtype=torch.bool)
        torch.testing.assert_close(cached_logits(ours, tokens, every, [1, 9])[0], ours(tokens).logits, **SAME)
    made = again.generate(left, attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0)
    wanted = ours.generate(tokens, 4, lengths=LENGTHS).rows()
    assert [row[31 - n :] for row, n in zip(made.tolist(), LENGTHS, strict=True)] == wanted


@pytest.mark.parametrize("family", ["mistral", "ministral", "qwen2", "phi3", "olmo2", "olmo3", "gemma2", "gemma3"])
def test_classes_of_sequences_equal_transformers_both_ways(family, tmp_path):
    reference = theirs(family, 0, "ForSequenceClassification", num_labels=3)
    reference.save_pretrained(tmp_path / "model")
    ours, tokens = load_hf(tmp_path / "model"), tokens_of(17)
    done = export_hf(ours, tmp_path / "out", quiet=True)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    with torch.no_grad():
        wanted = reference(tokens).logits
        torch.testing.assert_close(ours(tokens).logits, wanted, **SAME)
        torch.testing.assert_close(again(tokens).logits, wanted, **SAME)
    assert done.auto == "AutoModelForSequenceClassification"


@pytest.mark.parametrize("family", ["mistral", "ministral", "qwen2"])
def test_spans_equal_transformers_both_ways(family, tmp_path):
    reference = theirs(family, 0, "ForQuestionAnswering")
    reference.save_pretrained(tmp_path / "model")
    ours, tokens = load_hf(tmp_path / "model"), tokens_of(17)
    assert export_hf(ours, tmp_path / "out", quiet=True).native
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        for model in (reference, again):
            output = model(tokens)
            wanted = torch.stack((output.start_logits, output.end_logits), -1)
            torch.testing.assert_close(ours(tokens).logits, wanted, **SAME)


def test_windows_of_a_model_are_its_map(tmp_path):
    settings = {"num_hidden_layers": 4, "sliding_window": 5}
    theirs("mistral", 0, **settings).save_pretrained(tmp_path / "mistral")
    assert set(load_hf(tmp_path / "mistral").attention_map.each_kind()) == {Window(5)}
    theirs("qwen2", 0, max_window_layers=3, **settings).save_pretrained(tmp_path / "qwen2")
    assert [row[0].window for row in load_hf(tmp_path / "qwen2").attention_map.layers] == [None, None, None, 5]


def changed(family, folder, **settings):
    """A folder with a model of a family, whose config.json says something else."""
    theirs(family, 0).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


THETA = {"rope_parameters": None, "rope_theta": 300.0}
RELEASED = {
    "mistral": [THETA],
    "ministral": [THETA, {"layer_types": None}],
    "qwen2": [THETA | {"use_sliding_window": False, "layer_types": None, "sliding_window": 5, "max_window_layers": 1}],
    "qwen3": [THETA | {"layer_types": None}],
    "phi3": [THETA | {"rope_scaling": None}],
    "yarn": [THETA | {"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 32}],
    "olmo2": [THETA],
    # Its released models have this base.
    "olmo3": [
        {"rope_parameters": None, "rope_theta": 500000.0, "layer_types": None}
        | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    ],
    "gemma2": [THETA | {"layer_types": None, "hidden_act": "gelu_pytorch_tanh"}],
    "gemma3": [
        THETA
        | {"rope_local_base_freq": 50.0, "layer_types": None, "rope_scaling": {"rope_type": "linear", "factor": 8}},
        {"rope_parameters": None, "layer_types": None, "sliding_window_pattern": 3},
        {"rope_parameters": {"full_attention": {"rope_theta": 70.0}}},
        {"rope_parameters": {"full_attention": {"rope_theta": 70.0}}}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ],
}


@pytest.mark.parametrize(("family", "form"), [(family, form) for family in RELEASED for form in RELEASED[family]])
def test_older_forms_of_the_configuration_are_read_as_transformers_reads_them(family, form, tmp_path):
    """As in the released models: settings of positions and windows by their older names, or left to their defaults."""
    path = changed(family, tmp_path / "model") / "config.json"
    config = json.loads(path.read_text()) | form
    path.write_text(
        json.dumps({name: value for name, value in config.items() if name not in form or value is not None})
    )
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(path.parent).eval()(tokens_of(31)).logits
        torch.testing.assert_close(load_hf(path.parent)(tokens_of(31)).logits, wanted, **SAME)


def test_another_local_base_gives_other_logits(tmp_path):
    """Positive control: the layers with windows have a base of their own."""
    ropes = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 50.0}}
    ours = load_hf(changed("gemma3", tmp_path / "model", rope_parameters=ropes, layer_types=["sliding_attention"] * 7))
    assert ours.shape.local_rope == LocalRope(50.0, tuple(range(7)))
    structure = replace(ours.structure, shape=replace(ours.shape, local_rope=None))
    without = Decoder.from_tensors(structure, dict(ours.named_parameters()))
    with torch.no_grad():
        assert (ours(tokens_of(31)).logits - without(tokens_of(31)).logits).abs().max() > 1e-3
    reason = "rotary positions of other bases"
    assert reason in why_not_native(
        ours.with_plan(attention_map=AttentionMap.uniform(7, ours.shape.kv_heads, Full())).structure
    )


def test_another_window_gives_other_logits(tmp_path):
    """Positive control: the comparison notices a window that is one token longer."""
    reference = theirs("mistral", 0)
    folder = changed("mistral", tmp_path / "model", sliding_window=reference.config.sliding_window + 1)
    with torch.no_grad():
        assert (load_hf(folder)(tokens_of(31)).logits - reference(tokens_of(31)).logits).abs().max() > 1e-3


NO_SHAPE = {"architectures", "dtype", "transformers_version", "initializer_range"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*ties the output head")
@pytest.mark.parametrize("family", some(FAMILIES, "mistral", "phi3", "gemma2", rest=pytest.mark.full))
def test_no_change_of_the_configuration_ends_in_a_traceback(family, tmp_path):
    """Of its numbers and choices, each as another value or of another type."""
    path = changed(family, tmp_path / "model", sliding_window_pattern=6) / "config.json"
    config, refused = json.loads(path.read_text()), 0
    for keys, value in changes(config, set(config) - NO_SHAPE):
        other = copy.deepcopy(config)
        inner = other
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        path.write_text(json.dumps(other))
        try:
            load_hf(path.parent)
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 50


SLIDING = ["sliding_attention"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
REFUSED = [
    ("mistral", {"sliding_window": 0}, "sliding_window: window 0: .* whole number of 1 or more"),
    ("mistral", {"sliding_window": "x"}, "sliding_window: window 'x'"),
    ("mistral", {"layer_types": SLIDING}, "layer_types = .* is not supported"),
    ("qwen2", {"layer_types": SLIDING}, "layer_types must name the kind of each of its"),
    ("qwen2", {"layer_types": None, "max_window_layers": "x"}, "describes the windows is zero or of the wrong type"),
    ("qwen3", {"layer_types": SLIDING * 2, "num_hidden_layers": 2, "use_sliding_window": False}, "gives no width"),
    (
        "qwen3",
        {"layer_types": ["chunked_attention"] * 2, "num_hidden_layers": 2},
        "kind 'chunked_attention' .* not supp",
    ),
    ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "type 'longrope' are not supported; use .* type default"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not supported"),
    ("gemma2", {"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported"),
    ("gemma2", {"sliding_window": None, "layer_types": None}, "gives no width"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn|score_cap"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported"),
    ("gemma3", {"model_type": "gemma3"}, "'gemma3' is not supported .it reads images too; .* Gemma3ForCausalLM"),
    (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}, "layer_types": SLIDING * 7},
        "type 'linear' in layers with windows are not supported",
    ),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_theta": "x"}}}, "zero or of the wrong type"),
    ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "windows is zero or of the wrong type"),
    ("yarn", {"rope_parameters": {"rope_type": "yarn"}}, "'factor' is missing"),
    ("yarn", {"rope_parameters": YARN | {"beta_fast": 0.5}}, "beta_fast 0.5 must not be below beta_slow 1"),
    ("yarn", {"rope_parameters": YARN | {"rope_theta": 1.0}}, "kind yarn needs a rope_base above 1, not 1"),
    ("mistral", {"model_type": "mixtral"}, "'mixtral' is not supported .it is a mixture of experts"),
]


@pytest.mark.parametrize(("family", "change", "message"), REFUSED)
def test_what_cannot_be_run_is_refused_by_name(family, change, message, tmp_path):
    with pytest.raises(UserError, match=f"config.json: .*{message}"):
        load_hf(changed(family, tmp_path / "model", **change))
