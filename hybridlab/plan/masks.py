"""The file `masks.json`, which `hybridlab learn-masks` writes: which KV heads see all tokens, and which a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import read_object
from hybridlab.plan.attention_map import AttentionMap


def read_masks(path: Path) -> dict[str, Any]:
    """The content of a `masks.json`: {"masks": [[…]], "window": w, …}. warnings: what to know before using the masks;
    empty in files of older versions."""
    try:
        data = read_object(Path(path), "masks file", ("masks", "window"), "`hybridlab learn-masks` writes one")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such masks file; `hybridlab learn-masks` writes one") from None
    if not isinstance(data["masks"], list) or not isinstance(data["window"], int):
        raise UserError(f'{path}: a masks file needs "masks" (rows of 0 and 1) and "window" (a whole number)')
    warnings = data.setdefault("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise UserError(f'{path}: "warnings" in a masks file is a list of sentences')
    AttentionMap.from_masks(data["masks"], data["window"])
    return data
