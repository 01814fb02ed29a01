"""`VoxAgentTTSService`: the engine as a Pipecat TTS service.

Owns Pipecat's side of a turn: frames, contexts, settings, errors and events. How speech is made, paced and timed is
the business of the engine and the speaker.
"""

# mypy: disallow-untyped-calls=False
# Much of Pipecat is not annotated.

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    AggregatedTextFrame,
    CancelFrame,
    ControlFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    SystemFrame,
    TextFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.transcriptions.language import Language
from pipecat.utils.text.base_text_aggregator import TextType
from pipecat.utils.text.transforms.text_transform import TextTransform
from pipecat.utils.tracing.service_decorators import traced_tts
from pipecat.utils.types import NOT_GIVEN, is_given

from voxagent.engine import Engine, EngineSettings
from voxagent.phrases import FIRST_S, MAX_PHRASE_S, TAIL_S, PhraseSplitter
from voxagent.reading import PLAIN, Reading
from voxagent.turn import Session
from voxagent_pipecat.aggregator import SILENT, Carried, PhraseAggregator, cut_whole
from voxagent_pipecat.contexts import AudioContexts, Unspoken
from voxagent_pipecat.mouth import SpeechObserver
from voxagent_pipecat.playhead import IN_ORDER, Playhead, PlayheadFrame
from voxagent_pipecat.settings import (
    VoxAgentTTSSettings,
    check_language,
    check_output,
    flaws,
    language_tag,
    speech_options,
)
from voxagent_pipecat.sharing import claim
from voxagent_pipecat.speaker import Speaker, SpeechStats, Spoken

# The base class ends a context that is quiet for this long; here every context ends by its own marker, however long
# the language model or the engine takes.
_NEVER_S = 86_400.0


@dataclass
class _Poll(ControlFrame):
    """Text has waited long enough: asks the service, in order with the text, to look at it."""


class VoxAgentTTSService(TTSService):
    """Speaks LLM tokens as they stream, and stops at once.

    Event handlers:
        on_turn_spoken: (service, context_id, heard, interrupted) when a turn has sounded or was interrupted; `heard`
            is a `voxagent.ledger.Heard`: what the listener heard of it, whichever way it ended.

    Args:
        model: A voxagent model: ``name`` or ``name:source``.
        engine: An engine of your own, on the same event loop; you close it. By default services of one model share
            one, which closes with the last of them.
        model_options: The model's options.
        engine_settings: Of the shared engine.
        settings: Voice, language and speed.
        lead_ms: How far ahead of the playout audio is handed on. Less reacts no faster (an interruption flushes it),
            more rides out a longer stall of the event loop.
        first_phrase_s: Shortest first phrase of a turn, in seconds of speech.
        reading: How text is read where tastes differ: code, addresses, pronunciations.
        sample_rate: Of the output; by default the pipeline's.
        text_transforms: As in `TTSService`.
        skip_text_types: As in `TTSService`.
        transport_destination: As in `TTSService`.
        name: Of the processor.

    Raises:
        ValueError: Bad configuration; the message names the cure.
    """

    Settings = VoxAgentTTSSettings
    _settings: VoxAgentTTSSettings

    def __init__(
        self,
        model: str = "piper",
        *,
        engine: Engine | None = None,
        model_options: Mapping[str, object] | None = None,
        engine_settings: EngineSettings | None = None,
        settings: VoxAgentTTSSettings | None = None,
        lead_ms: float = 300.0,
        first_phrase_s: float = FIRST_S,
        reading: Reading = PLAIN,
        sample_rate: int | None = None,
        text_transforms: list[tuple[TextType | str, TextTransform]] | None = None,
        skip_text_types: list[str] | None = None,
        transport_destination: str | None = None,
        name: str | None = None,
    ) -> None:
        stored = VoxAgentTTSSettings(model=model, voice=None, language=None, speed=1.0)
        if settings is not None:
            stored.apply_update(settings)
        speech_options(stored)
        self._lease = claim(model, engine, model_options, engine_settings)
        check_output(lead_ms, sample_rate, engine.settings if engine is not None else engine_settings)
        super().__init__(
            push_start_frame=True,
            push_text_frames=False,
            push_stop_frames=False,
            stop_frame_timeout_s=_NEVER_S,
            max_consecutive_zero_audio_contexts=0,
            sample_rate=sample_rate,
            text_transforms=text_transforms,
            skip_text_types=[*(skip_text_types or []), SILENT],
            transport_destination=transport_destination,
            settings=stored,
            name=name,
        )
        self._language = speech_options(stored).language
        self._first_s = first_phrase_s
        self._reading = reading
        self._phrases = PhraseAggregator(self._language, first_s=first_phrase_s, reading=reading)
        self._text_aggregator = self._phrases  # type: ignore[assignment]
        self._engine: Engine | None = None
        self._lead_s = lead_ms / 1000
        self._contexts = AudioContexts(self, self._tell)
        self._speaker: Speaker | None = None
        self._playhead: Playhead | None = None
        self.observers: list[SpeechObserver] = []
        """Told of every phrase, chunk and heard word as it happens."""
        self._unspoken: set[str] = set()
        self._frame: Frame | None = None
        self._lead: str | None = None
        self._more: list[Carried] = []
        self._deaf = False
        self._timer: asyncio.TimerHandle | None = None
        self._stale = 0
        self._register_event_handler("on_turn_spoken")

    # --- what Pipecat asks ---------------------------------------------------------------------------------------

    def can_generate_metrics(self) -> bool:
        """Yes."""
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """No: `run_tts` only hands the text over."""
        return False

    def language_to_service_language(self, language: Language) -> str | None:
        """The BCP 47 tag."""
        return language_tag(language)

    @property
    def stats(self) -> SpeechStats:
        """The counters so far."""
        return self._speaker.stats(self._stale) if self._speaker is not None else SpeechStats()

    # --- life ----------------------------------------------------------------------------------------------------

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Loads the model and the voice, or joins the services that have.

        Raises:
            ValueError: Bad options, files or voice, with the cure.
            ModelError: The model could not be loaded.
        """
        await super().setup(setup)
        self._engine = engine = await self._lease.acquire()
        self._speaker = Speaker(self._contexts, self._open_session, self.sample_rate, self._lead_s)
        self._speaker.observe(self.observers)
        self._phrases.set_lengths(engine.spec.min_phrase_s, engine.spec.max_phrase_s)
        self._reading = self._reading.known_to(engine.spec.tags, engine.spec.phonemes)
        self._phrases.set_reading(self._reading)
        if (tag := speech_options(self._settings).language) is not None:
            check_language(tag, engine.spec)
        await self._learn_language(engine)

    async def stop(self, frame: EndFrame) -> None:
        """Speaks what is left to say, then stops."""
        await self._say_rest()
        try:
            await super().stop(frame)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            logger.debug(f"{self} was interrupted while it said the last words")

    async def cancel(self, frame: CancelFrame) -> None:
        """Stops at once, whatever is being said."""
        await self._tell(*self._cut(all_of_them=True))
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Frees everything. May be called twice."""
        self._disarm()
        await self._tell(*self._cut(all_of_them=True))
        await super().cleanup()
        if self._playhead is not None and self._speaker is not None:
            self._playhead.leave(self._speaker)
        for task in self._speaker.tasks if self._speaker is not None else ():
            await self.cancel_task(task)
        self._engine = None
        await self._lease.release()

    # --- frames in -----------------------------------------------------------------------------------------------

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Takes text, interruptions, settings and everything else."""
        if isinstance(frame, InterruptionFrame):
            self._deaf = True
            self._disarm()
            spoken = self._cut()
            await super().process_frame(frame, direction)
            await self._tell(*spoken)
        elif isinstance(frame, SystemFrame):
            if isinstance(frame, PlayheadFrame) and frame.playhead is not None and self._speaker is not None:
                self._speaker.follow()
                frame.playhead.listen(self._speaker)
                self._playhead = frame.playhead
            await super().process_frame(frame, direction)
        elif not self._is_stale(frame):
            self._frame = frame
            try:
                await self._process(frame, direction)
            finally:
                self._frame, self._lead, self._more = None, None, []

    async def _process(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, _Poll):
            runway_s = self._speaker.runway_s(self._turn_context_id or "") if self._speaker is not None else 0.0
            await self._say(self._phrases.poll(runway_s))
        elif isinstance(frame, TTSSpeakFrame):
            await self._speak_frame(frame, direction)
        else:
            if isinstance(frame, LLMFullResponseStartFrame):
                self._deaf = False
            elif isinstance(frame, LLMFullResponseEndFrame) and not frame.skip_tts:
                await self._say(self._phrases.rest())
            await super().process_frame(frame, direction)
        if isinstance(frame, (TextFrame, _Poll)):
            self._arm()
        if isinstance(frame, LLMTextFrame) and self._speaker is not None and (likely := self._phrases.likely()):
            self._speaker.expect(self._turn_context_id or "", likely)
        if not self.is_usable:
            await self._end_orphans()

    def _is_stale(self, frame: Frame) -> bool:
        """Whether this is text of an interrupted reply that the interruption overtook."""
        stale = self._deaf and isinstance(frame, LLMTextFrame) and not frame.skip_tts
        if stale and self._turn_context_id is None:
            self._stale += 1
            return True
        return False

    async def _say(self, pieces: list[Carried], *, interruptible: bool = True) -> None:
        """Feeds phrases in, in order with everything else."""
        for lead, piece in pieces:
            await self.stop_text_aggregation_metrics()
            frame = AggregatedTextFrame(piece.text, piece.type)
            frame.interruptible = interruptible
            self._lead = lead
            await super().process_frame(frame, FrameDirection.DOWNSTREAM)
        self._lead = None

    async def _speak_frame(self, frame: TTSSpeakFrame, direction: FrameDirection) -> None:
        """Speaks a whole text as a turn of its own, phrase by phrase.

        Pipecat's search for the place of a word takes time in proportion to the piece of text it is in: 10 ms a word
        for a page, on the event loop. And a context that gives no audio counts as a failure of the voice, so that
        text without sound must not open one.
        """
        pieces = cut_whole(frame.text, self._language, self._max_phrase_s, str(frame.text_type), self._reading)
        if not frame.append_to_context:
            pieces = [(lead, piece) for lead, piece in pieces if piece.type != SILENT]
        while pieces:
            (lead, piece), *self._more = pieces
            if piece.type == SILENT:
                pieces, self._more = self._more, []
                await self._say([(lead, piece)], interruptible=frame.interruptible)
                continue
            first = copy(frame)
            first.text, self._lead = piece.text, lead
            await super().process_frame(first, direction)
            # Nothing, unless a text transform swallowed the first phrase.
            pieces, self._more = self._more, []

    async def _say_rest(self) -> None:
        """The pipeline ends: speaks the text that is still held, and lets every utterance come to its end."""
        self._disarm()
        await self._say(self._phrases.rest())
        await self.on_turn_context_completed()
        if self._speaker is not None:
            self._speaker.end_all_input()

    def _arm(self) -> None:
        self._disarm()
        deadline_s = self._phrases.next_deadline_s
        if deadline_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(deadline_s, loop.time() + 0.02), self._ask)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        self._timer = None
        self.create_task(self.queue_frame(_Poll()))

    # --- turns ---------------------------------------------------------------------------------------------------

    async def on_turn_context_created(self, context_id: str) -> None:
        """Opens the session while the language model still thinks: the voice is ready when the first text comes."""
        if self._speaker is not None and self.is_usable:
            self._speaker.prepare(context_id, self._interruptible)

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Hands the text over and returns; a task of its own speaks it.

        Args:
            text: The text to speak.
            context_id: Whose.

        Yields:
            Nothing.
        """
        assert self._speaker is not None
        utterance = await self._speaker.utterance(context_id, self._interruptible)
        await self.start_tts_usage_metrics(text)
        last = isinstance(self._frame, (LLMFullResponseEndFrame, EndFrame, TTSSpeakFrame))
        loose = context_id != self._turn_context_id
        await self._speaker.say(utterance, self._lead_in(utterance.session) + text, flush=not last and not loose)
        if loose:
            self._speaker.end_input(context_id)
        more, self._more = self._more, []
        await self._say(more, interruptible=self._interruptible)
        return
        yield None

    def _lead_in(self, session: Session | None) -> str:
        """What stands between this text and the one before."""
        if self._lead is not None:
            return self._lead
        if isinstance(self._frame, AggregatedTextFrame):
            return " " if session is not None and session.stats.characters else ""
        return self._phrases.take_carry()

    async def on_turn_context_completed(self) -> None:
        """No more text comes for the turn."""
        context_id = self._turn_context_id or ""
        if self._speaker is None or not self._speaker.end_input(context_id):
            await self._contexts.end_context(context_id)
        await super().on_turn_context_completed()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stops at once: no waiting here, the interruption goes on to the transport when this returns."""
        await self._tell(*self._cut([context_id]))

    async def start_word_timestamps(self) -> None:
        """The playing context's first audio goes out: Pipecat counts the seconds of words from now."""
        if self._speaker is not None:
            self._speaker.note_start(self.get_active_audio_context_id() or "")
        await super().start_word_timestamps()

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Pushes a frame on; text that was never spoken is not committed."""
        if isinstance(frame, Unspoken):
            self._unspoken.add(frame.context_id)
            return
        if isinstance(frame, TTSTextFrame) and frame.context_id in self._unspoken:
            frame.append_to_context = False
        if frame.pts:
            # Words, progress and the end of a reply stand behind their audio: better than any time, where it is heeded.
            frame.metadata[IN_ORDER] = True
        if isinstance(frame, TTSStoppedFrame):
            self._unspoken.discard(frame.context_id or "")
        await super().push_frame(frame, direction)

    @property
    def _interruptible(self) -> bool:
        """Whether the text being processed may be interrupted; Pipecat takes the flag of a context's first text."""
        frame = self._frame
        return frame.interruptible if isinstance(frame, (AggregatedTextFrame, TTSSpeakFrame)) else True

    @property
    def _voice(self) -> str | None:
        voice = self._settings.voice
        return voice if is_given(voice) else None

    @property
    def _max_phrase_s(self) -> float:
        return self._engine.spec.max_phrase_s if self._engine is not None else MAX_PHRASE_S

    def _open_session(self) -> Session:
        assert self._engine is not None
        splitter = PhraseSplitter(
            self._language,
            first_s=max(self._first_s, self._engine.spec.min_phrase_s),
            tail_s=max(TAIL_S, self._engine.spec.min_phrase_s),
            max_phrase_s=self._max_phrase_s,
            reading=self._reading,
        )
        return self._engine.open(self._voice, speech_options(self._settings), splitter=splitter)

    async def _learn_language(self, engine: Engine) -> None:
        """Text is cut by the rules of the language that is set, or the voice's own."""
        voice = await engine.load_voice(self._voice)
        self._language = speech_options(self._settings).language or voice.language
        self._phrases.set_language(self._language)

    async def _end_orphans(self) -> None:
        """A service that was written off is given no text, yet contexts are opened for it: nothing else ends them."""
        for context_id in self.get_audio_contexts():
            known = self._speaker is not None and context_id in self._speaker
            if not known and context_id != self._turn_context_id:
                await self._contexts.end_context(context_id)

    def _cut(self, keys: list[str] | None = None, *, all_of_them: bool = False) -> list[Spoken]:
        return self._speaker.cut(keys, all_of_them=all_of_them) if self._speaker is not None else []

    async def _tell(self, *spoken: Spoken) -> None:
        for one in spoken:
            await self._call_event_handler("on_turn_spoken", one.key, one.heard, one.interrupted)

    # --- settings ------------------------------------------------------------------------------------------------

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:  # type: ignore[override]
        """Applies what is good of a change; the next turn uses it."""
        delta = delta.copy()
        for field, cause in await flaws(delta, self._settings, self._engine):
            setattr(delta, field, NOT_GIVEN)
            await self.push_error(f"{cause}; {field} stays as it was")
        changed = await super()._update_settings(delta)
        if changed and self._engine is not None:
            await self._learn_language(self._engine)
        return changed
