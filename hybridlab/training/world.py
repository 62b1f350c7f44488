"""The processes that train one run together: ranks 0 … size − 1, of which rank 0 is the writer.

Every rank reads its part of each batch. What is shown, decided and written follows from the numbers of all ranks, so
that a run does not depend on how many there are. Without a process group of torch.distributed there is one process:
then nothing here costs anything or changes a bit. The group needs collectives for tensors on the CPU as well, which
`init_process_group` gives if no backend is named.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

from hybridlab.config.schema import Runtime
from hybridlab.errors import RankLost
from hybridlab.models.adapters import has_adapters, merged
from hybridlab.models.blocks import NormLayer
from hybridlab.models.decoder import Transformer
from hybridlab.models.export import Tensors
from hybridlab.training.progress import followed
from hybridlab.training.store.checkpoints import written_together

P = ParamSpec("P")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class World:
    """The processes of this run, seen from one of them. Every rank must call the same methods in the same order."""

    rank: int = 0
    size: int = 1

    @property
    def writer(self) -> bool:
        """Whether this process writes files and to the terminal."""
        return self.rank == 0

    @property
    def part(self) -> slice:
        """Which rows of a batch, by their numbers, this rank reads: every n-th, so that each rank has rows of all
        sources and tasks."""
        return slice(self.rank, None, self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, with the same bits on each of them."""
        if self.size == 1:
            return tensor
        doing("a sum over all ranks")
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def agree(self, decision: int) -> int:
        """The largest of all ranks' decisions: what any of them has decided holds for all. 0 or False: it has not."""
        if self.size == 1:
            return decision
        doing("a decision of all ranks")
        largest = torch.tensor(int(decision))
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def once(self, do: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Let the writer call a function, such as one that writes a file; the others wait, and get its result or its
        error."""
        if self.size == 1:
            return do(*args, **kwargs)
        doing(f"waiting for {getattr(do, '__name__', 'what')} of the first rank")
        found: list[Any] = [None, None]
        if self.writer:
            try:
                found[0] = do(*args, **kwargs)
            except Exception as error:
                found[1] = error
        dist.broadcast_object_list(found)
        if found[1] is not None:
            raise found[1]
        return found[0]

    def map(self, do: Callable[[Item], Result], items: Iterable[Item], what: str = "measuring") -> list[Result]:
        """The results of `do` for all items, in their order. The ranks take turns, so that every item is computed as it
        would be in one process. All call `do` equally often, because a forward pass may need all of them. what: for the
        lines of progress, see `followed`."""
        if self.size == 1:
            return [do(item) for item in followed(items, what)]
        own: list[Result] = []
        count = 0
        for item in followed(items, what):
            if count % self.size == self.rank:
                own.append(do(item))
            count += 1
        if len(own) < -(-count // self.size):
            do(item)
        doing("collecting what was measured")
        found: list[list[Result]] = [[] for _ in range(self.size)]
        dist.all_gather_object(found, own)
        return [found[number % self.size][number // self.size] for number in range(count)]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights or the optimizer's state by name, with whole tensors instead of those that the ranks share."""
        if self.size == 1:
            return dict(tensors)
        from torch.distributed.tensor import DTensor

        doing("gathering weights")
        return {name: t.full_tensor().detach() if isinstance(t, DTensor) else t for name, t in tensors.items()}

    def divides(self, tensors: Iterable[Tensor]) -> bool:
        """Whether no rank holds all of these tensors."""
        if self.size == 1:
            return False
        from torch.distributed.tensor import DTensor

        parts = [
            count
            for tensor in tensors
            if isinstance(tensor, DTensor)
            for placement, count in zip(tensor.placements, tensor.device_mesh.shape, strict=True)
            if placement.is_shard()
        ]
        return max(parts, default=1) > 1

    @contextmanager
    def collected(self, tensors: Mapping[str, Tensor], folder: Path) -> Iterator[Tensors]:
        """A context with whole tensors for the writer; where ranks hold parts of them, with a file that all write into
        a folder, so that none of them holds all."""
        if not self.divides(tensors.values()):
            yield self.gather(tensors)
            return
        doing("writing weights")
        with written_together(tensors, folder, self.writer) as file:
            yield file

    def shard(self, model: Transformer, device: torch.device, settings: Runtime, precision: str) -> None:
        """Let the ranks train a model without weights together on a device, in place. From then on its parameters and
        their gradients, which are sums over all ranks, are shared: each rank holds a whole copy (ddp), or a part of
        every block (fsdp2), and has the whole block while it runs.

        precision: of the passes. With fsdp2 and bf16, the linear layers of a block are gathered in bf16, as autocast
        would cast them, so that no rank keeps casts of all blocks until the backward pass. Norms are computed in fp32:
        they are gathered with what is around the blocks, in fp32.
        """
        if self.size == 1:
            return
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        # References of a model that ranks share go round in circles: the one before would stay for a while.
        gc.collect()
        # Copies of one part, so that nothing is gathered; or parts, of which there is one copy that none else sums up.
        sizes = {"copies": self.size, "parts": 1} if settings.sharding == "ddp" else {"parts": self.size}
        mesh = _mesh(dist.group.WORLD, device.type, tuple(sizes.items()))
        visits, policy = Counter(visit.layer for _, visit in model.plan.places()), MixedPrecisionPolicy()
        if low := precision == "bf16" and settings.sharding == "fsdp2":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        outside = _norms(model.blocks) if low else set()
        # First, because it takes what blocks leave out. From then on the norms have other parameters.
        fully_shard(model, mesh=mesh, ignored_params=set(model.blocks.parameters()) - outside)
        outside = _norms(model.blocks) if low else set()
        for layer, block in enumerate(model.blocks):
            # A block that runs again in the same pass stays whole until then.
            stays = not settings.reshard or visits[layer] > 1
            fully_shard(block, mesh=mesh, reshard_after_forward=not stays, mp_policy=policy, ignored_params=outside)
            register_fsdp_forward_method(block, "visit")
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def sum_gradients_in(self, model: nn.Module, last: bool) -> None:
        """Whether the ranks sum the gradients of a model's parameters in the next backward pass: in the last one of a
        step."""
        from torch.distributed.fsdp import FSDPModule

        doing("gathering weights and summing gradients")
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)

    def clip(self, tensors: Iterable[Tensor], limit: float) -> Tensor:
        """Scale gradients down to a norm of at most `limit` over all tensors; returns their norm before."""
        from torch.distributed.tensor import DTensor

        tensors = [tensor for tensor in tensors if tensor.grad is not None]
        if self.size == 1:
            return nn.utils.clip_grad_norm_(tensors, limit)
        doing("the norm of the gradients")
        # Those of hooks are whole on every rank.
        parts = [[t for t in tensors if isinstance(t, DTensor) is shared] for shared in (True, False)]
        parts = [part for part in parts if part]
        norms = [nn.utils.get_total_norm([cast(Tensor, t.grad) for t in part]) for part in parts]
        whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = torch.linalg.vector_norm(torch.stack(whole))
        for part in parts:
            nn.utils.clip_grads_with_norm_(part, limit, norm)
        return norm

    def in_fp32(self, model: Transformer, device: torch.device, settings: Runtime) -> Transformer:
        """A model that ranks share and train in bf16, for passes in fp32."""
        other = Transformer.without_weights(model.structure, model.kernel, model.factors)
        self.shard(other, device, settings, "fp32")
        other.make_room(device)
        other.put(dict(model.named_parameters()))
        other.gates = model.gates
        return other.train(model.training)

    def whole(self, model: Transformer) -> Transformer:
        """A model with whole weights and without adapters, to take it apart; with one process and no adapters the model
        itself."""
        if self.size == 1 and not has_adapters(model):
            return model
        tensors = merged(model, self.gather(dict(model.named_parameters())))
        other = Transformer.from_tensors(model.structure, tensors, model.kernel, model.factors)
        other.gates = model.gates
        return other.train(model.training)


def _norms(module: nn.Module) -> set[nn.Parameter]:
    """The parameters of all norms."""
    return {own for layer in module.modules() if isinstance(layer, NormLayer) for own in layer.parameters()}


@cache
def _mesh(group: Any, device: str, sizes: tuple[tuple[str, int], ...]) -> Any:
    """The ranks of a process group as copies × parts, or parts; made once, because it opens connections."""
    from torch.distributed.device_mesh import init_device_mesh

    names, numbers = zip(*sizes, strict=True)
    return init_device_mesh(device, numbers, mesh_dim_names=names)


_now_doing = ""
"""What the ranks do together, for the message where one of them does not answer."""


def doing(what: str) -> None:
    global _now_doing
    _now_doing = what


@contextmanager
def all_answer(describe: Callable[[], str]) -> Iterator[None]:
    """A context in which a rank that has ended or does not answer is a RankLost. describe: where the run stands."""
    try:
        yield
    except RuntimeError as error:
        here, text = world(), str(error)
        if here.size == 1 or not (isinstance(error, dist.DistError) or "gloo" in text or "NCCL" in text):
            raise
        # gloo and NCCL have a word of their own.
        why = "did not answer in time" if "imed out" in text or "timeout" in text else "has ended"
        raise RankLost(f"{describe()}: another rank {why}, as rank {here.rank} found in {_now_doing}") from None


def world() -> World:
    """The processes of this run, as torch.distributed knows them at this moment."""
    together = dist.is_available() and dist.is_initialized()
    return World(dist.get_rank(), dist.get_world_size()) if together else World()
