"""Attention entropy: its range, padding, packing, windows, groups, and against transformers' eager attention."""

import math

import pytest
import torch

import hybridlab
from hybridlab.analysis.entropy import head_entropies, measured_entropies, row_entropy, visit_entropies
from hybridlab.models.build import build_model
from hybridlab.plan.attention_map import AttentionMap
from tests.conftest import SMALL_SHAPE
from tests.models import padding_mask, random_ids


def build(arch="vanilla", **shape):
    return build_model(arch, kernel="eager", shape={**SMALL_SHAPE, "init": {"std": 0.5}, **shape})


def entropies(model, tokens, **arguments):
    return visit_entropies(model(tokens, need="last_row", **arguments))


def test_uniform_rows_have_entropy_1_and_rows_of_one_key_0():
    keys = torch.tensor([4, 4, 1])
    weights = torch.tensor([[0.25] * 4, [0, 1.0, 0, 0], [1.0, 0, 0, 0]])
    torch.testing.assert_close(row_entropy(weights, keys), torch.tensor([1.0, 0.0, 0.0]))
    assert row_entropy(torch.tensor([0.5, 0.5, 0, 0]), torch.tensor(4)) == pytest.approx(0.5)


def test_entropy_is_computed_from_the_last_row_of_the_matrix():
    model, tokens = build(), random_ids(20)
    with torch.no_grad():
        weights = model(tokens, need="full").attention
        for place, entropy in entropies(model, tokens).items():
            row = weights[place][:, :, -1]
            wanted = -(row * row.clamp_min(1e-30).log()).sum(-1) / math.log(20)
            torch.testing.assert_close(entropy, wanted, atol=1e-6, rtol=1e-5)


def test_padding_changes_nothing():
    model, tokens = build("rule-swa"), random_ids(30)
    mask = padding_mask([30, 13])
    with torch.no_grad():
        padded = entropies(model, tokens, attention_mask=mask)
        for place, alone in entropies(model, tokens[1:, :13]).items():
            torch.testing.assert_close(padded[place][1:], alone, atol=1e-6, rtol=1e-5)


def test_a_packed_row_has_the_entropy_of_its_last_document():
    model, tokens = build("rule-swa"), random_ids(24, rows=1)
    segments = torch.tensor([[0] * 10 + [1] * 14])
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    with torch.no_grad():
        packed = entropies(model, tokens, segment_ids=segments, position_ids=positions)
        for place, alone in entropies(model, tokens[:, 10:]).items():
            torch.testing.assert_close(packed[place], alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("length", [3, 5, 40])
def test_a_window_is_divided_by_the_log_of_what_it_sees(length):
    model = build()
    narrow = model.with_plan(attention_map=AttentionMap.from_masks([[0, 1]] * 3, 5))
    keys = narrow(random_ids(length), need="last_row").keys[(0,)]
    assert keys[0, :, 0].tolist() == [min(5, length)] * 2 + [length] * 2
    # Equal scores: uniform over what is seen, whatever its number.
    with torch.no_grad():
        model.blocks[0].attention.q.weight.zero_()
        for entropy in entropies(narrow, random_ids(length))[(0,)].flatten().tolist():
            assert entropy == pytest.approx(1.0, abs=1e-6)


def test_one_token_alone_has_no_entropy():
    assert all((e == 0).all() for e in entropies(build(), random_ids(1)).values())


def test_a_looped_layer_is_read_at_its_first_visit_and_kept_heads_at_their_last():
    model = build()
    looped = model.with_plan(model.plan.loop_heads(1, (0, 3), 2))
    output = looped(random_ids(20), need="last_row")
    means = {place: e.mean(0) for place, e in visit_entropies(output).items()}
    first = head_entropies(looped.plan, output, 4)
    torch.testing.assert_close(first[1], means[(1,)])
    kept = head_entropies(looped.plan, output, 4, {1: (3,)})
    assert kept[1, 3] == means[(3,)][1] and kept[1, :3].tolist() == first[1, :3].tolist()


def test_a_head_that_does_not_run_has_no_entropy():
    model = build()
    dropped = model.with_plan(model.plan.drop_heads(1, (2,), 4))
    table = measured_entropies(dropped, [random_ids(20)])
    assert table[1].isnan().tolist() == [False, False, True, False] and not table[0].isnan().any()


def test_the_mean_over_batches_is_that_of_all_rows():
    model, tokens = build(), random_ids(20, rows=7)
    torch.testing.assert_close(measured_entropies(model, tokens.split(3)), measured_entropies(model, [tokens]))


@pytest.mark.parametrize("family", ["llama", "qwen3", "neox"])
def test_entropies_equal_those_of_transformers(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    shared = {
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.4,
    }
    kinds = {
        "llama": lambda: transformers.LlamaConfig(**shared, intermediate_size=48, num_key_value_heads=2),
        "qwen3": lambda: transformers.Qwen3Config(**shared, intermediate_size=48, num_key_value_heads=2, head_dim=8),
        "neox": lambda: transformers.GPTNeoXConfig(**shared, intermediate_size=48),
    }
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(kinds[family](), attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path)
    model = hybridlab.load_hf(tmp_path)
    tokens = torch.randint(128, (2, 21))
    mask = padding_mask([21, 9])
    with torch.no_grad():
        rows = theirs(tokens, attention_mask=mask.long(), output_attentions=True).attentions
        ours = entropies(model, tokens, attention_mask=mask)
    for layer, weights in enumerate(rows):
        for row, length in enumerate((21, 9)):
            last = weights[row, :, length - 1, :length].double()
            wanted = -torch.xlogy(last, last).sum(-1) / math.log(length)
            torch.testing.assert_close(ours[(layer,)][row].double(), wanted, atol=2e-6, rtol=1e-5)
