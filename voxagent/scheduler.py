"""Which sessions the model serves next: least audio ahead first. Admission too.

Pure: sees numbers only, never a model or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Need(Enum):
    """What a session could do next."""

    PREFILL = "prefill"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session that has work.

    Attributes:
        key: Identifies the session to the caller.
        need: What it could do next.
        ahead_s: Audio made and not yet played, seconds.
        speaking: Its listener hears it, so running dry would be an underrun.
    """

    key: int
    need: Need
    ahead_s: float
    speaking: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the schedule.

    Attributes:
        max_ahead_s: A session this far ahead rests.
        guard_s: A heard session with less than this goes before anybody's prefill, which may take this long.
        max_batch: Sessions one step may advance.
    """

    max_ahead_s: float = 0.6
    guard_s: float = 0.12
    max_batch: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next: one prefill, or one step of several sessions."""

    need: Need
    keys: tuple[int, ...]


def plan(candidates: Sequence[Candidate], bounds: Bounds) -> Plan | None:
    """Chooses the next work, or None when every session is far enough ahead."""
    waiting = [c for c in candidates if c.ahead_s < bounds.max_ahead_s]
    if not waiting:
        return None

    def urgency(candidate: Candidate) -> tuple[bool, float]:
        endangered = candidate.speaking and candidate.need is Need.STEP and candidate.ahead_s < bounds.guard_s
        return (not endangered, candidate.ahead_s)

    ordered = sorted(waiting, key=urgency)
    first = ordered[0]
    if first.need is Need.PREFILL:
        return Plan(Need.PREFILL, (first.key,))
    steps = [c for c in ordered if c.need is Need.STEP]
    if any(not c.speaking and c.ahead_s <= 0 for c in steps):
        # A listener waits for this step, which ends when the last of the batch is done: nobody joins who has time.
        steps = [c for c in steps if c.ahead_s < bounds.guard_s]
    return Plan(Need.STEP, tuple(c.key for c in steps[: bounds.max_batch]))


def admit(live: int, slots: int) -> bool:
    """Whether one more session fits. Cancelled sessions do not count: their slots are free before the next open."""
    return live < slots
