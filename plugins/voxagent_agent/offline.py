"""`OfflineLLM`: a language model that needs no network, and shows what the voice can do."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from pipecat.frames.frames import EndFrame, Frame, InterruptionFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from voxagent_agent.replies import answer
from voxagent_pipecat.rehearsal import stream_reply


class OfflineLLM(FrameProcessor):
    """Streams scripted replies token by token, as a language model would.

    Args:
        tokens_per_s: How fast.
        first_token_s: Thinking time before the first.
    """

    def __init__(self, tokens_per_s: float = 25.0, first_token_s: float = 0.2) -> None:
        if tokens_per_s <= 0 or first_token_s < 0:
            raise ValueError("tokens_per_s must be positive, and first_token_s not negative")
        super().__init__()
        self._gap_s = 1 / tokens_per_s
        self._first_token_s = first_token_s
        self._streaming: asyncio.Task[None] | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answers contexts, falls silent on interruptions, and passes everything else on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            await self._fall_silent()
            self._streaming = self.create_task(self._answer(frame.context))
            return
        if isinstance(frame, InterruptionFrame):
            await self._fall_silent()
        if isinstance(frame, EndFrame) and self._streaming is not None:
            # The pipeline takes nothing that comes behind the end.
            await asyncio.wait({self._streaming})
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        """Ends the reply in progress."""
        await self._fall_silent()
        await super().cleanup()

    async def _fall_silent(self) -> None:
        if self._streaming is not None:
            task, self._streaming = self._streaming, None
            await self.cancel_task(task)

    async def _answer(self, context: LLMContext) -> None:
        messages: list[Any] = list(context.messages)
        await stream_reply(self, answer(messages, datetime.now()), self._gap_s, self._first_token_s)
