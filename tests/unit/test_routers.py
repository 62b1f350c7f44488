"""The probe `routers`: its figures against the shares that routers with known logits have."""

import math

import pytest
import torch

from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.probes.loops import lost_without_updates, report_routers, router_statistics
from hybridlab.models.build import build_model
from hybridlab.models.recurrence import ROUTER_BIAS
from hybridlab.registry import PROBES
from tests.conftest import SMALL_SHAPE
from tests.models import random_ids
from tests.training import train

SHAPE = {**SMALL_SHAPE, "layers": 6}


def built(arch="spiral-b", **recurrence):
    return build_model(arch, shape=SHAPE, recurrence=recurrence, kernel="eager")


def without_weights(model):
    """The model with router weights at zero, so that only their biases count."""
    with torch.no_grad():
        for recurrence in model.recurrences:
            for router in (*recurrence.writers, *recurrence.readers):
                router.weight.zero_()
    return model


def batches(rows=6, length=17):
    return random_ids(length, rows).split(4)


def test_routers_at_zero_weigh_all_slots_alike():
    model = without_weights(built())
    (loop,) = router_statistics(model, batches())
    slots = 4 + 3
    assert loop["chunks"] == [8, 4, 2, 1] and [len(read) for read in loop["reads"]] == [2, 3, 4, 5, 6]
    # A state spread over all slots alike, and read so, has the weight Σ_b 1/slots² = 1/slots.
    assert all(weight == pytest.approx(1 / slots, abs=1e-5) for read in loop["reads"] for weight in read)
    assert loop["read_spread"] == loop["write_spread"] == [0.0] * 5


def test_biases_give_the_shares_of_their_softmax():
    model = without_weights(built("looped", router_init="anchor"))
    (loop,) = router_statistics(model, batches())
    slots, high = 2 + 3, math.exp(ROUTER_BIAS)
    write_own, write_rest = high / (high + slots - 1), 1 / (high + slots - 1)
    read_two, read_rest = high / (2 * high + slots - 2), 1 / (2 * high + slots - 2)
    before, last, embeddings = loop["reads"][2][1], loop["reads"][2][3], loop["reads"][2][0]
    own = read_two * (write_own + write_rest) + (slots - 2) * read_rest * write_rest
    assert before == last == pytest.approx(own, abs=1e-5) and embeddings == pytest.approx(read_rest, abs=1e-5)
    one_of_slots = ROUTER_BIAS * math.sqrt((slots - 1) / slots**2)
    assert loop["write_spread"] == pytest.approx([one_of_slots] * 3, abs=1e-4)


def test_every_token_counts_once_whatever_the_batches():
    model = built()
    tokens = random_ids(17, 6)
    (one,), (other,) = router_statistics(model, [tokens]), router_statistics(model, tokens.split(1))
    for name in ("reads", "read_spread", "write_spread"):
        torch.testing.assert_close(torch.tensor(one[name][-1]), torch.tensor(other[name][-1]), atol=2e-5, rtol=0)
    assert not any(router._forward_hooks for router in model.recurrences[0].readers)


def test_a_loop_whose_reads_leave_its_updates_out_is_bypassed():
    """Positive and negative control: reads of slot 1 alone, where only the state before the loop is, and of all."""
    model = without_weights(built("looped", router_init="newest"))
    assert abs(lost_without_updates(model, batches()).value) > 1e-3
    routers = model.recurrences[0].writers, model.recurrences[0].readers
    with torch.no_grad():
        for pair, (writer, reader) in enumerate(zip(*routers, strict=True)):
            for router, slot in ((writer, pair + 1), (reader, 1)):
                router.bias.fill_(-1e4)
                router.bias[slot] = 0.0
    lost = lost_without_updates(model, batches())
    assert lost.value == 0 and lost.n == 6 and model.recurrences[0].iterate.__name__ == "iterate"


def test_models_without_routers_are_skipped():
    assert router_statistics(built(topology="anchor"), batches()) == []
    assert router_statistics(build_model("vanilla", shape=SHAPE), batches()) == []


def test_the_probe_is_in_the_record_and_its_report_has_every_read(small, tmp_path, runs_dir):
    evaluation = {"probes": ["routers"], "validation_windows": 4}
    edits = {"shape": {"layers": 6}, "training": {"steps": 2}, "recurrence": {"router_init": "newest"}}
    record = train(small("looped", evaluation=evaluation, **edits), tmp_path / "a", runs_dir)
    probed = record.results.probes["routers"]
    (loop,) = probed["loops"]
    assert probed["last"] == {"entering": loop["reads"][-1][1], "newest": loop["reads"][-1][-1]}
    assert probed["lost_without"].keys() == {"value", "stderr", "n"}
    assert probed["last"]["newest"] > 0.7 and 0 < probed["moved"] < 0.5 and probed["fresh"][0] != loop["reads"]
    table, sentence = report_routers(probed)
    assert [row[0] for row in table.rows] == ["before loop 1", "after loop 1", "after loop 2"]
    assert table.rows[0][3] is None and f"{probed['last']['newest']:.2f} on the newest update" in sentence
    without = train(small(evaluation=evaluation, training={"steps": 2}), tmp_path / "b", runs_dir)
    assert "no routers" in without.results.probes["routers"]["skipped"]
    assert PROBES.get("routers").settings == {"rows": 64} and callable(run_probe)
