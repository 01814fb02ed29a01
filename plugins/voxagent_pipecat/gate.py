"""`BargeInGate`: the last door before the transport. What belongs to a cut reply does not pass.

An InterruptionFrame overtakes whatever a busy processor has not taken from its input queue yet; that audio would be
heard after the caller spoke, and its words written down as said.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pipecat.frames.frames import Frame, InterruptionFrame, TTSAudioRawFrame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class GateStats:
    """What the gate turned away.

    Attributes:
        frames: Frames of any kind.
        audio_ms: Audio in them.
    """

    frames: int
    audio_ms: float


class CutContexts:
    """Tells frames of cut replies from those of living ones.

    A context is cut when a frame of it came before the interruption, or when its frame is older than the interruption
    (frames are numbered as they are made). Uninterruptible speech is never cut.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._cut: OrderedDict[str, None] = OrderedDict()
        self._interruption_id = -1

    def interrupt(self, frame: InterruptionFrame) -> None:
        """Everything that came so far is cut."""
        self._interruption_id = max(self._interruption_id, frame.id)
        self._cut.update(self._seen)
        self._seen.clear()
        while len(self._cut) > _REMEMBERED:
            self._cut.popitem(last=False)

    def hold(self, frame: Frame) -> bool:
        """Whether the frame belongs to a cut reply."""
        context_id = getattr(frame, "context_id", None)
        if not isinstance(context_id, str) or not frame.interruptible:
            return False
        if context_id in self._cut:
            return True
        if frame.id < self._interruption_id:
            self._cut[context_id] = None
            return True
        self._seen[context_id] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return False


class BargeInGate(FrameProcessor):
    """Put it directly before `transport.output()`. Works with every TTS service that names its contexts.

    Where a processor of yours stands between the transport and the assistant aggregator, a second gate behind it keeps
    late words out of the next reply. `VoxAgentWebRTCTransport` has a gate built in.

    Args:
        name: Of the processor.
    """

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._contexts = CutContexts()
        self._frames = 0
        self._audio_s = 0.0

    @property
    def stats(self) -> GateStats:
        """The counters so far."""
        return GateStats(self._frames, 1000 * self._audio_s)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Passes everything on but what belongs to a cut reply."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            self._contexts.interrupt(frame)
        elif direction is FrameDirection.DOWNSTREAM and self._contexts.hold(frame):
            self._count(frame)
            return
        await self.push_frame(frame, direction)

    def _count(self, frame: Frame) -> None:
        self._frames += 1
        if isinstance(frame, TTSAudioRawFrame):
            self._audio_s += frame.num_frames / frame.sample_rate
