"""`Session`: one turn as its caller holds it, on the event loop. Text in, chunks out, interrupt as a signal.

Nothing here betrays where the engine runs: a session only sends commands and receives outcomes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from voxagent.errors import ModelError, SessionStateError
from voxagent.ledger import Heard, Ledger, Word
from voxagent.model import ModelSpec
from voxagent.phrases import Phrase, PhraseSplitter, speech_seconds
from voxagent.session import AudioChunk, Position, SessionEvent, SessionState, transition
from voxagent.stats import SessionStats
from voxagent.stepper import Cancel, Chunk, Command, Ended, EndInput, Expect, Failed, Feed, Job, Outcome, Released, Wake

# Below this much audio (made or certain to be made) the splitter is asked on every report whether to let go of text.
_LOW_RUNWAY_S = 1.0
# A timer that fires early must not spin.
_MIN_TIMER_S = 0.02
# Cutting text costs about 10 µs a character: a whole page at once would hold the event loop for a tenth of a second.
_SLICE_CHARACTERS = 250


class _Mark(Enum):
    """What stands between pieces of text that wait to be cut."""

    FLUSH = "flush"
    END = "end"


class Session:
    """One turn of speech. Made by `Engine.open`; belongs to the event loop that opened it.

    Iterate over it for the audio, or poll `take`. A consumer that paces itself reports what it handed on with
    `heard`; otherwise taking counts as hearing. Either bounds how far the model works ahead.
    """

    def __init__(
        self,
        job: Job,
        spec: ModelSpec,
        splitter: PhraseSplitter,
        send: Callable[[Command], None],
        cancel_slot: Callable[[Any], None],
        on_over: Callable[[Session], None],
        on_free: Callable[[Session], None],
    ) -> None:
        self.spec = spec
        self.state = SessionState.WAITING
        self._job = job
        self._splitter = splitter
        self._send = send
        self._cancel_slot = cancel_slot
        self._on_over = on_over
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._ledger = Ledger(spec.sample_rate)
        self._chunks: deque[AudioChunk] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._freed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._error: ModelError | None = None
        self._paused = self._paced = False
        self._inbox: deque[str | _Mark] = deque()
        self._input_closed = False
        self._sent: deque[float] = deque()
        self._rest_s = 0.0
        self._phrase_start = 0
        self._made = self._taken = self._played = self._wasted = self._peak_ahead = 0
        self._characters = self._phrases = self._chunk_count = 0
        self._reason = ""
        self._text_at_s: float | None = None
        self._ttfb_ms: float | None = None
        self._interrupted_at_s = 0.0
        self._cancel_ms: float | None = None

    # --- text in -------------------------------------------------------------------------------------------------

    def push_text(self, delta: str) -> None:
        """Takes the next piece of written text, cut anywhere.

        Text for a turn that was interrupted or failed is ignored: an LLM may go on for a moment.

        Raises:
            SessionStateError: After `end_input`; open a new session for the next turn.
        """
        self._check_open("text")
        if delta and not self.state.over:
            if self._text_at_s is None:
                self._text_at_s = self._loop.time()
            self._characters += len(delta)
            pieces = range(0, len(delta), _SLICE_CHARACTERS)
            self._receive_text([delta[at : at + _SLICE_CHARACTERS] for at in pieces])

    def expect(self, text: str) -> None:
        """Tells what will probably come next, for callers that cut phrases themselves and `flush` after each.

        A model that can takes it in while the listener waits. Nothing is spoken, and it may turn out otherwise.
        """
        if not self._inbox:
            self._foresee(self._splitter.expected(text))

    def flush(self) -> None:
        """Speaks what is pending now, without waiting for a phrase boundary. The turn goes on.

        Raises:
            SessionStateError: After `end_input`.
        """
        self._check_open("a flush")
        self._receive_text([_Mark.FLUSH])

    def end_input(self) -> None:
        """No more text: speaks the rest, then the turn ends. May be called twice."""
        if not self._input_closed:
            self._input_closed = True
            self._receive_text([_Mark.END])

    def _check_open(self, what: str) -> None:
        if self._input_closed and self.state not in (SessionState.INTERRUPTED, SessionState.FAILED):
            raise SessionStateError(f"{what} after end_input: open a new session for the next turn")

    def _receive_text(self, pieces: Sequence[str | _Mark]) -> None:
        """Cuts the first piece now, and the others one at a time, so that the event loop breathes in between."""
        waiting = bool(self._inbox)
        self._inbox.extend(pieces)
        if not waiting:
            self._cut_next()

    def _cut_next(self) -> None:
        if self.state.over:
            self._inbox.clear()
            return
        try:
            self._cut(self._inbox[0], self._loop.time())
        finally:
            self._inbox.popleft()
            if self._inbox:
                self._loop.call_soon(self._cut_next)

    def _cut(self, piece: str | _Mark, now_s: float) -> None:
        match piece:
            case _Mark.FLUSH:
                self._submit(self._splitter.flush(now_s))
            case _Mark.END:
                self._submit(self._splitter.end(now_s))
                self._disarm()
                self._send(EndInput(self._job))
                self._enter(SessionEvent.END_INPUT, "complete")
            case str(text):
                self._submit(self._splitter.push(text, now_s))
                self._foresee(self._splitter.likely())

    def _submit(self, phrases: list[Phrase]) -> None:
        for phrase in phrases:
            self._ledger.write(phrase)
            if phrase.spoken:
                self._phrases += 1
                self._sent.append(speech_seconds(phrase.spoken))
                self._enter(SessionEvent.PHRASE)
                self._send(Feed(self._job, phrase))
        self._arm()

    def _foresee(self, phrase: Phrase | None) -> None:
        """While the listener waits, lets the model begin with a phrase that only awaits the next token's verdict."""
        if phrase is not None and phrase.spoken and self.spec.foresees and self.state is SessionState.WAITING:
            self._send(Expect(self._job, phrase))

    def _arm(self) -> None:
        """Sees to it that the splitter is asked in time. A timer that fires too early does no harm."""
        deadline_s = self._splitter.next_deadline_s
        if deadline_s is None or self.state.over:
            self._disarm()
            return
        due_s = max(deadline_s, self._loop.time() + _MIN_TIMER_S)
        if self._timer is None or self._timer.when() > due_s:
            self._disarm()
            self._timer = self._loop.call_at(due_s, self._poll)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        self._disarm()
        if self.state in (SessionState.WAITING, SessionState.SPEAKING):
            self._submit(self._splitter.poll(self._loop.time(), self.runway_s))

    @property
    def seed(self) -> int:
        """Of its noise: another session with it says the same phrases the same way, to the sample."""
        return self._job.seed

    @property
    def runway_s(self) -> float:
        """Seconds of speech still to be played, phrases that wait for the model included (estimated)."""
        unmade_s = self._rest_s + sum(self._sent)
        return (self._made - self._played) / self.spec.sample_rate + unmade_s

    # --- audio out -----------------------------------------------------------------------------------------------

    def take(self) -> AudioChunk | None:
        """Returns the next chunk if one is there and the session is not paused."""
        if self._paused or not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self._taken += len(chunk.pcm)
        if not self._paced:
            self._play(self._taken)
        return chunk

    @property
    def exhausted(self) -> bool:
        """Whether `take` will never give a chunk again."""
        return self.state.over and not self._chunks

    @property
    def starved(self) -> bool:
        """Whether there is nothing to take for reasons that are not the model's: no text yet, or a pause."""
        return self._paused or (self.state is SessionState.WAITING and not self._chunks and not self._inbox)

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> AudioChunk:
        """Returns the next chunk; ends when the turn is spoken or interrupted.

        Raises:
            ModelError: The model failed; audio made before comes first.
            SessionStateError: Somebody else waits already.
        """
        while True:
            if (chunk := self.take()) is not None:
                return chunk
            if self.exhausted:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            if self._waiter is not None:
                raise SessionStateError("a session has one consumer, and another one waits already")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def heard(self, samples: int) -> None:
        """Reports that the first `samples` of the session's audio were handed to the network or a device.

        From the first report on, taking no longer counts as hearing: a consumer that paces itself starts with 0.
        What comes after an interruption is ignored, its books are closed.
        """
        self._paced = True
        if self.state is SessionState.INTERRUPTED:
            return
        self._play(min(samples, self._made))
        if self.runway_s < _LOW_RUNWAY_S and self._splitter.pending:
            self._poll()

    def _play(self, samples: int) -> None:
        if samples > self._played:
            self._played = self._job.played_samples = samples
            self._job.speaking = True
            wake_at = self._job.wake_at_samples
            if wake_at is not None and samples >= wake_at:
                self._send(Wake())

    # --- control -------------------------------------------------------------------------------------------------

    def interrupt(self) -> Position:
        """Ends the turn now. Synchronous, immediate, may be called twice and after the end.

        Audio not yet taken is dropped; the model lets go within one step (`released` tells when).

        Returns:
            How far the listener got.
        """
        if not self.state.over:
            self._interrupted_at_s = self._loop.time()
            self._job.cancelled = True
            if (slot := self._job.slot) is not None:
                self._cancel_slot(slot)
            self._send(Cancel(self._job))
            self._disarm()
        if not self.state.over or self._played < self._made:
            self._wasted += sum(len(chunk.pcm) for chunk in self._chunks)
            self._chunks.clear()
            self._enter(SessionEvent.INTERRUPT, "interrupted")
        return self.position

    def pause(self) -> None:
        """Holds audio back; the model works ahead up to its bound, then rests."""
        self._paused = True

    def resume(self) -> None:
        """Goes on with the sample after the last one taken."""
        self._paused = False
        self._wake()

    @property
    def position(self) -> Position:
        """How much was handed over."""
        return Position(self._played, self.spec.sample_rate)

    @property
    def error(self) -> ModelError | None:
        """Why the turn failed, if it did."""
        return self._error

    @property
    def words(self) -> tuple[Word, ...]:
        """Every word timed so far."""
        return self._ledger.words

    def transcript(self, position_samples: int | None = None) -> Heard:
        """Splits the written text into heard and unheard, at a position or at `position`."""
        at = self._played if position_samples is None else position_samples
        waiting = "".join(piece for piece in self._inbox if isinstance(piece, str))
        return self._ledger.split(at, self._splitter.pending + waiting)

    @property
    def key(self) -> int:
        """Identifies the session to its engine."""
        return id(self._job)

    @property
    def free(self) -> bool:
        """Whether the model holds nothing of this turn any more."""
        return self._freed.is_set()

    async def released(self) -> None:
        """Waits until the model holds nothing of this turn."""
        await self._freed.wait()

    async def aclose(self) -> None:
        """Interrupts the turn if it lives, and waits for the model to let go."""
        self.interrupt()
        await self.released()

    @property
    def stats(self) -> SessionStats:
        """The turn's counters so far."""
        return SessionStats(
            state=self.state.value,
            reason=self._reason,
            characters=self._characters,
            phrases=self._phrases,
            chunks=self._chunk_count,
            made_samples=self._made,
            taken_samples=self._taken,
            heard_samples=self._played,
            wasted_samples=self._wasted,
            peak_ahead_samples=self._peak_ahead,
            ttfb_ms=self._ttfb_ms,
            cancel_ms=self._cancel_ms,
        )

    # --- outcomes, from the engine -------------------------------------------------------------------------------

    def receive(self, outcome: Outcome) -> None:
        """Takes what the engine tells. Audio of a turn that is over is refused here."""
        match outcome:
            case Chunk():
                self._receive_chunk(outcome)
            case Failed(_, error):
                self.fail(error)
                self._free()
            case Ended():
                self._free()
            case Released():
                self._cancel_ms = 1000 * (self._loop.time() - self._interrupted_at_s)
                self._free()

    def fail(self, error: ModelError) -> None:
        """Ends the turn with an error; audio made before can still be taken."""
        if not self.state.over:
            self._error = error
            self._job.cancelled = True
            self._disarm()
            self._enter(SessionEvent.FAIL, str(error))

    def abandon(self) -> None:
        """The model will never let go of this turn (it hung or is gone): stop waiting for it."""
        self._free()

    def _free(self) -> None:
        if not self._freed.is_set():
            self._freed.set()
            self._on_free(self)

    def _receive_chunk(self, chunk: Chunk) -> None:
        if self.state.over:
            self._wasted += len(chunk.pcm)
            return
        self._enter(SessionEvent.CHUNK)
        if self._ttfb_ms is None and self._text_at_s is not None:
            self._ttfb_ms = 1000 * (self._loop.time() - self._text_at_s)
        rate = self.spec.sample_rate
        if chunk.first:
            self._rest_s = self._sent.popleft()
            self._phrase_start = self._made
        words = self._words_of(chunk)
        start, self._made = self._made, self._made + len(chunk.pcm)
        self._rest_s = 0.0 if chunk.last else max(0.0, self._rest_s - len(chunk.pcm) / rate)
        self._chunk_count += 1
        self._peak_ahead = max(self._peak_ahead, self._made - self._played)
        self._chunks.append(
            AudioChunk(chunk.pcm, rate, start, chunk.phrase, chunk.first, chunk.last, words, chunk.reason)
        )
        if chunk.last:
            self._ledger.finish(chunk.phrase, self._made)
            if not self._sent:
                self._enter(SessionEvent.SPOKEN, "complete")
        self._wake()

    def _words_of(self, chunk: Chunk) -> tuple[Word, ...]:
        if self.spec.times_words:
            return self._ledger.add(chunk.phrase, self._phrase_start, chunk.words)
        return self._ledger.estimate(chunk.phrase, self._phrase_start) if chunk.first else ()

    def _enter(self, event: SessionEvent, reason: str = "") -> None:
        before, self.state = self.state, transition(self.state, event)
        if self.state.over and self.state is not before:
            self._reason = reason
            self._wake()
            self._on_over(self)
