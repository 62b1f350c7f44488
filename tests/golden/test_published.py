"""The committed tables and figures are those that the code makes of the committed records: their numbers and text.
Pictures follow from the numbers, and their bytes from the releases of matplotlib and Pillow: `make unchanged` has them.

    make published      # after a change of the code that is meant to change them
"""

import json
import shutil
from functools import cache

import pytest

from hybridlab.files import rounded_floats
from hybridlab.lab.papers import cells
from hybridlab.lab.reporting import claims, entry
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.lab.reporting.entry_data import DIGITS
from hybridlab.lab.reporting.published import same
from tests.conftest import PUBLISHED
from tests.experiments import load_experiment
from tests.golden.unchanged import same_file

FOLDERS = sorted(path.parent for path in PUBLISHED.glob("*/*/*.json"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder of results with the committed records and plans; what is written there draws no picture, and reads each
    record once for all pages."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "records").symlink_to(PUBLISHED / "records")
    shutil.copytree(PUBLISHED / "plans", folder / "plans")
    with pytest.MonkeyPatch.context() as patched:
        for module in (claims, entry):
            patched.setattr(module, "write_picture", lambda *_: None)
        patched.setattr(cells, "load_record", cache(cells.load_record))
        yield folder


@pytest.mark.long
@pytest.mark.parametrize("published", FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:]))
def test_a_page_is_made_of_its_records(published, results):
    identifier, scale = published.parts[-2:]
    _, made = write_entry(load_experiment(identifier), scale, results)
    texts = {path.name for path in published.iterdir() if path.suffix != ".png"}
    assert {path.name for path in made.iterdir()} == texts
    assert [name for name in sorted(texts) if not same_file(made / name, published / name)] == []
    plan = f"plans/{identifier}.{scale}.json.zst"
    if (PUBLISHED / plan).exists():
        assert (results / plan).read_bytes() == (PUBLISHED / plan).read_bytes()


@pytest.mark.parametrize("name", ["consa-fig4/smoke/figure.json", "saobp-fig5/smoke/figure.json"])
def test_floats_of_pages_are_rounded(name):
    page = json.loads((PUBLISHED / name).read_text())
    assert rounded_floats(page, DIGITS) == page


def test_what_another_processor_may_change():
    page = {"cells": [{"measured": 0.18324606010679964, "n": 5, "verdict": "holds"}], "runs": {}}
    other = {"cells": [{"measured": 0.18324606010679967, "n": 5, "verdict": "holds"}], "runs": {}}
    assert rounded_floats(page, DIGITS) == rounded_floats(other, DIGITS) != page
    assert same(page, other)
    for key, value in {"measured": 0.1832462, "n": 6, "verdict": "open"}.items():
        assert not same(page, {**page, "cells": [{**page["cells"][0], key: value}]})
    assert not same(page, {**page, "runs": {"a": {}}}) and not same(page, {**page, "cells": []})
