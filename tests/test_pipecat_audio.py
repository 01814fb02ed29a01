"""What goes to the transport: rates, tails, the lead, underruns; and the pieces it is made with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import (
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
)
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService

from tests.pipecat_rig import LoopClock, call, fake_call, whole
from voxagent.errors import SessionStateError
from voxagent.fake import FakeScript, Wait, encode
from voxagent.pcm import resample, to_int16
from voxagent_pipecat import LoopbackTransport, VoxAgentTTSService
from voxagent_pipecat.sharing import EngineLease
from voxagent_pipecat.timeline import Timeline

TEXT = "Hello there, my friend. How are you today?"


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 48000])
def test_every_sample_arrives_at_the_pipeline_s_rate(virtual, rate):
    async def body():
        async with fake_call(sample_rate=rate) as f:
            await f.call.reply(TEXT)
            await f.call.until(lambda: f.call.spoken_turns)
            frames = f.call.spoken.of(TTSAudioRawFrame)
            assert {(x.sample_rate, x.num_channels) for x in frames} == {(rate, 1)}
            handed = np.frombuffer(b"".join(x.audio for x in frames), np.int16)
            samples = sum(len(phrase) for phrase in ("Hello there,", " my friend.", " How are you today?")) * 400
            candidates = []
            for seed in range(4):
                candidates.append(to_int16(resample(encode(seed, 0, samples), 16000, rate)))
            # Whitespace between phrases is the splitter's business and may or may not sound.
            assert abs(len(handed) - len(candidates[0])) <= 3 * 400 * rate / 16000
            assert any(np.array_equal(handed[:-600], wanted[: len(handed) - 600]) for wanted in candidates)
            played = f.call.transport.pcm
            assert np.array_equal(played[: len(handed)], handed)
            assert not played[len(handed) :].any()

    virtual(body())


@pytest.mark.parametrize("lead_ms", [100.0, 300.0, 500.0])
def test_lead_is_bounded(virtual, lead_ms):
    async def body():
        async with fake_call(tts_options={"lead_ms": lead_ms}) as f:
            await f.call.reply(TEXT, TEXT, TEXT)
            await f.call.until_seen(LLMFullResponseEndFrame)
            assert lead_ms - 45 <= f.tts.stats.peak_lead_ms <= lead_ms + 0.01
            handed_s = 0.0
            for at_s, frame in f.call.spoken.frames:
                if isinstance(frame, TTSAudioRawFrame):
                    handed_s += frame.num_frames / frame.sample_rate
                    played_s = f.call.transport.played_samples(at_s) / 16000
                    assert handed_s - played_s <= lead_ms / 1000 + 0.045
            assert f.call.transport.silences(0.002) == []

    virtual(body())


def test_underrun_is_counted_and_words_follow_the_playout():
    async def body():
        script = FakeScript(samples_per_character=400, on_step={2: Wait(1.2)})
        async with fake_call(script, engine_settings={"threaded": True}, clock=None) as f:
            await f.call.reply("one two three four five six seven eight nine ten eleven twelve")
            await f.call.until_seen(LLMFullResponseEndFrame)
            assert f.tts.stats.underruns == 1
            assert 300 < f.tts.stats.underrun_ms < 1300
            assert whole(f.call.transport.pcm)
            words = [(at, x.text) for at, x in f.call.played.frames if isinstance(x, TTSTextFrame)]
            end = -1
            for at_s, word in words[:-1]:
                end += len(word) + 1
                assert f.call.transport.played_samples(at_s + 0.15) >= end * 400 - 960
                assert f.call.transport.played_samples(at_s) <= end * 400

    asyncio.run(body())


def test_pause_of_the_llm_is_no_underrun_and_clips_no_word(virtual):
    async def body():
        async with fake_call(sample_rate=24000) as f:
            await f.call.send(LLMFullResponseStartFrame())
            for n in range(1, 12):
                await f.call.send(LLMTextFrame("So " + "a" * n + " was that thing. "))
                await asyncio.sleep(8)
            await f.call.send(LLMFullResponseEndFrame())
            await f.call.until(lambda: f.call.spoken_turns)
            assert f.tts.stats.underruns == 0
            assert f.call.head.errors == []
            handed = np.frombuffer(b"".join(x.audio for x in f.call.spoken.of(TTSAudioRawFrame)), np.int16)
            assert np.array_equal(np.trim_zeros(handed), np.trim_zeros(f.call.transport.pcm))

    virtual(body())


# --- the loudspeaker -------------------------------------------------------------------------------------------------


class Inline(TTSService):
    """The plainest service of somebody else: yields its audio from `run_tts`."""

    def __init__(self) -> None:
        super().__init__(
            push_start_frame=True, push_stop_frames=True, settings=TTSSettings(model="m", voice="v", language=None)
        )

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        yield TTSAudioRawFrame(b"\x10\x27" * 12000, self.sample_rate, 1, context_id=context_id)


@pytest.mark.parametrize("chunk_ms", [10, 20, 40])
def test_loopback_plays_any_service_in_real_time(virtual, chunk_ms):
    async def body():
        async with call(Inline(), chunk_ms=chunk_ms, clock=LoopClock()) as held:
            await held.send(TTSSpeakFrame("Anything."))
            await asyncio.sleep(1.0)
            loop = held.transport
            began_s = loop.stamps[0].start_s
            assert np.count_nonzero(loop.pcm) == 12000
            assert {s.samples for s in loop.stamps} == {24 * chunk_ms}
            assert 0 <= loop.stamps[-1].end_s - began_s - 0.5 < 0.04
            assert loop.played_samples(began_s - 0.1) == 0
            assert loop.played_samples(began_s + 0.1) == 2400
            assert loop.played_samples() == len(loop.pcm)
            assert loop.last_audible_s() == pytest.approx(began_s + 0.5)
            assert loop.silences() == []
            assert held.committed() == ["Anything."]

    virtual(body())


def test_loopback_keeps_time_in_real_time():
    async def body():
        async with call(Inline(), chunk_ms=20) as held:
            await held.send(TTSSpeakFrame("Anything."), TTSSpeakFrame("More."))
            await held.until(lambda: np.count_nonzero(held.transport.pcm) == 24000)
            stamps = held.transport.stamps
            assert stamps[-1].end_s - stamps[0].start_s == pytest.approx(1.0, abs=0.03)
            assert held.transport.last_audible_s() is not None

    asyncio.run(body())


def test_loopback_refuses_odd_chunks():
    with pytest.raises(ValueError, match="multiple of 10"):
        LoopbackTransport(chunk_ms=15)


# --- the timeline ----------------------------------------------------------------------------------------------------


def test_timeline_closes_up_when_something_is_dropped():
    timeline = Timeline()
    timeline.put("a", 1.0, 10.0)
    timeline.put("b", 1.0, 10.0)
    timeline.put("c", 1.0, 10.0)
    timeline.drop({"a", "c"}, 10.25)
    assert timeline.sounded_s("a", 11.0) == 0.25
    assert timeline.end_s == 11.25
    assert timeline.sounded_s("b", 10.75) == 0.5
    assert timeline.sounded_s("c", 20.0) == 0.0
    assert timeline.silent_at_s("a") is None


def test_timeline_starts_at_once_after_a_silence():
    timeline = Timeline()
    assert timeline.put("a", 1.0, 10.0) == 10.0
    assert timeline.put("a", 1.0, 12.0) == 12.0
    assert timeline.sounded_s("a", 12.5) == 1.5
    assert timeline.ahead_s(12.5) == 0.5
    timeline.forget("a")
    assert timeline.sounded_s("a", 13.5) == 1.0


PUTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.integers(0, 60)), max_size=30)


@given(PUTS, st.integers(0, 2000))
def test_timeline_accounts_for_every_moment(puts, later):
    timeline, now, total = Timeline(), 0.0, {"a": 0.0, "b": 0.0, "c": 0.0}
    for key, length, wait in puts:
        now += wait / 64
        start = timeline.put(key, length / 64, now)
        assert start >= now
        total[key] += length / 64
        sounded = sum(timeline.sounded_s(k, now) for k in "abc")
        assert sounded + timeline.ahead_s(now) == pytest.approx(sum(total.values()))
    assert [timeline.sounded_s(k, now + later + 100) for k in "abc"] == pytest.approx(list(total.values()))


@given(PUTS, st.sets(st.sampled_from("abc")))
def test_timeline_keeps_what_is_not_dropped(puts, dropped):
    timeline, now, total = Timeline(), 0.0, {"a": 0.0, "b": 0.0, "c": 0.0}
    for key, length, wait in puts:
        now += wait / 64
        timeline.put(key, length / 64, now)
        total[key] += length / 64
    before = {k: timeline.sounded_s(k, now) for k in "abc"}
    timeline.drop(dropped, now)
    for key in "abc":
        wanted = before[key] if key in dropped else total[key]
        assert timeline.sounded_s(key, now + 1000) == pytest.approx(wanted)


# --- sharing ---------------------------------------------------------------------------------------------------------


def test_services_of_one_model_share_an_engine():
    async def body():
        one, two = EngineLease("fake", None, None), EngineLease("fake", {}, None)
        other = EngineLease("fake", {"step_ms": 1}, None)
        first, second, third = await asyncio.gather(one.acquire(), two.acquire(), other.acquire())
        assert first is second
        assert first is not third
        await one.release()
        await one.release()
        assert first.spec.name == "fake"
        await two.release()
        with pytest.raises(SessionStateError):
            await first.start()
        again = await one.acquire()
        assert again is not first
        await one.release()
        await other.release()

    asyncio.run(body())


def test_lease_on_a_model_that_cannot_be_loaded_leaves_nothing():
    async def body():
        for _ in range(2):
            lease = EngineLease("fake", {"nonsense": 1}, None)
            with pytest.raises(ValueError, match="step_ms"):
                await lease.acquire()
            await lease.release()

    asyncio.run(body())


def test_two_calls_on_one_engine():
    async def body():
        voices = [VoxAgentTTSService("fake", model_options={"step_ms": 2}) for _ in range(2)]
        async with call(voices[0]) as a, call(voices[1]) as b:
            await a.reply("One.")
            await b.reply("Two.")
            await a.until(lambda: a.spoken_turns and b.spoken_turns)
        for tts in voices:
            await tts.cleanup()
            await tts.cleanup()

    asyncio.run(body())
