"""Sessions through a resampler and a playout to frames."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.conftest import eventually, fake_engine, run_virtual
from voxagent.device import PacedDevice
from voxagent.fake import FakeScript, Wait, encode, places
from voxagent.output import VoiceOutput

TEXT = "Hello there my friend. How are you doing on this fine day?"


def said(engine, text=TEXT, **options):
    session = engine.open(**options)
    session.push_text(text)
    session.end_input()
    return session


async def pull_all(output, *sessions, limit=2000):
    """Pulls until idle. Waits for the engine where sessions are given, so that no load makes an underrun."""

    def ready():
        return all(s.state.over or s.stats.made_samples - s.stats.heard_samples > 4000 for s in sessions)

    frames = []
    while not output.idle and len(frames) < limit:
        await eventually(ready)
        frames.append(output.pull())
        await asyncio.sleep(0.001)
    return frames


def speech(frames):
    return np.concatenate([frame.pcm[: frame.speech_samples] for frame in frames])


async def test_every_sample_of_a_turn_is_handed_over_once():
    async with fake_engine() as (engine, _):
        output = VoiceOutput(16000)
        session = said(engine, seed=1)
        output.play(session)
        await eventually(lambda: session.stats.made_samples > 8000)
        pcm = speech(await pull_all(output, session))
        assert np.array_equal(pcm[: len(pcm)], encode(1, 0, session.stats.made_samples))
        assert session.stats.heard_samples == session.stats.made_samples
        assert session.transcript().heard == TEXT
        assert output.playout.stats.underruns == 0


async def test_turns_play_one_after_another():
    async with fake_engine() as (engine, _):
        output = VoiceOutput(16000)
        first, second = said(engine, seed=1), said(engine, seed=2)
        output.play(first)
        output.play(second)
        await eventually(lambda: first.stats.made_samples > 8000)
        pcm = speech(await pull_all(output, first, second))
        wanted = [encode(seed, 0, s.stats.made_samples) for seed, s in ((1, first), (2, second))]
        assert np.array_equal(pcm, np.concatenate(wanted))


@pytest.mark.parametrize("rate", [8000, 24000, 48000])
async def test_another_rate_hears_the_turn_to_its_last_word(rate):
    async with fake_engine() as (engine, _):
        output = VoiceOutput(rate)
        session = said(engine)
        output.play(session)
        await eventually(lambda: session.stats.made_samples > 8000)
        pcm = speech(await pull_all(output, session))
        assert len(pcm) == pytest.approx(session.stats.made_samples * rate / 16000, abs=2)
        assert session.transcript().heard == TEXT


async def test_an_interrupt_ends_all_turns_and_nothing_of_them_comes_after():
    async with fake_engine(FakeScript(step_s=0.002)) as (engine, model):
        output = VoiceOutput(16000)
        sessions = [said(engine, seed=seed) for seed in (1, 2)]
        for session in sessions:
            output.play(session)
        await eventually(lambda: sessions[0].stats.made_samples > 6000)
        for _ in range(10):
            output.pull()
        position = output.interrupt()
        assert position.samples == 3200
        assert sessions[0].transcript().words == sum(w.end_sample <= 3200 for w in sessions[0].words)
        following = said(engine, seed=3)
        output.play(following)
        await eventually(lambda: following.stats.made_samples > 6000)
        output.pull()  # The fade.
        frames = await pull_all(output, following)
        assert set(places(speech(frames))[1].tolist()) == {3}
        assert [s.state.value for s in sessions] == ["interrupted", "interrupted"]
        await asyncio.gather(*(s.released() for s in sessions))
        assert model.open_slots == 0


async def test_an_interrupt_without_a_turn_is_harmless():
    output = VoiceOutput(16000)
    assert output.interrupt() is None
    assert output.idle


async def test_a_model_that_stalls_is_an_underrun():
    async with fake_engine(FakeScript(on_step={4: Wait(0.3)})) as (engine, _):
        output = VoiceOutput(16000)
        session = said(engine, seed=1)
        output.play(session)
        await eventually(lambda: session.stats.made_samples > 6000)
        pcm = speech(await pull_all(output))
        assert output.playout.stats.underruns == 1
        assert len(pcm) == session.stats.made_samples


async def test_an_llm_that_stalls_is_no_underrun():
    async with fake_engine() as (engine, _):
        output = VoiceOutput(16000)
        session = engine.open()
        output.play(session)
        session.push_text("Hello there my friend. ")
        await eventually(lambda: session.state.value == "waiting" or session.stats.made_samples > 5000)
        for _ in range(400):
            output.pull()
            await asyncio.sleep(0.001)
        assert session.starved
        assert output.playout.stats.underruns == 0
        session.push_text("Here I am again.")
        session.end_input()
        await pull_all(output)
        assert session.transcript().unheard == ""


def test_a_paced_device_pulls_at_absolute_due_times():
    async def main():
        async with fake_engine(threaded=False) as (engine, _):
            output = VoiceOutput(16000, 10)
            device = PacedDevice(output)
            session = said(engine, seed=2)
            output.play(session)
            playing = asyncio.create_task(device.run())
            await asyncio.sleep(3600 * 0.01)
            device.stop()
            await playing
            at = [frame.at_s for frame in device.played]
            assert np.allclose(np.diff(at), 0.01)
            assert np.array_equal(device.pcm[: session.stats.made_samples], encode(2, 0, session.stats.made_samples))

    run_virtual(main())


async def test_only_what_was_pulled_counts_as_heard():
    async with fake_engine() as (engine, _):
        output = VoiceOutput(16000)
        session = said(engine)
        output.play(session)
        await eventually(lambda: session.stats.made_samples > 8000)
        output.pull()
        assert output.interrupt().samples == 320
        assert session.transcript().heard == ""


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
async def test_an_interrupt_in_an_llm_stall_keeps_the_last_word(rate):
    async with fake_engine() as (engine, _):
        output = VoiceOutput(rate)
        session = engine.open()
        output.play(session)
        session.push_text("Hello there my friend. ")
        for _ in range(400):
            output.pull()
            await asyncio.sleep(0.001)
        output.interrupt()
        assert session.transcript().heard == "Hello there my friend."


async def test_a_pause_of_the_session_is_no_underrun():
    async with fake_engine() as (engine, _):
        output = VoiceOutput(16000)
        session = said(engine, seed=1)
        output.play(session)
        await eventually(lambda: session.stats.made_samples > 8000)
        frames = [output.pull() for _ in range(5)]
        session.pause()
        frames += [output.pull() for _ in range(50)]
        session.resume()
        frames += await pull_all(output, session)
        assert len(speech(frames)) == session.stats.made_samples
        assert output.playout.stats.underruns == 0
