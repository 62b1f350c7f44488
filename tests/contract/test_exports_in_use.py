"""What users of transformers do with an exported model: adapters, quantisation, more tokens, hidden states, padding.

Each is tried on models that differ in what matters here: windows, heads that loop, loops over chunks, refined messages,
heads that are left out, encoders, tied and own tables, heads that give classes.
"""

import copy
import inspect

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import AutoModel, DynamicCache, Trainer, TrainingArguments

from hybridlab import load_checkpoint
from tests.combinations import some
from tests.contract.test_architectures import PLANS, build
from tests.contract.test_export import AUTO, CLASSES, SPANS, VOCAB, byte, exported, shaken  # noqa: F401
from tests.models import padding_mask, random_ids, with_output

LAYERS = ["q", "k", "v", "o", "gate", "up", "down"]


def decoder(arch, plan="plain", **shape):
    model = build(arch, "auto", vocab=VOCAB, **shape)
    return shaken(model.with_plan(PLANS[plan](model.plan)))


MODELS = {
    "windows": lambda: decoder("rule-swa"),
    "windows, own table": lambda: decoder("rule-swa", tied_embeddings=False),
    "head loop": lambda: decoder("vanilla", "head loop"),
    "dropped heads": lambda: decoder("vanilla", "dropped heads"),
    "block loop": lambda: decoder("block-loop"),
    "chunks": lambda: decoder("spiral-b"),
    "refined": lambda: decoder("saobp-high"),
    "gpt2": lambda: decoder("rule-swa", family="gpt2", max_positions=128),
    "encoder": lambda: decoder("bert", "head loop"),
    "encoder, own table": lambda: decoder("bert", "dropped heads", tied_embeddings=False),
}
HEADS = {
    "classes": lambda: shaken(with_output(MODELS["windows"](), CLASSES)),
    "classes of an encoder": lambda: shaken(with_output(MODELS["encoder"](), CLASSES)),
    "spans": lambda: shaken(with_output(MODELS["encoder"](), SPANS)),
}
FULL = pytest.mark.full
DECODERS = [name for name in MODELS if "encoder" not in name]
every = pytest.mark.parametrize("name", some(MODELS, "head loop", "encoder, own table", rest=FULL))
every_head = pytest.mark.parametrize(
    "name", some([*MODELS, *HEADS], "windows, own table", "chunks", "encoder", "classes", rest=FULL)
)
every_decoder = pytest.mark.parametrize("name", some(DECODERS, "head loop", "chunks", rest=FULL))


@pytest.fixture
def opened(tmp_path, byte):  # noqa: F811
    """name → (our model, the one that transformers loads)."""

    def open_one(name):
        ours = (MODELS | HEADS)[name]()
        return ours, exported(ours, tmp_path / "out", byte)[1]

    return open_one


def again(theirs, folder):
    """A model that was saved and opened again."""
    theirs.save_pretrained(folder)
    return type(theirs).from_pretrained(folder).eval()


def first(output):
    return next(output[key] for key in ("logits", "start_logits") if key in output)


# ---- adapters ----


@pytest.mark.long
@pytest.mark.parametrize("name", ["windows", "head loop", "dropped heads", "chunks", "encoder"])
def test_adapters_are_trained_by_the_trainer_merged_saved_and_opened(name, opened, tmp_path):
    _, theirs = opened(name)
    tokens = random_ids(24, rows=8, vocab=VOCAB)
    before = theirs(tokens).logits.detach()
    torch.manual_seed(0)
    wrapped = get_peft_model(theirs, LoraConfig(r=4, target_modules=LAYERS))
    settings = {"max_steps": 6, "learning_rate": 3e-2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    settings |= {"per_device_train_batch_size": 4, "save_strategy": "no", "logging_steps": 1}
    settings |= {"gradient_checkpointing": True}
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(wrapped, TrainingArguments(tmp_path / "trained", **settings), train_dataset=rows)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] - 0.1
    adapters = {name: parameter for name, parameter in wrapped.named_parameters() if "lora_" in name}
    assert all(parameter.requires_grad and parameter.abs().sum() > 0 for parameter in adapters.values())
    wrapped.eval().save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        trained = wrapped(tokens).logits
        reopened = PeftModel.from_pretrained(type(theirs).from_pretrained(tmp_path / "out"), tmp_path / "adapter")
        torch.testing.assert_close(reopened.eval()(tokens).logits, trained, atol=1e-5, rtol=1e-5)
        merged = again(wrapped.merge_and_unload(), tmp_path / "merged")
        torch.testing.assert_close(merged(tokens).logits, trained, atol=1e-4, rtol=1e-4)
        assert (trained - before).abs().max() > 0.1
        ours = load_checkpoint(tmp_path / "merged")
        torch.testing.assert_close(ours(tokens).logits, trained, atol=1e-4, rtol=1e-4)


@every_head
def test_adapters_on_all_linear_layers_get_gradients(name, opened):
    _, theirs = opened(name)
    wrapped, tokens = get_peft_model(theirs, LoraConfig(r=2, target_modules="all-linear")), random_ids(24, vocab=VOCAB)
    for part, parameter in wrapped.named_parameters():
        if "lora_" in part:
            nn.init.normal_(parameter, std=0.2)
    first(wrapped(input_ids=tokens)).square().mean().backward()
    adapters = {part: parameter for part, parameter in wrapped.named_parameters() if "lora_" in part}
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in adapters.values())


@every_decoder
def test_trained_prompts_stand_before_the_tokens(name, opened):
    _, theirs = opened(name)
    wrapped = get_peft_model(theirs, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    tokens = random_ids(20, vocab=VOCAB)
    wrapped(input_ids=tokens, labels=tokens).loss.backward()
    (prompt,) = (parameter for parameter in wrapped.parameters() if parameter.requires_grad)
    assert prompt.shape == (3, theirs.config.hidden_size) and prompt.grad.abs().sum() > 0
    settings = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1, "use_cache": False}
    made = wrapped.eval().generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), **settings)
    with torch.no_grad():
        assert torch.equal(wrapped(input_ids=made[:, :-1]).logits[:, -1].argmax(-1), made[:, -1])


def test_what_stands_in_the_place_of_a_table_runs(opened):
    _, theirs = opened("windows, own table")
    wrapped = get_peft_model(theirs, LoraConfig(r=2, target_modules=["q"], modules_to_save=["embedding", "head"]))
    tokens = random_ids(12, vocab=VOCAB)
    wrapped(input_ids=tokens).logits.square().mean().backward()
    trained = {part: parameter for part, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert {part.split(".")[2] for part in trained} == {"embedding", "head", "blocks"}
    assert all(parameter.grad is not None for parameter in trained.values())


# ---- quantisation ----


def assert_near(found, wanted, within):
    """The same but for rounding, and rounded."""
    assert 0 < (found.float() - wanted).norm() < within * wanted.norm()


@every_head
def test_dynamic_quantisation_of_torch(name, opened):
    _, theirs = opened(name)
    tokens = random_ids(24, vocab=VOCAB)
    for kind, within in ((torch.float16, 1e-2), (torch.qint8, 0.2)):
        small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(theirs), {nn.Linear}, dtype=kind)
        kinds = [type(module).__module__ for module in small.modules()]
        assert sum("quantized" in kind for kind in kinds) >= 4 * theirs.config.num_hidden_layers
        with torch.no_grad():
            assert_near(first(small(tokens)), first(theirs(tokens)), within)


@pytest.mark.parametrize("name", ["windows", "head loop", "chunks", "encoder"])
def test_quantisation_of_torchao(name, opened):
    torchao = pytest.importorskip("torchao.quantization")
    _, theirs = opened(name)
    tokens = random_ids(24, vocab=VOCAB)
    with torch.no_grad():
        wanted = theirs(tokens).logits
        torchao.quantize_(theirs, torchao.Int8WeightOnlyConfig())
        assert_near(theirs(tokens).logits, wanted, 0.1)


@pytest.mark.parametrize("name", ["windows", "head loop", "chunks", "encoder"])
def test_quantisation_of_bitsandbytes(name, opened, tmp_path):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    _, theirs = opened(name)
    settings = BitsAndBytesConfig(load_in_8bit=True)
    small = type(theirs).from_pretrained(tmp_path / "out", quantization_config=settings)
    tokens = random_ids(24, vocab=VOCAB)
    with torch.no_grad():
        assert_near(small(tokens).logits, theirs(tokens).logits, 0.2)


# ---- more tokens ----


@every_head
def test_a_model_gets_more_tokens(name, opened, tmp_path):
    ours, theirs = opened(name)
    tokens = random_ids(20, vocab=VOCAB)
    with torch.no_grad():
        before = first(theirs(tokens))
        theirs.resize_token_embeddings(VOCAB + 7)
        after = first(theirs(tokens))
    gives = ours.shape.gives_tokens
    torch.testing.assert_close(after[..., :VOCAB] if gives else after, before)
    assert theirs.config.vocab_size == VOCAB + 7 and after.shape[-1] == before.shape[-1] + 7 * gives
    more = random_ids(20, vocab=VOCAB + 7, seed=3)
    more[0, :7] = torch.arange(VOCAB, VOCAB + 7)
    if gives:
        assert theirs(more, labels=more).loss.isfinite()
    if ours.structure.caches:
        assert theirs.generate(more, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 23)
    if gives:
        tied = theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
        assert tied == ours.shape.tied_embeddings
    with torch.no_grad():
        wanted = first(theirs(more))
        torch.testing.assert_close(first(again(theirs, tmp_path / "more")(more)), wanted)
        found = load_checkpoint(tmp_path / "more")(more).logits
        torch.testing.assert_close(found if name != "spans" else found[..., 0], wanted)


@every
def test_the_output_table(name, opened):
    ours, theirs = opened(name)
    layer, tokens = theirs.get_output_embeddings(), random_ids(12, vocab=VOCAB)
    assert torch.equal(layer.weight, ours.output_table)
    with torch.no_grad():
        seen = theirs(tokens, output_hidden_states=True)
        torch.testing.assert_close(layer(seen.hidden_states[-1]), seen.logits)


# ---- what a pass takes and gives ----


def moved(tokens, lengths):
    """Rows with their padding on the right, with it on the left, and the mask of the latter."""
    width = tokens.shape[1]
    left = torch.stack([row.roll(width - n) for row, n in zip(tokens, lengths, strict=True)])
    return left, padding_mask(lengths).flip(1).long()


@every_head
def test_padding_may_stand_on_the_left(name, opened):
    ours, theirs = opened(name)
    tokens, lengths = random_ids(24, rows=3, vocab=VOCAB), [24, 11, 3]
    left, mask = moved(tokens, lengths)
    with torch.no_grad():
        wanted = ours(tokens, attention_mask=padding_mask(lengths)).logits
        found = first(theirs(left, attention_mask=mask))
    for row, length in enumerate(lengths):
        if wanted.dim() == 2:
            torch.testing.assert_close(found[row], wanted[row], atol=1e-5, rtol=1e-5)
        else:
            own = wanted[row, :length, 0] if name == "spans" else wanted[row, :length]
            torch.testing.assert_close(found[row, 24 - length :], own, atol=1e-5, rtol=1e-5)


@every_head
def test_hidden_states_are_those_of_the_plan(name, opened):
    ours, theirs = opened(name)
    tokens, lengths = random_ids(24, rows=2, vocab=VOCAB), [24, 11]
    left, mask = moved(tokens, lengths)
    with torch.no_grad():
        seen = theirs(left, attention_mask=mask, output_hidden_states=True)
        alone = theirs(tokens[1:, :11], output_hidden_states=True).hidden_states
        plain = theirs(left, attention_mask=mask)
    assert len(seen.hidden_states) == len(ours.plan.visits) + 1 and plain.hidden_states is None
    for both, one in zip(seen.hidden_states, alone, strict=True):
        torch.testing.assert_close(both[1, 13:], one[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(first(seen), first(plain))
    if name in ("windows", "encoder"):
        cut = ours.with_plan(type(ours.plan)(ours.plan.visits[:2], ours.plan.num_layers, ours.plan.parallel))
        with torch.no_grad():
            kept = cut.final_norm(seen.hidden_states[2][:1])
            torch.testing.assert_close(cut.head(kept, None, cut.embedding.weight), cut(tokens[:1]).logits)


@every_head
def test_attention_weights_are_between_columns(name, opened):
    ours, theirs = opened(name)
    tokens, lengths = random_ids(24, rows=2, vocab=VOCAB), [24, 11]
    left, mask = moved(tokens, lengths)
    if name == "chunks":
        with pytest.raises(ValueError, match="chunks attend, not tokens"):
            theirs(left, output_attentions=True)
        return
    with torch.no_grad():
        found = theirs(left, attention_mask=mask, output_attentions=True).attentions
        wanted = ours(tokens, attention_mask=padding_mask(lengths), need="full").attention
    assert len(found) == len(list(ours.structure.attention_places()))
    for theirs_of, ours_of in zip(found, wanted.values(), strict=True):
        torch.testing.assert_close(theirs_of[1, :, 13:, 13:], ours_of[1, :, :11, :11], atol=1e-5, rtol=1e-5)


@every_head
def test_embeddings_may_be_given_in_place_of_tokens(name, opened):
    ours, theirs = opened(name)
    tokens, mask = random_ids(24, rows=2, vocab=VOCAB), padding_mask([24, 11]).flip(1).long()
    with torch.no_grad():
        rows = theirs.get_input_embeddings()(tokens)
        torch.testing.assert_close(
            first(theirs(inputs_embeds=rows, attention_mask=mask)), first(theirs(tokens, attention_mask=mask))
        )
        for both in ({}, {"input_ids": tokens, "inputs_embeds": rows}):
            with pytest.raises(ValueError, match="one of the two"):
                theirs(**both)
    if ours.structure.caches:
        settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
        made = theirs.generate(inputs_embeds=rows, **settings)
        assert torch.equal(made, theirs.generate(tokens, **settings)[:, 24:])


@every_head
def test_positions_may_be_given(name, opened):
    ours, theirs = opened(name)
    tokens, mask = random_ids(24, rows=2, vocab=VOCAB), padding_mask([24, 11]).flip(1).long()
    own = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        wanted = first(theirs(tokens, attention_mask=mask))
        torch.testing.assert_close(first(theirs(tokens, attention_mask=mask, position_ids=own)), wanted)
        if name == "chunks":
            with pytest.raises(Exception, match="leave out position_ids"):
                theirs(tokens, position_ids=torch.arange(24)[None] * 2)
            return
        stretched = torch.arange(24)[None] * 2
        found = first(theirs(tokens, position_ids=stretched))
        expected = ours(tokens, position_ids=stretched[0]).logits
        torch.testing.assert_close(found, expected[..., 0] if name == "spans" else expected, atol=1e-5, rtol=1e-5)
        assert (found - first(theirs(tokens))).abs().max() > 1e-4
        if ours.structure.caches:
            with pytest.raises(Exception, match="do not work with a cache"):
                theirs(tokens, position_ids=stretched, use_cache=True)


@every_head
def test_gradients_are_the_same_with_checkpointing(name, opened):
    _, theirs = opened(name)
    tokens = random_ids(20, vocab=VOCAB)
    found, runs = [], []
    theirs.blocks[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    for enable in (False, True):
        (theirs.gradient_checkpointing_enable if enable else theirs.gradient_checkpointing_disable)()
        theirs.train().zero_grad()
        runs.append(0)
        first(theirs(tokens)).square().mean().backward()
        found.append({part: parameter.grad.clone() for part, parameter in theirs.named_parameters()})
    torch.testing.assert_close(*found)
    once = runs.index(0, 1) - 1
    assert len(runs) - 2 - once == 2 * once, "each visit runs twice"
    if "cache" in inspect.signature(theirs.forward).parameters:
        with pytest.raises(ValueError, match="give use_cache=False"):
            theirs(tokens, use_cache=True)


@every_head
def test_the_model_without_its_head(name, opened, tmp_path):
    ours, theirs = opened(name)
    base = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokens = random_ids(20, vocab=VOCAB)
    with torch.no_grad():
        state = base(tokens).last_hidden_state
        seen = theirs(tokens, output_hidden_states=True)
        assert torch.equal(state, seen.hidden_states[-1])
        kept = again(base, tmp_path / "base")(tokens).last_hidden_state
    assert torch.equal(state, kept)
    assert not any(part.startswith("head") for part, _ in base.named_parameters())


@every_decoder
def test_decoding_that_goes_back_is_refused(name, opened):
    _, theirs = opened(name)
    tokens = random_ids(20, rows=1, vocab=VOCAB)
    for settings in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": theirs}):
        with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
            theirs.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0, **settings)
    with pytest.raises(ValueError, match="a cache of its own"):
        theirs(tokens, cache=DynamicCache())


def test_all_layers_are_recomputed_or_none(opened):
    _, theirs = opened("windows")
    if not hasattr(theirs, "activation_checkpointing_enable"):
        pytest.skip("transformers has it since 5.23")
    with pytest.raises(ValueError, match="every_n_layers 2: this model recomputes every layer"):
        theirs.activation_checkpointing_enable(every_n_layers=2)
