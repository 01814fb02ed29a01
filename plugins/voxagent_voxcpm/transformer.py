"""The MiniCPM transformer that all four parts of VoxCPM are made of: rotary grouped-query attention and SwiGLU.

One set of weights, two ways to run it: over whole short sequences in which every position sees every other (local
encoder and DiT), and causally over a ragged batch of sessions whose past lies in a `KvPool` (the two LMs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from voxagent_voxcpm.config import Backbone
from voxagent_voxcpm.kv import KvPool, Span
from voxagent_voxcpm.linear import joined, linear
from voxagent_voxcpm.weights import Weights


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, computed in float32 (arXiv 1910.07467)."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight


class Rope:
    """Rotary position tables in float32, whatever the model's dtype: bfloat16 would blur positions past 256."""

    def __init__(self, shape: Backbone, device: torch.device, positions: int) -> None:
        steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        inverse = 1.0 / (shape.rope_theta**steps)
        places = torch.arange(positions, dtype=torch.float32)
        angles = torch.outer(places, 1.0 / torch.tensor(shape.rope_factors, dtype=torch.float32)) * inverse
        both = torch.cat((angles, angles), dim=-1)
        self._cos = (both.cos() * shape.rope_amplitude).to(device)
        self._sin = (both.sin() * shape.rope_amplitude).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (positions, 1, head dim)."""
        return self._cos[positions].unsqueeze(-2), self._sin[positions].unsqueeze(-2)


def _rotate(x: Tensor, table: tuple[Tensor, Tensor] | None) -> Tensor:
    """Turns (…, positions, heads, head dim) by its position."""
    if table is None:
        return x
    wide = x.float()
    low, high = wide.chunk(2, dim=-1)
    return (wide * table[0] + torch.cat((-high, low), dim=-1) * table[1]).to(x.dtype)


class Past(Protocol):
    """Where a batch of positions stands, and who may look at what."""

    @property
    def positions(self) -> Tensor:
        """Of each row of the batch."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores the new keys and values and attends. All (rows, heads, head dim); the result like `q`."""
        ...


class SpanPast:
    """A ragged batch, each session attended by itself over views and, but for a text, without a mask.

    Nothing is copied: the way of CPUs, and of a text that is taken in.

    Args:
        pool: Keys and values of the past.
        spans: The sessions' rows, in the order of the batch.
    """

    def __init__(self, pool: KvPool, spans: Sequence[Span]) -> None:
        self._pool, self._spans = pool, spans
        places = [position for span in spans for position in range(span.start, span.start + span.count)]
        self.positions = torch.tensor(places, device=pool.keys[0].device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Past`."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        out, first = [], 0
        for span in self._spans:
            last, end = first + span.count, span.start + span.count
            keys[span.row, :, span.start : end] = k[first:last].transpose(0, 1)
            values[span.row, :, span.start : end] = v[first:last].transpose(0, 1)
            out.append(_attend_span(q[first:last], keys[span.row, :, :end], values[span.row, :, :end], span.start))
            first = last
        return out[0] if len(out) == 1 else torch.cat(out)


class RowPast:
    """One position of each of many sessions, in calls of fixed shapes: the way of GPUs, and of CUDA graphs.

    Args:
        pool: Keys and values of the past.
        rows: Of the pool, (sessions,).
        positions: Of the new position of each, (sessions,).
        reach: Positions that are looked at; what lies past a session's own is masked.
    """

    def __init__(self, pool: KvPool, rows: Tensor, positions: Tensor, reach: int) -> None:
        self._pool, self._rows, self._reach = pool, rows, reach
        self.positions = positions
        self._mask = (torch.arange(reach, device=rows.device) <= positions.unsqueeze(1))[:, None, None, :]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Past`."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys[self._rows, :, self.positions] = k
        values[self._rows, :, self.positions] = v
        q = q.unflatten(1, (k.shape[1], -1))  # the heads of a group are the queries of one KV head
        mine = keys[self._rows, :, : self._reach], values[self._rows, :, : self._reach]
        return _attention(q, mine[0], mine[1], self._mask).flatten(1, 2)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, gqa: bool = False) -> Tensor:
    if q.device.type == "mps":  # wrong results for strided tensors: PyTorch issue 163597
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)


def _attend_span(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Queries (count, heads, dim) over keys and values (KV heads, end, dim) of one session."""
    count, kv_heads = q.shape[0], keys.shape[0]
    grouped = q.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)  # KV head, member of its group, position, dim
    members = grouped.shape[1]
    mask = None
    if count > 1:
        ends = torch.arange(start, start + count, device=q.device)
        mask = torch.arange(keys.shape[1], device=q.device) <= ends.unsqueeze(1)
        mask = mask.repeat(members, 1)
    seen = _attention(grouped.flatten(1, 2).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), mask)
    apart: Tensor = seen[0].unflatten(1, (members, count))
    return apart.permute(2, 0, 1, 3).flatten(1, 2)


class _Block:
    """One layer."""

    def __init__(self, shape: Backbone, weights: Weights, name: str) -> None:
        self._shape = shape
        self._wide, self._narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        outs = (self._wide, self._narrow, self._narrow)
        self._qkv = joined(weights, tuple(f"{attention}.{part}_proj" for part in "qkv"), outs, shape.hidden)
        self._out = linear(weights, f"{attention}.o_proj", shape.hidden, self._wide, bias=False)
        self._gate_up = joined(weights, (f"{mlp}.gate_proj", f"{mlp}.up_proj"), (shape.ffn, shape.ffn), shape.hidden)
        self._down = linear(weights, f"{mlp}.down_proj", shape.hidden, shape.ffn, bias=False)
        self._norm_in = weights.take(f"{name}.input_layernorm.weight", shape.hidden)
        self._norm_out = weights.take(f"{name}.post_attention_layernorm.weight", shape.hidden)

    def heads(self, x: Tensor, table: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of (…, positions, hidden): (…, positions, heads, head dim)."""
        mixed = self._qkv(rms_norm(x, self._norm_in, self._shape.eps))
        q, k, v = (
            part.unflatten(-1, (-1, self._shape.head_dim))
            for part in mixed.split((self._wide, self._narrow, self._narrow), dim=-1)
        )
        return _rotate(q, table), _rotate(k, table), v

    def finish(self, x: Tensor, seen: Tensor) -> Tensor:
        """Adds what attention saw, (…, heads * head dim), and the MLP."""
        scale = self._shape.residual_scale
        x = x + self._out(seen) * scale if scale != 1.0 else x + self._out(seen)
        gate, up = self._gate_up(rms_norm(x, self._norm_out, self._shape.eps)).chunk(2, dim=-1)
        made = self._down(F.silu(gate) * up)
        return x + made * scale if scale != 1.0 else x + made


class Transformer:
    """A stack of layers and a last norm, without embeddings.

    Args:
        shape: Its sizes.
        weights: Its tensors.
        name: Prefix of their names.
        positions: Most that it is run over; None for all that it knows.
    """

    def __init__(self, shape: Backbone, weights: Weights, name: str, positions: int | None = None) -> None:
        self.shape = shape
        self._blocks = [_Block(shape, weights, f"{name}.layers.{index}") for index in range(shape.layers)]
        self._norm = weights.take(f"{name}.norm.weight", shape.hidden)
        self._rope = Rope(shape, weights.device, positions or shape.max_positions) if shape.rope else None

    def whole(self, x: Tensor) -> Tensor:
        """Every position sees every other: (batch, length, hidden) to the same."""
        table = self._rope.at(torch.arange(x.shape[1], device=x.device)) if self._rope is not None else None
        for block in self._blocks:
            q, k, v = (part.transpose(1, 2) for part in block.heads(x, table))
            seen = _attention(q, k, v, None, gqa=True)
            x = block.finish(x, seen.transpose(1, 2).flatten(2))
        return rms_norm(x, self._norm, self.shape.eps)

    def causal(self, x: Tensor, past: Past) -> Tensor:
        """A ragged batch, (rows, hidden) to the same; each row sees its session's past and itself."""
        table = self._rope.at(past.positions) if self._rope is not None else None
        for index, block in enumerate(self._blocks):
            q, k, v = block.heads(x, table)
            x = block.finish(x, past.attend(index, q, k, v).flatten(1))
        return rms_norm(x, self._norm, self.shape.eps)
