"""Trained models as folders for transformers: weights, config, tokenizer and model card.

exported = hybridlab.export_hf("runs/first", "first-hf")    # or `hybridlab export runs/first first-hf`
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hybridlab.arguments import checked
from hybridlab.config.schema import RunConfig
from hybridlab.data.finetune.chats import answer_end, stop_tokens
from hybridlab.data.tokenizers import TokenizerFiles, load_tokenizer, require_fitting, tokenizer_files
from hybridlab.errors import RunFailed, UserError, first_line
from hybridlab.files import read_object, user_path
from hybridlab.messages import aloud, say
from hybridlab.models.decoder import Transformer
from hybridlab.models.hf_export import DTYPES, check_free, form_of, labels_of, write_hf_folder
from hybridlab.models.huggingface import HUB
from hybridlab.plan.shape import ClassesOutput, Shape
from hybridlab.registry import FINETUNE_TASKS
from hybridlab.runs.hf_card import card
from hybridlab.runs.record import Record, read_record
from hybridlab.runs.train import TrainedRun
from hybridlab.training.store.artifacts import Artifact, find_model, open_model
from hybridlab.training.store.folders import Runs

POSITIONS = 2048
"""max_position_embeddings of a model of which nothing says how long its sequences were."""


@dataclass(frozen=True)
class Exported:
    """An exported model. folder, files: where it is. architecture: the name of its class, which `auto`, an Auto class
    of transformers, loads. native: whether that class is transformers' own; otherwise reason says what it lacks, and
    loading needs trust_remote_code=True. parameters: of the model. pushed: its address on the hub; None if it was not
    asked for.

        exported = hybridlab.export_hf("runs/first", "first-hf")
        exported.architecture, exported.native    # ("Qwen3ForCausalLM", True)
    """

    folder: Path
    architecture: str
    auto: str
    native: bool
    reason: str | None
    parameters: int
    files: list[str]
    pushed: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {**asdict(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class _Source:
    """What is exported. tokenizer: the path of a tokenizer.json; None if there is none. max_positions: see
    `write_hf_folder`. run: hash of the run. note: a sentence for the model card. ids: those of special tokens that the
    config of a model from elsewhere names, by their name there. classes: their names there, in order."""

    model: Transformer
    tokenizer: Path | None
    max_positions: int
    config: RunConfig | None = None
    record: Record | None = None
    run: str | None = None
    note: str | None = None
    ids: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


@aloud
@checked
def export_hf(
    run_or_model: str | Path | TrainedRun | Transformer,
    folder: str | Path,
    *,
    tokenizer: str | Path | None = None,
    license: str | None = None,
    dtype: str | None = None,
    max_shard_size: str | None = None,
    push: str | None = None,
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> Exported:
    """Write a model into a folder that transformers loads, as `hybridlab export` does.

    A plain model of a family that transformers has becomes transformers' own class, also with windows of one width in
    some of its layers. Every other one gets modeling_hybridlab.py and the modules that it was trained with beside its
    weights, and is loaded with trust_remote_code=True where hybridlab need not be installed. Logits are the same to
    1e-5; `generate` works with its cache.

    run_or_model: a run (a `TrainedRun`, its name, folder or the start of its hash, also RUN/best), a folder in the
    Hugging Face layout, or a model. folder: where to write; new, or empty. tokenizer: the tokenizer.json of a model; a
    run has its own. license: for the model card, an identifier such as `mit`. dtype: of the weights, fp32, bf16 or
    fp16; by default as a model has them, and a run or folder is opened in fp32 (fp64 after such a training).
    max_shard_size: the most bytes of a file of weights, such as 2GB; by default there is one file. push:
    hub:OWNER/NAME, where the folder is uploaded to; the repository is made if it is not there. runs_dir: where runs
    are. quiet: print nothing. UserError for a folder that holds files, and for a model that cannot be exported;
    RunFailed if the hub does not take it.

        exported = hybridlab.export_hf("runs/first", "first-hf", license="mit")
        exported.native    # True: AutoModelForCausalLM.from_pretrained("first-hf")
    """
    # Checked before a large model is opened.
    check_free(user_path(folder))
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r}: use one of {', '.join(DTYPES)}")
    if max_shard_size is not None and not re.fullmatch(r"(?!0*\.?0*[KMGT])\d+(\.\d+)?[KMGT]B", max_shard_size):
        raise UserError(f"max_shard_size {max_shard_size!r}: give a size such as 2GB or 500MB")
    repository = None if push is None else _repository(push)
    if isinstance(run_or_model, Transformer):
        if tokenizer is not None:
            require_fitting(load_tokenizer(user_path(tokenizer)), run_or_model.shape.vocab, str(tokenizer))
        source = _Source(run_or_model, None if tokenizer is None else user_path(tokenizer), POSITIONS)
    elif tokenizer is not None:
        raise UserError("export_hf: tokenizer= has no effect on a run, which has its own; leave it out")
    else:
        reference = run_or_model.path if isinstance(run_or_model, TrainedRun) else run_or_model
        source = _opened(str(reference), Runs(user_path(runs_dir)))
    weights = {"dtype": dtype, "max_shard_size": max_shard_size}
    exported = _write(source, user_path(folder).absolute(), license, weights)
    return exported if repository is None else replace(exported, pushed=_upload(exported.folder, repository))


def _repository(push: str) -> str:
    """OWNER/NAME. UserError for another form, and if nobody is logged in."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name = push.removeprefix(HUB)
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if not push.startswith(HUB) or name.count("/") != 1:
        raise UserError(f"push {push!r}: write hub:OWNER/NAME, as in hub:EleutherAI/pythia-70m")
    if not get_token():
        raise UserError(f"push {push}: there is no token of the hub here; log in with `hf auth login`, or set HF_TOKEN")
    return name


def _upload(folder: Path, repository: str) -> str:
    """The address of a folder's copy on the hub. RunFailed if the hub does not take it."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        url = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export of hybridlab")
    except Exception as error:  # the client passes on the errors of the libraries that it uses
        raise RunFailed(
            f"{folder} is written, but the hub has not taken it ({first_line(error)}); try again with "
            f"`hf upload {repository} {folder}`"
        ) from None
    return str(url)


def _opened(reference: str, runs: Runs) -> _Source:
    opened = open_model(reference, runs)
    tokenizer = opened.tokenizer if opened.tokenizer.is_file() else None
    if opened.config is None:
        theirs = read_object(opened.path / "config.json", "configuration")
        longest = _stated_length(theirs) or opened.seq_len
        ids = {f"{role}_id": theirs.get(f"{role}_id") for role in _IN_CONFIG}
        return _Source(opened.model, tokenizer, longest, ids=ids, classes=_stated_classes(theirs, opened.shape))
    record = read_record(opened.path / "record.json")
    note = None
    if opened.part == "best":
        note = "These are the weights of the lowest validation loss of the run, not those of its last step."
        record = record and record.model_copy(update={"results": None})
    elif record is None:
        note = "The run has not finished: these are the weights of its newest checkpoint."
    longest = max(opened.seq_len, _length_before(opened, runs))
    return _Source(opened.model, tokenizer, longest, opened.config, record, opened.digest, note)


def _length_before(opened: Artifact, runs: Runs) -> int:
    """`max_position_embeddings` of the imported model that a run, or one of the runs before it, started from; 0 without
    such a model, and where it is not found any more."""
    while opened.run is not None and opened.config is not None and opened.config.init is not None:
        start = opened.config.init.run
        try:
            opened = find_model(start, Runs(runs.directory, {**opened.run.started().get("places", {}), **runs.places}))
        except UserError:
            return 0
        if opened.digest != start:
            return 0
    return _stated_length(read_object(opened.path / "config.json", "configuration")) if opened.pretrained else 0


def _stated_length(config: dict[str, Any]) -> int:
    """`max_position_embeddings` of a config.json; 0 if it says none."""
    longest = config.get("max_position_embeddings")
    return longest if isinstance(longest, int) and longest > 0 else 0


def _stated_classes(config: dict[str, Any], shape: Shape) -> tuple[str, ...]:
    """The names of the classes of a config.json; empty where they do not fit the output head."""
    names, output = config.get("id2label"), shape.output
    if not isinstance(names, dict) or not isinstance(output, ClassesOutput):
        return ()
    in_order = tuple(names.get(str(number)) for number in range(output.labels))
    return tuple(map(str, in_order)) if len(names) == output.labels and None not in in_order else ()


def _write(source: _Source, folder: Path, license: str | None, weights: dict[str, Any]) -> Exported:
    if license is not None and (not license.strip() or "\n" in license):
        raise UserError(f"license {license!r}: give an identifier of the hub on one line, such as mit or apache-2.0")
    structure, tokenizer = source.model.structure, TokenizerFiles({}, {})
    if source.tokenizer is not None:
        longest = structure.shape.max_positions or source.max_positions
        tokenizer = tokenizer_files(source.tokenizer, structure.causal, not structure.shape.gives_tokens, longest)
    form = form_of(source.model, tokenizer.pads_with_end)
    texts = {**tokenizer.texts, "README.md": card(folder, structure, form, source.record, license, source.note)}
    # Else transformers takes the family's own default for a token that the model does not have.
    none = dict.fromkeys(f"{role}_id" for role in _IN_CONFIG)
    ids = {f"{role}_id": number for role, number in tokenizer.ids.items() if role in _IN_CONFIG}
    settings = none | source.ids | ids
    lineage = {} if source.run is None else {"run": source.run}
    names = labels_of(structure.shape, _class_names(source.config) or source.classes)
    ends = [] if source.tokenizer is None else _ends(source.tokenizer)
    files = write_hf_folder(
        folder, source.model, form, source.max_positions, texts, settings | names, lineage, **weights, ends=ends
    )
    if not tokenizer.texts:
        say(f"{folder}: written without a tokenizer, which this model does not have")
    parameters = sum(parameter.numel() for parameter in source.model.parameters())
    return Exported(folder, form.architecture, form.auto, form.native, form.reason, parameters, files)


_IN_CONFIG = ("bos_token", "eos_token", "pad_token")
"""The special tokens whose ids config.json has."""


def _ends(file: Path) -> list[int]:
    """The tokens at which generated texts end, with the one that ends an answer; none where nothing says it."""
    tokenizer = load_tokenizer(file)
    try:
        stops = [*stop_tokens(file, tokenizer), answer_end(file, tokenizer)]
    except UserError:  # no token ends a document
        return []
    return list(dict.fromkeys(token for token in stops if token is not None))


def _class_names(config: RunConfig | None) -> tuple[str, ...]:
    """The names of the classes of the task that a run was fine-tuned on; empty for any other."""
    if config is None or config.finetune is None:
        return ()
    task = FINETUNE_TASKS.get(config.finetune.task)
    return task.classes if task.kind == "classes" else ()
