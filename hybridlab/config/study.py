"""The schema of a study: measurements on a model that is there already, a run or a model of the hub.

model: hub:Qwen/Qwen3-0.6B-Base
evaluation: {probes: [entropy], probe_settings: {entropy: {tasks: [gsm8k, mmlu], rows: 100}}}
drop_heads: [L1-H1, L1-H7]
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hybridlab.config.evaluation import Evaluation
from hybridlab.config.maps import MapConfig
from hybridlab.config.resolve import NUMERICS_VERSION
from hybridlab.config.types import NonNegativeInt, PositiveInt, Strict

RUN, HUB, FILE = "run:", "hub:", "file:"


def short_name(model: str) -> str:
    """The name of a pretrained model, hub:… or file:…, without its owner or folder."""
    kind, _, name = model.partition(":")
    name = name.partition("@")[0] if kind == "hub" else name
    return name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


class HeadsByEntropy(Strict):
    """Heads chosen by the entropies that another study, or a run, has measured.

    The n heads with the highest or lowest entropy (of those over several tasks: with the highest least, or the lowest
    largest entropy), or n others at random.
    """

    select: Literal["high", "low", "random", "matched"]
    """random: n heads that are neither among the n highest nor among the n lowest. matched: n heads at random that are
    not among the n highest, with as many in each layer as these."""
    of: str
    """The study or run whose record has the entropies."""
    n: PositiveInt
    """Number of heads."""
    draw: NonNegativeInt = 0
    """Number of the random draw."""

    @model_validator(mode="after")
    def _draws(self) -> HeadsByEntropy:
        if self.draw and self.select not in ("random", "matched"):
            raise ValueError(f"draw has no effect on select: {self.select}; leave it out")
        return self


class Study(Strict):
    """What is measured on a model that was trained before."""

    model: str
    """hub:OWNER/NAME, or hub:OWNER/NAME@REVISION for one version of it; file:PATH of a GGUF file or a folder in the
    Hugging Face layout; or run:HASH."""
    evaluation: Evaluation
    """Probes on prompts of tasks, and benchmarks. Further measurements need `text`."""
    drop_heads: Annotated[list[str], Field(min_length=1)] | HeadsByEntropy | None = None
    """Query heads that are left out of the model: their names, as L1-H3, or a choice. Default: none."""
    map: MapConfig | None = None
    """The attention map that the model gets, with the weights as they are: `{kind: learned, run: cell:NAME}` for the
    masks of a run, `{kind: knockout, run: cell:NAME, …}` for what a run or another study has measured. Default: the
    model's own."""
    text: bool | None = None
    """Also measure what a run measures at its end on its own text and tasks. Default: prompts and benchmarks alone."""
    precision: Literal["fp32", "bf16"] | None = None
    """Number format of the forward passes; the weights stay in fp32. Default: fp32."""

    @property
    def computed_in(self) -> str:
        """`precision`, or its default."""
        return self.precision or "fp32"

    @field_validator("model")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value.startswith((RUN, HUB, FILE)) or value in (RUN, HUB, FILE):
            raise ValueError(
                f"{value!r} names no model; write hub:OWNER/NAME, file:PATH, or the cell of a run as cell:NAME"
            )
        return value

    @field_validator("map")
    @classmethod
    def _fixed(cls, value: MapConfig | None) -> MapConfig | None:
        if value is not None and value.learned:
            raise ValueError(f"a map of kind {value.kind} is for training, in which a controller learns it")
        return value

    @model_validator(mode="after")
    def _can_be_measured(self) -> Study:
        if self.text:
            if not self.model.startswith(RUN):
                raise ValueError("text has no effect on a pretrained model, which has no text of its own; leave it out")
            return self
        for probe in self.evaluation.all_probes:
            if not (self.evaluation.probe_settings or {}).get(probe, {}).get("tasks"):
                raise ValueError(f"probe {probe} reads text; name tasks in its probe_settings, or set text: true")
        allowed = {"probes", "final_probes", "probe_settings", "benchmarks"}
        for name in sorted(self.evaluation.model_fields_set - allowed):
            raise ValueError(f"evaluation.{name} has no effect without text: true; leave it out, or set that")
        return self

    def as_written(self) -> dict[str, Any]:
        """As JSON, without defaults, so that new settings do not change the hashes of older studies."""
        return self.model_dump(mode="json", exclude_unset=True)


def study_hash(study: Study) -> str:
    """Sixteen hexadecimal digits that identify a study of a model, by what it asks and the version of the numerics."""
    content = json.dumps({"numerics_version": NUMERICS_VERSION, "study": study.as_written()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
