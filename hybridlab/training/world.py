"""The processes that train one run together: ranks 0 … size − 1, of which rank 0 is the writer.

Every rank reads its part of each batch. What is shown, decided and written follows from the numbers of all ranks, so
that a run does not depend on how many there are. Without a process group of torch.distributed there is one process:
then nothing here costs anything or changes a bit. The group needs collectives for tensors on the CPU as well, which
`init_process_group` gives if no backend is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from hybridlab.models.decoder import Transformer

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
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def agree(self, decision: int) -> int:
        """The largest of all ranks' decisions: what any of them has decided holds for all. 0 or False: it has not."""
        if self.size == 1:
            return decision
        largest = torch.tensor(int(decision))
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def once(self, do: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Let the writer call a function, such as one that writes a file; the others wait, and get its result or its
        error."""
        if self.size == 1:
            return do(*args, **kwargs)
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

    def map(self, do: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results of `do` for all items, in their order. The ranks take turns, so that every item is computed as it
        would be in one process. All call `do` equally often, because a forward pass may need all of them."""
        if self.size == 1:
            return [do(item) for item in items]
        own: list[Result] = []
        count = 0
        for item in items:
            if count % self.size == self.rank:
                own.append(do(item))
            count += 1
        if len(own) < -(-count // self.size):
            do(item)
        found: list[list[Result]] = [[] for _ in range(self.size)]
        dist.all_gather_object(found, own)
        return [found[number % self.size][number // self.size] for number in range(count)]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights or the optimizer's state by name, with whole tensors in the place of those that the ranks share."""
        if self.size == 1:
            return dict(tensors)
        from torch.distributed.tensor import DTensor

        return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}

    def whole(self, model: Transformer) -> Transformer:
        """A model with whole weights, to save it or to take it apart; with one process the model itself."""
        if self.size == 1:
            return model
        tensors = self.gather(dict(model.named_parameters()))
        other = Transformer.from_tensors(model.structure, tensors, model.kernel, model.factors)
        other.gates = model.gates
        return other.train(model.training)


def world() -> World:
    """The processes of this run, as torch.distributed knows them at this moment."""
    together = dist.is_available() and dist.is_initialized()
    return World(dist.get_rank(), dist.get_world_size()) if together else World()
