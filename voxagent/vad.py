"""Voice activity of 10 to 30 ms frames, by WebRTC's detector (package `webrtcvad-wheels`, extra `webrtc`)."""

from __future__ import annotations

import numpy as np

from voxagent.pcm import Pcm16

_RATES = (8000, 16000, 32000, 48000)
_FRAMES_MS = (10, 20, 30)
# The pitch of speaking voices, children's included.
_PITCH_HZ = (70, 420)
# Share of the energy that repeats from one period to the next. Vowels measured 0.6 to 0.98; doors, keys and breath
# below 0.4.
_PERIODIC = 0.5


class VoiceActivity:
    """Tells voice from the rest, frame by frame, whatever the sizes of the blocks it is given.

    Args:
        sample_rate: 8, 16, 32 or 48 kHz.
        frame_ms: 10, 20 or 30; 20 is what senders packetise.
        aggressiveness: 0 takes most sounds for voice, 3 the fewest; 2 keeps keyboards and breath out on a headset.
    """

    def __init__(self, sample_rate: int, frame_ms: int = 20, aggressiveness: int = 2) -> None:
        if sample_rate not in _RATES:
            raise ValueError(f"voice activity needs one of {_RATES} Hz, not {sample_rate}: resample first")
        if frame_ms not in _FRAMES_MS:
            raise ValueError(f"voice activity frames are 10, 20 or 30 ms long, not {frame_ms}")
        if aggressiveness not in range(4):
            raise ValueError(f"aggressiveness lies between 0 and 3, not {aggressiveness}")
        try:
            import webrtcvad
        except ImportError as error:
            raise ValueError("voice activity needs webrtcvad: pip install 'pipecat-voxagent[webrtc]'") from error
        self.frame_ms = frame_ms
        self._rate = sample_rate
        self._frame = sample_rate * frame_ms // 1000
        self._detector = webrtcvad.Vad(aggressiveness)
        self._rest = np.zeros(0, np.int16)

    def push(self, pcm: Pcm16) -> list[bool]:
        """Takes mono int16, shape (n,); returns one verdict for every frame completed by it."""
        samples = np.concatenate((self._rest, pcm))
        whole = len(samples) // self._frame * self._frame
        self._rest = samples[whole:]
        frames = samples[:whole].reshape(-1, self._frame)
        return [bool(self._detector.is_speech(frame.tobytes(), self._rate)) for frame in frames]


def pitched(pcm: Pcm16, sample_rate: int) -> bool:
    """Whether audio has the pitch of a voice: its autocorrelation peaks between 70 and 420 Hz.

    Args:
        pcm: Mono int16, shape (n,), at least 30 ms for the lowest voices.
        sample_rate: Hz.
    """
    signal = pcm.astype(np.float32)
    signal -= signal.mean()
    size = 2 * len(signal)
    spectrum = np.fft.rfft(signal, size)
    correlation = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: len(signal)]
    shortest, longest = sample_rate // _PITCH_HZ[1], min(sample_rate // _PITCH_HZ[0], len(signal) - 1)
    if correlation[0] <= 0 or longest <= shortest:
        return False
    lags = np.arange(shortest, longest)
    # Fewer samples overlap at longer lags.
    shares = correlation[lags] / correlation[0] * len(signal) / (len(signal) - lags)
    return bool(shares.max() >= _PERIODIC)
