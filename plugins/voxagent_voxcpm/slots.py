"""What a session says: its phrases, what it goes on from, and who watches. Calls no model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from voxagent.pcm import Pcm
from voxagent.phrases import Phrase
from voxagent_voxcpm.guards import Guard
from voxagent_voxcpm.sessions import Session


@dataclass(frozen=True, slots=True)
class Spoken:
    """One phrase of the turn that has been said.

    Attributes:
        text: Its text.
        patches: Its sound, (count, frames, feat dim).
    """

    text: str
    patches: Tensor


@dataclass(slots=True)
class Intake:
    """A phrase on its way in: token ids, then patches.

    Attributes:
        phrase: Which.
        ids: Of the text and the mark after it.
        patches: Prompt and history, (count, frames, feat dim).
        done: Positions taken in.
    """

    phrase: Phrase
    ids: list[int]
    patches: Tensor
    done: int = 0

    @property
    def size(self) -> int:
        """Positions in all."""
        return len(self.ids) + len(self.patches)

    def next(self, most: int) -> tuple[list[int], Tensor]:
        """The next positions, at most so many."""
        start, end, text = self.done, min(self.done + most, self.size), len(self.ids)
        self.done = end
        return self.ids[start:end], self.patches[max(0, start - text) : max(0, end - text)]


@dataclass(slots=True, eq=False)
class Slot:
    """One session of the engine.

    Attributes:
        session: What the step loop knows.
        seed: Of the turn.
        history: What the turn has said, oldest first.
        text: Of the current phrase.
        intake: The current phrase, while it is taken in.
        patches: Of the current phrase.
        guard: Watches the current phrase; None when it has no sound.
        ending: Why the phrase has to end, learnt while decoding.
        made: Patches of the turn.
        emitted: Samples of the current phrase were given out.
        last: The patch that is decoded next is the phrase's last.
        ahead_s: Audio of the turn not yet played, at the last step.
        held: Audio of the current phrase that is not given out yet: silent, or like what came before.
    """

    session: Session
    seed: int
    history: deque[Spoken] = field(default_factory=deque)
    text: str = ""
    intake: Intake | None = None
    patches: list[Tensor] = field(default_factory=list)
    guard: Guard | None = None
    ending: str = ""
    made: int = 0
    emitted: bool = False
    last: bool = False
    ahead_s: float = 0.0
    held: list[Pcm] = field(default_factory=list)

    @property
    def speaks(self) -> bool:
        """Whether the current phrase has more sound."""
        return self.guard is not None and not self.ending and not self.session.cancelled

    def remember(self, most_patches: int) -> None:
        """Puts the current phrase into the history and forgets what no longer fits."""
        if self.patches:
            self.history.append(Spoken(self.text, torch.stack(self.patches)))
        self.patches = []
        least = 1 if most_patches else 0  # the last phrase is whole, or there is nothing to go on from
        while len(self.history) > least and sum(len(spoken.patches) for spoken in self.history) > most_patches:
            self.history.popleft()


def joined(parts: list[str]) -> str:
    """Texts one after another, with a space between them where the script has any."""
    whole = ""
    for part in filter(None, (part.strip() for part in parts)):
        spaced = whole and not ("\u2e80" <= whole[-1] <= "\u9fff" or "\u3000" <= whole[-1] <= "\u303f")
        whole += (" " if spaced else "") + part
    return whole
