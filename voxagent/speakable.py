"""Written text to speakable text, with an index map back to what was written.

Pure: no audio, no clocks.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from voxagent.lexicon import primary_tag
from voxagent.reading import PLAIN, Reading
from voxagent.scripts import script_language
from voxagent.spoken.asian import ASIAN
from voxagent.spoken.calendar import CALENDAR
from voxagent.spoken.draft import Draft
from voxagent.spoken.english import ENGLISH
from voxagent.spoken.forms import FORMS
from voxagent.spoken.markup import MARKUP
from voxagent.spoken.numbers import Wording, cardinal, wording
from voxagent.spoken.others import OTHERS
from voxagent.spoken.rules import ADDRESSES, AMOUNTS, UNSPACED, Rule, abbreviation_rule


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
        return _span(self.pieces, start, end, _SPOKEN, _WRITTEN)

    def spoken_span(self, start: int, end: int) -> tuple[int, int]:
        """The spoken span of the written `[start:end]`; a rewritten unit counts whole.

        Empty, at the place where it would stand, when nothing of it is spoken.
        """
        return _span(self.pieces, start, end, _WRITTEN, _SPOKEN)


_Side = tuple[Callable[[Piece], int], Callable[[Piece], int]]
_WRITTEN: _Side = (attrgetter("w0"), attrgetter("w1"))
_SPOKEN: _Side = (attrgetter("s0"), attrgetter("s1"))


def _span(pieces: tuple[Piece, ...], start: int, end: int, here: _Side, there: _Side) -> tuple[int, int]:
    """Carries a span over from one side of the alignment to the other."""
    first = bisect_right(pieces, start, key=here[1])
    if first == len(pieces):
        edge = there[1](pieces[-1]) if pieces else 0
        return edge, edge
    low = _carry(pieces[first], start, here, there, 0)
    if end <= start:
        return low, low
    last = min(bisect_left(pieces, end, key=here[1]), len(pieces) - 1)
    return low, _carry(pieces[last], min(end, here[1](pieces[last])), here, there, 1)


def _carry(piece: Piece, at: int, here: _Side, there: _Side, edge: int) -> int:
    """A position inside a copy moves along; one inside a unit goes to the unit's edge."""
    copied = piece.w1 - piece.w0 == piece.s1 - piece.s0
    return there[0](piece) + at - here[0](piece) if copied else there[edge](piece)


def speakable(text: str, language: str | None = None, *, silent: int = 0, reading: Reading = PLAIN) -> Speakable:
    """Turns a whole piece of written text into what should be spoken.

    Args:
        text: Markdown or plain text. Nothing in it raises.
        language: BCP 47 tag; None is judged by the script, with Latin taken for English.
        silent: Leading characters that belong to something silent which began earlier (a think block).
        reading: What is read how, where tastes and engines differ.
    """
    tag = script_language(text) if language is None else primary_tag(language)
    words = wording(tag) if reading is PLAIN else wording(tag, reading)
    if not silent and reading.pronunciations is None and _pass(text, 0, len(text), words) == len(text):
        return _copied(text)
    draft = Draft()
    draft.hush(0, silent)
    _compose(draft, text, silent, _grammar(tag), words)
    spoken = draft.finish(len(text))
    if not any(map(str.isalnum, spoken)):
        return Speakable("", (Piece(0, len(text), 0, 0),) if text else ())
    return Speakable(spoken, tuple(Piece(*span) for span in draft.pieces))


def _copied(text: str) -> Speakable:
    """Text that is said as it stands."""
    spoken = text.strip()
    size = len(spoken)
    if not any(map(str.isalnum, spoken)):
        return Speakable("", (Piece(0, len(text), 0, 0),) if text else ())
    start = text.index(spoken)
    pieces = [Piece(start, start + size, 0, size)]
    if start:
        pieces.insert(0, Piece(0, start, 0, 0))
    if start + size < len(text):
        pieces.append(Piece(start + size, len(text), size, size))
    return Speakable(spoken, tuple(pieces))


def prepare(language: str | None = None) -> None:
    """Compiles a language's rules, so that the first phrase does not pay for it (about 50 ms)."""
    tag = primary_tag(language)
    _grammar(tag)
    cardinal(1, tag)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The rules that may start with one sort of character, and one pattern for all of them."""

    rules: tuple[tuple[Rule, re.Pattern[str]], ...]
    any_rule: re.Pattern[str]


_SPACES = (
    Rule("line_break", "wl", r"\s*[\n\r\u2028\u2029]\s*", lambda m, w: "", "."),
    Rule("spaces", "w", r"\s{2,}", lambda m, w: " "),
)
# A lone space before a word or a number starts nothing; it is skipped together with the word before it.
# Scripts without spaces end a word where they meet another script.
_TOKEN = re.compile(
    rf"(\d+)|((?:[{UNSPACED}]+|(?:(?![{UNSPACED}])[^\W\d_]|[\u0900-\u0dff])+)(?: (?=\w))?)|(\s+)|([^\w\s]|_)"
)
_SORTS = " daws"
# Words and marks that start no rule, and the space after them: most of any text. A capitalised word must stand before
# another word (months and weekdays stand before numbers) and be no title; "I" may be a numeral after a name.
# One character class: a lookahead for each letter would cost tenfold.
_SMALL = (
    "[a-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u0386\u0388-\u03ff"
    "\u0400-\u0481\u048a-\u052f\u0531-\u0556\u0561-\u0587\u05d0-\u05ea\u0620-\u064a\u066e-\u06d3\u1e00-\u1fff]"
)
_TAIL = rf"{_SMALL}*(?:['’]{_SMALL}+)?"
_NEXT = r"(?=[\w\"“„«‘'(*¿¡])"
_PLAIN = re.compile(
    rf"(?:(?<![\d\u00b2-\u00be\u2150-\u218b'’\"”′″]) (?={_SMALL}|[A-Z])(?!x ?\d))?"
    rf"(?:(?!v(?:er(?:sion)?)? ){_SMALL}{_TAIL}(?:[,;:!?]|,?[\"”])? {_NEXT}"
    rf"|(?!Dr |M(?:rs?|me|lle) |[IVX]+(?:er|re|e|ème)[ ,])[A-Z]{_SMALL}{_TAIL},? (?={_SMALL}|[A-Z]{_SMALL}|I[ '’])"
    rf"|(?<![^\W\d_] )I(?:['’]{_SMALL}+)? (?={_SMALL})"
    rf"|(?:[.!?…]+[\"”]?|[,;:]) {_NEXT})*"
)
# A word before the mark that ends the text or a stretch of it, and the marks after it.
_LAST = re.compile(rf"({_SMALL}{_TAIL})?([.,!?…]+[\"”]?|[;:])(?=\s(?!\d)|\Z)")


_LANGUAGES: Mapping[str, tuple[Rule, ...]] = {**ASIAN, **OTHERS}


@lru_cache(maxsize=32)
def _grammar(tag: str) -> Mapping[str, _Bucket]:
    own = ENGLISH if tag == "en" else (*_LANGUAGES.get(tag, ()), *CALENDAR, *FORMS)
    abbreviations = wording(tag).abbreviations
    if abbreviations:
        own = (abbreviation_rule(abbreviations), *own) if tag != "en" else own
    rules = (*MARKUP, *ADDRESSES, *own, *AMOUNTS, *_SPACES)
    compiled = [(rule, re.compile(rule.pattern, re.MULTILINE)) for rule in rules]
    return {sort: _bucket([pair for pair in compiled if sort in pair[0].starts]) for sort in "ldaws"}


def _bucket(rules: list[tuple[Rule, re.Pattern[str]]]) -> _Bucket:
    either = "|".join(f"(?P<r{index}>{rule.pattern})" for index, (rule, _) in enumerate(rules))
    return _Bucket(tuple(rules), re.compile(either, re.MULTILINE))


def _compose(draft: Draft, text: str, start: int, buckets: Mapping[str, _Bucket], words: Wording) -> None:
    """Writes `text[start:]` into the draft: what neither a rule nor the dictionary knows is copied."""
    copied = place = start
    size = len(text)
    line_start = True
    finder = words.reading.pronunciations.finder(words.language) if words.reading.pronunciations else None
    known = finder.search(text, place) if finder else None
    while place < size:
        if known is not None and place >= known[0]:
            if place == known[0]:
                draft.copy(copied, text[copied:place])
                draft.say(place, known[1], known[2].spoken(words.reading.phonemes))
                copied = place = known[1]
                line_start = False
            known = finder.search(text, place) if finder else None
            continue
        end = size if known is None else known[0]
        passed = _pass(text, place, end, words)
        if passed > place:
            place, line_start = passed, False
            if place >= end:
                continue
        token = _TOKEN.match(text, place, end)
        sort = _SORTS[token.lastindex or 0] if token else "s"
        applied = _apply(text, place, buckets["l"], words) if line_start and sort != "a" else None
        applied = applied or _apply(text, place, buckets[sort], words)
        if applied is None:
            line_start = line_start and sort == "w"
            place = token.end() if token else place + 1
            continue
        rule, end, spoken = applied
        draft.copy(copied, text[copied:place])
        if spoken.strip():
            draft.say(place, end, spoken)
        else:
            draft.hush(place, end, space=bool(spoken), pause=rule.pause)
        line_start = text[end - 1] in "\n\r" or "l" in rule.starts or "\n" in text[place:end]
        copied = place = end
    draft.copy(copied, text[copied:])


def _pass(text: str, place: int, end: int, words: Wording) -> int:
    """Past words, marks and spaces that start no rule."""
    plain = _PLAIN.match(text, place, end)
    if plain is not None:
        place = plain.end()
    last = _LAST.match(text, place, end)
    if last is None:
        return place
    word = last.group(1) or ""
    if "'" in word or "’" in word:
        word = word.replace("’", "'").rpartition("'")[2]
    return place if word in words.dotted else last.end()


def _apply(text: str, at: int, bucket: _Bucket, words: Wording) -> tuple[Rule, int, str] | None:
    """The bucket's first rule that applies at the place, where its match ends, and what it says."""
    found = bucket.any_rule.match(text, at)
    if found is None or not found.lastgroup:
        return None
    for rule, pattern in bucket.rules[int(found.lastgroup[1:]) :]:
        found = pattern.match(text, at)
        if found is not None and found.end() > at:
            spoken = rule.say(found, words)
            if spoken is not None:
                return rule, found.end(), spoken
    return None
