"""Each kind of figure: its numbers from a small handmade record, its lines in figure.csv, and what it draws."""

import math
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hybridlab.config.loading import check, load_file
from hybridlab.errors import UserError
from hybridlab.papers.experiment import Experiment, Panel, PaperMark, Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, moving_average, one_run, whole
from hybridlab.reporting.figures import _errors_text, _panel_data, csv_lines, draw
from hybridlab.reporting.kinds.attention import _short
from hybridlab.reporting.style import PAPER
from tests.records import config_of, make_loss, make_record, make_results

MASKS = [[0, 0], [0, 1], [1, 1]]
LEARNED = {"masks": MASKS, "scores": [[0.1, 0.3], [0.5, 0.7], [0.8, 1.0]]}


def learned(**changes):
    config = config_of("consa")
    return make_record(config=config, hooks={config["controller"]["kind"]: LEARNED, "entropy-log": {}}, **changes)


def logged(entropies, **changes):
    """A run whose heads had these entropies, [step][layer][head], every ten steps."""
    steps = [10 * (i + 1) for i in range(len(entropies))]
    return make_record(hooks={"entropy-log": {"steps": steps, "entropies": entropies}}, **changes)


def probed(**probes):
    return make_record(results=make_results(probes=probes))


TWO_LAYERS = [[[1.0, 0.8], [0.9, 0.9]], [[0.9, 0.5], [0.9, 0.8]], [[1.0, 0.2], [0.5, 0.3]]]
STATISTIC = {
    "values": [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.9]]],
    "range": [[0.4, 0.4], [0.4, 0.5]],
    "dynamic": [[True, False], [False, True]],
}
LOOPS = {"chunks": [4, 1], "layers": [1, 2], "entropy": STATISTIC, "fresh": {"entropy": []}}


LENS = {"overlap": [0.2, None, 0.6, 1.0], "starts": [0, 1, 2, 3], "score": {"value": 1.5, "stderr": 0.25, "n": 20}}
PROBE = "results.probes.lens"


def shown(kind, *records, panel=None, **settings):
    """The data of a figure with one panel, a series for each record, or for the records of several seeds."""
    series = [{"cell": f"cell {i}", "label": f"run {i}"} for i in range(len(records))]
    panel = panel or {"title": "a title", "series": series}
    plot = Plot.model_validate({"kind": kind, "panels": [panel], **settings})
    by_cell = {f"cell {i}": record if isinstance(record, dict) else {0: record} for i, record in enumerate(records)}
    return plot, {"panels": [_panel_data(plot, plot.panels[0], by_cell)]}


def numbers(kind, record, **settings):
    """What one run shows."""
    plot, data = shown(kind, record, **settings)
    return data["panels"][0]["series"][0]["data"]


def drawn(plot, data):
    """The axes of the figure, after it has been drawn in full, and the figure's own legend."""
    figure = draw(data, plot)
    FigureCanvasAgg(figure).draw()
    axes = [ax for ax in figure.axes if ax.axison and ax.get_label() != "<colorbar>"]
    return axes, [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def legend_of(ax):
    """What a panel has in the figure's legend."""
    return ax.get_legend_handles_labels()[1]


def test_a_history_is_smoothed_and_may_be_a_perplexity():
    record = make_record(history={"step": [1, 2, 3], "flops": [5.0, 6.0, 7.0], "loss": [0.0, 3.0, 6.0]})
    assert numbers("history", record, metric="loss") == {"x": [1, 2, 3], "y": [0.0, 3.0, 6.0]}
    curve = numbers("history", record, metric="loss", x="flops", smooth=3, exponential=True)
    assert curve == {"x": [5.0, 6.0, 7.0], "y": [math.exp(1.5), math.exp(3.0), math.exp(4.5)]}
    panel = {"series": [{"cell": "cell 0", "label": "run"}], "targets": [1.0]}
    plot, data = shown("history", record, panel=panel, metric="loss", x_label="step", y_label="loss")
    (ax,), _ = drawn(plot, data)
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.0, 3.0, 6.0], [1.0, 1.0]]
    assert (ax.get_xlabel(), ax.get_ylabel(), legend_of(ax)) == ("step", "loss", ["run", "target"])
    assert csv_lines(data, plot)[1] == {"panel": "", "series": "run", "x": 2, "y": 3.0}


def test_layer_masks_are_a_row_for_each_run():
    assert numbers("layer masks", learned()) == {"masks": MASKS}
    plot, data = shown("layer masks", learned(), learned())
    (ax,), legend = drawn(plot, data)
    assert ax.figure.get_size_inches() == pytest.approx([3.4 + 0.4, 1.3 + 2 * 0.3]), "as high as two rows need"
    assert ax.images[0].get_array().tolist() == [[0, 0, 1], [0, 0, 1]]
    assert [text.get_text() for text in ax.texts] == ["w", "w", "F"] * 2 and legend == ["full attention", "window"]
    assert len(csv_lines(data, plot)) == 12


def test_head_masks_are_a_panel_for_each_run():
    plot, data = shown("head masks", learned(), learned())
    axes, legend = drawn(plot, data)
    assert axes[0].figure.get_size_inches() == pytest.approx([2 * 3.4 + 0.4, 2.6])
    assert [ax.get_title() for ax in axes] == ["a title, run 0", "a title, run 1"]
    assert axes[0].images[0].get_array().tolist() == [[0, 0, 1], [0, 1, 1]], "heads upwards, layers to the right"
    assert legend == ["full attention", "window"]
    expected = {"panel": "a title", "series": "run 0", "layer": 2, "kv_head": 2, "full": 1}
    assert csv_lines(data, plot)[3] == expected


def test_the_window_share_is_that_of_heads_in_a_layer():
    share = numbers("window share", learned())
    assert share == {"x": [1, 2, 3], "y": [1.0, 0.5, 0.0], "smooth": [0.75, 0.5, 0.25]}
    plot, data = shown("window share", learned())
    (ax,), _ = drawn(plot, data)
    assert [list(line.get_ydata()) for line in ax.lines][:2] == [share["y"], share["smooth"]]
    assert legend_of(ax) == ["run 0", "each layer (thick lines: mean of 3 layers)"], "thin lines have a name too"
    assert csv_lines(data, plot)[0] == {"panel": "a title", "series": "run 0", "x": 1, "y": 1.0, "smooth": 0.75}


def test_scores_are_means_over_the_heads_of_a_layer():
    scores = numbers("scores", learned())
    assert scores["x"] == [1, 2, 3] and scores["y"] == pytest.approx([0.2, 0.6, 0.9])
    plot, data = shown("scores", learned())
    (ax,), _ = drawn(plot, data)
    assert ax.lines[0].get_marker() == "o" and len(csv_lines(data, plot)) == 3


def test_stages_are_bars_of_tokens_or_the_masks_of_one_run():
    assert numbers("stages", make_record()) == {"tokens": 1000, "steps": 100, "map": "wwww"}
    plot, data = shown("stages", make_record(tokens=3_000_000), learned(tokens=1_000_000))
    (ax,), legend = drawn(plot, data)
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0.0, 3.0), (3.0, 1.0)]
    assert legend == ["full attention", "window"]
    assert [line.get("tokens") for line in csv_lines(data, plot)] == [3_000_000, *[None] * 6, 1_000_000]
    (ax,), _ = drawn(*shown("stages", learned()))
    assert ax.get_xlabel() == "layer 2: key positions", "the first layer with both kinds"
    drawn_map = ax.images[0].get_array()
    seq_len, window = (config_of("consa")[part][name] for part, name in (("training", "seq_len"), ("map", "window")))
    length = min(4 * window, seq_len)
    assert (drawn_map == 1).sum() == length * (length + 1) / 2, "full: every earlier key"
    assert (drawn_map == 0).sum() == window * (length - window) + window * (window + 1) / 2
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "head 1\nα = 0.5\nwindow by rank\n(by α > 0: full)",
        "head 2\nα = 0.7",
    ], "a head whose rank decided otherwise than the sign of α"
    negative = {**LEARNED, "scores": [[-2.0, -1.9], [-2.3, -1.9], [-1.0, -0.5]]}
    config = config_of("consa")
    record = make_record(config=config, hooks={config["controller"]["kind"]: negative, "entropy-log": {}})
    (ax,), _ = drawn(*shown("stages", record))
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["head 1\nα = −2.3", "head 2\nα = −1.9\nfull by rank\n(by α > 0: window)"]


def test_head_entropies_end_with_the_variance_in_each_layer():
    record = logged(TWO_LAYERS, events=[{"step": 20, "kind": "loop-added"}, {"step": 30, "kind": "fade-ended"}])
    entropies = numbers("head entropies", record)
    assert entropies["x"] == [10, 20, 30] and entropies["marks"] == [20]
    assert [part["title"] for part in entropies["layers"]] == ["layer 1", "layer 2", "variance in each layer"]
    assert entropies["layers"][0]["lines"] == {"head 1": [1.0, 0.9, 1.0], "head 2": [0.8, 0.5, 0.2]}
    assert entropies["layers"][2]["lines"]["layer 1"] == pytest.approx([0.01, 0.04, 0.16])
    plot, data = shown("head entropies", record, y_label="entropy")
    axes, legend = drawn(plot, data)
    assert [ax.get_ylabel() for ax in axes] == ["entropy", "entropy", "variance of entropy"]
    begins = "a layer begins to loop"
    assert legend == ["head 1", "head 2", begins, "layer 1", "layer 2"], "one legend, outside the panels"
    assert [legend_of(ax) for ax in axes] == [["head 1", "head 2", begins]] * 2 + [["layer 1", "layer 2", begins]]
    assert [list(ax.lines[-1].get_xdata()) for ax in axes] == [[20, 20]] * 3
    assert len(csv_lines(data, plot)) == 18 and csv_lines(data, plot)[-1]["picture"] == "variance in each layer"


def test_two_runs_show_the_same_heads_those_that_move_most_over_both():
    other = [[[0.8, 0.8], [0.9, 0.9]], [[0.1, 0.8], [0.9, 0.8]], [[0.9, 0.8], [0.5, 0.3]]]
    plot, data = shown("head entropies", logged(TWO_LAYERS), logged(other), depth=0.0, count=1)
    chosen = [list(series["data"]["layers"][0]["lines"]) for series in data["panels"][0]["series"]]
    assert chosen == [["head 1"], ["head 1"]], "alone, the first run would show head 2"
    axes, _ = drawn(plot, data)
    assert axes[0].get_ylim() == axes[1].get_ylim()


def test_many_heads_all_look_different():
    table = [[0.9 - 0.01 * head for head in range(16)]]
    (ax,), legend = drawn(*shown("head entropies", logged([table, table]), depth=0.0))
    looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
    assert len(looks) == 16 == len(legend)


def test_head_entropies_at_a_depth_show_the_heads_that_move_most():
    (part,) = numbers("head entropies", logged(TWO_LAYERS), depth=0.0, count=1)["layers"]
    assert part == {"title": "layer 1", "lines": {"head 2": [0.8, 0.5, 0.2]}}
    assert len(numbers("head entropies", logged(TWO_LAYERS), count=1)["layers"][0]["lines"]) == 2, "layers are counted"
    assert len(numbers("head entropies", logged(TWO_LAYERS), depth=1.0)["layers"][0]["lines"]) == 2
    plot, data = shown("head entropies", logged(TWO_LAYERS), depth=1.0, y_label="entropy")
    (ax,), _ = drawn(plot, data)
    assert ax.get_title() == "a title, run 0, layer 2" and ax.get_ylabel() == "entropy"


def test_many_panels_of_head_entropies_share_a_legend():
    record = logged([[[0.9, 0.8]] * 5, [[0.9, 0.7]] * 5])
    axes, legend = drawn(*shown("head entropies", record))
    assert axes[0].figure.get_size_inches() == pytest.approx([3 * 2.3 + 0.4, 2 * 1.9 + 0.16]), "three fit a page"
    assert legend == ["head 1", "head 2", *(f"layer {i + 1}" for i in range(5))]
    assert len({tuple(ax.get_ylim()) for ax in axes[:5]}) == 1, "panels of heads have the same axis"
    assert axes[5].get_ylim() != axes[0].get_ylim() and axes[5].get_legend() is None


def test_entropy_variance_has_a_line_for_each_chosen_layer():
    variances = numbers("entropy variance", logged(TWO_LAYERS), count=1)
    assert list(variances["lines"]) == ["layer 1"] and variances["lines"]["layer 1"] == pytest.approx(
        [0.01, 0.04, 0.16]
    )
    smooth = numbers("entropy variance", logged(TWO_LAYERS), smooth=3)["lines"]
    assert smooth["layer 1"] == pytest.approx([0.025, 0.07, 0.1])
    plot, data = shown("entropy variance", logged(TWO_LAYERS), logged(TWO_LAYERS))
    axes, _ = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0", "a title, run 1"]
    assert legend_of(axes[0]) == ["layer 1", "layer 2"] and len(csv_lines(data, plot)) == 12


def test_layer_entropy_reads_early_and_takes_means_over_heads():
    tables = [[[i / 100, 0.0], [0.5, 0.7]] for i in range(40)]
    entropies = numbers("layer entropy", logged(tables), count=2)
    assert entropies["x"] == [1, 2] and list(entropies["lines"]) == ["step 20", "step 40"], "5 and 10 % of 400 steps"
    assert entropies["lines"]["step 40"] == pytest.approx([0.015, 0.6])
    plot, data = shown("layer entropy", logged(tables), count=2)
    (ax,), _ = drawn(plot, data)
    assert [line.get_marker() for line in ax.lines] == ["o", "o"] and len(csv_lines(data, plot)) == 4


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
    assert len(legend_of(ax)) == 3 and len(csv_lines(data, plot)) == 4


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
    assert csv_lines(data, plot)[3] == {
        "panel": "a title",
        "series": "run 0",
        "loop": 1,
        "place": 1,
        "token": " b",
        "y": 0.3,
    }
    assert [_short(token, 8) for token in ("a\n b", "12345678", "123456789")] == [
        "a\\n_b",
        "12345678",
        "1234567…",
    ]
    with pytest.raises(
        UserError, match="plot.example is 2, but run 0000000000000000 has 2 examples; write a number from 0 to 1"
    ):
        numbers("contributions", record, example=2)


def test_points_are_in_the_order_of_x_and_leave_out_missing_runs():
    runs = {"a": {0: make_record(flops=2.0)}, "b": {0: make_record(flops=1.0, results=make_results())}}
    series = [{"cells": ["a", "b", "not run"], "label": "by record"}]
    plot = Plot(kind="points", metric="results.validation.loss", x="flops", panels=[{"series": series}])
    data = {"panels": [_panel_data(plot, plot.panels[0], runs)]}
    first = {"x": 1.0, "y": 3.0, "stderr": None, "over": None, "n": 1}
    assert data["panels"][0]["series"][0]["data"] == {
        "points": [{"run": "b", **first}, {"run": "a", **first, "x": 2.0}]
    }
    (ax,), _ = drawn(plot, data)
    assert [text.get_text() for text in ax.texts] == ["3.000", "3.000"]
    assert list(ax.lines[0].get_xdata()) == [1.0, 2.0] and csv_lines(data, plot)[0]["run"] == "b"
    given = Panel(series=[{"cells": ["a", "not run", "b"], "label": "given", "x": [7.0, 8.0, 5.0]}])
    line = _panel_data(plot, given, runs)["series"][0]
    assert [(point["run"], point["x"]) for point in line["data"]["points"]] == [("b", 5.0), ("a", 7.0)]
    assert line["run"] == ["0" * 16, None, "0" * 16]
    nowhere = _panel_data(plot.model_copy(update={"x": "no.such"}), plot.panels[0], runs)
    assert nowhere["series"][0]["data"] is None, "a point without an x is left out"


def test_values_beside_points_stay_inside_the_frame_and_off_the_line():
    """In two panels with the same axes, of which one is far below the other."""
    curves = {"a": [3.75, 4.19, 3.97, 4.06], "b": [3.33, 3.35, 3.29, 3.35]}
    runs = {
        f"{name}{i}": {0: make_record(results=make_results(validation=make_loss(loss)))}
        for name, losses in curves.items()
        for i, loss in enumerate(losses)
    }
    panels = [
        {"series": [{"cells": [f"{name}{i}" for i in range(4)], "x": [0, 17, 33, 50], "label": "L"}]} for name in curves
    ]
    plot = Plot.model_validate({"kind": "points", "metric": "results.validation.loss", "panels": panels})
    axes, _ = drawn(plot, {"panels": [_panel_data(plot, panel, runs) for panel in plot.panels]})
    for ax in axes:
        frame = ax.get_window_extent()
        boxes = [text.get_window_extent() for text in ax.texts]
        assert all(frame.y0 < box.y0 and box.y1 < frame.y1 for box in boxes)
        points = ax.transData.transform(list(zip(*ax.lines[0].get_data(), strict=True)))
        at = [(x, y) for a, b in zip(points, points[1:], strict=False) for x, y in _between(a, b)]
        assert not any(box.contains(x, y) for box in boxes for x, y in at)


def _between(first, last):
    """Places along a line."""
    return [first + (last - first) * i / 50 for i in range(51)]


def test_large_numbers_along_x_have_their_power_of_ten_in_the_label():
    record = make_record(history={"step": [1, 2], "flops": [1e12, 4e12], "loss": [3.0, 2.0]})
    (ax,), _ = drawn(*shown("history", record, metric="loss", x="flops", x_label="FLOPs"))
    assert ax.get_xlabel() == "FLOPs, 10¹²"
    assert {"1", "4"} <= {label.get_text() for label in ax.get_xticklabels()}


def test_a_picture_says_what_it_is_and_whose_models_it_shows():
    plot, data = shown("history", history([1.0, 2.0, 3.0]), metric="loss")
    about = {"id": "some-fig1", "title": "A loss", "shown": "trained here at scale smoke: tiny; seed 0 alone"}
    assert draw({**data, **about}, plot).get_suptitle() == "\n".join([f"{about['id']}: A loss", about["shown"]])


def test_distributions_are_over_dynamic_heads_or_all_in_two_panels():
    record = probed(loops=LOOPS)
    spread = numbers("distributions", record, metric="entropy")
    assert [(p["loop"], p["resolution"], p["layer"], p["head"], p["y"]) for p in spread["points"]] == [
        (1, "1/4", 2, 1, 0.1),
        (1, "1/4", 3, 2, 0.4),
        (2, "1", 2, 1, 0.5),
        (2, "1", 3, 2, 0.9),
    ]
    assert len(numbers("distributions", record, metric="entropy", heads="all")["points"]) == 8
    plot, data = shown("distributions", record, metric="entropy", y_label="entropy")
    axes, _ = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0, ridgelines", "a title, run 0, boxes"]
    assert [ax.get_xlabel() for ax in axes] == ["entropy", "loop (resolution)"]
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["1\n(1/4)", "2\n(1)"], "beside the bars"
    assert [label.get_text() for label in axes[1].get_xticklabels()] == ["1\n(1/4)", "2\n(1)"]
    assert list(axes[1].lines[-1].get_ydata()) == pytest.approx([0.25, 0.7]) and len(csv_lines(data, plot)) == 4


def test_head_ranges_are_stretched_over_all_heads():
    ranges = numbers("head ranges", probed(loops=LOOPS), metric="entropy")
    assert [(p["layer"], p["head"], p["dynamic"], p["range"]) for p in ranges["points"]] == [
        (2, 1, True, 0.4),
        (2, 2, False, 0.4),
        (3, 1, False, 0.4),
        (3, 2, True, 0.5),
    ]
    assert [point["y"] for point in ranges["points"]] == [0.0, 0.0, 0.0, 1.0]
    plot, data = shown("head ranges", probed(loops=LOOPS), metric="entropy")
    (ax,), _ = drawn(plot, data)
    assert len(ax.patches) == 2, "dynamic heads are boxed"
    assert ax.images[0].get_array().tolist() == [[0.0, 0.0], [0.0, 1.0]] and len(csv_lines(data, plot)) == 4


def test_reach_is_a_panel_for_each_iteration():
    maps = [[[1, 0], [0, 1]], [[1, 0], [1, 1]]]
    reached = numbers("reach", probed(reach={"chunks": [2, 1], "maps": maps}))
    assert [part["title"] for part in reached["layers"]] == ["after loop 1, at 1/2", "after loop 2, at 1"]
    assert reached["points"][-2:] == [{"loop": 2, "output": 1, "input": 0}, {"loop": 2, "output": 1, "input": 1}]
    plot, data = shown("reach", probed(reach={"chunks": [2, 1], "maps": maps}))
    axes, legend = drawn(plot, data)
    assert legend == ["the output depends on this input"]
    assert [ax.images[0].get_array().tolist() for ax in axes] == maps and len(csv_lines(data, plot)) == 5


KINDS_OF_ONE_RUN = [name for name in FIGURE_KINDS.names() if name not in ("history", "points", "stages")]


@pytest.mark.parametrize("kind", KINDS_OF_ONE_RUN)
def test_a_run_that_measured_nothing_of_the_kind_shows_nothing(kind):
    metric = f"{PROBE}.overlap" if kind == "profile" else "entropy"
    assert numbers(kind, make_record(), metric=metric) is None


@pytest.mark.parametrize("kind", ["contributions", "distributions", "head ranges", "reach"])
def test_a_skipped_probe_shows_nothing(kind):
    skipped = {"skipped": "a layer of this model has 1"}
    record = probed(contributions=skipped, loops=skipped, reach=skipped)
    assert numbers(kind, record, metric="entropy") is None


def test_contributions_without_head_loops_show_nothing():
    assert numbers("contributions", probed(contributions={"sublayers": {}})) is None


def test_a_profile_is_a_line_for_a_list_with_the_level_of_its_run():
    record = probed(lens=LENS)
    line = numbers("profile", record, metric=f"{PROBE}.overlap")
    assert line == {"x": [1, 3, 4], "y": [0.2, 0.6, 1.0], "level": None, "y_scale": "linear"}, "without nulls, from 1"
    line = numbers("profile", record, metric=f"{PROBE}.overlap", x=f"{PROBE}.starts", level=f"{PROBE}.score")
    assert line["x"] == [0, 2, 3] and line["level"] == 1.5
    plot, data = shown("profile", record, probed(lens=LENS), metric=f"{PROBE}.overlap", level=f"{PROBE}.score")
    (ax,), legend = drawn(plot, data)
    assert legend == ["run 0", "run 1", "intact model, in its colour"]
    assert list(ax.lines[1].get_ydata()) == [1.5, 1.5] and ax.lines[1].get_color() == ax.lines[0].get_color()
    assert csv_lines(data, plot)[1] == {"panel": "a title", "series": "run 0", "x": 3, "y": 0.6}


def test_a_profile_is_a_bar_for_a_number_with_its_error():
    runs = [probed(lens=LENS), probed(lens={"score": {"value": -1.0, "stderr": None, "n": 1}})]
    plot, data = shown("profile", *runs, metric=f"{PROBE}.score", y_label="score")
    (ax,), legend = drawn(plot, data)
    assert [bar.get_height() for bar in ax.patches] == [1.5, -1.0] and legend == []
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["run 0", "run 1"], "names below the bars"
    assert [text.get_text() for text in ax.texts] == ["1.50", "−1.00"] and len(ax.collections) == 1, "one has an error"
    assert _errors_text(data["panels"]).endswith("over the sequences of a single run; it decides nothing")
    assert csv_lines(data, plot)[0] == {"panel": "a title", "series": "run 0", "y": 1.5, "stderr": 0.25}


def test_profiles_of_several_seeds():
    other = {"overlap": [0.4, None, 0.8, 1.0], "score": {"value": 2.5, "stderr": 0.1, "n": 20}}
    seeds = {0: probed(lens=LENS), 1: probed(lens=other)}
    line = numbers("profile", seeds, metric=f"{PROBE}.overlap", level=f"{PROBE}.score")
    assert line["y"] == pytest.approx([0.3, 0.7, 1.0]) and line["low"] == pytest.approx([0.2, 0.6, 1.0])
    assert line["level"] == 2.0 and line["seeds"] == 2
    bar = numbers("profile", seeds, metric=f"{PROBE}.score")
    assert bar == {"y": 2.0, "stderr": pytest.approx(0.5), "over": "seeds", "seeds": 2}


def test_a_profile_may_show_a_measure(tmp_path):
    file = tmp_path / "fig1.yaml"
    file.write_text(
        "id: toy-fig1\ntitle: Toy\npaper: toy\nsource: x\n"
        'measures: {fall: {title: f, of: {y: results.probes.lens.overlap}, formula: "y - y[-1]"}}\n'
        "plot: {kind: profile, metric: fall, panels: [{series: [{cell: a, label: run}]}]}\n"
    )
    plot = check(Experiment, load_file(file)).plot
    panel = _panel_data(plot, plot.panels[0], {"a": {0: probed(lens=LENS)}})
    assert panel["series"][0]["data"]["y"] == pytest.approx([-0.8, -0.4, 0.0])
    wrong = plot.model_copy(update={"metric": "fal"})
    with pytest.raises(UserError, match="plot.metric is 'fal', which is no measure .* did you mean 'fall'?"):
        _panel_data(wrong, wrong.panels[0], {"a": {0: probed(lens=LENS)}})


def test_small_and_large_numbers_share_an_axis():
    small, large = probed(lens={"overlap": [0.0, 0.001, 0.002]}), probed(lens={"overlap": [0.0, -0.001, 9.0]})
    series = [{"cell": "cell 0", "label": "a"}]
    panels = [{"series": series}, {"series": [{"cell": "cell 1", "label": "b"}]}]
    plot = Plot.model_validate({"kind": "profile", "metric": f"{PROBE}.overlap", "y_scale": "symlog", "panels": panels})
    data = [_panel_data(plot, one, {"cell 0": {0: small}, "cell 1": {0: large}}) for one in plot.panels]
    axes, _ = drawn(plot, {"panels": data})
    assert [ax.get_yscale() for ax in axes] == ["symlog"] * 2 and axes[0].get_ylim() == axes[1].get_ylim()
    assert -0.02 < axes[0].get_ylim()[0] < -0.001 and 9 < axes[0].get_ylim()[1] < 100, "room as it is drawn"


@pytest.mark.parametrize(
    "settings",
    [{"x": f"{PROBE}.two"}, {"x": f"{PROBE}.nothing"}, {"level": f"{PROBE}.two"}, {"metric": f"{PROBE}.matrix"}],
)
def test_a_profile_of_other_shapes_is_refused(settings):
    record = probed(lens={**LENS, "two": [1, 2], "matrix": [[1, 2], [3, 4]]})
    with pytest.raises(UserError, match="a line needs two lists of the same length, and `level` a number"):
        numbers("profile", record, **{"metric": f"{PROBE}.overlap", **settings})


def test_every_built_in_kind_has_a_test_here():
    tested = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    names = FIGURE_KINDS.names()
    assert len(names) == 23 and not [name for name in names if f'"{name}"' not in tested]


def test_mistakes_in_a_plot_name_the_nearest():
    record = make_record(history={"step": [1], "loss": [1.0]}, results=make_results(probes={"loops": LOOPS}))
    with pytest.raises(UserError, match=r"plot.metric is 'los', which run 0+ does not have; did you mean 'loss'\?"):
        numbers("history", record, metric="los")
    with pytest.raises(UserError, match=r"plot.x is 'stepp'.*did you mean 'step'\?"):
        numbers("history", record, metric="loss", x="stepp")
    with pytest.raises(UserError, match=r"plot.metric is 'entropie'.*did you mean 'entropy'\?"):
        numbers("head ranges", record, metric="entropie")
    with pytest.raises(UserError, match="plot.metric is 'fresh'"):
        numbers("head ranges", record, metric="fresh")
    with pytest.raises(UserError, match="'a line' names 2 cells; 'history' shows one cell per series"):
        shown("history", panel={"series": [{"cells": ["x", "y"], "label": "a line"}]}, metric="loss")


def test_a_misspelt_kind_is_an_error_with_file_and_line(tmp_path):
    file = tmp_path / "fig1.yaml"
    file.write_text("id: toy-fig1\ntitle: Toy\npaper: toy\nsource: x\nplot:\n  panels: []\n  kind: head mask\n")
    with pytest.raises(UserError, match=r"fig1.yaml:7: plot.kind: 'head mask' is not .*; did you mean 'head masks'\?"):
        check(Experiment, load_file(file))


def test_a_kind_from_outside_is_drawn_like_any_other():
    def draw_total(ax, picture):
        ax.bar([0], [picture.numbers["total"]])

    with pytest.raises(ValueError, match="'parameter count' is not a kind of figure"):
        shown("parameter count", make_record())
    total = one_run(lambda plot, record: {"total": record.parameters["total"]})
    kind = FigureKind(total, draw_total, lambda numbers: [numbers], parts=whole)
    FIGURE_KINDS.add("parameter count", kind)
    try:
        plot, data = shown("parameter count", make_record(), make_record(parameters={"total": 7}))
        axes, _ = drawn(plot, data)
        assert [ax.patches[0].get_height() for ax in axes] == [1000000, 7]
        assert csv_lines(data, plot)[1] == {"panel": "a title", "series": "run 1", "total": 7}
    finally:
        FIGURE_KINDS.remove("parameter count")


def test_moving_average():
    assert moving_average([1, 2, 3, 4], 1) == [1, 2, 3, 4]
    assert moving_average([0, 3, 6, 9], 3) == [1.5, 3, 6, 7.5]


# ---- several seeds ----


def history(*losses, **changes):
    """The runs of several seeds: the same steps and FLOPs, and these losses."""
    columns = {"step": [1, 2, 3], "flops": [10.0, 20.0, 40.0]}
    return {seed: make_record(history={**columns, "loss": loss}, **changes) for seed, loss in enumerate(losses)}


def test_seeds_become_a_mean_with_a_band_of_one_standard_error():
    curve = numbers("history", history([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 5.0]), metric="loss")
    assert curve["y"] == [2.0, 2.0, 3.0] and curve["seeds"] == 3 and curve["x"] == [1, 2, 3]
    error = 1 / math.sqrt(3)
    assert curve["low"][:2] == pytest.approx([2 - error, 2.0]) and curve["high"][0] == pytest.approx(2 + error)
    plot, data = shown("history", history([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]), metric="loss")
    assert data["panels"][0]["series"][0]["seeds"] == [0, 1]
    (ax,), _ = drawn(plot, data)
    assert len(ax.collections) == 1, "the band"
    assert csv_lines(data, plot)[0] == {
        "panel": "a title",
        "series": "run 0",
        "x": 1,
        "y": 2.0,
        "low": 1.0,
        "high": 3.0,
    }
    (ax,), _ = drawn(*shown("history", history([1.0, 2.0, 3.0]), metric="loss"))
    assert not ax.collections, "one seed has no band"


def test_seeds_that_spend_other_flops_meet_on_the_first_ones_x():
    first = make_record(history={"flops": [10.0, 20.0, 40.0], "loss": [4.0, 3.0, 1.0]})
    second = make_record(history={"flops": [12.0, 24.0, 40.0], "loss": [4.0, 2.0, 2.0]})
    curve = numbers("history", {0: first, 1: second}, metric="loss", x="flops")
    assert curve["x"] == [20.0, 40.0], "10 lies before the second run's first point"
    assert curve["y"] == pytest.approx([(3 + 8 / 3) / 2, 1.5])


def test_bands_of_named_lines_points_and_shares():
    seeds = {0: logged(TWO_LAYERS), 1: logged([[[x - 0.1 for x in row] for row in table] for table in TWO_LAYERS])}
    entropies = numbers("layer entropy", seeds, count=1)
    (name,) = entropies["lines"]
    assert entropies["lines"][name] == pytest.approx([0.85, 0.85]) and entropies["bands"][name][0] == pytest.approx(
        [0.8, 0.8]
    )
    assert numbers("entropy variance", seeds, count=1)["seeds"] == 2
    share = numbers("window share", {0: learned(), 1: learned()})
    assert share["y"] == [1.0, 0.5, 0.0] and share["low"] == share["smooth"] == [0.75, 0.5, 0.25]
    series = [{"cells": ["a", "b"], "label": "by record"}]
    plot = Plot(kind="points", metric="results.validation.loss", x="flops", panels=[{"series": series}])

    def run(loss):
        return make_record(flops=1.0, results=make_results(validation=make_loss(loss)))

    runs = {"a": {0: run(3.0), 1: run(3.2)}, "b": {0: run(4.0)}}
    panel = _panel_data(plot, plot.panels[0], runs)
    a, b = panel["series"][0]["data"]["points"]
    assert (a["y"], a["stderr"], a["over"], a["n"]) == (pytest.approx(3.1), pytest.approx(0.1), "seeds", 2)
    assert (b["y"], b["stderr"], b["over"]) == (4.0, None, None)
    assert _errors_text([panel]) == "bands and bars: ± one standard error over 2 seeds"


def test_boxes_hold_the_heads_of_all_seeds_and_bars_those_of_their_means():
    spread = numbers("distributions", {0: probed(loops=LOOPS), 1: probed(loops=LOOPS)}, metric="entropy")
    assert [point["seed"] for point in spread["points"]] == [0] * 4 + [1] * 4
    axes, _ = drawn(*shown("distributions", {0: probed(loops=LOOPS), 1: probed(loops=LOOPS)}, metric="entropy"))
    assert len(axes[1].collections) == 1, "error bars"


def test_a_kind_of_single_runs_shows_the_first_seed():
    _, data = shown("layer masks", {0: learned(), 1: learned()})
    assert data["panels"][0]["series"][0]["seeds"] == [0] and _errors_text(data["panels"]) == "seed 0 alone"


def test_errors_over_windows_leave_out_what_all_runs_have_in_common():
    hard = [float(i // 10) for i in range(30)]
    series = [{"cells": ["a", "b"], "label": "by record"}]
    plot = Plot(kind="points", metric="results.validation.loss", x="flops", panels=[{"series": series}])
    windows = {"a": hard, "b": [x + 0.1 for x in hard]}
    loss = {name: {**make_loss(sum(w) / 30), "windows": w} for name, w in windows.items()}
    runs = {name: {0: make_record(flops=1.0, results=make_results(validation=loss[name]))} for name in windows}
    panel = _panel_data(plot, plot.panels[0], runs)
    points = panel["series"][0]["data"]["points"]
    assert [point["stderr"] for point in points] == pytest.approx([0.0, 0.0]) and "blocks" not in points[0]
    assert "windows in blocks of ten" in _errors_text([panel]) and "decides nothing" in _errors_text([panel])


# ---- differences, parts of a history, and what the paper prints ----


def test_a_panel_can_show_the_difference_to_a_run_of_the_same_seed():
    runs = {"arm": history([1.5, 2.5, 3.5], [1.0, 2.0, 3.0]), "base": history([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])}
    panel = {"relative_to": "base", "series": [{"cell": "arm", "label": "arm"}]}
    plot = Plot.model_validate({"kind": "history", "metric": "loss", "panels": [panel]})
    line = _panel_data(plot, plot.panels[0], runs)["series"][0]["data"]
    assert line["y"] == [-0.25] * 3 and line["high"] == pytest.approx([0.5] * 3), "paired: +0.5 and −1"
    without = _panel_data(plot, plot.panels[0], {"arm": runs["arm"]})["series"][0]
    assert without["data"] is None and without["seeds"] == []
    wrong = Plot.model_validate({"kind": "scores", "panels": [panel]})
    with pytest.raises(UserError, match="'scores' cannot be relative_to a cell; leave it out"):
        _panel_data(wrong, wrong.panels[0], {"arm": {0: learned()}})


def test_at_equal_flops_a_difference_lies_between_the_points_of_the_other_run():
    arm = {0: make_record(history={"flops": [5.0, 15.0, 30.0, 50.0], "loss": [9.0, 2.0, 2.0, 1.0]})}
    panel = {"relative_to": "base", "series": [{"cell": "arm", "label": "arm"}]}
    plot = Plot.model_validate({"kind": "history", "metric": "loss", "x": "flops", "panels": [panel]})
    line = _panel_data(plot, plot.panels[0], {"arm": arm, "base": history([1.0, 2.0, 3.0])})["series"][0]["data"]
    assert line["x"] == [37.5, 75.0], "percent of the other run's FLOPs, where it has points on both sides"
    assert line["y"] == pytest.approx([2.0 - 1.5, 2.0 - 2.5])


def test_a_history_can_be_divided_and_begin_later():
    runs = history([8.0, 16.0, 24.0])
    series = [{"cell": "cell 0", "label": "run", "divide_by": "config.shape.layers"}]
    plot, data = shown("history", runs, panel={"series": series}, metric="loss", skip=0.5)
    assert data["panels"][0]["series"][0]["data"] == {"x": [2, 3], "y": [2.0, 3.0]}, "tiny has eight layers"
    series[0]["divide_by"] = "config.no.such"
    with pytest.raises(UserError, match="divide_by: run 0000000000000000 has no number at config.no.such, or it is 0"):
        shown("history", runs, panel={"series": series}, metric="loss")


def test_a_series_looks_the_same_in_every_panel_and_is_named_once():
    series = [{"cell": "b", "label": "B"}, {"cell": "a", "label": "A"}]
    panels = [{"series": series[1:]}, {"series": series}]
    plot = Plot.model_validate({"kind": "history", "metric": "loss", "y_label": "loss", "panels": panels})
    runs = {"a": history([1.0, 2.0, 3.0]), "b": history([5.0, 6.0, 7.0])}
    axes, legend = drawn(plot, {"panels": [_panel_data(plot, panel, runs) for panel in plot.panels]})
    assert legend == ["A", "B"] and axes[0].lines[0].get_color() == axes[1].lines[1].get_color()
    assert axes[0].get_ylim() == axes[1].get_ylim() and axes[0].get_ylim()[1] > 7


def test_a_title_can_hold_the_flops_of_its_runs():
    panel = {"title": "{flops} FLOPs", "series": [{"cell": "cell 0", "label": "run"}]}
    _, data = shown("history", history([1.0, 2.0, 3.0], flops=3.51e12), panel=panel, metric="loss")
    assert data["panels"][0]["title"] == "3.5·10¹² FLOPs"


MARK = {"label": "a gain", "source": "Table 1"}


def test_what_the_paper_prints_is_drawn_in_grey_and_named_with_its_place():
    paper = [
        {**MARK, "x": [1.0, 2.0], "y": [2.5, 2.6]},
        {**MARK, "label": "a range", "x": [1.5, 2.5], "band": True},
        {**MARK, "label": "its last step", "x": [100.0], "of": 100},
        {**MARK, "label": "a level", "y": [2.0]},
    ]
    panel = {"series": [{"cell": "cell 0", "label": "run"}], "paper": paper}
    plot, data = shown("history", history([1.0, 2.0, 3.0]), panel=panel, metric="loss")
    (ax,), legend = drawn(plot, data)
    assert legend == ["run", "paper: a gain", "paper: a range", "paper: its last step", "paper: a level"]
    by_name = {line.get_label(): line for line in ax.lines}
    assert list(by_name["paper: a gain"].get_ydata()) == [2.5, 2.6] and by_name["paper: a gain"].get_color() == PAPER
    assert list(by_name["paper: its last step"].get_xdata()) == [3.0, 3.0], "at the same share of the run's axis"
    assert csv_lines(data, plot)[3:5] == [
        {"panel": "", "series": "paper: a gain", "source": "Table 1", "x": 1.0, "y": 2.5},
        {"panel": "", "series": "paper: a gain", "source": "Table 1", "x": 2.0, "y": 2.6},
    ]


def test_marks_on_layers_lie_at_their_share_of_the_depth():
    mark = {**MARK, "x": [1, 28], "y": [0, 0], "of": 28}
    panel = {"series": [{"cell": "cell 0", "label": "run"}], "paper": [mark]}
    (ax,), legend = drawn(*shown("layer masks", learned(), panel=panel))
    assert list(ax.lines[0].get_xdata()) == pytest.approx([-0.5 + 3 / 56, 2.5 - 3 / 56]), "three layers here"
    assert legend == ["full attention", "window", "paper: a gain"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give the values that the paper prints"),
        ({"x": [1.0], "y": [1.0, 2.0]}, r"points need as many x \(1\) as y \(2\)"),
        ({"x": [1.0], "band": True}, "a band lies between two values, not 1"),
        ({"x": [1.0], "of": 0}, "greater than 0"),
    ],
)
def test_marks_that_cannot_be_drawn_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        PaperMark.model_validate({**MARK, **values})


def test_panels_of_the_paper_alone_stand_beside_the_measured_ones():
    panels = [{"series": [{"cell": "a", "label": "run"}]}, {"title": "the paper", "paper": [{**MARK, "y": [2.0]}]}]
    plot = Plot.model_validate({"kind": "history", "metric": "loss", "panels": panels})
    axes, legend = drawn(
        plot, {"panels": [_panel_data(plot, one, {"a": history([1.0, 2.0, 3.0])}) for one in plot.panels]}
    )
    assert [ax.get_title() for ax in axes] == ["", "the paper"] and legend == ["run", "paper: a gain"]


def test_an_axis_shows_at_least_the_range_that_compared_figures_share():
    plot, data = shown("history", history([1.0, 2.0, 3.0]), metric="loss", value_range=(2.0, 9.0))
    (ax,), _ = drawn(plot, data)
    assert ax.get_ylim()[0] < 1.0 and ax.get_ylim()[1] == 9.0
    _, data = shown("distributions", probed(loops=LOOPS), metric="entropy", value_range=(0.0, 1.0))
    axes, _ = drawn(_, data)
    assert axes[0].get_xlim() == (0.0, 1.0) and axes[1].get_ylim()[1] == 1.0
