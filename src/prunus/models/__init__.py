"""The zoo, with a width factor: networks of the papers, their initial weights, and trained weights from files.

    model = prunus.models.make("resnet20")                     # by name
    model = prunus.models.make("conv6:width=0.5")              # the same, as one string
    model = prunus.models.make("fc:64-300-100-10", init="signed_constant", seed=0)
    prunus.models.load_weights(model, "trained.safetensors")   # checks everything before it touches the model
    model = prunus.models.resolve("package.module:factory")    # or the user's own

`names()` lists the zoo, `describe(name)` says what a network expects. Every model is an ordinary `nn.Module`: it can be
built on the meta device, copied, exported and saved as any other.
"""

from __future__ import annotations

from prunus.models.init import fans, fill_, initialise
from prunus.models.init import names as init_names
from prunus.models.weights import load_weights, save_weights
from prunus.models.zoo import Entry, describe, make, names, resolve

__all__ = [
    "Entry",
    "describe",
    "fans",
    "fill_",
    "init_names",
    "initialise",
    "load_weights",
    "make",
    "names",
    "resolve",
    "save_weights",
]
