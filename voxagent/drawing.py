"""A call's record as a picture: lanes over one clock, a row for every half minute.

Owns the layout and nothing else; what the events mean is told in `voxagent.record`. Matplotlib is loaded when drawing.
"""

from __future__ import annotations

import unicodedata
import warnings
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from voxagent.record import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_S = 30.0
_ROWS_A_PICTURE = 20
_WIDTH_IN = 24.0
_LEFT_IN = 0.9
_RIGHT_IN = 0.2
_AXIS_IN = 0.3
_TIER_IN = 0.13
_DPI = 110
# Monospaced, so that the width of a label is known before it is drawn. Pixels round a character's width up or down;
# at this size it is seven of them as it is.
_FONT = "DejaVu Sans Mono"
_FONT_PT = 7.6
_CHARACTER_IN = 7 / _DPI
_LANES = {
    "caller": 3,
    "decisions": 4,
    "tokens": 1,
    "phrases": 4,
    "chunks": 1,
    "bot": 1,
    "words": 3,
    "packets": 2,
    "errors": 2,
}
"""Name to height, in lines of text."""
_GAP_TIERS = 0.8
_ACTIONS = {"duck": "goldenrod", "pause": "darkorange", "cancel": "red", "resume": "green"}
_TURNS = ("tab:blue", "tab:purple")
_LATE_MS = 20.0
_LATE_FULL_MS = 60.0


def draw(events: Sequence[Event], path: Path, from_s: float = 0.0, to_s: float | None = None) -> list[Path]:
    """Draws a record.

    Args:
        events: In order, at least one.
        path: Picture to write; its ending tells the format: png, svg or pdf.
        from_s: Seconds into the call to begin at.
        to_s: Seconds into the call to end at; None for its end.

    Returns:
        The pictures written: `path`, and for more than ten minutes also `path` with -2, -3, … before the ending.

    Raises:
        ValueError: Matplotlib is missing, there is nothing between the two times, or the format is unknown.
        OSError: The picture cannot be written.
    """
    end_s = events[-1].at_s if to_s is None else to_s
    if end_s <= from_s:
        raise ValueError(f"nothing lies between {from_s:g} s and {end_s:g} s: the call took {events[-1].at_s:.1f} s")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist, make it first")
    call = _Call(events, path)
    width_s = min(_ROW_S, end_s - from_s)
    starts = [from_s + index * width_s for index in range(ceil((end_s - from_s) / width_s))]
    paths = []
    for page, first in enumerate(range(0, len(starts), _ROWS_A_PICTURE), 1):
        paths.append(path if page == 1 else path.with_stem(f"{path.stem}-{page}"))
        _draw_picture(call, paths[-1], starts[first : first + _ROWS_A_PICTURE], width_s)
    return paths


@dataclass(frozen=True, slots=True)
class _Span:
    start_s: float
    end_s: float


class _Call:
    """A record, prepared: spans from edges, and only the lanes that hold something."""

    def __init__(self, events: Sequence[Event], path: Path) -> None:
        self._events = events
        self._times = [event.at_s for event in events]
        kinds = {event.kind for event in events}
        end_s = events[-1].at_s
        self.voice = list(_spans(((e.at_s, bool(e.fields.get("on"))) for e in self.of("user_voice")), end_s))
        self.user_turns = list(_spans(self._edges("user_turn", "started", "stopped"), end_s))
        self.bot = list(_spans(self._edges("bot", "started", "stopped"), end_s))
        self.audible = list(_spans(self._edges("packet", "first_audible", "last_audible"), end_s))
        cancels = [e.at_s for e in self.of("decision") if e.fields.get("action") == "cancel"]
        # A cut is noted when its words are known; it happened when the ladder said so.
        self.cuts = [(_before(cancels, e.at_s), _text(e, "unheard")) for e in self.of("cut")]
        turns = dict.fromkeys(e.fields["turn"] for e in events if "turn" in e.fields)
        self.colours: Mapping[object, str] = {turn: _TURNS[index % 2] for index, turn in enumerate(turns)}
        silent = {"packets": "packets", "errors": "error underrun lost"}
        self.lanes = {
            name: tiers for name, tiers in _LANES.items() if name not in silent or kinds & set(silent[name].split())
        }
        name = next((str(e.fields.get("call") or path.stem) for e in self.of("start")), path.stem)
        self.title = f"{name} · a colour a turn · bot: grey as it says itself, green in packets · struck: never heard"
        self.row_in = _TIER_IN * sum(tiers + _GAP_TIERS for tiers in self.lanes.values()) + _AXIS_IN

    def of(self, *kinds: str, start_s: float | None = None, end_s: float | None = None) -> Iterator[Event]:
        """Events of some kinds between two times."""
        first = 0 if start_s is None else bisect_left(self._times, start_s)
        last = len(self._times) if end_s is None else bisect_left(self._times, end_s)
        return (event for event in self._events[first:last] if event.kind in kinds)

    def _edges(self, kind: str, on: str, off: str) -> Iterator[tuple[float, bool]]:
        return ((e.at_s, e.fields["event"] == on) for e in self.of(kind) if e.fields.get("event") in (on, off))


def _spans(edges: Iterable[tuple[float, bool]], end_s: float) -> Iterator[_Span]:
    start_s: float | None = None
    for at_s, on in edges:
        if on and start_s is None:
            start_s = at_s
        elif not on and start_s is not None:
            yield _Span(start_s, at_s)
            start_s = None
    if start_s is not None:
        yield _Span(start_s, end_s)


def _before(times: Sequence[float], at_s: float) -> float:
    """The latest of the times up to ten seconds before; the time itself without one."""
    index = bisect_left(times, at_s + 1e-6)
    return times[index - 1] if index and at_s - times[index - 1] < 10 else at_s


class _Row:
    """One row of the picture: lanes below one another, filled from left to right.

    Args:
        axes: To draw on.
        lanes: Name to height, in lines of text.
        start_s: Time at its left edge.
        width_s: Time from edge to edge.
    """

    def __init__(self, axes: Axes, lanes: Mapping[str, int], start_s: float, width_s: float) -> None:
        self.start_s = start_s
        self.end_s = start_s + width_s
        self._axes = axes
        self._character_s = width_s * _CHARACTER_IN / (_WIDTH_IN - _LEFT_IN - _RIGHT_IN)
        self._tops: dict[str, float] = {}
        self._filled_s = {name: [start_s - width_s] * tiers for name, tiers in lanes.items()}
        top = 0.0
        for index, (name, tiers) in enumerate(lanes.items()):
            self._tops[name] = top + _GAP_TIERS * 0.75
            if index % 2 == 0:
                axes.axhspan(top, top + tiers + _GAP_TIERS, color="0.96", zorder=0, linewidth=0)
            top += tiers + _GAP_TIERS
        axes.set_xlim(self.start_s, self.end_s)
        axes.set_ylim(top, 0)
        axes.set_yticks([self._tops[name] + tiers / 2 for name, tiers in lanes.items()], list(lanes))
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.tick_params(axis="x", labelsize=7, pad=1)
        if width_s >= 10:
            axes.set_xticks([start_s + second for second in range(int(width_s) + 1)])
        axes.grid(axis="x", color="0.85", linewidth=0.5)
        axes.set_axisbelow(True)

    def bars(self, lane: str, spans: Iterable[_Span], colour: str, tier: float = 0.0, tiers: float = 1.0) -> None:
        """Draws spans as bars, from one line of the lane on and some lines high."""
        inside = [(s.start_s, s.end_s - s.start_s) for s in spans if s.start_s < self.end_s and s.end_s > self.start_s]
        self._axes.broken_barh(inside, (self._tops[lane] + tier, tiers), color=colour, linewidth=0.3, zorder=2)

    def ticks(self, lane: str, times_s: Sequence[float], colour: str, tier: float = 0.0, tiers: float = 1.0) -> None:
        """Draws moments as upright lines."""
        top = self._tops[lane] + tier
        self._axes.vlines(times_s, top, top + tiers, color=colour, linewidth=0.9, zorder=3)

    def mark(self, lane: str, at_s: float, colour: str) -> None:
        """Marks a moment above the lane's first line."""
        self.ticks(lane, [at_s], colour, -_GAP_TIERS * 0.6, _GAP_TIERS * 0.4)

    def cut(self, at_s: float) -> None:
        """Draws a moment through all lanes."""
        self._axes.axvline(at_s, color="red", linewidth=0.7, alpha=0.6, zorder=1)

    def label(
        self, lane: str, at_s: float, text: str, colour: str, first: int = 0, ends: bool = False, struck: bool = False
    ) -> None:
        """Writes beside a moment, on the first line of the lane that is free there.

        Where all are taken the one that is free first gets what is left of the text.

        Args:
            lane: Its name.
            at_s: The moment.
            text: What to write.
            colour: Of the text.
            first: Line to begin the search at.
            ends: The text ends at the moment rather than beginning there with an upright line.
            struck: With a line through it.
        """
        width_s = (_columns(text) + 1) * self._character_s
        left_s = max(self.start_s, min(at_s - width_s if ends else at_s, self.end_s - width_s))
        filled_s = self._filled_s[lane]
        lines = range(first, len(filled_s))
        line = next((line for line in lines if filled_s[line] <= left_s), None)
        if line is None:
            line = min(lines, key=filled_s.__getitem__)
            text = _shortened(f"· {text}", int((left_s + width_s - filled_s[line]) / self._character_s) - 1)
            left_s, width_s = filled_s[line], (_columns(text) + 1) * self._character_s
            if not text:
                return
        elif left_s == at_s:
            self.ticks(lane, [at_s], colour, line)
        filled_s[line] = left_s + width_s
        text_s, middle = left_s + self._character_s / 2, self._tops[lane] + line + 0.5
        self._axes.text(
            text_s, middle, text, color=colour, fontsize=_FONT_PT, family=_FONT, va="center", parse_math=False, zorder=4
        )
        if struck:
            self._axes.hlines(middle, text_s, left_s + width_s, color=colour, linewidth=0.8, zorder=5)


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _shortened(text: str, columns: int) -> str:
    """Cuts a text to a width; nothing is left when less than four columns are."""
    text = " ".join(text.split())
    if _columns(text) <= columns:
        return text
    while text and _columns(text) > columns - 1:
        text = text[:-1]
    return f"{text}…" if columns >= 4 else ""


def _text(event: Event, name: str = "text") -> str:
    """A text of an event; its length, when that is all the record has."""
    value = event.fields.get(name, "")
    return value if isinstance(value, str) else f"({value})"


def _draw_picture(call: _Call, path: Path, starts: Sequence[float], width_s: float) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("drawing a call needs matplotlib: pip install matplotlib") from error
    height_in = call.row_in * len(starts) + 0.6
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    figure.subplots_adjust(
        left=_LEFT_IN / _WIDTH_IN,
        right=1 - _RIGHT_IN / _WIDTH_IN,
        bottom=0.3 / height_in,
        top=1 - 0.3 / height_in,
        hspace=_AXIS_IN / (call.row_in - _AXIS_IN),
    )
    rows = figure.subplots(len(starts), 1, squeeze=False)[:, 0]
    rows[0].set_title(call.title, loc="left", fontsize=9)
    for axes, start_s in zip(rows, starts, strict=True):
        _draw_row(_Row(axes, call.lanes, start_s, width_s), call)
    with warnings.catch_warnings():
        # Scripts that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        figure.savefig(path, dpi=_DPI)


def _draw_row(row: _Row, call: _Call) -> None:
    _draw_caller(row, call)
    _draw_decisions(row, call)
    _draw_making(row, call)
    _draw_bot(row, call)
    _draw_words(row, call)
    if "packets" in call.lanes:
        _draw_packets(row, call)
    if "errors" in call.lanes:
        _draw_errors(row, call)


def _draw_caller(row: _Row, call: _Call) -> None:
    row.bars("caller", call.user_turns, "lightskyblue", 0.05, 0.25)
    row.bars("caller", call.voice, "tab:cyan", 0.35, 0.55)
    for event in call.of("transcript", start_s=row.start_s, end_s=row.end_s):
        if event.fields.get("final"):
            row.label("caller", event.at_s, _shortened(_text(event), 70), "teal", first=1)


def _draw_decisions(row: _Row, call: _Call) -> None:
    for event in call.of("decision", "latency", "backchannel", "llm", start_s=row.start_s, end_s=row.end_s):
        fields = event.fields
        match event.kind:
            case "decision":
                action, cause = str(fields.get("action")), fields.get("cause")
                text, colour = f"{action} ({cause})" if cause else action, _ACTIONS.get(action, "black")
                if action == "cancel":
                    row.cut(event.at_s)
            case "latency":
                text, colour = f"answered in {fields.get('response_ms') or 0:.0f} ms", "tab:blue"
            case "backchannel":
                text, colour = f"“{_text(event)}”", "green"
            case _ if fields.get("event") == "request":
                text, colour = "asks LLM", "gray"
            case _:
                continue
        row.mark("decisions", event.at_s, colour)
        row.label("decisions", event.at_s, text, colour)


def _draw_making(row: _Row, call: _Call) -> None:
    """Tokens, phrases and chunks; each turn in its own of two colours."""
    tokens: dict[str, list[float]] = defaultdict(list)
    chunks: dict[str, list[_Span]] = defaultdict(list)
    # A chunk may have been begun in this row and ended in the next.
    for event in call.of("token", "phrase", "chunk", start_s=row.start_s, end_s=row.end_s + 5):
        colour = call.colours.get(event.fields.get("turn"), "gray")
        if event.kind == "chunk":
            made_s = event.fields.get("made_ms", 0) / 1000
            chunks[colour].append(_Span(event.at_s - made_s, event.at_s))
        elif event.at_s >= row.end_s:
            continue
        elif event.kind == "token":
            tokens[colour].append(event.at_s)
        else:
            row.mark("phrases", event.at_s, colour)
            row.label("phrases", event.at_s, _shortened(_text(event), 40), colour)
    for colour, times_s in tokens.items():
        row.ticks("tokens", times_s, colour)
    for colour, spans in chunks.items():
        row.bars("chunks", spans, colour)


def _draw_bot(row: _Row, call: _Call) -> None:
    if call.audible:
        row.bars("bot", call.bot, "lightgray", 0.0, 1.0)
        row.bars("bot", call.audible, "seagreen", 0.25, 0.5)
    else:
        row.bars("bot", call.bot, "seagreen", 0.25, 0.5)
    gaps = call.of("underrun", start_s=row.start_s, end_s=row.end_s)
    row.ticks("bot", [event.at_s for event in gaps], "red")


def _draw_words(row: _Row, call: _Call) -> None:
    heard = [(event.at_s, _text(event), False) for event in call.of("word", start_s=row.start_s, end_s=row.end_s)]
    unheard = [(at_s, _shortened(text, 48), True) for at_s, text in call.cuts if row.start_s <= at_s < row.end_s]
    for at_s, text, cut in sorted(heard + unheard):
        row.label("words", at_s, text, "red" if cut else "black", ends=not cut, struck=cut)


def _draw_packets(row: _Row, call: _Call) -> None:
    """One bar a second: how late its latest packet was; red and with its number where that can be heard."""
    for event in call.of("packets", start_s=row.start_s, end_s=row.end_s + 1):
        late_ms = float(event.fields.get("late_ms_max") or 0)
        height = call.lanes["packets"] * max(0.04, min(1.0, late_ms / _LATE_FULL_MS))
        late = late_ms > _LATE_MS
        span = _Span(event.at_s - 0.95, event.at_s - 0.05)
        row.bars("packets", [span], "lightpink" if late else "silver", call.lanes["packets"] - height, height)
        if late and event.at_s < row.end_s:
            row.label("packets", span.end_s, f"{late_ms:.0f} ms late", "red", first=1, ends=True)


def _draw_errors(row: _Row, call: _Call) -> None:
    for event in call.of("error", "underrun", "lost", start_s=row.start_s, end_s=row.end_s):
        match event.kind:
            case "error":
                text = _shortened(_text(event, "message"), 100)
            case "underrun":
                text = f"gap of {event.fields.get('ms') or 0:.0f} ms"
            case _:
                text = f"{event.fields.get('count')} events lost"
        row.mark("errors", event.at_s, "red")
        row.label("errors", event.at_s, text, "red")
