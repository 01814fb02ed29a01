"""The spoken form as a Pipecat text transform, for TTS services that are not ours."""

from __future__ import annotations

from pipecat.utils.text.base_text_aggregator import TextType
from pipecat.utils.text.transforms.text_transform import TextTransform

from voxagent.reading import PLAIN, Reading
from voxagent.speakable import prepare, speakable


def speakable_transform(language: str | None = None, reading: Reading = PLAIN) -> TextTransform:
    """Makes a transform that turns written text into what should be said.

    Give it to a TTS service, ``text_transforms=[("*", speakable_transform("en"))]``: the voice gets the spoken form,
    the context keeps what the LLM wrote. `VoxAgentTTSService` does this by itself.

    Args:
        language: BCP 47 tag; None is judged by the script, with Latin taken for English.
        reading: How text is read where tastes and engines differ.
    """
    prepare(language)

    async def transform(text: str, text_type: str | TextType) -> str:
        return speakable(text, language, reading=reading).text

    return transform
