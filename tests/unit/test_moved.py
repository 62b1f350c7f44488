"""Old names of modules lead to the new ones."""

import importlib

import pytest

import hybridlab
from hybridlab.moved import MOVED
from tests.conftest import run_python


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *MOVED.items(),
        ("hybridlab.papers.claims.kinds", "hybridlab.lab.papers.claims.kinds"),
        ("hybridlab.store.results", "hybridlab.training.store.results"),
    ],
)
def test_both_names_are_one_module(old, new):
    module = importlib.import_module(new)
    spec = module.__spec__
    assert importlib.import_module(old) is module
    assert module.__name__ == new == spec.name and module.__spec__ is spec


def test_in_a_new_process_the_old_name_may_come_first():
    code = (
        "from hybridlab.reporting.figure_kind import FigureKind, one_run\n"
        "from hybridlab.papers.claims.comparison import Comparison\n"
        "import hybridlab.lab.reporting.figure_kind as there\nfrom hybridlab.registry import FIGURE_KINDS\n"
        "print(there.FigureKind is FigureKind, isinstance(FIGURE_KINDS.get('lines'), FigureKind))"
    )
    assert run_python(code).strip() == "True True"


def test_a_name_that_neither_has_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="hybridlab.papers.nothing"):
        importlib.import_module("hybridlab.papers.nothing")
    assert not hasattr(hybridlab, "papers") or hybridlab.papers is importlib.import_module("hybridlab.lab.papers")
