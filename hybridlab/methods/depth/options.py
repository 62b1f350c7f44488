"""Growth in depth from the options of `hybridlab grow`.

hybridlab grow --method lidas --block 2 --schedule prop-1
"""

from __future__ import annotations

import re
from typing import Any, get_args

from hybridlab.config.loading import Layer, load_preset
from hybridlab.config.schema import RunConfig
from hybridlab.config.yaml_text import KeyPath
from hybridlab.errors import UserError
from hybridlab.methods.depth import Copied, StackingConfig
from hybridlab.store.artifacts import branch_of, find_start
from hybridlab.store.folders import Runs

KIND = "stacking"


def growth_layer(
    method: str,
    block: int | None,
    schedule: str | None,
    rounding: str | None,
    layers: int | None,
    start: str | None,
    runs: Runs,
) -> Layer:
    """The settings of a growth by a method, with the names of the options that set them.

    block: layers that are added at once. schedule: `prop-ALPHA`. layers: depth at the end. start: the run or folder
    whose finished model grows, from its own depth on. UserError for a schedule of another form.
    """
    controller: dict[str, Any] = {"kind": KIND, "method": method}
    if block is not None:
        controller["block"] = block
    if rounding is not None:
        controller["rounding"] = rounding
    if schedule is not None:
        written = re.fullmatch(r"prop-(\d+(?:\.\d+)?)", schedule)
        if written is None:
            raise UserError(f"--schedule {schedule}: write it as prop-ALPHA, such as prop-1, the schedule of the paper")
        controller["alpha"] = float(written[1])
    origins: dict[KeyPath, str] = {("controller", name): f"--{name}" for name in controller}
    origins |= {("controller", "alpha"): "--schedule", ("controller", "kind"): "hybridlab grow"}
    run, step = branch_of(start)
    if run is not None and step is None:
        controller["start"] = find_start(run, runs).shape.layers
        origins["controller", "start"] = f"--from {start}"
    values: dict[str, Any] = {"controller": controller}
    if layers is not None:
        values["shape"], origins["shape", "layers"] = {"layers": layers}, "--layers"
    return Layer(values, origins)


def check_arch(arch: str, method: str, masks: bool) -> None:
    """UserError for an unknown method, and for an arch that cannot grow by it. masks: masks were learned before."""
    known = get_args(Copied)
    if method not in known:
        raise UserError(f"--method {method}: it must be {', '.join(known[:-1])} or {known[-1]}")
    controller = load_preset("arch", arch).values.get("controller")
    if not isinstance(controller, dict) or masks:
        return
    if controller.get("kind") != KIND:
        raise UserError(
            f"--arch {arch} has a controller of its own ({controller.get('kind')}); leave it out, or train it first "
            "and grow the finished run with --from"
        )
    if controller.get("method", method) != method:
        raise UserError(f"--arch {arch} grows by {controller['method']}, not by --method {method}; leave --arch out")


def stages_in_words(config: RunConfig) -> str:
    """The depths of a run with the steps of each, as one line."""
    assert isinstance(config.controller, StackingConfig), "the options of `grow` set such a controller"
    first, *others = config.controller.stages(config.shape.layers, config.training.steps)
    text = ", ".join(f"{stage.layers} for {stage.steps:,}" for stage in others)
    return f"grow: {first.layers} layers for {first.steps:,} steps, {text}"
