"""Inputs for small models, and decoding with a cache."""

from dataclasses import replace

import torch

from hybridlab.attention.heads import attend, kind_index
from hybridlab.models.build import with_new_head
from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Transformer
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


def with_output(model, output, seed=0):
    """A model with another output head, whose weights are drawn anew; it shares all other weights with `model`.
    output: the setting `shape.output`; None for tokens."""
    structure = replace(model.structure, shape=replace(model.shape, output=output))
    tensors = with_new_head(dict(model.named_parameters()), structure, seed)
    return Transformer.from_tensors(structure, tensors, model.kernel, model.factors)
