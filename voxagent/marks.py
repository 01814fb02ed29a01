"""What single characters are: marks, brackets, emoji, scripts, and how long each takes to say.

Pure tables. Knows nothing of words, languages or streams.
"""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum


class Kind(IntEnum):
    """How the phrase scanner treats a character."""

    OTHER = 0
    LETTER = 1
    DIGIT = 2
    EXTEND = 3  # joins the character before: combining marks, ZWJ, variation selectors, skin tones
    SPACE = 4
    NEWLINE = 5
    STOP = 6  # the ambiguous full stop
    END = 7
    FULL_STOP = 8  # 。 and the danda: nothing but a sentence end
    COMMA = 9
    COLON = 10
    DASH = 11
    ELLIPSIS = 12
    OPEN = 13
    CLOSE = 14
    QUOTE = 15
    MARKUP = 16
    CODE = 17
    TAG = 18
    EMOJI = 19


_FIXED: dict[str, Kind] = {
    **dict.fromkeys("\n\r\u2028\u2029\x0b\x0c\x85", Kind.NEWLINE),
    ".": Kind.STOP,
    **dict.fromkeys("!?！？؟‼⁇⁈⁉", Kind.END),
    **dict.fromkeys("。｡।॥۔።፧", Kind.FULL_STOP),
    **dict.fromkeys(",，、،､՝", Kind.COMMA),
    **dict.fromkeys(";:；：؛", Kind.COLON),
    **dict.fromkeys("-–—―‒⸺", Kind.DASH),
    **dict.fromkeys("…⋯", Kind.ELLIPSIS),
    **dict.fromkeys("*_", Kind.MARKUP),
    "`": Kind.CODE,
    "<": Kind.TAG,
    ">": Kind.TAG,
    "@": Kind.TAG,
    '"': Kind.QUOTE,
    "＂": Kind.QUOTE,
}

BRACKETS: dict[str, str] = {
    "(": ")", "[": "]", "{": "}", "（": "）", "［": "］", "【": "】", "〔": "〕", "「": "」", "『": "』", "《": "》",
    "〈": "〉", "“": "”", "„": "“”", "«": "»", "»": "«", "‹": "›", "‘": "’", "‚": "‘’", '"': '"', "＂": "＂",
}  # fmt: skip
"""Opening mark to the marks that close it."""

QUOTES = frozenset('「『“„«»‹‘‚"＂')
_CLOSERS = frozenset("".join(BRACKETS.values()))
_FIXED.update(dict.fromkeys(BRACKETS.keys() - _FIXED.keys(), Kind.OPEN))
_FIXED.update(dict.fromkeys(_CLOSERS - _FIXED.keys(), Kind.CLOSE))

TOP_LEVEL_DOMAINS = (
    "com|org|net|edu|gov|io|co|uk|de|fr|es|it|nl|pl|pt|ru|tr|vn|th|jp|kr|cn|in|eu|app|dev|ai|info|biz|me|tv|us|ca|au|"
    "br|example"
)
"""Alternatives of a regular expression."""

WIDE_MARKS = frozenset("！？。｡，、､；：।॥۔።፧…⋯")
"""Marks that need no space after them."""

_EMOJI = (
    (0x1F000, 0x1F3FA), (0x1F400, 0x1FAFF), (0x2600, 0x27BF), (0x2B05, 0x2B55), (0x231A, 0x231B), (0x23E9, 0x23FA),
    (0x25AA, 0x25FE), (0x2190, 0x2199), (0x3030, 0x3030), (0x303D, 0x303D), (0x3297, 0x3299),
)  # fmt: skip


_BLANKS = "\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LOUD = (
    _BLANKS + "/" + "".join(map(re.escape, sorted(_FIXED))) + "".join(f"{chr(low)}-{chr(high)}" for low, high in _EMOJI)
)
LOUD = re.compile(f"[ {_LOUD}]")
"""Characters that may be more to the scanner than part of a word."""
LOUDER = re.compile(f"[{_LOUD}]")
"""The same without the plain space. (One character class each: an alternative would cost tenfold.)"""


def is_emoji(ch: str) -> bool:
    """Whether the character is a pictograph (flags count, keycap digits do not)."""
    code = ord(ch)
    return code >= 0x2190 and any(low <= code <= high for low, high in _EMOJI)


def _classify(ch: str) -> Kind:
    code = ord(ch)
    category = unicodedata.category(ch)
    if code in (0x200D, 0x200C) or 0x1F3FB <= code <= 0x1F3FF or category in ("Mn", "Me", "Mc"):
        return Kind.EXTEND
    if 0xE0020 <= code <= 0xE007F or category == "Cf":
        return Kind.EXTEND
    if is_emoji(ch):
        return Kind.EMOJI
    if category[0] == "L":
        return Kind.LETTER
    if category in ("Nd", "No", "Nl"):
        return Kind.DIGIT
    return Kind.SPACE if ch.isspace() else Kind.OTHER


class _Kinds(dict[str, Kind]):
    def __missing__(self, ch: str) -> Kind:
        kind = _classify(ch)
        if ord(ch) < 0x20000:
            self[ch] = kind
        return kind


KINDS = _Kinds(_FIXED)
"""Character to `Kind`; fills itself."""


def has_case(ch: str) -> bool:
    """Whether the letter belongs to a script with capitals."""
    return ch.lower() != ch.upper()


def is_han(ch: str) -> bool:
    """Whether the character is a Chinese ideograph."""
    code = ord(ch)
    return 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF


def is_hiragana(ch: str) -> bool:
    """Whether the character is Japanese hiragana."""
    return 0x3040 <= ord(ch) <= 0x309F


def is_kana(ch: str) -> bool:
    """Whether the character is hiragana or katakana."""
    return 0x3040 <= ord(ch) <= 0x30FF or 0xFF66 <= ord(ch) <= 0xFF9D


def is_thai(ch: str) -> bool:
    """Whether the character is Thai."""
    return 0x0E00 <= ord(ch) <= 0x0E7F


def is_unspaced(ch: str) -> bool:
    """Whether the character's script writes no spaces between words."""
    return is_han(ch) or is_kana(ch) or is_thai(ch)


# Milliseconds of speech: whole numbers, so that sums do not depend on their order. Spaces weigh nothing and letters
# carry them: an English word of 4.7 letters and a space takes 390 ms at 14.5 characters a second.
_LATIN_MS, _DIGIT_MS, _HAN_MS, _KANA_MS, _HANGUL_MS = 83, 330, 210, 130, 160
_SCRIPTS = ((0x0600, 0x06FF, 95), (0x0900, 0x0DFF, 120), (0x0E00, 0x0E7F, 100), (0xAC00, 0xD7AF, _HANGUL_MS))
_PAUSES = dict.fromkeys(".!?…。！？।؟", 200) | dict.fromkeys(",;:，、；：،؛—", 120)
_SYMBOLS = dict.fromkeys("%‰@&+=#§°", 350) | _PAUSES


def _weigh(ch: str) -> int:
    kind = KINDS[ch]
    if ch in _SYMBOLS:
        return _SYMBOLS[ch]
    if kind is Kind.DIGIT:
        return _DIGIT_MS
    if kind is not Kind.LETTER:
        return 400 if unicodedata.category(ch) == "Sc" else 0
    if is_han(ch):
        return _HAN_MS
    if is_kana(ch):
        return _KANA_MS
    return next((ms for low, high, ms in _SCRIPTS if low <= ord(ch) <= high), _LATIN_MS)


class _Weights(dict[str, int]):
    def __missing__(self, ch: str) -> int:
        weight = _weigh(ch)
        if ord(ch) < 0x20000:
            self[ch] = weight
        return weight


WEIGHTS_MS = _Weights()
"""Character to milliseconds of speech; fills itself."""


def speech_ms(text: str) -> int:
    """Estimates how long the text takes to say, in milliseconds at a common rate."""
    return sum(map(WEIGHTS_MS.__getitem__, text))


def speech_seconds(text: str) -> float:
    """Estimates how long the text takes to say, in seconds at a common rate."""
    return speech_ms(text) / 1000
