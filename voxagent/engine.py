"""The engine: the one thread that touches a model, and the sessions it serves.

Commands go in by a queue; what came of a step comes out by one hop onto the event loop. Knows no transports.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from voxagent.errors import EngineFull, ModelError, SessionStateError
from voxagent.model import LatentModel, ModelSpec, SpeechOptions, Voice
from voxagent.phrases import FIRST_S, TAIL_S, PhraseSplitter
from voxagent.reading import PLAIN, Reading
from voxagent.scheduler import admit
from voxagent.session import SessionState
from voxagent.stats import EngineStats
from voxagent.stepper import Cancel, Command, Job, OpenSlot, Outcome
from voxagent.turn import Session
from voxagent.worker import EngineSettings, Load, LoopWorker, ThreadWorker, Worker, on_a_thread

__all__ = ["Engine", "EngineSettings"]


class Engine:
    """Serves sessions over one model, on one event loop.

    Args:
        load: Loads the model; called on the engine's thread by `start`, and again after a hang.
        settings: See `EngineSettings`.
    """

    def __init__(self, load: Load, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self._load = load
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._model: LatentModel[Any] | None = None
        self._spec: ModelSpec | None = None
        self._ready: asyncio.Future[None] | None = None
        self._voices: dict[str | None, asyncio.Future[Voice]] = {}
        self._sessions: dict[int, Session] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._opened = self._refused = self._failed = self._interrupted = self._restarts = 0
        self._steps_before, self._busy_before_s = 0, 0.0
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Loads and warms up the model. May be awaited by several callers.

        Raises:
            ValueError: Bad options or files, with the cure.
            ModelError: The model could not be loaded.
        """
        if self._closing is not None:
            raise SessionStateError("this engine was closed: make a new one")
        if self._ready is None:
            self._loop = asyncio.get_running_loop()
            self._start_worker()
        self._check_loop()
        assert self._ready is not None
        await asyncio.shield(self._ready)

    @property
    def spec(self) -> ModelSpec:
        """The loaded model's facts."""
        if self._spec is None:
            raise SessionStateError("the engine has no model yet: `await engine.start()` first")
        return self._spec

    async def load_voice(self, source: str | None = None) -> Voice:
        """Loads a voice ahead of its first use, on a thread of its own.

        Raises:
            ValueError: No such voice; the message names the cure.
        """
        await self.start()
        return await asyncio.shield(self._voice(source))

    def open(
        self,
        voice: str | None = None,
        options: SpeechOptions | None = None,
        *,
        seed: int | None = None,
        splitter: PhraseSplitter | None = None,
        reading: Reading = PLAIN,
    ) -> Session:
        """Opens a turn. Cheap; a voice that is not loaded yet delays its first audio.

        Args:
            voice: Name or path; None for the model's default.
            options: Language and speed.
            seed: For repeatable audio; None draws one.
            splitter: Cuts the text into phrases; by default one for the language and the reading, bounded by the
                model's longest.
            reading: How text is read where tastes differ; what the model knows of tags and phonemes is added.

        Raises:
            EngineFull: Every slot is taken.
            ModelError: The model hung too often or could not be loaded again.
            SessionStateError: `start` was not awaited, or on another event loop.
            ValueError: A language the model does not speak.
        """
        spec = self.spec
        self._check_loop()
        options = options or SpeechOptions()
        _check_language(options.language, spec)
        self._check_health()
        live = sum(not session.state.over for session in self._sessions.values())
        if not admit(live, spec.slots):
            self._refused += 1
            raise EngineFull(f"all {spec.slots} slots of {spec.name} are taken: retry, or raise `slots`", 1.0)
        job = Job(options, random.getrandbits(32) if seed is None else seed)
        splitter = splitter or PhraseSplitter(
            options.language,
            first_s=max(FIRST_S, spec.min_phrase_s),
            tail_s=max(TAIL_S, spec.min_phrase_s),
            max_phrase_s=spec.max_phrase_s,
            reading=reading.known_to(spec.tags, spec.phonemes),
        )
        loading = self._voice(voice)
        session = Session(job, spec, splitter, self._send, self._cancel_slot, self._count_end, self._forget)
        self._sessions[id(job)] = session
        self._opened += 1
        self._give_voice(job, loading)
        self._watch_model()
        return session

    @property
    def stats(self) -> EngineStats:
        """The counters so far."""
        stepper = self._worker.stepper if self._worker else None
        return EngineStats(
            sessions=sum(not session.state.over for session in self._sessions.values()),
            slots_taken=stepper.slots_taken if stepper else 0,
            queued_phrases=stepper.queued_phrases if stepper else 0,
            slots=self._spec.slots if self._spec else 0,
            opened=self._opened,
            refused=self._refused,
            failed=self._failed,
            interrupted=self._interrupted,
            steps=self._steps_before + (stepper.steps if stepper else 0),
            restarts=self._restarts,
            busy_s=self._busy_before_s + (stepper.busy_s if stepper else 0.0),
        )

    async def aclose(self) -> None:
        """Interrupts every session and ends the thread. May be called twice, and cancelled: it goes on."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for session in list(self._sessions.values()):
            session.interrupt()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(SessionStateError("the engine was closed while the model was loading"))
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop(self.settings.step_timeout_s)
        for session in list(self._sessions.values()):
            session.abandon()
        self._model = self._spec = None

    # --- voices --------------------------------------------------------------------------------------------------

    def _voice(self, source: str | None) -> asyncio.Future[Voice]:
        """The voice, soon: after a hang it waits for the new model first."""
        assert self._loop is not None
        assert self._ready is not None
        future = self._voices.get(source)
        if future is None or (future.done() and future.exception() is not None):
            future = self._voices[source] = self._loop.create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            if self._ready.done():
                self._start_voice(source, future)
            else:
                self._ready.add_done_callback(lambda _: self._start_voice(source, future))
        return future

    def _start_voice(self, source: str | None, future: asyncio.Future[Voice]) -> None:
        assert self._loop is not None
        model = self._model
        if future.done():
            return
        if model is None:
            future.set_exception(ModelError("the model could not be loaded"))
        elif self.settings.threaded:
            on_a_thread(self._loop, future, lambda: model.load_voice(source))
            self._limit(future, f"the voice {source or 'by default'}")
        else:
            try:
                future.set_result(model.load_voice(source))
            except Exception as error:
                future.set_exception(error)

    def _limit(self, future: asyncio.Future[Any], what: str) -> None:
        """A load that hangs must not keep sessions waiting for ever."""
        assert self._loop is not None
        limit_s = self.settings.load_timeout_s

        def give_up() -> None:
            if not future.done():
                cure = "check the file and the disk, or raise load_timeout_s"
                future.set_exception(ModelError(f"{what} was not loaded within {limit_s:g} s: {cure}"))

        timer = self._loop.call_later(limit_s, give_up)
        future.add_done_callback(lambda _: timer.cancel())

    def _give_voice(self, job: Job, loading: asyncio.Future[Voice]) -> None:
        def loaded(future: asyncio.Future[Voice]) -> None:
            session = self._sessions.get(id(job))
            if session is None:
                return  # It failed or was closed meanwhile; the voice may even be that of a model given up.
            if (error := future.exception()) is not None:
                session.fail(ModelError(f"the voice cannot be loaded: {error}"))
                session.abandon()
            else:
                self._send(OpenSlot(job, future.result()))

        if loading.done():
            loaded(loading)
        else:
            loading.add_done_callback(loaded)

    # --- the worker ----------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        loop = self._loop
        assert loop is not None
        ready = self._ready = loop.create_future()
        # A failed load is told to whoever awaits `start`; nobody may, after a restart.
        ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        kind = ThreadWorker if self.settings.threaded else LoopWorker
        worker = self._worker = kind(self._load, self.settings, loop, self._receive, self._replace_worker)
        self._limit(ready, "the model")

        def loaded(model: LatentModel[Any] | None, error: Exception | None) -> None:
            if worker is not self._worker or ready.done():
                return
            if error is not None:
                ready.set_exception(error)
                return
            assert model is not None
            self._model, self._spec = model, model.spec
            ready.set_result(None)

        worker.start(loaded)

    def _send(self, command: Command) -> None:
        if self._worker is not None:
            self._worker.send(command)

    def _cancel_slot(self, slot: Any) -> None:  # noqa: ANN401 - what a slot is only the model knows
        if self._model is not None:
            self._model.cancel(slot)

    def _receive(self, worker: Worker, outcomes: list[Outcome]) -> None:
        if worker is not self._worker:
            return
        for outcome in outcomes:
            session = self._sessions.get(id(outcome.job))
            if session is None:
                continue
            try:
                session.receive(outcome)
            except Exception as error:  # One session's books must not cost the others their audio.
                session.fail(ModelError(f"the model's answer makes no sense: {type(error).__name__}: {error}"))
                self._send(Cancel(outcome.job))

    def _count_end(self, session: Session) -> None:
        self._failed += session.state is SessionState.FAILED
        self._interrupted += session.state is SessionState.INTERRUPTED

    def _forget(self, session: Session) -> None:
        """The model holds nothing of it any more."""
        self._sessions.pop(session.key, None)

    # --- health --------------------------------------------------------------------------------------------------

    def _check_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise SessionStateError("an engine belongs to the event loop that started it: start one for each loop")

    def _check_health(self) -> None:
        if self._ready is not None and self._ready.done() and (error := self._ready.exception()) is not None:
            raise ModelError(f"the engine has no model any more: {error}") from error

    def _watch_model(self) -> None:
        if self._watch is None and self._sessions and self.settings.threaded and self._closing is None:
            assert self._loop is not None
            self._watch = self._loop.call_later(self.settings.step_timeout_s / 4, self._look_at_model)

    def _look_at_model(self) -> None:
        self._watch = None
        worker, limit_s = self._worker, self.settings.step_timeout_s
        if worker is not None and worker.stuck_s > limit_s:
            self._replace_worker(
                worker, f"a model call took longer than {limit_s:g} s (raise step_timeout_s if the machine is slow)"
            )
        self._watch_model()

    def _replace_worker(self, worker: Worker, cause: str) -> None:
        """Gives up a thread that hangs, or that the model took down: it cannot be mended, only left behind."""
        if worker is not self._worker:
            return
        worker.abandon()
        if worker.stepper is not None:
            self._steps_before += worker.stepper.steps
            self._busy_before_s += worker.stepper.busy_s
        self._restarts += 1
        self._model = None
        self._voices.clear()
        if self._restarts > self.settings.max_restarts:
            error = ModelError(f"the model was lost {self._restarts} times, last because {cause}: start a new engine")
            assert self._loop is not None
            self._worker, self._ready = None, self._loop.create_future()
            self._ready.set_exception(error)
            self._ready.exception()
        else:
            self._start_worker()
        for session in list(self._sessions.values()):
            session.fail(ModelError(f"{cause}: the turn ended and the model is being loaded again"))
            session.abandon()


def _check_language(language: str | None, spec: ModelSpec) -> None:
    if language is None or not spec.languages:
        return
    if language.split("-")[0].lower() not in spec.languages:
        spoken = ", ".join(spec.languages)
        raise ValueError(f"{spec.name} speaks {spoken}, not {language!r}: load a model or voice for that language")
