"""The objective of a run: tokens of text, or a fine-tuning task (training/finetuning.py).

Engine and validation use only the interface of `Objective` (training/batch.py). `NextToken` is the objective of
decoders, `MaskedTokens` that of encoders.

    hybridlab pretrain --arch bert --size bert-tiny --data embedded --steps 20
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from hybridlab.attention.kernels import at_least_fp32
from hybridlab.config.schema import RunConfig
from hybridlab.data.batches import Batches, Rows
from hybridlab.data.shards import Corpus
from hybridlab.data.tokenizers import mask_token, special_tokens
from hybridlab.errors import UserError
from hybridlab.models.decoder import Output
from hybridlab.models.loss import Targets
from hybridlab.training.batch import Batch, FromEarlier, Objective, RowSource
from hybridlab.training.finetuning import finetuning

__all__ = ["Batch", "MaskedTokens", "NextToken", "OBJECTIVES", "Objective", "RowSource", "make_objective"]

MASKED_SHARE = 0.15
"""Share of the tokens of a text that are chosen to be found."""
_TO_MASK, _TO_RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become [MASK], and a random token; the others stay."""
_MASKS, _MEASURED_MASKS = 5, 6
"""First words of the seeds of these draws, after those of data/batches.py and data/mixture.py."""


class NextToken(FromEarlier):
    """Predict each token from the ones before it. Loss: −log p(token | earlier tokens), in nats."""

    name = "next-token"

    def source(self, config: RunConfig, corpus: Corpus) -> Batches:
        return Batches(corpus, config.data, config.training, config.shape.vocab)

    def batch(self, rows: Rows, seed: int, step: int) -> Batch:
        tokens, weights = torch.from_numpy(rows.tokens), torch.from_numpy(rows.weights)
        return Batch({"input_ids": tokens}, tokens[:, 1:], weights[:, 1:])


class MaskedTokens(Objective):
    """Find tokens from those on both sides (BERT, section 3.1, task 1). Loss: −log p(token | the other tokens, some of
    them masked), in nats, over the chosen tokens.

    Of the tokens of a row of text, 15 % are chosen at random, at least one, and never a special one such as [SEP] or
    padding. Of the chosen ones 80 % become [MASK], 10 % a random token of the text's vocabulary, and 10 % stay. The
    share is met on average: a row of n tokens has ⌊0.15 n⌋ or one more. In rows of synthetic tasks exactly the answers
    are chosen, and all become [MASK].

    Rows are windows of text as for decoders, without a [CLS] at their start.
    """

    name, likelihood, before = "masked-tokens", False, 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.mask = mask_token(tokenizer)
        self.special = np.array(special_tokens(tokenizer))
        self.words = np.setdiff1d(np.array(sorted(tokenizer.get_vocab().values())), self.special)

    def source(self, config: RunConfig, corpus: Corpus) -> Batches:
        return Batches(corpus, config.data, config.training, config.shape.vocab)

    def batch(self, rows: Rows, seed: int, step: int) -> Batch:
        numbers = range(len(rows.tokens)) if rows.numbers is None else rows.numbers.tolist()
        return self._masked(rows, [(_MASKS, seed, step, number) for number in numbers])

    def measured(self, rows: Rows, numbers: Sequence[int]) -> Batch:
        return self._masked(rows, [(_MEASURED_MASKS, int(number)) for number in numbers])

    def hidden(self, tokens: Tensor, answers: Tensor) -> Tensor:
        return tokens.masked_fill(answers, self.mask)

    def targets(self, batch: Batch) -> Targets:
        return Targets(batch.targets, batch.weights)

    def losses(self, output: Output, batch: Batch) -> Tensor:
        chosen = batch.weights > 0
        found = F.cross_entropy(at_least_fp32(output.logits[chosen]), batch.targets[chosen], reduction="none")
        return found.new_zeros(chosen.shape).masked_scatter(chosen, found)

    def metrics(self, output: Output, batch: Batch) -> dict[str, Tensor]:
        """The mean over the chosen tokens of each row; 0 for a row of special tokens alone."""
        chosen = (batch.weights > 0).sum(1).clamp_min(1)
        return {"loss": self.losses(output, batch).double().sum(1) / chosen}

    def _masked(self, rows: Rows, seeds: Sequence[tuple[int, ...]]) -> Batch:
        """seeds: of the draws of each row."""
        shown, weights = rows.tokens.copy(), np.zeros(rows.weights.shape, dtype=np.float32)
        for row, seed in enumerate(seeds):
            if rows.tasks is not None and rows.tasks[row]:
                weights[row] = rows.weights[row]
                shown[row, rows.weights[row] > 0] = self.mask
            else:
                weights[row, self._hide(shown[row], np.random.default_rng(seed))] = 1.0
        inputs = {"input_ids": torch.from_numpy(shown)}
        return Batch(inputs, torch.from_numpy(rows.tokens), torch.from_numpy(weights))

    def _hide(self, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose tokens of a row (S,) of text, and replace them in place; returns their positions."""
        candidates = np.flatnonzero(~np.isin(tokens, self.special))
        count = max(1, int(MASKED_SHARE * len(candidates) + rng.random()))
        chosen = rng.permutation(candidates)[:count]
        kinds = rng.random(len(chosen))
        masked, other = kinds < _TO_MASK, (kinds >= _TO_MASK) & (kinds < _TO_MASK + _TO_RANDOM)
        tokens[chosen[masked]] = self.mask
        tokens[chosen[other]] = self.words[rng.integers(len(self.words), size=int(other.sum()))]
        return chosen


OBJECTIVES: dict[str, Callable[[Corpus], Objective]] = {
    "next-token": lambda corpus: NextToken(),
    "masked-tokens": lambda corpus: MaskedTokens(corpus.tokenizer),
}
"""Name of an objective → its maker, from the text of a run."""
PREDICTED = {"next-token": 1.0, "masked-tokens": MASKED_SHARE}
"""Name of an objective → the share of the tokens that have a loss."""


def make_objective(config: RunConfig, corpus: Corpus) -> Objective:
    """The objective of a run: that of its fine-tuning task, of its settings or, by default, of its family. UserError
    for text with a model whose output head gives no tokens, and for a tokenizer that an encoder cannot be trained
    with."""
    if config.finetune is not None:
        return finetuning(config.finetune, config)
    if config.shape.output is not None:
        raise UserError(
            f"shape.output: a head that gives {config.shape.output.kind} is not trained on text, or measured on it; "
            "remove shape.output"
        )
    return OBJECTIVES[config.objective](corpus)
