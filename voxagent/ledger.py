"""Words and samples: what was heard, partly heard, and not heard.

Pure. Positions are samples of the session's audio at the model's rate; a word counts as heard when its last sample
was handed to the network or a device.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from voxagent.model import WordTime
from voxagent.phrases import Phrase

_UNSPACED = re.compile(r"[⺀-鿿가-힯぀-ヿ]")
_WORD = re.compile(r"[⺀-鿿가-힯぀-ヿ]|[^\s⺀-鿿가-힯぀-ヿ]+")
# Average speech, used only for models that do not time their words and only until a phrase is complete.
_CHARACTERS_PER_S = 14.5


@dataclass(frozen=True, slots=True)
class Word:
    """One written word and when it sounds.

    Attributes:
        text: As written, surrounding punctuation included.
        start: Offset in the turn's written text.
        end: One past its last character.
        start_sample: Position of its first sample.
        end_sample: One past its last sample.
    """

    text: str
    start: int
    end: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A turn's written text, split at a position.

    Attributes:
        heard: Up to and with the last word heard whole.
        partly: The word that was cut, if any.
        unheard: Everything after `heard`, the cut word included.
        words: Words heard whole.
    """

    heard: str
    partly: str
    unheard: str
    words: int


class Ledger:
    """Collects the words of one turn as the model times them."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._words: list[Word] = []
        self._text: list[str] = []
        self._open: tuple[Phrase, int, int] | None = None

    @property
    def words(self) -> tuple[Word, ...]:
        """Every word timed so far."""
        return tuple(self._words)

    @property
    def text(self) -> str:
        """The written text of all phrases so far."""
        return "".join(self._text)

    def write(self, phrase: Phrase) -> None:
        """Notes a phrase's written text, in order, whether it will sound or not."""
        self._text.append(phrase.text)

    def begin(self, phrase: Phrase, start_sample: int, times: Sequence[WordTime]) -> tuple[Word, ...]:
        """A phrase starts to sound at `start_sample`.

        Args:
            phrase: The phrase; `write` has seen it.
            start_sample: Position of its first sample.
            times: The model's word times; empty for a model that does not time words, whose words are spread over
                the phrase by length until `finish` tells how long it really was.

        Returns:
            The words as written.
        """
        if not times:
            self._open = (phrase, start_sample, len(self._words))
            expected = int(len(phrase.spoken) / _CHARACTERS_PER_S * self._rate)
            times = _spread(phrase.spoken, max(expected, 1))
        words = _written(phrase, start_sample, times)
        self._words.extend(words)
        return words

    def finish(self, end_sample: int) -> None:
        """The phrase that sounds has its last sample before `end_sample`."""
        if self._open is None:
            return
        phrase, start_sample, first = self._open
        self._open = None
        times = _spread(phrase.spoken, max(end_sample - start_sample, 1))
        self._words[first:] = _written(phrase, start_sample, times)

    def split(self, position_samples: int, pending: str = "") -> Heard:
        """Splits the turn's text at a position.

        Args:
            position_samples: Samples handed over.
            pending: Text that no phrase holds yet; it counts as unheard.
        """
        text = self.text
        count = bisect_right(self._words, position_samples, key=lambda word: word.end_sample)
        if count == len(self._words):
            cut = self._words[-1].end if self._words else 0
            # Punctuation and markup behind the last word belong to it, the next sentence does not.
            cut = _skip_silent(text, cut)
            return Heard(text[:cut].rstrip(), "", text[cut:] + pending, count)
        following = self._words[count]
        partly = following.text if following.start_sample < position_samples else ""
        cut = following.start
        return Heard(text[:cut].rstrip(), partly, text[cut:] + pending, count)


def _skip_silent(text: str, cut: int) -> int:
    end = cut
    while end < len(text) and not text[end].isalnum():
        end += 1
    return end


def _spread(spoken: str, samples: int) -> tuple[WordTime, ...]:
    """Word times in proportion to the letters, over the whole phrase."""
    scale = samples / max(len(spoken), 1)
    return tuple(
        WordTime(m.start(), m.end(), round(m.start() * scale), round(m.end() * scale)) for m in _WORD.finditer(spoken)
    )


def _written(phrase: Phrase, start_sample: int, times: Sequence[WordTime]) -> tuple[Word, ...]:
    """Maps spoken words to written ones, which white space divides (and nothing, in scripts that use none).

    The spoken words of one rewritten unit ("$5": "five dollars") or of a compound ("well-known") become one word.
    """
    text = phrase.text
    spans: list[tuple[int, int, int, int]] = []
    for time in times:
        start, end = phrase.speakable.written_span(time.start, time.end)
        begins, ends = start_sample + time.start_sample, start_sample + time.end_sample
        if spans and _one_word(text, spans[-1][1], start):
            before = spans.pop()
            start, end, begins, ends = before[0], max(end, before[1]), before[2], max(ends, before[3])
        spans.append((start, end, begins, ends))
    words: list[Word] = []
    reach = 0
    for index, (start, end, begins, ends) in enumerate(spans):
        following = spans[index + 1][0] if index + 1 < len(spans) else len(text)
        start, reach = _with_marks(text, start, end, reach, following)
        words.append(Word(text[start:reach], phrase.start + start, phrase.start + reach, begins, ends))
    return tuple(words)


def _one_word(text: str, end: int, start: int) -> bool:
    """Whether what ends at `end` and what starts at `start` stand in one written word."""
    if start < end:
        return True
    unspaced = _UNSPACED.match(text, end - 1) or _UNSPACED.match(text, start)
    return unspaced is None and not any(ch.isspace() for ch in text[end:start])


def _with_marks(text: str, start: int, end: int, floor: int, ceiling: int) -> tuple[int, int]:
    """Widens a word's span over the marks that cling to it, but not over white space or a neighbour."""
    while start > floor and not text[start - 1].isspace():
        start -= 1
    while end < ceiling and not text[end].isspace():
        end += 1
    return start, end
