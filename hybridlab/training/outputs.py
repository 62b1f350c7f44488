"""The models that a run leaves in its folder: `final/`, and `best/` of its lowest validation loss."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import Corpus
from hybridlab.files import DIGESTS, new_folder
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import save_model


def save_trained(folder: Path, model: Transformer, config: RunConfig, corpus: Corpus, **lineage: Any) -> None:
    """Write a run's model with its tokenizer, in place of an older one. lineage: further facts for config.json."""
    facts = {"hash": run_hash(config), "parents": parents(config), "arch": config.arch, "size": config.size}
    lineage = facts | {"tokenizer": corpus.meta["tokenizer"]} | lineage
    save_model(folder, model, lineage, corpus.tokenizer.to_str(pretty=True), config.plugins)


def copy_model(folder: Path, other: Path) -> None:
    """Write a copy of another run's model, in place of an older one."""
    with new_folder(folder) as partial:
        for path in other.iterdir():
            if path.name != DIGESTS:
                shutil.copy2(path, partial / path.name)
