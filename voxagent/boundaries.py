"""Finds phrase boundaries in a stream of text, one character after another.

Owns what is open at a position (quotes, brackets, markdown, code, tags, think blocks) and the mark being judged.
Decides nothing about sizes and timers. Looks at each character once; keeps only the pending text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from voxagent.addresses import ADDRESS, ADDRESS_START, ADDRESS_WORD
from voxagent.lexicon import Lexicon
from voxagent.marks import KINDS, LOUD, LOUDER, WEIGHTS_MS, Kind, speech_ms
from voxagent.spans import OpenSpans, Span
from voxagent.stretches import Stretches
from voxagent.verdicts import Mark, Verdict, judge, safe_when_stalled


class Grade(IntEnum):
    """How good a place for a cut is; greater is better."""

    OVERFLOW = 0  # no place at all: the pending text has reached a limit
    WORD = 1
    CONNECTIVE = 2
    CLAUSE = 3
    SILENT = 4  # the end of a think block or a code fence
    LINE = 5
    SENTENCE = 6


@dataclass(slots=True)  # not frozen: made for every mark, and freezing doubles the cost
class Boundary:
    """A place for a cut.

    Attributes:
        at: Offset in the turn.
        ms: Estimated speech of the turn up to here, in milliseconds.
        grade: How good a place.
    """

    at: int
    ms: int
    grade: Grade


@dataclass(slots=True)
class _Candidate:
    """A mark under judgement and where the cut would be."""

    mark: Mark
    at: int
    ms: int


_SILENT_TAG = re.compile(r"<(think|thinking|thought|reasoning)\b[^>]*>$", re.IGNORECASE)
_EMOTICON = re.compile(r"(?:^|\s)[:;]-?[)D]$")
_LOOKAHEAD = 64  # characters after a mark within which it is judged; keeps the work linear
_OPENING = 48  # characters that the beginning of a clause takes
_LONG_TAG = 300
_BLOCK = 400  # characters that may wait to be looked at
_CLUSTER = frozenset((Kind.STOP, Kind.END, Kind.FULL_STOP, Kind.ELLIPSIS))
_QUIET = frozenset((Kind.LETTER, Kind.DIGIT, Kind.EXTEND, Kind.OTHER))
_MARKS = _CLUSTER | {Kind.COMMA, Kind.COLON, Kind.DASH, Kind.EMOJI}
_CLOSING = frozenset((Kind.CLOSE, Kind.OPEN, Kind.QUOTE, Kind.MARKUP))


class Scanner:
    """Walks over the text and reports boundaries as soon as they are certain.

    Offsets are counted from the start of the turn; `base` is that of `text[0]`.
    """

    def __init__(self, lex: Lexicon, *, reads_code: bool = False) -> None:
        self.use(lex)
        self._reads_code = reads_code
        self.text = ""
        self.base = 0
        self.seen = 0
        """Offset one past the last character looked at."""
        self.ms = 0
        """Milliseconds of speech in all characters seen."""
        self.limit_ms = 1 << 62
        """Value of `ms` from which every character reports an overflow."""
        self.limit_chars = 2000
        """Pending characters from which every character reports an overflow."""
        self.connective_ms = 1 << 62
        """Value of `ms` from which words like "because" are reported."""
        self.head_silent = False
        """`text` begins inside a think block or a code fence."""
        self.silent_end: int | None = None
        """Where the silent block that was open at `base` ended."""
        self._spans = OpenSpans()
        self._candidate: _Candidate | None = None
        self._line = 0
        self._word_start = 0
        self._solid = 0  # where the last visible character before whitespace ended
        self._plain = True  # nothing loud in the current word so far
        self._free = Stretches()
        self._connected = 0
        self._bracket: Boundary | None = None  # before an open bracket whose words are being counted
        self._bracket_words = 0
        self._until = ""
        self._silence = Boundary(0, 0, Grade.OVERFLOW)

    def use(self, lex: Lexicon) -> None:
        """Judges by this language from here on."""
        self._lex = lex
        self._clause = lex.clause_opener
        self._next = LOUD if lex.particles else LOUDER

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
        return start >= 0 and ADDRESS.match(self.text, start, self.seen - self.base) is not None

    @property
    def word_length(self) -> int:
        """Characters since the last whitespace."""
        return self.seen - max(self._word_start, self.base)

    @property
    def word(self) -> Boundary | None:
        """The last boundary between words outside of held groups, where stalled text may be cut."""
        found = self._free.last_word(self.text, self.base, self._may_end)
        return Boundary(*found, Grade.WORD) if found is not None else None

    @property
    def rough(self) -> Boundary | None:
        """The last whitespace of any kind."""
        if self._solid <= self.base:
            return None
        ms = self.ms - speech_ms(self.text[self._solid - self.base : self.seen - self.base])
        return Boundary(self._solid, ms, Grade.WORD)

    @property
    def unseen(self) -> int:
        """Characters not looked at yet."""
        return self.base + len(self.text) - self.seen

    def stalled_mark(self) -> Boundary | None:
        """The mark under judgement, if it may pass for an end when nothing follows."""
        found = self._candidate
        if found is None or self._spans.blocks(found.at) or not safe_when_stalled(found.mark, self._lex):
            return None
        if self.text[found.at - self.base : self.seen - self.base].strip():
            return None
        return Boundary(found.at, found.ms, Grade.SENTENCE)

    def last_mark(self) -> Boundary | None:
        """Judges the mark under judgement as if the text ended here."""
        found, self._candidate = self._candidate, None
        if found is None or self._spans.blocks(found.at):
            return None
        after = self.text[found.at - self.base : self.seen - self.base] + "\n"
        return self._verdict(found, judge(found.mark, after, self._lex))

    def drop(self, at: int) -> None:
        """Forgets the text before the offset `at`."""
        self.head_silent = self.silent and at > self._silence.at
        self.silent_end = None
        self.text = self.text[at - self.base :]
        self.base = at
        if self._candidate is not None and self._candidate.at <= at:
            self._candidate = None
        self._free.drop(at)

    def forget_spans(self) -> None:
        """Takes everything open for stray marks."""
        self._spans.clear()

    # The walk.

    @property
    def room(self) -> tuple[int, int]:
        """How many letters and spaces of ASCII may come before they are news: before a limit is near, and before a
        clause can open in them (from there on `may_open` tells)."""
        waits = self._candidate is not None or self._bracket is not None or self._spans.tentative
        if waits or self._until or not self._plain:
            return 0, 0
        room = min((self.limit_ms - self.ms) // WEIGHTS_MS["a"], _BLOCK)
        return room, room if self._clause is None else (self.connective_ms - self.ms) // WEIGHTS_MS["a"]

    def may_open(self, words: str) -> bool:
        """Whether a clause may open in the words, if they came next."""
        opener = self._opener
        return opener is not None and opener.search(self.text[-_OPENING:] + words) is not None

    @property
    def _opener(self) -> re.Pattern[str] | None:
        """What a clause begins with here: after "If ..." also what no list of words tells from an object."""
        subordinate = self._lex.subordinate
        hangs = subordinate is not None and subordinate.match(self.text) is not None
        return self._lex.main_opener if hangs else self._clause

    def advance(self) -> Boundary | None:
        """Looks at characters until a boundary is certain; None when all text is seen."""
        text, base = self.text, self.base
        size = len(text)
        while (index := self.seen - base) < size:
            if self._candidate is None and not self._until and not self._spans.tentative:
                found = self._skip(index)
                if found is not None:
                    return found
                index = self.seen - base
                if index == size:
                    return None
            ch = text[index]
            self.seen += 1
            self.ms += WEIGHTS_MS[ch]
            found = self._step(index, ch, KINDS[ch])
            if found is not None:
                return found
            if self.ms >= self.limit_ms or index >= self.limit_chars:
                return Boundary(self.seen, self.ms, Grade.OVERFLOW)
        return None

    def _skip(self, index: int) -> Boundary | None:
        """Passes over words and spaces, at C speed, as long as nothing but a clause can begin in them."""
        text = self.text
        loud = (self._next if self._plain and self._bracket is None else LOUD).search(text, index)
        end = len(text) if loud is None else loud.start()
        if end > self.limit_chars:
            end = self.limit_chars
        run = text[index:end]
        ms = self.ms + sum(map(WEIGHTS_MS.__getitem__, run))
        if ms >= self.limit_ms:
            end, ms = self._short_of_limit(index)
            run = text[index:end]
        if end <= index:
            return None
        found, last = None, run.rfind(" ")
        if ms >= self.connective_ms and (last >= 0 or not run.isascii()) and (opener := self._opener) is not None:
            found, end, ms = self._conjoin(opener, index, end, ms)
            run = text[index:end]
            last = run.rfind(" ")
        if not self._spans:
            self._free.note(self.base + index, self.base + end, ms)
        if last >= 0:
            self._word_start = self.base + index + last + 1
            body = len(run[:last].rstrip(" "))
            if body or (index and not text[index - 1].isspace()):
                self._solid = self.base + index + body
        self.ms = ms
        self.seen = self.base + end
        return found

    def _leans(self, at: int) -> bool:
        """Whether the word before the place goes on with what follows ("in | which", "let me know | if")."""
        word = self.text[max(0, self.text.rfind(" ", 0, at) + 1) : at].casefold()
        return word in self._lex.determiners or word in self._lex.asking

    def _short_of_limit(self, index: int) -> tuple[int, int]:
        """The place before the character that reaches the limit, and the speech up to there."""
        ms = self.ms
        while (after := ms + WEIGHTS_MS[self.text[index]]) < self.limit_ms:
            ms = after
            index += 1
        return index, ms

    def _conjoin(self, opener: re.Pattern[str], index: int, end: int, ms: int) -> tuple[Boundary | None, int, int]:
        """Finds the first word boundary at which the next words show that a clause began there."""
        text, base = self.text, self.base
        if self._spans:
            return None, end, ms
        for found in opener.finditer(text, max(0, index - _LOOKAHEAD, self._connected - base), end):
            at = found.start()
            here = ms - speech_ms(text[at:end])
            if here >= self.connective_ms and found.end() > index and not self._leans(at):
                self._connected = base + at + 1
                after = ms - speech_ms(text[found.end() : end])
                return Boundary(base + at, here, Grade.CONNECTIVE), found.end(), after
        return None, end, ms

    def _step(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        if kind not in _QUIET:
            self._plain = False
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
        if found is None or (also is not None and also.at == found.at and also.grade > found.grade):
            return also
        return found

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
        return self._before_address(index, ch) if ch in "`@/" else None

    def _before_address(self, index: int, ch: str) -> Boundary | None:
        """An address or code is read apart: the word boundary before it is a clause end."""
        start = self._word_start - self.base
        if ch == "`":
            opens = start == index
        elif ch == "@":
            opens = 0 <= start < index and self.text[index - 1].isalnum()
        else:
            opens = start >= 0 and ADDRESS_START.match(self.text, start, index + 1) is not None
        before = self.rough if opens else None
        if before is None or len(self._spans) > (ch == "`"):
            return None
        return Boundary(before.at, before.ms, Grade.CLAUSE)

    # Whitespace.

    def _newline(self, index: int) -> Boundary | None:
        self._touch_solid(index)
        self._spans.clear()
        self._candidate = self._bracket = None
        self._line = self._word_start = self.seen
        self._plain = True
        if self._solid <= self.base:
            return None
        return Boundary(self._solid, self.ms, Grade.LINE)

    def _touch_solid(self, index: int) -> bool:
        """Notes where the last visible character ended; False inside a run of whitespace."""
        if index and KINDS[self.text[index - 1]] in (Kind.SPACE, Kind.NEWLINE):
            return False
        self._solid = self.base + index
        return True

    def _space(self, index: int) -> Boundary | None:
        if self._bracket is not None:
            return self._in_bracket()
        start, plain = self._word_start - self.base, self._plain
        self._word_start, self._plain = self.seen, True
        if not self._touch_solid(index) or not index or self._spans or self._candidate is not None:
            return None
        self._free.note(self.seen - 1, self.seen, self.ms)
        word = self.text[max(0, start) : index]
        if self._lex.particles and word.endswith(self._lex.particles):
            return Boundary(self.seen - 1, self.ms, Grade.SENTENCE)
        if not plain and (word[-1:] == "`" or ADDRESS_WORD.match(word)):
            return Boundary(self.seen - 1, self.ms, Grade.CLAUSE)
        return None

    def _in_bracket(self) -> Boundary | None:
        """A bracket of three words or more is read apart: the word boundary before it is a clause end."""
        self._word_start, self._plain = self.seen, True
        self._bracket_words += 1
        before = self._bracket
        if before is None or self._bracket_words < 2:
            return None
        self._bracket = None
        return Boundary(before.at, before.ms, Grade.CLAUSE) if before.at > self.base else None

    def _may_end(self, word: str) -> bool:
        """Whether stalled text may be cut after the word: no number, no sign, no article before a noun."""
        if not word[-1].isalpha() or word.casefold() in self._lex.determiners:
            return False
        return word.isalpha() or (not any(map(str.isdigit, word)) and ADDRESS_WORD.match(word) is None)

    # Marks.

    def _mark(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        if kind is Kind.DASH and not self.text[max(0, self._line - self.base) : index].strip(" \t>"):
            return None
        self._consider(index, index + 1, kind)
        if ch == "." and self._word_start >= self.base:
            return self._before_address(index, ch)
        if kind is Kind.FULL_STOP and not self._spans and self._candidate is not None:
            # Nothing but an end, and nothing can hold it: no look-ahead.
            found, self._candidate = self._candidate, None
            return Boundary(found.at, found.ms, Grade.SENTENCE)
        return None

    def _consider(self, start: int, end: int, kind: Kind) -> None:
        line = self.text[self._line - self.base : start] if self._line >= self.base else None
        mark = Mark(kind, self.text[:start], self.text[start:end], False, line)
        self._candidate = _Candidate(mark, self.base + end, self.ms)

    def _toggle(self, index: int, ch: str, kind: Kind) -> Span | None:
        before = self.text[index - 1] if index else " "
        closed = self._spans.toggle(ch, kind, before, self.base + index, self.ms)
        self._bracket = None
        if closed is None and ch in "(（" and self._solid > self.base and len(self._spans) == 1:
            self._bracket, self._bracket_words = self.rough, 0
        if closed is not None and ch == ")" and self.text[: max(0, closed.start - self.base)].endswith("]"):
            self.ms = closed.ms  # the address of a markdown link is not spoken
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
        elif ch == "'" and mark.kind in _CLUSTER and not mark.closed:
            found.mark = Mark(mark.kind, mark.text, mark.sign, True, mark.line)
        elif (joined := _join(mark, kind)) is not None:
            found.mark = Mark(joined, mark.text, mark.sign[:1] + ch, False, mark.line)
        elif kind is not Kind.EXTEND:
            return False
        found.at = self.seen
        found.ms = self.ms
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
                return Boundary(found.at, found.ms, Grade.SENTENCE)
            case Verdict.CLAUSE:
                return Boundary(found.at, found.ms, Grade.CLAUSE)
        return None

    # Code, tags, silence.

    def _open_literal(self, index: int, ch: str) -> None:
        self._spans.open("`" if ch == "`" else ">", self.base + index, self.ms, tentative=ch == "<")
        if ch == "`" and self.text[max(0, index - 2) : index + 1] == "```" and self._at_line_start(index - 2):
            self._spans.pop()
            if not self._reads_code:
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
            self.ms = span.ms
            return self._think(index, span)
        return None

    def _think(self, index: int, span: Span) -> Boundary | None:
        tag = _SILENT_TAG.match(self.text, max(0, span.start - self.base), index + 1)
        if tag is None:
            return None
        self._begin_silence(f"</{tag.group(1).lower()}>", span.start)
        return Boundary(span.start, span.ms, Grade.LINE) if span.start > self.base else None

    def _begin_silence(self, until: str, start: int) -> None:
        self._until = until
        self._silence = Boundary(start, self.ms, Grade.OVERFLOW)
        self._candidate = None
        self._spans.clear()

    def _in_silence(self, index: int, ch: str, kind: Kind) -> Boundary | None:
        self.ms = self._silence.ms
        if kind is Kind.NEWLINE:
            self._line = self.seen
        if ch == self._until[-1]:
            start = index + 1 - len(self._until)
            ended = start >= 0 and self.text[start : index + 1].lower() == self._until
            if ended and (ch == ">" or self._at_line_start(start)):
                self._until = ""
                if self.head_silent and self.silent_end is None:
                    self.silent_end = self.seen
                return Boundary(self.seen, self.ms, Grade.SILENT)
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
