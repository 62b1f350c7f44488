"""Numbers and verdicts that the docs state are those of the pages that they link to; see tests/stated.py."""

import re

import pytest

from tests.conftest import ROOT
from tests.stated import LINK, problem

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
FOUND = "docs/results.md"
RESULT = re.compile(r"\d+\.\d+|\d+(?=M\b| ?%| nats\b)")
"""A number that must be one of a page: of nats, of percent, of parameters, and any with decimals."""
NAME = r"SmolLM2-135M|(?:160|275|360|410|573)M|1\.[247]B"
SETTING = re.compile(rf"[ρλ] = [\d.]+|95 %|0\.35 of the FLOPs|(?:sections?|appendix) [A-H\d]\.[\d.]+|{NAME}")
"""What an experiment sets, a place in a paper, or a model's name, and no result."""
SELECTION, LADDER = "sgt-selection/desk/table.md", "consa-ladder/desk/table.md"


def without_links(text):
    return re.sub(r"\[[^\[\]]+\]\([^()]+\)", "", LINK.sub("", SETTING.sub("", text)))


@pytest.mark.parametrize("page", PAGES)
def test_numbers_are_those_of_the_pages_that_they_link_to(page):
    folder = (ROOT / page).parent
    stated = LINK.findall(PAGES[page])
    assert [text for text in (problem(text, folder / path, title) for text, path, title in stated) if text] == []


def test_findings_state_no_number_without_its_page():
    assert RESULT.findall(without_links(PAGES[FOUND])) == []


@pytest.mark.parametrize("page", [name for name in PAGES if name.startswith("docs/methods/")])
def test_pages_of_methods_leave_findings_to_one_page(page):
    found = PAGES[page].split("\n## What was found\n")[1]
    assert "(../results.md#" in found and RESULT.findall(without_links(found)) == []


@pytest.mark.parametrize(
    ("text", "place", "title"),
    [
        ("0.037", SELECTION, "low: probes without loops lost"),
        ("−0.0026", SELECTION, "attention − block"),
        ("0.0026", SELECTION, "Attention-level looping*: attention − block"),
        ("five", SELECTION, "high: probes without loops lost; n"),
        ("0.53M", SELECTION, "High / parameters"),
        ("cannot tell here", SELECTION, "verdict: Targeted allocation of depth*"),
        ("five", LADDER, "claims: open"),
        ("1.1", LADDER, "Random*0.5M / outside_20; least"),
        ("0.009", "spiral-loops/desk/table.md", "looped: probes routers lost_without; each seed; least"),
        ("0.02", SELECTION, "low: probes without loops lost; asked"),
        ("eight", "consa-depth/desk/table.md", "Learned*text beside*: *; below 0"),
        ("0.58", LADDER, "hours of seed 3"),
        ("800", SELECTION, "steps of trunk"),
        ("57.78", "consa-table1/desk/table.md", "evidence: Learned allocations consistently outperform rule-based*"),
        ("0.105", "hybrid-table1/desk/table.md", "notes"),
        ("71 %", "bench/step-mini.json", "share_in_products.vanilla"),
        ("213 ms", "bench/generate-tiny.json", "speeds.vanilla.generate.seconds.*; median"),
    ],
)
def test_a_number_is_looked_up(text, place, title):
    assert problem(text, ROOT / "results" / "published" / place, title) is None


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("0.038", "low: probes without loops lost"),
        ("−0.037", "low: probes without loops lost"),
        ("+0.0026", "attention − block"),
        ("holds", "verdict: Targeted allocation of depth*"),
        ("four", "high: probes without loops lost; n"),
        ("0.011", "high: probes without loops gained"),
        ("0.011", "*: probes without loops lost"),
        ("0.011", "high: probes without loops lost; middle"),
        ("0.0015", "notes"),
        ("little", "high: probes without loops lost"),
    ],
)
def test_another_number_is_a_problem(text, title):
    assert problem(text, ROOT / "results" / "published" / SELECTION, title)


def test_a_number_without_a_link_is_found():
    text = 'At 1M parameters [0.037](page.md "low") nats are lost at ρ = 0.875, in 12 of 15 runs, by 3 % and 2 nats.'
    assert RESULT.findall(without_links(text)) == ["1", "3", "2"]
