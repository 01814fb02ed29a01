"""Frozen statistics that sessions, engines and playouts report. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionStats:
    """One turn, as seen when asked.

    Attributes:
        state: Name of the session's state.
        reason: Why the turn ended; empty while it lives.
        characters: Written characters fed.
        phrases: Phrases sent to the model.
        chunks: Chunks delivered.
        made_samples: Audio delivered by the model, at the model's rate.
        taken_samples: Audio the consumer took.
        heard_samples: Audio the consumer reported as handed to the network or a device.
        wasted_samples: Audio made and never taken, known once the model let the session go.
        peak_ahead_samples: Most audio that ever lay between the model and the playout.
        ttfb_ms: First text to first chunk; None before it.
        cancel_ms: Interrupt to model idle and slot free; None unless interrupted.
    """

    state: str
    reason: str
    characters: int
    phrases: int
    chunks: int
    made_samples: int
    taken_samples: int
    heard_samples: int
    wasted_samples: int
    peak_ahead_samples: int
    ttfb_ms: float | None
    cancel_ms: float | None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's counters. After every turn has ended the first three are zero.

    Attributes:
        sessions: Sessions that still speak or wait for text.
        slots_taken: Slots the model holds, cancelled ones that are not yet released included.
        queued_phrases: Phrases that wait for the model.
        slots: Slots in all.
        opened: Sessions opened since the start.
        refused: Sessions refused with `EngineFull`.
        failed: Sessions ended by `ModelError`.
        interrupted: Sessions interrupted.
        steps: Model steps taken.
        restarts: Times a hung model was replaced.
        busy_s: Seconds spent inside the model.
    """

    sessions: int
    slots_taken: int
    queued_phrases: int
    slots: int
    opened: int
    refused: int
    failed: int
    interrupted: int
    steps: int
    restarts: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class PlayoutStats:
    """A playout's counters, in samples at the playout's rate.

    Attributes:
        handed_samples: Speech handed over since the start.
        buffered_samples: Speech that waits.
        peak_samples: Most speech that ever waited.
        underruns: Times speech was due and none was there.
        underrun_samples: Silence made up for them.
        refused_samples: Audio of an old generation that was turned away.
        dropped_samples: Speech thrown away by interruptions.
    """

    handed_samples: int
    buffered_samples: int
    peak_samples: int
    underruns: int
    underrun_samples: int
    refused_samples: int
    dropped_samples: int
