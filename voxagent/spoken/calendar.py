"""Dates and clock times of the languages other than English, by the tables in their `[speech.calendar]`.

Pure; the shape of a rule is `rules.Rule`. A language without the table keeps what is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from voxagent.spoken.inflection import arabic_clock, arabic_day, arabic_oblique, korean_native, polish_ordinal, russian
from voxagent.spoken.numbers import Wording, cardinal, digits, ordinal
from voxagent.spoken.rules import APART, ENDED, IN_RANGE, Rule, kept_stop, text_after, text_before


def _german_year(value: int) -> str:
    if 1100 <= value < 2000 and value % 1000 >= 100:
        high, low = divmod(value, 100)
        return cardinal(high, "de") + "hundert" + (cardinal(low, "de") if low else "")
    return cardinal(value, "de")


def _dutch_year(value: int) -> str:
    if 1100 <= value < 2000:
        high, low = divmod(value, 100)
        return cardinal(high, "nl") + (cardinal(low, "nl") if low else "honderd")
    return cardinal(value, "nl")


def _hindi_year(value: int) -> str:
    if 1100 <= value < 2000:
        high, low = divmod(value, 100)
        return f"{cardinal(high, 'hi')} सौ" + (f" {cardinal(low, 'hi')}" if low else "")
    return cardinal(value, "hi")


def _german_day(value: int) -> str:
    return ordinal(value, "de") + "n"


def _first(word: str, language: str) -> Callable[[int], str]:
    return lambda value: word if value == 1 else cardinal(value, language)


_DAYS: Mapping[str, Callable[[int], str]] = {
    "ar": arabic_day,
    "de": _german_day,
    "fr": _first("premier", "fr"),
    "it": _first("primo", "it"),
    "pt": _first("primeiro", "pt"),
    "pl": lambda value: polish_ordinal(value, "genitive"),
    "ru": lambda value: russian(value, "ordinal", "g"),
}
_YEARS: Mapping[str, Callable[[int], str]] = {
    "ar": arabic_oblique,
    "de": _german_year,
    "hi": _hindi_year,
    "nl": _dutch_year,
    "pl": lambda value: polish_ordinal(value, "genitive"),
    "ru": lambda value: russian(value, "ordinal", "g"),
    "zh": lambda value: digits(str(value), "zh"),
}


def _day(value: int, w: Wording) -> str:
    said = _DAYS.get(w.language)
    return said(value) if said else cardinal(value, w.language)


def _year(value: int, w: Wording) -> str:
    said = _YEARS.get(w.language)
    return said(value) if said else cardinal(value, w.language)


def _month(text: str, w: Wording) -> str | None:
    """The month's name as it stands in a date, from its number, its name or its abbreviation."""
    number = int(text) if text.isdecimal() else w.month_numbers.get(text.rstrip(".").lower(), 0)
    if not 1 <= number <= len(w.months):
        return None
    name = w.months[number - 1].replace("_", " ")
    return text if text.lower() == name.lower() else name


def _say_numeric_date(m: re.Match[str], w: Wording) -> str | None:
    """31.12.2026, 15/08/26."""
    return _numeric(m.group(1), m.group(2), m.group(3), w, m)


def _say_day_slash(m: re.Match[str], w: Wording) -> str | None:
    """22/09, ngày 15/8, 3/4に: a date where the month has two digits, or the words around say so."""
    first, second = m.group(1), m.group(2)
    before = text_before(m).split()[-1:]
    led = bool(before) and before[0].lower() in w.listed("date_cues")
    if w.language in ("ja", "zh", "ko"):
        followed = re.match(r"[\s]?[にはかまをもが（(에은는부까]", text_after(m))
        late = int(second) > 12 and text_after(m).startswith("で")  # "3/4です" may be a fraction
        return _numeric(second, first, "", w, m) if followed or late else None
    return _numeric(first, second, "", w, m) if led or (len(second) == 2 and second[0] == "0") else None


def _say_day_dot(m: re.Match[str], w: Wording) -> str | None:
    """5.5., 12.05: a date where decimals have a comma, if the last stop or a zero says that it is no clock."""
    if w.language not in ("de", "pl", "ru", "tr"):
        return None
    day, month = m.group(1), m.group(2)
    words = text_before(m).split()
    before = words[-1] if len(words) > 1 else ""
    if before[:1].isupper() and before.lower().rstrip(".,") not in w.listed("date_cues"):
        return None  # Android 14.2.
    stopped = m.group().endswith(".")
    if re.search(r"(?:\bo|godz\.) $", text_before(m)) or not ((len(month) == 2 and month[0] == "0") or stopped):
        return None
    if stopped and w.language != "de" and len(month) == 1:
        return None
    ended = "." if stopped and not text_after(m).strip() else ""
    said = _numeric(day, month, "", w, m)
    return said + ended if said else None


def _say_polish_hours(m: re.Match[str], w: Wording) -> str | None:
    """od 9 do 18: hours, where no noun follows."""
    hours = int(m.group(1)), int(m.group(2))
    if w.language != "pl" or not all(1 <= hour <= 24 for hour in hours):
        return None
    first, last = (polish_ordinal(hour, "feminine_oblique") for hour in hours)
    return f"{first} do {last}"


def _say_polish_decade(m: re.Match[str], w: Wording) -> str | None:
    if w.language != "pl":
        return None
    return re.sub(r"y$", "ych", ordinal(int(m.group(1)), "pl")) + kept_stop(m)


def _say_iso_date(m: re.Match[str], w: Wording) -> str | None:
    return _numeric(m.group(3), m.group(2), m.group(1), w, m)


def _numeric(day: str, month: str, year: str, w: Wording, m: re.Match[str]) -> str | None:
    name = _month(month, w)
    form = w.calendar.get("date" if year else "date_short")
    if not form or name is None or not 1 <= int(day) <= 31:
        return None
    full = int(year or 0)
    if len(year) == 2:
        full += 2000 if full < 60 else 1900
    lead = w.calendar.get("lead", "")
    if lead and text_before(m).rstrip().lower().endswith(lead):
        form = form.removeprefix(lead + " ")
    return form.format(day=_day(int(day), w), month=name, year=_year(full, w) if year else "")


def _say_written_date(m: re.Match[str], w: Wording) -> str | None:
    """4 de marzo de 2025, 4. März, 4 марта 2025 г."""
    day, link, month, dot, gap, year, era = m.groups()
    name = _month(month, w)
    if name is None or not 1 <= int(day) <= 31:
        return None
    spoken_day = _day(int(day), w)
    if w.language == "de" and not _german_weak(m):
        spoken_day = ordinal(int(day), "de") + "r"
    if w.language in ("ar",) and not link:
        link = "من "
    said = f"{spoken_day} {link or ''}{name}"
    if not year:
        return said + (dot or "" if month == name else _rest(m, dot))
    said += f"{gap.replace(',', '')}{_year(int(year), w)}"
    return said + (f" {w.calendar.get('era', '')}" if era or w.language in ("pl", "ru") else "")


def _rest(m: re.Match[str], dot: str | None) -> str:
    """An abbreviation's full stop that also ends the text."""
    return "." if dot and not text_after(m).strip() else ""


def _german_weak(m: re.Match[str]) -> bool:
    words = re.findall(r"\w+", text_before(m).lower())
    return bool(words) and words[-1] in (
        "am", "dem", "den", "zum", "vom", "im", "bis", "ab", "der", "des", "und", "montag", "dienstag", "mittwoch",
        "donnerstag", "freitag", "samstag", "sonntag", "seit", "nach", "vor",
    )  # fmt: skip


def _say_slavic_year(m: re.Match[str], w: Wording) -> str | None:
    """A year with its word: w 1999 r., в 1985 году, 2024 год."""
    value, word = int(m.group(1)), m.group(2).rstrip(".")
    before = text_before(m).split()[-1:]
    local = bool(before) and before[0].lower() in ("w", "в", "о", "na", "po")
    if w.language == "pl":
        form, name = ("locative", "roku") if local else ("genitive", "roku")
        ended = kept_stop(m) if m.group(2).endswith(".") else ""
        return f"{polish_ordinal(value, form)} {name}{ended}"
    case = "p" if local else "g"
    if word in ("г", "год", "году", "года"):
        if word == "год":
            return f"{russian(value, 'ordinal', 'n')} год"
        if word == "году":
            return f"{russian(value, 'ordinal', 'p')} году"
        return f"{russian(value, 'ordinal', case)} {'году' if local else 'года'}"
    return None


def _say_year(m: re.Match[str], w: Wording) -> str | None:
    """A lone year where the language reads years in a way of their own."""
    if w.language == "hi":
        return _year(int(m.group(1)), w) if re.match(r" (?:में|से|तक|का|की|के)(?!\w)", text_after(m)) else None
    if w.language not in ("de", "nl", "ar"):
        return None
    before = text_before(m).split()[-1:]
    led = bool(before) and before[0].lower() in w.listed("year_cues")
    alone = w.language != "ar" and 1500 <= int(m.group(1)) < 2000 and not re.match(r"\s[A-Z€$]", text_after(m))
    return _year(int(m.group(1)), w) if led or alone else None


# Clocks.


def _feminine(value: int, w: Wording) -> str:
    """An hour's number agrees with the word for hour."""
    words = cardinal(value, w.language)
    for masculine, feminine in (
        {
            "es": (("uno", "una"), ("ún", "una")),
            "pt": (("um", "uma"), ("dois", "duas")),
            "it": (("uno", "una"),),
            "fr": (("un", "une"),),
        }
    ).get(w.language, ()):
        if words == masculine or words.endswith(" " + masculine) or (w.language == "es" and words.endswith(masculine)):
            return words[: len(words) - len(masculine)] + feminine
    return words


def _say_clock(m: re.Match[str], w: Wording) -> str | None:
    hour, minute = int(m.group(1)), int(m.group(2))
    form = w.calendar.get("clock")
    if not form or hour > 24 or minute > 59:
        return None
    if w.language == "ar":
        return arabic_clock(hour, minute)
    return _clock(hour, minute, w, m)


def _clock(hour: int, minute: int, w: Wording, m: re.Match[str]) -> str:
    form = w.calendar["clock"] if minute else w.calendar.get("clock_full", "{hour}")
    before = (text_before(m).split() or [""])[-1].lower()
    match w.language:
        case "pl":
            oblique = before in ("o", "od", "do", "po", "około", "koło")
            spoken = polish_ordinal(hour or 24, "feminine_oblique" if oblique else "feminine") if hour else "zero"
        case "ru" if before in ("с", "до", "от", "после", "около"):
            spoken = russian(hour, case="g")
            form = form.removesuffix(" часов")
        case "ko":
            spoken = korean_native(hour) if 1 <= hour <= 12 else cardinal(hour, "ko")
        case "de":
            spoken = "ein" if hour == 1 else cardinal(hour, "de")
        case _:
            spoken = _feminine(hour, w)
    said = cardinal(minute, w.language)
    if minute < 10 and minute and w.calendar.get("padded"):
        said = w.join(cardinal(0, w.language), said)
    return form.format(hour=spoken, minute=said)


def _say_hour(m: re.Match[str], w: Wording) -> str | None:
    """15h, 9 Uhr: a full hour."""
    hour = int(m.group(1))
    if hour > 24 or "clock" not in w.calendar or w.language == "ar":
        return None
    return _clock(hour, 0, w, m)


def _say_polish_hour(m: re.Match[str], w: Wording) -> str | None:
    """o 9, o godz. 9: the hour alone is an ordinal too."""
    hour = int(m.group(1))
    return polish_ordinal(hour, "feminine_oblique") if w.language == "pl" and 1 <= hour <= 24 else None


_MONTH = r"([^\W\d_]{2,12}|[\u0e01-\u0e4e.]{2,12}|[\u0900-\u097f]{2,12})"
_LINK = r"(de |del |d['’]|من )?"
_GAP = r"(,? (?:de |del |do )?)"
_ERA = r"(?: ?(г\.|года|р\.|r\.|roku))?"

_AT = "|".join(f"(?<={word} )" for word in ("saat", "Saat", "alle", "ore", "las"))

CALENDAR: tuple[Rule, ...] = (
    Rule("numeric_date", "d", rf"{APART}(\d{{1,2}})[./-](\d{{1,2}})[./-](\d{{4}}){ENDED}", _say_numeric_date),
    Rule("short_date", "d", rf"{APART}(\d{{1,2}})/(\d{{1,2}})/(\d{{2}}){ENDED}", _say_numeric_date),
    Rule("dotted_date", "d", rf"{APART}(\d\d)\.(\d\d)\.(\d\d){ENDED}", _say_numeric_date),
    Rule("iso_date", "d", rf"{APART}(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}})(?![\w/-]|[.,:]\d)", _say_iso_date),
    Rule(
        "written_date",
        "d",
        rf"{APART}(\d{{1,2}})(?:er|re|\.º|º|ª|\.)? ?{_LINK}{_MONTH}(\.)?(?:{_GAP}(\d{{4}}){_ERA})?{ENDED}",
        _say_written_date,
    ),
    Rule("slavic_year", "d", rf"{APART}(\d{{4}}) ?(г\.|году|года|год|r\.|roku)(?!\w)", _say_slavic_year),
    Rule("lone_year", "d", rf"{APART}(1[1-9]\d\d|20\d\d){ENDED}", _say_year),
    Rule(
        "clock_colon",
        "d",
        rf"{IN_RANGE}(\d{{1,2}}):(\d{{2}})(?! ?(?:Uhr|uur))(?:\s?(?:hs?|hrs|ч|godz)\b\.?|\s?น\.)?{ENDED}",
        _say_clock,
    ),
    Rule(
        "clock_named",
        "d",
        rf"{IN_RANGE}(\d{{1,2}})(?:[.:](\d{{2}})) ?(?:Uhr|uur|h|น\.)(?!\w)",
        _say_clock,
    ),
    Rule("thai_range", "d", rf"{APART}(\d{{1,2}})\.(\d{{2}})(?= ?[–-] ?\d{{1,2}}\.\d{{2}} ?น\.)", _say_clock),
    Rule("clock_h", "d", r"(?<![\w.,:/])(\d{1,2}) ?(?:h|heures?|u|giờ) ?(\d{2})(?:m|min)?(?![\w:]|[.,]\d)", _say_clock),
    Rule("turkish_clock", "d", rf"{APART}(\d{{1,2}})\.(\d{{2}})(?=['’][dtyn])", _say_clock),
    Rule("clock_after_word", "d", rf"(?:{_AT})(\d{{1,2}})\.(\d{{2}}){ENDED}", _say_clock),
    Rule("day_dot", "d", rf"{APART}(\d{{1,2}})\.(\d{{1,2}})\.?(?![\w:]|[.,]\d| ?(?:Uhr|uur|h\b))", _say_day_dot),
    Rule("polish_clock", "d", rf"(?:(?<=\bo )|(?<=godz\. ))(\d{{1,2}})\.(\d{{2}}){ENDED}", _say_clock),
    Rule("polish_hours", "d", r"(?<=\bod )(\d{1,2}) do (\d{1,2})(?=[.,;!?]|$)", _say_polish_hours),
    Rule("polish_decade", "d", r"(?<=latach )(\d0)\.(?!\d)", _say_polish_decade),
    Rule("day_slash", "d", rf"{APART}(\d{{1,2}})/(\d{{1,2}}){ENDED}", _say_day_slash),
    Rule("hour_h", "d", r"(?<![\w.,:/])(\d{1,2})(?: ?h| ?Uhr| ?uur)(?![\w/])", _say_hour),
    Rule("polish_hour", "d", rf"(?:(?<=\bo )|(?<=godz\. )|(?<=\bgodzinie ))(\d{{1,2}}){ENDED}", _say_polish_hour),
)  # fmt: skip
"""After a language's own rules, before the amounts and numbers of every language."""
