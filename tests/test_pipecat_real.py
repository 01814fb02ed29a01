"""The real voice in a real pipeline, in real time."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import InterruptionFrame, LLMFullResponseEndFrame

from tests.pipecat_rig import call
from voxagent.voices import installed_voices
from voxagent_pipecat import VoxAgentTTSService

pytestmark = pytest.mark.skipif(not installed_voices(), reason="no voice is installed")

TEXT = "Sure, I can help you with that. First I would like to know where you want to go."


def test_reply_is_spoken_and_committed():
    async def body():
        tts = VoxAgentTTSService("piper", settings=VoxAgentTTSService.Settings(speed=1.5))
        async with call(tts) as held:
            await held.reply(*[word + " " for word in TEXT.split(" ")], every_s=0.01)
            await held.until_seen(LLMFullResponseEndFrame)
            await held.until(lambda: held.spoken_turns)
            await held.until(lambda: held.committed())
            assert held.committed() == [TEXT]
            assert held.spoken_turns[0][1].heard.strip() == TEXT
            seconds = len(held.transport.pcm) / 24000
            assert 2.0 < seconds < 6.0
            assert held.head.errors == []

    asyncio.run(body())


def test_caller_speaks_over_the_bot():
    async def body():
        tts = VoxAgentTTSService("piper")
        async with call(tts, chunk_ms=20) as held:
            await held.reply(*[word + " " for word in TEXT.split(" ")], every_s=0.01)
            await held.until(lambda: len(held.transport.pcm))
            await asyncio.sleep(1.5)
            cut_s = await held.interrupt()
            await asyncio.sleep(0.5)
            reached_s = held.played.at(InterruptionFrame)[-1]
            assert held.transport.stamps[-1].start_s <= reached_s + 0.02
            assert reached_s - cut_s < 0.25
            [committed] = held.committed()
            assert TEXT.startswith(committed)
            assert abs(len(committed.split()) - held.spoken_turns[0][1].words) <= 1

    asyncio.run(body())
