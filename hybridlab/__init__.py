"""hybridlab: where should a Transformer spend its attention and its depth?

    import hybridlab

    run = hybridlab.train("rule-swa", steps=200)    # or `hybridlab pretrain --arch rule-swa --steps 200`
    print(run.results.validation.perplexity.value, hybridlab.flops(run.model(), seq_len=128).forward)

The public names are imported when they are first used, so that `import hybridlab` and `hybridlab --help` are fast:
torch is imported only by functions that need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hybridlab.moved import find_moved

if TYPE_CHECKING:
    from hybridlab.config.method import Method as Method
    from hybridlab.config.method import register_controller as register_controller
    from hybridlab.config.method import register_hook as register_hook
    from hybridlab.config.schema import RunConfig as RunConfig
    from hybridlab.errors import Interrupted as Interrupted
    from hybridlab.errors import RunFailed as RunFailed
    from hybridlab.errors import UserError as UserError
    from hybridlab.evaluation.results import Results as Results
    from hybridlab.lab.reporting.compared import Compared as Compared
    from hybridlab.lab.reporting.compared import compare as compare
    from hybridlab.models.build import build_model as build_model
    from hybridlab.models.decoder import Decoder as Decoder
    from hybridlab.models.decoder import Encoder as Encoder
    from hybridlab.models.export import load_checkpoint as load_checkpoint
    from hybridlab.models.export import save as save
    from hybridlab.models.huggingface import load_hf as load_hf
    from hybridlab.models.ledger.flops import flops as flops
    from hybridlab.plan.attention_map import AttentionMap as AttentionMap
    from hybridlab.plan.loop import Loop as Loop
    from hybridlab.plan.plan import Plan as Plan
    from hybridlab.plan.structure import Structure as Structure
    from hybridlab.plan.visit import Visit as Visit
    from hybridlab.plugins import load_plugin as load_plugin
    from hybridlab.runs.benchmarks import Benchmarks as Benchmarks
    from hybridlab.runs.export import Exported as Exported
    from hybridlab.runs.export import export_hf as export_hf
    from hybridlab.runs.record import Record as Record
    from hybridlab.runs.train import TrainedRun as TrainedRun
    from hybridlab.runs.train import evaluate as evaluate
    from hybridlab.runs.train import finetune as finetune
    from hybridlab.runs.train import train as train
    from hybridlab.training.engine import Hook as Hook

__version__ = "0.2.0"
find_moved()

_PUBLIC = {
    "AttentionMap": "hybridlab.plan.attention_map",
    "Benchmarks": "hybridlab.runs.benchmarks",
    "Compared": "hybridlab.lab.reporting.compared",
    "Decoder": "hybridlab.models.decoder",
    "Encoder": "hybridlab.models.decoder",
    "Exported": "hybridlab.runs.export",
    "Hook": "hybridlab.training.engine",
    "Interrupted": "hybridlab.errors",
    "Loop": "hybridlab.plan.loop",
    "Method": "hybridlab.config.method",
    "Plan": "hybridlab.plan.plan",
    "Record": "hybridlab.runs.record",
    "Results": "hybridlab.evaluation.results",
    "RunConfig": "hybridlab.config.schema",
    "RunFailed": "hybridlab.errors",
    "Structure": "hybridlab.plan.structure",
    "TrainedRun": "hybridlab.runs.train",
    "UserError": "hybridlab.errors",
    "Visit": "hybridlab.plan.visit",
    "build_model": "hybridlab.models.build",
    "compare": "hybridlab.lab.reporting.compared",
    "evaluate": "hybridlab.runs.train",
    "export_hf": "hybridlab.runs.export",
    "finetune": "hybridlab.runs.train",
    "flops": "hybridlab.models.ledger.flops",
    "load_checkpoint": "hybridlab.models.export",
    "load_hf": "hybridlab.models.huggingface",
    "load_plugin": "hybridlab.plugins",
    "register_controller": "hybridlab.config.method",
    "register_hook": "hybridlab.config.method",
    "save": "hybridlab.models.export",
    "train": "hybridlab.runs.train",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hybridlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
