"""Training and evaluation from Python, as `hybridlab pretrain` and `hybridlab eval` do on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from hybridlab.arguments import checked, plain
from hybridlab.config.loading import Layer, given_of, merge, options_layer
from hybridlab.config.resolve import unversioned_items
from hybridlab.config.schema import RunConfig
from hybridlab.data.tokenizers import make_tokenizer, require_fitting, tokenizer_file
from hybridlab.errors import UserError
from hybridlab.evaluation.lm_eval_options import Options, parse_gen_kwargs
from hybridlab.evaluation.results import Results
from hybridlab.files import user_path
from hybridlab.messages import aloud
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import load_checkpoint
from hybridlab.runs.benchmarks import BATCH, BenchmarkRequest, Benchmarks, benchmark_model, benchmark_run
from hybridlab.runs.compose import Request, compose, task_layer
from hybridlab.runs.evaluate import evaluate_model, evaluate_run
from hybridlab.runs.record import Record
from hybridlab.runs.run import train_run
from hybridlab.training.engine import Hook
from hybridlab.training.store.folders import Label, RunFolder, Runs


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: what `hybridlab.train` returns.

    path: its folder. record: everything that was measured, with the configuration, the machine and the history of the
    loss; the content of `record.json`.

        run = hybridlab.train("vanilla", steps=100)
        run.results.validation.loss.value   # nats per token
        run.model().generate(tokens, max_new_tokens=5)
    """

    path: Path
    record: Record

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits that identify the run; commands and `start=` take the first of them."""
        return self.record.hash

    @property
    def results(self) -> Results:
        """What was measured at the end: loss (nats per token), tasks, probes; with standard errors and n."""
        assert self.record.results is not None, "a finished run has results"
        return self.record.results

    @property
    def config(self) -> RunConfig:
        """The complete configuration. UserError if a plug-in that it names is not loaded."""
        return RunFolder(self.path).config()

    def model(self, kernel: str = "auto") -> Transformer:
        """The final model, in fp32 on the CPU; a new one in every call. UserError if its files are damaged."""
        return load_checkpoint(self.path, kernel)


@aloud
@checked
def train(
    arch: str = "vanilla",
    *,
    size: str | None = None,
    data: str | list[str] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook] = (),
    start: str | Path | TrainedRun | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    run_dir: str | Path | None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> TrainedRun:
    """Train a model, as `hybridlab pretrain` does with the same options. An unfinished run is resumed, a finished one
    is returned at once.

    arch, size, data: presets, or the path of a file, or a data source (several as a list of `SOURCE@WEIGHT`); the size
    is `tiny` or that of `start`. steps: optimizer steps. seed: of weights, data order and all random numbers. settings:
    any others, with nested or dotted names: `{"training.optimizer.lr": 1e-3}`. hooks: your own `Hook` objects; their
    names and versions are part of the run's hash. start: a run to start from (its folder, the start of its hash, or a
    `TrainedRun`), or a folder in the Hugging Face layout or of `hybridlab.save`. name, tags: what to call the run.
    run_dir: the run's folder, by default RUNS-DIR/HASH. runs_dir: where runs and prepared text are. quiet: print
    nothing; otherwise progress goes to standard error.

    UserError for a mistake in the arguments; RunFailed if the loss is not finite; Interrupted after Ctrl-C or SIGTERM,
    once a checkpoint is written.

        run = hybridlab.train("rule-swa", data="recall", steps=300, settings={"window": 16, "map.rho": 0.25})
        print(run.results.validation.perplexity.value, run.path)
    """
    written = Layer(nested(settings or {}), {(): "settings"}, asked=True)
    if "hooks" in written.values and hooks:
        raise UserError("hooks: they are given twice, as `hooks` and in the settings; give them in one place")
    described = ("hooks=", [_described(hook) for hook in hooks] or None)
    options = options_layer({"training.steps": ("steps=", steps), "training.seed": ("seed=", seed), "hooks": described})
    runs = Runs(user_path(runs_dir))
    reference = None if start is None else _reference(start)
    if data is not None:
        _require_no(written, "data=", "data", "source", "sources")
    if start is not None:
        _require_no(written, "start=", "init", "run")
    request = Request(arch=arch, size=size, data=data, start=reference, options=_under(written, options))
    config = compose(request, runs)
    if config.controller is not None and config.controller.learns_masks and config.init is None:
        raise UserError(f"train: {arch} learns the masks of a trained model; give that run as start=")
    if unknown := unversioned_items(config):
        raise UserError(
            f"train: {unknown[0]} was registered outside a plug-in, so that a change of it would go unnoticed; move it "
            "into a file of its own and load that with hybridlab.load_plugin('FILE.py')"
        )
    return _trained(config, runs, run_dir, f"train {arch}", Label(name, tuple(tags)), hooks)


@aloud
@checked
def finetune(
    run: str | Path | TrainedRun,
    task: str,
    *,
    data: str | Path | None = None,
    validation: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    lr: float | None = None,
    lora_rank: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook] = (),
    name: str | None = None,
    tags: Sequence[str] = (),
    run_dir: str | Path | None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> TrainedRun:
    """Train a trained model on a task with labels, with a new output head, or on the answers in chats, as `hybridlab
    finetune` does; with its weights, plan and attention map. An unfinished run is resumed, a finished one is returned
    at once.

    run: the run to start from (its folder, name, the start of its hash, or a `TrainedRun`), or a folder in the Hugging
    Face layout or of `hybridlab.save`.
    task: sst2, cola, mrpc, rte, qnli, qqp, mnli, stsb, wnli, squad, race, race-middle, hellaswag, boolq, or sft for
    chats. data, validation: files of the task to train on and to measure with; by default those of the Hugging Face
    hub, and a share of `data`. epochs or steps: how long. lr: peak learning rate. lora_rank: train only adapters of
    this rank (LoRA) and a new head. seed: of the new head, of adapters and of the order of the examples. settings,
    hooks, name, tags, run_dir, runs_dir, quiet: as for `train`. UserError for a mistake in the arguments or the files;
    RunFailed if the loss is not finite.

        tuned = hybridlab.finetune("runs/first", "sst2", data="train.tsv", validation="dev.tsv", epochs=3)
        tuned.results.finetune.metrics["accuracy"].value, tuned.results.finetune.baseline["accuracy"].value
    """
    written = Layer(nested(settings or {}), {(): "settings"}, asked=True)
    options = task_layer(task, data, validation, epochs, steps, lr, seed, lora_rank)
    hook_layer = options_layer({"hooks": ("hooks=", [_described(hook) for hook in hooks] or None)})
    runs = Runs(user_path(runs_dir))
    _require_no(written, "run=", "init", "run")
    request = Request(start=_reference(run), options=_under(written, options, hook_layer), keep_map=True, task=task)
    config = compose(request, runs)
    return _trained(config, runs, run_dir, f"finetune {task}", Label(name, tuple(tags)), hooks)


def _trained(
    config: RunConfig, runs: Runs, run_dir: str | Path | None, title: str, label: Label, hooks: Sequence[Hook]
) -> TrainedRun:
    path = None if run_dir is None else user_path(run_dir)
    folder = None if path is None else RunFolder(path)
    record = train_run(config, folder, runs, title, label, hooks)
    return TrainedRun(path or runs.directory / record.hash, record)


@overload
def evaluate(
    run_or_model: str | Path | TrainedRun | Transformer,
    data: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    seq_len: int | None = None,
    tasks: None = None,
    suite: None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> Results: ...


@overload
def evaluate(
    run_or_model: str | Path | TrainedRun | Transformer,
    *,
    tokenizer: str | None = None,
    seq_len: int | None = None,
    tasks: Sequence[str] | None = None,
    suite: str | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int | Literal["auto"] = BATCH,
    data_root: str | Path | None = None,
    skip_bad_lines: bool = False,
    include_path: str | Path | None = None,
    gen_kwargs: Mapping[str, Any] | None = None,
    apply_chat_template: bool = False,
    system_instruction: str | None = None,
    output_path: str | Path | None = None,
    log_samples: bool = False,
    replace: bool = False,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> Benchmarks: ...


@aloud
@checked
def evaluate(
    run_or_model: str | Path | TrainedRun | Transformer,
    data: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    seq_len: int | None = None,
    tasks: Sequence[str] | None = None,
    suite: str | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int | Literal["auto"] = BATCH,
    data_root: str | Path | None = None,
    skip_bad_lines: bool = False,
    include_path: str | Path | None = None,
    gen_kwargs: Mapping[str, Any] | None = None,
    apply_chat_template: bool = False,
    system_instruction: str | None = None,
    output_path: str | Path | None = None,
    log_samples: bool = False,
    replace: bool = False,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> Results | Benchmarks:
    """Loss (nats per token), perplexity and tasks of a trained model, after a test that no output depends on later
    tokens. Every number has its standard error and n.

    run_or_model: a finished run (a `TrainedRun`, its name, its folder, or the start of its hash), or a model. data:
    other text than the run's own, as a data source or preset. settings: changes of the run's `evaluation`, `data` and
    `runtime`. A model does not know its text: it needs `data`, `seq_len` (tokens in a sequence), and `tokenizer`
    (`byte`, `file:PATH`, …) unless the data are prepared shards. runs_dir: where runs and prepared text are. quiet:
    print nothing. UserError for anything that does not fit.

    tasks, suite: instead of text, tasks of lm-eval by name or a paper's benchmarks; then it returns `Benchmarks`, and
    of a finished run the record has them, too. num_fewshot: solved examples before each question. limit: only so many
    questions of each task. batch_size: rows at once, or `auto`. data_root: the folder of the tasks' files, without
    which the Hugging Face hub is asked. skip_bad_lines: leave out and count broken lines of these files. include_path,
    gen_kwargs, apply_chat_template, system_instruction, output_path, log_samples: as of the command (docs/evaluate.md).
    replace: also replace results in the record that have more questions. seq_len: tokens of a row at most, here also of
    a run; longer rows lose their beginning. tokenizer: of a model, `file:PATH`.

        hybridlab.evaluate("runs/first", data="text:book.txt").validation.perplexity.value
        hybridlab.evaluate(hybridlab.load_hf("folder"), "text:book.txt", tokenizer="file:folder", seq_len=512)
        found = hybridlab.evaluate("runs/first", tasks=["arc_easy", "piqa"], num_fewshot=5, data_root="benchmarks")
        found.results["arc_easy@5"].metrics["acc"].value
    """
    runs, batch = Runs(user_path(runs_dir)), None if batch_size == BATCH else batch_size
    rows = {"num_fewshot": num_fewshot, "limit": limit, "batch_size": batch, "data_root": data_root}
    prompts = {"include_path": include_path, "gen_kwargs": gen_kwargs, "apply_chat_template": apply_chat_template}
    files = {"output_path": output_path, "log_samples": log_samples, "skip_bad_lines": skip_bad_lines}
    if tasks is None and suite is None:
        _refuse(
            {**rows, **prompts, "system_instruction": system_instruction, **files, "replace": replace},
            "without tasks= or suite=",
        )
        return _on_text(run_or_model, data, settings, tokenizer, seq_len, runs)
    _refuse({"data": data, "settings": settings}, "on tasks= and suite=")
    include, root, out = (None if path is None else user_path(path) for path in (include_path, data_root, output_path))
    options = Options(include, parse_gen_kwargs(gen_kwargs), apply_chat_template, system_instruction, out, log_samples)
    numbers = (num_fewshot, limit, batch_size, seq_len)
    request = BenchmarkRequest(tuple(tasks or ()), suite, *numbers, root, skip_bad_lines, None, replace, options)
    if isinstance(run_or_model, Transformer):
        _refuse({"replace": replace}, "on a model, which has no record")
        _refuse({"apply_chat_template": apply_chat_template}, "on a model, which has no chat template")
        return _benchmarks_of(run_or_model, tokenizer, request)
    _refuse({"tokenizer": tokenizer}, "on a run, which has its own")
    return benchmark_run(_reference(run_or_model), runs, request)


def _reference(run: str | Path | TrainedRun) -> str:
    return str(run.path if isinstance(run, TrainedRun) else run)


def _on_text(
    run_or_model: str | Path | TrainedRun | Transformer,
    data: str | None,
    settings: Mapping[str, Any] | None,
    tokenizer: str | None,
    seq_len: int | None,
    runs: Runs,
) -> Results:
    """What `evaluate` measures on text."""
    changes = as_texts(nested(settings or {}))
    if isinstance(run_or_model, Transformer):
        if data is None or seq_len is None:
            raise UserError("evaluate: a model needs data= and seq_len=, because only a run knows its own")
        if tokenizer is None and not data.startswith("shards:"):
            raise UserError("evaluate: give the tokenizer of the model, as tokenizer='file:PATH' or 'byte'")
        return evaluate_model(run_or_model, runs, data, tokenizer, seq_len, changes)
    _refuse({"tokenizer": tokenizer, "seq_len": seq_len}, "on a run, which has its own")
    return evaluate_run(_reference(run_or_model), runs, data, changes)


def _refuse(arguments: Mapping[str, Any], where: str) -> None:
    """UserError for an argument of `evaluate` that has been given where it does nothing."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise UserError(f"evaluate: {name}= has no effect {where}; leave it out")


def _benchmarks_of(model: Transformer, tokenizer: str | None, request: BenchmarkRequest) -> Benchmarks:
    """Benchmarks of a model that belongs to no run."""
    if tokenizer is None or request.max_length is None:
        raise UserError(
            "evaluate: a model needs tokenizer= (file:PATH) and seq_len= for tasks, as only a run knows them"
        )
    loaded = make_tokenizer(tokenizer, ())
    require_fitting(loaded, model.shape.vocab, tokenizer)
    return benchmark_model(model, loaded, tokenizer_file(tokenizer), request.max_length, request.checked())


def _described(hook: Hook) -> dict[str, str]:
    """A hook of this program as a setting. UserError if it has no name or version of its own."""
    if not isinstance(hook, Hook):
        raise UserError(f"hooks: {hook!r} is not a Hook; make a subclass of hybridlab.Hook, and pass an object of it")
    for what, missing in (("name", hook.name == Hook.name), ("version", not isinstance(hook.version, str))):
        if missing:
            raise UserError(
                f"hooks: {type(hook).__name__} has no {what}; set one as a text. A run's hash contains name and "
                "version, so change the version whenever the hook would act otherwise"
            )
    return {"kind": "python", "name": hook.name, "version": str(hook.version)}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted names as nested mappings, in plain Python. UserError for one that is given twice."""
    whole: dict[str, Any] = {}
    for name, value in plain(settings).items():
        inner = nested(value) if isinstance(value, Mapping) else value
        for part in reversed(str(name).split(".")):
            inner = {part: inner}
        _add(inner, whole)
    return whole


def _add(settings: dict[str, Any], nested: dict[str, Any], around: str = "") -> None:
    """Add settings to others. UserError for one that is there already."""
    for name, value in settings.items():
        there = nested.get(name)
        if name not in nested:
            nested[name] = value
        elif isinstance(there, dict) and isinstance(value, dict):
            _add(value, there, f"{around}{name}.")
        else:
            raise UserError(f"settings: {around}{name} is given twice; leave one of the two out")


def _under(settings: Layer, *options: Layer) -> Layer:
    """Settings with the arguments of the call over them. UserError for a setting that both give."""
    for path, option in (origin for layer in options for origin in layer.origins.items()):
        value: Any = settings.values
        for part in path:
            value = value.get(part) if isinstance(value, dict) else value
        if value is not None:
            argument = option if option.endswith("=") else f"{option.removeprefix('--').replace('-', '_')}="
            raise UserError(f"settings: {argument} gives {'.'.join(map(str, path))} too; leave one of the two out")
    return merge(settings, *options)


def _require_no(settings: Layer, argument: str, section: str, *names: str) -> None:
    """UserError for a setting of a section that an argument of the call gives too."""
    if (name := given_of(settings, {section: names})) is not None:
        raise UserError(f"settings: {argument} gives {name} too; leave one of the two out")


def as_texts(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as texts like those of `--set`."""
    texts: list[str] = []
    for name, value in settings.items():
        inner = isinstance(value, Mapping) and value
        texts += as_texts(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}={json.dumps(value)}"]
    return texts
