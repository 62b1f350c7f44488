"""Models as folders that transformers loads: as its own class, or with one modelling file beside the weights.

    form = form_of(model)
    write_hf_folder(Path("folder"), model, form, max_positions=128)

A plain model of a family that transformers has is written as transformers' own class (models/hf_native.py). Every other
one gets a copy of `remote/modeling_hybridlab.py`, which executes the structure in config.json and needs no hybridlab;
such a folder is also a model folder of hybridlab, with the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from hybridlab.errors import UserError
from hybridlab.files import json_text, new_folder, write_json, write_text
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import config_of, save_tensors, size_of
from hybridlab.models.hf_native import labels_of, native_class, native_config, native_tensors, why_not_native
from hybridlab.plan.structure import Structure

MODELLING = "modeling_hybridlab.py"
_KINDS = ("full", "window", "belief")
"""The attention kinds that the modelling file computes."""
_CLASSES = {"tokens": "CausalLM", "classes": "SequenceClassification", "spans": "QuestionAnswering"}


@dataclass(frozen=True)
class Form:
    """How a model is written. architecture: the name of its class in transformers or in the modelling file. auto:
    transformers' Auto class that loads it. reason: why it needs the modelling file; None for transformers' own class.
    """

    architecture: str
    auto: str
    reason: str | None

    @property
    def native(self) -> bool:
        return self.reason is None


def form_of(model: Transformer, pads_with_end: bool = False) -> Form:
    """How a model is written. pads_with_end: see `why_not_native`. UserError for a model that cannot be exported."""
    structure = model.structure
    _check(structure)
    reason = why_not_native(structure, pads_with_end)
    if reason is None and model.factors:
        reason = "some of its heads have factors on their outputs"
    output = structure.shape.output
    task = "MaskedLM" if output is None and not structure.causal else _CLASSES[output.kind if output else "tokens"]
    own = native_class(structure.shape) if reason is None else None
    return Form(own or f"HybridlabFor{task}", f"AutoModelFor{task}", reason)


def _check(structure: Structure) -> None:
    if structure.map.learning:
        raise UserError("export: the masks of this model are still being learned; export the run that trains with them")
    for kind in structure.map.each_kind():
        if kind.name not in _KINDS:
            raise UserError(
                f"export: attention of kind {kind.name} comes from a plug-in, and {MODELLING} does not compute it; "
                f"export models with {', '.join(_KINDS)} only"
            )


def write_hf_folder(
    folder: Path,
    model: Transformer,
    form: Form,
    max_positions: int,
    texts: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    lineage: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write a model into a folder that is new or empty; returns the names of its files. It appears when it is complete.

    max_positions: the longest sequence that the model is made for, where its positions have no table. texts: further
    files. settings: further settings of config.json, such as the ids of special tokens. lineage: what config.json says
    of the run. UserError if the folder holds anything.
    """
    check_free(folder)
    texts, settings = dict(texts or {}), dict(settings or {})
    if form.native:
        tensors, config = native_tensors(model), native_config(model.shape, max_positions)
    else:
        tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
        config = _own_config(model, form, max_positions, dict(lineage or {}))
        texts[MODELLING] = files("hybridlab.models").joinpath("remote", MODELLING).read_text(encoding="utf-8")
    if model.structure.caches:
        ids = {name: value for name, value in settings.items() if name.endswith("_token_id")}
        texts["generation_config.json"] = json_text(ids | ({} if _can_cache(model.structure) else {"use_cache": False}))
    with new_folder(folder, size_of(tensors), digests=False) as partial:
        save_tensors(tensors, partial / "model.safetensors", {"format": "pt"})
        write_json(partial / "config.json", {**config, **settings})
        for name, text in texts.items():
            write_text(partial / name, text)
        return sorted(path.name for path in partial.iterdir())


def check_free(folder: Path) -> None:
    """UserError unless there is nothing under this name, or an empty folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        what = "it is a folder with files" if folder.is_dir() else "it is a file"
        raise UserError(f"{folder}: {what}, which an export does not overwrite; name a new folder")


def _can_cache(structure: Structure) -> bool:
    """Whether no output depends on later tokens, so that what was computed stays right."""
    literal = any(loop.literal for loop in structure.plan.loops.values())
    return not literal and structure.map.sealed() == structure.map


def _own_config(model: Transformer, form: Form, max_positions: int, lineage: dict[str, Any]) -> dict[str, Any]:
    """config.json for the modelling file: that of a model folder of hybridlab, with what transformers looks for."""
    shape = model.shape
    factors = [shape.norm_factor(layer) for layer in range(shape.layers)]
    return {
        **config_of(model, lineage),
        "traits": asdict(shape.traits),
        "norm_factors": None if None in factors else factors,
        "architectures": [form.architecture],
        "auto_map": {
            "AutoConfig": f"{MODELLING.removesuffix('.py')}.HybridlabConfig",
            form.auto: f"{MODELLING.removesuffix('.py')}.{form.architecture}",
        },
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.max_positions or max_positions,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **labels_of(shape),
    }
