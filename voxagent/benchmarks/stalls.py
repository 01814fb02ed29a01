"""The LLM stalls in mid-clause: does the voice go on, and where is the text cut? In virtual time.

Each English text stalls at every token whose edge is no clause end, twice: with half a second of audio left (the LLM
was slow before), and with all that was released so far. A stall ends when the player has run dry. An underrun is a
player that ran dry while text was pending that could have been said up to a safe word (one of letters, outside
brackets, quotes and markup, before a word in lower case, and none that leans on what follows, as "the" does), or was
released too late to be synthesised in time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from voxagent.benchmarks.phrase_set import PhraseRow
from voxagent.phrases import PhraseSplitter
from voxagent.virtual_player import VirtualPlayer

TOKEN = 4
"""Characters a token."""

_GAP_S = 0.03
_SYNTHESIS_S = 0.1
_LEFT_S = 0.5
_PATIENCE_S = 0.7  # of a listener who has heard nothing yet: a stall timer of 0.6 s, and synthesis

_SAFE = re.compile(r"(?<![^\s])([^\W\d_]{2,}) +(?=[^\W\d_])")
_SPECIAL = re.compile(r"[(\[{<>*_`\"“„«‘「『#|~@/\\]")
_LEANING_WORDS = """
    an the this that these those my your his her its our their some any no every each all both such what which whose
    one two three four five six seven eight nine ten another other more most very so too as quite rather just only
    of in on at by for with from to into onto about after before over under between through near since until without
    and or but if when while because than whether who where how though although
    you he she it we they there here let please
    am is are was were be been being do does did has have had can could will would shall should may might must not
"""
_LEANING = frozenset(_LEANING_WORDS.split())
_NUMBER = re.compile(r"\d[\d.,:/ -]*\d")


@dataclass(frozen=True, slots=True)
class Stall:
    """What one stall led to: how often text was released, where, and whether the voice fell silent for nothing."""

    releases: tuple[int, ...]
    underrun: bool


def measure(rows: Iterable[PhraseRow]) -> dict[str, Any]:
    """Counts over every stall of every text; `ahead` are those with all the audio that the player had."""
    texts = list(rows)
    return _count(texts, _LEFT_S) | {"left_s": _LEFT_S, "texts": len(texts), "ahead": _count(texts, None)}


def _count(rows: Iterable[PhraseRow], left_s: float | None) -> dict[str, Any]:
    figures = {"stalls": 0, "underruns": 0, "releases": 0, "inside_number": 0}
    examples: list[str] = []
    for row in rows:
        for fed in places(row):
            stall = run(PhraseSplitter(row.lang), row.text[:fed], left_s)
            inside = sum(_inside_number(row, cut) for cut in stall.releases)
            figures["stalls"] += 1
            figures["underruns"] += stall.underrun
            figures["releases"] += len(stall.releases)
            figures["inside_number"] += inside
            if (stall.underrun or inside) and len(examples) < 5:
                examples.append(f"{row.id}: {row.text[:fed]}")
    return {**figures, "examples": examples}


def places(row: PhraseRow) -> Iterator[int]:
    """How much is fed when the LLM stalls: every token's end that lies in mid-clause."""
    listed = {*row.must, *row.may}
    for fed in range(TOKEN, len(row.text), TOKEN):
        around = row.text[fed - 1] + row.text[fed]
        if all(ch.isalnum() or ch == " " for ch in around) and len(row.text[:fed].rstrip()) not in listed:
            yield fed


def run(splitter: PhraseSplitter, text: str, left_s: float | None) -> Stall:
    """Feeds a text in tokens, then nothing more until the player is dry.

    Args:
        splitter: A fresh one.
        text: What comes before the stall.
        left_s: Audio left when the stall begins; None: all that was released and not yet played.
    """
    player = VirtualPlayer(_SYNTHESIS_S)
    for index, at in enumerate(range(0, len(text), TOKEN)):
        player.wait(splitter, index * _GAP_S)
        player.take(splitter.push(text[at : at + TOKEN], player.now_s))
    before, gaps = len(player.released), player.gaps
    if left_s is not None:
        player.dry_s = player.now_s + left_s
    elif not player.dry_s:
        player.wait(splitter, player.now_s + _PATIENCE_S)
    while player.dry_s > player.now_s:
        player.wait(splitter, player.dry_s)
    cuts = tuple(phrase.end for phrase in player.released[before:])
    last = player.released[-1].end if player.released else 0
    return Stall(cuts, player.gaps > gaps or releasable(text[last:]))


def releasable(pending: str) -> bool:
    """Whether pending text holds a word that could be said without harm."""
    found = _SAFE.search(pending)
    while found is not None:
        if _SPECIAL.search(pending, 0, found.end()):
            return False
        if pending[found.end()].islower() and found[1].lower() not in _LEANING:
            return True
        found = _SAFE.search(pending, found.end())
    return False


def _inside_number(row: PhraseRow, cut: int) -> bool:
    cut = len(row.text[:cut].rstrip())
    if cut in row.must or cut in row.may:
        return False
    return any(found.start() < cut < found.end() for found in _NUMBER.finditer(row.text))
