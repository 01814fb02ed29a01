"""Turns that come to their end: order of frames, text of every kind, speak frames, stalls, the end of the call."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    TextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)

from tests.pipecat_rig import FakeCall, fake_call, kinds, whole
from voxagent.fake import FakeScript, Wait
from voxagent_pipecat import VoxAgentTTSService

ORDER = (
    LLMFullResponseStartFrame, AggregatedTextFrame, TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame,
    LLMFullResponseEndFrame,
)  # fmt: skip


async def quiet(f: FakeCall) -> None:
    """Until everything said has sounded."""
    await f.call.until(lambda: f.engine.stats.sessions == 0)
    await asyncio.sleep(1.0)


def test_frames_come_in_pipecat_s_order(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.reply("Hello there, ", "my friend. ", "How are ", "you today?", every_s=0.02)
            await f.call.until_seen(LLMFullResponseEndFrame)
            spoken = [x for x in f.call.spoken.of(*ORDER) if not isinstance(x, TTSTextFrame)]
            names = kinds(spoken, *ORDER)
            assert names[:3] == [kind.__name__ for kind in ORDER[:3]]
            assert names[-3:-2] == ["TTSAudioRawFrame"]
            assert names[-2:] == ["TTSStoppedFrame", "LLMFullResponseEndFrame"]
            assert len(f.call.spoken.of(TTSStartedFrame)) == len(f.call.spoken.of(TTSStoppedFrame)) == 1
            audio = f.call.spoken.of(TTSAudioRawFrame)
            assert len({frame.context_id for frame in audio}) == 1
            assert all(20 <= 1000 * frame.num_frames / frame.sample_rate <= 40 for frame in audio)
            await quiet(f)
            text = "Hello there, my friend. How are you today?"
            assert f.call.committed() == [text]
            [(_, heard, interrupted)] = f.call.spoken_turns
            assert (heard.heard, heard.unheard, interrupted) == (text, "", False)
            assert whole(f.call.transport.pcm)

    virtual(body())


def test_words_are_committed_when_they_have_all_but_sounded(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.reply("one two three four five six")
            await f.call.until_seen(LLMFullResponseEndFrame)
            began_s = f.call.transport.stamps[0].start_s
            words = [(at_s - began_s, x.text) for at_s, x in f.call.played.frames if isinstance(x, TTSTextFrame)]
            ends = [0.075, 0.175, 0.325, 0.45, 0.575, 0.675]
            assert [text for _, text in words] == ["one", "two", "three", "four", "five", "six"]
            assert [at_s for at_s, _ in words] == pytest.approx([end - 0.06 for end in ends], abs=0.01)

    virtual(body())


def test_llm_that_stalls_in_mid_sentence(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.send(LLMFullResponseStartFrame(), LLMTextFrame("Well, let me just look that up in the "))
            await asyncio.sleep(30)
            assert f.call.played.of(TTSTextFrame)[-1].text in ("up", "the")
            assert f.call.played.of(TTSStoppedFrame) == []
            await f.call.send(LLMTextFrame("book. Here it is."), LLMFullResponseEndFrame())
            await f.call.until_seen(LLMFullResponseEndFrame)
            await quiet(f)
            assert f.call.committed() == ["Well, let me just look that up in the book. Here it is."]
            assert f.call.head.errors == []
            assert f.engine.stats.opened == 1
            assert len(f.call.played.of(TTSStartedFrame)) == len(f.call.played.of(TTSStoppedFrame)) == 1
            assert f.tts.stats.underruns == 0
            assert whole(f.call.transport.pcm)

    virtual(body())


def test_speak_frame_need_not_wait_for_a_stalled_llm(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.send(LLMFullResponseStartFrame(), LLMTextFrame("Let me see. I have it "))
            await asyncio.sleep(5)
            await f.call.send(TTSSpeakFrame("Still looking."))
            await asyncio.sleep(3)
            assert [x.text for x in f.call.played.of(TTSTextFrame)][-2:] == ["Still", "looking."]
            await f.call.send(LLMTextFrame("right "), LLMTextFrame("here."), LLMFullResponseEndFrame())
            await f.call.until_seen(LLMFullResponseEndFrame)
            await quiet(f)
            said = [x.text for x in f.call.played.of(TTSTextFrame)]
            speech = said.index("Still")
            assert 4 <= speech < len(said) - 2
            assert said[:speech] + said[speech + 2 :] == ["Let", "me", "see.", "I", "have", "it", "right", "here."]
            assert f.engine.stats.opened == 2
            assert f.call.head.errors == []
            heard = {heard.heard for _, heard, _ in f.call.spoken_turns}
            assert heard == {"Still looking.", "Let me see. I have it right here."}

    virtual(body())


def test_two_speak_frames_are_two_turns(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.send(TTSSpeakFrame("First of all."), TTSSpeakFrame("And then this."))
            await f.call.until_seen(TTSStoppedFrame, 2)
            await quiet(f)
            started = [x.context_id for x in f.call.played.of(TTSStartedFrame)]
            assert len(set(started)) == 2
            assert [x.context_id for x in f.call.played.of(TTSStoppedFrame)] == started
            assert [heard.heard for _, heard, _ in f.call.spoken_turns] == ["First of all.", "And then this."]
            assert f.call.committed() == ["First of all.", "And then this."]
            assert whole(f.call.transport.pcm, turns=2)
            assert f.call.transport.silences(0.05) == []

    virtual(body())


def test_speak_frame_within_a_reply_follows_it(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.send(LLMFullResponseStartFrame(), LLMTextFrame("The reply goes on. And "))
            await f.call.send(TTSSpeakFrame("By the way."), LLMTextFrame("on."), LLMFullResponseEndFrame())
            await f.call.until_seen(LLMFullResponseEndFrame)
            await quiet(f)
            assert f.call.head.errors == []
            said = " ".join(x.text for x in f.call.played.of(TTSTextFrame))
            assert "By the way." in said
            assert said.replace("By the way.", "").split() == ["The", "reply", "goes", "on.", "And", "on."]

    virtual(body())


@pytest.mark.parametrize("last", ["...", " 😀", "\n```\nx = 1\n```", " ***"])
def test_silent_last_phrase_ends_the_turn_at_once(virtual, last):
    async def body():
        async with fake_call() as f:
            await f.call.reply("That was it. ", last)
            await f.call.until_seen(BotStoppedSpeakingFrame)
            ended_s = f.call.played.at(BotStoppedSpeakingFrame)[0]
            assert ended_s - f.call.transport.stamps[-1].end_s < 0.1
            await f.call.until_seen(LLMFullResponseEndFrame, timeout_s=0.5)
            assert f.call.head.errors == []

    virtual(body())


def test_slow_first_chunk_is_waited_for():
    async def body():
        # In real time: the model's thread must be slow without the event loop being so.
        script = FakeScript(samples_per_character=400, on_prefill={0: Wait(3.3)})
        async with fake_call(script, engine_settings={"threaded": True}, clock=None) as f:
            await f.call.reply("Better late than never.")
            await f.call.until_seen(TTSStoppedFrame)
            assert len(f.call.played.of(TTSStartedFrame)) == len(f.call.played.of(TTSStoppedFrame)) == 1
            assert f.call.head.errors == []
            assert whole(f.call.transport.pcm)

    asyncio.run(body())


def test_text_without_a_reply_is_spoken(virtual):
    async def body():
        async with fake_call() as f:
            await f.call.send(TextFrame("Hello there, my friend. How are you "), TextFrame("today? "))
            await asyncio.sleep(5)
            assert (
                " ".join(x.text for x in f.call.played.of(TTSTextFrame)) == "Hello there, my friend. How are you today?"
            )

    virtual(body())


def test_reply_without_text_leaves_nothing_behind(virtual):
    async def body():
        async with fake_call() as f:
            for _ in range(5):
                await f.call.reply()
            await f.call.until_seen(LLMFullResponseEndFrame, 5)
            assert f.engine.stats.opened == 5
            assert f.engine.stats.sessions == 0
            assert f.call.head.errors == []
            assert f.call.spoken_turns == []

    virtual(body())


def test_silent_replies_do_not_write_the_service_off(virtual):
    async def body():
        async with fake_call() as f:
            for text in ("😀", "...", "  \n ", "***", "\x00\x07"):
                await f.call.reply(text)
                await f.call.send(TTSSpeakFrame(text))
            await f.call.reply("But now I speak.")
            await f.call.until(lambda: f.call.spoken_turns)
            assert f.tts.is_usable
            assert f.call.head.errors == []
            assert f.call.committed()[-1].endswith("But now I speak.")

    virtual(body())


def test_end_frame_speaks_what_is_held(virtual):
    async def body():
        async with fake_call(end=False) as f:
            await f.call.send(LLMFullResponseStartFrame(), LLMTextFrame("Goodbye then, and take care of"))
            await f.call.send(LLMTextFrame(" yourself"), EndFrame())
            await f.call.until_seen(EndFrame)
            assert " ".join(x.text for x in f.call.played.of(TTSTextFrame)).endswith("take care of yourself")
            assert f.call.committed() == ["Goodbye then, and take care of yourself"]
            assert whole(f.call.transport.pcm)

    virtual(body())


def test_interruption_while_the_last_words_are_said_does_not_wedge_the_call(virtual):
    async def body():
        async with fake_call(end=False) as f:
            await f.call.send(TTSSpeakFrame("Goodbye, it was a pleasure to talk to you, see you soon."), EndFrame())
            await asyncio.sleep(0.7)
            await f.call.interrupt()
            await f.call.until_seen(EndFrame, timeout_s=5)

    virtual(body())


def test_cancel_stops_at_once(virtual):
    async def body():
        async with fake_call(end=False) as f:
            await f.call.send(TTSSpeakFrame("This is a long sentence that will not come to its end."))
            await asyncio.sleep(0.5)
            await f.call.worker.cancel()
            await asyncio.sleep(0.01)
            assert f.engine.stats.sessions == 0
            samples = len(f.call.transport.pcm)
            await asyncio.sleep(1.0)
            assert len(f.call.transport.pcm) == samples

    virtual(body())


def test_settings_change_with_the_next_turn(virtual):
    async def body():
        async with fake_call() as f:
            settings = VoxAgentTTSService.Settings
            await f.call.reply("A sentence of some length here.")
            await f.call.until_seen(LLMFullResponseEndFrame)
            slow = len(f.call.transport.pcm)
            await f.call.send(TTSUpdateSettingsFrame(delta=settings(speed=2.0, voice="another")))
            await f.call.reply("A sentence of some length here.")
            await f.call.until_seen(LLMFullResponseEndFrame, 2)
            assert len(f.call.transport.pcm) - slow == pytest.approx(slow / 2, abs=700)
            assert (f.tts.settings.speed, f.tts.settings.voice) == (2.0, "another")

    virtual(body())


@pytest.mark.parametrize(
    ("field", "value", "cure"),
    [
        ("speed", 9.0, "between"),
        ("speed", "fast", "speed"),
        ("voice", "missing", "no voice"),
        ("model", "other", "second"),
    ],
)
def test_bad_setting_is_refused_and_the_old_one_stays(virtual, field, value, cure):
    async def body():
        async with fake_call() as f:
            before = getattr(f.tts.settings, field)
            delta = VoxAgentTTSService.Settings(**{field: value})
            await f.call.send(TTSUpdateSettingsFrame(delta=delta))
            await f.call.reply("I still speak.")
            await f.call.until(lambda: f.call.spoken_turns)
            assert getattr(f.tts.settings, field) == before
            [error] = f.call.head.errors
            assert cure in error.error
            assert "stays" in error.error
            assert f.tts.is_usable

    virtual(body())


def test_metrics(virtual):
    async def body():
        async with fake_call(metrics=True) as f:
            await f.call.reply("Hello there, my friend. ", "How are you?")
            await f.call.until_seen(LLMFullResponseEndFrame)
            given = [d for x in f.call.spoken.of(MetricsFrame) for d in x.data if d.value]
            data = [type(d).__name__ for d in given]
            assert data.count("TTFBMetricsData") == 1
            assert data.count("TTSUsageMetricsData") == len(f.call.spoken.of(AggregatedTextFrame, exact=True))
            assert "ProcessingMetricsData" not in data

    virtual(body())
