"""Studies: measurements on a model that is there already, each with a record of its own; see config/study.py."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.prompts import TokenizerAlone
from hybridlab.config.maps import MapConfig
from hybridlab.config.other_runs import Configuration, FinishedRun, run_names
from hybridlab.config.study import FILE, HUB, RUN, HeadsByEntropy, Study
from hybridlab.data.files import DataRoot, data_root
from hybridlab.data.preparing import corpus_of
from hybridlab.errors import UserError
from hybridlab.evaluation.measure import measure
from hybridlab.evaluation.results import NO_LOSS, Results
from hybridlab.files import read_object
from hybridlab.models.cache import require_caches
from hybridlab.models.decoder import Transformer
from hybridlab.models.huggingface import hub_revision
from hybridlab.plan.heads import Head, head_name
from hybridlab.plan.shape import Shape
from hybridlab.runs.benchmarks import BenchmarkRequest, benchmark_model, including
from hybridlab.runs.record import DataSummary, Record, Stamp, load_record, read_record, record_name, save_record
from hybridlab.runs.run import model_facts
from hybridlab.training.machine import autocast, pick_device, program_facts
from hybridlab.training.store.artifacts import Artifact, dropping, open_model
from hybridlab.training.store.folders import Runs
from hybridlab.training.store.results import find


def run_study(
    study: Study, digest: str, seed: int, runs: Runs, results_dir: Path, plans: Sequence[Stamp] = ()
) -> Record:
    """The record of a study, from RESULTS-DIR or by measuring, which writes it there.

    A record that lacks tasks is measured again where their files are at hand now. seed: of the run that is measured; 0
    for a model of the hub. plans: of the experiments that need it. UserError if the model cannot be opened, or nothing
    can be measured.
    """
    existing = load_record(digest, results_dir)
    if existing is not None and not _found_now(existing):
        return existing
    started = time.monotonic()
    opened = open_model(study.model.removeprefix(RUN).removeprefix(FILE), runs)
    opened.own_tokenizer()
    names = dropped_heads(study.drop_heads, results_dir)
    device = pick_device("auto")
    program, model = program_facts(device), opened.model.to(device).eval()
    model = dropping(model, ",".join(names)) if names else model
    if study.map is not None:
        model = with_map(model, study.map, runs, results_dir)
    # One context for all passes, which then share the weights that it casts.
    with autocast(device, study.computed_in):
        results = _measured(study, model, opened, runs)
    record = _record(study, digest, seed, model, opened, results, names, program)
    seconds = round(time.monotonic() - started, 1)
    record = record.model_copy(update={"evaluation_seconds": seconds, "plans": list(plans)})
    save_record(record, results_dir)
    return record


def with_map(model: Transformer, map_config: MapConfig, runs: Runs, results_dir: Path) -> Transformer:
    """The model, with shared weights, with another attention map. UserError if it does not fit, or if what it reads
    from a run or another study is not there."""

    def finished(reference: str) -> FinishedRun:
        path = find(results_dir, record_name(reference))
        record = read_record(path)
        if record is None or "study" not in record.config:
            return runs.finished(reference)
        # The record of a study, with what settings read of a finished run.
        study = SimpleNamespace(path=path, digest=reference, shape=Shape(**record.config["shape"]))
        study.config = lambda: study
        study.record = lambda: read_object(path, "record", ("results",))
        return cast(FinishedRun, study)

    shape = model.shape
    # What a map reads of a configuration.
    config = SimpleNamespace(shape=shape, first_shape=shape)
    linked = map_config.linked(cast(Configuration, config), finished)
    return model.with_plan(attention_map=linked.attention_map(shape.layers, shape.kv_heads))


def missing_tasks(record: Record) -> dict[str, str]:
    """The tasks that a study asked for and that were not measured, with the reason."""
    assert record.results is not None, "a study that was measured has results"
    missing = dict(record.results.lm_eval_missing)
    for probe in record.results.probes.values():
        missing |= probe.get("missing", {})
    return missing


def _found_now(record: Record) -> bool:
    """Whether the files of a task that a study lacks are below the data root now."""
    missing, root = missing_tasks(record), data_root()
    if not missing or root is None:
        return False
    from hybridlab.evaluation.lm_eval_tasks import load_task

    files = DataRoot(root)
    for name in missing:
        try:
            load_task(name.partition("@")[0], files)
        except UserError:  # also what is a column of a suite alone
            continue
        return True
    return False


def dropped_heads(choice: list[str] | HeadsByEntropy | None, results_dir: Path) -> list[str]:
    """The names of the heads that a study leaves out. UserError if the entropies to choose by are not there."""
    if not isinstance(choice, HeadsByEntropy):
        return choice or []
    record = load_record(choice.of, results_dir)
    entropies = record.results.probes.get("entropy") if record is not None and record.results is not None else None
    if entropies is None or "heads" not in entropies:
        raise UserError(f"drop_heads: {choice.of} has no entropies to choose heads by; let it run the probe entropy")
    low = _sorted(entropies.get("highest", entropies["heads"]), 1)[: choice.n]
    high = _sorted(entropies.get("lowest", entropies["heads"]), -1)[: choice.n]
    if choice.select == "matched":
        return [head_name(head) for head in _matched(high, _sorted(entropies["heads"], 1), choice.draw)]
    if choice.select != "random":
        return [head_name(head) for head in (high if choice.select == "high" else low)]
    middle = sorted({*_sorted(entropies["heads"], 1)} - {*low, *high})
    if len(middle) < choice.n:
        raise UserError(f"drop_heads: {len(middle)} heads are neither high nor low, fewer than n = {choice.n}")
    return [head_name(head) for head in sorted(random.Random(choice.draw).sample(middle, choice.n))]


def _matched(chosen: list[Head], heads: list[Head], draw: int) -> list[Head]:
    """Other heads at random, with as many in each layer as the chosen ones. UserError if a layer has too few."""
    generator, drawn = random.Random(draw), list[Head]()
    for layer in sorted({layer for layer, _ in chosen}):
        count = sum(head[0] == layer for head in chosen)
        rest = sorted(head for head in heads if head[0] == layer and head not in chosen)
        if len(rest) < count:
            raise UserError(
                f"drop_heads: {count} of the heads of layer {layer + 1} are chosen and {len(rest)} are not, so that "
                "no other choice has as many; give a smaller n"
            )
        drawn += generator.sample(rest, count)
    return sorted(drawn)


def _sorted(table: list[list[float | None]], sign: int) -> list[Head]:
    """The heads that run, by their value times a sign."""
    values = [(sign * value, (i, j)) for i, row in enumerate(table) for j, value in enumerate(row) if value is not None]
    return [head for _, head in sorted(values)]


def _measured(study: Study, model: Transformer, opened: Artifact, runs: Runs) -> Results:
    settings, length = study.evaluation, opened.seq_len
    tokenizer = opened.own_tokenizer()
    if study.text:
        assert opened.config is not None, "text is for runs alone"
        config = opened.config.model_copy(update={"evaluation": settings})
        corpus = corpus_of(config, runs.directory / "data")
        results = measure(model, config, corpus, study.computed_in)
    else:
        prompts, chosen = TokenizerAlone(tokenizer), settings.probe_settings or {}
        probes = {
            name: run_probe(name, model, prompts, length, None, **chosen.get(name, {})) for name in settings.all_probes
        }
        results = Results(causality={}, validation=NO_LOSS, probes=probes)
    if settings.benchmarks is None:
        return results
    require_caches(model.structure, "evaluation.benchmarks")
    request = BenchmarkRequest.of(settings.benchmarks)
    return including(results, benchmark_model(model, tokenizer, opened, length, request, lenient=True))


def _record(
    study: Study,
    digest: str,
    seed: int,
    model: Transformer,
    opened: Artifact,
    results: Results,
    names: list[str],
    program: dict[str, Any],
) -> Record:
    """The record of what was measured. The training that it names is the run's; a model of the hub has none. program:
    see `program_facts`."""
    trained = None if opened.config is None else read_record(opened.path / "record.json")
    about: dict[str, Any] = {}
    if not study.model.startswith(RUN):
        revision = hub_revision(opened.place) if study.model.startswith(HUB) else opened.digest
        about = {"model": study.model, "revision": revision}
    nothing = DataSummary(source="prompts of benchmark tasks", fingerprint="", train_tokens=0, validation_tokens=0)
    return Record(
        status="finished",
        hash=digest,
        parents=[*([study.model.removeprefix(RUN)] if study.model.startswith(RUN) else []), *run_names(study.map)],
        config={"shape": model.shape.to_json(), "study": study.as_written(), "dropped": names, **about},
        **program,
        **model_facts(model),
        precision=study.computed_in,
        kernels={},
        seed=seed,
        steps=trained.steps if trained else 0,
        tokens=trained.tokens if trained else 0,
        seconds=0.0,
        tokens_per_second=None,
        flops=trained.flops if trained else 0.0,
        redone_steps=0,
        events=[],
        history={},
        data=trained.data if trained else nothing,
        results=results,
    )
