"""`voxagent bench call`: the whole agent in a process of its own, called over WebRTC on loopback.

Everything is measured from outside, at the receiver before any jitter buffer; only what cannot be seen from there
(decisions, the model's context, parts of the response time) comes from the call record.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from voxagent.benchmarks.figures import machine, spread
from voxagent.engine import Engine
from voxagent.models import model_load
from voxagent.record import Event
from voxagent_agent.bench_agent import QUESTION, AgentProcess, agent_process, ask, hush, origin_s, replies, settled
from voxagent_agent.bench_cuts import measure_cuts
from voxagent_agent.sounds import BACKCHANNELS, PHRASES, STOPS, Clip, noises, real_speech, spoken
from voxagent_webrtc.caller import Caller
from voxagent_webrtc.plot import Recording

Progress = Callable[[str], None]

_DUCK_DB = 7.0
# Nobody can tell voice from a click sooner: the bot was soft of itself, and when it was ducked cannot be heard.
_SOONEST_DUCK_S = 0.06
_CANCELLED = ("decision", "cancel")
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
    last_packet_s: float = 0.0


@dataclass(slots=True)
class _Heard:
    """What a call brought to light."""

    cuts: list[_Cut] = field(default_factory=list)
    response_ms: list[float] = field(default_factory=list)
    made_up_ms: float = 0.0
    spoke_s: float = 0.0
    lateness_ms: list[float] = field(default_factory=list)


async def measure(extent: Extent, progress: Progress) -> dict[str, Any]:
    """Runs everything; returns the figures."""
    figures: dict[str, Any] = {"machine": machine()}
    async with _voice() as voice:
        await _everything(extent, progress, voice, figures)
    figures["load_after"] = machine()["load_1m"]
    return figures


@asynccontextmanager
async def _voice() -> AsyncIterator[Engine]:
    """The embedded voice: speaks for the caller, and says again what the agent said."""
    engine = Engine(model_load("piper"))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()


async def _everything(extent: Extent, progress: Progress, voice: Engine, figures: dict[str, Any]) -> None:
    (question,) = await spoken(voice, [QUESTION])
    phrases, stops = await spoken(voice, PHRASES), await spoken(voice, STOPS)
    backchannels = await spoken(voice, BACKCHANNELS)
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
        figures["cuts"] = await measure_cuts(agent, speech, extent.cuts, voice)
    progress("continuous speech: idle, one core busy, event loop blocked")
    figures["continuous"] = await _continuous(extent.speech_s)
    async with agent_process() as agent:
        progress(f"{extent.calls} calls one after another")
        figures["calls"] = await _calls(agent, extent.calls)


# --- barge-in ----------------------------------------------------------------------------------------------------


async def _barge_ins(agent: AgentProcess, question: Clip, speech: Sequence[Clip], count: int) -> dict[str, Any]:
    heard, events = await _conversation(agent, question, speech, count, seed=1)
    figures = _summary([heard])
    after = _after_decisions(heard, events)
    figures["decision_to_last_packet_ms"] = spread(packet_ms for packet_ms, _ in after)
    figures["decision_to_last_audible_ms"] = spread(sound_ms for _, sound_ms in after)
    figures["response_parts_ms"] = _parts(events)
    return figures


def _parts(events: list[Event]) -> dict[str, float]:
    """What the response time is made of: medians in ms, by the agent's own record."""
    parts = [event.fields["parts"] for event in events if event.kind == "latency"]
    return {name: round(median(part[name] for part in parts), 1) for name in (parts[0] if parts else {})}


async def _four_calls(
    agent: AgentProcess, question: Clip, speech: Sequence[Clip], alone: dict[str, Any]
) -> dict[str, Any]:
    talks = [_conversation(agent, question, speech, 6, seed=seed) for seed in range(10, 14)]
    found = await asyncio.gather(*talks)
    figures = _summary([heard for heard, _ in found])
    figures["response_parts_ms"] = _parts([event for _, events in found for event in events])
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
        await settled(caller)
        for index in range(count):
            asked = caller.say(question.pcm)
            ended_s = asked.start_s + question.end_s
            if not await replies(caller, ended_s):
                continue
            heard.response_ms.append(1000 * (caller.wire.replies[-1].start_s - ended_s))
            await asyncio.sleep(rng.uniform(0.8, 3.0))
            said = speech[index % len(speech)].first(2.0)
            over = caller.say(said.pcm, loop.time() + 0.03)
            await asyncio.sleep(1.7)
            heard.cuts.append(_cut(caller, over.start_s + said.onset_s))
            # The bot may answer what was said: that reply is let go by.
            await asyncio.sleep(2.2)
            await hush(caller)
        heard.spoke_s, heard.made_up_ms = _made_up(caller.wire.by_timestamp())
        heard.lateness_ms = [1000 * late for late in caller.wire.lateness_s()]
        call = caller.call_id
    await asyncio.sleep(0.5)
    return heard, agent.events(call)


def _cut(caller: Caller, onset_s: float) -> _Cut:
    recording = caller.wire.by_arrival()
    cut = _Cut()
    last_s = recording.last_audible_before(onset_s + 1.2)
    before_s = recording.last_audible_before(onset_s)
    if last_s is None or before_s is None or onset_s - before_s > _PAUSE_S or last_s <= onset_s:
        return cut
    ducked_s = recording.ducked_at(onset_s, _DUCK_DB)
    if ducked_s is not None and ducked_s < onset_s + _SOONEST_DUCK_S:
        ducked_s = None
    cut.silent_s, cut.silent_ms = last_s, 1000 * (last_s - onset_s)
    # A packet's sound begins when it arrives.
    cut.last_packet_s = max(packet.arrived_s for packet in caller.wire.packets if packet.arrived_s < last_s)
    cut.ducked_ms = None if ducked_s is None else min(cut.silent_ms, 1000 * (ducked_s - onset_s))
    cut.splash_db = recording.splash_db(last_s)
    return cut


def _after_decisions(heard: _Heard, events: list[Event]) -> list[tuple[float, float]]:
    """From the decision to hold or to end, to the last audible packet's arrival, and to the end of its sound, in ms."""
    start_s = origin_s(events)
    decided = [
        start_s + event.at_s
        for event in events
        if event.kind == "decision" and event.fields["action"] in ("pause", "cancel")
    ]
    found = []
    for cut in heard.cuts:
        near = [at_s for at_s in decided if -0.1 < cut.silent_s - at_s < 0.25]
        if cut.silent_ms is not None and near:
            found.append((1000 * (cut.last_packet_s - min(near)), 1000 * (cut.silent_s - min(near))))
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
        await settled(caller)
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
        await settled(caller)
        for word in stops:
            stopped = sum([await _over_a_reply(caller, word) for _ in range(count)])
            figures[word.name] = {"trials": count, "stopped": stopped}
            missed, trials = missed + count - stopped, trials + count
    return {"of_each": figures, "missed": missed, "trials": trials, "share": round(missed / trials, 3)}


async def _over_a_reply(caller: Caller, sound: Clip) -> bool:
    """Asks by message, makes the sound once over the reply; returns whether the bot was cancelled."""
    loop = asyncio.get_running_loop()
    asked_s = loop.time()
    ask(caller)
    await replies(caller, asked_s)
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
    await hush(caller)
    return cancelled


# --- steadiness --------------------------------------------------------------------------------------------------


async def _continuous(seconds: float) -> dict[str, Any]:
    figures = {}
    for name, options, busy in (("idle", (), 0), ("one_core_busy", (), 1), ("loop_blocked", ("--block",), 0)):
        async with agent_process(*options) as agent, _busy(busy), await Caller.connect(agent.url) as caller:
            loop = asyncio.get_running_loop()
            await settled(caller)
            until_s = loop.time() + seconds
            while loop.time() < until_s:
                asked_s = loop.time()
                ask(caller)
                await replies(caller, asked_s)
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
            await settled(caller)
            asked_s = asyncio.get_running_loop().time()
            ask(caller)
            await replies(caller, asked_s)
        if index % max(1, count // 10) == 0 or index == count - 1:
            await asyncio.sleep(1.0)
            samples.append({"after": index + 1, **await agent.health()})
    names = ("after", "memory_mb", "tasks", "files", "calls")
    return {"samples": [{name: sample[name] for name in names} for sample in samples]}


# --- pieces ------------------------------------------------------------------------------------------------------


def _made_up(recording: Recording) -> tuple[float, float]:
    """Seconds of audible speech, and milliseconds of silence inside it that the sender made up."""
    return float(recording.audible().sum()) * 0.005, sum(1000 * gap.length_s for gap in recording.made_up_gaps())


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
