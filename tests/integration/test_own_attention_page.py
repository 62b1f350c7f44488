"""What docs/your-own-attention.md shows works: its file passes the check as it is printed there."""

import re
import shlex

from tests.conftest import ROOT

TEXT = (ROOT / "docs" / "your-own-attention.md").read_text()
(CODE,) = re.findall(r"^```python\n(# dilated\.py\n.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(block.replace("\\\n", " "))[1:] for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.M)
]
SHOWN = re.findall(r"^```text\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def lines(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_check_of_the_file_prints_what_the_page_shows(typed, tmp_path):
    (tmp_path / "dilated.py").write_text(CODE)
    code, shown, _ = typed(*COMMANDS[0])
    assert code == 0 and lines(shown) == lines(SHOWN[0])


def test_the_mistake_of_the_page_is_found_as_it_shows(typed, tmp_path):
    (tmp_path / "dilated.py").write_text(CODE[: CODE.index("    def slot")])
    code, shown, _ = typed(*COMMANDS[0])
    place = shown.index("  cache")
    assert code == 1 and lines(shown[place:])[:4] == lines(SHOWN[1])


def test_its_comparison_has_nine_runs(typed, tmp_path):
    (tmp_path / "dilated.py").write_text(CODE)
    code, shown, _ = typed(*COMMANDS[1], "--dry-run")
    assert code == 0 and re.search(r"to do: 9 of 9", shown) and all(name in shown for name in ("all-window", "dilated"))
