"""The life of one turn: states, events, and the table of transitions.

Pure: no threads, clocks or event loops. The engine's `Session` handle drives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from voxagent.errors import SessionStateError
from voxagent.ledger import Word
from voxagent.model import Pcm
from voxagent.phrases import Phrase


class SessionState(Enum):
    """Where a turn stands."""

    WAITING = "waiting"
    """Open; every phrase so far is spoken, more text may come."""
    SPEAKING = "speaking"
    """Open; the model has phrases to speak."""
    DRAINING = "draining"
    """No more text will come; the model still speaks."""
    ENDED = "ended"
    """The model has spoken everything; the listener may lag behind."""
    INTERRUPTED = "interrupted"
    """Cut off by `interrupt`."""
    FAILED = "failed"
    """Ended by a `ModelError`."""

    @property
    def over(self) -> bool:
        """Whether nothing more will be spoken."""
        return self in (SessionState.ENDED, SessionState.INTERRUPTED, SessionState.FAILED)


class SessionEvent(Enum):
    """What happens to a turn."""

    PHRASE = "phrase"
    """A phrase was sent to the model."""
    CHUNK = "chunk"
    """The model made a chunk."""
    SPOKEN = "spoken"
    """The model has spoken every phrase it was sent."""
    END_INPUT = "end_input"
    """The caller has no more text."""
    INTERRUPT = "interrupt"
    """The caller wants silence."""
    FAIL = "fail"
    """The model failed."""


_S, _E = SessionState, SessionEvent

TRANSITIONS: dict[tuple[SessionState, SessionEvent], SessionState] = {
    (_S.WAITING, _E.PHRASE): _S.SPEAKING,
    (_S.WAITING, _E.SPOKEN): _S.WAITING,
    (_S.WAITING, _E.END_INPUT): _S.ENDED,
    (_S.WAITING, _E.INTERRUPT): _S.INTERRUPTED,
    (_S.WAITING, _E.FAIL): _S.FAILED,
    (_S.SPEAKING, _E.PHRASE): _S.SPEAKING,
    (_S.SPEAKING, _E.CHUNK): _S.SPEAKING,
    (_S.SPEAKING, _E.SPOKEN): _S.WAITING,
    (_S.SPEAKING, _E.END_INPUT): _S.DRAINING,
    (_S.SPEAKING, _E.INTERRUPT): _S.INTERRUPTED,
    (_S.SPEAKING, _E.FAIL): _S.FAILED,
    (_S.DRAINING, _E.CHUNK): _S.DRAINING,
    (_S.DRAINING, _E.SPOKEN): _S.ENDED,
    (_S.DRAINING, _E.END_INPUT): _S.DRAINING,
    (_S.DRAINING, _E.INTERRUPT): _S.INTERRUPTED,
    (_S.DRAINING, _E.FAIL): _S.FAILED,
    # A turn that is over stays as it is: an LLM may go on for a moment, and late chunks are refused here.
    (_S.ENDED, _E.END_INPUT): _S.ENDED,
    # Everything is made, but the listener has not heard all of it.
    (_S.ENDED, _E.INTERRUPT): _S.INTERRUPTED,
    (_S.ENDED, _E.FAIL): _S.ENDED,
    **{(_S.INTERRUPTED, event): _S.INTERRUPTED for event in SessionEvent},
    **{(_S.FAILED, event): _S.FAILED for event in SessionEvent},
}
"""Every allowed pair. A pair that is missing is a bug of whoever caused the event."""


def transition(state: SessionState, event: SessionEvent) -> SessionState:
    """Returns the state after `event`.

    Raises:
        SessionStateError: The event is not allowed in this state.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise SessionStateError(f"a session that is {state.value} cannot take the event '{event.value}'") from None


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """One latent chunk's PCM.

    Attributes:
        pcm: Mono float32, shape (n,); may be empty on a phrase's last chunk.
        sample_rate: Hz.
        start_sample: Position of its first sample in the session's audio.
        phrase: The phrase it speaks.
        first: It is the phrase's first chunk.
        last: It is the phrase's last chunk.
        words: Words with their times, each on the first chunk that knows it.
        reason: Why the model ended the phrase early, on its last chunk; empty when it did not.
    """

    pcm: Pcm
    sample_rate: int
    start_sample: int
    phrase: Phrase
    first: bool
    last: bool
    words: tuple[Word, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a session's audio.

    Attributes:
        samples: Handed to the network or a device, at `sample_rate`.
        sample_rate: Hz.
    """

    samples: int
    sample_rate: int

    @property
    def ms(self) -> float:
        """The same in milliseconds."""
        return 1000 * self.samples / self.sample_rate
