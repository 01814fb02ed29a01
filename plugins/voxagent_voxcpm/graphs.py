"""The two calls of a step at fixed sizes, so that a GPU can replay them: {one DiT call} and {LocEnc + both LMs}.

Batches are filled up to the next size. On CUDA each size is captured once as a CUDA graph, at warm-up or when it first
comes up; elsewhere the same calls run as they are, which is how the fixed sizes are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from voxagent_voxcpm.network import Hidden, Network, Pools

_REACH = 128  # positions are looked at in multiples of this
_WARM = 2  # runs before a capture: libraries set themselves up

Tensors = tuple[Tensor, ...]


@dataclass(slots=True)
class _Captured:
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    outputs: Tensors


class _Graphed:
    """A function of tensors that is captured once for every set of shapes."""

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self._function = function
        self._known: dict[tuple[object, ...], _Captured] = {}
        self._memory: Any = None

    def __call__(self, key: object, *inputs: Tensor) -> Tensors:
        """Runs it; `key` stands for all that is no tensor. The results are good until the next call."""
        if inputs[0].device.type != "cuda":
            return self._function(key, *inputs)
        shapes = (key, *(tensor.shape for tensor in inputs))
        known = self._known.get(shapes)
        if known is None:
            known = self._known[shapes] = self._capture(key, inputs)
        for mine, theirs in zip(known.inputs, inputs, strict=True):
            mine.copy_(theirs)
        known.graph.replay()
        return known.outputs

    def _capture(self, key: object, inputs: Tensors) -> _Captured:
        kept = tuple(tensor.clone() for tensor in inputs)
        aside = torch.cuda.Stream(device=inputs[0].device)
        aside.wait_stream(torch.cuda.current_stream(inputs[0].device))
        with torch.cuda.stream(aside):
            for _ in range(_WARM):
                self._function(key, *kept)
        torch.cuda.current_stream(inputs[0].device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            outputs = self._function(key, *kept)
        self._memory = self._memory or graph.pool()
        return _Captured(graph, kept, outputs)


class FixedSizes:
    """Makes the calls of a step in batches of a few sizes.

    Args:
        network: The weights.
        pools: Where the past is; their last row belongs to nobody and takes what only fills a batch up.
        most: Sessions at once.
        compiler: Backend of `torch.compile` that both calls go through, such as ``inductor``; None for none. It takes
            half a minute and more for each size, so that sessions of every length then share one reach.
    """

    def __init__(self, network: Network, pools: Pools, most: int, compiler: str | None = None) -> None:
        self._network, self._pools = network, pools
        self._spare_row = pools.lm.keys[0].shape[0] - 1
        self.sizes = sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})
        capacity = pools.lm.capacity
        self._reach = _REACH if compiler is None else capacity
        self._velocity = _Graphed(_compiled(lambda key, *inputs: (network.dit.velocity(*inputs),), compiler))
        self._follow = _Graphed(_compiled(self._run_follow, compiler))

    def _run_follow(self, reach: int, patches: Tensor, rows: Tensor, positions: Tensor) -> Tensors:
        hidden = self._network.follow(patches, rows, positions, reach, self._pools)
        return hidden.lm, hidden.residual

    def _size(self, count: int) -> int:
        return next(size for size in self.sizes if size >= count)

    def velocity(self, x: Tensor, mu: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """As `LocalDiT.velocity`, for two rows a session."""
        count = x.shape[0]
        size = 2 * self._size(count // 2)
        (made,) = self._velocity(None, *(_filled(tensor, size) for tensor in (x, mu, time, context)))
        return made[:count]

    def follow(self, patches: Tensor, rows: Sequence[int], positions: Sequence[int]) -> Hidden:
        """Takes one patch of each session in; see `Network.follow`."""
        count, device = len(rows), patches.device
        size = self._size(count)
        reach = min(-(-(max(positions) + 1) // self._reach) * self._reach, self._pools.lm.capacity)
        padding = size - count
        at = torch.tensor([[*rows, *[self._spare_row] * padding], [*positions, *[0] * padding]], device=device)
        lm, residual = self._follow(reach, _filled(patches, size), at[0], at[1])
        return Hidden(lm[:count].clone(), residual[:count].clone())

    @torch.inference_mode()
    def warm_up(self, longest: int) -> None:
        """Captures every size, for sessions of up to `longest` positions."""
        config, network = self._network.config, self._network
        for size in self.sizes:
            patches = torch.zeros(size, config.patch, config.feat_dim, device=network.device, dtype=network.dtype)
            for reach in range(self._reach, min(longest, self._pools.lm.capacity) + self._reach, self._reach):
                end = min(reach, self._pools.lm.capacity) - 1
                self.follow(patches, [self._spare_row] * size, [end] * size)
            hidden = Hidden(
                *(torch.zeros(size, config.lm.hidden, device=network.device, dtype=network.dtype) for _ in "ab")
            )
            mu, (times, _) = network.guidance(hidden), network.dit.table(2)
            both, time = torch.cat((patches, patches)), times[:1].expand(2 * size, -1).contiguous()
            self.velocity(both, torch.cat((mu, mu)), time, network.dit.context(both))


def _compiled(function: Callable[..., Tensors], backend: str | None) -> Callable[..., Tensors]:
    if backend is None:
        return function
    # One compilation a size, and there may be more sizes than the eight that are allowed by default.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    compiled: Callable[..., Tensors] = torch.compile(function, dynamic=False, fullgraph=True, backend=backend)
    return compiled


def _filled(tensor: Tensor, size: int) -> Tensor:
    """The tensor with zeros after its rows, up to so many."""
    short = size - tensor.shape[0]
    return torch.cat((tensor, tensor.new_zeros(short, *tensor.shape[1:]))) if short else tensor
