"""Numbers in the forms that sentences ask for, where a language bends them: Polish, Russian, Arabic, Korean.

Pure. What a form is called is the language's own business; `calendar` and `agreement` ask by these names.
"""

from __future__ import annotations

import re
from functools import lru_cache

from voxagent.spoken.numbers import cardinal, ordinal

# Polish. Endings of ordinals by case and gender; "trzeci" and "drugi" keep their i.
_PL_ENDINGS = {"genitive": "ego", "locative": "ym", "feminine": "a", "feminine_oblique": "ej"}
_PL_GENITIVE = {
    "jeden": "jednego", "dwa": "dwóch", "trzy": "trzech", "cztery": "czterech", "pięć": "pięciu", "sześć": "sześciu",
    "siedem": "siedmiu", "osiem": "ośmiu", "dziewięć": "dziewięciu", "dziesięć": "dziesięciu", "sto": "stu",
    "dwieście": "dwustu", "trzysta": "trzystu", "czterysta": "czterystu", "tysiąc": "tysiąca", "tysiące": "tysięcy",
}  # fmt: skip


@lru_cache(maxsize=1024)
def polish_ordinal(value: int, form: str) -> str:
    """An ordinal in one of the forms ``genitive``, ``locative``, ``feminine``, ``feminine_oblique``."""
    ending = _PL_ENDINGS[form]

    def bend(match: re.Match[str]) -> str:
        stem, last = match.group(1), match.group(2)
        if last == "y":
            return stem + ending
        if form == "locative":
            return stem + "im"
        if form == "feminine":
            return stem + ("a" if stem.endswith("g") else "ia")
        return stem + "i" + ending

    return re.sub(r"(\w+)([yi])\b", bend, ordinal(value, "pl"))


@lru_cache(maxsize=1024)
def polish_genitive(value: int) -> str:
    """A cardinal in the genitive."""
    return " ".join(_polish_genitive_word(word) for word in cardinal(value, "pl").split())


def _polish_genitive_word(word: str) -> str:
    if word in _PL_GENITIVE:
        return _PL_GENITIVE[word]
    if word.endswith("naście"):
        return word.removesuffix("naście") + "nastu"
    if word.endswith(("dzieścia", "dzieści")):
        return re.sub(r"dzieści(a)?$", "dziestu", word)
    if word.endswith("dziesiąt"):
        return word.removesuffix("dziesiąt") + "dziesięciu"
    return re.sub(r"set$", "set", word)


@lru_cache(maxsize=2048)
def russian(value: int, to: str = "cardinal", case: str = "n", gender: str = "m", *, plural: bool = False) -> str:
    """A Russian number: ``cardinal`` or ``ordinal``, case n g d a i p, gender m f n."""
    from num2words import num2words

    words = str(num2words(value, lang="ru", to=to, case=case, gender=gender, plural=plural))
    return re.sub(r"^одн\w+ (?=тысяч)", "", words)


_AR_HOURS = (
    "الثانية عشرة", "الواحدة", "الثانية", "الثالثة", "الرابعة", "الخامسة", "السادسة", "السابعة", "الثامنة", "التاسعة",
    "العاشرة", "الحادية عشرة",
)  # fmt: skip
_AR_DAYS = (
    "", "الأول", "الثاني", "الثالث", "الرابع", "الخامس", "السادس", "السابع", "الثامن", "التاسع", "العاشر", "الحادي عشر",
    "الثاني عشر", "الثالث عشر", "الرابع عشر", "الخامس عشر", "السادس عشر", "السابع عشر", "الثامن عشر", "التاسع عشر",
)  # fmt: skip
_AR_UNITS = ("", "الحادي", *_AR_DAYS[2:10])


def arabic_day(value: int) -> str:
    """A day of the month as an ordinal, oblique: the fourth, the twenty-first."""
    if value < len(_AR_DAYS):
        return _AR_DAYS[value]
    tens = {2: "العشرين", 3: "الثلاثين"}[value // 10]
    return f"{_AR_UNITS[value % 10]} و{tens}" if value % 10 else tens


def arabic_oblique(value: int) -> str:
    """A cardinal as it follows a preposition or the word for year."""
    words = cardinal(value, "ar")
    words = re.sub(r"(?<=\w)ون(?=\s|$)", "ين", words)
    return re.sub(r"(ألف|مئت|مائت|مليون|اثن)ان", r"\1ين", words)


def arabic_clock(hour: int, minute: int) -> str:
    """The time as it follows the word for hour: ninth and a half."""
    if minute == 45:
        return f"{_AR_HOURS[(hour + 1) % 12]} إلا ربعا"
    spoken = _AR_HOURS[hour % 12]
    if minute == 0:
        return spoken
    named = {30: "النصف", 15: "الربع", 20: "الثلث"}.get(minute)
    if named:
        return f"{spoken} و{named}"
    counted = "دقائق" if 3 <= minute <= 10 else "دقيقة"
    return f"{spoken} و{cardinal(minute, 'ar')} {counted}"


_KO_NATIVE = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_KO_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")


def korean_native(value: int) -> str:
    """A number below 100 in native words, as it stands before a counter."""
    tens, units = divmod(value, 10)
    if value == 20:
        return "스무"
    return _KO_TENS[tens] + _KO_NATIVE[units]
