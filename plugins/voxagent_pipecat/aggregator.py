"""Our phrases as Pipecat aggregations: for `VoxAgentTTSService`, or an `LLMTextProcessor` before any service.

Owns the boundary between text that sounds and text that does not (code, think blocks, emoji): Pipecat follows words
through a piece of text, and would lose its place in one that is only half spoken.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

from pipecat.utils.text.base_text_aggregator import Aggregation, BaseTextAggregator, TextType

from voxagent.phrases import FIRST_S, MAX_PHRASE_S, TAIL_S, Phrase, PhraseSplitter
from voxagent.reading import PLAIN, Reading

SILENT = "silent"
"""Type of text that has no sound. Name it in `skip_text_types` of a service that is not ours."""

Carried = tuple[str, Aggregation]
"""An aggregation, and what lies between it and the sounding one before: whitespace, and silent text."""

_WORD = re.compile(r"\w[^\s]*")
_SPOKEN_WORD = re.compile(r"\S+")
# Pipecat's word tracker finds a word again behind this many that it was not told about.
_SKIPPABLE_WORDS = 3


class PhraseAggregator(BaseTextAggregator):
    """Cuts LLM text into phrases: the first one short, later ones comfortable, none too long.

    Args:
        language: BCP 47 tag of the text; None is judged by the script, with Latin taken for English.
        first_s: Shortest first phrase, in seconds of speech.
        max_phrase_s: Longest phrase.
        reading: How text is read where tastes differ.
    """

    def __init__(
        self,
        language: str | None = None,
        *,
        first_s: float = FIRST_S,
        max_phrase_s: float = MAX_PHRASE_S,
        reading: Reading = PLAIN,
    ) -> None:
        super().__init__(aggregation_type=TextType.SENTENCE, language=language)
        self._tag = language
        self._first_s = first_s
        self._min_phrase_s, self._max_phrase_s = 0.0, max_phrase_s
        self._reading = reading
        self._carry = self._trail = ""
        self._ended = self._begun = False
        self._splitter = self._fresh()

    @property
    def text(self) -> Aggregation:
        """What no phrase holds yet."""
        return Aggregation(self._splitter.pending, TextType.SENTENCE)

    @property
    def next_deadline_s(self) -> float | None:
        """When `poll` is worth calling, on the event loop's clock; None when nothing waits."""
        return self._splitter.next_deadline_s

    def set_language(self, language: str | None) -> None:
        """Takes effect with the next turn."""
        super().set_language(language)
        self._tag = language
        if not self._begun:
            self._splitter = self._fresh()

    def set_reading(self, reading: Reading) -> None:
        """Takes effect with the next turn."""
        self._reading = reading
        if not self._begun:
            self._splitter = self._fresh()

    def set_lengths(self, min_phrase_s: float, max_phrase_s: float) -> None:
        """Bounds the phrases of the turns to come by what the model speaks well."""
        self._min_phrase_s, self._max_phrase_s = min_phrase_s, max_phrase_s
        if not self._begun:
            self._splitter = self._fresh()

    def likely(self) -> str:
        """What the pending text is about to be cut to, with what lies before it; empty when nobody can tell yet."""
        phrase = self._splitter.likely()
        return self._carry + self._trail + phrase.text if phrase is not None else ""

    def take_carry(self) -> str:
        """Returns what lies before the last aggregation and was not in it: whitespace, and silent text.

        With it, the aggregations put together are the turn's text, character by character.
        """
        carry, self._carry = self._carry, ""
        return carry

    async def aggregate(self, text: str) -> AsyncIterator[Aggregation]:
        """Takes in the next piece of text and yields the phrases that it completed."""
        if self._ended:
            self._carry, self._ended = "", False
        self._begun = True
        for piece in self._pieces(self._splitter.push(text, _now_s())):
            yield piece

    def poll(self, runway_s: float) -> list[Carried]:
        """Returns what should not wait any longer, given how much audio is left to play."""
        return self._carried(self._splitter.poll(_now_s(), runway_s))

    def rest(self) -> list[Carried]:
        """Returns what is left of the turn and starts afresh."""
        pieces = self._carried(self._splitter.end(_now_s()))
        self._restart()
        return pieces

    async def flush(self) -> Aggregation | None:
        """Returns what is left of the turn in one piece and starts afresh."""
        phrases = self._splitter.end(_now_s())
        text = "".join(phrase.text for phrase in phrases)
        sounds = any(phrase.spoken for phrase in phrases)
        rest = self._sounding(text) if sounds else self._silent(text)
        self._restart()
        return rest

    async def handle_interruption(self) -> None:
        """Forgets the turn."""
        await self.reset()

    async def reset(self) -> None:
        """Forgets the turn."""
        self._carry = self._trail = ""
        self._begun = False
        self._splitter = self._fresh()

    def _restart(self) -> None:
        self._splitter, self._trail, self._ended, self._begun = self._fresh(), "", True, False

    def _carried(self, phrases: list[Phrase]) -> list[Carried]:
        return [("" if p.type == SILENT else self.take_carry(), p) for p in self._pieces(phrases)]

    def _fresh(self) -> PhraseSplitter:
        return PhraseSplitter(
            self._tag,
            first_s=max(self._first_s, self._min_phrase_s),
            tail_s=max(TAIL_S, self._min_phrase_s),
            max_phrase_s=self._max_phrase_s,
            reading=self._reading,
        )

    def _pieces(self, phrases: list[Phrase]) -> Iterator[Aggregation]:
        """Phrases, taken apart where more goes unspoken than Pipecat's word tracker gets over."""
        for phrase in phrases:
            for text, sounds in _runs(phrase):
                piece = self._sounding(text) if sounds else self._silent(text)
                if piece is not None:
                    yield piece

    def _sounding(self, text: str) -> Aggregation:
        start = len(text) - len(text.lstrip())
        stripped = text.strip()
        self._carry += self._trail + text[:start]
        self._trail = text[start + len(stripped) :]
        return Aggregation(stripped, TextType.SENTENCE)

    def _silent(self, text: str) -> Aggregation | None:
        self._carry += self._trail + text
        self._trail = ""
        return Aggregation(text.strip(), SILENT) if text.strip() else None


def cut_whole(
    text: str, language: str | None, max_phrase_s: float, text_type: str, reading: Reading = PLAIN
) -> list[Carried]:
    """Cuts a text that is known whole; what sounds of it gets the type."""
    splitter = PhraseSplitter(language, max_phrase_s=max_phrase_s, reading=reading)
    aggregator = PhraseAggregator(language)
    pieces = aggregator._carried([*splitter.push(text), *splitter.end()])
    return [(lead, piece if piece.type == SILENT else Aggregation(piece.text, text_type)) for lead, piece in pieces]


def _runs(phrase: Phrase) -> list[tuple[str, bool]]:
    """The phrase's written text in turns of sounding and silent; short silent stretches stay where they are."""
    text = phrase.text
    runs: list[tuple[str, bool]] = []
    start = end = 0
    for word in _SPOKEN_WORD.finditer(phrase.spoken):
        low, high = phrase.speakable.written_span(word.start(), word.end())
        if len(_WORD.findall(text[end:low])) >= _SKIPPABLE_WORDS:
            if end > start:
                runs.append((text[start:end], True))
            runs.append((text[end:low], False))
            start = low
        end = max(end, high)
    if end > start:
        rest = len(text)
        if len(_WORD.findall(text[end:])) >= _SKIPPABLE_WORDS:
            rest = end
        runs.append((text[start:rest], True))
        end = rest
    if end < len(text):
        runs.append((text[end:], False))
    return runs


def _now_s() -> float:
    return asyncio.get_running_loop().time()
