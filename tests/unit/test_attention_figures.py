"""Figures of attention: entropies by task, the last token's row, and whole maps, from small handmade records."""

import pytest

from hybridlab.errors import UserError
from hybridlab.reporting.figures import csv_lines
from tests.unit.test_figure_kinds import drawn, numbers, probed, shown

ENTROPY = {
    "heads": [[0.9, 0.7], [0.4, 0.2]],
    "layer_means": [0.8, 0.3],
    "tasks": {"gsm8k": {"layer_means": [0.7, 0.2]}, "mmlu": {"layer_means": [0.9, 0.4]}},
}
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


def test_task_entropy_is_a_line_for_each_task_and_their_mean():
    plot, data = shown("task entropy", probed(entropy=ENTROPY), x_label="layer", y_label="entropy")
    (ax,), legend = drawn(plot, data)
    assert legend == ["gsm8k", "mmlu", "mean over tasks"]
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.7, 0.2], [0.9, 0.4], [0.8, 0.3]]
    assert list(ax.lines[0].get_xdata()) == [1, 2] and len(csv_lines(data, plot)) == 6
    assert numbers("task entropy", probed(entropy={"heads": [[1.0]], "layer_means": [1.0]})) is None, "of text alone"


def test_last_token_shows_a_list_of_the_record_in_percent():
    record = probed(**{"last-token": {"row": [0.5, 0.3, 0.2], "rows": [[1, 0]]}})
    line = numbers("last token", record, metric="results.probes.last-token.row")
    assert line["x"] == [1, 2, 3] and line["y"] == pytest.approx([50, 30, 20])
    plot, data = shown("last token", record, metric="results.probes.last-token.row")
    (ax,), legend = drawn(plot, data)
    assert legend == ["the same for all tokens"] and ax.get_yscale() == "log"
    assert list(ax.lines[0].get_ydata()) == pytest.approx([100 / 3] * 2)
    with pytest.raises(UserError, match=r"has the shape \(1, 2\) in run 0+; give a list"):
        numbers("last token", record, metric="results.probes.last-token.rows")


def test_attention_maps_are_a_panel_for_each_head_with_the_marked_tokens_in_red():
    plot, data = shown("attention maps", probed(**{"attention-maps": MAPS}), metric="mmlu")
    axes, _ = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == [
        "a title, run 0, L1-H2, low entropy, 0.10 to 0.14",
        "a title, run 0, L2-H1, as in the paper, 0.80",
    ]
    words = [[(text.get_text(), text.get_fontweight()) for text in ax.texts] for ax in axes]
    assert [weight for _, weight in words[0]] == ["normal", "normal", "bold"] and words[0][0][0] == "_a"
    assert [weight for _, weight in words[1]] == ["bold", "bold", "normal"]
    lines = csv_lines(data, plot)
    assert len(lines) == 6 and lines[2]["marked"] and lines[2]["y"] == 0.8
    assert numbers("attention maps", probed(**{"attention-maps": MAPS}), metric="gsm8k") is None
