"""The model card of an exported model: README.md with what is known of its training, results, and how to load it.

Only what was recorded is written; a model that is no run has no data, steps and results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from hybridlab.attention.kinds import Full
from hybridlab.evaluation.results import Results
from hybridlab.models.hf_export import MODELLING, Form
from hybridlab.models.ledger.parameters import count_parameters
from hybridlab.plan.structure import Structure
from hybridlab.runs.record import Record
from hybridlab.statistics import Measurement

_PIPELINES = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}
Fact = tuple[str, str]


def card(
    folder: Path, structure: Structure, form: Form, record: Record | None, license: str | None, note: str | None = None
) -> str:
    """The content of README.md. folder: where the model will be. license: an identifier of the hub, such as mit. note:
    a sentence about the weights."""
    name, pipeline = folder.name, _PIPELINES[form.auto]
    head = ["---", f"license: {json.dumps(license or 'unknown')}", "library_name: transformers"]
    head += [f"pipeline_tag: {pipeline}", "tags:", "- hybridlab", "---", "", f"# {name}", ""]
    parts = [*head, _opening(form), ""]
    parts += [note, ""] if note else []
    parts += ["## Model", "", *_table(_model_facts(structure)), ""]
    if record is not None:
        parts += ["## Training", "", *_table(_training_facts(record)), ""]
        if record.results is not None:
            parts += ["## Results", "", *_results(record.results), ""]
    parts += ["## Loading it", "", *_loading(name, form, pipeline)]
    return "\n".join(parts) + "\n"


def _opening(form: Form) -> str:
    if form.native:
        return f"Trained with hybridlab, and written as transformers' own `{form.architecture}`."
    return (
        f"Trained with hybridlab. transformers' own classes do not fit ({form.reason}), so `{MODELLING}` in this "
        "folder executes the structure in `config.json`; it needs torch, transformers and what the files `plugin_*.py` "
        "import, if there are any."
    )


def _table(facts: Iterator[Fact]) -> list[str]:
    return ["| | |", "| --- | --- |", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in facts)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _model_facts(structure: Structure) -> Iterator[Fact]:
    shape, count = structure.shape, count_parameters(structure.shape, structure.plan)
    yield "family", shape.family
    yield "parameters", f"{count.total:,} ({count.total - count.embedding:,} without embeddings)"
    yield "layers, width", f"{shape.layers}, {shape.width}"
    yield "query heads, KV heads, head width", f"{shape.heads}, {shape.kv_heads}, {shape.head_width}"
    yield "plan (layers and heads from 1)", str(structure.plan)
    full = set(structure.map.each_kind()) == {Full()}
    kinds = "; ".join(f"{kind.letter} {kind}" for kind in structure.map.each_kind())
    yield "attention map", "full attention in all heads" if full else f"{structure.map} ({kinds}; by layer and KV head)"
    if shape.norm_scaling is not None:
        yield "norms", shape.norm_scaling
    if structure.lineage is not None:
        yield "grown in depth", f"from {sum(origin.parent is None for origin in structure.lineage)} layers"


def _training_facts(record: Record) -> Iterator[Fact]:
    config, data = record.config, record.data
    yield "arch, size", f"{config.get('arch')}, {config.get('size')}"
    yield "data", f"{_portable(data.source)} (fingerprint {data.fingerprint})"
    for source in data.sources or []:
        yield f"source {source.name}", f"{_portable(source.source)}, {source.weight:.3g} of the tokens"
    yield "steps, tokens", f"{record.steps:,}, {record.tokens:,}"
    yield "FLOPs spent", f"{record.flops:.3g}"
    yield "seed, precision", f"{record.seed}, {record.precision}"
    yield "run", record.hash
    if record.parents:
        yield "starts from", ", ".join(record.parents)


def _portable(source: str) -> str:
    """A data source without the folders of the machine."""
    kind, colon, argument = source.partition(":")
    return f"{kind}:{Path(argument).name}" if colon and kind != "hub" else source


def _results(results: Results) -> list[str]:
    rows = ["| measured | value | ± s.e. | n |", "| --- | --- | --- | --- |"]
    for name, measurement in _measured(results):
        if measurement.value is not None:
            error = "–" if measurement.stderr is None else f"{measurement.stderr:.4g}"
            rows.append(f"| {_cell(name)} | {measurement.value:.5g} | {error} | {measurement.n:,} |")
    return rows


def _measured(results: Results) -> Iterator[tuple[str, Measurement]]:
    if results.finetune is not None:
        for name, measurement in results.finetune.metrics.items():
            yield f"{results.finetune.task}, {name.replace('_', ' ')}", measurement
    else:
        yield from _predictions(results)
    for benchmark in results.lm_eval.values():
        first = "" if benchmark.limit is None else f", the first {benchmark.limit:,} questions of each task"
        for name, measurement in benchmark.metrics.items():
            yield f"{benchmark.task}, {name} ({benchmark.harness}, {benchmark.shots} shots{first})", measurement


def _predictions(results: Results) -> Iterator[tuple[str, Measurement]]:
    """How well the model predicts tokens: of text, in synthetic tasks, and of options to choose from."""
    text = results.validation
    yield "validation loss (nats per token)", text.loss
    yield "validation perplexity", text.perplexity
    if text.pseudo_perplexity is not None:
        yield "validation pseudo-perplexity", text.pseudo_perplexity
    yield "bits per byte", text.bits_per_byte
    for task, answers in results.tasks.items():
        yield f"{task}, accuracy (chance {answers.chance:g})", answers.all
    for task, choices in results.choices.items():
        yield f"{task}, accuracy in {choices.shots} shots (chance {choices.chance:g})", choices.accuracy


def _loading(name: str, form: Form, pipeline: str) -> list[str]:
    trust = "" if form.native else ", trust_remote_code=True"
    return [
        "```python",
        f"from transformers import {form.auto}, AutoTokenizer, pipeline",
        "",
        f'model = {form.auto}.from_pretrained("{name}"{trust})',
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{trust})',
        f'run = pipeline("{pipeline}", model=model, tokenizer=tokenizer)',
        "```",
    ]
