"""Benchmarks of trained models: tasks of lm-eval or a paper's suite, kept in the record of a finished run.

hybridlab eval RUN --tasks arc_easy,piqa --num-fewshot 5 --data-root DIR
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from hybridlab.config.evaluation import Benchmarks as Settings
from hybridlab.config.schema import RunConfig
from hybridlab.data.files import DataRoot, data_root
from hybridlab.data.hub_access import without_hub
from hybridlab.errors import NoRoom, UserError, first_line
from hybridlab.evaluation.lm_eval_options import PLAIN, Options, Report, chat_tokenizer
from hybridlab.evaluation.results import BenchmarkResult, Results, Suite, load_suite
from hybridlab.messages import say
from hybridlab.models.cache import require_caches
from hybridlab.models.decoder import Transformer
from hybridlab.plan.structure import Structure
from hybridlab.runs.record import read_record
from hybridlab.statistics import Measurement
from hybridlab.training.engine import Run
from hybridlab.training.machine import pick_device
from hybridlab.training.store.artifacts import Artifact, dropping, open_model
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.world import world

BATCH = 8


@dataclass(frozen=True)
class BenchmarkRequest:
    """What to measure. tasks: names of lm-eval's tasks, or suite: a paper's. shots: solved examples before each
    question; None for each task's own number. limit: only so many examples of each task. data_root: the folder of the
    tasks' files; None for HYBRIDLAB_DATA_ROOT, else the hub. max_length: tokens of a row at most; None for what the
    model was made for. skip_bad_lines: leave out and count broken lines of files. drop_heads: names of query heads that
    are left out of the model, as L1-H3,L2-H5. replace: the results replace older ones of the same names
    that have more questions, which else stay in the record. options: lm-eval's own."""

    tasks: tuple[str, ...] = ()
    suite: str | None = None
    shots: int | None = None
    limit: int | None = None
    batch_size: int | Literal["auto"] = BATCH
    max_length: int | None = None
    data_root: Path | None = None
    skip_bad_lines: bool = False
    drop_heads: str | None = None
    replace: bool = False
    options: Options = PLAIN

    @classmethod
    def of(cls, settings: Settings) -> BenchmarkRequest:
        """What `evaluation.benchmarks` asks for."""
        tasks = tuple(settings.tasks or ())
        return cls(tasks, settings.suite, settings.shots, settings.limit, max_length=settings.max_length)

    def checked(self) -> BenchmarkRequest:
        """Itself; UserError for what cannot be meant."""
        if bool(self.tasks) == bool(self.suite):
            raise UserError("eval: give either --tasks NAME,NAME or --suite NAME")
        if self.suite and self.shots is not None:
            raise UserError(f"--num-fewshot has no effect on --suite {self.suite}, which has its own; leave it out")
        rows = None if self.batch_size == "auto" else self.batch_size
        numbers = {"--limit": self.limit, "--batch-size": rows, "--max-length": self.max_length}
        for option, number in numbers.items():
            if number is not None and number < 1:
                raise UserError(f"{option} {number}: it must be 1 or more")
        if self.shots is not None and self.shots < 0:
            raise UserError(f"--num-fewshot {self.shots}: it must be 0 or more")
        if self.replace and self.drop_heads is not None:
            raise UserError("--replace has no effect with --drop-heads, which is never recorded; leave it out")
        self.options.checked(self.suite)
        return self

    def names(self) -> set[str]:
        """The tasks that are asked, those of a suite, too."""
        return set(self.tasks) | ({task for task, _ in load_suite(self.suite).asked()} if self.suite else set())


@dataclass(frozen=True)
class Benchmarks:
    """What was measured. results: by name, as in `Results.lm_eval`. not_measured: task → why. columns: of a suite, the
    paper's columns with their measured values. recorded: whether the run's record has them now. kept: results that the
    record has from before and that stay, with their number of questions, which is larger. files: of lm-eval with these
    results. unwritten: why the record or these files could not be written, which ends the command with exit code 1.

        found = hybridlab.evaluate("runs/first", suite="saobp", data_root="benchmarks")
        found.columns["BoolQ"].value, found.not_measured
    """

    results: dict[str, BenchmarkResult]
    not_measured: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Measurement] = field(default_factory=dict)
    suite: Suite | None = None
    recorded: bool = False
    kept: dict[str, int] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    unwritten: str | None = None

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "lm_eval": {name: result.model_dump(mode="json") for name, result in self.results.items()},
            "not_measured": self.not_measured,
            "recorded": self.recorded,
            "kept": self.kept,
            "files": [str(path) for path in self.files],
        }
        if self.suite is not None:
            content["suite"] = {
                "name": self.suite.name,
                "title": self.suite.title,
                "columns": {name: measured.model_dump(mode="json") for name, measured in self.columns.items()},
            }
        return content


def benchmark_run(reference: str, runs: Runs, request: BenchmarkRequest) -> Benchmarks:
    """Measure a model on tasks; the results of a finished run enter its record beside those that are there. UserError
    for a name that does not exist, and for a model that predicts no next token."""
    request = request.checked()
    opened = open_model(reference, runs)
    require_caches(opened.model.structure, f"eval {reference}")
    tokenizer = opened.own_tokenizer()
    measures_its_end = opened.run is not None and opened.part == "final" and opened.run.finished()
    folder = opened.run if measures_its_end else None
    if request.replace:
        _require_older(folder, reference, request)
    if folder is not None and not os.access(folder.path, os.W_OK):
        say(f"{reference}: {folder.path} may not be written, so that nothing will be recorded")
    model = opened.model.to(pick_device("auto"))
    if request.drop_heads is not None:
        model = dropping(model, request.drop_heads)
    benchmarks = benchmark_model(model, tokenizer, opened, opened.seq_len, request, name=reference)
    if request.drop_heads is not None:
        say(f"{reference}: measured without {request.drop_heads}, so that nothing is recorded")
        return benchmarks
    if folder is None:
        say(f"{reference}: no finished run, so that nothing is recorded")
        return benchmarks
    try:
        larger = world().once(record_benchmarks, folder, benchmarks, request.replace)
    except (OSError, NoRoom, UserError) as error:  # the numbers are there, and are not to be lost
        why = f"nothing is recorded ({first_line(error)}); the same command measures it again"
        say(f"{reference}: {why}")
        return replace(benchmarks, unwritten=why)
    for name, questions in larger.items():
        say(
            f"{reference}: the record keeps its {name} with {questions:,} questions, and not this one with "
            f"{_questions(benchmarks.results[name]):,}; --replace puts this one in its place"
        )
    return replace(benchmarks, recorded=len(larger) < len(benchmarks.results) or not larger, kept=larger)


def _require_older(folder: RunFolder | None, reference: str, request: BenchmarkRequest) -> None:
    """UserError if there is no result that could be replaced."""
    if folder is None:
        raise UserError(f"--replace has no effect: {reference} is no finished run, so that nothing is recorded")
    record = read_record(folder.path / "record.json")
    results = record.results.lm_eval if record is not None and record.results is not None else {}
    if not any(fnmatchcase(result.task, name) for result in results.values() for name in request.names()):
        raise UserError(
            f"--replace has no effect: the record of {reference} has no result of these tasks; leave it out"
        )


def benchmark_model(
    model: Transformer,
    tokenizer: Tokenizer,
    of: Artifact | Path | None,
    length: int,
    request: BenchmarkRequest,
    lenient: bool = False,
    name: str = "a model",
) -> Benchmarks:
    """Measure a model on tasks, in the precision of its weights, on the device where it is. of: where it is from, or
    its tokenizer.json; what stands beside that says how it is asked. length: tokens of a row at most if neither the
    request nor the folder of a pretrained model says it. lenient: also a task that is no part of a suite may be without
    data. name: what lm-eval's files call it."""
    root, options = data_root(request.data_root), request.options
    # lm-eval is imported in here: it takes seconds, and reads at import whether the hub may be asked.
    with without_hub(wanted=root is not None):
        from hybridlab.evaluation.lm_eval_model import HarnessModel, longest_row, special_tokens_of
        from hybridlab.evaluation.lm_eval_names import matching
        from hybridlab.evaluation.lm_eval_tasks import measure_tasks

        file = of.tokenizer if isinstance(of, Artifact) else of
        model_length = longest_row(of.path) if isinstance(of, Artifact) and of.pretrained else None
        length = request.max_length or model_length or length
        positions = model.shape.max_positions
        if positions is not None and length > positions:
            raise UserError(f"--max-length {length}: this model has learned positions for {positions} tokens only")
        chat = chat_tokenizer(file, tokenizer) if file is not None and options.apply_chat_template else None
        special = special_tokens_of(None if file is None else file.parent, tokenizer)
        harness = HarnessModel(model, tokenizer, special, length, request.batch_size, chat)
        report = None if options.output_path is None else Report(options, name)
        source = None if root is None else DataRoot(root, request.skip_bad_lines)
        suite = load_suite(request.suite) if request.suite else None
        tasks = matching(request.tasks, options.include_path)
        requests = [(task, request.shots) for task in tasks] if suite is None else suite.asked()
        # Of the tasks that a pattern fits, those are measured whose data are there.
        may_lack = lenient or suite is not None or set(tasks).difference(request.tasks)
        results, missing = measure_tasks(harness, source, requests, request.limit, may_lack, options, report)
        if suite is None and not results and not lenient:
            first, reason = next(iter(missing.items()))
            raise UserError(f"--tasks {','.join(request.tasks)}: none can be measured; {first}: {reason}")
        files: tuple[Path, ...] = ()
        unwritten = None
        if report is not None:
            settings: dict[str, Any] = {"limit": request.limit, "max_length": length}
            settings |= {} if request.drop_heads is None else {"drop_heads": request.drop_heads}
            try:
                files, samples = world().once(report.write, harness, settings)
            except (OSError, NoRoom, UserError) as error:  # the numbers are not to be lost, as in `benchmark_run`
                unwritten = f"lm-eval's files are not written ({first_line(error)})"
                say(f"{name}: {unwritten}")
                samples = [{} for _ in results]
            # Both have what was measured, in this order.
            results = {
                name: result.model_copy(update={"samples": samples[number]})
                for number, (name, result) in enumerate(results.items())
            }
    if suite is None:
        return Benchmarks(results, missing, files=files, unwritten=unwritten)
    columns = suite.measured(results)
    return Benchmarks(results, missing | suite.not_here, columns, suite, files=files, unwritten=unwritten)


def record_benchmarks(folder: RunFolder, benchmarks: Benchmarks, replacing: bool = False) -> dict[str, int]:
    """Add results to the record of a finished run, instead of older ones of the same names that have no more
    questions. Returns those that have more, with their number, which stay unless replacing."""
    path = folder.path / "record.json"
    with folder.locked():
        record = read_record(path)
        if record is None or record.results is None:
            raise UserError(f"{path}: the record of this run is gone; train the run again")
        older = {} if replacing else record.results.lm_eval
        larger = {
            name: _questions(older[name])
            for name, result in benchmarks.results.items()
            if name in older and _questions(older[name]) > _questions(result)
        }
        merged = benchmarks.results | {name: older[name] for name in larger}
        columns = benchmarks.suite.measured(merged) if benchmarks.suite is not None else {}
        entered = replace(benchmarks, results=merged, columns=columns)
        results = including(record.results, entered)
        folder.write("record.json", record.model_copy(update={"results": results}).model_dump(mode="json"))
    return larger


def _questions(result: BenchmarkResult) -> int:
    """How many examples a result is of."""
    return max((measured.n for measured in result.metrics.values()), default=0)


def with_benchmarks(results: Results, run: Run) -> Results:
    """The results of a run that has done its last step with those of its settings' benchmarks, if it has any."""
    settings = run.config.evaluation.benchmarks
    if settings is None:
        return results
    length, corpus = run.config.training.seq_len, run.corpus
    file = corpus.folder / "tokenizer.json"
    benchmarks = benchmark_model(run.model, corpus.tokenizer, file, length, BenchmarkRequest.of(settings), lenient=True)
    return including(results, benchmarks)


def require_benchmarks(config: RunConfig, structure: Structure) -> None:
    """UserError, before anything is trained, for benchmarks that do not exist or that the model cannot be asked."""
    settings = config.evaluation.benchmarks
    if settings is None:
        return
    require_caches(structure, "evaluation.benchmarks")
    if settings.tasks:
        from hybridlab.evaluation.lm_eval_names import matching, require_task

        for task in matching(settings.tasks):
            require_task(task)


def including(results: Results, benchmarks: Benchmarks) -> Results:
    """Results with those of benchmarks, which replace older ones of the same names."""
    reasons = {**results.lm_eval_missing, **benchmarks.not_measured}
    missing = {name: why for name, why in reasons.items() if name not in benchmarks.results}
    changed: dict[str, Any] = {"lm_eval": results.lm_eval | benchmarks.results, "lm_eval_missing": missing}
    if benchmarks.suite is not None:
        columns = {name: measured for name, measured in benchmarks.columns.items() if measured.value is not None}
        changed["suites"] = results.suites | {benchmarks.suite.name: columns}
    return results.model_copy(update=changed)
