"""`WebRTCVADAnalyzer`: WebRTC's voice detector where Pipecat takes Silero's."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import math
from collections import deque

import numpy as np
from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams, VADState

from voxagent.pcm import Pcm16, power
from voxagent.vad import VoiceActivity, pitched

QUIET_DBFS = -55.0
"""Softer than this nothing is a caller's voice."""
_FRAMES_MS = (10, 20)
# Sound this much weaker than the loudest of the last moment is its decay: the detector calls it voice for 100 ms more.
_DECAY_DB = 30.0
_LOUD_MS = 500
# Sound this close to the softest of the last seconds is the room's.
_OVER_ROOM_DB = 6.0
_ROOM_MS = 2000
# A stop consonant silences the detector this long; without the allowance its flicker would start the count anew.
_HOLE_MS = 40
# Voice has a pitch; coughs, doors, claps and breath have none. Three frames hold two periods of the lowest voice.
_PITCH_MS = 60
_PITCH_WITHIN_MS = 240
_PITCHED_MS = 40


class Loudness:
    """Tells a sound from its own decay and from the noise of the room, by level alone.

    Args:
        quiet_dbfs: Softer than this everything is silence.
        frame_ms: Length of the frames it is given.
    """

    def __init__(self, quiet_dbfs: float, frame_ms: int) -> None:
        self._quiet_dbfs = quiet_dbfs
        self._loud = deque([quiet_dbfs], maxlen=_LOUD_MS // frame_ms)
        self._room = deque([-math.inf], maxlen=_ROOM_MS // frame_ms)

    def sounds(self, frame: Pcm16) -> bool:
        """Whether the next frame, mono int16, shape (n,), holds more than silence."""
        level = 10 * math.log10(power(frame) + 1e-12)
        self._loud.append(level)
        self._room.append(level)
        return level > max(self._quiet_dbfs, max(self._loud) - _DECAY_DB, min(self._room) + _OVER_ROOM_DB)


class WebRTCVADAnalyzer(VADAnalyzer):
    """Voice activity in frames of 20 ms, for microseconds each, on the event loop.

    Pipecat's own state machine starts its count anew at one frame without voice, which suits a smooth confidence and
    not a detector that says yes or no; and it has no way to ask for a pitch. So this one keeps its own: speech starts
    when `start_secs` of voice, holes of 40 ms allowed, have a pitch in them, and ends after `stop_secs` of silence.

    `min_volume` is not used. Pipecat's volume gate follows the loudness over 0.4 s and is the longest delay of all: 300
    to 380 ms from onset to start with its default parameters (measured). A fixed floor and the room's noise take
    its place.

    Args:
        sample_rate: 8, 16, 32 or 48 kHz; by default the pipeline's.
        params: By default a start after 100 ms of voice and an end after 200 ms of silence, which smart turn expects.
        aggressiveness: 0 takes most sounds for voice, 3 the fewest.
        quiet_dbfs: Softer than this nothing is voice; the detector takes some kinds of hiss for it.
        frame_ms: 10 or 20.
    """

    def __init__(
        self,
        *,
        sample_rate: int | None = None,
        params: VADParams | None = None,
        aggressiveness: int = 2,
        quiet_dbfs: float = QUIET_DBFS,
        frame_ms: int = 20,
    ) -> None:
        if frame_ms not in _FRAMES_MS:
            raise ValueError(f"frame_ms is 10 or 20, not {frame_ms}")
        # Of one that refuses bad options now, not when the call begins.
        VoiceActivity(sample_rate or 16000, frame_ms, aggressiveness)
        params = params or VADParams(confidence=0.5, start_secs=0.1, stop_secs=0.2, min_volume=0.0)
        super().__init__(sample_rate=sample_rate, params=params)
        self._aggressiveness = aggressiveness
        self._quiet_dbfs = quiet_dbfs
        self._frame_ms = frame_ms
        self._activity: VoiceActivity | None = None

    def set_sample_rate(self, sample_rate: int) -> None:
        """Called by the pipeline.

        Raises:
            ValueError: The detector does not know the rate.
        """
        rate = self._init_sample_rate or sample_rate
        self._activity = VoiceActivity(rate, self._frame_ms, self._aggressiveness)
        self._loudness = Loudness(self._quiet_dbfs, self._frame_ms)
        self._rest = b""
        self._past = np.zeros(rate * _PITCH_MS // 1000, np.int16)
        super().set_sample_rate(sample_rate)

    def set_params(self, params: VADParams) -> None:
        """Changes when speech starts and ends; whoever is speaking starts afresh."""
        super().set_params(params)
        self._start_frames = max(1, round(params.start_secs * 1000 / self._frame_ms))
        self._stop_frames = max(1, round(params.stop_secs * 1000 / self._frame_ms))
        self._voiced: deque[bool] = deque(maxlen=self._start_frames + _HOLE_MS // self._frame_ms)
        self._pitched: deque[bool] = deque(maxlen=max(self._start_frames, _PITCH_WITHIN_MS // self._frame_ms))
        self._state = VADState.QUIET
        self._silent_frames = 0

    def num_frames_required(self) -> int:
        """Samples of one frame."""
        return self.sample_rate * self._frame_ms // 1000

    def voice_confidence(self, buffer: bytes) -> float:
        """1.0 when the next frame is voice, 0.0 when it is not."""
        assert self._activity is not None, "set_sample_rate comes first"
        frame = np.frombuffer(buffer, np.int16)
        self._past = np.concatenate((self._past, frame))[-len(self._past) :]
        # Both must hear every frame.
        sounds, voice = self._loudness.sounds(frame), self._activity.push(frame)
        return float(sounds and all(voice))

    async def analyze_audio(self, buffer: bytes) -> VADState:
        """Takes 16-bit mono PCM of any length; returns the state after it."""
        self._rest += buffer
        size = 2 * self.num_frames_required()
        while len(self._rest) >= size:
            frame, self._rest = self._rest[:size], self._rest[size:]
            self._count(self.voice_confidence(frame) >= self.params.confidence)
        return self._state

    def _count(self, voice: bool) -> None:
        if self._state in (VADState.QUIET, VADState.STARTING):
            self._voiced.append(voice)
            self._pitched.append(voice and pitched(self._past, self.sample_rate))
            lasting = sum(self._voiced) >= self._start_frames
            if lasting and sum(self._pitched) * self._frame_ms >= _PITCHED_MS:
                self._state = VADState.SPEAKING
                self._silent_frames = 0
            else:
                self._state = VADState.STARTING if any(self._voiced) else VADState.QUIET
            return
        self._silent_frames = 0 if voice else self._silent_frames + 1
        self._state = VADState.STOPPING if self._silent_frames else VADState.SPEAKING
        if self._silent_frames >= self._stop_frames:
            self._state = VADState.QUIET
            self._voiced.clear()
            self._pitched.clear()
