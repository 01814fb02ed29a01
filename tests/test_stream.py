"""Phrases as plain iterators: nothing is lost whatever the source does, and a stalled source leaves no silence."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxagent.phrases import PhraseSplitter, speech_seconds
from voxagent.stream import aiter_phrases, iter_phrases

TEXT = "Good morning, this is the front desk. Your room is ready, and breakfast is from seven. Anything else?"


def split(text):
    splitter = PhraseSplitter("en")
    return [p.text for p in splitter.push(text) + splitter.end()]


def pieces(text, size):
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 4, 500])
def test_the_iterator_yields_the_splitters_phrases(size):
    assert [p.text for p in iter_phrases(pieces(TEXT, size), "en")] == split(TEXT)


@settings(deadline=None)
@given(st.lists(st.text(max_size=12), max_size=20))
def test_the_phrases_are_the_text_whatever_the_tokens(tokens):
    text = "".join(tokens)
    assert "".join(p.text for p in iter_phrases(tokens)) == "".join(p.text for p in iter_phrases([text]))


def test_a_phrase_comes_as_soon_as_it_is_complete():
    fed = []

    def source():
        for token in pieces(TEXT, 4):
            fed.append(token)
            yield token

    next(iter_phrases(source(), "en"))
    assert len("".join(fed)) <= 20


def test_a_source_that_fails_loses_nothing_that_it_gave():
    def source():
        yield "Good morning, this is "
        raise ConnectionError("gone")

    out = []
    with pytest.raises(ConnectionError, match="gone"):
        out.extend(phrase.text for phrase in iter_phrases(source(), "en"))
    assert "".join(out) == "Good morning, this is "


def test_bad_lengths_are_refused():
    with pytest.raises(ValueError, match="positive"):
        list(iter_phrases(["a"], first_s=0))


class TestAsync:
    async def collect(self, source, **options):
        loop = asyncio.get_running_loop()
        began = loop.time()
        return [(p.text, p.reason, round(loop.time() - began, 1)) async for p in aiter_phrases(source, "en", **options)]

    async def test_a_steady_source_gives_the_same_phrases(self):
        async def source():
            for token in pieces(TEXT, 5):
                yield token
                await asyncio.sleep(0)

        found = await self.collect(source(), runway_s=lambda: 5.0)
        assert [text for text, _, _ in found] == split(TEXT)

    async def test_a_stalled_source_is_released_up_to_the_last_safe_word(self):
        going_on = asyncio.Event()

        async def source():
            yield "The next free appointment is on Tues"
            await going_on.wait()
            yield "day at ten."

        out = []
        async for phrase in aiter_phrases(source(), "en", runway_s=lambda: 0.0):
            out.append((phrase.text, phrase.reason))
            going_on.set()
        assert out == [("The next free appointment", "stall"), (" is on Tuesday at ten.", "end")]

    def test_by_default_the_stall_waits_for_the_estimated_audio_to_run_low(self, virtual):
        async def source():
            yield "Good morning, this is the front desk. The next free appointment is on Tuesday with "
            await asyncio.sleep(20)
            yield "Doctor Miller at ten."

        found = virtual(self.collect(source()))
        assert [(text, reason) for text, reason, _ in found[2:]] == [
            (" The next free appointment is on Tuesday", "stall"),
            (" with Doctor Miller at ten.", "end"),
        ]
        said_s = sum(speech_seconds(text) for text, _, _ in found[:2])
        assert found[2][2] == pytest.approx(0.1 + said_s - 0.5, abs=0.1)
        assert found[3][2] == 20.0

    async def test_a_source_that_fails_loses_nothing_that_it_gave(self):
        async def source():
            yield "Good morning, this is "
            raise ConnectionError("gone")

        out = []

        async def collect():
            async for phrase in aiter_phrases(source(), "en", runway_s=lambda: 9.0):
                out.append(phrase.text)

        with pytest.raises(ConnectionError, match="gone"):
            await collect()
        assert "".join(out) == "Good morning, this is "

    async def test_leaving_early_closes_the_source_and_leaves_no_task(self):
        closed = []

        async def source():
            try:
                while True:
                    yield "Good morning, this is the front desk. "
                    await asyncio.sleep(3600)
            finally:
                closed.append(True)

        stream = aiter_phrases(source(), "en")
        async for _ in stream:
            break
        await stream.aclose()
        assert closed == [True]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_being_cancelled_cancels_the_wait_for_the_source(self):
        async def source():
            yield "Hello"
            await asyncio.sleep(3600)

        task = asyncio.create_task(self.collect(source(), runway_s=lambda: 9.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
