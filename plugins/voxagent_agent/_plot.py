"""`Recording`: one side of a call on the event loop's clock, what can be measured in it, and a picture of both sides.

Pure but for the drawing, for which matplotlib is loaded. Knows nothing of packets and peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxagent.pcm import Pcm16

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATE = 48000
"""Of every recording, Hz."""
AUDIBLE_DBFS = -50.0
"""Blocks above it can be heard."""
BLOCK_S = 0.005
_BLOCK = 240
_FLOOR_DBFS = -120.0
_SPLASH_HZ = 6000
# How far back "the speech before" reaches: long enough for a few vowels and fricatives.
_BEFORE_S = 2.0
_STEP = 48
# 16 steps of 16-bit PCM: below the background of any voice, above what a decoder leaves of digital silence.
_DEAD = 16
_LONGEST_GAP_S = 0.045
_LOUD_DB = 20.0


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, seconds on the event loop's clock."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long it lasts."""
        return self.end_s - self.start_s


def loudness(pcm: Pcm16) -> NDArray[np.float64]:
    """Level of every whole 5 ms of 48 kHz mono, dBFS (a full-scale square wave is 0), at least -120."""
    blocks = pcm[: len(pcm) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).astype(np.float64) / 32768
    power = np.mean(blocks**2, axis=1) if len(blocks) else np.zeros(0)
    level: NDArray[np.float64] = 10 * np.log10(np.maximum(power, 10 ** (_FLOOR_DBFS / 10)))
    return level


@dataclass(frozen=True, slots=True)
class Recording:
    """Mono audio on the event loop's clock.

    Every time is in seconds on that clock, exact to a block of 5 ms unless said otherwise. What lies before the start
    and after the end counts as silence.

    Attributes:
        start_s: When the first sample sounded.
        pcm: 48 kHz mono int16, shape (samples,).
    """

    start_s: float
    pcm: Pcm16

    @property
    def end_s(self) -> float:
        """The end of the last sample."""
        return self.start_s + len(self.pcm) / RATE

    def loudness(self) -> NDArray[np.float64]:
        """Level of every 5 ms, dBFS, shape (blocks,)."""
        return loudness(self.pcm)

    def audible(self, threshold_dbfs: float = AUDIBLE_DBFS) -> NDArray[np.bool_]:
        """Which blocks of 5 ms can be heard, shape (blocks,)."""
        return np.asarray(self.loudness() > threshold_dbfs)

    def first_audible_after(self, at_s: float, threshold_dbfs: float = AUDIBLE_DBFS) -> float | None:
        """The start of the first audible block that begins at `at_s` or later; None when there is none."""
        loud = np.flatnonzero(self.audible(threshold_dbfs)[self._block(at_s) :])
        return self._time(self._block(at_s) + int(loud[0])) if len(loud) else None

    def last_audible_before(self, at_s: float, threshold_dbfs: float = AUDIBLE_DBFS) -> float | None:
        """The end of the last audible block that begins before `at_s`; None when there is none."""
        loud = np.flatnonzero(self.audible(threshold_dbfs)[: self._block(at_s)])
        return self._time(int(loud[-1]) + 1) if len(loud) else None

    def last_audible_after(
        self, at_s: float, quiet_s: float = 0.3, threshold_dbfs: float = AUDIBLE_DBFS
    ) -> float | None:
        """Where what sounds at `at_s` ends: after it nothing is audible for `quiet_s`.

        Returns:
            The end of the last audible block; None when nothing is audible within `quiet_s` after `at_s`.
        """
        first = self._block(at_s)
        loud = np.flatnonzero(self.audible(threshold_dbfs)[first:])
        patience = round(quiet_s / BLOCK_S)
        if not len(loud) or loud[0] >= patience:
            return None
        pauses = np.flatnonzero(np.diff(loud) > patience)
        return self._time(first + int(loud[pauses[0]] if len(pauses) else loud[-1]) + 1)

    def silences(self, shortest_s: float = 0.02, threshold_dbfs: float = AUDIBLE_DBFS) -> list[Span]:
        """The silences inside speech: between two audible blocks, `shortest_s` or longer."""
        loud = np.flatnonzero(self.audible(threshold_dbfs))
        pauses = np.flatnonzero((np.diff(loud) - 1) * BLOCK_S >= shortest_s - 1e-9)
        return [Span(self._time(int(loud[at]) + 1), self._time(int(loud[at + 1]))) for at in pauses]

    def ducked_at(self, at_s: float, db: float, lasting_s: float = 0.2) -> float | None:
        """Since when, after `at_s`, the speech is at least `db` softer than its loud parts (p90) in the 2 s before.

        A pause is softer, too: one longer than `lasting_s` cannot be told from ducking.

        Args:
            at_s: Where to begin.
            db: How much, positive; ask for less than the sender ducks by, since loud parts differ by a few dB.
            lasting_s: Nothing as loud may come within this time.
        """
        level = self.loudness()
        first = self._block(at_s)
        before = level[max(0, first - round(_BEFORE_S / BLOCK_S)) : first]
        before = before[before > AUDIBLE_DBFS]
        if not len(before):
            return None
        lasting = round(lasting_s / BLOCK_S)
        loud = np.flatnonzero(level[first:] > np.percentile(before, 90) - db)
        edges = np.concatenate(([-1], loud, [len(level) - first]))
        long = np.flatnonzero(np.diff(edges) > lasting)
        return self._time(first + int(edges[long[0]]) + 1) if len(long) else None

    def splash_db(self, cut_s: float) -> float | None:
        """How much a cut clicks: the most energy over 6 kHz in any 5 ms within 10 ms of it, against the speech before.

        Returns:
            dB over the median of the audible blocks in the 2 s before; None when nothing was audible there.
        """
        centre = round((cut_s - self.start_s) * RATE)
        margin = 2 * _BLOCK
        first = max(0, centre - round(_BEFORE_S * RATE) - margin)
        piece = self.pcm[first : centre + 4 * margin].astype(np.float64) / 32768
        audible = np.flatnonzero(loudness(self.pcm[first : max(first, centre - margin)]) > AUDIBLE_DBFS)
        # The ends of the piece are cuts as well.
        audible = audible[(audible >= 2)]
        if not len(audible):
            return None
        spectrum = np.fft.rfft(piece)
        spectrum[: int(_SPLASH_HZ * len(piece) / RATE)] = 0
        energy = np.concatenate(([0.0], np.cumsum(np.fft.irfft(spectrum, len(piece)) ** 2)))
        of_block = energy[_BLOCK:] - energy[:-_BLOCK] + 1e-12
        around = of_block[max(0, centre - first - margin) : centre - first + margin - _BLOCK + 1]
        if not len(around):
            return None
        return float(10 * np.log10(around.max() / np.median(of_block[audible * _BLOCK])))

    def made_up_gaps(self, shortest_s: float = 0.005) -> list[Span]:
        """Holes of dead silence in loud sound, up to 45 ms: a sender that had nothing to send and filled up.

        Speech pauses neither as abruptly nor as completely. A codec eats 1 to 3 ms at each edge of a hole, so one frame
        of 10 ms measures 5 ms or more. Exact to a millisecond.
        """
        steps = self.pcm[: len(self.pcm) // _STEP * _STEP].reshape(-1, _STEP).astype(np.int32)
        peaks = np.abs(steps).max(axis=1) if len(steps) else np.zeros(0, np.int32)
        alive = np.flatnonzero(peaks > _DEAD)
        loud = 10 ** (-_LOUD_DB / 20) * np.percentile(peaks[alive], 95) if len(alive) else 0
        gaps = []
        for at in np.flatnonzero(np.diff(alive) - 1 >= round(shortest_s * RATE / _STEP)):
            begin, end = int(alive[at]) + 1, int(alive[at + 1])
            beside = min(peaks[max(0, begin - 6) : begin].max(), peaks[end : end + 6].max())
            if beside >= loud and (end - begin) * _STEP / RATE <= _LONGEST_GAP_S:
                gaps.append(Span(self.start_s + begin * _STEP / RATE, self.start_s + end * _STEP / RATE))
        return gaps

    def _block(self, at_s: float) -> int:
        return max(0, int(np.ceil((at_s - self.start_s) / BLOCK_S - 1e-6)))

    def _time(self, block: int) -> float:
        return self.start_s + block * BLOCK_S


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to point out in the picture.

    Attributes:
        at_s: When, on the event loop's clock.
        text: What.
        colour: As matplotlib names it.
    """

    at_s: float
    text: str
    colour: str = "tab:red"


def draw_call(
    path: Path,
    caller: Recording,
    bot: Recording,
    marks: Sequence[Mark] = (),
    messages: Sequence[Mark] = (),
    title: str = "",
) -> None:
    """Draws both sides' waveforms, their levels, marks through all of it, and the bot's messages below.

    Args:
        path: A .png, .svg or .pdf file.
        caller: What the caller said; its start is the picture's zero.
        bot: What came from the bot.
        marks: Vertical lines with their texts on top.
        messages: Ticks in a lane of their own.
        title: Of the picture.

    Raises:
        ValueError: matplotlib is missing, or cannot write this kind of file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("a picture needs matplotlib: pip install 'pipecat-voxagent[pipecat]'") from error
    seconds = max(caller.end_s, bot.end_s) - caller.start_s
    figure = Figure(figsize=(min(40.0, max(10.0, 1.2 * seconds)), 7), layout="constrained")
    above, below, level, lane = figure.subplots(4, 1, sharex=True, height_ratios=[2, 2, 2, 1])
    zero_s = caller.start_s
    for axes, name, recording, colour in ((above, "caller", caller, "tab:blue"), (below, "bot", bot, "tab:gray")):
        _wave(axes, recording, zero_s, colour)
        axes.set_ylabel(name)
        times_s = recording.start_s - zero_s + np.arange(len(recording.loudness())) * BLOCK_S
        level.plot(times_s, recording.loudness(), color=colour, linewidth=0.7, label=name)
    level.axhline(AUDIBLE_DBFS, color="black", linewidth=0.5, linestyle=":")
    level.set_ylim(-90, 0)
    level.set_ylabel("dBFS")
    for mark in marks:
        for axes in (above, below, level):
            axes.axvline(mark.at_s - zero_s, color=mark.colour, linewidth=1.2)
        _write(above, mark, zero_s, 1.02, 0)
    for index, message in enumerate(messages):
        lane.axvline(message.at_s - zero_s, color=message.colour, linewidth=0.8)
        _write(lane, message, zero_s, 0.8 - 0.2 * (index % 4), 1)
    lane.set_ylabel("messages")
    lane.set_yticks([])
    lane.set_xlabel("seconds")
    lane.set_xlim(0, max(seconds, 0.1))
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)


def _wave(axes: Axes, recording: Recording, zero_s: float, colour: str) -> None:
    """The extremes of every 5 ms: a plot of each sample hides short holes and takes a hundred times as long."""
    pcm = recording.pcm[: len(recording.pcm) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    times_s = recording.start_s - zero_s + np.arange(len(pcm)) * BLOCK_S
    if len(pcm):
        low, high = pcm.min(axis=1) / 32768, pcm.max(axis=1) / 32768
        axes.fill_between(times_s, low, high, color=colour, linewidth=0.3)
    axes.set_ylim(-1, 1)


def _write(axes: Axes, mark: Mark, zero_s: float, height: float, margin: int) -> None:
    options: dict[str, Any] = {"fontsize": 6.5, "color": mark.colour, "clip_on": bool(margin)}
    # What the font lacks is no reason for a warning.
    text = mark.text[:40].encode("ascii", "replace").decode().replace("$", r"\$")
    axes.text(mark.at_s - zero_s + 0.02, height, text, transform=axes.get_xaxis_transform(), **options)
