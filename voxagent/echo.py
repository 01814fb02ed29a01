"""Tells the caller's voice from our own, come back out of a loudspeaker into the caller's microphone.

Pure: knows the samples we sent and the samples we got, nothing of clocks, detectors or what follows from a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxagent.pcm import Pcm16

_RATES = (8000, 16000)
_FRAMES_PER_S = 50
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EchoSettings:
    max_delay_ms: int = 500
    slack_ms: int = 80
    lock_score: float = 15.0
    move_score: float = 11.0
    search_ms: int = 256
    margin_db: float = 6.0
    near_share: float = 0.15
    held_share: float = 0.0
    hold_ms: int = 160
    tail_db: float = -8.0
    rt60_ms: int = 350
    cold_ms: int = 60
    noise_x: float = 3.0


class _Track:
    """The last samples of a stream, by their absolute positions."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._pcm = np.zeros(2 * keep, np.float32)
        self._fill = keep
        self.end = 0

    def push(self, pcm: Pcm16) -> None:
        pcm = pcm[-self._keep :]
        if self._fill + len(pcm) > len(self._pcm):
            self._pcm[: self._keep] = self._pcm[self._fill - self._keep : self._fill].copy()
            self._fill = self._keep
        self._pcm[self._fill : self._fill + len(pcm)] = pcm
        self._fill += len(pcm)
        self.end += len(pcm)

    def get(self, start: int, stop: int) -> NDArray[np.float32]:
        low = max(start, self.end - self._keep)
        high = max(low, min(stop, self.end))
        at = self._fill - self.end
        body = self._pcm[low + at : high + at]
        if len(body) == stop - start:
            return body
        out = np.zeros(stop - start, np.float32)
        if len(body):
            out[low - start : low - start + len(body)] = body
        return out


class _Filter:
    """An adaptive filter for the echo path: a Kalman filter in the frequency domain, in blocks of one frame."""

    def __init__(self, frame: int, parts: int = 6) -> None:
        self._frame, self._parts = frame, parts
        self.lead = frame * 8 // 20
        self.reset()

    def reset(self) -> None:
        shape = (self._parts, self._frame + 1)
        self._path = np.zeros(shape, np.complex128)
        self._doubt = np.ones(shape)
        self._near = np.zeros(shape[1])

    @property
    def span(self) -> int:
        return (self._parts + 1) * self._frame

    def cancel(self, frame: _Floats, ref: _Floats) -> _Floats:
        n = self._frame
        blocks = np.lib.stride_tricks.sliding_window_view(ref, 2 * n)[::n][::-1]
        far = np.fft.rfft(blocks)
        error = frame - np.fft.irfft((self._path * far).sum(0))[n:]
        spectrum = np.fft.rfft(np.concatenate((np.zeros(n), error)))
        power = np.abs(far) ** 2
        self._near = 0.7 * self._near + 0.3 * np.abs(spectrum) ** 2
        step = self._doubt / ((self._doubt * power).sum(0) + 2 * self._near + 1e3)
        update = np.fft.irfft(step * np.conj(far) * spectrum)
        update[:, n:] = 0
        self._path += np.fft.rfft(update)
        self._doubt *= 1 - 0.5 * step * power
        self._doubt = 0.998 * self._doubt + 0.004 * np.abs(self._path) ** 2 + 1e-9
        return error


class EchoVeto:
    def __init__(self, sample_rate: int = 16000, settings: EchoSettings | None = None) -> None:
        if sample_rate not in _RATES:
            raise ValueError(f"the echo veto needs one of {_RATES} Hz, not {sample_rate}: resample first")
        s = self._set = settings or EchoSettings()
        self._rate = sample_rate
        self._frame = sample_rate // _FRAMES_PER_S
        ms = sample_rate // 1000
        self._window = 32 * ms
        self._lag_low, self._lag_high = -s.slack_ms * ms, (s.max_delay_ms + s.slack_ms) * ms
        self._search = s.search_ms * ms
        self._size = 1 << int(np.ceil(np.log2(self._search + self._lag_high - self._lag_low)))
        keep = 2 * self._size
        self._ref, self._mic, self._left = _Track(keep), _Track(keep), _Track(keep)
        self._filter = _Filter(self._frame)
        self._shift = 0  # mic position + shift = ref position
        self._rest = np.zeros(0, np.int16)
        self._hann = np.hanning(self._window + 2)[1:-1]
        self._edges = self._bands(sample_rate, self._window)
        n = len(self._edges) - 1
        f = np.fft.rfftfreq(self._size, 1 / sample_rate)
        self._mask = (f > 200) & (f < 3800)
        self._lag: int | None = None
        self._acc = np.zeros(self._lag_high - self._lag_low + 1)
        self._seen_lag = 0
        self._gain = np.full((2, n), -20.0)
        self._tail = np.zeros(n)
        self._noise = np.full(n, 1e9)
        self._smooth = np.full(n, 1e9)
        self._hist = np.zeros((2, 40, n))
        self._corr = 0.0
        self._count = 0
        self._active = -(10**9)
        self._cold = 0
        self._hold = self._run = 0
        self._verdict = False
        self.debug = None

    @staticmethod
    def _bands(rate: int, window: int) -> NDArray[np.int64]:
        hz = np.concatenate((np.arange(200, 1600, 125), np.geomspace(1600, 3800, 9)))
        return np.round(hz * window / rate).astype(np.int64)

    @property
    def delay_ms(self) -> float | None:
        return None if self._lag is None else 1000 * self._lag / self._rate

    def played(self, pcm: Pcm16) -> None:
        self._ref.push(pcm)
        if len(pcm) and np.abs(pcm).max() > 30:
            self._active = self._ref.end

    def heard(self, pcm: Pcm16) -> bool:
        samples = np.concatenate((self._rest, pcm))
        whole = len(samples) // self._frame * self._frame
        self._rest = samples[whole:]
        for frame in samples[:whole].reshape(-1, self._frame):
            self._verdict = self._judge(frame)
        return self._verdict

    def _judge(self, frame: Pcm16) -> bool:
        s = self._set
        if not self._mic.end:
            self._shift = self._ref.end - self._frame
        self._mic.push(frame)
        off = self._mic.end + self._shift - self._ref.end
        if abs(off) > 300 * self._rate // 1000:
            self._shift -= off
        self._count += 1
        if self._ref.end - self._active > s.max_delay_ms * self._rate // 1000:
            self._tail[:] = 0
            self._hold = 0
            self._left.push(frame)
            return False
        loud = float(np.mean(frame.astype(np.float32) ** 2)) > 20**2
        if loud and self._count % (2 if self._lag is None else 5) == 0:
            self._find()
        if self._lag is None:
            self._cold = self._cold + 1 if loud else self._cold
            self._left.push(frame)
            return loud and self._cold <= s.cold_ms // 20
        at = self._mic.end + self._shift - self._lag
        left = self._filter.cancel(
            frame, self._ref.get(at + self._filter.lead - self._filter.span, at + self._filter.lead)
        )
        self._left.push(left)
        mic, _ = self._spectra(self._left, self._mic.end)
        raw, _ = self._spectra(self._mic, self._mic.end)
        self._smooth = 0.6 * self._smooth + 0.4 * raw.mean(axis=0)
        self._noise = np.minimum(self._smooth, self._noise * 1.01)
        mic = np.minimum(mic, raw)
        ref, _ = self._spectra(self._ref, self._mic.end + self._shift - self._lag)
        return self._compare(raw, mic, ref)

    def _spectra(self, track: _Track, end: int) -> tuple[_Floats, None]:
        w, half = self._window, self._frame // 2
        pcm = track.get(end - w - half, end)
        both = np.stack((pcm[:w], pcm[half:])) * self._hann
        power = np.abs(np.fft.rfft(both)) ** 2
        return np.add.reduceat(power[:, : self._edges[-1]], self._edges[:-1], axis=1), None

    def _find(self) -> None:
        end = self._mic.end
        y = self._mic.get(end - self._search, end)
        a = end + self._shift
        x = self._ref.get(a - self._search - self._lag_high, a - self._lag_low)
        cross = np.conj(np.fft.rfft(y, self._size)) * np.fft.rfft(x, self._size)
        size = np.sqrt(np.abs(cross) * np.sqrt(np.abs(cross)))
        cross = np.where(self._mask & (size > 0), cross / np.maximum(size, 1e-9), 0)
        c = np.fft.irfft(cross, self._size)[: self._lag_high - self._lag_low + 1][::-1]
        rms = float(np.sqrt(np.mean(c**2)))
        if not rms:
            return
        self._acc = 0.6 * self._acc + c / rms
        acc = self._acc / np.sqrt(np.mean(self._acc**2))
        at = int(np.argmax(acc))
        score, lag = float(acc[at]), at + self._lag_low
        needed = self._set.lock_score if self._lag is None else self._set.move_score
        if score >= needed:
            if abs(lag - self._seen_lag) < 16:
                if self._lag is None or abs(lag - self._lag) > 32:
                    self._first(lag)
                    self._lag = lag
                    self._filter.reset()
            self._seen_lag = lag

    def _first(self, lag: int) -> None:
        """Learns the gains from what was already heard."""
        ms, rs = [], []
        for i in range(12):
            e = self._mic.end - i * self._frame
            ms.append(self._spectra(self._mic, e)[0])
            rs.append(self._spectra(self._ref, e + self._shift - lag)[0])
        m, r = np.concatenate(ms), np.concatenate(rs)
        w = r > r.max(axis=0) * 0.03
        db = 10 * np.log10((m + 1) / (r + 1))
        self._gain[:] = np.array([np.percentile(db[w[:, k], k], 60) for k in range(m.shape[1])])

    def _compare(self, raw: _Floats, mic: _Floats, ref: _Floats) -> bool:
        s = self._set
        decay = 10 ** (-6 * 10 / s.rt60_ms)
        margin = 10 ** (s.margin_db / 10)
        near = total = 0.0
        learn = []
        for r, y, x in zip(raw, mic, ref, strict=True):
            gain = 10 ** (self._gain / 10)
            self._tail = np.maximum(x, self._tail * decay)
            echo = np.maximum(x * gain, self._tail * gain[0] * 10 ** (s.tail_db / 10))
            noise = self._noise
            p = margin * echo[1] + s.noise_x * noise
            near += float(np.sum(np.maximum(y - p, 0) ** 0.5))
            total += float(np.sum(np.maximum(y - noise, 0) ** 0.5))
            self._hist = np.roll(self._hist, 1, axis=1)
            self._hist[0, 0], self._hist[1, 0] = 10 * np.log10(r + noise), 10 * np.log10(echo[0] + noise)
            learn.append((np.stack((r, y)), echo, noise))
        share = near / total if total else 0.0
        self._run = min(self._run + 1, 3) if share >= s.near_share else max(self._run - 1, 0)
        self._hold = s.hold_ms // 20 if self._run == 3 else max(0, self._hold - 1)
        limit = s.held_share if self._hold else s.near_share
        a, b = self._hist - self._hist.mean(axis=1, keepdims=True)
        self._corr = float((a * b).sum() / (np.sqrt((a * a).sum() * (b * b).sum()) + 1e-9))
        self.debug = (share, self._corr)
        for y, echo, noise in learn:
            self._learn(y, echo, noise, share < s.near_share)
        return share < limit

    def _learn(self, y: _Floats, echo: _Floats, noise: _Floats, own: bool) -> None:
        dev = 10 * np.log10((y + noise) / (echo + noise))
        live = echo[0] > noise
        up = 0.5 if own or self._corr > 0.85 else 0.0
        step = np.clip(np.where(dev > 0, 0.2, 0.03) * dev, -0.15, up)
        self._gain += np.where(live, step, 0)
        self._gain[1] = np.maximum(self._gain[1], self._gain[0] - 14)
