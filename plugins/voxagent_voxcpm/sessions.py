"""The step loop: sessions of any age that are taken in, advanced, solved and decoded together.

Tensors only, no text: this is all that a measurement on another machine needs. One thread calls it. The order of a
step is what makes the first audio early: solve, then out; the LMs take a patch in at the start of the step after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxagent_voxcpm.audio_vae import State
from voxagent_voxcpm.graphs import FixedSizes
from voxagent_voxcpm.kv import Span
from voxagent_voxcpm.network import Hidden, Network, Pools
from voxagent_voxcpm.solver import Task, solve
from voxagent_voxcpm.voice import VoxVoice


@dataclass(slots=True, eq=False)
class Session:
    """All the state of one session.

    Attributes:
        row: Of the pools; -1 once it is closed.
        voice: Whose reference stands at the row's start.
        decoder: State of the audio decoder, through the whole turn.
        latest: The last patch, (frames, feat dim); zeros before the first.
        cancelled: Set from any thread.
        position: Positions of the row in use.
        hidden: What the LMs say about the next patch; None while `latest` has not been taken in.
        noise: Where the next patch starts; drawn once, however often the step is tried.
        random: Draws it.
    """

    row: int
    voice: VoxVoice
    decoder: State
    latest: Tensor
    cancelled: bool = False
    position: int = 0
    hidden: Hidden | None = None
    noise: Tensor | None = None
    random: torch.Generator = field(default_factory=torch.Generator)


@dataclass(frozen=True, slots=True)
class Patch:
    """What a step gave a session.

    Attributes:
        latents: (frames, feat dim).
        values: The same in float32 on the CPU. Should not all of it be numbers, the second attempt was no better.
        stop: The stop head says that this is the last.
    """

    latents: Tensor
    values: NDArray[np.float32]
    stop: bool


class Sessions:
    """Every session over one network.

    Args:
        network: The weights.
        rows: Sessions at once.
        positions: Room of each.
        fixed: Make the calls of a step at fixed sizes, which CUDA replays as graphs; None does so on CUDA.
        compiler: See `FixedSizes`.
    """

    def __init__(
        self, network: Network, rows: int, positions: int, *, fixed: bool | None = None, compiler: str | None = None
    ) -> None:
        self.network = network
        self.positions = positions
        self.pools: Pools = network.pools(rows + 1, positions)
        use = network.device.type == "cuda" if fixed is None else fixed
        self.fixed = FixedSizes(network, self.pools, rows, compiler) if use else None
        self._free = list(range(rows))[::-1]

    def warm_up(self) -> None:
        """Makes what is made once for each size of a batch: seconds, where there is anything to make."""
        if self.fixed is not None:
            self.fixed.warm_up(self.positions)

    @property
    def free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    def open(self, voice: VoxVoice) -> Session:
        """Takes a row and puts the voice's reference at its start. There must be a free one."""
        row = self._free.pop()
        if voice.prefix is not None:
            self.pools.lm.write(row, voice.prefix.lm)
            self.pools.residual.write(row, voice.prefix.residual)
        return Session(row, voice, voice.primed, self.nothing)

    def close(self, session: Session) -> None:
        """Gives the row back; the next owner overwrites what lies in it."""
        session.cancelled = True
        if session.row >= 0:
            self._free.append(session.row)
            session.row = -1

    def scrub(self, session: Session) -> None:
        """Cleans the row of a session whose numbers went wrong, before somebody else gets it."""
        for pool in (self.pools.lm, self.pools.residual):
            pool.scrub(session.row)

    @property
    def nothing(self) -> Tensor:
        """The patch before the first: zeros (frames, feat dim)."""
        config = self.network.config
        return torch.zeros(config.patch, config.feat_dim, device=self.network.device, dtype=self.network.dtype)

    def restart(self, session: Session, latest: Tensor, seed: int) -> None:
        """Goes back to the end of the reference, for another phrase.

        Args:
            session: Whose.
            latest: The patch that the phrase goes on from; `nothing` for none.
            seed: Of its noise.
        """
        prefix = session.voice.prefix
        session.position = prefix.positions if prefix is not None else 0
        session.latest, session.hidden, session.noise = latest, None, None
        session.random.manual_seed(seed % (1 << 63))

    def take_in(self, session: Session, ids: Sequence[int], patches: Tensor) -> None:
        """Takes the next positions in: tokens, then patches (count, frames, feat dim)."""
        network = self.network
        parts = [network.embed_tokens(ids)] if ids else []
        if len(patches):
            parts.append(network.embed_patches(patches))
        count = len(ids) + len(patches)
        audio = torch.arange(count, device=network.device) >= len(ids)
        session.hidden = network.advance(
            torch.cat(parts), audio, [Span(session.row, session.position, count)], self.pools
        )
        session.position += count

    def step(self, sessions: Sequence[Session], steps: Sequence[int], cfg: float) -> list[Patch | None]:
        """The next patch of each session; None for one that was cancelled.

        Args:
            sessions: Each has been taken in.
            steps: Solver steps of each.
            cfg: Guidance.
        """
        if not sessions:
            return []
        network = self.network
        self._advance([session for session in sessions if session.hidden is None])
        hidden = [session.hidden for session in sessions if session.hidden is not None]
        together = Hidden(torch.cat([each.lm for each in hidden]), torch.cat([each.residual for each in hidden]))
        guidance, stops = network.guidance(together), network.stops(together)
        tasks = [
            Task(self._noise(session), mu, session.latest, count, cfg, partial(_is_cancelled, session))
            for session, mu, count in zip(sessions, guidance, steps, strict=True)
        ]
        solved = self._solve(tasks)
        values = _on_cpu(solved)
        wrong = [index for index, each in values.items() if not np.isfinite(each).all()]
        for index in wrong:  # once more from other noise: nobody has heard it yet
            sessions[index].noise = None
            tasks[index] = replace(tasks[index], noise=self._noise(sessions[index]))
        if wrong:
            for index, latents in zip(wrong, self._solve([tasks[index] for index in wrong]), strict=True):
                solved[index] = latents
            values = _on_cpu(solved)
        out: list[Patch | None] = []
        for index, (session, latents, stop) in enumerate(zip(sessions, solved, stops.tolist(), strict=True)):
            if latents is not None:
                session.latest, session.noise, session.hidden = latents, None, None
            out.append(None if latents is None else Patch(latents, values[index], stop))
        return out

    def _solve(self, tasks: Sequence[Task]) -> list[Tensor | None]:
        velocity = self.fixed.velocity if self.fixed is not None else None
        return solve(self.network.dit, tasks, velocity)

    def _advance(self, sessions: Sequence[Session]) -> None:
        """Both LMs take each session's latest patch in."""
        if not sessions:
            return
        network = self.network
        latest = torch.stack([session.latest for session in sessions])
        if self.fixed is not None:
            rows, positions = [session.row for session in sessions], [session.position for session in sessions]
            hidden = self.fixed.follow(latest, rows, positions)
        else:
            audio = torch.ones(len(sessions), dtype=torch.bool, device=network.device)
            spans = [Span(session.row, session.position, 1) for session in sessions]
            hidden = network.advance(network.embed_patches(latest), audio, spans, self.pools)
        for index, session in enumerate(sessions):
            session.hidden = Hidden(hidden.lm[index : index + 1], hidden.residual[index : index + 1])
            session.position += 1

    def _noise(self, session: Session) -> Tensor:
        if session.noise is None:
            # On the CPU, feature by feature: the same for every device, and as upstream draws it.
            config = self.network.config
            drawn = torch.randn((config.feat_dim, config.patch), generator=session.random, dtype=torch.float32)
            session.noise = drawn.T.to(self.network.device, self.network.dtype).contiguous()
        return session.noise

    def decode(self, sessions: Sequence[Session], patches: Sequence[Tensor]) -> Tensor:
        """Audio (sessions, samples) of the next patch of each, with its own decoder state."""
        frames = torch.stack(list(patches)).float().transpose(1, 2).contiguous()
        audio, states = self.network.decoder.decode(frames, [session.decoder for session in sessions])
        for session, state in zip(sessions, states, strict=True):
            session.decoder = state
        return audio


def _on_cpu(patches: Sequence[Tensor | None]) -> dict[int, NDArray[np.float32]]:
    """The patches that there are, by place; in one copy, for each waits for the device."""
    there = [(index, patch) for index, patch in enumerate(patches) if patch is not None]
    if not there:
        return {}
    values: NDArray[np.float32] = torch.stack([patch for _, patch in there]).float().cpu().numpy()
    return {index: each for (index, _), each in zip(there, values, strict=True)}


def _is_cancelled(session: Session) -> bool:
    return session.cancelled
