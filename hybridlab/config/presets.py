"""What presets say of themselves: the first sentence of the comment that a preset file begins with."""

from __future__ import annotations

import re

from hybridlab.config.loading import preset_folder, preset_names

_SENTENCE = re.compile(r".*?[.!?](?=\s|$)")
"""Up to the first mark that ends a sentence; the point in 0.6B has no space after it."""


def summaries(kind: str) -> dict[str, str]:
    """Name → first sentence of the leading comment, of all presets of a kind (arch, size or data)."""
    return {
        name: first_sentence((preset_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in preset_names(kind)
    }


def first_sentence(text: str) -> str:
    """The first sentence of the comment at the beginning of a YAML text; "" where there is none."""
    comment: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    whole = " ".join(comment)
    found = _SENTENCE.match(whole)
    return found[0] if found else whole
