"""The flow-matching solver: from noise to the next patch, for any number of sessions, each with its own step count.

Euler with classifier-free guidance after CFG-Zero* (arXiv 2503.18886): the first step moves nothing, later ones scale
the unconditional branch by its projection. A solver with N steps therefore makes N - 1 calls; one step would give the
noise itself back and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from voxagent_voxcpm.config import Backbone
from voxagent_voxcpm.linear import Linear, linear
from voxagent_voxcpm.transformer import Transformer
from voxagent_voxcpm.weights import Weights

MIN_STEPS = 2
_TIME_SCALE = 1000.0
_ZERO_SHARE = 0.04


@dataclass(frozen=True, slots=True)
class Grid:
    """Times and step sizes of a solver; the first `still` steps move nothing.

    Attributes:
        times: Before each step, from 1 down to 0.
        sizes: Of each step.
    """

    times: tuple[float, ...]
    sizes: tuple[float, ...]
    still: int


@lru_cache(maxsize=64)
def grid(steps: int, dtype: torch.dtype) -> Grid:
    """The sway-sampled times of `steps` steps (arXiv 2410.06885), in the arithmetic of the model's dtype.

    Raises:
        ValueError: Fewer than two steps.
    """
    if steps < MIN_STEPS:
        raise ValueError(f"the solver needs at least {MIN_STEPS} steps, not {steps}: one step gives noise")
    span = torch.linspace(1, 0, steps + 1, dtype=dtype)
    span = span + (torch.cos(torch.pi / 2 * span) - 1 + span)
    time, size = span[0], span[0] - span[1]
    times, sizes = [], []
    for step in range(1, steps + 1):
        times.append(float(time))
        sizes.append(float(size))
        time = time - size
        if step < steps:
            size = time - span[step + 1]
    return Grid(tuple(times), tuple(sizes), max(1, int((steps + 1) * _ZERO_SHARE)))


class LocalDiT:
    """Estimates the velocity of a patch under construction."""

    def __init__(self, shape: Backbone, weights: Weights, feat_dim: int, name: str = "feat_decoder.estimator") -> None:
        hidden = shape.hidden
        self._hidden, self._dtype = hidden, weights.dtype
        self._in = linear(weights, f"{name}.in_proj", hidden, feat_dim, bias=True)
        self._cond = linear(weights, f"{name}.cond_proj", hidden, feat_dim, bias=True)
        self._out = linear(weights, f"{name}.out_proj", feat_dim, hidden, bias=True)
        self._time, self._delta = (_time_mlp(weights, f"{name}.{part}_mlp", hidden) for part in ("time", "delta_time"))
        self._transformer = Transformer(shape, weights, f"{name}.decoder")
        half = torch.arange(hidden // 2, dtype=weights.dtype, device=weights.device)
        self._frequencies = torch.exp(half * -(log(10000) / (hidden // 2 - 1)))
        self._times: dict[float, Tensor] = {}

    def time(self, value: float) -> Tensor:
        """The embedding of a time, (hidden,); kept, for there are few."""
        known = self._times.get(value)
        if known is None:
            known = self._times[value] = self._embed(self._time, value) + self._embed(self._delta, 0.0)
        return known

    def _embed(self, mlp: tuple[Linear, Linear], value: float) -> Tensor:
        time = torch.full((1,), value, dtype=self._dtype, device=self._frequencies.device)
        angles = _TIME_SCALE * time.unsqueeze(1) * self._frequencies
        waves = torch.cat((angles.sin(), angles.cos()), dim=-1)
        return mlp[1](F.silu(mlp[0](waves)))[0]

    def context(self, previous: Tensor) -> Tensor:
        """The patch before, (batch, frames, feat dim), as (batch, frames, hidden)."""
        return self._cond(previous)

    def velocity(self, x: Tensor, mu: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """One call.

        Args:
            x: The patch so far, (batch, frames, feat dim).
            mu: What the LMs say, (batch, 1 or 2, hidden); V1's single one is added to the time.
            time: (batch, hidden).
            context: Of `context`.
        """
        time = time.unsqueeze(1)
        head = mu + time if mu.shape[1] == 1 else torch.cat((mu, time), dim=1)
        frames = x.shape[1]
        made = self._transformer.whole(torch.cat((head, context, self._in(x)), dim=1))
        return self._out(made[:, -frames:])


def _time_mlp(weights: Weights, name: str, hidden: int) -> tuple[Linear, Linear]:
    return (
        linear(weights, f"{name}.linear_1", hidden, hidden, bias=True),
        linear(weights, f"{name}.linear_2", hidden, hidden, bias=True),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """One session's next patch.

    Attributes:
        noise: Where it starts, (frames, feat dim).
        mu: (1 or 2, hidden).
        previous: The patch before, (frames, feat dim); zeros at the start.
        steps: Solver steps, at least 2.
        cfg: Guidance; 1 follows the conditional branch alone.
        cancelled: Asked before each call; the task is then dropped.
    """

    noise: Tensor
    mu: Tensor
    previous: Tensor
    steps: int
    cfg: float
    cancelled: Callable[[], bool]


def solve(dit: LocalDiT, tasks: Sequence[Task]) -> list[Tensor | None]:
    """The next patch of each task, (frames, feat dim); None for one that was cancelled."""
    grids = [grid(task.steps, task.noise.dtype) for task in tasks]
    patches: list[Tensor | None] = [task.noise for task in tasks]
    contexts = dit.context(torch.stack([task.previous for task in tasks]))
    for call in range(max(task.steps - g.still for task, g in zip(tasks, grids, strict=True))):
        for index, task in enumerate(tasks):
            if task.cancelled():
                patches[index] = None
        active = [
            index
            for index, (patch, g) in enumerate(zip(patches, grids, strict=True))
            if patch is not None and g.still + call < len(g.times)
        ]
        if not active:
            break
        places = [grids[index].still + call for index in active]
        times = [grids[index].times[place] for index, place in zip(active, places, strict=True)]
        x = torch.stack([patch for index in active if (patch := patches[index]) is not None])
        mu = torch.stack([tasks[index].mu for index in active])
        velocity = _guided(dit, x, mu, times, contexts[active], [tasks[index].cfg for index in active])
        sizes = [grids[index].sizes[place] for index, place in zip(active, places, strict=True)]
        moved = x - x.new_tensor(sizes)[:, None, None] * velocity
        for row, index in enumerate(active):
            patches[index] = moved[row]
    return patches


def _guided(
    dit: LocalDiT, x: Tensor, mu: Tensor, times: Sequence[float], context: Tensor, cfg: Sequence[float]
) -> Tensor:
    """Both branches in one call: with what the LMs say, and without."""
    time = torch.stack([dit.time(value) for value in times])
    both = dit.velocity(
        torch.cat((x, x)), torch.cat((mu, torch.zeros_like(mu))), torch.cat((time, time)), torch.cat((context, context))
    )
    wanted, free = both.chunk(2)
    flat = free.flatten(1)
    scale = (wanted.flatten(1) * flat).sum(1, keepdim=True) / (flat.square().sum(1, keepdim=True) + 1e-8)
    free = free * scale.unsqueeze(-1)
    return free + x.new_tensor(cfg)[:, None, None] * (wanted - free)
