"""Formats, resampling, companding."""

from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxagent.pcm import G711, Resampler, to_float32, to_int16

RNG = np.random.default_rng(5)
NOISE = (RNG.standard_normal(22050) * 0.2).astype(np.float32)
RATES = [(22050, 48000), (24000, 48000), (22050, 24000), (48000, 8000), (16000, 8000), (8000, 48000)]


def in_cuts(resampler, pcm, cuts):
    edges = [0, *sorted(c % len(pcm) for c in cuts), len(pcm)]
    parts = [resampler.push(pcm[a:b]) for a, b in pairwise(edges)]
    return np.concatenate([*parts, resampler.flush()])


@pytest.mark.parametrize(("source", "target"), RATES)
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 22049), max_size=30))
def test_any_split_of_the_input_gives_the_same_samples(source, target, cuts):
    whole = in_cuts(Resampler(source, target), NOISE, [])
    assert np.array_equal(in_cuts(Resampler(source, target), NOISE, cuts), whole)


@pytest.mark.parametrize(("source", "target"), RATES)
def test_a_tone_keeps_its_length_pitch_and_level(source, target):
    seconds = 1
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(source * seconds) / source)).astype(np.float32)
    out = in_cuts(Resampler(source, target), tone, [])
    assert abs(len(out) - target * seconds) <= 1
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(out)) / target)
    middle = slice(len(out) // 10, -len(out) // 10)
    assert np.abs(out[middle] - wanted[middle]).max() < 2e-3


@pytest.mark.parametrize(("source", "target"), RATES)
def test_the_tail_that_is_held_back_is_short(source, target):
    resampler = Resampler(source, target)
    got = len(resampler.push(NOISE))
    assert len(NOISE) * target / source - got <= 0.003 * target


def test_equal_rates_pass_samples_through():
    resampler = Resampler(48000, 48000)
    assert resampler.push(NOISE) is NOISE
    assert len(resampler.flush()) == 0


def test_a_rate_that_is_no_rate_is_refused():
    with pytest.raises(ValueError, match="positive"):
        Resampler(0, 48000)


def test_int16_and_back_is_exact():
    every = np.arange(-32768, 32768).astype(np.int16)
    assert np.array_equal(to_int16(to_float32(every)), every)


def test_too_loud_is_clipped_not_wrapped():
    assert to_int16(np.array([2.0, -2.0], np.float32)).tolist() == [32767, -32768]


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_g711_agrees_with_ffmpeg(law):
    every = np.arange(-32768, 32768).astype(np.int16)
    codec = av.CodecContext.create(f"pcm_{law}", "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    codes = bytes(range(256))
    decoded = np.concatenate([f.to_ndarray().ravel() for f in codec.decode(av.Packet(codes))])
    assert np.array_equal(G711(law).decode(codes), decoded)
    ours = G711(law).decode(G711(law).encode(every)).astype(int)
    encoder = av.CodecContext.create(f"pcm_{law}", "w")
    encoder.sample_rate, encoder.layout, encoder.format = 8000, "mono", "s16"
    frame = av.AudioFrame.from_ndarray(every.reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = 8000
    theirs = G711(law).decode(b"".join(bytes(p) for p in encoder.encode(frame))).astype(int)
    # The nearest code is never worse than FFmpeg's choice.
    assert (np.abs(ours - every) <= np.abs(theirs - every)).all()


def test_an_unknown_law_is_refused():
    with pytest.raises(ValueError, match="mulaw"):
        G711("ulaw")
