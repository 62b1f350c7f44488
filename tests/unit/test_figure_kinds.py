"""Each kind of figure: its numbers from a small handmade record, its lines in figure.csv, and what it draws."""

import math
from pathlib import Path

import pytest

from hybridlab.config.loading import check, load_file
from hybridlab.errors import UserError
from hybridlab.papers.experiment import Experiment
from hybridlab.papers.plot import Panel, Plot
from hybridlab.registry import FIGURE_KINDS
from hybridlab.reporting.figure_kind import FigureKind, one_run, whole
from hybridlab.reporting.figures import _csv_lines, _panel_data, draw
from hybridlab.reporting.kinds import contributions
from hybridlab.reporting.lines import moving_average
from tests.records import config_of, make_record, make_results

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


def shown(kind, *records, panel=None, **settings):
    """The data of a figure with one panel, a series for each record."""
    series = [{"cell": f"cell {i}", "label": f"run {i}"} for i in range(len(records))]
    panel = panel or {"title": "a title", "series": series}
    plot = Plot.model_validate({"kind": kind, "panels": [panel], **settings})
    by_cell = {f"cell {i}": record for i, record in enumerate(records)}
    return plot, {"panels": [_panel_data(plot, plot.panels[0], by_cell)]}


def numbers(kind, record, **settings):
    """What one run shows."""
    plot, data = shown(kind, record, **settings)
    return data["panels"][0]["series"][0]["data"]


def drawn(plot, data):
    """The axes of the figure, after it has been drawn in full, and the figure's own legend."""
    figure = draw(data, plot)
    figure.canvas.draw()
    axes = [ax for ax in figure.axes if ax.axison and ax.get_label() != "<colorbar>"]
    return axes, [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []


def test_a_history_is_smoothed_and_may_be_a_perplexity():
    record = make_record(history={"step": [1, 2, 3], "flops": [5.0, 6.0, 7.0], "loss": [0.0, 3.0, 6.0]})
    assert numbers("history", record, metric="loss") == {"x": [1, 2, 3], "y": [0.0, 3.0, 6.0]}
    curve = numbers("history", record, metric="loss", x="flops", smooth=3, exponential=True)
    assert curve == {"x": [5.0, 6.0, 7.0], "y": [math.exp(1.5), math.exp(3.0), math.exp(4.5)]}
    panel = {"series": [{"cell": "cell 0", "label": "run"}], "targets": [1.0]}
    plot, data = shown("history", record, panel=panel, metric="loss", x_label="step", y_label="loss")
    (ax,), _ = drawn(plot, data)
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.0, 3.0, 6.0], [1.0, 1.0]]
    assert (ax.get_xlabel(), ax.get_ylabel(), legend_of(ax)) == ("step", "loss", ["run"])
    assert _csv_lines(data, plot)[1] == {"panel": "", "series": "run", "x": 2, "y": 3.0}


def test_layer_masks_are_a_row_for_each_run():
    assert numbers("layer masks", learned()) == {"masks": MASKS}
    plot, data = shown("layer masks", learned(), learned())
    (ax,), legend = drawn(plot, data)
    assert ax.figure.get_size_inches() == pytest.approx([3.4 + 0.4, 1.3 + 2 * 0.3]), "as high as two rows need"
    assert ax.images[0].get_array().tolist() == [[0, 0, 1], [0, 0, 1]]
    assert [text.get_text() for text in ax.texts] == ["w", "w", "F"] * 2 and legend == ["full attention", "window"]
    assert len(_csv_lines(data, plot)) == 12


def test_head_masks_are_a_panel_for_each_run():
    plot, data = shown("head masks", learned(), learned())
    axes, legend = drawn(plot, data)
    assert axes[0].figure.get_size_inches() == pytest.approx([2 * 3.4 + 0.4, 2.6])
    assert [ax.get_title() for ax in axes] == ["a title, run 0", "a title, run 1"]
    assert axes[0].images[0].get_array().tolist() == [[0, 0, 1], [0, 1, 1]], "heads upwards, layers to the right"
    assert legend == ["full attention", "window"]
    expected = {"panel": "a title", "series": "run 0", "layer": 2, "kv_head": 2, "full": 1}
    assert _csv_lines(data, plot)[3] == expected


def test_the_window_share_is_that_of_heads_in_a_layer():
    share = numbers("window share", learned())
    assert share == {"x": [1, 2, 3], "y": [1.0, 0.5, 0.0], "smooth": [0.75, 0.5, 0.25]}
    plot, data = shown("window share", learned())
    (ax,), _ = drawn(plot, data)
    assert [list(line.get_ydata()) for line in ax.lines] == [share["y"], share["smooth"]]
    assert _csv_lines(data, plot)[0] == {"panel": "a title", "series": "run 0", "x": 1, "y": 1.0, "smooth": 0.75}


def test_scores_are_means_over_the_heads_of_a_layer():
    scores = numbers("scores", learned())
    assert scores["x"] == [1, 2, 3] and scores["y"] == pytest.approx([0.2, 0.6, 0.9])
    plot, data = shown("scores", learned())
    (ax,), _ = drawn(plot, data)
    assert ax.lines[0].get_marker() == "o" and len(_csv_lines(data, plot)) == 3


def test_stages_are_bars_of_tokens_or_the_masks_of_one_run():
    assert numbers("stages", make_record()) == {"tokens": 1000, "steps": 100, "map": "wwww"}
    plot, data = shown("stages", make_record(tokens=3_000_000), learned(tokens=1_000_000))
    (ax,), legend = drawn(plot, data)
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0.0, 3.0), (3.0, 1.0)]
    assert legend == ["full attention", "window"]
    assert [line.get("tokens") for line in _csv_lines(data, plot)] == [3_000_000, *[None] * 6, 1_000_000]
    (ax,), _ = drawn(*shown("stages", learned()))
    assert ax.get_xlabel() == "layer 2: key positions", "the first layer with both kinds"
    drawn_map = ax.images[0].get_array()
    seq_len, window = (config_of("consa")[part][name] for part, name in (("training", "seq_len"), ("map", "window")))
    length = min(4 * window, seq_len)
    assert (drawn_map == 1).sum() == length * (length + 1) / 2, "full: every earlier key"
    assert (drawn_map == 0).sum() == window * (length - window) + window * (window + 1) / 2
    assert [label.get_text() for label in ax.get_xticklabels()] == ["head 1\nα = 0.5", "head 2\nα = 0.7"]


def test_head_entropies_end_with_the_variance_in_each_layer():
    record = logged(TWO_LAYERS, events=[{"step": 20, "kind": "loop-added"}, {"step": 30, "kind": "fade-ended"}])
    entropies = numbers("head entropies", record)
    assert entropies["x"] == [10, 20, 30] and entropies["marks"] == [20]
    assert [part["title"] for part in entropies["layers"]] == ["layer 1", "layer 2", "variance in each layer"]
    assert entropies["layers"][0]["lines"] == {"head 1": [1.0, 0.9, 1.0], "head 2": [0.8, 0.5, 0.2]}
    assert entropies["layers"][2]["lines"]["layer 1"] == pytest.approx([0.01, 0.04, 0.16])
    plot, data = shown("head entropies", record, y_label="entropy")
    axes, legend = drawn(plot, data)
    assert [ax.get_ylabel() for ax in axes] == ["entropy", "entropy", "variance of entropy"] and not legend
    assert [legend_of(ax) for ax in axes] == [["head 1", "head 2"]] * 2 + [["layer 1", "layer 2"]]
    assert [list(ax.lines[-1].get_xdata()) for ax in axes] == [[20, 20]] * 3
    assert len(_csv_lines(data, plot)) == 18 and _csv_lines(data, plot)[-1]["picture"] == "variance in each layer"


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
    assert axes[0].figure.get_size_inches() == pytest.approx([4 * 2.2 + 0.4, 2 * 1.9])
    assert legend == ["head 1", "head 2"] and [bool(legend_of(ax)) for ax in axes] == [False] * 5 + [True]


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
    assert legend_of(axes[0]) == ["layer 1", "layer 2"] and len(_csv_lines(data, plot)) == 12


def test_layer_entropy_reads_early_and_takes_means_over_heads():
    tables = [[[i / 100, 0.0], [0.5, 0.7]] for i in range(40)]
    entropies = numbers("layer entropy", logged(tables), count=2)
    assert entropies["x"] == [1, 2] and list(entropies["lines"]) == ["step 20", "step 40"], "5 and 10 % of 400 steps"
    assert entropies["lines"]["step 40"] == pytest.approx([0.015, 0.6])
    plot, data = shown("layer entropy", logged(tables), count=2)
    (ax,), _ = drawn(plot, data)
    assert [line.get_marker() for line in ax.lines] == ["o", "o"] and len(_csv_lines(data, plot)) == 4


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
    assert len(legend_of(ax)) == 3 and len(_csv_lines(data, plot)) == 4


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
    (ax,), _ = drawn(plot, data)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "_b"]
    assert [text.get_color() for text in ax.texts] == ["white", "white"], "on dark cells"
    assert [text.get_text() for text in ax.texts] == ["+50%", "-50%"] and ax.get_ylabel() == "layer 2, head 4"
    assert _csv_lines(data, plot)[3] == {
        "panel": "a title",
        "series": "run 0",
        "loop": 1,
        "place": 1,
        "token": " b",
        "y": 0.3,
    }
    assert [contributions._short(token) for token in ("a\n b", "12345678", "123456789")] == [
        "a\\n_b",
        "12345678",
        "1234567…",
    ]
    with pytest.raises(
        UserError, match="plot.example is 2, but run 0000000000000000 has 2 examples; write a number from 0 to 1"
    ):
        numbers("contributions", record, example=2)


def test_points_are_in_the_order_of_x_and_leave_out_missing_runs():
    runs = {"a": make_record(flops=2.0), "b": make_record(flops=1.0, results=make_results())}
    series = [{"cells": ["a", "b", "not run"], "label": "by record"}]
    plot = Plot(kind="points", metric="results.validation.loss", x="flops", panels=[{"series": series}])
    data = {"panels": [_panel_data(plot, plot.panels[0], runs)]}
    first = {"x": 1.0, "y": 3.0, "stderr": 0.05}
    assert data["panels"][0]["series"][0]["data"] == {
        "points": [{"run": "b", **first}, {"run": "a", **first, "x": 2.0}]
    }
    (ax,), _ = drawn(plot, data)
    assert list(ax.lines[0].get_xdata()) == [1.0, 2.0] and _csv_lines(data, plot)[0]["run"] == "b"
    given = Panel(series=[{"cells": ["a", "not run", "b"], "label": "given", "x": [7.0, 8.0, 5.0]}])
    line = _panel_data(plot, given, runs)["series"][0]
    assert [(point["run"], point["x"]) for point in line["data"]["points"]] == [("b", 5.0), ("a", 7.0)]
    assert line["run"] == ["0" * 16, None, "0" * 16]
    nowhere = _panel_data(plot.model_copy(update={"x": "no.such"}), plot.panels[0], runs)
    assert nowhere["series"][0]["data"] is None, "a point without an x is left out"


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
    assert [text.get_text() for text in axes[0].texts] == ["loop 1 (1/4)", "loop 2 (1)"]
    assert [label.get_text() for label in axes[1].get_xticklabels()] == ["1\n(1/4)", "2\n(1)"]
    assert list(axes[1].lines[-1].get_ydata()) == pytest.approx([0.25, 0.7]) and len(_csv_lines(data, plot)) == 4


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
    assert ax.images[0].get_array().tolist() == [[0.0, 0.0], [0.0, 1.0]] and len(_csv_lines(data, plot)) == 4


def test_reach_is_a_panel_for_each_iteration():
    maps = [[[1, 0], [0, 1]], [[1, 0], [1, 1]]]
    reached = numbers("reach", probed(reach={"chunks": [2, 1], "maps": maps}))
    assert [part["title"] for part in reached["layers"]] == ["after loop 1, at 1/2", "after loop 2, at 1"]
    assert reached["points"][-2:] == [{"loop": 2, "output": 1, "input": 0}, {"loop": 2, "output": 1, "input": 1}]
    plot, data = shown("reach", probed(reach={"chunks": [2, 1], "maps": maps}))
    axes, _ = drawn(plot, data)
    assert [ax.images[0].get_array().tolist() for ax in axes] == maps and len(_csv_lines(data, plot)) == 5


KINDS_OF_ONE_RUN = [name for name in FIGURE_KINDS.names() if name not in ("history", "points", "stages")]


@pytest.mark.parametrize("kind", KINDS_OF_ONE_RUN)
def test_a_run_that_measured_nothing_of_the_kind_shows_nothing(kind):
    assert numbers(kind, make_record(), metric="entropy") is None


@pytest.mark.parametrize("kind", ["contributions", "distributions", "head ranges", "reach"])
def test_a_skipped_probe_shows_nothing(kind):
    skipped = {"skipped": "a layer of this model has 1"}
    record = probed(contributions=skipped, loops=skipped, reach=skipped)
    assert numbers(kind, record, metric="entropy") is None


def test_every_built_in_kind_has_a_test_here():
    tested = Path(__file__).read_text()
    names = FIGURE_KINDS.names()
    assert len(names) == 15 and not [name for name in names if f'"{name}"' not in tested]


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
        assert _csv_lines(data, plot)[1] == {"panel": "a title", "series": "run 1", "total": 7}
    finally:
        FIGURE_KINDS.remove("parameter count")


def test_moving_average():
    assert moving_average([1, 2, 3, 4], 1) == [1, 2, 3, 4]
    assert moving_average([0, 3, 6, 9], 3) == [1.5, 3, 6, 7.5]
