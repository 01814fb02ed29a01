"""Words and samples: what was heard, partly heard, and not heard.

Pure. Positions are samples of the session's audio at the model's rate; a word counts as heard when its last sample
was handed to the network or a device.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from voxagent.marks import WEIGHTS_MS, speech_seconds
from voxagent.model import WordTime
from voxagent.phrases import Phrase

_SCRIPTS = "⺀-鿿가-힯぀-ヿ"
_UNSPACED = re.compile(f"[{_SCRIPTS}]")
_WORD = re.compile(rf"[{_SCRIPTS}]|[^\s{_SCRIPTS}]+")
# Length of speech over its estimate, for models that do not time their words: where a turn starts, and how quickly it
# learns from the phrases that are complete.
_PACE, _LEARN = 0.85, 0.3


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


@dataclass(slots=True)
class _Written:
    """A phrase's text, where it ends in the turn, and whether there is nothing (more) of it to hear."""

    text: str
    end: int
    complete: bool


class Ledger:
    """Collects the words of one turn as the model times them."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._words: list[Word] = []
        self._phrases: list[_Written] = []
        self._estimated: tuple[Phrase, int, int] | None = None
        self._pace = _PACE

    @property
    def words(self) -> tuple[Word, ...]:
        """Every word timed so far."""
        return tuple(self._words)

    @property
    def text(self) -> str:
        """The written text of all phrases so far."""
        return "".join(phrase.text for phrase in self._phrases)

    def write(self, phrase: Phrase) -> None:
        """Notes a phrase's written text, in order, whether it will sound or not."""
        self._phrases.append(_Written(phrase.text, phrase.end, complete=not phrase.spoken))

    def estimate(self, phrase: Phrase, start_sample: int) -> tuple[Word, ...]:
        """A phrase of a model that does not time words starts to sound.

        Its words are spread over an estimate until `finish` tells how long it really was. Measured on 40 sentences of
        the embedded voice, whose times are known: until then a word's end is off by 0.11 s (median; 95 % within
        0.44 s), afterwards by 0.07 s (0.20 s).
        """
        self._estimated = (phrase, start_sample, len(self._words))
        expected = round(self._pace * speech_seconds(phrase.spoken) * self._rate)
        return self.add(phrase, start_sample, _spread(phrase.spoken, max(expected, 1)))

    def add(self, phrase: Phrase, start_sample: int, times: Sequence[WordTime]) -> tuple[Word, ...]:
        """Words of a phrase became known.

        Args:
            phrase: The phrase; `write` has seen it.
            start_sample: Position of the phrase's first sample.
            times: When they sound, from there.

        Returns:
            The words as written.
        """
        floor = max(0, self._words[-1].end - phrase.start) if self._words else 0
        words = _written(phrase, start_sample, times, floor)
        self._words.extend(words)
        return words

    def finish(self, phrase: Phrase, end_sample: int) -> None:
        """The phrase has sounded; its last sample lies before `end_sample`."""
        if self._estimated is not None:
            estimated, start_sample, first = self._estimated
            self._estimated = None
            del self._words[first:]
            samples = max(end_sample - start_sample, 1)
            self.add(estimated, start_sample, _spread(estimated.spoken, samples))
            if usual := speech_seconds(estimated.spoken) * self._rate:
                self._pace += _LEARN * (samples / usual - self._pace)
        for written in self._phrases:
            if written.end == phrase.end and written.text == phrase.text:
                written.complete = True

    def split(self, position_samples: int, pending: str = "") -> Heard:
        """Splits the turn's text at a position.

        Args:
            position_samples: Samples handed over.
            pending: Text that no phrase holds yet; it counts as unheard.
        """
        text = self.text
        count = bisect_right(self._words, position_samples, key=lambda word: word.end_sample)
        cut, partly = self._words[count - 1].end if count else 0, ""
        if count < len(self._words):
            following = self._words[count]
            partly = following.text if following.start_sample < position_samples else ""
        else:
            cut = self._past_silence(cut)
        return Heard(text[:cut].rstrip(), partly, (text[cut:] + pending).lstrip(), count)

    def _past_silence(self, cut: int) -> int:
        """Moves over what follows the last word and has nothing to hear: marks, markup, emoji, code."""
        for phrase in self._phrases:
            if phrase.end > cut:
                if not phrase.complete:
                    break
                cut = phrase.end
        return cut


def unspaced(text: str, at: int = 0) -> bool:
    """Whether the character at a place belongs to a script whose words no white space divides."""
    return _UNSPACED.match(text, at) is not None


def _spread(spoken: str, samples: int) -> tuple[WordTime, ...]:
    """Word times in proportion to what each character takes to say, over the whole phrase."""
    places = [0, *accumulate(map(WEIGHTS_MS.__getitem__, spoken))]
    scale = samples / max(places[-1], 1)
    return tuple(
        WordTime(m.start(), m.end(), round(places[m.start()] * scale), round(places[m.end()] * scale))
        for m in _WORD.finditer(spoken)
    )


def _written(phrase: Phrase, start_sample: int, times: Sequence[WordTime], floor: int) -> tuple[Word, ...]:
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
    reach = floor
    for index, (start, end, begins, ends) in enumerate(spans):
        following = spans[index + 1][0] if index + 1 < len(spans) else len(text)
        start, reach = _with_marks(text, start, end, reach, following)
        words.append(Word(text[start:reach], phrase.start + start, phrase.start + reach, begins, ends))
    return tuple(words)


def _one_word(text: str, end: int, start: int) -> bool:
    """Whether what ends at `end` and what starts at `start` stand in one written word."""
    if start < end:
        return True
    return not (unspaced(text, end - 1) or unspaced(text, start)) and not any(ch.isspace() for ch in text[end:start])


def _with_marks(text: str, start: int, end: int, floor: int, ceiling: int) -> tuple[int, int]:
    """Widens a word's span over the marks that cling to it, but not over white space or a neighbour."""
    while start > floor and not text[start - 1].isspace():
        start -= 1
    while end < ceiling and not text[end].isspace():
        end += 1
    return start, end
