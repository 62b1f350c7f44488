"""What can be known to fail about a run before any run of its queue trains."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hybridlab.analysis.probe import check_probe_settings
from hybridlab.config.resolve import parents
from hybridlab.config.schema import RunConfig
from hybridlab.data.preparing import Job, corpus_for, corpus_of, prepared_corpus
from hybridlab.data.shards import Corpus
from hybridlab.errors import UserError
from hybridlab.models.kernels import require_kernel
from hybridlab.plan.forecast import final_structure
from hybridlab.runs.ancestors import find_ancestor
from hybridlab.runs.attempt import QueuedRun, Say
from hybridlab.runs.extension import require_checkpoint
from hybridlab.runs.inputs import with_inputs
from hybridlab.runs.run import compiles, known_places
from hybridlab.structure.registry import make_hooks
from hybridlab.training.folders import Runs
from hybridlab.training.machine import pick_device
from hybridlab.training.objective import make_objective
from hybridlab.training.trackers import require_trackers


def check_runs(queue: Iterable[QueuedRun], runs_dir: Path, say: Say, prepare: bool = True) -> None:
    """UserError, with its name, for the first run that cannot start: device, kernel, parents, structure and data.

    prepare: also prepare the data, once for all runs that share it; otherwise only look at what is prepared already.
    Runs whose parents are in the queue are checked as far as it goes without these.
    """
    queue = list(queue)
    inside = {run.digest for run in queue}
    corpora: dict[str, Corpus | None] = {}
    for run in queue:
        try:
            _check(run, inside, runs_dir, say, prepare, corpora)
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None


def _check(
    run: QueuedRun, inside: set[str], runs_dir: Path, say: Say, prepare: bool, corpora: dict[str, Corpus | None]
) -> None:
    config = run.config
    require_kernel(config.runtime.kernel, pick_device(config.runtime.device), training=True)
    compiles(config, run.folder, None, lambda _: None)
    require_trackers(config.runtime.track)
    check_probe_settings(config)
    runs = known_places(Runs(runs_dir), run.folder)
    ancestors = {digest: find_ancestor(digest, runs) for digest in parents(config) if digest not in inside}
    if not inside & set(parents(config)):
        kinds = final_structure(with_inputs(config, runs, say)).map.each_kind()
        require_kernel(config.runtime.kernel, pick_device(config.runtime.device), training=True, kinds=kinds)
    if config.init is not None and config.init.step is not None and config.init.run in ancestors:
        require_checkpoint(runs.finished(config.init.run), config.init)
    make_hooks(config)
    corpus = _corpus(config, runs_dir, say, prepare, corpora)
    if corpus is None:
        return
    make_objective(config, corpus).source(config, corpus)
    if config.init is not None and config.init.run in ancestors:
        ancestors[config.init.run].check_tokenizer(corpus, config.data)


def _corpus(
    config: RunConfig, runs_dir: Path, say: Say, prepare: bool, corpora: dict[str, Corpus | None]
) -> Corpus | None:
    """The data of a run; None if it is not prepared yet, or needs the tokenizer of a run that is not trained yet."""
    kind, _, path = config.data.tokenizer.partition(":")
    if kind == "file" and not Path(path).exists() and str(Path(path)).startswith(str(runs_dir.absolute())):
        return None
    key = config.data.model_dump_json(exclude={"mix", "task_loss_weight"})
    cache, job = runs_dir / "data", Job(lambda text: say(f"data: {text}"))
    if config.finetune is not None:
        return corpus_of(config, cache, job)
    if key not in corpora:
        if prepare:
            corpora[key] = corpus_for(config.data, cache, job)
        else:
            corpora[key] = prepared_corpus(config.data, cache)
    return corpora[key]
