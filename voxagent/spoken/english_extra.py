"""English measures, grades and short forms: feet and inches, dimensions, multiples, fractions of a unit, opening hours.

Pure; the shape of a rule is `rules.Rule`. Tried before the rules in `english`.
"""

from __future__ import annotations

import re

from voxagent.spoken.numbers import Wording, cardinal
from voxagent.spoken.rules import NUMBER, Rule, kept_stop, text_after, text_before

_DAYS = {
    "mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday", "thu": "Thursday", "thur": "Thursday",
    "thurs": "Thursday", "fri": "Friday", "sat": "Saturday", "sun": "Sunday",
}  # fmt: skip
_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_SPANS = {name: name for name in ("second", "minute", "hour", "day", "week", "month", "year", "person", "serving")}
_SPANS |= {"mo": "month", "yr": "year", "wk": "week", "d": "day"}
_SCALES = {"k": "thousand", "K": "thousand", "M": "million", "B": "billion", "bn": "billion", "mn": "million"}
_DECADES = ("twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties", "nineties")
_FRACTION_WORDS = {"½": "half", "⅓": "a third", "⅔": "two thirds", "¼": "a quarter", "¾": "three quarters"}
_FRACTION_WORDS |= {"⅛": "one eighth", "⅜": "three eighths", "⅝": "five eighths", "⅞": "seven eighths"}


def _inches(number: str, w: Wording) -> str:
    return f"{w.number(number)} {'inch' if number == '1' else 'inches'}"


def _feet(number: str, w: Wording) -> str:
    return f"{w.number(number)} {'foot' if number == '1' else 'feet'}"


def _say_small(m: re.Match[str], w: Wording) -> str | None:
    """12 seats: by far the most common number, before all that it might be."""
    return None if m.group(1) in w.units else cardinal(int(m.group()))


def _say_area(m: re.Match[str], w: Wording) -> str | None:
    """2,400 sq ft, 12 fl. oz."""
    forms = w.units.get(m.group(3)) or ("inch|inches" if m.group(3) == "in" else None)
    kind = {"sq": "square", "cu": "cubic", "fl": "fluid"}[m.group(2)]
    return f"{w.number(m.group(1))} {kind} {w.counted(forms, m.group(1))}" if forms else None


def _say_hyphen_unit(m: re.Match[str], w: Wording) -> str | None:
    """A 45-min. drive, a 2-L bottle: an adjective is singular."""
    forms = w.units.get(m.group(2))
    return f"{w.number(m.group(1))} {forms.split('|')[0]}" if forms else None


def _say_priced(m: re.Match[str], w: Wording) -> str | None:
    return f"{w.number(m.group(1))} dollar"


def _say_feet_inches(m: re.Match[str], w: Wording) -> str | None:
    return f"{_feet(m.group(1), w)} {_inches(m.group(2), w)}"


def _say_feet(m: re.Match[str], w: Wording) -> str | None:
    return _feet(m.group(1), w)


def _say_inches(m: re.Match[str], w: Wording) -> str | None:
    quoted = m.group(0).endswith(('"', "”")) and text_before(m).count('"') % 2
    return None if quoted else _inches(m.group(1), w)


def _say_by(m: re.Match[str], w: Wording) -> str | None:
    """Between two measures; between bare numbers it is a product when an equals sign follows."""
    product = re.match(r"\s?[\d.,]+\s?=", text_after(m)) or (
        "×" in m.group() and re.match(r"[\d.,]+(?:[.!?]|$)", text_after(m)) and text_before(m)[-1:].isdigit()
    )
    return " times " if product else " by "


def _say_multiple(m: re.Match[str], w: Wording) -> str | None:
    span = f" a {m.group(2)}" if m.group(2) else ""
    return f"{w.number(m.group(1))} times{span}"


def _say_scaled(m: re.Match[str], w: Wording) -> str | None:
    """10k steps, 2.5M users; a small whole number before a K is a name (4K, 5K run)."""
    number, scale = m.group(1), m.group(2)
    if scale == "K" and number.isdecimal() and int(number) <= 10:
        return f"{w.number(number)} K"
    return f"{w.number(number)} {_SCALES[scale]}"


def _say_hours_minutes(m: re.Match[str], w: Wording) -> str | None:
    parts = [(m.group(1), "hour"), (m.group(2), "minute"), (m.group(3), "second")]
    said = [f"{w.number(n)} {name}{'' if n == '1' else 's'}" for n, name in parts if n]
    return " ".join(said) if len(said) > 1 else None


def _say_decade(m: re.Match[str], w: Wording) -> str | None:
    return _DECADES[int(m.group(1)) - 2]


def _say_day(m: re.Match[str], w: Wording) -> str | None:
    return _DAYS[m.group(1).lower()]


def _say_day_range(m: re.Match[str], w: Wording) -> str | None:
    return f"{_DAYS[m.group(1).lower()]} to {_DAYS[m.group(2).lower()]}" + kept_stop(m)


def _say_compare(m: re.Match[str], w: Wording) -> str | None:
    names = {">": "greater than", "<": "less than", "≥": "at least", "≤": "at most", ">=": "at least", "<=": "at most"}
    return f" {names[m.group(1)]} "


def _say_power(m: re.Match[str], w: Wording) -> str | None:
    return {"2": " squared", "3": " cubed"}[m.group(1)]


def _say_grade(m: re.Match[str], w: Wording) -> str | None:
    return f"{m.group(1)} {'plus' if m.group(2) == '+' else 'minus'}"


def _say_per_unit(m: re.Match[str], w: Wording) -> str | None:
    """mg/dL, kg/m²: the second unit is one."""
    first, second = w.units.get(m.group(2)), w.units.get(m.group(3)) or _SPANS.get(m.group(3))
    if first is None and second is not None and len(m.group(2)) > 3:
        return f"{w.number(m.group(1))} {m.group(2)} per {second}"
    if first is None or second is None or m.group(2) + "/" + m.group(3) in w.units:
        return None
    return f"{w.number(m.group(1))} {w.counted(first, m.group(1))} per {second.split('|')[0]}"


def _say_part_of_unit(m: re.Match[str], w: Wording) -> str | None:
    """¾ lb: three quarters of a pound; 2½ tsp is left to the unit of a number."""
    forms = w.units.get(m.group(2))
    if forms is None:
        return None
    unit = forms.split("|")[0]
    article = "an" if unit.startswith(("ounce", "inch", "hour", "acre")) else "a"
    part = _FRACTION_WORDS[m.group(1)]
    return f"{part} {article} {unit}" if part == "half" else f"{part} of {article} {unit}"


def _say_slashed_part(m: re.Match[str], w: Wording) -> str | None:
    signs = {("1", "2"): "½", ("1", "3"): "⅓", ("2", "3"): "⅔", ("1", "4"): "¼", ("3", "4"): "¾"}
    signs |= {("1", "8"): "⅛", ("3", "8"): "⅜", ("5", "8"): "⅝", ("7", "8"): "⅞"}
    sign = signs.get((m.group(1), m.group(2)))
    forms = w.units.get(m.group(3))
    if sign is None or forms is None:
        return None
    found = re.match(r"(.)(.+)", sign + m.group(3))
    return _say_part_of_unit(found, w) if found else None


def _say_mixed_unit(m: re.Match[str], w: Wording) -> str | None:
    """2½ tsp, 1 1/2 oz: the plural unit after a mixed number."""
    forms = w.units.get(m.group(1))
    return f" {forms.split('|')[-1]}" if forms else None


def _say_even_odds(m: re.Match[str], w: Wording) -> str | None:
    """50/50: a chance, not a fraction."""
    if m.group(1) != m.group(2) or int(m.group(1)) < 11:
        return None
    return f"{cardinal(int(m.group(1)))} {cardinal(int(m.group(1)))}"


def _say_big_number(m: re.Match[str], w: Wording) -> str | None:
    """15000: a round number without separators is an amount, not a code."""
    return cardinal(int(m.group()))


def _say_resolution(m: re.Match[str], w: Wording) -> str | None:
    number = m.group(1)
    high, low = divmod(int(number), 100)
    return f"{cardinal(high)} {cardinal(low)} p" if len(number) == 4 and low else f"{cardinal(int(number))} p"


def _say_either(m: re.Match[str], w: Wording) -> str | None:
    """he/she, Mr/Mrs: an alternative, where no path or address goes on."""
    before = re.search(r"[^\s(\"“]*$", text_before(m))
    after = re.match(r"[^\s)\"”,;:!?]*", text_after(m))
    first, last = before.group() if before else "", (after.group() if after else "").rstrip(".")
    if not (len(first) > 1 and len(last) > 1 and first.isalpha() and last.isalpha()):
        return None
    if len(first) == 2 and first.isupper() and last.isupper():
        return " "
    return " " if first.lower() == "and" else " or "


_AFTER_MEASURE = "|".join(rf"(?<=\d{gap}[a-z]{{{n}}})" for gap in ("", " ") for n in (1, 2))
_BY = rf"(?:(?<=[\d'’′\"”²])|{_AFTER_MEASURE}) ?[x×] ?(?=\d)"
_HOURS_MINUTES = r"(?<![\w.])(\d{1,3}) ?h(?:rs?|ours?)?\.? ?(\d{1,2}) ?m(?:ins?)?\b\.?(?: ?(\d{1,2}) ?s(?:ecs?)?\b)?"
_UNIT = r"([A-Za-zµμ]{1,7}[²³]?)"
_NOT_WORD = r"(?![\w/])"
_MIXED_UNIT = rf"(?:(?<=[½⅓⅔¼¾⅛⅜⅝⅞])|(?<=\d [1-7]/[2348])) ?{_UNIT}{_NOT_WORD}(?:\.(?= [a-z]))?"

_AREA = rf"(?<![\w.,])({NUMBER}) ?(sq|cu|fl)\.? ?(ft|in|mi|yd|m|km|cm|oz)\b(?:\.(?= [a-z]))?"
_HYPHEN_UNIT = r"(?<![\w.,-])(\d+(?:\.\d+)?)-([A-Za-z]{1,5})(?![\w-])(?:\.(?= [a-z]))?"
_PRICED = (
    "bill|note|coupon|voucher|gift|card|fee|deposit|discount|credit|charge|fine|minimum|co-?pay|rebate|refund|tip|"
    "donation|surcharge"
)

_AGED = "|".join(
    f"(?<={word}[ -])" for word in ("his", "her", "my", "their", "the", "your", "our", "early", "late", "mid")
)

EXTRA: tuple[Rule, ...] = (
    Rule("heart", "s", r"<3(?!\d)", lambda m, w: "love"),
    Rule("plus_minus", "s", r"± ?", lambda m, w: "plus or minus "),
    Rule("sharp", "a", r"(?<!\w)([A-G])#(?!\w)", lambda m, w: f"{m.group(1)} sharp"),
    Rule("area", "d", _AREA, _say_area),
    Rule("hyphen_unit", "d", _HYPHEN_UNIT, _say_hyphen_unit),
    Rule("priced", "s", rf"\$(\d+)(?= (?:{_PRICED})\b)", _say_priced),
    Rule("feet_inches", "d", r"(?<![\w.])(\d{1,3})['’′] ?(\d{1,2}(?:\.\d+)?)(?:\"|”|″|'')(?!\w)", _say_feet_inches),
    Rule("feet", "d", r"(?<![\w.])(\d+(?:\.\d+)?)['’′](?=\s?[x×]\s?\d|\s?(?:long|wide|tall|high|deep)\b)", _say_feet),
    Rule("feet_by", "d", r"(?<=[x×] )(\d+(?:\.\d+)?)['’′](?!\w)", _say_feet),
    Rule("foot_inch", "d", rf"(?<![\w.])({NUMBER}) ?ft\.? (\d+(?:\.\d+)?) ?in\b\.?(?! )", _say_feet_inches),
    Rule("foot_inch_goes_on", "d", rf"(?<![\w.])({NUMBER}) ?ft\.? (\d+(?:\.\d+)?) ?in\.(?= [a-z])", _say_feet_inches),
    Rule("inches", "d", rf"(?<![\w.])({NUMBER})(?:\"|”|″)(?!\w)", _say_inches),
    Rule("inches_short", "d", rf"(?<![\w.,])({NUMBER}) in\.(?= [a-z])", _say_inches),
    Rule("by", "ws", _BY, _say_by),
    Rule("multiple", "d", rf"(?<![\w.,])({NUMBER})[x×](?:/(day|week|month))?(?!\w| ?\d)", _say_multiple),
    Rule("resolution", "d", r"(?<![\w.,])(\d{3,4})p\b", _say_resolution),
    Rule("scaled", "d", rf"(?<![\w.,$€£])(\d+\.\d+|{NUMBER}(?!B))(k|K|M|B|bn|mn)(?![\w/-])", _say_scaled),
    Rule("hours_minutes", "d", _HOURS_MINUTES, _say_hours_minutes),
    Rule("age", "d", rf"(?:{_AGED})([2-9])0s\b", _say_decade),
    Rule("decade", "s", r"(?<!\w)['’]([2-9])0s\b", _say_decade),
    Rule("day_range", "a", rf"\b({_DAY})\.? ?[–-] ?({_DAY})\b\.?(?!\w)", _say_day_range),
    Rule("day", "a", rf"\b({_DAY})(?=,? (?:\d|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)))", _say_day),
    Rule("with", "a", r"\b([wW]/o)(?=\s)|\b[wW]/\s?(?=\w)", lambda m, w: "without" if m.group(1) else "with "),
    Rule("compare", "ws", r"(?<=[\d%])\s?(>=|<=|[<>≥≤])\s?(?=[\d$€£-])", _say_compare),
    Rule("power", "s", r"(?<=\w)\^([23])(?!\w)", _say_power),
    Rule("grade", "a", r"(?<![\w-])(AB|[A-DFO])([+−-])(?=[\s.,;:!?)]|$)", _say_grade),
    Rule("per_unit", "d", rf"(?<![\w.,])({NUMBER}) ?{_UNIT}/{_UNIT}{_NOT_WORD}", _say_per_unit),
    Rule("part_of_unit", "s", rf"(?<![\w.])([½⅓⅔¼¾]) ?{_UNIT}{_NOT_WORD}\.?", _say_part_of_unit),
    Rule("slashed_part", "d", rf"(?<![\w.,/ ])([1-7])/([2348]) {_UNIT}{_NOT_WORD}\.?", _say_slashed_part),
    Rule("slashed_part_in", "d", rf"(?<=[a-z] )([1-7])/([2348]) {_UNIT}{_NOT_WORD}\.?", _say_slashed_part),
    Rule("mixed_unit", "w", _MIXED_UNIT, _say_mixed_unit),
    Rule("even_odds", "d", r"(?<![\w.,/])(\d\d)/(\d\d)(?![\w/])", _say_even_odds),
    Rule("big_number", "d", r"(?<![\w.,:/$€£#-])[1-9]\d{0,3}000(?![\w%:/]|[.,-]\d)", _say_big_number),
    Rule("either", "s", r"/", _say_either),
)  # fmt: skip
"""Before the other English rules."""
