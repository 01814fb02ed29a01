"""The track: frames at absolute due times, no burst after a stall, and no sample lost or repeated by any control."""

from __future__ import annotations

import asyncio

import av
import numpy as np
import pytest
from aiortc.mediastreams import MediaStreamError

from tests.conftest import run_virtual
from voxagent.playout import Frame, Playout
from voxagent.session import Position
from voxagent_webrtc.track import FRAME_SAMPLES, RATE, OpusEncoder, VoiceTrack


class Counter:
    """A source whose samples are numbered, so that every one can be found again."""

    def __init__(self, turns: int = 1, samples: int = RATE) -> None:
        self.playout = Playout(RATE, 20, 80)
        self._generation = self.playout.begin()
        self._next, self._end = 0, samples * turns

    def pull(self) -> Frame:
        while self.playout.wants and self._next < self._end:
            block = np.arange(self._next, self._next + FRAME_SAMPLES, dtype=np.float32) % 30000 / 32768
            self.playout.push(block, self._generation)
            self._next += FRAME_SAMPLES
        if self._next >= self._end:
            self.playout.finish()
        return self.playout.pull()

    def interrupt(self) -> Position | None:
        return Position(self.playout.interrupt(), RATE)


async def _take(track: VoiceTrack, count: int) -> list[tuple[float, int, np.ndarray]]:
    loop = asyncio.get_running_loop()
    taken = []
    for _ in range(count):
        frame = await track.recv()
        taken.append((loop.time(), frame.pts, frame.to_ndarray().ravel()[::2]))
    return taken


def test_frames_come_at_absolute_due_times() -> None:
    async def main() -> None:
        track = VoiceTrack(Counter())
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for index in range(40):
            at_s, pts, pcm = (await _take(track, 1))[0]
            assert at_s - start_s == pytest.approx(index * 0.02, abs=1e-6)
            assert (pts, len(pcm)) == (index * FRAME_SAMPLES, FRAME_SAMPLES)
            await asyncio.sleep(0.007 * (index % 3))  # the sender takes its time: that must not add up

    run_virtual(main())


@pytest.mark.parametrize("stall_s", [0.025, 0.055])
def test_a_short_stall_is_caught_up(stall_s: float) -> None:
    async def main() -> None:
        track = VoiceTrack(Counter())
        await _take(track, 5)
        await asyncio.sleep(stall_s)
        taken = await _take(track, 10)
        assert taken[-1][0] == pytest.approx(14 * 0.02, abs=1e-6)
        assert np.diff([pts for _, pts, _ in taken]).tolist() == [FRAME_SAMPLES] * 9
        assert track.stats.stalls == 0

    run_virtual(main())


def test_a_long_stall_is_followed_by_no_burst_and_loses_no_sample() -> None:
    async def main() -> None:
        track = VoiceTrack(Counter())
        before = await _take(track, 5)
        await asyncio.sleep(0.33)
        after = await _take(track, 20)
        gaps_s = np.diff([at_s for at_s, _, _ in after])
        assert sum(gaps_s < 0.015) <= 2
        jump = after[0][1] - before[-1][1]
        assert jump > 10 * FRAME_SAMPLES  # the listener's clock goes on, as in silence
        pcm = np.concatenate([pcm for _, _, pcm in before + after])
        assert np.array_equal(pcm, np.arange(len(pcm)) % 30000)
        assert track.stats.stalls == 1
        assert track.stats.skipped_ms == pytest.approx(1000 * (jump / RATE - 0.02), abs=20)

    run_virtual(main())


def test_pause_and_resume_lose_and_repeat_nothing() -> None:
    async def main() -> None:
        source = Counter()
        track = VoiceTrack(source)
        first = await _take(track, 3)
        track.pause()
        held = await _take(track, 7)
        at = track.position_samples
        track.resume()
        rest = await _take(track, 4)
        assert at == 3 * FRAME_SAMPLES
        assert not held[1][2].any()
        heard = np.concatenate([pcm for _, _, pcm in first + rest])
        ramp = RATE * 2 // 1000
        expected = np.arange(len(heard)) % 30000
        assert np.array_equal(heard[: 3 * FRAME_SAMPLES], expected[: 3 * FRAME_SAMPLES])
        assert np.array_equal(heard[3 * FRAME_SAMPLES + ramp :], expected[3 * FRAME_SAMPLES + ramp :])

    run_virtual(main())


def test_an_interruption_fades_within_the_next_packet() -> None:
    async def main() -> None:
        track = VoiceTrack(Counter())
        await _take(track, 4)
        position = track.interrupt()
        assert position == Position(4 * FRAME_SAMPLES, RATE)
        fade, after = (pcm for _, _, pcm in await _take(track, 2))
        assert fade[: FRAME_SAMPLES // 4].any()
        assert not fade[FRAME_SAMPLES // 2 :].any()
        assert not after.any()

    run_virtual(main())


def test_a_duck_acts_on_the_next_frame_not_in_queue_order() -> None:
    async def main() -> None:
        track = VoiceTrack(Counter())
        await _take(track, 10)
        track.duck(-12)
        _, ducked = (pcm for _, _, pcm in await _take(track, 2))
        track.duck(0)
        _, normal = (pcm for _, _, pcm in await _take(track, 2))
        expected = np.arange(11 * FRAME_SAMPLES, 12 * FRAME_SAMPLES) % 30000
        assert np.abs(ducked - expected * 10 ** (-12 / 20)).max() <= 1
        assert np.array_equal(normal, np.arange(13 * FRAME_SAMPLES, 14 * FRAME_SAMPLES) % 30000)

    run_virtual(main())


def test_the_first_packet_after_silence_is_marked() -> None:
    async def main() -> None:
        track = VoiceTrack(Counter(samples=2 * FRAME_SAMPLES))
        await _take(track, 4)
        assert list(track.markers) == [True, False, False, False]

    run_virtual(main())


def test_a_new_track_goes_on_where_the_last_one_was_stopped() -> None:
    async def main() -> None:
        source = Counter()
        first = VoiceTrack(source)
        heard = await _take(first, 5)
        first.stop()
        with pytest.raises(MediaStreamError):
            await first.recv()
        await asyncio.sleep(1.7)
        heard += await _take(VoiceTrack(source), 5)
        pcm = np.concatenate([pcm for _, _, pcm in heard])
        assert np.array_equal(pcm, np.arange(len(pcm)))

    run_virtual(main())


def test_every_frame_is_reported_with_its_lateness() -> None:
    async def main() -> None:
        late: list[float] = []
        track = VoiceTrack(Counter(), lambda frame, late_s: late.append(late_s))
        await _take(track, 3)
        await asyncio.sleep(0.05)
        await _take(track, 3)
        assert [round(s, 3) for s in late] == [0, 0, 0, 0.03, 0.01, 0]
        assert track.stats.late_ms_max == pytest.approx(30, abs=0.01)

    run_virtual(main())


def test_another_rate_is_refused() -> None:
    source = Counter()
    source.playout = Playout(24000, 20, 80)
    with pytest.raises(ValueError, match="48000 Hz and 20 ms"):
        VoiceTrack(source)


def test_silence_is_encoded_once_and_speech_after_it_sounds_as_well() -> None:
    rng = np.random.default_rng(3)
    times = np.arange(RATE) / RATE
    voiced = sum(np.sin(2 * np.pi * 140 * k * times) / k for k in range(1, 30)) * (0.6 + 0.4 * np.sin(18 * times))
    speech = np.round(6000 * voiced + 30 * rng.standard_normal(RATE)).astype(np.int16)
    signal = np.concatenate((speech, np.zeros(RATE, np.int16), speech))
    encoder, decoder = OpusEncoder(), av.CodecContext.create("libopus", "r")
    decoder.sample_rate, decoder.layout = RATE, "mono"
    packets = [encoder.encode(frame) for frame in signal.reshape(-1, FRAME_SAMPLES)]
    assert len(set(packets[60:100])) == 1
    heard = np.concatenate([f.to_ndarray().ravel() for p in packets for f in decoder.decode(av.Packet(p))])
    assert np.abs(heard[RATE + 9600 : 2 * RATE]).max() <= 3
    # What the codec holds back.
    heard = heard[312:].astype(np.float64)
    noise = [np.sum((heard[at : at + 40000] - signal[at : at + 40000]) ** 2) for at in (4000, 2 * RATE + 4000)]
    assert noise[1] < 1.2 * noise[0]
