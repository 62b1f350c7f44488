"""A run that two processes train together is the run of one process, up to the rounding of sums over rows."""

import json
import os
import resource
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from hybridlab.errors import Interrupted, NoRoom, RunFailed
from hybridlab.evaluation.lm_eval_model import HarnessModel, special_tokens_of
from hybridlab.messages import heard_by
from hybridlab.methods.sgt.training import EntropyGrowth
from hybridlab.models.export import load_checkpoint
from hybridlab.runs import run as run_module
from hybridlab.runs.record import read_record
from hybridlab.training.engine import Run
from hybridlab.training.ranks import _exit_code
from hybridlab.training.store.artifacts import open_model
from hybridlab.training.store.folders import RunFolder, Runs
from hybridlab.training.world import world
from tests.combinations import some
from tests.conftest import ROOT, SMALL_SHAPE, SMALL_TRAINING, write_text
from tests.integration.test_cli import hybridlab
from tests.integration.test_finetuning import ENCODER, composed, parent, task_file
from tests.processes import Forked, command, forked_command, in_ranks
from tests.training import FIVE_LAYERS, GROWTH_TIMES, marking, train, watching, weights

GRID = ("ablate", "--seeds", "1", "--config", "small.yaml", "--data", "text:words.txt", "--vary")


def joined(rank, jobs, folder):
    """What each of two processes does. jobs: name → (configuration, folder of runs)."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    growing, runs_dir = jobs["growing"]
    try:
        with pytest.MonkeyPatch.context() as patch:
            # The second process alone gets a signal; both stop after the step that it came in.
            patch.setattr(Run, "_gradients", signalled(Run._gradients))
            with pytest.raises(Interrupted):
                train(growing, folder / "growing", runs_dir)
        assert RunFolder(folder / "growing").checkpoint_steps[-1] == 7
        for name, (config, runs) in jobs.items():
            train(config, folder / name, runs)
        found = answers(folder / "growing")
        (folder / f"answers.{rank}.json").write_text(json.dumps(found))
        with pytest.MonkeyPatch.context() as patch:
            # Entropies of their own would give each process another structure.
            patch.setattr(
                EntropyGrowth, "_entropies", lambda hook: [[float(layer == 3 + rank)] * 4 for layer in range(5)]
            )
            with pytest.raises(RunFailed, match="loop-added after step 3 is not the same in all processes"):
                train(growing, folder / "apart", runs_dir)
    finally:
        dist.destroy_process_group()


def answers(folder):
    """What lm-eval gets of a model: log-likelihoods, those of whole texts, and generated texts; five requests each."""
    opened = open_model(str(folder), Runs(folder.parent))
    tokenizer = opened.own_tokenizer()
    harness = HarnessModel(opened.model, tokenizer, special_tokens_of(opened.path, tokenizer), 24, batch_size=2)
    texts = ["to be", "or not", "to be or not", "that is the question of this play", "a"]
    pairs = [SimpleNamespace(args=(text, end)) for text in texts for end in (" is", " it", " was")]
    whole = [SimpleNamespace(args=(text * 4,)) for text in texts]
    until = [SimpleNamespace(args=(text, {"until": ["e"], "max_gen_toks": 6})) for text in texts]
    return [
        [list(answer) for answer in harness.loglikelihood(pairs)],
        harness.loglikelihood_rolling(whole),
        harness.generate_until(until),
    ]


def in_fp64(rank, jobs, folder):
    """What each of two processes does. jobs: name → (configuration, folder of runs)."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        for name, (config, runs_dir) in jobs.items():
            train(config, folder / "ddp" / name, runs_dir)
            shared = config.model_copy(update={"runtime": config.runtime.model_copy(update={"sharding": "fsdp2"})})
            if name == "vanilla":
                with pytest.raises(NoRoom, match="weights.partial: it cannot be written"), small_files():
                    train(shared, folder / "full", runs_dir)
                dist.barrier()  # The first rank removes what both have written.
                assert not [path for path in (folder / "full").rglob("*") if "partial" in path.name]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Run, "_gradients", signalled(Run._gradients))
                with pytest.raises(Interrupted):
                    train(shared, folder / "fsdp2" / name, runs_dir)
    finally:
        dist.destroy_process_group()


@contextmanager
def small_files():
    """A context in which a process writes no file of more than 20 kB, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def signalled(gradients, at=6):
    def watched(run, batch, step):
        if step == at and not world().writer:
            os.kill(os.getpid(), signal.SIGTERM)
        return gradients(run, batch, step)

    return watched


def assert_close_run(alone, together):
    """Two folders hold the same files, and the same record and weights up to rounding."""
    one, two = (read_record(folder / "record.json") for folder in (alone, together))
    assert two.history.keys() == one.history.keys()
    for name, values in one.history.items():
        assert two.history[name] == pytest.approx(values, rel=2e-3, abs=1e-5), name
    a, b = weights(alone), weights(together)
    assert a.keys() == b.keys() and load_checkpoint(alone).structure == load_checkpoint(together).structure
    # A softmax over positions is the same with any bias: Adam makes steps of the rounding errors of its gradient.
    for name in (name for name in a if name != "head.linear.bias"):
        torch.testing.assert_close(b[name], a[name], rtol=2e-3, atol=5e-4)
    for was, now in (
        (one.results, two.results),
        *((one.results.at[step], two.results.at[step]) for step in one.results.at),
    ):
        assert now.validation.windows == pytest.approx(was.validation.windows, abs=1e-3)
        assert now.tasks.keys() == was.tasks.keys()
        for task in was.tasks:
            assert now.tasks[task].loss.all.value == pytest.approx(was.tasks[task].loss.all.value, abs=1e-3)
    if one.results.finetune is not None:
        assert two.results.finetune == one.results.finetune
    for name in one.results.choices:
        assert two.results.choices[name].loss.value == pytest.approx(one.results.choices[name].loss.value, rel=1e-3)
    for name in ("hash", "tokens", "flops", "redone_steps", "status", "structure"):
        assert getattr(two, name) == getattr(one, name), name
    for was, now in zip(one.events, two.events, strict=True):
        assert {**now, "entropies": None, "layer_entropies": None} == {
            **was,
            "entropies": None,
            "layer_entropies": None,
        }
    if "0" in one.results.at:
        # Both have the first weights there.
        assert two.results.at["0"] == one.results.at["0"]
    assert sorted(p.name for p in together.rglob("*")) == sorted(p.name for p in alone.rglob("*"))


def test_two_processes_train_one_run(small, tmp_path, tmp_path_factory, text_file, runs_dir):
    shared = {
        "data": {"mix": {"text": 0.5, "retrieval": 0.5}},
        "observe": {"entropy_every": 3, "each_step": ["loss", "gradient_norm"]},
        "evaluation": {"every": 5, "keep_best": True, "at_steps": [0, 7], "validation_windows": 70, "task_rows": 40},
        "hooks": [{"kind": "entropy-reg", "weight": 0.01}],
    }
    shared["evaluation"]["task_window"] = 4
    runtime = {"micro_batch_rows": 3, "keep_steps": [4]}
    controller = {**GROWTH_TIMES, "max_passes": 2, "max_layers": 2}
    growing = small("sgt", shape=FIVE_LAYERS["shape"], controller=controller, runtime=runtime, **shared)
    rule = {"kind": "mask-learning", "rho": 0.5, "granularity": "head-single", "mask_lr": 0.5, "multiplier_lr": 0.5}
    choices = {"tasks": ["assignment-basic"], "items": 12, "shots": 1}
    learning = small("consa", controller=rule, data=shared["data"], evaluation={"choices": choices})
    masked = {"shape": ENCODER, "data": {"tokenizer": "byte+mask"}}
    encoder = parent(tmp_path_factory, text_file, "bert", "bert-tiny", **masked)
    tuned = composed(encoder, "squad", data=task_file(tmp_path, "squad"), steps=3, lr=1e-3)
    jobs = {"growing": (growing, runs_dir), "learning": (learning, runs_dir)}
    jobs |= {"masked": (RunFolder(encoder).config(), runs_dir), "tuned": (tuned, encoder.parent)}
    # Blocks are gathered in bf16, and in fp32 for the probe of causality.
    halves = small(training={"precision": "bf16"}, runtime={"sharding": "fsdp2"})
    for name, (config, runs) in (jobs | {"halves": (halves, runs_dir)}).items():
        train(config, tmp_path / "alone" / name, runs)
    (tmp_path / "together").mkdir()
    in_ranks(joined, jobs | {"halves": (halves, runs_dir)}, tmp_path / "together")
    for name in jobs:
        assert_close_run(tmp_path / "alone" / name, tmp_path / "together" / name)
    one, two = (read_record(tmp_path / world / "halves" / "record.json") for world in ("alone", "together"))
    assert two.history["loss"] == pytest.approx(one.history["loss"], rel=2e-3)
    # What rounding leaves of fp32 depends on the processor, and on the order of a sum over ranks.
    assert max(one.results.causality["largest_change"], two.results.causality["largest_change"]) < 1e-5
    assert two.results.validation.loss.value == pytest.approx(one.results.validation.loss.value, rel=2e-3)
    for rank in (0, 1):  # each has all scores, with the bits of one process
        found = json.loads((tmp_path / "together" / f"answers.{rank}.json").read_text())
        assert found == answers(tmp_path / "together" / "growing")


METHODS = {
    # Seven rows, four and three of which are two and one micro-batches.
    "vanilla": {"training": {"tokens_per_step": 224}, "runtime": {"activation_checkpointing": True}},
    "rule-swa": {"map": {"rho": 0.5}},
    "sgt": {**FIVE_LAYERS, "controller": {**GROWTH_TIMES, "max_passes": 2, "max_layers": 2}},
    "consa": {"controller": {"rho": 0.5, "mask_lr": 0.5, "multiplier_lr": 0.5}},
    "l1-gates": {"controller": {"rho": 0.5}},
    "block-loop": {},
    "spiral-b": {"shape": {"layers": 6}},
    "mesh": {"shape": {"layers": 6}},
    "lidas": {"shape": {"layers": 6}, "controller": {"block": 2}},
    "midas": {"shape": {"layers": 6}, "controller": {"block": 2}},
    "saobp-high": {"map": {"attention": {"strength": 0.2}}},
    "entropy-reg": {},
}
FIRST, SECOND = ["vanilla", "sgt", "saobp-high"], ["consa", "mesh", "lidas"]
THIRD = [name for name in METHODS if name not in FIRST + SECOND]


@pytest.mark.long
@pytest.mark.parametrize("chosen", some([FIRST, SECOND, THIRD], FIRST), ids=", ".join)
def test_two_ranks_are_one_process_in_fp64(small, tmp_path, runs_dir, request, chosen):
    """With whole copies of the weights, and with parts of every block for seven steps, after which one process goes on
    alone. The other methods with --faults 2."""
    if chosen is THIRD and request.config.getoption("--faults") < 2:
        pytest.skip("takes --faults 2")
    data = {"mix": {"text": 0.5, "retrieval": 0.5}}
    jobs = {}
    for arch, parts in ((arch, METHODS[arch]) for arch in chosen):
        training = {"steps": 20, "precision": "fp64", **parts.get("training", {})}
        runtime = {"micro_batch_rows": 3, **parts.get("runtime", {})}
        settings = {"shape": {"layers": 4}, **parts, "training": training, "data": data, "runtime": runtime}
        jobs[arch] = (small(arch, **settings), runs_dir)
    for name, (config, runs) in jobs.items():
        train(config, tmp_path / "alone" / name, runs)
    in_ranks(in_fp64, jobs, tmp_path)
    for name, (config, runs) in jobs.items():
        train(config, tmp_path / "fsdp2" / name, runs)
        alone, whole = weights(tmp_path / "alone" / name), read_record(tmp_path / "alone" / name / "record.json")
        for sharding in ("ddp", "fsdp2"):
            found, record = weights(tmp_path / sharding / name), read_record(tmp_path / sharding / name / "record.json")
            assert found.keys() == alone.keys(), (name, sharding)
            for tensor in alone:
                assert alone[tensor].dtype == torch.float64
                torch.testing.assert_close(found[tensor], alone[tensor], rtol=0, atol=1e-9, msg=f"{name}, {sharding}")
            assert [event["kind"] for event in record.events] == [event["kind"] for event in whole.events]
        assert read_record(tmp_path / "ddp" / name / "record.json").machine["ranks"] == 2
        assert "ranks" not in whole.machine


PHASES = ("_place", "__init__", "take_step", "save", "resume")


def in_parts(rank, config, folder, runs_dir, stopped):
    """What each of two processes does: train until it is stopped, or go on to the end; writes the bytes that each phase
    took."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/{stopped}", rank=rank, world_size=2)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            marking(patch, Run, *PHASES),
            marking(patch, run_module, "_measured", "_save"),
            watching() as peaks,
        ):
            patch.setattr(run_module, "keep_freed_memory", lambda: False)
            if stopped:
                patch.setattr(Run, "_gradients", signalled(Run._gradients, at=1))
            with pytest.raises(Interrupted) if stopped else nullcontext():
                train(config, folder / "run", runs_dir)
        (folder / f"{stopped}.{rank}.json").write_text(json.dumps(peaks()))
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_no_rank_ever_holds_the_whole_model(small, tmp_path, runs_dir):
    """With fsdp2: not when weights are drawn, trained, saved, loaded, measured and written at the end. Of four times
    the weights (with moments and gradients) each of two ranks has two, with two of ten blocks whole in a step, and the
    buffers in which they are gathered; when it saves, the moments and once more what it writes. The control holds
    copies (ddp)."""
    shape = {"layers": 10, "width": 384, "heads": 6, "kv_heads": 6, "head_width": 64, "ffn_width": 768}
    training = {"steps": 4, "tokens_per_step": 64, "seq_len": 32}
    evaluation = {"validation_windows": 2, "task_window": None}
    peaks = {}
    for sharding, stopped in (("ddp", True), ("fsdp2", True), ("fsdp2", False)):
        runtime = {"sharding": sharding, "checkpoint_every": 100, "checkpoint_seconds": None}
        config, folder = (
            small(shape=shape, training=training, evaluation=evaluation, runtime=runtime),
            tmp_path / sharding,
        )
        folder.mkdir(exist_ok=True)
        in_ranks(in_parts, config, folder, runs_dir, stopped)
        peaks[sharding, stopped] = [json.loads((folder / f"{stopped}.{rank}.json").read_text()) for rank in (0, 1)]
    train(config, tmp_path / "alone", runs_dir)
    alone, found = weights(tmp_path / "alone"), weights(tmp_path / "fsdp2" / "run")
    for name in alone:
        torch.testing.assert_close(found[name], alone[name], rtol=0, atol=1e-4)
    whole = sum(tensor.numel() * tensor.element_size() for tensor in alone.values())
    most = {"__init__": 0.75, "resume": 1.9, "take_step": 2.8, "save": 3.1, "_measured": 2.6, "_save": 2.8}
    for found in peaks["fsdp2", True] + peaks["fsdp2", False]:
        shares = {phase: size / whole for phase, size in found.items() if phase in most}
        assert all(share < most[phase] for phase, share in shares.items()), shares
    for found in peaks["ddp", True]:
        assert found["__init__"] > 0.85 * whole and found["take_step"] > 3.9 * whole, (found, whole)


# ---- from the command line ----


@pytest.fixture
def start(tmp_path):
    """A function that starts `hybridlab pretrain` in two ranks, with further options."""
    write_text(tmp_path / "words.txt")
    runtime = {"log_every": 1, "checkpoint_every": 50}
    settings = {"shape": SMALL_SHAPE, "training": SMALL_TRAINING, "data": {"tokenizer": "byte"}, "runtime": runtime}
    (tmp_path / "small.yaml").write_text(json.dumps(settings | {"evaluation": {"validation_windows": 8}}))
    words = ["pretrain", "--data", "text:words.txt", "--config", "small.yaml", "--run-dir", "run", "--ranks", "2"]

    def started(*options):
        return Forked(command, [*words, *options], cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})

    return started


def wait_for(folder, steps, process):
    """Wait until a run has logged so many steps."""
    log = folder / "run" / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") > steps):
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()


def rank_one(process):
    """The process id of the second rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    environments = {child: Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children}
    return next(int(child) for child, names in environments.items() if b"RANK=1" in names)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for the ranks in /proc")
@pytest.mark.long
def test_a_rank_that_dies(start, tmp_path):
    """Without restarts the command fails in a sentence; with one, the ranks go on from the last checkpoint."""
    process = start("--steps", "160")
    wait_for(tmp_path, 60, process)
    os.kill(rank_one(process), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in err
    assert err.splitlines()[-1].startswith("failed: rank 1 was ended by SIGKILL; the same command goes on")
    process = start("--steps", "160", "--max-restarts", "1")
    wait_for(tmp_path, 100, process)
    os.kill(rank_one(process), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err.count("resuming after step") == 2
    record = read_record(tmp_path / "run" / "record.json")
    assert record.status == "finished" and record.machine["ranks"] == 2 and record.redone_steps > 0


@pytest.mark.long
def test_a_grid_and_an_evaluation_in_ranks(start, tmp_path):
    """Each run of a queue is shared by the ranks, one after the other; an evaluation has the numbers of one process."""
    grid = (*GRID, "training.steps=3,4")
    done = hybridlab(*grid, "--ranks", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = [path.parent for path in sorted((tmp_path / "runs").glob("*/record.json"))]
    assert [read_record(folder / "record.json").machine["ranks"] for folder in folders] == [2, 2]
    assert len(list((tmp_path / "results" / "records").iterdir())) == 2
    shown = hybridlab("runs", "--jobs", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["jobs"] == []
    one = hybridlab("eval", folders[0], "--json", cwd=tmp_path)
    two = Forked(command, ["eval", folders[0], "--json", "--ranks", "2"], cwd=tmp_path)
    shown, err = two.communicate()
    assert two.returncode == 0 and json.loads(shown) == json.loads(one.stdout), err
    both = hybridlab(*grid, "--ranks", "2", "--jobs", "2", cwd=tmp_path)
    assert both.returncode == 2 and "leave out --jobs" in both.stderr
    lone = hybridlab("eval", folders[0], "--rank-timeout", "5", cwd=tmp_path)
    assert lone.returncode == 2 and "have no effect on one process; add --ranks N" in lone.stderr


@pytest.mark.long
def test_a_rank_that_dies_on_its_way_out(start, tmp_path):
    """A run of a grid whose end all ranks have agreed on is finished, and what the rank wrote last is shown; a rank of
    a single run ends without taking the interpreter down."""
    lines = ["import atexit, os, sys", "def end():", "    sys.stderr.write('on its way out\\n')", "    os.abort()"]
    (tmp_path / "dies.py").write_text(
        "\n".join([*lines, "if os.environ.get('RANK') == '1':", "    atexit.register(end)"])
    )
    plugin = ("--plugin", "./dies.py")
    done = Forked(command, (*plugin, *GRID, "training.steps=3", "--ranks", "2"), cwd=tmp_path)
    _, err = done.communicate()
    assert done.returncode == 0 and "failed" not in err, err
    assert "rank 1: on its way out" in err
    assert len(list((tmp_path / "results" / "records").iterdir())) == 1
    # In a process of its own, since a plug-in stays loaded and is part of a run's identity.
    single = forked_command(
        *plugin, "pretrain", "--config", "small.yaml", "--data", "text:words.txt", "--steps", "3", "--ranks", "2",
        "--run-dir", "single", cwd=tmp_path,
    )  # fmt: skip
    assert single.returncode == 0, single.stderr


def test_queues_take_one_way(tmp_path, monkeypatch):
    both = hybridlab("reproduce", "consa-table1", "--ranks", "2", "--launcher", "slurm", cwd=tmp_path)
    assert both.returncode == 2 and "--ranks is for this machine" in both.stderr
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    under = hybridlab("reproduce", "consa-table1", cwd=tmp_path)
    assert under.returncode == 2 and "torchrun is for a single run" in under.stderr


@pytest.mark.long
def test_ranks_stop_together(start, tmp_path):
    process = start("--steps", "3000")
    wait_for(tmp_path, 20, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143 and "Traceback" not in err
    assert "interrupted: run: stopped after step" in err and "--ranks 2" in err
    assert RunFolder(tmp_path / "run").checkpoint_steps[-1] >= 20


@pytest.mark.parametrize(
    "options, said", [(["--arch", "vanila"], "did you mean 'vanilla'?"), (["--ranks", "9999"], "")]
)
def test_mistakes_are_said_once(start, options, said):
    process = start(*options)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("error:") == 1 and said in err


@pytest.mark.parametrize("first", [0, 1])
def test_a_mistake_of_every_rank_is_said_by_the_first(tmp_path, first):
    """Whichever of them the agent sees first."""
    logs = tmp_path / "1" / "stderr.log"
    logs.parent.mkdir()
    logs.write_text("error: of rank 1\n")
    failures = {rank: SimpleNamespace(local_rank=rank, exitcode=2, timestamp=rank != first) for rank in (0, 1)}
    heard = []
    with heard_by(heard.append):
        assert _exit_code(SimpleNamespace(failures=failures), tmp_path) == 2 and not heard
        # What the first rank did not say, since it was ended before, is said for the other one.
        if first == 1:
            failures[0].exitcode = -signal.SIGTERM
            assert _exit_code(SimpleNamespace(failures=failures), tmp_path) == 2 and heard == [
                "rank 1: error: of rank 1"
            ]
        failures = {1: SimpleNamespace(local_rank=1, exitcode=-signal.SIGABRT, timestamp=0)}
        with pytest.raises(RunFailed, match="rank 1 was ended by SIGABRT"):
            _exit_code(SimpleNamespace(failures=failures), tmp_path)
        assert heard[-1] == "rank 1: error: of rank 1"


def aborted(tmp_path, written):
    """How a command ends whose rank 2 was aborted, and what is said before. written: rank → its standard error."""
    for rank, text in written.items():
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True)
        (tmp_path / "attempt_0" / str(rank) / "stderr.log").write_text(text + "\nframe #0: c10::Error\n" * 9)
    failed = SimpleNamespace(failures={2: SimpleNamespace(local_rank=2, exitcode=-signal.SIGABRT, timestamp=0)})
    heard = []
    with heard_by(heard.append), pytest.raises(RunFailed) as ended:
        _exit_code(failed, tmp_path)
    return str(ended.value).partition(";")[0], heard


WAITED = (
    "[rank2]:[E810 03:04:11 ProcessGroupNCCL.cpp:683] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=78, OpType=_ALLGATHER_BASE, NumelIn=80, NumelOut=640, Timeout(ms)=600000) ran for 600096 milliseconds "
    "before timing out."
)
ILLEGAL = (
    "[rank2]:[E810 03:04:11 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog "
    "thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
) * 2


def test_what_nccl_says_as_it_aborts_a_rank_is_a_sentence(tmp_path):
    """Its watchdog is a thread of its own, whose error no Python sees."""
    for late, (folder, written) in {
        "3": ("one", {1: WAITED, 2: WAITED, 3: "warning"}),
        "1, 3": ("two", {1: "", 2: WAITED, 3: ""}),
        "0": ("first", {1: WAITED, 2: WAITED, 3: WAITED}),
    }.items():
        how, heard = aborted(tmp_path / folder, written)
        assert how == f"NCCL ended the ranks that waited 600 seconds for rank {late} in ALLGATHER_BASE" and not heard
    how, heard = aborted(tmp_path / "cuda", {1: "", 2: ILLEGAL, 3: ""})
    assert how == "rank 2 was ended by SIGABRT" and heard == [
        "rank 2: Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
        "encountered"
    ]
