"""`WebRTCVADAnalyzer`: WebRTC's voice detector where Pipecat takes Silero's."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import math
from collections import deque

import numpy as np
from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams

from voxagent.vad import VoiceActivity

_FRAME_MS = 20
# A stop consonant silences the detector for one or two frames; Pipecat starts its count anew at each.
_HANGOVER_FRAMES = 2


class WebRTCVADAnalyzer(VADAnalyzer):
    """Voice activity in frames of 20 ms. Takes microseconds a frame, and reacts a third of a second before Silero.

    The volume gate of Pipecat's default parameters is off (`min_volume=0`): it follows the loudness over 0.4 s and is
    the longest delay of all (300 to 380 ms from onset to start, measured). A fixed floor takes its place.

    Args:
        sample_rate: 8, 16, 32 or 48 kHz; by default the pipeline's.
        params: By default a start after 120 ms of voice and an end after 200 ms of silence, which smart turn expects.
        aggressiveness: 0 takes most sounds for voice, 3 the fewest.
        quiet_dbfs: Softer than this nothing is voice; the detector takes some kinds of hiss for it.
    """

    def __init__(
        self,
        *,
        sample_rate: int | None = None,
        params: VADParams | None = None,
        aggressiveness: int = 2,
        quiet_dbfs: float = -52.0,
    ) -> None:
        params = params or VADParams(confidence=0.5, start_secs=0.12, stop_secs=0.2, min_volume=0.0)
        super().__init__(sample_rate=sample_rate, params=params)
        self._aggressiveness = aggressiveness
        self._quiet = 32768 * 10 ** (quiet_dbfs / 20)
        self._activity: VoiceActivity | None = None
        self._recent: deque[bool] = deque(maxlen=_HANGOVER_FRAMES + 1)

    def set_sample_rate(self, sample_rate: int) -> None:
        """Called by the pipeline.

        Raises:
            ValueError: The detector does not know the rate.
        """
        rate = self._init_sample_rate or sample_rate
        self._activity = VoiceActivity(rate, _FRAME_MS, self._aggressiveness)
        super().set_sample_rate(sample_rate)

    def num_frames_required(self) -> int:
        """Samples of one frame."""
        return self.sample_rate * _FRAME_MS // 1000

    def voice_confidence(self, buffer: bytes) -> float:
        """1.0 for voice, 0.0 for anything else; a hole of up to two frames inside voice is voice."""
        assert self._activity is not None
        pcm = np.frombuffer(buffer, np.int16)
        level = math.sqrt(float(np.mean(pcm.astype(np.float32) ** 2)))
        verdicts = self._activity.push(pcm)
        self._recent.append(level > self._quiet and bool(verdicts) and verdicts[-1])
        return float(any(self._recent))
