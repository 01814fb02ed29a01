"""What the normaliser recognises in Arabic, Hindi and Turkish only: definite ordinals, percent before the number.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from voxagent.spoken.inflection import arabic_clock, arabic_day
from voxagent.spoken.numbers import Wording
from voxagent.spoken.rules import NUMBER, Rule

_AR_RANKED = r"(?:الطابق|الدور|اليوم|الفصل|الباب|المركز|الصف|الأسبوع|الشهر|القرن|الجزء|الدرس|السطر|المستوى|البند)"
_RANKED = "|".join(rf"(?<={noun} )" for noun in _AR_RANKED[3:-1].split("|"))
_HI_ENDINGS = r"ल[ाीे]|र[ाीे]|थ[ाीे]|ठ[ाीे]|वा[ँं]|वी[ंँ]?|वे[ंँ]?"
_HI_ORDINALS = {"1": "पहल", "2": "दूसर", "3": "तीसर", "4": "चौथ", "6": "छठ"}


def _say_rank(m: re.Match[str], w: Wording) -> str | None:
    """The floor, the day, the chapter of a number is the third, the fourth."""
    value = int(m.group(1))
    return arabic_day(value) if 1 <= value <= 39 else None


def _say_hour(m: re.Match[str], w: Wording) -> str | None:
    hour = int(m.group(1))
    return arabic_clock(hour, 0) if 1 <= hour <= 24 else None


def _say_hindi_ordinal(m: re.Match[str], w: Wording) -> str | None:
    """1ला, 2रे, 5वाँ, 10वीं."""
    number, ending = m.group(1), m.group(2)
    vowel = "ी" if ending.startswith(("ली", "री", "थी", "ठी", "वी")) else "े" if "े" in ending else "ा"
    if number in _HI_ORDINALS:
        return _HI_ORDINALS[number] + vowel
    nasal = {"ी": "ीं", "े": "ें", "ा": "ाँ"}[vowel]
    return f"{w.number(number)}व{nasal}"


def _say_percent_first(m: re.Match[str], w: Wording) -> str | None:
    last = f" {w.forms['range']} {w.number(m.group(2))}" if m.group(2) else ""
    return f"{w.word('percent')} {w.number(m.group(1))}{last}"


OTHERS: Mapping[str, tuple[Rule, ...]] = {
    "ar": (
        Rule("rank", "d", rf"(?:{_RANKED})(\d{{1,2}})(?![\w/:%]|[.,]\d)", _say_rank),
        Rule("hour", "d", r"(?<=الساعة )(\d{1,2})(?![\w/:%]|[.,]\d)", _say_hour),
    ),
    "hi": (
        Rule("ordinal", "d", rf"(?<![\w.,])(\d{{1,3}})({_HI_ENDINGS})(?!\w)", _say_hindi_ordinal),
    ),
    "tr": (Rule("percent_first", "s", rf"[%％] ?({NUMBER})(?: ?[–-] ?({NUMBER}))?(?!\d)", _say_percent_first),),
    "vi": (Rule("fourth", "d", r"(?<=[Tt]hứ )4(?![\w/:%]|[.,]\d)", lambda m, w: "tư"),),
}  # fmt: skip
"""By primary tag; before the amounts and numbers of every language."""
