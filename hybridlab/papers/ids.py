"""The ids of the experiments, in the order in which people count (fig2 before fig10), how lists are filtered, and what
each scale can show.

Needs no other module, so that completion and lists are fast.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Iterable
from pathlib import Path

KINDS = ("table", "figure")
SCALES = ("smoke", "desk", "small", "paper")
"""From the cheapest to the dearest; see SAYS."""
VERDICTS = ("holds", "fails", "open", "cannot tell here", "not run")
"""What a claim's test can say."""


def experiments_folder() -> Path:
    """The experiment files: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "experiments"
    return checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / "experiments"


def experiment_ids(folder: Path | None = None) -> list[str]:
    """The ids of all experiments in a folder, by default in hybridlab's own."""
    files = (folder or experiments_folder()).glob("*/[!_]*.yaml")
    return sorted((f"{path.parent.name}-{path.stem}" for path in files), key=natural)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A sort key that orders numbers in a text by their value."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text) if part]


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
    "desk": "Models of 0.4M to 1.4M parameters and five seeds or more with controls, in an evening on two CPU cores: "
    "it decides the claims whose effect is large enough at this size, and says what the others would take. It cannot "
    "speak of larger models or of the papers' benchmarks.",
    "small": "A model of 46M parameters on real text with three seeds, in hours on one GPU: it can decide claims about "
    "losses and retrieval at that size. It cannot speak of benchmarks, or of how an effect grows with size.",
    "paper": "The papers' own sizes, data and steps, for a cluster of GPUs: only here can a trained number be set "
    "beside a printed one. With one seed it decides no difference between arms.",
}
"""Two sentences for each scale."""
TUNING = 100
"""Seeds from here on are for tuning; reports leave them out, unless an experiment file names them."""
