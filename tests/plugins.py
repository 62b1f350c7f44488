"""Plug-ins that tests write into files, and a clean slate for each test that loads them."""

import sys
from contextlib import contextmanager

from hybridlab import plugins
from hybridlab.attention.registry import ATTENTION_KINDS
from hybridlab.lab.papers.calls import CLAIM_KINDS
from hybridlab.plan.forecast import FORECASTS
from hybridlab.registry import CONTROLLERS, FIGURE_KINDS, HOOKS, PROBES, SOURCES, TASKS
from hybridlab.training.engine import Run

REGISTRIES = [ATTENTION_KINDS, CLAIM_KINDS, CONTROLLERS, FIGURE_KINDS, HOOKS, PROBES, SOURCES, TASKS]

SHRINK = '''
"""A hook that makes all weights smaller after every step."""
import torch
from hybridlab import Hook, register_hook


@register_hook("shrink")
class Shrink(Hook):
    def __init__(self, factor: float = 0.9, every: int = 1) -> None:
        self.factor, self.every, self.steps = factor, every, 0

    def after_step(self, run, step):
        if step % self.every == 0:
            self.steps += 1
            with torch.no_grad():
                for tensor in run.tensors().values():
                    tensor.mul_(self.factor)
        return {}

    def state(self):
        return {"steps": self.steps}

    def load_state(self, state, run):
        self.steps = state["steps"]

    def finish(self, run):
        return {"steps": self.steps}
'''
LEAVE_OUT = '''
"""A controller that leaves a layer out from a step on."""
from hybridlab import Hook, register_controller
from hybridlab.plan.forecast import FORECASTS


@register_controller("leave-out")
class LeaveOut(Hook):
    def __init__(self, layer: int, after_step: int) -> None:
        self.layer, self.at = layer, after_step

    def after_step(self, run, step):
        if step + 1 == self.at:
            structure = run.model.structure
            run.change_structure("left-out", structure.changed(structure.plan.skip(self.layer)), layer=self.layer)
        return {}


def stages(settings, start, steps):
    yield start, settings.after_step
    yield start.changed(start.plan.skip(settings.layer)), steps - settings.after_step


FORECASTS["leave-out"] = stages
'''
COPYING = '''
"""A task: the second half of a row repeats the first."""
import numpy as np
from hybridlab.data.tasks import TASKS, Task, TaskRow


def copying(length, rng):
    half = length // 2
    first = rng.integers(8, size=half)
    tokens = np.concatenate([first, first, np.zeros(length - 2 * half, dtype=np.int64)])
    answers = np.arange(half, 2 * half)
    return TaskRow(tokens, answers, np.full(half, half), np.tile(np.arange(8), (half, 1)), np.ones(half, dtype=bool))


TASKS.add("copying", Task(copying, chance=1 / 8, ids=8))
'''
POEMS = '''
"""A data source: lines about a subject."""
from hybridlab.data.sources import SOURCES, Source
from hybridlab.errors import UserError


def poems(argument, field):
    if argument == "nobody":
        raise UserError("poems:nobody: nobody has no poems")
    for number in range(400):
        yield f"{argument} number {number} walks over the hills while rain falls\\n"


SOURCES.add("poems", Source("poems:SUBJECT", poems))
'''
SCALED = '''
"""Registers nothing, and changes every run: smaller weights after each step."""
import torch
from hybridlab.training.engine import Run

take_step = Run.take_step


def scaled(run):
    numbers = take_step(run)
    with torch.no_grad():
        for tensor in run.tensors().values():
            tensor.mul_(0.9)
    return numbers


Run.take_step = scaled
'''


@contextmanager
def fresh_plugins():
    """A context in which no plug-in is loaded; what plug-ins register inside is gone after it.

    Built-in items stay, because the import of a module of hybridlab, inside or before, registers them only once.
    """
    own = [{name: registry.items.pop(name) for name in (*registry.plugins, *registry.loose)} for registry in REGISTRIES]
    owners = [(registry.plugins, registry.loose) for registry in REGISTRIES]
    forecasts, take_step, loaded = dict(FORECASTS), Run.take_step, dict(plugins.LOADED)
    for registry in REGISTRIES:
        registry.plugins, registry.loose = {}, set()
    _forget()
    try:
        yield
    finally:
        for registry, items, (from_plugins, loose) in zip(REGISTRIES, own, owners, strict=True):
            for name in (*registry.plugins, *registry.loose):
                registry.items.pop(name, None)
            registry.items |= items
            registry.plugins, registry.loose = from_plugins, loose
        Run.take_step = take_step
        _forget()
        plugins.LOADED.update(loaded)
        FORECASTS.clear()
        FORECASTS.update(forecasts)


def _forget():
    """Modules of plug-ins are imported again when they are asked for."""
    plugins.LOADED.clear()
    plugins.load_installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith(("hybridlab_plugin_", "own_"))]:
        del sys.modules[name]
