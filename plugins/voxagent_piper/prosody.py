"""Words to phoneme ids, and durations back to word times and to the frames worth decoding.

Pure: knows the voice's phoneme table and its frame length, no audio.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxagent.model import WordTime
from voxagent_piper.g2p import Word

MAX_PHONEMES = 150
"""Of one front call, about 7 s of speech: bounds how long a call can take."""

_START, _END, _BLANK, _SPACE = "^", "$", "_", " "

# Frames that the first phoneme may sound before its own start. Measured on joe: the earliest frame above -50 dBFS in
# 120 phrases; hissing phonemes and stop bursts lead by up to three frames, voiced ones by at most one.
_LEAD_FRAMES = 2
_LEADS = {**dict.fromkeys("sʃzʒæ", 3), **dict.fromkeys("bdfɡjlmnɹwθð", 1)}

# Silence kept behind the last phoneme, ms. A phrase's own tail is 90 to 350 ms whatever its punctuation. Measured: no
# frame after the last phoneme's blank was above -50 dBFS.
_TAILS_MS = {"": 30.0, ",": 100.0, ":": 150.0, ";": 150.0, ".": 220.0, "?": 220.0, "!": 220.0}
_FINAL_TAIL_MS = 60.0


@dataclass(frozen=True, slots=True)
class Span:
    """A word among the ids: `ids[first:last]`, its trailing blank included, its mark not."""

    word: Word
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Line:
    """What one front call speaks.

    Attributes:
        ids: int64 (P,).
        spans: The words, at least one.
    """

    ids: NDArray[np.int64]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Cue:
    """Which frames of a line to decode, and when its words sound.

    Attributes:
        start: First frame worth decoding.
        end: One past the last.
        words: Times in samples from `start`.
    """

    start: int
    end: int
    words: tuple[WordTime, ...]


def take(words: Sequence[Word]) -> int:
    """How many of the words one front call should speak: all, or up to a mark, or an even share."""
    sizes = np.cumsum([len(word.phonemes) + 2 for word in words])
    if sizes[-1] <= MAX_PHONEMES:
        return len(words)
    for index in range(int(np.searchsorted(sizes, MAX_PHONEMES, "right")), 0, -1):
        if words[index - 1].mark and sizes[index - 1] > MAX_PHONEMES // 3:
            return index
    share = sizes[-1] / np.ceil(sizes[-1] / MAX_PHONEMES)
    return max(1, int(np.searchsorted(sizes, share, "right")))


def write(words: Sequence[Word], table: Mapping[str, Sequence[int]]) -> Line | None:
    """Writes words as ids, a blank after each as Piper trains them; None when the voice has none of their phonemes."""
    blank = table[_BLANK]
    ids = [*table[_START], *blank]
    spans: list[Span] = []
    for word in words:
        known = [table[c] for c in unicodedata.normalize("NFD", word.phonemes)[:MAX_PHONEMES] if c in table]
        if not known:
            continue
        if spans:
            ids += [*table[_SPACE], *blank]
        first = len(ids)
        for symbol in known:
            ids += [*symbol, *blank]
        spans.append(Span(word, first, len(ids)))
        if word.mark in table:
            ids += [*table[word.mark], *blank]
    if not spans:
        return None
    return Line(np.array([*ids, *table[_END]], np.int64), tuple(spans))


def cue(line: Line, durations: NDArray[np.int64], hop: int, sample_rate: int, final: bool) -> Cue:
    """Trims silence at both ends by durations and punctuation, and times the words.

    Args:
        line: What was spoken.
        durations: Frames of each id.
        hop: Samples a frame.
        sample_rate: Hz.
        final: Nothing follows in the turn, so no pause is needed.
    """
    edges = np.concatenate([[0], np.cumsum(durations)])
    total = int(edges[-1])
    opening = next((c for c in line.spans[0].word.phonemes if c not in "ˈˌ"), "")
    start = max(0, int(edges[line.spans[0].first]) - _LEADS.get(opening, _LEAD_FRAMES))
    tail_ms = _TAILS_MS[line.spans[-1].word.mark]
    if final:
        tail_ms = min(tail_ms, _FINAL_TAIL_MS)
    tail = max(1, round(tail_ms / 1000 * sample_rate / hop))
    end = min(total, int(edges[line.spans[-1].last]) + tail)
    words: list[WordTime] = []
    for span in line.spans:
        begins, ends = (int(edges[i] - start) * hop for i in (span.first, span.last))
        last = words[-1] if words else None
        if last and (last.start, last.end) == (span.word.start, span.word.end):
            # Several spoken words of one number.
            words[-1] = WordTime(last.start, last.end, last.start_sample, ends)
        else:
            words.append(WordTime(span.word.start, span.word.end, begins, ends))
    return Cue(start, end, tuple(words))
