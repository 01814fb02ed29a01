"""`voxagent call`: calls an agent, says WAV files at exact times, and tells what came back.

Owns the script of a call and its figures. How a call works is told in `caller`, what is measured in `plot`.
"""

from __future__ import annotations

import asyncio
import json
import math
import wave
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from aiortc import RTCIceServer
from aiortc.rtcicetransport import parse_stun_turn_uri
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from voxagent.benchmarks.figures import spread
from voxagent.cli import fail
from voxagent.errors import VoxagentError
from voxagent.pcm import Pcm, to_int16
from voxagent_webrtc.caller import Caller, Utterance, read_wav
from voxagent_webrtc.plot import BLOCK_S, RATE, Mark, Recording, draw_call, loudness

_SPEECH_DB = 20.0
_QUIET_S = 0.8
# How long a bot may think before the caller takes the floor: before a greeting, and before a reply.
_GREETING_S = 3.0
_REPLY_S = 8.0
_DUCK_DB = 6.0


@dataclass(frozen=True, slots=True)
class Line:
    """A WAV file to say.

    Attributes:
        name: Of the file.
        pcm: 48 kHz mono.
        at_s: After the connection, or after the first sound of a reply; None: when the bot is silent.
        onset_s: Where the speech in it begins: the first 5 ms within 20 dB of the loud parts.
        end_s: Where it ends.
    """

    name: str
    pcm: Pcm
    at_s: float | None
    onset_s: float
    end_s: float


def line(argument: str, at_s: float | None = None) -> Line:
    """Reads ``file.wav`` or ``file.wav@seconds``.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no speech.
    """
    name, at, seconds = argument.rpartition("@")
    try:
        if at:
            at_s = float(seconds)
    except ValueError:
        at = ""
    if at_s is not None and not 0 <= at_s < math.inf:
        raise ValueError(f"{argument}: the seconds after @ are 0 or more")
    path = Path(name if at else argument)
    pcm = read_wav(path)
    level = loudness(to_int16(pcm))
    speech = np.flatnonzero(level >= np.percentile(level, 95) - _SPEECH_DB) if len(level) else level
    if not len(speech):
        raise ValueError(f"{path} is too short to be heard: give at least 5 ms")
    return Line(path.name, pcm, at_s, float(speech[0] * BLOCK_S), float((speech[-1] + 1) * BLOCK_S))


@dataclass(frozen=True, slots=True)
class Turn:
    """Something that was said in the call."""

    kind: str
    line: Line
    spoken: Utterance

    @property
    def onset_s(self) -> float:
        """When its speech began, on the event loop's clock."""
        return self.spoken.start_s + self.line.onset_s

    @property
    def end_s(self) -> float:
        """When its speech ended."""
        return self.spoken.start_s + self.line.end_s


@dataclass(frozen=True, slots=True)
class Script:
    """What a caller does.

    Attributes:
        says: Those with a time are said then; the others when the bot is silent, one after another.
        barge_ins: The n-th is said over the reply to the n-th such line, or over the n-th reply when there is none.
        seconds: When it hangs up, after the connection.
        ice_servers: STUN and TURN servers.
    """

    says: Sequence[Line]
    barge_ins: Sequence[Line]
    seconds: float
    ice_servers: Sequence[RTCIceServer] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """A call in numbers; what did not happen, or could not be measured, is None.

    Attributes:
        ice_ms: Offer to ICE connected.
        connect_ms: Offer to the first packet of the bot's voice.
        first_audible_ms: Offer to its first audible sound.
        duration_s: From the first packet on.
        packets: Received.
        lost: Never came.
        late: Came after a later one.
        bad: Could not be decoded.
        lateness_ms: "p50", "p99" and "max", against the timestamps; clocks that drift apart count.
        jitter_ms: RFC 3550.
        rtt_ms: Round trip, by RTCP.
        bot_spoke_s: Audible sound.
        made_up_gaps: Holes in it that the sender made.
        made_up_ms: Their length together.
        mic_late_ms_max: The latest a packet of ours left; above 20 this machine is too busy to measure others.
        messages: Received.
        ended: Why the call ended.
    """

    ice_ms: float | None
    connect_ms: float
    first_audible_ms: float | None
    duration_s: float
    packets: int
    lost: int
    late: int
    bad: int
    lateness_ms: dict[str, float]
    jitter_ms: float
    rtt_ms: float | None
    bot_spoke_s: float
    made_up_gaps: int
    made_up_ms: float
    mic_late_ms_max: float
    messages: int
    ended: str


def figures_of(caller: Caller) -> Figures:
    """Measures a call, in progress or over."""
    wire = caller.wire
    recording = wire.by_timestamp()
    gaps = recording.made_up_gaps()
    lateness = np.percentile([1000 * late_s for late_s in wire.lateness_s()] or [0.0], [50, 99, 100])
    return Figures(
        ice_ms=_rounded(caller.ice_ms),
        connect_ms=round(caller.connect_ms, 1),
        first_audible_ms=_rounded(caller.first_audible_ms),
        duration_s=round(caller.duration_s, 3),
        packets=len(wire.packets),
        lost=wire.lost,
        late=wire.late,
        bad=wire.bad,
        lateness_ms=dict(zip(("p50", "p99", "max"), lateness.round(2).tolist(), strict=True)),
        jitter_ms=round(1000 * wire.jitter_s(), 2),
        rtt_ms=_rounded(caller.rtt_ms),
        bot_spoke_s=round(int(recording.audible().sum()) * BLOCK_S, 3),
        made_up_gaps=len(gaps),
        made_up_ms=round(1000 * sum(gap.length_s for gap in gaps), 1),
        mic_late_ms_max=round(caller.mic_late_ms_max, 2),
        messages=len(caller.messages),
        ended=caller.ended.value if caller.ended is not None else "it goes on",
    )


def turn_figures(turn: Turn, until_s: float, wire: Recording, sent: Recording) -> dict[str, Any]:
    """What the bot did when something was said; times in ms after its onset, the response after its end.

    Args:
        turn: What was said.
        until_s: When the caller spoke next: what came later answers that.
        wire: The bot's voice as it arrived.
        sent: The same by timestamp.
    """
    figures: dict[str, Any] = {"kind": turn.kind, "file": turn.line.name, "onset_s": round(turn.onset_s, 4)}
    response_s = wire.first_audible_after(turn.end_s)
    if turn.kind == "barge_in":
        duck_s, silent_s = _yielded(turn.onset_s, wire)
        cut_s = sent.last_audible_after(turn.onset_s)
        figures["duck_ms"] = _since(turn.onset_s, duck_s, until_s)
        figures["silence_ms"] = _since(turn.onset_s, silent_s, until_s)
        figures["splash_db"] = _rounded(sent.splash_db(cut_s)) if cut_s is not None else None
        response_s = wire.first_audible_after(max(turn.end_s, silent_s or 0.0))
    figures["response_ms"] = _since(turn.end_s, response_s, until_s)
    return figures


def _yielded(onset_s: float, wire: Recording) -> tuple[float | None, float | None]:
    """When the bot got softer, and when it fell silent; a pause, or the silence itself, is no ducking."""
    silent_s, duck_s = wire.last_audible_after(onset_s), wire.ducked_at(onset_s, _DUCK_DB)
    ducked = silent_s is not None and duck_s is not None and duck_s < silent_s - 4 * BLOCK_S
    return duck_s if ducked else None, silent_s


def _since(from_s: float, at_s: float | None, until_s: float) -> float | None:
    return round(1000 * (at_s - from_s), 1) if at_s is not None and at_s < until_s else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


@dataclass(slots=True)
class Call:
    """One call of the command: what was said in it, and the error that ended it early."""

    caller: Caller | None = None
    turns: list[Turn] = field(default_factory=list)
    error: VoxagentError | None = None

    def as_dict(self) -> dict[str, Any]:
        """Its figures, times in seconds after the microphone's first sample."""
        if self.caller is None:
            return {"error": str(self.error)}
        zero_s = self.caller.spoken.start_s
        wire, sent = self.caller.wire.by_arrival(), self.caller.wire.by_timestamp()
        turns = sorted(self.turns, key=lambda turn: turn.onset_s)
        next_s = [*(turn.onset_s for turn in turns[1:]), math.inf]
        said = [turn_figures(turn, at_s, wire, sent) for turn, at_s in zip(turns, next_s, strict=False)]
        for turn in said:
            turn["onset_s"] = round(turn["onset_s"] - zero_s, 4)
        messages = [{"at_s": round(message.at_s - zero_s, 4), "body": message.body} for message in self.caller.messages]
        return {"call": self.caller.call_id, **asdict(figures_of(self.caller)), "turns": said, "received": messages}


async def converse(url: str, script: Script) -> Call:
    """Makes one call by the script; an agent that refuses it, or cannot be reached, is told in `error`."""
    call = Call()
    loop = asyncio.get_running_loop()
    try:
        async with await Caller.connect(url, script.ice_servers) as caller:
            call.caller = caller
            began_s = loop.time()
            for timed in script.says:
                if timed.at_s is not None:
                    call.turns.append(Turn("say", timed, caller.say(timed.pcm, began_s + timed.at_s)))
            turns = asyncio.create_task(_take_turns(caller, script, call.turns))
            try:
                await caller.until(lambda: loop.time() >= began_s + script.seconds)
            finally:
                turns.cancel()
                await asyncio.wait([turns])
            if not turns.cancelled():
                turns.result()
        # What was planned but never left was not said.
        call.turns[:] = [turn for turn in call.turns if turn.spoken.start_s < caller.spoken.end_s]
    except VoxagentError as error:
        call.error = error
    return call


async def _take_turns(caller: Caller, script: Script, turns: list[Turn]) -> None:
    loop = asyncio.get_running_loop()
    untimed = [said for said in script.says if said.at_s is None]
    since_s = 0.0
    patience_s = _GREETING_S
    began_s = loop.time()
    for said, over in zip_longest(untimed, script.barge_ins):
        if said is not None:
            await _silent(caller, max(since_s, began_s), patience_s)
            turns.append(Turn("say", said, caller.say(said.pcm)))
            since_s = (await turns[-1].spoken).end_s
        if over is not None:
            await _speaking(caller, since_s)
            if caller.ended is not None:
                return
            at_s = caller.wire.replies[-1].start_s + (over.at_s or 0.0)
            turns.append(Turn("barge_in", over, caller.say(over.pcm, at_s)))
            since_s = (await turns[-1].spoken).end_s
        patience_s = _REPLY_S


async def _speaking(caller: Caller, since_s: float) -> None:
    """Waits for a reply that begins after `since_s`."""
    replies = caller.wire.replies
    await caller.until(lambda: bool(replies) and replies[-1].start_s >= since_s)


async def _silent(caller: Caller, since_s: float, patience_s: float) -> None:
    """Waits for the bot to say something after `since_s` and to stop, or to say nothing for as long as one waits."""
    loop = asyncio.get_running_loop()

    def silent() -> bool:
        last_s = caller.wire.replies[-1].end_s if caller.wire.replies else 0.0
        return loop.time() - last_s >= _QUIET_S if last_s > since_s else loop.time() - since_s >= patience_s

    await caller.until(silent)


async def _all(url: str, script: Script, calls: int, every_s: float) -> list[Call]:
    async def one(index: int) -> Call:
        await asyncio.sleep(index * every_s)
        return await converse(url, script)

    return list(await asyncio.gather(*(one(index) for index in range(calls))))


def together(calls: Sequence[Call], each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all calls in one: sums, and spreads of what each call measured."""
    good = [figures for figures in each if "error" not in figures]
    callers = [call.caller for call in calls if call.caller is not None]
    late = [1000 * late_s for caller in callers for late_s in caller.wire.lateness_s()]
    turns = [turn for figures in good for turn in figures["turns"]]
    return {
        "calls": len(calls),
        "failed": len(calls) - len(good),
        "packets": sum(figures["packets"] for figures in good),
        "lost": sum(figures["lost"] for figures in good),
        "bot_spoke_s": round(sum(figures["bot_spoke_s"] for figures in good), 3),
        "made_up_ms": round(sum(figures["made_up_ms"] for figures in good), 1),
        "connect_ms": spread(figures["connect_ms"] for figures in good),
        "lateness_ms": {"p99": round(float(np.percentile(late, 99)), 2) if late else None, **spread(late)},
        "response_ms": spread(turn["response_ms"] for turn in turns),
        "silence_ms": spread(turn.get("silence_ms") for turn in turns),
    }


def write_record(path: Path, caller: Recording, bot: Recording) -> None:
    """Writes both sides to a stereo WAV of 48 kHz, the caller left, the bot right, on the caller's clock."""
    before = max(0, round((bot.start_s - caller.start_s) * RATE))
    # What the bot said before our microphone was on has no place beside it.
    right = bot.pcm[max(0, round((caller.start_s - bot.start_s) * RATE)) :] if len(bot.pcm) else bot.pcm
    both = np.zeros((max(len(caller.pcm), before + len(right) if len(right) else 0), 2), "<i2")
    both[: len(caller.pcm), 0] = caller.pcm
    both[before : before + len(right), 1] = right
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(both.tobytes())


def _draw(path: Path, call: Call, caller: Caller) -> None:
    wire = caller.wire.by_arrival()
    marks = []
    for turn in call.turns:
        marks.append(
            Mark(turn.onset_s, turn.kind.replace("_", "-"), "tab:red" if turn.kind == "barge_in" else "tab:blue")
        )
        if turn.kind == "barge_in":
            found = zip(("duck", "silence"), _yielded(turn.onset_s, wire), strict=True)
            marks += [Mark(at_s, name, "tab:purple") for name, at_s in found if at_s is not None]
    messages = [Mark(message.at_s, _told(message.body), "tab:green") for message in caller.messages]
    draw_call(path, caller.spoken, caller.wire.by_timestamp(), marks, messages, f"call {caller.call_id}")


def _told(body: dict[str, Any]) -> str:
    return str(body.get("event") or body.get("type") or "message")


def ice_server(text: str) -> RTCIceServer:
    """Reads ``stun:host:port``, or ``turn:user:secret@host:port``."""
    scheme, _, rest = text.partition(":")
    credentials, at, address = rest.rpartition("@")
    user, _, secret = credentials.partition(":")
    server = RTCIceServer(f"{scheme}:{address}", user, secret) if at else RTCIceServer(text)
    try:
        parse_stun_turn_uri(str(server.urls))
    except ValueError as error:
        raise ValueError(f"{text!r} is no ICE server: give stun:host:port or turn:user:secret@host:port") from error
    return server


def call(
    url: Annotated[str, typer.Argument(help="Address of the agent, e.g. http://127.0.0.1:7860.")],
    say: Annotated[
        list[str] | None, typer.Option(help="WAV to say when the bot is silent, or a.wav@1.5 after 1.5 s; repeatable.")
    ] = None,
    barge_in: Annotated[
        list[str] | None,
        typer.Option(help="WAV to say over the next reply; b.wav@3 is 3 s after its first sound; repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="When to hang up, after connecting.", min=0.1)] = 15.0,
    record: Annotated[Path | None, typer.Option(help="Write a stereo WAV: caller left, bot right.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the call: a .png, .svg or .pdf file.")] = None,
    calls: Annotated[int, typer.Option(help="Calls at once.", min=1)] = 1,
    every: Annotated[float, typer.Option(help="Seconds from one call to the next.", min=0.0)] = 0.0,
    ice: Annotated[
        list[str] | None, typer.Option("--ice-server", help="stun:host:port or turn:user:secret@host:port; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")] = False,
) -> None:
    """Calls a voice agent, talks to it and over it, and tells how it behaved."""
    console = Console(stderr=as_json, highlight=False)
    try:
        for path in (record, plot):
            # Before the call: it must not be lost to a missing folder.
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist, make it first")
        servers = [ice_server(text) for text in ice or []]
        barge_ins = [line(text, 1.0) for text in barge_in or []]
        script = Script([line(text) for text in say or []], barge_ins, seconds, servers)
        with console.status(f"calling {url} …"):
            made = asyncio.run(_all(url, script, calls, every))
        if all(one.error is not None for one in made):
            raise made[0].error or VoxagentError("no call was made")
        for index, one in enumerate(made, 1):
            _keep(one, *(_numbered(path, index, calls) for path in (record, plot)))
    except (ValueError, VoxagentError, OSError) as error:
        raise fail(str(error)) from error
    each = [one.as_dict() for one in made]
    both = together(made, each)
    console.print(_table(each, both))
    if as_json:
        typer.echo(json.dumps({"url": url, "calls": each, "together": both}, ensure_ascii=False))
    if both["failed"]:
        raise typer.Exit(1)


def _keep(one: Call, record: Path | None, plot: Path | None) -> None:
    if one.caller is None:
        return
    if record is not None:
        write_record(record, one.caller.spoken, one.caller.wire.by_timestamp())
    if plot is not None:
        _draw(plot, one, one.caller)


def _numbered(path: Path | None, index: int, calls: int) -> Path | None:
    return path if path is None or calls == 1 else path.with_stem(f"{path.stem}-{index}")


def _table(each: Sequence[dict[str, Any]], both: dict[str, Any]) -> Table:
    table = Table("call", "connected", "packets", "lateness p99, max", "bot spoke", "what was said", "ended")
    for figures in each:
        if "error" in figures:
            table.add_row("[red]failed[/]", "", "", "", "", "", escape(figures["error"]))
            continue
        late = figures["lateness_ms"]
        said = "\n".join(
            f"{turn['kind']} {escape(turn['file'])}: "
            + ", ".join(
                f"{name[:-3]} {turn[name]} ms" for name in ("duck_ms", "silence_ms", "response_ms") if turn.get(name)
            )
            for turn in figures["turns"]
        )
        table.add_row(
            escape(figures["call"][:8]),
            f"{figures['connect_ms']} ms",
            f"{figures['packets']}, {figures['lost']} lost",
            f"{late['p99']}, {late['max']} ms",
            f"{figures['bot_spoke_s']} s",
            said,
            figures["ended"],
        )
    if both["calls"] > 1:
        table.caption = (
            f"{both['calls']} calls, {both['failed']} failed, connected in {both['connect_ms']['median']} ms (median)"
        )
    return table
