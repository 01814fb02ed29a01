"""What of the voice can be set, at construction and while the pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipecat.services.settings import TTSSettings
from pipecat.transcriptions.language import Language
from pipecat.utils.types import NOT_GIVEN, NotGiven, is_given

from voxagent.engine import Engine, EngineSettings
from voxagent.errors import ModelError
from voxagent.model import ModelSpec, SpeechOptions

# A block of the transport and a frame of ours, with room to move.
_LEAST_LEAD_MS = 100
# The engine rests when it is `max_ahead_ms` before the playout; audio that was handed over is part of that.
_ENGINE_SHARE_MS = 100


@dataclass
class VoxAgentTTSSettings(TTSSettings):
    """Settings of `VoxAgentTTSService`. All of them can change at run time; the next turn uses them.

    Parameters:
        voice: Name or path; None for the model's default.
        language: Of the text; None for the voice's own.
        speed: Speech rate relative to the voice's own, 0.5 to 2.
    """

    speed: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)


def speech_options(settings: VoxAgentTTSSettings) -> SpeechOptions:
    """What a session needs of complete settings.

    Raises:
        ValueError: The speed is out of range.
    """
    speed = settings.speed if is_given(settings.speed) else 1.0
    language = settings.language if is_given(settings.language) else None
    return SpeechOptions(None if language is None else language_tag(language), float(speed))


def check_output(lead_ms: float, sample_rate: int | None, engine: EngineSettings | None) -> None:
    """Refuses what cannot work.

    Raises:
        ValueError: With the cure.
    """
    most_ms = (engine or EngineSettings()).max_ahead_ms - _ENGINE_SHARE_MS
    if not _LEAST_LEAD_MS <= lead_ms <= most_ms:
        limits = f"between {_LEAST_LEAD_MS} and {most_ms:g}"
        raise ValueError(f"lead_ms must lie {limits}, not {lead_ms}: or raise EngineSettings.max_ahead_ms")
    if sample_rate is not None and sample_rate < 8000:
        raise ValueError(f"sample_rate must be at least 8000, not {sample_rate}")


def language_tag(language: Language | str) -> str:
    """The BCP 47 tag."""
    return str(language.value if isinstance(language, Language) else language)


def check_language(language: Language | str, spec: ModelSpec) -> None:
    """Refuses a language that the model does not speak.

    Raises:
        ValueError: With the ones it does speak.
    """
    tag = language_tag(language)
    if spec.languages and tag.split("-")[0].lower() not in spec.languages:
        raise ValueError(f"{spec.name} speaks {', '.join(spec.languages)}, not {tag!r}: choose one of these")


async def flaws(delta: TTSSettings, stored: VoxAgentTTSSettings, engine: Engine | None) -> list[tuple[str, str]]:
    """What is wrong with a change of settings: fields, and why. Loads the new voice ahead of its first use."""
    found: list[tuple[str, str]] = []
    if is_given(delta.model) and delta.model != stored.model:
        found.append(("model", "a service keeps its model: add a second service for another one"))
    speed = getattr(delta, "speed", NOT_GIVEN)
    try:
        if is_given(speed):
            SpeechOptions(speed=speed)
    except (ValueError, TypeError) as error:
        found.append(("speed", str(error)))
    try:
        if is_given(delta.language) and delta.language is not None and engine is not None:
            check_language(delta.language, engine.spec)
    except ValueError as error:
        found.append(("language", str(error)))
    try:
        if is_given(delta.voice) and engine is not None:
            await engine.load_voice(delta.voice)
    except (ValueError, ModelError) as error:
        found.append(("voice", str(error)))
    return found
