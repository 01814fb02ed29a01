"""Cuts a stream of text into phrases.

Owns sizes and timers: which of the scanner's boundaries become cuts, and when waiting any longer would leave the
listener in silence. Pure: the caller brings the time. Knows nothing of audio or asyncio.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from voxagent.boundaries import Boundary, Grade, Scanner
from voxagent.lexicon import lexicon, primary_tag
from voxagent.marks import KINDS, WEIGHTS_MS, Kind
from voxagent.marks import speech_seconds as speech_seconds
from voxagent.reading import PLAIN, Reading
from voxagent.scripts import first_letter_language
from voxagent.speakable import Speakable, prepare, speakable


@dataclass(frozen=True, slots=True)
class Phrase:
    """A stretch of the turn's text that is sent to the model at once.

    Attributes:
        text: As written.
        start: Offset of its first character in the turn's written text.
        said: What to say, or what tells it when somebody asks: `speakable`.
        reason: Why it was cut here: ``sentence``, ``clause``, ``line``, ``silent`` (the end of a block
            that is not spoken), ``stall``, ``runway``, ``cap``, ``flush``, ``end``.
        final: Nothing follows in this turn.
    """

    text: str
    start: int
    said: Speakable | Callable[[], Speakable] = field(compare=False, repr=False)
    reason: str
    final: bool = False

    @property
    def speakable(self) -> Speakable:
        """What to say, and the map between both; its written indices count from 0 at `start`."""
        if not isinstance(self.said, Speakable):
            object.__setattr__(self, "said", self.said())
        return self.said  # type: ignore[return-value]  # set above

    @property
    def end(self) -> int:
        """One past the last character's offset in the turn's written text."""
        return self.start + len(self.text)

    @property
    def spoken(self) -> str:
        """What the voice says; empty when the phrase is silent (markup, punctuation, emoji)."""
        return self.speakable.text


FIRST_S = 0.5
"""Shortest first phrase, in seconds of speech without the pause at its mark, which is 0.1 s or more."""
TAIL_S = 0.6
"""A shorter sentence joins its neighbour, seconds of speech."""
MAX_PHRASE_S = 10.0
"""Longest phrase, in seconds of speech, where the model sets no limit."""

_BLOCK = 512  # characters scanned at once; bounds what a cut has to copy
_TAG_ROOM = 16  # characters kept of a long silent block, so that its closing tag is recognised whole
_CONNECTIVE_MS = 2000
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")
_REASONS = {
    Grade.SENTENCE: "sentence",
    Grade.LINE: "line",
    Grade.SILENT: "silent",
    Grade.CLAUSE: "clause",
    Grade.CONNECTIVE: "clause",
    Grade.WORD: "cap",
}


class PhraseSplitter:
    """Cuts one turn's text, fed in any pieces, into phrases.

    The phrases put together are the text fed, character by character, except that a surrogate without its other half
    becomes U+FFFD. Without timers the cuts depend on the text alone, not on the pieces. Whitespace at a cut belongs to
    the phrase that follows.

    Args:
        language: BCP 47 tag of the text; None is judged by the script, with Latin taken for English.
        first_s: The first phrase is released at a clause end once it lasts this long.
        max_phrase_s: No phrase is longer; endless text is cut at the best word boundary.
        comfortable_s: Later phrases are cut at clause ends only from this length on.
        tail_s: A shorter sentence joins its neighbour.
        low_runway_s: Below this much audio left, `poll` releases clauses that are shorter than `comfortable_s`.
        stall_runway_s: Below this much audio left, `poll` releases a stalled text up to the last word.
        reading: How the text is read aloud where tastes and engines differ.

    Raises:
        ValueError: A length is not positive, or `max_phrase_s` is below one second.
    """

    def __init__(
        self,
        language: str | None = None,
        *,
        first_s: float = FIRST_S,
        max_phrase_s: float = MAX_PHRASE_S,
        comfortable_s: float = 2.75,
        tail_s: float = TAIL_S,
        low_runway_s: float = 1.0,
        stall_runway_s: float = 0.5,
        reading: Reading = PLAIN,
    ) -> None:
        if min(first_s, comfortable_s, tail_s, low_runway_s, stall_runway_s) <= 0 or max_phrase_s < 1:
            raise ValueError("phrase lengths and runways must be positive, and max_phrase_s at least 1")
        self._language = language
        prepare(language)
        self._first_ms, self._max_ms = round(1000 * first_s), round(1000 * max_phrase_s)
        self._comfortable_ms, self._tail_ms = round(1000 * min(comfortable_s, max_phrase_s)), round(1000 * tail_s)
        self._low_runway_s, self._stall_runway_s = low_runway_s, stall_runway_s
        self._reading = reading
        self._scanner = Scanner(lexicon(primary_tag(language)), reads_code=reading.code == "read")
        self._undecided = language is None
        self._start_ms = 0
        self._set_limits()
        self._spoke = False
        self._soft: Boundary | None = None
        self._half = ""
        self._room = self._quiet = 0  # plain words that need not be looked at yet; in which no clause can open either
        self._last_push_s = math.inf
        self._gap_s = 0.1
        self._stall_at_s: float | None = None  # by default a while after the last push
        self._runway_at_s: float | None = None

    @property
    def pending(self) -> str:
        """Text fed and not yet released."""
        return self._scanner.text + ("\ufffd" if self._half else "")

    @property
    def next_deadline_s(self) -> float | None:
        """When `poll` is worth calling; None when no timer is pending."""
        if not self._scanner.text:
            return None
        due_s = self._stall_s if self._runway_at_s is None else min(self._stall_s, self._runway_at_s)
        return due_s if math.isfinite(due_s) else None

    @property
    def _stall_s(self) -> float:
        """When the text counts as stalled: after three times the usual gap between tokens, within limits."""
        if self._stall_at_s is not None:
            return self._stall_at_s
        return self._last_push_s + min(max(3 * self._gap_s, 0.25), 0.6)

    def push(self, delta: str, now_s: float = 0.0) -> list[Phrase]:
        """Takes in the next piece of text and returns the phrases that it completed."""
        if not delta:
            return []
        out: list[Phrase] = []
        size = len(delta)
        if size < self._room and delta.isascii() and (delta.isalpha() or self._plain_words(delta, size)):
            self._scanner.text += delta  # words alone are no news: looked at with what follows
            self._room -= size
            self._quiet -= size
        else:
            self._feed(self._whole(delta), out)
            self._room, self._quiet = (0, 0) if self._half else self._scanner.room
        if now_s > self._last_push_s:
            self._gap_s += 0.2 * (min(now_s - self._last_push_s, 1.0) - self._gap_s)
        self._last_push_s = now_s
        self._stall_at_s = None
        self._runway_at_s = now_s if self._soft is not None else None
        return out

    def _plain_words(self, delta: str, size: int) -> bool:
        return delta.replace(" ", "").isalpha() and (size < self._quiet or not self._scanner.may_open(delta))

    def likely(self) -> Phrase | None:
        """The phrase that the pending text is about to become, if it ends in a mark that only awaits its judgement.

        A model can take it in while the next token is on its way. Nothing is released, and it may turn out otherwise.
        """
        mark = self._scanner.stalled_mark() if not self._scanner.unseen else None
        if mark is None or self._size(mark) <= 0 or not self._fits(mark):
            return None
        text = self._scanner.text[: mark.at - self._scanner.base]
        return Phrase(text, self._scanner.base, self._speakable(text), _REASONS[mark.grade])

    def expected(self, text: str) -> Phrase | None:
        """The phrase that `text`, pushed next and flushed, would become; None while other text is pending."""
        if self._scanner.text or self._half or not text:
            return None
        return Phrase(text, self._scanner.base, self._speakable(text), "flush")

    def poll(self, now_s: float, runway_s: float) -> list[Phrase]:
        """Releases what should not wait any longer.

        Args:
            now_s: The time, on the clock that `push` was given.
            runway_s: Audio not yet played, in seconds, this splitter's released phrases included.
        """
        out: list[Phrase] = []
        self._catch_up(out)
        if now_s >= self._stall_s:
            if runway_s < self._stall_runway_s:
                self._stall_at_s = math.inf
                self._release_stalled(out)
            else:
                self._stall_at_s = now_s + runway_s - self._stall_runway_s
        if self._soft is not None and not out:
            if runway_s >= self._low_runway_s:
                self._runway_at_s = now_s + runway_s - self._low_runway_s
            else:
                self._runway_at_s = None
                if self._size(self._soft) >= (self._tail_ms if self._spoke else self._first_ms):
                    self._cut(self._soft, "runway", out)
        return out

    def flush(self, now_s: float = 0.0) -> list[Phrase]:
        """Releases everything pending now, held groups included; the turn goes on."""
        out: list[Phrase] = []
        self._catch_up(out)
        self._cut(Boundary(self._scanner.seen, self._scanner.ms, Grade.WORD), "flush", out)
        return out

    def end(self, now_s: float = 0.0) -> list[Phrase]:
        """Releases the rest; its last phrase is `final`. Empty when nothing is pending."""
        out: list[Phrase] = []
        self._catch_up(out)
        if self._half:
            self._half = ""
            self._feed("\ufffd", out)
        last = self._scanner.last_mark()
        if last is not None and self._fits(last) and self._scanner.ms - last.ms >= self._tail_ms:
            self._cut(last, _REASONS[last.grade], out)
        rest = Boundary(self._scanner.seen, self._scanner.ms, Grade.WORD)
        self._cut(rest, "end", out, final=True)
        return out

    # Text in.

    def _whole(self, delta: str) -> str:
        """Joins surrogates that came in two pieces; a half at the end waits for its other half."""
        text = self._half + delta
        self._half = ""
        if text.isascii() or _HALF.search(text) is None:
            return text
        text = _PAIR.sub(lambda m: m.group().encode("utf-16", "surrogatepass").decode("utf-16"), text)
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return _HALF.sub("\ufffd", text)

    def _feed(self, text: str, out: list[Phrase]) -> None:
        for start in range(0, len(text), _BLOCK):
            self._scanner.text += text[start : start + _BLOCK]
            if self._undecided:
                self._decide_language()
            self._catch_up(out)

    def _decide_language(self) -> None:
        """The first letter of the turn decides by whose rules it is cut."""
        tag = first_letter_language(self._scanner.text)
        if tag is not None:
            self._undecided = False
            self._scanner.use(lexicon(tag))

    def _catch_up(self, out: list[Phrase]) -> None:
        self._room = self._quiet = 0
        while (boundary := self._scanner.advance()) is not None:
            self._consider(boundary, out)

    def _consider(self, found: Boundary, out: list[Phrase]) -> None:
        if found.grade is Grade.OVERFLOW:
            self._overflow(found, out)
        elif found.at <= self._scanner.base:
            return
        elif self._size(found) <= 0:  # silent so far: a block is done with, anything less joins what follows
            if found.grade is Grade.SILENT:
                self._cut(found, _REASONS[found.grade], out)
        elif self._fits(found):
            self._cut(found, _REASONS[found.grade], out)
        else:
            self._soft = found

    def _size(self, boundary: Boundary) -> int:
        """Milliseconds of speech up to the boundary."""
        return boundary.ms - self._start_ms

    def _fits(self, found: Boundary) -> bool:
        if not self._spoke:
            least = self._first_ms
        elif found.grade >= Grade.SILENT:
            least = self._tail_ms
        else:
            least = self._comfortable_ms
        return self._size(found) >= least

    # Text out.

    def _cut(self, place: Boundary, reason: str, out: list[Phrase], *, final: bool = False) -> None:
        scanner = self._scanner
        start = scanner.base
        text = scanner.text[: place.at - start]
        if not text:
            return
        silent = 0
        if scanner.head_silent:
            silent = len(text) if scanner.silent_end is None else min(len(text), scanner.silent_end - start)
        out.append(Phrase(text, start, self._speakable(text, silent), reason, final))
        if not self._spoke:
            self._spoke = self._size(place) > 0 and any(map(str.isalnum, text))
        scanner.drop(place.at)
        self._start_ms = place.ms
        self._set_limits()
        if self._soft is not None and self._soft.at <= place.at:
            self._soft = self._runway_at_s = None

    def _speakable(self, text: str, silent: int = 0) -> Callable[[], Speakable]:
        return partial(speakable, text, self._language, silent=silent, reading=self._reading)

    def _set_limits(self) -> None:
        self._scanner.limit_ms = self._start_ms + self._max_ms
        self._scanner.connective_ms = self._start_ms + min(_CONNECTIVE_MS, self._max_ms // 2)

    def _overflow(self, found: Boundary, out: list[Phrase]) -> None:
        scanner = self._scanner
        chars = scanner.seen - scanner.base
        if scanner.silent:
            if chars > scanner.limit_chars:
                self._cut(Boundary(scanner.seen - _TAG_ROOM, scanner.ms, Grade.WORD), "cap", out)
            return
        hard = chars > scanner.limit_chars or (self._size(found) >= 1.5 * self._max_ms and not scanner.literal)
        place = self._best_place(hard)
        if place is not None:
            self._cut(place, "cap", out)
            if hard:
                scanner.forget_spans()

    def _best_place(self, hard: bool) -> Boundary | None:
        """Where to cut text that has grown too long: a clause, a word, at worst between two characters."""
        scanner = self._scanner
        least = 0 if hard else self._max_ms // 4
        for place in (self._soft, scanner.word, scanner.rough if hard else None):
            if place is not None and place.at > scanner.base and self._size(place) >= least:
                return place
        if not hard and (scanner.held or not self._endless_word()):
            return None
        return self._between_characters(hard)

    def _endless_word(self) -> bool:
        """Whether the text has no spaces to wait for."""
        return self._scanner.word_length > 40

    def _between_characters(self, hard: bool) -> Boundary | None:
        scanner = self._scanner
        index = scanner.seen - scanner.base - 1
        if index <= 0:
            return None
        before, after = scanner.text[index - 1], scanner.text[index]
        joined = KINDS[after] is Kind.EXTEND or before == "\u200d" or (_is_flag(before) and _is_flag(after))
        if joined and index < 2 * scanner.limit_chars:
            return None
        if before.isdigit() and after.isdigit() and not hard:
            return None
        return Boundary(scanner.seen - 1, scanner.ms - WEIGHTS_MS[after], Grade.WORD)

    # Timers.

    def _release_stalled(self, out: list[Phrase]) -> None:
        scanner = self._scanner
        places = [scanner.stalled_mark(), self._soft, scanner.word]
        good = [p for p in places if p is not None and p.at > scanner.base and self._size(p) > 0]
        if good:
            best = max(good, key=lambda p: p.at)
            self._cut(best, "stall", out)


def _is_flag(ch: str) -> bool:
    return 0x1F1E6 <= ord(ch) <= 0x1F1FF
