"""Numbers at the ticks of axes can be told apart, however small their range is."""

import pytest

from hybridlab.runs.curves import Curve
from hybridlab.runs.pictures import draw_picture, terminal_picture
from hybridlab.runs.style import tick_texts


@pytest.mark.parametrize(
    "ticks, units, texts",
    [
        ([0, 0.2, 0.4], False, ["0", "0.2", "0.4"]),
        ([0, 500, 1000, 1500], False, ["0", "500", "1,000", "1,500"]),
        ([0, 5e5, 1e6, 2e7], True, ["0", "500k", "1M", "20M"]),
        ([1e6, 1e6 + 1, 1e6 + 2], True, ["1M", "1.000001M", "1.000002M"]),
        ([6.776, 6.784, 6.8], False, ["6.776", "6.784", "6.8"]),
        ([0, 1e-9, 2e-9], False, ["0", "1e-09", "2e-09"]),
        ([-0.0], False, ["0"]),
    ],
)
def test_as_many_digits_as_tell_ticks_apart(ticks, units, texts):
    assert tick_texts(ticks, units) == texts


@pytest.mark.parametrize(
    "x, places",
    [("seconds", [0.01, 0.3, 0.8]), ("steps", [1, 2, 3]), ("tokens", [10**9, 10**9 + 4]), ("flops", [1e20])],
)
def test_no_two_ticks_of_a_picture_have_the_same_text(x, places, tmp_path, monkeypatch):
    curves = [Curve("a", list(places), [2.0 - i * 1e-5 for i in range(len(places))], [], [])]
    shown = terminal_picture(curves, x, "loss", None, 80, 20, colour=False).splitlines()
    below = next(line for line in shown[::-1] if line.strip() and line.strip()[0].isdecimal())
    beside = [line.split("┤")[0].strip() for line in shown if "┤" in line]
    for texts in (below.split(), beside):
        assert texts and len(texts) == len(set(texts))
    if x == "steps":
        assert below.split() == ["1", "2", "3"]
    drawn = []
    monkeypatch.setattr("hybridlab.runs.pictures.write_bytes", lambda path, content: None)
    monkeypatch.setattr("hybridlab.runs.pictures.small_png", drawn.append)
    draw_picture(curves, x, "loss", None, tmp_path / "x.png")
    drawn[0].draw_without_rendering()
    texts = [label.get_text() for label in drawn[0].axes[0].get_xticklabels()]
    assert texts and len(texts) == len(set(texts))


def test_two_runs_of_one_logged_point_are_both_drawn():
    curves = [Curve(name, [at], [loss], [], []) for name, at, loss in (("one", 1.35, 6.81), ("two", 1.49, 6.77))]
    shown = terminal_picture(curves, "seconds", "loss", None, 60, 12, colour=False)
    inside = "".join(line.split("┤")[-1] for line in shown.splitlines()[2:-3])
    assert inside.count("a") == 1 and inside.count("b") == 1
