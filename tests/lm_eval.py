"""Small models in the Hugging Face layout with a tokenizer, and tasks of lm-eval on rows made here."""

import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tests.conftest import WORDS

VOCAB = 320
_COMMON = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_LONG = {"num_hidden_layers": 2, "intermediate_size": 44, "max_position_embeddings": 96}
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {"hidden_size": 32, "num_attention_heads": 4}),
    "gpt2": (GPT2Config, GPT2LMHeadModel, {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 96}),
}


def sentence(rng, words=9):
    return " ".join(rng.choices(WORDS, k=words))


def trained_tokenizer(begins):
    """A byte-level BPE. begins: it puts <s> before every text, as Llama's does."""
    rng = random.Random(3)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([sentence(rng) + ".\n" for _ in range(200)], trainer)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def saved_model(family, path, begins=False, seed=0):
    """A random model of transformers with its tokenizer, saved by transformers; returns the folder."""
    config, model_class, shape = MODELS[family]
    torch.manual_seed(seed)
    model = model_class(config(**_COMMON, **({} if family == "gpt2" else _LONG), **shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
            elif name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(path)
    names = {"eos_token": "</s>", "pad_token": "<pad>"} | ({"bos_token": "<s>"} if begins else {})
    PreTrainedTokenizerFast(tokenizer_object=trained_tokenizer(begins), **names).save_pretrained(path)
    return path


def choice_rows(count, seed=0, options=4):
    """Rows with a question, options of one word and of several, and the number of the right one."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        asked = [sentence(rng, rng.choice([1, 1, 2, 4])) for _ in range(options)]
        rows.append({"question": sentence(rng, rng.randint(3, 60)), "options": asked, "label": rng.randrange(options)})
    return rows


def text_rows(count, seed=1):
    rng = random.Random(seed)
    return [{"text": sentence(rng, rng.randint(1, 90))} for _ in range(count)]


def _served(rows):
    return lambda **_: {"test": Dataset.from_list(rows)}


def tasks():
    """Complete tasks of each kind of request: multiple choice, last words, whole texts, and generated texts."""
    choice = {
        "task": "mine_choice",
        "custom_dataset": _served(choice_rows(17)),
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": "options",
        "num_fewshot": 1,
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
    }
    words = {
        "task": "mine_last_word",
        "custom_dataset": _served(text_rows(13)),
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
        "metric_list": [
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
        ],
    }
    rolling = {
        "task": "mine_texts",
        "custom_dataset": _served(text_rows(11, seed=2)),
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [
            {"metric": name, "aggregation": f"weighted_{name}" if "word" in name else name, "higher_is_better": False}
            for name in ("bits_per_byte",)
        ],
    }
    generated = {
        "task": "mine_generated",
        "custom_dataset": _served(choice_rows(9, seed=4)),
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{options[0]}}",
        "generation_kwargs": {"until": ["\n", "the"], "max_gen_toks": 20, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    return [choice, words, rolling, generated]
