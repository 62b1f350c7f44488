import json
import math
import os
import platform

import pytest
import torch

from hybridlab.config.training import Optimizer, Schedule
from hybridlab.errors import UserError
from hybridlab.files import json_text, write_json
from hybridlab.messages import heard_by, print_line, say, titled, without_repeats
from hybridlab.models.build import build_model
from hybridlab.training import progress
from hybridlab.training.machine import peak_flops
from hybridlab.training.optimizer import learning_rate_factor, model_groups
from hybridlab.training.progress import Progress, clock, event_line, followed
from hybridlab.training.store import checkpoints
from hybridlab.training.store.folders import RunFolder
from hybridlab.training.store.metrics import MetricsLog, read_metrics
from tests.processes import forked_python


def factors(name, steps=100, **changes):
    schedule = Schedule(name=name, **changes)
    return [learning_rate_factor(schedule, step, steps) for step in range(steps)]


def test_the_cosine_schedule():
    path = factors("cosine", warmup_steps=10, final_ratio=0.1)
    assert path[0] == 0.1 and path[9] == 1.0 and path[-1] == pytest.approx(0.1)
    assert path[54] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2)
    assert all(a >= b for a, b in zip(path[9:], path[10:], strict=False))


def test_the_wsd_and_trapezoidal_schedules():
    linear = factors("wsd", warmup_steps=10, decay_fraction=0.2, final_ratio=0.0)
    root = factors("trapezoidal", warmup_steps=10, decay_fraction=0.2, final_ratio=0.0)
    assert linear[9:80] == [1.0] * 71 and linear[-1] == 0.0 and linear[89] == pytest.approx(0.5)
    assert root[9:80] == [1.0] * 71 and root[-1] == 0.0 and root[89] == pytest.approx(1 - math.sqrt(0.5))


def test_schedules_stay_in_range_at_their_edges():
    for kind in ("cosine", "wsd", "trapezoidal"):
        for warmup, decay in ((0, 0.0), (0, 1.0), (5, 1.0), (5, 0.0)):
            path = factors(kind, 5, warmup_steps=warmup, decay_fraction=decay, final_ratio=0.1)
            assert all(0 < f <= 1 for f in path)


def test_groups_cover_every_parameter_once_and_decay_matrices_only():
    model = build_model("vanilla")
    groups = model_groups(model, Optimizer(weight_decay=0.3))
    names = [name for group in groups for name in group.tensors]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    decayed = {name for group in groups if group.weight_decay for name in group.tensors}
    assert "embedding.weight" not in decayed and all("norm" not in name for name in decayed)
    everything = model_groups(model, Optimizer(weight_decay=0.3, decay_all=True))
    assert len(everything) == 1


@pytest.mark.parametrize("decay_all", [False, True])
def test_the_routers_of_mesh_have_a_rate_of_their_own_where_it_is_asked_for(decay_all):
    model = build_model("spiral-b")
    as_others = {g.name: list(g.tensors) for g in model_groups(model, Optimizer(lr=0.1, decay_all=decay_all))}
    assert "routers" not in as_others
    settings = Optimizer(lr=0.1, router_lr_factor=0.25, weight_decay=0.3, decay_all=decay_all)
    groups = {group.name: group for group in model_groups(model, settings)}
    routers = groups.pop("routers")
    own = [name for name in as_others["matrices" if decay_all else "rest"] if "writers" in name or "readers" in name]
    assert sorted(routers.tensors) == sorted(own) and len(own) == 20
    assert routers.lr == 0.025 and routers.weight_decay == (0.3 if decay_all else 0.0)
    assert {group.lr for group in groups.values()} == {0.1}
    assert {name: [n for n in names if n not in own] for name, names in as_others.items()} == {
        name: list(group.tensors) for name, group in groups.items()
    }


def test_a_rate_of_routers_without_routers_is_an_error():
    for model in (build_model("vanilla"), build_model("spiral-b", recurrence={"topology": "anchor"})):
        with pytest.raises(UserError, match="router_lr_factor 0 has no effect: the model has no routers; remove it"):
            model_groups(model, Optimizer(router_lr_factor=0))


def save(folder, step, value=1.0, keep=2):
    tensors = {"w": torch.full((3,), value)}
    checkpoints.save_checkpoint(folder, step, tensors, {"w/step": torch.tensor(step)}, {"step": step}, keep)


def test_checkpoints_keep_the_newest(tmp_path):
    assert checkpoints.load_newest(tmp_path) is None
    for step in (2, 4, 6):
        save(tmp_path, step, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000004", "step-00000006"]
    newest = checkpoints.load_newest(tmp_path)
    assert newest.state == {"step": 6} and newest.model["w"][0] == 6


def test_unfinished_checkpoints_are_ignored(tmp_path):
    folder = tmp_path / "checkpoints"
    save(folder, 2)
    (folder / ".step-00000004.partial").mkdir()
    (folder / "step-00000006").mkdir()
    (folder / "step-00000006" / "model.safetensors").write_bytes(b"half")
    assert RunFolder(tmp_path).checkpoint_steps == [2]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "digests.json"])
def test_damaged_checkpoints_are_refused_and_the_one_before_offered(tmp_path, name):
    save(tmp_path, 2)
    save(tmp_path, 4)
    path = tmp_path / "step-00000004" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match="step-00000004: .*damaged.*remove this checkpoint to go on from step-00000002"):
        checkpoints.load_newest(tmp_path)


def test_checkpoints_by_time_come_early_and_take_a_small_share(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])

    def due_after(pace):
        start = now[0]
        while not pace.due():
            now[0] += 1
            if now[0] - start > 10_000:
                return None
        return now[0] - start

    def save(pace, took):
        with pace.saving():
            now[0] += took

    pace = checkpoints.Pace(300.0)
    assert due_after(pace) == 30, "the first one"
    save(pace, 1)
    assert due_after(pace) == 300
    save(pace, 60)
    assert due_after(pace) == 3000, "60 seconds are 2 % of 3,000"
    now[0] += 5
    save(pace, 0)
    assert due_after(pace) == 300, "counted from the last checkpoint"
    assert due_after(checkpoints.Pace(10.0)) == 10
    assert due_after(checkpoints.Pace(None)) is None


def test_metrics_after_a_checkpoint_are_removed_and_counted(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        log.write({"step": step, "loss": 1.0})
    log.write({"event": {"step": 3, "kind": "x"}})
    with log.path.open("a") as file:
        file.write('{"step": 4, "lo')
    log.cut(2, [])
    assert read_metrics(log.path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}, {"redone": 1}]
    log.write({"event": {"step": 2, "kind": "known"}})
    log.write({"event": {"step": 2, "kind": "unknown"}})
    log.cut(1, [{"step": 2, "kind": "known"}])
    assert log.redone_steps() == 2 and {"event": {"step": 2, "kind": "known"}} in read_metrics(log.path)
    assert "unknown" not in log.path.read_text()


def test_writes_are_atomic(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError):
        write_json(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 1} and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_has_a_line_for_each_list_and_for_each_row():
    rows = [[1, 0], [0, 1]]
    data = {
        "numbers": [0.1, 2.5e-05, 3],
        "rows": rows,
        "steps": [rows, rows],
        "events": [{"step": 1, "heads": [1, 2]}, {"step": 2, "found": {"a": {"b": 1}}}],
        "nothing": {"list": [], "object": {}, "value": None},
        "pair": (1, "ä"),
    }
    lines = json_text(data).splitlines()
    assert json.loads(json_text(data)) == json.loads(json.dumps(data))
    assert ' "numbers": [0.1, 2.5e-05, 3],' in lines and "  [1, 0]," in lines and "  [[1, 0], [0, 1]]," in lines
    assert (
        '  {"step": 1, "heads": [1, 2]},' in lines and '   "found": {' in lines and ' "pair": [1, "\\u00e4"]' in lines
    )
    assert [json_text(value) for value in (3, "a", [], [1, 2], {})] == ["3", '"a"', "[]", "[1, 2]", "{}"]
    with pytest.raises(ValueError):
        json_text({"x": [float("nan")]})


def test_durations_are_shown_as_hours_minutes_seconds():
    assert [clock(s) for s in (0, 65, 3661)] == ["0:00", "1:05", "1:01:01"]


def test_an_event_is_told_in_one_line():
    grown = {"step": 120, "kind": "loop-added", "layer": 5, "passes": 1, "heads": [3, 7], "entropies": [0.5, 0.4]}
    assert event_line(grown) == "step 120: loop-added: layer 5 (L6), passes 1, heads 3, 7"
    fixed = {"step": 9, "kind": "masks-fixed", "map_before": "mmmm mmmm", "map_after": "FFss ssFF"}
    assert event_line(fixed) == "step 9: masks-fixed: map FFss ssFF"
    assert event_line({"step": 9, "kind": "x", "reason": "the target is reached"}) == "step 9: x: the target is reached"
    assert len(event_line({"step": 9, "kind": "x", "plan_after": "L1 → " * 200})) == 100


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("Tesla T4", None),
    ],
)
def test_the_peak_of_a_gpu_is_known_by_its_name(name, peak):
    assert peak_flops(name) == peak


def test_lines_are_shown_while_training_on_a_terminal_and_elsewhere(capsys):
    with heard_by(print_line), titled("title"), Progress("title", 10, 256):
        say("step 3: [something] happened")
    say("nobody hears this")
    assert capsys.readouterr().err == "title: step 3: [something] happened\n"


def test_a_long_loop_says_every_ten_seconds_how_much_is_left(capsys, monkeypatch):
    """Four seconds for each item."""
    times = iter(range(0, 400, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with heard_by(print_line):
        assert list(followed([1] * 7, "windows")) == [1] * 7
        assert list(followed(iter("abcd"), "texts")) == ["a", "b", "c", "d"]
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["windows: 2/7  ETA 0:30", "windows: 5/7  ETA 0:10", "texts: 2"]
    times = iter(range(0, 400, 40))
    with heard_by(print_line):
        assert list(followed("ab", "slow to begin")) == ["a", "b"]
    assert capsys.readouterr().err == "slow to begin: 1/2  ETA 1:20\n"
    times = iter(range(0, 400, 4))
    assert list(followed("ab", "quiet")) == ["a", "b"] and not capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switch is one of glibc")
def test_freed_memory_is_kept_for_the_next_tensor():
    """Page faults of 40 tensors of 8 MB, one after the other: 2,048 for each where it is given back."""
    code = (
        "import resource, torch\nfrom hybridlab.training.machine import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(40): torch.ones(2**21).sum()\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "faults(); kept = keep_freed_memory(); faults(); print(kept, faults())"
    )
    kept, faults = forked_python(code).split()
    assert kept == "True" and int(faults) < 2048


def test_a_line_is_told_once_where_repeats_are_left_out_and_a_listener_goes_with_its_context():
    lines = []
    with heard_by(lines.append):
        with titled("outer"), without_repeats():
            for text in ("a", "b", "a"):
                say(text)
        with pytest.raises(ValueError, match="stops"), titled("lost"):
            raise ValueError("stops")
        say("after")
    say("nobody hears this")
    assert lines == ["outer: a", "outer: b", "after"]
