"""`HeardContext`: the language model reads what the caller heard, and what happened to the rest.

Stands directly before the language model. Pipecat commits words as its aggregator receives them, and an interruption
may overtake some of them on the way; here the ledger has the last word, just before the context is used.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipecat.frames.frames import Frame, InputAudioRawFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from voxagent.ledger import Heard
from voxagent_pipecat.service import VoxAgentTTSService

NOTE = "The caller spoke over your last reply."
"""How the note begins; JSON follows."""


@dataclass(frozen=True, slots=True)
class InterruptionNote:
    """What an interruption did to a reply.

    Attributes:
        heard: What the caller heard whole.
        partly: The word that was cut, if any.
        unheard: Everything after `heard`.
        said_over: What the caller said instead.
    """

    heard: str
    partly: str
    unheard: str
    said_over: str

    def text(self) -> str:
        """For the language model."""
        fields = {
            "heard": self.heard,
            "partly": self.partly,
            "unheard": self.unheard,
            "said_over": self.said_over,
        }
        return f"{NOTE} {json.dumps({'interrupted': fields}, ensure_ascii=False)}"


class HeardContext(FrameProcessor):
    """Put it between the user aggregator and the language model.

    Args:
        tts: Whose ledger is believed.
        notes: Whether an interruption is also told as a message of its own, before the caller's.
        role: Of that message.
        pass_audio: Whether the caller's audio goes on down the pipeline. Behind the recogniser it costs a twentieth of
            a core a call; a recorder that stands behind the output needs it.
    """

    def __init__(
        self, tts: VoxAgentTTSService, *, notes: bool = True, role: str = "developer", pass_audio: bool = True
    ) -> None:
        super().__init__()
        self._pass_audio = pass_audio
        self._notes = notes
        self._role = role
        self._cut: list[Heard] = []
        self._asked = 0
        self.corrections = 0
        """Replies whose text had to be set right."""
        tts.add_event_handler("on_turn_spoken", self._on_turn_spoken)

    async def _on_turn_spoken(self, _: VoxAgentTTSService, __: str, heard: Heard, interrupted: bool) -> None:
        if interrupted:
            self._cut.append(heard)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Passes everything on; a context is set right on its way."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame) and not self._pass_audio:
            return
        if isinstance(frame, LLMContextFrame) and direction is FrameDirection.DOWNSTREAM:
            cut, self._cut = self._cut, []
            for heard in cut:
                self._correct(frame.context, heard)
            self._asked = len(frame.context.messages)
        await self.push_frame(frame, direction)

    def _correct(self, context: LLMContext, heard: Heard) -> None:
        messages: list[Any] = list(context.messages)
        # What the model has been asked before is settled; the reply to that comes behind it.
        start = self._asked if self._asked <= len(messages) else _trailing_users(messages)
        place, corrected = _set_right(messages, start, heard)
        self.corrections += corrected
        if self._notes and heard.unheard:
            said = " ".join(str(message["content"]) for message in messages[place:] if _role(message) == "user")
            note = InterruptionNote(heard.heard, heard.partly, heard.unheard, said)
            messages.insert(place, {"role": self._role, "content": note.text()})
        context.set_messages(messages)


def _trailing_users(messages: list[Any]) -> int:
    """Where the caller's messages at the end of the context begin."""
    at = len(messages)
    while at and _role(messages[at - 1]) == "user":
        at -= 1
    return at


def _set_right(messages: list[Any], start: int, heard: Heard) -> tuple[int, bool]:
    """Makes the reply that stands behind `start` say what was heard.

    Returns:
        The place behind the reply, and whether something had to be changed.
    """
    whole = _plain(f"{heard.heard} {heard.unheard}")
    for at in range(start, len(messages)):
        committed = messages[at].get("content") if _role(messages[at]) == "assistant" else None
        if not isinstance(committed, str):
            continue
        if _plain(committed) == _plain(heard.heard):
            return at + 1, False
        if whole.startswith(_plain(committed)):
            if heard.heard:
                messages[at] = {**messages[at], "content": heard.heard}
                return at + 1, True
            del messages[at]
            return at, True
        if _plain(committed).endswith(_plain(heard.heard)):
            # One message for more than this reply: a greeting and an answer, say.
            return at + 1, False
    if heard.heard:
        messages.insert(start, {"role": "assistant", "content": heard.heard})
    return start + bool(heard.heard), bool(heard.heard)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _role(message: object) -> str:
    """Whose message it is; nobody's when it is one that only some language model's adapter can read."""
    return str(message.get("role")) if isinstance(message, dict) else ""
