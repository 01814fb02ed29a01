"""`voxagent bench phrases`: wrong and missed cuts, characters before the first release, ours and peers' alike.

Owns how a splitter is fed and scored. A rate without anything to count is 0; the counts stand beside it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from voxagent.benchmarks import phrase_costs, spoken, stalls
from voxagent.benchmarks.figures import machine
from voxagent.benchmarks.phrase_set import GoldSet, PhraseRow
from voxagent.benchmarks.splitters import Factory, Splitter, VoxagentSplitter
from voxagent.lexicon import primary_tag

Progress = Callable[[str], None]

WORST = 10
"""How many rows are shown as the worst."""

_SHOWN = 12  # characters on either side of a fault


@dataclass(frozen=True, slots=True)
class Extent:
    """How much to measure: random ways to cut the texts into tokens, characters of the timed text."""

    cuts: int = 1000
    chars: int = 200_000


@dataclass(frozen=True, slots=True)
class Fed:
    """One text through one splitter: where it was cut, and how much was fed when the first phrase came."""

    cuts: frozenset[int]
    first_chars: int


@dataclass(frozen=True, slots=True)
class Score:
    """One row, fed by character and by token; the faults are those of the feed by character."""

    row: PhraseRow
    cuts: frozenset[int]
    wrong: tuple[int, ...]
    missed: tuple[int, ...]
    first_char: int
    first_token: int
    floor_char: int
    floor_token: int
    wrong_token: int
    missed_token: int
    cuts_token: int
    cuts_equal: bool

    @property
    def waited(self) -> int:
        """Characters fed beyond the floor before the first release."""
        return self.first_char - self.floor_char


def measure(gold: GoldSet, peers: Iterable[EntryPoint], extent: Extent, progress: Progress) -> dict[str, Any]:
    """Scores ours, then what else is asked of it, then the peers."""
    figures: dict[str, Any] = {"machine": machine(), "rows": {"phrases": len(gold.phrases), "spoken": len(gold.spoken)}}
    progress(f"cutting {len(gold.phrases)} texts, by character and by token")
    scores = score(gold.phrases, VoxagentSplitter)
    figures |= tables(scores)
    figures["worst"] = worst(scores)
    progress(f"saying {len(gold.spoken)} texts")
    figures |= spoken.measure(gold.spoken)
    progress(f"{extent.cuts} random ways to cut the texts into tokens")
    figures |= phrase_costs.tokens([*gold.phrases, *gold.spoken], extent.cuts)
    progress("stalls in virtual time")
    english = [row for row in gold.phrases if primary_tag(row.lang) == "en"]
    figures["stall"] = stalls.measure(english)
    progress(f"time and memory, texts of {extent.chars:,} characters and more")
    figures |= phrase_costs.costs([row.text for row in english], extent.chars)
    figures["peers"] = {}
    for point in peers:
        progress(f"peer {point.name}")
        figures["peers"][point.name] = _peer(point, gold.phrases)
    return figures


def _peer(point: EntryPoint, rows: Sequence[PhraseRow]) -> dict[str, Any]:
    try:
        factory: Factory = point.load()
    except ImportError as error:
        return {"absent": f"{error.name} is not installed"}
    try:
        return tables(score(rows, factory))
    except Exception as error:  # A stranger's failure is a finding, and must not cost our own figures.
        return {"failed": f"{type(error).__name__}: {error}"}


# Feeding.


def by_character(text: str) -> Iterator[str]:
    """The text one character at a time."""
    return iter(text)


def by_token(text: str, seed: str) -> Iterator[str]:
    """The text in tokens of three to five characters, the same ones for the same seed."""
    rng = random.Random(seed)
    at = 0
    while at < len(text):
        size = rng.randint(3, 5)
        yield text[at : at + size]
        at += size


def fed(splitter: Splitter, text: str, chunks: Iterable[str]) -> Fed:
    """Feeds a text and ends it.

    Raises:
        ValueError: The splitter released text that it was not fed.
    """
    cuts: set[int] = set()
    first, size = None, 0
    for chunk in chunks:
        size += len(chunk)
        new = splitter.feed(chunk)
        if any(cut > size for cut in new):
            raise ValueError(f"a cut at {max(new)} after {size} characters")
        new_cuts = {_left_of_space(cut, text) for cut in new} - {0}
        if first is None and new_cuts:
            first = size
        cuts |= new_cuts
    cuts |= {_left_of_space(cut, text) for cut in splitter.finish()}
    end = len(text.rstrip())
    return Fed(frozenset(cut for cut in cuts if 0 < cut < end), len(text) if first is None else first)


def _left_of_space(cut: int, text: str) -> int:
    return len(text[:cut].rstrip())


# Scoring.


def faults(row: PhraseRow, cuts: frozenset[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The wrong cuts, and the missed ones."""
    wrong = cuts - set(row.must) - set(row.may)
    spared = {must for must, other in row.alt if other in cuts}
    missed = set(row.must) - cuts - spared
    return tuple(sorted(wrong)), tuple(sorted(missed))


def floor(row: PhraseRow, chunks: Iterable[str]) -> int:
    """Characters fed when the earliest listed cut could be made, with one character of look-ahead."""
    earliest = min((*row.must, *row.may, len(row.text) - 1)) + 1
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size >= earliest:
            break
    return size


def score(rows: Iterable[PhraseRow], factory: Factory) -> list[Score]:
    """Feeds each row twice, by character and by token."""
    return [_score(row, factory) for row in rows]


def _score(row: PhraseRow, factory: Factory) -> Score:
    char = fed(factory(row.lang), row.text, by_character(row.text))
    token = fed(factory(row.lang), row.text, by_token(row.text, row.id))
    wrong, missed = faults(row, char.cuts)
    wrong_token, missed_token = faults(row, token.cuts)
    return Score(
        row,
        char.cuts,
        wrong,
        missed,
        char.first_chars,
        token.first_chars,
        floor(row, by_character(row.text)),
        floor(row, by_token(row.text, row.id)),
        len(wrong_token),
        len(missed_token),
        len(token.cuts),
        char.cuts == token.cuts,
    )


def tables(scores: Sequence[Score]) -> dict[str, Any]:
    """The figures of all rows, by language and by kind, and whether both feeds gave the same cuts."""
    langs, kinds = defaultdict(list), defaultdict(list)
    for item in scores:
        langs[item.row.lang].append(item)
        kinds[item.row.kind].append(item)
    return {
        "all": _figures(scores),
        "by_lang": {lang: _figures(group) for lang, group in sorted(langs.items())},
        "by_kind": {kind: _figures(group) for kind, group in sorted(kinds.items())},
        "cuts_equal": all(item.cuts_equal for item in scores),
    }


def _figures(scores: Sequence[Score]) -> dict[str, Any]:
    n = len(scores)
    cuts, wrong = sum(len(s.cuts) for s in scores), sum(len(s.wrong) for s in scores)
    must, missed = sum(len(s.row.must) for s in scores), sum(len(s.missed) for s in scores)
    must_long = sum(len(set(s.row.must) - set(s.row.short)) for s in scores)
    missed_long = sum(len(set(s.missed) - set(s.row.short)) for s in scores)
    return {
        "n": n,
        "wrong_rate": share(wrong, cuts),
        "missed_rate": share(missed, must),
        "missed_long_rate": share(missed_long, must_long),
        "first_chars_char": share(sum(s.first_char for s in scores), n),
        "first_chars_token": share(sum(s.first_token for s in scores), n),
        "floor_chars_char": share(sum(s.floor_char for s in scores), n),
        "floor_chars_token": share(sum(s.floor_token for s in scores), n),
        "clean_rate": share(sum(not s.wrong and not s.missed for s in scores), n),
        "wrong_rate_token": share(sum(s.wrong_token for s in scores), sum(s.cuts_token for s in scores)),
        "missed_rate_token": share(sum(s.missed_token for s in scores), must),
        "cuts": cuts,
        "wrong": wrong,
        "must": must,
        "missed": missed,
        "must_long": must_long,
        "missed_long": missed_long,
    }


def share(part: float, whole: float) -> float:
    """`part / whole`, 0 of nothing."""
    return part / whole if whole else 0.0


def worst(scores: Iterable[Score]) -> list[dict[str, Any]]:
    """The rows with the most wrong and missed cuts, then those that waited longest for their first phrase."""
    order = sorted(scores, key=lambda s: (-len(s.wrong) - len(s.missed), -s.waited, s.row.id))
    return [
        {
            "id": item.row.id,
            "lang": item.row.lang,
            "kind": item.row.kind,
            "wrong": [_shown(item.row.text, at) for at in item.wrong],
            "missed": [_shown(item.row.text, at) for at in item.missed],
            "first_chars": item.first_char,
            "floor_chars": item.floor_char,
            "text": item.row.text,
        }
        for item in order[:WORST]
    ]


def _shown(text: str, at: int) -> str:
    return f"{text[max(0, at - _SHOWN) : at]}|{text[at : at + _SHOWN]}"
