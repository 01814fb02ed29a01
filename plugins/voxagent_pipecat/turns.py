"""Whose turn it is, as Pipecat's user aggregator asks: the caller's when the floor says so."""

# mypy: disallow-untyped-calls=False
# Much of Pipecat is not annotated.

from __future__ import annotations

from dataclasses import dataclass

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    SystemFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.turns.types import ProcessFrameResult
from pipecat.turns.user_start.base_user_turn_start_strategy import BaseUserTurnStartStrategy

from voxagent.floor import Decision, Floor, Verdict


@dataclass
class BargeInFrame(SystemFrame):
    """The caller has taken the floor: the bot is silent already, and the pipeline should know.

    Parameters:
        decision: What led to it.
    """

    decision: Decision | None = None


class BargeInUserTurnStartStrategy(BaseUserTurnStartStrategy):
    """Starts the caller's turn by the floor's verdict while the bot speaks, and by voice while it does not.

    Stands alone: a second strategy beside it would interrupt the bot before the floor has decided.

    Args:
        floor: Of the transport: `VoxAgentWebRTCTransport.floor`.
    """

    def __init__(self, floor: Floor) -> None:
        super().__init__()
        self._floor = floor
        self._turn = False
        floor.recogniser = True

    async def handle_user_turn_started(self) -> None:
        """The caller has the turn."""
        self._turn = True

    async def handle_user_turn_stopped(self) -> None:
        """The bot has it."""
        self._turn = False

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        """Looks for the start of a turn."""
        match frame:
            case BargeInFrame() if self._turn:
                # A turn within a turn starts nothing, and yet the bot has to be told.
                await self.push_frame(InterruptionFrame())
                return ProcessFrameResult.STOP
            case BargeInFrame():
                return await self._start()
            case VADUserStartedSpeakingFrame() if not self._floor.speaking:
                return await self._start()
            case TranscriptionFrame() | InterimTranscriptionFrame() if frame.text.strip():
                return await self._judge(frame)
        return ProcessFrameResult.CONTINUE

    async def _judge(self, frame: TranscriptionFrame | InterimTranscriptionFrame) -> ProcessFrameResult:
        verdict = self._floor.judge(frame.text)
        if verdict is Verdict.TURN:
            return await self._start()
        if isinstance(frame, TranscriptionFrame) and not self._turn:
            # What was let pass must not become part of the caller's next turn; within one it costs nothing.
            await self.trigger_reset_aggregation()
            if verdict is Verdict.BACKCHANNEL:
                await self.push_frame(UserBackchannelFrame(frame.text, frame.user_id, frame.timestamp))
        return ProcessFrameResult.STOP

    async def _start(self) -> ProcessFrameResult:
        await self.trigger_user_turn_started()
        return ProcessFrameResult.STOP
