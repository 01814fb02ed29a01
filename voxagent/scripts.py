"""Which language a text is in, as far as its script tells.

Pure tables. Latin script says nothing: it is taken for English where no language is given.
"""

from __future__ import annotations

import re

_SCRIPTS = {
    "ru": "\u0400-\u052f",
    "ar": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
    "hi": "\u0900-\u097f",
    "th": "\u0e01-\u0e3a\u0e40-\u0e4e",
    "ko": "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    "ja": "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9d",
    "zh": "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
}
_OTHER = re.compile("|".join(f"(?P<{tag}>[{chars}]+)" for tag, chars in _SCRIPTS.items()))
_KANA = re.compile(f"[{_SCRIPTS['ja']}]")
_LETTER = re.compile(r"[^\W\d_]")


def script_language(text: str) -> str:
    """The primary tag of the language that most of the text's letters belong to.

    Chinese characters beside kana are Japanese. Without a letter of a script that tells, the answer is ``en``.
    """
    if text.isascii():
        return "en"
    counts: dict[str, int] = {}
    for run in _OTHER.finditer(text):
        tag = run.lastgroup or ""
        counts[tag] = counts.get(tag, 0) + len(run.group())
    if not counts:
        return "en"
    if "ja" in counts:
        counts["ja"] += counts.pop("zh", 0)
    tag, most = max(counts.items(), key=lambda item: item[1])
    # A foreign name in a Latin text does not make it foreign.
    latin = len(_LETTER.findall(_OTHER.sub("", text)))
    return tag if most * (1 if tag not in ("zh", "ja") else 3) >= latin else "en"


def first_letter_language(text: str) -> str | None:
    """The primary tag that the text's first letter speaks for; None while there is no letter."""
    letter = _LETTER.search(text)
    return None if letter is None else script_language(letter.group())
