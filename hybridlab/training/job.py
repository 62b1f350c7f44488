"""A run with everything that it needs, found, opened and checked; runs/link.py makes it from settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.models.decoder import Transformer
from hybridlab.store.checkpoints import Checkpoint
from hybridlab.store.folders import RunFolder
from hybridlab.training.hooks import Hook
from hybridlab.training.objective import Objective


@dataclass(frozen=True)
class Beginning:
    """The place in another run from which a run goes on with all its state. step: steps done there. checkpoint: of that
    step; None if the run has checkpoints of its own. branch: it is a middle step, after which that run went on itself.
    fresh: the hooks, by name, that begin anew. own_structure: go on with the structure of the own settings."""

    folder: RunFolder
    step: int
    checkpoint: Checkpoint | None
    branch: bool = False
    fresh: frozenset[str] = frozenset()
    own_structure: bool = False


@dataclass(frozen=True)
class Job:
    """A run that can start. config: its settings, as they are hashed. model: of the first step, without weights; fill:
    gives such a model its weights. begins: the place in another run from which it goes on. facts: what run.json keeps
    from the first start on."""

    config: RunConfig
    folder: RunFolder
    model: Transformer
    fill: Callable[[Transformer], None]
    corpus: Corpus
    objective: Objective
    hooks: list[Hook]
    device: torch.device
    begins: Beginning | None
    facts: dict[str, Any]
