"""How a number agrees with the noun behind it: un euro, veintiún días, duas horas, две минуты, dwie godziny.

Pure. A noun's gender is judged by its ending and the language's lists of exceptions.
"""

from __future__ import annotations

import re

from voxagent.spoken.inflection import russian
from voxagent.spoken.numbers import Wording, cardinal


def agreeing(value: int, noun: str, w: Wording) -> str:
    """The cardinal as it stands before the noun; unchanged where the language does not bend it."""
    words = cardinal(value, w.language)
    if value >= 10**6 or not noun:
        return words
    noun = noun.split()[0].lower()
    bend = _BENDS.get(w.language)
    return bend(value, words, noun, w) if bend is not None else words


def _feminine(noun: str, w: Wording) -> bool:
    if noun in w.listed("feminine"):
        return True
    if noun in w.listed("masculine"):
        return False
    endings = tuple(w.forms.get("feminine_endings", "").split())
    return bool(endings) and noun.endswith(endings)


def _spanish(value: int, words: str, noun: str, w: Wording) -> str:
    if _feminine(noun, w):
        words = re.sub(r"cientos\b", "cientas", words).replace("quinientos", "quinientas")
        return re.sub(r"uno$", "una", words)
    return re.sub(r"veintiuno$", "veintiún", re.sub(r"(?<!i)uno$", "un", words))


def _portuguese(value: int, words: str, noun: str, w: Wording) -> str:
    if not _feminine(noun, w):
        return words
    words = re.sub(r"\bum$", "uma", re.sub(r"\bdois\b(?! mil)", "duas", words))
    return re.sub(r"entos\b", "entas", words)


def _italian(value: int, words: str, noun: str, w: Wording) -> str:
    if value != 1:
        return words
    if _feminine(noun, w):
        return "una"
    return "uno" if re.match(r"(?:s[^aeiou]|z|gn|ps|x)", noun) else "un"


def _french(value: int, words: str, noun: str, w: Wording) -> str:
    return re.sub(r"\bun$", "une", words) if _feminine(noun, w) else words


def _german(value: int, words: str, noun: str, w: Wording) -> str:
    if value != 1:
        return words
    return "eine" if _feminine(noun, w) else "ein"


def _russian(value: int, words: str, noun: str, w: Wording) -> str:
    last = value % 10
    if value % 100 in (11, 12, 13, 14) or last not in (1, 2):
        return words
    if last == 2:
        return russian(value, gender="f") if re.search(r"(?<!и)[ыи]$", noun) else words
    if noun.endswith(("у", "ю")):  # на 1 минуту
        return russian(value, case="a", gender="f")
    if noun in w.listed("masculine"):
        return words
    gender = "f" if noun.endswith(("а", "я", "ь")) else "n" if noun.endswith(("о", "е")) else "m"
    return russian(value, gender=gender)


def _polish(value: int, words: str, noun: str, w: Wording) -> str:
    if value == 1:
        return "jedna" if noun.endswith("a") else "jedno" if noun.endswith(("o", "e")) and noun != "euro" else words
    feminine = noun in w.listed("feminine")
    return re.sub(r"dwa$", "dwie", words) if feminine and value % 100 != 12 else words


_AR_FEMININE = ("", "إحدى", "اثنتان", "ثلاث", "أربع", "خمس", "ست", "سبع", "ثماني", "تسع", "عشر")
_AR_TENS = {20: "عشرون", 30: "ثلاثون", 40: "أربعون", 50: "خمسون", 60: "ستون", 70: "سبعون", 80: "ثمانون", 90: "تسعون"}


def _arabic(value: int, words: str, noun: str, w: Wording) -> str:
    """From three on a number takes the other gender than its noun; the ending tells the noun's."""
    plural = noun in w.listed("feminine") or (noun.endswith("ات") and noun not in w.listed("masculine"))
    feminine = plural if value <= 10 else noun.endswith("ة")
    if not feminine or value < 3 or value > 99:
        return words
    if value <= 10:
        return _AR_FEMININE[value]
    if value < 20:
        return f"{'اثنتا' if value == 12 else _AR_FEMININE[value - 10]} عشرة"
    tens, units = value // 10 * 10, value % 10
    return f"{_AR_FEMININE[units]} و{_AR_TENS[tens]}" if units else words


_BENDS = {
    "ar": _arabic,
    "de": _german,
    "es": _spanish,
    "fr": _french,
    "it": _italian,
    "pl": _polish,
    "pt": _portuguese,
    "ru": _russian,
}
