"""Attention kinds that only this file defines: once registered, they train, decode, are billed and drawn as built-in
ones are.

`sinks` sees the first tokens and a window: it uses the kernels through a rule. `average` is no softmax at all and keeps
a running sum: it brings a kernel and a cache slot of its own.
"""

from dataclasses import dataclass, replace

import pytest
import torch

from hybridlab.attention.heads import Attended, HeadGroup
from hybridlab.attention.kernels import require_kernel, require_keys
from hybridlab.attention.kinds import AttentionKind, Full, Window
from hybridlab.attention.registry import ATTENTION_KINDS, register_kind
from hybridlab.config.loading import Layer
from hybridlab.config.resolve import resolve
from hybridlab.errors import RunFailed, UserError
from hybridlab.evaluation.causality import require_causal
from hybridlab.models.build import build_model
from hybridlab.models.export import load_checkpoint
from hybridlab.models.ledger.drawing import as_svg, as_text, rows
from hybridlab.models.ledger.flops import ledger
from hybridlab.models.ledger.parameters import kv_bytes
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.structure import Structure
from tests.conftest import SMALL_SHAPE
from tests.models import cached_logits, padding_mask, random_ids
from tests.training import train


@dataclass(frozen=True)
class Sinks(AttentionKind):
    """The first `sinks` tokens and the last `width`."""

    name, letter, colour = "sinks", "s", "#009E73"
    width: int
    sinks: int = 2

    def sees(self, query, key):
        return (key < self.sinks) | (key > query - self.width)

    def keys(self, length, counting):
        return counting.keys(length, min(length, self.width + self.sinks))

    def attend(self, heads):
        return heads.softmax(None, self.sees)

    def slot(self, standard):
        return standard(None, self.sees)

    def __str__(self):
        return f"sinks({self.sinks}, {self.width})"


class RunningMean:
    """The sum of all values so far, by row, and nothing else."""

    def __init__(self):
        self.total = None

    def attend(self, q, k, v, serving, counts, positions):
        before = torch.zeros_like(v[:, :, :1]) if self.total is None else self.total
        sums = before + v.cumsum(2)
        seen = torch.as_tensor(counts)[:, None] + torch.arange(1, v.shape[2] + 1)
        return (sums / seen[:, None, :, None])[:, list(serving)]

    def append(self, q, k, v, counts, lengths):
        real = torch.arange(v.shape[2])[None] < torch.as_tensor(lengths)[:, None]
        new = (v * real[:, None, :, None]).sum(2, keepdim=True)
        self.total = new if self.total is None else self.total + new

    def tensors(self):
        return [] if self.total is None else [self.total]


@dataclass(frozen=True)
class Average(AttentionKind):
    """The mean of all values so far."""

    name, letter, colour = "average", "a", "#CC79A7"
    softmaxes = ()

    def keys(self, length, counting):
        return 0.5

    def cached(self, positions):
        return min(1, positions)

    def attend(self, heads: HeadGroup) -> Attended:
        counts = torch.arange(1, heads.v.shape[2] + 1, device=heads.v.device)
        means = heads.v.cumsum(2) / counts[:, None].to(heads.v.dtype)
        out = means.repeat_interleave(heads.group, dim=1)
        if heads.need == "none":
            return Attended(out)
        weights = torch.ones(len(counts), len(counts)).tril() / counts[:, None]
        keys = counts.expand(*out.shape[:2], -1)
        weights = weights.expand(*out.shape[:2], -1, -1)
        return (
            Attended(out, weights, keys) if heads.need == "full" else Attended(out, weights[:, :, -1:], keys[..., -1:])
        )

    def slot(self, standard):
        return RunningMean()


@pytest.fixture(autouse=True)
def registered():
    register_kind(Sinks)
    register_kind(Average)
    yield
    ATTENTION_KINDS.remove("sinks")
    ATTENTION_KINDS.remove("average")


KINDS = [Sinks(4), Sinks(3, 5), Average()]
MIXTURES = [
    [[Sinks(4), Full()], [Average(), Window(5)], [Sinks(4), Sinks(2, 1)], [Full(), Average()]],
    [[Average(), Average()], [Sinks(6), Sinks(6)], [Window(3), Sinks(6)], [Average(), Full()]],
]


def model_of(rows_of_kinds, kernel="eager", dtype=torch.float64):
    host = build_model("vanilla", kernel=kernel, shape={**SMALL_SHAPE, "layers": 4})
    return host.with_plan(attention_map=AttentionMap(tuple(map(tuple, rows_of_kinds)))).to(dtype)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_run_trains_with_it_and_its_saved_model_decodes(small, tmp_path, runs_dir, kind):
    config = small(map={"kind": "uniform", "attention": kind.to_json()}, training={"steps": 20})
    record = train(config, tmp_path / "a", runs_dir)
    assert record.history["loss"][-1] < record.history["loss"][0]
    assert record.results.causality["largest_change"] < 1e-4
    assert record.model.map == " ".join([kind.letter * 2] * 3)
    model = load_checkpoint(tmp_path / "a")
    assert set(model.attention_map.each_kind()) == {kind}
    assert Structure.from_json(record.structure) == model.structure
    assert model.generate(random_ids(5), 6).rows() == model.generate(random_ids(5), 6, use_cache=False).rows()


@pytest.mark.parametrize("kinds", MIXTURES)
@pytest.mark.parametrize("loops", [False, True])
def test_cached_decoding_equals_the_full_pass_beside_other_kinds(kinds, loops):
    model = model_of(kinds)
    if loops:
        model = model.with_plan(model.plan.loop_heads(1, (0, 3), 2).loop_blocks([3]))
    ids, mask = random_ids(19, 3), padding_mask([19, 7, 12])
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask).logits
        for cuts in ([], [1], [4, 5, 6], list(range(1, 19))):
            cached, _ = cached_logits(model, ids, mask, cuts)
            torch.testing.assert_close(cached[mask], wanted[mask], atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("kinds", MIXTURES)
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "banded", "blocks", "auto"])
def test_it_is_causal_and_kernels_agree(kinds, kernel):
    model = model_of(kinds, kernel, torch.float32)
    assert require_causal(model, 40) < 1e-5
    with torch.no_grad():
        wanted = model_of(kinds, "eager", torch.float32)(random_ids(40)).logits
        torch.testing.assert_close(model(random_ids(40)).logits, wanted, atol=1e-5, rtol=1e-4)


def test_a_kind_that_sees_the_future_fails_the_run(small, tmp_path, runs_dir):
    @dataclass(frozen=True)
    class Leaks(Average):
        """The mean of the whole sequence."""

        name, letter = "leaks", "l"

        def attend(self, heads):
            mean = heads.v.mean(2, keepdim=True).expand_as(heads.v)
            return Attended(mean.repeat_interleave(heads.group, dim=1))

    register_kind(Leaks)
    try:
        config = small(map={"kind": "uniform", "attention": {"kind": "leaks"}}, training={"steps": 3})
        with pytest.raises(RunFailed, match="sees the future"):
            train(config, tmp_path / "a", runs_dir)
    finally:
        ATTENTION_KINDS.remove("leaks")


def test_a_rule_that_hides_every_key_from_a_query_is_named_instead_of_the_learning_rate(small, tmp_path, runs_dir):
    @dataclass(frozen=True)
    class Early(Average):
        """The first tokens alone, but in the last part of the sequence not even these."""

        name, letter = "early", "e"
        last: int = 20

        def sees(self, query, key):
            return (key < 3) & (query < self.last)

        def attend(self, heads):
            return heads.softmax(None, self.sees)

    register_kind(Early)
    try:
        config = small(map={"kind": "uniform", "attention": {"kind": "early"}}, training={"steps": 3})
        with pytest.raises(
            UserError, match=r"the rule .*Early.sees .* hides every key from the query at position 20; let"
        ):
            train(config, tmp_path / "a", runs_dir)
        config = small(map={"kind": "uniform", "attention": {"kind": "early", "last": 64}}, training={"steps": 3})
        train(config, tmp_path / "b", runs_dir)
    finally:
        ATTENTION_KINDS.remove("early")


def test_a_rule_may_read_what_has_no_hash():
    def before(last):
        return lambda query, key: (key >= 0) & (query < last[0])

    require_keys(before([8]), None, True, 8)
    with pytest.raises(UserError, match="hides every key from the query at position 4"):
        require_keys(before([4]), None, True, 8)


def test_returned_weights_and_numbers_of_keys_are_those_of_the_kind():
    model = model_of([[Sinks(3), Average()]] * 4)
    full = model(random_ids(12), need="full")
    weights, keys = full.attention[(0,)], full.keys[(0,)]
    torch.testing.assert_close(weights.sum(-1).double(), torch.ones_like(weights.sum(-1)).double())
    assert keys[0, 0, -1] == 5 and keys[0, 3, -1] == 12 and (weights[0, :2, -1, 2:9] == 0).all()
    last = model(random_ids(12), need="last_row").attention[(0,)]
    torch.testing.assert_close(last[:, :, 0].double(), weights[:, :, -1].double())


def test_it_is_billed_drawn_and_its_cache_is_counted():
    structure = model_of([[Sinks(4), Average()]] * 4).structure
    cost = ledger(structure, 100, "consa")
    shape = structure.shape
    assert cost.breakdown["attention"] == 4 * 4 * shape.head_width * 100 * 2 * (min(6, 100) / 2 + 0.5)
    assert kv_bytes(structure, 100, "fp32") == 2 * 4 * shape.head_width * 4 * (100 + 1)
    text = as_text(rows(structure))
    assert "sa  MLP" in text and "s sinks" in text and "a average" in text
    assert "#009E73" in as_svg(rows(structure), "own kinds")


def test_a_kernel_of_its_own_other_weights_and_products_are_asked_of_the_kind():
    """What the built-in kind belief uses is open to every kind."""

    @dataclass(frozen=True)
    class Summed(Average):
        """As Average, with a kernel that has a name, weights by another name, and products."""

        name, letter, products_are = "summed", "u", "running sums"

        def own_kernel(self, kernel, length, causal):
            if kernel == "flex":
                raise UserError("kernel flex has no running sums; use auto")
            return "cumsum" if length > 8 else "loop"

        def products(self, length, counting):
            return 2.0

        def attend(self, heads):
            attended = super().attend(heads)
            return attended if heads.need == "none" else replace(attended, others={"half": attended.weights / 2})

        def slot(self, standard):
            assert standard.capacity == 24 and list(standard.serving) == [0, 0]
            return super().slot(standard)

    model = model_of([[Summed(), Full()]] * 4)
    cpu = torch.device("cpu")
    assert model.kernels_used(16, cpu, low_precision=False) == {"full": {"eager"}, "summed": {"cumsum"}}
    with pytest.raises(UserError, match="no running sums"):
        require_kernel("flex", cpu, training=False, kinds=model.attention_map.each_kind())
    shown = model(random_ids(12), need="full")
    assert set(shown.others[(0,)]) == {"half"}
    torch.testing.assert_close(shown.others[(0,)]["half"][:, :2], shown.attention[(0,)][:, :2] / 2)
    assert torch.equal(shown.others[(0,)]["half"][:, 2:], shown.attention[(0,)][:, 2:])
    assert ledger(model.structure, 10, "executed").breakdown["running sums"] == 2 * 4 * 2 * 2.0 * 10
    assert model.generate(random_ids(14), 10).rows() == model.generate(random_ids(14), 10, use_cache=False).rows()


def test_mistakes_in_its_settings_name_what_it_takes():
    for wrong, message in (
        ({"kind": "sinks", "widht": 3}, "width"),
        ({"kind": "snks", "width": 3}, "did you mean 'sinks'"),
    ):
        with pytest.raises(UserError, match=message):
            resolve("vanilla", "tiny", layers=[Layer({"map": {"kind": "uniform", "attention": wrong}})])


def test_a_name_or_letter_that_is_taken_is_refused():
    @dataclass(frozen=True)
    class Other(AttentionKind):
        name, letter, colour = "sinks", "x", "#000000"

    @dataclass(frozen=True)
    class Same(AttentionKind):
        name, letter, colour = "others", "F", "#000000"

    with pytest.raises(UserError, match="registered already"):
        register_kind(Other)
    with pytest.raises(UserError, match="letter 'F' belongs to 'full'"):
        register_kind(Same)


def test_plug_ins_that_import_from_where_kinds_stood_before_go_on_working():
    from hybridlab.attention import kinds, registry
    from hybridlab.plan.kinds import AttentionKind, Counting, check_width, register_kind

    assert (AttentionKind, Counting, check_width) == (kinds.AttentionKind, kinds.Counting, kinds.check_width)
    assert register_kind is registry.register_kind
