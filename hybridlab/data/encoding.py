"""Tokenising documents in parallel, with the same result for any number of workers.

The workers are threads: the tokenizers library encodes without Python's lock, and threads proved faster than both its
own parallelism and processes (two cores: 1.9 million tokens/s, against 1.5 and 1.8).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from hybridlab.data.documents import Documents, Place

_SWITCH = "TOKENIZERS_PARALLELISM"
_CHARACTERS_AT_ONCE = 200_000
_DOCUMENTS_AT_ONCE = 64


@dataclass(frozen=True)
class Encoded:
    """Several documents. tokens: the ids of each, with the end-of-document token. place: after the last of them."""

    texts: list[str]
    tokens: list[np.ndarray]
    place: Place


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_documents(
    tokenizer: Tokenizer, documents: Documents, end: int, dtype: np.dtype, workers: int
) -> Iterator[Encoded]:
    """The documents in groups, in their order. end: the id of the end-of-document token, added to each."""

    def encode(texts: list[str], place: Place) -> Encoded:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return Encoded(texts, [np.asarray([*encoding.ids, end], dtype=dtype) for encoding in encodings], place)

    waiting: deque[Future[Encoded]] = deque()
    with _one_thread_each(), ThreadPoolExecutor(workers) as pool:
        try:
            for group in _groups(documents):
                # Reading is ahead of encoding, so the place is noted here.
                waiting.append(pool.submit(encode, group, documents.place))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text)
        if characters >= _CHARACTERS_AT_ONCE or len(group) == _DOCUMENTS_AT_ONCE:
            yield group
            group, characters = [], 0
    if group:
        yield group


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Switch off the library's own parallelism, so that each call to it keeps to one core."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SWITCH, None)
        else:
            os.environ[_SWITCH] = before
