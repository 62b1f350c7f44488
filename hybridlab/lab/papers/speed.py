"""Speed of several models: generation with the cache, forward passes, training; with ratios and errors. A model may be
the same one in transformers.

Weights are random, since speed does not depend on them. Every round runs every architecture once, and the order rotates
from round to round, so that a machine which slows down affects all of them; ratios are computed round by round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.config.schema import RunConfig
from hybridlab.config.structures import final_structure, forecast
from hybridlab.errors import UserError
from hybridlab.lab.papers.experiment import Benchmark, BenchmarkModel, Experiment, benchmark_hash
from hybridlab.messages import say, titled
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Transformer, drawn_weights, make_model
from hybridlab.models.hf_export import form_of, write_hf_folder
from hybridlab.models.ledger.flops import convention_of, ledger
from hybridlab.models.ledger.summary import training_flops
from hybridlab.models.loss import LARGE_VOCABULARY, Targets
from hybridlab.models.taps import Taps
from hybridlab.plan.plan import Plan
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Place, Visit
from hybridlab.runs.hooks import hooks_in_passes
from hybridlab.runs.record import BenchmarkRecord, Speed, record_name, save_record
from hybridlab.statistics import Measurement, paired_ratio
from hybridlab.training.machine import autocast, pick_device, pick_precision, pick_recompute, program_facts
from hybridlab.training.memory import step_memory
from hybridlab.training.optimizer import Optimizers, model_groups
from hybridlab.training.store.results import find

_OF_THE_PROMPT = ("prefill", "passes", "run", "last_step", "step", "forward")
"""Parts whose time is that of all tokens of the prompt."""
_POSITIONS = 32_768
"""The longest sequence that models of transformers are made for."""


def run_benchmark(experiment: Experiment, scale: str, results_dir: Path) -> BenchmarkRecord | None:
    """Measure, and write the record; None if there is no benchmark, or its record exists already."""
    spec = experiment.benchmark
    if spec is None:
        return None
    digest = benchmark_hash(experiment, scale)
    path = find(results_dir, record_name(f"benchmark-{digest}"))
    if path.is_file():
        say(f"{experiment.id}: already measured ({path})")
        return None
    device = pick_device("auto")
    program = program_facts(device)
    results = {}
    precisions: set[str] = set()
    for group, size in spec.sizes[scale].items():
        with titled(f"{experiment.id}, {group}"):
            models = make_models(spec, size, device)
            # Models without one are in bf16, see `_model`.
            precisions |= {getattr(model, "precision", "bf16") for model in models.values()}
            results[group] = measure_speeds(spec, size, device, models)
            del models  # before the next ones are made
    record = BenchmarkRecord(
        status="finished",
        hash=digest,
        benchmark=spec.model_dump(mode="json"),
        **program,
        dtype=", ".join(sorted(precisions)),
        results=results,
    )
    save_record(record, results_dir)
    return record


def make_models(spec: Benchmark, size: str, device: torch.device) -> dict[str, Any]:
    """The models of a benchmark by name, of the type that its kind measures."""
    models: dict[str, Any] = {}
    for name, choice in spec.models.items():
        models[name] = _MEASURES[spec.kind][0](choice, size, device)
        alone(models, name)
    return models


def measure_speeds(
    spec: Benchmark, size: str, device: torch.device, models: dict[str, Any] | None = None
) -> dict[str, dict[str, dict[str, Speed]]]:
    """model → batch → part → speed, with its ratio to the first model. models: see `make_models`."""
    models = models or make_models(spec, size, device)
    names = list(models)

    def measure(name: str, batch: int) -> dict[str, float]:
        return _MEASURES[spec.kind][1](alone(models, name), batch, spec.prompt, spec.new_tokens)

    speeds: dict[str, dict[str, dict[str, Speed]]] = {name: {} for name in names}
    for batch in spec.batches:
        seconds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for name in names:
            say(f"batch {batch}, first time of {name}")
            measure(name, batch)  # all sizes, so that nothing is compiled in a round
        for number in range(spec.rounds):
            rotated = names[number % len(names) :] + names[: number % len(names)]
            for name in rotated:
                seconds[name].append(measure(name, batch))
            say(f"batch {batch}, round {number + 1} of {spec.rounds}")
        tokens = dict.fromkeys(_OF_THE_PROMPT, spec.prompt) | {"decode": spec.new_tokens, "generate": spec.new_tokens}
        for name in names:
            first = seconds[names[0]]
            speeds[name][str(batch)] = {
                # A part that the first model lacks is compared with the whole token of the same model.
                part: speed(
                    [s[part] for s in seconds[name]],
                    [s[part] for s in first] if part in first[0] else [s["token"] for s in seconds[name]],
                    batch * tokens.get(part, 1),
                )
                for part in seconds[name][0]
            }
    return speeds


def alone(models: dict[str, Any], name: str) -> Any:
    """The model of this name; on a GPU those that train wait in the host's memory meanwhile, with what their optimizers
    keep. Models that generate stay: they are small, and graphs that are launched at once hold their addresses."""
    for other in (*(other for other in models if other != name), name):
        if isinstance(model := models[other], _Trainer | _Stages) and model.device.type != "cpu":
            to = model.device if other == name else torch.device("cpu")
            for tensor in _tensors(model):
                tensor.data = tensor.data.to(to)
    return models[name]


def _tensors(model: _Trainer | _Stages) -> Iterator[torch.Tensor]:
    """The weights of a model and what its optimizer keeps of them."""
    for trainer in [trainer for trainer, _ in model.stages] if isinstance(model, _Stages) else [model]:
        yield from (*trainer.model.parameters(), *trainer.model.buffers())
        values = (value for state in trainer.optimizer.state.values() for value in state.values())
        # A counter of steps lies on the host in any case.
        yield from (value for value in values if isinstance(value, torch.Tensor) and value.dim())


def _model(choice: BenchmarkModel, size: str, device: torch.device) -> Transformer:
    config = resolve(choice.arch, size, layers=[Layer(choice.config)])
    structure = final_structure(config)
    model = make_model(structure, config.runtime.kernel)
    model.put(_random_weights(structure))
    return model.to(device, torch.bfloat16).eval()


def _decoding(model: Transformer, batch: int, prompt: int, new_tokens: int) -> dict[str, float]:
    """Seconds for the prompt, and for the greedy tokens that follow it."""
    device = model.device
    cache = KVCache(model.structure, batch, prompt + new_tokens)
    with torch.inference_mode():
        started = _now(device)
        picked = model(_tokens(model.shape.vocab, device, batch, prompt), cache=cache).logits[:, -1:].argmax(-1)
        filled = _now(device)
        for _ in range(new_tokens):
            picked = model(picked, cache=cache).logits[:, -1:].argmax(-1)
        return {"prefill": filled - started, "decode": _now(device) - filled}


def _recursion(model: Transformer, batch: int, length: int, new_tokens: int) -> dict[str, float]:
    """Seconds for a forward pass (prefill), for a forward and a backward pass (passes), and for one token, with (token)
    and without (critical) the loop bodies over chunks. With updates that arrive a chunk later (`shift: parallel`) such
    a body is not needed before the next token and may run in the background, so `critical` is the latency of a token
    (SpiralFormer, appendix E)."""
    device = model.device
    tokens = _tokens(model.shape.vocab, device, batch, length)
    with torch.inference_mode():
        started = _now(device)
        model(tokens)
        prefill = _now(device) - started
    started = _now(device)
    logits = model(tokens).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    passes = _now(device) - started
    model.zero_grad(set_to_none=True)
    chunked = model.plan.chunked
    cache, bodies = KVCache(model.structure, batch, length + new_tokens), _TimedBodies(model.plan, device)
    with torch.inference_mode():
        picked = model(tokens, cache=cache).logits[:, -1:].argmax(-1)
        started = _now(device)
        for _ in range(new_tokens):
            picked = model(picked, cache=cache, taps=bodies if chunked else None).logits[:, -1:].argmax(-1)
        token = (_now(device) - started) / new_tokens
    seconds = {"prefill": prefill, "passes": passes, "token": token}
    return seconds | ({"critical": token - bodies.seconds / new_tokens} if chunked else {})


class _TimedBodies(Taps):
    """Sums the time of the visits in loop bodies over chunks."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.chunked = {(i, t) for i, loop in plan.loops.items() for t, g in enumerate(loop.chunks) if g > 1}

    def run_visit(
        self, place: Place, x: torch.Tensor, visit: Visit, run: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        if place[:2] not in self.chunked:
            return run(x)
        started = _now(self.device)
        out = run(x)
        self.seconds += _now(self.device) - started
        return out


@dataclass(frozen=True)
class _Stages:
    """The structures of a run in order: the trainer of each, and the number of its steps."""

    stages: list[tuple[_Trainer, int]]

    @property
    def device(self) -> torch.device:
        return self.stages[0][0].device

    @property
    def precision(self) -> str:
        return self.stages[0][0].precision


def _stages(choice: BenchmarkModel, size: str, device: torch.device) -> _Stages:
    """What a run trains: one trainer for each of its structures."""
    config = resolve(choice.arch, size, layers=[Layer(choice.config)])
    steps: dict[Structure, int] = {}
    for structure, count in forecast(config):
        steps[structure] = steps.get(structure, 0) + count
    trainers: list[_Trainer] = []
    for structure in reversed(steps):
        trainers.append(_Trainer(choice, structure, config, device, later=trainers[0] if trainers else None))
    return _Stages(list(zip(reversed(trainers), steps.values(), strict=True)))


class _Trainer:
    """A model with its optimizer and the hooks that act in every step, in the precision of runs on this device. Hooks
    act as in the middle of a run. later: a trainer at the last structure of the same run, whose tensors this one uses
    where they have the same names and shapes, so that all stages of a run need no more memory than its last."""

    def __init__(
        self,
        choice: BenchmarkModel,
        structure: Structure,
        config: RunConfig,
        device: torch.device,
        later: _Trainer | None = None,
    ) -> None:
        self.model, self.vocab = _in_form(choice, structure, config, device), structure.shape.vocab
        if later is not None:
            # By every name, since tied tables would come apart if one of their names was left out.
            ours, theirs = (dict(model.named_parameters(remove_duplicate=False)) for model in (self.model, later.model))
            shared = {
                name: tensor for name, tensor in theirs.items() if name in ours and ours[name].shape == tensor.shape
            }
            self.model.load_state_dict(shared, strict=False, assign=True)
        self.device, self.precision = device, pick_precision(config.training.precision, device)
        self.recompute = partial(pick_recompute, config.runtime, device, choice.compiled, width=structure.shape.width)
        # Blocks are compiled for training, and a whole pass without gradients.
        compiled = choice.compiled and choice.form == "hybridlab"
        self.without_gradients = cast(nn.Module, torch.compile(self.model, dynamic=False)) if compiled else self.model
        self.clip, self.step, self.hooks = config.training.clip, config.training.steps // 2, hooks_in_passes(config)
        run = SimpleNamespace(config=config, model=self.model, initial=structure, device=device)
        groups = model_groups(self.model, config.training.optimizer)
        for hook in self.hooks:
            hook.begin(cast(Any, run))
            groups += hook.parameter_groups()
        state = None if later is None else later.optimizer.state
        self.optimizer: Optimizers = Optimizers(groups, state)

    def inputs(self) -> dict[str, Any]:
        return {name: value for hook in self.hooks for name, value in hook.forward_inputs(self.step).items()}

    def seconds(self, batch: int, length: int, steps: int) -> float:
        """The mean time of an optimizer step: forward and backward pass, clipping, update."""
        tokens = _tokens(self.vocab, self.device, batch, length)
        if isinstance(self.model, Transformer):
            self.model.recompute = self.recompute(tokens=batch * length)
        # As a run computes its loss, whose logits of a large vocabulary never exist at once.
        in_chunks = isinstance(self.model, Transformer) and self.vocab >= LARGE_VOCABULARY
        targets = {"targets": _next_tokens(tokens)} if in_chunks else {}
        started = _now(self.device)
        for _ in range(steps):
            with autocast(self.device, self.precision):
                output = self.model(tokens, **self.inputs(), **targets)
            loss = _mean_loss(output, tokens)
            for hook in self.hooks:
                for term in (hook.after_forward(self.step, output, 1.0), hook.penalty(self.step)):
                    loss = loss if term is None else loss + term
            del output
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return (_now(self.device) - started) / steps


def _next_tokens(tokens: torch.Tensor) -> Targets:
    """Each token's next one; the last of a row has none."""
    weights = torch.ones(tokens.shape, device=tokens.device)
    weights[:, -1] = 0
    return Targets(F.pad(tokens[:, 1:], (0, 1)), weights)


def _mean_loss(output: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of a forward pass: the one that it computed, or that of its logits."""
    if (loss := getattr(output, "loss", None)) is not None:
        return cast(torch.Tensor, loss / tokens[:, 1:].numel())
    return F.cross_entropy(output.logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _training(run: _Stages, batch: int, length: int, steps: int) -> dict[str, float]:
    """Seconds of the steps of a whole run (run), on average over its steps, and of a step at its last structure
    (last_step). A round times `steps` steps of every structure, so that all rounds see all of the run. The step before
    them takes memory from the structure that was timed before, which a run does once in thousands of steps; it is not
    timed."""
    seconds = []
    for trainer, count in run.stages:
        trainer.seconds(batch, length, 1)
        seconds.append((trainer.seconds(batch, length, steps), count))
    total = sum(count for _, count in seconds)
    return {"run": sum(mean * count for mean, count in seconds) / total, "last_step": seconds[-1][0]}


def _trainer(choice: BenchmarkModel, size: str, device: torch.device) -> _Trainer:
    config = resolve(choice.arch, size, layers=[Layer(choice.config)])
    return _Trainer(choice, final_structure(config), config, device)


def _passes(trainer: _Trainer, batch: int, length: int, repeats: int) -> dict[str, float]:
    """Seconds of an optimizer step (step) and of a forward pass without gradients (forward), each a mean."""
    step = trainer.seconds(batch, length, repeats)
    tokens = _tokens(trainer.vocab, trainer.device, batch, length)
    with torch.inference_mode(), autocast(trainer.device, trainer.precision):
        started = _now(trainer.device)
        for _ in range(repeats):
            trainer.without_gradients(tokens, **trainer.inputs())
        return {"step": step, "forward": (_now(trainer.device) - started) / repeats}


@lru_cache(maxsize=1)
def _random_weights(structure: Structure) -> dict[str, torch.Tensor]:
    """Drawn once for all forms of a model: it takes ten seconds with 573M parameters."""
    return dict(drawn_weights(make_model(structure), 0))


def _in_form(
    choice: BenchmarkModel,
    structure: Structure,
    config: RunConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A model with the same random weights in whatever form. UserError for one that transformers does not have."""
    model = make_model(structure, config.runtime.kernel)
    model.put(_random_weights(structure))
    if choice.form == "hybridlab":
        model.compiled, model.recompute = choice.compiled, config.runtime.activation_checkpointing or False
        return model.to(device, dtype)
    how = form_of(model)
    if not how.native:
        raise UserError(f"{choice.arch}: transformers has no class for this model, since {how.reason}")
    try:
        import transformers
    except ImportError:
        raise UserError("models of transformers need it; pip install 'hybridlab[open]'") from None
    transformers.logging.disable_progress_bar()
    with TemporaryDirectory() as folder:
        write_hf_folder(Path(folder), model, how, _POSITIONS)
        auto = getattr(transformers, how.auto)
        other: nn.Module = auto.from_pretrained(folder, attn_implementation=choice.form, dtype=dtype)
    other.to(device)
    return cast(nn.Module, torch.compile(other)) if choice.compiled else other


@dataclass(frozen=True)
class _Writer:
    """A model that generates, called as users call it."""

    model: Any
    vocab: int
    device: torch.device
    compiled: bool
    precision: str

    def tokens(self, prompt: torch.Tensor, count: int) -> torch.Tensor:
        """(B, S + count): rows with their likeliest continuations."""
        if isinstance(self.model, Transformer):
            return self.model.generate(prompt, count, compiled=self.compiled).tokens
        settings: dict[str, Any] = {
            "max_new_tokens": count,
            "min_new_tokens": count,
            "do_sample": False,
            "pad_token_id": 0,
        }
        if self.compiled:
            # Its own way to compile: a cache of fixed size, whose steps are one graph.
            from transformers.generation.configuration_utils import CompileConfig

            # On a GPU the default is the mode with CUDA graphs.
            how = CompileConfig() if self.device.type == "cuda" else CompileConfig(mode="default")
            how._compile_all_devices = True  # type: ignore[assignment]
            settings |= {"cache_implementation": "static", "compile_config": how}
        output: torch.Tensor = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        return output


def _writer(choice: BenchmarkModel, size: str, device: torch.device) -> _Writer:
    """On a GPU its weights are in bf16, as texts are generated there."""
    config = resolve(choice.arch, size, layers=[Layer(choice.config)])
    structure, plain = final_structure(config), choice.model_copy(update={"compiled": False})
    precision, dtype = ("bf16", torch.bfloat16) if device.type == "cuda" else ("fp32", torch.float32)
    model = _in_form(plain, structure, config, device, dtype).eval()
    return _Writer(model, structure.shape.vocab, device, choice.compiled, precision)


def _generation(writer: _Writer, batch: int, prompt: int, new_tokens: int) -> dict[str, float]:
    """Seconds of a call that continues prompts."""
    tokens = _tokens(writer.vocab, writer.device, batch, prompt)
    with torch.inference_mode():
        started = _now(writer.device)
        writer.tokens(tokens, new_tokens)
        return {"generate": _now(writer.device) - started}


def same_tokens(writers: Iterable[_Writer], prompt: int, new_tokens: int) -> bool:
    """Whether models generate the same."""
    rows = [writer.tokens(_tokens(writer.vocab, writer.device, 1, prompt), new_tokens).tolist() for writer in writers]
    return all(row == rows[0] for row in rows)


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mkl_linear", "attention")


def share_in_products(kind: str, model: Any, batch: int, prompt: int, new_tokens: int) -> float:
    """The share of a model's time in matrix products and attention kernels."""
    device = model.device
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        _MEASURES[kind][1](model, batch, prompt, new_tokens)
    name = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    calls: list[Any] = []
    kernels: list[Any] = []
    for event in profile.key_averages():
        (calls if event.device_type == torch.autograd.DeviceType.CPU else kernels).append(event)
    # On a GPU a kernel's time stands beside the kernel and again beside the call that launched it.
    total = sum(getattr(event, name) for event in kernels or calls)
    products = [event for event in calls if any(word in event.key.partition("::")[2] for word in _PRODUCTS)]
    return sum(getattr(event, name) for event in products) / total


_MEASURES: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, float]]]] = {
    "decoding": (_model, _decoding),
    "recursion": (_model, _recursion),
    "training": (_stages, _training),
    "passes": (_trainer, _passes),
    "generation": (_writer, _generation),
}
"""Kind → what makes a model to be measured, and what measures it."""


def _tokens(vocab: int, device: torch.device, batch: int, length: int) -> torch.Tensor:
    """Random tokens (B, S), the same for every model of a size."""
    tokens = torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(0))
    return tokens.to(device)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def counted(spec: Benchmark, choice: BenchmarkModel, size: str, device: torch.device) -> dict[str, Any]:
    """What the measured parts cost by count. gigabytes: of an optimizer step at its peak (10⁹ bytes), see
    `step_memory`; None if no step of hybridlab's own is measured. flops: part → FLOPs of the ledger, as executed; of a
    run, the mean over its steps. None for generation."""
    if spec.kind not in ("passes", "training"):
        return {"gigabytes": None, "flops": None}
    (batch,) = spec.batches
    rows = Layer({"training": {"seq_len": spec.prompt, "tokens_per_step": batch * spec.prompt}})
    config = resolve(choice.arch, size, layers=[Layer(choice.config), rows])
    structure = final_structure(config)
    precision = pick_precision(config.training.precision, device)
    rule = convention_of(config.runtime.kernel, device, precision == "bf16")
    cost = ledger(structure, spec.prompt, rule)
    if spec.kind == "training":
        run = training_flops(config, rule) / config.training.steps
        flops = {"run": run, "last_step": cost.training * batch}
    else:
        flops = {"step": cost.training * batch, "forward": cost.forward * batch}
    peak = None
    if choice.form == "hybridlab" and not choice.compiled:
        hooks, on_gpu = hooks_in_passes(config), device.type == "cuda"
        recompute = pick_recompute(config.runtime, device, False, batch * spec.prompt, structure.shape.width)
        memory = step_memory(config, structure, batch, 1, precision, recompute, hooks, gpu=on_gpu)
        peak = round(memory.total / 1e9, 4)
    return {"gigabytes": peak, "flops": flops}


def speed(seconds: list[float], first: list[float], tokens: int) -> Speed:
    """Median tokens per second; the ratios of speeds and of times to the first model, with standard errors."""

    def rounded(ratio: Measurement) -> Measurement:
        value, stderr = (None if x is None else round(x, 4) for x in (ratio.value, ratio.stderr))
        return Measurement(value=value, stderr=stderr, n=ratio.n)

    median = round(tokens / statistics.median(seconds), 2)
    return Speed(
        tokens_per_second=Measurement(value=median, n=len(seconds)),
        ratio=rounded(paired_ratio(first, seconds)),
        time_ratio=rounded(paired_ratio(seconds, first)),
        seconds=[round(value, 5) for value in seconds],
    )
