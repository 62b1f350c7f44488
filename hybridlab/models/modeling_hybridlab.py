"""A model trained with hybridlab, for transformers. It needs torch and transformers; hybridlab need not be installed.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

The model is hybridlab's own: in a folder of exported weights, its source files stand beside this one. config.json
describes it as data under `structure`, as in hybridlab: its shape, its map (how each head mixes tokens) and its plan
(which layers run, in which order). This file is what transformers needs around it.

Tokens of a row are moved to its front before the model runs, so that padding may stand on either side, and positions,
windows and chunks count from the first token of each row.

Shape legend: B batch, S columns of the input, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple

from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Transformer, make_model
from hybridlab.plan.structure import Structure


class HybridlabConfig(PreTrainedConfig):
    """structure: {shape, plan, map}. factors: [{place, values}], on the outputs of the query heads of a visit. kernel:
    of its attention; auto chooses."""

    model_type = "hybridlab"

    def __init__(self, structure: Any = None, factors: Any = (), kernel: str = "auto", **kwargs: Any) -> None:
        self.structure, self.factors, self.kernel = structure or {}, list(factors), kernel
        super().__init__(**kwargs)


class HybridlabCache(Cache):
    """hybridlab's cache, as `generate` handles one. own: None before the first tokens. columns: of the input so far,
    padding included."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.own: KVCache | None = None
        self.columns = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def reset(self) -> None:
        self.own, self.columns = None, 0

    def batch_select_indices(self, indices: Tensor) -> None:
        self.own = None if self.own is None else self.own.selected(indices.tolist())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.own = None if self.own is None else self.own.repeated(repeats)

    def crop(self, tokens_to_remove: int) -> None:
        raise ValueError(
            "this cache has forgotten what windows and chunks no longer need, so that it cannot go back; "
            "generate without assistant_model and prompt_lookup_num_tokens, or with use_cache=False"
        )


class HybridlabModel(PreTrainedModel):
    """A decoder or encoder of hybridlab with its output head, which `ForCausalLM` and the others call."""

    own: Transformer
    config_class = HybridlabConfig
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config: HybridlabConfig) -> None:
        super().__init__(config)
        own = make_model(Structure.from_json(config.structure), config.kernel)
        # Its parts become parts of this model, so that tensors have hybridlab's names; itself it is no part.
        self.__dict__["own"] = own
        for name, part in own.named_children():
            self.add_module(name, part)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.own.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = self.own.embedding = value  # type: ignore[assignment]

    def outputs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: HybridlabCache | None = None,
        token_type_ids: Tensor | None = None,
        keep: int | None = 0,
    ) -> Tensor:
        """What the output head gives for the last `keep` columns of input_ids (B, S), 0 for all; None for a head that
        gives one output for each row. attention_mask: (B, S), or with a cache for all columns so far, 0 on padding."""
        new = input_ids.shape[1]
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError("attention_mask must be (batch, length), 1 on tokens and 0 on padding")
        valid = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -new:].long()
        # Tokens first, in their order; and where the columns are then.
        order = (1 - valid).argsort(dim=1, stable=True)
        places = order.argsort(dim=1)
        if cache is not None:
            cache.own = cache.own or KVCache(self.own.structure, len(input_ids))
            cache.columns += new
        return self.own(
            input_ids.gather(1, order),
            attention_mask=None if bool(valid.all()) else valid.gather(1, order),
            cache=None if cache is None else cache.own,
            token_type_ids=None if token_type_ids is None else token_type_ids.gather(1, order),
            factors={tuple(f["place"]): torch.tensor(f["values"], device=self.device) for f in self.config.factors},
            at=None if keep is None else places[:, -keep:],
        ).logits


class HybridlabForCausalLM(HybridlabModel, GenerationMixin):
    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """`forward` makes its own cache; `generate` hands it back."""
        return False

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: HybridlabCache | None = None,
        past_key_values: HybridlabCache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
    ) -> CausalLMOutputWithPast:
        """input_ids (B, S) → logits (B, S, V), or those of the last `logits_to_keep` columns. labels: (B, S), −100
        where none is asked for. past_key_values: the name of `cache` in transformers before 5.24."""
        if use_cache and not self.own.structure.settled:
            raise ValueError("an output of this model depends on later tokens: decode with use_cache=False")
        cache = past_key_values if cache is None else cache
        cache = HybridlabCache() if cache is None and use_cache else cache
        logits = self.outputs(input_ids, attention_mask, cache, keep=logits_to_keep)
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=logits.shape[-1])
        return CausalLMOutputWithPast(loss, logits, cache)


class HybridlabForMaskedLM(HybridlabModel):
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> MaskedLMOutput:
        """input_ids (B, S) → logits (B, S, V). labels: (B, S), −100 where none is asked for."""
        logits = self.outputs(input_ids, attention_mask, token_type_ids=token_type_ids)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class HybridlabForSequenceClassification(HybridlabModel):
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """input_ids (B, S) → logits (B, labels), from the first token in an encoder, from the last one in a decoder."""
        logits = self.outputs(input_ids, attention_mask, token_type_ids=token_type_ids, keep=None)
        loss = None
        if labels is not None:
            one = logits.shape[1] == 1
            loss = F.mse_loss(logits[:, 0], labels.to(logits)) if one else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class HybridlabForQuestionAnswering(HybridlabModel):
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        """input_ids (B, S) → for each token, how likely it is the first and the last one of the answer, (B, S) each."""
        start, end = self.outputs(input_ids, attention_mask, token_type_ids=token_type_ids).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (F.cross_entropy(start, start_positions) + F.cross_entropy(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)
