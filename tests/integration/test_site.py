"""`make docs`: every page of docs/ and of the committed results becomes a page of the site, and every link leads
somewhere."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs", ".", tmp_path]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for page in ("docs/quickstart.html", "docs/methods/consa.html", "docs/results.html", "README.html"):
        assert (tmp_path / page).is_file()
    results = (tmp_path / "docs" / "results.html").read_text()
    assert 'desk/table.html">' in results
