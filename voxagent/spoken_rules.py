"""What the normaliser recognises in any language: markup, addresses, money, units, percentages, numbers.

A rule is a pattern and a function from its match to spoken text. Rules are tried in order at each place; the tables
they draw on are the lexicon's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from voxagent.spoken_numbers import Wording, cardinal, digits, ordinal

Say = Callable[[re.Match[str], Wording], str | None]
"""Spoken text of a match; empty for silence, None when the rule does not apply after all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing the normaliser recognises.

    Attributes:
        name: An identifier.
        pattern: Regular expression without named groups.
        say: Its spoken form.
        pause: Mark to say in place of a silent match.
    """

    name: str
    pattern: str
    say: Say
    pause: str = ""


def _silent(m: re.Match[str], w: Wording) -> str | None:
    return ""


EMOJI = (
    r"(?:[\U0001F000-\U0001FAFF☀-➿⬅-⭕⌚⌛⏩-⏺▪-◾〰〽㊗㊙™©®]|[0-9#*]\ufe0f?\u20e3)"
    r"[\ufe0e\ufe0f\u20e3\u200d\U0001F3FB-\U0001F3FF\U000E0020-\U000E007F]*"
)
_FENCE = r"^[ \t>]*```[\s\S]*?(?:^[ \t>]*```[^\n]*$|\Z)"

MARKUP: tuple[Rule, ...] = (
    Rule("think", r"<(?:think|thinking|thought|reasoning)\b[^>]*>[\s\S]*?(?:</(?:think|thinking|thought|reasoning)>|\Z)", _silent),
    Rule("fence", _FENCE, _silent, "."),
    Rule("comment", r"<!--[\s\S]*?-->", _silent),
    Rule("tag", r"</?[A-Za-z][^<>\n]{0,300}>", _silent),
    Rule("rule_line", r"^[ \t]*(?:-[ \t]*){3,}$|^[ \t]*(?:\*[ \t]*){3,}$|^[ \t]*(?:_[ \t]*){3,}$|^[ \t]*={3,}$", _silent, "."),
    Rule("table_line", r"^[ \t]*\|?[ \t:]*-{2,}[ \t:|-]*$", _silent, "."),
    Rule("heading", r"^[ \t]{0,3}#{1,6}[ \t]+", _silent, "."),
    Rule("quote_mark", r"^[ \t]*(?:>[ \t]?)+", _silent),
    Rule("bullet", r"^[ \t]*[-*+•◦‣·▪][ \t]+(?:\[[ xX]\][ \t]+)?", _silent),
    Rule("image", r"!\[(?=[^\]\n]*\]\()", _silent),
    Rule("link", r"\[(?=[^\]\n]*\]\()", _silent),
    Rule("link_end", r"(?<=\S)\]\([^)\s]*(?:[ \t]\"[^\"\n]*\")?\)", _silent),
    Rule("footnote", r"(?<=\S)\[(?:\d{1,3}|\^\w+)\]", _silent),
    Rule("cell_edge", r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", _silent),
    Rule("cell", r"(?<!\|)[ \t]+\|[ \t]+(?:\|[ \t]+)*", _silent, ","),
    Rule("strong", r"(?<![\w*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![\w*])|(?<=\W)\*{2,3}(?=\w)|(?<=\w)\*{2,3}(?=\w)", _silent),
    Rule("under", r"(?<![\w])_{1,3}(?=[^\s_])|(?<=[^\s_])_{1,3}(?!\w)", _silent),
    Rule("strike", r"~~", _silent),
    Rule("code", r"`+", _silent),
    Rule("smile", r"(?<!\S)[:;]-?[)(DPp](?!\w)", _silent),
    Rule("unprintable", r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufe0e\ufe0f]+", _silent),
)  # fmt: skip

# --- addresses ---

_TLD = "com|org|net|edu|gov|io|co|uk|de|fr|es|it|nl|pl|pt|ru|tr|vn|th|jp|kr|cn|in|eu|app|dev|ai|info|biz|me|tv|us|ca|au|br|example"
_HOST = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,61}}[A-Za-z0-9])?\.)+(?:{_TLD}|test|local|[a-z]{{3,18}}(?=/))"
_PATH = r"(?:/[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?。，])?"


def _spell_host(text: str, w: Wording) -> str:
    """Words of a host, a path or a mailbox: letters stay words, signs get names."""
    out: list[str] = []
    for token in re.findall(r"[^\W\d_]+|\d+|[^\w]|_", text):
        if token.isdigit():
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
    if path and len(path) <= 24 and path.count("/") <= 2:
        spoken = w.joint.join((spoken, _spell_host("/" + path, w)))
    return spoken


def _say_email(m: re.Match[str], w: Wording) -> str | None:
    if not w.word("@"):
        return None
    local, _, host = m.group().rpartition("@")
    return w.joint.join((_spell_host(local, w), w.word("@"), _spell_host(host, w)))


# --- amounts ---

_GROUPED = r"\d{1,3}(?:[,.'’   ]\d{3})+(?!\d)"
NUMBER = rf"(?:{_GROUPED}(?:[.,]\d+)?|\d+(?:[.,]\d+)?)"
_SCALE = {"k": 1, "K": 1, "m": 2, "M": 2, "mn": 2, "mm": 2, "MM": 2, "b": 3, "B": 3, "bn": 3, "Bn": 3, "t": 4, "T": 4, "tn": 4}
_SCALE_WORD = r"(?:thousand|million|billion|trillion)"


def _amount(number: str, forms: str, w: Wording) -> str:
    """Money: units and hundredths, or a plain decimal when the decimals are not hundredths."""
    names = forms.split("|")
    whole, fraction = w.parse(number)
    major, minor = "|".join(names[:-2] or names), "|".join(names[-2:]) if len(names) > 2 else ""
    if not fraction or not fraction.strip("0"):
        text = str(whole)
        return w.join(cardinal(whole or 0, w.language), w.counted(major, text))
    if len(fraction) != 2 or not minor:
        return w.join(w.number(number), w.counted(major, number))
    cents = w.join(cardinal(int(fraction), w.language), w.counted(minor, str(int(fraction))))
    if not whole:
        return cents
    return w.join(cardinal(whole, w.language), w.counted(major, str(whole)), w.word("money_and"), cents)


def _say_money_before(m: re.Match[str], w: Wording) -> str | None:
    return _money(m.group(1), m.group(2), m.group(3) or m.group(4) or "", w)


def _say_money_after(m: re.Match[str], w: Wording) -> str | None:
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
    if forms is None or w.parse(m.group(1))[0] is None:
        return None
    return w.join(w.number(m.group(1)), w.counted(forms, m.group(1)))


def _say_number(m: re.Match[str], w: Wording) -> str | None:
    text = m.group()
    if w.known and w.parse(text)[0] is not None and not _ambiguous(text, w):
        return w.number(text)
    return None


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
    if found and text.endswith(".") and not m.string[m.end() :].strip() and m.end() > 4:
        return found + "."
    return found


def _say_sign(m: re.Match[str], w: Wording) -> str | None:
    return w.word(m.group().strip()) or None


def _say_ordinal(m: re.Match[str], w: Wording) -> str | None:
    return ordinal(int(m.group(1)), w.language) if w.known else None


def _say_emoji(m: re.Match[str], w: Wording) -> str | None:
    if m.group()[0] in "❤♥" and m.string[: m.start()].endswith("I "):
        return "love"
    return ""


def _say_cue(m: re.Match[str], w: Wording) -> str | None:
    return "" if m.group()[1:-1] in _CUES else None


_CUES = frozenset(
    "pause long pause short pause sigh sighs laugh laughs laughing laughter chuckle chuckles breath breathes "
    "inhale exhale whisper whispers gasp gasps clears throat silence beat".split()
) | {"long pause", "short pause", "clears throat"}
_CURRENCY = r"US\$|A\$|C\$|NZ\$|HK\$|R\$|[$€£¥￥₹₩₽₺₫฿]|CHF|EUR|USD|GBP|JPY|CAD|AUD|PLN|TRY"
_CURRENCY_AFTER = r"[€$£¥₹₩₽₺₫฿đ円元원]|EUR|USD|GBP|CHF|TL|zł|руб\.?|kr\.?"
_TAIL = r"(?![\w])(?!\.\d)(?!,\d)"
_GROUP_SPACE = r"(?<![\w.,+-])"

ADDRESSES: tuple[Rule, ...] = (
    Rule("email", rf"[A-Za-z0-9._%+-]+@{_HOST}(?![\w])", _say_email),
    Rule("url", rf"(?:https?|ftp|wss?)://[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?。，]|(?<![\w@.])www\.[^\s<>\"'`)\]]*[^\s<>\"'`)\].,;:!?。，]", _say_url),
    Rule("domain", rf"(?<![\w@.-]){_HOST}(?![\w@-]){_PATH}", _say_url),
    Rule("cue", r"\[[a-z]+(?: [a-z]+)?\](?!\()", _say_cue),
    Rule("emoji", rf"(?:{EMOJI})+", _say_emoji),
)  # fmt: skip
"""For every language."""

AMOUNTS: tuple[Rule, ...] = (
    Rule("money", rf"({_CURRENCY})[ \u00a0]?({NUMBER})(?:[ \u00a0]?(bn|Bn|mn|tn|mm|MM|[kKmMbBtT])(?![\w])|[ \u00a0]({_SCALE_WORD})\b)?(?!\d)", _say_money_before),
    Rule("money_after", rf"(?<![\w.,])({NUMBER})[ \u00a0\u202f]?({_CURRENCY_AFTER})(?![A-Za-z])", _say_money_after),
    Rule("percent", rf"(?<![\w.,])({NUMBER})[ \u00a0\u202f]?[%％]", _say_percent),
    Rule("phone", rf"{_GROUP_SPACE}(?:\+\d{{1,3}}[ .-]?)?(?:\(\d{{1,5}}\)[ .-]?)?\d{{2,5}}(?:[ -]\d{{2,5}}){{1,5}}(?![\w-])", _say_phone),
    Rule("unit", rf"(?<![\w.,])({NUMBER})[ \u00a0\u202f]?(°[CF]|km/h|m/s|[A-Za-zµμ]{{1,5}}²?|[Ѐ-ӿ]{{1,4}}|[\u0900-\u097f]{{1,6}}|°)(?![\w/])", _say_unit),
    Rule("zeros", r"(?<![\w.,])0\d+(?![\w]|[.,]\d)", _say_digit_run),
    Rule("number", rf"(?<![\w.,/:-]){NUMBER}(?![\w/:]|[.,-]\d)", _say_number),
    Rule("abbreviation", r"(?<![\w.])[^\W\d_]{1,6}(?:\.[^\W\d_]{1,3})*\.(?!\w)|(?<![\w.])(?:Mme|Mlle|Mr|Mrs|Dr)\b", _say_abbreviation),
    Rule("sign", r"(?<=\s)[&+=×÷@](?=\s)", _say_sign),
)  # fmt: skip
"""For every language."""
