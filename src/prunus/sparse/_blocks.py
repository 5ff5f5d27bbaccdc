"""Blocks of transformers in one native run: attention, norms, activations and residual sums around packed layers.

A block keeps its class, children and state; only its `forward` is another: where nothing is traced, watched or
differentiated and every linear layer is packed, one call (two with a cache of keys and values) computes all of it.
Otherwise the block's own forward runs. Known are the encoder blocks of BERT and its relatives and the decoder blocks
of Llama, Mistral and Qwen2, as `transformers` builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from prunus.sparse._modules import BalancedLinear, PackedModule, watched
from prunus.sparse._packed import kernels
from prunus.sparse._quick import watch_packed

ENCODERS = ("BertLayer", "RobertaLayer", "XLMRobertaLayer", "ElectraLayer", "CamembertLayer", "MPNetLayer")
DECODERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (  # as the kernels number them
    functional.relu,
    functional.gelu,
    lambda x: functional.gelu(x, approximate="tanh"),
    functional.silu,
)


@dataclass(frozen=True)
class Parts:
    """The modules of a block: query, key, value, out, up, gate (or None) and down, its two norms, and its numbers."""

    layers: tuple[Any, ...]
    norms: tuple[nn.Module, nn.Module]
    attention: nn.Module
    activation: int
    before: bool
    rms: bool
    heads: int
    key_heads: int
    size: int
    scaling: float

    def tensors(self) -> Iterator[Tensor | None]:
        """Everything the native block reads besides packed weights, in the order it wants it."""
        for layer in self.layers:
            yield None if layer is None else layer._parameters["bias"]
        for norm in self.norms:
            yield norm._parameters["weight"]
            yield norm._parameters.get("bias")


def run_blocks_natively(model: nn.Module) -> int:
    """Give every block that is known and packed its native forward; returns how many there are."""
    if kernels() is None:
        return 0
    blocks = [module for module in model.modules() if read_block(module) is not None]
    for block in blocks:
        block.forward = NativeForward(block)
    return len(blocks)


def read_block(block: nn.Module) -> Parts | None:
    """The parts of a block that can run natively; None for any other module."""
    kind = type(block)
    if not kind.__module__.startswith("transformers."):
        return None
    try:
        if kind.__name__ in ENCODERS:
            parts = _encoder(block)
        elif kind.__name__ in DECODERS:
            parts = _decoder(block)
        else:
            return None
    except AttributeError:  # a version of the library that builds it otherwise
        return None
    return parts if parts is not None and all(layer is None or _packed(layer) for layer in parts.layers) else None


def _packed(layer: nn.Module) -> bool:
    return type(layer) is BalancedLinear and layer.permutation is None and not layer.relu


def _encoder(block: Any) -> Parts | None:
    own, output = block.attention.self, block.attention.output
    layers = (own.query, own.key, own.value, output.dense, block.intermediate.dense, None, block.output.dense)
    norms = (output.LayerNorm, block.output.LayerNorm)
    activation = _activation(block.intermediate.intermediate_act_fn)
    if activation is None or not all(type(norm) is nn.LayerNorm for norm in norms):
        return None
    if block.is_decoder or block.add_cross_attention or getattr(own, "is_causal", False):
        return None
    if getattr(own, "position_embedding_type", "absolute") not in (None, "absolute"):
        return None
    heads, size = own.num_attention_heads, own.attention_head_size
    return Parts(layers, norms, own, activation, False, False, heads, heads, size, float(own.scaling))


def _decoder(block: Any) -> Parts | None:
    own, mlp = block.self_attn, block.mlp
    layers = (own.q_proj, own.k_proj, own.v_proj, own.o_proj, mlp.up_proj, mlp.gate_proj, mlp.down_proj)
    norms = (block.input_layernorm, block.post_attention_layernorm)
    activation = _activation(mlp.act_fn)
    if activation is None or not all(type(norm).__name__.endswith("RMSNorm") for norm in norms):
        return None
    size = own.head_dim
    heads, key_heads = own.q_proj.out_features // size, own.k_proj.out_features // size
    return Parts(layers, norms, own, activation, True, True, heads, key_heads, size, float(own.scaling))


def _activation(function: Callable[[Tensor], Tensor]) -> int | None:
    """Which of the known functions it is, found by its values."""
    x = torch.linspace(-9, 9, 301)
    with torch.no_grad():
        found = function(x)
        for number, known in enumerate(ACTIVATIONS):
            if torch.allclose(found, known(x), rtol=1e-6, atol=1e-6):
                return number
    return None


def eps_of(norm: Any) -> float:
    """What a norm adds under its root."""
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def may_run(module: nn.Module) -> bool:
    """True if nothing is traced, differentiated, trained or run under autocast, and there is no global hook."""
    if torch.is_grad_enabled() or module.training or watched() or torch.is_autocast_enabled("cpu"):
        return False
    return not nn.modules.module._has_any_global_hook()


def watch_modules(top: nn.Module) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Every child and tensor below a module, as entries of dictionaries, and the dictionaries of its hooks.

    An entry is (dictionary, name, value, whether it is a tensor that is read where it lies).
    """
    entries: list[tuple[Any, ...]] = []
    hooks: list[Any] = []
    for module in top.modules():
        if isinstance(module, PackedModule):
            more = watch_packed(module)
            entries += more[0]
            hooks += more[1]
            continue
        for held in (module._modules, module._parameters, module._buffers):
            entries += [(held, name, value, isinstance(value, Tensor)) for name, value in held.items()]
        if module is not top:
            hooks += [module._forward_hooks, module._forward_pre_hooks]
    return entries, hooks


class NativeForward:
    """Stands where a block's `forward` stood."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self._native: Any = None
        self._watch: Any = None
        self._held: tuple[Any, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeForward:
        import copy

        return NativeForward(copy.deepcopy(self.block, memo))  # the native block holds addresses of the old one

    def __getstate__(self) -> dict[str, Any]:
        return NativeForward(self.block).__dict__

    @property
    def native(self) -> Any:
        return self._native

    @property
    def parts(self) -> Parts:
        return self._parts

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(hidden_states) is Tensor and may_run(self.block) and self.ready():
            run = _run_decoder if self._parts.before else _run_encoder
            out = run(self._native, self._parts, hidden_states, *args, **kwargs)
            if out is not None:
                return out
        return type(self.block).forward(self.block, hidden_states, *args, **kwargs)

    def ready(self) -> bool:
        """Whether the native block is there and still that of the block's layers and tensors, without hooks."""
        if self._watch is not None and self._watch.same():
            return True
        self._native = self._watch = None
        watch = kernels().Watch(*watch_modules(self.block))
        if watch.same():  # otherwise a hook is set somewhere
            self._build(read_block(self.block), watch)
        return self._native is not None

    def _build(self, parts: Parts | None, watch: Any) -> None:
        if parts is None or any(layer is not None and layer.ends() is not None for layer in parts.layers):
            return  # native blocks measure the range of each token
        tensors = list(parts.tensors())
        plain = all(t is None or (t.dtype == torch.float32 and t.is_contiguous() and t.is_cpu) for t in tensors)
        layers = [None if layer is None else layer.packed for layer in parts.layers]
        native = [None if packed is None else packed.layer for packed in layers]
        if not plain or any(one is None for one, packed in zip(native, layers) if packed is not None):
            return
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        integer = [layer is not None and layer.integer for layer in parts.layers]
        eps = [eps_of(norm) for norm in parts.norms]
        sizes = (parts.heads, parts.key_heads, parts.size, parts.scaling)
        try:
            block = kernels().Block(
                native, pointers[:7], integer, pointers[7:], *eps, parts.rms, parts.before, parts.activation, *sizes
            )
        except ValueError:  # sizes that do not fit together: torch raises the error
            return
        self._parts, self._native, self._watch = parts, block, watch
        self._held = (layers, tensors)


def _mask(mask: Any) -> Any:
    """An additive mask (batch, heads, queries, keys) the kernels can read; False where there is none like it."""
    if mask is None:
        return None
    if type(mask) is not Tensor or mask.dim() != 4:
        return False
    for axis in range(3):
        if mask.shape[axis] > 1 and mask.stride(axis) == 0:  # the same for all
            mask = mask.narrow(axis, 0, 1)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    return mask.contiguous() if mask.dtype == torch.float32 else False


def _run_encoder(
    native: Any,
    parts: Parts,
    x: Tensor,
    attention_mask: Any = None,
    encoder_hidden_states: Any = None,
    encoder_attention_mask: Any = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    others = (encoder_hidden_states, encoder_attention_mask, past_key_values)
    mask = _mask(attention_mask)
    if mask is False or any(other is not None for other in others) or kwargs.get("output_attentions"):
        return None
    return cast("Tensor | None", native.encode(x, mask, False, torch.get_num_threads()))


def _run_decoder(
    native: Any,
    parts: Parts,
    x: Tensor,
    attention_mask: Any = None,
    position_ids: Any = None,
    past_key_values: Any = None,
    use_cache: Any = False,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    mask = _mask(attention_mask)
    if mask is False or position_embeddings is None or kwargs.get("output_attentions"):
        return None
    causal = mask is None and kwargs.get("is_causal") is not False
    if mask is None and x.shape[1] > 1 and past_key_values is not None and past_key_values.get_seq_length():
        return None  # torch finds where such queries begin
    threads = torch.get_num_threads()
    cos, sin = (part.contiguous() for part in position_embeddings)
    projected = native.project(x, cos, sin, threads)
    if projected is None:
        return None
    query, key, value = projected
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, parts.attention.layer_idx)
    out = native.attend(x, query, key.contiguous(), value.contiguous(), mask, causal, threads)
    if out is None:  # the cache has taken the keys: torch can no longer start over
        raise RuntimeError("The cache returned keys and values that the native block cannot read.")
    return cast("Tensor", out)
