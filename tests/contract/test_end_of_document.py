"""A document ends, and generation stops, at the tokens that stand beside a tokenizer, as in transformers."""

import json

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import hybridlab
from hybridlab import UserError
from hybridlab.config.loading import Layer, check
from hybridlab.config.schema import Data
from hybridlab.data.finetune.corpus import frame_of
from hybridlab.data.preparing import corpus_for
from hybridlab.data.tokenizers import end_token, make_tokenizer
from hybridlab.evaluation.lm_eval_model import special_tokens_of
from hybridlab.runs.generate import Prompt, continue_prompts
from hybridlab.training.store.folders import Runs
from tests.conftest import SMALL_SHAPE
from tests.training import train

WORDS = [f"w{number}" for number in range(10)]
USUAL = ("<pad>", "<eos>", "<bos>", "</s>")
PHI = ("<unk>", "<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>")
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
AS_OBJECT = {"__type": "AddedToken", "content": "<eos>", "lstrip": False, "normalized": False, "rstrip": False}
CASES = {
    # special tokens, tokenizer_config.json, special_tokens_map.json, where generation stops by the files of the model,
    # and the token that ends a document
    "text": (USUAL, {"eos_token": "<eos>"}, None, {}, "<eos>"),
    "object": (USUAL, {"eos_token": AS_OBJECT}, None, {}, "<eos>"),
    "map": (USUAL, {}, {"eos_token": AS_OBJECT}, {}, "<eos>"),
    "map-first": (USUAL, {"eos_token": "</s>"}, {"eos_token": "<eos>"}, {}, "<eos>"),
    "generation": (USUAL, None, None, {"generation_config.json": "<eos>"}, "<eos>"),
    "config": (USUAL, None, None, {"config.json": ["<eos>", "</s>"]}, "<eos>"),
    "both": (USUAL, {"eos_token": "</s>"}, None, {"config.json": "<bos>", "generation_config.json": "<eos>"}, "</s>"),
    "phi": (PHI, {"eos_token": "<|endoftext|>"}, None, {"generation_config.json": ["<|end|>"]}, "<|endoftext|>"),
    "deepseek": (DEEPSEEK, {"eos_token": DEEPSEEK[1]}, None, {"config.json": DEEPSEEK[1]}, DEEPSEEK[1]),
    "llama3": (LLAMA3, {"eos_token": "<|eot_id|>"}, None, {"generation_config.json": [*LLAMA3[1:]]}, "<|eot_id|>"),
    "nothing": (USUAL, None, None, {}, "</s>"),
}


def tokenizer_with(special):
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken(name, special=True) for name in special])
    return words


def folder_of(case, path, model=True):
    """A folder of transformers whose model says after each token the one with the next id."""
    from transformers import LlamaConfig, LlamaForCausalLM

    special, config, older, stops, _ = CASES[case]
    tokenizer = tokenizer_with(special)
    size = tokenizer.get_vocab_size()
    sizes = {"hidden_size": 2 * size, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    none = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
    theirs = LlamaForCausalLM(LlamaConfig(vocab_size=size, **sizes, **none, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        for parameter in theirs.model.layers.parameters():
            parameter.zero_()
        theirs.model.embed_tokens.weight.copy_(torch.eye(size, 2 * size))
        theirs.lm_head.weight.copy_(torch.eye(size, 2 * size).roll(1, 0))
    theirs.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", older)):
        if content is not None:
            (path / name).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **content}))
    (path / "special_tokens_map.json").is_file() and (path / "special_tokens_map.json").write_text(json.dumps(older))
    for name, tokens in stops.items():
        there = json.loads((path / name).read_text()) if (path / name).is_file() else {}
        ids = [tokenizer.token_to_id(t) for t in ([tokens] if isinstance(tokens, str) else tokens)]
        (path / name).write_text(json.dumps(there | {"eos_token_id": ids if isinstance(tokens, list) else ids[0]}))
    return path, tokenizer


def data_of(tokenizer, path):
    path.write_text("".join(json.dumps({"text": "w1 w2 w3 w4 w5"}) + "\n" for _ in range(400)))
    return check(Data, Layer({"source": f"jsonl:{path}", "tokenizer": f"file:{tokenizer}"}))


@pytest.mark.parametrize("case", CASES)
def test_documents_end_with_the_stated_token_and_generation_stops_as_in_transformers(case, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, tokenizer = folder_of(case, tmp_path / "model")
    end = tokenizer.token_to_id(CASES[case][4])
    if CASES[case][1] is not None:
        assert AutoTokenizer.from_pretrained(folder).eos_token_id == end
    file = folder / "tokenizer.json"
    assert end_token(tokenizer, file) == special_tokens_of(folder, tokenizer).end == end
    assert frame_of(tokenizer, True, file).between == end
    corpus = corpus_for(data_of(folder, tmp_path / "a.jsonl"), tmp_path / "cache")
    tokens = np.concatenate([*corpus.train, *corpus.validation])
    assert corpus.meta["tokenizer"]["end"] == end and (tokens == end).sum() == 400 == (tokens >= 10).sum()
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    made = theirs.generate(torch.tensor([[8]]), max_new_tokens=5, do_sample=False)[0, 1:].tolist()
    (ours,) = continue_prompts(str(folder), Runs(tmp_path), [Prompt("w8", "here")], 5, 1)
    # transformers does not know where to stop if only the tokenizer says it, and we do.
    stops = CASES[case][3] or tokenizer.id_to_token(end) not in [tokenizer.id_to_token(token) for token in made]
    assert ours.new_tokens == (len(made) if stops else made.index(end) + 1)


@pytest.mark.parametrize("case", ["map", "config", "both", "llama3"])
def test_a_run_keeps_what_it_was_stated_and_so_does_its_export(case, small, tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    folder, tokenizer = folder_of(case, tmp_path / "model")
    end = tokenizer.token_to_id(CASES[case][4])
    named = CASES[case][3].get("generation_config.json", CASES[case][3].get("config.json", []))
    stops = {end, *(tokenizer.token_to_id(name) for name in ([named] if isinstance(named, str) else named))}
    data = data_of(folder, tmp_path / "a.jsonl").model_dump(exclude_none=True)
    config = small(shape={**SMALL_SHAPE, "vocab": 16}, data=data, training={"steps": 2})
    runs = tmp_path / "runs"

    train(config, runs / "a", runs)
    final = runs / "a" / "final"
    assert special_tokens_of(final, tokenizer).end == end and special_tokens_of(final, tokenizer).ends == stops
    hybridlab.export_hf(runs / "a", tmp_path / "out", runs_dir=runs, quiet=True)
    stated = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert set([stated] if isinstance(stated, int) else stated) == stops
    if CASES[case][1] is None or "eos_token" in CASES[case][1]:
        assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token_id == end


def test_another_stated_token_prepares_other_data_and_the_same_finds_it_again(tmp_path):
    folder, tokenizer = folder_of("text", tmp_path / "model")
    data = data_of(folder, tmp_path / "a.jsonl")
    first = corpus_for(data, tmp_path / "cache")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<bos>"}))
    other = corpus_for(data, tmp_path / "cache")
    assert other.meta["tokenizer"]["end"] == tokenizer.token_to_id("<bos>") != first.meta["tokenizer"]["end"]
    assert corpus_for(data, tmp_path / "cache").folder == other.folder != first.folder


def test_a_stated_token_that_the_tokenizer_lacks_is_one_sentence(tmp_path):
    tokenizer = tokenizer_with(USUAL)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<stop>"}')
    with pytest.raises(UserError, match="it has no token '<stop>', which the files beside it name as eos_token"):
        end_token(tokenizer, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="no end-of-document token; state it as eos_token in a tokenizer_config.json"):
        end_token(tokenizer_with(["<stop>"]), tmp_path / "tokenizer.json")


def test_an_ordinary_token_that_a_configuration_has_by_default_ends_no_document(tmp_path):
    made = make_tokenizer("byte", ())
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    assert end_token(made, tmp_path / "tokenizer.json") == made.token_to_id("<|end|>")
