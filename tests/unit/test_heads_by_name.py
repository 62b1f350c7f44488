"""Names of heads as in the papers, plans without them, and what the last token's attention is measured by."""

import pytest
import torch

from hybridlab import UserError
from hybridlab.analysis.entropy import agreement
from hybridlab.analysis.probes.last_token import last_rows, marked, spread, statistics
from hybridlab.models.build import build_model
from hybridlab.plan.heads import head_name, parse_heads, without_heads
from hybridlab.plan.plan import Plan
from tests.conftest import SMALL_SHAPE
from tests.models import random_ids


def test_names_count_from_1_and_go_both_ways():
    assert parse_heads("L1-H3, l2h1", 2, 4) == [(0, 2), (1, 0)]
    assert [head_name(head) for head in parse_heads("L1-H3,L2-H1", 2, 4)] == ["L1-H3", "L2-H1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("L1-3", "'L1-3' is no name of a head; write L1-H3"),
        ("L0-H1", "L0-H1: the model has the layers L1 to L2, each with the heads H1 to H4"),
        ("L3-H1", "the layers L1 to L2"),
        ("L1-H5", "the heads H1 to H4"),
        ("L1-H1,L1-H1", "L1-H1 is named twice"),
        ("", "'' is no name of a head"),
    ],
)
def test_mistakes_in_names(text, says):
    with pytest.raises(UserError, match=says):
        parse_heads(text, 2, 4)


def test_a_plan_without_heads_runs_the_others_alone():
    plan = without_heads(Plan.plain(3), [(0, 1), (0, 2), (2, 0)], 4)
    assert [str(visit) for visit in plan.each_visit()] == ["L1 heads 1,4", "L2", "L3 heads 2,3,4"]
    assert without_heads(Plan.plain(2), [(1, h) for h in range(4)], 4) == Plan.plain(2).drop_heads(1, range(4), 4)


def test_the_mean_over_heads_is_that_of_the_attention_matrix():
    model, tokens = build_model("vanilla", shape={**SMALL_SHAPE, "init": {"std": 0.5}}), random_ids(20, rows=1)
    with torch.no_grad():
        weights = [w[0, :, -1] for w in model(tokens, need="full").attention.values()]
    [(layers, heads)] = last_rows(model, iter([tokens]))
    torch.testing.assert_close(layers, torch.stack([w.mean(0) for w in weights]), atol=1e-6, rtol=1e-5)
    group = model.shape.group
    for layer, matrix in enumerate(weights):
        by_kv = torch.stack([matrix[k * group : (k + 1) * group].mean(0) for k in range(len(matrix) // group)])
        torch.testing.assert_close(heads[layer], by_kv, atol=1e-6, rtol=1e-5)


def test_a_layer_without_a_dropped_head_is_the_mean_of_the_others():
    model, tokens = build_model("vanilla", shape={**SMALL_SHAPE, "init": {"std": 0.5}}), random_ids(20, rows=1)
    heads = model.shape.heads
    [(whole, _)] = last_rows(model, iter([tokens]))
    [(less, _)] = last_rows(model.with_plan(without_heads(model.plan, [(0, 0)], heads)), iter([tokens]))
    with torch.no_grad():
        first = next(iter(model(tokens, need="full").attention.values()))[0, :, -1]
    torch.testing.assert_close(less[0], first[1:].mean(0), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(less[0], whole[0])


def test_a_layer_on_latents_has_no_row_over_tokens():
    model = build_model("spiral-b", shape={**SMALL_SHAPE, "layers": 6}, recurrence={"chunks": [4, 2]})
    [(layers, _)] = last_rows(model, iter([random_ids(20, rows=1)]))
    looped = {visit.layer for loop in model.plan.loops.values() for visit in loop.body(0)}
    assert 0 < len(looped) < 6 and layers.isnan().all(-1).nonzero().flatten().tolist() == sorted(looped)


def test_statistics_tell_uniform_local_and_wide_rows_apart():
    uniform = torch.full((160,), 1 / 160)
    local = torch.zeros(160)
    local[-4:] = 0.25
    wide = torch.full((160,), 0.5 / 160)
    wide[5::10] += 0.5 / 16
    found = statistics(torch.stack([uniform, local, wide]))
    assert found["entropy"][0] == pytest.approx(1.0) and found["entropy"][1] < 0.3
    assert found["local"].tolist() == pytest.approx([0.1, 1.0, 0.1], abs=0.02)
    assert found["range"].tolist() == pytest.approx([0.0, 1 / 16, 1.0])
    assert found["parts"].sum(-1).tolist() == pytest.approx([1 - 1 / 160, 1.0, 1 - 0.5 / 160], abs=1e-5)
    assert spread([found["parts"], found["parts"]]).tolist() == [0.0, 0.0, 0.0]
    assert spread([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]).tolist() == [1.0]


def test_the_fewest_tokens_with_half_of_the_attention():
    assert marked(torch.tensor([0.1, 0.4, 0.1, 0.3, 0.1])) == [1, 3]
    assert marked(torch.tensor([0.1, 0.6, 0.3])) == [1]
    assert marked(torch.tensor([0.25] * 4)) == [0, 1]


def test_agreement_is_the_mean_rank_correlation_of_all_pairs():
    up, down = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    assert agreement([up, [10.0, 20.0, 30.0, 40.0]]) == pytest.approx(1.0)
    assert agreement([up, down, up]) == pytest.approx(-1 / 3)
    assert agreement([[1.0, None, 3.0], [2.0, 5.0, 4.0]]) == pytest.approx(1.0)
    assert agreement([up]) is None and agreement([up, [1.0] * 4]) is None
