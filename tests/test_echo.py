"""The veto against the bot's own echo: real speech through synthetic rooms, telephones and bursts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import voxagent_piper
from voxagent.echo import EchoSettings, EchoVeto
from voxagent.model import SpeechOptions
from voxagent.pcm import G711, Resampler, resample, to_float32, to_int16
from voxagent.phrases import Phrase
from voxagent.speakable import Piece, Speakable
from voxagent.vad import VoiceActivity

RATE = 16000
FRAME = 320
BOT = (
    "The weather tomorrow will be mostly sunny with a light breeze from the west.",
    "I have booked your table for seven people this evening.",
    "Your order has been shipped and should arrive on Thursday between nine and eleven in the morning.",
)
CALLER = ("No, wait, stop, that is not what I asked for.", "Yes but my address has changed since then.")


@dataclass(frozen=True, slots=True)
class Voices:
    """9 s of the bot, who starts at 0.5 s, and what the caller has to say; 16 kHz."""

    bot: np.ndarray
    phrases: tuple[np.ndarray, ...]


def resampled(pcm, source_rate):
    return resample(pcm, source_rate, RATE)


def spoken(model, text, seed):
    slot = model.open(model.load_voice(None), SpeechOptions(), seed)
    return model.decode_whole(
        slot, Phrase(text, 0, Speakable(text, (Piece(0, len(text), 0, len(text)),)), "sentence", False)
    )


@pytest.fixture(scope="module")
def voices() -> Voices:
    model = voxagent_piper.create(None, {"threads": 1})
    gap = np.zeros(RATE * 2 // 5, np.float32)
    bot = [gap[: RATE // 10]]
    for seed, text in enumerate(BOT):
        bot += [gap, resampled(spoken(model, text, seed), model.spec.sample_rate)]
    # Another pitch than the bot's: the same samples, told to be of a slower rate.
    phrases = tuple(resampled(spoken(model, text, 9), model.spec.sample_rate * 5 // 6) for text in CALLER)
    return Voices(placed(np.concatenate(bot), 0), phrases)


def placed(pcm, start_s, seconds=9.0):
    out = np.zeros(int(seconds * RATE))
    start = int(start_s * RATE)
    out[start : start + len(pcm)] = pcm[: len(out) - start]
    return out


def caller(voices, *starts_s):
    return sum(placed(phrase, start) for phrase, start in zip(voices.phrases, starts_s, strict=True))


def frames(pcm):
    return pcm[: len(pcm) // FRAME * FRAME].reshape(-1, FRAME)


def power(pcm):
    return np.mean(frames(pcm) ** 2, axis=1)


def level(pcm):
    """RMS of what is spoken."""
    powers = power(pcm)
    return np.sqrt(powers[powers > powers.max() / 1000].mean())


def voiced(pcm):
    return np.array(VoiceActivity(RATE).push(to_int16(pcm.astype(np.float32))))


# The way back


def room(pcm, rng, rt60_s=0.3):
    """Direct sound, and reverberation 3 dB below it."""
    seconds = np.arange(int(RATE * 1.2 * rt60_s)) / RATE
    answer = rng.standard_normal(len(seconds)) * 10 ** (-3 * seconds / rt60_s)
    answer *= np.sqrt(0.5 / np.sum(answer**2))
    answer[0] = 1
    return filtered(pcm, answer)


def filtered(pcm, taps):
    size = 1 << (len(pcm) + len(taps)).bit_length()
    return np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(taps, size), size)[: len(pcm)]


def low_passed(pcm, hz):
    width = 2 * hz / RATE
    return np.convolve(pcm, width * np.sinc(width * np.arange(-32, 33)) * np.hamming(65), "same")


def echo(bot, db=-20, delay_ms=150, seed=0):
    bent = np.tanh(1.2 * bot) / 1.2
    back = low_passed(room(bent, np.random.default_rng(seed)), 3600) * 10 ** (db / 20)
    delay = delay_ms * RATE // 1000
    return np.concatenate((np.zeros(delay), back))[: len(bot)]


def opus(pcm):
    """There and back at 20 kbit/s."""
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format, encoder.bit_rate = RATE, "mono", "s16", 20_000
    decoder = av.CodecContext.create("libopus", "r")
    decoder.sample_rate, decoder.layout = RATE, "mono"
    to_mono = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    out = []
    for start in range(0, len(pcm), FRAME):
        frame = av.AudioFrame.from_ndarray(to_int16(pcm[start : start + FRAME])[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE, start
        for packet in encoder.encode(frame):
            out += [part.to_ndarray()[0] for decoded in decoder.decode(packet) for part in to_mono.resample(decoded)]
    return np.concatenate((*out, np.zeros(len(pcm), np.float32)))[: len(pcm)]


def telephone(pcm):
    law = G711("mulaw")
    return to_float32(law.decode(law.encode(to_int16(pcm))))


def microphone(pcm, codec=opus, noise_db=-62):
    noise = np.random.default_rng(5).standard_normal(len(pcm)) * 10 ** (noise_db / 20)
    return codec((pcm + noise).astype(np.float32))


def verdicts(bot, mic, bursts=3, veto=None, seed=0):
    """Both streams in real time, but in bursts that are early or late by up to `bursts` frames.

    That adds 40 ms to the delay without bursts, and 40 to 160 ms with three frames of them.
    """
    veto = veto or EchoVeto(RATE)
    rng = np.random.default_rng(seed)
    sent, came = (frames(to_int16(pcm.astype(np.float32))) for pcm in (bot, mic))
    late = np.repeat(rng.uniform(0, 2 * bursts, (2, len(sent) // 5 + 1)), 5, axis=1)[:, : len(sent)]
    due = np.maximum.accumulate(np.arange(len(sent)) + late * [[1 / 6], [1]] + [[0], [2]], axis=1)
    own = np.zeros(len(sent), bool)
    for stream, index in sorted(np.ndindex(due.shape), key=lambda at: (due[at], at)):
        if stream:
            own[index] = veto.heard(came[index])
        else:
            veto.played(sent[index])
    return own


def leak(mic, own, from_s=1.8, to_s=9.0):
    """Part of the frames that a detector takes for voice, and the veto does not take for the bot's."""
    span = slice(int(from_s * 50), int(to_s * 50))
    return (voiced(mic) & ~own)[span].sum() / voiced(mic)[span].sum()


# Echo alone


@pytest.mark.parametrize(
    ("db", "delay_ms", "codec"),
    [(-6, 20, opus), (-12, 350, opus), (-20, 150, telephone), (-20, 150, opus), (-30, 300, opus)],
)
def test_an_echo_is_not_a_caller(voices, db, delay_ms, codec):
    mic = microphone(echo(voices.bot, db, delay_ms), codec)
    assert leak(mic, verdicts(voices.bot, mic)) <= 0.02


def test_the_faintest_echo_is_not_a_caller(voices):
    mic = 8 * microphone(echo(voices.bot, -40, 200), noise_db=-82)
    assert leak(mic, verdicts(voices.bot, mic)) <= 0.02


@pytest.mark.parametrize("delay_ms", [40, 150, 400])
def test_too_little_of_the_first_second_passes_to_pause_the_bot(voices, delay_ms):
    begin = slice(0, 2 * RATE)
    mic = microphone(echo(voices.bot[begin], -15, delay_ms))
    passed = voiced(mic) & ~verdicts(voices.bot[begin], mic)
    # The detector itself takes the first frames of any stream for voice. A ladder pauses after 200 ms of it.
    assert passed[10:].sum() < 10


@pytest.mark.parametrize("change_db", [10, -10])
def test_a_microphone_that_changes_its_gain_is_followed_within_a_second(voices, change_db):
    gain_db = np.where(np.arange(len(voices.bot)) < 4 * RATE, 0, change_db)
    mic = microphone(echo(voices.bot, -20) * 10 ** (gain_db / 20))
    own = verdicts(voices.bot, mic)
    assert leak(mic, own, to_s=4) <= 0.02
    assert leak(mic, own, from_s=5.2) <= 0.02


def test_a_gain_that_never_rests_is_survived(voices):
    gain_db = np.interp(np.arange(len(voices.bot)) / RATE, [0, 2, 4, 6, 8], [0, 6, -4, 6, 0])
    mic = microphone(echo(voices.bot, -20) * 10 ** (gain_db / 20))
    assert leak(mic, verdicts(voices.bot, mic)) <= 0.02


@pytest.mark.parametrize("change_ms", [60, -60])
def test_a_delay_that_changes_is_found_again_within_a_second(voices, change_ms):
    moved = echo(voices.bot, -20, 200 + change_ms)
    mic = microphone(np.concatenate((echo(voices.bot, -20, 200)[: 4 * RATE], moved[4 * RATE :])))
    own = verdicts(voices.bot, mic)
    assert leak(mic, own, to_s=4) <= 0.02
    assert leak(mic, own, from_s=5.2) <= 0.02


def test_the_delay_is_told(voices):
    for delay_ms in (20, 230, 450):
        veto = EchoVeto(RATE)
        mic = echo(voices.bot, -20, delay_ms)
        verdicts(voices.bot[: 3 * RATE], mic[: 3 * RATE], bursts=0, veto=veto)
        # Two frames between sending and receiving, in `verdicts`.
        assert veto.delay_ms == pytest.approx(delay_ms + 40, abs=21)


# Double talk


@pytest.mark.parametrize(
    ("db", "above_db", "codec"), [(-6, 0, opus), (-20, 0, opus), (-20, 0, telephone), (-12, 6, opus), (-30, 6, opus)]
)
def test_a_caller_over_the_bot_gets_through_at_once(voices, db, above_db, codec):
    back = echo(voices.bot, db, 150)
    near = caller(voices, 2.6, 6.2)
    near *= level(back) / level(near) * 10 ** (above_db / 20)
    own = verdicts(voices.bot, microphone(back + near, codec))
    speaks = voiced(near) & (power(near) > level(near) ** 2 / 100)
    assert (speaks & ~own).sum() / speaks.sum() >= 0.8
    # Nobody could hear a syllable more than 10 dB under the echo of the moment.
    heard = speaks & (power(near) > power(back) / 10)
    for start_s in (2.6, 6.2):
        onset = int(start_s * 50) + int(np.argmax(heard[int(start_s * 50) :]))
        assert not own[onset : onset + 4].all()


def test_the_bot_is_vetoed_again_after_the_caller(voices):
    back = echo(voices.bot, -20, 150)
    near = caller(voices, 2.6, 8.9)
    near *= level(back) / level(near)
    mic = microphone(back + near)
    own = verdicts(voices.bot, mic)
    ends_s = 2.6 + len(voices.phrases[0]) / RATE
    assert leak(mic, own, from_s=ends_s + 0.5, to_s=8.8) <= 0.02


# No echo


@pytest.mark.parametrize(("start_s", "loudness"), [(0.1, 0.1), (0.5, 0.1), (0.6, 0.02), (2.0, 0.05)])
def test_a_headset_is_never_vetoed(voices, start_s, loudness):
    near = caller(voices, start_s, 5.5)
    near *= loudness / level(near)
    speaks = voiced(near)
    veto = EchoVeto(RATE)
    assert (speaks & verdicts(voices.bot, microphone(near), veto=veto)).sum() <= 0.02 * speaks.sum()
    assert veto.delay_ms is None


def test_everything_passes_while_the_bot_is_silent(voices):
    veto = EchoVeto(RATE)
    verdicts(voices.bot[: 4 * RATE], microphone(echo(voices.bot))[: 4 * RATE], veto=veto)
    assert veto.delay_ms is not None
    silence = np.zeros(3 * RATE)
    own = verdicts(silence, placed(voices.phrases[0], 0, 3.0), veto=veto)
    assert not own[int(0.6 * 50) :].any()


def test_nothing_played_nothing_vetoed():
    veto = EchoVeto(RATE)
    noise = (np.random.default_rng(0).standard_normal(RATE) * 3000).astype(np.int16)
    assert not any(veto.heard(frame) for frame in frames(noise))
    assert veto.delay_ms is None


# Streams


@settings(deadline=None, max_examples=8)
@given(st.lists(st.integers(0, 3 * FRAME), min_size=8, max_size=8))
def test_block_sizes_do_not_matter(cuts):
    """The same samples heard in any blocks give the same last verdict, and the same delay."""
    rng = np.random.default_rng(1)
    sound = (rng.standard_normal(40 * FRAME) * 3000 * np.repeat(rng.uniform(0, 1, 40), FRAME)).astype(np.int16)
    whole, cut = EchoVeto(RATE), EchoVeto(RATE)
    back = np.concatenate((np.zeros(2 * FRAME, np.int16), sound // 8))[: len(sound)]
    for veto in (whole, cut):
        for frame in frames(sound):
            veto.played(frame)
    edges = [0, *sorted(min(len(sound), sum(cuts[: i + 1])) for i in range(len(cuts))), len(sound)]
    for start, stop in pairwise(edges):
        verdict = cut.heard(back[start:stop])
    assert verdict == [whole.heard(frame) for frame in frames(back)][-1]
    assert cut.delay_ms == whole.delay_ms


def test_a_part_of_a_frame_returns_the_last_verdict(voices):
    veto = EchoVeto(RATE)
    mic = to_int16(microphone(echo(voices.bot)))
    own = verdicts(voices.bot[: 3 * RATE], to_float32(mic[: 3 * RATE]), bursts=0, veto=veto)
    assert veto.heard(np.zeros(FRAME // 2, np.int16)) == own[-1]
    assert veto.heard(np.zeros(0, np.int16)) == own[-1]


def test_equal_streams_give_equal_verdicts(voices):
    mic = microphone(echo(voices.bot))[: 4 * RATE]
    assert np.array_equal(verdicts(voices.bot[: 4 * RATE], mic), verdicts(voices.bot[: 4 * RATE], mic))


def test_a_narrow_band_call_needs_no_resampling(voices):
    veto = EchoVeto(8000)
    bot, mic = (
        to_int16(Resampler(RATE, 8000).push(pcm.astype(np.float32))) for pcm in (voices.bot, echo(voices.bot, -20, 150))
    )
    own = []
    for start in range(0, len(mic) - 160, 160):
        veto.played(bot[start : start + 160])
        own.append(veto.heard(mic[start : start + 160]))
    loud = np.sqrt(np.mean(mic[: len(own) * 160].reshape(-1, 160).astype(float) ** 2, axis=1)) > 100
    assert (loud & ~np.array(own))[90:].sum() <= 0.02 * loud[90:].sum()


def test_a_caller_on_hold_does_not_lose_the_echo(voices):
    """Two seconds without a packet, then the call goes on where it is now."""
    veto = EchoVeto(RATE)
    mic = to_int16(microphone(echo(voices.bot)))
    own = np.ones(len(mic) // FRAME, bool)
    for index, (sent, came) in enumerate(
        zip(frames(to_int16(voices.bot.astype(np.float32))), frames(mic), strict=True)
    ):
        veto.played(sent)
        if not 150 <= index < 250:
            own[index] = veto.heard(came)
    assert leak(to_float32(mic), own, from_s=6) <= 0.02


# Configuration


def test_another_rate_is_refused():
    with pytest.raises(ValueError, match="resample first"):
        EchoVeto(48000)


@pytest.mark.parametrize(
    ("options", "cause"),
    [({"max_delay_ms": 0}, "max_delay_ms"), ({"near_share": 1.5}, "near_share"), ({"hold_ms": -1}, "not negative")],
)
def test_settings_out_of_range_are_refused(options, cause):
    with pytest.raises(ValueError, match=cause):
        EchoSettings(**options)
