"""Records, the source of all tables and figures: one small JSON file per run, in its folder and below RESULTS-DIR.

zstd -dc -D hybridlab/records.zdict results/published/records/HASH.json.zst | python -m json.tool
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from hybridlab.errors import UserError
from hybridlab.evaluation.results import Results
from hybridlab.files import read_object, rounded_floats, write_json
from hybridlab.statistics import NOT_MEASURED, Measurement, Typed, block_means
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.results import PUBLISHED, find

DIGITS = 10
"""Significant digits of what a record keeps of measurements, which are made in single precision."""


class KVBytes(Typed):
    """Bytes of keys and values after `context` tokens of one sequence."""

    context: int
    dtype: str
    bytes: int


class ForwardFlops(Typed):
    """FLOPs of a forward pass over one sequence of `context` tokens, under a convention of the ledger."""

    context: int
    convention: str
    flops: float


class ModelSummary(Typed):
    """The final structure in words and numbers. plan, map: as text. sparsity: share of window heads, None while
    learned. kv_bytes: None for a model that continues no text."""

    plan: str
    map: str
    sparsity: float | None
    kv_bytes: KVBytes | None
    forward_flops: ForwardFlops


class SourceSummary(Typed):
    """A source of a mixture. weight: its share of the training tokens. read: the tokens that the run read from it.
    epochs: how often that is all of them."""

    name: str
    source: str
    weight: float
    fingerprint: str
    train_tokens: int
    validation_tokens: int
    read: int
    epochs: float


class DataSummary(Typed):
    """sources: None if there is only one."""

    source: str
    fingerprint: str
    train_tokens: int
    validation_tokens: int
    sources: list[SourceSummary] | None = None


class Extended(Typed):
    """The run that this one continued with its optimizer, and the steps that were done there."""

    run: str
    step: int


class Stamp(Typed):
    """A plan under which a run was started: that of the experiment `id` at `scale`; see lab/papers/plans.py."""

    id: str
    scale: str
    digest: str


class Seen(Typed):
    """What weights have been trained with on the whole way to them: in their run and in those that it started from, up
    to the step whose weights were taken over. A run that gave masks alone is not on the way. flops: None where the way
    leaves a run in the middle whose structure changes."""

    steps: int
    tokens: int
    flops: float | None


class Record(Typed):
    """Results of a run, and what is needed to reproduce them.

    name, tags: what the run is called. started (UTC), host, command: its first start; None in older records. plans: of
    the experiments that it was started for; empty for a run of no experiment, and in older records.
    structure: the final `Structure` as JSON. hooks: the results of each hook by its name (a controller's kind,
    `entropy-log`). history: logged numbers as columns. weights: see `with_weights`; None where the record of a run on
    the way is not here. flops, tokens, seconds: totals, without the steps that were
    repeated after an interruption (those are `redone_steps`). A failed or diverged run has a reason and no results.
    With `extended`, totals and history include the run that this one continued.

        record = hybridlab.train("vanilla", steps=100).record
        record.history["loss"], record.seconds, record.machine["name"]
    """

    status: Literal["finished", "failed", "diverged"]
    reason: str | None = None
    hash: str
    name: str | None = None
    tags: list[str] = []
    started: str | None = None
    host: str | None = None
    command: str | None = None
    plans: list[Stamp] = []
    parents: list[str]
    config: dict[str, Any]
    git: str | None
    libraries: dict[str, str]
    machine: dict[str, Any]
    precision: str
    compile: bool = False
    kernels: dict[str, str]
    seed: int
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: float | None
    flops: float
    redone_steps: int
    parameters: dict[str, int]
    structure: dict[str, Any]
    model: ModelSummary
    events: list[dict[str, Any]]
    history: dict[str, list[float]]
    data: DataSummary
    results: Results | None = None
    hooks: dict[str, dict[str, Any]] = {}
    evaluation_seconds: float | None = None
    extended: Extended | None = None
    weights: Seen | None = Field(default=None, exclude=True)
    unit: int | None = Field(default=None, exclude=True)

    @property
    def units(self) -> dict[int, Record]:
        """What was measured on each prompt or document by itself, 0, 1, … of those that all probes have; empty for a
        record whose probes did not. Each has the `units` of the probes instead of their results, and nothing else
        of what was measured, so that what was measured on all of them together is taken for none."""
        if self.results is None:
            return {}
        probes = {name: result["units"] for name, result in self.results.probes.items() if result.get("units")}
        alone = self.results.model_copy(update={"probes": {}, "lm_eval": {}, "suites": {}})
        return {
            number: self.model_copy(
                update={
                    "unit": number,
                    "results": alone.model_copy(update={"probes": dict(zip(probes, results, strict=True))}),
                }
            )
            for number, results in enumerate(zip(*probes.values(), strict=False))
        }

    @property
    def controller(self) -> dict[str, Any]:
        """The results of the run's controller; empty if it has none."""
        settings = self.config.get("controller")
        return self.hooks.get(settings["kind"], {}) if settings else {}


@dataclass(frozen=True)
class Part:
    """A run as a part of the way to some weights. own: what it did. init: where it started, as its settings say. even:
    whether all of its steps cost the same."""

    own: Seen
    init: Mapping[str, Any]
    even: bool = True


def seen(digest: str, parts: Mapping[str, Part]) -> Seen | None:
    """What the final weights of a run have been trained with; None where a run on the way is unknown. parts: by
    hash."""
    if (part := parts.get(digest)) is None:
        return None
    # The totals of a branch that goes on with all of a run's state count from that run's first step.
    if part.init.get("run") is None or part.init.get("load") == "all":
        return part.own
    before = seen(part.init["run"], parts)
    if before is None:
        return None
    parent, step = parts[part.init["run"]], part.init.get("step")
    left = 0.0 if step is None else 1 - step / parent.own.steps
    flops = None
    if part.own.flops is not None and before.flops is not None and (parent.even or not left):
        flops = part.own.flops + before.flops - left * (parent.own.flops or 0.0)
    return Seen(
        steps=part.own.steps + before.steps - round(left * parent.own.steps),
        tokens=part.own.tokens + before.tokens - round(left * parent.own.tokens),
        flops=flops,
    )


def with_weights(records: Iterable[Record]) -> dict[str, Record]:
    """Hash → the record with what its final weights have seen, as far as all runs on the way are among these."""
    by_hash = {record.hash: record for record in records}
    parts = {
        digest: Part(Seen(steps=r.steps, tokens=r.tokens, flops=r.flops), r.config.get("init") or {}, not r.events)
        for digest, r in by_hash.items()
    }
    return {digest: record.model_copy(update={"weights": seen(digest, parts)}) for digest, record in by_hash.items()}


class Speed(Typed):
    """A part of a benchmark. ratio: this model's speed over the first model's; time_ratio: the inverse, of times."""

    tokens_per_second: Measurement
    ratio: Measurement
    time_ratio: Measurement
    seconds: list[float]


class BenchmarkRecord(Typed):
    """Speeds of several models, measured side by side. results: group → model → batch → part."""

    status: Literal["finished"]
    hash: str
    benchmark: dict[str, Any]
    git: str | None
    libraries: dict[str, str]
    machine: dict[str, Any]
    dtype: str
    results: dict[str, dict[str, dict[str, dict[str, Speed]]]]


AnyRecord = TypeVar("AnyRecord", Record, BenchmarkRecord)


def record_name(name: str) -> str:
    """The file of a record below RESULTS-DIR. name: a run's hash, or `benchmark-` and a benchmark's."""
    return f"records/{name}.json.zst"


def save_record(record: Record | BenchmarkRecord, results_dir: Path) -> None:
    """Write a record below RESULTS-DIR, so that tables can be made again without the run's folder. Its command is kept
    without the folders of this machine, since records are published; see `compact` for what stays with the run."""
    content = record.model_dump(mode="json")
    if isinstance(record, Record):
        content["command"] = record.command and _without_folders(record.command)
    name = record.hash if isinstance(record, Record) else f"benchmark-{record.hash}"
    write_json(results_dir / record_name(name), compact(content))


def compact(content: dict[str, Any]) -> dict[str, Any]:
    """A record as JSON without the long lists behind means, which no page reads: the loss of each validation window,
    of which blocks of ten stay at the end of the run, and the maps of the probe `dependency` at steps before it. What
    was measured has DIGITS digits."""
    results = content.get("results") or {}
    for loss in _losses(results):
        loss["blocks"] = loss.get("blocks") or [round(mean, 6) for mean in block_means(loss["windows"]).tolist()]
        loss["windows"] = []
    for step in results.get("at", {}).values():
        for loss in _losses(step):
            loss["windows"] = []
        step.get("probes", {}).get("dependency", {}).pop("maps", None)
    return content | {name: rounded_floats(content[name], DIGITS) for name in ("results", "history") if name in content}


def _losses(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The losses of one measurement: of the whole validation text, of its sources, and at longer windows."""
    for loss in (results.get("validation"), *results.get("extrapolation", {}).values()):
        yield from (loss, *loss.get("sources", {}).values()) if loss else ()


def _without_folders(command: str) -> str:
    """A command line without its options for folders."""
    options = ("--run-dir", "--runs-dir", "--results-dir", "--data-root")
    words = shlex.split(command)
    remaining = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if before not in options and word.partition("=")[0] not in options
    ]
    return shlex.join(remaining)


def read_record(path: Path) -> Record | None:
    """A run's record file; None if there is none. UserError if it is damaged or of another version."""
    return _read(path, Record)


def read_benchmark(path: Path) -> BenchmarkRecord | None:
    """A benchmark's record file; None if there is none. UserError if it is damaged or of another version."""
    return _read(path, BenchmarkRecord)


def _read(path: Path, kind: type[AnyRecord]) -> AnyRecord | None:
    try:
        content = read_object(path, "record", ("status", "hash"), _remedy(path))
    except FileNotFoundError:
        return None
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise UserError(
            f"{path}: this record is damaged or of another version of hybridlab ({field}: {problem['msg'].lower()}); "
            f"{_remedy(path)}"
        ) from None


def _remedy(path: Path) -> str:
    """What to do about a record that cannot be read: the one of a run folder cannot be made again without the run."""
    if path.name == "record.json":
        return "train again in another folder; the model in final/ can still be used"
    if path.parent.parent.name == PUBLISHED:
        return "restore it from version control"
    return "remove it and reproduce again"


def load_record(digest: str, results_dir: Path, runs_dir: Path | None = None) -> Record | None:
    """The record of a finished run, one's own before the published one; None if there is none.

    runs_dir: a record of one's own that is missing is copied from its run in this folder, so that deleted results come
    back.
    """
    name = record_name(digest)
    if runs_dir is not None and not (results_dir / name).exists():
        folder = RunFolder(runs_dir / digest)
        record = read_record(folder.path / "record.json") if folder.finished() else None
        if record is not None:
            save_record(record, results_dir)
    record = read_record(find(results_dir, name))
    return record if record is not None and record.status == "finished" else None


def part_at(record: Record | BenchmarkRecord, path: str) -> Any:
    """What stands at a dotted path into a record; None if nothing is there."""
    value: Any = record
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return value


def number_at(record: Record | BenchmarkRecord, path: str) -> Measurement:
    """The measurement at a dotted path into a record; a plain number has no error. NOT_MEASURED if nothing is there."""
    value = part_at(record, path)
    if isinstance(value, dict) and value.keys() == Measurement.model_fields.keys():
        value = Measurement(**value)
    if isinstance(value, Measurement):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        return NOT_MEASURED
    return Measurement(value=float(value), n=1)
