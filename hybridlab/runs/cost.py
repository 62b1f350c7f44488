"""What a run will cost before it starts: training FLOPs, also where it waits for the results of another run."""

from __future__ import annotations

from hybridlab.accounting.flops import convention_of
from hybridlab.accounting.schedule_cost import training_flops
from hybridlab.config.edits import LastLayers, TopEntropy
from hybridlab.config.maps import FromRun, FullMap
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import map_of
from hybridlab.models.kernels import choose
from hybridlab.training.machine import pick_device, pick_precision


def run_flops(config: RunConfig) -> float | None:
    """Training FLOPs of all steps, as executed with the kernels that this machine takes; None if they depend on masks
    that are not known yet."""
    device = pick_device(config.runtime.device)
    low_precision = pick_precision(config.training.precision, device) != "fp32"
    known = with_examples(config)
    windows = map_of(known.map, known.first_shape).softmaxes
    if isinstance(config.map, FromRun):
        windows = {None, 1}
    length, kernel = config.training.seq_len, config.runtime.kernel
    convention = convention_of(choose(kernel, window, length, device, low_precision) for window in windows)
    if isinstance(config.map, FromRun) and convention != "executed":
        return None
    return training_flops(known, convention)


def with_examples(config: RunConfig) -> RunConfig:
    """The configuration with examples in the place of what other runs decide, at the same cost: as many layers as
    entropies will choose, and full attention for masks of another run, which costs the same where all pairs are
    computed."""
    edits = []
    for edit in config.plan:
        choice = getattr(edit, "layers", None)
        if isinstance(choice, TopEntropy):
            edit = edit.model_copy(update={"layers": LastLayers(last=choice.n)})
        edits.append(edit)
    unknown = isinstance(config.map, FromRun)
    return config.model_copy(update={"plan": edits, **({"map": FullMap(kind="full")} if unknown else {})})
