"""What a speech model looks like to the engine: one protocol, and the shapes it declares.

Knows nothing of event loops, threads, sockets or transports. A model plugin implements `LatentModel` and registers
a `ModelFactory` under the entry point group `voxagent.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from voxagent.pcm import Pcm as Pcm
from voxagent.phrases import Phrase


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The fixed facts of a loaded model.

    Attributes:
        name: Short name, e.g. ``piper``.
        sample_rate: Of the decoded PCM, Hz.
        chunk_samples: Most samples one step decodes to (about 160 ms).
        slots: Sessions that may be open at once.
        max_batch: Sessions one `LatentModel.step` may advance together.
        max_phrase_s: Longest phrase the model speaks well, seconds of speech.
        min_phrase_s: Shortest that it speaks well; shorter ones join their neighbours where the text allows.
        languages: BCP 47 primary tags it speaks; empty means any.
        clones: Takes a reference recording as a voice.
        continues: Carries prosody from one phrase of a turn to the next.
        times_words: `Step.words` is filled; otherwise the ledger estimates.
        foresees: `LatentModel.prefill` may be called for a phrase that only seems likely, and be replaced by another
            call, as if it had never been, before any step.
        tags: Voice tags it understands in the text: ``pause`` for ``[pause]``, ``break`` for ``<break …/>``. Others
            never reach it.
        phonemes: It takes IPA between double brackets, ``[[həˈloʊ]]``.
    """

    name: str
    sample_rate: int
    chunk_samples: int
    slots: int
    max_batch: int = 1
    max_phrase_s: float = 8.0
    min_phrase_s: float = 0.0
    languages: tuple[str, ...] = ("en",)
    clones: bool = False
    continues: bool = False
    times_words: bool = False
    foresees: bool = False
    tags: tuple[str, ...] = ()
    phonemes: bool = False

    def __post_init__(self) -> None:
        for field in ("sample_rate", "chunk_samples", "slots", "max_batch"):
            if getattr(self, field) < 1:
                raise ValueError(f"ModelSpec.{field} must be at least 1, not {getattr(self, field)}")


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """What a session may ask of the voice.

    Attributes:
        language: BCP 47 tag of the text, or None for the voice's own.
        speed: Speech rate relative to the voice's own, 0.5 to 2.
    """

    language: str | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.speed <= 2.0:
            raise ValueError(f"speed must lie between 0.5 and 2.0, not {self.speed}")


@dataclass(frozen=True, slots=True)
class WordTime:
    """When one word of a phrase sounds.

    Attributes:
        start: First character, an index into `Phrase.spoken`.
        end: One past the last character.
        start_sample: Offset from the first sample the model emits for the phrase, at the model's rate.
        end_sample: One past the word's last sample.
    """

    start: int
    end: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one step gave one slot.

    Attributes:
        latents: For `LatentModel.decode`; None only with `last`, when the phrase has no (more) audio.
        last: The phrase is complete with this step.
        words: Word times of the phrase, each on the first step that knows it, at the latest with its last sample.
        reason: Why the phrase ended when not by itself: ``cap``, ``repetition``, ``silence``.
    """

    latents: Any | None
    last: bool = False
    words: tuple[WordTime, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if self.latents is None and not self.last:
            raise ValueError("a step gives latents, or is the phrase's last")


class Voice(Protocol):
    """An immutable voice that any number of sessions share."""

    @property
    def name(self) -> str: ...

    @property
    def language(self) -> str | None: ...


SlotT = TypeVar("SlotT")


class LatentModel(Protocol[SlotT]):
    """A model that speaks in latent chunks.

    Called by the engine's one thread only, but for two methods: `load_voice` runs on a loader thread and must not
    touch slots; `cancel` is called from anywhere. All state of a session lives in its slot.
    """

    @property
    def spec(self) -> ModelSpec: ...

    def load_voice(self, source: str | None) -> Voice:
        """Loads a voice by name or path; None gives the default. Slow.

        Raises:
            ValueError: No such voice, or a file that is no voice. The message names the cure.
        """
        ...

    def open(self, voice: Voice, options: SpeechOptions, seed: int) -> SlotT:
        """Takes a slot. Cheap. Equal seeds give equal audio."""
        ...

    def prefill(self, slot: SlotT, phrase: Phrase) -> bool:
        """Takes in the next phrase. Returns True when ready to step; False asks to be called again.

        A call is bounded, so that the steps of other sessions fit in between.
        """
        ...

    def step(self, slots: Sequence[SlotT], ahead_s: Sequence[float]) -> Sequence[Step | Exception]:
        """Advances each slot by one latent chunk. A slot alone gives what it gives in any batch.

        `ahead_s` is the audio of each that has been made and not yet played, in seconds: a model may take more time
        over a chunk while there is some. An exception in place of a step ends that session alone; one that is raised
        ends every session of the call.
        """
        ...

    def decode(self, slots: Sequence[SlotT], latents: Sequence[Any]) -> Sequence[Pcm | Exception]:
        """Turns the latents of one step into PCM of at most `ModelSpec.chunk_samples` each. Stateful and exact.

        It may be less, or nothing, when a model holds sound back that may prove wrong; what it held comes with a later
        step of the phrase, on top of that step's own.

        Exceptions count as in `step`.
        """
        ...

    def cancel(self, slot: SlotT) -> None:
        """Makes a running call return early for this slot. Thread-safe, immediate, idempotent.

        The running call may raise or return anything for the slot: the engine drops it and calls `close`. A cancel
        may come a moment after `close`, so a slot object must not be handed out again.
        """
        ...

    def close(self, slot: SlotT) -> None:
        """Gives the slot back. Nothing is zeroed."""
        ...


ModelFactory = Callable[[str | None, Mapping[str, object]], LatentModel[Any]]
"""Loads a model: what stands after the colon in ``name:source``, and options by name.

Raises `ValueError` with the cure for bad options or files. Called on the engine's thread.
"""
