"""Judges one mark in a stream: is it the end of a phrase, is it not, or must more text be seen first?

Pure functions of the text before and after the mark. A verdict other than `HOLD` is final, whatever follows; so cuts
do not depend on how the text was split into tokens.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum

from voxagent.lexicon import Lexicon
from voxagent.marks import KINDS, QUOTES, WIDE_MARKS, Kind, has_case, is_emoji, is_hiragana, is_unspaced


class Verdict(Enum):
    """What to do at a mark."""

    SENTENCE = "sentence"
    CLAUSE = "clause"
    HOLD = "hold"
    REJECT = "reject"


_WORD_BEFORE = re.compile(r"[^\s(\[{“„«\"‘'*_~`]*$")
_OPENERS = "\"'“„«»‘‚([{*_~¿¡「『（【《<#"
_LIST_MARKER = re.compile(r"\s*(?:>\s*)*\(?(?:\d{1,3}|[A-Za-z])$")
_LABEL = re.compile(r"\s*[^\W\d_]{2,}\s\d{1,2}$")
_INITIALS = re.compile(r"(?:[^\W\d_][.-])*[^\W\d_]$")
_NUMBER = re.compile(r"[-+]?\d[\d.,:/]*$")
_PLAIN = re.compile(r"[^\W\d_]{3,}(?:['’][^\W\d_]+)?$")
_FOOTNOTE = re.compile(r"\[\d*$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]*)?")


@dataclass(slots=True)  # not frozen: made for every mark, and freezing doubles the cost
class Mark:
    """A mark under judgement.

    Attributes:
        kind: Of the mark itself.
        text: The pending text before the mark.
        sign: The mark, without the quotes, brackets and markup that close after it.
        closed: A quotation or bracket closes right after the mark.
        line: The pending text's last line before the mark, or None when its start is unknown.
    """

    kind: Kind
    text: str
    sign: str
    closed: bool
    line: str | None


@dataclass(slots=True)
class Next:
    """What follows a mark: first visible character, the word it opens, is that word complete, and what ends it."""

    char: str
    word: str
    complete: bool
    ended_by: str

    @property
    def lower(self) -> bool:
        return self.char.islower()

    @property
    def upper(self) -> bool:
        return self.char.isupper() or self.char.istitle()


def look(after: str) -> Next | None:
    """Reads the next word behind whitespace and opening marks; None when nothing visible came yet."""
    start = 0
    while start < len(after) and (after[start] in _OPENERS or after[start].isspace()):
        start += 1
    if start >= len(after):
        return None
    word = _WORD.match(after, start)
    if word is None:
        return Next(after[start], "", True, "")
    return Next(after[start], word.group(), word.end() < len(after), after[word.end() : word.end() + 1])


def judge(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    """Judges a mark by what came before it and the text after it (and after its closing quotes)."""
    if not after or _FOOTNOTE.match(after):
        return Verdict.HOLD
    if KINDS[after[0]] is Kind.NEWLINE:
        return Verdict.CLAUSE if mark.kind in _CLAUSES else Verdict.SENTENCE
    return _JUDGES[mark.kind](mark, after, lex)


def safe_when_stalled(mark: Mark, lex: Lexicon) -> bool:
    """Whether a mark with nothing after it may be taken for an end when the text stalls."""
    if mark.kind is Kind.STOP:
        word = _last_word(mark.text)
        spelled_out = len(word) > 1 and word.replace("'", "").isalpha() and not _known(word.casefold(), lex)
        return spelled_out and not lex.stop_is_abbreviation
    return mark.kind in (Kind.END, Kind.FULL_STOP, Kind.ELLIPSIS)


def _last_word(text: str) -> str:
    found = _WORD_BEFORE.search(text[-48:])
    return found.group() if found else ""


def _known(word: str, lex: Lexicon) -> bool:
    listed = word in lex.titles or word in lex.closing or word in lex.either or word in lex.counted
    return listed or bool(lex.suffixes and word.endswith(lex.suffixes))


def _unspaced_after(mark: Mark, after: str) -> Verdict | None:
    """Marks that need no space: wide ones, and any mark before a script without spaces or an emoji."""
    first = after[0]
    kind = KINDS[first]
    if kind is Kind.SPACE:
        return None
    if is_emoji(first):
        return Verdict.SENTENCE
    if mark.sign[-1] not in WIDE_MARKS and not is_unspaced(first):
        return Verdict.REJECT
    if kind not in (Kind.LETTER, Kind.DIGIT, Kind.OPEN, Kind.QUOTE, Kind.MARKUP, Kind.OTHER):
        return Verdict.REJECT
    if mark.closed and is_hiragana(first):
        return Verdict.REJECT
    return Verdict.SENTENCE


def _judge_end(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    verdict = _unspaced_after(mark, after)
    if verdict is not None:
        return verdict
    if not mark.closed and not _names_end(mark):
        return Verdict.SENTENCE
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    if ahead.lower or (mark.closed and not has_case(ahead.char) and not ahead.char.isdigit()):
        return Verdict.REJECT
    return Verdict.SENTENCE


def _names_end(mark: Mark) -> bool:
    """A capitalised word before "!" or "?" may be a name that owns the mark (Yahoo!)."""
    return _last_word(mark.text)[:1].isupper()


def _judge_full_stop(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    if not mark.closed or KINDS[after[0]] is Kind.SPACE:
        return Verdict.SENTENCE
    return _judge_end(mark, after, lex)


def _judge_ellipsis(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    if KINDS[after[0]] is not Kind.SPACE:
        return Verdict.CLAUSE if is_unspaced(after[0]) and not mark.closed else Verdict.REJECT
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    if mark.closed and not ahead.upper:
        return Verdict.REJECT
    return Verdict.SENTENCE if ahead.upper else Verdict.CLAUSE


def _judge_stop(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    if KINDS[after[0]] is not Kind.SPACE:
        joined = is_unspaced(after[0]) and not lex.stop_is_abbreviation and not mark.text[-1:].isdigit()
        return Verdict.SENTENCE if joined or is_emoji(after[0]) else Verdict.REJECT
    if lex.stop_is_abbreviation or _is_marker(mark):
        return Verdict.REJECT
    word = _last_word(mark.text)
    folded = word.casefold()
    plain = bool(_PLAIN.match(word)) and not _known(folded, lex)
    if plain and not mark.closed and word.islower():
        return Verdict.SENTENCE
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    if ahead.lower or not (ahead.word or ahead.char in "-•$€£¥₹—–[<" or is_emoji(ahead.char)):
        return Verdict.REJECT
    if len(word) == 1 and word.islower() and _before_last(mark.text)[-1:].isdigit():
        return Verdict.SENTENCE  # a unit, "until 18 h."
    if (spaced := _spaced_abbreviation(mark.text)) in lex.closing:
        folded = spaced
    if word.isupper() and len(word) > 1 and folded in lex.calendar:
        return _by_starter(ahead, lex)  # a time zone, "4 p.m. EST."
    if _known(folded, lex):
        return _judge_abbreviation(mark, folded, ahead, lex)
    return _judge_short(mark, word, ahead, lex) if not plain else Verdict.SENTENCE


def _spaced_abbreviation(text: str) -> str:
    """The last two words in one, when the first ends in a full stop too ("т. д.")."""
    first = _before_last(text)
    return f"{first}{_last_word(text)}".casefold() if first.endswith(".") else ""


def _is_marker(mark: Mark) -> bool:
    """A list marker ("1.", "a.") or a short label ("Step 1.")."""
    if mark.closed:
        return False
    if mark.line is not None and _LIST_MARKER.fullmatch(mark.line):
        return True
    sentence = mark.text if mark.line is None else mark.line
    return bool(_LABEL.fullmatch(sentence)) and sentence.strip()[:1].isupper()


def _judge_abbreviation(mark: Mark, word: str, ahead: Next, lex: Lexicon) -> Verdict:
    if word in lex.counted and ahead.char.isdigit():
        return Verdict.REJECT
    ambiguous = word in lex.titles and _before_last(mark.text).casefold() not in lex.coordinators
    if word in lex.closing and not ambiguous:
        if not ahead.complete:
            return Verdict.HOLD
        return Verdict.REJECT if ahead.word.casefold() in lex.calendar else Verdict.SENTENCE
    if word in lex.either or word in lex.counted or word not in lex.titles:
        before = _before_last(mark.text)
        if word in lex.titles and not (before[:1].isupper() or before[-1:].isdigit()):
            return Verdict.REJECT
        return _by_starter(ahead, lex)
    return Verdict.REJECT


def _by_starter(ahead: Next, lex: Lexicon) -> Verdict:
    if ahead.char.isdigit():
        return Verdict.REJECT
    if not ahead.complete:
        return Verdict.HOLD
    return Verdict.SENTENCE if ahead.word.casefold().replace("’", "'") in lex.starters else Verdict.REJECT


def _before_last(text: str) -> str:
    words = text[-64:].split()
    return words[-2] if len(words) > 1 else ""


def _judge_short(mark: Mark, word: str, ahead: Next, lex: Lexicon) -> Verdict:
    """The word before the stop is an initial, a number, or something with digits and signs."""
    if _INITIALS.fullmatch(word):
        before = _before_last(mark.text).casefold()
        leans = before in lex.determiners or before in lex.coordinators
        if len(word) == 1 and word.isupper() and _before_last(mark.text)[:1].islower() and not leans:
            return Verdict.SENTENCE
        return _by_starter(ahead, lex) if has_case(word[0]) else Verdict.REJECT
    if _NUMBER.fullmatch(word):
        if ahead.char.isdigit():
            return Verdict.REJECT
        if lex.dot_ordinals and word.isdigit() and len(word) <= 3 and not _before_last(mark.text)[-1:].isdigit():
            return _by_starter(ahead, lex)
    return Verdict.SENTENCE


def _judge_comma(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    first = after[0]
    if KINDS[first] is not Kind.SPACE:
        if is_emoji(first) or (mark.sign not in WIDE_MARKS and not is_unspaced(first)):
            return Verdict.REJECT
        numerals = mark.text[-1:].isnumeric() and first.isnumeric()
        return Verdict.REJECT if numerals else Verdict.CLAUSE
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    if not ahead.word or ahead.char.isdigit():
        return Verdict.REJECT
    if after.lstrip()[0] in QUOTES:
        return Verdict.CLAUSE  # speech
    if _names_place(mark.text) and not ahead.complete:
        return Verdict.HOLD
    if _names_place(mark.text) and ahead.word.casefold() not in lex.coordinators:
        return Verdict.REJECT
    if ahead.upper and not lex.noun_capitals:
        return _judge_capital(ahead)
    return _judge_comma_word(mark, ahead, lex)


_PLACE = re.compile(r"[^\W\d_][\w.]*, ([^\W\d_][\w.]*)$")


def _names_place(text: str) -> bool:
    """The text ends in a place and what it lies in ("Ann Arbor, Michigan"): the next comma belongs to them."""
    found = _PLACE.search(text[-64:])
    return found is not None and found.group()[:1].isupper() and found.group(1)[:1].isupper()


def _judge_capital(ahead: Next) -> Verdict:
    """After a comma a capital is a place, a name or a title, unless it is the pronoun."""
    if ahead.word == "I":
        return Verdict.CLAUSE if ahead.complete else Verdict.HOLD
    return Verdict.CLAUSE if ahead.word[:2] in ("I'", "I’") else Verdict.REJECT


def _judge_comma_word(mark: Mark, ahead: Next, lex: Lexicon) -> Verdict:
    word = ahead.word.casefold()
    last = _last_word(mark.text)
    strict = last.islower() and _before_last(mark.text).casefold() in lex.articles and not _counts(mark.text)
    tag_possible = word in lex.awaited
    if not ahead.complete and (strict or tag_possible):
        return Verdict.HOLD
    if word in lex.tags and not ahead.ended_by.isspace():
        return Verdict.REJECT
    if word in lex.counted and word not in lex.starters:
        return Verdict.REJECT
    opens = word in lex.connectives or word in lex.coordinators or word in lex.subjects or word in lex.determiners
    if strict and not opens:
        return Verdict.REJECT
    return Verdict.CLAUSE


def _counts(text: str) -> bool:
    """The article stands after a number: "$90 a night"."""
    words = text[-64:].split()
    return len(words) > 2 and words[-3][-1:].isdigit()


def _judge_colon(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    first = after[0]
    if KINDS[first] is not Kind.SPACE:
        return Verdict.CLAUSE if mark.sign[0] in WIDE_MARKS and not is_emoji(first) else Verdict.REJECT
    if mark.sign[0] in ";؛":
        return Verdict.CLAUSE
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    short = len(_last_word(mark.text)) <= 3 and ahead.char.isdigit()
    opens = ahead.word or unicodedata.category(ahead.char) == "Sc"
    return Verdict.REJECT if short or not opens else Verdict.CLAUSE


def _judge_dash(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    spaced = mark.text[-1:].isspace()
    first = after[0]
    if KINDS[first] is not Kind.SPACE:
        long = mark.sign[-1] in "—―" or mark.sign == "--"
        return Verdict.CLAUSE if long and not spaced and first.isalpha() else Verdict.REJECT
    if not spaced:
        return Verdict.REJECT
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    return Verdict.CLAUSE if ahead.word and not ahead.char.isdigit() else Verdict.REJECT


def _judge_emoji(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    first = after[0]
    if mark.sign[:1] in "❤♥" or KINDS[first] not in (Kind.SPACE, Kind.LETTER):
        return Verdict.REJECT
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    return Verdict.REJECT if ahead.lower or ahead.char.isdigit() or not ahead.word else Verdict.SENTENCE


def _judge_close(mark: Mark, after: str, lex: Lexicon) -> Verdict:
    """After a bracket of some length, unless a mark follows."""
    if KINDS[after[0]] is not Kind.SPACE:
        return Verdict.REJECT
    ahead = look(after)
    if ahead is None:
        return Verdict.HOLD
    return Verdict.CLAUSE if ahead.word and not ahead.char.isdigit() else Verdict.REJECT


_CLAUSES = frozenset((Kind.COMMA, Kind.COLON, Kind.DASH, Kind.CLOSE))
_JUDGES = {
    Kind.STOP: _judge_stop,
    Kind.END: _judge_end,
    Kind.FULL_STOP: _judge_full_stop,
    Kind.ELLIPSIS: _judge_ellipsis,
    Kind.COMMA: _judge_comma,
    Kind.COLON: _judge_colon,
    Kind.DASH: _judge_dash,
    Kind.EMOJI: _judge_emoji,
    Kind.CLOSE: _judge_close,
}
