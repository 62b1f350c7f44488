"""The schema of a run. An unknown field is an error that suggests the nearest known name.

A run's hash covers all fields except `runtime`, whose settings may change when a run is resumed, and the names `arch`
and `size`. Steps are always optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from hybridlab.config.edits import PlanEdit
from hybridlab.config.evaluation import Evaluation
from hybridlab.config.finetune import Finetune, Lora
from hybridlab.config.maps import FullMap, MapConfig
from hybridlab.config.method import ControllerConfig, HookConfig
from hybridlab.config.training import Training
from hybridlab.config.types import Fraction, OrNone, PositiveFloat, PositiveInt, RunName, Strict
from hybridlab.errors import SettingsConflict
from hybridlab.files import user_path
from hybridlab.plan.shape import ObjectiveName, Shape
from hybridlab.plan.visit import is_whole
from hybridlab.plugins import refuse, text_from
from hybridlab.registry import FINETUNE_TASKS, SOURCES, TASKS


class Mix(Strict):
    """Shares of the rows of every batch: text of the corpus, synthetic tasks, and tasks of plug-ins by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Fraction] = Field(init=False)
    text: Fraction = 1.0
    """Share of rows with text of the corpus."""
    retrieval: Fraction = 0.0
    """Share of rows with facts to look up: a key is asked for, its value is the answer."""
    assignment: Fraction = 0.0
    """Share of rows with assignments to variables, one of five values each."""
    chain: Annotated[Fraction | None, OrNone] = None
    """Share of rows with facts to look up in two hops: a name is asked for, an alias gives its key, and the fact about
    this key gives the answer."""

    @classmethod
    def plugin_names(cls) -> list[str]:
        """The further names that are known now."""
        return TASKS.names()

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields and name not in TASKS:
                problem = InitErrorDetails(type="extra_forbidden", loc=(name,), input=values[name])
                raise ValidationError.from_exception_data(cls.__name__, [problem])
        return values

    @property
    def tasks(self) -> dict[str, float]:
        """The share of every task that has one, the built-in ones first, then by name."""
        built_in = [name for name in Mix.model_fields if name != "text"]
        names = [*built_in, *sorted(self.__pydantic_extra__)]
        shares = {name: getattr(self, name) or 0.0 for name in names}
        return {name: share for name, share in shares.items() if share > 0}

    @model_validator(mode="after")
    def _sums_to_one(self) -> Mix:
        total = self.text + sum(self.tasks.values())
        if abs(total - 1) > 1e-9:
            raise SettingsConflict(
                f"the shares of the mix add up to {total:g}; they must add up to 1", *Mix.model_fields
            )
        return self


# ---- the run that another one starts from ----


class InitFrom(Strict):
    """Start from the final weights of another run, given by its hash, with a new optimizer state."""

    run: RunName
    """Hash of the run, or hf-… for a folder in the Hugging Face layout or a GGUF file; `--from` sets it."""
    load: Literal["best", "all"] | None = None
    """best: the weights of its lowest validation loss instead (evaluation.keep_best). all: go on where it ended, with
    its optimizer, steps and log; all settings but the steps are the same (`pretrain --extend`)."""
    step: PositiveInt | None = None
    """With load: all, go on after this step of it instead (`--from RUN@STEP`), from a checkpoint that it has kept
    (runtime.keep_steps). Then plan, map, controller, hooks, data and what is measured may differ; steps are counted
    from its first one."""

    @model_validator(mode="after")
    def _step_with_all(self) -> InitFrom:
        if self.step is not None and self.load != "all":
            raise SettingsConflict(
                f"step {self.step} needs `load: all`, the optimizer's state too; add it, or leave the step out",
                "step",
                "load",
            )
        return self

    @property
    def whole(self) -> bool:
        """Whether the optimizer, the steps and the log of the other run go on too."""
        return self.load == "all"


TrackerName = Literal["tensorboard", "trackio", "wandb"]


class Budget(Strict):
    """A budget of training FLOPs, converted to a number of steps with the FLOPs convention `executed`."""

    flops: PositiveFloat
    """Training FLOPs that the run may spend; they choose its number of steps."""


class Observe(Strict):
    """Quantities that are logged during training in addition to the loss."""

    entropy_every: PositiveInt | None = None
    """Interval, in steps, at which the attention entropy of every head is logged (SGT, Eq. 4)."""
    each_step: list[str] | None = None
    """Logged numbers that the record has for every step, such as [loss], for curves that are compared; otherwise it has
    at most 200 steps of the log."""

    @field_validator("each_step")
    @classmethod
    def _none_if_empty(cls, value: list[str] | None) -> list[str] | None:
        if value and len(set(value)) < len(value):
            raise ValueError("each_step names a number twice")
        return value or None


def _stored(source: str) -> str:
    """With an absolute path, so that a run can be resumed from any folder. Unknown kinds are reported later."""
    kind, _, argument = source.partition(":")
    return f"{kind}:{text_from(SOURCES.get(kind).stored, argument)}" if argument and kind in SOURCES else source


class WeightedSource(Strict):
    """One of several sources of text."""

    source: Annotated[str, AfterValidator(_stored)]
    """As data.source."""
    weight: Annotated[float, Field(gt=0, le=1)]
    """Its share of the training tokens that are text; the weights of all sources add up to 1."""
    field: str | None = None
    """The field or column that contains its text; default: data.field."""


class Data(Strict):
    """Where the training text comes from, and how it is tokenized."""

    source: Annotated[str, AfterValidator(_stored)] | None = "embedded"
    """embedded, text:PATH, jsonl:PATH, csv:PATH, parquet:PATH, hub:NAME[@REVISION][:CONFIG[:SPLIT]] (also hub:FOLDER,
    in the hub's layout), shards:DIR (made by `hybridlab data prepare`), or primitives:SEED. None if there are several
    sources, and in fine-tuning."""
    sources: list[WeightedSource] | None = None
    """Several sources in place of one, mixed by weight. The other settings hold for each of them."""
    tokenizer: str = "bpe:896"
    """byte, bpe:SIZE (trained on the source), file:PATH (tokenizer.json or a folder), hub:NAME, or gguf:SHA-256
    (that of a GGUF file which was opened here); byte+mask and bpe+mask:SIZE have the special tokens of encoders. Shards
    bring their own; it is stored as `shards`."""
    field: str = "text"
    """The field or column that contains the text, in jsonl:, csv:, parquet: and hub: sources."""
    validation_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Share of the text that is kept for validation: whole documents or, of a source with few, parts of them."""
    validation_by: Literal["content"] | None = None
    """content: the text of a document decides whether it is kept for validation, so that equal ones (but for case and
    white space) are all on one side, also in several sources; near copies are not found. Default: its number."""
    skip_bad_lines: Annotated[bool | None, OrNone] = None
    """Leave out lines and rows that are broken or have no text (jsonl:, csv:, parquet:, hub:), and count them. Default:
    false, so that the first one is an error."""
    max_documents: PositiveInt | None = None
    """Read only this many documents of the source, or of each of several. Default: all."""
    mix: Mix = Mix()
    """What the rows of a batch are."""
    task_loss_weight: PositiveFloat = 2.0
    """Loss weight of the answer tokens of synthetic tasks; text tokens have weight 1."""

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, values: Any) -> Any:
        """Without `source` where there are `sources`."""
        if isinstance(values, dict) and values.get("sources") is not None:
            if values.get("source") is not None:
                raise SettingsConflict(
                    "there are both `source` and `sources`; leave one of them out", "sources", "source"
                )
            return {**values, "source": None}
        return values

    @model_validator(mode="after")
    def _sources_fit(self) -> Data:
        if self.sources is None:
            return self
        total = sum(source.weight for source in self.sources)
        if abs(total - 1) > 1e-6:
            raise SettingsConflict(
                f"the weights of the sources add up to {total:.6g}; they must add up to 1", "sources"
            )
        pairs = [(source.source, source.field or self.field) for source in self.sources]
        twice = next((source for source, field in pairs if pairs.count((source, field)) > 1), None)
        if twice is not None:
            raise SettingsConflict(
                f"the source {twice} is there twice; give it once, with both weights together", "sources"
            )
        return self

    @property
    def all_sources(self) -> list[str]:
        """The source, or all of several."""
        return [self.source] if self.source is not None else [source.source for source in self.sources or ()]

    @property
    def written(self) -> list[str]:
        """The source or sources as `--data` takes them."""
        several = self.sources or ()
        return [self.source] if self.source is not None else [f"{s.source}@{s.weight:g}" for s in several]

    @property
    def prepared(self) -> bool:
        """Whether all of the text is tokenized already."""
        sources = self.all_sources
        return bool(sources) and all(source.startswith("shards:") for source in sources)

    def each_source(self) -> Iterator[Data]:
        """These settings with each of the sources alone."""
        for source in self.sources or ():
            field = source.field or self.field
            yield self.model_copy(update={"source": source.source, "field": field, "sources": None})

    @field_validator("tokenizer")
    @classmethod
    def _absolute(cls, value: str) -> str:
        """With an absolute path, as the source."""
        kind, _, path = value.partition(":")
        return f"file:{user_path(path).absolute()}" if kind == "file" and path else value


class Runtime(Strict):
    """Settings that may change when a run is resumed; its hash does not cover them."""

    micro_batch_rows: PositiveInt | None = None
    """Sequences that are computed at once; fewer need less memory. Default: all of a step."""
    activation_checkpointing: bool | Literal["selective"] | None = None
    """What the backward pass recomputes instead of storing it: true: all activations of the blocks, which takes a third
    more time; selective: all but the results of matrix multiplications and fused attention, which takes little time;
    false: nothing. The numbers are the same. Default: selective for large steps on a CPU without `compile`, else
    false."""
    kernel: Literal["auto", "eager", "sdpa", "banded", "blocks", "flex", "xformers", "triton"] = "auto"
    """Implementation of attention; auto: banded for windows where it is faster, else sdpa; for heads of kind belief
    triton on a GPU, else eager or blocks. triton: these heads as Triton kernels; other heads as auto."""
    compile: bool | None = None
    """Compile the blocks with torch.compile. Every size that occurs (a length in a loop, a number of heads) is compiled
    once, in about 30 seconds of a core, or 2 where an equal run has done it on this machine. With one core, steps of
    tiny in bf16 are then 1.1 times as fast, which pays after some 1,600 or 130 steps; those of narrower models gain
    nothing. The last bits differ, so a run keeps what it was started with, and its record says so. Default: false."""
    sharding: Literal["ddp", "fsdp2"] = "ddp"
    """What each of several ranks holds of the weights: ddp: all of them; fsdp2: a part of every block, with the whole
    block while it runs."""
    reshard: bool = True
    """With fsdp2, give the other ranks' parts of a block back after its forward pass, and gather them again for the
    backward pass: less memory, more communication."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda or cuda:N."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads. Default: as torch chooses."""
    log_every: PositiveInt = 10
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every: PositiveInt = 200
    """Steps between two checkpoints; the last step always has one."""
    checkpoint_seconds: PositiveFloat | None = 300.0
    """A checkpoint is also written when this time has passed since the last one, the first one after 30 seconds at the
    latest. Checkpoints that take long to write come less often. null: by steps only."""
    keep_checkpoints: PositiveInt = 2
    """Number of newest checkpoints that are kept."""
    keep_optimizer: bool | Literal["unsettled"] = False
    """Keep the newest checkpoint of a finished run, with the state of its optimizer; otherwise only the weights.
    unsettled: keep it if the run learns masks and they have not settled, as `learn-masks` does."""
    keep_steps: list[PositiveInt] = []
    """Steps whose checkpoints are kept for good, so that other runs can begin there with the optimizer (init.step)."""
    peak_flops: PositiveFloat | None = None
    """FLOP/s that the device can do at most, for MFU. Default: that of a known GPU; else MFU is not measured."""
    track: list[TrackerName] = []
    """Send the log to these trackers too; they come with `pip install 'hybridlab[track]'`."""


class RunConfig(Strict):
    """The complete configuration of a run, as `run.json` and records have it.

    shape, map, plan and controller say what is trained; data and training on what, and how long; steps are optimizer
    steps. It cannot be changed; pydantic's ValidationError for settings that do not fit.

        config = hybridlab.train("vanilla", steps=100).config
        config.training.optimizer.lr, config.model_dump(mode="json")
    """

    arch: str
    """Name of the preset of the architecture; in a file given with --config, it chooses the preset."""
    size: str
    """Name of the preset of the size; in a file given with --config, it chooses the preset."""
    shape: Shape
    """The model's parameters, as data. Where a controller adds layers, those at the end of the run."""
    map: MapConfig = FullMap(kind="full")
    """How each head mixes tokens: full attention, a window, …"""
    plan: list[PlanEdit] = []
    """Edits of the plain plan, in order; see config/edits.py."""
    controller: ControllerConfig | None = None
    """What changes the structure during training. Default: nothing."""
    hooks: list[HookConfig] | None = None
    """Further hooks of the training loop, from plug-ins: `[{kind: my-hook, its settings}]`, called in this order after
    the controller."""
    observe: Observe | None = None
    """What is logged beside the loss. Default: nothing."""
    budget: Budget | None = None
    """A budget of FLOPs in place of a number of steps."""
    data: Data = Data()
    """Training text; in a file given with --config also the name of a data preset, or a source."""
    training: Training
    """Steps, batches, optimizer and schedule."""
    evaluation: Evaluation = Evaluation()
    """What is measured at the end."""
    finetune: Finetune | None = None
    """A task with labels, or chats, that are trained in place of text. Default: none."""
    init: InitFrom | None = None
    """The run to start from. Default: random weights."""
    plugins: dict[str, str] | None = None
    """Name and version of the plug-ins that can change this run; hybridlab writes them when they are loaded."""
    runtime: Runtime = Runtime()
    """Settings that do not change the run's hash."""

    @field_validator("hooks", "plugins", "observe")
    @classmethod
    def _none_if_empty(cls, value: Any) -> Any:
        """So that an empty list gives the hash of a run without."""
        return None if value == Observe() else value or None

    @model_validator(mode="after")
    def _parts_fit(self) -> RunConfig:
        if self.finetune is None and not self.data.all_sources:
            message = "there is no source; write `source: text:PATH`, or leave it out for embedded"
            raise SettingsConflict(message, "data.source")
        if (self.controller is not None and self.controller.learns_masks) != self.map.learned:
            raise SettingsConflict(
                "a controller that learns masks needs a map of kind mixed, and such a map needs the controller; "
                "`hybridlab learn-masks` sets both, `pretrain --masks FILE` trains with learned masks",
                "map.kind",
                "controller.kind" if self.controller else "controller",
            )
        self._check_objective()
        positions = self.shape.max_positions
        longest = self.training.seq_len * max(self.evaluation.length_factors or [1])
        if positions is not None and longest > positions:
            raise SettingsConflict(
                f"sequences of {longest} tokens are longer than shape.max_positions {positions}",
                "training.seq_len",
                "evaluation.length_factors",
                "shape.max_positions",
            )
        last = max(self.evaluation.at_steps or [0])
        if last > self.training.steps and self.budget is None:
            raise SettingsConflict(
                f"evaluation.at_steps: there is no step {last} in a run of {self.training.steps} steps; leave it "
                "out, or set evaluation.at_steps=null",
                "evaluation.at_steps",
                "training.steps",
            )
        if self.controller is not None:
            self.controller.check(self)
            if self.controller.adds_layers and self.shape.local_rope is not None:
                raise SettingsConflict(
                    "shape.local_rope names layers by their number, which change in a model that grows in depth; take "
                    "a model or a size without it, or a controller that adds no layers",
                    "shape.local_rope",
                    "controller.kind",
                )
        return self

    def _check_objective(self) -> None:
        """SettingsConflict for an objective, or a measurement, that the family cannot have."""
        family, causal = self.shape.family, self.shape.traits.causal
        if self.finetune is not None and FINETUNE_TASKS.get(self.finetune.task).kind == "chat" and not causal:
            raise SettingsConflict(
                f"the task {self.finetune.task} teaches a decoder to answer, and the family {family} is an encoder, "
                "which continues no text; fine-tune it on a task with labels, such as sst2",
                "finetune.task",
                "shape.family",
            )
        if self.objective != self.shape.traits.objective:
            why = "is a decoder, which sees no later token" if causal else "is an encoder, which sees the next token"
            raise SettingsConflict(
                f"training.objective {self.objective}: the family {family} {why}; use {self.shape.traits.objective}, "
                "or leave it out",
                "training.objective",
                "shape.family",
            )
        if self.lora is not None and "gate" in (self.lora.projections or ()) and not self.shape.traits.gated:
            raise SettingsConflict(
                f"finetune.lora.projections: the MLP of the family {family} has no gate; leave it out",
                "finetune.lora.projections",
                "shape.family",
            )
        if self.evaluation.choices is not None and not causal:
            raise SettingsConflict(
                "evaluation.choices: questions are answered by the likelihood of a continuation, and the family "
                f"{family} is an encoder, which continues no text; remove it",
                "evaluation.choices",
                "shape.family",
            )

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained in place of the weights."""
        return None if self.finetune is None else self.finetune.lora

    @property
    def objective(self) -> ObjectiveName:
        """The objective of the run: that of its settings, else that of its family."""
        return self.training.objective or self.shape.traits.objective

    @model_validator(mode="after")
    def _steps_fit(self) -> RunConfig:
        if self.budget is not None:
            return self  # it chooses the steps; see runs/compose.py
        begun, last = self.begins_after, self.training.steps
        if begun >= last:
            raise SettingsConflict(
                f"training.steps {last}: the run begins after step {begun} of another, and steps are counted from the "
                "first one there; give more",
                "training.steps",
                "init.step",
            )
        if outside := [step for step in self.runtime.keep_steps if not begun < step <= last]:
            raise SettingsConflict(
                f"runtime.keep_steps {outside[0]}: this run does the steps {begun + 1} to {last}; name one of these",
                "runtime.keep_steps",
                "training.steps",
            )
        return self

    @property
    def first_shape(self) -> Shape:
        """The shape before the first step: a controller that adds layers begins with fewer than `shape` has."""
        layers = self.shape.layers
        if self.controller is not None:
            layers = self.controller.first_layers(self.shape.layers)
            if not is_whole(layers) or layers < 1:
                refuse(self.controller, "first_layers", layers, "a whole number of layers, 1 or more")
        return self.shape if layers == self.shape.layers else replace(self.shape, layers=layers)

    @property
    def begins_after(self) -> int:
        """The step of another run after which this one begins; 0 if it does not begin within another."""
        return self.init.step or 0 if self.init else 0
