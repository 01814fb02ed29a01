"""Where in the pending text a word may be followed by a cut when time runs out, found only when somebody asks.

Pure; knows nothing of marks. Offsets are counted from the start of the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voxagent.marks import speech_ms

_LONGEST_WORD = 64


@dataclass(slots=True)
class Stretch:
    """Text between two offsets outside of all that is held, and the turn's speech up to its end."""

    start: int
    end: int
    ms: int


class Stretches:
    """The stretches of the pending text, in order."""

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []

    def note(self, start: int, end: int, ms: int) -> None:
        """Adds a stretch, or lengthens the last one."""
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last.end == start:
            last.end, last.ms = end, ms
        else:
            self._stretches.append(Stretch(start, end, ms))

    def drop(self, at: int) -> None:
        """Forgets what ends before the offset."""
        while self._stretches and self._stretches[0].end <= at:
            del self._stretches[0]

    def last_word(self, text: str, base: int, may_end: Callable[[str], bool]) -> tuple[int, int] | None:
        """The last space after a word that may end a phrase: its offset, and the speech up to it in milliseconds.

        Args:
            text: The pending text; `base` is the offset of its first character.
            base: See `text`.
            may_end: Judges a word.
        """
        for stretch in reversed(self._stretches):
            start, end = max(0, stretch.start - base), stretch.end - base
            at = text.rfind(" ", start, end)
            while at > 0:
                word = "" if text[at - 1].isspace() else text[max(0, at - _LONGEST_WORD) : at].split()[-1]
                if word and may_end(word):
                    return base + at, stretch.ms - speech_ms(text[at:end])
                at = text.rfind(" ", start, at)
        return None
