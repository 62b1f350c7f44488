"""A model trained with hybridlab, for transformers. It needs torch and transformers; hybridlab need not be installed.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

The model is hybridlab's own: in a folder of exported weights, its source files stand beside this one. config.json
describes it as data under `structure`, as in hybridlab: its shape, its map (how each head mixes tokens) and its plan
(which layers run, in which order). This file is what transformers needs around it.

Tokens of a row are moved to its front before the model runs, so that padding may stand on either side, and positions,
windows and chunks count from the first token of each row.

All classes take input_ids (B, S) or inputs_embeds (B, S, W), attention_mask (B, S), token_type_ids, and position_ids,
which turn rotary and learned positions, not what a window counts. output_hidden_states: the residual stream before the
plan and after each of its items, a visit or a whole loop; the last one after the final norm. output_attentions: the
weights of each attention of the plan, in its order.

Shape legend: B batch, S columns of the input, V vocabulary, W width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple

from hybridlab.models.cache import KVCache
from hybridlab.models.decoder import Transformer, make_model
from hybridlab.models.taps import Taps
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

    @property
    def is_linear(self) -> list[bool]:
        """Of a cache without layers `generate` asks whether all of none are linear, and would read the past again."""
        return [False]

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
            "generate without assistant_model and prompt_lookup_num_tokens"
        )


class _Stream(Taps):
    """Keeps the residual stream (B, S, W) before the plan and after each of its items."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def on_embeddings(self, x: Tensor) -> Tensor:
        self.states.append(x)
        return x

    def on_item(self, index: int, x: Tensor) -> None:
        self.states.append(x)


class HybridlabPreTrainedModel(PreTrainedModel):
    """A decoder or encoder of hybridlab with its output head, which `ForCausalLM` and the others call."""

    own: Transformer
    head: Any
    config_class = HybridlabConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _is_stateful = True
    """Its cache cannot go back, so that transformers refuses prompt lookup and assisted decoding."""
    _no_split_modules = ["Block"]
    _with_head = True

    def __init__(self, config: HybridlabConfig) -> None:
        super().__init__(config)
        model = make_model(Structure.from_json(config.structure), config.kernel)
        # Its parts are those of this model, so that tensors have hybridlab's names, and whatever is put instead of
        # one of them runs; itself it is no part.
        self.__dict__["own"] = model
        self._modules = model._modules
        if self._tied_weights_keys and model.shape.tied_embeddings:
            self.head.weight = self.embedding.weight
        if not self._with_head:
            self.head = _NoHead()
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.own.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        table = super().resize_token_embeddings(*args, **kwargs)
        shape = replace(self.own.shape, vocab=len(table.weight))
        self.own.structure = replace(self.own.structure, shape=shape)
        self.config.structure = self.own.structure.to_json()
        return table

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Any = None, every_n_layers: int = 1
    ) -> None:
        """Every visit is recomputed in the way of torch's `use_reentrant=False`, whatever function is given."""
        if every_n_layers != 1:
            raise ValueError(f"every_n_layers {every_n_layers}: this model recomputes every layer; leave it out")
        self.gradient_checkpointing = self.own.recompute = enable

    def outputs(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        output_hidden_states: bool | None,
        output_attentions: bool | None,
        cache: HybridlabCache | None = None,
        keep: int | None = 0,
    ) -> tuple[Tensor, dict[str, Any]]:
        """What the output head gives for the last `keep` columns, 0 for all; None for a head that gives one output for
        each row; and what else was asked for. attention_mask: (B, S), or with a cache for all columns so far, 0 on
        padding."""
        inputs = inputs_embeds if input_ids is None else input_ids
        if inputs is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give input_ids or inputs_embeds, one of the two")
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError("attention_mask must be (batch, length), 1 on tokens and 0 on padding")
        hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        weights = self.config.output_attentions if output_attentions is None else output_attentions
        if weights and cache is not None:
            raise ValueError("output_attentions needs whole rows: give use_cache=False")
        if weights and self.own.plan.chunked:
            raise ValueError("output_attentions: in the loops of this model chunks attend, not tokens; leave it out")
        rows, new = inputs.shape[:2]
        valid = torch.ones(rows, new, dtype=torch.long, device=inputs.device)
        valid = valid if attention_mask is None else attention_mask[:, -new:].long()
        # Tokens first, in their order; and where the columns are then.
        order = (1 - valid).argsort(dim=1, stable=True)
        places = order.argsort(dim=1)
        if cache is not None:
            cache.own = cache.own or KVCache(self.own.structure, rows)
        stream = _Stream() if hidden else None
        moved_valid = valid.gather(1, order)
        result = self.own(
            None if input_ids is None else input_ids.gather(1, order),
            attention_mask=None if bool(valid.all()) else moved_valid,
            position_ids=self._positions(position_ids, order, moved_valid, cache),
            need="full" if weights else "none",
            taps=stream,
            cache=None if cache is None else cache.own,
            token_type_ids=None if token_type_ids is None else token_type_ids.gather(1, order),
            factors={tuple(f["place"]): torch.tensor(f["values"], device=self.device) for f in self.config.factors},
            at=None if keep is None else places[:, -keep:],
            inputs_embeds=None if inputs_embeds is None else inputs_embeds.take_along_dim(order[..., None], 1),
        )
        if cache is not None:
            cache.columns += new
        hidden_states, across = None, places[:, None, :, None]
        if stream is not None:
            states = [*stream.states[:-1], self.own.final_norm(stream.states[-1])]
            hidden_states = tuple(state.take_along_dim(places[..., None], 1) for state in states)
        maps = (w.take_along_dim(across, 2).take_along_dim(across.mT, 3) for w in result.attention.values())
        return result.logits, {"hidden_states": hidden_states, "attentions": tuple(maps) if weights else None}

    def _positions(
        self, position_ids: Tensor | None, order: Tensor, valid: Tensor, cache: HybridlabCache | None
    ) -> Tensor | None:
        """position_ids (B, S) in the order of the tokens; None where they are those that the model counts itself.
        valid: (B, S), in that order."""
        if position_ids is None:
            return None
        moved = position_ids.expand(order.shape).gather(1, order)
        counted = torch.arange(order.shape[1], device=order.device)
        if cache is not None and cache.own is not None:
            counted = counted + torch.tensor(cache.own.counts, device=order.device)[:, None]
        return None if bool(((moved == counted) | (valid == 0)).all()) else moved


class HybridlabModel(HybridlabPreTrainedModel):
    """The model without its output head."""

    _with_head = False
    _keys_to_ignore_on_load_unexpected = [r"^head\."]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutput:
        """input_ids (B, S) → the residual stream after the final norm (B, S, W)."""
        options = output_hidden_states, output_attentions
        out, extra = self.outputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, *options)
        return BaseModelOutput(out, **extra)


class _NoHead(nn.Module):
    def forward(self, x: Tensor, valid: Tensor | None, embedding: Tensor) -> Tensor:
        return x


class _GivesTokens(HybridlabPreTrainedModel):
    """A model whose output head gives tokens. A tied head has the table of the embeddings as its own, as transformers
    expects."""

    _tied_weights_keys = {"head.weight": "embedding.weight"}

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.head = value

    def _get_resized_lm_head(self, old_lm_head: Any, *args: Any, **kwargs: Any) -> Any:
        """The head, with a table and a bias for more tokens or fewer. transformers makes them for a linear layer."""
        (tokens, width), bias = old_lm_head.weight.shape, old_lm_head.bias
        layer = nn.Linear(width, tokens, bias is not None, device="meta")
        layer.weight, layer.bias = old_lm_head.weight, bias
        resized = super()._get_resized_lm_head(layer, *args, **kwargs)
        old_lm_head.weight, old_lm_head.bias = resized.weight, resized.bias
        return old_lm_head


class HybridlabForCausalLM(_GivesTokens, GenerationMixin):
    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """`forward` makes its own cache; `generate` hands it back."""
        return False

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: HybridlabCache | None = None,
        past_key_values: HybridlabCache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> CausalLMOutputWithPast:
        """input_ids (B, S) → logits (B, S, V), or those of the last `logits_to_keep` columns. labels: (B, S), −100
        where none is asked for. past_key_values: the name of `cache` in transformers before 5.24."""
        if use_cache and not self.own.structure.settled:
            raise ValueError("an output of this model depends on later tokens: decode with use_cache=False")
        cache = past_key_values if cache is None else cache
        cache = HybridlabCache() if cache is None and use_cache else cache
        if cache is not None and not isinstance(cache, HybridlabCache):
            raise ValueError(
                f"this model has a cache of its own, not {type(cache).__name__}; give use_cache=True alone"
            )
        if cache is not None and self.gradient_checkpointing and torch.is_grad_enabled():
            raise ValueError("gradient checkpointing runs layers twice, a cache stores once: give use_cache=False")
        options = output_hidden_states, output_attentions, cache, logits_to_keep
        out, extra = self.outputs(input_ids, attention_mask, None, position_ids, inputs_embeds, *options)
        loss = None if labels is None else self.loss_function(out, labels, vocab_size=out.shape[-1])
        return CausalLMOutputWithPast(loss, out, cache, **extra)


class _WithLabels(HybridlabPreTrainedModel):
    """What a masked-token model and a classifier share."""

    keep: int | None = 0
    output: type[MaskedLMOutput] | type[SequenceClassifierOutput]

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> MaskedLMOutput | SequenceClassifierOutput:
        """input_ids (B, S) → logits. labels: (B, S), −100 where none is asked for, or those of the rows (B,)."""
        options = output_hidden_states, output_attentions, None, self.keep
        out, extra = self.outputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, *options)
        loss = None if labels is None else self.loss_of(out, labels)
        return self.output(loss=loss, logits=out, **extra)


class HybridlabForMaskedLM(_WithLabels, _GivesTokens):
    """input_ids (B, S) → logits (B, S, V)."""

    output = MaskedLMOutput


class HybridlabForSequenceClassification(_WithLabels):
    """input_ids (B, S) → logits (B, labels), from the first token in an encoder, from the last one in a decoder."""

    keep, output = None, SequenceClassifierOutput

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.shape[1] == 1:
            return F.mse_loss(logits[:, 0], labels.to(logits))
        return super().loss_of(logits, labels)


class HybridlabForQuestionAnswering(HybridlabPreTrainedModel):
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        """input_ids (B, S) → for each token, how likely it is the first and the last one of the answer, (B, S) each."""
        options = output_hidden_states, output_attentions
        out, extra = self.outputs(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, *options)
        (start, end), loss = out.unbind(-1), None
        if start_positions is not None and end_positions is not None:
            loss = (F.cross_entropy(start, start_positions) + F.cross_entropy(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end, **extra)
