"""What commands share that write an experiment: its seeds, metrics, claims and columns, and its file.

    hybridlab ablate    RESULTS-DIR/ablate-HASH/ablate.yaml
    hybridlab compare   RESULTS-DIR/compare-HASH/compare.yaml

It is the same mapping as in a file that somebody writes, with one scale and a claim for each arm and metric, so that it
is loaded, trained, drawn and judged as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import yaml

from hybridlab.config.loading import Layer, is_file_name
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure, task_window, window_reach
from hybridlab.config.yaml_text import KeyPath
from hybridlab.errors import UserError, nearest
from hybridlab.files import ENDINGS, write_text
from hybridlab.lab.papers.claims.comparison import better_of
from hybridlab.lab.papers.claims.expression import path_of
from hybridlab.lab.papers.experiment import Better, Experiment, Scalar
from hybridlab.lab.papers.ids import WRITTEN
from hybridlab.lab.papers.loading import experiment_of, metric_problem
from hybridlab.runs.record import Record
from hybridlab.statistics import MOST_SEEDS
from hybridlab.training.store.results import find, listed

SCALE = "desk"
"""The scale of such an experiment, whose seeds decide claims."""
NAMES = {
    "loss": "results.validation.loss",
    "perplexity": "results.validation.perplexity",
    "pseudo-perplexity": "results.validation.pseudo_perplexity",
    "inside": "results.tasks.retrieval.inside",
    "far": "results.tasks.retrieval.far",
    "outside": "results.tasks.retrieval.outside",
}
"""Short names of metrics."""
_NO_RESULT = ("history", "config", "machine", "libraries", "data", "git", "hash")
"""Parts of a record that say how a run was made, and lists."""
_MEASURED_WITH = {
    "results.extrapolation": ("length_factors",),
    "results.choices": ("choices",),
    "results.lm_eval": ("benchmarks",),
    "results.suites": ("benchmarks",),
    "results.probes": ("probes", "final_probes"),
    "results.at": ("at_steps",),
}
"""Results that are measured where a setting under `evaluation` asks for them."""
_PATH = re.compile(r"[A-Za-z_][\w.-]*")


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds written as a number of them (3: 0, 1, 2), a range (5-7) or a list (5,8,9)."""
    parts, ends = text.split(","), text.split("-")
    seeds: Sequence[int] = ()
    if text.isdecimal():
        seeds = range(int(text))
    elif len(ends) == 2 and all(map(str.isdecimal, ends)):
        seeds = range(int(ends[0]), int(ends[1]) + 1)
    elif all(part.strip().isdecimal() for part in parts):
        seeds = tuple(map(int, parts))
    # A range is not written out before its size is known.
    if seeds and (seeds[-1] - seeds[0] if isinstance(seeds, range) else len(seeds)) >= MOST_SEEDS:
        raise UserError(f"--seeds {text}: these are more than {MOST_SEEDS:,} seeds; ask for fewer")
    if not seeds or len(set(seeds)) != len(seeds):
        raise UserError(f"--seeds {text}: write how many (3), a range (5-7) or a list of different seeds (5,8,9)")
    return tuple(seeds)


# ---- metrics, claims and columns ----


@dataclass(frozen=True)
class Metric:
    """text: as it is asked for. path: into a record."""

    text: str
    path: str
    better: Better

    @property
    def name(self) -> str:
        return self.text.partition(":")[0]

    @property
    def task(self) -> tuple[str | None, str]:
        """The synthetic task whose answers it reads, None without one, and which of them."""
        parts = self.path.split(".")
        return (parts[2], parts[-1]) if parts[:2] == ["results", "tasks"] and len(parts) > 3 else (None, "all")

    @property
    def column(self) -> dict[str, Any]:
        digits = 2 if "perplexity" in self.path else 3
        return {"name": self.name, "title": self.name, "kind": "trained", "metric": self.path, "digits": digits}


def metrics_of(texts: Sequence[str]) -> list[Metric]:
    """The metrics that are judged; UserError for one that no record has, and where nothing says what is better."""
    metrics: dict[str, Metric] = {}
    for text in texts:
        name, _, direction = text.partition(":")
        path = NAMES.get(name, path_of(name))
        numbers = [field for field, of in Record.model_fields.items() if of.annotation in (int, float, float | None)]
        if path.partition(".")[0] in _NO_RESULT or "." not in path and path not in numbers:
            raise UserError(f"--metric {text}: there is no metric {name!r}; {nearest(name, [*NAMES, *numbers])}")
        problem = metric_problem(path, Record) if _PATH.fullmatch(path) else f"{name!r} is no path into a record"
        if problem is not None:
            raise UserError(f"--metric {text}: {problem}")
        if path == "results.validation" or path.startswith("results.tasks.") and path.count(".") == 2:
            part = "loss" if path == "results.validation" else "far"
            raise UserError(f"--metric {text}: {name} is several numbers; write which, as in {name}.{part}")
        better: Any = direction or better_of(path)
        if better not in get_args(Better):
            raise UserError(f"--metric {text}: write whether lower or higher is better, as in {name}:lower")
        if path in metrics:
            raise UserError(f"--metric {text}: it is there twice; give it once")
        metrics[path] = Metric(text, path, better)
    return list(metrics.values())


def require_rows(metric: Metric, config: RunConfig) -> None:
    """UserError for what the run does not measure, for a task that the data do not ask, and for a part of its answers
    that nothing splits off."""
    for path, names in _MEASURED_WITH.items():
        if metric.path.startswith(path) and not any(getattr(config.evaluation, name) for name in names):
            raise UserError(f"--metric {metric.text}: no run measures it; set evaluation.{names[0]}")
    causal = config.shape.traits.causal
    if metric.path.startswith(NAMES["pseudo-perplexity" if causal else "perplexity"]):
        other = "perplexity" if causal else "pseudo-perplexity"
        raise UserError(f"--metric {metric.text}: the family {config.shape.family} has none; judge {other}")
    task, part = metric.task
    if task is not None and task not in config.data.mix.tasks:
        data = "recall" if task == "retrieval" else f"a mix with {task}"
        raise UserError(f"--metric {metric.text}: the data have no rows of the task {task}; give --data {data}")
    if part != "all" and task_window(final_structure(config).map, config) is None:
        raise UserError(f"--metric {metric.text}: no window splits the answers; add --set evaluation.task_window=N")


def common_window(metrics: Sequence[Metric], configs: Mapping[str, RunConfig]) -> int | None:
    """The window by which the answers to tasks are split in all arms, so that all answer the same questions: that of
    the first arm; None if no metric reads a part of them. UserError for a metric that `require_rows` refuses, and for
    parts that depend on what an arm reaches."""
    first = next(iter(configs.values()))
    window = task_window(final_structure(first).map, first)
    for metric in metrics:
        require_rows(metric, first)
        _, part = metric.task
        reach = {name: window_reach(final_structure(config).plan, window or 0) for name, config in configs.items()}
        if part in ("outside", "relayed") and len(set(reach.values())) > 1:
            texts = ", ".join(f"{name}: {tokens}" for name, tokens in reach.items())
            raise UserError(
                f"--metric {metric.text}: what is {part} begins at other distances in each arm ({texts} tokens); judge "
                f"{metric.name.removesuffix(part)}far, all that is farther away than one window"
            )
    return window if any(metric.task[1] != "all" for metric in metrics) else None


def claim_of(name: str, baseline: str, metric: Metric) -> dict[str, str]:
    """That a cell is better than another one."""
    ours, theirs = (f'"{cell}"' if "," in cell or ";" in cell else cell for cell in (name, baseline))
    return {
        "text": f"{name} is better than {baseline} ({metric.name})",
        "source": f"--metric {metric.text}",
        "test": f"{metric.path}[{ours}] {'<' if metric.better == 'lower' else '>'} [{theirs}]",
    }


def scaled_column(title: str, path: str, size: float) -> dict[str, Any]:
    """A column of a number of about this size, in a power of ten."""
    power = math.floor(math.log10(size)) if size > 0 else 0
    power = 0 if -1 <= power <= 2 else power
    unit = f" ({power_text(power)})" if power else ""
    return {
        "name": title,
        "title": f"{title}{unit}",
        "kind": "exact",
        "metric": path,
        "factor": 10.0**-power,
        "digits": 3,
        "bare": True,
    }


def power_text(exponent: int) -> str:
    """A power of ten: 10¹²."""
    return f"10{str(exponent).translate(str.maketrans('0123456789-', '⁰¹²³⁴⁵⁶⁷⁸⁹⁻'))}"


# ---- the experiment and its file ----


@dataclass(frozen=True)
class Definition:
    """An experiment as a file has it. content: the mapping. origins: where its values were written.
    grid: the search before it was extended."""

    content: dict[str, Any]
    origins: dict[KeyPath, str]
    grid: list[Scalar] = field(default_factory=list)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment; UserError for what it cannot be."""
        return experiment_of(Layer(self.content, self.origins, asked=True))

    def changed(self, **parts: Any) -> Definition:
        """The same with other parts."""
        return replace(self, content={**self.content, **parts})

    @property
    def scale(self) -> dict[str, Any]:
        """How its cells are trained."""
        scale: dict[str, Any] = self.content["scales"][SCALE]
        return scale

    def rescaled(self, **parts: Any) -> Definition:
        """The same with other parts of its scale."""
        return self.changed(scales={SCALE: {**self.scale, **parts}})

    def folder(self, results_dir: Path) -> Path:
        return results_dir / str(self.content["id"])

    def keep(self, results_dir: Path) -> None:
        """Write it where `kept` finds it."""
        self.write(results_dir / file_of(self.content["id"]))

    def write(self, path: Path) -> None:
        """Write it as an experiment file."""
        about = f"# Written by `hybridlab {_command_of(self.content['id'])}`"
        # A dollar begins a placeholder in such a file.
        text = yaml.safe_dump(self.content, sort_keys=False, allow_unicode=True, width=110).replace("$", "$$")
        name = path.name if path.suffix in ENDINGS["yaml"] else "FILE.yaml"
        write_text(path, f"{about}; `hybridlab reproduce {name}` makes it again.\n{text}")


def kept(identifier: str, results_dir: Path) -> Path | None:
    """The file of an experiment that a command has written; None for another id, UserError if there is none."""
    if not identifier.startswith(WRITTEN) or is_file_name(identifier):
        return None
    path = find(results_dir, file_of(identifier))
    if not path.is_file():
        files = listed(results_dir, file_of(f"{_command_of(identifier)}-*"))
        names = ", ".join(sorted({file.parent.name for file in files}))
        raise UserError(f"{path}: `hybridlab {_command_of(identifier)}` has not written it; known: {names or 'none'}")
    return path


def _command_of(identifier: str) -> str:
    return identifier.partition("-")[0]


def file_of(identifier: str) -> str:
    """The file below RESULTS-DIR with an experiment that a command has written."""
    return f"{identifier}/{_command_of(identifier)}.yaml"
