"""When audio handed to a transport sounds: one speaker, one thing after another.

Pure: the caller brings the time, on any clock, in seconds. Knows nothing of Pipecat. A transport that tells what it
really played is believed (`follow`); any other is taken to play at once, in order, and in real time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass

# What adding and subtracting pieces of a second leaves over, the transport's whole samples included: two at 16 kHz.
_ROUNDING_S = 1.25e-4


@dataclass(slots=True)
class _Span:
    key: str
    start_s: float
    end_s: float


class Timeline:
    """Follows what a transport plays. A key names an utterance; its audio may come in any number of pieces."""

    def __init__(self) -> None:
        self.end_s = 0.0
        """When everything handed over will have sounded; in the past when it has."""
        self.followed = False
        """Whether the transport tells what it plays."""
        self._spans: deque[_Span] = deque()
        self._sounded_s: dict[str, float] = {}

    def follow(self) -> None:
        """From now on nothing has sounded but what `sounded` tells."""
        self.followed = True

    def sounded(self, seconds: float, now_s: float) -> None:
        """The transport has played so much more of what it was given, in order."""
        while seconds > 0 and self._spans:
            head = self._spans[0]
            played_s = min(seconds, head.end_s - head.start_s)
            seconds -= played_s
            head.start_s += played_s
            if head.key in self._sounded_s:
                self._sounded_s[head.key] += played_s
            if head.end_s - head.start_s < _ROUNDING_S:
                self._spans.popleft()
        self.end_s = now_s + self.ahead_s(now_s)

    def ahead_s(self, now_s: float) -> float:
        """Audio handed over that has not sounded yet."""
        if self.followed:
            return sum(span.end_s - span.start_s for span in self._spans)
        return max(0.0, self.end_s - now_s)

    def dry_s(self, now_s: float) -> float:
        """How long there has been nothing left to sound."""
        return 0.0 if self.ahead_s(now_s) else max(0.0, now_s - self.end_s)

    def put(self, key: str, seconds: float, now_s: float) -> float:
        """Hands over a piece of audio; returns when its first sample sounds."""
        self._settle(now_s)
        start_s = max(self.end_s, now_s)
        self.end_s = start_s + seconds
        self._sounded_s.setdefault(key, 0.0)
        if self._spans and self._spans[-1].key == key and self._spans[-1].end_s == start_s:
            self._spans[-1].end_s = self.end_s
        else:
            self._spans.append(_Span(key, start_s, self.end_s))
        return start_s

    def sounded_s(self, key: str, now_s: float) -> float:
        """How much of an utterance has sounded."""
        if self.followed:
            return self._sounded_s.get(key, 0.0)
        live = (min(span.end_s, now_s) - span.start_s for span in self._spans if span.key == key)
        return self._sounded_s.get(key, 0.0) + sum(seconds for seconds in live if seconds > 0)

    def silent_at_s(self, key: str) -> float | None:
        """When the last of an utterance will have sounded; None when nothing of it is left."""
        if self.followed:
            left = [span for span in self._spans if span.key == key]
            return self.end_s if left else None
        return max((span.end_s for span in self._spans if span.key == key), default=None)

    def drop(self, keys: Container[str], now_s: float) -> None:
        """Takes back what has not sounded of some utterances; the others move up."""
        if self.followed:
            self._spans = deque(span for span in self._spans if span.key not in keys)
            self.end_s = now_s + self.ahead_s(now_s)
            return
        self._settle(now_s)
        spans, self._spans = self._spans, deque()
        self.end_s = min(self.end_s, now_s)
        for span in spans:
            started = span.start_s < now_s
            if span.key in keys:
                self._sounded_s[span.key] = self._sounded_s.get(span.key, 0.0) + max(0.0, now_s - span.start_s)
            elif started:
                self._spans.append(span)
                self.end_s = span.end_s
            else:
                self.put(span.key, span.end_s - span.start_s, now_s)

    def forget(self, key: str) -> None:
        """The utterance is over; nobody asks about it again."""
        self._sounded_s.pop(key, None)

    def _settle(self, now_s: float) -> None:
        while not self.followed and self._spans and self._spans[0].end_s <= now_s:
            span = self._spans.popleft()
            if span.key in self._sounded_s:
                self._sounded_s[span.key] += span.end_s - span.start_s
