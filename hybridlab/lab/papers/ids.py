"""The ids of the experiments, in the order in which people count (fig2 before fig10), how lists are filtered, and what
each scale can show.

Needs no other module but that of errors, so that completion and lists are fast.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from hybridlab.errors import UserError

KINDS = ("table", "figure")
SCALES = ("smoke", "desk", "small", "paper")
"""Those at which models are trained, from the cheapest to the dearest; see SAYS."""
PRETRAINED = "pretrained"
"""The scale at which a model that is there already is measured. Its verdicts never stand for those on training."""
EVERY_SCALE = (*SCALES, PRETRAINED)
VERDICTS = ("holds", "fails", "observed", "opposite observed", "open", "cannot tell here", "not run")
"""What a claim's test can say."""
ABOUT = ("printed", "exact", "transcribed", "trained", "timed", "not here")
"""What a claim is tested on. printed: arithmetic on numbers that the paper prints. exact: what follows from shapes and
definitions. transcribed: the paper's own words in a table. trained, timed: runs and benchmarks made here. not here:
nothing at hand."""


def shipped(name: str) -> Path:
    """A folder of the project: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parents[2]
    checkout = package.parent / name
    return checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / name


def experiments_folder() -> Path:
    """The experiment files."""
    return shipped("experiments")


_ID = re.compile(r"""(?:^ *(?:- )?|\{)id: +["']?([A-Za-z0-9][\w.-]*)["']? *(?=$|[,}#])""", re.MULTILINE)
"""The id of an entry: at the beginning of a line, or of a mapping in brackets."""


def entry_files(folder: Path) -> list[Path]:
    """The files with entries in a folder of experiments; what several files share is in those named _NAME.yaml."""
    return sorted(folder.glob("*/[!_]*.yaml"), key=lambda path: natural(f"{path.parent.name}/{path.stem}"))


def experiment_files(folder: Path | None = None) -> dict[str, Path]:
    """Id → file of all experiments in a folder, by default in hybridlab's own. The texts of the files are searched for
    ids, which is faster than to read them as YAML. UserError for an id that is there twice."""
    files: dict[str, Path] = {}
    for path in entry_files(folder or experiments_folder()):
        stat = path.stat()
        for identifier in _ids_in(path, stat.st_mtime_ns, stat.st_size):
            if identifier in files:
                raise UserError(twice(identifier, files[identifier], path))
            files[identifier] = path
    return {identifier: files[identifier] for identifier in sorted(files, key=natural)}


@lru_cache(maxsize=512)
def _ids_in(path: Path, _modified: int, _size: int) -> list[str]:
    return _ID.findall(path.read_text(encoding="utf-8"))


def twice(identifier: str, first: Path, second: Path) -> str:
    """The sentence about an id that two files, or one of them twice, give to an entry."""
    places = f"{short(first)} and {short(second)}" if first != second else f"{short(first)}, twice,"
    return f"{places} have an entry {identifier!r}; give each entry an id of its own"


def short(path: Path) -> str:
    """The file of an entry in errors: PAPER/NAME.yaml."""
    return f"{path.parent.name}/{path.name}"


def experiment_ids(folder: Path | None = None) -> list[str]:
    """The ids of all experiments in a folder, by default in hybridlab's own."""
    return list(experiment_files(folder))


@lru_cache(maxsize=4096)
def natural(text: str) -> tuple[tuple[bool, int, str], ...]:
    """A sort key that orders numbers in a text by their value."""
    parts = [part for part in re.split(r"(\d+)", text) if part]
    return tuple([(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts])


def matches(words: Iterable[str], texts: Iterable[str]) -> bool:
    """Whether every word stands in one of the texts; a word with * or ? must match one as a whole."""
    lowered = [text.lower() for text in texts]

    def stands(word: str) -> bool:
        pattern = word if any(letter in word for letter in "*?[") else f"*{glob.escape(word)}*"
        return any(fnmatch.fnmatchcase(text, pattern) for text in lowered)

    return all(stands(word.lower()) for word in words)


SAYS = {
    "smoke": "Models of 1M parameters, a few hundred steps and one seed, in minutes on two CPU cores: all parts work, "
    "and all tables and figures are made. It decides what the papers print and what can be counted, and no claim about "
    "trained models.",
    "desk": "Models of 0.25M to 1M parameters and five seeds or more with controls, in an evening on two CPU cores: "
    "it decides the claims whose effect is large enough at this size, and says what the others would take. It cannot "
    "speak of larger models or of the papers' benchmarks.",
    "small": "A model of 46M parameters on real text with three seeds, in hours on one GPU: it can decide claims about "
    "losses and retrieval at that size. It cannot speak of benchmarks, or of how an effect grows with size.",
    "paper": "The papers' own sizes, data and steps, for a cluster of GPUs: only here can a trained number be set "
    "beside a printed one. With one seed it decides no difference between arms.",
    PRETRAINED: "One pretrained model on a hundred prompts or documents, or more, on two CPU cores: what a claim says "
    "of such models is observed in it. It says nothing of other models, or of training.",
}
"""Two sentences for each scale."""
COMPARISON, GRID = WRITTEN = ("compare-", "ablate-")
"""How the ids of experiments begin that `hybridlab compare` and `hybridlab ablate` write."""
TUNING = 100
"""Seeds from here on are for tuning; reports leave them out, unless an experiment file names them."""
