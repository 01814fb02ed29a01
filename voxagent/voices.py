"""What voices are installed; each model plugin tells its own by entry point `voxagent.voices`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """A voice that can be used right away.

    Attributes:
        model: The model that speaks it, as `--model` takes it.
        name: As `--voice` takes it.
        language: BCP 47 tag.
        sample_rate: Hz.
        licence: Of the voice, in a few words.
        path: Where it lies; empty when it has no file.
        speakers: Names of its speakers, each a `--voice` of its own; empty when it has one.
    """

    model: str
    name: str
    language: str
    sample_rate: int
    licence: str
    path: str = ""
    speakers: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def installed_voices() -> list[VoiceInfo]:
    """Every voice of every installed model; a plugin whose packages are missing tells none."""
    voices: list[VoiceInfo] = []
    for point in sorted(entry_points(group="voxagent.voices"), key=lambda point: point.name):
        try:
            tell: Callable[[], Sequence[VoiceInfo]] = point.load()
            voices.extend(tell())
        except ImportError:
            continue
    return voices
