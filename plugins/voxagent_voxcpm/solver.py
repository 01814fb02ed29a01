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
_HEAD = 3  # positions before the patches: what both LMs say, and the time
_ZERO_SHARE = 0.04


Velocity = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""As `LocalDiT.velocity`."""


@lru_cache(maxsize=64)
def grid(steps: int, dtype: torch.dtype) -> tuple[tuple[float, float], ...]:
    """Time and size of each step that makes a call, in the arithmetic of the model's dtype.

    Sway-sampled (arXiv 2410.06885), from 1 down to 0. The first steps, which move nothing, are left out.

    Raises:
        ValueError: Fewer than two steps.
    """
    if steps < MIN_STEPS:
        raise ValueError(f"the solver needs at least {MIN_STEPS} steps, not {steps}: one step gives noise")
    span = torch.linspace(1, 0, steps + 1, dtype=dtype)
    span = span + (torch.cos(torch.pi / 2 * span) - 1 + span)
    time, size = span[0], span[0] - span[1]
    places = []
    for step in range(1, steps + 1):
        places.append((float(time), float(size)))
        time = time - size
        if step < steps:
            size = time - span[step + 1]
    return tuple(places[max(1, int((steps + 1) * _ZERO_SHARE)) :])


class LocalDiT:
    """Estimates the velocity of a patch under construction."""

    def __init__(
        self, shape: Backbone, weights: Weights, feat_dim: int, patch: int, name: str = "feat_decoder.estimator"
    ) -> None:
        hidden = shape.hidden
        self._hidden, self._dtype = hidden, weights.dtype
        self._in = linear(weights, f"{name}.in_proj", hidden, feat_dim, bias=True)
        self._cond = linear(weights, f"{name}.cond_proj", hidden, feat_dim, bias=True)
        self._out = linear(weights, f"{name}.out_proj", feat_dim, hidden, bias=True)
        self._time, self._delta = (_time_mlp(weights, f"{name}.{part}_mlp", hidden) for part in ("time", "delta_time"))
        self._transformer = Transformer(shape, weights, f"{name}.decoder", _HEAD + 2 * patch)
        half = torch.arange(hidden // 2, dtype=weights.dtype, device=weights.device)
        self._frequencies = torch.exp(half * -(log(10000) / (hidden // 2 - 1)))
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def table(self, steps: int) -> tuple[Tensor, Tensor]:
        """What the calls of a solver need: embedded times (calls, hidden), and step sizes (calls, 1, 1). Kept."""
        known = self._tables.get(steps)
        if known is None:
            places = grid(steps, self._dtype)
            still = self._embed(self._delta, 0.0)
            times = torch.stack([self._embed(self._time, time) + still for time, _ in places])
            sizes = torch.tensor([size for _, size in places], dtype=self._dtype, device=times.device)
            known = self._tables[steps] = (times, sizes[:, None, None])
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


def solve(dit: LocalDiT, tasks: Sequence[Task], velocity: Velocity | None = None) -> list[Tensor | None]:
    """The next patch of each task, (frames, feat dim); None for one that was cancelled.

    Nothing is read back or copied to the device between the calls.

    Args:
        dit: Its weights.
        tasks: At least one.
        velocity: How its calls are made; by default as they are.
    """
    # Those with the most calls first: whoever is done falls off the end.
    order = sorted(range(len(tasks)), key=lambda index: -len(grid(tasks[index].steps, tasks[index].noise.dtype)))
    tables = {task.steps: dit.table(task.steps) for task in tasks}
    contexts = dit.context(torch.stack([tasks[index].previous for index in order]))
    x = torch.stack([tasks[index].noise for index in order])
    mu = torch.stack([tasks[index].mu for index in order])
    patches: list[Tensor | None] = [None] * len(tasks)
    call = 0
    while order:
        keep = [row for row, index in enumerate(order) if not tasks[index].cancelled()]
        if len(keep) < len(order):
            order, x, mu, contexts = [order[row] for row in keep], x[keep], mu[keep], contexts[keep]
        active = sum(call < len(tables[tasks[index].steps][0]) for index in order)
        for row in range(active, len(order)):
            patches[order[row]] = x[row]
        if active < len(order):
            order, x, mu, contexts = order[:active], x[:active], mu[:active], contexts[:active]
        if order:
            mine = [tables[tasks[index].steps] for index in order]
            times = torch.stack([each[0][call] for each in mine])
            sizes = torch.stack([each[1][call] for each in mine])
            x = x - sizes * _guided(
                velocity or dit.velocity, x, mu, times, contexts, [tasks[index].cfg for index in order]
            )
        call += 1
    return patches


def _guided(velocity: Velocity, x: Tensor, mu: Tensor, times: Tensor, contexts: Tensor, cfg: Sequence[float]) -> Tensor:
    """Both branches in one call: with what the LMs say, and without."""
    both = velocity(
        torch.cat((x, x)),
        torch.cat((mu, torch.zeros_like(mu))),
        torch.cat((times, times)),
        torch.cat((contexts, contexts)),
    )
    wanted, free = both.chunk(2)
    flat = free.flatten(1)
    scale = (wanted.flatten(1) * flat).sum(1, keepdim=True) / (flat.square().sum(1, keepdim=True) + 1e-8)
    free = free * scale.unsqueeze(-1)
    strength = cfg[0] if len(set(cfg)) == 1 else x.new_tensor(cfg)[:, None, None]
    return free + strength * (wanted - free)
