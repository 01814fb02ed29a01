"""Text to words with phonemes, keeping where in the text each word stands.

Owns tokens, words and the small protocol that every grapheme-to-phoneme engine implements. Engines themselves live in
`lexicon` and `espeak`. Nothing here raises for any text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from num2words import num2words

MAX_LETTERS = 40
"""Longer words are garbage: only their first letters are spoken."""

# Stronger marks come first: of "?!," the question mark is kept.
_MARKS = "?!.:;,"
_SAME_MARK = {
    "…": ",",
    "—": ",",
    "–": ",",
    "。": ".",
    "、": ",",
    "؟": "?",
    "،": ",",
    "؛": ";",
    "।": ".",
    "(": ",",
    ")": ",",
}
_TOKEN = re.compile(
    r"\[\[(?P<ipa>[^\[\]\n]{1,200})\]\]"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
    r"|(?P<word>(?:[^\W\d_]|[\u0300-\u036f])+(?:['’ʼ.&\-‑](?:[^\W\d_]|[\u0300-\u036f])+)*(?:(?<=[sS])['’])?)"
    r"|(?P<mark>[^\w\s])"
)
_LONGEST_NUMBER = 15


@dataclass(frozen=True, slots=True)
class Token:
    """A word to pronounce.

    Attributes:
        start: First character in the text.
        end: One past the last.
        text: Its letters.
        mark: The punctuation after it, one of ``, . ? ! ; :`` or empty.
        phonemes: IPA, when the text brings it (``[[həˈloʊ]]``).
    """

    start: int
    end: int
    text: str
    mark: str = ""
    phonemes: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its phonemes.

    Attributes:
        start: First character in the text.
        end: One past the last.
        phonemes: As the voice's phoneme table names them; without blanks at either end.
        mark: As `Token.mark`.
    """

    start: int
    end: int
    phonemes: str
    mark: str = ""


class G2P(Protocol):
    """Pronounces tokens. Never raises for a token, whatever its letters; leaves out what it cannot say."""

    def __call__(self, tokens: Sequence[Token]) -> list[Word]: ...


def tokenize(text: str, language: str = "en") -> list[Token]:
    """Splits text into words to pronounce.

    Digits are spelled out in the language; marks go to the word before them; everything else is skipped.
    """
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        if match.lastgroup == "mark":
            _add_mark(tokens, text, match.group(), start, end)
        elif match.lastgroup == "ipa":
            tokens.append(Token(start, end, "", phonemes=match.group("ipa").strip()))
        elif match.lastgroup == "number":
            tokens.extend(Token(start, end, word) for word in _number_words(match.group(), language))
        else:
            tokens.append(Token(start, end, match.group()[:MAX_LETTERS]))
    return tokens


def _add_mark(tokens: list[Token], text: str, found: str, start: int, end: int) -> None:
    """Gives the last token its mark, if the character is one and stands where a pause can be."""
    folded = _SAME_MARK.get(found) or unicodedata.normalize("NFKC", found)
    if not tokens or len(folded) != 1 or folded not in _MARKS:
        return
    last = tokens[-1]
    if text[start - 1 : start].isdigit() and text[end : end + 1].isdigit():
        return  # "12:30"
    if not last.mark or _MARKS.index(folded) < _MARKS.index(last.mark):
        tokens[-1] = replace(last, mark=folded)


def pronounce(tokens: deque[Token], most: int, g2p: G2P) -> list[Word]:
    """Takes up to `most` tokens off the front; those that bring their phonemes need no engine."""
    if tokens and tokens[0].phonemes:
        token = tokens.popleft()
        return [Word(token.start, token.end, token.phonemes, token.mark)]
    run: list[Token] = []
    while tokens and len(run) < most and not tokens[0].phonemes:
        run.append(tokens.popleft())
    return g2p(run)


def _number_words(digits: str, language: str) -> list[str]:
    """What is left of numbers when the text was not made speakable: read plainly."""
    plain = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in digits)
    whole, point, fraction = plain.replace(",", "").partition(".")
    try:
        if len(whole) > _LONGEST_NUMBER or (len(whole) > 1 and whole.startswith("0")) or "." in fraction:
            spoken = " ".join(num2words(int(c), lang=language) for c in plain if c.isdigit())
        else:
            spoken = num2words(float(f"{whole}.{fraction}") if point else int(whole), lang=language)
    except (NotImplementedError, OverflowError, ValueError):
        return []
    return re.findall(r"[^\W\d_]+", spoken)


class LetterG2P:
    """For voices that were trained on letters (`phoneme_type` is ``text``)."""

    def __call__(self, tokens: Sequence[Token]) -> list[Word]:
        return [Word(token.start, token.end, token.text.lower(), token.mark) for token in tokens]
