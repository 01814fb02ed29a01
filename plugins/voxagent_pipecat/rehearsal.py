"""A call without a caller: a scripted language model, any TTS service, a paced loudspeaker in memory.

What the demonstration and the benchmark speak through. The pipeline is a real one; only its ends are stand-ins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMMessagesAppendFrame,
    LLMTextFrame,
    OutputTransportReadyFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TTSService
from pipecat.workers.runner import WorkerRunner

from voxagent.say import tokens
from voxagent_pipecat.loopback import LoopbackTransport

Reply = Callable[[LLMContext], str]


async def stream_reply(
    llm: FrameProcessor, text: str, gap_s: float, first_token_s: float, on_token: Callable[[float], None] | None = None
) -> None:
    """Pushes a reply downstream token by token, as a language model would.

    Args:
        llm: Who says it.
        text: All of it.
        gap_s: Between one token and the next.
        first_token_s: Thinking time before the first.
        on_token: Told when each token is about to be pushed, on the event loop's clock.
    """
    loop = asyncio.get_running_loop()
    await llm.push_frame(LLMFullResponseStartFrame())
    start_s = loop.time() + first_token_s
    for index, token in enumerate(tokens(text)):
        await asyncio.sleep(max(0.0, start_s + index * gap_s - loop.time()))
        if on_token is not None:
            on_token(loop.time())
        await llm.push_frame(LLMTextFrame(token))
    await llm.push_frame(LLMFullResponseEndFrame())


class ScriptedLLM(FrameProcessor):
    """A stand-in for a language model: answers every context with the next scripted reply, token by token.

    Args:
        replies: Texts, or functions of the context that give one.
        tokens_per_s: How fast they stream.
        first_token_s: Thinking time before the first.
    """

    def __init__(self, replies: Sequence[str | Reply], tokens_per_s: float = 25.0, first_token_s: float = 0.2) -> None:
        super().__init__()
        self.token_times_s: list[float] = []
        self.ready = asyncio.Event()
        self._replies = list(replies)
        self._gap_s = 1 / tokens_per_s
        self._first_token_s = first_token_s
        self._streaming: asyncio.Task[None] | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answers contexts, falls silent on interruptions, and passes everything else on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, OutputTransportReadyFrame):
            self.ready.set()
        if isinstance(frame, LLMContextFrame):
            self._streaming = self.create_task(self._answer(frame.context))
            return
        if isinstance(frame, InterruptionFrame):
            await self._fall_silent()
        await self.push_frame(frame, direction)

    async def cut(self) -> None:
        """Falls silent, and tells the whole pipeline that the caller speaks."""
        await self._fall_silent()
        await self.broadcast_interruption()  # type: ignore[no-untyped-call]

    async def cleanup(self) -> None:
        """Ends the reply in progress."""
        await self._fall_silent()
        await super().cleanup()  # type: ignore[no-untyped-call]

    async def _fall_silent(self) -> None:
        if self._streaming is not None:
            task, self._streaming = self._streaming, None
            await self.cancel_task(task)

    async def _answer(self, context: LLMContext) -> None:
        reply = self._replies.pop(0)
        text = reply if isinstance(reply, str) else reply(context)
        await stream_reply(self, text, self._gap_s, self._first_token_s, self.token_times_s.append)


@dataclass(slots=True)
class Rehearsal:
    """A running call.

    Attributes:
        worker: The pipeline's.
        llm: The scripted model.
        transport: The loudspeaker in memory.
        context: What the language model would read.
    """

    worker: PipelineWorker
    llm: ScriptedLLM
    transport: LoopbackTransport
    context: LLMContext

    async def ask(self, text: str) -> None:
        """The caller says something; the model answers."""
        await self.worker.queue_frame(LLMMessagesAppendFrame([{"role": "user", "content": text}], run_llm=True))

    async def interrupt(self) -> float:
        """The caller speaks over the bot; returns when, on the event loop's clock."""
        at_s = asyncio.get_running_loop().time()
        await self.llm.cut()
        return at_s

    def committed(self) -> list[str]:
        """The bot's replies as the language model will read them."""
        return replies_in(self.context)


def replies_in(context: LLMContext) -> list[str]:
    """The texts of the assistant's messages, in order."""
    messages: list[Any] = list(context.messages)
    return [str(message["content"]) for message in messages if message.get("role") == "assistant"]


@asynccontextmanager
async def rehearsal(
    tts: TTSService,
    replies: Sequence[str | Reply],
    *,
    gate: FrameProcessor | None = None,
    sample_rate: int = 24000,
    chunk_ms: int = 40,
    tokens_per_s: float = 25.0,
    observers: Sequence[BaseObserver] = (),
) -> AsyncIterator[Rehearsal]:
    """Runs a pipeline around a TTS service until the block ends.

    Args:
        tts: The service.
        replies: What the scripted model answers, in order.
        gate: Stands directly before the transport's output.
        sample_rate: Of the output, Hz.
        chunk_ms: Length of the transport's writes.
        tokens_per_s: Speed of the scripted model.
        observers: See every frame pushed.
    """
    llm = ScriptedLLM(replies, tokens_per_s)
    transport = LoopbackTransport(chunk_ms=chunk_ms)
    context = LLMContext()
    pair = LLMContextAggregatorPair(context)
    output = [gate, transport.output()] if gate is not None else [transport.output()]
    worker = PipelineWorker(
        Pipeline([transport.input(), pair.user(), llm, tts, *output, pair.assistant()]),
        params=PipelineParams(audio_out_sample_rate=sample_rate),
        enable_rtvi=False,
        observers=list(observers),
        idle_timeout_secs=None,
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    try:
        ready = asyncio.create_task(llm.ready.wait())
        await asyncio.wait({running, ready}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not llm.ready.is_set():
            raise RuntimeError("the pipeline did not start: its log tells why")
        yield Rehearsal(worker, llm, transport, context)
        await worker.queue_frame(EndFrame())
    except BaseException:
        await worker.cancel()
        raise
    finally:
        await asyncio.wait_for(running, 30)
