"""Effects of skipping on later layers and tokens: against hooks on a transformers model, and where they must be 0."""

import json

import numpy as np
import pytest
import torch

from hybridlab import load_hf
from hybridlab.analysis.probes.effects import NOTHING, Positions, clean_pass, depth_score, local, propagated, scored
from hybridlab.analysis.prompts import Future, Prompt, encoded, read_prompts
from hybridlab.errors import UserError
from hybridlab.models.build import build_model
from hybridlab.models.decoder import draw_weights
from tests.conftest import SMALL_SHAPE
from tests.contract.test_parity import FIRST, LLAMA_SHAPES, folder_of, theirs
from tests.models import random_ids

LAYERS = 5
CPU = torch.device("cpu")


def model_of(layers=LAYERS, arch="vanilla", family="qwen3", **parts):
    shape = {**SMALL_SHAPE, "family": family, "layers": layers, "init": {"std": 0.3}}
    model = build_model(arch, shape=shape, kernel="eager", **parts)
    draw_weights(model, 0)
    return model.eval()


def without_attention(model, layers):
    for layer in layers:
        torch.nn.init.zeros_(model.blocks[layer].attention.o.weight)
    return model


def without_layer(model, layer):
    torch.nn.init.zeros_(model.blocks[layer].mlp.down.weight)
    return without_attention(model, [layer])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    case = ("llama", *FIRST["llama"][1:3], {**FIRST["llama"][3], **LLAMA_SHAPES[0], "num_hidden_layers": LAYERS})
    reference = theirs(case, tied=True)
    return reference, load_hf(folder_of(reference, tmp_path_factory.mktemp("hf") / "model"))


class Hooked:
    """A pass of a transformers model in which hooks change the output of a layer or sublayer, or the input of one."""

    def __init__(self, model, ids, changes=(), inputs=()):
        self.contributions, handles = {}, []

        def changed(change):
            def hook(module, args, kwargs, output):
                read = args[0] if args else kwargs["hidden_states"]
                if isinstance(output, tuple):
                    return (change(read, output[0]), *output[1:])
                return change(read, output)

            return hook

        def fed(change):
            return lambda module, args, kwargs: ((change(args[0]), *args[1:]), kwargs)

        for module, change in changes:
            handles.append(module.register_forward_hook(changed(change), with_kwargs=True))
        for module, change in inputs:
            handles.append(module.register_forward_pre_hook(fed(change), with_kwargs=True))
        for number, layer in enumerate(model.model.layers):

            def record(module, args, kwargs, output, number=number):
                output = output[0] if isinstance(output, tuple) else output
                self.contributions[number] = output - args[0]

            handles.append(layer.register_forward_hook(record, with_kwargs=True))
        try:
            with torch.no_grad():
                self.output = model(ids, use_cache=False).logits.softmax(-1)
        finally:
            for handle in handles:
                handle.remove()


def skipping(model, layer, part, erased):
    """The change of a hook that leaves out a layer or a sublayer at the erased positions."""
    block, mask = model.model.layers[layer], erased[..., None]
    if part == "layer":
        return [(block, lambda read, out: torch.where(mask, read, out))]
    module = block.self_attn if part == "attention" else block.mlp
    return [(module, lambda read, out: out.masked_fill(mask, 0.0))]


def largest(changed, clean, measured):
    ratio = (changed - clean).norm(dim=-1) / clean.norm(dim=-1).clamp(min=1e-6)
    return ratio.masked_fill(~measured, -1).amax(1)


WHERE = {"current": Positions.current(19, CPU), "future": Positions.future([3, 10], 19, CPU)}


@pytest.mark.parametrize("mode", WHERE)
@pytest.mark.parametrize("part", ["layer", "attention", "mlp"])
def test_effects_equal_those_of_hooks_on_a_transformers_model(llama, mode, part):
    reference, ours = llama
    where, tokens = WHERE[mode], random_ids(19, 1, 97)[0]
    rows = tokens.expand(len(where.erased), -1)
    clean = Hooked(reference, rows)
    direct = local(ours, tokens, where, part)
    for layer in range(LAYERS):
        skipped = Hooked(reference, rows, skipping(reference, layer, part, where.erased))
        found = propagated(ours, tokens, where, layer, part)
        for target in range(layer + 1, LAYERS):
            wanted = largest(skipped.contributions[target], clean.contributions[target], where.measured)
            torch.testing.assert_close(found.changes[:, target], wanted, atol=1e-4, rtol=1e-3)
            # Directly: the target alone reads the stream without what the source has added.
            added = clean.contributions[layer]
            if part != "layer":
                branch = []
                module = reference.model.layers[layer].self_attn if part == "attention" else None
                hook = (module or reference.model.layers[layer].mlp, lambda r, out, b=branch: b.append(out) or out)
                Hooked(reference, rows, [hook])
                added = branch[0]
            removed = added.masked_fill(~where.erased[..., None], 0.0)
            fed = Hooked(reference, rows, inputs=[(reference.model.layers[target], lambda x, r=removed: x - r)])
            wanted = largest(fed.contributions[target], clean.contributions[target], where.measured)
            torch.testing.assert_close(direct[layer, :, target], wanted, atol=1e-4, rtol=1e-3)
        distance = (skipped.output - clean.output).norm(dim=-1).masked_fill(~where.measured, -1).amax(1)
        torch.testing.assert_close(found.output, distance, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "neox"])
@pytest.mark.parametrize("part", ["layer", "attention", "mlp"])
def test_nothing_before_the_skip_changes(part, family):
    model, tokens = model_of(family=family), random_ids(24)[0]
    late = torch.arange(24)[None] >= 9
    for layer in range(LAYERS):
        found = propagated(model, tokens, Positions(late, late), layer, part)
        assert (found.changes[0, :layer] == 0).all() and (found.changes[0, layer + 1 :] > 0).all()
        earlier = propagated(model, tokens, Positions(late, ~late), layer, part)
        assert (earlier.changes == 0).all() and earlier.output == 0
        direct = local(model, tokens, Positions(late, late), part)[:, 0]
        assert (direct[torch.ones_like(direct).tril().bool()] == NOTHING).all() and (
            direct[layer, layer + 1 :] > 0
        ).all()
        assert (local(model, tokens, Positions(late, ~late), part)[layer, 0, layer + 1 :] == 0).all()


def test_the_first_token_is_never_intervened_on():
    where = Positions.current(6, CPU)
    assert where.erased.tolist() == [[False] + [True] * 5] and where.measured.all()
    where = Positions.future([2, 4], 6, CPU)
    assert where.erased.int().tolist() == [[0, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0]]
    assert where.measured.int().tolist() == [[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize("part", ["layer", "attention", "mlp"])
def test_the_future_changes_through_later_attention_only(part):
    tokens, where = random_ids(24)[0], Positions.future([4, 12], 24, CPU)
    for source in range(LAYERS):
        off = without_attention(model_of(), range(source + 1, LAYERS))
        found = propagated(off, tokens, where, source, part)
        assert (found.changes == 0).all() and (found.output == 0).all()
        assert (local(off, tokens, where, part)[source, :, source + 1 :] == 0).all()
        if source + 1 < LAYERS:
            on = propagated(model_of(), tokens, where, source, part)
            assert (on.changes[:, source + 1 :] > 0).all() and (on.output > 0).all()


@pytest.mark.parametrize("mode", ["current", "future"])
def test_local_and_propagated_agree_in_the_next_layer(mode):
    model, tokens = model_of(), random_ids(19)[0]
    direct = local(model, tokens, WHERE[mode])
    for source in range(LAYERS - 1):
        found = propagated(model, tokens, WHERE[mode], source).changes[:, source + 1]
        torch.testing.assert_close(direct[source, :, source + 1], found, atol=1e-5, rtol=1e-4)
    further = propagated(model, tokens, WHERE[mode], 0).changes[:, 3]
    assert not torch.allclose(direct[0, :, 3], further, rtol=1e-2)


def test_the_model_and_its_output_stay_as_they_were():
    model, tokens = model_of(), random_ids(24)[0]
    before = {name: value.clone() for name, value in model.named_parameters()}
    wanted = model(tokens[None]).logits
    local(model, tokens, Positions.current(24, CPU))
    propagated(model, tokens, Positions.current(24, CPU), 1)
    assert torch.equal(model(tokens[None]).logits, wanted)
    assert all(torch.equal(before[name], value) for name, value in model.named_parameters())


# ---- other plans ----


def test_a_layer_with_head_loops_is_skipped_with_all_its_visits():
    model = model_of()
    looped = model.with_plan(model.plan.loop_heads(layer=2, heads=(1, 3), extra_passes=2))
    tokens, where = random_ids(24)[0], Positions.current(24, CPU)
    without_first = Positions(torch.ones(1, 24, dtype=torch.bool), where.measured)
    found = propagated(looped, tokens, without_first, 2)
    with torch.no_grad():
        skipped = looped.with_plan(looped.plan.skip(2))(tokens[None]).logits.softmax(-1)
    clean = clean_pass(looped, tokens[None])
    assert float(found.output) == pytest.approx(float((skipped - clean.output).norm(dim=-1).max()), rel=1e-5)
    assert (found.changes[0, :2] == 0).all() and (local(looped, tokens, where)[2, 0, 3:] > 0).all()


@pytest.mark.parametrize("literal", [False, True])
def test_latents_are_erased_or_measured_with_all_their_tokens(literal):
    recurrence = {"pre": 1, "loop": 2, "post": 1, "chunks": [4, 2, 1], "literal": literal}
    model = model_of(4, "looped", recurrence=recurrence)
    ((index, loop),) = model.plan.loops.items()
    where = Positions.future([5, 13], 24, CPU)
    for t, g in enumerate(loop.chunks):
        at = where.at(model.plan, (index, t, 0))
        for row in range(2):
            for latent in range(loop.num_chunks(t, 24)):
                chunk = range(latent * g - loop.offset_of(t), (latent + 1) * g - loop.offset_of(t))
                tokens = [token for token in chunk if token >= 0]
                assert bool(at.erased[row, latent]) == all(bool(where.erased[row, token]) for token in tokens)
                assert bool(at.measured[row, latent]) == all(bool(where.measured[row, token]) for token in tokens)
    found = propagated(model, random_ids(24)[0], where, 1)
    assert (found.changes[:, 0] == 0).all() and (found.changes[:, 1:] > 0).all() and (found.output > 0).all()


def test_sequences_that_fill_no_chunk():
    model = model_of(4, "looped", recurrence={"pre": 1, "loop": 2, "post": 1, "chunks": [64], "offset": "zero"})
    found = propagated(model, random_ids(24)[0], Positions.current(24, CPU), 0)
    assert (found.changes[0, 1:3] == NOTHING).all() and found.changes[0, 3] > 0


# ---- the depth score ----


def test_depth_scores_with_a_known_answer():
    rng = np.random.default_rng(0)
    for layers in (1, 2, 7, 24):
        for layer in range(layers):
            assert depth_score(np.eye(layers)[layer]) == layer
        assert depth_score([0.3] * layers) == pytest.approx((layers - 1) / 2)
        values = rng.random(layers)
        for scale in (1e-6, 3.0, 1e9):
            assert depth_score(scale * values) == pytest.approx(depth_score(values), rel=1e-9)
    assert depth_score([0.0] * 4) is None and scored(np.zeros((3, 4)))["value"] is None


def test_the_error_of_a_depth_score_is_that_of_resampled_sequences():
    rng = np.random.default_rng(0)
    effects = rng.gamma(2.0, size=(200, 6)) * np.linspace(1, 0.2, 6)
    found = scored(effects)
    again = [depth_score(effects[rng.integers(200, size=200)].mean(0)) for _ in range(2000)]
    assert found["n"] == 200 and found["stderr"] == pytest.approx(np.std(again), rel=0.06)
    assert scored(effects[:1])["stderr"] is None


@pytest.mark.parametrize(("moving", "reading"), [(0, 1), (2, 4), (1, 3), (3, 4)])
def test_one_layer_alone_moves_future_tokens(moving, reading):
    """Only `reading` has attention, and below it only `moving` adds anything that it could read."""
    model, tokens = without_attention(model_of(), set(range(LAYERS)) - {reading}), random_ids(24)[0]
    for layer in set(range(reading)) - {moving}:
        without_layer(model, layer)
    where = Positions.future([5, 12], 24, CPU)
    effects = [float(propagated(model, tokens, where, layer).output.amax()) for layer in range(LAYERS)]
    assert effects[moving] > 0 and depth_score(effects) == moving


# ---- prompts ----


def test_boundaries_follow_the_reference_code():
    assert Future(99).chosen(40, None, 0) == (8, 16, 24, 32)
    assert Future(99).chosen(36, None, 0) == (8, 16, 24) and Future().chosen(12, None, 0) == ()
    assert Future(99, stride=4).chosen(20, 7, 0) == (7, 11, 15, 19)
    assert Future(99, stride=0).chosen(20, 7, 0) == (7,) and Future(stride=0).chosen(7, 7, 0) == ()
    assert Future(at=(0, 1, 2, 19, 20, 99)).chosen(20, None, 0) == (2, 19)
    drawn = [Future(3).chosen(200, None, number) for number in range(9)]
    assert all(len(set(found)) == 3 for found in drawn) and len(set(drawn)) > 5
    assert drawn == [Future(3).chosen(200, None, number) for number in range(9)]
    assert drawn != [Future(3, seed=1).chosen(200, None, number) for number in range(9)]


def test_files_of_prompts(tmp_path):
    lines = [
        {"prompt": "2 + 2 =", "answer": " 4", "level": 3},
        {"prompt": "who", "hops": 2},
        {"prompt": "a", "kind": "x"},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    assert read_prompts(path) == [Prompt("2 + 2 =", " 4", "3"), Prompt("who", None, "2"), Prompt("a")]
    with pytest.raises(UserError, match=r"p.jsonl:1: no field 'kind'; it has: prompt, answer, level"):
        read_prompts(path, "kind")
    text = tmp_path / "p.txt"
    text.write_text("one prompt\n\nanother\n")
    assert read_prompts(text) == [Prompt("one prompt"), Prompt("another")]
    for wrong, problem in [
        ("[1]", "no text in field"),
        ("{", "is not JSON"),
        ('{"prompt": "a", "answer": 4}', '"answer" is no text'),
        ("", "has no prompts"),
    ]:
        path.write_text(wrong)
        with pytest.raises(UserError, match=problem):
            read_prompts(path)
    with pytest.raises(UserError, match="no such file"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_prompts(tmp_path / "latin.txt")


def test_the_answer_starts_at_the_first_token_with_a_character_of_it():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "two": 1, "plus": 2, "is": 3, "four": 4}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    assert encoded(tokenizer, Prompt("two plus two is", " four")) == ([1, 2, 1, 3, 4], 4)
    assert encoded(tokenizer, Prompt("two plus tw", "o is four")) == ([1, 2, 1, 3, 4], 2)
    assert encoded(tokenizer, Prompt("two")) == ([1], None)
