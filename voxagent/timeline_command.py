"""`voxagent timeline`: one call's record as a table of its turns, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from voxagent.drawing import draw
from voxagent.record import CallSummary, Event, read_record, summary

# Silence inside speech that does not start it anew; the ladder's own default.
_GAP_S = 0.08
# A stop word is recognised some time after the voice that said it.
_ONSET_S = 3.0


@dataclass(slots=True)
class Climb:
    """One climb of the barge-in ladder.

    Attributes:
        at_s: Its first decision.
        onset_s: When the caller's voice began; None when something else caused it.
        steps: Action to the time of its decision.
        cause: Of the last decision.
        silent_s: Last audible packet after the bot was held or cut; None when it was silent anyway.
    """

    at_s: float
    onset_s: float | None
    steps: dict[str, float] = field(default_factory=dict)
    cause: str = ""
    silent_s: float | None = None

    @property
    def over(self) -> bool:
        """Whether the bot went on, or never will."""
        return "resume" in self.steps or "cancel" in self.steps

    def text(self) -> Text:
        """In one line, milliseconds after the voice's onset."""
        origin_s = self.at_s if self.onset_s is None else self.onset_s
        moments = [*self.steps.items()]
        if self.silent_s is not None:
            moments.append(("silent", self.silent_s))
        steps = " · ".join(f"{name} +{1000 * (at_s - origin_s):.0f}" for name, at_s in sorted(moments, key=_second))
        cause = f" ({self.cause})" if self.cause else ""
        return Text(f"{origin_s:.2f} s {steps} ms{cause}", style="red" if "cancel" in self.steps else "green")


@dataclass(slots=True)
class Turn:
    """One reply of the bot, as the record tells it. What was said is a text, or its number of characters.

    Attributes:
        turn: Its id.
        at_s: When its first token, phrase, chunk or word came.
        said: What the caller had said before it.
        response_ms: End of the caller's turn to the first audible sample.
        parts: What the response is made of, ms.
        heard: What was heard whole; None when the record ends before the turn did.
        unheard: The rest, a partly heard word included.
        words: Words that were heard.
        climbs: What the caller's voice did to it.
        backchannels: What the caller said over it without stopping it.
    """

    turn: object
    at_s: float
    said: list[str | int] = field(default_factory=list)
    response_ms: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    heard: str | int | None = None
    unheard: str | int = ""
    words: list[str | int] = field(default_factory=list)
    climbs: list[Climb] = field(default_factory=list)
    backchannels: list[str | int] = field(default_factory=list)


def turns_of(events: Sequence[Event]) -> list[Turn]:
    """The turns of a record, in order. Events without a turn belong to the one that began last."""
    reading = _Reading(any(event.kind == "packet" for event in events))
    for event in events:
        reading.take(event)
    return list(reading.turns.values())


class _Reading:
    """Goes through a record from front to back.

    Args:
        by_packets: Whether packets tell when the bot is audible; if not, its own word for it must do.
    """

    def __init__(self, by_packets: bool) -> None:
        self.turns: dict[object, Turn] = {}
        self._edges = ("packet", "first_audible", "last_audible") if by_packets else ("bot", "started", "stopped")
        self._said: list[str | int] = []
        self._last: Turn | None = None
        self._climb: Climb | None = None
        self._sounding: Climb | None = None
        self._voice_s = self._voice_end_s = -inf

    def take(self, event: Event) -> None:
        """Reads the next event."""
        fields = event.fields
        if "turn" in fields:
            self._take_of_turn(event, self._turn(fields["turn"], event.at_s))
        match event.kind, fields.get("event"):
            case "user_voice", _:
                self._take_voice(event.at_s, bool(fields.get("on")))
            case "transcript", _ if fields.get("final"):
                self._said.append(fields.get("text", ""))
            case "latency", _ if self._last is not None:
                self._last.response_ms = fields.get("response_ms")
                self._last.parts = fields.get("parts") or {}
            case "backchannel", _ if self._last is not None:
                self._last.backchannels.append(fields.get("text", ""))
            case "decision", _:
                self._decide(event.at_s, str(fields.get("action")), str(fields.get("cause", "")))
            case kind, edge if (kind, edge) == (self._edges[0], self._edges[2]) and self._sounding is not None:
                self._sounding.silent_s = event.at_s
                self._sounding = None
            case kind, edge if (kind, edge) == self._edges[:2]:
                self._sounding = None

    def _turn(self, turn: object, at_s: float) -> Turn:
        if turn not in self.turns:
            self._last = self.turns[turn] = Turn(turn, at_s, said=self._said)
            self._said = []
        return self.turns[turn]

    def _take_of_turn(self, event: Event, turn: Turn) -> None:
        match event.kind:
            case "word":
                turn.words.append(event.fields.get("text", ""))
            case "spoken" | "cut":
                turn.heard = event.fields.get("heard", "")
                turn.unheard = event.fields.get("unheard", "")

    def _take_voice(self, at_s: float, on: bool) -> None:
        if not on:
            self._voice_end_s = at_s
        elif at_s - self._voice_end_s > _GAP_S:
            self._voice_s = at_s

    def _decide(self, at_s: float, action: str, cause: str) -> None:
        if self._climb is None or self._climb.over:
            if action == "resume":
                return
            lasting = self._voice_s > self._voice_end_s or at_s - self._voice_end_s < _ONSET_S
            self._climb = Climb(at_s, self._voice_s if lasting else None)
            if self._last is not None:
                self._last.climbs.append(self._climb)
        self._climb.steps.setdefault(action, at_s)
        self._climb.cause = cause
        if action == "resume":
            self._sounding = None
        if action in ("pause", "cancel") and self._climb.silent_s is None:
            self._sounding = self._climb


def _second(item: tuple[str, float]) -> float:
    return item[1]


def timeline(
    file: Annotated[Path, typer.Argument(help="A call's record, one JSON object a line.")],
    out: Annotated[Path | None, typer.Option(help="Draw it: a .png, .svg or .pdf file.")] = None,
    from_s: Annotated[float, typer.Option("--from", help="Seconds into the call to begin at.", min=0.0)] = 0.0,
    to_s: Annotated[float | None, typer.Option("--to", help="Seconds into the call to end at.", min=0.0)] = None,
) -> None:
    """Tells what happened in a call, turn by turn: how fast it answered, what was heard, who spoke over whom."""
    try:
        events = read_record(file)
        if not events:
            raise ValueError(f"{file} holds no events: the call ended before its first second, or never began")
        pictures = [] if out is None else draw(events, out, from_s, to_s)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    end_s = events[-1].at_s if to_s is None else to_s
    console = Console(highlight=False)
    console.print(headline(summary(events)))
    console.print(table_of(turn for turn in turns_of(events) if from_s <= turn.at_s <= end_s))
    for event in events:
        if event.kind in ("error", "lost") and from_s <= event.at_s <= end_s:
            console.print(_trouble(event))
    for picture in pictures:
        console.print(Text(f"drawn: {picture}", style="dim"), soft_wrap=True)


def headline(call: CallSummary) -> Text:
    """A call in one line."""
    median = "" if call.response_median_ms is None else f" · answers in {call.response_median_ms:.0f} ms (median)"
    return Text.assemble(
        (f"call {call.call or '(no id)'}", "bold"),
        f" · {call.started_at}" if call.started_at else "",
        f" · {call.duration_s:.1f} s · {call.turns} turns · {call.interruptions} cut{median} · {call.end_reason}",
    )


def table_of(turns: Iterable[Turn]) -> Table:
    """One row a turn."""
    table = Table("turn", "at", "answered", "what was said", "words", "voice over the bot", show_lines=True)
    for name in ("turn", "at", "words"):
        column = next(column for column in table.columns if column.header == name)
        column.justify, column.no_wrap = "right", True
    for turn in turns:
        over = [climb.text() for climb in turn.climbs]
        over += [Text(f"“{_shown(text)}” (went on)", style="dim") for text in turn.backchannels]
        table.add_row(
            Text(str(turn.turn)), f"{turn.at_s:.2f} s", _response(turn), _speech(turn), _amounts(turn), Group(*over)
        )
    return table


def _response(turn: Turn) -> Text:
    if turn.response_ms is None:
        return Text("")
    text = Text(f"{turn.response_ms:.0f} ms", style="bold")
    parts = [f"{name} {ms:.0f}" for name, ms in turn.parts.items() if ms is not None]
    return text.append("\n" + " · ".join(parts), style="not bold dim") if parts else text


def _speech(turn: Turn) -> Text:
    text = Text()
    for said in turn.said:
        text.append(f"{_shown(said)}\n", style="cyan")
    text.append(" ".join(map(_shown, turn.words)) if turn.heard is None else _shown(turn.heard))
    if turn.unheard:
        text.append(" ").append(_shown(turn.unheard), style="red strike")
    return text


def _amounts(turn: Turn) -> Text:
    text = Text(_amount(len(turn.words) if turn.heard is None else turn.heard, "heard"))
    return text.append("\n" + _amount(turn.unheard, "unheard"), style="red") if turn.unheard else text


def _amount(speech: str | int, what: str) -> str:
    return f"{len(speech.split())} {what}" if isinstance(speech, str) else f"{speech} characters {what}"


def _shown(text: str | int) -> str:
    return text.strip() if isinstance(text, str) else f"({text} characters)"


def _trouble(event: Event) -> Text:
    what: Any = event.fields.get("message") if event.kind == "error" else f"{event.fields.get('count')} events lost"
    return Text(f"{event.at_s:.2f} s {event.kind}: {what}", style="red")
