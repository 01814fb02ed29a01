"""All the state of one session, and what a phrase is made of before the model takes it in. Calls no model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from voxagent.phrases import Phrase
from voxagent_voxcpm.audio_vae import State
from voxagent_voxcpm.guards import Guard
from voxagent_voxcpm.network import Hidden
from voxagent_voxcpm.voice import VoxVoice


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


@dataclass(slots=True, eq=False)
class Slot:
    """One session.

    Attributes:
        row: Of the pools.
        voice: Whose reference stands at the row's start.
        seed: Of the turn.
        cancelled: Set from any thread.
        position: Positions of the row in use.
        decoder: State of the audio decoder, through the whole turn.
        history: What the turn has said, oldest first.
        text: Of the current phrase.
        intake: The current phrase, while it is taken in.
        hidden: What the LMs say about the next patch; None while `latest` has not been taken in.
        latest: The last patch, (frames, feat dim); zeros before the first.
        noise: Where the next patch starts.
        patches: Of the current phrase.
        guard: Watches the current phrase; None when it has no sound.
        ending: Why the phrase has to end, learnt while decoding.
        made: Patches of the turn.
        emitted: Samples of the current phrase were given out.
    """

    row: int
    voice: VoxVoice
    seed: int
    decoder: State
    latest: Tensor
    cancelled: bool = False
    position: int = 0
    history: deque[Spoken] = field(default_factory=deque)
    text: str = ""
    intake: Intake | None = None
    hidden: Hidden | None = None
    noise: Tensor | None = None
    random: torch.Generator = field(default_factory=torch.Generator)
    patches: list[Tensor] = field(default_factory=list)
    guard: Guard | None = None
    ending: str = ""
    made: int = 0
    emitted: bool = False

    def draw(self, frames: int, feat_dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The noise of the next patch, (frames, feat dim). Drawn once, however often the step is tried."""
        if self.noise is None:
            # On the CPU, feature by feature: the same for every device, and as upstream draws it.
            drawn = torch.randn((feat_dim, frames), generator=self.random, dtype=torch.float32)
            self.noise = drawn.T.to(device, dtype).contiguous()
        return self.noise

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
