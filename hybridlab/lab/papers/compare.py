"""Arms beside a baseline at equal cost, each at its best rate, over seeds: an experiment that a command writes.

    hybridlab compare vanilla sgt ./mine.yaml --equal flops --sweep lr --seeds 5 --metric loss

It is trained, searched and judged as an experiment file is; see papers/definition.py.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridlab.config.loading import (
    Layer,
    check,
    is_file_name,
    is_preset,
    load_preset,
    load_settings,
    merge,
    named_preset,
    parse_setting,
    preset_name,
)
from hybridlab.config.resolve import data_layer, run_hash, source_settings
from hybridlab.config.schema import Data, RunConfig
from hybridlab.config.yaml_text import KeyPath, NotYaml, parse_yaml, value_at
from hybridlab.errors import RunFailed, UserError, nearest
from hybridlab.files import read_object, user_path, write_json
from hybridlab.lab.papers.cells import cell_runs
from hybridlab.lab.papers.definition import (
    SCALE,
    Definition,
    Metric,
    claim_of,
    common_window,
    metrics_of,
    scaled_column,
)
from hybridlab.lab.papers.experiment import BENCHMARK, Benchmark, BenchmarkModel, Experiment, Scalar
from hybridlab.lab.papers.ids import COMPARISON, TUNING
from hybridlab.lab.papers.plans import flat
from hybridlab.lab.papers.sweep import Swept, edges, left, sweep_of, sweep_runs, swept_cells
from hybridlab.lab.papers.verdicts import is_method, unsaid_differences
from hybridlab.messages import say, titled
from hybridlab.models.ledger.summary import training_flops
from hybridlab.runs.queue import Outcome
from hybridlab.runs.queued_run import check_runs, queued

EQUAL = ("flops", "tokens", "time")
LR = "training.optimizer.lr"
MOST_EXTENSIONS = 3
"""How often a grid is extended by a factor of two, at each end."""
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_GIVEN = {
    "training.steps": "--steps",
    "training.seed": "--seeds",
    "budget": "--equal flops",
    "arch": "the arms",
    "size": "--size",
    "data": "--data",
}
"""Settings that options give, which must be the same for all arms."""


@dataclass(frozen=True)
class CompareRequest:
    """What is asked for. arms: the baseline, then what is compared with it, each as [NAME=]ARCH, a file of settings, or
    several of these with + between. size, data, steps: by default what a file among the arms says. sweep: `lr`, `none`,
    a setting with its grid as KEY=V,V. settings: texts of --set, as KEY=VALUE or ARM:KEY=VALUE."""

    arms: Sequence[str]
    size: str | None = None
    data: Sequence[str] | None = None
    steps: int | None = None
    equal: str = "flops"
    sweep: str = "lr"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seeds: int = 1
    metrics: Sequence[str] = ("loss",)
    settings: Sequence[str] = ()


# ---- the arms ----


@dataclass(frozen=True)
class Arm:
    """arch: the preset. own: the settings beside it, with the presets of size and data that its files name. said: those
    among them that its files say, not the preset of a second architecture."""

    name: str
    arch: str
    own: Layer
    said: Layer

    def named(self, kind: str) -> str | None:
        """The size, data or steps that its files name."""
        if kind == "steps":
            return None if (steps := value_at(self.said.values, ("training", kind))) is None else str(steps)
        return self.own.named[kind].text if kind in self.own.named else None


def arms_of(texts: Sequence[str], shared: Sequence[str] = ()) -> dict[str, Arm]:
    """The arms by name. UserError for fewer than two, for a name that is there twice, and for what cannot be built.
    shared: settings that options give to all of them, so that their files do not decide."""
    arms: dict[str, Arm] = {}
    for text in texts:
        arm = _arm(text, shared)
        if arm.name in arms:
            raise UserError(f"two arms are called {arm.name}; give them names, as in first={texts[0].split('=')[-1]}")
        arms[arm.name] = arm
    if len(arms) < 2:
        raise UserError("compare: give a baseline and an arm beside it, as in `hybridlab compare vanilla sgt`")
    return arms


@dataclass(frozen=True)
class _Part:
    """One of the texts between + of an arm: an architecture, a file of settings, or a file that names one."""

    text: str
    arch: str | None
    preset: Layer
    file: Layer


def _arm(text: str, shared: Sequence[str]) -> Arm:
    before, equals, after = text.partition("=")
    name, what = (before, after) if equals and _NAME.fullmatch(before) else ("", text)
    texts = [what] if user_path(what).is_file() else what.split("+")
    if not all(texts):
        raise UserError(f"{text!r} names no architecture; write an arm as [NAME=]ARCH, as ./mine.yaml or as ARCH+ARCH")
    name = name or "+".join(map(preset_name, texts))
    if not _NAME.fullmatch(name) or name == BENCHMARK:
        raise UserError(
            f"{text}: {name!r} cannot name an arm; write a name of letters and digits before it, as in a={what}"
        )
    parts = [_part(written) for written in texts]
    for part, other in itertools.combinations(parts, 2):
        _refuse_conflict(text, part, other)
    first = next((part for part in parts if part.arch is not None), None)
    settings = merge(*(layer for part in parts for layer in (*([] if part is first else [part.preset]), part.file)))
    said = merge(*(part.file for part in parts))
    return Arm(name, "vanilla" if first is None else str(first.arch), _without_given(settings, shared), said)


def _part(text: str) -> _Part:
    if not is_file_name(text):
        return _Part(text, text, load_preset("arch", text, "arm"), Layer())
    file = load_settings(user_path(text))
    arch = named_preset("arch", None, file)
    arch = str(user_path(arch).absolute()) if arch is not None and is_file_name(arch) else arch
    choices = {kind: choice for kind, choice in file.named.items() if kind != "arch"}
    return _Part(text, arch, Layer() if arch is None else load_preset("arch", arch), replace(file, named=choices))


def _refuse_conflict(text: str, part: _Part, other: _Part) -> None:
    """UserError where two parts of a mixture set the same: a run has one map, one controller and one plan."""
    ours, theirs = (flat(merge(side.preset, side.file).values) for side in (part, other))
    for key in sorted(ours.keys() & theirs.keys()):
        if ours[key] != theirs[key]:
            raise UserError(
                f"{text}: {part.text} and {other.text} both set {key} ({ours[key]}, {theirs[key]}), of which a run has "
                "one; write what you mean into a file of settings, and give that as the arm"
            )


def _without_given(layer: Layer, shared: Sequence[str]) -> Layer:
    """The settings of an arm without those that options give to all arms; its steps are those of all arms too."""
    values = layer.values
    for key in ("training.seed", "budget", "training.steps", *shared):
        if value_at(values, path := tuple(key.split("."))) is not None:
            if key != "training.steps" or key in shared:
                say(f"{layer.origin(path)}: {key} is not used, since {_GIVEN.get(key, '--sweep')} gives it to all arms")
            values = _without(values, *path)
    return replace(layer, values=values)


def _without(values: dict[str, Any], name: str, *inside: str) -> dict[str, Any]:
    """The settings without the one at a path, and without what is empty then."""
    left = {key: value for key, value in values.items() if key != name}
    inner = _without(values[name], *inside) if inside else {}
    return {**left, name: inner} if inner else left


# ---- the options ----


def _search_of(text: str) -> tuple[str | None, list[Scalar]]:
    """The setting that is searched, None without a search; and its grid, empty for one that is made."""
    key, equals, values = text.partition("=")
    setting = LR if key == "lr" else key
    if text == "none":
        return None, []
    if setting in _GIVEN or setting.split(".")[0] in ("runtime", "evaluation", *_GIVEN):
        raise UserError(f"--sweep {text}: {key} is the same for all arms; sweep another setting, or none")
    if not equals:
        if setting == LR:
            return LR, []
        raise UserError(f"--sweep {text}: write KEY=VALUE,VALUE,… with a grid; only lr has one of its own")
    try:
        grid = [parse_yaml(value)[0] for value in values.split(",")]
    except NotYaml as problem:
        raise UserError(f"--sweep {text}: a value cannot be read; {problem}") from None
    if len(grid) < 2 or len(set(map(repr, grid))) < len(grid) or not all(isinstance(value, Scalar) for value in grid):
        raise UserError(f"--sweep {text}: write two or more different values with commas between them")
    return setting, grid


def _settings_of(texts: Sequence[str], arms: Mapping[str, Arm], swept: str | None) -> dict[str, list[Layer]]:
    """Arm → the settings that --set gives it, "" for all arms."""
    layers: dict[str, list[Layer]] = {name: [] for name in ("", *arms)}
    for text in texts:
        key, equals, value = text.partition("=")
        arm, colon, setting = key.rpartition(":")
        if colon and arm not in arms:
            raise UserError(f"--set {text}: there is no arm {arm!r}; {nearest(arm, list(arms))}")
        layer = parse_setting(f"{setting}={value}" if equals else setting)
        for name, option in (*_GIVEN.items(), (swept, "--sweep")):
            if any(key == name or key.startswith(f"{name}.") and name != "data" for key in flat(layer.values)):
                way = "add --sweep none to set it" if name == swept else f"use {option} instead of --set"
                raise UserError(f"--set {text}: {option} gives {name} to all arms; {way}")
        layers[arm].append(replace(layer, origins=dict.fromkeys(layer.origins, f"--set {text}")))
    return layers


def _one_for_all(kind: str, option: str | None, arms: Iterable[Arm]) -> str | None:
    """The size, data or steps of all arms: of the option, else what their files name."""
    choices = list(dict.fromkeys(choice for arm in arms if (choice := arm.named(kind)) is not None))
    if option is None and len(choices) > 1:
        raise UserError(f"the arms name {kind} {' and '.join(choices)}; give one for all, as in --{kind} {choices[0]}")
    return option or (choices[0] if choices else None)


# ---- the experiment ----


def defined(request: CompareRequest, results_dir: Path, measuring: bool = True) -> Definition:
    """The experiment that is asked for, without what a search chooses. measuring: with equal time, measure the steps of
    each arm where that has not been done for the same question."""
    if request.equal not in EQUAL:
        raise UserError(f"--equal {request.equal}: write {', '.join(EQUAL[:-1])} or {EQUAL[-1]}")
    metrics, (searched, grid) = metrics_of(request.metrics), _search_of(request.sweep)
    shared = [*([] if request.steps is None else ["training.steps"]), *([] if searched is None else [searched])]
    arms = arms_of(request.arms, shared)
    definition = _of_arms(request, arms, metrics, searched)
    configs = {name: _config(definition.experiment, name, request.seeds[0]) for name in arms}
    base = configs[next(iter(arms))]
    _check(definition.experiment, configs)
    _check_cost(request.equal, searched, configs)
    if (window := common_window(metrics, configs)) is not None:
        definition = _overridden(definition, dict.fromkeys(configs, {"evaluation": {"task_window": window}}))
    definition = _at_equal_cost(definition, request, configs)
    if searched is not None:
        rate = base.training.optimizer.lr
        definition = _with_search(definition, request, metrics, searched, grid or [rate / 2, rate, rate * 2])
    definition = definition.changed(columns=_columns(definition.content, base, metrics))
    definition = definition.changed(id=COMPARISON + _digest(definition.content, request.equal))
    return _at_equal_time(definition, results_dir, measuring) if request.equal == "time" else definition


def _digest(content: Mapping[str, Any], equal: str) -> str:
    """Eight hexadecimal digits that identify a question. More seeds are the same question, and a change of its plan."""
    scale = {name: part for name, part in content["scales"][SCALE].items() if name not in ("machine", "seeds")}
    tests = [claim["test"] for claim in content["claims"]]
    question = [content["cells"], scale, tests, content.get("sweep"), equal]
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:8]


def _of_arms(
    request: CompareRequest, arms: Mapping[str, Arm], metrics: Sequence[Metric], searched: str | None
) -> Definition:
    """The arms with their settings, and what is claimed of them."""
    sets = _settings_of(request.settings, arms, searched)
    size = _one_for_all("size", request.size, arms.values()) or "tiny"
    data, sources = _data_of(request.data or [_one_for_all("data", None, arms.values()) or "embedded"])
    steps = _one_for_all("steps", None if request.steps is None else str(request.steps), arms.values())
    training = {} if steps is None else parse_setting(f"training.steps={steps}").values
    # What all arms get stands beneath what a file says, unless that sets the same.
    overrides = {
        name: [layer for layer in sets[""] if flat(layer.values).keys() & flat(arm.own.values).keys()] + sets[name]
        for name, arm in arms.items()
    }
    layers: dict[KeyPath, Layer] = {("scales", SCALE, "config"): merge(Layer(sources), *sets[""])}
    for name, arm in arms.items():
        layers |= {("cells", name, "config"): arm.own, ("scales", SCALE, "overrides", name): merge(*overrides[name])}
    origins: dict[KeyPath, str] = {(): "compare"}
    for place, layer in layers.items():
        origins |= {(*place, *path): origin for path, origin in layer.origins.items() if path}
    scale = {
        "machine": f"{preset_name(size)} on {data}",
        "size": str(user_path(size).absolute()) if is_file_name(size) else size,
        "data": data,
        "seeds": list(request.seeds),
        "phases": {"train": training},
        "config": layers["scales", SCALE, "config"].values,
        "overrides": {name: layers["scales", SCALE, "overrides", name].values for name in arms},
    }
    differ = {key for name, arm in arms.items() for key in flat(merge(arm.said, *sets[name]).values)}
    baseline, *others = arms
    claims = [claim_of(name, baseline, metric) for name, metric in itertools.product(others, metrics)]
    content = {
        "id": "compare",
        "title": f"{', '.join(others)} against {baseline}, at equal {_IN_WORDS[request.equal]}",
        "paper": "own",
        "source": "hybridlab compare",
        "differ_in": sorted(
            key for key in differ | {_OF_LOOPS} if not is_method(key) and key.split(".")[0] not in _SAME
        ),
        "reference": baseline,
        "correction": "page",
        "columns": [],
        "rows": [{"name": name, "short": name, "cell": name} for name in arms],
        "cells": {name: {"arch": arm.arch, "phase": "train", "config": arm.own.values} for name, arm in arms.items()},
        "scales": {SCALE: scale},
        "claims": claims,
        "notes": [f"Holm's correction goes over all {len(claims)} comparisons."] if claims[1:] else [],
    }
    return Definition(content, origins)


def _config(experiment: Experiment, arm: str, seed: int) -> RunConfig:
    """The configuration of an arm; an error names it."""
    try:
        *_, run = cell_runs(experiment, SCALE, seed, [arm])
    except UserError as error:
        raise UserError(f"{arm}: {error}") from None
    return run.trained


_IN_WORDS = {"flops": "FLOPs", "tokens": "tokens", "time": "time"}
_OF_LOOPS = "shape.layers"
"""What an architecture with a loop divides the layers of the size into, which is its method."""
_SAME = ("data", "evaluation")
"""Parts in which arms do not differ because a file sets them."""


def _data_of(texts: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Data as a scale names them, and as settings where they are a mixture; paths are absolute."""
    if len(texts) == 1 and is_preset("data", texts[0]):
        return texts[0], {}
    data = check(Data, data_layer(list(texts)).part(("data",), source_settings(list(texts))))
    if data.source is not None:
        return data.source, {}
    sources = [source.model_dump(mode="json", exclude_none=True) for source in data.sources or ()]
    return "embedded", {"data": {"sources": sources}}


def _check(experiment: Experiment, configs: Mapping[str, RunConfig]) -> None:
    """UserError for arms that cannot be compared."""
    for name, config in configs.items():
        if config.controller is not None and config.controller.learns_masks:
            raise UserError(
                f"{name}: it learns masks of a trained model, and the run that uses them is another one; learn them "
                "with `hybridlab learn-masks`, and give a file with `map: {kind: explicit, …}` as the arm"
            )
    settings = {name: flat(config.model_dump(mode="json")) for name, config in configs.items()}
    differing, same, meant = [], [], []
    for name, values in unsaid_differences(list(configs), settings, experiment.differ_in):
        arm, value = next((arm, value) for arm, value in values.items() if value != next(iter(values.values())))
        differing.append(f"{name} ({', '.join(f'{arm}: {value}' for arm, value in values.items())})")
        same.append(f"--set {name}=VALUE")
        meant += [] if name.split(".")[0] in _SAME else [f"--set {arm}:{name}={json.dumps(value)}"]
    if differing:
        also = f", or say that this is meant with {' '.join(meant)}" if len(meant) == len(differing) else ""
        raise UserError(f"the arms differ in {' and '.join(differing)}; give all the same with {' '.join(same)}{also}")
    first: dict[str, str] = {}
    for name, config in configs.items():
        if (other := first.setdefault(run_hash(config), name)) != name:
            say(f"{name} has the settings of {other}: their runs are the same, and nothing is decided between them")


def _overridden(definition: Definition, settings: Mapping[str, dict[str, Any]]) -> Definition:
    """With further settings of each arm."""
    overrides = definition.scale["overrides"]
    more = {arm: merge(Layer(overrides[arm]), Layer(more)).values for arm, more in settings.items()}
    return definition.rescaled(overrides={**overrides, **more})


# ---- equal cost ----


def _check_cost(equal: str, searched: str | None, configs: Mapping[str, RunConfig]) -> None:
    """UserError for what cannot be made equal: a searched setting that changes what a step costs, and, where steps are
    measured, steps of different rows."""
    of_rates = searched is None or searched.startswith(_OF_RATES) and searched != _OPTIMIZER
    other = {"time": not of_rates, "tokens": searched == _TOKENS}
    if other.get(equal, False):
        raise UserError(
            f"--sweep {searched}: the {_IN_WORDS[equal]} of a step may differ between its values; use --equal flops"
        )
    rows = {name: (*_rows_of(config), config.training.tokens_per_step) for name, config in configs.items()}
    if equal == "time" and len({*rows.values()}) > 1:
        texts = ", ".join(f"{name}: {row[0]} of {row[1]} tokens, {row[2]} in a step" for name, row in rows.items())
        raise UserError(f"--equal time: the arms have other rows ({texts}); give all the same, or use --equal flops")


def _rows_of(config: RunConfig) -> tuple[int, int]:
    """How many rows go through the model at once, and how long they are."""
    return config.runtime.micro_batch_rows or config.training.rows, config.training.seq_len


_OF_RATES = ("training.optimizer.", "training.schedule.", "training.clip")
"""Settings that do not change how long a step takes begin so, but for the optimizer itself."""
_OPTIMIZER = "training.optimizer.kind"
_TOKENS = "training.tokens_per_step"


def _at_equal_cost(definition: Definition, request: CompareRequest, configs: Mapping[str, RunConfig]) -> Definition:
    """With the steps of the baseline, as many as see its tokens, or the budget of its FLOPs."""
    name = definition.content["reference"]
    training, spent = configs[name].training, training_flops(configs[name], "executed")
    tokens = training.steps * training.tokens_per_step
    phase: dict[str, Any] = {"training": {"steps": training.steps}}
    machine = f"{definition.scale['machine']}, {training.steps:,} steps of {name}"
    steps, note = ["training.steps", "training.schedule.warmup_steps"], ""
    if request.equal == "tokens":
        each = {arm: max(1, round(tokens / config.training.tokens_per_step)) for arm, config in configs.items()}
        other = {arm: {"training": {"steps": count}} for arm, count in each.items() if count != training.steps}
        definition, steps = _overridden(definition, other) if other else definition, steps if other else []
        totals = {arm: each[arm] * config.training.tokens_per_step for arm, config in configs.items()}
        note = f"Every arm sees the same {tokens:,} tokens in the same order."
        if {*totals.values()} != {tokens}:
            note = f"Tokens, in whole steps: {', '.join(f'{arm} {count:,}' for arm, count in totals.items())}."
    if request.equal == "flops":
        phase |= {"budget": {"flops": spent}}
        note = (
            f"Every arm has the steps that take {spent:.4g} training FLOPs of {name} with {training.steps:,} steps, "
            "by the ledger (convention executed: all pairs of tokens, also where a kernel leaves some out)."
        )
    definition = definition.rescaled(machine=machine, phases={"train": phase})
    notes = [*definition.content["notes"], *([note] if note else [])]
    return definition.changed(differ_in=[*definition.content["differ_in"], *steps], notes=notes)


def _at_equal_time(definition: Definition, results_dir: Path, measuring: bool) -> Definition:
    """With as many steps for each arm as the measured time of a step allows. The measurement is kept, so that the same
    command goes on with the same runs."""
    path = definition.folder(results_dir) / "seconds.json"
    if not path.is_file():
        if not measuring:
            say("the steps of the other arms are measured before the first run; here they are those of the baseline")
            return definition
        write_json(path, _measured(definition.experiment))
    record = read_object(path, "measurement of steps", ("machine", "seconds"), "remove it")
    seconds, name = record["seconds"], definition.content["reference"]
    steps = definition.scale["phases"]["train"]["training"]["steps"]
    each = {arm: max(1, round(steps * seconds[name] / time)) for arm, time in seconds.items()}
    times = ", ".join(f"{arm} {time * 1000:.1f} ms × {each[arm]:,}" for arm, time in seconds.items())
    note = f"Every arm has the time of {name} with {steps:,} steps. Measured in turns on {record['machine']}: {times}."
    definition = _overridden(definition, {arm: {"training": {"steps": count}} for arm, count in each.items()})
    return definition.changed(notes=[*definition.content["notes"], note])


def _measured(experiment: Experiment) -> dict[str, Any]:
    """The median seconds of a training step of each arm, over rounds in which the arms take turns."""
    from hybridlab.lab.papers.speed import measure_speeds
    from hybridlab.training.machine import describe_machine, pick_device, using_threads

    spec = experiment.at(SCALE)
    base = _config(experiment, next(iter(experiment.cells)), spec.seeds[0])
    models = {}
    for name, cell in experiment.cells.items():
        config = merge(*map(Layer, experiment.settings_of(SCALE, name, cell))).values
        models[name] = BenchmarkModel(arch=str(cell.arch), config=config, compiled=bool(base.runtime.compile))
    size, (rows, length) = str(spec.size), _rows_of(base)
    bench = Benchmark(
        kind="training",
        models=models,
        sizes={SCALE: {size: size}},
        batches=[rows],
        prompt=length,
        new_tokens=_STEPS,
        rounds=_ROUNDS,
        machines={},
    )
    device = pick_device(base.runtime.device)
    with using_threads(base.runtime.threads or 1), titled("time of a step"):
        speeds = measure_speeds(bench, size, device)
    about = describe_machine(device)
    seconds = {name: statistics.median(of[str(rows)]["run"].seconds) for name, of in speeds.items()}
    return {"machine": f"{about['name']} ({about['device']})", "seconds": seconds}


_STEPS, _ROUNDS = 4, 7
"""Of a measurement: steps of each arm in a round, and rounds."""


# ---- the search ----


def _with_search(
    definition: Definition, request: CompareRequest, metrics: Sequence[Metric], setting: str, grid: list[Scalar]
) -> Definition:
    last = TUNING + request.tuning_seeds
    sweep = {
        "setting": setting,
        "grid": grid,
        "seed": TUNING,
        **({"further_seeds": list(range(TUNING + 1, last))} if request.tuning_seeds > 1 else {}),
        "scale": SCALE,
        "cells": list(definition.content["cells"]),
        "metrics": [metric.path for metric in metrics],
        "better": {metric.path: metric.better for metric in metrics},
    }
    origins = {**definition.origins, ("sweep",): f"--sweep {request.sweep}"}
    return replace(definition.changed(sweep=sweep), origins=origins, grid=grid)


def tuned(
    definition: Definition, runs_dir: Path, results_dir: Path, train: Callable[[Experiment], Outcome]
) -> tuple[Definition, Outcome]:
    """The experiment with what the records of its search chose, once all of them are there. While the best value of an
    arm lies at an end of the grid, the grid is extended there, for all arms. train: trains what is missing."""
    outcome = Outcome()
    while definition.experiment.sweep is not None:
        sweep = definition.experiment.sweep
        outcome = train(definition.experiment)
        if outcome.left or outcome.failed or left(sweep_runs(definition.experiment, sweep), results_dir):
            break
        cells = swept_cells(definition.experiment, sweep, results_dir)
        if (wider := _extended(definition, cells, runs_dir)) is not None:
            definition = wider
            grid = ", ".join(map(str, definition.content["sweep"]["grid"]))
            say(f"the best {sweep.setting} of an arm lies at an end of the grid, which is now {grid}")
            continue
        chosen: dict[str, dict[str, Scalar]] = {}
        for case in cells:
            if case.best is None:
                what = f"{case.metric} was not measured" if not all(t.diverged for t in case.values) else "all diverged"
                raise RunFailed(f"the search for {sweep.setting} of {case.cell} found nothing: {what}")
            chosen.setdefault(case.metric, {})[case.cell] = case.best
        return definition.changed(sweep={**definition.content["sweep"], "chosen": chosen}), outcome
    return definition, outcome


def _extended(definition: Definition, cells: Sequence[Swept], runs_dir: Path) -> Definition | None:
    """With a value more at each end of the grid where the best one of an arm lies; None where there is nothing to add:
    after MOST_EXTENSIONS, and beyond what the setting can be, for itself or with these data."""
    grid = definition.content["sweep"]["grid"]
    best = {swept.best for swept in cells if swept.at_edge}
    ends = [(min(grid), 0.5), (max(grid), 2)] if edges(grid) else []
    for end, factor in ends:
        beyond = sum(value < min(definition.grid) if factor < 1 else value > max(definition.grid) for value in grid)
        value = end * factor
        value = int(value) if isinstance(end, int) and value == int(value) else value
        if end in best and beyond < MOST_EXTENSIONS:
            sweep = definition.content["sweep"]
            wider = definition.changed(sweep={**sweep, "grid": sorted([*sweep["grid"], value])})
            with suppress(UserError):
                runs = sweep_runs(wider.experiment, sweep_of(wider.experiment, SCALE))
                check_runs(queued(runs, runs_dir).values(), prepare=False)
                definition = wider
    return definition if definition.content["sweep"]["grid"] != grid else None


# ---- columns ----


def _columns(content: Mapping[str, Any], base: RunConfig, metrics: Sequence[Metric]) -> list[dict[str, Any]]:
    """Of each metric its numbers; FLOPs and steps, of each metric if the search can change them; the chosen values."""
    sweep = content.get("sweep")
    rates: list[Scalar] = [base.training.optimizer.lr]
    setting, grid = (LR, rates) if sweep is None else (sweep["setting"], sweep["grid"])
    first: dict[str, dict[str, str]] = {"": {}}
    each = {f" for {metric.name}": {"at_rate_of": metric.path} for metric in metrics}
    each = each if sweep is not None and len(metrics) > 1 else first
    columns = [metric.column for metric in metrics]
    for runs, of in (first if setting.startswith(_OF_RATES) else each).items():
        columns.append(scaled_column(f"FLOPs{runs}", "flops", training_flops(base, "executed")) | of)
        steps = {"name": f"steps taken{runs}", "title": f"steps{runs}", "metric": "steps"}
        columns.append({**steps, "kind": "exact", "digits": 0, "bare": True, **of})
    # Words are in the notes alone.
    for runs, of in each.items() if edges(grid) else ():
        columns.append(scaled_column(f"{setting.rpartition('.')[2]}{runs}", f"config.{setting}", float(min(grid))) | of)
    return columns
