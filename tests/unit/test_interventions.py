"""Skip, swap, reverse and truncate as plan edits: identities, transformers models edited by hand, what is measured."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hybridlab import load_hf
from hybridlab.analysis import performance as performance_module
from hybridlab.analysis.performance import Suite, performance, suite, table
from hybridlab.analysis.probe import run_probe
from hybridlab.analysis.probes.interventions import plan_edits
from hybridlab.analysis.probes.tuned_lens import Lens
from hybridlab.data.preparing import corpus_for
from hybridlab.errors import UserError
from hybridlab.evaluation.text import answers
from hybridlab.plan.plan import Plan
from tests.contract.test_parity import FIRST, LLAMA_SHAPES, folder_of, theirs
from tests.models import random_ids
from tests.unit.test_effects import LAYERS, model_of, without_layer

IDS = random_ids(24, rows=2)


def logits(model, plan):
    with torch.no_grad():
        return model.with_plan(plan)(IDS).logits


def test_every_start_of_every_kind_and_only_sizes_that_fit():
    edits = plan_edits(Plan.plain(8))
    counts = {name: len(plans) for name, plans in edits.items()}
    assert counts == {
        ("skip", "1"): 8,
        ("skip", "2"): 7,
        ("skip", "4"): 5,
        ("skip", "8"): 1,
        ("swap", "1"): 7,
        ("swap", "2"): 5,
        ("swap", "4"): 1,
        ("reverse", "2"): 7,
        ("reverse", "4"): 5,
        ("truncate", "layers"): 7,
    }
    assert str(edits["swap", "2"][3]) == "L1 → L2 → L3 → L6 → L7 → L4 → L5 → L8"
    assert str(edits["reverse", "4"][2]) == "L1 → L2 → L6 → L5 → L4 → L3 → L7 → L8"
    assert str(edits["skip", "4"][1]) == "L1 → L6 → L7 → L8" and str(edits["truncate", "layers"][2]) == "L1 → L2"
    assert plan_edits(Plan.plain(3), ["swap", "reverse"], [2, 4], [4]) == {}


def test_twice_is_the_identity():
    model, plan = model_of(), model_of().plan
    for start in range(LAYERS - 3):
        swapped = plan.swap(start, start + 2, 2)
        assert swapped != plan and swapped.swap(start, start + 2, 2) == plan
        # Swapped blocks, swapped as they now stand, are back where they were.
        assert torch.equal(logits(model.with_plan(swapped), swapped.swap(start, start + 2, 2)), logits(model, plan))
    for start in range(LAYERS - 2):
        reversed_ = plan.reverse(start, 3)
        assert reversed_ != plan and reversed_.reverse(start, 3) == plan
        assert not torch.equal(logits(model, reversed_), logits(model, plan))


def test_edits_that_must_not_change_anything():
    model = without_layer(model_of(), 2)
    torch.testing.assert_close(logits(model, model.plan.skip(2)), logits(model, model.plan), atol=0, rtol=0)
    model = model_of()
    for one, other in ((1, 3), (2, 4)):
        model.blocks[other].load_state_dict(model.blocks[one].state_dict())
    assert torch.equal(logits(model, model.plan.swap(1, 3, 2)), logits(model, model.plan))
    assert torch.equal(logits(model, model.plan.swap(1, 3)), logits(model, model.plan))
    assert not torch.equal(logits(model, model.plan.swap(0, 3)), logits(model, model.plan))


def test_interventions_equal_transformers_models_edited_by_hand(tmp_path):
    case = ("llama", *FIRST["llama"][1:3], {**FIRST["llama"][3], **LLAMA_SHAPES[0], "num_hidden_layers": 8})
    reference = theirs(case, tied=False)
    ours = load_hf(folder_of(reference, tmp_path / "model"))
    ids, layers = random_ids(21, 2, 97), list(reference.model.layers)

    def by_hand(order):
        reference.model.layers = torch.nn.ModuleList(layers[i] for i in order)
        reference.config.num_hidden_layers = len(order)
        with torch.no_grad():
            return reference(ids, use_cache=False).logits

    orders = {
        "skip": lambda i, s: [n for n in range(8) if not i <= n < i + s],
        "swap": lambda i, s: [*range(i), *range(i + s, i + 2 * s), *range(i, i + s), *range(i + 2 * s, 8)],
        "reverse": lambda i, s: [*range(i), *range(i + s - 1, i - 1, -1), *range(i + s, 8)],
    }
    for (kind, size), plans in plan_edits(ours.plan).items():
        for start, plan in plans.items():
            order = list(range(start)) if kind == "truncate" else orders[kind](start, int(size))
            if not order:
                continue
            with torch.no_grad():
                found = ours.with_plan(plan)(ids).logits
            torch.testing.assert_close(found, by_hand(order), atol=1e-5, rtol=1e-5, msg=f"{kind} {size} {start}")


# ---- the probe ----


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from hybridlab.config.loading import Layer
    from hybridlab.config.resolve import resolve
    from tests.conftest import SMALL_SHAPE, SMALL_TRAINING, write_text

    folder = tmp_path_factory.mktemp("interventions")
    text = write_text(folder / "words.txt")
    parts = {
        "shape": {**SMALL_SHAPE, "layers": LAYERS},
        "training": SMALL_TRAINING,
        "data": {"source": f"text:{text}", "tokenizer": "byte", "mix": {"text": 0.5, "retrieval": 0.5}},
    }
    config = resolve("vanilla", "tiny", layers=[Layer(parts)])
    corpus = corpus_for(config.data, folder / "data")
    return SimpleNamespace(config=config, corpus=corpus, model=model_of())


def probed(made, name="interventions", model=None, **settings):
    return run_probe(name, model or made.model, made.corpus, 32, made.config, **settings)


def test_a_row_is_the_edited_model_measured_by_itself(made):
    found = probed(made, rows=4, sizes=(1, 2), reverse=(3,))
    assert set(found) == {"sequences", "items", "chance", "base", "skip", "swap", "reverse", "truncate"}
    assert found["chance"] == {"tasks": {"retrieval": 1 / 8}, "choices": {}} and found["items"] == 0
    assert found["swap"]["2"]["starts"] == [0, 1] and found["truncate"]["layers"]["starts"] == [1, 2, 3, 4]
    measured = suite(made.model, made.corpus, made.config, 32, 4, 1)
    plan = made.model.plan
    for row, plans in (
        (found["swap"]["1"], [plan.swap(i, i + 1) for i in range(4)]),
        (found["reverse"]["3"], [plan.reverse(i, 3) for i in range(3)]),
        (found["base"], [plan]),
    ):
        for index, edited in enumerate(plans):
            model = made.model.with_plan(edited)
            with torch.no_grad():
                scores = model(measured.text).logits[:, :-1].log_softmax(-1)
            nats = -scores.gather(2, measured.text[:, 1:, None])
            assert row["loss"][index] == pytest.approx(float(nats.mean()), abs=2e-5)
            right, _ = answers(model, measured.tasks["retrieval"], measured.offsets["retrieval"])
            assert row["tasks"]["retrieval"]["accuracy"][index] == pytest.approx(right.mean(), abs=1e-5)
    assert "stderr" not in found["base"] and all(value > 0 for value in found["swap"]["1"]["stderr"])


def test_what_does_not_fit_is_refused(made):
    with pytest.raises(UserError, match="kinds = 'swapp' is unknown; did you mean 'swap'"):
        probed(made, kinds="swapp")
    with pytest.raises(UserError, match="sizes = 4: swap of so many layers does not fit into the 5 layers"):
        probed(made, kinds="swap", sizes="1,4")
    with pytest.raises(UserError, match="sizes = 6: skip or swap of so many layers does not fit into the 5 layers"):
        probed(made, sizes="6")
    with pytest.raises(UserError, match="reverse = 6: reverse of so many layers does not fit"):
        probed(made, reverse="2,6")
    with pytest.raises(UserError, match="sizes has no effect on these kinds of interventions; leave it out"):
        probed(made, kinds="truncate,reverse", sizes="1")
    with pytest.raises(UserError, match="sizes.0 = 'one': input should be a valid integer"):
        probed(made, sizes="one")
    for wrong in ("0", "-1", "1,0", ""):
        with pytest.raises(UserError, match=r"sizes.*: (input|tuple) should"):
            probed(made, sizes=wrong)
    # A size that fits one of the kinds is no mistake.
    assert {
        kind: list(found)
        for kind, found in probed(made, kinds="skip,swap", sizes="3", rows=1).items()
        if kind in ("skip", "swap")
    } == {"skip": ["3"]}


def test_the_original_is_untouched_also_after_an_exception(made, monkeypatch):
    before, plan = made.model(IDS).logits, made.model.plan
    calls = []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("in the middle")
        return text_losses(*arguments)

    text_losses = performance_module.text_losses
    monkeypatch.setattr(performance_module, "text_losses", failing)
    with pytest.raises(RuntimeError, match="in the middle"):
        probed(made, rows=2)
    assert made.model.plan is plan and torch.equal(made.model(IDS).logits, before)


# ---- multiple choice, with a stand-in for its scores ----


def tokenized(tokenizer, asked, before):
    assert before == ["shots"]
    return asked


def scores_of(model, asked):
    """Log-likelihoods of one-token options, the plain way."""
    with torch.no_grad():
        last = torch.stack([model(item.ids[None]).logits[0, -1].log_softmax(-1) for item in asked])
    return np.array([[float(row[option]) for option in item.options] for row, item in zip(last, asked, strict=True)])


@pytest.fixture
def choices(monkeypatch):
    module = SimpleNamespace(score_choices=scores_of, tokenized=tokenized)
    monkeypatch.setitem(sys.modules, "hybridlab.evaluation.choices", module)
    rng = np.random.default_rng(0)
    items = [
        SimpleNamespace(ids=random_ids(9, 1, seed=i)[0], options=tuple(rng.permutation(400)[:5].tolist()), answer=i % 5)
        for i in range(12)
    ]
    return {"assignment": (items, ["shots"])}


def test_multiple_choice_by_intervention_and_by_exit(made, choices, monkeypatch):
    monkeypatch.setattr(performance_module, "questions_of", lambda settings, count: choices)
    measured = suite(made.model, made.corpus, made.config, 32, 2, 5)
    assert isinstance(measured, Suite) and measured.chance["choices"] == {"assignment": 1 / 5}
    right, losses = performance(measured, made.model).choices["assignment"]
    asked = choices["assignment"][0]
    scores = torch.tensor(scores_of(made.model, asked))
    answers_ = torch.tensor([item.answer for item in asked])
    assert right.tolist() == (scores.argmax(1) == answers_).tolist()
    wanted = torch.nn.functional.cross_entropy(scores, answers_, reduction="none")
    np.testing.assert_allclose(losses, wanted.numpy(), rtol=1e-6)
    found = probed(made, rows=2, kinds="skip", sizes="1")["skip"]["1"]["choices"]["assignment"]
    skipped = scores_of(made.model.with_plan(made.model.plan.skip(3)), asked)
    assert found["accuracy"][3] == pytest.approx((skipped.argmax(1) == answers_.numpy()).mean(), abs=1e-5)
    early = probed(made, "tuned-lens", rows=2, steps=0)
    assert early["accuracy"]["choices"]["assignment"][-1] == pytest.approx(right.mean(), abs=1e-5)
    lens = Lens(made.model)
    third = scores_of(lens.model(3, made.model), asked)
    assert early["accuracy"]["choices"]["assignment"][3] == pytest.approx(
        (third.argmax(1) == answers_.numpy()).mean(), abs=1e-5
    )
    assert table([performance(measured, made.model)])["choices"]["assignment"]["accuracy"][0] == right.mean().round(5)
