"""stream2sentence (RealtimeTTS's splitter) beside ours in `voxagent bench phrases`.

Its own push interface, no thread. `quick_yield_single_sentence_fragment` is what it recommends for speech,
`auto_context` releases a sentence as early as its checks allow. Its rule-based tokenizer, the default: the one it
recommends for English needs NLTK data that are downloaded at the first use, so it does not work offline.
"""

from __future__ import annotations

from stream2sentence import SentenceSplitter

from voxagent.benchmarks.splitters import Trail
from voxagent.lexicon import primary_tag


class Stream2Sentence:
    """One text through `SentenceSplitter`."""

    def __init__(self, language: str) -> None:
        self._trail = Trail()
        self._splitter = SentenceSplitter(
            language=primary_tag(language),
            tokenizer="rule-based",
            auto_context=True,
            quick_yield_single_sentence_fragment=True,
        )

    def feed(self, chunk: str) -> list[int]:
        """Ends of the sentences and fragments that this piece completed."""
        self._trail.feed(chunk)
        self._splitter.add(chunk)
        return [self._trail.end_of(piece) for piece in self._splitter.stream()]

    def finish(self) -> list[int]:
        """Ends of what was left."""
        return [self._trail.end_of(piece) for piece in self._splitter.flush()]


def create(language: str) -> Stream2Sentence:
    """The factory named under `voxagent.splitters`."""
    return Stream2Sentence(language)
