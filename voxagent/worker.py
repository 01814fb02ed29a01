"""Drives a stepper: on a thread of its own, or on the event loop under virtual time.

The one place where a model call meets a thread. Commands go in by a queue, outcomes come out by one
`call_soon_threadsafe` hop a step.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

from voxagent.errors import ModelError
from voxagent.model import LatentModel, SpeechOptions
from voxagent.phrases import Phrase
from voxagent.speakable import prepare, speakable
from voxagent.stepper import Command, Outcome, Stepper

Load = Callable[[], LatentModel[Any]]
Loaded = Callable[[LatentModel[Any] | None, Exception | None], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine behaves.

    Attributes:
        max_ahead_ms: Audio the model may make before it is played. More rides out longer stalls, less is wasted on
            an interruption. 600 covers the longest call of the embedded voice (a 40-word phrase, 170 ms) several
            times over.
        step_timeout_s: A model call that takes longer counts as hung: its sessions fail, and the model is loaded
            afresh on a new thread.
        load_timeout_s: Loading a model or a voice that takes longer counts as failed.
        max_restarts: After this many, the engine refuses new sessions.
        warm_up: Spoken silently once after loading, so that the first turn is as fast as the others; empty for none.
        threaded: False steps on the event loop itself, for tests under virtual time.
    """

    max_ahead_ms: float = 600.0
    step_timeout_s: float = 10.0
    load_timeout_s: float = 120.0
    max_restarts: int = 3
    warm_up: str = "Ready when you are."
    threaded: bool = True

    def __post_init__(self) -> None:
        for field in ("max_ahead_ms", "step_timeout_s", "load_timeout_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"EngineSettings.{field} must be positive, not {getattr(self, field)}")


class Worker(Protocol):
    """What drives the stepper."""

    stepper: Stepper | None

    def start(self, loaded: Loaded) -> None:
        """Loads the model and tells on the event loop what came of it."""
        ...

    def send(self, command: Command) -> None:
        """Takes a command; from any thread."""
        ...

    @property
    def stuck_s(self) -> float:
        """How long the model call in progress has taken; 0 when idle."""
        ...

    def abandon(self) -> None:
        """Whatever it still says is not wanted."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Ends it after the model call in progress, or leaves it behind after `timeout_s`."""
        ...


Receive = Callable[[Worker, list[Outcome]], None]
Died = Callable[[Worker, str], None]


class _Stop:
    """The last command."""


class ThreadWorker:
    """A thread that owns the model.

    A daemon, so that a hung model cannot keep the process alive; `atexit` gives every other one the time to end its
    call, because an interpreter that goes away under a running model aborts.
    """

    def __init__(
        self, load: Load, settings: EngineSettings, loop: asyncio.AbstractEventLoop, receive: Receive, died: Died
    ) -> None:
        self.stepper: Stepper | None = None
        self._load = load
        self._settings = settings
        self._loop = loop
        self._receive = receive
        self._died = died
        self._commands: queue.SimpleQueue[Command | _Stop] = queue.SimpleQueue()
        self._abandoned = False
        self._finished = threading.Event()

    def start(self, loaded: Loaded) -> None:
        _workers.add(self)
        _watch_exit()
        threading.Thread(target=self._run, args=(loaded,), name="voxagent-engine", daemon=True).start()

    def send(self, command: Command) -> None:
        self._commands.put(command)

    @property
    def stuck_s(self) -> float:
        since = self.stepper.busy_since if self.stepper is not None else None
        return time.perf_counter() - since if since is not None else 0.0

    def abandon(self) -> None:
        self._abandoned = True
        self._commands.put(_Stop())

    async def stop(self, timeout_s: float) -> None:
        self._commands.put(_Stop())
        ended = self._loop.create_future()
        on_a_thread(self._loop, ended, lambda: self._finished.wait(timeout_s))
        await ended

    def end(self) -> None:
        """The process ends: cuts the call in progress short, and does not wait."""
        if self.stepper is not None:
            self.stepper.cancel_all()
        self.abandon()

    def wait(self, timeout_s: float) -> None:
        """Waits for the thread's end."""
        self._finished.wait(timeout_s)

    def _run(self, loaded: Loaded) -> None:
        try:
            stepper = self._loaded(loaded)
            if stepper is not None:
                self._serve(stepper)
        except BaseException as error:
            # Not a failed call, which the stepper catches: the loop itself broke. Nobody may wait for this thread.
            cause = f"the engine's thread ended: {type(error).__name__}: {error}"
            self._post(lambda: self._died(self, cause))
        finally:
            self._finished.set()

    def _loaded(self, loaded: Loaded) -> Stepper | None:
        stepper, error = _load_stepper(self._load, self._settings)
        self.stepper = stepper
        self._post(lambda: loaded(stepper.model if stepper else None, error))
        return stepper

    def _serve(self, stepper: Stepper) -> None:
        more = False
        while not self._abandoned:
            for command in self._next_commands(wait=not more):
                if isinstance(command, _Stop):
                    self._abandoned = True
                    break
                stepper.apply(command)
            else:
                outcomes, more = stepper.advance()
                if outcomes and not self._abandoned:
                    self._post(partial(self._receive, self, outcomes))
        stepper.close()

    def _next_commands(self, wait: bool) -> list[Command | _Stop]:
        commands: list[Command | _Stop] = []
        try:
            commands.append(self._commands.get(block=wait))
            while True:
                commands.append(self._commands.get_nowait())
        except queue.Empty:
            return commands

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # The loop is closed: nobody listens any more.
            self._abandoned = True


class LoopWorker:
    """Steps on the event loop, one model call a turn of the loop. For virtual time, which outruns threads."""

    stuck_s = 0.0

    def __init__(
        self, load: Load, settings: EngineSettings, loop: asyncio.AbstractEventLoop, receive: Receive, died: Died
    ) -> None:
        self.stepper: Stepper | None = None
        self._load = load
        self._settings = settings
        self._loop = loop
        self._receive = receive
        self._died = died
        self._scheduled = False

    def start(self, loaded: Loaded) -> None:
        self.stepper, error = _load_stepper(self._load, self._settings, self._loop.time)
        loaded(self.stepper.model if self.stepper else None, error)

    def send(self, command: Command) -> None:
        if self.stepper is not None:
            self.stepper.apply(command)
            self._schedule()

    def abandon(self) -> None:
        self.stepper = None

    async def stop(self, timeout_s: float) -> None:
        self._advance()
        self.stepper = None

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._scheduled = False
        if self.stepper is None:
            return
        try:
            outcomes, more = self.stepper.advance()
        except Exception as error:
            self._died(self, f"the engine's step broke: {type(error).__name__}: {error}")
            return
        if more:
            self._schedule()
        if outcomes:
            self._receive(self, outcomes)


def on_a_thread(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], call: Callable[[], T]) -> None:
    """Runs a slow call on a thread of its own; never on the default executor, where Opus is encoded."""

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = call()
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # The loop is closed: nobody waits any more.

    thread = threading.Thread(target=run, name="voxagent-load", daemon=True)
    _loading.add(thread)
    _watch_exit()
    thread.start()


def _load_stepper(
    load: Load, settings: EngineSettings, clock: Callable[[], float] = time.perf_counter
) -> tuple[Stepper | None, Exception | None]:
    try:
        model = load()
        stepper = Stepper(model, settings.max_ahead_ms / 1000, clock)
        for language in model.spec.languages or (None,):
            prepare(language)
        if settings.warm_up:
            _warm_up(model, settings.warm_up)
    except (ValueError, ModelError) as error:
        return None, error
    except BaseException as error:
        failure = ModelError(f"the model could not be loaded: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return None, failure
    return stepper, None


def _warm_up(model: LatentModel[Any], text: str) -> None:
    """Speaks a phrase into the void: the first call of every kernel is slower than the rest."""
    slot = model.open(model.load_voice(None), SpeechOptions(), 0)
    try:
        while not model.prefill(slot, Phrase(text, 0, speakable(text), "end", final=True)):
            pass
        last = False
        while not last:
            step = model.step([slot], [0.0])[0]
            if isinstance(step, Exception):
                raise step
            last = step.last
            if step.latents is not None:
                model.decode([slot], [step.latents])
    finally:
        model.close(slot)


_workers: weakref.WeakSet[ThreadWorker] = weakref.WeakSet()
_loading: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_EXIT_S = 4.0


@lru_cache(maxsize=1)
def _watch_exit() -> None:
    """Once a process: an interpreter that goes away under a running model or a load aborts."""
    atexit.register(_end_threads)


def _end_threads() -> None:
    deadline_s = time.monotonic() + _EXIT_S
    workers = list(_workers)
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.wait(max(0.0, deadline_s - time.monotonic()))
    for thread in list(_loading):
        if thread.ident is not None:
            thread.join(max(0.0, deadline_s - time.monotonic()))
