"""Builds spoken text piece by piece, and the alignment with the written text along with it.

Owns what happens at the seams: silent stretches, spaces that would double, pauses for line breaks and table cells.
Pure.
"""

from __future__ import annotations

_LEFT = frozenset(".,;:!?…%)]}。，、！？；：」』”»।؟،")
_ENDS = frozenset(".,;:!?…—–-([{“„«。，、！？；：।؟،")
_PAUSE_MARKS = {".": ". ", ",": ", ", "": " "}

Span = tuple[int, int, int, int]
"""Written start and end, spoken start and end."""


class Draft:
    """A text being written for the voice. Stretches of the written text must be added in order, without gaps."""

    def __init__(self) -> None:
        self.pieces: list[Span] = []
        self._parts: list[str] = []
        self._length = 0
        self._last = ""
        # A silent stretch is kept open until the next spoken one shows how to bridge it.
        self._gap: int | None = None
        self._space = False
        self._pause = ""

    def hush(self, start: int, end: int, *, space: bool = False, pause: str = "") -> None:
        """The written stretch is not spoken; `pause` asks for a comma or a full stop in its place."""
        if start == end:
            return
        if self._gap is None:
            self._gap, self._space, self._pause = start, False, ""
        self._space = self._space or space or bool(pause)
        if pause == "." or not self._pause:
            self._pause = pause

    def say(self, start: int, end: int, spoken: str) -> None:
        """The written stretch is one unit with its own spoken form."""
        if not spoken:
            self.hush(start, end)
            return
        self._bridge(start, spoken[0])
        self._add(start, end, spoken)

    def copy(self, start: int, text: str) -> None:
        """The text is spoken as written."""
        body = text.strip()
        if not body:
            self.hush(start, start + len(text), space=True)
            return
        lead = len(text) - len(text.lstrip())
        if lead:
            self.hush(start, start + lead, space=True)
            start += lead
        self._bridge(start, body[0])
        self._add(start, start + len(body), body)
        if lead + len(body) < len(text):
            self.hush(start + len(body), start + len(text) - lead, space=True)

    def finish(self, end: int) -> str:
        """Closes the draft at the written text's end and returns the spoken text."""
        if self._gap is not None and end > self._gap:
            self._join(self._gap, end, self._length, self._length)
        self._gap = None
        return "".join(self._parts)

    def _bridge(self, start: int, first: str) -> None:
        """Settles the silent stretch before `start`: nothing, a space, or a mark and a space."""
        if self._gap is None:
            return
        spoken = ""
        if self._space and self._last:
            spoken = _PAUSE_MARKS[self._pause] if self._last not in _ENDS else " "
            if first in _LEFT:
                spoken = ""
        self._parts.append(spoken)
        self._join(self._gap, start, self._length, self._length + len(spoken))
        self._length += len(spoken)
        self._gap = None

    def _add(self, start: int, end: int, spoken: str) -> None:
        self._parts.append(spoken)
        self._join(start, end, self._length, self._length + len(spoken))
        self._length += len(spoken)
        self._last = spoken[-1]

    def _join(self, w0: int, w1: int, s0: int, s1: int) -> None:
        """Adds a piece, or lengthens the last one when both are copies."""
        if self.pieces and w1 - w0 == s1 - s0:
            p0, p1, q0, q1 = self.pieces[-1]
            if p1 - p0 == q1 - q0:
                self.pieces[-1] = (p0, w1, q0, s1)
                return
        self.pieces.append((w0, w1, s0, s1))
