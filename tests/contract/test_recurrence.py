"""Loops over resolutions: causality, no dependence on the total length, the papers' equations, refusals, and counts."""

import dataclasses
import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hybridlab.attention.kinds import Full
from hybridlab.errors import UserError
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Decoder, draw_weights
from hybridlab.models.executor import Execution
from hybridlab.models.ledger.flops import ledger
from hybridlab.models.ledger.parameters import count_parameters, recurrence_parameters
from hybridlab.models.recurrence import Recurrence
from hybridlab.models.taps import Taps
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.loop import Loop
from hybridlab.plan.plan import Plan
from hybridlab.plan.shape import Shape
from hybridlab.plan.structure import Structure
from hybridlab.plan.visit import Visit
from tests.models import random_ids

LAYERS, VOCAB, WIDTH = 5, 61, 24


def shape(family="llama", **changes):
    base = {
        "layers": LAYERS,
        "width": WIDTH,
        "heads": 4,
        "kv_heads": 2,
        "head_width": 8,
        "ffn_width": 40,
        "vocab": VOCAB,
    }
    extra = {"neox": {"rotary_fraction": 0.5}, "gpt2": {"max_positions": 80}}.get(family, {})
    return Shape(family=family, init={"std": 0.3, "embedding_std": 1.0}, **{**base, **extra, **changes})


def build(plan, masks=None, window=4, seed=0, family="llama"):
    made = shape(family)
    attention_map = AttentionMap.from_masks(masks or [[1, 1]] * LAYERS, window)
    plan = dataclasses.replace(plan, parallel=made.traits.parallel)
    model = Decoder(Structure(made, plan, attention_map), kernel="eager")
    draw_weights(model, seed)
    # Routers that weigh the slots unequally, and none that takes one slot alone; fresh ones are nearly uniform.
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.recurrences.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.double()


def looped(chunks, first=1, size=2, **settings):
    return Plan.plain(LAYERS).recur(first, size, chunks, **settings)


def ids(length, rows=1, seed=0):
    return random_ids(length, rows, VOCAB, seed)


def influence(model, length, seed=0):
    """(L, L): how much output i moves with the embedding of token p, from gradients."""
    x = model.embedding(ids(length, seed=seed)).detach().requires_grad_()
    handle = model.embedding.register_forward_hook(lambda *_: x)
    out = model(ids(length, seed=seed)).logits[0]
    handle.remove()
    probe = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    # All outputs in one backward pass: a row of the identity for each.
    rows = torch.eye(length, dtype=torch.double)
    (gradients,) = torch.autograd.grad(out @ probe, x, rows, is_grads_batched=True, allow_unused=True)
    return torch.zeros(length, length) if gradients is None else gradients[:, 0].abs().sum(-1)


TOPOLOGIES = ["direct", "anchor", "mesh"]
SCALES = [("aggregate", "allocate"), ("mean", "uniform")]


@pytest.mark.parametrize(
    ("g", "topology"),
    [
        *itertools.product([1, 2, 3, 5], TOPOLOGIES),
        (8, "mesh"),
        *(pytest.param(8, topology, marks=pytest.mark.long) for topology in ("direct", "anchor")),
    ],
)
def test_no_gradient_from_the_future_at_any_length_offset_and_shift(g, topology):
    for offset in range(g):
        for shift in (g - 1, g, g + 2):
            plan = looped((g, 2), topology=topology, offset=(offset, "half"), shift=(shift, "overlap"))
            model = build(plan, seed=offset)
            for length in (1, 2, g, g + 1, 2 * g + 3):
                reach = influence(model, length)
                assert (reach.triu(1) == 0).all()
                assert (reach.diagonal() > 0).all() or topology == "direct"


@pytest.mark.parametrize("g", [2, 3, 5, 8])
@pytest.mark.parametrize("offset", ["zero", "half"])
def test_a_shift_of_g_minus_2_leaks_where_the_theory_says(g, offset):
    """Positive control: the receiver of a chunk's own future is its place ρ = g − 2. The plan refuses such a shift."""
    with pytest.raises(UserError, match="see their own future"):
        looped((g,), shift=g - 2)
    loop = Loop(((Visit(1), Visit(2)),), (g,), topology="anchor", offset=offset)
    object.__setattr__(loop, "shift", g - 2)
    plan = Plan((Visit(0), loop, Visit(3), Visit(4)), LAYERS)
    reach = influence(build(plan), 3 * g + 1)
    future = reach.triu(1).sum(1)
    leaking = {(i + loop.offset_of(0)) % g for i in torch.nonzero(future > 1e-9).flatten().tolist()}
    assert leaking == {g - 2} and reach.triu(1).max() > 1e-5


@pytest.mark.parametrize("downscale,upscale", SCALES)
@pytest.mark.parametrize("chunks", [(8, 4, 2, 1), (3, 5, 1), (1, 1), (4,)], ids=str)
def test_no_output_depends_on_the_total_length(chunks, downscale, upscale):
    model = build(looped(chunks, topology="mesh", downscale=downscale, upscale=upscale))
    tokens = ids(4 * max(chunks) + 1, rows=2)
    with torch.no_grad():
        whole = model(tokens).logits
        for length in range(1, tokens.shape[1]):
            torch.testing.assert_close(model(tokens[:, :length]).logits, whole[:, :length], atol=1e-12, rtol=1e-11)


def test_the_papers_number_of_chunks_depends_on_the_total_length_and_has_no_cache():
    """Positive control: the paper's ⌊L / g⌋ drops a whole chunk where (L mod g) + ω ≥ g."""
    model = build(looped((8,), topology="anchor", literal=True))
    tokens = ids(33)
    with torch.no_grad():
        whole = model(tokens).logits
        changed = [n for n in range(1, 33) if (model(tokens[:, :n]).logits - whole[:, :n]).abs().max() > 1e-9]
        assert changed and all(n % 8 + 4 >= 8 for n in changed)
        assert torch.equal(build(looped((8,), topology="anchor"))(tokens[:, :32]).logits, model(tokens[:, :32]).logits)
        with pytest.raises(UserError, match="depends on the total length"):
            model(tokens, cache=KVCache(model.structure, 1))


def test_a_sequence_shorter_than_the_first_chunk_has_an_update_of_zero():
    model = build(looped((8,), topology="anchor"))
    plain = model.with_plan(Plan((*Plan.plain(LAYERS).visits[:1], *Plan.plain(LAYERS).visits[3:]), LAYERS))
    with torch.no_grad():
        torch.testing.assert_close(model(ids(3)).logits, plain(ids(3)).logits, atol=1e-14, rtol=0)
        assert (model(ids(4)).logits - plain(ids(4)).logits).abs().max() == 0  # its update comes 7 tokens later
        assert (model(ids(8)).logits - plain(ids(8)).logits)[:, 7:].abs().max() > 1e-6


# ---- reductions ----


def test_loops_at_full_resolution_equal_plain_plans():
    tokens, plain = ids(23, rows=2), Plan.plain(LAYERS)

    def same(one, two):
        with torch.no_grad():
            torch.testing.assert_close(one(tokens).logits, two(tokens).logits, atol=1e-12, rtol=1e-11)

    twice = Plan((Visit(0), Visit(1), Visit(2), Visit(1), Visit(2), Visit(3), Visit(4)), LAYERS)
    for wanted, chunks in ((plain, (1,)), (twice, (1, 1))):
        loop = build(looped(chunks))
        same(loop, loop.with_plan(wanted))
    unshared = build(Plan.plain(LAYERS).recur(1, 2, (1, 1), shared=False))
    same(unshared, unshared.with_plan(plain))


@pytest.mark.parametrize("topology", ["anchor", "mesh"])
def test_full_resolution_is_the_looped_model_of_the_same_topology(topology):
    """Chunks of 1: offset, shift and scaling have no effect, and there are no modules for them."""
    one = build(looped((1, 1), topology=topology))
    other = build(
        looped((1, 1), topology=topology, offset="zero", shift="parallel", downscale="mean", upscale="uniform")
    )
    assert not one.recurrences[0].scorers and not one.recurrences[0].allocators
    with torch.no_grad():
        assert torch.equal(one(ids(19)).logits, other(ids(19)).logits)


def test_the_anchor_topology_follows_its_equation():
    model, tokens = build(looped((1, 1), topology="anchor")), ids(12)
    with torch.no_grad():
        body = model.with_plan(Plan((Visit(1), Visit(2)), LAYERS))
        h0 = _state_after(model, tokens, Plan((Visit(0),), LAYERS))
        h = h0
        for _ in range(2):
            h = _run(body, h) + h0
        wanted = model.logits(_run(body.with_plan(Plan((Visit(3), Visit(4)), LAYERS)), h))
        torch.testing.assert_close(model(tokens).logits, wanted, atol=1e-12, rtol=1e-11)


def test_the_mesh_topology_follows_its_equations_with_all_slots_written_out():
    chunks = (4, 1)
    plan = looped(chunks, topology="mesh")
    model, tokens = build(plan), ids(13)
    (loop,) = plan.loops.values()
    own = model.recurrences[0]
    with torch.no_grad():
        x = model.embedding(tokens) * model.shape.embedding_scale
        v = _state_after(model, tokens, Plan((Visit(0),), LAYERS))
        slots = loop.iterations + 3
        memory = [x, *[torch.zeros_like(x)] * (slots - 1)]

        def cycle(pair, routed_by, value):
            write, read = (r[pair](routed_by).softmax(-1) for r in (own.writers, own.readers))
            for b in range(slots):
                memory[b] = memory[b] + value * write[..., b : b + 1]
            return sum(memory[b] * read[..., b : b + 1] for b in range(slots))

        h = cycle(0, x, v)
        for t in range(2):
            body = model.with_plan(Plan(loop.body(t), LAYERS))
            h = cycle(t + 1, h, own.iterate(loop, t, h, lambda t, z, body=body: _run(body, z)))
        wanted = model.logits(_run(model.with_plan(Plan((Visit(3), Visit(4)), LAYERS)), h))
        torch.testing.assert_close(model(tokens).logits, wanted, atol=1e-12, rtol=1e-11)


def _state_after(model, tokens, plan):
    """The residual stream after a plan, before the final norm."""
    taps = _States()
    model.with_plan(plan)(tokens, taps=taps)
    return taps.last


class _States(Taps):
    last = None

    def on_visit(self, place, x, delta):
        self.last = x + delta


def _run(model, x):
    """A plan of whole blocks on a state."""
    return Execution(model.structure, model.blocks, {}, torch.arange(x.shape[1]), "eager").run(x)


def test_shares_of_a_chunk_add_up_and_a_constant_sequence_stays_constant():
    loop = Loop(((Visit(0),),), (4,), downscale="mean", upscale="uniform", offset="zero")
    own = Recurrence(loop, WIDTH)
    h = torch.ones(1, 12, WIDTH)
    u = own.iterate(loop, 0, h, lambda t, z: z)
    torch.testing.assert_close(u[:, 3:], torch.full_like(u[:, 3:], 0.5))  # λ / g = 2 / 4
    assert (u[:, :3] == 0).all()
    learned = Loop(((Visit(0),),), (4,))
    latents = torch.randn(2, 5, WIDTH)
    spread = Recurrence(learned, WIDTH).spread(learned, 0, latents)
    torch.testing.assert_close(spread.sum(2), 2 * latents, atol=1e-5, rtol=1e-4)  # Σ β = 1, gain √4


# ---- how routers begin ----


def _effective_routing(model, loop, wanted_slots):
    """For each read the weight of every state (embeddings, state before the loop, updates 1 … T), with the routers'
    weights at zero, so that the biases alone decide. (T + 1, T + 2), rows of later states 0."""
    own = model.recurrences[0]
    with torch.no_grad():
        writes = [writer.bias.softmax(-1) for writer in own.writers]
        reads = [reader.bias.softmax(-1) for reader in own.readers]
    assert {len(share) for share in (*writes, *reads)} == {wanted_slots}
    rows = []
    for pair, read in enumerate(reads):
        weights = [read[0], *(read @ write for write in writes[: pair + 1])]
        rows.append([*map(float, weights), *[0.0] * (loop.iterations - pair)])
    return torch.tensor(rows)


@pytest.mark.parametrize("init", ["uniform", "newest", "anchor"])
def test_routers_begin_as_described(init):
    plan = looped((4, 2, 1), topology="mesh", router_init=init)
    (loop,) = plan.loops.values()
    model = Decoder(Structure(shape(), plan, AttentionMap.from_masks([[1, 1]] * LAYERS, 4)), kernel="eager")
    draw_weights(model, 0)
    slots = loop.iterations + 3
    routing = _effective_routing(model, loop, slots)
    for pair, row in enumerate(routing):
        before, last, rest = float(row[1]), float(row[pair + 1]), row[2 : pair + 1]
        if init == "uniform":
            torch.testing.assert_close(row[: pair + 2], torch.full((pair + 2,), 1 / slots))
        elif init == "newest" or pair == 0:
            assert last > 0.8 and row.sum() - last < 0.15
        else:
            assert abs(before - last) < 1e-6 and last > 0.4 and (rest < 0.04).all() and row[0] < 0.01


def test_an_initialisation_of_routers_changes_their_biases_only():
    """Models of one seed are paired: every other parameter is the same."""

    def drawn(init):
        plan = looped((4, 1), topology="mesh", router_init=init)
        model = Decoder(Structure(shape(), plan, AttentionMap.from_masks([[1, 1]] * LAYERS, 4)), kernel="eager")
        draw_weights(model, 3)
        return dict(model.named_parameters())

    default = drawn(None)
    assert all(torch.equal(tensor, default[name]) for name, tensor in drawn("uniform").items())
    for init in ("newest", "anchor"):
        changed = {name for name, tensor in drawn(init).items() if not torch.equal(tensor, default[name])}
        assert changed == {f"recurrences.0.{kind}.{s}.bias" for kind in ("writers", "readers") for s in range(3)}


@pytest.mark.parametrize("init", ["uniform", "newest", "anchor"])
@pytest.mark.parametrize("shared", [True, False])
def test_every_router_has_a_gradient_at_the_start(init, shared):
    plan = Plan.plain(LAYERS).recur(1, 2 if shared else 1, (1, 1), shared, topology="mesh", router_init=init)
    model = Decoder(Structure(shape(), plan, AttentionMap.from_masks([[1, 1]] * LAYERS, 4)), kernel="eager")
    draw_weights(model, 0)
    tokens = ids(12, rows=2)
    logits = model(tokens).logits[:, :-1]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    routers = model.recurrences[0]
    gradients = [layer.weight.grad.norm() for layer in (*routers.writers, *routers.readers)]
    assert min(gradients) > 1e-4 * max(gradients) > 0


# ---- what is refused ----


def test_invalid_loops_are_refused():
    for wrong, message in [
        ({"chunks": (0.5,)}, "0.5 is not a whole number"),
        ({"chunks": (0,)}, "whole numbers of 1 or more"),
        ({"chunks": ()}, "whole numbers"),
        ({"chunks": (3,), "shift": 1}, "see their own future"),
        ({"chunks": (3,), "shift": -1}, "overlap, parallel or a whole number"),
        ({"chunks": (3,), "offset": 3}, "not below the chunk size 3"),
        ({"chunks": (3,), "offset": "quarter"}, "half, zero or a whole number"),
        ({"chunks": (3, 2), "offset": (1,)}, "1 values of offset for 2 iterations"),
        ({"chunks": (2,), "topology": "ring"}, "topology 'ring' is unknown"),
        ({"chunks": (2,), "positions": "none"}, "positions"),
        ({"chunks": (2,), "topology": "mesh", "router_init": "zero"}, "router_init 'zero' is unknown"),
        ({"chunks": (2,), "router_init": "uniform"}, "no effect with topology direct, which has no routers"),
        ({"chunks": (2,), "topology": "anchor", "router_init": "newest"}, "no effect with topology anchor"),
        ({"chunks": (2,), "first": 4, "size": 3}, "does not run the whole blocks 4 to 6"),
    ]:
        with pytest.raises(UserError, match=message):
            looped(**wrong)
    inner = Loop(((Visit(1),),), (2,))
    with pytest.raises(UserError, match="a loop cannot contain another loop"):
        Loop(((inner,),), (2,))
    with pytest.raises(UserError, match="2 bodies for 3 iterations"):
        Loop(((Visit(1),), (Visit(2),)), (1, 1, 1))


def test_packed_rows_and_other_positions_are_refused():
    model = build(looped((4, 1)))
    with pytest.raises(UserError, match="carry states from one document into the next.*leave out segment_ids"):
        model(ids(8), segment_ids=torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(UserError, match="count from the start of a row: leave out position_ids"):
        model(ids(8), position_ids=torch.arange(8))
    full = build(looped((1, 1), topology="anchor"))
    segments = torch.tensor([[0] * 5 + [1] * 7])
    positions = torch.cat((torch.arange(5), torch.arange(7)))[None]
    with torch.no_grad():
        packed = full(ids(12), segment_ids=segments, position_ids=positions).logits[:, 5:]
        torch.testing.assert_close(packed, full(ids(12)[:, 5:]).logits, atol=1e-12, rtol=1e-11)


def test_a_loop_with_other_parameters_is_refused():
    model = build(looped((4, 2), topology="mesh"))
    with pytest.raises(UserError, match="recurrences.0"):
        model.with_plan(looped((4, 3), topology="mesh"))
    assert model.with_plan(looped((4, 2), topology="mesh", shift="parallel")).plan != model.plan
    assert model.with_plan(Plan.plain(LAYERS)).plan.loops == {}


# ---- counts ----


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("downscale,upscale", SCALES)
def test_counted_parameters_equal_those_of_the_modules(topology, downscale, upscale):
    plan = looped((8, 3, 1), topology=topology, downscale=downscale, upscale=upscale)
    model = build(plan)
    assert count_parameters(model.shape, plan).total == sum(p.numel() for p in model.parameters())


def test_mesh_routers_have_as_many_parameters_as_the_paper_counts():
    loop = Loop(((Visit(4),),), (1, 1), topology="mesh")
    assert recurrence_parameters(loop, 2048) == 61_470


def test_the_ledger_counts_what_is_executed():
    plan = looped((8, 4, 1), topology="mesh").loop_heads(2, (0, 3))
    model = build(plan)
    for length in (7, 16, 33):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(ids(length))
        wanted = ledger(
            Structure(model.shape, plan, AttentionMap.uniform(LAYERS, 2, Full())), length, "executed"
        ).forward
        assert counter.get_total_flops() == wanted
