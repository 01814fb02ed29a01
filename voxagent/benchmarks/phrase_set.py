"""Reads the rows that `voxagent bench phrases` scores: phrase rows and spoken rows, mixed, from JSON Lines files.

Owns the format and what is said about a bad row. Knows nothing of splitters or scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PhraseRow:
    """A text and where it may be cut; an offset is one past a phrase's last character.

    Attributes:
        id: Seeds the tokens the text is fed in.
        lang: BCP 47 tag.
        kind: What the row is about, for the table.
        text: As an LLM writes it.
        must: Ends that have to be cut.
        may: Ends that are harmless.
        alt: Pairs: a cut at the second offset also satisfies the `must` at the first.
        short: Those of `must` with a sentence of one or two words on either side.
    """

    id: str
    lang: str
    kind: str
    text: str
    must: tuple[int, ...]
    may: tuple[int, ...]
    alt: tuple[tuple[int, int], ...] = ()
    short: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpokenRow:
    """A text and every right way to say it."""

    id: str
    lang: str
    kind: str
    text: str
    spoken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoldSet:
    """What the files held, in their order."""

    phrases: tuple[PhraseRow, ...]
    spoken: tuple[SpokenRow, ...]


_WANTED = "see the README's section on benchmarks"


def read(paths: Iterable[Path]) -> GoldSet:
    """Reads files, and all *.jsonl of folders; a lone phrases.X.jsonl or spoken.X.jsonl brings the other along.

    Raises:
        ValueError: No file, no row, or a bad one; the message names file, line, cause and cure.
    """
    given = list(paths)
    if not given:
        raise ValueError(f"phrases are scored against a set: give --set FILE, as JSON Lines ({_WANTED})")
    phrases: list[PhraseRow] = []
    spoken: list[SpokenRow] = []
    for path in _files(given):
        for row in _rows(path):
            if isinstance(row, PhraseRow):
                phrases.append(row)
            else:
                spoken.append(row)
    if not phrases and not spoken:
        names = ", ".join(map(str, given))
        raise ValueError(f"{names}: no rows; give a file with one JSON object a line ({_WANTED})")
    return GoldSet(tuple(phrases), tuple(spoken))


def _files(given: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(path.glob("*.jsonl"))
            if not inside:
                raise ValueError(f"{path}: no *.jsonl in this folder; give a file of the set, or its folder")
            found += inside
        else:
            found.append(path)
    if len(given) == 1 and len(found) == 1 and (other := _sibling(found[0])) is not None and other.exists():
        found.append(other)
    return list(dict.fromkeys(found))


def _sibling(path: Path) -> Path | None:
    """The other half of a set that comes in two files."""
    for one, other in (("phrases.", "spoken."), ("spoken.", "phrases.")):
        if path.name.startswith(one) and path.suffix == ".jsonl":
            return path.with_name(other + path.name.removeprefix(one))
    return None


def _rows(path: Path) -> Iterator[PhraseRow | SpokenRow]:
    try:
        with path.open(encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; --set takes a JSON Lines file or a folder") from error
    for number, line in lines:
        try:
            yield from _parse(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def _parse(line: str) -> Iterator[PhraseRow | SpokenRow]:
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg}, column {error.colno}); write one JSON object a line") from error
    if not isinstance(raw, dict):
        raise ValueError(f"a row is a JSON object, not {type(raw).__name__}; write one object a line")
    if "must" not in raw and "spoken" not in raw:
        raise ValueError('neither "must" nor "spoken"; give the cuts of a phrase row or the variants of a spoken row')
    name, lang, kind, text = (_string(raw, field) for field in ("id", "lang", "kind", "text"))
    size = len(text)
    if "must" in raw:
        must, may = _offsets(raw, "must", size), _offsets(raw, "may", size)
        short = _offsets(raw, "short", size) if "short" in raw else ()
        yield PhraseRow(name, lang, kind, text, must, may, _pairs(raw.get("alt", []), size), short)
    if "spoken" in raw:
        yield SpokenRow(name, lang, kind, text, _variants(raw["spoken"]))


def _string(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str):
        raise ValueError(f'"{name}" is {_found(raw, name)}; give a string')
    if not value:
        raise ValueError(f'"{name}" is empty; give at least one character')
    return value


def _offsets(raw: dict[str, Any], name: str, size: int) -> tuple[int, ...]:
    value = raw.get(name)
    if not isinstance(value, list):
        raise ValueError(f'"{name}" is {_found(raw, name)}; give a list of offsets, [] for none')
    return tuple(_offset(name, item, size) for item in value)


def _pairs(value: object, size: int) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise ValueError('"alt" is no list of pairs; give [[must, may], ..]')
    return tuple((_offset("alt", a, size), _offset("alt", b, size)) for a, b in value)


def _offset(name: str, value: object, size: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f'"{name}" holds {value!r}; offsets are whole numbers')
    if not 0 < value < size:
        raise ValueError(f'"{name}" holds {value}, outside the text; offsets lie between 1 and {size - 1} here')
    return value


def _variants(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError('"spoken" is no list of strings; give at least one way to say the text')
    return tuple(value)


def _found(raw: dict[str, Any], name: str) -> str:
    return f"a {type(raw[name]).__name__}" if name in raw else "missing"
