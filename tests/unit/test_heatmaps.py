"""Heat maps of a probe's matrix, and the drawing of a grown model's lineage."""

import json
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from hybridlab.errors import UserError
from hybridlab.lab.reporting.figures import csv_lines
from hybridlab.lab.reporting.kinds.matrices import MOST_TICKS
from hybridlab.methods.depth import copied_layers
from hybridlab.plan.lineage import first_lineage, grown_lineage, lineage_to_json
from tests.records import config_of, make_record, make_results
from tests.unit.test_figure_kinds import drawn, learned, numbers, panel_of, plot_of, probed, shown

METRIC = "results.probes.effects.future.local.layer.changes"
MATRIX = [[None, 0.5, 2.0], [None, None, 0.25], [None, None, None]]


def effects(matrix, block=None, layers=3, **changes):
    """A run of so many layers, grown by blocks or not, whose probe `effects` has this matrix."""
    config = {**config_of("vanilla"), "controller": {"kind": "stacking", "block": block} if block else None}
    config["shape"] = {**config["shape"], "layers": layers}
    probes = {"effects": {"future": {"local": {"layer": {"changes": matrix}}}}}
    return make_record(config=config, results=make_results(probes=probes), **changes)


def bars(ax):
    return [other for other in ax.figure.axes if other.get_label() == "<colorbar>"]


# ---- heat maps ----


def test_a_heat_map_is_a_panel_for_each_run_with_the_first_row_at_the_top():
    plot, data = shown("heatmap", effects(MATRIX), effects(MATRIX), metric=METRIC, x_label="later", bar_label="change")
    axes, _ = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0", "a title, run 1"]
    image = axes[0].images[0].get_array()
    assert image.filled(-1).tolist() == [[-1, 0.5, 2.0], [-1, -1, 0.25], [-1, -1, -1]], "null is no 0"
    assert axes[0].get_ylim()[0] > axes[0].get_ylim()[1] and axes[0].get_xlabel() == "later"
    lines = csv_lines(data)
    first = {"panel": "a title", "series": "run 0", "picture": "", "row": 1, "column": 2, "value": 0.5}
    assert len(lines) == 6 and lines[0] == first
    json.dumps(data, allow_nan=False)


def test_all_panels_of_a_quantity_share_one_scale_and_one_bar():
    small, large = effects([[0.1, 0.2, 0.3]]), effects([[0.5, 4.0, 1.0]])
    plot, data = shown("heatmap", small, large, metric=METRIC, bar_label="change")
    axes, _ = drawn(plot, data)
    assert [ax.images[0].get_clim() for ax in axes] == [(0.0, 4.0)] * 2, "from 0 on"
    assert [bar.get_ylabel() for bar in bars(axes[0])] == ["change"]
    panels = [{"bar_label": name, "series": [{"cell": name, "label": "run"}]} for name in ("change", "cosine")]
    plot = plot_of("heatmap", panels, metric=METRIC)
    runs = {"change": {0: small}, "cosine": {0: large}}
    axes, _ = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs, i) for i in range(2)]})
    assert [ax.images[0].get_clim() for ax in axes] == [(0.0, 0.3), (0.0, 4.0)], "each quantity has its own"
    assert sorted(bar.get_ylabel() for bar in bars(axes[0])) == ["change", "cosine"]


@pytest.mark.parametrize(
    ("colours", "wanted", "limits"),
    [
        ("even", None, (-0.5, 2.0)),
        ("even", (-1.0, 3.0), (-1.0, 3.0)),
        ("diverging", None, (-2.0, 2.0)),
        ("log", None, (0.25, 2.0)),
        ("log", (0.1, 1.0), (0.1, 2.0)),
    ],
)
def test_the_scale_follows_the_values(colours, wanted, limits):
    record = effects([[-0.5 if colours != "log" else 0.0, 2.0], [0.25, None]])
    (ax,), _ = drawn(*shown("heatmap", record, metric=METRIC, colours=colours, value_range=wanted))
    assert ax.images[0].get_clim() == pytest.approx(limits)
    assert isinstance(ax.images[0].norm, LogNorm) == (colours == "log")
    missing = ax.images[0].to_rgba(np.ma.masked_invalid([[np.nan]]))[0, 0]
    assert missing[:3] == pytest.approx([0.88] * 3), "what was not measured is grey"


def test_thin_lines_show_where_the_blocks_of_a_grown_model_begin():
    matrix = [[1.0] * 6 for _ in range(6)]
    grown, other = effects(matrix, block=2, layers=6), effects(matrix, layers=6)
    axes, _ = drawn(*shown("heatmap", grown, other, metric=METRIC))
    assert [[line.get_xdata()[0] for line in ax.lines[::2]] for ax in axes] == [[1.5, 3.5], []]
    assert numbers("heatmap", effects([[1.0, 2.0]] * 2, block=2, layers=6), metric=METRIC)["block"] is None, "blocks"


def test_values_are_written_into_small_matrices_alone_and_ticks_are_few():
    (ax,), _ = drawn(*shown("heatmap", effects(MATRIX), metric=METRIC))
    assert [text.get_text() for text in ax.texts] == ["0.50", "2.00", "0.25"]
    (ax,), _ = drawn(*shown("heatmap", effects([[-0.001, -0.5]]), metric=METRIC))
    assert [text.get_text() for text in ax.texts] == ["0.00", "−0.50"]
    (ax,), _ = drawn(*shown("heatmap", effects([[1.0] * 32] * 32), metric=METRIC))
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert not ax.texts and labels[:2] == ["1", "4"] and len(labels) <= MOST_TICKS


def test_cells_are_means_over_seeds_that_all_have_them():
    seeds = {0: effects([[1.0, None], [None, 3.0]]), 1: effects([[2.0, 5.0], [None, 4.0]])}
    assert numbers("heatmap", seeds, metric=METRIC)["parts"][0]["matrix"] == [[1.5, None], [None, 3.5]]
    rows = {0: effects([1.0, None]), 1: effects([2.0, 3.0])}
    assert numbers("heatmap", rows, metric=METRIC)["row"] == [1.5, None]


def test_what_is_no_matrix_is_refused_and_what_was_not_measured_shows_nothing():
    assert numbers("heatmap", make_record(), metric=METRIC) is None
    skipped = make_record(results=make_results(probes={"effects": {"skipped": "one token"}}))
    assert numbers("heatmap", skipped, metric=METRIC) is None
    with pytest.raises(UserError, match=r"has the shape \(\) in run 0+; 'heatmap' needs a matrix, matrices or a list"):
        numbers("heatmap", effects(1.0), metric=METRIC)
    for wrong in ([[1.0], [1.0, 2.0]], [["a"]]):
        with pytest.raises(UserError, match="is neither a number nor a list of numbers"):
            numbers("heatmap", effects(wrong), metric=METRIC)


CLASSES = [{"name": "window", "letter": "w", "colour": 5}, {"name": "full attention", "letter": "F", "colour": 1}]
MASKS = {"m": "controller.masks"}


def test_classes_have_letters_and_names_in_the_place_of_a_scale():
    measures = {"heads": ("turned(m)", MASKS)}
    plot, data = shown("heatmap", {0: learned(), 1: learned()}, metric="heads", classes=CLASSES, measures=measures)
    (ax,), legend = drawn(plot, data)
    assert data["panels"][0]["series"][0]["seeds"] == [0], "a mean of classes is none"
    assert ax.images[0].get_array().tolist() == [[0, 0, 1], [0, 1, 1]], "heads downwards, layers to the right"
    assert sorted(text.get_text() for text in ax.texts) == ["F"] * 3 + ["w"] * 3
    assert legend == ["full attention", "window"] and not bars(ax)
    assert ax.images[0].to_rgba(np.array([[0]]))[0, 0, :3] == pytest.approx([0x56 / 255, 0xB4 / 255, 0xE9 / 255])


def test_lists_are_rows_of_one_panel_as_high_as_it_needs():
    measures = {"layers": ("m[:, 0]", MASKS)}
    settings = {"metric": "layers", "classes": CLASSES, "square": False, "measures": measures}
    plot, data = shown("heatmap", learned(), make_record(), learned(), **settings)
    (ax,), _ = drawn(plot, data)
    assert ax.figure.get_size_inches() == pytest.approx([3.4 + 0.4, 1.3 + 2 * 0.3 + 0.16])
    assert ax.images[0].get_array().tolist() == [[0, 0, 1]] * 2
    assert [label.get_text() for label in ax.get_yticklabels()] == ["run 0", "run 2"]
    assert len(csv_lines(data)) == 6 and ax.get_aspect() == "auto"


def test_matrices_are_a_panel_each():
    maps = [[[1, 0], [0, 1]], [[1, 0], [1, 1]]]
    measures = {"part": ("1 / c", {"c": "results.probes.reach.chunks"})}
    settings = {"metric": "results.probes.reach.maps", "titles": "after loop {}, at {part}", "measures": measures}
    classes = [{}, {"name": "reached", "colour": 0}]
    plot, data = shown("heatmap", probed(reach={"chunks": [2, 1], "maps": maps}), classes=classes, **settings)
    axes, legend = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == [f"a title, run 0, after loop {at}" for at in ("1, at 1/2", "2, at 1")]
    assert [ax.images[0].get_array().tolist() for ax in axes] == maps and legend == ["reached"]


def test_cells_can_have_frames_and_rows_names():
    record = probed(loops={"range": [[0.4, 0.6], [0.5, 0.8]], "dynamic": [[True, False], [False, True]], "at": [1, 2]})
    of = "results.probes.loops"
    measures = {"stretched": ("(r - min(r)) / (max(r) - min(r))", {"r": f"{of}.range"})}
    settings = {"metric": "stretched", "boxed": f"{of}.dynamic", "names": f"{{{of}.at}}", "measures": measures}
    plot, data = shown("heatmap", record, **settings)
    assert data["panels"][0]["series"][0]["data"]["boxed"] == [[0, 0], [1, 1]]
    (ax,), _ = drawn(plot, data)
    assert [round(number, 2) for patch in ax.patches for number in patch.get_xy()] == [-0.43, -0.43, 0.57, 0.57]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2"]
    assert [line["boxed"] for line in csv_lines(data)] == [True, False, False, True]


# ---- lineage ----


def grown(method, block, layers):
    """A run that has grown to so many layers."""
    lineage = first_lineage(block)
    for count in range(block, layers, block):
        lineage = grown_lineage(lineage, copied_layers(method, count, block))
    config = {**config_of("vanilla"), "controller": {"kind": "stacking", "block": block}}
    return make_record(config=config, structure={"lineage": lineage_to_json(lineage)})


def test_the_lineage_is_a_row_for_each_model_with_the_source_of_every_layer():
    steps = numbers("lineage", grown("lidas", 4, 12))["steps"]
    assert [step["sources"] for step in steps] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7],
    ], "of two blocks, LIDAS copies the last two layers of one and the first two of the other"
    assert steps[2]["copied"] == [False] * 6 + [True] * 4 + [False] * 2
    midas = numbers("lineage", grown("midas", 4, 12))["steps"]
    assert midas[2]["sources"] == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7], "MIDAS copies the block before the middle"


def test_the_drawing_of_a_lineage_has_a_box_for_each_layer_and_a_black_line_for_each_copy():
    plot, data = shown("lineage", grown("midas", 2, 6), grown("lidas", 2, 6), y_label="growth step")
    axes, legend = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0", "a title, run 1"]
    assert legend == ["copied in this step"]
    midas, lidas = axes
    assert [label.get_text() for label in midas.get_yticklabels()] == ["start: 2", "step 1: 4", "step 2: 6"]
    assert len(midas.patches) == 2 + 4 + 6
    assert [text.get_text() for text in midas.texts][6:] == ["1", "2", "1", "2", "3", "4"]
    assert [text.get_text() for text in lidas.texts][6:] == ["1", "2", "3", "2", "3", "4"]
    black = [line for line in lidas.lines if line.get_color() == "black"]
    assert len(black) == 2 * 2 and all(one.get_ydata()[0] < one.get_ydata()[1] for one in black)
    tops = [patch.get_y() for patch in lidas.patches]
    assert all(above <= below for above, below in pairwise(tops)), "the first model is at the top"
    colours = [patch.get_facecolor() for patch in lidas.patches[6:]]
    assert [colour == colours[0] for colour in colours] == [True, True, False, True, False, False], (
        "blocks of the source"
    )
    assert csv_lines(data)[-1] == {
        "panel": "a title",
        "series": "run 1",
        "growth step": 2,
        "layer": 6,
        "source": 4,
        "copied": False,
    }


def test_a_run_without_growth_has_no_lineage_to_draw():
    assert numbers("lineage", make_record()) is None


# ---- blocks beside lines ----


def test_a_line_over_all_layers_shows_where_blocks_begin():
    def run(block):
        made = effects([[1.0]], block=block, layers=6)
        probes = {"sizes": {"y": [0.1, 0.2, 0.5, 0.2, 0.1, 1.0], "few": [1.0, 2.0]}}
        return made.model_copy(update={"results": make_record(results=make_results(probes=probes)).results})

    metric = "results.probes.sizes.y"
    assert numbers("lines", run(2), metric=metric)["block"] == 2 and "block" not in numbers(
        "lines", run(None), metric=metric
    )
    assert "block" not in numbers("lines", run(2), metric="results.probes.sizes.few"), "no list of layers"
    plot, data = shown("lines", run(None), run(2), metric=metric, y_scale="log")
    (ax,), legend = drawn(plot, data)
    assert "a block of grown layers begins" in legend and ax.get_yscale() == "log"
    upright = [line.get_xdata()[0] for line in ax.lines if list(line.get_ydata()) == [0, 1] and len(line.get_xdata())]
    assert upright == [2.5, 4.5]
    assert {"0.1", "0.2", "0.5", "1"} <= {label.get_text() for label in ax.get_yticklabels()}, "plain numbers"


def test_panels_with_the_same_logarithmic_axis_share_it():
    record = make_record(results=make_results(probes={"sizes": {"small": [0.01, 0.02], "large": [1.0, 20.0]}}))
    series = [{"cell": "a", "label": "run"}]
    panels = [{"metric": f"results.probes.sizes.{name}", "series": series} for name in ("small", "large")]
    plot = plot_of("lines", panels, y_scale="log")
    axes, _ = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, {"a": {0: record}}, i) for i in range(2)]})
    assert axes[0].get_ylim() == axes[1].get_ylim() and axes[0].get_ylim()[0] > 0
