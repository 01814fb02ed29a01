"""What goes wrong is told with its cure, the context ends, and the next turn speaks."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)

from tests.conftest import fake_engine
from tests.pipecat_rig import FakeCall, LoopClock, call, fake_call
from voxagent.engine import Engine, EngineSettings
from voxagent.fake import FakeModel, FakeScript, Raise, Wait
from voxagent.model import ModelSpec
from voxagent_pipecat import VoxAgentTTSService

FAST = FakeScript(samples_per_character=400)


async def ended(f: FakeCall, turns: int) -> None:
    await f.call.until_seen(LLMFullResponseEndFrame, turns)
    await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    "accident",
    [{"on_prefill": {0: Raise(RuntimeError("out of memory"))}}, {"on_step": {2: Raise(RuntimeError("out of memory"))}}],
)
def test_model_that_raises(virtual, accident):
    async def body():
        async with fake_call(FakeScript(samples_per_character=400, **accident)) as f:
            await f.call.reply("This reply will break somewhere in the middle. ", "It is not said to its end.")
            await ended(f, 1)
            assert "out of memory" in f.call.head.errors[0].error
            assert f.tts.is_usable
            assert len(f.call.played.of(TTSStoppedFrame)) == 1
            committed = " ".join(f.call.committed())
            assert "its end" not in committed
            [(_, heard, _)] = f.call.spoken_turns
            assert heard.unheard.endswith("It is not said to its end.")
            f.model.script = FAST
            await f.call.reply("But this one is.")
            await ended(f, 2)
            assert f.call.committed()[-1] == "But this one is."
            assert f.tts.stats.failed == 1

    virtual(body())


def test_model_that_fails_again_and_again_is_not_written_off(virtual):
    async def body():
        broken = FakeScript(on_prefill={0: Raise(RuntimeError("no"))})
        async with fake_call(broken) as f:
            for turn in range(5):
                await f.call.reply("Nothing comes of this.")
                await ended(f, turn + 1)
            assert f.tts.is_usable
            f.model.script = FAST
            await f.call.reply("At last.")
            await ended(f, 6)
            assert f.call.spoken_turns[-1][1].heard == "At last."

    virtual(body())


def test_model_that_hangs():
    async def body():
        script = FakeScript(samples_per_character=400, on_step={1: Wait(1.5, deaf=True)})
        settings = {"threaded": True, "step_timeout_s": 0.4}
        models = iter([FakeModel(script=script), FakeModel(script=FAST)])
        engine = Engine(lambda: next(models), EngineSettings(warm_up="", **settings))
        await engine.start()
        tts = VoxAgentTTSService("fake", engine=engine)
        async with call(tts, sample_rate=16000) as held:
            await held.reply("This one hangs after a moment of speech.")
            await held.until_seen(LLMFullResponseEndFrame)
            assert "step_timeout_s" in held.head.errors[0].error
            await held.reply("And this one does not.")
            await held.until(lambda: held.spoken_turns and held.spoken_turns[-1][1].heard == "And this one does not.")
        await engine.aclose()
        await asyncio.sleep(1.2)  # The thread that was left behind ends before the loop does.

    asyncio.run(body())


def test_engine_that_is_full(virtual):
    async def body():
        model = FakeModel(ModelSpec("fake", 16000, 2560, slots=1, languages=(), times_words=True), FAST)
        async with fake_call(model=model) as f:
            other = f.engine.open()
            await f.call.reply("There is no room for me. ", "None at all.")
            await ended(f, 1)
            [full, silent] = f.call.head.errors
            assert "slots" in full.error
            assert "no audio" in silent.error
            assert f.call.committed() == []
            await other.aclose()
            await f.call.reply("Now there is.")
            await ended(f, 2)
            assert f.call.committed() == ["Now there is."]

    virtual(body())


def test_room_that_comes_free_while_the_llm_thinks(virtual):
    async def body():
        model = FakeModel(ModelSpec("fake", 16000, 2560, slots=1, languages=(), times_words=True), FAST)
        async with fake_call(model=model) as f:
            other = f.engine.open()
            await f.call.send(LLMFullResponseStartFrame())
            await asyncio.sleep(0.2)
            await other.aclose()
            await f.call.send(LLMTextFrame("Just in time."), LLMFullResponseEndFrame())
            await ended(f, 1)
            assert f.call.head.errors == []
            assert f.call.committed() == ["Just in time."]

    virtual(body())


def test_bad_voice_at_the_start_is_cured_by_a_setting(virtual):
    async def body():
        options = {"settings": VoxAgentTTSService.Settings(voice="missing")}
        async with fake_call(tts_options=options) as f:
            assert "missing" in f.call.head.errors[0].error
            await f.call.reply("I have no voice.")
            await f.call.send(TTSSpeakFrame("None at all."))
            await ended(f, 1)
            assert len(f.call.played.of(TTSStoppedFrame)) == 2
            await f.call.send(TTSUpdateSettingsFrame(delta=VoxAgentTTSService.Settings(voice="good")))
            await f.call.reply("Now I have.")
            await ended(f, 2)
            assert [x.text for x in f.call.played.of(TTSTextFrame)][-3:] == ["Now", "I", "have."]

    virtual(body())


def test_engine_that_was_closed_under_the_service(virtual):
    async def body():
        async with fake_engine(FAST, threaded=False) as (engine, _):
            tts = VoxAgentTTSService("fake", engine=engine)
            async with call(tts, clock=LoopClock(), sample_rate=16000) as held:
                await held.reply("A reply that loses its engine while it is being said, poor thing.")
                await asyncio.sleep(0.5)
                await engine.aclose()
                await held.until_seen(LLMFullResponseEndFrame)
                assert "poor" not in " ".join(held.committed())
                for _ in range(3):
                    await held.reply("Nobody speaks this.")
                await held.until_seen(LLMFullResponseEndFrame, 4)
                assert not tts.is_usable
                assert "closed" in held.head.errors[0].error or "engine" in held.head.errors[0].error

    virtual(body())


def test_service_that_cannot_load_its_model_ends_every_turn(virtual):
    async def body():
        def broken() -> FakeModel:
            raise ValueError("there is no such file: download it")

        engine = Engine(broken, EngineSettings(threaded=False))
        tts = VoxAgentTTSService("fake", engine=engine)
        async with call(tts, clock=LoopClock(), sample_rate=16000) as held:
            assert "download it" in held.head.errors[0].error
            for _ in range(2):
                await held.reply("Nobody speaks this.")
                await held.send(TTSSpeakFrame("Nor this."))
            await held.until_seen(LLMFullResponseEndFrame, 2)

    virtual(body())


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"model": "nonesuch"}, "installed are"),
        ({"model": "fake", "lead_ms": 5000}, "lead_ms"),
        ({"model": "fake", "lead_ms": 0}, "lead_ms"),
        ({"model": "fake", "sample_rate": 100}, "sample_rate"),
        ({"model": "fake", "first_phrase_s": 0}, "positive"),
        ({"model": "fake", "settings": VoxAgentTTSService.Settings(speed=7.0)}, "speed"),
        ({"model": "fake", "engine": Engine(FakeModel), "model_options": {"step_ms": 1}}, "leave out"),
    ],
)
def test_bad_configuration_is_a_value_error_at_construction(options, cure):
    with pytest.raises(ValueError, match=cure):
        VoxAgentTTSService(**options)
