"""Tells the caller's voice from our own, come back out of a loudspeaker into the caller's microphone.

Pure: knows the samples we sent and the samples we got; nothing of clocks, detectors, or what follows from a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxagent.pcm import Pcm16

_RATES = (8000, 16000)
# Inside, all is at 8 kHz: half the work, and echoes lose what lies above anyway.
_RATE = 8000
_MS = _RATE // 1000
_FRAME_MS = 20
# Fits a pitch period of a low voice and the smear of a room's first reflections; two windows a frame.
_WINDOW_MS = 32
# What every codec and every telephone lets through.
_BAND_HZ = (200, 3800)
# int16 RMS under which a frame holds nothing that a detector could take for voice (-64 dBFS).
_QUIET = 20.0
# Positions of the streams that differ by more than bursts explain: packets were lost, or the caller was on hold.
_ADRIFT_MS = 300
# Sound in which an echo is looked for in every frame; then there is hardly one.
_COLD_MS = 1000
# Frames from one search to the next, while there is something to find; a search takes longer than the rest.
_LOOK_FRAMES = 5
# Frames of sound from which the level of an echo just found is learnt.
_LEARN_FRAMES = 12

_Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class EchoSettings:
    """When sound counts as our own echo.

    Attributes:
        max_delay_ms: Longest way from `played` to `heard`. A mobile call with a Bluetooth loudspeaker takes 450.
        slack_ms: Bursts may shift the first frame of either stream by this much.
        found_score: Correlation peak, in standard deviations, that is an echo. Two voices reach 15 by chance, not
            again and again at one delay; an echo in a room reaches 17 to 30.
        suspect_score: A peak that may grow into one.
        path_ms: Length of the echo path that is cancelled: the direct sound and the strong reflections.
        margin_db: What the remainder of an echo may exceed its mean by: its levels spread by 5 dB.
        noise_ratio: The same for the microphone's noise, as a ratio of powers, above its lowest mean.
        near_share: Part of the sound (sum of amplitudes by band) that the echo must leave unexplained before it is
            the caller. Echoes alone seldom reach 0.15, callers as loud as the echo mostly exceed 0.3.
        hold_ms: A caller heard in three frames running keeps the floor for this long: syllables dip below the echo.
        cold_ms: Sound that is held back at the start of a call until it was compared; a syllable's beginning.
        suspect_ms: The same while a suspicion lasts. Echoes take 60 to 180 ms to find; headsets should not pay for it.
    """

    max_delay_ms: int = 500
    slack_ms: int = 80
    found_score: float = 15.0
    suspect_score: float = 12.0
    path_ms: int = 80
    margin_db: float = 6.0
    noise_ratio: float = 3.0
    near_share: float = 0.18
    hold_ms: int = 160
    cold_ms: int = 40
    suspect_ms: int = 60

    def __post_init__(self) -> None:
        if not 0 < self.max_delay_ms <= 2000:
            raise ValueError(f"max_delay_ms lies between 1 and 2000, not {self.max_delay_ms}")
        if not 0 < self.near_share < 1:
            raise ValueError(f"near_share is a part of the sound, between 0 and 1, not {self.near_share}")
        if min(self.slack_ms, self.hold_ms, self.cold_ms, self.suspect_ms) < 0 or self.path_ms < _FRAME_MS:
            raise ValueError(f"times are not negative, and path_ms is at least {_FRAME_MS}")


class EchoVeto:
    """Compares what the microphone brings with what was sent a moment ago.

    The delay is found by correlating whitened waveforms; the echo is then cancelled by an adaptive filter, and what is
    left is weighed, band by band, against what a cancelled echo leaves. It does not clean the signal.

    Args:
        sample_rate: 8 or 16 kHz, of both streams.
        settings: See `EchoSettings`.

    Raises:
        ValueError: Another sample rate.
    """

    def __init__(self, sample_rate: int = 16000, settings: EchoSettings | None = None) -> None:
        if sample_rate not in _RATES:
            raise ValueError(f"the echo veto needs one of {_RATES} Hz, not {sample_rate}: resample first")
        self._limits = settings or EchoSettings()
        self._block = sample_rate * _FRAME_MS // 1000
        self._frame = _FRAME_MS * _MS
        self._half_far, self._half_near = (_Halving() if sample_rate > _RATE else None for _ in range(2))
        self._search = _Search(self._limits)
        keep = self._search.reach + self._frame * _LEARN_FRAMES
        self._far, self._near, self._left = _Track(keep), _Track(keep), _Track(keep)
        self._filter = _Filter(self._frame, max(1, self._limits.path_ms // _FRAME_MS))
        self._levels = _Levels(self._limits)
        self._lag: int | None = None
        self._shift = 0
        self._ahead = 0.0
        self._last_sound = -keep
        self._floor = float("inf")
        self._frames = self._looks = self._doubted = self._run = self._hold = 0
        self._rest = np.zeros(0, np.int16)
        self._own = False

    @property
    def delay_ms(self) -> float | None:
        """From `played` to `heard`, give or take the bursts; None until an echo was found."""
        return None if self._lag is None else (self._lag - self._ahead) / _MS

    def played(self, pcm: Pcm16) -> None:
        """Takes what was handed to the sender: mono int16, shape (n,), in real time, silence included."""
        self._far.push(self._half_far.push(pcm) if self._half_far else pcm.astype(np.float32))
        if len(pcm) and int(pcm.max()) - int(pcm.min()) > _QUIET:
            self._last_sound = self._far.end

    def heard(self, pcm: Pcm16) -> bool:
        """Takes the caller's next mono int16, shape (n,).

        Returns:
            Whether the last whole frame of 20 ms is our own echo, or mostly so: it must not count as the caller.
        """
        samples = np.concatenate((self._rest, pcm))
        whole = len(samples) // self._block * self._block
        self._rest = samples[whole:]
        for frame in samples[:whole].reshape(-1, self._block):
            self._own = self._judge(self._half_near.push(frame) if self._half_near else frame.astype(np.float32))
        return self._own

    def _judge(self, frame: _Floats) -> bool:
        self._align(frame)
        if self._far.end - self._last_sound > self._limits.max_delay_ms * _MS:
            self._left.push(frame)
            self._filter.silence()
            self._run = self._hold = 0
            return False
        power = float(np.mean(np.square(frame)))
        # Noise that grows by 4 dB a second is followed.
        self._floor = min(power, self._floor * 1.02)
        loud = power > max(_QUIET**2, 4 * self._floor)
        if self._lag is None:
            self._left.push(frame)
            return loud and self._first_look()
        self._frames += 1
        if loud and self._frames % (_LOOK_FRAMES if self._run else 5 * _LOOK_FRAMES) == 0:
            self._find()
        return self._weigh(frame, self._lag)

    def _first_look(self) -> bool:
        """Searches in every frame at first: the sound that starts a call is an echo as often as not."""
        self._looks += 1
        if self._looks * _FRAME_MS <= _COLD_MS or self._looks % _LOOK_FRAMES == 0:
            self._find()
        limits = self._limits
        doubt_ms = limits.suspect_ms if self._search.suspects else limits.cold_ms
        if self._lag is None and self._doubted * _FRAME_MS >= doubt_ms:
            return False
        self._doubted += 1
        return True

    def _align(self, frame: _Floats) -> None:
        """Keeps both streams on one scale by counting samples: bursts move calls, not samples."""
        self._near.push(frame)
        ahead = self._near.end + self._shift - self._far.end
        if self._near.end == len(frame) or abs(ahead) > _ADRIFT_MS * _MS:
            self._shift -= ahead
            ahead = 0
        self._ahead += 0.02 * (ahead - self._ahead)

    def _find(self) -> None:
        lag = self._search.lag(self._near, self._far, self._shift, known=self._lag is not None)
        # The filter follows small changes: clocks that differ by 100 ppm move 1.6 samples a second.
        if lag is None or (self._lag is not None and abs(lag - self._lag) <= 2 * _MS):
            return
        self._lag = lag
        self._filter.reset()
        ends = [self._near.end - self._frame * back for back in range(_LEARN_FRAMES)]
        near = self._levels.spectra(*((self._near, end) for end in ends))
        far = self._levels.spectra(*((self._far, end + self._shift - lag) for end in ends))
        self._levels.learn_at_once(near, far)

    def _weigh(self, frame: _Floats, lag: int) -> bool:
        limits, far_end = self._limits, self._near.end + self._shift - lag
        latest = far_end + self._filter.lead
        self._left.push(self._filter.cancel(frame, self._far.get(latest - 2 * self._frame, latest)))
        ends = (self._near, self._near.end), (self._left, self._left.end), (self._far, far_end)
        share = self._levels.unexplained(*self._levels.spectra(*ends))
        louder = self._filter.louder() if share >= limits.near_share else None
        if louder:
            # The same wave at another level is an automatic gain's doing, not a voice.
            self._filter.scale(louder)
            self._levels.scale(louder)
            share = 0.0
        caller = share >= limits.near_share
        self._run = min(self._run + 1, 3) if caller else max(self._run - 1, 0)
        self._hold = limits.hold_ms // _FRAME_MS if self._run == 3 else max(0, self._hold - 1)
        self._levels.learn(own=not caller)
        return not caller and not self._hold


class _Halving:
    """From 16 to 8 kHz, whatever the sizes of the blocks."""

    # 31 taps: 4.7 kHz and above, which would fold back below 3.3 kHz, is 40 dB down.
    _TAPS = (np.sinc(np.arange(-15, 16) * 0.475) * 0.475 * np.hamming(31)).astype(np.float32)

    def __init__(self) -> None:
        self._past: _Floats = np.zeros(30, np.float32)

    def push(self, pcm: Pcm16) -> _Floats:
        samples = np.concatenate((self._past, pcm.astype(np.float32)))
        count = max(0, len(samples) - 29) // 2
        self._past = samples[2 * count :]
        halved: _Floats = np.convolve(samples, self._TAPS, "valid")[: 2 * count : 2] if count else samples[:0]
        return halved


class _Track:
    """The last samples of a stream, by their positions in it."""

    def __init__(self, keep: int) -> None:
        self.end = 0
        self._keep = keep
        self._pcm = np.zeros(2 * keep, np.float32)
        self._fill = keep

    def push(self, pcm: _Floats) -> None:
        self.end += len(pcm)
        pcm = pcm[max(0, len(pcm) - self._keep) :]
        if self._fill + len(pcm) > len(self._pcm):
            self._pcm[: self._keep] = self._pcm[self._fill - self._keep : self._fill].copy()
            self._fill = self._keep
        self._pcm[self._fill : self._fill + len(pcm)] = pcm
        self._fill += len(pcm)

    def get(self, start: int, stop: int) -> _Floats:
        """Silence where there is nothing yet, or nothing any more."""
        out = np.zeros(stop - start, np.float32)
        low = min(max(start, self.end - self._keep), stop)
        high = max(low, min(stop, self.end))
        at = self._fill - self.end
        out[low - start : high - start] = self._pcm[low + at : high + at]
        return out


class _Search:
    """Finds the delay: whitened cross-correlation of 256 ms of microphone with all that was sent before."""

    def __init__(self, limits: EchoSettings) -> None:
        self.suspects = False
        """Whether the last two looks agree on a delay, if weakly."""
        self._limits = limits
        self._near = 256 * _MS
        self._low, self._high = -limits.slack_ms * _MS // 2, (limits.max_delay_ms + limits.slack_ms) * _MS
        self.reach = self._near + self._high - self._low
        # No lag wraps around: the correlation is only read where the short signal lies inside the long one.
        self._size = 1 << (self.reach - 1).bit_length()
        hz = np.fft.rfftfreq(self._size, 1 / _RATE)
        self._band = (hz > _BAND_HZ[0]) & (hz < _BAND_HZ[1])
        self._sum = np.zeros(self._high - self._low)
        self._seen = self._looks = 0

    def lag(self, near: _Track, far: _Track, shift: int, known: bool) -> int | None:
        """The delay in samples, once running looks agree on it; a known one is overruled by a lower score."""
        end = near.end + shift
        mine = np.fft.rfft(near.get(near.end - self._near, near.end), self._size)
        sent = np.fft.rfft(far.get(end - self._near - self._high, end - self._low), self._size)
        cross = np.conj(mine) * sent
        size = np.sqrt(np.abs(cross))
        # Whitened to the power 3/4: wholly, the bands that hold only noise would count as much as the others.
        cross *= self._band / np.maximum(size * np.sqrt(size), 1e-9)
        found = np.fft.irfft(cross, self._size)[len(self._sum) : 0 : -1]
        self._sum = 0.6 * self._sum + found / (np.sqrt(np.mean(found**2)) + 1e-9)
        best = int(np.argmax(self._sum))
        score = float(self._sum[best] / (np.sqrt(np.mean(self._sum**2)) + 1e-9))
        alike = abs(best - self._seen) <= _MS
        self._seen = best
        self.suspects = alike and score >= self._limits.suspect_score
        enough = score >= self._limits.found_score - 2 * known
        self._looks = (self._looks + 1 if alike else 1) if enough else 0
        return self._low + best if self._looks >= (2 if known else 3) else None


class _Filter:
    """The echo path, learnt: a Kalman filter in the frequency domain, in partitions of one frame.

    Its step shrinks by itself while the caller speaks, so that it needs no detector of double talk.
    """

    def __init__(self, frame: int, parts: int) -> None:
        self._frame = frame
        self._shape = parts, frame + 1
        # The strongest path is not always the first.
        self.lead = frame * 8 // _FRAME_MS
        self.reset()

    def reset(self) -> None:
        self._path = np.zeros(self._shape, np.complex64)
        self._doubt: _Floats = np.ones(self._shape, np.float32)
        self._rest: _Floats = np.zeros(self._shape[1], np.float32)
        self.silence()

    def silence(self) -> None:
        """Nothing was sent for longer than the path is."""
        self._blocks = np.zeros(self._shape, np.complex64)
        self._products = np.zeros(3)

    def cancel(self, frame: _Floats, far: _Floats) -> _Floats:
        """The frame less its echo; `far` are the two frames sent up to its end (delayed, and `lead` ahead)."""
        n = self._frame
        blocks = self._blocks = np.concatenate((np.fft.rfft(far)[None], self._blocks[:-1]))
        echo = np.fft.irfft((self._path * blocks).sum(axis=0))[n:]
        left: _Floats = frame - echo
        self._products = 0.6 * self._products + np.array([frame @ frame, frame @ echo, echo @ echo])
        spectrum = np.fft.rfft(np.concatenate((np.zeros(n, np.float32), left)))
        power = blocks.real**2 + blocks.imag**2
        self._rest = 0.7 * self._rest + 0.3 * (spectrum.real**2 + spectrum.imag**2)
        step = self._doubt / ((self._doubt * power).sum(axis=0) + 2 * self._rest + 1e3)
        update = np.fft.irfft(step * np.conj(blocks) * spectrum)
        update[:, n:] = 0
        self._path += np.fft.rfft(update)
        # Paths change by about 4 % a second while somebody moves.
        drift = 0.004 * (self._path.real**2 + self._path.imag**2)
        self._doubt = 0.998 * self._doubt * (1 - 0.5 * step * power) + drift + 1e-9
        return left

    def louder(self) -> float | None:
        """The factor by which the echo came back louder than learnt, if the wave is otherwise the one expected."""
        near, both, echo = (float(product) for product in self._products)
        alike = both > 0 and both * both > 0.8 * near * echo
        return min(both / echo, 4.0) if alike and both > 1.3 * echo else None

    def scale(self, factor: float) -> None:
        self._path *= factor
        self._products *= 1, factor, factor**2


class _Levels:
    """Expected levels in bands: of the echo in the microphone, of what cancelling leaves of it, and of the noise."""

    # How fast a room's sound dies away (60 dB in 350 ms), and where it starts below the direct sound.
    _DECAY = 10 ** (-6 * 10 / 350)
    _TAIL = 10**-0.8
    # Cancelling gains no more than this for long: loudspeakers and codecs bend the wave.
    _MOST_DB = 14.0

    def __init__(self, limits: EchoSettings) -> None:
        self._limits = limits
        self._margin = 10 ** (limits.margin_db / 10)
        self._window = _WINDOW_MS * _MS
        self._half = _FRAME_MS * _MS // 2
        self._shape = np.hanning(self._window + 2)[1:-1].astype(np.float32)
        hz = np.concatenate((np.arange(_BAND_HZ[0], 1600, 125), np.geomspace(1600, _BAND_HZ[1], 9)))
        self._edges = np.round(hz * _WINDOW_MS / 1000).astype(np.int64)
        bands = len(hz) - 1
        self._gain_db = np.full((2, bands), -20.0)
        self._tail = np.zeros(bands)
        self._mean = self._noise = np.full(bands, 1e9)
        self._seen = self._echo = np.zeros((2, 2, bands))

    def spectra(self, *ends: tuple[_Track, int]) -> _Floats:
        """Power by band of two windows for each place, 10 ms before it and at it; shape (places, 2, bands)."""
        pcm = np.stack([track.get(end - self._window - self._half, end) for track, end in ends])
        windows = np.stack((pcm[:, : self._window], pcm[:, self._half :]), axis=1) * self._shape
        bins = np.fft.rfft(windows)[..., : self._edges[-1]]
        return np.asarray(np.add.reduceat(bins.real**2 + bins.imag**2, self._edges[:-1], axis=-1))

    def unexplained(self, near: _Floats, left: _Floats, far: _Floats) -> float:
        """The part of the microphone's sound that is neither echo nor noise, 0 to 1."""
        self._mean = 0.6 * self._mean + 0.4 * near.mean(axis=0)
        # Follows noise that grows by 2 dB a second; speech pauses more often than that.
        self._noise = np.minimum(self._mean, self._noise * 1.01) + 1.0
        gain = 10 ** (self._gain_db / 10)
        first = np.maximum(far[0], self._tail * self._DECAY)
        self._tail = np.maximum(far[1], first * self._DECAY)
        tails = np.stack((first, self._tail)) * gain[0] * self._TAIL
        self._echo = np.maximum(far * gain[:, None], tails)
        # A filter that has lost the path adds to the sound.
        rest = np.minimum(near, left)
        self._seen = np.stack((near, rest))
        excess = rest - self._margin * self._echo[1] - self._limits.noise_ratio * self._noise
        total = float(np.sqrt(np.maximum(rest - self._noise, 0)).sum())
        return float(np.sqrt(np.maximum(excess, 0)).sum()) / total if total else 0.0

    def learn(self, own: bool) -> None:
        """Follows the levels just seen: down at any time, up only while nobody else was heard."""
        off_db = 10 * np.log10((self._seen + self._noise) / (self._echo + self._noise))
        step_db = np.clip(np.where(off_db > 0, 0.2, 0.03) * off_db, -0.15, 0.5 if own else 0.0)
        self._gain_db += np.where(self._echo[0] > self._noise, step_db, 0).sum(axis=1)
        self._gain_db[1] = np.maximum(self._gain_db[1], self._gain_db[0] - self._MOST_DB)

    def learn_at_once(self, near: _Floats, far: _Floats) -> None:
        """Sets the levels of an echo just found from the `spectra` of the last frames of both streams."""
        audible = far >= 0.03 * far.max(axis=(0, 1))
        gains_db = np.where(audible, 10 * np.log10((near + 1) / (far + 1)), np.nan)
        self._gain_db[:] = np.nanpercentile(gains_db, 60, axis=(0, 1))

    def scale(self, factor: float) -> None:
        self._gain_db += 20 * np.log10(factor)
