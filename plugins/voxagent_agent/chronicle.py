"""`Chronicle`: what happens in one call, told to its record and to the caller's page.

Listens at the seams (transport, voice, aggregators, frames pushed) and changes nothing.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.frames import (
    AggregatedTextFrame,
    ErrorFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSTextFrame,
    UserBackchannelFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from voxagent.bargein import Action
from voxagent.floor import Decision
from voxagent.ledger import Heard, Word
from voxagent.phrases import Phrase
from voxagent.playout import Frame as VoiceFrame
from voxagent.record import CallRecord
from voxagent.session import AudioChunk
from voxagent_pipecat.service import VoxAgentTTSService
from voxagent_pipecat.webrtc import VoxAgentWebRTCTransport
from voxagent_webrtc import SentPacket

# Voice comes with holes, of stop consonants for example: the caller has stopped when this much is silent.
_VOICE_GAP_S = 0.12
_PACKETS_EVERY_S = 1.0

Send = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Milestones:
    """When the parts of a response were done, on the event loop's clock; None until they are.

    Attributes:
        silent_s: The caller's last voice.
        stopped_s: The detector took the speech for ended.
        transcript_s: The recogniser had the words.
        request_s: The turn was over, and the language model was asked.
        token_s: Its first token came.
        phrase_s: The first phrase was complete.
        audio_s: The first audio was made.
    """

    silent_s: float | None = None
    stopped_s: float | None = None
    transcript_s: float | None = None
    request_s: float | None = None
    token_s: float | None = None
    phrase_s: float | None = None
    audio_s: float | None = None

    def latency(self, heard_s: float) -> tuple[float, dict[str, float]] | None:
        """The response time and its parts in ms, once the first audio was handed over."""
        times = (self.silent_s, self.stopped_s, self.transcript_s, self.request_s, self.token_s, self.phrase_s)
        if any(time is None for time in times) or self.audio_s is None:
            return None
        silent, stopped, transcript, request, token, phrase = (float(time or 0.0) for time in times)
        parts = {
            "turn": (stopped - silent) + max(0.0, request - max(transcript, stopped)),
            "stt": max(0.0, transcript - stopped),
            "llm": token - request,
            "phrase": phrase - token,
            "tts": self.audio_s - phrase,
            "network": heard_s - self.audio_s,
        }
        return round(1000 * (heard_s - silent), 1), {name: round(1000 * s, 1) for name, s in parts.items()}


@dataclass(slots=True)
class _Packets:
    """Sent since the last note."""

    first: int | None = None
    count: int = 0
    speech: int = 0
    late_ms_max: float = 0.0
    since_s: float = 0.0


@dataclass(slots=True)
class _Progress:
    """Where the call stands."""

    turns: dict[str, int] = field(default_factory=dict)
    next_turn: int = 1
    state: str = ""
    voice: bool = False
    voice_at_s: float = 0.0
    sounding: bool = False
    underruns: int = 0
    spoken_over: int = 0


class Chronicle(BaseObserver):
    """Tells one call's story.

    Args:
        record: The call's record.
        transport: The call's transport.
        tts: The bot's voice.
        llm: The language model.
        stt: The recogniser.
    """

    def __init__(
        self,
        record: CallRecord,
        transport: VoxAgentWebRTCTransport,
        tts: VoxAgentTTSService,
        llm: FrameProcessor,
        stt: FrameProcessor,
    ) -> None:
        super().__init__()
        self._record = record
        self._transport = transport
        self._tts, self._llm, self._stt = tts, llm, stt
        self._now = asyncio.get_running_loop().time
        self._at = Milestones()
        self._packets = _Packets(since_s=self._now())
        self._progress = _Progress()
        self._seen: set[int] = set()
        tts.observers.append(self)
        tts.add_event_handler("on_turn_spoken", self._on_turn_spoken)
        transport.on_floor.append(self._on_decision)
        transport.on_frame.append(self._on_frame)
        transport.on_packet.append(self._on_packet)

    # --- the bot's voice -----------------------------------------------------------------------------------------

    def phrase(self, key: str, phrase: Phrase, seed: int) -> None:
        """A phrase's first audio is there."""
        turn = self._turn(key)
        self._record.note("phrase", turn=turn, text=phrase.text, reason=phrase.reason, seed=seed)
        self._tell(event="phrase", turn=turn, start=phrase.start, text=phrase.text)

    def chunk(self, key: str, chunk: AudioChunk) -> None:
        """Audio was made and taken."""
        if self._at.audio_s is None:
            self._at.audio_s = self._now()
        self._record.note(
            "chunk",
            turn=self._turn(key),
            start_sample=chunk.start_sample,
            samples=len(chunk.pcm),
            sample_rate=chunk.sample_rate,
            words=[[word.text, word.end_sample] for word in chunk.words],
        )

    def word(self, key: str, word: Word) -> None:
        """A word was heard to its end."""
        turn = self._turn(key)
        self._record.note("word", turn=turn, text=word.text, start=word.start, end=word.end)
        self._tell(event="word", turn=turn, start=word.start, end=word.end)

    async def _on_turn_spoken(self, _: VoxAgentTTSService, key: str, heard: Heard, interrupted: bool) -> None:
        turn = self._turn(key)
        if interrupted:
            fields = {"heard": heard.heard, "partly": heard.partly, "unheard": heard.unheard}
            self._record.note("cut", turn=turn, **fields)
            self._tell(event="cut", turn=turn, **fields)
        else:
            self._record.note("spoken", turn=turn, heard=heard.heard)
            self._tell(event="spoken", turn=turn)

    def _on_decision(self, decision: Decision) -> None:
        handed = self._transport.playhead.playout.stats.handed_samples
        fields = {"action": decision.action.value, "cause": decision.cause.value}
        self._record.note("decision", **fields, voice_ms=decision.voice_ms, position_samples=handed)
        self._tell(event="decision", **fields)
        if decision.action is Action.PAUSE:
            self._enter("paused")
        elif decision.action is Action.RESUME and self._progress.state == "paused":
            self._enter("speaking")

    # --- the line ------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: VoiceFrame, late_s: float) -> None:
        now_s, progress, floor = self._now(), self._progress, self._transport.floor
        self._packets.speech += frame.speech_samples > 0
        self._packets.late_ms_max = max(self._packets.late_ms_max, 1000 * late_s)
        self._watch_voice(now_s)
        underruns = self._transport.playhead.playout.stats.underruns
        if underruns > progress.underruns:
            progress.underruns = underruns
            self._record.note("underrun")
        sounding = frame.speech_samples > 0
        if sounding != progress.sounding:
            progress.sounding = sounding
            self._record.note("packet", event="first_audible" if sounding else "last_audible")
            if sounding:
                self._begin_to_sound(now_s)
        # The floor waits a moment before it takes a bot for silent: the state should not flicker between two words.
        if progress.state == "speaking" and not sounding and floor is not None and not floor.speaking:
            self._enter("listening")

    def _begin_to_sound(self, now_s: float) -> None:
        self._enter("speaking")
        latency = self._at.latency(now_s)
        if latency is not None:
            response_ms, parts = latency
            self._record.note("latency", response_ms=response_ms, parts=parts)
            self._tell(event="latency", response_ms=response_ms, parts=parts)
            self._at = Milestones()

    def _on_packet(self, packet: SentPacket) -> None:
        packets = self._packets
        packets.count += 1
        if packets.first is None:
            packets.first = packet.sequence_number
        if packet.at_s - packets.since_s >= _PACKETS_EVERY_S:
            self._record.note(
                "packets",
                first_seq=packets.first,
                count=packets.count,
                speech=packets.speech,
                late_ms_max=round(packets.late_ms_max, 2),
            )
            self._packets = _Packets(since_s=packet.at_s)

    def _watch_voice(self, now_s: float) -> None:
        floor, progress = self._transport.floor, self._progress
        if floor is None:
            return
        if floor.voice:
            progress.voice_at_s = now_s
        voice = now_s - progress.voice_at_s < _VOICE_GAP_S
        if voice != progress.voice:
            progress.voice = voice
            self._record.note("user_voice", on=voice)
            self._tell(event="user_voice", on=voice)

    # --- frames --------------------------------------------------------------------------------------------------

    async def on_push_frame(self, data: FramePushed) -> None:
        """Looks at a frame on its way between two processors."""
        frame = data.frame
        if not isinstance(frame, _LOOKED_AT) or data.direction is not FrameDirection.DOWNSTREAM:
            return
        if frame.id not in self._seen and self._look(frame, data.source, data.destination):
            self._seen.add(frame.id)
            if len(self._seen) > 2000:
                self._seen = set(sorted(self._seen)[-1000:])

    def _look(self, frame: Frame, source: FrameProcessor, destination: FrameProcessor) -> bool:
        """Notes what the frame tells at this place; returns whether it will tell nothing at any other."""
        match frame:
            case LLMTextFrame() if source is self._llm:
                self._note_token(frame.text)
            case LLMFullResponseEndFrame() if source is self._llm:
                self._record.note("llm", event="end")
            case LLMContextFrame() if destination is self._llm:
                self._note_request(frame)
            case AggregatedTextFrame() if source is self._tts and not isinstance(frame, TTSTextFrame):
                self._at.phrase_s = self._at.phrase_s or self._now()
            case TranscriptionFrame() if source is self._stt:
                self._at.transcript_s = self._now()
                self._record.note("transcript", text=frame.text, final=True)
            case VADUserStoppedSpeakingFrame():
                self._at.silent_s, self._at.stopped_s = self._progress.voice_at_s, self._now()
                self._at.transcript_s = None
            case UserBackchannelFrame():
                self._record.note("backchannel", text=frame.text)
                self._tell(event="backchannel", text=frame.text)
            case ErrorFrame():
                self._record.note("error", message=frame.error)
                self._tell(event="error", message=frame.error)
            case _:
                return False
        return True

    def _note_token(self, text: str) -> None:
        if self._at.token_s is None:
            self._at.token_s = self._now()
            self._record.note("llm", event="first_token")
        self._record.note("token", turn=self._progress.next_turn, text=text)

    def _note_request(self, frame: LLMContextFrame) -> None:
        at = self._at
        at.request_s, at.token_s, at.phrase_s, at.audio_s = self._now(), None, None, None
        self._progress.next_turn = len(self._progress.turns) + 1
        self._enter("thinking")
        self._record.note("llm", event="request")
        messages: list[Any] = list(frame.context.messages)
        for message in messages[self._progress.spoken_over :]:
            # Others are for one language model's adapter alone, and may hold anything.
            if isinstance(message, dict):
                self._record.note("context", role=str(message.get("role")), text=str(message.get("content")))
        self._progress.spoken_over = len(messages)

    def note_user_turn(self, event: str, text: str = "") -> None:
        """The caller's turn started or stopped."""
        self._record.note("user_turn", event=event)
        if text:
            self._tell(event="user", text=text, final=True)

    # --- telling -------------------------------------------------------------------------------------------------

    def _turn(self, key: str) -> int:
        return self._progress.turns.setdefault(key, len(self._progress.turns) + 1)

    def _enter(self, state: str) -> None:
        if state != self._progress.state:
            before, self._progress.state = self._progress.state, state
            if "speaking" in (state, before) and "paused" not in (state, before):
                self._record.note("bot", event="started" if state == "speaking" else "stopped")
            self._tell(event="state", state=state)

    def _tell(self, **fields: object) -> None:
        self._transport.peer.send({"type": "voxagent", **fields})


_LOOKED_AT = (
    AggregatedTextFrame,
    ErrorFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStoppedSpeakingFrame,
)
