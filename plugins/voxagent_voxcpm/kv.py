"""Keys and values of past positions: one row of a fixed pool a session.

Owns memory. Nothing is zeroed when a row is handed on: what lies past a session's length is masked or not read at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxagent_voxcpm.config import Backbone


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one call that belong to one session.

    Attributes:
        row: The session's row in the pool.
        start: Position of the first; everything before it is in the pool.
        count: How many positions.
    """

    row: int
    start: int
    count: int


class KvPool:
    """Keys and values of one transformer for a number of sessions.

    Attributes:
        keys: One tensor a layer, (rows, KV heads, capacity, head dim).
        values: The same.
    """

    def __init__(self, shape: Backbone, rows: int, capacity: int, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity = capacity
        size = (rows, shape.kv_heads, capacity, shape.head_dim)
        self.keys = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, device=device, dtype=dtype) for _ in range(shape.layers)]

    def scrub(self, row: int) -> None:
        """Zeroes a row that may hold values that are no numbers: masked or not, they would spread."""
        for layer in (*self.keys, *self.values):
            layer[row].zero_()

    def read(self, row: int, count: int) -> tuple[Tensor, Tensor]:
        """A copy of a row's first positions: two tensors (layers, KV heads, count, head dim)."""
        keys = torch.stack([layer[row, :, :count] for layer in self.keys])
        return keys, torch.stack([layer[row, :, :count] for layer in self.values])

    def write(self, row: int, kept: tuple[Tensor, Tensor]) -> None:
        """Puts what `read` gave at the start of a row."""
        for layers, stored in zip((self.keys, self.values), kept, strict=True):
            for layer, positions in zip(layers, stored, strict=True):
                layer[row, :, : positions.shape[1]] = positions

    @property
    def bytes(self) -> int:
        """Memory of the pool."""
        return sum(layer.nbytes for layer in (*self.keys, *self.values))
