"""Plays phrases in virtual time: what a splitter's runway would be, without a voice and without waiting.

Pure: time is a number that the caller moves on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from voxagent.phrases import Phrase, PhraseSplitter, speech_seconds

_POLL_S = 0.01  # a player looks no more often


@dataclass(slots=True)
class VirtualPlayer:
    """A listener's side of a turn.

    Attributes:
        synthesis_s: From a phrase's release to its first sound, when nothing else plays.
        now_s: The time.
        dry_s: When what was released so far has been played; 0 before the first sound.
        gaps: Times it ran dry before the next phrase sounded.
        silent_s: Seconds it was dry then.
        released: Every phrase taken.
    """

    synthesis_s: float = 0.1
    now_s: float = 0.0
    dry_s: float = 0.0
    gaps: int = 0
    silent_s: float = 0.0
    released: list[Phrase] = field(default_factory=list)

    @property
    def runway_s(self) -> float:
        """Audio not yet played."""
        return max(0.0, self.dry_s - self.now_s)

    def take(self, phrases: Iterable[Phrase]) -> None:
        """Plays phrases after what is there; a first one, or one after a gap, sounds when it is synthesised."""
        for phrase in phrases:
            self.released.append(phrase)
            seconds = speech_seconds(phrase.spoken)
            if seconds:
                sounds_s = self.now_s + self.synthesis_s
                if 0 < self.dry_s < sounds_s:
                    self.gaps += 1
                    self.silent_s += sounds_s - self.dry_s
                self.dry_s = max(self.dry_s, sounds_s) + seconds

    def wait(self, splitter: PhraseSplitter, until_s: float) -> list[Phrase]:
        """Lets time pass, and polls when the splitter asks for it; returns what that released."""
        before = len(self.released)
        while (due_s := splitter.next_deadline_s) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            self.take(splitter.poll(self.now_s, self.runway_s))
            if splitter.next_deadline_s == due_s:
                self.now_s += _POLL_S
                if self.now_s > until_s:
                    break
        self.now_s = max(self.now_s, until_s)
        return self.released[before:]
