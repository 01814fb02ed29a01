"""Pipecat's audio contexts, as the speaker sees them: where audio and words go, and how a context ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pipecat.frames.frames import ControlFrame, TTSAudioRawFrame, TTSStartedFrame, TTSStoppedFrame
from pipecat.services.tts_service import TTSService

from voxagent.ledger import Word, unspaced
from voxagent_pipecat.mouth import Utterance
from voxagent_pipecat.speaker import Spoken


@dataclass
class Unspoken(ControlFrame):
    """Stands in a context where the voice failed: Pipecat takes the rest of the text for spoken, and it was not.

    Parameters:
        context_id: The context.
    """

    context_id: str = ""


class AudioContexts:
    """The contexts of one service (a `voxagent_pipecat.speaker.Contexts`).

    Args:
        service: Whose.
        tell: Takes what was heard of an utterance that is over.
    """

    def __init__(self, service: TTSService, tell: Callable[[Spoken], Awaitable[None]]) -> None:
        self._service = service
        self._tell = tell

    async def hand_audio(self, utterance: Utterance, pcm: bytes) -> None:
        """Sends audio on."""
        frame = TTSAudioRawFrame(pcm, self._service.sample_rate, 1, context_id=utterance.key)
        await self._service.append_to_audio_context(utterance.key, frame)

    async def hand_word(self, utterance: Utterance, word: Word, seconds: float) -> None:
        """Sends a word on; it is committed when it has been heard."""
        await self._service.add_word_timestamps(
            [(word.text, seconds)], utterance.key, includes_inter_frame_spaces=unspaced(word.text)
        )

    async def set_aside(self, utterance: Utterance) -> None:
        """Closes the context; the next text of the turn opens it again."""
        await self.end_context(utterance.key)
        # Text that came before the player has seen the end marker would go into the closed context and be lost.
        for _ in range(500):
            if not self._service.audio_context_available(utterance.key):
                break
            await asyncio.sleep(0.002)

    async def reopen(self, utterance: Utterance) -> None:
        """Opens the context again, unless its next text did."""
        if not self._service.audio_context_available(utterance.key):
            await self._service.create_audio_context(utterance.key)
            started = TTSStartedFrame(context_id=utterance.key)
            await self._service.append_to_audio_context(utterance.key, started)

    async def end_context(self, key: str, *, unspoken: bool = False) -> None:
        """Ends the context behind everything it was given."""
        if self._service.audio_context_available(key):
            if unspoken:
                await self._service.append_to_audio_context(key, Unspoken(key))
            await self._service.append_to_audio_context(key, TTSStoppedFrame(context_id=key))
            await self._service.remove_audio_context(key)

    async def report(self, error: Exception, *, dead: bool = False) -> None:
        """Pushes an error; the pipeline goes on, and so does the service unless it is `dead`."""
        await self._service.push_error(str(error), exception=error, force_treat_as_permanent=dead)

    async def tell(self, spoken: Spoken) -> None:
        """Tells the application what was heard."""
        await self._tell(spoken)

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that ends with the service."""
        return self._service.create_task(coroutine)
