"""The picture of a table's claims: which comparisons it shows, its numbers, and that all text is inside."""

import csv
import json

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hybridlab.lab.papers.claims.comparison import Comparison
from hybridlab.lab.reporting.claims import draw, lines_of, write_claims_figure
from hybridlab.statistics import Above, Always, Below, Between


def compared(label, value, half, **changes):
    """A comparison as in table.json."""
    about = {"label": label, "metric": "results.validation.loss", "unit": "nats", "paired": True, "of": "seed", "n": 5}
    found = {"value": value, "stderr": half / 2.8, "interval": [value - half, value + half], "p": 0.1}
    return {**about, **found, "asked": [None, 0.0], **changes}


def claim(text, verdict, *comparisons):
    said = {"text": text, "source": "section 1", "verdict": verdict, "note": "", "direction": "", "same_as": None}
    return {**said, "comparisons": list(comparisons)}


FAR = {"metric": "results.at.20.tasks.retrieval.loss.far"}
CLAIMS = [
    claim("a is better than b " * 8, "holds", compared("a − b", -1.0, 0.3), compared("a − c", -0.8, 0.3)),
    claim("d is worse", "fails", compared("a − d, tasks retrieval loss far after 20 steps", 40.0, 3.0, **FAR)),
    claim("a is as good as e", "open", compared("a − e", 0.02, 0.05, asked=[-0.1, 0.1])),
    claim("f peaks", "cannot tell here", compared("peak of f − g", 2.0, 1.0, metric="", unit="")),
    claim("one seed", "open", compared("a − h", 0.02, 0.0, interval=None, n=1)),
    claim("a rank correlation", "holds", compared("trunk", 0.7, 0.1, paired=False)),
    claim("times", "holds", compared("ln of the times", 0.7, 0.1, of="round")),
    claim("printed", "holds"),
    {**claim("a is better, at 410M", "holds", compared("a − b", -1.0, 0.3)), "same_as": 1},
]
TABLE = {"id": "toy", "title": "Arms", "scale": "desk", "rows": [{"model": {"size": "tiny"}}, {"model": None}]}
TABLE |= {"claims": CLAIMS}


@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        (Above(0.5), [0.5, None]),
        (Below(-0.0), [None, 0.0]),
        (Between(-0.1, 0.1), [-0.1, 0.1]),
        (Between(None, 0.1), [None, 0.1]),
        (Always(), None),
    ],
)
def test_a_comparison_in_numbers(asked, bounds):
    """Differences 1, 2, 3: t(2) = 4.3027 at 95 %."""
    found = Comparison("a − b", {0: 1.0, 1: 2.0, 2: 3.0}, asked, unit=" nats", paired=True, metric="m").as_json(0.5)
    assert (found["asked"], found["p"], found["n"], found["unit"], found["metric"]) == (bounds, 0.5, 3, "nats", "m")
    if bounds is not None:
        assert found["value"] == 2.0 and found["stderr"] == pytest.approx(3**-0.5)
    assert found["interval"] == pytest.approx([2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5], abs=1e-4)
    few = Comparison("a − b", {0: 1.0, 1: 2.0}, asked).as_json(None)
    assert few["interval"] is None and not few["paired"]
    assert Comparison("a − b", {}, asked).as_json(None)["value"] is None


def test_only_differences_of_arms_with_an_interval_over_seeds_are_shown():
    assert [line["label"].partition(",")[0] for line in lines_of(TABLE)] == [
        "a − b",
        "a − c",
        "a − d",
        "a − e",
        "peak of f − g",
    ]


def test_each_quantity_has_an_axis_and_each_verdict_a_look():
    figure = draw(TABLE, lines_of(TABLE))
    labels = [ax.get_xlabel() for ax in figure.axes]
    assert labels == [
        "difference of validation loss (nats)",
        "difference of retrieval loss far, after 20 steps (nats)",
        "difference",
    ]
    looks = [(line.get_label(), line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()]
    assert [look[0] for look in looks] == ["holds", "fails", "open", "cannot tell here", "bound that the claim names"]
    assert len({look[1] for look in looks}) == len({look[2] for look in looks}) == 5
    drawn = [tuple(ax.containers[0].lines[0].get_data()[0]) for ax in figure.axes]
    assert drawn == [(-1.0,), (40.0,), (2.0,)]
    assert all(any(list(line.get_xdata()) == [0, 0] for line in ax.lines) for ax in figure.axes), "a line at 0"


def test_all_text_is_inside_the_picture_and_no_two_overlap():
    figure = draw(TABLE, lines_of(TABLE))
    FigureCanvasAgg(figure).draw()
    texts = [text for ax in figure.axes for text in (*ax.texts, ax.xaxis.label)] + figure.texts + figure.legends
    boxes = [text.get_window_extent() for text in texts]
    width, height = figure.canvas.get_width_height()
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_the_files_hold_the_drawn_numbers_and_go_where_there_are_none(tmp_path):
    assert write_claims_figure(TABLE, tmp_path) and [path.name for path in tmp_path.iterdir()] == ["claims.png"]
    assert write_claims_figure(TABLE, tmp_path, [".csv", ".pdf"])
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(first) == ["claims.csv", "claims.pdf", "claims.png"] and first["claims.png"][:4] == b"\x89PNG"
    lines = list(csv.DictReader((tmp_path / "claims.csv").open()))
    assert len(lines) == 5 and lines[0]["label"] == "a − b" and lines[3]["asked_low"] == "-0.1"
    assert [float(lines[0][name]) for name in ("value", "low", "high")] == pytest.approx([-1.0, -1.3, -0.7])
    assert write_claims_figure(json.loads(json.dumps(TABLE)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first, "the same bytes"
    assert not write_claims_figure({**TABLE, "claims": CLAIMS[4:]}, tmp_path) and not list(tmp_path.iterdir())
