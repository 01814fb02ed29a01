"""Written text to speakable text, with an index map back to what was written.

Pure: no audio, no clocks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One aligned stretch: `written[w0:w1]` is spoken as `spoken[s0:s1]`."""

    w0: int
    w1: int
    s0: int
    s1: int


@dataclass(frozen=True, slots=True)
class Speakable:
    """Spoken text and its alignment with the written text.

    Attributes:
        text: What a voice should say.
        pieces: Contiguous and ordered; together they cover both texts. Equal lengths mean a character-wise copy,
            otherwise the piece is a unit ("$5" and "five dollars").
    """

    text: str
    pieces: tuple[Piece, ...]

    def written_span(self, start: int, end: int) -> tuple[int, int]:
        """The written span behind `text[start:end]`; a rewritten unit counts whole."""
        raise NotImplementedError

    def spoken_span(self, start: int, end: int) -> tuple[int, int]:
        """The spoken span of the written `[start:end]`; a rewritten unit counts whole."""
        raise NotImplementedError


def speakable(text: str, language: str | None = None) -> Speakable:
    """Turns a whole piece of written text into what should be spoken."""
    return Speakable(text, (Piece(0, len(text), 0, len(text)),))
