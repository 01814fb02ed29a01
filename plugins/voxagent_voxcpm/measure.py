"""How long a step, a first packet and a cancel take, by the number of sessions. Tensors only; times in milliseconds."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from voxagent_voxcpm.config import Config
from voxagent_voxcpm.network import AUDIO_START, Network
from voxagent_voxcpm.sessions import Session, Sessions
from voxagent_voxcpm.voice import VoxVoice, make_voice

_FIRST_TOKEN = 300  # above it no token is special


@dataclass(frozen=True, slots=True)
class Extent:
    """How much to measure.

    Attributes:
        patches: Steps a figure; the first is left out.
        text: Tokens of a phrase.
        steps: Solver steps.
        first_steps: Of the first patch.
        reference_s: Length of the reference.
        rounds: Repetitions of what happens once a turn.
    """

    patches: int = 6
    text: int = 40
    steps: int = 10
    first_steps: int = 4
    reference_s: float = 10.0
    rounds: int = 3


def random_voice(network: Network, seconds: float) -> VoxVoice:
    """A reference of noise, as long as a real one; none for a release without reference mode."""
    config = network.config
    if not config.v2 or seconds <= 0:
        return make_voice(network, "none")
    count = round(seconds * config.patches_per_s)
    drawn = torch.randn((count, config.patch, config.feat_dim), generator=torch.Generator().manual_seed(1))
    return make_voice(network, "noise", reference=drawn.to(network.device))


def text_ids(config: Config, count: int) -> list[int]:
    """Token ids of a text of that length, as they stand before the sound."""
    first = min(_FIRST_TOKEN, config.vocab // 2)
    return [first + (37 * index) % (config.vocab - first) for index in range(count)] + [AUDIO_START]


@torch.inference_mode()
def start(sessions: Sessions, voice: VoxVoice, count: int, extent: Extent) -> list[Session]:
    """Opens sessions and takes a text of their own length in."""
    opened = []
    for index in range(count):
        session = sessions.open(voice)
        sessions.restart(session, sessions.nothing, index)
        sessions.take_in(
            session, text_ids(sessions.network.config, extent.text + index % 7), sessions.nothing[None][:0]
        )
        opened.append(session)
    return opened


@torch.inference_mode()
def one_step(sessions: Sessions, live: Sequence[Session], steps: int) -> None:
    """A step and its audio, brought to the CPU as an engine would."""
    patches = sessions.step(live, [steps] * len(live), 2.0)
    sessions.decode(live, [patch.latents for patch in patches if patch is not None]).cpu()


def step_times(sessions: Sessions, voice: VoxVoice, count: int, extent: Extent) -> list[float]:
    """Milliseconds of each step of `count` sessions together, decoding included; the first left out."""
    live = start(sessions, voice, count, extent)
    times = []
    for _ in range(extent.patches + 1):
        began = time.perf_counter()
        one_step(sessions, live, extent.steps)
        times.append(1000 * (time.perf_counter() - began))
    for session in live:
        sessions.close(session)
    return times[1:]


def first_packets(
    sessions: Sessions, voice: VoxVoice, count: int, extent: Extent, *, behind_a_step: bool = False
) -> list[float]:
    """Milliseconds from a phrase to its first audio, while `count - 1` other sessions speak.

    With `behind_a_step` it comes just as the others' step begins: the worst moment.
    """
    others = start(sessions, voice, count - 1, extent)
    times = []
    for _ in range(extent.rounds):
        began = time.perf_counter()
        if others:
            one_step(sessions, others, extent.steps)
        if not behind_a_step:
            began = time.perf_counter()
        (session,) = start(sessions, voice, 1, extent)
        one_step(sessions, [session], extent.first_steps)
        times.append(1000 * (time.perf_counter() - began))
        sessions.close(session)
    for session in others:
        sessions.close(session)
    return times


class _Trap:
    """Cancels a session a while into a step, and counts the solver calls before and after."""

    def __init__(self, session: Session, after_s: float) -> None:
        self.calls = 0
        self.calls_before = 0
        self.at_s = 0.0
        self._session = session
        self._timer = threading.Timer(after_s, self._cancel)
        self._timer.start()

    def _cancel(self) -> None:
        self.calls_before, self.at_s = self.calls, time.perf_counter()
        self._session.cancelled = True

    def count(self, call: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
        """Makes a solver call."""
        self.calls += 1
        return call(*args)


def cancels(sessions: Sessions, voice: VoxVoice, extent: Extent) -> dict[str, Any]:
    """How soon a session is forgotten that is cancelled in the middle of a step.

    Returns:
        ``calls``, the most solver calls begun after the cancel; ``ms``, the median time; ``reusable``, the row was.
    """
    dit, late, times, reusable = sessions.network.dit, [], [], True
    velocity = dit.velocity
    try:
        for turn in range(extent.rounds):
            (session,) = start(sessions, voice, 1, extent)
            trap = _Trap(session, 0.01 * (turn + 1))
            dit.velocity = partial(trap.count, velocity)  # type: ignore[method-assign]  # put back below
            with torch.inference_mode():
                while not session.cancelled:
                    sessions.step([session], [extent.steps], 2.0)
            times.append(1000 * (time.perf_counter() - trap.at_s))
            late.append(trap.calls - trap.calls_before)
            row = session.row
            sessions.close(session)
            (other,) = start(sessions, voice, 1, extent)
            reusable = reusable and other.row == row
            sessions.close(other)
    finally:
        dit.velocity = velocity  # type: ignore[method-assign]
    return {"calls": max(late), "ms": round(statistics.median(times), 1), "reusable": reusable}


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, least and most, in milliseconds."""
    return {"median": round(statistics.median(times), 2), "min": round(min(times), 2), "max": round(max(times), 2)}
