from xml.etree import ElementTree

from hybridlab.config.resolve import resolve
from hybridlab.models.ledger.drawing import as_svg, as_text, rows
from hybridlab.models.ledger.summary import summarize
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure


def drawn():
    shape = resolve("vanilla", "tiny", settings=["shape.layers=3"]).shape
    plan = Plan.plain(3).loop_heads(1, (0, 5), 1)
    return rows(Structure(shape, plan, AttentionMap.from_masks([[0, 0, 1, 1]] * 3, 8)))


def test_the_drawing_has_a_row_for_every_visit():
    assert [row.label for row in drawn()] == ["L1", "L2 attention", "L2 attention heads 1,6", "L2 mlp", "L3"]
    assert drawn()[2].heads == ("window", "absent", "full", "absent") and not drawn()[2].mlp
    assert drawn()[3].heads == ("absent",) * 4 and drawn()[3].mlp


def test_the_text_has_letters_and_the_svg_escapes_its_title():
    text, svg = as_text(drawn()), as_svg(drawn(), "a < b & c")
    assert "w·F·" in text and "w window" in text
    root = ElementTree.fromstring(svg)
    assert [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")][0] == "a < b & c"


def test_a_loop_is_drawn_iteration_by_iteration_and_says_what_it_saves():
    config = resolve("looped", "tiny", settings=["recurrence={pre: 1, loop: 1, post: 1, chunks: [4, 1]}"])
    summary = summarize(config, 128)
    assert [row["label"] for row in summary["drawing"]] == ["L1", "loop 1 at 1/4: L2", "loop 2 at 1: L2", "L3"]
    (loop,) = summary["loops"]
    assert loop == {"chunks": [4, 1], "offsets": [2, 0], "shifts": [3, 0], "triggers": [1, 2, 1, 1]}
    entries = (128 + 32 + 128 + 128, 4 * 128)
    assert summary["kv_bytes"] / summary["kv_bytes_at_full_resolution"] == entries[0] / entries[1]
