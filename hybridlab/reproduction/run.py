"""One run, whole: prepare its data, train or resume it, measure it, write its record and final model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hybridlab.accounting.cache import kv_bytes
from hybridlab.accounting.flops import ledger
from hybridlab.accounting.parameters import count_parameters
from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.data.shards import corpus_for
from hybridlab.errors import RunFailed
from hybridlab.evaluation.measure import measure
from hybridlab.files import write_json
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.models.export import save_model
from hybridlab.models.kernels import require_kernel
from hybridlab.plan.attention_map import Full, Mixed
from hybridlab.plan.from_config import map_of, plan_of
from hybridlab.reproduction.ancestors import find_ancestor
from hybridlab.reproduction.inputs import with_inputs
from hybridlab.structure.registry import make_hooks
from hybridlab.training import checkpoints
from hybridlab.training.engine import Run
from hybridlab.training.folders import RunFolder, Runs
from hybridlab.training.machine import describe_machine, git_revision, library_versions, pick_device, pick_precision
from hybridlab.training.metrics import history, read_metrics
from hybridlab.training.progress import Progress

KV_CONTEXT = 8192
"""Context at which a record states KV-cache bytes, ConSA's sequence length."""


def execute(
    config: RunConfig,
    folder: RunFolder,
    runs: Runs,
    title: str = "train",
    say: Callable[[str], None] = lambda _: None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train the run in its folder, or go on with it, or find it finished; returns its record."""
    with folder.locked():
        if folder.finished() and folder.info()["hash"] == run_hash(config):
            say(f"{title}: finished before, nothing to do ({folder.path})")
            return folder.record()
        run = _start(config, folder, _with_known_places(runs, folder), say)
        done = checkpoints.newest_step(folder.checkpoints) or 0
        if done:
            say(f"{title}: resuming after step {done}")
        try:
            with Progress(title, config.training.steps, config.training.tokens_per_step, done, quiet) as progress:
                controllers = run.train(progress)
            started = time.monotonic()
            results = measure(run.model, config, run.corpus, run.precision)
        except RunFailed as failure:
            write_json(folder.path / "record.json", {**_record(run), "status": "failed", "reason": str(failure)})
            raise
        record = {**_record(run), "results": results, "controllers": controllers}
        record["evaluation_seconds"] = round(time.monotonic() - started, 1)
        lineage = {"hash": record["hash"], "parents": record["parents"], "arch": config.arch, "size": config.size}
        save_model(folder.final, run.model, lineage | {"tokenizer": run.corpus.meta["tokenizer"]})
        run.corpus.tokenizer.save(str(folder.final / "tokenizer.json"))
        write_json(folder.path / "record.json", record)
        return record


def _with_known_places(runs: Runs, folder: RunFolder) -> Runs:
    """A run remembers where its parents lay when it was started."""
    info = folder.info() or {}
    return Runs(runs.directory, {**info.get("places", {}), **runs.places})


def _start(config: RunConfig, folder: RunFolder, runs: Runs, say: Callable[[str], None]) -> Run:
    """Check everything that can be wrong, the quick things first, then claim the folder."""
    device = pick_device(config.runtime.device)
    require_kernel(config.runtime.kernel, device, training=True)
    torch.set_num_threads(config.runtime.threads or torch.get_num_threads())
    ancestors = {digest: find_ancestor(digest, runs) for digest in parents(config)}
    filled = with_inputs(config, runs)
    attention_map = map_of(filled.map, config.shape)
    model = Decoder(config.shape, plan_of(filled), attention_map, config.runtime.kernel)
    model.recompute = config.runtime.activation_checkpointing
    if any(loop.topology == "direct" and any(g > 1 for g in loop.chunks) for loop in model.plan.loops.values()):
        say(
            "plan: topology direct over chunks leaves the first states at 0; where the loss diverges, use anchor or mesh"
        )
    draw_weights(model, config.training.seed)
    if config.init is not None:
        ancestors[config.init.run].load_into(model)
    corpus = corpus_for(config.data, runs.directory / "data", lambda text: say(f"data: {text}"))
    if config.init is not None:
        ancestors[config.init.run].check_tokenizer(corpus)
    pinned = {
        "precision": pick_precision(config.training.precision, device),
        "data_fingerprint": corpus.fingerprint,
        "places": {digest: str(ancestor.path.resolve()) for digest, ancestor in ancestors.items()},
    }
    run = Run(config, folder, model.to(device), corpus, make_hooks(config), device, pinned["precision"])
    run.precision = folder.claim(config, pinned)["precision"]
    return run


def _record(run: Run) -> dict[str, Any]:
    """Everything that a table may ask for and that a reader needs to trust it."""
    config, model = run.config, run.model
    parameters = count_parameters(config.shape, model.plan)
    return {
        "status": "finished",
        "hash": run_hash(config),
        "parents": parents(config),
        "config": config.model_dump(mode="json"),
        "git": git_revision(),
        "libraries": library_versions(),
        "machine": describe_machine(run.device),
        "precision": run.precision,
        "kernels": run.kernels_used(),
        "seed": config.training.seed,
        "steps": run.step,
        "tokens": run.spent.tokens,
        "seconds": round(run.spent.seconds, 1),
        "tokens_per_second": round(run.spent.tokens / run.spent.seconds, 1) if run.spent.seconds else None,
        "flops": run.spent.flops,
        "redone_steps": run.metrics.redone_steps(),
        "parameters": {"total": parameters.total, "blocks": parameters.block_matrices + parameters.norms_and_biases},
        "structure": _structure(model),
        "events": run.events,
        "history": history(read_metrics(run.metrics.path)),
        "data": {
            "source": config.data.source,
            "fingerprint": run.corpus.fingerprint,
            "train_tokens": run.corpus.tokens("train"),
            "validation_tokens": run.corpus.tokens("validation"),
        },
    }


def _structure(model: Decoder) -> dict[str, Any]:
    full = all(isinstance(kind, Full) for row in model.attention_map.layers for kind in row)
    cache = kv_bytes(model.shape, model.plan, model.attention_map, KV_CONTEXT)
    forward = ledger(model.shape, model.plan, model.attention_map, KV_CONTEXT, "pairs").forward
    return {
        "plan": str(model.plan),
        "map": "full" if full else str(model.attention_map),
        "sparsity": model.attention_map.sparsity() if not _mixed(model) else None,
        "kv_bytes": {"context": KV_CONTEXT, "dtype": "bf16", "bytes": cache},
        "forward_flops": {"context": KV_CONTEXT, "convention": "pairs", "flops": forward},
    }


def _mixed(model: Decoder) -> bool:
    return any(isinstance(kind, Mixed) for row in model.attention_map.layers for kind in row)
