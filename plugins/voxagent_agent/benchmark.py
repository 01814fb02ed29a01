"""`voxagent bench call`: the whole agent in a process of its own, called over WebRTC on loopback.

Everything is measured from outside, at the receiver before any jitter buffer; only what cannot be seen from there
(decisions, the model's context, parts of the response time) comes from the call record.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np

from voxagent.benchmarks.figures import machine, spread
from voxagent.engine import Engine
from voxagent.models import model_load
from voxagent.record import Event, read_record
from voxagent_agent.sounds import BACKCHANNELS, PHRASES, STOPS, Clip, noises, real_speech, spoken
from voxagent_webrtc.caller import Caller
from voxagent_webrtc.plot import Recording

Progress = Callable[[str], None]

_QUESTION = "Tell me a long story about the harbour."
_DUCK_DB = 7.0
_CANCELLED = ("decision", "cancel")
_REPLY_S = 8.0
# A cut whose moment fell into a pause of the bot's has no silence to be measured.
_PAUSE_S = 0.06


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        barge_ins: With real speech, one call.
        cuts: At random points, by several callers at once, for words and for audio of the old turn.
        noises: Of each kind.
        stops: Of each stop word.
        speech_s: Of continuous speech, for each kind of load.
        calls: One after another.
    """

    barge_ins: int = 15
    cuts: int = 200
    noises: int = 4
    stops: int = 5
    speech_s: float = 60.0
    calls: int = 300


@dataclass(slots=True)
class _Cut:
    """One barge-in as the caller saw it."""

    ducked_ms: float | None = None
    silent_ms: float | None = None
    splash_db: float | None = None
    silent_s: float = 0.0


@dataclass(slots=True)
class _Heard:
    """What a call brought to light."""

    cuts: list[_Cut] = field(default_factory=list)
    response_ms: list[float] = field(default_factory=list)
    made_up_ms: float = 0.0
    spoke_s: float = 0.0
    lateness_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """The agent's process."""

    url: str
    records: Path

    def events(self, call: str) -> list[Event]:
        """The record of a call."""
        (path,) = self.records.glob(f"*-{call[:12]}.jsonl")
        return read_record(path)

    async def health(self) -> dict[str, Any]:
        """What the process holds."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as response:
            return dict(await response.json())


async def measure(extent: Extent, progress: Progress) -> dict[str, Any]:
    """Runs everything; returns the figures."""
    figures: dict[str, Any] = {"machine": machine()}
    engine = Engine(model_load("piper"))
    await engine.start()
    try:
        (question,) = await spoken(engine, [_QUESTION])
        phrases, stops = await spoken(engine, PHRASES), await spoken(engine, STOPS)
        backchannels = await spoken(engine, BACKCHANNELS)
    finally:
        await engine.aclose()
    speech = real_speech() or phrases
    figures["caller"] = "real speech" if speech is not phrases else "the embedded voice"
    async with agent_process() as agent:
        progress(f"{extent.barge_ins} barge-ins with {figures['caller']}")
        figures["barge_in"] = await _barge_ins(agent, question, speech, extent.barge_ins)
        progress("four calls at once")
        figures["four_calls"] = await _four_calls(agent, question, speech, figures["barge_in"])
        progress(f"{extent.noises} of each noise and backchannel")
        figures["let_pass"] = await _let_pass(agent, [*noises(), *backchannels], extent.noises)
        progress(f"{extent.stops} of each stop word")
        figures["stop_words"] = await _stop_words(agent, stops, extent.stops)
        progress(f"{extent.cuts} cuts at random points")
        figures["cuts"] = await _cuts(agent, speech, extent.cuts)
    progress("continuous speech: idle, one core busy, event loop blocked")
    figures["continuous"] = await _continuous(extent.speech_s)
    async with agent_process() as agent:
        progress(f"{extent.calls} calls one after another")
        figures["calls"] = await _calls(agent, extent.calls)
    figures["load_after"] = machine()["load_1m"]
    return figures


# --- barge-in ----------------------------------------------------------------------------------------------------


async def _barge_ins(agent: AgentProcess, question: Clip, speech: Sequence[Clip], count: int) -> dict[str, Any]:
    heard, events = await _conversation(agent, question, speech, count, seed=1)
    figures = _summary([heard])
    figures["decision_to_last_audible_ms"] = spread(_after_decisions(heard, events))
    parts = [event.fields["parts"] for event in events if event.kind == "latency"]
    names = parts[0] if parts else {}
    figures["response_parts_ms"] = {name: round(median(part[name] for part in parts), 1) for name in names}
    return figures


async def _four_calls(
    agent: AgentProcess, question: Clip, speech: Sequence[Clip], alone: dict[str, Any]
) -> dict[str, Any]:
    talks = [_conversation(agent, question, speech, 4, seed=seed) for seed in range(10, 14)]
    heard = [one for one, _ in await asyncio.gather(*talks)]
    figures = _summary(heard)
    for name in ("onset_to_ducked_ms", "onset_to_silent_ms", "response_ms"):
        one, four = alone[name]["median"], figures[name]["median"]
        figures[f"{name}_ratio"] = round(four / one, 2) if one and four else None
    return figures


async def _conversation(
    agent: AgentProcess, question: Clip, speech: Sequence[Clip], count: int, seed: int
) -> tuple[_Heard, list[Event]]:
    """Asks aloud, speaks over the reply, and again."""
    rng, heard, loop = random.Random(seed), _Heard(), asyncio.get_running_loop()
    async with await Caller.connect(agent.url) as caller:
        await _settled(caller)
        for index in range(count):
            asked = caller.say(question.pcm)
            ended_s = asked.start_s + question.end_s
            if not await _replies(caller, ended_s):
                continue
            heard.response_ms.append(1000 * (caller.wire.replies[-1].start_s - ended_s))
            await asyncio.sleep(rng.uniform(0.8, 3.0))
            said = speech[index % len(speech)].first(2.0)
            over = caller.say(said.pcm, loop.time() + 0.03)
            await asyncio.sleep(1.7)
            heard.cuts.append(_cut(caller, over.start_s + said.onset_s))
            # The bot may answer what was said: that reply is let go by.
            await asyncio.sleep(2.2)
            await caller_quiet(caller)
        heard.spoke_s, heard.made_up_ms = _made_up(caller.wire.by_timestamp())
        heard.lateness_ms = [1000 * late for late in caller.wire.lateness_s()]
        call = caller.call_id
    await asyncio.sleep(0.5)
    return heard, agent.events(call)


async def caller_quiet(caller: Caller) -> None:
    """Stops whatever the bot says, by a message instead of a voice."""
    caller.send({"type": "voxagent", "event": "hush"})
    await asyncio.sleep(0.4)


def _cut(caller: Caller, onset_s: float) -> _Cut:
    recording = caller.wire.by_arrival()
    cut = _Cut()
    last_s = recording.last_audible_before(onset_s + 1.2)
    before_s = recording.last_audible_before(onset_s)
    if last_s is None or before_s is None or onset_s - before_s > _PAUSE_S or last_s <= onset_s:
        return cut
    ducked_s = recording.ducked_at(onset_s, _DUCK_DB)
    cut.silent_s, cut.silent_ms = last_s, 1000 * (last_s - onset_s)
    cut.ducked_ms = None if ducked_s is None else min(cut.silent_ms, 1000 * (ducked_s - onset_s))
    cut.splash_db = recording.splash_db(last_s)
    return cut


def _after_decisions(heard: _Heard, events: list[Event]) -> list[float]:
    """From the decision to hold or to end, to the last audible packet, in ms."""
    start = next(event for event in events if event.kind == "start")
    origin_s = float(start.fields["clock_s"])
    decided = [
        origin_s + event.at_s
        for event in events
        if event.kind == "decision" and event.fields["action"] in ("pause", "cancel")
    ]
    found = []
    for cut in heard.cuts:
        near = [at_s for at_s in decided if -0.1 < cut.silent_s - at_s < 0.25]
        if cut.silent_ms is not None and near:
            found.append(1000 * (cut.silent_s - min(near)))
    return found


def _summary(heard: Sequence[_Heard]) -> dict[str, Any]:
    cuts = [cut for one in heard for cut in one.cuts]
    spoke_s = sum(one.spoke_s for one in heard)
    return {
        "barge_ins": len(cuts),
        "onset_to_ducked_ms": spread(cut.ducked_ms for cut in cuts),
        "onset_to_silent_ms": spread(cut.silent_ms for cut in cuts),
        "in_a_pause": sum(cut.silent_ms is None for cut in cuts),
        "splash_db": spread(cut.splash_db for cut in cuts),
        "response_ms": spread(ms for one in heard for ms in one.response_ms),
        "made_up_ms_per_minute": round(60 * sum(one.made_up_ms for one in heard) / spoke_s, 1) if spoke_s else None,
        "lateness_ms": spread(ms for one in heard for ms in one.lateness_ms),
    }


# --- what must not, and what must stop the bot -------------------------------------------------------------------


async def _let_pass(agent: AgentProcess, sounds: Sequence[Clip], count: int) -> dict[str, Any]:
    """Sounds over the bot that should cost nothing."""
    figures: dict[str, Any] = {}
    cancels = trials = lost = 0
    async with await Caller.connect(agent.url) as caller:
        await _settled(caller)
        for sound in sounds:
            cancelled = 0
            for _ in range(count):
                cancelled += await _over_a_reply(caller, sound)
            figures[sound.name] = {"trials": count, "cancelled": cancelled}
            cancels, trials = cancels + cancelled, trials + count
        call = caller.call_id
    await asyncio.sleep(0.5)
    held = None
    for event in agent.events(call):
        if event.kind == "decision" and event.fields["action"] == "pause":
            held = event.fields["position_samples"]
        elif event.kind == "decision" and event.fields["action"] == "resume" and held is not None:
            lost, held = lost + abs(event.fields["position_samples"] - held), None
    share = round(cancels / trials, 3) if trials else None
    return {"of_each": figures, "false_cancels": cancels, "trials": trials, "share": share, "lost_samples": lost}


async def _stop_words(agent: AgentProcess, stops: Sequence[Clip], count: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    missed = trials = 0
    async with await Caller.connect(agent.url) as caller:
        await _settled(caller)
        for word in stops:
            stopped = sum([await _over_a_reply(caller, word) for _ in range(count)])
            figures[word.name] = {"trials": count, "stopped": stopped}
            missed, trials = missed + count - stopped, trials + count
    return {"of_each": figures, "missed": missed, "trials": trials, "share": round(missed / trials, 3)}


async def _over_a_reply(caller: Caller, sound: Clip) -> bool:
    """Asks by message, makes the sound once over the reply; returns whether the bot was cancelled."""
    loop = asyncio.get_running_loop()
    asked_s = loop.time()
    _ask(caller)
    await _replies(caller, asked_s)
    await asyncio.sleep(1.0)
    said = caller.say(sound.pcm, loop.time() + 0.02)
    deadline_s = said.end_s + 2.0
    cancelled = False
    while loop.time() < deadline_s and not cancelled:
        await asyncio.sleep(0.02)
        cancelled = any(
            message.at_s > said.start_s and (message.body.get("event"), message.body.get("action")) == _CANCELLED
            for message in caller.messages
        )
    await caller_quiet(caller)
    return cancelled


# --- words -------------------------------------------------------------------------------------------------------


async def _cuts(agent: AgentProcess, speech: Sequence[Clip], count: int) -> dict[str, Any]:
    """Cuts at random points by four callers at once: words against audio, and audio that should not be there."""
    each = -(-count // 4)
    found = await asyncio.gather(*(_random_cuts(agent, speech, each, seed) for seed in range(20, 24)))
    off = [words for one in found for words in one[0]]
    stray = [ms for one in found for ms in one[1]]
    return {
        "cuts": len(stray),
        "old_turn_audio_ms": round(sum(stray), 1),
        "cuts_with_old_audio": sum(ms > 0 for ms in stray),
        "words_off": spread([float(words) for words in off]),
        "words_off_by_at_most_1": round(sum(abs(words) <= 1 for words in off) / len(off), 3) if off else None,
        "words_claimed_but_not_played": sum(words > 0 for words in off),
        "compared": len(off),
    }


async def _random_cuts(
    agent: AgentProcess, speech: Sequence[Clip], count: int, seed: int
) -> tuple[list[int], list[float]]:
    rng, loop = random.Random(seed), asyncio.get_running_loop()
    async with await Caller.connect(agent.url) as caller:
        await _settled(caller)
        for _ in range(count):
            asked_s = loop.time()
            _ask(caller)
            if await _replies(caller, asked_s):
                await asyncio.sleep(rng.uniform(0.05, 2.5))
                caller.say(rng.choice(list(speech)).first(1.1).pcm, loop.time() + 0.02)
                await asyncio.sleep(1.9)
            await caller_quiet(caller)
        call = caller.call_id
    await asyncio.sleep(0.5)
    found = _cut_turns(caller)
    off = [cut.committed - _words_in(agent.events(call), cut) for cut in found if cut.heard_s is not None]
    return off, [cut.stray_ms for cut in found]


@dataclass(frozen=True, slots=True)
class _CutTurn:
    """A turn that was cancelled by the caller's voice: what the caller received of it, and what the agent claims."""

    turn: int
    committed: int
    heard_s: float | None
    stray_ms: float


def _cut_turns(caller: Caller) -> list[_CutTurn]:
    recording, told = caller.wire.by_timestamp(), caller.messages
    phrases = [(m.at_s, m.body["turn"]) for m in told if m.body.get("event") == "phrase"]
    decisions = [(m.at_s, m.body["action"]) for m in told if m.body.get("event") == "decision"]
    found = []
    for message in told:
        if message.body.get("event") != "cut":
            continue
        turn = message.body["turn"]
        began_s = next((at_s for at_s, other in phrases if other == turn), None)
        steps = [step for step in decisions if began_s is not None and began_s < step[0] <= message.at_s + 0.05]
        if began_s is None or not steps or steps[-1][1] != "cancel":
            continue
        next_s = next((at_s for at_s, other in phrases if other > turn), message.at_s + 1.5)
        held_s = next((at_s for at_s, action in steps if action in ("pause", "cancel")), message.at_s)
        first_s = recording.first_audible_after(began_s - 0.02)
        last_s = recording.last_audible_before(held_s + 0.15)
        # A turn that went on after a pause in between has no one stretch of time to be measured.
        whole = first_s is not None and last_s is not None and "resume" not in [action for _, action in steps]
        heard_s = max(0.0, last_s - first_s) if whole and first_s is not None and last_s is not None else None
        stray_ms = _audible_ms(recording, steps[-1][0] + _CODEC_S, next_s)
        found.append(_CutTurn(turn, len(str(message.body["heard"]).split()), heard_s, stray_ms))
    return found


def _words_in(events: list[Event], cut: _CutTurn) -> int:
    """Words of a turn whose end lies in what the caller received."""
    chunks = [event.fields for event in events if event.kind == "chunk" and event.fields["turn"] == cut.turn]
    ends_s = [end / chunk["sample_rate"] for chunk in chunks for _, end in chunk.get("words", ())]
    return sum(end_s <= (cut.heard_s or 0.0) + _TAIL_S for end_s in ends_s)


# The voice's words end in sound too soft to be counted as audible.
_TAIL_S = 0.06
# The fade, one packet, and what the codec holds back.
_CODEC_S = 0.06


# --- steadiness --------------------------------------------------------------------------------------------------


async def _continuous(seconds: float) -> dict[str, Any]:
    figures = {}
    for name, options, busy in (("idle", (), 0), ("one_core_busy", (), 1), ("loop_blocked", ("--block",), 0)):
        async with agent_process(*options) as agent, _busy(busy), await Caller.connect(agent.url) as caller:
            loop = asyncio.get_running_loop()
            await _settled(caller)
            until_s = loop.time() + seconds
            while loop.time() < until_s:
                asked_s = loop.time()
                _ask(caller)
                await _replies(caller, asked_s)
                while loop.time() < until_s and loop.time() - caller.wire.replies[-1].end_s < 0.8:
                    await asyncio.sleep(0.05)
            spoke_s, made_up_ms = _made_up(caller.wire.by_timestamp())
            figures[name] = {
                "spoke_s": round(spoke_s, 1),
                "made_up_ms": round(made_up_ms, 1),
                "lost": caller.wire.lost,
                "lateness_ms": spread(1000 * late for late in caller.wire.lateness_s()),
            }
    return figures


async def _calls(agent: AgentProcess, count: int) -> dict[str, Any]:
    """Calls one after another in one process, each with a reply."""
    samples = []
    for index in range(count):
        async with await Caller.connect(agent.url) as caller:
            await _settled(caller)
            asked_s = asyncio.get_running_loop().time()
            _ask(caller)
            await _replies(caller, asked_s)
        if index % max(1, count // 10) == 0 or index == count - 1:
            await asyncio.sleep(1.0)
            samples.append({"after": index + 1, **await agent.health()})
    names = ("after", "memory_mb", "tasks", "files", "calls")
    return {"samples": [{name: sample[name] for name in names} for sample in samples]}


# --- pieces ------------------------------------------------------------------------------------------------------


async def _settled(caller: Caller) -> None:
    """Waits until the agent has said hello: its pipeline runs."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _REPLY_S
    while not any(message.body.get("event") == "hello" for message in caller.messages) and loop.time() < until_s:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)


def _ask(caller: Caller) -> None:
    caller.send({"type": "voxagent", "event": "ask", "text": _QUESTION})


async def _replies(caller: Caller, since_s: float) -> bool:
    """Waits until the bot has begun to answer."""
    loop = asyncio.get_running_loop()
    while not caller.wire.replies or caller.wire.replies[-1].start_s < since_s:
        if loop.time() > since_s + _REPLY_S:
            return False
        await asyncio.sleep(0.01)
    return True


def _made_up(recording: Recording) -> tuple[float, float]:
    """Seconds of audible speech, and milliseconds of silence inside it that the sender made up."""
    return float(recording.audible().sum()) * 0.005, sum(1000 * gap.length_s for gap in recording.made_up_gaps())


def _audible_ms(recording: Recording, from_s: float, to_s: float) -> float:
    audible = recording.audible()
    first = max(0, round((from_s - recording.start_s) / 0.005))
    return 5.0 * int(np.count_nonzero(audible[first : max(first, round((to_s - recording.start_s) / 0.005))]))


@asynccontextmanager
async def agent_process(*options: str) -> AsyncIterator[AgentProcess]:
    """Starts the agent in a process of its own, and ends it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "voxagent_agent.stand", folder, *options]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                line = (await process.stdout.readline()).decode().strip()
            if not line.startswith("http"):
                raise ValueError("the agent did not start: `voxagent run` tells why")
            yield AgentProcess(line.rstrip("/"), Path(folder))
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


@asynccontextmanager
async def _busy(cores: int) -> AsyncIterator[None]:
    """Keeps cores busy meanwhile."""
    hogs = [await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass") for _ in range(cores)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            await hog.wait()
