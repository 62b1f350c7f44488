import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridlab.errors import UserError
from hybridlab.plan.attention_map import AttentionMap, exact_count, read_masks, spread
from hybridlab.plan.kinds import Full, Mixed, Window


@pytest.mark.parametrize("granularity", ["layer", "head"])
@pytest.mark.parametrize("rho", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_rule_meets_rho_exactly(granularity, rho):
    assert AttentionMap.rule(8, 4, granularity, rho, window=4).sparsity() == rho


def test_rule_layer_interleaves_windows_first():
    assert AttentionMap.rule(4, 1, "layer", 0.5, 2).masks() == [[0], [1], [0], [1]]
    assert AttentionMap.rule(8, 1, "layer", 0.25, 2).masks() == [[0], [1], [1], [1], [0], [1], [1], [1]]


def test_rule_head_is_even_over_layers_where_it_can_be():
    assert AttentionMap.rule(2, 4, "head", 0.5, 2).masks() == [[0, 0, 1, 1]] * 2
    counts = [row.count(0) for row in AttentionMap.rule(8, 3, "head", 0.5, 2).masks()]
    assert sum(counts) == 12 and set(counts) <= {1, 2}


@given(st.integers(1, 40), st.data())
def test_spread_is_even(length, data):
    count = data.draw(st.integers(0, length))
    ones = spread(count, length)
    assert sum(ones) == count and len(ones) == length
    for size in range(1, length + 1):
        sums = {sum(ones[i : i + size]) for i in range(length - size + 1)}
        assert max(sums) - min(sums) <= 1


def test_targets_that_cannot_be_met_name_both_neighbours():
    with pytest.raises(
        UserError, match=r"0.3 × 32 KV heads = 9.6 .*0.28125 \(9 KV heads\) or 0.3125 \(10 KV heads\).*--nearest"
    ):
        exact_count(0.3, 32, "KV heads")
    assert exact_count(0.3, 32, "KV heads", nearest=True) == 10
    assert exact_count(0.3, 10, "layers") == 3
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(UserError, match="between 0 and 1"):
            exact_count(wrong, 8, "layers")


def test_windows_count_the_query_so_zero_is_refused():
    for wrong in (0, -3, 1.5, True):
        with pytest.raises(UserError, match="1 or more"):
            Window(wrong)


def test_masks_round_trip_and_shape_check():
    masks = [[1, 0], [0, 0], [1, 1]]
    made = AttentionMap.from_masks(masks, 7)
    assert made.masks() == masks and made.sparsity() == 0.5
    assert AttentionMap.from_json(json.loads(json.dumps(made.to_json()))) == made
    made.check_shape(3, 2)
    with pytest.raises(UserError, match="3 layers of .* but the model has 4 layers of 2"):
        made.check_shape(4, 2)
    with pytest.raises(UserError, match="still being learned"):
        AttentionMap.uniform(2, 2, Mixed(4)).masks()
    with pytest.raises(UserError, match="0 .window. or 1"):
        AttentionMap.from_masks([[2]], 4)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"masks": 3, "window": 4}', '{"masks": [[0, 5]], "window": 4}', '{"masks": [[1]], "window": 0}'],
)
def test_bad_masks_files(tmp_path, content):
    path = tmp_path / "masks.json"
    path.write_text(content)
    with pytest.raises(UserError):
        read_masks(path)
    with pytest.raises(UserError, match="no such masks file"):
        read_masks(tmp_path / "none.json")


def test_text_form_has_one_letter_per_head():
    assert str(AttentionMap(((Full(), Window(2)), (Mixed(2), Full())))) == "Fw mF"


def test_the_shares_that_an_error_proposes_are_accepted():
    with pytest.raises(UserError) as caught:
        exact_count(0.3, 28, "layers")
    shares = [float(word) for word in str(caught.value).split() if word.startswith(("0.2857", "0.3214"))]
    assert [exact_count(share, 28, "layers") for share in shares] == [8, 9]
