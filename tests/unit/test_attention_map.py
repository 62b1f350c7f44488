import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridlab.attention.kinds import Full, Mixed, Window
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve, run_hash
from hybridlab.config.structures import structure_of
from hybridlab.errors import UserError
from hybridlab.plan.allocation import Allocation, read_masks, shuffled_within_layers
from hybridlab.plan.attention_map import AttentionMap, exact_count, spread


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


def test_a_phase_moves_the_windows_of_a_rule_on():
    layers = [[row[0] for row in AttentionMap.rule(8, 1, "layer", 0.25, 2, phase=p).masks()] for p in range(4)]
    assert layers[0] == [0, 1, 1, 1] * 2 and layers[1] == [1, 0, 1, 1] * 2 and layers[3] == [1, 1, 1, 0] * 2
    heads = [AttentionMap.rule(2, 4, "head", 0.375, 2, phase=p) for p in range(4)]
    assert heads[0].masks() == [[0, 1, 1, 1], [0, 0, 1, 1]] and heads[1].masks() == [[1, 0, 1, 1], [1, 0, 0, 1]]
    assert len({str(made) for made in heads}) == 4 and {made.sparsity() for made in heads} == {0.375}


@pytest.mark.parametrize(
    ("granularity", "rho", "phase", "message"),
    [
        ("layer", 0.5, 2, "pattern of the layers comes again after 2; use a phase from 0 to 1"),
        ("head", 0.5, 4, "pattern of the KV heads of every layer comes again after 4; use a phase from 0 to 3"),
        ("head", 1.0, 1, "comes again after 1; only phase 0 is possible"),
        ("layer", 0.5, -1, "use a phase from 0 to 1"),
    ],
)
def test_a_phase_that_gives_no_new_pattern_is_refused(granularity, rho, phase, message):
    with pytest.raises(UserError, match=f"map.phase {phase}: the pattern.*{message.split('pattern ')[-1]}"):
        AttentionMap.rule(8, 4, granularity, rho, 2, phase=phase)


def test_the_phase_in_a_configuration():
    plain, zero, moved = (resolve("rule-swa", "tiny", settings=s) for s in ([], ["map.phase=0"], ["map.phase=3"]))
    assert run_hash(plain) == run_hash(zero) != run_hash(moved)
    assert str(structure_of(moved).map) == " ".join(["wFFw"] * 8)
    with pytest.raises(UserError, match=r"^--set map.phase=9: map.phase 9: the pattern"):
        resolve("rule-swa", "tiny", settings=["map.phase=9"])
    with pytest.raises(UserError, match="map.phase = -1"):
        resolve("rule-swa", "tiny", settings=["map.phase=-1"])


@given(st.sampled_from(["layer", "head-all", "head-single"]), st.integers(0, 4), st.integers(0, 50), st.integers(0, 3))
def test_random_maps_have_exactly_the_share_and_are_reproducible(granularity, quarters, seed, draw):
    allocation = Allocation(8, 4, granularity, quarters / 4)
    masks = allocation.random(seed, draw)
    assert AttentionMap.from_masks(masks, 4).sparsity() == quarters / 4 and masks == allocation.random(seed, draw)
    if granularity == "layer":
        assert all(len(set(row)) == 1 for row in masks)
    if granularity == "head-single":
        assert {row.count(0) for row in masks} == {quarters}


def test_random_maps_are_uniform_over_units():
    """Every one of 12 heads is a window in a share rho of the draws, and so is every pair of them."""
    draws = [Allocation(3, 4, "head-all", 0.25).random(seed, draw) for seed in range(60) for draw in range(50)]
    flat = [[1 - value for row in masks for value in row] for masks in draws]
    error = (0.25 * 0.75 / len(flat)) ** 0.5
    assert max(abs(sum(column) / len(flat) - 0.25) for column in zip(*flat, strict=True)) < 4 * error
    together = sum(row[0] * row[5] for row in flat) / len(flat)
    assert together == pytest.approx(3 / 12 * 2 / 11, abs=4 * (0.0455 / len(flat)) ** 0.5)


def test_the_seed_of_a_random_map_is_the_seed_of_the_run():
    def made(*settings, **entries):
        layer = Layer({"map": {"kind": "random", "granularity": "head-all", "rho": 0.875, **entries}})
        return resolve("vanilla", "tiny", layers=[layer], settings=settings)

    zero, three, named, other = made(), made("training.seed=3"), made("training.seed=3", seed=0), made(draw=1)
    assert (zero.map.seed, three.map.seed, named.map.seed, zero.map.window) == (0, 3, 0, 8)
    maps = [str(structure_of(config).map) for config in (zero, three, other)]
    assert len(set(maps)) == 3 and structure_of(named).map == structure_of(zero).map
    assert made(seed=None) == zero and len({run_hash(c) for c in (zero, three, named, other)}) == 4
    with pytest.raises(UserError, match="rho 0.3.* not a whole number"):
        made(rho=0.3)
    with pytest.raises(UserError, match="map.draw = -1"):
        made(draw=-1)


def test_ranked_masks_keep_the_highest_scores():
    scores = [[3.0, 1.0], [2.0, 2.0]]
    assert Allocation(2, 2, "head-all", 0.5).ranked(scores) == [[1, 0], [0, 1]]
    assert Allocation(2, 2, "head-single", 0.5).ranked(scores) == [[1, 0], [0, 1]]
    assert Allocation(2, 2, "head-all", 0.75).ranked(scores) == [[1, 0], [0, 0]]
    assert Allocation(3, 2, "layer", 1 / 3, nearest=True).ranked([[0.0], [-1.0], [5.0]]) == [[1, 1], [0, 0], [1, 1]]


def test_masks_in_another_order_keep_their_numbers_in_each_layer():
    masks = [[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]]
    draws = [shuffled_within_layers(masks, 0, draw) for draw in range(200)]
    assert draws[3] == shuffled_within_layers(masks, 0, 3) != shuffled_within_layers(masks, 1, 3)
    assert {tuple(map(sum, drawn)) for drawn in draws} == {(1, 2, 0, 3)}
    # All nine orders of the first two layers come, each in about a ninth of the draws.
    counts = Counter((tuple(drawn[0]), tuple(drawn[1])) for drawn in draws)
    assert len(counts) == 9 and max(counts.values()) < 45
