"""A single run: prepare its data, train or resume it, measure it, write its record and final model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from hybridlab.attention.kinds import Full
from hybridlab.attention.mistakes import explained
from hybridlab.config.finetune import Lora
from hybridlab.config.resolve import parents, run_hash
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Windows, sources_read
from hybridlab.data.preparing import prepared_corpus
from hybridlab.data.shards import Corpus
from hybridlab.errors import Diverged, NoRoom, RankLost, RunFailed, UserError
from hybridlab.evaluation.measure import measure
from hybridlab.evaluation.while_training import AtSteps
from hybridlab.files import read_object
from hybridlab.messages import heard_by, say, silent, titled
from hybridlab.models.adapters import has_adapters
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import model_damage
from hybridlab.models.ledger.flops import ledger
from hybridlab.models.ledger.parameters import count_parameters, kv_bytes
from hybridlab.plan.structure import Structure
from hybridlab.plugins import fail, in_plugin
from hybridlab.runs.benchmarks import with_benchmarks
from hybridlab.runs.extension import data_since, in_words
from hybridlab.runs.link import link
from hybridlab.runs.record import (
    DataSummary,
    Extended,
    ForwardFlops,
    KVBytes,
    ModelSummary,
    Record,
    SourceSummary,
    Stamp,
    read_record,
)
from hybridlab.training.engine import Hook, Job, Run
from hybridlab.training.machine import (
    SMALL,
    give_back_freed_memory,
    keep_freed_memory,
    program_facts,
    using_threads,
    within_memory,
)
from hybridlab.training.progress import Progress
from hybridlab.training.stopping import stopping_at_once
from hybridlab.training.store import checkpoints
from hybridlab.training.store.checkpoints import save_trained
from hybridlab.training.store.folders import UNLABELLED, Label, RunFolder, Runs, keeps_optimizer
from hybridlab.training.store.metrics import FINAL, history, read_metrics
from hybridlab.training.trackers import tracking
from hybridlab.training.world import all_answer, world


def train_run(
    config: RunConfig,
    folder: RunFolder | None,
    runs: Runs,
    title: str = "train",
    label: Label = UNLABELLED,
    hooks: Sequence[Hook] = (),
    show: Callable[..., Progress] = Progress,
    plans: Sequence[Stamp] = (),
) -> Record:
    """Train the run in its folder, or resume it, unless it has finished; returns its record.

    folder: None for that of its hash in the folder of runs. label: gives the run a name and tags, also if it was
    started or has finished before. hooks: those of kind `python` that the configuration names. show: makes what shows
    the progress, from the arguments of `Progress`. plans: those of the experiments that need the run, which its record
    keeps from its first start on. Busy if another process trains this run.
    """
    keep_freed_memory()
    digest = run_hash(config)
    folder = folder or RunFolder(runs.directory / digest)
    with (
        nullcontext() if world().writer else heard_by(silent),
        folder.locked() if world().writer else nullcontext(),
        using_threads(_threads(config, folder)),
    ):
        if label.name is not None:
            runs.check_name(label.name, folder)
        if folder.finished() and folder.digest == digest:
            finished_record(folder)
            problem = model_damage(folder.final)
            if problem is None:
                return _finished_before(config, folder, runs, title, label)
            _require_last_checkpoint(folder, config, problem)
            say(f"{title}: {folder.final}: {problem}; making it again from the last checkpoint")
        return execute(link(config, digest, folder, runs, hooks, plans), title, label, show)


def execute(job: Job, title: str, label: Label, show: Callable[..., Progress] = Progress) -> Record:
    """Train, measure and save a job whose folder this process has locked; returns its record."""
    folder = job.folder
    stopped = folder.info() is not None and ("failed" if folder.record() else "was stopped")
    run = Run(job)
    if job.config.lora is not None:
        say(_adapters_in_words(run, job.config.lora))
    if count_parameters(run.model.shape, run.model.plan).total >= SMALL:
        say(f"{title}: {_computing_in_words(run)}")
    for line in announce_sources(job.corpus, job.config, data_since(job.begins, job.config)):
        say(f"data: {line}")
    run.precision = world().once(folder.claim, job.digest, job.config, job.facts)["precision"]
    _relabel(folder, label)
    world().once(folder.remove_leftovers)
    program = program_facts(job.device)
    # What stands in the way of the record is known before the first step, and not after the last.
    with explained(run.model.attention_map.each_kind()):
        Record(**_facts(run, program), status="failed")
    try:
        with (
            within_memory(),
            stopping_at_once(lambda: _saved_so_far(folder)),
            all_answer(lambda: f"{folder.path}, step {run.step}"),
        ):
            with titled(title):
                _go_to_start(run, stopped)
            with titled(title), tracking(run) as track:
                training = run.config.training
                with show(title, training.steps, training.tokens_per_step, run.step) as progress:
                    hook_results = run.train(progress)
                record = _measured(run, hook_results, program)
                track({"step": run.step, **_final_numbers(record)})
            _save(run, record)
    except NoRoom as full:
        saved = max(folder.checkpoint_steps, default=0)
        raise NoRoom(f"{full}, which goes on after step {saved}", full.reason) from None
    except RankLost:
        raise
    except RunFailed as failure:
        _note_failure(run, failure, program)
        raise
    except Exception as error:  # the code of a plug-in can raise anything
        if isinstance(error, UserError) or (words := in_plugin(error)) is None:
            raise
        _note_failure(run, RunFailed(words), program)
        fail(error, words)
    # From here on the weights in final/ are the run; what is left after a kill, `hybridlab runs clean` removes.
    runtime = run.config.runtime
    count = 1 if keeps_optimizer(runtime.keep_optimizer, record.hooks) else 0
    world().once(checkpoints.keep_newest, folder.checkpoints, count, runtime.keep_steps)
    _say_warnings(record, title)
    return record


def _note_failure(run: Run, failure: RunFailed, program: dict[str, Any]) -> None:
    """Write the record of a run that has failed. program: see `program_facts`."""
    status: Literal["failed", "diverged"] = "diverged" if isinstance(failure, Diverged) else "failed"
    failed = Record(**_facts(run, program), status=status, reason=str(failure))
    world().once(run.folder.write, "record.json", failed.model_dump(mode="json"))


def _trained_parameters(run: Run) -> int:
    return sum(tensor.numel() for group in run.groups for tensor in group.tensors.values())


def _adapters_in_words(run: Run, lora: Lora) -> str:
    """What is trained where most weights stay as they are."""
    trained, shape = _trained_parameters(run), run.model.shape
    total = count_parameters(shape, run.model.plan).total
    head = "" if shape.gives_tokens else " and the new output head"
    return (
        f"adapters of rank {lora.rank} on {', '.join(lora.of(shape.traits.gated))}{head}: {trained:,} parameters are "
        f"trained, beside {total:,} of the model"
    )


def _computing_in_words(run: Run) -> str:
    """How the steps are computed, as far as nothing has to ask for it, and what changes it."""
    threads = torch.get_num_threads()
    on = "the GPU" if run.device.type == "cuda" else f"{threads} thread{'s' * (threads != 1)} (runtime.threads)"
    recomputed = {False: "no", True: "all", "selective": "cheap"}[run.model.recompute]
    return (
        f"computes on {on} in {run.precision} (training.precision), with {recomputed} activations recomputed "
        "(runtime.activation_checkpointing)"
    )


def _saved_so_far(folder: RunFolder) -> str:
    """Where a run stands that is stopped now."""
    steps = folder.checkpoint_steps
    return f"{folder.path}: stopped at once, with {f'step {steps[-1]}' if steps else 'no step'} saved"


def _finished_before(config: RunConfig, folder: RunFolder, runs: Runs, title: str, label: Label) -> Record:
    """The record of a run that has nothing left to do."""
    _relabel(folder, label)
    last, record = config.training.steps, finished_record(folder)
    keeps = keeps_optimizer(config.runtime.keep_optimizer, record.hooks)
    lost = keeps and last not in folder.checkpoint_steps
    note = "; the state of its optimizer was not kept" if lost else ""
    say(f"{title}: finished before, nothing to do{note}{_not_kept(config, folder, last)} ({folder.path})")
    if _has_other_data(config, folder.started(), runs.directory / "data"):
        say(
            f"{title}: the files of its data were written again since; these are the results of the data as they were, "
            "and if their content is another, a training on it needs another --run-dir"
        )
    _say_warnings(record, title)
    return record


def _has_other_data(config: RunConfig, info: dict[str, Any], cache: Path) -> bool:
    """Whether the files of a run's text are others than it was trained on, as far as that is seen without reading them
    again. info: of run.json. cache: where the text was prepared."""
    if config.finetune is not None:
        return False
    try:
        now = prepared_corpus(config.data, cache)
        if now is not None:
            return now.fingerprint != info["data_fingerprint"]
        fingerprints = {read_object(path, "data folder").get("fingerprint") for path in cache.glob("*/meta.json")}
    except UserError:
        return False
    return {*(info.get("source_fingerprints") or [info["data_fingerprint"]])} <= fingerprints


def _not_kept(config: RunConfig, folder: RunFolder, done: int) -> str:
    """A note about a step of `runtime.keep_steps` that was over before it was asked for; empty if there is none. done:
    the steps that the run has done."""
    steps = folder.checkpoint_steps
    missing = [step for step in sorted(config.runtime.keep_steps) if step <= done and step not in steps]
    if not missing:
        return ""
    return f"; the checkpoint of step {missing[0]} was not kept, which needs another training in an empty folder"


def _relabel(folder: RunFolder, label: Label) -> None:
    if label != UNLABELLED:
        before, now = folder.started(), label.applied(folder.started())
        if before.get("name") not in (None, now.get("name")):
            say(f"this run is called {now['name']} now, and no longer {before['name']}")
        world().once(folder.relabel, now)


def _go_to_start(run: Run, stopped: str | bool) -> None:
    """Bring the run to the step from which it trains, and say which that is. stopped: how an earlier start ended."""
    run.resume()
    if run.job.begins is not None and run.step == run.job.begins.step:
        say(in_words(run.job.begins, run.config))
    elif run.step:
        say(f"resuming after step {run.step}{_not_kept(run.config, run.folder, run.step)}")
    elif stopped:
        say(f"starts again from step 0 (it {stopped} before its first checkpoint)")


def _final_numbers(record: Record) -> dict[str, float | None]:
    """The results of a run by name, for trackers."""
    assert record.results is not None, "a run that was measured has results"
    text = record.results.validation
    numbers = {"loss": text.loss, "perplexity": text.perplexity, "bits_per_byte": text.bits_per_byte}
    if text.pseudo_perplexity is not None:
        numbers = {"loss": text.loss, "pseudo_perplexity": text.pseudo_perplexity}
    if record.results.finetune is not None:
        numbers = {"loss": text.loss, **record.results.finetune.metrics}
    numbers |= {f"{task}_accuracy": answers.all for task, answers in record.results.tasks.items()}
    numbers |= {f"{name}_accuracy": choices.accuracy for name, choices in record.results.choices.items()}
    return {f"{FINAL}{name}": measured.value for name, measured in numbers.items()}


def _measured(run: Run, hooks: dict[str, dict[str, Any]], program: dict[str, Any]) -> Record:
    """The record of a run that has done its last step. hooks: their results. program: see `program_facts`."""
    started = time.monotonic()
    give_back_freed_memory()
    if has_adapters(run.model) or not world().divides(run.model.parameters()):
        run.model = world().whole(run.model)
    elif run.precision == "bf16":
        # The probe of causality and benchmarks compute in fp32.
        run.model = world().in_fp32(run.model, run.device, run.config.runtime)
    results = measure(run.model, run.config, run.corpus, run.precision)
    run.require_finite("validation loss", results.validation.loss.value, run.step)
    results = with_benchmarks(results, run)
    if AtSteps.name in hooks:
        # These are measurements as the final ones, and stand beside them in the record.
        results = results.model_copy(update={"at": hooks[AtSteps.name]})
        hooks = {name: result for name, result in hooks.items() if name != AtSteps.name}
    seconds = round(time.monotonic() - started, 1)
    facts = _facts(run, program)
    return Record(**facts, status="finished", results=results, hooks=hooks, evaluation_seconds=seconds)


def _save(run: Run, record: Record) -> None:
    """Write the final model and then the record, which marks the run as finished."""
    with world().collected(dict(run.model.named_parameters()), run.folder.part_of("weights")) as weights:
        world().once(save_trained, run.folder.final, run.model, weights, run.config, run.corpus)
    world().once(run.metrics.flush)
    world().once(run.folder.write, "record.json", record.model_dump(mode="json"))


def _say_warnings(record: Record, title: str) -> None:
    """Repeat what the run's hooks warn of."""
    for results in record.hooks.values():
        for warning in results.get("warnings", []):
            say(f"{title}: warning: {warning}")


def _require_last_checkpoint(folder: RunFolder, config: RunConfig, problem: str) -> None:
    """UserError if the final model of a finished run cannot be made again. problem: what is wrong with it."""
    if folder.checkpoint_steps[-1:] != [config.training.steps]:
        raise UserError(
            f"{folder.final}: {problem}, and the checkpoint of the last step, from which it could be made again, is "
            f"not there (runtime.keep_optimizer would have kept it); restore the file, or remove {folder.path} and "
            "train again"
        )


def finished_record(folder: RunFolder) -> Record:
    """The record of a finished run; UserError if the run has not finished."""
    record = read_record(folder.path / "record.json")
    if record is None or record.status != "finished":
        raise UserError(f"{folder.unfinished_in_words()}; finish it first")
    return record


def _threads(config: RunConfig, folder: RunFolder) -> int:
    """The number of threads: that of the configuration, or of the run's first start, or the usual one here.

    The last bits of a run's numbers depend on it on a CPU, so a resumed run keeps it, like its precision.
    """
    number, first = config.runtime.threads, (folder.info() or {}).get("threads")
    if number is not None and first is not None and number != first and not folder.finished():
        say(f"runtime.threads is {number}, and was {first} at the first start: the last bits of the numbers may differ")
    return number or first or torch.get_num_threads()


def _facts(run: Run, program: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that finished and failed runs share. program: see `program_facts`."""
    config, info = run.config, run.folder.started()
    facts = model_facts(run.model)
    if config.lora is not None:
        facts["parameters"]["trained"] = _trained_parameters(run)
    return {
        "hash": run.job.digest,
        **{name: info[name] for name in ("name", "tags", "started", "host", "command", "plans") if name in info},
        "parents": parents(config),
        "config": config.model_dump(mode="json"),
        **program,
        **facts,
        "precision": run.precision,
        "compile": run.job.facts["compile"],
        "kernels": {softmax: ", ".join(names) for softmax, names in run.kernels.items()},
        "seed": config.training.seed,
        "steps": run.step,
        "tokens": run.spent.tokens,
        "seconds": round(run.spent.seconds, 1),
        "tokens_per_second": round(run.spent.tokens / run.spent.seconds, 1) if run.spent.seconds else None,
        "flops": run.spent.flops,
        "redone_steps": run.metrics.redone_steps(),
        "events": run.events,
        "history": history(read_metrics(run.metrics.path)),
        "data": data_summary(run.corpus, config, run.step, data_since(run.job.begins, config)),
        "extended": Extended(run=run.job.begins.folder.digest, step=run.job.begins.step) if run.job.begins else None,
    }


# ---- a model in words and numbers, for records ----

KV_CONTEXT = 8192
"""Context of the KV-cache bytes and forward FLOPs in a record: ConSA's sequence length."""


def model_facts(model: Transformer) -> dict[str, Any]:
    """The fields of a record that say what a model is."""
    parameters = count_parameters(model.shape, model.plan)
    return {
        "parameters": {"total": parameters.total, "blocks": parameters.block_matrices + parameters.norms_and_biases},
        "structure": model.structure.to_json(),
        "model": summary(model.structure),
    }


def summary(structure: Structure) -> ModelSummary:
    """Plan and map as text, sparsity, and the structure's cost at a context of 8,192 tokens."""
    attention_map = structure.map
    forward = ledger(structure, KV_CONTEXT, "pairs").forward
    cache = kv_bytes(structure, KV_CONTEXT) if structure.caches else None
    return ModelSummary(
        plan=str(structure.plan),
        map="full" if set(attention_map.each_kind()) == {Full()} else str(attention_map),
        sparsity=None if attention_map.learning else attention_map.sparsity(),
        kv_bytes=None if cache is None else KVBytes(context=KV_CONTEXT, dtype="bf16", bytes=cache),
        forward_flops=ForwardFlops(context=KV_CONTEXT, convention="pairs", flops=forward),
    )


# ---- the sources of the data ----


def data_summary(corpus: Corpus, config: RunConfig, steps: int, since: int = 0) -> DataSummary:
    """The data of a run that has done so many steps, those after step `since` with this data."""
    return DataSummary(
        source=corpus.meta["source"] if config.data.source is None else config.data.source,
        fingerprint=corpus.fingerprint,
        train_tokens=corpus.tokens("train"),
        validation_tokens=corpus.tokens("validation"),
        sources=list(_sources(corpus, config, steps, since)) if corpus.mixed else None,
    )


def announce_sources(corpus: Corpus, config: RunConfig, since: int = 0) -> Iterator[str]:
    """A line about each source of a mixture: what the whole run will read from it, see `data_summary`."""
    for source in data_summary(corpus, config, config.training.steps, since).sources or ():
        again = f", all of its {source.train_tokens:,} {source.epochs:.1f} times" if source.epochs > 1 else ""
        yield f"{source.name}: {source.weight:.3g} of the text, {source.read:,} tokens to read{again} ({source.source})"


def _sources(corpus: Corpus, config: RunConfig, steps: int, since: int) -> Iterator[SourceSummary]:
    length = config.training.seq_len
    until, before = (sources_read(corpus, config.data, config.training, number) for number in (steps, since))
    for part, read, read_before in zip(corpus.mixed, until, before, strict=True):
        tokens = read - read_before
        yield SourceSummary(
            name=part.name,
            source=part.corpus.meta["source"],
            weight=part.weight,
            fingerprint=part.corpus.fingerprint,
            train_tokens=part.corpus.tokens("train"),
            validation_tokens=part.corpus.tokens("validation"),
            read=tokens,
            epochs=round(tokens / length / max(1, len(Windows(part.corpus.train, length))), 4),
        )
