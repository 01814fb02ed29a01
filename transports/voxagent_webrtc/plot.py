"""What was heard in a call: packets as they arrive (`Wire`), one side of it on the event loop's clock (`Recording`),
what can be measured in it, and a picture of both sides (matplotlib is loaded when drawing).

Knows nothing of peers and signalling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import av
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
# About as wide as a label of a message: a tick without room for one stays bare.
_LABEL_S = 1.0
# A timestamp that leaves the clock by more belongs to a stream that started anew.
_JUMP_SAMPLES = 5 * RATE
_JUMP_PACKETS = 1000
# Pauses between sentences are shorter, pauses between replies longer.
_REPLY_PAUSE_S = 0.8


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

    def between(self, from_s: float, to_s: float) -> Pcm16:
        """The samples of a stretch of time, as far as there are any; exact to the sample."""
        first, end = (max(0, round((at_s - self.start_s) * RATE)) for at_s in (from_s, to_s))
        return self.pcm[first:end]

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
        audible = audible[audible >= 2]
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


class _RtpPacket(Protocol):
    sequence_number: int
    timestamp: int
    marker: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class HeardPacket:
    """One packet of the bot's voice.

    Attributes:
        arrived_s: On the event loop's clock.
        sequence_number: Unwrapped.
        timestamp: Unwrapped, in samples of 48 kHz.
        marker: Its marker bit.
        bytes: Size of the Opus payload.
        pcm: Decoded, 48 kHz mono; empty when it cannot be decoded.
    """

    arrived_s: float
    sequence_number: int
    timestamp: int
    marker: bool
    bytes: int
    pcm: Pcm16


class Wire:
    """The bot's packets as they arrive. Stands where aiortc has a jitter buffer of 80 ms, and keeps its decoder idle.

    Attributes:
        packets: In the order of arrival, without duplicates.
        replies: What the bot said, in stretches 0.8 s and more apart.
        late: Packets that came after a later one.
        bad: Packets that could not be decoded.
    """

    def __init__(self, on_packet: Callable[[], None]) -> None:
        self.packets: list[HeardPacket] = []
        self.replies: list[Span] = []
        self.late = self.bad = 0
        self._on_packet = on_packet
        self._numbers: set[int] = set()
        self._highest: int | None = None
        self._raw = (0, 0)
        self._codec = av.CodecContext.create("libopus", "r")
        self._codec.layout = "mono"
        self._codec.sample_rate = RATE

    def add(self, packet: _RtpPacket) -> tuple[bool, None]:
        """Called by aiortc with every packet."""
        now_s = asyncio.get_running_loop().time()
        number, timestamp = self._unwrap(packet, now_s)
        if number not in self._numbers:
            self.late += self._highest is not None and number < self._highest
            self._highest = number if self._highest is None else max(self._highest, number)
            self._numbers.add(number)
            pcm = self._decode(packet.payload)
            heard = HeardPacket(now_s, number, timestamp, bool(packet.marker), len(packet.payload), pcm)
            self.packets.append(heard)
            self._follow(heard)
            self._on_packet()
        return False, None

    @property
    def lost(self) -> int:
        """Packets that never came."""
        if self._highest is None:
            return 0
        return self._highest - min(self._numbers) + 1 - len(self._numbers)

    def by_arrival(self) -> Recording:
        """The bot's voice as a listener without any buffer hears it: every packet sounds as it arrives."""
        if not self.packets:
            return Recording(0.0, np.zeros(0, np.int16))
        start_s = self.packets[0].arrived_s
        return self._placed(start_s, [round((packet.arrived_s - start_s) * RATE) for packet in self.packets])

    def by_timestamp(self) -> Recording:
        """The bot's voice as it was sent, without the network's jitter; what was lost is silence.

        It lies on the clock so that the most punctual packet sounds as it arrives.
        """
        if not self.packets:
            return Recording(0.0, np.zeros(0, np.int16))
        first = min(packet.timestamp for packet in self.packets)
        offset_s = min(packet.arrived_s - packet.timestamp / RATE for packet in self.packets)
        return self._placed(offset_s + first / RATE, [packet.timestamp - first for packet in self.packets])

    def lateness_s(self) -> list[float]:
        """How much later than the most punctual one each packet came, measured against its timestamp."""
        offsets_s = [packet.arrived_s - packet.timestamp / RATE for packet in self.packets]
        earliest_s = min(offsets_s, default=0.0)
        return [offset_s - earliest_s for offset_s in offsets_s]

    def jitter_s(self) -> float:
        """RFC 3550, section 6.4.1."""
        jitter_s = 0.0
        for before, packet in zip(self.packets, self.packets[1:], strict=False):
            sent_s = (packet.timestamp - before.timestamp) / RATE
            jitter_s += (abs(packet.arrived_s - before.arrived_s - sent_s) - jitter_s) / 16
        return jitter_s

    def _unwrap(self, packet: _RtpPacket, now_s: float) -> tuple[int, int]:
        raw, self._raw = self._raw, (packet.sequence_number, packet.timestamp)
        if not self.packets:
            return self._raw
        last = self.packets[-1]
        ahead = (packet.sequence_number - raw[0] + 0x8000 & 0xFFFF) - 0x8000
        moved = (packet.timestamp - raw[1] + 0x80000000 & 0xFFFFFFFF) - 0x80000000
        expected = round((now_s - last.arrived_s) * RATE)
        if abs(moved - expected) > _JUMP_SAMPLES or abs(ahead) > _JUMP_PACKETS:
            ahead, moved = 1, expected
        return last.sequence_number + ahead, last.timestamp + moved

    def _decode(self, payload: bytes) -> Pcm16:
        try:
            frames = self._codec.decode(av.Packet(payload)) if payload else []
        except av.FFmpegError:
            self.bad += 1
            frames = []
        parts = [frame.to_ndarray().ravel() for frame in frames]
        return np.concatenate([np.zeros(0, np.int16), *parts]).astype(np.int16, copy=False)

    def _follow(self, packet: HeardPacket) -> None:
        loud = np.flatnonzero(loudness(packet.pcm) > AUDIBLE_DBFS)
        if not len(loud):
            return
        begin_s, end_s = packet.arrived_s + loud[0] * BLOCK_S, packet.arrived_s + (loud[-1] + 1) * BLOCK_S
        if self.replies and begin_s - self.replies[-1].end_s < _REPLY_PAUSE_S:
            self.replies[-1] = Span(self.replies[-1].start_s, float(end_s))
        else:
            self.replies.append(Span(float(begin_s), float(end_s)))

    def _placed(self, start_s: float, places: list[int]) -> Recording:
        length = max(place + len(packet.pcm) for place, packet in zip(places, self.packets, strict=True))
        pcm = np.zeros(length, np.int16)
        for place, packet in zip(places, self.packets, strict=True):
            pcm[place : place + len(packet.pcm)] = packet.pcm
        return Recording(start_s, pcm)


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
    free_s = [0.0] * 4
    for message in messages:
        at_s = message.at_s - zero_s
        lane.axvline(at_s, color=message.colour, linewidth=0.8)
        row = next((row for row, end_s in enumerate(free_s) if at_s >= end_s), None)
        if row is not None:
            free_s[row] = at_s + _LABEL_S
            _write(lane, message, zero_s, 0.8 - 0.2 * row, 1)
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
