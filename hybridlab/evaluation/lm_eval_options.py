"""lm-eval's own options under its own names: tasks of one's own, how prompts are written and texts generated, and
results and samples in the files that lm-eval writes and reads.

hybridlab eval RUN --tasks mine --include-path tasks/ --log-samples --output-path measured/
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from hybridlab.data.finetune.chats import TEMPLATE, chat_template
from hybridlab.errors import UserError, first_line, nearest
from hybridlab.files import make_folder
from hybridlab.models.generate import Sampling
from hybridlab.training.world import world

if TYPE_CHECKING:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

SAMPLING = ("temperature", "top_k", "top_p")
GENERATION: dict[str, tuple[tuple[type, ...], str]] = {
    "until": ((str, list), "a text or a list of texts"),
    "max_gen_toks": ((int,), "a whole number of 1 or more"),
    "do_sample": ((bool,), "true or false"),
    "temperature": ((int, float), "a number"),
    "top_k": ((int,), "a whole number"),
    "top_p": ((int, float), "a number"),
}
"""What lm-eval's `gen_kwargs` may say to the models here: the kinds of its values, and these in words."""
_EXTRA = re.compile(r"lm[_-]eval\[\W*(\w+)")
_FEWSHOT_SEED = 1234
"""lm-eval's seed of the choice of solved examples."""


@dataclass(frozen=True)
class Options:
    """include_path: a folder with task files of one's own; a task there stands before lm-eval's of the same name.
    gen_kwargs: what changes in the settings of generated texts. apply_chat_template: prompts are written with the chat
    template of the tokenizer, solved examples as turns of their own. system_instruction: stands before every prompt.
    output_path: the folder (or FILE.json) for lm-eval's result files; log_samples: with every question and answer.
    """

    include_path: Path | None = None
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    apply_chat_template: bool = False
    system_instruction: str | None = None
    output_path: Path | None = None
    log_samples: bool = False

    def checked(self, suite: str | None) -> Options:
        """Itself; UserError for what cannot take effect. suite: a paper's set of tasks, if that is asked."""
        options = {
            "--include-path": self.include_path,
            "--gen-kwargs": self.gen_kwargs,
            "--apply-chat-template": self.apply_chat_template,
            "--system-instruction": self.system_instruction,
        }
        for option, value in options.items():
            if suite is not None and value:
                raise UserError(f"{option} has no effect on --suite {suite}, which has its own tasks and prompts")
        if self.system_instruction is not None and not self.system_instruction.strip():
            raise UserError("--system-instruction: the text is empty; write it, or leave the option out")
        if self.include_path is not None and not self.include_path.is_dir():
            raise UserError(f"--include-path {self.include_path}: there is no such folder")
        if self.log_samples and self.output_path is None:
            raise UserError("--log-samples needs a place for the samples; add --output-path DIR")
        if self.output_path is not None:
            world().once(_require_place, self.output_path)
        return self

    def mark(self, local: bool, tasks: Iterable[Task]) -> str:
        """What the result of a task has after its name in a record, so that it is not taken for one that was asked as
        lm-eval's task is: +own+gen+chat+system. local: it replaces one of lm-eval's. tasks: those it consists of.
        """
        marks = {
            "own": local,
            "gen": self.gen_kwargs and any(map(generates, tasks)),
            "chat": self.apply_chat_template,
            "system": self.system_instruction,
        }
        return "".join(f"+{name}" for name, holds in marks.items() if holds)

    def to_json(self, model: TemplateLM) -> dict[str, Any]:
        """What a record says of the options that change a result."""
        template = model.chat_template(True) if self.apply_chat_template else None
        options = {
            "include_path": None if self.include_path is None else str(self.include_path),
            "gen_kwargs": dict(self.gen_kwargs),
            "chat_template_sha": None if template is None else hashlib.sha256(template.encode()).hexdigest(),
            "system_instruction": self.system_instruction,
        }
        return {name: value for name, value in options.items() if value}


PLAIN = Options()
"""Tasks as lm-eval has them, and no files."""


def _require_place(path: Path) -> None:
    """UserError if nothing can be written there, which lm-eval would say only in its log, after measuring."""
    folder = path.parent if path.suffix == ".json" else path
    try:
        make_folder(folder)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise UserError(f"--output-path {path}: it cannot be made ({error.strerror}); name another folder") from None
    if not writable:
        raise UserError(f"--output-path {path}: nothing can be written there; name another folder")


# ---- solved examples, and generated texts ----


def give_shots(task: Task, number: int) -> None:
    """Let a task put so many solved examples before each question, chosen as lm-eval chooses them."""
    task.set_config(key="num_fewshot", value=number)
    task.set_fewshot_seed(seed=_FEWSHOT_SEED)


def parse_gen_kwargs(text: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings in `temperature=0.8,do_sample=true` or in a JSON object, as lm-eval reads them, or in a mapping.
    UserError for one that does not exist here, or that has another kind of value."""
    from lm_eval._cli.utils import key_val_to_dict, try_parse_json

    if text is None:
        return {}
    settings: Any
    try:
        settings = try_parse_json(text) if isinstance(text, str) else dict(text)
        settings = key_val_to_dict(text) if isinstance(settings, str) else settings
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or not settings:
        raise UserError(f"--gen-kwargs {text}: write it as temperature=0.8,do_sample=true, or as a JSON object")
    for name, value in settings.items():
        if name not in GENERATION:
            raise UserError(f"--gen-kwargs {name}: there is no such setting here; {nearest(name, list(GENERATION))}")
        kinds, words = GENERATION[name]
        # True is a whole number for Python.
        fits = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
        fits = fits and not (isinstance(value, list) and any(not isinstance(text, str) for text in value))
        if not fits or (name == "max_gen_toks" and int(value) < 1):
            raise UserError(f"--gen-kwargs {name}={value}: it must be {words}")
    return settings


def generates(task: Task) -> bool:
    """Whether a task's answers are generated texts."""
    return bool(task.get_config("output_type") == "generate_until")


def change_generation(tasks: Mapping[str, Task], settings: Mapping[str, Any]) -> None:
    """Change the settings of the texts that tasks generate, as lm-eval does. UserError for one without effect."""
    generating = [task for task in tasks.values() if generates(task)]
    if not generating:
        raise UserError(f"--gen-kwargs has no effect: no text is generated in {', '.join(tasks)}; leave it out")
    for task in generating:
        task.set_config("generation_kwargs", dict(settings), update=True)
        kwargs = task.get_config("generation_kwargs")
        sampled = kwargs.get("do_sample")
        sampled = kwargs.get("temperature", 0) > 0 if sampled is None else sampled
        lost = next((name for name in SAMPLING if settings.get(name) and not sampled), None)
        if lost is not None:
            raise UserError(
                f"--gen-kwargs {lost}={settings[lost]} has no effect on {task.task_name}, which takes the likeliest "
                "tokens; add do_sample=true and a temperature"
            )
        if sampled and not kwargs.get("temperature"):
            raise UserError("--gen-kwargs do_sample=true: add a temperature above 0, such as temperature=0.8")
        Sampling(**{name: kwargs[name] for name in SAMPLING if sampled and kwargs.get(name) is not None})


# ---- tasks of one's own ----


def own_tasks(folder: Path) -> dict[str, Any]:
    """Name → entry of lm-eval's index, of the tasks, groups and tags below a folder. UserError if there is none, and
    for a file that is no YAML."""
    import yaml
    from lm_eval.tasks._index import TaskIndex
    from lm_eval.tasks._yaml_loader import load_yaml

    entries: dict[str, Any] = {}
    for path in TaskIndex._iter_yaml_files(folder):
        try:
            # lm-eval itself passes over a file that it cannot read.
            written = load_yaml(path, resolve_func=False)
        except yaml.MarkedYAMLError as error:
            line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
            raise UserError(f"--include-path: {path}{line}: this is not YAML ({error.problem})") from None
        except OSError as error:
            raise UserError(f"--include-path: {path}: a file that it includes is not there ({error})") from None
        if isinstance(written, dict) and {"task", "group", "class"} & written.keys():
            TaskIndex.process_cfg(written, path, entries)
    if not entries:
        raise UserError(f"--include-path {folder}: there is no task in it; a task is a .yaml file with `task: NAME`")
    return entries


def lost_member(manager: TaskManager, member: str | dict[str, Any]) -> str | None:
    """The first member of a task or group that an index of lm-eval lacks; None if it has all of them. member: a name, a
    task or group with changes, or a group written in place."""
    from lm_eval.tasks._index import Kind

    if isinstance(member, dict) and isinstance(member.get("task"), list):
        members = member["task"]
    else:
        name = member if isinstance(member, str) else str(member.get("task") or member.get("group"))
        entry = manager.task_index.get(name)
        if entry is None:
            return name
        members = (entry.cfg or {}).get("task") or [] if entry.kind is Kind.GROUP else []
    inside = [members] if isinstance(members, str) else members
    return next((lost for part in inside if (lost := lost_member(manager, part)) is not None), None)


def missing_packages(error: ImportError) -> str:
    """What to install for a task: an extra of lm-eval, where its message names one, else the package."""
    extra = _EXTRA.search(str(error))
    if extra is not None:
        return f"it needs packages that are not installed; get them with pip install 'lm-eval[{extra[1]}]'"
    missing = f"{error.name}, which is not installed" if error.name else first_line(error)
    return f"lm-eval's code for it needs {missing}"


def wrong_split(error: Exception) -> str | None:
    """What is wrong with a task that failed with a KeyError, because its data set lacks a split that it names; None if
    that is not why."""
    if not isinstance(error, KeyError):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        task = frame.f_locals.get("self")
        splits, config = getattr(task, "dataset", None), getattr(task, "config", None)
        if isinstance(splits, dict) and config is not None:
            for key in ("training_split", "validation_split", "test_split", "fewshot_split"):
                if (split := getattr(config, key, None)) and split not in splits:
                    return f"its {key} is {split!r}, and its data has only {', '.join(splits)}; write one of these"
    return None


def wrong_option(options: Sequence[Any]) -> str | None:
    """What is wrong with the options of a question, in words; None if nothing is."""
    if not options:
        return "it has no options"
    for number, option in enumerate(options, 1):
        if not isinstance(option, str):
            return f"the option {option!r} is not a text"
        if not option:
            return f"option {number} of {len(options)} is empty"
    return None


def check_options(task: Any, limit: int | None) -> None:
    """UserError for a question that is asked and whose options cannot be compared, which lm-eval would find after
    measuring, or divide by their length. limit: see `measure_tasks`."""
    if task.get_config("output_type") != "multiple_choice":
        return
    for number, doc in enumerate(islice(task.eval_docs, limit), 1):
        if (problem := wrong_option(task.doc_to_choice(doc))) is not None:
            split = task.get_config("test_split") or task.get_config("validation_split")
            raise UserError(f"example {number} of {split}: {problem}; correct or remove this example")


# ---- the chat template ----


def chat_tokenizer(file: Path, tokenizer: Tokenizer) -> Any:
    """The tokenizer of transformers with the chat template that stands beside the tokenizer.json `file`. UserError
    without a template."""
    template = chat_template(file, tokenizer)
    if not template.own:
        raise UserError(
            f"--apply-chat-template: the tokenizer of this model has no chat template; write one to "
            f"{file.parent / TEMPLATE}, or leave the option out"
        )
    return template.of_transformers


# ---- lm-eval's files ----


class Report:
    """Results in lm-eval's own files, written by its own EvaluationTracker. model: as somebody named it."""

    def __init__(self, options: Options, model: str) -> None:
        from lm_eval.loggers import EvaluationTracker

        assert options.output_path is not None
        self.options, self.model, self.date = options, model, time.time()
        self.tracker = EvaluationTracker(output_path=str(options.output_path))
        self.parts: list[dict[str, Any]] = []
        self.added: list[tuple[int, list[str]]] = []

    def add(self, results: Mapping[str, Any]) -> None:
        """Add what lm-eval's `evaluate` gives. A task that a suite asks again, with another number of solved examples,
        begins another file."""
        names = results["results"].keys()
        number = next((i for i, part in enumerate(self.parts) if not part["results"].keys() & names), len(self.parts))
        if number == len(self.parts):
            self.parts.append({"results": {}})
        for name, value in results.items():
            self.parts[number].setdefault(name, {}).update(value)
        self.added.append((number, list(results.get("samples", {}))))

    def write(self, model: Any, settings: Mapping[str, Any]) -> tuple[tuple[Path, ...], list[dict[str, str]]]:
        """Write all; returns the files of results, and for each `add` the files of its tasks' samples. settings:
        further ones for `config`. UserError for a file that is not there then: lm-eval says so in its log only."""
        options, chat = self.options, self.options.apply_chat_template
        self.tracker.general_config_tracker.log_experiment_args(
            model_source="hybridlab",
            model_args={"pretrained": self.model},
            system_instruction=options.system_instruction,
            chat_template=model.chat_template(True) if chat else None,
            fewshot_as_multiturn=chat,
        )
        config = {
            "model": "hybridlab",
            "model_args": {"pretrained": self.model},
            **model.get_model_info(),
            "batch_size": str(model.batch_size),
            "batch_sizes": list(model.batch_sizes.values()),
            "device": str(model.device),
            "gen_kwargs": dict(options.gen_kwargs),
            **settings,
        }
        written = [self._written(part, config, model) for part in self.parts]
        missing = next((path for path, _ in written if not path.is_file()), None)
        if missing is not None:
            raise UserError(f"--output-path: {missing} could not be written; make room there, or name another folder")
        samples = [{task: str(written[number][1][task]) for task in tasks} for number, tasks in self.added]
        return tuple(path for path, _ in written), samples

    def _written(self, part: dict[str, Any], config: dict[str, Any], model: Any) -> tuple[Path, dict[str, Path]]:
        """Write one file of results, with its samples; returns their paths."""
        from lm_eval.loggers.utils import add_env_info, add_tokenizer_info, get_commit_from_path

        samples = part.pop("samples", {})
        results = {**part, "config": config, "git_hash": get_commit_from_path(Path.cwd()), "date": self.date}
        add_env_info(results)
        add_tokenizer_info(results, model)
        self.tracker.save_results_aggregated(results, samples)
        for task, rows in samples.items():
            self.tracker.save_results_samples(task, rows)
        path, date = Path(str(self.tracker.output_path)).absolute(), self.tracker.date_id
        if path.suffix == ".json":
            folder, name = path.parent, f"{path.stem}_{date}.json"
        else:
            folder, name = path / str(self.tracker.general_config_tracker.model_name_sanitized), f"results_{date}.json"
        return folder / name, {task: folder / f"samples_{task}_{date}.jsonl" for task in samples}
