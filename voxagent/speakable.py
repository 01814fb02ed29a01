"""Written text to speakable text, with an index map back to what was written.

Pure: no audio, no clocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
        """The written span behind `text[start:end]`; a rewritten unit counts whole.

        Silent text at either edge is left out. An empty span gives the place where it stands.
        """
        first = bisect_right(self.pieces, start, key=lambda p: p.s1)
        if first == len(self.pieces):
            last_end = self.pieces[-1].w1 if self.pieces else 0
            return last_end, last_end
        piece = self.pieces[first]
        low = piece.w0 + (start - piece.s0 if piece.w1 - piece.w0 == piece.s1 - piece.s0 else 0)
        if end <= start:
            return low, low
        piece = self.pieces[min(bisect_left(self.pieces, end, key=lambda p: p.s1), len(self.pieces) - 1)]
        high = piece.w0 + end - piece.s0 if piece.w1 - piece.w0 == piece.s1 - piece.s0 else piece.w1
        return low, high

    def spoken_span(self, start: int, end: int) -> tuple[int, int]:
        """The spoken span of the written `[start:end]`; a rewritten unit counts whole.

        Empty, at the place where it would stand, when nothing of it is spoken.
        """
        turned = Speakable("", tuple(Piece(p.s0, p.s1, p.w0, p.w1) for p in self.pieces))
        return turned.written_span(start, end)


def speakable(text: str, language: str | None = None, *, silent: int = 0) -> Speakable:
    """Turns a whole piece of written text into what should be spoken."""
    return Speakable(text[silent:], (Piece(0, silent, 0, 0), Piece(silent, len(text), 0, len(text) - silent)))
