"""Any order of replies, speak frames, stalls and interruptions: nothing gets stuck, lost or left behind."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TextFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSUpdateSettingsFrame,
)

from tests.conftest import run_virtual
from tests.pipecat_rig import FakeCall, fake_call, whole
from voxagent_pipecat import VoxAgentTTSService

TEXTS = (
    "Yes. ",
    "Well, let me see what ",
    "I have for you here. ",
    "😀 ",
    "... ",
    "And then, of course, there is that other ",
)
ACTIONS = st.one_of(
    st.tuples(st.just("start"), st.none()),
    st.tuples(st.just("text"), st.sampled_from(TEXTS)),
    st.tuples(st.just("end"), st.none()),
    st.tuples(st.just("speak"), st.sampled_from(TEXTS)),
    st.tuples(st.just("firm"), st.sampled_from(TEXTS)),
    st.tuples(st.just("loose"), st.sampled_from(TEXTS)),
    st.tuples(st.just("interrupt"), st.none()),
    st.tuples(st.just("voice"), st.sampled_from(("a", "b", "missing"))),
    st.tuples(st.just("wait"), st.sampled_from((0.0, 0.01, 0.3, 1.0, 4.0))),
)


async def act(f: FakeCall, action: str, value: object) -> None:
    match action:
        case "start":
            await f.call.send(LLMFullResponseStartFrame())
        case "text":
            await f.call.send(LLMTextFrame(str(value)))
        case "end":
            await f.call.send(LLMFullResponseEndFrame())
        case "speak" | "firm":
            frame = TTSSpeakFrame(str(value))
            frame.interruptible = action == "speak"
            await f.call.send(frame)
        case "loose":
            await f.call.send(TextFrame(str(value)))
        case "interrupt":
            await f.call.interrupt()
        case "voice":
            await f.call.send(TTSUpdateSettingsFrame(delta=VoxAgentTTSService.Settings(voice=str(value))))
        case "wait":
            await asyncio.sleep(float(str(value)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, max_size=14))
def test_any_order_of_events(actions):
    async def body():
        async with fake_call() as f:
            for action, value in actions:
                await act(f, action, value)
            await f.call.send(LLMFullResponseEndFrame())
            await asyncio.sleep(1.0)
            await f.call.until(lambda: f.call.gone_quiet(6.0), 120)
            assert f.tts.get_audio_contexts() == []
            assert f.engine.stats.sessions == 0
            samples = len(f.call.transport.pcm)
            await f.call.reply("And now something else.")
            await f.call.until(
                lambda: f.call.spoken_turns and f.call.spoken_turns[-1][1].heard == "And now something else.", 20
            )
            await asyncio.sleep(1)
            assert whole(f.call.transport.pcm[samples:])
            keys = [key for key, _, _ in f.call.spoken_turns]
            assert len(keys) == len(set(keys))
            assert len(f.call.spoken.of(TTSStoppedFrame)) <= len(f.call.spoken.of(TTSStartedFrame))
            assert all("stays" in error.error for error in f.call.head.errors), f.call.head.errors
            assert f.tts.is_usable

    run_virtual(body())
