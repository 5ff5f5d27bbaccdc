"""Small pictures of weights and masks, as plain data that fits into a row: histograms, corners of masks."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from torch import nn

from prunus.contract import Masks
from prunus.layers import prunable_weights

CORNER = 48
"""Rows and columns of a mask that its thumbnail shows."""
BINS = 41
_LAYERS = 24


def masks(model: nn.Module, chosen: Masks) -> list[dict[str, Any]]:
    """The upper left corner of every mask as rows of outputs, inputs tap by tap; eight weights to a byte."""
    weights = prunable_weights(model)
    found = []
    for name in list(chosen)[:_LAYERS]:
        corner = weights[name].rows(chosen[name]).flatten(1)[:CORNER, :CORNER].cpu().numpy()
        rows, columns = corner.shape
        body = base64.b64encode(np.packbits(corner.astype(np.uint8)).tobytes()).decode()
        found.append({"name": name, "rows": rows, "columns": columns, "bits": body})
    return found


def weights(model: nn.Module) -> list[dict[str, Any]]:
    """Histogram of every prunable weight, and how far it is from the theorems' assumptions (ledger P-24)."""
    from prunus.certificates import check_assumptions

    parameters = {name: weight.parameter.detach().double() for name, weight in prunable_weights(model).items()}
    found = []
    for row in check_assumptions(model)[:_LAYERS]:
        values = parameters[row.name].flatten()
        edge = max(float(values.abs().max()), 1e-12)
        counts = torch.histc(values.float(), bins=BINS, min=-edge, max=edge)
        found.append(
            {
                "name": row.name,
                "shape": list(row.shape),
                "edge": edge,
                "counts": [int(count) for count in counts],
                "mean": float(values.mean()),
                "deviation": float(values.std(unbiased=False)),
                "law": row.law,
                "fits": row.fits,
                "norm": row.norm,
                "bulk_norm": row.bulk_norm,
                "mean_norm": row.mean_norm,
                "second": row.second,
                "fourth": row.fourth,
                "leading_share": row.leading_share,
                "glorot_ratio": row.glorot_ratio,
            }
        )
    return found
