"""`Agent`: what the calls share, and the pipeline of each.

The way of a call: transport, recogniser, turn, language model, voice, transport.
"""

# mypy: disallow-untyped-calls=False
# Much of Pipecat is not annotated.

from __future__ import annotations

import asyncio
import gc
import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.audio.turn.smart_turn.base_smart_turn import BaseSmartTurn, SmartTurnParams
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.frames.frames import EndFrame, LLMMessagesAppendFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
    UserTurnStoppedMessage,
)
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_stop import TurnAnalyzerUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

import voxagent
from voxagent.engine import Engine
from voxagent.model import SpeechOptions
from voxagent.models import model_load
from voxagent.record import CallRecord
from voxagent_agent.chronicle import Chronicle
from voxagent_agent.llm import language_model
from voxagent_agent.settings import AgentSettings
from voxagent_pipecat.recogniser import RecogniserLease
from voxagent_pipecat.service import VoxAgentTTSService
from voxagent_pipecat.settings import VoxAgentTTSSettings
from voxagent_pipecat.truth import HeardContext
from voxagent_pipecat.vad import WebRTCVADAnalyzer
from voxagent_pipecat.webrtc import VoxAgentWebRTCTransport
from voxagent_pipecat.whisper import EmbeddedSTTService
from voxagent_webrtc import Connection

_HEARD_HZ = 16000
_SPOKEN_HZ = 48000
# How long a caller may trail off in mid-sentence before it is answered all the same. Pipecat waits 3 s.
_TRAIL_OFF_S = 1.8
_LONGEST_QUESTION = 2000
# For the last sentence, when a call is at its longest.
_GOODBYE_S = 30.0


class _SharedSmartTurn(LocalSmartTurnAnalyzerV3):
    """Pipecat's turn detector on a model that all calls share: loading one takes a call's first 0.1 s otherwise.

    The threads are shared as well, as many as half of the cores: it takes 0.1 s of one core a verdict, and calls that
    end their turns at the same moment would slow each other, the recogniser and the voices down.
    """

    _threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), thread_name_prefix="voxagent-turn")

    def __init__(self, loaded: LocalSmartTurnAnalyzerV3) -> None:
        BaseSmartTurn.__init__(self, params=SmartTurnParams(stop_secs=_TRAIL_OFF_S))
        self._log_data = False
        self._session = loaded._session

    @property
    def _model_executor(self) -> ThreadPoolExecutor:
        return self._threads


class Agent:
    """An agent that holds any number of conversations.

    Args:
        settings: See `AgentSettings`.

    Raises:
        ValueError: No such speech model is installed.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._engine = Engine(model_load(settings.model))
        self._turns: LocalSmartTurnAnalyzerV3 | None = None
        self._ears: RecogniserLease | None = None

    async def start(self) -> None:
        """Loads what the calls share.

        Raises:
            ValueError: Bad settings or files, with the cure.
            VoxagentError: The model could not be loaded.
        """
        if self._settings.record_dir is not None:
            self._settings.record_dir.mkdir(parents=True, exist_ok=True)
        await self._engine.start()
        voice = await self._engine.load_voice(self._settings.voice)
        await self._warm_up(voice.language)
        self._turns = LocalSmartTurnAnalyzerV3()
        self._ears = await EmbeddedSTTService.warm_up(cpu_threads=self._settings.stt_threads)
        # What is loaded now stays: looking through it for garbage stops every call for 80 ms (measured).
        gc.collect()
        gc.freeze()

    async def aclose(self) -> None:
        """Frees everything."""
        if self._ears is not None:
            self._ears.release()
        gc.unfreeze()
        await self._engine.aclose()

    async def _warm_up(self, language: str | None) -> None:
        """The first phrase of a process is slow; nobody should be waiting for it."""
        session = self._engine.open(self._settings.voice, SpeechOptions(language, self._settings.speed))
        session.push_text("Hello there, how are you?")
        session.end_input()
        async for _ in session:
            pass

    async def converse(self, connection: Connection, data: object) -> None:
        """Runs one call to its end."""
        # Our own page and caller have a language of their own; RTVI takes a twentieth of a core a call.
        rtvi = not (isinstance(data, dict) and data.get("client") == "voxagent")
        record = self._record(connection.pc_id)
        call = _Call(self._settings, self._engine, self._turns or LocalSmartTurnAnalyzerV3(), connection, record, rtvi)
        try:
            await call.run()
        except Exception as error:
            logger.exception(f"call {connection.pc_id} failed")
            record.note("error", message=str(error))
        finally:
            reason = connection.ended.value if connection.ended is not None else "the agent ended the call"
            record.note("end", reason=reason)
            await record.aclose()

    def _record(self, call: str) -> CallRecord:
        settings, path = self._settings, None
        started = datetime.now(UTC)
        if settings.record_dir is not None:
            name = f"{started:%Y%m%dT%H%M%S}-{re.sub('[^0-9a-zA-Z]', '', call)[:12]}.jsonl"
            path = Path(settings.record_dir) / name
        record = CallRecord(asyncio.get_running_loop().time, path, call_id=call, texts=settings.record_texts)
        record.note(
            "start",
            call=call,
            version=voxagent.__version__,
            started_at=started.isoformat(),
            clock_s=record.clock_s,
            preset=settings.preset,
            model=settings.model,
            voice=settings.voice,
            sample_rate=_SPOKEN_HZ,
        )
        return record


class _Call:
    """One conversation's pipeline."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        turns: LocalSmartTurnAnalyzerV3,
        connection: Connection,
        record: CallRecord,
        rtvi: bool,
    ) -> None:
        self._rtvi = rtvi
        self._settings = settings
        self._connection = connection
        self._record = record
        self._transport = VoxAgentWebRTCTransport(
            connection,
            TransportParams(audio_in_enabled=True, audio_out_enabled=True),
            policy=settings.policy(),
        )
        self._tts = VoxAgentTTSService(
            settings.model,
            engine=engine,
            settings=VoxAgentTTSSettings(voice=settings.voice, language=settings.language, speed=settings.speed),
            reading=settings.reading(),
        )
        self._stt = EmbeddedSTTService(cpu_threads=settings.stt_threads)
        self._llm = language_model(settings)
        self._context = LLMContext()
        if settings.system_prompt:
            self._context.add_message({"role": "system", "content": settings.system_prompt})
        self._pair = LLMContextAggregatorPair(
            self._context,
            user_params=LLMUserAggregatorParams(
                vad_analyzer=WebRTCVADAnalyzer(),
                user_turn_strategies=UserTurnStrategies(
                    start=[self._transport.user_turn_start_strategy()],
                    stop=[TurnAnalyzerUserTurnStopStrategy(turn_analyzer=_SharedSmartTurn(turns))],
                ),
            ),
        )
        self._chronicle = Chronicle(record, self._transport, self._tts, self._llm, self._stt)
        self._worker: PipelineWorker | None = None
        self._greeted = False

    async def run(self) -> None:
        """Runs until somebody hangs up."""
        self._worker = PipelineWorker(
            Pipeline(
                [
                    self._transport.input(),
                    self._stt,
                    self._pair.user(),
                    HeardContext(self._tts, pass_audio=False),
                    self._llm,
                    self._tts,
                    self._transport.output(),
                    self._pair.assistant(),
                ]
            ),
            params=PipelineParams(
                audio_in_sample_rate=_HEARD_HZ, audio_out_sample_rate=_SPOKEN_HZ, enable_metrics=False
            ),
            observers=[self._chronicle],
            enable_turn_tracking=False,
            enable_rtvi=self._rtvi,
            idle_timeout_secs=self._settings.idle_s,
        )
        self._wire(self._worker)
        runner = WorkerRunner(handle_sigint=False, handle_sigterm=False)
        await runner.add_workers(self._worker)
        loop, longest_s = asyncio.get_running_loop(), self._settings.max_call_s
        goodbye = loop.call_later(longest_s, self._say_goodbye)
        # What is still to be said by then is too long for a goodbye.
        hang_up = loop.call_later(longest_s + _GOODBYE_S, self._hang_up)
        try:
            await runner.run()
        finally:
            goodbye.cancel()
            hang_up.cancel()

    def _wire(self, worker: PipelineWorker) -> None:
        transport, user, floor = self._transport, self._pair.user(), self._transport.floor

        async def connected(_: object, __: object) -> None:
            transport.peer.send(
                {"type": "voxagent", "event": "hello", "call": self._connection.pc_id, "name": self._settings.name}
            )
            if self._settings.greeting and not self._greeted:
                self._greeted = True
                await worker.queue_frame(TTSSpeakFrame(self._settings.greeting))

        async def disconnected(_: object, __: object) -> None:
            await worker.cancel()

        async def asked(_: object, message: object, __: object) -> None:
            await self._obey(message, worker)

        async def turn_started(_: object, __: object) -> None:
            self._chronicle.note_user_turn("started")

        async def turn_stopped(_: object, __: object, message: UserTurnStoppedMessage) -> None:
            self._chronicle.note_user_turn("stopped", message.content or "")

        async def no_words(_: object) -> None:
            if floor is not None:
                floor.no_words()

        transport.add_event_handler("on_client_connected", connected)
        transport.add_event_handler("on_client_disconnected", disconnected)
        transport.add_event_handler("on_app_message", asked)
        user.add_event_handler("on_user_turn_started", turn_started)
        user.add_event_handler("on_user_turn_stopped", turn_stopped)
        self._stt.add_event_handler("on_no_words", no_words)

    async def _obey(self, message: object, worker: PipelineWorker) -> None:
        """Does what the page asks for without a voice: ``hush``, or ``ask`` with a text."""
        event = message.get("event") if isinstance(message, dict) else None
        if event in ("hush", "ask"):
            await self._transport.input().broadcast_interruption()
        if isinstance(message, dict) and event == "ask" and isinstance(message.get("text"), str):
            question: Any = {"role": "user", "content": message["text"][:_LONGEST_QUESTION]}
            await worker.queue_frame(LLMMessagesAppendFrame([question], run_llm=True))

    def _say_goodbye(self) -> None:
        """The call has lasted as long as one may."""
        assert self._worker is not None
        self._transport.peer.send({"type": "voxagent", "event": "bye", "reason": "the call was at its longest"})
        self._goodbye = asyncio.ensure_future(self._worker.queue_frame(EndFrame()))

    def _hang_up(self) -> None:
        assert self._worker is not None
        self._goodbye = asyncio.ensure_future(self._worker.cancel())
