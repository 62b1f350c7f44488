"""Figures: settings of a kind, panels with their legends, seeds, and what the paper prints; then the kinds `lines`,
`distributions` and `stages`, each from a small handmade record."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pydantic import TypeAdapter, ValidationError, create_model

from hybridlab.config.loading import check, load_file
from hybridlab.errors import UserError
from hybridlab.lab.papers.experiment import Experiment
from hybridlab.lab.papers.formula import Measure
from hybridlab.lab.papers.loading import load_experiment
from hybridlab.lab.papers.plots import AnyPlot, Labels, PaperMark
from hybridlab.lab.reporting.figure_kind import FigureKind, names_of, one_run, short_number, whole
from hybridlab.lab.reporting.figures import _errors_text, _panel_data, csv_lines, draw
from hybridlab.registry import FIGURE_KINDS
from hybridlab.runs.style import PAPER
from hybridlab.statistics import moving_average
from tests.records import config_of, make_loss, make_record, make_results

LINES = FIGURE_KINDS.get("lines")
MASKS = [[0, 0], [0, 1], [1, 1]]
LEARNED = {"masks": MASKS, "scores": [[0.1, 0.3], [0.5, 0.7], [0.8, 1.0]]}
PROBE = "results.probes.lens"
LENS = {
    "overlap": [0.2, None, 0.6, 1.0],
    "starts": [0, 1, 2, 3],
    "score": {"value": 1.5, "stderr": 0.25, "n": 20},
    "rows": [[0.2, 0.3, 0.4], [0.5, 0.1, 0.9]],
    "cubes": [[[1, 2, 3], [2, 2, 2]], [[3, 2, 1], [2, 3, 4]]],
    "mean": [0.3, 0.2, 0.6],
    "tasks": {"gsm8k": {}, "mmlu": {}},
    "chunks": [8, 1],
}


def learned(**changes):
    config = config_of("consa")
    return make_record(config=config, hooks={config["controller"]["kind"]: LEARNED, "entropy-log": {}}, **changes)


def probed(**probes):
    return make_record(results=make_results(probes=probes))


def history(*losses, **changes):
    """The runs of several seeds: the same steps and FLOPs, and these losses."""
    columns = {"step": [1, 2, 3], "flops": [10.0, 20.0, 40.0]}
    return {seed: make_record(history={**columns, "loss": loss}, **changes) for seed, loss in enumerate(losses)}


def plot_of(kind, panels, measures=None, **settings):
    """measures: name → (formula, its names and their paths)."""
    plot = TypeAdapter(AnyPlot).validate_python({"kind": kind, "panels": panels, **settings})
    made = {name: {"title": f"the {name}", "formula": text, "of": of} for name, (text, of) in (measures or {}).items()}
    plot._measures = {name: Measure.model_validate(measure) for name, measure in made.items()}
    return plot


def panel_of(plot, records, index=0):
    return _panel_data(plot, plot.panels[index], records, lambda cell, _metric: cell)


def shown(kind, *records, panel=None, **settings):
    """The data of a figure with one panel, a series for each record, or for the records of several seeds."""
    series = [{"cell": f"cell {i}", "label": f"run {i}"} for i in range(len(records))]
    plot = plot_of(kind, [{"title": "a title", "series": series, **(panel or {})}], **settings)
    by_cell = {f"cell {i}": record if isinstance(record, dict) else {0: record} for i, record in enumerate(records)}
    return plot, {"kind": kind, "panels": [panel_of(plot, by_cell)]}


def numbers(kind, record, **settings):
    """What one run shows."""
    plot, data = shown(kind, record, **settings)
    return data["panels"][0]["series"][0]["data"]


def drawn(plot, data):
    """The axes of the figure, after it has been drawn in full, and the figure's own legend."""
    figure = draw(data)
    FigureCanvasAgg(figure).draw()
    axes = [ax for ax in figure.axes if ax.axison and ax.get_label() != "<colorbar>"]
    return axes, [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def legend_of(ax):
    """What a panel has in the figure's legend."""
    return ax.get_legend_handles_labels()[1]


LOSS = {"metric": "history.loss", "x": "history.step"}


# ---- settings ----


HEAD = "id: toy-fig1\ntitle: Toy\npaper: toy\nsource: x\n"


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (
            "plot:\n  panels: []\n  kind: heatmp\n",
            "fig1.yaml:7: plot.kind 'heatmp' is unknown; did you mean 'heatmap'?",
        ),
        ("plot: {panels: []}\n", "fig1.yaml:5: plot needs `kind`; known: attention maps, "),
        (
            "plot:\n  kind: lines\n  metric: flops\n  y_scal: log\n  panels: []\n",
            "fig1.yaml:8: plot.y_scal is not a known setting; did you mean 'y_scale'?",
        ),
        (
            "plot:\n  kind: heatmap\n  metric: flops\n  panels:\n  - {y_scale: log}\n",
            "fig1.yaml:9: plot.panels.0.y_scale is not a known setting; known here: ",
        ),
        (
            "plot:\n  kind: lines\n  metric: flops\n  panels:\n  - {y_scale: lo}\n",
            "fig1.yaml:9: plot.panels.0.y_scale = 'lo': must be 'linear', 'log' or 'symlog'; did you mean 'log'?",
        ),
        (
            "plot:\n  kind: lines\n  panels: [{metric: flops, series: []}, {series: [{cell: a, label: a}]}]\n",
            "fig1.yaml:5: plot: the kind 'lines' needs `metric`: add it here, or to every panel",
        ),
        (
            "plot:\n  kind: lines\n  metric: flops\n  panels: [{mean: m, area: 1.0}, {mean: m}]\n",
            "fig1.yaml:5: plot: `mean` has no effect beside the other settings; leave it out",
        ),
        (
            "plot:\n  kind: lines\n  metric: flops\n  names: 'layer {'\n  panels: []\n",
            "fig1.yaml:8: plot.names: single '{' encountered in format string",
        ),
        (
            "plot:\n  kind: stages\n  panels: [{series: [{cell: a, label: a, metric: flops}]}]\n",
            "fig1.yaml:5: plot: a series has a `metric`, which the kind 'stages' does not read; leave it out",
        ),
        (
            "plot:\n  kind: heatmap\n  metric: flops\n  bar_label: b\n  panels: [{classes: [{}]}]\n",
            "fig1.yaml:5: plot: `bar_label` has no effect beside the other settings; leave it out",
        ),
    ],
)
def test_a_plot_accepts_the_settings_of_its_kind_alone(tmp_path, plot, message):
    file = tmp_path / "fig1.yaml"
    file.write_text(HEAD + plot)
    with pytest.raises(UserError) as caught:
        check(Experiment, load_file(file))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "metric: fal",
            "fig1.yaml:8: toy-fig1 has no measure 'fal', and a record no such metric; did you mean 'fall'?",
        ),
        ("metric: fall\n  names: 'layer {fal}'", "fig1.yaml:9: toy-fig1 has no measure 'fal'"),
    ],
)
def test_metrics_and_names_of_a_plot_are_checked_when_the_file_is_loaded(tmp_path, setting, message):
    file = tmp_path / "fig1.yaml"
    measure = "measures: {fall: {title: f, of: {y: flops}, formula: y}}\n"
    file.write_text(f"{HEAD}{measure}plot:\n  kind: lines\n  {setting}\n  panels: []\n")
    with pytest.raises(UserError) as caught:
        load_experiment(str(file))
    assert str(caught.value).startswith(message)


def test_a_panel_has_settings_of_its_own():
    panels = [{"metric": "history.loss", "y_label": "own"}, {}]
    plot = plot_of("lines", panels, metric="flops", y_label="of all")
    own, other = (plot.of_panel(panel) for panel in plot.panels)
    assert (own.metric, own.y_label) == ("history.loss", "own") and (other.metric, other.y_label) == ("flops", "of all")


def test_a_kind_from_outside_is_drawn_like_any_other():
    """One that declares no settings has the usual ones, and one that does has no others."""

    class Total(Labels):
        times: int = 1

    def total_of(plot, record):
        return {"total": record.parameters["total"] * getattr(plot, "times", 1), "metric": getattr(plot, "metric", "")}

    def draw_total(ax, picture):
        ax.bar([0], [picture.numbers["total"]])

    own = FigureKind(one_run(total_of), draw_total, lambda numbers: [numbers], parts=whole, settings=Total)
    FIGURE_KINDS.add("usual", FigureKind(one_run(total_of), draw_total, lambda numbers: [numbers], parts=whole))
    FIGURE_KINDS.add("own", own)
    try:
        plot, data = shown("usual", make_record(), make_record(parameters={"total": 7}), metric="any text", x="flops")
        axes, _ = drawn(plot, data)
        assert [ax.patches[0].get_height() for ax in axes] == [1000000, 7]
        assert csv_lines(data)[1] == {"panel": "a title", "series": "run 1", "total": 7, "metric": "any text"}
        assert numbers("own", make_record(), times=2)["total"] == 2000000
        with pytest.raises(ValueError, match="metric\n.*Extra inputs are not permitted"):
            shown("own", make_record(), metric="any text")
        taken = create_model("Taken", __base__=Labels, title=(str, ""))
        FIGURE_KINDS.add("taken", replace(own, settings=taken))
        with pytest.raises(UserError, match="kind of figure 'taken': a setting cannot be called title"):
            shown("taken", make_record())
    finally:
        FIGURE_KINDS.remove("taken")
        FIGURE_KINDS.remove("usual")
        FIGURE_KINDS.remove("own")


def test_every_built_in_kind_has_a_test_here():
    tested = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    names = FIGURE_KINDS.names()
    assert len(names) == 10 and not [name for name in names if f'"{name}"' not in tested]


@pytest.mark.parametrize("kind", [name for name in FIGURE_KINDS.names() if name != "stages"])
def test_a_run_that_measured_nothing_of_the_kind_shows_nothing(kind):
    known = FIGURE_KINDS.get(kind).settings.model_fields
    settings = {"metric": f"{PROBE}.rows", "x": f"{PROBE}.starts", "task": "gsm8k"}
    asked = {name: value for name, value in settings.items() if name in known}
    assert numbers(kind, make_record(), **asked) is None
    skipped = {"skipped": "a layer of this model has 1"}
    record = probed(**dict.fromkeys(("lens", "contributions", "attention-maps"), skipped))
    assert numbers(kind, record, **asked) is None


def test_entries_are_named_by_number_list_or_table():
    plot = plot_of("lines", [], metric="flops", measures={"part": ("1 / y", {"y": f"{PROBE}.chunks"})})
    record = probed(lens=LENS)
    assert names_of(plot, record, "layer {}", 2) == ["layer 1", "layer 2"]
    assert names_of(plot, record, "{}\n({part})", 2) == ["1\n(1/8)", "2\n(1)"]
    assert names_of(plot, record, f"{{{PROBE}.tasks}}", 2) == ["gsm8k", "mmlu"]
    assert names_of(plot, record, "", 2) == ["", ""]
    assert [short_number(value) for value in (15.0, 0.25, 0.37, -2.0)] == ["15", "1/4", "0.37", "-2"]
    with pytest.raises(UserError, match=f"{PROBE}.chunks has 2 entries in run 0+, to name 3; give as many"):
        names_of(plot, record, f"{{{PROBE}.chunks}}", 3)


def test_moving_average():
    assert moving_average([1, 2, 3, 4], 1) == [1, 2, 3, 4]
    assert moving_average([0, 3, 6, 9], 3) == [1.5, 3, 6, 7.5]


# ---- panels and legends ----


def test_large_numbers_along_x_have_their_power_of_ten_in_the_label():
    record = make_record(history={"flops": [1e12, 4e12], "loss": [3.0, 2.0]})
    (ax,), _ = drawn(*shown("lines", record, metric="history.loss", x="history.flops", x_label="FLOPs"))
    assert ax.get_xlabel() == "FLOPs, 10¹²"
    assert {"1", "4"} <= {label.get_text() for label in ax.get_xticklabels()}


def test_a_picture_says_what_it_is_and_whose_models_it_shows():
    plot, data = shown("lines", history([1.0, 2.0, 3.0]), **LOSS)
    about = {"id": "some-fig1", "title": "A loss", "shown": "trained here at scale smoke: tiny; seed 0 alone"}
    assert draw({**data, **about}).get_suptitle() == "\n".join([f"{about['id']}: A loss", about["shown"]])


def test_a_series_looks_the_same_in_every_panel_and_is_named_once():
    series = [{"cell": "b", "label": "B"}, {"cell": "a", "label": "A"}]
    plot = plot_of("lines", [{"series": series[1:]}, {"series": series}], y_label="loss", **LOSS)
    runs = {"a": history([1.0, 2.0, 3.0]), "b": history([5.0, 6.0, 7.0])}
    axes, legend = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs, i) for i in range(2)]})
    assert legend == ["A", "B"] and axes[0].lines[0].get_color() == axes[1].lines[1].get_color()
    assert axes[0].get_ylim() == axes[1].get_ylim() and axes[0].get_ylim()[1] > 7


def test_many_panels_share_a_legend_and_axes_of_the_same_quantity():
    cubes = [[[0.9, 0.8], [0.9, 0.7]]] * 5
    panels = [
        {"metric": f"{PROBE}.cubes", "y_label": "entropy", "series": [{"cell": "a", "label": ""}]},
        {"metric": f"{PROBE}.rows", "y_label": "variance", "series": [{"cell": "a", "label": ""}]},
    ]
    plot = plot_of("lines", panels, names="head {}")
    runs = {"a": {0: probed(lens={"cubes": cubes, "rows": [[0.1, 0.2], [0.3, 0.4]]})}}
    axes, legend = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs, i) for i in range(2)]})
    assert axes[0].figure.get_size_inches() == pytest.approx([3 * 2.3 + 0.4, 2 * 1.9 + 0.16]), "three fit a page"
    assert legend == ["head 1", "head 2"] and len({tuple(ax.get_ylim()) for ax in axes[:5]}) == 1
    assert axes[5].get_ylim() != axes[0].get_ylim() and axes[5].get_legend() is None


def test_a_title_can_hold_the_flops_of_its_runs():
    _, data = shown("lines", history([1.0, 2.0, 3.0], flops=3.51e12), panel={"title": "{flops} FLOPs"}, **LOSS)
    assert data["panels"][0]["title"] == "3.5·10¹² FLOPs"
    plot = plot_of("lines", [{"title": "{flops}", "series": [{"cell": "a", "label": "a"}]}], **LOSS)
    runs = {name: history([1.0, 2.0, 3.0], flops=flops) for name, flops in (("a", 1e9), ("a@history.loss", 2e11))}
    shown_runs = _panel_data(plot, plot.panels[0], runs, lambda cell, metric: f"{cell}@{metric}")
    assert shown_runs["title"] == "2.0·10¹¹", "of the run that is shown"


def test_an_axis_shows_at_least_the_range_that_compared_figures_share():
    (ax,), _ = drawn(*shown("lines", history([1.0, 2.0, 3.0]), value_range=(2.0, 9.0), **LOSS))
    assert ax.get_ylim()[0] < 1.0 and ax.get_ylim()[1] == 9.0
    axes, _ = drawn(*shown("distributions", probed(lens=LENS), metric=f"{PROBE}.rows", value_range=(0.0, 1.0)))
    assert axes[0].get_xlim() == (0.0, 1.0) and axes[1].get_ylim()[1] == 1.0


# ---- what the paper prints ----


MARK = {"label": "a gain", "source": "Table 1"}


def test_what_the_paper_prints_is_drawn_in_grey_and_named_with_its_place():
    paper = [
        {**MARK, "x": [1.0, 2.0], "y": [2.5, 2.6]},
        {**MARK, "label": "a range", "x": [1.5, 2.5], "band": True},
        {**MARK, "label": "its last step", "x": [100.0], "of": 100},
        {**MARK, "label": "a level", "y": [2.0]},
    ]
    plot, data = shown("lines", history([1.0, 2.0, 3.0]), panel={"paper": paper}, **LOSS)
    (ax,), legend = drawn(plot, data)
    assert legend == ["run 0", "paper: a gain", "paper: a range", "paper: its last step", "paper: a level"]
    by_name = {line.get_label(): line for line in ax.lines}
    assert list(by_name["paper: a gain"].get_ydata()) == [2.5, 2.6] and by_name["paper: a gain"].get_color() == PAPER
    assert list(by_name["paper: its last step"].get_xdata()) == [3.0, 3.0], "at the same share of the run's axis"
    assert csv_lines(data)[3:5] == [
        {"panel": "a title", "series": "paper: a gain", "source": "Table 1", "x": 1.0, "y": 2.5},
        {"panel": "a title", "series": "paper: a gain", "source": "Table 1", "x": 2.0, "y": 2.6},
    ]


def test_marks_on_layers_lie_at_their_share_of_the_depth():
    mark = {**MARK, "x": [1, 28], "y": [0, 0], "of": 28}
    rows = {"metric": "layers", "measures": {"layers": ("m[:, 0]", {"m": "controller.masks"})}}
    (ax,), legend = drawn(*shown("heatmap", learned(), panel={"paper": [mark]}, **rows))
    assert list(ax.lines[0].get_xdata()) == pytest.approx([-0.5 + 3 / 56, 2.5 - 3 / 56]), "three layers here"
    assert legend == ["paper: a gain"]


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


@pytest.mark.parametrize(("kind", "axes"), [("lines", ["", "the paper"]), ("heatmap", ["run"])])
def test_what_the_paper_prints_stands_alone_where_panels_have_common_axes(kind, axes):
    panels = [{"series": [{"cell": "a", "label": "run"}]}, {"title": "the paper", "paper": [{**MARK, "y": [2.0]}]}]
    plot = plot_of(kind, panels, metric=f"{PROBE}.rows" if kind == "heatmap" else f"{PROBE}.overlap")
    runs = {"a": {0: probed(lens=LENS)}}
    found, _ = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs, i) for i in range(2)]})
    assert [ax.get_title() for ax in found] == axes


# ---- lines ----


def test_a_list_is_a_line_without_nulls_and_with_the_level_of_its_run():
    record = probed(lens=LENS)
    assert numbers("lines", record, metric=f"{PROBE}.overlap") == {"x": [1, 3, 4], "y": [0.2, 0.6, 1.0]}
    settings = {"metric": f"{PROBE}.overlap", "x": f"{PROBE}.starts", "level": f"{PROBE}.score"}
    assert numbers("lines", record, **settings) == {"x": [0, 2, 3], "y": [0.2, 0.6, 1.0], "level": 1.5}
    plot, data = shown("lines", record, record, panel={"targets": [1.0, 0.0]}, **settings)
    (ax,), legend = drawn(plot, data)
    assert legend == ["run 0", "run 1", "score, in its colour", "target"], "a line at 0 needs no name"
    assert list(ax.lines[1].get_ydata()) == [1.5, 1.5] and ax.lines[1].get_color() == ax.lines[0].get_color()
    assert ax.lines[0].get_marker() == "o" and ax.lines[2].get_marker() == "s"
    assert csv_lines(data)[1] == {"panel": "a title", "series": "run 0", "x": 2, "y": 0.6}


def test_a_history_is_smoothed_and_cut_by_formulas():
    columns = {"step": [1, 2, 3], "flops": [5.0, 6.0, 7.0], "loss": [0.0, 3.0, 6.0]}
    of = {"y": "history.loss", "x": "history.flops"}
    measures = {"late": ("exp(smooth(y, 3)[x > 0.8 * x[-1]])", of), "spent": ("x[x > 0.8 * x[-1]]", {"x": of["x"]})}
    curve = numbers("lines", make_record(history=columns), metric="late", x="spent", measures=measures)
    assert curve["x"] == [6, 7] and curve["y"] == pytest.approx([math.exp(3.0), math.exp(4.5)])
    with pytest.raises(UserError, match=r"history.los: the history of run 0+ has no 'los'; did you mean 'loss'\?"):
        numbers("lines", make_record(history=columns), metric="history.los")


def test_long_lists_over_steps_have_no_markers():
    columns = {"step": list(range(20)), "loss": [1.0] * 20}
    (ax,), _ = drawn(*shown("lines", make_record(history=columns), metric="history.loss"))
    assert (ax.lines[0].get_marker(), ax.lines[0].get_markersize()) == ("o", 2.0), "of layers, which are counted"
    (ax,), _ = drawn(*shown("lines", make_record(history=columns), **LOSS))
    assert ax.lines[0].get_marker() == "None"


def test_a_series_can_have_a_metric_of_its_own():
    series = [{"cell": "a", "label": "a"}, {"cell": "a", "label": "b", "metric": f"{PROBE}.mean"}]
    plot = plot_of("lines", [{"series": series}], metric=f"{PROBE}.starts")
    found = panel_of(plot, {"a": {0: probed(lens=LENS)}})["series"]
    assert [one["data"]["y"] for one in found] == [[0, 1, 2, 3], [0.3, 0.2, 0.6]]


def test_a_number_is_a_bar_with_its_error():
    runs = [probed(lens=LENS), probed(lens={"score": {"value": -1.0, "stderr": None, "n": 1}})]
    plot, data = shown("lines", *runs, metric=f"{PROBE}.score", y_label="score")
    (ax,), legend = drawn(plot, data)
    assert [bar.get_height() for bar in ax.patches] == [1.5, -1.0] and legend == []
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["run 0", "run 1"], "names below the bars"
    assert [text.get_text() for text in ax.texts] == ["1.50", "−1.00"] and len(ax.collections) == 1, "one has an error"
    assert _errors_text(data["panels"], LINES, "seed").endswith(
        "over the sequences of a single run; it decides nothing"
    )
    assert csv_lines(data)[0] == {"panel": "a title", "series": "run 0", "y": 1.5, "stderr": 0.25}


def test_a_matrix_is_a_line_for_each_row_in_a_panel_for_each_run():
    measures = {"mean over tasks": ("y", {"y": f"{PROBE}.mean"})}
    settings = {"metric": f"{PROBE}.rows", "names": f"{{{PROBE}.tasks}}", "level": "mean over tasks"}
    plot, data = shown("lines", probed(lens=LENS), make_record(), probed(lens=LENS), measures=measures, **settings)
    axes, legend = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0", "a title, run 2"]
    assert legend == ["gsm8k", "mmlu", "the mean over tasks"]
    assert [list(line.get_ydata()) for line in axes[0].lines] == [*LENS["rows"], LENS["mean"]]
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes[0].lines]
    assert [look[1:] for look in looks] == [("-", "None"), ("--", "None"), ("-", "None")] and looks[2][0] == "black"
    lines = csv_lines(data)
    assert len(lines) == 2 * 9
    assert lines[3] == {"panel": "a title", "series": "run 0", "picture": "", "line": "mmlu", "x": 1, "y": 0.5}


def test_matrices_are_a_panel_each_with_marks_and_rows_in_order():
    settings = {"metric": f"{PROBE}.cubes", "titles": "layer {}", "names": "step {}", "ordered": True}
    marked = {"marks": "begins", "measures": {"begins": ("s", {"s": "hooks.growth.looped.*.since"})}}
    record = probed(lens=LENS).model_copy(update={"hooks": {"growth": {"looped": [{"since": 2}, {"since": 3}]}}})
    plot, data = shown("lines", record, **settings, **marked)
    axes, legend = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0, layer 1", "a title, run 0, layer 2"]
    assert legend == ["step 1", "step 2", "the begins"] and axes[0].lines[0].get_marker() == "o"
    assert [list(line.get_xdata()) for line in axes[1].lines[2:]] == [[2, 2], [3, 3]]
    assert numbers("lines", probed(lens=LENS), **settings, **marked)["marks"] == [], "a run without loops"


def test_two_runs_show_the_same_rows_those_that_change_most_over_both():
    other = {"rows": [[0.8, 0.1, 0.9], [0.8, 0.8, 0.8]]}
    plot, data = shown("lines", probed(lens=LENS), probed(lens=other), metric=f"{PROBE}.rows", count=1)
    chosen = [list(series["data"]["parts"][0]["lines"]) for series in data["panels"][0]["series"]]
    assert chosen == [["1"], ["1"]], "alone, the first run would show row 2"
    assert list(numbers("lines", probed(lens=LENS), metric=f"{PROBE}.rows", count=1)["parts"][0]["lines"]) == ["2"]


@pytest.mark.parametrize("entries", [3, 30])
def test_many_rows_all_look_different(entries):
    rows = [[0.9 - 0.01 * head] * entries for head in range(16)]
    (ax,), legend = drawn(*shown("lines", probed(lens={"rows": rows}), metric=f"{PROBE}.rows"))
    looks = [(line.get_color(), line.get_linestyle()) for line in ax.lines]
    assert len({*looks}) == 16 == len(legend)
    assert {dashes for _, dashes in looks[:8]} == ({"-"} if entries == 30 else {"-", "--", "-.", ":"})


def test_a_list_beside_a_line_is_thin():
    settings = {"metric": "average", "level": "share", "measures": {}}
    settings["measures"]["share"] = ("row_means(m == 0)", {"m": "controller.masks"})
    settings["measures"]["average"] = ("smooth(y, 3)", {"y": "share"})
    plot, data = shown("lines", learned(), **settings)
    line = data["panels"][0]["series"][0]["data"]
    assert line == {"x": [1, 2, 3], "y": [0.75, 0.5, 0.25], "level": [1.0, 0.5, 0.0]}
    (ax,), legend = drawn(plot, data)
    assert legend == ["run 0", "thin: the share"] and ax.lines[0].get_linewidth() > ax.lines[1].get_linewidth()
    assert csv_lines(data)[0] == {"panel": "a title", "series": "run 0", "x": 1, "y": 0.75, "level": 1.0}
    merged = numbers("lines", {0: learned(), 1: learned()}, **settings)
    assert merged["level"] == [1.0, 0.5, 0.0] and merged["low"] == merged["y"], "the band is that of the line"


def test_an_area_shows_a_list_above_a_base_and_its_mean():
    settings = {"area": 0.01, "y_scale": "log", "mean": "all the same"}
    record = probed(row={"y": [0.5, 0.3, 0.001], "rows": [[0.5, 0.5], [0.9, 0.1]]})
    plot, data = shown("lines", {0: record, 1: record}, metric="results.probes.row.y", **settings)
    (ax,), legend = drawn(plot, data)
    assert legend == ["all the same"] and ax.get_yscale() == "log"
    assert list(ax.lines[0].get_ydata()) == pytest.approx([0.267] * 2)
    assert (
        data["panels"][0]["series"][0]["seeds"] == [0] and _errors_text(data["panels"], LINES, "seed") == "seed 0 alone"
    )
    assert ax.collections[0].get_paths()[0].vertices[:, 1].min() == 0.01
    axes, _ = drawn(*shown("lines", record, metric="results.probes.row.rows", titles="head {}", **settings))
    assert [ax.get_title() for ax in axes] == ["a title, run 0, head 1", "a title, run 0, head 2"]


def test_small_and_large_numbers_share_an_axis():
    small, large = probed(lens={"overlap": [0.0, 0.001, 0.002]}), probed(lens={"overlap": [0.0, -0.001, 9.0]})
    panels = [{"series": [{"cell": f"cell {i}", "label": "a"}]} for i in range(2)]
    plot = plot_of("lines", panels, metric=f"{PROBE}.overlap", y_scale="symlog")
    runs = {"cell 0": {0: small}, "cell 1": {0: large}}
    axes, _ = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs, i) for i in range(2)]})
    assert [ax.get_yscale() for ax in axes] == ["symlog"] * 2 and axes[0].get_ylim() == axes[1].get_ylim()
    assert -0.02 < axes[0].get_ylim()[0] < -0.001 and 9 < axes[0].get_ylim()[1] < 100, "room as it is drawn"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"x": f"{PROBE}.chunks"}, "lists beside it have 2 entries; 'lines' needs a number, a list of them"),
        ({"x": f"{PROBE}.nothing"}, "lists beside it have no entries"),
        ({"level": f"{PROBE}.rows"}, r"has the shape \(2, 3\) in run 0+; 'lines' needs a number"),
        ({"metric": "fal"}, "plot.metric is 'fal', which is no measure .* write a dotted path into a record"),
    ],
)
def test_lists_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        numbers("lines", probed(lens=LENS), **{"metric": f"{PROBE}.overlap", **settings})


# ---- points: a number of each of several runs ----


POINTS = {"metric": "results.validation.loss", "x": "flops"}


def test_points_are_in_the_order_of_x_and_leave_out_missing_runs():
    runs = {"a": {0: make_record(flops=2.0)}, "b": {0: make_record(flops=1.0, results=make_results())}}
    given = {"cells": ["a", "not run", "b"], "label": "given", "x": [7.0, 8.0, 5.0]}
    plot = plot_of("lines", [{"series": [{"cells": ["a", "b", "c"], "label": "read"}]}], **POINTS)
    data = {"kind": plot.kind, "panels": [panel_of(plot, runs)]}
    first = {"x": 1.0, "y": 3.0, "stderr": None, "over": None, "n": 1}
    points = data["panels"][0]["series"][0]["data"]["points"]
    assert points == [{"run": "b", **first}, {"run": "a", **first, "x": 2.0}]
    (ax,), _ = drawn(plot, data)
    assert [text.get_text() for text in ax.texts] == ["3.000", "3.000"]
    assert list(ax.lines[0].get_xdata()) == [1.0, 2.0] and csv_lines(data)[0]["run"] == "b"
    line = panel_of(plot_of("lines", [{"series": [given]}], **POINTS), runs)["series"][0]
    assert [(point["run"], point["x"]) for point in line["data"]["points"]] == [("b", 5.0), ("a", 7.0)]
    assert line["run"] == ["0" * 16, None, "0" * 16]
    nowhere = panel_of(plot.model_copy(update={"x": "no.such"}), runs)
    assert nowhere["series"][0]["data"] is None, "a point without an x is left out"
    with pytest.raises(UserError, match="'two' names 2 cells; 'heatmap' shows one cell per series"):
        shown("heatmap", panel={"series": [{"cells": ["x", "y"], "label": "two"}]}, metric="flops")


def test_points_on_a_logarithmic_axis_have_their_ticks_and_equal_factors_equal_steps():
    runs = {name: {0: make_record(results=make_results())} for name in "abc"}
    series = [
        {"cells": ["a", "b"], "x": [0.25, 0.5], "label": "two"},
        {"cells": ["b", "c"], "x": [0.5, 1], "label": "more"},
    ]
    plot = plot_of("lines", [{"series": series}], **POINTS, x_scale="log", y_scale="log")
    (ax,), _ = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs)]})
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_xticklabels() if text.get_text()] == ["0.25", "0.5", "1"]
    left, middle, right = ax.transData.transform([(0.25, 3.0), (0.5, 3.0), (1.0, 3.0)])[:, 0]
    assert right - middle == pytest.approx(middle - left) and ax.get_yscale() == "log"


@pytest.mark.parametrize("idle", [{"x_scale": "log"}, {"y_scale": "symlog"}, {"level": "flops"}, {"marks": "flops"}])
def test_settings_that_bars_do_not_have_are_refused(idle):
    bars = plot_of("lines", [{"series": [{"cell": "a", "label": "one"}]}], metric=POINTS["metric"], **idle)
    with pytest.raises(UserError, match=f"plot.{next(iter(idle))} has no effect on a bar"):
        panel_of(bars, {"a": {0: make_record(results=make_results())}})


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([{"label": "one"}], "'one' needs the run of one `cell`, or `cells` with a run for each point"),
        ([{"label": "one", "cell": "a", "cells": ["b"]}], "'one' needs the run of one `cell`"),
        ([{"label": "one", "cell": "a", "x": [1]}], "'one' has x, which only points have"),
        ([{"label": "one", "cell": "a"}, {"label": "two", "cells": ["b"]}], "some series have `cell`, others `cells`"),
    ],
)
def test_series_that_are_neither_a_run_nor_points_are_refused(series, message):
    with pytest.raises(ValidationError, match=message):
        plot_of("lines", [{"series": series}], **POINTS)


def test_what_the_paper_prints_of_a_stage_needs_its_series():
    mark = {"label": "stage 1", "source": "Figure 1", "x": [1.0e9]}
    panel = {"series": [{"cell": "a", "label": "stage one"}], "paper": [mark]}
    with pytest.raises(ValidationError, match="'stage 1' is none: did you mean 'stage one'"):
        plot_of("stages", [panel])


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_series_over_the_same_x_stand_beside_each_other_where_they_have_errors(scale):
    runs = {name: {seed: _at(3.0 + seed) for seed in range(3)} for name in "abcd"}
    series = [{"cells": ["a", "b"], "x": [1, 4], "label": "one"}, {"cells": ["c", "d"], "x": [1, 4], "label": "two"}]
    plot = plot_of("lines", [{"series": series}], **{**POINTS, "x_scale": scale})

    def places(plot, runs):
        (ax,), _ = drawn(plot, {"kind": "lines", "panels": [panel_of(plot, runs)]})
        lines = [bars.lines[0] for bars in ax.containers]
        return [list(line.get_xdata()) for line in lines]

    one, two = places(plot, runs)
    assert one[0] < 1 < two[0] and one[1] < 4 < two[1] and max(abs(x - 1) for x in (one[0], two[0])) < 0.04
    assert places(plot, {name: {0: by_seed[0]} for name, by_seed in runs.items()}) == [[1, 4], [1, 4]], "no errors"
    apart = plot_of("lines", [{"series": [series[0], {**series[1], "x": [2, 4]}]}], **{**POINTS, "x_scale": scale})
    assert places(apart, runs) == [[1, 4], [2, 4]], "where the places differ they are those of the numbers"


def test_values_beside_points_stay_inside_the_frame_and_off_the_line():
    """In two panels with the same axes, of which one is far below the other."""
    curves = {"a": [3.75, 4.19, 3.97, 4.06], "b": [3.33, 3.35, 3.29, 3.35]}
    runs = {
        f"{name}{i}": {0: make_record(results=make_results(validation=make_loss(loss)))}
        for name, losses in curves.items()
        for i, loss in enumerate(losses)
    }
    series = [[{"cells": [f"{name}{i}" for i in range(4)], "x": [0, 17, 33, 50], "label": "L"}] for name in curves]
    plot = plot_of("lines", [{"series": one} for one in series], **POINTS)
    axes, _ = drawn(plot, {"kind": plot.kind, "panels": [panel_of(plot, runs, i) for i in range(2)]})
    for ax in axes:
        frame = ax.get_window_extent()
        boxes = [text.get_window_extent() for text in ax.texts]
        assert all(frame.y0 < box.y0 and box.y1 < frame.y1 for box in boxes)
        points = ax.transData.transform(list(zip(*ax.lines[0].get_data(), strict=True)))
        at = [a + (b - a) * i / 50 for a, b in zip(points, points[1:], strict=False) for i in range(51)]
        assert not any(box.contains(x, y) for box in boxes for x, y in at)


def test_errors_over_windows_leave_out_what_all_runs_have_in_common():
    hard = [float(i // 10) for i in range(30)]
    windows = {"a": hard, "b": [x + 0.1 for x in hard]}
    loss = {name: {**make_loss(sum(w) / 30), "windows": w} for name, w in windows.items()}
    runs = {name: {0: make_record(flops=1.0, results=make_results(validation=loss[name]))} for name in windows}
    panel = panel_of(plot_of("lines", [{"series": [{"cells": ["a", "b"], "label": "both"}]}], **POINTS), runs)
    points = panel["series"][0]["data"]["points"]
    assert [point["stderr"] for point in points] == pytest.approx([0.0, 0.0]) and "blocks" not in points[0]
    about = _errors_text([panel], LINES, "seed")
    assert "windows in blocks of ten" in about and "decides nothing" in about


# ---- several seeds ----


def test_seeds_become_a_mean_with_a_band_of_one_standard_error():
    curve = numbers("lines", history([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.0, 5.0]), **LOSS)
    assert curve["y"] == [2.0, 2.0, 3.0] and curve["seeds"] == 3 and curve["x"] == [1, 2, 3]
    error = 1 / math.sqrt(3)
    assert curve["low"][:2] == pytest.approx([2 - error, 2.0]) and curve["high"][0] == pytest.approx(2 + error)
    plot, data = shown("lines", history([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]), **LOSS)
    assert data["panels"][0]["series"][0]["seeds"] == [0, 1]
    (ax,), _ = drawn(plot, data)
    assert len(ax.collections) == 1, "the band"
    band = {"x": 1, "y": 2.0, "low": 1.0, "high": 3.0}
    assert csv_lines(data)[0] == {"panel": "a title", "series": "run 0", **band}
    (ax,), _ = drawn(*shown("lines", history([1.0, 2.0, 3.0]), **LOSS))
    assert not ax.collections, "one seed has no band"


def test_seeds_that_spend_other_flops_meet_on_the_first_ones_x():
    first = make_record(history={"flops": [10.0, 20.0, 40.0], "loss": [4.0, 3.0, 1.0]})
    second = make_record(history={"flops": [12.0, 24.0, 40.0], "loss": [4.0, 2.0, 2.0]})
    curve = numbers("lines", {0: first, 1: second}, metric="history.loss", x="history.flops")
    assert curve["x"] == [20.0, 40.0], "10 lies before the second run's first point"
    assert curve["y"] == pytest.approx([(3 + 8 / 3) / 2, 1.5])


def test_seeds_of_numbers_levels_rows_and_points():
    other = {**LENS, "score": {"value": 2.5, "stderr": 0.1, "n": 20}, "rows": [[0.4, 0.3, 0.4], [0.5, 0.1, 0.9]]}
    seeds = {0: probed(lens=LENS), 1: probed(lens=other)}
    bar = numbers("lines", seeds, metric=f"{PROBE}.score")
    assert bar == {"y": 2.0, "stderr": pytest.approx(0.5), "over": "seeds", "seeds": 2}
    assert numbers("lines", seeds, metric=f"{PROBE}.overlap", level=f"{PROBE}.score")["level"] == 2.0
    (part,) = numbers("lines", seeds, metric=f"{PROBE}.rows")["parts"]
    assert part["lines"]["1"] == pytest.approx([0.3, 0.3, 0.4])
    assert part["bands"]["1"][0] == pytest.approx([0.2, 0.3, 0.4])

    def run(loss):
        return make_record(flops=1.0, results=make_results(validation=make_loss(loss)))

    plot = plot_of("lines", [{"series": [{"cells": ["a", "b"], "label": "both"}]}], **POINTS)
    panel = panel_of(plot, {"a": {0: run(3.0), 1: run(3.2)}, "b": {0: run(4.0)}})
    a, b = panel["series"][0]["data"]["points"]
    assert (a["y"], a["stderr"], a["over"], a["n"]) == (pytest.approx(3.1), pytest.approx(0.1), "seeds", 2)
    assert (b["y"], b["stderr"], b["over"]) == (4.0, None, None)
    assert _errors_text([panel], LINES, "seed") == "bands and bars: ± one standard error over 2 seeds"


def test_a_run_that_is_shown_at_several_places_stays_at_each_of_them():
    series = {"cells": ["a", "a", "a"], "x": [1, 2, 4], "label": "flat"}
    plot = plot_of("lines", [{"series": [series]}], **POINTS)
    points = panel_of(plot, {"a": {seed: _at(3.0 + seed) for seed in range(3)}})["series"][0]["data"]["points"]
    assert [(point["x"], point["y"], point["n"]) for point in points] == [(1, 4.0, 3), (2, 4.0, 3), (4, 4.0, 3)]
    assert not {"place", "blocks"} & points[0].keys()


def test_rows_of_seeds_that_have_other_x_meet_where_both_are_known():
    """y is x: so is the mean, between the points of the second seed too."""
    at = [{**LENS, "starts": xs, "rows": [xs, xs]} for xs in ([0, 1, 2], [0, 2, 4])]
    seeds = {seed: probed(lens=one) for seed, one in enumerate(at)}
    found = numbers("lines", seeds, metric=f"{PROBE}.rows", x=f"{PROBE}.starts")
    assert found["x"] == [0, 1, 2] and found["parts"][0]["lines"]["1"] == pytest.approx([0, 1, 2])
    assert found["parts"][0]["bands"]["1"] == (pytest.approx([0, 1, 2]), pytest.approx([0, 1, 2]))


def test_rows_with_one_name_are_refused():
    with pytest.raises(UserError, match="calls several rows 'source' in run 0+; add what they differ in"):
        numbers("lines", probed(lens=LENS), metric=f"{PROBE}.rows", names="source")


def test_points_without_any_x_are_refused():
    plot = plot_of("lines", [{"series": [{"cells": ["a", "b"], "label": "two"}]}], metric="flops")
    with pytest.raises(UserError, match=r"the points of 'two' have no x; give `x: \[1, 2, …\]`"):
        panel_of(plot.model_copy(update={"x": None}), {"a": {0: make_record()}})


@pytest.mark.parametrize("of", [{"metric": f"{PROBE}.overlap"}, {"metric": "flops", "x": f"{PROBE}.overlap"}])
def test_points_of_lists_are_refused(of):
    plot = plot_of("lines", [{"series": [{"cells": ["a", "b"], "label": "two"}]}], **{"x": "flops", **of})
    with pytest.raises(UserError, match="overlap' has the shape .* in run 0+; 'lines' needs a number of each run"):
        panel_of(plot, {"a": {0: probed(lens=LENS)}})


def test_a_page_names_bands_and_bars_only_where_the_kind_draws_them():
    rows = {0: probed(lens=LENS), 1: probed(lens={**LENS, "rows": [[0.4, 0.3, 0.4], [0.5, 0.1, 0.9]]})}
    panel = panel_of(
        plot_of("heatmap", [{"series": [{"cell": "a", "label": "a"}]}], metric=f"{PROBE}.rows"), {"a": rows}
    )
    assert _errors_text([panel], FIGURE_KINDS.get("heatmap"), "seed") == "2 seeds together"


# ---- differences ----


def test_a_panel_can_show_the_difference_to_a_run_of_the_same_seed():
    runs = {"arm": history([1.5, 2.5, 3.5], [1.0, 2.0, 3.0]), "base": history([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])}
    panel = {"relative_to": "base", "series": [{"cell": "arm", "label": "arm"}]}
    plot = plot_of("lines", [panel], **LOSS)
    line = panel_of(plot, runs)["series"][0]["data"]
    assert line["y"] == [-0.25] * 3 and line["high"] == pytest.approx([0.5] * 3), "paired: +0.5 and −1"
    without = panel_of(plot, {"arm": runs["arm"]})["series"][0]
    assert without["data"] is None and without["seeds"] == []
    with pytest.raises(UserError, match="relative_to takes differences of lists; leave it out"):
        panel_of(plot_of("lines", [panel], metric="flops"), runs)


def _at(loss):
    return make_record(results=make_results(validation=make_loss(loss)))


def test_points_can_be_the_differences_to_other_cells_of_the_same_seed():
    series = {"cells": ["arm/small", "arm/large"], "x": [1, 2], "label": "arm"}
    plot = plot_of("lines", [{"relative_to": ["base/small", "base/large"], "series": [series]}], **POINTS)
    runs = {
        "arm/small": {0: _at(3.0), 1: _at(3.4)},
        "base/small": {0: _at(3.1), 1: _at(3.3)},
        "arm/large": {0: _at(2.0)},
    }
    assert plot.relatives() == ["base/small", "base/large"]
    (point,) = panel_of(plot, runs)["series"][0]["data"]["points"]
    assert (point["x"], point["y"], point["stderr"]) == (1, pytest.approx(0.0), pytest.approx(0.1)), "-0.1 and +0.1"
    alone = panel_of(plot, {name: {0: by_seed[0]} for name, by_seed in runs.items()})["series"][0]["data"]["points"]
    assert alone[0]["y"] == pytest.approx(-0.1) and alone[0]["stderr"] is None and "blocks" not in alone[0]


def test_a_point_can_be_a_measure():
    series = {"cells": ["a", "b", "not run"], "label": "arm"}
    measures = {"slow": ("sum(y > 1.5)", {"y": "history.loss"}), "far": ("f[0]", {"f": "history.flops"})}
    plot = plot_of("lines", [{"series": [series]}], measures, metric="slow", x="far")
    runs = {"a": history([2.0, 2.0, 1.0]), "b": history([2.0, 1.0, 1.0])}
    panel = panel_of(plot, runs)
    points = panel["series"][0]["data"]["points"]
    assert [(point["run"], point["x"], point["y"], point["stderr"]) for point in points] == [
        ("a", 10.0, 2.0, None),
        ("b", 10.0, 1.0, None),
    ]
    assert panel["names"] == {"slow": "the slow", "far": "the far"}
    curve = {"slow": ("y", {"y": "history.loss"}), "far": measures["far"]}
    with pytest.raises(UserError, match="'slow' has the shape .3,. in run 0+; 'lines' needs a number of each run"):
        panel_of(plot_of("lines", [{"series": [series]}], curve, metric="slow", x="far"), runs)


@pytest.mark.parametrize("base", ["base", [], ["small"], ["small", "large", "larger"]])
def test_a_series_of_several_cells_needs_as_many_to_be_relative_to(base):
    series = {"cells": ["a", "b"], "x": [1, 2], "label": "arm"}
    with pytest.raises(ValueError, match="'arm' needs a relative_to like itself"):
        plot_of("lines", [{"relative_to": base, "series": [series]}], **POINTS)
    if isinstance(base, list):
        with pytest.raises(ValueError, match="'arm' needs a relative_to like itself"):
            plot_of("lines", [{"relative_to": base, "series": [{"cell": "a", "label": "arm"}]}], **LOSS)


def test_a_series_has_as_many_x_as_cells():
    series = {"cells": ["a", "b"], "x": [1], "label": "arm"}
    with pytest.raises(ValueError, match="'arm' has 2 cells and 1 x"):
        plot_of("lines", [{"series": [series]}], **POINTS)


def test_a_difference_over_flops_is_at_a_share_of_the_other_runs():
    base = make_record(history={"flops": [10.0, 20.0, 40.0], "loss": [4.0, 3.0, 1.0]})
    arm = make_record(history={"flops": [5.0, 15.0, 30.0, 60.0], "loss": [5.0, 4.0, 3.0, 2.0]})
    panel = {"relative_to": "base", "series": [{"cell": "arm", "label": "arm"}]}
    plot = plot_of("lines", [panel], metric="history.loss", x="history.flops")
    line = panel_of(plot, {"arm": {0: arm}, "base": {0: base}})["series"][0]["data"]
    assert line == {"x": [37.5, 75.0], "y": [0.5, 1.0]}, "in percent of its last"


# ---- distributions ----


def test_distributions_are_rows_as_ridgelines_and_boxes():
    measures = {"part": ("1 / y", {"y": f"{PROBE}.chunks"})}
    settings = {"metric": f"{PROBE}.rows", "names": "{}\n({part})", "of": "heads", "measures": measures}
    plot, data = shown("distributions", probed(lens=LENS), x_label="loop", y_label="entropy", **settings)
    axes, legend = drawn(plot, data)
    assert [ax.get_title() for ax in axes] == ["a title, run 0, ridgelines", "a title, run 0, boxes"]
    assert [ax.get_xlabel() for ax in axes] == ["entropy", "loop"] and "mean over heads" in legend
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["1\n(1/8)", "2\n(1)"], "beside the bars"
    assert [label.get_text() for label in axes[1].get_xticklabels()] == ["1\n(1/8)", "2\n(1)"]
    assert list(axes[1].lines[-1].get_ydata()) == pytest.approx([0.3, 0.5])
    lines = csv_lines(data)
    assert len(lines) == 6
    assert lines[3] == {"panel": "a title", "series": "run 0", "row": 2, "name": "2 (1)", "y": 0.5}


def test_boxes_hold_the_entries_of_all_seeds_and_bars_those_of_their_means():
    runs = {0: probed(lens=LENS), 1: probed(lens={"rows": [[0.4, 0.3, None], [0.5, 0.1, 0.9]]})}
    plot, data = shown("distributions", runs, metric=f"{PROBE}.rows")
    spread = data["panels"][0]["series"][0]["data"]
    assert spread["rows"][0] == [0.2, 0.3, 0.4, 0.4, 0.3] and spread["means"][1] == pytest.approx([0.35, 0.5])
    axes, _ = drawn(plot, data)
    assert len(axes[1].collections) == 1, "error bars"


# ---- stages ----


def test_stages_are_bars_of_tokens_or_the_masks_of_one__at():
    assert numbers("stages", make_record()) == {"tokens": 1000, "steps": 100, "map": "wwww"}
    plot, data = shown("stages", make_record(tokens=3_000_000), learned(tokens=1_000_000))
    (ax,), _ = drawn(plot, data)
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0.0, 3.0), (3.0, 1.0)]
    assert [line.get("tokens") for line in csv_lines(data)] == [3_000_000, *[None] * 6, 1_000_000]
    (ax,), legend = drawn(*shown("stages", learned()))
    assert ax.get_xlabel() == "layer 2: key positions" and legend == ["full attention", "window"]
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
