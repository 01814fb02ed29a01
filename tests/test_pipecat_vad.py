"""When a caller's speech starts and ends, by WebRTC's detector in Pipecat."""

from __future__ import annotations

import numpy as np
import pytest
from pipecat.audio.vad.vad_analyzer import VADParams, VADState

from tests.test_vad import voice
from voxagent_pipecat.vad import Loudness, WebRTCVADAnalyzer

RATE = 16000
RNG = np.random.default_rng(5)


def room(seconds, rate=RATE, rms=3.0):
    return RNG.normal(0, rms, round(rate * seconds)).astype(np.int16)


def cough(rate=RATE):
    t = np.arange(round(rate * 0.35)) / rate
    return (RNG.normal(0, 9000, len(t)) * np.exp(-t / 0.07)).clip(-32767, 32767).astype(np.int16)


async def changes(pcm, rate=RATE, block=None, vad=None, **options):
    """When the caller starts and stops, in seconds."""
    vad = vad or WebRTCVADAnalyzer(**options)
    vad.set_sample_rate(rate)
    block = block or rate // 50
    found, speaking = [], False
    for end in range(block, len(pcm) + 1, block):
        state = await vad.analyze_audio(pcm[end - block : end].tobytes())
        if state in (VADState.SPEAKING, VADState.QUIET) and (state is VADState.SPEAKING) != speaking:
            speaking = not speaking
            found.append(end / rate)
    await vad.cleanup()
    return found


@pytest.mark.parametrize("rate", [8000, 16000, 32000, 48000])
@pytest.mark.parametrize("frame_ms", [10, 20])
async def test_speech_starts_within_200_ms_and_ends_after_200_ms_of_silence(rate, frame_ms):
    pcm = np.concatenate((room(0.5, rate), voice(rate, 0.8), room(0.6, rate)))
    [start, stop] = await changes(pcm, rate, frame_ms=frame_ms)
    assert 0.6 <= start <= 0.7
    assert 1.48 <= stop <= 1.56


async def test_a_quiet_voice_starts_as_soon_as_a_loud_one():
    loud = np.concatenate((room(0.5), voice(RATE, 0.6), room(0.4)))
    quiet = np.concatenate((room(0.5), voice(RATE, 0.6) // 20, room(0.4)))
    assert await changes(quiet) == pytest.approx(await changes(loud), abs=0.04)


async def test_stop_consonants_do_not_delay_the_start():
    speech = voice(RATE, 0.4)
    speech[640:1280] = 0
    [start, _] = await changes(np.concatenate((room(0.5), speech, room(0.4))))
    assert start <= 0.7


async def test_a_short_pause_does_not_end_speech():
    pcm = np.concatenate((room(0.5), voice(RATE, 0.4), room(0.15), voice(RATE, 0.4), room(0.5)))
    assert len(await changes(pcm)) == 2


@pytest.mark.parametrize("sound", ["cough", "hiss", "fan", "keys", "nothing"])
async def test_what_has_no_pitch_starts_nothing(sound):
    key = (RNG.normal(0, 9000, 160) * np.exp(-np.arange(160) / 40)).astype(np.int16)
    sounds = {
        "cough": cough(),
        "hiss": room(2.0, rms=1000),
        "fan": np.convolve(room(2.0, rms=4000), np.ones(24) / 24, "same").astype(np.int16),
        "keys": np.concatenate([np.concatenate((key, room(0.09))) for _ in range(12)]),
        "nothing": np.zeros(2 * RATE, np.int16),
    }
    assert await changes(np.concatenate((room(0.5), sounds[sound], room(0.5)))) == []


async def test_speech_in_a_noisy_room_ends():
    noise = room(5.0, rms=120)
    pcm = noise.copy()
    pcm[3 * RATE : 4 * RATE] += voice(RATE, 1.0)
    [start, stop] = await changes(pcm)
    assert 3.0 < start < 3.2
    assert 4.1 < stop < 4.5


async def test_sound_under_the_floor_is_no_voice():
    pcm = np.concatenate((room(0.5), voice(RATE, 0.6) // 100, room(0.5)))
    assert await changes(pcm) == []
    assert len(await changes(pcm, quiet_dbfs=-75.0)) == 2


async def test_any_block_size_gives_the_same_state():
    pcm = np.concatenate((room(0.5), voice(RATE, 0.5), room(0.5)))
    expected = await changes(pcm, block=320)
    assert await changes(pcm, block=640) == pytest.approx(expected, abs=0.021)
    assert await changes(pcm, block=77) == pytest.approx(expected, abs=0.021)


async def test_params_changed_in_a_call_hold_from_then_on():
    vad = WebRTCVADAnalyzer()
    vad.set_sample_rate(RATE)
    vad.set_params(VADParams(confidence=0.5, start_secs=0.3, stop_secs=0.4, min_volume=0.0))
    [start, stop] = await changes(np.concatenate((room(0.5), voice(RATE, 0.8), room(0.6))), vad=vad)
    assert 0.78 <= start <= 0.9
    assert 1.68 <= stop <= 1.76


def test_the_default_parameters_suit_smart_turn_and_have_no_volume_gate():
    params = WebRTCVADAnalyzer().params
    assert (params.stop_secs, params.min_volume) == (0.2, 0.0)


def test_one_frame_is_voice_or_not():
    vad = WebRTCVADAnalyzer()
    vad.set_sample_rate(RATE)
    assert vad.num_frames_required() == 320
    frames = np.concatenate((np.zeros(3200, np.int16), voice(RATE, 0.4))).reshape(-1, 320)
    verdicts = [vad.voice_confidence(frame.tobytes()) for frame in frames]
    assert set(verdicts) == {0.0, 1.0}
    assert verdicts[:10] == [0.0] * 10
    assert np.mean(verdicts[10:]) > 0.8


@pytest.mark.parametrize(
    ("options", "cure"),
    [({"frame_ms": 30}, "10 or 20"), ({"aggressiveness": 4}, "between 0 and 3"), ({"sample_rate": 44100}, "resample")],
)
def test_bad_options_are_refused_at_once(options, cure):
    with pytest.raises(ValueError, match=cure):
        WebRTCVADAnalyzer(**options)


def test_a_pipeline_at_an_odd_rate_is_refused():
    with pytest.raises(ValueError, match="resample"):
        WebRTCVADAnalyzer().set_sample_rate(24000)


def test_the_decay_of_a_loud_sound_is_silence():
    loudness = Loudness(-55.0, 20)
    frame = voice(RATE, 0.02)
    assert loudness.sounds(frame)
    assert not loudness.sounds(frame // 64)
    assert not Loudness(-55.0, 20).sounds(np.zeros(320, np.int16))
