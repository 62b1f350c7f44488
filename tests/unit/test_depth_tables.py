"""Depth growth's tables: presets of table 2, FLOPs of table 7, and the printed values checked against each other."""

import pytest

from hybridlab.accounting.flops import flops
from hybridlab.config.resolve import resolve
from hybridlab.errors import UserError
from hybridlab.papers.analytic import Variant, learning_rate, run_flops_ratio, setting, training_flops_of_run

SIZES = ("smollm-360m", "smollm-1.7b")


def test_presets_are_table_2():
    small, large = (resolve("vanilla", size) for size in SIZES)
    shapes = [(s.layers, s.width, s.ffn_width, s.heads, s.kv_heads, s.vocab) for s in (small.shape, large.shape)]
    assert shapes == [(32, 960, 2560, 15, 5, 49152), (24, 2048, 8192, 32, 32, 49152)]
    assert [config.training.optimizer.lr for config in (small, large)] == [3e-3, 5e-4]
    assert [config.training.tokens_per_step for config in (small, large)] == [2**20, 2**21]
    for config in (small, large):
        training, shape = config.training, config.shape
        assert (training.steps, training.seq_len, training.clip, training.optimizer.weight_decay) == (
            200_000,
            2048,
            1.0,
            0.01,
        )
        assert (shape.family, shape.rope_base, shape.tied_embeddings) == ("llama", 10_000, True)
        assert shape.heads * shape.head_width == shape.width
        assert config.data.tokenizer == "hub:HuggingFaceTB/cosmo2-tokenizer"


def test_the_schedule_is_trapezoidal_with_a_square_root_at_its_end():
    for size, peak in zip(SIZES, (3e-3, 5e-4), strict=True):
        assert learning_rate(size, 1) == pytest.approx(peak / 2000)
        assert learning_rate(size, 2000) == learning_rate(size, 170_000) == peak
        # A quarter of the decay takes the rate to a half, all of it to 0.
        assert learning_rate(size, 177_500) == pytest.approx(peak / 2)
        assert learning_rate(size, 200_000) == 0
        assert learning_rate(size, 170_001) < peak


def test_standard_flops_of_table_7_to_all_printed_digits():
    printed = {"smollm-360m": 613527.488, "smollm-1.7b": 4813222.102}
    for size, value in printed.items():
        assert round(training_flops_of_run(size, "vanilla", "depth") / 1e15, 3) == value
        shape = resolve("vanilla", size).shape
        attention = 2 * shape.width * shape.width + 2 * shape.width * shape.kv_heads * shape.head_width
        blocks = shape.layers * (attention + 3 * shape.width * shape.ffn_width)
        by_hand = 6 * (blocks + shape.vocab * shape.width) + 12 * shape.layers * shape.width * 2048
        assert flops("vanilla", 2048, "depth", size=size).training == by_hand * 2048


def test_the_ratio_of_two_runs():
    half = {"arch": "vanilla", "config": {"training": {"steps": 300}}}
    assert run_flops_ratio("tiny", "vanilla", Variant(**half), "depth") == pytest.approx(2)


def test_a_setting_by_its_name():
    assert setting("smollm-360m", "training.optimizer.lr") == 3e-3
    assert setting("smollm-360m", "shape.tied_embeddings") == "Yes"
    assert setting("olmo-275m", "shape.tied_embeddings") == "No"
    assert setting("smollm-360m", "data.tokenizer").startswith("hub:")
    for path, message in [
        ("training.stps", "setting training.stps: there is no 'stps'; did you mean 'steps'"),
        ("training.steps.x", "there is no 'x'; it has no parts"),
        ("training.optimizer", "this is no number or text; name one of its parts"),
    ]:
        with pytest.raises(UserError, match=message):
            setting("tiny", path)
