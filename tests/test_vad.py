"""Voice activity on synthetic sounds, at any block size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxagent.vad import VoiceActivity

RNG = np.random.default_rng(3)


def voice(rate, seconds=1.0):
    """Pulses at 120 Hz through three resonances: enough of a vowel for a detector of formants and energy."""
    t = np.arange(int(rate * seconds)) / rate
    pulses = sum(np.sin(2 * np.pi * 120 * k * t) * np.exp(-(((120 * k - f) / 150) ** 2))
                 for k in range(1, 30) for f in (600, 1100, 2500))  # fmt: skip
    return (8000 * pulses / np.abs(pulses).max() * (0.8 + 0.2 * np.sin(2 * np.pi * 4 * t))).astype(np.int16)


@pytest.mark.parametrize("rate", [8000, 16000, 32000, 48000])
@pytest.mark.parametrize("frame_ms", [10, 20, 30])
def test_voice_is_told_from_silence_at_every_rate(rate, frame_ms):
    silence = RNG.normal(0, 3, rate).astype(np.int16)
    assert np.mean(VoiceActivity(rate, frame_ms).push(voice(rate))) > 0.9
    assert np.mean(VoiceActivity(rate, frame_ms).push(silence)) < 0.1


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 900), max_size=30))
def test_any_block_size_gives_the_same_verdicts(sizes):
    pcm = np.concatenate((voice(16000, 0.3), np.zeros(4000, np.int16), voice(16000, 0.3)))
    whole = VoiceActivity(16000).push(pcm)
    detector, got, at = VoiceActivity(16000), [], 0
    for size in [*sizes, len(pcm)]:
        got += detector.push(pcm[at : at + size])
        at += size
    assert got == whole


@pytest.mark.parametrize(
    ("options", "cure"), [((44100,), "resample"), ((16000, 25), "10, 20 or 30"), ((16000, 20, 4), "between 0 and 3")]
)
def test_what_the_detector_cannot_do_is_refused(options, cure):
    with pytest.raises(ValueError, match=cure):
        VoiceActivity(*options)
