"""Drawings of attention and of growth: whole maps, contributions of tokens, and loops as they began."""

import pytest

from hybridlab.errors import UserError
from hybridlab.lab.reporting.figures import csv_lines
from hybridlab.lab.reporting.kinds.attention import _short
from tests.records import make_record
from tests.unit.test_figure_kinds import drawn, legend_of, numbers, probed, shown

MAPS = {
    "heads": {
        "L1-H2": {"kind": "low", "lowest": 0.1, "highest": 0.14},
        "L2-H1": {"kind": "chosen", "lowest": 0.8, "highest": 0.8},
    },
    "maps": {
        "mmlu": {
            "tokens": [" a", "\n", "$x"],
            "length": 3,
            "marked": {"L1-H2": [2], "L2-H1": [0, 1]},
            "weights": {"L1-H2": [[1, 0, 0], [0, 1, 0], [0, 0.2, 0.8]], "L2-H1": [[1, 0, 0]] * 2 + [[0.4, 0.3, 0.3]]},
        }
    },
}


def test_attention_maps_are_a_panel_for_each_head_with_the_marked_tokens_in_red():
    plot, data = shown("attention maps", probed(**{"attention-maps": MAPS}), task="mmlu")
    axes, _ = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == [
        "a title, run 0, L1-H2, low entropy, 0.10 to 0.14",
        "a title, run 0, L2-H1, as in the paper, 0.80",
    ]
    words = [[(text.get_text(), text.get_fontweight()) for text in ax.texts] for ax in axes]
    assert [weight for _, weight in words[0]] == ["normal", "normal", "bold"] and words[0][0][0] == "_a"
    assert [weight for _, weight in words[1]] == ["bold", "bold", "normal"]
    lines = csv_lines(data)
    assert len(lines) == 6 and lines[2]["marked"] and lines[2]["y"] == 0.8
    assert numbers("attention maps", probed(**{"attention-maps": MAPS}), task="gsm8k") is None


def test_growth_cuts_a_layers_time_where_passes_or_heads_change():
    config = {"controller": {"kind": "entropy-growth", "fade_steps": 10}, "shape": {"layers": 3, "heads": 4}}
    events = [
        {"step": 20, "kind": "loop-added", "layer": 1, "heads": [0, 2], "passes": 1},
        {"step": 50, "kind": "loop-deepened", "layer": 1, "passes": 2},
        {"step": 60, "kind": "growth-frozen", "reason": "the target is reached"},
    ]
    record = make_record(config=config, events=events)
    growth = numbers("growth", record)
    segments = [
        tuple(segment[key] for key in ("since", "until", "passes", "running", "kept")) for segment in growth["segments"]
    ]
    assert segments == [(20, 30, 1, 4, 2), (30, 50, 1, 2, 2), (50, 60, 2, 2, 2), (60, 100, 2, 2, 2)]
    assert (growth["steps"], growth["layers"], growth["heads"]) == (100, 3, 4) and growth["segments"][0]["layer"] == 2
    plot, data = shown("growth", record)
    (ax,), _ = drawn(plot, data)
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([0.8, 0.4, 0.4, 0.4])
    assert [bar.get_hatch() for bar in ax.patches] == ["///", None, None, None], "heads are fading"
    assert [text.get_text() for text in ax.texts] == ["1 ×", "1 ×", "2 ×", "2 ×"]
    assert legend_of(ax)[1:] == ["kept heads, 1 extra pass", "kept heads, 2 extra passes"]
    assert len(legend_of(ax)) == 3 and len(csv_lines(data)) == 4


def test_growth_ends_with_the_run_in_the_middle_of_a_fade():
    config = {"controller": {"kind": "entropy-growth", "fade_steps": 10}, "shape": {"layers": 3, "heads": 4}}
    event = {"step": 95, "kind": "loop-added", "layer": 0, "heads": [0], "passes": 1}
    record = make_record(config=config, events=[event])
    (segment,) = numbers("growth", record)["segments"]
    assert segment == {"layer": 1, "since": 95, "until": 100, "passes": 1, "running": 4, "kept": 1}
    (ax,), _ = drawn(*shown("growth", record))
    assert not ax.texts, "a bar this short has no room for words"


def test_contributions_are_those_of_the_chosen_example():
    examples = [
        {"layer": 1, "head": i, "entropy": 0.8, "tokens": ["a", " b"], "loops": [[0.4, 0.2], [0.2, 0.3]]}
        for i in (0, 3)
    ]
    record = probed(contributions={"examples": examples})
    example = numbers("contributions", record, example=1)
    assert example == {"tokens": ["a", " b"], "loops": [[0.4, 0.2], [0.2, 0.3]], "layer": 1, "head": 3}
    plot, data = shown("contributions", record, example=1)
    (ax,), legend = drawn(plot, data)
    assert legend == ["largest gain against the row above", "largest loss against the row above"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "_b"]
    assert [text.get_color() for text in ax.texts] == ["white", "white"], "on dark cells"
    assert [text.get_text() for text in ax.texts] == ["+50 %", "−50 %"] and ax.get_ylabel() == "layer 2, head 4"
    assert csv_lines(data)[3] == {"panel": "a title", "series": "run 0", "loop": 1, "place": 1, "token": " b", "y": 0.3}
    assert [_short(token, 8) for token in ("a\n b", "12345678", "123456789")] == ["a\\n_b", "12345678", "1234567…"]
    with pytest.raises(
        UserError, match="plot.example is 2, but run 0000000000000000 has 2 examples; write a number from 0 to 1"
    ):
        numbers("contributions", record, example=2)


def test_contributions_without_head_loops_show_nothing():
    assert numbers("contributions", probed(contributions={"sublayers": {}})) is None
