"""The shape of a cut voice: its hop, and how far each part looks around. Pure data and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a tensor extends around a stretch of latent frames, in the tensor's own samples.

    Attributes:
        rate: Samples per latent frame.
        left: Samples before the stretch.
        right: Samples after it.
    """

    rate: int
    left: int
    right: int

    def span(self, start: int, end: int, total: int) -> tuple[int, int]:
        """Samples of the tensor for the frames `start` to `end` of a phrase of `total` frames; it ends with them."""
        return max(0, start * self.rate - self.left), min(total * self.rate, end * self.rate + self.right)


@dataclass(frozen=True, slots=True)
class Crop:
    """A place in a graph where context is dropped that no later layer needs.

    Attributes:
        have: What arrives.
        want: What goes on.
    """

    have: Reach
    want: Reach


@dataclass(frozen=True, slots=True)
class Stencil:
    """How a part that looks around is run on a stretch of frames.

    Attributes:
        source: What to feed.
        crops: In the order of the graph's ``bounds`` input, a start and an end each.
        result: What comes out.
    """

    source: Reach
    crops: tuple[Crop, ...]
    result: Reach

    def bounds(self, start: int, end: int, total: int) -> list[int]:
        """The ``bounds`` input for the frames `start` to `end` of a phrase of `total` frames."""
        bounds: list[int] = []
        for crop in self.crops:
            origin = crop.have.span(start, end, total)[0]
            low, high = crop.want.span(start, end, total)
            bounds += [low - origin, high - origin]
        return bounds


@dataclass(frozen=True, slots=True)
class Layout:
    """What the runtime must know of a cut voice.

    Attributes:
        hop: PCM samples per latent frame.
        noise: Channels of the duration predictor's noise; 0 when it is deterministic.
        flow: From prior to latents.
        decoder: From latents to PCM.
    """

    hop: int
    noise: int
    flow: Stencil
    decoder: Stencil
