"""Cuts a stream of text into phrases."""

from __future__ import annotations

from dataclasses import dataclass

from voxagent.speakable import Speakable


@dataclass(frozen=True, slots=True)
class Phrase:
    """A stretch of the turn's text that is sent to the model at once.

    Attributes:
        text: As written.
        start: Offset of its first character in the turn's written text.
        speakable: What to say, and the map between both; its written indices count from 0 at `start`.
        reason: Why it was cut here: ``sentence``, ``clause``, ``line``, ``stall``, ``runway``, ``cap``, ``end``.
        final: Nothing follows in this turn.
    """

    text: str
    start: int
    speakable: Speakable
    reason: str
    final: bool = False

    @property
    def end(self) -> int:
        """One past the last character's offset in the turn's written text."""
        return self.start + len(self.text)

    @property
    def spoken(self) -> str:
        """What the voice says; empty when the phrase is silent (markup, punctuation, emoji)."""
        return self.speakable.text
