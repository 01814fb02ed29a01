"""A whole Pipecat call in memory: a scripted caller and language model, the service, the gate, a paced loudspeaker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pipecat.clocks.base_clock import BaseClock
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputTransportReadyFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TTSService
from pipecat.workers.runner import WorkerRunner

from tests.conftest import eventually, fake_engine
from voxagent.engine import Engine
from voxagent.fake import FakeModel, FakeScript, places
from voxagent_pipecat import BargeInGate, LoopbackTransport, VoxAgentTTSService
from voxagent_pipecat.rehearsal import replies_in


class LoopClock(BaseClock):
    """Pipecat's clock on the event loop's time, virtual or real."""

    def __init__(self) -> None:
        self._start_s = 0.0

    def start(self) -> None:
        self._start_s = asyncio.get_running_loop().time()

    def get_time(self) -> int:
        return round((asyncio.get_running_loop().time() - self._start_s) * 1e9)


class Head(FrameProcessor):
    """Where the caller is: interrupts, and notes what comes up the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[ErrorFrame] = []
        self.ready = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            self.errors.append(frame)
        if isinstance(frame, OutputTransportReadyFrame):
            self.ready.set()
        await self.push_frame(frame, direction)


class Tap(FrameProcessor):
    """Notes every frame that passes downstream, and when."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self.frames: list[tuple[float, Frame]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is FrameDirection.DOWNSTREAM:
            self.frames.append((asyncio.get_running_loop().time(), frame))
        await self.push_frame(frame, direction)

    def of(self, *kinds: type[Frame], exact: bool = False) -> list[Any]:
        return [frame for _, frame in self.frames if (type(frame) in kinds if exact else isinstance(frame, kinds))]

    def at(self, kind: type[Frame]) -> list[float]:
        return [at_s for at_s, frame in self.frames if isinstance(frame, kind)]


class Talk:
    """What every call can do, whatever its transport."""

    worker: PipelineWorker
    context: LLMContext

    async def send(self, *frames: Frame) -> None:
        for frame in frames:
            await self.worker.queue_frame(frame)

    async def reply(self, *deltas: str, every_s: float = 0.0) -> None:
        await self.send(LLMFullResponseStartFrame())
        for delta in deltas:
            await self.send(LLMTextFrame(delta))
            if every_s:
                await asyncio.sleep(every_s)
        await self.send(LLMFullResponseEndFrame())

    def committed(self) -> list[str]:
        """What the language model will read as its own replies."""
        return replies_in(self.context)


@dataclass
class Call(Talk):
    """What a test holds of a running call."""

    worker: PipelineWorker
    transport: LoopbackTransport
    gate: BargeInGate
    head: Head
    spoken: Tap
    played: Tap
    context: LLMContext
    began_s: float
    spoken_turns: list[Any] = field(default_factory=list)

    async def interrupt(self) -> float:
        """Returns when."""
        now_s = asyncio.get_running_loop().time()
        await self.head.broadcast_interruption()
        return now_s

    def gone_quiet(self, for_s: float = 2.0) -> bool:
        """Whether nothing has sounded for a while."""
        stamps = self.transport.stamps
        return asyncio.get_running_loop().time() > (stamps[-1].end_s if stamps else self.began_s) + for_s

    async def until(self, condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
        await eventually(condition, timeout_s)

    async def until_seen(self, kind: type[Frame], count: int = 1, timeout_s: float = 10.0) -> None:
        await self.until(lambda: len(self.played.of(kind)) >= count, timeout_s)


@asynccontextmanager
async def call(
    tts: TTSService,
    *,
    before_output: Sequence[FrameProcessor] = (),
    before_tts: Sequence[FrameProcessor] = (),
    after_output: Sequence[FrameProcessor] = (),
    gate: bool = True,
    sample_rate: int = 24000,
    chunk_ms: int = 40,
    end: bool = True,
    clock: BaseClock | None = None,
    metrics: bool = False,
) -> AsyncIterator[Call]:
    """A running call; ended by an EndFrame (or cancelled, with `end=False`)."""
    transport = LoopbackTransport(chunk_ms=chunk_ms)
    door, head, spoken, played = BargeInGate(), Head(), Tap(), Tap()
    context = LLMContext()
    pair = LLMContextAggregatorPair(context)
    parts = [
        transport.input(), pair.user(), head, *before_tts, tts, spoken, *before_output,
        *([door] if gate else []), transport.output(), played, *after_output, pair.assistant(),
    ]  # fmt: skip
    params = PipelineParams(audio_out_sample_rate=sample_rate, enable_metrics=metrics, enable_usage_metrics=metrics)
    worker = PipelineWorker(
        Pipeline(parts), params=params, enable_rtvi=False, idle_timeout_secs=None, clock=clock,
        cancel_on_idle_timeout=False,
    )  # fmt: skip
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    finished = False
    try:
        async with asyncio.timeout(30.0):
            await head.ready.wait()
        held = Call(worker, transport, door, head, spoken, played, context, asyncio.get_running_loop().time())
        if isinstance(tts, VoxAgentTTSService):
            tts.add_event_handler("on_turn_spoken", lambda _, *event: held.spoken_turns.append(event))
        yield held
        finished = end
        if end:
            await worker.queue_frame(EndFrame())
    finally:
        if not finished:
            await worker.cancel()
        async with asyncio.timeout(30.0):
            await running


def interruption_time(tap: Tap) -> float:
    """When the last interruption passed the tap."""
    return tap.at(InterruptionFrame)[-1]


@dataclass
class FakeCall:
    """A call whose voice is the fake model, under virtual time."""

    call: Call
    tts: VoxAgentTTSService
    engine: Engine
    model: FakeModel


@asynccontextmanager
async def fake_call(
    script: FakeScript | None = None,
    *,
    model: FakeModel | None = None,
    engine_settings: dict[str, Any] | None = None,
    tts_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[FakeCall]:
    """A call with 40 characters a second; checks at its end that nothing of it is left in the engine."""
    script = script or FakeScript(samples_per_character=400)
    settings = {"threaded": False, **(engine_settings or {})}
    async with fake_engine(script, model=model, **settings) as (engine, fake):
        tts = VoxAgentTTSService("fake", engine=engine, **(tts_options or {}))
        options.setdefault("clock", LoopClock())
        options.setdefault("sample_rate", 16000)
        async with call(tts, **options) as running:
            yield FakeCall(running, tts, engine, fake)
        await eventually(lambda: engine.stats.slots_taken == 0, 30.0)
        assert (engine.stats.sessions, engine.stats.queued_phrases) == (0, 0)
        assert fake.open_slots == 0


def whole(pcm: Any, turns: int = 1) -> bool:
    """Whether fake audio at the model's own rate is `turns` turns, each from its start, with no sample missing."""
    at, _ = places(pcm.astype(np.float32) / 32768)
    starts = np.flatnonzero(np.diff(at, prepend=-2) % 8000 != 1)
    return len(starts) <= turns and all(at[start] == 0 for start in starts)


def kinds(frames: Sequence[Frame], *wanted: type[Frame]) -> list[str]:
    """Names of the wanted frames' classes in order, runs of one class once."""
    names = [type(frame).__name__ for frame in frames if isinstance(frame, wanted)]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
