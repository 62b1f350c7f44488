"""Decoding: greedy or sampled with temperature, top-k and top-p; with a KV cache, or without one as a check.

hybridlab generate RUN "def main(" --max-new-tokens 40
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hybridlab.arguments import checked
from hybridlab.attention.kernels import moved
from hybridlab.errors import UserError
from hybridlab.models.cache import KVCache, require_caches
from hybridlab.models.executor import compiled as compiled_form
from hybridlab.models.executor import require_compiler
from hybridlab.plan.structure import Structure


class LanguageModel(Protocol):
    """What decoding needs of a model: its structure, and logits for tokens with a cache (see `Transformer.forward` and
    `Transformer.step`)."""

    @property
    def structure(self) -> Structure: ...

    def __call__(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        cache: KVCache | None = None,
        at: Tensor | None = None,
    ) -> Any: ...

    def step(self, tokens: Tensor, cache: KVCache, at: Tensor) -> Tensor: ...

    def require_position(self, last: int) -> None: ...

    def parameters(self) -> Iterable[Tensor]: ...


_COLD = 1e-9
"""Temperatures from here on leave scores finite, of logits of less than 10^29."""
_READ_EVERY = {"cuda": 16}
"""After how many tokens those of a device are read: Python must not wait for each of them. On a CPU after each."""
_STEP = 256
"""Tokens by which the capacity of a cache for compiled steps grows; below, it doubles."""
_KEPT = 4
"""How many caches of compiled steps a model keeps."""


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. top_k: only the k likeliest tokens. top_p: only the fewest with that probability."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UserError(f"temperature {self.temperature}: it must be 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k {self.top_k}: it must be 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p {self.top_p}: it must be above 0 and at most 1")
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise UserError("top_k and top_p have no effect on greedy decoding; give a temperature above 0")

    def pick(self, logits: Tensor, generators: list[torch.Generator]) -> Tensor:
        """logits (B, V) → tokens (B,). generators: one per row, so that a row's samples do not depend on the others.
        They are drawn on the CPU, so that all devices give the same tokens; no device is asked for anything."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.float()
        scores = logits / self.temperature
        if self.temperature < _COLD:  # scores may be infinite: all but the likeliest have no chance then
            below = logits - logits.amax(-1, keepdim=True)
            cold = torch.where(below == 0, 0.0, below / self.temperature)
            scores = torch.where(scores.amax(-1).isfinite().all(), scores, cold)
        if self.top_k is not None:
            least = scores.topk(min(self.top_k, scores.shape[-1])).values[:, -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        if self.top_p is not None:
            ordered, order = scores.softmax(-1).sort(dim=-1, descending=True)
            # A token is kept if the likelier ones have less than top_p together; so the likeliest is always kept.
            dropped = ordered.cumsum(-1) - ordered >= self.top_p
            scores = scores.masked_fill(dropped.gather(1, order.argsort(-1)), float("-inf"))
        shares = scores.softmax(-1)
        torch._assert_async(shares[:, 0].isfinite().all(), "generate: the logits are no finite numbers")
        # As `torch.multinomial` does it, with the same draws; but that looks at the shares before.
        draws = torch.empty(shares.shape, dtype=shares.dtype)
        for row, generator in zip(draws, generators, strict=True):
            row.exponential_(generator=generator)
        return (shares / moved(draws, shares.device)).argmax(-1)


@dataclass(frozen=True)
class Generated:
    """tokens: (B, longest row), prompts with their continuations, padded with 0 on the right. lengths: of the rows."""

    tokens: Tensor
    lengths: list[int]

    def rows(self) -> list[list[int]]:
        """The tokens of each row, without padding."""
        return [row[:length] for row, length in zip(self.tokens.tolist(), self.lengths, strict=True)]


@checked
def generate(
    model: LanguageModel,
    input_ids: Tensor,
    max_new_tokens: int,
    lengths: list[int] | None = None,
    use_cache: bool = True,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    stop_token: int | Collection[int] | None = None,
    until: Callable[[list[list[int]]], bool] | None = None,
    compiled: bool = False,
) -> Generated:
    """Continue prompts (B, S) by up to `max_new_tokens` tokens each.

    lengths: tokens of each prompt, if some are padded on the right. A row ends with `stop_token`, or one of several,
    which is part of it. seed: of the first row's samples; the next row has seed + 1, and so on; or one for each row.
    until: asked after every token, with the new tokens of each row; all rows end when it says so. A GPU's tokens are
    read, and `until` is asked, some at a time; what was computed too much is left out. compiled: the tokens after the
    first by one compiled graph for all of the model, see `Transformer.step`: it takes some seconds to be made for each
    number of rows and each capacity of the cache (powers of two up to 256, then multiples of it), and the logits differ
    by rounding. The model keeps the last four caches. UserError without a compiler, and for models that it cannot
    serve.
    """
    require_caches(model.structure, "generate")
    sampling = Sampling(temperature, top_k, top_p)
    lengths = _checked_lengths(input_ids, lengths, max_new_tokens, model.structure.shape.vocab)
    seeds = range(seed, seed + len(lengths)) if isinstance(seed, int) else seed
    if len(seeds) != len(lengths):
        raise UserError(
            f"generate: {len(seeds)} seeds for {len(lengths)} prompts; give one seed, or one for each prompt"
        )
    generators = [torch.Generator().manual_seed(own) for own in seeds]
    stops = {stop_token} if stop_token is None or isinstance(stop_token, int) else set(stop_token)
    completions = _Completions(input_ids.tolist(), lengths, stops, until)
    most, device, unread = max(lengths) + max_new_tokens, input_ids.device, list[Tensor]()
    every = _READ_EVERY.get(device.type, 1) if use_cache else 1
    new, new_lengths = input_ids, lengths
    with torch.inference_mode(), _cache_of(model, len(lengths), most if use_cache else 0, compiled, device) as cache:
        step = _compiled_step(model, cache, most, device) if compiled else None
        at = moved(torch.tensor(lengths), device)
        for number in range(max_new_tokens):
            if step is not None and number:
                if number == 1:
                    cast(KVCache, cache).keep_addresses()
                torch.compiler.cudagraph_mark_step_begin()  # the logits of the token before are used up
                logits, at = step(model, new, cache, at)[:, 0], at + 1
            else:
                logits = _last_logits(model, new, new_lengths, cache)
            picked = sampling.pick(logits, generators)
            unread.append(picked)
            if len(unread) == every or number == max_new_tokens - 1:
                if any(completions.add(tokens) for tokens in torch.stack(unread).tolist()):
                    break
                unread.clear()
            if cache is None:
                new, new_lengths = padded(completions.rows, device), [len(row) for row in completions.rows]
            else:
                new, new_lengths = picked[:, None], [1] * len(lengths)
    return Generated(padded(completions.rows, device), [len(row) for row in completions.rows])


class _Completions:
    """Prompts (B, S) of these lengths with their new tokens, `rows`. stops, until: see `generate`."""

    def __init__(
        self,
        prompts: list[list[int]],
        lengths: list[int],
        stops: Collection[int | None],
        until: Callable[[list[list[int]]], bool] | None,
    ) -> None:
        self.rows = [row[:length] for row, length in zip(prompts, lengths, strict=True)]
        self.lengths, self.stops, self.until = lengths, stops, until
        self.stopped = [False] * len(lengths)

    def add(self, tokens: list[int]) -> bool:
        """Add the next token of each row that has not ended; returns whether all have ended then."""
        for row, token in enumerate(tokens):
            if not self.stopped[row]:
                self.rows[row].append(token)
                self.stopped[row] = token in self.stops
        if all(self.stopped) or self.until is None:
            return all(self.stopped)
        return self.until([row[start:] for row, start in zip(self.rows, self.lengths, strict=True)])


_CACHES: WeakKeyDictionary[LanguageModel, dict[object, KVCache]] = WeakKeyDictionary()
"""The caches that models keep."""


@contextmanager
def _cache_of(
    model: LanguageModel, rows: int, most: int, compiled: bool, device: torch.device
) -> Iterator[KVCache | None]:
    """An empty cache for rows of `most` tokens; None for 0. For compiled steps it is that of an earlier call, unless
    another one still uses it: a CUDA graph writes to the addresses that it was recorded with."""
    if not compiled or not most:
        yield KVCache(model.structure, rows, most) if most else None
        return
    # A graph belongs to a capacity.
    capacity = 1 << (most - 1).bit_length() if most < _STEP else -(-most // _STEP) * _STEP
    autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    key = (rows, capacity, device, autocast, frozenset(parameter.dtype for parameter in model.parameters()))
    kept = _CACHES.setdefault(model, {})
    cache = kept.pop(key, None)
    if cache is None or cache.structure != model.structure:
        cache = KVCache(model.structure, rows, capacity)
    cache.clear()
    yield cache
    kept[key] = cache
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _compiled_step(
    model: LanguageModel, cache: KVCache | None, most: int, device: torch.device
) -> Callable[..., Tensor]:
    """The model's `step`, compiled. most: tokens of a row. UserError where it cannot be."""
    if cache is None:
        raise UserError(
            "generate: compiled steps need the cache; leave out --compile, or --no-cache (compiled, use_cache)"
        )
    cache.require_steps()
    require_compiler("auto", device, "--compile (compiled)")
    model.require_position(most - 2)  # the last token is not read
    return compiled_form(type(model).step, in_cuda_graphs=device.type == "cuda")


def _last_logits(model: LanguageModel, tokens: Tensor, lengths: list[int], cache: KVCache | None) -> Tensor:
    """Logits (B, V) after the last token of every row. Those of the other tokens, which a prompt of 32,000 would need
    3.2 GB for, are not computed."""
    ends = moved(torch.tensor(lengths), tokens.device)
    mask = None
    if min(lengths) < tokens.shape[1]:
        mask = torch.arange(tokens.shape[1], device=tokens.device)[None] < ends[:, None]
    output = model(tokens, attention_mask=mask, cache=cache, at=ends[:, None] - 1)
    return cast(Tensor, output.logits[:, 0])


def _checked_lengths(input_ids: Tensor, lengths: list[int] | None, max_new_tokens: int, vocab: int) -> list[int]:
    """Tokens of each prompt; UserError for arguments of `generate` that do not fit."""
    if input_ids.is_floating_point():
        raise UserError("generate: input_ids are fractions; give the ids of tokens, whole numbers")
    if input_ids.dim() != 2 or 0 in input_ids.shape:
        raise UserError("generate: prompts must have shape (batch, tokens), with at least one prompt and one token")
    if not 0 <= int(input_ids.min()) <= int(input_ids.max()) < vocab:
        raise UserError(f"generate: input_ids must be from 0 to {vocab - 1}, the tokens of this model")
    if max_new_tokens < 1:
        raise UserError(f"generate: max_new_tokens {max_new_tokens} must be 1 or more")
    lengths = [input_ids.shape[1]] * len(input_ids) if lengths is None else [int(n) for n in lengths]
    if len(lengths) != len(input_ids) or not all(1 <= n <= input_ids.shape[1] for n in lengths):
        raise UserError(f"generate: lengths {lengths} must give 1 to {input_ids.shape[1]} tokens for each prompt")
    return lengths


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of tokens as one tensor (B, longest), with 0 on the right."""
    longest = max(len(row) for row in rows)
    return moved(torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]), device)
