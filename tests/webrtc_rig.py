"""A Pipecat call over our transport without a network: a peer that pulls frames at their due times and remembers them.

Under virtual time with the fake model every sample can be found again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pipecat.frames.frames import EndFrame, TranscriptionFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner

from tests.conftest import eventually, fake_engine
from tests.pipecat_rig import Head, LoopClock, Talk, Tap
from voxagent.engine import Engine
from voxagent.fake import FakeModel, FakeScript
from voxagent.floor import BargeInPolicy
from voxagent.model import ModelSpec
from voxagent_pipecat import VoxAgentTTSService
from voxagent_pipecat.webrtc import VoxAgentWebRTCTransport
from voxagent_webrtc import Ended, Ends, Listener

# At the track's own rate, so that every sample arrives as it was made.
_SPEC = ModelSpec("fake", 48000, 7680, slots=64, max_batch=8, languages=(), times_words=True, foresees=True)


@dataclass
class PullPeer:
    """Stands for the network: pulls a frame every 20 ms, and hears what a test says."""

    pc_id: str = "peer"
    ends: Ends | None = None
    listener: Listener | None = None
    frames: list[tuple[float, Any]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    pulling: bool = True
    closed: bool = False
    _task: asyncio.Task[None] | None = None

    @property
    def line(self) -> PullPeer:
        return self

    def plug(self, ends: Ends) -> None:
        self.ends = ends
        self._task = asyncio.create_task(self._pull())

    def listen(self, listener: Listener) -> None:
        self.listener = listener
        listener.connected()

    def send(self, message: Any) -> None:
        self.sent.append(message)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self.closed and self.listener is not None:
            self.closed = True
            self.listener.ended(Ended.CLOSED)

    async def vanish(self, reason: Ended) -> None:
        """The call ends, and not by us."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        assert self.listener is not None
        self.listener.ended(reason)

    async def _pull(self) -> None:
        assert self.ends is not None
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s += 0.02
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if self.pulling:
                frame = self.ends.source.pull()
                self.frames.append((loop.time(), frame))
                if self.ends.on_frame is not None:
                    self.ends.on_frame(frame, 0.0)

    async def say(self, pcm: np.ndarray) -> None:
        """Speaks 16 kHz audio in packets, in real time."""
        assert self.ends is not None
        for at in range(0, len(pcm) - 319, 320):
            await asyncio.sleep(0.02)
            self.ends.on_audio(pcm[at : at + 320])

    def heard(self, since_s: float = 0.0) -> np.ndarray:
        """The speech handed over, its silences left out; shape (samples,)."""
        parts = [frame.pcm[: frame.speech_samples] for at_s, frame in self.frames if at_s >= since_s]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def last_audible_s(self) -> float:
        """When the last frame that was not silent was pulled."""
        return max((at_s for at_s, frame in self.frames if np.abs(frame.pcm).max() > 1e-3), default=0.0)


@dataclass
class WebCall(Talk):
    """What a test holds of a running call."""

    worker: PipelineWorker
    transport: VoxAgentWebRTCTransport
    peer: PullPeer
    tts: VoxAgentTTSService
    head: Head
    played: Tap
    context: LLMContext
    engine: Engine
    model: FakeModel
    spoken: list[tuple[str, Any, bool]] = field(default_factory=list)

    async def recognise(self, text: str) -> None:
        """What a recogniser would have heard."""
        await self.send(TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=True))

    async def until_heard(self, seconds: float) -> None:
        """Waits until so much speech was handed over."""
        await eventually(lambda: len(self.peer.heard()) >= seconds * 48000, 60.0)


@asynccontextmanager
async def web_call(
    script: FakeScript | None = None,
    *,
    policy: BargeInPolicy | None = None,
    params: TransportParams | None = None,
    before_tts: Sequence[FrameProcessor] = (),
    before_output: Sequence[FrameProcessor] = (),
    after_output: Sequence[FrameProcessor] = (),
    sample_rate: int = 48000,
    end: bool = True,
) -> AsyncIterator[WebCall]:
    """A running call; checks at its end that nothing is left of it."""
    model = FakeModel(_SPEC, script or FakeScript(samples_per_character=1200))
    async with fake_engine(model=model, threaded=False) as (engine, _):
        tts = VoxAgentTTSService("fake", engine=engine)
        peer = PullPeer()
        params = params or TransportParams(audio_in_enabled=True, audio_out_enabled=True)
        transport = VoxAgentWebRTCTransport(peer, params, policy=policy)
        head, played, context = Head(), Tap(), LLMContext()
        start = [transport.user_turn_start_strategy()] if policy is not None else None
        strategies = UserTurnStrategies(start=start, stop=[SpeechTimeoutUserTurnStopStrategy()])
        pair = LLMContextAggregatorPair(context, user_params=LLMUserAggregatorParams(user_turn_strategies=strategies))
        parts = [
            transport.input(), pair.user(), head, *before_tts, tts, *before_output,
            transport.output(), played, *after_output, pair.assistant(),
        ]  # fmt: skip
        worker = PipelineWorker(
            Pipeline(parts),
            params=PipelineParams(audio_in_sample_rate=16000, audio_out_sample_rate=sample_rate),
            enable_rtvi=False, idle_timeout_secs=None, clock=LoopClock(), cancel_on_idle_timeout=False,
        )  # fmt: skip
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        running = asyncio.create_task(runner.run())
        finished = False
        try:
            async with asyncio.timeout(30.0):
                await head.ready.wait()
            call = WebCall(worker, transport, peer, tts, head, played, context, engine, model)
            tts.add_event_handler("on_turn_spoken", lambda _, *event: call.spoken.append(event))
            yield call
            finished = end
            if end and not peer.closed:
                await worker.queue_frame(EndFrame())
        finally:
            if not finished or peer.closed:
                await worker.cancel()
            async with asyncio.timeout(60.0):
                await running
        await eventually(lambda: engine.stats.slots_taken == 0, 30.0)
        assert (engine.stats.sessions, engine.stats.queued_phrases, model.open_slots) == (0, 0, 0)
