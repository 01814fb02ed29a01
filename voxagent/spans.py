"""What is open at a place in the text: quotations, brackets, markdown, code, tags.

A stack fed one character at a time. Pure; knows nothing of boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxagent.marks import BRACKETS, Kind, is_unspaced

_LONG_QUOTE = 60  # characters after which a sentence may end inside a quotation
_LONG_SPAN = 150  # characters after which an opening mark is taken for a stray one
_DEEPEST = 16  # more than this is no text: all of it is taken for stray marks
_QUOTE_CLOSERS = '”»“」"'
_LITERAL = "`>"


@dataclass(slots=True)
class Span:
    """Something open: what closes it, where it began, and the milliseconds of speech before it."""

    closers: str
    start: int
    ms: int


class OpenSpans:
    """The stack of what is open. Offsets are counted from the start of the turn."""

    def __init__(self) -> None:
        self._stack: list[Span] = []
        self._run = ""
        self._run_start = 0
        self.tentative = False
        """The last character opened something, if the next one agrees."""

    def __len__(self) -> int:
        return len(self._stack)

    @property
    def top(self) -> Span | None:
        """The innermost span."""
        return self._stack[-1] if self._stack else None

    @property
    def literal(self) -> Span | None:
        """The code or tag that the place is inside of: no mark counts there."""
        return self._stack[-1] if self._stack and self._stack[-1].closers in _LITERAL else None

    def clear(self) -> None:
        """Takes everything open for stray marks."""
        self._stack.clear()
        self.tentative = False

    def pop(self) -> None:
        """Closes the innermost span."""
        self._stack.pop()

    def blocks(self, at: int) -> bool:
        """Whether something opened before `at` is still open, and not for suspiciously long."""
        for span in self._stack:
            if span.start >= at:
                return False
            limit = _LONG_QUOTE if span.closers[0] in _QUOTE_CLOSERS else _LONG_SPAN
            if at - span.start <= limit:
                return True
        return False

    def closes(self, ch: str, before: str) -> bool:
        """Whether the character would close something, given the one before it."""
        if ch in "*_" and self._run != "open" and before == ch:
            return self._run == "close"
        return any(ch in span.closers for span in self._stack)

    def open(self, closers: str, at: int, ms: int, *, tentative: bool = False) -> None:
        """Opens a span at the offset `at`."""
        self._push(closers, at, ms)
        self._run_start = at
        self.tentative = tentative

    def _push(self, closers: str, at: int, ms: int) -> None:
        if len(self._stack) >= _DEEPEST:
            self._stack.clear()
        self._stack.append(Span(closers, at, ms))

    def toggle(self, ch: str, kind: Kind, before: str, at: int, ms: int) -> Span | None:
        """Takes in a quote, bracket or markup character; returns the span that it closed."""
        if kind is Kind.MARKUP:
            self._toggle_markup(ch, before, at, ms)
            return None
        closed = self._close(ch)
        if closed is not None:
            return closed
        stray = ch not in BRACKETS or (ch == "(" and before in ":;-") or (kind is Kind.QUOTE and before.isalnum())
        if not stray:  # a quote after a letter means inches, or a quotation whose start was lost
            self.open(BRACKETS[ch], at, ms, tentative=ch in '"＂»›')
        return None

    def _close(self, ch: str) -> Span | None:
        """Closes the innermost span that the character closes, and what stayed open inside it."""
        for depth in range(len(self._stack) - 1, -1, -1):
            span = self._stack[depth]
            if ch in span.closers:
                del self._stack[depth:]
                return span
        return None

    def _toggle_markup(self, ch: str, before: str, at: int, ms: int) -> None:
        if before != ch:
            opened = any(span.closers == ch for span in self._stack)
            free = not before.isalnum() or (ch == "*" and is_unspaced(before))
            self._run = "close" if opened and not before.isspace() else "open" if free else ""
            self._run_start = at
        if self._run == "open":
            self._push(ch, at, ms)
            self.tentative = True
        elif self._run == "close":
            for depth in range(len(self._stack) - 1, -1, -1):
                if self._stack[depth].closers == ch:
                    del self._stack[depth]
                    break

    def settle(self, ch: str, kind: Kind) -> None:
        """The character after an opening mark shows whether it opened anything."""
        last = self.top
        if last is not None and ch == last.closers and ch in "*_" and self._run == "open":
            return
        self.tentative = False
        stray = kind in (Kind.SPACE, Kind.NEWLINE)
        if last is not None and last.closers == ">":
            stray = not (ch.isalpha() or ch in "/!")
        while stray and self._stack and self._stack[-1].start >= self._run_start:
            self._stack.pop()
