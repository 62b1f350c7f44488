"""What a test of a claim is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Records = dict[str, dict[int, dict[str, Any]]]
"""cell → seed → record."""


@dataclass(frozen=True)
class Verdict:
    """holds: True, False, or None where it cannot be said. evidence: figures, with n."""

    holds: bool | None
    evidence: str
