"""Settings of plan edits, one model for each `op`.

    plan: [{op: loop_heads, layer: 5, heads: [3], extra_passes: 2}, {op: skip, layers: {last: 1}}]

Layers and heads are numbered from 0. Whether they exist is checked when an edit is applied to a plan.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag

from hybridlab.config.other_runs import Configuration, Finished, FinishedRun, probes_of, require_heads
from hybridlab.config.types import AsWritten, NonNegativeInt, PositiveInt, RunName
from hybridlab.errors import UserError, located
from hybridlab.plan.loop import Downscale, Loop, PerIteration, Positions, RouterInit, Topology, Upscale
from hybridlab.plan.plan import Plan, check_heads
from hybridlab.plan.shape import Shape

GroupSize = Annotated[int, Field(le=10**6)]
"""Of layers next to each other. Whether they fit is checked on the plan, where a huge number would fill the memory."""


class LastLayers(AsWritten):
    """The last `last` layers of the model."""

    last: int
    """Number of layers, from the end."""


class TopEntropy(AsWritten):
    """Layers chosen by the entropies of another run (SGT's Block Loop, section 5.1, "Baseline").

    The n layers with the highest mean head entropy in the run `top_entropy_of` after `step`, without `exclude`.
    """

    top_entropy_of: RunName
    """The run with the entropies: its folder, or the start of its hash."""
    step: PositiveInt
    """Step of that run whose entropies count. Default: growth.start_step."""
    n: PositiveInt
    """Number of layers."""
    exclude: list[NonNegativeInt] = [0]
    """Layers that are not chosen, counted from 0."""

    def chosen(self, run: FinishedRun, shape: Shape) -> list[int]:
        """The layers, ascending: from the probe `entropy`, if the run has measured it at this step, else from the
        entropy log, over the batch of the step. UserError if that run has other numbers of layers and heads than
        `shape`, or no entropies of the step."""
        setting = f"layers: top_entropy_of {self.top_entropy_of}"
        require_heads(setting, run, shape)
        rows = probes_of(run, self.step).get("entropy", {}).get("heads", [])
        if not rows or any(value is None for row in rows for value in row):
            rows = self._logged(run, setting)
        means = {i: sum(row) / len(row) for i, row in enumerate(rows) if i not in self.exclude and None not in row}
        if self.n > len(means):
            raise UserError(
                f"{setting}: n = {self.n}, but there are {len(means)} layers to choose from; give a smaller n"
            )
        return sorted(sorted(means, key=lambda layer: (-means[layer], layer))[: self.n])

    def _logged(self, run: FinishedRun, setting: str) -> list[list[float]]:
        """[layer][head] of the entropy log at the step; UserError if it has no such step."""
        logged = (run.record() or {}).get("hooks", {}).get("entropy-log", {"steps": [], "entropies": []})
        if self.step not in logged["steps"]:
            steps = ", ".join(map(str, logged["steps"][:8])) or "none"
            raise UserError(
                f"{setting}: that run has no entropies of step {self.step} (it has {steps}); "
                f"train it with --set observe.entropy_every={self.step}"
            )
        return logged["entropies"][logged["steps"].index(self.step)]


def _choice(value: Any) -> str:
    """The member of `LayerChoice` that a value belongs to."""
    names = value.keys() if isinstance(value, dict) else set()
    if isinstance(value, TopEntropy) or names & TopEntropy.model_fields.keys():
        return "top_entropy"
    return "last" if isinstance(value, dict | LastLayers) else "list"


LayerChoice = Annotated[
    Annotated[list[int], Tag("list")] | Annotated[LastLayers, Tag("last")] | Annotated[TopEntropy, Tag("top_entropy")],
    Discriminator(_choice),
]


def chosen_layers(choice: LayerChoice, num_layers: int) -> list[int]:
    """The layers that an edit names, in a plan over `num_layers`."""
    if isinstance(choice, TopEntropy):
        raise UserError(f"layers: those of run {choice.top_entropy_of} are known only after its training, not here")
    if isinstance(choice, LastLayers):
        if not 1 <= choice.last <= num_layers:
            raise UserError(f"layers: last {choice.last} is not between 1 and {num_layers}")
        return list(range(num_layers - choice.last, num_layers))
    if len(set(choice)) != len(choice):
        raise UserError(f"layers: {choice} names a layer twice; extra_passes says how often it runs")
    return choice


class Edit(AsWritten):
    """Base class of plan edits."""

    @abstractmethod
    def applied(self, plan: Plan, num_heads: int) -> Plan:
        """The plan after this edit; UserError if it does not fit."""

    @property
    def unknown_layers(self) -> TopEntropy | None:
        """Its choice of layers, if that depends on the entropies of another run."""
        choice = getattr(self, "layers", None)
        return choice if isinstance(choice, TopEntropy) else None

    def linked(self, config: Configuration, finished: Finished) -> Self:
        """The edit with its layers, which another run's name stood for."""
        choice = self.unknown_layers
        if choice is None:
            return self
        chosen = choice.chosen(finished(choice.top_entropy_of), config.first_shape)
        return self.model_copy(update={"layers": chosen})


class LoopSettings(AsWritten):
    """Settings of a recurrence over resolutions. `Loop` in plan/loop.py explains and checks them."""

    chunks: list[int]
    """Tokens in a chunk, one number for each iteration; 1 is full resolution, 8 a resolution of 1/8."""
    topology: Topology = Loop.topology
    """How the update of an iteration becomes the next state: direct replaces it, anchor adds it to the first state,
    mesh takes a learned sum of all updates."""
    offset: PerIteration = Loop.offset
    """Shift of the chunk borders in tokens: half a chunk, zero or a number; one value, or one for each iteration."""
    shift: PerIteration = Loop.shift
    """Shift of updates to later tokens: overlap (chunk - 1), parallel (chunk) or a number; one value, or one for
    each iteration."""
    downscale: Downscale = Loop.downscale
    """From tokens to chunks: learned weights, or the mean."""
    upscale: Upscale = Loop.upscale
    """From chunks to tokens: learned shares, or equal ones."""
    positions: Positions = Loop.positions
    """Rotary positions of chunks: 0, 1, 2 … (chunk), or those of tokens."""
    literal: bool = Loop.literal
    """Count and divide chunks exactly as the paper's formulas do; then decoding with a cache is not possible."""
    router_init: RouterInit | None = None
    """How the routers of topology mesh begin: uniform (as if left out) weighs all slots alike; newest reads the last
    update; anchor reads the last update and the state before the loop in equal parts."""


class LoopHeads(Edit):
    """Run chosen heads of a layer again, between its attention and its MLP."""

    op: Literal["loop_heads"]
    layer: int
    """The layer, counted from 0."""
    heads: list[int]
    """Query heads that run again, counted from 0."""
    extra_passes: int = 1
    """How often they run again."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.loop_heads(self.layer, self.heads, self.extra_passes)


class LoopAttention(Edit):
    """Run all heads of these layers again."""

    op: Literal["loop_attention"]
    layers: LayerChoice
    """The layers, counted from 0; or {last: N}, or {top_entropy_of: RUN, n: N}."""
    extra_passes: int = 1
    """How often their attention runs again."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        for layer in chosen_layers(self.layers, plan.num_layers):
            plan = plan.loop_heads(layer, range(num_heads), self.extra_passes)
        return plan


class LoopBlocks(Edit):
    """Run these whole layers again, each right after itself."""

    op: Literal["loop_blocks"]
    layers: LayerChoice
    """The layers, counted from 0; or {last: N}, or {top_entropy_of: RUN, n: N}."""
    extra_passes: int = 1
    """How often each of them runs again."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.loop_blocks(chosen_layers(self.layers, plan.num_layers), self.extra_passes)


class Recur(LoopSettings, Edit):
    """Put the layers [first, first + size) into a loop over resolutions. shared: all iterations use the same layers;
    otherwise each iteration uses the next `size` layers."""

    op: Literal["recur"]
    first: int
    """First layer of the loop, counted from 0."""
    size: GroupSize
    """Number of layers in the loop's body."""
    shared: bool = True
    """All iterations use the same layers; otherwise each uses the next `size` layers."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        loop = {name: getattr(self, name) for name in LoopSettings.model_fields}
        return plan.recur(self.first, self.size, shared=self.shared, **loop)


class Skip(Edit):
    """Remove these layers from the plan."""

    op: Literal["skip"]
    layers: LayerChoice
    """The layers, counted from 0; or {last: N}, or {top_entropy_of: RUN, n: N}."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.skip(*chosen_layers(self.layers, plan.num_layers))


class Swap(Edit):
    """Exchange `size` layers from `first` on with as many from `second` on."""

    op: Literal["swap"]
    first: int
    """First layer of one group, counted from 0."""
    second: int
    """First layer of the other group, counted from 0."""
    size: GroupSize = 1
    """Number of layers in each group."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.swap(self.first, self.second, self.size)


class Reverse(Edit):
    """Run `size` layers from `start` on in the opposite order."""

    op: Literal["reverse"]
    start: int
    """First layer of the group, counted from 0."""
    size: GroupSize
    """Number of layers in the group."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.reverse(self.start, self.size)


class Truncate(Edit):
    """Keep only the first `layers` layers."""

    op: Literal["truncate"]
    layers: int
    """Number of layers that stay."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.truncate(self.layers)


class DropHeads(Edit):
    """Run a layer's attention without these heads."""

    op: Literal["drop_heads"]
    layer: int
    """The layer, counted from 0."""
    heads: list[int]
    """Query heads that do not run, counted from 0."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return plan.drop_heads(self.layer, self.heads, num_heads)


class WrittenVisit(AsWritten):
    """One visit as JSON; see `Visit` in plan/visit.py."""

    layer: int
    """The layer, counted from 0."""
    part: Literal["block", "attention", "mlp"]
    """What of its block runs."""
    heads: list[int] | None
    """Query heads that run, counted from 0; null for all."""


class WrittenLoop(LoopSettings):
    """A loop as JSON: one body for all iterations, or one per iteration."""

    bodies: list[list[WrittenVisit]]
    """Visits of one iteration: one list for all iterations, or one list for each."""


def _item(value: Any) -> str:
    return "loop" if isinstance(value, WrittenLoop) or (isinstance(value, dict) and "bodies" in value) else "visit"


Item = Annotated[Annotated[WrittenVisit, Tag("visit")] | Annotated[WrittenLoop, Tag("loop")], Discriminator(_item)]


class Visits(Edit):
    """A complete plan, which replaces the result of the edits before it."""

    op: Literal["visits"]
    visits: list[Item]
    """Everything that runs, in order."""

    def applied(self, plan: Plan, num_heads: int) -> Plan:
        return Plan.from_json({**plan.to_json(), "visits": self.model_dump(mode="json")["visits"]})


PlanEdit = Annotated[
    LoopHeads | LoopAttention | LoopBlocks | Recur | Skip | Swap | Reverse | Truncate | DropHeads | Visits,
    Field(discriminator="op"),
]


def edited_plan(
    shape: Shape, edits: Iterable[PlanEdit], origin: Callable[[int], str] = lambda _: "", recurrence: bool = False
) -> Plan:
    """The plain plan of a shape with edits applied in order.

    origin: index of an edit → where it was written, for errors. recurrence: the first edit is that of `recurrence:`,
    and was not written as an edit. UserError if an edit does not fit the plan before it,
    for example if it names a layer or a head that does not exist.
    """
    plan = Plan.plain(shape.layers, shape.traits.parallel)
    for index, edit in enumerate(edits):
        try:
            plan = edit.applied(plan, shape.heads)
            check_heads(plan, shape.heads)
        except UserError as error:
            number = index + 1 - recurrence
            name = f"plan edit {number} ({edit.op})" if number else "recurrence"
            raise UserError(located(origin(index), f"{name}: {error}")) from None
    return plan


def known_plan(shape: Shape, edits: Iterable[PlanEdit]) -> Plan:
    """The plain plan with the edits whose layers are known before the entropies of another run choose them."""
    return edited_plan(shape, [edit for edit in edits if edit.unknown_layers is None])
