"""What keeps one phrase from running away or being cut short: the stop head is right most of the time, not always.

Pure arithmetic over patches, on the CPU.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Patch = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many patches a phrase may have. Counts are for 160 ms patches; shorter ones allow as many seconds.

    Attributes:
        min_len: The stop head is not heard before this many patches and one more, as upstream counts.
        least_per_token: Nor before this many patches a token of text: nobody speaks that fast.
        most_per_token: The phrase ends at this many patches a token, and `most_extra`: upstream says 6, which lets
            "No." run for 4.5 s when the stop head fails.
        most_extra: See there.
        silent_s: A phrase that has been silent for so long after speech is over.
        repeated_s: One that repeats itself for so long is stuck.
    """

    min_len: int = 2
    least_per_token: float = 0.25
    most_per_token: float = 4.0
    most_extra: int = 10
    silent_s: float = 1.2
    repeated_s: float = 0.96


_ALIKE = 0.05  # distance of two patches, relative to their size, below which they are the same
_CYCLE = 6  # patches back that are compared
_SILENT_RMS = 10 ** (-55 / 20)


@dataclass(slots=True)
class Guard:
    """Watches one phrase.

    Attributes:
        tokens: Text tokens of the phrase.
        patches_per_s: Of the model.
        limits: See there.
        made: Patches so far.
    """

    tokens: int
    patches_per_s: float
    limits: Limits
    made: int = 0
    _recent: deque[Patch] = field(default_factory=lambda: deque(maxlen=_CYCLE))
    _repeats: int = 0
    _spoke: bool = False
    _silent: int = 0

    @property
    def _rate(self) -> float:
        """Patches here for each patch of 160 ms."""
        return self.patches_per_s / 6.25

    @property
    def cap(self) -> int:
        """Patches at which the phrase ends at the latest."""
        return int((self.tokens * self.limits.most_per_token + self.limits.most_extra) * self._rate)

    def may_stop(self) -> bool:
        """Whether the stop head is heard for the patch that was just made."""
        least = int(self.tokens * self.limits.least_per_token * self._rate)
        return self.made - 1 > max(self.limits.min_len, least)

    def take(self, patch: Patch) -> str:
        """Counts a patch, (frames, feat dim). Returns why the phrase has to end with it, or nothing."""
        self.made += 1
        size = float(np.linalg.norm(patch)) + 1e-9
        alike = any(float(np.linalg.norm(patch - other)) < _ALIKE * size for other in self._recent)
        self._repeats = self._repeats + 1 if alike and self._spoke else 0  # silence before speech is all alike
        self._recent.append(patch)
        if self._repeats >= self.limits.repeated_s * self.patches_per_s:
            return "repetition"
        return "cap" if self.made >= self.cap else ""

    @property
    def suspicious(self) -> bool:
        """The phrase may be over or stuck: what comes now is better held back while there is time."""
        return self._repeats > 0 or self._silent > 0

    @property
    def silent(self) -> int:
        """Patches at the end that were silent."""
        return self._silent

    def hear(self, pcm: Patch) -> str:
        """Listens to a decoded patch. Returns why the phrase has to end after it, or nothing."""
        rms = float(np.sqrt(np.mean(np.square(pcm)))) if pcm.size else 0.0
        if rms > _SILENT_RMS:
            self._spoke, self._silent = True, 0
        elif self._spoke:
            self._silent += 1
        return "silence" if self._silent >= self.limits.silent_s * self.patches_per_s else ""
