"""Splitters as the benchmark sees them: ours, and peers found by the entry point group `voxagent.splitters`.

An entry names a factory: language tag → `Splitter`. Knows no gold set and no peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from voxagent.phrases import PhraseSplitter


class Splitter(Protocol):
    """Cuts one text that comes in pieces; offsets count characters of all that was fed."""

    def feed(self, chunk: str) -> list[int]:
        """Takes in the next piece; returns the ends of what it released."""
        ...

    def finish(self) -> list[int]:
        """Ends the text; returns the ends of what was left."""
        ...


Factory = Callable[[str], Splitter]


class VoxagentSplitter:
    """Our own, without timers."""

    def __init__(self, language: str) -> None:
        self._splitter = PhraseSplitter(language)

    def feed(self, chunk: str) -> list[int]:
        """Ends of the phrases that this piece completed."""
        return [phrase.end for phrase in self._splitter.push(chunk)]

    def finish(self) -> list[int]:
        """Ends of the last phrases."""
        return [phrase.end for phrase in self._splitter.end()]


class Trail:
    """Finds where the pieces that a peer gives out end in the text it was fed.

    Peers strip, join and squeeze whitespace, so only the other characters are followed. What a peer drops is skipped;
    what it makes up is passed over.
    """

    def __init__(self) -> None:
        self._fed = ""
        self._at = 0

    def feed(self, chunk: str) -> None:
        """Notes what the peer is about to be fed."""
        self._fed += chunk

    def end_of(self, piece: str) -> int:
        """The offset after the piece's last character."""
        for ch in piece:
            if not ch.isspace() and (found := self._fed.find(ch, self._at)) >= 0:
                self._at = found + 1
        return self._at
