"""GGUF files: logits of transformers' dequantized model to 1e-5, the token ids of the original tokenizer, and one
sentence for what cannot be read."""

import json
import sys
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hybridlab import load_hf
from hybridlab.attention.kinds import Full
from hybridlab.data.gguf_tokenizers import SPLITS
from hybridlab.data.tokenizers import end_token, load_tokenizer, make_tokenizer, tokenizer_file
from hybridlab.errors import UserError
from hybridlab.models.gguf import converted
from tests.conftest import ROOT
from tests.contract.test_parity import theirs
from tests.gguf_files import (
    F32,
    Q8_0,
    TEXTS,
    assets,  # noqa: F401
    byte_level_keys,
    sentencepiece_ids,
    sentencepiece_keys,
    trained,
    with_added,
    write_gguf,
)

pytestmark = pytest.mark.usefixtures("assets")
REAL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 128}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
WINDOWS = {"sliding_window": 8, "query_pre_attn_scalar": 32, "head_dim": 32}
CASES = {
    "llama": (LlamaConfig, LlamaForCausalLM, SMALL),
    "llama-wide-heads": (LlamaConfig, LlamaForCausalLM, SMALL | {"head_dim": 32, "rope_theta": 500.0}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, SMALL),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, SMALL | {"head_dim": 32}),
    "phi3": (Phi3Config, Phi3ForCausalLM, SMALL | {"sliding_window": 12, "pad_token_id": 0}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, SMALL | WINDOWS | {"attn_logit_softcapping": 20.0}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, SMALL | WINDOWS | {"num_hidden_layers": 7}),
    "gpt2": (GPT2Config, GPT2LMHeadModel, {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64}),
}


SLIDING = "sliding_attention"
PATTERN = [SLIDING, SLIDING, "full_attention", SLIDING, SLIDING, "full_attention", SLIDING]


def model_of(name, tied=True, vocab=None):
    config, model, shape = CASES[name]
    return theirs((name, config, model, shape | {"vocab_size": vocab or sentencepiece_keys()[1]}), tied)


def logits(model, vocab):
    ids = torch.randint(vocab, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_model_that_was_written(name, tmp_path):
    model = model_of(name, tied=name != "qwen2")
    if name == "gemma2":  # transformers before 5.21 leaves its cap out of other kernels
        model.set_attn_implementation("eager")
    keys, vocab = sentencepiece_keys()
    ours = load_hf(write_gguf(tmp_path / "model.gguf", model, keys))
    within = 1e-4 if name.startswith("gemma") else 1e-5  # Gemma's scales are rounded when 1 is added to them
    torch.testing.assert_close(logits(ours, vocab), logits(model, vocab), atol=within, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", [F32, Q8_0, GGMLQuantizationType.Q4_1], ids=lambda kind: kind.name)
def test_logits_are_those_of_the_dequantized_model_of_transformers(name, kind, tmp_path):
    keys, vocab = sentencepiece_keys()
    file = write_gguf(tmp_path / "model.gguf", model_of(name), keys, kind)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    torch.testing.assert_close(logits(load_hf(file), vocab), logits(reference, vocab), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "keys", "settings"),
    [
        ("gemma3", {"attention.sliding_window_pattern": 3}, {"layer_types": PATTERN}),
        ("gemma2", {"attention.sliding_window_pattern": [True, True]}, {"layer_types": [SLIDING] * 2}),
        (
            "gemma3",
            {"rope.freq_base_swa": 50.0},
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 50.0}}},
        ),
    ],
)
def test_other_windows_of_gemma_and_another_base_in_them_are_read(name, keys, settings, tmp_path):
    (config, model, shape), (tokenizer, vocab) = CASES[name], sentencepiece_keys()
    reference = theirs((name, config, model, shape | settings | {"vocab_size": vocab}), True)
    reference.set_attn_implementation("eager")
    usual = load_hf(write_gguf(tmp_path / "usual.gguf", reference, tokenizer))
    ours = load_hf(write_gguf(tmp_path / "model.gguf", reference, tokenizer, change=lambda own: own | keys))
    torch.testing.assert_close(logits(ours, vocab), logits(reference, vocab), atol=1e-4, rtol=1e-5)
    assert (logits(usual, vocab) - logits(ours, vocab)).abs().max() > 1e-3


def test_a_llama_that_is_called_mistral_is_read_as_llama(tmp_path):
    keys, vocab = sentencepiece_keys()
    model = model_of("llama-wide-heads")
    ours = load_hf(write_gguf(tmp_path / "model.gguf", model, keys, name="mistral"))
    torch.testing.assert_close(logits(ours, vocab), logits(model, vocab), atol=1e-5, rtol=1e-5)
    assert set(ours.attention_map.each_kind()) == {Full()}


def test_a_file_is_converted_once_by_its_content(tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "model.gguf", model_of("llama"), sentencepiece_keys()[0])
    folder = converted(file)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    monkeypatch.setitem(sys.modules, "gguf", None)  # a second conversion would need it
    (tmp_path / "other").mkdir()
    assert converted(file) == converted(Path(file).rename(tmp_path / "other" / "model.gguf")) == folder
    assert load_hf(tmp_path / "other").shape.layers == 2, "a folder with one GGUF file"
    # Its tokenizer is found by the digest, wherever the file lies.
    assert tokenizer_file(f"gguf:{folder.parent.name[:16]}") == folder / "tokenizer.json"
    assert tokenizer_file("gguf:0123456789abcdef") is None
    with pytest.raises(UserError, match="no GGUF file with this SHA-256 was opened here"):
        make_tokenizer("gguf:0123456789abcdef", [])


# ---- tokenizers ----


def original(pre):
    """The parts of the tokenizer.json of a model with this split: normalizer, pre-tokenizer, ignore_merges."""
    whole, text = pre_tokenizers.ByteLevel(add_prefix_space=False), None
    if pre == "gpt-2":
        return text, whole, False
    if pre == "smollm":
        return text, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole]), False
    regex = {
        "qwen2": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"""
        r"""|\s+(?!\S)|\s+""",
        "llama-bpe": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"""
        r"""\s*[\r\n]+|\s+(?!\S)|\s+""",
        "tekken": r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"""
        r"""[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"""
        r"""\s+(?!\S)|\s+""",
    }
    regex["gpt-4o"] = (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
        r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
    )
    parts = [pre_tokenizers.Split(Regex(regex[pre]), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    if pre == "qwen2":
        text = normalizers.NFC()
    return text, pre_tokenizers.Sequence(parts), pre in ("llama-bpe", "tekken")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o"])
def test_token_ids_are_those_of_the_original_byte_level_tokenizer(pre, tmp_path):
    wanted = Tokenizer(models.BPE())
    normalizer, split, whole = original(pre)
    if normalizer is not None:
        wanted.normalizer = normalizer
    wanted.pre_tokenizer = split
    vocabulary, merges = trained(wanted)
    wanted.model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole)
    wanted = with_added(wanted)
    keys, rows = byte_level_keys(vocabulary, merges, pre, **{"ggml.add_bos_token": False})
    file = write_gguf(tmp_path / "model.gguf", model_of("llama", vocab=rows), keys)
    tokenizer = load_tokenizer(converted(file))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == wanted.encode(text).ids, text
        if pre != "qwen2":  # NFC changes the text
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.id_to_token(end_token(tokenizer, converted(file) / "tokenizer.json")) == "<|im_end|>"
    assert tokenizer.get_vocab_size() == rows - 2, "rows without a token are not in the vocabulary"


@pytest.mark.parametrize("spaces", [True, False])
def test_token_ids_are_those_of_sentencepiece(spaces, tmp_path):
    keys, _ = sentencepiece_keys(spaces)
    file = write_gguf(tmp_path / "model.gguf", model_of("llama"), keys)
    tokenizer = load_tokenizer(converted(file))
    for text in TEXTS:
        plain = text.replace("</s>", "")
        ids = tokenizer.encode(plain, add_special_tokens=False).ids
        assert ids == sentencepiece_ids(keys, plain), plain
        assert tokenizer.decode(ids) == plain
    assert tokenizer.encode("a</s>", add_special_tokens=False).ids[-1] == 2


def test_special_tokens_of_phi3_swallow_the_white_space_after_them(tmp_path):
    keys = sentencepiece_keys()[0]
    for name, swallows in (("phi3", True), ("llama", False)):
        tokenizer = load_tokenizer(converted(write_gguf(tmp_path / f"{name}.gguf", model_of(name), keys)))
        for token, has in (("<s>", False), ("</s>", swallows)):
            texts = (f"{token}the", f"{token}\nthe")
            plain, spaced = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
            assert (plain == spaced) == has, (name, token)


@pytest.mark.parametrize("adds", [None, True, False])
def test_special_tokens_and_the_chat_template_are_kept(adds, tmp_path):
    from transformers import AutoTokenizer

    keys = sentencepiece_keys()[0] | {"ggml.eot_token_id": 5} | ({} if adds is None else {"ggml.add_bos_token": adds})
    folder = converted(write_gguf(tmp_path / "model.gguf", model_of("llama"), keys))
    begins = adds is not False  # what SentencePiece does where nothing is said
    assert (load_tokenizer(folder).encode("the").ids[0] == 1) == begins
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer("the").input_ids[0] == 1) == begins
    names = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.pad_token)
    assert names == ("<s>", "</s>", "<unk>", None)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "<s>a</s>"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 5]


# ---- what cannot be read ----


def refused(path, *parts):
    with pytest.raises(UserError) as told:
        load_hf(path)
    message = str(told.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_no_file_and_files_of_something_else(tmp_path):
    refused(tmp_path / "none.gguf", "none.gguf: it cannot be read (No such file", "hub:OWNER/NAME/FILE.gguf")
    for content, reason in [(b"", "it is empty"), (b"PK\3\4zip", "begins with b'PK"), (b"GGUF", "ends too early")]:
        (tmp_path / "bad.gguf").write_bytes(content)
        refused(tmp_path / "bad.gguf", "bad.gguf: this ", reason, "fetch it again")
    (tmp_path / "bad.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    refused(tmp_path / "bad.gguf", "pointer of git-lfs")
    (tmp_path / "more.gguf").touch()
    refused(tmp_path, "it holds 2 GGUF files; name one of them, such as", "bad.gguf")


def test_a_file_that_is_cut(tmp_path):
    content = write_gguf(tmp_path / "model.gguf", model_of("llama"), sentencepiece_keys()[0]).read_bytes()
    for share in (0.001, 0.01, 0.1, 0.5, 0.999):
        (tmp_path / "cut.gguf").write_bytes(content[: int(share * len(content))])
        refused(tmp_path / "cut.gguf", "cut.gguf: this GGUF file cannot be read (it ends too early")


def test_versions_and_quantizations_that_are_unknown(tmp_path):
    content = write_gguf(tmp_path / "model.gguf", model_of("llama"), sentencepiece_keys()[0]).read_bytes()
    (tmp_path / "bad.gguf").write_bytes(content[:4] + b"\x09" + content[5:])
    refused(tmp_path / "bad.gguf", "cannot be read", "version 9")
    at = content.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    for number, reason in ((99, "quantized in a way that the package gguf does not know"), (26, "is quantized as I32")):
        (tmp_path / "bad.gguf").write_bytes(content[:at] + bytes([number]) + content[at + 1 :])
        refused(tmp_path / "bad.gguf", reason)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope.scaling.type": "yarn"}, "llama.rope.scaling.type = 'yarn' is not read from GGUF files"),
        ({"rope.scaling.factor": 4.0}, "llama.rope.scaling.factor = 4.0 is not read"),
        ({"expert_count": 8}, "llama.expert_count = 8 is not read"),
        ({"attention.sliding_window": 9}, "llama.attention.sliding_window = 9 is not supported"),
        ({"rope.dimension_count": 8}, "llama.rope.dimension_count = 8 is not supported; it must be 16"),
        ({"block_count": 3}, "it has no tensor blk.2."),
        ({"embedding_length": 60}, "has the sizes"),
    ],
)
def test_settings_that_would_be_read_wrongly(change, message, tmp_path):
    keys = sentencepiece_keys()[0]
    refused(write_gguf(tmp_path / "m.gguf", model_of("llama"), keys, change=lambda own: own | change), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention.sliding_window_pattern": [True]}, "sliding_window_pattern = [True] does not fit its 2 layers"),
        ({"attention.sliding_window_pattern": 0}, "gemma2.attention.sliding_window_pattern = 0 does not fit"),
        ({"rope.freq_base_swa": 50.0}, "gemma2.rope.freq_base_swa = 50.0 is not supported"),
    ],
)
def test_windows_of_gemma_that_cannot_be(change, message, tmp_path):
    keys = sentencepiece_keys()[0]
    refused(write_gguf(tmp_path / "m.gguf", model_of("gemma2"), keys, change=lambda own: own | change), message)


def test_tensors_that_are_missing_or_would_be_left_out(tmp_path):
    keys, model = sentencepiece_keys()[0], model_of("llama")
    refused(write_gguf(tmp_path / "a.gguf", model, keys, left_out=["blk.1.ffn_up.weight"]), "no tensor blk.1.ffn_up")
    refused(write_gguf(tmp_path / "b.gguf", model, keys, more=["rope_freqs.weight"]), "its tensor rope_freqs.weight")


def test_other_architectures_and_tokenizers(tmp_path):
    from gguf import GGUFWriter

    for name in ("mamba", "nonsense"):
        writer = GGUFWriter(tmp_path / f"{name}.gguf", name)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        refused(tmp_path / f"{name}.gguf", f"architecture '{name}' is not supported", "llama, phi3, qwen2, qwen3")
    vocabulary, merges = {"a": 0, "b": 1, "ab": 2}, [("a", "b")]
    for pre in ("deepseek-llm", "new"):
        keys, rows = byte_level_keys(vocabulary, merges, pre)
        file = write_gguf(tmp_path / "m.gguf", model_of("llama", vocab=rows), keys)
        refused(file, f"(tokenizer.ggml.pre) is '{pre}'", ", ".join(SPLITS))
    refused(
        write_gguf(tmp_path / "m.gguf", model_of("llama"), {"ggml.model": "bert"}), "(tokenizer.ggml.model) is 'bert'"
    )
    broken = sentencepiece_keys()[0] | {"ggml.eos_token_id": 10**6}
    refused(write_gguf(tmp_path / "m.gguf", model_of("llama"), broken), "m.gguf: it cannot be converted (IndexError")


def test_a_missing_package_is_named_with_what_to_install(tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf", model_of("llama"), sentencepiece_keys()[0])
    monkeypatch.setattr("hybridlab.models.gguf.find_spec", lambda name: None if name == "accelerate" else name)
    refused(file, "GGUF files need accelerate, which is not installed; pip install 'hybridlab[gguf]'")


# ---- a real model: `make pretrained-model` ----


@pytest.mark.long
@pytest.mark.skipif(not REAL.is_file(), reason="needs `make pretrained-model`")
def test_smollm_splits_digits_and_ends_answers_as_its_original():
    from hybridlab.data.gguf_tokenizers import gguf_tokenizer_files
    from hybridlab.models.gguf import _opened

    metadata = {key: field.contents() for key, field in _opened(REAL).fields.items()}
    tokenizer = Tokenizer.from_str(gguf_tokenizer_files(metadata, str(REAL))["tokenizer.json"])
    assert tokenizer.encode("In 2024, café").tokens == ["In", "Ġ", "2", "0", "2", "4", ",", "ĠcafÃ©"]
    assert tokenizer.encode("<|im_start|>user\n12<|im_end|>").ids == [1, 4093, 198, 33, 34, 2]
