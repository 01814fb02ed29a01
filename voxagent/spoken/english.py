"""What the normaliser recognises in English only: dates, clocks, fractions, ids, phone numbers, Roman numerals.

Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

import re

from voxagent.spoken.english_extra import EXTRA
from voxagent.spoken.numbers import Wording, cardinal, digits, ordinal
from voxagent.spoken.rules import NUMBER, Rule, kept_stop, text_after, text_before

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DAYS = {
    "mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday", "thu": "Thursday", "thur": "Thursday",
    "thurs": "Thursday", "fri": "Friday", "sat": "Saturday", "sun": "Sunday",
}  # fmt: skip
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    r"Nov(?:ember)?|Dec(?:ember)?)"
)
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_NUMBERED = re.compile(
    r"(?i:\b(?:dial|call|text|ends? in|last four|vin|code|pin|number|order|ticket|account|acct|ending in|"
    r"extension|ext\.?|zip|confirmation|id|flight|"
    r"reference|booking|reservation|passcode|password|serial|case|room|suite|box))(?: is| was|:|#| no\.)? ?$"
)
_FRACTIONS = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 8: "eighth", 10: "tenth", 16: "sixteenth"}
_DATED = re.compile(
    r"(?i)\b(?:on|by|since|until|till|dated|from|before|after|due|through|mon|tue|tues|wed|thu|thurs|fri|sat|sun|"
    r"\w{3,6}day)\.?,?\s$|(?i:\b(?:date|due|deadline|appointment|birthday|expires?)\b[^.!?]{0,12}\s$)"
)
_ONLY_DAYS = frozenset((13, 14, 17, 18, 19, 21, 22, 23, 26, 27, 28, 29, 31))  # no fraction or score has these below
_VULGAR = {
    "½": (1, 2),
    "⅓": (1, 3),
    "⅔": (2, 3),
    "¼": (1, 4),
    "¾": (3, 4),
    "⅛": (1, 8),
    "⅜": (3, 8),
    "⅝": (5, 8),
    "⅞": (7, 8),
}
_PER = {
    "mo": "month", "yr": "year", "hr": "hour", "min": "minute", "sec": "second", "wk": "week", "d": "day", "h": "hour",
    "s": "second", "pp": "person",
}  # fmt: skip


def year(value: int) -> str:
    """A year the way it is read: twenty ten, two thousand eight, nineteen oh five."""
    high, low = divmod(value, 100)
    if value % 1000 < 10 and high % 10 == 0:
        return cardinal(value)
    if low == 0:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} {'oh ' if low < 10 else ''}{cardinal(low)}"


def _month(name: str) -> str:
    return next(m for m in _MONTHS if m.startswith(name[:3]))


def _date(month: int, day: int, written_year: str = "") -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    spoken = f"{_MONTHS[month - 1]} {ordinal(day)}"
    if not written_year:
        return spoken
    full = int(written_year)
    if len(written_year) == 2:
        full += 2000 if full < 60 else 1900
    return f"{spoken}, {year(full)}"


def _say_iso_date(m: re.Match[str], w: Wording) -> str | None:
    return _date(int(m.group(2)), int(m.group(3)), m.group(1))


def _say_slash_date(m: re.Match[str], w: Wording) -> str | None:
    first, second = int(m.group(1)), int(m.group(2))
    return _date(first, second, m.group(3)) or _date(second, first, m.group(3))


def _say_month_day(m: re.Match[str], w: Wording) -> str | None:
    day, last = int(m.group(2)), m.group(3)
    if not 1 <= day <= 31:
        return None
    spoken = f"{_month(m.group(1))} {ordinal(day)}"
    if last:
        spoken += f" to {ordinal(int(last))}"
    return f"{spoken}, {year(int(m.group(4)))}" if m.group(4) else spoken


def _say_day_month(m: re.Match[str], w: Wording) -> str | None:
    """12 May 2025: the twelfth of May, as it is read where it is written so."""
    day = int(m.group(1))
    if not 1 <= day <= 31:
        return None
    article = "" if text_before(m).lower().endswith("the ") else "the "
    spoken = f"{article}{ordinal(day)} of {_month(m.group(2))}"
    return f"{spoken}, {year(int(m.group(3)))}" if m.group(3) else spoken


def _say_short_month(m: re.Match[str], w: Wording) -> str | None:
    return _month(m.group(1)) + kept_stop(m)


def _say_short_day(m: re.Match[str], w: Wording) -> str | None:
    return _DAYS[m.group(1).lower()] + kept_stop(m)


def _say_clock(m: re.Match[str], w: Wording) -> str | None:
    hour, minute = int(m.group(1)), int(m.group(2))
    after = m.string[m.end() : m.end() + 6].lstrip().lower()
    if re.search(r"(?i)ratio(?: of)? ?$", text_before(m)):
        return f"{cardinal(hour)} to {cardinal(minute)}"
    if hour > 24 or minute > 59:
        return None
    if minute == 0:
        exact = after.startswith(("a", "p", "noon", "midn", "o'"))
        return cardinal(hour) if exact or hour > 12 else f"{cardinal(hour)} o'clock"
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def _say_ratio(m: re.Match[str], w: Wording) -> str | None:
    return f"{cardinal(int(m.group(1)))} to {cardinal(int(m.group(2)))}"


def _say_duration(m: re.Match[str], w: Wording) -> str | None:
    names = ("hour", "minute", "second")
    parts = [
        f"{cardinal(n)} {name}{'s' * (n != 1)}"
        for n, name in zip((int(g) for g in m.groups()), names, strict=True)
        if n
    ]
    if len(parts) < 2:
        return parts[0] if parts else "zero seconds"
    return ", ".join(parts[:-1]) + (" and " if len(parts) == 2 else ", and ") + parts[-1]


def _say_half_day(m: re.Match[str], w: Wording) -> str | None:
    hour, minute = int(m.group(1)), int(m.group(2) or 0)
    if hour > 24 or minute > 59:
        return None
    past = f" {'oh ' if minute < 10 else ''}{cardinal(minute)}" if minute else ""
    return f"{cardinal(hour)}{past} {' '.join(m.group(3).upper())}"


def _say_range(m: re.Match[str], w: Wording) -> str | None:
    first, last = m.group(1), m.group(2)
    if (
        w.parse(first)[0] is None
        or w.parse(last)[0] is None
        or first[0] == "0" != first
        or (last[0] == "0" and "." not in last)
    ):
        return None
    if first == last and not m.group(3):
        return f"{w.number(first)} {w.number(last)}"  # 50-50
    if "–" not in m.group() and len(last) - len(first) >= 2:
        return f"{digits(first)} dash {digits(last)}"  # 55-1021, an id
    if "–" not in m.group() and (len(first) > 4 or (len(first) == 3 and len(last) == 4)):
        return None
    unit = w.units.get(m.group(3) or "")
    if m.group(3) and unit is None:
        return None
    if unit is not None:
        return f"{w.number(first)} to {w.number(last)} {w.counted(unit, last)}"
    if _is_year(first) and _is_year(last):
        return f"{year(int(first))} to {year(int(last))}"
    return f"{w.number(first)} to {w.number(last)}"


def _is_year(text: str) -> bool:
    return len(text) == 4 and text.isdecimal() and 1100 <= int(text) < 2100


def _say_year(m: re.Match[str], w: Wording) -> str | None:
    if _NUMBERED.search(text_before(m)):
        return None
    if m.group(2):
        decade = year(int(m.group(1)))
        return decade[:-1] + "ies" if decade.endswith("y") else decade + "s"
    return year(int(m.group(1)))


def _say_version(m: re.Match[str], w: Wording) -> str | None:
    numbers = re.findall(r"\d+", m.group(2))
    link = " dot " if len(numbers) == 4 else " point "
    spoken = link.join(cardinal(int(n)) for n in numbers)
    return f"version {spoken}" if m.group(1) else spoken


def _say_fraction(m: re.Match[str], w: Wording) -> str | None:
    top, bottom = int(m.group(2)), int(m.group(3))
    whole = m.group(1)
    if (top, bottom) == (24, 7) and not whole:
        return "twenty-four seven"
    if (top, bottom) == (9, 11) and not whole:
        return "nine eleven"
    if not whole and (_DATED.search(text_before(m)) or (top <= 12 and bottom in _ONLY_DAYS)):
        return _date(top, bottom) or f"{cardinal(top)} over {cardinal(bottom)}"
    if top < bottom and bottom in _FRACTIONS:
        return _fraction(whole, top, bottom)
    if whole:
        return None
    if top <= bottom:
        return f"{cardinal(top)} out of {cardinal(bottom)}"
    return f"{cardinal(top)} over {cardinal(bottom)}"


def _fraction(whole: str | None, top: int, bottom: int) -> str:
    name = _FRACTIONS[bottom]
    if top > 1:
        name = "halves" if name == "half" else name + "s"
    if whole and (top, bottom) == (1, 2):
        return f"{cardinal(int(whole))} and a half"
    spoken = f"{cardinal(top)} {name}"
    return f"{cardinal(int(whole))} and {spoken}" if whole else spoken


def _say_vulgar(m: re.Match[str], w: Wording) -> str | None:
    return _fraction(m.group(1), *_VULGAR[m.group(2)])


def _say_spelled_digits(m: re.Match[str], w: Wording) -> str | None:
    return ", ".join(digits(g) for g in re.findall(r"\d+", m.group()))


def _say_us_phone(m: re.Match[str], w: Wording) -> str | None:
    groups = ", ".join(digits(g) for g in re.findall(r"\d+", m.group()))
    return f"plus {groups}" if m.group().startswith("+") else groups


def _say_id(m: re.Match[str], w: Wording) -> str | None:
    unit = re.fullmatch(r"[\d.]+([A-Z]+)", m.group())
    if unit is not None and unit.group(1) in w.units:
        return None  # 512MB, 120V
    if re.fullmatch(r"[FC]Y20\d\d", m.group()):
        return f"{m.group()[0]} Y {year(int(m.group()[2:]))}"
    out: list[str] = []
    named = re.fullmatch(r"[A-Z]+-\d{1,2}", m.group())  # F-16, COVID-19
    for token in re.findall(r"[A-Z]+|\d+|[-.]", m.group()):
        if token.isdecimal():
            out.append(cardinal(int(token)) if len(token) <= 2 and token[0] != "0" else digits(token))
        elif token.isalpha():
            word = len(token) > 3 and re.search("[AEIOUY]", token)
            out.append(token if word else " ".join(token))
        elif not named:
            out.append("dash" if token == "-" else "dot")
    return " ".join(out)


def _say_code_number(m: re.Match[str], w: Wording) -> str | None:
    text = m.group()
    numbered = len(text) > 2 and _NUMBERED.search(text_before(m))
    return digits(text) if numbered or len(text) > 4 else None


def _say_roman(m: re.Match[str], w: Wording) -> str | None:
    before = text_before(m).split()[-1:]
    values = [_ROMAN[c] for c in m.group()]
    value = sum(-v if v < n else v for v, n in zip(values, [*values[1:], 0], strict=True))
    if not before or _to_roman(value) != m.group():
        return None
    if before[0] in w.listed("regnal"):
        return f"the {ordinal(value).capitalize()}"
    counted = before[0].lower() in w.listed("numeral_nouns")
    return cardinal(value) if counted or (len(m.group()) > 1 and before[0][0].isupper()) else None


def _to_roman(value: int) -> str:
    steps = ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))
    out = ""
    for step, name in steps:
        while value >= step:
            out, value = out + name, value - step
    return out


def _say_saint(m: re.Match[str], w: Wording) -> str | None:
    """St. and Dr. before a name are a saint and a doctor; after one, a street and a drive."""
    words = text_before(m).split()
    titled = text_after(m).lstrip()[:1].isupper()
    if m.group(1) == "Dr":
        return "Doctor" if titled or not words else "Drive" + kept_stop(m)
    if m.group(1) == "Ft":
        return "Fort" if titled and not (words and words[-1][-1:].isdigit()) else None
    named = len(words) > 1 and words[-1][:1].isupper() and words[-1][-1:].isalpha()
    return "Saint" if titled and not named else "Street" + kept_stop(m)


def _say_hashtag(m: re.Match[str], w: Wording) -> str | None:
    if m.group(1).isdecimal():
        return f"number {digits(m.group(1)) if len(m.group(1)) > 3 else cardinal(int(m.group(1)))}"
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", m.group(1))
    return "hashtag " + " ".join(words) if words else None


def _say_mention(m: re.Match[str], w: Wording) -> str | None:
    return "at " + m.group(1).replace("_", " underscore ").strip()


def _say_shout(m: re.Match[str], w: Wording) -> str | None:
    """A common word in capitals is shouted; any other may be an acronym."""
    return m.group().lower() if m.group().lower() in w.listed("shouted") else None


def _say_per(m: re.Match[str], w: Wording) -> str | None:
    name = m.group(1) or m.group(2)
    return " per " + _PER.get(name, name)


def _say_number_sign(m: re.Match[str], w: Wording) -> str | None:
    return "number"


def _say_to(m: re.Match[str], w: Wording) -> str | None:
    return " to "


def _say_and(m: re.Match[str], w: Wording) -> str | None:
    spaced = m.group() != "&"
    return "and" if not spaced and text_before(m)[-1:].isspace() else " and "


def _say_minus(m: re.Match[str], w: Wording) -> str | None:
    return "minus "


def _say_times(m: re.Match[str], w: Wording) -> str | None:
    return " times "


def _say_about(m: re.Match[str], w: Wording) -> str | None:
    return "about "


def _say_bare_decimal(m: re.Match[str], w: Wording) -> str | None:
    return f"zero point {digits(m.group(1))}"


def _say_marker(m: re.Match[str], w: Wording) -> str | None:
    number = m.group(1)
    return cardinal(int(number)).capitalize() + ". " if int(number) < 100 else None


_START = r"(?<![\w.,:/$€£-])"
_END = r"(?![\w%:/]|[.,-]\d)"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_MONTH_DAY = rf"\b({_MONTH})\.? {_DAY}(?:[ ]?[–-][ ]?{_DAY})?(?:,? (\d{{4}}))?(?![\w/:]|[.,]\d)"
_PHONE = (
    r"(?<![\w.-])(?:\+\d{1,3}[ .-]?|1[ .-])?(?:\(\d{3}\)|\d{3})[ .-]?\d{3}[.-]\d{4}(?![\w-])|"
    r"(?<![\w.-])\d{3}[-.]\d{4}(?![\w-])"
)
_ID = (
    r"(?<![\w$€£.-])(?=[A-Z\d.-]{0,40}\d)(?=[\d.-]{0,40}[A-Z])(?=[A-Z\d.-]{2})"
    r"[A-Z\d]{1,40}(?:[-.][A-Z\d]{1,40}){0,9}(?![\w-])"
)
_RANGE = rf"{_START}({NUMBER})[ ]?[–-][ ]?({NUMBER})"
_RANGE_END = r"(?![\w:/-]|\.\d)"
_PER_UNIT = (
    r"(?<=\d)/(?:(mo|yr|hr|min|sec|wk|pp)\b\.?|(d|h|s|month|year|hour|day|week|night|person|minute|second|guest|user|"
    r"seat|unit|item|room|share|ticket|gallon|pound|mile|lb|kg)\b)"
)
_TO = (
    r"(?<=[\w.%])[ ]?–[ ]?(?=[$€£\d])|(?<=[\d%])-(?=[$€£])|(?<=%)-(?=\d)|(?<=[a-z])–(?=[A-Z])|"
    r"(?<=[apAP]\.[mM]\.)[ ]?-[ ]?(?=\d)|(?<=[apAP][mM])-(?=\d)"
)

ENGLISH: tuple[Rule, ...] = (
    *EXTRA,
    Rule("marker", "l", r"^[ \t]*\(?(\d{1,2})[.)][ \t]+(?=\S)", _say_marker),
    Rule("iso_date", "d", rf"{_START}(\d{{4}})-(\d{{2}})-(\d{{2}})(?![\w-])", _say_iso_date),
    Rule("slash_date", "d", rf"{_START}(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}|\d{{2}})(?![\w/])", _say_slash_date),
    Rule("month_day", "a", _MONTH_DAY, _say_month_day),
    Rule("day_month", "d", rf"(?<![\w.,/-]){_DAY} ({_MONTH})\b\.?(?:,? (\d{{4}}))?(?![\w/:]|[.,]\d)", _say_day_month),
    Rule("short_month", "a", r"\b(Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.(?!\w)", _say_short_month),
    Rule("short_day", "a", r"\b(Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)\.(?!\w)", _say_short_day),
    Rule("duration", "d", r"(?<![\w:.])(\d{1,2}):(\d{2}):(\d{2})(?![\w:])", _say_duration),
    Rule("half_day", "d", r"(?<![\w:.])(\d{1,2})(?::(\d{2}))?\s?(am|pm|AM|PM)\b", _say_half_day),
    Rule("clock", "d", r"(?<![\w:.])(\d{1,2}):(\d{2})(?!\d|:\d)", _say_clock),
    Rule("ratio", "d", r"(?<![\w:.])(\d{1,4}):(\d{1,4})(?![\w:])", _say_ratio),
    Rule("us_phone", "ds", _PHONE, _say_us_phone),
    Rule("spelled_digits", "d", r"(?<![\w-])\d(?:-\d){2,}(?![\w-])", _say_spelled_digits),
    Rule("version", "da", r"(?<![\w.])(v(?:er(?:sion)?)?\.? ?)?(\d+(?:\.\d+){2,})(?![\w]|\.\d)", _say_version),
    Rule("v_number", "a", r"(?<![\w.])(v)(\d+(?:\.\d+)?)(?![\w]|\.\d)", _say_version),
    Rule("vulgar", "das", r"(?:(?<![\w.,])(\d+) ?)?([½⅓⅔¼¾⅛⅜⅝⅞])", _say_vulgar),
    Rule("fraction", "d", r"(?<![\w.,/$-])(?:(\d+) )?(\d{1,3})/(\d{1,3})(?![\w/])", _say_fraction),
    Rule("ordinal", "d", r"(?<![\w.,])(\d+)(?:st|nd|rd|th)\b", lambda m, w: ordinal(int(m.group(1)))),
    Rule("id", "da", _ID, _say_id),
    Rule("range", "d", rf"{_RANGE}(?:[ ]?(km/h|[A-Za-zµ]{{1,5}}|°[CF]))?{_RANGE_END}", _say_range),
    Rule("bare_range", "d", rf"{_RANGE}(){_RANGE_END}", _say_range),
    Rule("about_decade", "d", r"(?<=[a-z]-)(1[1-9]\d{2}|20\d{2})(s)\b", _say_year),
    Rule("year", "d", rf"{_START}(1[1-9]\d{{2}}|20\d{{2}})(s)?{_END}", _say_year),
    Rule("code_number", "d", rf"{_START}\d{{3,}}{_END}", _say_code_number),
    Rule("per", "s", _PER_UNIT, _say_per),
    Rule("roman", "a", r"(?<=[A-Za-z] )[IVXL]{1,7}\b(?!['’.])|(?<=[A-Za-z] )[IVXL]{2,7}(?=\.\s|\.$)", _say_roman),
    Rule("saint", "a", r"\b(St|Dr|Ft)\.(?!\w)", _say_saint),
    Rule("number_sign", "a", r"\b[Nn]o\.(?= ?[A-Z]{0,4}-?\d)", _say_number_sign),
    Rule("hash_number", "s", r"(?<![\w&])#(?=[A-Z\d]+-[A-Z\d])", lambda m, w: "number "),
    Rule("hashtag", "s", r"(?<![\w&])#(\w+)", _say_hashtag),
    Rule("mention", "s", r"(?<![\w@])@([A-Za-z]\w*)", _say_mention),
    Rule("to", "ws", _TO, _say_to),
    Rule("and", "s", r"(?<=[A-Z])&(?=[A-Z])|(?<=\s)&(?=\s)", _say_and),
    Rule("minus", "s", r"(?<![\w)])[-−](?=[\d$€£])", _say_minus),
    Rule("times", "ws", r"(?<=\d)[ ]?[*×][ ]?(?=\d)", _say_times),
    Rule("about", "s", r"(?<!\w)[~≈] ?(?=[\d$€£])", _say_about),
    Rule("bare_decimal", "s", r"(?<![\w.])\.(\d+)\b", _say_bare_decimal),
    Rule("shout", "a", r"\b[A-Z]{2,9}\b", _say_shout),
)  # fmt: skip
"""Before the amounts and numbers of every language."""
