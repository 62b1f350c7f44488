"""Learning which KV heads need full attention (ConSA, section 4; stage 1 of its two stages), while a model trains.

    hybridlab learn-masks --from RUN --rho 0.5 --granularity head-all

Every unit (a layer, or a KV head) has a parameter α; its mask z ~ hard concrete(α) mixes full attention and a window
(Eq. 3). An augmented Lagrangian holds the expected sparsity to ρ: λ (E − ρ) + φ (E − ρ)² is minimised in α and
maximised in λ and φ (Eq. 10). `head-single` has its own λ and φ, and its own target, in every layer.

Other than in the paper: with its one learning rate (3e-4 for 1,000 steps, a cosine to 3e-5 after 300 steps of warm-up)
α can change by 0.16 at most, so masks and multipliers have their own rates (by default 0.2 and 0.5), constant until
the last 30 % of the steps; `controller.schedule` sets any other. What the paper leaves open: one z is drawn
per optimizer step, from (seed, step), for all its micro-batches. α, λ and φ are fp32, without weight decay or clipping.

A unit is a layer or a KV head, and each has a learned score. At the end as many units as the target requires, those
with the lowest scores, become windows; the map is fixed and written to masks.json.

Learning has settled if what its controller asks for (`LearnedAllocation.holds`) was so after every one of the last
steps: a tenth of all steps, and at least 10. Masks that have not settled are written too, with a warning. It says how
many steps more they would need (`LearnedAllocation.outlook`), or why that cannot be told.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridlab.attention.kernels import moved
from hybridlab.config.training import Schedule
from hybridlab.methods.consa import L1GatesConfig, MaskLearningConfig
from hybridlab.plan.allocation import Allocation
from hybridlab.plan.attention_map import AttentionMap
from hybridlab.plan.shape import Shape
from hybridlab.training.engine import Hook, Run
from hybridlab.training.optimizer import Group, learning_rate_factor
from hybridlab.training.world import world

UNDECIDED = 0.1
"""A unit counts as undecided if its P(z > 0) is farther than this from both 0 and 1 at the end."""
TOLERANCE = 0.1
"""Learning has settled when every expected sparsity stays this close to its target, as a share of the target."""
_DRAW = 4
"""First word of this controller's seed sequence; data/batches.py uses 1 to 3."""
_LAST_SHARE, _LAST_STEPS = 10, 10
"""The last steps, in which learning must have settled: one in so many of all steps, and at least so many."""
_FARTHEST = 10
"""The largest ratio of the steps that an estimate says are left to the steps that were trained."""
_SMALLEST_U = 1e-6
"""Keeps log u and log(1 − u) finite in fp32."""


class LearnedAllocation(Hook):
    """A controller with one score per unit. scores: (L, 1) for layers, (L, K) for heads.

    The target holds within each row of units: one row per layer (head-single), or one for the whole model. held: after
    how many steps up to now, without a gap, `holds` was true; `read` brings it up to date.
    """

    held = 0

    def __init__(
        self, config: MaskLearningConfig | L1GatesConfig, shape: Shape, window: int, initial_score: float
    ) -> None:
        self.config, self.shape, self.window, self.name = config, shape, window, config.kind
        self.allocation = Allocation(shape.layers, shape.kv_heads, config.granularity, config.rho, config.nearest)
        self.num_rows = self.allocation.num_rows
        self.windows_per_row = self.allocation.windows_per_row
        self.target = self.windows_per_row / self.allocation.per_row
        self.scores = torch.full((shape.layers, self.allocation.per_layer), initial_score)
        self._unread: list[Tensor] = []
        """What the steps since the last `read` measured; a step itself asks the device for nothing."""

    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors that are learned in addition to the model, by attribute name."""
        return {"scores": self.scores}

    def begin(self, run: Run) -> None:
        for name, tensor in self.own_tensors().items():
            setattr(self, name, tensor.to(next(run.model.parameters())).requires_grad_())

    def measured(self, numbers: Tensor) -> None:
        """Keep what a step measured (N,), from which `holds` tells."""
        self._unread.append(numbers)

    def read(self) -> None:
        """Go through the numbers of all steps since the last call."""
        for numbers in torch.stack(self._unread).tolist() if self._unread else ():
            self.held = self.held + 1 if self.holds(numbers) else 0
        self._unread.clear()

    def state(self) -> dict[str, Any]:
        self.read()
        return {"held": self.held}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        # Checkpoints of older versions lack it.
        self.held = state.get("held", 0)

    @abstractmethod
    def holds(self, numbers: list[float]) -> bool:
        """Whether learning was where it should end after a step that measured these; called once for every step, in
        their order."""

    @abstractmethod
    def unsettled(self) -> str:
        """What has not settled, for the warning: a clause that "in each of the last … steps" can follow."""

    def group(
        self, name: str, tensors: list[str], lr: float, maximize: bool = False, schedule: Schedule | None = None
    ) -> Group:
        """An optimizer group of some of the own tensors, without weight decay or clipping."""
        named = {f"{self.name}.{key}": self.own_tensors()[key] for key in tensors}
        return Group(name, named, lr, self.config.betas, maximize=maximize, clipped=False, schedule=schedule)

    def gates(self, per_unit: Tensor) -> dict[str, Any]:
        """The forward inputs of gates per unit (L, 1 or K): layer → gate (K,) of its mixed heads."""
        return {"gates": dict(enumerate(per_unit.expand(-1, self.shape.kv_heads)))}

    def ranked_masks(self) -> list[list[int]]:
        """Masks (L, K) of 1 (full) and 0 (window): in every row the units with the lowest scores become windows.

        Of equal scores the first become windows.
        """
        return self.allocation.ranked(self.scores.detach().tolist())

    def fix(self, run: Run, masks: list[list[int]], results: dict[str, Any]) -> dict[str, Any]:
        """Give the model its final map and write masks.json; returns the results for the record."""
        chosen = AttentionMap.from_masks(masks, self.window)
        results = {"rho": self.config.rho, "target": self.target, "realised_sparsity": chosen.sparsity(), **results}
        results |= self.settled(run.config.training.steps)
        scores = [[round(value, 6) for value in row] for row in self.scores.detach().tolist()]
        content = {
            "masks": chosen.masks(),
            "window": self.window,
            "granularity": self.config.granularity,
            **results,
            "scores": scores,
            "source_run": run.folder.digest,
        }
        world().once(run.folder.write, "masks.json", content)
        run.change_structure("masks-fixed", run.model.structure.changed(map=chosen))
        return {**results, "granularity": self.config.granularity, "masks": chosen.masks(), "scores": scores}

    def settled(self, steps: int) -> dict[str, Any]:
        """settled, and if it is false the estimated steps that are left (`more_steps`), and the warning."""
        self.read()
        last = last_steps(steps)
        if self.held >= last:
            return {"settled": True}
        more = self.outlook(steps)
        if isinstance(more, str):
            advice = f"learn them with more steps; how many cannot be told: {more}"
        else:
            advice = f"learn them with about {more} steps more"
        warning = (
            f"the masks have not settled: {self.unsettled()} in each of the last {last} steps, and there were {steps} "
            f"in all; {advice}"
        )
        return {"settled": False, "more_steps": None if isinstance(more, str) else more, "warnings": [warning]}

    @abstractmethod
    def outlook(self, steps: int) -> int | str:
        """How many steps more the masks need that have not settled after `steps` steps; where that cannot be told, the
        reason, a clause."""


def last_steps(steps: int) -> int:
    """The number of last steps, of all of them, in which learning must have been where it should end."""
    return max(_LAST_STEPS, steps // _LAST_SHARE)


@dataclass(frozen=True)
class HardConcrete:
    """temperature: β. low, high: the stretch (γ, ζ), with γ < 0 and ζ > 1."""

    temperature: float = 2 / 3
    low: float = -0.1
    high: float = 1.1

    def sample(self, alpha: Tensor, u: Tensor) -> Tensor:
        """z for uniform random numbers u in (0, 1) of the shape of α (Eq. 7)."""
        u = u.clamp(_SMALLEST_U, 1 - _SMALLEST_U)
        s = torch.sigmoid((torch.log(u) - torch.log1p(-u) + alpha) / self.temperature)
        return (s * (self.high - self.low) + self.low).clamp(0, 1)

    def without_noise(self, alpha: Tensor) -> Tensor:
        """z of a trained α for measurements (Louizos et al. 2018, Eq. 13)."""
        return (torch.sigmoid(alpha) * (self.high - self.low) + self.low).clamp(0, 1)

    def prob_positive(self, alpha: Tensor) -> Tensor:
        """P(z > 0), which the paper writes as E[z] (Eq. 9)."""
        return torch.sigmoid(alpha - self.temperature * math.log(-self.low / self.high))


class MaskLearning(LearnedAllocation):
    """The controller `mask-learning`. scores: α. lambda_, phi: (1,), or (L,) for head-single. gaps: after each of the
    last steps, every expected sparsity less the target."""

    config: MaskLearningConfig

    def __init__(self, config: MaskLearningConfig, shape: Shape, window: int) -> None:
        super().__init__(config, shape, window, config.alpha_init)
        self.distribution = HardConcrete(config.temperature, *config.stretch)
        self.lambda_, self.phi = torch.zeros(self.num_rows), torch.zeros(self.num_rows)
        self.highest, self.gaps, self.steps = 0.0, list[list[float]](), 0

    # ---- hook ----

    def own_tensors(self) -> dict[str, Tensor]:
        return {"scores": self.scores, "lambda_": self.lambda_, "phi": self.phi}

    def begin(self, run: Run) -> None:
        super().begin(run)
        self.seed = run.config.training.seed

    def parameter_groups(self) -> list[Group]:
        config = self.config
        return [
            self.group("masks", ["scores"], config.mask_lr, schedule=config.schedule),
            self.group(
                "multipliers", ["lambda_", "phi"], config.multiplier_lr, maximize=True, schedule=config.schedule
            ),
        ]

    def forward_inputs(self, step: int) -> dict[str, Any]:
        """The gates z of this step."""
        mixed = np.random.SeedSequence((_DRAW, self.seed, step)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(mixed >> np.uint64(1)))  # 63 bits
        u = moved(torch.rand(self.scores.shape, generator=generator), self.scores.device)
        return self.gates(self.distribution.sample(self.scores, u))

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        """The gates without noise."""
        return self.gates(self.distribution.without_noise(self.scores.detach()))

    def penalty(self, step: int) -> Tensor:
        """Σ over the constraints of λ (E − ρ) + φ (E − ρ)² (Eq. 10)."""
        gap = self.expected_sparsity() - self._target_at(step)
        return (self.lambda_ * gap + self.phi * gap.square()).sum()

    def after_step(self, run: Run, step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            expected = self.expected_sparsity()
            mean, self.steps = expected.mean(), step + 1
            self.measured(torch.cat((mean[None], expected - self.target)))
            others = {"lambda": self.lambda_.mean(), "phi": self.phi.mean()}
            return {"expected_sparsity": mean, "lagrangian": self.penalty(step), **others}

    def state(self) -> dict[str, Any]:
        counted = super().state()
        return {"highest": self.highest, "gaps": self.gaps, **counted}

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        super().load_state(state, run)
        # Checkpoints of older versions lack the gaps.
        self.highest, self.gaps = state["highest"], state.get("gaps", [])

    def finish(self, run: Run) -> dict[str, Any]:
        """Binarise the masks; the results also state the sparsity of the paper's threshold."""
        self.read()
        threshold = self.threshold_masks()
        by_threshold = AttentionMap.from_masks(threshold, self.window).sparsity()
        expected = self.expected_sparsity().detach()
        results = {
            "expected_sparsity": float(expected.mean()),
            "expected_gap": self._gap(),
            "undecided_share": self._undecided_share(),
            "highest_expected_sparsity": self.highest,
            "binarize": self.config.binarize,
            "threshold_sparsity": by_threshold,
            "threshold_gap": by_threshold - self.target,
        }
        return self.fix(run, self.ranked_masks() if self.config.binarize == "topk" else threshold, results)

    def holds(self, numbers: list[float]) -> bool:
        mean, *gaps = numbers
        self.highest = max(self.highest, mean)
        self.gaps = [*self.gaps, gaps][-last_steps(self.steps) :]
        return all(abs(gap) <= self._tolerance() for gap in gaps)

    def unsettled(self) -> str:
        expected, rows = self.expected_sparsity().detach(), "" if self.num_rows == 1 else " of every layer"
        worst = float(expected[(expected - self.target).abs().argmax()])
        return (
            f"the expected sparsity ended at {worst:.3f} for a target of {self.target:.3f}, with "
            f"{self._undecided_share():.0%} of the units undecided; settled means within {TOLERANCE:.0%} of the "
            f"target{rows}"
        )

    def outlook(self, steps: int) -> int | str:
        """By a straight line: the expected sparsity moves on as in the last steps, for every unit of the learning rate
        of the masks, which an extended run has again at first. It must not pass its target within as many steps."""
        if self.highest < self.target:
            return "the expected sparsity has not reached its target yet, and passes it at first"
        if len(self.gaps) < _LAST_STEPS:
            return f"it takes {_LAST_STEPS} steps to see how the expected sparsity moves"
        before, now = torch.tensor(self.gaps[0]), torch.tensor(self.gaps[-1])
        moved, row = (now - before).abs(), int(now.abs().argmax())
        if float(moved.max()) > 2 * self._tolerance():
            return "the expected sparsity still moves so fast that it would pass its target"
        if self.held:
            return self._reached(steps, lambda more: self.held + more >= last_steps(steps + more))
        if self._undecided_share() == 0:
            return "no unit is undecided, so that the expected sparsity hardly moves"
        if now[row].abs() >= before[row].abs():
            return "the expected sparsity does not come closer to its target"
        rate = self._rate(range(steps - len(self.gaps) + 1, steps), steps)
        left = float((now[row].abs() - self._tolerance()) / moved[row]) * rate

        def close(more: int) -> bool:
            total = steps + more
            return self._rate(range(steps, total - last_steps(total)), total) >= left

        return self._reached(steps, close)

    def _rate(self, span: range, steps: int) -> float:
        """The sum of the factors of the learning rate in some of the `steps` steps of a run."""
        return sum(learning_rate_factor(self.config.schedule, step, steps) for step in span)

    def _reached(self, steps: int, settled: Callable[[int], bool]) -> int | str:
        """The first round number of steps more after which masks have settled. settled: false, then true."""
        unit = 10 * max(1, steps // 100)
        tried = range(unit, _FARTHEST * steps + 1, unit)
        place = bisect_left(tried, True, key=settled)
        if place == len(tried):
            far = f"more than {_FARTHEST} times the steps so far"
            return f"as slowly as in its last steps, the expected sparsity would take {far}"
        return tried[place]

    # ---- the method ----

    def expected_sparsity(self) -> Tensor:
        """1 − mean P(z > 0) of each constraint (Eq. 9): (L,) for head-single, else (1,)."""
        windows = 1 - self.distribution.prob_positive(self.scores)
        return windows.view(self.num_rows, -1).mean(1)

    def threshold_masks(self) -> list[list[int]]:
        """Masks (L, K): z = 1[α > 0] (Eq. 11); the target may be missed."""
        return (self.scores.detach() > 0).int().expand(-1, self.shape.kv_heads).tolist()

    def _gap(self) -> float:
        """The largest distance of an expected sparsity from its target."""
        return float((self.expected_sparsity().detach() - self.target).abs().max())

    def _tolerance(self) -> float:
        """The largest gap of masks that have settled."""
        return TOLERANCE * (self.target or 1)

    def _undecided_share(self) -> float:
        """The share of units that are undecided."""
        likely = self.distribution.prob_positive(self.scores.detach())
        return float(((likely > UNDECIDED) & (likely < 1 - UNDECIDED)).float().mean())

    def _target_at(self, step: int) -> float:
        """The target sparsity in step `step`, which rises linearly at first."""
        warmup = self.config.target_warmup_steps
        return self.target * min(1.0, (step + 1) / warmup) if warmup else self.target


class L1Gates(LearnedAllocation):
    """The controller `l1-gates`: gates with an L1 penalty, ConSA's ablation without its L0-Lagrangian (section 5.4, Eq.
    12 and 13). scores: the gates.

    Every unit has a gate in [0, 1], initially 1, that mixes full attention and a window; `strength` (by default 0.05)
    times the mean gate is added to the loss. The penalty does not depend on the target: at the end as many units as the
    target requires, those with the lowest gates, become windows. So no sparsity can settle here; the choice of units
    can."""

    config: L1GatesConfig

    def __init__(self, config: L1GatesConfig, shape: Shape, window: int) -> None:
        super().__init__(config, shape, window, initial_score=1.0)
        self.chosen = self.ranked_masks()

    def parameter_groups(self) -> list[Group]:
        return [self.group("gates", ["scores"], self.config.gate_lr)]

    def forward_inputs(self, step: int) -> dict[str, Any]:
        return self.gates(self.scores)

    def evaluation_inputs(self, step: int) -> dict[str, Any]:
        return self.gates(self.scores.detach().clamp(0, 1))

    def penalty(self, step: int) -> Tensor:
        return self.config.strength * self.scores.abs().mean()

    def load_state(self, state: dict[str, Any], run: Run) -> None:
        super().load_state(state, run)
        self.chosen = self.ranked_masks()

    def holds(self, numbers: list[float]) -> bool:
        """Whether the same units would become windows as after the step before, and by their gates, not by a tie."""
        per_layer = self.allocation.per_layer
        rows = [numbers[start : start + per_layer] for start in range(0, len(numbers), per_layer)]
        before, self.chosen = self.chosen, self.allocation.ranked(rows)
        gates, count = sorted(numbers), self.windows_per_row
        tied = 0 < count < len(gates) and gates[count - 1] == gates[count]
        return before == self.chosen and not tied

    def unsettled(self) -> str:
        return "settled means that the same units have the lowest gates"

    def outlook(self, steps: int) -> int | str:
        return "gates have no target that they approach"

    def after_step(self, run: Run, step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            self.scores.clamp_(0, 1)
            self.measured(self.scores.flatten().clone())
            return {"mean_gate": self.scores.mean(), "gate_spread": self.scores.std()}

    def finish(self, run: Run) -> dict[str, Any]:
        gates = self.scores.detach()
        return self.fix(run, self.ranked_masks(), {"mean_gate": float(gates.mean()), "gate_spread": float(gates.std())})
