"""Whether random tokens change the phrases, and what splitting and saying costs in time and memory.

Times are CPU time of this process, so that a busy machine does not spoil them.
"""

from __future__ import annotations

import gc
import random
import re
import statistics
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

from voxagent.benchmarks.phrase_set import PhraseRow, SpokenRow
from voxagent.phrases import PhraseSplitter

TOKEN = 4
"""Characters a token in timings: about what an LLM sends."""

_PASSES = 5
_LONGEST_TOKENS = (1, 2, 4, 8, 20, 60)
_SHOWN = 10
_COLLECT_CHARS = 4096
# Prose: words and their ordinary marks, on one line. Code, markup and think blocks have their own speed.
_PROSE = re.compile(r"[\w .,;:!?'’\"“”()$€£%&/…–—-]+")

Row = PhraseRow | SpokenRow
Cut = tuple[str, int, str]


def tokens(rows: Sequence[Row], ways: int) -> dict[str, Any]:
    """Cuts the texts into random tokens, `ways` over all texts, spread evenly: are the phrases always the same?"""
    differing: dict[str, str] = {}
    whole: dict[int, list[Cut]] = {}
    for way in range(ways if rows else 0):
        index = way % len(rows)
        row = rows[index]
        if index not in whole:
            whole[index] = _phrases(row, iter(row.text))
        if _phrases(row, random_tokens(row.text, random.Random(way))) != whole[index]:
            differing[row.id] = row.text
    return {
        "tokens_equal": not differing,
        "tokens_ways": ways if rows else 0,
        "tokens_differ": [{"id": name, "text": text} for name, text in list(differing.items())[:_SHOWN]],
    }


def random_tokens(text: str, rng: random.Random) -> list[str]:
    """The text in tokens of random lengths; how long they get is random too."""
    longest = rng.choice(_LONGEST_TOKENS)
    found: list[str] = []
    at = 0
    while at < len(text):
        size = rng.randint(1, longest)
        found.append(text[at : at + size])
        at += size
    return found


def _phrases(row: Row, pieces: Iterable[str]) -> list[Cut]:
    splitter = PhraseSplitter(row.lang)
    found = [phrase for piece in pieces for phrase in splitter.push(piece)]
    return [(phrase.text, phrase.start, phrase.reason) for phrase in [*found, *splitter.end()]]


def costs(english: Sequence[str], chars: int) -> dict[str, Any]:
    """Time a character, its growth with the length of the text, and the memory that a long turn takes.

    The long turn has five times `chars`: a megabyte at the default.
    """
    prose = [text for text in english if _PROSE.fullmatch(text)]
    names = ("split_us_per_char", "cost_us_per_char", "cost_one_token_us_per_char", "linear", "peak_memory_kb")
    if not prose:
        return dict.fromkeys(names) | {"cost_chars": 0, "cost_note": "the set has no English prose"}
    text = repeated(prose, 5 * chars)
    short, middle = text[: chars // 2], text[:chars]
    spend(short, TOKEN)  # Warm-up: fills tables, compiles patterns.
    split = statistics.median(spend(middle, TOKEN, say=False) for _ in range(_PASSES))
    streamed = statistics.median(spend(middle, TOKEN) for _ in range(_PASSES))
    at_once = statistics.median(spend(middle, len(middle)) for _ in range(_PASSES))
    # A ratio of two runs: the least disturbed of each.
    of_short = min(spend(short, len(short)) for _ in range(_PASSES))
    of_long = min(spend(text, len(text)) for _ in range(2))
    return {
        "split_us_per_char": round(1e6 * split / len(middle), 3),
        "cost_us_per_char": round(1e6 * streamed / len(middle), 3),
        "cost_one_token_us_per_char": round(1e6 * at_once / len(middle), 3),
        "linear": round((of_long / len(text)) / (of_short / len(short)), 3),
        "peak_memory_kb": round(peak_memory(text) / 1000, 1),
        "cost_chars": len(middle),
        "linear_chars": [len(short), len(text)],
    }


def repeated(texts: Sequence[str], chars: int) -> str:
    """The texts one after another, over and over, `chars` characters in all."""
    once = " ".join(texts) + " "
    return (once * (chars // len(once) + 1))[:chars]


def spend(text: str, size: int, *, say: bool = True) -> float:
    """Seconds of CPU to split a text that comes in tokens of `size` characters, and to put it into spoken form."""
    start_s = time.process_time()
    _drain(text, size, say=say)
    return time.process_time() - start_s


def _drain(text: str, size: int, collect_every: int | None = None, *, say: bool = True) -> None:
    splitter = PhraseSplitter("en")
    for at in range(0, len(text), size):
        for phrase in splitter.push(text[at : at + size]):
            _ = phrase.spoken if say else phrase.text
        if collect_every is not None and at % collect_every == 0:
            gc.collect()
    for phrase in splitter.end():
        _ = phrase.spoken if say else phrase.text


def peak_memory(text: str) -> int:
    """Bytes that Python allocates at most while the text goes through in tokens and phrases are dropped at once.

    CPython keeps freed tuples for reuse until it collects, which tracemalloc counts: 0.5 MB after a million characters.
    """
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _drain(text, TOKEN, _COLLECT_CHARS)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.unfreeze()
