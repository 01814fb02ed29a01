"""Phrases from a stream of tokens, as plain iterators: for those who have neither Pipecat nor the engine.

Owns when the splitter's timers are looked at. Knows nothing of audio: the runway is the caller's, or an estimate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress

from voxagent.phrases import FIRST_S, MAX_PHRASE_S, Phrase, PhraseSplitter
from voxagent.reading import PLAIN, Reading
from voxagent.virtual_player import VirtualPlayer

# What a poll that releases nothing may leave overdue.
_REST_S = 0.02


def iter_phrases(
    tokens: Iterable[str],
    language: str | None = None,
    *,
    first_s: float = FIRST_S,
    max_phrase_s: float = MAX_PHRASE_S,
    reading: Reading = PLAIN,
) -> Iterator[Phrase]:
    """Cuts a stream of text into phrases as it comes.

    The phrases' texts put together are the text of the tokens. When the source raises, what it gave so far is yielded
    first, then the error goes on.

    Args:
        tokens: The text in pieces of any size.
        language: BCP 47 tag; None is judged by the script, with Latin taken for English.
        first_s: Shortest first phrase, in seconds of speech.
        max_phrase_s: Longest phrase.
        reading: How text is read where tastes and engines differ.

    Raises:
        ValueError: A length is out of range.
    """
    splitter = PhraseSplitter(language, first_s=first_s, max_phrase_s=max_phrase_s, reading=reading)
    try:
        for token in tokens:
            yield from splitter.push(token)
    except Exception:
        yield from splitter.end()
        raise
    yield from splitter.end()


async def aiter_phrases(
    tokens: AsyncIterable[str],
    language: str | None = None,
    *,
    first_s: float = FIRST_S,
    max_phrase_s: float = MAX_PHRASE_S,
    reading: Reading = PLAIN,
    runway_s: Callable[[], float] | None = None,
) -> AsyncGenerator[Phrase]:
    """The same for a source that has to be waited for, with timers: a stalled source leaves no silence behind.

    Args:
        tokens: The text in pieces of any size. Its `aclose`, if it has one, is called at the end.
        language: BCP 47 tag; None is judged by the script, with Latin taken for English.
        first_s: Shortest first phrase, in seconds of speech.
        max_phrase_s: Longest phrase.
        reading: How text is read where tastes and engines differ.
        runway_s: Tells the seconds of audio that are not played yet. By default they are estimated: every phrase is
            taken to sound a tenth of a second after its release, or when the ones before it are over.

    Raises:
        ValueError: A length is out of range.
    """
    splitter = PhraseSplitter(language, first_s=first_s, max_phrase_s=max_phrase_s, reading=reading)
    now_s = asyncio.get_running_loop().time
    player = VirtualPlayer(now_s=now_s())
    async with aclosing(_tokens_and_ticks(tokens, splitter)) as moments:
        try:
            async for token in moments:
                player.now_s = now_s()
                if token is None:
                    left_s = player.runway_s if runway_s is None else runway_s()
                    released = splitter.poll(player.now_s, left_s)
                else:
                    released = splitter.push(token, player.now_s)
                player.take(released)
                player.released.clear()  # a turn may be long
                for phrase in released:
                    yield phrase
        except Exception:
            for phrase in splitter.end(now_s()):
                yield phrase
            raise
    for phrase in splitter.end(now_s()):
        yield phrase


async def _tokens_and_ticks(tokens: AsyncIterable[str], splitter: PhraseSplitter) -> AsyncGenerator[str | None]:
    """The source's tokens, and None whenever the splitter wants to be polled while the source is waited for."""
    now_s = asyncio.get_running_loop().time
    source = aiter(tokens)
    waiting: asyncio.Future[str] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(_next(source))
            due_s = splitter.next_deadline_s
            await asyncio.wait({waiting}, timeout=None if due_s is None else max(due_s - now_s(), _REST_S))
            if waiting.done():
                done, waiting = waiting, None
                yield done.result()
            else:
                yield None
    except _Over:
        return
    finally:
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await waiting
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


class _Over(Exception):
    """The source has ended; StopAsyncIteration cannot leave a future."""


async def _next(source: AsyncIterator[str]) -> str:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise _Over from None
