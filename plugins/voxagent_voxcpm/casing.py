"""Upper case: VoxCPM spells out words in capitals letter by letter, which is right for acronyms only."""

from __future__ import annotations

import re

_SHOUTED = re.compile(r"[^\W\d_]{2,}(?:['’][^\W\d_]+)?")
_VOWELS = frozenset("AEIOUYÄÖÜÅÆØÉÈÊÀÂÁÍÓÚАЕЁИОУЫЭЮЯІЇЄΑΕΗΙΟΥΩ")
_LONGEST_ACRONYM = 4


def calm(text: str, written: str) -> str:
    """The text with shouted words in lower case.

    A word is an acronym when it is short and stands among words in lower case ("the USB port"), or has no vowel to be
    read by ("HTML"). In a shouted sentence only words without a vowel are.

    Args:
        text: What is to be spoken.
        written: What it was made from: some words of a shouted sentence may be in lower case by now.
    """
    words = _SHOUTED.findall(written)
    upper = [word for word in words if word.isupper()]
    shouting = len(upper) > 1 and 2 * len(upper) > len(words)

    def lowered(match: re.Match[str]) -> str:
        word = match.group()
        if not word.isupper():
            return word
        readable = any(ch in _VOWELS for ch in word)
        acronym = not readable or (not shouting and len(word) <= _LONGEST_ACRONYM)
        return word if acronym else word.lower()

    return _SHOUTED.sub(lowered, text)
