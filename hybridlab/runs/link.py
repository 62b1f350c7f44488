"""From settings to a job: whatever a run needs, found, opened and checked, once.

    job = link(config, run_hash(config), folder, runs)        # then execute(job), see runs/run.py

Settings name other runs by their hashes. Here these become models that exist (`Artifact`), text becomes a corpus, and
the settings of a plan a structure. What trains and measures a run behind this looks nothing up and makes nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridlab.analysis.probe import check_probe_settings
from hybridlab.attention.kernels import require_kernel
from hybridlab.config.method import Method
from hybridlab.config.resolve import linked, parents
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure, structure_of
from hybridlab.data.preparing import corpus_of
from hybridlab.data.shards import Corpus
from hybridlab.evaluation.choices import require_choices
from hybridlab.messages import say
from hybridlab.models.adapters import drawn_adapters
from hybridlab.models.build import with_new_head, with_new_loops
from hybridlab.models.decoder import Transformer, draw_weights
from hybridlab.models.executor import require_compiler
from hybridlab.plan.structure import Structure
from hybridlab.runs.benchmarks import require_benchmarks
from hybridlab.runs.extension import beginning, with_own_parts
from hybridlab.runs.hooks import make_hooks
from hybridlab.runs.record import Stamp
from hybridlab.training.engine import Hook, Job
from hybridlab.training.machine import pick_device, pick_precision, require_memory, within_memory
from hybridlab.training.objective import Objective, RowSource, make_objective
from hybridlab.training.store.artifacts import Artifact, find_start, require_tokenizer
from hybridlab.training.store.folders import RunFolder, Runs, start_facts
from hybridlab.training.trackers import require_trackers


def link(
    config: RunConfig,
    digest: str,
    folder: RunFolder,
    runs: Runs,
    python_hooks: Sequence[Hook] = (),
    plans: Sequence[Stamp] = (),
) -> Job:
    """The job of a run in its folder, after all checks, the fast ones first. UserError for what cannot start.

    digest: the hash of the configuration. runs: where other runs are, beside the places that the folder remembers.
    python_hooks: those of kind `python` that the configuration names. plans: of the experiments that need the run.
    """
    needs = needs_of(config, folder, runs)
    resolved = needs.known
    assert resolved is not None, "all runs that it needs have finished"
    structure = resolved.first
    continues = config.init is not None and config.init.whole
    start = None if continues else needs.start
    if start is not None:
        # Weights go on with the same layers, so that these come from where they came from.
        structure = replace(structure, lineage=start.structure.lineage)
    if any(loop.topology == "direct" and any(g > 1 for g in loop.chunks) for loop in structure.plan.loops.values()):
        say("plan: topology direct over chunks leaves the first states at 0; if the loss diverges, use anchor or mesh")
    require_memory(config, resolved.first, resolved.last, needs.device)
    with within_memory():
        model, fill = _first_model(structure, config, start)
    corpus = corpus_of(config, runs.directory / "data")
    objective, source = check_data(config, corpus, start)
    require_choices(model.shape.max_positions, config, corpus)
    require_benchmarks(config, structure)
    begins = beginning(config, folder, run_of(needs.start), corpus) if continues else None
    first = folder.info() or (begins.folder.started() if begins else None)
    facts = {
        "precision": first["precision"] if first else needs.precision,
        "compile": compiles(config, folder, first),
        "threads": torch.get_num_threads(),
        "data_fingerprint": corpus.fingerprint,
        "source_fingerprints": [part.corpus.fingerprint for part in corpus.mixed],
        "places": {digest: ancestor.place for digest, ancestor in needs.ancestors.items()},
        **start_facts(),
        "plans": [stamp.model_dump() for stamp in plans],
    }
    hooks = make_hooks(config.model_copy(update={"controller": resolved.controller}), python_hooks)
    if begins is not None:
        begins = with_own_parts(begins, config, hooks, model)
    return Job(config, digest, folder, model, fill, corpus, objective, source, hooks, needs.device, begins, facts)


@dataclass(frozen=True)
class Known:
    """What a run is once the runs have finished that its map, plan and controller take something from. first, last:
    its structures at the start and at the end. controller: with what it takes from other runs."""

    first: Structure
    last: Structure
    controller: Method | None


@dataclass(frozen=True)
class Needs:
    """What a run takes from this machine and from other runs. ancestors: hash → a model that it needs. start: the one
    that it begins with, by its weights or with all its state. known: None if one of them is not trained yet."""

    device: torch.device
    precision: str
    ancestors: dict[str, Artifact]
    start: Artifact | None
    known: Known | None


def needs_of(config: RunConfig, folder: RunFolder, runs: Runs, later: Collection[str] = ()) -> Needs:
    """What a run needs beside its data. UserError for what is not there. later: the runs that are trained before it."""
    settings, init = config.runtime, config.init
    device = pick_device(settings.device)
    require_kernel(settings.kernel, device, training=True)
    require_trackers(settings.track)
    check_probe_settings(config)
    runs = Runs(runs.directory, {**(folder.info() or {}).get("places", {}), **runs.places})
    best = {init.run: f"{init.run}/best"} if init is not None and init.load == "best" else {}
    required = parents(config)
    ancestors = {name: find_start(best.get(name, name), runs) for name in required if name not in later}
    resolved = None
    if len(ancestors) == len(required):
        complete = linked(config, lambda name: run_of(ancestors[name]))
        first = structure_of(complete)
        resolved = Known(first, final_structure(complete, first), complete.controller)
        for structure in (resolved.first, resolved.last):
            kinds, cap = structure.map.each_kind(), structure.shape.score_cap
            require_kernel(settings.kernel, device, training=True, kinds=kinds, cap=cap)
    start = None if init is None else ancestors.get(init.run)
    return Needs(device, pick_precision(config.training.precision, device), ancestors, start, resolved)


def check_data(config: RunConfig, corpus: Corpus, start: Artifact | None) -> tuple[Objective, RowSource]:
    """The objective of a run, and the source of its rows. UserError for data that it cannot take, or that has another
    tokenizer than the model to start from."""
    objective = make_objective(config, corpus)
    source = objective.source(config, corpus)
    if start is not None:
        require_tokenizer(start.path, start.tokenizer, corpus, config.data)
    return objective, source


def compiles(config: RunConfig, folder: RunFolder, before: dict[str, Any] | None) -> bool:
    """Whether the run's blocks are compiled: as at its first start, or in the run that it goes on from; else as its
    settings say. It changes the last bits of the numbers, so it is kept, as the precision is. before: the facts of that
    start."""
    chosen = config.runtime.compile
    first = bool(chosen) if before is None else bool(before.get("compile"))
    if chosen is not None and chosen != first:
        where = "this run was started" if folder.info() else f"{folder.path} goes on from a run that was started"
        words = ("without compiling", "it is not compiled") if chosen else ("with compiled blocks", "it stays compiled")
        say(f"runtime.compile: {where} {words[0]}, so {words[1]}: the last bits of its numbers would change")
    if first:
        require_compiler(config.runtime.kernel, pick_device(config.runtime.device))
    return first


def run_of(ancestor: Artifact | None) -> RunFolder:
    assert ancestor is not None and ancestor.run is not None, "settings read from runs only"
    return ancestor.run


def _first_model(
    structure: Structure, config: RunConfig, start: Artifact | None
) -> tuple[Transformer, Callable[[Transformer], None]]:
    """The model before the first step without weights, and what gives it random ones, or those that it starts from."""
    model, seed = Transformer.without_weights(structure, config.runtime.kernel), config.training.seed
    if start is None:
        return model, partial(draw_weights, seed=seed)
    weights = start.weights()
    if not structure.shape.gives_tokens:
        weights = with_new_head(weights, structure, seed)
    weights = with_new_loops(weights, structure, seed)
    model.require(weights, str(start.path))
    if config.lora is not None:
        weights |= drawn_adapters(weights, config.lora, seed)
    return model, lambda target: target.put(_given_away(weights))


def _given_away(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The pairs of the weights, which are let go of one after another, so that no second copy stays beside the model
    while it trains."""
    while weights:
        yield weights.popitem()
