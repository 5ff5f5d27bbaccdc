"""Run it fast, store it small: packed weights, the layers that run on them, and their files.

fast = prunus.compress(model, example=inputs)       # a copy: each layer that gains runs on packed weights
for row in prunus.sparse.explain(fast): print(row)  # format, kernel, bytes, time against dense
prunus.sparse.save(fast, "small.safetensors")
again = prunus.sparse.load("small.safetensors", model)   # the model may be on the meta device
"""

from __future__ import annotations

from prunus.sparse._channels import remove_channels
from prunus.sparse._compress import compress
from prunus.sparse._explain import explain
from prunus.sparse._file import file_bytes, load, save
from prunus.sparse._int8 import int8_engine
from prunus.sparse._modules import BalancedLinear, SparseConv2d
from prunus.sparse._onnx import export_onnx
from prunus.sparse._packed import Packed, pack
from prunus.sparse._peers import find_peers, output_error
from prunus.sparse._permute import find_permutation, find_permuted_masks
from prunus.sparse._plan import StoredLayer
from prunus.sparse._pretrained import load_pretrained, save_pretrained
from prunus.sparse._recurrent import SparseLSTM, SparseLSTMCell

__all__ = [
    "BalancedLinear",
    "Packed",
    "SparseConv2d",
    "SparseLSTM",
    "SparseLSTMCell",
    "StoredLayer",
    "compress",
    "explain",
    "export_onnx",
    "file_bytes",
    "find_peers",
    "find_permutation",
    "find_permuted_masks",
    "int8_engine",
    "load",
    "load_pretrained",
    "output_error",
    "pack",
    "remove_channels",
    "save",
    "save_pretrained",
]
