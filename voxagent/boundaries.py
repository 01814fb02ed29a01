"""Finds phrase boundaries in a stream of text, one character after another.

Owns what is open at a position (quotes, brackets, markdown, code, tags, think blocks) and the mark being judged.
Decides nothing about sizes and timers. Looks at each character once; keeps only the pending text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from voxagent.lexicon import Lexicon
from voxagent.marks import KINDS, WEIGHTS, Kind
from voxagent.spans import OpenSpans, Span
from voxagent.verdicts import Mark, Verdict, judge, safe_when_stalled


class Grade(IntEnum):
    """How good a place for a cut is; greater is better."""

    OVERFLOW = 0  # no place at all: the pending text has reached a limit
    WORD = 1
    CONNECTIVE = 2
    CLAUSE = 3
    LINE = 4
    SENTENCE = 5


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place for a cut.

    Attributes:
        at: Offset in the turn.
        seconds: Estimated speech of the turn up to here.
        grade: How good a place.
    """

    at: int
    seconds: float
    grade: Grade


@dataclass(slots=True)
class _Candidate:
    """A mark under judgement and where the cut would be."""

    mark: Mark
    at: int
    seconds: float


_SILENT_TAG = re.compile(r"<(think|thinking|thought|reasoning)\b[^>]*>$", re.IGNORECASE)
_EMOTICON = re.compile(r"(?:^|\s)[:;]-?[)D]$")
_ADDRESS = re.compile(
    r"\S{0,3}(?:[a-z][a-z0-9+.-]{1,9}://|www\.|\S{1,64}@|[\w-]{1,64}(?:\.[\w-]{1,64}){1,4}/|data:)", re.IGNORECASE
)
_ADDRESS_WORD = re.compile(
    r"(?:[a-z][a-z0-9+.-]{1,9}://\S+|www\.\S+|\S{1,64}@\S+\.\w{2,}|[\w-]{2,64}(?:\.[\w-]{2,64}){0,4}\.[a-z]{2,}(?:/\S*)?)$",
    re.IGNORECASE,
)
_LOOKAHEAD = 64  # characters after a mark within which it is judged; keeps the work linear
_LONG_TAG = 300
_CLUSTER = frozenset((Kind.STOP, Kind.END, Kind.FULL_STOP, Kind.ELLIPSIS))
_MARKS = _CLUSTER | {Kind.COMMA, Kind.COLON, Kind.DASH, Kind.EMOJI}
_QUIET = frozenset((Kind.LETTER, Kind.DIGIT, Kind.EXTEND, Kind.OTHER))
_CLOSING = frozenset((Kind.CLOSE, Kind.OPEN, Kind.QUOTE, Kind.MARKUP))


class Scanner:
    """Walks over the text and reports boundaries as soon as they are certain.

    Offsets are counted from the start of the turn; `base` is that of `text[0]`.
    """

    def __init__(self, lex: Lexicon) -> None:
        self.text = ""
        self.base = 0
        self.seen = 0
        """Offset one past the last character looked at."""
        self.seconds = 0.0
        """Speech in all characters seen."""
        self.limit_s = float("inf")
        """Value of `seconds` from which every character reports an overflow."""
        self.limit_chars = 2000
        """Pending characters from which every character reports an overflow."""
        self.connective_s = float("inf")
        """Value of `seconds` from which words like "because" are reported."""
        self.word: Boundary | None = None
        """The last boundary between words outside of held groups."""
        self.rough: Boundary | None = None
        """The last whitespace of any kind."""
        self.head_silent = False
        """`text` begins inside a think block or a code fence."""
        self.silent_end: int | None = None
        """Where the silent block that was open at `base` ended."""
        self._lex = lex
        self._spans = OpenSpans()
        self._candidate: _Candidate | None = None
        self._connective: Boundary | None = None
        self._line = 0
        self._word_start = 0
        self._solid = 0
        self._until = ""
        self._silence = Boundary(0, 0.0, Grade.OVERFLOW)

    # What the splitter asks.

    @property
    def silent(self) -> bool:
        """Inside a think block or a code fence: nothing is spoken."""
        return bool(self._until)

    @property
    def held(self) -> bool:
        """Inside a quotation, a bracket, markup, code, a tag, or an address."""
        return bool(self._spans) or self.literal

    @property
    def literal(self) -> bool:
        """Inside code, a tag, or an address."""
        if self._spans.literal is not None:
            return True
        start = self._word_start - self.base
        return start >= 0 and _ADDRESS.match(self.text, start, self.seen - self.base) is not None

    @property
    def word_length(self) -> int:
        """Characters since the last whitespace."""
        return self.seen - max(self._word_start, self.base)

    def stalled_mark(self) -> Boundary | None:
        """The mark under judgement, if it may pass for an end when nothing follows."""
        found = self._candidate
        if found is None or self._spans.blocks(found.at) or not safe_when_stalled(found.mark, self._lex):
            return None
        if self.text[found.at - self.base : self.seen - self.base].strip():
            return None
        return Boundary(found.at, found.seconds, Grade.SENTENCE)

    def last_mark(self) -> Boundary | None:
        """Judges the mark under judgement as if the text ended here."""
        found, self._candidate = self._candidate, None
        if found is None or self._spans.blocks(found.at):
            return None
        after = self.text[found.at - self.base : self.seen - self.base] + "\n"
        return self._verdict(found, judge(found.mark, after, self._lex))

    def append(self, block: str) -> None:
        """Adds text to look at."""
        self.text += block

    def drop(self, at: int) -> None:
        """Forgets the text before the offset `at`."""
        self.head_silent = self.silent and at > self._silence.at
        self.silent_end = None
        self.text = self.text[at - self.base :]
        self.base = at
        if self._candidate is not None and self._candidate.at <= at:
            self._candidate = None
        if self._connective is not None and self._connective.at <= at:
            self._connective = None

    def forget_spans(self) -> None:
        """Takes everything open for stray marks."""
        self._spans.clear()

    # The walk.

    def advance(self) -> Boundary | None:
        """Looks at characters until a boundary is certain; None when all text is seen."""
        text, base = self.text, self.base
        size = len(text)
        while (index := self.seen - base) < size:
            ch = text[index]
            kind = KINDS[ch]
            self.seen += 1
            self.seconds += WEIGHTS[ch]
            if kind not in _QUIET or self._candidate is not None or self._spans.tentative or self._until:
                found = self._step(index, ch, kind)
                if found is not None:
                    return found
            if self.seconds >= self.limit_s or index >= self.limit_chars:
                return Boundary(self.seen, self.seconds, Grade.OVERFLOW)
        return None

    def _step(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        if self._until:
            return self._in_silence(index, ch, kind)
        if self._spans.tentative:
            self._spans.settle(ch, kind)
        if self._spans.literal is not None:
            return self._in_literal(index, ch, kind)
        found = None
        if self._candidate is not None:
            if self._extends(self._candidate, index, ch, kind):
                return None
            found = self._resolve(self._candidate, index)
        also = self._take(index, ch, kind)
        return also if found is None else found

    def _take(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        if kind is Kind.NEWLINE:
            return self._newline(index)
        if kind is Kind.SPACE:
            return self._space(index)
        if kind in _MARKS:
            return self._mark(index, ch, kind)
        if kind in _CLOSING:
            self._consider_close(index, self._toggle(index, ch, kind))
        elif ch in "`<":
            self._open_literal(index, ch)
        return self._before_address(index, ch) if ch in "`@" else None

    def _before_address(self, index: int, ch: str) -> Boundary | None:
        """An address or code is read apart: the word boundary before it is a clause end."""
        before, start = self.rough, self._word_start - self.base
        opens = start == index if ch == "`" else 0 <= start < index and self.text[index - 1].isalnum()
        if before is None or not opens or self._solid != before.at or len(self._spans) > (ch == "`"):
            return None
        return Boundary(before.at, before.seconds, Grade.CLAUSE)

    # Whitespace.

    def _newline(self, index: int) -> Boundary | None:
        self._touch_solid(index)
        self._spans.clear()
        self._candidate = self._connective = None
        self._line = self._word_start = self.seen
        if self._solid <= self.base:
            return None
        self.word = self.rough = Boundary(self._solid, self.seconds, Grade.LINE)
        return self.word

    def _touch_solid(self, index: int) -> bool:
        """Notes where the last visible character ended; False inside a run of whitespace."""
        if index and KINDS[self.text[index - 1]] in (Kind.SPACE, Kind.NEWLINE):
            return False
        self._solid = self.base + index
        return True

    def _space(self, index: int) -> Boundary | None:
        found = None
        if self._touch_solid(index) and index:
            here = Boundary(self._solid, self.seconds, Grade.WORD)
            self.rough = here
            if not self._spans and self._candidate is None:
                word = self.text[max(0, self._word_start - self.base) : index]
                if self._may_end(word):
                    self.word = here
                found = self._particle(word, here) or self._conjoin(index, here)
                if found is None and (word.endswith("`") or _ADDRESS_WORD.match(word)):
                    found = Boundary(here.at, here.seconds, Grade.CLAUSE)
        self._word_start = self.seen
        return found

    def _may_end(self, word: str) -> bool:
        """Whether stalled text may be cut after the word: no number, no sign, no article before a noun."""
        if not word or not word[-1].isalpha() or word.casefold() in self._lex.determiners:
            return False
        return word.isalpha() or not any(map(str.isdigit, word))

    def _particle(self, word: str, here: Boundary) -> Boundary | None:
        if self._lex.particles and word.endswith(self._lex.particles):
            return Boundary(here.at, here.seconds, Grade.SENTENCE)
        return None

    def _conjoin(self, index: int, here: Boundary) -> Boundary | None:
        """Reports a word boundary once the next words show that a clause began there."""
        if self.seconds < self.connective_s:
            return None
        before, self._connective = self._connective, Boundary(here.at, here.seconds, Grade.CONNECTIVE)
        if before is None:
            return None
        words = self.text[before.at - self.base : index].casefold().split()
        if words and words[0] in self._lex.connectives:
            return before
        if words and words[0] in self._lex.coordinators:
            if len(words) == 1:
                self._connective = before
            elif words[1] in self._lex.subjects:
                return before
        return None

    # Marks.

    def _mark(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        if kind is Kind.DASH and not self.text[max(0, self._line - self.base) : index].strip(" \t>"):
            return None
        self._consider(index, index + 1, kind)
        if kind is Kind.FULL_STOP and not self._spans and self._candidate is not None:
            # Nothing but an end, and nothing can hold it: no look-ahead.
            found, self._candidate = self._candidate, None
            return Boundary(found.at, found.seconds, Grade.SENTENCE)
        return None

    def _consider(self, start: int, end: int, kind: Kind) -> None:
        line = self.text[self._line - self.base : start] if self._line >= self.base else None
        mark = Mark(kind, self.text[:start], self.text[start:end], False, line)
        self._candidate = _Candidate(mark, self.base + end, self.seconds)

    def _toggle(self, index: int, ch: str, kind: Kind) -> Span | None:
        before = self.text[index - 1] if index else " "
        closed = self._spans.toggle(ch, kind, before, self.base + index, self.seconds)
        if closed is not None and ch == ")" and self.text[: max(0, closed.start - self.base)].endswith("]"):
            self.seconds = closed.seconds  # the address of a markdown link is not spoken
        return closed

    def _consider_close(self, index: int, closed: Span | None) -> None:
        """A smile ends a sentence as an emoji does; a bracket of some words is a clause."""
        if _EMOTICON.search(self.text, max(0, index - 3), index + 1):
            self._consider(index - 1, index + 1, Kind.EMOJI)
        elif closed is None or closed.closers not in ")）" or closed.start < self.base or self._spans:
            return
        elif len(self.text[closed.start - self.base : index].split()) >= 3:
            self._consider(index, index + 1, Kind.CLOSE)

    def _french_gap(self) -> bool:
        top = self._spans.top
        return top is not None and top.closers in "»›"

    def _extends(self, found: _Candidate, index: int, ch: str, kind: Kind) -> bool:
        """Whether the character belongs to the mark: it repeats it, or closes something right after it."""
        mark = found.mark
        top = self._spans.top
        if top is not None and ch == top.closers == "]" and top.start == found.at:
            self._spans.pop()  # a footnote, "1952.[3]"
        elif self.base + index != found.at and not (ch in "»›" and not self._gap(found, index).strip()):
            return False
        elif (
            kind in _CLOSING
            and (mark.kind in _CLUSTER or kind is Kind.MARKUP)
            and self._spans.closes(ch, self.text[index - 1])
        ):
            self._toggle(index, ch, kind)
            closed = mark.closed or kind is not Kind.MARKUP
            found.mark = Mark(mark.kind, mark.text, mark.sign, closed, mark.line)
        elif (joined := _join(mark, kind)) is not None:
            found.mark = Mark(joined, mark.text, mark.sign[:1] + ch, False, mark.line)
        elif kind is not Kind.EXTEND:
            return False
        found.at = self.seen
        found.seconds = self.seconds
        return True

    def _gap(self, found: _Candidate, index: int) -> str:
        return self.text[found.at - self.base : index]

    def _resolve(self, found: _Candidate, index: int) -> Boundary | None:
        start = found.at - self.base
        if self._spans.blocks(found.at) or index - start > _LOOKAHEAD:
            if not self.text[index].isspace() or index - start > 1 or not self._french_gap():
                self._candidate = None
            return None  # French sets a space before the closing mark
        verdict = judge(found.mark, self.text[start : index + 1], self._lex)
        if verdict is not Verdict.HOLD:
            self._candidate = None
        return self._verdict(found, verdict)

    def _verdict(self, found: _Candidate, verdict: Verdict) -> Boundary | None:
        match verdict:
            case Verdict.SENTENCE:
                return Boundary(found.at, found.seconds, Grade.SENTENCE)
            case Verdict.CLAUSE:
                return Boundary(found.at, found.seconds, Grade.CLAUSE)
        return None

    # Code, tags, silence.

    def _open_literal(self, index: int, ch: str) -> None:
        self._spans.open("`" if ch == "`" else ">", self.base + index, self.seconds, tentative=ch == "<")
        if ch == "`" and self.text[max(0, index - 2) : index + 1] == "```" and self._at_line_start(index - 2):
            self._spans.pop()
            self._begin_silence("```", self.base + index - 2)

    def _at_line_start(self, index: int) -> bool:
        return self.base + index >= self._line and not self.text[max(0, self._line - self.base) : index].strip(" \t>")

    def _in_literal(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        span = self._spans.top
        if span is None:
            return None
        if kind is Kind.NEWLINE or (span.closers == ">" and self.base + index - span.start > _LONG_TAG):
            self._spans.pop()
            return self._take(index, ch, kind)
        if kind is Kind.SPACE:
            self._word_start = self.seen
        if ch != span.closers:
            return None
        self._spans.pop()
        if ch == ">":
            self.seconds = span.seconds
            return self._think(index, span)
        return None

    def _think(self, index: int, span: Span) -> Boundary | None:
        tag = _SILENT_TAG.match(self.text, max(0, span.start - self.base), index + 1)
        if tag is None:
            return None
        self._begin_silence(f"</{tag.group(1).lower()}>", span.start)
        return Boundary(span.start, span.seconds, Grade.LINE) if span.start > self.base else None

    def _begin_silence(self, until: str, start: int) -> None:
        self._until = until
        self._silence = Boundary(start, self.seconds, Grade.OVERFLOW)
        self._candidate = self._connective = None
        self._spans.clear()

    def _in_silence(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        self.seconds = self._silence.seconds
        if kind is Kind.NEWLINE:
            self._line = self.seen
        if ch == self._until[-1]:
            start = index + 1 - len(self._until)
            ended = start >= 0 and self.text[start : index + 1].lower() == self._until
            if ended and (ch == ">" or self._at_line_start(start)):
                self._until = ""
                if self.head_silent and self.silent_end is None:
                    self.silent_end = self.seen
        return None


def _join(mark: Mark, kind: Kind) -> Kind | None:
    """The kind of a mark that is longer by one character, or None when the two do not belong together."""
    if mark.closed:
        return None
    if kind is mark.kind and kind in (Kind.EMOJI, Kind.DASH, Kind.END, Kind.FULL_STOP, Kind.ELLIPSIS):
        return kind
    if mark.kind not in _CLUSTER or kind not in _CLUSTER:
        return None
    return Kind.END if Kind.END in (mark.kind, kind) else Kind.ELLIPSIS
