from xml.etree import ElementTree

from hybridlab.accounting.drawing import as_svg, as_text, rows
from hybridlab.config.resolve import resolve
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.plan import Plan


def drawn():
    shape = resolve("vanilla", "tiny", settings=["shape.layers=3"]).shape
    plan = Plan.plain(3).loop_heads(1, (0, 5), 1)
    return rows(shape, plan, AttentionMap.from_masks([[0, 0, 1, 1]] * 3, 8))


def test_the_drawing_has_a_row_for_every_visit():
    assert [row.label for row in drawn()] == ["L1", "L2 attention", "L2 attention heads 1,6", "L2 mlp", "L3"]
    assert drawn()[2].heads == ("window", "absent", "full", "absent") and not drawn()[2].mlp
    assert drawn()[3].heads == ("absent",) * 4 and drawn()[3].mlp


def test_text_and_picture_show_the_same():
    text, svg = as_text(drawn()), as_svg(drawn(), "a < b & c")
    assert "w·F·" in text and "w window" in text
    root = ElementTree.fromstring(svg)
    assert [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")][0] == "a < b & c"
