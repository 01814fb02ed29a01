"""Numbers in words, in the languages num2words knows and in Chinese, Hindi and Vietnamese.

Pure. num2words is imported on first use: it takes 50 ms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from voxagent.lexicon import lexicon
from voxagent.reading import PLAIN, Reading

_HAN = "零一二三四五六七八九"
_TURKISH = re.compile(  # written as one word by num2words; the longer of two words that begin alike comes first
    "sıfır|birinci|bir|ikinci|iki|üçüncü|üç|dördüncü|dört|beşinci|beş|altmış|altıncı|altı|yedinci|yedi|sekizinci|"
    "sekiz|dokuzuncu|dokuz|onuncu|on|yirminci|yirmi|otuz|kırk|elli|yetmiş|seksen|doksan|yüz|milyon|milyar|bin"
)
_LONGEST = 21  # digits; a longer number is read digit by digit


@lru_cache(maxsize=4096)
def cardinal(value: int, language: str = "en") -> str:
    """The number in words; in digits when the language has no words for it."""
    if language == "zh":
        return _chinese(value)
    if language == "hi":
        return _hindi(value)
    if language == "vi" and 0 <= value < 10**_LONGEST:
        return _vietnamese(value)
    return _by_table(value, language, "cardinal")


@lru_cache(maxsize=1024)
def ordinal(value: int, language: str = "en") -> str:
    """The ordinal number in words."""
    if language == "zh":
        return "第" + _chinese(value)
    return _by_table(value, language, "ordinal")


def _by_table(value: int, language: str, to: str) -> str:
    from num2words import num2words

    try:
        words = str(num2words(value, lang="pt_BR" if language == "pt" else language, to=to))
    except (NotImplementedError, OverflowError, ValueError, KeyError, TypeError, IndexError):
        return str(value)
    if language == "en":
        return words.replace(",", "").replace(" and ", " ")
    if language == "ru":
        return re.sub(r"^одна (?=тысяча)", "", words)
    if language == "de":
        return re.sub(r"^ein(?=tausend)", "", words) if value < 2000 else words
    if language == "tr":
        return " ".join(_TURKISH.findall(words)) or words
    if language == "ar":
        return words.replace(" و ", " و")
    return words


def digits(text: str, language: str = "en") -> str:
    """Digit by digit; what is not a digit is left out."""
    joint = "" if language in ("zh", "ja", "th") else " "
    if language == "ja":
        return joint.join("〇一二三四五六七八九"[int(c)] for c in text if c.isdecimal())
    return joint.join(cardinal(int(c), language) for c in text if c.isdecimal())


def _chinese(value: int) -> str:
    if value < 0:
        return "负" + _chinese(-value)
    if value < 10:
        return _HAN[value]
    for power, name in ((10**8, "亿"), (10**4, "万")):
        if value >= power:
            high, low = divmod(value, power)
            link = "零" if low and low < power // 10 else ""
            return _chinese(high) + name + (link + _chinese(low) if low else "")
    out, pending = "", False
    for power, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, value = divmod(value, power)
        if digit:
            bare_ten = power == 10 and digit == 1 and not out
            out += ("零" if pending and out else "") + ("" if bare_ten else _HAN[digit]) + name
            pending = False
        elif out:
            pending = True
    return out


def _hindi(value: int) -> str:
    names: list[str] = str(lexicon("hi").speech.get("cardinals", "")).split()
    if value < 0:
        return "माइनस " + _hindi(-value)
    if value < len(names):
        return names[value]
    for power, name in ((10**7, "करोड़"), (10**5, "लाख"), (1000, "हज़ार"), (100, "सौ")):
        if value >= power and names:
            high, low = divmod(value, power)
            return f"{_hindi(high)} {name}" + (f" {_hindi(low)}" if low else "")
    return str(value)


_VI_DIGITS = ("không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín")


def _vietnamese(value: int) -> str:
    """A Vietnamese cardinal: empty places below a thousand are said."""
    groups: list[str] = []
    names = ("", "nghìn", "triệu", "tỷ", "nghìn tỷ", "triệu tỷ", "tỷ tỷ")
    parts = [int(part) for part in f"{value:,}".split(",")]
    for index, part in enumerate(parts):
        if part or len(parts) == 1:
            name = names[len(parts) - 1 - index]
            groups.append(f"{_vietnamese_group(part, full=index > 0)} {name}".strip())
    return " ".join(groups)


def _vietnamese_group(value: int, *, full: bool) -> str:
    hundreds, rest = divmod(value, 100)
    tens, units = divmod(rest, 10)
    said = [f"{_VI_DIGITS[hundreds]} trăm"] if hundreds or full else []
    if rest == 0:
        return said[0] if said else _VI_DIGITS[0]
    if tens == 0:
        said.append(f"lẻ {_VI_DIGITS[units]}" if said else _VI_DIGITS[units])
        return " ".join(said)
    said.append("mười" if tens == 1 else f"{_VI_DIGITS[tens]} mươi")
    if units:
        special = {1: "mốt" if tens > 1 else "một", 5: "lăm"}
        said.append(special.get(units, _VI_DIGITS[units]))
    return " ".join(said)


def _russian_decimal(whole: int, fraction: str) -> str:
    """4,5: four wholes and five tenths, both feminine."""
    from num2words import num2words

    parts = "десят", "сот", "тысячн"
    one = whole % 10 == 1 and whole % 100 != 11
    single = int(fraction) % 10 == 1 and int(fraction) % 100 != 11
    first = num2words(whole, lang="ru", gender="f")
    second = num2words(int(fraction), lang="ru", gender="f")
    return f"{first} {'целая' if one else 'целых'} {second} {parts[len(fraction) - 1]}{'ая' if single else 'ых'}"


class Wording:
    """How one language says numbers and names signs; the tables come from its lexicon.

    Args:
        language: Primary tag.
        reading: The user's choices.
    """

    def __init__(self, language: str, reading: Reading = PLAIN) -> None:
        self.language = language
        self.reading = reading
        self.lexicon = lexicon(language)
        speech: Mapping[str, Any] = self.lexicon.speech
        self.speech = speech
        self.known = bool(speech)
        lists = {**speech, **speech.get("forms", {}), **speech.get("calendar", {})}
        self._lists = {key: frozenset(value.split()) for key, value in lists.items() if isinstance(value, str)}
        self.decimal: str = speech.get("decimal", ".")
        self.joint = "" if language in ("zh", "ja", "th") else " "
        self.words: Mapping[str, str] = speech.get("words", {})
        self.units: Mapping[str, str] = speech.get("units", {})
        self.currencies: Mapping[str, str] = speech.get("currencies", {})
        self.abbreviations: Mapping[str, str] = speech.get("abbreviations", {})
        self.calendar: Mapping[str, str] = speech.get("calendar", {})
        self.months = self.calendar.get("months", "").split()
        """As they stand in a date, January first."""
        short = (name.split("|") for name in self.calendar.get("short_months", "").lower().split())
        self.month_numbers = {name: index + 1 for index, names in enumerate(short) for name in names}
        self.month_numbers |= {name.lower(): index + 1 for index, name in enumerate(self.months)}
        self.forms: Mapping[str, str] = speech.get("forms", {})
        self.fractions: Mapping[str, str] = speech.get("fractions", {})
        lex = self.lexicon
        self.dotted = (
            lex.titles | lex.counted | lex.either | lex.closing | {a.split(".")[0] for a in self.abbreviations}
        )
        """Words that a full stop may belong to."""

    def word(self, key: str) -> str:
        """A sign's name, e.g. ``percent``; empty when the language's table lacks it."""
        return self.words.get(key, "")

    def listed(self, key: str) -> frozenset[str]:
        """A list of words in the language's table."""
        return self._lists.get(key, frozenset())

    def parse(self, text: str) -> tuple[int | None, str]:
        """Whole part and decimals of a written number; the whole part is None when it is not a number."""
        whole, _, fraction = text.replace("−", "-").partition(self.decimal)
        plain = re.sub(r"[^\d-]", "", whole)
        return (int(plain) if plain.lstrip("-").isdecimal() else None), fraction

    def number(self, text: str) -> str:
        """A written number, decimals included."""
        whole, fraction = self.parse(text)
        if whole is None:
            return text
        plain = re.sub(r"\D", "", text.partition(self.decimal)[0])
        if len(plain) > _LONGEST or (len(plain) > 1 and plain[0] == "0"):
            spoken = digits(plain, self.language)
        else:
            spoken = cardinal(whole, self.language)
        if not fraction:
            return spoken
        if self.language == "ru" and len(fraction) <= 3:
            return _russian_decimal(whole, fraction)
        return self.join(spoken, self.word("point") or ".", self._decimals(fraction))

    def _decimals(self, fraction: str) -> str:
        pairs = bool(self.speech.get("decimals_as_number", False))
        if pairs and len(fraction) == 2 and fraction[0] != "0":
            return cardinal(int(fraction), self.language)
        return digits(fraction, self.language)

    def join(self, *words: str) -> str:
        """Puts words together the way the language does."""
        return self.joint.join(w for w in words if w)

    def counted(self, forms: str, text: str) -> str:
        """The form of a word for a number: ``one|many``, or ``one|few|many`` for Slavic languages."""
        choices = forms.split("|")
        whole, fraction = self.parse(text)
        if len(choices) == 1 or (whole == 1 and not fraction):
            return choices[0]
        if len(choices) == 2:
            return choices[1]
        if fraction:
            return choices[1]
        value = abs(whole or 0)
        if self.language == "ru" and value % 10 == 1 and value % 100 != 11:
            return choices[0]
        few = value % 10 in (2, 3, 4) and value % 100 not in (12, 13, 14)
        return choices[1 if few else 2]


@lru_cache(maxsize=64)
def wording(language: str, reading: Reading = PLAIN) -> Wording:
    """The wording of a language and a reading, made once."""
    return Wording(language, reading)
