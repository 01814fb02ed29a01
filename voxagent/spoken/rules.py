"""What the normaliser recognises in any language: addresses, money, units, percentages, numbers.

A rule is a pattern and a function from its match to spoken text. Rules are tried in order at each place; the tables
they draw on are the lexicon's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from voxagent.marks import TOP_LEVEL_DOMAINS
from voxagent.spoken.agreement import agreeing
from voxagent.spoken.numbers import Wording, cardinal, digits, ordinal

Say = Callable[[re.Match[str], Wording], str | None]
"""Spoken text of a match; empty for silence, None when the rule does not apply after all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing the normaliser recognises.

    Attributes:
        name: An identifier.
        starts: What it may start with: ``l`` the start of a line, ``a`` a word, ``d`` a digit, ``w`` whitespace,
            ``s`` any other sign. A word or a number is tried at its first character only.
        pattern: Regular expression without named groups.
        say: Its spoken form.
        pause: Mark to say in place of a silent match.
    """

    name: str
    starts: str
    pattern: str
    say: Say
    pause: str = ""


_NEAR = 48  # characters that a rule looks at around its match; keeps the work linear


def text_before(m: re.Match[str]) -> str:
    """The text just before a match."""
    return m.string[max(0, m.start() - _NEAR) : m.start()]


def text_after(m: re.Match[str]) -> str:
    """The text just after a match."""
    return m.string[m.end() : m.end() + _NEAR]


def silent(m: re.Match[str], w: Wording) -> str | None:
    """Says nothing."""
    return ""


def kept_stop(m: re.Match[str]) -> str:
    """An abbreviation's full stop that also ends the text."""
    rest = text_after(m).strip(" \t*_\"'”’)")
    return "." if not rest and m.start() > 0 and not text_after(m).strip().startswith("|") else ""


UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\uff21-\uff3a\uff41-\uff5a\uff66-\uff9f"
)
"""Scripts whose letters may stand right beside a number or a foreign word: Thai, Chinese, Japanese, Korean."""
_W = rf"(?:(?![{UNSPACED}])\w)"
_FREE = rf"(?<![.,])(?<![^\W{UNSPACED}])"
APART = rf"(?<![.,:/-])(?<![^\W{UNSPACED}])"
"""Before a number that is no part of anything longer."""
IN_RANGE = rf"(?<![.,:/])(?<![^\W{UNSPACED}])"
"""The same where a dash before it means "to"."""
ENDED = rf"(?!{_W}|/|[.,:]\d)"
"""After one."""
EMOJI = (
    r"(?:[\U0001F000-\U0001FAFF☀-➿⬅-⭕⌚⌛⏩-⏺▪-◾〰〽㊗㊙™©®]|[0-9#*]\ufe0f?\u20e3)"
    r"[\ufe0e\ufe0f\u20e3\u200d\U0001F3FB-\U0001F3FF\U000E0020-\U000E007F]*"
)
_HOST = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?\.)+(?:{TOP_LEVEL_DOMAINS}|test|local|[a-z]{{3,18}}(?=/))"
_URL_REST = r"[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?。，]"
_PATH = r"(?:/[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?。，])?"


def _spell_host(text: str, w: Wording) -> str:
    """Words of a host, a path or a mailbox: letters stay words, signs get names."""
    out: list[str] = []
    for token in re.findall(r"[^\W\d_]+|\d+|[^\w]|_", text):
        if token.isdecimal():
            out.append(digits(token, w.language))
        elif token[0].isalpha():
            out.append(_letters(token))
        else:
            out.append(w.word(token) or (w.word("dash") if token in "-–" else ""))
    return w.joint.join(t for t in out if t) if w.joint else "".join(out)


def _letters(token: str) -> str:
    """A short token without vowels is spelled."""
    if len(token) == 1 or (len(token) <= 4 and not re.search(r"[aeiouyäöüéèáíóúAEIOUY]", token)):
        return " ".join(token.upper())
    return token


def _say_url(m: re.Match[str], w: Wording) -> str | None:
    if not w.word("."):
        return None
    text = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://", "", m.group())
    host, _, path = text.partition("/")
    path = re.split(r"[?#]", path)[0].strip("/")
    host = re.split(r"[?#]", host)[0].removeprefix("www.")
    spoken = _spell_host(host, w)
    short = len(path) <= 24 and path.count("/") <= 2
    if path and w.reading.url != "domain" and (short or w.reading.url == "full"):
        spoken = w.joint.join((spoken, _spell_host("/" + path, w)))
    return spoken


def _say_email(m: re.Match[str], w: Wording) -> str | None:
    if not w.word("@"):
        return None
    local, _, host = m.group().rpartition("@")
    return w.joint.join((_spell_host(local, w), w.word("@"), _spell_host(host, w)))


_GROUPED = r"\d{1,3}(?:[,.'’ \u00a0\u202f\u2009]\d{3})+(?!\d)"
NUMBER = rf"(?:{_GROUPED}(?:[.,]\d+)?|\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?!\d)|\d+(?:[.,]\d+)?)"
_SCALE = {
    "k": 1,
    "K": 1,
    "m": 2,
    "M": 2,
    "mn": 2,
    "mm": 2,
    "MM": 2,
    "b": 3,
    "B": 3,
    "bn": 3,
    "Bn": 3,
    "t": 4,
    "T": 4,
    "tn": 4,
}
_SCALE_WORD = r"(?:thousand|million|billion|trillion)"


def _amount(number: str, forms: str, w: Wording) -> str:
    """Money: units and hundredths, or a plain decimal when the decimals are not hundredths.

    `forms` holds one|many of both, or one|few|many and the same of the hundredths behind a semicolon.
    """
    names = forms.split("|")
    major, _, minor = forms.partition(";")
    if len(names) == 4 and not minor:
        major, minor = "|".join(names[:2]), "|".join(names[2:])
    whole, fraction = w.parse(number)
    if not fraction or not fraction.strip("0"):
        return _counted(whole or 0, major, w)
    if len(names) == 4 and w.language == "zh":
        return _chinese_amount(whole or 0, fraction, names)
    if len(fraction) != 2 or not minor:
        return w.join(w.number(number), w.counted(major, number))
    cents = _counted(int(fraction), minor, w)
    both = w.join(_counted(whole, major, w), w.word("money_and"), cents) if whole else cents
    return both.replace(" و ", " و") if w.language == "ar" else both


def _counted(value: int, forms: str, w: Wording) -> str:
    """A number and its noun, which agree."""
    noun = w.counted(forms, str(value))
    return w.join(agreeing(value, noun, w), noun)


def _chinese_amount(whole: int, fraction: str, names: list[str]) -> str:
    """Yuan, jiao and fen, each with its own digit."""
    tenths, hundredths = int(fraction[0]), int(fraction[1:2] or "0")
    spoken = cardinal(whole, "zh") + names[0] if whole else ""
    spoken += cardinal(tenths, "zh") + names[2] if tenths else ""
    return spoken + (cardinal(hundredths, "zh") + names[3] if hundredths else "")


def _say_money_before(m: re.Match[str], w: Wording) -> str | None:
    return _money(m.group(1), m.group(2), m.group(3) or m.group(4) or "", w)


def _say_money_after(m: re.Match[str], w: Wording) -> str | None:
    if w.language == "ar" and m.group(2)[0].isalpha() and not w.parse(m.group(1))[1]:
        return None  # the written noun has the case it needs
    return _money(m.group(2), m.group(1), "", w)


def _money(sign: str, number: str, scale: str, w: Wording) -> str | None:
    forms = w.currencies.get(sign)
    if forms is None or w.parse(number)[0] is None or _ambiguous(number, w):
        return None
    if not scale:
        return _amount(number, forms, w)
    names = str(w.speech.get("scales", "")).split()
    name = scale if len(scale) > 4 else names[_SCALE[scale] - 1] if names else ""
    plural = forms.split("|")[1 if "|" in forms else 0]
    return w.join(w.number(number), name, plural) if name else None


def _say_percent(m: re.Match[str], w: Wording) -> str | None:
    word = w.word("percent")
    if not word:
        return None
    forms = w.counted(word, m.group(1))
    if w.speech.get("percent_first", False):
        return w.join(forms, w.number(m.group(1)))
    return w.join(w.number(m.group(1)), forms)


def _say_unit(m: re.Match[str], w: Wording) -> str | None:
    forms = w.units.get(m.group(2))
    dated = m.group(2) == "г" and text_after(m).startswith(".")  # Russian: a year, not grams
    if forms is None or w.parse(m.group(1))[0] is None or dated:
        return None
    whole, fraction = w.parse(m.group(1))
    ended = "." if m.group(3) and not w.lexicon.noun_capitals else ""
    if whole is not None and not fraction:
        return _counted(whole, forms, w) + ended
    return w.join(w.number(m.group(1)), w.counted(forms, m.group(1))) + ended


def _say_bare_percent(m: re.Match[str], w: Wording) -> str | None:
    return f"{w.joint}{w.counted(w.word('percent'), '2')}" if w.word("percent") else None


def _say_per(m: re.Match[str], w: Wording) -> str | None:
    """1.200.000đ/đêm, 12 €/Nacht: the stroke between money and what it is for."""
    word = w.word("per")
    return f" {word} " if word and _PRICE.search(text_before(m)[-_PRICE_LENGTH:]) else None


def _say_number(m: re.Match[str], w: Wording) -> str | None:
    text = m.group()
    if w.known and w.parse(text)[0] is not None and not _ambiguous(text, w):
        return w.number(text)
    return None


def _say_spaced_number(m: re.Match[str], w: Wording) -> str | None:
    """1 280: a thin space that was typed as a plain one, where the comma is for decimals."""
    return w.number(m.group().replace(" ", "")) if w.decimal == "," else None


def _ambiguous(text: str, w: Wording) -> bool:
    """Separators of another locale, which are not guessed at."""
    other = "," if w.decimal == "." else "."
    head, _, tail = text.rpartition(other)
    return bool(head) and len(tail.partition(w.decimal)[0]) != 3


def _say_digit_run(m: re.Match[str], w: Wording) -> str | None:
    return digits(m.group(), w.language) if w.known else None


def _say_phone(m: re.Match[str], w: Wording) -> str | None:
    """Groups of digits, a pause between them; a leading plus is said."""
    text = m.group()
    groups = re.findall(r"\d+", text)
    if not w.known or sum(map(len, groups)) < 7:
        return None
    mark = "，" if w.language == "zh" else "" if w.language in ("th", "ja") else ", "
    spoken = mark.join(digits(g, w.language) for g in groups)
    return w.join(w.word("+"), spoken) if text.lstrip().startswith("+") else spoken


def _say_abbreviation(m: re.Match[str], w: Wording) -> str | None:
    text = m.group()
    found = w.abbreviations.get(text) or w.abbreviations.get(text[:1].lower() + text[1:])
    if found and "|" in found:  # the second form follows a preposition of place
        before = text_before(m).split()[-1:]
        found = found.split("|")[bool(before) and before[0].lower() in w.listed("place_before")]
    if found and text.endswith(".") and not text_after(m).strip() and m.end() > 4:
        return found + "."
    return found


def _say_sign(m: re.Match[str], w: Wording) -> str | None:
    return w.word(m.group().strip()) or None


def _say_dot_ordinal(m: re.Match[str], w: Wording) -> str | None:
    """ "3. Mai": an ordinal; German bends it after "am" and the like."""
    opens = not text_before(m).strip()
    if not w.lexicon.dot_ordinals or (opens and not text_after(m).lstrip()[:1].islower()):
        return None  # a list marker
    before = (text_before(m).split() or [""])[-1].lower()
    bent = w.language == "de" and before in ("am", "dem", "den", "zum", "vom", "im", "bis", "ab")
    spoken = ordinal(int(m.group(1)), w.language)
    noun = re.match(r" (\w+)", text_after(m))
    if w.language == "pl" and noun is not None and noun.group(1).endswith(("a", "ą", "e", "o")):
        spoken = re.sub(r"y\b", noun.group(1)[-1].replace("o", "e"), spoken)
        return re.sub(r"i\b", "i" + noun.group(1)[-1].replace("o", "e"), spoken)
    return spoken + ("n" if bent else "")


def _say_clock_time(m: re.Match[str], w: Wording) -> str | None:
    hour, minute = int(m.group(1)), int(m.group(2) or m.group(3))
    if not w.known or hour > 24 or minute > 59:
        return None
    spoken_minute = cardinal(minute, w.language) if minute else ""
    return w.join(cardinal(hour, w.language), w.word("hour"), spoken_minute)


def _say_emoji(m: re.Match[str], w: Wording) -> str | None:
    if m.group()[0] in "❤♥" and text_before(m).endswith("I "):
        return "love"
    return ""


_CURRENCY = r"US\$|A\$|C\$|NZ\$|HK\$|R\$|[$€£¥￥₹₩₽₺₫฿]|CHF|EUR|USD|GBP|JPY|CAD|AUD|PLN|TRY"
_CURRENCY_AFTER = r"[€$¢£¥₹₩₽₺₫฿đ円元원]|EUR|USD|GBP|CHF|TL|zł|руб\.?|kr\.?|ريالا?ً?|درهما?ً?|جنيها?ً?|دولارا?ً?|บาท"

_PRICE = re.compile(rf"\d[ \u00a0\u202f]?(?:{_CURRENCY_AFTER})\Z|(?:{_CURRENCY})[ \u00a0]?\d[\d.,]*\Z")
_PRICE_LENGTH = 24
_SCALED = rf"(?:[ \u00a0]?(bn|Bn|mn|tn|mm|MM|[kKmMbBtT])(?![\w])|[ \u00a0]({_SCALE_WORD})\b)?"
_PHONE = r"(?:\+\d{1,3}[ .-]?|8[ -](?=8))?(?:\(\d{1,5}\)[ .-]?)?\d{2,5}(?:(?:[ -]\d{2,5}){1,5}|[ /-]\d{6,9}(?!\d))"
_CLOCK = r"(\d{1,2})(?::(\d{2})(?: ?(?:Uhr|uur))?|\.(\d{2}) (?:Uhr|uur))(?![:.]?\d)"
_UNIT = (
    r"(°[CF]|[º℃℉%]C?|[^\W\d_]{1,5}/[^\W\d_]{1,4}|[A-Za-zµμ]{1,5}²?|[Ѐ-ӿ]{1,4}|[\u0600-\u06ff]{1,7}|"
    r"[\u0900-\u097f]{1,6}|°)"
)
_UNIT_STOP = r"(?:\.(?=[,;]|\s+[a-z\d(])|(\.)(?=\s+[^\W\d_]))?"  # an abbreviated unit's, unless it may end the sentence
_ABBREVIATION = (
    r"(?<![\w.\u0900-\u097f])(?:[^\W\d_]|[\u0900-\u097f]){1,6}(?:\.[^\W\d_]{1,3})*\.(?!\w)|"
    r"(?<![\w.])(?:Mme|Mlle|Mr|Mrs|Dr|[^\W\d_]{2,5}\.[^\W\d_]{2,3})(?![\w.])"
)

ADDRESSES: tuple[Rule, ...] = (
    Rule("email", "das", rf"[A-Za-z0-9._%+-]{{1,64}}@{_HOST}(?![A-Za-z0-9_])", _say_email),
    Rule("url", "a", rf"(?:(?:https?|ftp|wss?)://|(?<![\w@.])www\.){_URL_REST}", _say_url),
    Rule("domain", "da", rf"(?<![A-Za-z0-9_@.-]){_HOST}(?![A-Za-z0-9_@-]){_PATH}", _say_url),
    Rule("emoji", "sda", rf"(?:{EMOJI})+", _say_emoji),
)  # fmt: skip
"""Before all amounts: the digits in an address are its own."""


def abbreviation_rule(keys: Iterable[str]) -> Rule:
    """The rule for a language's own list of abbreviations, the longest first."""
    either = "|".join(_either_case(key) for key in sorted(keys, key=len, reverse=True))
    return Rule(
        "own_abbreviation", "as", rf"(?<![^\W{UNSPACED}])(?<!\.)(?:{either})(?![^\W{UNSPACED}]|\.\w)", _say_abbreviation
    )


def _either_case(key: str) -> str:
    """A key may open a sentence."""
    first = re.escape(key[0])
    if key[0].islower() and len(key) > 2:
        first = f"[{key[0]}{key[0].upper()}]" if len(key[0].upper()) == 1 else first
    return first + re.escape(key[1:])


AMOUNTS: tuple[Rule, ...] = (
    Rule("money", "as", rf"({_CURRENCY})[ \u00a0]?({NUMBER}){_SCALED}(?!\d)", _say_money_before),
    Rule("money_after", "d", rf"{_FREE}({NUMBER})[ \u00a0\u202f]?({_CURRENCY_AFTER})(?!{_W})", _say_money_after),
    Rule("percent", "d", rf"{_FREE}({NUMBER})[ \u00a0\u202f]?[%％٪]", _say_percent),
    Rule("phone", "ds", rf"(?<![+-]){_FREE}{_PHONE}(?!{_W}|-)", _say_phone),
    Rule("clock_time", "d", _FREE + _CLOCK, _say_clock_time),
    Rule("dot_ordinal", "d", rf"{_FREE}(\d{{1,2}})\.(?= [^\W\d_])", _say_dot_ordinal),
    Rule("unit", "d", rf"{_FREE}({NUMBER})[ \u00a0\u202f]?{_UNIT}(?!{_W}|/){_UNIT_STOP}", _say_unit),
    Rule("zeros", "d", rf"{_FREE}0\d+(?!{_W}|[.,]\d)", _say_digit_run),
    Rule("spaced_number", "d", rf"{APART}\d{{1,3}}(?: \d{{3}})+(?:,\d+)?(?!\d| \d|-)", _say_spaced_number),
    Rule("number", "d", rf"(?<![/:])(?<![^\W{UNSPACED}]-)(?<!--){_FREE}{NUMBER}(?!{_W}|[/:]|[.,-]\d)", _say_number),
    Rule("abbreviation", "a", _ABBREVIATION, _say_abbreviation),
    Rule("bare_percent", "s", r"(?<=\d)[%％٪]", _say_bare_percent),
    Rule("per", "s", r"/(?=[^\W\d_]{2})", _say_per),
    Rule("sign", "s", r"(?<=\s)[&+=×÷@](?=\s)", _say_sign),
)  # fmt: skip
"""For every language."""
