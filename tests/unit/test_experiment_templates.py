"""Files with several entries: what they share, `for:` and `each:`, rows as tables of text, and errors with lines."""

import pytest

from hybridlab.config.loading import Layer, read_yaml
from hybridlab.config.templates import expand
from hybridlab.errors import UserError
from hybridlab.lab.papers import loading as experiments
from hybridlab.lab.papers.entries import _ROW, entries_in
from hybridlab.lab.papers.experiment import Row
from hybridlab.lab.papers.ids import entry_files, experiment_files, experiment_ids, experiments_folder
from hybridlab.lab.papers.listing import read_heads
from hybridlab.lab.papers.loading import load_experiment

LONG = """\
id: toy-table1
title: A toy, 12M
paper: toy
source: nowhere
reference: One
columns:
  - {name: all, title: P, kind: exact, digits: 0, compute: {function: printed_parameters, embedding: true}}
  - {name: blocks, title: P, kind: exact, digits: 0, compute: {function: printed_parameters, embedding: false}}
rows:
  - name: "Row: one"
    short: One
    cell: 12M/one
    given: {size: tiny, arch: vanilla, config: {shape: {layers: 4}}}
    paper: {all: 8, blocks: "≈ 90"}
  - {name: Two, short: Two, given: {size: tiny, arch: sgt}, paper: {all: 8.5}, digits: {all: 1}}
cells:
  12M/one: {arch: vanilla, group: 12M, phase: p}
  12M/two: {arch: sgt, group: 12M, phase: p}
notes: [first, second, third]
"""
SHORT = """\
paper: toy
source: nowhere
columns:
  - for: [{what: all, with: true}, {what: blocks, with: false}]
    each:
      - {name: $what, title: $title, for: [{title: P}], compute: {embedding: $with}}
    kind: exact
    digits: 0
    compute: {function: printed_parameters}
entries:
  - for: {size: 12M}
    id: toy-table1
    title: A toy, $size
    reference: One
    rows: |
      # The widths are those of appendix B.
      name      short  cell       given.size  given.arch  given.config          all  blocks
      Row: one  One    $size/one  tiny        vanilla     {shape: {layers: 4}}  8    ≈ 90

      Two       Two    –          tiny        sgt         –                     8.5  –
    cells:
      $size/$arm: {for: [{arm: one, arch: vanilla}, {arm: two, arch: sgt}], arch: $arch, group: $size, phase: p}
    notes: [first, [second, third]]
  - for: [{id: toy-table2, size: 1M}, {id: toy-table3, size: 2M}]
    id: $id
    title: Another toy, ${size}
    rows: [{name: One, short: One, given: {size: tiny}}]
    columns: [{name: layers, title: L, kind: exact, compute: {function: shape_field, field: layers}}]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "experiments_folder", lambda: tmp_path)
    monkeypatch.setattr("hybridlab.lab.papers.listing.experiments_folder", lambda: tmp_path)
    (tmp_path / "toy").mkdir()
    return tmp_path


def written(folder, text, name="toys"):
    (folder / "toy" / f"{name}.yaml").write_text(text)


def test_an_entry_of_a_family_is_the_one_that_is_written_out(folder):
    written(folder, LONG, "table1")
    long = load_experiment("toy-table1")
    (folder / "toy" / "table1.yaml").unlink()
    written(folder, SHORT)
    short = load_experiment("toy-table1")
    assert short.model_dump() == long.model_dump()
    assert list(short.cells) == ["12M/one", "12M/two"] and short.rows[1].paper == {"all": 8.5}
    others = [load_experiment(f"toy-table{n}") for n in (2, 3)]
    assert [(one.title, one.source, len(one.columns)) for one in others] == [
        ("Another toy, 1M", "nowhere", 1),
        ("Another toy, 2M", "nowhere", 1),
    ]


def test_the_list_has_the_entries_of_a_family_in_their_order(folder):
    written(folder, SHORT)
    assert [(head.id, head.title) for head in read_heads()] == [
        ("toy-table1", "A toy, 12M"),
        ("toy-table2", "Another toy, 1M"),
        ("toy-table3", "Another toy, 2M"),
    ]
    assert experiment_ids(folder) == ["toy-table1", "toy-table2", "toy-table3"]


def test_the_search_for_ids_in_texts_finds_those_that_the_files_have():
    files = experiment_files()
    read = {entry.id: path for path in entry_files(experiments_folder()) for entry in entries_in(path)}
    assert files == read


def test_two_entries_of_one_id_are_an_error_that_names_both_files(folder):
    written(folder, SHORT)
    written(folder, LONG, "zz")
    message = "toy/toys.yaml and toy/zz.yaml have an entry 'toy-table1'"
    with pytest.raises(UserError, match=message):
        load_experiment("toy-table3")
    with pytest.raises(UserError, match=message):
        read_heads()
    (folder / "toy" / "zz.yaml").unlink()
    written(folder, SHORT.replace("toy-table3", "toy-table1"))
    with pytest.raises(UserError, match="toy/toys.yaml, twice, have an entry 'toy-table1'"):
        load_experiment("toy-table1")


def test_an_entry_of_a_file_of_ones_own_is_named_after_a_colon(folder, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SHORT.replace("toy-", "mine-"))
    assert load_experiment(f"{path}:mine-table2").title == "Another toy, 1M"
    with pytest.raises(UserError) as caught:
        load_experiment(str(path))
    assert str(caught.value) == (
        f"{path} has several entries; name one of them, as in {path}:mine-table1; "
        "known: mine-table1, mine-table2, mine-table3"
    )
    with pytest.raises(UserError, match="it has no entry 'mine-table4'; did you mean"):
        load_experiment(f"{path}:mine-table4")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("A toy, $size", "A toy, $siz", "toys.yaml:13: $siz: no `for:` around it gives a value of this name; did you"),
        ("toy, ${size}", "toy", "toys.yaml:24: for: 'size' is not used; write $size where it belongs, or remove it"),
        ("{name: $what,", "{name: $what, metric: $x,", "toys.yaml:6: $x: no `for:` around it gives a value"),
        ("for: [{title: P}]", "for: [{what: P}]", "toys.yaml:6: for: 'what' is a name of a `for:` around this one"),
        ("source: nowhere", "source: $5 or $x", "toys.yaml:2: $x: no `for:` around it gives a value of this name"),
        ("{size: 12M}", "[12M]", "toys.yaml:11: for: write names with lists of values, or a list of mappings"),
        ("{size: 12M}", "{si-ze: 12M}", "toys.yaml:11: for: 'si-ze' cannot be a name; use letters, digits and _"),
        (
            "[{what: all, with: true}, {what: blocks, with: false}]",
            "{what: []}",
            "toys.yaml:4: for: a list of values is empty",
        ),
        ("{arm: two, arch: sgt}", "{arm: two}", "toys.yaml:22: for: 'arch' is not in every mapping"),
        ("$size/$arm:", "$size/one:", "toys.yaml:22: '12M/one' is written twice in one mapping; put a $name of the"),
        ("phase: p}", "phase: p, config: {a: $arch, b: $all}}", "toys.yaml:22: $all: no `for:`"),
        ("arch: $arch", "arch: $arhc", "toys.yaml:22: $arhc: no `for:` around it gives a value of this name; did you"),
        (
            "[{arm: one, arch: vanilla}",
            "[{arm: one, arch: [vanilla]}",
            "toys.yaml:22: cells.12M/one.arch = ['vanilla']",
        ),
        ("arch: vanilla}", "arch: [a]}, {arm: x, arch: is $arch}", "toys.yaml:22: $arch: no `for:`"),
        (
            "[{arm: one, arch: vanilla}, {arm: two, arch: sgt}], arch: $arch",
            "[{arm: one, arch: [a]}], arch: is $arch",
            "toys.yaml:22: $arch is a list or a mapping here, which cannot be a part of a text",
        ),
        ("    id: toy-table1\n", "", "toys.yaml:11: an entry needs an id of its own"),
        ("id: toy-table1", "id: other-table1", "toys.yaml:12: id 'other-table1': in this folder an id must begin"),
        ("\nentries:", "\nentries: {}\nmore:", "toys.yaml:10: entries: must be a list of mappings"),
        # Rows as a table.
        ("  8    ≈ 90", "  8", "toys.yaml:18: this row has 7 cells, and the table 8 columns; put two spaces"),
        ("all  blocks\n", "all  all\n", "toys.yaml:17: the table has two columns 'all'"),
        ("all  blocks\n", "all  heads\n", "toys.yaml:18: toy-table1 has no column 'heads'"),
        (
            "$size/one  tiny",
            "$size/ome  tiny",
            "toys.yaml:18: toy-table1 has no cell '12M/ome'; did you mean '12M/one'?",
        ),
        (
            "given.size  given",
            "given.sice  given",
            "toys.yaml:18: analytic function printed_parameters takes no argument 'sice'",
        ),
        ("{shape: {layers: 4}}", "{shape: {layers: 4}", "toys.yaml:18: {shape: {layers: 4}: it cannot be read"),
        ("    rows: |\n", "    rows: none\n    more: |\n", "toys.yaml:15: write a table as a block of text (|)"),
    ],
)
def test_mistakes_have_the_line_of_the_template(folder, old, new, message):
    written(folder, SHORT)
    assert old in SHORT
    written(folder, SHORT.replace(old, new, 1))
    identifier = next(iter(experiment_ids(folder)))
    with pytest.raises(UserError) as caught:
        for name in (identifier, "toy-table2"):
            load_experiment(name)
    assert str(caught.value).startswith(message)


def test_a_row_of_a_table_has_the_settings_of_rows():
    assert {*_ROW, "paper", "digits"} == {*Row.model_fields}, "digits are those of the numbers"


def test_a_file_with_entries_is_not_extended(folder):
    written(folder, SHORT)
    written(folder, "extends: toys.yaml\nid: toy-table9\n", "table9")
    with pytest.raises(UserError, match=r"toys.yaml:10: a file with entries cannot be extended; .* _NAME.yaml"):
        load_experiment("toy-table9")


def expanded(text, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    return expand(read_yaml(path))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # All combinations, in the order of the names; a value keeps its type, and in a text it is as YAML writes it.
        (
            "a: [{for: {x: [1, 2], y: [a, b]}, n: $x, t: $x-$y}]",
            {"a": [{"n": n, "t": f"{n}-{y}"} for n in (1, 2) for y in "ab"]},
        ),
        (
            "a: [0, {for: {x: [[1], {b: 2}, true, 0.5]}, v: $x}, 9]",
            {"a": [0, {"v": [1]}, {"v": {"b": 2}}, {"v": True}, {"v": 0.5}, 9]},
        ),
        ("a: [{for: {x: [true, 1, 0.5]}, v: is $x}]", {"a": [{"v": "is true"}, {"v": "is 1"}, {"v": "is 0.5"}]}),
        ("a: {b-$x: {for: {x: [1, 2]}, v: $x}, c: 3}", {"a": {"b-1": {"v": 1}, "b-2": {"v": 2}, "c": 3}}),
        # One key for all: the mapping has the keys of all.
        ("a: {for: {x: [1, 2]}, p$x: $x, q$x: 0}", {"a": {"p1": 1, "q1": 0, "p2": 2, "q2": 0}}),
        # Inner lists of values may depend on outer ones.
        ("a: [{for: [{x: 1, y: [3, 4]}], b: [{for: {z: $y}, v: $x$z}]}]", {"a": [{"b": [{"v": "13"}, {"v": "14"}]}]}),
        # `each:` shares what is beside it, which the items complete or replace.
        (
            "a: [{k: 1, m: {o: 1}, each: [{v: 1}, {k: 2, m: {p: 2}}]}]",
            {"a": [{"k": 1, "m": {"o": 1}, "v": 1}, {"k": 2, "m": {"o": 1, "p": 2}}]},
        ),
        ("a: [{for: {x: [1, 2]}, each: [{v: $x}, {w: $x}]}]", {"a": [{"v": 1}, {"w": 1}, {"v": 2}, {"w": 2}]}),
        ("a: costs $$x or $5", {"a": "costs $x or $5"}),
    ],
)
def test_what_templates_stand_for(text, values, tmp_path):
    assert expanded(text, tmp_path).values == values


def test_every_value_has_the_line_of_its_template(tmp_path):
    layer = expanded("a:\n- for:\n    x: [1, 2]\n  k: 0\n  each:\n  - v: $x\n  - {w: 1}\nb: 1\n", tmp_path)
    lines = {path: int(origin.rpartition(":")[2]) for path, origin in layer.origins.items()}
    assert lines[("a", 0, "v")] == lines[("a", 2, "v")] == 6 and lines[("a", 1, "w")] == lines[("a", 3, "w")] == 7
    assert lines[("a", 3, "k")] == 4 and lines[("b",)] == 8


def test_a_layer_without_templates_stays_as_it_is(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("a: {b: [1, {c: 2}]}\nd: x\n")
    layer = read_yaml(path)
    assert expand(layer) == layer
    assert expand(Layer({"a": "$$"})).values == {"a": "$"}
