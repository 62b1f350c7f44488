"""Inputs for small models, and decoding with a cache."""

import torch

from hybridlab.attention.heads import attend, kind_index
from hybridlab.models.cache import KVCache
from tests.conftest import SMALL_SHAPE


def random_ids(length, rows=2, vocab=SMALL_SHAPE["vocab"], seed=0):
    """Token ids (rows, length), the same ones for the same arguments."""
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding_mask(lengths):
    """The attention mask (rows, longest) of rows with these lengths, padded to the right."""
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def cached_logits(model, ids, mask, cuts, capacity=None):
    """The logits of a whole sequence that goes through a new cache in pieces, cut at `cuts`; and that cache."""
    cache = KVCache(model.structure, len(ids), capacity)
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        pieces.append(model(ids[:, start:end], attention_mask=mask[:, start:end], cache=cache).logits)
    return torch.cat(pieces, 1), cache


def attended(heads, kinds):
    """The attention of a group of heads; kinds[i] is the kind of KV head i."""
    return attend(heads, kind_index(tuple(kinds), heads.group, heads.q.device))
