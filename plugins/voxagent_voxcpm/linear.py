"""Matrix products, with the weights laid out once for the processor that multiplies by them.

On a CPU, PyTorch lays a matrix out anew for every product with more than one row, and without AVX-512 it multiplies
bfloat16 row by row. Laid out beforehand, 22 rows of a 6,144 x 2,048 matrix take 8 ms in place of 29 (two cores, AVX2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from voxagent_voxcpm.weights import Weights

_ROWS = 16  # what the layout is chosen for; others work as well


class Linear:
    """``x Wᵀ + b`` over the last dimension.

    Args:
        weight: Shape (out, in).
        bias: Shape (out,), or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight: Tensor | None = weight.contiguous()
        self._bias = bias
        self._packed, self._packed_dtype = _pack(self._weight)
        self._packed_bias = None if bias is None or self._packed is None else bias.to(self._packed_dtype)
        if self._packed is not None and self._packed_dtype == weight.dtype != torch.float32:
            self._weight = None  # the layout serves one row as well

    def __call__(self, x: Tensor) -> Tensor:
        weight = self._weight
        if self._packed is None or (weight is not None and x.numel() == x.shape[-1]):
            assert weight is not None
            return F.linear(x, weight, self._bias)
        rows = x.reshape(-1, x.shape[-1]).to(self._packed_dtype)
        product = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._packed_bias, "none", [], "")
        return product.to(x.dtype).reshape(*x.shape[:-1], -1)  # type: ignore[no-any-return]  # an untyped operator


def _pack(weight: Tensor) -> tuple[Any, torch.dtype]:
    """The matrix in the layout of oneDNN and the type that it computes in; None where there is nothing to gain.

    bfloat16 without hardware for it is laid out as float32 beside the original, which stays for single rows: they
    are bound by memory, and half the bytes take half the time.
    """
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None, weight.dtype
    if not torch.backends.mkldnn.is_available():
        return None, weight.dtype
    native = weight.dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    matrix = weight if native else weight.float()
    return torch.ops.mkldnn._reorder_linear_weight(matrix, _ROWS), matrix.dtype


def linear(weights: Weights, name: str, out: int, size: int, *, bias: bool) -> Linear:
    """Takes one layer's weights."""
    return Linear(weights.take(f"{name}.weight", out, size), weights.take(f"{name}.bias", out) if bias else None)


def joined(weights: Weights, names: tuple[str, ...], outs: tuple[int, ...], size: int) -> Linear:
    """Layers without a bias that read the same input, as one: their outputs one after another."""
    return Linear(torch.cat([weights.take(f"{name}.weight", out, size) for name, out in zip(names, outs, strict=True)]))
