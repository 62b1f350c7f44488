"""Small GGUF files, as the converter of llama.cpp writes them, and the algorithm of SentencePiece."""

import json
from itertools import pairwise

import numpy as np
import pytest
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from tokenizers import AddedToken, Tokenizer, models, trainers

from tests.conftest import WORDS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
TEXTS = [
    "In 2024, 12345 cats sat; 3.14 isn't 22/7.",
    "  two spaces\n\n\tand a tab \r\n end ",
    "Café, naïve, 東京 で 100％, Ελλάδα 😀 e\u0301",
    "<|im_start|>user\nthe cat<|im_end|>\n<think> 7 </s>",
    "I'LL we'Ve THE CamelCase HTTPServer x=y+1; //a\n/b",
    "",
    " ",
    "1",
]
F32, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """An empty folder for the converted files of a test."""
    for module in ("utils._cache_assets", "constants"):
        monkeypatch.setattr(f"huggingface_hub.{module}.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    return tmp_path / "assets"


def write_gguf(path, model, tokenizer, kind=F32, change=lambda keys: keys, left_out=(), more=(), name=None):
    """Write a model of transformers as a GGUF file. tokenizer: the keys after `tokenizer.`. kind: of the matrices whose
    rows can be quantized. change: of the keys of the model. left_out: names of tensors. more: names of further ones.
    name: `general.name`."""
    config = model.config
    architecture = config.model_type.removesuffix("_text")
    writer = GGUFWriter(path, architecture)
    if name is not None:
        writer.add_name(name)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", 4 * config.hidden_size),
        "attention.head_count": config.num_attention_heads,
    }
    if architecture == "gpt2":
        keys["attention.layer_norm_epsilon"] = config.layer_norm_epsilon
    else:
        keys["attention.head_count_kv"] = config.num_key_value_heads
        keys["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
        rope = config.rope_parameters
        keys["rope.freq_base"] = rope.get("full_attention", rope)["rope_theta"]
        keys |= {"attention.key_length": width, "attention.value_length": width}
    if architecture in ("llama", "phi3"):
        keys["rope.dimension_count"] = width
    for name in ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
        if architecture in ("gemma2", "gemma3", "phi3") and getattr(config, name.rpartition(".")[2], None) is not None:
            keys[name] = getattr(config, name.rpartition(".")[2])
    everything = {f"{architecture}.{name}": value for name, value in change(keys).items()}
    for key, value in {**everything, **{f"tokenizer.{name}": value for name, value in tokenizer.items()}}.items():
        _add(writer, key, value)
    names = get_tensor_name_map({v: k for k, v in MODEL_ARCH_NAMES.items()}[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stem, _, ending = name.rpartition(".")
        theirs = f"{names.get_name(stem)}.{ending}"
        if theirs in left_out or (theirs == "output.weight" and config.tie_word_embeddings):
            continue
        array = _as_llama_cpp(theirs, tensor.numpy().astype(np.float32), config, architecture)
        quantized = array.ndim == 2 and array.shape[1] % 32 == 0 and kind != F32
        writer.add_tensor(theirs, quantize(array, kind) if quantized else array, raw_dtype=kind if quantized else None)
    for name in more:
        writer.add_tensor(name, np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer, name, value):
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(name, value)


def _as_llama_cpp(name, array, config, architecture):
    """A tensor as llama.cpp has it: Llama's rotary pairs side by side, Gemma's scales plus 1, GPT-2's outputs first."""
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    inputs_first = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return np.ascontiguousarray(array.T) if architecture == "gpt2" and name.endswith(inputs_first) else array


def trained(original):
    """Tokens and merges of a byte-level tokenizer that is trained on `TEXTS` with the normalizer and the split of
    another one."""
    new = Tokenizer(models.BPE())
    new.normalizer, new.pre_tokenizer = original.normalizer, original.pre_tokenizer
    alphabet = sorted(_alphabet())
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    new.train_from_iterator([*TEXTS, " ".join(WORDS), "2024 12345 100 22 cats isn't user"] * 5, trainer)
    model = json.loads(new.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def _alphabet():
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def byte_level_keys(vocabulary, merges, pre, special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), **more):
    """The keys of a byte-level tokenizer with special tokens, `<think>`, and two rows of the embedding without a token;
    and the number of rows."""
    tokens = [*sorted(vocabulary, key=vocabulary.get), *special, "<think>", "[PAD1]", "[PAD2]"]
    types = [NORMAL] * len(vocabulary) + [CONTROL] * len(special) + [USER_DEFINED, UNUSED, UNUSED]
    first = len(vocabulary)
    keys = {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": types,
        "ggml.merges": [" ".join(merge) for merge in merges],
        "ggml.eos_token_id": first + 2,
        "ggml.bos_token_id": first + 1,
        "ggml.padding_token_id": first,
    }
    return keys | more, len(tokens)


def with_added(original):
    """The original with the added tokens of `byte_level_keys`."""
    special = [AddedToken(t, special=True, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    original.add_special_tokens(special)
    original.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return original


def sentencepiece_keys(spaces=True):
    """The keys of a tokenizer in SentencePiece's way, and the number of tokens. spaces: one goes before a text."""
    new = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=160, show_progress=False)
    new.train_from_iterator(["▁" + text.replace(" ", "▁") for text in [*TEXTS[:2], " ".join(WORDS)] * 5], trainer)
    model = json.loads(new.to_str())["model"]
    merged = ["".join(merge) for merge in model["merges"]]
    letters = [token for token in model["vocab"] if token not in set(merged)]
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *merged, *letters]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(merged) + len(letters))]
    keys = {
        "ggml.model": "llama",
        "ggml.pre": "default",
        "ggml.tokens": tokens,
        "ggml.scores": [0.0] * 259 + [-float(number) for number in range(len(merged) + len(letters))],
        "ggml.token_type": types,
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
        "ggml.add_space_prefix": spaces,
        "chat_template": "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}",
    }
    return keys, len(tokens)


def sentencepiece_ids(keys, text):
    """As llama.cpp: of all neighbours that make a token, those with the highest score, the first ones, are merged."""
    ids = {token: number for number, token in enumerate(keys["ggml.tokens"])}
    parts = list((" " * keys["ggml.add_space_prefix"] + text).replace(" ", "▁")) if text else []
    while True:
        both = enumerate(a + b for a, b in pairwise(parts))
        pairs = [(keys["ggml.scores"][ids[token]], -place) for place, token in both if token in ids]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [n for part in parts for n in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])]
