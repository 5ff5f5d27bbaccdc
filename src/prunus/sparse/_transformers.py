"""Whole transformers in native runs: embeddings, blocks and the cache of keys and values, without torch in between.

Models whose blocks all run natively (`_blocks`) get a `forward` of their own: BERT's embeddings are one native call and
its blocks one each; Llama, Mistral and Qwen2 write new keys and values straight behind those of the cache, which has
room for more, instead of copying it for every token. What the native run does not know (hooks, gradients, tracing,
masks with holes, caches of other kinds, outputs of every layer) goes through the model's own forward.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from prunus.sparse._blocks import NativeForward, eps_of, may_run, watch_modules
from prunus.sparse._embeddings import RoundedEmbedding
from prunus.sparse._packed import kernels

ENCODERS = {"BertModel": "BertEmbeddings"}
DECODERS = ("LlamaModel", "MistralModel", "Qwen2Model")
_FIXED = ("default", "linear", "llama3", "yarn")  # rotations that depend on nothing but the position
_ROOM = 64  # keys for which there is room at first; then it doubles


def run_models_natively(model: nn.Module) -> int:
    """Give every known transformer whose blocks run natively its native forward; returns how many there are."""
    found = 0
    module: Any
    for module in list(model.modules()):
        kind = type(module)
        if not kind.__module__.startswith("transformers.") or "forward" in module.__dict__:
            continue
        if kind.__name__ in ENCODERS and _all_native(module.encoder.layer):
            module.forward = NativeEncoder(module)
        elif kind.__name__ in DECODERS and _all_native(module.layers):
            module.forward = NativeDecoder(module)
        else:
            continue
        found += 1
    return found


def _all_native(blocks: Any) -> bool:
    return len(blocks) > 0 and all(isinstance(block.__dict__.get("forward"), NativeForward) for block in blocks)


class _NativeModel(ABC):
    """Stands where a model's `forward` stood."""

    first: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask")  # what may be given without a name

    def __init__(self, model: Any) -> None:
        self.model = model
        self._watch: Any = None
        self._blocks: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _NativeModel:
        return type(self)(copy.deepcopy(self.model, memo))  # the native blocks hold addresses of the old ones

    def __getstate__(self) -> dict[str, Any]:
        return type(self)(self.model).__dict__

    @property
    def __code__(self) -> Any:  # export asks a forward for it, and for its arguments
        return type(self.model).forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.model).forward.__get__(self.model))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) <= len(self.first) and self._ready():
            out = self.run(**dict(zip(self.first, args)), **kwargs)
            if out is not None:
                return out
        return type(self.model).forward(self.model, *args, **kwargs)

    def _ready(self) -> bool:
        """True if every block has a native run of its present tensors, and there are no hooks, tracing or gradients."""
        if not may_run(self.model):
            return False
        if self._watch is not None and self._watch.same():
            return True
        self._watch, self._blocks = None, []
        if not self._known() or not _all_native(self.blocks()):
            return False
        ready = [block.forward.ready() for block in self.blocks()]
        if not all(ready):
            return False
        watch = kernels().Watch(*watch_modules(self.model))
        if not watch.same():
            return False
        self._watch, self._blocks = watch, [block.forward for block in self.blocks()]
        return True

    @abstractmethod
    def blocks(self) -> Any:
        """The model's blocks, in their order."""

    @abstractmethod
    def _known(self) -> bool:
        """Whether the parts around the blocks are those the native run computes."""

    @abstractmethod
    def run(self, **arguments: Any) -> Any:
        """The model's output; None, and nothing done, where torch must compute it."""

    def _plain_output(self, arguments: dict[str, Any]) -> bool:
        """Whether an ordinary output is wanted and nothing unknown is given."""
        config = self.model.config
        wanted = arguments.pop("return_dict", None)
        if wanted is False or (wanted is None and not config.return_dict):
            return False
        if config.output_attentions or config.output_hidden_states:
            return False
        return all(value is None or value is False for value in arguments.values())


class NativeEncoder(_NativeModel):
    """BERT: embeddings, blocks, pooler."""

    def blocks(self) -> Any:
        return self.model.encoder.layer

    def _known(self) -> bool:
        model = self.model
        own = model.embeddings
        tables = (own.word_embeddings, own.position_embeddings, own.token_type_embeddings)
        rounded = [isinstance(table, RoundedEmbedding) for table in tables]
        whole = [type(table) is nn.Embedding and table.max_norm is None for table in tables]
        plain = all(one or other for one, other in zip(rounded, whole))
        norm = own.LayerNorm
        known = type(own).__name__ == ENCODERS[type(model).__name__] and type(norm) is nn.LayerNorm
        self._tables = [] if any(rounded) else [*(table.weight for table in tables), norm.weight, norm.bias]
        self._eps = float(norm.eps)
        return plain and known and norm.bias is not None and not model.config.is_decoder

    def run(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        **rest: Any,
    ) -> Any:
        if input_ids is None or not self._plain_output(rest):
            return None
        mask = None
        if attention_mask is not None:
            if attention_mask.shape != input_ids.shape:
                return None
            if not bool(attention_mask.all()):
                if not bool(attention_mask.any(-1).all()):  # what a text of padding alone sees, its attention decides
                    return None
                mask = torch.zeros(attention_mask.shape).masked_fill_(attention_mask == 0, torch.finfo().min)
                mask = mask[:, None, None, :]
        threads = torch.get_num_threads()
        if self._tables:
            x = kernels().embed(input_ids, token_type_ids, self._tables, self._eps, threads)
        else:
            x = self.model.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
        if x is None:
            return None
        for block in self._blocks:
            x = block.native.encode(x, mask, False, threads)
            if x is None:
                return None
        from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

        pooler = self.model.pooler
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=x, pooler_output=None if pooler is None else pooler(x)
        )


class NativeDecoder(_NativeModel):
    """Llama and its relatives: embedding, blocks with the cache, last norm."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._turns: tuple[Tensor, Tensor] | None = None

    def blocks(self) -> Any:
        return self.model.layers

    def _known(self) -> bool:
        model = self.model
        config, rotary = model.config, model.rotary_emb
        kinds = getattr(config, "layer_types", None)
        whole = (
            all(kind == "full_attention" for kind in kinds) if kinds else not getattr(config, "sliding_window", None)
        )
        used = config.num_hidden_layers == len(model.layers)
        self._turns = None
        used = used and {type(layer.input_layernorm) for layer in model.layers} == {type(model.norm)}
        return whole and used and getattr(rotary, "rope_type", "") in _FIXED and hasattr(rotary, "inv_freq")

    def run(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        use_cache: Any = None,
        **rest: Any,
    ) -> Any:
        from transformers.cache_utils import DynamicCache, DynamicLayer
        from transformers.modeling_outputs import BaseModelOutputWithPast

        model = self.model
        rest.pop("cache_position", None)
        if (input_ids is None) == (inputs_embeds is None) or not self._plain_output(rest):
            return None
        cached = model.config.use_cache if use_cache is None else bool(use_cache)
        cache = past_key_values
        if cache is None and cached:
            cache = DynamicCache(config=model.config)
        if type(cache) is not DynamicCache or any(type(layer) is not DynamicLayer for layer in cache.layers):
            return None
        if len(cache.layers) not in (0, len(self._blocks)):
            return None
        past = cache.get_seq_length()
        x = model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if type(x) is not Tensor or x.dim() != 3 or x.dtype != torch.float32 or (past and x.shape[1] > 1):
            return None
        if attention_mask is not None and (attention_mask.dim() != 2 or not bool(attention_mask.all())):
            return None
        room = self._room(cache, x, past)
        if room is None:
            return None
        cos, sin = self._rotations(position_ids, past, x)
        runs, norm = [block.native for block in self._blocks], (model.norm.weight, eps_of(model.norm))
        where = (x.contiguous(), cos, sin, room.keys, room.values, past, *norm)
        out = kernels().extend_all(runs, *where, torch.get_num_threads())
        if out is None:
            return None
        room.fill(cache, past + x.shape[1])
        _rooms[cache] = room
        result = BaseModelOutputWithPast(last_hidden_state=out, past_key_values=cache)
        if not cached:
            result.past_key_values = past_key_values
        return result

    def _room(self, cache: Any, x: Tensor, past: int) -> CacheRoom | None:
        """Where keys and values go: behind those of the cache, or into a new room that begins with a copy of them."""
        needed, parts = past + x.shape[1], self._blocks[0].parts
        known = _rooms.get(cache)
        if known is not None and known.holds(cache) and needed <= known.keys.shape[3]:
            return known
        shape = (len(self._blocks), x.shape[0], parts.key_heads, max(_ROOM, 2 * needed), parts.size)
        there = [(layer.keys, layer.values) for layer in cache.layers] if past else []
        filled = (x.shape[0], parts.key_heads, past, parts.size)
        if any(tuple(tensor.shape) != filled or tensor.dtype != torch.float32 for pair in there for tensor in pair):
            return None
        room = CacheRoom(torch.empty(shape), torch.empty(shape))
        for number, (keys, values) in enumerate(there):
            room.keys[number, :, :, :past], room.values[number, :, :, :past] = keys, values
        return room

    def _rotations(self, positions: Tensor | None, past: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, from a table that the model's own module fills."""
        last = past + x.shape[1] - 1 if positions is None else int(positions.max())
        if self._turns is None or self._turns[0].shape[0] <= last:
            every = torch.arange(max(256, 2 * (last + 1))).unsqueeze(0)
            cos, sin = self.model.rotary_emb(x, position_ids=every)
            self._turns = (cos[0].contiguous(), sin[0].contiguous())
        if positions is not None:
            return self._turns[0][positions], self._turns[1][positions]
        cos, sin = (table.narrow(0, past, x.shape[1]).unsqueeze(0) for table in self._turns)
        return cos, sin


class CacheRoom:
    """Keys and values of all layers of a cache, with room for more behind them."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values  # blocks x batch x heads x capacity x size
        self.shown: list[tuple[Tensor, Tensor]] = []

    def holds(self, cache: Any) -> bool:
        """Whether the cache's keys and values are still those that were put there."""
        if len(self.shown) != len(cache.layers):
            return False
        return all(layer.keys is k and layer.values is v for layer, (k, v) in zip(cache.layers, self.shown))

    def fill(self, cache: Any, length: int) -> None:
        """Give the cache the first `length` keys and values of every layer."""
        keys, values = self.keys.narrow(3, 0, length).unbind(0), self.values.narrow(3, 0, length).unbind(0)
        self.shown = list(zip(keys, values))
        for number, (k, v) in enumerate(self.shown):
            if number >= len(cache.layers) or not cache.layers[number].is_initialized:
                cache.update(k, v, number)
            layer = cache.layers[number]
            layer.keys, layer.values = k, v


# The rooms behind the keys and values of caches.
_rooms: weakref.WeakKeyDictionary[Any, CacheRoom] = weakref.WeakKeyDictionary()
