"""Names in an experiment file are checked on loading: claim kinds, functions, arguments, rows, columns, cells."""

import pytest

from hybridlab.config.loading import Layer
from hybridlab.errors import UserError
from hybridlab.lab.papers import loading as experiments
from hybridlab.lab.papers.analytic import ANALYTIC, analytic
from hybridlab.lab.papers.calls import CLAIM_KINDS, CellName, called
from hybridlab.lab.papers.claims.judge import judge
from hybridlab.lab.papers.claims.kinds import Given, claim_kind
from hybridlab.lab.papers.claims.verdict import Verdict
from hybridlab.lab.papers.experiment import Claim
from hybridlab.lab.papers.loading import experiment_ids, load_experiment, metric_problem
from hybridlab.runs.record import BenchmarkRecord, Record
from tests.experiments import needed_cells
from tests.unit.verdicts.building import record, table

TABLE = """\
id: toy-table1
title: A toy
paper: toy
source: nowhere
reference: One
columns:
- {name: layers, title: L, kind: exact, compute: {function: shape_field, field: layers}}
- {name: loss, title: loss, kind: trained, metric: results.validation.loss}
rows:
- {name: Row one, short: One, cell: one, given: {size: tiny}, paper: {layers: 8, loss: 3.0}}
- {name: Row two, short: Two, cell: two, given: {size: tiny}, paper: {layers: 8}}
cells:
  one: {arch: vanilla, phase: p}
  two: {arch: vanilla, phase: p, start: base}
  base: {arch: vanilla, phase: p}
  spare: {arch: vanilla, phase: p}
  unused: {arch: vanilla, phase: p}
claims:
- text: first
  source: here
  test: {kind: printed_alike, rows: [One], like: Two, column: loss}
- text: second
  source: here
  test:
    loss[one, spare] < [two]
- text: third
  source: here
  test: printed[One; loss] == [Else; x; toy-table2]
- text: fourth
  source: here
  test: loss[one] > 1
"""
OTHER = """\
id: toy-table2
title: Another
paper: toy
source: nowhere
columns: [{name: x, title: X, kind: trained}]
rows: [{name: Else, short: Else, paper: {x: 3.0}}]
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that loads the toy experiment with one text replaced by another."""
    monkeypatch.setattr(experiments, "experiments_folder", lambda: tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "table2.yaml").write_text(OTHER)

    def loaded(old="", new=""):
        assert old in TABLE
        (tmp_path / "toy" / "table1.yaml").write_text(TABLE.replace(old, new, 1))
        return load_experiment("toy-table1")

    return loaded


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # Claims: the kind and its arguments.
        (
            "printed_alike",
            "printed_alik",
            "table1.yaml:21: claim kind 'printed_alik' is unknown; did you mean 'printed_alike'?",
        ),
        ("kind: printed_alike, ", "", "table1.yaml:21: claim kind: write `kind: NAME`; known: "),
        ("kind: printed_alike", "kind: [a]", "table1.yaml:21: claim kind: write `kind: NAME`"),
        (
            "like: Two",
            "liek: Two",
            "table1.yaml:21: claim kind printed_alike takes no argument 'liek'; did you mean 'like'?",
        ),
        (", like: Two", "", "table1.yaml:21: claim kind printed_alike needs the argument 'like'"),
        ("like: Two", "like: [Two]", "table1.yaml:21: like = ['Two']: "),
        ("rows: [One]", "rows: One", "table1.yaml:21: rows = 'One': "),
        # The names in them.
        ("like: Two", "like: Tow", "table1.yaml:21: toy-table1 has no row 'Tow'; did you mean 'Two'?"),
        ("column: loss}", "column: los}", "table1.yaml:21: toy-table1 has no column 'los'; did you mean 'loss'?"),
        ("< [two]", "< [tow]", "table1.yaml:24: toy-table1 has no cell 'tow'; did you mean 'two'?"),
        ("toy-table2]", "toy-table3]", "table1.yaml:28: toy-table3: there is no such experiment; did you mean"),
        ("[Else;", "[Elsa;", "table1.yaml:28: toy-table2 has no row 'Elsa'; did you mean 'Else'?"),
        ("; x;", "; y;", "table1.yaml:28: toy-table2 has no column 'y'; known: x"),
        (
            "loss[one] > 1",
            "results.validaton.loss[one] > 1",
            "table1.yaml:31: results.validaton.loss: a record has no 'validaton' there; did you mean 'validation'?",
        ),
        (
            "printed_alike, rows: [One], like: Two, column: loss",
            "faster, rows: [A], over: [B], parts: [decode]",
            "table1.yaml:21: toy-table1 has no model 'A'; it has none",
        ),
        # Columns: the function and its arguments, completed by each row.
        (
            "shape_field",
            "shape_feild",
            "table1.yaml:7: analytic function 'shape_feild' is unknown; did you mean 'shape_field'?",
        ),
        (
            "field: layers",
            "feld: layers",
            "table1.yaml:7: analytic function shape_field takes no argument 'feld'; did you mean 'field'?",
        ),
        (
            "field: layers",
            "field: layer",
            "table1.yaml:7: field: 'layer' is not a field of a shape; did you mean 'layers'?",
        ),
        (
            "Two, cell: two, given: {size: tiny}",
            "Two, cell: two, given: {siz: tiny}",
            "table1.yaml:11: analytic function shape_field takes no argument 'siz'; did you mean 'size'?",
        ),
        (
            "Two, cell: two, given: {size: tiny}",
            "Two, cell: two",
            "table1.yaml:7: analytic function shape_field needs the argument 'size'",
        ),
        (
            "Two, cell: two, given: {size: tiny}",
            "Two, cell: two, given: {size: tinny}",
            "table1.yaml:11: size: 'tinny' is not a size; did you mean",
        ),
        # The rest of the file.
        ("reference: One", "reference: Oen", "table1.yaml:5: toy-table1 has no row 'Oen'; did you mean 'One'?"),
        ("cell: two, given", "cell: tow, given", "table1.yaml:11: toy-table1 has no cell 'tow'; did you mean 'two'?"),
        ("cell: two, given", "cell: benchmark, given", "table1.yaml:11: toy-table1 has no cell 'benchmark'"),
        ("loss: 3.0", "los: 3.0", "table1.yaml:10: toy-table1 has no column 'los'; did you mean 'loss'?"),
        ("start: base", "start: bas", "table1.yaml:14: toy-table1 has no cell 'bas'; did you mean 'base'?"),
        ("start: base", 'config: {init: {run: "cell:bas"}}', "table1.yaml:14: toy-table1 has no cell 'bas'"),
        (
            "metric: results.validation.loss}",
            "metric: result.validation.loss}",
            "table1.yaml:8: result.validation.loss: a record has no 'result' there",
        ),
        (
            "metric: results.validation.loss}",
            'metric: "results.{nothing}.loss"}',
            "table1.yaml:8: column 'loss' asks for {nothing}, which row 'One' does not give; known: short, size",
        ),
        (
            "kind: exact,",
            "kind: exact, panel: measurd,",
            "table1.yaml:7: toy-table1 has no panel 'measurd'; did you mean 'measured'?",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_its_line_and_the_nearest_name(load, old, new, message):
    with pytest.raises(UserError) as caught:
        load(old, new)
    assert str(caught.value).startswith(message)


def test_a_panel_that_names_a_wrong_cell_is_refused_with_its_line(load):
    series = "[{cells: [one, two], label: a},\n {cells: [one, tow], label: b}]"
    plot = f"plot: {{kind: lines, metric: history.loss, panels: [{{series: {series}}}]}}"
    with pytest.raises(UserError, match="table1.yaml:2: toy-table1 has no cell 'tow'; did you mean 'two'"):
        load("id: toy-table1\n", f"{plot}\nid: toy-table1\n")


def test_the_runs_that_are_needed_follow_from_the_types_of_arguments(load):
    """`spare` is named by a claim alone, inside pairs; `base` is what `two` starts from."""
    assert needed_cells(load()) == ["one", "two", "base", "spare"]


def test_the_claim_kind_of_a_plug_in_is_checked_judged_and_gets_its_runs(load):
    @claim_kind
    def more_tokens(
        on: Given, cell: CellName, than: list[CellName] | None = None, at: CellName | None = None
    ) -> Verdict:
        """A kind as a plug-in would add it."""
        return Verdict(on.first_seed(cell).tokens > 0, "tokens")

    old = "{kind: printed_alike, rows: [One], like: Two, column: loss}"
    try:
        experiment = load(old, "{kind: more_tokens, cell: unused}")
        assert "unused" in needed_cells(experiment)
        optional = load(old, "{kind: more_tokens, cell: one, than: [two, unused]}")
        assert "unused" in needed_cells(optional)
        assert judge(experiment.claims[0], experiment, {"unused": {0: record()}}) == Verdict(True, "tokens")
        assert judge(experiment.claims[0], experiment, {}) == Verdict(None, "not run: unused", word="not run")
        with pytest.raises(UserError, match="toy-table1 has no cell 'unusd'; did you mean 'unused'"):
            load(old, "{kind: more_tokens, cell: one, at: unusd}")
    finally:
        CLAIM_KINDS.remove("more_tokens")


def test_the_analytic_function_of_a_plug_in_is_checked(load):
    @analytic
    def as_text(size: str, field: str) -> str:
        """A function as a plug-in would add it."""
        return f"{field} of {size}"

    try:
        experiment = load("shape_field", "as_text")
        assert experiment.columns[0].compute == {"function": "as_text", "field": "layers"}
        with pytest.raises(UserError, match="analytic function as_text takes no argument 'feild'"):
            load("shape_field, field", "as_text, feild")
    finally:
        ANALYTIC.remove("as_text")


def test_a_registered_name_is_refused():
    def printed_alike(on: Given) -> Verdict:
        """Another one of this name."""
        return Verdict(True, "")

    with pytest.raises(UserError, match="claim kind 'printed_alike' is registered already"):
        claim_kind(printed_alike)


def test_a_claim_that_was_not_loaded_from_a_file_is_checked_when_it_is_judged():
    claim = Claim(text="a sentence", source="s", test={"kind": "printed_alike", "like": "A"})
    with pytest.raises(UserError, match="toy-table1, claim 'a sentence': claim kind printed_alike needs the argument"):
        judge(claim, table(), {})


@pytest.mark.parametrize(
    ("path", "root", "problem"),
    [
        ("results.tasks.retrieval.outside", Record, None),
        ("results.probes.loops.whatever.lies.there", Record, None),
        ("controller.realised_sparsity", Record, None),
        ("model.kv_bytes.bytes", Record, None),
        ("results.70M.B.1.token.time_ratio", BenchmarkRecord, None),
        ("results.tasks.retrieval.outsid", Record, "did you mean 'outside'?"),
        ("model.kv_bytes.byte", Record, "did you mean 'bytes'?"),
        ("flops.value", Record, "flops.value: flops has no parts"),
        ("results.70M.B.1.token.ratios", BenchmarkRecord, "did you mean 'ratio'?"),
    ],
)
def test_dotted_paths_are_checked_against_the_types_of_a_record(path, root, problem):
    message = metric_problem(path, root)
    assert message is None if problem is None else problem in message


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"kind": "says", "holds": "loss[] < [b]"}, "write names between the brackets"),
        ({"kind": "says", "holds": "loss[a]"}, "of runs write a comparison"),
        ({"kind": "says", "holds": "loss[a] == [b]"}, "runs are compared with `<` and `>`"),
    ],
)
def test_claims_that_ask_for_nothing_are_refused(test, message):
    with pytest.raises(UserError, match=message):
        called(CLAIM_KINDS, "kind", Layer(test))


def test_every_experiment_passes_its_checks():
    for identifier in experiment_ids():
        assert load_experiment(identifier).id == identifier
