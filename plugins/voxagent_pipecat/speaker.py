"""The utterances of one service, from the opening of a session to the moment their last sample has sounded.

Owns who is alive and how each ends: spoken, cut or failed. Knows nothing of Pipecat: `Contexts` stands for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from voxagent.errors import EngineFull, ModelError, SessionStateError
from voxagent.ledger import Heard
from voxagent.session import SessionState
from voxagent.turn import Session
from voxagent_pipecat.mouth import Mouth, Outlet, SpeechObserver, Utterance

_OPENING_ERRORS = (EngineFull, ModelError, SessionStateError, ValueError)


@dataclass(frozen=True, slots=True)
class SpeechStats:
    """The service's counters so far.

    Attributes:
        turns: Utterances that were given text.
        interrupted: Utterances that were cut.
        failed: Utterances that could not be spoken, or not to their end.
        underruns: Times the playout ran dry although there was text to speak.
        underrun_ms: How long in all.
        peak_lead_ms: Most audio that ever lay between us and the listener.
        stale_texts: Pieces of text of an interrupted reply that came after the interruption.
    """

    turns: int = 0
    interrupted: int = 0
    failed: int = 0
    underruns: int = 0
    underrun_ms: float = 0.0
    peak_lead_ms: float = 0.0
    stale_texts: int = 0


@dataclass(frozen=True, slots=True)
class Spoken:
    """How an utterance ended.

    Attributes:
        key: Pipecat's context id.
        heard: What was heard of it.
        interrupted: It was cut.
    """

    key: str
    heard: Heard
    interrupted: bool


class Contexts(Outlet, Protocol):
    """Pipecat's audio contexts, as utterances see them."""

    async def end_context(self, key: str, *, unspoken: bool = False) -> None:
        """Closes the context; `unspoken` when not all of its text was said."""
        ...

    async def report(self, error: Exception, *, dead: bool = False) -> None:
        """Tells of a failure; `dead` when nothing will ever be spoken again."""
        ...

    async def tell(self, spoken: Spoken) -> None:
        """An utterance is over."""
        ...

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that ends with the service."""
        ...


class Speaker:
    """Speaks utterances, each in a task of its own.

    Args:
        contexts: Where the audio goes, and who is told.
        open_session: Opens a session with the settings of the moment.
        sample_rate: Of the audio, Hz.
        lead_s: How far ahead of the playout audio may be handed over.
    """

    def __init__(
        self, contexts: Contexts, open_session: Callable[[], Session], sample_rate: int, lead_s: float
    ) -> None:
        self._contexts = contexts
        self._open_session = open_session
        self._mouth = Mouth(contexts, sample_rate, lead_s, asyncio.get_running_loop().time)
        self._utterances: dict[str, Utterance] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = self._cuts = self._failures = 0
        self._alone = False
        self._short: set[str] = set()

    def observe(self, observers: list[SpeechObserver]) -> None:
        """Tells the observers, those that are added later too."""
        self._mouth.observers = observers

    @property
    def hungry(self) -> bool:
        """Whether somebody who speaks waits for the model."""
        return self._mouth.hungry

    def follow(self) -> None:
        """The transport tells from now on what it plays."""
        self._mouth.follow()

    def handed(self, key: str, seconds: float) -> None:
        """So much more of a context's audio was handed to the network."""
        if key in self._utterances:
            self._mouth.sounded(seconds)
            self._mouth.note_heard(self._utterances[key])

    def hung_up(self) -> None:
        """Nobody listens any more: what has not sounded never will, and text to come goes unspoken."""
        self._alone = True
        self._cut_short(list(self._utterances.values()))

    def silenced(self) -> None:
        """What was on its way was dropped, and no interruption has come to say so."""
        self._cut_short([u for u in self._utterances.values() if u.interruptible and u.sounded])

    def stats(self, stale_texts: int) -> SpeechStats:
        """The counters so far."""
        mouth = self._mouth
        return SpeechStats(
            turns=self._turns,
            interrupted=self._cuts,
            failed=self._failures,
            underruns=mouth.underruns,
            underrun_ms=1000 * mouth.underrun_s,
            peak_lead_ms=1000 * mouth.peak_lead_s,
            stale_texts=stale_texts,
        )

    def __contains__(self, key: str) -> bool:
        return key in self._utterances

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """Those that still run."""
        return tuple(self._tasks)

    def prepare(self, key: str, interruptible: bool) -> None:
        """Opens a session before there is text. An error can wait until there is: it may have passed by then."""
        if key not in self._utterances and not self._alone:
            try:
                self._open(key, interruptible)
            except _OPENING_ERRORS:
                return

    async def utterance(self, key: str, interruptible: bool) -> Utterance:
        """The utterance of a context; without a session when none can be opened."""
        if key in self._utterances:
            return self._utterances[key]
        if not self._alone and key not in self._short:
            try:
                return self._open(key, interruptible)
            except _OPENING_ERRORS as error:
                await self._contexts.report(error, dead=isinstance(error, (ModelError, SessionStateError)))
        failed = self._utterances[key] = Utterance(key, None, interruptible, failed=True)
        return failed

    async def say(self, utterance: Utterance, text: str, *, flush: bool) -> None:
        """Speaks text; with `flush` at once, otherwise when `end_input` tells that it was the last."""
        session = utterance.session
        if session is not None and not session.state.over:
            session.push_text(text)
            if flush:
                session.flush()
        if utterance.task is None or utterance.aside:
            await self._queue(utterance)

    def expect(self, key: str, text: str) -> None:
        """This is probably what `say` will be told next: the model may take it in while the next token comes."""
        utterance = self._utterances.get(key)
        if utterance is not None and utterance.session is not None:
            utterance.session.expect(text)

    def end_input(self, key: str) -> bool:
        """No more text comes. Returns whether a task will end the context."""
        utterance = self._utterances.get(key)
        if utterance is None:
            return key in self._short
        utterance.ended.set()
        if utterance.session is not None:
            utterance.session.end_input()
        if utterance.task is None:
            del self._utterances[key]
        return utterance.task is not None

    def end_all_input(self) -> None:
        """No more text comes at all."""
        for key in list(self._utterances):
            self.end_input(key)

    def cut(self, keys: Iterable[str] | None = None, *, all_of_them: bool = False) -> list[Spoken]:
        """Ends utterances now, without waiting for anything.

        Args:
            keys: Which; by default those that an interruption may end.
            all_of_them: Every one.

        Returns:
            What was heard of each.
        """
        living = self._utterances.values()
        if keys is None:
            victims = [u for u in living if u.interruptible or all_of_them]
        else:
            victims = [self._utterances[key] for key in keys if key in self._utterances]
        self._mouth.cut(victims)
        spoken = [self._over(utterance, interrupted=True) for utterance in victims]
        return [one for one in spoken if one is not None]

    def note_start(self, key: str) -> None:
        """Pipecat counts the seconds of the context's words from now."""
        if key in self._utterances:
            self._mouth.note_start(self._utterances[key])

    def runway_s(self, key: str) -> float:
        """Seconds of speech that the context still has to play, phrases not yet made included."""
        utterance = self._utterances.get(key)
        if utterance is None or utterance.session is None:
            return 0.0
        self._mouth.note_heard(utterance)
        return utterance.session.runway_s

    def _open(self, key: str, interruptible: bool) -> Utterance:
        session = self._open_session()
        # From now on only what has sounded counts as heard, not what was taken.
        session.heard(0)
        utterance = self._utterances[key] = Utterance(key, session, interruptible)
        return utterance

    async def _queue(self, utterance: Utterance) -> None:
        await self._mouth.queue(utterance)
        if utterance.task is None:
            self._turns += 1
            utterance.task = self._contexts.create_task(self._speak(utterance))
            self._tasks.add(utterance.task)
            utterance.task.add_done_callback(self._tasks.discard)

    async def _speak(self, utterance: Utterance) -> None:
        session = utterance.session
        try:
            await self._mouth.speak(utterance)
            utterance.failed = session is None or session.state is not SessionState.ENDED
        except Exception as error:
            utterance.failed = True
            await self._contexts.report(error)
        if utterance.failed:
            # The text still to come goes unspoken; the context stays until then, so that nothing overtakes it.
            await utterance.ended.wait()
        if utterance.cut:
            if utterance.cut_short:
                await self._contexts.end_context(utterance.key, unspoken=True)
            await self._mouth.pass_on(utterance)
            return
        self._failures += utterance.failed
        if not utterance.aside:
            await self._contexts.end_context(utterance.key, unspoken=utterance.failed)
        await self._mouth.pass_on(utterance)
        await self._mouth.silence(utterance)
        if not utterance.cut and (spoken := self._over(utterance, interrupted=False)) is not None:
            await self._contexts.tell(spoken)

    def _cut_short(self, utterances: list[Utterance]) -> None:
        """Cuts what no interruption cuts: the contexts are ours to end, and the news ours to tell."""
        for utterance in utterances:
            utterance.cut_short = True
            # What is still to come of it goes unspoken: nobody wants to hear a reply from its middle.
            self._short.add(utterance.key)
        if spoken := self.cut([utterance.key for utterance in utterances]):
            self._contexts.create_task(self._tell(spoken))

    async def _tell(self, spoken: list[Spoken]) -> None:
        for one in spoken:
            await self._contexts.tell(one)

    def _over(self, utterance: Utterance, *, interrupted: bool) -> Spoken | None:
        self._utterances.pop(utterance.key, None)
        heard = self._mouth.heard(utterance)
        self._mouth.forget(utterance)
        if heard is None:
            return None
        self._cuts += interrupted
        return Spoken(utterance.key, heard, interrupted)
