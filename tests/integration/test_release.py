"""A wheel and a source archive are built, and the wheel works in a folder that knows nothing of the repository."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from hybridlab import __version__
from tests.conftest import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the archives."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A function that runs a command of the installed wheel in an empty folder, and returns what it prints."""
    place, empty = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("empty")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(place)}
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(sys.executable, "-c", "import hybridlab; print(hybridlab.__file__)")
    assert where.startswith(str(place)), "another copy is imported"
    return lambda *arguments: run(sys.executable, "-m", "hybridlab", *arguments)


@pytest.mark.long
def test_both_archives_have_what_belongs_to_them(built):
    assert __version__ == VERSION
    assert sorted(path.name for path in built.iterdir()) == [
        f"hybridlab-{VERSION}-py3-none-any.whl",
        f"hybridlab-{VERSION}.tar.gz",
    ]
    with zipfile.ZipFile(built / f"hybridlab-{VERSION}-py3-none-any.whl") as wheel:
        names = {*wheel.namelist()}
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "hybridlab").rglob("*") if path.is_file()}
    assert {name for name in package if "__pycache__" not in name} <= names
    assert "hybridlab/experiments/consa/tables.yaml" in names and "hybridlab/docs/evidence.md" in names
    with tarfile.open(built / f"hybridlab-{VERSION}.tar.gz") as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "Makefile", "tests/conftest.py", "results/published/consa-table1/smoke/table.md"} <= inside


@pytest.mark.long
def test_the_wheel_works_outside_of_the_repository(installed):
    """README's first commands, with three steps, and what needs files beside the code."""
    assert "consa-table1" in installed("list") and "vanilla" in installed("list", "--archs")
    installed("pretrain", "--arch", "rule-swa", "--data", "recall", "--name", "first", "--steps", "3")
    assert "first" in installed("runs")
    assert "loss" in installed("eval", "first", "--json")
    assert "consa-table4" in installed("report", "consa-table4")
    assert "agrees" in installed("audit", "consa")
    assert "nothing is trained" not in installed("reproduce", "consa-table1", "--dry-run")
    installed("export", "first", "exported")
