"""Pipecat's own sentence aggregator beside ours in `voxagent bench phrases`, set up as its TTS services do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from pipecat.utils.text.base_text_aggregator import Aggregation, TextType
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

from voxagent.benchmarks.splitters import Trail

T = TypeVar("T")


class PipecatSplitter:
    """One text through `SimpleTextAggregator`."""

    def __init__(self, language: str) -> None:
        self._trail = Trail()
        # As `TTSService` does.
        aggregator: Any = SimpleTextAggregator
        self._aggregator = aggregator(aggregation_type=TextType.SENTENCE, language=language)

    def feed(self, chunk: str) -> list[int]:
        """Ends of the sentences that this piece completed."""
        self._trail.feed(chunk)
        return [self._trail.end_of(found.text) for found in _result(_listed(self._aggregator.aggregate(chunk)))]

    def finish(self) -> list[int]:
        """The end of what was left."""
        rest = _result(self._aggregator.flush())
        return [self._trail.end_of(rest.text)] if rest is not None else []


def create(language: str) -> PipecatSplitter:
    """The factory named under `voxagent.splitters`."""
    return PipecatSplitter(language)


async def _listed(found: AsyncIterator[Aggregation]) -> list[Aggregation]:
    return [aggregation async for aggregation in found]


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits for nothing, as the aggregator's do, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the aggregator waited for something: it needs an event loop now")
