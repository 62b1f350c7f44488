"""Make every committed table and figure again, from the committed records, and say which files differ.

    make unchanged
    make published      # put them in the place of the committed ones

A change of the code that is meant to compute nothing new leaves all of them as they are: text and pictures byte for
byte, and numbers in JSON but for what another processor rounds otherwise. `make test-long` does the same without the
pictures: test_published.py.
"""

import json
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.progress import track

from hybridlab.lab.papers.loading import experiment_ids, load_experiment
from hybridlab.lab.reporting.entry import write_entry
from hybridlab.lab.reporting.published import same

RESULTS = Path("results/published")


def same_file(here: Path, there: Path) -> bool:
    """Whether two files of a page are the same."""
    if here.suffix != ".json":
        return same_bytes(here, there)
    return same(*(json.loads(path.read_text()) for path in (here, there)))


def same_bytes(here: Path, there: Path) -> bool:
    return here.read_bytes() == there.read_bytes()


def write(page: Path, folder: Path) -> None:
    """A page as it is made here, below `folder`."""
    write_entry(load_experiment(page.parent.name), page.name, folder)


def main(folder: Path, alike=same_file) -> list[str]:
    """The paths, below `results/published/`, of files that differ from those made here, in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("records", "plans"):
        shutil.copytree(RESULTS / name, folder / name)
    pages = [path for path in sorted(RESULTS.glob("*/*")) if path.is_dir() and path.parent.name in experiment_ids()]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        [*track(pool.map(partial(write, folder=folder), pages), "making tables and figures", len(pages))]
    made = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    there = {path.relative_to(RESULTS) for path in RESULTS.rglob("*") if path.is_file()}
    there = {path for path in there if path.parts[0] not in ("tried", "bench") and len(path.parts) > 1}
    return sorted(
        str(path) for path in made | there if path not in made & there or not alike(folder / path, RESULTS / path)
    )


if __name__ == "__main__":
    made = Path("build/unchanged")
    if sys.argv[1:] == ["--write"]:
        for name in main(made, same_bytes):
            (RESULTS / name).unlink(missing_ok=True)
            if (made / name).exists():
                (RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made / name, RESULTS / name)
        sys.exit()
    differing = main(made)
    print("\n".join(f"{RESULTS}/{name} differs from build/unchanged/{name}" for name in differing))
    sys.exit(bool(differing))
