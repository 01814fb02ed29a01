"""From sessions to a transport that plays whatever it is given: who speaks, when a piece is due, when a word sounds.

Owns the lead over the playout and the order of utterances. Knows nothing of Pipecat: an `Outlet` takes the audio.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from voxagent.ledger import Heard, Word
from voxagent.model import Pcm
from voxagent.pcm import Resampler, to_int16
from voxagent.phrases import Phrase
from voxagent.session import AudioChunk
from voxagent.turn import Session
from voxagent_pipecat.timeline import Timeline

_log = logging.getLogger(__name__)

_FRAME_S = 0.04
# Less silence than this between two pieces is the granularity of the event loop, not an underrun.
_GAP_S = 0.005
# Sleeping for less would turn in place where rounding leaves a rest that does not move the clock.
_TICK_S = 0.001
_PADDING = ""
# A transport lets frames without a time pass when the block before them is written, up to 50 ms before it has
# sounded. A word that came later than the start of the next reply would be written down as part of it.
_EARLY_S = 0.06


class Outlet(Protocol):
    """What takes the audio of utterances."""

    async def hand_audio(self, utterance: Utterance, pcm: bytes) -> None:
        """Takes 20 to 40 ms of 16-bit mono PCM (less at the end of a phrase)."""
        ...

    async def hand_word(self, utterance: Utterance, word: Word, seconds: float) -> None:
        """Takes a word that ends `seconds` after the utterance began to sound."""
        ...

    async def set_aside(self, utterance: Utterance) -> None:
        """The utterance waits for text, and lets those behind it speak in the meantime."""
        ...

    async def reopen(self, utterance: Utterance) -> None:
        """The utterance that was set aside goes on."""
        ...


class SpeechObserver(Protocol):
    """Who wants to know what is said, as it is made and as it is heard. Must not block."""

    def phrase(self, key: str, phrase: Phrase, seed: int) -> None:
        """A phrase's first audio is there; `seed` is its session's."""
        ...

    def chunk(self, key: str, chunk: AudioChunk) -> None:
        """Audio was made and taken."""
        ...

    def word(self, key: str, word: Word) -> None:
        """A word was heard to its end."""
        ...


@dataclass(slots=True, eq=False)
class Utterance:
    """One thing to say: a session, and how far it got.

    Attributes:
        key: Pipecat's context id.
        session: None when no session could be opened.
        interruptible: Whether an interruption ends it.
        cut: It was interrupted.
        cut_short: It was cut, and by no interruption that Pipecat knows of.
        failed: It did not say everything it was given.
        ended: No more text comes, or it was cut.
        finished: The next one may speak.
        aside: It let others speak while it waits for text.
        turn: Set when those before it have spoken.
        task: Runs `Mouth.speak`.
        began_s: When Pipecat takes its audio to begin, on the event loop's clock.
        after_s: When the last word of those before ends, on the same clock.
        words_handed: Words given to the outlet.
        words_heard: Words the observers were told of.
        sounded: Something of it was handed over.
        hungry: It waited for the model, not for text.
        busy: A chunk is being handed over.
        run_samples: Handed over since the outlet last began.
        resampler: From the model's rate to the outlet's.
    """

    key: str
    session: Session | None
    interruptible: bool
    cut: bool = False
    cut_short: bool = False
    failed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    aside: bool = False
    turn: asyncio.Event | None = None
    task: asyncio.Task[None] | None = None
    began_s: float | None = None
    after_s: float = 0.0
    words_handed: int = 0
    words_heard: int = 0
    sounded: bool = False
    hungry: bool = False
    busy: bool = False
    run_samples: int = 0
    resampler: Resampler | None = None

    @property
    def waits_for_text(self) -> bool:
        """Whether everything it was told so far was handed over."""
        return self.session is not None and self.session.starved and not self.busy


class Mouth:
    """Hands the audio of utterances over, one after another, never more than `lead_s` before it sounds.

    Args:
        outlet: Where to.
        sample_rate: What the outlet takes, Hz.
        lead_s: How far ahead of the playout audio may be handed over.
        now: The event loop's clock.
    """

    def __init__(self, outlet: Outlet, sample_rate: int, lead_s: float, now: Callable[[], float]) -> None:
        self.observers: list[SpeechObserver] = []
        self.underruns = 0
        self.underrun_s = 0.0
        self.peak_lead_s = 0.0
        self._outlet = outlet
        self._rate = sample_rate
        self._block = round(sample_rate * _FRAME_S)
        self._lead_s = lead_s
        self._now = now
        self._timeline = Timeline()
        self._last: Utterance | None = None
        self._last_word_s = self._last_firm_word_s = 0.0

    @property
    def hungry(self) -> bool:
        """Whether somebody who speaks waits for the model."""
        return self._last is not None and self._last.hungry

    def follow(self) -> None:
        """The transport tells from now on what it plays, with `sounded`."""
        self._timeline.follow()

    def sounded(self, seconds: float) -> None:
        """So much more of what was handed over was played."""
        self._timeline.sounded(seconds, self._now())

    async def queue(self, utterance: Utterance) -> None:
        """Lets an utterance speak after those before it; one that only waits for text steps aside."""
        before, self._last = self._last, utterance
        # The event, not the utterance: that one may queue again, behind this one, before this one has looked.
        utterance.turn = before.finished if before is not None else None
        utterance.began_s = None
        utterance.aside, utterance.finished, utterance.run_samples = False, asyncio.Event(), 0
        if before is not None and self._may_step_aside(before):
            await self._step_aside(before)

    async def speak(self, utterance: Utterance) -> None:
        """Speaks until the session has nothing more to say.

        Raises:
            ModelError: The model failed; what it made before was handed over.
        """
        session = utterance.session
        if session is None:
            return
        while (chunk := await self._next(utterance, session)) is not None:
            utterance.busy = True
            if utterance.aside:
                # It was about to be told more when it stepped aside.
                await self._outlet.reopen(utterance)
                await self.queue(utterance)
            await self._turn_of(utterance)
            await self._hand(utterance, session, chunk)
        await self._turn_of(utterance)
        await self.settle(utterance)

    async def _step_aside(self, utterance: Utterance) -> None:
        """The utterance has said all it was told; whoever is next need not wait for its text."""
        await self.settle(utterance)
        utterance.aside = True
        utterance.finished.set()
        await self._outlet.set_aside(utterance)

    async def settle(self, utterance: Utterance) -> None:
        """Hands over what the resampler held back, and words that were not timed."""
        session = utterance.session
        if utterance.cut or session is None or utterance.resampler is None:
            return
        tail = utterance.resampler.flush()
        if len(tail) and utterance.sounded:
            await self._hand_piece(utterance, tail)
        while utterance.words_handed < len(session.words):
            await self._hand_word(utterance, session.words[utterance.words_handed], self._timeline.end_s)

    async def silence(self, utterance: Utterance) -> None:
        """Waits until the utterance has sounded."""
        left_s = self._left_s(utterance)
        while left_s > 0 and not utterance.cut:
            await asyncio.sleep(max(left_s, _TICK_S))
            left_s = self._left_s(utterance)
        if utterance.cut or utterance.session is None:
            return
        if utterance.failed:
            self.note_heard(utterance)
        else:
            utterance.session.heard(utterance.session.stats.made_samples)
            self._tell_words(utterance, utterance.session)

    def note_start(self, utterance: Utterance) -> None:
        """Pipecat takes the utterance to begin now: it counts the seconds of its words from here."""
        utterance.began_s = max(self._now(), utterance.after_s)

    def note_heard(self, utterance: Utterance) -> None:
        """Tells the session how far it was heard."""
        if utterance.session is not None and utterance.sounded:
            seconds = self._timeline.sounded_s(utterance.key, self._now())
            utterance.session.heard(math.ceil(seconds * utterance.session.spec.sample_rate))
            self._tell_words(utterance, utterance.session)

    def cut(self, utterances: Collection[Utterance]) -> None:
        """Ends utterances now; whatever of them has not sounded never will."""
        for utterance in utterances:
            self.note_heard(utterance)
            utterance.cut = True
            if utterance.session is not None:
                utterance.session.interrupt()
            utterance.ended.set()
            if utterance.turn is None or utterance.turn.is_set():
                utterance.finished.set()  # Otherwise those before still speak, and `pass_on` sees to it.
        self._timeline.drop({_PADDING, *(utterance.key for utterance in utterances)}, self._now())
        self._last_word_s = self._last_firm_word_s

    def forget(self, utterance: Utterance) -> None:
        """The utterance is over."""
        self._timeline.forget(utterance.key)
        if self._last is utterance and utterance.finished.is_set():
            self._last = None

    async def pass_on(self, utterance: Utterance) -> None:
        """Lets the next one speak, once those before have: also when this one was cut, or had nothing to say."""
        await self._those_before(utterance)
        utterance.finished.set()

    def heard(self, utterance: Utterance) -> Heard | None:
        """What was heard of it; None when it had nothing to say."""
        session = utterance.session
        return session.transcript() if session is not None and session.stats.characters else None

    # --- speaking ------------------------------------------------------------------------------------------------

    async def _next(self, utterance: Utterance, session: Session) -> AudioChunk | None:
        utterance.busy = False
        if (chunk := session.take()) is not None:
            return chunk
        utterance.hungry = not session.starved
        if self._last is not utterance and self._may_step_aside(utterance):
            await self._step_aside(utterance)
        try:
            quiet = session.starved and not utterance.aside and utterance.run_samples % self._block
            if quiet and (chunk := await self._before_quiet(utterance, session)) is not None:
                return chunk
            return await anext(session)
        except StopAsyncIteration:
            return None

    async def _before_quiet(self, utterance: Utterance, session: Session) -> AudioChunk | None:
        """Waits for audio until the playout runs dry, then fills up the last block with silence.

        Pipecat's output holds an incomplete block back, up to 40 ms of the last word, until more comes.
        """
        try:
            async with asyncio.timeout(max(self._timeline.ahead_s(self._now()) - 2 * _FRAME_S, _TICK_S)):
                return await anext(session)
        except TimeoutError:
            if utterance.aside or utterance.cut:
                return None
            missing = -utterance.run_samples % self._block
            utterance.run_samples += missing
            self._timeline.put(_PADDING, missing / self._rate, self._now())
            await self._outlet.hand_audio(utterance, bytes(2 * missing))
            return None

    def _may_step_aside(self, utterance: Utterance) -> bool:
        return utterance.sounded and utterance.waits_for_text and not utterance.finished.is_set()

    async def _turn_of(self, utterance: Utterance) -> None:
        """Waits for those before, unless it was cut."""
        if not utterance.cut:
            await self._those_before(utterance)

    async def _those_before(self, utterance: Utterance) -> None:
        """They may be others after a while aside."""
        while (turn := utterance.turn) is not None:
            await turn.wait()
            if utterance.turn is turn:
                utterance.turn = None

    def _tell_words(self, utterance: Utterance, session: Session) -> None:
        words, position = session.words, session.position.samples
        while utterance.words_heard < len(words) and words[utterance.words_heard].end_sample <= position:
            word = words[utterance.words_heard]
            self._observe(partial(_tell_word, utterance.key, word))
            utterance.words_heard += 1

    async def _hand(self, utterance: Utterance, session: Session, chunk: AudioChunk) -> None:
        if chunk.first:
            self._observe(lambda observer: observer.phrase(utterance.key, chunk.phrase, session.seed))
        self._observe(lambda observer: observer.chunk(utterance.key, chunk))
        if utterance.resampler is None:
            utterance.resampler = Resampler(chunk.sample_rate, self._rate)
        pcm = utterance.resampler.push(chunk.pcm)
        pieces = max(1, math.ceil(len(pcm) / (self._rate * _FRAME_S))) if len(pcm) else 0
        for index in range(pieces):
            piece = pcm[len(pcm) * index // pieces : len(pcm) * (index + 1) // pieces]
            await self._room(utterance, len(piece) / self._rate)
            if utterance.cut:
                return
            start_s = await self._hand_piece(utterance, piece)
            start = chunk.start_sample + len(chunk.pcm) * index // pieces
            end = chunk.start_sample + len(chunk.pcm) * (index + 1) // pieces
            await self._hand_words(utterance, session, start, end, start_s)
            self.note_heard(utterance)

    def _observe(self, tell: Callable[[SpeechObserver], None]) -> None:
        """An observer that fails must not end the speech, nor the sender that tells of words."""
        for observer in self.observers:
            try:
                tell(observer)
            except Exception:
                _log.exception("an observer of the speech failed")

    async def _room(self, utterance: Utterance, piece_s: float) -> None:
        while not utterance.cut and (over_s := self._timeline.ahead_s(self._now()) + piece_s - self._lead_s) > 0:
            await asyncio.sleep(max(over_s, _TICK_S))
            self.note_heard(utterance)

    async def _hand_piece(self, utterance: Utterance, pcm: Pcm) -> float:
        now_s = self._now()
        gap_s = self._timeline.dry_s(now_s)
        if utterance.sounded and utterance.hungry and gap_s > _GAP_S:
            self.underruns += 1
            self.underrun_s += gap_s
        utterance.hungry = False
        utterance.sounded = True
        utterance.run_samples += len(pcm)
        start_s = self._timeline.put(utterance.key, len(pcm) / self._rate, now_s)
        self.peak_lead_s = max(self.peak_lead_s, self._timeline.ahead_s(now_s))
        if utterance.began_s is None:
            utterance.after_s = self._last_word_s
            self.note_start(utterance)
        await self._outlet.hand_audio(utterance, to_int16(pcm).tobytes())
        return start_s

    async def _hand_words(self, utterance: Utterance, session: Session, start: int, end: int, start_s: float) -> None:
        """Hands over the words that are as good as heard within a piece: its samples `start` to `end`."""
        words, rate = session.words, session.spec.sample_rate
        while utterance.words_handed < len(words):
            at = self._heard_at(words[utterance.words_handed], rate)
            if at > end:
                return
            await self._hand_word(utterance, words[utterance.words_handed], start_s + max(0, at - start) / rate)

    async def _hand_word(self, utterance: Utterance, word: Word, at_s: float) -> None:
        utterance.words_handed += 1
        began_s = utterance.began_s if utterance.began_s is not None else at_s
        self._last_word_s = max(self._last_word_s, at_s)
        if not utterance.interruptible:
            self._last_firm_word_s = self._last_word_s
        await self._outlet.hand_word(utterance, word, max(0.0, self._last_word_s - began_s))

    def _left_s(self, utterance: Utterance) -> float:
        silent_at_s = self._timeline.silent_at_s(utterance.key)
        if silent_at_s is None:
            return 0.0
        left_s = silent_at_s - self._now()
        # Frames are handed over whole: the last one comes later than its samples alone would.
        return max(left_s, _FRAME_S / 2) if self._timeline.followed else left_s

    def _heard_at(self, word: Word, rate: int) -> int:
        """The sample at which a word counts as said: its end, or almost where the transport cannot be asked."""
        if self._timeline.followed:
            return word.end_sample
        return max(word.start_sample, word.end_sample - round(_EARLY_S * rate))


def _tell_word(key: str, word: Word, observer: SpeechObserver) -> None:
    observer.word(key, word)
