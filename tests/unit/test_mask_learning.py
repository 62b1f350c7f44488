"""ConSA's method: closed forms, the Lagrangian, binarising, and the seeds of its draws."""

import pytest
import torch

from hybridlab.config.training import Schedule
from hybridlab.errors import UserError
from hybridlab.methods.consa import L1GatesConfig, MaskLearningConfig
from hybridlab.methods.consa.training import HardConcrete, L1Gates, MaskLearning
from hybridlab.plan.shape import Shape
from hybridlab.training.optimizer import Optimizers
from tests.combinations import combinations

SHAPE = Shape(family="qwen3", layers=8, width=32, heads=8, kv_heads=4, head_width=4, ffn_width=32, vocab=64)


def controller(granularity="head-all", rho=0.5, **changes):
    config = MaskLearningConfig(kind="mask-learning", rho=rho, granularity=granularity, **changes)
    made = MaskLearning(config, SHAPE, window=4)
    made.seed = 0
    for name in ("scores", "lambda_", "phi"):
        getattr(made, name).requires_grad_()
    return made


@pytest.mark.parametrize("alpha", [-3.0, -1.598, 0.0, 1.0, 5.0])
def test_closed_forms_agree_with_draws(alpha):
    law = HardConcrete()
    a = torch.full((400_000,), alpha)
    z = law.sample(a, torch.rand(400_000, generator=torch.Generator().manual_seed(1)))
    assert ((z >= 0) & (z <= 1)).all()
    assert float((z > 0).float().mean()) == pytest.approx(float(law.prob_positive(a[:1])), abs=0.004)


def test_probabilities_of_the_hard_concrete_law_equal_the_papers():
    law = HardConcrete()
    zero = torch.zeros(1)
    assert float(law.prob_positive(zero)) == pytest.approx(0.832, abs=5e-4)
    assert float(law.prob_positive(torch.tensor([-1.598]))) == pytest.approx(0.5, abs=5e-4)
    assert float(1 - law.prob_positive(torch.tensor([5.0]))) < 0.0015


def test_extreme_draws_and_their_gradients_are_finite():
    alpha = torch.tensor([5.0, -5.0, 0.0, 0.0], requires_grad=True)
    z = HardConcrete().sample(alpha, torch.tensor([0.0, 1.0, 0.5, 1e-30]))
    z.sum().backward()
    assert torch.isfinite(z).all() and torch.isfinite(alpha.grad).all()


def test_a_low_temperature_draws_only_zeros_and_ones():
    z = HardConcrete(temperature=1e-3).sample(torch.zeros(1000), torch.rand(1000))
    assert ((z == 0) | (z == 1)).float().mean() > 0.99


@combinations("rho, granularity", [0.25, 0.5, 0.75], ["layer", "head-all", "head-single"], together=1)
def test_the_lagrangian_overshoots_then_settles(granularity, rho):
    """A toy: units with different costs of being a window, under the paper's schedule."""
    made = controller(granularity, rho)
    costs = torch.rand(made.scores.shape, generator=torch.Generator().manual_seed(0)) * 0.02
    optimizer = Optimizers(made.parameter_groups())
    schedule = Schedule(name="cosine", warmup_steps=300, final_ratio=0.1)
    path, lambdas, phis = [], [], []
    for step in range(1000):
        z = torch.stack(list(made.forward_inputs(step)["gates"].values()))[:, : costs.shape[1]]
        loss = ((1 - z) * costs).sum() + made.penalty(step)
        optimizer.set_learning_rates(schedule, step, 1000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.after_step(None, step)
        path.append(float(made.expected_sparsity().detach().mean()))
        lambdas.append(float(made.lambda_.detach().min()))
        phis.append(float(made.phi.detach().min()))
    assert max(path) > rho + 0.05, "no overshoot"
    assert (made.expected_sparsity() - rho).abs().max() < 0.01
    assert made.settled(1000) == {"settled": True}
    assert min(lambdas[:20]) < 0 and all(a <= b + 1e-6 for a, b in zip(phis, phis[1:], strict=False))
    masks = torch.tensor(made.ranked_masks())
    assert float((masks == 0).float().mean()) == rho
    if granularity == "head-single":
        assert ((masks == 0).float().mean(1) == rho).all()
    if granularity == "layer":
        assert (masks == masks[:, :1]).all()


def at_sparsity(made, *values):
    """Set every expected sparsity to the values in turn, one for each step."""
    shift = HardConcrete().prob_positive(torch.zeros(())).logit()
    for step, value in enumerate(values):
        with torch.no_grad():
            made.scores.fill_(float(torch.tensor(1 - value).logit() - shift))
        made.after_step(None, step)


def test_masks_that_have_not_settled_say_so():
    made = controller("head-all", 0.5)
    at_sparsity(made, *[0.002] * 5)
    found = made.settled(5)
    assert found["settled"] is False
    (warning,) = found["warnings"]
    assert warning == (
        "the masks have not settled: the expected sparsity ended at 0.002 for a target of 0.500, with 0% of the units "
        "undecided; settled means within 10% of the target in each of the last 10 steps, and there were 5 in all; "
        "learn them with more steps; how many cannot be told: the expected sparsity has not reached its target yet, "
        "and passes it at first"
    )


FALLING = [0.8 - 0.01 * step for step in range(11)]
CONSTANT = {"schedule": Schedule(name="wsd", decay_fraction=0.0)}


@pytest.mark.parametrize(
    "path, more",
    [
        # 0.15 more at 0.01 a step, and then ten steps close to the target.
        ([0.8] * 49 + FALLING, 30),
        ([0.8] * 49 + [0.8 - 0.001 * step for step in range(11)], 280),
        ([0.2] * 20 + [0.6] + [1 - value for value in FALLING], 30),
        ([0.8] * 50 + [0.56] * 6 + [0.5] * 4 + [0.48] * 5, 10),
        ([0.8] * 199 + [0.8] + [0.52] * 10, "still moves so fast that it would pass its target"),
        ([0.7] * 20 + [0.65, 0.6, 0.56] + [0.54] * 6, "still moves so fast that it would pass its target"),
        ([0.4] * 60, "has not reached its target yet"),
        ([0.8] * 9, "it takes 10 steps to see"),
        ([0.8] * 60, "does not come closer to its target"),
        ([0.7] * 60 + [0.75] * 5, "does not come closer to its target"),
        ([0.9999] * 60, "no unit is undecided"),
        ([0.8] * 49 + [0.8 - 1e-5 * step for step in range(11)], "would take more than 10 times the steps so far"),
    ],
)
def test_how_many_steps_more_masks_need(path, more):
    made = controller("head-all", 0.5, **CONSTANT)
    at_sparsity(made, *path)
    found = made.settled(len(path))
    (warning,) = found["warnings"]
    if isinstance(more, int):
        assert found["more_steps"] == more and warning.endswith(f"; learn them with about {more} steps more")
    else:
        assert found["more_steps"] is None and "; learn them with more steps; how many cannot be told: " in warning
        assert more in warning
    again = controller("head-all", 0.5, **CONSTANT)
    again.load_state(made.state(), None)
    at_sparsity(made, path[-1])
    at_sparsity(again, path[-1])
    assert again.settled(len(path) + 1) == made.settled(len(path) + 1)


def test_steps_at_a_low_learning_rate_count_for_less():
    """As much as the masks moved at the end of a decay takes fewer steps at the full rate."""
    decayed, constant = controller(), controller(**CONSTANT)
    for made in (decayed, constant):
        at_sparsity(made, *[0.8] * 89, *[0.8 - 0.003 * step for step in range(11)])
    more = [made.settled(100)["more_steps"] for made in (decayed, constant)]
    assert more[0] < more[1]


def test_the_worst_layer_of_head_single_decides_how_many_steps_more():
    made = controller("head-single", 0.5, **CONSTANT)
    shift = HardConcrete().prob_positive(torch.zeros(())).logit()
    for step in range(20):
        with torch.no_grad():
            made.scores.fill_(float(torch.tensor(0.5).logit() - shift))
            made.scores[2] = float(torch.tensor(0.2 + 0.005 * step).logit() - shift)
        made.after_step(None, step)
    # Its gap of 0.205 falls by 0.005 a step to 0.05.
    assert made.settled(20)["more_steps"] == 50


@pytest.mark.parametrize(
    "path, steps, settled",
    [
        ([0.5] * 10, 10, True),
        ([0.5] * 9, 9, False),
        ([0.9] * 90 + [0.5] * 10, 100, True),
        ([0.9] * 91 + [0.5] * 9, 100, False),
        ([0.5] * 99 + [0.7], 100, False),
        ([0.9] * 180 + [0.5] * 20, 200, True),
        ([0.9] * 189 + [0.5] * 11, 200, False),
        ([0.46] * 20, 20, True),
        ([0.44] * 20, 20, False),
    ],
)
def test_settled_means_close_to_the_target_in_the_last_tenth_of_the_steps(path, steps, settled):
    made = controller("head-all", 0.5)
    at_sparsity(made, *path)
    assert made.settled(steps)["settled"] is settled
    again = controller("head-all", 0.5)
    again.load_state(made.state(), None)
    assert again.settled(steps) == made.settled(steps) or not settled
    again.load_state({"highest": 0.0}, None)
    assert not again.settled(steps)["settled"], "a checkpoint of an older version"


def test_every_layer_of_head_single_must_settle():
    made = controller("head-single", 0.5)
    at_sparsity(made, *[0.5] * 19)
    with torch.no_grad():
        made.scores[3] = 5.0
    made.after_step(None, 19)
    found = made.settled(20)
    assert not found["settled"] and "ended at 0.001 for a target of 0.500" in found["warnings"][0]
    assert "of the target of every layer in each" in found["warnings"][0]


def test_the_papers_learning_rate_cannot_move_a_mask():
    """Positive control: with 3e-4 for 1,000 steps every unit stays full."""
    made = controller(mask_lr=3e-4, multiplier_lr=3e-4)
    optimizer = Optimizers(made.parameter_groups())
    for step in range(1000):
        optimizer.zero_grad()
        made.penalty(step).backward()
        optimizer.step()
    assert float(made.scores.detach().min()) > 4.5 and float(made.expected_sparsity().detach().max()) < 0.01


def test_constraints_have_one_pair_or_one_per_layer():
    assert controller("head-all").lambda_.shape == (1,)
    assert controller("layer").scores.shape == (8, 1)
    single = controller("head-single")
    assert single.lambda_.shape == (8,) and single.expected_sparsity().shape == (8,)


def test_binarising_by_threshold_need_not_meet_the_target():
    made = controller(rho=0.25)
    with torch.no_grad():
        made.scores.fill_(-1.0)
        made.scores[0, 0] = -2.0
    assert torch.tensor(made.threshold_masks()).sum() == 0
    topk = torch.tensor(made.ranked_masks())
    assert int((topk == 0).sum()) == 8 and topk[0, 0] == 0


def test_targets_that_cannot_be_met_are_refused():
    with pytest.raises(UserError, match=r"0.3 × 4 KV heads of a layer = 1.2 .*0.25 .*0.5 "):
        controller("head-single", 0.3)
    with pytest.raises(UserError, match="0.3 × 8 layers"):
        controller("layer", 0.3)
    near = controller("layer", 0.3, nearest=True)
    assert near.target == 0.25 and near.windows_per_row == 2


def test_draws_are_functions_of_seed_and_step():
    made = controller()
    first, again, later = (torch.stack(list(made.forward_inputs(s)["gates"].values())) for s in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, later)
    with torch.no_grad():
        made.scores.fill_(0.0)
    a = torch.stack(list(made.forward_inputs(3)["gates"].values()))
    made.seed = 1
    assert not torch.equal(a, torch.stack(list(made.forward_inputs(3)["gates"].values())))


def test_target_warmup_rises_linearly():
    made = controller(target_warmup_steps=10)
    assert made._target_at(0) == pytest.approx(0.05) and made._target_at(9) == made._target_at(99) == 0.5


# ---- the ablation without the L0-Lagrangian ----


def gates(granularity="layer", rho=0.5, **changes):
    config = L1GatesConfig(kind="l1-gates", rho=rho, granularity=granularity, **changes)
    made = L1Gates(config, SHAPE, window=4)
    made.scores.requires_grad_()
    return made


def test_gates_start_at_one_and_stay_between_zero_and_one():
    made = gates(gate_lr=0.3)
    assert (made.forward_inputs(0)["gates"][0] == 1).all()
    optimizer = Optimizers(made.parameter_groups())
    for step in range(20):
        optimizer.zero_grad()
        made.penalty(step).backward()
        optimizer.step()
        numbers = made.after_step(None, step)
        assert float(made.scores.detach().min()) >= 0 and float(made.scores.detach().max()) <= 1
    assert numbers["mean_gate"] == 0 and numbers["gate_spread"] == 0


def test_the_penalty_is_a_twentieth_of_the_mean_gate():
    made = gates()
    with torch.no_grad():
        made.scores.copy_(torch.linspace(0, 1, 8)[:, None])
    assert float(made.penalty(0).detach()) == pytest.approx(0.05 * 0.5)
    assert [row[0] for row in made.ranked_masks()] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sum(v == 0 for row in gates("head-all", 0.25).ranked_masks() for v in row) == 8


def test_the_choice_of_gates_settles_when_it_stays_the_same_without_ties():
    made, order = gates(), torch.arange(8.0)[:, None]
    for step in range(20):
        made.after_step(None, step)
    assert not made.settled(20)["settled"], "all gates are 1: the choice is by chance"
    for values in (order.flip(0) / 8, order / 8):
        with torch.no_grad():
            made.scores.copy_(values)
        for step in range(10):
            made.after_step(None, step)
        assert not made.settled(20)["settled"], "the choice changed in the first of these steps"
        made.after_step(None, 10)
        assert made.settled(20) == {"settled": True}
    again = gates()
    with torch.no_grad():
        again.scores.copy_(made.scores)
    again.load_state(made.state(), None)
    again.after_step(None, 11)
    assert again.state()["held"] == made.held + 1
