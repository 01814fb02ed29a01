"""Ordinals, Roman numerals, ranges, fractions, versions and agreement in the languages other than English.

By the tables in their `[speech.forms]`. Pure; the shape of a rule is `rules.Rule`.
"""

from __future__ import annotations

import re

from voxagent.spoken.agreement import agreeing
from voxagent.spoken.inflection import korean_native, polish_genitive, polish_ordinal, russian
from voxagent.spoken.numbers import Wording, cardinal, digits, ordinal
from voxagent.spoken.rules import APART, ENDED, NUMBER, UNSPACED, Rule, text_after, text_before

_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman_value(text: str) -> int | None:
    """The value of a Roman numeral in its only right form, up to 39 and of centuries; None for anything else."""
    values = [_ROMAN[c] for c in text]
    value = sum(-v if v < n else v for v, n in zip(values, [*values[1:], 0], strict=True))
    return value if 0 < value < 90 and _to_roman(value) == text else None


def _to_roman(value: int) -> str:
    steps = ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))
    out = ""
    for step, name in steps:
        while value >= step:
            out, value = out + name, value - step
    return out


# Ordinals.


def _gendered(words: str, feminine: bool, w: Wording) -> str:
    """The feminine of an ordinal, word by word."""
    if not feminine:
        return words
    match w.language:
        case "es" | "it" | "pt":
            return " ".join(re.sub(r"o$", "a", word) for word in words.split())
        case "fr":
            return "première" if words == "premier" else words
    return words


def _say_suffixed(m: re.Match[str], w: Wording) -> str | None:
    """3.º, 2ª, 1er, 2e, 5e, 3.er."""
    value, suffix = int(m.group(1)), m.group(2)
    if suffix == "°":
        suffix = "º" if re.match(r" [^\W\d_]", text_after(m)) else ""
    if value == 0 or value > 999 or suffix.lower() not in w.forms.get("ordinal_suffixes", "").split():
        return None
    words = _spanish_ordinal(value) if w.language == "es" else ordinal(value, w.language)
    if suffix == "er" and w.language == "es":
        return re.sub(r"o$", "", words)
    return _gendered(words, suffix in ("ª", "a", "re", "ère"), w)


def _spanish_ordinal(value: int) -> str:
    known = {11: "undécimo", 12: "duodécimo"}
    return known.get(value) or ordinal(value, "es")


def _say_russian_suffixed(m: re.Match[str], w: Wording) -> str | None:
    """5-й, 3-я, 2-го, 7-м."""
    forms = {
        "й": ("n", "m"), "ый": ("n", "m"), "ий": ("n", "m"), "ой": ("n", "m"), "я": ("n", "f"), "ая": ("n", "f"),
        "е": ("n", "n"), "ое": ("n", "n"), "го": ("g", "m"), "ого": ("g", "m"), "му": ("d", "m"), "м": ("p", "m"),
        "ом": ("p", "m"), "ю": ("a", "f"), "ую": ("a", "f"),
    }  # fmt: skip
    years = re.match(r" год", text_after(m))
    if w.language == "ru" and (m.group(2) in ("х", "ых") or (m.group(2) in ("е", "ые") and years)):
        return russian(int(m.group(1)), "ordinal", "n" if m.group(2) in ("е", "ые") else "g", plural=True)
    form = forms.get(m.group(2))
    return russian(int(m.group(1)), "ordinal", *form) if form and w.language == "ru" else None


# Roman numerals.


def _say_roman(m: re.Match[str], w: Wording) -> str | None:
    said = _roman(m, w)
    ends = m.group().endswith(".") and w.language not in ("de", "tr")
    return f"{said}." if said and ends else said


def _roman(m: re.Match[str], w: Wording) -> str | None:
    value = roman_value(m.group(1))
    after = text_after(m)
    before = text_before(m).split()[-1:]
    if value is None or not w.forms.get("roman"):
        return None
    century = re.match(rf"\s?(?:{w.forms.get('centuries', '(?!)')})\b", after) or (
        bool(before) and before[0].lower() in w.forms.get("century_before", "").split()
    )
    if century:
        return _century(value, after, m, w)
    if w.language == "tr" and m.group().endswith("."):
        return ordinal(value, "tr")
    named = bool(before) and before[0][:1].isupper() and before[0][-1:].isalpha()
    if not named or (len(m.group(1)) == 1 and m.group(1) not in ("I", "V", "X")):
        return None
    return _regnal(value, before[0], w)


def _century(value: int, after: str, m: re.Match[str], w: Wording) -> str | None:
    match w.language:
        case "es" | "pt":
            return _pt_ordinal(value) if w.language == "pt" and value < 11 else cardinal(value, w.language)
        case "pl":
            before = text_before(m).split()[-1:]
            local = bool(before) and before[0].lower() in ("w", "we", "o")
            nominative = re.match(r"\s?wiek\b", after)
            return ordinal(value, "pl") if nominative else polish_ordinal(value, "locative" if local else "genitive")
        case "ru":
            case = "p" if re.match(r"\s?веке", after) else "g" if re.match(r"\s?века", after) else "n"
            return russian(value, "ordinal", case)
    return ordinal(value, w.language)


def _pt_ordinal(value: int) -> str:
    return ordinal(value, "pt")


def _regnal(value: int, name: str, w: Wording) -> str | None:
    """The number of a king or a pope."""
    if w.language == "fr":
        return "premier" if value == 1 else cardinal(value, "fr")
    if w.language in ("es", "pt"):
        return ordinal(value, w.language) if value <= 10 else cardinal(value, w.language)
    if w.language == "de":
        return f"der {ordinal(value, 'de').capitalize()}"
    if w.language == "nl":
        return f"de {ordinal(value, 'nl').capitalize()}"
    if w.language == "ru":
        return russian(value, "ordinal", "n", "f" if name[-1] in "ая" and name not in ("Никита", "Илья") else "m")
    if w.language == "it":
        return _gendered(ordinal(value, "it"), name.endswith("a") and name not in ("Papa", "Andrea", "Luca"), w)
    return ordinal(value, w.language)


# Ranges, fractions, versions, signs.


def _say_range(m: re.Match[str], w: Wording) -> str | None:
    first, last = m.group(1), m.group(2)
    link = w.forms.get("range")
    if link is None or w.parse(first)[0] is None or w.parse(last)[0] is None:
        return None
    if (first[0] == "0" != first) or (last[0] == "0" != last and "," not in last and "." not in last):
        return None
    if "–" not in m.group() and (len(first) > 4 or (len(first) == 3 and len(last) == 4)):
        return None
    return w.join(w.number(first), link, w.number(last))


def _say_time_range(m: re.Match[str], w: Wording) -> str | None:
    """10:00〜18:00."""
    link = w.forms.get("range")
    return f"{w.joint}{link}{w.joint}" if link else None


def _say_fraction(m: re.Match[str], w: Wording) -> str | None:
    """½, 1½, 3/4: by the language's own table."""
    signs = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4"}
    whole, part = m.group(1), signs.get(m.group(2), m.group(2))
    table = w.fractions
    said = table.get(f"1 {part}" if whole == "1" else f"n {part}") if whole else table.get(part)
    if said is None and whole and part in table:
        said = w.join("{n}", table.get("and", ""), table[part])
    return None if said is None else said.replace("{n}", w.number(whole) if whole else "")


def _say_version(m: re.Match[str], w: Wording) -> str | None:
    """2.10.3, v2.3, Android 14.2."""
    if not m.group(1) and all(len(group) == 3 for group in m.group(2).split(".")[1:]):
        return None  # thousands
    point = w.forms.get("version_point") or w.word(".")
    if not point:
        return None
    said = w.join(*[part for n in m.group(2).split(".") for part in (cardinal(int(n), w.language), point)][:-1])
    lead = m.group(1)
    if not lead:
        return said
    name = w.forms.get("version", "") if lead.lower().startswith("v") else lead
    return w.join(name or lead, said) if w.joint else f"{lead}{said}"


def _say_named_version(m: re.Match[str], w: Wording) -> str | None:
    """A decimal point after a product's name, in a language that writes decimals with a comma."""
    point = w.word(".")
    if w.decimal != "," or not point or int(m.group(2)) > 99:
        return None
    return w.join(cardinal(int(m.group(1)), w.language), point, cardinal(int(m.group(2)), w.language))


def _say_by(m: re.Match[str], w: Wording) -> str | None:
    """2 x 4 m."""
    return f" {w.forms['by']} " if "by" in w.forms else None


def _say_multiple(m: re.Match[str], w: Wording) -> str | None:
    """2x plus cher."""
    times = w.forms.get("times")
    return w.join(agreeing(int(m.group(1)), times, w), times) if times else None


def _say_decade(m: re.Match[str], w: Wording) -> str | None:
    """German: die 90er, die 1990er."""
    if w.language != "de" or int(m.group(1)) % 10:
        return None
    value = int(m.group(1))
    high = f"{cardinal(value // 100, 'de')}hundert" if value > 1000 else ""
    return f"{high}{cardinal(value % 100, 'de') if value % 100 else ''}er"


def _say_minus(m: re.Match[str], w: Wording) -> str | None:
    if w.language == "zh" and not re.match(r"[\d.]+(?:到\d+)? ?(?:°|℃|度|摄氏)", text_after(m)):
        return "负"
    return f"{w.forms['minus']}{w.joint}" if "minus" in w.forms else None


def _say_plus(m: re.Match[str], w: Wording) -> str | None:
    return f"{w.word('+')}{w.joint}" if w.word("+") else None


# Before the noun that follows.


def _say_agreeing(m: re.Match[str], w: Wording) -> str | None:
    """1 hora, 21 días, 2 минуты, 200 personas: the number takes the noun's gender."""
    value = int(m.group(1))
    said = agreeing(value, m.group(2), w)
    return said if said != cardinal(value, w.language) else None


def _say_governed(m: re.Match[str], w: Wording) -> str | None:
    """After a preposition that asks for the genitive: от 3 до 5, od 3 do 5."""
    value = int(m.group(1))
    match w.language:
        case "ru":
            return russian(value, case="g")
        case "pl":
            return polish_genitive(value)
    return None


def _say_street(m: re.Match[str], w: Wording) -> str | None:
    """Lindenstr.: the name of a street and the word for it are one."""
    street = w.forms.get("street")
    return m.group(1) + street if street else None


def _say_code(m: re.Match[str], w: Wording) -> str | None:
    """After the word for a code, a PIN or a password: digit by digit."""
    before = text_before(m).casefold()
    words = re.findall(r"\w+", before)[-2:] if w.joint else []
    named = any(word in w.listed("codes") for word in words) or (
        (not w.joint or w.language == "ko") and any(code in before[-8:] for code in w.listed("codes"))
    )
    return digits(m.group(), w.language) if named else None


def _say_counter(m: re.Match[str], w: Wording) -> str | None:
    """Korean counters: native numbers below 100 before some, the others before the rest; a particle may follow."""
    value, after = int(m.group(1)), m.group(2)
    if after[0] == "월" and value in (6, 10):
        return {6: "유 ", 10: "시 "}[value]
    for size in (3, 2, 1):
        if after[:size] in w.listed("native_counters") and 1 <= value <= 99:
            return f"{korean_native(value)} "
        if after[:size] in w.listed("sino_counters"):
            return f"{cardinal(value, 'ko')} "
    return None


def _say_liang(m: re.Match[str], w: Wording) -> str | None:
    """Chinese: two before a measure word."""
    listed = w.listed("measure_words")
    return "两" if m.group(1) in listed or m.group(1)[0] in listed else None


def _say_year_digits(m: re.Match[str], w: Wording) -> str | None:
    return digits(m.group(1), "zh") if w.language == "zh" else None


_PREPOSITIONS = r"(?:с|от|до|после|около|более|менее|больше|меньше|без|из|od|do|około|ponad|powyżej|poniżej|bez|z)"
_GOVERNED = "|".join(rf"(?<=\b{p} )" for p in _PREPOSITIONS[3:-1].split("|"))

_SUFFIXES = "º|°|ª|er|re|ère|ers|e|ème|de|ste|do|o|a"

FORMS: tuple[Rule, ...] = (
    Rule("suffixed", "d", rf"{APART}(\d{{1,3}})\.?({_SUFFIXES})(?![\w'’]| ?[CF]\b)", _say_suffixed),
    Rule("russian_suffixed", "d", rf"{APART}(\d{{1,4}})-([а-я]{{1,3}})(?!\w)", _say_russian_suffixed),
    Rule("roman", "a", r"(?<![\w.])([IVXL]{1,8})(?:er?|º|ª|\.(?= \w)|\.(?=$))?(?![\w’'-])", _say_roman),
    Rule("fraction", "das", rf"(?:{APART}(\d+) ?)?([½⅓⅔¼¾]|(?<![\d/])[123]/[2345](?![\d/]))", _say_fraction),
    Rule("version", "ad", rf"{APART}([vV]|Version )?(\d+(?:\.\d+){{2,}}){ENDED}", _say_version),
    Rule("v_number", "a", rf"{APART}([vV])\.? ?(\d+(?:\.\d+)?){ENDED}", _say_version),
    Rule("named_version", "d", r"(?<=[A-Za-z] )(\d{1,2})\.(\d{1,2})(?![\w:]|[.,]\d|\s?[€%])", _say_named_version),
    Rule("range", "d", rf"{APART}({NUMBER})\s?[–〜～~-]\s?({NUMBER}){ENDED}(?!-)", _say_range),
    Rule("range_unit", "d", rf"{APART}({NUMBER})\s?[–-]\s?({NUMBER})(?=\s?(?:%|€|°|[a-z]{{1,3}}\b))", _say_range),
    Rule("time_range", "s", r"(?<=[\d分時时])\s?[〜～~]\s?(?=\d)", _say_time_range),
    Rule("by", "ws", r"(?<=\d) ?[x×] ?(?=\d)", _say_by),
    Rule("multiple", "d", rf"{APART}(\d{{1,3}})[x×](?!\w| ?\d)", _say_multiple),
    Rule("decade", "d", rf"{APART}(\d{{2,4}})er(?!\w)", _say_decade),
    Rule("hour_range", "s", r"(?<=\dh)\s?[–-]\s?(?=\d)", _say_time_range),
    Rule("clock_range", "s", r"(?<=[:.]\d\d)\s?[–〜～~-]\s?(?=\d{1,2}[:.]\d\d(?!\d))", _say_time_range),
    Rule("percent_range", "s", r"(?<=[%％])\s?[–〜～~-]\s?(?=\d)", _say_time_range),
    Rule("code", "d", rf"{APART}\d{{3,8}}{ENDED}", _say_code),
    Rule("minus", "s", rf"(?<![)\d%])(?<![^\W{UNSPACED}])[-−–](?=\d)", _say_minus),
    Rule("plus", "s", r"(?<![\w)])\+(?=\d{1,2}(?!\d))", _say_plus),
    Rule("street", "a", r"(?<!\w)([^\W\d_]{3,})str\.(?!\w)", _say_street),
    Rule("counter", "d", r"(?<![\d.,:])(\d{1,4}) ?(?=([가-힣]{1,3}))", _say_counter),
    Rule("liang", "d", r"(?<![\d.,:第])2(?=([\u4e00-\u9fff]{1,2}))", _say_liang),
    Rule("year_digits", "d", r"(?<!\d)(\d{4})(?=年)", _say_year_digits),
    Rule("governed", "d", rf"(?:{_GOVERNED})(\d{{1,3}})(?![\w:/%]|[.,-]\d)", _say_governed),
    Rule("agreeing", "d", rf"{APART}(\d{{1,6}})(?= ([^\W\d_]{{2,}}))", _say_agreeing),
)  # fmt: skip
"""After a language's own rules and its calendar, before the amounts and numbers of every language."""
