"""The ladder that a caller's voice climbs while the bot speaks: duck, pause, then cancel, or resume.

Pure: no audio, no clocks. Time is the length of the frames it is told of.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import resources

_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[\u0900-\u097f]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


class Rung(Enum):
    """How far the caller has climbed."""

    CLEAR = "clear"
    DUCKED = "ducked"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class Action(Enum):
    """What the caller of this module should do now."""

    DUCK = "duck"
    PAUSE = "pause"
    CANCEL = "cancel"
    RESUME = "resume"


class Cause(Enum):
    """Why."""

    VOICE = "voice"
    LASTING_SPEECH = "lasting speech"
    STOP_WORD = "stop word"
    WORDS = "words"
    BACKCHANNEL = "backchannel"
    NOISE = "noise"
    BOT_DONE = "bot finished"
    NO_SAY = "may not interrupt"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When the ladder moves, in milliseconds.

    Attributes:
        duck_ms: Voice before the bot gets quieter. Below 80 a keystroke is enough; above 120 people talk louder.
        pause_ms: Voice before the bot holds. A backchannel lasts 150 to 250.
        cancel_ms: Voice that cancels even without words: nobody coughs for this long. Half of it must have a pitch.
        gap_ms: Silence inside speech that does not start the count anew (plosives, detector flicker).
        resume_ms: Silence after which the bot goes on if nothing worth stopping for was said.
        words_ms: The same while a recogniser may still tell what was said: it needs 0.5 to 0.8 s after the last word.
    """

    duck_ms: int = 100
    pause_ms: int = 200
    cancel_ms: int = 800
    gap_ms: int = 80
    resume_ms: int = 400
    words_ms: int = 1200

    def __post_init__(self) -> None:
        if not 0 < self.duck_ms <= self.pause_ms <= self.cancel_ms:
            raise ValueError("thresholds must climb: 0 < duck_ms <= pause_ms <= cancel_ms")
        if not 0 <= self.gap_ms < self.resume_ms <= self.words_ms:
            raise ValueError("thresholds must climb: 0 <= gap_ms < resume_ms <= words_ms")


@dataclass(frozen=True, slots=True)
class Interjections:
    """What callers say over a bot, one language's.

    Attributes:
        backchannels: Phrases that let it go on.
        stops: Phrases that stop it at once.
    """

    backchannels: frozenset[tuple[str, ...]]
    stops: frozenset[tuple[str, ...]]


@lru_cache(maxsize=1)
def _data() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(resources.files("voxagent.data").joinpath("interjections.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=32)
def interjections(language: str | None) -> Interjections:
    """The lists of a language; English where there are none."""
    tag = (language or "en").split("-")[0].lower()
    lists = _data().get(tag, _data()["en"])
    return Interjections(_phrases(lists["backchannels"]), _phrases(lists["stops"]))


def _phrases(texts: Iterable[str]) -> frozenset[tuple[str, ...]]:
    return frozenset(_words(text) for text in texts)


def _words(text: str) -> tuple[str, ...]:
    words = [word.casefold() for word in _TOKEN.findall(text)]
    return tuple(part for word in words for part in (_UNSPACED.findall(word) if _UNSPACED.match(word) else [word]))


class BargeIn:
    """One bot turn's ladder. Tell it every frame and every transcript; do what it says.

    Args:
        thresholds: See `Thresholds`.
        language: Of the caller.
        recogniser: Whether `words` or `no_words` will be called for what was said.
    """

    def __init__(
        self, thresholds: Thresholds | None = None, language: str | None = None, recogniser: bool = True
    ) -> None:
        self.rung = Rung.CLEAR
        self.cause = Cause.VOICE
        """Of the last action."""
        self._limits = thresholds or Thresholds()
        self._lists = interjections(language)
        self._recogniser = recogniser
        self._voice_ms = self._pitched_ms = self._silence_ms = 0
        self._noise = False

    @property
    def voice_ms(self) -> int:
        """How long the caller has been heard."""
        return self._voice_ms

    def frame(self, voiced: bool, frame_ms: int, pitched: bool = True) -> Action | None:
        """Counts one frame of the caller's audio.

        Args:
            voiced: Whether the detector takes it for voice.
            frame_ms: Its length.
            pitched: Whether it has the pitch of a voice, as keyboards and slamming doors do not.
        """
        if self.rung is Rung.CANCELLED:
            return None
        if not voiced:
            self._silence_ms += frame_ms
            if self._silence_ms > self._limits.gap_ms:
                self._voice_ms = self._pitched_ms = 0
                self._noise = False
            return self._resume(Cause.NOISE) if self._silence_ms >= self._patience_ms else None
        self._silence_ms = 0
        self._voice_ms += frame_ms
        self._pitched_ms += frame_ms * pitched
        return self._count() if not self._noise else None

    def words(self, transcript: str) -> Action | None:
        """Judges what the caller has said so far: a stop phrase or real words cancel, backchannels let go on."""
        cause = self.kind(transcript)
        if self.rung is Rung.CANCELLED or cause is Cause.NOISE:
            return None
        if cause is Cause.BACKCHANNEL:
            self._voice_ms = self._pitched_ms = 0
            return self._resume(cause)
        return self._climb(Rung.CANCELLED, Action.CANCEL, cause)

    def kind(self, transcript: str) -> Cause:
        """What the caller's words amount to: a stop word, a backchannel, words, or noise when there are none."""
        words = _words(transcript)
        if not words:
            return Cause.NOISE
        if _contains(words, self._lists.stops):
            return Cause.STOP_WORD
        return Cause.BACKCHANNEL if _made_of(words, self._lists.backchannels) else Cause.WORDS

    def concede(self) -> Action:
        """The bot has said what it had to say while the caller was speaking: the caller has the floor."""
        return self._climb(Rung.CANCELLED, Action.CANCEL, Cause.BOT_DONE)

    def no_say(self) -> Action | None:
        """What the bot says now may not be interrupted, or the caller is muted: nothing counts."""
        self._voice_ms = self._pitched_ms = 0
        return self._resume(Cause.NO_SAY)

    def no_words(self) -> Action | None:
        """The recogniser found no words in what was heard."""
        return self._resume(Cause.NOISE) if self._silence_ms > self._limits.gap_ms else None

    @property
    def _patience_ms(self) -> int:
        waits = self._recogniser and self.rung is Rung.PAUSED
        return self._limits.words_ms if waits else self._limits.resume_ms

    def _count(self) -> Action | None:
        limits = self._limits
        if self._voice_ms >= limits.cancel_ms and self._pitched_ms * 2 >= limits.cancel_ms:
            return self._climb(Rung.CANCELLED, Action.CANCEL, Cause.LASTING_SPEECH)
        if self._voice_ms >= 2 * limits.cancel_ms:
            # A machine that runs: holding the bot back until it stops would be worse than the noise.
            self._noise = True
            return self._resume(Cause.NOISE)
        if self._voice_ms >= limits.pause_ms and self.rung in (Rung.CLEAR, Rung.DUCKED):
            return self._climb(Rung.PAUSED, Action.PAUSE, Cause.VOICE)
        if self._voice_ms >= limits.duck_ms and self.rung is Rung.CLEAR:
            return self._climb(Rung.DUCKED, Action.DUCK, Cause.VOICE)
        return None

    def _climb(self, rung: Rung, action: Action, cause: Cause) -> Action:
        self.rung, self.cause = rung, cause
        return action

    def _resume(self, cause: Cause) -> Action | None:
        if self.rung in (Rung.CLEAR, Rung.CANCELLED):
            return None
        return self._climb(Rung.CLEAR, Action.RESUME, cause)


def _contains(words: tuple[str, ...], phrases: frozenset[tuple[str, ...]]) -> bool:
    return any(words[i : i + len(p)] == p for p in phrases for i in range(len(words) - len(p) + 1))


def _made_of(words: tuple[str, ...], phrases: frozenset[tuple[str, ...]]) -> bool:
    """Whether the words are nothing but phrases of the list, one after another."""
    reachable = {0}
    for at in range(len(words)):
        if at in reachable:
            reachable |= {at + len(p) for p in phrases if words[at : at + len(p)] == p}
    return len(words) in reachable
