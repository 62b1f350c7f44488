"""hybridlab: where should a Transformer spend its attention and its depth?

The public names are imported when they are first used, so that `import hybridlab` and `hybridlab --help` are fast:
torch is imported only by functions that need it.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "AttentionMap": "hybridlab.plan.attention_map",
    "Loop": "hybridlab.plan.loop",
    "Plan": "hybridlab.plan.plan",
    "Visit": "hybridlab.plan.plan",
    "build_model": "hybridlab.models.build",
    "flops": "hybridlab.accounting.flops",
    "load_checkpoint": "hybridlab.models.export",
    "load_hf": "hybridlab.models.huggingface",
    "load_plugin": "hybridlab.plugins",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hybridlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
