"""Make every committed table and figure again, from the committed records, and say which files differ.

    make unchanged
    make published      # put them in the place of the committed ones

A change of the code that is meant to compute nothing new leaves all of them as they are, byte for byte.
"""

import shutil
import sys
from pathlib import Path

from rich.progress import track

from hybridlab.papers.loading import experiment_ids, load_experiment
from hybridlab.reporting.entry import write_entry

RESULTS = Path("results/published")


def main(folder: Path) -> list[str]:
    """The paths, below `results/published/`, of files that differ from those made here, in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("records", "plans"):
        shutil.copytree(RESULTS / name, folder / name)
    pages = [path for path in sorted(RESULTS.glob("*/*")) if path.is_dir() and path.parent.name in experiment_ids()]
    for page in track(pages, "making tables and figures"):
        write_entry(load_experiment(page.parent.name), page.name, folder)
    made = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    there = {path.relative_to(RESULTS) for path in RESULTS.rglob("*") if path.is_file()}
    there = {path for path in there if path.parts[0] not in ("tried", "bench") and len(path.parts) > 1}
    return sorted(
        str(path)
        for path in made | there
        if path not in made & there or (folder / path).read_bytes() != (RESULTS / path).read_bytes()
    )


if __name__ == "__main__":
    made = Path("build/unchanged")
    differing = main(made)
    if sys.argv[1:] == ["--write"]:
        for name in differing:
            (RESULTS / name).unlink(missing_ok=True)
            if (made / name).exists():
                (RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made / name, RESULTS / name)
        sys.exit()
    print("\n".join(f"{RESULTS}/{name} differs from build/unchanged/{name}" for name in differing))
    sys.exit(bool(differing))
