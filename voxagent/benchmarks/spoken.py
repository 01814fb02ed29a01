"""How many texts are said exactly as one of their right variants; the second half of `voxagent bench phrases`.

Owns the key by which spoken texts are compared. A rate without anything to count is None.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from voxagent.benchmarks.phrase_set import SpokenRow
from voxagent.lexicon import primary_tag
from voxagent.speakable import speakable

_SPACE_FREE = frozenset({"zh", "ja", "ko", "th"})
_APOSTROPHES = str.maketrans("", "", "'’")
_NUKTA, _TATWEEL = "\u093c", "\u0640"
_RUSSIAN = str.maketrans("ё", "е")
_HINDI = str.maketrans({_NUKTA: None, "ँ": "ं"})
_WORST = 10


@dataclass(frozen=True, slots=True)
class Said:
    """One row as it was said.

    Attributes:
        exact: It is one of the variants, by key.
        edits: Edits to the nearest variant, in words or, without spaces, characters.
        units: That variant's length in the same.
        nearest: That variant.
    """

    row: SpokenRow
    text: str
    exact: bool
    edits: int
    units: int
    nearest: str


def measure(rows: Sequence[SpokenRow]) -> dict[str, Any]:
    """Exact rates of English and of the rest, and the details."""
    said = [judge(row, speakable(row.text, row.lang).text) for row in rows]
    english = [item for item in said if primary_tag(item.row.lang) == "en"]
    other = [item for item in said if primary_tag(item.row.lang) != "en"]
    order = sorted((item for item in said if not item.exact), key=lambda s: (-s.edits / s.units, s.row.id))
    rates = {"en": _figures(english), "other": _figures(other)}
    detail = {
        "all": _figures(said),
        **rates,
        "by_lang": _grouped(said, lambda item: item.row.lang),
        "by_kind": _grouped(said, lambda item: item.row.kind),
        "worst": [
            {"id": item.row.id, "text": item.row.text, "spoken": item.text, "nearest": item.nearest}
            for item in order[:_WORST]
        ],
    }
    return {"spoken": {name: group["exact_rate"] for name, group in rates.items()}, "spoken_detail": detail}


def key(text: str, language: str) -> str:
    """What of a spoken text counts: not its case, punctuation, apostrophes or hyphens.

    Letters said one by one are joined ("p m" equals "pm"); languages without spaces lose them all.
    """
    text = unicodedata.normalize("NFKC", text).casefold().translate(_APOSTROPHES)
    match language:
        case "ru":
            text = text.translate(_RUSSIAN)
        case "ar":
            text = "".join(ch for ch in text if unicodedata.category(ch) != "Mn" and ch != _TATWEEL)
        case "hi":
            text = text.translate(_HINDI)
    words = "".join(ch if unicodedata.category(ch)[0] in "LMN" else " " for ch in text).split()
    joined: list[str] = []
    spelling = False
    for word in words:
        letter = len(word) == 1 and word.isalpha()
        if letter and spelling:
            joined[-1] += word
        else:
            joined.append(word)
        spelling = letter
    return ("" if language in _SPACE_FREE else " ").join(joined)


def judge(row: SpokenRow, text: str) -> Said:
    """Compares what was said with every variant; of equally near ones the shorter counts."""
    language = row.lang
    got = key(text, language)
    wanted = {variant: key(variant, language) for variant in row.spoken}
    nearest: tuple[float, int, str, int] | None = None
    for variant, its_key in wanted.items():
        units = _units(its_key, language)
        size = max(1, len(units))
        edits = distance(_units(got, language), units)
        nearest = min(nearest or (edits / size, size, variant, edits), (edits / size, size, variant, edits))
    assert nearest is not None
    return Said(row, text, got in wanted.values(), nearest[3], nearest[1], nearest[2])


def _units(its_key: str, language: str) -> Sequence[str]:
    return its_key if language in _SPACE_FREE else its_key.split()


def distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Insertions, deletions and replacements between two sequences."""
    above = list(range(len(other) + 1))
    for i, x in enumerate(one, 1):
        line = [i]
        for j, y in enumerate(other, 1):
            line.append(min(above[j] + 1, line[j - 1] + 1, above[j - 1] + (x != y)))
        above = line
    return above[-1]


def _grouped(said: Sequence[Said], name: Callable[[Said], str]) -> dict[str, Any]:
    groups: dict[str, list[Said]] = defaultdict(list)
    for item in said:
        groups[name(item)].append(item)
    return {group: _figures(items) for group, items in sorted(groups.items())}


def _figures(said: Sequence[Said]) -> dict[str, Any]:
    exact, units = sum(item.exact for item in said), sum(item.units for item in said)
    return {
        "n": len(said),
        "exact": exact,
        "exact_rate": exact / len(said) if said else None,
        "distance": sum(item.edits for item in said) / units if units else None,
    }
