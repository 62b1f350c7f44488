"""Growth in depth from the options of `hybridlab grow`.

hybridlab grow --method lidas --block 2 --schedule prop-1
"""

from __future__ import annotations

import re
from typing import get_args

from hybridlab.config.loading import Layer, load_preset, options_layer
from hybridlab.config.schema import RunConfig
from hybridlab.errors import UserError
from hybridlab.methods.depth import Copied, StackingConfig
from hybridlab.training.store.artifacts import branch_of, find_start
from hybridlab.training.store.folders import Runs

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
    written = re.fullmatch(r"prop-(\d+(?:\.\d+)?)", "prop-1" if schedule is None else schedule)
    if written is None:
        raise UserError(f"--schedule {schedule}: write it as prop-ALPHA, such as prop-1, the schedule of the paper")
    run, step = branch_of(start)
    there = None if run is None or step is not None else find_start(run, runs).shape.layers
    return options_layer(
        {
            "controller.kind": ("hybridlab grow", KIND),
            "controller.method": ("--method", method),
            "controller.block": ("--block", block),
            "controller.rounding": ("--rounding", rounding),
            "controller.alpha": ("--schedule", None if schedule is None else float(written[1])),
            "controller.start": (f"--from {start}", there),
            "shape.layers": ("--layers", layers),
        }
    )


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
